//! Links to agents over a real OpenSSH server, and the local road. Skipped, with the reason printed, where there is no sshd.
//!
//! The agent is a stand-in (`ssh/agent.py`) that speaks the same markers and frames.

// Helpers of tests may panic as tests may.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "ssh/bugs.rs"]
mod bugs;
#[path = "ssh/clauses.rs"]
mod clauses;
#[path = "ssh/desk.rs"]
mod desk;
#[path = "ssh/host_keys.rs"]
mod host_keys;
#[path = "ssh/local.rs"]
mod local;
#[path = "ssh/login.rs"]
mod login;
#[path = "ssh/roads.rs"]
mod roads;
#[path = "support/sshd.rs"]
mod sshd;
