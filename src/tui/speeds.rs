//! Which series are speeds or gauges: they say nothing of a run that is over. Pure.
//!
//! Nobody declares it, so the name decides, by whole words: `sps` in `charts/SPS`, but no `ps` in `steps`.

/// Words that are a speed by themselves.
const WORDS: [&str; 13] =
    ["throughput", "sps", "fps", "ips", "tps", "ups", "qps", "rps", "bps", "kbps", "mbps", "gbps", "itps"];
/// What a speed is counted in, after `per`.
const UNITS: [&str; 12] =
    ["s", "sec", "secs", "second", "seconds", "ms", "min", "minute", "minutes", "h", "hour", "hours"];
/// What a speed is counted in, after the last `/`; a group's series may be called `min` or `h`.
const SHORT: [&str; 3] = ["s", "sec", "second"];

/// A series of this name is a speed.
pub fn is_speed(name: &str) -> bool {
    let words = words(name);
    let by_word = words.iter().any(|word| WORDS.contains(&word.as_str()));
    let by_unit = words.windows(2).any(|pair| pair[0] == "per" && UNITS.contains(&pair[1].as_str()));
    let by_sign = name.rsplit_once('/').is_some_and(|(of, unit)| {
        !of.is_empty() && SHORT.iter().any(|short| unit.trim().eq_ignore_ascii_case(short))
    });
    by_word || by_unit || by_sign
}

/// A series of this name says what is now: a speed, or a gauge of the ranks' devices.
pub fn is_of_now(name: &str) -> bool {
    is_speed(name) || matches!(name, "ranks/cpu_percent" | "ranks/gpu_percent")
}

/// `["samples", "per", "sec"]` of `samples_per_sec`, `samples/per-sec` and `samplesPerSec`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for sign in name.chars() {
        if !sign.is_alphanumeric() || (was_lower && sign.is_uppercase()) {
            words.push(String::new());
        }
        was_lower = sign.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| sign.is_alphanumeric()) {
            word.extend(sign.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::is_speed;

    #[test]
    fn a_name_tells_whether_a_series_is_a_speed() {
        for name in [
            "charts/SPS",
            "ranks/SPS",
            "charts/sps_total",
            "time/fps",
            "fps",
            "steps_per_s",
            "throughput",
            "perf/throughput",
            "it/s",
            "frames/s",
            "perf/frames/s",
            "samples_per_second",
            "iterations_per_sec",
            "tokens_per_second",
            "samplesPerSecond",
            "env steps per second",
            "tokens/sec",
            "tokens_per_minute",
            "time/fps_mean",
            "net/mbps",
        ] {
            assert!(is_speed(name), "{name}");
        }
        for name in [
            "loss",
            "losses/value_loss",
            "steps",
            "global_steps",
            "reps",
            "gps_error",
            "clips",
            "epsilon",
            "eps",
            "charts/eps",
            "ps",
            "maps",
            "learning_rate",
            "time_per_step",
            "seconds_per_iteration",
            "per_beta",
            "episodes",
            "s",
            "/s",
            "charts/min",
            "entropy",
            "charts/eval_return",
            "ranks/iteration_s",
            "per_sample_loss",
            "percent",
            "",
        ] {
            assert!(!is_speed(name), "{name}");
        }
    }
}
