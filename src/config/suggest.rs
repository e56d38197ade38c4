//! Finds the closest known word to an unknown one, and the closest environment id.
//!
//! Values of a wrong type, and the TOML value to write instead. Suggests only values that pass the checks.

use super::check::{Scope, check_value};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use crate::document::{self, Node, TomlValue};
use crate::syntax::{self, ForeignKeyword};
use rankdeck_types::experiment::builtin_ids;
use rankdeck_types::schema::{ConfigKey, ValueKind};
use std::sync::Arc;

/// Returns the number of edits between two words: insertions, deletions, substitutions, swaps of neighbors.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}

/// Returns the known word that is closest to `word`, if any: by spelling, by a part (`lambda` of
/// `gae_lambda`), by prefix, or by initials (`lr` for `learning_rate`).
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    // Longer than any key, and the search is quadratic.
    if length > 64 {
        return None;
    }
    let known: Vec<&str> = known.into_iter().collect();
    let near = |candidate: &str| {
        let edits = distance(word, candidate);
        (edits <= (length / 3).max(1) && edits < candidate.chars().count().min(length.max(1)))
            .then_some(edits)
    };
    let by = |score: &dyn Fn(&str) -> Option<usize>| {
        known.iter().filter_map(|name| score(name).map(|edits| (edits, *name))).min().map(|(_, name)| name)
    };
    let part = |name: &str| name.split('_').filter(|part| part.len() > 3).filter_map(near).min();
    let start = |name: &str| (length >= 3 && (name.starts_with(word) || word.starts_with(name))).then_some(0);
    let initials = |name: &str| {
        let letters: String = name.split('_').filter_map(|part| part.chars().next()).collect();
        (length >= 2 && letters == word).then_some(0)
    };
    by(&near).or_else(|| by(&initials)).or_else(|| by(&start)).or_else(|| by(&part))
}

/// Returns whether `word` is a typo of `known`.
pub fn nearly(word: &str, known: &str) -> bool {
    distance(word, known) <= 2.min(word.chars().count() / 4)
}

/// Games of the Arcade Learning Environment, as in their ids.
const GAMES: [&str; 62] = [
    "Adventure",
    "AirRaid",
    "Alien",
    "Amidar",
    "Assault",
    "Asterix",
    "Asteroids",
    "Atlantis",
    "BankHeist",
    "BattleZone",
    "BeamRider",
    "Berzerk",
    "Bowling",
    "Boxing",
    "Breakout",
    "Carnival",
    "Centipede",
    "ChopperCommand",
    "CrazyClimber",
    "Defender",
    "DemonAttack",
    "DoubleDunk",
    "ElevatorAction",
    "Enduro",
    "FishingDerby",
    "Freeway",
    "Frostbite",
    "Gopher",
    "Gravitar",
    "Hero",
    "IceHockey",
    "Jamesbond",
    "JourneyEscape",
    "Kangaroo",
    "Krull",
    "KungFuMaster",
    "MontezumaRevenge",
    "MsPacman",
    "NameThisGame",
    "Phoenix",
    "Pitfall",
    "Pong",
    "Pooyan",
    "PrivateEye",
    "Qbert",
    "Riverraid",
    "RoadRunner",
    "Robotank",
    "Seaquest",
    "Skiing",
    "Solaris",
    "SpaceInvaders",
    "StarGunner",
    "Surround",
    "Tennis",
    "TimePilot",
    "Tutankham",
    "UpNDown",
    "Venture",
    "VideoPinball",
    "WizardOfWor",
    "Zaxxon",
];

/// Returns the environment id that is closest to `id`; `None` if Gymnasium may have the id.
pub(crate) fn env_id(id: &str) -> Option<String> {
    let (stem, version) = split(id);
    let same = |name: &str| letters(name) == letters(stem);
    // `Pong-v0` and `Pong-v4` are other ids.
    if let Some(game) = GAMES.into_iter().find(|game| same(game))
        && matches!(version, None | Some("5"))
    {
        return Some(format!("ALE/{game}-v5"));
    }
    let newest = |stem: &str| builtin_ids().filter(|known| split(known).0 == stem).max();
    if let Some(known) = builtin_ids().find(|known| same(split(known).0)) {
        return newest(split(known).0).map(str::to_owned);
    }
    let near = closest(id, builtin_ids())?;
    let is_same_version = version.is_some_and(|version| split(near).1 == Some(version));
    Some(if is_same_version { near } else { newest(split(near).0).unwrap_or(near) }.to_owned())
}

