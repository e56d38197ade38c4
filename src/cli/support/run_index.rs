//! Lists the runs of all hosts: queries the agents in parallel and joins their lists.

use crate::app::stderr;
use crate::cli::args::HostKeyArgs;
use crate::cli::support::run_name::RUNS;
use crate::cli::support::run_name::{self, LAST, NameError, NamedRun, RunAction, SelectedRun};
use crate::cli::support::{Failure, print, prompt};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::{self, RunSummary};
use rankdeck_link::{AgentCommand, Links, Prompter};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::{HostRunState, RunEntry, RunList};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::WallTime;
use rankdeck_types::words::plural;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most warnings about entries that hosts omitted.
const MOST_WARNINGS: usize = 32;
/// Most runs that an ambiguous name lists.
const LISTED: usize = 20;

/// The runs of all hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunIndex {
    /// Hosts of the hosts file, and the other ones.
    pub(crate) hosts: Vec<Host>,
    /// Names of the other ones: the hosts file lacks them, a launch from this directory has them.
    pub(crate) others: Vec<String>,
    /// Entry, and index of the host that reported it.
    pub(crate) entries: Vec<(usize, RunEntry)>,
    /// Hosts that did not respond.
    pub(crate) silent: Vec<(usize, HintedError)>,
    /// Entries that a host omitted, and why.
    pub(crate) left_out: Vec<(usize, String)>,
}

/// The status of a run over all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RunStatus {
    /// Every host reports that the run has ended, and no other generation is expected.
    Finished,
    /// Processes are left without an agent.
    Orphaned,
    /// An agent is running, or waits for the next generation.
    Running,
}

impl RunStatus {
    /// The state of one part.
    pub(crate) fn of(state: HostRunState) -> RunStatus {
        match state {
            HostRunState::Finished => RunStatus::Finished,
            HostRunState::Orphaned => RunStatus::Orphaned,
            HostRunState::Running => RunStatus::Running,
        }
    }

    /// The word for users.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RunStatus::Finished => "finished",
            RunStatus::Orphaned => "orphaned",
            RunStatus::Running => "running",
        }
    }
}

/// One run over all hosts that reported it.
#[derive(Debug, Clone)]
pub(crate) struct FoundRun<'a> {
    pub(crate) run: &'a str,
    /// Worst state over its hosts.
    pub(crate) state: RunStatus,
    /// Entries in node-rank order, with the index of the host that reported them.
    pub(crate) parts: Vec<(usize, &'a RunEntry)>,
}

impl FoundRun<'_> {
    /// Names of all hosts of the run, in node-rank order.
    pub(crate) fn hosts(&self) -> Vec<String> {
        run_summary::hosts(&self.entries())
    }

    /// Summarizes the run.
    pub(crate) fn summary(&self, now: WallTime) -> RunSummary {
        RunSummary::from_digests(&self.entries(), now)
    }

    /// The word for its state: how it ended, or what it does.
    pub(crate) fn state_text(&self, summary: &RunSummary) -> String {
        match summary.outcome_text() {
            _ if summary.restarting => "restarting".to_owned(),
            Some(text) if self.state == RunStatus::Finished => text,
            _ => self.state.name().to_owned(),
        }
    }

    fn entries(&self) -> Vec<&RunEntry> {
        self.parts.iter().map(|(_, part)| *part).collect()
    }
}

/// How long to wait for an excluded host, or for one that was not named.
const BRIEFLY: Duration = Duration::from_secs(5);

/// Loads hosts.toml.
pub(crate) fn load_hosts(source: &HostsSource) -> Result<Vec<Host>, Failure> {
    Ok(rankdeck_config::load_hosts(source)?)
}

/// The running binary, which is also the agent.
pub(crate) fn own_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::failed(format!("cannot find the rankdeck binary: {error}"))
            .hint("start it by its full path, and do not move the file")
    })
}

/// Returns the trainer binary next to it, if installed.
pub(crate) fn trainer_binary(own: &Path) -> Option<PathBuf> {
    rankdeck_proto::libtorch::trainer_of(own)
}

