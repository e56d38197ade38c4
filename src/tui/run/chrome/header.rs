//! The lines above every page: run, state, pages, progress.

use crate::run::ViewState;
use crate::run::chrome::Ctx;
use crate::run::geometry::Tab;
use crate::run::staleness::{self, RunFigures};
use rankdeck_core::model::{RunModel, RunState};
use rankdeck_core::report::RunOutcome;
use rankdeck_kit::{Role, fit, plot, put, put_right, text, width};
use rankdeck_proto::message::StopMode;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

/// Draws title, pages and progress.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    title(ctx, buf);
    tabs(ctx, buf);
    progress(ctx, buf);
}

/// Sign, word and role of a run's state.
pub fn state(ctx: &Ctx<'_>, run: &RunModel) -> (String, Role) {
    let glyphs = ctx.glyphs();
    let (glyph, word, role) = match (run.state, run.stopping) {
        (RunState::Over, _) => match run.outcome {
            Some(RunOutcome::Succeeded) => (glyphs.pick("✓", "+"), "succeeded", Role::Good),
            Some(RunOutcome::Stopped) => (glyphs.pick("■", "#"), "stopped", Role::Warn),
            Some(RunOutcome::Failed) => (glyphs.pick("✗", "x"), "failed", Role::Bad),
            Some(RunOutcome::Stuck) => (glyphs.pick("✗", "x"), "stuck", Role::Bad),
            None if run.launch.is_none() => (glyphs.pick("✗", "x"), "unknown", Role::Bad),
            None => (glyphs.pick("■", "#"), "over", Role::Dim),
        },
        (RunState::Restarting, _) if run.restart_at.is_some() => {
            let left = run.restart_at.map_or(0, |at| at.since(ctx.live_now)).div_ceil(1000);
            let text = format!("{} restart {} in {left}s", glyphs.pick("↻", "@"), run.restarts);
            return (text, Role::Warn);
        }
        (RunState::Restarting | RunState::Launching | RunState::Running, None)
            if !run.restart_awaits.is_empty() =>
        {
            (glyphs.pick("↻", "@"), "restart waits", Role::Warn)
        }
        (RunState::Restarting, _) => (glyphs.pick("↻", "@"), "restarting", Role::Warn),
        (_, Some(StopMode::Kill)) => (glyphs.pick("◌", "o"), "killing", Role::Bad),
        (_, Some(_)) => (glyphs.pick("◌", "o"), "stopping", Role::Warn),
        (RunState::Connecting, _) => (glyphs.pick("○", "o"), "connecting", Role::Accent),
        (RunState::Launching, _) => (glyphs.pick("◐", "@"), "launching", Role::Accent),
        (RunState::Running, _) => (glyphs.pick("●", "*"), "running", Role::Good),
        (RunState::Draining, _) => (glyphs.pick("◌", "o"), "draining", Role::Warn),
    };
    (format!("{glyph} {word}"), role)
}

