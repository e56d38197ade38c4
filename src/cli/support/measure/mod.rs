//! `rankdeck check --measure`: what the links between the hosts, their clocks and their disks do without a run.
//!
//! Needs nothing on the hosts but the agent. Each host gets one command at about the same time, with the pairs in which
//! it measures (`agent benchmark`). Invariants:
//! - MEASURE-1: no host is in two pairs at a time, so that pairs do not slow each other down.
//! - MEASURE-2: a pair that was not measured is in the result, with the error.

pub(crate) mod baseline;
pub(crate) mod judge;
pub(crate) mod output;

use crate::cli::args::HostKeyArgs;
use crate::cli::support::preflight::{self, HostAnswer, PreflightReport};
use crate::cli::support::run_index::{self, own_binary};
use crate::cli::support::{Failure, prompt};
use rankdeck_link::{self, AgentCommand, Links, Prompter};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::examination::{
    BenchmarkFindings, BenchmarkPeer, BenchmarkQuestion, BenchmarkTurn, PairFinding, WholeFinding,
};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::WallTime;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Time of all turns, and longest time of one, ms.
const TURNS_MS: u64 = 6000;
const TURN_MS: u64 = 1000;
/// How long hosts may begin apart besides their shells, and at most, ms.
const APART_MS: u64 = 1500;
const MOST_APART_MS: u64 = 5000;
/// Longest wait for a host: its own limit is 20 s.
const WITHIN: Duration = Duration::from_secs(25);
/// Up to this many hosts are measured in all pairs.
const ALL_PAIRS: usize = 16;
/// Ports that a host may use.
const PORTS: usize = 3;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Measurement {
    /// When it was measured, by this machine's clock.
    pub(crate) time: WallTime,
    pub(crate) hosts: Vec<HostMeasurement>,
    /// In the order of the hosts.
    pub(crate) pairs: Vec<PairMeasurement>,
    /// The all-reduce over all hosts.
    pub(crate) whole: Option<WholeMeasurement>,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HostMeasurement {
    pub(crate) name: String,
    /// Its clock minus that of the first host, or of this machine if there is one host; seconds.
    pub(crate) clock_s: Option<f64>,
    /// The bound of `clock_s`.
    pub(crate) clock_bound_s: Option<f64>,
    /// Bytes written and synchronized, and the time for them.
    pub(crate) disk_bytes: u64,
    pub(crate) disk_s: Option<f64>,
    /// Why nothing was measured on this host, or not its disk.
    pub(crate) error: Option<String>,
}

impl HostMeasurement {
    /// Bytes per second of its disk.
    pub(crate) fn disk_rate(&self) -> Option<f64> {
        self.disk_s.filter(|seconds| *seconds > 0.0).map(|seconds| self.disk_bytes as f64 / seconds)
    }
}

/// A pair of hosts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PairMeasurement {
    /// Names of the hosts.
    pub(crate) hosts: [String; 2],
    /// Median round trip of 8 bytes, seconds.
    pub(crate) latency_s: Option<f64>,
    /// Bits per second from the first to the second, and back.
    pub(crate) there_bps: Option<f64>,
    pub(crate) back_bps: Option<f64>,
    pub(crate) error: Option<String>,
}

impl PairMeasurement {
    /// Bits per second of the slower direction.
    pub(crate) fn bps(&self) -> Option<f64> {
        let rates = [self.there_bps, self.back_bps].into_iter().flatten();
        rates.reduce(f64::min)
    }

    pub(crate) fn name(&self) -> String {
        let [one, other] = &self.hosts;
        if one == other { format!("{one} (loopback)") } else { format!("{one} to {other}") }
    }
}

/// The all-reduce over all hosts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WholeMeasurement {
    /// Time for 8 bytes per host, seconds.
    pub(crate) latency_s: Option<f64>,
    /// Bytes reduced, and the time for them.
    pub(crate) bytes: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) error: Option<String>,
}

