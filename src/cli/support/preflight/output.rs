//! Prints a preflight as text or as JSON.

use super::{CHECKS, CheckResult, CheckStatus, HostAnswer, PreflightReport, bound_ranks};
use crate::app::stderr;
use crate::cli::support::{Failure, print};
use rankdeck_config::Locator;
use rankdeck_proto::clock::wall_time;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::NetworkKind;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::{Plan, PlannedBackend, PlannedHost, block_share};
use rankdeck_types::words::{clean, plural};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Up to this many hosts get a column each; more get a row each.
const FEW: usize = 5;
/// Of more than this many hosts, a table shows those with a problem.
pub(crate) const MANY: usize = 16;
/// Most hosts that a message names.
const NAMED: usize = 8;
/// Longest cell of the table.
const WIDEST: usize = 26;

/// Prints the table, the problems and the plan.
pub(crate) fn print(report: &PreflightReport, locator: &Locator) {
    // A pipe gets the full text.
    let widest = if std::io::stdout().is_terminal() { WIDEST } else { usize::MAX };
    let many = report.hosts.len() > FEW;
    print::text(&print::table(&if many { by_host(report, widest) } else { by_check(report, widest) }));
    match report.columns.iter().filter(|column| is_hidden(report, column)).count() {
        0 => {}
        count => {
            print::stdout(&format!("{}: every check passed", plural(count, "more host")));
        }
    }
    let is_first = |index: usize, name: &str| report.last[..index].iter().all(|(known, _)| *known != name);
    for (_, (name, cell)) in
        report.last.iter().enumerate().filter(|(index, (name, _))| is_first(*index, name))
    {
        print::stdout(&format!("{name}  {}", shown(cell, widest)));
    }
    print_problems(report, locator);
    if report.count(CheckStatus::Failed) == 0
        && let Some(Ok(plan)) = &report.plan
    {
        print_plan(plan);
        core_lines(report, plan).iter().chain(&pythons(report)).for_each(|line| {
            print::stdout(line);
        });
    }
}

/// Describes the CPUs that the ranks of each host are bound to.
fn core_lines(report: &PreflightReport, plan: &Plan) -> Vec<String> {
    let of_host = |(planned, answer): (&PlannedHost, &Result<HostAnswer, HintedError>)| {
        let answer = answer.as_ref().ok()?;
        let sets = bound_ranks(plan, planned, answer)?.ok()?;
        let ranks: Vec<String> = sets.iter().map(|(rank, set)| format!("{rank}={set}")).collect();
        let unused = answer.findings.topology.as_ref()?.unused(sets.values());
        let unused = match unused.is_empty() {
            true => String::new(),
            false => format!("; unused: {unused}, on sockets without a GPU of the run"),
        };
        Some(format!("  cpus  {}  ranks {}{unused}", clean(&planned.host.name), ranks.join(" ")))
    };
    plan.hosts.iter().zip(&report.answers).filter_map(of_host).collect()
}

/// Describes the interpreter of the ranks on each host.
fn pythons(report: &PreflightReport) -> Vec<String> {
    let mut grouped: Vec<(String, Vec<&str>)> = Vec::new();
    for (host, answer) in report.hosts.iter().zip(&report.answers) {
        let program = answer.as_ref().ok().and_then(|answer| answer.findings.program.as_ref());
        let Some(python) = program.and_then(|program| program.python.as_ref()) else { continue };
        let text = format!("{} (prefix {})", clean(&python.executable), clean(&python.prefix));
        match grouped.iter_mut().find(|(same, _)| *same == text) {
            Some((_, hosts)) => hosts.push(host),
            None => grouped.push((text, vec![host])),
        }
    }
    grouped.into_iter().map(|(text, hosts)| format!("  python  {text} on {}", hosts.join(" "))).collect()
}

