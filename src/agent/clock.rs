//! The wall clock.

/// Seconds since the Unix epoch.
pub(crate) fn wall_time() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
