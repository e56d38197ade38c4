//! Healthy runs: no critical verdict, whatever the warnings.

use super::lab::*;
use crate::event::Event;
use crate::reason::Reason;
use crate::report::{Severity, VerdictKind};
use crate::testkit::*;
use rankdeck_proto::inspection::{Inspection, OsState};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use rankdeck_types::link_state::LinkState;

/// xorshift64: the tests need numbers without pattern, not good ones.
fn next(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 11) as f64 / (1u64 << 53) as f64
}

/// Rank `late` is busy elsewhere for `ms` while the others wait; `each` writes its sample every quarter
/// second.
fn busy(c: &mut Cluster, late: u32, ms: u64, each: impl Fn(u64, &mut RankSample)) {
    c.hang(late, |_| {});
    for step in 0..ms / 250 {
        each(step, sample(c, late));
        c.pass(250);
    }
    c.release();
    c.pass(2_000);
}

#[test]
fn n1_long_counting_evaluation_is_a_warning() {
    let mut c = trained(2);
    busy(&mut c, 0, 120_000, |step, sample| {
        let page = sample.page.as_mut().unwrap();
        (page.phase, page.done, page.total) = (Phase::Eval, step, 480);
        page.heartbeat_age_ms = 10;
    });
    assert_eq!(reds(&c), []);
    let reported = verdicts(&c);
    assert_eq!((reported[0].severity, reported[0].reason_code), (Severity::Amber, Reason::ExpectedWait));
    insta::assert_snapshot!("long_evaluation", reported[0].reason);
    assert_eq!(reported.last().unwrap().severity, Severity::Cleared);
    assert_eq!(reported.len(), 2);
}

#[test]
fn n2_cpu_bound_evaluation_is_not_critical() {
    let mut c = trained(2);
    busy(&mut c, 0, 60_000, |step, sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.signals.cpu_ms = 1_000 + step * 250;
        sample.page.as_mut().unwrap().phase = Phase::Eval;
    });
    assert_eq!(reds(&c), []);
}

