//! A client of NCCL's RAS subsystem (reliability, availability, serviceability): one question, one report.
//!
//! Owner: the helper thread of one inspection. Protocol: lines of text over TCP; `SET FORMAT json` is
//! answered with `OK` or `ERROR: ...`, then `STATUS` with the report and the end of the connection; `MONITOR`
//! (NCCL 2.29) with lines without end. Sources: NCCL's user guide, chapter on RAS; `src/ras` of NCCL 2.24 to
//! 2.30.
//!
//! What it is worth: RAS counts launches, not completions, leaves out captured graphs and point-to-point
//! calls, and says that all is well while every rank is inside the same kernel. It is a second witness, never
//! the only one.
//! - Nothing that the other end sends or omits blocks longer than the deadline or takes more than
//!   [`BYTES`].
//! - NCCL 2.28.7 and 2.28.9 leave out the comma after `nvml_dev` of a missing rank; that is read as if
//!   it were there.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Most bytes of a report.
const BYTES: usize = 16 << 20;
/// Longest line of a monitor stream.
const LINE: usize = 4096;
/// Most lines of a textual report that are kept.
const LINES: usize = 200;
/// One that can answer greets within this: its thread does nothing else. A report takes a second and more
/// where ranks are missing, for it waits for them.
const GREETING: Duration = Duration::from_millis(300);

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoReport {
    /// As where NCCL has no RAS, or has it turned off.
    #[error("nobody listens there")]
    NobodyListens,
    #[error("{0}")]
    Other(String),
}

impl From<String> for NoReport {
    fn from(text: String) -> NoReport {
        NoReport::Other(text)
    }
}

impl From<&str> for NoReport {
    fn from(text: &str) -> NoReport {
        NoReport::Other(text.to_owned())
    }
}

/// What RAS said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Version of NCCL, empty when it did not say.
    pub version: String,
    /// Communicators, from a JSON report.
    pub communicators: Vec<Communicator>,
    /// The report as it came, from a version that knows no JSON.
    pub text: Vec<String>,
}

/// One communicator.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Communicator {
    /// Its hash, equal on all members.
    pub hash: String,
    /// Members.
    pub size: u32,
    /// Members that answered.
    pub ranks: Vec<Member>,
    /// Members that did not.
    pub missing_ranks: Vec<MissingMember>,
}

/// A member that answered.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Member {
    /// Rank in the communicator.
    pub rank: u32,
    pub host: String,
    /// Process; -1 where NCCL does not know it.
    pub pid: i64,
    pub status: Status,
    /// Launches by kind of collective.
    pub collective_counts: BTreeMap<String, u64>,
}

/// State of a member that answered.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// 0: running.
    pub init_state: i64,
    /// 0: none.
    pub async_error: i64,
    /// It is being finalised.
    pub finalize_called: bool,
    /// It is being destroyed.
    pub destroy_flag: bool,
    /// It was aborted.
    pub abort_flag: bool,
}

/// A member that did not answer.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct MissingMember {
    /// Rank in the communicator.
    pub rank: u32,
    pub host: String,
    /// Process; -1 where NCCL does not know it.
    pub pid: i64,
    /// How it is missing.
    pub status: MissingStatus,
}

/// How a member is missing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct MissingStatus {
    /// It has not answered for seconds.
    pub unresponsive: bool,
    /// It has not answered for a minute.
    pub considered_dead: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    nccl_version: String,
    communicators: Vec<Communicator>,
}

/// Asks the first of these that greets: that one has all the time that is left. `None`: nobody listens at any
/// of them, as where NCCL has no RAS (it came with 2.24), or has it turned off. An error says why there is no
/// report.
pub fn ask_any(addresses: &[String], deadline: Instant) -> Result<Option<Report>, String> {
    let mut why = None;
    for (asked, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - asked).clamp(1, 2) as u32;
        match ask_within(address, share.min(GREETING), deadline) {
            Ok(report) => return Ok(Some(report)),
            Err(NoReport::NobodyListens) => {}
            Err(error) => why = Some(format!("{address}: {error}")),
        }
        if left.is_zero() {
            break;
        }
    }
    why.map_or(Ok(None), Err)
}

/// Asks for a report; an error says in words why there is none.
pub fn ask(address: &str, deadline: Instant) -> Result<Report, NoReport> {
    ask_within(address, deadline.saturating_duration_since(Instant::now()), deadline)
}

