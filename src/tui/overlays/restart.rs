//! A restart with changed keys: checkpoints to begin from, the keys as they are typed, and the plan that they
//! make.

use crate::overlays::hosts::target_rows;
use crate::restart_draft::{Origin, OtherHosts, RestartDraft, origins};
use crate::state::ViewState;
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::event::Event;
use rankdeck_core::model::{Model, RunState};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// Most rows of checkpoints at once.
const ROWS: usize = 8;
/// Most completions at once.
const SUGGESTED: usize = 4;

/// What is asked before it is ordered: sentences, and the order; or why there is none.
pub fn order(model: &Model, view: &ViewState, draft: &RestartDraft) -> Result<(Vec<String>, Event), String> {
    if let Some(mistake) = draft.outcome.mistakes.first() {
        return Err(mistake.clone());
    }
    let origins = origins(model);
    let origin = origins.get(draft.selected).or(origins.last()).ok_or("no checkpoint is known")?;
    let next = model.run.generation.0.saturating_add(1);
    let mut text = vec![match model.run.state {
        RunState::Over => {
            format!("Generation {next} starts from {}.", told(model, origin, view.chart.utc_offset_s))
        }
        _ => format!(
            "All ranks are stopped, then generation {next} starts from {}.",
            told(model, origin, view.chart.utc_offset_s)
        ),
    }];
    let OtherHosts { exclude, add } = draft.hosts.clone();
    let hosts = draft.hosts.told();
    if !hosts.is_empty() {
        text.push(format!("hosts: {hosts}"));
    }
    let changed = draft.outcome.changed.as_ref();
    for (key, was, is) in changed.iter().flat_map(|changed| &changed.differences) {
        text.push(format!("{key}: {was} becomes {is}"));
    }
    text.push(format!("plan: {}", draft.outcome.plan));
    let event = Event::RestartRequested {
        from: origin.from.clone(),
        exclude,
        add,
        experiment: changed.map(|changed| changed.experiment.clone()),
        shown: model.run.launch.clone(),
    };
    Ok((text, event))
}

/// An origin in a line.
fn told(model: &Model, origin: &Origin, utc_offset_s: i64) -> String {
    let Some(checkpoint) = &origin.checkpoint else { return format!("{}: new weights, step 0", origin.name) };
    let time = origin.time.map_or(String::new(), |time| format!("  {}", time_of_day(time, utc_offset_s)));
    let mean = origin.mean_return.map_or(String::new(), |mean| format!("  return {mean:.1}"));
    let newer = match origin.name.as_str() {
        "latest" if model.run.state != RunState::Over => "; the stop writes a newer one",
        _ => "",
    };
    format!(
        "{}: iteration {}, step {}{time}{mean}{newer}",
        origin.name,
        checkpoint.train_iter,
        words::count(checkpoint.env_step)
    )
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, draft: &RestartDraft) {
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(90);
    let glyphs = ctx.glyphs();
    let origins = origins(ctx.live);
    let mut lines: Vec<Line<'static>> = Vec::new();
    let height = usize::from(ctx.geo.area.height).saturating_sub(16).clamp(1, ROWS);
    let first = draft.selected.saturating_sub(height - 1);
    for (i, origin) in origins.iter().enumerate().skip(first).take(height) {
        let mark = if i == draft.selected { glyphs.pick("▸", ">") } else { " " };
        let label = if i == first { "from" } else { "" };
        let role = if i == draft.selected { Role::Accent } else { Role::Text };
        let row = told(ctx.live, origin, ctx.view.chart.utc_offset_s);
        lines.push(Line::from(vec![
            ctx.s(format!("{label:<8}"), Role::Dim),
            ctx.s(ctx.cut(&format!("{mark} {row}"), cells.saturating_sub(8)), role),
        ]));
    }
    let below = origins.len().saturating_sub(first + height);
    if below > 0 {
        lines.push(Line::from(ctx.s(format!("{:<10}{below} more {}", "", glyphs.pick("↓", "v")), Role::Dim)));
    }
    let hosts = draft.hosts.told();
    if !hosts.is_empty() {
        let told = ctx.cut(&hosts, cells.saturating_sub(10));
        lines.push(Line::from(vec![ctx.s(format!("{:<10}", "hosts"), Role::Dim), ctx.s(told, Role::Accent)]));
    }
    lines.push(Line::default());
    let cursor = glyphs.pick("▏", "_");
    let typed = text::wrap(&format!("{}{cursor}", words::clean(&draft.line)), cells.saturating_sub(8));
    for (i, part) in typed.into_iter().enumerate() {
        let label = if i == 0 { "change" } else { "" };
        lines.push(Line::from(vec![ctx.s(format!("{label:<8}"), Role::Dim), ctx.s(part, Role::Strong)]));
    }
    if draft.line.is_empty() {
        let hint = "key=value, as in learn.learning_rate=1e-4; nothing typed changes nothing";
        lines.push(Line::from(ctx.s(format!("{:<8}{hint}", ""), Role::Dim)));
    } else if !draft.line.ends_with(' ') {
        let all = draft.suggestions();
        for (path, about) in all.iter().take(SUGGESTED) {
            let row = ctx.cut(&format!("{path}  {about}"), cells.saturating_sub(10));
            lines.push(Line::from(ctx.s(format!("{:<10}{row}", ""), Role::Dim)));
        }
        if all.len() > SUGGESTED {
            lines.push(Line::from(ctx.s(format!("{:<10}and {} more", "", all.len() - SUGGESTED), Role::Dim)));
        }
    }
    lines.push(Line::default());
    let changed = draft.outcome.changed.iter().flat_map(|changed| &changed.differences);
    for (key, was, is) in changed {
        let row = ctx.cut(&format!("{key} = {is}  (was {was})"), cells.saturating_sub(8));
        lines.push(Line::from(ctx.s(format!("{:<8}{row}", ""), Role::Accent)));
    }
    if draft.outcome.mistakes.is_empty() {
        let row = ctx.cut(&draft.outcome.plan, cells.saturating_sub(10));
        lines.push(Line::from(vec![
            ctx.s(format!("{:<8}", "plan"), Role::Dim),
            ctx.s(format!("{} {row}", glyphs.tone(Role::Good)), Role::Good),
        ]));
    }
    for mistake in draft.outcome.mistakes.iter().take(3) {
        for part in text::wrap(&words::clean(mistake), cells.saturating_sub(8)).into_iter().take(3) {
            lines.push(Line::from(ctx.s(format!("{:<8}{part}", ""), Role::Bad)));
        }
    }
    let size = (cells as u16, lines.len() as u16);
    let keys = format!("{} checkpoint, tab completes, enter asks, esc back", glyphs.pick("↑↓", "up down"));
    let inner = frame::popup(ctx, buf, size, Role::Warn, "restart with changes", &keys);
    target_rows(ctx, inner, first, origins.len().saturating_sub(first).min(height));
    for (row, line) in lines.into_iter().enumerate() {
        put(buf, inner, row, line);
    }
}
