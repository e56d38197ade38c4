//! What the screen says about ranks: the state as letter, glyph, word and colour; rows filtered and sorted.
//! Pure.
//!
//! Invariants:
//! - UI-3: a failed or stuck rank ignores filters, and is listed first when not all rows fit.
//! - UI-13: keys act on what is shown: a rank that the filter hides is neither inspected nor marked.

use crate::fresh;
use crate::state::{Sort, Tab, VerdictId, ViewState};
use crate::theme::{Glyphs, Role};
use rankdeck_core::model::{Model, RankLife, RankModel, Remains, RunState};
use rankdeck_core::report::{Severity, VerdictKind, VerdictReport};
use rankdeck_proto::message::{CollectiveSample, Exit, PageSample};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use std::borrow::Cow;
use std::cmp::Ordering;

/// A rank's state in every form at once, so that no meaning hangs on colour alone.
#[derive(Debug, Clone, PartialEq)]
pub struct RankState {
    /// One letter, for the strip.
    pub letter: char,
    /// A sign.
    pub glyph: &'static str,
    /// A word or two.
    pub word: Cow<'static, str>,
    /// How grave.
    pub role: Role,
    /// Failed or stuck: ignores filters.
    pub trouble: bool,
}

/// Letters of the strip and what they mean, for the help page.
pub const LETTERS: &str = "R running  S spawned  P pending  F finished  E exited  X dead  L lost, unheard  Z frozen  \
U unproved  \
B behind  D desync  N network  G gpu  V env_stuck  T straggler  W drift";

/// The worst verdict about a rank, cleared ones left out.
pub fn verdict_of(model: &Model, rank: Rank) -> Option<&VerdictReport> {
    live_verdicts(model).filter(|verdict| verdict.rank == Some(rank)).max_by_key(|verdict| verdict.severity)
}

/// Verdicts that stand, worst first.
pub fn live_verdicts(model: &Model) -> impl Iterator<Item = &VerdictReport> {
    model.verdicts.iter().filter(|verdict| verdict.severity != Severity::Cleared)
}

/// The identity of a verdict.
pub fn verdict_id(verdict: &VerdictReport) -> VerdictId {
    (verdict.verdict, verdict.rank, verdict.host.clone())
}

/// How grave a verdict is.
pub fn severity_role(severity: Severity) -> Role {
    match severity {
        Severity::Cleared => Role::Dim,
        Severity::Amber => Role::Warn,
        Severity::Red => Role::Bad,
    }
}

/// The state of a rank as far as it is known at `now`: of an unheard host, only for how long nothing came.
pub fn state_at(model: &Model, rank: &RankModel, glyphs: Glyphs, now: Timestamp) -> RankState {
    let known = state(model, rank, glyphs);
    match fresh::unheard_rank(model, rank, now) {
        Some(age) if !known.trouble => RankState {
            letter: 'L',
            glyph: "?",
            word: format!("unheard {}", fresh::coarse(age)).into(),
            role: Role::Dim,
            trouble: false,
        },
        _ => known,
    }
}

/// The state of a rank as it was heard last.
pub fn state(model: &Model, rank: &RankModel, glyphs: Glyphs) -> RankState {
    let remains = model.remains(rank);
    let open = matches!(remains, Some(Remains::LeftOver | Remains::Unproved));
    // What may still be there matters more than that the rank was slow.
    let verdict = verdict_of(model, rank.rank).filter(|verdict| !open || verdict.severity == Severity::Red);
    if let Some(verdict) = verdict {
        let red = verdict.severity == Severity::Red;
        return RankState {
            letter: verdict_letter(verdict.verdict),
            glyph: if red { glyphs.pick("✗", "x") } else { glyphs.pick("▲", "!") },
            word: match (&rank.life, verdict.verdict) {
                (RankLife::Exited(exit), VerdictKind::Dead) => exit.short().into(),
                (_, kind) => kind.name().into(),
            },
            role: severity_role(verdict.severity),
            trouble: red,
        };
    }
    let plain = |letter, glyph, word: &'static str, role| RankState {
        letter,
        glyph,
        word: word.into(),
        role,
        trouble: false,
    };
    if let Some(remains) = remains {
        return left(remains, glyphs);
    }
    match &rank.life {
        RankLife::Pending => plain('P', glyphs.pick("○", "o"), "pending", Role::Dim),
        RankLife::Spawned => plain('S', glyphs.pick("◐", "@"), "spawned", Role::Text),
        RankLife::Joined => plain('R', glyphs.pick("●", "*"), "running", Role::Good),
        RankLife::Finished => plain('F', glyphs.pick("✓", "+"), "finished", Role::Good),
        RankLife::Exited(Exit::Code { code: 0 }) => plain('E', glyphs.pick("✓", "+"), "exit 0", Role::Dim),
        RankLife::Exited(exit) => {
            let ordered = is_ordered(model, exit);
            RankState {
                letter: if ordered { 'E' } else { 'X' },
                glyph: glyphs.pick("✗", "x"),
                word: exit.short().into(),
                role: if ordered { Role::Warn } else { Role::Bad },
                trouble: !ordered,
            }
        }
    }
}

