//! Reads hosts from Slurm jobs. In an allocation, nodes, tasks and GPUs come from the variables that Slurm sets
//! (`man srun`, OUTPUT ENVIRONMENT VARIABLES; node lists as in `man scontrol`, show hostnames); from outside,
//! from Slurm's commands ([`slurm_jobs`]).
//!
//! `[defaults]` of the hosts file still applies to the rest: working directory, environment, prelude,
//! libtorch, interface.

use super::diagnostic::{Diagnostic, Diagnostics, SourceText};
use super::document::{self, Node};
use super::slurm_jobs::{self, Ask, OwnJob};
use rankdeck_types::host::{GpuSelection, Host, HostTable, Transport};
use std::path::Path;
use std::sync::Arc;

/// The option for the hosts of a job.
pub(super) const OPTION: &str = "--slurm";

/// Most nodes of a list: far above any cluster, far below what could exhaust memory.
const MOST: usize = 65_536;

/// Environment lookup; empty values count as absent.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An error, and a hint.
pub(crate) type SlurmError = (String, String);

/// Which Slurm jobs the hosts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlurmJobs {
    /// The allocation of this process.
    Current,
    /// The job with this id.
    Job(String),
    /// All running jobs of this user that rankdeck submitted.
    Own,
}

impl SlurmJobs {
    /// Returns the option that selects them.
    pub fn option(&self) -> String {
        match self {
            SlurmJobs::Job(job) => format!("{OPTION}={job}"),
            SlurmJobs::Current | SlurmJobs::Own => OPTION.to_owned(),
        }
    }
}

/// One node of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmNode {
    /// Its name in Slurm.
    pub name: String,
    /// Tasks on it, if the job requested tasks.
    pub tasks: Option<u32>,
    /// GPUs of the job on it.
    pub gpus: u32,
    /// The job.
    pub job: Option<String>,
    /// The directory that the job was submitted from, if it is not that of this process.
    pub folder: Option<String>,
}

/// Whether this process is in an allocation.
pub fn is_in_allocation(env: &dyn Fn(&str) -> Option<String>) -> bool {
    ["SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_HET_SIZE", "SLURM_PACK_SIZE"]
        .iter()
        .any(|name| env(name).is_some_and(|value| !value.trim().is_empty()))
}

/// Rejects a heterogeneous job: each of its components has nodes and limits of its own.
pub(super) fn heterogeneous(job: &str) -> SlurmError {
    (
        format!("Slurm job {job} is heterogeneous; rankdeck supports only jobs with one component"),
        "request all nodes at once, without `:` or `#SBATCH hetjob`".to_owned(),
    )
}

/// Returns the nodes of the current allocation, in Slurm's order.
///
/// # Errors
/// Outside an allocation, or for a malformed variable: message and hint.
pub fn allocation(env: Lookup) -> Result<Vec<SlurmNode>, (String, String)> {
    let get = |name: &str| env(name).filter(|value| !value.trim().is_empty());
    let job = get("SLURM_JOB_ID").or_else(|| get("SLURM_JOBID"));
    if get("SLURM_HET_SIZE").or_else(|| get("SLURM_PACK_SIZE")).is_some() {
        return Err(heterogeneous(job.as_deref().unwrap_or("of this allocation")));
    }
    let list = get("SLURM_JOB_NODELIST").or_else(|| get("SLURM_NODELIST")).ok_or_else(|| {
        (
            "not in a Slurm allocation: SLURM_JOB_NODELIST is not set".to_owned(),
            "run it under `salloc`, submit a job with `rankdeck sbatch EXPERIMENT.toml`, or name a running job: \
             `--slurm=JOB`"
                .to_owned(),
        )
    })?;
    let broken = |name: &str, why: String| {
        (
            format!("cannot read {name}: {why}"),
            "Slurm sets this variable; unset it if something else did".to_owned(),
        )
    };
    let names = expand(&list).map_err(|why| broken("SLURM_JOB_NODELIST", why))?;
    let has_tasks =
        ["SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"].iter().any(|name| get(name).is_some());
    let tasks = match get("SLURM_TASKS_PER_NODE").filter(|_| has_tasks) {
        Some(text) => Some(counts(&text).map_err(|why| broken("SLURM_TASKS_PER_NODE", why))?),
        None => None,
    };
    let per_node = get("SLURM_GPUS_PER_NODE").or_else(|| get("SLURM_GPUS_ON_NODE")).map(|text| amount(&text));
    let per_task = get("SLURM_GPUS_PER_TASK").map(|text| amount(&text));
    let listed = get("SLURM_JOB_GPUS").map(|text| Some(text.split(',').count() as u32));
    let gpus = |tasks: Option<u32>| {
        let by_task = || per_task.map(|each| each.map(|each| each.saturating_mul(tasks.unwrap_or(1))));
        per_node.or_else(by_task).or(listed).unwrap_or(Some(0))
    };
    names
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            let tasks = tasks.as_ref().and_then(|counts| counts.get(i)).copied();
            let gpus = gpus(tasks).ok_or_else(|| broken("SLURM_GPUS_PER_NODE", "no count found".into()))?;
            Ok(SlurmNode { name, tasks, gpus, job: job.clone(), folder: None })
        })
        .collect()
}

