//! The severity of log lines, as common log formats write it. Pure.

/// Most bytes of a line that are read for its level.
const HEAD_BYTES: usize = 160;
/// Most words of it.
const HEAD_WORDS: usize = 14;

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Debug output.
    Debug,
    /// Everything else.
    #[default]
    Info,
    Warn,
    Error,
}

impl Level {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Level::Debug => "all",
            Level::Info => "info",
            Level::Warn => "warnings",
            Level::Error => "errors",
        }
    }

    /// The level of that name.
    pub fn named(name: &str) -> Option<Level> {
        match name {
            "all" | "debug" => Some(Level::Debug),
            "info" => Some(Level::Info),
            "warn" | "warning" | "warnings" => Some(Level::Warn),
            "error" | "errors" => Some(Level::Error),
            _ => None,
        }
    }

    /// The next one to show from on.
    pub fn next(self) -> Level {
        match self {
            Level::Debug | Level::Info => Level::Warn,
            Level::Warn => Level::Error,
            Level::Error => Level::Debug,
        }
    }

    /// The level of a line, by the words with which Python's logging, glog, Rust and shells begin theirs.
    pub fn of(text: &str) -> Level {
        let text = bare(text);
        let mut end = text.len().min(HEAD_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let head = &text[..end];
        if head.starts_with("Traceback (most recent") || head.contains("panicked at") {
            return Level::Error;
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = head;
        for _ in 0..HEAD_WORDS {
            rest = rest.trim_start_matches(|c: char| !is_word(c));
            let word = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
            if word.is_empty() {
                break;
            }
            rest = &rest[word.len()..];
            if let Some(level) = of_word(word, rest.starts_with(':')) {
                return level;
            }
        }
        Level::Info
    }
}

/// The level of a word; `named` ones are followed by a colon, as in `error: ...`.
fn of_word(word: &str, named: bool) -> Option<Level> {
    match word {
        "ERROR" | "CRITICAL" | "FATAL" | "PANIC" => return Some(Level::Error),
        "WARNING" | "WARN" => return Some(Level::Warn),
        "INFO" | "NOTICE" => return Some(Level::Info),
        "DEBUG" | "TRACE" => return Some(Level::Debug),
        "error" | "Error" | "fatal" | "Fatal" | "critical" | "panic" if named => return Some(Level::Error),
        "warning" | "Warning" | "warn" if named => return Some(Level::Warn),
        _ => {}
    }
    if named && (word.ends_with("Error") || word.ends_with("Exception")) {
        return Some(Level::Error);
    }
    if named && word.ends_with("Warning") {
        return Some(Level::Warn);
    }
    // glog: E1123.
    let (first, digits) = word.split_at_checked(1)?;
    if digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return match first {
            "E" | "F" => Some(Level::Error),
            "W" => Some(Level::Warn),
            "I" => Some(Level::Info),
            _ => None,
        };
    }
    None
}

/// A line without the rank that PyTorch puts before it: `[rank0]: `.
pub fn bare(text: &str) -> &str {
    let rest = text.strip_prefix("[rank").and_then(|rest| rest.split_once("]:"));
    rest.map_or(text, |(_, rest)| rest.strip_prefix(' ').unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_of_common_formats_is_read() {
        for (text, level) in [
            ("2026-11-23 07:00:01,123 - trainer - WARNING - slow", Level::Warn),
            ("ERROR:root:no", Level::Error),
            ("[rank3]:E1123 07:44:50.1 1234 process_group.cpp:1 x", Level::Error),
            ("[rank3]: RuntimeError: CUDA out of memory", Level::Error),
            ("torch.cuda.OutOfMemoryError: CUDA out of memory", Level::Error),
            ("W1123 07:44:50 x", Level::Warn),
            ("/a/b.py:12: UserWarning: deprecated", Level::Warn),
            ("warning: environment 3 was reset twice", Level::Warn),
            ("Traceback (most recent call last):", Level::Error),
            ("thread 'main' panicked at src/main.rs:1", Level::Error),
            ("[DEBUG] x", Level::Debug),
            ("INFO no ERROR here", Level::Info),
            ("iter 5 eval_error 0.1 errors 0 error 0.5", Level::Info),
            ("value_loss 0.1 td_error 3", Level::Info),
            ("épisode 5", Level::Info),
            ("", Level::Info),
        ] {
            assert_eq!(Level::of(text), level, "{text}");
        }
    }
}