/// The state of a rank whose life does not tell its end.
fn left(remains: Remains, glyphs: Glyphs) -> RankState {
    let (letter, glyph, word, role) = match remains {
        Remains::LeftOver => ('U', glyphs.pick("✗", "x"), "left over", Role::Bad),
        Remains::Unproved => ('U', "?", "unproved", Role::Warn),
        Remains::Gone => ('E', glyphs.pick("·", "."), "gone", Role::Dim),
    };
    let trouble = remains != Remains::Gone;
    RankState { letter, glyph, word: word.into(), role, trouble }
}

/// An end by SIGTERM or SIGKILL while the run is on its way out is what was asked for.
fn is_ordered(model: &Model, exit: &Exit) -> bool {
    let leaving = matches!(model.run.state, RunState::Draining | RunState::Restarting | RunState::Over);
    exit.is_stop_signal() && leaving
}

fn verdict_letter(kind: VerdictKind) -> char {
    match kind {
        VerdictKind::Dead => 'X',
        VerdictKind::Lost => 'L',
        VerdictKind::Frozen => 'Z',
        VerdictKind::Behind => 'B',
        VerdictKind::Desync => 'D',
        VerdictKind::Network => 'N',
        VerdictKind::Gpu => 'G',
        VerdictKind::EnvStuck => 'V',
        VerdictKind::Straggler => 'T',
        VerdictKind::Drift => 'W',
        VerdictKind::TotalsDiffer | VerdictKind::Learning => '?',
    }
}

/// The ranks of a host; ranks are ordered by their hosts (PLAN-1).
pub fn on(model: &Model, node: NodeRank) -> &[RankModel] {
    let begin = model.ranks.partition_point(|rank| rank.node < node);
    let end = model.ranks.partition_point(|rank| rank.node <= node);
    model.ranks.get(begin..end).unwrap_or_default()
}

/// The status page of a rank, when it writes one.
pub fn page(rank: &RankModel) -> Option<&PageSample> {
    rank.sample.as_ref().and_then(|sample| sample.page.as_ref())
}

/// It has entered its latest collective and not left it.
pub fn inside(collective: &CollectiveSample) -> bool {
    collective.entered > collective.left
}

/// The phase, for people.
pub fn phase(rank: &RankModel) -> &'static str {
    page(rank).map_or(crate::text::NONE, |page| page.phase.name())
}

/// Its process exists, as far as is known.
pub fn alive(rank: &RankModel) -> bool {
    matches!(rank.life, RankLife::Spawned | RankLife::Joined | RankLife::Finished)
}

/// Latest own environment steps: from the status page, else from its counters.
pub fn env_step(rank: &RankModel) -> Option<u64> {
    page(rank).map(|page| page.env_step).or(rank.own.map(|own| own.env_step))
}

/// Use of what it computes on, percent: its GPU when it has one, else one core.
pub fn usage(model: &Model, rank: &RankModel) -> Option<f32> {
    match rank.gpu {
        Some(_) => {
            let own = rank.sample.as_ref().and_then(|sample| sample.gpu_share);
            own.or_else(|| gpu(model, rank)?.utilization).map(|percent| percent as f32)
        }
        None => rank.sample.as_ref().map(|sample| sample.cpu_percent),
    }
}

/// Memory of the rank, bytes: on its GPU when it has one, else resident.
pub fn memory(model: &Model, rank: &RankModel) -> Option<u64> {
    let sample = rank.sample.as_ref()?;
    match rank.gpu {
        Some(_) => sample.gpu_memory.or_else(|| gpu(model, rank).map(|gpu| gpu.memory_used)),
        None => Some(sample.rss),
    }
}

