//! Runs in a real Slurm: hosts from the allocation, agents through srun, the batch script, verified stops.
//!
//! Each test starts its own small Slurm (tests/support/slurm.rs).

use crate::support::slurm::Slurm;
use crate::support::{Bench, Console, trainer, wait_until};
use rankdeck::app::summary::NOT_VERIFIED;
use rankdeck_proto::message::{Counters, Exit, RankEvent, Record, RecordEvent, Returns};
use rankdeck_testkit::fake_cuda::FakeCuda;
use rankdeck_testkit::python;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// Returns a console in an allocation of both nodes with two tasks each; `salloc` runs it on this machine.
fn in_allocation(slurm: &Slurm, bench: &Bench, args: &[&str]) -> Command {
    let mut command = slurm.command("salloc");
    command
        .args(["--nodes=2", "--ntasks-per-node=2", "--quiet", env!("CARGO_BIN_EXE_rankdeck"), "--slurm"])
        .args(args)
        .args(["--headless", "--json"])
        .current_dir(bench.path());
    command
}

/// Node names of this Slurm do not resolve; ranks use the loopback interface.
fn bench(args: &[&str]) -> Bench {
    let bench = Bench::new();
    bench.write("hosts.toml", &format!("[defaults]\nworkdir = {:?}\ninterface = \"lo\"\n", bench.path()));
    let experiment = bench.program(args);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, text + "master_addr = \"127.0.0.1\"\n").unwrap();
    bench
}

#[test]
fn allocation_provides_hosts_and_verified_stop() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "20"]);
    let mut console = Console::spawn(in_allocation(&slurm, &bench, &["run", "experiment.toml"]));
    let started = console.wait_kind("run_started", 60);
    assert_eq!((&started["world_size"], &started["nnodes"]), (&Value::from(4), &Value::from(2)));
    let code = console.finish(120).code();
    assert_eq!(code, Some(0), "{}", console.transcript());
    let finished = console.seen.last().unwrap().clone();
    assert_eq!((&finished["outcome"], &finished["proved"]), (&Value::from("succeeded"), &Value::from(true)));
    let hosts: Vec<_> =
        console.all("rank").iter().filter(|v| v["state"] == "spawned").map(|v| v["host"].clone()).collect();
    assert_eq!(hosts.len(), 4);
    assert!(hosts.contains(&Value::from("n0")) && hosts.contains(&Value::from("n1")), "{hosts:?}");
    let last = console.all("progress").pop().unwrap();
    assert_eq!((&last["consistent"], &last["env_step"]), (&Value::from(true), &Value::from(20 * 8 * 4)));
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
    wait_until("the job has ended, holders included", 30, || slurm.ask("squeue", &["-h"]).is_empty());
}