impl WholeMeasurement {
    /// Bits per second on each link of the ring (NCCL's bus bandwidth).
    pub(crate) fn bus_bps(&self, hosts: usize) -> Option<f64> {
        let seconds = self.seconds.filter(|seconds| *seconds > 0.0)?;
        let share = 2.0 * (hosts.max(1) - 1) as f64 / hosts.max(1) as f64;
        Some(self.bytes as f64 * 8.0 * share / seconds)
    }
}

/// Two hosts, and what becomes of them.
#[derive(Debug, Clone, PartialEq)]
enum PairPlan {
    /// The first one calls the second one in this turn.
    Turn { turn: u32, caller: usize, listener: usize },
    /// Neither reaches the other.
    Apart { hosts: [usize; 2], error: String },
}

/// Measures all hosts of a preflight that all have answered.
///
/// # Errors
/// A host gave no answer.
pub(crate) async fn measure(
    hosts: &[Host],
    report: &PreflightReport,
    disk_bytes: u64,
    host_keys: &HostKeyArgs,
) -> Result<Measurement, Failure> {
    let answers: Vec<&HostAnswer> =
        report.answers.iter().map(Result::as_ref).collect::<Result<_, _>>().map_err(|failure| {
            Failure::host(format!("not measured: {}", failure.error)).hint(failure.hint.as_str())
        })?;
    let secret = GroupSecret::draw().map_err(|error| {
        Failure::failed(format!("cannot draw a secret: {error}")).hint("check `dmesg` of this machine")
    })?;
    let plans = pair_plans(hosts.len(), &|from, to| reached(&answers, from, to));
    let ports = |_: usize| {
        (0..PORTS)
            .map(|_| 20_000 + (rankdeck_link::random_fraction() * 12_000.0) as u16)
            .collect::<Vec<u16>>()
    };
    let bench = Benchmark {
        hosts,
        report,
        answers: &answers,
        plans: &plans,
        ports: (0..hosts.len()).map(ports).collect(),
        token: secret.to_hex(),
        disk_bytes,
    };
    let questions: Vec<BenchmarkQuestion> = (0..hosts.len()).map(|node| bench.question(node)).collect();
    let progress = prompt::ProgressPrompter::new(host_keys);
    let _notice = progress.show_waits();
    let prompter: Arc<dyn Prompter> = progress.clone();
    let command = |node: usize, _: &Host| AgentCommand {
        args: vec!["benchmark".into()],
        input: serde_json::to_vec(&questions[node]).unwrap_or_default(),
        within: Some(WITHIN),
        ..AgentCommand::default()
    };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    let found: Vec<Result<BenchmarkFindings, HintedError>> = replies
        .into_iter()
        .zip(hosts)
        .map(|(reply, host)| run_index::decode::<BenchmarkFindings>(host, &reply?.text))
        .collect();
    Ok(assemble(hosts, &answers, &plans, &found))
}

/// What a preflight found about the way from one host to another; `Ok` if it did not try.
fn reached(answers: &[&HostAnswer], from: usize, to: usize) -> Result<(), String> {
    let tried = &answers[from].findings.reached;
    let mut tried = tried.iter().filter(|result| result.node as usize == to);
    match tried.next() {
        Some(first) if tried.all(|more| more.error.is_some()) => {
            first.error.as_ref().map_or(Ok(()), |error| Err(format!("{}: {error}", first.address)))
        }
        _ => Ok(()),
    }
}

/// Pairs of hosts, each with a turn in which neither is in another pair (MEASURE-1). In a large run, the neighbors in
/// rings and trees.
fn pair_plans(count: usize, reach: &dyn Fn(usize, usize) -> Result<(), String>) -> Vec<PairPlan> {
    let distances: Vec<usize> = match count {
        0..=ALL_PAIRS => (1..count).collect(),
        _ => std::iter::successors(Some(1), |distance| Some(distance * 2))
            .take_while(|distance| *distance < count)
            .collect(),
    };
    let pairs: BTreeSet<[usize; 2]> = (0..count)
        .flat_map(|node| distances.iter().map(move |distance| [node, (node + distance) % count]))
        .map(|[one, other]| [one.min(other), one.max(other)])
        .collect();
    let mut busy: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); count];
    let plan = |[one, other]: [usize; 2]| {
        let (caller, listener) = match (reach(one, other), reach(other, one)) {
            (Ok(()), _) => (one, other),
            (Err(_), Ok(())) => (other, one),
            (Err(error), Err(_)) => return PairPlan::Apart { hosts: [one, other], error },
        };
        let is_free = |turn: &u32| !busy[one].contains(turn) && !busy[other].contains(turn);
        let turn = (0..).find(is_free).unwrap_or_default();
        busy[one].insert(turn);
        busy[other].insert(turn);
        PairPlan::Turn { turn, caller, listener }
    };
    pairs.into_iter().map(plan).collect()
}

