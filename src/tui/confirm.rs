//! The questions before what cannot be taken back: they name the targets and the effect, and the default is
//! to do nothing.

use crate::ranks;
use crate::state::{Action, Choice, Confirm, ConfirmKind};
use rankdeck_core::event::Event;
use rankdeck_core::model::{CheckpointModel, Model, RunState};
use rankdeck_core::reason::{Severity, VerdictKind};
use rankdeck_proto::message::StopMode;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;

const KILL: i32 = 9;
const STOP: i32 = 19;

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

/// Leave the console while ranks run; `passing`: they end with it.
pub fn quit(model: &Model, passing: bool) -> Confirm {
    let leaving = model.run.stopping.is_some() || model.run.state == RunState::Draining;
    let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
    let mut text = vec![targets(model), format!("{} still running.", words::plural(alive, "rank"))];
    let mut choices = vec![choice('d', if passing { "leave" } else { "detach" }, Some(Action::leave()))];
    if passing {
        text.push("leave: simulated hosts end with their console, and nothing of them stays.".into());
        text.push("stop: what a real run does: all ranks leave together, and its end is shown.".into());
        choices.push(choice('s', "stop", Some(Action::stop(StopMode::Clean))));
    } else if leaving {
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
    let own = model.plan.as_ref().filter(|plan| !plan.is_builtin());
    let how = own.map_or_else(
        || "All ranks leave at the same iteration; rank 0 writes a checkpoint.".to_owned(),
        |plan| {
            let grace = words::duration(plan.experiment.launch.stop_grace_s);
            format!("Every rank gets SIGTERM, and SIGKILL {grace} after its last sign of progress.")
        },
    );
    let mut text =
        vec![targets(model), how, "Each host then verifies that no process of the run is left.".into()];
    text.extend(hindrances(model));
    confirm(
        ConfirmKind::Stop,
        "stop the run?",
        text,
        vec![choice('y', "yes, stop", Some(Action::stop(StopMode::Clean)))],
    )
}

/// What a clean stop cannot do now, and for whom.
fn hindrances(model: &Model) -> Vec<String> {
    let lost = |name: &str| {
        let mut verdicts = ranks::live_verdicts(model).filter(|verdict| verdict.verdict == VerdictKind::Lost);
        verdicts.any(|verdict| verdict.host.as_deref() == Some(name))
    };
    let silent = model.hosts.iter().filter(|host| {
        let ready = matches!(host.link, LinkState::Ready { .. });
        host.excluded.is_none() && (!ready || lost(&host.name))
    });
    let silent: Vec<&str> = silent.map(|host| host.name.as_str()).collect();
    let holds = [
        VerdictKind::Frozen,
        VerdictKind::Dead,
        VerdictKind::Behind,
        VerdictKind::Desync,
        VerdictKind::EnvStuck,
    ];
    let held = ranks::live_verdicts(model)
        .filter(|verdict| verdict.severity == Severity::Red && holds.contains(&verdict.verdict));
    let mut held: Vec<u32> = held.filter_map(|verdict| verdict.rank.map(|rank| rank.0)).collect();
    held.sort_unstable();
    held.dedup();
    let mut text = Vec::new();
    if !silent.is_empty() {
        let shown = silent.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        let more = if silent.len() > 4 { ", ..." } else { "" };
        let they = if silent.len() == 1 { "it does" } else { "they do" };
        text.push(format!("No answer from {shown}{more}: the stop is NOT VERIFIED there until {they}."));
    }
    if !held.is_empty() {
        let ranks = words::ranges(&held);
        text.push(match held.len() {
            1 => format!("Rank {ranks} no longer moves: SIGKILL ends it after its grace."),
            _ => format!("Ranks {ranks} no longer move: SIGKILL ends them after their grace."),
        });
    }
    if !text.is_empty() {
        text.push(format!("Probably no checkpoint can be written. {}", latest(model)));
    }
    text
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

/// Send a signal to a process.
pub fn signal(whom: &str, is_rank: bool, signal: i32, send: Action) -> Confirm {
    let name = words::signal_name(signal);
    let effect = match signal {
        KILL => "The kernel ends it at once; it writes nothing more.".to_owned(),
        STOP => "It stands still until it gets SIGCONT.".to_owned(),
        _ => format!("{name} ends a program that has no handler for it."),
    };
    let mut text = vec![whom.to_owned(), effect];
    if is_rank && signal != STOP {
        text.push("The end of a rank is the end of its generation.".into());
    }
    let label = format!("yes, send {name}");
    confirm(ConfirmKind::Signal, format!("send {name}?"), text, vec![choice('y', label, Some(send))])
}

/// Begin a new generation; `picked` is a checkpoint that the user has chosen, `before` the last one before a
/// trouble.
pub fn restart(model: &Model, picked: Option<&str>, before: Option<&str>) -> Confirm {
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
    let known = |path: &str| model.checkpoints.iter().find(|checkpoint| checkpoint.path == path);
    let named = |path: &str| known(path).map_or_else(|| path.to_owned(), told);
    if let Some(path) = before {
        text.push(format!("go back: {}, the last one before the trouble", named(path)));
        choices.push(choice('g', "go back", ask(Event::restart(Some(path.to_owned())))));
    }
    if let Some(path) = picked {
        text.push(format!("picked: {}", named(path)));
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
        let after = before.and_then(known).is_some_and(|before| checkpoint.env_step > before.env_step);
        let newer = if after { ", after the trouble began" } else { newer };
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
