//! The agent of one node of a run: passes events to the parts that they concern, and executes the
//! consequences.
//!
//! Owner: the main thread, on a single-threaded runtime. It never waits for a disk, a driver, a console or a
//! rank: those have threads or tasks of their own and report through bounded channels.

use crate::manifest::{self, Manifest, ManifestRank};
use crate::observe::checkpoint_files::CheckpointFiles;
use crate::observe::gpu;
use crate::observe::sample::{self, Starvation};
use crate::observe::secrets::LogSecrets;
use crate::paths::RunPaths;
use crate::proc::{self, ProcessKey};
use crate::serve::console::{AgentInfo, ConsoleContext, ConsoleOrder};
use crate::serve::consoles::Consoles;
use crate::serve::daemon::ServingAgent;
use crate::serve::events::{self, ReceivedEvent};
use crate::serve::notifier::AgentNotifier;
use crate::serve::observers::{ObserverChannels, Observers};
use crate::serve::slurm_step::{self, SlurmStep};
use crate::serve::spool::AgentJournal;
use crate::serve::{Settings, listen, log_line, port, spool};
use crate::supervise::groups::Helpers;
use crate::supervise::launch_prep::{self, HostFacts, JoinPoint, LaunchVariables};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::lifecycle::{self, Lifecycle, LifecycleAction};
use crate::supervise::supervisor::{self, FollowUps, NodeContext, Supervisor, TaskResult};
use crate::supervise::{groups, guard};
use crate::timing::Timing;
use crate::writers::WriterLog;
use crate::{identity, open_files, process_query};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{
    AgentMessage, CheckpointFile, ConsoleMessage, Exception, Exit, LaunchSecrets, LaunchSpec, RankEvent,
    RecordEvent, StopMode,
};
use rankdeck_proto::process::{ProcessAction, ProcessName, ReachOutcome};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::variables::RequestedVariables;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Tick interval while something ends.
const TICK: Duration = Duration::from_millis(100);
/// Tick interval while ranks run and nothing waits for the clock. Rounds of samples tick, too,
/// since every wake takes time from the ranks' cores; this interval is for a sampling thread that
/// hangs.
const CALM_TICK: Duration = Duration::from_secs(1);

/// Steps after which a program has read the checkpoint that it resumes from.
const STEPS: u32 = 3;

/// The agent of one node of a run.
pub(crate) struct Agent {
    settings: Settings,
    timing: Timing,
    own: ProcessKey,
    build: String,
    /// When the run began here, seconds since the epoch.
    started: f64,
    lifecycle: Rc<RefCell<Lifecycle>>,
    kept: Rc<RefCell<LaunchVariables>>,
    journal: AgentJournal,
    supervisor: Supervisor,
    observers: Observers,
    consoles: Consoles,
    /// The Slurm step that it lives in.
    step: Option<Rc<SlurmStep>>,
    /// Until when the cause of that step's end is waited for.
    cause_by: Option<Instant>,
    asked_cause: bool,
    starvation: Starvation,
    /// What ranks save.
    checkpoints: CheckpointFiles,
    /// Values that ranks have sent in this generation.
    steps: u32,
    /// A signal or the end of its step has ended the agent.
    quitting: bool,
}

/// What the loop listens to.
pub(crate) struct LoopInputs {
    children: Signal,
    end_signals: EndSignals,
    outcomes: mpsc::Receiver<TaskResult>,
    observed: ObserverChannels,
    events: mpsc::Receiver<ReceivedEvent>,
    orders: mpsc::Receiver<ConsoleOrder>,
    /// A checkpoint of a rank has grown.
    grown: watch::Receiver<()>,
    /// Checkpoints that ranks have completed.
    found: mpsc::Receiver<Vec<CheckpointFile>>,
    /// The end of its Slurm step was noticed.
    step_over: bool,
}

impl Agent {
    /// Serves until the run is over and no console is attached.
    pub async fn serve(mut self, mut inputs: LoopInputs) -> ExitCode {
        let socket = self.settings.console_socket();
        let node = self.settings.paths.node;
        log_line(&format!("serving {} as node {node} on {}", self.settings.run, socket.display()));
        let mut ticked = tokio::time::Instant::now();
        loop {
            if !self.wait(&mut inputs, ticked).await {
                continue;
            }
            ticked = tokio::time::Instant::now();
            // A console's last orders come before its absence.
            while let Ok(order) = inputs.orders.try_recv() {
                self.obey(order);
            }
            self.observers.count_lost_lines();
            self.reap();
            if let Some(reason) = self.tick() {
                // Consoles receive what is on disk: the last records must be there before the goodbye.
                self.journal.flush();
                return self.end(reason).await;
            }
        }
    }

