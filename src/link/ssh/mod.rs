//! SSH sessions over ssh2: login, known hosts, upload, jump.
//!
//! Owner: each session belongs to one thread, from its TCP connection to its end; nothing here is shared between threads but the
//! passphrases the user has typed and the count of handshakes in flight. Invariants:
//! - SSH-1: a session never blocks: every call that would is repeated after `poll` until its own deadline ([`wait::until`]), because
//!   libssh2's timeouts do not work in this mode and its blocking mode hangs when both streams of a channel are busy.
//! - SSH-2: the host key is compared, byte for byte, before anything of the user's is offered ([`known_hosts`]).
//! - SSH-3: bulk data travel on a session of their own, in one direction ([`upload`]); libssh2 stalls when both directions are
//!   busy during a key re-exchange.
//! - SSH-4: at most eight handshakes are in flight per server or jump host ([`connect::MAX_HANDSHAKES`]), since sshd drops bursts at random
//!   (MaxStartups); who is dropped all the same comes back a few times, after waits that differ.
//! - SSH-5: the socket is shut down before a session is dropped, so that freeing it can neither wait nor leak.

mod answers;
pub mod auth;
pub mod connect;
pub mod exec;
pub mod jump;
mod key_files;
pub mod keyring;
pub mod keys;
pub mod known_hosts;
pub mod quote;
pub mod upload;
pub mod user_config;
pub mod wait;

use rankdeck_types::link_state::Prompt;
use std::os::fd::RawFd;

/// What can be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It may heal by itself: the network, a busy server.
    Passing,
    /// The server turned us away before the handshake, as sshd does when many come at once (MaxStartups).
    Busy,
    /// Trying again gives the same: a refused key, a changed host key, a mistake in a file.
    Lasting,
    /// We were told to close.
    Closed,
}

/// An SSH operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct SshError {
    /// Worth a retry?
    pub kind: FaultKind,
    /// What failed, with the host's name; one line.
    pub error: String,
    /// What helps.
    pub hint: String,
}

impl SshError {
    /// A failure that may heal.
    pub fn passing(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError { kind: FaultKind::Passing, error: error.into(), hint: hint.into() }
    }

    /// A failure that will not heal by itself.
    pub fn lasting(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError { kind: FaultKind::Lasting, error: error.into(), hint: hint.into() }
    }

    /// The order to close arrived while waiting.
    pub fn closed() -> SshError {
        SshError { kind: FaultKind::Closed, error: "closed".into(), hint: String::new() }
    }
}

/// The one for whom a session works: answers questions and may call it off.
pub trait Operator {
    /// May questions be asked at all?
    fn interactive(&self) -> bool;
    /// The user's answer; `None` refuses. Waits for the user.
    fn ask(&mut self, prompt: &Prompt) -> Option<String>;
    /// Must everything end now?
    fn closing(&mut self) -> bool;
    /// `done` of `total` bytes of the file `what` are on their way.
    fn progress(&mut self, what: &str, done: u64, total: u64) {
        let _ = (what, done, total);
    }
    /// A command was sent; the login shell reads its start files first.
    fn starting(&mut self) {}
    /// The command itself has begun.
    fn begun(&mut self) {}
    /// Becomes readable when [`Operator::closing`] or other orders are worth a look.
    fn wake_fd(&self) -> Option<RawFd>;
}
