//! The console's event loop: every input becomes an event, the core returns effects, and the
//! loop executes them.
//!
//! Owner: the console process; it owns the core, the links, the recording and the output. Cancel-safety:
//! every branch of the one `select` may be dropped at its await without losing anything (channel, signal, key
//! stream, timer).

mod screen;

use super::clock::{Clock, earlier};
use super::demo::Demo;
use super::exit_condition::{ExitCondition, ExitStep};
use super::external_shell::ExternalShell;
use super::headless::{EndPatience, LineFormat, Printer};
use super::live_playback::{LivePlayback, PlaybackFrame};
use super::metrics::{self, Endpoint, MetricsRequest};
use super::notify::{self, ConsoleNotifier};
use super::output::ConsoleOutput;
use super::record::{self, Recorder, RecordingInfo};
use super::secrets::{GenerationSecrets, VariableConsent};
use super::side_jobs::LatestWorker;
use super::side_jobs::{self, CurveReader};
use super::signals::{ConsoleSignal, ConsoleSignals};
use super::tty_prompt::{self, PromptAnswer, PromptThread};
use super::{overrides, stderr};
use rankdeck_core::event::Effect;
use rankdeck_core::event::{Event, StopSource};
use rankdeck_core::model::{Model, RunState, SlowLink};
use rankdeck_core::report::ReportBody;
use rankdeck_core::{Core, Goal};
use rankdeck_link::{LinkCommand, LinkEvent, LinkHandle, NoAgentPolicy};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_tui::restart_draft::{Changer, FileAnswer, FileQuestion};
use rankdeck_tui::state::ConsoleCapabilities;
use rankdeck_tui::{Role, ScreenAction};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, StopGoal};
use rankdeck_types::ui::Notify;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Least time between two ticks.
const TICK_MS: u64 = 10;
/// Longest time for links to close.
const LINKS_END_WITHIN: Duration = Duration::from_secs(3);
/// Link events handled in a row, and about how long that may take: keys wait for it.
const BURST: usize = 256;
const BURST_MS: u64 = 5;
/// How long a detaching console waits for its last commands to be sent.
const DETACH_MS: u64 = 2000;
/// Exit code of an interrupted console.
const INTERRUPTED: u8 = 130;

/// Opens a link to a host with this index; the flag: the built-in trainer is needed there.
pub(crate) type Connector = Box<dyn Fn(NodeRank, &Host, NoAgentPolicy, bool) -> LinkHandle + Send>;

/// The links of a console, what they report, and the means to open more.
pub(crate) struct ConsoleLinks {
    /// One per host, already open.
    pub(crate) handles: Vec<LinkHandle>,
    /// Their events.
    pub(crate) inbox: mpsc::Receiver<(NodeRank, LinkEvent)>,
    /// Opens further links, for hosts that join the run.
    pub(crate) connector: Option<Connector>,
}

/// Everything a console works with: commands fill it in, and the loop keeps it.
pub(crate) struct ConsoleSetup {
    /// What the console is for.
    pub(crate) goal: Goal,
    /// When the console exits.
    pub(crate) exit_condition: ExitCondition,
    pub(crate) links: ConsoleLinks,
    /// When to stop the run.
    pub(crate) until: Vec<StopGoal>,
    /// Hosts that could join the run.
    pub(crate) spares: Vec<Host>,
    /// All hosts that the user has listed: no other is ever contacted.
    pub(crate) listed: Vec<Host>,
    /// Preflight warnings, shown whatever page is open.
    pub(crate) warnings: Vec<String>,
    /// Links that an earlier measurement of these hosts found slow.
    pub(crate) slow_links: Vec<SlowLink>,
    /// Name of the folder in which ranks work; `None`: the run's own name.
    pub(crate) work: Option<String>,
    /// The recording, if there is one.
    pub(crate) recorder: Option<Recorder>,
    /// Accept unknown host keys without a prompt.
    pub(crate) accept_new_host_keys: bool,
    /// A user can be prompted on the terminal.
    pub(crate) can_ask: bool,
    /// The hosts are simulated and end with this console.
    pub(crate) simulated: bool,
    /// Keys of a demonstration that inject faults.
    pub(crate) demo: Option<Demo>,
    /// Which of this console's variables a restart may send.
    pub(crate) consent: VariableConsent,
    /// When to notify the user, and how; `None`: never.
    pub(crate) notify: Option<Notify>,
    /// The Prometheus endpoint.
    pub(crate) metrics: Option<Endpoint>,
    /// The user can launch the same experiment again.
    pub(crate) can_relaunch: bool,
    /// Reads the files of the launch for a restart that is typed. It may block.
    pub(crate) read_files: Option<fn(FileQuestion) -> FileAnswer>,
    /// Applies changed keys to the run's experiment.
    pub(crate) changer: Changer,
    /// The home screen returns when this screen closes.
    pub(crate) at_home: bool,
}

