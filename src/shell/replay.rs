//! A recorded run, shown again: the same core and the same screen, fed from a trace instead of hosts.
//!
//! [`Player`] is pure; [`on_screen`] drives it with keys: space pauses, `+`/`-` change the speed, arrows
//! jump, `q` leaves. What the core wants done is not done: a replay touches no host.

use super::clock::{Clock, earlier};
use super::frames::Want;
use super::screen::{Heard, Screen};
use super::signals::{Signalled, Signals};
use crossterm::event::{Event as TermEvent, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rankdeck_core::Core;
use rankdeck_core::effect::Effect;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_core::trace::Trace;
use rankdeck_tui::Action;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::duration;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use std::io;

/// Speeds that `+` and `-` step through.
pub const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0];
/// Milliseconds that an arrow jumps; with shift ten times as far.
pub const JUMP_MS: u64 = 10_000;
/// How often a playing replay looks whether events are due.
const STEP_MS: u64 = 50;

/// A position in a trace, and the state there.
pub struct Player {
    trace: Trace,
    core: Core,
    next: usize,
    at: Timestamp,
}

impl Player {
    /// At the beginning.
    pub fn new(trace: Trace) -> Player {
        let core = trace.core();
        Player { trace, core, next: 0, at: Timestamp(0) }
    }

    /// The state here.
    pub fn model(&self) -> &Model {
        self.core.model()
    }

    /// Where we are.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Where the trace ends.
    pub fn length(&self) -> Timestamp {
        self.trace.events.last().map_or(Timestamp(0), |(at, _)| *at)
    }

    /// When the next event is, `None` at the end.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.trace.events.get(self.next).map(|(at, _)| *at)
    }

    /// Goes to `to`, backwards too (then everything is applied again from the beginning), and returns the
    /// reports on the way.
    pub fn seek(&mut self, to: Timestamp) -> Vec<Report> {
        let to = to.min(self.length());
        if to < self.at {
            self.core = self.trace.core();
            self.next = 0;
        }
        self.at = to;
        let mut reports = Vec::new();
        while let Some((at, event)) = self.trace.events.get(self.next).filter(|(at, _)| *at <= to) {
            for effect in self.core.handle(*at, event.clone()) {
                if let Effect::Tell(mut report) = effect {
                    report.time = self.trace.header.time + at.0 as f64 / 1000.0;
                    reports.push(*report);
                }
            }
            self.next += 1;
        }
        reports
    }
}

/// What the keys of a replay change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transport {
    /// Does not move by itself.
    pub paused: bool,
    /// Index into [`SPEEDS`].
    pub speed: usize,
}

/// What a key of a replay means; `None`: it belongs to the screen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Move {
    /// Change of pause or speed.
    Set(Transport),
    /// Jump by so many milliseconds.
    Jump(i64),
    /// To the beginning or the end.
    Edge {
        /// The end.
        end: bool,
    },
}

/// The meaning of a key.
pub fn on_key(key: KeyEvent, now: Transport) -> Option<Move> {
    let far = if key.modifiers.contains(KeyModifiers::SHIFT) { 10 } else { 1 };
    let jump = JUMP_MS as i64 * far;
    match key.code {
        KeyCode::Char(' ') => Some(Move::Set(Transport { paused: !now.paused, ..now })),
        KeyCode::Char('+' | '=') => {
            Some(Move::Set(Transport { speed: (now.speed + 1).min(SPEEDS.len() - 1), ..now }))
        }
        KeyCode::Char('-') => Some(Move::Set(Transport { speed: now.speed.saturating_sub(1), ..now })),
        KeyCode::Left => Some(Move::Jump(-jump)),
        KeyCode::Right => Some(Move::Jump(jump)),
        KeyCode::Home => Some(Move::Edge { end: false }),
        KeyCode::End => Some(Move::Edge { end: true }),
        _ => None,
    }
}

