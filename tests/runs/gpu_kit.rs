//! The kit for a bare machine with a GPU (`benches/gpu`), on fake GPUs: every stage ends, and its result is
//! complete. Kernels of the fakes do nothing, so numbers are not checked.

use crate::gpus::{Machine, machine};
use crate::support::{trainer, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A fake nvidia-smi: with lists of fields, for processes, and without arguments.
const SMI: &str = r#"#!/bin/sh
case "$*" in
  *query-compute-apps*) echo "1234, 512" ;;
  *-lms*) while :; do echo "50, 1024, 300.5, 60, 1980"; sleep 0.1; done ;;
  *query-gpu*) echo "0, NVIDIA H200" ;;
  *) echo "NVIDIA-SMI 580.95.05" ;;
esac
"#;

struct Kit {
    machine: Machine,
    folder: PathBuf,
    /// `None`: the packed ones.
    programs: Option<PathBuf>,
    out: PathBuf,
    python: String,
}

/// A kit without packed programs: packing them takes long, so one test does it.
fn kit() -> Option<Kit> {
    kit_with("no")
}

/// A kit and a Python with torch and the emulators; `None` if the test is skipped.
fn kit_with(packed: &str) -> Option<Kit> {
    let machine = machine(&[], "gpus = 'all'")?;
    let named = rankdeck_testkit::python("numpy, gymnasium, ale_py, torch")?;
    // The kit asks for the interpreter itself: a wrapper may set variables of its own.
    let answer = Command::new(named).args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(answer.stdout).unwrap().trim().to_owned();
    let built = trainer().unwrap().parent().unwrap().to_path_buf();
    let programs = if packed == "yes" { stripped(&built, machine.bench.path()) } else { built };
    let (folder, out) = (machine.bench.path().join("kit"), machine.bench.path().join("out"));
    let output = packing(&programs, &folder, packed, "no").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let programs = (packed == "no").then_some(programs);
    std::fs::create_dir(machine.bench.path().join("bin")).unwrap();
    let smi = machine.bench.write("bin/nvidia-smi", SMI);
    let run = Command::new("chmod").arg("755").arg(&smi).status().unwrap();
    assert!(run.success());
    Some(Kit { machine, folder, programs, out, python })
}

/// The programs without symbols, which are most of their size.
fn stripped(built: &Path, bench: &Path) -> PathBuf {
    let folder = bench.join("stripped");
    std::fs::create_dir(&folder).unwrap();
    for name in ["rankdeck", "rankdeck-trainer"] {
        let strip = Command::new("strip").arg("-o").arg(folder.join(name)).arg(built.join(name)).status();
        assert!(strip.unwrap().success(), "{name}");
    }
    folder
}

/// The command that packs a kit, with or without programs and wheels.
fn packing(programs: &Path, folder: &Path, packed: &str, wheels: &str) -> Command {
    let mut pack = Command::new("sh");
    pack.arg(rankdeck_testkit::repository("benches/gpu/pack.sh")).arg(programs).arg(folder);
    pack.env("WHEELS", wheels).env("LEVEL", "-0").env("PROGRAMS", packed);
    pack
}

impl Kit {
    fn command(&self, only: &str, budget: &str) -> Command {
        self.command_of(&self.folder.join("drive.py"), only, budget)
    }

    fn command_of(&self, program: &Path, only: &str, budget: &str) -> Command {
        let mut command = Command::new(&self.python);
        self.machine.fake.apply(&mut command);
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.machine.bench.path().join("bin");
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("PYTHONPATH", self.machine.fake.built().join("python"));
        // What the trainer of the tests would get from its launcher.
        command.env("OMP_NUM_THREADS", "1");
        command.arg(program).arg("--out").arg(&self.out);
        command.args(["--quick", "0.01", "--budget", budget, "--only", only]);
        command.arg("--torch").arg(self.machine.fake.libtorch());
        if let Some(programs) = &self.programs {
            command.arg("--programs").arg(programs);
        }
        command
    }

