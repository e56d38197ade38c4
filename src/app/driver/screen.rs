//! The screen of the loop: input and drawing.

use super::Driver;
use crate::app::external_shell::{self, ShellEvent};
use crate::app::live_playback::LivePlayback;
use crate::app::output::ConsoleOutput;
use crate::app::record::Recorder;
use crate::app::screen::InputOutcome;
use crate::app::side_jobs::LatestWorker;
use crate::app::side_jobs::LoadedRuns;
use crate::app::signals::ConsoleSignals;
use crate::app::terminal;
use crate::app::terminal_surface::FrameReason;
use crossterm::event::Event as TermEvent;
use rankdeck_core::event::Event;
use rankdeck_tui::keys::ScreenCommand;
use rankdeck_tui::state::Overlay;
use rankdeck_tui::time::TimeMove;
use rankdeck_tui::{Role, ScreenAction};
use rankdeck_types::ids::{NodeRank, Timestamp};
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;

impl Driver {
    pub(crate) fn draw(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.show_cursor(now);
        self.update_policy_frames();
        self.update_log_search();
        self.read_files(now);
        let demo = &self.setup.demo;
        let bar = |frame: &mut ratatui::Frame| demo.iter().for_each(|demo| demo.paint(frame));
        if let ConsoleOutput::Linear(linear) = &mut self.output {
            linear.observe(self.core.model());
        }
        let ConsoleOutput::Screen(screen) = &mut self.output else { return Ok(()) };
        let drawn = match self.playback.as_ref().and_then(LivePlayback::shown) {
            Some(frame) => screen.draw(now, frame.cursor.at, &frame.model, &bar)?,
            None => screen.draw(now, now, self.core.model(), &bar)?,
        };
        if drawn {
            self.drawn += 1;
            if let Some(notifier) = &mut self.notifier {
                notifier.show(self.core.model(), screen);
            }
            #[cfg(debug_assertions)]
            if std::env::var_os("RANKDECK_TEST_PANIC").is_some() {
                panic_for_test();
            }
        }
        Ok(())
    }

