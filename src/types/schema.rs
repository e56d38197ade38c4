//! Configuration keys: type, range, default and meaning.
//!
//! `keys!` defines each table once. The struct that serde reads, its defaults, the checks and
//! `docs/config.md` come from that one definition.

pub mod text_rules;

pub use text_rules::TextRule;

use crate::code::Code;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use text_rules::{PATH, PLAIN};

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
