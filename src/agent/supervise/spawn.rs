//! Starting ranks: program, environment, working directory, log file.
//!
//! Owner: one thread that lives as long as the agent: the parent-death signal fires when the
//! *thread* that forked ends. It is also the only place that may wait for a slow file system on the way to
//! `exec`.

use crate::proc::{self, ProcessKey};
use crate::supervise::{cgroup::Cgroup, groups};
use crate::topology::ThreadBinding;
use rankdeck_proto::trust;
use rankdeck_types::cores::CpuSet;
use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankCommand {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Its whole environment.
    pub env: BTreeMap<OsString, OsString>,
    /// Its working directory.
    pub workdir: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// Its file mode mask.
    pub umask: u32,
    /// The CPUs that it is bound to; `None`: those of the agent.
    pub cpus: Option<CpuSet>,
}

/// A process that was started, or why it was not.
pub(crate) type SpawnResult = Result<ProcessKey, String>;

/// The thread's other end. Dropping it ends the thread, and with it every rank.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    commands: mpsc::Sender<(Rank, RankCommand)>,
}

impl Spawner {
    /// Starts the thread; `done` is called on it for every command, in order.
    pub fn start(
        cgroup: Option<Cgroup>,
        done: impl Fn(Rank, SpawnResult) + Send + 'static,
    ) -> std::io::Result<Spawner> {
        let (commands, inbox) = mpsc::channel::<(Rank, RankCommand)>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (rank, command) in inbox {
                done(rank, start(&command, cgroup.as_ref()));
            }
        })?;
        Ok(Spawner { commands })
    }

    /// Starts a rank soon.
    pub fn spawn(&self, rank: Rank, command: RankCommand) {
        let _ = self.commands.send((rank, command));
    }
}

fn start(rank: &RankCommand, cgroup: Option<&Cgroup>) -> SpawnResult {
    let program = rank.argv.first().ok_or("the command is empty")?;
    let shown = Path::new(program).display();
    let log = trust::open(&rank.log, OpenOptions::new().append(true).create(true))
        .map_err(|error| format!("cannot open {}: {error}", rank.log.display()))?;
    let other = log.try_clone().map_err(|error| format!("cannot duplicate a descriptor: {error}"))?;
    if !rank.workdir.is_dir() {
        return Err(format!("{} is not a directory; check `workdir` in hosts.toml", rank.workdir.display()));
    }
    let mut command = Command::new(program);
    command
        .args(&rank.argv[1..])
        .env_clear()
        .envs(&rank.env)
        .current_dir(&rank.workdir)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(other);
    let door = cgroup.and_then(|cgroup| cgroup.door().ok());
    groups::bind_to_this_thread(&mut command, rank.umask, door);
    let binding = rank.cpus.as_ref().map(|cpus| {
        ThreadBinding::new(cpus).map_err(|error| {
            format!(
                "cannot bind the rank to CPUs {cpus}: {error}; `launch.bind = \"none\"` starts it unbound"
            )
        })
    });
    let _binding = binding.transpose()?;
    let child = groups::spawn(&mut command).map_err(|error| format!("cannot run {shown}: {error}"))?;
    // Not waited for here: the agent's loop reaps every child.
    let pid = child.id();
    Ok(ProcessKey { pid, start: proc::stat(pid).map_or(0, |stat| stat.start) })
}
