//! `rankdeck run --seeds`, `--sweep`: many runs of one experiment, as many at once as hosts allow, in one
//! table.
//!
//! Owner: the process that began the sweep. Each cell is an ordinary run with a console of its own below this
//! one, so that it can be attached, stopped and restarted like any other. What has been done stands in
//! `sweep.json`.
//!
//! - A cell that fails stops no other.
//! - What was interrupted goes on: cells that are over stay as they are, those that were running are looked
//!   at again, the others are begun.

mod cell;
mod console;
mod grid;
mod slots;

use super::args::{HostKeyArgs, QueueArgs, RunArgs};
use super::roster::{load_hosts, own_binary};
use super::run_id::{RUNS, new_run_id};
use super::{Failure, code, print};
use crate::shell::signals::StopRequests;
use crate::shell::stderr;
use cell::{Cell, CellState};
use console::CellEvent;
use grid::cells;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_core::statistics::{bootstrap_interval, interquartile_mean};
use rankdeck_types::words::{NONE, clean, count, plural};
use serde::{Deserialize, Serialize};
use slots::{Finder, Slot};
use std::collections::VecDeque;
use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// All of a sweep, as it stands in its file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sweep {
    name: String,
    /// What its runs are called, before their number.
    title: String,
    /// The experiment file.
    experiment: PathBuf,
    /// Arguments of every cell: `--hosts`, `--set`, ...
    arguments: Vec<String>,
    /// Names of its hosts, with or without a slot.
    #[serde(default)]
    hosts: Vec<String>,
    /// Where its runs may be at once.
    slots: Vec<Slot>,
    /// In the order in which they begin.
    cells: Vec<Cell>,
    /// GPUs of each slot that is still to be found.
    #[serde(default)]
    gpus_per_run: Option<u32>,
}

/// Runs the sweep that the arguments ask for; `None` when they ask for a single run.
pub async fn run(hosts_from: &HostsSource, args: &RunArgs) -> Result<Option<u8>, Failure> {
    let Some(cells) = cells(args)? else { return Ok(None) };
    let Some(path) = args.subject.experiment.clone() else {
        return Err(Failure::usage("a sweep needs an experiment file")
            .hint("`rankdeck run EXPERIMENT.toml --seeds 1..5`"));
    };
    let source = ExperimentSource::File(path.clone());
    let experiment = rankdeck_config::load_experiment(&source, &args.set)?;
    // A mistake in a value is told before anything runs.
    for cell in &cells {
        rankdeck_config::load_experiment(&source, &[&args.set[..], cell].concat()).map_err(|mut found| {
            // What `--set` says has been read before.
            found.0.iter_mut().filter(|one| one.file == "--set").for_each(|one| one.file = "--sweep".into());
            found
        })?;
    }
    let name = args.name.clone().unwrap_or_else(|| experiment.run.name.clone());
    let mut hosts = load_hosts(hosts_from)?;
    hosts.retain(|host| !args.exclude.contains(&host.name));
    let slots = slots::of(&hosts, args).await?;
    let finder = Finder::new(hosts.clone(), args.host_keys.clone(), args.gpus_per_run);
    let mut arguments = words_of(hosts_from);
    arguments.extend(args.subject.nproc.iter().flat_map(|nproc| ["--nproc".to_owned(), nproc.to_string()]));
    arguments.extend(args.set.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    arguments.extend(args.note.iter().flat_map(|note| ["--note".to_owned(), note.clone()]));
    arguments.extend(args.exclude.iter().flat_map(|host| ["--exclude".to_owned(), host.clone()]));
    if args.host_keys.accept_new_host_keys {
        arguments.push("--accept-new-host-keys".to_owned());
    }
    let sweep = Sweep {
        name: new_run_id(&format!("sweep-{name}")).0,
        title: name,
        experiment: path,
        arguments,
        hosts: hosts.into_iter().map(|host| host.name).collect(),
        slots,
        cells: cells.into_iter().map(|sets| Cell { sets, ..Cell::default() }).collect(),
        gpus_per_run: args.gpus_per_run,
    };
    std::fs::create_dir_all(sweep.folder()).map_err(|error| {
        Failure::failed(format!("failed to make {}: {error}", sweep.folder().display()))
            .hint("run it in a folder that you may write to")
    })?;
    stderr::line(&format!(
        "sweep {}: {}, {} at once; `rankdeck queue` shows it",
        sweep.name,
        plural(sweep.cells.len(), "run"),
        sweep.slots.len()
    ));
    carry_on(sweep, finder).await.map(Some)
}

/// The options that name the same hosts.
fn words_of(hosts: &HostsSource) -> Vec<String> {
    let named = |text: String| vec!["--hosts".to_owned(), text];
    match hosts {
        HostsSource::File(path) => named(path.display().to_string()),
        HostsSource::Named(names) => named(names.join(",")),
        HostsSource::Here => Vec::new(),
        HostsSource::Slurm { defaults } => {
            [named(defaults.display().to_string()), vec!["--slurm".to_owned()]].concat()
        }
        HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) => words_of(inner),
    }
}