/// The GPU of a rank, as its host sees it.
pub fn gpu<'a>(model: &'a Model, rank: &RankModel) -> Option<&'a rankdeck_proto::message::GpuSample> {
    let index = rank.gpu?;
    let host = model.hosts.get(rank.node.index())?;
    host.sample.as_ref()?.gpus.iter().find(|gpu| gpu.index == index)
}

/// Indices into `model.ranks`, filtered and sorted; with `pin`, troubled ranks come first.
pub fn rows(model: &Model, view: &ViewState, pin: bool) -> Vec<usize> {
    let words: Vec<String> = view.ranks.filter.to_lowercase().split_whitespace().map(String::from).collect();
    let mut rows: Vec<(usize, bool)> = model
        .ranks
        .iter()
        .enumerate()
        .map(|(i, rank)| (i, state_at(model, rank, Glyphs::Ascii, view.moment.now)))
        .filter(|(i, state)| state.trouble || words.iter().all(|word| matches(&model.ranks[*i], state, word)))
        .map(|(i, state)| (i, state.trouble))
        .collect();
    rows.sort_by(|(a, a_bad), (b, b_bad)| {
        let pinned = if pin { b_bad.cmp(a_bad) } else { Ordering::Equal };
        let order = compare(model, &model.ranks[*a], &model.ranks[*b], view);
        pinned.then(if view.ranks.reverse { order.reverse() } else { order }).then(a.cmp(b))
    });
    rows.into_iter().map(|(i, _)| i).collect()
}

/// One word of a filter: `!` inverts, `host:`, `rank:`, `state:`, `phase:` look at one field, anything else
/// at all of them.
fn matches(rank: &RankModel, state: &RankState, word: &str) -> bool {
    if let Some(rest) = word.strip_prefix('!') {
        return rest.is_empty() || !matches(rank, state, rest);
    }
    let has = |text: &str, part: &str| text.to_lowercase().contains(part);
    match word.split_once(':') {
        Some(("host", part)) => has(&rank.host, part),
        Some(("rank", part)) => part.is_empty() || rank.rank.to_string() == part,
        Some(("state", part)) => has(&state.word, part),
        Some(("phase", part)) => has(phase(rank), part),
        _ => {
            has(&rank.host, word)
                || has(&state.word, word)
                || has(phase(rank), word)
                || has(&rank.device, word)
                || rank.rank.to_string() == word
                || page(rank).is_some_and(|page| {
                    has(&page.collective.call.op, word) || has(&page.collective.call.tag, word)
                })
        }
    }
}

/// Ascending for names; largest first for numbers, since that is what one looks for.
fn compare(model: &Model, a: &RankModel, b: &RankModel, view: &ViewState) -> Ordering {
    let float = |a: Option<f32>, b: Option<f32>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    match view.ranks.sort {
        Sort::Rank => a.rank.cmp(&b.rank),
        Sort::Host => a.node.cmp(&b.node),
        Sort::Use => float(usage(model, a), usage(model, b)),
        Sort::Memory => memory(model, b).cmp(&memory(model, a)),
        Sort::EnvStep => env_step(b).cmp(&env_step(a)),
        Sort::Speed => b.steps_per_s.total_cmp(&a.steps_per_s),
        Sort::Collective => {
            let seq = |rank: &RankModel| page(rank).map(|page| page.collective.entered);
            seq(a).cmp(&seq(b))
        }
        Sort::State => {
            let grade = |rank: &RankModel| match state_at(model, rank, Glyphs::Ascii, view.moment.now).role {
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

/// The rank that keys act on (UI-13): the selected one, by id; where the table hides it, the first row shown.
/// `None` when the filter shows no rank.
pub fn selected<'a>(model: &'a Model, view: &ViewState) -> Option<&'a RankModel> {
    let chosen = view.ranks.selected.and_then(|rank| find(model, rank));
    if view.tab != Tab::Overview || view.ranks.filter.is_empty() {
        return chosen.or_else(|| model.ranks.first());
    }
    let rows = rows(model, view, model.ranks.len() > view.geometry.rank_rows);
    let shown = || rows.iter().filter_map(|i| model.ranks.get(*i));
    shown().find(|rank| Some(rank.rank) == view.ranks.selected).or_else(|| shown().next())
}

/// A rank by its number.
pub fn find(model: &Model, rank: Rank) -> Option<&RankModel> {
    model.ranks.iter().find(|other| other.rank == rank)
}
