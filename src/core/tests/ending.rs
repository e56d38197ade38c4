//! How runs end: well, badly, on request, stuck, restarted, left alone.

use crate::Goal;
use crate::event::Event;
use crate::event::StopSource;
use crate::model::{RankLife, RunState};
use crate::report::{Outcome, ReportBody, Severity, VerdictKind};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::OnStuck;
use rankdeck_types::host::Transport;
use rankdeck_types::plan::Until;

fn running(hosts: usize) -> Cluster {
    let mut c = Cluster::launch(hosts);
    c.all_ready();
    c.pass(2_000);
    c
}

fn stop(mode: StopMode, by: StopSource) -> Event {
    Event::StopRequested { mode, by }
}

fn outcome(c: &Cluster) -> (Option<Outcome>, Option<u8>) {
    (c.model().run.outcome, c.exit)
}

#[test]
fn a_run_that_ends_by_itself_succeeds_when_every_host_has_proved_it() {
    let mut c = running(2);
    for rank in 0..4 {
        c.rank_said(rank, RankEvent::Finished { reason: FinishReason::StopValue });
    }
    c.host_ends(0, false);
    c.pass(1_000);
    assert_eq!((c.exit, c.model().run.state), (None, RunState::Draining), "bee has proved nothing");
    c.host_ends(1, false);
    assert_eq!(outcome(&c), (Some(Outcome::Succeeded), Some(0)));
    let [ReportBody::RunFinished { proved, survivors, gpus_free, reason, .. }] = &c.finished()[..] else {
        panic!()
    };
    assert!(*proved && survivors.is_empty());
    assert_eq!(gpus_free[..], ["ant:0", "bee:0"]);
    assert_eq!(reason, "reached the stop value");
    for node in 0..2 {
        assert!(c.stops(node).is_empty());
        assert_eq!(c.agents[node].orders.last(), Some(&ConsoleMessage::Close));
        assert!(c.agents[node].closed);
    }
    assert!(c.core.handle(c.now, Event::Ticked).is_empty(), "nothing after exit");
}

#[test]
fn a_killed_rank_is_named_its_peers_are_stopped_and_the_run_fails() {
    let mut c = running(2);
    c.exit_of(1, killed(), false);
    assert_eq!(c.verdicts(), [(VerdictKind::Dead, Some(1), Severity::Red)]);
    assert_eq!(c.model().run.state, RunState::Draining);
    assert!(c.stops(0).is_empty(), "peers may report first");
    c.pass(2_250);
    assert_eq!((c.stops(0), c.stops(1)), (vec![StopMode::Terminate], vec![StopMode::Terminate]));
    for rank in [0, 2, 3] {
        c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
    }
    c.proof(0);
    assert_eq!(c.exit, None);
    c.proof(1);
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
    assert_eq!(c.model().run.reason, "rank 1 on ant was killed by SIGKILL");
    assert_eq!(c.verdicts().len(), 1, "ranks that we stopped are no verdicts");
}

#[test]
fn the_end_of_an_agent_is_told_as_that_and_not_as_its_ranks_signal() {
    let mut c = running(2);
    let event = RecordEvent::RankExited {
        rank: rankdeck_types::ids::Rank(1),
        pid: 1001,
        exit: killed(),
        last_lines: vec![],
        stopping: false,
        ago_ms: 0,
        with_agent: true,
    };
    c.agents[0].samples.remove(&1);
    c.record(0, event);
    assert!(c.model().run.first_failure.as_ref().is_none_or(|first| first.error.contains("agent on ant")));
    let verdict = c.model().verdicts.iter().find(|v| v.rank == Some(rankdeck_types::ids::Rank(1))).unwrap();
    assert!(verdict.reason.starts_with("the agent on ant was killed or died"), "{}", verdict.reason);
}

#[test]
fn victims_that_report_first_do_not_hide_the_culprit() {
    let mut c = running(2);
    let failure = Some(FailureKind::Connection);
    let error =
        |text: &str| RankEvent::Error { message: text.into(), hint: "".into(), usage: false, failure };
    c.rank_said(2, error("all_reduce grad: Connection reset by peer"));
    c.exit_of(2, Exit::Code { code: 1 }, false);
    c.exit_of(1, killed(), false);
    c.rank_said(0, error("all_reduce grad: Connection closed by peer"));
    c.exit_of(0, Exit::Code { code: 1 }, false);
    assert!(c.verdicts().contains(&(VerdictKind::Dead, Some(0), Severity::Amber)), "{:?}", c.verdicts());
    c.proof(0);
    c.exit_of(3, Exit::Code { code: 1 }, false);
    c.proof(1);
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
    assert_eq!(c.model().run.reason, "rank 1 on ant was killed by SIGKILL");
}

