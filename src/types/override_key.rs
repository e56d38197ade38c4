//! Keys of overrides: `--set KEY=VALUE`, `--set ~KEY`, `--sweep KEY=VALUES`.
//!
//! A key has several spellings: `run.seed`, `run . "seed"`, and `run = { seed = 5 }` sets it as well. Whoever compares
//! keys compares what TOML reads, never the text.

use toml::{Table, Value};

/// Most signs that may belong to a quoted key before the one that ends it.
const SIGNS: usize = 16;

/// An override: the names of its key, and the text of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedOverride<'a> {
    /// Names of the tables and of the key.
    pub parts: Vec<String>,
    /// The text before the sign.
    pub path: &'a str,
    /// The text behind the sign.
    pub value: &'a str,
}

/// Splits `KEY=VALUE` behind the key; `None` without a sign, or if the text before it is not a key of TOML.
pub fn parse(set: &str) -> Option<ParsedOverride<'_>> {
    set.match_indices('=').take(SIGNS).find_map(|(at, _)| {
        let (path, value) = (&set[..at], &set[at + 1..]);
        Some(ParsedOverride { parts: parts(path)?, path, value })
    })
}

/// Returns the names of a dotted key as TOML reads it: `run . "seed"` is `run` and `seed`.
pub fn parts(path: &str) -> Option<Vec<String>> {
    // A key is a single line, and a comment is not part of it.
    if path.contains(['\n', '\r']) {
        return None;
    }
    let mut value = Value::Table(toml::from_str::<Table>(&format!("{path}=0")).ok()?);
    let mut parts = Vec::new();
    while let Value::Table(table) = value {
        let mut entries = table.into_iter();
        let (name, inner) = entries.next().filter(|_| entries.len() == 0)?;
        parts.push(name);
        value = inner;
    }
    Some(parts)
}

/// Returns names as a dotted key, with quotes where TOML needs them.
pub fn joined<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let quoted = |part: &str| match !part.is_empty() && part.chars().all(is_bare) {
        true => part.to_owned(),
        false => Value::String(part.to_owned()).to_string(),
    };
    parts.into_iter().map(quoted).collect::<Vec<_>>().join(".")
}

/// Returns the key of `KEY=VALUE` or `~KEY` as `run.seed`; a text that is not one of these is returned as typed.
pub fn key(set: &str) -> String {
    let found = match set.trim().strip_prefix('~') {
        Some(path) => parts(path),
        None => parse(set).map(|parsed| parsed.parts),
    };
    match found {
        Some(parts) => joined(parts.iter().map(String::as_str)),
        None => set.split('=').next().unwrap_or_default().trim().trim_start_matches('~').trim().to_owned(),
    }
}

/// Returns every key that `KEY=VALUE` sets: its own, and those of a table that is its value.
pub fn keys(set: &str) -> Vec<String> {
    let own = || vec![key(set)];
    let Some(parsed) = parse(set).filter(|_| !set.trim().starts_with('~')) else { return own() };
    // A line break could add further keys.
    let value = toml::from_str::<Table>(&format!("value={}", parsed.value));
    match value.ok().filter(|_| !parsed.value.contains('\n')).as_mut().and_then(|table| table.remove("value"))
    {
        Some(Value::Table(table)) => {
            let mut found = Vec::new();
            add_keys(&mut parsed.parts.clone(), &table, &mut found);
            if found.is_empty() { own() } else { found }
        }
        _ => own(),
    }
}

fn add_keys(above: &mut Vec<String>, table: &Table, found: &mut Vec<String>) {
    for (name, value) in table {
        above.push(name.clone());
        match value {
            Value::Table(table) => add_keys(above, table, found),
            _ => found.push(joined(above.iter().map(String::as_str))),
        }
        above.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_an_override_is_what_toml_reads() {
        for (set, name, value) in [
            ("run.seed=5", "run.seed", Some("5")),
            ("run . seed=5", "run.seed", Some("5")),
            (" run\t.\"seed\" = 5", "run.seed", Some(" 5")),
            ("'run'.'se\u{65}d'=5", "run.seed", Some("5")),
            ("\"run\".\"\\u0073eed\"=5", "run.seed", Some("5")),
            ("launch.env.\"A=B\"=c=d", "launch.env.\"A=B\"", Some("c=d")),
            ("\"run.seed\"=5", "\"run.seed\"", Some("5")),
            ("run.name=1=2", "run.name", Some("1=2")),
            ("~run . seed", "run.seed", None),
            ("~ run.seed", "run.seed", None),
            ("gamma", "gamma", None),
            ("a b=1", "a b", None),
            ("=1", "", None),
            ("a..b=1", "a..b", None),
            ("run.seed\n=1", "run.seed", None),
            ("#=1", "#", None),
        ] {
            assert_eq!((key(set).as_str(), parse(set).map(|parsed| parsed.value)), (name, value), "{set}");
        }
    }

    #[test]
    fn table_sets_every_key_in_it() {
        assert_eq!(keys("run={seed=5, name=\"a\"}"), ["run.name", "run.seed"]);
        assert_eq!(keys("run = { \"seed\" = 5 }"), ["run.seed"]);
        assert_eq!(keys("launch={env={A=\"1\"}}"), ["launch.env.A"]);
        for set in ["run.seed=5", "run.seed=[{a=1}]", "run.seed={", "run.seed=1\nrun.name='x'"] {
            assert_eq!(keys(set), ["run.seed"], "{set}");
        }
        assert_eq!(keys("run={}"), ["run"]);
    }
}
