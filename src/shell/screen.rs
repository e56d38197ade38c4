//! The run on a screen: keys in, actions out, frames when something changed.

use super::canvas::Canvas;
pub use super::canvas::Input;
use super::clock::{earlier, utc_offset_s};
use super::frames::FrameReason;
use super::look;
use super::pictures::Pictures;
use super::play::screen::colours;
use super::signals::Signals;
use super::terminal::{self, CopyTarget, Surface, Tty};
use crossterm::event::{
    Event as TermEvent, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseEventKind,
};
use rankdeck_core::model::Model;
use rankdeck_tui::keys::{Command, Keymap};
use rankdeck_tui::state::{PaneSizes, SavedFile};
use rankdeck_tui::{Action, Role, Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::{ClockName, Ui};
use rankdeck_types::words::bytes;
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Rect, Size};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Keys that the answer about the background is, at most.
const ANSWER_KEYS: u8 = 32;

/// A terminal with a run on it.
pub struct Screen {
    canvas: Canvas,
    /// Cursor, focus, overlays.
    pub view: ViewState,
    theme: Theme,
    /// Keys that are the rest of an answer which came late: the terminal's own, not the user's.
    late_answer: u8,
    /// When what is shown changes although nothing happens: an age grows.
    changes_at: Option<Timestamp>,
    /// Pictures that the terminal itself draws.
    pictures: Pictures,
}

/// What came of an input.
#[derive(Debug, PartialEq)]
pub enum InputOutcome {
    /// The user wants these.
    Actions(Vec<Action>),
    /// The terminal is gone.
    Gone,
}

impl Screen {
    /// Takes the real terminal; stderr goes to `log` meanwhile.
    pub fn open(log: Option<File>, ui: &Ui) -> io::Result<Screen> {
        terminal::install_panic_hook();
        terminal::want_mouse(ui.mouse);
        let tty = Tty::new(log)?;
        // Before anybody else reads from the terminal.
        let theme = look::theme(ui, look::ask_background);
        let mut screen = Screen::new(Box::new(tty), Box::pin(EventStream::new()), theme);
        screen.view.style.colours = colours(&screen.theme);
        screen.pictures = Pictures::here();
        screen.view.style.drawn_apart = screen.pictures.are_drawn();
        screen.view.steering.read_only = ui.read_only;
        screen.view.steering.mouse_off = !ui.mouse;
        // What is wrong in it was said when the file was read.
        screen.view.steering.keymap = Keymap::read(&key_lines(ui)).0;
        if ui.clock == ClockName::Utc {
            screen.view.chart.utc_offset_s = 0;
        }
        match PaneSizes::read(ui.panes.iter().map(String::as_str)) {
            Ok(sizes) => screen.view.sizes = sizes,
            Err(error) => screen.view.toast(format!("ui.toml: {error}"), Role::Warn, Timestamp(0)),
        }
        if let Some(sizes) = *left().lock().unwrap_or_else(PoisonError::into_inner) {
            screen.view.sizes = sizes;
        }
        let columns = ui.columns.iter().map(String::as_str);
        if let Err(error) = rankdeck_tui::palette::set_columns(&mut screen.view, columns) {
            screen.view.toast(format!("ui.toml: {error}"), Role::Warn, Timestamp(0));
        }
        Ok(screen)
    }

    /// The theme of the terminal, changed as the user has typed.
    fn theme(&self) -> Theme {
        let glyphs = self.view.style.glyphs.unwrap_or(self.theme.glyphs);
        let named = self.view.style.theme.and_then(Theme::named);
        named.unwrap_or_else(|| self.theme.clone()).with_glyphs(glyphs)
    }

    /// The key of a command, as the footer shows it.
    pub fn key(&self, command: Command) -> String {
        self.view.steering.keymap.shown(command, self.theme().glyphs)
    }

    /// A screen on any surface.
    pub fn new(surface: Box<dyn Surface>, input: Input, theme: Theme) -> Screen {
        let mut view = ViewState::new();
        view.chart.utc_offset_s = utc_offset_s();
        Screen {
            canvas: Canvas::new(surface, input),
            view,
            theme,
            late_answer: 0,
            changes_at: None,
            pictures: Pictures::default(),
        }
    }

