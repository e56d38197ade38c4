//! Templates in `launch.command`, `launch.resume` and in values of `launch.env`: `{run.seed}`, `{rank}`, `{args.lr}`.
//!
//! A template is a name in braces: `{seed}`, a key of the experiment (`{learn.gamma}`), or one of [`RANK_NAMES`],
//! which only the host of a rank can fill. All other braces stay: `${seed}` is a shell's or a console's variable,
//! `{{seed}}` another template's escape. A value becomes part of a word or of a variable: no shell reads it.

use crate::arguments;
use crate::experiment::{Experiment, LaunchConfig};
use crate::ids::{LocalRank, Rank, RunId};
use std::cell::OnceCell;
use std::path::Path;

/// Template for `run.seed`.
pub const SEED: &str = "{seed}";

/// Environment variable with `run.seed`.
pub const SEED_VARIABLE: &str = "RANKDECK_SEED";

/// Environment variable with the rank's own seed.
pub const RANK_SEED_VARIABLE: &str = "RANKDECK_RANK_SEED";

/// Names of `run.seed`.
pub(crate) const SEED_NAMES: [&str; 2] = ["seed", "run.seed"];

/// Names that are filled for each rank.
pub const RANK_NAMES: [&str; 6] = ["rank", "local_rank", "world_size", "run", "run_dir", "resume"];

/// A name in braces.
struct BracedName<'a> {
    /// Where the opening brace stands.
    start: usize,
    /// Behind the closing one.
    end: usize,
    name: &'a str,
}

/// Returns the names in braces of a text, whether they are templates or not.
fn braced(text: &str) -> impl Iterator<Item = BracedName<'_>> {
    text.match_indices('{').filter_map(move |(start, _)| {
        let before = text.get(..start)?;
        let (name, after) = text.get(start + 1..)?.split_once('}')?;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        let is_escaped = before.ends_with('$') || before.ends_with('{') && after.starts_with('}');
        let end = start + name.len() + 2;
        (is_name && !is_escaped).then_some(BracedName { start, end, name })
    })
}

/// Returns the names in braces of a text, whether they are templates or not.
pub fn names_in(text: &str) -> impl Iterator<Item = &str> {
    braced(text).map(|braced| braced.name)
}

/// Returns the names in braces of the command, of `resume` and of values of `env`.
pub fn names(launch: &LaunchConfig) -> impl Iterator<Item = &str> {
    let words = launch.command.iter().chain(&launch.resume).chain(launch.env.values());
    words.flat_map(|text| names_in(text))
}

/// Replaces the names that have a value.
fn filled(text: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let (mut whole, mut from) = (String::with_capacity(text.len()), 0);
    for BracedName { start, end, name } in braced(text) {
        if let Some(value) = value(name) {
            whole.push_str(text.get(from..start).unwrap_or_default());
            whole.push_str(&value);
            from = end;
        }
    }
    whole + text.get(from..).unwrap_or_default()
}

/// Values of the templates that are filled for each rank.
#[derive(Debug, Clone, Copy)]
pub struct RankValues<'a> {
    pub run: &'a RunId,
    pub rank: Rank,
    pub local_rank: LocalRank,
    pub world_size: u32,
    pub run_dir: &'a Path,
    /// The checkpoint from which it resumes.
    pub resume: Option<&'a str>,
}

impl RankValues<'_> {
    /// Fills the templates of a text.
    pub fn filled(&self, text: &str) -> String {
        filled(text, &|name| {
            Some(match name {
                "rank" => self.rank.to_string(),
                "local_rank" => self.local_rank.to_string(),
                "world_size" => self.world_size.to_string(),
                "run" => self.run.to_string(),
                "run_dir" => self.run_dir.to_string_lossy().into_owned(),
                "resume" => self.resume.unwrap_or_default().to_owned(),
                _ => return None,
            })
        })
    }
}

/// Returns whether a text has a template that is filled for each rank.
pub fn names_rank(text: &str) -> bool {
    names_in(text).any(|name| RANK_NAMES.contains(&name))
}

/// Values of an experiment's keys as text.
struct KeyValues<'a> {
    experiment: &'a Experiment,
    table: OnceCell<toml::Table>,
}