/// Parses `2`, `a100:2` or `a100:1,h200:3` into a count.
fn amount(text: &str) -> Option<u32> {
    text.split(',').try_fold(0_u32, |sum, part| {
        let count = part.rsplit(':').next()?.trim().parse::<u32>().ok()?;
        sum.checked_add(count)
    })
}

/// Expands `2(x3),1` to `2 2 2 1`.
fn counts(text: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, rest)) => {
                (count, rest.strip_suffix(')').and_then(|times| times.parse::<usize>().ok()))
            }
            None => (part.trim(), Some(1)),
        };
        let (Ok(count), Some(times)) = (count.parse::<u32>(), times) else {
            return Err(format!("invalid count `{part}`"));
        };
        if all.len().saturating_add(times) > MOST {
            return Err(format!("more than {MOST} nodes"));
        }
        all.extend(std::iter::repeat_n(count, times));
    }
    Ok(all)
}

/// Expands `gpu[03-05,9]-ib,login` to `gpu03-ib gpu04-ib gpu05-ib gpu9-ib login`. Ranges keep leading zeros;
/// several brackets multiply.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in parts(list)? {
        let mut found = vec![String::new()];
        let mut rest = part;
        while let Some(open) = rest.find('[') {
            let (plain, behind) = rest.split_at(open);
            let close = behind.find(']').ok_or_else(|| format!("missing `]` in `{part}`"))?;
            let ends = range_ends(&behind[1..close], MOST)?;
            if found.len().saturating_mul(ends.len()) > MOST {
                return Err(format!("more than {MOST} nodes"));
            }
            found = found
                .iter()
                .flat_map(|head| ends.iter().map(move |end| format!("{head}{plain}{end}")))
                .collect();
            rest = &behind[close + 1..];
        }
        if rest.contains(']') || part.is_empty() {
            return Err(format!("invalid node list `{list}`"));
        }
        names.extend(found.into_iter().map(|head| head + rest));
        if names.len() > MOST {
            return Err(format!("more than {MOST} nodes"));
        }
    }
    Ok(names)
}

/// Splits at the commas outside brackets.
fn parts(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' if depth > 0 => return Err(format!("nested `[` in `{list}`")),
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    Ok(parts)
}

/// Expands `03-05,9` to `03 04 05 9`.
fn range_ends(text: &str, most: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) && text.len() <= 18 {
            true => text.parse::<u64>().map_err(|_| format!("invalid range `{part}`")),
            false => Err(format!("invalid range `{part}`")),
        };
        let (low, high) = (number(first)?, number(last)?);
        if low > high || high - low >= most as u64 || all.len() + (high - low) as usize >= most {
            return Err(format!("invalid range `{part}`"));
        }
        all.extend((low..=high).map(|n| format!("{n:0width$}", width = first.len())));
    }
    Ok(all)
}

/// Returns the nodes of `jobs`.
fn nodes(jobs: &SlurmJobs, env: Lookup, ask: Ask) -> Result<Vec<SlurmNode>, SlurmError> {
    match jobs {
        SlurmJobs::Job(job) => slurm_jobs::nodes_of(job, ask),
        SlurmJobs::Own => {
            let own = slurm_jobs::own(ask)?;
            let running: Vec<String> =
                own.iter().filter(|job| job.is_running()).map(|job| job.id.clone()).collect();
            match (running.is_empty(), own.first()) {
                (false, _) => slurm_jobs::nodes_of_all(&running, ask),
                (true, Some(job)) => Err(not_started(job, own.len())),
                (true, None) => Err((
                    "no running Slurm job of rankdeck".to_owned(),
                    "submit one with `rankdeck sbatch EXPERIMENT.toml`, or name a job of yours: `--slurm=JOB`"
                        .to_owned(),
                )),
            }
        }
        SlurmJobs::Current => {
            let nodes = allocation(env)?;
            // In a step, the variables may describe the nodes of the step only.
            let job =
                nodes.first().and_then(|node| node.job.clone()).filter(|_| env("SLURM_STEP_ID").is_some());
            let all = job.and_then(|job| slurm_jobs::nodes_of(&job, ask).ok());
            Ok(all.filter(|all| all.len() > nodes.len()).unwrap_or(nodes))
        }
    }
}

