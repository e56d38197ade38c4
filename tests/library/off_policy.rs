//! DQN, SAC and TD3 as programs: totals, schedules, replay in checkpoints.

use crate::harness::{Run, counters, totals};
use rankdeck_proto::message::RankEvent;
use rankdeck_trainer::checkpoint::Checkpoint;
use rankdeck_trainer::collect::RankCounters;

fn dqn(total_steps: u64, rest: &str) -> String {
    format!(
        "[run]\nname = 'test'\nseed = 3\ntotal_steps = {total_steps}\n[env]\nid = 'CartPole-v1'\nnum_envs = 2\n\
         [policy]\nhidden = [16]\nactivation = 'relu'\n[collect]\nnum_steps = 5\n\
         [learn]\nalgorithm = 'dqn'\nbuffer_size = 300\nlearning_starts = 100\nbatch_size = 32\ntarget_every = 7\n\
         n_step = 2\nepsilon_steps = 400\ndueling = true\ndouble = true\n{rest}\n"
    )
}

fn sac(total_steps: u64, rest: &str) -> String {
    format!(
        "[run]\nname = 'test'\nseed = 3\ntotal_steps = {total_steps}\n[env]\nid = 'Pendulum-v1'\nnum_envs = 2\n\
         [policy]\nhidden = [16, 16]\nactivation = 'relu'\n[collect]\nnum_steps = 5\n\
         [learn]\nalgorithm = 'sac'\nbuffer_size = 300\nlearning_starts = 50\nbatch_size = 32\n{rest}\n"
    )
}

fn td3(total_steps: u64, rest: &str) -> String {
    sac(total_steps, rest).replace("'sac'", "'td3'")
}

/// With normalized observations.
fn normalized(experiment: String) -> String {
    experiment.replace("num_steps = 5", "num_steps = 5\nnormalise_observations = true")
}

/// Without the time spent collecting, which no run repeats, and without what names the run's length.
fn end(run: &Run) -> Checkpoint {
    let bytes = std::fs::read(run.file("checkpoints/latest.ckpt")).unwrap();
    let mut checkpoint = Checkpoint::decode(&bytes).unwrap();
    let each = checkpoint.header.words_per_rank;
    checkpoint.ranks.chunks_mut(each).for_each(|words| words[RankCounters::WORDS - 1] = 0);
    checkpoint
}

fn ended(experiment: &str, args: &[&str]) -> Run {
    let mut run = Run::start(experiment, args);
    run.end_with(0);
    run
}

