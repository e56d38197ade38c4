//! Prepares a host for a launch: the console's variables, directories, the resolved experiment, the ranks' working
//! directory with their code, libtorch, the trainer.
//!
//! Owner: a thread per launch, since disks and interpreters may be slow. It starts nothing;
//! [`PreparedHost::command`] returns the command of a rank.

use crate::hook;
use crate::observe::open_watch::OpenWatch;
use crate::paths::{self, RunPaths};
use crate::results::{self, WorkRecord};
use crate::supervise::setup::{self, Container, ScriptContext};
use crate::supervise::spawn::RankCommand;
use crate::supervise::work_folder::{self, WorkFolder};
use crate::supervise::{libtorch, script_checkpoints};
use crate::topology;
use rankdeck_proto::folders::create_private;
use rankdeck_proto::message::{LaunchSecrets, LaunchSpec};
use rankdeck_proto::pack::{self, PackIndex};
use rankdeck_proto::process::HIDDEN;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::trust;
use rankdeck_types::code::Code;
use rankdeck_types::cores::{self, CpuSet};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::CoreBinding;
use rankdeck_types::ids::{Rank, RunId};
use rankdeck_types::plan::{
    PlannedHost, PlannedRank, RankContext, is_inheritable, rank_command, rank_environment,
};
use rankdeck_types::variables::{PassedVariables, RequestedVariables};
use rankdeck_types::words::{clean, plural};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The list of GPUs that a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Facts about the host, fixed at the agent's start.
#[derive(Debug, Clone)]
pub(crate) struct HostFacts {
    /// Files of this node.
    pub paths: RunPaths,
    /// Working directory of the ranks.
    pub workdir: PathBuf,
    /// Event socket.
    pub events: PathBuf,
    /// `RANKDECK_AGENT` of this agent.
    pub agent: String,
    /// The file mode mask that the agent itself was started with.
    pub umask: u32,
}

/// A host that is ready: what all its ranks have in common.
#[derive(Debug, Clone)]
pub(crate) struct PreparedHost {
    facts: HostFacts,
    host: PlannedHost,
    /// Where the ranks run: the work folder of uploaded code, the user's own code, or the working directory.
    pub folder: PathBuf,
    /// The work folder, owned while this or a clone of it exists.
    pub work: Option<WorkFolder>,
    /// Where libtorch is, when the ranks need it on their library path.
    libtorch: Option<PathBuf>,
    /// The built-in trainer on this host, when there is one.
    trainer: Option<PathBuf>,
    /// The directory of the hook for Python ranks, where it is enabled.
    hook: Option<PathBuf>,
    /// The shared secret of this generation's ranks, and values of the console's
    /// variables. Only in memory: a launch is never repeated from records.
    private: LaunchSecrets,
    /// The checkpoint from which a script resumes.
    pub resumed: Option<Arc<OpenWatch>>,
    /// The CPUs that ranks are bound to (`launch.bind`).
    cpus: BTreeMap<Rank, CpuSet>,
    /// What could not be prepared; the launch continues.
    pub notices: Vec<String>,
    /// Where a rank that starts again joins the group; `None`: it forms the group with all others.
    join: Option<JoinPoint>,
}

/// Where a rank joins a running process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinPoint {
    /// Latest known change of the members.
    pub epoch: u32,
    /// `ADDRESS:PORT` of a member; `None`: the store of the launch.
    pub store: Option<String>,
}

impl PreparedHost {
    /// The same for a rank that joins the running group.
    pub fn joining(self, join: JoinPoint) -> PreparedHost {
        PreparedHost { join: Some(join), ..self }
    }

