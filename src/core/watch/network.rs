//! The network between hosts: interfaces that are down, and messages that are not acknowledged. Pure.
//!
//! Looked at when all ranks are inside the same collective, or one in a collective that the others have left
//! already, so that the program's order is not to blame: connections whose retransmission timer has doubled
//! at least twice while data is unacknowledged, or does not even leave, are bad; the host common to all bad
//! pairs is named, or the pair. A loss in one direction leaves data of both ends unacknowledged, since
//! acknowledgements travel the other way; but what is sent again the good way arrives, and from one look to
//! the next the other end counts it.

use super::evidence::Trouble;
use super::gauges::unanswered;
use super::rank_view::RankView;
use crate::model::Model;
use crate::reason::Reason;
use crate::report::Confidence;
use rankdeck_proto::inspection::Socket;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;
use std::collections::{BTreeMap, BTreeSet};

/// Doublings of the retransmission timer from which a connection is bad.
const BACKOFF: u32 = 2;
/// Pairs named one by one.
const NAMED: usize = 4;

/// The address without the port.
fn address(end: &str) -> &str {
    end.rsplit_once(':').map_or(end, |(address, _)| address.trim_matches(['[', ']']))
}

/// Data of the connection is not answered for long. What this host drops itself, by a rule of its firewall or
/// an interface's queue, counts as not sent. Where all is acknowledged and the other end has no room, that
/// one does not read.
fn is_stuck(socket: &Socket) -> bool {
    socket.backoff >= BACKOFF && (socket.unacked > 0 || socket.unsent > 0)
}

/// Bad connections among members of a group that all wait inside of a collective.
pub(super) fn sockets(
    model: &Model,
    views: &[RankView<'_>],
    members: &[Rank],
    since_ms: u64,
) -> Option<Trouble> {
    let inside: Vec<&RankView> = views.iter().filter(|view| members.contains(&view.rank)).collect();
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
                        "rank {} to {}: {}, {} doublings of the timer, nothing received for {}",
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
    // (from, to) of the direction that is lost, when the other one works.
    let mut good = arrives.iter();
    let one_way = match (pairs.len(), good.next(), good.next()) {
        (1, Some((sender, receiver)), None) => Some((*receiver, *sender)),
        _ => None,
    };
    let mut host = None;
    let words = match (&common[..], one_way) {
        (_, Some((from, to))) => {
            facts.push(format!("what {} sends arrives at {}", name(to), name(from)));
            vec![("from", name(from)), ("to", name(to))]
        }
        ([one], None) if pairs.len() > 1 => {
            host = Some(name(*one));
            vec![("where", format!("of {}", name(*one)))]
        }
        _ if pairs.len() == 1 => vec![("where", format!("between {} and {}", name(from), name(to)))],
        _ => {
            let list: Vec<String> = ends.iter().take(NAMED).map(|node| name(*node)).collect();
            vec![("where", format!("between {}", list.join(", ")))]
        }
    };
    Some(Trouble {
        host,
        reason: if one_way.is_some() { Reason::OneWayLoss } else { Reason::NetworkLoss },
        confidence: Confidence::Likely,
        words,
        facts,
        since_ms,
        waiter: members.first().copied(),
    })
}

/// Hosts of these ranks between which messages are lost now and then, as far as looks and interfaces tell:
/// the names of two of them, or of one and what its interface did.
pub(super) fn doubtful(model: &Model, views: &[RankView<'_>], members: &[Rank]) -> Option<String> {
    let inside: Vec<&RankView> = views.iter().filter(|view| members.contains(&view.rank)).collect();
    let hosts: BTreeSet<NodeRank> = inside.iter().map(|view| view.node).collect();
    if hosts.len() < 2 {
        return None;
    }
    let name =
        |node: NodeRank| model.hosts.get(node.index()).map(|host| host.name.clone()).unwrap_or_default();
    if let Some(view) = inside.iter().find(|view| view.host.flaps) {
        return Some(format!("of {}, whose interface comes and goes,", name(view.node)));
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

/// Directions between hosts in which segments still arrive at an end that is not answered: more of them than
/// at an earlier look.
fn arrivals(inside: &[&RankView<'_>]) -> BTreeSet<(NodeRank, NodeRank)> {
    let mut found = BTreeSet::new();
    for view in inside {
        for stuck in view.sockets().iter().filter(|socket| is_stuck(socket)) {
            let is_twin = |twin: &&Socket| twin.local == stuck.peer && twin.peer == stuck.local;
            for other in inside.iter().filter(|other| other.node != view.node) {
                let (now, before) =
                    (other.sockets().iter().find(is_twin), other.sockets_before.iter().find(is_twin));
                if now.zip(before).is_some_and(|(now, before)| now.segments_in > before.segments_in) {
                    found.insert((view.node, other.node));
                }
            }
        }
    }
    found
}

/// An interface of the group that is down.
pub(super) fn link(model: &Model, node: NodeRank, interface: &str, since_ms: u64) -> Trouble {
    let host = model.hosts.get(node.index()).map(|host| host.name.clone()).unwrap_or_default();
    Trouble {
        words: vec![("interface", interface.to_string()), ("host", host.clone())],
        facts: vec![format!("{interface} has been seen down for {}", words::duration_ms(since_ms))],
        host: Some(host),
        reason: Reason::LinkDown,
        confidence: Confidence::Certain,
        since_ms,
        waiter: None,
    }
}
