//! Which series are listed and shown, and their labels.

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
