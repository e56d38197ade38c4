//! Starting ranks: program, environment, working folder, log file.
//!
//! Owner: one thread that lives as long as the agent (GROUP-2): the parent-death signal fires when the *thread* that forked ends. It is also the
//! only place that may wait for a slow file system on the way to `exec`.

use crate::hook;
use crate::paths::RunPaths;
use crate::proc::{self, Ident};
use crate::supervise::{cgroup::Cgroup, groups};
use rankdeck_proto::message::LaunchSpec;
use rankdeck_types::ids::Rank;
use rankdeck_types::plan::{PlannedHost, PlannedRank, rank_environment, user_environment};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

/// What every rank of one launch has in common on this host.
#[derive(Debug, Clone)]
pub struct Site {
    /// Names of the run's files.
    pub paths: RunPaths,
    /// Working folder of the ranks.
    pub workdir: PathBuf,
    /// Event socket.
    pub events: PathBuf,
    /// `RANKDECK_AGENT` of this agent.
    pub agent: String,
    /// Where libtorch is, when the ranks need it on their library path.
    pub libtorch: Option<PathBuf>,
    /// The built-in trainer on this host, when there is one.
    pub trainer: Option<PathBuf>,
    /// The file mode mask that the agent itself was started with.
    pub umask: u32,
    /// The folder of the hook for Python ranks, where it is wanted.
    pub hook: Option<PathBuf>,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Its whole environment.
    pub env: BTreeMap<OsString, OsString>,
    /// Its working folder.
    pub workdir: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// Its file mode mask.
    pub umask: u32,
}

/// The order for one rank, or why there is none. `inherited` is the agent's own environment.
pub fn order(
    site: &Site,
    spec: &LaunchSpec,
    host: &PlannedHost,
    rank: &PlannedRank,
    inherited: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Order, String> {
    Ok(Order {
        argv: argv(site, spec, host)?,
        env: environment(site, spec, host, rank, inherited),
        workdir: site.workdir.clone(),
        log: site.paths.rank_log(spec.generation, rank.rank),
        umask: site.umask,
    })
}

fn argv(site: &Site, spec: &LaunchSpec, host: &PlannedHost) -> Result<Vec<OsString>, String> {
    let mut argv: Vec<OsString> = if spec.plan.is_builtin() {
        let trainer = site.trainer.as_ref().ok_or_else(|| {
            format!(
                "no rankdeck-trainer on host {}; put it beside the rankdeck executable there",
                host.host.name
            )
        })?;
        vec![trainer.into(), "--config".into(), site.paths.experiment(spec.generation).into()]
    } else {
        spec.plan.experiment.launch.command.iter().map(OsString::from).collect()
    };
    if let Some(prelude) = &host.host.prelude {
        let script = format!("{prelude}\nexec \"$0\" \"$@\"");
        argv.splice(0..0, ["/bin/sh".into(), "-c".into(), script.into()]);
    }
    Ok(argv)
}

fn environment(
    site: &Site,
    spec: &LaunchSpec,
    host: &PlannedHost,
    rank: &PlannedRank,
    inherited: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let foreign = |name: &OsString| !name.to_string_lossy().starts_with("RANKDECK_");
    let mut env: BTreeMap<OsString, OsString> = inherited.filter(|(name, _)| foreign(name)).collect();
    let computed = rank_environment(&spec.plan, rank, spec.generation, &spec.master_addr, spec.master_port);
    // Slurm names the job's GPUs in this variable; indices of the plan count among those.
    let slurm = env.contains_key(&OsString::from("SLURM_STEP_ID"));
    let given = env.get(&OsString::from("CUDA_VISIBLE_DEVICES")).filter(|_| slurm).cloned();
    env.extend(computed.iter().map(|(name, value)| (name.into(), value.into())));
    if let (Some(given), Some(planned)) = (given, computed.get("CUDA_VISIBLE_DEVICES")) {
        env.insert("CUDA_VISIBLE_DEVICES".into(), among(planned, &given.to_string_lossy()).into());
    }
    let given = user_environment(&spec.plan, host);
    env.extend(given.into_iter().map(|(name, value)| (name.into(), value.into())));
    if let Some(libtorch) = &site.libtorch {
        let mut path = libtorch.join("lib").into_os_string();
        if let Some(rest) = env.get(&OsString::from("LD_LIBRARY_PATH")).filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        env.insert("LD_LIBRARY_PATH".into(), path);
    }
    if let Some(hook) = &site.hook {
        let mut path = hook.clone().into_os_string();
        if let Some(rest) = env.get(&OsString::from("PYTHONPATH")).filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        env.insert("PYTHONPATH".into(), path);
        for (name, value) in hook::recorder_environment(&site.paths.generation_dir(spec.generation)) {
            env.entry(name.into()).or_insert(value.into());
        }
    }
    let mut own = |name: &str, value: OsString| env.insert(name.into(), value);
    own("RANKDECK_AGENT", site.agent.clone().into());
    own("RANKDECK_RANK", rank.rank.to_string().into());
    own("RANKDECK_RUN_DIR", site.paths.run_dir.clone().into());
    own("RANKDECK_STATUS_PAGE", site.paths.page(spec.generation, rank.rank).into());
    own("RANKDECK_EVENTS", site.events.clone().into());
    if let Some(resume) = &spec.resume {
        own("RANKDECK_RESUME", resume.into());
    }
    env
}

/// Indices of a plan as names out of a list of visible devices: `0,2` of `4,5,6` is `4,6`.
fn among(planned: &str, given: &str) -> String {
    let given: Vec<&str> = given.split(',').map(str::trim).collect();
    let name = |index: &str| index.parse::<usize>().ok().and_then(|index| given.get(index).copied());
    planned.split(',').map(|index| name(index).unwrap_or(index)).collect::<Vec<_>>().join(",")
}

/// A process that was started, or why it was not.
pub type Started = Result<Ident, String>;

/// The thread's other end. Dropping it ends the thread, and with it every rank.
#[derive(Debug, Clone)]
pub struct Spawner {
    orders: mpsc::Sender<(Rank, Order)>,
}

impl Spawner {
    /// Starts the thread; `done` is called on it for every order, in order.
    pub fn start(
        cgroup: Option<Cgroup>,
        done: impl Fn(Rank, Started) + Send + 'static,
    ) -> std::io::Result<Spawner> {
        let (orders, inbox) = mpsc::channel::<(Rank, Order)>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (rank, order) in inbox {
                done(rank, start(&order, cgroup.as_ref()));
            }
        })?;
        Ok(Spawner { orders })
    }

    /// Starts a rank soon.
    pub fn spawn(&self, rank: Rank, order: Order) {
        let _ = self.orders.send((rank, order));
    }
}

