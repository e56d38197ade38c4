//! Consoles that attach later, and connections that break and return.

use crate::event::{Event, StopSource};
use crate::model::{ChartMarkKind, EventSubject, EventTone, RankLife, RunState};
use crate::report::{ReportBody, RunOutcome, Severity, VerdictKind};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::link_state::LinkState;

fn history(c: &mut Cluster) {
    for iter in 1..=5 {
        c.iteration(iter, iter * 100);
        c.pass(1_000);
    }
    c.rank_event(
        0,
        RankEvent::Eval(Evaluation { env_step: 2_000, return_mean: 42.0, ..Evaluation::default() }),
    );
    let (path, reason) = ("/w/ckpt".into(), "best".into());
    c.rank_event(0, RankEvent::Checkpoint { path, env_step: 2_000, train_iter: 5, reason });
}

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    history(&mut c);
    c
}

/// Another host's records are there first, with the launch from a checkpoint that rank 0's host has not sent yet.
#[test]
fn origin_2_best_stays_whichever_host_sends_first() {
    let mut c = running();
    let before = c.agents[0].records.len();
    let from = "/w/40.ckpt";
    let (path, reason) = (from.into(), "every".into());
    c.rank_event(0, RankEvent::Checkpoint { path, env_step: 4_000, train_iter: 40, reason });
    c.event(Event::restart(Some(from.to_owned())));
    c.host_ends(0, true);
    c.host_ends(1, true);
    c.pass(1_000);
    assert_eq!(c.launches(1).len(), 2);
    let mut other = c.attach();
    let rest = other.agents[0].records.split_off(before);
    other.ready(0);
    other.ready(1);
    for record in rest {
        other.receive(0, AgentMessage::Record(record));
    }
    let known: Vec<&str> = other.model().checkpoints.iter().map(|saved| saved.reason.as_str()).collect();
    assert_eq!(known, ["best", "every"]);
}

/// A host that missed a start from scratch, or that sends what it has saved late.
#[test]
fn origin_2_late_records_do_not_make_the_latest_checkpoint() {
    for from in [None, Some("/w/ckpt")] {
        let mut c = running();
        c.event(Event::restart(from.map(str::to_owned)));
        c.host_ends(0, true);
        c.host_ends(1, true);
        c.pass(1_000);
        let saved = |env_step: u64| RankEvent::Checkpoint {
            path: "/w/ckpt".into(),
            env_step,
            train_iter: 5,
            reason: "best".into(),
        };
        c.rank_event(2, saved(2_100));
        let late = |env_step| {
            let event = RecordEvent::Rank { rank: Rank(0), event: saved(env_step) };
            Record {
                seq: c.agents[0].records.len() as u64 + 1,
                time: 1_000.0,
                generation: Generation(0),
                event,
            }
        };
        let records = [late(1_900), late(21_800)];
        for (seq, record) in (c.agents[0].records.len() as u64 + 1..).zip(records) {
            c.receive(0, AgentMessage::Record(Record { seq, ..record }));
        }
        let known: Vec<u64> = c.model().checkpoints.iter().map(|saved| saved.env_step).collect();
        let expected: &[u64] = if from.is_some() { &[2_000, 1_900, 2_100] } else { &[2_100] };
        assert_eq!(known, expected, "{from:?}");
    }
}

#[test]
fn totals_and_counters_make_charts() {
    let c = running();
    let progress = c.model().progress.as_ref().unwrap();
    assert_eq!((progress.totals.env_step, progress.sum.env_step, progress.consistent), (2_000, 2_000, true));
    assert_eq!(progress.per_rank.iter().map(|rank| rank.env_step).sum::<u64>(), 2_000);
    assert!(
        progress.steps_per_s.is_some_and(|rate| (rate - 400.0).abs() < 1.0),
        "{:?}",
        progress.steps_per_s
    );
    assert_eq!(progress.return_mean, Some(10.0));
    let last = |name: &str| c.model().scalars.get(name).and_then(|series| series.last());
    assert_eq!(last("charts/episodic_return"), Some(10.0));
    assert_eq!(last("charts/eval_return"), Some(42.0));
    assert!(last("charts/SPS").is_some_and(|sps| (sps - 400.0).abs() < 1.0));
    let reported = c
        .reports
        .iter()
        .filter(|(_, time, body)| matches!(body, ReportBody::Progress { .. }) && *time >= 1000.0);
    assert_eq!(reported.count(), 5);
}

