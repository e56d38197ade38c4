//! `rankdeck stop`: stops a run and prints `stop verified` only if every host has verified it (CLI-3).

use crate::app::driver::{ConsoleExit, ExitReason};
use crate::app::exit_condition::ExitCondition;
use crate::app::{stderr, summary};
use crate::cli::args::{HostKeyArgs, PrintArgs, StopArgs};
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::RunLocator;
use crate::cli::support::run_index::{FoundRun, RunIndex, RunStatus, decode, exec_on_all};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code, interrupt, print, prompt};
use rankdeck_config::HostsSource;
use rankdeck_core::model::Model;
use rankdeck_core::report::ReportBody;
use rankdeck_proto::message::{StopMode, Survivor, Work};
use rankdeck_proto::run_entry::{RunEntry, RunTraces};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::{clean, plural};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Runs `rankdeck stop`.
pub(crate) async fn stop(hosts_from: &HostsSource, args: StopArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let run_index = Rc::new(locator.index(args.run.as_deref()).await?);
    let located = match locator.select(run_index.clone(), args.run.as_deref(), RunAction::Stop).await {
        Ok(located) => located,
        Err(failure) => return Err(unlisted(&run_index, &args, failure).await?),
    };
    let (run_index, found) = (&located.run_index, located.found()?);
    let target = ExistingRun::with_unlisted(run_index, &found)?;
    let mode = if args.kill { StopMode::Kill } else { StopMode::Clean };
    if is_unnamed(run_index, &args) && !prompt::yes(&question(&found, mode)).await {
        return Err(Failure::usage("nothing was stopped: not confirmed")
            .hint("pass the name of the run, or `--yes` to skip the prompt"));
    }
    let mut check = StopCheck::new(&target, &found);
    if found.state == RunStatus::Running || may_follow(&found) {
        let hosts = plural(target.hosts.len(), "host");
        args.output.progress(&format!("stopping run {} on {hosts}", target.run));
        // The console below prints nothing while it waits for them.
        for (index, error) in &run_index.silent {
            let host =
                run_index.hosts.get(*index).filter(|host| target.hosts.iter().any(|of| of.name == host.name));
            if host.is_some() {
                stderr::line(&format!("warning: {}; trying again for up to a minute", clean(&error.error)));
            }
        }
        let end = target.run_until(ExitCondition::stop(mode), &args.host_keys).await?;
        if let Some(failure) =
            interrupt::unrequested("stop", &end, &target.run).filter(|_| end.why == ExitReason::Interrupted)
        {
            return Err(failure);
        }
        check.on_exit(&end);
    }
    // Hosts without a verified stop are scanned for processes.
    let open: Vec<String> = check.open.iter().cloned().collect();
    let listed: Vec<Host> = open.iter().filter_map(|name| run_index.host(name).ok()).cloned().collect();
    for name in open.iter().filter(|name| listed.iter().all(|host| host.name != **name)) {
        let hint = "pass the hosts file of the launch with `--hosts FILE`";
        check.swept(name, Err(HintedError::new("not listed in the hosts file", hint)));
    }
    for (host, left) in sweep(&target.run, &listed, &args).await? {
        check.swept(&host, left);
    }
    check.print(&target.run, args.output)
}

/// Whether a user who named no run is to be asked: only one was running, so that there was no list to select it from.
fn is_unnamed(run_index: &RunIndex, args: &StopArgs) -> bool {
    let running = run_index.runs().iter().filter(|found| found.state != RunStatus::Finished).count();
    args.run.is_none() && running == 1 && !args.yes && prompt::can_confirm()
}

fn question(found: &FoundRun<'_>, mode: StopMode) -> String {
    let verb = if mode == StopMode::Kill { "kill" } else { "stop" };
    let ranks: u32 = found.parts.iter().map(|(_, part)| part.ranks_alive).sum();
    let ranks = plural(ranks as usize, "rank");
    clean(&format!("{verb} run {} ({ranks} on {})?", found.run, found.hosts().join(", ")))
}

/// A generation has ended, and the console that launched the run has not: it may start another one.
fn may_follow(found: &FoundRun<'_>) -> bool {
    let waits =
        |entry: &RunEntry| entry.agent_pid != 0 && entry.world_size > 0 && entry.digest.ending.is_none();
    found.parts.iter().any(|(_, entry)| waits(entry))
}

