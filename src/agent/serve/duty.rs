//! The agent's duties: orders, launches, the machine's wishes, the clock, the end.
//!
//! Owner: the loop in `serve`, which calls [`Agent::hear`] and [`Agent::tick`]; nothing here waits. What comes after a rank's end is in `aftermath`.

use crate::inspect;
use crate::manifest::{Manifest, ManifestRank};
use crate::observe::{
    gpu,
    logs::{Batch, Logs},
    metrics::{Follower, Picker},
    sample,
};
use crate::paths::RunPaths;
use crate::proc::{self, Ident};
use crate::serve::{
    Settings,
    console::{Attached, LineStore, Order},
    events::{Audience, Said},
    say, spool,
};
use crate::supervise::{
    cgroup::Cgroup,
    guard::{self, Guard},
    launch_prep,
    lifecycle::{self, Action, Machine},
    oom::OomWatch,
    spawn::{Spawner, Started as Spawned},
    sweep,
};
use crate::timing::Timing;
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, LaunchSpec, RecordEvent, StopMode, Survivor};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::OnDisconnect;
use rankdeck_types::ids::Rank;
use rankdeck_types::plan::ras_address;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long an agent that never launched anything waits for a console.
const UNLAUNCHED_LINGER: Duration = Duration::from_secs(5);

/// Most close looks at once: each is a thread per rank.
const LOOKS: usize = 4;

/// What happened elsewhere.
pub(super) enum News {
    Order(Order),
    Said(Said),
    Prepared(Box<LaunchSpec>, Result<Box<launch_prep::Launch>, String>),
    Spawned(Rank, Spawned),
    Autopsied(Rank, Vec<String>),
    LeftNothing(Rank),
    Proved(Vec<Survivor>, Vec<u32>),
    Measured(RecordEvent),
}

/// The state of an agent; what it lives through is in the machine.
pub(super) struct Agent {
    pub(super) settings: Settings,
    pub(super) timing: Timing,
    pub(super) ident: Ident,
    pub(super) build: String,
    pub(super) started: f64,
    pub(super) machine: Rc<RefCell<Machine>>,
    pub(super) spool: spool::Spool,
    pub(super) spawner: Spawner,
    pub(super) logs: Logs,
    pub(super) lines: Rc<RefCell<LineStore>>,
    pub(super) subjects: sample::Subjects,
    pub(super) audience: Audience,
    pub(super) gpus: gpu::Gpus,
    pub(super) attached: Rc<RefCell<BTreeMap<u64, Attached>>>,
    pub(super) guard: Option<Guard>,
    pub(super) guard_retry: Instant,
    pub(super) news: mpsc::Sender<News>,
    pub(super) early: BTreeMap<u32, i32>,
    pub(super) spawning: usize,
    pub(super) emptied: BTreeSet<Rank>,
    pub(super) oom: OomWatch,
    pub(super) clock: Instant,
    pub(super) heard: Instant,
    pub(super) busy: Instant,
    pub(super) closed: bool,
    pub(super) detached: bool,
    pub(super) quitting: bool,
    pub(super) spool_failed: bool,
    /// Held by every close look that is under way.
    pub(super) looks: Arc<()>,
    /// The ranks' own control group, where there is one.
    pub(super) cgroup: Option<Cgroup>,
    /// Picks values from rank 0's lines, when rank 0 is here and the experiment asks for it.
    pub(super) picker: Option<Picker>,
    /// Follows rank 0's event files.
    pub(super) follower: Option<Follower>,
}