fn none_such() -> Failure {
    Failure::usage("there is no such sweep in runs/").hint("`rankdeck queue` lists them")
}

/// Runs `rankdeck queue`: shows sweeps, or goes on with one.
pub async fn queue(args: QueueArgs) -> Result<u8, Failure> {
    let mut sweeps = found(Path::new(RUNS));
    if let Some(wanted) = &args.sweep {
        sweeps.retain(|sweep| sweep.name.contains(wanted.as_str()));
    }
    if args.resume {
        return match sweeps.len() {
            1 => {
                let mut sweep = sweeps.remove(0);
                if args.failed {
                    sweep.cells.iter_mut().for_each(Cell::reopen);
                }
                let finder = sweep.finder()?;
                carry_on(sweep, finder).await
            }
            0 => Err(none_such()),
            n => {
                Err(Failure::usage(format!("{n} sweeps fit"))
                    .hint("name one: `rankdeck queue SWEEP --resume`"))
            }
        };
    }
    if sweeps.is_empty() && args.sweep.is_some() {
        return Err(none_such());
    }
    if sweeps.is_empty() {
        print::stdout("no sweeps");
    }
    for sweep in &sweeps {
        sweep.print();
    }
    Ok(code::SUCCESS)
}

/// Sweeps of a folder, the newest last.
fn found(runs: &Path) -> Vec<Sweep> {
    let folders = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut sweeps: Vec<Sweep> = folders
        .filter(|folder| folder.file_name().to_string_lossy().starts_with("sweep-"))
        .filter_map(|folder| {
            serde_json::from_slice(&std::fs::read(folder.path().join("sweep.json")).ok()?).ok()
        })
        .collect();
    sweeps.sort_by(|a, b| a.name.cmp(&b.name));
    sweeps
}

/// The sweep that is meant: its name and its runs that have begun. `None` where no sweep of `runs/` is called
/// so or begins so.
pub fn named(name: &str) -> Result<Option<(String, Vec<String>)>, Failure> {
    let fits = |sweep: &Sweep| name.starts_with("sweep-") && sweep.name.starts_with(name);
    let mut fitting: Vec<Sweep> = found(Path::new(RUNS)).into_iter().filter(fits).collect();
    if let Some(exact) = fitting.iter().position(|sweep| sweep.name == name) {
        fitting = vec![fitting.swap_remove(exact)];
    }
    match fitting.len() {
        0 | 1 => Ok(fitting.pop().map(|sweep| {
            let runs = sweep.cells.into_iter().filter_map(|cell| cell.run).collect();
            (sweep.name, runs)
        })),
        n => Err(Failure::usage(format!("{n} sweeps begin with `{name}`"))
            .hint("`rankdeck queue` lists them: give a whole name")),
    }
}

/// Sweeps of `runs/` that nobody goes on with, and that have no run left when those that are `gone` are.
pub fn emptied(gone: &dyn Fn(&str) -> bool) -> Vec<String> {
    let is_emptied = |sweep: &Sweep| {
        let runs: Vec<&str> = sweep.cells.iter().filter_map(|cell| cell.run.as_deref()).collect();
        let all = runs.iter().all(|run| gone(run) || !Path::new(RUNS).join(run).exists());
        all && runs.iter().any(|run| gone(run)) && !is_held(&sweep.folder())
    };
    found(Path::new(RUNS)).into_iter().filter(is_emptied).map(|sweep| sweep.name).collect()
}

/// The file that the process of a sweep holds a lock on.
fn lock_of(folder: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).open(folder.join("lock"))
}

/// A process goes on with the sweep of this folder.
fn is_held(folder: &Path) -> bool {
    lock_of(folder).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Takes a sweep for this process; two would begin each run twice.
fn hold(sweep: &Sweep) -> Result<std::fs::File, Failure> {
    let lock = lock_of(&sweep.folder()).map_err(|error| {
        Failure::failed(format!("failed to lock {}: {error}", sweep.folder().display()))
            .hint("run it in a folder that you may write to")
    })?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Failure::usage(format!("{} goes on in another process", sweep.name))
                .hint("`rankdeck queue` shows how far it is; ctrl-c there stops it"))
        }
        // Some network file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Begins what waits, as far as there are free slots, until all is over or somebody stops it.