/// CLI-3. A run that no host lists may still run if its directories were removed or `workdir` has changed:
/// its processes are reported as for any stop.
async fn unlisted(run_index: &RunIndex, args: &StopArgs, failure: Failure) -> Result<Failure, Failure> {
    let Some(run) = args.run.as_deref().and_then(|name| RunId::parse(name).ok()) else {
        return Ok(unanswered(run_index, None, failure, args.output));
    };
    let silent = |index: &usize| run_index.silent.iter().any(|(other, _)| other == index);
    let asked: Vec<Host> = (0..run_index.hosts.len())
        .filter(|index| !silent(index))
        .map(|index| run_index.hosts[index].clone())
        .collect();
    let all = traces(&run, &asked, &args.host_keys).await?;
    let mut lines = Vec::new();
    for (host, found) in asked.iter().zip(all) {
        let alive = found.map(|found| found.alive).unwrap_or_default();
        lines.extend(alive.iter().map(|survivor| living(&host.name, survivor)));
    }
    if lines.is_empty() {
        return Ok(unanswered(run_index, Some(&run.0), failure, args.output));
    }
    args.output
        .outcome(&clean(&format!("{}: run {run}: no host has its run directory", summary::NOT_VERIFIED)));
    lines.iter().for_each(|line| args.output.outcome(&clean(line)));
    args.output.record(|| record(Some(&run.0), false, &[], &lines, None));
    Ok(Failure::failed(format!("cannot verify that run {run} has stopped"))
        .hint("set `workdir` in the hosts file as it was at launch, or kill the processes on the host"))
}

/// CLI-3. If hosts do not respond and no other host lists the run, it may still run: that is reported as for
/// any stop.
fn unanswered(run_index: &RunIndex, name: Option<&str>, failure: Failure, output: PrintArgs) -> Failure {
    if failure.code != code::HOST || run_index.silent.is_empty() {
        return failure;
    }
    let lines = unanswered_lines(run_index, name);
    lines.iter().for_each(|line| output.outcome(line));
    let silent = run_index.silent.iter().filter_map(|(index, _)| run_index.hosts.get(*index));
    let silent: Vec<&str> = silent.map(|host| host.name.as_str()).collect();
    output.record(|| record(name, false, &silent, &lines[1..], None));
    let run = name.map_or_else(|| "any run".to_owned(), |run| format!("run {run}"));
    let hints = failure.cause.hint;
    Failure::host(format!("cannot verify that {run} has stopped")).hint(hints)
}

fn unanswered_lines(run_index: &RunIndex, name: Option<&str>) -> Vec<String> {
    let run = name.map_or_else(|| "no run found".to_owned(), |run| format!("run {run}"));
    let hosts = run_index.silent.iter().map(|(index, error)| {
        let name = run_index.hosts.get(*index).map_or("?", |host| host.name.as_str());
        clean(&format!("{}: {}", summary::unverified(name), cause(name, &error.error)))
    });
    std::iter::once(clean(&format!("{}: {run}", summary::NOT_VERIFIED))).chain(hosts).collect()
}

/// A stop as a JSON line.
fn record(
    run: Option<&str>,
    verified: bool,
    unverified: &[&str],
    lines: &[String],
    work: Option<&Work>,
) -> Value {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    json!({
        "kind": "stop",
        "run": run,
        "verified": verified,
        "unverified": unverified,
        "lines": lines,
        "work": work,
    })
}

/// The state of the stop on each host. A host is in one of the two sets.
#[derive(Debug, Default)]
struct StopCheck {
    /// Hosts that were asked, and on which no process is left.
    verified: BTreeSet<String>,
    /// Hosts without a verified stop.
    open: BTreeSet<String>,
    swept: bool,
    /// Whether ranks were launched.
    launched: bool,
    lines: Vec<String>,
    unreachable: bool,
    /// What the stop left of the work.
    work: Option<Work>,
}

/// Why a reply does not verify the stop.
const UNKNOWN: &str = "no directory of this run; `workdir` or the host may have changed since the launch";

/// An error without the host that the line already names.
fn cause<'a>(host: &str, error: &'a str) -> &'a str {
    error.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(error)
}