/// Plays on a screen until the user leaves.
///
/// # Errors
/// When the terminal fails.
pub async fn on_screen(mut player: Player, mut screen: Screen) -> io::Result<()> {
    let mut signals = Signals::new(true)?;
    let clock = Clock::new();
    let mut transport = Transport { paused: false, speed: 2 };
    // Position of the replay at a moment of the clock.
    let mut anchor = (clock.now(), Timestamp(0));
    let mut shown = String::new();
    loop {
        let now = clock.now();
        if !transport.paused {
            let moved = now.since(anchor.0) as f64 * SPEEDS[transport.speed];
            player.seek(anchor.1.plus(moved as u64));
        }
        let bar = bar(&player, transport);
        if bar != shown {
            screen.want(Want::Data);
            shown = bar;
        }
        screen.draw(now, player.at(), player.model(), &|frame| paint_bar(frame, &shown))?;
        let at_end = player.next_at().is_none();
        let step = (!transport.paused && !at_end).then(|| now.plus(STEP_MS));
        let frame = screen.poll_timeout().map(|_| now.plus(STEP_MS));
        tokio::select! {
            signal = signals.next() => match signal {
                Signalled::Stop | Signalled::HangUp => break,
                Signalled::Suspend => screen.suspend(&mut signals).await?,
                Signalled::Continue => screen.redraw(),
            },
            input = screen.next_input() => {
                if let Some(TermEvent::Key(key)) = &input
                    && key.kind != KeyEventKind::Release
                    && let Some(wanted) = on_key(*key, transport)
                {
                    let to = match wanted {
                        Move::Set(next) => { transport = next; player.at() }
                        Move::Jump(ms) => Timestamp(player.at().0.saturating_add_signed(ms)),
                        Move::Edge { end: false } => Timestamp(0),
                        Move::Edge { end: true } => player.length(),
                    };
                    player.seek(to);
                    anchor = (clock.now(), player.at());
                    screen.want(Want::Input);
                    continue;
                }
                match screen.hear(input, player.model(), player.at()) {
                    Heard::Gone => break,
                    Heard::Actions(actions) => {
                        for action in actions {
                            match action {
                                Action::Tell(Event::DetachRequested) => { screen.close(); return Ok(()); }
                                Action::Suspend => {
                                    screen.suspend(&mut signals).await?;
                                    anchor = (clock.now(), player.at());
                                }
                                Action::Redraw => screen.redraw(),
                                Action::Copy(text) => screen.copy(&text)?,
                                // There is nothing to stop, restart, answer or save in the past.
                                Action::Tell(_) | Action::SaveScreen => {}
                            }
                        }
                    }
                }
            }
            () = clock.sleep_until(earlier(step, frame)) => {}
        }
    }
    screen.close();
    Ok(())
}

fn bar(player: &Player, transport: Transport) -> String {
    let state = match (player.next_at().is_none(), transport.paused) {
        (true, _) => "end",
        (_, true) => "paused",
        _ => "playing",
    };
    format!(
        " REPLAY {state} {}x  {} / {}   space pause  +/- speed  left/right 10s (shift 100s)  home/end  q quit",
        SPEEDS[transport.speed],
        duration((player.at().0 / 1000) as f64),
        duration((player.length().0 / 1000) as f64),
    )
}

fn paint_bar(frame: &mut Frame, text: &str) {
    let area = frame.area();
    if area.height == 0 {
        return;
    }
    let row = Rect { y: area.bottom() - 1, height: 1, ..area };
    let width = usize::from(area.width);
    let line = Line::styled(format!("{text:width$}"), Style::default().add_modifier(Modifier::REVERSED));
    frame.render_widget(line, row);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::Goal;
    use rankdeck_core::trace::Header;
    use rankdeck_types::ids::RunId;

    fn player() -> Player {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let events = (0..10).map(|i| (Timestamp(i * 1000), Event::Ticked)).collect();
        let header = Header::new(goal, Vec::new(), false, Timestamp(0), 100.0);
        Player::new(Trace { header, events, torn_at: None })
    }

    #[test]
    fn seeking_goes_both_ways_and_stops_at_the_ends() {
        let mut player = player();
        player.seek(Timestamp(4500));
        assert_eq!((player.at(), player.next_at()), (Timestamp(4500), Some(Timestamp(5000))));
        player.seek(Timestamp(1000));
        assert_eq!((player.at(), player.next_at()), (Timestamp(1000), Some(Timestamp(2000))));
        player.seek(Timestamp(99_000));
        assert_eq!((player.at(), player.next_at()), (Timestamp(9000), None));
    }

    #[test]
    fn keys_move_within_bounds() {
        let start = Transport { paused: false, speed: 0 };
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(on_key(key(KeyCode::Char('-')), start), Some(Move::Set(start)));
        let top = Transport { speed: SPEEDS.len() - 1, ..start };
        assert_eq!(on_key(key(KeyCode::Char('+')), top), Some(Move::Set(top)));
        assert_eq!(on_key(key(KeyCode::Left), start), Some(Move::Jump(-10_000)));
        assert_eq!(
            on_key(KeyEvent::new(KeyCode::Right, KeyModifiers::SHIFT), start),
            Some(Move::Jump(100_000))
        );
        assert_eq!(on_key(key(KeyCode::Char('?')), start), None, "belongs to the screen");
    }
}