/// What the questions are made of.
struct Benchmark<'a> {
    hosts: &'a [Host],
    report: &'a PreflightReport,
    answers: &'a [&'a HostAnswer],
    plans: &'a [PairPlan],
    ports: Vec<Vec<u16>>,
    token: String,
    disk_bytes: u64,
}

impl Benchmark<'_> {
    fn question(&self, node: usize) -> BenchmarkQuestion {
        let count = self.hosts.len();
        let turn = |plan: &PairPlan| match plan {
            PairPlan::Turn { turn, caller, listener } if [caller, listener].contains(&&node) => {
                let peer = if *caller == node { *listener } else { *caller };
                Some(BenchmarkTurn { turn: *turn, peer: peer as u32, calls: *caller == node })
            }
            _ => None,
        };
        let mut turns: Vec<BenchmarkTurn> = self.plans.iter().filter_map(turn).collect();
        turns.sort_by_key(|turn| turn.turn);
        let mut called: BTreeSet<usize> =
            turns.iter().filter(|turn| turn.calls).map(|turn| turn.peer as usize).collect();
        // The next host of the ring, or this one by itself.
        called.insert((node + 1) % count);
        let last =
            self.plans.iter().map(|plan| if let PairPlan::Turn { turn, .. } = plan { *turn } else { 0 });
        let turn_count = u64::from(last.max().unwrap_or_default()) + 1;
        let peer = |peer: usize| BenchmarkPeer {
            node: peer as u32,
            address: self.address(node, peer),
            ports: self.ports[peer].clone(),
        };
        BenchmarkQuestion {
            workdir: preflight::workdir(&self.hosts[node]),
            node: node as u32,
            hosts: count as u32,
            token: self.token.clone(),
            listen_at: self.own_address(node),
            ports: self.ports[node].clone(),
            peers: called.into_iter().map(peer).collect(),
            turns,
            turn_ms: (TURNS_MS / turn_count).min(TURN_MS),
            patience_ms: self.patience_ms(),
            whole: count > 1,
            loopback: count == 1,
            disk_bytes: self.disk_bytes,
        }
    }

    /// Login shells take their time, each another one.
    fn patience_ms(&self) -> u64 {
        let shells = || self.answers.iter().map(|answer| answer.shell);
        let spread = shells().fold(0.0, f64::max) - shells().fold(f64::INFINITY, f64::min);
        (APART_MS + (spread.clamp(0.0, 60.0) * 1000.0) as u64).min(MOST_APART_MS)
    }

    /// The address of a host's interface for collectives, if it has one.
    fn own_address(&self, node: usize) -> Option<IpAddr> {
        let is_one_machine =
            self.hosts.len() == 1 || self.hosts.iter().all(|host| host.transport == Transport::Local);
        if is_one_machine {
            return Some(IpAddr::from([127, 0, 0, 1]));
        }
        let routes = preflight::interfaces(self.report);
        let name = self.hosts[node].interface.clone().or_else(|| routes.get(node).cloned().flatten())?;
        let interfaces = &self.answers[node].findings.interfaces;
        let addresses = interfaces.iter().filter(|interface| interface.name == name);
        let usable = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_loopback(),
        };
        let mut usable: Vec<IpAddr> =
            addresses.flat_map(|interface| interface.addresses.iter().copied()).filter(usable).collect();
        usable.sort_by_key(IpAddr::is_ipv6);
        usable.first().copied()
    }

    /// The address at which one host calls another: where its ranks would meet it.
    fn address(&self, caller: usize, listener: usize) -> String {
        if let Some(ip) = self.own_address(listener) {
            return ip.to_string();
        }
        let tried = self.answers[caller].findings.reached.iter();
        let mut found = tried.filter(|to| to.node as usize == listener && to.error.is_none());
        let found = found.find_map(|to| to.address.parse::<SocketAddr>().ok());
        let named = self.report.peer_addresses.get(listener).cloned().flatten();
        found
            .map(|address| address.ip().to_string())
            .or(named)
            .unwrap_or_else(|| self.hosts[listener].peer_address().to_owned())
    }
}

