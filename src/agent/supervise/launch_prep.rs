//! Getting a host ready for a launch: folders, the resolved experiment, code, libtorch, the trainer.
//!
//! Owner: a thread per launch, since disks and interpreters may be slow. It starts nothing;
//! [`PreparedHost::command`] says what is to be started.

use crate::hook;
use crate::paths::RunPaths;
use crate::supervise::libtorch;
use crate::supervise::setup::{self, Container, Stage};
use crate::supervise::spawn::RankCommand;
use rankdeck_proto::folders::create_private;
use rankdeck_proto::message::{LaunchSpec, Private};
use rankdeck_proto::pack;
use rankdeck_proto::process::HIDDEN;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::{PlannedHost, PlannedRank, rank_environment, user_environment};
use rankdeck_types::variables::WantedVariables;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What an agent knows about its host from its start.
#[derive(Debug, Clone)]
pub(crate) struct HostFacts {
    /// Files of this node.
    pub paths: RunPaths,
    /// Working folder of the ranks.
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
    /// Where the ranks run: their own copy of pushed code, or the working folder.
    folder: PathBuf,
    /// Where libtorch is, when the ranks need it on their library path.
    libtorch: Option<PathBuf>,
    /// The built-in trainer on this host, when there is one.
    trainer: Option<PathBuf>,
    /// The folder of the hook for Python ranks, where it is wanted.
    hook: Option<PathBuf>,
    /// The secret that the ranks of this generation know each other by, and values of the console's
    /// variables. Only in memory: a launch is never repeated from records.
    private: Private,
    /// What could not be prepared although the launch goes on.
    pub notices: Vec<String>,
}

impl PreparedHost {
    /// What to start for one rank, or why nothing can be started. `inherited` is the agent's own environment.
    pub fn command(
        &self,
        spec: &LaunchSpec,
        rank: &PlannedRank,
        inherited: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<RankCommand, String> {
        Ok(RankCommand {
            argv: self.argv(spec, rank)?,
            env: self.environment(spec, rank, inherited),
            workdir: self.folder.clone(),
            log: self.facts.paths.rank_log(spec.generation, rank.rank),
            // Checkpoints, replay and TensorBoard files are private; programs of the user decide for
            // themselves.
            umask: if spec.plan.is_builtin() { 0o077 } else { self.facts.umask },
        })
    }

    fn argv(&self, spec: &LaunchSpec, rank: &PlannedRank) -> Result<Vec<OsString>, String> {
        let argv: Vec<OsString> = if spec.plan.is_builtin() {
            let trainer = self.trainer.as_ref().ok_or_else(|| {
                let host = &self.host.host.name;
                format!("no rankdeck-trainer on host {host}; put it beside the rankdeck executable there")
            })?;
            vec![trainer.into(), "--config".into(), self.facts.paths.experiment(spec.generation).into()]
        } else {
            spec.plan.experiment.launch.command.iter().map(OsString::from).collect()
        };
        let container = self.container(spec, rank);
        let stage = Stage { workdir: &self.facts.workdir, folder: &self.folder, container, look_only: false };
        Ok(setup::command(&self.host.host.setup, &stage, argv))
    }

    /// What a container of this rank has to see.
    fn container(&self, spec: &LaunchSpec, rank: &PlannedRank) -> Container<'_> {
        if self.host.host.setup.container.is_none() {
            return Container::default();
        }
        let paths = &self.facts.paths;
        let mut folders: Vec<&Path> = vec![&self.facts.workdir];
        let others = [Some(paths.run_dir.as_path()), self.facts.events.parent()];
        for folder in others.into_iter().flatten() {
            if !folders.iter().any(|known| folder.starts_with(known)) {
                folders.push(folder);
            }
        }
        Container {
            name: setup::container_name(&spec.plan.run, spec.generation, rank.rank),
            folders,
            variables: self.environment(spec, rank, std::iter::empty()).into_keys().collect(),
            gpu: rank.gpu.is_some(),
        }
    }