    /// What to start for one rank, or why nothing can be started. `inherited` is the agent's own environment.
    pub fn command(
        &self,
        spec: &LaunchSpec,
        rank: &PlannedRank,
        inherited: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<RankCommand, String> {
        let inherited: BTreeMap<OsString, OsString> = inherited.collect();
        let visible = inherited
            .get(OsStr::new(VISIBLE))
            .map(|list| list.to_string_lossy().into_owned())
            .filter(|list| !list.is_empty());
        Ok(RankCommand {
            argv: self.argv(spec, rank, visible.as_deref())?,
            env: self.environment(spec, rank, inherited),
            workdir: self.folder.clone(),
            log: self.facts.paths.rank_log(spec.generation, rank.rank),
            // Checkpoints, replay and TensorBoard files are private; programs of the user decide for
            // themselves.
            umask: if spec.plan.is_builtin() { 0o077 } else { self.facts.umask },
            cpus: self.cpus.get(&rank.rank).cloned(),
        })
    }

    fn argv(
        &self,
        spec: &LaunchSpec,
        rank: &PlannedRank,
        visible: Option<&str>,
    ) -> Result<Vec<OsString>, String> {
        let argv: Vec<OsString> = if spec.plan.is_builtin() {
            let trainer = self.trainer.as_ref().ok_or_else(|| {
                let host = &self.host.host.name;
                format!(
                    "rankdeck-trainer not found on host {host}; install it next to the rankdeck executable"
                )
            })?;
            vec![trainer.into(), "--config".into(), self.facts.paths.experiment(spec.generation).into()]
        } else {
            let words =
                rank_command(&spec.plan, rank, visible, &self.facts.paths.run_dir, spec.resume_path());
            let mut words = words.into_iter();
            // A container has a home of its own.
            let in_container = self.host.host.setup.container.is_some();
            let program = words.next().map(|word| match in_container {
                true => word.into(),
                false => paths::program(&word),
            });
            program.into_iter().chain(words.map(OsString::from)).collect()
        };
        let container = self.container(spec, rank, visible);
        let stage = ScriptContext {
            workdir: &self.facts.workdir,
            folder: &self.folder,
            container,
            probe_only: false,
        };
        Ok(setup::command(&self.host.host.setup, &stage, argv))
    }

    /// Returns the directories and variables that a container of this rank needs.
    fn container(&self, spec: &LaunchSpec, rank: &PlannedRank, visible: Option<&str>) -> Container<'_> {
        if self.host.host.setup.container.is_none() {
            return Container::default();
        }
        let paths = &self.facts.paths;
        let mut folders: Vec<&Path> = vec![&self.facts.workdir];
        let others = [Some(paths.run_dir.as_path()), self.facts.events.parent(), Some(self.folder.as_path())];
        for folder in others.into_iter().flatten() {
            if !folders.iter().any(|known| folder.starts_with(known)) {
                folders.push(folder);
            }
        }
        let visible = visible.map(|list| (VISIBLE.into(), list.into()));
        Container {
            name: setup::container_name(&spec.plan.run, spec.generation, rank.rank),
            folders,
            variables: self.environment(spec, rank, visible.into_iter().collect()).into_keys().collect(),
            gpu: rank.gpu.is_some(),
        }
    }

    /// Returns the environment of a rank, from the plan and from facts of this host.
    fn environment(
        &self,
        spec: &LaunchSpec,
        rank: &PlannedRank,
        inherited: BTreeMap<OsString, OsString>,
    ) -> BTreeMap<OsString, OsString> {
        let LaunchSpec { plan, generation, master_addr, master_port, .. } = spec;
        let paths = &self.facts.paths;
        let mut own: Vec<(&'static str, OsString)> = vec![
            ("RANKDECK_AGENT", self.facts.agent.clone().into()),
            ("RANKDECK_RUN_DIR", paths.run_dir.clone().into()),
            ("RANKDECK_STATUS_PAGE", paths.page(*generation, rank.rank).into()),
            ("RANKDECK_EVENTS", self.facts.events.clone().into()),
        ];
        own.extend(self.private.secret.iter().map(|secret| (GroupSecret::VARIABLE, secret.to_hex().into())));
        let requested = RequestedVariables::new(&plan.experiment.filled_launch(), &self.host.host);
        if !requested.is_empty() {
            // Displays of an environment omit their values (REACH-1).
            own.push((HIDDEN, requested.names().collect::<Vec<_>>().join(",").into()));
        }
        own.extend(self.cpus.get(&rank.rank).map(|cpus| ("RANKDECK_CPUS", cpus.to_string().into())));
        own.extend(spec.resume_path().map(|resume| ("RANKDECK_RESUME", resume.into())));
        if let Some(JoinPoint { epoch, store }) = &self.join {
            own.push(("RANKDECK_JOIN", epoch.to_string().into()));
            own.extend(store.iter().map(|store| ("RANKDECK_STORE", store.into())));
        }
        let recorder = self.hook.iter().flat_map(|_| {
            hook::recorder_environment(&paths.generation_dir(*generation))
                .map(|(name, value)| (name, value.into_os_string()))
        });
        let context = RankContext {
            inherited,
            libraries: self.libtorch.as_ref().map(|libtorch| libtorch.join("lib")),
            hook: self.hook.as_deref(),
            defaults: recorder.collect(),
            resume: spec.resume_path(),
            own,
            ..RankContext::new(
                *generation,
                (master_addr.as_str(), *master_port),
                &paths.run_dir,
                &self.private.variables,
            )
        };
        rank_environment(plan, rank, context)
    }
}

