//! The screen of the loop: what the user does there, and what it shows.

use super::Driver;
use crate::shell::compared_curves::LoadedRuns;
use crate::shell::cursor::Cursor;
use crate::shell::frames::FrameReason;
use crate::shell::guest;
use crate::shell::output::Output;
use crate::shell::record::Recorder;
use crate::shell::screen::InputOutcome;
use crate::shell::signals::Signals;
use crossterm::event::Event as TermEvent;
use rankdeck_core::event::Event;
use rankdeck_tui::keys::Command;
use rankdeck_tui::state::Overlay;
use rankdeck_tui::time::TimeMove;
use rankdeck_tui::{Action, Role};
use rankdeck_types::ids::{NodeRank, Timestamp};
use std::io;
use std::path::Path;
use std::process::ExitStatus;

impl Driver {
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.show_cursor(now);
        self.follow_watcher();
        self.follow_finder();
        let demo = &self.demo;
        let bar = |frame: &mut ratatui::Frame| demo.iter().for_each(|demo| demo.paint(frame));
        if let Output::Linear(linear) = &mut self.output {
            linear.look(self.core.model());
        }
        let Output::Screen(screen) = &mut self.output else { return Ok(()) };
        let drawn = match &self.cursor {
            Some(cursor) => screen.draw(now, cursor.at(), cursor.model(), &bar)?,
            None => screen.draw(now, now, self.core.model(), &bar)?,
        };
        if drawn {
            self.drawn += 1;
            if let Some(calls) = &mut self.calls {
                calls.show(self.core.model(), screen);
            }
            #[cfg(debug_assertions)]
            if std::env::var_os("RANKDECK_TEST_PANIC").is_some() {
                panic_for_test();
            }
        }
        Ok(())
    }

    pub(super) async fn on_input(
        &mut self,
        input: Option<TermEvent>,
        signals: &mut Signals,
    ) -> io::Result<()> {
        let now = self.clock.now();
        if let (Output::Linear(linear), Some(TermEvent::Paste(line))) = (&mut self.output, &input) {
            for action in linear.hear(line, self.core.model(), now) {
                self.act(action, signals).await?;
            }
            // Without anybody who types, nobody lingers.
            if !self.output.can_linger() && self.leaving.finished.is_some() {
                self.tell(Event::DetachRequested);
            }
            return Ok(());
        }
        let Output::Screen(screen) = &mut self.output else { return Ok(()) };
        if let (Some(demo), Some(input)) = (&self.demo, &input)
            && let Some(said) = demo.hear(input, self.core.model().run.state, &screen.key(Command::Restart))
        {
            if !said.is_empty() {
                screen.view.toast(said, Role::Warn, now);
                screen.want(FrameReason::Input);
            }
            return Ok(());
        }
        let (model, at) = match &self.cursor {
            Some(cursor) => (cursor.model(), cursor.at()),
            None => (self.core.model(), now),
        };
        match screen.hear(input, model, at) {
            InputOutcome::Gone => self.tell(Event::DetachRequested),
            InputOutcome::Actions(actions) => {
                for action in actions {
                    self.act(action, signals).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn act(&mut self, action: Action, signals: &mut Signals) -> io::Result<()> {
        match (action, &mut self.output) {
            (Action::Tell(event), Output::Screen(screen))
                if screen.view.steering.read_only && changes(&event) =>
            {
                screen.view.toast("this console is read-only", Role::Warn, self.clock.now());
            }
            (Action::Tell(event), _) => self.tell(event),
            (Action::Again, _) => {
                self.leaving.again = true;
                self.tell(Event::DetachRequested);
            }
            (Action::Time(to), _) => self.travel(to),
            (Action::SaveScreen, _) => self.save_screen(),
            (Action::SaveFiles(files), Output::Screen(screen)) => {
                let folder = self.recorder.as_ref().map_or(Path::new("."), |recorder| recorder.folder());
                screen.save_files(folder, &files, self.clock.now());
            }
            (Action::Compare(runs), Output::Screen(screen)) if runs.is_empty() => {
                screen.view.chart.compared.clear();
                screen.want(FrameReason::Input);
            }
            (Action::Compare(names), Output::Screen(_)) => self.read_beside(names),
            (Action::Shell(node), Output::Screen(_)) => self.open_shell(node).await?,
            (Action::Suspend, Output::Screen(screen)) => screen.suspend(signals).await?,
            (Action::Redraw, Output::Screen(screen)) => screen.redraw(),
            (Action::Mouse(on), Output::Screen(screen)) => screen.mouse(on),
            (Action::Copy(text), Output::Screen(screen)) => screen.copy(&text, self.clock.now())?,
            (
                Action::Suspend
                | Action::Redraw
                | Action::Mouse(_)
                | Action::Copy(_)
                | Action::SaveFiles(_)
                | Action::Compare(_)
                | Action::Shell(_),
                _,
            ) => {}
        }
        Ok(())
    }

    /// A shell on a host, of those that the user has named.
    async fn open_shell(&mut self, node: NodeRank) -> io::Result<()> {
        let Some(model) = self.core.model().hosts.get(node.index()) else { return Ok(()) };
        let (name, folder) = (model.name.clone(), model.run_dir.clone());
        let host = self.listed.iter().find(|host| host.name == name);
        let words = host.ok_or_else(|| format!("the hosts file does not list {name}"));
        let words = match words.and_then(|host| guest::words(host, &folder)) {
            Ok(words) => words,
            Err(why) => {
                self.say(format!("shell: {why}"));
                return Ok(());
            }
        };
        let inside = std::env::var_os("TMUX").is_some_and(|socket| !socket.is_empty());
        if inside && guest::in_tmux(&name, &words).await {
            return Ok(());
        }
        let Output::Screen(screen) = &mut self.output else { return Ok(()) };
        screen.lend()?;
        if let Err(why) = self.guest.begin(&words) {
            screen.take_back()?;
            self.say(format!("shell: {why}"));
        }
        Ok(())
    }

    /// The shell has left.
    pub(super) fn take_back(&mut self, status: Option<ExitStatus>) -> io::Result<()> {
        let Output::Screen(screen) = &mut self.output else { return Ok(()) };
        screen.take_back()?;
        // What ssh says when it does not get in; a shell says what its last command said.
        if status.and_then(|status| status.code()) == Some(255) {
            screen.view.toast("shell: ssh did not get in (255)", Role::Warn, self.clock.now());
        }
        Ok(())
    }

    fn read_beside(&mut self, names: Vec<String>) {
        match self.recorder.as_ref().and_then(Recorder::runs) {
            Some(runs) => self.curves.read(runs.to_owned(), names),
            None => self.say("this console keeps no record, and knows of none beside it".into()),
        }
    }

    /// Other runs were read.
    pub(super) fn show_beside(&mut self, loaded: LoadedRuns) {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return };
        match loaded {
            Ok(runs) => screen.view.chart.compared = runs,
            Err(why) => screen.view.toast(format!("compare: {why}"), Role::Warn, now),
        }
        screen.want(FrameReason::Input);
    }

    /// Shows another moment; the run goes on behind it.
    fn travel(&mut self, to: TimeMove) {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return };
        if to == TimeMove::Present {
            (self.cursor, screen.view.moment.cursor) = (None, None);
            screen.want(FrameReason::Input);
            return;
        }
        let Some(recorder) = &mut self.recorder else {
            return screen.view.toast("this console keeps no record to go back in", Role::Warn, now);
        };
        recorder.settle(now);
        let model = self.core.model();
        let ready = match &mut self.cursor {
            Some(cursor) => cursor.extend(now, model),
            None => {
                Cursor::live(recorder.ring().folder(), now, model).map(|cursor| self.cursor = Some(cursor))
            }
        };
        match (ready, &mut self.cursor) {
            (Ok(()), Some(cursor)) => cursor.go(to, now),
            (Err(error), _) => {
                // There is nowhere to go: a line for a time would go nowhere, too.
                screen.view.overlays.retain(|open| !matches!(open, Overlay::Time { .. }));
                screen.view.toast(format!("the record: {error}"), Role::Warn, now);
            }
            (Ok(()), None) => {}
        }
        screen.want(FrameReason::Input);
    }

    /// Moves the cursor when it moves by itself, and tells the view where it is.
    fn show_cursor(&mut self, now: Timestamp) {
        let (Some(cursor), Output::Screen(screen)) = (&mut self.cursor, &mut self.output) else { return };
        cursor.advance(now);
        let shown = cursor.shown(Some((self.core.model(), now)));
        if screen.view.moment.cursor.as_ref() != Some(&shown) {
            screen.view.moment.cursor = Some(shown);
            screen.want(FrameReason::Data);
        }
    }

    /// Asks for frames of the policy at play for as long as they are on the screen.
    fn follow_watcher(&mut self) {
        let Output::Screen(screen) = &self.output else { return };
        let on = self.cursor.is_none() && screen.view.overlays.contains(&Overlay::Policy);
        if on != self.core.model().policy.watched {
            self.tell(Event::Watched { on });
        }
    }

    /// Hosts look in their files for as long as what they find is on the screen.
    fn follow_finder(&mut self) {
        let Output::Screen(screen) = &self.output else { return };
        if screen.view.log.files.is_none() && self.core.model().finder.hits.is_some() {
            self.tell(Event::Searched { wanted: None });
        }
    }

    fn save_screen(&mut self) {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return };
        let folder = self.recorder.as_ref().map_or(Path::new("."), |recorder| recorder.folder());
        let (model, at) = match &self.cursor {
            Some(cursor) => (cursor.model(), cursor.at()),
            None => (self.core.model(), now),
        };
        let (text, role) = match screen.save(folder, model, at) {
            Ok(path) => (format!("screen saved to {}", path.display()), Role::Good),
            Err(error) => (format!("failed to save the screen: {error}"), Role::Warn),
        };
        screen.view.toast(text, role, now);
        screen.want(FrameReason::Input);
    }
}

/// It would change the run rather than this console.
fn changes(event: &Event) -> bool {
    !matches!(
        event,
        Event::DetachRequested
            | Event::PromptAnswered { .. }
            | Event::Watched { .. }
            | Event::LookRequested { .. }
            | Event::Searched { .. }
    )
}

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "tests of debug builds ask for it through the environment")]
fn panic_for_test() {
    panic!("asked for by RANKDECK_TEST_PANIC");
}