/// The same of one that has to greet within this time.
fn ask_within(address: &str, greeting: Duration, deadline: Instant) -> Result<Report, NoReport> {
    let mut talk = RasConnection::open(address, deadline.min(Instant::now() + greeting))?;
    talk.say("SET FORMAT json")?;
    let greeted = talk.line()?;
    talk.deadline = deadline;
    if greeted == "OK" {
        // Otherwise the rank that answers waits 5 s for those that do not, which is longer than a look lasts.
        talk.say("TIMEOUT 1")?;
        talk.line()?;
        talk.say("STATUS")?;
        return Ok(parse(&talk.rest()?)?);
    }
    // A version before 2.28.7. Whether it goes on after an error differs, so a new connection is made.
    let mut talk = RasConnection::open(address, deadline)?;
    talk.say("VERBOSE STATUS")?;
    Ok(parse(&talk.rest()?)?)
}

struct RasConnection {
    stream: TcpStream,
    deadline: Instant,
    ahead: Vec<u8>,
}

impl RasConnection {
    fn open(address: &str, deadline: Instant) -> Result<RasConnection, NoReport> {
        let mut last = NoReport::from("the address is empty");
        for target in address.to_socket_addrs().map_err(told)? {
            let left = left(deadline)?;
            match TcpStream::connect_timeout(&target, left) {
                Ok(stream) => return Ok(RasConnection { stream, deadline, ahead: Vec::new() }),
                Err(error) => last = told(error),
            }
        }
        Err(last)
    }

    fn say(&mut self, line: &str) -> Result<(), NoReport> {
        let timeout = self.stream.set_write_timeout(Some(left(self.deadline)?));
        timeout.and_then(|()| self.stream.write_all(format!("{line}\n").as_bytes())).map_err(told)
    }

    /// Reads more; `false` at the end.
    fn more(&mut self) -> Result<bool, NoReport> {
        if self.ahead.len() > BYTES {
            return Err(format!("it sent more than {} MiB", BYTES >> 20).into());
        }
        self.stream.set_read_timeout(Some(left(self.deadline)?)).map_err(told)?;
        let mut chunk = [0; 16 << 10];
        let got = self.stream.read(&mut chunk).map_err(told)?;
        self.ahead.extend(&chunk[..got]);
        Ok(got > 0)
    }

    fn line(&mut self) -> Result<String, NoReport> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.ahead.len() > LINE || !self.more()? {
                return Err("it does not speak RAS's protocol".into());
            }
        }
    }

    fn rest(&mut self) -> Result<String, NoReport> {
        while self.more()? {}
        Ok(String::from_utf8_lossy(&self.ahead).into_owned())
    }
}

fn left(deadline: Instant) -> Result<Duration, NoReport> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err("no answer in time".into()) } else { Ok(left) }
}

fn told(error: std::io::Error) -> NoReport {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".into(),
        ErrorKind::ConnectionRefused => NoReport::NobodyListens,
        _ => error.to_string().into(),
    }
}

/// Reads a report of either kind.
pub fn parse(text: &str) -> Result<Report, String> {
    let text = text.trim();
    if let Some(error) = text.strip_prefix("ERROR:") {
        return Err(error.trim().lines().next().unwrap_or_default().to_owned());
    }
    if !text.starts_with('{') {
        let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).take(LINES).collect();
        if lines.is_empty() {
            return Err("an empty report".into());
        }
        let version = lines.iter().find_map(|line| line.strip_prefix("NCCL version ")?.split(' ').next());
        return Ok(Report {
            version: version.unwrap_or_default().to_owned(),
            communicators: Vec::new(),
            text: lines,
        });
    }
    let document: Document = serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&mended(text)))
        .map_err(|error| format!("its report is not JSON: {error}"))?;
    let Document { nccl_version: version, communicators } = document;
    Ok(Report { version, communicators, text: Vec::new() })
}

/// The report with the commas that 2.28 leaves out: before a key that follows a value without one.
fn mended(text: &str) -> String {
    let mut mended = String::with_capacity(text.len() + 64);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        mended.push_str(line);
        let ends_value =
            line.trim_end().ends_with(|c: char| c.is_ascii_digit() || matches!(c, '"' | '}' | ']' | 'e'));
        let next_is_key =
            lines.peek().is_some_and(|next| next.trim_start().starts_with('"') && next.contains(':'));
        if ends_value && next_is_key {
            mended.push(',');
        }
        mended.push('\n');
    }
    mended
}

