//! The one loop: everything that happens becomes an event, the core answers with effects, and those are
//! carried out here.
//!
//! Owner: the console process; it owns the core, the links, the record and the output. Nothing else changes
//! any of them. Cancel-safety: every branch of the one `select` may be dropped at its await without losing
//! anything (channel, signal, key stream, timer).

mod calls;
mod leaving;
mod links;
mod questions;
mod screen;
mod signals;

use super::ask::{self, Answer};
use super::clock::{Clock, earlier};
use super::compared_curves::{self, CurveReader};
use super::cursor::Cursor;
use super::demo::Demo;
use super::guest::Guest;
use super::metrics::{self, Endpoint, MetricsRequest};
use super::objective::{Next, Objective};
use super::output::Output;
use super::record::{self, KeptRecord, Recorder};
use super::secrets::Secrets;
use super::signals::Signals;
use super::stderr;
use calls::Calls;
use leaving::ExitState;
use questions::Questions;
use rankdeck_core::effect::Effect;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::report::ReportBody;
use rankdeck_core::{Core, Goal};
use rankdeck_link::{LinkEvent, LinkHandle, Opening};
use rankdeck_proto::clock::wall_time;
use rankdeck_tui::Role;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::Until;
use rankdeck_types::ui::Notify;
use std::collections::VecDeque;
use std::io;
use tokio::sync::mpsc;

/// Least time between two ticks, whatever the core asks for.
const TICK_MS: u64 = 10;

/// Opens a link to a host of this index; the flag: the built-in trainer is needed there.
pub type Connector = Box<dyn Fn(NodeRank, &Host, Opening, bool) -> LinkHandle + Send>;

/// Everything that a console works with.
pub struct Session {
    /// What it is for.
    pub goal: Goal,
    /// When to stop the run.
    pub until: Vec<Until>,
    /// What the command came for.
    pub objective: Objective,
    /// One per host, already open.
    pub links: Vec<LinkHandle>,
    /// What comes from them.
    pub inbox: mpsc::Receiver<(NodeRank, LinkEvent)>,
    /// Opens further links, for hosts that join the run.
    pub connector: Option<Connector>,
    /// Hosts that could join the run.
    pub spares: Vec<Host>,
    /// All hosts that the user has named: no other is ever contacted.
    pub listed: Vec<Host>,
    /// What the user should know of the run, whatever the screen shows.
    pub warnings: Vec<String>,
    /// The record, if there is one.
    pub recorder: Option<Recorder>,
    /// Unknown host keys are accepted without asking.
    pub accept_new_host_keys: bool,
    /// There is somebody at a terminal who can be asked.
    pub can_ask: bool,
    /// The hosts are simulated, and end with this console.
    pub simulated: bool,
    /// Keys that let things go wrong, in a demonstration.
    pub demo: Option<Demo>,
    /// When to call the user, and how; `None`: never.
    pub notify: Option<Notify>,
    /// Where Prometheus asks.
    pub metrics: Option<Endpoint>,
}

/// How a console ended.
#[derive(Debug)]
pub struct End {
    /// The console's exit code.
    pub code: u8,
    /// Why it ended.
    pub why: Why,
    /// The last state.
    pub model: Model,
    /// The run's last report, when it was over.
    pub finished: Option<ReportBody>,
    /// What was kept.
    pub record: Option<KeptRecord>,
    /// The user wants to launch another run like this one.
    pub again: bool,
}

/// Why a console ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The core was done.
    Done,
    /// The run goes on without it.
    Detached,
    /// The objective gave up on hosts that cannot be reached.
    GaveUp,
    /// A third signal, or the terminal failed.
    Cut,
}

/// Runs a console to its end.
///
/// # Errors
/// When signals cannot be taken over, or the first frame cannot be drawn.
pub async fn drive(session: Session, output: Output) -> io::Result<End> {
    let mut signals = Signals::new(matches!(output, Output::Screen(_)))?;
    let (answers_in, mut answers) = mpsc::channel::<Answer>(64);
    let mut session = session;
    let warnings = std::mem::take(&mut session.warnings);
    let mut driver = Driver::new(session, output, answers_in);
    driver.tell(Event::WallClock { time: wall_time() });
    driver.recall();
    driver.report_unlisted();
    if !warnings.is_empty() {
        driver.tell(Event::Warned { lines: warnings });
    }
    let why = loop {
        if let Some(why) = driver.leaving.why(driver.clock.now()) {
            break why;
        }
        driver.draw()?;
        let wake = driver.poll_timeout();
        let inbox_open = driver.inbox_open;
        tokio::select! {
            signal = signals.next() => driver.on_signal(signal, &mut signals).await?,
            input = driver.output.next_input() => driver.on_input(input, &mut signals).await?,
            event = driver.inbox.recv(), if inbox_open => driver.on_link(event),
            Some((node, answer)) = answers.recv() => driver.tell(Event::PromptAnswered { node, answer }),
            text = calls::failed(&mut driver.calls) => driver.say(text),
            wanted = asked(&mut driver.metrics) => driver.measure(wanted),
            loaded = driver.curves.next() => driver.show_beside(loaded),
            status = driver.guest.left() => driver.take_back(status)?,
            () = driver.clock.sleep_until(wake) => driver.on_time(),
        }
    };
    Ok(driver.end(why).await)
}

