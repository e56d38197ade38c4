//! Shows a policy playing on the terminal, or saves it as an animation.
//!
//! `rankdeck-trainer` plays as a child process and prints a line per step ([`PolicyPlayer`]).
//! [`Play`](rankdeck_tui::play::Play) decides what is shown when. [`record`] has the
//! asciicasts and GIFs.

pub mod record;

use crate::app::clock::Clock;
use crate::app::graphics::Graphics;
use crate::app::signals::{ConsoleSignal, ConsoleSignals};
use crate::app::terminal::{self, Surface, Tty};
use crate::app::terminal_input::{self, color_depth, detect_theme};
use crossterm::event::{Event as TermEvent, KeyEventKind};
use futures_util::StreamExt;
use rankdeck_kit::Theme;
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_proto::show::{EnvImage, ShowLine};
use rankdeck_tui::play::{Play, PlayAction, image_area, on_key, view};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Capacity of the queue of lines; the trainer waits while it is full.
const QUEUE: usize = 64;
/// Number of stored lines of stderr.
const STDERR_LINES: usize = 40;
/// Exit status of a program that cannot load a library.
pub const NOT_LOADED: i32 = 127;

/// A playing policy; dropping it kills the process.
pub struct PolicyPlayer {
    child: Child,
    lines: mpsc::Receiver<ShowLine>,
    stderr: tokio::task::JoinHandle<Vec<String>>,
}

impl PolicyPlayer {
    /// Starts the process.
    pub fn start(command: std::process::Command) -> std::io::Result<PolicyPlayer> {
        let mut child = Command::from(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (sender, lines) = mpsc::channel(QUEUE);
        if let Some(out) = child.stdout.take() {
            tokio::spawn(read(out, sender));
        }
        let errors = child.stderr.take();
        let stderr = tokio::spawn(async move {
            match errors {
                Some(errors) => last_lines(errors).await,
                None => Vec::new(),
            }
        });
        Ok(PolicyPlayer { child, lines, stderr })
    }

    /// Returns the next line, `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<ShowLine> {
        self.lines.recv().await
    }

    /// Returns a line that has already been read.
    pub fn ready(&mut self) -> Option<ShowLine> {
        self.lines.try_recv().ok()
    }

    /// Waits for the process after its last line. The error is what it printed, without program names.
    pub async fn end(&mut self) -> Result<(), String> {
        let status = self.child.wait().await.map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(());
        }
        let stderr = (&mut self.stderr).await.unwrap_or_default();
        if status.code() == Some(NOT_LOADED) {
            return Err("rankdeck-trainer cannot load libtorch\n`pip install torch==2.11.0` and add its \
                        torch/lib directory to LD_LIBRARY_PATH"
                .to_owned());
        }
        let own = |word: &str| {
            let mut named = stderr.iter().rev().filter_map(|line| line.strip_prefix("rankdeck-trainer: "));
            named.find_map(|line| line.strip_prefix(word)).map(str::to_owned)
        };
        match (own("error: "), own("hint: ")) {
            (Some(error), hint) => Err(format!("{error}\n{}", hint.unwrap_or_default())),
            (None, _) => Err(format!(
                "rankdeck-trainer failed: {status}\n{}",
                stderr.last().cloned().unwrap_or_else(|| "no output".to_owned())
            )),
        }
    }
}

/// Reads lines of JSON and skips other lines.
async fn read(out: impl AsyncRead + Unpin, sender: mpsc::Sender<ShowLine>) {
    let mut lines = BufReader::new(out).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(line) = serde_json::from_str(&line)
            && sender.send(line).await.is_err()
        {
            return;
        }
    }
}

async fn last_lines(errors: impl AsyncRead + Unpin) -> Vec<String> {
    let mut lines = BufReader::new(errors).lines();
    let mut last = std::collections::VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == STDERR_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into()
}

/// Longest wait for SIGCONT after stopping this process.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);

struct PlaySurface {
    surface: Box<dyn Surface>,
    theme: Theme,
    graphics: Option<Graphics>,
    /// The image on the terminal, and its area.
    drawn: Option<(EnvImage, Rect)>,
    repaint: bool,
}