fn living(host: &str, survivor: &Survivor) -> String {
    let Survivor { pid, command, state, .. } = survivor;
    format!("  still running: {host}:{pid} {command} (state {state})")
}

impl StopCheck {
    /// Nothing is verified yet.
    fn new(target: &ExistingRun, found: &FoundRun) -> StopCheck {
        let open = target.hosts.iter().map(|host| host.name.clone()).collect();
        let launched = found.parts.iter().any(|(_, part)| part.world_size > 0);
        StopCheck { open, launched, ..StopCheck::default() }
    }

    fn verify(&mut self, host: &str) {
        self.open.remove(host);
        self.verified.insert(host.to_owned());
    }

    fn reopen(&mut self, host: &str) {
        self.verified.remove(host);
        self.open.insert(host.to_owned());
    }

    /// Takes over what the agents have verified. Hosts that only the agents named count as well.
    fn on_exit(&mut self, end: &ConsoleExit) {
        self.take(&end.model, end.finished.as_ref());
        self.work.clone_from(&end.model.run.work);
        if let Some(finished) = &end.finished {
            self.lines = summary::verification(&end.model, finished, print::columns());
            self.lines.retain(|line| !line.starts_with(summary::NOT_VERIFIED));
        }
    }

    fn take(&mut self, model: &Model, finished: Option<&ReportBody>) {
        let unverified = match finished {
            Some(ReportBody::RunFinished { unverified, .. }) => Some(unverified),
            _ => None,
        };
        for host in &model.hosts {
            let (clear, counts) = match unverified {
                Some(names) => {
                    let open = names.contains(&host.name);
                    (!open && host.agent.is_some(), open)
                }
                None => (host.is_verified(), host.excluded.is_none() || host.stopped.is_some()),
            };
            if clear {
                self.verify(&host.name);
            } else if counts {
                self.reopen(&host.name);
            }
        }
    }

    /// Handles the scan of a host without an agent. A host without a record of a run that was launched there
    /// verifies nothing: its directory, or the host itself, has changed.
    fn swept(&mut self, host: &str, traces: HostTraces) {
        match traces {
            Ok(traces) => {
                self.swept = true;
                let known = traces.known || !self.launched;
                if traces.alive.is_empty() && known {
                    self.verify(host);
                }
                if !known {
                    self.lines.push(format!("{}: {UNKNOWN}", summary::unverified(host)));
                }
                self.lines.extend(traces.alive.iter().map(|survivor| living(host, survivor)));
            }
            Err(error) => {
                self.reopen(host);
                self.unreachable = true;
                self.lines.push(format!("{}: {}", summary::unverified(host), cause(host, &error.error)));
            }
        }
    }

    fn print(self, run: &RunId, output: PrintArgs) -> Result<u8, Failure> {
        let lines: Vec<String> = self.lines.iter().map(|line| clean(line)).collect();
        let open: Vec<&str> = self.open.iter().map(String::as_str).collect();
        output.record(|| record(Some(&run.0), open.is_empty(), &open, &lines, self.work.as_ref()));
        if self.open.is_empty() {
            let mut lines = lines;
            if self.swept || lines.is_empty() {
                lines = vec![summary::verified(Some(run), self.verified.len())];
            }
            if let (Some(line), Some(work)) = (lines.last_mut(), &self.work) {
                line.push_str(&format!("; {}", clean(&work.describe())));
            }
            lines.iter().for_each(|line| output.outcome(line));
            return Ok(code::SUCCESS);
        }
        output.outcome(&format!("{}: run {run}", summary::NOT_VERIFIED));
        let named = |name: &String| lines.iter().any(|line| line.contains(name.as_str()));
        let silent = self.open.iter().filter(|name| !named(name)).map(|name| summary::unverified(name));
        for line in silent.collect::<Vec<_>>().iter().chain(&lines) {
            output.outcome(&clean(line));
        }
        let code = if self.unreachable { code::HOST } else { code::FAILED };
        let failure = Failure::failed(format!("cannot verify that run {run} has stopped"));
        Err(Failure { code, ..failure }
            .hint(format!("try `rankdeck stop {run} --kill`, or log in to the host and kill the processes")))
    }
}

/// A host's records of the run after leftovers of a dead agent were killed.
type HostTraces = Result<RunTraces, HintedError>;