    /// Handles one input; returns `true` when a tick is due.
    async fn wait(&mut self, inputs: &mut LoopInputs, ticked: tokio::time::Instant) -> bool {
        let calm = self.lifecycle.borrow().is_calm();
        let pause = if calm { CALM_TICK } else { TICK };
        // Killed once: its end is not waited for again.
        let step = self.step.clone().filter(|_| !inputs.step_over);
        tokio::select! {
            _ = inputs.children.recv() => self.reap(),
            () = inputs.end_signals.recv() => self.quit(),
            () = over(step) => {
                inputs.step_over = true;
                self.leave_step();
            }
            Some(outcome) = inputs.outcomes.recv() => {
                // A rank's last lines and values come before its end.
                while let Ok(batch) = inputs.observed.lines.try_recv() {
                    self.observers.read(&batch);
                }
                while let Ok(event) = inputs.observed.metrics.try_recv() {
                    self.admit(event);
                }
                self.on_outcome(outcome);
            }
            Some(order) = inputs.orders.recv() => self.obey(order),
            Some(ReceivedEvent { generation, mut event }) = inputs.events.recv() => {
                if let RecordEvent::Rank { rank, event } = &mut event {
                    self.take_in(*rank, event);
                }
                if let RecordEvent::Rank { rank, event } = &event {
                    self.observers.reported(*rank, event);
                }
                self.journal.record_of(generation, event);
            }
            Ok(()) = inputs.grown.changed() => {
                let now = self.supervisor.now();
                self.lifecycle.borrow_mut().progressed(now);
            }
            Some(files) = inputs.found.recv() => {
                if self.lifecycle.borrow().is_running() {
                    self.journal.record(RecordEvent::CheckpointFiles { files, complete: false });
                }
            }
            Some(event) = inputs.observed.metrics.recv() => self.admit(event),
            Some(batch) = inputs.observed.lines.recv() => self.observers.read(&batch),
            Ok(()) = inputs.observed.samples.changed() => {
                let (get_on, starve) = {
                    let latest = inputs.observed.samples.borrow();
                    (sample::all_get_on(&latest.1), self.starvation.check(&latest.1))
                };
                let mut lifecycle = self.lifecycle.borrow_mut();
                lifecycle.observed(&inputs.observed.samples.borrow().1);
                match lifecycle.is_stopping() {
                    true if get_on => lifecycle.progressed(self.supervisor.now()),
                    true if starve => lifecycle.starved(self.supervisor.now()),
                    _ => {}
                }
                drop(lifecycle);
                let within = self.timing.stuck;
                let mut notifier = self.journal.notifier.borrow_mut();
                notifier.check_progress(&inputs.observed.samples.borrow().1, Instant::now(), within);
                drop(notifier);
                let trains = {
                    let latest = &inputs.observed.samples.borrow().1;
                    let mut pages = latest.ranks.iter().filter_map(|rank| rank.page.as_ref());
                    latest.generation == self.lifecycle.borrow().generation()
                        && pages.any(|page| page.train_iter >= u64::from(STEPS))
                };
                if trains || self.steps >= STEPS {
                    self.report_unopened();
                }
                self.observers.turn();
                return calm;
            }
            () = tokio::time::sleep_until(ticked + pause) => {
                self.observers.turn();
                return true;
            }
        }
        false
    }

    /// Applies an event of a rank, and adds data that only this host has.
    fn take_in(&mut self, rank: Rank, event: &mut RankEvent) {
        let now = self.supervisor.now();
        let mut lifecycle = self.lifecycle.borrow_mut();
        match event {
            RankEvent::Counters(counters) => {
                // Of one of its ranks.
                let is_first = lifecycle.ranks().first().is_some_and(|life| life.rank == rank);
                self.steps = self.steps.saturating_add(u32::from(is_first));
                lifecycle.iterated(rank, counters.train_iter, now);
                // Counters of one rank of several are not those of the run.
                if !counters.sum || lifecycle.spec().is_some_and(|spec| spec.plan.ranks.len() == 1) {
                    self.checkpoints.stepped(counters.env_step);
                }
            }
            RankEvent::Totals(totals) => self.checkpoints.stepped(totals.env_step),
            RankEvent::Checkpoint { path, .. } => self.checkpoints.reported(path),
            RankEvent::Joined { .. } => lifecycle.joined(rank),
            RankEvent::Returned => lifecycle.returned(rank, true),
            RankEvent::Survived => lifecycle.returned(rank, false),
            RankEvent::Exception(Exception { child: Some(child), .. }) => {
                if let Exit::Signal { signal: libc::SIGKILL, out_of_memory } = &mut child.exit {
                    *out_of_memory = self.supervisor.is_out_of_memory_kill();
                }
            }
            _ => {}
        }
    }

