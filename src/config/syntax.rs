//! What to write instead of a text that is no TOML: words and numbers as other languages have them, quotes,
//! and lines that stop too early.

/// What helps against a syntax error: `message` is the parser's, `line` the line that it is on.
pub fn hint(message: &str, line: &str) -> String {
    let line = line.split(" #").next().unwrap_or_default().trim();
    if message.contains("duplicate key") {
        return "a table has each key once; remove one of the lines".into();
    }
    if let Some(meant) = assignment(line).and_then(|(key, value)| meant(key, value, message)) {
        return meant;
    }
    if line.starts_with('[') && !line.contains('=') && !line.ends_with(']') {
        return format!("write `[{}]`, alone on its line", line.trim_matches(['[', ']', ' ']));
    }
    let told = match message {
        text if text.contains("string") => {
            "a string ends on its line with the quote that it begins with: `name = \"ppo\"`"
        }
        text if text.contains("recurs") => "no value here has as many brackets",
        text if text.contains("array") => "an array ends with `]`: `hidden = [64, 64]`",
        text if text.contains("expected newline") => "write one `key = value` per line",
        _ => "write `key = value`, such as `name = \"ppo\"`",
    };
    told.into()
}

/// A line's key and value; with a colon, as YAML has it, too.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=').or_else(|| line.split_once(": "))?;
    let key = key.trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_key.then(|| (key, value.trim()))
}

/// The line that was meant.
fn meant(key: &str, value: &str, message: &str) -> Option<String> {
    let write = |value: &str| Some(format!("write `{key} = {value}`"));
    if let Some(value) = value.strip_prefix('=') {
        return write(value.trim_start_matches(['=', ' ']));
    }
    if let Some(word) = word(value) {
        return match word {
            Word::Flag(flag) => write(&flag.to_string()),
            Word::Nothing => Some(format!("leave `{key}` out: TOML has no null")),
        };
    }
    if let Some(number) = number(value) {
        return write(&number);
    }
    if value.contains(CURLY) {
        return write(&value.replace(CURLY, "\""));
    }
    if message.contains("escape") || message.contains("unicode value") {
        // In single quotes nothing is an escape.
        return match value.contains('\'') {
            true => Some("write each `\\` twice".into()),
            false => write(&value.replace('"', "'")),
        };
    }
    let is_plain = |text: &str| !text.is_empty() && !text.contains(['"', '\'', '[', ']', '{', '}', '=']);
    let inner = value.trim_matches(['"', '\'']);
    let is_bare = inner == value && (message.contains("quoted") || message.contains("key with no value"));
    let is_open = value.starts_with(['"', '\'']) && value.len() == inner.len() + 1;
    (is_plain(inner) && (is_bare || is_open) && !inner.contains(char::is_control))
        .then(|| {
            write(&if is_bare && inner.parse::<f64>().is_ok() {
                inner.into()
            } else {
                format!("\"{inner}\"")
            })
        })
        .flatten()
}

/// Quotes as word processors write them.
const CURLY: [char; 4] = ['\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}'];

/// A word that other languages have where TOML has another one, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// `true` or `false`.
    Flag(bool),
    /// No value.
    Nothing,
}

/// The word that was meant.
pub fn word(text: &str) -> Option<Word> {
    Some(match text {
        "True" | "TRUE" | "yes" | "Yes" | "on" | "On" => Word::Flag(true),
        "False" | "FALSE" | "no" | "No" | "off" | "Off" => Word::Flag(false),
        "None" | "none" | "null" | "NULL" | "nil" | "~" => Word::Nothing,
        _ => return None,
    })
}

/// `10k`, `1M` and `1,000,000` as digits; `None` for a number that TOML reads, and for what is none.
pub fn number(text: &str) -> Option<String> {
    let mut parts = text.split(',');
    let is_digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let (first, rest): (_, Vec<&str>) = (parts.next()?, parts.collect());
    // `64,128` is a list; a part such as `000` is not a number of its own.
    let grouped = rest.iter().all(|part| part.len() == 3 && is_digits(part))
        && rest.iter().any(|part| part.starts_with('0'));
    if grouped && is_digits(first) && first.len() <= 3 {
        return Some(format!("{first}{}", rest.concat()));
    }
    let scale = match text.chars().last()? {
        'k' | 'K' => 1e3,
        'm' | 'M' => 1e6,
        'g' | 'G' | 'b' | 'B' => 1e9,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value = digits.parse::<f64>().ok().filter(|_| is_number)? * scale;
    (value.fract() == 0.0 && value < 1e15).then(|| format!("{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_suffixes_and_commas_are_told_in_digits() {
        for (text, digits) in [
            ("1M", "1000000"),
            ("2.5k", "2500"),
            ("1,000,000", "1000000"),
            ("1,050", "1050"),
            ("3b", "3000000000"),
        ] {
            assert_eq!(number(text).as_deref(), Some(digits), "{text}");
        }
        for text in
            ["64,128", "128,256,512", "1000", "k", "M1", "1.00001k", "infk", "-1k", "", "1e3k", "9999999999M"]
        {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn the_line_that_was_meant_is_told() {
        for (message, line, told) in [
            ("invalid boolean", "a = True  # yes", "write `a = true`"),
            ("invalid float", "a = None", "leave `a` out: TOML has no null"),
            ("string values must be quoted", "a = ppo", "write `a = \"ppo\"`"),
            ("string values must be quoted", "a = \u{201c}x\u{201d}", "write `a = \"x\"`"),
            ("invalid basic string, expected `\"`", "a = \"x", "write `a = \"x\"`"),
            ("key with no value, expected `=`", "a: 3", "write `a = 3`"),
            ("key with no value, expected `=`", "a: b", "write `a = \"b\"`"),
            ("missing escaped value", "a = [\"C:\\Users\"]", "write `a = ['C:\\Users']`"),
            ("missing escaped value", "a = \"it's \\U\"", "write each `\\` twice"),
            ("unclosed table, expected `]`", "[run", "write `[run]`, alone on its line"),
            (
                "unexpected key or value, expected newline, `#`",
                "a = \"x\" b = 1",
                "write one `key = value` per line",
            ),
            ("extra `=`", "a = = 2", "write `a = 2`"),
            ("invalid key", "", "write `key = value`, such as `name = \"ppo\"`"),
        ] {
            assert_eq!(hint(message, line), told, "{message}: {line}");
        }
    }
}