/// Runs an agent command on every host in parallel; replies are in host order.
pub(crate) async fn exec_on_all(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
    args: impl Fn(&Host) -> Vec<String>,
) -> Result<Vec<Result<String, HintedError>>, Failure> {
    let progress = prompt::ProgressPrompter::new(host_keys);
    let _notice = progress.show_waits();
    let prompter: Arc<dyn Prompter> = progress.clone();
    let command = |_, host: &Host| AgentCommand { args: args(host), ..AgentCommand::default() };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    Ok(replies.into_iter().map(|reply| reply.map(|reply| reply.text)).collect())
}

/// Decodes an agent's one-line reply.
///
/// Errors: the agent refused and gave a reason, or the reply is not valid.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(host: &Host, answer: &str) -> Result<T, HintedError> {
    if let Ok(HintedError { error, hint }) = serde_json::from_str(answer.trim()) {
        return Err(HintedError { error: format!("host {}: {error}", host.name), hint });
    }
    serde_json::from_str(answer.trim()).map_err(|error| HintedError {
        error: format!("host {}: invalid reply from the agent: {error}", host.name),
        hint: "the agent may be from another build: run `rm -r ~/.cache/rankdeck` on the host and try again"
            .to_owned(),
    })
}

/// Lists the runs of each host, in host order.
pub(crate) async fn list(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
) -> Result<Vec<Result<RunList, HintedError>>, Failure> {
    let answers = exec_on_all(hosts, host_keys, list_args).await?;
    Ok(hosts.iter().zip(answers).map(|(host, answer)| listed(host, &answer?)).collect())
}

fn list_args(host: &Host) -> Vec<String> {
    ["list", "--workdir", &host.workdir].map(str::to_owned).to_vec()
}

/// Lists the runs of hosts that were not named: without prompts, and each within [`BRIEFLY`].
async fn list_briefly(hosts: &[Host]) -> Result<Vec<Result<RunList, HintedError>>, Failure> {
    let (binary, prompter) = (own_binary()?, Arc::new(prompt::NoPrompts));
    let call = |host: &Host| {
        let (host, binary, prompter) = (host.clone(), binary.clone(), prompter.clone());
        let command = AgentCommand { args: list_args(&host), ..AgentCommand::default() };
        tokio::spawn(async move {
            let links = Links::from_environment();
            let answer = tokio::time::timeout(BRIEFLY, links.call(&host, &binary, command, prompter)).await;
            listed(&host, &answer.map_err(|_| late(&host))??.text)
        })
    };
    let calls: Vec<_> = hosts.iter().map(call).collect();
    let mut lists = Vec::new();
    for (call, host) in calls.into_iter().zip(hosts) {
        lists.push(
            call.await
                .unwrap_or_else(|error| Err(HintedError::new(format!("host {}: {error}", host.name), ""))),
        );
    }
    Ok(lists)
}

/// Decodes a host's list; without a list, what runs there is unknown.
fn listed(host: &Host, answer: &str) -> Result<RunList, HintedError> {
    let list: RunList = decode(host, answer)?;
    match list.unreadable {
        Some(HintedError { error, hint }) => {
            Err(HintedError { error: format!("host {}: {error}", host.name), hint })
        }
        None => Ok(list),
    }
}

/// Queries the hosts of the hosts file, and briefly others.
pub(crate) async fn query_with_others(
    hosts: Vec<Host>,
    others: Vec<Host>,
    host_keys: &HostKeyArgs,
) -> Result<RunIndex, Failure> {
    let names = others.iter().map(|host| host.name.clone()).collect();
    let run_index = query_first(hosts, others, host_keys, &[]).await?;
    Ok(RunIndex { others: names, ..run_index })
}

/// Loads the hosts for a command about runs.
pub(crate) fn hosts_of_runs(source: &HostsSource) -> Result<Vec<Host>, Failure> {
    load_hosts(source).map_err(|failure| match Path::new(RUNS).is_dir() {
        true => failure,
        false => failure.hint("run the command in the directory that the run was launched from"),
    })
}

