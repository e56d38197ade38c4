//! The members of a run's group: lost ranks leave it, and ranks that were started again join it
//! (`distributed.on_rank_loss = "shrink"`).
//!
//! Every rank answers the others on a socket of its own from the launch on ([`service`]), on a thread that computes
//! nothing. Each rank holds one idle connection to the next one, whose end is the end of a process; where a host is
//! gone, keepalive probes end it. A rank whose group is broken asks all members who is left; the lowest one proposes a
//! [`GroupView`], and commits it once all its members have accepted ([`agreement`]): two-phase commit among the
//! survivors, as in group membership protocols (A. Ricciardi, K. Birman, Using process groups to implement failure
//! detection in asynchronous environments, 1991, section 4). The new group is then formed at the leader's new store,
//! with keys of its own.
//!
//! Invariants:
//! - MEMBER-1: a view is in force only after each of its members has accepted it, and a member that has accepted one
//!   accepts no other before it has found out that the first one's leader is gone.
//! - MEMBER-2: two parts of a run never both continue. Members whose process is known to have ended count for nobody;
//!   where a member does not respond, a majority of the view before is needed.
//! - MEMBER-3: the members of a view continue from an iteration that each of them holds.
//! - MEMBER-4: no wait is longer than its limit, and the error names who is missing.
//! - MEMBER-5: nothing of an earlier view is accepted in a later one: its connections have other keys.

mod agreement;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use agreement::{AgreementTerms, changes};

use super::GroupSettings;
use super::auth_listener::Credentials;
use super::bounded::within;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::group::ProcessGroup;
use super::rendezvous;
use serde::{Deserialize, Serialize};
use service::{ServiceThread, SharedRoll};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ends a group's collectives from outside: the one that runs, and every later one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<InterruptState>);

#[derive(Debug, Default)]
struct InterruptState {
    is_set: AtomicBool,
    /// Connections that a collective may wait for.
    streams: Mutex<Vec<TcpStream>>,
}

impl Interrupt {
    /// Whether the group has to be given up.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a connection of the group once the group is given up.
    pub(super) fn add(&self, stream: &TcpStream) {
        let Ok(stream) = stream.try_clone() else { return };
        let mut streams = self.streams();
        if self.is_set() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        streams.push(stream);
    }

    /// Gives the group up: who waits for one of its connections continues at once, with an error.
    pub(super) fn set(&self) {
        let mut streams = self.streams();
        self.0.is_set.store(true, Ordering::Relaxed);
        for stream in streams.drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Another group begins.
    fn clear(&self) {
        let mut streams = self.streams();
        streams.clear();
        self.0.is_set.store(false, Ordering::Relaxed);
    }
}

/// Ends an idle connection whose other host has not responded for `limit`. A process that is suspended is not affected:
/// its kernel responds.
fn set_silence(stream: &TcpStream, limit: Duration) {
    // The kernel compares at each probe: a limit of whole seconds would often be found over a second late.
    let least = limit - limit / 16;
    let millis = libc::c_int::try_from(least.as_millis()).unwrap_or(libc::c_int::MAX).max(1);
    let probe = (limit.as_secs() / 4).clamp(1, 60) as libc::c_int;
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, probe),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, probe),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis),
    ];
    for (level, option, value) in options {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open during the call, and the value is one integer of the given size. A kernel
        // that refuses an option has longer limits of its own.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    }
}

/// A rank, and where its service is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub rank: u32,
    pub address: SocketAddr,
}

/// Who is in the group, and from where it continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupView {
    /// Changes since the launch.
    pub epoch: u32,
    /// Tells two proposals of one epoch apart; 0 at the launch.
    pub nonce: u64,
    /// The nonce of the view before.
    pub parent: u64,
    /// In rising order of their ranks.
    pub members: Vec<Member>,
    /// The iteration that all members go back to.
    pub iteration: u64,
    /// The rank that serves the group's store, and whose state ranks without one get.
    pub leader: u32,
    /// Where that store is; `None` at the launch.
    pub store: Option<SocketAddr>,
}

impl GroupView {
    fn launch(members: Vec<Member>) -> GroupView {
        GroupView { epoch: 0, nonce: 0, parent: 0, members, iteration: 0, leader: 0, store: None }
    }

