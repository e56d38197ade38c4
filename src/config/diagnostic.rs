//! Errors that point at the line to change. Invariants:
//! - The output contains no control characters of the quoted file, so that a file cannot drive the terminal.
//! - Carets are below their text, also after tabs and wide characters.

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use rankdeck_types::hidden;
use rankdeck_types::words::masked;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Cells of an output line; longer source lines are cut around the carets.
const LINE_CELLS: usize = 160;

/// A text that the user wrote: a file, or one `--set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceText {
    /// Path as the user gave it, or `--set`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Start of each line, computed on first use.
    lines: OnceLock<Vec<usize>>,
}

impl SourceText {
    /// Creates a source from its name and text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> SourceText {
        SourceText { name: name.into(), text: text.into(), lines: OnceLock::new() }
    }

    /// Returns the line of a byte, from 1.
    fn line_at(&self, at: usize) -> u32 {
        let begins = || {
            let after = self.text.match_indices('\n').map(|(at, _)| at + 1);
            std::iter::once(0).chain(after).collect::<Vec<_>>()
        };
        clamp(self.lines.get_or_init(begins).partition_point(|begin| *begin <= at))
    }
}

/// A byte range of a [`SourceText`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpan {
    pub source: Arc<SourceText>,
    /// Bytes of the text.
    pub range: Range<usize>,
}

impl SourceSpan {
    /// Returns the line of its start, from 1.
    pub fn line(&self) -> u32 {
        self.source.line_at(floor_char(&self.source.text, self.range.start))
    }
}

/// DiagnosticSeverity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiagnosticSeverity {
    /// Stops the command.
    Error,
    /// Does not stop the command.
    Warning,
}

/// A range of one line, in characters from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineSpan {
    /// Line in the file, from 1.
    pub line: u32,
    /// First character.
    pub column: u32,
    /// Characters, at least 1.
    pub len: u32,
}

/// An error or a warning, with its position and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: DiagnosticSeverity,
    /// The message, lower case, without a period.
    pub message: String,
    /// Path of the file, or `--set`.
    pub file: String,
    /// Position; `None` for the file as a whole.
    pub span: Option<LineSpan>,
    /// The line that the span is on.
    pub source_line: Option<String>,
    /// Label of the carets; may be empty.
    pub label: String,
    /// The fix; may be empty.
    pub hint: String,
    /// Source of `span` and `source_line`, which are computed only for printed diagnostics.
    place: Option<SourceSpan>,
}

impl Diagnostic {
    /// Creates an error about a whole file.
    pub(crate) fn about_file(file: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: DiagnosticSeverity::Error,
            message: message.into(),
            file: file.into(),
            span: None,
            source_line: None,
            label: String::new(),
            hint: String::new(),
            place: None,
        }
    }

    /// Creates an error about a span.
    pub fn at(place: &SourceSpan, message: impl Into<String>) -> Diagnostic {
        let file = place.source.name.clone();
        Diagnostic { place: Some(place.clone()), ..Diagnostic::about_file(file, message) }
    }

    /// Computes line and columns.
    pub(crate) fn located(mut self) -> Diagnostic {
        if let (Some(place), None) = (&self.place, &self.span) {
            let (span, line) = locate(&place.source, &place.range);
            (self.span, self.source_line) = (Some(span), Some(hidden::line(&line)));
        }
        self
    }

    /// Returns the span in bytes.
    pub(super) fn place(&self) -> Option<&SourceSpan> {
        self.place.as_ref()
    }

    /// What is wrong at a line comes before what a file lacks.
    fn order(&self) -> (&str, bool, Option<usize>) {
        (&self.file, self.place.is_none(), self.place.as_ref().map(|place| place.range.start))
    }

    /// Sets the label of the carets.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    /// Sets the hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = hint.into();
        self
    }
}

/// Returns the line and columns of a byte range; clamps to the end of the text.
fn locate(source: &SourceText, range: &Range<usize>) -> (LineSpan, String) {
    let text = source.text.as_str();
    let start = floor_char(text, range.start);
    let end = floor_char(text, range.end).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let number = source.line_at(line_start);
    let line = text[line_start..line_end].trim_end_matches('\r');
    let column = text[line_start..start].chars().count() + 1;
    let len = text[start..end.min(line_start + line.len()).max(start)].chars().count().max(1);
    (LineSpan { line: number, column: clamp(column), len: clamp(len) }, line.to_owned())
}

