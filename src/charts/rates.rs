//! Recognizes series that are rates or gauges, which have no value once a run has ended.
//!
//! Programs do not declare it, so the name decides, by whole words: `sps` in `charts/SPS`, but not `ps` in
//! `steps`.

/// Words that name a rate.
const WORDS: [&str; 13] =
    ["throughput", "sps", "fps", "ips", "tps", "ups", "qps", "rps", "bps", "kbps", "mbps", "gbps", "itps"];
/// Time units after `per`.
const UNITS: [&str; 12] =
    ["s", "sec", "secs", "second", "seconds", "ms", "min", "minute", "minutes", "h", "hour", "hours"];
/// Time units after the last `/`. Not `min` or `h`: a group may have series of these names.
const SHORT: [&str; 3] = ["s", "sec", "second"];

/// Tests whether a series is a rate.
pub fn is_rate(name: &str) -> bool {
    let words = words(name);
    let by_word = words.iter().any(|word| WORDS.contains(&word.as_str()));
    let by_unit = words.windows(2).any(|pair| pair[0] == "per" && UNITS.contains(&pair[1].as_str()));
    let by_sign = name.rsplit_once('/').is_some_and(|(of, unit)| {
        !of.is_empty() && SHORT.iter().any(|short| unit.trim().eq_ignore_ascii_case(short))
    });
    by_word || by_unit || by_sign
}

/// Tests whether a series is a rate or a device gauge, which end with the run.
pub fn is_live_only(name: &str) -> bool {
    is_rate(name) || matches!(name, "ranks/cpu_percent" | "ranks/gpu_percent")
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
    use super::is_rate;

    #[test]
    fn rate_is_recognized_by_whole_words() {
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
            assert!(is_rate(name), "{name}");
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
            assert!(!is_rate(name), "{name}");
        }
    }
}