    /// In the order in which later ones win: what the agent inherits, what the plan says, what the user set,
    /// paths that only this host knows.
    fn environment(
        &self,
        spec: &LaunchSpec,
        rank: &PlannedRank,
        inherited: impl Iterator<Item = (OsString, OsString)>,
    ) -> BTreeMap<OsString, OsString> {
        let planned =
            rank_environment(&spec.plan, rank, spec.generation, &spec.master_addr, spec.master_port);
        let foreign = |name: &OsString| !name.to_string_lossy().starts_with("RANKDECK_");
        let mut env: BTreeMap<OsString, OsString> = inherited.filter(|(name, _)| foreign(name)).collect();
        // Slurm, or the user, names the GPUs that are theirs in this variable; indices of the plan count
        // among those.
        let given = env.get(&OsString::from("CUDA_VISIBLE_DEVICES")).filter(|list| !list.is_empty()).cloned();
        env.extend(planned.iter().map(|(name, value)| (name.into(), value.into())));
        if let (Some(given), Some(indices)) = (given, planned.get("CUDA_VISIBLE_DEVICES")) {
            let named = among(indices, &given.to_string_lossy());
            let device = planned.get("RANKDECK_DEVICE").map_or("", String::as_str);
            let own = format!("{}-{}-{}", spec.plan.run, rank.node_rank, rank.local_rank);
            let named = devices(&named, device, own);
            env.extend(named.into_iter().map(|(name, value)| (name.into(), value.into())));
        }
        let users = user_environment(&spec.plan, &self.host);
        env.extend(users.into_iter().map(|(name, value)| (name.into(), value.into())));
        env.extend(self.private.variables.reveal().map(|(name, value)| (name.into(), value.into())));
        if let Some(libtorch) = &self.libtorch {
            prepend(&mut env, "LD_LIBRARY_PATH", &libtorch.join("lib"));
        }
        if let Some(hook) = &self.hook {
            prepend(&mut env, "PYTHONPATH", hook);
            let folder = self.facts.paths.generation_dir(spec.generation);
            for (name, value) in hook::recorder_environment(&folder) {
                env.entry(name.into()).or_insert(value.into());
            }
        }
        let paths = &self.facts.paths;
        let mut own = |name: &str, value: OsString| env.insert(name.into(), value);
        own("RANKDECK_RANK", rank.rank.to_string().into());
        own("RANKDECK_AGENT", self.facts.agent.clone().into());
        own("RANKDECK_RUN_DIR", paths.run_dir.clone().into());
        own("RANKDECK_STATUS_PAGE", paths.page(spec.generation, rank.rank).into());
        own("RANKDECK_EVENTS", self.facts.events.clone().into());
        if !spec.plan.experiment.watch.fingerprint_weights {
            own("RANKDECK_FINGERPRINTS", "0".into());
        }
        if let Some(secret) = &self.private.secret {
            own(GroupSecret::VARIABLE, secret.to_hex().into());
        }
        let wanted = WantedVariables::new(&spec.plan.experiment.launch, &self.host.host);
        if !wanted.is_empty() {
            // Who shows an environment leaves their values out (REACH-1).
            own(HIDDEN, wanted.names().collect::<Vec<_>>().join(",").into());
        }
        if let Some(resume) = &spec.resume {
            own("RANKDECK_RESUME", resume.into());
        }
        env
    }
}

/// Puts a folder at the front of a variable that lists folders.
fn prepend(env: &mut BTreeMap<OsString, OsString>, name: &str, folder: &Path) {
    let mut list = folder.as_os_str().to_owned();
    if let Some(rest) = env.get(&OsString::from(name)).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    env.insert(name.into(), list);
}

/// Indices of a plan as names out of a list of visible devices: `0,2` of `4,5,6` is `4,6`. Without a list
/// they stay as they are.
pub(crate) fn among(planned: &str, given: &str) -> String {
    let given: Vec<&str> = given.split(',').map(str::trim).collect();
    let entry = |index: usize| given.get(index).copied().filter(|name| !name.is_empty());
    let name = |index: &str| index.parse().ok().and_then(entry);
    planned.split(',').map(|index| name(index).unwrap_or(index)).collect::<Vec<_>>().join(",")
}

