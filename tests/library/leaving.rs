//! A stop within a long iteration: the ranks leave it, and the run resumes later as if it had not been
//! stopped.

use crate::harness::{Run, kill, totals};
use rankdeck_proto::message::{FinishReason, RankEvent};
use rankdeck_trainer::checkpoint::Checkpoint;
use rankdeck_trainer::collect::RankCounters;

/// CartPole, three iterations of four environments.
fn experiment(steps: u32, learn: &str) -> String {
    format!(
        "[run]\nname = 'test'\nseed = 3\ntotal_steps = {}\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
         [collect]\nnum_steps = {steps}\n[learn]\n{learn}\n",
        steps * 4 * 3
    )
}

/// Two iterations, then an auxiliary phase, which may be left however quick it is.
const PPG: &str = "algorithm = 'ppg'\npolicy_iterations = 2\nnum_minibatches = 2\naux_num_minibatches = 4\naux_epochs = 150";

fn saved(run: &Run) -> Checkpoint {
    let bytes = std::fs::read(run.file("checkpoints/latest.ckpt")).unwrap();
    let mut checkpoint = Checkpoint::decode(&bytes).unwrap();
    // Without the time spent collecting, which no run repeats.
    let each = checkpoint.header.words_per_rank;
    checkpoint.ranks.chunks_mut(each).for_each(|words| words[RankCounters::WORDS - 1] = 0);
    checkpoint
}

/// LEAVE-1 with one rank and with two, of which one gets the signal. A left iteration is undone: what
/// follows has the same bits.
#[test]
fn leave_1_stop_within_long_iteration_undoes_only_it() {
    let experiment = format!("{}[checkpoint]\nreplay = true", experiment(256, PPG));
    for world_size in ["1", "2"] {
        let mut whole = Run::start(&experiment, &["--spawn", world_size]);
        whole.end_with(0);
        let mut run = Run::start(&experiment, &["--spawn", world_size]);
        run.wait_for("the first iteration", |events| !totals(events).is_empty());
        kill(if world_size == "1" { run.pid() } else { run.rank_pid(1) }, libc::SIGTERM);
        run.end_with(0);
        let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
        assert!(run.events().iter().any(|(_, event)| *event == stopped), "{}", run.logs());
        let header = saved(&run).header;
        assert_eq!((header.train_iter, header.env_step), (1, 1024));
        let from = run.file("checkpoints/latest.ckpt");
        let mut resumed =
            Run::start(&experiment, &["--spawn", world_size, "--resume", from.to_str().unwrap()]);
        resumed.end_with(0);
        assert!(saved(&whole) == saved(&resumed), "{} {}", run.logs(), resumed.logs());
    }
}

/// PPG-2: within a phase, the rollouts before the checkpoint are used after it, too.
#[test]
fn ppg_2_run_resumed_within_phase_uses_all_rollouts() {
    let learn = "algorithm = 'ppg'\npolicy_iterations = 3\nnum_minibatches = 2\naux_num_minibatches = 3\naux_epochs = 2";
    let experiment = format!("{}[checkpoint]\nreplay = true\nevery = 2", experiment(64, learn));
    let mut whole = Run::start(&experiment, &["--spawn", "2"]);
    whole.end_with(0);
    let half = experiment.replace("total_steps = 768", "total_steps = 512");
    let mut run = Run::start(&half, &["--spawn", "2"]);
    run.end_with(0);
    let from = run.file("checkpoints/latest.ckpt");
    let mut resumed = Run::start(&experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    assert!(!resumed.logs().contains("of 3 rollouts"), "{}", resumed.logs());
    let ends = [&whole, &resumed].map(|run| {
        let mut end = saved(run);
        end.header.about = Default::default();
        end
    });
    assert!(ends[0] == ends[1], "{}", resumed.logs());
    std::fs::remove_file(run.file("checkpoints/replay-1.2.shard")).unwrap();
    let mut fewer = Run::start(&experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    fewer.end_with(0);
    assert!(fewer.logs().contains("1 of 3 rollouts"), "{}", fewer.logs());
}