/// Prometheus asks. Cancel-safe.
async fn asked(endpoint: &mut Option<Endpoint>) -> MetricsRequest {
    match endpoint {
        Some(endpoint) => endpoint.asked().await,
        None => std::future::pending().await,
    }
}

struct Driver {
    core: Core,
    clock: Clock,
    output: Output,
    links: Vec<LinkHandle>,
    inbox: mpsc::Receiver<(NodeRank, LinkEvent)>,
    inbox_open: bool,
    connector: Option<Connector>,
    listed: Vec<Host>,
    recorder: Option<Recorder>,
    secrets: Secrets,
    objective: Objective,
    questions: Questions,
    demo: Option<Demo>,
    ticked_at: Timestamp,
    /// Events that effects have led to.
    later: Vec<Event>,
    leaving: ExitState,
    drawn: u64,
    /// The past that is shown instead of the present.
    cursor: Option<Cursor>,
    calls: Option<Calls>,
    metrics: Option<Endpoint>,
    /// Other runs over the charts.
    curves: CurveReader,
    /// A shell that has the terminal.
    guest: Guest,
}

impl Driver {
    fn new(session: Session, output: Output, answers: mpsc::Sender<Answer>) -> Driver {
        let core = Core::new(session.goal, session.until, Timestamp(0));
        let mut output = output;
        if let Output::Screen(screen) = &mut output {
            screen.view.steering.spares = session.spares;
            screen.view.steering.changer = Some(super::changer::change);
            screen.view.steering.unrecorded = session.recorder.is_none();
            let own = core.model().run.id.as_ref().map(|run| run.0.clone()).unwrap_or_default();
            screen.view.steering.passing = session.simulated;
            // Nothing of a demonstration is kept.
            let stays = session.recorder.is_some() && session.demo.is_none();
            screen.view.steering.report = stays.then(|| format!("rankdeck report {own}"));
            screen.view.steering.recorded = session
                .recorder
                .as_ref()
                .and_then(Recorder::runs)
                .map(|runs| compared_curves::names(runs, &own))
                .unwrap_or_default();
        }
        Driver {
            core: if session.objective.outlives_run() { core.lingering() } else { core },
            clock: Clock::new(),
            output,
            links: session.links,
            inbox: session.inbox,
            inbox_open: true,
            connector: session.connector,
            listed: session.listed,
            recorder: session.recorder,
            secrets: Secrets::new(session.notify.as_ref()),
            objective: session.objective,
            questions: Questions::new(session.accept_new_host_keys, session.can_ask, answers),
            demo: session.demo,
            ticked_at: Timestamp(0),
            later: Vec::new(),
            leaving: ExitState::default(),
            drawn: 0,
            cursor: None,
            calls: session.notify.map(Calls::new),
            metrics: session.metrics,
            curves: CurveReader::default(),
            guest: Guest::default(),
        }
    }

    /// Begins with what an earlier console of this run learnt.
    fn recall(&mut self) {
        let found = self.recorder.as_ref().and_then(|recorder| record::recall(recorder.folder()));
        if let Some(learnt) = found {
            self.tell(Event::Recalled { learnt });
        }
    }