/// Variables of a rank with `device` of those that are `named`. Of instances of MIG it sees its own alone: a
/// process can use one only. `own` is a name that no other rank has.
fn devices(named: &str, device: &str, own: String) -> Vec<(&'static str, String)> {
    const LIST: &str = "CUDA_VISIBLE_DEVICES";
    let place = device.strip_prefix("cuda:").and_then(|place| place.parse().ok());
    let has_instances = named.split(',').any(|entry| entry.starts_with("MIG-"));
    match place.and_then(|place| named.split(',').nth(place)).filter(|_| has_instances) {
        None => vec![(LIST, named.to_owned())],
        Some(instance) => vec![
            (LIST, instance.to_owned()),
            ("RANKDECK_DEVICE", "cuda:0".to_owned()),
            // A script takes `cuda:LOCAL_RANK`.
            ("LOCAL_RANK", "0".to_owned()),
            // As for ranks that share a GPU: to NCCL, all instances on a GPU are that GPU.
            ("NCCL_HOSTID", own),
        ],
    }
}

/// Creates what the ranks of `spec` need on this host; an error is what each of them is reported with.
pub(crate) fn prepare(facts: HostFacts, spec: &LaunchSpec, private: Private) -> Result<PreparedHost, String> {
    let told = |error: HintedError| format!("{} ({})", error.error, error.hint);
    let host = spec
        .plan
        .hosts
        .iter()
        .find(|host| host.node_rank == spec.node_rank)
        .ok_or_else(|| format!("the plan has no node {}", spec.node_rank))?
        .clone();
    let generation_dir = facts.paths.generation_dir(spec.generation);
    create_private(&generation_dir).map_err(told)?;
    if spec.plan.is_builtin() {
        // The built-in trainer writes these beside the node folders.
        for folder in ["checkpoints", "tensorboard"] {
            create_private(&facts.paths.run_dir.join(folder)).map_err(told)?;
        }
    }
    write_experiment(&facts.paths.experiment(spec.generation), spec)?;
    // A program of the user brings its own libraries, unless hosts.toml says which.
    let libtorch = if spec.plan.is_builtin() || host.libtorch.is_some() {
        libtorch::find(host.libtorch.as_deref(), &facts.workdir).map_err(told)?
    } else {
        None
    };
    let mut notices = Vec::new();
    let wants_hook = !spec.plan.is_builtin() && spec.plan.experiment.watch.python_hook;
    let hook = wants_hook.then(|| hook::install(&generation_dir)).and_then(|installed| {
        // Without the hook less is seen; that must not keep a run from starting.
        installed
            .map_err(|error| notices.push(format!("cannot install the hook for Python ranks: {error}")))
            .ok()
    });
    let trainer = host.trainer.as_ref().map(PathBuf::from).or_else(libtorch::trainer);
    let folder = match &spec.plan.experiment.launch.code {
        Some(code) => code_folder(&facts.paths, code).map_err(told)?,
        None => facts.workdir.clone(),
    };
    Ok(PreparedHost { facts, host, folder, libtorch, trainer, hook, private, notices })
}

