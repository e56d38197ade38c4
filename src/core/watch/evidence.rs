//! The words of verdicts: one sentence, the facts that support it, what to do.
#![allow(clippy::wildcard_enum_match_arm, reason = "most reasons share a sentence")]

use super::cause::{self, Judged};
use super::disagree::Disagreement;
use super::gauges::{NAMED, find, gauges, host_of, looked, name, waiters, who};
use super::portrait::{self, Subject};
use super::seat::{self, Seat};
use super::slow::Straggler;
use crate::card::ranges;
use crate::model::{Model, RankModel};
use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictReport};
use crate::words;
use crate::words::seconds;
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::Rank;

/// What verdicts about living ranks are made from.
pub(super) struct Scene<'a> {
    pub model: &'a Model,
    pub seats: &'a [Seat<'a>],
}

/// The parts of a verdict that differ.
struct Draft {
    rank: Option<Rank>,
    host: Option<String>,
    judged: Judged,
    text: String,
    /// What is decisive and stands on no side of the card.
    facts: Vec<String>,
    evidence: Vec<String>,
    latency_ms: u64,
    waiter: Option<Rank>,
    compared: Option<u64>,
}

impl Scene<'_> {
    fn seat(&self, rank: Rank) -> Option<&Seat<'_>> {
        self.seats.iter().find(|seat| seat.rank == rank)
    }

    fn verdict(&self, draft: Draft) -> VerdictReport {
        let Draft { rank, host, judged, text, facts, evidence, latency_ms, waiter, compared } = draft;
        let reason = judged.reason;
        let subject = Subject { guilty: rank, waiter, reason, compared, seats: self.seats };
        let mut card = portrait::card(self.model, &subject);
        card.facts = facts.clone();
        let evidence = facts.into_iter().chain(evidence).collect();
        VerdictReport {
            rank,
            host,
            verdict: reason.kind(),
            severity: judged.severity,
            confidence: judged.confidence,
            reason_code: reason,
            reason: text,
            evidence,
            latency_s: latency_ms as f64 / 1000.0,
            first_s: 0.0,
            hint: portrait::hint(&card.actions),
            card: Some(card),
        }
    }

    /// Ranks inside a collective now, except `not`.
    fn inside(&self, not: Rank) -> Vec<Rank> {
        let waits = |seat: &&Seat| seat.rank != not && seat.waiting().is_some();
        self.seats.iter().filter(waits).map(|seat| seat.rank).collect()
    }

    /// A process that is stopped, held or frozen.
    pub fn halted(&self, rank: &RankModel, reason: Reason, halted_ms: u64) -> VerdictReport {
        let state = rank.sample.as_ref().map_or('T', |sample| sample.state);
        let inside = self.inside(rank.rank);
        let mut evidence = gauges(rank);
        evidence.extend(looked(self.seat(rank.rank)));
        let cgroup = rank.sample.as_ref().and_then(|sample| sample.signals.cgroup.as_ref());
        let facts = match cgroup.filter(|_| reason == Reason::CgroupFrozen) {
            Some(cgroup) => vec![format!("cgroup {} is frozen", cgroup.path)],
            None => Vec::new(),
        };
        evidence.extend(waiters(self.model, &inside));
        let text = match reason {
            Reason::CgroupFrozen => format!("{} is frozen by its cgroup or container", who(rank)),
            _ => format!("{} is {} (process state {state})", who(rank), words::state_text(state)),
        };
        self.verdict(Draft {
            rank: Some(rank.rank),
            host: Some(rank.host.clone()),
            judged: Judged { severity: Severity::Red, confidence: Confidence::Certain, reason },
            text,
            facts,
            evidence,
            latency_ms: halted_ms,
            waiter: inside.first().copied(),
            compared: None,
        })
    }

    /// One rank holds the others up.
    pub fn behind(&self, late: &Late<'_>, judged: Judged) -> VerdictReport {
        let guilty = find(self.model, late.rank);
        let name = name(self.model, late.rank);
        let seat = self.seat(late.rank);
        let awaited = self.awaited(late);
        let count = late.waiters.len();
        let others = if count == 1 { "1 rank waits".to_string() } else { format!("{count} ranks wait") };
        let page = guilty.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
        let phase = page.filter(|page| !page.by_hook).map_or("", |page| page.phase.name());
        let activity = page.map(|page| page.activity.name()).filter(|name| !name.is_empty());
        let doing = match (phase, activity) {
            ("", _) => "its own code".to_string(),
            (phase, Some(activity)) => format!("its phase {phase} ({activity})"),
            (phase, None) => format!("its phase {phase}"),
        };
        let at = seat.and_then(|seat| seat.look).and_then(cause::user_frame);
        let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
        let amount = page
            .filter(|page| page.total > 0)
            .map(|page| format!(" {}/{}", page.done, page.total))
            .unwrap_or_default();
        let child = seat.and_then(cause::dead_child).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let stopped = seat.and_then(cause::stopped_child);
        let stopped = stopped.map(|pid| format!(" (pid {pid} is stopped)")).unwrap_or_default();
        let text = match judged.reason {
            Reason::LeftEarly => {
                let iteration = page.filter(|page| !page.by_hook);
                let iteration =
                    iteration.map(|page| format!(", in iteration {}", page.train_iter)).unwrap_or_default();
                let after = match late.group.is_empty() {
                    true => format!("ranks {} lost their connection to it", ranges(late.waiters)),
                    false => format!("{others} in {awaited}"),
                };
                let goal = self.model.run.total_steps.map(|goal| format!(" of a run of {goal} steps"));
                let goal = goal.unwrap_or_default();
                format!("{name} left the training loop early (exit code 0{iteration}{goal}); {after}")
            }
            Reason::ExtraCall => {
                format!(
                    "{name} is in {awaited}, which no other rank calls{at}; it waits alone for the others"
                )
            }
            Reason::InsideEarlier => {
                format!("{name} is still inside an earlier collective; {others} in {awaited}")
            }
            Reason::ExpectedWait | Reason::SlowEnv | Reason::HostOverloaded | Reason::Thrashing => {
                let why = match judged.reason {
                    Reason::SlowEnv => "its environments work, but take long",
                    Reason::HostOverloaded => "its host has more to run than cores",
                    Reason::Thrashing => "its memory is being paged in and out",
                    _ => "it works",
                };
                let phase = if phase.is_empty() { "its own code" } else { phase };
                format!("waiting for rank {}: {phase}{amount} ({why}; {others} in {awaited})", late.rank)
            }
            Reason::EnvWorkerDied => {
                format!(
                    "{name} waits for a worker of its environment that has ended{child}{at}; {others} in {awaited}"
                )
            }
            Reason::EnvWorkerDeadlocked => {
                format!(
                    "{name} waits for workers of its environment that do nothing{stopped}{at}; {others} in {awaited}"
                )
            }
            Reason::Storage => {
                format!(
                    "{name} is blocked in the kernel, as on storage that does not answer, in {doing}{at}; {others} in {awaited}"
                )
            }
            Reason::Spinning if judged.severity == Severity::Amber => {
                format!("{name} works or spins{at}, in the same function at two looks; {others} in {awaited}")
            }
            Reason::Spinning => {
                format!("{name} burns CPU without progress in {doing}{at}; {others} in {awaited}")
            }
            Reason::Lock => format!("{name} waits for a lock in {doing}{at}; {others} in {awaited}"),
            Reason::Sleeping => format!("{name} sleeps in {doing}{at}; {others} in {awaited}"),
            Reason::GilHeld => {
                format!(
                    "a thread of {name} holds the Python interpreter lock in {doing}{at}; {others} in {awaited}"
                )
            }
            Reason::WaitsForPeer => {
                format!("{name} waits for something from the network in {doing}{at}; {others} in {awaited}")
            }
            Reason::TeardownStall => format!("{name} does not get through the end of the run ({phase}){at}"),
            Reason::RendezvousIncomplete => {
                format!("{name} has not come to the rendezvous; {others} for the process group")
            }
            _ => format!("{name} has not entered {awaited}: nothing moves in {doing}{at}; {others}"),
        };
        let mut evidence = guilty.map(gauges).unwrap_or_default();
        evidence.extend(looked(seat));
        evidence.extend(waiters(self.model, late.waiters));
        let facts = match late.also.is_empty() {
            true => Vec::new(),
            false => vec![format!("also late: ranks {}", ranges(late.also))],
        };
        self.verdict(Draft {
            rank: Some(late.rank),
            host: guilty.map(|rank| rank.host.clone()),
            judged,
            text,
            facts,
            evidence,
            latency_ms: late.waited_ms,
            waiter: late.waiters.first().copied(),
            compared: (late.seq > 1 && !late.group.is_empty()).then(|| late.seq - 1),
        })
    }

    fn awaited(&self, late: &Late<'_>) -> String {
        let alone = [late.rank];
        let in_it = if late.ahead { &alone } else { late.waiters };
        let call = in_it.iter().find_map(|rank| {
            let waiting = self.seat(*rank)?.waiting()?;
            waiting.call.clone().filter(|_| waiting.name == late.group)
        });
        match call {
            Some(call) => call.name(),
            None if late.group.is_empty() => "the process group".into(),
            None => format!("collective #{}", late.seq),
        }
    }

    /// Ranks called different things.
    pub fn disagree(&self, what: &Disagreement, waited_ms: u64) -> VerdictReport {
        let side = what.odd.first().copied().unwrap_or_default();
        let named = what.rank.map(|rank| name(self.model, rank));
        let group =
            if what.group == seat::WORLD { String::new() } else { format!(" of group {}", what.group) };
        let Disagreement { seq, mine, theirs, other, .. } = what;
        let text = match (&named, what.reason) {
            (Some(name), Reason::SilentShift) => {
                format!("{name} is out of step with the others: {mine} against {theirs}, without any error")
            }
            (None, Reason::SilentShift) => {
                format!(
                    "ranks {side} and {other} are out of step: {mine} against {theirs}; nothing tells which is right"
                )
            }
            (Some(name), Reason::SkippedCall) => {
                format!("{name} left out collective #{seq}{group}: it called {mine}, the others {theirs}")
            }
            (Some(name), Reason::ExtraCall) => {
                format!(
                    "{name} made a collective that the others did not make, #{seq}{group}: {mine}; the others called {theirs}"
                )
            }
            (Some(name), _) => {
                format!(
                    "{name} is in another collective #{seq}{group} than the others: {mine} against {theirs}"
                )
            }
            (None, _) => format!(
                "ranks {side} and {other} disagree about collective #{seq}{group}: {mine} against {theirs}; nothing tells which is right"
            ),
        };
        let mut facts =
            vec![format!("rank {side} at #{seq}: {mine}"), format!("rank {other} at #{seq}: {theirs}")];
        if what.odd.len() > 1 {
            facts.push(format!("ranks that deviate: {}", ranges(&what.odd)));
        }
        let mut evidence = find(self.model, side).map(gauges).unwrap_or_default();
        evidence.extend(looked(self.seat(side)));
        let inside = self.inside(side);
        evidence.extend(waiters(self.model, &inside));
        let confidence = if what.rank.is_some() { Confidence::Certain } else { Confidence::Likely };
        self.verdict(Draft {
            rank: what.rank,
            host: host_of(self.model, what.rank),
            judged: Judged { severity: Severity::Red, confidence, reason: what.reason },
            text,
            facts,
            evidence,
            latency_ms: waited_ms,
            waiter: Some(*other),
            compared: seq.checked_sub(1).filter(|seq| *seq > 0),
        })
    }

    /// Groups used in different orders.
    pub fn ring(&self, ring: &[(Rank, String)], waited_ms: u64) -> VerdictReport {
        let places: Vec<String> = ring
            .iter()
            .take(NAMED)
            .filter_map(|(rank, _)| {
                let call = self.seat(*rank)?.waiting()?.call.clone()?;
                let site = if call.site.is_empty() { String::new() } else { format!(" at {}", call.site) };
                Some(format!("rank {rank} waits in {}{site}", call.name()))
            })
            .collect();
        let ranks: Vec<Rank> = ring.iter().map(|(rank, _)| *rank).collect();
        let mut facts = places.clone();
        facts.push("each of them waits in a group that another has not entered, round in a ring".into());
        self.verdict(Draft {
            rank: None,
            host: None,
            judged: Judged {
                severity: Severity::Red,
                confidence: Confidence::Certain,
                reason: Reason::OrderDeadlock,
            },
            text: format!(
                "ranks {} use their groups in different orders: {}",
                ranges(&ranks),
                places.join(", ")
            ),
            facts,
            evidence: Vec::new(),
            latency_ms: waited_ms,
            waiter: ranks.first().copied(),
            compared: None,
        })
    }

    /// Everybody is inside the same collective.
    pub fn everywhere(
        &self,
        members: &[Rank],
        seq: u64,
        waited_ms: u64,
        severity: Severity,
    ) -> VerdictReport {
        let first = members.first().copied();
        let call = first.and_then(|rank| self.seat(rank)?.waiting()?.call.clone());
        let call = call.map_or(format!("collective #{seq}"), |call| call.name());
        let mut evidence = waiters(self.model, members);
        for rank in members.iter().take(NAMED) {
            evidence.extend(looked(self.seat(*rank)));
        }
        self.verdict(Draft {
            rank: None,
            host: None,
            judged: Judged { severity, confidence: Confidence::Possible, reason: Reason::InsideCollective },
            text: format!(
                "all {} ranks have been inside {call} for {}: the program's order is right, something below it holds it up",
                members.len(),
                seconds(waited_ms)
            ),
            facts: Vec::new(),
            evidence,
            latency_ms: waited_ms,
            waiter: first,
            compared: Some(seq),
        })
    }

    /// Messages between hosts are lost.
    pub fn network(&self, trouble: &Trouble) -> VerdictReport {
        self.verdict(Draft {
            rank: None,
            host: trouble.host.clone(),
            judged: Judged {
                severity: Severity::Red,
                confidence: trouble.confidence,
                reason: trouble.reason,
            },
            text: trouble.text.clone(),
            facts: trouble.facts.clone(),
            evidence: Vec::new(),
            latency_ms: trouble.since_ms,
            waiter: trouble.waiter,
            compared: None,
        })
    }

    /// A GPU is broken.
    pub fn gpu(&self, rank: &RankModel, gpu: &GpuSample, reason: Reason) -> VerdictReport {
        let text = match (reason, gpu.xids.last()) {
            (Reason::GpuFault, Some(xid)) => {
                format!("GPU {} of {} reported an error: Xid {xid}", gpu.index, who(rank))
            }
            _ => format!("GPU {} of {} has fallen off the bus", gpu.index, who(rank)),
        };
        let facts = vec![format!("{}: Xid {:?}, lost: {}", gpu.name, gpu.xids, gpu.lost)];
        let mut evidence = gauges(rank);
        let inside = self.inside(rank.rank);
        evidence.extend(waiters(self.model, &inside));
        self.verdict(Draft {
            rank: Some(rank.rank),
            host: Some(rank.host.clone()),
            judged: Judged { severity: Severity::Red, confidence: Confidence::Certain, reason },
            text,
            facts,
            evidence,
            latency_ms: 0,
            waiter: inside.first().copied(),
            compared: None,
        })
    }

    /// Weights are updated without any collective.
    pub fn alone(&self, ranks: &[Rank], updates: u64, iterations: u64) -> VerdictReport {
        let one = (ranks.len() == 1).then(|| ranks.first().copied()).flatten();
        let text = match one {
            Some(rank) => format!("{} has made", name(self.model, rank)),
            None => format!("ranks {} have made", ranges(ranks)),
        };
        self.verdict(Draft {
            rank: one,
            host: host_of(self.model, one),
            judged: Judged {
                severity: Severity::Red,
                confidence: Confidence::Certain,
                reason: Reason::NoCollectives,
            },
            text: format!("{text} {updates} updates in {iterations} iterations without a single collective"),
            facts: vec!["gradients that are not exchanged make a different model on every rank".into()],
            evidence: Vec::new(),
            latency_ms: 0,
            waiter: None,
            compared: None,
        })
    }

    /// Slow, not stuck.
    pub fn straggler(&self, slow: &Straggler) -> VerdictReport {
        let why = match slow.reason {
            Reason::Throttled => "CPU quota used up",
            Reason::GpuThrottled => "clocks of its GPU held down",
            Reason::MemoryPressure => "short of memory",
            Reason::CpuPressure => "its host is busy",
            Reason::SlowEnvironment => "its environments take longer",
            Reason::SlowCompute => "it computes longer",
            _ => "cause unknown",
        };
        let mut facts = slow.facts.clone();
        facts.push(format!("the others lost {:.0} % of their time waiting for it", slow.lost * 100.0));
        let evidence = find(self.model, slow.rank).map(gauges).unwrap_or_default();
        self.verdict(Draft {
            rank: Some(slow.rank),
            host: host_of(self.model, Some(slow.rank)),
            judged: Judged { severity: Severity::Amber, confidence: Confidence::Likely, reason: slow.reason },
            text: format!(
                "{} slows everybody down by {:.0} %: {why}",
                name(self.model, slow.rank),
                slow.lost * 100.0
            ),
            facts,
            evidence,
            latency_ms: slow.over_ms,
            waiter: None,
            compared: None,
        })
    }

    /// All have come to the rendezvous, and the group does not form.
    pub fn no_group(&self, waited_ms: u64) -> VerdictReport {
        let all: Vec<Rank> = self.model.ranks.iter().map(|rank| rank.rank).collect();
        self.verdict(Draft {
            rank: None,
            host: None,
            judged: Judged {
                severity: Severity::Red,
                confidence: Confidence::Likely,
                reason: Reason::RendezvousBlocked,
            },
            text: format!("no rank could join the process group within {}", seconds(waited_ms)),
            facts: Vec::new(),
            evidence: waiters(self.model, &all),
            latency_ms: waited_ms,
            waiter: all.first().copied(),
            compared: None,
        })
    }
}

/// A late rank and those who wait for it.
pub(super) struct Late<'a> {
    pub rank: Rank,
    pub also: &'a [Rank],
    pub waiters: &'a [Rank],
    /// Empty before the first collective.
    pub group: &'a str,
    pub seq: u64,
    pub waited_ms: u64,
    /// `rank` waits, and is early.
    pub ahead: bool,
}

/// A network that does not carry.
pub(super) struct Trouble {
    pub host: Option<String>,
    pub reason: Reason,
    pub confidence: Confidence,
    pub text: String,
    pub facts: Vec<String>,
    pub since_ms: u64,
    pub waiter: Option<Rank>,
}