fn title(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.title;
    let run = &ctx.live.run;
    let mut right = Vec::new();
    let drops = ctx.live.drops;
    let lost = drops.lost();
    let skipped = drops.by_agents.saturating_add(lost);
    if skipped > 0 {
        let role = if lost > 0 { Role::Bad } else { Role::Dim };
        right.push(ctx.s(format!("drops {}  ", text::count_in(skipped, 6)), role));
    }
    if ctx.view.steering.read_only {
        right.push(ctx.s("read-only  ", Role::Dim));
    }
    if let Some(frozen) = &ctx.view.moment.frozen {
        let age = words::duration_ms(ctx.live_now.since(frozen.at));
        let behind = ctx.live.revision.saturating_sub(frozen.model.revision);
        let more = if area.width >= 100 { format!(", {behind} changes since") } else { String::new() };
        right.push(Span::styled(format!(" FROZEN {age}{more} "), ctx.theme.chosen));
        right.push(Span::raw("  "));
    }
    let (word, role) = state(ctx, run);
    right.push(ctx.s(word, role));
    let stalled = staleness::figures(ctx.live, ctx.live_now).filter(|figures| figures.stalled);
    if let Some(age) = stalled.and_then(|figures| figures.late_ms) {
        right.push(ctx.dot());
        right.push(ctx.s(format!("stalled {}", words::duration_ms(age)), Role::Warn));
    }
    if let Some(ms) = ctx.live.run.elapsed_ms(ctx.live_now) {
        right.push(ctx.s(format!("  {}", words::duration_ms(ms)), Role::Strong));
    }
    right.push(Span::raw(" "));
    let name = run.id.as_ref().map_or("no run yet", |id| id.0.as_str());
    let room = usize::from(area.width).saturating_sub(width(&right) + 2);
    let adopted = if run.adopted && area.width >= 100 { ", adopted" } else { "" };
    let generation = format!("gen {}{adopted}", run.generation);
    let left = vec![
        Span::raw(" "),
        ctx.s("rankdeck", Role::Accent),
        Span::raw("  "),
        ctx.s(ctx.cut(name, room.saturating_sub(11 + generation.len() + 3).max(8)), Role::Strong),
        ctx.dot(),
        ctx.s(generation, Role::Dim),
    ];
    let taken = width(&left);
    put(buf, area, 0, Line::from(left));
    if taken + width(&right) < usize::from(area.width) {
        put_right(buf, area, 0, taken, right);
    } else {
        // The state is worth more than the end of the run's name.
        let wide = width(&right).min(usize::from(area.width));
        let x = area.right() - wide as u16;
        put(buf, Rect { x, width: wide as u16, ..area }, 0, Line::from(right));
    }
}

fn labels(view: &ViewState, width: u16) -> Vec<(Tab, String)> {
    // On narrow screens the names stand closer together, so that all of them fit.
    let (gap, space) = match width {
        72.. => (" ", " "),
        64.. => ("", " "),
        _ => ("", ""),
    };
    Tab::ALL
        .into_iter()
        .enumerate()
        .map(|(i, tab)| {
            let gap = if tab == view.tab { " " } else { gap };
            (tab, format!(" {}{space}{}{gap}", i + 1, tab.name()))
        })
        .collect()
}

fn tabs(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.tabs;
    let mut spans = Vec::new();
    for (tab, label) in labels(ctx.view, area.width) {
        if tab == ctx.view.tab {
            spans.push(Span::styled(label, ctx.theme.chosen));
        } else {
            spans.push(ctx.s(label, Role::Dim));
        }
    }
    let taken = width(&spans);
    put(buf, area, 0, Line::from(spans));
    let ranks = ctx.live.ranks.len();
    let hosts = ctx.live.hosts.len();
    let mut groups = Vec::new();
    if let Some(plan) = &ctx.live.plan {
        groups.push(vec![ctx.s(plan.backend().to_string(), Role::Text)]);
    }
    if let Some(members) = ctx.live.shrunk_to() {
        groups.push(vec![ctx.s(members, Role::Warn)]);
    } else if ranks > 0 {
        groups.push(vec![ctx.s(words::plural(ranks, "rank"), Role::Text)]);
    }
    if hosts > 0 {
        groups.push(vec![ctx.s(words::plural(hosts, "host"), Role::Text)]);
    }
    let room = usize::from(area.width).saturating_sub(taken + 2);
    // How many ranks there are matters more than how they are connected.
    if groups.len() > 2 && width(&fit(ctx, groups.clone(), room)) <= width(&groups[0]) {
        groups.remove(0);
    }
    let mut right = fit(ctx, groups, room);
    right.push(Span::raw(" "));
    put_right(buf, area, 0, taken, right);
}

/// The page whose name is at this place.
pub fn tab_at(view: &ViewState, at: Position) -> Option<Tab> {
    let area = view.geometry.tabs;
    if !area.contains(at) {
        return None;
    }
    let mut x = area.x;
    labels(view, area.width).into_iter().find_map(|(tab, label)| {
        x = x.saturating_add(text::width(&label) as u16);
        (at.x < x).then_some(tab)
    })
}

