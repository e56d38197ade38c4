//! The end of a run as a page: the cause, the last minute, what was lost, and what to do now.

use crate::keys::Command;
use crate::state::Pane;
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::{HistoryLine, Model, RankLife, RunState, Tone};
use rankdeck_core::report::Outcome;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

/// The time before the end that is told, milliseconds.
const LAST_MS: u64 = 60_000;
/// How far back `s` goes, milliseconds.
pub const BEFORE_MS: u64 = 300_000;
/// Most events of the last minute.
const EVENTS: usize = 12;

/// When the run ended; when it began to, if something failed.
pub fn when(model: &Model) -> Option<Timestamp> {
    let bad = model.history.iter().rev().find(|line| line.tone == Tone::Bad).map(|line| line.at);
    let ended = model.run.ended.or(model.history.back().map(|line| line.at));
    match failed(model) {
        true => bad.or(ended),
        false => ended,
    }
}

fn failed(model: &Model) -> bool {
    matches!(model.run.outcome, Some(Outcome::Failed | Outcome::Stuck))
}

/// The rank that the end is blamed on.
pub fn guilty(model: &Model) -> Option<Rank> {
    let first = model.run.first_failure.as_ref().map(|first| first.rank);
    first.or_else(|| model.verdicts.first().and_then(|verdict| verdict.rank))
}

/// How it ended, in one sentence.
pub fn headline(model: &Model) -> String {
    let word = match (model.run.state, model.run.outcome) {
        (RunState::Over, Some(outcome)) => format!("{outcome:?}").to_lowercase(),
        (RunState::Over, None) => "over".into(),
        _ => "the run is not over".into(),
    };
    match model.run.reason.as_str() {
        "" => word,
        reason => format!("{word}: {}", words::clean(reason)),
    }
}

/// What the run came to, and what of it is lost.
pub fn totals(model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    let latest = model.latest.as_ref().map(|latest| &latest.counters);
    let latest = latest.or(model.progress.as_ref().map(|progress| &progress.totals));
    let reached = latest.map(|totals| totals.env_step);
    if let Some(t) = latest {
        lines.push(format!(
            "totals: {} steps, {} episodes, {} updates, iteration {}",
            words::count(t.env_step),
            words::count(t.episodes),
            words::count(t.updates),
            words::count(t.train_iter)
        ));
    }
    // Of equal ones the first, as on the page of evaluations: its checkpoint is the best one.
    let best = model.evals.iter().rev().filter(|eval| eval.return_mean.is_finite());
    if let Some(best) = best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)) {
        lines.push(format!(
            "best evaluation: {:.2} at {} steps",
            best.return_mean,
            words::count(best.env_step)
        ));
    }
    match model.checkpoints.back() {
        Some(checkpoint) => {
            let lost = reached.map_or(0, |reached| reached.saturating_sub(checkpoint.env_step));
            let lost = match lost {
                0 => "nothing is lost".to_owned(),
                lost => format!("{} steps after it are lost", words::count(lost)),
            };
            lines.push(format!("last checkpoint: {} steps, {lost}", words::count(checkpoint.env_step)));
            lines.push(format!("  {}", words::clean(&checkpoint.path)));
        }
        None if reached.is_some_and(|reached| reached > 0) => {
            lines.push("no checkpoint was written: all steps are lost".into());
        }
        None => {}
    }
    let dead =
        model.ranks.iter().filter(|rank| matches!(&rank.life, RankLife::Exited(exit) if !exit.is_success()));
    let dead: Vec<u32> = dead.map(|rank| rank.rank.0).collect();
    if failed(model) && dead.len() > 1 {
        lines.push(format!("ranks that did not end well: {}", words::ranges(&dead)));
    }
    lines
}

/// What happened in the minute before the end, routine left out, oldest first.
pub fn last_minute(model: &Model) -> Vec<&HistoryLine> {
    let Some(end) = when(model) else { return Vec::new() };
    // A console that came later has read all of it at once: the agents say when it was.
    let end_time = model.run.ended_time.filter(|_| model.run.adopted);
    let is_late = |line: &HistoryLine| match end_time {
        Some(end_time) if line.time > 0.0 => line.time + LAST_MS as f64 / 1000.0 >= end_time,
        _ => line.at.plus(LAST_MS) >= end,
    };
    let mut lines: Vec<&HistoryLine> =
        model.history.iter().rev().filter(|line| !line.routine && is_late(line)).take(EVENTS).collect();
    lines.reverse();
    lines
}