impl ConsoleSetup {
    /// A console with these links and defaults for everything else.
    pub(crate) fn new(goal: Goal, exit_condition: ExitCondition, links: ConsoleLinks) -> ConsoleSetup {
        ConsoleSetup {
            goal,
            exit_condition,
            links,
            until: Vec::new(),
            spares: Vec::new(),
            listed: Vec::new(),
            warnings: Vec::new(),
            slow_links: Vec::new(),
            work: None,
            recorder: None,
            accept_new_host_keys: false,
            can_ask: false,
            simulated: false,
            demo: None,
            consent: VariableConsent::Unasked,
            notify: None,
            metrics: None,
            can_relaunch: false,
            read_files: None,
            changer: overrides::change,
            at_home: false,
        }
    }

    /// Sets what a screen or line mode may offer.
    fn apply_to(&self, steering: &mut ConsoleCapabilities, run: &str) {
        steering.spares = self.spares.clone();
        steering.changer = Some(self.changer);
        steering.attached = matches!(self.goal, Goal::Attach { .. });
        steering.again = self.can_relaunch;
        steering.at_home = self.at_home;
        steering.passing = self.simulated;
        steering.unrecorded = self.recorder.is_none();
        // A demonstration's recording is deleted when it ends.
        let is_kept = self.recorder.is_some() && self.demo.is_none();
        steering.report = is_kept.then(|| format!("rankdeck report {run}"));
        let runs = self.recorder.as_ref().and_then(Recorder::runs);
        steering.recorded = runs.map(|runs| side_jobs::names(runs, run)).unwrap_or_default();
    }
}

/// How a console ended.
#[derive(Debug)]
pub(crate) struct ConsoleExit {
    /// The console's exit code.
    pub(crate) code: u8,
    /// Why it ended.
    pub(crate) why: ExitReason,
    /// The final state.
    pub(crate) model: Model,
    /// The run's final report, if the run has ended.
    pub(crate) finished: Option<ReportBody>,
    pub(crate) record: Option<RecordingInfo>,
    /// The user requested a relaunch.
    pub(crate) again: bool,
    /// Whether its lines were read to the end; if not, further ones would not be either.
    pub(crate) read: bool,
    /// Whether the command had not sent its request yet.
    pub(crate) unrequested: bool,
}

/// Why a console ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// The core finished.
    Done,
    /// The run keeps running.
    Detached,
    /// The exit condition gave up: a time limit passed, or its request was refused.
    GaveUp,
    /// A signal arrived before the command had sent its request: the run is unchanged.
    Interrupted,
    /// A third signal, or the terminal failed.
    Cut,
}

/// Runs a console to its end.
///
/// # Errors
/// Signals cannot be handled, or the first frame cannot be drawn.
pub(crate) async fn drive(setup: ConsoleSetup, output: ConsoleOutput) -> io::Result<ConsoleExit> {
    let mut signals = ConsoleSignals::new(matches!(output, ConsoleOutput::Screen(_)))?;
    let (answers_in, mut answers) = mpsc::channel::<PromptAnswer>(64);
    let mut setup = setup;
    let warnings = std::mem::take(&mut setup.warnings);
    let slow_links = std::mem::take(&mut setup.slow_links);
    let mut driver = Driver::new(setup, output, answers_in);
    driver.dispatch(Event::WallClock { time: wall_time() });
    driver.load_pace();
    driver.report_unlisted();
    if !warnings.is_empty() {
        driver.dispatch(Event::Warned { lines: warnings });
    }
    if !slow_links.is_empty() {
        driver.dispatch(Event::Measured { slow_links });
    }
    let why = loop {
        if let Some(why) = driver.exit.reason_at(driver.clock.now()) {
            break why;
        }
        driver.draw()?;
        let (due, wake) = (driver.poll_timeout(), driver.output.wake());
        let files_read = Arc::clone(&driver.files.wake);
        let inbox_open = driver.inbox_open;
        tokio::select! {
            signal = signals.next() => driver.on_signal(signal, &mut signals).await?,
            input = driver.output.next_input() => driver.on_input(input, &mut signals).await?,
            event = driver.setup.links.inbox.recv(), if inbox_open => driver.on_link(event),
            Some((node, answer)) = answers.recv() => driver.dispatch(Event::PromptAnswered { node, answer }),
            text = notify::failed(&mut driver.notifier) => driver.warn(text),
            request = next_request(&mut driver.setup.metrics) => driver.answer_metrics(request),
            loaded = driver.curves.next() => driver.show_compared(loaded),
            event = driver.external_shell.next() => driver.on_shell_event(event)?,
            () = wake.notified() => {}
            () = files_read.notified() => {}
            () = driver.clock.sleep_until(due) => driver.on_time(),
        }
    };
    Ok(driver.end(why, &mut signals).await)
}

/// Waits for a metrics request. Cancel-safe.
async fn next_request(endpoint: &mut Option<Endpoint>) -> MetricsRequest {
    match endpoint {
        Some(endpoint) => endpoint.next_request().await,
        None => std::future::pending().await,
    }
}

