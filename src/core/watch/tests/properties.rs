//! What holds for all runs: no red without a stall, the same rank whatever the order of hosts, the same
//! verdicts whatever the clocks.

use super::lab::*;
use crate::testkit::*;
use crate::watch::pace::Threshold;
use crate::watch::rank_view;
use crate::watch::rank_view::{EarlierStorage, HostView, RankView};
use crate::watch::track::Track;
use crate::watch::waits;
use crate::watch::waits::Finding;
use proptest::prelude::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::{NodeRank, Rank};
use std::cell::OnceCell;
use std::collections::BTreeSet;
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

static NOBODY: BTreeSet<u32> = BTreeSet::new();
static STILL: LazyLock<Track> = LazyLock::new(Track::default);

fn view(sample: &RankSample, node: u32) -> RankView<'_> {
    RankView {
        rank: sample.rank,
        node: NodeRank(node),
        sample,
        fresh: true,
        left: false,
        died: false,
        still_ms: 9_000,
        halted_ms: None,
        blocked_ms: None,
        idle_ms: None,
        longest_pause_ms: 0,
        ended_before: &NOBODY,
        usual_helpers: 0.0,
        usual_io: 0.0,
        track: &STILL,
        movement: OnceCell::new(),
        threshold: Threshold { suspect: 1_000, stuck: 5_000 },
        groups: rank_view::groups(sample),
        host: HostView::default(),
        gpu: None,
        gpu_is_shared: false,
        look: None,
        look_age_ms: 0,
        function_before: None,
        storage_before: EarlierStorage::Unknown,
        latest: None,
        sockets_before: &[],
    }
}

/// Whom findings blame, without what depends on the order of ranks by right.
fn blamed(findings: &[Finding]) -> Vec<String> {
    let mut all: Vec<String> = findings
        .iter()
        .map(|finding| match finding {
            Finding::Behind { rank, also, group, seq, .. } => {
                let mut also = also.clone();
                also.sort();
                format!("behind {rank} {also:?} {group} {seq}")
            }
            Finding::Disagree { what, .. } => format!("disagree {:?} {} {}", what.rank, what.group, what.seq),
            Finding::Ring { ring, .. } => {
                let mut ring = ring.clone();
                ring.sort();
                format!("ring {ring:?}")
            }
            Finding::Inside { group, seq, .. } => format!("inside {group} {seq}"),
        })
        .collect();
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn waits_2_the_order_of_hosts_changes_no_finding(
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
        prop_assert_eq!(blamed(&waits::look(&views)), blamed(&waits::look(&moved)));
    }

    #[test]
    fn nothing_is_found_while_anybody_moves(
        state in proptest::collection::vec((1u64..4, 1u64..4, 0u8..2, 0u64..9_000), 6),
    ) {
        let samples: Vec<RankSample> = state
            .iter()
            .enumerate()
            .map(|(i, (world, pair, place, silent))| rank(i as u32, *world, *pair, *place, *silent))
            .collect();
        let mut views: Vec<RankView> = samples.iter().enumerate().map(|(i, sample)| view(sample, i as u32 / 2)).collect();
        views.iter_mut().for_each(|view| view.still_ms = 500);
        prop_assert_eq!(waits::look(&views), vec![]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn watch_2_clocks_of_hosts_change_nothing(
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
    fn whoever_stands_still_is_named_on_whatever_host(late in 0u32..6, wait in 6_000u64..12_000) {
        let mut c = Cluster::launch(3);
        c.all_ready();
        c.pass(8_000);
        c.hang(late, |_| {});
        c.pass(wait / 250 * 250);
        let told = verdicts(&c);
        prop_assert_eq!(told.len(), 1);
        prop_assert_eq!(told[0].rank, Some(Rank(late)));
    }

    #[test]
    fn no_red_without_a_stall(pauses in proptest::collection::vec((0u32..4, 1u64..14), 1..12)) {
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
