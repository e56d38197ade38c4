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

/// `None` has been noted as a skip.
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

    /// Ranks whose environments take their time: what these tests wait for is no matter of steps.
    pub fn command(&self, args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = rankdeck();
        self.fake.apply(&mut command);
        command.env("TRAINER_INJECT", "pace=1@all:0");
        command.args(args).arg(&self.experiment).arg("--hosts").arg(&self.hosts);
        command.current_dir(self.bench.path()).envs(env.iter().copied());
        command
    }
}

#[test]
fn figures_are_those_of_the_gpus_that_the_user_gave() {
    figures_under("2,3", "0");
}

/// In a container, NVML tells pids that are those of no rank.
#[test]
fn figures_are_those_of_the_given_gpus_where_pids_are_hidden() {
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
fn a_check_computes_on_the_gpus_and_says_when_the_network_is_too_small_for_them() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let output = machine.command(&["check"], &[]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("ranks 0=gpu0 1=gpu1") && said.contains("a network this small"), "{said}");
    assert!(machine.fake.counts("-")["gemms"] >= 2, "the preflight has the trainer compute");
}

#[test]
fn a_gpu_that_the_trainer_cannot_use_is_found_before_the_launch() {
    let Some(machine) = machine(&[("gpus", "2"), ("driver", "12040")], "gpus = 'all'") else { return };
    let output = machine.command(&["check"], &[]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("the trainer cannot use them") && said.contains("supports CUDA 12.4"), "{said}");
}

#[test]
fn a_library_of_another_version_is_found_before_the_launch() {
    for (knob, words, help) in [
        (("without", "libnccl.so.2:ncclCommSplit"), "libnccl.so.2 has no ncclCommSplit", "nvidia-nccl-cu13"),
        (("cudnn", "90100"), "cuDNN 9.1.0 is too old", "nvidia-cudnn-cu13"),
    ] {
        let Some(machine) = machine(&[knob], "gpus = 'all'") else { return };
        for command in ["check", "run"] {
            let output = machine.command(&[command], &[]).output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(output.status.code(), Some(3), "{command}: {said}");
            assert!(said.contains("the trainer cannot use them") && said.contains(words), "{said}");
            assert!(said.contains(help), "{said}");
        }
        assert!(!machine.folder().join("runs").exists(), "nothing was started");
    }
}

/// What the first words of the logs of a sweep's runs say, one for each of `--seeds 1..RUNS` with a GPU, and
/// what the sweep said.
fn swept(machine: &Machine, runs: u32, env: &[(&str, &str)]) -> (Vec<String>, String) {
    let script = "echo gpu=$CUDA_VISIBLE_DEVICES local=$LOCAL_RANK ranks=$WORLD_SIZE; sleep 1";
    let text = format!("[run]\nname = 'cells'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n");
    std::fs::write(&machine.experiment, text).unwrap();
    let seeds = format!("1..{runs}");
    let args = ["run", "--seeds", seeds.as_str(), "--gpus-per-run", "1"];
    let output = machine.command(&args, env).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let folders = std::fs::read_dir(machine.bench.path().join("runs")).unwrap().flatten();
    let sweep = folders.map(|entry| entry.path()).find(|path| path.join("sweep.json").exists()).unwrap();
    let sweep = std::fs::read_to_string(sweep.join("sweep.json")).unwrap();
    let sweep: serde_json::Value = serde_json::from_str(&sweep).unwrap();
    let told = |cell: &serde_json::Value| {
        let run = cell["run"].as_str().unwrap();
        let log = machine.bench.path().join(format!("runs/{run}/node0/gen0/rank0.log"));
        let text = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{log:?}: {error}"));
        let line = text.lines().find(|line| line.contains("gpu=")).unwrap_or_else(|| panic!("{text}"));
        line[line.find("gpu=").unwrap()..].to_owned()
    };
    (sweep["cells"].as_array().unwrap().iter().map(told).collect(), said)
}

