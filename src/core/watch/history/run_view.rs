//! The run now: the model, and a view of each rank: its history plus its latest sample, and its process
//! groups.
//!
//! A rank's counters come from its status page, which the program writes, or the hook in a Python rank. The
//! hook has no phases and compares less, because some of PyTorch's operations take different sizes on
//! different ranks legitimately.

use crate::card::CollectiveRef;
use crate::limits::TimeLimits;
use crate::model::{HostModel, Model, RankLife, RankModel};
use crate::watch::history::hosts::{DeviceHealth, HostView};
use crate::watch::history::inspections::{self, EarlierStorage, InspectionHistory, InspectionLog};
use crate::watch::history::movement::{self, ProgressDelta};
use crate::watch::history::patience::{LineWaits, Patience};
use crate::watch::history::rank_history::RankHistory;
use crate::watch::history::silence::{SilenceKind, SilenceModel, SilenceThreshold};
use rankdeck_proto::inspection::{Inspection, Obstacle, Socket};
use rankdeck_proto::message::{CollectiveCall, GpuSample, PageSample, Phase, RankSample, RecentCollective};
use rankdeck_types::ids::{NodeRank, Rank};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// Milliseconds without a message after which a host's samples are too old to compare.
const FRESH_MS: u64 = 3_000;

/// The run now.
pub(crate) struct RunView<'a> {
    pub model: &'a Model,
    /// Ranks with a sample, in rank order.
    pub views: Vec<RankView<'a>>,
    /// By node rank: the host has sent messages recently.
    pub fresh: Vec<bool>,
}

/// What is remembered next to the ranks' own histories.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub silence: &'a SilenceModel,
    pub patience: &'a Patience,
    pub inspections: &'a InspectionLog,
    pub devices: &'a DeviceHealth,
}

impl<'a> RunView<'a> {
    /// Builds the views. Hosts beyond the end of `fresh` count as silent.
    pub fn new(model: &'a Model, memory: Memory<'a>, fresh: Vec<bool>, limits: &TimeLimits) -> RunView<'a> {
        let mut on_gpus: BTreeMap<(NodeRank, u32), usize> = BTreeMap::new();
        for rank in &model.ranks {
            rank.gpu.into_iter().for_each(|gpu| *on_gpus.entry((rank.node, gpu)).or_default() += 1);
        }
        let mut thresholds = memory.silence.thresholds(limits);
        let view = |rank: &'a RankModel| {
            let (left, died) = match &rank.life {
                RankLife::Exited(_) => (rank.ended_well(), !rank.ended_well()),
                RankLife::Pending => return None,
                RankLife::Spawned | RankLife::Joined | RankLife::Finished => (false, false),
            };
            // The others do not wait for a rank without which they continue.
            let sample = rank.sample.as_ref().filter(|_| !rank.lost)?;
            let host = model.hosts.get(rank.node.index()).and_then(|host| host.sample.as_ref());
            let gone = left || died;
            let inspections = memory.inspections.of_rank(rank.rank);
            let site = inspections.and_then(|all| all.stay.as_ref()).map(|stay| stay.site.as_str());
            Some(RankView {
                rank: rank.rank,
                node: rank.node,
                sample,
                history: &rank.watch_history,
                inspections,
                line_waits: site.map(|site| memory.patience.at(site)).unwrap_or_default(),
                fresh: !gone && fresh.get(rank.node.index()).copied().unwrap_or(false),
                left,
                died,
                threshold: thresholds.of(silence_kind(sample)),
                groups: groups(sample),
                host: host.map_or(HostView::default(), |host| HostView {
                    flaps: memory.devices.flaps(rank.node, host.mono_ms),
                    ..HostView::new(host)
                }),
                gpu: host.and_then(|host| host.gpus.iter().find(|gpu| Some(gpu.index) == rank.gpu)),
                gpu_is_shared: rank.gpu.is_some_and(|gpu| on_gpus.get(&(rank.node, gpu)) > Some(&1)),
                recent: OnceCell::new(),
            })
        };
        RunView { model, views: model.ranks.iter().filter_map(view).collect(), fresh }
    }

    /// A run whose ranks are not needed.
    pub fn without_ranks(model: &'a Model) -> RunView<'a> {
        RunView { model, views: Vec::new(), fresh: Vec::new() }
    }

    /// Live ranks whose hosts send messages.
    pub fn answering(&self) -> impl Iterator<Item = &RankView<'a>> {
        self.views.iter().filter(|view| view.fresh && view.alive())
    }

    /// Returns the view of a rank.
    pub fn view(&self, rank: Rank) -> Option<&RankView<'a>> {
        of(&self.views, rank)
    }

    /// Live ranks inside a collective now, except `not`.
    pub fn inside(&self, not: Rank) -> Vec<Rank> {
        let waits = |view: &&RankView| view.rank != not && view.waiting().is_some();
        self.views.iter().filter(waits).map(|view| view.rank).collect()
    }

    /// Ranks to inspect: those of `suspects` that can be inspected, once each.
    pub fn inspectable(&self, suspects: &[Rank]) -> Vec<(NodeRank, Rank)> {
        let mut found: Vec<(NodeRank, Rank)> = Vec::new();
        for rank in suspects {
            let view = self.view(*rank).filter(|view| view.fresh && view.alive());
            if let Some(view) = view.filter(|view| !found.contains(&(view.node, view.rank))) {
                found.push((view.node, view.rank));
            }
        }
        found
    }
}