fn floor_char(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn clamp(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the byte of a character of `line`.
fn byte_at(line: &str, character: usize) -> usize {
    line.char_indices().nth(character).map_or(line.len(), |(at, _)| at)
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.span.is_none() && self.place.is_some() {
            return self.clone().located().fmt(f);
        }
        let [message, file, label] = [&self.message, &self.file, &self.label].map(|text| masked(text, '\0'));
        let hint = masked(&self.hint, '\n');
        let line = self.source_line.as_deref().unwrap_or_default();
        let level = match self.severity {
            DiagnosticSeverity::Error => Level::ERROR,
            DiagnosticSeverity::Warning => Level::WARNING,
        };
        let title = level.primary_title(&message);
        let near;
        let mut report = match self.span {
            Some(span) => {
                let first = span.column as usize - 1;
                let last = first + span.len as usize;
                // The rest of a very long line takes time, and is not shown.
                near = masked(&line[..byte_at(line, last + LINE_CELLS)], '\t');
                let range = byte_at(&near, first)..byte_at(&near, last);
                let carets =
                    AnnotationKind::Primary.span(range).label(Some(label).filter(|label| !label.is_empty()));
                title.element(
                    Snippet::source(&near).line_start(span.line as usize).path(&file).annotation(carets),
                )
            }
            None => title.element(Origin::path(&file)),
        };
        if !hint.is_empty() {
            report = report.element(Level::HELP.with_name("hint").message(&hint));
        }
        let text = Renderer::plain().term_width(LINE_CELLS).render(&[report]);
        for (number, line) in text.lines().enumerate() {
            write!(f, "{}{}", if number == 0 { "" } else { "\n" }, line.trim_end())?;
        }
        Ok(())
    }
}

/// Most diagnostics of one load; the others are counted.
const MAX_DIAGNOSTICS: usize = 100;

/// Diagnostics in the order of files and lines, those of a whole file after its lines, and the number of those that were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics(pub Vec<Diagnostic>, usize);

impl Diagnostics {
    /// Creates an empty list.
    pub fn new() -> Diagnostics {
        Diagnostics::default()
    }

    /// Adds a diagnostic at the end.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Returns the number of dropped diagnostics.
    pub fn more(&self) -> usize {
        self.1
    }

    /// Returns whether there is an error.
    pub(crate) fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == DiagnosticSeverity::Error)
    }

    /// Returns `value` if there is no error, else the diagnostics in the order of lines.
    pub fn or<T>(mut self, value: T) -> Result<T, Diagnostics> {
        if self.has_errors() {
            self.0.sort_by(|a, b| a.order().cmp(&b.order()));
            self.0.dedup();
            self.1 += self.0.len().saturating_sub(MAX_DIAGNOSTICS);
            self.0.truncate(MAX_DIAGNOSTICS);
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
            write!(f, "\n\nerror: {} more errors are not shown", self.1)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rankdeck_types::words::controls_terminal;

    fn place(text: &str, range: Range<usize>) -> SourceSpan {
        SourceSpan { source: Arc::new(SourceText::new("hosts.toml", text)), range }
    }

    #[test]
    fn carets_are_below_the_key() {
        let text = "[[host]]\nname = \"a\"\n\n\n\n\ngpu = 2\n";
        let at = text.find("gpu").unwrap();
        let shown = Diagnostic::at(&place(text, at..at + 3), "unknown key `gpu`")
            .label("unknown key")
            .hint("a similar key exists: `gpus`")
            .to_string();
        let expected = "error: unknown key `gpu`\n --> hosts.toml:7:1\n  |\n7 | gpu = 2\n  | ^^^ unknown key\n  |\n  = hint: a similar key exists: `gpus`";
        assert_eq!(shown, expected);
    }

    #[test]
    fn tabs_and_wide_characters_keep_carets_aligned() {
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
    fn escape_codes_are_replaced() {
        let text = "a = \"\u{1b}[2J\"\n";
        let shown = Diagnostic::at(&place(text, 0..1), "bad \u{1b}[31m").to_string();
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn errors_are_sorted_and_deduplicated() {
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
    fn errors_beyond_the_limit_are_counted() {
        for text in ["x\n".repeat(100_000), "x ".repeat(100_000)] {
            let source = Arc::new(SourceText::new("hosts.toml", text));
            let mut all = Diagnostics::new();
            for at in 0..100_000 {
                let range = 2 * at..2 * at + 1;
                all.push(Diagnostic::at(
                    &SourceSpan { source: source.clone(), range },
                    format!("mistake {at}"),
                ));
            }
            let all = all.or(()).unwrap_err();
            assert_eq!((all.0.len(), all.more()), (100, 99_900));
            assert!(all.to_string().contains("99900"));
        }
    }

    proptest! {
        #[test]
        fn any_range_of_any_text_is_rendered(text in "\\PC{0,40}(\n\\PC{0,300}){0,3}", start in 0usize..400, len in 0usize..400) {
            let shown = Diagnostic::at(&place(&text, start..start + len), "bad").to_string();
            prop_assert!(shown.contains('^'));
            prop_assert!(!shown.chars().any(|c| controls_terminal(c) && c != '\n'));
        }
    }
}
