//! `--set KEY=VALUE`: a dotted path and a TOML value, or a plain string where the value is no TOML.

use super::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use super::document::{self, Entry, Node, Table, Value};
use super::suggest;
use rankdeck_types::schema::{self, Keys, Kind};
use std::sync::Arc;

/// Parts of a dotted path, at most; no key of ours has more than three.
const MAX_PARTS: usize = 8;

/// Lays every override over the document, in the order given; the last one wins.
pub fn apply(root: &mut Node, sets: &[String], keys: Keys, found: &mut Diagnostics) {
    // Sections have been laid under the file already.
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

/// `~table.key`: as if the file did not say it.
fn unset(root: &mut Node, set: &str, path: &str) -> Result<(), Diagnostics> {
    let source = Arc::new(Source::new("--set", set));
    let whole = Place { source, range: 0..set.len() };
    if path.contains('=') {
        return Err(Diagnostic::at(&whole, "`~` removes a key, and takes no value")
            .hint(format!("write `--set ~{}`", path.split('=').next().unwrap_or_default().trim()))
            .into());
    }
    if path.is_empty() {
        return Err(Diagnostic::at(&whole, "`~` names no key")
            .hint("such as `--set ~eval.stop_value`")
            .into());
    }
    let (parents, last) = path.rsplit_once('.').map_or((None, path), |(parents, last)| (Some(parents), last));
    let mut at = Some(&mut *root);
    for part in parents.into_iter().flat_map(|parents| parents.split('.')) {
        at = at.and_then(|node| match &mut node.value {
            Value::Table(table) => table.get_mut(part).map(|entry| &mut entry.node),
            _ => None,
        });
    }
    let names: Vec<String> = match at {
        Some(Node { value: Value::Table(table), .. }) => {
            if table.remove(last).is_some() {
                return Ok(());
            }
            table.keys().cloned().collect()
        }
        _ => root.table().into_iter().flat_map(|table| table.keys().cloned()).collect(),
    };
    let hint = match suggest::closest(last, names.iter().map(String::as_str)) {
        Some(close) => format!("did you mean `{close}`?"),
        None if names.is_empty() => "the table is empty".to_owned(),
        None => format!("set there: `{}`", names.join("`, `")),
    };
    Err(Diagnostic::at(&whole, format!("`{path}` is not set, so there is nothing to remove"))
        .hint(hint)
        .into())
}

/// One override as a document of its own, so that errors quote what was typed.
fn parse(set: &str, keys: Keys) -> Result<Node, Diagnostics> {
    let source = Arc::new(Source::new("--set", set));
    let whole = Place { source: source.clone(), range: 0..set.len() };
    let Some((path, value)) = set.split_once('=') else {
        return Err(Diagnostic::at(&whole, "`--set` needs `KEY=VALUE`")
            .hint("such as `--set learn.gamma=0.98`")
            .into());
    };
    let parts: Vec<&str> = path.trim().split('.').map(str::trim).collect();
    let is_bare =
        |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if parts.len() > MAX_PARTS || !parts.iter().all(is_bare) {
        let place = Place { source, range: 0..path.len() };
        let shown: String = path.trim().chars().take(40).collect();
        // Hydra's `+` and `/`.
        let plain = path.trim().trim_start_matches(['+', '-']).replace('/', ".");
        let hint = match plain != path.trim() && plain.split('.').all(|part| is_bare(&part)) {
            true => format!("write `--set {plain}={}`", value.trim()),
            false => "write table and key, such as `--set learn.gamma=0.98`".to_owned(),
        };
        return Err(Diagnostic::at(&place, format!("`{shown}` is no key")).hint(hint).into());
    }
    let place = |part: &str| {
        let start = part.as_ptr() as usize - set.as_ptr() as usize;
        Place { source: source.clone(), range: start..start + part.len() }
    };
    let text = value.trim();
    let value = match document::parse(&source) {
        // A line break would smuggle in further keys.
        Ok(node) if !set.contains('\n') => node.entry(&parts.join(".")).map(|found| found.node.value.clone()),
        _ => None,
    };
    let value = match value {
        Some(value @ Value::String(_)) => value,
        // `--set run.name=42` means the text.
        Some(Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_)) | None
            if wants_text(&parts, keys) =>
        {
            Value::String(text.to_owned())
        }
        Some(value) => value,
        None => Value::String(text.to_owned()),
    };
    if matches!(&value, Value::Table(table) if table.is_empty()) {
        let path = path.trim();
        return Err(Diagnostic::at(&whole, format!("`{path}` is a table, and an empty one sets nothing"))
            .hint(format!("set its keys, `--set {path}.KEY=VALUE`, or remove one by `--set ~{path}.KEY`"))
            .into());
    }
    let leaf = Node { place: place(text), value };
    Ok(parts.iter().rev().fold(leaf, |node, part| Node {
        place: place(part),
        value: Value::Table(Table::from([((*part).to_owned(), Entry { key: place(part), node })])),
    }))
}

