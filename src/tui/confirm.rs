//! The questions before what cannot be taken back: they name the targets and the effect, and the default is
//! to do nothing.

use crate::ranks;
use crate::state::{Action, Choice, Confirm, ConfirmKind};
use rankdeck_core::event::Event;
use rankdeck_core::model::{CheckpointModel, Model, RunState};
use rankdeck_proto::message::StopMode;
use rankdeck_types::words;

fn choice(key: char, label: impl Into<String>, action: Option<Action>) -> Choice {
    Choice { key, label: label.into(), action }
}

fn confirm(kind: ConfirmKind, title: impl Into<String>, text: Vec<String>, choices: Vec<Choice>) -> Confirm {
    let mut all = vec![choice('n', "no, go back", None)];
    all.extend(choices);
    Confirm { kind, title: title.into(), text, choices: all, selected: 0 }
}

/// `ppo-1: 16 ranks on 2 hosts (node-a, node-b)`.
pub fn targets(model: &Model) -> String {
    let run = model.run.id.as_ref().map_or("this run", |id| id.0.as_str());
    let names: Vec<&str> = model.hosts.iter().take(4).map(|host| host.name.as_str()).collect();
    let more = if model.hosts.len() > names.len() { ", ..." } else { "" };
    format!(
        "{run}: {} on {} ({}{more})",
        words::plural(model.ranks.len(), "rank"),
        words::plural(model.hosts.len(), "host"),
        names.join(", "),
    )
}

/// What would be lost without a checkpoint now.
fn latest(model: &Model) -> String {
    match model.checkpoints.back() {
        Some(checkpoint) => format!("Latest checkpoint: env_step {}.", words::count(checkpoint.env_step)),
        None => "There is no checkpoint yet.".into(),
    }
}

/// Leave the console while ranks run.
pub fn quit(model: &Model) -> Confirm {
    let leaving = model.run.stopping.is_some() || model.run.state == RunState::Draining;
    let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
    let mut text = vec![targets(model), format!("{} still running.", words::plural(alive, "rank"))];
    let mut choices = vec![choice('d', "detach", Some(Action::leave()))];
    if leaving {
        text.push("detach: leave; the agents finish the stop that is on its way.".into());
        text.push("kill: SIGKILL to every process of the run, no checkpoint.".into());
        choices.push(choice('k', "kill", Some(Action::stop(StopMode::Kill))));
    } else {
        text.push("detach: training goes on; `rankdeck attach` comes back to it.".into());
        text.push("stop: checkpoint, all ranks leave together, no process is left; then q leaves.".into());
        choices.push(choice('s', "stop", Some(Action::stop(StopMode::Clean))));
    }
    let mut confirm = confirm(ConfirmKind::Quit, "leave rankdeck?", text, choices);
    if let Some(first) = confirm.choices.first_mut() {
        (first.key, first.label) = ('c', "cancel".into());
    }
    confirm
}

/// Stop the run.
pub fn stop(model: &Model) -> Confirm {
    let text = vec![
        targets(model),
        "All ranks leave at the same iteration; rank 0 writes a checkpoint.".into(),
        "Each host then verifies that no process of the run is left.".into(),
    ];
    confirm(
        ConfirmKind::Stop,
        "stop the run?",
        text,
        vec![choice('y', "yes, stop", Some(Action::stop(StopMode::Clean)))],
    )
}

/// Kill the run.
pub fn kill(model: &Model) -> Confirm {
    let text = vec![
        targets(model),
        "SIGKILL to every process of the run, children included. No checkpoint is written.".into(),
        latest(model),
    ];
    confirm(
        ConfirmKind::Kill,
        "kill the run?",
        text,
        vec![choice('y', "yes, kill", Some(Action::stop(StopMode::Kill)))],
    )
}

/// Begin a new generation; `picked` is a checkpoint that the user has chosen.
pub fn restart(model: &Model, picked: Option<&str>) -> Confirm {
    let next = model.run.generation.0.saturating_add(1);
    let mut text = vec![
        targets(model),
        match model.run.state {
            RunState::Over => format!("Generation {next} starts."),
            _ => format!("All ranks are stopped, then generation {next} starts."),
        },
    ];
    text.extend(adopted(model));
    let ask = |event: Event| Some(Action::Tell(event.having_shown(model.run.launch.clone())));
    let mut choices = Vec::new();
    if let Some(path) = picked {
        let known = model.checkpoints.iter().find(|checkpoint| checkpoint.path == path);
        text.push(format!("picked: {}", known.map_or_else(|| path.to_owned(), told)));
        choices.push(choice('p', "picked", ask(Event::restart(Some(path.to_owned())))));
    }
    let best = model.checkpoints.iter().rev().find(|checkpoint| checkpoint.reason == "best");
    let latest = model.checkpoints.back();
    // Of a run that goes on, the latest one is written by the stop.
    let over = model.run.state == RunState::Over;
    let same = over && latest.zip(best).is_some_and(|(latest, best)| latest.train_iter == best.train_iter);
    if let Some(checkpoint) = latest {
        let (name, newer) = match (same, over) {
            (true, _) => ("latest, best", ""),
            (false, true) => ("latest", ""),
            (false, false) => ("latest", "; the stop writes a newer one"),
        };
        text.push(format!("{name}: {}{newer}", told(checkpoint)));
        choices.push(choice('l', "latest", ask(Event::restart(Some("latest".into())))));
    }
    if let Some(checkpoint) = best.filter(|_| !same) {
        text.push(format!("best: {}", told(checkpoint)));
        choices.push(choice('b', "best", ask(Event::restart(Some(checkpoint.path.clone())))));
    }
    text.push("afresh: from env_step 0, with new weights.".into());
    choices.push(choice('a', "afresh", ask(Event::restart(None))));
    text.push("checked: ranks compare each collective before it begins.".into());
    let from = model.checkpoints.back().map(|_| "latest".to_string());
    choices.push(choice('c', "checked", ask(Event::CheckedRestartRequested { from, shown: None })));
    confirm(ConfirmKind::Restart, "restart the run?", text, choices)
}

/// Begin a new generation with changed keys; `text` says from where and what changes.
pub fn changed(model: &Model, text: Vec<String>, event: Event) -> Confirm {
    let mut all = vec![targets(model)];
    all.extend(text);
    all.extend(adopted(model));
    let choices = vec![choice('y', "yes, restart", Some(Action::Tell(event)))];
    confirm(ConfirmKind::Restart, "restart the run?", all, choices)
}

/// What the hosts of an adopted run would start: nobody but them has said so.
pub fn adopted(model: &Model) -> Option<String> {
    let plan = model.plan.as_ref().filter(|_| model.run.adopted)?;
    Some(format!("Another console launched this run. It runs: {}", plan.command_line()))
}

fn told(checkpoint: &CheckpointModel) -> String {
    let file = checkpoint.path.rsplit('/').next().unwrap_or(&checkpoint.path);
    format!("env_step {}, iteration {} ({file})", words::count(checkpoint.env_step), checkpoint.train_iter)
}
