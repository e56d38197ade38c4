//! Runs in a real Slurm: hosts from the allocation, agents through srun, the batch script, the proof of the
//! stop.
//!
//! Each test starts a small Slurm of its own (tests/support/slurm.rs).

mod launchers;

use crate::support::slurm::Slurm;
use crate::support::{Bench, Console, trainer, wait_until};
use rankdeck_proto::message::{Exit, Record, RecordEvent};
use rankdeck_testkit::fake_cuda::FakeCuda;
use rankdeck_testkit::python;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A console inside an allocation of both nodes with two tasks each: `salloc` runs it on this machine.
fn in_allocation(slurm: &Slurm, bench: &Bench, args: &[&str]) -> Command {
    let mut command = slurm.command("salloc");
    command
        .args(["--nodes=2", "--ntasks-per-node=2", "--quiet", env!("CARGO_BIN_EXE_rankdeck"), "--slurm"])
        .args(args)
        .args(["--headless", "--json"])
        .current_dir(bench.path());
    command
}

/// Nodes of this Slurm have no names that resolve; ranks meet on the loopback interface.
fn bench(args: &[&str]) -> Bench {
    let bench = Bench::new();
    bench.write("hosts.toml", &format!("[defaults]\nworkdir = {:?}\ninterface = \"lo\"\n", bench.path()));
    let experiment = bench.program(args);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, text + "master_addr = \"127.0.0.1\"\n").unwrap();
    bench
}

#[test]
fn an_allocation_gives_hosts_ranks_and_a_proved_end() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "20"]);
    let mut console = Console::spawn(in_allocation(&slurm, &bench, &["run", "experiment.toml"]));
    let started = console.wait_kind("run_started", 60);
    assert_eq!((&started["world_size"], &started["nnodes"]), (&Value::from(4), &Value::from(2)));
    let code = console.finish(120).code();
    assert_eq!(code, Some(0), "{}", console.told());
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

