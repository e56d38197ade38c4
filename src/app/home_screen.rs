//! Shows the home screen on a terminal: turns input into actions and draws frames when something changes.

use super::clock::earlier;
use super::signals::ConsoleSignals;
use super::terminal::{self, Surface, Tty};
use super::terminal_input;
use super::terminal_input::detect_theme;
use super::terminal_surface::{FrameReason, Input, TerminalSurface};
use crossterm::event::{Event as TermEvent, KeyEventKind, MouseEventKind};
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_tui::Theme;
use rankdeck_tui::home::{self, Home, HomeAction, HomeView};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;
use std::sync::Arc;
use tokio::sync::Notify;

/// Interval of frames without changes, in ms: ages grow.
const AGE_MS: u64 = 1000;

/// A terminal that shows home.
pub struct HomeScreen {
    surface: TerminalSurface,
    theme: Theme,
    ages_at: Option<Timestamp>,
}

impl HomeScreen {
    /// Takes the terminal.
    pub fn open(ui: &Ui) -> io::Result<HomeScreen> {
        terminal::install_panic_hook();
        terminal::set_mouse(ui.mouse);
        // Libraries must not write over the screen.
        let nowhere = File::options().write(true).open("/dev/null").ok();
        let mut tty = Tty::new(nowhere)?;
        let mut decoder = InputDecoder::default();
        let theme = detect_theme(ui, || terminal_input::query_background(&mut tty, &mut decoder));
        Ok(HomeScreen::new(Box::new(tty), terminal_input::read(decoder)?, theme))
    }

    /// Shows home on any surface.
    pub fn new(terminal: Box<dyn Surface>, input: Input, theme: Theme) -> HomeScreen {
        let mut surface = TerminalSurface::new(terminal, input);
        surface.redraw();
        HomeScreen { surface, theme, ages_at: None }
    }

    /// Returns the next input. Cancel-safe. `None` once when the terminal is gone; then it never returns.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        self.surface.next_input().await
    }

    /// Applies an input to the view.
    pub fn handle_input(
        &mut self,
        input: TermEvent,
        home: &Home,
        view: &mut HomeView,
        now: Timestamp,
    ) -> Vec<HomeAction> {
        self.surface.scheduler.request(FrameReason::Input);
        match input {
            TermEvent::Key(key) if key.kind != KeyEventKind::Release => home::on_key(home, view, key, now),
            TermEvent::Mouse(mouse) if mouse.kind != MouseEventKind::Moved => {
                home::on_mouse(home, view, mouse, now)
            }
            TermEvent::Paste(text) => {
                home::on_paste(view, &text);
                Vec::new()
            }
            TermEvent::Resize(..) => {
                self.surface.repaint = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Returns when the next frame is due without input or changes.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.surface.is_closed() {
            return None;
        }
        earlier(self.surface.scheduler.due(), self.ages_at)
    }

    /// Returns what is notified when the next frame can be drawn.
    pub fn wake(&self) -> Arc<Notify> {
        self.surface.wake()
    }

    /// Draws a frame if one is due.
    pub fn draw(&mut self, home: &Home, view: &mut HomeView, now: Timestamp) -> io::Result<()> {
        self.surface.scheduler.note_revision(home.revision);
        if view.toasts.expire(now) || self.ages_at.is_some_and(|at| at <= now) {
            self.surface.scheduler.request(FrameReason::Data);
        }
        let Some(size) = self.surface.begin(now)? else { return Ok(()) };
        home::layout(home, view, Rect::new(0, 0, size.width, size.height));
        let theme = &self.theme;
        self.surface.finish(now, home.revision, &mut |frame| home::view(home, view, theme, now, frame))?;
        self.ages_at = Some(now.plus(AGE_MS));
        Ok(())
    }

    /// Clears the terminal and draws as soon as possible.
    pub fn redraw(&mut self) {
        self.surface.redraw();
    }

    /// Restores the terminal, stops the process group (job control), and takes the terminal again.
    pub async fn suspend(&mut self, signals: &mut ConsoleSignals) -> io::Result<()> {
        self.surface.suspend(signals).await
    }

    /// Restores the terminal.
    pub fn close(mut self) {
        // An error means that the terminal is gone: nothing to restore.
        let _ = self.surface.terminal.leave();
    }
}
