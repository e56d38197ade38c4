//! Which runs are where: asks the agents' list of every host, in parallel, and puts the answers together.

use super::Failure;
use super::args::HostKeyArgs;
use super::{pick, prompt};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::{self, RunSummary};
use rankdeck_link::{AgentCommand, Links, Prompter};
use rankdeck_proto::run_entry::RunEntry;
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::WallTime;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is known about runs everywhere.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// Hosts of hosts.toml.
    pub hosts: Vec<Host>,
    /// Entry and index of the host that reported it.
    pub entries: Vec<(usize, RunEntry)>,
    /// Hosts that could not be asked.
    pub silent: Vec<(usize, HintedError)>,
}

/// State of a run over all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Every host says that the run is over.
    Finished,
    /// Processes are left, but no agent.
    Orphaned,
    /// An agent serves it.
    Running,
}

impl State {
    /// The state of one part.
    pub fn of(state: RunState) -> State {
        match state {
            RunState::Finished => State::Finished,
            RunState::Orphaned => State::Orphaned,
            RunState::Running => State::Running,
        }
    }

    /// The word shown.
    pub fn name(self) -> &'static str {
        match self {
            State::Finished => "finished",
            State::Orphaned => "orphaned",
            State::Running => "running",
        }
    }
}

/// One run over all hosts that reported it.
#[derive(Debug, Clone)]
pub struct FoundRun<'a> {
    pub run: &'a str,
    /// Worst state over its hosts.
    pub state: State,
    /// Entries in node_rank order, with the index of the host that reported them.
    pub parts: Vec<(usize, &'a RunEntry)>,
}

impl FoundRun<'_> {
    /// Names of all hosts that any part of the run names, in node_rank order.
    pub fn hosts(&self) -> Vec<String> {
        run_summary::hosts(&self.entries())
    }

    /// What it was, or is so far.
    pub fn summary(&self, now: WallTime) -> RunSummary {
        RunSummary::of(&self.entries(), now)
    }

    fn entries(&self) -> Vec<&RunEntry> {
        self.parts.iter().map(|(_, part)| *part).collect()
    }
}

/// Loads hosts.toml.
pub fn load_hosts(source: &HostsSource) -> Result<Vec<Host>, Failure> {
    Ok(rankdeck_config::load_hosts(source)?)
}

/// The running binary, which is also the agent.
pub fn own_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::failed(format!("failed to find rankdeck's own binary: {error}"))
            .hint("start it by its full path, and leave its file where it is")
    })
}

/// The trainer that belongs to it, if it is there.
pub fn trainer_binary(own: &Path) -> Option<PathBuf> {
    rankdeck_proto::libtorch::trainer_of(own)
}

/// Runs an agent command on every host at once; answers in host order.
pub async fn exec_on_all(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
    args: impl Fn(&Host) -> Vec<String>,
) -> Result<Vec<Result<String, HintedError>>, Failure> {
    let prompter: Arc<dyn Prompter> = prompt::Terminal::new(host_keys);
    let command = |_, host: &Host| AgentCommand { args: args(host), ..AgentCommand::default() };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    Ok(replies.into_iter().map(|reply| reply.map(|reply| reply.text)).collect())
}

/// Decodes an agent's one-line answer.
///
/// Errors: the agent has refused, and says why; or it speaks another language.
pub fn decode<T: serde::de::DeserializeOwned>(host: &Host, answer: &str) -> Result<T, HintedError> {
    if let Ok(HintedError { error, hint }) = serde_json::from_str(answer.trim()) {
        return Err(HintedError { error: format!("host {}: {error}", host.name), hint });
    }
    serde_json::from_str(answer.trim()).map_err(|error| HintedError {
        error: format!("host {}: the agent's answer cannot be read: {error}", host.name),
        hint: "the agent there may come from another build: `rm -r ~/.cache/rankdeck` on the host, then try again".to_owned(),
    })
}

/// The runs that each host knows, in host order.
pub async fn list(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
) -> Result<Vec<Result<Vec<RunEntry>, HintedError>>, Failure> {
    let args = |host: &Host| ["list", "--workdir", &host.workdir].map(str::to_owned).to_vec();
    let answers = exec_on_all(hosts, host_keys, args).await?;
    Ok(hosts.iter().zip(answers).map(|(host, answer)| answer.and_then(|text| decode(host, &text))).collect())
}

/// Asks all hosts.
pub async fn roster(hosts_from: &HostsSource, host_keys: &HostKeyArgs) -> Result<Roster, Failure> {
    let hosts = load_hosts(hosts_from)?;
    let answers = list(&hosts, host_keys).await?;
    let mut roster = Roster { hosts, ..Roster::default() };
    for (index, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(entries) => roster.entries.extend(entries.into_iter().map(|entry| (index, entry))),
            Err(error) => roster.silent.push((index, error)),
        }
    }
    Ok(roster.whole())
}

