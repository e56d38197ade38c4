//! The one loop: everything that happens becomes an event, the core answers with effects, and those are
//! carried out here.
//!
//! Owner: the console process; it owns the core, the links, the record and the output. Nothing else changes
//! any of them. Cancel-safety: every branch of the one `select` may be dropped at its await without losing
//! anything (channel, signal, key stream, timer).

use super::ask::{self, Answer, Asker};
use super::clock::{Clock, earlier};
use super::frames::Want;
use super::headless::{Form, Printer, note};
use super::objective::{Next, Objective};
use super::output::Output;
use super::record::{self, Recorder};
use super::screen::Heard;
use super::signals::{Signalled, Signals};
use crossterm::event::Event as TermEvent;
use rankdeck_core::effect::Effect;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::report::ReportBody;
use rankdeck_core::{Core, Goal};
use rankdeck_link::{LinkCommand, LinkEvent, LinkHandle};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::StopMode;
use rankdeck_tui::{Action, Role};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, Until};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Least time between two ticks, whatever the core asks for.
const TICK_MS: u64 = 10;
/// How long a console that was told to detach waits for its last orders to leave.
const DETACH_MS: u64 = 2000;
/// How long links may take to end.
const LINKS_END_WITHIN: Duration = Duration::from_secs(3);
/// Link events applied before looking at anything else.
const BURST: usize = 256;
/// Exit code of an interrupted console.
const INTERRUPTED: u8 = 130;

/// Opens a link to a host of this index that is to get an agent; the flag: the built-in trainer is needed
/// there.
pub type Connector = Box<dyn Fn(NodeRank, &Host, bool) -> LinkHandle + Send>;

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
    /// What the user should know of the run, whatever the screen shows.
    pub warnings: Vec<String>,
    /// The record, if there is one.
    pub recorder: Option<Recorder>,
    /// Unknown host keys are accepted without asking.
    pub accept_new_host_keys: bool,
    /// There is somebody at a terminal who can be asked.
    pub can_ask: bool,
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
    /// The record's folder.
    pub record: Option<std::path::PathBuf>,
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
    if !warnings.is_empty() {
        driver.tell(Event::Warned { lines: warnings });
    }
    let why = loop {
        if let Some(why) = driver.leaving() {
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
            () = driver.clock.sleep_until(wake) => driver.on_time(),
        }
    };
    Ok(driver.end(why).await)
}

struct Driver {
    core: Core,
    clock: Clock,
    output: Output,
    links: Vec<LinkHandle>,
    inbox: mpsc::Receiver<(NodeRank, LinkEvent)>,
    inbox_open: bool,
    connector: Option<Connector>,
    recorder: Option<Recorder>,
    objective: Objective,
    accept_new_host_keys: bool,
    can_ask: bool,
    asker: Option<Asker>,
    answers: mpsc::Sender<Answer>,
    ticked_at: Timestamp,
    stop_signals: u32,
    exit: Option<u8>,
    leave: Option<Why>,
    detaching: Option<Timestamp>,
    finished: Option<ReportBody>,
    drawn: u64,
}

impl Driver {
    fn new(session: Session, output: Output, answers: mpsc::Sender<Answer>) -> Driver {
        let core = Core::new(session.goal, session.until, Timestamp(0));
        let mut output = output;
        if let Output::Screen(screen) = &mut output {
            screen.view.spares = session.spares;
        }
        Driver {
            core: if session.objective == Objective::Linger { core.lingering() } else { core },
            clock: Clock::new(),
            output,
            links: session.links,
            inbox: session.inbox,
            inbox_open: true,
            connector: session.connector,
            recorder: session.recorder,
            objective: session.objective,
            accept_new_host_keys: session.accept_new_host_keys,
            can_ask: session.can_ask,
            asker: None,
            answers,
            ticked_at: Timestamp(0),
            stop_signals: 0,
            exit: None,
            leave: None,
            detaching: None,
            finished: None,
            drawn: 0,
        }
    }

    /// Begins with what an earlier console of this run learnt.
    fn recall(&mut self) {
        let found = self.recorder.as_ref().and_then(|recorder| record::recall(recorder.folder()));
        if let Some(learnt) = found {
            self.tell(Event::Recalled { learnt });
        }
    }

    /// Why to leave now, if so.
    fn leaving(&self) -> Option<Why> {
        let left = if self.finished.is_some() { Why::Done } else { Why::Detached };
        let done = self.exit.map(|_| if self.detaching.is_some() { left } else { Why::Done });
        let late = self.detaching.is_some_and(|since| self.clock.now().since(since) >= DETACH_MS);
        self.leave.or(done).or(late.then_some(left))
    }

