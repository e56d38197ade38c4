//! How runs end: well, badly, on request, stuck, restarted, left alone.

use crate::Goal;
use crate::event::{Event, StopSource};
use crate::limits::TimeLimits;
use crate::model::{RankLife, RunState};
use crate::report::{ReportBody, RunOutcome, Severity, VerdictKind};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::OnStuck;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::Rank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::StopGoal;

fn running(hosts: usize) -> Cluster {
    let mut c = Cluster::launch(hosts);
    c.all_ready();
    c.pass(2_000);
    c
}

fn stop(mode: StopMode, by: StopSource) -> Event {
    Event::StopRequested { mode, by }
}

fn outcome(c: &Cluster) -> (Option<RunOutcome>, Option<u8>) {
    (c.model().run.outcome, c.exit)
}

#[test]
fn run_succeeds_once_every_host_has_verified() {
    let mut c = running(2);
    for rank in 0..4 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::StopValue });
    }
    c.host_ends(0, false);
    c.pass(1_000);
    assert_eq!((c.exit, c.model().run.state), (None, RunState::Draining), "bee has proved nothing");
    c.host_ends(1, false);
    assert_eq!(outcome(&c), (Some(RunOutcome::Succeeded), Some(0)));
    let [ReportBody::RunFinished { proved, survivors, gpus_free, reason, .. }] = &c.finished()[..] else {
        panic!()
    };
    assert!(*proved && survivors.is_empty());
    assert_eq!(gpus_free[..], ["ant:0", "bee:0"]);
    insta::assert_snapshot!("reached_stop_value", reason);
    for node in 0..2 {
        assert!(c.stops(node).is_empty());
        assert_eq!(c.agents[node].orders.last(), Some(&ConsoleMessage::Close));
        assert!(c.agents[node].closed);
    }
    assert!(c.core.handle(c.now, Event::Ticked).is_empty(), "nothing after exit");
}

#[test]
fn killed_rank_fails_run_and_stops_peers() {
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
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(c.model().run.first_failure.as_ref().map(|first| first.rank), Some(Rank(1)));
    assert_eq!(c.verdicts().len(), 1, "ranks that were stopped on request raise no verdict");
}

#[test]
fn death_of_agent_is_not_reported_as_signal() {
    let mut c = running(2);
    let event = RecordEvent::RankExited {
        rank: Rank(1),
        pid: 1001,
        exit: killed(),
        last_lines: vec![],
        stopping: false,
        ago_ms: 0,
        with_agent: true,
    };
    c.agents[0].samples.remove(&1);
    c.record(0, event);
    let verdict = c.model().verdicts.iter().find(|verdict| verdict.rank == Some(Rank(1))).unwrap();
    insta::assert_snapshot!("death_of_agent", verdict.reason);
}

#[test]
fn secondary_failures_first_keep_culprit() {
    let mut c = running(2);
    let failure = Some(FailureKind::Connection);
    let error =
        |text: &str| RankEvent::Error { message: text.into(), hint: "".into(), usage: false, failure };
    c.rank_event(2, error("all_reduce grad: Connection reset by peer"));
    c.exit_of(2, Exit::Code { code: 1 }, false);
    c.exit_of(1, killed(), false);
    c.rank_event(0, error("all_reduce grad: Connection closed by peer"));
    c.exit_of(0, Exit::Code { code: 1 }, false);
    assert!(c.verdicts().contains(&(VerdictKind::Dead, Some(0), Severity::Amber)), "{:?}", c.verdicts());
    c.proof(0);
    c.exit_of(3, Exit::Code { code: 1 }, false);
    c.proof(1);
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(c.model().run.first_failure.as_ref().map(|first| first.rank), Some(Rank(1)));
}

#[test]
fn configuration_error_of_rank_exits_2() {
    let mut c = running(1);
    let error = RankEvent::Error {
        message: "unknown environment Foo-v1".into(),
        hint: "use CartPole-v1".into(),
        usage: true,
        failure: None,
    };
    c.rank_event(0, error);
    c.exit_of(0, Exit::Code { code: 2 }, false);
    c.exit_of(1, Exit::Code { code: 1 }, false);
    c.proof(0);
    assert_eq!(c.exit, Some(2));
    assert!(c.model().run.reason.contains("unknown environment Foo-v1"));
    assert_eq!(c.model().ranks[0].error.as_ref().unwrap().1, "use CartPole-v1");
}

