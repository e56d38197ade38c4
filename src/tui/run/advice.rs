//! Advice, with keys of this screen in place of commands if there are any.

use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::geometry::Tab;
use rankdeck_core::card::Advice;

/// How a command requests that collectives are checked.
const CHECKED: &str = "--check-collectives";

/// An advice, by its key where this screen has one.
pub fn line(advice: &Advice, keys: KeyNames<'_>) -> String {
    match key_of(advice, keys) {
        // The card is open: the key that opens it is left out.
        Some(keys) => format!("{}: {}", keys.rsplit(' ').next().unwrap_or(&keys), by_key(advice)),
        None => advice.line(),
    }
}

/// The text of an advice that has a key, with what must be typed.
pub fn by_key(advice: &Advice) -> String {
    if advice.command.contains(CHECKED) {
        return format!("{} (type watch.check_collectives=true)", advice.text);
    }
    // The key itself is shown.
    advice.text.split(" (press ").next().unwrap_or_default().to_owned()
}

/// The keys of this screen that do what a command does.
pub fn key_of(advice: &Advice, keys: KeyNames<'_>) -> Option<String> {
    let keys = keys.ascii();
    let mut words = advice.command.split_whitespace();
    let on_card = |command| format!("{} {}", keys.of(ScreenCommand::Explain), keys.of(command));
    match words.next()? {
        "rankdeck" => {}
        "kill" if words.next() == Some("-CONT") => return Some(on_card(ScreenCommand::Continue)),
        "ssh" => return Some(on_card(ScreenCommand::Shell)),
        _ => return None,
    }
    match words.next()? {
        "attach" => Some(on_card(ScreenCommand::Stack)),
        "logs" if advice.command.contains("--rank") => Some(on_card(ScreenCommand::RankLog)),
        "logs" => Some(keys.of(ScreenCommand::Go(Tab::Logs))),
        "restart" if advice.command.contains(CHECKED) => Some(keys.of(ScreenCommand::RestartWith)),
        "restart" => Some(keys.of(ScreenCommand::Restart)),
        "stop" => Some(keys.of(ScreenCommand::Stop)),
        "add" => Some(on_card(ScreenCommand::Rejoin)),
        _ => None,
    }
}
