//! Verdicts as the whole reducer tells them, over seconds of fake time.

mod doubtful;
mod lab;
mod learning;
mod movement;
mod must_alarm;
mod must_not_alarm;
mod properties;
mod standstill;
mod stopped;

use crate::event::Event;
use crate::event::StopSource;
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
    let found = c.told.iter().find_map(|(_, _, body)| match body {
        ReportBody::Verdict(verdict) => Some(verdict.clone()),
        _ => None,
    });
    found.expect("a verdict")
}

/// Milliseconds until something is told.
fn latency(c: &mut Cluster) -> u64 {
    let start = c.now;
    while c.verdicts().is_empty() && c.now.since(start) < 20_000 {
        c.pass(250);
    }
    c.now.since(start)
}

#[test]
fn a_hung_rank_is_named_within_ten_seconds_with_evidence_and_once() {
    let mut c = running();
    c.hang(2, |_| {});
    let took = latency(&mut c);
    assert!(took <= 8_000, "{took} ms");
    c.pass(10_000);
    assert_eq!(c.verdicts(), [(Behind, Some(2), Red)], "told once");
    let verdict = first(&c);
    assert_eq!(verdict.host.as_deref(), Some("bee"));
    assert!(verdict.reason.contains("rank 2 on bee has not entered all_reduce grad"), "{}", verdict.reason);
    let evidence = verdict.card.evidence().join("\n");
    for fact in
        ["phase rollout", "pid 1002", "futex_wait", "cpu 50 %", "rank 0 on ant waits in all_reduce grad"]
    {
        assert!(evidence.contains(fact), "{fact} in {evidence}");
    }
    assert!(verdict.card.hint().contains("--rank 2"));
    c.release();
    c.pass(2_000);
    assert_eq!(c.verdicts().last(), Some(&(Behind, Some(2), Cleared)));
    assert!(c.model().verdicts.is_empty());
}

#[test]
fn a_stopped_process_is_frozen_and_its_waiters_are_no_incident() {
    let mut c = running();
    c.hang(1, |sample| sample.state = 'T');
    let took = latency(&mut c);
    assert!(took <= 2_500, "{took} ms");
    c.pass(12_000);
    assert_eq!(c.verdicts(), [(Frozen, Some(1), Red)], "one incident per root");
    assert!(first(&c).card.hint().contains("kill -CONT 1001"));
    assert!(c.model().verdicts[0].card.evidence().iter().any(|fact| fact.contains("rank 0 on ant waits")));
    c.release();
    c.pass(2_000);
    assert_eq!(c.verdicts().last(), Some(&(Frozen, Some(1), Cleared)));
}

#[test]
fn half_a_second_of_stop_and_four_of_pause_are_nothing() {
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
fn a_long_evaluation_by_rank_0_is_amber_at_most() {
    let mut c = running();
    c.hang(0, |sample| sample.page.as_mut().unwrap().phase = Phase::Eval);
    c.pass(60_000);
    assert_eq!(c.verdicts(), [(Behind, Some(0), Amber)]);
    assert!(first(&c).reason.starts_with("waiting for rank 0: eval"), "{}", first(&c).reason);
    c.release();
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(Behind, Some(0), Cleared)));
}

#[test]
fn a_silent_host_is_lost_blames_no_rank_and_clears_itself() {
    let mut c = running();
    c.hang(2, |_| {});
    c.lose(1);
    c.pass(4_500);
    assert_eq!(c.verdicts(), [], "not silent for long enough");
    c.pass(10_000);
    assert_eq!(c.verdicts(), [(Lost, None, Red)], "no rank is blamed while its host is silent");
    assert_eq!(first(&c).host.as_deref(), Some("bee"));
    let others: Vec<String> = first(&c).card.others.iter().map(|others| others.line()).collect();
    assert!(others.contains(&"ranks 2, 3: unheard: bee is silent".to_owned()), "{others:?}");
    assert!(others.iter().any(|line| line.starts_with("ranks 0, 1: waits in")), "{others:?}");
    c.release();
    c.ready(1);
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(Lost, None, Cleared)));
    c.pass(3_000);
    assert_eq!(c.verdicts().len(), 2);
}

#[test]
fn an_agent_that_hangs_behind_a_standing_link_is_lost_too() {
    let mut c = running();
    c.agents[1].connected = false;
    c.pass(6_000);
    assert_eq!(c.verdicts(), [(Lost, None, Red)]);
    assert!(first(&c).reason.contains("says nothing"));
}

#[test]
fn a_console_that_was_asleep_does_not_blame_the_hosts() {
    let mut c = running();
    c.now = c.now.plus(3_600_000);
    c.event(Event::Ticked);
    c.pass(3_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn different_collectives_of_one_number_are_a_desync() {
    let mut c = running();
    c.hang(9, |_| {});
    c.agents[1].samples.get_mut(&3).unwrap().page.as_mut().unwrap().collective.call.op = "broadcast".into();
    let took = latency(&mut c);
    assert!(took <= 3_000, "{took} ms");
    assert_eq!(c.verdicts(), [(Desync, Some(3), Red)]);
}

#[test]
fn everybody_inside_the_same_collective_is_nobodys_fault_yet() {
    let mut c = running();
    c.hang(9, |_| {});
    c.pass(15_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn no_verdict_while_stopping_and_a_clean_finish_is_quiet() {
    let mut c = running();
    c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Key });
    c.hang(2, |sample| sample.state = 'T');
    c.lose(1);
    c.pass(9_000);
    assert_eq!(c.verdicts(), []);

    let mut c = running();
    for rank in 0..4 {
        c.rank_said(rank, RankEvent::Finished { reason: FinishReason::Budget });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
        c.pass(1_000);
    }
    assert_eq!(c.verdicts(), []);
}

#[test]
fn a_rank_that_leaves_the_loop_early_is_named() {
    let mut c = running();
    c.hang(3, |_| {});
    c.pass(500);
    c.exit_of(3, Exit::Code { code: 0 }, false);
    c.pass(9_000);
    assert_eq!(c.verdicts(), [(Behind, Some(3), Red)]);
    assert!(first(&c).reason.contains("left the training loop early"), "{}", first(&c).reason);
}

#[test]
fn programs_without_pages_get_verdicts_from_their_processes_only() {
    let mut c = running();
    for agent in &mut c.agents {
        agent.samples.values_mut().for_each(|sample| sample.page = None);
    }
    c.pass(10_000);
    assert_eq!(c.verdicts(), []);
    c.agents[0].samples.get_mut(&0).unwrap().state = 't';
    c.pass(2_000);
    assert_eq!(c.verdicts(), [(Frozen, Some(0), Red)]);
    assert!(first(&c).card.hint().contains("debugger"));
}

#[test]
fn a_death_explains_the_waits_of_the_others() {
    let mut c = running();
    c.hang(1, |_| {});
    c.exit_of(1, killed(), false);
    c.pass(15_000);
    assert_eq!(c.verdicts(), [(VerdictKind::Dead, Some(1), Red)]);
}
