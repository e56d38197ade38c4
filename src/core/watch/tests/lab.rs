//! A cluster whose ranks train in lock step, tick by tick, with injected faults.

use crate::event::Event;
use crate::reason::Reason;
use crate::report::{ReportBody, Severity, VerdictReport};
use crate::testkit::*;
use rankdeck_proto::inspection::{Frame, Inspection, StackMethod, ThreadStack};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

/// A cluster of `hosts` with two ranks each that has trained for a while.
pub fn trained(hosts: usize) -> Cluster {
    let mut c = Cluster::launch(hosts);
    c.all_ready();
    for agent in &mut c.agents {
        for sample in agent.samples.values_mut() {
            sample.signals.cpu_ms = 1_000;
            sample.cpu_percent = 0.0;
            sample.wchan = String::new();
        }
    }
    c.pass(10_000);
    assert_eq!(c.verdicts(), [], "a healthy run");
    c
}

pub fn verdicts(c: &Cluster) -> Vec<VerdictReport> {
    let reported = c.reports.iter().filter_map(|(_, _, body)| match body {
        ReportBody::Verdict(verdict) => Some(verdict.clone()),
        _ => None,
    });
    reported.collect()
}

/// Passes time until something red is reported; gives it and how long it took.
pub fn alarm(c: &mut Cluster, bound_ms: u64) -> VerdictReport {
    let start = c.now;
    let known = verdicts(c).len();
    loop {
        let red = verdicts(c).into_iter().skip(known).find(|verdict| verdict.severity == Severity::Red);
        if let Some(verdict) = red {
            return verdict;
        }
        let took = c.now.since(start);
        assert!(took < bound_ms, "nothing red after {took} ms; reported: {:?}", c.verdicts());
        c.pass(250);
    }
}

/// Asserts whom and why.
pub fn expect(verdict: &VerdictReport, rank: Option<u32>, reason: Reason) {
    assert_eq!((verdict.rank.map(|rank| rank.0), verdict.reason_code), (rank, reason), "{}", verdict.reason);
    assert_eq!(verdict.verdict, reason.kind());
}

/// The source line and function that a verdict names.
pub fn at(verdict: &VerdictReport) -> &str {
    verdict.card.culprit.as_ref().map_or("", |culprit| culprit.at.as_str())
}

/// Every red verdict so far.
pub fn reds(c: &Cluster) -> Vec<(Option<u32>, Reason)> {
    let red = verdicts(c).into_iter().filter(|verdict| verdict.severity == Severity::Red);
    red.map(|verdict| (verdict.rank.map(|rank| rank.0), verdict.reason_code)).collect()
}

pub fn sample(c: &mut Cluster, rank: u32) -> &mut RankSample {
    c.agents[rank as usize / 2].samples.get_mut(&rank).unwrap()
}

pub fn page(c: &mut Cluster, rank: u32) -> &mut PageSample {
    sample(c, rank).page.as_mut().unwrap()
}

/// An inspection that shows a thread in `file:line`.
pub fn inspection_at(rank: u32, function: &str, file: &str, line: u32) -> Inspection {
    let frames = vec![
        Frame { function: "__futex_abstimed_wait".into(), file: Some("/lib/libc.so.6".into()), line: None },
        Frame { function: function.into(), file: Some(file.into()), line: Some(line) },
    ];
    let thread = ThreadStack { tid: 1000 + rank, name: "main".into(), how: StackMethod::Native, frames };
    Inspection { rank: Rank(rank), pid: Some(1000 + rank), threads: vec![thread], ..Inspection::default() }
}

/// A run of `count` collectives with a period of five: four gradients of 64 elements and one exchange of
/// statistics.
pub fn calls(first: u64, count: u64) -> Vec<RecentCollective> {
    let mut chain = first;
    (first..first + count)
        .map(|seq| {
            chain += 1;
            let stats = seq.is_multiple_of(5);
            RecentCollective {
                seq,
                chain,
                train_iter: seq / 5,
                call: CollectiveCall {
                    group: "world".into(),
                    op: "all_reduce".into(),
                    tag: if stats { "collect_stats" } else { "grad" }.into(),
                    count: if stats { 8 } else { 64 },
                    dtype: "f32".into(),
                    site: if stats { "train.rs:90" } else { "ddp.rs:40" }.into(),
                    ..CollectiveCall::default()
                },
                ..RecentCollective::default()
            }
        })
        .collect()
}

/// All ranks stand still inside collective `seq` of the group of all ranks, with the calls before it on their
/// pages.
pub fn stand(c: &mut Cluster, seq: u64) {
    let ranks: Vec<u32> = c.agents.iter().flat_map(|agent| agent.samples.keys().copied()).collect();
    let world = ranks.len() as u32;
    for rank in ranks {
        let page = page(c, rank);
        page.recent = calls(seq - 20, 21);
        page.groups =
            vec![GroupSample { name: "world".into(), size: world, entered: seq, left: seq - 1, chain: 0 }];
        enter(page, "world", seq);
    }
}