/// Returns the histories of ranks whose processes run and have sent samples.
pub(crate) fn living(model: &Model) -> Vec<(Rank, &RankHistory)> {
    let lives = |rank: &&RankModel| {
        let runs = !matches!(rank.life, RankLife::Exited(_) | RankLife::Pending);
        runs && !rank.lost && rank.watch_history.mono_ms > 0
    };
    model.ranks.iter().filter(lives).map(|rank| (rank.rank, &rank.watch_history)).collect()
}

/// Whether each host has sent messages recently.
pub(crate) fn fresh_hosts(model: &Model, awake_ms: u64, limits: &TimeLimits) -> Vec<bool> {
    let fresh = |host: &HostModel| {
        host.is_live()
            && awake_ms.saturating_sub(host.machine.last_message_awake_ms) < FRESH_MS.min(limits.lost.max(1))
    };
    model.hosts.iter().map(fresh).collect()
}

/// Name of the group of all ranks.
pub(crate) const WORLD: &str = "world";

/// Operations of PyTorch in which all members must bring the same number of elements.
const SAME_SIZE: [&str; 3] = ["all_reduce", "broadcast", "barrier"];

/// CPU share from which a rank is busy.
const BUSY: f64 = 0.8;

/// Each member sends a part to each other one.
const EXCHANGE: &str = "all_to_all";

/// One rank now: its history plus its latest sample.
#[derive(Debug, Clone)]
pub(crate) struct RankView<'a> {
    pub rank: Rank,
    pub node: NodeRank,
    /// Its latest sample.
    pub sample: &'a RankSample,
    /// What is remembered of its earlier samples.
    pub history: &'a RankHistory,
    /// Its inspections since it stands still.
    pub inspections: Option<&'a InspectionHistory>,
    /// Earlier waits at the line where the inspections see it.
    pub line_waits: LineWaits,
    /// Its host sends messages.
    pub fresh: bool,
    /// It exited with code 0.
    pub left: bool,
    /// It exited otherwise: its page shows its last state.
    pub died: bool,
    /// How long a silence is usual in its phase.
    pub threshold: SilenceThreshold,
    /// The process groups that the rank belongs to.
    pub groups: Vec<Membership<'a>>,
    /// Its host, as far as it matters.
    pub host: HostView,
    /// The GPU that the rank uses.
    pub gpu: Option<&'a GpuSample>,
    /// Another rank of the run uses it, too.
    pub gpu_is_shared: bool,
    /// What changed recently, once requested: for most ranks it never is.
    pub recent: OnceCell<ProgressDelta>,
}

