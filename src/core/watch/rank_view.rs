//! What the watch knows of one rank at one moment: its latest sample, its groups, and what moves. Pure.
//!
//! A rank's counters come from its status page, which the program writes or the hook in a Python rank; the
//! hook knows no phases, and compares less, because some of PyTorch's operations take different sizes on
//! different ranks by right.

use super::movement::{self, Movement};
use super::pace::{SilenceKind, Threshold};
use super::track::Track;
use crate::card::Call;
use rankdeck_proto::inspection::{Inspection, Socket};
use rankdeck_proto::message::{
    CollectiveCall, GpuSample, HostSample, PageSample, Phase, RankSample, RecentCollective,
};
use rankdeck_types::ids::{NodeRank, Rank};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// Name of the group of all ranks.
pub(super) const WORLD: &str = "world";

/// Operations of PyTorch in which all members must bring the same number of elements.
const SAME_SIZE: [&str; 3] = ["all_reduce", "broadcast", "barrier"];

/// CPU share from which a rank is busy.
const BUSY: f64 = 0.8;

/// Each member sends a part to each other one.
const EXCHANGE: &str = "all_to_all";

/// One rank at one moment.
#[derive(Debug, Clone)]
pub(super) struct RankView<'a> {
    pub rank: Rank,
    pub node: NodeRank,
    /// Its latest sample.
    pub sample: &'a RankSample,
    /// Its host answers.
    pub fresh: bool,
    /// It ended with exit code 0.
    pub left: bool,
    /// It ended otherwise: what its page shows is its last word.
    pub died: bool,
    /// Milliseconds, on its host's clock, over which its counters have not moved.
    pub still_ms: u64,
    /// For how long it has been seen stopped or frozen, ms.
    pub halted_ms: Option<u64>,
    /// For how long it has been seen in state D, ms.
    pub blocked_ms: Option<u64>,
    /// Milliseconds since its main thread was seen to do anything; `None` when the agent does not tell.
    pub idle_ms: Option<u64>,
    /// The longest pause of its main thread that has ended by itself since its counters moved, ms.
    pub longest_pause_ms: u64,
    /// Children that had ended already when its counters moved.
    pub ended_before: &'a BTreeSet<u32>,
    /// CPU share of its children and other threads while its counters moved.
    pub usual_helpers: f64,
    /// Bytes per second that its children moved meanwhile.
    pub usual_io: f64,
    /// What is remembered of it, and what moved lately once somebody has asked: of most ranks nobody does.
    pub track: &'a Track,
    pub movement: OnceCell<Movement>,
    /// What is usual in its phase.
    pub threshold: Threshold,
    /// The process groups that the rank belongs to.
    pub groups: Vec<Membership<'a>>,
    /// Its host, as far as it matters.
    pub host: HostView,
    /// The GPU that the rank uses.
    pub gpu: Option<&'a GpuSample>,
    /// Another rank of the run uses it, too.
    pub gpu_is_shared: bool,
    /// A close look at it, since it stands still.
    pub look: Option<&'a Inspection>,
    /// How long ago that look began, ms; 0 where the agent does not tell.
    pub look_age_ms: u64,
    /// File and function of its own code at the look before that one.
    pub function_before: Option<&'a str>,
    /// What the look before that one showed of the storage that it waits for.
    pub storage_before: EarlierStorage,
    /// The latest look: this one, or one that saw it awake.
    pub latest: Option<&'a Inspection>,
    /// Its connections at an earlier look.
    pub sockets_before: &'a [Socket],
}

/// What the look before the latest showed of the storage that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum EarlierStorage {
    /// There was no such look, or nobody counts.
    #[default]
    Unknown,
    /// How much it had moved, bytes.
    Moved(u64),
    /// One of the two looks saw the rank awake: whatever that had waited for was over.
    Answered,
}

impl EarlierStorage {
    /// The storage has done something since; `now`: bytes that it has moved by the latest look.
    pub fn has_moved_since(self, now: Option<u64>) -> bool {
        match (self, now) {
            (EarlierStorage::Unknown, _) | (_, None) => false,
            (EarlierStorage::Moved(then), Some(now)) => now > then,
            (EarlierStorage::Answered, Some(_)) => true,
        }
    }
}

/// What of a host explains its ranks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostView {
    /// Busy share of all cores, percent.
    pub cpu_percent: f32,
    /// Pressure, percent: CPU some, memory full.
    pub pressure: Option<(f32, f32)>,
    /// Its interface has come or gone lately.
    pub flaps: bool,
    /// Tasks that want to run, for each core.
    pub crowd: f64,
}

impl HostView {
    /// What matters of a host's gauges.
    pub fn of(sample: &HostSample) -> HostView {
        let pressure = sample.signals.pressure.map(|pressure| (pressure.cpu, pressure.memory_full));
        let crowd = f64::from(sample.load1) / f64::from(sample.cpu_count.max(1));
        HostView { cpu_percent: sample.cpu_percent, pressure, flaps: false, crowd }
    }

