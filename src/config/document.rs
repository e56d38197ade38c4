//! TOML as a tree that remembers where everything was written.
//!
//! Owner: one load. The tree of a file may be changed by overrides (`--set`); every node keeps the text it
//! came from, so that an error about an overridden value quotes the command line and not the file.

use super::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use super::syntax;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// Larger files are refused.
const MAX_BYTES: u64 = 1 << 20;

/// A value and where it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where; for tables the header.
    pub place: Place,
    /// The value without its place.
    pub value: Value,
}

/// A key of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where the key is written.
    pub key: Place,
    /// The value and its place in the file.
    pub node: Node,
}

/// A value that was looked up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundValue<'a> {
    /// Where its key is written; for an item of an array, the item.
    pub key: &'a Place,
    /// The value and its place in the file.
    pub node: &'a Node,
}

/// The tables of TOML, in the order of their names.
pub type Table = BTreeMap<String, Entry>;

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Keys with values, written inline or under a header.
    Table(Table),
    Array(Vec<Node>),
    String(String),
    /// An integer; wider than TOML's, so that the range check can name what is too large.
    Integer(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    Boolean(bool),
    /// A date, a time or both, as written.
    Datetime(String),
}

impl Value {
    /// What it is, with its article.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Table(_) => "a table",
            Value::Array(_) => "an array",
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Boolean(_) => "a boolean",
            Value::Datetime(_) => "a date",
        }
    }
}

/// Reads a file; the error names the path and says what helps, `missing` when there is no such file.
pub fn read(path: &Path, what: &str, missing: &str) -> Result<Arc<Source>, Diagnostics> {
    let name = path.display().to_string();
    let failed = |message: String, hint: &str| {
        Diagnostics::from(Diagnostic::about_file(name.clone(), message).hint(hint))
    };
    let unreadable = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => missing,
            _ => "make it readable for this user",
        };
        failed(format!("cannot read the {what}: {}", plain(&error)), hint)
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(failed(format!("the {what} is not a regular file"), "give the path of a TOML file"));
    }
    if metadata.len() > MAX_BYTES {
        let bytes = metadata.len();
        let message = format!("the {what} has {bytes} bytes, more than the {MAX_BYTES} allowed");
        return Err(failed(message, "is this the right file?"));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map(|text| Arc::new(Source::new(name.clone(), text))).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        failed(format!("the {what} is no UTF-8 text (byte {at})"), "save it as UTF-8")
    })
}

/// An I/O error without Rust's `(os error N)`.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let cut = text.find(" (os error").unwrap_or(text.len());
    let mut short = text[..cut].to_owned();
    if let Some(first) = short.get_mut(0..1) {
        first.make_ascii_lowercase();
    }
    short
}

/// Begins the message of a syntax error.
const NO_TOML: &str = "not valid TOML: ";

/// It says that a text is no TOML.
pub fn is_syntax(diagnostic: &Diagnostic) -> bool {
    diagnostic.message.starts_with(NO_TOML)
}

/// Parses a text; all syntax errors at once.
pub fn parse(source: &Arc<Source>) -> Result<Node, Diagnostics> {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    if errors.is_empty() {
        let span = table.span();
        return Ok(Node {
            place: Place { source: source.clone(), range: span },
            value: Value::Table(convert_table(source, table.get_ref())),
        });
    }
    let mut all = Diagnostics::new();
    if let Some(diagnostic) = other_format(source) {
        all.push(diagnostic);
        return all.or(Node {
            place: Place { source: source.clone(), range: 0..0 },
            value: Value::Table(Table::new()),
        });
    }
    for error in errors {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        all.push(match error.span() {
            Some(range) => {
                let place = Place { source: source.clone(), range };
                let hint = syntax::hint(&message, line_at(&source.text, place.range.start));
                Diagnostic::at(&place, format!("{NO_TOML}{message}")).hint(hint)
            }
            None => Diagnostic::about_file(source.name.clone(), format!("{NO_TOML}{message}")),
        });
    }
    all.or(Node { place: Place { source: source.clone(), range: 0..0 }, value: Value::Table(Table::new()) })
}

/// The line that a byte is on; empty for one so long that looking at it for each of its mistakes would take
/// minutes.
pub fn line_at(text: &str, at: usize) -> &str {
    const MOST: usize = 512;
    let near = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (first, at, last) = (near(at.saturating_sub(MOST)), near(at), near(at + MOST));
    let begin = text[first..at].rfind('\n').map_or(first, |newline| first + newline + 1);
    let end = text[at..last].find('\n').map_or(last, |newline| at + newline);
    let is_whole = (begin > first || first == 0) && (end < last || last == text.len());
    if is_whole { &text[begin..end] } else { "" }
}