fn write_experiment(path: &Path, spec: &LaunchSpec) -> Result<(), String> {
    let text = toml::to_string(&spec.plan.experiment)
        .map_err(|error| format!("the experiment cannot be written as TOML: {error}"))?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Where ranks run: in the run's own copy of pushed code, else in the working folder.
pub(crate) fn ranks_folder(paths: &RunPaths, workdir: &Path, code: Option<&str>) -> PathBuf {
    match code.and_then(|code| code.strip_prefix(pack::BY_HASH)) {
        Some(hash) => {
            let short: String = hash.chars().take(16).collect();
            paths.node_dir().join(format!("code-{short}"))
        }
        None => workdir.to_owned(),
    }
}

/// The run's own copy of the pushed code, in which its ranks work. It is unpacked once, and kept over
/// restarts.
fn code_folder(paths: &RunPaths, code: &str) -> Result<PathBuf, HintedError> {
    let absent = |what: &str| {
        HintedError::new(format!("code {what} is not on this host"), "`rankdeck push EXPERIMENT` brings it")
    };
    let hash = code.strip_prefix(pack::BY_HASH).ok_or_else(|| absent(code))?;
    let short: String = hash.chars().take(16).collect();
    let folder = ranks_folder(paths, Path::new(""), Some(code));
    if folder.is_dir() {
        return Ok(folder);
    }
    let pack = pack::cached(hash).ok_or_else(|| absent(&short))?;
    pack::unpack(&pack, hash, &folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::Host;
    use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId};
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
            libtorch: Some("/lt".into()),
            trainer: Some("/bin/rankdeck-trainer".into()),
            hook: Some("/w/py".into()),
            private: Private { secret: GroupSecret::from_hex(&"5e".repeat(32)), ..Private::default() },
            notices: Vec::new(),
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
            plan: Plan {
                run: RunId("t".into()),
                experiment: toml::from_str(&text).unwrap(),
                hosts: vec![],
                ranks: vec![],
                backend: "tcp".into(),
                sizes: vec![],
            },
        }
    }

    const RANK: PlannedRank =
        PlannedRank { rank: Rank(3), local_rank: LocalRank(1), node_rank: NodeRank(1), gpu: Some(1) };

    fn env(host: PlannedHost) -> BTreeMap<String, String> {
        let inherited =
            [("HOME", "/h"), ("RANKDECK_RUN", "other"), ("LD_LIBRARY_PATH", "/x"), ("PATH", "/bin")];
        let inherited = inherited.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let command = prepared(host).command(&spec("[\"true\"]"), &RANK, inherited).unwrap();
        command.env.into_iter().map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap())).collect()
    }

    #[test]
    fn a_hook_that_cannot_be_installed_is_told_and_keeps_no_run_from_starting() {
        let folder = tempfile::tempdir().unwrap();
        let facts = HostFacts {
            paths: RunPaths { run_dir: folder.path().into(), node: NodeRank(1) },
            ..prepared(host(&[])).facts
        };
        let mut spec = spec("[\"true\"]");
        spec.plan.hosts = vec![host(&[])];
        std::fs::create_dir_all(facts.paths.generation_dir(spec.generation)).unwrap();
        std::fs::write(facts.paths.generation_dir(spec.generation).join("python"), "in the way").unwrap();
        let ready = prepare(facts, &spec, Private::default()).unwrap();
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
    fn indices_of_the_plan_count_among_slurms_devices() {
        assert_eq!(among("0,2", "4,5,6"), "4,6");
        assert_eq!(among("0", "GPU-8932f937"), "GPU-8932f937");
        assert_eq!(among("3", "4,5"), "3", "a plan that does not fit is the driver's to refuse");
        assert_eq!(among("0,2", ""), "0,2", "there is no list");
        let of = |named, device| devices(named, device, "own".into());
        assert_eq!(of("4,6", "cuda:1"), [("CUDA_VISIBLE_DEVICES", "4,6".to_owned())]);
        let second = of("MIG-a,MIG-b", "cuda:1");
        assert_eq!(second[0], ("CUDA_VISIBLE_DEVICES", "MIG-b".to_owned()), "a process can use one instance");
        assert_eq!(second[1], ("RANKDECK_DEVICE", "cuda:0".to_owned()));
        assert_eq!(second[2], ("LOCAL_RANK", "0".to_owned()), "what a script calls its GPU");
    }

    #[test]
    fn a_container_sees_the_run_and_inherits_what_the_rank_is_told_but_no_value() {
        let mut host = host(&[("TOKEN", "hidden")]);
        host.host.setup.container = Some("docker --shm-size 8g image:1".into());
        let argv = prepared(host).argv(&spec("[\"python\", \"a b.py\"]"), &RANK).unwrap();
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
    fn what_the_built_in_trainer_writes_is_private() {
        let mask =
            |command| prepared(host(&[])).command(&spec(command), &RANK, std::iter::empty()).unwrap().umask;
        assert_eq!((mask("[]"), mask("[\"true\"]")), (0o077, 0o022));
    }

    #[test]
    fn the_built_in_trainer_gets_the_resolved_experiment() {
        let built_in = prepared(host(&[])).argv(&spec("[]"), &RANK).unwrap();
        assert_eq!(built_in, ["/bin/rankdeck-trainer", "--config", "/w/runs/t/node1/gen2/experiment.toml"]);
        let without = PreparedHost { trainer: None, ..prepared(host(&[])) };
        assert!(without.argv(&spec("[]"), &RANK).unwrap_err().contains("host b"));
    }
}
