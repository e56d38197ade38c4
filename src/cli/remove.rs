//! `rankdeck rm` and `rankdeck prune`: runs that are over, removed from their hosts and from here.
//!
//! - A run goes only when all of its hosts have answered and none of them runs or holds anything of it.

use super::args::{PruneArgs, RemovalArgs, RemoveArgs};
use super::roster::{FoundRun, Roster, State, decode, exec_on_all, roster};
use super::run_id::RUNS;
use super::{Failure, code, print, prompt, sweep};
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::files::Removal;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::{bytes, plural};
use std::collections::BTreeSet;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `rankdeck rm`.
pub async fn remove(hosts_from: &HostsSource, args: RemoveArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.removal.host_keys).await?;
    let (mut chosen, mut sweeps) = (Vec::new(), Vec::new());
    for run in &args.runs {
        let Some((name, runs)) = sweep::named(run)? else {
            chosen.push(roster.pick(Some(run))?);
            continue;
        };
        // Some may have gone before.
        chosen.extend(roster.runs().into_iter().filter(|found| runs.iter().any(|run| run == found.run)));
        sweeps.push(name);
    }
    chosen.iter().find_map(|found| objection(&roster, found)).map_or(Ok(()), Err)?;
    Plan { chosen, sweeps, args: &args.removal }.carry_out(&roster).await
}

/// Runs `rankdeck prune`.
pub async fn prune(hosts_from: &HostsSource, args: PruneArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.removal.host_keys).await?;
    let now = wall_time();
    let over = |found: &FoundRun| objection(&roster, found).is_none();
    let old = |found: &FoundRun| {
        let summary = found.summary(now);
        let ended = summary.ended.or(summary.started);
        args.older_than.is_none_or(|age| ended.is_some_and(|ended| now - ended > age))
    };
    let chosen: Vec<FoundRun> =
        roster.runs().into_iter().filter(over).skip(args.keep.unwrap_or(0)).filter(old).collect();
    if args.older_than.is_none() && args.keep.is_none() {
        return Err(Failure::usage("which runs? every run that is over fits")
            .hint("`--older-than 30d`, `--keep 20`, or both"));
    }
    let sweeps = sweep::emptied(&|run| chosen.iter().any(|found| found.run == run));
    Plan { chosen, sweeps, args: &args.removal }.carry_out(&roster).await
}

/// Why a run may not go.
fn objection(roster: &Roster, found: &FoundRun) -> Option<Failure> {
    let name = found.run;
    if found.state != State::Finished {
        return Some(
            Failure::usage(format!("run {name} is {}", found.state.name()))
                .hint(format!("`rankdeck stop {name}` first")),
        );
    }
    if let Some((_, part)) = found.parts.iter().find(|(_, part)| part.agent_pid != 0) {
        return Some(
            Failure::usage(format!("run {name} is held: its agent on {} lives", part.host))
                .hint("leave the console that shows it"),
        );
    }
    let names = found.hosts();
    let silent = roster.silent.iter().map(|(index, _)| &roster.hosts[*index].name);
    let unlisted = names.iter().filter(|name| !roster.hosts.iter().any(|host| host.name == **name));
    let missing: Vec<&String> = silent.filter(|host| names.contains(host)).chain(unlisted).collect();
    (!missing.is_empty()).then(|| {
        let hosts = missing.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        Failure::usage(format!("run {name} has a part on {hosts}, which did not answer"))
            .hint("try again when it does, with the hosts file that lists it")
    })
}

/// What is left of a run or a sweep in this folder goes.
fn remove_here(name: &str) {
    let own = Path::new(RUNS).join(name);
    match std::fs::remove_dir_all(&own) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            stderr::line(&format!("warning: {} is left: {error}", own.display()));
        }
        _ => {}
    }
}

/// Most names of runs that are left.
const LISTED: usize = 20;

/// How a removal ended that nothing has failed in.
enum RemovalEnd {
    /// Nothing is left.
    All,
    /// Somebody interrupted it between two runs.
    Asked,
    /// Somebody interrupted it twice, within a run.
    Cut,
}

/// Runs that shall go.
struct Plan<'a> {
    chosen: Vec<FoundRun<'a>>,
    /// Sweeps whose tables go with their runs.
    sweeps: Vec<String>,
    args: &'a RemovalArgs,
}

