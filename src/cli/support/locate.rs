//! Finds the run that a command names, on the hosts that it was launched on.
//!
//! Invariants:
//! - LOCATE-1: a run is addressed on the hosts of its launch, as the hosts file described them then. A host that
//!   does not respond there is asked as the hosts file describes it now.
//! - LOCATE-2: a command that lists runs asks the hosts that it names. If it names none, it asks those of the hosts
//!   file, and those of the latest launches from this directory.
//! - LOCATE-3: a command that removes runs from all hosts asks no host of an earlier launch that the hosts file lacks,
//!   unless it is this machine or is named.
//! - LOCATE-4: a command with the full name of a run of this directory waits only briefly for hosts on which it was not
//!   launched.
//!
//! Recordings on this machine, found by name, prefix or path.

pub(crate) use crate::app::record::reader::RecordedRun;
use crate::app::record::reader::{Recording, list, record_of};
use crate::app::{record, stderr};
use crate::cli::args::HostKeyArgs;
use crate::cli::support::Failure;
use crate::cli::support::run_index::{FoundRun, RunIndex, hosts_of_runs, query_first, query_with_others};
use crate::cli::support::run_name::{
    self, LAST, NameError, NamedRun, RUNS, RunAction, SelectedRun, check_readable, run_names,
};
use rankdeck_config::HostsSource;
use rankdeck_proto::trust;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::words::plural;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most bytes of the hosts of a launch.
const MOST_HOSTS_BYTES: u64 = 8 << 20;
/// Most launches whose hosts are listed.
const LATEST: usize = 100;

/// The hosts whose runs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedHosts {
    /// Those that the command names.
    Named,
    /// Those of the hosts file and of launches from this directory.
    Known,
    /// Those of the hosts file, and this machine.
    Present,
}

/// How runs are looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLocator<'a> {
    hosts_from: &'a HostsSource,
    host_keys: &'a HostKeyArgs,
    /// Hosts that are waited for only briefly.
    exclude: &'a [String],
}

/// A run that a name selected, and what its hosts report.
#[derive(Debug, Clone)]
pub(crate) struct LocatedRun {
    pub(crate) run_index: Rc<RunIndex>,
    /// Its full name.
    pub(crate) run: String,
}

impl LocatedRun {
    /// The run over all hosts that reported it.
    ///
    /// # Errors
    /// None of its hosts has answered.
    pub(crate) fn found(&self) -> Result<FoundRun<'_>, Failure> {
        self.run_index.pick(Some(&self.run), RunAction::Read)
    }
}

