//! Compares runs: results, differing configuration keys, and groups of runs that differ only by seed, with
//! statistics over their seeds, as Agarwal et al. 2021 ("Deep Reinforcement Learning at the Edge of the
//! Statistical Precipice", the rliable library) advise: the interquartile mean, and a percentile bootstrap
//! around it.

use crate::model::Model;
use crate::report::RunOutcome;
use crate::run_summary::RunSummary;
use crate::series::{Series, SeriesPoint};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::meaning::Meaning;
use rankdeck_types::{hidden, quote};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Keys without influence on what is learned.
const NAMES: [&str; 2] = ["run.name", "run.note"];
/// The key of the seed.
const SEED: &str = "run.seed";
/// Points of a mean over runs.
const GRID: usize = 512;

/// A run as it is compared.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparedRun {
    /// Its name.
    pub run: String,
    /// How it ended; `None` while it runs.
    pub outcome: Option<RunOutcome>,
    /// Environment steps over all ranks.
    pub env_step: Option<u64>,
    pub train_iter: Option<u64>,
    /// Seconds that it has lasted.
    pub duration_s: f64,
    /// Environment steps per second, without the time between generations and that of abandoned ones.
    pub steps_per_s: Option<f64>,
    /// Latest mean return of training episodes.
    pub last_return: Option<f64>,
    /// Mean return of the latest evaluation.
    pub last_eval: Option<f64>,
    /// Mean return of the best evaluation, else the greatest of training.
    pub best_return: Option<f64>,
    /// Every key of its configuration, defaults included.
    pub settings: BTreeMap<String, String>,
    /// Its charts.
    pub series: BTreeMap<String, Series>,
}

impl ComparedRun {
    /// Summarizes a model as it was at `at`, by the model's clock.
    pub fn from_model(run: &str, model: &Model, at: Timestamp) -> ComparedRun {
        let summary = RunSummary::from_model(model, at);
        let returns = model.series(Meaning::Return).map(|(_, series)| series);
        let evals = || model.evals.iter().map(|eval| eval.return_mean).filter(|value| value.is_finite());
        let greatest =
            returns.and_then(|series| series.points().iter().map(|point| point.high).max_by(f64::total_cmp));
        let duration_s = summary.duration_s;
        ComparedRun {
            run: run.to_owned(),
            outcome: summary.outcome,
            env_step: summary.env_step,
            train_iter: summary.train_iter,
            duration_s,
            steps_per_s: average_speed(model),
            last_return: summary.last_return,
            last_eval: evals().next_back(),
            best_return: evals().max_by(f64::total_cmp).or(greatest),
            settings: model
                .plan
                .as_ref()
                .map(|plan| settings(&hidden::experiment(&plan.experiment)))
                .unwrap_or_default(),
            series: model.charts().map(|(name, series)| (name.clone(), series.clone())).collect(),
        }
    }

    /// Mean return of the best evaluation.
    pub fn best_eval(&self) -> Option<f64> {
        self.best_return.filter(|_| self.last_eval.is_some())
    }

    /// Its result: the latest evaluation, else the latest return of training.
    fn score(&self) -> Option<f64> {
        self.last_eval.or(self.last_return)
    }
}

/// Steps per second over the longest chart.
fn average_speed(model: &Model) -> Option<f64> {
    let longest = model.scalars.values().max_by_key(|series| series.points().len());
    longest.and_then(Series::steps_per_s)
}

/// A configuration as `table.key` and value.
fn settings(experiment: &impl Serialize) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if let Ok(value) = serde_json::to_value(experiment) {
        flatten("", &value, &mut found);
    }
    found
}

fn flatten(key: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, into);
            }
        }
        Value::Null => {}
        Value::String(text) => {
            into.insert(key.to_owned(), text.clone());
        }
        other => {
            into.insert(key.to_owned(), other.to_string());
        }
    }
}

/// A key whose value is not the same in all runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedKey {
    pub key: String,
    /// Its value in each run; `None` where it is not set.
    pub values: Vec<Option<String>>,
}

/// Keys that differ between runs, in the order of the runs; names and notes are left out. Nothing where the
/// configuration of a run is unknown.
pub fn changed(runs: &[ComparedRun]) -> Vec<ChangedKey> {
    if runs.iter().all(|run| !run.settings.is_empty()) { differing(runs) } else { Vec::new() }
}

