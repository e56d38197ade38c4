//! `collect.double_buffer`: half of the environments step while the policy runs on the other half, and
//! nothing else changes.

use crate::harness::{Run, counters, errors, totals};
use rankdeck_proto::message::{Counters, FailureKind, FinishReason, RankEvent};
use rankdeck_testkit::repository;
use rankdeck_trainer::checkpoint::Checkpoint;

/// An experiment in a Python worker, or in two; `None` has been noted as a skip.
fn experiment(id: &str, total_steps: u64, double_buffer: bool, rest: &str) -> Option<String> {
    let interpreter = rankdeck_testkit::python("gymnasium")?;
    Some(format!(
        "[run]\nname = 'test'\ntotal_steps = {total_steps}\n[env]\nid = '{id}'\nnum_envs = 8\nworker = 'python'\n\
         python = '{interpreter}'\n[collect]\nnum_steps = 64\ndouble_buffer = {double_buffer}\n{rest}"
    ))
}

/// Steps, samples, episodes and their sums: what depends on no clock.
fn counted(all: &[Counters]) -> Vec<[u64; 3]> {
    all.iter().map(|counters| [counters.env_step, counters.samples, counters.episodes]).collect()
}

/// COLLECT-2. With everything that a rollout carries along, by two ranks and by one: the checkpoint, and what
/// was counted on the way to it.
#[test]
fn double_buffer_is_bit_equal_to_one_group() {
    let normalized = "normalise_observations = true\nnormalise_rewards = true\n[learn]\nalgorithm = 'ppo'\n\
                      bootstrap_truncated = true\n";
    for (id, rest, args) in [
        ("CartPole-v1", "[learn]\nalgorithm = 'ppo'\n", &["--spawn", "2"][..]),
        ("Pendulum-v1", normalized, &[]),
        ("CartPole-v1", "[learn]\nalgorithm = 'ppg'\npolicy_iterations = 2\n", &[]),
        (
            "CartPole-v1",
            "[policy]\nmemory = 'lstm'\nmemory_size = 8\n[learn]\nalgorithm = 'ppo'\n",
            &["--spawn", "2"],
        ),
    ] {
        let train = |double_buffer| {
            let mut run = Run::start(&experiment(id, 4096, double_buffer, rest)?, args);
            run.end_with(0);
            let bytes = std::fs::read(run.file("checkpoints/latest.ckpt")).unwrap();
            let Checkpoint { header, arrays, words, .. } = Checkpoint::decode(&bytes).unwrap();
            let events = run.events();
            assert!(!counted(&totals(&events)).is_empty(), "{}", run.logs());
            let weights = format!("{arrays:?} {words:?} {:?}", header.latest_returns);
            Some((weights, counted(&counters(&events, 0)).pop(), counted(&totals(&events)).pop()))
        };
        let (Some(whole), Some(halves)) = (train(false), train(true)) else { return };
        assert!(whole == halves, "{id} {args:?}: {:?} {:?}", whole.1, halves.1);
    }
}

/// Each half's step ends only when the other half has started its own: a run progresses only if both run at
/// once.
#[test]
fn double_buffer_halves_step_concurrently() {
    let meet = tempfile::tempdir().unwrap();
    let programs = repository("tests/programs");
    let env = [("PYTHONPATH", programs.to_str().unwrap()), ("FAULTY_MEET", meet.path().to_str().unwrap())];
    let text = |double_buffer| {
        let rest = "[learn]\nalgorithm = 'ppo'\n";
        let text = experiment("faulty_env:Meet-v0", 1024, double_buffer, rest)?;
        Some(text.replace("num_envs = 8", "num_envs = 2\nworkers = 1\nworker_timeout_s = 10"))
    };
    let Some(halves) = text(true) else { return };
    let mut run = Run::start_with(&halves, &[], &env);
    run.end_with(0);
    assert!(run.events().contains(&(0, RankEvent::Finished { reason: FinishReason::Budget })));
    for entry in std::fs::read_dir(meet.path()).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    let mut run = Run::start_with(&text(false).unwrap(), &[], &env);
    run.end_with(1);
    let errors = errors(&run.events());
    let [error] = &errors[..] else { panic!("{errors:?}\n{}", run.logs()) };
    assert!(error.kind == FailureKind::Environment && error.message.contains("10s"), "{error:?}");
}

/// PYTHON-3: two workers, and none is left.
#[test]
fn python_3_both_workers_end_with_the_rank() {
    let rest = "[learn]\nalgorithm = 'ppo'\n";
    for (signal, code) in [(libc::SIGKILL, None), (libc::SIGTERM, Some(0))] {
        let Some(text) = experiment("CartPole-v1", 100_000_000, true, rest) else { return };
        let mut run = Run::start(&text, &[]);
        run.wait_for("counters", |events| !counters(events, 0).is_empty());
        assert_eq!(run.processes().len(), 3, "a rank and two workers");
        run.signal(signal);
        assert_eq!(run.wait().code(), code, "{}", run.logs());
        run.nothing_left();
    }
}
