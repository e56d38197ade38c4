//! Two ranks over Gloo, started by `--spawn`: totals, stopping, failing.

use crate::harness::{Run, counters, experiment, kill, totals};
use rankdeck_proto::message::{FinishReason, RankEvent};

const LONG: u64 = 100_000_000;

fn iterations(run: &Run, rank: u32) -> u64 {
    counters(&run.events(), rank).last().map_or(0, |c| c.train_iter)
}

fn training(run: &Run) {
    run.wait_for("counters of both ranks", |events| (0..2).all(|rank| !counters(events, rank).is_empty()));
}

#[test]
fn totals_are_the_sums_of_the_ranks_counters_and_weights_stay_equal() {
    let rest = "[eval]\nevery = 10\nepisodes = 2\n[checkpoint]\nevery = 7";
    let mut run = Run::start(&experiment(30 * 512, "", rest), &["--spawn", "2"]);
    run.end_with(0);
    let events = run.events();
    let (totals, own) = (totals(&events), [0, 1].map(|rank| counters(&events, rank)));
    assert!(totals.len() >= 5, "iterations 1, 7, 10, 14, ... report at least");
    for (i, total) in totals.iter().enumerate() {
        let [a, b] = [own[0][i], own[1][i]];
        assert_eq!([a.train_iter, b.train_iter], [total.train_iter; 2]);
        assert_eq!(a.env_step + b.env_step, total.env_step);
        assert_eq!((total.env_step, total.samples), (total.train_iter * 512, a.samples + b.samples));
        assert_eq!(a.episodes + b.episodes, total.episodes);
        assert!((a.duration_s + b.duration_s - total.duration_s).abs() < 1e-9);
        assert_eq!([a.updates, b.updates], [total.updates; 2]);
        assert_eq!(a.returns.sum + b.returns.sum, total.returns.sum);
        assert_eq!(a.returns.count + b.returns.count, total.returns.count);
    }
    assert_eq!(totals.last().unwrap().env_step, 30 * 512);
    assert!(own[0].last().unwrap().episodes != 0 && own[0].last() != own[1].last());
    let fingerprints: Vec<_> = events
        .iter()
        .filter_map(|(rank, event)| match event {
            RankEvent::Fingerprint { values, equal, .. } => Some((*rank, values.clone(), *equal)),
            _ => None,
        })
        .collect();
    assert_eq!(fingerprints.len(), totals.len());
    // They follow the weights: no two iterations have the same.
    let distinct: std::collections::HashSet<&String> =
        fingerprints.iter().map(|(_, values, _)| &values[0]).collect();
    assert_eq!(distinct.len(), totals.len());
    for (rank, values, equal) in fingerprints {
        assert!(
            rank == 0
                && equal
                && values.len() == 2
                && values[0] == values[1]
                && values[0] != "0000000000000000"
        );
    }
    for rank in 0..2 {
        let finished = (rank, RankEvent::Finished { reason: FinishReason::Budget });
        assert!(events.contains(&finished));
    }
}

#[test]
fn the_first_sigterm_makes_all_ranks_leave_at_the_same_iteration() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    run.signal(libc::SIGTERM);
    run.end_with(0);
    let left = iterations(&run, 0);
    assert!(left > 0);
    assert_eq!(left, iterations(&run, 1));
    let events = run.events();
    let checkpoint = events.iter().find_map(|(_, event)| match event {
        RankEvent::Checkpoint { path, train_iter, reason, .. } => {
            Some((path.clone(), *train_iter, reason.clone()))
        }
        _ => None,
    });
    let path = run.file("checkpoints/latest.ckpt");
    assert_eq!(checkpoint, Some((path.to_string_lossy().into_owned(), left, "stop".into())));
    for rank in 0..2 {
        assert!(events.contains(&(rank, RankEvent::Finished { reason: FinishReason::Stopped })));
    }
}

#[test]
fn a_signal_to_one_rank_stops_all() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    kill(run.rank_pid(1), libc::SIGTERM);
    run.end_with(0);
    assert_eq!(iterations(&run, 0), iterations(&run, 1));
}

#[test]
fn the_second_signal_ends_at_once() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    // Rank 1 stands still, so that no iteration can end and the first signal alone would wait for ever.
    let rank1 = run.rank_pid(1);
    kill(rank1, libc::SIGSTOP);
    run.signal(libc::SIGTERM);
    run.signal(libc::SIGINT);
    kill(rank1, libc::SIGCONT);
    run.end_with(1);
    assert!(!run.events().iter().any(|(_, event)| matches!(event, RankEvent::Finished { .. })));
}

#[test]
fn a_killed_rank_fails_the_group_and_nothing_is_left() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    kill(run.rank_pid(1), libc::SIGKILL);
    run.end_with(1);
    // The survivor says what it noticed.
    let said = run.events().into_iter().find_map(|(rank, event)| match event {
        RankEvent::Error { message, usage, .. } => Some((rank, message, usage)),
        _ => None,
    });
    let (rank, message, usage) = said.unwrap();
    assert!(rank == 0 && !usage && !message.is_empty(), "{message}");
}

#[test]
fn spawn_1_ranks_die_with_their_parent() {
    let run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    assert_eq!(run.processes().len(), 3);
    run.signal(libc::SIGKILL);
    // The parent itself stays as a zombie, whose environment is empty, until it is reaped.
    run.nothing_left();
}

#[test]
fn mistakes_end_every_rank_with_code_2_and_a_hint() {
    for (experiment, args, key) in [
        (
            experiment(5000, "", "").replace("id = 'CartPole-v1'", "id = 'Cart-v9'\nworker = 'rust'"),
            vec!["--spawn", "2"],
            "env.id",
        ),
        (experiment(5000, "", ""), vec!["--spawn", "3"], "env.num_envs"),
        (experiment(5000, "", "num_minibatches = 7"), vec![], "num_minibatches"),
        (experiment(100, "", ""), vec![], "total_steps"),
        (experiment(5000, "", "no_such_key = 1"), vec![], "rankdeck check"),
        (experiment(5000, "", "[distributed]\nbackend = 'nccl'"), vec![], "gloo"),
    ] {
        let mut run = Run::start(&experiment, &args);
        run.end_with(2);
        let hint = run.events().into_iter().find_map(|(_, event)| match event {
            RankEvent::Error { hint, usage: true, .. } => Some(hint),
            _ => None,
        });
        assert!(hint.as_ref().is_some_and(|hint| hint.contains(key)), "{hint:?}\n{}", run.logs());
        assert!(!run.run_dir().join("checkpoints").exists());
    }
}

#[test]
fn contradictory_environments_are_refused_before_anything_starts() {
    let mut run = Run::start_with(&experiment(5000, "", ""), &[], &[("RANK", "1")]);
    run.end_with(2);
    assert!(run.logs().contains("RANK is given without WORLD_SIZE"), "{}", run.logs());
    assert!(matches!(&run.events()[..], [(1, RankEvent::Error { usage: true, .. })]));
    let mut run = Run::start_with(&experiment(5000, "", ""), &["--spawn", "2"], &[("WORLD_SIZE", "2")]);
    run.end_with(2);
    assert!(run.logs().contains("--spawn"), "{}", run.logs());
}
