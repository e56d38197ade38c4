//! GPUs that fail while a rank trains: what is said, by what limit it ends, and what is left of the run.

use crate::harness::{DEADLINE, Run, experiment};
use rankdeck_proto::message::RankEvent;
use rankdeck_testkit::fake_cuda::FakeCuda;
use std::time::{Duration, Instant};

/// Waits for a checkpoint and for what follows it.
fn trained(run: &mut Run) {
    let latest = run.file("checkpoints/latest.ckpt");
    let deadline = Instant::now() + DEADLINE;
    while !latest.exists() {
        assert!(run.is_alive() && Instant::now() < deadline, "no checkpoint\n{}", run.logs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Errors that ranks have told their agents: (rank, message, hint).
fn told(run: &Run) -> Vec<(u32, String, String)> {
    let told = |(rank, event): (u32, RankEvent)| match event {
        RankEvent::Error { message, hint, .. } => Some((rank, message, hint)),
        _ => None,
    };
    run.events().into_iter().filter_map(told).collect()
}

/// RESORT-1, RESORT-2.
#[test]
fn a_gpu_that_fails_in_training_is_told_in_a_sentence_and_the_checkpoint_goes_on() {
    let long = experiment(40_000_000, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1");
    for (error, words, help) in [
        ("999", "CUDA error: unknown error", "nvidia-smi"),
        ("719", "CUDA error: unspecified launch failure", "nvidia-smi"),
        ("214", "CUDA error: uncorrectable ECC error encountered", "nvidia-smi"),
        ("2", "CUDA error: out of memory", "env.num_envs"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let Some(mut fake) = FakeCuda::new(folder.path(), &[]) else { return };
        let mut run = Run::start_by(&long, &[], |command| fake.apply(command));
        trained(&mut run);
        fake.set("cuda_error", error);
        run.end_with(1);
        let (logs, told) = (run.logs(), told(&run));
        let [(0, message, hint)] = told.as_slice() else { panic!("{told:?}\n{logs}") };
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
        assert!(message.starts_with("the GPU "), "{message}");
        assert!(hint.contains(help) && hint.contains("rankdeck restart"), "{hint}");
        assert!(logs.contains("error: ") && !logs.contains("panicked"), "{logs}");

        // What was written before is whole.
        fake.set("cuda_error", "0");
        let from = run.file("checkpoints/latest.ckpt");
        let steps = rankdeck_trainer::checkpoint::Checkpoint::decode(&std::fs::read(&from).unwrap())
            .unwrap()
            .header
            .env_step;
        let short = experiment(steps + 512, "", "[eval]\nevery = 0");
        let mut resumed =
            Run::start_by(&short, &["--resume", from.to_str().unwrap()], |command| fake.apply(command));
        resumed.end_with(0);
        assert!(resumed.logs().contains("resumed after iteration"), "{}", resumed.logs());
    }
}

/// Where ranks compare notes, before NCCL mixes up what differs.
#[cfg(feature = "inject")]
#[test]
fn collectives_that_differ_over_nccl_are_named_at_the_first_difference() {
    for (fault, words) in
        [("mismatch-op@1:3", "broadcast"), ("mismatch-count@1:3", "9156 f32"), ("mismatch-dtype@1:3", "f64")]
    {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
        let args = ["--spawn", "2", "--inject", fault];
        let mut run = Run::start_by(&experiment(40_000_000, "", "[eval]\nevery = 0"), &args, |command| {
            fake.apply(command.env("RANKDECK_CHECK_COLLECTIVES", "1"));
        });
        run.end_with(1);
        let told = told(&run);
        let named = told.iter().any(|(_, message, _)| message.contains(words) && message.contains("rank 1"));
        assert!(named, "{fault}: {told:?}\n{}", run.logs());
    }
}

/// FLIGHT-3.
#[test]
fn a_rank_whose_abort_never_returns_ends_in_bounded_time_and_says_so() {
    let (abort, all) =
        ("ncclCommAbort has not returned within 5 s", "no call into NCCL or the driver has returned");
    // A rank whose own thread waits in the driver for the collective is ended as one that is held.
    for (knob, words) in [(("abort_hangs", "1"), [abort, all]), (("hang_holds", "1"), [all, all])] {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2"), ("hang_at", "40"), knob]) else {
            return;
        };
        let rest = "[eval]\nevery = 0\n[distributed]\ntimeout_s = 10.0";
        let begun = Instant::now();
        let mut run = Run::start_by(&experiment(40_000_000, "", rest), &["--spawn", "2"], |command| {
            fake.apply(command)
        });
        assert_eq!(run.wait().code(), Some(1), "{}", run.logs());
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        run.nothing_left();
        let told = told(&run);
        assert!(!told.is_empty(), "{}", run.logs());
        for (rank, message, hint) in &told {
            assert!(message.starts_with(&format!("rank {rank} of 2: collective ")), "{told:?}");
            assert!(
                message.contains("the GPU does not let go of it")
                    && words.iter().any(|end| message.contains(end)),
                "{told:?}"
            );
            assert!(hint.contains("nvidia-smi"), "{told:?}");
        }
    }
}
