//! The console's clocks: one monotonic for decisions, one wall clock for showing.

use rankdeck_types::ids::{Timestamp, WallTime};
use std::time::Duration;
use tokio::time::Instant;

/// Milliseconds since the console began; tokio's clock, so that tests and simulations can pause it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that shows 0 now.
    #[expect(clippy::new_without_default, reason = "reading the time is not a default")]
    pub fn new() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// Time since the console began.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.origin.elapsed().as_millis() as u64)
    }

    /// Waits until `at`, for ever without one. Cancel-safe.
    pub async fn sleep_until(&self, at: Option<Timestamp>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.origin + Duration::from_millis(at.0)).await,
            None => std::future::pending().await,
        }
    }
}

/// Local time of day.
pub fn time_of_day(time: WallTime) -> String {
    jiff::Timestamp::from_millisecond((time * 1000.0) as i64).map_or_else(
        |_| "--:--:--".to_owned(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string(),
    )
}

/// What local clocks are ahead of UTC now, seconds.
pub fn utc_offset_s() -> i64 {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::system()).offset().seconds().into()
}

/// The earlier of two deadlines.
pub fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