/// Ranks of two hosts that all-reduce nothing: records are read host by host.
#[test]
fn attach_measures_rates_from_records() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    for n in 1..=10 {
        c.pass(1_000);
        for rank in 0..4 {
            let (train_iter, env_step) = (n, n * 100);
            let counters = Counters { train_iter, env_step, sum: true, ..Counters::default() };
            c.rank_event(rank, RankEvent::Counters(counters));
        }
    }
    let mut late = c.attach();
    late.now = c.now;
    late.all_ready();
    let near = |rate: Option<f64>, expected: f64| rate.is_some_and(|rate| (rate - expected).abs() < 1.0);
    let rates = |c: &Cluster| c.model().ranks.iter().map(|rank| rank.steps_per_s).collect::<Vec<_>>();
    assert!(rates(&late).into_iter().all(|rate| near(rate, 100.0)), "{:?}", rates(&late));
    let whole = |c: &Cluster| c.model().latest.as_ref().and_then(|latest| latest.steps_per_s);
    assert!(near(whole(&late), 400.0), "{:?}", whole(&late));
    // Counters of the first second came one rank after another.
    assert!(whole(&c).is_some_and(|rate| (390.0..401.0).contains(&rate)), "{:?}", whole(&c));
}

/// A program that prints steps and no speed.
#[test]
fn attach_measures_the_rate_of_printed_steps() {
    let print = |c: &mut Cluster, n: u64, values: &[(&str, f64)]| {
        c.pass(1_000);
        let event = RecordEvent::Metrics {
            rank: rankdeck_types::ids::Rank(0),
            source: "stdout".into(),
            env_step: Some(n * 50),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            skipped: 0,
            spread: Default::default(),
            not_finite: Default::default(),
            counter: None,
            progress: None,
        };
        c.record(0, event);
    };
    let rate = |c: &Cluster| c.model().own.as_ref().and_then(|own| own.steps_per_s);
    let attached = |c: &Cluster| {
        let mut late = c.attach();
        late.now = c.now;
        late.all_ready();
        rate(&late)
    };
    let mut c = Cluster::launch(1);
    c.all_ready();
    (1..=10).for_each(|n| print(&mut c, n, &[("loss", 0.5)]));
    for rate in [rate(&c), attached(&c)] {
        assert!(rate.is_some_and(|rate| (rate - 50.0).abs() < 1.0), "{rate:?}");
    }
    print(&mut c, 11, &[("charts/SPS", 48.0)]);
    print(&mut c, 12, &[("loss", 0.5)]);
    assert_eq!((rate(&c), attached(&c)), (Some(48.0), Some(48.0)), "the program's own counts");
}

#[test]
fn totals_unlike_sum_are_critical() {
    let mut c = running();
    let own = Counters { train_iter: 6, env_step: 600, samples: 600, episodes: 6, ..Counters::default() };
    for rank in 0..4 {
        c.rank_event(rank, RankEvent::Counters(own));
    }
    let totals = Counters { env_step: 2_401, samples: 2_400, episodes: 24, ..own };
    c.rank_event(0, RankEvent::Totals(totals));
    assert_eq!(c.verdicts(), [(VerdictKind::TotalsDiffer, None, Severity::Red)]);
    assert!(!c.model().progress.as_ref().unwrap().consistent);
    insta::assert_snapshot!("totals_unlike_sum", verdict_text(&c.model().verdicts[0]));
    c.iteration(7, 700);
    assert_eq!(c.verdicts().last(), Some(&(VerdictKind::TotalsDiffer, None, Severity::Cleared)));
}

