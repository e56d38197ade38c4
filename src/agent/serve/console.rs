//! One connection of one console: attach, then records, samples, logs and answers, as fast as this console
//! takes them.
//!
//! Owner: two tasks per connection on the agent's loop. Invariants:
//! - CONSOLE-1: a slow or stopped console blocks nothing: records are read from the spool when it is ready
//!   for them, samples are replaced by newer ones, log lines over the bound are dropped and counted, and a
//!   write that takes [`WRITE_PATIENCE`] ends the connection.
//! - Only this user's processes are served.

use crate::observe::sample::NumberedSample;
use crate::paths::RunPaths;
use crate::placement::Placement;
use crate::search::{self, FRAME_ROOM};
use crate::serve::events::LatestFrame;
use crate::serve::line_store::{ConsoleLineQueue, LineStore};
use crate::serve::port::ReservedPort;
use crate::serve::spool::Spool;
use crate::supervise::launch_prep::{self, LaunchVariables};
use crate::supervise::lifecycle::Lifecycle;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::frame::{Decoder, FrameError, encode_into, encode_sample_into};
use rankdeck_proto::message::{
    AgentMessage, CheckpointOrder, CheckpointReply, ConsoleMessage, LaunchSpec, PROTOCOL,
};
use rankdeck_proto::search::{LogFindings, LogSearch};
use rankdeck_proto::show::LiveFrame;
use rankdeck_proto::trust::own_uid;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, RunId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// A write that takes this long ends the connection.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// `attach` must come within this time.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);
/// Records sent in one go, bytes.
const BURST_BYTES: usize = 256 << 10;
/// After a sample, records of the same round that are on their way to the disk are waited for this long, so
/// that both go in one write.
const GATHER: Duration = Duration::from_millis(4);
/// Answers that may wait for one console.
const ANSWERS: usize = 64;

/// The agent, as consoles see it.
#[derive(Debug, Clone)]
pub(crate) struct AgentInfo {
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Index of this host.
    pub node: NodeRank,
    /// Build of this agent.
    pub build: String,
    /// Directory of the run.
    pub run_dir: String,
    /// Working directory.
    pub workdir: PathBuf,
}

/// An order that the loop has to carry out.
#[derive(Debug)]
pub(crate) struct ConsoleOrder {
    /// The console's subscriptions.
    pub message: ConsoleMessage,
    /// Where the answer goes.
    pub answers: mpsc::Sender<AgentMessage>,
}

/// A console that is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachedConsole {
    /// When its last message arrived.
    pub last_message: Instant,
    /// It beats, so that its silence means something.
    pub pings: bool,
}

/// What connections share with the loop.
#[derive(Clone)]
pub(crate) struct ConsoleContext {
    /// Who serves.
    pub identity: Rc<AgentInfo>,
    /// Records.
    pub spool: Spool,
    pub samples: watch::Receiver<NumberedSample>,
    /// State for snapshots.
    pub lifecycle: Rc<RefCell<Lifecycle>>,
    /// When its clock began.
    pub clock: Instant,
    /// Values of variables that it keeps.
    pub kept: Rc<RefCell<LaunchVariables>>,
    /// Log lines.
    pub lines: Rc<RefCell<LineStore>>,
    /// Moments of rank 0's evaluation.
    pub frames: watch::Receiver<LatestFrame>,
    /// Consoles that are attached.
    pub attached: Rc<RefCell<BTreeMap<u64, AttachedConsole>>>,
    /// Searches in this host's logs that are under way.
    pub searches: Arc<AtomicUsize>,
    /// Orders to the loop.
    pub orders: mpsc::Sender<ConsoleOrder>,
    /// The port of the latest generation, from its reservation to the next one.
    pub reserved: Rc<RefCell<Option<ReservedPort>>>,
    /// `Some(reason)` once the agent ends.
    pub bye: watch::Receiver<Option<String>>,
}

impl ConsoleContext {
    /// Milliseconds until a stop kills ranks that show no progress.
    fn kills_in(&self) -> Option<u64> {
        self.lifecycle.borrow().kills_in(self.clock.elapsed().as_millis() as u64)
    }
}