#[test]
fn a_rank_that_names_a_configuration_mistake_ends_the_console_with_2() {
    let mut c = running(1);
    let error = RankEvent::Error {
        message: "unknown environment Foo-v1".into(),
        hint: "use CartPole-v1".into(),
        usage: true,
        failure: None,
    };
    c.rank_said(0, error);
    c.exit_of(0, Exit::Code { code: 2 }, false);
    c.exit_of(1, Exit::Code { code: 1 }, false);
    c.proof(0);
    assert_eq!(c.exit, Some(2));
    assert!(c.model().run.reason.contains("unknown environment Foo-v1"));
    assert_eq!(c.model().ranks[0].error.as_ref().unwrap().1, "use CartPole-v1");
}

#[test]
fn a_program_that_could_not_be_started_and_a_log_line_are_reasons() {
    let mut c = running(1);
    c.exit_of(1, Exit::Code { code: 1 }, false);
    assert!(c.model().verdicts[0].reason.ends_with("exited with code 1: ValueError: boom"));
    let mut c = running(1);
    c.exit_of(0, Exit::NotStarted { error: "/x: no such file".into() }, false);
    assert!(c.model().verdicts[0].reason.ends_with("could not be started: /x: no such file"));
    let mut c = running(1);
    c.exit_of(0, Exit::Signal { signal: 9, out_of_memory: true }, false);
    assert!(c.model().verdicts[0].reason.contains("out of memory"));
    assert!(c.model().verdicts[0].card.hint().contains("num_envs"));
}

#[test]
fn a_stop_on_request_is_clean_then_harder_and_ends_with_130() {
    for by in [StopSource::Signal, StopSource::Key, StopSource::Command] {
        let mut c = running(2);
        c.event(stop(StopMode::Clean, by));
        assert_eq!((c.stops(0), c.stops(1)), (vec![StopMode::Clean], vec![StopMode::Clean]));
        c.event(stop(StopMode::Clean, by));
        assert_eq!(c.stops(0), [StopMode::Clean; 2], "asking again sends the order again, no harder");
        c.event(stop(StopMode::Kill, by));
        assert_eq!(c.stops(0), [StopMode::Clean, StopMode::Clean, StopMode::Kill]);
        for rank in 0..4 {
            c.exit_of(rank, killed(), true);
        }
        c.proof(0);
        c.proof(1);
        assert_eq!(outcome(&c), (Some(Outcome::Stopped), Some(130)));
        assert!(c.verdicts().is_empty());
    }
}

#[test]
fn a_stop_is_sent_again_after_a_reconnect() {
    let mut c = running(2);
    c.lose(1);
    c.event(stop(StopMode::Clean, StopSource::Key));
    assert_eq!((c.stops(0).len(), c.stops(1).len()), (1, 0));
    c.host_ends(0, true);
    c.pass(3_000);
    c.ready(1);
    assert_eq!(c.stops(1), [StopMode::Clean]);
    c.host_ends(1, true);
    assert_eq!(outcome(&c), (Some(Outcome::Stopped), Some(130)));
}

#[test]
fn run_2_a_host_that_stays_away_is_listed_and_the_stop_is_not_proved() {
    let mut c = running(2);
    c.lose(1);
    c.event(stop(StopMode::Clean, StopSource::Signal));
    c.host_ends(0, true);
    c.pass(19_500);
    assert_eq!(c.exit, None, "max(grace, lost) + 10 s have not passed");
    c.pass(1_000);
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
    let [ReportBody::RunFinished { proved: false, survivors, .. }] = &c.finished()[..] else { panic!() };
    assert_eq!(survivors[..], ["bee:? unreachable"]);
}

#[test]
fn an_agent_that_does_not_finish_its_stop_is_told_to_kill_then_given_up() {
    let mut c = running(1);
    c.hang(1, |_| ());
    c.event(stop(StopMode::Clean, StopSource::Key));
    c.pass(23_000);
    assert_eq!(c.stops(0), [StopMode::Clean, StopMode::Kill]);
    c.pass(10_500);
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
}

