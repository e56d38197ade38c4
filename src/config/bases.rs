//! Experiments that share values: `base = "other.toml"`, and `[section.NAME]` with `use = ["NAME"]`.
//!
//! Owner: one load. Later ones win: the base, the sections in the order of `use`, the file itself, `--set`.
//! Every value keeps the file that it was written in, so that a mistake is shown there.

use super::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use super::document::{self, Node, Table, Value};
use super::mistakes;
use super::source::ExperimentSource;
use super::suggest;
use rankdeck_types::experiment::Experiment;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files below each other, at most.
const DEPTH: usize = 8;

/// `--set use=[...]`: which sections to lay under the file.
pub(super) fn is_use(set: &str) -> bool {
    set.split_once('=').is_some_and(|(key, _)| key.trim() == "use")
}

/// The document with everything that it is based on.
pub(super) fn read(
    from: &ExperimentSource,
    source: &Arc<Source>,
    sets: &[String],
) -> Result<Node, Diagnostics> {
    let path = match from {
        ExperimentSource::File(path) => path.clone(),
        ExperimentSource::Command { .. } => PathBuf::new(),
    };
    let mut wanted = None;
    for set in sets.iter().filter(|set| is_use(set)) {
        let typed = document::parse(&Arc::new(Source::new("--set", set.as_str())))?;
        wanted = typed.entry("use").map(|found| found.node.clone());
    }
    layers(&path, source, wanted, DEPTH).map(|(values, _)| values)
}

/// The values of a file over its base, and all sections that it can use. `wanted` replaces its `use`.
fn layers(
    path: &Path,
    source: &Arc<Source>,
    wanted: Option<Node>,
    depth: usize,
) -> Result<(Node, Table), Diagnostics> {
    let mut root = mistakes::parse(source, Experiment::KEYS)?;
    let Value::Table(table) = &mut root.value else { return Ok((root, Table::new())) };
    let (base, listed, own) = (table.remove("base"), table.remove("use"), table.remove("section"));
    let (mut values, mut sections) = match base {
        Some(entry) => below(path, &entry.node, depth)?,
        None => (Node { place: root.place.clone(), value: Value::Table(Table::new()) }, Table::new()),
    };
    match own.map(|entry| entry.node) {
        Some(Node { value: Value::Table(table), .. }) => sections.extend(table),
        Some(Node { place, .. }) => {
            return Err(Diagnostic::at(&place, "`section` is not a table")
                .hint("write `[section.NAME.learn]` and the like, and `use = [\"NAME\"]` at the top")
                .into());
        }
        None => {}
    }
    if let Some(names) = wanted.or(listed.map(|entry| entry.node)) {
        for section in chosen(names, &sections)? {
            values.overlay(section);
        }
    }
    let place = root.place.clone();
    values.overlay(root);
    values.place = place;
    Ok((values, sections))
}

/// The values and sections of a base.
fn below(path: &Path, base: &Node, depth: usize) -> Result<(Node, Table), Diagnostics> {
    let Value::String(name) = &base.value else {
        return Err(Diagnostic::at(&base.place, "`base` is not a string")
            .hint("write the path of one experiment file: `base = \"other.toml\"`")
            .into());
    };
    if depth == 0 {
        return Err(Diagnostic::at(&base.place, format!("more than {DEPTH} files are based on each other"))
            .hint("is one of them its own base?")
            .into());
    }
    let other = path.parent().unwrap_or(Path::new("")).join(name);
    let text = document::read(&other, &format!("base {}", other.display()), "").map_err(|all| {
        let why = all.0.first().map_or_else(String::new, |one| one.message.clone());
        Diagnostics::from(
            Diagnostic::at(&base.place, why).hint("the path is relative to the folder of this file"),
        )
    })?;
    let (mut values, sections) = layers(&other, &text, None, depth - 1)?;
    move_code(&mut values, Path::new(name).parent().unwrap_or(Path::new("")));
    Ok((values, sections))
}

