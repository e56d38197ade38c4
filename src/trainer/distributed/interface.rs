//! Network interfaces and addresses of this host.
//!
//! Owner: the process group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;

/// The address from which this host reaches the master. Other hosts can reach it, unlike some addresses that
/// the host's own name resolves to.
pub(super) fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    let target: SocketAddr = (host, port).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it looks up the route.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// The IPv4 address of a network interface.
pub(super) fn address_of(interface: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: `request` is plain data for which zeros are valid; the kernel reads the name in it, which ends
    // in NUL, and writes an address of the family AF_INET into it, which is then read as what it is.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if interface.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFADDR, &mut request) != 0 {
            return None;
        }
        let address: *const libc::sockaddr_in = (&raw const request.ifr_ifru.ifru_addr).cast();
        Some(Ipv4Addr::from(address.read_unaligned().sin_addr.s_addr.to_ne_bytes()).into())
    }
}

/// Whether this host has a network interface of that name.
pub(super) fn exists(name: &str) -> bool {
    !name.contains('/') && std::path::Path::new("/sys/class/net").join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_its_address() {
        assert_eq!(address_of("lo"), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_of("no-such-one0"), None);
        assert_eq!(address_of("a-name-that-is-too-long-for-an-interface"), None);
    }

    #[test]
    fn the_loopback_is_reached_from_the_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_towards("no such host.invalid", 9), None);
    }
}
