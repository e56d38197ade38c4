//! Tests whether the hosts of a run can reach each other.
//!
//! Owner: one preflight. Every host listens on the first free port of its own list and connects to others at
//! theirs, so that one command per host is enough; a few bytes of a token prove that it was the other
//! host. A host with several addresses is called at all of them at once. Listeners end when all have connected
//! and confirmed the reply, at the latest after the timeout: a peer on a busy host may give up just before the
//! reply arrives, and connects again.

use rankdeck_proto::examination::{ConnectResult, HostQuestion, ListenResult, Peer};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// One attempt to connect.
const ATTEMPT: Duration = Duration::from_millis(1000);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(30);

/// A host has none of its ports if on each, this many times in a row, another program replied or an open port
/// stayed silent. More than once, because a host with many peers at the same time may be late.
const STRANGERS: u32 = 2;

/// Listening and connecting under way.
pub(super) struct PortProbe {
    listener: Option<JoinHandle<ListenResult>>,
    /// The listener on another port; its callers report how it was reached.
    second: Option<JoinHandle<ListenResult>>,
    callers: Vec<(Peer, JoinHandle<ConnectResult>)>,
}

/// Starts both.
pub(super) fn start(question: &HostQuestion) -> PortProbe {
    let patience = Duration::from_millis(question.patience_ms.min(60_000));
    let deadline = Instant::now() + patience;
    let expect = question.expect;
    let listener = |ports: &[u16]| {
        let token = question.token.clone();
        (!ports.is_empty()).then(|| {
            // Bound before anything else, so that the others find it.
            let bound = bind(ports);
            thread::spawn(move || listen(bound, &token, expect, deadline))
        })
    };
    let (second, listener) = (listener(&question.also_listen), listener(&question.listen));
    let callers = question.peers.iter().map(|peer| {
        let to = peer.clone();
        (peer.clone(), thread::spawn(move || call(&to, deadline)))
    });
    PortProbe { listener, second, callers: callers.collect() }
}

impl PortProbe {
    /// Waits for the end of both.
    pub(super) fn end(self) -> (Option<ListenResult>, Vec<ConnectResult>) {
        let reached = self
            .callers
            .into_iter()
            .map(|(peer, thread)| {
                thread.join().unwrap_or_else(|_| ConnectResult {
                    node: peer.node,
                    address: peer.address,
                    error: Some("cannot test".into()),
                    ..ConnectResult::default()
                })
            })
            .collect();
        self.second.into_iter().for_each(|thread| drop(thread.join()));
        (self.listener.and_then(|thread| thread.join().ok()), reached)
    }
}

pub(super) fn bind(ports: &[u16]) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for &port in ports {
        // All addresses of both families where there are both.
        let v6 = TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, port));
        match v6.or_else(|_| TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port))) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(bound: io::Result<TcpListener>, token: &str, expect: u32, deadline: Instant) -> ListenResult {
    let listener = match bound {
        Ok(listener) => listener,
        Err(error) => return ListenResult { error: Some(error.to_string()), ..ListenResult::default() },
    };
    let mut listened = ListenResult {
        port: listener.local_addr().map_or(0, |address| address.port()),
        ..ListenResult::default()
    };
    if listener.set_nonblocking(true).is_err() {
        return listened;
    }
    let mut callers: VecDeque<PendingPeer> = VecDeque::new();
    while listened.heard < expect && Instant::now() < deadline {
        for _ in 0..CALLERS {
            let Ok((stream, _)) = listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                callers.truncate(CALLERS - 1);
                callers.push_front(PendingPeer {
                    stream,
                    since: Instant::now(),
                    received: Vec::new(),
                    answered: false,
                });
            }
        }
        callers.retain_mut(|caller| match caller.answer(token) {
            Ok(true) => {
                listened.heard += 1;
                false
            }
            Ok(false) => caller.since.elapsed() < ATTEMPT,
            Err(_) => false,
        });
        thread::sleep(Duration::from_millis(5));
    }
    listened
}

/// Most callers that are listened to at a time; beyond them, the one that has waited longest goes.
const CALLERS: usize = 64;

/// A peer that has connected and not sent the token yet. Peers do not wait for each other.
struct PendingPeer {
    stream: TcpStream,
    since: Instant,
    received: Vec<u8>,
    answered: bool,
}