impl Roster {
    /// With every part once, wherever it was reported.
    pub fn whole(mut self) -> Roster {
        self.drop_shared();
        self
    }

    /// Hosts that share a workdir report each other's parts: keeps, of each part, the report of the host it
    /// belongs to, else the first one.
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
    pub fn runs(&self) -> Vec<FoundRun<'_>> {
        let mut runs: Vec<FoundRun> = Vec::new();
        for (index, entry) in &self.entries {
            let state = State::of(entry.state);
            match runs.iter_mut().find(|found| found.run == entry.run.0) {
                Some(found) => {
                    found.state = found.state.max(state);
                    found.parts.push((*index, entry));
                }
                None => runs.push(FoundRun { run: &entry.run.0, state, parts: vec![(*index, entry)] }),
            }
        }
        runs.iter_mut().for_each(|found| found.parts.sort_by_key(|(_, part)| part.node_rank));
        let started = |found: &FoundRun| found.parts.iter().map(|(_, part)| part.started).fold(0.0, f64::max);
        runs.sort_by(|a, b| started(b).total_cmp(&started(a)).then_with(|| b.run.cmp(a.run)));
        runs
    }

    /// The run that is meant: by its full name, by the beginning of it when that is unique (among those that
    /// are not finished, if there are such), or the only one that is not finished.
    pub fn pick(&self, wanted: Option<&str>) -> Result<FoundRun<'_>, Failure> {
        let runs = self.runs();
        if let Some(found) = wanted.and_then(|name| runs.iter().find(|found| found.run == name)) {
            return Ok(found.clone());
        }
        let candidates: Vec<&FoundRun> = match wanted {
            Some(start) => runs.iter().filter(|found| found.run.starts_with(start)).collect(),
            None => runs.iter().filter(|found| found.state != State::Finished).collect(),
        };
        let live: Vec<&FoundRun> =
            candidates.iter().copied().filter(|found| found.state != State::Finished).collect();
        match (candidates.as_slice(), wanted) {
            ([only], _) => Ok((*only).clone()),
            (_, Some(_)) if live.len() == 1 => Ok(live[0].clone()),
            ([], _) if !self.silent.is_empty() => Err(self.silent_failure()),
            ([], Some(name)) => Err(Failure::usage(format!("there is no run `{name}` on these hosts"))
                .hint("`rankdeck ps --all` lists all runs")),
            ([], None) => Err(Failure::usage("nothing runs on these hosts")
                .hint("name a finished run; `rankdeck ps` lists them")),
            (many, _) => {
                let names = many.iter().map(|found| format!("  {}  {}", found.run, found.state.name()));
                let failure = Failure::usage("which one?").hint("give the run's name");
                Err(names.fold(failure, |failure, name| failure.detail(&name)))
            }
        }
    }

    /// As [`Roster::pick`]; where several are meant, or nothing runs, a list to pick from when somebody sits
    /// at the terminal. `finished`: runs that are over are of use, too.
    pub fn pick_or_ask(&self, wanted: Option<&str>, finished: bool) -> Result<FoundRun<'_>, Failure> {
        let failure = match self.pick(wanted) {
            Err(failure) if pick::can_pick() => failure,
            picked => return picked,
        };
        let mut runs = self.runs();
        runs.retain(|found| wanted.is_none_or(|start| found.run.starts_with(start)));
        runs.retain(|found| finished || found.state != State::Finished);
        if runs.is_empty() {
            return Err(failure);
        }
        // Those that run come first, each kind newest first.
        runs.sort_by_key(|found| std::cmp::Reverse(found.state));
        let items: Vec<String> = runs
            .iter()
            .map(|found| format!("{:<9} {}  on {}", found.state.name(), found.run, found.hosts().join(", ")))
            .collect();
        let picked = pick::one("which run?", &items).map_err(Failure::terminal)?;
        let picked = picked.filter(|index| *index < runs.len());
        picked.map(|index| runs.swap_remove(index)).ok_or_else(Failure::nothing_picked)
    }

    /// The host of this name.
    pub fn host(&self, name: &str) -> Result<&Host, Failure> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| {
            Failure::usage(format!("the hosts file has no host `{name}`"))
                .hint("add a `[[host]]` of that name, or give another file with `--hosts`")
        })
    }

    /// Hosts of a run in node_rank order.
    pub fn hosts_of(&self, found: &FoundRun) -> Result<Vec<Host>, Failure> {
        found
            .hosts()
            .iter()
            .map(|name| {
                self.hosts.iter().find(|host| host.name == *name).cloned().ok_or_else(|| {
                    Failure::usage(format!(
                        "run {} has ranks on host {name}, which this hosts.toml does not list",
                        found.run
                    ))
                    .hint("`--hosts FILE` with the file that the run was launched with")
                })
            })
            .collect()
    }

    /// The hosts that could not be asked, as a failure.
    pub fn silent_failure(&self) -> Failure {
        let mut errors = self.silent.iter().map(|(_, error)| error);
        let first = errors.next().map_or("no host answered", |error| &error.error);
        let all = errors
            .fold(Failure::host(first), |failure, error| failure.detail(&format!("error: {}", error.error)));
        self.silent.iter().fold(all, |failure, (_, error)| failure.hint(error.hint.as_str()))
    }
}