struct Driver {
    core: Core,
    clock: Clock,
    output: ConsoleOutput,
    setup: ConsoleSetup,
    inbox_open: bool,
    secrets: GenerationSecrets,
    /// Names of the hosts last reported as awaited.
    awaited: String,
    prompts: PromptPolicy,
    ticked_at: Timestamp,
    /// Events caused by effects.
    later: Vec<Event>,
    exit: ExitState,
    drawn: u64,
    /// The playback position shown instead of the live state.
    playback: Option<LivePlayback>,
    notifier: Option<ConsoleNotifier>,
    /// Other runs in the charts.
    curves: CurveReader,
    /// A shell that has the terminal.
    external_shell: ExternalShell,
    files: LaunchFiles,
    /// The run is being stopped: links may resume agents.
    resuming: bool,
}

/// Files of the launch, read for a restart that is typed.
#[derive(Default)]
struct LaunchFiles {
    /// Started for the first question.
    reader: Option<LatestWorker<FileQuestion, FileAnswer>>,
    /// The line that it reads for.
    line: Option<String>,
    /// Notified of answers.
    wake: Arc<tokio::sync::Notify>,
}

impl Driver {
    fn new(
        mut setup: ConsoleSetup,
        mut output: ConsoleOutput,
        answers: mpsc::Sender<PromptAnswer>,
    ) -> Driver {
        let core = Core::new(setup.goal.clone(), std::mem::take(&mut setup.until), Timestamp(0));
        let consent = match setup.goal {
            Goal::Launch(_) => VariableConsent::Own,
            Goal::Attach { .. } => std::mem::take(&mut setup.consent),
        };
        let run = core.model().run.id.as_ref().map(|run| run.0.clone()).unwrap_or_default();
        match &mut output {
            ConsoleOutput::Screen(screen) => setup.apply_to(&mut screen.view.steering, &run),
            ConsoleOutput::Linear(linear) => setup.apply_to(&mut linear.words.view.steering, &run),
            ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => {}
        }
        Driver {
            core: if setup.exit_condition.outlives_run() { core.lingering() } else { core },
            clock: Clock::new(),
            output,
            inbox_open: true,
            secrets: GenerationSecrets::new(setup.notify.as_ref(), consent, setup.work.clone()),
            awaited: String::new(),
            prompts: PromptPolicy::new(setup.accept_new_host_keys, setup.can_ask, answers),
            ticked_at: Timestamp(0),
            later: Vec::new(),
            exit: ExitState::default(),
            drawn: 0,
            playback: None,
            notifier: setup.notify.take().map(ConsoleNotifier::new),
            curves: CurveReader::default(),
            external_shell: ExternalShell::default(),
            files: LaunchFiles::default(),
            resuming: false,
            setup,
        }
    }

    /// Loads the pace baseline of an earlier console of this run.
    fn load_pace(&mut self) {
        let found = self.setup.recorder.as_ref().and_then(|recorder| record::earlier_pace(recorder.folder()));
        if let Some(pace) = found {
            self.dispatch(Event::Recalled { pace });
        }
    }

