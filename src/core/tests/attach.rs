//! Consoles that come later, and connections that come and go.

use crate::event::Event;
use crate::event::StopSource;
use crate::model::{RankLife, RunState, Tone};
use crate::report::{Outcome, ReportBody};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::link_state::LinkState;

fn history(c: &mut Cluster) {
    for iter in 1..=5 {
        c.iteration(iter, iter * 100);
        c.pass(1_000);
    }
    c.rank_said(
        0,
        RankEvent::Eval(Evaluation { env_step: 2_000, return_mean: 42.0, ..Evaluation::default() }),
    );
    let (path, reason) = ("/w/ckpt".into(), "best".into());
    c.rank_said(0, RankEvent::Checkpoint { path, env_step: 2_000, train_iter: 5, reason });
}

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    history(&mut c);
    c
}

#[test]
fn totals_meet_the_ranks_counters_and_make_charts() {
    let c = running();
    let progress = c.model().progress.as_ref().unwrap();
    assert_eq!((progress.totals.env_step, progress.sum.env_step, progress.consistent), (2_000, 2_000, true));
    assert_eq!(progress.per_rank.iter().map(|rank| rank.env_step).sum::<u64>(), 2_000);
    assert!((progress.steps_per_s - 400.0).abs() < 1.0, "{}", progress.steps_per_s);
    assert_eq!(progress.return_mean, Some(10.0));
    let last = |name: &str| c.model().scalars.get(name).and_then(|series| series.last());
    assert_eq!(last("charts/episodic_return"), Some(10.0));
    assert_eq!(last("charts/eval_return"), Some(42.0));
    assert!(last("charts/SPS").is_some_and(|sps| (sps - 400.0).abs() < 1.0));
    let told = c
        .told
        .iter()
        .filter(|(_, time, body)| matches!(body, ReportBody::Progress { .. }) && *time >= 1000.0);
    assert_eq!(told.count(), 5);
}

#[test]
fn totals_that_are_not_the_sum_are_a_red_verdict() {
    use crate::report::{Severity, VerdictKind};
    let mut c = running();
    let own = Counters { train_iter: 6, env_step: 600, samples: 600, episodes: 6, ..Counters::default() };
    for rank in 0..4 {
        c.rank_said(rank, RankEvent::Counters(own));
    }
    let totals = Counters { env_step: 2_401, samples: 2_400, episodes: 24, ..own };
    c.rank_said(0, RankEvent::Totals(totals));
    assert_eq!(c.verdicts(), [(VerdictKind::TotalsDiffer, None, Severity::Red)]);
    assert!(!c.model().progress.as_ref().unwrap().consistent);
    assert!(c.model().verdicts[0].card.facts[0].contains("2401"), "{:?}", c.model().verdicts);
    c.iteration(7, 700);
    assert_eq!(c.verdicts().last(), Some(&(VerdictKind::TotalsDiffer, None, Severity::Cleared)));
}

#[test]
fn differing_weights_name_the_odd_rank() {
    use crate::report::{Severity, VerdictKind};
    let mut c = running();
    let compare = |values: [&str; 4]| RankEvent::Fingerprint {
        train_iter: 6,
        update: 24,
        values: values.iter().map(|value| value.to_string()).collect(),
        equal: values.iter().all(|value| *value == values[0]),
    };
    c.rank_said(0, compare(["aa"; 4]));
    assert!(c.model().fingerprint.as_ref().is_some_and(|print| print.equal && print.compared == 1));
    c.rank_said(0, compare(["aa", "aa", "bb", "aa"]));
    assert_eq!(c.verdicts(), [(VerdictKind::Drift, Some(2), Severity::Red)]);
    c.rank_said(0, compare(["aa"; 4]));
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
fn an_adopted_run_looks_the_same_as_one_watched_from_the_start() {
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
    let started = other.told.iter().filter(|(_, _, body)| matches!(body, ReportBody::RunStarted { .. }));
    assert_eq!(started.count(), 1);
    other.pass(3_000);
    assert_eq!(other.model().run.state, RunState::Running);
}

#[test]
fn a_finished_or_failed_run_is_told_as_such_by_a_console_that_comes_later() {
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
            (Some(1), Some(Outcome::Failed)),
            "first {first}"
        );
        assert_eq!(other.model().run.reason, c.model().run.reason);
        assert!(other.stops(0).is_empty());
    }
}

