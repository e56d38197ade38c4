//! Sweeps: many runs, called trials, of one experiment (`--seeds`, `--sweep`, `--cells`), as many in parallel as the hosts
//! allow.
//!
//! Owner: the process that started the sweep. Each trial is an ordinary run with its own console below this
//! one, so that it can be attached, stopped and restarted like any other. The state is stored in
//! `sweep.json`.
//!
//! - A failed trial stops no other.
//! - An interrupted sweep resumes: finished trials stay, running ones are attached, the others are started.

mod slots;

use crate::app::replace_file::replace_file;
use crate::app::signals::StopRequests;
use crate::app::stderr;
use crate::cli::args::promises::RequiredPromises;
use crate::cli::args::values::MAX_TRIALS;
use crate::cli::args::{HostKeyArgs, RunArgs};
use crate::cli::support::run_index::{load_hosts, own_binary};
use crate::cli::support::run_name::{self, NameError, NamedRun, RunAction};
use crate::cli::support::run_name::{RUNS, new_run_id};
use crate::cli::support::{Failure, child, code, contract, locate, print};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_core::compare::{ComparedRun, equal_results};
use rankdeck_core::compare::{below, bootstrap_interval, interquartile_mean};
use rankdeck_proto::{folders, regular, trust};
use rankdeck_types::experiment::{Experiment, LaunchConfig};
use rankdeck_types::words::{NONE, clean, count, fixed, plural};
use rankdeck_types::{hidden, override_key, quote};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slots::{FreeGpuFinder, TrialSlot};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A sweep, as stored in its file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) name: String,
    /// Name of its runs, before their number.
    title: String,
    /// The experiment file.
    experiment: PathBuf,
    /// Arguments of every trial: `--hosts`, `--set`, ...
    arguments: Vec<String>,
    /// Names of its hosts, with or without a slot.
    #[serde(default)]
    hosts: Vec<String>,
    /// Where trials can run in parallel.
    slots: Vec<TrialSlot>,
    /// In the order in which they start.
    #[serde(rename = "cells")]
    pub(crate) trials: Vec<Trial>,
    /// GPUs of each slot that is still to be found.
    #[serde(default)]
    gpus_per_run: Option<u32>,
    /// Succeeded trials with equal results, in groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    equal: Vec<Vec<usize>>,
}

/// Runs the sweep of the arguments; `None` for a single run.
pub(crate) async fn run(hosts_from: &HostsSource, args: &RunArgs) -> Result<Option<u8>, Failure> {
    let Some(trials) = trials(args)? else { return Ok(None) };
    let Some(path) = args.subject.experiment.clone() else {
        return Err(Failure::usage("a sweep needs an experiment file")
            .hint("`rankdeck run EXPERIMENT.toml --seeds 1..5`"));
    };
    let source = ExperimentSource::File(path.clone());
    let experiment = rankdeck_config::load_experiment(&source, &args.set)?;
    // A wrong value is reported before anything runs.
    let (mut launches, mut all): (Vec<(Experiment, RequiredPromises)>, Vec<Experiment>) =
        (Vec::new(), Vec::new());
    for trial in &trials {
        let sets = [&args.set[..], trial].concat();
        let own = rankdeck_config::load_experiment(&source, &sets).map_err(|mut found| {
            // `--set` was validated before.
            found.0.iter_mut().filter(|one| one.file == "--set").for_each(|one| one.file = "--sweep".into());
            found
        })?;
        let needs = RequiredPromises::of_sets("run", &sets);
        let is_known = |(known, of): &(Experiment, RequiredPromises)| {
            (&known.launch, &known.args, of) == (&own.launch, &own.args, &needs)
        };
        if !launches.iter().any(is_known) {
            launches.push((own.clone(), needs));
        }
        all.push(own);
    }
    let name = args.name.clone().unwrap_or_else(|| experiment.run.name.clone());
    let mut hosts = load_hosts(hosts_from)?;
    for (experiment, needs) in &launches {
        contract::demand(experiment, &source, &hosts, needs)?;
    }
    different(&all, &trials)?;
    hosts.retain(|host| !args.exclude.contains(&host.name));
    let slots = slots::of(&hosts, args).await?;
    let finder = FreeGpuFinder::new(hosts.clone(), args.host_keys.clone(), args.gpus_per_run);
    let mut arguments = words_of(hosts_from);
    arguments.extend(args.subject.nproc.iter().flat_map(|nproc| ["--nproc".to_owned(), nproc.to_string()]));
    arguments.extend(args.subject.venv.iter().flat_map(|venv| ["--venv".to_owned(), venv.clone()]));
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
        trials: trials.into_iter().map(|sets| Trial { sets, ..Trial::default() }).collect(),
        gpus_per_run: args.gpus_per_run,
        equal: Vec::new(),
    };
    let runs = Path::new(RUNS);
    trust::check_run(runs, &sweep.folder()).map_err(Failure::place)?;
    let created = folders::create_runs(runs).and_then(|()| folders::create_private(&sweep.folder()));
    created.map_err(|why| Failure::failed(why.error).hint("run the command in a writable directory"))?;
    stderr::line(&format!(
        "sweep {}: {}, {} at a time; show it with `rankdeck queue`",
        sweep.name,
        plural(sweep.trials.len(), "run"),
        sweep.slots.len()
    ));
    carry_on(sweep, finder).await.map(Some)
}