#[test]
fn a_sweep_gives_each_run_a_free_gpu_of_its_own() {
    let Some(machine) = machine(&[("gpus", "3")], "gpus = 'all'") else { return };
    let (mut logs, said) = swept(&machine, 4, &[]);
    assert!(said.contains("one: 3 of 3 GPUs free") && said.contains("4 runs, 3 at once"), "{said}");
    logs.sort();
    logs.dedup();
    assert_eq!(logs, [0, 1, 2].map(|gpu| format!("gpu={gpu} local=0 ranks=1")), "all have had a run");
}

/// A plan counts among the GPUs that programs see.
#[test]
fn a_sweep_gives_its_runs_the_gpus_that_the_user_has_and_no_others() {
    let Some(machine) = machine(&[("gpus", "4")], "gpus = 'all'") else { return };
    let (mut logs, said) = swept(&machine, 2, &[("CUDA_VISIBLE_DEVICES", "2,3")]);
    assert!(said.contains("one: 2 of 2 GPUs free") && said.contains("2 runs, 2 at once"), "{said}");
    logs.sort();
    assert_eq!(logs, [2, 3].map(|gpu| format!("gpu={gpu} local=0 ranks=1")));
}

#[test]
fn a_sweep_gives_each_run_an_instance_of_mig_of_its_own() {
    let knobs = [("gpus", "2"), ("mig", "1"), ("mig_instances", "2")];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let named = ["00", "01", "10"].map(|last| format!("MIG-00000000-0000-0000-0000-0000000000{last}"));
    let (mut logs, said) = swept(&machine, 3, &[("CUDA_VISIBLE_DEVICES", named.join(",").as_str())]);
    assert!(said.contains("one: 3 of 3 GPUs free") && said.contains("3 runs, 3 at once"), "{said}");
    logs.sort();
    assert_eq!(logs, named.map(|name| format!("gpu={name} local=0 ranks=1")));
}

/// Of MIG, a process uses one instance, and calls it `cuda:0`; a script calls its GPU `cuda:LOCAL_RANK`.
#[test]
fn scripts_on_instances_of_mig_find_their_own_as_cuda_local_rank() {
    let knobs = [("gpus", "1"), ("mig", "1"), ("mig_instances", "2")];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let script = "echo rank=$RANK gpu=$CUDA_VISIBLE_DEVICES local=$LOCAL_RANK";
    let text = format!("[run]\nname = 'mig'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n");
    std::fs::write(&machine.experiment, text).unwrap();
    let named = ["00", "01"].map(|last| format!("MIG-00000000-0000-0000-0000-0000000000{last}"));
    let env = [("CUDA_VISIBLE_DEVICES", named.join(","))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let output = machine.command(&["run", "--headless", "--logs"], &env).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    for (rank, name) in named.iter().enumerate() {
        assert!(said.contains(&format!("rank={rank} gpu={name} local=0")), "{said}");
    }
}

/// The first run ends only when the second has run: both need the GPU that comes back.
#[test]
fn a_sweep_takes_a_gpu_that_becomes_free_while_cells_wait() {
    let Some(mut machine) = machine(&[("gpus", "2"), ("lost", "1")], "gpus = 'all'") else { return };
    let met = machine.bench.path().join("met");
    let script = format!(
        "if [ $CUDA_VISIBLE_DEVICES = 1 ]; then touch {0}; else until [ -e {0} ]; do sleep 0.1; done; fi",
        met.display()
    );
    let text = format!("[run]\nname = 'cells'\n[launch]\ncommand = ['/bin/sh', '-c', '{script}']\n");
    std::fs::write(&machine.experiment, text).unwrap();
    let mut command = machine.command(&["run", "--seeds", "1..2", "--gpus-per-run", "1"], &[]);
    let log = machine.bench.path().join("told");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut sweep = command.spawn().unwrap();
    let told = || std::fs::read_to_string(&log).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !told().contains("2 runs, 1 at once") {
        assert!(Instant::now() < deadline && sweep.try_wait().unwrap().is_none(), "{}", told());
        std::thread::sleep(Duration::from_millis(20));
    }
    machine.fake.set("lost", "-1");
    while sweep.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            // Cleanly: it takes its runs along.
            Command::new("kill").arg(sweep.id().to_string()).status().unwrap();
            sweep.wait().unwrap();
            panic!("{}", told());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sweep.wait().unwrap().success(), "{}", told());
    assert!(told().contains("one: GPU 1 is free now"), "{}", told());
}

