//! A filter for lines, as it is typed: a regular expression or a text. Pure.

use rankdeck_proto::search::compile;
use regex::Regex;

/// A filter: a regular expression, or a text if it is not a valid one. Without capital letters it matches in any
/// case; a leading `!` inverts.
#[derive(Debug, Clone, Default)]
pub struct TextFilter {
    pattern: Option<Regex>,
    /// Lines are kept that do not match.
    pub invert: bool,
    /// The text is not a valid regular expression and is searched literally.
    pub literal: bool,
}

impl TextFilter {
    /// As typed.
    pub fn new(typed: &str) -> TextFilter {
        let (invert, needle) = match typed.strip_prefix('!') {
            Some(rest) => (!rest.is_empty(), rest),
            None => (false, typed),
        };
        if needle.is_empty() {
            return TextFilter::default();
        }
        let found = compile(needle).ok();
        let literal = found.is_none();
        let pattern = found.or_else(|| compile(&regex::escape(needle)).ok());
        TextFilter { pattern, invert, literal }
    }

    /// Nothing was typed.
    pub fn is_empty(&self) -> bool {
        self.pattern.is_none()
    }

    /// As a search in files has it.
    pub fn pattern(&self) -> &str {
        self.pattern.as_ref().map_or("", Regex::as_str)
    }

    /// It lets this text through.
    pub fn keeps(&self, text: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text) != self.invert)
    }

    /// What to mark in a line that is shown: bytes from and to.
    pub fn marks(&self, text: &str) -> Vec<(usize, usize)> {
        let Some(pattern) = self.pattern.as_ref().filter(|_| !self.invert) else { return Vec::new() };
        let found = pattern.find_iter(text).map(|found| (found.start(), found.end()));
        found.filter(|(from, to)| from < to).take(64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_filter_matches_a_regex_or_the_text_itself() {
        let keeps = |typed: &str, text: &str| TextFilter::new(typed).keeps(text);
        assert!(keeps("nan|inf", "loss NaN") && keeps("nan|inf", "inf") && !keeps("nan|inf", "loss 1"));
        assert!(keeps("ERROR", "an ERROR") && !keeps("ERROR", "an error"), "capitals are meant as such");
        assert!(keeps("!iter", "loss") && !keeps("!iter", "iter 5") && keeps("!", "anything"));
        assert!(keeps("loss (nan", "x loss (nan y") && TextFilter::new("loss (nan").literal);
        assert_eq!(TextFilter::new("a.").marks("ab xac"), [(0, 2), (4, 6)]);
        assert!(TextFilter::new("!a").marks("ab").is_empty() && TextFilter::new("x*").marks("ab").is_empty());
    }
}