/// OFFPOLICY-2, SHARD-1: with its replay, a resumed run is the run.
#[test]
fn runs_resume_bit_exactly_with_their_replay() {
    type Experiment = fn(u64, &str) -> String;
    let normalized_dqn: Experiment = |total_steps, rest| normalized(dqn(total_steps, rest));
    let normalized_sac: Experiment = |total_steps, rest| normalized(sac(total_steps, rest));
    for (experiment, world_size) in [
        (dqn as Experiment, "1"),
        (dqn, "2"),
        (sac, "2"),
        (td3, "2"),
        (normalized_dqn, "2"),
        (normalized_sac, "2"),
    ] {
        let keep = "[checkpoint]\nreplay = true";
        let whole = ended(&experiment(400, keep), &["--spawn", world_size]);
        let half = ended(&experiment(200, keep), &["--spawn", world_size]);
        let from = half.file("checkpoints/latest.ckpt");
        let resumed =
            ended(&experiment(400, keep), &["--spawn", world_size, "--resume", from.to_str().unwrap()]);
        let [a, b] = [&whole, &resumed].map(end);
        assert_eq!(a.header, b.header);
        assert_eq!(a.header.train_iter, 40);
        assert!(a.header.updates >= 30);
        for (a, b) in a.arrays.iter().zip(&b.arrays) {
            assert_eq!(a.name, b.name);
            assert!(a.values.iter().zip(&b.values).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", a.name);
        }
        assert_eq!((a.words, a.ranks), (b.words, b.ranks));
    }
}

/// Without it, learning waits as at the start, for `learning_starts` steps; totals continue exactly.
#[test]
fn run_without_replay_refills_it() {
    let half = ended(&dqn(200, ""), &["--spawn", "2"]);
    assert!(!half.file("checkpoints/replay-0.20.shard").exists());
    let from = half.file("checkpoints/latest.ckpt");
    let resumed = ended(&dqn(400, ""), &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    let (before, after) = (end(&half), end(&resumed));
    assert_eq!((before.header.env_step, after.header.env_step), (200, 400));
    // 100 steps of 10 per iteration: nine of the 20 iterations have no update.
    assert_eq!(after.header.updates, before.header.updates + 20 - 9);
}

/// A checkpoint and its shards belong together, whenever a run is killed: the ones before are kept until the
/// next checkpoint is complete. A rank without its shard makes all begin empty.
#[test]
fn missing_shard_makes_all_ranks_start_empty() {
    let run = ended(&dqn(200, "[checkpoint]\nreplay = true\nevery = 5"), &["--spawn", "2"]);
    let mut shards: Vec<String> = std::fs::read_dir(run.file("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".shard") || name.contains("partial"))
        .collect();
    shards.sort();
    assert_eq!(shards, ["replay-0.20.shard", "replay-1.20.shard"], "{}", run.logs());
    std::fs::remove_file(run.file("checkpoints/replay-1.20.shard")).unwrap();
    let from = run.file("checkpoints/latest.ckpt");
    let more = dqn(300, "[checkpoint]\nreplay = true");
    let resumed = ended(&more, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    let (before, after) = (end(&run), end(&resumed));
    assert_eq!(after.header.updates, before.header.updates + 10 - 9, "both ranks fill it again");
    assert!(resumed.logs().contains("rank 1: replay "), "{}", resumed.logs());
}

/// A loss of 0 would read as a converged one.
#[test]
fn no_loss_is_reported_before_learning_starts() {
    type Experiment = fn(u64, &str) -> String;
    let cases: [(Experiment, &[&str]); 3] = [
        (dqn, &["losses/td_loss", "losses/q_values"]),
        (sac, &["losses/qf_loss", "losses/qf1_values"]),
        (td3, &["losses/qf_loss", "losses/qf1_values"]),
    ];
    for (experiment, names) in cases {
        let text = experiment(200, "[checkpoint]\nevery = 1");
        let run = ended(&text.replace("learning_starts = 50", "learning_starts = 100"), &[]);
        let reported = run.events().into_iter().filter_map(|(_, event)| match event {
            RankEvent::Scalars { env_step, values, .. } => Some((env_step, values)),
            _ => None,
        });
        let mut reports = [0, 0];
        for (env_step, values) in reported {
            let learns = env_step >= 100;
            reports[usize::from(learns)] += 1;
            for name in names {
                assert_eq!(values.contains_key(*name), learns, "{name} at {env_step}: {values:?}");
            }
        }
        assert_eq!(reports, [9, 11], "a report after each iteration");
    }
}

#[test]
fn totals_are_exact_and_learning_starts_together() {
    for experiment in
        [dqn(400, "[eval]\nevery = 20\nepisodes = 2"), sac(400, "[eval]\nevery = 20\nepisodes = 2")]
    {
        let run = ended(&experiment, &["--spawn", "2"]);
        let events = run.events();
        let last = *totals(&events).last().unwrap();
        let own = [0, 1].map(|rank| *counters(&events, rank).last().unwrap());
        assert_eq!((last.train_iter, last.env_step, last.samples), (40, 400, 400));
        assert_eq!(own.map(|c| c.env_step), [200, 200]);
        assert_eq!(own.map(|c| c.updates), [last.updates; 2]);
        assert_eq!(own[0].episodes + own[1].episodes, last.episodes);
        let equal =
            events.iter().all(|(_, event)| !matches!(event, RankEvent::Fingerprint { equal: false, .. }));
        assert!(equal && last.updates > 0);
    }
}

#[test]
fn unsupported_settings_exit_2_with_their_key() {
    for (experiment, key) in [
        (dqn(400, "").replace("batch_size = 32", "batch_size = 31"), "learn.batch_size"),
        (dqn(400, "").replace("buffer_size = 300", "buffer_size = 10"), "learn.buffer_size"),
        (dqn(400, "").replace("CartPole-v1", "Pendulum-v1"), "learn.algorithm"),
        (sac(400, "").replace("Pendulum-v1", "CartPole-v1"), "learn.algorithm"),
    ] {
        let mut run = Run::start(&experiment, &["--spawn", "2"]);
        run.end_with(2);
        assert!(run.logs().contains(key), "{key}: {}", run.logs());
    }
}
