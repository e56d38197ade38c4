//! The consoles of an agent: who is attached, and what their absence means for the run.

use crate::serve::console::{self, AttachedConsole, ConsoleContext, ConsoleOrder};
use crate::serve::{Settings, listen};
use crate::supervise::lifecycle::{self, Lifecycle};
use crate::timing::Timing;
use rankdeck_proto::message::AgentMessage;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::OnDisconnect;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long an agent that never launched anything waits for a console.
const UNLAUNCHED_LINGER: Duration = Duration::from_secs(5);
/// Time limit for the goodbye to consoles.
const GOODBYE: Duration = Duration::from_secs(3);

/// All consoles of the agent.
pub(crate) struct Consoles {
    timing: Timing,
    attached: Rc<RefCell<BTreeMap<u64, AttachedConsole>>>,
    bye: watch::Sender<Option<String>>,
    /// When a console was last attached and not silent.
    attended: Instant,
    /// When a console was last attached or something ran.
    busy: Instant,
    /// A console has seen the end of the run.
    pub closed: bool,
    /// A console has left on purpose.
    pub detached: bool,
}

impl Consoles {
    /// No consoles yet.
    pub fn new(timing: Timing) -> Consoles {
        let now = Instant::now();
        Consoles {
            timing,
            attached: Rc::default(),
            bye: watch::channel(None).0,
            attended: now,
            busy: now,
            closed: false,
            detached: false,
        }
    }

    /// Consoles that are attached, by the number of their connection.
    pub fn attached(&self) -> Rc<RefCell<BTreeMap<u64, AttachedConsole>>> {
        self.attached.clone()
    }

    /// The last message for consoles.
    pub fn goodbye(&self) -> watch::Receiver<Option<String>> {
        self.bye.subscribe()
    }

    /// Accepts consoles; to be called in a `LocalSet`.
    ///
    /// Errors: the socket cannot be made.
    pub fn listen(&self, settings: &Settings, context: ConsoleContext) -> Result<(), HintedError> {
        let mut next_id = 0;
        listen(settings, Settings::console_socket, move |stream| {
            next_id += 1;
            tokio::task::spawn_local(console::serve(stream, next_id, context.clone()));
        })
    }

    /// Starts a generation.
    pub fn start(&mut self) {
        self.closed = false;
        self.detached = false;
        self.attended = Instant::now();
    }

    /// Whether a console is attached, and not silent although it used to ping.
    pub fn is_attended(&mut self) -> bool {
        let silent = self.timing.silent;
        let attended = self
            .attached
            .borrow()
            .values()
            .any(|console| !console.pings || console.last_message.elapsed() < silent);
        if attended {
            self.attended = Instant::now();
        }
        attended
    }

    /// Returns the grace of the stop that is due because no console was attached for the experiment's
    /// lease.
    pub fn expired_lease(&self, lifecycle: &Lifecycle) -> Option<u64> {
        let spec = lifecycle.spec()?;
        let launch = &spec.plan.experiment.launch;
        let lease = Duration::try_from_secs_f64(launch.lease_s).unwrap_or(Duration::MAX);
        let expired = lifecycle.is_running()
            && !lifecycle.is_stopping()
            && launch.on_disconnect == OnDisconnect::Stop
            && !self.detached
            && self.attended.elapsed() >= lease;
        expired.then(|| lifecycle::grace_ms(spec))
    }

    /// Returns why the agent is no longer needed, if so.
    pub fn reason_to_end(&mut self, lifecycle: &Lifecycle) -> Option<String> {
        if !lifecycle.is_quiet() || !self.attached.borrow().is_empty() {
            self.busy = Instant::now();
            return None;
        }
        if self.closed {
            return Some("the run has ended".into());
        }
        // Without a launch there is nothing to come back to.
        let linger = match lifecycle.spec() {
            Some(_) => self.timing.linger,
            None => self.timing.linger.min(UNLAUNCHED_LINGER),
        };
        (self.busy.elapsed() >= linger).then(|| "no console is attached".into())
    }

    /// Sends a console the reason why its order cannot be carried out.
    pub fn refuse(order: &ConsoleOrder, error: HintedError) {
        // A console that does not even take its answers will learn from the snapshot.
        let _ = order.answers.try_send(AgentMessage::Refused(error));
    }

    /// Sends all consoles the reason of the agent's end, and waits for them to leave.
    pub async fn end(&self, reason: String) {
        let _ = self.bye.send(Some(reason));
        let begun = Instant::now();
        while !self.attached.borrow().is_empty() && begun.elapsed() < GOODBYE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
