//! Hosts: as `hosts.toml` writes them, and with the defaults filled in.

use crate::schema::Kind::{Choice, Integer, Text, Texts};
use crate::schema::text_rules::{ADDRESS, INTERFACE, JUMP, LIBTORCH, NAME, PATH, SHELL, USER};
use crate::schema::{KeyType, Keys, Kind, keys};
use crate::setup::{CONDA, CONTAINER, Setup, Uv};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The GPUs of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Gpus {
    /// `"all"`, or `"auto"`: all that are there, and none where there are none. Validation refuses other
    /// words.
    Word(String),
    /// The first so many.
    Count(u32),
    /// These NVML indices.
    List(Vec<u32>),
}

impl Gpus {
    /// All that are there, also if that is none.
    pub fn is_auto(&self) -> bool {
        matches!(self, Gpus::Word(word) if word == "auto")
    }
}

impl KeyType for Gpus {
    const KIND: Kind = Kind::Gpus;
}

/// How to reach a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Ssh,
    /// The system's `ssh`, a process per command: for what the built-in SSH cannot do.
    Openssh,
    /// A child of the console on this machine.
    Local,
    /// A step of the Slurm allocation that the console is in; never written in a file.
    Slurm,
}

impl KeyType for Transport {
    const KIND: Kind = Choice(&["ssh", "openssh", "local"]);
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
        /// How to reach the host; `openssh` runs the system's `ssh` and asks nothing; `local` is this
        /// machine.
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
        /// `"all"`, the first so many, or a list of NVML indices; `"auto"` is all, also where that is none.
        gpus: Option<Gpus> => "no GPU",
        /// Ranks on this host; with fewer GPUs than ranks, ranks share GPUs in turn.
        nproc: Option<u32> [Integer(1..=4096)] => "one per GPU, or 1 without GPUs",
        /// Folder on the host that holds `runs/`; relative paths begin at the home folder (SSH) or the
        /// current folder (local).
        workdir: Option<String> [Text(&PATH)] => "`.` for local hosts, `rankdeck` for SSH hosts",
        /// Environment of the ranks; wins over the experiment's.
        env: Option<BTreeMap<String, String>> => "nothing",
        /// Virtual environment on the host that is activated for the ranks; relative paths begin at
        /// `workdir`. A host has one of `venv`, `conda`, `uv` and `container`.
        venv: Option<String> [Text(&PATH)] => "nothing",
        /// Conda environment that is activated for the ranks, by name or folder; conda need not be on `PATH`.
        conda: Option<String> [Text(&CONDA)] => "nothing",
        /// The ranks' environment is made by `uv sync`, from the project in the ranks' folder (`true`) or in
        /// a folder of the host.
        uv: Option<Uv> => "nothing",
        /// Container of the ranks as on a command line, without `run` or `exec`: `"apptainer IMAGE.sif"`,
        /// `"docker IMAGE"`, `"podman --shm-size 8g IMAGE"`.
        container: Option<String> [Text(&CONTAINER)] => "nothing",
        /// Environment modules (`module load`) for the ranks.
        modules: Option<Vec<String>> [Texts("module names")] => "nothing",
        /// Shell line before each rank, such as `source venv/bin/activate`, after the keys above. It begins
        /// in `workdir`, in the login shell when that is bash or zsh, else in bash, else in sh. A rank whose
        /// prelude fails is not started.
        prelude: Option<String> [Text(&SHELL)] => "nothing",
        /// libtorch for the built-in trainer: a folder on the host, or `python:PATH` for the torch of that
        /// interpreter.
        libtorch: Option<String> [Text(&LIBTORCH)] => "what the host offers",
        /// Network interface for the rendezvous and the collectives.
        interface: Option<String> [Text(&INTERFACE)]
            => "the library's choice; `lo` when all ranks are on one machine",
    }
}

impl KeyType for Vec<HostTable> {
    const KIND: Kind = Kind::Tables(HostTable::KEYS);
}

impl HostTable {
    /// The keys of `[defaults]`: all but the name.
    pub const DEFAULTS: Keys = HostTable::KEYS.split_at(1).1;

    /// What comes before each rank: the host's own keys, else those of `[defaults]`. An environment of its
    /// own replaces whichever the defaults have.
    pub fn setup(&self, defaults: &HostTable) -> Setup {
        let has = |table: &HostTable| {
            table.venv.is_some() || table.conda.is_some() || table.uv.is_some() || table.container.is_some()
        };
        let from = if has(self) { self } else { defaults };
        Setup {
            modules: self.modules.clone().or_else(|| defaults.modules.clone()).unwrap_or_default(),
            conda: from.conda.clone(),
            venv: from.venv.clone(),
            uv: from.uv.clone().filter(|uv| *uv != Uv::Here(false)),
            prelude: self.prelude.clone().or_else(|| defaults.prelude.clone()),
            container: from.container.clone(),
        }
    }

    /// The keys that only SSH uses.
    pub const SSH_ONLY: [&str; 4] = ["port", "user", "identity_file", "proxy_jump"];
}

/// One host with the defaults filled in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The name in hosts.toml; no two hosts have the same.
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
    /// What comes before each rank.
    #[serde(default, flatten)]
    pub setup: Setup,
    /// libtorch on the host.
    pub libtorch: Option<String>,
    /// How to reach it.
    pub transport: Transport,
    /// Interface for rendezvous and collectives.
    pub interface: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_of_a_host_replaces_that_of_the_defaults() {
        let defaults = HostTable {
            conda: Some("rl".into()),
            prelude: Some("ulimit -n 1".into()),
            ..HostTable::default()
        };
        let own =
            HostTable { venv: Some("v".into()), modules: Some(vec!["cuda".into()]), ..HostTable::default() };
        let setup = own.setup(&defaults);
        assert_eq!((setup.conda.as_deref(), setup.venv.as_deref()), (None, Some("v")));
        assert_eq!(setup.shown(), "module load cuda; venv v; ulimit -n 1");
        assert_eq!(HostTable::default().setup(&defaults).conda.as_deref(), Some("rl"));
        let off = HostTable { uv: Some(Uv::Here(false)), ..HostTable::default() };
        assert!(off.setup(&HostTable::default()).is_empty());
    }
}
