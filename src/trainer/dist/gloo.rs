//! Collectives over Gloo, from libtorch itself: CPU tensors over TCP.
//!
//! Owner: the process group.

use super::error::Failure;
use super::ffi::{GlooDevice, GlooHandle};
use super::store::Store;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// The address from which this host reaches the master: what other hosts can reach too, unlike what its own name may resolve to.
pub(super) fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    let target: SocketAddr = (host, port).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing: it only asks the routing table.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// Connects every rank with every other; all ranks must call it.
pub(super) fn open(
    store: &Store,
    rank: u32,
    world_size: u32,
    interface: Option<&str>,
    master: (&str, u16),
    timeout: Duration,
) -> Result<GlooHandle, Failure> {
    let address = address_towards(master.0, master.1).map(|address| address.to_string());
    let device = match (interface, &address) {
        (Some(name), _) => GlooDevice::Interface(name),
        (None, Some(address)) => GlooDevice::Address(address),
        (None, None) => GlooDevice::HostName,
    };
    let place = match &device {
        GlooDevice::Interface(name) => format!("on interface {name}"),
        GlooDevice::Address(address) => format!("at {address}"),
        GlooDevice::HostName => "at the address of this host's name".into(),
    };
    let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1);
    GlooHandle::open(store.handle(), &store.key("gloo"), rank, world_size, &device, timeout_ms).map_err(
        |failure| {
            Failure::new(
                failure.kind,
                format!("gloo {place} cannot connect to the other ranks: {}", failure.text),
            )
        },
    )
}

/// Whether this host has a network interface of that name.
pub(super) fn interface_exists(name: &str) -> bool {
    !name.contains('/') && std::path::Path::new("/sys/class/net").join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_reached_from_the_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_towards("no such host.invalid", 9), None);
    }
}