/// The schema wants a string at this path.
fn wants_text(parts: &[&str], keys: Keys) -> bool {
    let kind = |parts: &[&str]| schema::find(keys, parts).map(|key| &key.kind);
    matches!(kind(parts), Some(Kind::Text(_)))
        || parts.split_last().is_some_and(|(_, table)| matches!(kind(table), Some(Kind::Environment)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;

    fn value(set: &str, path: &str) -> Value {
        parse(set, Experiment::KEYS).unwrap().entry(path).unwrap().node.value.clone()
    }

    #[test]
    fn values_are_toml_or_else_text() {
        assert_eq!(value("learn.gamma=0.98", "learn.gamma"), Value::Float(0.98));
        assert_eq!(value("run.total_steps = 1_000", "run.total_steps"), Value::Integer(1000));
        assert_eq!(value("env.id=CartPole-v1", "env.id"), Value::String("CartPole-v1".into()));
        assert_eq!(value("env.id=\"CartPole-v1\"", "env.id"), Value::String("CartPole-v1".into()));
        assert_eq!(value("run.name=42", "run.name"), Value::String("42".into()));
        assert_eq!(value("run.name=1=2", "run.name"), Value::String("1=2".into()));
        assert_eq!(value("launch.env.N=1", "launch.env.N"), Value::String("1".into()));
        assert_eq!(value("run.name=", "run.name"), Value::String(String::new()));
        assert!(matches!(value("policy.hidden=[1, 2]", "policy.hidden"), Value::Array(_)));
        assert_eq!(value("run.seed=1\nrun.name='x'", "run.seed"), Value::String("1\nrun.name='x'".into()));
    }

    #[test]
    fn a_key_or_a_table_can_be_removed() {
        let text = "[eval]\nevery = 1\nstop_value = 2.0\n[learn]\nalgorithm = 'ppo'\n";
        let apply = |sets: &[&str]| {
            let mut root = document::parse(&Arc::new(Source::new("e", text))).unwrap();
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
        for (set, says) in [
            ("~eval.stop_vale", "did you mean `stop_value`"),
            ("~nope", "set there: `eval`, `learn`"),
            ("~eval.every=3", "takes no value"),
            ("~", "`~` names no key"),
            ("~eval.every.x", "nothing to remove"),
        ] {
            let (_, found) = apply(&[set]);
            assert!(found.to_string().contains(says), "{set}: {found}");
        }
    }

    #[test]
    fn what_is_no_override_is_quoted() {
        for (set, says) in [
            ("gamma", "needs `KEY=VALUE`"),
            ("=1", "is no key"),
            ("a..b=1", "is no key"),
            ("a b=1", "is no key"),
        ] {
            let shown = parse(set, Experiment::KEYS).unwrap_err().to_string();
            assert!(shown.contains(says) && shown.contains("--> --set:1:1"), "{shown}");
        }
    }
}