    /// Its cores have more to do than they can: a rank there may be late through no fault of its own.
    pub fn is_busy(&self) -> bool {
        self.cpu_percent >= 95.0 || self.pressure.is_some_and(|(cpu, _)| cpu >= 60.0)
    }
}

/// One group as one member counts it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Membership<'a> {
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

impl<'a> RankView<'a> {
    /// Takes `waiting`, an earlier look that saw it wait, where the latest one did not and the rank has done
    /// nothing since. Its connections stay those of the latest.
    pub fn or_earlier(mut self, waiting: Option<&'a Inspection>) -> RankView<'a> {
        let age_ms = |look: &Inspection| self.track.mono_ms.saturating_sub(look.began_ms);
        let holds = |look: &&Inspection| look.began_ms > 0 && self.quiet_ms() >= age_ms(look);
        if let Some(look) = waiting.filter(holds).filter(|_| self.was_awake()) {
            self.look_age_ms = age_ms(look);
            self.look = Some(look);
        }
        self
    }
}

impl RankView<'_> {
    /// What moved lately.
    pub fn moved(&self) -> &Movement {
        self.movement.get_or_init(|| self.track.moved())
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

    /// Its phase, when it tells one.
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
    pub fn waiting_call(&self) -> Option<Call> {
        self.call_in(self.waiting()?.name)
    }

    /// The collective that it entered last, if that is one of this group.
    pub fn call_in(&self, group: &str) -> Option<Call> {
        let latest = &self.page()?.collective;
        if named(&latest.call.group) == group { call(self.sample) } else { None }
    }

    /// Milliseconds without a sign of life from the program.
    pub fn silence_ms(&self) -> u64 {
        movement::silence(self.sample).unwrap_or(self.still_ms)
    }

    /// Milliseconds without a sign of life from the program, or from the main thread of a script.
    pub fn quiet_ms(&self) -> u64 {
        let idle = self.idle_ms.filter(|_| self.phase().is_none());
        idle.map_or(self.silence_ms(), |idle| idle.min(self.silence_ms()))
    }

    /// What a close look showed, as long as it shows the present: not when the rank has done anything since.
    pub fn evidence(&self) -> Option<&Inspection> {
        self.look.filter(|_| !self.look_is_old())
    }

    /// The rank has done something since the latest look at it began, or was just about to.
    pub fn look_is_old(&self) -> bool {
        let awake = |look: &Inspection| look.os.is_awake() && self.was_awake();
        self.look.is_some_and(|look| self.quiet_ms() < self.look_age_ms || awake(look))
    }

    /// The latest look caught it between two waits: it polls, and wakes now and then to do so again.
    fn was_awake(&self) -> bool {
        self.latest.is_some_and(|look| look.os.is_awake()) && self.sample.state != 'R' && !self.never_sleeps()
    }

    /// Its connections at the latest look.
    pub fn sockets(&self) -> &[Socket] {
        self.latest.map(|look| look.sockets.as_slice()).unwrap_or_default()
    }

    /// A look shows that the storage which it waits for gets on.
    pub fn storage_answers(&self) -> bool {
        let moves = |look: &Inspection| {
            look.storage_moved > 0 || self.storage_before.has_moved_since(look.storage_bytes)
        };
        self.was_awake() || self.evidence().is_some_and(moves)
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
pub(super) fn of<'a, 'b>(views: &'b [RankView<'a>], rank: Rank) -> Option<&'b RankView<'a>> {
    views.get(views.binary_search_by_key(&rank, |view| view.rank).ok()?)
}

/// The groups of a rank. A page that names no group counts in the group of all ranks.
pub(super) fn groups(sample: &RankSample) -> Vec<Membership<'_>> {
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
pub(super) fn compared_count(page: &PageSample, op: &str, count: u64) -> u64 {
    if page.by_hook && op != EXCHANGE && !SAME_SIZE.contains(&op) { 0 } else { count }
}

/// What members bring to one call fits together. Of an exchange in unequal parts the hook tells no number.
pub(super) fn counts_fit(op: &str, mine: u64, theirs: u64) -> bool {
    mine == theirs || op == EXCHANGE && (mine == 0 || theirs == 0)
}

/// The two ranks of a group that the hook makes up for calls between two: `3>5`.
pub(super) fn pair(group: &str) -> Option<[Rank; 2]> {
    let (from, to) = group.split_once('>')?;
    Some([Rank(from.parse().ok()?), Rank(to.parse().ok()?)])
}

/// The collective that a rank entered last.
pub(super) fn call(sample: &RankSample) -> Option<Call> {
    let page = sample.page.as_ref()?;
    let latest = &page.collective;
    let all = latest.call.group == WORLD;
    (latest.entered > 0).then(|| Call {
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
pub(super) fn silence_kind(sample: &RankSample) -> SilenceKind {
    SilenceKind::of(sample.page.as_ref(), sample.rank.0 == 0)
}
