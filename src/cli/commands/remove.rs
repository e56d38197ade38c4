//! `rankdeck rm` and `rankdeck prune`: remove finished runs from their hosts and from this machine.
//!
//! - A run is removed only if all of its hosts have answered and none of them runs or holds it.
//! - REMOVE-1: a checkpoint that exists only in what would be deleted keeps its run, unless results are to be removed
//!   as well.

use crate::app::stderr;
use crate::cli::args::{PruneArgs, RemovalArgs, RemoveArgs};
use crate::cli::support::copy::is_fetched;
use crate::cli::support::locate::{ListedHosts, LocatedRun, RunLocator, hint_for_missing};
use crate::cli::support::run_index::{FoundRun, RunIndex, RunStatus, decode, exec_on_all, has_verified_part};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::run_name::{RUNS, own_folder};
use crate::cli::support::{Failure, code, prompt, sweep};
use rankdeck_config::HostsSource;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::files::{FETCHED, FileEntry, Removal};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::{bytes, clean, plural};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How long the agents of a finished run are waited for.
const CLOSING: Duration = Duration::from_secs(2);

/// Runs `rankdeck rm`.
pub(crate) async fn remove(hosts_from: &HostsSource, args: RemoveArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.removal.host_keys);
    let (mut chosen, mut sweeps): (Vec<LocatedRun>, Vec<String>) = (Vec::new(), Vec::new());
    for run in &args.runs {
        let known = chosen.last().map(|located| &located.run_index);
        let Some((name, runs)) = sweep::named(run, RunAction::Change)? else {
            let run_index = locator.index_or(known, Some(run)).await?;
            let mut located = locator.select(run_index, Some(run), RunAction::Change).await?;
            // The agents of a run that has just been stopped end within moments.
            let deadline = Instant::now() + CLOSING;
            while has_agent(&located.found()?) && Instant::now() < deadline {
                tokio::time::sleep(CLOSING / 10).await;
                let run_index = locator.index_or(None, Some(run)).await?;
                located = locator.select(run_index, Some(run), RunAction::Change).await?;
            }
            chosen.push(located);
            continue;
        };
        // All trials of a sweep have the hosts of the sweep. Some may have been removed before.
        let run_index = locator.index_or(known, runs.first().map(String::as_str)).await?;
        let named = run_index.runs().into_iter().filter(|found| runs.iter().any(|run| run == found.run));
        let located =
            |found: FoundRun| LocatedRun { run_index: run_index.clone(), run: found.run.to_owned() };
        chosen.extend(named.map(located));
        sweeps.push(name);
    }
    for located in &chosen {
        objection(&located.run_index, &located.found()?).map_or(Ok(()), Err)?;
    }
    RemovalPlan { chosen, sweeps, args: &args.removal, is_prune: false }.run().await
}

/// Runs `rankdeck prune`. Without named hosts, it removes nothing from hosts that the hosts file lacks.
pub(crate) async fn prune(
    hosts_from: &HostsSource,
    listed: ListedHosts,
    args: PruneArgs,
) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.removal.host_keys);
    let is_named = listed == ListedHosts::Named;
    let run_index = Rc::new(locator.index_all(if is_named { listed } else { ListedHosts::Present }).await?);
    if !is_named {
        note_others(&locator.absent_hosts());
    }
    let now = wall_time();
    let over = |found: &FoundRun| objection(&run_index, found).is_none();
    let old = |found: &FoundRun| {
        let summary = found.summary(now);
        let ended = summary.ended.or(summary.started);
        args.older_than.is_none_or(|age| ended.is_some_and(|ended| now - ended > age))
    };
    let chosen: Vec<FoundRun> =
        run_index.runs().into_iter().filter(over).skip(args.keep.unwrap_or(0)).filter(old).collect();
    if args.older_than.is_none() && args.keep.is_none() {
        return Err(Failure::usage("no runs selected").hint("pass `--older-than 30d`, `--keep 20`, or both"));
    }
    note_unlisted(&run_index);
    let located = |found: FoundRun| LocatedRun { run_index: run_index.clone(), run: found.run.to_owned() };
    let chosen: Vec<LocatedRun> = chosen.into_iter().map(located).collect();
    let sweeps = sweep::emptied(&|run| chosen.iter().any(|located| located.run == run));
    RemovalPlan { chosen, sweeps, args: &args.removal, is_prune: true }.run().await
}