/// Rejects jobs without nodes.
fn not_started(job: &OwnJob, count: usize) -> SlurmError {
    let OwnJob { id, name, state, reason, .. } = job;
    let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let more = if count > 1 { format!("; {count} jobs wait") } else { String::new() };
    (
        format!("Slurm job {id} ({name}) is {state}{reason}{more}"),
        format!("`squeue --me --start` shows when it may start; `scancel {id}` cancels it"),
    )
}

/// Reads the hosts of Slurm jobs, with `[defaults]` of the hosts file if it exists.
pub(super) fn read(
    defaults_path: &Path,
    jobs: &SlurmJobs,
    env: Lookup,
    ask: Ask,
) -> Result<(Vec<Host>, Node), Diagnostics> {
    let failed = |(error, hint): SlurmError| {
        Diagnostics::from(Diagnostic::about_file(jobs.option(), error).hint(hint))
    };
    let nodes = nodes(jobs, env, ask).map_err(failed)?;
    let (defaults, root) = match defaults_path.exists() {
        true => super::hosts::read_defaults(defaults_path)?,
        false => {
            let source = SourceText::new(OPTION, "");
            (HostTable::default(), document::parse(&Arc::new(source))?)
        }
    };
    let hosts = nodes.into_iter().map(|node| host(&defaults, node)).collect();
    Ok((hosts, root))
}

fn host(defaults: &HostTable, node: SlurmNode) -> Host {
    Host {
        address: node.name.clone(),
        name: node.name,
        gpus: (node.gpus > 0).then_some(GpuSelection::Count(node.gpus)),
        nproc: node.tasks.or(defaults.nproc),
        workdir: workdir(defaults.workdir.as_deref().unwrap_or("."), node.folder.as_deref()),
        env: defaults.env.clone().unwrap_or_default(),
        setup: HostTable::default().setup(defaults),
        libtorch: defaults.libtorch.clone(),
        interface: defaults.interface.clone(),
        transport: Transport::Slurm,
        port: None,
        user: None,
        identity_file: None,
        proxy_jump: None,
        peer_address: None,
        slurm_job: node.job,
    }
}

