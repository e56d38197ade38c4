//! Which series are listed and shown, and their labels.
//!
//! Recognizes series that are rates or gauges, which have no value once a run has ended.
//!
//! Programs do not declare it, so the name decides, by whole words: `sps` in `charts/SPS`, but not `ps` in
//! `steps`.

use rankdeck_core::model::Model;
use rankdeck_core::series::Series;
use rankdeck_types::meaning::{EVAL, Meaning, RETURN, SPEED};
use std::collections::BTreeSet;

/// The list of series.
#[derive(Debug, Clone, Default)]
pub struct SeriesList {
    /// The selected series.
    pub selected: Option<String>,
    /// Text that the names of listed series contain; `!` in front excludes them.
    pub filter: String,
    /// Series shown in addition to the selected one; `None`: [`default_series`].
    pub shown: Option<BTreeSet<String>>,
    /// The first visible row.
    pub top: usize,
}

impl SeriesList {
    /// Returns the names of the series shown in addition to the selected one.
    pub fn shown_names<'a>(&'a self, model: &'a Model) -> Vec<&'a str> {
        match &self.shown {
            Some(shown) => shown.iter().map(String::as_str).collect(),
            None => default_series(model),
        }
    }

    /// Returns the series that the filter lists.
    pub fn listed<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = (&'a String, &'a Series)> {
        let (excludes, text) = match self.filter.strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, self.filter.as_str()),
        };
        model.charts().filter(move |(name, _)| {
            let has = name.contains(text) || label(name).contains(text);
            text.is_empty() || has != excludes
        })
    }

    /// Shows the selected series in addition to the others, or hides it.
    pub fn toggle_selected(&mut self, model: &Model) {
        let Some(name) = self.selected.clone() else { return };
        let defaults = || default_series(model).into_iter().map(String::from).collect();
        let shown = self.shown.get_or_insert_with(defaults);
        if !shown.remove(&name) {
            shown.insert(name);
        }
    }

    /// Returns the series that are drawn, the selected one first.
    pub fn drawn<'a>(&self, model: &'a Model) -> Vec<&'a str> {
        let names = model.charts().map(|(name, _)| name.as_str());
        let shown = self.shown_names(model);
        let is_selected = |name: &str| self.selected.as_deref() == Some(name);
        let (mut drawn, others): (Vec<&str>, Vec<&str>) = names
            .filter(|name| is_selected(name) || shown.contains(name))
            .partition(|name| is_selected(name));
        drawn.extend(others);
        drawn
    }
}

/// Returns the chart of the returns of training episodes.
pub fn returns(model: &Model) -> Option<&str> {
    let counted = model.scalars.get_key_value(RETURN).map(|(name, _)| name.as_str());
    counted.or_else(|| model.series(Meaning::Return).map(|(name, _)| name))
}

/// Returns the chart of the mean returns of evaluations.
pub fn evaluations(model: &Model) -> Option<&Series> {
    model.series(Meaning::EvalReturn).map(|(_, series)| series)
}

/// Returns the series that matter most, as far as they exist: return, loss, speed; else the first one.
pub fn default_series(model: &Model) -> Vec<&str> {
    let names = || model.scalars.keys().map(String::as_str);
    let of = |meaning| model.series(meaning).map(|(name, _)| name);
    let first = returns(model).or_else(|| of(Meaning::EvalReturn));
    let loss = of(Meaning::ValueLoss).or_else(|| of(Meaning::Loss));
    let loss = loss.or_else(|| names().find(|name| name.starts_with("losses/") || name.contains("loss")));
    let speed = of(Meaning::StepsPerSecond);
    let found: Vec<&str> = [first, loss, speed].into_iter().flatten().collect();
    let first = || names().chain(model.histograms.keys().map(String::as_str)).next();
    if found.is_empty() { first().into_iter().collect() } else { found }
}

/// Returns a series' label: a common name, or the last part of its own.
pub fn label(name: &str) -> &str {
    match name {
        RETURN => "episode return",
        "charts/return_last_100" => "mean return",
        EVAL => "eval",
        SPEED => "steps/s",
        "ranks/SPS" => "rank steps/s",
        "ranks/iteration_s" => "rank iteration s",
        "ranks/wait_share" => "rank wait share",
        "ranks/cpu_percent" => "rank cpu %",
        "ranks/gpu_percent" => "rank gpu %",
        other => other.rsplit('/').next().unwrap_or(other),
    }
}

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
