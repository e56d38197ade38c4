//! `agent benchmark`: what a console has the hosts of a run measure between each other, and the results.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What one host measures. All hosts of a benchmark get theirs at about the same time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchmarkQuestion {
    /// Directory of runs, as typed.
    pub workdir: String,
    /// Index of this host.
    pub node: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Secret of this benchmark, which all its connections prove to know.
    pub token: String,
    /// Address to listen on; `None`: all.
    pub listen_at: Option<IpAddr>,
    /// Ports to listen on; the first free one is used. Empty: this host is not called.
    pub ports: Vec<u16>,
    /// Hosts that this one calls.
    pub peers: Vec<BenchmarkPeer>,
    /// What this host does, in this order.
    pub turns: Vec<BenchmarkTurn>,
    /// Time of a turn, ms.
    pub turn_ms: u64,
    /// How long hosts may begin apart, ms.
    pub patience_ms: u64,
    /// Whether to measure an all-reduce over all hosts.
    pub whole: bool,
    /// Whether to measure this host's loopback instead of other hosts.
    pub loopback: bool,
    /// Bytes to write into `workdir`; 0: none.
    pub disk_bytes: u64,
}

/// A host that is called.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchmarkPeer {
    /// Index of the host.
    pub node: u32,
    /// Name or address.
    pub address: String,
    /// Ports that it may listen on.
    pub ports: Vec<u16>,
}

/// A pair of hosts that measure at a time. A host is in at most one pair at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchmarkTurn {
    /// Number of the turn, the same on both hosts.
    pub turn: u32,
    /// The other host.
    pub peer: u32,
    /// Whether this host calls and measures.
    pub calls: bool,
}

/// What one host measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchmarkFindings {
    /// Why it could not listen.
    pub listen_error: Option<String>,
    /// Pairs that it measured as the caller.
    pub pairs: Vec<PairFinding>,
    /// The all-reduce over all hosts.
    pub whole: Option<WholeFinding>,
    /// The disk of the working directory.
    pub disk: Option<DiskFinding>,
}

/// A pair of hosts, from the caller's side.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PairFinding {
    /// The other host.
    pub node: u32,
    /// The address that was called.
    pub address: String,
    /// Why it was not measured, or not to its end.
    pub error: Option<String>,
    /// Median round trip of 8 bytes, seconds; 0: unknown.
    pub latency_s: f64,
    /// Bits per second to the other host; 0: unknown.
    pub to_bps: f64,
    /// Bits per second from the other host; 0: unknown.
    pub from_bps: f64,
    /// The other host's clock minus this one's, seconds, in the round trip with the least delay.
    pub clock_s: f64,
    /// Half of that round trip, seconds: the bound of `clock_s`.
    pub clock_bound_s: f64,
}

/// An all-reduce over all hosts, in a ring.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WholeFinding {
    /// Why it was not measured, or not to its end.
    pub error: Option<String>,
    /// Median time for 8 bytes per host, seconds; 0: unknown.
    pub latency_s: f64,
    /// Bytes that were reduced at last.
    pub bytes: u64,
    /// Time for them, seconds; 0: unknown.
    pub seconds: f64,
}

/// A file as large as a checkpoint, written and synchronized.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFinding {
    /// Its directory.
    pub path: String,
    /// Why it was not written.
    pub error: Option<String>,
    /// Bytes written within the time allowed.
    pub bytes: u64,
    /// Time for them, `fsync` included, seconds.
    pub seconds: f64,
}
