//! A client of NCCL's RAS subsystem (reliability, availability, serviceability): one question, one report.
//!
//! Owner: the helper thread of one inspection. Protocol: lines of text over TCP; `SET FORMAT json` is
//! answered with `OK` or `ERROR: ...`, then `STATUS` with the report and the end of the connection. Sources:
//! NCCL's user guide, chapter on RAS; `src/ras` of NCCL 2.24 to 2.30.
//!
//! What it is worth: RAS counts launches, not completions, leaves out captured graphs and point-to-point
//! calls, and reports no problem while every rank is inside the same kernel. It is a second source, never
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
pub(crate) enum NoReport {
    /// As where NCCL has no RAS, or has it turned off.
    #[error("connection refused")]
    ConnectionRefused,
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

/// A report of RAS.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RasReport {
    /// Version of NCCL, empty when unknown.
    pub version: String,
    /// Communicators, from a JSON report.
    pub communicators: Vec<RasCommunicator>,
    /// The report as text, from a version without JSON.
    pub text: Vec<String>,
}

/// One communicator.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RasCommunicator {
    /// Its hash, equal on all members.
    pub hash: String,
    /// Members.
    pub size: u32,
    /// Members that answered.
    pub ranks: Vec<RasMember>,
    /// Members that did not.
    pub missing_ranks: Vec<MissingMember>,
}

/// A member that answered.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RasMember {
    /// Rank in the communicator.
    pub rank: u32,
    pub host: String,
    /// Process; -1 where unknown to NCCL.
    pub pid: i64,
    pub status: RasStatus,
    /// Launches by kind of collective.
    pub collective_counts: BTreeMap<String, u64>,
}

/// State of a member that answered.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RasStatus {
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

/// A member that did not respond.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MissingMember {
    /// Rank in the communicator.
    pub rank: u32,
    pub host: String,
    /// Process; -1 where unknown to NCCL.
    pub pid: i64,
    /// How it is missing.
    pub status: MissingStatus,
}

/// How a member is missing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MissingStatus {
    /// It has not answered for seconds.
    pub unresponsive: bool,
    /// It has not answered for a minute.
    pub considered_dead: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    nccl_version: String,
    communicators: Vec<RasCommunicator>,
}

/// Queries the first of these that greets: it gets all the remaining time. `None`: no server at any
/// of them, as where NCCL has no RAS (before 2.24) or has it disabled. An error is the reason for no
/// report.
pub(crate) fn query_any(addresses: &[String], deadline: Instant) -> Result<Option<RasReport>, String> {
    let mut why = None;
    for (asked, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - asked).clamp(1, 2) as u32;
        match query_within(address, share.min(GREETING), deadline) {
            Ok(report) => return Ok(Some(report)),
            Err(NoReport::ConnectionRefused) => {}
            Err(error) => why = Some(format!("{address}: {error}")),
        }
        if left.is_zero() {
            break;
        }
    }
    why.map_or(Ok(None), Err)
}

/// Requests a report from a server that must greet within this time.
fn query_within(address: &str, greeting: Duration, deadline: Instant) -> Result<RasReport, NoReport> {
    let mut talk = RasConnection::open(address, deadline.min(Instant::now() + greeting))?;
    talk.send("SET FORMAT json")?;
    let greeted = talk.line()?;
    talk.deadline = deadline;
    if greeted == "OK" {
        // Otherwise the rank that replies waits 5 s for those that do not, which is longer than an inspection.
        talk.send("TIMEOUT 1")?;
        talk.line()?;
        talk.send("STATUS")?;
        return Ok(parse(&talk.rest()?)?);
    }
    // A version before 2.28.7. Whether it continues after an error differs, so a new connection is made.
    let mut talk = RasConnection::open(address, deadline)?;
    talk.send("VERBOSE STATUS")?;
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
        for target in address.to_socket_addrs().map_err(io_error)? {
            let left = left(deadline)?;
            match TcpStream::connect_timeout(&target, left) {
                Ok(stream) => return Ok(RasConnection { stream, deadline, ahead: Vec::new() }),
                Err(error) => last = io_error(error),
            }
        }
        Err(last)
    }

    fn send(&mut self, line: &str) -> Result<(), NoReport> {
        let timeout = self.stream.set_write_timeout(Some(left(self.deadline)?));
        timeout.and_then(|()| self.stream.write_all(format!("{line}\n").as_bytes())).map_err(io_error)
    }

    /// Reads more; `false` at the end.
    fn more(&mut self) -> Result<bool, NoReport> {
        if self.ahead.len() > BYTES {
            return Err(format!("the report exceeds {} MiB", BYTES >> 20).into());
        }
        self.stream.set_read_timeout(Some(left(self.deadline)?)).map_err(io_error)?;
        let mut chunk = [0; 16 << 10];
        let got = self.stream.read(&mut chunk).map_err(io_error)?;
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
                return Err("not a RAS server".into());
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
    if left.is_zero() { Err("timed out".into()) } else { Ok(left) }
}