/// How far the program of a rank is: it has done something if this has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SeenProgress {
    /// Collectives entered and left.
    collectives: (u64, u64),
    steps: u64,
    phase: Option<(Phase, u64)>,
}

/// The wait of a rank as an inspection has seen it. It is another wait once the rank has made a step or called a
/// collective, and once another inspection shows another place or another end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SeenWait {
    progress: SeenProgress,
    /// The function of the program.
    function: String,
    /// What it waits for.
    end: String,
    /// That sleeps, and wakes by itself.
    sleeps: bool,
}

/// One group as one member counts it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Membership<'a> {
    /// Name; [`WORLD`] where the page gives none.
    pub name: &'a str,
    /// Members, 0 when unknown.
    pub size: u32,
    /// Number of the collective that was entered last.
    pub entered: u64,
    /// It is inside that one, and waits there.
    pub inside: bool,
    /// For how long, ms.
    pub age_ms: u64,
    /// Chain hash, 0 when unknown.
    pub chain: u64,
}

impl RankView<'_> {
    /// Returns what changed over the latest two to three seconds.
    pub fn moved(&self) -> &ProgressDelta {
        self.recent.get_or_init(|| self.history.moved())
    }

    /// Milliseconds, on its host's clock, over which its collective counters have not moved.
    pub fn still_ms(&self) -> u64 {
        self.history.still_ms()
    }

    /// Milliseconds for which it has been seen stopped or frozen.
    pub fn halted_ms(&self) -> Option<u64> {
        self.history.stopped_ms().into_iter().chain(self.history.frozen_ms()).max()
    }

    /// Milliseconds since its main thread was seen active; `None` if the agent does not report it.
    pub fn idle_ms(&self) -> Option<u64> {
        self.history.idle_ms()
    }

    /// The rank's own status page, where it writes one.
    pub fn page(&self) -> Option<&PageSample> {
        self.sample.page.as_ref()
    }

    /// CPU share of the main thread of a script; of the whole process where that is all that is known, and
    /// for the built-in trainer, which computes in several threads.
    pub fn cpu_share(&self) -> f64 {
        let main = self.moved().main_cpu.filter(|_| self.phase().is_none());
        main.or(self.moved().cpu).unwrap_or(f64::from(self.sample.cpu_percent) / 100.0)
    }

    /// Time in which it was ready to run and got no core counts.
    pub fn never_sleeps(&self) -> bool {
        self.moved().over_ms > 0 && self.cpu_share() + self.moved().delayed >= BUSY
    }

    /// Its phase, if it reports one.
    pub fn phase(&self) -> Option<Phase> {
        self.page().filter(|page| !page.by_hook).map(|page| page.phase)
    }

    /// Its process is there.
    pub fn alive(&self) -> bool {
        !self.left && !self.died
    }

    /// Inside a collective of some group.
    pub fn waiting(&self) -> Option<&Membership<'_>> {
        self.groups.iter().filter(|group| group.inside && !self.left).max_by_key(|group| group.age_ms)
    }

    /// The call in which it waits.
    pub fn waiting_call(&self) -> Option<CollectiveRef> {
        self.call_in(self.waiting()?.name)
    }

    /// The collective that it entered last, if that is one of this group.
    pub fn call_in(&self, group: &str) -> Option<CollectiveRef> {
        let latest = &self.page()?.collective;
        if named(&latest.call.group) == group { call(self.sample) } else { None }
    }

    /// Milliseconds without a sign of life from the program.
    pub fn silence_ms(&self) -> u64 {
        movement::silence(self.sample).unwrap_or(self.still_ms())
    }

    /// Milliseconds without a sign of life from the program, or from the main thread of a script.
    pub fn quiet_ms(&self) -> u64 {
        let idle = self.idle_ms().filter(|_| self.phase().is_none());
        idle.map_or(self.silence_ms(), |idle| idle.min(self.silence_ms()))
    }

    /// The inspection that shows what it waits for: the latest one, or an earlier one that saw it wait, if
    /// the latest did not and the rank has done nothing since (INSPECT-3).
    pub fn inspection(&self) -> Option<&Inspection> {
        let latest = self.latest_inspection()?;
        let waiting = self.inspections.and_then(|all| all.waiting.as_ref());
        let holds = |inspection: &&Inspection| {
            inspection.began_ms > 0 && self.quiet_ms() >= self.age_ms(inspection) && self.was_awake()
        };
        Some(waiting.filter(holds).unwrap_or(latest))
    }

    /// The latest inspection.
    fn latest_inspection(&self) -> Option<&Inspection> {
        self.inspections?.latest.as_ref()
    }

    /// Milliseconds since that inspection began; 0 if the agent does not report it.
    pub fn inspection_age_ms(&self) -> u64 {
        self.inspection().map_or(0, |inspection| self.age_ms(inspection))
    }

    fn age_ms(&self, inspection: &Inspection) -> u64 {
        if inspection.began_ms > 0 { self.history.mono_ms.saturating_sub(inspection.began_ms) } else { 0 }
    }

    /// How far its program is.
    pub fn seen_progress(&self) -> SeenProgress {
        let page = self.page();
        SeenProgress {
            collectives: page.map_or((0, 0), |page| (page.collective.entered, page.collective.left)),
            steps: page.map_or(0, |page| page.updates),
            phase: page.map(|page| (page.phase, page.phase_progress)),
        }
    }

    /// The wait that its inspection shows; `None` as long as none shows where it is.
    pub fn seen_wait(&self) -> Option<SeenWait> {
        let inspection = self.inspection()?;
        Some(SeenWait {
            progress: self.seen_progress(),
            function: inspections::user_function(inspection)?,
            end: inspection.obstacle.as_ref().map(Obstacle::name).unwrap_or_default(),
            sleeps: inspection.awaited_sleep_ms.or(inspection.os.sleep_left_ms).is_some(),
        })
    }

    /// The functions of its main thread at the inspection before, as a hash.
    pub fn functions_before(&self) -> Option<u64> {
        self.inspections?.functions_before
    }

    /// For how long inspections have seen its main thread at the same line, ms, and how many of them in another
    /// sleep.
    pub fn stay(&self) -> (u64, u32) {
        let stay = self.inspections.and_then(|all| all.stay.as_ref());
        stay.map_or((0, 0), |stay| (self.history.mono_ms.saturating_sub(stay.since_ms), stay.naps))
    }

    /// What the inspection before showed of the storage that it waits for.
    pub fn storage_before(&self) -> EarlierStorage {
        self.inspections.map(|all| all.storage_before).unwrap_or_default()
    }

    /// Its connections at an earlier inspection.
    pub fn sockets_before(&self) -> &[Socket] {
        self.inspections.map(|all| all.sockets_before.as_slice()).unwrap_or_default()
    }

    /// The inspection, as long as it shows the present: `None` once the rank has done anything since.
    pub fn current_inspection(&self) -> Option<&Inspection> {
        self.inspection().filter(|_| !self.inspection_is_stale())
    }

    /// The rank has done something since its inspection began, or was just about to.
    pub fn inspection_is_stale(&self) -> bool {
        let awake = |inspection: &Inspection| inspection.os.is_awake() && self.was_awake();
        self.inspection()
            .is_some_and(|inspection| self.quiet_ms() < self.age_ms(inspection) || awake(inspection))
    }

    /// The latest inspection caught it between two waits: it polls, and wakes now and then to do so again.
    fn was_awake(&self) -> bool {
        self.latest_inspection().is_some_and(|inspection| inspection.os.is_awake())
            && self.sample.state != 'R'
            && !self.never_sleeps()
    }

    /// Its connections at the latest inspection.
    pub fn sockets(&self) -> &[Socket] {
        self.latest_inspection().map(|inspection| inspection.sockets.as_slice()).unwrap_or_default()
    }

    /// An inspection shows that the storage which it waits for makes progress.
    pub fn storage_answers(&self) -> bool {
        let moves = |inspection: &Inspection| {
            inspection.storage_moved > 0 || self.storage_before().has_moved_since(inspection.storage_bytes)
        };
        self.was_awake() || self.current_inspection().is_some_and(moves)
    }

    /// Number of the collective that it entered last in a group.
    pub fn entered(&self, group: &str) -> u64 {
        self.group(group).map_or(0, |group| group.entered)
    }

    /// It lives, and waits in this group.
    pub fn waits_in(&self, name: &str) -> bool {
        self.alive() && self.waiting().is_some_and(|group| group.name == name)
    }

    /// Membership in a group.
    pub fn group(&self, name: &str) -> Option<&Membership<'_>> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Its latest collectives in a group, oldest first.
    pub fn recent(&self, group: &str) -> Vec<&RecentCollective> {
        let recent = self.page().map(|page| page.recent.as_slice()).unwrap_or_default();
        recent.iter().filter(|recent| named(&recent.call.group) == group).collect()
    }
}

