//! The port where ranks meet, when the experiment names none: found free, and kept from others until rank 0
//! listens on it.
//!
//! Owner: the agent of the first host, which holds one at a time. A Python rank takes seconds from its start
//! to its store, and the port lies where the kernel takes ports for outgoing connections. A socket that is
//! bound and does not listen keeps a port from those (`inet_hash_connect` passes over ports that somebody
//! bound) and from every other `bind` to port 0, while a server that sets `SO_REUSEADDR`, as PyTorch's store
//! and ours do, may bind beside it (`inet_csk_bind_conflict`: both sockets reuse, and the older one does not
//! listen).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// A port that is kept for rank 0; free again when dropped.
#[derive(Debug)]
pub struct Reserved {
    port: u16,
    _bound: TcpSocket,
}

impl Reserved {
    /// Finds one.
    pub fn find() -> io::Result<Reserved> {
        let bound = TcpSocket::new_v4()?;
        bound.set_reuseaddr(true)?;
        bound.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        Ok(Reserved { port: bound.local_addr()?.port(), _bound: bound })
    }

    /// Its number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, TcpListener, TcpStream};

    #[test]
    fn a_server_that_reuses_addresses_gets_it_and_nobody_else_does() {
        let reserved = Reserved::find().unwrap();
        let port = reserved.port();
        let plain = TcpSocket::new_v4().unwrap();
        let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        assert_eq!(plain.bind(any(port)).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // std sets SO_REUSEADDR.
        let server = TcpListener::bind(any(port)).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        drop(server);
        let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        assert!(both.is_ok() || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_err(), "{both:?}");
        drop((both, reserved));
        let plain = TcpSocket::new_v4().unwrap();
        plain.set_reuseaddr(true).unwrap();
        plain.bind(any(port)).unwrap();
    }
}
