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

/// The suite passes on a machine that has GPUs.
#[test]
fn a_trainer_of_a_test_sees_no_gpu_unless_it_is_given_one() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    let mut run = Run::start_by(&short(), &[], |command| {
        command.envs(fake.env());
    });
    run.end_with(0);
    assert!(run.logs().contains("on cpu"), "{}", run.logs());
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
    assert!(said.contains("libtorch_cuda.so does not load: libcusparse.so.12 is not there"), "{said}");
    assert!(said.contains("hint: install the wheel `cuda-toolkit[cusparse]==13.0.2`"), "{said}");
}

/// Driver and libraries of another version, by what they lack or say.
#[test]
fn a_driver_or_library_that_lacks_a_symbol_or_is_too_old_is_named_with_what_helps() {
    let cases = [
        (
            ("without", "libcuda.so.1:cuEventElapsedTime_v2"),
            "driver/libcuda.so.1 has no cuEventElapsedTime_v2",
            "update the driver",
        ),
        (("without", "libcuda.so.1:cuInit"), "driver/libcuda.so.1 has no cuInit", "update the driver"),
        (
            ("without", "libcudnn.so.9:cudnnBackendExecute"),
            "cudnn/lib/libcudnn.so.9 has no cudnnBackendExecute",
            "nvidia-cudnn-cu13==9.",
        ),
        (
            ("without", "libcublasLt.so.13:cublasLtMatmul"),
            "cu13/lib/libcublasLt.so.13 has no cublasLtMatmul",
            "cuda-toolkit[cublas]",
        ),
        (
            ("without", "libnccl.so.2:ncclCommSplit"),
            "nccl/lib/libnccl.so.2 has no ncclCommSplit",
            "nvidia-nccl-cu13==2.",
        ),
        (("cudnn", "90100"), "cuDNN 9.1.0 is too old, 9.19.0 or later is needed: ", "nvidia-cudnn-cu13==9."),
        (("nccl", "21003"), "NCCL 2.10.3 is too old, 2.14.0 or later is needed: ", "nvidia-nccl-cu13==2."),
        (("start_error", "803"), "the NVIDIA driver does not start", "reboot the host"),
        (("start_error", "802"), "the NVIDIA driver does not start", "nvidia-fabricmanager"),
        (("start_error", "34"), "the NVIDIA driver does not start", "stub of the CUDA toolkit"),
        (("cuda_error", "209"), "this libtorch has no kernels for this GPU", "compute capability 7.5"),
    ];
    for (knob, words, help) in cases {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[knob]) else { return };
        let (code, said) = check_gpu(&fake, |_| ());
        assert_ne!(code, Some(0), "{knob:?} {said}");
        let line = |word: &str| said.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest);
        let (error, hint) = (line("error: ").unwrap_or_default(), line("hint: ").unwrap_or_default());
        assert!(error.contains(words) && hint.contains(help), "{knob:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