impl<'a> RunLocator<'a> {
    /// Looks in the hosts file and in the launches of this directory.
    pub(crate) fn new(hosts_from: &'a HostsSource, host_keys: &'a HostKeyArgs) -> RunLocator<'a> {
        RunLocator { hosts_from, host_keys, exclude: &[] }
    }

    /// Waits only briefly for these hosts.
    pub(crate) fn without(self, exclude: &'a [String]) -> RunLocator<'a> {
        RunLocator { exclude, ..self }
    }

    /// Finds the run that a name selects ([`RunIndex::find`]).
    pub(crate) async fn find(self, name: Option<&str>, action: RunAction) -> Result<LocatedRun, Failure> {
        let run_index = Rc::new(self.index(name).await?);
        self.select(run_index, name, action).await
    }

    /// The same without prints and prompts ([`RunIndex::pick`]).
    pub(crate) async fn pick(self, name: Option<&str>, action: RunAction) -> Result<LocatedRun, Failure> {
        let run_index = Rc::new(self.index(name).await?);
        let run = run_index.pick(name, action)?.run.to_owned();
        self.located(run_index, name, run).await
    }

    /// As [`RunLocator::index`], or `known` if it has the hosts of that launch.
    pub(crate) async fn index_or(
        self,
        known: Option<&Rc<RunIndex>>,
        name: Option<&str>,
    ) -> Result<Rc<RunIndex>, Failure> {
        let launch = Launch::named(Path::new(RUNS), name).unwrap_or_default();
        match known.filter(|known| launch.hosts.iter().all(|host| known.hosts.contains(host))) {
            Some(known) => Ok(known.clone()),
            None => Ok(Rc::new(self.index(name).await?)),
        }
    }

    /// Queries the hosts of the hosts file, and those of the launch that the name selects among the runs of this
    /// directory. With its full name, the hosts are asked as they were at the launch, and the others briefly
    /// (LOCATE-4).
    pub(crate) async fn index(self, name: Option<&str>) -> Result<RunIndex, Failure> {
        let launch = Launch::named(Path::new(RUNS), name).unwrap_or_default();
        let listed = match hosts_of_runs(self.hosts_from) {
            Err(failure) if launch.hosts.is_empty() => return Err(failure),
            Err(_) => Vec::new(),
            Ok(hosts) => hosts,
        };
        let (hosts, rest) = launch.split(name, &listed);
        let launched = hosts.len();
        let mut run_index = query_first(hosts, rest, self.host_keys, self.exclude).await?;
        let changed = |index: usize| {
            let host = run_index.hosts.get(index)?;
            listed.iter().find(|now| now.name == host.name && *now != host).cloned().map(|now| (index, now))
        };
        let again: Vec<(usize, Host)> =
            run_index.silent.iter().filter_map(|(index, _)| changed(*index)).collect();
        if !again.is_empty() {
            again.into_iter().for_each(|(index, now)| run_index.hosts[index] = now);
            let mut hosts = std::mem::take(&mut run_index.hosts);
            let rest = hosts.split_off(launched);
            run_index = query_first(hosts, rest, self.host_keys, self.exclude).await?;
        }
        Ok(run_index)
    }

    /// Queries all hosts of a list of runs (LOCATE-2). Hosts that the hosts file lacks are asked without prompts
    /// and waited for briefly.
    pub(crate) async fn index_all(self, listed: ListedHosts) -> Result<RunIndex, Failure> {
        let launched = match listed {
            ListedHosts::Named => Vec::new(),
            ListedHosts::Known => Launch::latest(Path::new(RUNS)),
            ListedHosts::Present => present(Launch::latest(Path::new(RUNS))),
        };
        let hosts = match hosts_of_runs(self.hosts_from) {
            Err(failure) if launched.is_empty() => return Err(failure),
            Err(_) => Vec::new(),
            Ok(hosts) => hosts,
        };
        let others = others(&hosts, launched);
        query_with_others(hosts, others, self.host_keys).await
    }

    /// Returns the hosts of the latest launches that [`ListedHosts::Present`] leaves out.
    pub(crate) fn absent_hosts(self) -> Vec<Host> {
        let launched = Launch::latest(Path::new(RUNS));
        let listed = hosts_of_runs(self.hosts_from).unwrap_or_default();
        let here = present(launched.clone());
        others(&here, others(&listed, launched))
    }

    /// Returns the run that a name selects in an index of [`RunLocator::index`].
    pub(crate) async fn select(
        self,
        run_index: Rc<RunIndex>,
        name: Option<&str>,
        action: RunAction,
    ) -> Result<LocatedRun, Failure> {
        let run = run_index.find(name, action)?.run.to_owned();
        let located = self.located(run_index, name, run).await?;
        self.note_moved(&located);
        Ok(located)
    }

    /// Prints which hosts of the launch are used although the hosts file lacks them or describes another place.
    fn note_moved(self, located: &LocatedRun) {
        let listed = match self.hosts_from.is_file() {
            true => hosts_of_runs(self.hosts_from).unwrap_or_default(),
            false => Vec::new(),
        };
        let mut launched = Launch::of(Path::new(RUNS), &located.run).hosts;
        launched.retain(|host| located.run_index.hosts.contains(host));
        let names = moved(&launched, &listed);
        if !listed.is_empty() && !names.is_empty() {
            let (run, names) = (&located.run, names.join(", "));
            stderr::line(&format!(
                "note: using hosts of run {run} as at its launch, not the hosts file: {names}"
            ));
        }
    }

    /// The run with the hosts of its launch, which `name` may not have selected.
    async fn located(
        self,
        run_index: Rc<RunIndex>,
        name: Option<&str>,
        run: String,
    ) -> Result<LocatedRun, Failure> {
        let launched = Launch::of(Path::new(RUNS), &run).hosts;
        let is_complete =
            Some(run.as_str()) == name || launched.iter().all(|host| run_index.hosts.contains(host));
        let run_index = if is_complete { run_index } else { Rc::new(self.index(Some(&run)).await?) };
        Ok(LocatedRun { run_index, run })
    }
}

/// `first`, and those of `more` whose names it lacks.
fn joined(first: Vec<Host>, more: &[Host]) -> Vec<Host> {
    let new = others(&first, more.to_vec());
    [first, new].concat()
}

/// Those of `hosts` whose names `known` lacks.
fn others(known: &[Host], mut hosts: Vec<Host>) -> Vec<Host> {
    hosts.retain(|host| known.iter().all(|known| known.name != host.name));
    hosts
}

