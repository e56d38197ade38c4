//! How ranks agree on the next group: survivors of a broken one, and ranks that join.

use super::service::{MemberReply, MemberRequest, MemberState, RECORD, Roll, SERVICE, WatchedPeer};
use super::{GroupView, Member, Members, io_error};
use crate::distributed::auth_listener;
use crate::distributed::channel::Channel;
use crate::distributed::store::list;
use rankdeck_types::error::HintedError;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Limit of one call. A member that takes longer is called again.
const CALL: Duration = Duration::from_millis(500);
/// Between two rounds of calls.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LAST: Duration = Duration::from_millis(50);
/// How long a rank waits for its leader before it asks again.
const LEADER_WAIT: Duration = Duration::from_millis(250);
/// Calls of a rank that is to be watched.
const WATCH_TRIES: u32 = 4;
/// Calls at a time.
const CALLS: usize = 64;
const RESTART_HINT: &str = "restart the run from its latest checkpoint: `rankdeck restart RUN`";

/// When ranks may continue without others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgreementTerms<'a> {
    /// Limit of the whole agreement.
    pub limit: Duration,
    /// All ranks come by themselves, since one joins: their group is whole.
    pub is_planned: bool,
    /// Half of the ranks may continue without a host that does not respond (`restart.lost_host = "exclude"`).
    pub excludes_hosts: bool,
    /// Whether so many ranks can share the work; as many join as that allows.
    pub can_split: &'a [bool],
}

/// The next group.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub view: GroupView,
    /// The socket of the store, on its leader.
    pub listener: Option<TcpListener>,
}

/// What a call has found out about a member.
enum Probe {
    Alive(Box<MemberState>),
    /// Its process has ended: its host refuses the connection.
    Dead,
    /// Its host, or its process, does not respond.
    Silent,
}

/// All members as one of them sees them.
struct Survey<'a> {
    alive: Vec<MemberState>,
    silent: Vec<&'a Member>,
}

impl Survey<'_> {
    fn is_alive(&self, rank: u32) -> bool {
        self.alive.iter().any(|state| state.rank == rank)
    }
}

/// What a round of an agreement ends with.
enum Round {
    Agreed(GroupView, Option<TcpListener>),
    /// Another round follows; the leader's proposal may come meanwhile.
    Wait(Duration),
}

impl Members {
    /// Agrees with the other members on the next group; they learn that this one is broken, if it is. `held`:
    /// iterations that this rank can go back to; none for one that has joined and not got a state yet.
    ///
    /// Errors: this rank cannot continue, and why.
    pub(crate) fn agree(&self, held: &[u64], terms: &AgreementTerms<'_>) -> Result<Agreement, HintedError> {
        let started = Instant::now();
        self.shared.lock().held = Some(held.to_vec());
        // Whoever of this group still waits for this rank is to learn of it.
        self.shared.interrupt.set();
        let mut pause = PAUSE_FIRST;
        loop {
            if started.elapsed() > terms.limit {
                return Err(self.overdue(terms.limit));
            }
            match self.round(held, terms, started) {
                Ok(Round::Agreed(view, listener)) => return Ok(Agreement { view, listener }),
                Ok(Round::Wait(most)) => {
                    self.wait(most.max(pause));
                    pause = (pause * 2).min(PAUSE_LAST);
                }
                // The others may have taken this rank in meanwhile.
                Err(refusal) => match self.committed() {
                    Some(view) => return Ok(Agreement { view, listener: None }),
                    None => return Err(refusal),
                },
            }
        }
    }

    /// Asks the member of the run at this address to take this rank in, and waits for that.
    ///
    /// Errors: no member has done so in time.
    pub(crate) fn join(&self, entrance: SocketAddr, limit: Duration) -> Result<Agreement, HintedError> {
        let deadline = Instant::now() + limit;
        let own = {
            let mut roll = self.shared.lock();
            (roll.held, roll.joins) = (Some(Vec::new()), true);
            roll.own.clone()
        };
        let first = Member { rank: SERVICE, address: entrance };
        let mut targets = vec![first.clone()];
        let (mut last, mut answered) = (String::from("no answer"), Instant::now());
        while Instant::now() < deadline && answered.elapsed() < self.silence {
            let request = MemberRequest::Join(own.clone());
            for target in std::mem::take(&mut targets) {
                match self.call(&target, &request) {
                    Ok(MemberReply::Waits(members)) => {
                        answered = Instant::now();
                        targets = members.into_iter().filter(|member| member.rank != own.rank).collect();
                        break;
                    }
                    Ok(_) => last = "it refuses the rank".into(),
                    Err(error) => last = error.to_string().to_lowercase(),
                }
            }
            if targets.is_empty() {
                targets.push(first.clone());
            }
            if let Some(view) = self.committed() {
                return Ok(Agreement { view, listener: None });
            }
            self.wait(LEADER_WAIT);
            if let Some(view) = self.committed() {
                return Ok(Agreement { view, listener: None });
            }
        }
        Err(HintedError::new(
            format!("rank {} cannot join the run at {entrance}: {last}", own.rank),
            "check that the run is training, with `rankdeck ps`",
        ))
    }

