//! Formats numbers, times, signals and process states, and cleans untrusted text.
//!
//! All outputs share it, so that a value reads the same on the screen, on a plain line and in a report.

use crate::escape;

/// Placeholder for an unknown value.
pub const NONE: &str = "-";

/// Error of the built-in trainer if its GPU is out of memory.
pub const GPU_FULL: &str = "the GPU is out of memory";
/// Hint for [`GPU_FULL`].
pub const GPU_FULL_HINT: &str = "check its users with `nvidia-smi`; lower env.num_envs, collect.num_steps or learn.batch_size, or \
    start fewer ranks on it; `rankdeck restart RUN` resumes from the latest checkpoint";

/// Error of the built-in trainer if its GPU or the driver fails.
pub const GPU_FAILED: &str = "the GPU failed";
/// Hint for [`GPU_FAILED`].
pub const GPU_HINT: &str = "check `nvidia-smi -q -d ERRORS` and `dmesg | grep -i xid` on the host; reset the GPU or reboot the \
    host; `rankdeck restart RUN` resumes from the latest checkpoint, on other GPUs if you change `gpus`";

/// From here on numbers are written in powers of ten.
const WIDE: f64 = 1e9;

/// Formats a number with separators between thousands: `1,228,800`.
pub fn count(n: u64) -> String {
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

/// Formats a number with its noun: `1 rank`, `2 ranks`.
pub fn plural(n: usize, noun: &str) -> String {
    let ending = match n {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(n as u64))
}

/// Formats a measurement with `decimals` decimals, in powers of ten from 1e9 on: a number of 300 digits would widen
/// every row of a table.
pub fn fixed(value: f64, decimals: usize) -> String {
    match value.abs() {
        size if size.is_finite() && size >= WIDE => format!("{value:.1e}"),
        _ => format!("{value:.decimals$}"),
    }
}

/// Formats a rate per second: `8,123`, below ten with one decimal; [`NONE`] for a value that cannot be a
/// rate.
pub fn rate(per_s: f64) -> String {
    match per_s {
        r if !r.is_finite() || r < 0.0 => NONE.into(),
        r if !(10.0..WIDE).contains(&r) => fixed(r, 1),
        r => count(r.round() as u64),
    }
}

/// Formats a duration: `400ms`, `5.2s`, `12s`, `12m 34s`, `3h 05m`, `2d 04h`.
pub fn duration_ms(ms: u64) -> String {
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

/// Formats seconds as [`duration_ms`] does; [`NONE`] for a value that cannot be a duration.
pub fn duration(seconds: f64) -> String {
    if seconds.is_finite() && seconds >= 0.0 { duration_ms((seconds * 1000.0) as u64) } else { NONE.into() }
}

/// Formats bytes in binary multiples, as htop and nvidia-smi do: `312M`, `1.2G`, `71.2G`.
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

/// Formats bits per second in decimal multiples, as networks are sold: `940 Mb/s`, `9.4 Gb/s`; [`NONE`] for a value that
/// cannot be a rate.
pub fn bit_rate(per_s: f64) -> String {
    match per_s {
        r if !r.is_finite() || r < 0.0 => NONE.into(),
        r if r >= 99.95e9 => format!("{} Gb/s", fixed(r / 1e9, 0)),
        r if r >= 999.5e6 => format!("{} Gb/s", fixed(r / 1e9, 1)),
        r if r >= 9.95e6 => format!("{:.0} Mb/s", r / 1e6),
        r if r >= 0.95e6 => format!("{:.1} Mb/s", r / 1e6),
        r => format!("{:.0} kb/s", r / 1e3),
    }
}

/// Formats numbers as ranges: `0-3,6`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for n in sorted {
        match parts.last_mut() {
            Some((_, end)) if n <= end.saturating_add(1) => *end = n,
            _ => parts.push((n, n)),
        }
    }
    let texts: Vec<String> =
        parts.into_iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    texts.join(",")
}

/// Formats bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of Linux signals by number (x86-64 and arm64), without `SIG`.
const SIGNALS: [&str; 32] = [
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Signals to offer for completion.
pub const SIGNALS_TYPED: [&str; 9] = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "KILL"];

/// Returns the name of a Linux signal: `SIGKILL`; `signal 64` for one without a name.
pub fn signal_name(signal: i32) -> String {
    match usize::try_from(signal).ok().and_then(|index| SIGNALS.get(index)) {
        Some(name) if !name.is_empty() => format!("SIG{name}"),
        Some(_) | None => format!("signal {signal}"),
    }
}

/// Parses a typed signal name or number: `SIGTERM`, `term`, `15`.
pub fn signal_named(typed: &str) -> Option<i32> {
    let name = typed.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let number = name.parse().ok().filter(|number| (1..SIGNALS.len()).contains(number));
    let named = || SIGNALS.iter().skip(1).position(|known| *known == name).map(|index| index + 1);
    number.or_else(named).map(|number| number as i32)
}