/// Another job has the first two GPUs of the node, so that Slurm's indices differ from those of the plan.
#[test]
fn ranks_use_gpus_of_allocation() {
    let Some(slurm) = Slurm::start_with_gpus(4) else { return };
    let bench = bench(&["--iters", "1000000"]);
    let gpus = bench.path().join("gpus-of-the-test");
    std::fs::create_dir(&gpus).unwrap();
    let Some(fake) = FakeCuda::new(&gpus, &[("gpus", "4")]) else { return };
    let ask = ["--nodelist=n0", "--gpus-per-node=2", "--quiet"];
    let mut other = slurm.command("salloc").args(ask).args(["sleep", "600"]).spawn().unwrap();
    wait_until("the other job runs", 60, || {
        slurm.ask("squeue", &["-h", "-t", "running"]).lines().count() == 1
    });
    let mut command = slurm.command("salloc");
    fake.apply(&mut command);
    command.args(ask).args([env!("CARGO_BIN_EXE_rankdeck"), "--slurm", "run", "experiment.toml"]);
    command.args(["--headless", "--json"]).current_dir(bench.path());
    let mut console = Console::spawn(command);
    let started = console.wait_kind("run_started", 60);
    assert_eq!((&started["world_size"], &started["nnodes"]), (&Value::from(2), &Value::from(1)));
    // GPU n of the fake reports 50 + 10 n.
    console.wait_for("the GPUs of the allocation", 90, |line| {
        let of = |rank: usize| line["per_rank"][rank]["gpu_percent"].as_u64();
        line["kind"] == "progress" && [0, 1].map(of) == [Some(70), Some(80)]
    });
    let ranks = bench.rank_processes();
    let environ = |pid: &u32| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let named = |(pid, _): &(u32, String)| {
        let text = String::from_utf8_lossy(&environ(pid)).replace('\0', " ");
        text.contains("RANKDECK_DEVICE=cuda:1") && text.contains(" CUDA_VISIBLE_DEVICES=2,3 ")
    };
    assert!(ranks.iter().any(named), "{ranks:?}");
    console.signal(libc::SIGINT);
    console.finish(120);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn ctrl_c_in_allocation_leaves_no_step() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
    command.env("SLURM_JOB_ID", &job).env("SLURM_JOB_NODELIST", "n[0-1]").current_dir(bench.path());
    command.args(["--slurm", "run", "experiment.toml", "--headless", "--json"]);
    let mut console = Console::spawn(command);
    console.wait_kind("progress", 90);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
    let finished = console.seen.last().unwrap().clone();
    assert_eq!(
        (&finished["outcome"], &finished["proved"]),
        (&Value::from("stopped"), &Value::from(true)),
        "{finished}"
    );
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
    wait_until("all steps end", 30, || {
        slurm
            .ask("squeue", &["-h", "--steps", "-o", "%i %j"])
            .lines()
            .all(|step| step.contains("extern") || step.contains("batch"))
    });
}

