//! Restarts by policy, and restarts on other hosts.

use crate::Goal;
use crate::event::{Effect, Event, StopSource};
use crate::model::RunState;
use crate::report::{ReportBody, RestartState, RunOutcome};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{LostHost, OnStuck, Restart};
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::link_state::LinkState;

fn with(hosts: usize, restart: Restart) -> Cluster {
    let mut draft = draft(hosts, Transport::Local);
    draft.experiment.restart = restart;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), hosts, vec![]);
    c.all_ready();
    c.pass(2_000);
    assert_eq!(c.model().run.state, RunState::Running);
    c
}

fn policy(max_restarts: u32) -> Restart {
    Restart { max_restarts: Some(max_restarts), backoff_s: 4.0, ..Restart::default() }
}

/// Rank 1 dies, its peers are stopped, every host proves it.
fn fail(c: &mut Cluster) {
    c.exit_of(1, killed(), false);
    c.pass(2_250);
    for node in 0..c.agents.len() {
        for rank in [2 * node as u32, 2 * node as u32 + 1] {
            if c.agents[node].samples.contains_key(&rank) {
                c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
            }
        }
        c.proof(node);
    }
}

fn restarts(c: &Cluster) -> Vec<(RestartState, f64)> {
    let state = |body: &ReportBody| match body {
        ReportBody::Restart { state, in_s, .. } => Some((*state, *in_s)),
        _ => None,
    };
    c.reports.iter().filter_map(|(_, _, body)| state(body)).collect()
}

fn checkpoint(c: &mut Cluster, train_iter: u64) {
    let path = format!("/w/runs/{RUN}/checkpoints/{train_iter}.ckpt");
    c.rank_event(
        0,
        RankEvent::Checkpoint { path, env_step: train_iter, train_iter, reason: "latest".into() },
    );
}

#[test]
fn failed_rank_restarts_after_backoff() {
    let mut c = with(2, policy(3));
    checkpoint(&mut c, 5);
    fail(&mut c);
    assert_eq!(c.model().run.state, RunState::Restarting);
    assert_eq!(c.model().run.restart_at, Some(c.now.plus(4_000)));
    assert_eq!(restarts(&c), [(RestartState::Waiting, 4.0)]);
    c.pass(3_750);
    assert_eq!(c.launches(0).len(), 1, "not before its time");
    let before = c.model().revision;
    c.pass(250);
    assert!(c.model().revision > before, "the countdown is on the screen");
    let launches = c.launches(1);
    assert_eq!(launches.len(), 2);
    // The script gets a path: it has no directory that is searched for `latest`.
    let from = format!("/w/runs/{RUN}/checkpoints/5.ckpt");
    assert_eq!((launches[1].generation, launches[1].resume.as_ref()), (Generation(1), Some(&from)));
    assert_ne!(launches[1].master_port, launches[0].master_port, "a rendezvous of its own");
    assert_eq!((c.model().run.restart_at, c.model().run.restarts, c.exit), (None, 1, None));
}

#[test]
fn restart_2_restarts_without_progress_are_bounded() {
    let mut c = with(1, policy(100));
    c.iteration(7, 10);
    let mut waits = Vec::new();
    for round in 0..3 {
        fail(&mut c);
        if c.exit.is_some() {
            assert_eq!(round, 2, "the first restart, and two in a row that led nowhere");
            break;
        }
        waits.push(restarts(&c).last().unwrap().1);
        c.pass(20_000);
        // As far as before, not further.
        c.iteration(7, 10);
    }
    assert_eq!(waits, [4.0, 8.0], "the wait doubles");
    assert_eq!((c.model().run.outcome, c.exit), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(restarts(&c).last().unwrap().0, RestartState::GivenUp);
    let mut c = with(1, policy(100));
    for round in 1..6 {
        c.iteration(round, 10 * round);
        fail(&mut c);
        assert_eq!(restarts(&c).last(), Some(&(RestartState::Waiting, 4.0)), "round {round}");
        c.pass(4_250);
    }
}

#[test]
fn restart_1_2_budget_and_usage_errors_end_run() {
    let mut c = with(1, policy(1));
    c.iteration(1, 1);
    fail(&mut c);
    c.pass(4_250);
    c.iteration(2, 2);
    fail(&mut c);
    assert_eq!(c.exit, Some(1));
    let mut c = with(1, policy(5));
    c.rank_event(
        1,
        RankEvent::Error { message: "no such env".into(), hint: String::new(), usage: true, failure: None },
    );
    c.exit_of(1, Exit::Code { code: 2 }, false);
    c.exit_of(0, Exit::Code { code: 1 }, false);
    c.proof(0);
    assert_eq!(c.exit, Some(2), "a mistake is not tried again");
    let mut c = with(1, Restart::default());
    fail(&mut c);
    assert_eq!((c.exit, restarts(&c).len()), (Some(1), 0), "none by default");
}

#[test]
fn stop_during_backoff_fails_run_and_restart_skips_it() {
    let mut c = with(1, policy(5));
    fail(&mut c);
    c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Key });
    assert_eq!((c.exit, c.model().run.outcome), (Some(1), Some(RunOutcome::Failed)));
    let mut c = with(1, policy(5));
    fail(&mut c);
    c.event(Event::restart(Some("latest".into())));
    assert_eq!(c.launches(0).len(), 2);
}

