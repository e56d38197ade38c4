//! Cuts, pads and wraps text by terminal cells, and formats numbers to fit a column.

use crate::theme::Glyphs;
use rankdeck_types::words;
pub use rankdeck_types::words::NONE;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// [`words::count`] where it fits in `width` cells, else [`si`].
pub fn count_in(n: u64, width: usize) -> String {
    let text = words::count(n);
    if text.len() <= width { text } else { si(n as f64) }
}

/// Four significant digits with `k`, `M`, `G`, `T`: `816`, `12.4k`, `1.23M`.
pub fn si(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        return not_finite(x).into();
    }
    let (scaled, unit) = match size {
        s if (s == 0.0 || (10.0..999.5).contains(&s)) && x.fract() == 0.0 => return format!("{x:.0}"),
        s if s < 999.5 => return value(x),
        s if s < 999.95e3 => (x / 1e3, "k"),
        s if s < 999.95e6 => (x / 1e6, "M"),
        s if s < 999.95e9 => (x / 1e9, "G"),
        s if s < 999.95e12 => (x / 1e12, "T"),
        _ => return format!("{x:.1e}"),
    };
    if scaled.abs() < 9.995 { format!("{scaled:.2}{unit}") } else { format!("{scaled:.1}{unit}") }
}

fn not_finite(x: f64) -> &'static str {
    match x {
        x if x.is_nan() => "nan",
        x if x > 0.0 => "inf",
        _ => "-inf",
    }
}

/// The newest of a series where there is little room: a [`value`], with a unit from a thousand on.
pub fn short(x: f64) -> String {
    if x.abs() < 999.5 { value(x) } else { si(x) }
}

/// A measurement: about four significant digits, thousands with separators. Its size alone decides about the
/// decimals, so that values of a series have them or not, whole or not.
pub fn value(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        not_finite(x).into()
    } else if x == 0.0 {
        "0".into()
    } else if !(1e-3..1e7).contains(&size) {
        format!("{x:.1e}")
    } else if size < 1.0 {
        format!("{x:.4}")
    } else if size < 10.0 {
        format!("{x:.3}")
    } else if size < 1000.0 {
        format!("{x:.1}")
    } else {
        let sign = if x < 0.0 { "-" } else { "" };
        format!("{sign}{}", words::count(size.round() as u64))
    }
}

