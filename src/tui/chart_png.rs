//! Charts as pictures: the shapes of [`chart_file`](crate::chart_file) drawn with smooth edges, words in a
//! font of 8 x 8 points, which is the same on every machine. Pure.

use crate::chart_shape::{Anchor, Shape};
use font8x8::UnicodeFonts;
use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, Transform};

/// Charts from which on pixels are saved.
const MANY: usize = 12;
/// Most charts of a picture.
const MOST: usize = 48;
/// Side of a letter, in units of a chart.
const LETTER: f64 = 8.0;

/// Charts below each other; `size` of one. No chart is no picture.
pub fn png(panels: &[Vec<Shape>], size: (f64, f64)) -> Vec<u8> {
    let count = panels.len().min(MOST);
    let scale = if count > MANY { 1.0 } else { 2.0 };
    let sides = ((size.0 * scale) as u32, (size.1 * scale) as u32 * count as u32);
    let Some(mut picture) = Pixmap::new(sides.0, sides.1) else { return Vec::new() };
    picture.fill(Color::WHITE);
    for (i, shapes) in panels.iter().take(count).enumerate() {
        let mut pen = Pen { picture: &mut picture, scale, top: size.1 * i as f64 };
        shapes.iter().for_each(|shape| pen.draw(shape));
        if i + 1 == count && panels.len() > count {
            let rest = Shape::Text {
                text: format!("{} more charts are in the SVG", panels.len() - count),
                at: (size.0 - 8.0, size.1 - 2.0),
                anchor: Anchor::End,
                colour: "#d55e00",
                bold: false,
            };
            pen.draw(&rest);
        }
    }
    picture.encode_png().unwrap_or_default()
}

struct Pen<'a> {
    picture: &'a mut Pixmap,
    scale: f64,
    /// Where the chart begins.
    top: f64,
}

impl Pen<'_> {
    fn draw(&mut self, shape: &Shape) {
        let at = Transform::from_translate(0.0, (self.top * self.scale) as f32);
        match shape {
            Shape::Line { path, colour, width } => {
                let Some(path) = self.path(path, false) else { return };
                let stroke = Stroke { width: (width * self.scale) as f32, ..Stroke::default() };
                self.picture.stroke_path(&path, &paint(colour, 255), &stroke, at, None);
            }
            Shape::Rule { from, to, colour } => {
                let path = vec![*from, *to];
                self.draw(&Shape::Line { path, colour, width: 1.0 });
            }
            Shape::Cell { at: (x, y), size, colour } => {
                let (right, bottom) = (x + size.0, y + size.1);
                let path = [(*x, *y), (right, *y), (right, bottom), (*x, bottom)];
                let Some(path) = self.path(&path, true) else { return };
                self.picture.fill_path(&path, &paint(colour, 255), FillRule::Winding, at, None);
            }
            Shape::Area { path, colour } => {
                let Some(path) = self.path(path, true) else { return };
                self.picture.fill_path(&path, &paint(colour, 38), FillRule::Winding, at, None);
            }
            Shape::Text { text, at: place, anchor, colour, bold } => {
                let wide = LETTER * text.chars().count() as f64;
                let left = match anchor {
                    Anchor::Start => place.0,
                    Anchor::Middle => place.0 - wide / 2.0,
                    Anchor::End => place.0 - wide,
                };
                for (i, letter) in text.chars().enumerate() {
                    self.letter(
                        letter,
                        left + LETTER * i as f64,
                        place.1 - LETTER,
                        &paint(colour, 255),
                        *bold,
                    );
                }
            }
        }
    }

    fn path(&self, points: &[(f64, f64)], closed: bool) -> Option<Path> {
        let mut path = PathBuilder::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let (x, y) = ((x * self.scale) as f32, (y * self.scale) as f32);
            if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
        }
        if closed {
            path.close();
        }
        path.finish()
    }

    /// A letter, point by point; a bold one is a point wider.
    fn letter(&mut self, letter: char, x: f64, y: f64, paint: &Paint<'_>, bold: bool) {
        let fonts = &font8x8::BASIC_FONTS;
        let rows = fonts.get(letter).or_else(|| fonts.get('?')).unwrap_or_default();
        let side = self.scale as f32;
        // Whole pixels keep points sharp.
        let (left, top) = ((x * self.scale).round() as f32, ((self.top + y) * self.scale).round() as f32);
        for (row, bits) in rows.into_iter().enumerate() {
            let bits = if bold { u16::from(bits) | u16::from(bits) << 1 } else { u16::from(bits) };
            for column in (0..9).filter(|column| bits >> column & 1 == 1) {
                let place = (left + column as f32 * side, top + row as f32 * side);
                if let Some(point) = Rect::from_xywh(place.0, place.1, side, side) {
                    self.picture.fill_rect(point, paint, Transform::identity(), None);
                }
            }
        }
    }
}