    /// Ranks train: by now they have read the checkpoint that they resume from.
    fn report_unopened(&mut self) {
        if let Some(path) = self.supervisor.unopened() {
            let path = path.display().to_string();
            self.journal.record(RecordEvent::CheckpointUnread { path });
        }
    }

    /// Records an event of an observer.
    fn admit(&mut self, event: RecordEvent) {
        let events = self.observers.admit(event);
        self.record_metrics(events);
    }

    fn record_metrics(&mut self, events: Vec<RecordEvent>) {
        for event in events {
            if let RecordEvent::Metrics { env_step, .. } = &event {
                self.steps = self.steps.saturating_add(1);
                env_step.iter().for_each(|step| self.checkpoints.stepped(*step));
            }
            self.journal.record(event);
        }
    }

    fn on_outcome(&mut self, outcome: TaskResult) {
        if matches!(outcome, TaskResult::JobEnd(_)) {
            self.cause_by = None;
        }
        if let TaskResult::Prepared(spec, Ok(host)) = &outcome {
            self.follow_files(spec, &host.folder);
        }
        if let TaskResult::ExitInfo(Rank(0), _) = &outcome {
            self.name_stranger();
        }
        if let TaskResult::ExitInfo(rank, _) = &outcome {
            // After the verified stop there are no receivers.
            let events = self.observers.last_metrics(*rank);
            self.record_metrics(events);
        }
        let consequences = self.supervisor.on_outcome(outcome);
        self.settle(consequences);
    }

    /// Reports another user's process on rank 0's port, before rank 0's end is recorded.
    fn name_stranger(&self) {
        let port = {
            let lifecycle = self.lifecycle.borrow();
            let failed = |life: &lifecycle::HostRank| {
                life.rank == Rank(0) && life.exit.as_ref().is_some_and(|exit| *exit != Exit::Code { code: 0 })
            };
            lifecycle
                .ranks()
                .iter()
                .find(|life| failed(life))
                .and(lifecycle.spec())
                .map(|spec| spec.master_port)
        };
        if let Some(uid) = port.and_then(port::stranger_on) {
            let port = port.unwrap_or_default();
            self.journal.notice(format!(
                "port {port} for rank 0's store is taken by user {uid}; restart to use another port, or set `launch.master_port`"
            ));
        }
    }

    fn reap(&mut self) {
        let consequences = self.supervisor.reap();
        self.settle(consequences);
    }

    fn settle(&mut self, consequences: FollowUps) {
        self.perform(consequences.actions);
        consequences.notices.into_iter().for_each(|text| self.journal.notice(text));
    }

    fn tick_supervisor(&mut self) {
        if let Some(text) = self.supervisor.tick() {
            self.journal.notice(text);
        }
    }

