//! Which device a rank takes, and what it reports when it cannot use the one that is there.

use super::{device, train};
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
fn old_driver_falls_back_to_cpu_with_auto_backend() {
    let old = [("driver", "12040")];
    let Some(trained) = train(&short(), &old, &[]) else { return };
    let logs = trained.run.logs();
    assert_eq!(device(&trained.run.events()).as_deref(), Some("cpu"), "{logs}");
    for version in ["12.4", "13.0", "580"] {
        assert!(logs.contains(version), "{version} in {logs}");
    }

    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &old) else { return };
    let mut run = Run::start_by(&short(), &["--backend", "nccl"], |command| fake.apply(command));
    run.end_with(2);
    let logs = run.logs();
    assert!(logs.contains("error: ") && logs.contains("CUDA 12.4"), "{logs}");
}

/// The suite passes on a machine that has GPUs.
#[test]
fn test_trainer_sees_no_gpu_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    let mut run = Run::start_by(&short(), &[], |command| {
        command.envs(fake.env());
    });
    run.end_with(0);
    assert_eq!(device(&run.events()).as_deref(), Some("cpu"), "{}", run.logs());
}

#[test]
fn check_gpu_computes_on_every_gpu_or_fails() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    let (code, output) = check_gpu(&fake, |_| ());
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("libtorch 2.11.0") && output.contains("NCCL 2.28.9"), "{output}");
    let counts = fake.counts("-");
    assert!(counts["gemms"] >= 2, "{counts:?}");

    let (code, output) = check_gpu(&fake, |command| {
        command.env("CUDA_VISIBLE_DEVICES", "");
    });
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("CUDA_VISIBLE_DEVICES"), "{output}");

    // The driver, and a libtorch without the wheels of CUDA, as `make libtorch` brings it.
    let libtorch = std::env::var_os("LIBTORCH")
        .map_or_else(|| rankdeck_testkit::repository(".libtorch/torch"), std::path::PathBuf::from);
    let bare = format!("{}:{}", libtorch.join("lib").display(), fake.driver().display());
    let (code, output) = check_gpu(&fake, |command| {
        command.env("LD_LIBRARY_PATH", bare);
    });
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("libtorch_cuda.so") && output.contains("libcusparse.so.12"), "{output}");
    assert!(output.contains("`cuda-toolkit[cusparse]==13.0.2`"), "{output}");
}

/// Driver and libraries of another version, by what they lack or report.
#[test]
fn unusable_driver_or_library_is_named_with_a_hint() {
    let cases = [
        (
            ("without", "libcuda.so.1:cuEventElapsedTime_v2"),
            ["driver/libcuda.so.1", "cuEventElapsedTime_v2"],
            "LD_LIBRARY_PATH",
        ),
        (("without", "libcuda.so.1:cuInit"), ["driver/libcuda.so.1", "cuInit"], "LD_LIBRARY_PATH"),
        (
            ("without", "libcudnn.so.9:cudnnBackendExecute"),
            ["cudnn/lib/libcudnn.so.9", "cudnnBackendExecute"],
            "nvidia-cudnn-cu13==9.",
        ),
        (
            ("without", "libcublasLt.so.13:cublasLtMatmul"),
            ["cu13/lib/libcublasLt.so.13", "cublasLtMatmul"],
            "cuda-toolkit[cublas]",
        ),
        (
            ("without", "libnccl.so.2:ncclCommSplit"),
            ["nccl/lib/libnccl.so.2", "ncclCommSplit"],
            "nvidia-nccl-cu13==2.",
        ),
        (("cudnn", "90100"), ["cuDNN 9.1.0", "9.19.0"], "nvidia-cudnn-cu13==9."),
        (("nccl", "21003"), ["NCCL 2.10.3", "2.14.0"], "nvidia-nccl-cu13==2."),
        (("start_error", "803"), ["NVIDIA driver", "CUDA error"], "reboot the host"),
        (("start_error", "802"), ["NVIDIA driver", "CUDA error"], "nvidia-fabricmanager"),
        (("start_error", "34"), ["NVIDIA driver", "CUDA error"], "stub of the CUDA toolkit"),
        (("cuda_error", "209"), ["libtorch", "GPU"], "compute capability 7.5"),
    ];
    for (knob, words, help) in cases {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[knob]) else { return };
        let (code, output) = check_gpu(&fake, |_| ());
        assert_ne!(code, Some(0), "{knob:?} {output}");
        let line = |word: &str| output.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest);
        let (error, hint) = (line("error: ").unwrap_or_default(), line("hint: ").unwrap_or_default());
        assert!(words.iter().all(|word| error.contains(word)), "{knob:?}: {output}");
        assert!(hint.contains(help), "{knob:?}: {output}");
        assert!(!output.contains("panicked"), "{output}");
    }
}
