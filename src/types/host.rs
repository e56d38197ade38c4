//! Hosts: as `hosts.toml` writes them, and with the defaults filled in; and facts about a host before the agent starts.

use crate::schema::ValueKind::{self, Choice, Integer, Text, Texts};
use crate::schema::{ADDRESS, INTERFACE, JUMP, LIBTORCH, NAME, PATH, SHELL, USER};
use crate::schema::{KeyType, Keys, keys};
use crate::setup::{CONDA, CONTAINER, Setup, Uv};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The GPUs of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuSelection {
    /// `"all"`, or `"auto"`, which accepts zero. Validation rejects other words.
    Word(String),
    /// The first N.
    Count(u32),
    /// These NVML indices.
    List(Vec<u32>),
}

impl GpuSelection {
    /// Returns whether zero GPUs are acceptable.
    pub fn is_auto(&self) -> bool {
        matches!(self, GpuSelection::Word(word) if word == "auto")
    }
}

impl KeyType for GpuSelection {
    const KIND: ValueKind = ValueKind::Gpus;
}

/// How to reach a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Ssh,
    /// The system's `ssh`, one process per command, for features that the built-in SSH lacks.
    Openssh,
    /// A child of the console on this machine.
    Local,
    /// A step of a Slurm job; never written in a file.
    Slurm,
}

impl KeyType for Transport {
    const KIND: ValueKind = Choice(&["ssh", "openssh", "local"]);
}

keys! {
    /// The file `hosts.toml` as written.
    #[serde(default)]
    pub struct Hosts {
        /// Default values for all hosts.
        defaults: HostTable [ValueKind::Table(HostTable::DEFAULTS)] => "no defaults",
        /// One table per host, in node-rank order.
        host: Vec<HostTable>,
    }
}

keys! {
    /// One `[[host]]`, or `[defaults]`. Every key is optional for serde, so that both are the same table.
    #[serde(default)]
    pub struct HostTable {
        /// Unique name of the host.
        name: Option<String> [Text(&NAME)],
        /// Transport: built-in SSH, the system's `ssh` (non-interactive), or this machine.
        transport: Option<Transport> => "`\"ssh\"`",
        /// Address or alias in `~/.ssh/config`. The other hosts get the alias's HostName. If they cannot reach
        /// it, ranks use another address of the host that they can reach.
        address: Option<String> [Text(&ADDRESS)] => "the name; `127.0.0.1` for local hosts",
        /// SSH port.
        port: Option<u16> [Integer(1..=65535)] => "`~/.ssh/config`, else 22",
        /// Login user.
        user: Option<String> [Text(&USER)] => "`~/.ssh/config`, else the local user",
        /// Private key; `~/` is the home directory of this machine.
        identity_file: Option<String> [Text(&PATH)] => "ssh-agent, `~/.ssh/config`, default SSH keys",
        /// Jump hosts, `user@host:port`, separated by commas.
        proxy_jump: Option<String> [Text(&JUMP)] => "`~/.ssh/config`",
        /// GPUs to use: `"all"`, a count, or a list of indices; `"auto"` accepts zero.
        gpus: Option<GpuSelection> => "none",
        /// Ranks on this host. If there are fewer GPUs than ranks, ranks share GPUs round-robin.
        nproc: Option<u32> [Integer(1..=4096)] => "one per GPU, or 1 without GPUs",
        /// Directory on the host for `runs/`; relative to the home directory (SSH) or the current directory
        /// (local).
        workdir: Option<String> [Text(&PATH)] => "`.` for local hosts, `rankdeck` for SSH hosts",
        /// Environment variables of the ranks; these take precedence over the experiment's.
        env: Option<BTreeMap<String, String>> => "none",
        /// Virtual environment to activate on the host; relative to `workdir`. A host has one of `venv`,
        /// `conda`, `uv` and `container`.
        venv: Option<String> [Text(&PATH)] => "none",
        /// Conda environment to activate, by name or directory; conda need not be on `PATH`.
        conda: Option<String> [Text(&CONDA)] => "none",
        /// Run `uv sync` in the ranks' directory (`true`) or in this directory on the host.
        uv: Option<Uv> => "none",
        /// Container to run the ranks in, as on a command line without `run` or `exec`: `"apptainer
        /// IMAGE.sif"`, `"docker IMAGE"`, `"podman --shm-size 8g IMAGE"`.
        container: Option<String> [Text(&CONTAINER)] => "none",
        /// Environment modules to load (`module load`).
        modules: Option<Vec<String>> [Texts("module names")] => "none",
        /// Shell command to run before each rank, such as `source venv/bin/activate`; if it fails, the rank
        /// does not start. It runs after the keys above, in `workdir`, in the login shell if that is bash
        /// or zsh, else in bash or sh.
        prelude: Option<String> [Text(&SHELL)] => "none",
        /// libtorch for the built-in trainer: a directory on the host, or `python:PATH` for the torch of
        /// that interpreter.
        libtorch: Option<String> [Text(&LIBTORCH)] => "found on the host",
        /// Network interface for the rendezvous and the collectives.
        interface: Option<String> [Text(&INTERFACE)]
            => "chosen by the library; `lo` if all ranks are on one machine",
    }
}

