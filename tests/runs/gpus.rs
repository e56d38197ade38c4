//! Whole runs on fake GPUs: preflight, plan, ranks, figures of the right GPU.

use crate::support::{Bench, Console, rankdeck, trainer};
use rankdeck_testkit::fake_cuda::FakeCuda;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A host with fake GPUs, and an experiment that does not end by itself.
pub struct Machine {
    pub bench: Bench,
    pub fake: FakeCuda,
    hosts: PathBuf,
    pub experiment: PathBuf,
}

/// `None` if the test is skipped.
pub fn machine(knobs: &[(&str, &str)], host: &str) -> Option<Machine> {
    if trainer().is_none() {
        rankdeck_testkit::skipped("the trainer is not built");
        return None;
    }
    let bench = Bench::new();
    let folder = bench.path().join("gpus-of-the-test");
    std::fs::create_dir(&folder).unwrap();
    let fake = FakeCuda::new(&folder, knobs)?;
    let hosts = bench.write(
        "hosts.toml",
        &format!(
            "[[host]]\nname = 'one'\ntransport = 'local'\nworkdir = '{}'\nlibtorch = '{}'\n{host}\n",
            bench.path().display(),
            fake.libtorch().display()
        ),
    );
    let experiment = bench.write(
        "experiment.toml",
        "[run]\nname = 'gpus'\ntotal_steps = 40000000\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
         [learn]\nalgorithm = 'ppo'\n[eval]\nevery = 0\n",
    );
    Some(Machine { bench, fake, hosts, experiment })
}

impl Machine {
    /// Where its runs are.
    pub fn folder(&self) -> &Path {
        self.bench.path()
    }

    /// Ranks with slow environments: these tests do not wait for steps.
    pub fn command(&self, args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = rankdeck();
        self.fake.apply(&mut command);
        command.env("TRAINER_INJECT", "pace=1@all:0");
        command.args(args).arg(&self.experiment).arg("--hosts").arg(&self.hosts);
        command.current_dir(self.bench.path()).envs(env.iter().copied());
        command
    }

    /// Runs a preflight: `check`, or a `run` that is refused.
    pub fn preflight(&self, command: &str, env: &[(&str, &str)]) -> Preflight {
        let output = self.command(&[command, "--json"], env).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Preflight { code: output.status.code(), lines, errors }
    }
}

/// The result of a preflight.
#[derive(Debug)]
pub struct Preflight {
    pub code: Option<i32>,
    /// Lines of `--json`.
    pub lines: Vec<serde_json::Value>,
    /// Standard error.
    pub errors: String,
}

impl Preflight {
    /// The result of a check, and its text with its hint.
    pub fn check(&self, name: &str) -> (&str, String) {
        let line = self.lines.iter().find(|line| line["check"] == name);
        let line = line.unwrap_or_else(|| panic!("{name}: {} {:#?}", self.errors, self.lines));
        (line["result"].as_str().unwrap(), format!("{} {}", line["text"], line["hint"]))
    }
}

#[test]
fn metrics_are_of_the_given_gpus() {
    figures_under("2,3", "0");
}

/// In a container, NVML reports pids of another namespace.
#[test]
fn metrics_are_of_the_given_gpus_with_hidden_pids() {
    figures_under("2,3", "1");
    let named = |index: u32| format!("GPU-00000000-0000-0000-0000-0000000000{index:02x}");
    figures_under(&format!("{},{}", named(2), named(3)), "1");
}

