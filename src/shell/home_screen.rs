//! Home on a terminal: keys in, actions out, frames when something changed.

use super::canvas::{Canvas, Input};
use super::clock::earlier;
use super::frames::FrameReason;
use super::look;
use super::signals::Signals;
use super::terminal::{self, Surface, Tty};
use crossterm::event::{Event as TermEvent, EventStream, KeyEventKind, MouseEventKind};
use rankdeck_tui::Theme;
use rankdeck_tui::home::{self, Home, HomeAction, HomeView};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;

/// Between two frames without news: ages grow.
const AGEING_MS: u64 = 1000;

/// A terminal with home on it.
pub struct HomeScreen {
    canvas: Canvas,
    theme: Theme,
    ages_at: Option<Timestamp>,
}

impl HomeScreen {
    /// Takes the terminal.
    pub fn open(ui: &Ui) -> io::Result<HomeScreen> {
        terminal::install_panic_hook();
        terminal::want_mouse(ui.mouse);
        // What a library says must not be written over the screen.
        let nowhere = File::options().write(true).open("/dev/null").ok();
        let tty = Tty::new(nowhere)?;
        // Before anybody else reads from the terminal.
        let theme = look::theme(ui, look::ask_background);
        Ok(HomeScreen::new(Box::new(tty), Box::pin(EventStream::new()), theme))
    }

    /// On any surface.
    pub fn new(surface: Box<dyn Surface>, input: Input, theme: Theme) -> HomeScreen {
        let mut canvas = Canvas::new(surface, input);
        canvas.redraw();
        HomeScreen { canvas, theme, ages_at: None }
    }

    /// The next input. Cancel-safe. `None` once: the terminal is gone; then never again.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        self.canvas.next_input().await
    }

    /// Applies an input to the view.
    pub fn hear(
        &mut self,
        input: TermEvent,
        home: &Home,
        view: &mut HomeView,
        now: Timestamp,
    ) -> Vec<HomeAction> {
        self.canvas.pacer.want(FrameReason::Input);
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
                self.canvas.repaint = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// When to come back without a cause.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        earlier(self.canvas.pacer.due(), self.ages_at)
    }

    /// Draws if a frame is due.
    pub fn draw(&mut self, home: &Home, view: &mut HomeView, now: Timestamp) -> io::Result<()> {
        self.canvas.pacer.see(home.revision);
        if view.expire(now) || self.ages_at.is_some_and(|at| at <= now) {
            self.canvas.pacer.want(FrameReason::Data);
        }
        let Some(size) = self.canvas.begin(now)? else { return Ok(()) };
        home::layout(home, view, Rect::new(0, 0, size.width, size.height));
        let theme = &self.theme;
        self.canvas.finish(now, home.revision, &mut |frame| home::view(home, view, theme, now, frame))?;
        self.ages_at = Some(now.plus(AGEING_MS));
        Ok(())
    }

    /// Draws all of it anew as soon as possible.
    pub fn redraw(&mut self) {
        self.canvas.redraw();
    }

    /// Gives the terminal back, stops as job control wants it, and takes it again.
    pub async fn suspend(&mut self, signals: &mut Signals) -> io::Result<()> {
        self.canvas.suspend(signals).await
    }

    /// Gives the terminal back for good.
    pub fn close(mut self) {
        // Failing here means that the terminal is gone, and then there is nothing to give back.
        let _ = self.canvas.surface.leave();
    }
}
