//! A stall of the whole run: no rank waits for another, and nothing moves on any of them. Pure.
//!
//! A world of one that waits, shared storage that hangs for all, a lock that all want: there is no frontier
//! to follow. What tells is the run's own past: nothing has moved for longer than ever before. Scripts
//! without the hook show no collectives, so that there the waits of all ranks end here, too; their stacks say
//! which of them waits for the others.

use super::cause::{self, LOOK_MS};
use super::draft::{Draft, Judgement};
use super::evidence::Snapshot;
use super::rank_view::RankView;
use super::{Detection, gauges, looks, program, shortage};
use crate::limits::Limits;
use crate::reason::{Reason, SentenceForm, Severity};
use crate::report::Confidence;
use rankdeck_proto::inspection::{How, Inspection, Obstacle};
use rankdeck_proto::message::{PageSample, Phase};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};

/// How many times the longest pause so far, and the time after which a rank is behind, must pass.
const LONGER: u64 = 2;
/// A stall is red after so many times that, and not before so long, ms.
const RED: u64 = 3;
const RED_MS: u64 = 30_000;
/// A run that is younger has no past to speak of, ms, unless all of its ranks train.
const YOUNG_MS: u64 = 30_000;
/// Iterations after which a rank trains: whatever it prepares for the first ones is there.
const TRAINS: u64 = 2;

/// What is remembered of the run as a whole. Times are on the awake clock.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Standstill {
    begun: Option<u64>,
    moved: Option<u64>,
    longest_ms: u64,
}

impl Standstill {
    /// Something else explains the present moment: it is no pause to learn from.
    pub fn interrupt(&mut self) {
        self.moved = None;
    }

    /// Takes a moment of the run.
    pub fn look(&mut self, snapshot: &Snapshot<'_>, awake_ms: u64, limits: &Limits) -> Option<Detection> {
        if !is_telling(snapshot) {
            self.interrupt();
            return None;
        }
        let begun = *self.begun.get_or_insert(awake_ms);
        let moved = *self.moved.get_or_insert(awake_ms);
        let still_ms = awake_ms.saturating_sub(moved);
        if snapshot.views.iter().any(|view| program::moves(view, limits.rank0)) {
            self.longest_ms = self.longest_ms.max(still_ms);
            self.moved = Some(awake_ms);
            return None;
        }
        let new = moved.saturating_sub(begun) < YOUNG_MS || snapshot.views.iter().any(is_cold);
        let young = new && !snapshot.views.iter().all(trains);
        let usual =
            snapshot.views.iter().filter(|view| view.phase().is_some()).map(|view| view.threshold.stuck);
        let own = limits.behind.max(self.longest_ms).saturating_mul(LONGER);
        let bound = usual.chain([own]).max().unwrap_or(own);
        let red = if young { limits.init.max(bound) } else { bound.saturating_mul(RED).max(RED_MS) };
        let suspects = if still_ms >= limits.behind.min(bound / 2) { suspects(snapshot) } else { Vec::new() };
        let short = snapshot.views.iter().filter(|view| suspects.contains(&view.rank));
        let short = short.filter(|view| shortage::lacks_cores(view)).map(shortage::stretch);
        let red = red.saturating_mul(short.max().unwrap_or(1));
        let seen =
            snapshot.views.iter().all(|view| view.evidence().is_some() || !suspects.contains(&view.rank));
        let told = still_ms >= bound && (seen || still_ms >= bound.saturating_add(LOOK_MS));
        let severity = if still_ms >= red { Severity::Red } else { Severity::Amber };
        Some(Detection { node: None, verdict: told.then(|| verdict(snapshot, severity, still_ms)), suspects })
    }
}

/// The first ranks, which stand for all.
fn suspects(snapshot: &Snapshot<'_>) -> Vec<Rank> {
    snapshot.views.iter().map(|view| view.rank).take(looks::MOST).collect()
}

/// All ranks are there and heard of, and none of them waits for another one as far as pages tell.
fn is_telling(snapshot: &Snapshot<'_>) -> bool {
    let alone = |view: &RankView| {
        let meets = view.page().is_some_and(|page| page.phase == Phase::Rendezvous);
        let known = view.page().is_some() || view.idle_ms.is_some();
        view.fresh && view.alive() && view.halted_ms.is_none() && view.waiting().is_none() && known && !meets
    };
    !snapshot.views.is_empty()
        && snapshot.views.len() == snapshot.model.ranks.len()
        && snapshot.views.iter().all(alone)
}