#[test]
fn n3_slow_first_step_is_not_reported() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.hang(3, |sample| {
        let page = sample.page.as_mut().unwrap();
        (page.updates, page.train_iter) = (0, 1);
    });
    c.pass(29_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n4_growing_checkpoints_are_not_critical() {
    let mut c = trained(2);
    for seconds in 1..=8 {
        busy(&mut c, 0, seconds * 1_000, |step, sample| {
            sample.state = if step % 2 == 0 { 'D' } else { 'S' };
            sample.signals.io_bytes = 1_000_000 * (seconds * 100 + step);
            sample.page.as_mut().unwrap().phase = Phase::Checkpoint;
        });
        c.pass(3_000);
    }
    assert_eq!(reds(&c), []);
}

#[test]
fn n5_log_normal_environments_are_not_critical() {
    for seed in [1u64, 77, 4_242] {
        let mut c = trained(2);
        let mut state = seed;
        let mut left = [0f64; 4];
        let mut seq = 1_000u64;
        // Median 40 ms; the 99.9% quantile a hundred times that.
        drive(&mut c, 30 * 60_000, |rank, _, sample| {
            let rank = rank as usize;
            if rank == 0 && left.iter().all(|left| *left <= 0.0) {
                seq += 1;
                for own in &mut left {
                    let normal = (-2.0 * next(&mut state).max(1e-12).ln()).sqrt()
                        * (std::f64::consts::TAU * next(&mut state)).cos();
                    *own = 40.0 * (1.49 * normal).exp();
                }
            }
            left[rank] -= 250.0;
            let page = sample.page.as_mut().unwrap();
            let waits = left[rank] <= 0.0;
            page.phase = if waits { Phase::Learn } else { Phase::Rollout };
            let moved = page.collective.entered != seq || !waits;
            page.heartbeat_age_ms =
                if page.collective.entered != seq { 20 } else { page.heartbeat_age_ms + 250 };
            page.collective.age_ms = if moved { 100 } else { page.collective.age_ms + 250 };
            page.collective.entered = if waits { seq + 1 } else { seq };
            page.collective.left = seq;
        });
        assert_eq!(reds(&c), [], "seed {seed}");
    }
}

#[test]
fn n6_pauses_of_four_seconds_are_not_reported() {
    let mut c = trained(2);
    for round in 0..10u32 {
        busy(&mut c, round % 4, 4_000, |_, _| {});
        c.pass(20_000);
    }
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n3_start_on_busy_host_gets_more_time() {
    // Rank 3 waits for its environment worker, whose imports get a hundredth of a core; at some samples
    // the worker reads a file.
    let mut c = Cluster::launch(2);
    c.all_ready();
    for agent in &mut c.agents {
        agent.signals.pressure =
            Some(rankdeck_proto::inspection::Pressure { cpu: 90.0, ..Default::default() });
    }
    for rank in 0..4 {
        let phase = if rank == 3 { Phase::Init } else { Phase::Rendezvous };
        *page(&mut c, rank) = PageSample { phase, phase_progress: u64::MAX, ..PageSample::default() };
    }
    for step in 0..400 {
        let late = sample(&mut c, 3);
        (late.state, late.cpu_percent, late.signals.cpu_ms) = ('S', 1.0, 40);
        let state = if step % 5 == 0 { 'S' } else { 'R' };
        let worker = ChildSample {
            pid: 4007,
            name: "python".into(),
            state,
            cpu_ms: 20 + step / 4 * 10,
            ..ChildSample::default()
        };
        late.signals.children = vec![worker];
        c.pass(250);
    }
    assert_eq!(reds(&c), []);
    let reported = verdicts(&c);
    assert_eq!(
        (reported[0].severity, reported[0].reason_code),
        (Severity::Amber, Reason::RendezvousIncomplete)
    );

    // It stops making progress: nothing moves although a core is free again.
    for agent in &mut c.agents {
        agent.signals.pressure = None;
    }
    sample(&mut c, 3).signals.children[0].state = 'S';
    c.pass(12_000);
    assert_eq!(reds(&c), [(Some(3), Reason::RendezvousIncomplete)]);
}

#[test]
fn n7_starved_rank_is_a_warning() {
    let mut c = trained(2);
    for agent in &mut c.agents {
        let pressure = rankdeck_proto::inspection::Pressure { cpu: 90.0, ..Default::default() };
        agent.signals.pressure = Some(pressure);
    }
    busy(&mut c, 1, 12_000, |step, sample| {
        sample.state = 'R';
        sample.signals.cpu_ms = 1_000 + step * 20;
    });
    assert_eq!(reds(&c), []);
    assert_eq!(verdicts(&c)[0].reason_code, Reason::HostOverloaded);
}

#[test]
fn n7_starved_rank_seen_asleep_is_not_deadlocked() {
    let mut c = trained(2);
    for agent in &mut c.agents {
        let pressure = rankdeck_proto::inspection::Pressure { cpu: 90.0, ..Default::default() };
        agent.signals.pressure = Some(pressure);
    }
    // Still inside a collective that the others have left: whatever it does there gets a hundredth of a core.
    busy(&mut c, 1, 12_000, |step, sample| {
        sample.state = if step % 3 == 0 { 'R' } else { 'S' };
        sample.signals.cpu_ms = 1_000 + step * 3;
        sample.signals.delay_ms = step * 200;
        sample.wchan = "futex_do_wait".into();
    });
    assert_eq!(reds(&c), []);
    assert_eq!(verdicts(&c)[0].reason_code, Reason::HostOverloaded);
}

#[test]
fn n7_starved_agent_is_a_warning_for_a_while() {
    for late in [true, false] {
        let mut c = trained(2);
        c.agents[1].signals.pressure =
            Some(rankdeck_proto::inspection::Pressure { cpu: 90.0, ..Default::default() });
        c.pass(1_000);
        if late {
            c.agents[1].connected = false;
            c.pass(2_000);
            c.agents[1].connected = true;
            c.pass(1_000);
        }
        c.hang(9, |_| {});
        c.lose(1);
        c.pass(12_000);
        assert_eq!(reds(&c).len(), usize::from(!late), "one that was on time until then is missed at once");
        assert_eq!(verdicts(&c)[0].severity, if late { Severity::Amber } else { Severity::Red });
        c.pass(15_000);
        assert_eq!(reds(&c).len(), 1, "not forever");
    }
}

/// Nothing broke: the agent of a full host sends nothing. Another link to it changes nothing, either.
#[test]
fn n7_starved_agent_is_a_warning_while_host_responds() {
    let given_up = || LinkState::Lost { reason: format!("{} for 5 s", LinkState::SILENT), retry_ms: 500 };
    for (full, again) in [(true, None), (true, Some(true)), (true, Some(false)), (false, None)] {
        let mut c = trained(2);
        let cpu = if full { 90.0 } else { 5.0 };
        c.agents[1].signals.pressure =
            Some(rankdeck_proto::inspection::Pressure { cpu, ..Default::default() });
        c.pass(1_000);
        c.hang(9, |_| {});
        c.agents[1].connected = false;
        c.pass(5_500);
        if let Some(answers) = again {
            c.link(1, given_up());
            c.pass(1_000);
            c.link(1, LinkState::Connecting { attempt: 1 });
            c.pass(1_000);
            if !answers {
                c.lose(1);
                c.pass(1_000);
            }
        }
        c.pass(4_000);
        let amber = full && again != Some(false);
        let reported = verdicts(&c);
        assert_eq!(reds(&c).len(), usize::from(!amber), "{full} {again:?}: {:?}", c.verdicts());
        let first = if full { Severity::Amber } else { Severity::Red };
        assert_eq!(reported[0].severity, first, "{again:?}");
        c.pass(15_000);
        assert_eq!(reds(&c).len(), 1, "not forever: {:?}", c.verdicts());
    }
}

#[test]
fn n8_n9_short_stops_and_losses_are_not_reported() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    c.pass(500);
    c.release();
    c.pass(2_000);
    stand(&mut c, 100);
    c.pass(1_000);
    c.release();
    c.pass(2_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n10_reconnect_is_not_reported() {
    let mut c = trained(2);
    c.lose(1);
    c.pass(3_000);
    c.ready(1);
    c.pass(10_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n11_slow_clean_finish_is_not_reported() {
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
    }
    for rank in 0..4 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
        c.pass(1_000);
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n12_requested_restart_is_not_reported() {
    let mut c = trained(2);
    c.event(Event::restart(None));
    c.hang(2, |_| {});
    c.pass(9_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n13_wall_clock_jumps_are_not_reported() {
    let mut c = trained(2);
    c.agents[1].wall_skew_s = 3_600.0;
    c.pass(5_000);
    c.agents[1].wall_skew_s = -3_600.0;
    c.pass(5_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n14_groups_of_some_ranks_are_no_mismatch() {
    let mut c = trained(2);
    stand(&mut c, 100);
    for rank in 0..2 {
        let page = page(&mut c, rank);
        let pair = GroupSample { name: "pair".into(), size: 2, entered: 9, left: 9, chain: 5 };
        page.groups.push(pair);
        page.recent.extend(calls(3, 7).into_iter().map(|call| RecentCollective {
            call: CollectiveCall { group: "pair".into(), op: "broadcast".into(), ..call.call },
            ..call
        }));
        page.collective.entered = 109;
        page.collective.left = 108;
    }
    c.pass(10_000);
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n15_moving_ranks_one_call_apart_are_fine() {
    let mut c = trained(2);
    drive(&mut c, 20_000, |rank, now, sample| {
        let page = sample.page.as_mut().unwrap();
        page.collective.entered = now / 250 + u64::from(rank % 2);
        page.collective.left = now / 250 - u64::from(rank % 3 == 0);
        page.collective.age_ms = 200;
        page.heartbeat_age_ms = 20;
    });
    assert_eq!(c.verdicts(), []);
}

#[test]
fn n16_suspended_machine_blames_no_rank() {
    let mut c = trained(2);
    c.now = c.now.plus(3_600_000);
    c.event(Event::Ticked);
    c.pass(5_000);
    assert_eq!(reds(&c), []);
    assert!(!c.verdicts().iter().any(|(kind, _, _)| *kind == VerdictKind::Behind));
}

#[test]
fn python_rank_busy_outside_collectives_is_a_warning() {
    let mut c = trained(2);
    let page = |entered, left, age_ms| PageSample {
        by_hook: true,
        heartbeat_age_ms: age_ms,
        collective: CollectiveSample {
            entered,
            left,
            age_ms,
            call: CollectiveCall {
                op: "all_gather".into(),
                count: 100 + entered,
                ..CollectiveCall::default()
            },
            ..CollectiveSample::default()
        },
        ..PageSample::default()
    };
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(page(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    drive(&mut c, 120_000, |rank, now, sample| {
        sample.page = Some(page(if rank == 0 { seq } else { seq + 1 }, seq, now - since));
        sample.signals.cpu_ms = now;
    });
    assert_eq!(reds(&c), []);
    assert_eq!(verdicts(&c)[0].reason_code, Reason::ExpectedWait);
}

#[test]
fn n2_starved_computing_script_is_a_warning() {
    // Tenths of a core that it gets, and in which it is seen ready to run.
    for (state, gets, waits) in [('S', 7, 2), ('S', 3, 2), ('S', 1, 1), ('R', 0, 0)] {
        computes(state, gets, waits);
    }
}

fn computes(state: char, gets: u64, waits: u64) {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    drive(&mut c, 120_000, |rank, now, sample| {
        sample.page = Some(hooked(if rank == 0 { seq } else { seq + 1 }, seq, now - since));
        if rank == 0 {
            (sample.state, sample.cpu_percent) = (state, 10.0 * gets as f32);
            (sample.signals.cpu_ms, sample.signals.delay_ms) = (1 + now * gets / 10, now * waits / 10);
        }
    });
    assert_eq!(reds(&c), []);
    assert_eq!(verdicts(&c)[0].reason_code, Reason::ExpectedWait);
}

#[test]
fn p14_script_in_same_function_twice_is_a_warning() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    c.agents[0].inspections.insert(1, inspection_at(1, "strike", "train.py", 55));
    drive(&mut c, 12_000, |rank, now, sample| {
        sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
        if rank == 1 {
            (sample.state, sample.signals.cpu_ms) = ('R', now);
        }
    });
    assert_eq!(reds(&c), []);
    let reported = verdicts(&c).first().cloned().expect("a verdict");
    assert_eq!(
        (reported.rank, reported.reason_code, reported.severity),
        (Some(Rank(1)), Reason::Spinning, Severity::Amber)
    );
    assert!(at(&reported).starts_with("train.py:55") && reported.latency_s < 7.0, "{reported:?}");
}

#[test]
fn n2_script_computing_after_wait_is_a_warning() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    let waited = OsState { wchan: Some("pipe_read".into()), ..OsState::default() };
    c.agents[0].inspections.insert(0, Inspection { rank: Rank(0), os: waited, ..Inspection::default() });
    drive(&mut c, 60_000, |rank, now, sample| {
        sample.page = Some(hooked(if rank == 0 { seq } else { seq + 1 }, seq, now - since));
        if rank == 0 {
            (sample.state, sample.cpu_percent) = ('R', 60.0);
            (sample.signals.cpu_ms, sample.signals.delay_ms) = (now * 6 / 10, now * 4 / 10);
            sample.signals.children = vec![ChildSample { pid: 7, ..ChildSample::default() }];
        }
    });
    assert_eq!(reds(&c), []);
}