fn figures_under(given: &str, hide_pids: &str) {
    let Some(machine) = machine(&[("gpus", "4"), ("hide_pids", hide_pids)], "gpus = 'all'") else { return };
    let command = machine.command(&["run", "--headless", "--json"], &[("CUDA_VISIBLE_DEVICES", given)]);
    let mut console = Console::spawn(command);
    let memory = |line: &serde_json::Value| line["per_rank"][1]["gpu_memory"].as_u64();
    let progress = console.wait_for("figures of both GPUs", 90, |line| {
        let figure = |rank: usize| line["per_rank"][rank]["gpu_percent"].as_u64();
        // GPU n of the fake shows 50 + 10 n.
        line["kind"] == "progress"
            && line["train_iter"].as_u64() > Some(20)
            && (figure(0), figure(1)) == (Some(70), Some(80))
            && (hide_pids == "1" || memory(line).is_some_and(|bytes| bytes > 0))
    });
    assert_eq!(memory(&progress).is_none(), hide_pids == "1", "{progress}");
    assert_eq!(progress["per_rank"].as_array().unwrap().len(), 2, "{progress}");
    console.signal(libc::SIGINT);
    console.finish(60);
}

#[test]
fn check_computes_on_gpus_and_notes_small_networks() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let output = machine.command(&["check"], &[]).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("0=gpu0 1=gpu1") && text.contains("note: "), "{text}");
    assert!(machine.fake.counts("-")["gemms"] >= 2, "the preflight has the trainer compute");
}

#[test]
fn unusable_gpu_is_found_before_launch() {
    let Some(machine) = machine(&[("gpus", "2"), ("driver", "12040")], "gpus = 'all'") else { return };
    let found = machine.preflight("check", &[]);
    assert_ne!(found.code, Some(0), "{found:#?}");
    let (result, text) = found.check("gpus");
    assert!(result == "failed" && text.contains("CUDA 12.4"), "{text}");
}

#[test]
fn library_of_another_version_is_found_before_launch() {
    for (knob, words, help) in [
        (("without", "libnccl.so.2:ncclCommSplit"), ["libnccl.so.2", "ncclCommSplit"], "nvidia-nccl-cu13"),
        (("cudnn", "90100"), ["cuDNN", "9.1.0"], "nvidia-cudnn-cu13"),
    ] {
        let Some(machine) = machine(&[knob], "gpus = 'all'") else { return };
        for command in ["check", "run"] {
            let found = machine.preflight(command, &[]);
            assert_eq!(found.code, Some(3), "{command}: {found:#?}");
            let (result, text) = found.check("gpus");
            assert_eq!(result, "failed", "{text}");
            assert!(words.iter().all(|word| text.contains(word)) && text.contains(help), "{text}");
        }
        assert!(!machine.folder().join("runs").exists(), "nothing was started");
    }
}

/// Runs a sweep of `--seeds 1..RUNS` with a GPU each; returns the first line of each run's log, and how many
/// ran in parallel.
fn swept(machine: &Machine, runs: u32, env: &[(&str, &str)]) -> (Vec<String>, usize) {
    let script = "echo gpu=$CUDA_VISIBLE_DEVICES local=$LOCAL_RANK ranks=$WORLD_SIZE; sleep 1";
    let seed = "env = { SEED = '{seed}' }\n";
    let text = format!("[run]\nname = 'cells'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n{seed}");
    std::fs::write(&machine.experiment, text).unwrap();
    let seeds = format!("1..{runs}");
    let args = ["run", "--seeds", seeds.as_str(), "--gpus-per-run", "1"];
    let output = machine.command(&args, env).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output_text}");
    let folders = std::fs::read_dir(machine.bench.path().join("runs")).unwrap().flatten();
    let sweep = folders.map(|entry| entry.path()).find(|path| path.join("sweep.json").exists()).unwrap();
    let sweep = std::fs::read_to_string(sweep.join("sweep.json")).unwrap();
    let sweep: serde_json::Value = serde_json::from_str(&sweep).unwrap();
    let slots = sweep["slots"].as_array().unwrap().len();
    let first_line = |cell: &serde_json::Value| {
        let run = cell["run"].as_str().unwrap();
        let log = machine.bench.path().join(format!("runs/{run}/node0/gen0/rank0.log"));
        let text = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{log:?}: {error}"));
        let line = text.lines().find(|line| line.contains("gpu=")).unwrap_or_else(|| panic!("{text}"));
        line[line.find("gpu=").unwrap()..].to_owned()
    };
    (sweep["cells"].as_array().unwrap().iter().map(first_line).collect(), slots)
}

