//! Questions before actions that cannot be undone: they name targets and effect, and default to cancel.

use crate::run::action::{Request, ScreenAction};
use crate::run::ranks;
use crate::run::restart_draft::{LATEST_AND_BEST, best, is_best_latest};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::event::Event;
use rankdeck_core::model::{CheckpointModel, Model, RunState};
use rankdeck_core::origin::{self, LATEST, SCRATCH, Standing, StartPoint, is_scratch};
use rankdeck_core::reason::{Severity, VerdictKind};
use rankdeck_kit::{Component, Keep, Role};
use rankdeck_proto::message::StopMode;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmKind {
    /// Quit the console.
    Quit,
    /// Stop the run.
    Stop,
    /// Kill the run.
    Kill,
    /// Start a new generation.
    Restart,
    /// Send a signal to a process.
    Signal,
}

/// A question with its choices.
pub type Confirm = rankdeck_kit::confirm::Confirm<ConfirmKind, ScreenAction>;
/// One of its choices.
type Choice = rankdeck_kit::confirm::Choice<ScreenAction>;

const KILL: i32 = 9;
const STOP: i32 = 19;

impl Component<RunScreen> for Confirm {
    fn on_key(&mut self, _: &Model, key: KeyEvent, _: &mut Cx<'_>) -> Handled {
        let Some(choice) = Confirm::on_key(self, key) else { return Handled::Done };
        let Some(action) = self.action(choice) else { return Handled::Close };
        // The order is given: the forms that it was typed in are done with.
        Handled::CloseWith(vec![Request::CloseForms, Request::Do(action)])
    }

    fn settle(&mut self, model: &Model, _: &ViewState, _: Rect) -> Keep {
        let makes_sense = model.run.state != RunState::Over
            || matches!(self.kind, ConfirmKind::Restart | ConfirmKind::Signal);
        makes_sense.into()
    }

    fn draw(&self, _: &Model, _: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let role = match self.kind {
            ConfirmKind::Kill => Role::Bad,
            ConfirmKind::Quit | ConfirmKind::Stop | ConfirmKind::Restart | ConfirmKind::Signal => Role::Warn,
        };
        Confirm::draw(self, cx, buf, role);
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "letters or left/right and enter choose   esc cancels".into()
    }
}

fn choice(key: char, label: impl Into<String>, action: Option<ScreenAction>) -> Choice {
    Choice { key, label: label.into(), action }
}

fn confirm(kind: ConfirmKind, title: impl Into<String>, text: Vec<String>, choices: Vec<Choice>) -> Confirm {
    let mut all = vec![choice('n', "cancel", None)];
    all.extend(choices);
    Confirm { kind, title: title.into(), text, choices: all, selected: 0 }
}

/// `ppo-1: 16 ranks on 2 hosts (node-a, node-b)`.
pub fn targets(model: &Model) -> String {
    Standing::of(model).targets()
}

/// The latest checkpoint.
fn latest(model: &Model) -> String {
    match model.checkpoints.back() {
        Some(checkpoint) => match checkpoint.step() {
            Some(step) => format!("Latest checkpoint: env_step {}.", words::count(step)),
            None => format!("Latest checkpoint: {}.", words::clean(&checkpoint.path)),
        },
        None => "No checkpoint yet.".into(),
    }
}

/// Quit the console while ranks run; `passing`: they end with it.
pub fn quit(model: &Model, passing: bool) -> Confirm {
    let leaving = model.run.stopping.is_some() || model.run.state == RunState::Draining;
    let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
    let mut text = vec![targets(model), format!("{} still running.", words::plural(alive, "rank"))];
    let mut choices = vec![choice('d', if passing { "quit" } else { "detach" }, Some(ScreenAction::leave()))];
    if passing {
        text.push("quit: ends the simulation.".into());
        text.push("stop: stops the ranks as in a real run and shows the outcome.".into());
        choices.push(choice('s', "stop", Some(ScreenAction::stop(StopMode::Clean))));
    } else if leaving {
        text.push("detach: the agents complete the stop.".into());
        text.push("kill: SIGKILL to all processes of the run; no checkpoint is saved.".into());
        choices.push(choice('k', "kill", Some(ScreenAction::stop(StopMode::Kill))));
    } else {
        text.push("detach: the run keeps running; reconnect with `rankdeck attach`.".into());
        text.push("stop: save a checkpoint, stop all ranks and verify that no process is left.".into());
        choices.push(choice('s', "stop", Some(ScreenAction::stop(StopMode::Clean))));
    }
    let mut confirm = confirm(ConfirmKind::Quit, "quit rankdeck?", text, choices);
    if let Some(first) = confirm.choices.first_mut() {
        (first.key, first.label) = ('c', "cancel".into());
    }
    confirm
}

