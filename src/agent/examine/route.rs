//! Names, the way from this host to rank 0's store, and the interface for Gloo and NCCL.
//!
//! Invariants:
//! - ROUTE-1: where another machine takes part, no loopback interface is the way, whatever names mean here:
//!   Debian's own /etc/hosts has `127.0.1.1 NAME` for the host's name.

use super::machine::interfaces;
use crate::proc;
use rankdeck_proto::examination::{HostQuestion, Interface, ResolvedNames, Route};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// What the host's own name means.
pub(super) fn names() -> ResolvedNames {
    ResolvedNames { own: resolve(&proc::hostname()).unwrap_or_default() }
}

/// The addresses of a name.
fn resolve(name: &str) -> Result<Vec<IpAddr>, String> {
    let mut found: Vec<IpAddr> = (name, 0u16)
        .to_socket_addrs()
        .map_err(|error| {
            let text = error.to_string();
            text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
        })?
        .map(|address| address.ip())
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The way to `master`; where that is this host itself, the interface that has its address, or the way to the
/// first other host.
pub(super) fn route(master: &str, question: &HostQuestion) -> Route {
    Network { interfaces: interfaces(), source: &source, resolve: &resolve }.route(master, question)
}

/// What this host's network answers.
struct Network<'a> {
    interfaces: Vec<Interface>,
    /// The address that packets to another one would carry.
    source: &'a dyn Fn(IpAddr) -> Option<IpAddr>,
    resolve: &'a dyn Fn(&str) -> Result<Vec<IpAddr>, String>,
}

impl Network<'_> {
    fn route(&self, master: &str, question: &HostQuestion) -> Route {
        let (addresses, unresolved) = match (self.resolve)(master) {
            Ok(addresses) => (addresses, None),
            // The interface is found by another address of rank 0's host.
            Err(error) => (Vec::new(), Some(error)),
        };
        let known = question.peers.iter().filter(|peer| peer.node == 0).flat_map(|peer| peer.others.clone());
        let known: Vec<IpAddr> = known.filter(|_| unresolved.is_some()).collect();
        let peers = || question.peers.iter().filter_map(|peer| (self.resolve)(&peer.address).ok()).flatten();
        // A host that is called but cannot call back has no address that reaches the callers.
        let one_sided = question.peers.is_empty() && question.expect > 0;
        let apart = one_sided || peers().any(|ip| !ip.is_loopback());
        let usable = |ip: &IpAddr| !apart || !ip.is_loopback();
        let holder = |ip: IpAddr| {
            let held = self.interfaces.iter().find(|interface| interface.addresses.contains(&ip))?;
            (!apart || !is_loopback(held)).then(|| held.name.clone())
        };
        let toward = |ip: IpAddr| (self.source)(ip).and_then(holder);
        let ways = || addresses.iter().chain(&known).copied().filter(usable);
        let others = || peers().filter(usable);
        let interface =
            ways().find_map(holder).or_else(|| ways().find_map(toward)).or_else(|| others().find_map(toward));
        let leads = || ways().chain(others()).any(|ip| (self.source)(ip).is_some());
        let error =
            unresolved.or_else(|| (interface.is_none() && !leads()).then(|| "no route to host".to_owned()));
        Route { addresses, interface, error }
    }
}

fn is_loopback(interface: &Interface) -> bool {
    interface.addresses.iter().any(IpAddr::is_loopback)
}

