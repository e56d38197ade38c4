//! Detects learning problems: NaN, policy collapse, diverging value estimates, falling evaluations.
//!
//! Each rule compares a run with its own past in this generation. All rules but the first are warnings, since
//! they show what usually is a problem, never what must be one; no policy acts on them. Of several issues,
//! the one that explains the others is reported.

use crate::model::{Model, RankModel};
use crate::reason::Reason;
use crate::series::{Series, SeriesPoint};
use rankdeck_proto::message::{Counters, Evaluation, ReturnBlock};
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::meaning::{Meaning, Meanings, RETURN};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Values that must agree before the latest counts.
const LATEST: usize = 5;
/// Values needed to know what is usual.
const USUAL: usize = 20;
/// A policy changes by more than this in one update only when something is wrong, in nats.
const KL_MOST: f64 = 1.0;
/// The same against the usual value: this many times as much, and at least this much.
const KL_TIMES: f64 = 30.0;
const KL_LEAST: f64 = 0.2;
/// A policy with this share of its first entropy left no longer explores.
const ENTROPY_LEFT: f64 = 1e-3;
/// Share of the way from the least return to the best from which on a policy without entropy is a good one.
const THRIVES: f64 = 0.7;
/// A squared value error is at most this many times the square of the greatest return.
const VALUE_TIMES: f64 = 100.0;
/// Evaluations needed to detect a regression, and how many of them count as the latest.
const EVALS: usize = 6;
const LATEST_EVALS: usize = 3;
/// Evaluations vary: a regression is this many times their usual loss.
const WAVERS: f64 = 4.0;
/// Values of the return, and share of the target steps, needed to detect that a run does not learn.
const RETURNS: u64 = 60;
const GOAL_SHARE: f64 = 0.5;

/// Iterations in a row in which all ranks must have reported the same returns, and different ones among these.
const EQUAL: u32 = 8;
const DIFFERENT: usize = 4;

/// Compares the returns that ranks report for themselves, iteration by iteration: episodes of different seeds end
/// differently.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReturnComparison {
    /// How many iterations in a row they were equal.
    equal: u32,
    /// Least and greatest return of the latest of these that differ. Where all episodes are as good as can be,
    /// equal returns mean nothing.
    values: Vec<(f64, f64)>,
    /// The number of the next block of printed returns to compare, and whether the latest one was equal on all ranks.
    next_block: u64,
    prints_equal: bool,
}

impl ReturnComparison {
    /// Takes the counters of all ranks at one iteration.
    pub fn compare(&mut self, own: &[Counters]) {
        let Some((first, others)) = own.split_first() else { return };
        if own.iter().all(|counters| counters.returns.count == 0) {
            return;
        }
        if others.is_empty() || others.iter().any(|other| other.returns != first.returns) {
            (self.equal, self.values) = (0, Vec::new());
            return;
        }
        self.equal = self.equal.saturating_add(1);
        let value = (first.returns.min, first.returns.max);
        if !self.values.contains(&value) && self.values.len() < DIFFERENT {
            self.values.push(value);
        }
    }

    /// Compares the newest returns that all ranks of a script have printed.
    pub fn compare_printed(&mut self, model: &Model) {
        let blocks = |rank: &'_ RankModel| -> Vec<ReturnBlock> {
            rank.sample.as_ref().map(|sample| sample.signals.returns.clone()).unwrap_or_default()
        };
        let Some((first, others)) = model.ranks.split_first().filter(|(_, others)| !others.is_empty()) else {
            return;
        };
        let known = blocks(first);
        // Most programs print none.
        if known.last().is_none_or(|block| block.number < self.next_block) {
            return;
        }
        let others: Vec<Vec<ReturnBlock>> = others.iter().map(blocks).collect();
        let of = |block: &ReturnBlock| -> Option<Vec<ReturnBlock>> {
            let same = |all: &Vec<ReturnBlock>| all.iter().find(|one| one.number == block.number).copied();
            others.iter().map(same).collect()
        };
        let newest = known.iter().rev().find_map(|block| Some((block, of(block)?)));
        let Some((block, others)) = newest.filter(|(block, _)| block.number >= self.next_block) else {
            return;
        };
        self.next_block = block.number + 1;
        // Episodes that are as good as can be are no news.
        let is_equal = others.iter().all(|other| other.hash == block.hash);
        self.prints_equal = is_equal && (block.differs_within || self.prints_equal);
    }

    fn find_issue(&self, model: &Model) -> Option<LearningIssue> {
        let fact = if self.equal >= EQUAL && self.values.len() >= DIFFERENT {
            "equal in every iteration, while they change from one to the next"
        } else if self.prints_equal {
            "the returns of episodes that each rank prints are equal, one by one"
        } else {
            return None;
        };
        Some(LearningIssue {
            reason: Reason::EqualReturns,
            words: vec![("count", model.ranks.len().to_string())],
            since: 0.0,
            rank: None,
            facts: vec![fact.into()],
        })
    }
}