/// Stop the run.
pub fn stop(model: &Model) -> Confirm {
    let own = model.plan.as_ref().filter(|plan| !plan.is_builtin());
    let how = own.map_or_else(
        || "All ranks stop after the same iteration. Rank 0 saves a checkpoint.".to_owned(),
        |plan| {
            let launch = &plan.experiment.launch;
            let grace = words::duration(launch.stop_grace_s);
            let signal = launch.stop_signal.map(|signal| words::signal_name(signal.number()));
            let signal = signal.as_deref().unwrap_or("SIGTERM or SIGINT");
            format!("Sends {signal} to every rank, then SIGKILL {grace} after its last progress.")
        },
    );
    let mut text = vec![targets(model), how, "Each host then verifies that no process is left.".into()];
    text.extend(hindrances(model));
    confirm(
        ConfirmKind::Stop,
        "stop the run?",
        text,
        vec![choice('y', "yes, stop", Some(ScreenAction::stop(StopMode::Clean)))],
    )
}

/// What may go wrong with a clean stop now.
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
        text.push(format!("{shown}{more} not responding: the stop stays NOT VERIFIED until {they}."));
    }
    if !held.is_empty() {
        let ranks = words::ranges(&held);
        text.push(match held.len() {
            1 => format!("Rank {ranks} is stuck and is killed after the grace period."),
            _ => format!("Ranks {ranks} are stuck and are killed after the grace period."),
        });
    }
    if !text.is_empty() {
        text.push(format!("A checkpoint probably cannot be saved. {}", latest(model)));
    }
    text
}

/// Kill the run.
pub fn kill(model: &Model) -> Confirm {
    let text = vec![
        targets(model),
        "Sends SIGKILL to every process of the run, children included. No checkpoint is saved.".into(),
        latest(model),
    ];
    confirm(
        ConfirmKind::Kill,
        "kill the run?",
        text,
        vec![choice('y', "yes, kill", Some(ScreenAction::stop(StopMode::Kill)))],
    )
}

/// Send a signal to a process.
pub fn signal(whom: &str, is_rank: bool, signal: i32, send: ScreenAction) -> Confirm {
    let name = words::signal_name(signal);
    let effect = match signal {
        KILL => "Terminates the process immediately, without cleanup.".to_owned(),
        STOP => "Suspends the process until SIGCONT.".to_owned(),
        _ => format!("{name} terminates programs that do not handle it."),
    };
    let mut text = vec![whom.to_owned(), effect];
    if is_rank && signal != STOP {
        text.push("If one rank exits, the whole generation ends.".into());
    }
    let label = format!("yes, send {name}");
    confirm(ConfirmKind::Signal, format!("send {name}?"), text, vec![choice('y', label, Some(send))])
}