    /// Passes an event to the core, executes the effects, and handles the events that follow.
    fn dispatch(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            let now = self.clock.now();
            let event = self.secrets.refusal(&event, self.core.model()).unwrap_or(event);
            let event = self.copy_answer(&event).unwrap_or(event);
            if let Some(recorder) = &mut self.setup.recorder
                && event.is_recorded()
            {
                recorder.event(now, event.without_pieces().as_ref().unwrap_or(&event), &self.core);
            }
            if event == Event::DetachRequested {
                self.exit.detaching.get_or_insert(now);
            }
            let asked = match &event {
                Event::LinkChanged { node, state: LinkState::Asking { prompt } } => {
                    Some((*node, prompt.clone()))
                }
                _ => None,
            };
            let effects = self.core.handle(now, event);
            if let Some(notifier) = &mut self.notifier {
                notifier.observe(now, self.core.model());
            }
            for effect in effects {
                self.execute(now, effect);
            }
            self.resume_agents();
            if let Some(line) = self.secrets.lacking(self.core.model()) {
                if matches!(self.output, ConsoleOutput::Lines(_) | ConsoleOutput::Linear(_)) {
                    stderr::line(&format!("warning: {line}"));
                }
                self.later.push(Event::Warned { lines: vec![line] });
            }
            queue.extend(self.later.drain(..));
            queue.extend(asked.and_then(|(node, prompt)| self.answer_for_user(node, &prompt)));
            match self.setup.exit_condition.step(now, self.core.model()) {
                ExitStep::Wait => {}
                ExitStep::Do(event) => queue.push_back(event),
                ExitStep::GiveUp => self.exit.reason = Some(ExitReason::GaveUp),
            }
            self.report_awaited(now);
            // Without a screen, the console cannot stay after the end.
            let alone = match self.setup.exit_condition {
                ExitCondition::Linger => !self.output.can_linger(),
                // It leaves, and the core may stay.
                ExitCondition::Detach(_) => self.exit.code.is_none(),
                _ => false,
            };
            if alone && self.is_over() && self.exit.detaching.is_none() {
                queue.push_back(Event::DetachRequested);
            }
        }
    }

    /// The run has ended, or no host has reported it.
    fn is_over(&self) -> bool {
        self.exit.finished.is_some() || self.core.model().run.state == RunState::Over
    }

    /// Without other output: prints the awaited hosts when they change.
    fn report_awaited(&mut self, now: Timestamp) {
        let names = self.setup.exit_condition.awaited(now, self.core.model()).join(", ");
        if matches!(self.output, ConsoleOutput::Quiet) && names != self.awaited {
            if !names.is_empty() {
                stderr::line(&format!("waiting for {names} ..."));
            }
            for error in self.setup.exit_condition.obstacles(now, self.core.model()) {
                stderr::line(&format!("warning: {}", error.with_hint()));
            }
            self.awaited = names;
        }
    }

    /// An answer to the question whether to copy a checkpoint, which is the core's: it decides in a recording, too.
    fn copy_answer(&self, event: &Event) -> Option<Event> {
        let Event::PromptAnswered { node, answer } = event else { return None };
        let prompt = self.core.model().hosts.get(node.index())?.prompt.as_ref()?;
        matches!(prompt, Prompt::CopyCheckpoint { .. }).then(|| Event::CopyAnswered { yes: answer.is_some() })
    }

    /// Answers a prompt that is not shown on the screen.
    fn answer_for_user(&mut self, node: NodeRank, prompt: &Prompt) -> Option<Event> {
        let on_screen = matches!(self.output, ConsoleOutput::Screen(_));
        let host = self.core.model().hosts.get(node.index());
        let name = || host.map_or_else(|| node.to_string(), |host| host.name.clone());
        self.prompts.answer_for_user(node, name, prompt, on_screen)
    }

    fn execute(&mut self, now: Timestamp, effect: Effect) {
        match effect {
            Effect::Link { node, command } => self.send(node, command),
            Effect::Connect { node, host } => self.connect(node, &host, NoAgentPolicy::Join),
            Effect::Find { node, name } => self.find(node, &name),
            Effect::Ask { node, prompt } => {
                let answer = self.answer_for_user(node, &prompt);
                self.later.extend(answer);
            }
            Effect::Report(mut report) => {
                report.time = wall_time();
                self.output.report(now, &report, self.core.model());
                if let Some(notifier) = &mut self.notifier {
                    notifier.report(&report, &mut self.output);
                }
                match &report.body {
                    body @ ReportBody::RunFinished { .. } => self.exit.finished = Some(body.clone()),
                    // The run had ended, and another generation has started.
                    ReportBody::RunStarted { .. } => self.exit.finished = None,
                    _ => {}
                }
                if let Some(recorder) = &mut self.setup.recorder {
                    recorder.report(now, report);
                }
            }
            Effect::Exit { code } => self.exit.code = Some(code),
        }
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        let mut notices = Vec::new();
        if let Some(recorder) = &mut self.setup.recorder {
            recorder.flush(Some(now));
            recorder.save_pace(Some(now), || self.core.pace_history());
            notices = recorder.take_notices();
        }
        notices.into_iter().for_each(|text| self.warn(text));
        let next_tick = earlier(self.core.poll_timeout(), self.setup.exit_condition.poll_timeout());
        if next_tick.is_some_and(|at| at <= now) {
            self.ticked_at = now;
            self.dispatch(Event::Ticked);
        }
    }

    /// Answers a metrics request; a closed connection is ignored.
    fn answer_metrics(&self, request: MetricsRequest) {
        let _ = request.answer.send(metrics::text(self.core.model(), self.clock.now(), request.form));
    }

    /// Shows a warning about the console itself.
    fn warn(&mut self, text: String) {
        match &mut self.output {
            ConsoleOutput::Screen(screen) => screen.view.toast(text.clone(), Role::Warn, self.clock.now()),
            ConsoleOutput::Lines(_) | ConsoleOutput::Linear(_) | ConsoleOutput::Quiet => {
                stderr::line(&format!("warning: {text}"))
            }
        }
        self.dispatch(Event::Noticed { text });
    }

    /// The moment of the recording that is shown; `None`: the live state.
    fn played_back(&self) -> Option<&PlaybackFrame> {
        self.playback.as_ref().and_then(LivePlayback::shown)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let tick = earlier(self.core.poll_timeout(), self.setup.exit_condition.poll_timeout());
        let tick = tick.map(|at| at.max(self.ticked_at.plus(TICK_MS)));
        let flush = self.setup.recorder.as_ref().and_then(Recorder::poll_timeout);
        let detach = self.exit.poll_timeout();
        [tick, flush, detach, self.output.poll_timeout()].into_iter().fold(None, earlier)
    }

    /// Closes everything: links first (their last commands must be sent), then the output, then the
    /// recording.
    async fn end(mut self, why: ExitReason, signals: &mut ConsoleSignals) -> ConsoleExit {
        if why != ExitReason::Cut {
            self.end_links().await;
        }
        if let ConsoleOutput::Screen(screen) = &mut self.output {
            if let Some(notifier) = &self.notifier {
                notifier.leave(screen);
            }
            screen.close();
        }
        tty_prompt::restore();
        if let Some(notifier) = self.notifier.take() {
            let stays = matches!(self.output, ConsoleOutput::Screen(_) | ConsoleOutput::Linear(_))
                || why == ExitReason::Detached;
            for text in notifier.end(stays).await {
                stderr::line(&format!("warning: {text}"));
            }
        }
        let patience = match why {
            ExitReason::Cut => EndPatience::Cut,
            _ if self.exit.signaled => EndPatience::Signaled,
            _ => EndPatience::Usual,
        };
        let read = self.output.finish(self.core.model(), signals, patience).await;
        drop(self.output);
        side_jobs::finish();
        self.playback = None;
        if let Some(recorder) = &mut self.setup.recorder {
            recorder.save_pace(None, || self.core.pace_history());
        }
        let record = self.setup.recorder.take().map(Recorder::close);
        let code = self.exit.code_for(why, self.core.model().run.exit_code);
        tracing::info!("console ends: {why:?}, exit code {code}, {} frames", self.drawn);
        ConsoleExit {
            code,
            why,
            model: self.core.model().clone(),
            finished: self.exit.finished,
            record,
            again: self.exit.again,
            read,
            unrequested: self.setup.exit_condition.is_unrequested(self.core.model()),
        }
    }
}