#[test]
fn differing_weights_name_odd_rank() {
    let mut c = running();
    let compare = |values: [&str; 4]| RankEvent::Fingerprint {
        train_iter: 6,
        update: 24,
        values: values.iter().map(|value| value.to_string()).collect(),
        equal: values.iter().all(|value| *value == values[0]),
    };
    c.rank_event(0, compare(["aa"; 4]));
    assert!(c.model().fingerprint.as_ref().is_some_and(|print| print.equal && print.compared == 1));
    c.rank_event(0, compare(["aa", "aa", "bb", "aa"]));
    assert_eq!(c.verdicts(), [(VerdictKind::Drift, Some(2), Severity::Red)]);
    c.rank_event(0, compare(["aa"; 4]));
    assert_eq!(c.verdicts().last(), Some(&(VerdictKind::Drift, Some(2), Severity::Cleared)));
}

/// What must be equal between a console that launched and one that came later.
pub(super) fn essence(c: &Cluster) -> String {
    let m = c.model();
    let ranks: Vec<_> =
        m.ranks.iter().map(|r| (r.rank, &r.life, r.pid, &r.device, &r.own, &r.error)).collect();
    let hosts: Vec<_> = m.hosts.iter().map(|h| (h.last_seq, &h.stopped, &h.gpus_free)).collect();
    let progress = m.progress.as_ref().map(|p| (p.totals, p.sum, p.consistent, p.steps_per_s, p.return_mean));
    let verdicts: Vec<_> = m.verdicts.iter().map(|v| (v.verdict, v.rank, v.severity)).collect();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {ranks:?} {hosts:?} {progress:?} {:?} {:?} {:?} {verdicts:?} {:?}",
        m.run.generation,
        m.run.state,
        m.run.outcome,
        m.run.exit_code,
        m.run.master,
        m.evals,
        m.checkpoints,
        m.scalars,
        m.fingerprint
    )
}

#[test]
fn adopted_run_equals_run_followed_from_start() {
    let mut c = running();
    c.event(Event::restart(Some("latest".into())));
    c.host_ends(0, true);
    c.host_ends(1, true);
    history(&mut c);
    let mut other = c.attach();
    // Histories come over links of different speed.
    other.ready(1);
    other.ready(0);
    assert_eq!(essence(&other), essence(&c));
    assert!(other.model().run.adopted);
    assert_eq!(other.model().run.generation.0, 1);
    assert!(other.stops(0).is_empty() && other.stops(1).is_empty(), "history is not acted on");
    assert!(other.launches(0).is_empty());
    let started = other.reports.iter().filter(|(_, _, body)| matches!(body, ReportBody::RunStarted { .. }));
    assert_eq!(started.count(), 1);
    other.pass(3_000);
    assert_eq!(other.model().run.state, RunState::Running);
}

#[test]
fn late_console_reports_finished_and_failed_runs() {
    let mut c = running();
    c.exit_of(1, killed(), false);
    c.pass(2_500);
    for rank in [0, 2, 3] {
        c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
    }
    c.proof(0);
    c.proof(1);
    assert_eq!(c.exit, Some(1));
    for first in [0, 1] {
        let mut other = c.attach();
        other.ready(first);
        other.ready(1 - first);
        assert_eq!(
            (other.exit, other.model().run.outcome),
            (Some(1), Some(RunOutcome::Failed)),
            "first {first}"
        );
        assert_eq!(other.model().run.reason, c.model().run.reason);
        assert!(other.stops(0).is_empty());
    }
}

/// A run of one host that a console has ended and reported the end of.
fn succeeded() -> Cluster {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false });
    c.host_ends(0, true);
    let ending = Box::new(RunEnd::clean(RunOutcome::Succeeded, 0, "reached iters=10"));
    c.record(0, RecordEvent::Ended { ending });
    c
}

#[test]
fn old_run_has_the_ending_that_its_console_recorded() {
    let mut other = succeeded().attach();
    other.agents[0].records.iter_mut().for_each(|record| record.time -= 1000.0);
    other.all_ready();
    assert_eq!((other.exit, other.model().run.outcome), (Some(0), Some(RunOutcome::Succeeded)));
    assert_eq!(other.model().run.reason, "reached iters=10");
}

