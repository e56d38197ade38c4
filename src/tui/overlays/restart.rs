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
/// Cells of labels.
const LABEL: usize = 8;
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
    forms(model, origin, utc_offset_s).swap_remove(0)
}

/// The same, and shorter ones: what goes first is what matters least.
fn forms(model: &Model, origin: &Origin, utc_offset_s: i64) -> Vec<String> {
    let Some(checkpoint) = &origin.checkpoint else {
        return vec![format!("{}: new weights, step 0", origin.name)];
    };
    let time = origin.time.map_or(String::new(), |time| format!("  {}", time_of_day(time, utc_offset_s)));
    let mean = origin.mean_return.map_or(String::new(), |mean| format!("  return {mean:.1}"));
    let newer = match origin.name.as_str() {
        "latest" if model.run.state != RunState::Over => "; the stop writes a newer one",
        _ => "",
    };
    let (iteration, step) = (checkpoint.train_iter, words::count(checkpoint.env_step));
    let place = format!("{}: iteration {iteration}, step {step}", origin.name);
    vec![
        format!("{place}{time}{mean}{newer}"),
        format!("{place}{mean}{newer}"),
        format!("{}: step {step}{mean}{newer}", origin.name),
        format!("{place}{mean}"),
        place,
        format!("{}: step {step}", origin.name),
    ]
}

/// A text beside a label, in as many lines as it takes: no word is cut.
fn wrapped(ctx: &Ctx<'_>, label: &str, text: &str, cells: usize, role: Role) -> Vec<Line<'static>> {
    let parts = text::wrap(text, cells.saturating_sub(LABEL)).into_iter().enumerate();
    let line = |(at, part): (usize, String)| {
        let label = if at == 0 { label } else { "" };
        Line::from(vec![ctx.s(format!("{label:<LABEL$}"), Role::Dim), ctx.s(part, role)])
    };
    parts.map(line).collect()
}

/// As many words of a text as fit.
fn words_of(text: &str, cells: usize) -> String {
    text::wrap(text, cells).into_iter().next().unwrap_or_default()
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
        let forms = forms(ctx.live, origin, ctx.view.chart.utc_offset_s);
        let room = cells.saturating_sub(LABEL + 2);
        let row = forms.iter().find(|form| text::width(form) <= room).or(forms.last());
        let row = ctx.cut(row.map_or("", String::as_str), room);
        lines.push(Line::from(vec![
            ctx.s(format!("{label:<LABEL$}"), Role::Dim),
            ctx.s(format!("{mark} {row}"), role),
        ]));
    }
    let below = origins.len().saturating_sub(first + height);
    if below > 0 {
        lines.push(Line::from(ctx.s(format!("{:<10}{below} more {}", "", glyphs.pick("↓", "v")), Role::Dim)));
    }
    let hosts = draft.hosts.told();
    if !hosts.is_empty() {
        lines.extend(wrapped(ctx, "hosts", &hosts, cells, Role::Accent));
    }
    lines.push(Line::default());
    let cursor = glyphs.pick("▏", "_");
    let typed = format!("{}{cursor}", words::clean(&draft.line));
    lines.extend(wrapped(ctx, "change", &typed, cells, Role::Strong));
    if draft.line.is_empty() {
        if let Some(edited) = &draft.edited {
            let told = format!("{}; a key typed here takes it over", edited.told());
            lines.extend(wrapped(ctx, "file", &told, cells, Role::Warn));
        }
        let hint = "key=value, as learn.learning_rate=1e-4; empty changes nothing";
        lines.extend(wrapped(ctx, "", hint, cells, Role::Dim));
    } else if !draft.line.ends_with(' ') {
        let all = draft.suggestions();
        for (path, about) in all.iter().take(SUGGESTED) {
            let row = words_of(&format!("{path}  {about}"), cells.saturating_sub(10));
            lines.push(Line::from(ctx.s(format!("{:<10}{row}", ""), Role::Dim)));
        }
        if all.len() > SUGGESTED {
            lines.push(Line::from(ctx.s(format!("{:<10}and {} more", "", all.len() - SUGGESTED), Role::Dim)));
        }
    }
    lines.push(Line::default());
    let changed = draft.outcome.changed.iter().flat_map(|changed| &changed.differences);
    for (key, was, is) in changed {
        let row = format!("{key} = {is}  (was {was})");
        lines.extend(wrapped(ctx, "", &row, cells, Role::Accent));
    }
    if draft.outcome.mistakes.is_empty() {
        let plan = format!("{} {}", glyphs.tone(Role::Good), draft.outcome.plan);
        lines.extend(wrapped(ctx, "plan", &plan, cells, Role::Good));
    }
    for mistake in draft.outcome.mistakes.iter().take(3) {
        lines.extend(wrapped(ctx, "", &words::clean(mistake), cells, Role::Bad).into_iter().take(3));
    }
    let size = (cells as u16, lines.len() as u16);
    let keys = format!("{} checkpoint, tab completes, enter asks, esc back", glyphs.pick("↑↓", "up down"));
    let inner = frame::popup(ctx, buf, size, Role::Warn, "restart with changes", &keys);
    target_rows(ctx, inner, first, origins.len().saturating_sub(first).min(height));
    for (row, line) in lines.into_iter().enumerate() {
        put(buf, inner, row, line);
    }
}
