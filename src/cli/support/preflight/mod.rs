//! Preflight: checks before a launch. One command per host collects everything, which is then evaluated here.
//!
//! Used by `rankdeck check`, and by `rankdeck run` before it opens a link. Invariants:
//! - A check fails only if the run cannot work; everything else is a warning.
//! - CHECK-2: every failure and warning has a hint, and names the line of the file that decides it.
//! - Nothing is started, and nothing stays on a host but the agent.

mod consistency;
pub(crate) mod host_checks;
mod output;
mod query;

pub(crate) use output::{
    MANY, as_json, plan_lines, print, print_failed_plan, print_failed_run, print_problems, warnings,
};
pub(crate) use query::workdir;

use crate::cli::args::HostKeyArgs;
use crate::cli::support::{Failure, code};
use rankdeck_config::locate::Locator;
use rankdeck_core::launch_size;
use rankdeck_link::Links;
use rankdeck_proto::examination::HostFindings;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError};
use std::net::{IpAddr, SocketAddr};
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
    let answers = query::query_hosts(subject, host_keys).await?;
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
    PreflightReport {
        hosts: draft.hosts.iter().map(|host| host.name.clone()).collect(),
        plan: (probes.len() == draft.hosts.len())
            .then(|| draft.resolve(&probes).and_then(|plan| launch_size::check(&plan).map(|()| plan))),
        peer_addresses: peer_addresses(draft, &answers),
        answers,
        columns,
        took: Duration::ZERO,
        last: Vec::new(),
    }
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
}