fn start(order: &Order, cgroup: Option<&Cgroup>) -> Started {
    let program = order.argv.first().ok_or("the command is empty")?;
    let shown = Path::new(program).display();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&order.log)
        .map_err(|error| format!("cannot open {}: {error}", order.log.display()))?;
    let other = log.try_clone().map_err(|error| format!("cannot duplicate a descriptor: {error}"))?;
    if !order.workdir.is_dir() {
        return Err(format!("{} is no folder; check `workdir` in hosts.toml", order.workdir.display()));
    }
    let mut command = Command::new(program);
    command
        .args(&order.argv[1..])
        .env_clear()
        .envs(&order.env)
        .current_dir(&order.workdir)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(other);
    let door = cgroup.and_then(|cgroup| cgroup.door().ok());
    groups::bind_to_this_thread(&mut command, order.umask, door);
    let child = groups::spawn(&mut command).map_err(|error| format!("cannot run {shown}: {error}"))?;
    // Not waited for here: the agent's loop reaps every child.
    let pid = child.id();
    Ok(Ident { pid, start: proc::stat(pid).map_or(0, |stat| stat.start) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::Host;
    use rankdeck_types::ids::{Generation, LocalRank, NodeRank, RunId};
    use rankdeck_types::plan::Plan;

    fn site() -> Site {
        Site {
            paths: RunPaths { run_dir: "/w/runs/t".into(), node: NodeRank(1) },
            workdir: "/w".into(),
            events: "/s/x.ev".into(),
            agent: "7-8".into(),
            libtorch: Some("/lt".into()),
            trainer: Some("/bin/rankdeck-trainer".into()),
            umask: 0o022,
            hook: Some("/w/py".into()),
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
                backend: "gloo".into(),
                sizes: vec![],
            },
        }
    }

    const RANK: PlannedRank =
        PlannedRank { rank: Rank(3), local_rank: LocalRank(1), node_rank: NodeRank(1), gpu: Some(1) };

    fn env(host: &PlannedHost) -> BTreeMap<String, String> {
        let inherited =
            [("HOME", "/h"), ("RANKDECK_RUN", "other"), ("LD_LIBRARY_PATH", "/x"), ("PATH", "/bin")];
        let inherited = inherited.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let order = order(&site(), &spec("[\"true\"]"), host, &RANK, inherited).unwrap();
        order.env.into_iter().map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap())).collect()
    }

    #[test]
    fn identity_always_wins() {
        let env = env(&host(&[
            ("RANKDECK_RUN", "x"),
            ("RANK", "99"),
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
        assert_ne!(env.get("RANK").map(String::as_str), Some("99"));
    }

    #[test]
    fn indices_of_the_plan_count_among_slurms_devices() {
        assert_eq!(among("0,2", "4,5,6"), "4,6");
        assert_eq!(among("0", "GPU-8932f937"), "GPU-8932f937");
        assert_eq!(among("3", "4,5"), "3", "a plan that does not fit is the driver's to refuse");
    }

    #[test]
    fn a_prelude_ends_in_the_program_itself() {
        let mut host = host(&[]);
        host.host.prelude = Some("A='b c'; export A".into());
        let argv = argv(&site(), &spec("[\"python\", \"a b.py\"]"), &host).unwrap();
        assert_eq!(argv[..2], ["/bin/sh", "-c"]);
        assert_eq!(argv[2], "A='b c'; export A\nexec \"$0\" \"$@\"");
        assert_eq!(argv[3..], ["python", "a b.py"]);
    }

    #[test]
    fn the_built_in_trainer_gets_the_resolved_experiment() {
        let built_in = argv(&site(), &spec("[]"), &host(&[])).unwrap();
        assert_eq!(built_in, ["/bin/rankdeck-trainer", "--config", "/w/runs/t/node1/gen2/experiment.toml"]);
        let without = Site { trainer: None, ..site() };
        assert!(argv(&without, &spec("[]"), &host(&[])).unwrap_err().contains("host b"));
    }
}
