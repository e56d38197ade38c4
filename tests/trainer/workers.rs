//! Python environments in whole runs: what a rank reports when its worker fails, and that no worker is left
//! whatever ends the rank.

use crate::harness::{RankError, Run, counters, errors, kill};
use rankdeck_proto::message::{FailureKind, FinishReason, RankEvent};
use rankdeck_testkit::repository;

/// An experiment with `id` in a Python worker; `None` has been noted as a skip.
fn experiment(id: &str, total_steps: u64) -> Option<String> {
    let interpreter = rankdeck_testkit::python("gymnasium")?;
    Some(format!(
        "[run]\nname = 'test'\ntotal_steps = {total_steps}\n[env]\nid = '{id}'\nnum_envs = 4\nworker = 'python'\nworkers = 1\n\
         python = '{interpreter}'\n[learn]\nalgorithm = 'ppo'\n"
    ))
}

/// The one process of the run besides the rank.
fn worker_of(run: &Run) -> u32 {
    run.processes().into_iter().find(|pid| *pid != run.pid()).unwrap()
}

fn trains(run: &Run) {
    run.wait_for("counters", |events| !counters(events, 0).is_empty());
}

#[test]
fn python_3_worker_dies_with_its_killed_rank() {
    let Some(experiment) = experiment("CartPole-v1", 100_000_000) else { return };
    let mut run = Run::start(&experiment, &[]);
    trains(&run);
    assert_eq!(run.processes().len(), 2, "rank and worker");
    run.signal(libc::SIGKILL);
    run.wait();
    run.nothing_left();
}

#[test]
fn sigterm_to_group_stops_at_iteration_end() {
    let Some(experiment) = experiment("CartPole-v1", 100_000_000) else { return };
    let mut run = Run::start(&experiment, &[]);
    trains(&run);
    let worker = worker_of(&run);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        kill(worker, signal);
    }
    run.signal(libc::SIGTERM);
    run.end_with(0);
    assert!(run.events().contains(&(0, RankEvent::Finished { reason: FinishReason::Stopped })));
}

#[test]
fn python_2_dead_worker_ends_the_rank_with_an_error() {
    let Some(experiment) = experiment("CartPole-v1", 100_000_000) else { return };
    let mut run = Run::start(&experiment, &[]);
    trains(&run);
    kill(worker_of(&run), libc::SIGKILL);
    run.end_with(1);
    let errors = errors(&run.events());
    let [error] = &errors[..] else { panic!("{errors:?}\n{}", run.logs()) };
    assert_eq!((error.rank, error.usage, error.kind), (0, false, FailureKind::Environment), "{error:?}");
    assert!(error.message.contains("CartPole-v1") && error.message.contains("SIGKILL"), "{error:?}");
    assert!(error.hint.contains("env.num_envs"), "{error:?}");
    assert!(run.logs().contains("rank 0: error: "), "{}", run.logs());
}

#[test]
fn python_2_exception_is_reported_and_ends_all_ranks() {
    let Some(experiment) = experiment("faulty_env:Faulty-raise-v0", 100_000_000) else { return };
    let programs = repository("tests/programs");
    let env = [("PYTHONPATH", programs.to_str().unwrap()), ("FAULTY_AFTER", "300")];
    let mut run = Run::start_with(&experiment, &["--spawn", "2"], &env);
    run.end_with(1);
    let kinds: Vec<(bool, Option<FailureKind>)> = run
        .events()
        .into_iter()
        .filter_map(|(_, event)| match event {
            RankEvent::Error { message, failure, .. } => {
                Some((message.contains("ValueError: the pole is on fire"), failure))
            }
            _ => None,
        })
        .collect();
    assert!(kinds.contains(&(true, Some(FailureKind::Environment))), "{kinds:?}\n{}", run.logs());
    for (_, kind) in kinds {
        assert!(matches!(kind, Some(FailureKind::Environment | FailureKind::Connection)), "{kind:?}");
    }
    assert!(run.logs().contains("env worker: Traceback"), "{}", run.logs());
}

/// The other ranks wait in a collective of the evaluation, whose timeout is shorter than that of the
/// environment.
#[test]
fn hanging_evaluation_is_reported_before_timeouts() {
    let Some(text) = experiment("faulty_env:Faulty-hang-v0", 100_000_000) else { return };
    let text = format!("{text}[eval]\nevery = 1\nepisodes = 2\n[distributed]\ntimeout_s = 15\n");
    let programs = repository("tests/programs");
    let env = [("PYTHONPATH", programs.to_str().unwrap()), ("FAULTY_AFTER", "5"), ("FAULTY_RANK", "0")];
    let mut run = Run::start_with(&text, &["--spawn", "2"], &env);
    run.end_with(1);
    let errors = errors(&run.events());
    let error = errors.iter().find(|error| error.rank == 0);
    let error = error.unwrap_or_else(|| panic!("no error of rank 0\n{}", run.logs()));
    for part in ["Faulty-hang-v0", "6s", "faulty_env.py"] {
        assert!(error.message.contains(part), "{part} in {error:?}");
    }
    for key in ["env.worker_timeout_s", "distributed.timeout_s"] {
        assert!(error.hint.contains(key), "{key} in {error:?}");
    }
    let timed_out = errors.iter().any(|error| error.kind == FailureKind::Connection);
    assert!(!timed_out, "no collective timed out: {errors:?}");
}

#[test]
fn missing_package_exits_2_with_install_hint() {
    let experiment = "[run]\nname = 'test'\ntotal_steps = 100000\n[env]\nid = 'nosuchmodule:X-v0'\nnum_envs = 4\n\
                      [learn]\nalgorithm = 'ppo'\n";
    let mut run = Run::start(experiment, &[]);
    run.end_with(2);
    let logs = run.logs();
    assert!(logs.contains("nosuchmodule") && logs.contains("hint: "), "{logs}");
}

/// An interpreter with nothing but its standard library.
fn bare_python(folder: &std::path::Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let python = std::env::var("RANKDECK_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = folder.join("python");
    std::fs::write(&script, format!("#!/bin/sh\nexec {python} -I -S \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.to_str().unwrap().into()
}

#[test]
fn missing_gymnasium_exits_2_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let python = bare_python(folder.path());
    for id in ["HalfCheetah-v5", "ALE/Pong-v5"] {
        let experiment = format!(
            "[run]\nname = 'test'\ntotal_steps = 100000\n[env]\nid = '{id}'\nnum_envs = 4\npython = '{python}'\n[learn]\nalgorithm = 'ppo'\n"
        );
        let mut run = Run::start(&experiment, &["--spawn", "2"]);
        run.end_with(2);
        let errors = errors(&run.events());
        assert_eq!(errors.len(), 2, "{errors:?}\n{}", run.logs());
        for RankError { message, hint, usage, kind, .. } in errors {
            assert_eq!((usage, kind), (true, FailureKind::Configuration), "{message}");
            assert!(message.contains(id) && message.contains("gymnasium"), "{message}");
            assert!(
                hint.contains("-m pip install \"gymnasium>=1.0\"") && hint.contains("--setup-env DIR"),
                "{hint}"
            );
        }
        run.nothing_left();
    }
}