/// A peer's confirmation of the reply.
const THANKS: u8 = b'.';

impl PendingPeer {
    /// Replies with the token once the peer has sent it; `true` once the peer has received that.
    ///
    /// Errors: it sent something else, or is gone.
    fn answer(&mut self, token: &str) -> io::Result<bool> {
        let mut bytes = [0; 256];
        while self.received.len() < token.len() {
            let room = (token.len() - self.received.len()).min(bytes.len());
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if self.received != token.as_bytes() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if !self.answered {
            self.stream.write_all(token.as_bytes())?;
            (self.answered, self.since) = (true, Instant::now());
        }
        match self.stream.read(&mut bytes[..1]) {
            Ok(1) if bytes[0] == THANKS => Ok(true),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn call(peer: &Peer, deadline: Instant) -> ConnectResult {
    let (mut addresses, unresolved) = match (peer.address.as_str(), 0u16).to_socket_addrs() {
        Ok(found) => (found.map(|address| address.ip()).collect::<Vec<_>>(), None),
        Err(error) => {
            let received = error.to_string();
            let received =
                received.strip_prefix("failed to lookup address information: ").unwrap_or(&received);
            (Vec::new(), Some(format!("cannot resolve it on this host: {received}")))
        }
    };
    let named = addresses.len();
    addresses.extend(peer.others.iter().filter(|ip| !addresses.contains(ip)).copied().collect::<Vec<_>>());
    let calls = PeerCalls {
        peer,
        deadline,
        is_reached: AtomicBool::new(false),
        open_port: AtomicU16::new(0),
        named_left: AtomicUsize::new(named),
    };
    let mut results: Vec<ConnectResult> = thread::scope(|scope| {
        let calls = &calls;
        let callers: Vec<_> = addresses
            .iter()
            .enumerate()
            .map(|(at, &ip)| scope.spawn(move || calls.call_at(ip, at >= named)))
            .collect();
        callers.into_iter().filter_map(|caller| caller.join().ok()).collect()
    });
    let reached = results.iter().position(|result| result.error.is_none());
    let best = match (reached, unresolved) {
        (Some(at), _) => at,
        (None, Some(error)) => {
            let address = peer.address.clone();
            return ConnectResult { node: peer.node, address, error: Some(error), ..Default::default() };
        }
        (None, None) => 0,
    };
    let nowhere = || ConnectResult {
        node: peer.node,
        address: peer.address.clone(),
        error: Some("cannot resolve it on this host".to_owned()),
        ..ConnectResult::default()
    };
    if best >= results.len() {
        return nowhere();
    }
    ConnectResult { is_other: best >= named, ..results.swap_remove(best) }
}

/// Calls to the addresses of one peer. The peer listens at all of them from the same moment on: another
/// address counts only if the named ones fail after it has answered.
struct PeerCalls<'a> {
    peer: &'a Peer,
    deadline: Instant,
    is_reached: AtomicBool,
    /// The port at which another address has answered; 0: none has.
    open_port: AtomicU16,
    /// Named addresses that have not failed at that port since.
    named_left: AtomicUsize,
}

impl PeerCalls<'_> {
    /// Calls one address until it answers, the deadline passes, or another address has answered.
    fn call_at(&self, ip: IpAddr, is_other: bool) -> ConnectResult {
        let node = self.peer.node;
        let mut reached = ConnectResult { node, address: ip.to_string(), ..ConnectResult::default() };
        let (mut strange, mut has_failed) = (0, is_other);
        loop {
            let mut why = "no port to try".to_owned();
            let mut all_strange = true;
            for &port in &self.peer.ports {
                let open = self.open_port.load(Ordering::Acquire);
                if open != 0 && port != open {
                    continue;
                }
                let address = SocketAddr::new(ip, port);
                reached.address = address.to_string();
                match self.greet(address, is_other) {
                    Ok(source) => {
                        reached.source = Some(source.to_canonical());
                        return reached;
                    }
                    Err(error) => {
                        all_strange &= error.kind() == io::ErrorKind::InvalidData;
                        why = error.to_string();
                    }
                }
                if open != 0 && !std::mem::replace(&mut has_failed, true) {
                    self.named_left.fetch_sub(1, Ordering::AcqRel);
                }
            }
            strange = if all_strange { strange + 1 } else { 0 };
            let is_over = Instant::now() >= self.deadline || self.is_reached.load(Ordering::Acquire);
            if is_over || strange >= STRANGERS {
                if !has_failed {
                    self.named_left.fetch_sub(1, Ordering::AcqRel);
                }
                reached.error = Some(why);
                return reached;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sends the token and receives it; returns the address of this host on the connection. Only the first
    /// address that answers confirms: the listener counts hosts.
    fn greet(&self, address: SocketAddr, is_other: bool) -> io::Result<IpAddr> {
        let token = &self.peer.token;
        let mut stream =
            TcpStream::connect_timeout(&address, ATTEMPT).map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => io::Error::new(error.kind(), "no response (check the firewall)"),
                _ => error,
            })?;
        stream.set_read_timeout(Some(ATTEMPT))?;
        stream.set_write_timeout(Some(ATTEMPT))?;
        stream.write_all(token.as_bytes())?;
        let mut received = vec![0; token.len()];
        let other = || io::Error::new(io::ErrorKind::InvalidData, "another program listens there");
        stream.read_exact(&mut received).map_err(|_| other())?;
        if received != token.as_bytes() {
            return Err(other());
        }
        let has_time = Instant::now() + ATTEMPT < self.deadline;
        if is_other && has_time && self.named_left.load(Ordering::Acquire) > 0 {
            self.open_port.store(address.port(), Ordering::Release);
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "its named addresses are tried first"));
        }
        if self.is_reached.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "reached at another address"));
        }
        let confirmed = stream.write_all(&[THANKS]).and_then(|()| stream.local_addr());
        if confirmed.is_err() {
            self.is_reached.store(false, Ordering::Release);
        }
        Ok(confirmed?.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_testkit::free_port;

    #[test]
    fn hosts_meet_on_the_first_free_port_by_token() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let ports = vec![taken.local_addr().unwrap().port(), free_port()];
        let host = HostQuestion {
            listen: ports.clone(),
            expect: 1,
            token: "right".into(),
            patience_ms: 10_000,
            ..HostQuestion::default()
        };
        let meeting = start(&host);
        let peer = Peer {
            node: 0,
            address: "127.0.0.1".into(),
            ports: ports[1..].to_vec(),
            token: "right".into(),
            ..Peer::default()
        };
        let stranger = call(&Peer { token: "wrong".into(), ..peer.clone() }, Instant::now());
        assert!(stranger.error.is_some(), "{stranger:?}");
        let caller = HostQuestion { peers: vec![peer], patience_ms: 10_000, ..HostQuestion::default() };
        let (none, reached) = start(&caller).end();
        assert_eq!((none, reached[0].error.as_ref()), (None, None));
        let (listened, _) = meeting.end();
        assert_eq!(listened.unwrap(), ListenResult { port: ports[1], error: None, heard: 1 });
    }

    #[test]
    fn strangers_keep_no_host_waiting() {
        let ports = vec![free_port()];
        let host = HostQuestion {
            listen: ports.clone(),
            expect: 1,
            token: "right".into(),
            patience_ms: 30_000,
            ..HostQuestion::default()
        };
        let meeting = start(&host);
        let connect = || loop {
            // The listener may not have started.
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", ports[0])) {
                return stream;
            }
        };
        let strangers: Vec<TcpStream> = (0..3 * CALLERS)
            .map(|number| {
                let mut stream = connect();
                let _ = stream.write_all(&b"wrong"[..number % 6]);
                stream
            })
            .collect();
        let begun = Instant::now();
        let peer =
            Peer { node: 0, address: "127.0.0.1".into(), ports, token: "right".into(), ..Peer::default() };
        let reached = call(&peer, Instant::now() + Duration::from_secs(30));
        assert_eq!(reached.error, None);
        assert_eq!(meeting.end().0.unwrap().heard, 1);
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "one stranger after the other: {:?}",
            begun.elapsed()
        );
        drop(strangers);
    }

    /// As on a host without a free core: the reply comes after the peer gave up.
    #[test]
    fn caller_that_gave_up_early_is_awaited() {
        let port = free_port();
        let host = HostQuestion {
            listen: vec![port],
            expect: 1,
            token: "right".into(),
            patience_ms: 30_000,
            ..HostQuestion::default()
        };
        let meeting = start(&host);
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut hasty = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        hasty.write_all(b"right").unwrap();
        // The answer is on its way.
        hasty.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(hasty.peek(&mut [0]).unwrap(), 1);
        drop(hasty);
        let peer = Peer {
            node: 0,
            address: "127.0.0.1".into(),
            ports: vec![port],
            token: "right".into(),
            ..Peer::default()
        };
        assert_eq!(call(&peer, deadline).error, None);
        assert_eq!(meeting.end().0.unwrap().heard, 1);
    }

    /// The name means nothing on this host, or leads elsewhere: another address of the peer works.
    #[test]
    fn other_address_is_used_where_the_name_fails() {
        for address in ["no-such-host.invalid", "127.0.0.2"] {
            let port = free_port();
            // Only at this address.
            let listener = TcpListener::bind(("127.0.0.1", port));
            let deadline = Instant::now() + Duration::from_secs(20);
            let meeting = thread::spawn(move || listen(listener, "right", 1, deadline));
            let peer = Peer {
                address: address.into(),
                ports: vec![port],
                token: "right".into(),
                others: vec!["127.0.0.1".parse().unwrap()],
                ..Peer::default()
            };
            let reached = call(&peer, deadline);
            assert_eq!((reached.error.as_deref(), reached.is_other), (None, true), "{address}");
            assert_eq!(reached.address, format!("127.0.0.1:{port}"));
            assert_eq!(reached.source, Some("127.0.0.1".parse().unwrap()));
            assert_eq!(meeting.join().unwrap().heard, 1);
        }
    }

    /// As between two entries of one machine, or on a network where both addresses work.
    #[test]
    fn named_address_is_used_though_another_answers_first() {
        let named = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = named.local_addr().unwrap().port();
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let meeting = thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            let mut token = [0; 5];
            stream.read_exact(&mut token).unwrap();
            stream.write_all(&token).unwrap();
            listen(Ok(named), "right", 1, deadline)
        });
        let peer = Peer {
            address: "127.0.0.1".into(),
            ports: vec![port],
            token: "right".into(),
            others: vec!["127.0.0.2".parse().unwrap()],
            ..Peer::default()
        };
        let reached = call(&peer, deadline);
        assert_eq!((reached.error.as_deref(), reached.is_other), (None, false));
        assert_eq!(reached.address, format!("127.0.0.1:{port}"));
        assert_eq!(meeting.join().unwrap().heard, 1);
    }

    /// An open fixed port does not imply that the others are open.
    #[test]
    fn second_port_is_called_like_the_first() {
        let (fixed, other) = (free_port(), free_port());
        let host = HostQuestion {
            listen: vec![fixed],
            also_listen: vec![other],
            expect: 1,
            token: "right".into(),
            patience_ms: 20_000,
            ..HostQuestion::default()
        };
        let meeting = start(&host);
        for port in [fixed, other] {
            let peer = Peer {
                address: "127.0.0.1".into(),
                ports: vec![port],
                token: "right".into(),
                ..Peer::default()
            };
            assert_eq!(call(&peer, Instant::now() + Duration::from_secs(20)).error, None);
        }
        assert_eq!(meeting.end().0.unwrap().port, fixed);
    }

    #[test]
    fn port_in_use_and_a_name_without_address_are_findings() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let host =
            HostQuestion { listen: vec![port], expect: 1, token: "t".into(), ..HostQuestion::default() };
        assert!(start(&host).end().0.unwrap().error.unwrap().contains("in use"));
        let peer = Peer {
            node: 3,
            address: "no-such-host.invalid".into(),
            ports: vec![1],
            token: "t".into(),
            ..Peer::default()
        };
        assert!(call(&peer, Instant::now()).error.unwrap().starts_with("cannot resolve"));
        let closed = Peer {
            node: 3,
            address: "127.0.0.1".into(),
            ports: vec![free_port()],
            token: "t".into(),
            ..Peer::default()
        };
        assert!(call(&closed, Instant::now()).error.unwrap().contains("refused"));
    }
}