/// Returns the working directory on a node. A relative one begins where the job was submitted.
fn workdir(given: &str, folder: Option<&str>) -> String {
    match folder {
        Some(folder) if given == "." => folder.to_owned(),
        Some(folder) if !given.starts_with(['/', '~']) => {
            format!("{}/{given}", folder.trim_end_matches('/'))
        }
        _ => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn node_list_expands_as_in_scontrol() {
        for (list, names) in [
            ("node0", "node0"),
            ("node[0-3]", "node0 node1 node2 node3"),
            ("gpu[03-05,9],login", "gpu03 gpu04 gpu05 gpu9 login"),
            ("a[1-2]b[08-09]-ib", "a1b08-ib a1b09-ib a2b08-ib a2b09-ib"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("x1,x[3,5]", "x1 x3 x5"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        for bad in [
            "",
            ",",
            "a[",
            "a]",
            "a[1-",
            "a[2-1]",
            "a[x]",
            "a[1[2]]",
            "a[0-99999999]",
            "a[0-999][0-999]",
            "a[-]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    type Nodes = Vec<(String, Option<u32>, u32)>;

    fn found(pairs: &[(&str, &str)]) -> Result<Nodes, (String, String)> {
        let map: HashMap<&str, &str> = pairs.iter().copied().collect();
        let nodes = allocation(&|name| map.get(name).map(|value| value.to_string()))?;
        Ok(nodes.into_iter().map(|node| (node.name, node.tasks, node.gpus)).collect())
    }

    fn lookup<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn heterogeneous_allocation_is_named() {
        // salloc sets no node list of the whole job.
        let env = [("SLURM_JOB_ID", "7"), ("SLURM_HET_SIZE", "2"), ("SLURM_JOB_NODELIST_HET_GROUP_0", "n0")];
        assert!(is_in_allocation(&lookup(&env)));
        assert!(found(&env).unwrap_err().0.contains("Slurm job 7 is heterogeneous"));
        assert!(!is_in_allocation(&lookup(&[("SLURM_JOB_ID", "7")])));
    }

    #[test]
    fn nodes_outside_an_allocation_come_from_the_job() {
        let env = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n1"), ("SLURM_STEP_ID", "3")];
        let job = "JobId=7 JobState=RUNNING NodeList=n[0-2] NumTasks=3 WorkDir=/w";
        let ask = |program: &str, _: &[&str]| match program {
            "squeue" => Ok("6|PENDING|1|Priority|rankdeck|x\n7|RUNNING|3|None|rankdeck|x\n".to_owned()),
            _ => Ok(job.to_owned()),
        };
        let names = |jobs: SlurmJobs, env: &[(&str, &str)], ask: Ask| {
            let nodes = nodes(&jobs, &lookup(env), ask)?;
            Ok::<_, SlurmError>(nodes.into_iter().map(|node| node.name).collect::<Vec<_>>())
        };
        let all = ["n0", "n1", "n2"].map(str::to_owned);
        assert_eq!(names(SlurmJobs::Job("7".into()), &[], &ask).unwrap(), all);
        assert_eq!(names(SlurmJobs::Own, &[], &ask).unwrap(), all);
        assert_eq!(names(SlurmJobs::Current, &env, &ask).unwrap(), all, "a step of one node");
        let silent = |_: &str, _: &[&str]| Err(("no controller".to_owned(), String::new()));
        assert_eq!(names(SlurmJobs::Current, &env, &silent).unwrap(), ["n1"]);
        let none = names(SlurmJobs::Own, &[], &|_, _| Ok(String::new())).unwrap_err();
        assert!(none.1.contains("--slurm=JOB"), "{none:?}");
        let waits = |_: &str, _: &[&str]| Ok("6|PENDING|1|Resources|rankdeck|ppo\n".to_owned());
        let waiting = names(SlurmJobs::Own, &[], &waits).unwrap_err();
        assert_eq!(waiting.0, "Slurm job 6 (ppo) is pending (Resources)");
        assert!(waiting.1.contains("scancel 6"), "{waiting:?}");
    }

    #[test]
    fn relative_workdir_begins_where_the_job_was_submitted() {
        for (given, folder, expected) in [
            (".", None, "."),
            (".", Some("/w"), "/w"),
            ("runs of/x", Some("/w/"), "/w/runs of/x"),
            ("/scratch", Some("/w"), "/scratch"),
            ("~/x", Some("/w"), "~/x"),
        ] {
            assert_eq!(workdir(given, folder), expected, "{given}");
        }
    }

    #[test]
    fn tasks_and_gpus_follow_the_job_request() {
        let list = ("SLURM_JOB_NODELIST", "n[0-1]");
        let node = |name: &str, tasks, gpus| (name.to_owned(), tasks, gpus);
        // Nodes only: Slurm sets 1(x2) although no tasks were requested.
        assert_eq!(found(&[list, ("SLURM_TASKS_PER_NODE", "1(x2)")]).unwrap()[1], node("n1", None, 0));
        let tasks = [list, ("SLURM_NTASKS", "3"), ("SLURM_TASKS_PER_NODE", "2,1")];
        assert_eq!(found(&tasks).unwrap(), [node("n0", Some(2), 0), node("n1", Some(1), 0)]);
        let with = |more: &[(&'static str, &'static str)]| found(&[&tasks[..], more].concat()).unwrap();
        assert_eq!(with(&[("SLURM_GPUS_PER_NODE", "fake:4")])[1], node("n1", Some(1), 4));
        assert_eq!(with(&[("SLURM_GPUS_PER_TASK", "2")])[0], node("n0", Some(2), 4));
        assert_eq!(with(&[("SLURM_GPUS_PER_NODE", "a:1,b:2")])[0].2, 3);
        assert_eq!(with(&[("SLURM_JOB_GPUS", "0,1")])[0].2, 2);
        let nodes = [list, ("SLURM_GPUS_ON_NODE", "8")];
        assert_eq!(found(&nodes).unwrap()[0], node("n0", None, 8), "one rank per GPU");
        assert!(found(&[]).unwrap_err().0.contains("SLURM_JOB_NODELIST"));
        for (name, value) in [("SLURM_TASKS_PER_NODE", "2(y2)"), ("SLURM_GPUS_PER_NODE", "many")] {
            assert!(found(&[list, ("SLURM_NTASKS", "2"), (name, value)]).is_err(), "{name}");
        }
    }
}