/// Keys that differ between the runs whose configuration is known.
fn differing(runs: &[ComparedRun]) -> Vec<ChangedKey> {
    let known = || runs.iter().filter(|run| !run.settings.is_empty());
    let keys: BTreeSet<&String> = known().flat_map(|run| run.settings.keys()).collect();
    let differs = |key: &&String| {
        let mut values = known().map(|run| run.settings.get(*key));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    keys.into_iter()
        .filter(|key| !NAMES.contains(&key.as_str()))
        .filter(differs)
        .map(|key| ChangedKey {
            key: key.clone(),
            values: differing_words(runs.iter().map(|run| run.settings.get(key).cloned()).collect()),
        })
        .collect()
}

/// Lists of words without what they have in common at their beginning and end, such as the program of commands.
/// One common word stays: the option of a value.
fn differing_words(values: Vec<Option<String>>) -> Vec<Option<String>> {
    let parse = |value: &Option<String>| serde_json::from_str::<Vec<String>>(value.as_deref()?).ok();
    let Some(lists) = values.iter().map(parse).collect::<Option<Vec<Vec<String>>>>() else { return values };
    let shortest = lists.iter().map(Vec::len).min().unwrap_or(0);
    let is_common =
        |at: &dyn Fn(&[String]) -> Option<&String>| lists.windows(2).all(|pair| at(&pair[0]) == at(&pair[1]));
    let start = (0..shortest).take_while(|at| is_common(&|words| words.get(*at))).count();
    let end = (1..=shortest - start)
        .take_while(|back| is_common(&|words| words.len().checked_sub(*back).and_then(|at| words.get(at))))
        .count();
    let from = start.saturating_sub(1);
    let shown = |words: &Vec<String>| quote::words(words[from..words.len() - end].iter().map(String::as_str));
    lists.iter().map(|words| Some(shown(words))).collect()
}

/// Runs that differ in nothing but the seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeedGroup {
    /// The keys that distinguish it from the other groups, or the name of its only run.
    pub name: String,
    /// Its runs, by their places.
    pub runs: Vec<usize>,
    /// Interquartile mean of their scores.
    pub score: Option<f64>,
    /// The 95% interval of that.
    pub interval: Option<(f64, f64)>,
}

/// Runs in groups, in the order of their first runs. A run whose configuration is unknown stands alone.
pub fn groups(runs: &[ComparedRun]) -> Vec<SeedGroup> {
    let differing: Vec<ChangedKey> = differing(runs).into_iter().filter(|one| one.key != SEED).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let same = |group: &&mut Vec<usize>| {
            let first = group[0];
            !run.settings.is_empty()
                && !runs[first].settings.is_empty()
                && differing.iter().all(|one| one.values[first] == one.values[at])
                && runs[first].settings.get("run.name") == run.settings.get("run.name")
        };
        match found.iter_mut().find(same) {
            Some(group) => group.push(at),
            None => found.push(vec![at]),
        }
    }
    let several = found.len() > 1;
    found
        .into_iter()
        .map(|members| {
            let first = &runs[members[0]];
            let scores: Vec<f64> = members.iter().filter_map(|at| runs[*at].score()).collect();
            SeedGroup {
                name: name(first, &differing, members[0], members.len(), several),
                score: interquartile_mean(&scores),
                interval: bootstrap_interval(&scores),
                runs: members,
            }
        })
        .collect()
}

fn name(first: &ComparedRun, differing: &[ChangedKey], at: usize, count: usize, several: bool) -> String {
    if count == 1 {
        return first.run.clone();
    }
    let own = first.settings.get("run.name").cloned().unwrap_or_else(|| first.run.clone());
    let keys = differing.iter().filter(|_| several).map(|one| {
        let short = one.key.rsplit('.').next().unwrap_or(&one.key);
        format!("{short}={}", one.values[at].as_deref().unwrap_or("-"))
    });
    let keys: Vec<String> = keys.take(3).collect();
    format!("{own} {}({count} seeds)", if keys.is_empty() { String::new() } else { keys.join(" ") + " " })
}

/// Parts of the names of series that depend on the machine and its load.
const MACHINE: [&str; 10] =
    ["sps", "fps", "time", "speed", "per_s", "duration", "second", "elapsed", "throughput", "memory"];