/// Counts a console as attached while its connection lives.
struct Registration {
    id: u64,
    context: ConsoleContext,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.context.attached.borrow_mut().remove(&self.id);
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(stream: UnixStream, id: u64, context: ConsoleContext) {
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid()) {
        return;
    }
    let Ok(wire) = ConsoleSocket::new(stream) else { return };
    let mut decoder = Decoder::default();
    let first = tokio::time::timeout(ATTACH_PATIENCE, next(&wire, &mut decoder)).await;
    let (after_seq, log_tail) = match first {
        Ok(Ok(Some(ConsoleMessage::Attach { protocol, after_seq, log_tail, .. })))
            if protocol == PROTOCOL =>
        {
            (after_seq, log_tail)
        }
        Ok(Ok(Some(ConsoleMessage::Attach { protocol, build, .. }))) => {
            let error = format!(
                "console {build} uses protocol {protocol}, but the agent on {} uses {PROTOCOL}",
                context.identity.host
            );
            let hint = "use the rankdeck version that launched the run".to_owned();
            let _ = send(&wire, &AgentMessage::Refused(HintedError { error, hint })).await;
            let _ = send(&wire, &AgentMessage::Bye { reason: "protocol".into() }).await;
            return;
        }
        _ => {
            let _ = send(&wire, &AgentMessage::Bye { reason: "expected `attach`".into() }).await;
            return;
        }
    };
    context.attached.borrow_mut().insert(id, AttachedConsole { last_message: Instant::now(), pings: false });
    let registration = Registration { id, context: context.clone() };
    let (answers, inbox) = mpsc::channel(ANSWERS);
    let (enabled, watched) = watch::channel(false);
    let subscription = Subscription { after_seq, log_tail: log_tail as usize, frames: watched };
    tokio::select! {
        _ = send_updates(&wire, &context, inbox, subscription) => {}
        reason = receive(&wire, decoder, &registration, answers, &enabled) => { let _ = reason; }
    }
}

/// What a console has subscribed to.
struct Subscription {
    /// Records after this one.
    after_seq: u64,
    /// Lines of each log at first.
    log_tail: usize,
    /// Moments of rank 0's evaluation.
    frames: watch::Receiver<bool>,
}

async fn next(wire: &ConsoleSocket, decoder: &mut Decoder) -> io::Result<Option<ConsoleMessage>> {
    let mut chunk = vec![0; 16 << 10];
    loop {
        match decoder.next_frame() {
            Ok(Some(message)) => return Ok(Some(message)),
            Ok(None) => {}
            Err(error) => return Err(invalid(error)),
        }
        match wire.read(&mut chunk).await? {
            0 => return Ok(None),
            read => decoder.push(&chunk[..read]),
        }
    }
}

