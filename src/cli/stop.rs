//! `rankdeck stop`: stops a run and says `stopped` only when every host has verified it (CLI-3).

use super::args::StopArgs;
use super::join::Target;
use super::roster::{Found, Roster, State, decode, exec_on_all, roster};
use super::{Failure, code, print};
use crate::shell::objective::Objective;
use crate::shell::summary;
use rankdeck_config::HostsSource;
use rankdeck_proto::message::{StopMode, Survivor};
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::{clean, plural};
use serde::Deserialize;

/// `rankdeck stop`.
pub async fn stop(hosts_from: &HostsSource, args: StopArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    let silent = silent_of(&roster, &found);
    let mode = if args.kill { StopMode::Kill } else { StopMode::Clean };
    let mut check = StopCheck::default();
    if found.state == State::Running {
        let target = Target::new(&roster, &found)?;
        print::stderr(&format!("stopping run {} on {}", target.run, plural(target.hosts.len(), "host")));
        let end = target.pursue(Objective::stop(mode), &args.host_keys).await?;
        match &end.finished {
            Some(finished) => {
                check.stopped = summary::is_verified(finished);
                check.lines = summary::verification(&end.model, finished);
            }
            None => {
                let open = end.model.hosts.iter().filter(|host| host.stopped.is_none());
                check.lines.extend(open.map(|host| summary::unverified(&host.name)));
            }
        }
    } else {
        check.stopped = true;
    }
    // Where no agent is left to ask, a sweep looks for processes.
    for (host, survivors) in sweep(&roster, &found, &args).await? {
        check.add(&host, survivors);
    }
    check.print(&found, &silent)
}

#[derive(Debug, Default)]
struct StopCheck {
    stopped: bool,
    swept: usize,
    lines: Vec<String>,
    unreachable: bool,
}

impl StopCheck {
    fn add(&mut self, host: &str, survivors: Result<Vec<Survivor>, HintedError>) {
        match survivors {
            Ok(survivors) => {
                self.swept += 1;
                self.stopped &= survivors.is_empty();
                self.lines.extend(
                    survivors.iter().map(|s| {
                        format!("  still running: {host}:{} {} (state {})", s.pid, s.command, s.state)
                    }),
                );
            }
            Err(error) => {
                self.stopped = false;
                self.unreachable = true;
                self.lines.push(format!("{}: {}", summary::unverified(host), error.error));
            }
        }
    }

    fn print(mut self, found: &Found, silent: &[String]) -> Result<u8, Failure> {
        if !silent.is_empty() {
            self.stopped = false;
            self.unreachable = true;
            let unreached = |host: &String| format!("{}: no connection", summary::unverified(host));
            self.lines.extend(silent.iter().map(unreached));
        }
        let lines: Vec<String> = self.lines.iter().map(|line| clean(line)).collect();
        if self.stopped {
            lines.iter().for_each(|line| {
                print::stdout(line);
            });
            if self.swept > 0 || lines.is_empty() {
                print::stdout(&format!(
                    "stopped: run {}: verified, no process is left on {}",
                    found.run,
                    plural(found.hosts().len(), "host")
                ));
            }
            return Ok(code::SUCCESS);
        }
        print::stdout(&format!("{}: run {}", summary::NOT_VERIFIED, found.run));
        lines.iter().filter(|line| !line.starts_with(summary::NOT_VERIFIED)).for_each(|line| {
            print::stdout(line);
        });
        let code = if self.unreachable { code::HOST } else { code::FAILED };
        Err(Failure {
            code,
            ..Failure::failed(format!("could not verify that run {} has stopped", found.run))
        }
        .hint(format!("`rankdeck stop {} --kill`, or log in to the host and end them there", found.run)))
    }
}

/// Hosts of the run that did not answer.
fn silent_of(roster: &Roster, found: &Found) -> Vec<String> {
    let names = found.hosts();
    roster
        .silent
        .iter()
        .map(|(index, _)| roster.hosts[*index].name.clone())
        .filter(|name| names.contains(name))
        .collect()
}

#[derive(Debug, Deserialize)]
struct Swept {
    survivors: Vec<Survivor>,
}

type Survivors = Result<Vec<Survivor>, HintedError>;

/// Sweeps the hosts where the run has no agent: left over ones always, finished ones for the check.
async fn sweep(
    roster: &Roster,
    found: &Found<'_>,
    args: &StopArgs,
) -> Result<Vec<(String, Survivors)>, Failure> {
    let hosts: Vec<Host> = found
        .parts
        .iter()
        .filter(|(_, part)| part.state != RunState::Running)
        .filter_map(|(index, _)| roster.hosts.get(*index).cloned())
        .collect();
    let run = found.run.to_owned();
    let answers = exec_on_all(&hosts, &args.host_keys, |host| {
        ["sweep", "--run", &run, "--workdir", &host.workdir].map(str::to_owned).to_vec()
    })
    .await?;
    Ok(hosts
        .iter()
        .zip(answers)
        .map(|(host, answer)| {
            let survivors = answer.and_then(|text| decode::<Swept>(host, &text)).map(|swept| swept.survivors);
            (host.name.clone(), survivors)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivor() -> Survivor {
        Survivor { pid: 7, rank: None, state: 'D', command: "python".into() }
    }

    fn found() -> Found<'static> {
        Found { run: "r", state: State::Running, parts: Vec::new() }
    }

    #[test]
    fn cli_3_stopped_needs_every_host() {
        let verified = || StopCheck { stopped: true, ..StopCheck::default() };
        assert_eq!(verified().print(&found(), &[]), Ok(0));
        let mut left = verified();
        left.add("a", Ok(vec![survivor()]));
        assert_eq!(left.print(&found(), &[]).unwrap_err().code, 1);
        assert_eq!(verified().print(&found(), &["b".into()]).unwrap_err().code, 3);
        let mut unknown = verified();
        unknown.add("a", Err(HintedError { error: "gone".into(), hint: String::new() }));
        assert_eq!(unknown.print(&found(), &[]).unwrap_err().code, 3);
    }
}