#[test]
fn a_clean_stop_is_waited_for_while_ranks_move_and_not_longer_than_its_limit() {
    let mut c = running(1);
    c.event(stop(StopMode::Clean, StopSource::Key));
    c.pass(299_000);
    assert_eq!(c.stops(0), [StopMode::Clean], "ranks make progress");
    c.pass(22_500);
    assert_eq!(c.stops(0), [StopMode::Clean, StopMode::Kill], "the limit is over");
}

#[test]
fn a_goal_for_which_a_rank_was_killed_is_no_success() {
    let goal = Goal::Launch(Box::new(draft(1, Transport::Local)));
    let mut c = Cluster::with(goal, 1, vec![Until::Iters(3)]);
    c.all_ready();
    c.iteration(3, 10);
    assert_eq!(c.stops(0), [StopMode::Clean]);
    c.exit_of(0, Exit::Code { code: 0 }, true);
    c.exit_of(1, killed(), true);
    c.proof(0);
    assert_eq!(outcome(&c), (Some(Outcome::Stopped), Some(137)));
    let reason = c.model().run.reason.clone();
    assert!(reason.starts_with("reached iters=3, not clean"), "{reason}");
    let [ReportBody::RunFinished { clean: false, .. }] = &c.finished()[..] else { panic!() };
}

#[test]
fn a_stop_of_the_trainer_that_had_to_kill_is_told_from_a_clean_one_and_says_what_is_lost() {
    let end = |saved: Option<u64>, exit: fn() -> Exit| {
        let mut c = running(1);
        c.core.model_mut().plan.as_mut().unwrap().experiment.launch.command.clear();
        c.iteration(50, 10);
        if let Some(train_iter) = saved {
            let (path, reason) = ("c/latest.ckpt".into(), "every".into());
            c.rank_said(0, RankEvent::Checkpoint { path, env_step: 1, train_iter, reason });
        }
        c.event(stop(StopMode::Clean, StopSource::Signal));
        for rank in 0..2 {
            c.exit_of(rank, exit(), true);
        }
        c.proof(0);
        (c.exit, c.model().run.reason.clone())
    };
    let clean = end(Some(40), || Exit::Code { code: 0 });
    assert_eq!(clean, (Some(130), "stopped by signal".into()));
    for (saved, lost) in [
        (Some(40), "iterations 41 to 50 are lost; the last checkpoint is of iteration 40"),
        (Some(49), "iteration 50 is lost; the last checkpoint is of iteration 49"),
        (
            Some(50),
            "ranks were killed, and no complete iteration is lost; the last checkpoint is of iteration 50",
        ),
        (None, "iterations 1 to 50 are lost; there is no checkpoint"),
    ] {
        assert_eq!(end(saved, killed), (Some(137), format!("stopped by signal, not clean: {lost}")));
    }
}