/// Another job has the first two GPUs of the node, so that Slurm's numbers are not those of the plan.
#[test]
fn ranks_have_the_gpus_that_slurm_gives() {
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
    // GPU n of the fake shows 50 + 10 n.
    console.wait_for("figures of the GPUs that are given", 90, |line| {
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
fn ctrl_c_stops_cleanly_with_proof_and_leaves_no_step() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
    command.env("SLURM_JOB_ID", &job).env("SLURM_JOB_NODELIST", "n[0-1]").current_dir(bench.path());
    command.args(["--slurm", "run", "experiment.toml", "--headless", "--json"]);
    let mut console = Console::spawn(command);
    console.wait_kind("progress", 90);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.told());
    let finished = console.seen.last().unwrap().clone();
    assert_eq!(
        (&finished["outcome"], &finished["proved"]),
        (&Value::from("stopped"), &Value::from(true)),
        "{finished}"
    );
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
    wait_until("no step is left", 30, || {
        slurm
            .ask("squeue", &["-h", "--steps", "-o", "%i %j"])
            .lines()
            .all(|step| step.contains("extern") || step.contains("batch"))
    });
}

#[test]
fn another_console_finds_the_run_and_stops_it_after_the_first_was_killed() {
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
    assert!(before > 0, "the run goes on");
    wait_until("ps tells both ranks", 30, || {
        let listed = rankdeck(&["ps", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["state"], "running", "{listed}");
        listed["ranks_alive"] == 2
    });
    let stopped = rankdeck(&["stop"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(String::from_utf8_lossy(&stopped.stdout).contains("stopped: verified"), "{stopped:?}");
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

/// What the records of a node of the only run say.
fn records(bench: &Bench, node: u32) -> Vec<RecordEvent> {
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten().next().unwrap().path();
    let text = std::fs::read_to_string(run.join(format!("node{node}/records.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap().event).collect()
}

/// SLURM-1: no console is left to stop the run, and `proctrack/linuxproc` finds neither agents nor ranks.
#[test]
fn slurm_1_the_end_of_the_job_ends_agents_and_ranks_and_is_recorded_with_its_cause() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    run_without_console(&slurm, &bench, &job);
    assert!(!bench.rank_processes().is_empty(), "the run goes on");
    slurm.ask("scancel", &[&job]);
    // KillWait is 60 s: what takes longer was not told in time.
    wait_until("agents and ranks are gone", 55, || bench.processes().is_empty());
    for node in [0, 1] {
        let records = records(&bench, node);
        let has = |fits: &dyn Fn(&RecordEvent) -> bool| assert!(records.iter().any(fits), "{records:#?}");
        let job = format!("Slurm job {job}");
        has(&|event| matches!(event, RecordEvent::StopOrdered { by, .. } if *by == job));
        // The ranks had time to leave by themselves.
        has(&|event| matches!(event, RecordEvent::RankExited { exit: Exit::Code { code: 0 }, .. }));
        has(
            &|event| matches!(event, RecordEvent::Notice { text } if text.starts_with(&format!("{job} ends here: "))),
        );
        has(&|event| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    }
}

/// SLURM-1: a node that loses the daemon of the step is told nothing; killing the holder is what Slurm does
/// last.
#[test]
fn slurm_1_a_step_that_is_killed_takes_its_run_along() {
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
    // One holder is killed; of the other one, the daemon above it.
    let daemon = parent(holders[1]);
    assert_ne!(daemon, parent(holders[0]));
    crate::support::kill(holders[0], libc::SIGKILL);
    crate::support::kill(daemon, libc::SIGKILL);
    wait_until("agents and ranks are gone", 30, || of_step(" agent serve ").is_empty());
    wait_until("ranks are gone", 5, || bench.rank_processes().iter().all(|(_, line)| line.contains("srun")));
}

/// SLURM-1: the limit, as `slurmctld` looks for it twice a minute.
#[test]
fn slurm_1_a_job_at_its_time_limit_ends_agents_and_ranks_and_is_recorded_with_that_cause() {
    let Some(slurm) = Slurm::start() else { return };
    let bench = bench(&["--iters", "1000000", "--family"]);
    let job = start_detached_allocation(&slurm);
    run_without_console(&slurm, &bench, &job);
    slurm.end_in(&job, 1);
    wait_until("agents and ranks are gone", 180, || bench.processes().is_empty());
    for node in [0, 1] {
        let records = records(&bench, node);
        let has = |fits: &dyn Fn(&RecordEvent) -> bool| assert!(records.iter().any(fits), "{records:#?}");
        let cause = format!("Slurm job {job} ends here: ");
        has(
            &|event| matches!(event, RecordEvent::Notice { text } if text.starts_with(&cause) && text.contains("TimeLimit")),
        );
        has(&|event| matches!(event, RecordEvent::RankExited { exit: Exit::Code { code: 0 }, .. }));
        has(&|event| matches!(event, RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    }
}

/// The built-in trainer as a job that comes back. Its environment sleeps: most of the test waits for Slurm,
/// and other tests need the cores.
struct RequeuedJob {
    bench: Bench,
    job: String,
}

impl RequeuedJob {
    /// Submits it, and waits for its first checkpoint.
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
        let job = text.trim().strip_prefix("submitted: job ").unwrap_or_else(|| panic!("{submitted:?}"));
        let this = RequeuedJob { job: job.to_owned(), bench };
        this.wait("a checkpoint", 120, || this.said().contains("checkpoint (latest)"));
        Some(this)
    }

    /// What the console of all its starts has printed.
    fn said(&self) -> String {
        let path = self.bench.path().join(format!("train-{}.out", self.job));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    fn wait(&self, what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
        while !holds() {
            assert!(std::time::Instant::now() < deadline, "{what}: {}", self.said());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Iterations after which its latest checkpoint was written, as its lines tell it.
    fn saved(&self) -> u64 {
        let said = self.said();
        let line = said.lines().rev().find(|line| line.contains("  checkpoint (")).unwrap();
        let step = line.split("at step ").nth(1).unwrap().split(": ").next().unwrap();
        step.replace(',', "").parse::<u64>().unwrap() / 512
    }

    /// Its ranks have resumed after iteration `saved`, or a later one whose checkpoint nobody heard of.
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
        self.wait("it is resumed", 90, || resumed().is_some());
        assert!(saved > 0 && resumed() >= Some(saved), "{saved}: {:?}", resumed());
    }

    /// It is cancelled, and nothing of it is left.
    fn end(&self, slurm: &Slurm) {
        slurm.ask("scancel", &[&self.job]);
        self.wait("the job is gone", 90, || slurm.ask("squeue", &["-h", "-j", &self.job]).is_empty());
        self.wait("nothing is left", 60, || self.bench.processes().is_empty());
    }
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
fn a_job_that_reaches_its_time_limit_says_so_stops_with_proof_and_goes_on_in_the_next() {
    let Some(slurm) = Slurm::start_requeueing() else { return };
    let Some(job) = RequeuedJob::start(&slurm) else { return };
    // Its warning comes a minute before.
    slurm.end_in(&job.job, 62);
    job.wait("it stops", 90, || job.said().contains("stopped: verified"));
    // Its console ends now, and the steps that led to the nodes with it.
    job.wait("no rank is left", 10, || job.bench.rank_processes().is_empty());
    let said = job.said();
    assert!(said.contains(&format!("Slurm job {} reaches its time limit", job.job)), "{said}");
    let saved = job.saved();
    job.wait("it comes back", 120, || {
        job.said().contains("begins from ") && job.said().contains("latest.ckpt")
    });
    job.assert_resumed(saved);
    job.end(&slurm);
}

/// RUN-2, SLURM-1: the daemon of a node is dead and the node is down, while the ranks there go on. The
/// console cannot know that they are gone, and says so within its bound; the job waits for the node, and goes
/// on.
#[test]
fn slurm_1_a_node_that_goes_down_ends_the_run_without_proof_and_the_requeued_job_goes_on() {
    let Some(mut slurm) = Slurm::start_requeueing() else { return };
    let Some(job) = RequeuedJob::start(&slurm) else { return };
    slurm.node_down(1);
    let began = std::time::Instant::now();
    job.wait("an end", 90, || {
        job.said().contains("stop NOT VERIFIED") || job.said().contains("stopped: verified")
    });
    let took = began.elapsed().as_secs();
    let said = job.said();
    let left = job.bench.processes();
    assert!(said.contains("stop NOT VERIFIED") || left.is_empty(), "a false proof: {left:?}\n{said}");
    assert!(took <= 60, "{took} s: {said}");
    assert!(said.contains("could not verify that all processes exited on") && said.contains("n1"), "{said}");
    assert!(said.contains("DUE TO NODE FAILURE"), "{said}");
    let of_n0 = records(&job.bench, 0);
    let cause = |event: &RecordEvent| matches!(event, RecordEvent::Notice { text } if text.contains("ends here: ") && text.contains("n1 is down (broken)"));
    assert!(of_n0.iter().any(cause), "{of_n0:#?}");
    let saved = job.saved();
    slurm.node_up(1);
    job.wait("it comes back", 180, || job.said().lines().any(|line| line.starts_with("begins from /")));
    job.assert_resumed(saved);
    job.end(&slurm);
}

/// A job of both nodes that does nothing by itself.
fn start_detached_allocation(slurm: &Slurm) -> String {
    let job = slurm.ask("sbatch", &["--parsable", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 600"]);
    wait_until("the job runs", 60, || slurm.ask("squeue", &["-h", "-j", &job, "-o", "%T"]) == "RUNNING");
    job
}

/// A run in an allocation that has made progress, and whose console is gone.
fn run_without_console(slurm: &Slurm, bench: &Bench, job: &str) {
    let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
    command.env("SLURM_JOB_ID", job).env("SLURM_JOB_NODELIST", "n[0-1]").current_dir(bench.path());
    command.args(["--slurm", "run", "experiment.toml", "--headless", "--json"]);
    let mut console = Console::spawn(command);
    console.wait_kind("progress", 90);
    console.signal(libc::SIGKILL);
}

#[test]
fn sbatch_submits_a_script_that_is_the_console_and_scancel_stops_it_in_good_order() {
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
    let text = String::from_utf8(submitted.stdout).unwrap();
    let job = text.trim().strip_prefix("submitted: job ").unwrap().to_owned();
    let output = bench.path().join(format!("program-{job}.out"));
    let said = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("both ranks train", 90, || said().contains("eval") || said().contains("step "));
    slurm.ask("scancel", &["--batch", "--signal=TERM", &job]);
    wait_until("the job has ended", 60, || slurm.ask("squeue", &["-h", "-j", &job]).is_empty());
    assert!(said().contains("stopped: verified"), "{}", said());
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}