#[test]
fn failed_starts_and_exits_have_reasons() {
    let exits = [
        (1, Exit::Code { code: 1 }),
        (0, Exit::NotStarted { error: "/x: no such file".into() }),
        (0, Exit::Signal { signal: 9, out_of_memory: true }),
    ];
    let sentences = exits.map(|(rank, exit)| {
        let mut c = running(1);
        c.exit_of(rank, exit, false);
        let verdict = c.model().verdicts[0].clone();
        format!("{}\n{}", verdict.reason, verdict.card.hint())
    });
    insta::assert_snapshot!("failed_starts_and_exits", sentences.join("\n"));
}

#[test]
fn requested_stop_escalates_and_exits_130() {
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
        assert_eq!(outcome(&c), (Some(RunOutcome::Stopped), Some(130)));
        assert!(c.verdicts().is_empty());
    }
}

#[test]
fn stop_is_resent_after_reconnect() {
    let mut c = running(2);
    c.lose(1);
    c.event(stop(StopMode::Clean, StopSource::Key));
    assert_eq!((c.stops(0).len(), c.stops(1).len()), (1, 0));
    c.host_ends(0, true);
    c.pass(3_000);
    c.ready(1);
    assert_eq!(c.stops(1), [StopMode::Clean]);
    c.host_ends(1, true);
    assert_eq!(outcome(&c), (Some(RunOutcome::Stopped), Some(130)));
}

#[test]
fn run_2_absent_host_is_listed_and_stop_unverified() {
    let mut c = running(2);
    c.lose(1);
    c.event(stop(StopMode::Clean, StopSource::Signal));
    c.host_ends(0, true);
    c.pass(19_500);
    assert_eq!(c.exit, None, "max(grace, lost) + 10 s have not passed");
    c.pass(1_000);
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
    let [ReportBody::RunFinished { proved: false, survivors, .. }] = &c.finished()[..] else { panic!() };
    assert_eq!(survivors[..], ["bee:? unreachable"]);
}

#[test]
fn unfinished_stop_escalates_to_kill_then_gives_up() {
    let mut c = running(1);
    c.hang(1, |_| ());
    c.event(stop(StopMode::Clean, StopSource::Key));
    c.pass(23_000);
    assert_eq!(c.stops(0), [StopMode::Clean, StopMode::Kill]);
    c.pass(10_500);
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
}

#[test]
fn clean_stop_waits_while_the_agent_does_up_to_limit() {
    let limit = TimeLimits::of(None).stop;
    let mut c = running(1);
    c.agents[0].kills_in_ms = Some(10_000);
    c.event(stop(StopMode::Clean, StopSource::Key));
    c.pass(limit);
    assert_eq!(c.stops(0), [StopMode::Clean], "ranks make progress");
    c.pass(12_000);
    assert_eq!(c.stops(0), [StopMode::Clean, StopMode::Kill], "the limit is over");
}

#[test]
fn goal_reached_by_kill_is_not_success() {
    let goal = Goal::Launch(Box::new(draft(1, Transport::Local)));
    let mut c = Cluster::with(goal, 1, vec![StopGoal::Iters(3)]);
    c.all_ready();
    c.iteration(3, 10);
    assert_eq!(c.stops(0), [StopMode::Clean]);
    c.exit_of(0, Exit::Code { code: 0 }, true);
    c.exit_of(1, killed(), true);
    c.proof(0);
    assert_eq!(outcome(&c), (Some(RunOutcome::Stopped), Some(137)));
    insta::assert_snapshot!("goal_reached_by_kill", c.model().run.reason);
    let [ReportBody::RunFinished { clean: false, .. }] = &c.finished()[..] else { panic!() };
}

#[test]
fn stop_with_kill_reports_lost_iterations() {
    let end = |saved: Option<u64>, exit: fn() -> Exit| {
        let mut c = running(1);
        c.core.model_mut().plan.as_mut().unwrap().experiment.launch.command.clear();
        c.iteration(50, 10);
        if let Some(train_iter) = saved {
            let (path, reason) = ("c/latest.ckpt".into(), "every".into());
            c.rank_event(0, RankEvent::Checkpoint { path, env_step: 1, train_iter, reason });
        }
        c.pass(1_000);
        c.event(stop(StopMode::Clean, StopSource::Signal));
        for rank in 0..2 {
            c.exit_of(rank, exit(), true);
        }
        c.proof(0);
        let work = c.model().run.work.clone().unwrap();
        (c.exit, work, c.model().run.reason.clone())
    };
    let (code, work, clean) = end(Some(40), || Exit::Code { code: 0 });
    assert_eq!((code, work.is_lost()), (Some(130), true));
    let mut sentences = vec![format!("{clean}; {}", work.describe())];
    for (saved, is_lost) in [(Some(40), true), (Some(49), true), (Some(50), false), (None, false)] {
        let (code, work, sentence) = end(saved, killed);
        assert_eq!((code, work.is_lost()), (Some(137), is_lost), "{saved:?}");
        sentences.push(format!("{sentence}; {}", work.describe()));
    }
    insta::assert_snapshot!("lost_iterations", sentences.join("\n"));
}

