//! Errors that point at the line to change.
//!
//! Owner: whoever reports a mistake in something the user wrote. Pure text: nothing here reads files.
//! Invariants:
//! - What is printed holds no control character of the file it quotes, so a file cannot drive the terminal.
//! - Carets stand under the text they mean, also after tabs and wide characters.

use super::hidden;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use unicode_width::UnicodeWidthChar;

/// Cells of a source line that are shown before it is cut.
const LINE_CELLS: usize = 160;
/// What a tab is shown as.
const TAB: &str = "    ";

/// A text that the user wrote: a file, or one `--set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Path as the user gave it, or `--set`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Where its lines begin, once somebody has asked.
    lines: OnceLock<Vec<usize>>,
}

impl Source {
    /// A text of this name.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source { name: name.into(), text: text.into(), lines: OnceLock::new() }
    }

    /// Number of the line that a byte is on, from 1.
    fn line_at(&self, at: usize) -> u32 {
        let begins = || {
            let after = self.text.match_indices('\n').map(|(at, _)| at + 1);
            std::iter::once(0).chain(after).collect::<Vec<_>>()
        };
        clamp(self.lines.get_or_init(begins).partition_point(|begin| *begin <= at))
    }
}

/// A stretch of a [`Source`], in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file's text, for the line that a message shows.
    pub source: Arc<Source>,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl Place {
    /// The line it begins on, from 1.
    pub fn line(&self) -> u32 {
        self.source.line_at(floor_char(&self.source.text, self.range.start))
    }
}

/// Whether a mistake stops the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is started.
    Error,
    /// Worth knowing, shown beside errors.
    Warning,
}

/// A stretch of one line, counted in characters from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Line in the file, from 1.
    pub line: u32,
    /// First character.
    pub column: u32,
    /// Characters, at least 1.
    pub len: u32,
}

/// A mistake or a warning, with its place and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad.
    pub severity: Severity,
    /// What is wrong, lower case, no full stop.
    pub message: String,
    /// Where: path of the file, or `--set`.
    pub file: String,
    /// Where in it; `None` when the file as a whole is meant.
    pub span: Option<Span>,
    /// The line that the span is on.
    pub source_line: Option<String>,
    /// Words beside the carets; may be empty.
    pub label: String,
    /// What to change; may be empty.
    pub hint: String,
    /// Where `span` and `source_line` come from: a text may hold more mistakes than are ever shown.
    place: Option<Place>,
}

impl Diagnostic {
    /// An error about a whole file.
    pub fn about_file(file: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            file: file.into(),
            span: None,
            source_line: None,
            label: String::new(),
            hint: String::new(),
            place: None,
        }
    }

    /// An error about a stretch of a text.
    pub fn at(place: &Place, message: impl Into<String>) -> Diagnostic {
        let file = place.source.name.clone();
        Diagnostic { place: Some(place.clone()), ..Diagnostic::about_file(file, message) }
    }

    /// The same with its line and columns.
    pub fn located(mut self) -> Diagnostic {
        if let (Some(place), None) = (&self.place, &self.span) {
            let (span, line) = locate(&place.source, &place.range);
            (self.span, self.source_line) = (Some(span), Some(hidden::line(&line)));
        }
        self
    }

    /// Where, in bytes of its text.
    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    fn order(&self) -> (&str, Option<usize>) {
        (&self.file, self.place.as_ref().map(|place| place.range.start))
    }

    /// The same with words beside the carets.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = hint.into();
        self
    }
}

/// The line and columns of a byte range; a range past the end means the end.
fn locate(source: &Source, range: &Range<usize>) -> (Span, String) {
    let text = source.text.as_str();
    let start = floor_char(text, range.start);
    let end = floor_char(text, range.end).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let number = source.line_at(line_start);
    let line = text[line_start..line_end].trim_end_matches('\r');
    let column = text[line_start..start].chars().count() + 1;
    let len = text[start..end.min(line_start + line.len()).max(start)].chars().count().max(1);
    (Span { line: number, column: clamp(column), len: clamp(len) }, line.to_owned())
}

