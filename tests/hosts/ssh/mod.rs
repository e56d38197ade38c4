//! Links to agents over a real OpenSSH server, and the local road.
//!
//! The agent is a stand-in (`ssh/agent.py`) that speaks the same markers and frames.

mod bugs;
mod clauses;
mod desk;
mod host_keys;
mod local;
mod login;
mod roads;
