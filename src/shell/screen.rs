//! The run on a screen: keys in, actions out, frames when something changed.

use super::clock::earlier;
use super::frames::{Pacer, Want};
use super::signals::Signals;
use super::terminal::{self, Surface, Tty};
use crossterm::event::{Event as TermEvent, EventStream, KeyEventKind, MouseEventKind};
use futures_util::{Stream, StreamExt};
use rankdeck_core::model::Model;
use rankdeck_tui::{Action, Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Rect, Size};
use std::fs::File;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

/// What the terminal sends.
pub type Input = Pin<Box<dyn Stream<Item = io::Result<TermEvent>> + Send>>;

/// Longest wait for SIGCONT after stopping ourselves: reached only when the kernel ignored the stop.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);

/// A terminal with a run on it.
pub struct Screen {
    surface: Box<dyn Surface>,
    input: Option<Input>,
    /// Cursor, focus, overlays.
    pub view: ViewState,
    theme: Theme,
    pacer: Pacer,
    /// What is on the terminal is not known: clear it before the next frame.
    repaint: bool,
}

/// What came of an input.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// The user wants these.
    Actions(Vec<Action>),
    /// The terminal is gone.
    Gone,
}

impl Screen {
    /// Takes the real terminal; stderr goes to `log` meanwhile.
    pub fn open(log: Option<File>) -> io::Result<Screen> {
        terminal::install_panic_hook();
        let tty = Tty::new(log)?;
        Ok(Screen::new(Box::new(tty), Box::pin(EventStream::new()), detect_theme()))
    }

    /// A screen on any surface.
    pub fn new(surface: Box<dyn Surface>, input: Input, theme: Theme) -> Screen {
        Screen {
            surface,
            input: Some(input),
            view: ViewState::new(),
            theme,
            pacer: Pacer::default(),
            repaint: false,
        }
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
    pub fn hear(&mut self, input: Option<TermEvent>, model: &Model, now: Timestamp) -> Heard {
        let Some(input) = input else { return Heard::Gone };
        let actions = match input {
            TermEvent::Key(key) if key.kind == KeyEventKind::Release => return Heard::Actions(Vec::new()),
            TermEvent::Key(key) => rankdeck_tui::on_key(model, &mut self.view, key, now),
            TermEvent::Mouse(mouse) if mouse.kind == MouseEventKind::Moved => {
                return Heard::Actions(Vec::new());
            }
            TermEvent::Mouse(mouse) => rankdeck_tui::on_mouse(model, &mut self.view, mouse, now),
            TermEvent::Paste(text) => {
                rankdeck_tui::on_paste(&mut self.view, &text, now);
                Vec::new()
            }
            // Also when the size is the old one again: what the terminal cut off meanwhile is gone.
            TermEvent::Resize(..) => {
                self.repaint = true;
                Vec::new()
            }
            TermEvent::FocusGained | TermEvent::FocusLost => Vec::new(),
        };
        self.pacer.want(Want::Input);
        Heard::Actions(actions)
    }

    /// When to come back without a cause: a frame or something of the view is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        earlier(self.pacer.due(), self.view.poll_timeout())
    }

    /// Draws if a frame is due (SHELL-1); `overlay` paints over it. `at` is the time on the screen: `now`,
    /// unless the past is shown. Returns whether it drew.
    pub fn draw(
        &mut self,
        now: Timestamp,
        at: Timestamp,
        model: &Model,
        overlay: &dyn Fn(&mut Frame),
    ) -> io::Result<bool> {
        self.pacer.see(model.revision);
        if self.view.expire(at) {
            self.pacer.want(Want::Data);
        }
        if self.pacer.due().is_none_or(|due| due > now) {
            return Ok(false);
        }
        if std::mem::take(&mut self.repaint) {
            self.surface.clear()?;
        }
        let size = self.surface.size()?;
        rankdeck_tui::layout(model, &mut self.view, Rect::new(0, 0, size.width, size.height));
        let (view, theme) = (&self.view, &self.theme);
        self.surface.draw(&mut |frame| {
            rankdeck_tui::view(model, view, theme, at, frame);
            overlay(frame);
        })?;
        self.pacer.drawn(now, model.revision);
        Ok(true)
    }

    /// A frame is wanted although neither model nor input say so.
    pub fn want(&mut self, want: Want) {
        self.pacer.want(want);
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

    /// Puts text on the user's clipboard.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        self.surface.copy(text)
    }

    /// Writes what is shown as text to the next free `screen-N.txt`, and returns its path.
    pub fn save(&mut self, folder: &Path, model: &Model, now: Timestamp) -> io::Result<std::path::PathBuf> {
        let text = self.as_text(self.surface.size()?, model, now)?;
        for n in 1..1000 {
            let path = folder.join(format!("screen-{n}.txt"));
            match super::record::create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(mut file) => {
                    io::Write::write_all(&mut file, text.as_bytes())?;
                    return Ok(path);
                }
            }
        }
        Err(io::Error::other("a thousand screens are saved already"))
    }

    fn as_text(&self, size: Size, model: &Model, now: Timestamp) -> io::Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.width, size.height))
            .map_err(|error| io::Error::other(error.to_string()))?;
        terminal
            .draw(|frame| rankdeck_tui::view(model, &self.view, &self.theme, now, frame))
            .map_err(|error| io::Error::other(error.to_string()))?;
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(size.width.max(1)));
        Ok(rows
            .map(|row| format!("{}\n", row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end()))
            .collect())
    }

    /// Gives the terminal back for good.
    pub fn close(&mut self) {
        // Failing here means that the terminal is gone, and then there is nothing to give back.
        let _ = self.surface.leave();
    }
}

/// The theme that this terminal can show.
pub fn detect_theme() -> Theme {
    let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    let utf8 = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    let truecolor = std::env::var("COLORTERM").is_ok_and(|value| value == "truecolor" || value == "24bit");
    Theme::detect(set("NO_COLOR"), utf8, truecolor)
}
