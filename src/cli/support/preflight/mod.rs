//! Preflight: checks before a launch. One command per host collects everything, which is then evaluated here.
//!
//! Used by `rankdeck check`, and by `rankdeck run` before it opens a link. Invariants:
//! - A check fails only if the run cannot work; everything else is a warning.
//! - CHECK-2: every failure and warning has a hint, and names the line of the file that decides it.
//! - Nothing is started, and nothing stays on a host but the agent.

mod consistency;
pub(crate) mod host_checks;
mod output;

use crate::app::secrets;
use crate::cli::args::HostKeyArgs;
use crate::cli::support::run_index::{self, own_binary};
use crate::cli::support::{Failure, code, prompt};
pub(crate) use output::{
    MANY, as_json, plan_lines, print, print_failed_plan, print_failed_run, print_problems, warnings,
};
use rankdeck_config::Locator;
use rankdeck_core::launch_size;
use rankdeck_link::{self, AgentCommand, AgentReply, Links, Prompter};
use rankdeck_proto::examination::{EnvQuestion, HostFindings, HostQuestion, Peer};
use rankdeck_types::code::Code;
use rankdeck_types::cores::{self, CpuSet};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{CoreBinding, Experiment};
use rankdeck_types::host::{GpuSelection, Host, Transport};
use rankdeck_types::ids::{LocalRank, Rank};
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, PlannedHost};
use rankdeck_types::template::RankValues;
use rankdeck_types::variables;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of the checks, in the order of the table.
pub(crate) const CHECKS: [&str; 14] = [
    "reach",
    "ranks",
    "gpus",
    "leftovers",
    "interface",
    "port",
    "names",
    "program",
    "versions",
    "limits",
    "disk",
    "session",
    "code",
    "clock",
];

/// The status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum CheckStatus {
    /// Not checked, or not applicable.
    #[default]
    Skipped,
    Passed,
    /// The run may fail.
    Warning,
    /// The run cannot work.
    Failed,
}

/// The result of one check on one host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CheckResult {
    pub(crate) status: CheckStatus,
    /// What was found.
    pub(crate) text: String,
    /// How to fix it.
    pub(crate) hint: String,
    /// The config key that decides, dotted; empty without one.
    pub(crate) key: String,
}

impl CheckResult {
    pub(crate) fn passed(text: impl Into<String>) -> CheckResult {
        CheckResult { status: CheckStatus::Passed, text: text.into(), ..CheckResult::default() }
    }

    pub(crate) fn skipped() -> CheckResult {
        CheckResult::default()
    }

    pub(crate) fn warning(
        text: impl Into<String>,
        hint: impl Into<String>,
        key: impl Into<String>,
    ) -> CheckResult {
        CheckResult { status: CheckStatus::Warning, text: text.into(), hint: hint.into(), key: key.into() }
    }

    pub(crate) fn failed(
        text: impl Into<String>,
        hint: impl Into<String>,
        key: impl Into<String>,
    ) -> CheckResult {
        CheckResult { status: CheckStatus::Failed, ..CheckResult::warning(text, hint, key) }
    }
}

/// The code that the ranks run in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PushedCode {
    /// SHA-256 of its pack.
    pub(crate) hash: String,
    /// Whether it contains the script of the command.
    pub(crate) has_script: bool,
    /// Packages that the script imports from elsewhere.
    pub(crate) imports: Vec<String>,
    /// Those of them that are at the top of the code, where Python does not search.
    pub(crate) beside: Vec<String>,
    /// What does not arrive on the hosts although the program may need it.
    pub(crate) left_out: Option<HintedError>,
}

/// What is checked.
#[derive(Debug, Clone)]
pub(crate) struct PreflightInput<'a> {
    /// The run to launch.
    pub(crate) draft: &'a PlanDraft,
    /// The code that every host gets.
    pub(crate) code: Option<&'a PushedCode>,
    /// Whether the trainer can be uploaded.
    pub(crate) can_upload: bool,
    /// Position of each host in the hosts file; empty: all hosts, in order.
    pub(crate) places: Vec<usize>,
}

