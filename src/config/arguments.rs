//! `[args]` in a document: nested tables stand for dotted keys, and a value is its text as written, so that `3e-4`
//! reaches the program as `3e-4`.

use super::document::{Node, Table, TomlEntry, TomlValue};

/// Most parts of a dotted key.
const PARTS: usize = 8;

/// Returns `[args]`.
fn node_of(root: &mut Node) -> Option<&mut Node> {
    match &mut root.value {
        TomlValue::Table(root) => root.get_mut("args").map(|entry| &mut entry.node),
        _ => None,
    }
}

/// Nests keys that are written with dots and quotes, as a resolved experiment has them: an override of such a key
/// then replaces it.
pub(super) fn nest(root: &mut Node) {
    let Some(node) = node_of(root) else { return };
    let TomlValue::Table(table) = &mut node.value else { return };
    let is_path = |name: &&String| {
        name.contains('.') && name.split('.').count() <= PARTS && name.split('.').all(|part| !part.is_empty())
    };
    let dotted: Vec<String> = table.keys().filter(is_path).cloned().collect();
    let entries: Vec<(String, TomlEntry)> =
        dotted.into_iter().filter_map(|name| table.remove(&name).map(|entry| (name, entry))).collect();
    for (name, TomlEntry { key, node: value }) in entries {
        let nested = name.split('.').rev().fold(value, |node, part| Node {
            place: key.clone(),
            value: TomlValue::Table(Table::from([(part.to_owned(), TomlEntry { key: key.clone(), node })])),
        });
        node.overlay(nested);
    }
}

/// Joins nested keys with dots, and turns values into texts. What has no text stays, for the checks.
pub(super) fn flatten(root: &mut Node) {
    let Some(node) = node_of(root) else { return };
    if let TomlValue::Table(table) = &mut node.value {
        let mut flat = Table::new();
        join("", std::mem::take(table), &mut flat);
        *table = flat;
    }
}

fn join(before: &str, table: Table, flat: &mut Table) {
    for (name, TomlEntry { key, mut node }) in table {
        let name = if before.is_empty() { name } else { format!("{before}.{name}") };
        if let TomlValue::Table(inner) = &mut node.value
            && !inner.is_empty()
        {
            join(&name, std::mem::take(inner), flat);
            continue;
        }
        if let Some(text) = written(&node) {
            node.value = TomlValue::String(text);
        }
        flat.insert(name, TomlEntry { key, node });
    }
}

/// Returns a value as text; `None` for a table.
fn written(node: &Node) -> Option<String> {
    Some(match &node.value {
        TomlValue::String(text) | TomlValue::Datetime(text) => text.clone(),
        TomlValue::Boolean(flag) => flag.to_string(),
        TomlValue::Integer(_) | TomlValue::Float(_) => {
            // Without the separators that only TOML knows.
            node.place.source.text.get(node.place.range.clone()).unwrap_or_default().trim().replace('_', "")
        }
        TomlValue::Array(items) => {
            let items: Vec<String> = items.iter().map(written).collect::<Option<_>>()?;
            format!("[{}]", items.join(","))
        }
        TomlValue::Table(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::SourceText;
    use crate::source::ExperimentSource;
    use crate::{change_experiment, load_experiment};
    use std::sync::Arc;

    const HEAD: &str = "[run]\nname = \"a\"\n[launch]\ncommand = [\"t\"]\n";

    fn args(text: &str, sets: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(&path, HEAD.to_owned() + text).unwrap();
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let found = load_experiment(&ExperimentSource::File(path), &sets);
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        found.args.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn value_is_its_text_as_written() {
        let text = "[args]\nlr = 3e-4\nn = 1_000\ntrack = true\nname = \"x y\"\nsizes = [64, 64]\nkinds = [\"a\", 'b']\n";
        assert_eq!(
            args(text, &[]),
            ["kinds=[a,b]", "lr=3e-4", "n=1000", "name=x y", "sizes=[64,64]", "track=true"]
        );
        let sets = ["args.lr=1e-5", "args.env=CartPole-v1", "args.sizes=[1, 2]", "args.zip=007"];
        assert_eq!(args("", &sets), ["env=CartPole-v1", "lr=1e-5", "sizes=[1,2]", "zip=007"]);
    }

    #[test]
    fn nested_key_is_dotted() {
        let text = "[args]\nmodel.lr = 1\n[args.model.opt]\nname = \"sgd\"\n";
        assert_eq!(args(text, &["args.model.lr=2"]), ["model.lr=2", "model.opt.name=sgd"]);
        assert_eq!(args("[args]\n\"a.b\" = 1\n", &["args.a.b=2"]), ["a.b=2"]);
        assert_eq!(args(text, &["~args.model.opt"]), ["model.lr=1"]);
    }

    #[test]
    fn change_of_a_resolved_argument_replaces_it() {
        let text = HEAD.to_owned() + "[args]\n\"model.lr\" = \"1\"\nb = \"2\"\n";
        let own = toml::from_str(&text).unwrap();
        let changed = change_experiment(&own, &["args.model.lr=3".to_owned()]).unwrap();
        assert_eq!(changed.args, [("b", "2"), ("model.lr", "3")].map(|(k, v)| (k.into(), v.into())).into());
    }

    #[test]
    fn long_dotted_key_is_not_nested() {
        let name = "a.".repeat(100_000) + "a";
        let source = Arc::new(SourceText::new("e", format!("[args]\n\"{name}\" = 1\n")));
        let mut root = crate::document::parse(&source).unwrap();
        nest(&mut root);
        flatten(&mut root);
        assert_eq!(root.entry("args").unwrap().node.table().unwrap().keys().next(), Some(&name));
    }
}
