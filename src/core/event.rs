//! Every cause of change, as one closed enum. Recorded as it is: a trace is a list of `(Timestamp, Event)`.

use crate::config::hosts::Host;
use crate::core::Learnt;
use crate::core::ids::{NodeRank, WallTime};
use crate::proto::message::{AgentMessage, StopMode};
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A link changed its state.
    LinkChanged {
        /// Which host.
        node: NodeRank,
        /// To what.
        state: LinkState,
    },
    /// An agent said something.
    AgentSaid {
        /// Which host.
        node: NodeRank,
        /// What.
        message: Box<AgentMessage>,
    },
    /// The user, a signal or a policy asked for a stop of the run.
    StopRequested {
        /// How hard; a harder one replaces a softer one.
        mode: StopMode,
        /// Who: `key`, `signal`, `command`, `until`.
        by: String,
    },
    /// Begin a new generation.
    RestartRequested {
        /// Checkpoint path on the host of rank 0, `latest`, or `None` to start afresh.
        from: Option<String>,
        /// Hosts that the new generation does without, by name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        exclude: Vec<String>,
        /// Hosts that it gets, known or new.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        add: Vec<Host>,
    },
    /// Begin a new generation in which ranks compare every collective before they begin it.
    MicroscopeRequested {
        /// As for a restart.
        from: Option<String>,
    },
    /// Leave the run alone and end the console.
    DetachRequested,
    /// The user answered a prompt of a link.
    PromptAnswered {
        /// Which host.
        node: NodeRank,
        /// `None`: refused. The text itself never enters a trace.
        #[serde(skip)]
        answer: Option<String>,
    },
    /// What people should know about this run from the start, said by whoever prepared it; one line each.
    Warned {
        /// The lines.
        lines: Vec<String>,
    },
    /// The console's wall clock, told once at the start (and again after a jump): for showing times and clock skew, never for a decision.
    WallClock {
        /// Seconds since the epoch.
        time: WallTime,
    },
    /// What an earlier console of this run learnt about its pace; told before anything else.
    Recalled {
        /// Its silences.
        learnt: Learnt,
    },
    /// Time passed; nothing else did.
    Ticked,
}

impl Event {
    /// A restart on the same hosts.
    pub fn restart(from: Option<String>) -> Event {
        Event::RestartRequested { from, exclude: Vec::new(), add: Vec::new() }
    }
}

/// The road to an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// Not begun.
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
        /// File.
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
        /// Why.
        reason: String,
        /// Milliseconds until the next attempt.
        retry_ms: u64,
    },
    /// It cannot work; nothing runs there because of us.
    Failed {
        /// What failed, with the host's name.
        error: String,
        /// What helps.
        hint: String,
    },
    /// Closed by us.
    Closed,
}

/// A question that only the user can answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Prompt {
    /// The host's key is not in known_hosts. Answer `yes` to accept and remember it.
    UnknownHostKey {
        /// Host as asked for, `[host]:port` when the port is not 22.
        host: String,
        /// `ssh-ed25519`, ...
        key_type: String,
        /// `SHA256:...`
        fingerprint: String,
    },
    /// A private key is encrypted.
    Passphrase {
        /// Its path.
        key: String,
    },
    /// The server wants a password or the answer to a question.
    Password {
        /// `user@host`.
        account: String,
        /// The server's question.
        text: String,
    },
}

/// What a link learnt about a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// `uname -n`.
    pub hostname: String,
    /// Online cores.
    pub cpu_count: u32,
    /// NVIDIA GPUs the driver shows.
    pub gpu_count: u32,
    /// Absolute home folder.
    pub home: String,
    /// Absolute path of the deployed `rankdeck-trainer`, when there is one.
    pub trainer: Option<String>,
    /// Absolute path of a usable libtorch (folder with `lib/libtorch_cpu.so`), when there is one.
    pub libtorch: Option<String>,
}
