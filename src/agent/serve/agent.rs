//! The agent of one node of a run: passes what happens to the parts that it concerns, and carries out what
//! follows.
//!
//! Owner: the main thread, on a single-threaded runtime. It never waits for a disk, a driver, a console or a
//! rank: those have threads or tasks of their own and report through bounded channels.

use crate::identity;
use crate::manifest::{self, Manifest, ManifestRank};
use crate::observe::gpu;
use crate::paths::RunPaths;
use crate::proc::{self, Ident};
use crate::serve::console::{ConsoleContext, Identity, Order};
use crate::serve::consoles::Consoles;
use crate::serve::daemon::Started;
use crate::serve::events::{self, Said};
use crate::serve::journal::{Journal, say};
use crate::serve::observers::{Observed, Observers};
use crate::serve::settings::Settings;
use crate::serve::{sockets, spool};
use crate::supervise::groups;
use crate::supervise::guard;
use crate::supervise::launch_prep::HostFacts;
use crate::supervise::lifecycle::{self, Action, Lifecycle};
use crate::supervise::supervisor::{self, Consequences, Duties, Outcome, Supervisor};
use crate::timing::Timing;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{ConsoleMessage, LaunchSpec, RecordEvent, StopMode};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
use std::cell::RefCell;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Between two looks at the clock while something ends.
const TICK: Duration = Duration::from_millis(100);
/// The same at the latest while ranks run and nothing waits for the clock. Rounds of samples are looks at the
/// clock, too, since every wake takes a moment from the ranks' cores; this is for a sampling thread that
/// hangs.
const CALM_TICK: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Agent {
    settings: Settings,
    timing: Timing,
    own: Ident,
    build: String,
    /// When the run began here, seconds since the epoch.
    started: f64,
    lifecycle: Rc<RefCell<Lifecycle>>,
    journal: Journal,
    supervisor: Supervisor,
    observers: Observers,
    consoles: Consoles,
    /// A signal has told the agent to end.
    quitting: bool,
}

/// What the loop listens to.
pub(crate) struct Inputs {
    children: Signal,
    end_signals: EndSignals,
    outcomes: mpsc::Receiver<Outcome>,
    observed: Observed,
    said: mpsc::Receiver<Said>,
    orders: mpsc::Receiver<Order>,
}

fn failed(what: &str, error: io::Error) -> HintedError {
    HintedError::new(format!("{what}: {error}"), "look at agent.log")
}

impl Agent {
    /// Takes over the node: ends what a former agent left, reads its records, and listens.
    ///
    /// Errors: something that an agent cannot work without.
    pub async fn open(settings: Settings) -> Result<(Agent, Inputs), HintedError> {
        groups::set_umask(0o077);
        groups::become_subreaper().map_err(|error| failed("cannot become subreaper", error))?;
        let own = proc::stat(std::process::id())
            .ok_or_else(|| HintedError::new("cannot read /proc", "the agent needs a mounted /proc"))?;
        let own = Ident { pid: own.pid, start: own.start };
        let handled = |error| failed("cannot handle signals", error);
        let children = signal(SignalKind::child()).map_err(handled)?;
        let end_signals = EndSignals::new().map_err(handled)?;
        let former = Manifest::load(&settings.paths.manifest());
        let (lifecycle, spool) = recover(&settings).await?;
        let thread = |error| failed("cannot start a thread", error);
        let (timing, gpus) = (Timing::from_environment(), gpu::Gpus::start());
        let duties = Duties {
            run: settings.run.clone(),
            facts: HostFacts {
                paths: settings.paths.clone(),
                workdir: settings.workdir.clone(),
                events: settings.event_socket(),
                agent: guard::agent_name(own),
                umask: settings.umask,
            },
            agent: own,
        };
        let (supervisor, outcomes) =
            Supervisor::new(duties, lifecycle.clone(), gpus.clone()).map_err(thread)?;
        let (observers, observed) = Observers::new(timing, gpus).map_err(thread)?;
        let mut agent = Agent {
            timing,
            own,
            build: identity::build(),
            started: former.map_or_else(wall_time, |manifest| manifest.started),
            journal: Journal::new(lifecycle.clone(), spool.clone(), settings.paths.spool()),
            supervisor,
            observers,
            consoles: Consoles::new(timing),
            lifecycle,
            quitting: false,
            settings,
        };
        agent.tick_supervisor();
        agent.observers.remember_logs(&agent.lifecycle.borrow(), &agent.settings.paths);
        let (said, orders) = agent.listen(spool, &observed)?;
        Ok((agent, Inputs { children, end_signals, outcomes, observed, said, orders }))
    }

