//! `rankdeck stop`: stops a run and says `stopped` only when every host has verified it (CLI-3).

use super::args::{HostKeyArgs, StopArgs};
use super::join::Target;
use super::roster::{FoundRun, Roster, State, decode, exec_on_all, roster};
use super::{Failure, code, print};
use crate::shell::driver::End;
use crate::shell::objective::Objective;
use crate::shell::{stderr, summary};
use rankdeck_config::HostsSource;
use rankdeck_core::report::ReportBody;
use rankdeck_proto::message::{StopMode, Survivor};
use rankdeck_proto::run_entry::Traces;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::{clean, plural};
use std::collections::BTreeSet;

/// Runs `rankdeck stop`: stops a run and verifies that no process is left.
pub async fn stop(hosts_from: &HostsSource, args: StopArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = match roster.pick_or_ask(args.run.as_deref(), false) {
        Ok(found) => found,
        Err(failure) => return Err(unlisted(&roster, &args, failure).await?),
    };
    let target = Target::whole(&roster, &found)?;
    let mode = if args.kill { StopMode::Kill } else { StopMode::Clean };
    let mut check = StopCheck::new(&target, &found);
    if found.state == State::Running {
        stderr::line(&format!("stopping run {} on {}", target.run, plural(target.hosts.len(), "host")));
        let end = target.pursue(Objective::stop(mode), &args.host_keys).await?;
        check.heard(&end);
    }
    // Where no agent has proved it, a sweep looks for processes.
    let open: Vec<Host> = target.hosts.iter().filter(|host| check.is_open(&host.name)).cloned().collect();
    let listed: Vec<Host> = open.into_iter().filter(|host| !target.unlisted.contains(&host.name)).collect();
    for (host, left) in sweep(&target.run, &listed, &args).await? {
        check.swept(&host, left);
    }
    for name in &target.unlisted {
        check.swept(name, Err(HintedError::new("the hosts file does not list it", "`--hosts FILE`")));
    }
    check.print(&target.run)
}

/// CLI-3. A run that no host lists may go on all the same, where its folders were removed or `workdir` is
/// another one: what lives of it is told as of every stop.
async fn unlisted(roster: &Roster, args: &StopArgs, failure: Failure) -> Result<Failure, Failure> {
    let Some(run) = args.run.as_deref().and_then(|name| RunId::parse(name).ok()) else {
        return Ok(unanswered(roster, None, failure));
    };
    let silent = |index: &usize| roster.silent.iter().any(|(other, _)| other == index);
    let asked: Vec<Host> = (0..roster.hosts.len())
        .filter(|index| !silent(index))
        .map(|index| roster.hosts[index].clone())
        .collect();
    let told = traces(&run, &asked, &args.host_keys).await?;
    let mut lines = Vec::new();
    for (host, told) in asked.iter().zip(told) {
        let alive = told.map(|told| told.alive).unwrap_or_default();
        lines.extend(alive.iter().map(|survivor| living(&host.name, survivor)));
    }
    if lines.is_empty() {
        return Ok(unanswered(roster, Some(&run.0), failure));
    }
    print::stdout(&clean(&format!("{}: run {run}: no host has its folder", summary::NOT_VERIFIED)));
    lines.iter().for_each(|line| {
        print::stdout(&clean(line));
    });
    Ok(Failure::failed(format!("could not verify that run {run} has stopped"))
        .hint("give the hosts file the `workdir` of its launch, or end those processes on the host"))
}

/// CLI-3. Where hosts are silent and no other one knows the run, it may go on: that is told as of every stop.
fn unanswered(roster: &Roster, wanted: Option<&str>, failure: Failure) -> Failure {
    if failure.code != code::HOST || roster.silent.is_empty() {
        return failure;
    }
    for line in unanswered_lines(roster, wanted) {
        print::stdout(&line);
    }
    let run = wanted.map_or_else(|| "any run".to_owned(), |run| format!("run {run}"));
    let hints = failure.cause.hint;
    Failure::host(format!("could not verify that {run} has stopped")).hint(hints)
}

fn unanswered_lines(roster: &Roster, wanted: Option<&str>) -> Vec<String> {
    let run = wanted.map_or_else(|| "no run is known".to_owned(), |run| format!("run {run}"));
    let hosts = roster.silent.iter().map(|(index, error)| {
        let name = roster.hosts.get(*index).map_or("?", |host| host.name.as_str());
        clean(&format!("{}: {}", summary::unverified(name), error.error))
    });
    std::iter::once(clean(&format!("{}: {run}", summary::NOT_VERIFIED))).chain(hosts).collect()
}

/// What is known of the stop, host by host.
#[derive(Debug, Default)]
struct StopCheck {
    hosts: usize,
    /// Hosts without a proof.
    open: BTreeSet<String>,
    swept: bool,
    /// Ranks of it have been launched.
    launched: bool,
    lines: Vec<String>,
    unreachable: bool,
}

/// Why a host that answers proves nothing.
const UNKNOWN: &str =
    "it has no folder of this run; its `workdir`, or the host itself, may be another than at the launch";

fn living(host: &str, survivor: &Survivor) -> String {
    let Survivor { pid, command, state, .. } = survivor;
    format!("  still running: {host}:{pid} {command} (state {state})")
}

impl StopCheck {
    /// Nothing is proved.
    fn new(target: &Target, found: &FoundRun) -> StopCheck {
        let open: BTreeSet<String> = target.hosts.iter().map(|host| host.name.clone()).collect();
        let launched = found.parts.iter().any(|(_, part)| part.world_size > 0);
        StopCheck { hosts: open.len(), open, launched, ..StopCheck::default() }
    }