/// Splits an id into name and version.
fn split(id: &str) -> (&str, Option<&str>) {
    match id.rsplit_once("-v") {
        Some((stem, version)) if version.chars().all(|c| c.is_ascii_digit()) => (stem, Some(version)),
        _ => (id, None),
    }
}

/// Returns letters and digits in lower case.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

/// Returns the value to write in place of a node.
pub(super) fn instead_of(key: &ConfigKey, node: &Node) -> Option<String> {
    let written = || node.place.source.text.get(node.place.range.clone()).map(str::to_owned);
    let text = match &node.value {
        TomlValue::String(text) => text.clone(),
        TomlValue::Array(items) => {
            let texts: Option<Vec<&str>> = items
                .iter()
                .map(|item| match &item.value {
                    TomlValue::String(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let between = match &key.kind {
                ValueKind::Environment => " ",
                ValueKind::Text(rule) if rule.expected == "a shell line" => " && ",
                _ if items.len() == 1 => "",
                _ => return None,
            };
            texts?.join(between)
        }
        TomlValue::Table(_) => return None,
        _ => written()?,
    };
    value(key, &text)
}

/// Returns the TOML value for a text; `None` if no interpretation passes the checks.
pub fn value(key: &ConfigKey, text: &str) -> Option<String> {
    // Longer than any valid value.
    if text.len() > 4096 {
        return None;
    }
    candidates(key, text.trim()).into_iter().find(|candidate| fits(key, candidate))
}

/// Returns whether the value passes the checks of the key.
fn fits(key: &ConfigKey, value: &str) -> bool {
    let source = Arc::new(SourceText::new("", format!("{} = {value}", key.name)));
    let Ok(root) = document::parse(&source) else { return false };
    let Some(found) = root.entry(key.name).filter(|_| root.table().is_some_and(|table| table.len() == 1))
    else {
        return false;
    };
    let mut wrong = Diagnostics::new();
    let scope = Scope { top: &[], title: String::new(), header: None };
    check_value(key, found.node, found.key, &scope, &mut wrong);
    wrong.0.is_empty()
}

fn candidates(key: &ConfigKey, text: &str) -> Vec<String> {
    let plain = text.trim_start_matches('=').trim();
    let quoted = || vec![quote(plain)];
    match &key.kind {
        ValueKind::Integer(_) | ValueKind::Number { .. } => number(key, plain).into_iter().collect(),
        ValueKind::Flag | ValueKind::FlagOrText(_) => {
            let flag = match (plain, syntax::foreign_keyword(plain)) {
                ("true" | "1", _) | (_, Some(ForeignKeyword::Flag(true))) => Some("true".to_owned()),
                ("false" | "0", _) | (_, Some(ForeignKeyword::Flag(false))) => Some("false".to_owned()),
                _ => None,
            };
            let texts = if matches!(key.kind, ValueKind::Flag) { Vec::new() } else { quoted() };
            flag.into_iter().chain(texts).collect()
        }
        ValueKind::Text(_) => quoted(),
        ValueKind::Choice(words) => {
            let lower = plain.to_lowercase();
            let same = words.iter().find(|word| **word == lower).copied();
            same.or_else(|| closest(plain, words.iter().copied())).map(quote).into_iter().collect()
        }
        ValueKind::Integers(_) => {
            list(plain).map(|items| format!("[{}]", items.join(", "))).into_iter().collect()
        }
        ValueKind::Gpus => {
            let numbers = list(plain).map(|items| format!("[{}]", items.join(", ")));
            let count = plain.parse::<u32>().ok().map(|count| count.to_string());
            // Other words would recurse.
            let word = plain.to_lowercase();
            let word = ["all", "auto"].contains(&word.as_str()).then(|| quote(&word));
            count.into_iter().chain(numbers).chain(word).collect()
        }
        ValueKind::Texts(_) if key.name == "command" => {
            let words = syntax::words(plain);
            words.filter(|words| !words.is_empty()).map(|words| texts(&words)).into_iter().collect()
        }
        // A pattern may contain a comma.
        ValueKind::Texts(what) if *what == "patterns" && key.name == "stdout" => match plain.contains('\'') {
            true => vec![texts(&[plain.to_owned()])],
            false => vec![format!("['{plain}']")],
        },
        ValueKind::Texts(_) => {
            let items: Vec<String> = strip(plain).split(',').map(|item| bare(item).to_owned()).collect();
            if items.iter().any(String::is_empty) { Vec::new() } else { vec![texts(&items)] }
        }
        ValueKind::Environment => syntax::pairs(plain)
            .map(|pairs| {
                let pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
                format!("{{ {} }}", pairs.join(", "))
            })
            .into_iter()
            .collect(),
        ValueKind::Names(_)
        | ValueKind::Arguments
        | ValueKind::Values
        | ValueKind::Table(_)
        | ValueKind::Tables(_)
        | ValueKind::Tagged { .. } => Vec::new(),
    }
}

/// Returns a number in TOML's form.
fn number(key: &ConfigKey, text: &str) -> Option<String> {
    let of_unit = match key.name.rsplit_once('_').map(|(_, unit)| unit) {
        Some("s") => syntax::seconds(text),
        Some("mb") => syntax::mebibytes(text),
        _ => None,
    };
    let value = match of_unit {
        Some(value) => value,
        None => syntax::number(bare(text))?,
    };
    match &key.kind {
        ValueKind::Integer(_) if value.fract() != 0.0 => None,
        // Numbers that are valid TOML stay as written.
        ValueKind::Number { .. } if syntax::is_toml_number(text) => Some(text.to_owned()),
        _ if value.fract() == 0.0 && value.abs() < 1e15 => Some(format!("{value:.0}")),
        _ => Some(format!("{value:?}")),
    }
}

/// Returns the numbers of `64, 64`, `(64, 64)`, `[64 64]`, `64x64` or `64`.
fn list(text: &str) -> Option<Vec<String>> {
    let inner = strip(text);
    let cut = |c: char| c == ',' || c.is_whitespace() || c == 'x' || c == ';';
    let items: Vec<String> = inner.split(cut).filter(|item| !item.is_empty()).map(str::to_owned).collect();
    let all = !items.is_empty() && items.iter().all(|item| item.parse::<u64>().is_ok());
    all.then_some(items)
}

/// Strips enclosing brackets.
fn strip(text: &str) -> &str {
    [('(', ')'), ('[', ']'), ('{', '}')]
        .iter()
        .find_map(|(open, close)| text.strip_prefix(*open)?.strip_suffix(*close))
        .unwrap_or(text)
        .trim()
        .trim_end_matches(',')
}

/// Strips enclosing quotes.
fn bare(text: &str) -> &str {
    let text = text.trim();
    ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(text)
}

fn texts(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quote(item)).collect();
    format!("[{}]", items.join(", "))
}

/// Quotes a text as a one-line TOML string.
pub fn quote(text: &str) -> String {
    match text.contains('\\') && !text.contains('\'') && !text.contains(char::is_control) {
        true => format!("'{text}'"),
        false => {
            let escaped: String = text
                .chars()
                .map(|c| match c {
                    '"' => "\\\"".to_owned(),
                    '\\' => "\\\\".to_owned(),
                    c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
                    c => c.to_string(),
                })
                .collect();
            format!("\"{escaped}\"")
        }
    }
}

/// Returns the error for a value of a wrong type, with a hint that depends on the types only.
pub(super) fn wrong_type(path: &str, value: &TomlValue, expected: &str, at: &SourceSpan) -> Diagnostic {
    let kind = value.type_name();
    let diagnostic = Diagnostic::at(at, format!("`{path}` is {kind}, expected {expected}")).label(kind);
    let written = at.source.text.get(at.range.clone()).unwrap_or_default();
    let hint = match value {
        TomlValue::Array(_) if expected == "a table" => Some(format!("write `[{path}]`, once")),
        TomlValue::Integer(_) | TomlValue::Float(_) | TomlValue::Boolean(_) | TomlValue::Datetime(_)
            if ["a string", "strings only"].contains(&expected) =>
        {
            Some(format!("write `{}`", quote(written)))
        }
        TomlValue::String(text) if expected == "integers only" => syntax::number(text)
            .filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number))
            .map(|number| format!("write `{number:.0}`")),
        _ => None,
    };
    match (hint, value) {
        (Some(hint), _) => diagnostic.hint(hint),
        (None, TomlValue::Table(_)) if !expected.contains("table") => diagnostic,
        (None, _) => diagnostic.hint(format!("write {expected}")),
    }
}

