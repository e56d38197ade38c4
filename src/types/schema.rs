//! Configuration keys: type, range, default and meaning.
//!
//! `keys!` defines each table once. The struct that serde reads, its defaults, the checks and
//! `docs/config.md` come from that one definition.
//! [`TextRule`] has the rules for strings: names, paths, addresses, interfaces. Each refusal has a reason and a hint.

use crate::code::Code;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A configuration key, for the checks, the JSON Schema and config.md.
#[derive(Debug)]
pub struct ConfigKey {
    /// As written in the file.
    pub name: &'static str,
    /// Type and range.
    pub kind: ValueKind,
    /// Value if the key is absent.
    pub default: Fallback,
    /// Meaning, as in config.md.
    pub doc: &'static str,
}

/// Keys of one table.
pub type Keys = &'static [ConfigKey];

/// Type and range of a key.
#[derive(Debug)]
pub enum ValueKind {
    /// A string that follows a rule.
    Text(&'static TextRule),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An integer of a range.
    Integer(RangeInclusive<i128>),
    /// A finite number of a range; `open` excludes the lower end.
    Number {
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
        /// `min` is excluded.
        open: bool,
    },
    /// `true` or `false`.
    Flag,
    /// `true`, `false`, or a string that follows a rule.
    FlagOrText(&'static TextRule),
    /// A non-empty array of strings, and the noun for them.
    Texts(&'static str),
    /// An array of integers of a range, not empty.
    Integers(RangeInclusive<i128>),
    /// A table of environment variables.
    Environment,
    /// A table of strings with free names, and the noun for the strings.
    Names(&'static str),
    /// A table of arguments: free, dotted names with texts, numbers, booleans or arrays.
    Arguments,
    /// A table with free names and values of any type.
    Values,
    /// `"all"`, `"auto"`, a count, or a list of different indices.
    Gpus,
    /// A table of further keys.
    Table(Keys),
    /// An array of tables.
    Tables(Keys),
    /// A table whose keys depend on the value of one of them.
    Tagged {
        /// The key that decides.
        tag: &'static str,
        /// Keys for each value of the tag.
        variants: &'static [Variant],
    },
}

/// The keys for one value of a tag.
#[derive(Debug)]
pub struct Variant {
    /// The key of the tag itself, which accepts only this variant's word.
    pub tag: ConfigKey,
    /// The value of the tag.
    pub word: &'static str,
    /// The other keys.
    pub keys: Keys,
}

impl Variant {
    /// Returns all keys of the table, the tag first.
    pub fn all_keys(&'static self) -> impl Iterator<Item = &'static ConfigKey> + Clone {
        std::iter::once(&self.tag).chain(self.keys)
    }
}

/// Value of an absent key.
#[derive(Debug)]
pub enum Fallback {
    /// Nothing: the key is required.
    Required,
    /// A value, as TOML.
    Value(fn() -> String),
    /// A description; may be empty.
    Words(&'static str),
}

impl ConfigKey {
    /// Returns whether the key is required.
    pub fn is_required(&self) -> bool {
        matches!(self.default, Fallback::Required)
    }
}

impl ValueKind {
    /// Returns the expected values, for messages and documentation.
    pub fn expected(&self) -> String {
        match self {
            ValueKind::Text(rule) => rule.expected.to_owned(),
            ValueKind::Choice(words) => one_of(words),
            ValueKind::Integer(range) => format!("an integer{}", integer_range(range)),
            ValueKind::Number { min, max, open } => format!("a number{}", number_range(*min, *max, *open)),
            ValueKind::Flag => "`true` or `false`".to_owned(),
            ValueKind::FlagOrText(rule) => format!("`true` or {}", rule.expected),
            ValueKind::Texts(what) => format!("a non-empty array of {what}"),
            ValueKind::Integers(range) => format!("a non-empty array of integers{}", integer_range(range)),
            ValueKind::Environment => "a table of strings".to_owned(),
            ValueKind::Names(what) => format!("a table of {what}"),
            ValueKind::Arguments => "a table of texts, numbers, booleans or arrays".to_owned(),
            ValueKind::Values => "a table of any values".to_owned(),
            ValueKind::Gpus => "`\"all\"`, `\"auto\"`, a count or a list of indices".to_owned(),
            ValueKind::Table(_) | ValueKind::Tagged { .. } => "a table".to_owned(),
            ValueKind::Tables(_) => "an array of tables".to_owned(),
        }
    }
}

fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

fn integer_range(range: &RangeInclusive<i128>) -> String {
    match (*range.start(), *range.end()) {
        (min, U32 | U63) => format!(", {min} or more"),
        (min, max) => format!(" from {min} to {max}"),
    }
}

fn number_range(min: f64, max: f64, open: bool) -> String {
    match (min == f64::MIN, max == f64::MAX) {
        (true, true) => String::new(),
        (false, true) if open => format!(" above {min}"),
        (false, true) => format!(", {min} or more"),
        _ if open => format!(" above {min}, at most {max}"),
        _ => format!(" from {min} to {max}"),
    }
}

pub(crate) const U32: i128 = u32::MAX as i128;
/// TOML's largest integer.
pub(crate) const U63: i128 = i64::MAX as i128;
/// A year: longer waits are typing errors.
pub(crate) const YEAR_S: f64 = 31_536_000.0;
pub(crate) const SECONDS: ValueKind = ValueKind::Number { min: 0.0, max: YEAR_S, open: true };
pub(crate) const POSITIVE: ValueKind = ValueKind::Number { min: 0.0, max: f64::MAX, open: true };
pub(crate) const NOT_NEGATIVE: ValueKind = ValueKind::Number { min: 0.0, max: f64::MAX, open: false };
pub(crate) const SHARE: ValueKind = ValueKind::Number { min: 0.0, max: 1.0, open: false };
pub(crate) const POSITIVE_SHARE: ValueKind = ValueKind::Number { min: 0.0, max: 1.0, open: true };

/// The type of a key's field.
pub trait KeyType: Sized {
    /// Default type and range of a key of this type.
    const KIND: ValueKind;

    /// Returns the value as TOML, to document a default.
    fn text(&self) -> String {
        String::new()
    }

    /// Returns whether the value equals an absent key; it is then not written.
    fn is_absent(&self) -> bool {
        false
    }
}

impl KeyType for bool {
    const KIND: ValueKind = ValueKind::Flag;

    fn text(&self) -> String {
        self.to_string()
    }
}

macro_rules! integers {
    ($($type:ty = $max:expr;)*) => {$(
        impl KeyType for $type {
            const KIND: ValueKind = ValueKind::Integer(0..=$max);

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

integers! {
    u16 = u16::MAX as i128;
    u32 = U32;
    u64 = U63;
}

impl KeyType for f64 {
    const KIND: ValueKind = ValueKind::Number { min: f64::MIN, max: f64::MAX, open: false };

    fn text(&self) -> String {
        let digits = self.to_string();
        if digits.contains('.') { digits } else { digits + ".0" }
    }
}

impl KeyType for String {
    const KIND: ValueKind = ValueKind::Text(&PLAIN);

    fn text(&self) -> String {
        format!("\"{self}\"")
    }
}

impl KeyType for Code {
    const KIND: ValueKind = ValueKind::Text(&PATH);
}

impl KeyType for Vec<String> {
    const KIND: ValueKind = ValueKind::Texts("strings");

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl KeyType for Vec<u32> {
    const KIND: ValueKind = ValueKind::Integers(0..=U32);

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl KeyType for BTreeMap<String, String> {
    const KIND: ValueKind = ValueKind::Environment;

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn text(&self) -> String {
        "{}".to_owned()
    }
}

impl KeyType for BTreeMap<String, toml::Value> {
    const KIND: ValueKind = ValueKind::Values;

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn text(&self) -> String {
        "{}".to_owned()
    }
}

impl<T: KeyType> KeyType for Option<T> {
    const KIND: ValueKind = T::KIND;

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

/// Returns the key at a dotted path without array indices.
pub fn find(keys: Keys, path: &[&str]) -> Option<&'static ConfigKey> {
    let (first, rest) = path.split_first()?;
    find_among(keys.iter(), first, rest)
}

fn find_among(
    mut keys: impl Iterator<Item = &'static ConfigKey>,
    first: &str,
    rest: &[&str],
) -> Option<&'static ConfigKey> {
    let key = keys.find(|key| key.name == first)?;
    let Some((next, after)) = rest.split_first() else { return Some(key) };
    match &key.kind {
        ValueKind::Table(keys) | ValueKind::Tables(keys) => find_among(keys.iter(), next, after),
        ValueKind::Tagged { variants, .. } => {
            variants.iter().find_map(|variant| find_among(variant.all_keys(), next, after))
        }
        _ => None,
    }
}

/// Returns the fix for a value that an earlier release accepted.
pub fn former_word(key: &str, word: &str) -> Option<&'static str> {
    match (key, word) {
        ("backend", "gloo") => Some("write `\"tcp\"`: the built-in TCP backend replaces Gloo"),
        _ => None,
    }
}

/// Defines a table of the configuration: a struct with serde, its `Default` and its `KEYS`.
///
/// A field is `name: Type [Kind] = default,`. Its doc comment is the key's meaning in `docs/config.md`.
/// Without `[Kind]` the type decides what the key may hold. Without `= default` the key is required.
/// `=> "words"` instead of a default describes an absent key; the field is then empty and not written.
///
/// A table without required keys asks serde for `default`. In the others, each key that may be absent does.
macro_rules! keys {
    (
        $(#[doc = $table_doc:literal])+
        $(#[serde($($table_serde:tt)*)])*
        pub struct $table:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])*
                $field:ident: $type:ty $([$kind:expr])? $(= $default:expr)? $(=> $words:literal)?,
            )*
        }
    ) => {
        $(#[doc = $table_doc])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $(#[serde($($table_serde)*)])*
        pub struct $table {
            $(
                $(#[doc = $doc])+
                $(#[serde($($serde)*)])*
                $(
                    #[doc = concat!("\n\nAbsent: ", $words)]
                    #[serde(default, skip_serializing_if = "crate::schema::KeyType::is_absent")]
                )?
                pub $field: $type,
            )*
        }

        impl $table {
            /// Meaning of the table.
            pub const DOC: &'static str = concat!($($table_doc),+).trim_ascii();

            /// Its keys, in the order of the documentation.
            pub const KEYS: $crate::schema::Keys = &[
                $($crate::schema::ConfigKey {
                    name: stringify!($field),
                    kind: keys!(@kind $type $(, $kind)?),
                    default: keys!(@fallback $type $(, = $default)? $(, => $words)?),
                    doc: concat!($($doc),+).trim_ascii(),
                },)*
            ];
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($field: keys!(@default $($default)?),)* }
            }
        }

        impl $crate::schema::KeyType for $table {
            const KIND: $crate::schema::ValueKind = $crate::schema::ValueKind::Table($table::KEYS);
        }
    };

    (@kind $type:ty) => { <$type as $crate::schema::KeyType>::KIND };
    (@kind $type:ty, $kind:expr) => { $kind };

    (@fallback $type:ty) => { $crate::schema::Fallback::Required };
    (@fallback $type:ty, => $words:literal) => { $crate::schema::Fallback::Words($words) };
    (@fallback $type:ty, = $default:expr) => {
        $crate::schema::Fallback::Value(|| {
            let value: $type = $default;
            $crate::schema::KeyType::text(&value)
        })
    };

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// Defines the words that a key may hold, as an enum; the first one is the default.
macro_rules! choices {
    (
        $(#[doc = $enum_doc:literal])+
        pub enum $name:ident {
            $(#[doc = $first_doc:literal])+
            $first:ident = $first_word:literal,
            $(
                $(#[doc = $doc:literal])+
                $variant:ident = $word:literal,
            )*
        }
    ) => {
        $(#[doc = $enum_doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            #[serde(rename = $first_word)]
            $first,
            $(
                $(#[doc = $doc])+
                #[serde(rename = $word)]
                $variant,
            )*
        }

        impl $crate::schema::KeyType for $name {
            const KIND: $crate::schema::ValueKind = $crate::schema::ValueKind::Choice(&[$first_word, $($word),*]);

            fn text(&self) -> String {
                let word = match self {
                    $name::$first => $first_word,
                    $($name::$variant => $word,)*
                };
                format!("\"{word}\"")
            }
        }
    };
}

pub(crate) use {choices, keys};

/// A rule for strings.
#[derive(Debug)]
pub struct TextRule {
    /// What is expected, after "expected".
    pub expected: &'static str,
    /// The rule as a regular expression, if it is a short one, for the JSON Schema.
    pub pattern: Option<&'static str>,
    /// Rejects a text that does not follow the rule.
    pub test: fn(&str) -> Result<(), Refusal>,
}

/// Reason of a refusal, and the hint.
pub type Refusal = (String, String);

fn refuse(why: impl Into<String>, hint: impl Into<String>) -> Result<(), Refusal> {
    Err((why.into(), hint.into()))
}

impl TextRule {
    /// A rule without a pattern.
    pub const fn new(expected: &'static str, test: fn(&str) -> Result<(), Refusal>) -> TextRule {
        TextRule { expected, pattern: None, test }
    }
}

/// Names of hosts and runs: they become file names, so letters, digits, `-`, `_`, `.` only.
pub static NAME: TextRule = TextRule {
    expected: "a name of letters, digits, `-`, `_` and `.`",
    pattern: Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
    test: name,
};
/// Any text that is not empty.
pub static PLAIN: TextRule = TextRule::new("a non-empty string", plain);
/// A file or a directory.
pub static PATH: TextRule = TextRule::new("a path", path);
/// A line for the shell.
pub static SHELL: TextRule = TextRule::new("a shell line", plain);
/// An environment id.
pub(crate) static ENV_ID: TextRule = TextRule::new("an RL environment id", plain);
/// A callable of a Python module.
pub(crate) static FACTORY: TextRule = TextRule::new("`module:callable`", factory);
/// A program that is started: a path, or a name that `PATH` finds.
pub static PROGRAM: TextRule = TextRule::new("a path, or a name in `PATH`", plain);
/// A host name, an address or an ssh alias.
pub static ADDRESS: TextRule = TextRule::new("an address or host name", address);
/// A login name.
pub static USER: TextRule = TextRule::new("a user name", user);
/// Hosts that lead to the one that is meant, in their order.
pub(crate) static JUMP: TextRule = TextRule::new("`user@host:port`, separated by commas", jump);
/// libtorch on a host.
pub static LIBTORCH: TextRule = TextRule::new("a directory, or `python:PATH`", libtorch);
/// A network interface.
pub(crate) static INTERFACE: TextRule = TextRule::new("the name of a network interface", interface);
/// A web address.
pub(crate) static URL: TextRule =
    TextRule { expected: "a URL that starts with `https://`", pattern: Some("^https?://"), test: url };

/// Hint for a password in a file.
const NO_PASSWORD: &str = "passwords are not stored: install a key with `ssh-copy-id`, or use an ssh-agent";

fn url(text: &str) -> Result<(), Refusal> {
    match text.starts_with("https://") || text.starts_with("http://") {
        true => plain(text),
        false => refuse("is not a URL", "write `https://...`"),
    }
}

fn plain(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return refuse("is empty", "remove the key to use the default");
    }
    if text.contains('\0') {
        return refuse("contains a NUL character", "remove the NUL character");
    }
    Ok(())
}

fn factory(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.split_once(':') {
        Some((module, name)) if !module.is_empty() && !name.is_empty() => Ok(()),
        _ => refuse("names no module", "write `module:callable`"),
    }
}

fn path(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let Some(name) = variable_in(text) else { return Ok(()) };
    let home = ["$HOME", "${HOME}"].iter().find_map(|home| text.strip_prefix(home));
    let hint = match home.filter(|rest| rest.starts_with('/') && variable_in(rest).is_none()) {
        Some(rest) => format!("write `\"~{rest}\"`"),
        None => "write the path itself; `~/` is the home directory".to_owned(),
    };
    refuse(format!("contains `${name}`, which is not expanded (no shell)"), hint)
}

/// Returns the name in the first `$NAME` or `${NAME}` of a text.
pub fn variable_in(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let after = text[at + 1..].trim_start_matches('{');
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = &after[..after.find(|c| !is_part(c)).unwrap_or(after.len())];
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_').then_some(name)
    })
}

fn name(text: &str) -> Result<(), Refusal> {
    let hint = "use letters, digits, `-`, `_` and `.`, starting with a letter or digit";
    if text.is_empty() {
        return refuse("is empty", hint);
    }
    if text.len() > 64 {
        return refuse(format!("has {} characters, limit 64", text.chars().count()), hint);
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.".contains(*c))) {
        // `node[01-04]`, as Slurm writes several.
        let hint = if bad == '[' { "list each name separately, not as a range" } else { hint };
        return refuse(format!("contains the character `{}`", bad.escape_debug()), hint);
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse("does not start with a letter or digit", hint);
    }
    Ok(())
}

fn address(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    // `ssh://` is reported only if nothing else is wrong.
    let bare = text.split_once("://").map_or(text, |(_, rest)| rest.trim_end_matches('/'));
    if let Some((login, host)) = bare.rsplit_once('@') {
        // A password is never printed.
        if let Some((user, _)) = login.split_once(':') {
            let host = host.split_once(':').map_or(host, |(host, _)| host);
            return refuse(
                "contains a password",
                format!("{NO_PASSWORD}; write `address = \"{host}\"` and `user = \"{user}\"`"),
            );
        }
        let user = login;
        return match host.split_once(':') {
            Some((host, port)) if !port.contains(':') => refuse(
                "contains a user name and a port",
                format!("write `address = \"{host}\"`, `user = \"{user}\"` and `port = {port}`"),
            ),
            _ => refuse(
                "contains a user name",
                format!("write `address = \"{host}\"` and `user = \"{user}\"`"),
            ),
        };
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return refuse(
            format!("contains `{scheme}://`"),
            format!("write `address = \"{}\"`", rest.trim_end_matches('/')),
        );
    }
    if let Some(bad) =
        text.chars().find(|c| c.is_whitespace() || c.is_control() || "/\\\"'`$;&|<>(){}".contains(*c))
    {
        return refuse(
            format!("contains the character `{}`", bad.escape_debug()),
            "use a host name, an IP address or an alias of `~/.ssh/config`",
        );
    }
    if text.starts_with('-') {
        return refuse("starts with `-`", "use a host name, an IP address or an alias of `~/.ssh/config`");
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            refuse("contains a port", format!("write `address = \"{host}\"` and `port = {port}`"))
        }
        // Resolvers read a bare number as a 32-bit address: 6841231 becomes 0.104.99.143.
        _ if text.chars().all(|c| c.is_ascii_digit()) => refuse(
            "is a number and would be read as an IPv4 address",
            "use the address with its dots, or a name",
        ),
        _ => Ok(()),
    }
}

/// Directories write `user@domain` and `DOMAIN\user`.
fn user(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let bad = |c: &char| c.is_whitespace() || c.is_control() || ":/\"'`$;&|<>".contains(*c);
    match text.chars().find(bad) {
        Some(bad) => {
            refuse(format!("contains the character `{}`", bad.escape_debug()), "use only the login name")
        }
        None if text.starts_with(['-', '@']) || text.ends_with(['@', '\\']) => {
            refuse("starts with `-`, or has nothing before or after `@`", "use only the login name")
        }
        None => Ok(()),
    }
}

fn jump(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let hint = "write `user@host:port`, several separated by commas; user and port are optional";
    for hop in text.split(',') {
        let hop = hop.trim();
        let (login, host) = hop.rsplit_once('@').map_or((None, hop), |(login, host)| (Some(login), host));
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match (bracketed, host.split_once(':')) {
            (Some((host, rest)), _) => (host, rest.strip_prefix(':')),
            (None, Some((host, port))) => (host, Some(port)),
            (None, None) => (host, None),
        };
        if login.is_some_and(|login| login.contains(':')) {
            return refuse("contains a password", NO_PASSWORD);
        }
        if host.is_empty() || login == Some("") {
            return refuse("has a hop without a host or user", hint);
        }
        // Hints show it as a command to type, and `ssh` may hand it to a shell.
        if let Some(bad) = hop.chars().find(|c| "\\\"'`$;&|<>(){}!*?#~".contains(*c)) {
            return refuse(format!("contains the character `{}`", bad.escape_debug()), hint);
        }
        if hop.starts_with('-') || hop.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return refuse("has a hop with a space or a leading `-`", hint);
        }
        if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
            return refuse("has a hop whose port is not a number from 1 to 65535", hint);
        }
    }
    Ok(())
}

fn libtorch(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.strip_prefix("python:") {
        Some(path) if path.trim().is_empty() => {
            refuse("has no interpreter", "write `python:PATH`, such as `python:venv/bin/python3`")
        }
        _ => Ok(()),
    }
}

fn interface(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.chars().find(|c| c.is_whitespace() || c.is_control() || *c == '/') {
        Some(bad) => refuse(
            format!("contains the character `{}`", bad.escape_debug()),
            "list the interfaces of a host with `ip -brief address`",
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_host_name_or_an_ip() {
        for good in ["gpu1", "10.0.0.7", "fe80::1", "::1", "node-1.cluster.example", "a%eth0"] {
            assert_eq!(address(good), Ok(()), "{good}");
        }
        for bad in ["", " ", "a b", "root@a", "a:22", "6841231", "-oProxyCommand=x", "a;b", "$(x)"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn path_with_a_shell_variable_is_rejected() {
        for good in ["a", "~/x", "/a b", "a$", "$1", "x$-y"] {
            assert_eq!(path(good), Ok(()), "{good}");
        }
        for (bad, hint) in
            [("$HOME/x", "`\"~/x\"`"), ("${HOME}/x", "`\"~/x\"`"), ("a/$USER", "the path itself")]
        {
            let (why, advice) = path(bad).unwrap_err();
            assert!(why.contains('$') && advice.contains(hint), "{bad}: {why}, {advice}");
        }
        assert!(path("").is_err());
    }

    #[test]
    fn password_is_rejected_and_not_repeated() {
        for (test, text) in [
            (address as fn(&str) -> _, "me:s3cret@h"),
            (address, "ssh://me:s3cret@h:22/"),
            (address, "me:s3@cret@h"),
            (jump, "me:s3cret@h,b"),
        ] {
            let (why, hint) = test(text).unwrap_err();
            assert!(hint.contains("ssh-copy-id") && !hint.contains("cret"), "{text}: {why}, {hint}");
        }
    }

    #[test]
    fn jump_host_is_checked_by_hop() {
        for good in ["a", "u@a", "u@a:2222", "a,u@b:22", "[::1]:22", "u@[fe80::2]"] {
            assert_eq!(jump(good), Ok(()), "{good}");
        }
        for bad in ["", "u@", "@a", "a,,b", "a:0", "a:70000", "a:x", "-a", "$(x)", "u`x`@a", "a;b", "a,b>c"] {
            assert!(jump(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_file_names() {
        for good in ["node0", "a.b-c_d", "0"] {
            assert_eq!(name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        let why = |text: &str| name(text).unwrap_err().0;
        assert!(why("läufer").contains("`ä`") && why("a\u{202e}").contains("\\u{202e}"), "{}", why("läufer"));
    }

    #[test]
    fn patterns_accept_what_the_rules_accept() {
        let long = ["x".repeat(64), "x".repeat(65)];
        let mut texts =
            vec!["node0", "a.b-c_d", "0", "", ".", "-a", "a/b", "a b", "é", "a\n", "https://a", "ftp://a"];
        texts.extend(long.iter().map(String::as_str));
        for rule in [&NAME, &URL] {
            let pattern = regex_lite::Regex::new(rule.pattern.unwrap()).unwrap();
            for text in &texts {
                assert_eq!(pattern.is_match(text), (rule.test)(text).is_ok(), "{text:?}: {}", rule.expected);
            }
        }
    }
}
