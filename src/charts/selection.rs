//! Which series are listed and shown, and their labels.

use rankdeck_core::model::Model;
use rankdeck_core::series::Series;
use std::collections::BTreeSet;

/// Returns of training episodes.
pub const RETURN: &str = "charts/episodic_return";
/// Mean returns of evaluations.
pub const EVAL: &str = "charts/eval_return";
/// Global environment steps per second.
pub const SPEED: &str = "charts/SPS";

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
    /// Tests whether a series is shown in addition to the selected one.
    pub fn is_shown(&self, model: &Model, name: &str) -> bool {
        match &self.shown {
            Some(shown) => shown.contains(name),
            None => default_series(model).contains(&name),
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
        let is_selected = |name: &str| self.selected.as_deref() == Some(name);
        let (mut drawn, others): (Vec<&str>, Vec<&str>) = names
            .filter(|name| is_selected(name) || self.is_shown(model, name))
            .partition(|name| is_selected(name));
        drawn.extend(others);
        drawn
    }
}

/// Returns the series that matter most, as far as they exist: return, loss, speed; else the first one.
pub fn default_series(model: &Model) -> Vec<&str> {
    let names = || model.scalars.keys().map(String::as_str);
    let first = names().find(|name| *name == RETURN).or_else(|| names().find(|name| *name == EVAL));
    let loss = names()
        .find(|name| *name == "losses/value_loss")
        .or_else(|| names().find(|name| name.starts_with("losses/") || name.contains("loss")));
    let speed = names().find(|name| *name == SPEED);
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
