//! What is no rank's doing: networks, links, silent hosts, GPUs.

use crate::reason::Reason;
use crate::report::Severity;
use crate::testkit::*;
use crate::watch::tests::lab::*;
use rankdeck_proto::inspection::{Inspection, Socket};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use rankdeck_types::link_state::LinkState;

/// Everybody inside the same collective; host `bad` hears nothing.
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
            let look = Inspection { rank: Rank(rank), sockets: sockets.collect(), ..Inspection::default() };
            c.agents[node].inspections.insert(rank, look);
        }
    }
}

#[test]
fn p10_a_partition_names_the_hosts_and_no_rank() {
    let mut c = trained(3);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1"), (2, "10.0.0.3"), (4, "10.0.0.2")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    assert_eq!(verdict.host.as_deref(), Some("bee"), "common to all bad pairs: {}", verdict.reason);

    let mut c = trained(2);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    assert!(verdict.reason.contains("between ant and bee"), "{}", verdict.reason);
}

#[test]
fn p10_who_did_not_get_the_last_message_of_a_collective_is_not_to_blame() {
    // Rank 2 is still inside #99, which the others have left.
    for lost in [true, false] {
        let mut c = trained(2);
        partition(&mut c, if lost { &[(0, "10.0.0.2"), (2, "10.0.0.1")] } else { &[] });
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
fn p11_a_link_that_is_down_and_a_loss_in_one_direction() {
    let mut c = trained(2);
    stand(&mut c, 100);
    c.agents[1].signals.link = Some(LinkSample { name: "eth1".into(), up: false, ..LinkSample::default() });
    let verdict = alarm(&mut c, 2_500);
    expect(&verdict, None, Reason::LinkDown);
    assert_eq!(verdict.host.as_deref(), Some("bee"));

    // Unacknowledged data alone does not tell the direction; that it arrives again and again does:
    // acknowledgements from bee to ant are lost. A look between two waits tells of connections, too.
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
            let look = c.agents[1].inspections.get_mut(&2).unwrap();
            (look.sockets[0].segments_in, look.os.state) = (3, state);
        }
        c.pass(8_000);
        let told = verdicts(&c).last().cloned().expect("a verdict");
        expect(&told, None, if arrives { Reason::OneWayLoss } else { Reason::NetworkLoss });
        assert_eq!(told.reason.contains("from bee to ant are lost"), arrives, "{}", told.reason);
    }
}

#[test]
fn p26_p27_a_host_that_says_nothing_and_a_link_that_only_the_console_has_lost() {
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
    let told = verdicts(&c).first().cloned().expect("a verdict");
    expect(&told, None, Reason::LinkLost);
    assert_eq!((told.severity, reds(&c)), (Severity::Amber, vec![]), "the run is well: no rank is blamed");
}

/// Of a link that is not there, the verdict says what is known, and no more: one that was given up because
/// nothing came over it is not broken, and one that an agent refuses may be no network's doing.
#[test]
fn a_host_without_a_link_is_told_with_the_reason_of_its_loss() {
    let silent = format!("{} for 5 s", LinkState::SILENT);
    let stopped = "bee: the agent of this run, process 77, is stopped";
    for (reason, told) in [
        (silent.as_str(), "nothing came over its link; another one is being made"),
        ("broken pipe", ": broken pipe; another link is being made"),
        (stopped, ": the agent of this run, process 77, is stopped; another link is being made"),
    ] {
        let mut c = trained(2);
        c.hang(9, |_| {});
        c.agents[1].connected = false;
        c.pass(2_000);
        c.link(1, LinkState::Lost { reason: reason.into(), retry_ms: 500 });
        c.pass(500);
        c.link(1, LinkState::Connecting { attempt: 1 });
        let verdict = alarm(&mut c, 6_000);
        expect(&verdict, None, Reason::HostSilent);
        assert!(verdict.reason.ends_with(told), "{}", verdict.reason);
    }
}

#[test]
fn p32_a_gpu_that_reports_an_error_or_is_lost() {
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
        assert_eq!(c.verdicts(), [], "an old error is no news");
        c.agents[0].gpus = vec![broken];
        let verdict = alarm(&mut c, 1_000);
        expect(&verdict, Some(0), reason);
    }
}
