//! The rows of the rank table: sorted, filtered, and which of them keys act on. Pure.
//!
//! Invariants:
//! - UI-3: a failed or stuck rank ignores filters, and is listed first when not all rows fit.
//! - UI-13: keys act on what is shown: a rank that the filter hides is neither inspected nor marked.

use crate::run::pages::ranks::RanksPage;
use crate::run::ranks::{self, RankState};
use crate::run::shared::Shared;
use rankdeck_core::model::{Model, RankModel};
use rankdeck_kit::{Glyphs, Role};
use rankdeck_types::ids::{Rank, Timestamp};
use std::cmp::Ordering;

/// Column that the rank table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    Rank,
    /// Host, then rank.
    Host,
    /// GPU or CPU use.
    Use,
    Memory,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Number of the latest collective.
    Collective,
    /// Worst first.
    State,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Sort; 8] = [
        Sort::Rank,
        Sort::Host,
        Sort::State,
        Sort::Use,
        Sort::Memory,
        Sort::EnvStep,
        Sort::Speed,
        Sort::Collective,
    ];

    /// The next column, in the order in which `o` goes through them.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rank => Sort::State,
            Sort::State => Sort::Speed,
            Sort::Speed => Sort::EnvStep,
            Sort::EnvStep => Sort::Use,
            Sort::Use => Sort::Memory,
            Sort::Memory => Sort::Collective,
            Sort::Collective => Sort::Host,
            Sort::Host => Sort::Rank,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Host => "host",
            Sort::Use => "use",
            Sort::Memory => "memory",
            Sort::EnvStep => "env_step",
            Sort::Speed => "steps/s",
            Sort::Collective => "collective",
            Sort::State => "state",
        }
    }
}

impl RanksPage {
    /// Indices into `model.ranks`, filtered and sorted; with `pin`, failed and stuck ranks come first.
    pub fn rows(&self, model: &Model, now: Timestamp, pin: bool) -> Vec<usize> {
        let words: Vec<String> = self.filter.to_lowercase().split_whitespace().map(String::from).collect();
        let keeps = |i: usize, state: &RankState| {
            state.trouble || words.iter().all(|word| matches(&model.ranks[i], state, word))
        };
        let states = model.ranks.iter().map(|rank| ranks::state_at(model, rank, Glyphs::Ascii, now));
        let mut rows: Vec<(usize, bool)> = states
            .enumerate()
            .filter(|(i, state)| keeps(*i, state))
            .map(|(i, state)| (i, state.trouble))
            .collect();
        rows.sort_by(|(a, a_bad), (b, b_bad)| {
            let pinned = if pin { b_bad.cmp(a_bad) } else { Ordering::Equal };
            let order = compare(model, &model.ranks[*a], &model.ranks[*b], self.sort, now);
            pinned.then(if self.reverse { order.reverse() } else { order }).then(a.cmp(b))
        });
        rows.into_iter().map(|(i, _)| i).collect()
    }

    /// The rows in the order of the table that was shown last.
    pub(super) fn shown_rows(&self, model: &Model, now: Timestamp) -> Vec<usize> {
        self.rows(model, now, model.ranks.len() > self.height)
    }

    /// The rank that keys act on (UI-13): the selected one, by id; where the table hides it, the first row
    /// shown. `None` when the filter shows no rank.
    pub fn selected(&self, model: &Model, shared: &Shared, is_visible: bool) -> Option<Rank> {
        if !is_visible || self.filter.is_empty() {
            let chosen = shared.selected.filter(|rank| ranks::find(model, *rank).is_some());
            return chosen.or_else(|| model.ranks.first().map(|rank| rank.rank));
        }
        let rows = self.shown_rows(model, shared.moment.now);
        let shown = || rows.iter().filter_map(|i| model.ranks.get(*i)).map(|rank| rank.rank);
        shown().find(|rank| Some(*rank) == shared.selected).or_else(|| shown().next())
    }
}

/// One word of a filter: `!` inverts, `host:`, `rank:`, `state:`, `phase:` match one field, anything else
/// all of them.
fn matches(rank: &RankModel, state: &RankState, word: &str) -> bool {
    if let Some(rest) = word.strip_prefix('!') {
        return rest.is_empty() || !matches(rank, state, rest);
    }
    let has = |text: &str, part: &str| text.to_lowercase().contains(part);
    match word.split_once(':') {
        Some(("host", part)) => has(&rank.host, part),
        Some(("rank", part)) => part.is_empty() || rank.rank.to_string() == part,
        Some(("state", part)) => has(&state.word, part),
        Some(("phase", part)) => has(ranks::phase(rank), part),
        _ => {
            has(&rank.host, word)
                || has(&state.word, word)
                || has(ranks::phase(rank), word)
                || has(&rank.device, word)
                || rank.rank.to_string() == word
                || ranks::page(rank).is_some_and(|page| {
                    has(&page.collective.call.op, word) || has(&page.collective.call.tag, word)
                })
        }
    }
}

/// Ascending for names; largest first for numbers.
fn compare(model: &Model, a: &RankModel, b: &RankModel, sort: Sort, now: Timestamp) -> Ordering {
    let float = |a: Option<f32>, b: Option<f32>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    match sort {
        Sort::Rank => a.rank.cmp(&b.rank),
        Sort::Host => a.node.cmp(&b.node),
        Sort::Use => float(ranks::usage(model, a), ranks::usage(model, b)),
        Sort::Memory => ranks::memory(model, b).cmp(&ranks::memory(model, a)),
        Sort::EnvStep => ranks::env_step(b).cmp(&ranks::env_step(a)),
        Sort::Speed => b.steps_per_s.unwrap_or(-1.0).total_cmp(&a.steps_per_s.unwrap_or(-1.0)),
        Sort::Collective => {
            let seq = |rank: &RankModel| ranks::page(rank).map(|page| page.collective.entered);
            seq(a).cmp(&seq(b))
        }
        Sort::State => {
            let grade = |rank: &RankModel| match ranks::state_at(model, rank, Glyphs::Ascii, now).role {
                Role::Bad => 0,
                Role::Warn => 1,
                Role::Good => 2,
                Role::Text | Role::Strong | Role::Accent => 3,
                Role::Dim => 4,
            };
            grade(a).cmp(&grade(b))
        }
    }
}
