//! Fixes for invalid TOML: words and numbers of other languages, quotes, incomplete lines.

/// Returns the hint for a syntax error: `message` is the parser's, `line` the line of the error.
pub fn hint(message: &str, line: &str) -> String {
    let line = line.split(" #").next().unwrap_or_default().trim();
    if message.contains("duplicate key") {
        return "remove one of the lines: a table has each key once".into();
    }
    if let Some(fix) = assignment(line).and_then(|(key, value)| fix_value(key, value, message)) {
        return fix;
    }
    if line.starts_with('[') && !line.contains('=') && !line.ends_with(']') {
        return format!("write `[{}]`, alone on its line", line.trim_matches(['[', ']', ' ']));
    }
    let hint = match message {
        text if text.contains("string") => {
            "close the string on its line with the quote that opens it: `name = \"a\"`"
        }
        text if text.contains("recurs") => "reduce the number of nested brackets",
        text if text.contains("array") => "separate items with commas and close the array with `]`: `[0, 1]`",
        text if text.contains("expected newline") => "write one `key = value` per line",
        _ => "write `key = value`, such as `name = \"a\"`",
    };
    hint.into()
}

/// Returns the key and value of a line; accepts YAML's colon.
pub(crate) fn assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=').or_else(|| line.split_once(": "))?;
    let key = key.trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_key.then(|| (key, value.trim()))
}

/// Returns the hint for a line with a key and an invalid value.
fn fix_value(key: &str, value: &str, message: &str) -> Option<String> {
    let write = |value: &str| Some(format!("write `{key} = {value}`"));
    if let Some(value) = value.strip_prefix('=') {
        return write(value.trim_start_matches(['=', ' ']));
    }
    if let Some(word) = foreign_keyword(value) {
        return match word {
            ForeignKeyword::Flag(flag) => write(&flag.to_string()),
            ForeignKeyword::Nothing => Some(format!("remove `{key}`: TOML has no null")),
        };
    }
    if let Some(number) = number(value).filter(|number| number.fract() == 0.0 && number.abs() < 1e15) {
        return write(&format!("{number:.0}"));
    }
    if value.contains(CURLY) {
        return write(&value.replace(CURLY, "\""));
    }
    if message.contains("escape") || message.contains("unicode value") {
        // Single quotes have no escapes.
        return match value.contains('\'') {
            true => Some("write each `\\` twice".into()),
            false => write(&value.replace('"', "'")),
        };
    }
    let is_plain =
        |text: &str| !text.is_empty() && !text.contains(['"', '\'', '[', ']', '{', '}', '(', ')', '=']);
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

/// Typographic quotes.
const CURLY: [char; 4] = ['\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}'];

/// A keyword of another language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignKeyword {
    /// `true` or `false`.
    Flag(bool),
    /// `None`, `null` and the like.
    Nothing,
}

/// Returns the keyword of another language, if it is one.
pub(crate) fn foreign_keyword(text: &str) -> Option<ForeignKeyword> {
    Some(match text {
        "True" | "TRUE" | "yes" | "Yes" | "on" | "On" => ForeignKeyword::Flag(true),
        "False" | "FALSE" | "no" | "No" | "off" | "Off" => ForeignKeyword::Flag(false),
        "None" | "none" | "null" | "NULL" | "nil" | "~" => ForeignKeyword::Nothing,
        _ => return None,
    })
}

/// Parses a number in common notations: `10k`, `1M`, `1,000,000`, `1e6`, `0,99`, `10^6`, `64*64`, `3/4`,
/// `50%`. `None` for a list such as `64,128`.
pub fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let value = simple(text).or_else(|| {
        let (base, power) = text.split_once("**").or_else(|| text.split_once('^'))?;
        let power: i32 = power.trim().parse().ok().filter(|power| (0..=64).contains(power))?;
        Some(simple(base.trim())?.powi(power))
    });
    let value = value
        .or_else(|| {
            text.split('*').map(|part| simple(part.trim())).try_fold(1.0, |all, one| Some(all * one?))
        })
        .or_else(|| {
            let (above, below) = text.split_once('/')?;
            Some(simple(above.trim())? / simple(below.trim()).filter(|below| *below != 0.0)?)
        });
    value.filter(|value| value.is_finite())
}