/// Creates what the ranks of `spec` need on this host; an error is what each of them is reported with.
pub(crate) fn prepare(
    facts: HostFacts,
    spec: &LaunchSpec,
    private: LaunchSecrets,
) -> Result<PreparedHost, String> {
    let one_line = |error: HintedError| format!("{} ({})", error.error, error.hint);
    // TRUST-1: also for the next generation of an agent that started when the place was safe.
    trust::check_run(&paths::runs(&facts.workdir), &facts.paths.node_dir()).map_err(one_line)?;
    let host = spec
        .plan
        .hosts
        .iter()
        .find(|host| host.node_rank == spec.node_rank)
        .ok_or_else(|| format!("node rank {} is not in the plan", spec.node_rank))?
        .clone();
    let generation_dir = facts.paths.generation_dir(spec.generation);
    create_private(&generation_dir).map_err(one_line)?;
    if spec.plan.is_builtin() {
        // The built-in trainer writes these next to the node directories.
        for folder in ["checkpoints", "tensorboard"] {
            create_private(&facts.paths.run_dir.join(folder)).map_err(one_line)?;
        }
    }
    write_experiment(&facts.paths.experiment(spec.generation), spec)?;
    // A program of the user brings its own libraries, unless hosts.toml sets them.
    let libtorch = if spec.plan.is_builtin() || host.libtorch().is_some() {
        libtorch::find(host.libtorch(), &facts.workdir).map_err(one_line)?
    } else {
        None
    };
    let container = host.host.setup.container.as_deref();
    let mut notices = Vec::new();
    let has_hook = !spec.plan.is_builtin() && spec.plan.experiment.watch.python_hook;
    let hook = has_hook.then(|| hook::install(&generation_dir)).and_then(|installed| {
        // Without the hook less is seen; that must not keep a run from starting.
        installed
            .map_err(|error| notices.push(format!("cannot install the hook for Python ranks: {error}")))
            .ok()
    });
    let trainer = host.trainer.as_ref().map(PathBuf::from).or_else(libtorch::trainer);
    let (folder, code) = match &spec.plan.experiment.launch.code {
        Some(Code::Pack(hash)) => {
            let name = private.work.as_deref().unwrap_or(&spec.plan.experiment.run.name);
            // Nothing of a drill outlives its run.
            let root = match spec.plan.drill {
                true => facts.paths.run_dir.join("work"),
                false => paths::work(&facts.workdir),
            };
            let (code, taken) = take_folder(&facts, &spec.plan.run, (&root, name), hash).map_err(one_line)?;
            notices.extend(taken);
            (code.1.path.clone(), Some(code))
        }
        Some(Code::Path(path)) => (own_code(path).map_err(one_line)?, None),
        None => (facts.workdir.clone(), None),
    };
    // Once the directory is this run's, and before the code is laid: the pack may have files of the same names.
    notices.extend(script_checkpoints::set_aside(&facts.paths, spec, &facts.workdir, container)?);
    let work = match code {
        Some((index, work)) => {
            notices.extend(lay_code(&index, &work).map_err(one_line)?);
            Some(work)
        }
        None => None,
    };
    // A container's files are not found by their names here.
    let resume = spec.resume_path().filter(|_| !spec.plan.is_builtin() && container.is_none());
    let resumed = resume.and_then(|resume| OpenWatch::start(&paths::expand_in(resume, &facts.workdir)).ok());
    let resumed = resumed.map(Arc::new);
    if !spec.plan.is_builtin()
        && let Err(error) = remember(&facts, &folder, work.as_ref())
    {
        notices.push(format!("results of this run will not be listed: {error}"));
    }
    let cpus = bound_cpus(spec).unwrap_or_else(|why| {
        notices.push(format!("{}; {}", why.error, why.hint));
        BTreeMap::new()
    });
    let join = None;
    Ok(PreparedHost {
        facts,
        host,
        folder,
        work,
        libtorch,
        trainer,
        hook,
        private,
        resumed,
        cpus,
        notices,
        join,
    })
}

