//! Checks that values reach the user's program: templates exist, arguments have a place, and overrides are of
//! keys that the program sees.

use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::document::{Node, TomlValue, nearest};
use super::overrides;
use super::suggest::quote;
use super::suggest::{closest, nearly};
use rankdeck_types::arguments;
use rankdeck_types::command::{CommandParts, CommandTarget};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::override_key;
use rankdeck_types::schema::{self, ValueKind};
use rankdeck_types::template::{self, RANK_NAMES};
use std::sync::Arc;

/// Tables that only the built-in trainer reads.
const TRAINER: [&str; 5] = ["env", "policy", "collect", "learn", "eval"];

/// Shortest template that is recognized by its spelling.
const SPELLED: usize = 6;

/// Reports all values that would not reach the program.
pub(super) fn check(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    check_arguments(root, experiment, found);
    let launch = &experiment.launch;
    let text = CommandParts::of(&launch.command).and_then(|parts| match parts.target {
        CommandTarget::Text(_) => Some((parts.arguments.checked_sub(1)?, parts.is_shell())),
        _ => None,
    });
    for (index, word) in launch.command.iter().enumerate() {
        let is_program = text.is_some_and(|(at, is_shell)| at == index && !is_shell);
        let at = || nearest(root, &[format!("launch.command.{index}"), "launch.command".to_owned()]);
        // A program's own text may have any names in braces.
        let names = template::names_in(word).filter(|_| !is_program);
        found.0.extend(names.filter_map(|name| mistake(experiment, name, &at)));
    }
    check_resume(root, experiment, found);
    for (index, word) in launch.resume.iter().enumerate() {
        let at = || nearest(root, &[format!("launch.resume.{index}"), "launch.resume".to_owned()]);
        found.0.extend(template::names_in(word).filter_map(|name| mistake(experiment, name, &at)));
    }
    for (key, value) in &launch.env {
        let at = || nearest(root, &[format!("launch.env.{key}"), "launch.env".to_owned()]);
        found.0.extend(template::names_in(value).filter_map(|name| mistake(experiment, name, &at)));
    }
}

/// Reports words of `launch.resume` that reach no program.
fn check_resume(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    let launch = &experiment.launch;
    if launch.resume.is_empty() {
        return;
    }
    let place = nearest(root, &["launch.resume"]);
    let shell = CommandParts::of(&launch.command).filter(|parts| parts.is_shell());
    if launch.command.is_empty() {
        let error = "`launch.resume` is for your own program; the built-in trainer resumes on its own";
        found.push(Diagnostic::at(&place, error).hint("remove it, or set `launch.command`"));
    } else if let Some(shell) = shell.and_then(|parts| launch.command.get(parts.program)) {
        let error = format!("`launch.resume` may not reach the program behind `{shell}`");
        let hint = "write `{resume}` in `launch.command`, or read `$RANKDECK_RESUME` in the script";
        found.push(Diagnostic::at(&place, error).label("appended to the command").hint(hint));
    }
}

/// Reports arguments that reach no program.
fn check_arguments(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    let place = |key: &str| {
        let table = root.entry("args").and_then(|found| found.node.table());
        let entry = table.and_then(|table| table.get(key));
        entry.map_or_else(|| nearest(root, &["args"]), |entry| entry.node.place.clone())
    };
    let launch = &experiment.launch;
    if launch.command.is_empty() {
        if let Some(key) = experiment.args.keys().next() {
            let error = "`[args]` is for your own program; the built-in trainer does not use it";
            let hint = "set `launch.command`, or use the keys of `[learn]` and the other tables";
            found.push(Diagnostic::at(&place(key), error).hint(hint));
        }
        return;
    }
    for key in arguments::placed(launch, &experiment.args).1 {
        let shell = CommandParts::of(&launch.command)
            .and_then(|parts| launch.command.get(parts.program))
            .map_or("", String::as_str);
        let command = arguments::with_option(&launch.command, key, &format!("{{args.{key}}}"));
        let command: Vec<String> = command.iter().map(|word| quote(word)).collect();
        found.push(
            Diagnostic::at(&place(key), format!("`args.{key}` may not reach the program behind `{shell}`"))
                .label("no place in the command")
                .hint(format!(
                    "write `command = [{}]`, and have the script pass its arguments on (`\"$@\"`)",
                    command.join(", ")
                )),
        );
    }
}