/// A run of one host that a console has ended and told the end of.
fn succeeded() -> Cluster {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into() });
    c.host_ends(0, true);
    let ending = Box::new(Ending::clean(Outcome::Succeeded, 0, "reached iters=10"));
    c.record(0, RecordEvent::Ended { ending });
    c
}

#[test]
fn a_run_that_ended_long_ago_is_told_as_the_console_that_ended_it_said() {
    let mut other = succeeded().attach();
    other.agents[0].records.iter_mut().for_each(|record| record.time -= 1000.0);
    other.all_ready();
    assert_eq!((other.exit, other.model().run.outcome), (Some(0), Some(Outcome::Succeeded)));
    assert_eq!(other.model().run.reason, "reached iters=10");
}

#[test]
fn a_console_that_comes_later_dates_the_end_by_the_agents_clocks() {
    [400.0, 4.0].into_iter().for_each(comes_later);
}

fn comes_later(seconds: f64) {
    let mut other = succeeded().attach();
    other.agents[0].records.iter_mut().for_each(|record| record.time -= seconds);
    let records = &other.agents[0].records;
    let time_of = |wanted: fn(&RecordEvent) -> bool| {
        records.iter().rev().find(|record| wanted(&record.event)).unwrap().time
    };
    let launched = time_of(|event| matches!(event, RecordEvent::Launched { .. }));
    let stopped = time_of(|event| matches!(event, RecordEvent::Stopped { .. }));
    other.all_ready();
    let run = &other.model().run;
    assert_eq!((run.launched, run.ended_time), (Some(launched), Some(stopped)));
    let end = other.model().history.iter().find(|line| line.text.starts_with("the run is over")).unwrap();
    assert_eq!(end.time, stopped);
}

#[test]
fn an_end_that_waited_for_a_host_in_vain_is_not_dated_by_the_other_ones_proof() {
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
fn a_console_that_comes_after_a_failure_finishes_the_stop() {
    let mut c = running();
    c.exit_of(1, killed(), false);
    let mut other = c.attach();
    other.all_ready();
    other.pass(2_500);
    assert_eq!(other.stops(0), [StopMode::Terminate]);
    assert_eq!(other.stops(1), [StopMode::Terminate]);
}

#[test]
fn a_stop_asked_for_before_the_run_was_found_is_ordered_when_it_is() {
    let c = running();
    let mut other = c.attach();
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.all_ready();
    assert_eq!((other.stops(0), other.stops(1)), (vec![StopMode::Clean], vec![StopMode::Clean]));
    other.host_ends(0, true);
    other.host_ends(1, true);
    assert_eq!((other.exit, other.model().run.outcome), (Some(130), Some(Outcome::Stopped)));
}

#[test]
fn a_stop_of_a_run_that_no_host_knows_ends_with_the_last_answer() {
    let mut other = Cluster::launch(2).attach();
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.ready(0);
    assert_eq!(other.exit, None, "the second one has not looked");
    other.ready(1);
    assert_eq!((other.exit, other.now.0), (Some(130), 0));
    assert_eq!((other.stops(0).len(), other.stops(1).len()), (1, 1), "each has looked");
}

#[test]
fn another_console_sees_the_stop_waits_for_a_successor_and_follows_it() {
    let mut viewer = running();
    // Somebody else stops the run: the agents' records are all that this console sees.
    for node in 0..2 {
        viewer.record(node, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into() });
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
        viewer.record(node, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into() });
        viewer.proof(node);
    }
    viewer.pass(4_500);
    assert_eq!((viewer.exit, viewer.model().run.outcome), (Some(130), Some(Outcome::Stopped)));
}