impl Report {
    /// What it says about a rank of the run and about those that differ, in sentences. Ranks are those of
    /// communicators as large as the largest one.
    pub fn lines_about(&self, rank: u32) -> Vec<String> {
        let mut lines = Vec::new();
        for communicator in &self.communicators {
            let Communicator { hash, size, ranks, missing_ranks } = communicator;
            for missing in missing_ranks {
                let how = if missing.status.considered_dead { "considered dead" } else { "unresponsive" };
                let pid = if missing.pid < 0 { String::new() } else { format!("pid {} ", missing.pid) };
                lines.push(format!(
                    "communicator {hash} of {size}: rank {} ({pid}on {}) is {how}",
                    missing.rank, missing.host
                ));
            }
            for member in ranks {
                let Status { init_state, async_error, abort_flag, .. } = member.status;
                if async_error != 0 || abort_flag || init_state != 0 {
                    lines.push(format!(
                        "communicator {hash} of {size}: rank {}: init state {init_state}, async error {async_error}{}",
                        member.rank,
                        if abort_flag { ", aborted" } else { "" }
                    ));
                }
            }
            for (op, most) in communicator.most_launched() {
                let behind: Vec<String> = ranks
                    .iter()
                    .filter(|member| member.count(op) < most)
                    .map(|member| format!("rank {} has launched {}", member.rank, member.count(op)))
                    .collect();
                if !behind.is_empty() && behind.len() < ranks.len() {
                    lines.push(format!(
                        "communicator {hash} of {size}: {op}: {most} launched, but {}",
                        behind.join(", ")
                    ));
                }
            }
            if let Some(own) = ranks.iter().find(|member| member.rank == rank) {
                let counts: Vec<String> = own
                    .collective_counts
                    .iter()
                    .filter(|(_, count)| **count > 0)
                    .map(|(op, count)| format!("{op} {count}"))
                    .collect();
                lines.push(format!(
                    "communicator {hash} of {size}: rank {rank} has launched {}",
                    counts.join(", ")
                ));
            }
        }
        lines.extend(self.text.iter().filter(|line| !line.trim().is_empty()).take(40).cloned());
        lines
    }
}

impl Communicator {
    /// The largest number of launches of each kind.
    pub fn most_launched(&self) -> BTreeMap<&str, u64> {
        let mut most = BTreeMap::new();
        for (op, count) in self.ranks.iter().flat_map(|member| &member.collective_counts) {
            let known: &mut u64 = most.entry(op.as_str()).or_default();
            *known = (*known).max(*count);
        }
        most
    }
}

impl Member {
    /// Launches of one kind.
    pub fn count(&self, op: &str) -> u64 {
        self.collective_counts.get(op).copied().unwrap_or(0)
    }
}

/// One event of a monitor stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `PEER_DEAD`, `PEER_SEND_STUCK`, ...
    pub name: String,
    /// The whole line.
    pub line: String,
    /// Something is wrong with the peer, rather than under way.
    pub bad: bool,
}

/// Splits a monitor stream into events; chunks may end anywhere.
#[derive(Debug, Default)]
pub struct Monitor {
    ahead: Vec<u8>,
    /// Bytes of lines that were too long.
    pub dropped: u64,
}

impl Monitor {
    /// Takes bytes and gives the events that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.ahead.extend(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.ahead.drain(..=end).collect();
            events.extend(event(&String::from_utf8_lossy(&line)));
        }
        if self.ahead.len() > LINE {
            self.dropped += self.ahead.len() as u64;
            self.ahead.clear();
        }
        events
    }
}

fn event(line: &str) -> Option<Event> {
    const BAD: [&str; 6] = [
        "PEER_DEAD",
        "PEER_DISCONNECTED",
        "PEER_UNRESPONSIVE",
        "PEER_KEEPALIVE_TIMEOUT",
        "PEER_SEND_STUCK",
        "TIMEOUT",
    ];
    let name =
        line.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).find(|word| word.starts_with("PEER_"))?;
    let bad = BAD.iter().any(|known| name.contains(known));
    Some(Event { name: name.to_owned(), line: line.trim().chars().take(LINE).collect(), bad })
}

#[cfg(test)]
#[path = "ras_tests.rs"]
mod tests;