impl Driver {
    /// Sends a command of the core to a link; adds the unrecorded part of a launch (SECRET-1).
    fn send(&mut self, node: NodeRank, mut command: LinkCommand) {
        if let LinkCommand::Send(ConsoleMessage::Rejoin { generation, private, .. }) = &mut command
            && let Some(plan) = &self.core.model().plan
        {
            *private = self.secrets.known(*generation, plan, node);
        }
        if let LinkCommand::Send(ConsoleMessage::Launch { spec, private, .. }) = &mut command {
            match self.secrets.private(spec) {
                Ok(own) => *private = own,
                // The core sends the launch again when the link is up.
                Err(error) => return tracing::error!("cannot launch: no random numbers: {error}"),
            }
        }
        self.try_send(node, command);
    }

    /// Once the run is being stopped, a suspended agent is resumed. A link that is not connected
    /// would wait for it otherwise.
    fn resume_agents(&mut self) {
        let was = std::mem::replace(&mut self.resuming, self.core.model().run.stopping.is_some());
        if self.resuming && !was {
            self.setup.links.handles.iter().for_each(|link| self.try_send(link.node, LinkCommand::Resume));
        }
    }

    /// Opens a link to a host that joins the run, or that is in another console's plan.
    fn connect(&mut self, node: NodeRank, host: &Host, opening: NoAgentPolicy) {
        let builtin = self.core.model().plan.as_ref().is_some_and(Plan::is_builtin);
        self.setup.links.handles.retain(|link| link.node != node);
        match &self.setup.links.connector {
            Some(connector) => {
                self.setup.links.handles.push(connector(node, host, opening, builtin));
                if self.resuming {
                    self.try_send(node, LinkCommand::Resume);
                }
            }
            None => tracing::warn!("cannot open a link to host {node}"),
        }
    }

    /// Opens a link to a host of the hosts file; other hosts are not contacted.
    fn find(&mut self, node: NodeRank, name: &str) {
        match self.setup.listed.iter().find(|host| host.name == name).cloned() {
            Some(host) => self.connect(node, &host, NoAgentPolicy::Attach),
            None => self.later.push(unlisted(node, name)),
        }
    }

    /// Reports hosts of the run without a link to the core.
    fn report_unlisted(&mut self) {
        let hosts = &self.core.model().hosts;
        let without_link = hosts.iter().filter(|host| {
            let linked = self.setup.links.handles.iter().any(|link| link.node == host.node_rank);
            !linked && host.excluded.is_none()
        });
        let events: Vec<Event> = without_link.map(|host| unlisted(host.node_rank, &host.name)).collect();
        events.into_iter().for_each(|event| self.dispatch(event));
    }

    /// Sends a command to a link. A full queue means that the link is stuck; the core sends again after the
    /// next snapshot.
    fn try_send(&self, node: NodeRank, command: LinkCommand) {
        let Some(link) = self.setup.links.handles.iter().find(|link| link.node == node) else { return };
        if let Err(error) = link.commands.try_send(command) {
            tracing::warn!("command to host {node} not sent: {error}");
        }
    }

