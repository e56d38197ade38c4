//! `agent examine`: everything that a preflight wants to know of this host, in one command.
//!
//! Owner: a short-lived process that the console starts on every host at about the same time. The question
//! comes on standard input, because it holds the ranks' environment, and command lines can be read by
//! everybody. It changes nothing that it does not put back, and every part has a bound, so that a sick driver
//! or disk becomes a finding instead of a hang. What the findings mean is decided by the console
//! (`cli::preflight`).

mod code;
mod environment;
mod imports;
mod machine;
mod ports;
mod probe;
mod program;

pub use imports::imports_of;
pub(crate) use probe::probe;
pub use program::script_of;

use crate::entries;
use crate::paths;
use crate::supervise::libtorch;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::examination::{Disk, Findings, Question};
use rankdeck_types::error::HintedError;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Most bytes of a question.
const MAX_QUESTION: u64 = 1 << 20;
/// How long the driver of the GPUs may take.
const DRIVER: Duration = Duration::from_secs(10);
/// How long the disk of the working folder may take.
const DISK: Duration = Duration::from_secs(10);

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
        let script = found.program.as_ref().and_then(|program| program.script.as_deref());
        let code = code::look(&asked, &folder, script);
        (found, code)
    });
    let env = question.environment.clone().map(|env| {
        let (asked, folder) = (question.clone(), workdir.clone());
        bounded(environment::PATIENCE * 2, move || environment::look(&asked, &env, &folder))
    });
    let gpus = bounded(DRIVER, machine::gpus);
    let disk = bounded(DISK, {
        let workdir = workdir.clone();
        move || machine::disk(&workdir)
    });
    let mut probe = probe();
    let libtorch =
        question.command.is_empty().then(|| found_libtorch(question.libtorch.as_deref(), &workdir));
    if let Some(Ok(path)) = &libtorch {
        probe.libtorch = Some(path.clone());
    }
    let gpu_check = match &libtorch {
        Some(Ok(path)) if question.gpus => program::check_gpu(question, path.as_ref()),
        _ => None,
    };
    let libtorch_version = libtorch
        .as_ref()
        .and_then(|found| found.as_ref().ok())
        .and_then(|path| rankdeck_proto::libtorch::version(path.as_ref()));
    let route = question.master.as_deref().map(|master| machine::route(master, question));
    let (looked, code) = program.wait().unwrap_or_default();
    let (driver, gpus, untold_gpus) = gpus.wait().unwrap_or_default();
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
        untold_gpus,
        visible_gpus: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        disk,
        shm: machine::space("/dev/shm".as_ref()),
        limits: machine::limits(),
        interfaces: machine::interfaces(),
        route,
        names: machine::names(),
        listened,
        reached,
        environment: env.and_then(BoundedTask::wait),
        machine: machine::identity(),
        setup: looked.setup,
        program: looked.program,
        libtorch,
        libtorch_version,
        gpu_check,
        session: machine::session(),
        code,
        answered: wall_time(),
    }
}

/// Work under way on a thread that is not waited for beyond its bound.
struct BoundedTask<T> {
    answer: mpsc::Receiver<T>,
    within: Duration,
}

fn bounded<T: Send + 'static>(within: Duration, work: impl FnOnce() -> T + Send + 'static) -> BoundedTask<T> {
    let (sender, answer) = mpsc::channel();
    // Without the thread there is no answer, which is what the caller then says.
    let _ = std::thread::Builder::new().name("examine".into()).spawn(move || sender.send(work()));
    BoundedTask { answer, within }
}

impl<T> BoundedTask<T> {
    fn wait(self) -> Option<T> {
        self.answer.recv_timeout(self.within).ok()
    }
}
/// The libtorch that the built-in trainer would load here.
fn found_libtorch(named: Option<&str>, workdir: &Path) -> Result<String, HintedError> {
    libtorch::find(named, workdir)?.map(|path| path.display().to_string()).ok_or_else(|| {
        HintedError::new(
            "no libtorch found",
            "`pip install torch==2.11.0` there, or bring one with `rankdeck push --libtorch DIR`",
        )
    })
}
