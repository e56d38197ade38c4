//! A series of histograms on the page of charts: its heat map, and what is told of it at the cursor.

use crate::heat::{column_at, span};
use crate::text;
use crate::theme::Role;
use crate::widgets::plot::Axes;
use crate::widgets::{Ctx, heat};
use rankdeck_core::model::{Column, HistogramSeries};
use rankdeck_proto::media::Bin;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

pub(super) fn draw(
    ctx: &Ctx<'_>,
    buf: &mut Buffer,
    area: Rect,
    series: &HistogramSeries,
    axes: &Axes,
) -> Rect {
    let height = ctx.view.chart.cursor.and(ctx.view.chart.height);
    heat::draw(ctx.theme, ctx.view.style.colours, buf, area, series, axes, height)
}

/// The bin that is looked at: the one at the height of the cursor, or the fullest.
fn looked_at(column: &Column, height: Option<f64>, y: Option<(f64, f64)>) -> Option<Bin> {
    match height.zip(y) {
        Some((height, (low, high))) => column.bins.bin_at(low + (high - low) * height),
        None => column.bins.fullest(),
    }
}

/// The bin and its count at the cursor, of how many values, and how far the mean is from that at the pin;
/// then the same in fewer cells. None where there is no cursor.
pub(super) fn readouts(ctx: &Ctx<'_>, series: &HistogramSeries, axes: &Axes) -> Vec<Vec<Span<'static>>> {
    let view = &ctx.view.chart;
    let scale = &axes.scale;
    let Some(column) = view.cursor.and_then(|cursor| column_at(series, scale, cursor)) else {
        return Vec::new();
    };
    let mut spans = Vec::new();
    let y = span(series, scale, axes.x);
    let of = words::count(column.bins.total().round() as u64);
    match looked_at(column, view.height, y) {
        Some(bin) => {
            let [low, high] = text::apart([bin.low, bin.high]);
            let what = if view.height.is_none() { "most in " } else { "in " };
            spans.push(ctx.s(format!("{what}{low} to {high} "), Role::Dim));
            spans.push(ctx.s(words::count(bin.count.round() as u64), Role::Strong));
            // With a pin there is more to say.
            if view.pin.is_none() {
                spans.push(ctx.s(format!(" of {of}"), Role::Dim));
            }
        }
        None => spans.push(ctx.s(format!("nothing there, of {of}"), Role::Dim)),
    }
    if let Some(before) = view.pin.and_then(|pin| column_at(series, scale, pin)) {
        let apart = column.bins.mean() - before.bins.mean();
        let sign = if apart >= 0.0 { "+" } else { "" };
        let delta = ctx.glyphs().pick("Δ", "diff");
        spans.push(ctx.s(format!(" mean {delta} {sign}{}", text::value(apart)), Role::Accent));
    }
    let place = ctx.s(format!("at {} ", scale.label(scale.of(column.place))), Role::Dim);
    let whole = std::iter::once(place).chain(spans.clone()).collect();
    // Of the bin alone, its place and its count.
    let bin = spans.iter().take(2).cloned().collect();
    vec![whole, spans, bin]
}
