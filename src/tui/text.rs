//! Numbers, times and strings as people read them. Pure.

use crate::theme::Glyphs;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands where nothing is known.
pub const NONE: &str = "-";

/// `1,228,800`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// [`thousands`] where it fits in `width` cells, else [`si`].
pub fn count(n: u64, width: usize) -> String {
    let text = thousands(n);
    if text.len() <= width { text } else { si(n as f64) }
}

/// Four significant digits with `k`, `M`, `G`, `T`: `816`, `12.4k`, `1.23M`.
pub fn si(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        return NONE.into();
    }
    let (scaled, unit) = match size {
        s if s < 999.5 => return value(x),
        s if s < 999.95e3 => (x / 1e3, "k"),
        s if s < 999.95e6 => (x / 1e6, "M"),
        s if s < 999.95e9 => (x / 1e9, "G"),
        s if s < 999.95e12 => (x / 1e12, "T"),
        _ => return format!("{x:.1e}"),
    };
    if scaled.abs() < 10.0 { format!("{scaled:.2}{unit}") } else { format!("{scaled:.1}{unit}") }
}

/// A measurement: about four significant digits, thousands with separators.
pub fn value(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        NONE.into()
    } else if x == 0.0 {
        "0".into()
    } else if !(1e-3..1e7).contains(&size) {
        format!("{x:.1e}")
    } else if size < 1.0 {
        format!("{x:.4}")
    } else if size < 10.0 {
        format!("{x:.3}")
    } else if size < 1000.0 {
        if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.1}") }
    } else {
        let sign = if x < 0.0 { "-" } else { "" };
        format!("{sign}{}", thousands(size.round() as u64))
    }
}

/// Binary multiples, as htop and nvidia-smi count: `312M`, `1.2G`, `71.2G`.
pub fn bytes(n: u64) -> String {
    let mut size = n as f64;
    let mut unit = "B";
    for next in ["K", "M", "G", "T", "P"] {
        if size < 999.5 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if unit == "B" || unit == "K" || size >= 99.95 {
        format!("{size:.0}{unit}")
    } else {
        format!("{size:.1}{unit}")
    }
}

/// A span of time: `400ms`, `5.2s`, `12s`, `12m 34s`, `3h 05m`, `2d 04h`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..10 => format!("{}.{}s", s, ms % 1000 / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// [`duration`] of seconds; `-` when that is no time.
pub fn seconds(s: f64) -> String {
    if s.is_finite() && s >= 0.0 { duration((s * 1000.0) as u64) } else { NONE.into() }
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

/// `1 rank`, `2 ranks`.
pub fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{} {what}s", thousands(n as u64)) }
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

/// A line that is safe to show: escape sequences and control characters taken out, tabs widened. What a program prints must never
/// reach the terminal as a command.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => match chars.peek() {
                Some('[') => {
                    chars.next();
                    while chars.next_if(|c| !('\x40'..='\x7e').contains(c)).is_some() {}
                    chars.next();
                }
                Some(']') => while chars.next_if(|c| *c != '\x07' && *c != '\x1b').is_some() {},
                _ => {
                    chars.next();
                }
            },
            '\t' => out.push_str(&" ".repeat(4 - out.width() % 4)),
            // A carriage return rewinds the line: what follows replaces it, as progress bars mean it.
            '\r' if chars.peek().is_some() => out.clear(),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// `text` broken at spaces into pieces of at most `cells`; words longer than that are cut. Never empty.
pub fn wrap(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_inclusive(' ') {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(1_228_800), "1,228,800");
        assert_eq!(thousands(12), "12");
        assert_eq!(
            [si(816.0), si(12_400.0), si(1.2288e6), si(999_960.0)],
            ["816", "12.4k", "1.23M", "1.00M"]
        );
        assert_eq!(
            [value(0.03125), value(212.44), value(-1632.0), value(2e-5)],
            ["0.0312", "212.4", "-1,632", "2.0e-5"]
        );
        assert_eq!(
            [bytes(512), bytes(312 << 20), bytes(1_288_490_189), bytes(76_450_000_000)],
            ["512B", "312M", "1.2G", "71.2G"]
        );
        assert_eq!([duration(400), duration(754_000), duration(11_107_000)], ["400ms", "12m 34s", "3h 05m"]);
        assert_eq!([clock(12_000), clock(11_107_000)], ["+  0:12", "+3:05:07"]);
        assert_eq!([value(f64::NAN), seconds(f64::INFINITY), si(f64::NAN)], ["-", "-", "-"]);
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
    fn programs_cannot_drive_the_terminal() {
        assert_eq!(clean("\x1b[31mred\x1b[0m \x1b]0;title\x07done"), "red done");
        assert_eq!(clean("10%\r20%\r"), "20%");
        assert_eq!(clean("a\tb\x00\x1b"), "a   b");
    }

    #[test]
    fn words_wrap() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
