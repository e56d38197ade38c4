//! `--set KEY=VALUE`: a dotted path and a TOML value, or a plain string if the value is not TOML.

use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::document::{self, Node, Table, TomlEntry, TomlValue};
use super::suggest;
use rankdeck_types::override_key;
use rankdeck_types::schema::{self, Keys, ValueKind};
use std::sync::Arc;

/// Most parts of a dotted path; keys have at most three.
const MAX_PARTS: usize = 8;

/// Applies all overrides to the document, in the given order; the last one wins.
pub fn apply(root: &mut Node, sets: &[String], keys: Keys, found: &mut Diagnostics) {
    // Sections were applied when the file was read.
    for set in sets.iter().filter(|set| !super::bases::is_use(set)) {
        if let Some(path) = set.trim().strip_prefix('~') {
            if let Err(refusal) = unset(root, set, path.trim()) {
                found.0.extend(refusal.0);
            }
            continue;
        }
        match parse(set, keys) {
            Ok(node) => root.overlay(node),
            Err(all) => found.0.extend(all.0),
        }
    }
}

/// Removes the key of `~table.key` from the document.
fn unset(root: &mut Node, set: &str, path: &str) -> Result<(), Diagnostics> {
    let source = Arc::new(SourceText::new("--set", set));
    let whole = SourceSpan { source, range: 0..set.len() };
    if path.contains('=') {
        return Err(Diagnostic::at(&whole, "`~` unsets a key and takes no value")
            .hint(format!("write `--set ~{}`", path.split('=').next().unwrap_or_default().trim()))
            .into());
    }
    if path.is_empty() {
        return Err(Diagnostic::at(&whole, "`~` needs a key")
            .hint("for example `--set ~eval.stop_value`")
            .into());
    }
    let mut parents = override_key::parts(path).unwrap_or_else(|| vec![path.to_owned()]);
    let last = &*parents.pop().unwrap_or_default();
    let mut at = Some(&mut *root);
    for part in &parents {
        at = at.and_then(|node| match &mut node.value {
            TomlValue::Table(table) => table.get_mut(part).map(|entry| &mut entry.node),
            _ => None,
        });
    }
    let names: Vec<String> = match at {
        Some(Node { value: TomlValue::Table(table), .. }) => {
            if table.remove(last).is_some() {
                return Ok(());
            }
            table.keys().cloned().collect()
        }
        _ => root.table().into_iter().flat_map(|table| table.keys().cloned()).collect(),
    };
    let hint = match suggest::closest(last, names.iter().map(String::as_str)) {
        Some(close) => format!("a similar key exists: `{close}`"),
        None if names.is_empty() => "the table is empty".to_owned(),
        None => format!("keys that are set: `{}`", names.join("`, `")),
    };
    Err(Diagnostic::at(&whole, format!("cannot unset `{path}`: it is not set")).hint(hint).into())
}

/// Parses one override as a separate document, so that errors quote the command line.
fn parse(set: &str, keys: Keys) -> Result<Node, Diagnostics> {
    let source = Arc::new(SourceText::new("--set", set));
    let whole = SourceSpan { source: source.clone(), range: 0..set.len() };
    let Some((path, value)) = set.split_once('=') else {
        return Err(Diagnostic::at(&whole, "`--set` needs `KEY=VALUE`")
            .hint("for example `--set learn.gamma=0.98`")
            .into());
    };
    let is_bare =
        |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let Some(override_key::ParsedOverride { parts, path, value }) =
        override_key::parse(set).filter(|parsed| parsed.parts.len() <= MAX_PARTS)
    else {
        let place = SourceSpan { source, range: 0..path.len() };
        let shown: String = path.trim().chars().take(40).collect();
        // Hydra's `+` and `/`.
        let plain = path.trim().trim_start_matches(['+', '-']).replace('/', ".");
        let hint = match plain != path.trim() && plain.split('.').all(|part| is_bare(&part)) {
            true => format!("write `--set {plain}={}`", value.trim()),
            false => "give table and key, such as `--set learn.gamma=0.98`".to_owned(),
        };
        return Err(Diagnostic::at(&place, format!("invalid key `{shown}`")).hint(hint).into());
    };
    let place = |part: &str| {
        let start = part.as_ptr() as usize - set.as_ptr() as usize;
        SourceSpan { source: source.clone(), range: start..start + part.len() }
    };
    // The words as typed; a quoted key is one whole.
    let typed: Vec<&str> = path.split('.').map(str::trim).collect();
    let words = if typed == parts { typed } else { vec![path.trim(); parts.len()] };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let text = value.trim();
    let value = match document::parse(&source) {
        // A line break could add further keys.
        Ok(node) if !set.contains('\n') => at(&node, &parts).map(|found| found.value.clone()),
        _ => None,
    };
    let value = match value {
        Some(value @ TomlValue::String(_)) => value,
        // `--set run.name=42` sets a string.
        Some(
            TomlValue::Integer(_) | TomlValue::Float(_) | TomlValue::Boolean(_) | TomlValue::Datetime(_),
        )
        | None
            if is_text(&parts, keys) =>
        {
            TomlValue::String(text.to_owned())
        }
        Some(value) => value,
        None => TomlValue::String(text.to_owned()),
    };
    if matches!(&value, TomlValue::Table(table) if table.is_empty()) {
        let path = path.trim();
        return Err(Diagnostic::at(&whole, format!("`{path}` is a table; an empty table sets nothing"))
            .hint(format!("set a key with `--set {path}.KEY=VALUE`, or unset one with `--set ~{path}.KEY`"))
            .into());
    }
    let leaf = Node { place: place(text), value };
    Ok(parts.iter().zip(words).rev().fold(leaf, |node, (part, word)| Node {
        place: place(word),
        value: TomlValue::Table(Table::from([((*part).to_owned(), TomlEntry { key: place(word), node })])),
    }))
}

