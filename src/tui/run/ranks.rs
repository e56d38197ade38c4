//! States of ranks as letter, glyph, word and color, their verdicts, and other values of a rank. Pure.

use crate::run::shared::VerdictId;
use crate::run::staleness;
use rankdeck_core::model::{EventSubject, HistoryLine, LeftoverState, Model, RankLife, RankModel, RunState};
use rankdeck_core::report::{Severity, VerdictKind, VerdictReport};
use rankdeck_kit::{Glyphs, Role};
use rankdeck_proto::message::{CollectiveSample, PageSample};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use std::borrow::Cow;

/// A rank's state in every form, so that no meaning depends on color alone.
#[derive(Debug, Clone, PartialEq)]
pub struct RankState {
    /// One letter, for the strip.
    pub letter: char,
    /// A sign.
    pub glyph: &'static str,
    /// A word or two.
    pub word: Cow<'static, str>,
    /// Its severity.
    pub role: Role,
    /// Failed or stuck: ignores filters.
    pub trouble: bool,
}

/// Letters of the strip and what they mean, for the help page.
pub const LETTERS: &str = "R running  S spawned  P pending  F finished  E exited  X dead  L lost, silent  Z frozen  \
U unverified  \
B behind  D desync  N network  G gpu  V env_stuck  T straggler  W drift";

/// The worst verdict about a rank, cleared ones left out.
pub fn verdict_of(model: &Model, rank: Rank) -> Option<&VerdictReport> {
    live_verdicts(model).filter(|verdict| verdict.rank == Some(rank)).max_by_key(|verdict| verdict.severity)
}

/// Active verdicts, worst first.
pub fn live_verdicts(model: &Model) -> impl Iterator<Item = &VerdictReport> {
    model.verdicts.iter().filter(|verdict| verdict.severity != Severity::Cleared)
}

/// The verdict with that identity, `None` when it is gone.
pub fn find_verdict<'a>(model: &'a Model, about: &VerdictId) -> Option<&'a VerdictReport> {
    model.verdicts.iter().find(|verdict| verdict_id(verdict) == *about)
}

/// The newest event about a verdict, with its evidence.
pub fn latest_verdict(model: &Model) -> Option<&HistoryLine> {
    model.history.iter().rev().find(|line| matches!(line.subject, Some(EventSubject::Verdict(_))))
}

/// The subject of a verdict: `rank 3 on node-a`.
pub fn subject(verdict: &VerdictReport) -> String {
    match (verdict.rank, &verdict.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the run".into(),
    }
}

/// The identity of a verdict.
pub fn verdict_id(verdict: &VerdictReport) -> VerdictId {
    (verdict.verdict, verdict.rank, verdict.host.clone())
}

/// The role of a severity.
pub fn severity_role(severity: Severity) -> Role {
    match severity {
        Severity::Cleared => Role::Dim,
        Severity::Amber => Role::Warn,
        Severity::Red => Role::Bad,
    }
}

/// The state of a rank at `now`; if its host is silent, for how long.
pub fn state_at(model: &Model, rank: &RankModel, glyphs: Glyphs, now: Timestamp) -> RankState {
    let known = state(model, rank, glyphs);
    match staleness::rank_silence(model, rank, now) {
        Some(age) if !known.trouble => RankState {
            letter: 'L',
            glyph: "?",
            word: format!("silent {}", staleness::coarse(age)).into(),
            role: Role::Dim,
            trouble: false,
        },
        _ => known,
    }
}

/// The last reported state of a rank.
pub fn state(model: &Model, rank: &RankModel, glyphs: Glyphs) -> RankState {
    let plain = |letter, glyph, word: &'static str, role| RankState {
        letter,
        glyph,
        word: word.into(),
        role,
        trouble: false,
    };
    let joins = model.membership.joining == Some(rank.rank);
    if rank.lost && joins && alive(rank) {
        return plain('J', glyphs.pick("◐", "@"), "joining", Role::Text);
    }
    let remains = model.remains(rank);
    let open = matches!(remains, Some(LeftoverState::LeftOver | LeftoverState::Unproved));
    // A process that may still run matters more than a slow rank.
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
    if rank.lost && !open {
        return plain('L', glyphs.pick("▲", "!"), "lost", Role::Warn);
    }
    if let Some(remains) = remains {
        return left(remains, glyphs);
    }
    match &rank.life {
        RankLife::Pending => plain('P', glyphs.pick("○", "o"), "pending", Role::Dim),
        RankLife::Spawned => plain('S', glyphs.pick("◐", "@"), "spawned", Role::Text),
        RankLife::Joined => plain('R', glyphs.pick("●", "*"), "running", Role::Good),
        RankLife::Finished => plain('F', glyphs.pick("✓", "+"), "finished", Role::Good),
        RankLife::Exited(exit) if rank.ended_well() => {
            RankState { word: exit.short().into(), ..plain('E', glyphs.pick("✓", "+"), "", Role::Dim) }
        }
        RankLife::Exited(exit) => {
            let ordered = is_ordered(model, rank);
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

/// The state of a rank whose end was not reported.
fn left(remains: LeftoverState, glyphs: Glyphs) -> RankState {
    let (letter, glyph, word, role) = match remains {
        LeftoverState::LeftOver => ('U', glyphs.pick("✗", "x"), "left over", Role::Bad),
        LeftoverState::Unproved => ('U', "?", "unverified", Role::Warn),
        LeftoverState::Gone => ('E', glyphs.pick("·", "."), "gone", Role::Dim),
    };
    let trouble = remains != LeftoverState::Gone;
    RankState { letter, glyph, word: word.into(), role, trouble }
}

/// What a stop causes while the run is stopping was requested.
fn is_ordered(model: &Model, rank: &RankModel) -> bool {
    let leaving = matches!(model.run.state, RunState::Draining | RunState::Restarting | RunState::Over);
    leaving && !rank.failed()
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

/// It is inside its latest collective.
pub fn inside(collective: &CollectiveSample) -> bool {
    collective.entered > collective.left
}

/// The phase, for people.
pub fn phase(rank: &RankModel) -> &'static str {
    page(rank).map_or(rankdeck_kit::text::NONE, |page| page.phase.name())
}

/// Its process is running, by the latest report.
pub fn alive(rank: &RankModel) -> bool {
    matches!(rank.life, RankLife::Spawned | RankLife::Joined | RankLife::Finished)
}

/// Latest own environment steps: from the status page, unless a hook writes it, else from its counters.
pub fn env_step(rank: &RankModel) -> Option<u64> {
    page(rank).filter(|page| !page.by_hook).map(|page| page.env_step).or(rank.own.map(|own| own.env_step))
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

/// The rank a number of steps after another one.
pub fn neighbor(model: &Model, from: Option<Rank>, step: i8) -> Option<Rank> {
    let at = from.map_or(0, Rank::index);
    let last = model.ranks.len().saturating_sub(1);
    let rank = model.ranks.get(at.saturating_add_signed(isize::from(step)).min(last))?;
    Some(rank.rank)
}

/// A rank by its number.
pub fn find(model: &Model, rank: Rank) -> Option<&RankModel> {
    model.ranks.iter().find(|other| other.rank == rank)
}

/// A rank by its number as it is typed.
///
/// # Errors
/// There is no such rank.
pub fn named(model: &Model, text: &str) -> Result<Rank, String> {
    let rank = text.parse().ok().map(Rank).filter(|rank| find(model, *rank).is_some());
    rank.ok_or_else(|| match model.ranks.len() {
        0 => "no ranks yet".to_string(),
        all => format!("unknown rank `{text}`; ranks are 0 to {}", all - 1),
    })
}