    fn listen(
        &self,
        spool: spool::Spool,
        observed: &Observed,
    ) -> Result<(mpsc::Receiver<Said>, mpsc::Receiver<Order>), HintedError> {
        let (said_in, said) = mpsc::channel(1024);
        let (orders_in, orders) = mpsc::channel(64);
        let connections = self.observers.events();
        sockets::listen(self.settings.event_socket(), move |stream| {
            events::admit(stream, &connections, &said_in);
        })?;
        let context = ConsoleContext {
            identity: Rc::new(Identity {
                run: self.settings.run.clone(),
                host: self.settings.host.clone(),
                node: self.settings.paths.node,
                build: self.build.clone(),
                run_dir: self.settings.paths.run_dir.display().to_string(),
            }),
            spool,
            samples: observed.samples.clone(),
            lifecycle: self.lifecycle.clone(),
            lines: self.observers.lines(),
            attached: self.consoles.attached(),
            orders: orders_in,
            reserved: Rc::default(),
            bye: self.consoles.goodbye(),
        };
        self.consoles.listen(&self.settings, context)?;
        let path = self.settings.paths.manifest();
        manifest::write(&self.settings.paths, &self.manifest(true).bytes())
            .map_err(|error| failed(&format!("cannot write {}", path.display()), error))?;
        Ok((said, orders))
    }

    /// What the starter is told.
    pub fn started(&self) -> Started {
        Started {
            socket: self.settings.console_socket().display().to_string(),
            pid: self.own.pid,
            build: self.build.clone(),
            run_dir: self.settings.paths.run_dir.display().to_string(),
        }
    }

    /// Serves until the run is over and no console is attached.
    pub async fn serve(mut self, mut inputs: Inputs) -> ExitCode {
        let socket = self.settings.console_socket();
        let node = self.settings.paths.node;
        say(&format!("serving {} as node {node} on {}", self.settings.run, socket.display()));
        let mut ticked = tokio::time::Instant::now();
        loop {
            if !self.wait(&mut inputs, ticked).await {
                continue;
            }
            ticked = tokio::time::Instant::now();
            // What a console said before it left counts before its absence does.
            while let Ok(order) = inputs.orders.try_recv() {
                self.obey(order);
            }
            self.observers.count_lost_lines();
            self.reap();
            if let Some(reason) = self.tick() {
                // Consoles hear what is on disk: the last records must be there before the goodbye.
                self.journal.flush();
                return self.end(reason).await;
            }
        }
    }