    /// Tells the core and carries out what it answers, and what that leads to.
    fn tell(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            let now = self.clock.now();
            let event = Secrets::refusal(&event, self.core.model()).unwrap_or(event);
            if let Some(recorder) = &mut self.recorder
                && event.is_recorded()
            {
                recorder.event(now, &event, &self.core);
            }
            if event == Event::DetachRequested {
                self.leaving.detaching.get_or_insert(now);
            }
            let asked = match &event {
                Event::LinkChanged { node, state: LinkState::Asking { prompt } } => {
                    Some((*node, prompt.clone()))
                }
                _ => None,
            };
            let effects = self.core.handle(now, event);
            if let Some(calls) = &mut self.calls {
                calls.look(now, self.core.model());
            }
            for effect in effects {
                self.carry_out(now, effect);
            }
            if let Some(line) = self.secrets.lacking(self.core.model()) {
                if matches!(self.output, Output::Lines(_) | Output::Linear(_)) {
                    stderr::line(&format!("warning: {line}"));
                }
                self.later.push(Event::Warned { lines: vec![line] });
            }
            queue.extend(self.later.drain(..));
            queue.extend(asked.and_then(|(node, prompt)| self.answer_for_user(node, &prompt)));
            match self.objective.step(now, self.core.model()) {
                Next::Wait => {}
                Next::Do(event) => queue.push_back(event),
                Next::GiveUp => self.leaving.leave = Some(Why::GaveUp),
            }
            // Nobody can linger without a screen.
            let alone = self.objective == Objective::Linger && !self.output.can_linger();
            if alone && self.leaving.finished.is_some() && self.leaving.detaching.is_none() {
                queue.push_back(Event::DetachRequested);
            }
        }
    }

    /// The answer to a question that is not put to the user on the screen.
    fn answer_for_user(&mut self, node: NodeRank, prompt: &Prompt) -> Option<Event> {
        let on_screen = matches!(self.output, Output::Screen(_));
        let host = self.core.model().hosts.get(node.index());
        let name = || host.map_or_else(|| node.to_string(), |host| host.name.clone());
        self.questions.answer_for_user(node, name, prompt, on_screen)
    }

    fn carry_out(&mut self, now: Timestamp, effect: Effect) {
        match effect {
            Effect::Link { node, command } => self.order(node, command),
            Effect::Connect { node, host } => self.connect(node, &host, Opening::Join),
            Effect::Find { node, name } => self.find(node, &name),
            Effect::Tell(mut report) => {
                report.time = wall_time();
                self.output.report(now, &report, self.core.model());
                if let Some(calls) = &mut self.calls {
                    calls.report(&report, &mut self.output);
                }
                match &report.body {
                    body @ ReportBody::RunFinished { .. } => self.leaving.finished = Some(body.clone()),
                    // It was over, and another generation has begun.
                    ReportBody::RunStarted { .. } => self.leaving.finished = None,
                    _ => {}
                }
                if let Some(recorder) = &mut self.recorder {
                    recorder.report(now, report);
                }
            }
            Effect::Exit { code } => self.leaving.exit = Some(code),
        }
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        let mut notices = Vec::new();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush(Some(now));
            recorder.learnt(Some(now), || self.core.learnt());
            notices = recorder.take_notices();
        }
        notices.into_iter().for_each(|text| self.say(text));
        let wanted = earlier(self.core.poll_timeout(), self.objective.poll_timeout());
        if wanted.is_some_and(|at| at <= now) {
            self.ticked_at = now;
            self.tell(Event::Ticked);
        }
    }

    /// Answers Prometheus; one that no longer waits is none the worse.
    fn measure(&self, wanted: MetricsRequest) {
        let _ = wanted.answer.send(metrics::text(self.core.model(), self.clock.now(), wanted.form));
    }

    /// Something about the console itself, for its user.
    fn say(&mut self, text: String) {
        match &mut self.output {
            Output::Screen(screen) => screen.view.toast(text.clone(), Role::Warn, self.clock.now()),
            Output::Lines(_) | Output::Linear(_) | Output::Quiet => stderr::line(&format!("warning: {text}")),
        }
        self.tell(Event::Noticed { text });
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let tick = earlier(self.core.poll_timeout(), self.objective.poll_timeout());
        let tick = tick.map(|at| at.max(self.ticked_at.plus(TICK_MS)));
        let flush = self.recorder.as_ref().and_then(Recorder::poll_timeout);
        let detach = self.leaving.poll_timeout();
        let cursor = self.cursor.as_ref().and_then(|cursor| cursor.poll_timeout(self.clock.now()));
        [tick, flush, detach, cursor, self.output.poll_timeout()].into_iter().fold(None, earlier)
    }

    /// Closes everything: links first (their last orders must leave), then the output, then the record.
    async fn end(mut self, why: Why) -> End {
        if why != Why::Cut {
            self.end_links().await;
        }
        if let Output::Screen(screen) = &mut self.output {
            if let Some(calls) = &self.calls {
                calls.leave(screen);
            }
            screen.close();
        }
        ask::restore();
        if let Some(calls) = self.calls.take() {
            let stays = matches!(self.output, Output::Screen(_) | Output::Linear(_)) || why == Why::Detached;
            for text in calls.end(stays).await {
                stderr::line(&format!("warning: {text}"));
            }
        }
        // Waits until the last line is written.
        drop(self.output);
        self.cursor = None;
        if let Some(recorder) = &mut self.recorder {
            recorder.learnt(None, || self.core.learnt());
        }
        let record = self.recorder.map(Recorder::close);
        let code = self.leaving.code(why, self.core.model().run.exit_code);
        tracing::info!("console ends: {why:?}, exit code {code}, {} frames", self.drawn);
        End {
            code,
            why,
            model: self.core.model().clone(),
            finished: self.leaving.finished,
            record,
            again: self.leaving.again,
        }
    }
}

#[cfg(test)]
mod tests;
