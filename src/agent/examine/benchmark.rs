//! `agent benchmark`: latency and bandwidth between the hosts of a run, an all-reduce over all of them, and the time
//! to write a checkpoint.
//!
//! Owner: a short-lived process that the console starts on every host at about the same time. Hosts measure in pairs,
//! by turns: each turn has an end that counts from the start of the process, so a host that is late or unreachable
//! delays the others by that turn at most. Invariants:
//! - BENCH-1: the process ends after [`BUDGET`], and at once when the console is gone.
//! - BENCH-2: a connection counts only if both ends prove that they know the benchmark's secret, which never travels
//!   over it.
//! - BENCH-3: the file on the disk has no name while it is written: it vanishes with the process.

use super::machine::space;
use super::{bounded, ports, read_question};
use crate::paths;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::examination::{
    BenchmarkFindings, BenchmarkPeer, BenchmarkQuestion, BenchmarkTurn, DiskFinding, PairFinding,
    WholeFinding,
};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rankdeck_types::words::bytes;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest life of the process.
const BUDGET: Duration = Duration::from_secs(20);
/// Since the start: end of the turns, and of the all-reduce.
const TURNS_END: Duration = Duration::from_secs(12);
const WHOLE_END: Duration = Duration::from_millis(14_500);
/// Longest time for the all-reduce, from the moment at which all hosts are there.
const WHOLE: Duration = Duration::from_millis(2500);
/// Longest time for the disk.
const DISK: Duration = Duration::from_secs(4);
/// Between two proofs that the console still reads.
const PULSE: Duration = Duration::from_millis(250);

/// One attempt to connect, and a handshake.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How much longer than its time a turn may take.
const GRACE: Duration = Duration::from_millis(500);
/// Longest time of a turn, whatever the console requests.
const LONGEST_TURN: Duration = Duration::from_secs(5);
/// Most connections whose handshake is under way; beyond them, the oldest goes.
const CALLERS: usize = 64;
/// Most connections that wait for their turn.
const WAITING: usize = 256;

/// Most round trips of a pair, and fewest on a slow link.
const TRIPS: usize = 200;
const FEWEST_TRIPS: usize = 3;
/// Sizes of transfers: they double as long as the time allows.
const FIRST_TRANSFER: u32 = 64 << 10;
const LAST_TRANSFER: u32 = 32 << 20;
/// Bytes per read and write.
const BLOCK: usize = 256 << 10;
/// Transfers up to this size fit into the buffers of both ends.
const SMALL: usize = 16 << 10;

/// All-reduces of the latency, and sizes of the bandwidth.
const REDUCTIONS: usize = 10;
const FIRST_REDUCTION: usize = 1 << 20;
const LAST_REDUCTION: usize = 64 << 20;

/// Most bytes of the file on the disk. As many must stay free.
const MOST_DISK: u64 = 64 << 30;

/// The turn of connections for the all-reduce.
const RING: u32 = u32::MAX;
const NONCE: usize = 32;
const PROOF: usize = 32;
/// A caller's first message: who calls, for which turn, a nonce and the proof.
const HELLO: usize = 8 + NONCE + PROOF;

/// Reads the question from standard input and measures.
pub(crate) fn main() -> Result<BenchmarkFindings, HintedError> {
    let question: BenchmarkQuestion = read_question()?;
    end_with_console(Instant::now() + BUDGET);
    Ok(benchmark(&question))
}

/// Ends the process when the console no longer reads its output, or at `end`.
fn end_with_console(end: Instant) {
    let watch = move || {
        loop {
            thread::sleep(PULSE);
            let mut output = io::stdout().lock();
            let is_read = writeln!(output).and_then(|()| output.flush()).is_ok();
            if !is_read || Instant::now() >= end {
                std::process::exit(1);
            }
        }
    };
    // Without the thread, every part still has its own bound.
    let _ = thread::Builder::new().name("pulse".into()).spawn(watch);
}

