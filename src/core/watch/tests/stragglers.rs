//! Ranks that are slow and not stuck.

use super::lab::*;
use crate::event::Event;
use crate::model::SlowLink;
use crate::reason::Reason;
use crate::report::{Severity, VerdictKind};
use crate::testkit::*;
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
fn p22_throttled_rank_is_straggler_not_stuck() {
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
    c.reports.clear();
    drive(&mut c, 30_000, |rank, now, sample| running(sample, now, &FAST, 10 + u64::from(rank) % 2, None));
    assert_eq!(verdicts(&c).last().map(|verdict| verdict.severity), Some(Severity::Cleared));
}

#[test]
fn straggler_evidence_names_its_slow_links() {
    let mut c = trained(2);
    let hosts = [0, 1].map(|host: usize| c.core.model().hosts[host].name.clone());
    let slow_link = |hosts: [&str; 2]| SlowLink {
        hosts: hosts.map(String::from),
        bps: 9e8,
        usual_bps: 9.4e9,
        day: "Nov 30".into(),
    };
    let elsewhere = slow_link([&hosts[0], "another-run"]);
    c.event(Event::Measured { slow_links: vec![slow_link([&hosts[0], &hosts[1]]), elsewhere] });
    slow(&mut c, 2, |rank, now, sample| {
        let throttled = if rank == 2 { now / 100 } else { 0 };
        sample.signals.cgroup =
            Some(CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() });
    });
    let verdict = verdicts(&c).first().cloned().expect("a straggler");
    let named: Vec<&String> = verdict.card.facts.iter().filter(|fact| fact.contains(&hosts[0])).collect();
    assert!(named.len() == 1 && named[0].contains("900 Mb/s"), "{:?}", verdict.card.facts);
}

#[test]
fn p22_throttled_in_collectives_is_culprit_unless_all_are() {
    for (held, found) in [(1, Some(Rank(2))), (4, None)] {
        let mut c = trained(2);
        drive(&mut c, 12_000, |rank, now, sample| {
            running(sample, now, &FAST, FAST.period_ms * (6 + u64::from(rank) % 2) / 10, None);
            let throttled = if rank == 2 || held == 4 { now / 100 } else { 0 };
            let cgroup = CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() };
            sample.signals.cgroup = Some(cgroup);
        });
        let reported = verdicts(&c);
        assert_eq!(reported.first().and_then(|verdict| verdict.rank), found, "{held} held: {reported:?}");
        assert!(reported.iter().all(|verdict| verdict.reason_code == Reason::Throttled), "{reported:?}");
    }
}

/// A run on a full machine: iterations are few and of uneven length, and agents come late, each at its own
/// moments.
struct CrowdedRun {
    c: Cluster,
    /// When each iteration began.
    begun: Vec<u64>,
    seed: u64,
}