/// Queries hosts, and waits at most [`BRIEFLY`] for the excluded ones and, without prompts, for the `rest`.
pub(crate) async fn query_first(
    mut hosts: Vec<Host>,
    rest: Vec<Host>,
    host_keys: &HostKeyArgs,
    exclude: &[String],
) -> Result<RunIndex, Failure> {
    let (answers, more) = tokio::join!(answers_of(&hosts, host_keys, exclude), list_briefly(&rest));
    let mut answers = answers?;
    answers.extend(more?);
    hosts.extend(rest);
    Ok(RunIndex::from_answers(hosts, answers))
}

/// The lists of hosts, in their order.
async fn answers_of(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
    exclude: &[String],
) -> Result<Vec<Result<RunList, HintedError>>, Failure> {
    let is_out = |host: &Host| exclude.contains(&host.name);
    let (out, asked): (Vec<Host>, Vec<Host>) = hosts.iter().cloned().partition(is_out);
    let mut answers = list(&asked, host_keys).await?.into_iter();
    let excluded = tokio::time::timeout(BRIEFLY, list(&out, host_keys)).await;
    let mut excluded = excluded.unwrap_or_else(|_| Ok(Vec::new()))?.into_iter();
    let answer = |host: &Host| {
        let answer = if is_out(host) { excluded.next() } else { answers.next() };
        answer.unwrap_or_else(|| Err(late(host)))
    };
    Ok(hosts.iter().map(answer).collect())
}

fn late(host: &Host) -> HintedError {
    HintedError::new(format!("{}: no response in time", host.name), "")
}

