//! TCP connections between the ranks' hosts: stuck ones, lossy ones, and interfaces that are down.
//!
//! Checked when all ranks are inside the same collective, or one is inside a collective that the others have
//! left, so that the program's order is correct. A connection is stuck if its retransmission timer has
//! doubled at least twice while data is unacknowledged or unsent. The host common to all such pairs is named,
//! or the pair. A loss in one direction leaves data of both ends unacknowledged, since acknowledgements
//! travel the other way; but retransmissions in the working direction arrive, and the other end counts them
//! from one inspection to the next.

use crate::model::Model;
use crate::reason::{Certainty, Proof, Reason};
use crate::watch::history::run_view::{RankView, RunView};
use rankdeck_proto::inspection::Socket;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;
use std::collections::{BTreeMap, BTreeSet};

/// Doublings of the retransmission timer from which a connection is bad.
const BACKOFF: u32 = 2;
/// Pairs named one by one.
const NAMED: usize = 4;

/// Hosts between which TCP traffic is not acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NetworkFault {
    /// The host common to all stuck connections.
    pub host: Option<String>,
    pub reason: Reason,
    pub certainty: Certainty,
    /// Values for the sentence of the reason.
    pub words: Vec<(&'static str, String)>,
    /// The stuck connections, one per entry.
    pub facts: Vec<String>,
    pub since_ms: u64,
    pub waiter: Option<Rank>,
}

/// Returns the address without the port.
fn address(end: &str) -> &str {
    end.rsplit_once(':').map_or(end, |(address, _)| address.trim_matches(['[', ']']))
}

/// Returns what of a connection is unacknowledged, in words.
pub(crate) fn unanswered(socket: &Socket) -> String {
    if socket.unacked == 0 && socket.unsent > 0 {
        format!("{} unsent", words::bytes(u64::from(socket.unsent)))
    } else {
        format!("{} segments unacknowledged", socket.unacked)
    }
}

/// Whether data of the connection is unacknowledged for long. Data that this host drops itself, by a firewall
/// rule or in an interface's queue, counts as unsent. If all is acknowledged and the other end has no room,
/// the receiver does not read.
fn is_stuck(socket: &Socket) -> bool {
    socket.backoff >= BACKOFF && (socket.unacked > 0 || socket.unsent > 0)
}

/// Finds stuck connections among members of a group that all wait inside a collective.
pub(crate) fn stuck_connections(run: &RunView<'_>, members: &[Rank], since_ms: u64) -> Option<NetworkFault> {
    let model = run.model;
    let inside: Vec<&RankView> = run.views.iter().filter(|view| members.contains(&view.rank)).collect();
    let mut hosts: BTreeMap<&str, NodeRank> = BTreeMap::new();
    for view in &inside {
        for socket in view.sockets() {
            hosts.insert(address(&socket.local), view.node);
        }
    }
    let mut bad: BTreeSet<(NodeRank, NodeRank)> = BTreeSet::new();
    let mut facts = Vec::new();
    for view in &inside {
        for socket in view.sockets() {
            let Some(peer) = hosts.get(address(&socket.peer)).copied().filter(|peer| *peer != view.node)
            else {
                continue;
            };
            if is_stuck(socket) {
                bad.insert((view.node, peer));
                if facts.len() < NAMED {
                    facts.push(format!(
                        "rank {} to {}: {}, retransmission timer doubled {} times, nothing received for {}",
                        view.rank,
                        socket.peer,
                        unanswered(socket),
                        socket.backoff,
                        words::duration_ms(u64::from(socket.last_received_ms))
                    ));
                }
            }
        }
    }
    let (from, to) = bad.first().copied()?;
    let arrives = arrivals(&inside);
    let name =
        |node: NodeRank| model.hosts.get(node.index()).map(|host| host.name.clone()).unwrap_or_default();
    let ends: BTreeSet<NodeRank> = bad.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let common: Vec<NodeRank> =
        ends.iter().copied().filter(|node| bad.iter().all(|(a, b)| a == node || b == node)).collect();
    let pairs: BTreeSet<(NodeRank, NodeRank)> = bad.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
    // (from, to) of the lost direction, if the other one works.
    let mut good = arrives.iter();
    let one_way = match (pairs.len(), good.next(), good.next()) {
        (1, Some((sender, receiver)), None) => Some((*receiver, *sender)),
        _ => None,
    };
    let mut host = None;
    let words = match (&common[..], one_way) {
        (_, Some((from, to))) => {
            facts.push(format!("packets from {} reach {}", name(to), name(from)));
            vec![("from", name(from)), ("to", name(to))]
        }
        ([one], None) if pairs.len() > 1 => {
            host = Some(name(*one));
            vec![("where", format!("to and from {}", name(*one)))]
        }
        _ if pairs.len() == 1 => vec![("where", format!("between {} and {}", name(from), name(to)))],
        _ => {
            let list: Vec<String> = ends.iter().take(NAMED).map(|node| name(*node)).collect();
            vec![("where", format!("between {}", list.join(", ")))]
        }
    };
    Some(NetworkFault {
        host,
        reason: if one_way.is_some() { Reason::OneWayLoss } else { Reason::NetworkLoss },
        certainty: Certainty::Likely,
        words,
        facts,
        since_ms,
        waiter: members.first().copied(),
    })
}