#[test]
fn late_console_dates_end_by_agent_clocks() {
    [400.0, 4.0].into_iter().for_each(comes_later);
}

fn comes_later(seconds: f64) {
    let mut other = succeeded().attach();
    other.agents[0].records.iter_mut().for_each(|record| record.time -= seconds);
    let records = &other.agents[0].records;
    let time_of = |expected: fn(&RecordEvent) -> bool| {
        records.iter().rev().find(|record| expected(&record.event)).unwrap().time
    };
    let launched = time_of(|event| matches!(event, RecordEvent::Launched { .. }));
    let stopped = time_of(|event| matches!(event, RecordEvent::Stopped { .. }));
    other.all_ready();
    let run = &other.model().run;
    assert_eq!((run.launched, run.ended_time), (Some(launched), Some(stopped)));
    let end = other.model().history.back().unwrap();
    assert_eq!(end.time, stopped);
}

#[test]
fn unverified_end_is_not_dated_by_other_hosts() {
    let mut other = running().attach();
    other.event(Event::WallClock { time: 1000.0 });
    other.all_ready();
    other.lose(1);
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.host_ends(0, true);
    let proof = other.agents[0].records.last().unwrap().time;
    other.pass(120_000);
    let run = &other.model().run;
    assert!(!run.unverified.is_empty() && run.ended_time.unwrap() > proof + 5.0, "{run:?} {proof}");
}

#[test]
fn late_console_finishes_stop_after_failure() {
    let mut c = running();
    c.exit_of(1, killed(), false);
    let mut other = c.attach();
    other.all_ready();
    other.pass(2_500);
    assert_eq!(other.stops(0), [StopMode::Terminate]);
    assert_eq!(other.stops(1), [StopMode::Terminate]);
}

#[test]
fn stop_before_attach_is_ordered_once_attached() {
    let c = running();
    let mut other = c.attach();
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.all_ready();
    assert_eq!((other.stops(0), other.stops(1)), (vec![StopMode::Clean], vec![StopMode::Clean]));
    other.host_ends(0, true);
    other.host_ends(1, true);
    assert_eq!((other.exit, other.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
}

#[test]
fn stop_of_unknown_run_ends_with_last_reply() {
    let mut other = Cluster::launch(2).attach();
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.ready(0);
    assert_eq!(other.exit, None, "the second host has not scanned");
    other.ready(1);
    assert_eq!((other.exit, other.now.0), (Some(130), 0));
    assert_eq!((other.stops(0).len(), other.stops(1).len()), (1, 1), "each has scanned");
}

#[test]
fn other_console_waits_for_and_follows_next_generation() {
    let mut viewer = running();
    // Someone else stops the run: the agents' records are all that this console sees.
    for node in 0..2 {
        viewer.record(
            node,
            RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false },
        );
        viewer.host_ends(node, true);
    }
    viewer.pass(2_000);
    assert_eq!(viewer.exit, None);
    let mut spec = viewer.agents[0].spec.clone().unwrap();
    spec.generation.0 = 1;
    for node in 0..2 {
        viewer.agents[node].spec = Some(spec.clone());
        viewer.record(node, RecordEvent::Launched { spec: Box::new(spec.clone()) });
    }
    assert_eq!((viewer.model().run.generation.0, viewer.model().run.adopted), (1, true));
    assert!(viewer.model().ranks.iter().all(|rank| rank.life == RankLife::Pending));
    for node in 0..2 {
        viewer.record(
            node,
            RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false },
        );
        viewer.proof(node);
    }
    viewer.pass(4_500);
    assert_eq!((viewer.exit, viewer.model().run.outcome), (Some(130), Some(RunOutcome::Stopped)));
}