/// Names of hosts that `listed` lacks or has at another place. What a launch changes, such as ranks and setup, does
/// not count.
fn moved<'h>(launched: &'h [Host], listed: &[Host]) -> Vec<&'h str> {
    let place = |host: &Host| {
        let Host { transport, address, port, user, proxy_jump, workdir, .. } = host.clone();
        (transport, address, port, user, proxy_jump, workdir)
    };
    let is_listed = |host: &Host| listed.iter().any(|now| now.name == host.name && place(now) == place(host));
    launched.iter().filter(|host| !is_listed(host)).map(|host| host.name.as_str()).collect()
}

/// Those of `hosts` that are this machine (LOCATE-3).
fn present(mut hosts: Vec<Host>) -> Vec<Host> {
    hosts.retain(|host| host.transport == Transport::Local);
    hosts
}

/// A launch from this directory.
#[derive(Debug, Default, PartialEq)]
struct Launch {
    run: String,
    /// Its hosts, as the hosts file described them then.
    hosts: Vec<Host>,
}

impl Launch {
    /// The launch that a name selects, the newest of several; without a name: the newest.
    fn named(runs: &Path, name: Option<&str>) -> Option<Launch> {
        let mut names = run_names(runs);
        names.retain(|run| !run.starts_with("sweep-"));
        let named: Vec<NamedRun> = names.iter().map(|name| NamedRun { name, is_active: false }).collect();
        let selected = run_name::resolve(&named, name, RunAction::Read).ok()?;
        Some(Launch::of(runs, &names[selected.index]))
    }

    /// The hosts of the latest launches, as the latest one describes them. Slurm's nodes are left out: without a
    /// job of their own they run nothing, and [`HostsSource::Slurm`] knows the jobs.
    fn latest(runs: &Path) -> Vec<Host> {
        let names = run_names(runs);
        let hosts = names.iter().take(LATEST).fold(Vec::new(), |hosts, run| {
            let launched = Launch::of(runs, run).hosts;
            joined(hosts, &launched)
        });
        hosts.into_iter().filter(|host| host.transport != Transport::Slurm).collect()
    }

    /// Returns the hosts to wait for when `name` selects a run, and those to wait for only briefly (LOCATE-4).
    fn split(self, name: Option<&str>, listed: &[Host]) -> (Vec<Host>, Vec<Host>) {
        match Some(self.run.as_str()) == name && !self.hosts.is_empty() {
            true => {
                let rest = others(&self.hosts, listed.to_vec());
                (self.hosts, rest)
            }
            false => (joined(listed.to_vec(), &self.hosts), Vec::new()),
        }
    }

    /// The launch of a run; without hosts if it was launched elsewhere.
    fn of(runs: &Path, run: &str) -> Launch {
        // A host may report any name.
        let folder = RunId::parse(run).ok().map(|run| runs.join(&run.0));
        let folder = folder.filter(|folder| trust::check_run(runs, folder).is_ok());
        let folder = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let folders = folder.into_iter().flatten().flatten().map(|entry| entry.path());
        let mut consoles: Vec<PathBuf> =
            folders.filter(|console| console.join(record::HOSTS).is_file()).collect();
        // `console`, `console-2`, ...: a later launch of the run counts.
        consoles.sort_by_key(|console| (console.as_os_str().len(), console.clone()));
        let mut all: Vec<Host> = Vec::new();
        for console in consoles {
            let bytes = trust::read(&console.join(record::HOSTS), MOST_HOSTS_BYTES).unwrap_or_default();
            let hosts: Vec<Host> = serde_json::from_slice(&bytes).unwrap_or_default();
            all = joined(hosts, &all);
        }
        Launch { run: run.to_owned(), hosts: all }
    }
}

/// Returns how a command reaches hosts of a run that are not in the hosts file.
pub(crate) fn hint_for_missing(run: &str, names: &[String], command: &str) -> String {
    let launched = Launch::of(Path::new(RUNS), run).hosts;
    let is_node =
        |name: &String| launched.iter().any(|host| host.name == *name && host.transport == Transport::Slurm);
    match !names.is_empty() && names.iter().all(is_node) {
        true => format!(
            "request these nodes from Slurm: `salloc --nodelist={} rankdeck --slurm {command} {run}`",
            names.join(",")
        ),
        false => "try again when the host is reachable, with the hosts file that lists it".to_owned(),
    }
}