/// Returns the options that select the same hosts.
fn words_of(hosts: &HostsSource) -> Vec<String> {
    let named = |text: String| vec!["--hosts".to_owned(), text];
    match hosts {
        HostsSource::File(path) => named(path.display().to_string()),
        HostsSource::Named(names) => named(names.join(",")),
        HostsSource::Here => Vec::new(),
        HostsSource::Slurm { defaults, jobs } => {
            [named(defaults.display().to_string()), vec![jobs.option()]].concat()
        }
        HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
            words_of(inner)
        }
    }
}

/// Returns the sweeps of a directory, newest last.
pub(crate) fn found(runs: &Path) -> Vec<Sweep> {
    let folders = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut sweeps: Vec<Sweep> = folders
        .filter(|folder| folder.file_name().to_string_lossy().starts_with("sweep-"))
        .filter_map(|folder| {
            serde_json::from_str(&regular::read_text(&folder.path().join("sweep.json")).ok()?).ok()
        })
        .collect();
    sweeps.sort_by(|a, b| a.name.cmp(&b.name));
    sweeps
}

/// Finds the sweep that a name selects ([`run_name::resolve`]): its name and its started runs. `None` if no
/// sweep of `runs/` matches.
pub(crate) fn named(name: &str, action: RunAction) -> Result<Option<(String, Vec<String>)>, Failure> {
    if !name.starts_with("sweep-") {
        return Ok(None);
    }
    let mut all = found(Path::new(RUNS));
    all.sort_by_cached_key(|sweep| Reverse(run_name::launch_order(&sweep.name, SystemTime::UNIX_EPOCH)));
    let named: Vec<NamedRun> =
        all.iter().map(|sweep| NamedRun { name: &sweep.name, is_active: false }).collect();
    match run_name::resolve(&named, Some(name), action) {
        Ok(selected) => {
            let sweep = all.swap_remove(selected.index);
            let runs = sweep.trials.into_iter().filter_map(|trial| trial.run).collect();
            Ok(Some((sweep.name, runs)))
        }
        Err(NameError::Ambiguous(found)) => {
            Err(Failure::usage(format!("`{name}` matches {} sweeps", found.len()))
                .hint("pass the full name; list sweeps with `rankdeck queue`"))
        }
        Err(_) => Ok(None),
    }
}

/// Returns the sweeps of `runs/` that are not running and have no run left once the `gone` ones are removed.
pub(crate) fn emptied(gone: &dyn Fn(&str) -> bool) -> Vec<String> {
    let is_emptied = |sweep: &Sweep| {
        let runs: Vec<&str> = sweep.trials.iter().filter_map(|trial| trial.run.as_deref()).collect();
        let all = runs.iter().all(|run| gone(run) || !Path::new(RUNS).join(run).exists());
        all && runs.iter().any(|run| gone(run)) && !is_held(&sweep.folder())
    };
    found(Path::new(RUNS)).into_iter().filter(is_emptied).map(|sweep| sweep.name).collect()
}

/// Opens the lock file of a sweep.
fn lock_of(folder: &Path) -> std::io::Result<std::fs::File> {
    trust::open(&folder.join("lock"), std::fs::OpenOptions::new().create(true).append(true))
}

/// Whether a process runs the sweep of this directory.
fn is_held(folder: &Path) -> bool {
    lock_of(folder).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Locks a sweep for this process; two processes would start each trial twice.
fn hold(sweep: &Sweep) -> Result<std::fs::File, Failure> {
    let lock = lock_of(&sweep.folder()).map_err(|error| {
        Failure::failed(format!("cannot lock {}: {error}", sweep.folder().display()))
            .hint("run the command in a writable directory")
    })?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Failure::usage(format!("{} is running in another process", sweep.name))
                .hint("show its progress with `rankdeck queue`; ctrl-c in that terminal stops it"))
        }
        // Some network file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Starts pending trials while slots are free, until all are finished or the sweep is interrupted.
