//! Draws images as characters: two pixels per cell in the terminal's colors, or shades of ASCII.

use crate::theme::{ColorDepth, Glyphs, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

pub use crate::theme::indexed;

/// Dark to light.
const SHADES: &[u8] = b" .:-=+*#%@";

/// Returns the largest centered area with the image's aspect ratio. A cell is twice as tall as wide.
pub fn area_for(width: u32, height: u32, area: Rect) -> Rect {
    let (wide, tall) = (f64::from(width.max(1)), f64::from(height.max(1)) / 2.0);
    let scale = (f64::from(area.width) / wide).min(f64::from(area.height) / tall);
    let cells = |side: f64, most: u16| ((side * scale).round() as u16).clamp(1, most.max(1));
    let (columns, rows) = (cells(wide, area.width), cells(tall, area.height));
    Rect {
        x: area.x + (area.width.saturating_sub(columns)) / 2,
        y: area.y + (area.height.saturating_sub(rows)) / 2,
        width: columns.min(area.width),
        height: rows.min(area.height),
    }
}

/// Resamples an image: each pixel is the mean of those that fall on it.
pub fn scaled(pixels: &[[u8; 3]], from: (usize, usize), to: (usize, usize)) -> Vec<[u8; 3]> {
    let range = |i: usize, from: usize, to: usize| {
        let begin = i * from / to.max(1);
        begin..((i + 1) * from / to.max(1)).max(begin + 1).min(from)
    };
    let mut out = Vec::with_capacity(to.0 * to.1);
    for y in 0..to.1 {
        for x in 0..to.0 {
            let (rows, columns) = (range(y, from.1, to.1), range(x, from.0, to.0));
            let (mut sum, mut count) = ([0u32; 3], 0u32);
            for pixel in rows
                .flat_map(|row| pixels.get(row * from.0..(row + 1) * from.0))
                .flat_map(|row| row.get(columns.clone()).unwrap_or_default())
            {
                sum.iter_mut().zip(pixel).for_each(|(sum, part)| *sum += u32::from(*part));
                count += 1;
            }
            out.push(sum.map(|sum| (sum / count.max(1)) as u8));
        }
    }
    out
}

fn light([red, green, blue]: [u8; 3]) -> usize {
    (299 * usize::from(red) + 587 * usize::from(green) + 114 * usize::from(blue)) / 1000
}

/// Draws an image over the whole area.
pub fn draw(
    theme: &Theme,
    depth: ColorDepth,
    buf: &mut Buffer,
    area: Rect,
    pixels: &[[u8; 3]],
    from: (usize, usize),
) {
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    let shades = depth == ColorDepth::None || theme.glyphs == Glyphs::Ascii;
    let halves = if shades { 1 } else { 2 };
    let small = scaled(pixels, from, (columns, rows * halves));
    for row in 0..rows {
        for column in 0..columns {
            let Some(cell) = buf.cell_mut((area.x + column as u16, area.y + row as u16)) else { continue };
            let at = |half: usize| small.get((row * halves + half) * columns + column).copied();
            match (at(0), shades) {
                (Some(rgb), true) => {
                    let shade = SHADES[light(rgb) * (SHADES.len() - 1) / 255];
                    cell.set_char(char::from(shade));
                }
                (Some(top), false) => {
                    cell.set_char('▀').set_fg(depth.color(top)).set_bg(depth.color(at(1).unwrap_or(top)));
                }
                (None, _) => {}
            }
        }
    }
}
