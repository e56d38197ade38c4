//! A listening socket at which only ranks of this run get in.
//!
//! Owner: whoever accepts (mesh or store), which calls [`Reception::step`] when a socket is ready.
//!
//! Invariant RECEPTION-1: strangers cost a bounded number of descriptors and bytes, for a bounded time, and
//! never keep a rank out: beyond [`SPARE`] callers more than there are ranks, the one that has waited longest
//! goes, and a rank that loses its place calls again. Where the process may open few files, strangers get a
//! part of what is left only: checkpoints and environments need descriptors, too.

use super::channel::subject;
use super::greeting::{Credentials, Greeting, GreetingStep, Guest};
use crate::events::warn;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Callers that are greeted at a time, besides one for each rank.
const SPARE: usize = 128;
/// They get one of so many unused descriptors.
const STRANGERS_PART: usize = 4;
/// Most that are accepted before those already here are looked at again.
const BATCH: usize = 32;
/// How long nobody is accepted after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// See the module.
pub(super) struct Reception {
    listener: TcpListener,
    credentials: Credentials,
    rank: u32,
    greetings: VecDeque<Greeting>,
    most: usize,
    strangers: Strangers,
    /// Descriptors ran out: until then, nobody is accepted.
    pause: Option<Instant>,
}

impl Reception {
    /// Greets as `rank`, one of `world_size`, whoever calls the listener.
    ///
    /// Errors: the socket cannot be set up.
    pub(super) fn new(
        listener: TcpListener,
        credentials: Credentials,
        rank: u32,
        world_size: u32,
    ) -> io::Result<Reception> {
        listener.set_nonblocking(true)?;
        let strangers = Strangers { rank, count: 0, told: 0, last: None, told_at: None };
        let greetings = VecDeque::new();
        let most = (unused_descriptors() / STRANGERS_PART).min(SPARE) + world_size as usize;
        Ok(Reception { listener, credentials, rank, greetings, most, strangers, pause: None })
    }

    /// Sockets to wait for.
    pub(super) fn interests(&self, into: &mut Vec<libc::pollfd>) {
        if self.pause.is_none() {
            into.push(subject(self.listener.as_raw_fd(), libc::POLLIN));
        }
        into.extend(self.greetings.iter().map(|greeting| subject(greeting.stream.as_raw_fd(), libc::POLLIN)));
    }

    /// When [`Reception::step`] has something to do even if no socket is ready.
    pub(super) fn next(&self) -> Option<Instant> {
        self.greetings.iter().map(Greeting::until).chain(self.pause).min()
    }

    /// Goes on with everybody who is here; who has just got in.
    ///
    /// Errors: the listening socket is unusable.
    pub(super) fn step(&mut self) -> io::Result<Vec<Guest>> {
        self.accept()?;
        let mut guests = Vec::new();
        for greeting in std::mem::take(&mut self.greetings) {
            let from = greeting.stream.peer_addr().ok().map(|address| address.ip());
            match greeting.step(&self.credentials, self.rank) {
                (_, GreetingStep::Arrived(guest)) => guests.push(*guest),
                (_, GreetingStep::Stranger) => self.strangers.add(from),
                (pending, GreetingStep::Pending) => self.greetings.extend(pending),
            }
        }
        self.strangers.tell();
        Ok(guests)
    }

    fn accept(&mut self) -> io::Result<()> {
        if self.pause.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        self.pause = None;
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.greetings.len() >= self.most {
                        self.turn_away_the_oldest();
                    }
                    match Greeting::new(stream) {
                        Ok(greeting) => self.greetings.push_back(greeting),
                        Err(_) => self.strangers.add(Some(address.ip())),
                    }
                }
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (ErrorKind::WouldBlock, _) => break,
                    (_, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => {
                        self.turn_away_the_oldest();
                        self.pause = Some(Instant::now() + PAUSE);
                        break;
                    }
                    (_, Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP)) => {
                        return Err(error);
                    }
                    // Whatever became of a connection before it was accepted is that caller's affair.
                    _ => {}
                },
            }
        }
        Ok(())
    }

    fn turn_away_the_oldest(&mut self) {
        if let Some(oldest) = self.greetings.pop_front() {
            self.strangers.add(oldest.stream.peer_addr().ok().map(|address| address.ip()));
        }
    }
}

/// How many more files this process may open.
fn unused_descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    usize::try_from(crate::open_files()).unwrap_or(usize::MAX).saturating_sub(open)
}

/// How many connections were refused; said once at first, then at most once a minute, and at the end.
struct Strangers {
    rank: u32,
    count: u64,
    told: u64,
    last: Option<IpAddr>,
    told_at: Option<Instant>,
}

impl Strangers {
    const EVERY: Duration = Duration::from_secs(60);

    fn add(&mut self, from: Option<IpAddr>) {
        self.count += 1;
        self.last = from.or(self.last);
    }

    fn tell(&mut self) {
        if self.count == self.told || self.told_at.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return;
        }
        self.told = self.count;
        self.told_at = Some(Instant::now());
        let from = self.last.map_or_else(String::new, |address| format!(", the last from {address}"));
        let connections = if self.count == 1 { "connection" } else { "connections" };
        warn(&format!(
            "rank {}: refused {} {connections} that did not come from this run's ranks{from}",
            self.rank, self.count
        ));
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.told_at = None;
        self.tell();
    }
}

#[cfg(test)]
#[path = "strangers_tests.rs"]
mod tests;