    fn stages(&self) -> Value {
        let text = std::fs::read_to_string(self.out.join("result.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["stages"].clone()
    }

    /// Runs a stage to its end; returns its result.
    fn drive(&self, stage: &str) -> Value {
        let [found] = self.drive_all([stage]);
        found
    }

    /// Runs several stages; returns their results.
    fn drive_all<const N: usize>(&self, names: [&str; N]) -> [Value; N] {
        let output = self.command(&names.join(","), "1000").output().unwrap();
        let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{output_text}");
        let errors = std::fs::read_to_string(self.out.join("rankdeck.err")).unwrap_or_default();
        let stages = self.stages();
        names.map(|name| {
            let stage = &stages[name];
            assert_eq!(stage["state"], "done", "{stage:#}\n{errors}");
            stage["found"].clone()
        })
    }
}

/// Whether a result has a rate above 0.
fn is_rate(found: &Value) -> bool {
    found["steps_per_s"].as_f64().is_some_and(|rate| rate > 0.0)
}

#[test]
fn gpu_kit_reports_machine_and_cuda() {
    let Some(kit) = kit_with("yes") else { return };
    let [environment, found] = kit.drive_all(["environment", "load"]);
    assert!(environment["smi"].as_str().unwrap().contains("580.95.05"), "{environment}");
    assert_eq!(found["check_gpu"]["code"], 0, "{found}");
    assert_eq!((&found["on_gpu"], &found["preflight"]["code"]), (&true.into(), &0.into()), "{found}");
    let output = kit.command("pong", "1").output().unwrap();
    assert!(output.status.success());
    let stages = kit.stages();
    assert_eq!(stages["pong"]["state"], "skipped", "{stages}");
    assert_eq!(stages["load"]["state"], "done", "what other stages have found stays: {stages}");
    let unknown = kit.command("nonsense", "1").output().unwrap();
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("nonsense"));
}

#[test]
fn gpu_kit_ranks_agree_over_nccl() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("nccl");
    for ranks in [1, 2, 4] {
        let found = &found[format!("{ranks} ranks")];
        assert_eq!(found["joined"].as_array().unwrap().len(), ranks, "{found:#}");
        assert_eq!(found["consistent"], true, "{found:#}");
        assert_eq!(found["finished"]["exit_code"], 0, "{found:#}");
    }
}

/// Both end with weights; on a fake GPU they differ.
#[test]
fn gpu_kit_compares_gpu_and_cpu_weights() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("equality");
    for iterations in [1, 4, 16] {
        let found = found[format!("{iterations} iterations")].as_object().unwrap();
        let pairs: Vec<&String> = found.keys().collect();
        assert_eq!(pairs, ["cpu1-gpu1", "cpu2-gpu2", "gpu1-again", "gpu1-gpu2"], "{found:#?}");
        assert!(found.values().all(Value::is_number), "{found:#?}");
        assert_eq!(found["gpu1-again"], 0.0, "{found:#?}");
    }
}

#[test]
fn gpu_kit_records_verdicts_on_frozen_and_killed_ranks() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("hang");
    for (what, verdict) in [("frozen", "frozen"), ("killed", "dead")] {
        let found = &found[what];
        assert_eq!(found["trained"], true, "{found:#}");
        let verdicts = found["verdicts"].as_array().unwrap();
        let named = verdicts.iter().any(|line| line["rank"] == 1 && line["verdict"] == verdict);
        assert!(named, "{verdict}: {found:#}");
    }
}

#[test]
fn gpu_kit_measures_pong_beside_cleanrl() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("pong");
    let found = found.as_object().unwrap();
    assert_eq!(found.len(), 11, "{found:#?}");
    assert!(found.values().all(is_rate), "{found:#?}");
}

#[test]
fn gpu_kit_measures_all_reduces_beside_torch() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("all_reduce");
    for name in ["rankdeck, 2 ranks", "torch.distributed, 1 ranks", "torch.distributed, 2 ranks"] {
        assert_eq!(found[name].as_array().map(Vec::len), Some(5), "{name}: {found:#}");
    }
    assert_eq!(found["rankdeck's time in torch.distributed's"].as_object().unwrap().len(), 5, "{found:#}");
}

