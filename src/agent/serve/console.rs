//! One connection of one console: attach, then records, samples, logs and answers, as fast as this console
//! takes them.
//!
//! Owner: two tasks per connection on the agent's loop. Invariants:
//! - CONSOLE-1: a slow or stopped console holds up nobody: records are read from the spool when it is ready
//!   for them, samples are replaced by newer ones, log lines over the bound are dropped and counted, and a
//!   write that takes [`WRITE_PATIENCE`] ends the connection.
//! - Only this user's processes are served.

use crate::observe::logs::Batch;
use crate::observe::sample::NumberedSample;
use crate::paths::{RunPaths, own_uid};
use crate::serve::events::LatestFrame;
use crate::serve::kept::{self, LaunchVariables};
use crate::serve::line_store::{LineStore, Queue};
use crate::serve::searches::Searches;
use crate::serve::{port::ReservedPort, spool::Spool, wire::Wire};
use crate::supervise::lifecycle::Lifecycle;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::frame::{Decoder, FrameError, encode_into, encode_sample_into};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, LaunchSpec, PROTOCOL};
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, RunId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};
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

/// What consoles are told about the agent.
#[derive(Debug, Clone)]
pub struct Identity {
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Index of this host.
    pub node: NodeRank,
    /// Build of this agent.
    pub build: String,
    /// Folder of the run.
    pub run_dir: String,
}

/// An order that the loop has to carry out.
#[derive(Debug)]
pub struct Order {
    /// What the console wants.
    pub message: ConsoleMessage,
    /// Where the answer goes.
    pub answers: mpsc::Sender<AgentMessage>,
}

/// A console that is attached.
#[derive(Debug, Clone, Copy)]
pub struct AttachedConsole {
    /// When it last said something.
    pub heard: Instant,
    /// It beats, so that its silence means something.
    pub pings: bool,
}

/// What connections share with the loop.
#[derive(Clone)]
pub struct ConsoleContext {
    /// Who serves.
    pub identity: Rc<Identity>,
    /// Records.
    pub spool: Spool,
    pub samples: watch::Receiver<NumberedSample>,
    /// State for snapshots.
    pub lifecycle: Rc<RefCell<Lifecycle>>,
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
    pub orders: mpsc::Sender<Order>,
    /// The port of the latest generation, from its reservation to the next one.
    pub reserved: Rc<RefCell<Option<ReservedPort>>>,
    /// `Some(reason)` once the agent ends.
    pub bye: watch::Receiver<Option<String>>,
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
pub async fn serve(stream: UnixStream, id: u64, context: ConsoleContext) {
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid()) {
        return;
    }
    let Ok(wire) = Wire::new(stream) else { return };
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
                "console {build} speaks protocol {protocol}, the agent on {} speaks {PROTOCOL}",
                context.identity.host
            );
            let hint = "use the rankdeck version that launched the run".to_owned();
            let _ = send(&wire, &AgentMessage::Refused(HintedError { error, hint })).await;
            let _ = send(&wire, &AgentMessage::Bye { reason: "protocol".into() }).await;
            return;
        }
        _ => {
            let _ = send(&wire, &AgentMessage::Bye { reason: "no attach".into() }).await;
            return;
        }
    };
    context.attached.borrow_mut().insert(id, AttachedConsole { heard: Instant::now(), pings: false });
    let registration = Registration { id, context: context.clone() };
    let (answers, inbox) = mpsc::channel(ANSWERS);
    let (wanted, watched) = watch::channel(false);
    let wants = Subscription { after_seq, log_tail: log_tail as usize, frames: watched };
    tokio::select! {
        _ = talk(&wire, &context, inbox, wants) => {}
        reason = hear(&wire, decoder, &registration, answers, &wanted) => { let _ = reason; }
    }
}

/// What a console wants to be sent by itself.
struct Subscription {
    /// Records after this one.
    after_seq: u64,
    /// Lines of each log at first.
    log_tail: usize,
    /// Moments of rank 0's evaluation.
    frames: watch::Receiver<bool>,
}

