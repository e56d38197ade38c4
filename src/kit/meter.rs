//! Draws horizontal bars in eighths of a cell, and sparklines.

use crate::theme::{Glyphs, Role, Theme};
use ratatui::style::Style;
use ratatui::text::Span;

/// A bar of `cells` cells, filled to `fraction` (clamped to 0..=1; NaN is 0).
pub fn bar(theme: &Theme, fraction: f64, cells: usize, fill: Style) -> [Span<'static>; 2] {
    let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (fraction * cells as f64 * 8.0).round() as usize;
    // Something is never shown as nothing, and not quite everything never as everything.
    let eighths = match eighths {
        0 if fraction > 0.0 => 1,
        e if e == cells * 8 && fraction < 1.0 => e.saturating_sub(1),
        e => e,
    };
    let mut filled = theme.glyphs.eighth(8).repeat(eighths / 8);
    let mut used = eighths / 8;
    if !eighths.is_multiple_of(8) {
        filled.push_str(theme.glyphs.eighth(eighths % 8));
        used += 1;
    }
    let rest = theme.glyphs.pick("·", ".").repeat(cells.saturating_sub(used));
    [Span::styled(filled, fill), Span::styled(rest, theme.border)]
}

/// Fill of a load meter: color rises with the share.
pub fn load(theme: &Theme, fraction: f64) -> Style {
    match fraction {
        f if f >= 0.97 => theme.style(Role::Warn),
        _ => theme.fill,
    }
}

/// The newest `cells` values as columns between `low` and `high`; shorter when there are fewer.
pub fn spark(
    values: impl DoubleEndedIterator<Item = f64>,
    cells: usize,
    low: f64,
    high: f64,
    glyphs: Glyphs,
) -> String {
    let ramp = glyphs.ramp();
    let mut newest: Vec<f64> = values.rev().take(cells).collect();
    newest.reverse();
    // Values that do not change are neither high nor low.
    if high <= low {
        return ramp[3].repeat(newest.iter().filter(|value| value.is_finite()).count());
    }
    let span = high - low;
    newest
        .into_iter()
        .map(|value| {
            let level = ((value - low) / span * 7.0).round();
            ramp[if level.is_finite() { level.clamp(0.0, 7.0) as usize } else { 0 }]
        })
        .collect()
}

/// [`spark`] between the smallest and the largest of the values shown.
pub fn spark_fit(values: &[f64], cells: usize, glyphs: Glyphs) -> String {
    let shown = &values[values.len().saturating_sub(cells)..];
    let low = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let high = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    spark(shown.iter().copied(), cells, low, high, glyphs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fraction: f64) -> String {
        bar(&Theme::dark(), fraction, 4, Style::new()).iter().map(|span| span.content.to_string()).collect()
    }

    #[test]
    fn bars_fill_in_eighths_and_are_honest_at_the_ends() {
        assert_eq!([text(0.0), text(0.5), text(1.0)], ["····", "██··", "████"]);
        assert_eq!([text(0.001), text(0.999), text(0.28)], ["▏···", "███▉", "█▏··"]);
        assert_eq!([text(f64::NAN), text(7.0)], ["····", "████"]);
    }

    #[test]
    fn sparklines_show_the_newest() {
        let values = [9.0, 0.0, 50.0, 100.0];
        assert_eq!(spark(values.into_iter(), 3, 0.0, 100.0, Glyphs::Block), "▁▅█");
        assert_eq!(spark_fit(&[1.0, 1.0], 5, Glyphs::Ascii), "--");
    }
}
