//! What verdicts about living ranks say: the words for the sentence of their reason, and what supports it.

use super::card_builder;
use super::cause;
use super::disagree::Disagreement;
use super::draft::{Draft, Judgement};
use super::gauges::{NAMED, complaint, find, host_of, looked, name, waiters, who};
use super::program;
use super::rank_view::{self, RankView};
use super::shortage;
use super::slow::Straggler;
use crate::card::{Side, ranges};
use crate::model::{Model, RankModel};
use crate::reason::{Reason, SentenceForm, Severity};
use crate::report::{Confidence, VerdictReport};
use crate::xid::xid_words;
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// What verdicts about living ranks are made from.
pub(super) struct Snapshot<'a> {
    pub model: &'a Model,
    pub views: &'a [RankView<'a>],
}

impl Snapshot<'_> {
    /// Living ranks whose hosts answer.
    pub fn answering(&self) -> impl Iterator<Item = &RankView<'_>> {
        self.views.iter().filter(|view| view.fresh && view.alive())
    }

    /// What is known of a rank.
    pub fn view(&self, rank: Rank) -> Option<&RankView<'_>> {
        rank_view::of(self.views, rank)
    }

    fn verdict(&self, draft: Draft) -> VerdictReport {
        draft.verdict(self.model, self.views)
    }

    /// A rank as a card shows it.
    fn side(&self, rank: Rank) -> Option<Side> {
        Some(card_builder::side(find(self.model, rank)?, self.view(rank).and_then(|view| view.look)))
    }

    /// What a close look at a blamed rank showed, and who waits.
    fn observations(&self, blamed: Rank, waiting: &[Rank]) -> Vec<String> {
        looked(self.view(blamed)).into_iter().chain(waiters(self.model, waiting)).collect()
    }

    /// Ranks inside a collective now, except `not`.
    fn inside(&self, not: Rank) -> Vec<Rank> {
        let waits = |view: &&RankView| view.rank != not && view.waiting().is_some();
        self.views.iter().filter(waits).map(|view| view.rank).collect()
    }

    /// A process that is stopped, held or frozen.
    pub fn halted(&self, rank: &RankModel, reason: Reason, halted_ms: u64) -> VerdictReport {
        let state = rank.sample.as_ref().map_or('T', |sample| sample.state);
        let inside = self.inside(rank.rank);
        let cgroup = rank.sample.as_ref().and_then(|sample| sample.signals.cgroup.as_ref());
        let frozen = cgroup.filter(|_| reason == Reason::CgroupFrozen);
        // SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
        let sent = rank.signalled.filter(|sent| state == 'T' && (19..=22).contains(&sent.signal));
        let stopped = match sent {
            Some(sent) => format!("stopped by {}, which a console sent", words::signal_name(sent.signal)),
            None => words::process_state(state).into(),
        };
        let words = vec![("who", who(rank)), ("state", stopped), ("letter", state.to_string())];
        self.verdict(Draft {
            rank: Some(rank.rank),
            host: Some(rank.host.clone()),
            waiter: inside.first().copied(),
            facts: frozen.map(|cgroup| format!("cgroup {} is frozen", cgroup.path)).into_iter().collect(),
            observations: self.observations(rank.rank, &inside),
            latency_ms: halted_ms,
            ..Draft::new(Judgement::usual(Confidence::Certain, reason), words)
        })
    }

    /// One rank holds the others up.
    pub fn behind(&self, late: &LateRank<'_>, judged: Judgement) -> VerdictReport {
        let form = if late.ahead {
            SentenceForm::Alone
        } else if judged.severity == Severity::Amber {
            SentenceForm::Doubtful
        } else {
            SentenceForm::Usual
        };
        let mut facts = match late.also {
            [] => Vec::new(),
            also => vec![format!("also late: ranks {}", ranges(also))],
        };
        if matches!(judged.reason, Reason::HostOverloaded | Reason::Throttled) {
            facts.extend(self.view(late.rank).map(shortage::facts).unwrap_or_default());
        }
        self.verdict(Draft {
            form,
            rank: Some(late.rank),
            host: host_of(self.model, Some(late.rank)),
            waiter: late.waiters.first().copied(),
            facts,
            observations: self.observations(late.rank, late.waiters),
            latency_ms: late.waited_ms,
            compared: (late.seq > 1 && !late.group.is_empty()).then(|| late.seq - 1),
            ..Draft::new(judged, self.words_about(late))
        })
    }

    /// Everything that a sentence about a late rank may mention.
    fn words_about(&self, late: &LateRank<'_>) -> Vec<(&'static str, String)> {
        let guilty = find(self.model, late.rank);
        let view = self.view(late.rank);
        let page = guilty.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
        let own = page.filter(|page| !page.by_hook);
        let phase = own.map_or("its own code", |page| page.phase.name());
        let doing = match own.map(|page| page.activity.name()) {
            None => phase.to_string(),
            Some("") => format!("its phase {phase}"),
            Some(activity) => format!("its phase {phase} ({activity})"),
        };
        let amount = page.filter(|page| page.total > 0).map(|page| format!(" {}/{}", page.done, page.total));
        let at = view.and_then(|view| view.look).and_then(cause::user_frame);
        let obstacle = view.and_then(|view| view.look?.obstacle.as_ref());
        let obstacle = obstacle
            .map_or_else(|| "something from the network".to_owned(), |found| words::clean(&found.words()));
        let child = view.and_then(cause::dead_child);
        let stopped = view.and_then(program::stopped_child);
        let goal = self.model.run.total_steps;
        let others = match late.waiters {
            [_] => "1 rank waits".to_string(),
            many => format!("{} ranks wait", many.len()),
        };
        let awaited = self.awaited(late);
        let after = if late.group.is_empty() {
            format!("ranks {} lost their connection to it", ranges(late.waiters))
        } else {
            format!("{others} in {awaited}")
        };
        vec![
            ("who", name(self.model, late.rank)),
            ("rank", late.rank.to_string()),
            ("phase", phase.to_string()),
            ("doing", doing),
            ("amount", amount.unwrap_or_default()),
            ("at", at.map(|at| format!(" at {at}")).unwrap_or_default()),
            ("obstacle", obstacle),
            ("child", child.map(|pid| format!(" (pid {pid})")).unwrap_or_default()),
            ("stopped", stopped.map(|pid| format!(" (pid {pid} is stopped)")).unwrap_or_default()),
            ("iteration", own.map(|page| format!(", in iteration {}", page.train_iter)).unwrap_or_default()),
            ("goal", goal.map(|goal| format!(" of a run of {goal} steps")).unwrap_or_default()),
            ("others", others),
            ("awaited", awaited),
            ("after", after),
        ]
    }

    fn awaited(&self, late: &LateRank<'_>) -> String {
        let alone = [late.rank];
        let in_it = if late.ahead { &alone } else { late.waiters };
        let call = in_it.iter().find_map(|rank| {
            let view = self.view(*rank)?;
            view.waiting_call().filter(|_| view.waiting().is_some_and(|group| group.name == late.group))
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
        let Disagreement { seq, mine, theirs, other, .. } = what;
        let in_group = what.group != rank_view::WORLD;
        let words = vec![
            ("who", what.rank.map(|rank| name(self.model, rank)).unwrap_or_default()),
            ("side", side.to_string()),
            ("other", other.to_string()),
            ("seq", seq.to_string()),
            ("group", if in_group { format!(" of group {}", what.group) } else { String::new() }),
            ("mine", mine.clone()),
            ("theirs", theirs.clone()),
        ];
        let mut facts =
            vec![format!("rank {side} at #{seq}: {mine}"), format!("rank {other} at #{seq}: {theirs}")];
        if what.odd.len() > 1 {
            facts.push(format!("ranks that deviate: {}", ranges(&what.odd)));
        }
        // Where nobody is blamed, the card has no side for the first of those that deviate.
        let unblamed = self.side(side).filter(|_| what.rank.is_none());
        let mut observations: Vec<String> = unblamed.iter().flat_map(Side::evidence).collect();
        observations.extend(self.observations(side, &self.inside(side)));
        let confidence = if what.rank.is_some() { Confidence::Certain } else { Confidence::Likely };
        self.verdict(Draft {
            form: if what.rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
            rank: what.rank,
            host: host_of(self.model, what.rank),
            waiter: Some(*other),
            facts,
            observations,
            latency_ms: waited_ms,
            compared: seq.checked_sub(1).filter(|seq| *seq > 0),
            ..Draft::new(Judgement::usual(confidence, what.reason), words)
        })
    }

    /// Groups used in different orders.
    pub fn ring(&self, ring: &[(Rank, String)], waited_ms: u64) -> VerdictReport {
        let places: Vec<String> = ring
            .iter()
            .take(NAMED)
            .filter_map(|(rank, _)| {
                let call = self.view(*rank)?.waiting_call()?;
                let site = call.call.at_site();
                Some(format!("rank {rank} waits in {}{site}", call.name()))
            })
            .collect();
        let ranks: Vec<Rank> = ring.iter().map(|(rank, _)| *rank).collect();
        let words = vec![("ranks", ranges(&ranks)), ("places", places.join(", "))];
        let mut facts = places;
        facts.push("each of them waits in a group that another has not entered, round in a ring".into());
        self.verdict(Draft {
            waiter: ranks.first().copied(),
            facts,
            latency_ms: waited_ms,
            ..Draft::new(Judgement::usual(Confidence::Certain, Reason::OrderDeadlock), words)
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
        let call = first.and_then(|rank| self.view(rank)?.waiting_call());
        let words = vec![
            ("count", members.len().to_string()),
            ("call", call.map_or(format!("collective #{seq}"), |call| call.name())),
            ("waited", words::duration_ms(waited_ms)),
        ];
        let mut observations = waiters(self.model, members);
        for rank in members.iter().take(NAMED) {
            observations.extend(self.side(*rank).iter().flat_map(Side::seen));
            add_new(&mut observations, looked(self.view(*rank)));
        }
        let judged =
            Judgement { severity, ..Judgement::usual(Confidence::Possible, Reason::InsideCollective) };
        self.verdict(Draft {
            waiter: first,
            observations,
            latency_ms: waited_ms,
            compared: Some(seq),
            ..Draft::new(judged, words)
        })
    }

    /// Messages between hosts are lost.
    pub fn network(&self, trouble: Trouble) -> VerdictReport {
        let Trouble { host, reason, confidence, words, facts, since_ms, waiter } = trouble;
        self.verdict(Draft {
            host,
            waiter,
            facts,
            latency_ms: since_ms,
            ..Draft::new(Judgement::usual(confidence, reason), words)
        })
    }

    /// Messages between hosts are lost now and then: whoever is late there is not to blame.
    pub fn losses(
        &self,
        place: String,
        waiters: &[Rank],
        group: &str,
        seq: u64,
        waited_ms: u64,
    ) -> VerdictReport {
        let first = waiters.first().copied();
        let late = LateRank {
            rank: first.unwrap_or_default(),
            also: &[],
            waiters,
            group,
            seq,
            waited_ms,
            ahead: false,
        };
        let judged = Judgement {
            severity: Severity::Amber,
            ..Judgement::usual(Confidence::Likely, Reason::NetworkLoss)
        };
        let words = self.words_about(&late).into_iter().chain([("where", place)]).collect();
        self.verdict(Draft {
            form: SentenceForm::Doubtful,
            waiter: first,
            observations: waiters_and_looks(self, waiters),
            latency_ms: waited_ms,
            ..Draft::new(judged, words)
        })
    }

    /// A GPU is broken.
    pub fn gpu(&self, rank: &RankModel, gpu: &GpuSample, reason: Reason) -> VerdictReport {
        let words = vec![
            ("who", who(rank)),
            ("gpu", gpu.index.to_string()),
            ("xid", gpu.xids.last().map(|xid| xid_words(*xid)).unwrap_or_default()),
        ];
        let inside = self.inside(rank.rank);
        self.verdict(Draft {
            rank: Some(rank.rank),
            host: Some(rank.host.clone()),
            waiter: inside.first().copied(),
            facts: vec![complaint(gpu)],
            observations: waiters(self.model, &inside),
            ..Draft::new(Judgement::usual(Confidence::Certain, reason), words)
        })
    }

    /// Weights are updated without any collective.
    pub fn alone(&self, ranks: &[Rank], updates: u64, iterations: u64) -> VerdictReport {
        let one = (ranks.len() == 1).then(|| ranks.first().copied()).flatten();
        let words = vec![
            ("who", one.map(|rank| name(self.model, rank)).unwrap_or_default()),
            ("ranks", ranges(ranks)),
            ("updates", updates.to_string()),
            ("iterations", iterations.to_string()),
        ];
        self.verdict(Draft {
            form: if one.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
            rank: one,
            host: host_of(self.model, one),
            facts: vec!["gradients that are not exchanged make a different model on every rank".into()],
            ..Draft::new(Judgement::usual(Confidence::Certain, Reason::NoCollectives), words)
        })
    }

    /// Slow, not stuck.
    pub fn straggler(&self, slow: &Straggler) -> VerdictReport {
        let lost = format!("{:.0}", slow.lost * 100.0);
        let mut facts = slow.facts.clone();
        facts.push(format!("the others lost {lost} % of their time waiting for it"));
        let words = vec![("who", name(self.model, slow.rank)), ("lost", lost)];
        self.verdict(Draft {
            rank: Some(slow.rank),
            host: host_of(self.model, Some(slow.rank)),
            facts,
            latency_ms: slow.over_ms,
            ..Draft::new(Judgement::usual(Confidence::Likely, slow.reason), words)
        })
    }

    /// All have come to the rendezvous, and the group does not form.
    pub fn no_group(&self, waited_ms: u64) -> VerdictReport {
        let all: Vec<Rank> = self.model.ranks.iter().map(|rank| rank.rank).collect();
        let words = vec![("waited", words::duration_ms(waited_ms))];
        self.verdict(Draft {
            waiter: all.first().copied(),
            observations: waiters(self.model, &all),
            latency_ms: waited_ms,
            ..Draft::new(Judgement::usual(Confidence::Likely, Reason::RendezvousBlocked), words)
        })
    }
}

/// Who waits, and what looks at those ranks showed.
fn waiters_and_looks(snapshot: &Snapshot<'_>, ranks: &[Rank]) -> Vec<String> {
    let mut told = waiters(snapshot.model, ranks);
    add_new(&mut told, ranks.iter().take(NAMED).flat_map(|rank| looked(snapshot.view(*rank))));
    told
}

/// Adds facts that are not there: what is said of the whole run, every look at a rank of it shows.
fn add_new(told: &mut Vec<String>, facts: impl IntoIterator<Item = String>) {
    for fact in facts {
        if !told.contains(&fact) {
            told.push(fact);
        }
    }
}

/// A late rank and those who wait for it.
pub(super) struct LateRank<'a> {
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

/// A network that does not carry messages.
pub(super) struct Trouble {
    pub host: Option<String>,
    pub reason: Reason,
    pub confidence: Confidence,
    /// For the sentence of the reason.
    pub words: Vec<(&'static str, String)>,
    pub facts: Vec<String>,
    pub since_ms: u64,
    pub waiter: Option<Rank>,
}