/// Scans hosts without a verified stop and kills leftovers, then queries the records of each:
/// processes with a live agent are not killed.
async fn sweep(run: &RunId, hosts: &[Host], args: &StopArgs) -> Result<Vec<(String, HostTraces)>, Failure> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    let swept = exec_on_all(hosts, &args.host_keys, |host| command("sweep", run, host)).await?;
    let all = traces(run, hosts, &args.host_keys).await?;
    let both = hosts.iter().zip(swept).zip(all);
    Ok(both.map(|((host, swept), found)| (host.name.clone(), swept.and(found))).collect())
}

/// Queries each host's records of the run, in host order.
async fn traces(run: &RunId, hosts: &[Host], host_keys: &HostKeyArgs) -> Result<Vec<HostTraces>, Failure> {
    let answers = exec_on_all(hosts, host_keys, |host| command("traces", run, host)).await?;
    Ok(hosts.iter().zip(answers).map(|(host, answer)| answer.and_then(|text| decode(host, &text))).collect())
}

fn command(verb: &str, run: &RunId, host: &Host) -> Vec<String> {
    [verb, "--run", &run.0, "--workdir", &host.workdir].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::HostModel;
    use rankdeck_types::ids::NodeRank;

    fn survivor() -> Survivor {
        Survivor { pid: 7, rank: None, state: 'D', command: "python".into() }
    }

    fn check() -> StopCheck {
        StopCheck { open: ["a".to_string(), "b".to_string()].into(), ..StopCheck::default() }
    }

    fn answer_with(alive: Vec<Survivor>) -> HostTraces {
        Ok(RunTraces { known: true, alive })
    }

    #[test]
    fn cli_3_stopped_needs_every_host() {
        let run = RunId("r".into());
        let clear = |name: &str, check: &mut StopCheck| check.swept(name, answer_with(Vec::new()));
        let mut all = check();
        ["a", "b"].iter().for_each(|name| clear(name, &mut all));
        assert_eq!(all.print(&run, PrintArgs::default()), Ok(0));
        let mut left = check();
        clear("a", &mut left);
        left.swept("b", answer_with(vec![survivor()]));
        assert_eq!(left.print(&run, PrintArgs::default()).unwrap_err().code, 1);
        let mut silent = check();
        clear("a", &mut silent);
        silent.swept("b", Err(HintedError { error: "gone".into(), hint: String::new() }));
        assert_eq!(silent.print(&run, PrintArgs::default()).unwrap_err().code, 3);
        let mut unasked = check();
        clear("a", &mut unasked);
        assert_eq!(unasked.print(&run, PrintArgs::default()).unwrap_err().code, 1, "no reply for b");
    }

    #[test]
    fn cli_3_host_that_was_never_asked_is_open() {
        let host = |name: &str, stopped| HostModel { stopped, ..HostModel::new(NodeRank(0), name) };
        let clear = |name: &str| host(name, Some(Vec::new()));
        let model = Model { hosts: vec![clear("a"), clear("b"), host("laptop", None)], ..Model::default() };
        let mut taken = check();
        taken.take(&model, None);
        assert_eq!(taken.open, BTreeSet::from(["laptop".to_owned()]));
        assert_eq!(taken.print(&RunId("r".into()), PrintArgs::default()).unwrap_err().code, 1);
        // One that left the run before anything was launched on it had no part in the run.
        let mut excluded = host("laptop", None);
        excluded.excluded = Some("excluded".into());
        let mut taken = check();
        taken.take(&Model { hosts: vec![clear("a"), clear("b"), excluded], ..Model::default() }, None);
        assert_eq!((taken.open.len(), taken.verified.len()), (0, 2));
    }

    #[test]
    fn cli_3_host_without_the_run_verifies_nothing() {
        let run = RunId("r".into());
        let of = |launched, traces: RunTraces| {
            let mut check = StopCheck { launched, ..check() };
            check.swept("a", answer_with(Vec::new()));
            check.swept("b", Ok(traces));
            check.print(&run, PrintArgs::default()).map_err(|failure| failure.code)
        };
        assert_eq!(of(true, RunTraces::default()), Err(1));
        assert_eq!(of(false, RunTraces::default()), Ok(0), "no rank was launched anywhere");
        assert_eq!(of(false, RunTraces { known: false, alive: vec![survivor()] }), Err(1));
    }
}
