//! `agent examine`: everything that a preflight wants to know of this host, in one command.
//!
//! Owner: a short-lived process that the console starts on every host at about the same time. The question comes on standard input, because it holds
//! the ranks' environment, and command lines can be read by everybody. It changes nothing that it does not put back, and every part has a bound, so
//! that a sick driver or disk becomes a finding instead of a hang. What the findings mean is decided by the console (`cli::preflight`).

mod code;
mod machine;
mod ports;
mod probe;
mod program;

pub use code::Code;
pub use machine::{Disk, GpuFinding, GpuProcess, Interface, Limits, Names, Route, Session};
pub use ports::{Listened, Peer, Reached};
pub(crate) use probe::probe;
pub use program::{Program, Python, script_of, torch_version};

use crate::clock::wall_time;
use crate::entries::{self, RunEntry};
use crate::paths;
use crate::supervise::libtorch;
use rankdeck_types::error::HintedError;
use rankdeck_types::probe::Probe;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::mpsc;
use std::time::Duration;

/// Most bytes of a question.
const MAX_QUESTION: u64 = 1 << 20;
/// How long the driver of the GPUs may take.
const DRIVER: Duration = Duration::from_secs(10);
/// How long the disk of the working folder may take.
const DISK: Duration = Duration::from_secs(10);

/// What the console wants to know.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Question {
    /// Folder of runs, as typed.
    pub workdir: String,
    /// The run that is to be launched; empty: none.
    #[serde(default)]
    pub run: String,
    /// The ranks' program; empty: the built-in trainer.
    #[serde(default)]
    pub command: Vec<String>,
    /// Shell line before each rank.
    #[serde(default)]
    pub prelude: Option<String>,
    /// Environment of the ranks.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// libtorch as in hosts.toml.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// Hash of the code that ranks will run in; `None`: they run in the working folder.
    #[serde(default)]
    pub code: Option<String>,
    /// GPUs are wanted here.
    #[serde(default)]
    pub gpus: bool,
    /// Address of rank 0's store; `None` when one host is all.
    #[serde(default)]
    pub master: Option<String>,
    /// Ports to listen on: the first that is free.
    #[serde(default)]
    pub listen: Vec<u16>,
    /// Hosts that will connect to this one.
    #[serde(default)]
    pub expect: u32,
    /// Hosts to connect to.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// What this host answers to, different for every preflight.
    #[serde(default)]
    pub token: String,
    /// How long to wait for each other, ms.
    #[serde(default)]
    pub patience_ms: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Wall clock when the question had been read.
    pub heard: f64,
    /// Wall clock just before the answer.
    pub answered: f64,
    /// As every launch learns it.
    pub probe: Probe,
    /// The user that ranks would run as.
    pub user: String,
    /// Kernel release.
    pub kernel: String,
    /// Runs under the working folder.
    pub runs: Vec<RunEntry>,
    /// The run's name is taken here.
    pub run_exists: bool,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// GPUs with what runs on them.
    pub gpus: Vec<GpuFinding>,
    /// The working folder.
    pub disk: Disk,
    /// `/dev/shm`.
    pub shm: Disk,
    /// Limits of this user's processes.
    pub limits: Limits,
    /// Network interfaces with an address.
    pub interfaces: Vec<Interface>,
    /// The way to rank 0's store.
    pub route: Option<Route>,
    /// What names mean here.
    pub names: Names,
    /// The port that was listened on.
    pub listened: Option<Listened>,
    /// Hosts that were connected to.
    pub reached: Vec<Reached>,
    /// The ranks' program.
    pub program: Option<Program>,
    /// Where libtorch is for the built-in trainer, or why there is none.
    pub libtorch: Option<Result<String, HintedError>>,
    /// Its version, when its folder tells.
    pub libtorch_version: Option<String>,
    /// Will ranks outlive the login that starts them?
    pub session: Session,
    /// What the ranks will run.
    pub code: Code,
}

/// Reads the question from standard input and examines.
pub fn main() -> Result<Findings, HintedError> {
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_QUESTION).read_to_string(&mut text);
    let fault = |error: String| {
        HintedError::new(format!("the question cannot be read: {error}"), "this is the console's own command")
    };
    read.map_err(|error| fault(error.to_string()))?;
    let question: Question = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
    Ok(examine(&question))
}

/// Examines.
pub fn examine(question: &Question) -> Findings {
    let heard = wall_time();
    // First, because the other hosts are waiting for it.
    let meeting = ports::begin(question);
    let workdir = paths::expand(&question.workdir);
    let asked = question.clone();
    let folder = workdir.clone();
    let program = bounded(program::PATIENCE * 2, move || {
        let found = program::look(&asked, &folder);
        let code = code::look(&asked, &folder, found.as_ref().and_then(|found| found.script.as_deref()));
        (found, code)
    });
    let gpus = bounded(DRIVER, machine::gpus);
    let disk = bounded(DISK, {
        let workdir = workdir.clone();
        move || machine::disk(&workdir)
    });
    let mut probe = probe();
    let libtorch =
        question.command.is_empty().then(|| match libtorch::find(question.libtorch.as_deref(), &workdir) {
            Ok(Some(path)) => Ok(path.display().to_string()),
            Ok(None) => Err(HintedError::new(
                "no libtorch found",
                "set `libtorch`, or bring one with `rankdeck push --libtorch DIR`",
            )),
            Err(failure) => Err(failure),
        });
    if let Some(Ok(path)) = &libtorch {
        probe.libtorch = Some(path.clone());
    }
    let libtorch_version = libtorch
        .as_ref()
        .and_then(|found| found.as_ref().ok())
        .and_then(|path| program::torch_version(path.as_ref()));
    let route = question.master.as_deref().map(|master| machine::route(master, question));
    let (program, code) = program.wait().unwrap_or_default();
    let (driver, gpus) = gpus.wait().unwrap_or_default();
    let disk = disk.wait().unwrap_or_else(|| Disk {
        path: workdir.display().to_string(),
        error: Some(format!("no answer within {} s", DISK.as_secs())),
        ..Disk::default()
    });
    let (listened, reached) = meeting.end();
    Findings {
        heard,
        probe,
        user: machine::user(),
        kernel: machine::kernel(),
        runs: entries::list(&workdir),
        run_exists: !question.run.is_empty() && workdir.join("runs").join(&question.run).exists(),
        driver,
        gpus,
        disk,
        shm: machine::space("/dev/shm".as_ref()),
        limits: machine::limits(),
        interfaces: machine::interfaces(),
        route,
        names: machine::names(),
        listened,
        reached,
        program,
        libtorch,
        libtorch_version,
        session: machine::session(),
        code,
        answered: wall_time(),
    }
}

/// Work under way on a thread that is not waited for beyond its bound.
struct Bounded<T> {
    answer: mpsc::Receiver<T>,
    within: Duration,
}

fn bounded<T: Send + 'static>(within: Duration, work: impl FnOnce() -> T + Send + 'static) -> Bounded<T> {
    let (sender, answer) = mpsc::channel();
    // Without the thread there is no answer, which is what the caller then says.
    let _ = std::thread::Builder::new().name("examine".into()).spawn(move || sender.send(work()));
    Bounded { answer, within }
}

impl<T> Bounded<T> {
    fn wait(self) -> Option<T> {
        self.answer.recv_timeout(self.within).ok()
    }
}