#[test]
fn a_gpu_that_is_named_twice_is_refused_before_the_launch() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let again = [("CUDA_VISIBLE_DEVICES", "0,GPU-00000000-0000-0000-0000-000000000000")];
    let output = machine.command(&["check"], &again).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("CUDA_VISIBLE_DEVICES names NVIDIA H200 (GPU-00000000") && said.contains("twice"),
        "{said}"
    );

    // Two entries of the file that are one machine.
    let text = std::fs::read_to_string(&machine.hosts).unwrap();
    std::fs::write(&machine.hosts, format!("{text}{}", text.replace("'one'", "'two'"))).unwrap();
    let output = machine.command(&["check"], &[]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("is one of host one, too"), "{said}");
    let apart = text.replace("'all'", "[0]") + &text.replace("'one'", "'two'").replace("'all'", "[1]");
    std::fs::write(&machine.hosts, apart).unwrap();
    let output = machine.command(&["check"], &[]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ranks_that_will_share_gpus_are_told_before_the_launch() {
    let check = |gpus: &str| {
        let machine = machine(&[("gpus", "2")], gpus)?;
        let output = machine.command(&["check"], &[]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{said}");
        Some(said)
    };
    let Some(said) = check("gpus = 'all'\nnproc = 4") else { return };
    assert!(said.contains("4 ranks share 2 GPUs"), "{said}");
    let Some(said) = check("gpus = 'all'\nnproc = 2") else { return };
    assert!(!said.contains("share"), "{said}");
}

/// Each rank sees the instance that is its own, and its memory there is what is shown; of use, nothing.
#[test]
fn ranks_on_instances_of_mig_show_memory_and_no_use() {
    for hide_pids in ["0", "1"] {
        let knobs = [("gpus", "2"), ("mig", "1"), ("mig_instances", "2"), ("hide_pids", hide_pids)];
        let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
        let named = |last: &str| format!("MIG-00000000-0000-0000-0000-0000000000{last}");
        let given = format!("{},{}", named("01"), named("10"));
        let env = [("CUDA_VISIBLE_DEVICES", given.as_str())];
        let output = machine.command(&["check"], &env).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("ranks 0=gpu0 1=gpu1"), "{said}");
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
fn a_gpu_with_bad_memory_is_told_before_the_launch() {
    for (knob, words, code) in [
        (("row_remap", "1 0"), "bad memory is replaced at the next reset only", 0),
        (("retired_pending", "1"), "bad memory is replaced at the next reset only", 0),
        (("ecc_uncorrected", "2"), "2 memory errors not corrected", 0),
        (("row_remap", "0 1"), "no spare rows are left", 3),
    ] {
        let Some(machine) = machine(&[knob], "gpus = 'all'") else { return };
        let output = machine.command(&["check"], &[]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(words), "{said}");
    }
}

/// Its environments can be split over one, two and three ranks.
pub fn split_in_any_way(machine: &Machine) {
    let text = std::fs::read_to_string(&machine.experiment).unwrap();
    std::fs::write(&machine.experiment, text.replace("num_envs = 4", "num_envs = 12")).unwrap();
}

/// What the driver still counts, and what it counts no more. Nothing is started.
#[test]
fn a_gpu_that_has_fallen_off_before_the_launch_is_told_with_what_to_do() {
    let counted = "GPU 1 has fallen off the bus: the driver does not reach it any more";
    for (gpus, renumbers, words, help) in [
        ("'all'", "0", counted, "CUDA_VISIBLE_DEVICES"),
        ("[0, 1]", "0", counted, "reboot the host"),
        ("[0, 2]", "1", "GPU 2 is wanted, and 2 are there: driver 580.95.05", "Xid 79"),
        ("3", "1", "GPU 2 is wanted, and 2 are there: driver 580.95.05", "Xid 79"),
    ] {
        let knobs = [("gpus", "3"), ("lost", "1"), ("renumbers", renumbers)];
        let Some(machine) = machine(&knobs, &format!("gpus = {gpus}")) else { return };
        split_in_any_way(&machine);
        for command in ["check", "run"] {
            let output = machine.command(&[command], &[]).output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(output.status.code(), Some(3), "{command}: {said}");
            assert!(said.contains(words) && said.contains(help), "{gpus}, {command}: {said}");
        }
        assert!(!machine.folder().join("runs").exists(), "nothing was started");
    }
    // As the hint says.
    let Some(machine) = machine(&[("gpus", "3"), ("lost", "1")], "gpus = 'all'") else { return };
    let output = machine.command(&["check"], &[("CUDA_VISIBLE_DEVICES", "0,2")]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("ranks 0=gpu0 1=gpu1"), "{said}");
}

/// Neither what the driver says of it nor what the trainer finds when it tries.
#[test]
fn a_lost_gpu_that_the_plan_leaves_out_refuses_nothing() {
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
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains(ranks), "{gpus}: {said}");
    }
}

/// A plan counts among the GPUs that were given, and so does a sweep that looks for free ones.
#[test]
fn a_look_at_a_host_tells_the_gpus_that_were_given() {
    let Some(machine) = machine(&[("gpus", "4"), ("lost", "3")], "gpus = 'all'") else { return };
    let mut command = rankdeck();
    machine.fake.apply(&mut command);
    command.env("CUDA_VISIBLE_DEVICES", "2,3");
    command.args(["agent", "fleet", "--workdir"]).arg(machine.folder()).args(["--seconds", "1"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let look = said.lines().find_map(|line| line.split_once(' ')).expect("a look").1;
    let look: serde_json::Value = serde_json::from_str(look).unwrap();
    let given = look["given"].as_array().unwrap();
    let lost: Vec<bool> = given.iter().map(|gpu| gpu["lost"] == true).collect();
    assert_eq!(lost, [false, true], "{look:#}");
    assert_eq!(look["sample"]["gpus"].as_array().unwrap().len(), 4, "all are shown: {look:#}");
}

/// The driver then counts the others anew.
#[test]
fn a_lost_gpu_leaves_the_others_their_figures() {
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
        let look: serde_json::Value = json;
        let gpus = look["sample"]["gpus"].as_array().unwrap().clone();
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
fn ranks_that_share_a_gpu_show_what_each_of_them_uses() {
    let Some(mut machine) = machine(&[], "gpus = 'all'\nnproc = 2") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let percent = |line: &serde_json::Value| {
        let mut of = [0, 1].map(|rank| line["per_rank"][rank]["gpu_percent"].as_u64());
        of.sort_unstable();
        of
    };
    // The fake's GPU is busy for 50 %; its processes use 20 % and 21 % of it.
    console.wait_for("the share of each", 120, |line| {
        line["kind"] == "progress" && percent(line) == [Some(20), Some(21)]
    });
    // The driver keeps what it told last of processes that do nothing any more.
    machine.fake.set("idle", "1");
    console.wait_for("no share of either", 60, |line| {
        line["kind"] == "progress" && percent(line) == [Some(50), Some(50)]
    });
    console.signal(libc::SIGINT);
    console.finish(120);
}

#[test]
fn errors_of_memory_and_links_and_what_goes_over_them_are_told() {
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
    let progress = console.wait_for("what the driver tells", 120, |line| {
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
