//! Numbers, times and names as people read them on a plain line.

use rankdeck_proto::message::Exit;
use rankdeck_types::ids::WallTime;

/// `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    digits
        .char_indices()
        .flat_map(|(i, digit)| {
            let comma = i > 0 && (digits.len() - i).is_multiple_of(3);
            comma.then_some(',').into_iter().chain([digit])
        })
        .collect()
}

/// `1 host`, `2 hosts`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// `0.4s`, `12s`, `3m 05s`, `2h 07m`, `4d 03h`; `?` for what is no duration.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    let s = seconds as u64;
    match s {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Steps per second: `8,123`, below ten with one decimal.
pub fn rate(per_s: f64) -> String {
    match per_s {
        r if !r.is_finite() || r < 0.0 => "?".to_owned(),
        r if r < 10.0 => format!("{r:.1}"),
        r => count(r.round() as u64),
    }
}

/// Local time of day.
pub fn time_of_day(time: WallTime) -> String {
    jiff::Timestamp::from_millisecond((time * 1000.0) as i64).map_or_else(
        |_| "--:--:--".to_owned(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string(),
    )
}

/// `exit code 1`, `signal 9 (killed)`.
pub fn exit(exit: &Exit) -> String {
    match exit {
        Exit::Code { code } => format!("exit code {code}"),
        Exit::Signal { out_of_memory: true, .. } => "killed by the kernel: out of memory".to_owned(),
        Exit::Signal { signal, .. } => format!("signal {signal}{}", signal_name(*signal)),
        Exit::NotStarted { error } => format!("not started: {error}"),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGHUP => " (SIGHUP)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    }
}

/// Text from elsewhere made safe for a terminal: control characters become `·`, so that a log line cannot move the cursor or set the title.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '·' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(count).each_ref().map(|s| &s[..])
        );
        let times = [0.44, 12.9, 185.0, 7620.0, 356_400.0, -1.0, f64::NAN].map(duration);
        assert_eq!(["0.4s", "12s", "3m 05s", "2h 07m", "4d 03h", "?", "?"], times.each_ref().map(|s| &s[..]));
        assert_eq!(
            (rate(3.21), rate(8123.4), rate(f64::INFINITY)),
            ("3.2".into(), "8,123".into(), "?".into())
        );
        assert_eq!((plural(1, "host"), plural(3, "rank")), ("1 host".into(), "3 ranks".into()));
    }

    #[test]
    fn a_log_line_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\tc\r"), "a·[2Jb\tc·");
    }
}
