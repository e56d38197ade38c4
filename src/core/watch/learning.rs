//! Whether the run learns: values that are no numbers, policies that collapse, estimates that diverge. Pure.
//!
//! Each rule compares a run with what it has shown itself in this generation. All but the first say what
//! usually means trouble, never that it must: they are amber, and no policy acts on any of them. Of several,
//! the one that explains the others is told.

use super::draft::{Draft, Judgement};
use crate::card::Advice;
use crate::model::{MarkKind, Model};
use crate::reason::Reason;
use crate::report::{Confidence, VerdictReport};
use crate::series::{Place, Point, Series};
use rankdeck_proto::message::Evaluation;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use std::borrow::Cow;

/// Values that must agree before anything is said of the latest.
const LATEST: usize = 5;
/// Values that it takes to know what is usual.
const USUAL: usize = 20;
/// A policy changes by more than this in one update only when something is wrong, in nats.
const KL_MOST: f64 = 1.0;
/// The same beside what was usual: so many times as much, and at least so much.
const KL_TIMES: f64 = 30.0;
const KL_LEAST: f64 = 0.2;
/// A policy that has this share of its first entropy left tries nothing any more.
const ENTROPY_LEFT: f64 = 1e-3;
/// Share of the way from the least return to the best from which on a certain policy is a good one.
const THRIVES: f64 = 0.7;
/// A squared error of values is at most so many times the square of the greatest return.
const VALUE_TIMES: f64 = 100.0;
/// Evaluations that it takes to speak of a loss of skill, and how many of them the latest are.
const EVALS: usize = 6;
const LATEST_EVALS: usize = 3;
/// Evaluations waver: a loss of skill is so many times as much as what one is usually worse by.
const WAVERS: f64 = 4.0;
/// Values of the return, and share of the goal, that it takes to say that nothing was learnt.
const RETURNS: u64 = 60;
const GOAL_SHARE: f64 = 0.5;

const RETURN: &str = "charts/episodic_return";
/// The last words of its name elsewhere: Stable-Baselines3, RLlib before and since its new API.
const RETURNS_ELSEWHERE: [&str; 3] = ["ep_rew_mean", "episode_reward_mean", "episode_return_mean"];
const EVAL: &str = "charts/eval_return";
const SPEED: &str = "charts/SPS";

/// What is wrong with the learning, if anything.
pub(crate) fn look(model: &Model) -> Option<VerdictReport> {
    if !model.plan.as_ref().is_some_and(|plan| plan.experiment.watch.learning) {
        return None;
    }
    let run = Run::of(model);
    let found = run.not_a_number().or_else(|| run.value_diverges()).or_else(|| run.kl_blowup());
    let found = found.or_else(|| run.entropy_collapse()).or_else(|| run.eval_regressed());
    found.or_else(|| run.no_learning()).map(|found| found.verdict(model))
}

/// A rule that holds.
struct Finding {
    reason: Reason,
    words: Vec<(&'static str, String)>,
    /// The step at which it began, as far as known.
    since: f64,
    rank: Option<Rank>,
    facts: Vec<String>,
}

impl Finding {
    fn verdict(self, model: &Model) -> VerdictReport {
        let confidence = if self.reason == Reason::Nan { Confidence::Certain } else { Confidence::Possible };
        let before =
            model.checkpoints.iter().rev().find(|checkpoint| (checkpoint.env_step as f64) < self.since);
        let mut facts = self.facts;
        facts.push(match before {
            Some(checkpoint) => format!(
                "checkpoint before it: {} at step {}",
                checkpoint.path,
                words::count(checkpoint.env_step)
            ),
            None => "there is no checkpoint from before it".into(),
        });
        let host = self.rank.and_then(|rank| model.ranks.get(rank.index())).map(|rank| rank.host.clone());
        let judged = Judgement::usual(confidence, self.reason);
        let draft = Draft { rank: self.rank, host, facts, ..Draft::new(judged, self.words) };
        let mut verdict = draft.verdict(model, &[]);
        let run = model.run.id.as_ref().map(|run| run.0.as_str()).unwrap_or_default();
        if let Some(checkpoint) = before {
            let command = format!("rankdeck restart {run} --from {}", checkpoint.path);
            let step = words::count(checkpoint.env_step);
            let text = format!("go back to the last checkpoint before it, at step {step}");
            verdict.card.actions.insert(0, Advice { text, command });
        }
        verdict
    }
}

/// What this generation has shown.
struct Run<'a> {
    model: &'a Model,
    began: Place,
}

