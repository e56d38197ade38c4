//! Reads hosts from Slurm jobs. In an allocation, nodes, tasks and GPUs come from the variables that Slurm sets
//! (`man srun`, OUTPUT ENVIRONMENT VARIABLES; node lists as in `man scontrol`, show hostnames); from outside,
//! from Slurm's commands: `squeue` lists the jobs that rankdeck submitted, `scontrol show job` has a job's nodes,
//! tasks, GPUs and directory.
//!
//! `[defaults]` of the hosts file still applies to the rest: working directory, environment, prelude,
//! libtorch, interface.

use super::diagnostic::{Diagnostic, Diagnostics, SourceText};
use super::document::{self, Node};
use rankdeck_types::host::{GpuSelection, Host, HostTable, Transport};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

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
        SlurmJobs::Job(job) => nodes_of(job, ask),
        SlurmJobs::Own => {
            let own = own(ask)?;
            let running: Vec<String> =
                own.iter().filter(|job| job.is_running()).map(|job| job.id.clone()).collect();
            match (running.is_empty(), own.first()) {
                (false, _) => nodes_of_all(&running, ask),
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
            let all = job.and_then(|job| nodes_of(&job, ask).ok());
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

/// The comment of jobs that `rankdeck sbatch` submits, by which other commands find them.
pub const COMMENT: &str = "rankdeck";

/// Timeout of a command; a busy controller is slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same if Slurm was not requested.
const GLANCE: Duration = Duration::from_secs(5);
/// Most bytes of its output.
const OUTPUT: u64 = 4 << 20;
/// Most jobs that are read.
const JOBS: usize = 64;

/// Runs a Slurm command, and returns its output.
pub(super) type Ask<'a> = &'a dyn Fn(&str, &[&str]) -> Result<String, SlurmError>;

/// A job of this user that rankdeck submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnJob {
    pub id: String,
    /// Its name: that of the experiment, unless an option of sbatch changed it.
    pub name: String,
    /// Slurm's name of its state, in lower case: `running`, `pending`, ...
    pub state: String,
    /// Why it waits; empty if it does not.
    pub reason: String,
    /// Nodes that it has or requests.
    pub nodes: u32,
}

impl OwnJob {
    /// Whether it has nodes to look for runs on.
    pub fn is_running(&self) -> bool {
        self.state == "running"
    }
}

/// Returns this user's running and waiting jobs that rankdeck submitted; `None` if Slurm is not here or does not
/// answer soon.
pub fn own_jobs() -> Option<Vec<OwnJob>> {
    own(&|program, args| run_within(program, args, GLANCE)).ok()
}

/// Returns this user's running and waiting jobs that rankdeck submitted.
pub(super) fn own(ask: Ask) -> Result<Vec<OwnJob>, SlurmError> {
    const STATES: &str = "--states=running,pending,configuring,suspended";
    let list = ask("squeue", &["--me", STATES, "--noheader", "--format=%i|%T|%D|%r|%k|%j"])?;
    let job = |line: &str| {
        let mut cells = line.trim().splitn(6, '|');
        let mut cell = || cells.next().map(str::to_owned);
        let (id, state, nodes, reason, comment, name) =
            (cell()?, cell()?, cell()?, cell()?, cell()?, cell()?);
        let reason = if reason == "None" { String::new() } else { reason };
        let job = OwnJob { id, name, state: state.to_lowercase(), reason, nodes: nodes.parse().unwrap_or(0) };
        (comment.trim() == COMMENT).then_some(job)
    };
    Ok(list.lines().filter_map(job).take(JOBS).collect())
}

/// Returns the nodes of a running job.
pub(super) fn nodes_of(job: &str, ask: Ask) -> Result<Vec<SlurmNode>, SlurmError> {
    let is_id = job.starts_with(|c: char| c.is_ascii_digit())
        && job.chars().all(|c| c.is_ascii_digit() || "_+".contains(c));
    if !is_id {
        return Err((
            format!("invalid Slurm job `{job}`"),
            "pass a job id: `--slurm=1234`, or `--slurm=1234_5`".into(),
        ));
    }
    if job.contains('+') {
        return Err(heterogeneous(job));
    }
    let text = ask("scontrol", &["show", "job", "--oneliner", job])?;
    let parts: Vec<BTreeMap<&str, String>> =
        text.lines().map(fields).filter(|part| !part.is_empty()).collect();
    let value = |part: &BTreeMap<&str, String>, name: &str| {
        part.get(name).filter(|value| !["", "(null)", "N/A"].contains(&value.as_str())).cloned()
    };
    if parts.iter().any(|part| value(part, "HetJobId").is_some()) {
        return Err(heterogeneous(job));
    }
    let runs = |part: &&BTreeMap<&str, String>| part.get("JobState").is_some_and(|state| state == "RUNNING");
    let running: Vec<_> = parts.iter().filter(runs).collect();
    let part = match (running.as_slice(), parts.first()) {
        ([part], _) => *part,
        ([], Some(part)) => {
            let state = value(part, "JobState").unwrap_or_else(|| "in an unknown state".into());
            let reason = value(part, "Reason").filter(|reason| reason != "None");
            let state = reason.map_or(state.clone(), |reason| format!("{state} ({reason})"));
            return Err((
                format!("Slurm job {job} is not running: {state}"),
                "list your jobs with `squeue --me`".into(),
            ));
        }
        ([], None) => {
            return Err((format!("Slurm job {job} not found"), "list your jobs with `squeue --me`".into()));
        }
        ([first, ..], _) => {
            let task = value(first, "ArrayTaskId").unwrap_or_else(|| "1".into());
            return Err((
                format!("Slurm job {job} is an array with {} running tasks", running.len()),
                format!("name one: `--slurm={job}_{task}`"),
            ));
        }
    };
    let list = value(part, "NodeList").ok_or_else(|| {
        (format!("Slurm job {job} has no nodes"), "list your jobs with `squeue --me`".to_owned())
    })?;
    let names = expand(&list).map_err(|why| {
        (
            format!("cannot read the nodes of Slurm job {job}: {why}"),
            format!("check `scontrol show job {job}`"),
        )
    })?;
    let nodes = names.len() as u32;
    let total = value(part, "NumTasks").and_then(|text| text.parse::<u32>().ok());
    let per_node =
        value(part, "NtasksPerN:B:S:C").and_then(|text| text.split(':').next()?.parse::<u32>().ok());
    // Without a request, Slurm counts one task per node.
    let tasks = per_node
        .filter(|tasks| *tasks > 0)
        .or_else(|| total.filter(|total| *total > nodes && total % nodes == 0).map(|total| total / nodes));
    let all = || {
        value(part, "TRES").or_else(|| value(part, "AllocTRES")).map_or(0, |text| gpus(&text)) / nodes.max(1)
    };
    let gpus =
        value(part, "TresPerNode").map(|text| gpus(&text)).filter(|gpus| *gpus > 0).unwrap_or_else(all);
    let id = value(part, "JobId").unwrap_or_else(|| job.to_owned());
    let folder = value(part, "WorkDir");
    let node = |name| SlurmNode { name, tasks, gpus, job: Some(id.clone()), folder: folder.clone() };
    Ok(names.into_iter().map(node).collect())
}

/// Returns the nodes of all `jobs`. A node that several of them share is listed once.
pub(super) fn nodes_of_all(jobs: &[String], ask: Ask) -> Result<Vec<SlurmNode>, SlurmError> {
    let mut nodes: Vec<SlurmNode> = Vec::new();
    let mut ended = None;
    for job in jobs {
        match nodes_of(job, ask) {
            Ok(found) => {
                for node in found {
                    if nodes.iter().all(|known| known.name != node.name) {
                        nodes.push(node);
                    }
                }
            }
            // A job may end between the two commands.
            Err(why) => ended = Some(why),
        }
    }
    match ended {
        Some(why) if nodes.is_empty() => Err(why),
        _ => Ok(nodes),
    }
}

/// Splits a line of `scontrol` into names and values, which may contain spaces.
fn fields(line: &str) -> BTreeMap<&str, String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:/".contains(c))
    };
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    let mut open: Option<&str> = None;
    for word in line.split(' ') {
        match (word.split_once('=').filter(|(name, _)| is_name(name)), open) {
            (Some((name, value)), _) => {
                // The first one is Slurm's; a later one may stand in the name of a job.
                open = (!fields.contains_key(name)).then_some(name);
                fields.entry(name).or_insert_with(|| value.to_owned());
            }
            (None, Some(name)) => {
                if let Some(value) = fields.get_mut(name) {
                    value.push(' ');
                    value.push_str(word);
                }
            }
            (None, None) => {}
        }
    }
    for value in fields.values_mut() {
        value.truncate(value.trim_end().len());
    }
    fields
}

