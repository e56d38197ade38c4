//! The agent of one node of a run: passes what happens to the parts that it concerns, and carries out what
//! follows.
//!
//! Owner: the main thread, on a single-threaded runtime. It never waits for a disk, a driver, a console or a
//! rank: those have threads or tasks of their own and report through bounded channels.

mod end;
mod start;

use crate::manifest::{Manifest, ManifestRank};
use crate::observe::sample;
use crate::observe::secrets::Secrets;
use crate::observe::starvation::Starvation;
use crate::proc::{self, Ident};
use crate::serve::console::Order;
use crate::serve::consoles::Consoles;
use crate::serve::events::ReceivedEvent;
use crate::serve::journal::Journal;
use crate::serve::kept::{self, LaunchVariables};
use crate::serve::log::say;
use crate::serve::observers::{ObserverChannels, Observers};
use crate::serve::port;
use crate::serve::reach;
use crate::serve::settings::Settings;
use crate::serve::slurm_step::SlurmStep;
use crate::supervise::lifecycle::{self, Action, Lifecycle};
use crate::supervise::supervisor::{Consequences, Outcome, Supervisor};
use crate::timing::Timing;
use end::EndSignals;
use rankdeck_proto::message::{ConsoleMessage, Exit, LaunchSpec, Private, RankEvent, RecordEvent, StopMode};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::signal::unix::Signal;
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
    kept: Rc<RefCell<LaunchVariables>>,
    journal: Journal,
    supervisor: Supervisor,
    observers: Observers,
    consoles: Consoles,
    /// The Slurm step that it lives in.
    step: Option<Rc<SlurmStep>>,
    /// Until when the cause of that step's end is waited for.
    cause_by: Option<Instant>,
    asked_cause: bool,
    starvation: Starvation,
    /// A signal or the end of its step has told the agent to end.
    quitting: bool,
}

/// What the loop listens to.
pub(crate) struct Inputs {
    children: Signal,
    end_signals: EndSignals,
    outcomes: mpsc::Receiver<Outcome>,
    observed: ObserverChannels,
    said: mpsc::Receiver<ReceivedEvent>,
    orders: mpsc::Receiver<Order>,
    /// The end of its Slurm step was noticed.
    step_over: bool,
}

