//! What the charts' lines say at a place: of this run, and of the runs beside it.

use crate::chart_view::{letter, value_at};
use crate::text;
use crate::theme::Role;
use crate::widgets::plot::{Axes, Trace};
use crate::widgets::{Ctx, width};
use rankdeck_core::series::Series;
use ratatui::style::Style;
use ratatui::text::Span;

/// A series of this run, and of the runs beside it, which lie below.
pub(super) fn traces(ctx: &Ctx<'_>, name: &str, axes: &Axes, style: Style) -> Vec<Trace> {
    let view = &ctx.view.chart;
    let Some(own) = ctx.model.chart(name) else { return Vec::new() };
    let own = Trace::line(own, &axes.scale, view.weight(), style);
    let mut all: Vec<Trace> = view
        .compared
        .iter()
        .enumerate()
        .filter_map(|(at, run)| {
            let line = Trace::line(
                run.series.get(name)?,
                &run.scale(&axes.scale),
                view.weight(),
                other(ctx, style, at),
            );
            Some(Trace { letter: Some(letter(at + 1)), ..line })
        })
        .collect();
    let letter = (!view.compared.is_empty()).then(|| letter(0));
    all.push(Trace { letter, ..own });
    all
}

/// The look of another run beside a line of this look.
fn other(ctx: &Ctx<'_>, own: Style, at: usize) -> Style {
    let series = &ctx.theme.series;
    let taken = series.iter().position(|style| *style == own).unwrap_or(0);
    series[(taken + 1 + at) % series.len()]
}

/// The value of a series at the cursor, and its difference from the one at the pin.
pub(super) fn at_cursor(ctx: &Ctx<'_>, series: &Series) -> Option<Vec<Span<'static>>> {
    let view = &ctx.view.chart;
    let scale = view.scale(ctx.model);
    let (_, value) = value_at(series, &scale, view.cursor?)?;
    let mut spans = vec![ctx.s(text::value(value), Role::Strong)];
    if let Some((_, before)) = view.pin.and_then(|pin| value_at(series, &scale, pin)) {
        let sign = if value >= before { "+" } else { "" };
        let delta = ctx.glyphs().pick("Δ", "diff");
        spans.push(ctx.s(format!(" {delta} {sign}{}", text::value(value - before)), Role::Accent));
    }
    Some(spans)
}

/// The same with where that is, and with the values of other runs there; then without, in fewer cells. None
/// where there is no cursor.
pub(super) fn readouts(ctx: &Ctx<'_>, name: &str, series: &Series) -> Vec<Vec<Span<'static>>> {
    let view = &ctx.view.chart;
    let scale = view.scale(ctx.model);
    let found = view.cursor.and_then(|cursor| value_at(series, &scale, cursor));
    let Some((at, short)) = found.and_then(|(at, _)| Some((at, at_cursor(ctx, series)?))) else {
        return Vec::new();
    };
    let mut long = short.clone();
    for (nth, run) in view.compared.iter().enumerate() {
        let there = run.series.get(name).and_then(|series| value_at(series, &run.scale(&scale), at));
        let there = there.map_or(text::NONE.to_string(), |(_, value)| text::value(value));
        long.push(ctx.s(format!("  {} {there}", letter(nth + 1)), Role::Text));
    }
    let place = ctx.s(format!("at {} ", scale.label(at)), Role::Dim);
    let whole = std::iter::once(place).chain(long.clone()).collect();
    let value = short.first().cloned().into_iter().collect();
    vec![whole, long, short, value]
}

/// The first of some forms that fits.
pub(super) fn fitting(forms: &[Vec<Span<'static>>], cells: usize) -> Option<Vec<Span<'static>>> {
    forms.iter().find(|form| width(form) <= cells).or(forms.last()).cloned()
}