/// A script of a user; hosts report the files that they have found.
#[test]
fn work_of_a_script_is_decided_by_its_files() {
    let end = |files: &[(&str, f64)], searched: Option<bool>, exit: fn() -> Exit| {
        let mut c = running(1);
        c.event(stop(StopMode::Clean, StopSource::Signal));
        let ordered = c.wall_time(0);
        c.pass(5_000);
        (0..2).for_each(|rank| c.exit_of(rank, exit(), true));
        let found = |(path, after): &(&str, f64)| CheckpointFile {
            path: (*path).into(),
            bytes: 141_000,
            modified: ordered + after,
            is_cut_off: *path == "/w/cut.zip",
            ..CheckpointFile::default()
        };
        if let Some(complete) = searched {
            let files = files.iter().map(found).collect();
            c.record(0, RecordEvent::CheckpointFiles { files, complete });
        }
        c.proof(0);
        let sent = c.agents[0].orders.iter().find_map(|order| match order {
            ConsoleMessage::Ended { ending, .. } => Some(ending.work.clone()),
            _ => None,
        });
        let [ReportBody::RunFinished { work, .. }] = &c.finished()[..] else { panic!() };
        assert_eq!((Some(work), work), (sent.as_ref(), &c.model().run.work));
        (c.exit, work.clone().unwrap())
    };
    let left = || Exit::Signal { signal: 2, out_of_memory: false };
    let saved = end(&[("/w/a.zip", 3.0), ("/w/b.zip", -60.0)], Some(true), left);
    let (Some(130), Work::Saved { after_s: Some(3.0), path, .. }) = saved else { panic!("{saved:?}") };
    assert_eq!(path, "/w/a.zip");
    // SIGKILL takes nothing from what is saved.
    assert_eq!(end(&[("/w/a.zip", 3.0)], Some(true), killed).0, Some(130));
    let lost = end(&[("/w/a.zip", -60.0)], Some(true), left);
    let (Some(130), Work::Lost { seconds: Some(60.0), .. }) = lost else { panic!("{lost:?}") };
    assert_eq!(end(&[("/w/a.zip", -60.0)], Some(true), killed).0, Some(137), "killed, and lost");
    assert_eq!(end(&[], Some(true), left).1, Work::NeverSaved);
    assert_eq!(
        end(&[("/w/cut.zip", 3.0)], Some(true), killed).1,
        Work::NeverSaved,
        "SIGKILL during the save"
    );
    let old = [("/w/a.zip", -60.0)];
    for (files, searched) in [(&[][..], None), (&[][..], Some(false)), (&old[..], Some(false))] {
        assert_eq!(end(files, searched, left), (Some(130), Work::Unknown));
    }
    // Invalid times.
    for time in [f64::NAN, f64::NEG_INFINITY, -1e12] {
        assert_eq!(end(&[("/w/a.zip", time)], Some(true), left).1, Work::NeverSaved);
    }
    let future = end(&[("/w/a.zip", 1e12)], Some(true), left).1;
    let Work::Saved { after_s: Some(5.0), .. } = future else { panic!("{future:?}") };
}

#[test]
fn results_of_hosts_that_share_a_directory_are_reported_once() {
    let end = |marks: [&str; 2]| {
        let mut c = running(2);
        for (node, mark) in marks.into_iter().enumerate() {
            for rank in 0..2 {
                c.exit_of(2 * node as u32 + rank, Exit::Code { code: 0 }, false);
            }
            let names = vec!["best.pt".to_owned()];
            let results = RunResults {
                folder: "/w/work/ppo".into(),
                mark: mark.into(),
                files: 1 + node as u64,
                names,
                ..RunResults::default()
            };
            c.record(node, RecordEvent::Results { results: Box::new(results) });
            c.proof(node);
        }
        let [ReportBody::RunFinished { results, .. }] = &c.finished()[..] else { panic!() };
        assert_eq!(*results, c.model().run.results());
        results.iter().map(|found| found.files).collect::<Vec<_>>()
    };
    assert_eq!(end(["a", "a"]), [2], "the one with all of them");
    assert_eq!(end(["a", "b"]), [1, 2]);
    assert_eq!(end(["", ""]), [1, 2]);
}

