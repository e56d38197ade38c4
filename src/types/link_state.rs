//! State of a console's connection to a host, and its prompts for the user.

use crate::error::HintedError;
use crate::host::Probe;
use serde::{Deserialize, Serialize};

/// State of the connection to an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// Not started.
    #[default]
    Idle,
    /// TCP, handshake, host key, login.
    Connecting {
        /// Attempt, from 1.
        attempt: u32,
    },
    /// Waiting for the user.
    Asking { prompt: Prompt },
    /// Uploading files.
    Uploading {
        /// Name of the file.
        what: String,
        /// Bytes sent.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The agent is being started.
    Starting,
    /// Connected; `hello` follows.
    Ready {
        /// Facts about the host.
        probe: Probe,
    },
    /// Disconnected and reconnecting; the agent and its ranks are not affected.
    Lost {
        /// Reason of the loss.
        reason: String,
        /// Milliseconds until the next attempt.
        retry_ms: u64,
    },
    /// Failed permanently; this console runs nothing on the host.
    Failed(HintedError),
    /// Closed by the console.
    Closed,
}

impl LinkState {
    /// Prefix of [`LinkState::Lost`]'s reason if the agent was silent for too long.
    pub const SILENT: &str = "no message from the agent";

    /// Returns whether an attempt to reach the host has failed.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, LinkState::Lost { .. } | LinkState::Failed(_) | LinkState::Connecting { attempt: 2.. })
    }

    /// Returns whether the link was lost because of silence, not because it broke.
    pub fn fell_silent(&self) -> bool {
        matches!(self, LinkState::Lost { reason, .. } if reason.starts_with(LinkState::SILENT))
    }

    /// Returns the permanent failure, if any.
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
        /// Requested host, `[host]:port` if the port is not 22.
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
    /// The next generation needs files that another host has. Answer `yes` to copy them.
    CopyCheckpoint {
        /// The checkpoint's path.
        path: String,
        /// Bytes to copy.
        bytes: u64,
        /// Names of the hosts that lack files.
        to: Vec<String>,
    },
    /// The server asks for a password or a code.
    Password {
        /// The account, as `user@host`.
        account: String,
        /// The server's question.
        text: String,
        /// The jump host that asks, if it is not the host itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        jump: Option<String>,
    },
}

impl Prompt {
    /// Returns who asks: the host, or a jump host on the way to it.
    pub fn asker(&self, host: &str) -> String {
        match self {
            Prompt::Password { jump: Some(jump), .. } => format!("jump host {jump} for {host}"),
            _ => host.to_owned(),
        }
    }
}