/// Measures.
pub(crate) fn benchmark(question: &BenchmarkQuestion) -> BenchmarkFindings {
    let began = Instant::now();
    let mut findings = BenchmarkFindings::default();
    let arrivals = &Arrivals::default();
    let listener = match bind(question) {
        Some(Ok(listener)) => Some(listener),
        Some(Err(error)) => {
            findings.listen_error = Some(error.to_string());
            None
        }
        None => None,
    };
    thread::scope(|scope| {
        if let Some(listener) = &listener {
            scope.spawn(move || accept(listener, question, arrivals));
        }
        let clock = TurnClock { question, began };
        for turn in &question.turns {
            findings.pairs.extend(take_turn(*turn, &clock, arrivals));
        }
        if question.loopback {
            findings.pairs.push(loopback(question, &clock, arrivals));
        }
        if question.whole && question.hosts > 1 {
            findings.whole = Some(whole(question, began + WHOLE_END, arrivals));
        }
        arrivals.closed.store(true, Ordering::Release);
    });
    drop(listener);
    if question.disk_bytes > 0 {
        let (workdir, size) = (paths::expand(&question.workdir), question.disk_bytes.min(MOST_DISK));
        let path = workdir.display().to_string();
        let written = bounded(DISK + GRACE, move || write_file(&workdir, size)).wait();
        findings.disk = Some(written.unwrap_or_else(|| DiskFinding {
            path,
            error: Some(format!("not written within {} s", DISK.as_secs())),
            ..DiskFinding::default()
        }));
    }
    findings
}

/// When turns end.
struct TurnClock<'a> {
    question: &'a BenchmarkQuestion,
    began: Instant,
}

impl TurnClock<'_> {
    fn length(&self) -> Duration {
        Duration::from_millis(self.question.turn_ms).min(LONGEST_TURN)
    }

    /// The latest start of a turn.
    fn latest(&self, turn: u32) -> Instant {
        let patience = Duration::from_millis(self.question.patience_ms).min(TURNS_END);
        let until = patience + (self.length() + GRACE) * (turn.min(1 << 10) + 1);
        self.began + until.min(TURNS_END)
    }
}

/// Listens at the given address and on one of the given ports; `None` if no host connects to this one.
fn bind(question: &BenchmarkQuestion) -> Option<io::Result<TcpListener>> {
    if question.ports.is_empty() {
        return None;
    }
    let at = question.listen_at;
    let own = at.and_then(|ip| question.ports.iter().find_map(|port| TcpListener::bind((ip, *port)).ok()));
    Some(own.map_or_else(|| ports::bind(&question.ports), Ok))
}

/// Measures a pair, or serves the host that does.
fn take_turn(turn: BenchmarkTurn, clock: &TurnClock<'_>, arrivals: &Arrivals) -> Option<PairFinding> {
    let latest = clock.latest(turn.turn);
    if !turn.calls {
        // What fails is reported by the caller.
        if let Ok(stream) = arrivals.wait(turn.peer, turn.turn, latest) {
            let mut stream = TimedStream { stream, until: Instant::now() + clock.length() + GRACE };
            let _ = serve(&mut stream);
        }
        return None;
    }
    let question = clock.question;
    let Some(peer) = question.peers.iter().find(|peer| peer.node == turn.peer) else {
        return Some(failed(turn.peer, "", "the console sent no address"));
    };
    Some(match call(peer, turn.turn, question, latest) {
        Ok((stream, address)) => {
            let mut finding =
                PairFinding { node: peer.node, address: address.to_string(), ..PairFinding::default() };
            // The other host may still be busy with another one.
            let until = latest.max(Instant::now()) + clock.length() + GRACE;
            let measured = measure(&mut TimedStream { stream, until }, clock.length(), &mut finding);
            finding.error = measured.err().map(|error| error.to_string());
            finding
        }
        Err(error) => failed(peer.node, &peer.address, &error.to_string()),
    })
}