async fn receive(
    wire: &ConsoleSocket,
    mut decoder: Decoder,
    registration: &Registration,
    answers: mpsc::Sender<AgentMessage>,
    frames: &watch::Sender<bool>,
) -> io::Result<()> {
    let AgentInfo { run_dir, node, workdir, .. } = &*registration.context.identity;
    let paths = RunPaths { run_dir: run_dir.into(), node: *node };
    let placement = Placement::new(paths.clone(), workdir.clone());
    let mut placements =
        ConsolePlacements { orders: None, placement: Some(placement), answers: answers.clone() };
    let mut searches = ConsoleSearches::new(paths, answers.clone(), registration.context.searches.clone());
    while let Some(message) = next(wire, &mut decoder).await? {
        if let Some(attached) = registration.context.attached.borrow_mut().get_mut(&registration.id) {
            attached.last_message = Instant::now();
            attached.pings |= matches!(message, ConsoleMessage::Ping { .. });
        }
        let answer = match message {
            ConsoleMessage::Ping { sent_ms } => {
                AgentMessage::Pong { sent_ms, wall_time: Some(rankdeck_proto::clock::wall_time()) }
            }
            ConsoleMessage::ReservePort { request } => match ReservedPort::find() {
                Ok(found) => {
                    let port = found.port();
                    *registration.context.reserved.borrow_mut() = Some(found);
                    AgentMessage::PortReserved { request, port }
                }
                Err(error) => AgentMessage::Refused(HintedError {
                    error: format!("no free TCP port on {}: {error}", registration.context.identity.host),
                    hint: "set `launch.master_port` to a free port".into(),
                }),
            },
            ConsoleMessage::Watch { on } => {
                frames.send_replace(on);
                continue;
            }
            ConsoleMessage::Search { request, search: query } => {
                searches.start(request, query).await;
                continue;
            }
            ConsoleMessage::Checkpoint { request, order } => match placements.start(request, order) {
                Ok(()) => continue,
                Err(error) => {
                    AgentMessage::Checkpoint { request, reply: Box::new(CheckpointReply::Failed(error)) }
                }
            },
            ConsoleMessage::Attach { .. } | ConsoleMessage::Unknown => continue,
            message => {
                let order = ConsoleOrder { message, answers: answers.clone() };
                if registration.context.orders.send(order).await.is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        if answers.send(answer).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn send_updates(
    wire: &ConsoleSocket,
    context: &ConsoleContext,
    mut answers: mpsc::Receiver<AgentMessage>,
    subscription: Subscription,
) -> io::Result<()> {
    let mut bye = context.bye.clone();
    let mut feed = ConsoleStream::open(wire, context, subscription).await?;
    let mut burst = Vec::new();
    loop {
        let mut moved = false;
        while let Ok(answer) = answers.try_recv() {
            send(wire, &answer).await?;
            moved = true;
        }
        burst.clear();
        moved |= feed.take_into(&mut burst).await?;
        if !burst.is_empty() {
            write(wire, &burst).await?;
        }
        if moved {
            continue;
        }
        let reason = bye.borrow_and_update().clone();
        if let Some(reason) = reason {
            return send(wire, &AgentMessage::Bye { reason }).await;
        }
        tokio::select! {
            answer = answers.recv() => match answer {
                Some(answer) => send(wire, &answer).await?,
                None => return Ok(()),
            },
            more = feed.wait() => if !more { return Ok(()) },
            _ = bye.changed() => {}
        }
    }
}

/// What one console is sent by itself: records, samples and log lines, and how far it is.
struct ConsoleStream<'a> {
    context: &'a ConsoleContext,
    records: watch::Receiver<u64>,
    samples: watch::Receiver<NumberedSample>,
    lines: Rc<ConsoleLineQueue>,
    /// The latest record that was sent.
    sent: u64,
    /// The latest sample that was sent.
    seen: u64,
    /// Samples that newer ones have replaced.
    missed: u64,
    sight: FrameFeed,
}

/// Moments of rank 0's evaluation, for a console that watches.
struct FrameFeed {
    frames: watch::Receiver<LatestFrame>,
    enabled: watch::Receiver<bool>,
    /// Number of the latest one that was sent since the console watches.
    shown: Option<u64>,
    /// Those that newer ones have replaced since then.
    missed: u64,
}

impl FrameFeed {
    /// The newest one, once.
    fn take(&mut self) -> Option<AgentMessage> {
        if !*self.enabled.borrow_and_update() {
            (self.shown, self.missed) = (None, 0);
            return None;
        }
        let newest = self.frames.borrow_and_update();
        let (frame, generation, came) = newest.newest.as_ref()?;
        if self.shown == Some(newest.number) {
            return None;
        }
        self.missed += self.shown.map_or(0, |shown| newest.number - shown - 1);
        self.shown = Some(newest.number);
        Some(AgentMessage::Frame {
            generation: *generation,
            age_ms: came.elapsed().as_millis() as u64,
            missed: self.missed,
            frame: Box::new(LiveFrame::clone(frame)),
        })
    }

    /// Waits for another, or for the console to change its mind; false when nothing can come any more.
    async fn wait(&mut self) -> bool {
        if *self.enabled.borrow() {
            tokio::select! {
                gone = self.frames.changed() => gone.is_ok(),
                gone = self.enabled.changed() => gone.is_ok(),
            }
        } else {
            self.enabled.changed().await.is_ok()
        }
    }
}

impl ConsoleStream<'_> {
    /// Sends the greeting and the current state, from which the stream continues.
    async fn open<'a>(
        wire: &ConsoleSocket,
        context: &'a ConsoleContext,
        subscription: Subscription,
    ) -> io::Result<ConsoleStream<'a>> {
        let identity = &context.identity;
        let hello = AgentMessage::Hello {
            protocol: PROTOCOL,
            build: identity.build.clone(),
            host: identity.host.clone(),
            node_rank: identity.node,
            run: identity.run.clone(),
            pid: std::process::id(),
            wall_time: wall_time(),
            run_dir: identity.run_dir.clone(),
        };
        send(wire, &hello).await?;
        let (records, samples) = (context.spool.watch(), context.samples.clone());
        let lines = context.lines.borrow_mut().subscribe();
        let last_seq = *records.borrow();
        let snapshot = {
            let lifecycle = context.lifecycle.borrow();
            let spec = lifecycle.spec().cloned().map(Box::<LaunchSpec>::new);
            let holds =
                spec.as_ref().map(|spec| context.kept.borrow().names(spec, &launch_prep::is_inherited));
            AgentMessage::Snapshot {
                spec,
                ranks: lifecycle.snapshot(),
                last_seq,
                holds: holds.unwrap_or_default(),
            }
        };
        let tails = context.lines.borrow().tails(subscription.log_tail);
        send(wire, &snapshot).await?;
        for tail in &tails {
            send(wire, tail).await?;
        }
        let seen = samples.borrow().0.saturating_sub(1);
        let sight = FrameFeed {
            frames: context.frames.clone(),
            enabled: subscription.frames,
            shown: None,
            missed: 0,
        };
        let sent = subscription.after_seq.min(last_seq);
        Ok(ConsoleStream { context, records, samples, lines, sent, seen, missed: 0, sight })
    }

    /// Adds frames of what there is now; whether there may be more at once.
    async fn take_into(&mut self, burst: &mut Vec<u8>) -> io::Result<bool> {
        let mut more = false;
        let newest = self.samples.borrow_and_update().0;
        if newest > self.seen {
            self.missed += newest - self.seen - 1;
            self.seen = newest;
            let dropped = self.missed + self.lines.dropped() + self.context.lines.borrow().dropped;
            let sample = &self.samples.borrow().1;
            let kills_in_ms = self.context.kills_in();
            encode_sample_into(burst, sample, dropped, kills_in_ms).map_err(invalid)?;
        }
        let (upto, sent) = (*self.records.borrow_and_update(), self.sent);
        if upto > sent {
            let spool = &self.context.spool;
            let lines = if spool.is_recent(sent) {
                spool.read(sent, BURST_BYTES)
            } else {
                let spool = spool.clone();
                tokio::task::spawn_blocking(move || spool.read(sent, BURST_BYTES)).await.unwrap_or_default()
            };
            for line in &lines {
                frame_record(burst, &line.json);
                self.sent = self.sent.max(line.seq);
            }
            more |= !lines.is_empty();
        }
        if let Some(message) = self.sight.take() {
            frame(burst, &message)?;
        }
        if let Some(batch) = self.lines.pop() {
            frame(burst, &batch.message())?;
            more = true;
        }
        Ok(more)
    }

    /// Waits for something to send; false when nothing can come any more.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            gone = self.records.changed() => gone.is_ok(),
            gone = self.samples.changed() => {
                if gone.is_err() {
                    return false;
                }
                // The loop takes in the ranks' events up to this round.
                tokio::task::yield_now().await;
                if self.context.spool.is_behind() {
                    tokio::time::sleep(GATHER).await;
                }
                true
            }
            () = self.lines.fed() => true,
            more = self.sight.wait() => more,
        }
    }
}

