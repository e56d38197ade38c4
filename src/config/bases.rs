//! Experiments that share values: `base = "other.toml"`, and `[section.NAME]` with `use = ["NAME"]`.
//!
//! Later ones win: the base, the sections in the order of `use`, the file itself, `--set`. Every value keeps
//! its file, so that an error points there.

use super::check;
use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::document::{self, Node, Table, TomlValue};
use super::source::ExperimentSource;
use super::suggest;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::override_key;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest chain of bases.
const DEPTH: usize = 8;

/// Returns whether an override is `use=[...]`, which selects sections.
pub(super) fn is_use(set: &str) -> bool {
    set.contains('=') && override_key::key(set) == "use"
}

/// Reads the document with its bases and sections.
pub(super) fn read(
    from: &ExperimentSource,
    source: &Arc<SourceText>,
    sets: &[String],
) -> Result<Node, Diagnostics> {
    let path = match from {
        ExperimentSource::File(path) => path.clone(),
        ExperimentSource::Command { .. } => PathBuf::new(),
    };
    let mut requested = None;
    for set in sets.iter().filter(|set| is_use(set)) {
        let typed = document::parse(&Arc::new(SourceText::new("--set", set.as_str())))?;
        requested = typed.entry("use").map(|found| found.node.clone());
    }
    layers(&path, source, requested, DEPTH).map(|(values, _)| values)
}

/// Returns the values of a file over its base, and all sections that it can use. `requested` replaces its
/// `use`.
fn layers(
    path: &Path,
    source: &Arc<SourceText>,
    requested: Option<Node>,
    depth: usize,
) -> Result<(Node, Table), Diagnostics> {
    let mut root = check::parse(source, Experiment::KEYS)?;
    let TomlValue::Table(table) = &mut root.value else { return Ok((root, Table::new())) };
    let (base, listed, own) = (table.remove("base"), table.remove("use"), table.remove("section"));
    let (mut values, mut sections) = match base {
        Some(entry) => below(path, &entry.node, depth)?,
        None => (Node { place: root.place.clone(), value: TomlValue::Table(Table::new()) }, Table::new()),
    };
    match own.map(|entry| entry.node) {
        Some(Node { value: TomlValue::Table(table), .. }) => sections.extend(table),
        Some(Node { place, .. }) => {
            return Err(Diagnostic::at(&place, "`section` is not a table")
                .hint("define sections in tables such as `[section.NAME.learn]`, and list them at the top: `use = [\"NAME\"]`")
                .into());
        }
        None => {}
    }
    if let Some(names) = requested.or(listed.map(|entry| entry.node)) {
        for section in chosen(names, &sections)? {
            values.overlay(section);
        }
    }
    let place = root.place.clone();
    values.overlay(root);
    values.place = place;
    Ok((values, sections))
}

/// Reads the values and sections of a base.
fn below(path: &Path, base: &Node, depth: usize) -> Result<(Node, Table), Diagnostics> {
    let TomlValue::String(name) = &base.value else {
        return Err(Diagnostic::at(&base.place, "`base` is not a string")
            .hint("write the path of one experiment file: `base = \"other.toml\"`")
            .into());
    };
    if depth == 0 {
        return Err(Diagnostic::at(&base.place, format!("`base` chain is longer than {DEPTH} files"))
            .hint("check for a file that is its own base, directly or through others")
            .into());
    }
    let other = path.parent().unwrap_or(Path::new("")).join(name);
    let text = document::read(&other, &format!("base {}", other.display()), "").map_err(|all| {
        let why = all.0.first().map_or_else(String::new, |one| one.message.clone());
        Diagnostics::from(Diagnostic::at(&base.place, why).hint("the path is relative to this file"))
    })?;
    let (mut values, sections) = layers(&other, &text, None, depth - 1)?;
    move_code(&mut values, Path::new(name).parent().unwrap_or(Path::new("")));
    Ok((values, sections))
}