impl KeyType for Vec<HostTable> {
    const KIND: ValueKind = ValueKind::Tables(HostTable::KEYS);
}

impl HostTable {
    /// The keys of `[defaults]`: all but the name.
    pub(crate) const DEFAULTS: Keys = HostTable::KEYS.split_at(1).1;

    /// Returns the setup before each rank: the host's keys, else those of `[defaults]`. A Python environment
    /// of the host replaces that of the defaults.
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
    /// The unique name in hosts.toml.
    pub name: String,
    /// Address or ssh alias.
    pub address: String,
    /// SSH port, if given in hosts.toml.
    pub port: Option<u16>,
    /// Login user, if given in hosts.toml.
    pub user: Option<String>,
    /// Private key, if given in hosts.toml, with `~` expanded.
    pub identity_file: Option<String>,
    /// Jump hosts, if given in hosts.toml.
    pub proxy_jump: Option<String>,
    /// GPUs to use; `None`: CPUs only.
    pub gpus: Option<GpuSelection>,
    /// Ranks, if given.
    pub nproc: Option<u32>,
    /// Directory for runs on the host; relative to the home directory (SSH) or the current one (local).
    pub workdir: String,
    /// Environment variables of the ranks.
    pub env: BTreeMap<String, String>,
    /// Setup before each rank.
    #[serde(default, flatten)]
    pub setup: Setup,
    /// libtorch on the host.
    pub libtorch: Option<String>,
    pub transport: Transport,
    /// Interface for rendezvous and collectives.
    pub interface: Option<String>,
    /// Address at which the other hosts reach it, if that is not `address`: what an ssh alias stands for, or
    /// an address that worked in the preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_address: Option<String>,
    /// The Slurm job that the node belongs to, for [`Transport::Slurm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job: Option<String>,
}

impl Host {
    /// Returns the address at which the other hosts reach it.
    pub fn peer_address(&self) -> &str {
        self.peer_address.as_deref().unwrap_or(&self.address)
    }
}

/// Facts about a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// `uname -n`.
    pub hostname: String,
    /// Online cores.
    pub cpu_count: u32,
    /// NVIDIA GPUs that the driver shows.
    pub gpu_count: u32,
    /// Absolute home directory.
    pub home: String,
    /// Absolute path of the deployed `rankdeck-trainer`, if any.
    pub trainer: Option<String>,
    /// Absolute path of a usable libtorch (directory with `lib/libtorch_cpu.so`), if any.
    pub libtorch: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_python_environment_replaces_that_of_defaults() {
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
