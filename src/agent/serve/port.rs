//! The port where ranks meet, when the experiment names none: found free, and kept from others until rank 0
//! listens on it.
//!
//! Owner: the agent of the first host, which holds one at a time. A Python rank takes seconds from its start
//! to its store, and the port lies where the kernel takes ports for outgoing connections. A socket that is
//! bound and does not listen keeps a port from those (`inet_hash_connect` skips ports that are
//! bound) and from every `bind` without `SO_REUSEADDR`, while a server that sets `SO_REUSEADDR`, as PyTorch's
//! store and ours do, may bind next to it (`inet_csk_bind_conflict`: both sockets reuse, and the older one
//! does not listen). So may any other user's, and nothing prevents that: a socket that listens
//! would keep rank 0 out as well, and programs of the user take no descriptor. The agent can only name the
//! other user; a restart takes another port.

use crate::proc;
use rankdeck_proto::trust::own_uid;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// Returns the other user that listens on a TCP port of this host. The kernel lets
/// any user bind next to a socket that does not listen; then rank 0 cannot, and its own error does not name
/// the other one.
pub(crate) fn stranger_on(port: u16) -> Option<u32> {
    let own = own_uid();
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|file| listener(&proc::text(file)?, port, own))
}

/// From a table of sockets (`man 5 proc`): the owner of the first that listens on `port` and is not `own`.
fn listener(table: &str, port: u16, own: u32) -> Option<u32> {
    const LISTENS: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (_, hex) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        let uid = fields.nth(3)?.parse().ok()?;
        (state == LISTENS && u16::from_str_radix(hex, 16) == Ok(port) && uid != own).then_some(uid)
    })
}

/// A port that is kept for rank 0; free again when dropped.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _bound: TcpSocket,
}

impl ReservedPort {
    pub fn find() -> io::Result<ReservedPort> {
        let bound = TcpSocket::new_v4()?;
        bound.set_reuseaddr(true)?;
        bound.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        Ok(ReservedPort { port: bound.local_addr()?.port(), _bound: bound })
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
    fn another_user_on_a_kept_port_is_named() {
        let reserved = ReservedPort::find().unwrap();
        assert_eq!(stranger_on(reserved.port()), None);
        if own_uid() != 0 {
            rankdeck_testkit::skip!("only root can become another user");
        }
        let program = "import os, socket, sys; os.setgid(61003); os.setuid(61003); s = socket.socket(); \
                       s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('', int(sys.argv[1]))); \
                       s.listen(); print(flush=True); sys.stdin.read()";
        let mut other = std::process::Command::new("python3")
            .args(["-c", program, &reserved.port().to_string()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut byte).unwrap();
        assert_eq!(stranger_on(reserved.port()), Some(61_003));
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(stranger_on(reserved.port()), None);
    }

    #[test]
    fn launches_at_one_moment_get_ports_of_their_own() {
        let find = || (0..200).map(|_| ReservedPort::find().unwrap()).collect::<Vec<_>>();
        let held: Vec<Vec<ReservedPort>> = std::thread::scope(|scope| {
            let agents: Vec<_> = (0..4).map(|_| scope.spawn(find)).collect();
            agents.into_iter().map(|agent| agent.join().unwrap()).collect()
        });
        let mut ports: Vec<u16> = held.iter().flatten().map(ReservedPort::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 800);
    }

    #[test]
    fn reserved_port_goes_only_to_a_server_that_reuses_addresses() {
        let reserved = ReservedPort::find().unwrap();
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
