//! Ranks that the others outlive (`distributed.on_rank_loss = "shrink"`): the one exception from the rule that one
//! failed rank ends its generation for all.
//!
//! Invariants:
//! - SHRINK-1: the end of a member is a loss if the plan asks for it, the generation is not on its way out, the rank was
//!   in the process group, and another member lives. Every other end is what it is without the option.
//! - SHRINK-2: a loss that no membership confirms in time is the failure that it would have been.
//! - SHRINK-3: the end of a rank that is not a member is not a failure.
//! - SHRINK-4: a survivor that cannot continue ends the generation: all losses that are not confirmed are failures.

use crate::end::RankEnd;
use crate::limits::TimeLimits;
use crate::model::{HostModel, Model, RankLife, RankModel, RunState};
use crate::report::VerdictReport;
use crate::run::FailedRank;
use crate::session::RecordContext;
use crate::watch::RecordedTime;
use rankdeck_proto::message::{Exit, Membership};
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp, WallTime};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::Plan;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Milliseconds for which the survivors may agree on a smaller group after the exit of a rank.
const CONFIRM_MS: u64 = 10_000;
/// Changes kept.
const CHANGES: usize = 64;

/// What is known when a rank has ended in a way that is a failure without the option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossEvidence<'a> {
    /// The plan asks for it.
    pub shrinks: bool,
    /// The generation is on its way out, whatever the reason.
    pub ending: bool,
    /// The rank is a member.
    pub member: bool,
    /// It was in the process group.
    pub joined: bool,
    pub exit: &'a Exit,
    /// It named a mistake in the configuration.
    pub usage: bool,
    /// Other members that live.
    pub others: usize,
}

/// What the end of a rank is for its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankLoss {
    /// A failure, as without the option.
    Failure,
    /// Others continue without it, once they have agreed on that.
    Loss,
    /// The others continue without it already.
    Gone,
}

/// Decides what the end of a rank is (SHRINK-1, SHRINK-3). The first row that fits decides.
pub(crate) fn of_exit(evidence: LossEvidence<'_>) -> RankLoss {
    let LossEvidence { shrinks, ending, member, joined, exit, usage, others } = evidence;
    let gives_up = matches!(exit, Exit::Code { code } if *code == CANNOT_SHRINK);
    match exit {
        _ if !shrinks => RankLoss::Failure,
        _ if !member => RankLoss::Gone,
        _ if ending || usage || gives_up || !joined || others == 0 => RankLoss::Failure,
        Exit::NotStarted { .. } => RankLoss::Failure,
        Exit::Code { .. } | Exit::Signal { .. } => RankLoss::Loss,
    }
}

/// Milliseconds within which a membership must confirm a loss (SHRINK-2). `silent`: the connections of the rank may
/// not have been closed, and the others notice its end by silence.
pub(crate) fn confirm_ms(limits: &TimeLimits, silent: bool) -> u64 {
    CONFIRM_MS.saturating_add(if silent { limits.lost } else { 0 })
}

/// A loss that no membership has confirmed yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingLoss {
    /// The failure that it is if nothing confirms it.
    pub failure: FailedRank,
    pub end: RankEnd,
    pub verdict: Box<VerdictReport>,
    pub happened: RecordedTime,
    /// Until when a membership must confirm it.
    pub until: Timestamp,
}

/// A change of the members, and when its record was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MembershipChange {
    pub generation: Generation,
    /// By the clock of the agent, seconds since the epoch.
    pub time: WallTime,
    pub change: Membership,
}

/// The members of the process group, as far as they have changed since the launch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MembershipModel {
    /// Changes of the present generation so far.
    pub epoch: u32,
    /// The members in rising order; empty: all ranks of the plan.
    pub members: Vec<Rank>,
    /// Changes of all generations, oldest first, bounded.
    pub changes: VecDeque<MembershipChange>,
    /// Changes since this console attached.
    pub news: u32,
    /// When the latest change of the present generation came, by the console's clock.
    pub changed_at: Option<Timestamp>,
    /// Where a lost rank joins again: `ADDRESS:PORT`.
    pub store: Option<String>,
    /// Ranks that have reported totals in the present generation, besides rank 0.
    pub reporters: BTreeSet<Rank>,
    /// The rank that was ordered to join and has not joined yet.
    pub joining: Option<Rank>,
    /// Why the latest request to join came to nothing.
    pub refused: Option<String>,
}

impl MembershipModel {
    /// Another generation starts, with all ranks of its plan.
    pub(crate) fn begin_generation(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        *self = MembershipModel { changes, news: self.news, ..MembershipModel::default() };
    }