/// Finds a recording by path or by name ([`run_name::resolve`]). Prints which one it takes if several match.
pub(crate) fn recording(what: &str) -> Result<RecordedRun, Failure> {
    if let Some(recorded) = recording_at(what) {
        return Ok(recorded);
    }
    check_readable()?;
    let all = newest_first(list(Path::new(RUNS)));
    let (recorded, of) = choose(&all, what)?;
    if of > 1 {
        stderr::line(&format!("note: using run {} ({of} match)", recorded.name));
    }
    Ok(recorded)
}

/// Returns the names of all recordings that a prefix matches, newest first; a path or a relative name selects
/// one.
pub(crate) fn matching_recordings(what: &str) -> Result<Vec<String>, Failure> {
    if recording_at(what).is_some() || run_name::is_relative(what) {
        return Ok(vec![what.to_owned()]);
    }
    check_readable()?;
    let all = newest_first(list(Path::new(RUNS)));
    choose(&all, what)?;
    let found = run_name::matches(&named(&all), what);
    Ok(found.into_iter().filter_map(|index| all.get(index)).map(|recorded| recorded.name.clone()).collect())
}

/// Finds the recording at a path.
pub(crate) fn recording_at(what: &str) -> Option<RecordedRun> {
    let path = Path::new(what);
    let (record, written) = record_of(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Some(RecordedRun { name, record, written, path: Some(path.to_owned()) })
}

/// Sorts by the launch: another console may have written into the recording of an older run.
fn newest_first(mut all: Vec<RecordedRun>) -> Vec<RecordedRun> {
    all.sort_by_cached_key(|recorded| {
        std::cmp::Reverse(run_name::launch_order(&recorded.name, recorded.written))
    });
    all
}

fn named(all: &[RecordedRun]) -> Vec<NamedRun<'_>> {
    all.iter().map(|recorded| NamedRun { name: &recorded.name, is_active: false }).collect()
}

/// Returns the selected recording, and how many match.
fn choose(all: &[RecordedRun], what: &str) -> Result<(RecordedRun, usize), Failure> {
    match run_name::resolve(&named(all), Some(what), RunAction::Read) {
        Ok(SelectedRun { index, of }) => Ok((all[index].clone(), of)),
        Err(NameError::TooFewRuns(count)) => {
            Err(Failure::usage(format!("`{what}`: only {} of that name", plural(count, "recording")))
                .hint(format!("recordings are in {RUNS}/ of this directory")))
        }
        Err(_) if what != LAST => Err(Failure::usage(format!("no recording of `{what}` found"))
            .hint(format!("pass a run recorded in {RUNS}/ of this directory, or a path"))),
        Err(_) => Err(Failure::usage(format!("no recordings in {RUNS}/ of this directory"))
            .hint("`rankdeck run` records runs; to replay one from elsewhere, use `rankdeck replay PATH`")),
    }
}