fn failed(node: u32, address: &str, error: &str) -> PairFinding {
    PairFinding { node, address: address.to_owned(), error: Some(error.to_owned()), ..PairFinding::default() }
}

/// Measures this host's own loopback.
fn loopback(question: &BenchmarkQuestion, clock: &TurnClock<'_>, arrivals: &Arrivals) -> PairFinding {
    let to = BenchmarkTurn { turn: 0, peer: question.node, calls: true };
    thread::scope(|scope| {
        scope.spawn(|| take_turn(BenchmarkTurn { calls: false, ..to }, clock, arrivals));
        take_turn(to, clock, arrivals).unwrap_or_default()
    })
}

/// Connections that wait for their turn.
#[derive(Default)]
struct Arrivals {
    waiting: Mutex<Vec<Arrival>>,
    changed: Condvar,
    closed: AtomicBool,
}

/// A connection of a host that has proved to know the secret.
struct Arrival {
    from: u32,
    turn: u32,
    stream: TcpStream,
}

impl Arrivals {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, arrival: Arrival) {
        let mut waiting = self.waiting();
        if waiting.len() < WAITING {
            waiting.push(arrival);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Waits for a host's connection for a turn.
    fn wait(&self, from: u32, turn: u32, until: Instant) -> io::Result<TcpStream> {
        let mut waiting = self.waiting();
        loop {
            if let Some(at) = waiting.iter().position(|known| known.from == from && known.turn == turn) {
                return Ok(waiting.swap_remove(at).stream);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
            }
            (waiting, _) = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A caller whose handshake is under way.
struct PendingCaller {
    stream: TcpStream,
    since: Instant,
    nonce: [u8; NONCE],
    received: Vec<u8>,
}

/// Accepts callers until the arrivals are closed.
fn accept(listener: &TcpListener, question: &BenchmarkQuestion, arrivals: &Arrivals) {
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    let mut callers: VecDeque<PendingCaller> = VecDeque::new();
    while !arrivals.closed.load(Ordering::Acquire) {
        for _ in 0..CALLERS {
            let Ok((stream, _)) = listener.accept() else { break };
            callers.truncate(CALLERS - 1);
            if let Ok(caller) = PendingCaller::greet(stream) {
                callers.push_front(caller);
            }
        }
        callers.retain_mut(|caller| match caller.read_hello(question) {
            Ok(Some(arrival)) => {
                arrivals.add(arrival);
                false
            }
            Ok(None) => caller.since.elapsed() < ATTEMPT,
            Err(_) => false,
        });
        thread::sleep(Duration::from_millis(2));
    }
}

impl PendingCaller {
    fn greet(mut stream: TcpStream) -> io::Result<PendingCaller> {
        let nonce = *GroupSecret::draw()?.bytes();
        stream.set_nonblocking(true)?;
        stream.write_all(&nonce)?;
        Ok(PendingCaller { stream, since: Instant::now(), nonce, received: Vec::new() })
    }

    /// Reads what has come of the first message and replies to it once it is complete.
    ///
    /// Errors: it sent something else, or is gone.
    fn read_hello(&mut self, question: &BenchmarkQuestion) -> io::Result<Option<Arrival>> {
        let mut buffer = [0; HELLO];
        while self.received.len() < HELLO {
            match self.stream.read(&mut buffer[..HELLO - self.received.len()]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (who, rest) = self.received.split_at(8);
        let (nonce, theirs) = rest.split_at(NONCE);
        if theirs != proof(&question.token, ProofSide::Caller, &self.nonce, nonce, who) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.stream.write_all(&proof(&question.token, ProofSide::Listener, &self.nonce, nonce, who))?;
        self.stream.set_nonblocking(false)?;
        self.stream.set_nodelay(true)?;
        let (from, turn) = who.split_at(4);
        Ok(Some(Arrival { from: number(from), turn: number(turn), stream: self.stream.try_clone()? }))
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// Which end a proof is of.
#[derive(Debug, Clone, Copy)]
enum ProofSide {
    Caller,
    Listener,
}

/// Proves that an end knows the secret, for this connection only.
fn proof(token: &str, role: ProofSide, listener: &[u8], caller: &[u8], who: &[u8]) -> [u8; PROOF] {
    let role: &[u8] = match role {
        ProofSide::Caller => b"caller..",
        ProofSide::Listener => b"listener",
    };
    let mut hash = Sha256::new();
    [token.as_bytes(), role, listener, caller, who].into_iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// Connects to a host for a turn, again and again until `until`: the host may not listen yet.
fn call(
    peer: &BenchmarkPeer,
    turn: u32,
    question: &BenchmarkQuestion,
    until: Instant,
) -> io::Result<(TcpStream, SocketAddr)> {
    let addresses: Vec<SocketAddr> = (peer.address.as_str(), 0u16).to_socket_addrs()?.collect();
    loop {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "no address to connect to");
        for address in &addresses {
            for port in &peer.ports {
                let address = SocketAddr::new(address.ip(), *port);
                match greet(address, turn, question) {
                    Ok(stream) => return Ok((stream, address)),
                    Err(failure) => error = failure,
                }
            }
        }
        if Instant::now() >= until {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
}

fn greet(address: SocketAddr, turn: u32, question: &BenchmarkQuestion) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, ATTEMPT).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(error.kind(), "no response (check the firewall)"),
        _ => error,
    })?;
    let other = || io::Error::new(io::ErrorKind::InvalidData, "another program listens there");
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ATTEMPT))?;
    stream.set_write_timeout(Some(ATTEMPT))?;
    let mut listener = [0; NONCE];
    stream.read_exact(&mut listener).map_err(|_| other())?;
    let caller = *GroupSecret::draw()?.bytes();
    let mut who = [0; 8];
    who[..4].copy_from_slice(&question.node.to_le_bytes());
    who[4..].copy_from_slice(&turn.to_le_bytes());
    let own = proof(&question.token, ProofSide::Caller, &listener, &caller, &who);
    stream.write_all(&[&who[..], &caller[..], &own[..]].concat())?;
    let mut theirs = [0; PROOF];
    stream.read_exact(&mut theirs).map_err(|_| other())?;
    if theirs != proof(&question.token, ProofSide::Listener, &listener, &caller, &who) {
        return Err(other());
    }
    Ok(stream)
}

/// A connection whose transfers end at a time.
struct TimedStream {
    stream: TcpStream,
    until: Instant,
}

impl TimedStream {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left.max(Duration::from_millis(1))) }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the transfer timed out")
}

fn in_time(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer).map_err(in_time)
    }
}