/// Finds a learning problem.
pub(crate) fn find_issue(model: &Model, returns: &ReturnComparison) -> Option<LearningIssue> {
    if !model.plan.as_ref().is_some_and(|plan| plan.experiment.watch.learning) {
        return None;
    }
    let run = LearningHistory::of(model);
    let found = run.not_a_number().or_else(|| run.value_diverges()).or_else(|| run.kl_blowup());
    let found = found.or_else(|| run.entropy_collapse()).or_else(|| run.eval_regressed());
    found.or_else(|| run.no_learning()).or_else(|| returns.find_issue(model))
}

/// A learning problem.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LearningIssue {
    pub reason: Reason,
    /// Values for the sentence of the reason.
    pub words: Vec<(&'static str, String)>,
    /// The step at which it began, if known.
    pub since: f64,
    pub rank: Option<Rank>,
    pub facts: Vec<String>,
}

/// The series of this generation.
struct LearningHistory<'a> {
    model: &'a Model,
    meanings: Meanings,
    generation: Generation,
}

impl<'a> LearningHistory<'a> {
    fn of(model: &'a Model) -> LearningHistory<'a> {
        LearningHistory { model, meanings: model.meanings(), generation: model.run.generation }
    }

    fn points(&self, series: &'a Series) -> &'a [SeriesPoint] {
        let points = series.points();
        &points[points.partition_point(|point| point.place.generation < self.generation)..]
    }

    /// Series with a meaning and enough values of this generation.
    fn of_meaning(
        &self,
        meaning: Meaning,
        least: usize,
    ) -> impl Iterator<Item = (&'a str, &'a [SeriesPoint])> + use<'a, '_> {
        let all = self.model.scalars.iter().map(|(name, series)| (name.as_str(), self.points(series)));
        let all = all.filter(move |(_, points)| points.len() >= least);
        all.filter(move |(name, _)| self.meanings.of(name) == Some(meaning))
    }

    /// The best series with a meaning, as far as it is of this generation.
    fn best(&self, meaning: Meaning) -> &'a [SeriesPoint] {
        let name = self.meanings.best(meaning, self.of_meaning(meaning, 1).map(|(name, _)| name));
        let series = name.and_then(|name| self.model.scalars.get(name));
        series.map_or(&[][..], |series| self.points(series))
    }

    /// Returns of training: as the console counts them, else the program's own.
    fn returns(&self) -> &'a [SeriesPoint] {
        let counted = self.model.scalars.get(RETURN).map(|series| self.points(series));
        counted.filter(|points| !points.is_empty()).unwrap_or_else(|| self.best(Meaning::Return))
    }

    /// Entropies of policies. An entropy loss that is never above 0 is an entropy with its sign inverted.
    fn entropies(&self) -> impl Iterator<Item = (&'a str, Cow<'a, [SeriesPoint]>)> + use<'a, '_> {
        let all = self.of_meaning(Meaning::Entropy, LATEST + 1);
        all.map(|(name, points)| {
            let turned = name.ends_with("_loss") && points.iter().all(|point| point.high <= 0.0);
            let turn = |point: &SeriesPoint| SeriesPoint {
                mean: -point.mean,
                low: -point.high,
                high: -point.low,
                ..*point
            };
            (name, if turned { points.iter().map(turn).collect() } else { Cow::Borrowed(points) })
        })
    }

    fn not_a_number(&self) -> Option<LearningIssue> {
        // Undefined by nature: of a batch without variance, and of no episodes yet.
        let is_speed = |name: &str| self.meanings.of(name) == Some(Meaning::StepsPerSecond);
        let may_be = |name: &str| is_speed(name) || name.contains("explained_var");
        let broken = self.model.scalars.iter().filter(|(name, series)| {
            let value = series.last().is_some_and(|value| !value.is_finite());
            let losses = ["loss", "grad", "kl", "entropy", "value"];
            let of_learning = losses.iter().any(|word| name.to_ascii_lowercase().contains(word));
            value
                && !may_be(name)
                && series.newest_at().generation >= self.generation
                && (of_learning || !self.points(series).is_empty())
        });
        let (name, series) =
            broken.min_by(|a, b| a.1.not_finite_since().total_cmp(&b.1.not_finite_since()))?;
        let rank = self.model.own.as_ref().map(|own| own.rank);
        let value = match series.last() {
            Some(value) if value.is_infinite() => "Inf",
            _ => "NaN",
        };
        let of = rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default();
        let usual = self.points(series).last().map(|point| format!("last finite value: {:.4}", point.mean));
        Some(LearningIssue {
            reason: Reason::Nan,
            words: vec![
                ("series", name.clone()),
                ("value", value.into()),
                ("step", steps(series.not_finite_since())),
                ("of", of),
            ],
            since: series.not_finite_since(),
            rank,
            facts: usual.into_iter().collect(),
        })
    }