/// The reply of one host.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HostAnswer {
    /// What it found.
    pub(crate) findings: HostFindings,
    /// The local clock when the query was sent.
    pub(crate) asked: f64,
    /// The local clock when the reply arrived.
    pub(crate) answered: f64,
    /// Seconds of its login shell startup.
    pub(crate) shell: f64,
}

/// The result of a preflight.
#[derive(Debug)]
pub(crate) struct PreflightReport {
    /// Names of the hosts.
    pub(crate) hosts: Vec<String>,
    /// The reply of each host.
    pub(crate) answers: Vec<Result<HostAnswer, HintedError>>,
    /// [`CHECKS`] of each host.
    pub(crate) columns: Vec<Vec<CheckResult>>,
    /// The plan, if all hosts have answered.
    pub(crate) plan: Option<Result<Plan, PlanError>>,
    /// The address of each host for the others, where it is not the one of the hosts file.
    pub(crate) peer_addresses: Vec<Option<String>>,
    /// How long it took.
    pub(crate) took: Duration,
    /// Further checks for the whole run: name and result.
    pub(crate) last: Vec<(&'static str, CheckResult)>,
}

impl PreflightReport {
    /// Counts the results with a status.
    pub(crate) fn count(&self, status: CheckStatus) -> usize {
        self.columns
            .iter()
            .flatten()
            .chain(self.last.iter().map(|(_, cell)| cell))
            .filter(|cell| cell.status == status)
            .count()
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match &self.plan {
            _ if self.count(CheckStatus::Failed) > 0 => code::HOST,
            Some(Err(_)) => code::USAGE,
            _ => code::SUCCESS,
        }
    }
}

/// Queries all hosts and evaluates the replies.
pub(crate) async fn preflight(
    subject: &PreflightInput<'_>,
    host_keys: &HostKeyArgs,
) -> Result<PreflightReport, Failure> {
    let began = Instant::now();
    // Aliases of the ssh configuration mean nothing to the hosts.
    let mut draft = subject.draft.clone();
    let addresses = Links::from_environment().peer_addresses(&draft.hosts).await;
    for (host, address) in draft.hosts.iter_mut().zip(addresses) {
        host.peer_address = Some(address).filter(|address| *address != host.address);
    }
    let subject = &PreflightInput { draft: &draft, ..subject.clone() };
    let answers = query_hosts(subject, host_keys).await?;
    let mut report = evaluate(subject, answers);
    report.took = began.elapsed();
    Ok(report)
}

/// Evaluates replies. Pure.
fn evaluate(subject: &PreflightInput<'_>, answers: Vec<Result<HostAnswer, HintedError>>) -> PreflightReport {
    let draft = subject.draft;
    let mut columns: Vec<Vec<CheckResult>> =
        answers.iter().enumerate().map(|(node, answer)| host_checks::column(subject, node, answer)).collect();
    consistency::compare(subject, &answers, &mut columns);
    consistency::same_machine(subject, &answers, &mut columns);
    consistency::same_gpu(subject, &answers, &mut columns);
    consistency::master_name(subject, &answers, &mut columns);
    if answers.iter().any(Result::is_err) {
        unmeasured(&answers, &mut columns);
    }
    for cell in columns.iter_mut().flatten() {
        cell.key = in_file(&cell.key, &subject.places);
    }
    let probes: Vec<_> =
        answers.iter().filter_map(|answer| Some(answer.as_ref().ok()?.findings.probe.clone())).collect();
    let plan = (probes.len() == draft.hosts.len())
        .then(|| draft.resolve(&probes).and_then(|plan| launch_size::check(&plan).map(|()| plan)));
    if let Some(Ok(plan)) = &plan {
        name_cores(plan, &answers, &mut columns);
    }
    PreflightReport {
        hosts: draft.hosts.iter().map(|host| host.name.clone()).collect(),
        plan,
        peer_addresses: peer_addresses(draft, &answers),
        answers,
        columns,
        took: Duration::ZERO,
        last: Vec::new(),
    }
}

/// Adds the CPUs of each rank to the check of a host's ranks, or why they are not bound.
fn name_cores(plan: &Plan, answers: &[Result<HostAnswer, HintedError>], columns: &mut [Vec<CheckResult>]) {
    let index = CHECKS.iter().position(|name| *name == "ranks").unwrap_or_default();
    for ((planned, answer), column) in plan.hosts.iter().zip(answers).zip(columns) {
        let (Ok(answer), Some(cell)) = (answer, column.get_mut(index)) else { continue };
        let Some(bound) = bound_ranks(plan, planned, answer) else { continue };
        match bound {
            Ok(sets) => {
                let sets: Vec<String> = sets.values().map(CpuSet::to_string).collect();
                cell.text += &format!(", bound to CPUs {}", sets.join(" "));
            }
            Err(why) if cell.status == CheckStatus::Passed => {
                *cell = CheckResult::warning(why.error, why.hint, "launch.bind");
            }
            Err(why) => cell.text += &format!("; {}", why.error),
        }
    }
}

/// Returns the CPUs of each rank of a host; `None` if they are not to be bound.
fn bound_ranks(
    plan: &Plan,
    planned: &PlannedHost,
    answer: &HostAnswer,
) -> Option<Result<BTreeMap<Rank, CpuSet>, HintedError>> {
    let topology = answer.findings.topology.as_ref().filter(|_| plan.has_ranks(planned.node_rank))?;
    Some(cores::of_ranks(plan, planned.node_rank, topology))
}

/// Drops connection results if a host gave no answer: hosts were not queried again, and a host that was not
/// reached may still have been receiving the agent.
fn unmeasured(answers: &[Result<HostAnswer, HintedError>], columns: &mut [Vec<CheckResult>]) {
    for (answer, column) in answers.iter().zip(columns) {
        let Ok(host) = answer else { continue };
        let bound = host.findings.listened.as_ref().is_none_or(|listened| listened.error.is_none());
        if bound && host.findings.reached.iter().any(|to| to.error.is_some()) {
            let of_reaching = |name: &&str| ["port", "names"].contains(name);
            CHECKS.iter().zip(column).filter(|(name, _)| of_reaching(name)).for_each(|(_, cell)| {
                if cell.status > CheckStatus::Passed {
                    *cell = CheckResult::skipped();
                }
            });
        }
    }
}

/// Translates `host.N.KEY` of the Nth queried host to its position in the file.
fn in_file(key: &str, places: &[usize]) -> String {
    let moved = key.strip_prefix("host.").and_then(|rest| {
        let (number, name) = rest.split_once('.')?;
        Some(format!("host.{}.{name}", places.get(number.parse::<usize>().ok()?)?))
    });
    moved.unwrap_or_else(|| key.to_owned())
}

/// Returns the interfaces that lead to rank 0's store, for hosts without `interface`: Gloo and NCCL would
/// choose by the host name, or take the first.
pub(crate) fn interfaces(report: &PreflightReport) -> Vec<Option<String>> {
    let chosen = working_address(&report.answers, 0);
    let way = |(node, answer): (usize, &Result<HostAnswer, HintedError>)| {
        let found = &answer.as_ref().ok()?.findings;
        let other = found.reached.iter().find(|to| to.node == 0 && to.is_other && to.error.is_none());
        let source = if node == 0 { chosen } else { other.and_then(|to| to.source) };
        let holder =
            source.and_then(|ip| found.interfaces.iter().find(|interface| interface.addresses.contains(&ip)));
        match holder {
            Some(interface) => Some(interface.name.clone()),
            None => found.route.as_ref()?.interface.clone(),
        }
    };
    report.answers.iter().enumerate().map(way).collect()
}

/// Returns an address of a host that the other hosts reach, if its own address does not serve: another host
/// reaches it only at another one, or its name resolves to loopback on itself (`127.0.1.1 NAME` in its
/// /etc/hosts).
pub(crate) fn working_address(answers: &[Result<HostAnswer, HintedError>], node: usize) -> Option<IpAddr> {
    let own = &answers.get(node)?.as_ref().ok()?.findings;
    let held = |ip: &IpAddr| own.interfaces.iter().any(|interface| interface.addresses.contains(ip));
    let means_itself = node == 0 && names_loopback(own);
    let reached: Vec<_> = answers
        .iter()
        .enumerate()
        .filter(|(caller, _)| *caller != node)
        .filter_map(|(_, answer)| answer.as_ref().ok())
        .flat_map(|caller| caller.findings.reached.iter())
        .filter(|to| to.node as usize == node && to.error.is_none())
        .filter_map(|to| Some((to.is_other, to.address.parse::<SocketAddr>().ok()?.ip().to_canonical())))
        .filter(|(_, ip)| !ip.is_loopback() && held(ip))
        .collect();
    let needs_other = reached.iter().any(|(is_other, _)| *is_other);
    if !means_itself && !needs_other {
        return None;
    }
    // The one that most hosts reach, and of those the first.
    let count = |ip: &IpAddr| reached.iter().filter(|(_, other)| other == ip).count();
    reached.iter().map(|(_, ip)| *ip).rev().max_by_key(count)
}

/// Returns whether the name of rank 0's host resolves to loopback on a host.
fn names_loopback(found: &HostFindings) -> bool {
    let means = found.route.as_ref().map(|route| route.addresses.as_slice()).unwrap_or_default();
    !means.is_empty() && means.iter().all(IpAddr::is_loopback)
}

/// Returns the address of each host for the others, where it is not the one of the hosts file.
fn peer_addresses(draft: &PlanDraft, answers: &[Result<HostAnswer, HintedError>]) -> Vec<Option<String>> {
    let address = |(node, host): (usize, &Host)| {
        working_address(answers, node).map(|ip| ip.to_string()).or_else(|| host.peer_address.clone())
    };
    draft.hosts.iter().enumerate().map(address).collect()
}

/// Shortens the failure for people, who have just read the details.
pub(crate) fn shortened(report: &PreflightReport, failure: Failure) -> Failure {
    let failed = |column: &Vec<CheckResult>| column.iter().any(|cell| cell.status == CheckStatus::Failed);
    let hosts = report.hosts.iter().zip(&report.columns).filter(|(_, column)| failed(column));
    let hosts: Vec<&str> = hosts.map(|(host, _)| host.as_str()).collect();
    if hosts.is_empty() {
        return failure;
    }
    let where_to = output::host_list(&hosts);
    Failure {
        cause: HintedError::new(
            format!("preflight failed on {where_to}; nothing was started"),
            failure.cause.hint,
        ),
        ..failure
    }
}

/// Fails if a check has failed; the details have been printed. `repeat`: the hint, empty after `check` itself.
pub(crate) fn ensure_passed(
    report: &PreflightReport,
    locator: &Locator,
    repeat: &str,
) -> Result<(), Failure> {
    let hosts = report.hosts.iter().zip(&report.columns);
    let mut failed = hosts.flat_map(|(host, column)| {
        let cells = CHECKS.iter().zip(column).filter(|(_, cell)| cell.status == CheckStatus::Failed);
        cells.map(move |(check, cell)| format!("{host}: {check}: {}", cell.text))
    });
    if let Some(first) = failed.next() {
        let others = match failed.count() {
            0 => String::new(),
            1 => " (and 1 more)".to_owned(),
            more => format!(" (and {more} more)"),
        };
        return Err(Failure::host(format!("preflight: {first}{others}; nothing was started")).hint(repeat));
    }
    match &report.plan {
        Some(Err(error)) => {
            let place = locator.place(&error.key);
            Err(Failure::usage(format!("{place}: {}", error.cause.error)).hint(error.cause.hint.as_str()))
        }
        _ => Ok(()),
    }
}

/// How long hosts wait for each other, ms, and how much longer per host: behind one server, logins are
/// serialized.
const PATIENCE_MS: u64 = 3000;
const PATIENCE_PER_HOST_MS: u64 = 150;
/// Up to this many hosts connect in all pairs.
const ALL_PAIRS: usize = 16;
/// More than any host has.
const MOST_GPUS: u32 = 1024;
/// Ports that a host may use for the connection test.
const PORTS: u64 = 3;
/// Most further addresses of a host, and how much longer hosts wait for each other if they try them, ms.
const OTHERS: usize = 4;
const OTHERS_MS: u64 = 2000;

/// Queries every host. If hosts did not reach each other although all answered, they are queried again, and try
/// each other's interfaces: a name may mean nothing on another host, and at the first contact a host may still
/// have been receiving the agent.
async fn query_hosts(
    subject: &PreflightInput<'_>,
    host_keys: &HostKeyArgs,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let answers = round(subject, &[], host_keys, 0).await?;
    match late(&answers).or(has_uncalled(&subject.draft.hosts, &answers).then_some(0)) {
        Some(late) => round(subject, &held(&answers), host_keys, late + OTHERS_MS).await,
        None => Ok(answers),
    }
}

/// Returns whether an ssh alias stands for a loopback address, such as that of a tunnel, so that no host could
/// be asked to call it.
fn has_uncalled(hosts: &[Host], answers: &[Result<HostAnswer, HintedError>]) -> bool {
    let has_tunnel = |host: &Host| is_loopback(host.peer_address()) && !is_loopback(&host.address);
    hosts.len() > 1 && hosts.iter().any(has_tunnel) && answers.iter().all(Result::is_ok)
}

/// Returns addresses of each host's interfaces that other hosts may reach.
fn held(answers: &[Result<HostAnswer, HintedError>]) -> Vec<Vec<IpAddr>> {
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let of = |answer: &Result<HostAnswer, HintedError>| {
        let interfaces = answer.as_ref().map(|host| host.findings.interfaces.as_slice()).unwrap_or_default();
        let real = interfaces.iter().filter(|interface| !host_checks::is_virtual(&interface.name));
        real.flat_map(|interface| interface.addresses.iter().copied()).filter(usable).take(OTHERS).collect()
    };
    answers.iter().map(of).collect()
}

/// Returns whether a second query is worthwhile: the spread of shell startup times in ms. A host that could
/// not listen explains by itself why it was not reached.
fn late(answers: &[Result<HostAnswer, HintedError>]) -> Option<u64> {
    let all: Vec<&HostAnswer> = answers.iter().map(|answer| answer.as_ref().ok()).collect::<Option<_>>()?;
    let listened = |node: u32| {
        let listened = all.get(node as usize).and_then(|host| host.findings.listened.as_ref());
        listened.is_some_and(|listened| listened.error.is_none())
    };
    let apart =
        |host: &&HostAnswer| host.findings.reached.iter().any(|to| to.error.is_some() && listened(to.node));
    all.iter().any(apart).then(|| {
        let shells = || all.iter().map(|host| host.shell);
        let spread = shells().fold(0.0, f64::max) - shells().fold(f64::INFINITY, f64::min);
        (spread.clamp(0.0, 45.0) * 1000.0) as u64
    })
}

async fn round(
    subject: &PreflightInput<'_>,
    held: &[Vec<IpAddr>],
    host_keys: &HostKeyArgs,
    late_ms: u64,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let binary = own_binary()?;
    let progress = prompt::ProgressPrompter::new(host_keys);
    let mut questions =
        questions(subject, held, &mut || (rankdeck_link::random_fraction() * (1u64 << 53) as f64) as u64);
    questions.iter_mut().for_each(|question| question.patience_ms += late_ms);
    let _notice = progress.show_waits();
    let prompter: Arc<dyn Prompter> = progress.clone();
    let hosts = &subject.draft.hosts;
    let command = |node: usize, _: &Host| AgentCommand {
        args: vec!["examine".into()],
        input: serde_json::to_vec(&questions[node]).unwrap_or_default(),
        ..AgentCommand::default()
    };
    let replies = Links::from_environment().call_all(hosts, &binary, &prompter, command).await;
    let examined = |(reply, host): (Result<AgentReply, HintedError>, &Host)| {
        let reply = reply?;
        let findings = run_index::decode::<HostFindings>(host, &reply.text)?;
        Ok(HostAnswer { findings, asked: reply.sent, answered: reply.received, shell: reply.shell })
    };
    Ok(replies.into_iter().zip(hosts).map(examined).collect())
}

fn is_loopback(address: &str) -> bool {
    address == "localhost" || address == "::1" || address.starts_with("127.")
}

/// Returns the hosts that `node` connects to: all others in a small run; in a large one rank 0's host and
/// those at distances 1, 2, 4, ..., the neighbors in rings and trees.
fn peers(node: usize, count: usize) -> Vec<usize> {
    if count <= ALL_PAIRS {
        return (0..count).filter(|peer| *peer != node).collect();
    }
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < count);
    let mut peers: Vec<usize> = std::iter::once(0)
        .chain(distances.map(|distance| (node + distance) % count))
        .filter(|peer| *peer != node)
        .collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// Builds one query per host. `held`: further addresses of each host to try, if known.
fn questions(
    subject: &PreflightInput<'_>,
    held: &[Vec<IpAddr>],
    dice: &mut dyn FnMut() -> u64,
) -> Vec<HostQuestion> {
    let draft = subject.draft;
    let launch = &draft.experiment.launch;
    let several = draft.hosts.len() > 1;
    let master = several
        .then(|| launch.master_addr.clone().or_else(|| Some(draft.hosts.first()?.peer_address().to_owned())))
        .flatten();
    let secret = dice();
    let tokens: Vec<String> =
        (0..draft.hosts.len()).map(|node| format!("rankdeck-{secret:016x}-{node:06}\n")).collect();
    // Below the range of ephemeral ports.
    let mut any_ports = || (0..PORTS).map(|_| 20_000 + (dice() % 12_000) as u16).collect::<Vec<u16>>();
    let ports: Vec<Vec<u16>> = (0..draft.hosts.len())
        .map(|node| match (node, launch.master_port) {
            (0, port) if port != 0 => vec![port],
            _ => any_ports(),
        })
        .collect();
    // Gloo and NCCL use other ports than the fixed one, and a firewall may let only that through.
    let also = if launch.master_port == 0 { Vec::new() } else { any_ports() };
    // A loopback address leads nowhere else; if all hosts have one, they are one machine.
    let one_machine = draft.hosts.iter().all(|host| is_loopback(&host.address));
    let others = |peer: usize| held.get(peer).cloned().unwrap_or_default();
    let callable = |peer: usize| {
        one_machine
            || !is_loopback(draft.hosts[peer].peer_address())
            || !others(peer).is_empty()
            || (peer == 0 && launch.master_addr.is_some())
    };
    let calls: Vec<Vec<usize>> = (0..draft.hosts.len())
        .map(|node| peers(node, draft.hosts.len()).into_iter().filter(|peer| callable(*peer)).collect())
        .collect();
    draft
        .hosts
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let filled = draft.experiment.filled_launch();
            let workdir = workdir(host);
            let run_dir = Path::new(&workdir).join("runs").join(&draft.run.0);
            // Any rank of the host stands for all.
            let rank = RankValues {
                run: &draft.run,
                rank: Rank(0),
                local_rank: LocalRank(0),
                world_size: draft.world_size().unwrap_or(1),
                run_dir: &run_dir,
                resume: draft.resume.as_deref(),
            };
            let mut env = filled.env;
            env.extend(host.env.clone());
            let plain = |value: String| variables::plain(&value).map(|value| rank.filled(&value));
            let env = env.into_iter().filter_map(|(name, value)| Some((name, plain(value)?)));
            let expect = calls.iter().filter(|called| called.contains(&node)).count() as u32;
            let fixed = node == 0 && launch.master_port != 0;
            let peer = |&peer: &usize| Peer {
                node: peer as u32,
                address: match (peer, &master) {
                    (0, Some(master)) => master.clone(),
                    _ => draft.hosts[peer].peer_address().to_owned(),
                },
                ports: ports[peer].clone(),
                token: tokens[peer].clone(),
                others: others(peer),
            };
            let second = calls[node].iter().filter(|peer| **peer == 0 && !also.is_empty());
            let second = second.map(|at| Peer { ports: also.clone(), ..peer(at) });
            HostQuestion {
                workdir: workdir.clone(),
                run: draft.run.0.clone(),
                command: filled.command.iter().map(|word| rank.filled(word)).collect(),
                setup: host.setup.clone(),
                env: env.collect(),
                variables: secrets::values(&draft.experiment, host).0,
                libtorch: host.libtorch.clone(),
                imports: subject.code.map(|code| code.imports.clone()).unwrap_or_default(),
                environment: environment(&draft.experiment, subject.code.is_some()),
                code: subject.code.map(|code| code.hash.clone()),
                folder: launch.code.as_ref().filter(|_| subject.code.is_none()).and_then(own_code),
                gpus: uses_gpus(host),
                planned_gpus: planned(host),
                bind: launch.bind == Some(CoreBinding::Auto),
                master: master.clone(),
                listen: if expect > 0 || fixed { ports[node].clone() } else { Vec::new() },
                also_listen: if node == 0 && expect > 0 { also.clone() } else { Vec::new() },
                expect,
                peers: calls[node].iter().map(peer).chain(second).collect(),
                token: tokens[node].clone(),
                patience_ms: PATIENCE_MS + PATIENCE_PER_HOST_MS * draft.hosts.len() as u64,
            }
        })
        .collect()
}

