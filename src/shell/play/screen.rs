//! A policy at play on a terminal: keys in, frames when something moved.

use super::graphics::Graphics;
use super::player::Player;
use crate::shell::clock::Clock;
use crate::shell::look;
use crate::shell::signals::{ConsoleSignal, Signals};
use crate::shell::terminal::{self, Surface, Tty};
use crossterm::event::{Event as TermEvent, EventStream, KeyEventKind};
use futures_util::StreamExt;
use rankdeck_proto::show::Picture;
use rankdeck_tui::Theme;
use rankdeck_tui::play::{Colours, Play, PlayAction, on_key, picture_area, view};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Ui;
use ratatui::layout::Rect;
use std::fs::File;
use std::io;
use std::time::Duration;

/// Longest wait for SIGCONT after stopping ourselves.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);

/// Colours that this terminal has.
pub fn colours(theme: &Theme) -> Colours {
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    match set("COLORTERM").as_str() {
        _ if theme.name == "mono" || !set("NO_COLOR").is_empty() => Colours::None,
        "truecolor" | "24bit" => Colours::True,
        _ => Colours::Palette,
    }
}

struct Stage {
    surface: Box<dyn Surface>,
    theme: Theme,
    graphics: Option<Graphics>,
    /// The picture on the terminal, and where.
    drawn: Option<(Picture, Rect)>,
    repaint: bool,
}

impl Stage {
    fn draw(&mut self, play: &Play) -> io::Result<()> {
        if std::mem::take(&mut self.repaint) {
            self.take_away();
            self.surface.clear()?;
        }
        let size = self.surface.size()?;
        let area = Rect::new(0, 0, size.width, size.height);
        let place = self.graphics.and_then(|_| picture_area(play, area));
        let wanted = place.zip(play.step().and_then(|step| step.picture.as_ref()));
        if wanted.is_none() {
            self.take_away();
        }
        let theme = &self.theme;
        self.surface.draw(&mut |frame| view(play, theme, frame))?;
        let (Some(graphics), Some((place, picture))) = (self.graphics, wanted) else { return Ok(()) };
        if self.drawn.as_ref().is_some_and(|(drawn, at)| drawn == picture && *at == place) {
            return Ok(());
        }
        if let Some(pixels) = picture.rgb() {
            self.surface.send(&graphics.draw(&pixels, (picture.width, picture.height), place))?;
        }
        self.drawn = Some((picture.clone(), place));
        Ok(())
    }

    fn take_away(&mut self) {
        if let (Some(graphics), Some(_)) = (self.graphics, self.drawn.take()) {
            // A terminal that is gone has no picture either.
            let _ = self.surface.send(graphics.clear());
        }
    }
}

/// Shows it until the user leaves.
pub async fn show(
    ui: &Ui,
    graphics: Option<Graphics>,
    mut player: Player,
    mut play: Play,
) -> io::Result<Play> {
    terminal::install_panic_hook();
    terminal::want_mouse(false);
    let nowhere = File::options().write(true).open("/dev/null").ok();
    let tty = Tty::new(nowhere)?;
    // Before anybody else reads from the terminal.
    let theme = look::theme(ui, look::ask_background);
    (play.colours, play.drawn_apart) = (colours(&theme), graphics.is_some());
    let mut input = EventStream::new();
    let mut stage = Stage { surface: Box::new(tty), theme, graphics, drawn: None, repaint: true };
    let mut signals = Signals::new(true)?;
    let clock = Clock::new();
    let mut dirty = true;
    loop {
        if std::mem::take(&mut dirty) {
            stage.draw(&play)?;
        }
        let now = clock.now();
        let action = tokio::select! {
            signal = signals.next() => match signal {
                ConsoleSignal::Stop | ConsoleSignal::HangUp => Some(PlayAction::Quit),
                ConsoleSignal::Suspend => Some(PlayAction::Suspend),
                ConsoleSignal::Continue => Some(PlayAction::Redraw),
            },
            event = input.next() => {
                dirty = true;
                match event {
                    Some(Ok(TermEvent::Key(key))) if key.kind != KeyEventKind::Release => {
                        on_key(&mut play, key, now.0)
                    }
                    Some(Ok(TermEvent::Resize(..))) => Some(PlayAction::Redraw),
                    Some(Ok(_)) => { dirty = false; None }
                    Some(Err(_)) | None => Some(PlayAction::Quit),
                }
            }
            line = player.next(), if play.wants_more() => {
                dirty = hear(&mut play, &mut player, line).await;
                None
            }
            () = clock.sleep_until(play.due_ms().map(Timestamp)) => None,
        };
        dirty |= play.tick(clock.now().0);
        match action {
            Some(PlayAction::Quit) => break,
            Some(PlayAction::Redraw) => (stage.repaint, dirty) = (true, true),
            Some(PlayAction::Suspend) => {
                stage.take_away();
                stage.surface.leave()?;
                terminal::stop_process_group();
                signals.continued(CONTINUE_WITHIN).await;
                stage.surface.enter()?;
                (stage.repaint, dirty) = (true, true);
            }
            None => {}
        }
    }
    stage.take_away();
    // Failing here means that the terminal is gone, and then there is nothing to give back.
    let _ = stage.surface.leave();
    Ok(play)
}

/// Takes in what has been read; true when that changes what is shown.
async fn hear(play: &mut Play, player: &mut Player, line: Option<rankdeck_proto::show::ShowLine>) -> bool {
    let before = play.moment().cloned();
    match line {
        Some(line) => play.push(line),
        None => play.over = Some(player.end().await),
    }
    while play.wants_more() {
        match player.ready() {
            Some(line) => play.push(line),
            None => break,
        }
    }
    play.over.is_some() || play.moment() != before.as_ref()
}