    /// Takes over a change that was recorded at `at` and comes `now`. Returns whether it is newer than what is known.
    pub(crate) fn apply(&mut self, at: RecordContext, now: Timestamp, change: &Membership) -> bool {
        if change.epoch <= self.epoch || change.ranks.is_empty() {
            return false;
        }
        (self.epoch, self.changed_at) = (change.epoch, Some(now));
        self.members.clone_from(&change.ranks);
        self.store.clone_from(&change.store);
        self.reporters.extend(change.ranks.first());
        self.joining = self.joining.filter(|rank| !change.ranks.contains(rank));
        self.news += u32::from(!at.past);
        let (generation, time) = (at.generation, at.time);
        self.changes.push_back(MembershipChange { generation, time, change: change.clone() });
        if self.changes.len() > CHANGES {
            self.changes.pop_front();
        }
        true
    }

    /// The rank is in the process group, as far as is known.
    pub fn has(&self, rank: Rank) -> bool {
        self.members.is_empty() || self.members.contains(&rank)
    }

    /// The member that reports for all.
    pub fn reporter(&self) -> Rank {
        self.members.first().copied().unwrap_or(Rank(0))
    }

    /// Reports of this rank are about the whole run, now or earlier in this generation.
    pub(crate) fn may_report(&self, rank: Rank) -> bool {
        rank == Rank(0) || self.reporters.contains(&rank)
    }
}

impl Model {
    /// Ranks without which the others continue.
    pub fn lost_ranks(&self) -> Vec<Rank> {
        self.ranks.iter().filter(|rank| rank.lost).map(|rank| rank.rank).collect()
    }

    /// Number of ranks that the run consists of now.
    pub fn member_count(&self) -> usize {
        self.ranks.iter().filter(|rank| !rank.lost).count()
    }

    /// All ranks of a host are lost: the run continues without it.
    pub fn has_only_lost(&self, node: NodeRank) -> bool {
        let mut ranks = self.ranks.iter().filter(|rank| rank.node == node).peekable();
        ranks.peek().is_some() && ranks.all(|rank| rank.lost)
    }

    /// `rank 1 on bee lost: 3 of 4 ranks continue after iteration 12 (step 4,800), 200 steps lost, in 440ms`.
    pub fn describe_change(&self, change: &Membership) -> String {
        let members = format!("{} of {}", change.ranks.len(), words::plural(self.ranks.len(), "rank"));
        let place = format!("iteration {} (step {})", change.iteration, words::count(change.steps));
        let took = words::duration(change.seconds);
        let steps = match change.steps_lost {
            0 => "no step lost".to_owned(),
            1 => "1 step lost".to_owned(),
            steps => format!("{} steps lost", words::count(steps)),
        };
        let who = match (self.named_ranks(&change.lost), self.named_ranks(&change.joined)) {
            (Some(lost), None) => format!("{lost} lost: "),
            (Some(lost), Some(joined)) => format!("{lost} lost, {joined} joined: "),
            (None, Some(joined)) => format!("{joined} joined again: "),
            (None, None) => String::new(),
        };
        let steps = if change.lost.is_empty() { String::new() } else { format!(", {steps}") };
        format!("{who}{members} continue after {place}{steps}, in {took}")
    }

    /// `rank 1 on bee`, `ranks 2,3`; `None` without any.
    fn named_ranks(&self, ranks: &[Rank]) -> Option<String> {
        match ranks {
            [] => None,
            [rank] => {
                let host = self.ranks.get(rank.index()).map(|rank| rank.host.as_str()).unwrap_or_default();
                Some(format!("rank {rank} on {host}"))
            }
            many => {
                let numbers: Vec<u32> = many.iter().map(|rank| rank.0).collect();
                Some(format!("ranks {}", words::ranges(&numbers)))
            }
        }
    }

    /// `3 of 4 ranks` while some are lost.
    pub fn shrunk_to(&self) -> Option<String> {
        let lost = self.lost_ranks().len();
        let all = self.ranks.len();
        (lost > 0).then(|| format!("{} of {}", all - lost, words::plural(all, "rank")))
    }

    /// `rank 1 was lost`, `ranks 1, 3 were lost`; `None` without any.
    pub fn lost_sentence(&self) -> Option<String> {
        let numbers: Vec<u32> = self.lost_ranks().into_iter().map(|rank| rank.0).collect();
        match numbers.as_slice() {
            [] => None,
            [one] => Some(format!("rank {one} was lost")),
            many => Some(format!("ranks {} were lost", words::ranges(many))),
        }
    }

