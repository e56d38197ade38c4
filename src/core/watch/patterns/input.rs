//! Runs that wait for their input most of the time: for batches of data loaders, or for steps of environments in
//! worker processes.
//!
//! Stepping environments is the work of reinforcement learning, and a healthy run may spend more than half of its time
//! on it: the bound is higher than that for data loaders.
//!
//! The hook of a script counts the time of these waits. Ranks that share gradients wait for the slowest: a run is
//! bound by its input only if every rank is, over a whole interval. Intervals are measured on the clock of each
//! rank's host. A run that is reported stays so until the share is clearly lower, so that it does not flap.

use crate::model::{Model, RankLife, RankModel};
use rankdeck_proto::message::{InputKind, PageSample};
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Length of an interval, ms.
const INTERVAL_MS: u64 = 60_000;
/// Share of the time from which a rank is bound by its input, for data loaders and for environments.
const BOUND: f64 = 0.5;
const ENVIRONMENTS_BOUND: f64 = 0.8;
/// How much less ends it.
const OVER: f64 = 0.1;
/// Iterations of an interval from which it shows how the run trains.
const ITERATIONS: u64 = 2;

/// A run that is bound by its input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InputBound {
    /// What the rank with the least share waits for, and where.
    pub kind: InputKind,
    pub site: String,
    /// The least share of the time of all ranks.
    pub share: f64,
    /// Each rank's share, the greatest first.
    pub ranks: Vec<(Rank, f64)>,
    /// Length of the interval.
    pub over_ms: u64,
}

/// Where a rank was at the beginning of an interval; times on its host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Beginning {
    mono_ms: u64,
    waited_ms: u64,
    iteration: u64,
}

/// How long the ranks of a generation have waited for input.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct InputHistory {
    /// When the present interval began, on the awake clock.
    since: Option<u64>,
    began: BTreeMap<Rank, Beginning>,
    bound: Option<InputBound>,
}

impl InputHistory {
    /// Takes the run now.
    pub fn observe(&mut self, model: &Model, awake_ms: u64) -> Option<InputBound> {
        let Some(now) = beginnings(model) else {
            *self = InputHistory::default();
            return None;
        };
        let since = *self.since.get_or_insert(awake_ms);
        if self.began.is_empty() {
            self.began = now;
        } else if awake_ms.saturating_sub(since) >= INTERVAL_MS {
            let less = if self.bound.is_some() { OVER } else { 0.0 };
            let least = |kind: InputKind| match kind {
                InputKind::DataLoader => BOUND - less,
                InputKind::Environments => ENVIRONMENTS_BOUND - less,
            };
            self.bound = measure(model, &self.began, &now).filter(|bound| bound.share >= least(bound.kind));
            (self.since, self.began) = (Some(awake_ms), now);
        }
        self.bound.clone()
    }
}

/// Every live rank now; `None` unless the hook counts the waits of all of them.
fn beginnings(model: &Model) -> Option<BTreeMap<Rank, Beginning>> {
    let lives = |rank: &&RankModel| !rank.lost && !matches!(rank.life, RankLife::Exited(_));
    let live = model.ranks.iter().filter(lives);
    let each = live.map(|rank| {
        let page = rank.sample.as_ref()?.page.as_ref()?;
        let waited_ms = page.input.as_ref()?.waited_ms;
        let iteration = PageSample::iteration(page)?;
        Some((rank.rank, Beginning { mono_ms: rank.watch_history.mono_ms, waited_ms, iteration }))
    });
    each.collect::<Option<BTreeMap<Rank, Beginning>>>().filter(|all| !all.is_empty())
}

/// The shares of an interval; `None` if some rank was not there all the time, or has not trained.
fn measure(
    model: &Model,
    began: &BTreeMap<Rank, Beginning>,
    now: &BTreeMap<Rank, Beginning>,
) -> Option<InputBound> {
    if began.len() != now.len() {
        return None;
    }
    let share = |(rank, now): (&Rank, &Beginning)| {
        let before = began.get(rank)?;
        let passed_ms = now.mono_ms.checked_sub(before.mono_ms).filter(|passed| *passed > 0)?;
        let waited_ms = now.waited_ms.checked_sub(before.waited_ms)?;
        let trained = now.iteration.checked_sub(before.iteration)? >= ITERATIONS;
        trained.then_some((*rank, (waited_ms as f64 / passed_ms as f64).min(1.0), passed_ms))
    };
    let all: Vec<(Rank, f64, u64)> = now.iter().map(share).collect::<Option<_>>()?;
    let (rank, share, over_ms) = all.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let input = model.ranks.get(rank.index())?.sample.as_ref()?.page.as_ref()?.input.as_ref()?;
    let mut ranks: Vec<(Rank, f64)> = all.iter().map(|(rank, share, _)| (*rank, *share)).collect();
    ranks.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some(InputBound { kind: input.kind, site: input.site.clone(), share, ranks, over_ms })
}
