//! A stop in the middle of things, evaluations that take long, and ranks whose environments break.

use crate::harness::{Run, errors, totals};
use rankdeck_proto::message::{FailureKind, FinishReason, RankEvent};
use rankdeck_testkit::repository;
use rankdeck_trainer::checkpoint::Checkpoint;
use std::time::{Duration, Instant};

/// An experiment in `tests/programs/faulty_env.py` with rollouts of 4 environments and 8 steps; `None` has
/// been noted as a skip.
fn experiment(id: &str, rest: &str) -> Option<String> {
    let interpreter = rankdeck_testkit::python("gymnasium")?;
    Some(format!(
        "[run]\nname = 'test'\ntotal_steps = 64000\n[env]\nid = 'faulty_env:{id}'\nnum_envs = 4\npython = '{interpreter}'\n\
         [collect]\nnum_steps = 8\n{rest}\n"
    ))
}

fn start(experiment: &str, args: &[&str], env: &[(&str, &str)]) -> Run {
    let programs = repository("tests/programs");
    let path = ("PYTHONPATH", programs.to_str().unwrap());
    Run::start_with(experiment, args, &[&[path], env].concat())
}

fn wait_for_log(run: &Run, text: &str) {
    let deadline = Instant::now() + crate::harness::DEADLINE;
    while !run.logs().contains(text) {
        assert!(Instant::now() < deadline, "no {text:?}\n{}", run.logs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn saved(run: &Run) -> Checkpoint {
    Checkpoint::decode(&std::fs::read(run.file("checkpoints/latest.ckpt")).unwrap()).unwrap()
}

const PPO: &str = "[learn]\nalgorithm = 'ppo'\n";

/// EVAL-3: the evaluation would take minutes. What was broken off is made up for after the restart.
#[test]
fn stop_within_evaluation_aborts_it_and_checkpoints() {
    for rank in [0, 1] {
        let Some(experiment) = experiment("Slow-v0", &format!("{PPO}[eval]\nevery = 2\nepisodes = 100\n"))
        else {
            return;
        };
        let mut run =
            start(&experiment, &["--spawn", "2"], &[("FAULTY_SLEEP", "0.02"), ("FAULTY_SAYS", "1")]);
        wait_for_log(&run, "env worker: the first step");
        let started = Instant::now();
        crate::harness::kill(run.rank_pid(rank), libc::SIGTERM);
        run.end_with(0);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
        assert_eq!(run.events().iter().filter(|(_, event)| *event == stopped).count(), 2, "{}", run.logs());
        assert_eq!((saved(&run).header.train_iter, saved(&run).header.evaluation_due), (0, true));
        let from = run.file("checkpoints/latest.ckpt");
        let short = experiment.replace("64000", "32").replace("episodes = 100", "episodes = 2");
        let mut resumed = start(&short, &["--resume", from.to_str().unwrap()], &[]);
        resumed.end_with(0);
        let evaluated =
            |(_, event): &(u32, RankEvent)| matches!(event, RankEvent::Eval(e) if e.train_iter == 0);
        assert!(resumed.events().iter().any(evaluated), "{}", resumed.logs());
        assert!(!saved(&resumed).header.evaluation_due);
    }
}

/// The ranks' environments, or rank 0's for the evaluation, would take minutes to make.
#[test]
fn stop_during_env_startup_saves_resumable_checkpoint() {
    let dqn =
        "[learn]\nalgorithm = 'dqn'\nlearning_starts = 8\nbatch_size = 8\n[checkpoint]\nreplay = true\n";
    // With 2 environments, each rank has one; with 4, the second of each rank is slow to make.
    for (learn, envs) in [(PPO, 4), (dqn, 4), (PPO, 2)] {
        let Some(experiment) = experiment("Slow-v0", &format!("{learn}[eval]\nevery = 100\nepisodes = 3\n"))
        else {
            return;
        };
        let experiment = experiment.replace("num_envs = 4", &format!("num_envs = {envs}"));
        let mut run = start(&experiment, &["--spawn", "2"], &[("FAULTY_MAKING", "600")]);
        wait_for_log(&run, "it takes long to make");
        let started = Instant::now();
        for rank in [0, 1] {
            crate::harness::kill(run.rank_pid(rank), libc::SIGTERM);
        }
        run.end_with(0);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
        assert_eq!(run.events().iter().filter(|(_, event)| *event == stopped).count(), 2, "{}", run.logs());
        assert_eq!((saved(&run).header.train_iter, saved(&run).header.evaluation_due), (0, true));
        let from = run.file("checkpoints/latest.ckpt");
        let short = experiment.replace("64000", "64");
        let mut resumed = start(&short, &["--resume", from.to_str().unwrap()], &[]);
        resumed.end_with(0);
        let first = |(_, event): &(u32, RankEvent)| matches!(event, RankEvent::Eval(e) if e.train_iter == 0);
        assert!(resumed.events().iter().any(first), "{}", resumed.logs());
    }
}

/// The other rank's environments start meanwhile, as far as they get; then both leave.
#[test]
fn stop_during_env_startup_stops_all_ranks() {
    let Some(experiment) = experiment("Slow-v0", PPO) else { return };
    let mut run = start(&experiment, &["--spawn", "2"], &[("FAULTY_MAKING", "6")]);
    wait_for_log(&run, "it takes long to make");
    crate::harness::kill(run.rank_pid(1), libc::SIGTERM);
    run.end_with(0);
    let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
    assert_eq!(run.events().iter().filter(|(_, event)| *event == stopped).count(), 2, "{}", run.logs());
    assert_eq!(saved(&run).header.train_iter, 0);
}

/// The evaluation takes several times `distributed.timeout_s`, and moves.
#[test]
fn evaluation_longer_than_timeout_is_allowed() {
    let rest = format!("{PPO}[eval]\nevery = 1000\nepisodes = 4\n[distributed]\ntimeout_s = 8\n");
    let Some(experiment) = experiment("Slow-v0", &rest) else { return };
    let experiment = experiment.replace("64000", "64");
    // 100 steps of 4 environments.
    let mut run = start(&experiment, &["--spawn", "2"], &[("FAULTY_SLEEP", "0.03")]);
    run.end_with(0);
    let took = run.events().into_iter().find_map(|(_, event)| match event {
        RankEvent::Eval(evaluation) => Some(evaluation.duration_s),
        _ => None,
    });
    assert!(took.unwrap() > 8.0, "{took:?}");
}

#[test]
fn endless_evaluation_episode_is_cut_off() {
    let rest = format!("{PPO}[eval]\nevery = 1000\nepisodes = 3\nmax_steps = 50\n");
    let Some(experiment) = experiment("Endless-v0", &rest) else { return };
    let mut run = start(&experiment.replace("64000", "64"), &[], &[]);
    run.end_with(0);
    let lengths = run.events().into_iter().find_map(|(_, event)| match event {
        RankEvent::Eval(evaluation) => Some((evaluation.episodes, evaluation.length_mean)),
        _ => None,
    });
    assert_eq!(lengths, Some((3, 50.0)));
    assert!(run.logs().contains("eval.max_steps = 50"), "{}", run.logs());
}

/// The rank whose environment returns a number that is not finite names itself; the other one only loses it.
#[test]
fn broken_environment_is_reported_by_its_rank_only() {
    for (id, algorithm, kind, fact) in [
        ("nan", "ppo", FailureKind::Environment, "environment 2 (faulty_env:Faulty-nan-v0)"),
        ("nan_seen", "ppo", FailureKind::Environment, "number 1 of its observation"),
        ("huge", "ppo", FailureKind::Diverged, "loss"),
        ("nan", "dqn", FailureKind::Environment, "environment 2 (faulty_env:Faulty-nan-v0)"),
        ("huge", "dqn", FailureKind::Diverged, "losses/td_loss"),
    ] {
        let off = "learning_starts = 8\nbatch_size = 8\n";
        let rest =
            format!("[learn]\nalgorithm = '{algorithm}'\n{}", if algorithm == "dqn" { off } else { "" });
        let Some(experiment) = experiment(&format!("Faulty-{id}-v0"), &rest) else { return };
        let env = [("FAULTY_AFTER", "20"), ("FAULTY_RANK", "1")];
        let mut run = start(&experiment, &["--spawn", "2"], &env);
        run.end_with(1);
        let errors = errors(&run.events());
        let own = errors.iter().find(|error| error.rank == 1).unwrap_or_else(|| panic!("{}", run.logs()));
        assert_eq!(own.kind, kind, "{id} {algorithm}: {own:?}");
        assert!(own.message.contains(fact), "{id} {algorithm}: {own:?}");
        for other in errors.iter().filter(|error| error.rank == 0) {
            assert!(![FailureKind::Diverged, FailureKind::Environment].contains(&other.kind), "{other:?}");
        }
        if kind == FailureKind::Environment {
            assert!(!own.hint.contains("learning rate"), "{own:?}");
        }
    }
}

/// Observations of every shape and type train with a network that takes them.
#[test]
fn observations_of_any_shape_and_type_train() {
    for (id, network, algorithm) in [
        ("bytes", "mlp", "dqn"),
        ("bytes", "mlp", "ppo"),
        ("matrix", "mlp", "ppo"),
        ("cube", "mlp", "dqn"),
        ("gray", "mlp", "ppo"),
        ("gray", "nature", "dqn"),
        ("floats", "nature", "ppo"),
        ("floats", "mlp", "ppo"),
        ("pixels", "impala", "ppo"),
    ] {
        let off = "learning_starts = 32\nbatch_size = 16\nbuffer_size = 200\nupdates_per_iteration = 2\n";
        let channels = if network == "mlp" { "" } else { "channels = [4, 4, 4]\n" };
        let rest = format!(
            "[policy]\nnetwork = '{network}'\nhidden = [16]\n{channels}[learn]\nalgorithm = '{algorithm}'\n{}[eval]\nevery = 3\nepisodes = 2\n[checkpoint]\nevery = 1\n",
            if algorithm == "dqn" { off } else { "num_minibatches = 1\n" }
        );
        let Some(experiment) = experiment(&format!("Spaces-{id}-v0"), &rest) else { return };
        let mut run = start(&experiment.replace("64000", "128"), &[], &[]);
        run.end_with(0);
        assert_eq!(totals(&run.events()).last().unwrap().train_iter, 4, "{}", run.logs());
        let weights = |name: &str| {
            let bytes = std::fs::read(run.file(&format!("checkpoints/{name}.ckpt"))).unwrap();
            let checkpoint = Checkpoint::decode(&bytes).unwrap();
            checkpoint.arrays.into_iter().find(|array| array.name.starts_with("model.")).unwrap().values
        };
        assert_ne!(weights("iter-1"), weights("iter-4"), "{id} {network} {algorithm}: learns nothing");
    }
}