#[test]
fn run_that_ends_by_itself_has_no_work_to_report() {
    let mut c = running(1);
    c.host_ends(0, false);
    let [ReportBody::RunFinished { work: None, warnings, .. }] = &c.finished()[..] else { panic!() };
    assert_eq!((outcome(&c), warnings.len()), ((Some(RunOutcome::Succeeded), Some(0)), 0));
}

#[test]
fn leftover_processes_are_listed_and_fail() {
    let mut c = running(1);
    for rank in 0..2 {
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    let survivor = Survivor { pid: 99, rank: None, state: 'D', command: "worker".into() };
    c.record(0, RecordEvent::Stopped { survivors: vec![survivor], gpus_free: vec![], took_ms: 5 });
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
    let [ReportBody::RunFinished { proved: false, survivors, .. }] = &c.finished()[..] else { panic!() };
    assert_eq!(survivors[..], ["ant:99 worker"]);
}

#[test]
fn natural_end_waits_bounded_for_lost_host() {
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
            rank: Rank(2),
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
    assert_eq!(outcome(&c), (Some(RunOutcome::Succeeded), Some(0)));
}

#[test]
fn until_stops_cleanly_unless_a_rank_failed() {
    for bad in [false, true] {
        let goal = Goal::Launch(Box::new(draft(1, Transport::Local)));
        let mut c = Cluster::with(goal, 1, vec![StopGoal::Steps(1_000), StopGoal::Evals(9)]);
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
            if bad { (Some(RunOutcome::Failed), Some(1)) } else { (Some(RunOutcome::Succeeded), Some(0)) };
        assert_eq!(outcome(&c), expected);
        insta::assert_snapshot!(if bad { "until_with_failed_rank" } else { "until" }, c.model().run.reason);
    }
}

#[test]
fn end_4_until_reached_while_stuck_exits_4() {
    let goal = Goal::Launch(Box::new(draft(2, Transport::Local)));
    let mut c = Cluster::with(goal, 2, vec![StopGoal::Seconds(30)]);
    c.all_ready();
    c.pass(2_000);
    c.hang(3, |sample| sample.state = 'T');
    c.pass(30_000);
    assert_eq!(c.stops(0), [StopMode::Clean]);
    let verdict = c.model().verdicts[0].reason.clone();
    (0..4).for_each(|rank| c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true));
    (0..2).for_each(|node| c.proof(node));
    assert_eq!(outcome(&c), (Some(RunOutcome::Stuck), Some(4)));
    assert!(c.model().run.reason.starts_with(&verdict), "{}", c.model().run.reason);
}

#[test]
fn until_that_counts_nothing_is_a_notice() {
    let notices = |until: StopGoal, counts: bool| {
        let mut c = Cluster::with(Goal::Launch(Box::new(draft(1, Transport::Local))), 1, vec![until]);
        c.all_ready();
        if counts {
            c.iteration(1, 10);
            c.rank_event(0, RankEvent::Eval(Evaluation::default()));
        }
        let count = |c: &Cluster| {
            c.reports.iter().filter(|(_, _, body)| matches!(body, ReportBody::Notice { .. })).count()
        };
        c.pass(59_000);
        assert_eq!(count(&c), 0, "{until:?}");
        c.pass(90_000);
        assert!(c.stops(0).is_empty(), "{until:?}");
        count(&c)
    };
    for until in [StopGoal::Steps(1_000_000), StopGoal::Iters(1_000), StopGoal::Evals(9)] {
        assert_eq!((notices(until, false), notices(until, true)), (1, 0), "{until:?}");
    }
    assert_eq!(notices(StopGoal::Seconds(10_000), false), 0);
}

