//! Getting a host ready for a launch: folders, the resolved experiment, libtorch, the trainer.
//!
//! Owner: a thread per launch, since disks and interpreters may be slow. It starts nothing; [`Launch::order`] says what is to be started.

use crate::hook;
use crate::paths::RunPaths;
use crate::supervise::libtorch;
use crate::supervise::spawn::{Order, Site, order};
use rankdeck_proto::folders::create_private;
use rankdeck_proto::message::LaunchSpec;
use rankdeck_proto::pack;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::{PlannedHost, PlannedRank};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// What the agent knows before it looks.
#[derive(Debug, Clone)]
pub struct Base {
    /// Files of this node.
    pub paths: RunPaths,
    /// Working folder of the ranks.
    pub workdir: PathBuf,
    /// Event socket.
    pub events: PathBuf,
    /// `RANKDECK_AGENT`.
    pub agent: String,
    /// File mode mask of the ranks.
    pub umask: u32,
}

/// A host that is ready.
#[derive(Debug, Clone)]
pub struct Launch {
    site: Site,
    host: PlannedHost,
}

impl Launch {
    /// What to start for one rank.
    pub fn order(&self, spec: &LaunchSpec, rank: &PlannedRank) -> Result<Order, String> {
        order(&self.site, spec, &self.host, rank, std::env::vars_os())
    }
}

/// The run's own copy of the pushed code, in which its ranks work; unpacked once, also over restarts.
fn code_folder(paths: &RunPaths, code: &str) -> Result<PathBuf, HintedError> {
    let absent = |what: &str| {
        HintedError::new(format!("code {what} is not on this host"), "`rankdeck push EXPERIMENT` brings it")
    };
    let hash = code.strip_prefix(pack::BY_HASH).ok_or_else(|| absent(code))?;
    let short: String = hash.chars().take(16).collect();
    let folder = paths.node_dir().join(format!("code-{short}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let pack = pack::cached(hash).ok_or_else(|| absent(&short))?;
    pack::unpack(&pack, hash, &folder)?;
    Ok(folder)
}

/// Creates what the ranks of `spec` need on this host; an error is what each of them is reported with.
pub fn prepare(base: Base, spec: &LaunchSpec) -> Result<Launch, String> {
    let told = |failure: HintedError| format!("{} ({})", failure.error, failure.hint);
    let host = spec
        .plan
        .hosts
        .iter()
        .find(|host| host.node_rank == spec.node_rank)
        .ok_or_else(|| format!("the plan has no node {}", spec.node_rank))?
        .clone();
    create_private(&base.paths.generation_dir(spec.generation)).map_err(told)?;
    if spec.plan.is_builtin() {
        // The built-in trainer writes these beside the node folders.
        for folder in ["checkpoints", "tensorboard"] {
            create_private(&base.paths.run_dir.join(folder)).map_err(told)?;
        }
    }
    let experiment = base.paths.experiment(spec.generation);
    let text = toml::to_string(&spec.plan.experiment)
        .map_err(|error| format!("the experiment is no TOML: {error}"))?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&experiment)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("cannot write {}: {error}", experiment.display()))?;
    // A program of the user brings its own libraries, unless hosts.toml says which.
    let libtorch = if spec.plan.is_builtin() || host.libtorch.is_some() {
        libtorch::find(host.libtorch.as_deref(), &base.workdir).map_err(told)?
    } else {
        None
    };
    let wants_hook = !spec.plan.is_builtin() && spec.plan.experiment.watch.python_hook;
    let hook = match wants_hook.then(|| hook::install(&base.paths.generation_dir(spec.generation))) {
        Some(Ok(folder)) => Some(folder),
        // Without it less is seen; that must not keep a run from starting.
        Some(Err(_)) | None => None,
    };
    let trainer = host.trainer.as_ref().map(PathBuf::from).or_else(libtorch::trainer);
    let workdir = match &spec.plan.experiment.launch.code {
        Some(code) => code_folder(&base.paths, code).map_err(told)?,
        None => base.workdir.clone(),
    };
    let Base { paths, events, agent, umask, .. } = base;
    Ok(Launch { site: Site { paths, workdir, events, agent, libtorch, trainer, umask, hook }, host })
}
