//! The line below the charts: how they are drawn, and which runs are beside.

use crate::chart_view::{Axis, letter};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, fit, width};
use rankdeck_types::words;
use ratatui::text::Span;

/// How the charts are drawn, with the keys that change it.
pub(super) fn settings(ctx: &Ctx<'_>, cells: usize) -> Vec<Span<'static>> {
    let view = &ctx.view.chart;
    let scale = view.scale(ctx.model);
    let setting = |name: &str, value: String, key: &str| {
        vec![
            ctx.s(format!("{name} "), Role::Dim),
            ctx.s(value, Role::Text),
            ctx.s(format!(" {key}"), Role::Accent),
        ]
    };
    let mut groups = Vec::new();
    if let Some(cursor) = view.cursor {
        let mut group = setting("cursor", scale.label(cursor), "[ ]");
        if let Some(pin) = view.pin.filter(|pin| *pin != cursor) {
            let apart = match view.axis {
                Axis::Steps => text::si((cursor - pin).abs()),
                _ => words::duration((cursor - pin).abs()),
            };
            group.push(ctx.s(format!(" {apart} from {}", scale.label(pin)), Role::Dim));
        }
        groups.push(group);
    }
    if !view.compared.is_empty() {
        let taken: usize = groups.iter().map(|group| width(group) + 3).sum();
        let room = cells.saturating_sub(taken + "beside  :compare".len());
        groups.push(setting("beside", beside(ctx, room), ":compare"));
    }
    groups.push(setting("x", view.axis.name().into(), "a"));
    if view.window.zoom > 0 {
        let [from, to] = scale.labels([view.window(ctx.model).0, view.window(ctx.model).1]);
        groups.push(setting("shown", format!("{from} to {to}"), "0"));
    }
    let weight = view.weight();
    let smooth = if weight > 0.0 { weight.to_string() } else { "off".into() };
    groups.push(setting("smooth", smooth, "s/S"));
    groups.push(setting("y", if view.log { "log" } else { "linear" }.into(), "L"));
    if view.together {
        groups.push(setting("one chart", "on".into(), "o"));
    }
    let withheld = ctx.model.drops.withheld;
    if withheld > 0 && !ctx.model.histograms.is_empty() {
        let text = format!(
            "{} histograms or pictures left out by the agents: too many",
            text::count_in(withheld, 7)
        );
        groups.push(vec![ctx.s(text, Role::Dim)]);
    }
    fit(ctx, groups, cells)
}

/// Letters and names of the runs beside, the names as long as there is room for all of them.
fn beside(ctx: &Ctx<'_>, cells: usize) -> String {
    let runs = &ctx.view.chart.compared;
    // A letter, a gap, and what parts it from the next.
    let each = (cells / runs.len().max(1)).saturating_sub(4);
    let whole: usize = runs.iter().map(|run| text::width(&run.name) + 4).sum();
    let named = runs.iter().enumerate().map(|(at, run)| {
        let name = if whole <= cells + 2 { run.name.clone() } else { middle_cut(ctx, &run.name, each) };
        format!("{} {name}", letter(at + 1))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Names of runs differ in how they begin and how they end.
fn middle_cut(ctx: &Ctx<'_>, name: &str, cells: usize) -> String {
    if text::width(name) <= cells {
        return name.to_owned();
    }
    let chars: Vec<char> = name.chars().collect();
    let (begin, end) = (cells.div_ceil(2), (cells / 2).saturating_sub(1));
    let begin: String = chars.iter().take(begin).collect();
    let end: String = chars.iter().skip(chars.len().saturating_sub(end)).collect();
    ctx.cut(&format!("{begin}{}{end}", ctx.glyphs().pick("…", "~")), cells)
}