/// Reports hosts that were launched on but are not in the hosts file.
fn note_others(hosts: &[Host]) {
    let Some(first) = hosts.first() else { return };
    let address = |host: &Host| {
        let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{user}{}{port}", if host.address.is_empty() { &host.name } else { &host.address })
    };
    let others = if hosts.len() == 1 { first.name.clone() } else { format!("{} other hosts", hosts.len()) };
    let named: Vec<String> = hosts.iter().map(address).collect();
    let text = format!(
        "note: runs launched from here on {others} are not included; `rankdeck prune --hosts {}` includes them",
        named.join(",")
    );
    stderr::line(&clean(&text));
}

/// Reports the finished runs that stay because their hosts are not listed.
fn note_unlisted(run_index: &RunIndex) {
    let runs = run_index.runs();
    let over = runs.iter().filter(|found| found.state == RunStatus::Finished);
    let stays: Vec<(&str, Vec<String>)> = over
        .map(|found| (found.run, run_index.missing_hosts(found)))
        .filter(|(_, names)| !names.is_empty())
        .collect();
    if let Some((run, names)) = stays.first() {
        let count = plural(stays.len(), "run");
        let why =
            format!("note: {count} kept: not all hosts are listed, such as {} of {run}", names.join(", "));
        stderr::line(&clean(&why));
        stderr::line(&clean(&format!("hint: {}", hint_for_missing(run, names, "rm"))));
    }
}

/// Returns whether the run is over, and an agent of it is still there.
fn has_agent(found: &FoundRun) -> bool {
    found.state == RunStatus::Finished && found.parts.iter().any(|(_, part)| part.agent_pid != 0)
}

/// Returns why a run cannot be removed.
fn objection(run_index: &RunIndex, found: &FoundRun) -> Option<Failure> {
    let name = found.run;
    if found.state != RunStatus::Finished {
        return Some(
            Failure::usage(format!("run {name} is {}", found.state.name()))
                .hint(format!("stop it first: `rankdeck stop {name}`")),
        );
    }
    if let Some((_, part)) = found.parts.iter().find(|(_, part)| part.agent_pid != 0) {
        return Some(
            Failure::usage(format!("run {name} is in use: its agent on {} is alive", part.host))
                .hint("quit the console that shows it; without one, the agent exits within a minute"),
        );
    }
    let names = found.hosts();
    let silent = run_index.silent.iter().map(|(index, _)| run_index.hosts[*index].name.clone());
    let silent = silent.filter(|host| names.contains(host) && !has_verified_part(found, host));
    let silent: Vec<String> = silent.collect();
    let unlisted = run_index.missing_hosts(found);
    let missing = [silent.as_slice(), unlisted.as_slice()].concat();
    // The hint for a silent host is the same.
    let named = if silent.is_empty() { unlisted.as_slice() } else { &[] };
    (!missing.is_empty()).then(|| {
        Failure::usage(format!("no response from {}, which has files of run {name}", missing.join(", ")))
            .hint(hint_for_missing(name, named, "rm"))
    })
}

/// Removes the local directory of a run or a sweep; without `with_results`, fetched files stay.
fn remove_here(name: &str, with_results: bool) {
    if !Path::new(RUNS).join(name).is_dir() {
        return;
    }
    let remove = |own: PathBuf| {
        let removed = match !with_results && own.join(FETCHED).is_dir() {
            true => remove_all_but_fetched(&own),
            false => std::fs::remove_dir_all(own),
        };
        removed.map_err(|error| error.to_string())
    };
    if let Err(error) = own_folder(name).map_err(|why| why.error).and_then(remove) {
        stderr::line(&format!("warning: cannot remove {RUNS}/{name}: {error}"));
    }
}

