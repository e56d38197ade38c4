//! The thread on which a rank answers the others about the membership, and watches its neighbors.

use super::{GroupView, Interrupt, Member, set_silence};
use crate::distributed::auth_listener::{AuthListener, Credentials};
use crate::distributed::channel::{Channel, subject, wait};
use crate::distributed::error::BackendError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a caller names the service by, whatever rank it belongs to: who joins does not know that rank.
pub(super) const SERVICE: u32 = u32::MAX;
/// How long a request to join counts: who still wants to asks again before that.
const JOIN_VALID: Duration = Duration::from_secs(2);
/// Most bytes of a request or an answer: a view of some thousand members.
pub(super) const RECORD: usize = 256 << 10;
/// Connections that are kept, for each rank and besides.
const EACH: usize = 4;
const BESIDES: usize = 16;

/// What ranks ask each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum MemberRequest {
    /// Who are you with? `broken`: the caller's group of this epoch is.
    State { epoch: u32, broken: bool },
    /// The caller keeps this connection, whose end is the end of either rank.
    Watch { epoch: u32 },
    /// Can this be the next group?
    Propose(GroupView),
    /// All members have accepted this proposal.
    Commit { nonce: u64 },
    /// The caller wants to join.
    Join(Member),
}

/// The answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum MemberReply {
    State(Box<MemberState>),
    /// The request is carried out.
    Accepted,
    Refused,
    /// The caller waits; these members take it in.
    Waits(Vec<Member>),
}

/// What a member says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MemberState {
    pub rank: u32,
    pub view: GroupView,
    /// Iterations that it can go back to, empty for one that has just joined; `None` while it trains.
    pub held: Option<Vec<u64>>,
    /// It is not in a group yet.
    pub joins: bool,
    /// Ranks that want to join.
    pub waiting: Vec<Member>,
    /// Hosts that have not responded for the silence limit.
    pub timed_out: Vec<IpAddr>,
}

/// What a rank knows of the membership.
pub(super) struct Roll {
    pub own: Member,
    /// Ranks at the launch.
    pub world_size: u32,
    /// The group in force.
    pub view: GroupView,
    /// As [`MemberState::held`].
    pub held: Option<Vec<u64>>,
    /// As [`MemberState::joins`].
    pub joins: bool,
    /// The proposal that was accepted, and whose it is.
    pub promised: Option<(u32, GroupView)>,
    /// Ranks that want to join, and when each last asked.
    pub waiting: BTreeMap<u32, (Member, Instant)>,
    pub timed_out: BTreeSet<IpAddr>,
    /// A watch for the thread to take over.
    pub watch: Option<WatchedPeer>,
    pub retired: bool,
}

impl Roll {
    /// The view is in force: this rank trains in its group from here on.
    pub(super) fn install(&mut self, view: GroupView) {
        self.waiting.retain(|_, (joiner, _)| view.member(joiner.rank) != Some(joiner));
        (self.view, self.held, self.promised, self.joins) = (view, None, None, false);
        self.timed_out.clear();
    }