pub(crate) async fn carry_on(mut sweep: Sweep, mut finder: Option<FreeGpuFinder>) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("failed to run the sweep: {error}")).hint("try again")
    };
    let _lock = hold(&sweep)?;
    let binary = own_binary()?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut requests = StopRequests::default();
    let (events, mut inbox) = mpsc::channel(256);
    let mut open = sweep.open();
    let mut free: VecDeque<usize> = (0..sweep.slots.len()).collect();
    let mut busy: Vec<(usize, usize, u32)> = Vec::new();
    let mut stopping = false;
    loop {
        while !stopping && let Some((index, slot)) = sweep.next(&mut open, &mut free) {
            let pid = sweep.start(index, slot, &binary, &events).map_err(failed)?;
            busy.push((index, slot, pid));
        }
        sweep.save()?;
        if busy.is_empty() {
            break;
        }
        let stop = tokio::select! {
            Some(event) = inbox.recv() => {
                match event {
                    TrialEvent::Line(index, line) => sweep.trials[index].on_line(&line),
                    TrialEvent::End(index, exit_code) => {
                        sweep.trials[index].end(exit_code);
                        sweep.print_trial(index);
                        if let Some(at) = busy.iter().position(|(trial, ..)| *trial == index) {
                            free.push_back(busy.remove(at).1);
                        }
                        finder.iter_mut().for_each(FreeGpuFinder::hurry);
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
                stderr::line("stopping the trials cleanly; a second signal kills them");
            }
            stopping = true;
            for (_, _, pid) in &busy {
                // SAFETY: kill takes two numbers. The child leads a group of its own.
                unsafe { libc::kill(-(*pid as i32), libc::SIGTERM) };
            }
        }
    }
    sweep.equal = sweep.equal_trials();
    sweep.save()?;
    sweep.print();
    if stopping {
        stderr::line(&format!("hint: continue with `rankdeck queue {} --resume`", sweep.name));
        return Ok(code::INTERRUPTED);
    }
    let bad = sweep.trials.iter().any(|trial| trial.state != TrialState::Succeeded);
    Ok(if bad { code::FAILED } else { code::SUCCESS })
}

/// Waits for slots of GPUs that became free; pends forever if the sweep does not use GPU slots.
async fn more(finder: &mut Option<FreeGpuFinder>, known: &[TrialSlot]) -> Vec<TrialSlot> {
    match finder {
        Some(finder) => finder.found(known).await,
        None => std::future::pending().await,
    }
}

impl Sweep {
    /// Returns the GPU finder of a sweep that an earlier process started.
    pub(crate) fn finder(&self) -> Result<Option<FreeGpuFinder>, Failure> {
        let has = |word: &str| self.arguments.iter().any(|other| other == word);
        let in_slurm = self.arguments.iter().any(|word| word.split('=').next() == Some("--slurm"));
        if self.gpus_per_run.is_none() || in_slurm {
            return Ok(None);
        }
        let at = self.arguments.iter().position(|word| word == "--hosts");
        let named = at.and_then(|at| self.arguments.get(at + 1));
        let mut hosts = load_hosts(&named.map_or(HostsSource::Here, |text| HostsSource::parse(text)))?;
        hosts.retain(|host| self.hosts.contains(&host.name));
        let host_keys = HostKeyArgs { accept_new_host_keys: has("--accept-new-host-keys") };
        Ok(FreeGpuFinder::new(hosts, host_keys, self.gpus_per_run))
    }

    fn add(&mut self, slots: Vec<TrialSlot>) {
        for slot in &slots {
            let gpus: Vec<String> = slot.gpus.iter().map(u32::to_string).collect();
            stderr::line(&format!("{}: GPU {} is free now", slot.hosts.join(", "), gpus.join(", ")));
        }
        self.slots.extend(slots);
    }

    fn folder(&self) -> PathBuf {
        Path::new(RUNS).join(&self.name)
    }

    /// Returns the trials to start or resume.
    fn open(&self) -> VecDeque<usize> {
        let over = |trial: &Trial| matches!(trial.state, TrialState::Succeeded | TrialState::Failed);
        (0..self.trials.len()).filter(|index| !over(&self.trials[*index])).collect()
    }

    /// Returns the next trial and its slot. A trial that ran before keeps its slot, since its run keeps its
    /// hosts and GPUs.
    fn next(&self, open: &mut VecDeque<usize>, free: &mut VecDeque<usize>) -> Option<(usize, usize)> {
        let may = |trial: &usize| match self.trials[*trial].slot {
            Some(slot) => free.contains(&slot),
            None => !free.is_empty(),
        };
        let trial = open.remove(open.iter().position(may)?)?;
        let slot = self.trials[trial].slot.or_else(|| free.front().copied())?;
        free.retain(|other| *other != slot);
        Some((trial, slot))
    }

    /// Starts the console of a trial: a new run, or one that an earlier process of this sweep started.
    fn start(
        &mut self,
        index: usize,
        slot: usize,
        binary: &Path,
        events: &mpsc::Sender<TrialEvent>,
    ) -> std::io::Result<u32> {
        let own = self.slots[slot].clone();
        let others = self.hosts.iter().filter(|name| !own.hosts.contains(name));
        let gpus: Vec<String> = own.gpus.iter().map(u32::to_string).collect();
        let trial = &mut self.trials[index];
        let at = self.arguments.iter().position(|word| word == "--hosts");
        let hosts = at.and_then(|at| self.arguments.get(at..at + 2)).unwrap_or_default();
        let attach = |run: &str| [&["attach", run, "--json"].map(str::to_owned), hosts].concat();
        let (program, words) = match (&trial.run, trial.state) {
            (Some(run), TrialState::Running) => (binary, attach(run)),
            // It was stopped with the sweep: it resumes from its latest checkpoint, if there is one.
            (Some(run), TrialState::Stopped) => {
                let again = [&["restart", run, "--yes"].map(str::to_owned), hosts].concat();
                let (again, attach) = (shell(binary, &again), shell(binary, &attach(run)));
                (Path::new("/bin/sh"), vec!["-c".to_owned(), format!("{again} >&2 && exec {attach}")])
            }
            _ => {
                let mut words = vec!["run".to_owned(), self.experiment.display().to_string()];
                words.push("--json".to_owned());
                words.extend(self.arguments.iter().cloned());
                // Two runs started in the same second would get the same name.
                words.extend(["--name".to_owned(), format!("{}-{}", self.title, index + 1)]);
                words.extend(["--trial".to_owned(), format!("{}/{}", self.title, index + 1)]);
                words.extend(trial.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
                if !gpus.is_empty() {
                    words.extend(["--gpus".to_owned(), gpus.join(",")]);
                }
                words.extend(others.flat_map(|host| ["--exclude".to_owned(), host.clone()]));
                (binary, words)
            }
        };
        let log = Path::new(RUNS).join(&self.name).join(format!("cell{}.log", index + 1));
        let log = trust::open(&log, std::fs::OpenOptions::new().append(true).create(true))?;
        // In its own process group: a signal of the terminal reaches this process only, which forwards it.
        let mut child = child::spawn(program, words, |command| {
            command.stdout(Stdio::piped()).stderr(log).process_group(0);
        })?;
        let pid = child.id().unwrap_or_default();
        trial.state = TrialState::Running;
        trial.slot = Some(slot);
        let lines = child.stdout.take();
        let events = events.clone();
        tokio::spawn(async move {
            if let Some(lines) = lines {
                let mut lines = BufReader::new(lines).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
                    let kind = value["kind"].as_str();
                    if matches!(kind, Some("run_started" | "progress" | "metrics" | "eval" | "run_finished"))
                    {
                        let _ = events.send(TrialEvent::Line(index, value)).await;
                    }
                }
            }
            let exit_code = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(-1);
            let _ = events.send(TrialEvent::End(index, exit_code)).await;
        });
        Ok(pid)
    }

    fn save(&self) -> Result<(), Failure> {
        let path = self.folder().join("sweep.json");
        let written = serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|bytes| replace_file(&path, &bytes, 0o600));
        written.map_err(|error| {
            Failure::failed(format!("failed to write {}: {error}", path.display()))
                .hint("the disk may be full: check with `df -h`")
        })
    }

    fn print_trial(&self, index: usize) {
        let trial = &self.trials[index];
        let run = trial.run.as_deref().unwrap_or("(not started)");
        let why = if trial.reason.is_empty() { String::new() } else { format!(": {}", trial.reason) };
        let text = format!(
            "{}/{} {run} {} {}{why}",
            index + 1,
            self.trials.len(),
            shown(&trial.sets),
            trial.state.name()
        );
        stderr::line(&clean(&text));
    }

    /// The sweep and its trials as a JSON line.
    pub(crate) fn as_json(&self) -> Value {
        let trial = |trial: &Trial| {
            json!({
                "run": trial.run,
                "state": trial.state.name(),
                "set": hidden::words(trial.sets.iter().map(String::as_str)),
                "exit_code": trial.exit_code,
                "reason": trial.reason,
                "env_step": trial.env_step,
                "score": trial.score(),
            })
        };
        json!({
            "kind": "sweep",
            "sweep": self.name,
            "held": is_held(&self.folder()),
            "trials": self.trials.iter().map(trial).collect::<Vec<_>>(),
            "equal": self.equal,
        })
    }

    /// Compares the recordings of succeeded trials with the same result.
    fn equal_trials(&self) -> Vec<Vec<usize>> {
        let mut alike: BTreeMap<(Option<u64>, u64), Vec<usize>> = BTreeMap::new();
        for (index, trial) in self.trials.iter().enumerate() {
            if trial.state == TrialState::Succeeded {
                alike.entry((trial.score().map(f64::to_bits), trial.env_step)).or_default().push(index);
            }
        }
        let mut left = MOST_COMPARED;
        let mut found = Vec::new();
        for trials in alike.into_values().filter(|trials| trials.len() > 1) {
            let trials: Vec<usize> = trials.into_iter().take(left).collect();
            left -= trials.len();
            let read: Vec<(usize, ComparedRun)> = trials
                .into_iter()
                .filter_map(|index| Some((index, recorded(self.trials.get(index)?.run.as_deref()?)?)))
                .collect();
            let (indices, runs): (Vec<usize>, Vec<ComparedRun>) = read.into_iter().unzip();
            let groups = equal_results(&runs).into_iter();
            found.extend(groups.map(|group| group.into_iter().map(|at| indices[at]).collect::<Vec<_>>()));
        }
        found
    }

    /// Describes trials with equal results.
    fn equal_line(&self, group: &[usize]) -> String {
        let trials: Vec<&Trial> = group.iter().filter_map(|index| self.trials.get(*index)).collect();
        let seeds: Option<Vec<&str>> = trials.iter().map(|trial| trial.seed()).collect();
        let is_one = trials.windows(2).all(|pair| pair[0].variant() == pair[1].variant());
        match seeds.filter(|_| is_one) {
            Some(seeds) => {
                format!(
                    "warning: seeds {} gave equal results: check how the program uses the seed",
                    and(&seeds)
                )
            }
            None => {
                let numbers: Vec<String> = group.iter().map(|index| (index + 1).to_string()).collect();
                let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
                let labels: Vec<String> = trials.iter().map(|trial| shown(&trial.sets)).collect();
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                format!("warning: trials {} gave equal results: {}", and(&numbers), and(&labels))
            }
        }
    }

    /// Prints one table of all variants, and the trials that did not succeed.
    pub(crate) fn print(&self) {
        let of = |state| self.trials.iter().filter(|trial| trial.state == state).count();
        let states = [
            TrialState::Succeeded,
            TrialState::Failed,
            TrialState::Stopped,
            TrialState::Running,
            TrialState::Waiting,
        ];
        let counts: Vec<String> = states
            .into_iter()
            .filter(|state| of(*state) > 0)
            .map(|state| format!("{} {}", of(state), state.name()))
            .collect();
        // The process of the sweep was killed.
        let lost = of(TrialState::Running) > 0 && !is_held(&self.folder());
        let note = if lost { "; interrupted: continue with `--resume`" } else { "" };
        print::stdout(&format!("{}: {}{note}", self.name, counts.join(", ")));
        let mut variants: Vec<Vec<&str>> = Vec::new();
        for trial in &self.trials {
            let variant = trial.variant();
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        let header = ["VARIANT", "TRIALS", "IQM", "95% INTERVAL", "LEAST", "MOST", "STEPS"]
            .map(str::to_owned)
            .to_vec();
        let rows = variants.into_iter().map(|variant| {
            let trials: Vec<&Trial> = self.trials.iter().filter(|trial| trial.variant() == variant).collect();
            // A failed run has no score.
            let over: Vec<&&Trial> =
                trials.iter().filter(|trial| trial.state == TrialState::Succeeded).collect();
            let scores: Vec<f64> = over.iter().filter_map(|trial| trial.score()).collect();
            let number = |value: Option<f64>| value.map_or(NONE.to_owned(), |value| fixed(value, 2));
            let steps = trials.iter().map(|trial| trial.env_step).max().unwrap_or(0);
            vec![
                label(&variant),
                format!("{}/{}", over.len(), trials.len()),
                number(interquartile_mean(&scores)),
                bootstrap_interval(&scores).map_or(NONE.to_owned(), |(low, high)| {
                    format!("{} to {}", fixed(low, 2), fixed(high, 2))
                }),
                number(scores.iter().copied().reduce(f64::min)),
                number(scores.iter().copied().reduce(f64::max)),
                count(steps),
            ]
        });
        print::text(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
        for group in &self.equal {
            print::stdout(&self.equal_line(group));
        }
    }
}

/// Most recordings that a sweep compares at its end.
const MOST_COMPARED: usize = 128;

/// Reads the recording of a trial's run.
fn recorded(run: &str) -> Option<ComparedRun> {
    let found = locate::recording_at(&Path::new(RUNS).join(run).display().to_string())?;
    let (model, at) = locate::open_recording(&found).ok()?.last().ok()?;
    Some(ComparedRun::from_model(run, &model, at))
}

/// `a, b and c`.
fn and(items: &[&str]) -> String {
    match items.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => items.concat(),
    }
}

/// What a trial gives its program. Trials that agree in it are the same run.
fn program_view(own: &Experiment) -> Option<String> {
    let LaunchConfig {
        command,
        code,
        exclude,
        include,
        resume,
        checkpoints: _,
        max_copy_gb: _,
        env,
        pass_env,
        slurm_env,
        keep_launcher,
        rank_variables,
        group_secret,
        threads,
        bind: _,
        on_disconnect: _,
        lease_s: _,
        stop_grace_s: _,
        stop_limit_s: _,
        stop_signal: _,
        master_addr,
        master_port,
    } = own.filled_launch();
    let files = json!([code, exclude, include]);
    let variables = json!([env, pass_env, slurm_env, keep_launcher, rank_variables, group_secret, threads]);
    let watch = [own.watch.python_hook, own.watch.check_collectives, own.watch.fingerprint_weights];
    let rest = json!([master_addr, master_port, own.run.seed, watch]);
    (!command.is_empty()).then(|| json!([command, resume, files, variables, rest]).to_string())
}

/// Rejects trials that are the same run, although their overrides differ.
fn different(all: &[Experiment], trials: &[Vec<String>]) -> Result<(), Failure> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, view) in all.iter().enumerate().filter_map(|(index, own)| Some((index, program_view(own)?))) {
        let Some(first) = seen.insert(view, index) else { continue };
        let (one, other) = (&trials[first], &trials[index]);
        let own = other.iter().filter(|set| !one.contains(set));
        let keys: BTreeSet<String> = own.map(|set| override_key::key(set)).collect();
        let keys: Vec<String> = keys.into_iter().map(|key| format!("`{key}`")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!(
            "trials {} and {} would be the same run: {} does not reach the program",
            first + 1,
            index + 1,
            and(&keys)
        ))
        .hint(
            "sweep a key that reaches the program: `args.KEY` (its `--KEY`), `launch.env.NAME`, or a key in \
             braces in `launch.command`",
        ));
    }
    Ok(())
}

