//! Training on GPUs, fake ones: real libtorch, real trainer, counted calls. See
//! `rankdeck_testkit::fake_cuda`.
//!
//! Kernels of the fake do nothing. Nothing here tests numbers or speed.

mod budgets;
mod devices;
mod overlap;

use crate::harness::Run;
use rankdeck_proto::message::RankEvent;
use rankdeck_testkit::fake_cuda::FakeCuda;
use std::process::Command;

/// A trainer on fake GPUs, to its end. `None` has been noted as a skip.
pub struct FakeGpuRun {
    pub fake: FakeCuda,
    pub run: Run,
    _folder: tempfile::TempDir,
}

/// Trains to the end with these knobs, arguments and variables.
pub fn train(experiment: &str, knobs: &[(&str, &str)], args: &[&str]) -> Option<FakeGpuRun> {
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeCuda::new(folder.path(), knobs)?;
    let mut run = Run::start_by(experiment, args, |command: &mut Command| {
        fake.apply(command.env("TRAINER_LONG_S", "1000"));
    });
    run.end_with(0);
    Some(FakeGpuRun { fake, run, _folder: folder })
}

/// The table of Pong's environment, with a worker that makes pictures of its shape and starts at once:
/// emulators take longer to start than what is counted here.
pub fn pixels() -> String {
    let worker = rankdeck_testkit::repository("tests/programs/pixels.py");
    format!("id = 'PongNoFrameskip-v4'\nworker = 'python'\npython = '{}'\n", worker.display())
}

/// The device on which a rank joined.
fn device(events: &[(u32, RankEvent)]) -> Option<String> {
    events.iter().find_map(|(_, event)| match event {
        RankEvent::Joined { device, .. } => Some(device.clone()),
        _ => None,
    })
}

#[test]
fn trainer_uses_an_available_gpu() {
    let experiment = crate::harness::experiment(1024, "", "[eval]\nevery = 0");
    let Some(trained) = train(&experiment, &[], &[]) else { return };
    assert_eq!(device(&trained.run.events()).as_deref(), Some("cuda:0"), "{}", trained.run.logs());
    let counts = trained.fake.counts("-");
    assert!(counts["launches"] > 0 && counts["gemms"] > 0, "{counts:?}");
}
