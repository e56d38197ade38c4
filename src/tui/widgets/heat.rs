//! A heat map of histograms: colours, two rows in each cell, or shades of characters; axis labels beside it.

use super::plot::{Axes, Window, canvas, draw_axes, draw_flag, inside, name_flags, set, y_labels};
use super::put;
use crate::heat::{RAMP, heat, span, step};
use crate::play::{Colours, picture::indexed};
use crate::theme::{Glyphs, Theme};
use rankdeck_core::model::HistogramSeries;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

/// Little to much, without colours.
const SHADES: [char; 4] = ['░', '▒', '▓', '█'];
const SIGNS: [char; 9] = ['.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Draws a series with axis labels into `area`; returns where the map itself is. `height`: of the row that is
/// being looked at, from 0 at the bottom to 1 at the top.
pub fn draw(
    theme: &Theme,
    colours: Colours,
    buf: &mut Buffer,
    area: Rect,
    series: &HistogramSeries,
    axes: &Axes,
    height: Option<f64>,
) -> Rect {
    let linear = Axes { log: false, ..axes.clone() };
    let Some(y) = span(series, &axes.scale, axes.x) else {
        let none = Span::styled("no values here", theme.dim);
        put(buf, area, usize::from(area.height / 2), Line::from(none).centered());
        return Rect::default();
    };
    let labels = y_labels(y, &linear);
    let Some(canvas) = canvas(area, &labels) else { return Rect::default() };
    let gutter = usize::from(canvas.x - area.x).saturating_sub(2);
    draw_axes(theme, buf, area, canvas, &labels, gutter, &linear);
    let plain = colours == Colours::None || theme.name == "mono";
    let halves = if plain || theme.glyphs == Glyphs::Ascii { 1 } else { 2 };
    let (w, h) = (usize::from(canvas.width), usize::from(canvas.height));
    let pen = Pen { theme, colours, plain };
    if let Some(map) = heat(series, &axes.scale, axes.x, (w, h * halves), axes.log) {
        for (x, column) in map.columns.iter().enumerate() {
            let Some(levels) = column else { continue };
            for row in 0..h {
                // Rows go down, levels up.
                let at = |half: usize| levels.get((h - row) * halves - 1 - half).copied().unwrap_or(0.0);
                if let Some((sign, style)) = pen.cell(at(0), at(halves - 1)) {
                    set(buf, canvas, x as i64, row, sign, style);
                }
            }
        }
    }
    let window = Window { x: axes.x, y, area: canvas };
    let line = |unicode, ascii| theme.glyphs.pick(unicode, ascii).chars().next().unwrap_or('|');
    let level = height.map(|height| ((1.0 - height.clamp(0.0, 1.0)) * (h - 1) as f64).round() as usize);
    for x in axes.cursors.iter().filter(|x| inside(**x, axes.x)) {
        let (x, _) = window.place((*x, y.0), w, h);
        (0..h).for_each(|row| over(buf, canvas, x, row, line("│", "|"), theme.accent));
        if let Some(row) = level {
            over(buf, canvas, x, row, line("┼", "+"), theme.accent);
        }
    }
    axes.flags.iter().for_each(|flag| draw_flag(theme, buf, &window, flag));
    name_flags(buf, &window, &axes.flags);
    canvas
}

/// A sign on the colour that is there.
fn over(buf: &mut Buffer, area: Rect, x: i64, row: usize, sign: char, style: Style) {
    let Ok(x) = u16::try_from(x) else { return };
    if x < area.width
        && let Some(cell) = buf.cell_mut((area.x + x, area.y + row as u16))
    {
        cell.set_char(sign).set_style(Style { bg: None, ..style });
    }
}

struct Pen<'a> {
    theme: &'a Theme,
    colours: Colours,
    plain: bool,
}

impl Pen<'_> {
    /// The colour of a level: the brighter the more, on a light background the darker.
    fn colour(&self, level: f64) -> Option<Color> {
        let at = step(level, RAMP.len())?;
        let rgb = RAMP[if self.theme.name == "light" { RAMP.len() - 1 - at } else { at }];
        Some(match self.colours {
            Colours::True => Color::Rgb(rgb[0], rgb[1], rgb[2]),
            Colours::Palette | Colours::None => Color::Indexed(indexed(rgb)),
        })
    }

    /// What stands in a cell with this above that; nothing where there is no value.
    fn cell(&self, above: f64, below: f64) -> Option<(char, Style)> {
        let ascii = self.theme.glyphs == Glyphs::Ascii;
        if ascii || self.plain {
            let sign = match ascii {
                true => SIGNS[step(above, SIGNS.len())?],
                false => SHADES[step(above, SHADES.len())?],
            };
            let style = if self.plain { Style::new() } else { Style::new().fg(self.colour(above)?) };
            return Some((sign, style));
        }
        match (self.colour(above), self.colour(below)) {
            (Some(above), Some(below)) => Some(('▀', Style::new().fg(above).bg(below))),
            (Some(above), None) => Some(('▀', Style::new().fg(above))),
            (None, Some(below)) => Some(('▄', Style::new().fg(below))),
            (None, None) => None,
        }
    }
}