/// A trial of a sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Its overrides, `KEY=VALUE`.
    sets: Vec<String>,
    state: TrialState,
    /// Its slot in the sweep.
    #[serde(default)]
    slot: Option<usize>,
    /// Its run, once started.
    run: Option<String>,
    /// Exit code of its console.
    exit_code: Option<i32>,
    /// Why it ended.
    reason: String,
    /// Environment steps so far.
    env_step: u64,
    /// Mean return of its latest evaluation.
    last_eval: Option<f64>,
    /// Mean return of its last 100 training episodes.
    last_return: Option<f64>,
}

impl Trial {
    /// Handles a JSON line of its console.
    fn on_line(&mut self, line: &Value) {
        let number = |name: &str| line[name].as_f64();
        match line["kind"].as_str() {
            Some("run_started") => self.run = line["run"].as_str().map(str::to_owned),
            Some("progress") => {
                self.env_step = line["env_step"].as_u64().unwrap_or(self.env_step);
                self.last_return = number("return_last_100").or(number("return_mean")).or(self.last_return);
            }
            Some("metrics") => {
                let shown = line["progress"]["done"].as_u64();
                self.env_step = line["env_step"].as_u64().or(shown).unwrap_or(self.env_step);
                self.last_return = number("return_mean").or(self.last_return);
            }
            Some("eval") => self.last_eval = number("return_mean"),
            Some("run_finished") => {
                self.reason = line["reason"].as_str().unwrap_or_default().to_owned();
            }
            _ => {}
        }
    }

