//! TCP connections with the kernel's view of them, and the other ends of unix sockets: a reader of the
//! kernel's socket diagnostics.
//!
//! Each query opens and closes a netlink socket. Source: `linux/inet_diag.h`,
//! `linux/unix_diag.h`, `linux/tcp.h` (struct tcp_info; fields are only ever appended, so offsets hold on
//! every kernel). Reads are bounded in time and bytes, and nothing is trusted about lengths.

use crate::proc;
use rankdeck_proto::inspection::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
/// Names, other ends and those that wait to be accepted.
const UDIAG_SHOW: u32 = 1 | 4 | 8;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_ICONS: u16 = 3;
/// State of a socket that listens.
const LISTENS: u8 = 10;
/// Everything but LISTEN (10) and TIME_WAIT (6).
const LIVE_STATES: u32 = !((1 << 10) | (1 << 6));
/// Most bytes of one answer.
const ANSWER_BYTES: usize = 16 << 20;

/// A TCP connection and the inode that descriptors name it by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tcp {
    /// Inode of the socket.
    pub inode: u64,
    /// Bytes that came in and bytes that the other end has acknowledged, since it began.
    pub carried: u64,
    /// Its state in an inspection.
    pub socket: Socket,
}

/// All live TCP connections of this network namespace.
pub(crate) fn tcp() -> io::Result<Vec<Tcp>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // struct inet_diag_req_v2: family, protocol, extensions, pad, states, then an id of 48 bytes that a
        // dump ignores.
        let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 1 << (INET_DIAG_INFO - 1), 0];
        request.extend(LIVE_STATES.to_ne_bytes());
        request.extend([0; 48]);
        dump(&request, |message| found.extend(parse_tcp(message)))?;
    }
    Ok(found)
}

/// A unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Unix {
    /// Inode of the socket.
    pub inode: u64,
    /// Inode of its other end; 0 until it is accepted.
    pub peer: Option<u64>,
    /// Its path, `@NAME` where it has a name and no file. What a listener accepts has the listener's.
    pub path: Option<String>,
    pub listens: bool,
    /// Inodes of pending connections.
    pub waiting: Vec<u64>,
}

/// All unix sockets of this network namespace.
pub(crate) fn unix() -> io::Result<Vec<Unix>> {
    // struct unix_diag_req: family, protocol, pad, states, inode, show, cookie.
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend(UDIAG_SHOW.to_ne_bytes());
    request.extend([0; 8]);
    let mut found = Vec::new();
    dump(&request, |message| found.extend(parse_unix(message)))?;
    Ok(found)
}

fn parse_unix(message: &[u8]) -> Option<Unix> {
    // struct unix_diag_msg: family, type, state, pad, inode, cookie.
    let (state, inode, attributes) = (*message.get(2)?, u32_at(message, 4)?, message.get(16..)?);
    let path = attribute(attributes, UNIX_DIAG_NAME).and_then(|name| {
        let (mark, name) = if name.first() == Some(&0) { ("@", &name[1..]) } else { ("", name) };
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        (end > 0).then(|| format!("{mark}{}", String::from_utf8_lossy(&name[..end])))
    });
    let peer = attribute(attributes, UNIX_DIAG_PEER).and_then(|value| u32_at(value, 0)).map(u64::from);
    let waiting = attribute(attributes, UNIX_DIAG_ICONS).unwrap_or_default();
    let waiting = waiting.chunks_exact(4).filter_map(|one| u32_at(one, 0)).map(u64::from).collect();
    Some(Unix { inode: u64::from(inode), peer, path, listens: state == LISTENS, waiting })
}

