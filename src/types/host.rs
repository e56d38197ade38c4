//! Hosts: as `hosts.toml` writes them, and with the defaults filled in.

use crate::schema::Kind::{Choice, Integer, Text};
use crate::schema::text_rules::{ADDRESS, INTERFACE, JUMP, LIBTORCH, NAME, PATH, SHELL, USER};
use crate::schema::{KeyType, Keys, Kind, keys};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The GPUs of a host.
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

impl KeyType for Transport {
    const KIND: Kind = Choice(&["ssh", "local"]);
}

keys! {
    /// The file `hosts.toml` as written.
    #[serde(default)]
    pub struct Hosts {
        /// Values for hosts that do not say otherwise.
        defaults: HostTable [Kind::Table(HostTable::DEFAULTS)] => "no defaults",
        /// One table per host, in node_rank order.
        host: Vec<HostTable>,
    }
}

keys! {
    /// One `[[host]]`, or `[defaults]`. Every key is optional for serde, so that both are the same table.
    #[serde(default)]
    pub struct HostTable {
        /// Unique name, shown everywhere.
        name: Option<String> [Text(&NAME)],
        /// How to reach the host; `local` is this machine, without SSH.
        transport: Option<Transport> => "`\"ssh\"`",
        /// Address or alias of `~/.ssh/config`. Without `launch.master_addr`, the first host's must also be
        /// reachable from the other hosts.
        address: Option<String> [Text(&ADDRESS)] => "the name; `127.0.0.1` for local hosts",
        /// SSH port.
        port: Option<u16> [Integer(1..=65535)] => "`~/.ssh/config`, else 22",
        /// Login user.
        user: Option<String> [Text(&USER)] => "`~/.ssh/config`, else the local user",
        /// Private key; `~/` is this machine's home folder.
        identity_file: Option<String> [Text(&PATH)] => "agent, `~/.ssh/config`, usual keys",
        /// Jump hosts, `user@host:port`, separated by commas.
        proxy_jump: Option<String> [Text(&JUMP)] => "`~/.ssh/config`",
        /// `"all"`, the first so many, or a list of NVML indices.
        gpus: Option<Gpus> => "no GPU",
        /// Ranks on this host; with fewer GPUs than ranks, ranks share GPUs in turn.
        nproc: Option<u32> [Integer(1..=4096)] => "one per GPU, or 1 without GPUs",
        /// Folder on the host that holds `runs/`; relative paths begin at the home folder (SSH) or the current
        /// folder (local).
        workdir: Option<String> [Text(&PATH)] => "`.` for local hosts, `rankdeck` for SSH hosts",
        /// Environment of the ranks; wins over the experiment's.
        env: Option<BTreeMap<String, String>> => "nothing",
        /// Shell line before each rank, such as `source venv/bin/activate`.
        prelude: Option<String> [Text(&SHELL)] => "nothing",
        /// libtorch for the built-in trainer: a folder on the host, or `python:PATH` for the torch of that
        /// interpreter.
        libtorch: Option<String> [Text(&LIBTORCH)] => "what the host offers",
        /// Network interface for the rendezvous and the collectives.
        interface: Option<String> [Text(&INTERFACE)]
            => "the library's choice; `lo` when all ranks are on one machine",
    }
}

impl HostTable {
    /// The keys of `[defaults]`: all but the name.
    pub const DEFAULTS: Keys = HostTable::KEYS.split_at(1).1;

    /// The keys that only SSH uses.
    pub const SSH_ONLY: [&str; 4] = ["port", "user", "identity_file", "proxy_jump"];
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