    fn end(&mut self, exit_code: i32) {
        self.exit_code = Some(exit_code);
        self.state = match exit_code {
            0 => TrialState::Succeeded,
            130 | 137 => TrialState::Stopped,
            _ => TrialState::Failed,
        };
    }

    /// Reopens a failed trial: it resumes from its latest checkpoint, or starts if it never did.
    pub(crate) fn reopen(&mut self) {
        if self.state == TrialState::Failed {
            self.state = if self.run.is_some() { TrialState::Stopped } else { TrialState::Waiting };
        }
    }

    /// The score of the trial.
    fn score(&self) -> Option<f64> {
        self.last_eval.or(self.last_return)
    }

    /// Its seed, if the sweep sets it.
    fn seed(&self) -> Option<&str> {
        let own = self.sets.iter().find(|set| is_seed(set))?;
        override_key::parse(own).map(|parsed| parsed.value.trim())
    }

    /// Its overrides without the seed.
    fn variant(&self) -> Vec<&str> {
        self.sets.iter().map(String::as_str).filter(|set| !is_seed(set)).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TrialState {
    #[default]
    Waiting,
    Running,
    Succeeded,
    Failed,
    Stopped,
}

impl TrialState {
    fn name(self) -> &'static str {
        match self {
            TrialState::Waiting => "waiting",
            TrialState::Running => "running",
            TrialState::Succeeded => "succeeded",
            TrialState::Failed => "failed",
            TrialState::Stopped => "stopped",
        }
    }
}

/// An event of a trial's console.
enum TrialEvent {
    Line(usize, Value),
    End(usize, i32),
}

fn is_seed(set: &str) -> bool {
    override_key::key(set) == "run.seed"
}

/// Overrides for readers.
fn shown(sets: &[String]) -> String {
    clean(&hidden::words(sets.iter().map(String::as_str)).join(" "))
}

/// A variant for readers.
fn label(variant: &[&str]) -> String {
    match variant.is_empty() {
        true => "(unchanged)".to_owned(),
        false => clean(&hidden::words(variant.iter().copied()).join(" ")),
    }
}

/// Quotes a command for the shell.
fn shell(binary: &Path, words: &[String]) -> String {
    let binary = binary.display().to_string();
    quote::words(std::iter::once(binary.as_str()).chain(words.iter().map(String::as_str)))
}

/// Returns the trials of a sweep; `None` for a single run.
fn trials(args: &RunArgs) -> Result<Option<Vec<Vec<String>>>, Failure> {
    if args.seeds.is_none() && args.sweep.is_empty() && args.cells.is_none() {
        return Ok(None);
    }
    let mut trials = grid(&args.sweep.iter().map(|axis| axis.0.clone()).collect::<Vec<_>>());
    if let Some(path) = &args.cells {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read {}: {error}", path.display()))
                .hint("write one trial per line, such as `learn.gamma=0.98 run.seed=3`")
        })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let own: Vec<Vec<String>> =
            lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        trials =
            own.iter().flat_map(|own| trials.iter().map(|trial| [&own[..], &trial[..]].concat())).collect();
    }
    if let Some(n) = args.random {
        trials = sampled(trials, n);
    }
    if let Some(seeds) = &args.seeds {
        let with = |trial: &Vec<String>, seed: &u64| [&trial[..], &[format!("run.seed={seed}")]].concat();
        let all =
            trials.iter().flat_map(|trial| seeds.0.iter().map(|seed| with(trial, seed)).collect::<Vec<_>>());
        trials = all.take(MAX_TRIALS + 1).collect();
    }
    distinct(&trials, &args.set)?;
    match trials.len() {
        0 => Err(Failure::usage("the sweep is empty").hint("pass at least one value")),
        n if n > MAX_TRIALS => Err(Failure::usage(format!("more than {} trials", count(MAX_TRIALS as u64)))
            .hint("sample N of them with `--random N`")),
        _ => Ok(Some(trials)),
    }
}