impl CrowdedRun {
    /// It has trained for a few iterations of a fifth of a second.
    fn new() -> CrowdedRun {
        let mut c = trained(2);
        for agent in &mut c.agents {
            agent.signals.pressure = Some(Pressure { cpu: 90.0, ..Pressure::default() });
            agent.load1 = 22.0;
        }
        let now = c.now.0;
        CrowdedRun { c, begun: (0..4).map(|place| now + 200 * (place + 1)).collect(), seed: 4_711 }
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Runs for `ms` ms, with iterations of `long` ms and up to a half more, of which rank `r` waits `waits[r]`
    /// percent, all of it at the end. `each` adds what the kernel shows.
    fn go(&mut self, ms: u64, long: u64, waits: [u64; 4], each: impl Fn(u32, u64, &mut RankSample)) {
        let since = self.c.now.0;
        let mut next_samples = [since; 2];
        for _ in 0..ms / 250 {
            self.c.now = self.c.now.plus(250);
            let now = self.c.now.0;
            if now >= self.begun.last().copied().unwrap_or(0) {
                let next = now + long + self.chance(long / 2);
                self.begun.push(next);
            }
            let past: Vec<u64> = self.begun.iter().copied().filter(|at| *at <= now).collect();
            let next = self.begun.iter().copied().find(|at| *at > now).unwrap_or(now);
            for (node, next_sample) in next_samples.iter_mut().enumerate() {
                // Every one to two and a half seconds.
                if now < *next_sample {
                    continue;
                }
                *next_sample = now + 1_000 + self.chance(1_500);
                for (rank, sample) in &mut self.c.agents[node].samples {
                    let share = waits[*rank as usize];
                    let waited = |at: u64| at.saturating_sub(since) * share / 100;
                    let begins = past.last().copied().unwrap_or(now);
                    let waits_from = next - (next - begins) * share / 100;
                    let page = sample.page.as_mut().unwrap();
                    let iteration = past.len() as u64;
                    (page.train_iter, page.updates, page.heartbeat_age_ms) = (iteration, iteration * 4, 20);
                    page.phase = Phase::Rollout;
                    page.collective.left = iteration * 6;
                    page.collective.entered = iteration * 6 + u64::from(now >= waits_from);
                    page.collective.age_ms = now.saturating_sub(waits_from);
                    let first = past.len().saturating_sub(8);
                    page.iterations = (first..past.len())
                        .map(|place| IterationSample {
                            train_iter: place as u64 + 1,
                            seq: place as u64 * 6,
                            chain: place as u64 * 31,
                            age_ms: now - past[place],
                            wait_us: waited(past[place]) * 1_000,
                        })
                        .collect();
                    each(*rank, now - since, sample);
                }
                self.c.sample(node);
            }
            self.c.event(crate::event::Event::Ticked);
        }
    }
}

/// What a quota of a hundredth of a core shows: the kernel has held the group for `held` percent of the time,
/// and in `periods` percent of the periods in which anything of it ran.
fn quota(at: u64, ran: u64, periods: u64, held: u64) -> Option<CgroupSample> {
    Some(CgroupSample {
        periods: at * ran / 100 / 100,
        throttled: at * ran * periods / 100 / 100 / 100,
        throttled_ms: at * held / 100,
        ..CgroupSample::default()
    })
}

#[test]
fn p22_kernel_counters_show_quota_with_few_iterations() {
    // Whether it is seen last, or is stopped inside its collectives and waits as long as the others.
    for own in [2, 70] {
        let mut run = CrowdedRun::new();
        run.go(1_000, 200, [10; 4], |_, _, _| {});
        run.go(60_000, 9_000, [80, 75, own, 70], |rank, at, sample| {
            sample.signals.cgroup = if rank == 2 { quota(at, 100, 97, 90) } else { None };
        });
        let reported = verdicts(&run.c);
        let first = reported.iter().find(|reported| reported.reason_code == Reason::Throttled);
        let first = first.unwrap_or_else(|| panic!("waits {own}%: {reported:?}"));
        expect(first, Some(2), Reason::Throttled);
        assert_eq!(first.severity, Severity::Amber);
        insta::assert_snapshot!(format!("quota_waits_{own}"), verdict_text(first));
        assert!(
            reported
                .iter()
                .all(|reported| reported.rank == Some(Rank(2)) && reported.severity != Severity::Red),
            "{reported:?}"
        );
    }
}

#[test]
fn p22_harmless_quota_is_not_reported() {
    type Shows = fn(u32, u64) -> Option<CgroupSample>;
    let cases: [([u64; 4], Shows); 4] = [
        // Rank 0 evaluates; rank 2 spins in its wait, and its quota stops it there.
        ([1, 80, 80, 75], |rank, at| if rank == 2 { quota(at, 100, 95, 90) } else { None }),
        // In most of the few periods in which it runs it is held, for a moment each.
        ([80, 75, 60, 70], |rank, at| if rank == 2 { quota(at, 20, 90, 4) } else { None }),
        // It is held, and no one waits for it.
        ([8, 9, 6, 10], |rank, at| if rank == 2 { quota(at, 100, 95, 90) } else { None }),
        // On a full machine all wait for each other; no one has a quota.
        ([60, 55, 58, 62], |_, _| None),
    ];
    for (waits, shows) in cases {
        let mut run = CrowdedRun::new();
        run.go(3_000, 200, [10; 4], |_, _, _| {});
        run.go(60_000, 4_000, waits, |rank, at, sample| sample.signals.cgroup = shows(rank, at));
        let reported = verdicts(&run.c);
        assert!(
            !reported.iter().any(|reported| reported.reason_code == Reason::Throttled),
            "{waits:?}: {reported:?}"
        );
        assert_eq!(reds(&run.c), [], "{waits:?}");
    }
}

#[test]
fn p23_longer_compute_is_named() {
    let mut c = trained(2);
    slow(&mut c, 3, |rank, now, sample| {
        let learn = if rank == 3 { now * 7 / 10 } else { now * 4 / 10 };
        sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, learn, 0, 0, 0, 0, 0];
    });
    let verdict = verdicts(&c).last().cloned().expect("a verdict");
    expect(&verdict, Some(3), Reason::SlowCompute);
}