impl Agent {
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
                    self.journal.record(event);
                }
                self.on_outcome(outcome);
            }
            Some(order) = inputs.orders.recv() => self.obey(order),
            Some(ReceivedEvent { generation, event }) = inputs.said.recv() => {
                if let RecordEvent::Rank { rank, said: RankEvent::Counters(counters) } = &event {
                    let now = self.supervisor.now();
                    self.lifecycle.borrow_mut().iterated(*rank, counters.train_iter, now);
                }
                self.journal.record_of(generation, event);
            }
            Some(event) = inputs.observed.metrics.recv() => self.journal.record(event),
            Some(batch) = inputs.observed.lines.recv() => self.observers.read(&batch),
            Ok(()) = inputs.observed.samples.changed() => {
                let (get_on, starve) = {
                    let latest = inputs.observed.samples.borrow();
                    (sample::all_get_on(&latest.1), self.starvation.look(&latest.1))
                };
                let mut lifecycle = self.lifecycle.borrow_mut();
                match lifecycle.is_stopping() {
                    true if get_on => lifecycle.progressed(self.supervisor.now()),
                    true if starve => lifecycle.starved(self.supervisor.now()),
                    _ => {}
                }
                drop(lifecycle);
                let within = self.timing.stuck;
                let mut calls = self.journal.calls.borrow_mut();
                calls.look(&inputs.observed.samples.borrow().1, Instant::now(), within);
                drop(calls);
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
        if matches!(outcome, Outcome::JobEnd(_)) {
            self.cause_by = None;
        }
        if let Outcome::ExitInfo(Rank(0), _) = &outcome {
            self.name_stranger();
        }
        if let Outcome::ExitInfo(rank, _) = &outcome
            && let Some(event) = self.observers.last_metrics(*rank)
        {
            // After the verified stop nobody listens any more.
            self.journal.record(event);
        }
        let consequences = self.supervisor.on_outcome(outcome);
        self.settle(consequences);
    }

    /// Rank 0 has ended: was somebody else in its place? Said before its end is recorded.
    fn name_stranger(&self) {
        let port = {
            let lifecycle = self.lifecycle.borrow();
            let failed = |life: &lifecycle::RankLife| {
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
                "user {uid} listens on port {port}, where rank 0 was to; a restart takes another port, and \
                 `launch.master_port` names one"
            ));
        }
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
            ConsoleMessage::Launch { spec, private } => self.launch(spec.clone(), private.clone()),
            ConsoleMessage::Stop { mode, grace_ms } => {
                let actions = self.lifecycle.borrow_mut().stop(*mode, *grace_ms, "console", now);
                self.perform(actions);
                Ok(())
            }
            ConsoleMessage::Inspect { request, ranks } => {
                let lifecycle = self.lifecycle.borrow();
                self.observers.inspect(*request, ranks, &order, &lifecycle, &self.settings.paths)
            }
            ConsoleMessage::Continue { ranks } => {
                let actions = self.lifecycle.borrow().resume(ranks);
                self.perform(actions);
                Ok(())
            }
            ConsoleMessage::Reach { request, process, action } => {
                let parts = (&*self.lifecycle.borrow(), &self.journal);
                reach::reach(*request, *process, *action, &order, parts, &self.supervisor.spared());
                Ok(())
            }
            ConsoleMessage::Detach => {
                self.consoles.detached = true;
                Ok(())
            }
            ConsoleMessage::Ended { generation, ending } => {
                if *generation == self.lifecycle.borrow().generation() {
                    self.journal.record(RecordEvent::Ended { ending: ending.clone() });
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

    fn launch(&mut self, spec: Box<LaunchSpec>, mut private: Private) -> Result<(), HintedError> {
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
        self.kept.borrow_mut().complete(&spec, &mut private.variables, &kept::inherited)?;
        let actions = self.lifecycle.borrow_mut().launch(spec.clone())?;
        if !actions.is_empty() {
            self.consoles.begin();
            self.journal.calls.borrow_mut().begin(private.away.take());
            let ranks: Vec<Rank> = self.lifecycle.borrow().ranks().iter().map(|life| life.rank).collect();
            let secrets = Secrets::of(&spec, &private);
            if let Some(text) = self.observers.begin(&spec, ranks, paths, &self.settings.workdir, secrets) {
                self.journal.notice(text);
            }
            self.supervisor.prepare(spec, private);
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

    /// Looks at the clock and at the surroundings; `Some(reason)` when the agent is to end.
    fn tick(&mut self) -> Option<String> {
        self.tick_supervisor();
        if let Some(event) = self.observers.due_metrics() {
            self.journal.record(event);
        }
        self.journal.check_disk();
        self.follow_sockets();
        let attended = self.consoles.look_on();
        self.call_user(attended);
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
            return Some("the agent was told to end".into());
        }
        reason
    }

    /// Calls the user where no console does. Not in the middle of a stop: who searches for what is left of
    /// the run then finds nothing of ours.
    fn call_user(&self, attended: bool) {
        let lifecycle = self.lifecycle.borrow();
        let calm = lifecycle.is_quiet() || lifecycle.is_running() && !lifecycle.is_stopping();
        drop(lifecycle);
        let failures = if calm { self.journal.calls.borrow_mut().make(attended) } else { Vec::new() };
        failures.into_iter().for_each(|text| self.journal.notice(text));
    }

    /// Sockets that had to move: consoles find them by the manifest, the next ranks by their environment.
    fn follow_sockets(&mut self) {
        let events = self.settings.event_socket();
        if self.supervisor.events_are_at(&events) {
            return;
        }
        let folder = events.parent().unwrap_or(&events).display().to_string();
        self.journal.notice(format!("the folder of the sockets was taken away; they are in {folder} now"));
        self.supervisor.move_sockets(events, self.settings.note());
        self.journal.save_manifest(self.manifest(true).bytes());
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
}

/// Returns when a Slurm step is over; never without one.
async fn over(step: Option<Rc<SlurmStep>>) {
    match step {
        Some(step) => step.over().await,
        None => std::future::pending().await,
    }
}