    fn on_link(&mut self, first: Option<(NodeRank, LinkEvent)>) {
        let Some(first) = first else {
            self.inbox_open = false;
            return;
        };
        let started = self.clock.now();
        self.dispatch(first.into());
        for _ in 1..BURST {
            if self.clock.now().since(started) > BURST_MS {
                break;
            }
            let Ok(next) = self.setup.links.inbox.try_recv() else { break };
            self.dispatch(next.into());
        }
    }

    async fn end_links(&mut self) {
        let deadline = tokio::time::Instant::now() + LINKS_END_WITHIN;
        for link in &self.setup.links.handles {
            let _ = tokio::time::timeout_at(deadline, link.commands.send(LinkCommand::Close)).await;
        }
        let links = &self.setup.links.handles;
        let ended = async {
            for link in links {
                link.commands.closed().await;
            }
        };
        // Further events are not needed, but a full inbox would block the links. It stays open: a link that
        // finds it closed ends at once, and pending commands would be lost.
        let inbox = &mut self.setup.links.inbox;
        let drained = async {
            while inbox.recv().await.is_some() {}
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout_at(deadline, async {
            tokio::select! {
                () = ended => {}
                () = drained => {}
            }
        })
        .await;
    }
}

/// The state of a host that is not contacted.
fn unlisted(node: NodeRank, name: &str) -> Event {
    let error = format!("{name}: not in the hosts file; not contacted");
    let hint = format!(
        "add `[[host]]` with `name = \"{name}\"`, or pass the hosts file of the launch with `--hosts FILE`"
    );
    Event::LinkChanged { node, state: LinkState::Failed(HintedError { error, hint }) }
}

impl Driver {
    async fn on_signal(&mut self, signal: ConsoleSignal, signals: &mut ConsoleSignals) -> io::Result<()> {
        match signal {
            // The keys behind this signal are meant for the shell that has the terminal.
            ConsoleSignal::Stop | ConsoleSignal::Suspend if self.external_shell.has_terminal() => {}
            ConsoleSignal::Stop => self.on_stop_signal(),
            ConsoleSignal::HangUp => self.on_hang_up(),
            ConsoleSignal::Suspend => self.act(ScreenAction::Suspend, signals).await?,
            ConsoleSignal::Continue => {
                self.dispatch(Event::WallClock { time: wall_time() });
                if let ConsoleOutput::Screen(screen) = &mut self.output {
                    screen.redraw();
                }
            }
        }
        Ok(())
    }

    /// Whether input cannot change the run.
    fn is_read_only(&self) -> bool {
        match &self.output {
            ConsoleOutput::Screen(screen) => screen.view.steering.read_only,
            ConsoleOutput::Linear(linear) => linear.words.view.steering.read_only,
            ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => {
                self.setup.exit_condition == ExitCondition::Observe
            }
        }
    }

    /// Whether the console only follows a run that was launched elsewhere: its end is not that of the run.
    fn is_viewer(&self) -> bool {
        let follows = matches!(
            self.setup.exit_condition,
            ExitCondition::Watch | ExitCondition::Linger | ExitCondition::Observe | ExitCondition::Detach(_)
        );
        follows && matches!(self.setup.goal, Goal::Attach { .. })
    }

    /// The terminal is gone. A requested restart continues: only this console launches its generation.
    fn on_hang_up(&mut self) {
        if self.setup.exit_condition.is_unrequested(self.core.model()) {
            self.exit.reason = Some(ExitReason::Interrupted);
        } else if let Some(text) = self.setup.exit_condition.restart_in_progress(self.core.model()) {
            stderr::line(&format!("{text}; this command exits when the run is up"));
        } else {
            self.exit.signaled = true;
            self.leave();
        }
    }

    /// Exits; the run keeps running. Between two generations it would not: only this console launches the next
    /// one, and exits then. A second signal exits at once.
    fn leave(&mut self) {
        let leaving = matches!(self.setup.exit_condition, ExitCondition::Detach(_));
        if leaving || self.setup.simulated || self.core.model().run.state != RunState::Restarting {
            return self.dispatch(Event::DetachRequested);
        }
        if let ConsoleOutput::Screen(screen) = &mut self.output {
            screen.close();
            self.output = ConsoleOutput::Quiet;
        }
        let next = u64::from(self.core.model().run.generation.0) + 1;
        stderr::line(&format!("generation {next} is starting; this console exits when it is up"));
        self.setup.exit_condition = ExitCondition::detach();
    }

