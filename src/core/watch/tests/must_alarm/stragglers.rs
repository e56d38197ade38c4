//! Ranks that are slow and not stuck.

use super::FAST;
use crate::reason::Reason;
use crate::report::{Severity, VerdictKind};
use crate::testkit::*;
use crate::watch::tests::lab::*;
use rankdeck_proto::inspection::Pressure;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

fn slow(c: &mut Cluster, late: u32, change: impl Fn(u32, u64, &mut RankSample)) {
    drive(c, 12_000, |rank, now, sample| {
        running(sample, now, &FAST, if rank == late { 2 } else { 32 + u64::from(rank) }, None);
        change(rank, now, sample);
    });
}

#[test]
fn p22_a_throttled_rank_is_slow_not_stuck() {
    let mut c = trained(2);
    slow(&mut c, 2, |rank, now, sample| {
        let throttled = if rank == 2 { now / 100 } else { 0 };
        sample.signals.cgroup =
            Some(CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() });
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict within 50 iterations and more");
    expect(&verdict, Some(2), Reason::Throttled);
    assert_eq!((verdict.severity, verdict.verdict), (Severity::Amber, VerdictKind::Straggler));
    assert_eq!(reds(&c), []);
    c.told.clear();
    drive(&mut c, 30_000, |rank, now, sample| running(sample, now, &FAST, 10 + u64::from(rank) % 2, None));
    assert_eq!(verdicts(&c).last().map(|verdict| verdict.severity), Some(Severity::Cleared));
}

#[test]
fn p22_a_rank_that_its_quota_stops_inside_collectives_too_waits_as_long_as_the_others() {
    for (held, found) in [(1, Some(Rank(2))), (4, None)] {
        let mut c = trained(2);
        drive(&mut c, 12_000, |rank, now, sample| {
            running(sample, now, &FAST, FAST.period_ms * (6 + u64::from(rank) % 2) / 10, None);
            let throttled = if rank == 2 || held == 4 { now / 100 } else { 0 };
            let cgroup = CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() };
            sample.signals.cgroup = Some(cgroup);
        });
        let told = verdicts(&c);
        assert_eq!(told.first().and_then(|verdict| verdict.rank), found, "{held} held: {told:?}");
        assert!(told.iter().all(|verdict| verdict.reason_code == Reason::Throttled), "{told:?}");
    }
}

#[test]
fn p23_a_rank_that_computes_longer() {
    let mut c = trained(2);
    slow(&mut c, 3, |rank, now, sample| {
        let learn = if rank == 3 { now * 7 / 10 } else { now * 4 / 10 };
        sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, learn, 0, 0, 0, 0, 0];
    });
    let verdict = verdicts(&c).last().cloned().expect("a verdict");
    expect(&verdict, Some(3), Reason::SlowCompute);
}

#[test]
fn p23_a_host_that_is_as_busy_as_the_others_is_no_reason() {
    for all in [true, false] {
        let mut c = trained(2);
        for (host, agent) in c.agents.iter_mut().enumerate() {
            let pressure = Pressure { cpu: if all || host == 1 { 90.0 } else { 3.0 }, ..Pressure::default() };
            agent.signals.pressure = Some(pressure);
        }
        slow(&mut c, 3, |rank, now, sample| {
            let learn = if rank == 3 { now * 7 / 10 } else { now * 4 / 10 };
            sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, learn, 0, 0, 0, 0, 0];
        });
        let verdict = verdicts(&c).last().cloned().expect("a verdict");
        expect(&verdict, Some(3), if all { Reason::SlowCompute } else { Reason::CpuPressure });
    }
}

#[test]
fn nobody_is_late_without_a_cause_in_a_short_run_and_rank_0_never() {
    for (late, ms, wanted) in [(0, 30_000, None), (3, 7_000, None), (3, 30_000, Some(Reason::Late))] {
        let mut c = trained(2);
        drive(&mut c, ms, |rank, now, sample| {
            running(sample, now, &FAST, if rank == late { 2 } else { 32 + u64::from(rank) }, None);
        });
        assert_eq!(verdicts(&c).first().map(|verdict| verdict.reason_code), wanted, "rank {late}, {ms} ms");
    }
}

#[test]
fn a_rank_that_evaluates_and_saves_for_all_is_no_straggler() {
    let mut c = trained(2);
    slow(&mut c, 0, |rank, now, sample| {
        let (eval, save) = if rank == 0 { (now * 2 / 10, now / 10) } else { (0, 0) };
        sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, now * 4 / 10, 0, eval, save, 0, 0];
    });
    assert_eq!(verdicts(&c), []);
}