/// By a console that comes between two generations: before and after all of the first is known to have ended.
#[test]
fn restart_6_stop_between_generations_ends_the_run() {
    let mut c = with(1, policy(5));
    fail(&mut c);
    let mut other = c.attach();
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.all_ready();
    assert_eq!(other.exit, Some(1));
    let ending = |order: &ConsoleMessage| match order {
        ConsoleMessage::Ended { ending, .. } => Some(ending.clone()),
        _ => None,
    };
    let ending = other.agents[0].orders.iter().find_map(ending).expect("the other console waits for it");
    c.record(0, RecordEvent::Ended { ending: ending.clone() });
    assert_eq!((c.exit, c.model().run.outcome), (Some(1), Some(RunOutcome::Failed)));
    c.pass(60_000);
    assert_eq!(c.launches(0).len(), 1);
    // The first console still waits for the proof of another host.
    let mut c = with(2, policy(5));
    c.exit_of(1, Exit::Code { code: 3 }, false);
    c.record(0, RecordEvent::Ended { ending });
    for node in 0..2 {
        c.host_ends(node, true);
    }
    c.pass(60_000);
    assert_eq!((c.exit, c.launches(0).len()), (Some(1), 1));
}

/// Without a backoff, the next generation is reserved, or started, when the end is read.
#[test]
fn restart_6_recorded_end_is_obeyed_without_backoff() {
    let at_once = || Restart { backoff_s: 0.0, ..policy(5) };
    let ending = || Box::new(RunEnd::clean(RunOutcome::Stopped, 130, "stopped by a user"));
    // Another host is away: nothing was launched yet.
    let away = || {
        let mut c = with(2, at_once());
        c.exit_of(1, killed(), false);
        c.pass(2_250);
        c.host_ends(0, true);
        c.lose(0);
        c.host_ends(1, true);
        assert_eq!((c.model().run.state, c.launches(1).len()), (RunState::Restarting, 1));
        c
    };
    let mut c = away();
    c.record(1, RecordEvent::Ended { ending: ending() });
    c.ready(0);
    c.pass(60_000);
    assert_eq!((c.exit, c.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (1, 1));
    // The host that was away had recorded it before the launch came.
    let mut c = away();
    let seq = c.agents[0].records.len() as u64 + 1;
    let event = RecordEvent::Ended { ending: ending() };
    let record = Record { seq, time: 1000.0 + c.now.0 as f64 / 1000.0, generation: Generation(0), event };
    c.agents[0].records.push(record);
    c.ready(0);
    c.pass(1_000);
    for node in 0..2 {
        c.host_ends(node, true);
    }
    c.pass(60_000);
    assert_eq!((c.exit, c.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
    assert!(c.launches(1).len() <= 2 && c.model().run.unverified.is_empty());
    // A restart that the user of this console requests replaces it.
    let mut c = with(2, at_once());
    c.event(Event::restart(None));
    c.host_ends(0, true);
    c.lose(0);
    c.host_ends(1, true);
    c.record(1, RecordEvent::Ended { ending: ending() });
    c.ready(0);
    c.pass(5_000);
    assert_eq!((c.exit, c.launches(0).len(), c.launches(1).len()), (None, 2, 2));
}

fn user_stop() -> Event {
    Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command }
}

/// What an agent records when another console ends the run.
fn end_order() -> RecordEvent {
    RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: true }
}

/// One console restarts the run; another one stops it before the ranks have ended.
#[test]
fn restart_9_stop_cancels_restart_of_another_console() {
    let mut c = with(2, Restart::default());
    c.event(Event::restart(None));
    assert!(!c.orders_end(0), "a part of a restart");
    let mut other = c.attach();
    other.all_ready();
    other.event(user_stop());
    assert!(other.orders_end(0) && other.orders_end(1));
    for node in 0..2 {
        c.record(node, end_order());
    }
    for node in 0..2 {
        c.host_ends(node, true);
        other.host_ends(node, true);
    }
    assert_eq!((other.exit, other.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
    assert_eq!((c.exit, c.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (1, 1));
    assert!(c.model().run.refused.is_some(), "`rankdeck restart` reports it");
}

/// The order reaches a host between its proof and the launch, and the console has not read of it.
#[test]
fn restart_9_refused_launch_stops_what_has_started() {
    let mut c = with(2, Restart::default());
    c.event(Event::restart(None));
    c.host_ends(0, true);
    c.agents[1].ended = true;
    c.host_ends(1, true);
    assert_eq!((c.launches(0).len(), c.launches(1).len(), c.exit), (2, 2, None));
    assert_eq!((c.stops(0).len(), c.agents[1].spec.as_ref().map(|spec| spec.generation.0)), (2, Some(0)));
    assert!(c.orders_end(0));
    c.record(1, end_order());
    c.host_ends(0, true);
    assert_eq!((c.exit, c.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
    assert!(c.model().run.refused.is_some() && c.model().run.unverified.is_empty());
}

/// The next generation is not launched yet, because a host is away.
#[test]
fn restart_9_stop_cancels_reserved_generation() {
    for restart in [Restart::default(), Restart { backoff_s: 0.0, ..policy(5) }] {
        let mut c = with(2, restart.clone());
        if restart.max_restarts.is_some() {
            c.exit_of(1, killed(), false);
            c.pass(2_250);
        } else {
            c.event(Event::restart(None));
        }
        c.host_ends(0, true);
        c.lose(0);
        c.host_ends(1, true);
        assert_eq!((c.model().run.state, c.launches(1).len()), (RunState::Restarting, 1));
        c.record(1, end_order());
        c.ready(0);
        c.pass(60_000);
        assert_eq!((c.exit, c.launches(0).len(), c.launches(1).len()), (Some(130), 1, 1));
    }
}

#[test]
fn restart_9_stop_cancels_restart_by_policy() {
    // The policy waits: the order of the other console reaches hosts on which nothing is left.
    let mut c = with(1, policy(5));
    fail(&mut c);
    let mut other = c.attach();
    other.event(user_stop());
    other.all_ready();
    assert!(other.orders_end(0));
    assert_eq!(other.exit, Some(1));
    c.record(0, end_order());
    assert_eq!((c.exit, c.model().run.outcome), (Some(1), Some(RunOutcome::Failed)));
    // It has not decided yet.
    let mut c = with(2, policy(5));
    c.exit_of(1, Exit::Code { code: 3 }, false);
    c.record(0, end_order());
    for node in 0..2 {
        c.host_ends(node, true);
    }
    c.pass(60_000);
    assert_eq!((c.exit, c.launches(0).len()), (Some(1), 1));
}

/// On purpose, by a console that finds the order in the records.
#[test]
fn restart_9_run_that_was_stopped_restarts() {
    let mut c = with(2, Restart::default());
    c.event(user_stop());
    (0..2).for_each(|node| c.host_ends(node, true));
    assert_eq!(c.exit, Some(130));
    let mut other = c.attach();
    other.core = other.core.clone().lingering();
    other.all_ready();
    other.pass(5_000);
    assert_eq!(
        (other.model().run.state, other.model().run.outcome),
        (RunState::Over, Some(RunOutcome::Stopped))
    );
    let shown = other.model().run.launch.clone();
    other.event(Event::restart(None).having_shown(shown));
    assert_eq!(other.model().run.refused, None);
    for node in 0..2 {
        assert_eq!(other.agents[node].spec.as_ref().map(|spec| spec.generation.0), Some(1));
    }
}

/// Two consoles restart: neither ends the run.
#[test]
fn restart_9_two_restarts_do_not_cancel_each_other() {
    let mut c = with(1, Restart::default());
    let mut other = c.attach();
    other.all_ready();
    let shown = other.model().run.launch.clone();
    c.event(Event::restart(None));
    other.event(Event::restart(None).having_shown(shown));
    assert_eq!((other.stops(0), other.orders_end(0)), (vec![StopMode::Clean], false));
    c.record(0, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false });
    c.host_ends(0, true);
    assert_eq!((c.exit, c.launches(0).len()), (None, 2));
    let spec = c.agents[0].spec.clone().unwrap();
    other.host_ends(0, true);
    assert_eq!((other.exit, other.launches(0).len()), (None, 1));
    assert_eq!(other.launches(0)[0].generation, spec.generation, "its agent would refuse the second");
}

/// The order comes back in a record; a later one is another console's.
#[test]
fn restart_9_restart_after_own_stop_is_made() {
    for foreign in [false, true] {
        let mut c = with(1, Restart::default());
        c.event(user_stop());
        assert!(c.orders_end(0));
        c.event(Event::restart(None));
        if foreign {
            c.record(0, end_order());
        }
        c.host_ends(0, true);
        let expected = if foreign { (true, 1) } else { (false, 2) };
        assert_eq!((c.exit.is_some(), c.launches(0).len()), expected);
    }
}

#[test]
fn another_console_makes_no_restarts() {
    let mut c = with(1, policy(5));
    let mut other = c.attach();
    other.all_ready();
    other.pass(1_000);
    fail(&mut other);
    other.pass(19_000);
    assert_eq!(
        (other.launches(0).len(), other.exit),
        (0, None),
        "the next generation may come from elsewhere"
    );
    other.pass(2_000);
    assert_eq!((other.launches(0).len(), other.exit), (0, Some(1)));
    fail(&mut c);
    c.pass(4_250);
    assert_eq!(c.launches(0).len(), 2);
}

#[test]
fn stuck_ranks_use_the_same_budget() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.restart = Restart { max_restarts: Some(0), ..Restart::default() };
    draft.experiment.watch.on_stuck = OnStuck::Restart;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 1, vec![]);
    c.all_ready();
    c.pass(2_000);
    c.hang(1, |sample| sample.state = 'T');
    c.pass(65_000);
    c.host_ends(0, true);
    assert_eq!((c.exit, c.model().run.outcome), (Some(4), Some(RunOutcome::Stuck)));
}

/// Its ranks have ended because of it, with whatever code.
#[test]
fn requested_restart_is_its_own_reason() {
    let mut c = with(2, Restart::default());
    c.event(Event::restart(None));
    for node in 0..2 {
        c.host_ends(node, true);
    }
    assert_eq!(c.launches(0).len(), 2);
    let reason = c.reports.iter().rev().find_map(|(_, _, body)| match body {
        ReportBody::Restart { state: RestartState::Planned, reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    insta::assert_snapshot!(reason.unwrap(), @"a restart was requested");
}

#[test]
fn plan_4_host_is_excluded_and_added_again() {
    let mut c = with(3, Restart::default());
    checkpoint(&mut c, 3);
    let exclude = |names: &[&str]| Event::RestartRequested {
        from: Some("latest".into()),
        exclude: names.iter().map(|name| name.to_string()).collect(),
        add: vec![],
        experiment: None,
        shown: None,
    };
    c.event(exclude(&["ant", "bee"]));
    assert!(c.model().run.refused.as_ref().unwrap().contains("env.num_envs"), "restart_3");
    assert_eq!((c.model().run.state, c.stops(0).len()), (RunState::Running, 0), "the run keeps running");
    c.event(exclude(&["bee"]));
    assert_eq!(c.model().run.refused, None);
    assert_eq!(restarts(&c).last().unwrap().0, RestartState::Planned, "shown before anything is stopped");
    for node in 0..3 {
        assert_eq!(c.stops(node), [StopMode::Clean]);
        c.host_ends(node, true);
    }
    assert_eq!((c.launches(0).len(), c.launches(1).len(), c.launches(2).len()), (2, 1, 2));
    let plan = &c.launches(2)[1].plan;
    assert_eq!(plan.ranks.iter().map(|rank| rank.node_rank.0).collect::<Vec<_>>(), [0, 0, 2, 2]);
    assert_eq!(c.model().ranks[2].host, "cow");
    assert!(c.model().hosts[1].excluded.is_some() && c.model().hosts[2].excluded.is_none());
    // Rank 2 of the new generation is on the third host.
    c.agents[2].samples.clear();
    for rank in [2u32, 3] {
        c.agents[2].samples.insert(rank, rank_sample(rank));
    }
    let bee = draft(3, Transport::Local).hosts.remove(1);
    c.event(Event::RestartRequested {
        from: Some("latest".into()),
        exclude: vec![],
        add: vec![bee],
        experiment: None,
        shown: None,
    });
    for node in [0usize, 2] {
        for rank in c.agents[node].samples.keys().copied().collect::<Vec<_>>() {
            c.agents[node].samples.remove(&rank);
            let exit = Exit::Code { code: 0 };
            let event = RecordEvent::RankExited {
                rank: Rank(rank),
                pid: 1,
                exit,
                last_lines: vec![],
                stopping: true,
                ago_ms: 0,
                with_agent: false,
            };
            c.record(node, event);
        }
        c.proof(node);
    }
    assert_eq!(c.launches(1).len(), 2, "{:?}", c.model().run.refused);
    assert_eq!(c.model().ranks.len(), 6);
}

#[test]
fn changed_keys_are_planned_before_stop() {
    let mut c = with(2, Restart::default());
    checkpoint(&mut c, 3);
    let ask = |total_steps: u64, c: &Cluster| {
        let mut experiment = c.model().plan.clone().unwrap().experiment;
        experiment.run.total_steps = total_steps;
        Event::RestartRequested {
            from: Some("latest".into()),
            exclude: vec![],
            add: vec![],
            experiment: Some(Box::new(experiment)),
            shown: None,
        }
    };
    let event = ask(7, &c);
    c.event(event);
    assert!(c.model().run.refused.as_ref().unwrap().contains("not divisible"));
    assert_eq!((c.model().run.state, c.stops(0).len()), (RunState::Running, 0), "the run keeps running");
    let event = ask(5_000, &c);
    c.event(event);
    assert_eq!(c.model().run.refused, None);
    assert_eq!(restarts(&c).last().unwrap().0, RestartState::Planned);
    for node in 0..2 {
        assert_eq!(c.stops(node), [StopMode::Clean]);
        c.host_ends(node, true);
    }
    for node in 0..2 {
        let launches = c.launches(node);
        assert_eq!((launches.len(), launches[1].plan.experiment.run.total_steps), (2, 5_000));
        assert!(launches[1].resume.as_ref().is_some_and(|from| from.ends_with("/checkpoints/3.ckpt")));
    }
}

/// The code that the reports name, by generation.
fn codes(c: &Cluster) -> Vec<Option<String>> {
    let code = |body: &ReportBody| match body {
        ReportBody::Restart { state: RestartState::Planned | RestartState::Waiting, code, .. } => {
            Some(code.clone())
        }
        _ => None,
    };
    c.reports.iter().filter_map(|(_, _, body)| code(body)).collect()
}

#[test]
fn origin_4_policy_takes_the_same_code_and_reports_it() {
    for (code, word) in [(Some("sha256:ab"), "same"), (None, "in_place")] {
        let mut draft = draft(1, Transport::Local);
        draft.experiment.launch.command = vec!["python3".into(), "train.py".into()];
        draft.experiment.launch.code = code.map(|code| Code::from(code.to_owned()));
        draft.experiment.restart = policy(3);
        let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 1, vec![]);
        c.all_ready();
        c.pass(2_000);
        fail(&mut c);
        assert_eq!(codes(&c), [Some(word.to_owned())]);
    }
}

#[test]
fn origin_4_requested_code_is_that_of_the_next_generation() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.launch.command = vec!["python3".into(), "train.py".into()];
    draft.experiment.launch.code = Some(Code::Pack("ab".into()));
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 1, vec![]);
    c.all_ready();
    c.pass(2_000);
    let mut experiment = c.model().plan.clone().unwrap().experiment;
    experiment.launch.code = Some(Code::Pack("cd".into()));
    c.event(Event::RestartRequested {
        from: None,
        exclude: vec![],
        add: vec![],
        experiment: Some(Box::new(experiment)),
        shown: None,
    });
    c.host_ends(0, true);
    assert_eq!(c.launches(0)[1].plan.experiment.launch.code, Some(Code::Pack("cd".into())));
    assert!(codes(&c).contains(&Some("new".to_owned())), "{:?}", codes(&c));
    let expected = [(Generation(0), "ab".to_owned()), (Generation(1), "cd".to_owned())];
    assert_eq!(c.model().run.codes, expected);
}

#[test]
fn new_host_connects_first_and_failure_changes_nothing() {
    let mut c = with(1, Restart::default());
    let cow = || Host { name: "cow".into(), ..draft(3, Transport::Local).hosts.remove(2) };
    let ask = || Event::RestartRequested {
        from: None,
        exclude: vec![],
        add: vec![cow()],
        experiment: None,
        shown: None,
    };
    let effects = c.core.handle(c.now, ask());
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Connect { node: NodeRank(1), .. })));
    let failed = LinkState::Failed(HintedError { error: "cow: refused".into(), hint: "is sshd up?".into() });
    c.agents.push(FakeAgent::default());
    c.link(1, failed);
    assert!(c.model().run.refused.as_ref().unwrap().contains("cow: refused"));
    assert_eq!((c.model().run.state, c.stops(0).len()), (RunState::Running, 0));
    let effects = c.core.handle(c.now, ask());
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Connect { node: NodeRank(1), .. })));
    c.ready(1);
    assert_eq!(c.stops(0), [StopMode::Clean], "planned: now the generation ends");
    c.host_ends(0, true);
    assert_eq!(c.launches(1).len(), 1);
    assert_eq!(c.launches(1)[0].plan.ranks.len(), 4);
    assert_eq!(c.launches(1)[0].node_rank, NodeRank(1));
}