impl PlaySurface {
    fn draw(&mut self, play: &Play) -> io::Result<()> {
        if std::mem::take(&mut self.repaint) {
            self.clear_image();
            self.surface.clear()?;
        }
        let size = self.surface.size()?;
        let area = Rect::new(0, 0, size.width, size.height);
        let place = self.graphics.and_then(|_| image_area(play, area));
        let visible = place.zip(play.step().and_then(|step| step.picture.as_ref()));
        if visible.is_none() {
            self.clear_image();
        }
        let theme = &self.theme;
        self.surface.draw(&mut |frame| view(play, theme, frame))?;
        let (Some(graphics), Some((place, picture))) = (self.graphics, visible) else { return Ok(()) };
        if self.drawn.as_ref().is_some_and(|(drawn, at)| drawn == picture && *at == place) {
            return Ok(());
        }
        if let Some(pixels) = picture.rgb() {
            let sides = (picture.width, picture.height);
            self.surface.send_made(Box::new(move || graphics.draw(&pixels, sides, place)))?;
        }
        self.drawn = Some((picture.clone(), place));
        Ok(())
    }

    fn clear_image(&mut self) {
        if let (Some(graphics), Some(_)) = (self.graphics, self.drawn.take()) {
            // An error means that the terminal is gone, and the image with it.
            let _ = self.surface.send(graphics.clear());
        }
    }
}

/// Shows the policy until the user quits.
pub async fn show(
    ui: &Ui,
    graphics: Option<Graphics>,
    mut player: PolicyPlayer,
    mut play: Play,
) -> io::Result<Play> {
    terminal::install_panic_hook();
    terminal::set_mouse(false);
    let nowhere = File::options().write(true).open("/dev/null").ok();
    let mut tty = Tty::new(nowhere)?;
    let mut decoder = InputDecoder::default();
    let theme = detect_theme(ui, || terminal_input::query_background(&mut tty, &mut decoder));
    (play.colors, play.has_graphics) = (color_depth(&theme), graphics.is_some());
    let mut input = terminal_input::read(decoder)?;
    let mut stage = PlaySurface { surface: Box::new(tty), theme, graphics, drawn: None, repaint: true };
    let mut signals = ConsoleSignals::new(true)?;
    let clock = Clock::new();
    let mut dirty = true;
    loop {
        if dirty && !stage.surface.is_writing() {
            dirty = false;
            stage.draw(&play)?;
        }
        let (now, wake) = (clock.now(), stage.surface.wake());
        let action = tokio::select! {
            signal = signals.next() => match signal {
                ConsoleSignal::Stop | ConsoleSignal::HangUp => Some(PlayAction::Quit),
                ConsoleSignal::Suspend => Some(PlayAction::Suspend),
                ConsoleSignal::Continue => Some(PlayAction::Redraw),
            },
            event = input.next() => {
                let before = std::mem::replace(&mut dirty, true);
                match event {
                    Some(Ok(TermEvent::Key(key))) if key.kind != KeyEventKind::Release => {
                        on_key(&mut play, key, now.0)
                    }
                    Some(Ok(TermEvent::Resize(..))) => Some(PlayAction::Redraw),
                    Some(Ok(_)) => { dirty = before; None }
                    Some(Err(_)) | None => Some(PlayAction::Quit),
                }
            }
            line = player.next(), if play.can_read() => {
                dirty |= read_lines(&mut play, &mut player, line).await;
                None
            }
            () = wake.notified() => None,
            () = clock.sleep_until(play.due_ms().map(Timestamp)) => None,
        };
        dirty |= play.tick(clock.now().0);
        match action {
            Some(PlayAction::Quit) => break,
            Some(PlayAction::Redraw) => (stage.repaint, dirty) = (true, true),
            Some(PlayAction::Suspend) => {
                stage.clear_image();
                stage.surface.leave()?;
                terminal::stop_process_group();
                signals.continued(CONTINUE_WITHIN).await;
                stage.surface.enter()?;
                (stage.repaint, dirty) = (true, true);
            }
            None => {}
        }
    }
    stage.clear_image();
    // An error means that the terminal is gone: nothing to restore.
    let _ = stage.surface.leave();
    Ok(play)
}

/// Adds the lines that have been read; true if the shown moment changes.
async fn read_lines(
    play: &mut Play,
    player: &mut PolicyPlayer,
    line: Option<rankdeck_proto::show::ShowLine>,
) -> bool {
    let before = play.frame().cloned();
    match line {
        Some(line) => play.push(line),
        None => play.end = Some(player.end().await),
    }
    while play.can_read() {
        match player.ready() {
            Some(line) => play.push(line),
            None => break,
        }
    }
    play.end.is_some() || play.frame() != before.as_ref()
}