/// Returns whether the default action of the signal neither ends nor stops a program.
pub fn signal_is_harmless(signal: i32) -> bool {
    ["CHLD", "CONT", "URG", "WINCH"].iter().any(|name| signal_named(name) == Some(signal))
}

/// Returns the meaning of a process state letter of `/proc/PID/stat`.
pub fn process_state(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in uninterruptible sleep (storage or kernel)",
        'T' => "suspended by a signal",
        't' => "held by a debugger",
        'Z' => "zombie",
        'X' => "gone",
        'I' => "idle",
        _ => "unknown",
    }
}

/// Returns untrusted text as one line that is safe to print.
///
/// Removes escape sequences, control characters and characters that are not shown, so that a program's
/// output never drives the terminal and takes the cells that it seems to take. Tabs, line breaks and carriage
/// returns become spaces, so that text in front of it on the same line stays visible.
pub fn clean(text: &str) -> String {
    clean_by(text, false)
}

/// Returns one line of a program's output, cleaned as by [`clean`]; a carriage return rewinds it, as for
/// progress bars.
pub fn clean_output(text: &str) -> String {
    clean_by(text, true)
}

fn clean_by(text: &str, rewinds: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut line = 0; // Where the current line of `text` begins in `out`.
    let mut rest = text;
    loop {
        if let Some(escape) = escape::leading(rest.as_bytes()) {
            rest = &rest[escape.len..];
            continue;
        }
        let mut chars = rest.chars();
        let Some(c) = chars.next() else { return out };
        rest = chars.as_str();
        match c {
            '\t' => out.push_str(&"    "[out[line..].chars().count() % 4..]),
            '\n' => {
                out.push(' ');
                line = out.len();
            }
            '\r' if !rest.is_empty() && !rest.starts_with('\n') => match rewinds {
                true => out.truncate(line),
                false => out.push(' '),
            },
            c if controls_terminal(c) || is_invisible(c) => {}
            c => out.push(c),
        }
    }
}

/// Returns text with each character that a terminal would not show replaced, except `kept`: columns stay what
/// they are.
pub fn masked(text: &str, kept: char) -> String {
    text.chars()
        .map(|c| match (controls_terminal(c) || is_invisible(c)) && c != kept {
            true => '\u{fffd}',
            false => c,
        })
        .collect()
}

