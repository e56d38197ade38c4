//! The screen below the smallest size: the essentials in words; stop and quit still work.

use crate::run::chrome::{Ctx, header, timeline};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{MIN_HEIGHT, MIN_WIDTH};
use crate::run::keys;
use crate::run::overlays::Overlay;
use crate::run::ranks;
use crate::run::staleness;
use rankdeck_kit::{Role, text};
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Widget;

/// Draws the whole screen.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.area;
    let mut lines = moment(ctx);
    let verdict = ranks::live_verdicts(ctx.live).next().map(|verdict| {
        let who = verdict.rank.map_or_else(|| "run".to_string(), |rank| format!("rank {rank}"));
        let text = format!("{who}: {}", verdict.verdict.name());
        Line::from(ctx.s(text, ranks::severity_role(verdict.severity)))
    });
    lines.extend(verdict.clone());
    match ctx.view.overlay() {
        Some(Overlay::Confirm(confirm)) => {
            lines.push(Line::from(ctx.s(confirm.title.clone(), Role::Warn)));
            for (i, choice) in confirm.choices.iter().enumerate() {
                let text = format!("{} {}", choice.key, choice.label);
                let span = if i == confirm.selected {
                    Span::styled(format!("[{text}]"), ctx.theme.chosen)
                } else {
                    ctx.s(format!(" {text}"), Role::Text)
                };
                lines.push(Line::from(span));
            }
        }
        Some(Overlay::Ask(ask)) => {
            let text = match ask.prompt {
                Prompt::UnknownHostKey { .. } => "unknown host key: n rejects; enlarge to verify it",
                Prompt::CopyCheckpoint { .. } => "copy a large checkpoint: y copies, n refuses",
                Prompt::Passphrase { .. } => "passphrase: type, then enter",
                Prompt::Password { .. } => "password: type, then enter",
            };
            lines.push(Line::from(ctx.s(text, Role::Warn)));
        }
        _ => {
            lines.extend(progress(ctx));
            if verdict.is_none() {
                lines.extend(letters(ctx));
            }
            lines.push(Line::from(keys(ctx)));
            let pages = format!("pages need {MIN_WIDTH}x{MIN_HEIGHT}");
            lines.push(Line::from(ctx.s(pages, Role::Dim)));
            // What matters most stands first.
            lines.truncate(usize::from(area.height));
        }
    }
    // On the lowest screens the last line, which is the way out, wins.
    let skip = lines.len().saturating_sub(usize::from(area.height));
    let top = usize::from(area.height).saturating_sub(lines.len()) / 2;
    let area = Rect { y: area.y + top as u16, height: area.height - top as u16, ..area };
    Text::from_iter(lines.into_iter().skip(skip)).centered().render(area, buf);
}

/// The state of the run; in playback, with the live status.
fn moment(ctx: &Ctx<'_>) -> Vec<Line<'static>> {
    let (state, role) = header::state(ctx, &ctx.live.run);
    let cells = usize::from(ctx.geo.area.width);
    let Some(cursor) = &ctx.view.moment.cursor else {
        let mut lines = vec![Line::from(vec![ctx.s("rankdeck ", Role::Accent), ctx.s(state, role)])];
        if staleness::is_over(ctx.live) && !ctx.live.run.reason.is_empty() {
            let reason = ctx.cut(&words::clean(&ctx.live.run.reason), cells);
            lines.push(Line::from(ctx.s(reason, role)));
        }
        return lines;
    };
    let clock = timeline::clock(ctx, cursor);
    let word = ctx.cut(&state, cells.saturating_sub(clock.width() + 1));
    let mut lines = vec![Line::from(vec![clock, Span::raw(" "), ctx.s(word, role)])];
    let present = timeline::present(ctx, cells);
    if !present.is_empty() {
        lines.push(Line::from(present));
    }
    lines
}

/// The keys that are enabled.
fn keys(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    let key = |command| ctx.keys().of(command);
    let mut keys = Vec::new();
    match ctx.view.moment.cursor.as_ref().filter(|cursor| cursor.live) {
        Some(cursor) => keys.push(("esc".to_owned(), if cursor.over { " now" } else { " live" })),
        None => keys.push((key(ScreenCommand::Quit), " quit")),
    }
    let usable = |command| keys::disabled(ctx.live, ctx.view, command).is_none();
    for (command, word) in
        [(ScreenCommand::Stop, " stop"), (ScreenCommand::Kill, " kill"), (ScreenCommand::Restart, " restart")]
    {
        let is_listed = command != ScreenCommand::Restart || staleness::is_over(ctx.live);
        let is_listed = is_listed && (command != ScreenCommand::Kill || !usable(ScreenCommand::Stop));
        if is_listed && usable(command) {
            keys.push((key(command), word));
        }
    }
    let mut spans = Vec::new();
    for (key, word) in keys {
        let gap = if spans.is_empty() { "" } else { "  " };
        spans.extend([Span::raw(gap), ctx.s(key, Role::Accent), ctx.s(word, Role::Dim)]);
    }
    spans
}

/// The run's progress, in as many words as fit.
fn progress(ctx: &Ctx<'_>) -> Option<Line<'static>> {
    let figures = staleness::figures(ctx.live, ctx.live_now)?;
    let done = text::si(figures.done as f64);
    let goal = figures.goal.filter(|goal| *goal > 0);
    let of = goal.map_or(String::new(), |goal| format!(" of {}", text::si(goal as f64)));
    let known = figures.per_s.map_or(String::new(), |rate| format!("{}/s", text::si(rate)));
    let speed = match figures.late_ms.map(words::duration_ms) {
        _ if staleness::is_over(ctx.live) => String::new(),
        Some(age) if figures.stalled => format!("stalled {age}"),
        Some(_) if known.is_empty() => known,
        Some(age) => format!("{known} {age} ago"),
        None => known,
    };
    let role = if figures.late_ms.is_some() { Role::Warn } else { Role::Text };
    let forms = [format!("{done}{of}  {speed}"), format!("{done}  {speed}"), speed];
    let room = usize::from(ctx.geo.area.width);
    let fitting = forms.iter().map(|form| form.trim()).find(|form| text::width(form) <= room)?;
    (!fitting.is_empty()).then(|| Line::from(ctx.s(fitting, role)))
}

/// A letter for each rank, as far as they fit into a line; the worst are among them.
fn letters(ctx: &Ctx<'_>) -> Option<Line<'static>> {
    let room = usize::from(ctx.geo.area.width);
    let ranks = &ctx.live.ranks;
    let states = ranks.iter().map(|rank| ranks::state_at(ctx.live, rank, ctx.glyphs(), ctx.live_now));
    let mut states: Vec<_> = states.collect();
    if states.len() > room {
        states.sort_by_key(|state| !state.trouble);
        states.truncate(room);
    }
    let spans: Vec<Span<'static>> =
        states.into_iter().map(|state| ctx.s(state.letter.to_string(), state.role)).collect();
    (!spans.is_empty()).then(|| Line::from(spans))
}