    /// Tells the core and carries out what it answers, and what that leads to.
    fn tell(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            let now = self.clock.now();
            if let Some(recorder) = &mut self.recorder {
                recorder.event(now, &event);
            }
            if event == Event::DetachRequested {
                self.detaching.get_or_insert(now);
            }
            let asked = match &event {
                Event::LinkChanged { node, state: LinkState::Asking { prompt } } => {
                    Some((*node, prompt.clone()))
                }
                _ => None,
            };
            for effect in self.core.handle(now, event) {
                self.carry_out(now, effect);
            }
            queue.extend(asked.and_then(|(node, prompt)| self.answer_for_user(node, &prompt)));
            match self.objective.step(now, self.core.model()) {
                Next::Wait => {}
                Next::Do(event) => queue.push_back(event),
                Next::GiveUp => self.leave = Some(Why::GaveUp),
            }
            // Nobody can linger without a screen.
            let lingers = self.objective == Objective::Linger && !matches!(self.output, Output::Screen(_));
            if lingers && self.finished.is_some() && self.detaching.is_none() {
                queue.push_back(Event::DetachRequested);
            }
        }
    }

    /// The answer to a question that need not, or cannot, be put to the user on a screen; otherwise asks on
    /// the terminal.
    fn answer_for_user(&mut self, node: NodeRank, prompt: &Prompt) -> Option<Event> {
        if self.accept_new_host_keys && matches!(prompt, Prompt::UnknownHostKey { .. }) {
            return Some(Event::PromptAnswered { node, answer: Some("yes".to_owned()) });
        }
        if matches!(self.output, Output::Screen(_)) {
            return None;
        }
        let name = self
            .core
            .model()
            .hosts
            .get(node.index())
            .map_or_else(|| node.to_string(), |host| host.name.clone());
        if self.can_ask && self.asker.is_none() {
            self.asker = Asker::new(self.answers.clone()).ok();
        }
        let asked = self.can_ask && self.asker.as_ref().is_some_and(|asker| asker.ask(node, &name, prompt));
        (!asked).then_some(Event::PromptAnswered { node, answer: None })
    }

    fn carry_out(&mut self, now: Timestamp, effect: Effect) {
        match effect {
            Effect::Send { node, message } => self.command(node, LinkCommand::Send(message)),
            Effect::Answer { node, answer } => self.command(node, LinkCommand::Answer(answer)),
            Effect::Disconnect { node } => self.command(node, LinkCommand::Close),
            Effect::Connect { node, host } => self.connect(node, &host),
            Effect::Tell(mut report) => {
                report.time = wall_time();
                if let Some(recorder) = &mut self.recorder {
                    recorder.report(now, &report);
                }
                self.output.report(now, &report, self.core.model());
                if matches!(report.body, ReportBody::RunFinished { .. }) {
                    self.finished = Some(report.body);
                }
            }
            Effect::Exit { code } => self.exit = Some(code),
        }
    }

    /// Opens a link to a host that joins the run.
    fn connect(&mut self, node: NodeRank, host: &Host) {
        let builtin = self.core.model().plan.as_ref().is_some_and(Plan::is_builtin);
        self.links.retain(|link| link.node != node);
        match &self.connector {
            Some(connector) => self.links.push(connector(node, host, builtin)),
            None => tracing::warn!("no way to open a link to host {node} from here"),
        }
    }

    /// An order to a link. A full queue means that the link is stuck; the core sends again after the next
    /// snapshot.
    fn command(&self, node: NodeRank, command: LinkCommand) {
        let Some(link) = self.links.iter().find(|link| link.node == node) else { return };
        if let Err(error) = link.commands.try_send(command) {
            tracing::warn!("an order to host {node} was not taken: {error}");
        }
    }

    fn on_link(&mut self, first: Option<(NodeRank, LinkEvent)>) {
        let Some(first) = first else {
            self.inbox_open = false;
            return;
        };
        self.tell(first.into());
        for _ in 1..BURST {
            let Ok(next) = self.inbox.try_recv() else { break };
            self.tell(next.into());
        }
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush(Some(now));
            recorder.learnt(Some(now), || self.core.learnt());
        }
        let wanted = earlier(self.core.poll_timeout(), self.objective.poll_timeout());
        if wanted.is_some_and(|at| at <= now) {
            self.ticked_at = now;
            self.tell(Event::Ticked);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let tick = earlier(self.core.poll_timeout(), self.objective.poll_timeout());
        let tick = tick.map(|at| at.max(self.ticked_at.plus(TICK_MS)));
        let flush = self.recorder.as_ref().and_then(Recorder::poll_timeout);
        let detach = self.detaching.map(|since| since.plus(DETACH_MS));
        [tick, flush, detach, self.output.poll_timeout()].into_iter().fold(None, earlier)
    }

    fn draw(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        if let Output::Screen(screen) = &mut self.output
            && screen.draw(now, now, self.core.model(), &|_| {})?
        {
            self.drawn += 1;
            #[cfg(debug_assertions)]
            if std::env::var_os("RANKDECK_TEST_PANIC").is_some() {
                panic_for_test();
            }
        }
        Ok(())
    }

    async fn on_signal(&mut self, signal: Signalled, signals: &mut Signals) -> io::Result<()> {
        match signal {
            Signalled::Stop => self.on_stop_signal(),
            Signalled::HangUp => self.tell(Event::DetachRequested),
            Signalled::Suspend => self.act(Action::Suspend, signals).await?,
            Signalled::Continue => {
                self.tell(Event::WallClock { time: wall_time() });
                if let Output::Screen(screen) = &mut self.output {
                    screen.redraw();
                }
            }
        }
        Ok(())
    }

    /// First: clean stop; second: kill; third: leave at once. A screen gives way to lines, so that what
    /// follows can be read.
    fn on_stop_signal(&mut self) {
        if let Output::Screen(screen) = &mut self.output {
            screen.close();
            self.output = match Printer::new(Form::Plain { logs: false }) {
                Ok(printer) => Output::Lines(Box::new(printer)),
                Err(_) => Output::Quiet,
            };
        }
        self.stop_signals += 1;
        let mode = match self.stop_signals {
            _ if self.finished.is_some() => {
                self.leave = Some(Why::Done);
                return;
            }
            1 => StopMode::Clean,
            2 => StopMode::Kill,
            _ => {
                self.leave = Some(Why::Cut);
                return;
            }
        };
        note(match mode {
            StopMode::Kill => "killing the run; a third signal leaves it behind",
            StopMode::Clean | StopMode::Terminate => "stopping the run cleanly; a second signal kills it",
        });
        self.tell(Event::StopRequested { mode, by: "signal".to_owned() });
    }

    async fn on_input(&mut self, input: Option<TermEvent>, signals: &mut Signals) -> io::Result<()> {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return Ok(()) };
        match screen.hear(input, self.core.model(), now) {
            Heard::Gone => self.tell(Event::DetachRequested),
            Heard::Actions(actions) => {
                for action in actions {
                    self.act(action, signals).await?;
                }
            }
        }
        Ok(())
    }

    async fn act(&mut self, action: Action, signals: &mut Signals) -> io::Result<()> {
        match (action, &mut self.output) {
            (Action::Tell(event), _) => self.tell(event),
            (Action::SaveScreen, _) => self.save_screen(),
            (Action::Suspend, Output::Screen(screen)) => screen.suspend(signals).await?,
            (Action::Redraw, Output::Screen(screen)) => screen.redraw(),
            (Action::Copy(text), Output::Screen(screen)) => screen.copy(&text)?,
            (Action::Suspend | Action::Redraw | Action::Copy(_), _) => {}
        }
        Ok(())
    }

    fn save_screen(&mut self) {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return };
        let folder = self.recorder.as_ref().map_or(Path::new("."), |recorder| recorder.folder());
        let (text, role) = match screen.save(folder, self.core.model(), now) {
            Ok(path) => (format!("screen saved to {}", path.display()), Role::Good),
            Err(error) => (format!("failed to save the screen: {error}"), Role::Warn),
        };
        screen.view.toast(text, role, now);
        screen.want(Want::Input);
    }

    /// Closes everything: links first (their last orders must leave), then the output, then the record.
    async fn end(mut self, why: Why) -> End {
        if why != Why::Cut {
            self.end_links().await;
        }
        if let Output::Screen(screen) = &mut self.output {
            screen.close();
        }
        ask::restore();
        // Waits until the last line is written.
        drop(self.output);
        if let Some(recorder) = &mut self.recorder {
            recorder.learnt(None, || self.core.learnt());
        }
        let record = self.recorder.as_ref().map(|recorder| recorder.folder().to_owned());
        drop(self.recorder);
        let code = match why {
            // Without a code from the core nothing is known to have gone well.
            Why::Done => self.exit.or(self.core.model().run.exit_code).unwrap_or(1),
            Why::Detached => self.exit.unwrap_or(0),
            Why::GaveUp => 3,
            Why::Cut => INTERRUPTED,
        };
        tracing::info!("console ends: {why:?}, exit code {code}, {} frames", self.drawn);
        End { code, why, model: self.core.model().clone(), finished: self.finished, record }
    }

    async fn end_links(&mut self) {
        let deadline = tokio::time::Instant::now() + LINKS_END_WITHIN;
        for link in &self.links {
            let _ = tokio::time::timeout_at(deadline, link.commands.send(LinkCommand::Close)).await;
        }
        let links = &self.links;
        let ended = async {
            for link in links {
                link.commands.closed().await;
            }
        };
        // Nobody wants what links still tell, but a full inbox would hold them up. It stays open: a link that
        // finds it closed ends at once, and orders that wait for it would be lost.
        let inbox = &mut self.inbox;
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

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "tests of debug builds ask for it through the environment")]
fn panic_for_test() {
    panic!("asked for by RANKDECK_TEST_PANIC");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::screen::{Screen, detect_theme};
    use crate::shell::terminal::Surface;
    use rankdeck_types::ids::RunId;
    use ratatui::Frame;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::layout::Size;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A terminal that counts its frames.
    struct Counting(Terminal<TestBackend>, Arc<AtomicU64>);

    impl Surface for Counting {
        fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.draw(|frame| paint(frame)).map(|_| ()).map_err(|error| io::Error::other(error.to_string()))
        }
        fn size(&self) -> io::Result<Size> {
            Ok(Size::new(80, 24))
        }
        fn leave(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn enter(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn clear(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn copy(&mut self, _: &str) -> io::Result<()> {
            Ok(())
        }
    }

    fn screen() -> (Screen, Arc<AtomicU64>) {
        let frames = Arc::new(AtomicU64::new(0));
        let surface = Counting(Terminal::new(TestBackend::new(80, 24)).unwrap(), Arc::clone(&frames));
        let input = Box::pin(futures_util::stream::pending());
        (Screen::new(Box::new(surface), input, detect_theme()), frames)
    }

    fn driver(output: Output, objective: Objective) -> (Driver, mpsc::Sender<(NodeRank, LinkEvent)>) {
        let (events, inbox) = mpsc::channel(16);
        let (answers, _) = mpsc::channel(1);
        let session = Session {
            goal: Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] },
            until: Vec::new(),
            objective,
            links: Vec::new(),
            inbox,
            connector: None,
            spares: Vec::new(),
            warnings: Vec::new(),
            recorder: None,
            accept_new_host_keys: false,
            can_ask: false,
        };
        (Driver::new(session, output, answers), events)
    }

    #[tokio::test]
    async fn shell_1_nothing_is_drawn_without_a_change() {
        let (screen, frames) = screen();
        let (mut driver, _events) = driver(Output::Screen(Box::new(screen)), Objective::Watch);
        for _ in 0..1000 {
            driver.draw().unwrap();
        }
        assert_eq!(frames.load(Ordering::SeqCst), 1, "only the first frame");
        assert_eq!(driver.output.poll_timeout(), None, "and nothing wakes the loop to draw again");
        let key = crossterm::event::KeyEvent::new(
            crossterm::event::KeyCode::Char('?'),
            crossterm::event::KeyModifiers::NONE,
        );
        let Output::Screen(screen) = &mut driver.output else { panic!("no screen") };
        screen.hear(Some(TermEvent::Key(key)), &Model::default(), Timestamp(0));
        assert!(driver.output.poll_timeout().is_some(), "a key wants a frame");
    }

    #[tokio::test]
    async fn a_third_signal_leaves_at_once_and_never_with_success() {
        let (mut driver, _events) = driver(Output::Quiet, Objective::Watch);
        driver.on_stop_signal();
        driver.on_stop_signal();
        // Whatever the core makes of the first two, the third ends the console.
        (driver.exit, driver.finished) = (None, None);
        assert_eq!(driver.leave, None);
        driver.on_stop_signal();
        assert_eq!(driver.leaving(), Some(Why::Cut));
        assert_ne!(driver.end(Why::Cut).await.code, 0);
    }

    #[tokio::test]
    async fn links_are_told_to_close_and_waited_for() {
        let (mut driver, _events) = driver(Output::Quiet, Objective::Watch);
        let (commands, mut orders) = mpsc::channel(4);
        driver.links = vec![LinkHandle { node: NodeRank(0), commands }];
        let link = tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                if matches!(order, LinkCommand::Close) {
                    return true;
                }
            }
            false
        });
        driver.exit = Some(4);
        let end = driver.end(Why::Done).await;
        assert_eq!(end.code, 4);
        assert!(link.await.unwrap());
    }
}
