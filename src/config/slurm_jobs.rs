//! Reads running Slurm jobs from outside their allocations: `squeue` lists those that rankdeck submitted,
//! `scontrol show job` has a job's nodes, tasks, GPUs and directory.

use super::slurm::{self, SlurmError, SlurmNode};
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
        return Err(slurm::heterogeneous(job));
    }
    let text = ask("scontrol", &["show", "job", "--oneliner", job])?;
    let parts: Vec<BTreeMap<&str, String>> =
        text.lines().map(fields).filter(|part| !part.is_empty()).collect();
    let value = |part: &BTreeMap<&str, String>, name: &str| {
        part.get(name).filter(|value| !["", "(null)", "N/A"].contains(&value.as_str())).cloned()
    };
    if parts.iter().any(|part| value(part, "HetJobId").is_some()) {
        return Err(slurm::heterogeneous(job));
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
    let names = slurm::expand(&list).map_err(|why| {
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

    /// A line of Slurm 22.05.
    const JOB: &str = "JobId=7 JobName=two words UserId=a(1) GroupId=a(1) Priority=1 QOS=normal JobState=RUNNING \
        Reason=None Dependency=(null) Partition=main AllocNode:Sid=login:1 ReqNodeList=(null) ExcNodeList=(null) \
        NodeList=n[0-1] BatchHost=n0 NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* \
        TRES=cpu=4,node=2,billing=4,gres/gpu=4 Socks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=* \
        Command=/w/my job.sh WorkDir=/w/my runs Comment=rankdeck StdErr=/w/a.out Power= TresPerNode=gres:gpu:2 ";

    fn found(job: &str, answer: &str) -> Result<Vec<SlurmNode>, SlurmError> {
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
        assert_eq!(found("7", JOB).unwrap(), [node("n0"), node("n1")]);
        let plain = JOB.replace("NumTasks=4", "NumTasks=2").replace("=2:0:*:*", "=0:0:*:*");
        let plain = plain.replace("TresPerNode=gres:gpu:2", "");
        assert_eq!(found("7", &plain).unwrap()[1], SlurmNode { tasks: None, ..node("n1") }, "nodes only");
        let array = JOB.replace("JobId=7", "JobId=9 ArrayJobId=7 ArrayTaskId=1");
        assert_eq!(found("7_1", &array).unwrap()[0].job.as_deref(), Some("9"));
    }

    #[test]
    fn job_without_nodes_is_refused_by_its_state() {
        let refusal = |job: &str, answer: &str| found(job, answer).unwrap_err().0;
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
        let (why, hint) = found("7", &tasks).unwrap_err();
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
