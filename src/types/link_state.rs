//! What a console knows of its connection to a host, and what that connection may ask of the user.

use crate::error::HintedError;
use crate::probe::Probe;
use serde::{Deserialize, Serialize};

/// How far the connection to an agent is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// Nothing has been tried yet.
    #[default]
    Idle,
    /// TCP, handshake, host key, login.
    Connecting {
        /// Attempt, from 1.
        attempt: u32,
    },
    /// Waits for the user.
    Asking {
        /// What to ask.
        prompt: Prompt,
    },
    /// Files are on their way.
    Uploading {
        /// The name of the file that is uploaded.
        what: String,
        /// Bytes sent.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The agent is being started.
    Starting,
    /// Messages flow; `hello` follows.
    Ready {
        /// What was found on the host on the way.
        probe: Probe,
    },
    /// It broke and is being mended; the agent and its ranks are not touched by that.
    Lost {
        /// Why the link was lost.
        reason: String,
        /// Milliseconds until the next attempt.
        retry_ms: u64,
    },
    /// It cannot work; nothing runs there because of us.
    Failed(HintedError),
    /// Closed by us.
    Closed,
}

impl LinkState {
    /// How the reason of a loss begins where nothing broke: no sign of life came for too long.
    pub const SILENT: &str = "no sign of life from the agent";

    /// It was given up because nothing came over it. Nothing says that it broke.
    pub fn fell_silent(&self) -> bool {
        matches!(self, LinkState::Lost { reason, .. } if reason.starts_with(LinkState::SILENT))
    }

    /// Why it cannot work.
    pub fn failure(&self) -> Option<&HintedError> {
        if let LinkState::Failed(failure) = self { Some(failure) } else { None }
    }
}

/// A question that only the user can answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Prompt {
    /// The host's key is not in known_hosts. Answer `yes` to accept and remember it.
    UnknownHostKey {
        /// Host as asked for, `[host]:port` when the port is not 22.
        host: String,
        /// The key's algorithm, such as `ssh-ed25519`.
        key_type: String,
        /// `SHA256:...`
        fingerprint: String,
    },
    /// A private key is encrypted.
    Passphrase {
        /// The path of the private key.
        key: String,
    },
    /// The server wants a password or the answer to a question.
    Password {
        /// Who logs in where, as `user@host`.
        account: String,
        /// The server's question.
        text: String,
    },
}