/// Joins what the hosts have found. Pure.
fn assemble(
    hosts: &[Host],
    answers: &[&HostAnswer],
    plans: &[PairPlan],
    found: &[Result<BenchmarkFindings, HintedError>],
) -> Measurement {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let mut clocks = ClockGraph::new(hosts.len(), answers);
    let mut pairs = BTreeMap::new();
    for plan in plans {
        let pair = match plan {
            PairPlan::Apart { hosts: [one, other], error } => {
                let pair = PairMeasurement { error: Some(error.clone()), ..PairMeasurement::default() };
                ([*one, *other], pair)
            }
            PairPlan::Turn { caller, listener, .. } => {
                let finding = pair_finding(found, *caller, *listener);
                clocks.add(*caller, *listener, &finding);
                ([*caller.min(listener), *caller.max(listener)], measured_pair(&finding, caller < listener))
            }
        };
        pairs.insert(pair.0, pair.1);
    }
    if let [Ok(BenchmarkFindings { pairs: own, .. })] = found
        && let Some(finding) = own.first()
    {
        pairs.insert([0, 0], measured_pair(finding, true));
    }
    let offsets = clocks.offsets();
    let host = |(node, name): (usize, &&str)| {
        let disk = found[node].as_ref().ok().and_then(|found| found.disk.clone()).unwrap_or_default();
        let failed = found[node].as_ref().err().map(|failure| failure.error.clone());
        let (clock_s, clock_bound_s) = offsets[node].unzip();
        HostMeasurement {
            name: (*name).to_owned(),
            clock_s,
            clock_bound_s,
            disk_bytes: disk.bytes,
            disk_s: Some(disk.seconds).filter(|seconds| *seconds > 0.0),
            error: failed.or(disk.error),
        }
    };
    Measurement {
        time: wall_time(),
        hosts: names.iter().enumerate().map(host).collect(),
        pairs: pairs
            .into_iter()
            .map(|([one, other], pair)| PairMeasurement {
                hosts: [one, other].map(|node| names[node].to_owned()),
                ..pair
            })
            .collect(),
        whole: (hosts.len() > 1).then(|| measured_whole(&names, found)),
    }
}

fn pair_finding(
    found: &[Result<BenchmarkFindings, HintedError>],
    caller: usize,
    listener: usize,
) -> PairFinding {
    let error = |error: String| PairFinding { error: Some(error), ..PairFinding::default() };
    match (&found[caller], &found[listener]) {
        (Err(failure), _) | (_, Err(failure)) => error(failure.error.clone()),
        (Ok(own), Ok(other)) => {
            let pair = own.pairs.iter().find(|pair| pair.node as usize == listener).cloned();
            let mut pair = pair.unwrap_or_else(|| error("not measured".into()));
            if let (Some(reason), Some(listen)) = (&mut pair.error, &other.listen_error) {
                *reason = format!("it cannot listen: {listen}");
            }
            pair
        }
    }
}

fn measured_pair(finding: &PairFinding, is_forward: bool) -> PairMeasurement {
    let known = |value: f64| Some(value).filter(|value| value.is_finite() && *value > 0.0);
    let (to, from) = (known(finding.to_bps), known(finding.from_bps));
    let (there_bps, back_bps) = if is_forward { (to, from) } else { (from, to) };
    let at = |error: &String| match finding.address.as_str() {
        "" => error.clone(),
        address => format!("{address}: {error}"),
    };
    PairMeasurement {
        latency_s: known(finding.latency_s),
        there_bps,
        back_bps,
        error: finding.error.as_ref().map(at),
        ..PairMeasurement::default()
    }
}

