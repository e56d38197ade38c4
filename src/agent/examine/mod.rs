//! `agent examine`: all facts of a host for a preflight, in one command.
//!
//! Owner: a short-lived process that the console starts on every host at about the same time. The question
//! comes on standard input, because it holds the ranks' environment, and command lines can be read by
//! everybody. It changes nothing that it does not put back, and every part has a bound, so that a sick driver
//! or disk becomes a finding instead of a hang. What the findings mean is decided by the console
//! (`cli::preflight`).

pub(crate) mod benchmark;
mod machine;
mod ports;
pub(crate) mod program;

use crate::observe::gpu;
use crate::supervise::libtorch;
use crate::{entries, paths, proc, topology};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::examination::{Disk, HostFindings, HostQuestion};
use rankdeck_proto::folders;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

pub use program::script_of;

/// Most bytes of a question.
const MAX_QUESTION: u64 = 1 << 20;
/// How long the driver of the GPUs may take.
const DRIVER: Duration = Duration::from_secs(10);
/// How long the disk of the working directory may take.
const DISK: Duration = Duration::from_secs(10);

/// Reads the question from standard input and examines.
pub(crate) fn main() -> Result<HostFindings, HintedError> {
    Ok(examine(&read_question()?))
}

/// Reads a question from standard input.
fn read_question<T: DeserializeOwned>() -> Result<T, HintedError> {
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_QUESTION).read_to_string(&mut text);
    let fault = |error: String| {
        HintedError::new(format!("invalid request: {error}"), "the console runs this command")
    };
    read.map_err(|error| fault(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fault(error.to_string()))
}

/// Examines.
pub(crate) fn examine(question: &HostQuestion) -> HostFindings {
    let arrived = wall_time();
    // First, because the other hosts are waiting for it.
    let meeting = ports::start(question);
    let workdir = paths::expand(&question.workdir);
    let asked = question.clone();
    let folder = question.folder.as_deref().map_or_else(|| workdir.clone(), paths::expand);
    let program = bounded(program::PATIENCE * 2, move || {
        let found = program::probe(&asked, &folder);
        let script = found.program.as_ref().and_then(|program| program.script.as_deref());
        let code = program::probe_code(&asked, &folder, script);
        (found, code)
    });
    let env = question.environment.clone().map(|env| {
        let (asked, folder) = (question.clone(), workdir.clone());
        bounded(program::ENV_PATIENCE * 2, move || program::probe_environment(&asked, &env, &folder))
    });
    let topology = question.bind.then(|| {
        let has_gpus = question.gpus;
        bounded(DRIVER + DISK, move || topology::of_this_host(has_gpus))
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
    let (probed, code) = program.wait().unwrap_or_default();
    let (driver, gpus, gpus_unknown) = gpus.wait().unwrap_or_default();
    let topology = topology.and_then(BoundedTask::wait);
    let disk = disk.wait().unwrap_or_else(|| Disk {
        path: workdir.display().to_string(),
        error: Some(format!("no response within {} s", DISK.as_secs())),
        ..Disk::default()
    });
    let (listened, reached) = meeting.end();
    HostFindings {
        arrived,
        probe,
        user: machine::user(),
        kernel: machine::kernel(),
        runs: entries::list(&workdir).runs,
        run_exists: !question.run.is_empty() && workdir.join("runs").join(&question.run).exists(),
        driver,
        gpus,
        gpus_unknown,
        visible_gpus: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        disk,
        shm: machine::space("/dev/shm".as_ref()),
        limits: machine::limits(),
        interfaces: machine::interfaces(),
        route,
        names: machine::host_names(),
        listened,
        reached,
        environment: env.and_then(BoundedTask::wait),
        machine: machine::identity(),
        setup: probed.setup,
        program: probed.program,
        libtorch,
        libtorch_version,
        gpu_check,
        session: machine::session(),
        code,
        topology,
        answered: wall_time(),
    }
}

/// Work under way on a thread that is not waited for beyond its bound.
pub(crate) struct BoundedTask<T> {
    answer: mpsc::Receiver<T>,
    within: Duration,
}

pub(crate) fn bounded<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> BoundedTask<T> {
    let (sender, answer) = mpsc::channel();
    // Without the thread there is no reply, which the caller reports.
    let _ = std::thread::Builder::new().name("examine".into()).spawn(move || sender.send(work()));
    BoundedTask { answer, within }
}

impl<T> BoundedTask<T> {
    /// The result, if it came in time.
    pub(crate) fn wait(self) -> Option<T> {
        self.answer.recv_timeout(self.within).ok()
    }
}
/// The libtorch that the built-in trainer would load here.
fn found_libtorch(named: Option<&str>, workdir: &Path) -> Result<String, HintedError> {
    libtorch::find(named, workdir)?.map(|path| path.display().to_string()).ok_or_else(|| {
        HintedError::new(
            "libtorch not found",
            "run `pip install torch==2.11.0` on the host, or upload libtorch with `rankdeck push --libtorch DIR`",
        )
    })
}

/// Most names.
const MOST: usize = 64;

/// Names of the packages that a script imports without condition: lines that start with `import` or `from`, up to
/// the first statement that is something else.
pub fn imports_of(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut add = |module: &str| {
        let name = module.trim().split(['.', ' ']).next().unwrap_or_default();
        let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if plain && found.len() < MOST && !found.iter().any(|known| known == name) {
            found.push(name.to_owned());
        }
    };
    for line in text.lines() {
        let code = line.split('#').next().unwrap_or_default();
        for (index, statement) in code.split(';').enumerate() {
            // What is indented is conditional.
            let statement = if index > 0 { statement.trim_start() } else { statement };
            if let Some(list) = statement.strip_prefix("import ") {
                list.split(',').for_each(&mut add);
            } else if let Some(rest) = statement.strip_prefix("from ")
                && let Some((module, _)) = rest.split_once(" import")
            {
                // A leading dot is a sibling module.
                add(module);
            } else {
                break;
            }
        }
    }
    found
}

/// Everything about this host.
pub(crate) fn probe() -> Probe {
    let here = std::env::current_dir().unwrap_or_default();
    Probe {
        hostname: proc::hostname(),
        cpu_count: proc::cpu_count(),
        gpu_count: gpu::visible_count(),
        home: folders::home().display().to_string(),
        trainer: libtorch::trainer().map(|path| path.display().to_string()),
        libtorch: libtorch::find(None, &here).ok().flatten().map(|path| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_at_the_top_are_found_and_nothing_else() {
        let text = "import os, sys  # x\nimport numpy as np\nfrom torch.nn import Linear\nfrom . import me\n\
                    from .you import x\ntry:\n    import wandb\nexcept ImportError: pass\nimport torch.optim as o\n\
                    text = 'import nothing'\nimported = 1\n";
        assert_eq!(imports_of(text), ["os", "sys", "numpy", "torch"]);
    }

    #[test]
    fn packages_end_at_the_first_other_statement_of_a_line() {
        let text = "import os; print([f for d,_,fs in os.walk('.') for f in fs], 'import a; import b')\n\
                    import sys; from torch import nn, optim; import numpy as np, jax; x = 1, y; import z\n";
        assert_eq!(imports_of(text), ["os", "sys", "torch", "numpy", "jax"]);
    }
}