fn floor_char(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn clamp(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// One character as it is shown: tabs widened, control characters replaced.
fn shown(c: char) -> String {
    match c {
        '\t' => TAB.to_owned(),
        c if c.is_control() => '\u{fffd}'.to_string(),
        c => c.to_string(),
    }
}

fn cells(c: char) -> usize {
    match c {
        '\t' => TAB.len(),
        c if c.is_control() => 1,
        c => c.width().unwrap_or(0),
    }
}

/// A text without control characters, for one line of output.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The part of a line to show around a span, and the cells before and under the span.
fn window(line: &str, span: Span) -> (String, usize, usize) {
    let first = span.column as usize - 1;
    let widths: Vec<usize> = line.chars().map(cells).collect();
    let before: usize = widths.iter().take(first).sum();
    // Long lines begin shortly before the span.
    let skip = if before > LINE_CELLS / 2 { first.saturating_sub(LINE_CELLS / 4) } else { 0 };
    let mut used = 0;
    let text: String = line
        .chars()
        .skip(skip)
        .take_while(|c| {
            used += cells(*c);
            used <= LINE_CELLS
        })
        .map(shown)
        .collect();
    let pad = widths.iter().take(first).skip(skip).sum();
    let under: usize = widths.iter().skip(first).take(span.len as usize).sum();
    (text, pad, under.clamp(1, LINE_CELLS.saturating_sub(pad).max(1)))
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.span.is_none() && self.place.is_some() {
            return self.clone().located().fmt(f);
        }
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{word}: {}", clean(&self.message))?;
        let file = clean(&self.file);
        let gutter = match (self.span, &self.source_line) {
            (Some(span), Some(line)) => {
                let width = span.line.to_string().len();
                let (text, pad, under) = window(line, span);
                write!(f, "\n{:width$}--> {file}:{}:{}", "", span.line, span.column)?;
                write!(f, "\n{:width$} |", "")?;
                write!(f, "\n{} | {}", span.line, text.trim_end())?;
                write!(f, "\n{:width$} | {:pad$}{}", "", "", "^".repeat(under))?;
                if !self.label.is_empty() {
                    write!(f, " {}", clean(&self.label))?;
                }
                width
            }
            _ => {
                write!(f, "\n --> {file}")?;
                1
            }
        };
        if !self.hint.is_empty() {
            for (i, line) in self.hint.lines().enumerate() {
                let lead = if i == 0 { "= hint:" } else { "       " };
                write!(f, "\n{:gutter$} {lead} {}", "", clean(line))?;
            }
        }
        Ok(())
    }
}

/// Most mistakes that are kept of one load; the others are counted.
const KEPT: usize = 100;

/// The mistakes that were found, in the order of the files and lines; never empty when it is an error. Only
/// the first [`KEPT`] are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics(pub Vec<Diagnostic>, usize);

impl Diagnostics {
    /// Nothing found so far.
    pub fn new() -> Diagnostics {
        Diagnostics::default()
    }

    /// Adds a diagnostic at the end.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Mistakes that were found and are not among those kept.
    pub fn more(&self) -> usize {
        self.1
    }

    /// There is at least one error.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }

    /// `value` when there is no error, else the errors in the order of lines.
    pub fn or<T>(mut self, value: T) -> Result<T, Diagnostics> {
        if self.has_errors() {
            self.0.sort_by(|a, b| a.order().cmp(&b.order()));
            self.0.dedup();
            self.1 += self.0.len().saturating_sub(KEPT);
            self.0.truncate(KEPT);
            self.0 = self.0.into_iter().map(Diagnostic::located).collect();
            Err(self)
        } else {
            Ok(value)
        }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(one: Diagnostic) -> Diagnostics {
        Diagnostics(vec![one.located()], 0)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{diagnostic}")?;
        }
        if self.1 > 0 {
            write!(f, "\n\nerror: and {} more mistakes, which are not shown", self.1)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(text: &str, range: Range<usize>) -> Place {
        Place { source: Arc::new(Source::new("hosts.toml", text)), range }
    }

    #[test]
    fn carets_stand_under_the_key() {
        let text = "[[host]]\nname = \"a\"\n\n\n\n\ngpu = 2\n";
        let at = text.find("gpu").unwrap();
        let shown = Diagnostic::at(&place(text, at..at + 3), "unknown key `gpu`")
            .label("unknown key")
            .hint("did you mean `gpus`?")
            .to_string();
        let expected = "error: unknown key `gpu`\n --> hosts.toml:7:1\n  |\n7 | gpu = 2\n  | ^^^ unknown key\n  = hint: did you mean `gpus`?";
        assert_eq!(shown, expected);
    }

    #[test]
    fn tabs_and_wide_characters_do_not_shift_the_carets() {
        let text = "\tname = \"北京\" ; x";
        let at = text.find('x').unwrap();
        let shown = Diagnostic::at(&place(text, at..at + 1), "stray").to_string();
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[4].find('^').unwrap();
        let x = lines[3].find('x').unwrap();
        // Both ideographs take 2 cells and 3 bytes.
        assert_eq!(caret, x - 2);
    }

    #[test]
    fn escape_codes_of_a_file_are_not_printed() {
        let text = "a = \"\u{1b}[2J\"\n";
        let shown = Diagnostic::at(&place(text, 0..1), "bad \u{1b}[31m").to_string();
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn errors_are_ordered_by_line_and_never_repeated() {
        let text = "a\nb\n";
        let mut all = Diagnostics::new();
        for range in [2..3, 0..1, 2..3] {
            all.push(Diagnostic::at(&place(text, range), "bad"));
        }
        let lines: Vec<u32> =
            all.or(()).unwrap_err().0.iter().filter_map(|d| d.span).map(|s| s.line).collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn a_hundred_thousand_mistakes_are_counted_and_the_first_hundred_kept() {
        for text in ["x\n".repeat(100_000), "x ".repeat(100_000)] {
            let source = Arc::new(Source::new("hosts.toml", text));
            let mut all = Diagnostics::new();
            for at in 0..100_000 {
                let range = 2 * at..2 * at + 1;
                all.push(Diagnostic::at(&Place { source: source.clone(), range }, format!("mistake {at}")));
            }
            let all = all.or(()).unwrap_err();
            assert_eq!((all.0.len(), all.more()), (100, 99_900));
            assert!(all.to_string().ends_with("and 99900 more mistakes, which are not shown"));
        }
    }

    proptest! {
        #[test]
        fn any_range_of_any_text_can_be_shown(text in "\\PC{0,40}(\n\\PC{0,300}){0,3}", start in 0usize..400, len in 0usize..400) {
            let shown = Diagnostic::at(&place(&text, start..start + len), "bad").to_string();
            prop_assert!(shown.contains('^'));
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