#[test]
fn restart_4_lost_host_is_excluded_and_killed_on_return() {
    let restart = Restart { lost_host: LostHost::Exclude, ..policy(3) };
    let mut c = with(3, restart);
    c.lose(2);
    c.exit_of(0, Exit::Code { code: 1 }, false);
    c.pass(2_250);
    c.exit_of(1, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.proof(0);
    c.host_ends(1, true);
    assert_eq!(c.launches(0).len(), 1, "it is waited for");
    c.pass(60_000);
    assert_eq!(c.exit, None);
    let launches = c.launches(0);
    assert_eq!(launches.len(), 2);
    assert_eq!(launches[1].plan.ranks.len(), 4);
    assert!(!launches[1].plan.has_ranks(NodeRank(2)));
    assert!(c.model().hosts[2].excluded.is_some());
    let before = c.stops(2).len();
    c.ready(2);
    assert_eq!(c.stops(2)[before..], [StopMode::Kill], "what it still runs is ended");
    let mut unproved = c.core.clone();
    let _ = unproved.handle(c.now, Event::Ticked);
    // Without its proof the end is not proved either.
    let mut d = c.copy();
    for c in [&mut c, &mut d] {
        if c.reports.is_empty() {
            c.proof(2);
        }
        c.host_ends(0, false);
        c.host_ends(1, false);
    }
    let proved = |c: &Cluster| match &c.finished()[..] {
        [ReportBody::RunFinished { proved, survivors, .. }] => (*proved, survivors.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!((proved(&c), proved(&d)), ((false, 1), (true, 0)));
}

/// An attached console to which one of three hosts has never answered, and its request to restart without it.
fn without_the_third(c: &Cluster) -> (Cluster, Event) {
    let mut other = c.attach();
    other.ready(0);
    other.ready(1);
    other.lose(2);
    let shown = other.model().run.launch.clone();
    let exclude = vec!["cow".to_string()];
    (other, Event::RestartRequested { from: None, exclude, add: vec![], experiment: None, shown })
}

#[test]
fn restart_4_silent_host_is_excluded_on_request() {
    let running = with(3, Restart::default());
    let mut over = with(3, Restart::default());
    over.host_ends(0, false);
    over.host_ends(1, false);
    for c in [running, over] {
        let was_over = c.model().run.state == RunState::Draining;
        let (mut other, request) = without_the_third(&c);
        assert!(!other.model().is_settled_without(&[]), "its ranks may not be started");
        assert!(other.model().is_settled_without(&["cow".into()]));
        other.event(request);
        assert_eq!(other.model().run.refused, None);
        for node in (0..2).filter(|_| !was_over) {
            assert_eq!(other.stops(node), [StopMode::Clean]);
            other.host_ends(node, true);
        }
        for node in 0..2 {
            let launches = other.launches(node);
            assert_eq!(launches.last().map(|spec| spec.generation), Some(Generation(1)), "node {node}");
            assert!(!launches[0].plan.has_ranks(NodeRank(2)));
        }
    }
}

#[test]
fn unconfirmed_launch_blocks_changes() {
    let c = with(3, Restart::default());
    let mut other = c.attach();
    other.ready(0);
    other.lose(1);
    other.lose(2);
    let shown = other.model().run.launch.clone();
    let exclude = vec!["cow".to_string()];
    other.event(Event::RestartRequested { from: None, exclude, add: vec![], experiment: None, shown });
    assert!(other.model().run.refused.is_some());
    assert_eq!(other.stops(0), []);
}

#[test]
fn lost_host_ends_run_by_default() {
    let mut c = with(2, policy(3));
    c.lose(1);
    c.exit_of(0, Exit::Code { code: 1 }, false);
    c.exit_of(1, Exit::Code { code: 1 }, false);
    c.proof(0);
    c.pass(60_000);
    assert_eq!((c.exit, c.launches(0).len()), (Some(1), 1));
}

#[test]
fn another_console_links_to_hosts_that_joined() {
    let mut c = with(3, Restart::default());
    let mut other = Cluster::with(
        Goal::Attach { run: rankdeck_types::ids::RunId(RUN.into()), hosts: vec!["ant".into()] },
        1,
        vec![],
    );
    other.agents = vec![c.agents[0].clone()];
    other.agents[0].connected = false;
    let mut connects = Vec::new();
    for event in
        [Event::LinkChanged { node: NodeRank(0), state: LinkState::Ready { probe: Default::default() } }]
    {
        other.agents[0].connected = true;
        let _ = other.core.handle(other.now, event);
        let spec = c.agents[0].spec.take().map(Box::new);
        for message in [
            hello(0, other.wall_time(0)),
            AgentMessage::Snapshot { spec, ranks: vec![], last_seq: 0, holds: vec![] },
        ] {
            let event = Event::AgentMessage { node: NodeRank(0), message: Box::new(message) };
            connects.extend(other.core.handle(other.now, event).into_iter().filter_map(
                |effect| match effect {
                    Effect::Find { node, name } => Some((node.0, name)),
                    _ => None,
                },
            ));
        }
    }
    assert_eq!(connects, [(1, "bee".to_string()), (2, "cow".to_string())]);
}

/// A request to restart with changed keys.
fn with_keys(c: &Cluster, exclude: &[&str]) -> Event {
    let mut experiment = c.model().plan.clone().unwrap().experiment;
    experiment.run.total_steps = 5_000;
    let exclude = exclude.iter().map(|name| (*name).to_string()).collect();
    let experiment = Some(Box::new(experiment));
    Event::RestartRequested { from: Some("latest".into()), exclude, add: vec![], experiment, shown: None }
}

#[test]
fn restart_5_absent_host_is_awaited_within_stop_bound() {
    let plain: fn(&Cluster) -> Event = |_| Event::restart(Some("latest".into()));
    let checked: fn(&Cluster) -> Event =
        |_| Event::CheckedRestartRequested { from: Some("latest".into()), shown: None };
    let keys: fn(&Cluster) -> Event = |c| with_keys(c, &[]);
    let others: fn(&Cluster) -> Event = |c| with_keys(c, &["cow"]);
    for request in [plain, checked, keys, others] {
        let mut c = with(3, Restart::default());
        checkpoint(&mut c, 3);
        c.lose(1);
        let event = request(&c);
        c.event(event);
        assert_eq!(c.model().run.restart_awaits, ["bee"]);
        c.pass(19_750);
        assert_eq!((c.model().run.refused.as_ref(), c.model().run.state), (None, RunState::Running));
        c.pass(500);
        assert!(c.model().run.refused.as_ref().unwrap().contains("--exclude bee"), "the command that helps");
        assert!(c.model().run.restart_awaits.is_empty());
        assert_eq!((c.model().run.state, c.exit), (RunState::Running, None), "the run is unchanged");
        assert_eq!((0..3).map(|node| c.stops(node).len()).sum::<usize>(), 0);
        let event = request(&c);
        c.event(event);
        c.pass(5_000);
        c.ready(1);
        assert!(c.model().run.restart_awaits.is_empty());
        for node in 0..3 {
            assert_eq!(c.stops(node), [StopMode::Clean], "it is back: now the generation ends");
            c.host_ends(node, true);
        }
        assert_eq!(c.launches(0).len(), 2);
    }
}

#[test]
fn restart_5_lost_host_that_may_be_excluded_is_not_awaited() {
    let mut c = with(3, Restart { lost_host: LostHost::Exclude, ..Restart::default() });
    checkpoint(&mut c, 3);
    c.lose(1);
    c.event(Event::restart(Some("latest".into())));
    assert_eq!((c.stops(0), c.model().run.restart_awaits.len()), (vec![StopMode::Clean], 0));
    c.host_ends(0, true);
    c.host_ends(2, true);
    c.pass(30_000);
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (2, 1));
}

#[test]
fn restart_5_request_without_absent_host_replaces_it() {
    let mut c = with(3, Restart::default());
    checkpoint(&mut c, 3);
    c.lose(1);
    c.event(Event::restart(Some("latest".into())));
    let event = with_keys(&c, &["bee"]);
    c.event(event);
    assert_eq!((c.model().run.refused.clone(), c.stops(0)), (None, vec![StopMode::Clean]));
    c.host_ends(0, true);
    c.host_ends(2, true);
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (2, 1));
}

#[test]
fn restart_5_stop_and_detach_cancel_a_waiting_restart() {
    for event in [Event::DetachRequested, Event::StopRequested { mode: StopMode::Clean, by: StopSource::Key }]
    {
        let mut c = with(2, Restart::default());
        c.lose(1);
        c.event(Event::restart(None));
        let stops = event != Event::DetachRequested;
        c.event(event);
        assert_eq!(c.stops(0).len(), usize::from(stops));
        if stops {
            assert!(c.model().run.restart_awaits.is_empty());
            c.ready(1);
            c.host_ends(0, true);
            c.host_ends(1, true);
        }
        assert!(c.exit.is_some() && c.launches(0).len() == 1);
    }
}

#[test]
fn restart_5_unverified_stop_names_the_command_that_helps() {
    let mut c = with(2, Restart::default());
    c.lose(1);
    c.exit_of(0, killed(), false);
    c.event(Event::restart(None));
    c.pass(2_250);
    c.exit_of(1, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.proof(0);
    c.pass(60_000);
    assert_eq!((c.exit, c.launches(0).len()), (Some(1), 1));
    assert!(c.model().run.refused.as_ref().unwrap().contains("--exclude bee"));
}

/// Whoever has excluded it: that console may be gone.
#[test]
fn restart_4_returned_host_is_stopped_by_any_console() {
    let (mut other, request) = without_the_third(&with(3, Restart::default()));
    other.event(request);
    other.host_ends(0, true);
    other.host_ends(1, true);
    assert_eq!(other.launches(0).last().map(|spec| spec.generation), Some(Generation(1)));
    let mut third = other.attach();
    third.ready(0);
    third.ready(2);
    assert_eq!((third.model().run.generation, third.stops(2)), (Generation(1), vec![]), "one host says so");
    third.ready(1);
    assert_eq!((third.stops(2), third.stops(0)), (vec![StopMode::Kill], vec![]));
    third.host_ends(2, true);
    third.pass(2_000);
    assert_eq!((third.model().run.state, third.stops(2).len()), (RunState::Running, 1));
}

/// In every way of asking: a script saves when it gets SIGTERM.
#[test]
fn origin_1_checkpoint_that_the_stop_saves_is_used() {
    let plain: fn(&Cluster) -> Event = |_| Event::restart(Some("latest".into()));
    let keys: fn(&Cluster) -> Event = |c| with_keys(c, &[]);
    let others: fn(&Cluster) -> Event = |c| with_keys(c, &["cow"]);
    for request in [plain, keys, others] {
        let mut c = with(3, Restart::default());
        checkpoint(&mut c, 3);
        let event = request(&c);
        c.event(event);
        checkpoint(&mut c, 8);
        (0..3).for_each(|node| c.host_ends(node, true));
        let resume = c.launches(0).last().unwrap().resume.clone();
        assert!(resume.as_ref().is_some_and(|path| path.ends_with("/8.ckpt")), "{resume:?}");
    }
}

#[test]
fn origin_1_policy_uses_checkpoint_that_its_stop_saves() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.watch.on_stuck = OnStuck::Restart;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 1, vec![]);
    c.all_ready();
    c.pass(2_000);
    c.hang(1, |sample| sample.state = 'T');
    for _ in 0..120 {
        if c.stops(0).is_empty() {
            c.pass(1_000);
        }
    }
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    checkpoint(&mut c, 9);
    c.host_ends(0, true);
    c.pass(120_000);
    let resume = c.launches(0).last().unwrap().resume.clone();
    assert_eq!(c.launches(0).len(), 2);
    assert!(resume.as_ref().is_some_and(|path| path.ends_with("/9.ckpt")), "{resume:?}");
}

