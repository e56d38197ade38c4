//! How an agent begins: it ends what a former agent of the node has left, reads its records, and listens.

use super::end::EndSignals;
use super::{Agent, Inputs};
use crate::identity;
use crate::manifest::{self, Manifest};
use crate::observe::gpu;
use crate::observe::starvation::Starvation;
use crate::proc::{self, Ident};
use crate::serve::calls::Calls;
use crate::serve::console::{ConsoleContext, Identity, Order};
use crate::serve::consoles::Consoles;
use crate::serve::daemon::ServingAgent;
use crate::serve::events::{self, ReceivedEvent};
use crate::serve::journal::Journal;
use crate::serve::observers::{ObserverChannels, Observers};
use crate::serve::settings::Settings;
use crate::serve::slurm_step::SlurmStep;
use crate::serve::{sockets, spool};
use crate::supervise::groups;
use crate::supervise::guard;
use crate::supervise::helpers::Helpers;
use crate::supervise::launch_prep::HostFacts;
use crate::supervise::leftovers::Leftovers;
use crate::supervise::lifecycle::Lifecycle;
use crate::supervise::supervisor::{self, NodeContext, Supervisor};
use crate::timing::Timing;
use rankdeck_proto::clock::wall_time;
use rankdeck_types::error::HintedError;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

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
        let RecoveredNode { lifecycle, spool, left } = recover(&settings).await?;
        let thread = |error| failed("cannot start a thread", error);
        let (timing, gpus) = (Timing::from_environment(), gpu::Gpus::start());
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
        let helpers = Helpers::default();
        let calls = Calls::new(settings.run.clone(), settings.host.clone(), helpers.clone());
        let (supervisor, outcomes) =
            Supervisor::new(context, lifecycle.clone(), gpus.clone(), helpers).map_err(thread)?;
        let (observers, observed) = Observers::new(timing, gpus).map_err(thread)?;
        let mut agent = Agent {
            timing,
            own,
            build: identity::build(),
            started: former.map_or_else(wall_time, |manifest| manifest.started),
            journal: Journal::new(lifecycle.clone(), spool.clone(), settings.paths.spool(), calls),
            supervisor,
            observers,
            consoles: Consoles::new(timing),
            lifecycle,
            kept: Rc::default(),
            step: SlurmStep::of(settings.holder)
                .map_err(|error| failed("the Slurm step that started this agent is over", error))?
                .map(Rc::new),
            cause_by: None,
            asked_cause: false,
            starvation: Starvation::default(),
            quitting: false,
            settings,
        };
        agent.tick_supervisor();
        agent.observers.remember_logs(&agent.lifecycle.borrow(), &agent.settings.paths);
        let (said, orders) = agent.listen(spool, &observed)?;
        Ok((agent, Inputs { children, end_signals, outcomes, observed, said, orders, step_over: false }))
    }

    fn listen(
        &self,
        spool: spool::Spool,
        observed: &ObserverChannels,
    ) -> Result<(mpsc::Receiver<ReceivedEvent>, mpsc::Receiver<Order>), HintedError> {
        let (said_in, said) = mpsc::channel(1024);
        let (orders_in, orders) = mpsc::channel(64);
        let connections = self.observers.events();
        sockets::listen(&self.settings, Settings::event_socket, move |stream| {
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
        Ok((said, orders))
    }

    /// What the starter is told.
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