#[test]
fn nobody_there_ends_with_3_but_one_host_is_enough_to_look() {
    let c = running();
    let failed = || LinkState::Failed(HintedError { error: "no agent".into(), hint: "rankdeck ps".into() });
    let mut other = c.attach();
    other.link(0, failed());
    other.link(1, failed());
    assert_eq!(other.exit, Some(3));
    let mut other = c.attach();
    other.link(0, failed());
    other.ready(1);
    other.pass(3_000);
    assert_eq!((other.exit, other.model().run.state), (None, RunState::Launching));
    assert_eq!(other.model().ranks[2].life, RankLife::Spawned);
}

#[test]
fn core_3_records_are_applied_once_and_gaps_are_asked_for_again() {
    let mut c = running();
    let (before, evals) = (essence(&c), c.model().evals.len());
    let tell = c.told.len();
    for record in c.agents[0].records.clone() {
        c.said(0, AgentMessage::Record(record));
    }
    assert_eq!((essence(&c), c.told.len()), (before, tell));
    // A record gets lost on the way: the next one shows the gap.
    c.agents[0].connected = false;
    c.rank_said(0, RankEvent::Eval(Evaluation::default()));
    c.agents[0].connected = true;
    c.rank_said(0, RankEvent::Eval(Evaluation { train_iter: 2, ..Evaluation::default() }));
    assert_eq!(c.model().evals.len(), evals + 2);
    assert_eq!(c.model().drops.gaps, 1);
    assert_eq!(c.model().hosts[0].last_seq, c.agents[0].records.len() as u64);
}

#[test]
fn a_hole_in_the_spool_itself_is_passed_over() {
    let mut c = running();
    let last = c.agents[0].records.len() as u64;
    c.agents[0].records.iter_mut().for_each(|record| record.seq = record.seq.min(last));
    let mut late = c.agents[0].records[0].clone();
    late.seq = last + 5;
    c.agents[0].records.push(late.clone());
    c.said(0, AgentMessage::Record(late.clone()));
    c.said(0, AgentMessage::Record(late));
    assert_eq!(c.model().hosts[0].last_seq, last + 5);
}

#[test]
fn core_3_a_stretch_that_was_left_out_is_counted_and_is_no_gap() {
    let mut c = running();
    let last = c.agents[0].records.len() as u64;
    let any = c.agents[0].records[0].clone();
    let left_out = |first, seq| Record { seq, event: RecordEvent::Omitted { first }, ..any.clone() };
    // Its begin was applied before a console lost its link.
    let overlapping = left_out(last, last + 40);
    c.said(0, AgentMessage::Record(overlapping.clone()));
    c.said(0, AgentMessage::Record(overlapping));
    let next = left_out(last + 41, last + 41);
    c.said(0, AgentMessage::Record(next));
    let drops = &c.model().drops;
    assert_eq!((c.model().hosts[0].last_seq, drops.gaps, drops.omitted), (last + 41, 0, 41));
}

#[test]
fn an_agent_that_does_not_attach_twice_is_heard_again_after_a_while() {
    let mut c = running();
    let lost = c.agents[0].records.len() as u64 + 1;
    c.agents[0].connected = false;
    let record = Record { seq: lost + 1, event: RecordEvent::Unknown, ..c.agents[0].records[0].clone() };
    c.said(0, AgentMessage::Record(record.clone()));
    assert_eq!((c.model().hosts[0].last_seq, c.model().drops.gaps), (lost - 1, 1));
    c.pass(21_000);
    c.said(0, AgentMessage::Record(record));
    assert_eq!((c.model().hosts[0].last_seq, c.model().drops.gaps), (lost + 1, 1));
}

