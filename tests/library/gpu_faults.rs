//! GPUs that fail while a rank trains: the error, the limit by which the rank ends, and what is left of the run.

use crate::harness::{DEADLINE, RankError, Run, errors, experiment, kill, totals};
use rankdeck_proto::message::{FailureKind, RankEvent};
use rankdeck_testkit::fake_cuda::FakeCuda;
use rankdeck_types::ids::Rank;
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

/// RESORT-1, RESORT-2.
#[test]
fn gpu_failure_is_reported_and_checkpoint_resumes() {
    let long = experiment(40_000_000, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1");
    for (error, kind, words, help) in [
        ("999", FailureKind::GpuFailed, "CUDA error: unknown error", "nvidia-smi"),
        ("719", FailureKind::GpuFailed, "CUDA error: unspecified launch failure", "nvidia-smi"),
        ("214", FailureKind::GpuFailed, "CUDA error: uncorrectable ECC error encountered", "nvidia-smi"),
        ("2", FailureKind::OutOfMemory, "CUDA error: out of memory", "env.num_envs"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let Some(mut fake) = FakeCuda::new(folder.path(), &[]) else { return };
        let mut run = Run::start_by(&long, &[], |command| fake.apply(command));
        trained(&mut run);
        fake.set("cuda_error", error);
        run.end_with(1);
        let (logs, errors) = (run.logs(), errors(&run.events()));
        let [RankError { rank: 0, message, hint, kind: found, .. }] = errors.as_slice() else {
            panic!("{errors:?}\n{logs}")
        };
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
        assert_eq!(*found, kind, "{message}");
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
        let first = totals(&resumed.events()).first().map(|totals| totals.env_step);
        assert_eq!(first, Some(steps + 512), "{}", resumed.logs());
    }
}

/// Where ranks compare notes, before NCCL mixes up what differs.
#[cfg(feature = "inject")]
#[test]
fn nccl_mismatch_is_named_at_the_first_difference() {
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
        let errors = errors(&run.events());
        let named = errors.iter().any(|error| {
            error.kind == FailureKind::Mismatch
                && error.message.contains(words)
                && error.message.contains("rank 1")
        });
        assert!(named, "{fault}: {errors:?}\n{}", run.logs());
    }
}

/// FLIGHT-3.
#[test]
fn stuck_abort_ends_the_rank_in_bounded_time() {
    let (abort, all) = ("ncclCommAbort", " NCCL ");
    // A rank whose own thread waits in the driver for the collective is ended as one that is held.
    for (knob, calls) in [(("abort_hangs", "1"), [abort, all]), (("hang_holds", "1"), [all, all])] {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2"), ("hang_at", "40"), knob]) else {
            return;
        };
        let rest = "[eval]\nevery = 0\n[distributed]\ntimeout_s = 10.0";
        let started = Instant::now();
        let mut run = Run::start_by(&experiment(40_000_000, "", rest), &["--spawn", "2"], |command| {
            fake.apply(command)
        });
        assert_eq!(run.wait().code(), Some(1), "{}", run.logs());
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        run.nothing_left();
        let errors = errors(&run.events());
        assert!(!errors.is_empty(), "{}", run.logs());
        for RankError { rank, message, hint, .. } in &errors {
            assert!(message.starts_with(&format!("rank {rank} of 2: collective ")), "{errors:?}");
            assert!(calls.iter().any(|call| message.contains(call)), "{errors:?}");
            assert!(hint.contains("nvidia-smi"), "{errors:?}");
        }
    }
}

/// The communicator is aborted, and one for the ranks that are left is made.
#[test]
fn nccl_ranks_continue_without_a_killed_one() {
    let rest = "[eval]\nevery = 0\n[distributed]\non_rank_loss = \"shrink\"";
    let text = experiment(40_000_000, "", rest).replace("num_envs = 4", "num_envs = 6");
    for victim in [2, 0] {
        let folder = tempfile::tempdir().unwrap();
        let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "3")]) else { return };
        let mut run = Run::start_by(&text, &["--spawn", "3"], |command| fake.apply(command));
        let iterations =
            |events: &[(u32, RankEvent)]| totals(events).last().map_or(0, |last| last.train_iter);
        run.wait_for("progress", |events| iterations(events) >= 2);
        kill(run.rank_pid(victim), libc::SIGKILL);
        let change = |events: &[(u32, RankEvent)]| {
            events.iter().find_map(|(_, event)| match event {
                RankEvent::Membership(change) => Some(change.clone()),
                _ => None,
            })
        };
        run.wait_for("the change", |events| change(events).is_some());
        let change = change(&run.events()).unwrap();
        assert_eq!((change.lost.as_slice(), change.ranks.len()), (&[Rank(victim)][..], 2), "{}", run.logs());
        run.wait_for("progress of two ranks", |events| iterations(events) > change.iteration + 2);
        run.signal(libc::SIGTERM);
        run.end_with(0);
    }
}