impl Write for TimedStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let block = buffer.len().min(BLOCK);
        self.stream.write(buffer.get(..block).unwrap_or(buffer)).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Orders of the caller: one byte, and a length.
const PING: u8 = b'p';
const TAKE: u8 = b't';
const GIVE: u8 = b'g';
const END: u8 = b'e';
const READY: u8 = b'r';

fn order(stream: &mut TimedStream, order: u8, length: u32) -> io::Result<()> {
    let mut message = [order, 0, 0, 0, 0, 0, 0, 0];
    message[4..].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&message)
}

/// Does what the caller orders, until the caller ends it.
fn serve(stream: &mut TimedStream) -> io::Result<()> {
    stream.write_all(&[READY])?;
    let mut block = vec![0; BLOCK];
    loop {
        let mut message = [0; 8];
        stream.read_exact(&mut message)?;
        let length = number(&message[4..]);
        match message[0] {
            PING => stream.write_all(&wall_time().to_le_bytes())?,
            TAKE if length <= LAST_TRANSFER => {
                receive(stream, length, &mut block)?;
                stream.write_all(&[0; 8])?;
            }
            GIVE if length <= LAST_TRANSFER => send(stream, length, &block)?,
            END => return Ok(()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn send(stream: &mut TimedStream, length: u32, block: &[u8]) -> io::Result<()> {
    let mut left = length as usize;
    while left > 0 {
        let part = left.min(block.len());
        stream.write_all(&block[..part])?;
        left -= part;
    }
    Ok(())
}

fn receive(stream: &mut TimedStream, length: u32, block: &mut [u8]) -> io::Result<()> {
    let mut left = length as usize;
    while left > 0 {
        let part = left.min(block.len());
        let count = stream.read(&mut block[..part])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= count;
    }
    Ok(())
}

/// Measures a pair as the caller.
fn measure(stream: &mut TimedStream, length: Duration, finding: &mut PairFinding) -> io::Result<()> {
    stream.read_exact(&mut [0])?;
    let began = Instant::now();
    stream.until = began + length + GRACE;
    let mut trips = Vec::new();
    let mut least = f64::INFINITY;
    while trips.len() < FEWEST_TRIPS || (trips.len() < TRIPS && began.elapsed() < length / 5) {
        let (sent, wall) = (Instant::now(), wall_time());
        order(stream, PING, 0)?;
        let mut theirs = [0; 8];
        stream.read_exact(&mut theirs)?;
        let took = sent.elapsed().as_secs_f64();
        if took < least {
            least = took;
            (finding.clock_s, finding.clock_bound_s) =
                (f64::from_le_bytes(theirs) - wall - took / 2.0, took / 2.0);
        }
        trips.push(took);
    }
    finding.latency_s = median(&mut trips);
    let mut block = vec![0; BLOCK];
    let half = length * 2 / 5;
    finding.to_bps = throughput(half, least, |size| {
        order(stream, TAKE, size)?;
        send(stream, size, &block)?;
        stream.read_exact(&mut [0; 8])
    })?;
    finding.from_bps = throughput(half, least, |size| {
        order(stream, GIVE, size)?;
        receive(stream, size, &mut block)
    })?;
    order(stream, END, 0)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Bits per second of transfers, whose sizes double as long as the next one fits into the time. `trip`: the round trip
/// that each of them takes besides.
fn throughput(
    within: Duration,
    trip: f64,
    mut transfer: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<f64> {
    let end = Instant::now() + within;
    let mut length = FIRST_TRANSFER;
    let (mut all, mut seconds) = (0.0, 0.0);
    loop {
        let began = Instant::now();
        transfer(length)?;
        let took = began.elapsed();
        all += f64::from(length) * 8.0;
        // A small transfer may be faster than the fastest round trip.
        seconds += (took.as_secs_f64() - trip).max(took.as_secs_f64() / 5.0).max(1e-9);
        let now = Instant::now();
        let fits = |time: Duration| now + time <= end;
        if length < LAST_TRANSFER && fits(took * 2) {
            length *= 2;
            (all, seconds) = (0.0, 0.0);
        } else if !fits(took) {
            return Ok(all / seconds);
        }
    }
}

/// Measures an all-reduce over all hosts.
fn whole(question: &BenchmarkQuestion, until: Instant, arrivals: &Arrivals) -> WholeFinding {
    let mut finding = WholeFinding::default();
    let measured = ring(question, until, arrivals).and_then(|mut ring| ring.measure(until, &mut finding));
    finding.error = measured.err().map(|error| error.to_string());
    finding
}

/// This host's connections in the ring.
struct BenchmarkRing {
    node: usize,
    hosts: usize,
    next: TimedStream,
    previous: TimedStream,
}

fn ring(question: &BenchmarkQuestion, until: Instant, arrivals: &Arrivals) -> io::Result<BenchmarkRing> {
    let (node, hosts) = (question.node, question.hosts);
    let (next, previous) = ((node + 1) % hosts, (node + hosts - 1) % hosts);
    let missing = || io::Error::new(io::ErrorKind::NotFound, "cannot connect to the next host");
    let peer = question.peers.iter().find(|peer| peer.node == next).ok_or_else(missing)?;
    let (next, _) = call(peer, RING, question, until)?;
    let previous = arrivals.wait(previous, RING, until)?;
    Ok(BenchmarkRing {
        node: node as usize,
        hosts: hosts as usize,
        next: TimedStream { stream: next, until },
        previous: TimedStream { stream: previous, until },
    })
}

impl BenchmarkRing {
    /// Every decision depends on reduced values only, so that all hosts decide alike.
    fn measure(&mut self, until: Instant, finding: &mut WholeFinding) -> io::Result<()> {
        // Two values, 8 bytes, per host.
        let mut few = vec![0; self.hosts * 8];
        // The first one waits for hosts that are late.
        self.all_reduce(&mut few)?;
        let until = until.min(Instant::now() + WHOLE);
        let mut times = Vec::new();
        for _ in 0..REDUCTIONS {
            let began = Instant::now();
            self.all_reduce(&mut few)?;
            times.push(began.elapsed().as_secs_f64());
            // On a slow link, a few are enough.
            if !self.agree(times.iter().sum::<f64>() < 0.5)? {
                break;
            }
        }
        finding.latency_s = median(&mut times);
        let mut size = FIRST_REDUCTION;
        loop {
            let mut values = vec![0; size];
            let began = Instant::now();
            self.all_reduce(&mut values)?;
            let took = began.elapsed();
            (finding.bytes, finding.seconds) = (size as u64, took.as_secs_f64());
            size *= 4;
            let fits = size <= LAST_REDUCTION && Instant::now() + took * 6 <= until;
            if !self.agree(fits)? {
                return Ok(());
            }
        }
    }

    /// Whether all hosts vote yes.
    fn agree(&mut self, vote: bool) -> io::Result<bool> {
        let vote = if vote { 1.0f32 } else { 0.0 };
        let mut values = vote.to_le_bytes().repeat(self.hosts);
        self.all_reduce(&mut values)?;
        let sum = values.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        Ok(sum >= self.hosts as f32 - 0.5)
    }

    /// Sums `values`, little-endian `f32`s, over all hosts: each part travels the ring twice.
    fn all_reduce(&mut self, values: &mut [u8]) -> io::Result<()> {
        let (hosts, count) = (self.hosts, values.len() / 4);
        let part = |index: usize| {
            let index = index % hosts;
            index * count / hosts * 4..(index + 1) * count / hosts * 4
        };
        let mut received = vec![0; (count / hosts + 1) * 4];
        for step in 0..(hosts - 1) * 2 {
            let is_sum = step < hosts - 1;
            let at = self.node + hosts * 2 - step;
            let (out, into) = (part(at), part(at + hosts - 1));
            let received = &mut received[..into.len()];
            self.exchange(&values[out], received)?;
            if is_sum {
                add(&mut values[into], received);
            } else {
                values[into].copy_from_slice(received);
            }
        }
        Ok(())
    }

    fn exchange(&mut self, out: &[u8], into: &mut [u8]) -> io::Result<()> {
        let BenchmarkRing { next, previous, .. } = self;
        if out.len() <= SMALL {
            next.write_all(out)?;
            return previous.read_exact(into);
        }
        thread::scope(|scope| {
            let sending = scope.spawn(|| next.write_all(out));
            let received = previous.read_exact(into);
            let sent = sending.join().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
            received.and(sent)
        })
    }
}

fn add(sums: &mut [u8], values: &[u8]) {
    for (sum, value) in sums.chunks_exact_mut(4).zip(values.chunks_exact(4)) {
        let read = |bytes: &[u8]| bytes.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        let total = read(sum) + read(value);
        sum.copy_from_slice(&total.to_le_bytes());
    }
}

/// Writes a file of `size` bytes into a directory, or its nearest existing parent, and synchronizes it.
fn write_file(workdir: &Path, size: u64) -> DiskFinding {
    let found = space(workdir);
    let mut finding = DiskFinding { path: found.path, ..DiskFinding::default() };
    let runs = workdir.join("runs");
    let refused = trust::check_run(&runs, &runs).err().map(|failure| failure.error);
    let needed = size.saturating_mul(2);
    let full =
        (found.free < needed).then(|| format!("only {} free, {} needed", bytes(found.free), bytes(needed)));
    finding.error = found.error.or(refused).or(full);
    if finding.error.is_none() {
        finding.error = try_write(workdir, size, &mut finding).err().map(|error| error.to_string());
    }
    finding
}

fn try_write(workdir: &Path, size: u64, finding: &mut DiskFinding) -> io::Result<()> {
    let there = workdir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let path = there.join(format!(".rankdeck-benchmark-{}", std::process::id()));
    let file = trust::create(&path);
    let removed = std::fs::remove_file(&path);
    let mut file = file?;
    removed?;
    let block = noise(1 << 20);
    let began = Instant::now();
    let mut left = size;
    // Half of the time, since the rest may be in the cache until the end.
    while left > 0 && began.elapsed() < DISK / 2 {
        let part = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(&block[..part])?;
        left -= part as u64;
    }
    file.sync_all()?;
    (finding.bytes, finding.seconds) = (size - left, began.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes that a file system cannot compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_testkit::free_port;

    /// Questions to hosts that are all this machine: in each turn, the first host of a pair calls.
    fn questions(hosts: u32, turns: &[(u32, u32)]) -> Vec<BenchmarkQuestion> {
        let ports: Vec<u16> = (0..hosts).map(|_| free_port()).collect();
        let peer = |node: u32| BenchmarkPeer {
            node,
            address: "127.0.0.1".into(),
            ports: vec![ports[node as usize]],
        };
        let turn = |(turn, (a, b)): (usize, &(u32, u32)), node: u32| {
            let peer = if node == *a { *b } else { *a };
            (node == *a || node == *b).then_some(BenchmarkTurn { turn: turn as u32, peer, calls: node == *a })
        };
        let question = |node: u32| BenchmarkQuestion {
            node,
            hosts,
            token: "secret".into(),
            listen_at: Some([127, 0, 0, 1].into()),
            ports: vec![ports[node as usize]],
            peers: (0..hosts).filter(|other| *other != node).map(peer).collect(),
            turns: turns.iter().enumerate().filter_map(|at| turn(at, node)).collect(),
            turn_ms: 200,
            patience_ms: 10_000,
            whole: true,
            ..BenchmarkQuestion::default()
        };
        (0..hosts).map(question).collect()
    }

    fn run(questions: &[BenchmarkQuestion]) -> Vec<BenchmarkFindings> {
        thread::scope(|scope| {
            let all: Vec<_> =
                questions.iter().map(|question| scope.spawn(move || benchmark(question))).collect();
            all.into_iter().map(|host| host.join().unwrap()).collect()
        })
    }

    #[test]
    fn hosts_measure_their_pairs_and_the_whole() {
        let found = run(&questions(3, &[(0, 1), (0, 2), (1, 2)]));
        let pairs: Vec<(usize, u32)> = found
            .iter()
            .enumerate()
            .flat_map(|(node, host)| host.pairs.iter().map(move |pair| (node, pair.node)))
            .collect();
        assert_eq!(pairs, [(0, 1), (0, 2), (1, 2)]);
        for pair in found.iter().flat_map(|host| &host.pairs) {
            assert_eq!(pair.error, None);
            assert!(pair.latency_s > 0.0 && pair.to_bps > 0.0 && pair.from_bps > 0.0, "{pair:?}");
            // One machine has one clock.
            assert!(pair.clock_s.abs() <= pair.clock_bound_s + 0.001, "{pair:?}");
        }
        for whole in found.iter().map(|host| host.whole.clone().unwrap()) {
            assert_eq!(whole.error, None);
            assert!(whole.latency_s > 0.0 && whole.seconds > 0.0);
            assert_eq!(whole.bytes, found[0].whole.as_ref().unwrap().bytes, "all hosts decide alike");
        }
    }

    #[test]
    fn bench_2_stranger_is_not_measured() {
        let mut questions = questions(2, &[(0, 1)]);
        questions[1].token = "another".into();
        questions.iter_mut().for_each(|question| {
            (question.whole, question.patience_ms) = (false, 0);
        });
        let found = run(&questions);
        assert!(found[0].pairs[0].error.is_some() && found[0].pairs[0].latency_s == 0.0, "{found:?}");
        let [caller, listener] =
            [ProofSide::Caller, ProofSide::Listener].map(|role| proof("t", role, b"a", b"b", b"c"));
        assert_ne!(caller, listener, "a proof cannot be sent back");
    }

    #[test]
    fn absent_host_is_named_and_holds_up_no_other() {
        let mut questions = questions(3, &[(0, 2), (0, 1)]);
        questions.iter_mut().for_each(|question| {
            (question.whole, question.patience_ms) = (false, 100);
        });
        // The third host never begins.
        let found = run(&questions[..2]);
        let errors: Vec<bool> = found[0].pairs.iter().map(|pair| pair.error.is_some()).collect();
        assert_eq!(errors, [true, false], "{found:?}");
    }

    #[test]
    fn bench_3_one_host_measures_loopback_and_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut question = questions(1, &[]).remove(0);
        question.peers =
            vec![BenchmarkPeer { node: 0, address: "127.0.0.1".into(), ports: question.ports.clone() }];
        (question.loopback, question.disk_bytes) = (true, 3 << 20);
        question.workdir = folder.path().display().to_string();
        let found = benchmark(&question);
        assert_eq!((found.pairs[0].node, found.pairs[0].error.as_ref(), found.whole), (0, None, None));
        let disk = found.disk.unwrap();
        assert_eq!((disk.error, disk.bytes), (None, 3 << 20));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn full_disk_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let found = write_file(folder.path(), u64::MAX / 2);
        assert!(found.error.is_some() && found.bytes == 0, "{found:?}");
    }

    /// The sums of every host, computed over loopback connections.
    fn reduced(hosts: usize, count: usize) -> Vec<Vec<f32>> {
        let listeners: Vec<TcpListener> =
            (0..hosts).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let until = Instant::now() + Duration::from_secs(20);
        let timed = |stream: TcpStream| TimedStream { stream, until };
        let mut rings = Vec::new();
        for node in 0..hosts {
            let next = TcpStream::connect(listeners[(node + 1) % hosts].local_addr().unwrap()).unwrap();
            rings.push((node, timed(next)));
        }
        thread::scope(|scope| {
            let all: Vec<_> = rings
                .into_iter()
                .zip(&listeners)
                .map(|((node, next), listener)| {
                    let previous = timed(listener.accept().unwrap().0);
                    scope.spawn(move || {
                        let mut ring = BenchmarkRing { node, hosts, next, previous };
                        let values = (0..count).map(|index| (index * (node + 1)) as f32);
                        let mut values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
                        ring.all_reduce(&mut values).unwrap();
                        values.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
                    })
                })
                .collect();
            all.into_iter().map(|host| host.join().unwrap()).collect()
        })
    }

    #[test]
    fn ring_gives_every_host_the_same_sums() {
        for (hosts, count) in [(2, 7), (3, 20_000), (5, 3)] {
            let factor = hosts * (hosts + 1) / 2;
            let expected: Vec<f32> = (0..count).map(|index| (index * factor) as f32).collect();
            assert!(reduced(hosts, count).iter().all(|sums| *sums == expected), "{hosts} hosts");
        }
    }
}