    /// Watches the next member from here on: this rank notices its end while it computes.
    pub(crate) fn watch(&self) {
        let (view, own) = {
            let roll = self.shared.lock();
            (roll.view.clone(), roll.own.rank)
        };
        let Some(index) = view.members.iter().position(|member| member.rank == own) else { return };
        let next = &view.members[(index + 1) % view.members.len()];
        if next.rank == own {
            return;
        }
        let request = MemberRequest::Watch { epoch: view.epoch };
        for _ in 0..WATCH_TRIES {
            let watched = self.connect(next).and_then(|mut channel| {
                exchange(&mut channel, &request, Instant::now() + CALL)?;
                Ok(channel.into_stream())
            });
            match watched {
                Ok(stream) => {
                    let watched = WatchedPeer::new(stream, view.epoch, self.silence);
                    self.shared.lock().watch = Some(watched);
                    return self.service.wake();
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
                Err(_) => {}
            }
        }
        // It has ended since the group was formed: the ranks find out together.
        self.shared.interrupt.set();
    }

    /// The view that was committed while this rank waited.
    fn committed(&self) -> Option<GroupView> {
        let roll = self.shared.lock();
        roll.held.is_none().then(|| roll.view.clone())
    }

    /// Sleeps until something is committed, at most so long.
    fn wait(&self, most: Duration) {
        let roll = self.shared.lock();
        let waits = |roll: &mut Roll| roll.held.is_some();
        drop(self.shared.changed.wait_timeout_while(roll, most, waits));
    }

    fn round(
        &self,
        held: &[u64],
        terms: &AgreementTerms<'_>,
        started: Instant,
    ) -> Result<Round, HintedError> {
        let (view, own) = {
            let roll = self.shared.lock();
            if roll.held.is_none() {
                return Ok(Round::Agreed(roll.view.clone(), None));
            }
            (roll.view.clone(), roll.own.clone())
        };
        let others: Vec<&Member> = view.members.iter().filter(|member| **member != own).collect();
        let survey = self.survey(&others, (view.epoch, !terms.is_planned));
        let newer = survey.alive.iter().map(|state| &state.view).filter(|other| other.epoch > view.epoch);
        if let Some(newer) = newer.max_by_key(|other| other.epoch) {
            return self.adopt(newer, held, &own);
        }
        if survey.silent.iter().any(|member| !self.is_overdue(member, &survey, started)) {
            return Ok(Round::Wait(PAUSE_LAST));
        }
        self.check_quorum(&survey, terms, &own)?;
        {
            // MEMBER-1: its leader has ended without a commit that anyone knows of.
            let mut roll = self.shared.lock();
            if roll.promised.as_ref().is_some_and(|(by, _)| *by != own.rank && !survey.is_alive(*by)) {
                roll.promised = None;
            }
        }
        // A member that trains still has a state.
        let has_state = |held: Option<&[u64]>| held.is_none_or(|held| !held.is_empty());
        let stateful = survey.alive.iter().filter(|state| has_state(state.held.as_deref()));
        let own_rank = has_state(Some(held)).then_some(own.rank);
        match stateful.map(|state| state.rank).chain(own_rank).min() {
            None => Err(HintedError::new(
                "no rank that is left has finished an iteration since it started",
                RESTART_HINT,
            )),
            Some(leader) if leader != own.rank => Ok(Round::Wait(LEADER_WAIT)),
            Some(_) => self.lead(&view, &survey, (held, terms.can_split), &own),
        }
    }

    /// Proposes the next group, and commits it.
    fn lead(
        &self,
        view: &GroupView,
        survey: &Survey<'_>,
        (held, can_split): (&[u64], &[bool]),
        own: &Member,
    ) -> Result<Round, HintedError> {
        let soon = Ok(Round::Wait(PAUSE_FIRST));
        // They have learned of it, and come as soon as their work lets them.
        if survey.alive.iter().any(|state| state.held.is_none() || state.view.nonce != view.nonce) {
            return soon;
        }
        let holds = |iteration: u64| {
            let mut lists = survey.alive.iter().filter_map(|state| state.held.as_deref());
            lists.all(|held| held.is_empty() || held.contains(&iteration))
        };
        let Some(iteration) = held.iter().copied().filter(|iteration| holds(*iteration)).max() else {
            let error = "the ranks that are left have no iteration in common to go back to";
            return Err(HintedError::new(error, RESTART_HINT));
        };
        let mut joiners: Vec<Member> =
            survey.alive.iter().flat_map(|state| &state.waiting).cloned().collect();
        joiners.extend(self.shared.lock().joiners().cloned());
        joiners.retain(|joiner| joiner.rank != own.rank && !survey.is_alive(joiner.rank));
        joiners.sort_by_key(|joiner| joiner.rank);
        joiners.dedup_by_key(|joiner| joiner.rank);
        let present = survey.alive.len() + 1;
        let is_possible = |joining: usize| can_split.get(present + joining).is_some_and(|can| *can);
        joiners.truncate((0..=joiners.len()).rev().find(|joining| is_possible(*joining)).unwrap_or(0));
        let listener = TcpListener::bind((own.address.ip(), 0));
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (store, listener) = bound.map_err(|error| {
            let error = format!("rank {} cannot serve the store of the new group: {error}", own.rank);
            HintedError::new(error, RESTART_HINT)
        })?;
        let mut members: Vec<Member> =
            view.members.iter().filter(|member| survey.is_alive(member.rank)).cloned().collect();
        members.push(own.clone());
        members.extend(joiners.iter().cloned());
        members.sort_by_key(|member| member.rank);
        let proposal = GroupView {
            epoch: view.epoch + 1,
            nonce: nonce(),
            parent: view.nonce,
            members,
            iteration,
            leader: own.rank,
            store: Some(store),
        };
        {
            let mut roll = self.shared.lock();
            if roll.promised.as_ref().is_some_and(|(by, _)| *by != own.rank) {
                return soon;
            }
            roll.promised = Some((own.rank, proposal.clone()));
        }
        let others: Vec<&Member> = proposal.members.iter().filter(|member| *member != own).collect();
        let replies = self.call_all(&others, &MemberRequest::Propose(proposal.clone()));
        let mut complete = true;
        for (member, reply) in others.iter().zip(replies) {
            if !matches!(reply, Ok(MemberReply::Accepted)) {
                complete = false;
                // Who wants to join asks again.
                self.shared.lock().waiting.remove(&member.rank);
            }
        }
        if !complete {
            self.shared.lock().promised = None;
            return soon;
        }
        // A member that does not get it learns of it from the others.
        self.call_all(&others, &MemberRequest::Commit { nonce: proposal.nonce });
        let mut roll = self.shared.lock();
        self.shared.install(&mut roll, proposal.clone());
        Ok(Round::Agreed(proposal, Some(listener)))
    }

    /// Takes over a view that others have committed, with this rank in it.
    fn adopt(&self, newer: &GroupView, held: &[u64], own: &Member) -> Result<Round, HintedError> {
        let mut roll = self.shared.lock();
        if roll.held.is_none() {
            return Ok(Round::Agreed(roll.view.clone(), None));
        }
        // What is committed was accepted by all of its members.
        let follows = newer.parent == roll.view.nonce;
        let holds = held.is_empty() || held.contains(&newer.iteration);
        if follows && holds && newer.member(own.rank) == Some(own) {
            self.shared.install(&mut roll, newer.clone());
            return Ok(Round::Agreed(newer.clone(), None));
        }
        Err(HintedError::new(
            format!("ranks {} continue without rank {}", list(&newer.ranks()), own.rank),
            "check the network between the hosts, then add the rank again: `rankdeck add RUN --rank N`",
        ))
    }

    /// MEMBER-2.
    fn check_quorum(
        &self,
        survey: &Survey<'_>,
        terms: &AgreementTerms<'_>,
        own: &Member,
    ) -> Result<(), HintedError> {
        let (present, silent) = (survey.alive.len() + 1, survey.silent.len());
        if present > silent {
            return Ok(());
        }
        // Both halves may take the lowest rank of the other one for silent, but only one of them has it.
        let silent_ranks: Vec<u32> = survey.silent.iter().map(|member| member.rank).collect();
        let lowest = survey.alive.iter().map(|state| state.rank).chain([own.rank]).min();
        let has_lowest = lowest < silent_ranks.iter().copied().min();
        if present == silent && terms.excludes_hosts && has_lowest {
            return Ok(());
        }
        let hint = match present == silent && has_lowest {
            true => {
                "set `restart.lost_host = \"exclude\"` to continue with the half that has the lowest rank"
            }
            false => RESTART_HINT,
        };
        Err(HintedError::new(
            format!(
                "{present} of {} ranks cannot continue alone: no answer from ranks {}, which may still train",
                present + silent,
                list(&silent_ranks)
            ),
            hint,
        ))
    }

    /// A silent member counts as lost.
    fn is_overdue(&self, member: &Member, survey: &Survey<'_>, started: Instant) -> bool {
        let host = member.address.ip();
        let timed_out = |hosts: &[IpAddr]| hosts.contains(&host);
        started.elapsed() >= self.silence
            || self.shared.lock().timed_out.contains(&host)
            || survey.alive.iter().any(|state| timed_out(&state.timed_out))
    }

    fn overdue(&self, limit: Duration) -> HintedError {
        let roll = self.shared.lock();
        HintedError::new(
            format!(
                "rank {} and the other ranks have not agreed on a new group within {:.1} s",
                roll.own.rank,
                limit.as_secs_f64()
            ),
            RESTART_HINT,
        )
    }

    /// Asks all of these members.
    fn survey<'a>(&self, members: &[&'a Member], (epoch, broken): (u32, bool)) -> Survey<'a> {
        let replies = self.call_all(members, &MemberRequest::State { epoch, broken });
        let mut survey = Survey { alive: Vec::new(), silent: Vec::new() };
        for (member, reply) in members.iter().zip(replies) {
            match probe(member, reply) {
                Probe::Alive(state) => survey.alive.push(*state),
                Probe::Silent => survey.silent.push(*member),
                Probe::Dead => {}
            }
        }
        survey
    }

    /// The replies of these members, in their order.
    fn call_all(&self, members: &[&Member], request: &MemberRequest) -> Vec<io::Result<MemberReply>> {
        let mut replies = Vec::with_capacity(members.len());
        for some in members.chunks(CALLS) {
            replies.extend(std::thread::scope(|scope| {
                let calls: Vec<_> =
                    some.iter().map(|member| scope.spawn(move || self.call(member, request))).collect();
                let failed = || Err(io::Error::other("cannot call"));
                calls.into_iter().map(|call| call.join().unwrap_or_else(|_| failed())).collect::<Vec<_>>()
            }));
        }
        replies
    }

    pub(super) fn call(&self, member: &Member, request: &MemberRequest) -> io::Result<MemberReply> {
        exchange(&mut self.connect(member)?, request, Instant::now() + CALL)
    }

    fn connect(&self, member: &Member) -> io::Result<Channel> {
        let own = self.shared.lock().own.rank;
        let deadline = Instant::now() + CALL;
        let (stream, keys) =
            auth_listener::connect(member.address, &self.credentials, own, SERVICE, deadline)?;
        Channel::new(member.rank, stream, keys, RECORD).map_err(|failure| io_error(&failure))
    }
}

