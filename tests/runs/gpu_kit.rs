//! The kit for a bare machine with a GPU (`benches/gpu`), rehearsed on fake ones: every stage ends as it
//! would there, and what it has found is whole. Kernels of the fakes do nothing, so nothing is said about
//! numbers.

use crate::gpus::{Machine, machine};
use crate::support::{trainer, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What stands in for nvidia-smi: it is asked for lists of fields, for processes, and by itself.
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
    /// None where they are the packed ones.
    programs: Option<PathBuf>,
    out: PathBuf,
    python: String,
}

/// Packed for that machine; its programs are packed and unpacked by one of the tests, for it takes long.
fn kit() -> Option<Kit> {
    kit_with("no")
}

/// With a Python that has torch and the emulators, as the machine there has; `None` has been noted as a skip.
fn kit_with(packed: &str) -> Option<Kit> {
    let machine = machine(&[], "gpus = 'all'")?;
    let named = rankdeck_testkit::python("numpy, gymnasium, ale_py, torch")?;
    // The kit asks for the interpreter itself: a wrapper may set variables of its own.
    let told = Command::new(named).args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(told.stdout).unwrap().trim().to_owned();
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

/// Without symbols, which are most of what there is to pack and unpack.
fn stripped(built: &Path, bench: &Path) -> PathBuf {
    let folder = bench.join("stripped");
    std::fs::create_dir(&folder).unwrap();
    for name in ["rankdeck", "rankdeck-trainer"] {
        let strip = Command::new("strip").arg("-o").arg(folder.join(name)).arg(built.join(name)).status();
        assert!(strip.unwrap().success(), "{name}");
    }
    folder
}

/// The kit's own packing, with the programs and the wheels or without.
fn packing(programs: &Path, folder: &Path, packed: &str, wheels: &str) -> Command {
    let mut pack = Command::new("sh");
    pack.arg(rankdeck_testkit::repository("benches/gpu/pack.sh")).arg(programs).arg(folder);
    pack.env("WHEELS", wheels).env("LEVEL", "-0").env("PROGRAMS", packed);
    pack
}

impl Kit {
    fn command(&self, only: &str, budget: &str) -> Command {
        let mut command = Command::new(&self.python);
        self.machine.fake.apply(&mut command);
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.machine.bench.path().join("bin");
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("PYTHONPATH", self.machine.fake.built().join("python"));
        // What the trainer of the tests would get from its launcher.
        command.env("OMP_NUM_THREADS", "1");
        command.arg(self.folder.join("drive.py")).arg("--out").arg(&self.out);
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

    /// What a stage has found, which ends well.
    fn drive(&self, stage: &str) -> Value {
        let [found] = self.drive_all([stage]);
        found
    }

    /// The same of several, one after the other.
    fn drive_all<const N: usize>(&self, names: [&str; N]) -> [Value; N] {
        let output = self.command(&names.join(","), "1000").output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{said}");
        let errors = std::fs::read_to_string(self.out.join("rankdeck.err")).unwrap_or_default();
        let stages = self.stages();
        names.map(|name| {
            let stage = &stages[name];
            assert_eq!(stage["state"], "done", "{stage:#}\n{errors}");
            stage["found"].clone()
        })
    }
}

/// A number above 0 where there is one to be.
fn is_rate(found: &Value) -> bool {
    found["steps_per_s"].as_f64().is_some_and(|rate| rate > 0.0)
}

#[test]
fn the_gpu_kit_tells_the_machine_and_whether_cuda_loads_and_keeps_its_result_whole() {
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
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no stage nonsense: environment, load, nccl"));
}

#[test]
fn the_gpu_kit_has_ranks_agree_over_nccl() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("nccl");
    for ranks in [1, 2, 4] {
        let found = &found[format!("{ranks} ranks")];
        assert_eq!(found["joined"].as_array().unwrap().len(), ranks, "{found:#}");
        assert_eq!(found["consistent"], true, "{found:#}");
        assert_eq!(found["finished"]["exit_code"], 0, "{found:#}");
    }
}

/// Both roads end and give weights; on a fake they differ.
#[test]
fn the_gpu_kit_compares_the_gpus_weights_with_the_cpus() {
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
fn the_gpu_kit_freezes_and_kills_ranks_and_tells_what_was_said() {
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
fn the_gpu_kit_measures_pong_beside_cleanrls_update() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("pong");
    let found = found.as_object().unwrap();
    assert_eq!(found.len(), 11, "{found:#?}");
    assert!(found.values().all(is_rate), "{found:#?}");
}

#[test]
fn the_gpu_kit_measures_all_reduces_beside_torchs() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("all_reduce");
    for name in ["rankdeck, 2 ranks", "torch.distributed, 1 ranks", "torch.distributed, 2 ranks"] {
        assert_eq!(found[name].as_array().map(Vec::len), Some(5), "{name}: {found:#}");
    }
    assert_eq!(found["rankdeck's time in torch.distributed's"].as_object().unwrap().len(), 5, "{found:#}");
}

#[test]
fn the_gpu_kit_measures_sac_dqn_and_small_networks() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("rates");
    let rates = found.as_object().unwrap();
    assert!(rates.len() == 4 && rates.values().all(is_rate), "{rates:#?}");
    let found = kit.drive("small");
    let small = found.as_object().unwrap();
    assert!(small.len() == 3 && small.values().all(|found| found["code"] == 0), "{small:#?}");
}

