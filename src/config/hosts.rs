//! `hosts.toml`: which machines, how to reach them, how many ranks each.
//!
//! Owner: the user. The order of `[[host]]` is `node_rank` order; rank = ranks on the hosts before + local_rank.
//! Every value of `[defaults]` may be overridden per host; the merged form is [`Host`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file as written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsFile {
    /// Values for hosts that do not say otherwise.
    #[serde(default)]
    pub defaults: HostTable,
    /// The hosts, in node_rank order.
    #[serde(default)]
    pub host: Vec<HostTable>,
}

/// One table of the file; every key is optional here so that defaults and hosts share it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTable {
    /// Unique name, shown everywhere. Required in `[[host]]`, refused in `[defaults]`.
    pub name: Option<String>,
    /// Address or ssh alias; default: the name.
    pub address: Option<String>,
    /// SSH port; default: `~/.ssh/config`, else 22.
    pub port: Option<u16>,
    /// Login user; default: `~/.ssh/config`, else the local user.
    pub user: Option<String>,
    /// Private key.
    pub identity_file: Option<String>,
    /// `user@host:port`, or several separated by commas.
    pub proxy_jump: Option<String>,
    /// `"all"`, a count, or a list of NVML indices.
    pub gpus: Option<Gpus>,
    /// Ranks on this host; default: one per GPU, or 1 without GPUs.
    pub nproc: Option<u32>,
    /// Folder for runs on the host; default: `.` for local hosts, `rankdeck` in the home folder for SSH hosts.
    pub workdir: Option<String>,
    /// Environment of the ranks.
    pub env: Option<BTreeMap<String, String>>,
    /// Shell line run before each rank, such as `source venv/bin/activate`.
    pub prelude: Option<String>,
    /// libtorch for the built-in trainer: a directory, or `python:PATH` for that interpreter's torch.
    pub libtorch: Option<String>,
    /// `ssh` or `local`; default `ssh`.
    pub transport: Option<Transport>,
    /// Network interface for the rendezvous and the collectives.
    pub interface: Option<String>,
}

/// Which GPUs of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Gpus {
    /// `"all"`; any other word is refused by validation.
    Word(String),
    /// The first so many.
    Count(u32),
    /// These NVML indices.
    List(Vec<u32>),
}

/// How to reach a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// SSH.
    #[default]
    Ssh,
    /// A child of the console on this machine.
    Local,
}

/// One host with the defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// Address or ssh alias.
    pub address: String,
    /// SSH port when given in hosts.toml.
    pub port: Option<u16>,
    /// Login user when given in hosts.toml.
    pub user: Option<String>,
    /// Private key when given in hosts.toml, `~` expanded.
    pub identity_file: Option<String>,
    /// Jump hosts when given in hosts.toml.
    pub proxy_jump: Option<String>,
    /// Which GPUs; `None`: a CPU host.
    pub gpus: Option<Gpus>,
    /// Ranks when given.
    pub nproc: Option<u32>,
    /// Folder for runs on the host; relative paths start at the home folder (SSH) or the current one (local).
    pub workdir: String,
    /// Environment of the ranks.
    pub env: BTreeMap<String, String>,
    /// Shell line before each rank.
    pub prelude: Option<String>,
    /// libtorch on the host.
    pub libtorch: Option<String>,
    /// How to reach it.
    pub transport: Transport,
    /// Interface for rendezvous and collectives.
    pub interface: Option<String>,
}