/// The slowest host's times: the others wait for it.
fn measured_whole(names: &[&str], found: &[Result<BenchmarkFindings, HintedError>]) -> WholeMeasurement {
    let empty = WholeFinding::default();
    let all: Vec<&WholeFinding> = found
        .iter()
        .map(|found| found.as_ref().ok().and_then(|found| found.whole.as_ref()).unwrap_or(&empty))
        .collect();
    let failed = names.iter().zip(found).zip(&all).find_map(|((name, found), whole)| {
        let error = found.as_ref().err().map(|failure| failure.error.clone()).or(whole.error.clone())?;
        Some(format!("{name}: {error}"))
    });
    let slowest = |value: fn(&WholeFinding) -> f64| {
        let slowest = all.iter().map(|whole| value(whole)).fold(0.0, f64::max);
        Some(slowest).filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    };
    let bytes = all.iter().map(|whole| whole.bytes).min().unwrap_or_default();
    WholeMeasurement {
        latency_s: slowest(|whole| whole.latency_s),
        bytes,
        seconds: slowest(|whole| whole.seconds).filter(|_| bytes > 0 && failed.is_none()),
        error: failed,
    }
}

/// Offsets between clocks, each with a bound: between hosts from their own round trips, between this machine and a
/// host from that of the preflight.
struct ClockGraph {
    hosts: usize,
    /// From, to, the offset of `to` against `from`, its bound. The node after the hosts is this machine.
    edges: Vec<(usize, usize, f64, f64)>,
}

impl ClockGraph {
    fn new(hosts: usize, answers: &[&HostAnswer]) -> ClockGraph {
        let edge = |(node, answer): (usize, &&HostAnswer)| {
            let (arrived, answered) = (answer.findings.arrived, answer.findings.answered);
            let offset = ((arrived - answer.asked) + (answered - answer.answered)) / 2.0;
            let delay = (answer.answered - answer.asked) - (answered - arrived);
            (answer.asked > 0.0 && answer.answered > 0.0).then_some((
                hosts,
                node,
                offset,
                delay.max(0.0) / 2.0,
            ))
        };
        ClockGraph { hosts, edges: answers.iter().enumerate().filter_map(edge).collect() }
    }

    fn add(&mut self, caller: usize, listener: usize, finding: &PairFinding) {
        if finding.clock_bound_s > 0.0 && finding.clock_s.is_finite() {
            self.edges.push((caller, listener, finding.clock_s, finding.clock_bound_s));
        }
    }