#[test]
fn sweep_gives_each_trial_its_own_gpu() {
    let Some(machine) = machine(&[("gpus", "3")], "gpus = 'all'") else { return };
    let (mut logs, slots) = swept(&machine, 4, &[]);
    assert_eq!(slots, 3);
    logs.sort();
    logs.dedup();
    assert_eq!(logs, [0, 1, 2].map(|gpu| format!("gpu={gpu} local=0 ranks=1")), "all have had a run");
}

/// A plan counts among the GPUs that programs see.
#[test]
fn sweep_uses_only_the_users_gpus() {
    let Some(machine) = machine(&[("gpus", "4")], "gpus = 'all'") else { return };
    let (mut logs, slots) = swept(&machine, 2, &[("CUDA_VISIBLE_DEVICES", "2,3")]);
    assert_eq!(slots, 2);
    logs.sort();
    assert_eq!(logs, [2, 3].map(|gpu| format!("gpu={gpu} local=0 ranks=1")));
}

#[test]
fn sweep_gives_each_trial_its_own_mig_instance() {
    let knobs = [("gpus", "2"), ("mig", "1"), ("mig_instances", "2")];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let named = ["00", "01", "10"].map(|last| format!("MIG-00000000-0000-0000-0000-0000000000{last}"));
    let (mut logs, slots) = swept(&machine, 3, &[("CUDA_VISIBLE_DEVICES", named.join(",").as_str())]);
    assert_eq!(slots, 3);
    logs.sort();
    assert_eq!(logs, named.map(|name| format!("gpu={name} local=0 ranks=1")));
}

