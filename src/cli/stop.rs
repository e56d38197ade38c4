//! `rankdeck stop`: stops a run and says `stopped` only when every host has verified it (CLI-3).

use super::args::StopArgs;
use super::join::Target;
use super::roster::{Roster, State, decode, exec_on_all, list, roster};
use super::{Failure, code, print};
use crate::shell::driver::End;
use crate::shell::objective::Objective;
use crate::shell::{stderr, summary};
use rankdeck_config::HostsSource;
use rankdeck_core::report::ReportBody;
use rankdeck_proto::message::{StopMode, Survivor};
use rankdeck_proto::run_entry::{RunEntry, RunState};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::{clean, plural};
use serde::Deserialize;
use std::collections::BTreeSet;

/// Runs `rankdeck stop`: stops a run and verifies that no process is left.
pub async fn stop(hosts_from: &HostsSource, args: StopArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster
        .pick_or_ask(args.run.as_deref(), false)
        .map_err(|failure| unanswered(&roster, args.run.as_deref(), failure))?;
    let target = Target::whole(&roster, &found)?;
    let mode = if args.kill { StopMode::Kill } else { StopMode::Clean };
    let mut check = StopCheck::new(&target);
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
    lines: Vec<String>,
    unreachable: bool,
}

impl StopCheck {
    /// Nothing is proved.
    fn new(target: &Target) -> StopCheck {
        let open: BTreeSet<String> = target.hosts.iter().map(|host| host.name.clone()).collect();
        StopCheck { hosts: open.len(), open, ..StopCheck::default() }
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

    /// A sweep of a host that no agent answered for.
    fn swept(&mut self, host: &str, left: Result<Vec<Survivor>, HintedError>) {
        match left {
            Ok(left) => {
                self.swept = true;
                if left.is_empty() {
                    self.open.remove(host);
                }
                self.lines.extend(left.iter().map(|survivor| {
                    let Survivor { pid, command, state, .. } = survivor;
                    format!("  still running: {host}:{pid} {command} (state {state})")
                }));
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

#[derive(Debug, Deserialize)]
struct Swept {
    survivors: Vec<Survivor>,
}

type Left = Result<Vec<Survivor>, HintedError>;

/// Sweeps hosts on which no agent has proved the stop, and then asks each what it knows of the run: processes
/// that a living agent looks after are not swept.
async fn sweep(run: &RunId, hosts: &[Host], args: &StopArgs) -> Result<Vec<(String, Left)>, Failure> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    let answers = exec_on_all(hosts, &args.host_keys, |host| {
        ["sweep", "--run", &run.0, "--workdir", &host.workdir].map(str::to_owned).to_vec()
    })
    .await?;
    let lists = list(hosts, &args.host_keys).await?;
    let left = hosts.iter().zip(answers).zip(lists).map(|((host, answer), list)| {
        let swept = answer.and_then(|text| decode::<Swept>(host, &text)).map(|swept| swept.survivors);
        (host.name.clone(), swept.and_then(|survivors| Ok(with_attended(run, survivors, list?))))
    });
    Ok(left.collect())
}

/// The survivors of a sweep, and what a living agent or nobody looks after.
fn with_attended(run: &RunId, mut survivors: Vec<Survivor>, list: Vec<RunEntry>) -> Vec<Survivor> {
    for entry in list.into_iter().filter(|entry| entry.run == *run && entry.state != RunState::Finished) {
        let pids = if entry.pids.is_empty() { vec![entry.agent_pid] } else { entry.pids };
        let known: Vec<u32> = survivors.iter().map(|survivor| survivor.pid).collect();
        survivors.extend(pids.into_iter().filter(|pid| !known.contains(pid)).map(|pid| Survivor {
            pid,
            rank: None,
            state: '?',
            command: format!("of node {}", entry.node_rank),
        }));
    }
    survivors
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

    #[test]
    fn cli_3_stopped_needs_every_host() {
        let run = RunId("r".into());
        let clear = |name: &str, check: &mut StopCheck| check.swept(name, Ok(Vec::new()));
        let mut all = check();
        ["a", "b"].iter().for_each(|name| clear(name, &mut all));
        assert_eq!(all.print(&run), Ok(0));
        let mut left = check();
        clear("a", &mut left);
        left.swept("b", Ok(vec![survivor()]));
        assert_eq!(left.print(&run).unwrap_err().code, 1);
        let mut unknown = check();
        clear("a", &mut unknown);
        unknown.swept("b", Err(HintedError { error: "gone".into(), hint: String::new() }));
        assert_eq!(unknown.print(&run).unwrap_err().code, 3);
        let mut unasked = check();
        clear("a", &mut unasked);
        assert_eq!(unasked.print(&run).unwrap_err().code, 1, "nobody spoke for b");
    }

    #[test]
    fn cli_3_what_a_living_agent_looks_after_is_left() {
        let run = RunId("r".into());
        let entry = |run: &str, state| RunEntry {
            run: RunId(run.into()),
            state,
            pids: vec![7, 8],
            ..crate::cli::roster::sample_entry()
        };
        let list = vec![entry("other", RunState::Running), entry("r", RunState::Finished)];
        assert_eq!(with_attended(&run, vec![survivor()], list), [survivor()]);
        let left = with_attended(&run, vec![survivor()], vec![entry("r", RunState::Running)]);
        assert_eq!(left.iter().map(|survivor| survivor.pid).collect::<Vec<_>>(), [7, 8]);
    }
}