#[test]
fn attach_without_reachable_host_exits_3() {
    let c = running();
    let failed = || LinkState::Failed(HintedError { error: "no agent".into(), hint: "rankdeck ps".into() });
    let mut other = c.attach();
    other.link(0, failed());
    other.link(1, failed());
    assert_eq!(other.exit, Some(3));
    let mut other = c.attach();
    other.link(0, failed());
    other.ready(1);
    // It is connected to once more, as the plan names it.
    other.link(0, failed());
    other.pass(3_000);
    assert_eq!((other.exit, other.model().run.state), (None, RunState::Running));
    assert_eq!(other.model().ranks[2].life, RankLife::Spawned);
}

#[test]
fn run_of_hosts_that_do_not_respond_has_no_end() {
    let mut other = running().attach();
    for node in 0..2 {
        let error = HintedError::new("the agent is stopped", "`kill -CONT 7`");
        other.link(node, LinkState::Failed(error));
    }
    let run = &other.model().run;
    assert_eq!((other.exit, run.state, run.outcome), (Some(3), RunState::Over, None));
    assert!(!run.reason.is_empty() && other.finished().is_empty());
}

#[test]
fn run_with_a_host_away_runs_and_can_exclude_it() {
    let c = running();
    let mut other = c.attach();
    other.lose(0);
    assert!(other.model().restart_obstacle(false).is_some(), "no host has reported the run");
    other.ready(1);
    assert_eq!(other.model().run.state, RunState::Running);
    assert_eq!([false, true].map(|changes| other.model().restart_obstacle(changes)), [None, None]);
    let shown = other.model().run.launch.clone();
    let exclude = vec!["ant".to_owned()];
    other.event(Event::RestartRequested { from: None, exclude, add: vec![], experiment: None, shown });
    assert_eq!((other.model().run.refused.clone(), other.stops(1)), (None, vec![StopMode::Clean]));
}

#[test]
fn run_that_is_being_attached_to_is_launching() {
    let mut other = running().attach();
    other.link(0, LinkState::Connecting { attempt: 1 });
    other.ready(1);
    assert_eq!(other.model().run.state, RunState::Launching, "the first host may still answer");
}

#[test]
fn core_3_records_apply_once_and_gaps_are_refetched() {
    let mut c = running();
    let (before, evals) = (essence(&c), c.model().evals.len());
    let reports = c.reports.len();
    for record in c.agents[0].records.clone() {
        c.receive(0, AgentMessage::Record(record));
    }
    assert_eq!((essence(&c), c.reports.len()), (before, reports));
    // A record gets lost on the way: the next one shows the gap.
    c.agents[0].connected = false;
    c.rank_event(0, RankEvent::Eval(Evaluation::default()));
    c.agents[0].connected = true;
    c.rank_event(0, RankEvent::Eval(Evaluation { train_iter: 2, ..Evaluation::default() }));
    assert_eq!(c.model().evals.len(), evals + 2);
    assert_eq!(c.model().drops.gaps, 1);
    assert_eq!(c.model().hosts[0].last_seq, c.agents[0].records.len() as u64);
}

#[test]
fn gap_in_spool_is_skipped() {
    let mut c = running();
    let last = c.agents[0].records.len() as u64;
    c.agents[0].records.iter_mut().for_each(|record| record.seq = record.seq.min(last));
    let mut late = c.agents[0].records[0].clone();
    late.seq = last + 5;
    c.agents[0].records.push(late.clone());
    c.receive(0, AgentMessage::Record(late.clone()));
    c.receive(0, AgentMessage::Record(late));
    assert_eq!(c.model().hosts[0].last_seq, last + 5);
}

#[test]
fn core_3_omitted_records_are_counted_not_gaps() {
    let mut c = running();
    let last = c.agents[0].records.len() as u64;
    let any = c.agents[0].records[0].clone();
    let left_out = |first, seq| Record { seq, event: RecordEvent::Omitted { first }, ..any.clone() };
    // Its begin was applied before a console lost its link.
    let overlapping = left_out(last, last + 40);
    c.receive(0, AgentMessage::Record(overlapping.clone()));
    c.receive(0, AgentMessage::Record(overlapping));
    let next = left_out(last + 41, last + 41);
    c.receive(0, AgentMessage::Record(next));
    let drops = &c.model().drops;
    assert_eq!((c.model().hosts[0].last_seq, drops.gaps, drops.omitted), (last + 41, 0, 41));
}

