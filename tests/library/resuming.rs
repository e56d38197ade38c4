//! CHECKPOINT-3 and RESUME-1 to RESUME-5: a resumed run is the run.

use crate::harness::{Run, counters, errors, experiment, totals};
use rankdeck_proto::message::RankEvent;
use rankdeck_trainer::checkpoint::Checkpoint;
use rankdeck_trainer::collect::RankCounters;
use rankdeck_trainer::support::state::Array;
use std::path::Path;

pub fn load(path: &Path) -> Checkpoint {
    Checkpoint::decode(&std::fs::read(path).unwrap()).unwrap()
}

/// Without the time spent collecting, which no run repeats.
pub fn without_time(mut checkpoint: Checkpoint) -> Checkpoint {
    let each = checkpoint.header.words_per_rank;
    checkpoint.ranks.chunks_mut(each).for_each(|words| words[RankCounters::WORDS - 1] = 0);
    checkpoint
}

const REST: &str = "[eval]\nevery = 4\nepisodes = 2\n[checkpoint]\nevery = 5";

/// A whole run of 12 iterations, and one that resumes at the fifth.
fn whole_and_resumed(world_size: &str) -> (Run, Run) {
    let experiment = experiment(12 * 512, "seed = 9", REST);
    let mut whole = Run::start(&experiment, &["--spawn", world_size]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-5.ckpt");
    let mut resumed = Run::start(&experiment, &["--spawn", world_size, "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    (whole, resumed)
}

fn assert_equal_ends(whole: &Run, resumed: &Run) {
    let [a, b] = [whole, resumed].map(|run| without_time(load(&run.file("checkpoints/latest.ckpt"))));
    assert_eq!(a.header.train_iter, 12);
    assert_eq!(a.header, b.header);
    let bits = |checkpoint: &Checkpoint| -> Vec<(String, Vec<u32>)> {
        let of = |array: &Array| (array.name.clone(), array.values.iter().map(|v| v.to_bits()).collect());
        checkpoint.arrays.iter().map(of).collect()
    };
    assert_eq!(bits(&a), bits(&b));
    assert_eq!(a.words, b.words);
    assert_eq!(a.ranks, b.ranks);
}

#[test]
fn checkpoint_3_one_rank_resumes_bit_exactly() {
    let (whole, resumed) = whole_and_resumed("1");
    assert_equal_ends(&whole, &resumed);
    let first = totals(&resumed.events())[0];
    assert_eq!((first.train_iter, first.env_step, first.updates), (6, 6 * 512, 6 * 16));
}

#[test]
fn checkpoint_3_two_ranks_resume_bit_exactly() {
    let (whole, resumed) = whole_and_resumed("2");
    assert_equal_ends(&whole, &resumed);
    for rank in 0..2 {
        let [a, b] = [&whole, &resumed].map(|run| *counters(&run.events(), rank).last().unwrap());
        assert_eq!(
            (a.train_iter, a.env_step, a.episodes, a.updates),
            (b.train_iter, b.env_step, b.episodes, b.updates)
        );
        assert!(b.duration_s > 0.0);
    }
}

#[test]
fn resume_2_one_rank_continues_a_run_of_two() {
    let experiment = experiment(8 * 512, "", "[checkpoint]\nevery = 5");
    let mut two = Run::start(&experiment, &["--spawn", "2"]);
    two.end_with(0);
    let from = two.file("checkpoints/iter-5.ckpt");
    let mut one = Run::start(&experiment, &["--resume", from.to_str().unwrap()]);
    one.end_with(0);
    let (before, after) = (load(&from), load(&one.file("checkpoints/latest.ckpt")));
    assert_eq!((before.header.env_step, after.header.env_step), (5 * 512, 8 * 512));
    let events = one.events();
    let (first, last) = (totals(&events)[0], *totals(&events).last().unwrap());
    assert_eq!((first.train_iter, last.env_step), (6, 8 * 512));
    let new_sizes =
        one.logs().lines().any(|line| line.contains("from 2 to 1") && line.contains("4 per rank"));
    assert!(new_sizes, "{}", one.logs());
    let episodes: u64 =
        before.ranks.chunks(before.header.words_per_rank).map(|w| RankCounters::from_words(w).episodes).sum();
    assert!(episodes > 0 && first.episodes >= episodes);
    // The last 100 episodes of all ranks: the resumed run ends fewer, so that some are of the first one.
    let ended = (last.episodes - episodes) as usize;
    let (old, new) = (before.header.latest_returns, after.header.latest_returns);
    assert!(ended < 100 && new.len() == 100, "{ended}");
    assert_eq!(old[ended..], new[..100 - ended]);
}

#[test]
fn latest_resolves_in_run_directory_and_finished_run_ends() {
    let experiment = experiment(3 * 512, "", "");
    let mut run = Run::start(&experiment, &[]);
    run.end_with(0);
    let run_dir = run.run_dir();
    let mut again = Run::start(&experiment, &["--resume", "latest", "--run-dir", run_dir.to_str().unwrap()]);
    again.end_with(0);
    assert!(totals(&again.events()).is_empty() && again.logs().contains("resumed after iteration 3"));
    let from = run.file("checkpoints/latest.ckpt");
    let mut again = Run::start_with(&experiment, &[], &[("RANKDECK_RESUME", from.to_str().unwrap())]);
    again.end_with(0);
    assert!(totals(&again.events()).is_empty());
    assert!(again.logs().contains("resumed after iteration 3"));
    assert_eq!(load(&again.file("checkpoints/latest.ckpt")), load(&from));
}

/// What differs is named; the run continues with its own settings.
#[test]
fn resumed_run_names_changed_settings() {
    let text = |more: &str| experiment(2 * 512, "", more);
    let mut run = Run::start(&text(""), &[]);
    run.end_with(0);
    let from = run.file("checkpoints/latest.ckpt");
    let longer = experiment(3 * 512, "seed = 999", "gamma = 0.5\n");
    let mut resumed = Run::start(&longer, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    let logs = resumed.logs();
    let line_found =
        logs.lines().find(|line| line.contains("learn.gamma")).unwrap_or_else(|| panic!("{logs}"));
    for difference in ["learn.gamma 0.99, now 0.5", "now 999", "run.total_steps 1024, now 1536"] {
        assert!(line_found.contains(difference), "{difference}: {line_found}");
    }
}

#[test]
fn resume_5_damaged_checkpoint_exits_2_on_every_rank() {
    let experiment = experiment(3 * 512, "", "");
    let mut run = Run::start(&experiment, &[]);
    run.end_with(0);
    let path = run.file("checkpoints/latest.ckpt");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = run.file("damaged.ckpt");
    std::fs::write(&damaged, bytes).unwrap();
    let mut resumed = Run::start(&experiment, &["--spawn", "2", "--resume", damaged.to_str().unwrap()]);
    resumed.end_with(2);
    let errors: Vec<(u32, String)> = resumed
        .events()
        .into_iter()
        .filter_map(|(rank, event)| match event {
            RankEvent::Error { message, usage: true, .. } => Some((rank, message)),
            _ => None,
        })
        .collect();
    assert_eq!(errors.len(), 2, "{}", resumed.logs());
    for (_, message) in errors {
        assert!(message.contains("damaged.ckpt"), "{message}");
    }
    // Another network.
    let other = format!("{experiment}[policy]\nhidden = [32]\n");
    let mut resumed = Run::start(&other, &["--resume", path.to_str().unwrap()]);
    resumed.end_with(2);
    for shape in ["model.critic.0.weight [64, 4]", "model.critic.0.weight [32, 4]"] {
        assert!(resumed.logs().contains(shape), "{shape}: {}", resumed.logs());
    }
}

#[test]
fn resume_4_only_a_restart_starts_without_checkpoint() {
    let experiment = experiment(2 * 512, "", "");
    let mut restart = Run::start_with(
        &experiment,
        &["--spawn", "2", "--resume", "latest"],
        &[("RANKDECK_GENERATION", "1")],
    );
    restart.end_with(0);
    assert_eq!(totals(&restart.events()).last().map(|total| total.train_iter), Some(2));
    assert_eq!(totals(&restart.events()).first().map(|total| total.train_iter), Some(1));
    let mut start = Run::start(&experiment, &["--resume", "latest"]);
    start.end_with(2);
    let errors = errors(&start.events());
    let named = errors.iter().any(|error| error.usage && error.message.contains("latest.ckpt"));
    assert!(named, "{errors:?}");
}

/// With continuous actions and both normalizers: their moments and the environments' discounted returns are
/// part of the checkpoint.
#[test]
fn checkpoint_3_normalized_continuous_run_is_bit_exact() {
    let experiment = "[run]\nname = 'x'\nseed = 2\ntotal_steps = 3072\n[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n\
        [collect]\nnum_steps = 64\nnormalise_observations = true\nnormalise_rewards = true\n\
        [learn]\nalgorithm = 'ppo'\nbootstrap_truncated = true\n[checkpoint]\nevery = 5\n";
    let mut whole = Run::start(experiment, &["--spawn", "2"]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-5.ckpt");
    let mut resumed = Run::start(experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    assert_equal_ends(&whole, &resumed);
    let moments =
        load(&from).words.iter().find(|words| words.name == "moments.returns").unwrap().values.clone();
    // Count, mean, squares; the count is of 5 iterations.
    assert!((f64::from_bits(moments[0]) - 1280.0).abs() < 1.0);
}

/// Q-learning from rollouts, with its optimizer and both normalizers.
#[test]
fn checkpoint_3_pqn_run_is_bit_exact() {
    let experiment = "[run]\nname = 'x'\nseed = 2\ntotal_steps = 3072\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
        [policy]\nhidden = [16]\n[collect]\nnum_steps = 64\nnormalise_observations = true\nnormalise_rewards = true\n\
        [learn]\nalgorithm = 'pqn'\nepsilon_steps = 2000\n[checkpoint]\nevery = 5\n";
    let mut whole = Run::start(experiment, &["--spawn", "2"]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-5.ckpt");
    let mut resumed = Run::start(experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    assert_equal_ends(&whole, &resumed);
    assert!(
        load(&from)
            .arrays
            .iter()
            .any(|array| array.name == "radam.second" && array.values.iter().all(|v| *v > 0.0))
    );
}

/// The states of the policy's memory are part of the checkpoint: a rollout begins in the middle of episodes.
#[test]
fn checkpoint_3_run_with_memory_is_bit_exact() {
    for memory in ["lstm", "mingru"] {
        let experiment = format!(
            "[run]\nname = 'x'\nseed = 2\ntotal_steps = 3072\n[env]\nid = 'rankdeck/CartPoleNoVelocity-v1'\nnum_envs = 4\n\
             [policy]\nhidden = [8]\nmemory = '{memory}'\nmemory_size = 5\n[collect]\nnum_steps = 64\n\
             [learn]\nalgorithm = 'ppo'\nnum_minibatches = 2\n[eval]\nevery = 4\nepisodes = 2\n[checkpoint]\nevery = 5\n"
        );
        let mut whole = Run::start(&experiment, &["--spawn", "2"]);
        whole.end_with(0);
        let from = whole.file("checkpoints/iter-5.ckpt");
        let mut resumed = Run::start(&experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
        resumed.end_with(0);
        assert_equal_ends(&whole, &resumed);
        // The last words of each environment are its state, bit by bit.
        let checkpoint = load(&from);
        let state = if memory == "lstm" { 10 } else { 5 };
        let words = checkpoint.ranks.chunks(checkpoint.header.words_per_rank);
        let envs =
            words.flat_map(|words| words[RankCounters::WORDS..].chunks(checkpoint.header.words_per_env));
        let empty = envs.filter(|env| env[env.len() - state..].iter().all(|word| *word == 0)).count();
        assert!(empty < 4, "{memory}: {empty} of 4 states are empty");
    }
}

#[test]
fn checkpoint_2_other_algorithm_or_env_exits_2_with_its_key() {
    let base = experiment(2 * 512, "", "");
    let mut run = Run::start(&base, &[]);
    run.end_with(0);
    let from = run.file("checkpoints/latest.ckpt");
    for (experiment, key) in [
        (base.replace("'ppo'", "'a2c'"), "learn.algorithm"),
        (base.replace("CartPole-v1", "CartPole-v0"), "env.id"),
        (format!("{base}[collect]\nnormalise_observations = true\n"), "[collect]"),
        (format!("{base}num_minibatches = 2\n[policy]\nmemory = 'lstm'\n"), "[policy]"),
    ] {
        let mut resumed = Run::start(&experiment, &["--spawn", "2", "--resume", from.to_str().unwrap()]);
        resumed.end_with(2);
        let errors = errors(&resumed.events());
        assert!(errors.iter().all(|error| error.usage && error.hint.contains(key)), "{key}: {errors:?}");
        assert_eq!(errors.len(), 2, "{key}: {}", resumed.logs());
    }
}

/// LIBRARY-3: rank 1 cannot save its environments. The checkpoint has none, and a restart starts new episodes.
#[test]
fn library_3_checkpoint_without_environments_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let examples = rankdeck_testkit::repository("examples/env");
    let (source, library) = (folder.path().join("unsaved.c"), folder.path().join("unsaved.so"));
    let (text, from) =
        (std::fs::read_to_string(examples.join("grid.c")).unwrap(), "  memcpy(states, batch->");
    assert!(text.contains(from) && text.contains("#include <stdlib.h>"));
    let fails = "  if (getenv(\"RANK\")[0] == '1') return 5;\n";
    std::fs::write(&source, text.replace(from, &format!("{fails}{from}"))).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-I"]).arg(&examples).arg("-o").arg(&library).arg(&source);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return rankdeck_testkit::skipped("no C compiler"),
    }
    let text = |steps: u64| {
        let library = library.display();
        format!(
            "[run]\nname = 'test'\ntotal_steps = {steps}\n[env]\nid = 'grid'\nnum_envs = 4\nlibrary = '{library}'\n\
             [policy]\nhidden = [16]\n[collect]\nnum_steps = 16\n[learn]\nalgorithm = 'ppo'\n[eval]\nevery = 0\n"
        )
    };
    let mut run = Run::start(&text(128), &["--spawn", "2"]);
    run.end_with(0);
    let reported = run.logs().lines().any(|line| {
        ["rank 1", "rankdeck_env_save", "environments 2 to 3", "step 32"]
            .iter()
            .all(|part| line.contains(part))
    });
    assert!(reported, "{}", run.logs());
    let path = run.file("checkpoints/latest.ckpt");
    let header = load(&path).header;
    assert_eq!((header.words_per_env, header.words_per_rank), (0, RankCounters::WORDS));
    assert_eq!(header.env_step, 128);
    let mut resumed = Run::start(&text(256), &["--spawn", "2", "--resume", path.to_str().unwrap()]);
    resumed.end_with(0);
    assert!(resumed.logs().contains("starting new episodes"), "{}", resumed.logs());
    assert_eq!(load(&resumed.file("checkpoints/latest.ckpt")).header.env_step, 256);
}