    /// First: clean stop; second: kill; third: exit at once. Before a command has sent its request, the first
    /// one exits; a console that attached detaches. The screen is replaced by lines, so that the rest can be
    /// read.
    fn on_stop_signal(&mut self) {
        if self.setup.exit_condition.is_unrequested(self.core.model()) {
            self.exit.reason = Some(ExitReason::Interrupted);
            return;
        }
        if self.is_read_only() || self.is_viewer() {
            self.exit.signaled = true;
            return self.leave();
        }
        if let ConsoleOutput::Screen(screen) = &mut self.output {
            screen.close();
            self.output = match Printer::new(LineFormat::Plain { logs: false }) {
                Ok(printer) => ConsoleOutput::Lines(Box::new(printer)),
                Err(_) => ConsoleOutput::Quiet,
            };
        }
        self.exit.stop_signals += 1;
        let mode = match self.exit.stop_signals {
            _ if self.exit.finished.is_some() => {
                let restarts = self.setup.exit_condition.restart_in_progress(self.core.model()).is_some();
                self.exit.reason = Some(if restarts { ExitReason::Interrupted } else { ExitReason::Done });
                return;
            }
            1 => StopMode::Clean,
            2 => StopMode::Kill,
            _ => {
                self.exit.reason = Some(ExitReason::Cut);
                return;
            }
        };
        let model = self.core.model();
        if let Some(text) = self.setup.exit_condition.restart_in_progress(model) {
            stderr::line(&format!("{text}; canceling it"));
        }
        stderr::line(match mode.max(model.run.stopping.unwrap_or(mode)) {
            StopMode::Kill => "killing the run; a third signal quits without waiting",
            StopMode::Clean | StopMode::Terminate => "stopping the run cleanly; a second signal kills it",
        });
        self.dispatch(Event::StopRequested { mode, by: StopSource::Signal });
    }
}

/// The state of the console's exit.
#[derive(Debug, Default)]
struct ExitState {
    /// The exit code of the core.
    code: Option<u8>,
    /// The driver's own reason to exit at once.
    reason: Option<ExitReason>,
    /// Since when the console has been detaching.
    detaching: Option<Timestamp>,
    /// The run's final report, while it has ended.
    finished: Option<ReportBody>,
    /// The user requested a relaunch.
    again: bool,
    /// Stop signals so far.
    stop_signals: u32,
    /// A signal asked a viewer to exit: a further one is not needed.
    signaled: bool,
}

impl ExitState {
    /// Returns the reason to exit now.
    fn reason_at(&self, now: Timestamp) -> Option<ExitReason> {
        let ended = if self.finished.is_some() { ExitReason::Done } else { ExitReason::Detached };
        let done = self.code.map(|_| if self.detaching.is_some() { ended } else { ExitReason::Done });
        let late = self.detaching.is_some_and(|since| now.since(since) >= DETACH_MS);
        self.reason.or(done).or(late.then_some(ended))
    }

    /// When [`ExitState::reason_at`] must be checked again without an event.
    fn poll_timeout(&self) -> Option<Timestamp> {
        self.detaching.map(|since| since.plus(DETACH_MS))
    }

    /// The console's exit code; `of_run`: that of the model.
    fn code_for(&self, why: ExitReason, of_run: Option<u8>) -> u8 {
        match why {
            // Without a code from the core, success is not known.
            ExitReason::Done => self.code.or(of_run).unwrap_or(1),
            ExitReason::Detached => self.code.unwrap_or(0),
            ExitReason::GaveUp => 3,
            ExitReason::Interrupted | ExitReason::Cut => INTERRUPTED,
        }
    }
}

/// How prompts of links are answered.
struct PromptPolicy {
    accept_new_host_keys: bool,
    /// Whether a user can be prompted on the terminal.
    can_ask: bool,
    asker: Option<PromptThread>,
    answers: mpsc::Sender<PromptAnswer>,
}

impl PromptPolicy {
    fn new(accept_new_host_keys: bool, can_ask: bool, answers: mpsc::Sender<PromptAnswer>) -> PromptPolicy {
        PromptPolicy { accept_new_host_keys, can_ask, asker: None, answers }
    }