#[test]
fn p23_cpu_pressure_needs_less_busy_hosts() {
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
fn late_without_cause_needs_a_long_run_and_not_rank_0() {
    for (late, ms, expected) in [(0, 30_000, None), (3, 7_000, None), (3, 30_000, Some(Reason::Late))] {
        let mut c = trained(2);
        drive(&mut c, ms, |rank, now, sample| {
            running(sample, now, &FAST, if rank == late { 2 } else { 32 + u64::from(rank) }, None);
        });
        assert_eq!(verdicts(&c).first().map(|verdict| verdict.reason_code), expected, "rank {late}, {ms} ms");
    }
}

#[test]
fn evaluating_rank_is_no_straggler() {
    let mut c = trained(2);
    slow(&mut c, 0, |rank, now, sample| {
        let (eval, save) = if rank == 0 { (now * 2 / 10, now / 10) } else { (0, 0) };
        sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, now * 4 / 10, 0, eval, save, 0, 0];
    });
    assert_eq!(verdicts(&c), []);
}

#[test]
fn ranks_bound_to_one_core_are_a_warning() {
    for (cores, expected) in [([0, 0, 0, 1], 1), ([0, 1, 0, 1], 0)] {
        let mut c = trained(2);
        drive(&mut c, 5_000, |rank, now, sample| {
            running(sample, now, &FAST, 10, None);
            sample.signals.only_core = Some(cores[rank as usize]);
        });
        let reported = verdicts(&c);
        let hosts: Vec<_> = reported.iter().map(|verdict| (verdict.reason_code, &verdict.severity)).collect();
        assert_eq!(hosts, vec![(Reason::SharedCore, &Severity::Amber); expected], "{:?}", c.verdicts());
        if let Some(verdict) = reported.first() {
            assert_eq!((verdict.rank, verdict.host.as_deref()), (None, Some("ant")));
            insta::assert_snapshot!("shared_core", verdict.reason);
        }
    }
}

#[test]
fn run_slower_than_its_past_is_a_warning() {
    let mut c = trained(2);
    let mut steps = 0;
    let mut minutes = |c: &mut Cluster, minutes: u64, per_minute: u64| {
        for _ in 0..minutes {
            drive(c, 60_000, |rank, now, sample| {
                let page = sample.page.as_mut().unwrap();
                (page.heartbeat_age_ms, page.train_iter) = (5, steps + (now % 60_000) * per_minute / 60_000);
                page.collective.entered = page.train_iter;
                page.collective.left = page.train_iter;
                page.updates = page.train_iter * 4;
                if rank == 3 && now % 60_000 == 59_750 {
                    steps += per_minute;
                }
            });
        }
    };
    minutes(&mut c, 10, 600);
    assert_eq!(c.verdicts(), []);
    minutes(&mut c, 6, 200);
    let reported = verdicts(&c);
    assert_eq!(reported.iter().map(|verdict| verdict.reason_code).collect::<Vec<_>>(), [Reason::SlowRun]);
    insta::assert_snapshot!("slow_run", reported[0].reason);
    minutes(&mut c, 4, 600);
    assert_eq!(verdicts(&c).last().map(|verdict| verdict.severity), Some(Severity::Cleared));
}
