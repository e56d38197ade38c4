//! Words about one process.

use super::LineResult;
use crate::reach;
use crate::state::ViewState;
use rankdeck_core::model::Model;
use rankdeck_types::words;

pub(super) fn environment(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let [target] = arguments else { return Err(format!("env {}: of which process?", reach::TARGET)) };
    if let Some(why) = crate::keys::no_question(view) {
        return Err(format!("env: {why}"));
    }
    reach::environment(view, &reach::typed(model, target)?)
}

pub(super) fn signal(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let [target, name] = arguments else {
        return Err(format!("signal {} NAME: to which process, and which?", reach::TARGET));
    };
    let number = words::signal_named(name)
        .ok_or_else(|| format!("`{name}` is no signal; TERM, INT, USR1, KILL or a number from 1 to 31"))?;
    reach::signal(model, view, &reach::typed(model, target)?, number)
}