    pub(crate) async fn on_input(
        &mut self,
        input: Option<TermEvent>,
        signals: &mut ConsoleSignals,
    ) -> io::Result<()> {
        let now = self.clock.now();
        if let (ConsoleOutput::Linear(linear), Some(TermEvent::Paste(line))) = (&mut self.output, &input) {
            for action in linear.handle_line(line, self.core.model(), now) {
                self.act(action, signals).await?;
            }
            // Without input, the console does not stay after the end.
            if !self.output.can_linger() && self.is_over() {
                self.dispatch(Event::DetachRequested);
            }
            return Ok(());
        }
        let ConsoleOutput::Screen(screen) = &mut self.output else { return Ok(()) };
        if let (Some(demo), Some(input)) = (&self.setup.demo, &input)
            && let Some(notice) =
                demo.handle_input(input, self.core.model().run.state, &screen.key(ScreenCommand::Restart))
        {
            if !notice.is_empty() {
                screen.view.toast(notice, Role::Warn, now);
                screen.request_frame(FrameReason::Input);
            }
            return Ok(());
        }
        let (model, at) = match self.playback.as_ref().and_then(LivePlayback::shown) {
            Some(frame) => (&frame.model, frame.cursor.at),
            None => (self.core.model(), now),
        };
        match screen.handle_input(input, model, at) {
            InputOutcome::Gone => self.on_hang_up(),
            InputOutcome::Actions(actions) => {
                for action in actions {
                    self.act(action, signals).await?;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn act(&mut self, action: ScreenAction, signals: &mut ConsoleSignals) -> io::Result<()> {
        match (action, &mut self.output) {
            (ScreenAction::Send(event), ConsoleOutput::Screen(screen))
                if screen.view.steering.read_only && changes(&event) =>
            {
                screen.view.toast("this console is read-only", Role::Warn, self.clock.now());
            }
            (ScreenAction::Send(Event::DetachRequested), _) => self.leave(),
            (ScreenAction::Send(event), _) => self.dispatch(event),
            (ScreenAction::Again, _) => {
                self.exit.again = true;
                self.dispatch(Event::DetachRequested);
            }
            (ScreenAction::Time(to), _) => self.seek(to),
            (ScreenAction::SaveScreen, _) => self.save_screen(),
            (ScreenAction::SaveFiles(files), ConsoleOutput::Screen(screen)) => {
                let folder =
                    self.setup.recorder.as_ref().map_or(Path::new("."), |recorder| recorder.folder());
                screen.save_files(folder, files);
            }
            (ScreenAction::Compare(runs), ConsoleOutput::Screen(screen)) if runs.is_empty() => {
                screen.view.charts.view.compared.clear();
                screen.request_frame(FrameReason::Input);
            }
            (ScreenAction::Compare(names), ConsoleOutput::Screen(_)) => self.read_compared(names),
            (ScreenAction::Shell(node), ConsoleOutput::Screen(_)) => self.open_shell(node)?,
            (ScreenAction::Suspend, ConsoleOutput::Screen(screen)) => screen.suspend(signals).await?,
            (ScreenAction::Redraw, ConsoleOutput::Screen(screen)) => screen.redraw(),
            (ScreenAction::Mouse(on), ConsoleOutput::Screen(screen)) => screen.mouse(on),
            (ScreenAction::Copy(text), ConsoleOutput::Screen(screen)) => screen.copy(&text, self.clock.now()),
            (
                ScreenAction::Suspend
                | ScreenAction::Redraw
                | ScreenAction::Mouse(_)
                | ScreenAction::Copy(_)
                | ScreenAction::SaveFiles(_)
                | ScreenAction::Compare(_)
                | ScreenAction::Shell(_),
                _,
            ) => {}
        }
        Ok(())
    }

    /// Opens a shell on a host of the hosts file.
    fn open_shell(&mut self, node: NodeRank) -> io::Result<()> {
        let Some(model) = self.core.model().hosts.get(node.index()) else { return Ok(()) };
        let (name, folder) = (model.name.clone(), model.run_dir.clone());
        let host = self.setup.listed.iter().find(|host| host.name == name);
        let words = host.ok_or_else(|| format!("host {name} is not in the hosts file"));
        let words = match words.and_then(|host| external_shell::command(host, &folder)) {
            Ok(words) => words,
            Err(why) => {
                self.warn(format!("shell: {why}"));
                return Ok(());
            }
        };
        if terminal::is_in_tmux() {
            self.external_shell.open_window(&name, words);
            return Ok(());
        }
        self.lend(&words)
    }

    /// Gives the terminal to a shell.
    fn lend(&mut self, words: &[String]) -> io::Result<()> {
        let ConsoleOutput::Screen(screen) = &mut self.output else { return Ok(()) };
        screen.lend()?;
        if let Err(why) = self.external_shell.start(words) {
            screen.take_back()?;
            self.warn(format!("shell: {why}"));
        }
        Ok(())
    }

    /// A shell has exited, or needs the terminal.
    pub(crate) fn on_shell_event(&mut self, event: ShellEvent) -> io::Result<()> {
        match event {
            ShellEvent::NoWindow(words) => self.lend(&words),
            ShellEvent::Exited(status) => self.take_back(status),
        }
    }

    fn take_back(&mut self, status: Option<ExitStatus>) -> io::Result<()> {
        let ConsoleOutput::Screen(screen) = &mut self.output else { return Ok(()) };
        screen.take_back()?;
        // The exit code of a failed ssh; a shell exits with that of its last command.
        if status.and_then(|status| status.code()) == Some(255) {
            screen.view.toast("shell: ssh failed (exit 255)", Role::Warn, self.clock.now());
        }
        Ok(())
    }

    fn read_compared(&mut self, names: Vec<String>) {
        match self.setup.recorder.as_ref().and_then(Recorder::runs) {
            Some(runs) => self.curves.read(runs.to_owned(), names),
            None => self.warn("this console has no recording, so no other runs are found".into()),
        }
    }

    /// Shows the other runs that were loaded.
    pub(crate) fn show_compared(&mut self, loaded: LoadedRuns) {
        let now = self.clock.now();
        let ConsoleOutput::Screen(screen) = &mut self.output else { return };
        match loaded {
            Ok(runs) => screen.view.charts.view.compared = runs,
            Err(why) => screen.view.toast(format!("compare: {why}"), Role::Warn, now),
        }
        screen.request_frame(FrameReason::Input);
    }

    /// Moves the playback position; the run continues. A thread reads the recording, and the frame comes later.
    fn seek(&mut self, to: TimeMove) {
        let now = self.clock.now();
        let ConsoleOutput::Screen(screen) = &mut self.output else { return };
        if to == TimeMove::Present {
            (self.playback, screen.view.moment.cursor) = (None, None);
            screen.request_frame(FrameReason::Input);
            return;
        }
        let Some(recorder) = &mut self.setup.recorder else {
            return screen.view.toast("no recording: cannot go back in time", Role::Warn, now);
        };
        let written = recorder.settle(now);
        if self.playback.is_none() {
            match LivePlayback::start(recorder.ring().folder().to_owned(), self.clock, screen.wake()) {
                Ok(playback) => self.playback = Some(playback),
                Err(error) => {
                    return screen.view.toast(format!("cannot start a thread: {error}"), Role::Warn, now);
                }
            }
        }
        let accepted =
            self.playback.as_ref().is_some_and(|all| all.request(to, now, self.core.model(), written));
        if !accepted {
            screen.view.toast("still reading the recording", Role::Warn, now);
        }
        screen.request_frame(FrameReason::Input);
    }

    /// Shows a frame of playback that has arrived.
    fn show_cursor(&mut self, now: Timestamp) {
        let (Some(playback), ConsoleOutput::Screen(screen)) = (&mut self.playback, &mut self.output) else {
            return;
        };
        match playback.take() {
            Ok(true) => screen.request_frame(FrameReason::Data),
            Ok(false) => {}
            Err(error) => {
                // Without a position, the time prompt is useless.
                screen.view.overlays.retain(|open| !matches!(open, Overlay::Time(_)));
                screen.view.toast(format!("recording: {error}"), Role::Warn, now);
                (self.playback, screen.view.moment.cursor) = (None, None);
                return screen.request_frame(FrameReason::Input);
            }
        }
        let shown = playback.cursor(self.core.model(), now);
        if screen.view.moment.cursor != shown {
            screen.view.moment.cursor = shown;
            screen.request_frame(FrameReason::Data);
        }
    }

    /// Requests policy frames while they are on the screen.
    fn update_policy_frames(&mut self) {
        let ConsoleOutput::Screen(screen) = &self.output else { return };
        let on = self.played_back().is_none()
            && screen.view.overlays.iter().any(|open| matches!(open, Overlay::Policy(_)));
        if on != self.core.model().policy.watched {
            self.dispatch(Event::Watched { on });
        }
    }

    /// Ends a log search on the hosts when its results leave the screen.
    fn update_log_search(&mut self) {
        let ConsoleOutput::Screen(screen) = &self.output else { return };
        if screen.view.log.files.is_none() && self.core.model().log_search.hits.is_some() {
            self.dispatch(Event::Searched { search: None });
        }
    }

    /// Has files of the launch read for the restart that is typed, and passes on what they have shown.
    fn read_files(&mut self, now: Timestamp) {
        let Some(read) = self.setup.read_files else { return };
        let model = self.core.model();
        if let Some(answer) = self.files.reader.as_ref().and_then(LatestWorker::take) {
            self.files.line = self.files.line.take().filter(|line| *line != answer.line);
            match &mut self.output {
                ConsoleOutput::Screen(screen) => {
                    rankdeck_tui::answer_files(model, &mut screen.view, answer, now);
                    screen.request_frame(FrameReason::Input);
                }
                ConsoleOutput::Linear(linear) => linear.answer_files(answer, model),
                ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => {}
            }
        }
        let view = match &self.output {
            ConsoleOutput::Screen(screen) => &screen.view,
            ConsoleOutput::Linear(linear) => &linear.words.view,
            ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => return,
        };
        let question = rankdeck_tui::file_question(model, view);
        let Some(question) = question.filter(|question| self.files.line.as_ref() != Some(&question.line))
        else {
            return;
        };
        self.files.line = Some(question.line.clone());
        if self.files.reader.is_none() {
            match LatestWorker::start("files", Arc::clone(&self.files.wake), read) {
                Ok(reader) => self.files.reader = Some(reader),
                Err(error) => return self.warn(format!("cannot start a thread: {error}")),
            }
        }
        if let Some(reader) = &self.files.reader {
            reader.request(question);
        }
    }

    fn save_screen(&mut self) {
        let now = self.clock.now();
        let ConsoleOutput::Screen(screen) = &mut self.output else { return };
        let folder = self.setup.recorder.as_ref().map_or(Path::new("."), |recorder| recorder.folder());
        let (model, at) = match self.playback.as_ref().and_then(LivePlayback::shown) {
            Some(frame) => (&frame.model, frame.cursor.at),
            None => (self.core.model(), now),
        };
        screen.save(folder, model, at);
    }
}

/// Whether an event changes the run rather than this console.
fn changes(event: &Event) -> bool {
    !matches!(
        event,
        Event::DetachRequested
            | Event::PromptAnswered { .. }
            | Event::Watched { .. }
            | Event::InspectRequested { .. }
            | Event::Searched { .. }
    )
}

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "tests of debug builds request it through the environment")]
fn panic_for_test() {
    panic!("asked for by RANKDECK_TEST_PANIC");
}