async fn next(wire: &Wire, decoder: &mut Decoder) -> io::Result<Option<ConsoleMessage>> {
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

async fn hear(
    wire: &Wire,
    mut decoder: Decoder,
    registration: &Registration,
    answers: mpsc::Sender<AgentMessage>,
    frames: &watch::Sender<bool>,
) -> io::Result<()> {
    let Identity { run_dir, node, .. } = &*registration.context.identity;
    let paths = RunPaths { run_dir: run_dir.into(), node: *node };
    let mut searches = Searches::new(paths, answers.clone(), registration.context.searches.clone());
    while let Some(message) = next(wire, &mut decoder).await? {
        if let Some(attached) = registration.context.attached.borrow_mut().get_mut(&registration.id) {
            attached.heard = Instant::now();
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
                    hint: "set `launch.master_port` to a port that is free".into(),
                }),
            },
            ConsoleMessage::Watch { on } => {
                frames.send_replace(on);
                continue;
            }
            ConsoleMessage::Search { request, wanted } => {
                searches.begin(request, wanted).await;
                continue;
            }
            ConsoleMessage::Attach { .. } | ConsoleMessage::Unknown => continue,
            message => {
                let order = Order { message, answers: answers.clone() };
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

async fn talk(
    wire: &Wire,
    context: &ConsoleContext,
    mut answers: mpsc::Receiver<AgentMessage>,
    wants: Subscription,
) -> io::Result<()> {
    let mut bye = context.bye.clone();
    let mut feed = Feed::open(wire, context, wants).await?;
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
struct Feed<'a> {
    context: &'a ConsoleContext,
    records: watch::Receiver<u64>,
    samples: watch::Receiver<NumberedSample>,
    lines: Rc<Queue>,
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
    wanted: watch::Receiver<bool>,
    /// Number of the latest one that was sent since the console watches.
    shown: Option<u64>,
    /// Those that newer ones have replaced since then.
    missed: u64,
}

impl FrameFeed {
    /// The newest one, once.
    fn take(&mut self) -> Option<AgentMessage> {
        if !*self.wanted.borrow_and_update() {
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
        if *self.wanted.borrow() {
            tokio::select! {
                gone = self.frames.changed() => gone.is_ok(),
                gone = self.wanted.changed() => gone.is_ok(),
            }
        } else {
            self.wanted.changed().await.is_ok()
        }
    }
}

impl Feed<'_> {
    /// Greets the console and tells it the state of the moment, from which the feed goes on.
    async fn open<'a>(wire: &Wire, context: &'a ConsoleContext, wants: Subscription) -> io::Result<Feed<'a>> {
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
            let holds = spec.as_ref().map(|spec| context.kept.borrow().names(spec, &kept::inherited));
            AgentMessage::Snapshot {
                spec,
                ranks: lifecycle.snapshot(),
                last_seq,
                holds: holds.unwrap_or_default(),
            }
        };
        let tails = context.lines.borrow().tails(wants.log_tail);
        send(wire, &snapshot).await?;
        for tail in &tails {
            send(wire, tail).await?;
        }
        let seen = samples.borrow().0.saturating_sub(1);
        let sight =
            FrameFeed { frames: context.frames.clone(), wanted: wants.frames, shown: None, missed: 0 };
        let sent = wants.after_seq.min(last_seq);
        Ok(Feed { context, records, samples, lines, sent, seen, missed: 0, sight })
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
            encode_sample_into(burst, sample, dropped).map_err(invalid)?;
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
            let Batch { rank, first, lines, times, .. } = batch;
            frame(burst, &AgentMessage::Log { rank, first, lines, times })?;
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
                // The loop takes in what ranks have said by this round.
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

async fn send(wire: &Wire, message: &AgentMessage) -> io::Result<()> {
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

async fn write(wire: &Wire, bytes: &[u8]) -> io::Result<()> {
    tokio::time::timeout(WRITE_PATIENCE, wire.write_all(bytes))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{Record, RecordEvent};
    use rankdeck_types::ids::Generation;

    #[test]
    fn a_record_framed_from_the_spool_is_the_record() {
        let event = RecordEvent::Notice { text: "a \"b\"".into() };
        let record = Record { seq: 7, time: 1.5, generation: Generation(2), event };
        let mut bytes = Vec::new();
        frame_record(&mut bytes, &serde_json::to_string(&record).unwrap());
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        assert_eq!(decoder.next_frame::<AgentMessage>().unwrap(), Some(AgentMessage::Record(record)));
        assert_eq!(decoder.next_bytes().unwrap(), None);
    }
}