/// Of MIG, a process uses one instance, and calls it `cuda:0`; a script calls its GPU `cuda:LOCAL_RANK`.
#[test]
fn mig_script_finds_its_instance_as_cuda_local_rank() {
    let knobs = [("gpus", "1"), ("mig", "1"), ("mig_instances", "2")];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let script = "echo rank=$RANK gpu=$CUDA_VISIBLE_DEVICES local=$LOCAL_RANK";
    let text = format!("[run]\nname = 'mig'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n");
    std::fs::write(&machine.experiment, text).unwrap();
    let named = ["00", "01"].map(|last| format!("MIG-00000000-0000-0000-0000-0000000000{last}"));
    let env = [("CUDA_VISIBLE_DEVICES", named.join(","))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let output = machine.command(&["run", "--headless", "--logs"], &env).output().unwrap();
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{output_text}");
    for (rank, name) in named.iter().enumerate() {
        assert!(output_text.contains(&format!("rank={rank} gpu={name} local=0")), "{output_text}");
    }
}

/// The first run ends only when the second has run: both need the GPU that comes back.
#[test]
fn sweep_uses_a_gpu_that_becomes_free() {
    let Some(mut machine) = machine(&[("gpus", "2"), ("lost", "1")], "gpus = 'all'") else { return };
    let met = machine.bench.path().join("met");
    let script = format!(
        "if [ $CUDA_VISIBLE_DEVICES = 1 ]; then touch {0}; else until [ -e {0} ]; do sleep 0.1; done; fi",
        met.display()
    );
    let seed = "env = { SEED = '{seed}' }\n";
    let text = format!("[run]\nname = 'cells'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n{seed}");
    std::fs::write(&machine.experiment, text).unwrap();
    let mut command = machine.command(&["run", "--seeds", "1..2", "--gpus-per-run", "1"], &[]);
    let log = machine.bench.path().join("errors");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut sweep = command.spawn().unwrap();
    let errors = || std::fs::read_to_string(&log).unwrap();
    let slots = || {
        let folders = std::fs::read_dir(machine.bench.path().join("runs")).ok()?.flatten();
        let file = folders.map(|entry| entry.path().join("sweep.json")).find(|path| path.exists())?;
        let sweep: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        Some(sweep["slots"].as_array()?.len())
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while slots() != Some(1) {
        assert!(Instant::now() < deadline && sweep.try_wait().unwrap().is_none(), "{}", errors());
        std::thread::sleep(Duration::from_millis(20));
    }
    machine.fake.set("lost", "-1");
    while sweep.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            // Cleanly: it takes its runs along.
            Command::new("kill").arg(sweep.id().to_string()).status().unwrap();
            sweep.wait().unwrap();
            panic!("{}", errors());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sweep.wait().unwrap().success(), "{}", errors());
    assert_eq!(slots(), Some(2), "the GPU that came back");
}

#[test]
fn gpu_named_twice_is_refused_before_launch() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let again = [("CUDA_VISIBLE_DEVICES", "0,GPU-00000000-0000-0000-0000-000000000000")];
    let found = machine.preflight("check", &again);
    assert_eq!(found.code, Some(3), "{found:#?}");
    let (result, text) = found.check("gpus");
    assert!(result == "failed" && text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    assert!(text.contains("NVIDIA H200") && text.contains("GPU-00000000"), "{text}");

    // Two entries of the file that are one machine.
    let text = std::fs::read_to_string(&machine.hosts).unwrap();
    std::fs::write(&machine.hosts, format!("{text}{}", text.replace("'one'", "'two'"))).unwrap();
    let found = machine.preflight("check", &[]);
    assert_eq!(found.code, Some(3), "{found:#?}");
    let failed =
        |line: &serde_json::Value| line["result"] == "failed" && line["text"].to_string().contains("one");
    assert!(found.lines.iter().any(failed), "{found:#?}");
    let apart = text.replace("'all'", "[0]") + &text.replace("'one'", "'two'").replace("'all'", "[1]");
    std::fs::write(&machine.hosts, apart).unwrap();
    let output = machine.command(&["check"], &[]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ranks_sharing_gpus_are_found_before_launch() {
    let check = |gpus: &str| {
        let machine = machine(&[("gpus", "2")], gpus)?;
        let found = machine.preflight("check", &[]);
        assert_eq!(found.code, Some(0), "{found:#?}");
        Some(found.check("gpus").0.to_owned())
    };
    let Some(result) = check("gpus = 'all'\nnproc = 4") else { return };
    assert_eq!(result, "warning");
    let Some(result) = check("gpus = 'all'\nnproc = 2") else { return };
    assert_eq!(result, "passed");
}

/// Each rank sees the instance that is its own, and its memory there is what is shown; of use, nothing.
#[test]
fn ranks_on_mig_instances_show_memory_only() {
    for hide_pids in ["0", "1"] {
        let knobs = [("gpus", "2"), ("mig", "1"), ("mig_instances", "2"), ("hide_pids", hide_pids)];
        let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
        let named = |last: &str| format!("MIG-00000000-0000-0000-0000-0000000000{last}");
        let given = format!("{},{}", named("01"), named("10"));
        let env = [("CUDA_VISIBLE_DEVICES", given.as_str())];
        let output = machine.command(&["check"], &env).output().unwrap();
        let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && output_text.contains("0=gpu0 1=gpu1"), "{output_text}");
        let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &env));
        let memory = |line: &serde_json::Value, rank: usize| line["per_rank"][rank]["gpu_memory"].as_u64();
        let progress = console.wait_for("memory of both", 120, |line| {
            let both = [0, 1].map(|rank| memory(line, rank).is_some_and(|bytes| bytes > 0));
            line["kind"] == "progress" && both == [true, true]
        });
        for (rank, gpu) in [(0, 0), (1, 1)] {
            assert!(progress["per_rank"][rank]["gpu_percent"].is_null(), "{progress}");
            assert_eq!(progress["per_rank"][rank]["gpu"]["index"], gpu, "{progress}");
        }
        console.signal(libc::SIGINT);
        console.finish(120);
        let placed = std::fs::read_dir(machine.bench.path().join("gpus-of-the-test/gpus/1")).unwrap();
        assert!(placed.count() > 0, "the second rank was on its own GPU");
    }
}