/// Opens the recording of a run.
pub(crate) fn open_recording(recorded: &RecordedRun) -> Result<Recording, Failure> {
    Recording::open(&recorded.record).map_err(|error| {
        Failure::usage(error.to_string()).hint("a recording is `console/record/` in a run directory")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::record::RECORD;

    fn host(name: &str) -> Host {
        Host { name: name.into(), address: name.into(), ..Host::default() }
    }

    #[test]
    fn locate_1_hosts_of_the_launch_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let put = |console: &str, hosts: &[Host]| {
            let console = folder.path().join(console);
            std::fs::create_dir_all(&console).unwrap();
            std::fs::write(console.join(record::HOSTS), serde_json::to_vec(hosts).unwrap()).unwrap();
        };
        let moved = Host { address: "elsewhere".into(), ..host("b") };
        put("ppo-20260101-000000/console", &[host("a"), host("b")]);
        put("ppo-20260101-000000/console-2", std::slice::from_ref(&moved));
        put("ppo-20260102-000000/console", &[host("c")]);
        std::fs::create_dir_all(folder.path().join("dqn-20260103-000000/console")).unwrap();
        std::fs::create_dir_all(folder.path().join("sweep-ppo-20260104-000000")).unwrap();
        let found = |name: Option<&str>| Launch::named(folder.path(), name).map(|launch| launch.hosts);
        assert_eq!(found(Some("ppo-20260101-000000")), Some(vec![moved, host("a")]));
        assert_eq!(found(Some("ppo")), Some(vec![host("c")]), "the newest of several");
        assert_eq!(found(Some("ppo~1")).map(|hosts| hosts.len()), Some(2));
        assert_eq!(found(None), Some(vec![]), "dqn was launched elsewhere");
        assert_eq!((found(Some("../ppo-20260101-000000")), found(Some("sac"))), (None, None));
    }

    #[test]
    fn locate_4_hosts_of_no_launch_are_waited_for_briefly() {
        let run = "ppo-20260101-000000";
        let launch = |hosts: &[Host]| Launch { run: run.into(), hosts: hosts.to_vec() };
        let then = Host { address: "then".into(), ..host("a") };
        let today = [host("a"), host("dead")];
        let split = launch(std::slice::from_ref(&then)).split(Some(run), &today);
        assert_eq!(split, (vec![then.clone()], vec![host("dead")]));
        // Another name may select a run of any host.
        for name in [Some("ppo"), None] {
            let split = launch(&[then.clone(), host("b")]).split(name, &today);
            assert_eq!(split, (vec![host("a"), host("dead"), host("b")], vec![]), "{name:?}");
        }
        let split = launch(&[]).split(Some(run), &today);
        assert_eq!(split, (today.to_vec(), vec![]), "launched elsewhere");
    }

    #[test]
    fn locate_1_hosts_at_another_place_are_named() {
        let ranks = Host { nproc: Some(8), ..host("a") };
        let elsewhere = Host { workdir: "/scratch".into(), ..host("b") };
        let launched = [ranks, elsewhere, host("gone")];
        assert_eq!(moved(&launched, &[host("a"), host("b"), host("new")]), ["b", "gone"]);
        assert_eq!(moved(&launched, &launched), [""; 0]);
    }

    #[test]
    fn locate_2_hosts_of_all_launches_are_listed_once() {
        let folder = tempfile::tempdir().unwrap();
        let put = |run: &str, hosts: &[Host]| {
            let console = folder.path().join(run).join("console");
            std::fs::create_dir_all(&console).unwrap();
            std::fs::write(console.join(record::HOSTS), serde_json::to_vec(hosts).unwrap()).unwrap();
        };
        let (old, node) = (
            Host { address: "old".into(), ..host("b") },
            Host { transport: Transport::Slurm, ..host("node1") },
        );
        put("ppo-20260101-000000", &[host("a"), old]);
        put("dqn-20260102-000000", &[host("b"), node]);
        std::fs::create_dir_all(folder.path().join("sweep-ppo-20260104-000000")).unwrap();
        let launched = Launch::latest(folder.path());
        assert_eq!(launched, [host("b"), host("a")]);
        assert_eq!(others(&[host("a")], launched), [host("b")]);
        assert_eq!(Launch::latest(&folder.path().join("none")), []);
    }

    #[test]
    fn locate_3_only_this_machine_is_present_by_itself() {
        let here = Host { transport: Transport::Local, ..host("here") };
        assert_eq!(present(vec![host("a"), here.clone(), host("b")]), [here]);
    }

    fn runs(names: &[&str]) -> (tempfile::TempDir, Vec<RecordedRun>) {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let record = folder.path().join(name).join("console").join(RECORD);
            std::fs::create_dir_all(&record).unwrap();
            std::fs::write(record.join("000001.seg"), "").unwrap();
        }
        std::fs::create_dir_all(folder.path().join("other")).unwrap();
        let all = list(folder.path());
        (folder, all)
    }

    #[test]
    fn name_1_recording_is_the_newest_launch_that_matches() {
        let (_folder, all) = runs(&["cart-20260103-000000", "cart-20260101-000000", "pong-20260102-000000"]);
        let all = newest_first(all);
        let chosen = |what: &str| choose(&all, what).map(|(recorded, of)| (recorded.name, of));
        let found = |name: &str, of| -> Result<(String, usize), Failure> { Ok((name.to_owned(), of)) };
        assert_eq!(chosen("@last"), found("cart-20260103-000000", 3));
        assert_eq!(chosen("cart"), found("cart-20260103-000000", 2));
        assert_eq!(chosen("cart~1"), found("cart-20260101-000000", 2));
        assert_eq!(chosen("@last~1"), found("pong-20260102-000000", 3));
        assert_eq!(chosen("cart-20260101-000000"), found("cart-20260101-000000", 1));
        for what in ["other", "cart~2"] {
            assert_eq!(chosen(what).unwrap_err().code, 2, "{what}");
        }
        for what in ["@last", "x"] {
            assert_eq!(choose(&[], what).unwrap_err().code, 2, "{what}");
        }
    }
}
