//! Hosts as `hosts.toml` names them, with the defaults filled in.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// A step of the Slurm allocation that the console is in; never written in a file.
    Slurm,
}

/// One host with the defaults filled in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
