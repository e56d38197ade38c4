//! Preflight: nothing starts that cannot work. One command per host asks for everything, here it is judged.
//!
//! Owner: `rankdeck check`, and `rankdeck run` before it opens a link. Invariants:
//! - A check fails only for what is sure to keep the run from working; everything else that people
//!   should know is a warning.
//! - CHECK-2: every failure and warning says what would help, and which line of which file decides it.
//! - Nothing is started, and nothing stays on a host but the agent itself.

mod ask;
mod compare;
mod judge;
mod show;

pub use show::{as_json, complain, plan_lines, print, refuse, refuse_plan, warnings};

use super::Failure;
use super::args::HostKeyArgs;
use super::code;
use rankdeck_config::locate::Locator;
use rankdeck_core::fit;
use rankdeck_proto::examination::Findings;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError};
use std::time::{Duration, Instant};

/// Names of the checks, in the order of the table.
pub const CHECKS: [&str; 14] = [
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

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Grade {
    /// Could not be asked, or has no meaning here.
    #[default]
    Skipped,
    /// As it should be.
    Passed,
    /// The run may work, but.
    Warning,
    /// The run cannot work.
    Failed,
}

/// The result of one check on one host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// How it came out.
    pub grade: Grade,
    /// What was found.
    pub text: String,
    /// What the user can do about it.
    pub hint: String,
    /// The key that decides, dotted; empty: none.
    pub key: String,
}

impl Cell {
    pub(in crate::cli) fn passed(text: impl Into<String>) -> Cell {
        Cell { grade: Grade::Passed, text: text.into(), ..Cell::default() }
    }

    pub(in crate::cli) fn skipped() -> Cell {
        Cell::default()
    }

    pub(in crate::cli) fn warning(
        text: impl Into<String>,
        hint: impl Into<String>,
        key: impl Into<String>,
    ) -> Cell {
        Cell { grade: Grade::Warning, text: text.into(), hint: hint.into(), key: key.into() }
    }

    pub(in crate::cli) fn failed(
        text: impl Into<String>,
        hint: impl Into<String>,
        key: impl Into<String>,
    ) -> Cell {
        Cell { grade: Grade::Failed, ..Cell::warning(text, hint, key) }
    }
}

/// The code that ranks will run in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedCode {
    /// SHA-256 of its pack.
    pub hash: String,
    /// The script that the ranks' program is told to run is in it.
    pub has_script: bool,
    /// Packages that this script imports from elsewhere.
    pub imports: Vec<String>,
}

/// What is asked about.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The run that is to be launched.
    pub draft: &'a PlanDraft,
    /// The code that is to be on every host.
    pub code: Option<&'a PushedCode>,
    /// The trainer can be uploaded.
    pub can_upload: bool,
    /// Where each host stands in the hosts file; empty: all are asked, in its order.
    pub places: Vec<usize>,
}

/// One host's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct HostAnswer {
    /// What it found.
    pub findings: Findings,
    /// This machine's clock when it was asked and when it had answered.
    pub asked: f64,
    /// The same, after.
    pub answered: f64,
    /// Seconds that its login shell's start files took.
    pub shell: f64,
}