/// The user's own code on this machine, in which ranks work.
fn own_code(code: &Code) -> Option<String> {
    code.path().filter(|path| Path::new(path).is_absolute()).map(str::to_owned)
}

/// Returns what a Python worker of the built-in trainer will create. A module that comes with the code is not
/// there yet.
fn environment(experiment: &Experiment, has_code: bool) -> Option<EnvQuestion> {
    let env = experiment.env.as_ref().filter(|_| experiment.launch.command.is_empty())?;
    // Modules of its own come with the code, and only the worker calls a factory.
    let comes = has_code && !env.modules().is_empty() || env.vector.is_some();
    (!env.is_builtin() && !comes).then(|| EnvQuestion {
        python: env.python.clone(),
        id: env.id.clone(),
        atari: env.is_atari(),
    })
}

/// False if `gpus = []` selects CPUs.
fn uses_gpus(host: &Host) -> bool {
    !matches!(&host.gpus, None | Some(GpuSelection::Count(0)))
        && host.gpus != Some(GpuSelection::List(Vec::new()))
}

/// Returns the GPUs that the plan selects by index; empty if only the host knows how many there are.
fn planned(host: &Host) -> Vec<u32> {
    let most = host.nproc.unwrap_or(MOST_GPUS).min(MOST_GPUS) as usize;
    match &host.gpus {
        Some(GpuSelection::Count(count)) => (0..*count).take(most).collect(),
        Some(GpuSelection::List(list)) => list.iter().copied().take(most).collect(),
        // The first ranks take the first GPUs. Missing ones are not visible.
        Some(GpuSelection::Word(_)) => (0..host.nproc.unwrap_or(0).min(MOST_GPUS)).collect(),
        None => Vec::new(),
    }
}