    fn obey(&mut self, order: ConsoleOrder) {
        let now = self.supervisor.now();
        let refused = match &order.message {
            ConsoleMessage::Launch { spec, private, after_end } => {
                self.launch(spec.clone(), private.clone(), *after_end)
            }
            ConsoleMessage::Rejoin { rank, generation, epoch, store, private } => {
                let join = JoinPoint { epoch: *epoch, store: store.clone() };
                self.rejoin(*rank, *generation, join, private.clone())
            }
            ConsoleMessage::Stop { mode, grace_ms, ends } => {
                let actions = self.lifecycle.borrow_mut().stop_by_console(*mode, *grace_ms, *ends, now);
                self.perform(actions);
                Ok(())
            }
            ConsoleMessage::Inspect { request, ranks, inner } => {
                let lifecycle = self.lifecycle.borrow();
                let whom = (ranks.as_slice(), inner.as_slice());
                self.observers.inspect(*request, whom, &order, &lifecycle, &self.settings.paths)
            }
            ConsoleMessage::Continue { ranks } => {
                let actions = self.lifecycle.borrow().resume(ranks);
                self.perform(actions);
                Ok(())
            }
            ConsoleMessage::Reach { request, process, action } => {
                let parts = (&*self.lifecycle.borrow(), &self.journal);
                reach(*request, *process, *action, &order, parts, &self.supervisor.spared());
                Ok(())
            }
            ConsoleMessage::Detach => {
                self.consoles.detached = true;
                Ok(())
            }
            ConsoleMessage::Ended { generation, ending } => {
                if *generation == self.lifecycle.borrow().generation() {
                    self.journal.record(RecordEvent::Ended { ending: ending.clone() });
                    self.supervisor.release_work_folder();
                }
                Ok(())
            }
            ConsoleMessage::Close => {
                self.consoles.closed = true;
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = refused {
            Consoles::refuse(&order, error);
        }
    }

    fn launch(
        &mut self,
        spec: Box<LaunchSpec>,
        mut private: LaunchSecrets,
        after_end: bool,
    ) -> Result<(), HintedError> {
        let Settings { run, paths, .. } = &self.settings;
        if spec.plan.run != *run || spec.node_rank != paths.node {
            return Err(HintedError::new(
                format!(
                    "this agent serves node rank {} of run {run}, but the launch is for node rank {} of run {}",
                    paths.node, spec.node_rank, spec.plan.run
                ),
                "attach to the right agent",
            ));
        }
        if self.quitting {
            return Err(HintedError::new("this agent is shutting down", "attach again in a moment"));
        }
        self.lifecycle.borrow().check_end(&spec, after_end)?;
        self.kept.borrow_mut().complete(&spec, &mut private.variables, &launch_prep::is_inherited)?;
        let actions = self.lifecycle.borrow_mut().launch(spec.clone())?;
        if !actions.is_empty() {
            self.consoles.start();
            self.journal.notifier.borrow_mut().start_generation(private.away.take(), spec.plan.shrinks());
            let ranks: Vec<Rank> = self.lifecycle.borrow().ranks().iter().map(|life| life.rank).collect();
            let secrets = LogSecrets::from_launch(&spec, &private);
            self.observers.start(&spec, ranks, paths, secrets);
            // Until the working directories of the ranks are known.
            let patterns = &spec.plan.experiment.launch.checkpoints;
            self.checkpoints.begin(
                self.settings.workdir.clone(),
                paths.run_dir.clone(),
                true,
                patterns,
                None,
            );
            self.steps = 0;
            self.supervisor.prepare(spec, private);
        }
        self.perform(actions);
        Ok(())
    }

    /// Starts a lost rank again, which joins the others (LIFE-10). An agent that came after the launch has nothing that
    /// no record contains: the console that launched has.
    ///
    /// Errors: the rank may not start, or the secret of the generation is not known.
    fn rejoin(
        &mut self,
        rank: Rank,
        generation: Generation,
        join: JoinPoint,
        private: LaunchSecrets,
    ) -> Result<(), HintedError> {
        if self.quitting {
            return Err(HintedError::new("this agent is shutting down", "attach again in a moment"));
        }
        let known = self.supervisor.private(generation);
        let is_new = known.is_none();
        let mut private = known.unwrap_or(private);
        let spec = self.lifecycle.borrow().spec().cloned().map(Box::new);
        let spec = spec.filter(|spec| !spec.plan.shares_secret() || private.secret.is_some());
        let Some(spec) = spec else {
            return Err(HintedError::new(
                format!(
                    "rank {rank} cannot join: its agent has ended, and this console has not launched the run"
                ),
                "order it from the console that launched the run, or restart the run",
            ));
        };
        if is_new {
            self.kept.borrow_mut().complete(&spec, &mut private.variables, &launch_prep::is_inherited)?;
        }
        let actions = self.lifecycle.borrow_mut().rejoin(rank, generation)?;
        self.consoles.closed = false;
        if is_new {
            let ranks: Vec<Rank> = self.lifecycle.borrow().ranks().iter().map(|life| life.rank).collect();
            let secrets = LogSecrets::from_launch(&spec, &private);
            self.observers.start(&spec, ranks, &self.settings.paths, secrets);
        } else {
            self.observers.reopen_log(rank);
        }
        self.supervisor.prepare_again(spec, private, rank, join);
        self.perform(actions);
        Ok(())
    }

    /// Ranks are about to start in `folder`: what they write is followed there.
    fn follow_files(&mut self, spec: &LaunchSpec, folder: &Path) {
        // The trainer reports its own; a container has files of its own.
        let hidden = spec.plan.is_builtin() || self.lifecycle.borrow().starts_elsewhere();
        let patterns = &spec.plan.experiment.launch.checkpoints;
        let run_dir = self.settings.paths.run_dir.clone();
        let writers = (!spec.plan.is_builtin()).then(|| WriterLog::new(&self.settings.paths, folder));
        self.checkpoints.begin(folder.to_owned(), run_dir, hidden, patterns, writers);
        if let Some(text) = self.observers.follow_files(spec, folder, &self.settings.paths.run_dir) {
            self.journal.notice(text);
        }
    }

    fn perform(&mut self, actions: Vec<LifecycleAction>) {
        if actions.is_empty() {
            return;
        }
        for action in actions {
            match action {
                LifecycleAction::Record(event) => self.journal.record(*event),
                LifecycleAction::Save => self.journal.save_manifest(self.manifest(true).bytes()),
                LifecycleAction::AskRanks(ranks, stage) => self.supervisor.ask_ranks(ranks, stage),
                LifecycleAction::SignalRanks(ranks, signal) => self.supervisor.signal_ranks(&ranks, signal),
                LifecycleAction::SignalAll(signal) => self.supervisor.signal_all(signal),
                LifecycleAction::CollectExitInfo { rank } => {
                    self.observers.collect_exit_info(rank, self.supervisor.outcomes());
                }
                LifecycleAction::EndOrphans { rank, ident, polite } => {
                    self.supervisor.end_orphans(rank, ident, polite);
                }
                LifecycleAction::VerifyStop => self.supervisor.verify_stop(),
            }
        }
        let lifecycle = self.lifecycle.borrow();
        self.observers.aim(&lifecycle, &self.settings.paths);
        let live = lifecycle.ranks().iter().filter(|life| life.lives()).filter_map(|life| life.ident);
        self.checkpoints.aim(live.collect(), lifecycle.is_stopping());
    }

    /// Handles passed time and changed surroundings; `Some(reason)` when the agent is to end.
    fn tick(&mut self) -> Option<String> {
        self.tick_supervisor();
        let events = self.observers.due_metrics();
        self.record_metrics(events);
        self.journal.check_disk();
        self.follow_sockets();
        let attended = self.consoles.is_attended();
        self.notify(attended);
        let (now, unattended) = (self.supervisor.now(), self.timing.unattended.as_millis() as u64);
        let mut actions = self.lifecycle.borrow_mut().tick(now, attended, unattended);
        let expired = self.consoles.expired_lease(&self.lifecycle.borrow());
        if let Some(grace) = expired {
            actions.extend(self.lifecycle.borrow_mut().stop(StopMode::Clean, grace, "lease", now));
        }
        self.perform(actions);
        let lifecycle = self.lifecycle.borrow();
        let reason = self.consoles.reason_to_end(&lifecycle);
        let cause_is_awaited = self.cause_by.is_some_and(|by| Instant::now() < by);
        if self.quitting && !cause_is_awaited && (lifecycle.is_quiet() || lifecycle.has_survivors()) {
            return Some("the agent received a signal to end".into());
        }
        reason
    }

    /// Sends notifications while no console is attached. Not during a stop: its process scan must find no
    /// commands of the agent.
    fn notify(&self, attended: bool) {
        let lifecycle = self.lifecycle.borrow();
        let calm = lifecycle.is_quiet() || lifecycle.is_running() && !lifecycle.is_stopping();
        drop(lifecycle);
        let failures = if calm { self.journal.notifier.borrow_mut().send(attended) } else { Vec::new() };
        failures.into_iter().for_each(|text| self.journal.notice(text));
    }

    /// Sockets that had to move: consoles find them by the manifest, the next ranks by their environment.
    fn follow_sockets(&mut self) {
        let events = self.settings.event_socket();
        if self.supervisor.events_are_at(&events) {
            return;
        }
        let folder = events.parent().unwrap_or(&events).display().to_string();
        self.journal.notice(format!("the socket directory was removed; sockets are now in {folder}"));
        self.supervisor.move_sockets(events, self.settings.note());
        self.journal.save_manifest(self.manifest(true).bytes());
    }

    fn manifest(&self, serving: bool) -> Manifest {
        let lifecycle = self.lifecycle.borrow();
        let plan = lifecycle.spec().map(|spec| &spec.plan);
        let rank = |life: &lifecycle::HostRank| {
            let ProcessKey { pid, start } = life.ident?;
            Some(ManifestRank { rank: life.rank.0, pid, start, ended: life.exit.is_some() })
        };
        Manifest {
            run: self.settings.run.0.clone(),
            host: self.settings.host.clone(),
            node_rank: self.settings.paths.node.0,
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: if serving { self.own.pid } else { 0 },
            agent_start: self.own.start,
            build: self.build.clone(),
            socket: self.settings.console_socket().display().to_string(),
            started: self.started,
            running: !lifecycle.is_quiet(),
            generation: lifecycle.generation().0,
            name: plan.map_or_else(String::new, |plan| plan.experiment.run.name.clone()),
            world_size: plan.map_or(0, |plan| plan.world_size()),
            hosts: plan.map_or_else(Vec::new, |plan| {
                plan.hosts.iter().map(|planned| planned.host.name.clone()).collect()
            }),
            ranks: lifecycle.ranks().iter().filter_map(rank).collect(),
            drill: plan.is_some_and(|plan| plan.drill),
        }
    }
}

/// Returns when a Slurm step is over; never without one.
async fn over(step: Option<Rc<SlurmStep>>) {
    match step {
        Some(step) => step.over().await,
        None => std::future::pending().await,
    }
}

fn failed(what: &str, error: io::Error) -> HintedError {
    HintedError::new(format!("{what}: {error}"), "check agent.log")
}

impl Agent {
    /// Takes over the node: ends what a former agent left, reads its records, and listens.
    ///
    /// Errors: something that an agent cannot work without.
    pub async fn open(settings: Settings) -> Result<(Agent, LoopInputs), HintedError> {
        open_files::raise();
        open_files::keep_back();
        groups::set_umask(0o077);
        groups::become_subreaper().map_err(|error| failed("cannot become subreaper", error))?;
        let own = proc::stat(std::process::id())
            .ok_or_else(|| HintedError::new("cannot read /proc", "the agent needs a mounted /proc"))?;
        let own = ProcessKey { pid: own.pid, start: own.start };
        let handled = |error| failed("cannot handle signals", error);
        let children = signal(SignalKind::child()).map_err(handled)?;
        let end_signals = EndSignals::new().map_err(handled)?;
        let former = Manifest::load(&settings.paths.manifest());
        let RecoveredNode { lifecycle, spool, left } = recover(&settings).await?;
        let thread = |error| failed("cannot start a thread", error);
        let (timing, gpus) = (Timing::from_environment(), gpu::GpuWatch::start());
        let context = NodeContext {
            run: settings.run.clone(),
            facts: HostFacts {
                paths: settings.paths.clone(),
                workdir: settings.workdir.clone(),
                events: settings.event_socket(),
                agent: guard::agent_name(own),
                umask: settings.umask,
            },
            agent: own,
            note: settings.note(),
            left,
        };
        let (has_grown, grown) = watch::channel(());
        let (found_in, found) = mpsc::channel(64);
        let grew = move || {
            let _ = has_grown.send(());
        };
        // What does not fit is found again at the end.
        let is_complete = move |files| drop(found_in.try_send(files));
        let checkpoints = CheckpointFiles::start(grew, is_complete).map_err(thread)?;
        let helpers = Helpers::default();
        let notifier = AgentNotifier::new(settings.run.clone(), settings.host.clone(), helpers.clone());
        let (supervisor, outcomes) =
            Supervisor::new(context, lifecycle.clone(), gpus.clone(), helpers, checkpoints.clone())
                .map_err(thread)?;
        let (observers, observed) = Observers::new(timing, gpus).map_err(thread)?;
        let mut agent = Agent {
            timing,
            own,
            build: identity::build(),
            started: former.map_or_else(wall_time, |manifest| manifest.started),
            journal: AgentJournal::new(lifecycle.clone(), spool.clone(), settings.paths.spool(), notifier),
            supervisor,
            observers,
            consoles: Consoles::new(timing),
            lifecycle,
            kept: Rc::default(),
            step: SlurmStep::from_holder(settings.holder)
                .map_err(|error| failed("the Slurm step of this agent has ended", error))?
                .map(Rc::new),
            cause_by: None,
            asked_cause: false,
            starvation: Starvation::default(),
            checkpoints,
            steps: 0,
            quitting: false,
            settings,
        };
        agent.tick_supervisor();
        agent.observers.remember_logs(&agent.lifecycle.borrow(), &agent.settings.paths);
        let (events, orders) = agent.listen(spool, &observed)?;
        Ok((
            agent,
            LoopInputs {
                children,
                end_signals,
                outcomes,
                observed,
                events,
                orders,
                grown,
                found,
                step_over: false,
            },
        ))
    }

    fn listen(
        &self,
        spool: spool::Spool,
        observed: &ObserverChannels,
    ) -> Result<(mpsc::Receiver<ReceivedEvent>, mpsc::Receiver<ConsoleOrder>), HintedError> {
        let (events_in, events) = mpsc::channel(1024);
        let (orders_in, orders) = mpsc::channel(64);
        let connections = self.observers.events();
        listen(&self.settings, Settings::event_socket, move |stream| {
            events::admit(stream, &connections, &events_in);
        })?;
        let context = ConsoleContext {
            identity: Rc::new(AgentInfo {
                run: self.settings.run.clone(),
                host: self.settings.host.clone(),
                node: self.settings.paths.node,
                build: self.build.clone(),
                run_dir: self.settings.paths.run_dir.display().to_string(),
                workdir: self.settings.workdir.clone(),
            }),
            spool,
            samples: observed.samples.clone(),
            lifecycle: self.lifecycle.clone(),
            clock: self.supervisor.clock(),
            kept: self.kept.clone(),
            lines: self.observers.lines(),
            frames: self.observers.events().frames.subscribe(),
            attached: self.consoles.attached(),
            searches: Arc::default(),
            orders: orders_in,
            reserved: Rc::default(),
            bye: self.consoles.goodbye(),
        };
        self.consoles.listen(&self.settings, context)?;
        let path = self.settings.paths.manifest();
        manifest::write(&self.settings.paths, &self.manifest(true).bytes())
            .map_err(|error| failed(&format!("cannot write {}", path.display()), error))?;
        Ok((events, orders))
    }

    /// Returns the message for the starter.
    pub fn started(&self) -> ServingAgent {
        ServingAgent {
            socket: self.settings.console_socket().display().to_string(),
            pid: self.own.pid,
            build: self.build.clone(),
            run_dir: self.settings.paths.run_dir.display().to_string(),
        }
    }
}

/// What a former agent of this node has left.
struct RecoveredNode {
    lifecycle: Rc<RefCell<Lifecycle>>,
    spool: spool::Spool,
    /// Processes that could not be ended, and what leads to them.
    left: Leftovers,
}

/// The state that a former agent of this node has left, after what it had started is ended.
async fn recover(settings: &Settings) -> Result<RecoveredNode, HintedError> {
    let (survivors, left) = supervisor::end_former(&settings.run, &settings.paths).await;
    let mut lifecycle = Lifecycle::default();
    let spool = spool::Spool::open(&settings.paths, |record| lifecycle.replay(record))
        .map_err(|error| failed(&format!("cannot open {}", settings.paths.spool().display()), error))?;
    for event in lifecycle.close_former(survivors) {
        spool.append(lifecycle.generation(), event);
    }
    Ok(RecoveredNode { lifecycle: Rc::new(RefCell::new(lifecycle)), spool, left })
}

impl Agent {
    /// Ends after a signal. From Slurm it comes some seconds before the job's end.
    fn quit(&mut self) {
        let grace = self.lifecycle.borrow().spec().map_or(0, lifecycle::grace_ms);
        match self.step.as_ref().map(|step| step.job()) {
            Some(job) => self.end_run(StopMode::Clean, grace, &job),
            None => self.end_run(StopMode::Terminate, grace, "signal"),
        }
    }

    /// SLURM-1. The step is over: its cores belong to the next job. Without an earlier signal, ranks get
    /// a moment for a checkpoint.
    fn leave_step(&mut self) {
        let job = self.step.as_ref().map(|step| step.job()).unwrap_or_default();
        if self.quitting {
            self.end_run(StopMode::Kill, 0, &job);
        } else {
            let grace = self.lifecycle.borrow().spec().map_or(0, lifecycle::grace_ms);
            // No progress makes it longer.
            self.end_run(StopMode::Terminate, grace.min(slurm_step::MOMENT_MS), &job);
        }
    }

    fn end_run(&mut self, mode: StopMode, grace: u64, by: &str) {
        self.quitting = true;
        if self.lifecycle.borrow().is_quiet() {
            return;
        }
        let now = self.supervisor.now();
        let actions = self.lifecycle.borrow_mut().stop(mode, grace, by, now);
        self.perform(actions);
        self.ask_cause();
    }

    /// Records the cause of the step's end, once. Not for a run that has ended: a job of a thousand nodes
    /// would query its controller a thousand times.
    fn ask_cause(&mut self) {
        let Some(step) = self.step.as_ref().filter(|_| !self.asked_cause) else { return };
        self.asked_cause = true;
        self.cause_by = Some(Instant::now() + slurm_step::CAUSE);
        let (cause, outcomes) = (step.cause(self.supervisor.helpers()), self.supervisor.outcomes());
        tokio::task::spawn_blocking(move || {
            // Fails only if the agent has ended.
            let _ = outcomes.blocking_send(TaskResult::JobEnd(cause()));
        });
    }

    async fn end(self, reason: String) -> ExitCode {
        self.consoles.end(reason).await;
        let verified = self.lifecycle.borrow().is_quiet();
        let unused = self.lifecycle.borrow().spec().is_none();
        self.journal.save_manifest(self.manifest(false).bytes());
        if !self.journal.flush() {
            log_line("some records could not be written to disk");
        }
        // A console that comes now waits for the end of this process.
        crate::paths::close_socket(&self.settings.console_socket());
        if unused {
            forget(&self.settings.paths);
        }
        self.observers.settle_logs().await;
        log_line("ended");
        self.supervisor.end(verified);
        if verified { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Removes the traces of a run that never began: a directory with records of it stays.
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

/// The signals that end an agent. SIGHUP is handled rather than ignored, because ranks would inherit
/// that.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    _hangup: Signal,
}

impl EndSignals {
    fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Answers a console's query about one process of this host: checked, recorded if it changes something, executed.
/// `spared` serve the run and are left alone.
fn reach(
    request: u64,
    process: ProcessName,
    action: ProcessAction,
    order: &ConsoleOrder,
    (lifecycle, journal): (&Lifecycle, &AgentJournal),
    spared: &BTreeSet<u32>,
) {
    let answers = order.answers.clone();
    let answer = move |result: Result<ReachOutcome, HintedError>| AgentMessage::Reached {
        request,
        outcome: Box::new(result.unwrap_or_else(ReachOutcome::Refused)),
    };
    let target = match target_of(lifecycle, process, spared) {
        Ok(target) => target,
        Err(error) => {
            let _ = answers.try_send(answer(Err(error)));
            return;
        }
    };
    match action {
        ProcessAction::Environment => {
            let hidden = hidden_variables(lifecycle);
            // The kernel may keep a reader waiting for as long as the process holds its memory map.
            tokio::task::spawn_blocking(move || {
                let _ = answers.blocking_send(answer(process_query::environment(target, &hidden)));
            });
        }
        ProcessAction::Signal { signal } => {
            // Its record is to come before that of the end that it may cause.
            let result = process_query::check(target).and_then(|()| {
                let ProcessName { rank, pid, .. } = process;
                journal.record(RecordEvent::Signalled { rank, pid, signal });
                process_query::signal(target, signal)
            });
            if let Err(error) = &result {
                journal.notice(format!("{process}: {}", error.error));
            }
            // A console that does not even take its answers has the record.
            let _ = answers.try_send(answer(result));
        }
        ProcessAction::Unknown => {
            let error =
                HintedError::new("this agent is from an older rankdeck and does not support this", "");
            let _ = answers.try_send(answer(Err(error)));
        }
    }
}

/// The process that a query names.
fn target_of(
    lifecycle: &Lifecycle,
    process: ProcessName,
    spared: &BTreeSet<u32>,
) -> Result<ProcessKey, HintedError> {
    let Some(rank) = process.rank else {
        if spared.contains(&process.pid) {
            let error = format!("pid {} belongs to rankdeck itself", process.pid);
            return Err(HintedError::new(error, "end the run and its agent with `rankdeck stop`"));
        }
        return Ok(ProcessKey { pid: process.pid, start: process.start });
    };
    let life = lifecycle.ranks().iter().find(|life| life.rank == rank);
    let ident = life.filter(|life| life.lives()).and_then(|life| life.ident);
    match ident {
        None => Err(HintedError::new(format!("rank {rank} has no process on this host"), "")),
        Some(ident) if ident.pid != process.pid => Err(HintedError::new(
            format!("rank {rank} is now pid {}, not {}", ident.pid, process.pid),
            "try again: the rank was restarted",
        )),
        Some(ident) => Ok(ident),
    }
}

/// Variables whose values came from the console that launched the run.
fn hidden_variables(lifecycle: &Lifecycle) -> BTreeSet<String> {
    let Some(spec) = lifecycle.spec() else { return BTreeSet::new() };
    let host = spec.plan.hosts.get(spec.node_rank.index());
    let requested = host.map(|planned| RequestedVariables::new(&spec.plan.experiment.launch, &planned.host));
    requested.iter().flat_map(|requested| requested.names().map(str::to_owned).collect::<Vec<_>>()).collect()
}