impl RunIndex {
    /// Joins the lists of hosts, which are in host order. Warns about entries that hosts omitted.
    fn from_answers(hosts: Vec<Host>, answers: Vec<Result<RunList, HintedError>>) -> RunIndex {
        let mut run_index = RunIndex { hosts, ..RunIndex::default() };
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(list) => {
                    run_index.entries.extend(list.runs.into_iter().map(|entry| (index, entry)));
                    run_index.left_out.extend(list.left_out.into_iter().map(|reason| (index, reason)));
                }
                Err(error) => run_index.silent.push((index, error)),
            }
        }
        for (index, reason) in run_index.left_out.iter().take(MOST_WARNINGS) {
            let host = run_index.hosts.get(*index).map_or("", |host| host.name.as_str());
            stderr::line(&format!("warning: host {host}: not listed: {reason}"));
        }
        run_index.deduplicated()
    }

    /// Whether the hosts file lacks the host.
    pub(crate) fn is_other(&self, index: usize) -> bool {
        self.hosts.get(index).is_some_and(|host| self.others.contains(&host.name))
    }

    /// Keeps every part once, whichever host reported it.
    pub(crate) fn deduplicated(mut self) -> RunIndex {
        self.drop_shared();
        self
    }

    /// Hosts that share a workdir report each other's parts: keeps the report of the host that a part belongs
    /// to, else the first one.
    fn drop_shared(&mut self) {
        let mut kept: Vec<(usize, RunEntry)> = Vec::new();
        for (index, entry) in std::mem::take(&mut self.entries) {
            let own = |index: usize, entry: &RunEntry| self.hosts[index].name == entry.host;
            let same = |old: &RunEntry| {
                (&old.run, old.node_rank, &old.host) == (&entry.run, entry.node_rank, &entry.host)
            };
            match kept.iter_mut().find(|(_, old)| same(old)) {
                Some(old) if own(index, &entry) && !own(old.0, &old.1) => *old = (index, entry),
                Some(_) => {}
                None => kept.push((index, entry)),
            }
        }
        self.entries = kept;
    }

    /// All runs, newest first.
    pub(crate) fn runs(&self) -> Vec<FoundRun<'_>> {
        let mut runs: Vec<FoundRun> = Vec::new();
        for (index, entry) in &self.entries {
            let state = RunStatus::of(entry.state);
            match runs.iter_mut().find(|found| found.run == entry.run.0) {
                Some(found) => {
                    found.state = found.state.max(state);
                    found.parts.push((*index, entry));
                }
                None => runs.push(FoundRun { run: &entry.run.0, state, parts: vec![(*index, entry)] }),
            }
        }
        let now = wall_time();
        for found in &mut runs {
            found.parts.sort_by_key(|(_, part)| part.node_rank);
            if run_summary::is_restarting(&found.entries(), now) {
                found.state = RunStatus::Running;
            }
        }
        let started = |found: &FoundRun| found.parts.iter().map(|(_, part)| part.started).fold(0.0, f64::max);
        runs.sort_by(|a, b| started(b).total_cmp(&started(a)).then_with(|| b.run.cmp(a.run)));
        runs
    }

    /// Returns the run that a name selects ([`run_name::resolve`]).
    ///
    /// Prints which run it takes if several match. A command that stops, restarts or removes a run offers a list
    /// on a terminal instead.
    pub(crate) fn find(&self, name: Option<&str>, action: RunAction) -> Result<FoundRun<'_>, Failure> {
        let runs = self.runs();
        match self.select(&runs, name, action) {
            Ok(SelectedRun { index, of }) => {
                if of > 1 {
                    stderr::line(&self.choice_note(runs[index].run, of));
                }
                Ok(runs[index].clone())
            }
            Err(NameError::Ambiguous(found)) if prompt::can_select() => {
                // Active runs first, then by age.
                let mut found: Vec<&FoundRun> = found.iter().map(|index| &runs[*index]).collect();
                found.sort_by_key(|found| std::cmp::Reverse(found.state));
                let line = |found: &&FoundRun| {
                    format!("{:<9} {}  on {}", found.state.name(), found.run, found.hosts().join(", "))
                };
                let items: Vec<String> = found.iter().map(line).collect();
                let picked = prompt::select("Select a run", &items).map_err(Failure::terminal)?;
                let picked = picked.and_then(|index| found.get(index));
                picked.map(|found| (*found).clone()).ok_or_else(Failure::nothing_picked)
            }
            Err(error) => Err(self.name_failure(&runs, name, error)),
        }
    }

    /// Returns the run that a name selects, without prints and prompts.
    pub(crate) fn pick(&self, name: Option<&str>, action: RunAction) -> Result<FoundRun<'_>, Failure> {
        let runs = self.runs();
        match self.select(&runs, name, action) {
            Ok(selected) => Ok(runs[selected.index].clone()),
            Err(error) => Err(self.name_failure(&runs, name, error)),
        }
    }

    fn select(
        &self,
        runs: &[FoundRun],
        name: Option<&str>,
        action: RunAction,
    ) -> Result<SelectedRun, NameError> {
        // A host without an answer may have a newer run.
        if !self.silent.is_empty() && !action.is_reading() && name.is_some_and(run_name::is_relative) {
            return Err(NameError::NotFound);
        }
        let named: Vec<NamedRun> = runs
            .iter()
            .map(|found| NamedRun { name: found.run, is_active: found.state != RunStatus::Finished })
            .collect();
        run_name::resolve(&named, name, action)
    }

    /// Which of several runs a command takes.
    fn choice_note(&self, run: &str, of: usize) -> String {
        let silent = self.silent.iter().filter_map(|(index, _)| self.hosts.get(*index));
        let silent: Vec<&str> = silent.map(|host| host.name.as_str()).collect();
        match silent.is_empty() {
            true => format!("note: using run {run} ({of} match)"),
            false => format!("note: using run {run} ({of} match); no response from {}", silent.join(", ")),
        }
    }

    fn name_failure(&self, runs: &[FoundRun], name: Option<&str>, error: NameError) -> Failure {
        match (error, name) {
            (NameError::NotFound | NameError::NoneActive, _) if !self.silent.is_empty() => {
                match name.is_some_and(run_name::is_relative) {
                    true => self.silent_failure().hint("pass the full name of the run"),
                    false => self.silent_failure(),
                }
            }
            (NameError::NotFound, Some(name)) if name != LAST => {
                Failure::usage(format!("run `{name}` not found on these hosts"))
                    .hint("list all runs with `rankdeck ps --all`")
            }
            (NameError::NotFound, _) => Failure::usage("no runs on these hosts")
                .hint("launch one with `rankdeck run EXPERIMENT.toml`"),
            (NameError::NoneActive, _) => {
                Failure::usage("no active run on these hosts").hint("list runs with `rankdeck ps`")
            }
            (NameError::TooFewRuns(count), name) => {
                let name = name.unwrap_or_default();
                Failure::usage(format!("`{name}`: only {} of that name", plural(count, "run")))
                    .hint("list all runs with `rankdeck ps --all`")
            }
            (NameError::Ambiguous(found), name) => {
                let error = match name {
                    Some(name) => format!("`{name}` matches {} runs", found.len()),
                    None => format!("{} active runs", found.len()),
                };
                let failure = Failure::usage(error).hint("pass the name of the run");
                let found = found.iter().take(LISTED).map(|index| &runs[*index]);
                found.fold(failure, |failure, found| {
                    failure.detail(&format!("  {}  {}", found.run, found.state.name()))
                })
            }
        }
    }

    /// The host of this name.
    pub(crate) fn host(&self, name: &str) -> Result<&Host, Failure> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| {
            Failure::usage(format!("host `{name}` is not in the hosts file"))
                .hint("add a `[[host]]` with that name, or pass another file with `--hosts`")
        })
    }

    /// Hosts of a run in node_rank order.
    pub(crate) fn hosts_of(&self, found: &FoundRun) -> Result<Vec<Host>, Failure> {
        found
            .hosts()
            .iter()
            .map(|name| {
                self.hosts.iter().find(|host| host.name == *name).cloned().ok_or_else(|| {
                    Failure::usage(format!(
                        "run {} has ranks on host {name}, which is not in the hosts file",
                        found.run
                    ))
                    .hint("pass the hosts file of the launch with `--hosts FILE`")
                })
            })
            .collect()
    }

    /// Hosts with files of a run: its own, and those whose directory has parts of others, such as a shared file
    /// system. Hosts that do not reply are left out if such a directory has their part.
    pub(crate) fn holders(&self, found: &FoundRun) -> Vec<Host> {
        let names = found.hosts();
        let reports = |index: usize| found.parts.iter().any(|(reporter, _)| *reporter == index);
        let hosts = self.hosts.iter().enumerate();
        let is_replaced = |index: usize, host: &Host| {
            self.silent.iter().any(|(silent, _)| *silent == index) && has_verified_part(found, &host.name)
        };
        let has_files = |(index, host): &(usize, &Host)| {
            (names.contains(&host.name) || reports(*index)) && !is_replaced(*index, host)
        };
        hosts.filter(has_files).map(|(_, host)| host.clone()).collect()
    }

    /// Names of a run's hosts that are not in the hosts file and whose files no other host has. A part on a
    /// shared file system counts if its agent verified that no process is left.
    pub(crate) fn missing_hosts(&self, found: &FoundRun) -> Vec<String> {
        let mut names = found.hosts();
        names.retain(|name| {
            !self.hosts.iter().any(|host| host.name == *name) && !has_verified_part(found, name)
        });
        names
    }

    /// The hosts that did not respond, as a failure.
    pub(crate) fn silent_failure(&self) -> Failure {
        let mut errors = self.silent.iter().map(|(_, error)| error);
        let first = errors.next().map_or("no host answered", |error| &error.error);
        let all = errors
            .fold(Failure::host(first), |failure, error| failure.detail(&format!("error: {}", error.error)));
        let few = if self.silent.len() <= print::FEW_HINTS { usize::MAX } else { 1 };
        self.silent.iter().take(few).fold(all, |failure, (_, error)| failure.hint(error.hint.as_str()))
    }
}