#[test]
fn second_console_stops_run_after_kill_of_first() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    let rankdeck = |args: &[&str]| {
        let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
        command.env("SLURM_JOB_ID", &job).env("SLURM_JOB_NODELIST", "n[0-1]").current_dir(bench.path());
        command.arg("--slurm").args(args);
        command
    };
    let mut console = Console::spawn(rankdeck(&["run", "experiment.toml", "--headless", "--json"]));
    console.wait_kind("progress", 90);
    console.signal(libc::SIGKILL);
    drop(console);
    let before = bench.rank_processes().len();
    assert!(before > 0, "the run has ended");
    wait_until("ps shows both ranks", 30, || {
        let listed = rankdeck(&["ps", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["state"], "running", "{listed}");
        listed["ranks_alive"] == 2
    });
    let stopped = rankdeck(&["stop"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

/// Returns the records of a node of the only run.
fn records(bench: &Bench, node: u32) -> Vec<RecordEvent> {
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten().next().unwrap().path();
    let text = std::fs::read_to_string(run.join(format!("node{node}/records.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap().event).collect()
}

/// SLURM-1: no console stops the run, and `proctrack/linuxproc` finds neither agents nor ranks.
#[test]
fn slurm_1_end_of_job_stops_ranks_and_is_recorded() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    run_without_console(&slurm, &bench, &job);
    assert!(!bench.rank_processes().is_empty(), "the run has ended");
    slurm.ask("scancel", &[&job]);
    // KillWait is 60 s.
    wait_until("agents and ranks are gone", 55, || bench.processes().is_empty());
    for node in [0, 1] {
        let records = records(&bench, node);
        let has = |fits: &dyn Fn(&RecordEvent) -> bool| assert!(records.iter().any(fits), "{records:#?}");
        let job = format!("Slurm job {job}");
        has(&|event| matches!(event, RecordEvent::StopOrdered { by, .. } if *by == job));
        // The ranks had time to exit by themselves.
        has(&|event| matches!(event, RecordEvent::RankExited { exit: Exit::Code { code: 0 }, .. }));
        has(&|event| matches!(event, RecordEvent::Notice { text } if text.contains(&job)));
        has(&|event| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    }
}

/// SLURM-1: without the daemon of the step, a node gets no signal; Slurm kills the holder last.
#[test]
fn slurm_1_killed_step_ends_run() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--ignore-term"]);
    let job = start_detached_allocation(&slurm);
    run_without_console(&slurm, &bench, &job);
    let of_step = |word: &str| {
        let all = bench
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains(word) && !line.starts_with("srun"));
        all.map(|(pid, _)| pid).collect::<Vec<_>>()
    };
    let holders = of_step(" agent hold ");
    assert_eq!(holders.len(), 2, "{:?}", bench.processes());
    let parent = |pid: u32| rankdeck_agent::proc::stat(pid).unwrap().ppid;
    // One holder is killed, and the daemon of the other.
    let daemon = parent(holders[1]);
    assert_ne!(daemon, parent(holders[0]));
    crate::support::kill(holders[0], libc::SIGKILL);
    crate::support::kill(daemon, libc::SIGKILL);
    wait_until("agents and ranks are gone", 30, || of_step(" agent serve ").is_empty());
    wait_until("ranks are gone", 5, || bench.rank_processes().iter().all(|(_, line)| line.contains("srun")));
}

/// SLURM-1: `slurmctld` checks the limit twice a minute.
#[test]
fn slurm_1_time_limit_stops_ranks_and_is_recorded() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    run_without_console(&slurm, &bench, &job);
    slurm.end_in(&job, 1);
    wait_until("agents and ranks are gone", 180, || bench.processes().is_empty());
    for node in [0, 1] {
        let records = records(&bench, node);
        let has = |fits: &dyn Fn(&RecordEvent) -> bool| assert!(records.iter().any(fits), "{records:#?}");
        let ended = |text: &str| text.contains(&job) && text.contains("TimeLimit");
        has(&|event| matches!(event, RecordEvent::Notice { text } if ended(text)));
        has(&|event| matches!(event, RecordEvent::RankExited { exit: Exit::Code { code: 0 }, .. }));
        has(&|event| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    }
}

/// The built-in trainer as a requeued job. Its environment sleeps: the test mostly waits for Slurm, and other
/// tests need the cores.
struct RequeuedJob {
    bench: Bench,
    job: String,
}

impl RequeuedJob {
    /// Submits the job and waits for its first checkpoint.
    fn start(slurm: &Slurm) -> Option<RequeuedJob> {
        let trainer = trainer()?;
        let python = python("gymnasium")?;
        let bench = bench(&[]);
        let text = format!(
            "[run]\nname = 'x'\ntotal_steps = 100000000\n[env]\nid = 'faulty_env:Slow-v0'\nnum_envs = 4\n\
             python = '{python}'\n[learn]\nalgorithm = 'ppo'\n[eval]\nevery = 0\n[checkpoint]\nevery = 2\n"
        );
        let config = bench.write("train.toml", &text);
        let command = [trainer.display().to_string(), "--config".into(), config.display().to_string()];
        bench.write(
            "experiment.toml",
            &format!(
                "[run]\nname = \"train\"\n[launch]\ncommand = {command:?}\nmaster_addr = \"127.0.0.1\"\n\
                 [launch.env]\nFAULTY_SLEEP = \"0.002\"\nPYTHONPATH = {:?}\n",
                rankdeck_testkit::repository("tests/programs")
            ),
        );
        let mut sbatch = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
        sbatch.current_dir(bench.path()).args(["sbatch", "experiment.toml", "--nodes", "2"]);
        sbatch.args(["--ntasks-per-node", "1", "--time", "10", "--requeue", "--stop-before-s", "60"]);
        let submitted = sbatch.output().unwrap();
        let text = String::from_utf8_lossy(&submitted.stdout).into_owned();
        let this = RequeuedJob { job: submitted_job(&text), bench };
        let runs = this.bench.path().join("runs");
        this.wait("a checkpoint", 120, || !files_named(&runs, "latest.ckpt").is_empty());
        Some(this)
    }

    /// Returns the output of all its consoles.
    fn output(&self) -> String {
        let path = self.bench.path().join(format!("train-{}.out", self.job));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    fn wait(&self, what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
        while !holds() {
            assert!(std::time::Instant::now() < deadline, "{what}: {}", self.output());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Returns the iteration of the last recorded checkpoint.
    fn saved(&self) -> u64 {
        let iterations = records(&self.bench, 0).into_iter().filter_map(|event| match event {
            RecordEvent::Rank { event: RankEvent::Checkpoint { train_iter, .. }, .. } => Some(train_iter),
            _ => None,
        });
        iterations.max().unwrap_or(0)
    }

    /// Waits until the ranks resume after iteration `saved` or a later one.
    fn assert_resumed(&self, saved: u64) {
        let resumed = || -> Option<u64> {
            let logs = files_named(&self.bench.path().join("runs"), "rank0.log");
            let texts = logs.iter().map(|log| std::fs::read_to_string(log).unwrap_or_default());
            let mut after = texts.filter_map(|text| {
                let number = text.split("resumed after iteration ").nth(1)?.split(',').next()?;
                number.parse().ok()
            });
            after.next()
        };
        self.wait("the ranks resume", 240, || resumed().is_some());
        assert!(saved > 0 && resumed() >= Some(saved), "{saved}: {:?}", resumed());
    }

    /// Cancels the job and waits until its processes end.
    fn end(&self, slurm: &Slurm) {
        slurm.ask("scancel", &[&self.job]);
        self.wait("the job is gone", 90, || slurm.ask("squeue", &["-h", "-j", &self.job]).is_empty());
        self.wait("all processes end", 60, || self.bench.processes().is_empty());
    }
}

/// Returns the job ID that `sbatch` printed.
fn submitted_job(output: &str) -> String {
    output.split_whitespace().last().unwrap().to_owned()
}

fn files_named(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files_named(&path, name),
            false => vec![path],
        })
        .filter(|path| path.file_name().is_some_and(|file| file == name))
        .collect()
}

#[test]
fn requeued_job_continues_after_time_limit() {
    let Some(slurm) = Slurm::start_requeueing() else { return };
    let Some(job) = RequeuedJob::start(&slurm) else { return };
    // Slurm sends the warning a minute before.
    slurm.end_in(&job.job, 62);
    let stopped =
        |event: &RecordEvent| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty());
    job.wait("verified stop", 90, || {
        [0, 1].iter().all(|node| records(&job.bench, *node).iter().any(stopped))
    });
    // The console and its steps on the nodes end.
    job.wait("the ranks end", 10, || job.bench.rank_processes().is_empty());
    assert!(job.output().contains(&job.job), "{}", job.output());
    let saved = job.saved();
    job.assert_resumed(saved);
    job.end(&slurm);
}

/// RUN-2, SLURM-1: the daemon of a node is dead and the node is down, while its ranks continue. The console
/// reports in time that the stop is not verified; the job waits for the node, and continues.
#[test]
fn slurm_1_requeued_job_continues_after_node_failure() {
    let Some(mut slurm) = Slurm::start_requeueing() else { return };
    let Some(job) = RequeuedJob::start(&slurm) else { return };
    slurm.node_down(1);
    let began = std::time::Instant::now();
    job.wait("an unverified stop", 90, || job.output().contains(NOT_VERIFIED));
    let took = began.elapsed().as_secs();
    let output = job.output();
    assert!(took <= 60, "{took} s: {output}");
    // The second is Slurm's.
    assert!(output.contains("n1") && output.contains("DUE TO NODE FAILURE"), "{output}");
    let of_n0 = records(&job.bench, 0);
    let cause = |event: &RecordEvent| matches!(event, RecordEvent::Notice { text } if text.contains("n1") && text.contains("broken"));
    assert!(of_n0.iter().any(cause), "{of_n0:#?}");
    let saved = job.saved();
    slurm.node_up(1);
    job.assert_resumed(saved);
    job.end(&slurm);
}

/// Starts an idle job on both nodes.
fn start_detached_allocation(slurm: &Slurm) -> String {
    let job = slurm.ask("sbatch", &["--parsable", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 600"]);
    wait_until("the job runs", 60, || slurm.ask("squeue", &["-h", "-j", &job, "-o", "%T"]) == "RUNNING");
    job
}

/// Starts a run in an allocation, waits for progress, and kills its console.
fn run_without_console(slurm: &Slurm, bench: &Bench, job: &str) {
    let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
    command.env("SLURM_JOB_ID", job).env("SLURM_JOB_NODELIST", "n[0-1]").current_dir(bench.path());
    command.args(["--slurm", "run", "experiment.toml", "--headless", "--json"]);
    let mut console = Console::spawn(command);
    console.wait_kind("progress", 90);
    console.signal(libc::SIGKILL);
}

#[test]
fn scancel_stops_run_submitted_with_sbatch() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000"]);
    let sbatch = |more: &[&str]| {
        let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
        command.current_dir(bench.path());
        command.args(["sbatch", "experiment.toml", "--nodes", "2", "--ntasks-per-node", "1"]).args(more);
        command.output().unwrap()
    };
    let shown = String::from_utf8(sbatch(&["--dry-run"]).stdout).unwrap();
    assert!(shown.contains("#SBATCH --nodes=2") && shown.contains("--slurm --headless"), "{shown}");
    let submitted = sbatch(&[]);
    assert!(submitted.status.success(), "{submitted:?}");
    let job = submitted_job(&String::from_utf8(submitted.stdout).unwrap());
    let file = bench.path().join(format!("program-{job}.out"));
    let output = || std::fs::read_to_string(&file).unwrap_or_default();
    wait_until("both ranks train", 90, || output().contains("eval") || output().contains("step "));
    slurm.ask("scancel", &["--batch", "--signal=TERM", &job]);
    wait_until("the job has ended", 60, || slurm.ask("squeue", &["-h", "-j", &job]).is_empty());
    for node in [0, 1] {
        let records = records(&bench, node);
        let stopped = |event: &RecordEvent| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty());
        assert!(records.iter().any(stopped), "{records:#?}");
    }
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

/// Commands outside the allocation, in an environment that belongs to other steps.
#[test]
fn login_node_finds_and_stops_submitted_run() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let rankdeck = |folder: &Path, args: &[&str]| {
        let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
        command.envs([("SLURM_LABELIO", "1"), ("SLURM_EXCLUSIVE", "user"), ("SLURM_CONSTRAINT", "none")]);
        command.current_dir(folder).args(args).output().unwrap()
    };
    let sbatch = ["sbatch", "experiment.toml", "--nodes", "2", "--ntasks-per-node", "1"];
    let held =
        rankdeck(bench.path(), &[&sbatch[..], &["--", "--hold", "--comment", "two 'words' #3"]].concat());
    let held = submitted_job(&String::from_utf8(held.stdout).unwrap());
    assert_eq!(slurm.ask("squeue", &["-h", "-j", &held, "-o", "%k"]), "two 'words' #3");
    slurm.ask("scontrol", &["update", &format!("jobid={held}"), "comment=rankdeck"]);
    // Before it starts, the job is all that is known of the run.
    let listed = rankdeck(bench.path(), &["ps", "--json"]);
    assert!(listed.status.success(), "{listed:?}");
    let waiting: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&waiting["kind"], &waiting["job"]), (&Value::from("job"), &Value::from(held.clone())));
    assert_eq!((&waiting["state"], &waiting["nnodes"]), (&Value::from("pending"), &Value::from(2)));
    assert!(waiting["reason"].as_str().unwrap().contains("Held"), "{waiting}");
    let refused = String::from_utf8(rankdeck(bench.path(), &["stop"]).stderr).unwrap();
    assert!(refused.contains(&format!("scancel {held}")), "{refused}");
    slurm.ask("scancel", &[&held]);
    let submitted = rankdeck(bench.path(), &sbatch);
    let job = submitted_job(&String::from_utf8(submitted.stdout).unwrap());
    let both_run = |folder: &Path, args: &[&str]| {
        let listed: Value = serde_json::from_slice(&rankdeck(folder, args).stdout).unwrap_or_default();
        listed["state"] == "running" && listed["ranks_alive"] == 2
    };
    wait_until("ps finds the job", 90, || both_run(bench.path(), &["ps", "--json"]));
    let named = format!("--slurm={job}");
    wait_until("ps reads the named job", 30, || both_run(elsewhere.path(), &["ps", "--json", &named]));
    for (pid, line) in bench.rank_processes().iter().filter(|(_, line)| !line.contains("srun")) {
        let env = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let env = String::from_utf8_lossy(&env).replace('\0', "\n");
        let has = |name: &str| env.lines().any(|line| line.starts_with(name));
        assert!(has("SLURM_JOB_ID=") && !has("SLURM_PROCID=") && !has("SLURM_NTASKS="), "{line}: {env}");
    }
    let stopped = rankdeck(bench.path(), &["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
    wait_until("the job has ended", 60, || slurm.ask("squeue", &["-h", "-j", &job]).is_empty());
    let ended = rankdeck(bench.path(), &["ps", "--json", &named]);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    // The login node shares the directory of the nodes.
    let listed = rankdeck(bench.path(), &["ps", "--json"]);
    let run: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(run["state"], "finished", "{listed:?}");
    let run = run["run"].as_str().unwrap();
    let into = bench.path().join("copy");
    let fetched = rankdeck(bench.path(), &["fetch", run, "--into", into.to_str().unwrap()]);
    assert!(fetched.status.success() && !files_named(&into, "records.jsonl").is_empty(), "{fetched:?}");
    let removed = rankdeck(bench.path(), &["rm", run, "--with-results", "--yes"]);
    assert!(removed.status.success() && !bench.path().join("runs").join(run).exists(), "{removed:?}");
}

const EXPERIMENT: &str = "[run]\nname = 'test'\nseed = 3\ntotal_steps = 2048\n[env]\nid = 'CartPole-v1'\nnum_envs = 8\n\
                          [collect]\nnum_steps = 64\n[distributed]\nbackend = 'tcp'\n[learn]\nalgorithm = 'ppo'\n";

/// Returns the last counters of each rank, and the last totals of rank 0.
fn outcome(folder: &Path, mut command: Command) -> (BTreeMap<u32, Counters>, Counters) {
    std::fs::write(folder.join("experiment.toml"), EXPERIMENT).unwrap();
    let socket = folder.join("events.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut sender_rank = None;
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    match serde_json::from_str(&line).unwrap() {
                        RankEvent::Hello { rank, .. } => sender_rank = Some(rank.0),
                        event => drop(sender.send((sender_rank.unwrap(), event))),
                    }
                }
            });
        }
    });
    command
        .current_dir(folder)
        .env("RANKDECK_EVENTS", &socket)
        .env("GLOO_SOCKET_IFNAME", "lo")
        .env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (mut own, mut totals, mut finished) = (BTreeMap::new(), None, 0);
    while finished < 4 {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            (rank, RankEvent::Counters(counters)) => _ = own.insert(rank, without_time(counters)),
            (0, RankEvent::Totals(counters)) => totals = Some(without_time(counters)),
            (_, RankEvent::Finished { .. }) => finished += 1,
            _ => {}
        }
    }
    (own, totals.unwrap())
}

