//! The screen of the loop: what the user does there, and what it shows.

use super::Driver;
use crate::shell::cursor::Cursor;
use crate::shell::frames::Want;
use crate::shell::output::Output;
use crate::shell::screen::Heard;
use crate::shell::signals::Signals;
use crossterm::event::Event as TermEvent;
use rankdeck_core::event::Event;
use rankdeck_tui::state::Overlay;
use rankdeck_tui::time::TimeMove;
use rankdeck_tui::{Action, Role};
use rankdeck_types::ids::Timestamp;
use std::io;
use std::path::Path;

impl Driver {
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.show_cursor(now);
        self.follow_watcher();
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
            && demo.hear(input)
        {
            return Ok(());
        }
        let (model, at) = match &self.cursor {
            Some(cursor) => (cursor.model(), cursor.at()),
            None => (self.core.model(), now),
        };
        match screen.hear(input, model, at) {
            Heard::Gone => self.tell(Event::DetachRequested),
            Heard::Actions(actions) => {
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
            (Action::Suspend, Output::Screen(screen)) => screen.suspend(signals).await?,
            (Action::Redraw, Output::Screen(screen)) => screen.redraw(),
            (Action::Mouse(on), Output::Screen(screen)) => screen.mouse(on),
            (Action::Copy(text), Output::Screen(screen)) => screen.copy(&text, self.clock.now())?,
            (
                Action::Suspend | Action::Redraw | Action::Mouse(_) | Action::Copy(_) | Action::SaveFiles(_),
                _,
            ) => {}
        }
        Ok(())
    }

    /// Shows another moment; the run goes on behind it.
    fn travel(&mut self, to: TimeMove) {
        let now = self.clock.now();
        let Output::Screen(screen) = &mut self.output else { return };
        if to == TimeMove::Present {
            (self.cursor, screen.view.moment.cursor) = (None, None);
            screen.want(Want::Input);
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
            (Err(error), _) => screen.view.toast(format!("the record: {error}"), Role::Warn, now),
            (Ok(()), None) => {}
        }
        screen.want(Want::Input);
    }

    /// Moves the cursor when it moves by itself, and tells the view where it is.
    fn show_cursor(&mut self, now: Timestamp) {
        let (Some(cursor), Output::Screen(screen)) = (&mut self.cursor, &mut self.output) else { return };
        cursor.advance(now);
        let mut shown = cursor.shown(Some(self.core.model()));
        // In whole seconds: nobody reads more, and nothing is drawn for less.
        shown.end = Timestamp(now.0 / 1000 * 1000).max(shown.at);
        if screen.view.moment.cursor.as_ref() != Some(&shown) {
            screen.view.moment.cursor = Some(shown);
            screen.want(Want::Data);
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
        screen.want(Want::Input);
    }
}

/// It would change the run rather than this console.
fn changes(event: &Event) -> bool {
    !matches!(event, Event::DetachRequested | Event::PromptAnswered { .. } | Event::Watched { .. })
}

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "tests of debug builds ask for it through the environment")]
fn panic_for_test() {
    panic!("asked for by RANKDECK_TEST_PANIC");
}