#[test]
fn agent_without_hello_is_used_again_after_timeout() {
    let mut c = running();
    let lost = c.agents[0].records.len() as u64 + 1;
    c.agents[0].connected = false;
    let record = Record { seq: lost + 1, event: RecordEvent::Unknown, ..c.agents[0].records[0].clone() };
    c.receive(0, AgentMessage::Record(record.clone()));
    assert_eq!((c.model().hosts[0].last_seq, c.model().drops.gaps), (lost - 1, 1));
    c.pass(21_000);
    c.receive(0, AgentMessage::Record(record));
    assert_eq!((c.model().hosts[0].last_seq, c.model().drops.gaps), (lost + 1, 1));
}

#[test]
fn broken_link_keeps_ranks_and_missed_records_follow() {
    let mut c = running();
    c.lose(1);
    c.pass(2_000);
    c.iteration(6, 600);
    assert_eq!(c.model().progress.as_ref().unwrap().totals.train_iter, 5, "bee's counters are missing");
    c.ready(1);
    assert_eq!(c.model().progress.as_ref().unwrap().totals.train_iter, 6);
    assert_eq!(c.model().run.state, RunState::Running);
}

#[test]
fn logs_come_once_across_reconnects_and_generations() {
    let mut c = running();
    let log = |first: u64, text: &str| AgentMessage::Log {
        rank: rankdeck_types::ids::Rank(2),
        first,
        overwritten: 0,
        lines: vec![format!("{text}1"), format!("{text}2")],
        times: Vec::new(),
    };
    c.receive(1, log(0, "a"));
    c.receive(1, log(1, "a"));
    c.receive(0, log(3, "x"));
    let texts = |c: &Cluster| -> Vec<String> {
        c.model().ranks[2].log.lines.iter().map(|line| line.text.clone()).collect()
    };
    assert_eq!(texts(&c), ["a1", "a2", "a2"]);
    assert_eq!(c.model().drops.misplaced, 1, "rank 2 is not on ant");
    c.event(Event::restart(None));
    c.host_ends(0, true);
    c.host_ends(1, true);
    c.receive(1, log(0, "b"));
    assert_eq!(texts(&c), ["a1", "a2", "a2", "b1", "b2"]);
    let reported = c.reports.iter().filter(|(_, _, body)| matches!(body, ReportBody::Log { .. })).count();
    assert_eq!(reported, 5);
}

#[test]
fn drops_are_counted_across_connections() {
    let mut c = running();
    let mut sample = HostSample { dropped: 5, malformed: 2, ..HostSample::default() };
    c.receive(0, AgentMessage::Sample(Box::new(sample.clone())));
    c.lose(0);
    c.ready(0);
    sample.dropped = 3;
    c.receive(0, AgentMessage::Sample(Box::new(sample)));
    c.receive(0, AgentMessage::Unknown);
    let drops = c.model().drops;
    assert_eq!((drops.by_agents, drops.malformed, drops.unknown), (8, 2, 1));
}

#[test]
fn launch_warnings_are_kept_bounded() {
    let mut c = Cluster::launch(1);
    c.event(Event::Warned { lines: vec!["host a: clock: 100 s ahead".into()] });
    let line = c.model().history.back().unwrap();
    assert_eq!((line.tone, line.text.as_str()), (EventTone::Warn, "host a: clock: 100 s ahead"));
    c.event(Event::Warned { lines: (0..100).map(|n| n.to_string()).collect() });
    assert_eq!((c.model().run.warnings.len(), c.model().drops.history), (64, 37), "a drop is counted");
}