/// Counts the GPUs of `gres/gpu:a100:2`, `gres:gpu:2` or `cpu=4,gres/gpu=4`.
fn gpus(text: &str) -> u32 {
    let count = |part: &str| {
        let part = part.trim();
        let part = part.strip_prefix("gres/").or_else(|| part.strip_prefix("gres:")).unwrap_or(part);
        let rest = part.strip_prefix("gpu")?;
        match rest.chars().next() {
            None => Some(1),
            Some('=') => rest[1..].parse().ok(),
            Some(':') => rest.rsplit(':').next().map(|count| count.parse().unwrap_or(1)),
            Some(_) => None,
        }
    };
    // `gres/gpu=4,gres/gpu:a100=4` has the same GPUs twice.
    text.split(',')
        .filter(|part| !(part.contains(':') && part.contains('=')))
        .filter_map(count)
        .fold(0, u32::saturating_add)
}

/// Runs a Slurm command. Its last words are the error.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String, SlurmError> {
    run_within(program, args, PATIENCE)
}

fn run_within(program: &str, args: &[&str], patience: Duration) -> Result<String, SlurmError> {
    let hint = || format!("check that Slurm works here: `{program} --version`, `sinfo`");
    let failed = |error: std::io::Error| (format!("cannot run {program}: {error}"), hint());
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (sender, read) = mpsc::channel();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        out.map(|out| Box::new(out) as Box<dyn Read + Send>),
        err.map(|err| Box::new(err) as Box<dyn Read + Send>),
    ];
    for (index, stream) in streams.into_iter().enumerate() {
        let sender = sender.clone();
        let reads = move || {
            let mut bytes = Vec::new();
            if let Some(stream) = stream {
                let _ = stream.take(OUTPUT).read_to_end(&mut bytes);
            }
            let _ = sender.send((index, bytes));
        };
        std::thread::Builder::new().spawn(reads).map_err(failed)?;
    }
    let deadline = Instant::now() + patience;
    let mut texts = [String::new(), String::new()];
    for _ in 0..2 {
        let Ok((index, bytes)) = read.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err((format!("no response from {program} within {} s", patience.as_secs()), hint()));
        };
        texts[index] = String::from_utf8_lossy(&bytes).into_owned();
    }
    // Its streams are closed: it ends.
    let status = child.wait().map_err(failed)?;
    let [out, err] = texts;
    if status.success() {
        return Ok(out);
    }
    let last = err.lines().map(str::trim).rfind(|line| !line.is_empty());
    let words = last.map_or_else(|| format!("exit status {}", status.code().unwrap_or(-1)), str::to_owned);
    // It names itself in some of its errors.
    let words = words.strip_prefix(&format!("{program}: ")).map(str::to_owned).unwrap_or(words);
    Err((format!("{program}: {words}"), hint()))
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

    /// A line of Slurm 22.05.
    const JOB: &str = "JobId=7 JobName=two words UserId=a(1) GroupId=a(1) Priority=1 QOS=normal JobState=RUNNING \
        Reason=None Dependency=(null) Partition=main AllocNode:Sid=login:1 ReqNodeList=(null) ExcNodeList=(null) \
        NodeList=n[0-1] BatchHost=n0 NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* \
        TRES=cpu=4,node=2,billing=4,gres/gpu=4 Socks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=* \
        Command=/w/my job.sh WorkDir=/w/my runs Comment=rankdeck StdErr=/w/a.out Power= TresPerNode=gres:gpu:2 ";

    fn found_job(job: &str, answer: &str) -> Result<Vec<SlurmNode>, SlurmError> {
        nodes_of(job, &|program, args| {
            assert_eq!((program, args.last().copied()), ("scontrol", Some(job)));
            Ok(answer.to_owned())
        })
    }

    #[test]
    fn nodes_of_a_job_are_read_from_scontrol() {
        let node = |name: &str| SlurmNode {
            name: name.into(),
            tasks: Some(2),
            gpus: 2,
            job: Some("7".into()),
            folder: Some("/w/my runs".into()),
        };
        assert_eq!(found_job("7", JOB).unwrap(), [node("n0"), node("n1")]);
        let plain = JOB.replace("NumTasks=4", "NumTasks=2").replace("=2:0:*:*", "=0:0:*:*");
        let plain = plain.replace("TresPerNode=gres:gpu:2", "");
        assert_eq!(found_job("7", &plain).unwrap()[1], SlurmNode { tasks: None, ..node("n1") }, "nodes only");
        let array = JOB.replace("JobId=7", "JobId=9 ArrayJobId=7 ArrayTaskId=1");
        assert_eq!(found_job("7_1", &array).unwrap()[0].job.as_deref(), Some("9"));
    }

    #[test]
    fn job_without_nodes_is_refused_by_its_state() {
        let refusal = |job: &str, answer: &str| found_job(job, answer).unwrap_err().0;
        let pending = JOB.replace("RUNNING", "PENDING").replace("Reason=None", "Reason=Resources");
        assert!(refusal("7", &pending).contains("PENDING (Resources)"));
        assert!(refusal("7", &JOB.replace("RUNNING", "COMPLETED")).contains("COMPLETED"));
        assert!(refusal("7", "").contains("not found"));
        let het = format!(
            "{}\n{}",
            JOB.replace("JobId=7", "JobId=7 HetJobId=7"),
            JOB.replace("JobId=7", "JobId=8 HetJobId=7")
        );
        assert!(refusal("7", &het).contains("heterogeneous"));
        let tasks = format!(
            "{}\n{}",
            JOB.replace("JobId=7", "JobId=8 ArrayTaskId=1"),
            JOB.replace("JobId=7", "JobId=9 ArrayTaskId=2")
        );
        let (why, hint) = found_job("7", &tasks).unwrap_err();
        assert!(why.contains("array") && hint.contains("--slurm=7_1"), "{why} {hint}");
        for bad in ["", "x", "7;ls", "--all", "_1"] {
            assert!(nodes_of(bad, &|_, _| unreachable!()).is_err(), "{bad}");
        }
        assert!(nodes_of("7+1", &|_, _| unreachable!()).unwrap_err().0.contains("heterogeneous"));
    }

    #[test]
    fn own_jobs_are_found_by_their_comment() {
        let list = "7|RUNNING|2|None|rankdeck|ppo\n8|RUNNING|1|None|(null)|x\n\
                    9_[1-3]|PENDING|4|launch failed requeued held|rankdeck|a|b\n\
                    10|PENDING|1|Priority|not rankdeck|y\n11|\n\n";
        let ask = |program: &str, args: &[&str]| {
            assert!(program == "squeue" && args.contains(&"--me"), "{program} {args:?}");
            Ok(list.to_owned())
        };
        let job = |id: &str, state: &str, nodes, reason: &str, name: &str| OwnJob {
            id: id.into(),
            name: name.into(),
            state: state.into(),
            reason: reason.into(),
            nodes,
        };
        let waiting = job("9_[1-3]", "pending", 4, "launch failed requeued held", "a|b");
        assert_eq!(own(&ask).unwrap(), [job("7", "running", 2, "", "ppo"), waiting]);
    }

    #[test]
    fn shared_node_of_two_jobs_is_listed_once() {
        let ask = |_: &str, args: &[&str]| match args.last().copied() {
            Some("7") => Ok(JOB.to_owned()),
            Some("8") => Ok(JOB.replace("JobId=7", "JobId=8").replace("n[0-1]", "n[1-2]")),
            _ => Err(("slurm_load_jobs error: Invalid job id specified".to_owned(), String::new())),
        };
        let jobs = ["7", "8", "9"].map(str::to_owned);
        let nodes = nodes_of_all(&jobs, &ask).unwrap();
        let shown: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.job.as_deref())).collect();
        assert_eq!(shown, [("n0", Some("7")), ("n1", Some("7")), ("n2", Some("8"))]);
        assert!(nodes_of_all(&jobs[2..], &ask).unwrap_err().0.contains("Invalid job id"));
    }

    #[test]
    fn failed_command_is_reported_in_its_own_words() {
        let (why, _) = run(
            "sh",
            &["-c", "echo first >&2; echo 'sh: error: Unable to contact slurm controller' >&2; exit 1"],
        )
        .unwrap_err();
        assert_eq!(why, "sh: error: Unable to contact slurm controller");
        assert!(run("rankdeck-no-such-program", &[]).unwrap_err().0.contains("rankdeck-no-such-program"));
        assert_eq!(run("sh", &["-c", "echo yes"]).unwrap(), "yes\n");
    }

    #[test]
    fn gpus_are_counted_once() {
        for (text, count) in [
            ("gres:gpu:2", 2),
            ("gres/gpu:a100:4", 4),
            ("gres/gpu", 1),
            ("gpu:3", 3),
            ("cpu=4,gres/gpu=4,gres/gpu:a100=4", 4),
            ("cpu=4,node=2", 0),
            ("gres/gpumem=4", 0),
        ] {
            assert_eq!(gpus(text), count, "{text}");
        }
    }
}