#[test]
fn gpu_with_bad_memory_is_found_before_launch() {
    for (knob, result, code) in [
        (("row_remap", "1 0"), "warning", 0),
        (("retired_pending", "1"), "warning", 0),
        (("ecc_uncorrected", "2"), "warning", 0),
        (("row_remap", "0 1"), "failed", 3),
    ] {
        let Some(machine) = machine(&[knob], "gpus = 'all'") else { return };
        let found = machine.preflight("check", &[]);
        assert_eq!(found.code, Some(code), "{found:#?}");
        let (graded, text) = found.check("gpus");
        assert!(graded == result && text.contains("GPU 0"), "{text}");
    }
}

/// Its environments can be split over one, two and three ranks.
fn split_in_any_way(machine: &Machine) {
    let text = std::fs::read_to_string(&machine.experiment).unwrap();
    std::fs::write(&machine.experiment, text.replace("num_envs = 4", "num_envs = 12")).unwrap();
}

/// What the driver still counts, and what it counts no more. Nothing is started.
#[test]
fn lost_gpu_before_launch_is_reported_with_a_remedy() {
    for (gpus, renumbers, words, help) in [
        ("'all'", "0", "GPU 1", "CUDA_VISIBLE_DEVICES"),
        ("[0, 1]", "0", "GPU 1", "reboot"),
        ("[0, 2]", "1", "580.95.05", "Xid 79"),
        ("3", "1", "580.95.05", "Xid 79"),
    ] {
        let knobs = [("gpus", "3"), ("lost", "1"), ("renumbers", renumbers)];
        let Some(machine) = machine(&knobs, &format!("gpus = {gpus}")) else { return };
        split_in_any_way(&machine);
        for command in ["check", "run"] {
            let found = machine.preflight(command, &[]);
            assert_eq!(found.code, Some(3), "{gpus}, {command}: {found:#?}");
            let (result, text) = found.check("gpus");
            assert!(result == "failed" && text.contains(words) && text.contains(help), "{gpus}: {text}");
        }
        assert!(!machine.folder().join("runs").exists(), "nothing was started");
    }
    // As in the hint.
    let Some(machine) = machine(&[("gpus", "3"), ("lost", "1")], "gpus = 'all'") else { return };
    let output = machine.command(&["check"], &[("CUDA_VISIBLE_DEVICES", "0,2")]).output().unwrap();
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && output_text.contains("0=gpu0 1=gpu1"), "{output_text}");
}

/// Neither the driver's report nor the trainer's check of that GPU.
#[test]
fn lost_gpu_outside_the_plan_refuses_nothing() {
    for (gpus, given, ranks) in [
        ("[0, 2]", None, "ranks 0=gpu0 1=gpu2"),
        ("1", None, "ranks 0=gpu0"),
        ("2\nnproc = 1", None, "ranks 0=gpu0"),
        ("'all'\nnproc = 1", None, "ranks 0=gpu0"),
        ("[]\nnproc = 1", None, "one  ranks 0\n"),
        ("[0, 1]", Some("2,0,1"), "ranks 0=gpu0 1=gpu1"),
    ] {
        let machine = machine(&[("gpus", "3"), ("lost", "1")], &format!("gpus = {gpus}"));
        let Some(machine) = machine else { return };
        split_in_any_way(&machine);
        let given: Vec<_> = given.iter().map(|list| ("CUDA_VISIBLE_DEVICES", *list)).collect();
        let output = machine.command(&["check"], &given).output().unwrap();
        let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && output_text.contains(ranks), "{gpus}: {output_text}");
    }
}

