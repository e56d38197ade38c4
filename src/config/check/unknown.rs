//! Keys that a table does not have: a typing mistake, a key of another table or of the other file, or the
//! word of another tool.

use super::Scope;
use crate::aliases::elsewhere;
use crate::diagnostic::Diagnostic;
use crate::document::{Entry, Value};
use crate::suggest::{closest, nearly};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Hosts;
use rankdeck_types::schema::{self, Key, Keys, Kind};

/// The error, with what was meant.
pub(super) fn unknown(
    name: &str,
    entry: &Entry,
    keys: impl Iterator<Item = &'static Key> + Clone,
    scope: &Scope,
) -> Diagnostic {
    let message = match scope.title.as_str() {
        "" => format!("unknown key `{name}`"),
        title => format!("unknown key `{name}` in `{title}`"),
    };
    let names = || keys.clone().map(|key| key.name);
    let near = closest(name, names());
    // A word that the other file knows is no typing mistake: `venv` is not `env`.
    let is_known = || home_of(name, other_file(scope.top).0, "").is_some();
    let typing = near.filter(|near| nearly(name, near) && !is_known());
    let hint = match typing {
        Some(near) => match keys.clone().find(|key| key.name == near).map(|key| &key.kind) {
            Some(Kind::Tables(_)) => format!("write `[[{near}]]`, once per {near}"),
            Some(Kind::Table(_) | Kind::Tagged { .. }) if entry.node.table().is_some() => {
                format!("write `[{near}]`")
            }
            _ => format!("did you mean `{near}`?"),
        },
        None => meant(name, entry, scope).unwrap_or_else(|| match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let list: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                format!("known keys here: {}", list.join(", "))
            }
        }),
    };
    Diagnostic::at(&entry.key, message).label("unknown key").hint(hint)
}

/// What a word means that is no typing mistake.
fn meant(name: &str, entry: &Entry, scope: &Scope) -> Option<String> {
    if let Some(home) = home_of(name, scope.top, &scope.title) {
        return Some(format!("`{name}` belongs in `{home}`"));
    }
    if ["base", "use", "section"].contains(&name) && !scope.title.is_empty() {
        return Some(format!("`{name}` stands at the top of the file, before the first `[table]`"));
    }
    let is_table = scope.title.is_empty()
        && match &entry.node.value {
            Value::Table(_) => true,
            Value::Array(items) => items.iter().any(|item| item.table().is_some()),
            _ => false,
        };
    let (other, file) = other_file(scope.top);
    if is_table && let Some(key) = other.iter().find(|key| key.name == name) {
        return Some(format!("`{}` belongs in {file}", title(key)));
    }
    // A table of another tool's: its keys say more than its name.
    if let Value::Table(table) = &entry.node.value
        && scope.title.is_empty()
        && let Some(hint) = table.keys().find_map(|key| match home_of(key, scope.top, "") {
            Some(home) => Some(format!("`{key}` belongs in `{home}`")),
            None => elsewhere(key).map(|hint| format!("`{key}`: {hint}")),
        })
    {
        return Some(hint);
    }
    if let Some(hint) = elsewhere(name) {
        return Some(hint.to_owned());
    }
    if let Some(Key { kind: Kind::Table(keys), .. }) = scope.top.iter().find(|key| key.name == name) {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
        return Some(format!("`[{name}]` is a table of its own, with {}", keys.join(", ")));
    }
    home_of(name, other, "").map(|home| format!("`{name}` belongs in `{home}` of {file}"))
}

/// The schema of the file that is not being read, and what that file is called.
fn other_file(top: Keys) -> (Keys, &'static str) {
    match top.iter().any(|key| key.name == "host") {
        true => (Experiment::KEYS, "the experiment"),
        false => (Hosts::KEYS, "hosts.toml"),
    }
}

fn title(key: &Key) -> String {
    match key.kind {
        Kind::Tables(_) => format!("[[{}]]", key.name),
        _ => format!("[{}]", key.name),
    }
}

/// The table that has a key of this name, when it is not the one called `own`.
fn home_of(name: &str, top: Keys, own: &str) -> Option<String> {
    let found = |key: &Key| schema::find(top, &[key.name, name]);
    top.iter()
        .filter(|key| title(key) != own && found(key).is_some())
        // The table that cannot do without it; `[[host]]` rather than `[defaults]`.
        .max_by_key(|key| found(key).is_some_and(Key::is_required))
        .map(title)
}