/// Returns groups of runs, by their places, whose results are equal: every series, point by point, but those of
/// speed and time.
pub fn equal_results(runs: &[ComparedRun]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        match found.iter_mut().find(|group| has_results_of(run, &runs[group[0]])) {
            Some(group) => group.push(at),
            None => found.push(vec![at]),
        }
    }
    found.retain(|group| group.len() > 1);
    found
}

fn has_results_of(one: &ComparedRun, other: &ComparedRun) -> bool {
    let own = |run: &ComparedRun| -> Vec<(String, Vec<SeriesPoint>)> {
        let is_own = |name: &str| {
            let name = name.to_lowercase();
            !MACHINE.iter().any(|part| name.contains(part))
        };
        let series = run.series.iter().filter(|(name, series)| is_own(name) && !series.points().is_empty());
        series.map(|(name, series)| (name.clone(), series.points().to_vec())).collect()
    };
    let (mine, theirs) = (own(one), own(other));
    !mine.is_empty()
        && mine.len() == theirs.len()
        && mine.iter().zip(&theirs).all(|(a, b)| a.0 == b.0 && are_equal(&a.1, &b.1))
        && (one.last_eval, one.last_return) == (other.last_eval, other.last_return)
}

/// Whether two curves have equal values at the steps of both, which are most of them: a console may have missed
/// some.
fn are_equal(one: &[SeriesPoint], other: &[SeriesPoint]) -> bool {
    let (mut place, mut common) = (0, 0);
    for point in one {
        while other.get(place).is_some_and(|known| known.place.step < point.place.step) {
            place += 1;
        }
        let Some(known) = other.get(place).filter(|known| known.place.step == point.place.step) else {
            continue;
        };
        if (known.mean, known.low, known.high) != (point.mean, point.low, point.high) {
            return false;
        }
        common += 1;
    }
    common > 0 && 2 * common >= one.len().max(other.len())
}

/// A mean over runs at one place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanPoint {
    pub x: f64,
    /// The mean of the runs that reach there.
    pub mean: f64,
    /// The least of them.
    pub low: f64,
    /// The greatest of them.
    pub high: f64,
    /// How many they are.
    pub count: u32,
}

/// The mean of curves and the band from the least to the greatest, at places between their ends; between two
/// points of a curve its value is on the line. `x` rises in each of them.
pub fn mean_and_band(curves: &[Vec<(f64, f64)>]) -> Vec<MeanPoint> {
    let curves: Vec<&Vec<(f64, f64)>> = curves.iter().filter(|curve| !curve.is_empty()).collect();
    let first = curves.iter().filter_map(|curve| curve.first()).map(|point| point.0).reduce(f64::min);
    let last = curves.iter().filter_map(|curve| curve.last()).map(|point| point.0).reduce(f64::max);
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let longest = curves.iter().map(|curve| curve.len()).max().unwrap_or(1);
    let count = if last > first { longest.clamp(2, GRID) } else { 1 };
    let at = |i: usize| first + (last - first) * i as f64 / (count - 1).max(1) as f64;
    let mut places = vec![0usize; curves.len()];
    (0..count)
        .filter_map(|i| {
            let x = at(i);
            let values: Vec<f64> = curves
                .iter()
                .zip(&mut places)
                .filter_map(|(curve, place)| {
                    while *place + 1 < curve.len() && curve[*place + 1].0 <= x {
                        *place += 1;
                    }
                    between(curve[*place], curve.get(*place + 1).copied(), x)
                })
                .filter(|value| value.is_finite())
                .collect();
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let low = values.iter().copied().reduce(f64::min)?;
            let high = values.iter().copied().reduce(f64::max)?;
            Some(MeanPoint { x, mean, low, high, count: values.len() as u32 })
        })
        .collect()
}

fn between(from: (f64, f64), to: Option<(f64, f64)>, x: f64) -> Option<f64> {
    match to {
        _ if x < from.0 => None,
        Some(to) if to.0 > from.0 => Some(from.1 + (to.1 - from.1) * (x - from.0) / (to.0 - from.0)),
        // Sums of floats may end a little behind the last point.
        _ if x <= from.0 + from.0.abs().max(1.0) * 1e-9 => Some(from.1),
        _ => None,
    }
}