#[test]
fn clock_offset_needs_console_wall_clock() {
    let mut c = Cluster::launch(1);
    c.event(Event::WallClock { time: 990.0 });
    c.now = c.now.plus(2_000);
    c.ready(0);
    assert!((c.model().hosts[0].clock_offset_s - 10.0).abs() < 1e-9);
    assert!(c.model().history.back().unwrap().time > 900.0);
}

/// A console that comes later, while the agents' clocks and its own have gone on.
fn later(c: &Cluster) -> Cluster {
    let mut other = c.attach();
    other.agents.iter_mut().for_each(|agent| agent.wall_skew_s = c.now.0 as f64 / 1000.0);
    other.event(Event::WallClock { time: 70_000.0 });
    other
}

#[test]
fn metrics_of_adopted_run_have_age_of_records() {
    let mut c = running();
    c.pass(15_000);
    let mut other = later(&c);
    other.ready(1);
    other.ready(0);
    let (latest, progress) = (other.model().latest.clone().unwrap(), other.model().progress.clone().unwrap());
    for age in [latest.since(other.now), progress.since(other.now)] {
        assert!((15_900..=16_100).contains(&age), "{age}");
    }
    assert!((900..=1_100).contains(&latest.gap_ms), "the usual distance of reports: {}", latest.gap_ms);
    other.iteration(6, 600);
    let latest = other.model().latest.clone().unwrap();
    assert_eq!(latest.since(other.now), 0, "what comes now is new");
}

/// An agent sends its newest gauges before its records.
fn gauges_first(c: &mut Cluster, node: usize) {
    let state = LinkState::Ready { probe: Default::default() };
    c.event(Event::LinkChanged { node: rankdeck_types::ids::NodeRank(node as u32), state });
    let agent = c.agents[node].clone();
    let (spec, last_seq) = (agent.spec.map(Box::new), agent.records.len() as u64);
    c.receive(node, hello(node, c.wall_time(node)));
    c.receive(node, AgentMessage::Snapshot { spec, ranks: vec![], last_seq, holds: vec![] });
    c.sample(node);
    agent.records.into_iter().for_each(|record| c.receive(node, AgentMessage::Record(record)));
    c.agents[node].connected = true;
}

#[test]
fn past_without_samples_is_not_charted() {
    let mut c = running();
    assert!(c.model().spreads.contains_key("ranks/cpu_percent"));
    c.pass(1_000);
    let mut other = later(&c);
    for node in 0..2 {
        gauges_first(&mut other, node);
    }
    assert!(other.model().progress.is_some() && other.model().spreads.is_empty());
    let gauges: Vec<_> = other.model().progress.iter().flat_map(|progress| &progress.per_rank).collect();
    assert!(gauges.iter().all(|rank| rank.cpu_percent.is_none()), "{gauges:?}");
    other.pass(1_000);
    other.iteration(6, 600);
    assert!(other.model().spreads.contains_key("ranks/cpu_percent"));
}

#[test]
fn recorded_death_is_marked_at_its_step_and_time() {
    let mut c = Cluster::launch(2);
    c.event(Event::WallClock { time: 70_000.0 });
    c.all_ready();
    history(&mut c);
    c.pass(1_000);
    c.exit_of(3, killed(), false);
    c.pass(20_000);
    let dead = |c: &Cluster| {
        let mark =
            c.model().marks.iter().find(|mark| matches!(mark.kind, ChartMarkKind::Verdict(..))).copied();
        let is_death = |subject: &EventSubject| matches!(subject, EventSubject::Verdict(verdict) if verdict.verdict == VerdictKind::Dead);
        let reported = c.model().history.iter().find(|line| line.subject.as_ref().is_some_and(is_death));
        (mark.unwrap().place, reported.unwrap().time)
    };
    let (seen, _) = dead(&c);
    assert_eq!(seen.step, 2_000.0);
    for first in [0, 1] {
        let mut other = later(&c);
        other.ready(first);
        other.ready(1 - first);
        let (read, reported) = dead(&other);
        assert_eq!((read.step, read.time), (seen.step, seen.time), "host {first} was read first");
        assert_eq!(reported, seen.time, "its line has the time");
    }
}