    /// Ranks that want to join and still ask.
    pub(super) fn joiners(&self) -> impl Iterator<Item = &Member> {
        let asks = |(_, asked): &&(Member, Instant)| asked.elapsed() < JOIN_VALID;
        self.waiting.values().filter(asks).map(|(joiner, _)| joiner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.joiners().filter(|joiner| self.view.member(joiner.rank).is_none()).count()
    }

    pub(super) fn state(&self) -> MemberState {
        MemberState {
            rank: self.own.rank,
            view: self.view.clone(),
            held: self.held.clone(),
            joins: self.joins,
            waiting: self.joiners().cloned().collect(),
            timed_out: self.timed_out.iter().copied().collect(),
        }
    }

    /// Whether this rank can be in that group (MEMBER-1, MEMBER-3).
    fn can_accept(&self, from: u32, view: &GroupView) -> bool {
        let holds = self.held.as_ref().is_some_and(|held| held.is_empty() || held.contains(&view.iteration));
        // A rank that joins has no view yet.
        let follows = self.view.members.is_empty() || view.parent == self.view.nonce;
        let is_free = self.promised.as_ref().is_none_or(|(by, _)| *by == from);
        holds
            && follows
            && is_free
            && view.epoch > self.view.epoch
            && view.leader == from
            && view.member(self.own.rank) == Some(&self.own)
    }
}

/// A rank's roll, shared by its training thread and its service.
pub(super) struct SharedRoll {
    roll: Mutex<Roll>,
    pub changed: Condvar,
    pub interrupt: Interrupt,
}

impl SharedRoll {
    pub(super) fn new(own: Member, world_size: u32, interrupt: Interrupt) -> SharedRoll {
        let roll = Roll {
            own,
            world_size,
            view: GroupView::launch(Vec::new()),
            held: None,
            joins: false,
            promised: None,
            waiting: BTreeMap::new(),
            timed_out: BTreeSet::new(),
            watch: None,
            retired: false,
        };
        SharedRoll { roll: Mutex::new(roll), changed: Condvar::new(), interrupt }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Roll> {
        self.roll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Roll::install`], under this lock.
    pub(super) fn install(&self, roll: &mut Roll, view: GroupView) {
        roll.install(view);
        self.interrupt.clear();
        self.changed.notify_all();
    }

    /// Answers `from`.
    pub(super) fn answer(&self, from: u32, request: MemberRequest) -> MemberReply {
        let mut roll = self.lock();
        match request {
            MemberRequest::State { epoch, broken } => {
                if broken && epoch >= roll.view.epoch && roll.held.is_none() && !roll.retired {
                    self.interrupt.set();
                }
                MemberReply::State(Box::new(roll.state()))
            }
            MemberRequest::Watch { .. } => MemberReply::Accepted,
            MemberRequest::Propose(view) => {
                if !roll.can_accept(from, &view) {
                    return MemberReply::Refused;
                }
                roll.promised = Some((from, view));
                MemberReply::Accepted
            }
            MemberRequest::Commit { nonce } => {
                if roll.view.nonce == nonce {
                    return MemberReply::Accepted;
                }
                match roll.promised.take_if(|(by, view)| *by == from && view.nonce == nonce) {
                    Some((_, view)) => {
                        self.install(&mut roll, view);
                        MemberReply::Accepted
                    }
                    None => MemberReply::Refused,
                }
            }
            MemberRequest::Join(joiner) => {
                if joiner.rank != from || joiner.rank >= roll.world_size || roll.retired {
                    return MemberReply::Refused;
                }
                if roll.view.member(joiner.rank) != Some(&joiner) {
                    roll.waiting.insert(joiner.rank, (joiner, Instant::now()));
                }
                MemberReply::Waits(roll.view.members.clone())
            }
        }
    }

    /// A watched connection of this epoch has ended.
    pub(super) fn lost(&self, epoch: u32, error: Option<&io::Error>, host: Option<IpAddr>) {
        let mut roll = self.lock();
        if roll.retired || roll.view.epoch != epoch {
            return;
        }
        if error.is_some_and(|error| error.kind() == ErrorKind::TimedOut) {
            roll.timed_out.extend(host);
        }
        self.interrupt.set();
        self.changed.notify_all();
    }
}

/// A connection that is kept for its end.
pub(super) struct WatchedPeer {
    stream: TcpStream,
    epoch: u32,
    /// A connection that has ended has no address any more.
    host: Option<IpAddr>,
}

impl WatchedPeer {
    /// Of a group of this epoch, whose host counts as lost after `silence`.
    pub(super) fn new(stream: TcpStream, epoch: u32, silence: Duration) -> WatchedPeer {
        set_silence(&stream, silence);
        let host = stream.peer_addr().ok().map(|address| address.ip());
        WatchedPeer { stream, epoch, host }
    }

    /// The error that ended it, `Some(None)` where the other end closed it; `None` while it lives.
    fn end(&mut self) -> Option<Option<io::Error>> {
        let mut bytes = [0; 64];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Some(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(Some(error)),
            }
        }
    }
}

/// The running service; dropping it ends it.
pub(super) struct ServiceThread {
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl ServiceThread {
    /// Serves the peers that the listener verifies.
    ///
    /// Errors: no thread or no pipe can be made.
    pub(super) fn start(
        listener: TcpListener,
        credentials: Credentials,
        (world_size, silence): (u32, Duration),
        shared: &Arc<SharedRoll>,
    ) -> io::Result<ServiceThread> {
        let (woken, wake) = io::pipe()?;
        let most = EACH * world_size as usize + BESIDES;
        let listener = AuthListener::new(listener, credentials, SERVICE, world_size)?;
        let service = MemberService {
            listener,
            shared: Arc::clone(shared),
            clients: Vec::new(),
            watched: Vec::new(),
            most,
            silence,
        };
        let thread = std::thread::Builder::new().name("members".into()).spawn(move || service.run(woken))?;
        Ok(ServiceThread { wake: Some(wake), thread: Some(thread) })
    }

    /// Has the thread take over what was put in the roll.
    pub(super) fn wake(&self) {
        if let Some(mut wake) = self.wake.as_ref() {
            // A full pipe wakes it, too.
            let _ = wake.write(&[1]);
        }
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        // The other end of the pipe becomes readable.
        self.wake.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct MemberService {
    listener: AuthListener,
    shared: Arc<SharedRoll>,
    clients: Vec<Channel>,
    watched: Vec<WatchedPeer>,
    most: usize,
    /// After which a watched host counts as lost.
    silence: Duration,
}

impl MemberService {
    fn run(mut self, mut woken: PipeReader) {
        loop {
            let mut subjects = vec![subject(woken.as_raw_fd(), libc::POLLIN)];
            subjects.extend(self.clients.iter().map(|client| client.interest(true)));
            let watched = self.watched.iter();
            subjects.extend(watched.map(|peer| subject(peer.stream.as_raw_fd(), libc::POLLIN)));
            self.listener.interests(&mut subjects);
            wait(&mut subjects, self.listener.next());
            if subjects[0].revents != 0 && !matches!(woken.read(&mut [0; 64]), Ok(1..)) {
                return;
            }
            self.watched.extend(self.shared.lock().watch.take());
            let Ok(peers) = self.listener.step() else { return };
            for peer in peers {
                if self.clients.len() < self.most
                    && let Ok(client) = Channel::new(peer.rank, peer.stream, peer.keys, RECORD)
                {
                    self.clients.push(client);
                }
            }
            self.serve();
            let shared = &self.shared;
            self.watched.retain_mut(|peer| {
                let Some(error) = peer.end() else { return true };
                shared.lost(peer.epoch, error.as_ref(), peer.host);
                false
            });
        }
    }

    fn serve(&mut self) {
        let mut remaining = Vec::with_capacity(self.clients.len());
        for mut client in std::mem::take(&mut self.clients) {
            match answer(&mut client, &self.shared) {
                Ok(None) => remaining.push(client),
                Ok(Some(epoch)) => {
                    self.watched.push(WatchedPeer::new(client.into_stream(), epoch, self.silence));
                }
                // Callers hang up when they have their answer.
                Err(_) => {}
            }
        }
        self.clients = remaining;
    }
}

/// Answers what has arrived; the epoch of a connection that is watched from here on. An error ends the connection.
fn answer(client: &mut Channel, shared: &SharedRoll) -> Result<Option<u32>, BackendError> {
    client.flush()?;
    client.fill()?;
    while client.is_flushed() {
        let Some(record) = client.record()? else { return Ok(None) };
        let request: Option<MemberRequest> = serde_json::from_slice(record).ok();
        client.consume();
        let watches = match &request {
            Some(MemberRequest::Watch { epoch }) => Some(*epoch),
            _ => None,
        };
        let reply = request.map_or(MemberReply::Refused, |request| shared.answer(client.peer, request));
        let reply = serde_json::to_vec(&reply).ok().filter(|reply| reply.len() <= RECORD).unwrap_or_default();
        client.put([&reply, &[]])?;
        client.flush()?;
        if watches.is_some() && client.is_flushed() {
            return Ok(watches);
        }
    }
    Ok(None)
}