impl<'a> Run<'a> {
    fn of(model: &'a Model) -> Run<'a> {
        let generation = model.marks.iter().rev().find(|mark| matches!(mark.kind, MarkKind::Generation(_)));
        let long_ago = Place { step: f64::NEG_INFINITY, time: f64::NEG_INFINITY };
        Run { model, began: generation.map_or(long_ago, |mark| mark.place) }
    }

    fn points(&self, series: &'a Series) -> &'a [Point] {
        let points = series.points();
        &points[points.partition_point(|point| point.place.time < self.began.time)..]
    }

    /// Series whose last word is told of by `is`, with enough values of this generation.
    fn named(
        &self,
        is: fn(&str) -> bool,
        least: usize,
    ) -> impl Iterator<Item = (&'a str, &'a [Point])> + use<'a, '_> {
        let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let all = self.model.scalars.iter().filter(move |(name, _)| is(&last(name)));
        let all = all.map(|(name, series)| (name.as_str(), self.points(series)));
        all.filter(move |(_, points)| points.len() >= least)
    }

    /// Returns of training: as the console counts them, else under the name that a library gives them.
    fn returns(&self) -> &'a [Point] {
        let own = self.model.scalars.get(RETURN).map(|series| self.points(series));
        let own = own.filter(|points| !points.is_empty());
        own.or_else(|| {
            self.named(|name| RETURNS_ELSEWHERE.contains(&name), 1).next().map(|(_, points)| points)
        })
        .unwrap_or(&[])
    }

    /// Entropies of policies. A loss of entropy that is never above 0 is an entropy with its sign turned.
    fn entropies(&self) -> impl Iterator<Item = (&'a str, Cow<'a, [Point]>)> + use<'a, '_> {
        let all = self.named(|name| name == "entropy" || name == "entropy_loss", LATEST + 1);
        all.map(|(name, points)| {
            let turned = name.ends_with("_loss") && points.iter().all(|point| point.high <= 0.0);
            let turn =
                |point: &Point| Point { mean: -point.mean, low: -point.high, high: -point.low, ..*point };
            (name, if turned { points.iter().map(turn).collect() } else { Cow::Borrowed(points) })
        })
    }

    fn not_a_number(&self) -> Option<Finding> {
        // Undefined by nature: of a batch without variance, and of no episodes yet.
        let may_be = |name: &str| name == SPEED || name.contains("explained_var");
        let broken = self.model.scalars.iter().filter(|(name, series)| {
            let value = series.last().is_some_and(|value| !value.is_finite());
            let losses = ["loss", "grad", "kl", "entropy", "value"];
            let of_learning = losses.iter().any(|word| name.to_ascii_lowercase().contains(word));
            value
                && !may_be(name)
                && series.newest_at().time >= self.began.time
                && (of_learning || !self.points(series).is_empty())
        });
        let (name, series) =
            broken.min_by(|a, b| a.1.not_finite_since().total_cmp(&b.1.not_finite_since()))?;
        let rank = self.model.own.as_ref().map(|own| own.rank);
        let value = match series.last() {
            Some(value) if value.is_infinite() => "infinite",
            _ => "not a number",
        };
        let of = rank.map(|rank| format!(" in what rank {rank} says")).unwrap_or_default();
        let usual = self.points(series).last().map(|point| format!("its last number was {:.4}", point.mean));
        Some(Finding {
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

    fn value_diverges(&self) -> Option<Finding> {
        let is = |name: &str| {
            let errors = ["value_loss", "v_loss", "vf_loss", "critic_loss", "q_loss", "qf_loss", "td_loss"];
            errors.contains(&name) || (name.starts_with("qf") && name.ends_with("_loss"))
        };
        let scale =
            self.returns().iter().map(|point| point.low.abs().max(point.high.abs())).reduce(f64::max)?;
        let most = VALUE_TIMES * (scale + 1.0).powi(2);
        let (name, latest) = self.named(is, LATEST).find(|(_, points)| least(tail(points, LATEST)) > most)?;
        let began = latest.iter().rposition(|point| point.mean <= most).map_or(0, |at| at + 1);
        Some(Finding {
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

    fn kl_blowup(&self) -> Option<Finding> {
        let is = |name: &str| name == "kl" || (name.ends_with("approx_kl") && !name.starts_with("old"));
        let found = self.named(is, LATEST).find_map(|(name, points)| {
            let now = middle(tail(points, LATEST));
            let before = &points[..points.len() - LATEST];
            let usual = (before.len() >= USUAL).then(|| middle(before)).filter(|usual| *usual > 0.0);
            let much = usual.is_some_and(|usual| now > usual * KL_TIMES && now > KL_LEAST);
            (now > KL_MOST || much).then_some((name, points, now, usual))
        });
        let (name, points, now, usual) = found?;
        let facts = usual.map(|usual| format!("its median until then: {}", number(usual)));
        Some(Finding {
            reason: Reason::KlBlowup,
            words: vec![("series", name.into()), ("now", number(now))],
            since: tail(points, LATEST).first().map_or(0.0, |point| point.place.step),
            rank: None,
            facts: facts.into_iter().collect(),
        })
    }

    fn entropy_collapse(&self) -> Option<Finding> {
        let (name, points) = self.entropies().find(|(_, points)| {
            // That of a density may be negative, and falls below 0 while all is well.
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
        let facts = vec![format!("the best return so far: {}", number(high))];
        Some(Finding { reason: Reason::EntropyCollapse, words, since, rank: None, facts })
    }

    fn eval_regressed(&self) -> Option<Finding> {
        let evals: Vec<&Evaluation> = self
            .model
            .evals
            .iter()
            .filter(|eval| eval.env_step as f64 > self.began.step && eval.return_mean.is_finite())
            .collect();
        if evals.len() < EVALS {
            return None;
        }
        let (before, latest) = evals.split_at(evals.len() - LATEST_EVALS);
        let best = before.iter().max_by(|a, b| a.return_mean.total_cmp(&b.return_mean))?;
        // Of old evaluations only the chart is left.
        let chart = self.model.scalars.get(EVAL).map_or(&[][..], |series| self.points(series));
        let first = chart.first().map_or(before.first()?.return_mean, |point| point.mean);
        let half = first + (best.return_mean - first) / 2.0;
        let now = median(latest.iter().map(|eval| eval.return_mean).collect());
        let spread = median(latest.iter().map(|eval| eval.return_std).collect()).max(best.return_std);
        let lost = latest.iter().all(|eval| eval.return_mean < half);
        if !lost || best.return_mean - now <= 2.0 * spread || good(before) - now <= WAVERS * unrest(before) {
            return None;
        }
        Some(Finding {
            reason: Reason::EvalRegressed,
            words: vec![
                ("best", number(best.return_mean)),
                ("step", steps(best.env_step as f64)),
                ("now", number(now)),
            ],
            // The checkpoint to go back to is the one of the best evaluation.
            since: best.env_step as f64 + 1.0,
            rank: None,
            facts: vec![format!("the first evaluation: {}", number(first))],
        })
    }

    fn no_learning(&self) -> Option<Finding> {
        let goal = self.model.run.total_steps? as f64;
        let returns = self.returns();
        let (first, last) = (returns.first()?, returns.last()?);
        let values: u64 = returns.iter().map(|point| u64::from(point.count)).sum();
        // A run that goes on from a checkpoint may have nothing left to learn.
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
        Some(Finding {
            reason: Reason::NoLearning,
            words: vec![("now", number(now)), ("before", number(before)), ("step", steps(last.place.step))],
            since: 0.0,
            rank: None,
            facts: Vec::new(),
        })
    }
}

fn tail(points: &[Point], values: usize) -> &[Point] {
    &points[points.len().saturating_sub(values)..]
}

fn least(points: &[Point]) -> f64 {
    points.iter().map(|point| point.mean).fold(f64::INFINITY, f64::min)
}

fn middle(points: &[Point]) -> f64 {
    median(points.iter().map(|point| point.mean).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A good evaluation, which is not the best by chance: their upper quartile.
fn good(evals: &[&Evaluation]) -> f64 {
    let mut returns: Vec<f64> = evals.iter().map(|eval| eval.return_mean).collect();
    returns.sort_by(f64::total_cmp);
    returns.get(returns.len() * 3 / 4).copied().unwrap_or(0.0)
}

/// What an evaluation that is worse than the one before is usually worse by.
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