/// Returns the error for a name in braces that is meant to be a template.
fn mistake(experiment: &Experiment, name: &str, at: &dyn Fn() -> SourceSpan) -> Option<Diagnostic> {
    if RANK_NAMES.contains(&name) || experiment.template_value(name).is_some() {
        return None;
    }
    let refuse =
        |message: String, hint: String| Some(Diagnostic::at(&at(), message).label("template").hint(hint));
    let similar = |near: &str| format!("a similar template exists: `{{{near}}}`");
    let section = name.split_once('.').and_then(|(table, key)| {
        Experiment::KEYS.iter().find(|section| section.name == table).map(|section| (section, key))
    });
    if let Some((ValueKind::Arguments, key)) = section.map(|(section, key)| (&section.kind, key)) {
        let near = closest(key, experiment.args.keys().map(String::as_str));
        let hint = near.map_or_else(
            || format!("set it in `[args]`, or with `--set args.{key}=VALUE`"),
            |near| similar(&format!("args.{near}")),
        );
        return refuse(format!("`{{{name}}}` has no value: `[args]` has no `{key}`"), hint);
    }
    if let Some((section, key)) = section {
        if schema::find(Experiment::KEYS, &[section.name, key]).is_some() {
            return refuse(
                format!("`{{{name}}}` has no value: `{name}` is not set"),
                format!("set it, for example with `--set {name}=VALUE`"),
            );
        }
        let keys = match section.kind {
            ValueKind::Table(keys) => keys.iter().map(|key| key.name).collect(),
            _ => Vec::new(),
        };
        let hint = closest(key, keys.iter().copied()).map_or_else(
            || format!("keys of `[{}]`: `{}`", section.name, keys.join("`, `")),
            |near| similar(&format!("{}.{near}", section.name)),
        );
        return refuse(format!("unknown template `{{{name}}}`"), hint);
    }
    let args = experiment.args.keys().map(|key| format!("args.{key}"));
    let known = ["seed", "run.seed"].iter().chain(&RANK_NAMES).map(|name| (*name).to_owned()).chain(args);
    let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    let is_near = |known: &String| {
        plain(known) == plain(name) || name.chars().count() >= SPELLED && nearly(name, known)
    };
    let near = known.into_iter().find(is_near)?;
    refuse(format!("unknown template `{{{name}}}`"), similar(&near))
}

/// Returns table and name of the keys of an override that only the built-in trainer reads.
fn trainer_keys(set: &str) -> Vec<(String, String)> {
    let keys = if set.contains('=') { override_key::keys(set) } else { Vec::new() };
    let parts = |key: &String| key.split_once('.').map(|(table, name)| (table.to_owned(), name.to_owned()));
    keys.iter().filter_map(parts).filter(|(table, _)| TRAINER.contains(&table.as_str())).collect()
}

/// Returns the overrides without those of keys that only the built-in trainer reads, which are reported, if the
/// document has a command that does not name them.
pub(super) fn reaching(root: &Node, sets: &[String], found: &mut Diagnostics) -> Vec<String> {
    let (trainers, others): (Vec<&String>, Vec<&String>) =
        sets.iter().partition(|set| !trainer_keys(set).is_empty());
    if trainers.is_empty() {
        return sets.to_vec();
    }
    let mut seen = root.clone();
    let others: Vec<String> = others.into_iter().cloned().collect();
    overrides::apply(&mut seen, &others, Experiment::KEYS, &mut Diagnostics::new());
    let Some(command) = seen.entry("launch.command") else { return sets.to_vec() };
    let env = seen.entry("launch.env").map(|found| texts(found.node)).unwrap_or_default();
    let texts: Vec<&str> = texts(command.node).into_iter().chain(env).collect();
    let is_named = |key: &str| texts.iter().flat_map(|text| template::names_in(text)).any(|name| name == key);
    sets.iter()
        .filter(|set| {
            let unnamed =
                trainer_keys(set).into_iter().find(|(table, name)| !is_named(&format!("{table}.{name}")));
            unnamed.iter().for_each(|(table, name)| found.push(unread(set, table, name)));
            unnamed.is_none()
        })
        .cloned()
        .collect()
}