/// Restart the run; `picked` is a checkpoint that the user has selected, `before` the last one before a
/// problem.
pub fn restart(model: &Model, picked: Option<&str>, before: Option<&str>) -> Confirm {
    let standing = Standing::of(model);
    let mut text = vec![standing.targets(), standing.stops()];
    text.extend(command(model, None));
    let ask = |event: Event| Some(ScreenAction::Send(event.having_shown(origin::shown(model))));
    let mut choices = Vec::new();
    // ORIGIN-5: the text has the reason in place of the choice.
    let refused = |from: &str| {
        let refused = model.plan.as_ref().and_then(|plan| origin::refusal(plan, None, Some(from)));
        refused.map(|refused| format!("not offered: {}", refused.with_hint()))
    };
    let known = |path: &str| model.checkpoints.iter().rev().find(|checkpoint| checkpoint.path == path);
    let named = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        StartPoint::at(file, path, known(path).and_then(CheckpointModel::step))
    };
    if let Some(path) = before {
        match refused(path) {
            Some(refused) => text.push(format!("roll back: {refused}")),
            None => {
                let effect = standing.effect(&named(path));
                text.push(format!("roll back: {effect}; the last checkpoint before the problem"));
                choices.push(choice('g', "roll back", ask(Event::restart(Some(path.to_owned())))));
            }
        }
    }
    if let Some(path) = picked {
        match refused(path) {
            Some(refused) => text.push(format!("selected: {refused}")),
            None => {
                text.push(format!("selected: {}", standing.effect(&named(path))));
                choices.push(choice('p', "picked", ask(Event::restart(Some(path.to_owned())))));
            }
        }
    }
    let latest = standing.start(None).ok().filter(|start| start.from.is_some());
    let best = best(model);
    let same = is_best_latest(model);
    if let Some(start) = &latest {
        let name = if same { LATEST_AND_BEST } else { LATEST };
        let step = |path| known(path).and_then(CheckpointModel::step);
        let after = before.and_then(step).is_some_and(|before| start.env_step > Some(before));
        let after = if after { "; saved after the problem began" } else { "" };
        text.push(format!("{name}: {}{after}", standing.effect(start)));
        choices.push(choice('l', LATEST, ask(Event::restart(start.from.clone()))));
    }
    if let Some(checkpoint) = best.filter(|_| !same) {
        match refused(&checkpoint.path) {
            Some(refused) => text.push(format!("best: {refused}")),
            None => {
                let start = StartPoint::at("best", &checkpoint.path, Some(checkpoint.env_step));
                text.push(format!("best: {}", standing.effect(&start)));
                choices.push(choice('b', "best", ask(Event::restart(start.from))));
            }
        }
    }
    text.push(format!("{SCRATCH}: {}", standing.effect(&StartPoint::scratch())));
    choices.push(choice('s', SCRATCH, ask(Event::restart(None))));
    text.push("checked: ranks compare each collective before it starts.".into());
    let from = latest.and_then(|start| start.from);
    choices.push(choice('c', "checked", ask(Event::CheckedRestartRequested { from, shown: None })));
    confirm(ConfirmKind::Restart, "restart the run?", text, choices)
}

/// The same question with a choice selected by name: `latest`, `scratch`, `best`, an iteration, a path.
///
/// # Errors
/// The checkpoint is unknown.
pub fn restart_from(model: &Model, word: &str) -> Result<Confirm, String> {
    let marked = |mut confirm: Confirm, key: char| {
        confirm.selected = confirm.choices.iter().position(|choice| choice.key == key)?;
        Some(confirm)
    };
    if let Some(refused) = model.plan.as_ref().and_then(|plan| origin::refusal(plan, None, Some(word))) {
        return Err(refused.with_hint());
    }
    let plain = restart(model, None, None);
    let found = match word {
        word if is_scratch(word) => marked(plain, 's'),
        LATEST => marked(plain, 'l'),
        "best" => marked(plain, if is_best_latest(model) { 'l' } else { 'b' }),
        word => {
            let known = origin::named(model, word).map(|checkpoint| checkpoint.path.as_str());
            let path = known.or(Some(word).filter(|word| word.contains('/')));
            path.and_then(|path| marked(restart(model, Some(path), None), 'p'))
        }
    };
    found.ok_or_else(|| format!("unknown checkpoint `{word}`"))
}

/// Restart with changed config keys; `text` lists source and changes.
pub fn changed(model: &Model, text: Vec<String>, event: Event) -> Confirm {
    let next = match &event {
        Event::RestartRequested { experiment, .. } => experiment.as_deref(),
        _ => None,
    };
    let mut all = vec![targets(model)];
    all.extend(text);
    all.extend(command(model, next));
    let choices = vec![choice('y', "yes, restart", Some(ScreenAction::Send(event)))];
    confirm(ConfirmKind::Restart, "restart the run?", all, choices)
}

/// The command that is started, and what it gets of this console. For an adopted run, only its hosts report
/// it.
fn command(model: &Model, next: Option<&Experiment>) -> Vec<String> {
    let Some(plan) = &model.plan else { return Vec::new() };
    let launched = model.run.adopted.then(|| "Launched by another console.".to_owned());
    launched.into_iter().chain(origin::command(plan, next)).collect()
}