    /// Answers a prompt that needs no user, or cannot be shown on a screen; otherwise prompts on the
    /// terminal.
    fn answer_for_user(
        &mut self,
        node: NodeRank,
        name: impl FnOnce() -> String,
        prompt: &Prompt,
        on_screen: bool,
    ) -> Option<Event> {
        if self.accept_new_host_keys && matches!(prompt, Prompt::UnknownHostKey { .. }) {
            return Some(Event::PromptAnswered { node, answer: Some("yes".to_owned()) });
        }
        if on_screen {
            return None;
        }
        if self.can_ask && self.asker.is_none() {
            self.asker = PromptThread::new(self.answers.clone()).ok();
        }
        let asked = self.can_ask && self.asker.as_ref().is_some_and(|asker| asker.ask(node, &name(), prompt));
        (!asked).then_some(Event::PromptAnswered { node, answer: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::screen::TerminalScreen;
    use crate::app::terminal::testkit::CountingTerminal;
    use crossterm::event::Event as TermEvent;
    use rankdeck_types::ids::RunId;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn screen() -> (TerminalScreen, Arc<AtomicU64>) {
        let (surface, frames) = CountingTerminal::new();
        let input = Box::pin(futures_util::stream::pending());
        (TerminalScreen::new(Box::new(surface), input, rankdeck_tui::Theme::dark()), frames)
    }

    fn driver(
        output: ConsoleOutput,
        exit_condition: ExitCondition,
    ) -> (Driver, mpsc::Sender<(NodeRank, LinkEvent)>) {
        let (events, inbox) = mpsc::channel(16);
        let (answers, _) = mpsc::channel(1);
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let links = ConsoleLinks { handles: Vec::new(), inbox, connector: None };
        let setup = ConsoleSetup::new(goal, exit_condition, links);
        (Driver::new(setup, output, answers), events)
    }

    #[tokio::test]
    async fn app_1_nothing_is_drawn_without_a_change() {
        let (screen, frames) = screen();
        let (mut driver, _events) = driver(ConsoleOutput::Screen(Box::new(screen)), ExitCondition::Watch);
        for _ in 0..1000 {
            driver.draw().unwrap();
        }
        assert_eq!(frames.load(Ordering::SeqCst), 1, "only the first frame");
        assert_eq!(driver.output.poll_timeout(), None, "and nothing wakes the loop to draw again");
        let key = crossterm::event::KeyEvent::new(
            crossterm::event::KeyCode::Char('?'),
            crossterm::event::KeyModifiers::NONE,
        );
        let ConsoleOutput::Screen(screen) = &mut driver.output else { panic!("no screen") };
        screen.handle_input(Some(TermEvent::Key(key)), &Model::default(), Timestamp(0));
        assert!(driver.output.poll_timeout().is_some(), "a key requests a frame");
    }

    #[tokio::test]
    async fn third_signal_exits_with_failure() {
        let stop = ExitCondition::Stop { mode: StopMode::Clean, requested: true, limits: Default::default() };
        let (mut driver, _events) = driver(ConsoleOutput::Quiet, stop);
        driver.on_stop_signal();
        driver.on_stop_signal();
        // The third one exits, whatever effect the first two had.
        (driver.exit.code, driver.exit.finished) = (None, None);
        assert_eq!(driver.exit.reason, None);
        driver.on_stop_signal();
        assert_eq!(driver.exit.reason_at(driver.clock.now()), Some(ExitReason::Cut));
        assert_ne!(driver.end(ExitReason::Cut, &mut ConsoleSignals::new(false).unwrap()).await.code, 0);
    }

    #[tokio::test]
    async fn signal_before_request_exits_without_stop() {
        let restart = |over| ExitCondition::restart(None, Vec::new(), Vec::new(), false, None, over);
        let stop = ExitCondition::stop(rankdeck_proto::message::StopMode::Clean);
        for exit_condition in [restart(false), restart(true), ExitCondition::query(Vec::new()), stop] {
            for signal in [Driver::on_stop_signal, Driver::on_hang_up] {
                let (mut driver, _events) = driver(ConsoleOutput::Quiet, exit_condition.clone());
                signal(&mut driver);
                assert_eq!(
                    driver.exit.reason_at(driver.clock.now()),
                    Some(ExitReason::Interrupted),
                    "{exit_condition:?}"
                );
                assert_eq!(driver.core.model().run.stopping, None, "{exit_condition:?}");
                let end = driver.end(ExitReason::Interrupted, &mut ConsoleSignals::new(false).unwrap()).await;
                assert_eq!((end.code, end.unrequested), (130, true));
            }
        }
    }

    #[tokio::test]
    async fn signal_to_attached_console_detaches() {
        for exit_condition in [ExitCondition::Watch, ExitCondition::Linger, ExitCondition::Observe] {
            for signal in [Driver::on_stop_signal, Driver::on_hang_up] {
                let (mut driver, _events) = driver(ConsoleOutput::Quiet, exit_condition.clone());
                signal(&mut driver);
                assert_eq!(driver.exit.reason_at(driver.clock.now()), Some(ExitReason::Detached));
                assert_eq!(driver.core.model().run.stopping, None, "{exit_condition:?}");
                let end = driver.end(ExitReason::Detached, &mut ConsoleSignals::new(false).unwrap()).await;
                assert_eq!((end.code, end.unrequested), (0, false), "{exit_condition:?}");
            }
        }
    }

    #[tokio::test]
    async fn links_are_closed_and_awaited() {
        let (mut driver, _events) = driver(ConsoleOutput::Quiet, ExitCondition::Watch);
        let (commands, mut received) = mpsc::channel(4);
        driver.setup.links.handles = vec![LinkHandle { node: NodeRank(0), commands }];
        let link = tokio::spawn(async move {
            while let Some(command) = received.recv().await {
                if matches!(command, LinkCommand::Close) {
                    return true;
                }
            }
            false
        });
        driver.exit.code = Some(4);
        let end = driver.end(ExitReason::Done, &mut ConsoleSignals::new(false).unwrap()).await;
        assert_eq!(end.code, 4);
        assert!(link.await.unwrap());
    }
}