/// Of `#rrggbb`.
fn paint(colour: &str, opacity: u8) -> Paint<'static> {
    let part = |at: usize| colour.get(at..at + 2).and_then(|part| u8::from_str_radix(part, 16).ok());
    let [red, green, blue] = [1, 3, 5].map(|at| part(at).unwrap_or_default());
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, opacity);
    paint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(png: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
        let picture = Pixmap::decode_png(png).unwrap();
        let pixels = picture.pixels().iter().map(|pixel| [pixel.red(), pixel.green(), pixel.blue()]);
        (picture.width(), picture.height(), pixels.collect())
    }

    #[test]
    fn lines_areas_and_words_are_where_they_belong() {
        let shapes = vec![
            Shape::Area { path: vec![(0.0, 0.0), (50.0, 0.0), (50.0, 20.0), (0.0, 20.0)], colour: "#ff0000" },
            Shape::Line { path: vec![(60.0, 10.0), (90.0, 10.0)], colour: "#0000ff", width: 2.0 },
            Shape::Text {
                text: "I".into(),
                at: (100.0, 40.0),
                anchor: Anchor::End,
                colour: "#000000",
                bold: false,
            },
        ];
        let (width, height, pixels) = pixels(&png(&[shapes.clone(), shapes], (100.0, 50.0)));
        assert_eq!((width, height), (200, 200));
        let at = |x: usize, y: usize| pixels[y * width as usize + x];
        for chart in [0, 100] {
            assert_eq!(at(150, 20 + chart), [0, 0, 255], "the line");
            let [red, green, blue] = at(40, 20 + chart);
            assert!(red == 255 && green == blue && (200..240).contains(&green), "the faint area: {green}");
            let black = |x, y| (x..x + 16).flat_map(move |x| (y..y + 16).map(move |y| (x, y)));
            let ink = black(184, 64 + chart).filter(|(x, y)| at(*x, *y) == [0; 3]).count();
            assert!((40..200).contains(&ink), "a letter: {ink}");
            assert_eq!(at(10, 80 + chart), [255; 3], "white elsewhere");
        }
    }

    #[test]
    fn a_picture_is_bounded_and_no_chart_is_none() {
        assert!(png(&[], (960.0, 320.0)).is_empty());
        let (width, height, _) = pixels(&png(&vec![Vec::new(); MOST + 9], (96.0, 32.0)));
        assert_eq!((width, height), (96, 32 * MOST as u32));
        let odd = Shape::Line { path: vec![(f64::NAN, 1.0), (5.0, f64::INFINITY)], colour: "x", width: 1.0 };
        let text = Shape::Text {
            text: "µ→é".into(),
            at: (-9.0, 1e9),
            anchor: Anchor::Middle,
            colour: "#é",
            bold: true,
        };
        assert!(!png(&[vec![odd, text]], (96.0, 32.0)).is_empty());
    }
}
