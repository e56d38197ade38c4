//! Home on a terminal: keys in, actions out, frames when something changed.

use super::clock::earlier;
use super::frames::{Pacer, Want};
use super::look;
use super::screen::Input;
use super::signals::Signals;
use super::terminal::{self, Surface, Tty};
use crossterm::event::{Event as TermEvent, EventStream, KeyEventKind, MouseEventKind};
use futures_util::StreamExt;
use rankdeck_tui::Theme;
use rankdeck_tui::home::{self, Home, HomeAction, HomeView};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;
use std::time::Duration;

/// Longest wait for SIGCONT after stopping ourselves.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);
/// Between two frames without news: ages grow.
const AGEING_MS: u64 = 1000;

/// A terminal with home on it.
pub struct HomeScreen {
    surface: Box<dyn Surface>,
    input: Option<Input>,
    theme: Theme,
    pacer: Pacer,
    repaint: bool,
    ages_at: Option<Timestamp>,
}

impl HomeScreen {
    /// Takes the terminal.
    pub fn open(ui: &Ui) -> io::Result<HomeScreen> {
        terminal::install_panic_hook();
        // What a library says must not be written over the screen.
        let nowhere = File::options().write(true).open("/dev/null").ok();
        let tty = Tty::new(nowhere)?;
        // Before anybody else reads from the terminal.
        let theme = look::theme(ui, look::ask_background);
        Ok(HomeScreen::new(Box::new(tty), Box::pin(EventStream::new()), theme))
    }

    /// On any surface.
    pub fn new(surface: Box<dyn Surface>, input: Input, theme: Theme) -> HomeScreen {
        let mut pacer = Pacer::default();
        pacer.want(Want::Now);
        HomeScreen { surface, input: Some(input), theme, pacer, repaint: true, ages_at: None }
    }

    /// The next input. Cancel-safe. `None` once: the terminal is gone; then never again.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        let Some(input) = self.input.as_mut() else { return std::future::pending().await };
        match input.next().await {
            Some(Ok(event)) => Some(event),
            Some(Err(_)) | None => {
                self.input = None;
                None
            }
        }
    }

    /// Applies an input to the view.
    pub fn hear(
        &mut self,
        input: TermEvent,
        home: &Home,
        view: &mut HomeView,
        now: Timestamp,
    ) -> Vec<HomeAction> {
        self.pacer.want(Want::Input);
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
                self.repaint = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// When to come back without a cause.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        earlier(self.pacer.due(), self.ages_at)
    }

    /// Draws if a frame is due.
    pub fn draw(&mut self, home: &Home, view: &mut HomeView, now: Timestamp) -> io::Result<()> {
        self.pacer.see(home.revision);
        if view.expire(now) || self.ages_at.is_some_and(|at| at <= now) {
            self.pacer.want(Want::Data);
        }
        if self.pacer.due().is_none_or(|due| due > now) {
            return Ok(());
        }
        if std::mem::take(&mut self.repaint) {
            self.surface.clear()?;
        }
        let size = self.surface.size()?;
        home::layout(home, view, Rect::new(0, 0, size.width, size.height));
        let theme = &self.theme;
        self.surface.draw(&mut |frame| home::view(home, view, theme, now, frame))?;
        self.pacer.drawn(now, home.revision);
        self.ages_at = Some(now.plus(AGEING_MS));
        Ok(())
    }

    /// Draws all of it anew as soon as possible.
    pub fn redraw(&mut self) {
        self.pacer.want(Want::Now);
        self.repaint = true;
    }

    /// Gives the terminal back, stops as job control wants it, and takes it again.
    pub async fn suspend(&mut self, signals: &mut Signals) -> io::Result<()> {
        self.surface.leave()?;
        terminal::stop_process_group();
        signals.continued(CONTINUE_WITHIN).await;
        self.surface.enter()?;
        self.redraw();
        Ok(())
    }

    /// Gives the terminal back for good.
    pub fn close(mut self) {
        // Failing here means that the terminal is gone, and then there is nothing to give back.
        let _ = self.surface.leave();
    }
}