/// Returns JSON with control characters escaped that JSON permits but terminals obey.
pub fn plain_json(json: &str) -> String {
    let unsafe_in_json = |c: char| controls_terminal(c) && c != '\n';
    if !json.contains(unsafe_in_json) {
        return json.to_owned();
    }
    // Such characters stand in strings only, and none of them is beyond 16 bits.
    let escaped = |c: char| if unsafe_in_json(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    json.chars().map(escaped).collect()
}

/// Returns whether a terminal obeys the character instead of showing it, or shows adjacent text in another order.
pub fn controls_terminal(c: char) -> bool {
    c.is_control() || turns(c)
}

/// Returns whether a Unicode character changes the direction of writing or breaks the line.
fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a Unicode character is not shown by itself (`Default_Ignorable_Code_Point`, and marks of
/// annotations): terminals disagree about the cells that such a character takes.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Returns cleaned text of at most `limit` characters, with an ellipsis if it was cut.
pub fn clip(text: &str, limit: usize) -> String {
    let mut text = clean(text);
    if let Some((end, _)) = text.char_indices().nth(limit) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_json_has_no_control_characters() {
        let json = "{\"x\":\"a\u{9b}31m\u{7f}\u{202e}b\\u001bé\"}";
        let plain = plain_json(json);
        assert_eq!(plain, "{\"x\":\"a\\u009b31m\\u007f\\u202eb\\u001bé\"}");
        assert!(!plain.contains(controls_terminal));
    }

    #[test]
    fn numbers_are_joined_into_ranges() {
        assert_eq!(ranges(&[3, 0, 1, 2, 6]), "0-3,6");
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[u32::MAX, 0, 0]), "0,4294967295");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([rate(3.21), rate(8123.4), rate(f64::INFINITY)], ["3.2", "8,123", "-"]);
        assert_eq!([plural(1, "host"), plural(3, "rank")], ["1 host", "3 ranks"]);
        assert_eq!(
            [bytes(512), bytes(312 << 20), bytes(1_288_490_189), bytes(76_450_000_000)],
            ["512B", "312M", "1.2G", "71.2G"]
        );
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }

    #[test]
    fn bit_rates_read_well() {
        let rates = [0.0, 64e3, 1.5e6, 94e6, 940e6, 1e9, 9.41e9, 187e9, f64::NAN, -1.0].map(bit_rate);
        let expected = [
            "0 kb/s", "64 kb/s", "1.5 Mb/s", "94 Mb/s", "940 Mb/s", "1.0 Gb/s", "9.4 Gb/s", "187 Gb/s", NONE,
            NONE,
        ];
        assert_eq!(rates, expected);
    }

    #[test]
    fn durations_read_well() {
        let times = [0.44, 5.29, 12.9, 185.0, 7620.0, 356_400.0, -1.0, f64::NAN].map(duration);
        assert_eq!(times, ["440ms", "5.2s", "12s", "3m 05s", "2h 07m", "4d 03h", "-", "-"]);
    }

    #[test]
    fn signals_have_their_names() {
        assert_eq!(
            [9, 11, 64, 0, -3].map(signal_name),
            ["SIGKILL", "SIGSEGV", "signal 64", "signal 0", "signal -3"]
        );
    }

    #[test]
    fn signals_are_parsed_by_name_or_number() {
        assert_eq!(
            ["SIGTERM", "term", "15", "usr1", "KILL"].map(signal_named),
            [15, 15, 15, 10, 9].map(Some)
        );
        assert_eq!(["", "SIG", "0", "64", "-9", "terminate"].map(signal_named), [None; 6]);
        assert!((1..32).all(|signal| signal_named(&signal_name(signal)) == Some(signal)));
        assert_eq!(
            (1..32).filter(|signal| signal_is_harmless(*signal)).collect::<Vec<_>>(),
            [17, 18, 23, 28]
        );
    }

    #[test]
    fn cleaned_text_cannot_drive_the_terminal() {
        assert_eq!(clean("\x1b[31mred\x1b[0m \x1b]0;title\x07done"), "red done");
        assert_eq!(clean_output("10%\r20%\r"), "20%");
        assert_eq!(clean("error: x\rstopped: verified"), "error: x stopped: verified");
        assert_eq!(clean("a\u{202e}b\u{2028}c\u{9b}31md\u{85}e"), "abcde");
        assert_eq!(clean("a\tb\x00\x1b"), "a   b");
        assert_eq!(clean_output("one\r\n10%\r20%"), "one 20%");
    }

    #[test]
    fn cleaned_text_has_no_residue_of_any_escape_form() {
        // What `tput sgr0` prints.
        assert_eq!(clean("->\x1b(B\x1b[m<-"), "-><-");
        let forms = [
            "\x1b[1m",
            "\x1b]0;t\x07",
            "\x1bP1$r0m\x1b\\",
            "\x1b_Ga\x1b\\",
            "\x1b^p\x1b\\",
            "\x1bXs\x1b\\",
            "\x1b(B",
            "\x1b7",
            "\u{9b}1m",
            "\u{9d}0;t\u{9c}",
            "\u{90}q\u{9c}",
        ];
        for form in forms {
            assert_eq!(clean(&format!("a{form}b{form}c")), "abc", "{form:?}");
            // A string without its end hides what follows, as on a terminal.
            let cut = form.char_indices().last().unwrap().0;
            assert_eq!(clean(&format!("a{}", &form[..cut])), "a", "{form:?}");
        }
    }

    #[test]
    fn cleaned_text_has_no_invisible_characters() {
        assert_eq!(
            clean("so\u{ad}ft zero\u{200b}width \u{feff}mark\u{fe0f} \u{2060}\u{e0041}"),
            "soft zerowidth mark "
        );
        assert_eq!(clean("नमस्ते é e\u{301} 漢字"), "नमस्ते é e\u{301} 漢字");
        assert_eq!(masked("a\x1b\tb\u{ad}", '\t'), "a\u{fffd}\tb\u{fffd}");
    }

    proptest::proptest! {
        #[test]
        fn clean_never_keeps_what_controls_a_terminal(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "\x1b", "[", "]", "P", "_", "^", "X", "(", "B", "\\", "\x07", "\x18", ";", "31", "m", "é", "漢",
                    "\u{9b}", "\u{9c}", "\u{9d}", "\u{90}", "\u{ad}", "\u{200b}", "\u{fe0f}", "\r", "\n", "\t", "\0", "x",
                ]),
                0..40,
            ),
            any in ".{0,20}",
        ) {
            let text = parts.concat() + &any;
            for cleaned in [clean(&text), clean_output(&text)] {
                proptest::prop_assert!(!cleaned.contains(|c| controls_terminal(c) || is_invisible(c)), "{text:?} -> {cleaned:?}");
                proptest::prop_assert_eq!(&clean(&cleaned), &cleaned);
            }
        }
    }

    #[test]
    fn large_numbers_are_powers_of_ten() {
        assert_eq!([0.0, -21.06, 999_999_999.0].map(|x| fixed(x, 1)), ["0.0", "-21.1", "999999999.0"]);
        assert_eq!([1e9, -1e308, f64::MAX].map(|x| fixed(x, 2)), ["1.0e9", "-1.0e308", "1.8e308"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(|x| fixed(x, 2)), ["NaN", "inf"]);
        assert_eq!([0.5, 8_123.0, 1e300].map(rate), ["0.5", "8,123", "1.0e300"]);
    }

    #[test]
    fn clip_keeps_whole_characters() {
        assert_eq!(clip("a\nbäc", 4), "a bä…");
        assert_eq!(clip("abc", 3), "abc");
    }
}