    /// The offset of each host against the first one, or against this machine if there is one host, by the way with
    /// the least bound.
    fn offsets(&self) -> Vec<Option<(f64, f64)>> {
        let mut known: Vec<Option<(f64, f64)>> = vec![None; self.hosts + 1];
        let from = if self.hosts == 1 { self.hosts } else { 0 };
        known[from] = Some((0.0, 0.0));
        for _ in 0..=self.hosts {
            let mut is_better = false;
            for &(one, other, offset, bound) in &self.edges {
                for (from, to, offset) in [(one, other, offset), (other, one, -offset)] {
                    let Some((base, base_bound)) = known[from] else { continue };
                    if known[to].is_none_or(|(_, known)| base_bound + bound < known) {
                        known[to] = Some((base + offset, base_bound + bound));
                        is_better = true;
                    }
                }
            }
            if !is_better {
                break;
            }
        }
        known.truncate(self.hosts);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::preflight::host_checks::tests::{draft, good};
    use rankdeck_proto::examination::DiskFinding;

    fn all_reach(_: usize, _: usize) -> Result<(), String> {
        Ok(())
    }

    #[test]
    fn measure_1_no_host_is_in_two_pairs_at_a_time() {
        for (count, most_turns) in [(2, 1), (3, 3), (4, 3), (16, 15), (64, 24)] {
            let mut busy = BTreeSet::new();
            let mut last = 0;
            for plan in pair_plans(count, &all_reach) {
                let PairPlan::Turn { turn, caller, listener } = plan else { panic!("{plan:?}") };
                assert!(busy.insert((turn, caller)) && busy.insert((turn, listener)), "{count} hosts");
                last = last.max(turn);
            }
            assert!(last < most_turns, "{count} hosts in {} turns", last + 1);
        }
        assert!(pair_plans(1, &all_reach).is_empty());
    }

    #[test]
    fn pair_is_measured_in_the_direction_that_works() {
        let one_way = |from: usize, _: usize| if from == 0 { Err("refused".to_owned()) } else { Ok(()) };
        assert_eq!(pair_plans(2, &one_way), [PairPlan::Turn { turn: 0, caller: 1, listener: 0 }]);
        let apart = |_: usize, _: usize| Err("refused".to_owned());
        let plans = pair_plans(2, &apart);
        assert_eq!(plans, [PairPlan::Apart { hosts: [0, 1], error: "refused".into() }]);
    }

    fn pair(node: u32, to_bps: f64, from_bps: f64, clock_s: f64) -> PairFinding {
        PairFinding {
            node,
            latency_s: 1e-4,
            to_bps,
            from_bps,
            clock_s,
            clock_bound_s: 5e-5,
            ..PairFinding::default()
        }
    }

    #[test]
    fn findings_are_joined_by_pair_host_and_whole() {
        let draft = draft(3);
        let answer = good();
        let answers = [&answer; 3];
        let plans = [
            PairPlan::Turn { turn: 0, caller: 1, listener: 0 },
            PairPlan::Turn { turn: 1, caller: 1, listener: 2 },
            PairPlan::Apart { hosts: [0, 2], error: "no response".into() },
        ];
        let whole = |seconds| Some(WholeFinding { bytes: 64, seconds, latency_s: 0.1, error: None });
        let found = |pairs: Vec<PairFinding>, seconds: f64| {
            let disk = Some(DiskFinding { bytes: 8, seconds: 2.0, ..DiskFinding::default() });
            Ok(BenchmarkFindings { pairs, disk, whole: whole(seconds), ..BenchmarkFindings::default() })
        };
        let all = [
            found(Vec::new(), 1.0),
            found(vec![pair(0, 1e9, 2e9, -0.5), pair(2, 3e9, 4e9, 0.25)], 3.0),
            found(Vec::new(), 2.0),
        ];
        let measured = assemble(&draft.hosts, &answers, &plans, &all);
        let rates: Vec<_> = measured.pairs.iter().map(|pair| (pair.there_bps, pair.back_bps)).collect();
        assert_eq!(rates, [(Some(2e9), Some(1e9)), (None, None), (Some(3e9), Some(4e9))]);
        assert!(measured.pairs[1].error.is_some(), "MEASURE-2");
        let clocks: Vec<_> = measured.hosts.iter().map(|host| host.clock_s).collect();
        assert_eq!(clocks, [Some(0.0), Some(0.5), Some(0.75)]);
        assert_eq!(measured.hosts[0].disk_rate(), Some(4.0));
        let whole = measured.whole.unwrap();
        assert_eq!((whole.seconds, whole.bytes, whole.error), (Some(3.0), 64, None));
    }

    #[test]
    fn measure_2_silent_host_is_named_in_its_pairs() {
        let draft = draft(2);
        let answer = good();
        let plans = [PairPlan::Turn { turn: 0, caller: 0, listener: 1 }];
        let silent = HintedError::new("h1: no answer", "x");
        let found = [
            Ok(BenchmarkFindings { pairs: vec![pair(1, 0.0, 0.0, 0.0)], ..Default::default() }),
            Err(silent),
        ];
        let measured = assemble(&draft.hosts, &[&answer; 2], &plans, &found);
        let whole = measured.whole.unwrap();
        let errors = [&measured.pairs[0].error, &measured.hosts[1].error, &whole.error];
        assert!(
            errors.iter().all(|error| error.as_ref().is_some_and(|error| error.contains("h1"))),
            "{errors:?}"
        );
        assert_eq!(measured.hosts[0].error, None);
    }
}