    /// The next input. Cancel-safe. `None` once: the terminal is gone; then never again.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        self.canvas.next_input().await
    }

    /// Applies an input to the view.
    pub fn hear(&mut self, input: Option<TermEvent>, model: &Model, now: Timestamp) -> InputOutcome {
        let Some(input) = input else { return InputOutcome::Gone };
        let actions = match input {
            TermEvent::Key(key) if key.kind == KeyEventKind::Release => {
                return InputOutcome::Actions(Vec::new());
            }
            TermEvent::Key(key) if self.is_answer(key) => return InputOutcome::Actions(Vec::new()),
            TermEvent::Key(key) => rankdeck_tui::on_key(model, &mut self.view, key, now),
            TermEvent::Mouse(mouse) if mouse.kind == MouseEventKind::Moved => {
                return InputOutcome::Actions(Vec::new());
            }
            TermEvent::Mouse(mouse) => rankdeck_tui::on_mouse(model, &mut self.view, mouse, now),
            TermEvent::Paste(text) => {
                rankdeck_tui::on_paste(&mut self.view, &text, now);
                Vec::new()
            }
            // Also when the size is the old one again: what the terminal cut off meanwhile is gone.
            TermEvent::Resize(..) => {
                self.canvas.repaint = true;
                self.pictures.forget();
                Vec::new()
            }
            TermEvent::FocusGained | TermEvent::FocusLost => Vec::new(),
        };
        self.canvas.pacer.want(FrameReason::Input);
        InputOutcome::Actions(actions)
    }

    /// A terminal that is slow to tell its background sends `ESC ] 11 ; ... ESC \` while keys are read.
    fn is_answer(&mut self, key: KeyEvent) -> bool {
        let alt = |c| key.modifiers.contains(KeyModifiers::ALT) && key.code == KeyCode::Char(c);
        let bell = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('g');
        if alt(']') {
            self.late_answer = ANSWER_KEYS;
            return true;
        }
        let within = self.late_answer > 0;
        self.late_answer = if alt('\\') || bell { 0 } else { self.late_answer.saturating_sub(1) };
        within
    }

    /// When to come back without a cause: a frame or something of the view is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.canvas.lent {
            return None;
        }
        earlier(self.canvas.pacer.due(), earlier(self.view.poll_timeout(), self.changes_at))
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
        self.canvas.pacer.see(model.revision);
        let expired = self.view.expire_toasts(now);
        if self.view.expire(at) || expired || self.changes_at.is_some_and(|due| due <= now) {
            self.canvas.pacer.want(FrameReason::Data);
        }
        let Some(size) = self.canvas.begin(now)? else { return Ok(false) };
        let area = Rect::new(0, 0, size.width, size.height);
        rankdeck_tui::layout(model, &mut self.view, area);
        let picture = rankdeck_tui::picture_apart(&self.view, area);
        self.pictures.before(picture, &mut *self.canvas.surface)?;
        let (view, theme) = (&self.view, &self.theme());
        self.canvas.finish(now, model.revision, &mut |frame| {
            rankdeck_tui::view(model, view, theme, at, frame);
            overlay(frame);
        })?;
        self.pictures.draw(picture, &mut *self.canvas.surface);
        // The past does not age.
        self.changes_at =
            if at == now { rankdeck_tui::next_change(self.view.shown(model), now) } else { None };
        self.changes_at = self.changes_at.filter(|_| self.view.moment.frozen.is_none());
        Ok(true)
    }

    /// A frame is wanted although neither model nor input say so.
    pub fn want(&mut self, want: FrameReason) {
        self.canvas.pacer.want(want);
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub fn mouse(&mut self, wanted: bool) {
        self.send(terminal::mouse(wanted).as_bytes());
        self.want(FrameReason::Input);
    }

    /// Draws all of it anew as soon as possible.
    pub fn redraw(&mut self) {
        self.pictures.forget();
        self.canvas.redraw();
    }

    /// Gives the terminal back, stops as job control wants it, and takes it again.
    pub async fn suspend(&mut self, signals: &mut Signals) -> io::Result<()> {
        self.pictures.take_away(&mut *self.canvas.surface);
        self.canvas.suspend(signals).await
    }

    /// Leaves the terminal to somebody else.
    pub fn lend(&mut self) -> io::Result<()> {
        self.pictures.take_away(&mut *self.canvas.surface);
        self.canvas.lend()
    }

    /// Takes it again.
    pub fn take_back(&mut self) -> io::Result<()> {
        self.canvas.take_back(Box::pin(EventStream::new()))
    }

    /// Puts text on the user's clipboard, and says what that did.
    pub fn copy(&mut self, text: &str, now: Timestamp) -> io::Result<()> {
        if text.is_empty() {
            self.view.toast("nothing to copy here", Role::Warn, now);
        } else {
            let size = bytes(text.len() as u64);
            let said = match self.canvas.surface.copy(text)? {
                CopyTarget::Tmux => {
                    format!("copied {size}: tmux's paste buffer, and the clipboard where tmux may set it")
                }
                CopyTarget::Terminal => {
                    format!("copied {size}: handed to the terminal (OSC 52), which may refuse it")
                }
            };
            self.view.toast(said, Role::Good, now);
        }
        self.canvas.pacer.want(FrameReason::Input);
        Ok(())
    }

    /// Sends the terminal what is no part of a frame. One that does not take it loses nothing else.
    pub fn send(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let _ = self.canvas.surface.send(bytes);
        }
    }

    /// Writes what is shown as text to the next free `screen-N.txt`, and returns its path.
    pub fn save(&mut self, folder: &Path, model: &Model, now: Timestamp) -> io::Result<PathBuf> {
        let text = self.as_text(self.canvas.surface.size()?, model, now)?;
        save_numbered(folder, &SavedFile { stem: "screen", ending: "txt", bytes: text.into_bytes() })
    }

    /// Writes texts to a folder, and says so.
    pub fn save_files(&mut self, folder: &Path, files: &[SavedFile], now: Timestamp) {
        let saved: io::Result<Vec<String>> =
            files.iter().map(|file| Ok(save_numbered(folder, file)?.display().to_string())).collect();
        match saved {
            Ok(paths) => self.view.toast(format!("saved {}", paths.join(", ")), Role::Good, now),
            Err(error) => self.view.toast(format!("failed to save: {error}"), Role::Warn, now),
        }
        self.canvas.pacer.want(FrameReason::Input);
    }

    fn as_text(&self, size: Size, model: &Model, now: Timestamp) -> io::Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.width, size.height))
            .map_err(|error| io::Error::other(error.to_string()))?;
        terminal
            .draw(|frame| rankdeck_tui::view(model, &self.view, &self.theme(), now, frame))
            .map_err(|error| io::Error::other(error.to_string()))?;
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(size.width.max(1)));
        Ok(rows
            .map(|row| format!("{}\n", row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end()))
            .collect())
    }

    /// Gives the terminal back for good.
    pub fn close(&mut self) {
        self.pictures.take_away(&mut *self.canvas.surface);
        *left().lock().unwrap_or_else(PoisonError::into_inner) = Some(self.view.sizes);
        // Failing here means that the terminal is gone, and then there is nothing to give back.
        let _ = self.canvas.surface.leave();
    }
}

/// The sizes of panes when a screen of this process was left: the next one has them, too.
fn left() -> &'static Mutex<Option<PaneSizes>> {
    static LEFT: Mutex<Option<PaneSizes>> = Mutex::new(None);
    &LEFT
}

/// `[keys]`, line by line.
pub fn key_lines(ui: &Ui) -> Vec<(String, String)> {
    ui.keys.iter().map(|(name, keys)| (name.clone(), keys.clone())).collect()
}

/// Writes a text to the next free `STEM-N.ENDING` of a folder, and returns its path.
fn save_numbered(folder: &Path, file: &SavedFile) -> io::Result<PathBuf> {
    for n in 1..1000 {
        let path = folder.join(format!("{}-{n}.{}", file.stem, file.ending));
        match super::record::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(mut written) => {
                io::Write::write_all(&mut written, &file.bytes)?;
                return Ok(path);
            }
        }
    }
    Err(io::Error::other("a thousand of them are saved already"))
}