async fn carry_on(mut sweep: Sweep, mut finder: Option<Finder>) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("failed to run the sweep: {error}")).hint("try again")
    };
    let _lock = hold(&sweep)?;
    let binary = own_binary()?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut requests = StopRequests::default();
    let (events, mut heard) = mpsc::channel(256);
    let mut open = sweep.open();
    let mut free: VecDeque<usize> = (0..sweep.slots.len()).collect();
    let mut busy: Vec<(usize, usize, u32)> = Vec::new();
    let mut stopping = false;
    loop {
        while !stopping && let Some((index, slot)) = sweep.next(&mut open, &mut free) {
            let pid = sweep.begin(index, slot, &binary, &events).map_err(failed)?;
            busy.push((index, slot, pid));
        }
        sweep.save()?;
        if busy.is_empty() {
            break;
        }
        let stop = tokio::select! {
            Some(event) = heard.recv() => {
                match event {
                    CellEvent::Line(index, line) => sweep.cells[index].hear(&line),
                    CellEvent::End(index, exit_code) => {
                        sweep.cells[index].end(exit_code);
                        sweep.tell(index);
                        if let Some(at) = busy.iter().position(|(cell, ..)| *cell == index) {
                            free.push_back(busy.remove(at).1);
                        }
                        finder.iter_mut().for_each(Finder::hurry);
                    }
                }
                false
            }
            slots = more(&mut finder, &sweep.slots), if !stopping && !open.is_empty() => {
                free.extend(sweep.slots.len()..sweep.slots.len() + slots.len());
                sweep.add(slots);
                false
            }
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
        };
        if stop && requests.is_new(Instant::now()) {
            if !stopping {
                stderr::line("stopping the runs of the sweep cleanly; a second signal kills them");
            }
            stopping = true;
            for (_, _, pid) in &busy {
                // SAFETY: kill takes two numbers. The child leads a group of its own.
                unsafe { libc::kill(-(*pid as i32), libc::SIGTERM) };
            }
        }
    }
    sweep.print();
    if stopping {
        stderr::line(&format!("hint: `rankdeck queue {} --resume` goes on with it", sweep.name));
        return Ok(code::INTERRUPTED);
    }
    let bad = sweep.cells.iter().any(|cell| cell.state != CellState::Succeeded);
    Ok(if bad { code::FAILED } else { code::SUCCESS })
}

/// Slots of GPUs that others have left; waits for ever where the sweep asks for none.
async fn more(finder: &mut Option<Finder>, known: &[Slot]) -> Vec<Slot> {
    match finder {
        Some(finder) => finder.found(known).await,
        None => std::future::pending().await,
    }
}

impl Sweep {
    /// What looks for GPUs when an earlier process of this sweep has begun it.
    fn finder(&self) -> Result<Option<Finder>, Failure> {
        let has = |word: &str| self.arguments.iter().any(|other| other == word);
        if self.gpus_per_run.is_none() || has("--slurm") {
            return Ok(None);
        }
        let at = self.arguments.iter().position(|word| word == "--hosts");
        let named = at.and_then(|at| self.arguments.get(at + 1));
        let mut hosts = load_hosts(&named.map_or(HostsSource::Here, |text| HostsSource::parse(text)))?;
        hosts.retain(|host| self.hosts.contains(&host.name));
        let host_keys = HostKeyArgs { accept_new_host_keys: has("--accept-new-host-keys") };
        Ok(Finder::new(hosts, host_keys, self.gpus_per_run))
    }

    fn add(&mut self, slots: Vec<Slot>) {
        for slot in &slots {
            let gpus: Vec<String> = slot.gpus.iter().map(u32::to_string).collect();
            stderr::line(&format!("{}: GPU {} is free now", slot.hosts.join(", "), gpus.join(", ")));
        }
        self.slots.extend(slots);
    }

    fn folder(&self) -> PathBuf {
        Path::new(RUNS).join(&self.name)
    }

    /// The cells that are to be begun, or gone on with.
    fn open(&self) -> VecDeque<usize> {
        let over = |cell: &Cell| matches!(cell.state, CellState::Succeeded | CellState::Failed);
        (0..self.cells.len()).filter(|index| !over(&self.cells[*index])).collect()
    }