fn remove_all_but_fetched(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten().filter(|entry| entry.file_name() != FETCHED) {
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// What a removal would do, or has done, on all hosts of a run.
#[derive(Debug, Default)]
struct RunRemoval {
    sum: Removal,
    /// Checkpoints in the run's directory that were not fetched, by host.
    unfetched: Vec<(String, FileEntry)>,
    /// There are more of them.
    more: bool,
    /// Where its results stay.
    kept: Vec<String>,
}

impl RunRemoval {
    /// Names the checkpoints that exist only there (REMOVE-1).
    fn refusal(&self, run: &str) -> Option<Failure> {
        let hint = format!("`rankdeck fetch {run}` copies them; `--with-results` removes them");
        let Some((host, _)) = self.unfetched.first() else {
            // The listed ones were fetched; the others were not compared.
            let error = format!("run {run} has too many checkpoints to verify that all were fetched");
            return self.more.then(|| Failure::usage(clean(&error)).hint(hint));
        };
        let here = self.unfetched.iter().filter(|(name, _)| name == host);
        let names: Vec<&str> = here.take(CHECKPOINTS).map(|(_, file)| file.path.as_str()).collect();
        let more = match self.unfetched.len() - names.len() {
            0 if !self.more => String::new(),
            _ if self.more => " and more".to_owned(),
            more => format!(" and {more} more"),
        };
        let names = names.join(", ");
        let error = format!("run {run} has checkpoints that exist only on {host}: {names}{more}");
        Some(Failure::usage(clean(&error)).hint(hint))
    }
}

/// A run that was removed, or would be, as a JSON line.
fn record(run: &str, removal: &Removal, dry_run: bool) -> Value {
    json!({
        "kind": "removed",
        "run": run,
        "files": removal.files,
        "bytes": removal.bytes,
        "dry_run": dry_run,
    })
}

/// Most names of remaining runs that are listed.
const LISTED: usize = 20;
/// Most checkpoints that are named.
const CHECKPOINTS: usize = 3;

/// How a removal without a failure ended.
enum RemovalEnd {
    /// Everything was removed.
    All,
    /// Interrupted between two runs.
    Asked,
    /// Interrupted twice, within a run.
    Cut,
}

/// The runs to remove.
struct RemovalPlan<'a> {
    chosen: Vec<LocatedRun>,
    /// Sweeps whose tables are removed with their runs.
    sweeps: Vec<String>,
    args: &'a RemovalArgs,
    /// Runs that must not be removed are left out.
    is_prune: bool,
}

impl RemovalPlan<'_> {
    async fn run(mut self) -> Result<u8, Failure> {
        let output = self.args.output;
        let mut sum = Removal::default();
        let (mut kept, mut first) = (0, None);
        for located in std::mem::take(&mut self.chosen) {
            let would = self.on_hosts(&located, true).await.and_then(|would| {
                match would.refusal(&located.run).filter(|_| !self.args.with_results) {
                    Some(refusal) => Err(refusal),
                    None => Ok(would.sum),
                }
            });
            let would = match would {
                Err(refusal) if self.is_prune => {
                    kept += 1;
                    first.get_or_insert(refusal);
                    continue;
                }
                would => would?,
            };
            output.detail(&format!(
                "{}  {} in {}",
                located.run,
                bytes(would.bytes),
                plural(would.files as usize, "file")
            ));
            if self.args.dry_run {
                output.record(|| record(&located.run, &would, true));
            }
            sum.files += would.files;
            sum.bytes += would.bytes;
            self.chosen.push(located);
        }
        if let Some(first) = first {
            let what = plural(kept, "run");
            stderr::line(&clean(&format!("note: {what} kept, such as: {}", first.cause.error)));
            stderr::line(&clean(&format!("hint: {}", first.cause.hint)));
            let emptied = sweep::emptied(&|run| self.chosen.iter().any(|located| located.run == run));
            self.sweeps.retain(|name| emptied.contains(name));
        }
        let tables = match self.sweeps.as_slice() {
            [] => String::new(),
            sweeps => format!(", and the table of {}", sweeps.join(", ")),
        };
        let what = format!("{}, {}{tables}", plural(self.chosen.len(), "run"), bytes(sum.bytes));
        if self.chosen.is_empty() && self.sweeps.is_empty() || self.args.dry_run {
            output.outcome(&format!("would remove {what}"));
            return Ok(code::SUCCESS);
        }
        let agreed = self.args.yes
            || prompt::can_confirm() && prompt::yes(&format!("permanently remove {what}?")).await;
        if !agreed {
            return Err(
                Failure::usage("nothing was removed: not confirmed").hint("pass `--yes` to skip the prompt")
            );
        }
        let (gone, freed, ended) = self.remove_all().await?;
        if gone == self.chosen.len() && matches!(ended, Ok(RemovalEnd::All)) {
            self.sweeps.iter().for_each(|name| remove_here(name, true));
            output.outcome(&format!("removed {what}"));
            return Ok(code::SUCCESS);
        }
        let all = plural(self.chosen.len(), "run");
        output.outcome(&format!("removed {gone} of {all}, {}", bytes(freed)));
        let left: Vec<&str> = self.chosen.iter().skip(gone).map(|located| located.run.as_str()).collect();
        let more =
            if left.len() > LISTED { format!(" and {} more", left.len() - LISTED) } else { String::new() };
        let names = left.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        if !left.is_empty() {
            output.outcome(&format!("not removed: {names}{more}"));
        }
        match ended? {
            RemovalEnd::Cut => {
                stderr::line(&format!(
                    "warning: {} may be partly removed",
                    left.first().copied().unwrap_or_default()
                ));
            }
            RemovalEnd::All | RemovalEnd::Asked => {}
        }
        stderr::line("hint: run the same command again to remove the rest");
        Ok(code::INTERRUPTED)
    }

    /// Removes one run after the other until all are removed, one fails, or a signal arrives. Returns the
    /// number of removed runs, their bytes, and how it ended. After the first signal, the current run is
    /// still removed completely.
    async fn remove_all(&self) -> Result<(usize, u64, Result<RemovalEnd, Failure>), Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::no_thread)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::no_thread)?;
        let (mut gone, mut freed, mut asked) = (0, 0, false);
        for located in &self.chosen {
            let mut work = std::pin::pin!(self.on_hosts(located, false));
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
                stderr::line(&format!("interrupted: finishing the removal of {}", located.run));
            };
            match removal {
                Ok(removal) => {
                    freed += removal.sum.bytes;
                    self.args.output.record(|| record(&located.run, &removal.sum, false));
                    for folder in &removal.kept {
                        let text = format!("  results of {} stay in {folder}", located.run);
                        self.args.output.detail(&clean(&text));
                    }
                }
                Err(failure) => return Ok((gone, freed, Err(failure))),
            }
            remove_here(&located.run, self.args.with_results);
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

    async fn on_hosts(&self, located: &LocatedRun, dry: bool) -> Result<RunRemoval, Failure> {
        let found = located.found()?;
        let (run, hosts) = (located.run.as_str(), located.run_index.holders(&found));
        let args = |host: &Host| {
            let verb = if dry { "measure" } else { "remove" };
            let words = [verb, "--run", run, "--workdir", &host.workdir].map(str::to_owned);
            let results = self.args.with_results.then(|| "--results".to_owned());
            words.into_iter().chain(results).collect()
        };
        let answers = exec_on_all(&hosts, &self.args.host_keys, args).await?;
        let mut all = RunRemoval::default();
        let mut places = BTreeSet::new();
        for (host, answer) in hosts.iter().zip(answers) {
            let text = answer?;
            if let Ok(refusal) = serde_json::from_str::<HintedError>(&text) {
                return Err(Failure::from(refusal));
            }
            let removal: Removal = decode(host, &text)?;
            if let Some(why) = removal.refused {
                return Err(Failure::usage(format!("cannot remove run {run} on {}: {why}", host.name))
                    .hint("`rankdeck ps`"));
            }
            all.kept.extend(removal.kept.map(|folder| format!("{folder} on {}", host.name)));
            if removal.place.is_empty() || places.insert(removal.place) {
                all.sum.files += removal.files;
                all.sum.bytes += removal.bytes;
                all.more |= removal.more_checkpoints;
                let unfetched = removal.checkpoints.into_iter().filter(|file| !is_fetched(run, file));
                all.unfetched.extend(unfetched.map(|file| (host.name.clone(), file)));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remove_1_checkpoints_that_exist_only_there_are_named() {
        let file = |path: &str| FileEntry { path: path.into(), bytes: 1, ..FileEntry::default() };
        let unfetched = |paths: &[&str]| RunRemoval {
            unfetched: paths.iter().map(|path| ("a".to_owned(), file(path))).collect(),
            ..RunRemoval::default()
        };
        assert!(unfetched(&[]).refusal("ppo-1").is_none());
        let refusal = unfetched(&["best.ckpt", "1.ckpt", "2.ckpt", "3.ckpt"]).refusal("ppo-1").unwrap();
        assert_eq!(refusal.code, code::USAGE);
        assert!(refusal.cause.error.contains("best.ckpt") && !refusal.cause.error.contains("3.ckpt"));
        assert!(refusal.cause.hint.contains("rankdeck fetch ppo-1"), "{refusal}");
        assert!(refusal.cause.hint.contains("--with-results"), "{refusal}");
    }
}