fn dump(request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    // SAFETY: socket takes integers.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let patience = libc::timeval { tv_sec: 0, tv_usec: 500_000 };
    // SAFETY: the option takes a timeval of this size.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            std::ptr::from_ref(&patience).cast(),
            size_of::<libc::timeval>() as u32,
        );
    }
    let mut message = Vec::new();
    message.extend((16 + request.len() as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16 | libc::NLM_F_DUMP as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(request);
    // SAFETY: the buffer is valid for its length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0u8; 256 << 10];
    let mut seen = 0;
    while seen < ANSWER_BYTES {
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        seen += got as usize;
        if walk(&buffer[..got as usize], &mut each)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Goes through the messages of one datagram; `true` after the last of all.
fn walk(mut rest: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let length = length as usize;
        let Some(body) = rest.get(16..length) else { break };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = u32_at(body, 0).unwrap_or(0) as i32;
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            _ => each(body),
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn parse_tcp(message: &[u8]) -> Option<Tcp> {
    // struct inet_diag_msg: family, state, timer, retrans, id {sport, dport, src[16], dst[16], if,
    // cookie[8]}, expires, rqueue, wqueue, uid, inode.
    let family = i32::from(*message.first()?);
    let state = *message.get(1)?;
    let port = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
        Some(if family == libc::AF_INET {
            IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
        } else {
            Ipv6Addr::from(bytes).to_canonical()
        })
    };
    let local = SocketAddr::new(address(8)?, port(4)?);
    let peer = SocketAddr::new(address(24)?, port(6)?);
    let info = attribute(message.get(72..)?, INET_DIAG_INFO).unwrap_or_default();
    let field = |at: usize| u32_at(info, at).unwrap_or(0);
    let wide = |at: usize| {
        info.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    };
    let byte = |at: usize| u32::from(info.get(at).copied().unwrap_or(0));
    // A whole segment would fit into the window of the other end. Kernels before 5.5 do not report the window.
    let has_room = field(228) >= field(16).max(1);
    Some(Tcp {
        inode: u64::from(u32_at(message, 68)?),
        carried: wide(120).saturating_add(wide(128)),
        socket: Socket {
            peer: peer.to_string(),
            local: local.to_string(),
            state: state_name(state).to_owned(),
            unacked: field(24),
            send_queue: u32_at(message, 60)?,
            receive_queue: u32_at(message, 56)?,
            last_received_ms: field(52),
            last_sent_ms: field(44),
            retransmits: byte(2),
            backoff: byte(4),
            segments_in: field(140),
            unsent: if has_room { field(144) } else { 0 },
        },
    })
}

fn state_name(state: u8) -> &'static str {
    match state {
        1 => "ESTABLISHED",
        2 => "SYN_SENT",
        3 => "SYN_RECV",
        4 => "FIN_WAIT1",
        5 => "FIN_WAIT2",
        7 => "CLOSE",
        8 => "CLOSE_WAIT",
        9 => "LAST_ACK",
        11 => "CLOSING",
        _ => "UNKNOWN",
    }
}

fn attribute(mut rest: &[u8], expected: u16) -> Option<&[u8]> {
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        if length < 4 {
            return None;
        }
        if kind == expected {
            return rest.get(4..length);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// All of them, with their inodes.
pub(super) fn listening(pid: u32) -> Vec<(u64, SocketAddr)> {
    let tables = ["tcp", "tcp6"].iter().filter_map(|table| proc::text(format!("/proc/{pid}/net/{table}")));
    tables.flat_map(|text| text.lines().skip(1).filter_map(parse_listener).collect::<Vec<_>>()).collect()
}

/// Where a socket listens, in words.
pub(super) fn listening_at(pid: u32, inode: u64) -> Option<String> {
    let (_, at) = listening(pid).into_iter().find(|(own, _)| *own == inode)?;
    Some(if at.ip().is_unspecified() { format!("port {}", at.port()) } else { at.to_string() })
}

fn parse_listener(line: &str) -> Option<(u64, SocketAddr)> {
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
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn inode(fd: i32) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino()
    }

    #[test]
    fn connection_shows_what_was_not_read_and_its_other_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 96]).unwrap();
        // What was sent over the loopback is in the other queue when `peek` sees it.
        far.peek(&mut [0; 96]).unwrap();
        let all = tcp().unwrap();
        let of = |stream: &TcpStream| {
            all.iter().find(|tcp| tcp.inode == inode(stream.as_raw_fd())).unwrap().socket.clone()
        };
        let (sender, receiver) = (of(&near), of(&far));
        assert_eq!(receiver.receive_queue, 96);
        let carried = all.iter().find(|tcp| tcp.inode == inode(far.as_raw_fd())).unwrap().carried;
        assert_eq!(carried, 96, "tcpi_bytes_received");
        assert_eq!(sender.peer, listener.local_addr().unwrap().to_string());
        assert_eq!((sender.state.as_str(), sender.retransmits), ("ESTABLISHED", 0));
        far.read_exact(&mut [0; 96]).unwrap();
        assert!(!all.iter().any(|tcp| tcp.inode == inode(listener.as_raw_fd())), "listeners are left out");
    }

    #[test]
    fn unix_sockets_know_each_other() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (inode(a.as_raw_fd()), inode(b.as_raw_fd()));
        assert!(unix().unwrap().iter().any(|socket| socket.inode == a && socket.peer == Some(b)));
    }

    #[test]
    fn pending_unix_connection_belongs_to_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders");
        let listener = UnixListener::bind(&path).unwrap();
        let near = UnixStream::connect(&path).unwrap();
        let of = |fd: i32| unix().unwrap().into_iter().find(|socket| socket.inode == inode(fd)).unwrap();
        let path = Some(path.to_string_lossy().into_owned());
        let (server, client) = (of(listener.as_raw_fd()), of(near.as_raw_fd()));
        assert!(server.listens && server.path == path, "{server:?}");
        assert_eq!((server.waiting, client.peer), (vec![client.inode], Some(0)));
        let (far, _) = listener.accept().unwrap();
        let (server, client, far) = (of(listener.as_raw_fd()), of(near.as_raw_fd()), of(far.as_raw_fd()));
        assert_eq!((server.waiting, client.peer, far.path), (vec![], Some(far.inode), path));
    }

    #[test]
    fn cut_answers_are_no_trouble() {
        let mut seen = 0;
        for length in 0..64 {
            let _ = walk(&vec![1; length], &mut |_| seen += 1);
            assert_eq!(parse_tcp(&vec![2; length]), None);
            let _ = parse_unix(&vec![0; length]);
            let _ = attribute(&vec![3; length], 1);
        }
        assert_eq!(attribute(&[0, 0, 2, 0], 2), None);
    }

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
    fn listener_is_found_by_its_port() {
        for (bound, words) in [("127.0.0.1:0", "127.0.0.1:"), ("0.0.0.0:0", "port ")] {
            let listener = TcpListener::bind(bound).unwrap();
            let inode = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino();
            let port = listener.local_addr().unwrap().port();
            assert_eq!(listening_at(std::process::id(), inode), Some(format!("{words}{port}")));
        }
    }
}