    /// What the agents have proved.
    fn heard(&mut self, end: &End) {
        match &end.finished {
            Some(finished) => {
                let ReportBody::RunFinished { unverified, .. } = finished else { return };
                // Hosts that only the agents named count as well.
                self.open.extend(unverified.iter().cloned());
                self.open.retain(|name| unverified.contains(name) || !answered(end, name));
                self.lines = summary::verification(&end.model, finished);
                self.lines.retain(|line| !line.starts_with(summary::NOT_VERIFIED));
            }
            None => self.open.retain(|name| {
                let host = end.model.hosts.iter().find(|host| host.name == *name);
                host.is_none_or(|host| host.stopped.as_ref().is_none_or(|left| !left.is_empty()))
            }),
        }
        self.hosts = self.hosts.max(end.model.hosts.len());
    }

    fn is_open(&self, host: &str) -> bool {
        self.open.contains(host)
    }

    /// A sweep of a host that no agent answered for. A host that does not know a run that was launched there
    /// proves nothing: its folder, or the host itself, is another one now.
    fn swept(&mut self, host: &str, told: HostTraces) {
        match told {
            Ok(told) => {
                self.swept = true;
                let known = told.known || !self.launched;
                if told.alive.is_empty() && known {
                    self.open.remove(host);
                }
                if !known {
                    self.lines.push(format!("{}: {UNKNOWN}", summary::unverified(host)));
                }
                self.lines.extend(told.alive.iter().map(|survivor| living(host, survivor)));
            }
            Err(error) => {
                self.open.insert(host.to_owned());
                self.unreachable = true;
                self.lines.push(format!("{}: {}", summary::unverified(host), error.error));
            }
        }
    }

    fn print(self, run: &RunId) -> Result<u8, Failure> {
        let lines: Vec<String> = self.lines.iter().map(|line| clean(line)).collect();
        if self.open.is_empty() {
            if self.swept || lines.is_empty() {
                let hosts = plural(self.hosts, "host");
                print::stdout(&format!("stopped: run {run}: verified, no process is left on {hosts}"));
            } else {
                lines.iter().for_each(|line| {
                    print::stdout(line);
                });
            }
            return Ok(code::SUCCESS);
        }
        print::stdout(&format!("{}: run {run}", summary::NOT_VERIFIED));
        let named = |name: &String| lines.iter().any(|line| line.contains(name.as_str()));
        let silent = self.open.iter().filter(|name| !named(name)).map(|name| summary::unverified(name));
        for line in silent.collect::<Vec<_>>().iter().chain(&lines) {
            print::stdout(&clean(line));
        }
        let code = if self.unreachable { code::HOST } else { code::FAILED };
        let failure = Failure::failed(format!("could not verify that run {run} has stopped"));
        Err(Failure { code, ..failure }
            .hint(format!("`rankdeck stop {run} --kill`, or log in to the host and end them there")))
    }
}

/// An agent on the host has taken part in the stop.
fn answered(end: &End, name: &str) -> bool {
    end.model.hosts.iter().any(|host| host.name == name && host.agent.is_some())
}

/// What a host tells of the run once nothing that a dead agent has left is there any more.
type HostTraces = Result<Traces, HintedError>;

/// Sweeps hosts on which no agent has proved the stop, and then asks each what it knows of the run: processes
/// that a living agent looks after are not swept.
async fn sweep(run: &RunId, hosts: &[Host], args: &StopArgs) -> Result<Vec<(String, HostTraces)>, Failure> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    let swept = exec_on_all(hosts, &args.host_keys, |host| command("sweep", run, host)).await?;
    let told = traces(run, hosts, &args.host_keys).await?;
    let both = hosts.iter().zip(swept).zip(told);
    Ok(both.map(|((host, swept), told)| (host.name.clone(), swept.and(told))).collect())
}

/// What each host knows of the run, in host order.
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

    fn survivor() -> Survivor {
        Survivor { pid: 7, rank: None, state: 'D', command: "python".into() }
    }

    fn check() -> StopCheck {
        StopCheck { hosts: 2, open: ["a".to_string(), "b".to_string()].into(), ..StopCheck::default() }
    }

    fn told(alive: Vec<Survivor>) -> HostTraces {
        Ok(Traces { known: true, alive })
    }

    #[test]
    fn cli_3_stopped_needs_every_host() {
        let run = RunId("r".into());
        let clear = |name: &str, check: &mut StopCheck| check.swept(name, told(Vec::new()));
        let mut all = check();
        ["a", "b"].iter().for_each(|name| clear(name, &mut all));
        assert_eq!(all.print(&run), Ok(0));
        let mut left = check();
        clear("a", &mut left);
        left.swept("b", told(vec![survivor()]));
        assert_eq!(left.print(&run).unwrap_err().code, 1);
        let mut silent = check();
        clear("a", &mut silent);
        silent.swept("b", Err(HintedError { error: "gone".into(), hint: String::new() }));
        assert_eq!(silent.print(&run).unwrap_err().code, 3);
        let mut unasked = check();
        clear("a", &mut unasked);
        assert_eq!(unasked.print(&run).unwrap_err().code, 1, "nobody spoke for b");
    }

    #[test]
    fn cli_3_a_host_that_does_not_know_the_run_proves_nothing() {
        let run = RunId("r".into());
        let of = |launched, traces: Traces| {
            let mut check = StopCheck { launched, ..check() };
            check.swept("a", told(Vec::new()));
            check.swept("b", Ok(traces));
            check.print(&run).map_err(|failure| failure.code)
        };
        assert_eq!(of(true, Traces::default()), Err(1));
        assert_eq!(of(false, Traces::default()), Ok(0), "no rank was launched anywhere");
        assert_eq!(of(false, Traces { known: false, alive: vec![survivor()] }), Err(1));
    }
}