    fn value_diverges(&self) -> Option<LearningIssue> {
        let scale =
            self.returns().iter().map(|point| point.low.abs().max(point.high.abs())).reduce(f64::max)?;
        let most = VALUE_TIMES * (scale + 1.0).powi(2);
        let mut losses = self.of_meaning(Meaning::ValueLoss, LATEST);
        let (name, latest) = losses.find(|(_, points)| least(tail(points, LATEST)) > most)?;
        let began = latest.iter().rposition(|point| point.mean <= most).map_or(0, |at| at + 1);
        Some(LearningIssue {
            reason: Reason::ValueDiverges,
            words: vec![
                ("series", name.into()),
                ("now", number(middle(tail(latest, LATEST)))),
                ("returns", number(scale)),
            ],
            since: latest.get(began).map_or(0.0, |point| point.place.step),
            rank: None,
            facts: Vec::new(),
        })
    }

    fn kl_blowup(&self) -> Option<LearningIssue> {
        let found = self.of_meaning(Meaning::Kl, LATEST).find_map(|(name, points)| {
            let now = middle(tail(points, LATEST));
            let before = &points[..points.len() - LATEST];
            let usual = (before.len() >= USUAL).then(|| middle(before)).filter(|usual| *usual > 0.0);
            let much = usual.is_some_and(|usual| now > usual * KL_TIMES && now > KL_LEAST);
            (now > KL_MOST || much).then_some((name, points, now, usual))
        });
        let (name, points, now, usual) = found?;
        let facts = usual.map(|usual| format!("median until then: {}", number(usual)));
        Some(LearningIssue {
            reason: Reason::KlBlowup,
            words: vec![("series", name.into()), ("now", number(now))],
            since: tail(points, LATEST).first().map_or(0.0, |point| point.place.step),
            rank: None,
            facts: facts.into_iter().collect(),
        })
    }

    fn entropy_collapse(&self) -> Option<LearningIssue> {
        let (name, points) = self.entropies().find(|(_, points)| {
            // That of a density may be negative, and falls below 0 in healthy runs.
            let discrete = points.iter().all(|point| point.low >= 0.0);
            let first = points.first().map_or(0.0, |point| point.mean);
            discrete && tail(points, LATEST).iter().all(|point| point.high < first * ENTROPY_LEFT)
        })?;
        let returns = self.returns();
        let (low, high) = returns
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |all, one| (all.0.min(one.mean), all.1.max(one.mean)));
        let now = (!returns.is_empty()).then(|| middle(tail(returns, LATEST)))?;
        if now - low >= THRIVES * (high - low) && high > low {
            return None;
        }
        let words = vec![
            ("series", name.into()),
            ("now", number(middle(tail(&points, LATEST)))),
            ("before", number(points.first().map_or(0.0, |point| point.mean))),
            ("return", number(now)),
        ];
        let since = tail(&points, LATEST).first().map_or(0.0, |point| point.place.step);
        let facts = vec![format!("best return so far: {}", number(high))];
        Some(LearningIssue { reason: Reason::EntropyCollapse, words, since, rank: None, facts })
    }

    fn eval_regressed(&self) -> Option<LearningIssue> {
        let evals: Vec<&Evaluation> = self
            .model
            .evals
            .iter()
            .filter(|eval| eval.generation >= self.generation && eval.return_mean.is_finite())
            .collect();
        if evals.len() < EVALS {
            return None;
        }
        let (before, latest) = evals.split_at(evals.len() - LATEST_EVALS);
        let best = before.iter().max_by(|a, b| a.return_mean.total_cmp(&b.return_mean))?;
        // Old evaluations are only in the chart.
        let chart = self.best(Meaning::EvalReturn);
        let first = chart.first().map_or(before.first()?.return_mean, |point| point.mean);
        let half = first + (best.return_mean - first) / 2.0;
        let now = median(latest.iter().map(|eval| eval.return_mean).collect());
        let spread = median(latest.iter().map(|eval| eval.return_std).collect()).max(best.return_std);
        let lost = latest.iter().all(|eval| eval.return_mean < half);
        if !lost || best.return_mean - now <= 2.0 * spread || good(before) - now <= WAVERS * unrest(before) {
            return None;
        }
        Some(LearningIssue {
            reason: Reason::EvalRegressed,
            words: vec![
                ("best", number(best.return_mean)),
                ("step", steps(best.env_step as f64)),
                ("now", number(now)),
            ],
            // The checkpoint to go back to is the one of the best evaluation.
            since: best.env_step as f64 + 1.0,
            rank: None,
            facts: vec![format!("first evaluation: {}", number(first))],
        })
    }

    fn no_learning(&self) -> Option<LearningIssue> {
        let goal = self.model.run.total_steps? as f64;
        let returns = self.returns();
        let (first, last) = (returns.first()?, returns.last()?);
        let values: u64 = returns.iter().map(|point| u64::from(point.count)).sum();
        // A run that resumes from a checkpoint may have nothing left to learn.
        let from_the_start = first.place.step < goal / 20.0;
        if values < RETURNS || !from_the_start || last.place.step < goal * GOAL_SHARE {
            return None;
        }
        let early = &returns[..(returns.len() / 10).max(LATEST).min(returns.len())];
        let late = &returns[returns.len() * 3 / 4..];
        let (before, now) = (middle(early), middle(late));
        let noise = early.iter().map(|point| point.mean).fold(f64::NEG_INFINITY, f64::max) - least(early);
        if now - before > noise.max(0.05 * before.abs()) / 2.0 {
            return None;
        }
        Some(LearningIssue {
            reason: Reason::NoLearning,
            words: vec![("now", number(now)), ("before", number(before)), ("step", steps(last.place.step))],
            since: 0.0,
            rank: None,
            facts: Vec::new(),
        })
    }
}