/// A script that has not come to its loop yet.
fn is_cold(view: &RankView<'_>) -> bool {
    view.page().is_some_and(|page| page.by_hook && page.collective.entered <= 2 && page.train_iter == 0)
}

/// It has come to its loop and gone round, as its iterations or the steps of its optimisers tell.
fn trains(view: &RankView<'_>) -> bool {
    view.page().and_then(PageSample::iteration).is_some_and(|iteration| iteration >= TRAINS)
}

fn verdict(snapshot: &Snapshot<'_>, severity: Severity, still_ms: u64) -> crate::report::VerdictReport {
    let views = snapshot.views;
    let outside: Vec<&RankView> =
        views.iter().filter(|view| view.look.is_some_and(|look| !is_in_collective(look))).collect();
    // One of them holds up all the others, which wait for it where no page shows it.
    let rank = match (views, &outside[..]) {
        ([only], _) => Some(only.rank),
        (_, [one]) if views.iter().all(|view| view.look.is_some()) => Some(one.rank),
        _ => None,
    };
    let blamed: Vec<&RankView> =
        views.iter().filter(|view| rank.is_none_or(|rank| rank == view.rank)).collect();
    let at = blamed.iter().find_map(|view| view.look.and_then(cause::user_frame));
    let words = vec![
        ("who", rank.map(|rank| gauges::name(snapshot.model, rank)).unwrap_or_default()),
        ("count", views.len().to_string()),
        ("cause", shared(&blamed)),
        ("at", at.map(|at| format!(" at {at}")).unwrap_or_default()),
        ("waited", words::duration_ms(still_ms)),
    ];
    let judged = Judgement { severity, confidence: Confidence::Likely, reason: Reason::Standstill };
    let observations = views.iter().take(looks::MOST).map(|view| place(snapshot, view)).collect();
    let draft = Draft {
        form: if rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank,
        host: gauges::host_of(snapshot.model, rank),
        waiter: views.iter().map(|view| view.rank).find(|other| rank.is_some_and(|rank| rank != *other)),
        observations,
        latency_ms: still_ms,
        ..Draft::new(judged, words)
    };
    draft.verdict(snapshot.model, views)
}

/// What a rank waits in, in words.
fn waits_in(view: &RankView<'_>) -> String {
    let named = view.look.and_then(|look| look.obstacle.as_ref()).map(Obstacle::words);
    let looked = named.or_else(|| view.look.and_then(|look| look.blocked_on.clone()));
    let kernel = || Some(view.sample.wchan.clone()).filter(|wchan| !wchan.is_empty());
    match view.sample.state {
        'D' => looked.map_or("the kernel, as on storage that does not answer".into(), |what| {
            format!("the kernel: {what}")
        }),
        _ => looked.or_else(kernel).unwrap_or_else(|| "something unknown".into()),
    }
}

/// What they have in common. Numbers differ from process to process.
fn shared(blamed: &[&RankView<'_>]) -> String {
    let bare = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let all: Vec<String> = blamed.iter().map(|view| waits_in(view)).collect();
    match all.first() {
        Some(first) if all.iter().all(|other| bare(other) == bare(first)) => {
            format!("waiting for {}", words::clip(first, 160))
        }
        _ => "waiting for different things".into(),
    }
}

fn place(snapshot: &Snapshot<'_>, view: &RankView<'_>) -> String {
    let at = view.look.and_then(cause::user_frame).map(|at| format!(" at {at}")).unwrap_or_default();
    let what = words::clip(&waits_in(view), 160);
    format!(
        "{} waits for {what}{at}, nothing moves for {}",
        gauges::name(snapshot.model, view.rank),
        words::duration_ms(view.quiet_ms())
    )
}

/// Its main thread is inside a call of the process group.
fn is_in_collective(look: &Inspection) -> bool {
    let main = look.threads.iter().filter(|thread| Some(thread.tid) == look.pid && thread.how != How::Kernel);
    main.flat_map(|thread| &thread.frames).any(|frame| {
        frame.file.as_deref().is_some_and(|file| file.contains("torch/distributed"))
            || ["c10d::", "gloo::"].iter().any(|part| frame.function.contains(part))
    })
}