fn by_check(report: &PreflightReport, widest: usize) -> Vec<Vec<String>> {
    let header =
        std::iter::once("CHECK".to_owned()).chain(report.hosts.iter().map(|host| clean(host))).collect();
    let rows = CHECKS.iter().enumerate().map(|(i, name)| {
        let cells = report.columns.iter().map(|column| shown(&column[i], widest));
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    std::iter::once(header).chain(rows).collect()
}

fn by_host(report: &PreflightReport, widest: usize) -> Vec<Vec<String>> {
    let header = std::iter::once("HOST").chain(CHECKS).map(str::to_owned).collect();
    let mark = |cell: &CheckResult| match cell.status {
        CheckStatus::Passed => "ok".to_owned(),
        _ => shown(cell, widest),
    };
    let rows = report
        .hosts
        .iter()
        .zip(&report.columns)
        .filter(|(_, column)| !is_hidden(report, column))
        .map(|(host, column)| std::iter::once(clean(host)).chain(column.iter().map(mark)).collect());
    std::iter::once(header).chain(rows).collect()
}

/// Returns whether the table leaves out a host: one without a problem, if there are many hosts.
fn is_hidden(report: &PreflightReport, column: &[CheckResult]) -> bool {
    report.hosts.len() > MANY && column.iter().all(|cell| cell.status <= CheckStatus::Passed)
}

/// Lists hosts for a message.
pub(super) fn host_list(hosts: &[&str]) -> String {
    match hosts {
        [host] => format!("host {host}"),
        hosts if hosts.len() <= NAMED => format!("hosts {}", hosts.join(" ")),
        hosts => format!("{} hosts ({} ...)", hosts.len(), hosts[..NAMED].join(" ")),
    }
}

fn shown(cell: &CheckResult, widest: usize) -> String {
    match cell.status {
        CheckStatus::Passed => short(&clean(&cell.text), widest),
        CheckStatus::Warning => "WARNING".to_owned(),
        CheckStatus::Failed => "FAILED".to_owned(),
        CheckStatus::Skipped => "-".to_owned(),
    }
}

/// Cuts a text to a width; of a path at its end, the end stays.
fn short(text: &str, widest: usize) -> String {
    if text.chars().count() <= widest {
        return text.to_owned();
    }
    let (head, path) = match text.rsplit_once(' ') {
        Some((head, path)) if path.starts_with('/') && head.chars().count() + 8 <= widest => (head, path),
        _ => {
            let cut: String = text.chars().take(widest).collect();
            return format!("{cut}…");
        }
    };
    let room = widest - head.chars().count() - 2;
    let skip = path.chars().count() - room;
    format!("{head} …{}", path.chars().skip(skip).collect::<String>())
}

/// Prints failures and warnings to stderr; equal ones of several hosts once.
pub(crate) fn print_problems(report: &PreflightReport, locator: &Locator) {
    problem_lines(report, locator).iter().for_each(|line| stderr::line(line));
}

/// Returns the lines of [`print_problems`]. Each host that was not reached has a hint of its own, with its own
/// address: of several, the first one is printed.
fn problem_lines(report: &PreflightReport, locator: &Locator) -> Vec<String> {
    let found = problems(report, locator);
    let is_reach = |text: &str| text.contains(": reach: ");
    let unreached = found.iter().filter(|(_, text, _)| is_reach(text)).count();
    let mut lines = Vec::new();
    let mut late = None;
    for (status, text, hint) in found {
        let word = if status == CheckStatus::Failed { "error" } else { "warning" };
        if late.is_some() && !is_reach(&text) {
            lines.extend(late.take());
        }
        let is_one_of_many = is_reach(&text) && unreached > print::FEW_HINTS;
        lines.push(format!("{word}: {text}"));
        let hint = Some(hint).filter(|hint| !hint.is_empty()).map(|hint| format!("hint: {hint}"));
        match is_one_of_many {
            true => late = late.or(hint),
            false => lines.extend(hint),
        }
    }
    lines.extend(late);
    lines
}

/// Returns the warnings, one line each, for users of the screen.
pub(crate) fn warnings(report: &PreflightReport, locator: &Locator) -> Vec<String> {
    problems(report, locator)
        .into_iter()
        .filter(|(status, ..)| *status == CheckStatus::Warning)
        .map(|(_, text, hint)| if hint.is_empty() { text } else { format!("{text}; hint: {hint}") })
        .collect()
}

/// Returns status, sentence with the hosts, and hint of every problem; failures first.
fn problems(report: &PreflightReport, locator: &Locator) -> Vec<(CheckStatus, String, String)> {
    /// Hosts with one problem, its hint, and where the hint points.
    struct Problem {
        status: CheckStatus,
        text: String,
        hosts: Vec<String>,
        hint: String,
        place: String,
    }
    let mut grouped: Vec<Problem> = Vec::new();
    // Of many hosts, the first one's line in the file stands for all.
    let is_same_place = |one: &str, other: &str| one == other || report.hosts.len() > FEW;
    let cells = report.columns.iter().zip(&report.hosts).flat_map(|(column, host)| {
        CHECKS.iter().zip(column).map(move |(name, cell)| (*name, host.as_str(), cell))
    });
    let last = report.last.iter().map(|(name, cell)| (*name, "", cell));
    for (name, host, cell) in cells.chain(last).filter(|(_, _, cell)| cell.status > CheckStatus::Passed) {
        let text = format!("{name}: {}", cell.text);
        let (hint, place) = match (cell.key.as_str(), cell.hint.as_str()) {
            (_, "") => (String::new(), String::new()),
            ("", hint) => (hint.to_owned(), String::new()),
            (key, hint) => (hint.to_owned(), hint_place(locator, key)),
        };
        let same = |problem: &&mut Problem| {
            (problem.status, problem.text.as_str(), problem.hint.as_str())
                == (cell.status, text.as_str(), hint.as_str())
                && is_same_place(&problem.place, &place)
        };
        let hosts = vec![host.to_owned()];
        match grouped.iter_mut().find(same) {
            Some(problem) => problem.hosts.extend(hosts),
            None => grouped.push(Problem { status: cell.status, text, hosts, hint, place }),
        }
    }
    grouped.sort_by_key(|problem| std::cmp::Reverse(problem.status));
    grouped
        .into_iter()
        .map(|Problem { status, text, hosts, hint, place: at }| {
            let hint = if hint.is_empty() { hint } else { at + &hint };
            let place = match hosts.as_slice() {
                [host] if host.is_empty() => String::new(),
                _ => host_list(&hosts.iter().map(String::as_str).collect::<Vec<_>>()) + ": ",
            };
            (status, format!("{place}{text}"), hint)
        })
        .collect()
}

/// The place that a hint begins with. Of hosts without a file, the option decides nothing but their addresses.
fn hint_place(locator: &Locator, key: &str) -> String {
    match locator.place(key) {
        place if place == "--hosts" && !key.ends_with(".address") => String::new(),
        place => format!("{place}: "),
    }
}

/// Prints the JSON line of a command that failed before it queried the hosts: `check_finished` or
/// `run_finished`, with every mistake.
pub(crate) fn print_failed_plan(kind: &str, failure: &Failure) {
    let first = failure.faults.first().map_or(failure.cause.error.as_str(), |fault| fault.error.as_str());
    let common = json!({
        "kind": kind,
        "run": "",
        "generation": 0,
        "time": wall_time(),
        "exit_code": failure.code,
        "errors": failure.faults,
    });
    let more = match kind {
        "check_finished" => json!({
            "hosts": 0, "failed": 0, "warnings": 0, "world_size": null, "error": first, "duration_s": 0.0,
        }),
        _ => json!({
            "outcome": "failed", "reason": first, "proved": true, "survivors": [], "unverified": [], "stop_ms": 0,
            "gpus_free": [],
        }),
    };
    let mut line = common;
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.extend(more);
    }
    print::json(&line);
}

/// Prints the JSON lines of a run that failed its preflight: the failed checks and the end that every run
/// has.
pub(crate) fn print_failed_run(report: &PreflightReport, locator: &Locator, run: &RunId, failure: &Failure) {
    let time = wall_time();
    for line in as_json(report, locator, &run.0, time) {
        if line["result"] == "failed" || line["kind"] == "check_finished" {
            print::json(&line);
        }
    }
    print::json(&json!({
        "kind": "run_finished",
        "run": run,
        "generation": 0,
        "time": time,
        "outcome": "failed",
        "exit_code": failure.code,
        "reason": failure.cause.error,
        "proved": true,
        "survivors": [],
        "stop_ms": 0,
        "gpus_free": [],
    }));
}

/// Returns one object per check and host, then one for the whole.
pub(crate) fn as_json(report: &PreflightReport, locator: &Locator, run: &str, time: f64) -> Vec<Value> {
    let line = |name: &str, host: Option<(usize, &String)>, cell: &CheckResult| {
        json!({
            "kind": "check",
            "run": run,
            "generation": 0,
            "time": time,
            "host": host.map(|(_, name)| name),
            "node_rank": host.map(|(node, _)| node),
            "check": name,
            "result": match cell.status {
                CheckStatus::Skipped => "skipped",
                CheckStatus::Passed => "passed",
                CheckStatus::Warning => "warning",
                CheckStatus::Failed => "failed",
            },
            "text": cell.text,
            "hint": cell.hint,
            "place": if cell.key.is_empty() { Value::Null } else { Value::from(locator.place(&cell.key)) },
        })
    };
    let mut lines = Vec::new();
    for ((node, host), column) in report.hosts.iter().enumerate().zip(&report.columns) {
        lines.extend(CHECKS.iter().zip(column).map(|(name, cell)| line(name, Some((node, host)), cell)));
    }
    lines.extend(report.last.iter().map(|(name, cell)| line(name, None, cell)));
    let plan = report.plan.as_ref().and_then(|plan| plan.as_ref().ok());
    lines.push(json!({
        "kind": "check_finished",
        "run": run,
        "generation": 0,
        "time": time,
        "hosts": report.hosts.len(),
        "failed": report.count(CheckStatus::Failed),
        "warnings": report.count(CheckStatus::Warning),
        "world_size": plan.map(Plan::world_size),
        "error": report.plan.as_ref().and_then(|plan| plan.as_ref().err()).map(|error| &error.cause.error),
        "duration_s": report.took.as_secs_f64(),
        "exit_code": report.code(),
    }));
    lines
}

/// Layer widths up to which a CPU step takes less time than the kernel launches of a GPU.
const SMALL: u32 = 128;

fn print_plan(plan: &Plan) {
    print::stdout("");
    plan_lines(plan).iter().for_each(|line| {
        print::stdout(line);
    });
}

/// Describes the plan: the group, the ranks of each host, and the share of global sizes per rank.
pub(crate) fn plan_lines(plan: &Plan) -> Vec<String> {
    let (size, hosts) = (plan.world_size(), plan.members().count());
    let mut lines = vec![format!("plan: world_size {size}, {}, {}", plural(hosts, "host"), plan.backend())];
    for planned in plan.members() {
        let ranks: Vec<String> = plan
            .ranks_of(planned.node_rank)
            .map(|rank| {
                rank.gpu.map_or_else(|| rank.rank.to_string(), |gpu| format!("{}=gpu{gpu}", rank.rank))
            })
            .collect();
        let (node, name) = (planned.node_rank, &planned.host.name);
        lines.push(format!("  node_rank {node}  {name}  ranks {}", ranks.join(" ")));
    }
    for size in &plan.sizes {
        lines.push(format!("  {}  {} per rank, {} global", size.name, size.local, size.global));
    }
    if let Some(share) = block_share(&plan.experiment, 0, size).filter(|_| plan.is_builtin()) {
        let worlds: Vec<String> = (1..=share.all)
            .filter(|world| share.all.is_multiple_of(*world))
            .map(|world| world.to_string())
            .collect();
        lines.push(format!(
            "  invariant: same weights on {} ranks; per update, each rank computes {} one by one and sends {}",
            worlds.join(", "),
            plural(share.count as usize, "block"),
            plural(share.nodes_per_rank(), "gradient"),
        ));
    }
    let policy = &plan.experiment.policy;
    let is_small = policy.network == NetworkKind::Mlp && policy.hidden.iter().all(|width| *width <= SMALL);
    if plan.is_builtin() && plan.backend() == PlannedBackend::Nccl && is_small {
        lines.push(
            "  note: for a network this small, CPUs may be faster than GPU kernel launches: remove `gpus`, set `nproc` and compare"
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::preflight::evaluate;
    use crate::cli::support::preflight::host_checks::tests::{draft, good, subject};
    use rankdeck_config::{ExperimentSource, HostsSource};
    use rankdeck_types::cores::{CpuTopology, PhysicalCore};
    use rankdeck_types::error::HintedError;
    use rankdeck_types::experiment::CoreBinding;
    use rankdeck_types::plan::PlanDraft;

    #[test]
    fn plan_names_the_cost_of_invariant_mode() {
        let text = include_str!("../../../../configs/cartpole_ppo_invariant.toml");
        let invariant = |hosts: usize| {
            let draft = PlanDraft { experiment: toml::from_str(text).unwrap(), ..draft(hosts) };
            let lines = plan_lines(&draft.resolve(&[]).unwrap());
            lines.into_iter().find(|line| line.contains("invariant:")).unwrap()
        };
        insta::assert_snapshot!([invariant(1), invariant(2), invariant(3)].join("\n"));
        let plain =
            text.replace("invariant = true", "invariant = false").replace("invariant_blocks = 12", "");
        let draft = PlanDraft { experiment: toml::from_str(&plain).unwrap(), ..draft(2) };
        let lines = plan_lines(&draft.resolve(&[]).unwrap());
        assert!(lines.iter().all(|line| !line.contains("invariant:")), "{lines:?}");
    }

    #[test]
    fn five_bad_hosts_of_a_hundred_give_five_lines() {
        let draft = draft(100);
        let file = ExperimentSource::File("e.toml".into());
        let locator = Locator::new(&HostsSource::Here, &file);
        let bad = [7, 20, 41, 66, 91];
        let each = |error: &dyn Fn(usize) -> (String, String)| {
            let answer = |node: usize| match bad.contains(&node) {
                true => Err(HintedError::new(format!("h{node}: {}", error(node).0), error(node).1)),
                false => Ok(good()),
            };
            evaluate(&subject(&draft), (0..100).map(answer).collect())
        };
        let report =
            each(&|node| (format!("connection refused by 10.0.0.{node}"), format!("try `ssh h{node}`")));
        let lines = problem_lines(&report, &locator);
        assert_eq!(lines.len(), 6, "{lines:?}");
        for node in bad {
            assert_eq!(lines.iter().filter(|line| line.contains(&format!("host h{node}:"))).count(), 1);
        }
        assert!(lines[5].starts_with("hint:"), "{lines:?}");
        assert_eq!(by_host(&report, WIDEST).len(), 6, "a row each, and the header");
        // One cause is one line with all names.
        let report = each(&|_| ("jump host gw: no response".to_owned(), "try `ssh gw`".to_owned()));
        let lines = problem_lines(&report, &locator);
        assert!(lines[0].contains("hosts h7 h20 h41 h66 h91"), "{lines:?}");
    }

    #[test]
    fn option_with_the_hosts_is_a_place_for_addresses_only() {
        let draft = draft(2);
        let command = ExperimentSource::Command { words: vec!["python3".into()], ships: false };
        let locator = Locator::new(&HostsSource::parse("h0,h1"), &command);
        let mut broken = good();
        broken.findings.disk.error = Some("Read-only file system".to_owned());
        let silent = Err(HintedError::new("h1: no answer", "check it"));
        let report = evaluate(&subject(&draft), vec![Ok(broken), silent]);
        let lines = problem_lines(&report, &locator);
        let hints: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("hint: ")).collect();
        assert!(hints.contains(&"--hosts: check it"), "{lines:?}");
        assert!(
            hints.iter().any(|hint| hint.ends_with("`workdir`") && !hint.contains("--hosts")),
            "{lines:?}"
        );
    }

    #[test]
    fn cores_of_ranks_are_listed_or_the_reason_is() {
        let mut draft = draft(2);
        draft.experiment.launch.bind = Some(CoreBinding::Auto);
        draft.hosts[0].nproc = Some(2);
        draft.hosts[1].nproc = Some(4);
        let core =
            |cpu: u32| PhysicalCore { cpus: [cpu, cpu + 4].into_iter().collect(), ..Default::default() };
        let mut answer = good();
        answer.findings.topology =
            Some(CpuTopology { cores: (0..3).map(core).collect(), ..CpuTopology::default() });
        let report = evaluate(&subject(&draft), vec![Ok(answer.clone()), Ok(answer)]);
        let plan = report.plan.as_ref().unwrap().as_ref().unwrap();
        assert_eq!(core_lines(&report, plan), ["  cpus  h0  ranks 0=0,4 1=1-2,5-6"]);
        let ranks = CHECKS.iter().position(|name| *name == "ranks").unwrap();
        let cells = report.columns.iter().map(|column| &column[ranks]).collect::<Vec<_>>();
        assert!(
            cells[0].status == CheckStatus::Passed && cells[0].text.ends_with("0,4 1-2,5-6"),
            "{cells:?}"
        );
        assert!(cells[1].status == CheckStatus::Warning && cells[1].key == "launch.bind", "{cells:?}");
        // An agent that was not asked.
        let report = evaluate(&subject(&draft), vec![Ok(good()), Ok(good())]);
        assert_eq!(report.columns[0][ranks].text, "2 on 4 cores");
    }

    #[test]
    fn long_cell_keeps_the_end_of_its_path() {
        let at = |text: &str| short(text, WIDEST);
        assert_eq!(at("3.11.7 /usr"), "3.11.7 /usr");
        assert_eq!(at("3.11.7 /home/username/environments/rl"), "3.11.7 …me/environments/rl");
        assert_eq!(at("0123456789012345678901234567890").chars().count(), WIDEST + 1);
        assert_eq!(short("3.11.7 /home/username/environments/rl", usize::MAX).chars().count(), 37);
    }
}