/// Returns the error for the value of a key, with the value to write instead if there is one.
pub(super) fn wrong_value(key: &ConfigKey, node: &Node, expected: &str) -> Diagnostic {
    let wrong = wrong_type(key.name, &node.value, expected, &node.place);
    let text = match &node.value {
        TomlValue::String(text) => text.trim(),
        _ => "",
    };
    if syntax::foreign_keyword(text) == Some(ForeignKeyword::Nothing) {
        let path = key.name;
        return wrong.hint(format!("remove `{path}`, or pass `--set ~TABLE.{path}`"));
    }
    match instead_of(key, node) {
        Some(value) if matches!(key.kind, ValueKind::Environment) => {
            wrong.hint(format!("write `{} = {value}`", key.name))
        }
        Some(value) if value == text => wrong.hint(format!("write `{value}` without quotes")),
        Some(value) if text.starts_with('=') => wrong.hint(format!("write `{value}`, after a single `=`")),
        Some(value) => wrong.hint(format!("write `{value}`")),
        None => match general_hint(key, node) {
            Some(hint) => wrong.hint(hint),
            None => wrong,
        },
    }
}

/// Returns the hint for a value without an obvious replacement.
fn general_hint(key: &ConfigKey, node: &Node) -> Option<String> {
    match (&key.kind, &node.value) {
        (ValueKind::Environment, TomlValue::Array(_)) => Some(
            "give values as `env = { KEY = \"value\" }`; list variables of this console to pass on in `launch.pass_env`"
                .into(),
        ),
        (ValueKind::Environment, _) => Some(format!("write `{} = {{ KEY = \"value\" }}`", key.name)),
        (ValueKind::Texts(_), TomlValue::String(line)) if key.name == "command" => {
            Some(format!("write `[\"sh\", \"-c\", {}]` to run the line in a shell", quote(line)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;
    use rankdeck_types::host::Hosts;
    use rankdeck_types::schema;

    #[test]
    fn closest_matches_by_spelling_part_prefix_and_initials() {
        let known = ["gpus", "nproc", "address", "identity_file", "num_minibatches"];
        assert_eq!(closest("gpu", known), Some("gpus"));
        assert_eq!(closest("adress", known), Some("address"));
        assert_eq!(closest("identityfile", known), Some("identity_file"));
        assert_eq!(closest("nporc", known), Some("nproc"));
        assert_eq!(closest("colour", known), None);
        let learn = ["learning_rate", "gae_lambda", "gamma", "learn"];
        assert_eq!(closest("lamda", learn), Some("gae_lambda"));
        assert_eq!(closest("lr", learn), Some("learning_rate"));
        assert_eq!(closest("learning", learn), Some("learn"));
        assert_eq!(closest("", known), None);
    }

    #[test]
    fn swap_is_one_edit() {
        assert_eq!(distance("nporc", "nproc"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn incomplete_id_suggests_the_newest_version() {
        for (id, expected) in [
            ("CartPole", "CartPole-v1"),
            ("cartpole", "CartPole-v1"),
            ("cart_pole-v1", "CartPole-v1"),
            ("CartPole-v2", "CartPole-v1"),
            ("CartPoel-v0", "CartPole-v0"),
            ("Pendulum", "Pendulum-v1"),
            ("MountainCar", "MountainCar-v0"),
            ("MountainCarContinuous", "MountainCarContinuous-v0"),
            ("Pong", "ALE/Pong-v5"),
            ("pong-v5", "ALE/Pong-v5"),
            ("space_invaders", "ALE/SpaceInvaders-v5"),
        ] {
            assert_eq!(env_id(id).as_deref(), Some(expected), "{id}");
        }
        for other in ["Ant-v4", "Hopper-v5", "PongNoFrameskip-v4", "Pong-v4", "my_env", "LunarLander-v3", ""]
        {
            assert_eq!(env_id(other), None, "{other}");
        }
    }

    #[test]
    fn common_notations_are_converted_to_toml() {
        for (path, text, expected) in [
            ("launch.stop_grace_s", "10m", Some("600")),
            ("launch.stop_grace_s", "1h30m", Some("5400")),
            ("launch.stop_grace_s", "1.5 min", Some("90")),
            ("launch.stop_grace_s", "500ms", Some("0.5")),
            ("launch.stop_grace_s", "0:01:30", Some("90")),
            ("launch.stop_grace_s", "30", Some("30")),
            ("launch.stop_grace_s", "10 years", None),
            ("launch.stop_grace_s", "-1s", None),
            ("distributed.bucket_mb", "25MiB", Some("25")),
            ("distributed.bucket_mb", "1 GB", Some("1024")),
            ("learn.gamma", "0,99", Some("0.99")),
            ("learn.gamma", "99%", Some("0.99")),
            ("learn.gamma", ".99", Some("0.99")),
            ("learn.gamma", "3/4", Some("0.75")),
            ("learn.gamma", "99", None),
            ("learn.learning_rate", "3e-4", Some("3e-4")),
            ("learn.learning_rate", "3*10^-4", None),
            ("run.total_steps", "10^6", Some("1000000")),
            ("run.total_steps", "2**16", Some("65536")),
            ("run.total_steps", "64 * 1024", Some("65536")),
            ("run.total_steps", "1e6", Some("1000000")),
            ("run.total_steps", "1.5M", Some("1500000")),
            ("run.total_steps", "1 000 000", Some("1000000")),
            ("run.total_steps", "1'000'000", Some("1000000")),
            ("run.total_steps", "0.5", None),
            ("run.total_steps", "-3", None),
            ("launch.master_port", "70000", None),
            ("policy.hidden", "(64, 64)", Some("[64, 64]")),
            ("policy.hidden", "64x32", Some("[64, 32]")),
            ("policy.hidden", "64", Some("[64]")),
            ("policy.hidden", "(0, 64)", None),
            ("launch.env", "A=1 B=2", Some("{ A = \"1\", B = \"2\" }")),
            ("launch.env", "export A='x y'; B=", Some("{ A = \"x y\", B = \"\" }")),
            ("launch.env", "RANK=1", None),
            ("launch.command", "python 'my train.py' --x", Some("[\"python\", \"my train.py\", \"--x\"]")),
            ("launch.command", "cd x && make", None),
            ("launch.pass_env", "A, B", Some("[\"A\", \"B\"]")),
            ("metrics.stdout", "a=(?P<a>[0-9]{1,3})", Some("['a=(?P<a>[0-9]{1,3})']")),
            ("launch.on_disconnect", "Stop", Some("\"stop\"")),
            ("learn.anneal_lr", "no", Some("false")),
            ("host.gpus", "0, 1", Some("[0, 1]")),
            ("host.gpus", "2", Some("2")),
            ("host.address", "5", None),
            ("host.uv", "yes", Some("true")),
            ("host.uv", "proj", Some("\"proj\"")),
        ] {
            let parts: Vec<&str> = path.split('.').collect();
            let keys = if path.starts_with("host.") { Hosts::KEYS } else { Experiment::KEYS };
            let key = schema::find(keys, &parts).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(value(key, text).as_deref(), expected, "{path} = {text}");
        }
    }
}
