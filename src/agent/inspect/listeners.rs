//! TCP sockets that listen, which the list of connections leaves out.
//!
//! Owner: nobody keeps state. Source: `/proc/PID/net/tcp`, of the network namespace of the process.

use crate::proc;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// All of them, with their inodes.
pub(super) fn all(pid: u32) -> Vec<(u64, SocketAddr)> {
    let tables = ["tcp", "tcp6"].iter().filter_map(|table| proc::text(format!("/proc/{pid}/net/{table}")));
    tables.flat_map(|text| text.lines().skip(1).filter_map(listening).collect::<Vec<_>>()).collect()
}

/// Where a socket listens, in words.
pub(super) fn place(pid: u32, inode: u64) -> Option<String> {
    let (_, at) = all(pid).into_iter().find(|(own, _)| *own == inode)?;
    Some(if at.ip().is_unspecified() { format!("port {}", at.port()) } else { at.to_string() })
}

fn listening(line: &str) -> Option<(u64, SocketAddr)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    (*state == "0A").then_some(())?;
    Some((inode.parse().ok()?, hex_address(local)?))
}

/// `0100007F:0035`, as the kernel writes addresses: words in the machine's order.
pub(super) fn hex_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    if address.len() == 8 {
        return Some(SocketAddr::from((Ipv4Addr::from(word(0)?), port)));
    }
    let mut bytes = [0; 16];
    for at in 0..4 {
        bytes.get_mut(at * 4..at * 4 + 4)?.copy_from_slice(&word(at)?);
    }
    Some(SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        assert_eq!(hex_address("0100007F:0035").unwrap().to_string(), "127.0.0.1:53");
        assert_eq!(hex_address("00000000000000000000000001000000:0016").unwrap().to_string(), "[::1]:22");
        assert_eq!(
            (hex_address("01:35"), hex_address("x"), hex_address("zz00007F:0035")),
            (None, None, None)
        );
    }

    #[test]
    fn a_listener_is_told_by_its_port() {
        for (bound, words) in [("127.0.0.1:0", "127.0.0.1:"), ("0.0.0.0:0", "port ")] {
            let listener = TcpListener::bind(bound).unwrap();
            let inode = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino();
            let port = listener.local_addr().unwrap().port();
            assert_eq!(place(std::process::id(), inode), Some(format!("{words}{port}")));
        }
    }
}
