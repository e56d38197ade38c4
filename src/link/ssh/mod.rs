//! SSH sessions over ssh2: login, known hosts, upload, jump.
//!
//! Owner: each session belongs to one thread, from its TCP connection to its end; nothing here is shared
//! between threads but the passphrases the user has typed and the count of handshakes in flight. Invariants:
//! - SSH-1: a session never blocks: every call that would is repeated after `poll` until its own deadline
//!   ([`wait::until`]), because libssh2's timeouts do not work in this mode and its blocking mode hangs when
//!   both streams of a channel are busy.
//! - The host key is compared, byte for byte, before anything of the user's is offered ([`known_hosts`]).
//! - SSH-3: while bulk data travel on a session, in one direction ([`upload`]), nothing else uses it; libssh2
//!   stalls when both directions are busy during a key re-exchange.
//! - At most eight handshakes are in flight per server or jump host (`MAX_HANDSHAKES`), since sshd drops
//!   bursts at random (MaxStartups); a connection that is dropped all the same is tried again a few times,
//!   after waits that differ.
//! - SSH-5: the socket is shut down before a session is dropped, so that freeing it can neither wait nor
//!   leak.

mod algorithms;
mod answers;
pub mod auth;
mod channel;
mod config_values;
pub mod connect;
pub mod connection;
mod dial;
pub mod exec;
mod host_key;
pub mod jump;
mod key_files;
pub mod keyring;
pub mod keys;
pub mod known_hosts;
mod offer;
pub mod openssh;
pub mod output;
pub mod pool;
mod revoked;
pub mod script;
pub mod session;
pub mod upload;
pub mod user_config;
pub mod wait;

use rankdeck_types::error::HintedError;
use rankdeck_types::link_state::Prompt;
pub use rankdeck_types::quote;
use std::os::fd::RawFd;

/// What can be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshErrorKind {
    /// It may heal by itself: the network, a busy server.
    Passing,
    /// The server turned us away before the handshake, as sshd does when many come at once (MaxStartups).
    Busy,
    /// The server hung up after keys of the ssh-agent; configured keys have not had their turn.
    TooManyKeys,
    /// Trying again gives the same: a refused key, a changed host key, a mistake in a file.
    Lasting,
    /// We were told to close.
    Closed,
}

/// An SSH operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct SshError {
    /// Whether another attempt may help.
    pub kind: SshErrorKind,
    /// What failed, with the host's name, and what helps.
    pub cause: HintedError,
}

impl SshError {
    /// A failure from its two sentences.
    pub fn new(kind: SshErrorKind, error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError { kind, cause: HintedError::new(error, hint) }
    }

    /// A failure that may heal.
    pub fn passing(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError::new(SshErrorKind::Passing, error, hint)
    }

    /// A failure that will not heal by itself.
    pub fn lasting(error: impl Into<String>, hint: impl Into<String>) -> SshError {
        SshError::new(SshErrorKind::Lasting, error, hint)
    }

    /// The order to close arrived while waiting.
    pub fn closed() -> SshError {
        SshError::new(SshErrorKind::Closed, "closed", "")
    }
}

/// Whoever a session works for: answers questions and may call it off.
pub trait Operator {
    /// Questions may be asked at all.
    fn interactive(&self) -> bool;
    /// The user's answer; `None` refuses. Waits for the user.
    fn ask(&mut self, prompt: &Prompt) -> Option<String>;
    /// Everything must end now.
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
