//! SSH sessions over ssh2: login, known hosts, upload, jump.
//!
//! Each session belongs to one thread, from its TCP connection to its end; threads share only the passphrases
//! that the user typed, the count of handshakes in flight, and the sessions with jump hosts ([`jump`]).
//! Invariants:
//! - SSH-1: a session never blocks: every call that would is repeated after `poll` until its deadline
//!   ([`session::wait_until`]), because libssh2's timeouts do not work in this mode, and its blocking mode hangs if
//!   both streams of a channel are busy.
//! - The host key is compared, byte for byte, before any credential is offered ([`known_hosts`]).
//! - SSH-3: while a session transfers bulk data in one direction ([`upload`]), nothing else uses it; libssh2
//!   stalls if both directions are busy during a key re-exchange.
//! - At most eight handshakes are in flight per server or jump host (`MAX_HANDSHAKES`), because sshd drops
//!   bursts at random (MaxStartups); a dropped connection is retried a few times with jitter.
//! - SSH-5: the socket is shut down before a session is dropped, so that freeing it neither blocks nor leaks.

mod algorithms;
mod auth;
pub mod connection;
pub mod exec;
mod jump;
mod keys;
mod known_hosts;
pub(crate) mod openssh;
pub mod session;
pub mod upload;
pub mod user_config;

use rankdeck_types::error::HintedError;
use rankdeck_types::link_state::Prompt;
pub use rankdeck_types::quote;
use std::os::fd::RawFd;

/// Kind of an SSH failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshErrorKind {
    /// May succeed on retry: the network, a busy server.
    Transient,
    /// The server dropped the connection before the handshake, as sshd does for bursts (MaxStartups).
    Busy,
    /// The server disconnected after keys of the ssh-agent, before configured keys were offered.
    TooManyKeys,
    /// Fails again on retry: a refused key, a changed host key, an error in a file.
    Permanent,
    /// The name of the host has no address. Fails again on retry, unless the host was reached before: a VPN
    /// with its name servers may be down for a while.
    UnknownName,
    /// Start files of the login shell replace it or read its input; fails again on retry.
    StartFiles,
    /// Closed by the owner.
    Closed,
}

/// An SSH operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct SshError {
    pub kind: SshErrorKind,
    /// Cause with the host's name, and hint.
    pub cause: HintedError,
}

impl SshError {
    /// Creates a failure from cause and hint.
    pub fn new(kind: SshErrorKind, error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError { kind, cause: HintedError::new(error, hint) }
    }

    /// Creates a transient failure.
    pub fn transient(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError::new(SshErrorKind::Transient, error, hint)
    }

    /// Creates a permanent failure.
    pub fn permanent(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError::new(SshErrorKind::Permanent, error, hint)
    }

    /// Returns the failure with the name of the host that it concerns.
    pub(crate) fn on(self, label: &str) -> SshError {
        let SshError { kind, cause } = self;
        match kind {
            SshErrorKind::Closed => SshError::closed(),
            _ => SshError::new(kind, format!("{label}: {}", cause.error), cause.hint),
        }
    }

    /// Creates the failure of a session whose owner closed it.
    pub fn closed() -> SshError {
        SshError::new(SshErrorKind::Closed, "closed", "")
    }
}

/// Owner of a session: answers prompts and may cancel it.
pub trait SessionOwner {
    /// Returns whether prompts are possible.
    fn interactive(&self) -> bool;
    /// Returns the user's answer; `None` refuses. Blocks until the user answers.
    fn ask(&mut self, prompt: &Prompt) -> Option<String>;
    /// Returns whether the session must end now.
    fn closing(&mut self) -> bool;
    /// Reports that `done` of `total` bytes of the file `what` were sent.
    fn progress(&mut self, what: &str, done: u64, total: u64) {
        let _ = (what, done, total);
    }
    /// Reports that a command was sent; the login shell reads its start files first.
    fn starting(&mut self) {}
    /// Reports that the command started.
    fn begun(&mut self) {}
    /// Returns a descriptor that becomes readable on new orders, such as [`SessionOwner::closing`].
    fn wake_fd(&self) -> Option<RawFd>;
}