/// Rejects a key that is set twice in a trial, and duplicate trials.
fn distinct(trials: &[Vec<String>], sets: &[String]) -> Result<(), Failure> {
    let whole: BTreeSet<String> = sets.iter().flat_map(|set| override_key::keys(set)).collect();
    let mut seen = BTreeSet::new();
    for trial in trials.iter().take(MAX_TRIALS) {
        let mut own = BTreeSet::new();
        for key in trial.iter().flat_map(|set| override_key::keys(set)) {
            if whole.contains(&key) {
                return Err(Failure::usage(format!("`{key}` is set by both --set and the sweep"))
                    .hint(format!("remove `--set {key}=...`, or do not sweep `{key}`")));
            }
            if !own.insert(key.clone()) {
                let from =
                    if key == "run.seed" { "--seeds, --sweep and --cells" } else { "--sweep and --cells" };
                return Err(Failure::usage(format!("`{key}` is set twice in one trial: {}", shown(trial)))
                    .hint(format!("set it once in {from}")));
            }
        }
        if !seen.insert(trial) {
            return Err(Failure::usage(format!("two trials are identical: {}", shown(trial)))
                .hint("remove the duplicate; use `--seeds 1..3` for several runs with the same values"));
        }
    }
    Ok(())
}

/// Every combination of the axes; the last one changes fastest.
fn grid(axes: &[Vec<String>]) -> Vec<Vec<String>> {
    axes.iter().fold(vec![Vec::new()], |trials, axis| {
        let longer = |trial: &Vec<String>| {
            axis.iter().map(|set| [&trial[..], std::slice::from_ref(set)].concat()).collect::<Vec<_>>()
        };
        trials.iter().flat_map(longer).take(MAX_TRIALS + 1).collect()
    })
}

