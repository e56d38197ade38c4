//! Shows a run on the screen: keys in, actions out, and a frame after each change.

use super::clock::{earlier, utc_offset_s};
use super::graphics::TerminalImages;
use super::side_jobs::LatestWorker;
use super::side_jobs::{JobEnd, SideJobs};
use super::signals::ConsoleSignals;
use super::terminal::{self, Surface, Tty};
use super::terminal_input;
use super::terminal_input::{color_depth, detect_theme};
use super::terminal_surface::{FrameReason, Input, TerminalSurface};
use base64::Engine;
use crossterm::event::{Event as TermEvent, KeyEventKind, MouseEventKind};
use rankdeck_charts::export::{FileContent, SavedFile};
use rankdeck_core::model::{Model, StoredImage};
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_tui::keys::{ScreenCommand, key_name, read_keymap};
use rankdeck_tui::state::PaneSizes;
use rankdeck_tui::{DecodedPicture, Role, ScreenAction, Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::{ClockName, Ui};
use rankdeck_types::words::bytes;
use ratatui::backend::TestBackend;
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Longest time for tmux to accept a text.
const TMUX_WITHIN: Duration = Duration::from_millis(500);
/// Most bytes for OSC 52; many terminals reject larger texts.
const COPY_BYTES: usize = 65_536;

/// A terminal that shows a run.
pub struct TerminalScreen {
    surface: TerminalSurface,
    /// Cursor, focus, overlays.
    pub view: ViewState,
    theme: Theme,
    /// When the frame changes without an event: an age grows.
    changes_at: Option<Timestamp>,
    /// Images that the terminal draws.
    images: TerminalImages,
    /// Decodes logged images; started for the first one.
    pictures: Option<LatestWorker<StoredImage, DecodedPicture>>,
    /// Number of the image that is being decoded.
    decoding: Option<u64>,
    /// Files and texts that are being written.
    jobs: SideJobs,
}

/// The result of an input.
#[derive(Debug, PartialEq)]
pub enum InputOutcome {
    /// Actions that the user requests.
    Actions(Vec<ScreenAction>),
    /// The terminal is gone.
    Gone,
}

impl TerminalScreen {
    /// Takes the terminal; stderr goes to `log` while the screen is up.
    pub fn open(log: Option<File>, ui: &Ui) -> io::Result<TerminalScreen> {
        terminal::install_panic_hook();
        terminal::set_mouse(ui.mouse);
        let mut tty = Tty::new(log)?;
        let mut decoder = InputDecoder::default();
        let theme = detect_theme(ui, || terminal_input::query_background(&mut tty, &mut decoder));
        let mut screen = TerminalScreen::new(Box::new(tty), terminal_input::read(decoder)?, theme);
        screen.view.style.colours = color_depth(&screen.theme);
        screen.images = TerminalImages::here();
        screen.view.style.drawn_apart = screen.images.is_supported();
        screen.view.steering.read_only = ui.read_only;
        screen.view.steering.mouse_off = !ui.mouse;
        // Its mistakes were reported when the file was read.
        screen.view.steering.keymap = read_keymap(&key_lines(ui)).0;
        if ui.clock == ClockName::Utc {
            screen.view.style.utc_offset_s = 0;
        }
        match PaneSizes::read(ui.panes.iter().map(String::as_str)) {
            Ok(sizes) => screen.view.sizes = sizes,
            Err(error) => screen.view.toast(format!("ui.toml: {error}"), Role::Warn, Timestamp(0)),
        }
        if let Some((sizes, present_only)) = *last_choices().lock().unwrap_or_else(PoisonError::into_inner) {
            (screen.view.sizes, screen.view.charts.view.present_only) = (sizes, present_only);
        }
        let columns = ui.columns.iter().map(String::as_str);
        if let Err(error) = screen.view.ranks.set_columns(columns) {
            screen.view.toast(format!("ui.toml: {error}"), Role::Warn, Timestamp(0));
        }
        Ok(screen)
    }

    /// The theme of the terminal, with the choices that the user typed.
    fn theme(&self) -> Theme {
        let glyphs = self.view.style.glyphs.unwrap_or(self.theme.glyphs);
        let named = self.view.style.theme.and_then(Theme::named);
        named.unwrap_or_else(|| self.theme.clone()).with_glyphs(glyphs)
    }

    /// Returns the key of a command, as the footer shows it.
    pub fn key(&self, command: ScreenCommand) -> String {
        key_name(command, &self.view.steering.keymap, self.theme().glyphs)
    }

    /// A screen on any surface.
    pub fn new(terminal: Box<dyn Surface>, input: Input, theme: Theme) -> TerminalScreen {
        let mut view = ViewState::new();
        view.style.utc_offset_s = utc_offset_s();
        let surface = TerminalSurface::new(terminal, input);
        TerminalScreen {
            jobs: SideJobs::new(surface.wake()),
            surface,
            view,
            theme,
            changes_at: None,
            images: TerminalImages::default(),
            pictures: None,
            decoding: None,
        }
    }

    /// Returns the next input. Cancel-safe. `None` once when the terminal is gone; then it pends.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        self.surface.next_input().await
    }

    /// Applies an input to the view.
    pub fn handle_input(&mut self, input: Option<TermEvent>, model: &Model, now: Timestamp) -> InputOutcome {
        let Some(input) = input else { return InputOutcome::Gone };
        let actions = match input {
            TermEvent::Key(key) if key.kind == KeyEventKind::Release => {
                return InputOutcome::Actions(Vec::new());
            }
            TermEvent::Key(key) => rankdeck_tui::on_key(model, &mut self.view, key, now),
            TermEvent::Mouse(mouse) if mouse.kind == MouseEventKind::Moved => {
                return InputOutcome::Actions(Vec::new());
            }
            TermEvent::Mouse(mouse) => rankdeck_tui::on_mouse(model, &mut self.view, mouse, now),
            TermEvent::Paste(text) => {
                rankdeck_tui::on_paste(&mut self.view, &text, now);
                Vec::new()
            }
            // Also if the size is the old one again: the terminal may have cut off cells in between.
            TermEvent::Resize(..) => {
                self.surface.repaint = true;
                self.images.forget();
                Vec::new()
            }
            TermEvent::FocusGained | TermEvent::FocusLost => Vec::new(),
        };
        self.surface.scheduler.request(FrameReason::Input);
        InputOutcome::Actions(actions)
    }

    /// When the next frame or change of the view is due without an event.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.surface.is_closed() {
            return None;
        }
        earlier(self.surface.scheduler.due(), earlier(self.view.poll_timeout(), self.changes_at))
    }

    /// Draws if a frame is due (APP-1); `overlay` paints over it. `at` is the time on the screen: `now`, or a
    /// position of playback. Returns whether it drew.
    pub fn draw(
        &mut self,
        now: Timestamp,
        at: Timestamp,
        model: &Model,
        overlay: &dyn Fn(&mut Frame),
    ) -> io::Result<bool> {
        self.show_finished_jobs(now);
        self.show_decoded();
        self.surface.scheduler.note_revision(model.revision);
        let expired = self.view.expire_toasts(now);
        if self.view.expire(at) || expired || self.changes_at.is_some_and(|due| due <= now) {
            self.surface.scheduler.request(FrameReason::Data);
        }
        let Some(size) = self.surface.begin(now)? else { return Ok(false) };
        let area = Rect::new(0, 0, size.width, size.height);
        rankdeck_tui::layout(model, &mut self.view, area);
        self.decode(model, now);
        let image = rankdeck_tui::picture_apart(&self.view, area);
        self.images.before(image, &mut *self.surface.terminal)?;
        let (view, theme) = (&self.view, &self.theme());
        self.surface.finish(now, model.revision, &mut |frame| {
            rankdeck_tui::view(model, view, theme, at, frame);
            overlay(frame);
        })?;
        self.images.draw(image, &mut *self.surface.terminal);
        // In playback, ages do not grow.
        self.changes_at =
            if at == now { rankdeck_tui::next_change(self.view.shown(model), now) } else { None };
        self.changes_at = self.changes_at.filter(|_| self.view.moment.frozen.is_none());
        Ok(true)
    }

    /// Notified when the next frame can be drawn, or a file or text is written.
    pub fn wake(&self) -> Arc<Notify> {
        self.surface.wake()
    }

    /// Has the image on the screen decoded.
    fn decode(&mut self, model: &Model, now: Timestamp) {
        let wanted = rankdeck_tui::undecoded_picture(model, &self.view);
        let Some(picture) = wanted.filter(|picture| self.decoding != Some(picture.number)).cloned() else {
            return;
        };
        self.decoding = Some(picture.number);
        if self.pictures.is_none() {
            let decode = |picture: StoredImage| rankdeck_tui::decode_picture(&picture);
            match LatestWorker::start("pictures", self.surface.wake(), decode) {
                Ok(worker) => self.pictures = Some(worker),
                Err(error) => {
                    return self.view.toast(format!("cannot start a thread: {error}"), Role::Warn, now);
                }
            }
        }
        if let Some(worker) = &self.pictures {
            worker.request(picture);
        }
    }

    /// Shows the image that was decoded.
    fn show_decoded(&mut self) {
        let Some(decoded) = self.pictures.as_ref().and_then(LatestWorker::take) else { return };
        if self.decoding == Some(decoded.number) {
            self.decoding = None;
        }
        rankdeck_tui::set_picture(&mut self.view, decoded);
        self.surface.scheduler.request(FrameReason::Input);
    }

    /// Shows the results of files and texts.
    fn show_finished_jobs(&mut self, now: Timestamp) {
        for JobEnd { toast: (text, role), bytes } in self.jobs.take() {
            let sent = if bytes.is_empty() { Ok(()) } else { self.surface.terminal.send(&bytes) };
            match sent {
                Ok(()) => self.view.toast(text, role, now),
                Err(error) => self.view.toast(format!("cannot copy: {error}"), Role::Warn, now),
            }
            self.surface.scheduler.request(FrameReason::Input);
        }
    }

    /// Requests a frame for a change outside of model and input.
    pub fn request_frame(&mut self, reason: FrameReason) {
        self.surface.scheduler.request(reason);
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub fn mouse(&mut self, on: bool) {
        self.send(terminal::mouse(on).as_bytes());
        self.request_frame(FrameReason::Input);
    }

    /// Clears the terminal and draws as soon as possible.
    pub fn redraw(&mut self) {
        self.images.forget();
        self.surface.redraw();
    }

    /// Restores the terminal, stops the process group (job control), and takes the terminal again.
    pub async fn suspend(&mut self, signals: &mut ConsoleSignals) -> io::Result<()> {
        self.images.take_away(&mut *self.surface.terminal);
        self.surface.suspend(signals).await
    }

    /// Gives the terminal to another program.
    pub fn lend(&mut self) -> io::Result<()> {
        self.images.take_away(&mut *self.surface.terminal);
        self.surface.lend()
    }

    /// Takes the terminal back.
    pub fn take_back(&mut self) -> io::Result<()> {
        self.surface.take_back(terminal_input::read(InputDecoder::default())?)
    }

    /// Copies a text to the clipboard of the user's machine, through tmux or with OSC 52, and shows the
    /// result.
    pub fn copy(&mut self, text: &str, now: Timestamp) {
        self.surface.scheduler.request(FrameReason::Input);
        if text.is_empty() {
            return self.view.toast("nothing to copy here", Role::Warn, now);
        }
        let size = bytes(text.len() as u64);
        let text = clipped(text).to_owned();
        let by_terminal = move |text: &str| JobEnd {
            toast: (format!("copied {size}: sent to the terminal (OSC 52), which may reject it"), Role::Good),
            bytes: osc52(text),
        };
        if terminal::is_in_tmux() {
            let size = bytes(text.len() as u64);
            let taken =
                format!("copied {size}: in the tmux paste buffer, and in the clipboard if tmux allows it");
            self.jobs.start(move || match to_tmux(&text) {
                true => JobEnd::toast(taken, Role::Good),
                false => by_terminal(&text),
            });
        } else {
            self.jobs.end(by_terminal(&text));
            self.show_finished_jobs(now);
        }
    }

    /// Sends bytes that are not part of a frame. A terminal that rejects them loses nothing else.
    pub fn send(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let _ = self.surface.terminal.send(bytes);
        }
    }

    /// Writes the screen as text to the next free `screen-N.txt`; `at` is the time on the screen.
    pub fn save(&mut self, folder: &Path, model: &Model, at: Timestamp) {
        let text = self.surface.terminal.size().and_then(|size| self.as_text(size, model, at));
        let folder = folder.to_owned();
        self.jobs.start(move || {
            let file = |text: String| SavedFile {
                stem: "screen",
                ending: "txt",
                content: FileContent::Bytes(text.into_bytes()),
            };
            match text.and_then(|text| save_numbered(&folder, &file(text))) {
                Ok(path) => JobEnd::toast(format!("screen saved to {}", path.display()), Role::Good),
                Err(error) => JobEnd::toast(format!("failed to save the screen: {error}"), Role::Warn),
            }
        });
    }

    /// Writes files to a directory, and shows their names.
    pub fn save_files(&mut self, folder: &Path, files: Vec<SavedFile>) {
        let folder = folder.to_owned();
        self.jobs.start(move || {
            let saved: io::Result<Vec<String>> =
                files.iter().map(|file| Ok(save_numbered(&folder, file)?.display().to_string())).collect();
            match saved {
                Ok(paths) => JobEnd::toast(format!("saved {}", paths.join(", ")), Role::Good),
                Err(error) => JobEnd::toast(format!("failed to save: {error}"), Role::Warn),
            }
        });
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

    /// Restores the terminal for good.
    pub fn close(&mut self) {
        self.images.take_away(&mut *self.surface.terminal);
        let choices = (self.view.sizes, self.view.charts.view.present_only);
        *last_choices().lock().unwrap_or_else(PoisonError::into_inner) = Some(choices);
        // An error means that the terminal is gone: nothing to restore.
        let _ = self.surface.terminal.leave();
    }
}