/// Numbers of one axis, with enough digits to differ.
pub fn apart<const N: usize>(values: [f64; N]) -> [String; N] {
    let distinct = |texts: &[String; N]| {
        (1..N).all(|i| texts[i] != texts[i - 1] || values[i].to_bits() == values[i - 1].to_bits())
    };
    let plain = values.map(si);
    let size = values.iter().copied().map(f64::abs).fold(0.0, f64::max);
    if distinct(&plain) || !size.is_finite() {
        return plain;
    }
    let (scale, unit) = match size {
        s if s >= 1e12 => (1e12, "T"),
        s if s >= 1e9 => (1e9, "G"),
        s if s >= 1e6 => (1e6, "M"),
        s if s >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let texts = (3..=9).map(|digits| values.map(|x| format!("{:.digits$}{unit}", x / scale)));
    texts.into_iter().find(distinct).unwrap_or(plain)
}

/// Time since the start, for columns: `+  0:12`, `+ 12:34`, `+3:05:07`.
pub fn clock(ms: u64) -> String {
    let s = ms / 1000;
    if s < 3600 {
        format!("+{:>3}:{:02}", s / 60, s % 60)
    } else {
        format!("+{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    }
}

/// Cells that `text` takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` cut to `cells`, with an ellipsis where something was cut.
pub fn cut(text: &str, cells: usize, glyphs: Glyphs) -> String {
    if text.width() <= cells {
        return text.into();
    }
    let mark = glyphs.pick("…", "~");
    let mut taken = String::new();
    let mut used = 0;
    for c in text.chars() {
        let w = c.width().unwrap_or(0);
        if used + w + 1 > cells {
            break;
        }
        used += w;
        taken.push(c);
    }
    if cells > 0 {
        taken.push_str(mark);
    }
    taken
}

/// The first `cells` characters of a text in ASCII.
pub fn head(text: &str, cells: usize) -> &str {
    text.get(..cells).unwrap_or(text)
}

/// `text` cut or padded on the right to exactly `cells`.
pub fn left(text: &str, cells: usize, glyphs: Glyphs) -> String {
    let mut text = cut(text, cells, glyphs);
    text.extend(std::iter::repeat_n(' ', cells.saturating_sub(text.width())));
    text
}

/// `text` cut or padded on the left to exactly `cells`.
pub fn right(text: &str, cells: usize, glyphs: Glyphs) -> String {
    let text = cut(text, cells, glyphs);
    format!("{}{text}", " ".repeat(cells.saturating_sub(text.width())))
}

/// `text` broken at spaces into pieces of at most `cells`; words longer than that are cut. Never empty.
pub fn wrap(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in units(text) {
        let bare = word.trim_end_matches(' ').width();
        if used > 0 && used + bare > cells {
            lines.push(String::new());
            used = 0;
        }
        for c in word.chars() {
            let w = c.width().unwrap_or(0);
            if used + w > cells {
                if c == ' ' {
                    continue;
                }
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
            used += w;
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

/// Units that stay with their number.
const UNITS: [&str; 6] = ["%", "s", "ms", "min", "h", "W"];

/// Words with the blanks behind them; a number and its unit are one.
fn units(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let blank = |from: usize| rest.get(from..)?.find(' ').map(|at| from + at + 1);
        let first = blank(0).filter(|_| !rest.is_empty());
        let end = match first {
            None if rest.is_empty() => return None,
            None => rest.len(),
            Some(end) => {
                let number = rest[..end].trim_end().ends_with(|c: char| c.is_ascii_digit());
                let next = blank(end).unwrap_or(rest.len());
                let unit = rest[end..next].trim_end().trim_end_matches(|c: char| ",;.:)".contains(c));
                if number && UNITS.contains(&unit) { next } else { end }
            }
        };
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Lines of a point of a list: those below its first stand below its text, not below its sign.
pub fn wrap_point(text: &str, cells: usize) -> Vec<String> {
    let Some(point) = ["• ", "- "].into_iter().find(|sign| text.starts_with(sign)) else {
        return wrap(text, cells);
    };
    let rest = text.strip_prefix(point).unwrap_or(text);
    let lines = wrap(rest, cells.saturating_sub(2)).into_iter().enumerate();
    lines.map(|(i, line)| format!("{}{line}", if i == 0 { point } else { "  " })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_with_its_unit_and_a_point_below_its_text() {
        assert_eq!(wrap("cpu 0 %, in futex", 7), ["cpu", "0 %, in", "futex"]);
        assert_eq!(wrap("since 6.4 s, and", 10), ["since", "6.4 s, and"]);
        assert_eq!(wrap_point("• one two three", 7), ["• one", "  two", "  three"]);
        assert_eq!(wrap_point("one two", 4), ["one", "two"]);
        assert_eq!(wrap("  two  blanks ", 20), ["  two  blanks"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [si(816.0), si(12_400.0), si(1.2288e6), si(999_960.0)],
            ["816", "12.4k", "1.23M", "1.00M"]
        );
        assert_eq!(
            [value(0.03125), value(212.44), value(-1632.0), value(2e-5)],
            ["0.0312", "212.4", "-1,632", "2.0e-5"]
        );
        assert_eq!([clock(12_000), clock(11_107_000)], ["+  0:12", "+3:05:07"]);
        assert_eq!([value(500.0), value(499.7), short(500.0)], ["500.0", "499.7", "500.0"]);
        assert_eq!([si(500.0), si(0.0), short(12_400.0)], ["500", "0", "12.4k"]);
        assert_eq!([value(f64::NAN), si(f64::NAN)], ["nan", "nan"]);
        assert_eq!([value(f64::INFINITY), si(f64::NEG_INFINITY)], ["inf", "-inf"]);
    }

    #[test]
    fn labels_of_an_axis_differ() {
        assert_eq!(apart([0.0, 512e3, 1024e3]), ["0", "512.0k", "1.02M"]);
        assert_eq!(apart([1_020_000.0, 1_021_500.0, 1_023_000.0]), ["1.020M", "1.022M", "1.023M"]);
        assert_eq!(apart([5.0, 5.0]), ["5.000", "5.000"]);
    }

    #[test]
    fn lines_are_cut_by_cells() {
        assert_eq!(cut("rank", 4, Glyphs::Block), "rank");
        assert_eq!(cut("ranks", 4, Glyphs::Block), "ran…");
        assert_eq!(cut("日本語", 4, Glyphs::Ascii), "日~");
        assert_eq!(left("日本語", 4, Glyphs::Ascii), "日~ ");
        assert_eq!(right("7", 3, Glyphs::Block), "  7");
        assert_eq!(cut("x", 0, Glyphs::Block), "");
    }

    #[test]
    fn words_wrap() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