/// Speed and ETA; overdue values with their age, a stall with the values before it.
fn speed(ctx: &Ctx<'_>, figures: &RunFigures) -> Vec<Vec<Span<'static>>> {
    let known = figures.per_s.map(text::si);
    let per_s = if figures.unit.is_empty() { "/s".to_owned() } else { format!(" {}/s", figures.unit) };
    let Some(age) = figures.late_ms.map(words::duration_ms) else {
        let measured = known.map(|known| vec![ctx.s(known, Role::Strong), ctx.s(per_s, Role::Dim)]);
        let mut groups: Vec<_> = measured.into_iter().collect();
        groups.extend(figures.eta_s.map(|eta| ctx.fact("ETA", words::duration(eta)).to_vec()));
        return groups;
    };
    if figures.stalled {
        let mut speed = vec![ctx.s("0", Role::Warn), ctx.s(per_s, Role::Dim)];
        speed.extend(known.map(|known| ctx.s(format!(" ({known} {age} ago)"), Role::Dim)));
        let mut groups = vec![speed];
        // Without a goal there is no time to it.
        let eta = || vec![ctx.s("ETA ", Role::Dim), ctx.s(format!("stalled {age}"), Role::Warn)];
        groups.extend(figures.eta_s.map(|_| eta()));
        return groups;
    }
    known.map(|known| vec![ctx.s(format!("{known}{per_s} {age} ago"), Role::Dim)]).into_iter().collect()
}

fn progress(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.progress;
    if area.is_empty() {
        return;
    }
    let model = ctx.model;
    let figures = staleness::figures(model, ctx.now);
    let done = figures.as_ref().map(|figures| figures.done);
    let goal = figures.as_ref().map_or(model.run.total_steps, |figures| figures.goal);
    let over = ctx.live.run.state == RunState::Over;
    let (unit, label) =
        figures.as_ref().map_or(("", ""), |figures| (figures.unit.as_str(), figures.label.as_str()));
    let mut groups = vec![match (done, goal) {
        (Some(done), Some(goal)) => {
            let unit = if unit == "steps" || unit.is_empty() { String::new() } else { format!(" {unit}") };
            vec![
                ctx.s(text::si(done as f64), Role::Strong),
                ctx.s(format!(" of {}{unit}", text::si(goal as f64)), Role::Dim),
            ]
        }
        (None, Some(goal)) => vec![ctx.s(format!("0 of {}", text::si(goal as f64)), Role::Dim)],
        (Some(done), None) => {
            let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
            vec![ctx.s(text::si(done as f64), Role::Strong), ctx.s(format!("{unit}, no target"), Role::Dim)]
        }
        (None, None) => vec![ctx.s("no totals yet", Role::Dim)],
    }];
    if let Some(figures) = figures.as_ref().filter(|_| !over) {
        groups.extend(speed(ctx, figures));
    }
    if !label.is_empty() {
        groups.push(vec![ctx.s(label.to_owned(), Role::Dim)]);
    }
    let facts = fit(ctx, groups, usize::from(area.width).saturating_sub(14));
    let mut spans = vec![Span::raw(" ")];
    if let (Some(done), Some(goal)) = (done.or(Some(0)), goal.filter(|goal| *goal > 0)) {
        let share = done as f64 / goal as f64;
        let cells = usize::from(area.width).saturating_sub(width(&facts) + 11);
        let fill = if over { ctx.theme.good } else { ctx.theme.fill };
        spans.extend(plot::bar(ctx.theme, share, cells, fill));
        spans.push(ctx.s(format!(" {:>5.1}%  ", (share * 100.0).min(100.0)), Role::Strong));
    }
    spans.extend(facts);
    put(buf, area, 0, Line::from(spans));
}