/// Removes what depends on the time of a report: its duration, and the episodes since the last report.
fn without_time(counters: Counters) -> Counters {
    Counters { duration_s: 0.0, returns: Returns::default(), ..counters }
}

fn trainer_under(slurm: &Slurm, words: &[&str], folder: &Path) -> Command {
    let (program, args) = words.split_first().unwrap();
    let mut command = slurm.command(program);
    command.args(args).args(["--config", "experiment.toml", "--run-dir"]).arg(folder.join("run"));
    command
}

#[test]
fn srun_torchrun_and_spawn_give_same_totals() {
    let Some(slurm) = Slurm::start() else { return };
    let Some(binary) = trainer() else { return };
    let binary = binary.to_str().unwrap();
    let run = |words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = trainer_under(&slurm, words, folder.path());
        if words[0] == "srun" {
            // Node names of this Slurm do not resolve; the trainer chooses the port.
            command.env("MASTER_ADDR", "127.0.0.1");
        }
        outcome(folder.path(), command)
    };
    let spawned = run(&[binary, "--spawn", "4"]);
    assert_eq!(spawned.0.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(spawned.1.env_step, 2048);
    let stepped = run(&["srun", "--nodes=2", "--ntasks-per-node=2", "--mpi=none", "--quiet", binary]);
    assert_eq!(stepped, spawned, "srun");
    let Some(python) = python("torch") else { return };
    let torchrun =
        [&python, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node=4"];
    let launched = run(&[&torchrun[..], &[binary]].concat());
    assert_eq!(launched, spawned, "torchrun");
}
