//! What holds for all runs: no red without a stall, the same rank whatever the order of hosts, the same
//! verdicts whatever the clocks.

use super::lab::*;
use crate::testkit::*;
use crate::watch::history::hosts::HostView;
use crate::watch::history::patience::LineWaits;
use crate::watch::history::rank_history::RankHistory;
use crate::watch::history::run_view;
use crate::watch::history::run_view::RankView;
use crate::watch::history::silence::SilenceThreshold;
use crate::watch::patterns::waits;
use crate::watch::patterns::waits::WaitPattern;
use proptest::prelude::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::{NodeRank, Rank};
use std::cell::OnceCell;
use std::sync::LazyLock;

fn verdict_keys(c: &Cluster) -> Vec<(String, Option<u32>, String, String)> {
    verdicts(c)
        .into_iter()
        .map(|v| {
            (
                v.verdict.name().to_string(),
                v.rank.map(|r| r.0),
                format!("{:?}", v.severity),
                v.reason_code.name().into(),
            )
        })
        .collect()
}

/// A rank that counts two groups; `place`: which it is inside, if any.
fn rank(rank: u32, world: u64, pair: u64, place: u8, silent: u64) -> RankSample {
    let group = |name: &str, size, entered: u64, inside: bool| GroupSample {
        name: name.into(),
        size,
        entered,
        left: entered - u64::from(inside),
        chain: 0,
    };
    let mut sample = rank_sample(rank);
    let page = sample.page.as_mut().unwrap();
    page.heartbeat_age_ms = silent;
    page.groups = vec![group("world", 6, world, place == 1), group("even", 3, pair, place == 2)];
    page.groups.truncate(if rank.is_multiple_of(2) { 2 } else { 1 });
    page.collective = CollectiveSample {
        entered: world + pair,
        left: world + pair - u64::from(place > 0),
        group_seq: if place == 2 { pair } else { world },
        age_ms: 9_000,
        call: CollectiveCall {
            op: "all_reduce".into(),
            tag: "x".into(),
            group: if place == 2 { "even" } else { "world" }.into(),
            ..CollectiveCall::default()
        },
    };
    sample
}

static STILL: LazyLock<RankHistory> = LazyLock::new(|| RankHistory::still(9_000));
static MOVING: LazyLock<RankHistory> = LazyLock::new(|| RankHistory::still(500));

fn view(sample: &RankSample, node: u32) -> RankView<'_> {
    RankView {
        rank: sample.rank,
        node: NodeRank(node),
        sample,
        history: &STILL,
        inspections: None,
        line_waits: LineWaits::default(),
        fresh: true,
        left: false,
        died: false,
        threshold: SilenceThreshold { suspect: 1_000, stuck: 5_000 },
        groups: run_view::groups(sample),
        host: HostView::default(),
        gpu: None,
        gpu_is_shared: false,
        recent: OnceCell::new(),
    }
}

/// Whom findings blame, without what depends on the order of ranks by right.
fn blamed(findings: &[WaitPattern]) -> Vec<String> {
    let mut all: Vec<String> = findings
        .iter()
        .map(|finding| match finding {
            WaitPattern::Behind { rank, also, group, seq, .. } => {
                let mut also = also.clone();
                also.sort();
                format!("behind {rank} {also:?} {group} {seq}")
            }
            WaitPattern::Disagree { what, .. } => {
                format!("disagree {:?} {} {}", what.rank, what.group, what.seq)
            }
            WaitPattern::Ring { ring, .. } => {
                let mut ring = ring.clone();
                ring.sort();
                format!("ring {ring:?}")
            }
            WaitPattern::Inside { group, seq, .. } => format!("inside {group} {seq}"),
        })
        .collect();
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn waits_2_host_order_changes_no_finding(
        state in proptest::collection::vec((1u64..4, 1u64..4, 0u8..3, 0u64..4), 6),
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let samples: Vec<RankSample> = state
            .iter()
            .enumerate()
            .map(|(i, (world, pair, place, silent))| {
                let place = if i % 2 == 1 && *place == 2 { 0 } else { *place };
                rank(i as u32, *world, *pair, place, silent * 1_000 + i as u64)
            })
            .collect();
        let views: Vec<RankView> = samples.iter().enumerate().map(|(i, sample)| view(sample, i as u32 / 2)).collect();
        let moved: Vec<RankView> = order.iter().map(|i| views[*i].clone()).collect();
        prop_assert_eq!(blamed(&waits::find_wait_patterns(&views)), blamed(&waits::find_wait_patterns(&moved)));
    }

    #[test]
    fn moving_ranks_have_no_wait_pattern(
        state in proptest::collection::vec((1u64..4, 1u64..4, 0u8..2, 0u64..9_000), 6),
    ) {
        let samples: Vec<RankSample> = state
            .iter()
            .enumerate()
            .map(|(i, (world, pair, place, silent))| rank(i as u32, *world, *pair, *place, *silent))
            .collect();
        let mut views: Vec<RankView> = samples.iter().enumerate().map(|(i, sample)| view(sample, i as u32 / 2)).collect();
        views.iter_mut().for_each(|view| view.history = &MOVING);
        prop_assert_eq!(waits::find_wait_patterns(&views), vec![]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn watch_2_host_clocks_change_no_verdict(
        late in 0u32..4,
        skews in proptest::collection::vec((0u64..1 << 40, -1e9f64..1e9), 2),
        state in proptest::sample::select(vec!['S', 'T', 'R', 'D']),
    ) {
        let snapshot = |skews: &[(u64, f64)]| {
            let mut c = Cluster::launch(2);
            for (agent, (mono, wall)) in c.agents.iter_mut().zip(skews) {
                (agent.skew_ms, agent.wall_skew_s) = (*mono, *wall);
            }
            c.all_ready();
            c.pass(8_000);
            c.hang(late, |sample| sample.state = state);
            c.pass(12_000);
            c.release();
            c.pass(2_000);
            verdict_keys(&c)
        };
        prop_assert_eq!(snapshot(&skews), snapshot(&[(0, 0.0), (0, 0.0)]));
    }

    #[test]
    fn stuck_rank_is_named_on_any_host(late in 0u32..6, wait in 6_000u64..12_000) {
        let mut c = Cluster::launch(3);
        c.all_ready();
        c.pass(8_000);
        c.hang(late, |_| {});
        c.pass(wait / 250 * 250);
        let reported = verdicts(&c);
        prop_assert_eq!(reported.len(), 1);
        prop_assert_eq!(reported[0].rank, Some(Rank(late)));
    }

    #[test]
    fn short_pauses_are_never_critical(pauses in proptest::collection::vec((0u32..4, 1u64..14), 1..12)) {
        let mut c = Cluster::launch(2);
        c.all_ready();
        c.pass(8_000);
        for (late, quarters) in pauses {
            c.hang(late, |_| {});
            c.pass(quarters * 250);
            c.release();
            c.pass(1_500);
        }
        prop_assert_eq!(reds(&c), vec![]);
    }
}
