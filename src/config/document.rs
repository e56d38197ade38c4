//! TOML as a tree with source spans.
//!
//! Overrides (`--set`) change the tree of a file; every node keeps its source, so that an error about an
//! overridden value quotes the command line and not the file.

use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::syntax;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// Largest file.
const MAX_BYTES: u64 = 1 << 20;

/// A value with its span.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Span; for tables, of the header.
    pub place: SourceSpan,
    pub value: TomlValue,
}

/// A key of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TomlEntry {
    /// Span of the key.
    pub key: SourceSpan,
    /// The value with its span.
    pub node: Node,
}

/// A value found by its path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundValue<'a> {
    /// Span of the key; for an item of an array, of the item.
    pub key: &'a SourceSpan,
    /// The value with its span.
    pub node: &'a Node,
}

/// A TOML table, ordered by key.
pub type Table = BTreeMap<String, TomlEntry>;

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub enum TomlValue {
    /// Keys with values, written inline or under a header.
    Table(Table),
    Array(Vec<Node>),
    String(String),
    /// An integer; wider than TOML's, so that the range check can report overflow.
    Integer(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    Boolean(bool),
    /// A date, a time or both, as written.
    Datetime(String),
}

impl TomlValue {
    /// Returns the type, with its article.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            TomlValue::Table(_) => "a table",
            TomlValue::Array(_) => "an array",
            TomlValue::String(_) => "a string",
            TomlValue::Integer(_) => "an integer",
            TomlValue::Float(_) => "a float",
            TomlValue::Boolean(_) => "a boolean",
            TomlValue::Datetime(_) => "a date",
        }
    }
}

/// Reads a file; `missing` is the hint if it does not exist.
pub fn read(path: &Path, what: &str, missing: &str) -> Result<Arc<SourceText>, Diagnostics> {
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
        return Err(failed(format!("the {what} is not a regular file"), "pass the path of a TOML file"));
    }
    if metadata.len() > MAX_BYTES {
        let bytes = metadata.len();
        let message = format!("the {what} is too large: {bytes} bytes, limit {MAX_BYTES}");
        return Err(failed(message, "check the path"));
    }
    // The file may have grown meanwhile.
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    read.map_err(unreadable)?;
    String::from_utf8(bytes).map(|text| Arc::new(SourceText::new(name.clone(), text))).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        failed(format!("the {what} is not valid UTF-8 (byte {at})"), "save it as UTF-8")
    })
}

/// Returns an I/O error without Rust's `(os error N)`.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let cut = text.find(" (os error").unwrap_or(text.len());
    let mut short = text[..cut].to_owned();
    if let Some(first) = short.get_mut(0..1) {
        first.make_ascii_lowercase();
    }
    short
}

/// Prefix of a syntax error.
const SYNTAX_ERROR: &str = "not valid TOML: ";

/// Returns whether a diagnostic is a syntax error.
pub(crate) fn is_syntax(diagnostic: &Diagnostic) -> bool {
    diagnostic.message.starts_with(SYNTAX_ERROR)
}

/// Parses a text; reports all syntax errors at once.
pub fn parse(source: &Arc<SourceText>) -> Result<Node, Diagnostics> {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    if errors.is_empty() {
        let span = table.span();
        return Ok(Node {
            place: SourceSpan { source: source.clone(), range: span },
            value: TomlValue::Table(convert_table(source, table.get_ref())),
        });
    }
    let mut all = Diagnostics::new();
    if let Some(diagnostic) = other_format(source) {
        all.push(diagnostic);
        return all.or(Node {
            place: SourceSpan { source: source.clone(), range: 0..0 },
            value: TomlValue::Table(Table::new()),
        });
    }
    for error in errors {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        all.push(match error.span() {
            Some(range) => {
                let place = SourceSpan { source: source.clone(), range };
                let hint = syntax::hint(&message, line_at(&source.text, place.range.start));
                Diagnostic::at(&place, format!("{SYNTAX_ERROR}{message}")).hint(hint)
            }
            None => Diagnostic::about_file(source.name.clone(), format!("{SYNTAX_ERROR}{message}")),
        });
    }
    all.or(Node {
        place: SourceSpan { source: source.clone(), range: 0..0 },
        value: TomlValue::Table(Table::new()),
    })
}

/// Returns the line of a byte; empty if the line is very long, to bound the time for its errors.
pub(crate) fn line_at(text: &str, at: usize) -> &str {
    const MOST: usize = 512;
    let near = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (first, at, last) = (near(at.saturating_sub(MOST)), near(at), near(at + MOST));
    let begin = text[first..at].rfind('\n').map_or(first, |newline| first + newline + 1);
    let end = text[at..last].find('\n').map_or(last, |newline| at + newline);
    let is_whole = (begin > first || first == 0) && (end < last || last == text.len());
    if is_whole { &text[begin..end] } else { "" }
}

