//! Networks, links, silent hosts and GPUs: no rank is the culprit.

use super::lab::*;
use crate::reason::Reason;
use crate::report::Severity;
use crate::testkit::*;
use rankdeck_proto::inspection::{Inspection, Obstacle, Socket};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use rankdeck_types::link_state::LinkState;

/// All ranks are inside the same collective; the ends in `bad` receive nothing.
fn partition(c: &mut Cluster, bad: &[(u32, &str)]) {
    stand(c, 100);
    let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    for node in 0..c.agents.len() {
        for rank in [2 * node as u32, 2 * node as u32 + 1] {
            let sockets = addresses.iter().filter(|peer| **peer != addresses[node]).map(|peer| {
                let lossy = bad.iter().any(|(from, to)| *from == rank && to == peer);
                Socket {
                    peer: format!("{peer}:4711"),
                    local: format!("{}:5000", addresses[node]),
                    state: "ESTABLISHED".into(),
                    unacked: u32::from(lossy),
                    backoff: if lossy { 4 } else { 0 },
                    ..Socket::default()
                }
            });
            let inspection =
                Inspection { rank: Rank(rank), sockets: sockets.collect(), ..Inspection::default() };
            c.agents[node].inspections.insert(rank, inspection);
        }
    }
}

#[test]
fn p10_partition_names_hosts_not_ranks() {
    let mut c = trained(3);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1"), (2, "10.0.0.3"), (4, "10.0.0.2")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    assert_eq!(verdict.host.as_deref(), Some("bee"), "common to all bad pairs: {}", verdict.reason);

    let mut c = trained(2);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    insta::assert_snapshot!("partition", verdict.reason);
}

#[test]
fn p10_rank_missing_last_message_is_not_the_culprit() {
    // Rank 2 is still inside #99, which the others have left. That an inspection names the connection that it waits
    // at does not make it a wait for another program.
    for (lost, named) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut c = trained(2);
        partition(&mut c, if lost { &[(0, "10.0.0.2"), (2, "10.0.0.1")] } else { &[] });
        let inspection = c.agents[1].inspections.get_mut(&2).unwrap();
        let peer = "10.0.0.1:4711".to_owned();
        inspection.obstacle = named.then_some(Obstacle::Connection { peer, owner: None });
        let inside = page(&mut c, 2);
        inside.recent.pop();
        (inside.groups[0].entered, inside.groups[0].left) = (99, 98);
        enter(inside, "world", 99);
        let verdict = alarm(&mut c, 8_000);
        match lost {
            true => expect(&verdict, None, Reason::NetworkLoss),
            false => expect(&verdict, Some(2), Reason::InsideEarlier),
        }
    }
}

#[test]
fn p11_link_down_and_one_way_loss_are_named() {
    let mut c = trained(2);
    stand(&mut c, 100);
    c.agents[1].signals.link = Some(LinkSample { name: "eth1".into(), up: false, ..LinkSample::default() });
    let verdict = alarm(&mut c, 2_500);
    expect(&verdict, None, Reason::LinkDown);
    assert_eq!(verdict.host.as_deref(), Some("bee"));

    // Unacknowledged data alone does not show the direction; that it arrives again and again does:
    // acknowledgements from bee to ant are lost. An inspection between two waits shows connections, too.
    for (arrives, state) in [(false, 'S'), (true, 'S'), (true, 'R')] {
        let mut c = trained(2);
        partition(&mut c, &[]);
        let ends = ["10.0.0.1:5000", "10.0.0.2:4711"];
        for (rank, local, peer) in [(0u32, ends[0], ends[1]), (2, ends[1], ends[0])] {
            let (local, peer) = (local.to_string(), peer.to_string());
            let socket = Socket { local, peer, unacked: 1, backoff: 4, ..Socket::default() };
            let node = rank as usize / 2;
            c.agents[node].inspections.get_mut(&rank).unwrap().sockets = vec![socket];
        }
        c.pass(4_000);
        if arrives {
            let inspection = c.agents[1].inspections.get_mut(&2).unwrap();
            (inspection.sockets[0].segments_in, inspection.os.state) = (3, state);
        }
        c.pass(8_000);
        let reported = verdicts(&c).last().cloned().expect("a verdict");
        expect(&reported, None, if arrives { Reason::OneWayLoss } else { Reason::NetworkLoss });
        insta::assert_snapshot!(if arrives { "one_way_loss" } else { "two_way_loss" }, reported.reason);
    }
}

#[test]
fn p26_p27_silent_host_and_link_lost_by_console_only() {
    let mut c = trained(2);
    c.hang(9, |_| {});
    c.lose(1);
    let verdict = alarm(&mut c, 6_000);
    expect(&verdict, None, Reason::HostSilent);
    assert_eq!(verdict.host.as_deref(), Some("bee"));
    let commands: Vec<&str> = verdict.card.actions.iter().map(|action| action.command.as_str()).collect();
    assert!(commands.contains(&"ssh bee"), "advice names the host: {commands:?}");

    let mut c = trained(2);
    c.lose(1);
    c.pass(11_000);
    let reported = verdicts(&c).first().cloned().expect("a verdict");
    expect(&reported, None, Reason::LinkLost);
    assert_eq!(
        (reported.severity, reds(&c)),
        (Severity::Amber, vec![]),
        "the run is well: no rank is blamed"
    );
}

/// The verdict about a lost link has what is known, and no more: one that was given up because
/// nothing came over it is not broken, and one that an agent refuses may be no network's doing.
#[test]
fn lost_link_verdict_has_its_error() {
    let silent = format!("{} for 5 s", LinkState::SILENT);
    let stopped = "bee: the agent of this run, process 77, is stopped";
    let mut sentences = Vec::new();
    for reason in [silent.as_str(), "broken pipe", stopped] {
        let mut c = trained(2);
        c.hang(9, |_| {});
        c.agents[1].connected = false;
        c.pass(2_000);
        c.link(1, LinkState::Lost { reason: reason.into(), retry_ms: 500 });
        c.pass(500);
        c.link(1, LinkState::Connecting { attempt: 1 });
        let verdict = alarm(&mut c, 6_000);
        expect(&verdict, None, Reason::HostSilent);
        sentences.push(verdict.reason);
    }
    insta::assert_snapshot!("lost_links", sentences.join("\n"));
}

#[test]
fn p32_new_gpu_error_or_loss_is_reported() {
    let gpu = |xids: Vec<u64>, lost| GpuSample {
        index: 0,
        name: "H200".into(),
        xids,
        lost,
        ..GpuSample::default()
    };
    for (broken, reason) in
        [(gpu(vec![31, 79], false), Reason::GpuFault), (gpu(vec![31], true), Reason::GpuLost)]
    {
        let mut c = trained(2);
        for agent in &mut c.agents {
            agent.gpus = vec![gpu(vec![31], false)];
        }
        c.with_gpu(0);
        c.pass(2_000);
        assert_eq!(c.verdicts(), [], "an old error is not reported again");
        c.agents[0].gpus = vec![broken];
        let verdict = alarm(&mut c, 1_000);
        expect(&verdict, Some(0), reason);
    }
}