impl KeyValues<'_> {
    fn value(&self, name: &str) -> Option<String> {
        if SEED_NAMES.contains(&name) {
            return Some(self.experiment.run.seed.to_string());
        }
        let (table, key) = name.split_once('.')?;
        if table == "args" {
            // A value may name the seed itself.
            let value = self.experiment.args.get(key)?;
            let inner = |name: &str| (!name.starts_with("args.")).then(|| self.value(name)).flatten();
            return Some(filled(value, &inner));
        }
        let whole = self.table.get_or_init(|| toml::Table::try_from(self.experiment).unwrap_or_default());
        match whole.get(table)?.get(key)? {
            toml::Value::String(text) => Some(text.clone()),
            toml::Value::Table(_) | toml::Value::Datetime(_) => None,
            value => Some(value.to_string().replace(' ', "")),
        }
    }
}

impl Experiment {
    /// Returns the value of a template that is a key; `None` if there is no such key, or it is not set.
    pub fn template_value(&self, name: &str) -> Option<String> {
        KeyValues { experiment: self, table: OnceCell::new() }.value(name)
    }

    /// Returns `[launch]` with `[args]` in the command and all templates of keys replaced. [`RANK_NAMES`] stay.
    pub fn filled_launch(&self) -> LaunchConfig {
        let keys = KeyValues { experiment: self, table: OnceCell::new() };
        let mut launch = self.launch.clone();
        launch.command = arguments::placed(&self.launch, &self.args).0;
        let words = launch.command.iter_mut().chain(&mut launch.resume);
        for text in words.chain(launch.env.values_mut()) {
            *text = filled(text, &|name| keys.value(name));
        }
        launch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(text: &str) -> Experiment {
        toml::from_str(&format!("[run]\nname = \"a\"\nseed = 7\n{text}")).unwrap()
    }

    #[test]
    fn only_exact_template_is_replaced() {
        let own = experiment("");
        for (text, expected) in [
            ("{seed}", "7"),
            ("{run.seed}", "7"),
            ("--seed={seed}", "--seed=7"),
            ("out/{seed}/{seed}.pt", "out/7/7.pt"),
            ("{\"seed\":{seed}}", "{\"seed\":7}"),
            ("größe{seed}é", "größe7é"),
            ("{run.name}-{run.seed}", "a-7"),
            ("{watch.python_hook}", "true"),
            ("{policy.hidden}", "[64,64]"),
        ] {
            assert_eq!(filled(text, &|name| own.template_value(name)), expected);
        }
        for same in [
            "${seed}",
            "{{seed}}",
            "${run.seed}",
            "{Seed} {seed } { seed} {run.sed} {1:2} {} {seed",
            "{a,b}",
            "{print $1}",
            "{run}",
            "{launch}",
            "{eval.stop_value}",
            "",
        ] {
            assert_eq!(filled(same, &|name| own.template_value(name)), same);
        }
    }

    #[test]
    fn only_command_and_env_are_filled() {
        let own = experiment(
            "note = \"{seed}\"\n[launch]\ncommand = [\"train\", \"--seed\", \"{seed}\", \"{rank}\"]\n\
             env = { OUT = \"${HOME}/{seed}/{rank}\" }\n",
        );
        let launch = own.filled_launch();
        assert_eq!(launch.command, ["train", "--seed", "7", "{rank}"]);
        assert_eq!(launch.env["OUT"], "${HOME}/7/{rank}");
        assert_eq!(own.run.note.as_deref(), Some("{seed}"));
        assert!(
            names(&own.launch).eq(["seed", "rank", "seed", "rank"])
                && names_rank("x{rank}")
                && !names_rank("${rank} {{rank}}")
        );
    }

    #[test]
    fn argument_may_name_the_seed_but_no_argument() {
        let own = experiment("[launch]\ncommand = [\"t\"]\n[args]\na = \"s{seed}\"\nb = \"{args.a}\"\n");
        assert_eq!(own.filled_launch().command, ["t", "--a=s7", "--b={args.a}"]);
    }

    #[test]
    fn rank_templates_are_filled_for_the_rank() {
        let run = RunId("x-1".into());
        let values = RankValues {
            run: &run,
            rank: Rank(3),
            local_rank: LocalRank(1),
            world_size: 4,
            run_dir: Path::new("/w/runs/x-1"),
            resume: Some("/w/a.pt"),
        };
        assert_eq!(
            values.filled("{run_dir}/{rank}-{local_rank} of {world_size} {run} {seed} ${rank} {resume}"),
            "/w/runs/x-1/3-1 of 4 x-1 {seed} ${rank} /w/a.pt"
        );
        assert_eq!(RankValues { resume: None, ..values }.filled("[{resume}]"), "[]");
    }
}