#[test]
fn gpu_kit_measures_sac_dqn_and_small_networks() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("rates");
    let rates = found.as_object().unwrap();
    assert!(rates.len() == 4 && rates.values().all(is_rate), "{rates:#?}");
    let found = kit.drive("small");
    let small = found.as_object().unwrap();
    assert!(small.len() == 3 && small.values().all(|found| found["code"] == 0), "{small:#?}");
}

#[test]
fn gpu_kit_measures_layouts_and_precisions() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("precision");
    let rates = found.as_object().unwrap();
    assert!(rates.len() == 6 && rates.values().all(is_rate), "{rates:#?}");
}

#[test]
fn gpu_kit_counts_and_times_calls() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("profile");
    for name in ["pong", "pong, graphs", "cartpole"] {
        assert_eq!(found[name]["code"], 0, "{found:#}");
        let counts = &found[name]["counts"][0];
        let called = |what: &str| counts[what][0].as_u64().is_some_and(|calls| calls > 0);
        assert!(called("launch") && called("memcpy_async"), "{name}: {found:#}");
    }
    assert!(found["ncclAllReduce"]["version"].is_u64(), "{found:#}");
}

#[test]
fn gpu_kit_checks_nvml_scripts_and_screens() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("nvml");
    assert!(found["rankdeck"]["power_w"].is_f64() && found["nvidia-smi"]["power.draw"].is_f64(), "{found:#}");
    assert!(found["rankdeck"]["gpu_memory of a rank, MiB"].as_f64().unwrap() > 0.0, "{found:#}");
    let found = kit.drive("script");
    let runs = &found["runs"];
    assert_eq!(runs["finished"]["exit_code"], 0, "{runs:#}");
    assert!(runs["lines"].to_string().contains("step "), "{runs:#}");
    // Only a real GPU shows which rank is named: the fake NCCL polls, which counts as work.
    assert_eq!(found["a rank leaves one out"]["summary"]["finished"], Value::Null, "{found:#}");
    let found = kit.drive("screens");
    assert_eq!(found["exit code"], 130, "the run is stopped by keys, and the console leaves: {found:#}");
    assert!(found["bytes"].as_u64().unwrap() > 4000, "{found:#}");
    let typescript = std::fs::read(kit.out.join("screens.typescript")).unwrap();
    assert!(String::from_utf8_lossy(&typescript).contains("screens"), "the name of the run is drawn");
}