/// Resamples of a bootstrap: the ends of a 95% interval are then steady to about a hundredth of its width.
const RESAMPLES: usize = 10_000;
/// Share of an interval.
const LEVEL: f64 = 0.95;
/// Most values that are resampled; of more, this many evenly spaced ones.
const VALUES: usize = 10_000;

/// The mean of the middle half, as `scipy.stats.trim_mean(values, 0.25)`; `None` without values.
pub fn interquartile_mean(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    middle_mean(&sorted)
}

fn middle_mean(sorted: &[f64]) -> Option<f64> {
    let cut = sorted.len() / 4;
    let middle = sorted.get(cut..sorted.len() - cut).filter(|middle| !middle.is_empty())?;
    Some(middle.iter().sum::<f64>() / middle.len() as f64)
}

/// The 95% interval of the interquartile mean, from runs drawn again with replacement; `None` for fewer than
/// two. The same values give the same interval.
pub fn bootstrap_interval(values: &[f64]) -> Option<(f64, f64)> {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    if values.len() < 2 {
        return None;
    }
    let step = values.len().div_ceil(VALUES);
    let values: Vec<f64> = values.into_iter().step_by(step).collect();
    let resamples = (RESAMPLES * 100 / values.len()).clamp(200, RESAMPLES);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut means: Vec<f64> = (0..resamples)
        .filter_map(|_| {
            let mut drawn: Vec<f64> =
                (0..values.len()).map(|_| values[below(&mut state, values.len())]).collect();
            drawn.sort_by(f64::total_cmp);
            middle_mean(&drawn)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some((quantile(&means, (1.0 - LEVEL) / 2.0), quantile(&means, (1.0 + LEVEL) / 2.0)))
}

/// Linear between the nearest two, as NumPy's default.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len().saturating_sub(1)) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    let (a, b) =
        (sorted.get(low).copied().unwrap_or(f64::NAN), sorted.get(high).copied().unwrap_or(f64::NAN));
    a + (b - a) * (at - at.floor())
}

/// A number below `n`, from SplitMix64 (Steele et al. 2014).
pub fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Place;

    fn run(name: &str, keys: &[(&str, &str)], eval: f64) -> ComparedRun {
        let settings = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ComparedRun { run: name.into(), settings, last_eval: Some(eval), ..ComparedRun::default() }
    }

    fn runs() -> Vec<ComparedRun> {
        vec![
            run("a", &[("run.name", "x"), ("run.seed", "1"), ("learn.lr", "0.1")], 10.0),
            run("b", &[("run.name", "x"), ("run.seed", "2"), ("learn.lr", "0.1")], 20.0),
            run("c", &[("run.name", "x"), ("run.seed", "1"), ("learn.lr", "0.2"), ("run.note", "n")], 5.0),
        ]
    }

    #[test]
    fn changed_keys_exclude_names_and_notes() {
        let changed = changed(&runs());
        let keys: Vec<&str> = changed.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["learn.lr", "run.seed"]);
        assert_eq!(changed[0].values[2].as_deref(), Some("0.2"));
    }

    #[test]
    fn changed_commands_show_the_words_that_differ() {
        let command = |words: &str| serde_json::to_string(&words.split(' ').collect::<Vec<_>>()).unwrap();
        let shown = |a: &str, b: &str| {
            let runs = [a, b].map(|words| run("r", &[("launch.command", &command(words))], 1.0));
            let values = changed(&runs)[0].values.clone();
            values.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join("|")
        };
        assert_eq!(shown("python3 t.py --lr 1 -x", "python3 t.py --lr 2 -x"), "--lr 1|--lr 2");
        assert_eq!(shown("python3 t.py", "python3 t.py --lr 2"), "t.py|t.py --lr 2");
        assert_eq!(shown("a x x", "a x"), "x x|x");
        assert_eq!(shown("a", "b"), "a|b");
    }

    #[test]
    fn seeds_are_grouped_and_scored() {
        let groups = groups(&runs());
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[0].runs.as_slice(), groups[0].score), (&[0, 1][..], Some(15.0)));
        assert_eq!(groups[0].interval, Some((10.0, 20.0)));
        assert_eq!(groups[0].name, "x lr=0.1 (2 seeds)");
        assert_eq!((groups[1].name.as_str(), groups[1].interval), ("c", None));
    }

    #[test]
    fn equal_results_are_found_whatever_the_speed() {
        let with = |values: &[f64], sps: f64| {
            let series = |values: &[f64]| {
                let mut all = Series::default();
                for (step, value) in values.iter().enumerate() {
                    all.push(
                        Place { step: step as f64, time: sps * step as f64, ..Place::default() },
                        *value,
                    );
                }
                all
            };
            let named = [("charts/loss", series(values)), ("charts/SPS", series(&[sps, 2.0 * sps]))];
            let series = named.map(|(name, series)| (name.to_owned(), series)).into();
            ComparedRun { series, ..ComparedRun::default() }
        };
        let runs = [with(&[1.0, 2.0, 3.0], 5.0), with(&[1.0, 2.0, 4.0], 5.0), with(&[1.0, 2.0, 3.0], 9.0)];
        assert_eq!(equal_results(&runs), [[0, 2]]);
        let cut = [with(&[1.0, 2.0, 3.0], 5.0), with(&[1.0, 2.0], 5.0)];
        assert_eq!(equal_results(&cut).len(), 1, "a console has missed the last value");
        let mut other = [with(&[1.0], 5.0), with(&[1.0], 5.0)];
        other[1].last_eval = Some(1.0);
        assert!(equal_results(&other).is_empty());
        assert!(equal_results(&[ComparedRun::default(), ComparedRun::default()]).is_empty());
    }

    #[test]
    fn runs_with_unknown_configuration_are_own_groups() {
        let mut runs = runs();
        runs[1].settings.clear();
        assert!(changed(&runs).is_empty());
        assert_eq!(groups(&runs).iter().map(|group| group.runs.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn mean_covers_runs_that_reach_the_step() {
        let long: Vec<(f64, f64)> = (0..=10).map(|x| (f64::from(x), 2.0 * f64::from(x))).collect();
        let short = vec![(0.0, 0.0), (5.0, 0.0)];
        let mean = mean_and_band(&[long, short, Vec::new()]);
        assert_eq!(mean.len(), 11);
        assert_eq!((mean[4].mean, mean[4].low, mean[4].high, mean[4].count), (4.0, 0.0, 8.0, 2));
        assert_eq!((mean[10].mean, mean[10].count), (20.0, 1));
        assert!(mean_and_band(&[]).is_empty());
        assert_eq!(mean_and_band(&[vec![(3.0, 1.0)]]).len(), 1);
    }

    #[test]
    fn interquartile_mean_matches_scipy() {
        // scipy.stats.trim_mean(x, 0.25)
        for (values, mean) in [
            (&[1.0][..], 1.0),
            (&[1.0, 3.0], 2.0),
            (&[1.0, 2.0, 9.0], 4.0),
            (&[4.0, 1.0, 2.0, 100.0], 3.0),
            (&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 90.0], 4.5),
            (&[1.0, f64::NAN, 3.0], 2.0),
        ] {
            assert_eq!(interquartile_mean(values), Some(mean), "{values:?}");
        }
        assert_eq!(interquartile_mean(&[]), None);
    }

    #[test]
    fn interval_contains_mean_and_shrinks_with_seeds() {
        assert_eq!(bootstrap_interval(&[1.0]), None);
        assert_eq!(bootstrap_interval(&[2.0; 5]), Some((2.0, 2.0)));
        let few: Vec<f64> = (0..10).map(f64::from).collect();
        let many: Vec<f64> = (0..100).map(|i| f64::from(i % 10)).collect();
        let (low, high) = bootstrap_interval(&few).unwrap();
        let (lower, higher) = bootstrap_interval(&many).unwrap();
        assert!(
            low < 4.5 && 4.5 < high && higher - lower < (high - low) / 2.0,
            "{low} {high} {lower} {higher}"
        );
        // rliable's percentile bootstrap with 50,000 resamples gives 2.3 to 6.8.
        assert!((2.0..2.7).contains(&low) && (6.4..7.2).contains(&high), "{low} {high}");
        assert_eq!(bootstrap_interval(&few), Some((low, high)));
        assert!(bootstrap_interval(&vec![1.0; 100_000]).is_some());
    }
}