/// A plan, and a sweep that needs free GPUs, count among the given ones.
#[test]
fn fleet_snapshot_lists_the_given_gpus() {
    let Some(machine) = machine(&[("gpus", "4"), ("lost", "3")], "gpus = 'all'") else { return };
    let mut command = rankdeck();
    machine.fake.apply(&mut command);
    command.env("CUDA_VISIBLE_DEVICES", "2,3");
    command.args(["agent", "fleet", "--workdir"]).arg(machine.folder()).args(["--seconds", "1"]);
    let output = command.output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let snapshot = output_text.lines().find_map(|line| line.split_once(' ')).expect("a snapshot").1;
    let snapshot: serde_json::Value = serde_json::from_str(snapshot).unwrap();
    let given = snapshot["given"].as_array().unwrap();
    let lost: Vec<bool> = given.iter().map(|gpu| gpu["lost"] == true).collect();
    assert_eq!(lost, [false, true], "{snapshot:#}");
    assert_eq!(snapshot["sample"]["gpus"].as_array().unwrap().len(), 4, "all are shown: {snapshot:#}");
}

/// The driver then renumbers the others.
#[test]
fn lost_gpu_leaves_metrics_of_the_others() {
    let Some(mut machine) = machine(&[("gpus", "3"), ("renumbers", "1")], "gpus = 'all'") else { return };
    let mut command = rankdeck();
    machine.fake.apply(&mut command);
    command.args(["agent", "fleet", "--workdir"]).arg(machine.folder()).args(["--seconds", "60"]);
    let mut fleet = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = Vec::new();
    for line in BufReader::new(fleet.stdout.take().unwrap()).lines().map_while(Result::ok) {
        let Some(json) = line.split_once(' ').and_then(|(_, json)| serde_json::from_str(json).ok()) else {
            continue;
        };
        let snapshot: serde_json::Value = json;
        let gpus = snapshot["sample"]["gpus"].as_array().unwrap().clone();
        let of =
            |gpu: &serde_json::Value| (gpu["index"].clone(), gpu["utilization"].clone(), gpu["lost"] == true);
        seen.push(gpus.iter().map(of).collect::<Vec<_>>());
        machine.fake.set("lost", "1");
        if seen.len() == 3 {
            break;
        }
    }
    fleet.kill().unwrap();
    fleet.wait().unwrap();
    let of = |index: u32, percent: serde_json::Value, lost: bool| (index.into(), percent, lost);
    assert_eq!(seen[0], [of(0, 50.into(), false), of(1, 60.into(), false), of(2, 70.into(), false)]);
    let none = serde_json::Value::Null;
    assert_eq!(seen[2], [of(0, 50.into(), false), of(1, none, true), of(2, 70.into(), false)], "{seen:?}");
}

#[test]
fn ranks_sharing_a_gpu_show_their_own_utilization() {
    let Some(mut machine) = machine(&[], "gpus = 'all'\nnproc = 2") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let percent = |line: &serde_json::Value| {
        let mut of = [0, 1].map(|rank| line["per_rank"][rank]["gpu_percent"].as_u64());
        of.sort_unstable();
        of
    };
    // The fake's GPU is busy for 50%; its processes use 20% and 21% of it.
    console.wait_for("the share of each", 120, |line| {
        line["kind"] == "progress" && percent(line) == [Some(20), Some(21)]
    });
    // The driver keeps the last samples of idle processes.
    machine.fake.set("idle", "1");
    console.wait_for("no share of either", 60, |line| {
        line["kind"] == "progress" && percent(line) == [Some(50), Some(50)]
    });
    console.signal(libc::SIGINT);
    console.finish(120);
}