/// Finds hosts of these ranks between which segments are retransmitted, by inspections and interfaces:
/// `between A and B`, or one whose interface is flapping.
pub(crate) fn lossy_place(run: &RunView<'_>, members: &[Rank]) -> Option<String> {
    let model = run.model;
    let inside: Vec<&RankView> = run.views.iter().filter(|view| members.contains(&view.rank)).collect();
    let hosts: BTreeSet<NodeRank> = inside.iter().map(|view| view.node).collect();
    if hosts.len() < 2 {
        return None;
    }
    let name =
        |node: NodeRank| model.hosts.get(node.index()).map(|host| host.name.clone()).unwrap_or_default();
    if let Some(view) = inside.iter().find(|view| view.host.flaps) {
        return Some(format!("of {}, whose interface is flapping,", name(view.node)));
    }
    let place = |address: &str| {
        let owns =
            |view: &&&RankView| view.sockets().iter().any(|socket| self::address(&socket.local) == address);
        inside.iter().find(owns).map(|view| view.node)
    };
    inside.iter().find_map(|view| {
        let lossy = |socket: &&Socket| socket.backoff > 0 || socket.retransmits > 0;
        let mut peers = view.sockets().iter().filter(lossy);
        let peer = peers.find_map(|socket| place(address(&socket.peer)).filter(|node| *node != view.node))?;
        Some(format!("between {} and {}", name(view.node), name(peer)))
    })
}

/// Directions between hosts in which segments still arrive at an end whose own data is unacknowledged: more
/// of them than at an earlier inspection.
fn arrivals(inside: &[&RankView<'_>]) -> BTreeSet<(NodeRank, NodeRank)> {
    let mut found = BTreeSet::new();
    for view in inside {
        for stuck in view.sockets().iter().filter(|socket| is_stuck(socket)) {
            let is_twin = |twin: &&Socket| twin.local == stuck.peer && twin.peer == stuck.local;
            for other in inside.iter().filter(|other| other.node != view.node) {
                let (now, before) =
                    (other.sockets().iter().find(is_twin), other.sockets_before().iter().find(is_twin));
                if now.zip(before).is_some_and(|(now, before)| now.segments_in > before.segments_in) {
                    found.insert((view.node, other.node));
                }
            }
        }
    }
    found
}

/// An interface that is down.
pub(crate) fn link_down(model: &Model, node: NodeRank, interface: &str, since_ms: u64) -> NetworkFault {
    let host = model.hosts.get(node.index()).map(|host| host.name.clone()).unwrap_or_default();
    NetworkFault {
        words: vec![("interface", interface.to_string()), ("host", host.clone())],
        facts: vec![format!("{interface} has been down for {}", words::duration_ms(since_ms))],
        host: Some(host),
        reason: Reason::LinkDown,
        certainty: Certainty::Proved(Proof::Lost),
        since_ms,
        waiter: None,
    }
}