/// What can be done now: key and text.
fn keys(ctx: &Ctx<'_>) -> Vec<(String, String)> {
    let model = ctx.model;
    let (keymap, glyphs) = (&ctx.view.steering.keymap, ctx.glyphs());
    let key = |command| keymap.shown(command, glyphs);
    let here = |command| keymap.shown_in(Pane::End, command, glyphs);
    let mut keys = vec![(here(Command::GoThere), "see the five minutes before".to_owned())];
    if let Some(rank) = guilty(model) {
        keys.push((here(Command::RankLog), format!("log of rank {rank}")));
    }
    if !model.verdicts.is_empty() || crate::overlays::evidence::latest_verdict(model).is_some() {
        keys.push((key(Command::Explain), "the evidence".into()));
    }
    if !ctx.view.steering.replay {
        keys.push((
            key(Command::Restart),
            "restart from a checkpoint; those in the events (6) can be picked".into(),
        ));
    }
    if ctx.view.steering.again && !ctx.view.steering.read_only {
        keys.push((here(Command::Again), "a new run like this one, with other keys if you like".into()));
    }
    keys.push((key(Command::Quit), "leave".into()));
    keys.push((key(Command::Copy), "copy a report (Markdown)".into()));
    if let Some(id) = &model.run.id {
        keys.push((String::new(), format!("in a shell: rankdeck report {id} writes it with charts")));
    }
    keys
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::End);
    if area.is_empty() {
        return;
    }
    let model = ctx.model;
    let over = model.run.state == RunState::Over;
    let inner = frame::pane(ctx, buf, area, Pane::End, frame::title(ctx, Pane::End, "end", ""), Vec::new());
    let cells = usize::from(inner.width);
    let mut lines: Vec<Line<'static>> = Vec::new();
    let role = match model.run.outcome {
        _ if !over => Role::Dim,
        Some(Outcome::Failed | Outcome::Stuck) => Role::Bad,
        Some(Outcome::Succeeded) => Role::Good,
        Some(Outcome::Stopped) | None => Role::Warn,
    };
    for (i, part) in text::wrap(&headline(model), cells.saturating_sub(2)).into_iter().enumerate() {
        let sign = if i == 0 { ctx.glyphs().tone(role) } else { " " };
        lines.push(Line::from(vec![ctx.s(format!("{sign} "), role), ctx.s(part, role)]));
    }
    if !over {
        lines.push(Line::from(
            ctx.s("  This page tells the cause, the last minute and what was lost.", Role::Dim),
        ));
    }
    for total in totals(model) {
        let inward = total.len() - total.trim_start().len();
        for part in text::wrap(total.trim_start(), cells.saturating_sub(2 + inward)) {
            lines.push(Line::from(vec![Span::raw(" ".repeat(2 + inward)), ctx.s(part, Role::Text)]));
        }
    }
    let below = if over { keys(ctx) } else { Vec::new() };
    let minute = if over { last_minute(model) } else { Vec::new() };
    if !minute.is_empty() {
        lines.push(Line::default());
        lines.push(Line::from(ctx.s("the last minute", Role::Accent)));
        let room = usize::from(inner.height).saturating_sub(lines.len() + below.len() + 1).max(1);
        for line in minute.iter().skip(minute.len().saturating_sub(room)) {
            let role = super::events::role(line.tone);
            let words_role = if line.tone == Tone::Info { Role::Text } else { role };
            let clock = time_of_day(line.time, ctx.view.chart.utc_offset_s);
            let room = cells.saturating_sub(text::width(&clock) + 6);
            lines.push(Line::from(vec![
                ctx.s(format!("  {clock}  "), Role::Dim),
                ctx.s(format!("{} ", ctx.glyphs().tone(role)), role),
                ctx.s(ctx.cut(&words::clean(&line.text), room), words_role),
            ]));
        }
    }
    if !below.is_empty() {
        lines.push(Line::default());
    }
    for (key, text) in below {
        lines.push(Line::from(vec![
            ctx.s(format!("  {key:<3}"), Role::Accent),
            ctx.s(ctx.cut(&text, cells.saturating_sub(5)), Role::Text),
        ]));
    }
    for (row, line) in lines.into_iter().enumerate() {
        put(buf, inner, row, line);
    }
}