    /// The next cell that may begin, and its slot. One that has begun before goes on where it was: its run
    /// keeps its hosts and GPUs.
    fn next(&self, open: &mut VecDeque<usize>, free: &mut VecDeque<usize>) -> Option<(usize, usize)> {
        let may = |cell: &usize| match self.cells[*cell].slot {
            Some(slot) => free.contains(&slot),
            None => !free.is_empty(),
        };
        let cell = open.remove(open.iter().position(may)?)?;
        let slot = self.cells[cell].slot.or_else(|| free.front().copied())?;
        free.retain(|other| *other != slot);
        Some((cell, slot))
    }

    fn save(&self) -> Result<(), Failure> {
        let path = self.folder().join("sweep.json");
        let temporary = path.with_extension("json.new");
        let written = serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|bytes| std::fs::write(&temporary, bytes))
            .and_then(|()| std::fs::rename(&temporary, &path));
        written.map_err(|error| {
            Failure::failed(format!("failed to write {}: {error}", path.display())).hint("is the disk full?")
        })
    }

    fn tell(&self, index: usize) {
        let cell = &self.cells[index];
        let run = cell.run.as_deref().unwrap_or("(did not begin)");
        let why = if cell.reason.is_empty() { String::new() } else { format!(": {}", cell.reason) };
        let text = format!(
            "{}/{} {run} {} {}{why}",
            index + 1,
            self.cells.len(),
            cell.sets.join(" "),
            cell.state.name()
        );
        stderr::line(&clean(&text));
    }

    /// One table of all variants, and the cells that did not succeed.
    fn print(&self) {
        let of = |state| self.cells.iter().filter(|cell| cell.state == state).count();
        let states = [
            CellState::Succeeded,
            CellState::Failed,
            CellState::Stopped,
            CellState::Running,
            CellState::Waiting,
        ];
        let told: Vec<String> = states
            .into_iter()
            .filter(|state| of(*state) > 0)
            .map(|state| format!("{} {}", of(state), state.name()))
            .collect();
        // Nobody looks at runs whose sweep was killed.
        let lost = of(CellState::Running) > 0 && !is_held(&self.folder());
        let note = if lost { "; no process goes on with it: `--resume` does" } else { "" };
        print::stdout(&format!("{}: {}{note}", self.name, told.join(", ")));
        let mut variants: Vec<String> = Vec::new();
        for cell in &self.cells {
            let variant = cell.variant();
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        let header =
            ["VARIANT", "RUNS", "IQM", "95 % INTERVAL", "LEAST", "MOST", "STEPS"].map(str::to_owned).to_vec();
        let rows = variants.into_iter().map(|variant| {
            let cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.variant() == variant).collect();
            // A run that failed has no score to be compared by.
            let over: Vec<&&Cell> = cells.iter().filter(|cell| cell.state == CellState::Succeeded).collect();
            let scores: Vec<f64> = over.iter().filter_map(|cell| cell.score()).collect();
            let number = |value: Option<f64>| value.map_or(NONE.to_owned(), |value| format!("{value:.2}"));
            let steps = cells.iter().map(|cell| cell.env_step).max().unwrap_or(0);
            vec![
                clean(&variant),
                format!("{}/{}", over.len(), cells.len()),
                number(interquartile_mean(&scores)),
                bootstrap_interval(&scores)
                    .map_or(NONE.to_owned(), |(low, high)| format!("{low:.2} to {high:.2}")),
                number(scores.iter().copied().reduce(f64::min)),
                number(scores.iter().copied().reduce(f64::max)),
                count(steps),
            ]
        });
        print::stdout(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_do_not_go_on_with_one_sweep() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_held(folder.path()));
        // The lock is that of the open file, not of the process.
        let lock = lock_of(folder.path()).unwrap();
        lock.try_lock().unwrap();
        assert!(is_held(folder.path()));
        drop(lock);
        assert!(!is_held(folder.path()) && !is_held(&folder.path().join("none")));
    }

    #[test]
    fn a_run_that_goes_on_waits_for_its_own_slot() {
        let cell = |slot| Cell { slot, ..Cell::default() };
        let sweep = Sweep {
            slots: vec![Slot::default(); 2],
            cells: vec![cell(Some(1)), cell(Some(1)), cell(None)],
            ..Sweep::default()
        };
        let (mut open, mut free) = (sweep.open(), VecDeque::from([0, 1]));
        assert_eq!(sweep.next(&mut open, &mut free), Some((0, 1)));
        assert_eq!(sweep.next(&mut open, &mut free), Some((2, 0)), "the second one waits for slot 1");
        assert_eq!(sweep.next(&mut open, &mut free), None);
        free.push_back(1);
        assert_eq!(sweep.next(&mut open, &mut free), Some((1, 1)));
    }
}
