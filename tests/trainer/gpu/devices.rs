//! Which device a rank takes, and what it says when it cannot have the one that is there.

use super::train;
use crate::harness::{Run, experiment};
use rankdeck_testkit::fake_cuda::FakeCuda;
use std::process::{Command, Output};

fn short() -> String {
    experiment(512, "", "[eval]\nevery = 0")
}

/// `rankdeck-trainer --check-gpu`, with a last word about how it is started.
fn check_gpu(fake: &FakeCuda, last: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"));
    fake.apply(command.arg("--check-gpu"));
    last(&mut command);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn an_old_driver_is_named_and_a_trainer_that_may_choose_takes_the_cpu() {
    let old = [("driver", "12040")];
    let Some(trained) = train(&short(), &old, &[]) else { return };
    let logs = trained.run.logs();
    assert!(logs.contains("on cpu") && logs.contains("training on the CPU"), "{logs}");
    assert!(logs.contains("supports CUDA 12.4, and this libtorch needs 13.0 (driver 580"), "{logs}");

    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &old) else { return };
    let mut run = Run::start_by(&short(), &["--backend", "nccl"], |command| fake.apply(command));
    run.end_with(2);
    let logs = run.logs();
    assert!(logs.contains("error: ") && logs.contains("supports CUDA 12.4"), "{logs}");
}

#[test]
fn a_check_computes_on_every_gpu_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    let (code, said) = check_gpu(&fake, |_| ());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 GPUs work with libtorch 2.11.0") && said.contains("NCCL 2.28.9"), "{said}");
    let counts = fake.counts("-");
    assert!(counts["gemms"] >= 2, "{counts:?}");

    let (code, said) = check_gpu(&fake, |command| {
        command.env("CUDA_VISIBLE_DEVICES", "");
    });
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("this process sees no GPU"), "{said}");

    // The driver, and a libtorch without the wheels of CUDA, as `make libtorch` brings it.
    let libtorch = std::env::var_os("LIBTORCH")
        .map_or_else(|| rankdeck_testkit::repository(".libtorch/torch"), std::path::PathBuf::from);
    let bare = format!("{}:{}", libtorch.join("lib").display(), fake.driver().display());
    let (code, said) = check_gpu(&fake, |command| {
        command.env("LD_LIBRARY_PATH", bare);
    });
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("libtorch_cuda.so does not load") && said.contains("hint: install"), "{said}");
}