/// The view of a rank, of all views in rank order.
pub(crate) fn of<'a, 'b>(views: &'b [RankView<'a>], rank: Rank) -> Option<&'b RankView<'a>> {
    views.get(views.binary_search_by_key(&rank, |view| view.rank).ok()?)
}

/// The groups of a rank. A page that names no group counts in the group of all ranks.
pub(crate) fn groups(sample: &RankSample) -> Vec<Membership<'_>> {
    let Some(page) = &sample.page else { return Vec::new() };
    let latest = &page.collective;
    let inside_any = latest.left < latest.entered;
    if page.groups.is_empty() {
        return vec![Membership {
            name: WORLD,
            size: 0,
            entered: latest.entered,
            inside: inside_any,
            age_ms: latest.age_ms,
            chain: 0,
        }];
    }
    let counted = page.groups.iter().map(|group| {
        let name = named(&group.name);
        let here = latest.entered == 0 || named(&latest.call.group) == name;
        let inside = inside_any && here && group.left < group.entered;
        Membership {
            name,
            size: group.size,
            entered: group.entered,
            inside,
            age_ms: if inside { latest.age_ms } else { 0 },
            chain: if page.by_hook { 0 } else { group.chain },
        }
    });
    counted.collect()
}

fn named(name: &str) -> &str {
    if name.is_empty() { WORLD } else { name }
}