/// Makes `launch.code` of a base relative to the file.
fn move_code(base: &mut Node, folder: &Path) {
    let TomlValue::Table(table) = &mut base.value else { return };
    let Some(TomlValue::Table(launch)) = table.get_mut("launch").map(|entry| &mut entry.node.value) else {
        return;
    };
    if let Some(TomlValue::String(code)) = launch.get_mut("code").map(|entry| &mut entry.node.value)
        && !code.starts_with('~')
        && !folder.as_os_str().is_empty()
    {
        *code = folder.join(&*code).display().to_string();
    }
}

/// Returns the named sections, in their order.
fn chosen(names: Node, sections: &Table) -> Result<Vec<Node>, Diagnostics> {
    let refuse = |place: &SourceSpan, message: String, hint: String| {
        Err(Diagnostics::from(Diagnostic::at(place, message).hint(hint)))
    };
    let example = || "write `use = [\"NAME\"]`".to_owned();
    let names: Vec<Node> = match names.value {
        TomlValue::Array(names) => names,
        TomlValue::String(_) => vec![names],
        _ => return refuse(&names.place, "`use` is not a list of section names".into(), example()),
    };
    let mut found = Vec::new();
    for name in names {
        let TomlValue::String(text) = &name.value else {
            return refuse(&name.place, "`use` is not a list of section names".into(), example());
        };
        let Some(section) = sections.get(text) else {
            let known: Vec<&str> = sections.keys().map(String::as_str).collect();
            let hint = match (suggest::closest(text, known.iter().copied()), known.as_slice()) {
                (Some(close), _) => format!("a similar section exists: `{close}`"),
                (None, []) => format!("define it in tables such as `[section.{text}.learn]`"),
                (None, known) => format!("known sections: `{}`", known.join("`, `")),
            };
            return refuse(&name.place, format!("unknown section `{text}`"), hint);
        };
        found.push(section.node.clone());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::load::load_experiment;
    use super::*;
    use rankdeck_types::code::Code;

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
    fn later_layer_wins() {
        let own = "base = 'sub/b.toml'\nuse = ['fast']\n[run]\nname = 'own'\n[launch.env]\nB = 'own'\n";
        let found = load(&[("e.toml", own), ("sub/b.toml", BASE)], &["run.total_steps=11"]).unwrap();
        assert_eq!((found.run.name.as_str(), found.run.total_steps), ("own", 11));
        assert_eq!(found.run.seed, 5, "a section wins over the base");
        assert_eq!((found.launch.env["A"].as_str(), found.launch.env["B"].as_str()), ("base", "own"));
        assert_eq!(found.launch.code, Some(Code::Path("sub/src".into())));
        let used =
            load(&[("e.toml", "base = 'sub/b.toml'"), ("sub/b.toml", BASE)], &["use=['fast']"]).unwrap();
        assert_eq!(used.run.total_steps, 10);
    }

    #[test]
    fn error_points_to_the_file_that_contains_it() {
        let own = "base = 'b.toml'\n[run]\nname = 'own'\n";
        let wrong = BASE.replace("seed = 1", "sede = 1");
        let error = load(&[("e.toml", own), ("b.toml", &wrong)], &[]).unwrap_err();
        assert!(error.contains("`sede`") && error.contains("/b.toml:3:1"), "{error}");
        let texts = [
            "base = 'none.toml'",
            "base = 3",
            "base = 'e.toml'",
            "use = ['fats']\n[section.fast.run]\nseed = 1",
            "use = ['x']",
            "use = 3",
            "section = 1",
        ];
        let errors = texts.map(|text| load(&[("e.toml", &format!("{text}\n"))], &[]).unwrap_err());
        assert!(errors.iter().all(|error| error.contains("/e.toml:1")), "{errors:?}");
        insta::assert_snapshot!("base_and_section_errors", errors.join("\n\n"));
    }
}