/// The directory as passed to `agent start`.
pub(crate) fn workdir(host: &Host) -> String {
    match (host.workdir.as_str(), host.transport) {
        ("", Transport::Local) => ".".to_owned(),
        ("", Transport::Ssh | Transport::Openssh) => "rankdeck".to_owned(),
        (folder, _) => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::host_checks::tests::{draft, good, subject};
    use super::*;

    use rankdeck_proto::examination::ConnectResult;

    #[test]
    fn connection_results_are_dropped_if_a_host_is_silent() {
        let mut apart = good();
        apart.findings.reached = vec![ConnectResult {
            address: "10.0.0.1:1".into(),
            error: Some("refused".into()),
            ..Default::default()
        }];
        let draft = draft(3);
        let mut answers = vec![Ok(good()), Ok(apart), Ok(good())];
        let failures = |answers: &[Result<HostAnswer, HintedError>]| {
            evaluate(&subject(&draft), answers.to_vec()).count(CheckStatus::Failed)
        };
        assert_eq!(failures(&answers), 1);
        answers[2] = Err(HintedError { error: "h2: no answer".into(), hint: "x".into() });
        let report = evaluate(&subject(&draft), answers);
        assert_eq!(report.count(CheckStatus::Failed), 1);
        assert_eq!(report.columns[2][0].text, "no answer");
    }

    #[test]
    fn failed_check_has_no_hint_to_repeat_itself() {
        let draft = draft(1);
        let answers = vec![Err(HintedError { error: "h0: no answer".into(), hint: "x".into() })];
        let report = evaluate(&subject(&draft), answers);
        let file = rankdeck_config::ExperimentSource::File("e.toml".into());
        let locator = Locator::new(&rankdeck_config::HostsSource::Here, &file);
        let hint = |repeat: &str| {
            let failure = ensure_passed(&report, &locator, repeat).unwrap_err();
            shortened(&report, failure).cause.hint
        };
        assert_eq!((hint(""), hint("again")), (String::new(), "again".to_owned()));
    }

    #[test]
    fn config_keys_match_the_file_with_excluded_hosts() {
        assert_eq!(in_file("host.1.gpus", &[0, 2]), "host.2.gpus");
        assert_eq!(in_file("host.1.gpus", &[]), "host.1.gpus");
        assert_eq!(in_file("launch.command", &[0, 2]), "launch.command");
    }

    #[test]
    fn large_runs_test_ring_and_tree_neighbors() {
        assert_eq!(peers(1, 4), [0, 2, 3]);
        assert_eq!(peers(0, 1), [0usize; 0]);
        let some = peers(5, 64);
        assert_eq!(some, [0, 6, 7, 9, 13, 21, 37]);
        assert!((0..64).all(|node| !peers(node, 64).contains(&node)));
    }

    #[test]
    fn each_host_waits_for_its_callers() {
        let mut draft = draft(3);
        draft.hosts.iter_mut().enumerate().for_each(|(node, host)| host.address = format!("10.0.0.{node}"));
        draft.experiment.launch.master_port = 4711;
        let mut n = 0;
        let questions = questions(&subject(&draft), &[], &mut || {
            n += 1;
            n
        });
        assert!(questions.iter().all(|question| question.expect == 2));
        assert_eq!(questions[0].listen, [4711]);
        assert!(!questions[0].also_listen.is_empty() && questions[1].also_listen.is_empty());
        for (node, question) in questions.iter().enumerate() {
            for peer in &question.peers {
                let other = &questions[peer.node as usize];
                let listens = [&other.listen, &other.also_listen].contains(&&peer.ports);
                assert!(listens && peer.token == other.token, "{node}: {peer:?}");
            }
            // Rank 0's host is called at its fixed port and at another one.
            let of_first = question.peers.iter().filter(|peer| peer.node == 0).count();
            assert_eq!((of_first, question.peers.len()), if node == 0 { (0, 2) } else { (2, 3) });
        }
        draft.hosts.truncate(1);
        let alone = super::questions(&subject(&draft), &[], &mut || 7);
        assert_eq!((alone[0].listen.as_slice(), alone[0].expect, &alone[0].master), (&[4711][..], 0, &None));
    }

    #[test]
    fn loopback_address_is_not_used_by_other_machines() {
        let mut draft = draft(2);
        draft.hosts[0].address = "10.0.0.1".into();
        draft.hosts[1].address = "127.0.0.1".into();
        let questions = questions(&subject(&draft), &[], &mut || 7);
        assert!(questions[0].peers.is_empty() && questions[1].peers.len() == 1);
        assert_eq!((questions[0].expect, questions[1].expect), (1, 0));
    }

    #[test]
    fn alias_is_asked_about_as_its_host_name() {
        let mut draft = draft(2);
        draft.hosts[0].peer_address = Some("10.77.0.10".into());
        draft.hosts[1].peer_address = Some("10.77.0.11".into());
        let held = [vec!["10.1.0.10".parse().unwrap()], Vec::new()];
        let questions = questions(&subject(&draft), &held, &mut || 7);
        assert_eq!(questions[1].master.as_deref(), Some("10.77.0.10"));
        assert_eq!(questions[1].peers[0].address, "10.77.0.10");
        assert_eq!(questions[1].peers[0].others.len(), 1);
        assert_eq!(questions[0].peers[0].address, "10.77.0.11");
    }
}