/// Elements that must be equal on all members; 0 where they may differ.
pub(crate) fn compared_count(page: &PageSample, op: &str, count: u64) -> u64 {
    if page.by_hook && op != EXCHANGE && !SAME_SIZE.contains(&op) { 0 } else { count }
}

/// Whether the element counts of two members fit together. The hook has no count for an exchange in unequal
/// parts.
pub(crate) fn counts_fit(op: &str, mine: u64, theirs: u64) -> bool {
    mine == theirs || op == EXCHANGE && (mine == 0 || theirs == 0)
}

/// The two ranks of a group that the hook makes up for calls between two: `3>5`.
pub(crate) fn pair(group: &str) -> Option<[Rank; 2]> {
    let (from, to) = group.split_once('>')?;
    Some([Rank(from.parse().ok()?), Rank(to.parse().ok()?)])
}

/// The collective that a rank entered last.
pub(crate) fn call(sample: &RankSample) -> Option<CollectiveRef> {
    let page = sample.page.as_ref()?;
    let latest = &page.collective;
    let all = latest.call.group == WORLD;
    (latest.entered > 0).then(|| CollectiveRef {
        inside: latest.left < latest.entered,
        seq: if latest.group_seq > 0 { latest.group_seq } else { latest.entered },
        call: CollectiveCall {
            group: if all { String::new() } else { latest.call.group.clone() },
            ..latest.call.clone()
        },
        age_ms: latest.age_ms,
    })
}

/// Where a rank is, for what is usual there.
fn silence_kind(sample: &RankSample) -> SilenceKind {
    SilenceKind::of(sample.page.as_ref(), sample.rank.0 == 0)
}