/// The page shows its rank inside `seq` of a group.
pub fn enter(page: &mut PageSample, group: &str, seq: u64) {
    let call = page.recent.iter().find(|call| call.seq == seq && call.call.group == group).cloned();
    let call = call.unwrap_or_default();
    page.phase = Phase::Learn;
    page.collective = CollectiveSample {
        entered: seq,
        left: seq - 1,
        group_seq: seq,
        call: CollectiveCall { group: group.into(), ..call.call },
        ..CollectiveSample::default()
    };
}

/// The rank called something else at `seq`.
pub fn instead(c: &mut Cluster, rank: u32, seq: u64, change: impl Fn(&mut CollectiveCall)) {
    let page = page(c, rank);
    for call in &mut page.recent {
        if call.seq == seq {
            change(&mut call.call);
            call.chain += 7_777;
        }
    }
    enter(page, "world", seq);
}

/// A rank as it trains: iterations of `period_ms`, `collectives` each, of which it waits `wait_ms`.
pub struct Pace {
    pub period_ms: u64,
    pub collectives: u64,
}

pub const FAST: Pace = Pace { period_ms: 100, collectives: 6 };

/// Time passes in quarter seconds; `each` writes every rank's sample again.
pub fn drive(c: &mut Cluster, ms: u64, mut each: impl FnMut(u32, u64, &mut RankSample)) {
    for _ in 0..ms / 250 {
        c.now = c.now.plus(250);
        for node in 0..c.agents.len() {
            for (rank, sample) in &mut c.agents[node].samples {
                each(*rank, c.now.0, sample);
            }
            if c.agents[node].connected {
                c.sample(node);
            }
        }
        c.event(Event::Ticked);
    }
}

/// Writes a running page: iterations of `pace`, of each of which the rank waits `wait_ms` in collectives;
/// `lost` collectives are left out from iteration `since` on.
pub fn running(sample: &mut RankSample, now: u64, pace: &Pace, wait_ms: u64, shift: Option<(u64, i64)>) {
    let iteration = now / pace.period_ms;
    let at = |iteration: u64| {
        let seq = iteration * pace.collectives;
        match shift {
            Some((since, by)) if iteration > since => seq.saturating_add_signed(by),
            _ => seq,
        }
    };
    let page = sample.page.as_mut().unwrap();
    page.train_iter = iteration;
    page.updates = iteration * 4;
    page.heartbeat_age_ms = 5;
    page.phase = Phase::Rollout;
    page.phase_age_ms = now % pace.period_ms;
    page.collective.entered = at(iteration);
    page.collective.left = at(iteration);
    page.iterations = (iteration.saturating_sub(7)..=iteration)
        .map(|i| IterationSample {
            train_iter: i,
            seq: at(i),
            chain: at(i) * 31 + i,
            age_ms: now - i * pace.period_ms,
            wait_us: i * wait_ms * 1000,
        })
        .collect();
}

/// Fingerprints of the weights of a script whose optimizer has made `steps` steps.
pub fn weights(steps: u64) -> Vec<FingerprintSample> {
    let at = |step: u64| FingerprintSample {
        step,
        lanes: [step as u32 + 1; 8],
        sum: step as f64,
        scale: 100.0,
        finite: true,
        ..FingerprintSample::default()
    };
    (steps.saturating_sub(8)..=steps).map(at).collect()
}

/// What the hook of a Python rank shows.
pub fn hooked(entered: u64, left: u64, age_ms: u64) -> PageSample {
    PageSample {
        by_hook: true,
        phase: Phase::Learn,
        heartbeat_age_ms: age_ms,
        groups: vec![GroupSample { name: "world".into(), size: 4, entered, left, chain: 0 }],
        collective: CollectiveSample {
            entered,
            left,
            group_seq: entered,
            age_ms,
            call: CollectiveCall {
                op: "all_reduce".into(),
                count: 64,
                dtype: "f32".into(),
                group: "world".into(),
                site: "train.py:40".into(),
                ..CollectiveCall::default()
            },
        },
        ..PageSample::default()
    }
}

/// A rank's process ends with this last log line.
pub fn exits(c: &mut Cluster, rank: u32, exit: Exit, line: &str) {
    c.agents[rank as usize / 2].samples.remove(&rank);
    let event = RecordEvent::RankExited {
        rank: Rank(rank),
        pid: 1000 + rank,
        exit,
        last_lines: vec![line.into()],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    };
    c.record(rank as usize / 2, event);
}

pub fn signal(signal: i32, out_of_memory: bool) -> Exit {
    Exit::Signal { signal, out_of_memory }
}