/// `launch.code` of a base is relative to the base.
fn move_code(base: &mut Node, folder: &Path) {
    let Value::Table(table) = &mut base.value else { return };
    let Some(Value::Table(launch)) = table.get_mut("launch").map(|entry| &mut entry.node.value) else {
        return;
    };
    if let Some(Value::String(code)) = launch.get_mut("code").map(|entry| &mut entry.node.value)
        && !code.starts_with('~')
        && !folder.as_os_str().is_empty()
    {
        *code = folder.join(&*code).display().to_string();
    }
}

/// The sections of these names, in their order.
fn chosen(names: Node, sections: &Table) -> Result<Vec<Node>, Diagnostics> {
    let refuse = |place: &Place, message: String, hint: String| {
        Err(Diagnostics::from(Diagnostic::at(place, message).hint(hint)))
    };
    let example = || "write `use = [\"NAME\"]`".to_owned();
    let names: Vec<Node> = match names.value {
        Value::Array(names) => names,
        Value::String(_) => vec![names],
        _ => return refuse(&names.place, "`use` is no list of sections".into(), example()),
    };
    let mut found = Vec::new();
    for name in names {
        let Value::String(text) = &name.value else {
            return refuse(&name.place, "`use` is no list of names".into(), example());
        };
        let Some(section) = sections.get(text) else {
            let known: Vec<&str> = sections.keys().map(String::as_str).collect();
            let hint = match (suggest::closest(text, known.iter().copied()), known.as_slice()) {
                (Some(close), _) => format!("did you mean `{close}`?"),
                (None, []) => format!("write its values below `[section.{text}.learn]` and the like"),
                (None, known) => format!("there are `{}`", known.join("`, `")),
            };
            return refuse(&name.place, format!("there is no section `{text}`"), hint);
        };
        found.push(section.node.clone());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::load::load_experiment;
    use super::*;

    fn load(files: &[(&str, &str)], sets: &[&str]) -> Result<rankdeck_types::experiment::Experiment, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        let source = ExperimentSource::File(folder.path().join(files[0].0));
        load_experiment(&source, &sets)
            .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), ""))
    }

    const BASE: &str = "[run]\nname = 'b'\nseed = 1\n[launch]\ncommand = ['true']\ncode = 'src'\n[launch.env]\nA = 'base'\nB = 'base'\n\
                        [section.fast.run]\nseed = 5\ntotal_steps = 10\n";

    #[test]
    fn later_ones_win() {
        let own = "base = 'sub/b.toml'\nuse = ['fast']\n[run]\nname = 'own'\n[launch.env]\nB = 'own'\n";
        let found = load(&[("e.toml", own), ("sub/b.toml", BASE)], &["run.total_steps=11"]).unwrap();
        assert_eq!((found.run.name.as_str(), found.run.total_steps), ("own", 11));
        assert_eq!(found.run.seed, 5, "a section that is asked for wins over the base");
        assert_eq!((found.launch.env["A"].as_str(), found.launch.env["B"].as_str()), ("base", "own"));
        assert_eq!(found.launch.code.as_deref(), Some("sub/src"));
        let used =
            load(&[("e.toml", "base = 'sub/b.toml'"), ("sub/b.toml", BASE)], &["use=['fast']"]).unwrap();
        assert_eq!(used.run.total_steps, 10);
    }

    #[test]
    fn mistakes_are_shown_in_the_file_that_holds_them() {
        let own = "base = 'b.toml'\n[run]\nname = 'own'\n";
        let wrong = BASE.replace("seed = 1", "sede = 1");
        let error = load(&[("e.toml", own), ("b.toml", &wrong)], &[]).unwrap_err();
        assert!(error.contains("unknown key `sede`") && error.contains("/b.toml:3:1"), "{error}");
        for (text, says) in [
            ("base = 'none.toml'", "no such file"),
            ("base = 3", "`base` is not a string"),
            ("base = 'e.toml'", "based on each other"),
            ("use = ['fats']\n[section.fast.run]\nseed = 1", "did you mean `fast`"),
            ("use = ['x']", "no section `x`"),
            ("use = 3", "no list of sections"),
            ("section = 1", "`section` is not a table"),
        ] {
            let text = format!("{text}\n");
            let error = load(&[("e.toml", &text)], &[]).unwrap_err();
            assert!(error.contains(says) && error.contains("/e.toml:1"), "{text}: {error}");
        }
    }
}