/// Detects another format by the first line: one error instead of one per line.
fn other_format(source: &Arc<SourceText>) -> Option<Diagnostic> {
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
    let place = SourceSpan { source: source.clone(), range: at..at + line.len() };
    let is_python =
        ["import ", "from ", "def ", "class ", "\"\"\""].iter().any(|begin| line.starts_with(begin));
    if is_python {
        let hint = format!("launch it with `rankdeck run -- python {}`", source.name);
        return Some(Diagnostic::at(&place, "expected TOML, found a Python script").hint(hint));
    }
    if let Some(name) = host_list(&source.text) {
        return Some(
            Diagnostic::at(&place, "expected TOML, found a list of host names").hint(format!(
                "write `[[host]]` and `name = \"{name}\"` for each host, or pass `--hosts a,b`"
            )),
        );
    }
    let format = match line.split_once(':') {
        _ if line.starts_with('{') => "JSON",
        _ if line == "---" => "YAML",
        Some((key, rest)) if is_key(key) && (rest.is_empty() || rest.starts_with(' ')) => "YAML",
        _ => return None,
    };
    Some(Diagnostic::at(&place, format!("expected TOML, found {format}")).hint(
        "write `key = value` lines below `[table]` lines; `rankdeck init` generates such files, and \
         docs/config.md lists all keys",
    ))
}

/// Returns the first name of a host list of mpirun or DeepSpeed: one name per line, with an optional
/// `slots=N`.
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

/// Returns the span of the first of these paths that exists, else of the start of the text.
pub fn nearest(root: &Node, paths: &[impl AsRef<str>]) -> SourceSpan {
    paths.iter().find_map(|path| root.entry(path.as_ref())).map_or_else(
        || SourceSpan { source: root.place.source.clone(), range: 0..0 },
        |found| match found.node.value {
            TomlValue::Table(_) => found.key.clone(),
            _ => found.node.place.clone(),
        },
    )
}

fn convert_table(source: &Arc<SourceText>, table: &DeTable<'_>) -> Table {
    let place = |range: Range<usize>| SourceSpan { source: source.clone(), range };
    let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
        let node = Node { place: place(value.span()), value: convert(source, value.get_ref()) };
        (key.get_ref().to_string(), TomlEntry { key: place(key.span()), node })
    };
    table.iter().map(entry).collect()
}

fn convert(source: &Arc<SourceText>, value: &DeValue<'_>) -> TomlValue {
    match value {
        DeValue::Table(table) => TomlValue::Table(convert_table(source, table)),
        DeValue::Array(array) => TomlValue::Array(
            array
                .iter()
                .map(|item| Node {
                    place: SourceSpan { source: source.clone(), range: item.span() },
                    value: convert(source, item.get_ref()),
                })
                .collect(),
        ),
        DeValue::String(text) => TomlValue::String(text.to_string()),
        DeValue::Integer(number) => {
            let negative = number.as_str().starts_with('-');
            let limit = if negative { i128::MIN } else { i128::MAX };
            TomlValue::Integer(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(limit))
        }
        DeValue::Float(number) => TomlValue::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => TomlValue::Boolean(*flag),
        DeValue::Datetime(date) => TomlValue::Datetime(date.to_string()),
    }
}

impl Node {
    /// Returns the table, if it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            TomlValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the value at a dotted path; numbers index arrays: `host.1.gpus`.
    pub fn entry(&self, path: &str) -> Option<FoundValue<'_>> {
        let own = FoundValue { key: &self.place, node: self };
        path.split('.').try_fold(own, |at, part| match &at.node.value {
            TomlValue::Table(table) => {
                table.get(part).map(|entry| FoundValue { key: &entry.key, node: &entry.node })
            }
            TomlValue::Array(items) => {
                items.get(part.parse::<usize>().ok()?).map(|node| FoundValue { key: &node.place, node })
            }
            _ => None,
        })
    }

    /// Converts to a value of the `toml` crate, for serde.
    pub(crate) fn to_toml(&self) -> toml::Value {
        match &self.value {
            TomlValue::Table(table) => toml::Value::Table(
                table.iter().map(|(name, entry)| (name.clone(), entry.node.to_toml())).collect(),
            ),
            TomlValue::Array(items) => toml::Value::Array(items.iter().map(Node::to_toml).collect()),
            TomlValue::String(text) => toml::Value::String(text.clone()),
            TomlValue::Integer(number) => {
                let limit = if *number < 0 { i64::MIN } else { i64::MAX };
                toml::Value::Integer(i64::try_from(*number).unwrap_or(limit))
            }
            TomlValue::Float(number) => toml::Value::Float(*number),
            TomlValue::Boolean(flag) => toml::Value::Boolean(*flag),
            TomlValue::Datetime(text) => {
                text.parse().map_or_else(|_| toml::Value::String(text.clone()), toml::Value::Datetime)
            }
        }
    }

    /// Deserializes a document that passed the checks.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, Diagnostics> {
        self.to_toml().try_into().map_err(|error: toml::de::Error| {
            Diagnostic::about_file(self.place.source.name.clone(), error.message()).into()
        })
    }

    /// Merges `other` into this tree: tables are merged, other values replaced.
    pub fn overlay(&mut self, other: Node) {
        match (&mut self.value, other) {
            (TomlValue::Table(own), Node { value: TomlValue::Table(table), .. }) => {
                for (name, entry) in table {
                    match own.get_mut(&name) {
                        Some(old) => {
                            let is_table = |node: &Node| matches!(node.value, TomlValue::Table(_));
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