/// All of it.
#[derive(Debug)]
pub struct Report {
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// What each host answered.
    pub answers: Vec<Result<HostAnswer, HintedError>>,
    /// [`CHECKS`] of each host.
    pub columns: Vec<Vec<Cell>>,
    /// The plan, when all hosts have answered.
    pub plan: Option<Result<Plan, PlanError>>,
    /// How long it took.
    pub took: Duration,
    /// A check behind the others: name and result, for the whole run.
    pub last: Option<(&'static str, Cell)>,
}

impl Report {
    /// Cells of a grade.
    pub fn count(&self, grade: Grade) -> usize {
        self.columns
            .iter()
            .flatten()
            .chain(self.last.iter().map(|(_, cell)| cell))
            .filter(|cell| cell.grade == grade)
            .count()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match &self.plan {
            _ if self.count(Grade::Failed) > 0 => code::HOST,
            Some(Err(_)) => code::USAGE,
            _ => code::SUCCESS,
        }
    }
}

/// Asks all hosts, and judges.
pub async fn preflight(subject: &Subject<'_>, host_keys: &HostKeyArgs) -> Result<Report, Failure> {
    let began = Instant::now();
    let answers = ask::ask(subject, host_keys).await?;
    let mut report = judged(subject, answers);
    report.took = began.elapsed();
    Ok(report)
}

/// Judges answers. Pure.
fn judged(subject: &Subject<'_>, answers: Vec<Result<HostAnswer, HintedError>>) -> Report {
    let draft = subject.draft;
    let mut columns: Vec<Vec<Cell>> =
        answers.iter().enumerate().map(|(node, answer)| judge::column(subject, node, answer)).collect();
    compare::compare(subject, &answers, &mut columns);
    compare::same_machine(subject, &answers, &mut columns);
    compare::same_gpu(subject, &answers, &mut columns);
    if answers.iter().any(Result::is_err) {
        unmeasured(&answers, &mut columns);
    }
    for cell in columns.iter_mut().flatten() {
        cell.key = in_file(&cell.key, &subject.places);
    }
    let probes: Vec<_> =
        answers.iter().filter_map(|answer| Some(answer.as_ref().ok()?.findings.probe.clone())).collect();
    Report {
        hosts: draft.hosts.iter().map(|host| host.name.clone()).collect(),
        plan: (probes.len() == draft.hosts.len())
            .then(|| draft.resolve(&probes).and_then(|plan| fit::check(&plan).map(|()| plan))),
        answers,
        columns,
        took: Duration::ZERO,
        last: None,
    }
}

/// Where a host gave no answer, hosts were not asked again: who was not reached may still have been receiving
/// the agent, so nothing is said of it.
fn unmeasured(answers: &[Result<HostAnswer, HintedError>], columns: &mut [Vec<Cell>]) {
    for (answer, column) in answers.iter().zip(columns) {
        let Ok(host) = answer else { continue };
        let bound = host.findings.listened.as_ref().is_none_or(|listened| listened.error.is_none());
        if bound && host.findings.reached.iter().any(|to| to.error.is_some()) {
            let of_reaching = |name: &&str| ["port", "names"].contains(name);
            CHECKS.iter().zip(column).filter(|(name, _)| of_reaching(name)).for_each(|(_, cell)| {
                if cell.grade > Grade::Passed {
                    *cell = Cell::skipped();
                }
            });
        }
    }
}

/// `host.N.KEY` with the place in the file of the Nth host that was asked.
fn in_file(key: &str, places: &[usize]) -> String {
    let moved = key.strip_prefix("host.").and_then(|rest| {
        let (number, name) = rest.split_once('.')?;
        Some(format!("host.{}.{name}", places.get(number.parse::<usize>().ok()?)?))
    });
    moved.unwrap_or_else(|| key.to_owned())
}

/// The interfaces that lead to rank 0's store, for hosts that name none: Gloo and NCCL would choose by the
/// host's own name, or take the first.
pub fn interfaces(report: &Report) -> Vec<Option<String>> {
    let route = |answer: &Result<HostAnswer, HintedError>| {
        answer.as_ref().ok()?.findings.route.as_ref()?.interface.clone()
    };
    report.answers.iter().map(route).collect()
}

/// The same for people, who have just read what failed and why.
pub fn shortly(report: &Report, failure: Failure) -> Failure {
    let failed = |column: &Vec<Cell>| column.iter().any(|cell| cell.grade == Grade::Failed);
    let hosts = report.hosts.iter().zip(&report.columns).filter(|(_, column)| failed(column));
    let hosts: Vec<&str> = hosts.map(|(host, _)| host.as_str()).collect();
    let where_to = match hosts.as_slice() {
        [] => return failure,
        [host] => format!("host {host}"),
        [first, .., last] if hosts.len() > 4 => format!("{} hosts ({first} ... {last})", hosts.len()),
        hosts => format!("hosts {}", hosts.join(" ")),
    };
    Failure {
        cause: HintedError::new(
            format!("nothing was started: preflight failed on {where_to}"),
            failure.cause.hint,
        ),
        ..failure
    }
}

/// Stops here when something failed; the complaints have been printed by then.
pub fn verdict(report: &Report, locator: &Locator) -> Result<(), Failure> {
    let hosts = report.hosts.iter().zip(&report.columns);
    let mut failed = hosts.flat_map(|(host, column)| {
        let cells = CHECKS.iter().zip(column).filter(|(_, cell)| cell.grade == Grade::Failed);
        cells.map(move |(check, cell)| format!("{host}: {check}: {}", cell.text))
    });
    if let Some(first) = failed.next() {
        let others = match failed.count() {
            0 => String::new(),
            1 => " (and 1 more)".to_owned(),
            more => format!(" (and {more} more)"),
        };
        return Err(Failure::host(format!("preflight: {first}{others}; nothing was started"))
            .hint(format!("`rankdeck check {}` repeats the checks and starts nothing", locator.subject())));
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
    use super::judge::tests::{draft, good, subject};
    use super::*;
    use rankdeck_proto::examination::ConnectResult;

    #[test]
    fn hosts_are_not_blamed_for_what_they_did_not_reach_while_another_gave_no_answer() {
        let mut apart = good();
        apart.findings.reached =
            vec![ConnectResult { node: 0, address: "10.0.0.1:1".into(), error: Some("refused".into()) }];
        let draft = draft(3);
        let mut answers = vec![Ok(good()), Ok(apart), Ok(good())];
        let told = |answers: &[Result<HostAnswer, HintedError>]| {
            judged(&subject(&draft), answers.to_vec()).count(Grade::Failed)
        };
        assert_eq!(told(&answers), 1);
        answers[2] = Err(HintedError { error: "h2: no answer".into(), hint: "x".into() });
        let report = judged(&subject(&draft), answers);
        assert_eq!(report.count(Grade::Failed), 1);
        assert_eq!(report.columns[2][0].text, "h2: no answer");
    }

    #[test]
    fn keys_name_the_hosts_of_the_file_also_when_some_were_left_out() {
        assert_eq!(in_file("host.1.gpus", &[0, 2]), "host.2.gpus");
        assert_eq!(in_file("host.1.gpus", &[]), "host.1.gpus");
        assert_eq!(in_file("launch.command", &[0, 2]), "launch.command");
    }
}
