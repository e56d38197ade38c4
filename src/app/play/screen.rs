//! Shows a playing policy on a terminal: handles keys and draws frames when something moves.

use super::PolicyPlayer;
use crate::app::clock::Clock;
use crate::app::graphics::Graphics;
use crate::app::signals::{ConsoleSignal, ConsoleSignals};
use crate::app::terminal::{self, Surface, Tty};
use crate::app::terminal_input;
use crate::app::theme_detect::{color_depth, detect_theme};
use crossterm::event::{Event as TermEvent, KeyEventKind};
use futures_util::StreamExt;
use rankdeck_kit::Theme;
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_proto::show::EnvImage;
use rankdeck_tui::play::{Play, PlayAction, image_area, on_key, view};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;
use std::time::Duration;

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