impl Plan<'_> {
    async fn carry_out(&self, roster: &Roster) -> Result<u8, Failure> {
        let mut sum = Removal::default();
        for found in &self.chosen {
            let would = self.on_hosts(roster, found, true).await?;
            print::stdout(&format!(
                "{}  {} in {}",
                found.run,
                bytes(would.bytes),
                plural(would.files as usize, "file")
            ));
            sum.files += would.files;
            sum.bytes += would.bytes;
        }
        let tables = match self.sweeps.as_slice() {
            [] => String::new(),
            sweeps => format!(", and what {} came to", sweeps.join(", ")),
        };
        let what = format!("{}, {}{tables}", plural(self.chosen.len(), "run"), bytes(sum.bytes));
        if self.chosen.is_empty() && self.sweeps.is_empty() || self.args.dry_run {
            print::stdout(&format!("would remove {what}"));
            return Ok(code::SUCCESS);
        }
        let agreed = self.args.yes || prompt::can_ask() && prompt::yes(&format!("remove {what}, for ever?"));
        if !agreed {
            return Err(Failure::usage("nothing was removed: nobody said yes")
                .hint("`--yes` removes without a question"));
        }
        let (gone, freed, ended) = self.remove_all(roster).await?;
        if gone == self.chosen.len() && matches!(ended, Ok(RemovalEnd::All)) {
            self.sweeps.iter().for_each(|name| remove_here(name));
            print::stdout(&format!("removed {what}"));
            return Ok(code::SUCCESS);
        }
        let all = plural(self.chosen.len(), "run");
        print::stdout(&format!("removed {gone} of {all}, {}", bytes(freed)));
        let left: Vec<&str> = self.chosen.iter().skip(gone).map(|found| found.run).collect();
        let more =
            if left.len() > LISTED { format!(" and {} more", left.len() - LISTED) } else { String::new() };
        let names = left.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        if !left.is_empty() {
            print::stdout(&format!("left: {names}{more}"));
        }
        match ended? {
            RemovalEnd::Cut => {
                stderr::line(&format!(
                    "warning: of {} a part may be gone",
                    left.first().copied().unwrap_or_default()
                ));
            }
            RemovalEnd::All | RemovalEnd::Asked => {}
        }
        stderr::line("hint: the same command again removes what is left");
        Ok(code::INTERRUPTED)
    }

    /// Removes one run after the other until all are gone, one fails, or somebody interrupts: how many are
    /// gone, how many bytes those were, and how it ended. The first interrupt lets a run's removal end.
    async fn remove_all(
        &self,
        roster: &Roster,
    ) -> Result<(usize, u64, Result<RemovalEnd, Failure>), Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::no_thread)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::no_thread)?;
        let (mut gone, mut freed, mut asked) = (0, 0, false);
        for found in &self.chosen {
            let mut work = std::pin::pin!(self.on_hosts(roster, found, false));
            let removal = loop {
                tokio::select! {
                    biased;
                    done = &mut work => break done,
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked {
                    return Ok((gone, freed, Ok(RemovalEnd::Cut)));
                }
                asked = true;
                stderr::line(&format!("interrupted: {} is removed whole, and then no more", found.run));
            };
            match removal {
                Ok(removal) => freed += removal.bytes,
                Err(failure) => return Ok((gone, freed, Err(failure))),
            }
            remove_here(found.run);
            gone += 1;
            if asked {
                return Ok((
                    gone,
                    freed,
                    Ok(if gone == self.chosen.len() { RemovalEnd::All } else { RemovalEnd::Asked }),
                ));
            }
        }
        Ok((gone, freed, Ok(RemovalEnd::All)))
    }

    async fn on_hosts(&self, roster: &Roster, found: &FoundRun<'_>, dry: bool) -> Result<Removal, Failure> {
        let names = found.hosts();
        let hosts: Vec<Host> =
            roster.hosts.iter().filter(|host| names.contains(&host.name)).cloned().collect();
        let args = |host: &Host| {
            let verb = if dry { "measure" } else { "remove" };
            [verb, "--run", found.run, "--workdir", &host.workdir].map(str::to_owned).to_vec()
        };
        let answers = exec_on_all(&hosts, &self.args.host_keys, args).await?;
        let mut sum = Removal::default();
        let mut places = BTreeSet::new();
        for (host, answer) in hosts.iter().zip(answers) {
            let text = answer?;
            if let Ok(refusal) = serde_json::from_str::<HintedError>(&text) {
                return Err(Failure::from(refusal));
            }
            let removal: Removal = decode(host, &text)?;
            if let Some(why) = removal.refused {
                return Err(Failure::usage(format!("run {} stays on {}: {why}", found.run, host.name))
                    .hint("`rankdeck ps`"));
            }
            if removal.place.is_empty() || places.insert(removal.place) {
                sum.files += removal.files;
                sum.bytes += removal.bytes;
            }
        }
        Ok(sum)
    }
}
