//! Lines and areas as pixels, and pixels as characters: braille, halves of blocks, or ASCII.

use crate::theme::{Glyphs, Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Pixels, each with the meaning of what was drawn there last.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    ink: Vec<Option<Role>>,
}

/// A point: x to the right, y upwards.
pub type Point = (f64, f64);

/// Pixels of a cell.
fn cell(glyphs: Glyphs) -> (usize, usize) {
    match glyphs {
        Glyphs::Braille => (2, 4),
        Glyphs::Block | Glyphs::Ascii => (1, 2),
    }
}

impl Raster {
    /// Nothing on it.
    pub fn new(width: usize, height: usize) -> Raster {
        Raster { width, height, ink: vec![None; width * height] }
    }

    /// What was drawn at a pixel.
    pub fn at(&self, x: usize, y: usize) -> Option<Role> {
        if x < self.width { self.ink.get(y * self.width + x).copied().flatten() } else { None }
    }

    fn set(&mut self, x: f64, y: f64, role: Role) {
        let (x, y) = (x.round(), y.round());
        if x >= 0.0 && y >= 0.0 && x < self.width as f64 && y < self.height as f64 {
            self.ink[y as usize * self.width + x as usize] = Some(role);
        }
    }
}

/// A window of the world on a raster; both axes have the same scale.
pub struct Canvas {
    /// The pixels.
    pub raster: Raster,
    scale: f64,
    left: f64,
    top: f64,
}

impl Canvas {
    /// The world from `low` to `high` as large as it fits, in the middle.
    pub fn new(width: usize, height: usize, low: Point, high: Point) -> Canvas {
        let (wide, tall) = ((high.0 - low.0).max(1e-9), (high.1 - low.1).max(1e-9));
        let (across, down) = (width.max(1) as f64 - 1.0, height.max(1) as f64 - 1.0);
        let scale = (across / wide).min(down / tall);
        Canvas {
            raster: Raster::new(width, height),
            scale,
            left: low.0 - (across / scale.max(1e-9) - wide) / 2.0,
            top: high.1 + (down / scale.max(1e-9) - tall) / 2.0,
        }
    }

    /// The same for the cells of an area.
    pub fn for_cells(area: Rect, glyphs: Glyphs, low: Point, high: Point) -> Canvas {
        let (across, down) = cell(glyphs);
        Canvas::new(usize::from(area.width) * across, usize::from(area.height) * down, low, high)
    }

    fn place(&self, (x, y): Point) -> Point {
        ((x - self.left) * self.scale, (self.top - y) * self.scale)
    }

    /// A line of some width, in the world's measure; it is one pixel wide at least.
    pub fn line(&mut self, from: Point, to: Point, width: f64, role: Role) {
        let ((x0, y0), (x1, y1)) = (self.place(from), self.place(to));
        let length = ((x1 - x0).powi(2) + (y1 - y0).powi(2)).sqrt();
        // What is far outside needs no drawing, and numbers of a broken environment no patience.
        if !length.is_finite() || length > 1e5 {
            return;
        }
        let half = (width * self.scale / 2.0).max(0.0);
        let steps = (length * 2.0).ceil().max(1.0);
        let across = (half * 2.0).ceil();
        let (nx, ny) = if length > 0.0 { ((y0 - y1) / length, (x1 - x0) / length) } else { (0.0, 0.0) };
        for i in 0..=steps as usize {
            let t = i as f64 / steps;
            let (x, y) = (x0 + (x1 - x0) * t, y0 + (y1 - y0) * t);
            for j in 0..=(across * 2.0) as usize {
                let off = if across > 0.0 { half * (j as f64 / across - 1.0) } else { 0.0 };
                self.raster.set(x + nx * off, y + ny * off, role);
            }
        }
    }

    /// A filled circle.
    pub fn disc(&mut self, centre: Point, radius: f64, role: Role) {
        let (x0, y0) = self.place(centre);
        let pixels = (radius * self.scale).max(0.5);
        if !(x0.is_finite() && y0.is_finite()) || pixels > 1e4 {
            return;
        }
        let reach = pixels.ceil() as i64;
        for dy in -reach..=reach {
            for dx in -reach..=reach {
                let (dx, dy) = (dx as f64, dy as f64);
                if dx * dx + dy * dy <= pixels * pixels {
                    self.raster.set(x0 + dx, y0 + dy, role);
                }
            }
        }
    }

    /// A filled rectangle around its middle.
    pub fn bar(&mut self, centre: Point, wide: f64, tall: f64, role: Role) {
        self.line((centre.0 - wide / 2.0, centre.1), (centre.0 + wide / 2.0, centre.1), tall, role);
    }
}

/// Draws pixels into cells.
pub fn draw(theme: &Theme, buf: &mut Buffer, area: Rect, raster: &Raster) {
    let (across, down) = cell(theme.glyphs);
    for row in 0..usize::from(area.height) {
        for column in 0..usize::from(area.width) {
            let pixel = |dx: usize, dy: usize| raster.at(column * across + dx, row * down + dy);
            let Some((sign, role)) = sign(theme.glyphs, &pixel) else { continue };
            let place = (area.x + column as u16, area.y + row as u16);
            if let Some(cell) = buf.cell_mut(place) {
                cell.set_char(sign).set_style(theme.style(role));
            }
        }
    }
}

/// The character of a cell, and the colour of what is most of it.
fn sign(glyphs: Glyphs, pixel: &dyn Fn(usize, usize) -> Option<Role>) -> Option<(char, Role)> {
    const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let (across, down) = cell(glyphs);
    let places = || (0..down).flat_map(move |y| (0..across).map(move |x| (x, y)));
    let inked: Vec<Role> = places().filter_map(|(x, y)| pixel(x, y)).collect();
    let role =
        inked.iter().copied().max_by_key(|role| inked.iter().filter(|other| *other == role).count())?;
    let halves = || (pixel(0, 0).is_some(), pixel(0, 1).is_some());
    let sign = match glyphs {
        Glyphs::Braille => {
            let bits =
                places().filter(|(x, y)| pixel(*x, *y).is_some()).map(|(x, y)| DOTS[y][x]).sum::<u32>();
            char::from_u32(0x2800 + bits)?
        }
        Glyphs::Block => match halves() {
            (true, true) => '█',
            (true, false) => '▀',
            _ => '▄',
        },
        Glyphs::Ascii => match halves() {
            (true, true) => '#',
            (true, false) => '\'',
            _ => '.',
        },
    };
    Some((sign, role))
}