#[test]
fn the_gpu_kit_measures_layouts_and_precisions() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("precision");
    let rates = found.as_object().unwrap();
    assert!(rates.len() == 6 && rates.values().all(is_rate), "{rates:#?}");
}

#[test]
fn the_gpu_kit_counts_and_times_calls() {
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
fn the_gpu_kit_shows_gpus_beside_nvidia_smi_scripts_and_screens() {
    let Some(kit) = kit() else { return };
    let found = kit.drive("nvml");
    assert!(found["rankdeck"]["power_w"].is_f64() && found["nvidia-smi"]["power.draw"].is_f64(), "{found:#}");
    assert!(found["rankdeck"]["gpu_memory of a rank, MiB"].as_f64().unwrap() > 0.0, "{found:#}");
    let found = kit.drive("script");
    let runs = &found["runs"];
    assert_eq!(runs["finished"]["exit_code"], 0, "{runs:#}");
    assert!(runs["lines"].to_string().contains("step "), "{runs:#}");
    // Who is named is for a real GPU to show: NCCL of the fake polls, which looks like work.
    assert_eq!(found["a rank leaves one out"]["summary"]["finished"], Value::Null, "{found:#}");
    let found = kit.drive("screens");
    assert_eq!(found["exit code"], 130, "the run is stopped by keys, and the console leaves: {found:#}");
    assert!(found["bytes"].as_u64().unwrap() > 4000, "{found:#}");
    let typescript = std::fs::read(kit.out.join("screens.typescript")).unwrap();
    assert!(String::from_utf8_lossy(&typescript).contains("screens"), "the name of the run is drawn");
}

/// Whole kits that are downloaded for this machine's Python. What the wheels need besides, the machine has
/// with its torch.
#[test]
fn the_wheels_of_the_gpu_kit_fit_in_and_install_without_a_network() {
    let Some(python) = rankdeck_testkit::python("venv, pip") else { return };
    let ask = "import sys; print('%d.%d %s' % (*sys.version_info[:2], sys.executable))";
    let told = Command::new(python).args(["-c", ask]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let (version, python) = told.trim().split_once(' ').unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (kit, venv) = (folder.path().join("kit"), folder.path().join("venv"));
    let programs = folder.path().join("bin");
    let mut pack = packing(&programs, &kit, "no", "yes");
    pack.env("VERSION", version).env("PYTHON", python);
    let output = pack.env("PIP_RETRIES", "8").env("PIP_DEFAULT_TIMEOUT", "20").output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        assert!(!said.contains("MiB is more than 60"), "{said}");
        rankdeck_testkit::skipped(&format!("pip cannot fetch the wheels: {}", said.trim()));
        return;
    }
    let size: u64 = said.split("kit, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    assert!((2..=60).contains(&size), "{said}");
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

/// Programs and wheels together, whatever is too large among them.
#[test]
fn a_gpu_kit_that_is_too_large_is_refused_with_its_sizes() {
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("MiB is more than 1:") && said.contains("programs.tar.xz"), "{said}");
}

/// A folder that some process has in its environment.
fn is_used(folder: &Path) -> bool {
    let wanted = folder.to_str().unwrap();
    let environs = std::fs::read_dir("/proc").unwrap().flatten();
    let mut environs = environs.map(|entry| std::fs::read(entry.path().join("environ")).unwrap_or_default());
    environs.any(|environ| String::from_utf8_lossy(&environ).contains(wanted))
}

/// Whatever moment it is stopped at: in a program that it waits for, and in a run.
#[test]
fn the_gpu_kit_that_is_stopped_leaves_its_result_and_no_process() {
    let Some(kit) = kit() else { return };
    for (only, inside) in [("environment,small", "small"), ("environment,pong", "pong")] {
        let mut command = kit.command(only, "300");
        let temporary = kit.machine.bench.path().join(format!("tmp-{inside}"));
        std::fs::create_dir(&temporary).unwrap();
        command.env("TMPDIR", &temporary).arg("--quick").arg("1");
        let mut drive = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the stage runs", 120, || {
            kit.out.join("result.json").exists()
                && kit.stages()[inside]["state"] == "running"
                && kit.machine.fake.counts("-").get("launches").is_some_and(|count| *count > 0)
                    | kit.machine.fake.counts("0").get("launches").is_some_and(|count| *count > 0)
        });
        // SAFETY: kill of a process of this test.
        unsafe { libc::kill(drive.id() as i32, libc::SIGTERM) };
        let status = drive.wait().unwrap();
        assert_eq!(status.code(), Some(128 + libc::SIGTERM));
        let stages = kit.stages();
        assert_eq!(
            (&stages["environment"]["state"], &stages[inside]["state"]),
            (&"done".into(), &"stopped".into())
        );
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while is_used(&temporary) {
            assert!(std::time::Instant::now() < deadline, "a process is left in {}", temporary.display());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "its folder is gone");
    }
}
