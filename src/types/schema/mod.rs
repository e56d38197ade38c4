//! What a configuration key is: its type, range, default and meaning.
//!
//! `keys!` defines each table once. The struct that serde reads, its defaults, the rows that the diagnostics
//! check and `docs/CONFIG.md` all come from that one definition.

#[macro_use]
mod define;
pub mod text_rules;

pub(crate) use define::{choices, keys};
pub use text_rules::TextRule;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use text_rules::PLAIN;

/// A configuration key as the file, its checks and CONFIG.md know it.
#[derive(Debug)]
pub struct Key {
    /// As written in the file.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What holds without it.
    pub default: Fallback,
    /// What the key does, as CONFIG.md says it.
    pub doc: &'static str,
}

/// Keys of one table.
pub type Keys = &'static [Key];

/// What a key may hold.
#[derive(Debug)]
pub enum Kind {
    /// A string that follows a rule.
    Text(&'static TextRule),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An integer of a range.
    Integer(RangeInclusive<i128>),
    /// A finite number of a range; `open` excludes the lower end.
    Number {
        /// The smallest value that is accepted.
        min: f64,
        /// Largest.
        max: f64,
        /// Without `min` itself.
        open: bool,
    },
    /// `true` or `false`.
    Flag,
    /// `true`, `false`, or a string that follows a rule.
    FlagOrText(&'static TextRule),
    /// An array of strings, not empty; the word for what the strings are.
    Texts(&'static str),
    /// An array of integers of a range, not empty.
    Integers(RangeInclusive<i128>),
    /// A table of environment variables.
    Environment,
    /// A table of strings by names of the user's choice; the word for what the strings are.
    Names(&'static str),
    /// `"all"`, `"auto"`, a count, or a list of different indices.
    Gpus,
    /// A table of further keys.
    Table(Keys),
    /// An array of tables.
    Tables(Keys),
    /// A table whose other keys depend on one of its words.
    Tagged {
        /// The key that decides.
        tag: &'static str,
        /// What may follow the tag.
        variants: &'static [Variant],
    },
}

/// The keys that go with one word of a tag.
#[derive(Debug)]
pub struct Variant {
    /// The row of the tag itself, which admits only this variant's word.
    pub tag: Key,
    /// The word as it stands in a file.
    pub word: &'static str,
    /// The other keys.
    pub keys: Keys,
}

impl Variant {
    /// All keys of the table, the tag first.
    pub fn all_keys(&'static self) -> impl Iterator<Item = &'static Key> + Clone {
        std::iter::once(&self.tag).chain(self.keys)
    }
}

/// What holds when a key is absent.
#[derive(Debug)]
pub enum Fallback {
    /// Nothing: the key is required.
    Required,
    /// A value, as TOML.
    Value(fn() -> String),
    /// Something that only words can say; may be empty.
    Words(&'static str),
}

impl Key {
    /// Without this key, the table is refused.
    pub fn is_required(&self) -> bool {
        matches!(self.default, Fallback::Required)
    }
}

impl Kind {
    /// What is expected, for messages and documentation.
    pub fn expected(&self) -> String {
        match self {
            Kind::Text(rule) => rule.expected.to_owned(),
            Kind::Choice(words) => one_of(words),
            Kind::Integer(range) => format!("an integer{}", integer_range(range)),
            Kind::Number { min, max, open } => format!("a number{}", number_range(*min, *max, *open)),
            Kind::Flag => "`true` or `false`".to_owned(),
            Kind::FlagOrText(rule) => format!("`true` or {}", rule.expected),
            Kind::Texts(what) => format!("an array of {what}, not empty"),
            Kind::Integers(range) => format!("an array of integers{}, not empty", integer_range(range)),
            Kind::Environment => "a table of strings".to_owned(),
            Kind::Names(what) => format!("a table of {what}"),
            Kind::Gpus => "`\"all\"`, `\"auto\"`, a count or a list of indices".to_owned(),
            Kind::Table(_) | Kind::Tagged { .. } => "a table".to_owned(),
            Kind::Tables(_) => "an array of tables".to_owned(),
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
/// A year: longer waits are typing errors, and every clock can hold it.
pub(crate) const YEAR_S: f64 = 31_536_000.0;
pub(crate) const SECONDS: Kind = Kind::Number { min: 0.0, max: YEAR_S, open: true };
pub(crate) const POSITIVE: Kind = Kind::Number { min: 0.0, max: f64::MAX, open: true };
pub(crate) const NOT_NEGATIVE: Kind = Kind::Number { min: 0.0, max: f64::MAX, open: false };
pub(crate) const SHARE: Kind = Kind::Number { min: 0.0, max: 1.0, open: false };
pub(crate) const POSITIVE_SHARE: Kind = Kind::Number { min: 0.0, max: 1.0, open: true };

/// The type of a key's field.
pub trait KeyType: Sized {
    /// What a key of this type may hold when its table does not say.
    const KIND: Kind;

    /// The value as TOML, for the documentation of a default.
    fn text(&self) -> String {
        String::new()
    }

    /// The value says no more than an absent key and is not written.
    fn is_absent(&self) -> bool {
        false
    }
}

impl KeyType for bool {
    const KIND: Kind = Kind::Flag;

    fn text(&self) -> String {
        self.to_string()
    }
}

macro_rules! integers {
    ($($type:ty = $max:expr;)*) => {$(
        impl KeyType for $type {
            const KIND: Kind = Kind::Integer(0..=$max);

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
    const KIND: Kind = Kind::Number { min: f64::MIN, max: f64::MAX, open: false };

    fn text(&self) -> String {
        let digits = self.to_string();
        if digits.contains('.') { digits } else { digits + ".0" }
    }
}

impl KeyType for String {
    const KIND: Kind = Kind::Text(&PLAIN);

    fn text(&self) -> String {
        format!("\"{self}\"")
    }
}

impl KeyType for Vec<String> {
    const KIND: Kind = Kind::Texts("strings");

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl KeyType for Vec<u32> {
    const KIND: Kind = Kind::Integers(0..=U32);

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl KeyType for BTreeMap<String, String> {
    const KIND: Kind = Kind::Environment;

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn text(&self) -> String {
        "{}".to_owned()
    }
}

impl<T: KeyType> KeyType for Option<T> {
    const KIND: Kind = T::KIND;

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

/// The key that a dotted path names, without array indices.
pub fn find(keys: Keys, path: &[&str]) -> Option<&'static Key> {
    let (first, rest) = path.split_first()?;
    find_among(keys.iter(), first, rest)
}

fn find_among(
    mut keys: impl Iterator<Item = &'static Key>,
    first: &str,
    rest: &[&str],
) -> Option<&'static Key> {
    let key = keys.find(|key| key.name == first)?;
    let Some((next, after)) = rest.split_first() else { return Some(key) };
    match &key.kind {
        Kind::Table(keys) | Kind::Tables(keys) => find_among(keys.iter(), next, after),
        Kind::Tagged { variants, .. } => {
            variants.iter().find_map(|variant| find_among(variant.all_keys(), next, after))
        }
        _ => None,
    }
}

/// A word that a key took once, and what to write instead.
pub fn former_word(key: &str, word: &str) -> Option<&'static str> {
    match (key, word) {
        ("backend", "gloo") => {
            Some("write `tcp`: CPU tensors go over rankdeck's own connections, not Gloo's")
        }
        _ => None,
    }
}