/// The text is of another format than TOML, told by its first line: one mistake instead of one per line.
fn other_format(source: &Arc<Source>) -> Option<Diagnostic> {
    let mut start = 0;
    let first = source.text.split_inclusive('\n').find_map(|line| {
        let at = start;
        start += line.len();
        let text = line.trim();
        (!text.is_empty() && !text.starts_with('#')).then_some((at, text))
    });
    let (at, line) = first?;
    let is_key = |key: &str| {
        let key = key.trim_matches(['"', '\'']);
        !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c))
    };
    let place = Place { source: source.clone(), range: at..at + line.len() };
    let is_python =
        ["import ", "from ", "def ", "class ", "\"\"\""].iter().any(|begin| line.starts_with(begin));
    if is_python {
        let hint = format!("`rankdeck run -- python {}` launches it", source.name);
        return Some(Diagnostic::at(&place, "this looks like a Python script, and not like TOML").hint(hint));
    }
    if let Some(name) = host_list(&source.text) {
        return Some(
            Diagnostic::at(&place, "this looks like a list of hosts, and rankdeck reads TOML").hint(format!(
                "write `[[host]]` and `name = \"{name}\"` for each of them, or name them all by `--hosts a,b`"
            )),
        );
    }
    let format = match line.split_once(':') {
        _ if line.starts_with('{') => "JSON",
        _ if line == "---" => "YAML",
        Some((key, rest)) if is_key(key) && (rest.is_empty() || rest.starts_with(' ')) => "YAML",
        _ => return None,
    };
    Some(Diagnostic::at(&place, format!("this looks like {format}, and rankdeck reads TOML")).hint(
        "write `key = value` lines below `[table]` lines; `rankdeck init` writes such files, and \
         docs/CONFIG.md has all keys",
    ))
}

/// The first name of a list of hosts as mpirun and DeepSpeed read it: one per line, perhaps with `slots=N`.
fn host_list(text: &str) -> Option<&str> {
    let is_name = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:@".contains(c))
    };
    let one = |line: &'_ str| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(is_name)
            && words.all(|word| word.contains("slots=") || word.parse::<u32>().is_ok())
    };
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    (lines().all(one)).then(|| lines().next()?.split_whitespace().next()).flatten()
}

fn convert_table(source: &Arc<Source>, table: &DeTable<'_>) -> Table {
    let place = |range: Range<usize>| Place { source: source.clone(), range };
    let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
        let node = Node { place: place(value.span()), value: convert(source, value.get_ref()) };
        (key.get_ref().to_string(), Entry { key: place(key.span()), node })
    };
    table.iter().map(entry).collect()
}

fn convert(source: &Arc<Source>, value: &DeValue<'_>) -> Value {
    match value {
        DeValue::Table(table) => Value::Table(convert_table(source, table)),
        DeValue::Array(array) => Value::Array(
            array
                .iter()
                .map(|item| Node {
                    place: Place { source: source.clone(), range: item.span() },
                    value: convert(source, item.get_ref()),
                })
                .collect(),
        ),
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            let negative = number.as_str().starts_with('-');
            let limit = if negative { i128::MIN } else { i128::MAX };
            Value::Integer(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(limit))
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
    }
}

impl Node {
    /// The table, when it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// What a dotted path names; numbers index arrays: `host.1.gpus`.
    pub fn entry(&self, path: &str) -> Option<FoundValue<'_>> {
        let own = FoundValue { key: &self.place, node: self };
        path.split('.').try_fold(own, |at, part| match &at.node.value {
            Value::Table(table) => {
                table.get(part).map(|entry| FoundValue { key: &entry.key, node: &entry.node })
            }
            Value::Array(items) => {
                items.get(part.parse::<usize>().ok()?).map(|node| FoundValue { key: &node.place, node })
            }
            _ => None,
        })
    }

    /// The same as a value of the `toml` crate, for serde.
    pub fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::Table(table) => toml::Value::Table(
                table.iter().map(|(name, entry)| (name.clone(), entry.node.to_toml())).collect(),
            ),
            Value::Array(items) => toml::Value::Array(items.iter().map(Node::to_toml).collect()),
            Value::String(text) => toml::Value::String(text.clone()),
            Value::Integer(number) => {
                let limit = if *number < 0 { i64::MIN } else { i64::MAX };
                toml::Value::Integer(i64::try_from(*number).unwrap_or(limit))
            }
            Value::Float(number) => toml::Value::Float(*number),
            Value::Boolean(flag) => toml::Value::Boolean(*flag),
            Value::Datetime(text) => {
                text.parse().map_or_else(|_| toml::Value::String(text.clone()), toml::Value::Datetime)
            }
        }
    }

    /// The value that serde reads from this document, which has passed the checks.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, Diagnostics> {
        self.to_toml().try_into().map_err(|error: toml::de::Error| {
            Diagnostic::about_file(self.place.source.name.clone(), error.message()).into()
        })
    }

    /// Lays `other` over this tree: tables are merged, everything else is replaced.
    pub fn overlay(&mut self, other: Node) {
        match (&mut self.value, other) {
            (Value::Table(own), Node { value: Value::Table(table), .. }) => {
                for (name, entry) in table {
                    match own.get_mut(&name) {
                        Some(old) => {
                            let is_table = |node: &Node| matches!(node.value, Value::Table(_));
                            if !(is_table(&old.node) && is_table(&entry.node)) {
                                old.key = entry.key;
                            }
                            old.node.overlay(entry.node);
                        }
                        None => {
                            own.insert(name, entry);
                        }
                    }
                }
            }
            (_, other) => *self = other,
        }
    }
}