#[test]
fn survivors_are_listed_and_never_give_0() {
    let mut c = running(1);
    for rank in 0..2 {
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    let survivor = Survivor { pid: 99, rank: None, state: 'D', command: "worker".into() };
    c.record(0, RecordEvent::Stopped { survivors: vec![survivor], gpus_free: vec![], took_ms: 5 });
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
    let [ReportBody::RunFinished { proved: false, survivors, .. }] = &c.finished()[..] else { panic!() };
    assert_eq!(survivors[..], ["ant:99 worker"]);
}

#[test]
fn a_natural_end_waits_for_a_lost_host_within_bounds() {
    let mut c = running(2);
    c.lose(1);
    c.pass(30_000);
    c.host_ends(0, false);
    c.pass(15_000);
    assert_eq!(c.exit, None);
    c.agents[1].samples.clear();
    c.record(
        1,
        RecordEvent::RankExited {
            rank: rankdeck_types::ids::Rank(2),
            pid: 1,
            exit: Exit::Code { code: 0 },
            last_lines: vec![],
            stopping: false,
            ago_ms: 0,
            with_agent: false,
        },
    );
    c.exit_of(3, Exit::Code { code: 0 }, false);
    c.proof(1);
    c.ready(1);
    assert_eq!(outcome(&c), (Some(Outcome::Succeeded), Some(0)));
}

#[test]
fn until_stops_cleanly_and_succeeds_but_never_with_a_failed_rank() {
    for bad in [false, true] {
        let goal = Goal::Launch(Box::new(draft(1, Transport::Local)));
        let mut c = Cluster::with(goal, 1, vec![Until::Steps(1_000), Until::Evals(9)]);
        c.all_ready();
        assert_eq!(c.model().run.total_steps, Some(1_000));
        c.iteration(1, 499);
        assert!(c.stops(0).is_empty());
        c.iteration(2, 500);
        assert_eq!(c.stops(0), [StopMode::Clean]);
        c.exit_of(0, Exit::Code { code: if bad { 1 } else { 0 } }, true);
        c.exit_of(1, Exit::Code { code: 0 }, true);
        c.proof(0);
        let expected =
            if bad { (Some(Outcome::Failed), Some(1)) } else { (Some(Outcome::Succeeded), Some(0)) };
        assert_eq!(outcome(&c), expected);
        assert!(bad || c.model().run.reason == "reached steps=1000");
    }
}

#[test]
fn until_counts_evaluations_iterations_and_seconds() {
    for until in [Until::Evals(2), Until::Iters(2), Until::Seconds(5)] {
        let mut c = Cluster::with(Goal::Launch(Box::new(draft(1, Transport::Local))), 1, vec![until]);
        c.all_ready();
        for iter in 1..=2 {
            assert!(c.stops(0).is_empty(), "{until:?}");
            c.iteration(iter, iter * 10);
            c.rank_said(0, RankEvent::Eval(Evaluation { return_mean: 9.0, ..Evaluation::default() }));
            c.pass(3_000);
        }
        assert_eq!(c.stops(0), [StopMode::Clean], "{until:?}");
    }
}

#[test]
fn a_restart_stops_proves_and_launches_a_new_generation() {
    let mut c = running(2);
    c.iteration(1, 10);
    let restart = || Event::restart(Some("latest".into()));
    c.event(restart());
    assert_eq!(c.model().run.state, RunState::Restarting);
    assert_eq!(c.stops(1), [StopMode::Clean]);
    c.host_ends(0, true);
    assert_eq!(c.launches(0).len(), 1, "bee has proved nothing");
    c.host_ends(1, true);
    assert_eq!((c.exit, c.model().run.state, c.model().run.generation.0), (None, RunState::Running, 1));
    let launch = &c.launches(1)[1];
    assert_eq!(
        (launch.generation.0, launch.resume.as_deref(), launch.master_port),
        (1, Some("latest"), 40_002)
    );
    let started = c.told.iter().filter(|(_, _, body)| matches!(body, ReportBody::RunStarted { .. })).count();
    assert_eq!(started, 2);
    assert!(c.model().ranks.iter().all(|rank| rank.life == RankLife::Spawned));
    assert_eq!(c.model().run.stopping, None);
    c.host_ends(0, false);
    c.host_ends(1, false);
    assert_eq!(outcome(&c), (Some(Outcome::Succeeded), Some(0)));
    assert_eq!(c.finished().len(), 1);
}

#[test]
fn a_restart_after_a_failure_terminates_and_a_stop_calls_it_off() {
    let mut c = running(1);
    c.exit_of(1, killed(), false);
    c.event(Event::restart(None));
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    c.event(stop(StopMode::Terminate, StopSource::Key));
    c.exit_of(0, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.proof(0);
    assert_eq!(outcome(&c), (Some(Outcome::Failed), Some(1)));
    assert_eq!(c.launches(0).len(), 1);
}

#[test]
fn a_screen_lingers_after_the_end_and_can_restart_from_there() {
    let mut c = Cluster::launch(1);
    c.core = crate::Core::with_resolver(
        Goal::Launch(Box::new(draft(1, Transport::Local))),
        vec![],
        c.now,
        resolve,
    )
    .lingering();
    c.all_ready();
    c.exit_of(0, killed(), false);
    c.exit_of(1, killed(), false);
    c.proof(0);
    assert_eq!((c.exit, c.model().run.state, c.model().run.exit_code), (None, RunState::Over, Some(1)));
    assert_eq!(c.core.poll_timeout(), None);
    c.event(Event::restart(None));
    assert_eq!((c.model().run.state, c.model().run.generation.0), (RunState::Running, 1));
    assert_eq!((c.model().run.outcome, c.model().verdicts.len()), (None, 0));
    c.host_ends(0, false);
    assert_eq!(c.finished().len(), 2);
    c.event(Event::DetachRequested);
    assert_eq!(c.exit, Some(0));
    assert_eq!(c.agents[0].orders.last(), Some(&ConsoleMessage::Close));
}

#[test]
fn detach_leaves_the_run_alone_and_says_how_to_come_back() {
    let mut c = running(2);
    c.event(Event::DetachRequested);
    assert_eq!(c.exit, Some(0));
    assert!(
        c.agents.iter().all(|agent| agent.closed && agent.orders.last() == Some(&ConsoleMessage::Detach))
    );
    assert!(c.stops(0).is_empty() && c.finished().is_empty());
    assert!(c.model().history.back().unwrap().text.contains(&format!("rankdeck attach {RUN}")));
}

fn with_policy(policy: OnStuck) -> Cluster {
    let mut draft = draft(2, Transport::Local);
    draft.experiment.watch.on_stuck = policy;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
    c.all_ready();
    c.pass(2_000);
    c.hang(3, |sample| sample.state = 'T');
    c.pass(8_000);
    // Whoever has stopped it may let it go on.
    assert!(c.verdicts().contains(&(VerdictKind::Frozen, Some(3), Severity::Red)) && c.stops(0).is_empty());
    c.pass(55_000);
    c
}

#[test]
fn watch_3_the_policy_leaves_a_silent_rank_alone_unless_the_user_has_limited_that() {
    let policies = [OnStuck::Stop, OnStuck::Restart];
    for (policy, limit) in policies.into_iter().flat_map(|policy| [(policy, None), (policy, Some(99.0))]) {
        let mut draft = draft(2, Transport::Local);
        let watch = &mut draft.experiment.watch;
        (watch.on_stuck, watch.rank0_budget_s, watch.silence_is_stuck_s) = (policy, 60.0, limit);
        let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
        c.all_ready();
        c.pass(2_000);
        c.hang(3, |_| {});
        c.pass(90_000);
        assert!(c.verdicts().contains(&(VerdictKind::Behind, Some(3), Severity::Red)));
        assert_eq!(c.stops(0), [], "likely is not certain");
        c.pass(if limit.is_some() { 15_000 } else { 7_200_000 });
        assert_eq!(c.stops(0), limit.map_or(vec![], |_| vec![StopMode::Terminate]));
    }
}

#[test]
fn the_policy_for_stuck_ranks_reports_stops_with_4_or_restarts() {
    let c = with_policy(OnStuck::Report);
    assert!(c.stops(0).is_empty());

    let mut c = with_policy(OnStuck::Stop);
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    (0..4).for_each(|rank| c.exit_of(rank, killed(), true));
    c.proof(0);
    c.proof(1);
    assert_eq!(outcome(&c), (Some(Outcome::Stuck), Some(4)));
    assert!(c.model().run.reason.contains("rank 3"), "{}", c.model().run.reason);

    let mut c = with_policy(OnStuck::Restart);
    for rank in 0..4 {
        c.exit_of(rank, killed(), true);
    }
    c.proof(0);
    c.proof(1);
    c.pass(1_000);
    assert_eq!((c.model().run.state, c.model().run.generation.0), (RunState::Running, 1));
    assert_eq!(c.launches(0)[1].resume, None, "there is no checkpoint yet");
    assert!(c.verdicts().contains(&(VerdictKind::Frozen, Some(3), Severity::Cleared)));
}

#[test]
fn run_2_a_stop_after_an_unproved_end_goes_to_the_host_that_has_come_back() {
    let mut c = Cluster::launch(2);
    c.core = crate::Core::with_resolver(
        Goal::Launch(Box::new(draft(2, Transport::Local))),
        vec![],
        c.now,
        resolve,
    )
    .lingering();
    c.all_ready();
    c.lose(1);
    c.event(stop(StopMode::Clean, StopSource::Key));
    c.host_ends(0, true);
    c.pass(30_000);
    assert_eq!(
        (c.model().run.state, &c.model().run.unverified[..]),
        (RunState::Over, &["bee".to_string()][..])
    );
    c.ready(1);
    assert!(c.stops(1).is_empty(), "nobody asked again");
    c.event(stop(StopMode::Clean, StopSource::Key));
    assert_eq!(c.stops(1), [StopMode::Clean]);
    c.host_ends(1, true);
    assert_eq!((c.model().run.state, c.model().run.unverified.len()), (RunState::Over, 0));
    let [_, ReportBody::RunFinished { proved: true, .. }] = &c.finished()[..] else { panic!() };
}