/// Returns the CPUs of each rank of this host; empty if the run binds none.
fn bound_cpus(spec: &LaunchSpec) -> Result<BTreeMap<Rank, CpuSet>, HintedError> {
    if spec.plan.experiment.launch.bind != Some(CoreBinding::Auto) {
        return Ok(BTreeMap::new());
    }
    let has_gpus = spec.plan.ranks_of(spec.node_rank).any(|rank| rank.gpu.is_some());
    cores::of_ranks(&spec.plan, spec.node_rank, &topology::of_this_host(has_gpus))
}

/// Remembers where the ranks of a script work, and what is there.
fn remember(facts: &HostFacts, folder: &Path, work: Option<&WorkFolder>) -> io::Result<()> {
    let in_place = work.is_none();
    let record = WorkRecord {
        folder: folder.canonicalize()?,
        in_place,
        mark: match work {
            Some(work) => work.mark.clone(),
            None => work_folder::mark_of(&facts.paths.run_dir)?,
        },
        apart: if in_place { results::apart(&facts.workdir.canonicalize()?) } else { Vec::new() },
    };
    results::remember(&facts.paths, &record)
}

fn write_experiment(path: &Path, spec: &LaunchSpec) -> Result<(), String> {
    let text = toml::to_string(&spec.plan.experiment)
        .map_err(|error| format!("cannot write the experiment as TOML: {error}"))?;
    trust::open(path, OpenOptions::new().write(true).create(true).truncate(true))
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Most names of kept files in a notice.
const KEPT: usize = 5;

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

fn absent(name: &str) -> HintedError {
    HintedError::new(format!("code {name} is not on this host"), "upload it with `rankdeck push EXPERIMENT`")
}

/// The user's own code, on the machine of the console.
fn own_code(path: &str) -> Result<PathBuf, HintedError> {
    let folder = Path::new(path);
    match folder.is_absolute() && folder.is_dir() {
        true => Ok(folder.to_owned()),
        false => Err(absent(path)),
    }
}

/// Takes the run's work folder for an uploaded pack; returns a notice if it is not the one that was asked for. Restarts
/// stay in the same folder.
fn take_folder(
    facts: &HostFacts,
    run: &RunId,
    (root, name): (&Path, &str),
    hash: &str,
) -> Result<((PackIndex, WorkFolder), Option<String>), HintedError> {
    let pack = pack::cached(hash).ok_or_else(|| absent(&short(hash)))?;
    let index = PackIndex::read(&pack, hash)?;
    let known = results::work(&facts.paths).filter(|known| !known.in_place);
    let known = known.as_ref().map(|known| known.folder.as_path());
    let (work, taken) = work_folder::take(root, name, run, known)?;
    Ok(((index, work), taken))
}

/// Lays the pack over its folder; returns a notice about files that were kept instead.
fn lay_code(index: &PackIndex, work: &WorkFolder) -> Result<Option<String>, HintedError> {
    let kept = work_folder::lay(index, &work.path).map_err(|error| {
        HintedError::new(
            format!("cannot copy the code to {}: {error}", work.path.display()),
            "check the free disk space and the owner of that directory",
        )
    })?;
    let more = match kept.len().saturating_sub(KEPT) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Ok((!kept.is_empty()).then(|| {
        let names = clean(&kept[..kept.len().min(KEPT)].join(", "));
        format!(
            "{} of the code changed on this host since the last upload, and {} kept in {}: {names}{more}",
            plural(kept.len(), "file"),
            if kept.len() == 1 { "is" } else { "are" },
            work.path.display()
        )
    }))
}

/// The variables that the latest launch requested, and their values: the next generation has them too when the console
/// that starts it does not. In memory only, as long as the agent lives (SECRET-1).
#[derive(Default)]
pub(crate) struct LaunchVariables {
    requested: RequestedVariables,
    values: PassedVariables,
}

impl LaunchVariables {
    /// Completes what a console hands over by what an earlier one did, and keeps it. `inherited`: variables
    /// that ranks have from the agent.
    ///
    /// Errors: a rank would be started without a variable that the plan names.
    pub fn complete(
        &mut self,
        spec: &LaunchSpec,
        values: &mut PassedVariables,
        inherited: &dyn Fn(&str) -> bool,
    ) -> Result<(), HintedError> {
        let requested = requested_variables(spec);
        values.complete(&self.values, |name| requested.agrees(&self.requested, name));
        let lacking: Vec<&str> = requested
            .names()
            .filter(|name| !(values.has(name) || requested.passes(name) && inherited(name)))
            .collect();
        if !lacking.is_empty() {
            return Err(HintedError::new(
                format!("cannot start ranks: {} not set and not part of the launch", lacking.join(", ")),
                "`export` it in the console's shell, then restart",
            ));
        }
        *self = LaunchVariables { requested, values: values.clone() };
        Ok(())
    }

    /// Names of variables that the next ranks of the same plan would have without a console.
    pub fn names(&self, spec: &LaunchSpec, inherited: &dyn Fn(&str) -> bool) -> Vec<String> {
        let requested = requested_variables(spec);
        let has = |name: &&str| {
            self.values.has(name) && requested.agrees(&self.requested, name)
                || requested.passes(name) && inherited(name)
        };
        requested.names().filter(has).map(str::to_owned).collect()
    }
}

fn requested_variables(spec: &LaunchSpec) -> RequestedVariables {
    let host = spec.plan.hosts.get(spec.node_rank.index());
    let launch = spec.plan.experiment.filled_launch();
    host.map(|planned| RequestedVariables::new(&launch, &planned.host)).unwrap_or_default()
}

/// The agent's own environment has it, and ranks inherit that.
pub(crate) fn is_inherited(name: &str) -> bool {
    is_inheritable(name) && std::env::var_os(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::Host;
    use rankdeck_types::ids::{Generation, LocalRank, NodeRank};
    use rankdeck_types::plan::Plan;

    fn prepared(host: PlannedHost) -> PreparedHost {
        let facts = HostFacts {
            paths: RunPaths { run_dir: "/w/runs/t".into(), node: NodeRank(1) },
            workdir: "/w".into(),
            events: "/s/x.ev".into(),
            agent: "7-8".into(),
            umask: 0o022,
        };
        PreparedHost {
            facts,
            host,
            folder: "/w".into(),
            work: None,
            libtorch: Some("/lt".into()),
            trainer: Some("/bin/rankdeck-trainer".into()),
            hook: Some("/w/py".into()),
            private: LaunchSecrets {
                secret: GroupSecret::from_hex(&"5e".repeat(32)),
                ..LaunchSecrets::default()
            },
            resumed: None,
            cpus: BTreeMap::new(),
            notices: Vec::new(),
            join: None,
        }
    }

    fn host(env: &[(&str, &str)]) -> PlannedHost {
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        PlannedHost::new(NodeRank(1), Host { name: "b".into(), workdir: "/w".into(), env, ..Host::default() })
    }

    fn spec(command: &str) -> LaunchSpec {
        let text = format!("[run]\nname = \"t\"\n[launch]\ncommand = {command}");
        LaunchSpec {
            generation: Generation(2),
            node_rank: NodeRank(1),
            master_addr: "127.0.0.1".into(),
            master_port: 1,
            resume: Some("latest".into()),
            resume_at: None,
            plan: Plan {
                run: RunId("t".into()),
                experiment: toml::from_str(&text).unwrap(),
                program: None,
                hosts: vec![],
                ranks: vec![],
                sizes: vec![],
                drill: false,
            },
        }
    }

    /// The launch on this host.
    fn on_host(spec: &LaunchSpec, host: &PlannedHost) -> LaunchSpec {
        let mut spec = spec.clone();
        spec.plan.hosts = vec![host.clone()];
        spec
    }

    const RANK: PlannedRank =
        PlannedRank { rank: Rank(3), local_rank: LocalRank(1), node_rank: NodeRank(1), gpu: Some(1) };

    fn env(host: PlannedHost) -> BTreeMap<String, String> {
        let inherited =
            [("HOME", "/h"), ("RANKDECK_RUN", "other"), ("LD_LIBRARY_PATH", "/x"), ("PATH", "/bin")];
        let inherited = inherited.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let spec = on_host(&spec("[\"true\"]"), &host);
        let command = prepared(host).command(&spec, &RANK, inherited).unwrap();
        command.env.into_iter().map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap())).collect()
    }

    #[test]
    fn trust_1_no_generation_starts_in_an_open_folder() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&run_dir, mode).unwrap();
        let facts = HostFacts {
            paths: RunPaths { run_dir: run_dir.clone(), node: NodeRank(1) },
            ..prepared(host(&[])).facts
        };
        let mut spec = spec("[\"true\"]");
        spec.plan.hosts = vec![host(&[])];
        let refused = prepare(facts, &spec, LaunchSecrets::default()).err().unwrap();
        assert!(refused.contains("/run (mode 0777"), "{refused}");
        assert_eq!(std::fs::read_dir(&run_dir).unwrap().count(), 0);
    }

    #[test]
    fn failed_hook_installation_is_a_notice() {
        let folder = tempfile::tempdir().unwrap();
        let facts = HostFacts {
            paths: RunPaths { run_dir: folder.path().into(), node: NodeRank(1) },
            ..prepared(host(&[])).facts
        };
        let mut spec = spec("[\"true\"]");
        spec.plan.hosts = vec![host(&[])];
        std::fs::create_dir_all(facts.paths.generation_dir(spec.generation)).unwrap();
        std::fs::write(facts.paths.generation_dir(spec.generation).join("python"), "in the way").unwrap();
        let ready = prepare(facts, &spec, LaunchSecrets::default()).unwrap();
        assert!(ready.hook.is_none() && ready.notices[0].contains("hook"), "{:?}", ready.notices);
    }

    #[test]
    fn identity_always_wins() {
        let env = env(host(&[
            ("RANKDECK_RUN", "x"),
            ("RANK", "99"),
            ("TORCHELASTIC_MAX_RESTARTS", "7"),
            ("RANKDECK_OTHER", "x"),
            ("RANKDECK_SECRET", "x"),
            ("OMP_NUM_THREADS", "3"),
            ("PATH", "/opt"),
            ("PYTHONUNBUFFERED", ""),
            ("PYTHONPATH", "/own"),
            ("TORCH_FR_BUFFER_SIZE", "9"),
        ]));
        assert_eq!(env["RANKDECK_RUN"], "t");
        assert_eq!(env["RANKDECK_NODE"], "1");
        assert_eq!(env["RANKDECK_RESUME"], "latest");
        assert_eq!(env["PATH"], "/opt");
        assert_eq!(env["HOME"], "/h");
        assert_eq!(env["PYTHONUNBUFFERED"], "");
        assert_eq!(env["LD_LIBRARY_PATH"], "/lt/lib:/x");
        assert_eq!(env["PYTHONPATH"], "/w/py:/own");
        assert_eq!(env["TORCH_FR_BUFFER_SIZE"], "9", "what the user set stays");
        assert_eq!(env["TORCH_NCCL_DUMP_ON_TIMEOUT"], "1");
        assert_eq!(
            env["RANKDECK_SECRET"],
            "5e".repeat(32),
            "the generation's own, whatever is inherited or set"
        );
        assert_eq!(env["RANK"], "3");
        assert_eq!(env["TORCHELASTIC_MAX_RESTARTS"], "0");
        assert_eq!(env["OMP_NUM_THREADS"], "3");
        assert!(!env.contains_key("RANKDECK_OTHER"));
    }

    #[test]
    fn variables_of_other_launchers_do_not_reach_ranks() {
        let started = |spec: &LaunchSpec, host: PlannedHost| {
            let inherited = [
                ("SLURM_JOB_ID", "7"),
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", "1"),
                ("SLURM_STEP_NODELIST", "b"),
                ("PMI_RANK", "0"),
                ("OMPI_COMM_WORLD_SIZE", "1"),
                ("TORCHELASTIC_ERROR_FILE", "/other"),
            ];
            let inherited = inherited.map(|(name, value)| (OsString::from(name), OsString::from(value)));
            let spec = on_host(spec, &host);
            let env = prepared(host).command(&spec, &RANK, inherited.into_iter()).unwrap().env;
            let ours = |name: &&OsString| {
                ["SLURM_", "PMI_", "OMPI_", "TORCHELASTIC_ERROR"]
                    .iter()
                    .any(|prefix| name.to_string_lossy().starts_with(prefix))
            };
            let found = env.keys().filter(ours).map(|name| name.to_string_lossy().into_owned());
            (found.collect::<Vec<_>>(), env.get(&OsString::from("SLURM_PROCID")).cloned())
        };
        let (names, procid) = started(&spec("[\"true\"]"), host(&[]));
        assert_eq!((names, procid), (vec!["SLURM_JOB_ID".to_owned()], None));
        // What the user sets is the user's.
        let (_, procid) = started(&spec("[\"true\"]"), host(&[("SLURM_PROCID", "9")]));
        assert_eq!(procid, Some("9".into()));
        let (names, procid) = started(&spec("[\"true\"]\nslurm_env = true"), host(&[]));
        assert_eq!(procid, Some("3".into()), "the rank's own number");
        assert!(names.iter().all(|name| name.starts_with("SLURM_")), "{names:?}");
    }

    #[test]
    fn inherited_visible_devices_name_the_planned_gpus() {
        let mut host = host(&[]);
        host.host.setup.container = Some("docker image:1".into());
        let mut spec = spec("[\"true\"]");
        spec.plan.ranks = vec![RANK];
        let started = |visible: &str| {
            let inherited = [(OsString::from("CUDA_VISIBLE_DEVICES"), OsString::from(visible))];
            prepared(host.clone()).command(&spec, &RANK, inherited.into_iter()).unwrap()
        };
        let list = |command: &RankCommand| command.env[&OsString::from("CUDA_VISIBLE_DEVICES")].clone();
        assert_eq!(list(&started("4,5")), "5");
        assert_eq!(list(&started("")), "1");
        let instance = started("MIG-a,MIG-b");
        assert_eq!(list(&instance), "MIG-b");
        assert!(instance.argv[2].to_str().unwrap().contains("--env NCCL_HOSTID"), "{:?}", instance.argv);
    }

    #[test]
    fn bound_rank_has_its_cpus() {
        let spec = on_host(&spec("[\"true\"]"), &host(&[]));
        let command = |cpus: BTreeMap<Rank, CpuSet>| {
            PreparedHost { cpus, ..prepared(host(&[])) }.command(&spec, &RANK, std::iter::empty()).unwrap()
        };
        let own: CpuSet = "2-3".parse().unwrap();
        let bound = command([(RANK.rank, own.clone())].into());
        assert_eq!(
            (bound.cpus, &bound.env[OsStr::new("RANKDECK_CPUS")]),
            (Some(own), &OsString::from("2-3"))
        );
        let free = command(BTreeMap::new());
        assert!(free.cpus.is_none() && !free.env.contains_key(OsStr::new("RANKDECK_CPUS")));
    }

    #[test]
    fn container_inherits_variables_by_name_only() {
        let mut host = host(&[("TOKEN", "hidden")]);
        host.host.setup.container = Some("docker --shm-size 8g image:1".into());
        let spec = on_host(&spec("[\"python\", \"a b.py\"]"), &host);
        let argv = prepared(host).argv(&spec, &RANK, None).unwrap();
        let script = argv[2].to_str().unwrap();
        let last = script.lines().last().unwrap();
        for part in [
            "exec docker run --rm --init --network=host --ipc=host --pid=host --name t-gen2-rank3 --workdir /w",
            "--volume /w:/w --volume /s:/s",
            "--env RANK ",
            "--env TOKEN ",
            "--env RANKDECK_SECRET ",
            "--gpus all",
            "--user \"$(id -u):$(id -g)\"",
            "--shm-size 8g image:1 python 'a b.py'",
        ] {
            assert!(last.contains(part), "{part}\n{last}");
        }
        assert!(!script.contains("hidden") && !script.contains("--env PATH"), "{script}");
    }

    #[test]
    fn files_of_the_built_in_trainer_are_private() {
        let mask =
            |command| prepared(host(&[])).command(&spec(command), &RANK, std::iter::empty()).unwrap().umask;
        assert_eq!((mask("[]"), mask("[\"true\"]")), (0o077, 0o022));
    }

    #[test]
    fn built_in_trainer_gets_the_resolved_experiment() {
        let built_in = prepared(host(&[])).argv(&spec("[]"), &RANK, None).unwrap();
        assert_eq!(built_in, ["/bin/rankdeck-trainer", "--config", "/w/runs/t/node1/gen2/experiment.toml"]);
        let without = PreparedHost { trainer: None, ..prepared(host(&[])) };
        assert!(without.argv(&spec("[]"), &RANK, None).unwrap_err().contains("host b"));
    }
}