fn tail(points: &[SeriesPoint], values: usize) -> &[SeriesPoint] {
    &points[points.len().saturating_sub(values)..]
}

fn least(points: &[SeriesPoint]) -> f64 {
    points.iter().map(|point| point.mean).fold(f64::INFINITY, f64::min)
}

fn middle(points: &[SeriesPoint]) -> f64 {
    median(points.iter().map(|point| point.mean).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A good evaluation that is not the best by chance: the upper quartile.
fn good(evals: &[&Evaluation]) -> f64 {
    let mut returns: Vec<f64> = evals.iter().map(|eval| eval.return_mean).collect();
    returns.sort_by(f64::total_cmp);
    returns.get(returns.len() * 3 / 4).copied().unwrap_or(0.0)
}

/// The usual loss of an evaluation that is worse than the one before.
fn unrest(evals: &[&Evaluation]) -> f64 {
    let lost = evals.windows(2).map(|pair| pair[0].return_mean - pair[1].return_mean);
    median(lost.filter(|lost| *lost > 0.0).collect())
}

fn steps(step: f64) -> String {
    words::count(step.max(0.0) as u64)
}

fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        format!("{value:.1e}")
    } else if size < 10.0 {
        format!("{value:.3}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::Returns;

    /// The issue after iterations of two ranks with these returns of one episode each.
    fn issue(returns: impl Iterator<Item = [Option<f64>; 2]>) -> Option<LearningIssue> {
        let mut comparison = ReturnComparison::default();
        for own in returns {
            let counters = |one: Option<f64>| Counters {
                returns: one.map(Returns::of).unwrap_or_default(),
                ..Counters::default()
            };
            comparison.compare(&own.map(counters));
        }
        comparison.find_issue(&Model::default())
    }

    #[test]
    fn equal_returns_of_all_ranks_are_found() {
        let found = issue((0..8).map(|i| [Some(f64::from(i % 5)); 2]));
        assert_eq!(found.map(|issue| issue.reason), Some(Reason::EqualReturns));
        // Iterations without an episode are left out.
        let found = issue((0..16).map(|i| [(i % 2 == 0).then_some(f64::from(i)); 2]));
        assert!(found.is_some());
    }

    #[test]
    fn equal_returns_by_chance_are_not_found() {
        assert_eq!(issue((0..100).map(|_| [Some(500.0); 2])), None, "as good as can be");
        assert_eq!(issue((0..100).map(|i| [Some(f64::from(i)), Some(f64::from(i / 7 * 7))])), None);
        assert_eq!(issue((0..7).map(|i| [Some(f64::from(i)); 2])), None, "too few");
        assert_eq!(issue((0..100).map(|_| [None; 2])), None);
    }
}
