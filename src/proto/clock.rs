//! The wall clock, in the form in which it crosses the wire.

use rankdeck_types::ids::WallTime;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch, now; 0 on a clock that is set before it.
pub fn wall_time() -> WallTime {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