/// The strings of a value.
fn texts(node: &Node) -> Vec<&str> {
    match &node.value {
        TomlValue::String(text) => vec![text],
        TomlValue::Array(items) => items.iter().flat_map(texts).collect(),
        TomlValue::Table(table) => table.values().flat_map(|entry| texts(&entry.node)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the error for an override of a key that the program does not read.
fn unread(set: &str, table: &str, name: &str) -> Diagnostic {
    let (path, value) = override_key::parse(set).map_or((set, ""), |parsed| (parsed.path, parsed.value));
    // A table has no place in an argument.
    let value = if value.trim().starts_with('{') { "VALUE" } else { value.trim() };
    let key = format!("{table}.{name}");
    let source = Arc::new(SourceText::new("--set", set));
    let place = SourceSpan { source, range: 0..path.len() };
    Diagnostic::at(&place, format!("`{key}` does not reach your program"))
        .label(format!("only the built-in trainer reads `[{table}]`"))
        .hint(format!(
            "pass `args.{name}={value}`: the program gets `--{name}={value}`; or write `{{{key}}}` in `launch.command`"
        ))
}

#[cfg(test)]
mod tests {
    use crate::load_experiment;
    use crate::source::ExperimentSource;

    /// Messages and hints of an experiment.
    fn found(launch: &str, sets: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(&path, format!("[run]\nname = \"a\"\n{launch}")).unwrap();
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let all = load_experiment(&ExperimentSource::File(path), &sets).err().unwrap_or_default();
        all.0.iter().map(|one| format!("{} / {}", one.message, one.hint)).collect()
    }

    fn of_word(word: &str) -> Vec<String> {
        found(&format!("[launch]\ncommand = [\"t\", '{word}']\n[args]\nlr = 1\n"), &[])
    }

    #[test]
    fn misspelled_template_names_the_right_one() {
        for (word, near) in [
            ("{run.sed}", "{run.seed}"),
            ("{args.rl}", "args.rl"),
            ("{arg.lr}", "{args.lr}"),
            ("{local_rnak}", "{local_rank}"),
            ("{world-size}", "{world_size}"),
            ("{RunDir}", "{run_dir}"),
            ("{SEED}", "{seed}"),
            ("{run.note}", "run.note"),
            ("{learn.gamma}", "learn.gamma"),
        ] {
            let all = of_word(word);
            assert!(all.len() == 1 && all[0].contains(near), "{word}: {all:?}");
        }
        let in_env = found("[launch]\ncommand = [\"t\"]\nenv = { A = \"{run.sed}\" }\n", &[]);
        assert!(in_env.len() == 1 && in_env[0].contains("{run.seed}"), "{in_env:?}");
    }

    #[test]
    fn resume_words_need_a_program_that_gets_them() {
        let of = |command: &str, resume: &str| {
            found(&format!("[launch]\ncommand = [{command}]\nresume = [{resume}]\n"), &[])
        };
        assert!(of("\"python3\", \"t.py\"", "\"--resume\", \"{resume}\"").is_empty());
        let misspelled = of("\"t\"", "\"{resmue}\"");
        assert!(misspelled.len() == 1 && misspelled[0].contains("{resume}"), "{misspelled:?}");
        let shell = of("\"bash\", \"run.sh\"", "\"{resume}\"");
        assert!(shell.len() == 1 && shell[0].contains("RANKDECK_RESUME"), "{shell:?}");
    }

    #[test]
    fn other_braces_are_accepted() {
        for word in [
            "{seed} {run.seed} {rank} {run_dir} {args.lr} {run.name}",
            "ckpt-{epoch:02d}-{step}.pt",
            "{ranks} {runs} {a.b} {print $1} {1..3} {}",
            "${run.sed} {{run.sed}}",
            "{\"rank\": {rank}}",
        ] {
            assert_eq!(of_word(word), [""; 0], "{word}");
        }
        let text = "[launch]\ncommand = [\"python3\", \"-c\", \"print(f'{run.sed} {args.x}')\"]\n";
        assert_eq!(found(text, &[]), [""; 0]);
        let shell = "[launch]\ncommand = [\"sh\", \"-c\", \"t {run.sed}\"]\n";
        assert_eq!(found(shell, &[]).len(), 1);
    }

    #[test]
    fn argument_that_reaches_no_program_is_refused() {
        let line = "command = [\"sh\", \"-c\", \"t --lr {args.lr}\"]";
        let all = found("[launch]\ncommand = [\"sh\", \"-c\", \"t\"]\n", &["args.lr=1"]);
        assert!(all.len() == 1 && all[0].contains(line), "{all:?}");
        assert_eq!(found(&format!("[launch]\n{line}\n"), &["args.lr=1"]), [""; 0]);
        let trainer =
            "[env]\nid = \"CartPole-v1\"\nnum_envs = 4\n[learn]\nalgorithm = \"ppo\"\nanneal_lr = false\n";
        assert!(found(trainer, &["args.lr=1"])[0].contains("[args]"));
    }

    #[test]
    fn override_of_a_trainer_key_is_refused_for_a_program() {
        let launch = "[launch]\ncommand = [\"t\"]\n[learn]\nalgorithm = \"ppo\"\n";
        for launch in [launch, "[launch]\ncommand = [\"t\"]\n"] {
            let all = found(launch, &["learn.gamma=0.5"]);
            assert!(all.len() == 1 && all[0].contains("args.gamma=0.5"), "{all:?}");
        }
        for set in ["learn . gamma=0.5", "learn.\"gamma\"=0.5", "learn={gamma=0.5}"] {
            let all = found("[launch]\ncommand = [\"t\"]\n", &[set]);
            assert!(all.len() == 1 && all[0].contains("`learn.gamma` does not reach"), "{all:?}");
        }
        assert_eq!(found(launch, &["run.total_steps=5", "watch.on_stuck=stop", "~learn.gamma"]).len(), 1);
        let named = launch.replace("\"t\"", "\"t\", \"{learn.gamma}\"");
        assert_eq!(found(&named, &["learn.gamma=0.5"]), [""; 0]);
    }
}