#[test]
fn a_broken_link_changes_nothing_about_ranks_and_what_was_missed_comes_later() {
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
        lines: vec![format!("{text}1"), format!("{text}2")],
        times: Vec::new(),
    };
    c.said(1, log(0, "a"));
    c.said(1, log(1, "a"));
    c.said(0, log(3, "x"));
    let texts = |c: &Cluster| -> Vec<String> {
        c.model().ranks[2].log.lines.iter().map(|line| line.text.clone()).collect()
    };
    assert_eq!(texts(&c), ["a1", "a2", "a2"]);
    assert_eq!(c.model().drops.misplaced, 1, "rank 2 is not on ant");
    c.event(Event::restart(None));
    c.host_ends(0, true);
    c.host_ends(1, true);
    c.said(1, log(0, "b"));
    assert_eq!(texts(&c), ["a1", "a2", "a2", "b1", "b2"]);
    let told = c.told.iter().filter(|(_, _, body)| matches!(body, ReportBody::Log { .. })).count();
    assert_eq!(told, 5);
}

#[test]
fn drops_are_counted_across_connections() {
    let mut c = running();
    let mut sample = HostSample { dropped: 5, malformed: 2, ..HostSample::default() };
    c.said(0, AgentMessage::Sample(Box::new(sample.clone())));
    c.lose(0);
    c.ready(0);
    sample.dropped = 3;
    c.said(0, AgentMessage::Sample(Box::new(sample)));
    c.said(0, AgentMessage::Unknown);
    let drops = c.model().drops;
    assert_eq!((drops.by_agents, drops.malformed, drops.unknown), (8, 2, 1));
}

#[test]
fn warnings_stay_on_the_events_screen_and_are_bounded() {
    let mut c = Cluster::launch(1);
    c.event(Event::Warned { lines: vec!["host a: clock: 100 s ahead".into()] });
    let line = c.model().history.back().unwrap();
    assert_eq!((line.tone, line.text.as_str()), (Tone::Warn, "host a: clock: 100 s ahead"));
    c.event(Event::Warned { lines: (0..100).map(|n| n.to_string()).collect() });
    assert_eq!((c.model().run.warnings.len(), c.model().drops.history), (64, 37), "a drop is counted");
}

#[test]
fn clocks_are_compared_when_the_shell_has_told_its_own() {
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
fn figures_of_a_run_that_is_found_are_as_old_as_their_records() {
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
    c.said(node, hello(node, c.wall_time(node)));
    c.said(node, AgentMessage::Snapshot { spec, ranks: vec![], last_seq, holds: vec![] });
    c.sample(node);
    agent.records.into_iter().for_each(|record| c.said(node, AgentMessage::Record(record)));
    c.agents[node].connected = true;
}

#[test]
fn nothing_is_charted_of_a_past_that_nobody_has_measured() {
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
fn a_death_that_was_read_stands_where_it_happened() {
    use crate::model::MarkKind;
    let mut c = Cluster::launch(2);
    c.event(Event::WallClock { time: 70_000.0 });
    c.all_ready();
    history(&mut c);
    c.pass(1_000);
    c.exit_of(3, killed(), false);
    c.pass(20_000);
    let dead = |c: &Cluster| {
        let mark = c.model().marks.iter().find(|mark| matches!(mark.kind, MarkKind::Verdict(..))).copied();
        let told = c.model().history.iter().find(|line| line.text.starts_with("dead: "));
        (mark.unwrap().place, told.unwrap().time)
    };
    let (seen, _) = dead(&c);
    assert_eq!(seen.step, 2_000.0);
    for first in [0, 1] {
        let mut other = later(&c);
        other.ready(first);
        other.ready(1 - first);
        let (read, told) = dead(&other);
        assert_eq!((read.step, read.time), (seen.step, seen.time), "host {first} was read first");
        assert_eq!(told, seen.time, "its line says when");
    }
}
