//! The console's clocks: a monotonic one for decisions, a wall clock for display.

use rankdeck_types::ids::{Timestamp, WallTime};
use std::time::Duration;
use tokio::time::Instant;

/// Milliseconds since the console started; tokio's clock, so that tests and simulations can pause it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at 0.
    pub(crate) fn new() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// Time since the console started.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.origin.elapsed().as_millis() as u64)
    }

    /// Waits until `at`; pends without one. Cancel-safe.
    pub(crate) async fn sleep_until(&self, at: Option<Timestamp>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.origin + Duration::from_millis(at.0)).await,
            None => std::future::pending().await,
        }
    }
}

/// Local time of day.
pub(crate) fn time_of_day(time: WallTime) -> String {
    jiff::Timestamp::from_millisecond((time * 1000.0) as i64).map_or_else(
        |_| "--:--:--".to_owned(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string(),
    )
}

/// Local day: `Nov 30`, with the year if it is not the present one.
pub(crate) fn day(time: WallTime) -> String {
    let zone = jiff::tz::TimeZone::system();
    let Ok(at) = jiff::Timestamp::from_millisecond((time * 1000.0) as i64) else { return "--".to_owned() };
    let (at, now) = (at.to_zoned(zone.clone()), jiff::Timestamp::now().to_zoned(zone));
    at.strftime(if at.year() == now.year() { "%b %-d" } else { "%b %-d, %Y" }).to_string()
}

/// Offset of the local clock from UTC, in seconds.
pub(crate) fn utc_offset_s() -> i64 {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::system()).offset().seconds().into()
}

/// The earlier of two deadlines.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
