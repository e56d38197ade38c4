//! `--all-reduce`: times of all-reduces, over the connections that training uses.

use rankdeck_testkit::fake_cuda::FakeCuda;
use serde_json::Value;
use std::process::Command;

/// Lines of rank 0.
fn measured(args: &[&str], last: impl FnOnce(&mut Command)) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"));
    command.args(["--all-reduce", "300000"]).args(args).env("CUDA_VISIBLE_DEVICES", "");
    for key in ["RANK", "WORLD_SIZE", "LOCAL_RANK"] {
        command.env_remove(key);
    }
    last(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// How long it takes depends on what else this machine does.
fn plausible(lines: &[Value], backend: &str) {
    let bytes: Vec<u64> = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
    assert!(bytes == [4, 1024, 36_620, 262_144], "{lines:?}");
    for line in lines {
        assert_eq!(line["ranks"], 2, "{line}");
        assert!(line["backend"].as_str().unwrap().starts_with(backend), "{line}");
        assert!(line["us"].as_f64().unwrap() > 0.0 && line["queued_us"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn all_reduces_of_ranks_on_this_host_are_timed() {
    plausible(&measured(&["--spawn", "2", "--backend", "tcp"], |_| {}), "shared memory");
}

/// On one GPU, too; what is queued is put there without a wait for each.
#[test]
fn all_reduces_of_gpus_are_timed_as_gradients_travel() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[]) else { return };
    plausible(&measured(&["--spawn", "2", "--backend", "nccl"], |command| fake.apply(command)), "nccl");
    let counts = fake.counts("0");
    // 5 to get warm, 50 alone, 5 times 20 in a queue, for each of 4 sizes.
    assert_eq!(counts["collectives"], 4 * 155, "{counts:?}");
    assert_eq!(counts["collective_threads"], 0, "{counts:?}");
}