    /// Why a rank cannot join the running group now; `None`: it can.
    pub fn rejoin_obstacle(&self, rank: Rank) -> Option<&'static str> {
        let shrinks = self.plan.as_ref().is_some_and(Plan::shrinks);
        let found = self.ranks.get(rank.index());
        let host = found.and_then(|rank| self.hosts.get(rank.node.index()));
        let is_connected = |host: &HostModel| matches!(host.link, LinkState::Ready { .. });
        match found {
            None => Some("unknown rank"),
            Some(_) if !shrinks => Some("the run does not continue without a rank"),
            Some(_) if self.run.state != RunState::Running => Some("the run is not running"),
            Some(found) if !found.lost => Some("the rank is not lost"),
            Some(found) if found.is_alive() => Some("its process is still there"),
            Some(_) if self.membership.joining.is_some() => Some("another rank is joining"),
            Some(_) if self.membership.store.is_none() => Some("no member has reported where to join"),
            Some(_) if !host.is_some_and(is_connected) => Some("its host does not respond"),
            Some(_) => None,
        }
    }
}

impl RankModel {
    /// It has a process, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.life, RankLife::Spawned | RankLife::Joined | RankLife::Finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Exit = Exit::Signal { signal: 9, out_of_memory: false };

    fn evidence(exit: &Exit) -> LossEvidence<'_> {
        LossEvidence {
            shrinks: true,
            ending: false,
            member: true,
            joined: true,
            exit,
            usage: false,
            others: 1,
        }
    }

    #[test]
    fn shrink_1_signal_and_failure_code_are_losses() {
        let memory = Exit::Signal { signal: 9, out_of_memory: true };
        let crash = Exit::Signal { signal: 11, out_of_memory: false };
        for exit in [KILLED, memory, crash, Exit::Code { code: 1 }, Exit::Code { code: 139 }] {
            assert_eq!(of_exit(evidence(&exit)), RankLoss::Loss, "{exit:?}");
        }
    }

    #[test]
    fn shrink_1_exits_that_end_the_generation_are_failures() {
        type Change = fn(&mut LossEvidence<'_>);
        let changes: [(&str, Change); 5] = [
            ("the plan does not ask for it", |it| it.shrinks = false),
            ("the generation ends", |it| it.ending = true),
            ("it never joined", |it| it.joined = false),
            ("a mistake in the configuration", |it| it.usage = true),
            ("the last one", |it| it.others = 0),
        ];
        for (what, change) in changes {
            let mut changed = evidence(&KILLED);
            change(&mut changed);
            assert_eq!(of_exit(changed), RankLoss::Failure, "{what}");
        }
        let unstarted = Exit::NotStarted { error: "no such file".into() };
        assert_eq!(of_exit(evidence(&unstarted)), RankLoss::Failure);
        assert_eq!(of_exit(evidence(&Exit::Code { code: CANNOT_SHRINK })), RankLoss::Failure, "SHRINK-4");
    }

    #[test]
    fn shrink_3_end_of_no_member_is_no_failure() {
        for exit in [KILLED, Exit::Code { code: CANNOT_SHRINK }, Exit::Code { code: 1 }] {
            let outside = LossEvidence { member: false, others: 0, joined: false, ..evidence(&exit) };
            assert_eq!(of_exit(outside), RankLoss::Gone, "{exit:?}");
        }
        let without = LossEvidence { member: false, shrinks: false, ..evidence(&KILLED) };
        assert_eq!(of_exit(without), RankLoss::Failure);
    }

    #[test]
    fn confirmation_of_a_silent_loss_takes_longer() {
        let limits = TimeLimits::of(None);
        assert_eq!(confirm_ms(&limits, false), CONFIRM_MS);
        assert_eq!(confirm_ms(&limits, true), CONFIRM_MS + limits.lost);
    }

    #[test]
    fn membership_changes_are_bounded_and_in_order() {
        let mut model = MembershipModel::default();
        let at = RecordContext {
            node: NodeRank(0),
            generation: Generation(0),
            time: 1.0,
            past: false,
            found: false,
        };
        let change = |epoch| Membership { epoch, ranks: vec![Rank(1)], ..Membership::default() };
        for epoch in 1..=2 * CHANGES as u32 {
            assert!(model.apply(at, Timestamp(1), &change(epoch)));
        }
        assert!(!model.apply(at, Timestamp(2), &change(5)), "an old one");
        assert_eq!((model.changes.len(), model.epoch), (CHANGES, 2 * CHANGES as u32));
        assert_eq!((model.reporter(), model.has(Rank(0)), model.may_report(Rank(1))), (Rank(1), false, true));
        model.begin_generation();
        assert_eq!((model.changes.len(), model.epoch, model.reporter()), (CHANGES, 0, Rank(0)));
    }
}