fn exchange(channel: &mut Channel, request: &MemberRequest, deadline: Instant) -> io::Result<MemberReply> {
    let request = serde_json::to_vec(request)?;
    if request.len() > RECORD {
        return Err(io::Error::other("the group is too large"));
    }
    let reply = channel.request(&request, deadline).map_err(|failure| io_error(&failure))?;
    Ok(serde_json::from_slice(&reply)?)
}

/// What a reply to [`MemberRequest::State`], or its absence, says about a member.
fn probe(member: &Member, reply: io::Result<MemberReply>) -> Probe {
    match reply {
        // Else the address of one that has ended was given to another one.
        Ok(MemberReply::State(state)) if state.rank == member.rank && !state.joins => Probe::Alive(state),
        Ok(_) => Probe::Dead,
        // The socket lives as long as its process. A connection that breaks may be one too many.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Probe::Dead,
        Err(_) => Probe::Silent,
    }
}

/// A number that no other proposal has.
fn nonce() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes no connection is made either.
    let _ = SystemRandom::new().fill(&mut bytes);
    u64::from_le_bytes(bytes).max(1)
}

/// Ranks of `before` that `view` has not, and ranks that it has in addition.
pub(crate) fn changes(before: &[u32], view: &GroupView) -> (Vec<u32>, Vec<u32>) {
    let (before, after): (BTreeSet<u32>, BTreeSet<u32>) =
        (before.iter().copied().collect(), view.ranks().into_iter().collect());
    (before.difference(&after).copied().collect(), after.difference(&before).copied().collect())
}
