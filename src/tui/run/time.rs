//! The timeline cursor: which time all pages show, and how it moves.

use rankdeck_core::model::EventTone;
use rankdeck_types::ids::{Timestamp, WallTime};
use rankdeck_types::words;

/// Milliseconds that `,` and `.` move.
pub const STEP_MS: i64 = 1_000;
/// Milliseconds that `(` and `)` move.
pub const MINUTE_MS: i64 = 60_000;

/// A position in the recording that all pages show.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimeCursor {
    /// The position, on the console's clock.
    pub at: Timestamp,
    /// The start of the recording.
    pub start: Timestamp,
    /// Its end; now, while the run is still up.
    pub end: Timestamp,
    /// Wall time at the console's time 0.
    pub zero: WallTime,
    /// Playback speed relative to the run; `None`: paused.
    pub speed: Option<f64>,
    /// The run is live behind it.
    pub live: bool,
    /// The run has ended by now.
    pub over: bool,
    /// The live status.
    pub behind: Option<PresentNews>,
    /// What happened, oldest first, bounded.
    pub marks: Vec<TimelineMark>,
}

/// The live status during playback: its worst verdict, or how the run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct PresentNews {
    /// Its severity.
    pub tone: EventTone,
    /// In a few words: `rank 3 dead`, `failed`.
    pub label: String,
    /// Number of other active verdicts.
    pub more: usize,
}

/// An event on the timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineMark {
    /// When it happened.
    pub at: Timestamp,
    /// Its severity.
    pub tone: EventTone,
    /// In one sentence.
    pub text: String,
    /// It is frequent: not drawn on the timeline.
    pub routine: bool,
}

/// A move of the timeline cursor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimeMove {
    /// By a number of milliseconds.
    Step(i64),
    /// To the next event, or the previous one when negative.
    Event(i8),
    /// To a time.
    To(Timestamp),
    /// Play or pause.
    Play,
    /// Faster, or slower when negative.
    Speed(i8),
    /// Back to live.
    Present,
}

impl TimeCursor {
    /// Wall time at a position.
    pub fn wall_time(&self, at: Timestamp) -> WallTime {
        self.zero + at.0 as f64 / 1000.0
    }

    /// The event before (or after) the position.
    pub fn mark(&self, step: i8) -> Option<&TimelineMark> {
        neighbour(&self.marks, self.at, step)
    }
}

/// The mark before (or after) a time, not at it.
pub fn neighbour(marks: &[TimelineMark], at: Timestamp, step: i8) -> Option<&TimelineMark> {
    match step < 0 {
        true => marks.iter().rev().find(|mark| mark.at < at),
        false => marks.iter().find(|mark| mark.at > at),
    }
}