    /// Takes in one thing that has happened; `true` when the clock is to be looked at.
    async fn wait(&mut self, inputs: &mut Inputs, ticked: tokio::time::Instant) -> bool {
        let calm = self.lifecycle.borrow().is_calm();
        let pause = if calm { CALM_TICK } else { TICK };
        tokio::select! {
            _ = inputs.children.recv() => self.reap(),
            () = inputs.end_signals.recv() => self.quit(),
            Some(outcome) = inputs.outcomes.recv() => {
                // A rank's last lines and values come before its end.
                while let Ok(batch) = inputs.observed.lines.try_recv() {
                    self.observers.read(&batch);
                }
                while let Ok(event) = inputs.observed.metrics.try_recv() {
                    self.journal.record(event);
                }
                self.on_outcome(outcome);
            }
            Some(order) = inputs.orders.recv() => self.obey(order),
            Some(Said { rank, generation, event }) = inputs.said.recv() => {
                self.journal.record_of(generation, RecordEvent::Rank { rank, said: event });
            }
            Some(event) = inputs.observed.metrics.recv() => self.journal.record(event),
            Some(batch) = inputs.observed.lines.recv() => self.observers.read(&batch),
            Ok(()) = inputs.observed.samples.changed() => {
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

    fn on_outcome(&mut self, outcome: Outcome) {
        if let Outcome::ExitInfo(rank, _) = &outcome
            && let Some(event) = self.observers.last_metrics(*rank)
        {
            // After the verified stop nobody listens any more.
            self.journal.record(event);
        }
        let consequences = self.supervisor.on_outcome(outcome);
        self.settle(consequences);
    }

    fn reap(&mut self) {
        let consequences = self.supervisor.reap();
        self.settle(consequences);
    }

    fn settle(&mut self, consequences: Consequences) {
        self.perform(consequences.actions);
        consequences.notices.into_iter().for_each(|text| self.journal.notice(text));
    }

    fn tick_supervisor(&mut self) {
        if let Some(text) = self.supervisor.tick() {
            self.journal.notice(text);
        }
    }

    fn obey(&mut self, order: Order) {
        let now = self.supervisor.now();
        let refused = match &order.message {
            ConsoleMessage::Launch { spec } => self.launch(spec.clone()),
            ConsoleMessage::Stop { mode, grace_ms } => {
                let actions = self.lifecycle.borrow_mut().stop(*mode, *grace_ms, "console", now);
                self.perform(actions);
                Ok(())
            }
            ConsoleMessage::Inspect { request, ranks } => {
                let lifecycle = self.lifecycle.borrow();
                self.observers.inspect(*request, ranks, &order, &lifecycle, &self.settings.paths)
            }
            ConsoleMessage::Detach => {
                self.consoles.detached = true;
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

    fn launch(&mut self, spec: Box<LaunchSpec>) -> Result<(), HintedError> {
        let Settings { run, paths, .. } = &self.settings;
        if spec.plan.run != *run || spec.node_rank != paths.node {
            return Err(HintedError::new(
                format!(
                    "this agent serves node {} of run {run}, and the launch is for node {} of run {}",
                    paths.node, spec.node_rank, spec.plan.run
                ),
                "attach to the right agent",
            ));
        }
        if self.quitting {
            return Err(HintedError::new("this agent is ending", "attach again in a moment"));
        }
        let actions = self.lifecycle.borrow_mut().launch(spec.clone())?;
        if !actions.is_empty() {
            self.consoles.begin();
            let ranks: Vec<Rank> = self.lifecycle.borrow().ranks().iter().map(|life| life.rank).collect();
            if let Some(text) = self.observers.begin(&spec, ranks, paths, &self.settings.workdir) {
                self.journal.notice(text);
            }
            self.supervisor.prepare(spec);
        }
        self.perform(actions);
        Ok(())
    }

    fn perform(&mut self, actions: Vec<Action>) {
        if actions.is_empty() {
            return;
        }
        for action in actions {
            match action {
                Action::Record(event) => self.journal.record(event),
                Action::Save => self.journal.save_manifest(self.manifest(true).bytes()),
                Action::SignalRanks(ranks, signal) => self.supervisor.signal_ranks(&ranks, signal),
                Action::SignalAll(signal) => self.supervisor.signal_all(signal),
                Action::CollectExitInfo { rank } => {
                    self.observers.collect_exit_info(rank, self.supervisor.outcomes());
                }
                Action::EndOrphans { rank, ident, polite } => {
                    self.supervisor.end_orphans(rank, ident, polite);
                }
                Action::VerifyStop => self.supervisor.verify_stop(),
            }
        }
        self.observers.aim(&self.lifecycle.borrow(), &self.settings.paths);
    }

    fn quit(&mut self) {
        self.quitting = true;
        let now = self.supervisor.now();
        let actions = {
            let mut lifecycle = self.lifecycle.borrow_mut();
            let grace = lifecycle.spec().map_or(0, lifecycle::grace_ms);
            if lifecycle.is_quiet() {
                Vec::new()
            } else {
                lifecycle.stop(StopMode::Terminate, grace, "signal", now)
            }
        };
        self.perform(actions);
    }

    /// Looks at the clock and at the surroundings; `Some(reason)` when the agent is to end.
    fn tick(&mut self) -> Option<String> {
        self.tick_supervisor();
        if let Some(event) = self.observers.due_metrics() {
            self.journal.record(event);
        }
        self.journal.check_disk();
        let attended = self.consoles.look_on();
        let (now, unattended) = (self.supervisor.now(), self.timing.unattended.as_millis() as u64);
        let mut actions = self.lifecycle.borrow_mut().tick(now, attended, unattended);
        let expired = self.consoles.expired_lease(&self.lifecycle.borrow());
        if let Some(grace) = expired {
            actions.extend(self.lifecycle.borrow_mut().stop(StopMode::Clean, grace, "lease", now));
        }
        self.perform(actions);
        let lifecycle = self.lifecycle.borrow();
        let reason = self.consoles.reason_to_end(&lifecycle);
        if self.quitting && (lifecycle.is_quiet() || lifecycle.has_survivors()) {
            return Some("the agent was told to end".into());
        }
        reason
    }

    fn manifest(&self, serving: bool) -> Manifest {
        let lifecycle = self.lifecycle.borrow();
        let plan = lifecycle.spec().map(|spec| &spec.plan);
        let rank = |life: &lifecycle::RankLife| {
            let Ident { pid, start } = life.ident?;
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
        }
    }

    async fn end(self, reason: String) -> ExitCode {
        self.consoles.end(reason).await;
        let verified = self.lifecycle.borrow().is_quiet();
        let unused = self.lifecycle.borrow().spec().is_none();
        self.journal.save_manifest(self.manifest(false).bytes());
        if !self.journal.flush() {
            say("not everything could be written to disk");
        }
        let _ = std::fs::remove_file(self.settings.console_socket());
        let _ = std::fs::remove_file(self.settings.event_socket());
        if unused {
            forget(&self.settings.paths);
        }
        say("ended");
        self.supervisor.end(verified);
        if verified { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The state that a former agent of this node has left, after what it had started is ended.
async fn recover(settings: &Settings) -> Result<(Rc<RefCell<Lifecycle>>, spool::Spool), HintedError> {
    let survivors = supervisor::end_former(&settings.run, &settings.paths).await;
    let mut lifecycle = Lifecycle::default();
    let spool = spool::Spool::open(&settings.paths, |record| lifecycle.replay(record))
        .map_err(|error| failed(&format!("cannot open {}", settings.paths.spool().display()), error))?;
    for event in lifecycle.close_former(survivors) {
        spool.append(lifecycle.generation(), event);
    }
    Ok((Rc::new(RefCell::new(lifecycle)), spool))
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

/// The signals that tell an agent to end. SIGHUP is handled rather than ignored, because ranks would inherit
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