#[test]
fn gpu_memory_and_link_errors_are_reported() {
    let knobs = [
        ("ecc_corrected", "7"),
        ("ecc_uncorrected", "2"),
        ("pcie_rx", "1200"),
        ("pcie_tx", "300"),
        ("nvlink_rx", "2048"),
        ("nvlink_tx", "1024"),
        ("nvlink_errors", "3"),
        ("throttle", "4"),
    ];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let progress = console.wait_for("the driver's counters", 120, |line| {
        line["kind"] == "progress" && line["per_rank"][0]["gpu"]["nvlink_rx"].is_u64()
    });
    let gpu = &progress["per_rank"][0]["gpu"];
    assert_eq!((&gpu["ecc_corrected"], &gpu["ecc_uncorrected"]), (&7.into(), &2.into()), "{gpu}");
    assert_eq!((&gpu["pcie_rx"], &gpu["pcie_tx"]), (&1_200_000.into(), &300_000.into()), "{gpu}");
    assert_eq!((&gpu["nvlink_errors"], &gpu["throttle"][0]), (&3.into(), &"power cap".into()), "{gpu}");
    let rate = |way: &str| gpu[way].as_f64().unwrap() / 1024.0;
    // Counters of the fake move by milliseconds.
    assert!((1500.0..2600.0).contains(&rate("nvlink_rx")), "{gpu}");
    assert!((750.0..1300.0).contains(&rate("nvlink_tx")), "{gpu}");
    console.signal(libc::SIGINT);
    console.finish(120);
}

/// A driver that was updated and not reloaded, one that is not loaded, a container without NVML: none of them
/// is "no driver", and each has its own remedy.
#[test]
fn driver_without_gpus_is_reported_with_its_remedy() {
    for (knob, value, hint) in [
        ("nvml", "18", "reboot"),
        ("nvml", "9", "modprobe nvidia"),
        ("without", "libnvidia-ml.so.1:nvmlInit_v2", "NVIDIA_DRIVER_CAPABILITIES"),
    ] {
        for gpus in ["[0, 1]", "1", "'all'"] {
            let Some(machine) = machine(&[("gpus", "2"), (knob, value)], &format!("gpus = {gpus}")) else {
                return;
            };
            split_in_any_way(&machine);
            let found = machine.preflight("check", &[]);
            assert_eq!(found.code, Some(3), "{gpus}: {found:#?}");
            let (result, text) = found.check("gpus");
            assert!(result == "failed" && text.contains(hint), "{gpus}: {text}");
        }
    }
}

/// The user's own list, or Slurm's, is the reason for fewer GPUs than the plan needs.
#[test]
fn visible_devices_list_is_reported_as_the_cause() {
    for (gpus, given) in [("[0, 1]", ""), ("'all'", ""), ("1", "-1"), ("1", "7"), ("[0, 1]", "1")] {
        let Some(machine) = machine(&[("gpus", "2")], &format!("gpus = {gpus}")) else { return };
        split_in_any_way(&machine);
        let found = machine.preflight("check", &[("CUDA_VISIBLE_DEVICES", given)]);
        assert_eq!(found.code, Some(3), "{gpus}, {given:?}: {found:#?}");
        let (result, text) = found.check("gpus");
        assert!(result == "failed" && text.contains("CUDA_VISIBLE_DEVICES"), "{gpus}: {text}");
        assert!(text.contains(&format!("`{given}`")) && !text.contains("Xid"), "{gpus}, {given:?}: {text}");
    }
    for env in ["CUDA_VISIBLE_DEVICES = '1'", "CUDA_VISIBLE_DEVICES = ''"] {
        let Some(machine) = machine(&[("gpus", "2")], &format!("gpus = 'all'\nenv = {{ {env} }}")) else {
            return;
        };
        let output = machine.command(&["check"], &[]).output().unwrap();
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{env}: {output_text}");
        assert!(
            output_text.contains("CUDA_VISIBLE_DEVICES") && output_text.contains("--gpus 2,3"),
            "{output_text}"
        );
    }
}