/// An entry for tests.
#[cfg(test)]
pub fn sample_entry() -> RunEntry {
    use rankdeck_types::ids::{Generation, NodeRank, RunId};
    RunEntry {
        run: RunId("r".into()),
        node_rank: NodeRank(0),
        host: "a".into(),
        state: RunState::Finished,
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

    fn entry(run: &str, node: u32, host: &str, state: RunState, started: f64) -> RunEntry {
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

    fn sample() -> Roster {
        Roster {
            hosts: vec![host("a"), host("b")],
            entries: vec![
                (0, entry("old-1", 1, "a", RunState::Finished, 1.0)),
                (1, entry("old-1", 0, "b", RunState::Finished, 1.0)),
                (0, entry("new-1", 1, "a", RunState::Running, 2.0)),
                (1, entry("new-1", 0, "b", RunState::Orphaned, 2.0)),
            ],
            silent: Vec::new(),
        }
    }

    #[test]
    fn the_parts_of_a_run_are_put_together() {
        let roster = sample();
        let runs = roster.runs();
        assert_eq!(
            runs.iter().map(|r| (r.run, r.state)).collect::<Vec<_>>(),
            [("new-1", State::Running), ("old-1", State::Finished)]
        );
        let names: Vec<String> = roster.hosts_of(&runs[0]).unwrap().into_iter().map(|h| h.name).collect();
        assert_eq!(names, ["b", "a"], "node_rank order, not hosts.toml order");
    }

    #[test]
    fn picking_is_never_a_guess() {
        let mut roster = sample();
        assert_eq!(roster.pick(None).unwrap().run, "new-1");
        assert_eq!(roster.pick(Some("old")).unwrap().run, "old-1");
        assert_eq!(roster.pick(Some("nope")).unwrap_err().code, 2);
        assert_eq!(roster.pick(Some("")).unwrap().run, "new-1", "the one that is not finished");
        roster.entries.push((0, entry("new-2", 0, "a", RunState::Running, 3.0)));
        let failure = roster.pick(None).unwrap_err().to_string();
        assert!(failure.contains("new-1") && failure.contains("new-2"), "{failure}");
        assert_eq!(roster.pick(Some("new-1")).unwrap().run, "new-1", "a full name wins");
        roster.hosts.pop();
        let found = roster.pick(Some("new-1")).unwrap();
        assert!(roster.hosts_of(&found).unwrap_err().to_string().contains("host b"));
    }

    #[test]
    fn every_host_that_any_part_names_belongs_to_the_run() {
        let mut roster = sample();
        // The latest generation leaves a host out, and another one claims a place that is not its own.
        roster.entries = vec![
            (0, RunEntry { generation: Generation(3), ..entry("r", 1, "a", RunState::Running, 1.0) }),
            (
                1,
                RunEntry {
                    hosts: vec!["b".into(), "a".into(), "c".into()],
                    ..entry("r", 0, "b", RunState::Running, 1.0)
                },
            ),
            (1, RunEntry { hosts: vec![], ..entry("r", 0, "d", RunState::Running, 1.0) }),
        ];
        roster.drop_shared();
        assert_eq!(roster.entries.len(), 3);
        assert_eq!(roster.runs()[0].hosts(), ["b", "a", "c", "d"]);
        roster.entries[0].1.node_rank = NodeRank(u32::MAX);
        assert_eq!(roster.runs()[0].hosts(), ["b", "a", "c", "d"], "numbers from outside are no sizes");
    }

    #[test]
    fn a_shared_workdir_is_counted_once() {
        let mut roster = sample();
        roster.entries = vec![
            (0, entry("r", 0, "b", RunState::Running, 1.0)),
            (1, entry("r", 0, "b", RunState::Running, 1.0)),
        ];
        roster.drop_shared();
        assert_eq!(roster.entries.len(), 1);
        assert_eq!(roster.entries[0].0, 1, "the host's own report wins");
    }

    #[test]
    fn silent_hosts_are_an_error_when_nothing_was_found() {
        let mut roster = sample();
        roster.entries.clear();
        roster.silent.push((0, HintedError { error: "host a: refused".into(), hint: "sshd".into() }));
        let failure = roster.pick(None).unwrap_err();
        assert_eq!((failure.code, failure.cause.hint.as_str()), (3, "sshd"));
    }
}