/// The frame of a record, made from its JSON as it stands in the spool: `{"kind":"record",` and the rest of
/// the object.
fn frame_record(into: &mut Vec<u8>, json: &str) {
    const HEAD: &[u8] = b"{\"kind\":\"record\",";
    let rest = json.as_bytes().get(1..).unwrap_or_default();
    into.extend(((HEAD.len() + rest.len()) as u32).to_be_bytes());
    into.extend(HEAD);
    into.extend(rest);
}

async fn send(wire: &ConsoleSocket, message: &AgentMessage) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame(&mut bytes, message)?;
    write(wire, &bytes).await
}

fn frame(into: &mut Vec<u8>, message: &AgentMessage) -> io::Result<()> {
    encode_into(into, message).map_err(invalid)
}

fn invalid(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn write(wire: &ConsoleSocket, bytes: &[u8]) -> io::Result<()> {
    tokio::time::timeout(WRITE_PATIENCE, wire.write_all(bytes))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A console's connection. What comes wakes the loop, and room for more bytes does only where there was none: a socket
/// that the runtime watches in both directions wakes the loop each time the other end has read something, and every
/// wake takes a moment from the ranks' cores.
#[derive(Debug)]
struct ConsoleSocket {
    socket: AsyncFd<std::os::unix::net::UnixStream>,
}

impl ConsoleSocket {
    /// Takes a socket over.
    fn new(stream: UnixStream) -> io::Result<ConsoleSocket> {
        Ok(ConsoleSocket { socket: watched(stream.into_std()?, Interest::READABLE)? })
    }

    /// Waits for bytes; 0 when the other end has closed.
    async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().read(into)) {
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Writes all of it. Not cancel-safe: a part may have been written.
    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.get_ref().write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.room().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the other end has read something, on its own descriptor.
    async fn room(&self) -> io::Result<()> {
        let socket = watched(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        socket.writable().await.map(drop)
    }
}

fn watched(
    socket: std::os::unix::net::UnixStream,
    interest: Interest,
) -> io::Result<AsyncFd<std::os::unix::net::UnixStream>> {
    // SAFETY: a socket keeps its one descriptor open for as long as it lives, and `AsyncFd` does not give it
    // away here.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

/// Most searches of all consoles at once.
const SEARCHES: usize = 8;
/// Interval of progress reports.
const SEARCH_REPORTS: Duration = Duration::from_millis(300);
/// How long a search may take.
const SEARCH_PATIENCE: Duration = Duration::from_secs(600);

/// Searches in this host's logs for one console: one at a time, each in a thread of its own, so that neither the loop
/// nor a rank waits for a disk. A newer search, and the console's end, cancel the one before.
struct ConsoleSearches {
    paths: RunPaths,
    answers: mpsc::Sender<AgentMessage>,
    /// Searches of all consoles that are under way.
    all: Arc<AtomicUsize>,
    /// Calls off the latest one.
    off: Arc<AtomicBool>,
}

impl ConsoleSearches {
    fn new(paths: RunPaths, answers: mpsc::Sender<AgentMessage>, all: Arc<AtomicUsize>) -> ConsoleSearches {
        ConsoleSearches { paths, answers, all, off: Arc::default() }
    }

    /// Starts one in place of that before; `None`: calls that off and nothing else.
    async fn start(&mut self, request: u64, query: Option<Box<LogSearch>>) {
        self.off.store(true, Ordering::Relaxed);
        let Some(query) = query else { return };
        // The first reply confirms the search.
        let mut first = LogFindings::default();
        if self.all.load(Ordering::Relaxed) >= SEARCHES {
            first = not_searched(format!("{SEARCHES} searches are running on this host"));
        }
        let busy = first.over;
        let message = AgentMessage::Found { request, findings: Box::new(first) };
        if self.answers.send(message).await.is_err() || busy {
            return;
        }
        self.off = Arc::default();
        let (off, paths, answers, held) =
            (self.off.clone(), self.paths.clone(), self.answers.clone(), SearchCount::new(&self.all));
        let thread = std::thread::Builder::new().name("search".into()).spawn(move || {
            search::yield_to_others();
            run_search(request, &query, &paths, &answers, &off);
            drop(held);
        });
        if let Err(error) = thread {
            let findings = Box::new(not_searched(format!("cannot start a search thread: {error}")));
            let _ = self.answers.send(AgentMessage::Found { request, findings }).await;
        }
    }
}

impl Drop for ConsoleSearches {
    fn drop(&mut self) {
        self.off.store(true, Ordering::Relaxed);
    }
}

/// Counts a search while it is under way.
struct SearchCount(Arc<AtomicUsize>);

impl SearchCount {
    fn new(all: &Arc<AtomicUsize>) -> SearchCount {
        all.fetch_add(1, Ordering::Relaxed);
        SearchCount(all.clone())
    }
}

impl Drop for SearchCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn not_searched(cut: String) -> LogFindings {
    LogFindings { cut, over: true, ..LogFindings::default() }
}

fn run_search(
    request: u64,
    query: &LogSearch,
    paths: &RunPaths,
    answers: &mpsc::Sender<AgentMessage>,
    off: &AtomicBool,
) {
    let began = Instant::now();
    let mut sent_at = began;
    let mut go_on = |so_far: &LogFindings| {
        if sent_at.elapsed() >= SEARCH_REPORTS {
            sent_at = Instant::now();
            let findings = Box::new(so_far.clone());
            // A console that is slow misses this one.
            let sent = answers.try_send(AgentMessage::Found { request, findings });
            if let Err(mpsc::error::TrySendError::Closed(_)) = sent {
                return false;
            }
        }
        !off.load(Ordering::Relaxed) && began.elapsed() < SEARCH_PATIENCE
    };
    let found = search::search_nodes(std::slice::from_ref(paths), query, FRAME_ROOM, &mut go_on);
    if off.load(Ordering::Relaxed) {
        return;
    }
    let findings = match found {
        Ok(found) if found.over => found,
        Ok(found) => {
            let cut = format!("not all lines were searched within {} s", SEARCH_PATIENCE.as_secs());
            LogFindings { cut, over: true, ..found }
        }
        Err(error) => not_searched(format!("`{}`: {error}", query.pattern)),
    };
    let _ = answers.blocking_send(AgentMessage::Found { request, findings: Box::new(findings) });
}

/// Orders about checkpoints that may wait for the disk.
const PLACEMENTS: usize = 64;

/// Orders of one console about checkpoints, in a thread of their own and in their order. It ends with the console.
struct ConsolePlacements {
    orders: Option<std::sync::mpsc::SyncSender<(u64, Box<CheckpointOrder>)>>,
    /// Until the thread has it.
    placement: Option<Placement>,
    answers: mpsc::Sender<AgentMessage>,
}

impl ConsolePlacements {
    /// Queues an order.
    ///
    /// Errors: too many orders wait, or the thread cannot be started.
    fn start(&mut self, request: u64, order: Box<CheckpointOrder>) -> Result<(), HintedError> {
        let busy =
            |why: String| HintedError::new(format!("cannot read or write checkpoints: {why}"), "try again");
        if let Some(placement) = self.placement.take() {
            let (orders, inbox) = std::sync::mpsc::sync_channel::<(u64, Box<CheckpointOrder>)>(PLACEMENTS);
            let answers = self.answers.clone();
            let work = move || {
                while let Ok((request, order)) = inbox.recv() {
                    let reply = Box::new(placement.obey(&order));
                    if answers.blocking_send(AgentMessage::Checkpoint { request, reply }).is_err() {
                        return;
                    }
                }
            };
            let started = std::thread::Builder::new().name("placement".into()).spawn(work);
            started.map_err(|error| busy(error.to_string()))?;
            self.orders = Some(orders);
        }
        let sent = self.orders.as_ref().is_some_and(|orders| orders.try_send((request, order)).is_ok());
        if sent { Ok(()) } else { Err(busy("too many pending requests".to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{Record, RecordEvent};
    use rankdeck_types::ids::Generation;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn record_framed_from_the_spool_is_the_record() {
        let event = RecordEvent::Notice { text: "a \"b\"".into() };
        let record = Record { seq: 7, time: 1.5, generation: Generation(2), event };
        let mut bytes = Vec::new();
        frame_record(&mut bytes, &serde_json::to_string(&record).unwrap());
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        assert_eq!(decoder.next_frame::<AgentMessage>().unwrap(), Some(AgentMessage::Record(record)));
        assert_eq!(decoder.next_bytes().unwrap(), None);
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn slow_reader_gets_more_than_the_socket_buffer() {
        let (mut console, agent) = tokio::net::UnixStream::pair().unwrap();
        let wire = ConsoleSocket::new(agent).unwrap();
        let sent: Vec<u8> = (0..4_000_000u32).map(|at| at as u8).collect();
        let console_side = async {
            console.write_all(b"hello").await.unwrap();
            let mut got = Vec::new();
            let mut chunk = vec![0; 100_000];
            while got.len() < sent.len() {
                let read = console.read(&mut chunk).await.unwrap();
                assert!(read > 0);
                got.extend_from_slice(&chunk[..read]);
                tokio::task::yield_now().await;
            }
            drop(console);
            got
        };
        let agent_side = async {
            let mut bytes = [0; 16];
            let read = wire.read(&mut bytes).await.unwrap();
            assert_eq!(&bytes[..read], b"hello");
            wire.write_all(&sent).await.unwrap();
            assert_eq!(wire.read(&mut bytes).await.unwrap(), 0, "it has closed");
            assert!(wire.write_all(b"x").await.is_err());
        };
        let both = async { tokio::join!(console_side, agent_side) };
        let (got, ()) = tokio::time::timeout(PATIENCE, both).await.expect("all of it");
        assert!(got == sent);
    }
}
