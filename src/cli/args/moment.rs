//! Moments that are typed: `10m` (ago), `03:12`, `2026-11-23 03:12`.

use super::values::parse_age;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use rankdeck_types::ids::WallTime;

/// What can be typed.
const EXPECTED: &str = "expected 10m, 2h or 1d (ago), 03:12, 03:12:44, or 2026-11-23 03:12";

/// Seconds since the epoch of what was typed, by this machine's clock and time zone.
pub fn parse(text: &str) -> Result<WallTime, String> {
    of(text.trim(), &Zoned::new(Timestamp::now(), TimeZone::system()))
}

fn of(text: &str, now: &Zoned) -> Result<WallTime, String> {
    let seconds = |at: Timestamp| at.as_millisecond() as f64 / 1000.0;
    if let Ok(age) = parse_age(text) {
        return Ok(seconds(now.timestamp()) - age);
    }
    // With a time zone, as logs of other programs have it.
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(seconds(at));
    }
    let zoned = |at: DateTime| at.to_zoned(now.time_zone().clone()).map_err(|error| error.to_string());
    if let Ok(at) = text.parse::<DateTime>() {
        return Ok(seconds(zoned(at)?.timestamp()));
    }
    let time = text.parse::<Time>().ok().filter(|_| text.contains(':')).ok_or(EXPECTED)?;
    let today = zoned(now.date().to_datetime(time))?;
    // The latest one that has been.
    let at = if today.timestamp() > now.timestamp() {
        today.checked_sub(1.day()).map_err(|error| error.to_string())?
    } else {
        today
    };
    Ok(seconds(at.timestamp()))
}

/// Date and time of day, for people: `11-23 03:12:44`; dashes when it is not known.
pub fn shown(time: Option<WallTime>) -> String {
    let at = time
        .filter(|time| *time > 0.0)
        .and_then(|time| Timestamp::from_millisecond((time * 1000.0) as i64).ok());
    at.map_or_else(
        || "--------------".into(),
        |at| at.to_zoned(TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_an_age_a_time_of_day_or_a_date() {
        let now = "2026-11-23T07:30:00Z".parse::<Timestamp>().unwrap().to_zoned(TimeZone::UTC);
        let zero = now.timestamp().as_second() as f64;
        let ago = |text: &str| of(text, &now).map(|at| zero - at);
        assert_eq!(ago("10m"), Ok(600.0));
        assert_eq!(ago("1.5h"), Ok(5400.0));
        assert_eq!(ago("07:29"), Ok(60.0));
        assert_eq!(ago("07:29:30"), Ok(30.0));
        assert_eq!(ago("07:31"), Ok(86_400.0 - 60.0), "it was yesterday");
        assert_eq!(ago("2026-11-23 07:00"), Ok(1800.0));
        assert_eq!(ago("2026-11-23T07:00:00Z"), Ok(1800.0));
        assert_eq!(ago("2026-11-23T08:00:00+01:00"), Ok(1800.0));
        for wrong in ["", "yesterday", "25:00", "10", "10x", "-"] {
            assert!(of(wrong, &now).is_err(), "{wrong}");
        }
    }
}
