//! Links to agents over a real OpenSSH server, and the local transport.
//!
//! The agent is a fake (`ssh/agent.py`) with the same markers and frames.

mod bugs;
mod clauses;
mod client;
mod connect;
mod deploy;
mod host_keys;
mod links;
mod local;
mod login;
mod openssh;