/// The address that packets to `ip` would carry; nothing is sent.
fn source(ip: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match ip {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((ip, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::examination::Peer;

    #[test]
    fn way_to_ourselves_is_the_loopback_interface() {
        let way = route("127.0.0.1", &HostQuestion::default());
        assert_eq!((way.interface.as_deref(), way.error), (Some("lo"), None));
        assert!(interfaces().iter().any(|interface| interface.name == "lo"));
        let nowhere = route("no-such-host.invalid", &HostQuestion::default());
        assert!(nowhere.error.is_some());
    }

    /// A host at 10.0.0.1 on eth0 and 172.17.0.1 on docker0; `own` is on `lo` as well.
    fn way(names: &[(&str, &str)], own: Option<&str>, master: &str, peers: &[&str], expect: u32) -> Route {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let interface = |name: &str, addresses: &[&str]| Interface {
            name: name.into(),
            addresses: addresses.iter().map(|text| ip(text)).collect(),
        };
        let mut lo = interface("lo", &["127.0.0.1", "::1"]);
        lo.addresses.extend(own.map(ip));
        let interfaces = vec![lo, interface("docker0", &["172.17.0.1"]), interface("eth0", &["10.0.0.1"])];
        let resolve = |name: &str| {
            let found: Vec<IpAddr> =
                names.iter().filter(|(known, _)| *known == name).map(|(_, text)| ip(text)).collect();
            let literal = name.parse::<IpAddr>().ok();
            match (found.is_empty(), literal) {
                (true, None) => Err("no such name".to_owned()),
                (true, Some(literal)) => Ok(vec![literal]),
                _ => Ok(found),
            }
        };
        let source = |to: IpAddr| match to.to_string().as_str() {
            text if text.starts_with("127.") => Some(ip("127.0.0.1")),
            "::1" => Some(to),
            text if text.starts_with("10.") => Some(ip(own.unwrap_or("10.0.0.1"))),
            _ => None,
        };
        let question = HostQuestion {
            peers: peers.iter().map(|name| Peer { address: (*name).into(), ..Peer::default() }).collect(),
            expect,
            ..HostQuestion::default()
        };
        Network { interfaces, source: &source, resolve: &resolve }.route(master, &question)
    }

    #[test]
    fn route_1_loopback_leads_to_no_other_machine() {
        for own in ["127.0.1.1", "127.0.0.1", "::1"] {
            let names = [("node0", own), ("node1", "10.0.0.2")];
            let found = way(&names, None, "node0", &["node1"], 1);
            assert_eq!((found.interface.as_deref(), found.error), (Some("eth0"), None), "{own}");
        }
        let both = [("node0", "127.0.1.1"), ("node0", "10.0.0.1"), ("node1", "10.0.0.2")];
        assert_eq!(way(&both, None, "node0", &["node1"], 1).interface.as_deref(), Some("eth0"));
        // The first peer is this machine again, the second is another one.
        let mixed = [("node0", "127.0.1.1"), ("self", "127.0.0.1"), ("node2", "10.0.0.3")];
        assert_eq!(way(&mixed, None, "node0", &["self", "node2"], 2).interface.as_deref(), Some("eth0"));
        // Others call this host, and have no address that it could call.
        let called = way(&[("node0", "127.0.1.1")], None, "node0", &[], 1);
        assert_eq!((called.interface, called.error.is_some()), (None, true));
    }

    #[test]
    fn hosts_that_are_one_machine_meet_on_its_loopback() {
        let names = [("a", "127.0.0.1"), ("b", "127.0.0.2")];
        assert_eq!(way(&names, None, "a", &["b"], 1).interface.as_deref(), Some("lo"));
        assert_eq!(way(&[], None, "127.0.0.1", &["127.0.0.1"], 1).interface.as_deref(), Some("lo"));
        assert_eq!(way(&[], None, "localhost.invalid", &[], 0).error.as_deref(), Some("no such name"));
    }

    /// Routers on the host announce an address that `lo` holds.
    #[test]
    fn route_1_loopback_address_has_no_interface() {
        let names = [("node0", "10.9.9.9"), ("node1", "10.0.0.2")];
        let found = way(&names, Some("10.9.9.9"), "node0", &["node1"], 1);
        assert_eq!((found.interface, found.error), (None, None));
    }

    #[test]
    fn way_to_another_host_is_the_interface_of_its_route() {
        let found = way(&[("node0", "10.0.0.7")], None, "node0", &["10.0.0.7"], 1);
        assert_eq!(found.interface.as_deref(), Some("eth0"));
        let lost = way(&[("node0", "192.0.2.1")], None, "node0", &["192.0.2.1"], 1);
        assert_eq!((lost.interface, lost.error.is_some()), (None, true));
    }
}