/// Whether a host that replied has the part of this one, whose agent verified that no process is left.
pub(crate) fn has_verified_part(found: &FoundRun, host: &str) -> bool {
    found.parts.iter().any(|(_, part)| part.host == host && part.digest.proved)
}

/// An entry for tests.
#[cfg(test)]
pub(crate) fn sample_entry() -> RunEntry {
    use rankdeck_types::ids::{Generation, NodeRank, RunId};
    RunEntry {
        run: RunId("r".into()),
        node_rank: NodeRank(0),
        host: "a".into(),
        state: HostRunState::Finished,
        generation: Generation(0),
        world_size: 2,
        ranks_alive: 0,
        pids: Vec::new(),
        socket: String::new(),
        started: 1.0,
        name: "r".into(),
        run_dir: "/r".into(),
        nnodes: 1,
        hosts: Vec::new(),
        agent_pid: 0,
        digest: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::Transport;
    use rankdeck_types::ids::{Generation, NodeRank, RunId};

    fn host(name: &str) -> Host {
        Host {
            name: name.into(),
            address: name.into(),
            workdir: ".".into(),
            transport: Transport::Local,
            ..Host::default()
        }
    }

    /// As on a login node that shares the directory of Slurm's nodes.
    #[test]
    fn verified_parts_in_a_shared_directory_need_no_host() {
        let part = |node: u32, name: &str, proved| {
            let mut part = entry("r", node, name, HostRunState::Finished, 1.0);
            part.digest.proved = proved;
            part.hosts = vec!["n0".into(), "n1".into()];
            (0, part)
        };
        let missing = |entries: Vec<(usize, RunEntry)>| {
            let run_index = RunIndex { hosts: vec![host("login")], entries, ..RunIndex::default() };
            let holders: Vec<String> =
                run_index.holders(&run_index.runs()[0]).into_iter().map(|host| host.name).collect();
            assert_eq!(holders, ["login"]);
            run_index.missing_hosts(&run_index.runs()[0])
        };
        assert_eq!(missing(vec![part(0, "n0", true), part(1, "n1", true)]), [""; 0]);
        assert_eq!(missing(vec![part(0, "n0", true), part(1, "n1", false)]), ["n1"], "it may run there");
        assert_eq!(missing(vec![part(0, "n0", true)]), ["n1"], "its files are elsewhere");
        // The nodes are known, and their job has expired.
        let run_index = RunIndex {
            hosts: vec![host("login"), host("n0"), host("n1")],
            entries: vec![part(0, "n0", true), part(1, "n1", false)],
            silent: vec![(1, HintedError::new("expired", "")), (2, HintedError::new("expired", ""))],
            ..RunIndex::default()
        };
        let runs = run_index.runs();
        let holders: Vec<String> = run_index.holders(&runs[0]).into_iter().map(|host| host.name).collect();
        assert_eq!(holders, ["login", "n1"]);
    }

    fn entry(run: &str, node: u32, host: &str, state: HostRunState, started: f64) -> RunEntry {
        RunEntry {
            run: RunId(run.into()),
            node_rank: NodeRank(node),
            host: host.into(),
            state,
            started,
            hosts: vec!["b".into(), "a".into()],
            ..sample_entry()
        }
    }

    fn sample() -> RunIndex {
        RunIndex {
            hosts: vec![host("a"), host("b")],
            entries: vec![
                (0, entry("old-1", 1, "a", HostRunState::Finished, 1.0)),
                (1, entry("old-1", 0, "b", HostRunState::Finished, 1.0)),
                (0, entry("new-1", 1, "a", HostRunState::Running, 2.0)),
                (1, entry("new-1", 0, "b", HostRunState::Orphaned, 2.0)),
            ],
            ..RunIndex::default()
        }
    }

    #[test]
    fn parts_of_a_run_are_joined() {
        let run_index = sample();
        let runs = run_index.runs();
        assert_eq!(
            runs.iter().map(|r| (r.run, r.state)).collect::<Vec<_>>(),
            [("new-1", RunStatus::Running), ("old-1", RunStatus::Finished)]
        );
        let names: Vec<String> = run_index.hosts_of(&runs[0]).unwrap().into_iter().map(|h| h.name).collect();
        assert_eq!(names, ["b", "a"], "node_rank order, not hosts.toml order");
    }

    /// `wait` waits on, and `rm` refuses it.
    #[test]
    fn run_between_two_generations_is_running() {
        use rankdeck_proto::run_entry::{NodeDigest, RankFailure};
        use rankdeck_types::{exit::Exit, ids::Rank};
        let state = |agent_pid: u32| {
            let exit = Some(Exit::Code { code: 1 });
            let failure = RankFailure { rank: Rank(0), time: 1.0, exit, text: String::new(), usage: false };
            let digest = NodeDigest {
                ended: Some(wall_time()),
                failure: Some(failure),
                restart_wait_ms: Some(1_000),
                ..NodeDigest::default()
            };
            let entry = RunEntry { agent_pid, digest, ..sample_entry() };
            let run_index =
                RunIndex { hosts: vec![host("a")], entries: vec![(0, entry)], ..RunIndex::default() };
            let found = run_index.runs().remove(0);
            (found.state, found.state_text(&found.summary(wall_time())))
        };
        assert_eq!(state(7), (RunStatus::Running, "restarting".into()));
        assert_eq!(state(0), (RunStatus::Finished, "failed (1)".into()));
    }

    #[test]
    fn name_1_change_of_an_ambiguous_name_lists_the_runs() {
        let mut run_index = sample();
        let picked = |index: &RunIndex, name: Option<&str>, action| {
            index.pick(name, action).map(|found| found.run.to_owned()).map_err(|failure| failure.code)
        };
        assert_eq!(picked(&run_index, None, RunAction::Stop), Ok("new-1".into()));
        assert_eq!(picked(&run_index, Some("old"), RunAction::Change), Ok("old-1".into()));
        assert_eq!(picked(&run_index, Some("nope"), RunAction::Read), Err(2));
        run_index.entries.push((0, entry("new-2", 0, "a", HostRunState::Running, 3.0)));
        let failure = run_index.pick(None, RunAction::Stop).unwrap_err();
        assert_eq!((failure.code, failure.details.len()), (2, 2), "{failure}");
        assert_eq!(picked(&run_index, None, RunAction::Read), Ok("new-2".into()));
        assert_eq!(picked(&run_index, Some("new"), RunAction::Watch), Ok("new-2".into()));
        assert_eq!(picked(&run_index, Some("new~1"), RunAction::Change), Ok("new-1".into()));
        run_index.hosts.pop();
        let found = run_index.pick(Some("new-1"), RunAction::Change).unwrap();
        assert!(run_index.hosts_of(&found).unwrap_err().to_string().contains("host b"));
    }

    #[test]
    fn name_1_relative_change_needs_all_hosts() {
        let mut run_index = sample();
        run_index.silent.push((1, HintedError::new("host b: refused", "")));
        for action in [RunAction::Stop, RunAction::Change] {
            assert_eq!(run_index.pick(Some("@last"), action).unwrap_err().code, 3);
            assert_eq!(run_index.pick(Some("new-1"), action).unwrap().run, "new-1");
        }
        assert_eq!(run_index.pick(Some("@last"), RunAction::Read).unwrap().run, "new-1");
    }

    #[test]
    fn run_hosts_include_all_reported_hosts() {
        let mut run_index = sample();
        // The latest generation excludes a host, and another one claims a foreign position.
        run_index.entries = vec![
            (0, RunEntry { generation: Generation(3), ..entry("r", 1, "a", HostRunState::Running, 1.0) }),
            (
                1,
                RunEntry {
                    hosts: vec!["b".into(), "a".into(), "c".into()],
                    ..entry("r", 0, "b", HostRunState::Running, 1.0)
                },
            ),
            (1, RunEntry { hosts: vec![], ..entry("r", 0, "d", HostRunState::Running, 1.0) }),
        ];
        run_index.drop_shared();
        assert_eq!(run_index.entries.len(), 3);
        assert_eq!(run_index.runs()[0].hosts(), ["b", "a", "c", "d"]);
        run_index.entries[0].1.node_rank = NodeRank(u32::MAX);
        assert_eq!(run_index.runs()[0].hosts(), ["b", "a", "c", "d"], "a host's index never sizes the list");
    }

    #[test]
    fn shared_workdir_is_counted_once() {
        let mut run_index = sample();
        run_index.entries = vec![
            (0, entry("r", 0, "b", HostRunState::Running, 1.0)),
            (1, entry("r", 0, "b", HostRunState::Running, 1.0)),
        ];
        run_index.drop_shared();
        assert_eq!(run_index.entries.len(), 1);
        assert_eq!(run_index.entries[0].0, 1, "the host's own report wins");
    }

    #[test]
    fn silent_hosts_fail_a_lookup() {
        let mut run_index = sample();
        run_index.entries.clear();
        run_index.silent.push((0, HintedError { error: "host a: refused".into(), hint: "sshd".into() }));
        let failure = run_index.pick(None, RunAction::Stop).unwrap_err();
        assert_eq!((failure.code, failure.cause.hint.as_str()), (3, "sshd"));
    }
}