#[test]
fn until_counts_evaluations_iterations_and_seconds() {
    for until in [StopGoal::Evals(2), StopGoal::Iters(2), StopGoal::Seconds(5)] {
        let mut c = Cluster::with(Goal::Launch(Box::new(draft(1, Transport::Local))), 1, vec![until]);
        c.all_ready();
        for iter in 1..=2 {
            assert!(c.stops(0).is_empty(), "{until:?}");
            c.iteration(iter, iter * 10);
            c.rank_event(0, RankEvent::Eval(Evaluation { return_mean: 9.0, ..Evaluation::default() }));
            c.pass(3_000);
        }
        assert_eq!(c.stops(0), [StopMode::Clean], "{until:?}");
    }
}

#[test]
fn restart_launches_after_verified_stop() {
    let mut c = running(2);
    c.iteration(1, 10);
    let restart = || Event::restart(Some("/ck/a.pt".into()));
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
        (1, Some("/ck/a.pt"), 40_004)
    );
    let started =
        c.reports.iter().filter(|(_, _, body)| matches!(body, ReportBody::RunStarted { .. })).count();
    assert_eq!(started, 2);
    assert!(c.model().ranks.iter().all(|rank| rank.life == RankLife::Spawned));
    assert_eq!(c.model().run.stopping, None);
    c.host_ends(0, false);
    c.host_ends(1, false);
    assert_eq!(outcome(&c), (Some(RunOutcome::Succeeded), Some(0)));
    assert_eq!(c.finished().len(), 1);
}

#[test]
fn stop_cancels_restart_after_failure() {
    let mut c = running(1);
    c.exit_of(1, killed(), false);
    c.event(Event::restart(None));
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    c.event(stop(StopMode::Terminate, StopSource::Key));
    c.exit_of(0, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.proof(0);
    assert_eq!(outcome(&c), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(c.launches(0).len(), 1);
}

#[test]
fn lingering_console_can_restart() {
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
fn detach_keeps_run_and_reports_attach_command() {
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
    // The process that suspended it may resume it.
    assert!(c.verdicts().contains(&(VerdictKind::Frozen, Some(3), Severity::Red)) && c.stops(0).is_empty());
    c.pass(55_000);
    c
}

#[test]
fn watch_3_silent_rank_is_not_stopped_without_a_limit() {
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
fn stuck_policy_reports_stops_or_restarts() {
    let c = with_policy(OnStuck::Report);
    assert!(c.stops(0).is_empty());

    let mut c = with_policy(OnStuck::Stop);
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    (0..4).for_each(|rank| c.exit_of(rank, killed(), true));
    c.proof(0);
    c.proof(1);
    assert_eq!(outcome(&c), (Some(RunOutcome::Stuck), Some(4)));
    insta::assert_snapshot!("stuck_run", c.model().run.reason);

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
fn run_2_stop_after_unverified_end_reaches_returned_host() {
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
    assert!(c.stops(1).is_empty(), "no one asked again");
    c.event(stop(StopMode::Clean, StopSource::Key));
    assert_eq!(c.stops(1), [StopMode::Clean]);
    c.host_ends(1, true);
    assert_eq!((c.model().run.state, c.model().run.unverified.len()), (RunState::Over, 0));
    let [_, ReportBody::RunFinished { proved: true, .. }] = &c.finished()[..] else { panic!() };
}

/// The job that the nodes belonged to is over, as after the failure of one: no one gets there any more. The
/// end comes within the bound, whatever arrived before.
#[test]
fn run_2_lost_allocation_ends_run_unverified() {
    let failed = |name: &str| {
        LinkState::Failed(HintedError {
            error: format!("{name}: Slurm job 7 has no nodes any more: NODE_FAIL (NodeDown)"),
            hint: "check the job".into(),
        })
    };
    for stop_recorded in [false, true] {
        let mut draft = draft(2, Transport::Slurm);
        draft.hosts.iter_mut().for_each(|host| host.transport = Transport::Slurm);
        let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
        c.all_ready();
        if stop_recorded {
            c.record(
                0,
                RecordEvent::StopOrdered { mode: StopMode::Clean, by: "Slurm job 7".into(), ends: false },
            );
        }
        c.link(0, failed("ant"));
        c.pass(60_000);
        assert_eq!(c.exit, None, "the other node may still report");
        c.link(1, failed("bee"));
        c.pass(45_000);
        let [ReportBody::RunFinished { proved: false, unverified, reason, .. }] = &c.finished()[..] else {
            panic!("{stop_recorded}: {:?}", c.finished())
        };
        assert_eq!(unverified[..], ["ant", "bee"], "{reason}");
        insta::assert_snapshot!(format!("lost_allocation_{stop_recorded}"), reason);
        assert_ne!(c.exit, Some(0));
    }
}