    /// Ranks of the run, in the order of their new numbers.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.rank).collect()
    }

    /// A rank's number in this group.
    pub(crate) fn index_of(&self, rank: u32) -> Option<u32> {
        self.members.iter().position(|member| member.rank == rank).map(|index| index as u32)
    }

    fn member(&self, rank: u32) -> Option<&Member> {
        self.members.iter().find(|member| member.rank == rank)
    }

    /// Where a rank asks to join this group.
    pub(crate) fn entrance(&self) -> Option<SocketAddr> {
        self.members.first().map(|member| member.address)
    }
}

/// Bytes of an address in the exchange at the launch.
const ADDRESS: usize = 64;

/// This rank's part in the membership.
pub(crate) struct Members {
    shared: Arc<SharedRoll>,
    credentials: Credentials,
    silence: Duration,
    service: ServiceThread,
}

impl Members {
    /// Starts the service of the rank of `settings`. `silence`: after which a host counts as lost.
    ///
    /// Errors: no socket, or no thread.
    pub(crate) fn open(settings: &GroupSettings, silence: Duration) -> Result<Members, DistError> {
        let identity = (settings.rank, settings.world_size);
        let failed =
            |text: String| DistError::new(DistErrorKind::Failed, DistPhase::Rendezvous, identity, text);
        let of_thread = settings.clone();
        // The resolver may take its time.
        let address = within(settings.timeout, move |_| rendezvous::own_address(&of_thread), || {})
            .unwrap_or_else(|| {
                Err(BackendError::new(DistErrorKind::Timeout, "its own address was not found in time"))
            })
            .map_err(|failure| failed(failure.text))?;
        Members::at(address, settings, silence)
            .map_err(|error| failed(format!("rank {} cannot listen at {address}: {error}", settings.rank)))
    }

    fn at(address: IpAddr, settings: &GroupSettings, silence: Duration) -> std::io::Result<Members> {
        let listener = TcpListener::bind((address, 0))?;
        let own = Member { rank: settings.rank, address: listener.local_addr()? };
        let scope = format!("members of generation {}", settings.generation);
        let credentials = Credentials::new(settings.secret.as_ref(), &scope);
        let interrupt = settings.interrupt.clone().unwrap_or_default();
        let shared = Arc::new(SharedRoll::new(own, settings.world_size, interrupt));
        let service =
            ServiceThread::start(listener, credentials.clone(), (settings.world_size, silence), &shared)?;
        Ok(Members { shared, credentials, silence, service })
    }

    /// Exchanges addresses with the other ranks at the launch (one collective, tag `members`), and watches the next
    /// one from here on.
    pub(crate) fn start(&self, group: &ProcessGroup) -> Result<(), DistError> {
        let own = self.shared.lock().own.clone();
        let mut bytes = own.address.to_string().into_bytes();
        bytes.resize(ADDRESS, 0);
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut members = Vec::new();
        for (rank, words) in (0..).zip(group.all_gather_words(&words, "members")?) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let text = String::from_utf8_lossy(&bytes);
            let address = text.trim_end_matches('\0').parse().map_err(|_| {
                let identity = (group.rank(), group.world_size());
                let text = format!("invalid address for rank {rank}: {text:?}");
                DistError::new(DistErrorKind::Mismatch, DistPhase::Rendezvous, identity, text)
            })?;
            members.push(Member { rank, address });
        }
        self.shared.lock().view = GroupView::launch(members);
        self.watch();
        Ok(())
    }

    /// Ranks that wait to join.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.lock().waiting()
    }

    /// The group in force.
    pub(crate) fn view(&self) -> GroupView {
        self.shared.lock().view.clone()
    }

    /// Training has ended: from here on ranks end, and none is lost.
    pub(crate) fn retire(&self) {
        self.shared.lock().retired = true;
    }
}

fn io_error(failure: &BackendError) -> std::io::Error {
    let kind = match failure.kind {
        DistErrorKind::Timeout => std::io::ErrorKind::TimedOut,
        DistErrorKind::Forged => std::io::ErrorKind::InvalidData,
        _ => std::io::ErrorKind::ConnectionReset,
    };
    std::io::Error::new(kind, failure.text.clone())
}
