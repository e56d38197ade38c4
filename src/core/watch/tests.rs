//! Verdicts of the whole reducer, over seconds of fake time.

mod doubtful;
mod exits;
mod group_arguments;
mod hosts;
mod lab;
mod learning;
mod mismatch;
mod movement;
mod must_not_alarm;
mod properties;
mod stalls;
mod stragglers;
mod stuck;
mod workers;

use crate::event::{Event, StopSource};
use crate::reason::Reason;
use crate::report::{ReportBody, Severity, VerdictKind, VerdictReport};
use crate::testkit::*;
use Severity::{Amber, Cleared, Red};
use VerdictKind::{Behind, Desync, Frozen, Lost};
use rankdeck_proto::message::*;

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(5_000);
    assert_eq!(c.verdicts(), []);
    c
}

fn first(c: &Cluster) -> VerdictReport {
    let found = c.reports.iter().find_map(|(_, _, body)| match body {
        ReportBody::Verdict(verdict) => Some(verdict.clone()),
        _ => None,
    });
    found.expect("a verdict")
}

/// Milliseconds until something is reported.
fn latency(c: &mut Cluster) -> u64 {
    let start = c.now;
    while c.verdicts().is_empty() && c.now.since(start) < 20_000 {
        c.pass(250);
    }
    c.now.since(start)
}

#[test]
fn hung_rank_is_reported_once_within_ten_seconds() {
    let mut c = running();
    c.hang(2, |_| {});
    let took = latency(&mut c);
    assert!(took <= 8_000, "{took} ms");
    c.pass(10_000);
    assert_eq!(c.verdicts(), [(Behind, Some(2), Red)], "reported once");
    let verdict = first(&c);
    assert_eq!(verdict.host.as_deref(), Some("bee"));
    insta::assert_snapshot!("hung_rank", verdict_text(&verdict));
    c.release();
    c.pass(2_000);
    assert_eq!(c.verdicts().last(), Some(&(Behind, Some(2), Cleared)));
    assert!(c.model().verdicts.is_empty());
}

#[test]
fn stopped_process_is_the_only_verdict() {
    let mut c = running();
    c.hang(1, |sample| sample.state = 'T');
    let took = latency(&mut c);
    assert!(took <= 2_500, "{took} ms");
    c.pass(12_000);
    assert_eq!(c.verdicts(), [(Frozen, Some(1), Red)], "one incident per root");
    insta::assert_snapshot!("frozen_rank", verdict_text(&first(&c)));
    c.release();
    c.pass(2_000);
    assert_eq!(c.verdicts().last(), Some(&(Frozen, Some(1), Cleared)));
}

#[test]
fn short_stops_and_pauses_are_not_reported() {
    let mut c = running();
    c.hang(1, |sample| sample.state = 'T');
    c.pass(500);
    c.release();
    c.pass(3_000);
    c.hang(1, |_| {});
    c.pass(4_000);
    c.release();
    c.pass(3_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn long_evaluation_is_a_warning_at_most() {
    let mut c = running();
    c.hang(0, |sample| sample.page.as_mut().unwrap().phase = Phase::Eval);
    c.pass(60_000);
    assert_eq!(c.verdicts(), [(Behind, Some(0), Amber)]);
    assert_eq!(first(&c).card.culprit.unwrap().phase, "eval");
    c.release();
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(Behind, Some(0), Cleared)));
}

#[test]
fn silent_host_blames_no_rank_and_clears() {
    let mut c = running();
    c.hang(2, |_| {});
    c.lose(1);
    c.pass(4_500);
    assert_eq!(c.verdicts(), [], "not silent for long enough");
    c.pass(10_000);
    assert_eq!(c.verdicts(), [(Lost, None, Red)], "no rank is blamed while its host is silent");
    assert_eq!(first(&c).host.as_deref(), Some("bee"));
    insta::assert_snapshot!("silent_host", verdict_text(&first(&c)));
    c.release();
    c.ready(1);
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(Lost, None, Cleared)));
    c.pass(3_000);
    assert_eq!(c.verdicts().len(), 2);
}

#[test]
fn hung_agent_with_live_link_is_lost() {
    let mut c = running();
    c.agents[1].connected = false;
    c.pass(6_000);
    assert_eq!(c.verdicts(), [(Lost, None, Red)]);
    assert_eq!(first(&c).reason_code, Reason::AgentSilent);
}

#[test]
fn suspended_console_blames_no_host() {
    let mut c = running();
    c.now = c.now.plus(3_600_000);
    c.event(Event::Ticked);
    c.pass(3_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn different_ops_under_one_number_are_desync() {
    let mut c = running();
    c.hang(9, |_| {});
    c.agents[1].samples.get_mut(&3).unwrap().page.as_mut().unwrap().collective.call.op = "broadcast".into();
    let took = latency(&mut c);
    assert!(took <= 3_000, "{took} ms");
    assert_eq!(c.verdicts(), [(Desync, Some(3), Red)]);
}

#[test]
fn common_collective_is_not_reported_early() {
    let mut c = running();
    c.hang(9, |_| {});
    c.pass(15_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn stopping_and_finish_raise_no_verdict() {
    let mut c = running();
    c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Key });
    c.hang(2, |sample| sample.state = 'T');
    c.lose(1);
    c.pass(9_000);
    assert_eq!(c.verdicts(), []);

    let mut c = running();
    for rank in 0..4 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
        c.pass(1_000);
    }
    assert_eq!(c.verdicts(), []);
}

#[test]
fn early_exit_of_rank_is_named() {
    let mut c = running();
    c.hang(3, |_| {});
    c.pass(500);
    c.exit_of(3, Exit::Code { code: 0 }, false);
    c.pass(9_000);
    assert_eq!(c.verdicts(), [(Behind, Some(3), Red)]);
    assert_eq!(first(&c).reason_code, Reason::LeftEarly);
}

#[test]
fn programs_without_pages_are_assessed_by_processes() {
    let mut c = running();
    for agent in &mut c.agents {
        agent.samples.values_mut().for_each(|sample| sample.page = None);
    }
    c.pass(10_000);
    assert_eq!(c.verdicts(), []);
    c.agents[0].samples.get_mut(&0).unwrap().state = 't';
    c.pass(2_000);
    assert_eq!(c.verdicts(), [(Frozen, Some(0), Red)]);
    assert_eq!(first(&c).reason_code, Reason::Debugger);
}

#[test]
fn death_explains_waits_of_others() {
    let mut c = running();
    c.hang(1, |_| {});
    c.exit_of(1, killed(), false);
    c.pass(15_000);
    assert_eq!(c.verdicts(), [(VerdictKind::Dead, Some(1), Red)]);
}