/// A whole kit with wheels for this machine's Python; torch has their other dependencies.
#[test]
fn gpu_kit_wheels_fit_and_install_offline() {
    let Some(python) = rankdeck_testkit::python("venv, pip") else { return };
    let ask = "import sys; print('%d.%d %s' % (*sys.version_info[:2], sys.executable))";
    let answer = Command::new(python).args(["-c", ask]).output().unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    let (version, python) = answer.trim().split_once(' ').unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (kit, venv) = (folder.path().join("kit"), folder.path().join("venv"));
    let programs = folder.path().join("bin");
    let mut pack = packing(&programs, &kit, "no", "yes");
    pack.env("VERSION", version).env("PYTHON", python);
    let output = pack.env("PIP_RETRIES", "8").env("PIP_DEFAULT_TIMEOUT", "20").output().unwrap();
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        assert!(!output_text.contains("MiB is more than 60"), "{output_text}");
        rankdeck_testkit::skipped(&format!("pip cannot fetch the wheels: {}", output_text.trim()));
        return;
    }
    let size: u64 =
        output_text.split("kit, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    assert!((2..=60).contains(&size), "{output_text}");
    let pip = |args: &[&str]| {
        let mut command = Command::new(venv.join("bin/python"));
        command.args(["-m", "pip", "-q", "--isolated", "--disable-pip-version-check"]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    assert!(Command::new(python).args(["-m", "venv"]).arg(&venv).status().unwrap().success());
    let wheels = kit.join("wheels");
    let names = ["ale-py", "gymnasium", "cloudpickle", "farama-notifications"];
    let from = ["install", "--no-index", "--no-deps", "--find-links", wheels.to_str().unwrap()];
    pip(&[from.as_slice(), &names].concat());
    pip(&[["show"].as_slice(), &names].concat());
    assert_eq!(std::fs::read_dir(&wheels).unwrap().count(), names.len(), "each wheel is of use");
}

/// The limit is for programs and wheels together.
#[test]
fn oversized_gpu_kit_is_refused_with_its_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let (programs, kit) = (folder.path().join("bin"), folder.path().join("kit"));
    std::fs::create_dir(&programs).unwrap();
    // As good as random: xz makes nothing of it.
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let noise: Vec<u8> = (0..1 << 19).flat_map(|_| next().to_le_bytes()).collect();
    std::fs::write(programs.join("rankdeck"), noise).unwrap();
    std::fs::write(programs.join("rankdeck-trainer"), "").unwrap();
    let output = packing(&programs, &kit, "yes", "no").env("MOST", "1").output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    assert!(output_text.contains("programs.tar.xz"), "{output_text}");
}

/// Command lines of processes that have a folder in their environment.
fn users(folder: &Path) -> Vec<String> {
    let expected = folder.to_str().unwrap();
    let text =
        |path: PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).replace('\0', " ");
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let users = processes.filter(|path| text(path.join("environ")).contains(expected));
    users.map(|path| text(path.join("cmdline"))).collect()
}

/// Waits for the end of a signaled kit: its result is complete, and no process and no file is left.
fn ends(kit: &Kit, drive: &mut Child, stage: &str, temporary: &Path) {
    assert_eq!(drive.wait().unwrap().code(), Some(128 + libc::SIGTERM), "{stage}");
    assert_eq!(kit.stages()[stage]["state"], "stopped");
    assert_eq!(users(temporary), [""; 0], "processes are left in {}", temporary.display());
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0, "its folder is gone");
}

/// A folder for a kit's temporary files.
fn temporary(kit: &Kit, stage: &str, command: &mut Command) -> PathBuf {
    let temporary = kit.machine.bench.path().join(format!("tmp-{stage}"));
    std::fs::create_dir(&temporary).unwrap();
    command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    temporary
}

/// During a program, and during a run.
#[test]
fn stopped_gpu_kit_leaves_its_result_and_no_process() {
    let Some(kit) = kit() else { return };
    // Ranks have a number where a console starts them.
    for (stage, rank) in [("small", "-"), ("pong", "0")] {
        let mut command = kit.command(&format!("environment,{stage}"), "300");
        let temporary = temporary(&kit, stage, command.arg("--quick").arg("1"));
        let mut drive = command.spawn().unwrap();
        wait_until("the stage trains", 120, || kit.machine.fake.counts(rank).contains_key("launches"));
        // SAFETY: kill of a process of this test.
        unsafe { libc::kill(drive.id() as i32, libc::SIGTERM) };
        ends(&kit, &mut drive, stage, &temporary);
        assert_eq!(kit.stages()["environment"]["state"], "done");
    }
}

/// The kit, signaled when it has started a process, and again while it ends that process.
const SIGNALLED: &str = r#"
import os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, str(pathlib.Path(__file__).parent / "kit"))
import drive

class Popen(subprocess.Popen):
    def __init__(self, *command, **options):
        super().__init__(*command, **options)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
    def wait(self, timeout=None):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(timeout)

subprocess.Popen = Popen
drive.main()
"#;

#[test]
fn stopped_gpu_kit_leaves_no_process() {
    let Some(kit) = kit() else { return };
    let signalled = kit.machine.bench.write("signalled.py", SIGNALLED);
    for stage in ["small", "pong", "all_reduce"] {
        let mut command = kit.command_of(&signalled, stage, "300");
        let temporary = temporary(&kit, stage, command.arg("--quick").arg("1"));
        ends(&kit, &mut command.spawn().unwrap(), stage, &temporary);
    }
}