/// Samples `n` trials deterministically, in their order.
fn sampled(mut trials: Vec<Vec<String>>, n: usize) -> Vec<Vec<String>> {
    let mut state = 1;
    while trials.len() > n {
        trials.remove(below(&mut state, trials.len()));
    }
    trials
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::values::parse_axis;

    #[test]
    fn sweep_is_locked_by_one_process() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_held(folder.path()));
        // The lock belongs to the open file, not to the process.
        let lock = lock_of(folder.path()).unwrap();
        lock.try_lock().unwrap();
        assert!(is_held(folder.path()));
        drop(lock);
        assert!(!is_held(folder.path()) && !is_held(&folder.path().join("none")));
    }

    #[test]
    fn resumed_trial_waits_for_its_own_slot() {
        let trial = |slot| Trial { slot, ..Trial::default() };
        let sweep = Sweep {
            slots: vec![TrialSlot::default(); 2],
            trials: vec![trial(Some(1)), trial(Some(1)), trial(None)],
            ..Sweep::default()
        };
        let (mut open, mut free) = (sweep.open(), VecDeque::from([0, 1]));
        assert_eq!(sweep.next(&mut open, &mut free), Some((0, 1)));
        assert_eq!(sweep.next(&mut open, &mut free), Some((2, 0)), "the second one waits for slot 1");
        assert_eq!(sweep.next(&mut open, &mut free), None);
        free.push_back(1);
        assert_eq!(sweep.next(&mut open, &mut free), Some((1, 1)));
    }

    #[test]
    fn trial_score_is_evaluation_else_training_return() {
        let mut trial = Trial { sets: vec!["a=1".into(), "run.seed=2".into()], ..Trial::default() };
        trial.on_line(&serde_json::json!({"kind": "run_started", "run": "r"}));
        trial.on_line(&serde_json::json!({"kind": "progress", "env_step": 7, "return_last_100": 3.5, "return_mean": 1.0}));
        assert_eq!((trial.score(), trial.env_step, label(&trial.variant()).as_str()), (Some(3.5), 7, "a=1"));
        trial.on_line(
            &serde_json::json!({"kind": "metrics", "env_step": 9, "return_mean": 4.5, "progress": null}),
        );
        assert_eq!((trial.score(), trial.env_step), (Some(4.5), 9));
        trial.on_line(&serde_json::json!({"kind": "eval", "return_mean": 9.0}));
        trial.end(0);
        assert_eq!(
            (trial.score(), trial.state, trial.run.as_deref()),
            (Some(9.0), TrialState::Succeeded, Some("r"))
        );
        trial.end(2);
        assert_eq!(trial.state, TrialState::Failed);
        trial.end(130);
        assert_eq!(trial.state, TrialState::Stopped);
    }

    #[test]
    fn duplicate_axes_are_refused() {
        let trial = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let check = |trials: &[&str], sets: &[&str]| {
            let trials: Vec<Vec<String>> = trials.iter().map(|text| trial(text)).collect();
            distinct(&trials, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(check(&["a=1 run.seed=1", "a=1 run.seed=2"], &["b=1"]), Ok(()));
        for (trials, sets, word) in [
            (&["run.seed=1"][..], &["run.seed=3"][..], "--set"),
            (&["run.seed=1 run.seed=2"], &[], "run.seed"),
            (&["run.\"seed\"=1"], &["run={seed=3}"], "--set"),
            (&["a=1", "a=2", "a=1"], &[], "a=1"),
        ] {
            let failure = check(trials, sets).unwrap_err();
            assert!(failure.cause.error.contains(word) && !failure.cause.hint.is_empty(), "{failure}");
        }
        let secret = "launch.env.API_TOKEN=hunter2";
        for trials in [vec![secret.to_owned(), secret.to_owned()], vec![format!("{secret} {secret}")]] {
            let trials: Vec<&str> = trials.iter().map(String::as_str).collect();
            let failure = check(&trials, &[]).unwrap_err();
            assert!(failure.cause.error.contains("API_TOKEN"), "{failure}");
            assert!(!failure.to_string().contains("hunter2"), "HIDE-1: {failure}");
        }
        assert_eq!(label(&["a=1", secret]), "a=1 launch.env.API_TOKEN=***");
        assert_eq!(label(&["launch.env.API_KEY=\"two hunter2\""]), "launch.env.API_KEY=***");
    }

    #[test]
    fn trials_that_are_the_same_run_are_refused() {
        let load = |sets: &[&str]| -> Experiment {
            let text = "[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"t.py\", \"{run.note}\"]\n";
            let mut own: Experiment = toml::from_str(text).unwrap();
            own.run.note = Some("n".into());
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            rankdeck_config::change_experiment(&own, &sets).unwrap()
        };
        let check = |sets: [&str; 2]| {
            let all = sets.map(|set| load(&[set]));
            different(&all, &sets.map(|set| vec![set.to_owned()]))
        };
        for sets in [
            ["args.lr=1", "args.lr=2"],
            ["run.seed=1", "run.seed=2"],
            ["run.note=1", "run.note=2"],
            ["launch.threads=1", "launch.threads=2"],
            ["launch.env.A=1", "launch.env.A=2"],
            ["watch.python_hook=true", "watch.python_hook=false"],
        ] {
            assert_eq!(check(sets), Ok(()), "{sets:?}");
        }
        for key in ["run.total_steps", "launch.stop_grace_s", "restart.no_progress", "watch.behind_after_s"] {
            let sets = [format!("{key}=1"), format!("{key}=2")];
            let failure = check([&sets[0], &sets[1]]).unwrap_err();
            assert!(failure.code == code::USAGE && failure.cause.error.contains(key), "{failure}");
        }
    }

    #[test]
    fn equal_trials_are_named_by_seed_or_number() {
        let trial =
            |text: &str| Trial { sets: text.split(' ').map(str::to_owned).collect(), ..Trial::default() };
        let sweep = Sweep {
            trials: vec![trial("a=1 run.seed=1"), trial("a=1 run.seed=2"), trial("a=2 run.seed=2")],
            ..Sweep::default()
        };
        assert!(sweep.equal_line(&[0, 1]).contains("seeds 1 and 2 gave equal results"));
        let other = sweep.equal_line(&[0, 1, 2]);
        assert!(other.contains("trials 1, 2 and 3 gave equal results"), "{other}");
    }

    #[test]
    fn grid_is_complete_and_sampling_is_deterministic() {
        let axis = |text: &str| parse_axis(text).unwrap().0;
        let all = grid(&[axis("a=1,2"), axis("b=3,4,5")]);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0].join(" "), all[5].join(" ")), ("a=1 b=3".into(), "a=2 b=5".into()));
        let some = sampled(all.clone(), 3);
        assert!(
            some.len() == 3
                && some == sampled(all.clone(), 3)
                && some.iter().all(|trial| all.contains(trial))
        );
        assert_eq!(sampled(all.clone(), 9), all);
    }
}