/// The pane sizes of the screen that this process closed last, and whether its charts hid earlier generations,
/// for the next one.
fn last_choices() -> &'static Mutex<Option<(PaneSizes, bool)>> {
    static LAST: Mutex<Option<(PaneSizes, bool)>> = Mutex::new(None);
    &LAST
}

/// The lines of `[keys]`.
fn key_lines(ui: &Ui) -> Vec<(String, String)> {
    ui.keys.iter().map(|(name, keys)| (name.clone(), keys.clone())).collect()
}

/// Writes a file to the next free `STEM-N.ENDING` of a directory, and returns its path.
fn save_numbered(folder: &Path, file: &SavedFile) -> io::Result<PathBuf> {
    for n in 1..1000 {
        let path = folder.join(format!("{}-{n}.{}", file.stem, file.ending));
        match super::record::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(mut written) => {
                written.write_all(&file.bytes())?;
                return Ok(path);
            }
        }
    }
    Err(io::Error::other("this directory has 1,000 of them"))
}

/// Cuts a text to the size of a clipboard.
fn clipped(text: &str) -> &str {
    let end = (0..=COPY_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// The OSC 52 sequence of a text.
fn osc52(text: &str) -> Vec<u8> {
    format!("\x1b]52;c;{}\x07", base64::engine::general_purpose::STANDARD.encode(text)).into_bytes()
}

/// Sends a text to tmux; returns whether it was accepted. Blocks: not for the loop of a run.
fn to_tmux(text: &str) -> bool {
    load_buffer(&["load-buffer", "-w", "-"], text) || load_buffer(&["load-buffer", "-"], text)
}

/// Runs tmux with a text on its stdin; returns whether it was accepted. The process has ended when this
/// returns.
fn load_buffer(arguments: &[&str], text: &str) -> bool {
    let started = std::process::Command::new("tmux")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut tmux) = started else { return false };
    let written = tmux.stdin.take().is_some_and(|mut pipe| pipe.write_all(text.as_bytes()).is_ok());
    let deadline = Instant::now() + TMUX_WITHIN;
    loop {
        match tmux.try_wait() {
            Ok(Some(status)) => return written && status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _ = tmux.kill();
                let _ = tmux.wait();
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::terminal::testkit::CountingTerminal;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::{ImageHeader, encoded};
    use rankdeck_tui::state::Images;

    #[test]
    fn logged_image_is_decoded_on_a_thread() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&[7; 6]).unwrap();
        let mut model = Model::default();
        for step in [1.0, 2.0] {
            let (place, head) = (Place { step, ..Place::default() }, ImageHeader::of(&file).unwrap());
            assert!(model.gallery.push("seen".into(), place, head, encoded(&file)));
        }
        let input = Box::pin(futures_util::stream::pending());
        let mut screen = TerminalScreen::new(Box::new(CountingTerminal::new().0), input, Theme::dark());
        screen.view.open(Images::new(None, None));
        let decoded = |screen: &mut TerminalScreen, from: u64| {
            screen.request_frame(FrameReason::Input);
            let deadline = Instant::now() + Duration::from_secs(60);
            for now in (from..).step_by(1000).map(Timestamp) {
                screen.draw(now, now, &model, &|_| {}).unwrap();
                if rankdeck_tui::undecoded_picture(&model, &screen.view).is_none() {
                    return;
                }
                assert!(screen.decoding.is_some() && Instant::now() < deadline, "it is being decoded");
                std::thread::yield_now();
            }
        };
        decoded(&mut screen, 0);
        assert_eq!(screen.decoding, None);
        screen.view.open(Images::new(None, Some(1)));
        decoded(&mut screen, 1 << 40);
    }
}