/// Parses a number without arithmetic.
fn simple(text: &str) -> Option<f64> {
    let is_digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let is_plain = |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if is_plain(text)
        && let Ok(value) = text.replace('_', "").parse::<f64>()
    {
        return Some(value);
    }
    for sign in [',', ' ', '\''] {
        let mut parts = text.split(sign);
        let (first, rest): (_, Vec<&str>) = (parts.next()?, parts.collect());
        // `64,128` is a list; a group such as `000` is not a separate number.
        let grouped = !rest.is_empty()
            && rest.iter().all(|part| part.len() == 3 && is_digits(part))
            && (sign != ',' || rest.iter().any(|part| part.starts_with('0')));
        if grouped && is_digits(first) && first.len() <= 3 && !first.starts_with('0') {
            return format!("{first}{}", rest.concat()).parse().ok();
        }
        // Decimal comma: `0,99`.
        if let (',', [fraction]) = (sign, rest.as_slice())
            && first.trim_start_matches('-') == "0"
            && is_digits(fraction)
        {
            return format!("{first}.{fraction}").parse().ok();
        }
    }
    let (digits, scale) = match text.chars().last()? {
        '%' => (&text[..text.len() - 1], 0.01),
        'k' | 'K' => (&text[..text.len() - 1], 1e3),
        'm' | 'M' => (&text[..text.len() - 1], 1e6),
        'g' | 'G' | 'b' | 'B' => (&text[..text.len() - 1], 1e9),
        _ => return None,
    };
    let digits = digits.trim_end();
    let is_number = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value = digits.parse::<f64>().ok().filter(|_| is_number)? * scale;
    // 0.01 has no exact binary form.
    Some(if scale < 1.0 { (value * 1e12).round() / 1e12 } else { value })
}

/// Parses `10m`, `1h30m`, `90 s`, `500ms` and `1:30:00` into seconds.
pub fn seconds(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split(':').collect();
    if let [_, _] | [_, _, _] = parts.as_slice() {
        let numbers: Option<Vec<u32>> = parts.iter().map(|part| part.trim().parse().ok()).collect();
        return Some(numbers?.into_iter().fold(0.0, |all, part| all * 60.0 + f64::from(part)));
    }
    let (mut rest, mut all) = (text.trim(), None);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (digits, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let scale = match unit.to_lowercase().as_str() {
            "ms" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return None,
        };
        all = Some(all.unwrap_or(0.0) + digits.parse::<f64>().ok()? * scale);
        rest = behind.trim_start_matches([' ', ',']);
    }
    all
}

/// Parses `25MB`, `25 MiB` and `1G` into MiB.
pub fn mebibytes(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (digits, unit) = text.split_at(end);
    let scale = match unit.trim().to_lowercase().as_str() {
        "m" | "mb" | "mib" => 1.0,
        "g" | "gb" | "gib" => 1024.0,
        "k" | "kb" | "kib" => 1.0 / 1024.0,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * scale)
}

/// Returns whether the text is a TOML number.
pub(crate) fn is_toml_number(text: &str) -> bool {
    let is_float = |text: &str| {
        text.parse::<toml::Table>().is_ok_and(|table| table["a"].is_integer() || table["a"].is_float())
    };
    !text.contains(['\n', '#']) && is_float(&format!("a={text}"))
}

/// Splits a line into words as a shell does; `None` for unclosed quotes and shell syntax.
pub fn words(line: &str) -> Option<Vec<String>> {
    let (mut all, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().push(letters.next()?),
            ('$' | '`', None | Some('"')) => return None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            ('&' | '|' | ';' | '<' | '>', None) => return None,
            (letter, None) if letter.is_whitespace() => all.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    all.extend(word);
    quote.is_none().then_some(all)
}

/// Parses the variables of `A=1 B=2`, `export A=1`, and of lists with commas or semicolons.
pub fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let words = words(&text.replace(';', " "))?;
    let words = words.iter().filter(|word| *word != "export").map(|word| word.trim_end_matches(','));
    let pairs: Option<Vec<(String, String)>> = words
        .filter(|word| !word.is_empty())
        .flat_map(|word| {
            // `A=1,B=2` are two; `A=1,2` is one.
            let parts: Vec<&str> = word.split(',').collect();
            let apart = parts.iter().all(|part| part.split_once('=').is_some_and(|(name, _)| is_name(name)));
            if apart { parts } else { vec![word] }
        })
        .map(|word| {
            let (name, value) = word.split_once('=').filter(|(name, _)| is_name(name))?;
            Some((name.to_owned(), value.to_owned()))
        })
        .collect();
    pairs.filter(|pairs| !pairs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_suffixes_and_commas_are_parsed() {
        for (text, value) in [
            ("1M", 1e6),
            ("2.5k", 2500.0),
            ("1,000,000", 1e6),
            ("1,050", 1050.0),
            ("3b", 3e9),
            ("1000", 1000.0),
            ("0,5", 0.5),
        ] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for text in [
            "64,128",
            "128,256,512",
            "k",
            "M1",
            "infk",
            "-1k",
            "",
            "1e3k",
            "inf",
            "nan",
            "1e999",
            "9^9999",
            "1/0",
            "1,5",
            "é",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn syntax_error_suggests_the_line_to_write() {
        for (message, line, expected) in [
            ("invalid boolean", "a = True  # yes", "write `a = true`"),
            ("invalid float", "a = None", "remove `a`: TOML has no null"),
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
            ("invalid key", "", "write `key = value`, such as `name = \"a\"`"),
        ] {
            assert_eq!(hint(message, line), expected, "{message}: {line}");
        }
    }
}