/// Every host has verified its stop, and one leaves before the launch.
#[test]
fn restart_7_host_that_leaves_before_the_launch_is_awaited_bounded() {
    let lost = |lost_host| Restart { lost_host, ..policy(3) };
    for (restart, launches) in [(lost(LostHost::Stop), 1), (lost(LostHost::Exclude), 2)] {
        let mut c = with(3, restart);
        checkpoint(&mut c, 5);
        fail(&mut c);
        c.lose(1);
        c.pass(4_250);
        assert_eq!((c.model().run.state, c.launches(0).len()), (RunState::Restarting, 1));
        assert_eq!(c.model().run.restart_awaits, ["bee"]);
        c.pass(19_000);
        assert_eq!((c.exit, c.launches(0).len()), (None, 1), "it may come back");
        c.pass(1_500);
        assert_eq!((c.launches(0).len(), c.launches(1).len()), (launches, 1));
        assert!(c.model().run.restart_awaits.is_empty());
        if launches == 1 {
            assert_eq!((c.exit, c.model().run.outcome), (Some(3), Some(RunOutcome::Failed)));
            assert!(c.model().run.refused.as_ref().unwrap().contains("--exclude bee"));
        } else {
            let from = c.launches(0)[1].resume.clone();
            assert_eq!((c.exit, from), (None, Some(format!("/w/runs/{RUN}/checkpoints/5.ckpt"))));
        }
    }
}

#[test]
fn restart_7_host_that_returns_gets_the_launch() {
    let mut c = with(2, policy(3));
    fail(&mut c);
    c.lose(1);
    c.pass(15_000);
    c.ready(1);
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (2, 2));
    assert!(c.model().run.restart_awaits.is_empty());
}