/// Returns the value below tables of these names.
fn at<'a>(root: &'a Node, parts: &[&str]) -> Option<&'a Node> {
    parts.iter().try_fold(root, |node, part| Some(&node.table()?.get(*part)?.node))
}

/// Returns whether the schema expects a string at this path.
fn is_text(parts: &[&str], keys: Keys) -> bool {
    let kind = |parts: &[&str]| schema::find(keys, parts).map(|key| &key.kind);
    let is_free = |table: &[&str]| matches!(kind(table), Some(ValueKind::Environment | ValueKind::Names(_)));
    matches!(kind(parts), Some(ValueKind::Text(_)))
        || parts.split_last().is_some_and(|(_, table)| is_free(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;

    fn value(set: &str, path: &str) -> TomlValue {
        parse(set, Experiment::KEYS).unwrap().entry(path).unwrap().node.value.clone()
    }

    #[test]
    fn value_is_toml_or_else_text() {
        assert_eq!(value("learn.gamma=0.98", "learn.gamma"), TomlValue::Float(0.98));
        assert_eq!(value("run.total_steps = 1_000", "run.total_steps"), TomlValue::Integer(1000));
        assert_eq!(value("env.id=CartPole-v1", "env.id"), TomlValue::String("CartPole-v1".into()));
        assert_eq!(value("env.id=\"CartPole-v1\"", "env.id"), TomlValue::String("CartPole-v1".into()));
        assert_eq!(value("run.name=42", "run.name"), TomlValue::String("42".into()));
        assert_eq!(value("run.name=1=2", "run.name"), TomlValue::String("1=2".into()));
        assert_eq!(value("launch.env.N=1", "launch.env.N"), TomlValue::String("1".into()));
        assert_eq!(value("run.name=", "run.name"), TomlValue::String(String::new()));
        assert!(matches!(value("policy.hidden=[1, 2]", "policy.hidden"), TomlValue::Array(_)));
        assert_eq!(
            value("run.seed=1\nrun.name='x'", "run.seed"),
            TomlValue::String("1\nrun.name='x'".into())
        );
    }

    #[test]
    fn key_or_table_can_be_unset() {
        let text = "[eval]\nevery = 1\nstop_value = 2.0\n[learn]\nalgorithm = 'ppo'\n";
        let apply = |sets: &[&str]| {
            let mut root = document::parse(&Arc::new(SourceText::new("e", text))).unwrap();
            let mut found = Diagnostics::new();
            let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
            super::apply(&mut root, &sets, Experiment::KEYS, &mut found);
            (root, found)
        };
        let (root, found) = apply(&["~eval.stop_value", "~learn", "learn.algorithm=sac"]);
        assert!(
            found.0.is_empty()
                && root.entry("eval.stop_value").is_none()
                && root.entry("eval.every").is_some()
        );
        assert_eq!(root.entry("learn").unwrap().node.table().unwrap().len(), 1);
        let wrong = ["~eval.stop_vale", "~nope", "~eval.every=3", "~", "~eval.every.x"];
        let errors = wrong.map(|set| apply(&[set]).1.to_string());
        insta::assert_snapshot!("unset_errors", errors.join("\n\n"));
    }

    #[test]
    fn key_is_read_as_toml_reads_it() {
        for set in ["run . seed=5", "run.\"seed\"=5", "'run' . seed = 5", "run={seed=5}"] {
            assert_eq!(value(set, "run.seed"), TomlValue::Integer(5), "{set}");
        }
        assert_eq!(value("run.'name' = 42", "run.name"), TomlValue::String("42".into()));
        let dotted = parse("launch.env.\"A.B\"=1", Experiment::KEYS).unwrap();
        assert_eq!(at(&dotted, &["launch", "env", "A.B"]).unwrap().value, TomlValue::String("1".into()));
        let text = "[run]\nseed = 3\nname = 'a'\n";
        let mut root = document::parse(&Arc::new(SourceText::new("e", text))).unwrap();
        let mut found = Diagnostics::new();
        apply(&mut root, &["~run . \"seed\"".to_owned()], Experiment::KEYS, &mut found);
        assert!(found.0.is_empty() && root.entry("run.seed").is_none() && root.entry("run.name").is_some());
    }

    #[test]
    fn malformed_override_is_quoted() {
        let wrong = ["gamma", "=1", "a..b=1", "a b=1"];
        let errors = wrong.map(|set| parse(set, Experiment::KEYS).unwrap_err().to_string());
        assert!(errors.iter().all(|error| error.contains("--> --set:1:1")), "{errors:?}");
        insta::assert_snapshot!("malformed_override_errors", errors.join("\n\n"));
    }
}