impl Agent {
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }

    pub(super) fn record(&self, event: RecordEvent) {
        let generation = self.machine.borrow().generation();
        self.spool.append(generation, event);
    }

    pub(super) fn notice(&self, text: String) {
        say(&text);
        self.record(RecordEvent::Notice { text });
    }

    pub(super) fn hear(&mut self, news: News) {
        let now = self.now();
        let actions = match news {
            News::Order(order) => self.obey(order),
            News::Said(Said { rank, generation, event }) => {
                self.spool.append(generation, RecordEvent::Rank { rank, said: event });
                Vec::new()
            }
            News::Prepared(spec, launch) => self.spawn(&spec, launch),
            News::Spawned(rank, result) => {
                self.spawning = self.spawning.saturating_sub(1);
                let pid = result.as_ref().ok().map(|ident| ident.pid);
                let mut actions = self.machine.borrow_mut().spawned(rank, result, now);
                if let Some((pid, status)) = pid.and_then(|pid| self.early.remove_entry(&pid)) {
                    actions.extend(self.ended(pid, status));
                }
                if self.spawning == 0 {
                    self.early.clear();
                }
                actions
            }
            News::Measured(event) => {
                self.record(event);
                Vec::new()
            }
            News::Autopsied(rank, lines) => {
                // What is told after the proof finds nobody listening.
                if let Some(event) = self.last_measures(rank) {
                    self.record(event);
                }
                self.machine.borrow_mut().autopsied(rank, lines, now)
            }
            News::LeftNothing(rank) => {
                self.emptied.insert(rank);
                Vec::new()
            }
            News::Proved(survivors, gpus_free) => self.machine.borrow_mut().proved(survivors, gpus_free, now),
        };
        self.perform(actions);
    }

    fn obey(&mut self, order: Order) -> Vec<Action> {
        let now = self.now();
        let refuse = |failure: HintedError| {
            // A console that does not even take its answers will learn from the snapshot.
            let HintedError { error, hint } = failure;
            let _ = order.answers.try_send(AgentMessage::Refused { error, hint });
            Vec::new()
        };
        match order.message {
            ConsoleMessage::Launch { spec } => {
                if spec.plan.run != self.settings.run || spec.node_rank != self.settings.paths.node {
                    return refuse(HintedError::new(
                        format!(
                            "this agent serves node {} of run {}, and the launch is for node {} of run {}",
                            self.settings.paths.node, self.settings.run, spec.node_rank, spec.plan.run
                        ),
                        "attach to the right agent",
                    ));
                }
                if self.quitting {
                    return refuse(HintedError::new("this agent is ending", "attach again in a moment"));
                }
                let launched = self.machine.borrow_mut().launch(spec.clone());
                match launched {
                    Ok(actions) => {
                        if !actions.is_empty() {
                            self.prepare(spec);
                        }
                        actions
                    }
                    Err(failure) => refuse(failure),
                }
            }
            ConsoleMessage::Stop { mode, grace_ms } => {
                self.machine.borrow_mut().stop(mode, grace_ms, "console", now)
            }
            ConsoleMessage::Inspect { request, ranks } => {
                if Arc::strong_count(&self.looks) > LOOKS {
                    return refuse(HintedError::new(
                        format!("{LOOKS} close looks at ranks are under way on {}", self.settings.host),
                        "ask again in two seconds",
                    ));
                }
                let (subjects, look) = (self.subjects_of(&ranks), self.looks.clone());
                tokio::task::spawn_blocking(move || {
                    let inspections = inspect::inspect(subjects);
                    // A console that has left misses its answer and nothing else.
                    let _ = order.answers.blocking_send(AgentMessage::Inspected { request, inspections });
                    drop(look);
                });
                Vec::new()
            }
            ConsoleMessage::Detach => {
                self.detached = true;
                Vec::new()
            }
            ConsoleMessage::Close => {
                self.closed = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A launch was accepted: folders, experiment, libtorch; elsewhere, since disks and interpreters may be slow.
    fn prepare(&mut self, spec: Box<LaunchSpec>) {
        self.closed = false;
        self.detached = false;
        self.heard = Instant::now();
        self.emptied.clear();
        self.lines.borrow_mut().clear();
        self.oom = OomWatch::start();
        let ranks: Vec<Rank> = self.machine.borrow().ranks().iter().map(|life| life.rank).collect();
        for rank in &ranks {
            self.logs.follow(*rank, spec.generation, self.settings.paths.rank_log(spec.generation, *rank));
        }
        self.measure(&spec);
        self.spawning = ranks.len();
        *self.audience.expected.borrow_mut() = (spec.generation, ranks);
        let site = launch_prep::Base {
            paths: self.settings.paths.clone(),
            workdir: self.settings.workdir.clone(),
            events: self.settings.socket("ev"),
            agent: guard::agent_name(self.ident),
            umask: self.settings.umask,
        };
        let news = self.news.clone();
        tokio::task::spawn_blocking(move || {
            let launch = launch_prep::prepare(site, &spec).map(Box::new);
            let _ = news.blocking_send(News::Prepared(spec, launch));
        });
    }

    /// Looks for the values that the experiment asks for, where rank 0 is.
    fn measure(&mut self, spec: &LaunchSpec) {
        (self.picker, self.follower) = (None, None);
        if spec.plan.ranks.first().is_none_or(|rank| rank.node_rank != spec.node_rank) {
            return;
        }
        let metrics = &spec.plan.experiment.metrics;
        self.picker = Picker::new(metrics);
        if let Some(folder) = &metrics.tensorboard {
            let news = self.news.clone();
            let follower = Follower::start(self.settings.workdir.join(folder), move |event| {
                let _ = news.blocking_send(News::Measured(event));
            });
            match follower {
                Ok(follower) => self.follower = Some(follower),
                Err(error) => self.notice(format!("cannot follow event files: {error}")),
            }
        }
    }

    fn last_measures(&mut self, rank: Rank) -> Option<RecordEvent> {
        self.picker.as_mut().filter(|_| rank == Rank(0))?.due(Instant::now(), true)
    }

    /// Lines of a rank have come.
    pub(super) fn read(&mut self, batch: &Batch) {
        if let Some(picker) = self.picker.as_mut().filter(|_| batch.rank == Rank(0)) {
            batch.lines.iter().for_each(|line| picker.line(line));
        }
        self.lines.borrow_mut().push(batch);
    }

    fn spawn(&mut self, spec: &LaunchSpec, launch: Result<Box<launch_prep::Launch>, String>) -> Vec<Action> {
        let now = self.now();
        let stopped = self
            .machine
            .borrow()
            .is_stopping()
            .then(|| "a stop was ordered before it was started".to_owned());
        let mut actions = Vec::new();
        for planned in spec.plan.ranks_of(spec.node_rank) {
            let order = match (&stopped, &launch) {
                (Some(stopped), _) => Err(stopped.clone()),
                (None, Err(error)) => Err(error.clone()),
                (None, Ok(launch)) => launch.order(spec, planned),
            };
            match order {
                Ok(order) => self.spawner.spawn(planned.rank, order),
                Err(error) => {
                    self.spawning = self.spawning.saturating_sub(1);
                    actions.extend(self.machine.borrow_mut().spawned(planned.rank, Err(error), now));
                }
            }
        }
        actions
    }

    pub(super) fn perform(&mut self, actions: Vec<Action>) {
        let changed = !actions.is_empty();
        for action in actions {
            match action {
                Action::Record(event) => self.record(event),
                Action::Save => self.spool.save_manifest(self.manifest(true).bytes()),
                Action::SignalRanks(ranks, signal) => {
                    for ident in ranks {
                        sweep::deliver(ident, signal);
                    }
                }
                Action::SignalAll(signal) => {
                    if let Some(cgroup) = self.cgroup.as_ref().filter(|_| signal == libc::SIGKILL) {
                        cgroup.kill();
                    }
                    let scope = self.scope();
                    tokio::task::spawn_blocking(move || sweep::signal_all(&scope, signal));
                }
                Action::Autopsy { rank } => self.autopsy(rank),
                Action::Leftovers { rank, ident, polite } => self.clear_leftovers(rank, ident, polite),
                Action::Prove => self.prove(),
            }
        }
        if changed {
            self.look_at_ranks();
        }
    }

    fn look_at_ranks(&self) {
        let machine = self.machine.borrow();
        let generation = machine.generation();
        let subject = |life: &lifecycle::RankLife| {
            Some(sample::Subject {
                rank: life.rank,
                ident: life.ident.filter(|ident| ident.start > 0)?,
                gpu: life.gpu,
                page: self.settings.paths.page(generation, life.rank),
            })
        };
        let meeting = machine.spec().map_or_else(sample::Meeting::default, |spec| sample::Meeting {
            master: spec.master_addr.clone(),
            interface: spec
                .plan
                .hosts
                .iter()
                .find(|host| host.node_rank == spec.node_rank)
                .and_then(|host| host.interface.clone()),
        });
        self.subjects.set(generation, meeting, machine.ranks().iter().filter_map(subject).collect());
    }

    /// What a close look needs to know about some ranks of this host, all when none is named.
    fn subjects_of(&self, ranks: &[Rank]) -> Vec<inspect::Subject> {
        let machine = self.machine.borrow();
        let (lines, gpus) = (self.lines.borrow(), self.gpus.latest());
        let ras =
            machine.spec().filter(|spec| spec.plan.backend == "nccl").map(|spec| ras_address(&spec.plan.run));
        machine
            .ranks()
            .iter()
            .filter(|life| ranks.is_empty() || ranks.contains(&life.rank))
            .map(|life| inspect::Subject {
                rank: life.rank,
                ident: life.ident.filter(|ident| ident.start > 0 && life.exit.is_none()),
                page: self.settings.paths.page(machine.generation(), life.rank),
                last_line: lines.last(life.rank),
                gpu: gpus.iter().find(|gpu| Some(gpu.index) == life.gpu).cloned(),
                ras: ras.clone(),
            })
            .collect()
    }

    pub(super) fn quit(&mut self) {
        self.quitting = true;
        let now = self.now();
        let actions = {
            let mut machine = self.machine.borrow_mut();
            let grace = machine.spec().map_or(0, lifecycle::grace_ms);
            if machine.is_quiet() {
                Vec::new()
            } else {
                machine.stop(StopMode::Terminate, grace, "signal", now)
            }
        };
        self.perform(actions);
    }

    /// What time brings; `Some(reason)` when the agent is to end.
    pub(super) fn tick(&mut self) -> Option<String> {
        self.keep_guard();
        self.oom.turn();
        if let Some(event) = self.picker.as_mut().and_then(|picker| picker.due(Instant::now(), false)) {
            self.record(event);
        }
        let failing = self.spool.is_failing();
        if failing != self.spool_failed {
            self.spool_failed = failing;
            let text = if failing {
                format!(
                    "{} cannot be written; records are kept in memory",
                    self.settings.paths.spool().display()
                )
            } else {
                format!("records are written to disk again; {} were lost", self.spool.lost())
            };
            self.notice(text);
        }
        let consoles: Vec<Attached> = self.attached.borrow().values().copied().collect();
        let attended = consoles.iter().any(|c| !c.pings || c.heard.elapsed() < self.timing.silent);
        if attended {
            self.heard = Instant::now();
        }
        let now = self.now();
        let mut actions =
            self.machine.borrow_mut().tick(now, attended, self.timing.unattended.as_millis() as u64);
        if let Some(grace) = self.lease_is_over() {
            actions.extend(self.machine.borrow_mut().stop(StopMode::Clean, grace, "lease", now));
        }
        self.perform(actions);
        let machine = self.machine.borrow();
        if !machine.is_quiet() || !consoles.is_empty() {
            self.busy = Instant::now();
        }
        if self.quitting && (machine.is_quiet() || machine.has_survivors()) {
            return Some("the agent was told to end".into());
        }
        if machine.is_quiet() && consoles.is_empty() {
            if self.closed {
                return Some("the run is over".into());
            }
            // Without a launch there is nothing to come back to.
            let linger = match machine.spec() {
                Some(_) => self.timing.linger,
                None => self.timing.linger.min(UNLAUNCHED_LINGER),
            };
            if self.busy.elapsed() >= linger {
                return Some("nobody is attached".into());
            }
        }
        None
    }

    /// The grace of the stop that a lost console's lease demands.
    fn lease_is_over(&self) -> Option<u64> {
        let machine = self.machine.borrow();
        let launch = &machine.spec()?.plan.experiment.launch;
        let lease = Duration::try_from_secs_f64(launch.lease_s).unwrap_or(Duration::MAX);
        let over = machine.is_running()
            && !machine.is_stopping()
            && launch.on_disconnect == OnDisconnect::Stop
            && !self.detached
            && self.heard.elapsed() >= lease;
        over.then(|| machine.spec().map_or(0, lifecycle::grace_ms))
    }

    pub(super) fn manifest(&self, serving: bool) -> Manifest {
        let machine = self.machine.borrow();
        let plan = machine.spec().map(|spec| &spec.plan);
        Manifest {
            run: self.settings.run.0.clone(),
            host: self.settings.host.clone(),
            node_rank: self.settings.paths.node.0,
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: if serving { self.ident.pid } else { 0 },
            agent_start: self.ident.start,
            build: self.build.clone(),
            socket: self.settings.socket("sock").display().to_string(),
            started: self.started,
            running: !machine.is_quiet(),
            generation: machine.generation().0,
            name: plan.map_or_else(String::new, |plan| plan.experiment.run.name.clone()),
            world_size: plan.map_or(0, |plan| plan.world_size()),
            hosts: plan.map_or_else(Vec::new, |plan| {
                plan.hosts.iter().map(|planned| planned.host.name.clone()).collect()
            }),
            ranks: machine
                .ranks()
                .iter()
                .filter_map(|life| {
                    let ident = life.ident?;
                    let (pid, start, ended) = (ident.pid, ident.start, life.exit.is_some());
                    Some(ManifestRank { rank: life.rank.0, pid, start, ended })
                })
                .collect(),
        }
    }

    /// An agent of a run that is over shows the last lines of its logs, too.
    pub(super) fn remember_logs(&self) {
        let machine = self.machine.borrow();
        for life in machine.ranks() {
            let path = self.settings.paths.rank_log(machine.generation(), life.rank);
            if let Ok((first, lines)) = crate::observe::logs::tail(&path, 1000) {
                let batch = Batch { rank: life.rank, generation: machine.generation(), first, lines };
                self.lines.borrow_mut().push(&batch);
            }
        }
    }

    pub(super) async fn end(mut self, socket: &Path, event_socket: &Path) -> ExitCode {
        let begun = Instant::now();
        while !self.attached.borrow().is_empty() && begun.elapsed() < Duration::from_secs(3) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let proved = self.machine.borrow().is_quiet();
        let unused = self.machine.borrow().spec().is_none();
        self.spool.save_manifest(self.manifest(false).bytes());
        if !self.spool.flush(crate::serve::LAST_RECORDS) {
            say("not everything could be written to disk");
        }
        let _ = std::fs::remove_file(socket);
        let _ = std::fs::remove_file(event_socket);
        if unused {
            forget(&self.settings.paths);
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        say("ended");
        match self.guard.take() {
            Some(guard) if proved => guard.dismiss(),
            _ => {}
        }
        if proved { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Removes the traces of a run that never began: a folder with records of it stays.
fn forget(paths: &RunPaths) {
    if std::fs::metadata(paths.spool()).is_ok_and(|data| data.len() > 0) {
        return;
    }
    for file in [paths.manifest(), paths.spool(), paths.agent_log(), paths.launcher()] {
        let _ = std::fs::remove_file(file);
    }
    // Both only succeed when nothing else is inside.
    let _ = std::fs::remove_dir(paths.node_dir());
    let _ = std::fs::remove_dir(&paths.run_dir);
}
