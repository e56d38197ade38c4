//! Keys of a policy at play, as data: dispatch, footer and help are made from this table.

use super::{Play, SPEEDS};
use crate::keys::plain;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What the shell is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlayAction {
    /// Leave.
    Quit,
    /// Draw everything again.
    Redraw,
    /// Give the terminal back.
    Suspend,
}

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Pause,
    Step(isize),
    Speed(isize),
    Episode(i64),
    Help,
    Back,
    Do(PlayAction),
}

/// One line of the table.
pub(super) struct Binding {
    command: Command,
    /// Keys; the first is the one that the footer shows.
    pub keys: &'static [KeyEvent],
    /// For the footer; empty: not there.
    pub short: &'static str,
    /// For the help.
    pub long: &'static str,
}

const fn k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}
const fn c(key: char) -> KeyEvent {
    k(KeyCode::Char(key))
}
const fn ctrl(key: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)
}
const fn bind(
    command: Command,
    keys: &'static [KeyEvent],
    short: &'static str,
    long: &'static str,
) -> Binding {
    Binding { command, keys, short, long }
}

/// The table.
pub(super) static BINDINGS: &[Binding] = &[
    bind(Command::Do(PlayAction::Quit), &[c('q'), ctrl('c')], "quit", "leave"),
    bind(Command::Pause, &[c(' '), c('P')], "pause", "hold it, or let it go on"),
    bind(Command::Step(-1), &[c(','), k(KeyCode::Left)], "step back", "hold it, one step earlier"),
    bind(Command::Step(1), &[c('.'), k(KeyCode::Right)], "step", "hold it, one step later"),
    bind(Command::Speed(1), &[c('+'), c('='), c('}')], "faster", "twice as fast"),
    bind(Command::Speed(-1), &[c('-'), c('{')], "slower", "half as fast"),
    bind(Command::Episode(1), &[c('n'), c('>')], "next", "to the next episode"),
    bind(
        Command::Episode(-1),
        &[c('N'), c('<')],
        "",
        "to the beginning of this episode, or to the one before",
    ),
    bind(Command::Help, &[c('?')], "help", "this list"),
    bind(Command::Back, &[k(KeyCode::Esc)], "", "close this list"),
    bind(Command::Do(PlayAction::Redraw), &[ctrl('l')], "", "draw everything again"),
    bind(Command::Do(PlayAction::Suspend), &[ctrl('z')], "", "give the terminal back; fg comes back"),
];

/// A key.
pub fn on_key(play: &mut Play, key: KeyEvent, now_ms: u64) -> Option<PlayAction> {
    if key.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    let key = plain(key);
    let binding = BINDINGS.iter().find(|binding| binding.keys.contains(&key))?;
    if play.help && !matches!(binding.command, Command::Do(_)) {
        play.help = false;
        return None;
    }
    match binding.command {
        Command::Do(action) => return Some(action),
        Command::Help => play.help = true,
        Command::Back => {}
        Command::Pause => {
            play.paused = !play.paused;
            play.since_ms = now_ms;
        }
        Command::Step(by) => {
            play.paused = true;
            play.advance(by);
        }
        Command::Speed(by) => {
            play.speed = play.speed.saturating_add_signed(by).min(SPEEDS.len() - 1);
        }
        Command::Episode(by) => {
            let here = play.moment()?.episode();
            let begins = play.at == 0 || play.moments.get(play.at - 1).is_some_and(|m| m.episode() != here);
            let to = match by {
                1 => here.saturating_add(1),
                _ if begins => here.saturating_sub(1),
                _ => here,
            };
            let first = play.moments.front().map_or(0, super::Moment::episode);
            let last = play.episodes.map_or(u32::MAX, |episodes| episodes.saturating_sub(1));
            play.seek(to.clamp(first, last.max(first)));
            play.since_ms = now_ms;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_has_two_meanings() {
        for (i, a) in BINDINGS.iter().enumerate() {
            for b in &BINDINGS[i + 1..] {
                assert!(!a.keys.iter().any(|key| b.keys.contains(key)), "{} {}", a.long, b.long);
            }
        }
    }
}