fn io_error(error: std::io::Error) -> NoReport {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timed out".into(),
        ErrorKind::ConnectionRefused => NoReport::ConnectionRefused,
        _ => error.to_string().into(),
    }
}

/// Reads a report of either kind.
pub(crate) fn parse(text: &str) -> Result<RasReport, String> {
    let text = text.trim();
    if let Some(error) = text.strip_prefix("ERROR:") {
        return Err(error.trim().lines().next().unwrap_or_default().to_owned());
    }
    if !text.starts_with('{') {
        let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).take(LINES).collect();
        if lines.is_empty() {
            return Err("empty report".into());
        }
        let version = lines.iter().find_map(|line| line.strip_prefix("NCCL version ")?.split(' ').next());
        return Ok(RasReport {
            version: version.unwrap_or_default().to_owned(),
            communicators: Vec::new(),
            text: lines,
        });
    }
    let document: Document = serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&mended(text)))
        .map_err(|error| format!("the report is not JSON: {error}"))?;
    let Document { nccl_version: version, communicators } = document;
    Ok(RasReport { version, communicators, text: Vec::new() })
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

impl RasReport {
    /// Returns sentences about a rank of the run and about those that differ. Ranks are those of
    /// communicators as large as the largest one.
    pub fn lines_about(&self, rank: u32) -> Vec<String> {
        let mut lines = Vec::new();
        for communicator in &self.communicators {
            let RasCommunicator { hash, size, ranks, missing_ranks } = communicator;
            for missing in missing_ranks {
                let how = if missing.status.considered_dead { "considered dead" } else { "unresponsive" };
                let pid = if missing.pid < 0 { String::new() } else { format!("pid {} ", missing.pid) };
                lines.push(format!(
                    "communicator {hash} of {size}: rank {} ({pid}on {}) is {how}",
                    missing.rank, missing.host
                ));
            }
            for member in ranks {
                let RasStatus { init_state, async_error, abort_flag, .. } = member.status;
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

impl RasCommunicator {
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

impl RasMember {
    /// Launches of one kind.
    pub fn count(&self, op: &str) -> u64 {
        self.collective_counts.get(op).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    const MISSING: &str = r#"{
  "nccl_version": "2.28.9",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xa1",
      "size": 3,
      "ranks": [
        { "rank": 0, "host": "a", "pid": 10, "status": { "init_state": 0, "async_error": 0, "abort_flag": false },
          "collective_counts": { "AllReduce": 46, "Broadcast": 2 } },
        { "rank": 2, "host": "b", "pid": 12, "status": { "init_state": 0, "async_error": 3, "abort_flag": true },
          "collective_counts": { "AllReduce": 45, "Broadcast": 2 } }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "a",
          "pid": 11,
          "cuda_dev": 1,
          "nvml_dev": 1
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": { "timeouts_count": 0 }
}
"#;

    /// A server that plays connections one after the other: for each, (what it expects, what it answers) in
    /// order, then it hangs up.
    fn server(script: Vec<Vec<(&'static str, &'static str)>>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            for connection in script {
                let (mut stream, _) = listener.accept().unwrap();
                for (expected, answer) in connection {
                    let mut line = Vec::new();
                    let mut byte = [0];
                    while line.last() != Some(&b'\n') && stream.read(&mut byte).unwrap() == 1 {
                        line.push(byte[0]);
                    }
                    assert_eq!(String::from_utf8(line).unwrap().trim(), expected);
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        (address, thread)
    }

    fn query(address: &str, deadline: Instant) -> Result<RasReport, NoReport> {
        query_within(address, deadline.saturating_duration_since(Instant::now()), deadline)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn json_is_asked_for_and_the_broken_one_of_2_28_is_read() {
        let (address, thread) =
            server(vec![vec![("SET FORMAT json", "OK\n"), ("TIMEOUT 1", "OK\n"), ("STATUS", MISSING)]]);
        let report = query(&address, soon()).unwrap();
        thread.join().unwrap();
        assert_eq!(report.version, "2.28.9");
        let lines = report.lines_about(0);
        insta::assert_snapshot!("ras_report_of_a_missing_rank", lines.join("\n"));
    }

    #[test]
    fn sound_json_is_not_touched() {
        let sound = MISSING.replace("\"nvml_dev\": 1\n", "\"nvml_dev\": 1,\n");
        assert_eq!(parse(&sound).unwrap(), parse(MISSING).unwrap());
        assert_eq!(mended(&sound).replace(char::is_whitespace, ""), sound.replace(char::is_whitespace, ""));
    }

    #[test]
    fn version_without_json_is_asked_for_text() {
        let text = "NCCL version 2.26.2 compiled with CUDA 12.8\nJob summary\n\nOK\n";
        let script =
            vec![vec![("SET FORMAT json", "ERROR: unknown command\n")], vec![("VERBOSE STATUS", text)]];
        let (address, thread) = server(script);
        let report = query(&address, soon()).unwrap();
        thread.join().unwrap();
        assert_eq!((report.version.as_str(), report.communicators.len()), ("2.26.2", 0));
        assert!(report.lines_about(0).contains(&"Job summary".to_owned()));
    }

    #[test]
    fn slow_server_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        let error = query(&listener.local_addr().unwrap().to_string(), begun + Duration::from_millis(200))
            .unwrap_err();
        assert_eq!(error, NoReport::from("timed out"));
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn refused_connection_gives_no_report_and_no_error() {
        let address = format!("127.0.0.1:{}", rankdeck_testkit::free_port());
        assert_eq!(query(&address, soon()), Err(NoReport::ConnectionRefused));
        assert_eq!(query_any(&[address.clone(), address.clone()], soon()), Ok(None));
        // One that hangs up is there.
        let (other, thread) = server(vec![vec![]]);
        assert!(query_any(&[other, address], soon()).is_err());
        thread.join().unwrap();
    }

    #[test]
    fn closed_or_invalid_reply_is_an_error() {
        let (address, thread) = server(vec![vec![]]);
        assert!(query(&address, soon()).is_err());
        thread.join().unwrap();
        assert!(parse("").is_err());
        assert!(parse("{\"communicators\": 5}").is_err());
        assert_eq!(parse("ERROR: busy\n").unwrap_err(), "busy");
    }

    /// NCCL reports -1 for an unknown process; another rank is queried when one does not reply.
    #[test]
    fn unknown_process_and_a_silent_rank_cost_no_report() {
        let unknown = MISSING.replace("\"pid\": 11,", "\"pid\": -1,");
        let unknown = parse(&unknown).unwrap();
        assert_eq!(unknown.communicators[0].missing_ranks[0].pid, -1);
        assert!(!unknown.lines_about(0).iter().any(|line| line.contains("-1")), "{unknown:?}");
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let script = vec![vec![("SET FORMAT json", "OK\n"), ("TIMEOUT 1", "OK\n"), ("STATUS", MISSING)]];
        let (address, thread) = server(script);
        let deadline = Instant::now() + Duration::from_secs(4);
        let report =
            query_any(&[silent.local_addr().unwrap().to_string(), address], deadline).unwrap().unwrap();
        assert_eq!(report.version, "2.28.9");
        thread.join().unwrap();
    }

    /// A report waits for missing ranks, longer than half an inspection: a server that has greeted is waited for.
    #[test]
    fn greeting_server_gets_the_remaining_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = [0; 64];
            for answer in ["OK\n", "OK\n", MISSING] {
                assert!(stream.read(&mut got).unwrap() > 0);
                if answer == MISSING {
                    // Three quarters of the time that there is.
                    let _ = end.recv_timeout(Duration::from_millis(3000));
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let refusing = format!("127.0.0.1:{}", rankdeck_testkit::free_port());
        let report =
            query_any(&[address, refusing], Instant::now() + Duration::from_millis(4000)).unwrap().unwrap();
        assert_eq!(report.communicators[0].missing_ranks[0].rank, 1);
        drop(ended);
        thread.join().unwrap();
    }
}