/// Local time of day, `03:12:44`; `offset_s` is what local clocks are ahead of UTC.
pub fn time_of_day(time: WallTime, offset_s: i64) -> String {
    if !time.is_finite() || time <= 0.0 {
        return "--:--:--".into();
    }
    let second = (time as i64).saturating_add(offset_s).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Parses a time: a time of day (`03:12`, `03:12:44`: the latest one that is not after the end), or an offset
/// from the cursor (`-5m`, `+1h30m`).
///
/// # Errors
/// A message for the user.
pub fn parse(typed: &str, cursor: &TimeCursor, offset_s: i64) -> Result<Timestamp, String> {
    let text = typed.trim();
    match text {
        "start" => return Ok(cursor.start),
        "end" => return Ok(cursor.end),
        _ => {}
    }
    let to = match text.as_bytes().first() {
        Some(b'-' | b'+') => {
            let ms = span(&text[1..])
                .ok_or_else(|| format!("invalid time `{text}`; write -5m, +30s or +1h30m"))?;
            let ms = if text.starts_with('-') { -ms } else { ms };
            (cursor.at.0 as i64).saturating_add(ms)
        }
        _ => {
            let wrong = || format!("invalid time `{text}`; write 03:12, 03:12:44, -5m or +30s");
            let parts: Option<Vec<i64>> = text.split(':').map(|part| part.trim().parse().ok()).collect();
            let second = match parts.ok_or_else(wrong)?.as_slice() {
                [hour @ 0..24, minute @ 0..60] => hour * 3600 + minute * 60,
                [hour @ 0..24, minute @ 0..60, second @ 0..60] => hour * 3600 + minute * 60 + second,
                _ => return Err(wrong()),
            };
            let end = cursor.wall_time(cursor.end);
            let day = ((end as i64) + offset_s).div_euclid(86_400);
            let wall = |day: i64| (day * 86_400 + second - offset_s) as f64;
            let wall = if wall(day) > end { wall(day - 1) } else { wall(day) };
            ((wall - cursor.zero) * 1000.0) as i64
        }
    };
    let early = (cursor.start.0 as i64).saturating_sub(to);
    if early > 0 {
        return Err(format!("the recording starts {} later", words::duration_ms(early as u64)));
    }
    let to = Timestamp(to as u64);
    if to > cursor.end {
        return Err(format!("{} after the end of the recording", words::duration_ms(to.since(cursor.end))));
    }
    Ok(to)
}

/// Milliseconds of `1h30m`, `5m`, `30s`, `90`.
fn span(text: &str) -> Option<i64> {
    let (mut all, mut number) = (0i64, String::new());
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        let unit = match c {
            'h' => 3_600_000,
            'm' => 60_000,
            's' => 1_000,
            _ => {
                number.push(c);
                continue;
            }
        };
        all = all.checked_add(number.parse::<u32>().ok().map(i64::from)?.checked_mul(unit)?)?;
        number.clear();
    }
    if !number.is_empty() {
        all = all.checked_add(number.parse::<u32>().ok().map(i64::from)? * 1000)?;
    }
    (!text.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record from 02:00:00 to 03:30:00 UTC of the second day, shown at 03:00:00.
    fn cursor() -> TimeCursor {
        let (start, zero) = (Timestamp(1000), 86_400.0 + 7_200.0 - 1.0);
        let at = |minutes: u64| Timestamp(1000 + minutes * 60_000);
        TimeCursor { at: at(60), start, end: at(90), zero, ..TimeCursor::default() }
    }

    #[test]
    fn typed_time_is_a_time_of_day_or_a_span() {
        let minutes = |typed, offset| {
            parse(typed, &cursor(), offset).map(|to| (to.0 as i64 - cursor().at.0 as i64) / 1000)
        };
        assert_eq!(minutes("03:12", 0), Ok(720));
        assert_eq!(minutes(" 3:12:44 ", 0), Ok(764));
        assert_eq!(minutes("05:12", 7200), Ok(720));
        assert_eq!((minutes("start", 0), minutes("end", 0)), (Ok(-3600), Ok(1800)));
        assert_eq!(minutes("-5m", 0), Ok(-300));
        assert_eq!(minutes("+1m 30s", 0), Ok(90));
        assert_eq!(minutes("-90", 0), Ok(-90));
        for (typed, part) in [
            ("", "invalid time"),
            ("x", "invalid time"),
            ("25:00", "invalid time"),
            ("-x", "write -5m"),
            ("-", "write -5m"),
            ("01:00", "starts 1h 00m later"),
            ("04:00", "starts"),
            ("+2h", "after the end"),
        ] {
            let error = parse(typed, &cursor(), 0).unwrap_err();
            assert!(error.contains(part), "{typed}: {error}");
        }
    }

    #[test]
    fn neighbour_is_the_mark_before_or_after() {
        let mark = |at| TimelineMark {
            at: Timestamp(at),
            tone: EventTone::Info,
            text: at.to_string(),
            routine: false,
        };
        let marks = [mark(1), mark(5), mark(5), mark(9)];
        let at = |at, step| neighbour(&marks, Timestamp(at), step).map(|mark| mark.at.0);
        assert_eq!((at(5, -1), at(5, 1), at(1, -1), at(9, 1)), (Some(1), Some(9), None, None));
    }

    #[test]
    fn time_of_day_is_local() {
        assert_eq!(time_of_day(86_400.0 + 11_564.0, 0), "03:12:44");
        assert_eq!(time_of_day(11_564.0, -4 * 3600), "23:12:44");
        assert_eq!(time_of_day(0.0, 0), "--:--:--");
    }
}
