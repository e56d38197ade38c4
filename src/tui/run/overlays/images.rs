//! Images that the program has logged: one at a time, by name and step. The app decodes them ([`undecoded`],
//! [`set_decoded`]): a large one takes longer than a frame.

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::Pane;
use crate::run::keys::{TABLE, names};
use crate::run::overlays::Overlay;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_charts::export::{FileContent, SavedFile};
use rankdeck_core::model::{Model, StoredImage};
use rankdeck_kit::{ColorDepth, Component, Keep, Role, draw, fit, frame, put, text};
use rankdeck_proto::media::{self, ImageFormat, PICTURE_PIXELS};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::{bytes, clean};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Which image is shown.
#[derive(Debug, Clone, Default)]
pub struct Images {
    /// Its name; `None`: the first.
    pub name: Option<String>,
    /// Its number; `None`: the newest of the name.
    pub number: Option<u64>,
    /// The image, once the app has decoded it.
    decoded: Option<DecodedPicture>,
}

impl PartialEq for Images {
    fn eq(&self, other: &Images) -> bool {
        (&self.name, self.number) == (&other.name, other.number)
    }
}

impl Images {
    /// The image of this name and number.
    pub fn new(name: Option<String>, number: Option<u64>) -> Images {
        Images { name, number, decoded: None }
    }
}

impl Component<RunScreen> for Images {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        // The keys of charts along their axis and in their list.
        let Some(binding) = TABLE.find(key, Pane::Charts, &cx.state.steering.keymap) else {
            return Handled::Ignored;
        };
        let (command, live) = (binding.command, model);
        let model = cx.state.shown(live);
        *self = match command {
            ScreenCommand::Back | ScreenCommand::Pictures => return Handled::Close,
            ScreenCommand::Pan(by) | ScreenCommand::Cursor(by) => step(model, self, by.into()),
            ScreenCommand::Move(by) => other(model, self, by.into()),
            ScreenCommand::NextPane => other(model, self, 1),
            ScreenCommand::PreviousPane => other(model, self, -1),
            ScreenCommand::First => step(model, self, i64::MIN),
            ScreenCommand::Last => step(model, self, i64::from(i32::MAX)),
            ScreenCommand::ExportCharts => {
                return Handled::Actions(export(model, self).map(Request::Do).into_iter().collect());
            }
            ScreenCommand::Go(_) => {
                return Handled::Actions(vec![Request::CloseOverlays, Request::Command(command)]);
            }
            ScreenCommand::Time(_)
            | ScreenCommand::TypeTime
            | ScreenCommand::Freeze
            | ScreenCommand::Quit
            | ScreenCommand::Stop
            | ScreenCommand::Kill
            | ScreenCommand::Detach
            | ScreenCommand::Restart
            | ScreenCommand::RestartWith
            | ScreenCommand::Help
            | ScreenCommand::Palette
            | ScreenCommand::Copy => return Handled::Actions(vec![Request::Command(command)]),
            _ => return Handled::Ignored,
        };
        Handled::Done
    }

    /// Forgets the pixels of another image.
    fn settle(&mut self, model: &Model, view: &ViewState, _: Rect) -> Keep {
        let number = shown(view.shown(model), self).map(|now| now.picture.number);
        self.decoded = self.decoded.take().filter(|decoded| Some(decoded.number) == number);
        Keep::Yes
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let model = view.shown(model);
        let inner = cx.popup(buf, size(cx.screen), Role::Accent, "logged images", "");
        if inner.is_empty() {
            return;
        }
        let Some(now) = shown(model, self) else {
            put(buf, inner, 0, Line::from(cx.s(absent(model), Role::Dim)));
            return;
        };
        put(buf, inner, 0, Line::from(head(cx, &now, usize::from(inner.width))));
        put(buf, inner, 1, Line::from(facts(cx, model, &now, self, usize::from(inner.width))));
        let area = room(inner);
        let Some(decoded) = self.decoded.as_ref().filter(|known| known.number == now.picture.number) else {
            put(buf, area, 0, Line::from(cx.s("decoding ...", Role::Dim)));
            return;
        };
        match &decoded.pixels {
            Err(why) => {
                put(buf, area, 0, Line::from(cx.s(format!("cannot be drawn: {}", clean(why)), Role::Warn)))
            }
            Ok(_) if view.style.drawn_apart => {}
            Ok(pixels) => {
                let depth = if cx.theme.name == "mono" { ColorDepth::None } else { view.style.colours };
                let area = draw::area_for(decoded.sides.0, decoded.sides.1, area);
                let sides = (decoded.sides.0 as usize, decoded.sides.1 as usize);
                draw::draw_image(cx.theme, depth, buf, area, pixels, sides);
            }
        }
    }

    fn hint(&self, _: &Model, view: &ViewState, cx: &DrawCtx<'_>) -> String {
        let keys = names(&view.steering.keymap, cx.glyphs());
        format!(
            "{} earlier   {} later   {} next name   {} save   {} copy   {} or esc closes",
            keys.of(ScreenCommand::Pan(-1)),
            keys.of(ScreenCommand::Pan(1)),
            keys.of(ScreenCommand::Move(1)),
            keys.of(ScreenCommand::ExportCharts),
            keys.of(ScreenCommand::Copy),
            keys.of(ScreenCommand::Pictures)
        )
    }

    fn copy(&self, model: &Model, view: &ViewState, _: Timestamp) -> Option<String> {
        Some(plain(view.shown(model)).join("\n"))
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// Rows above the image.
const ABOVE: u16 = 3;

/// An image with its position.
#[derive(Debug, Clone, Copy)]
pub struct ShownPicture<'a> {
    pub name: &'a str,
    pub picture: &'a StoredImage,
    /// Its index among the images of its name, and their number.
    pub place: (usize, usize),
    /// Index of its name, and the number of names.
    pub named: (usize, usize),
}

/// The image of a choice, or the nearest earlier one if it is not available.
pub fn shown<'a>(model: &'a Model, choice: &Images) -> Option<ShownPicture<'a>> {
    let names: Vec<&String> = model.gallery.names().map(|(name, _)| name).collect();
    let at = names.iter().position(|name| Some(*name) == choice.name.as_ref()).unwrap_or(0);
    let name = *names.get(at)?;
    let all = model.gallery.of(name)?;
    let nth =
        choice.number.map_or(all.len(), |number| all.partition_point(|one| one.number <= number).max(1));
    let nth = nth.checked_sub(1)?;
    Some(ShownPicture { name, picture: all.get(nth)?, place: (nth, all.len()), named: (at, names.len()) })
}

/// The choice a number of images later; the newest one is followed.
pub fn step(model: &Model, choice: &Images, by: i64) -> Images {
    let Some(now) = shown(model, choice) else { return choice.clone() };
    let to = (now.place.0 as i64).saturating_add(by).clamp(0, now.place.1 as i64 - 1) as usize;
    let number = model.gallery.of(now.name).and_then(|all| all.get(to)).map(|one| one.number);
    let number = if to + 1 == now.place.1 { None } else { number };
    Images::new(Some(now.name.to_owned()), number)
}

/// The newest image of the name a number of names further.
pub fn other(model: &Model, choice: &Images, by: i64) -> Images {
    let Some(now) = shown(model, choice) else { return choice.clone() };
    let to = (now.named.0 as i64 + by).rem_euclid(now.named.1 as i64) as usize;
    let name = model.gallery.names().nth(to).map(|(name, _)| name.clone());
    Images::new(name, None)
}

/// Exports the image as a file.
pub fn export(model: &Model, choice: &Images) -> Option<ScreenAction> {
    let now = shown(model, choice)?;
    let (_, file) = media::decoded(&now.picture.data).ok()?;
    let ending = now.picture.head.format.ending();
    let content = FileContent::Bytes(file);
    Some(ScreenAction::SaveFiles(vec![SavedFile { stem: "picture", ending, content }]))
}

fn size(screen: Rect) -> (u16, u16) {
    (screen.width.saturating_sub(6), screen.height.saturating_sub(4))
}

/// The area of the image within the box.
fn room(inner: Rect) -> Rect {
    let height = inner.height.saturating_sub(ABOVE);
    Rect { y: inner.y + ABOVE.min(inner.height), height, ..inner }
}

/// The image that the terminal draws itself, and its area.
pub fn apart(view: &ViewState, screen: Rect) -> Option<(&DecodedPicture, Rect)> {
    let Overlay::Images(images) = view.overlay()? else { return None };
    let decoded = images.decoded.as_ref().filter(|decoded| decoded.pixels.is_ok())?;
    let area = room(frame::popup_inside(screen, size(screen)));
    let area = draw::area_for(decoded.sides.0, decoded.sides.1, area);
    (area.width > 0 && area.height > 0 && !view.geometry.too_small).then_some((decoded, area))
}

/// The image on the screen that is not decoded yet.
pub fn undecoded<'a>(model: &'a Model, view: &'a ViewState) -> Option<&'a StoredImage> {
    let Overlay::Images(images) = view.overlay()? else { return None };
    let picture = shown(view.shown(model), images)?.picture;
    let is_decoded = images.decoded.as_ref().is_some_and(|decoded| decoded.number == picture.number);
    (!is_decoded).then_some(picture)
}

/// Shows a decoded image, if it is still the one on the screen.
pub fn set_decoded(view: &mut ViewState, decoded: DecodedPicture) {
    if let Some(Overlay::Images(images)) = view.overlays.top_mut() {
        images.decoded = Some(decoded);
    }
}

/// Why there is nothing to show.
fn absent(model: &Model) -> &'static str {
    match model.plan.as_ref().is_some_and(|plan| plan.is_builtin()) {
        true => "the built-in trainer logs no images; `v` shows its policy",
        false => "no images; log them with `rankdeck.image` or a SummaryWriter",
    }
}

fn head(cx: &DrawCtx<'_>, now: &ShownPicture<'_>, cells: usize) -> Vec<Span<'static>> {
    let (at, all) = now.named;
    let mut groups = vec![vec![cx.s(cx.cut(&clean(now.name), cells), Role::Strong)]];
    if all > 1 {
        groups.push(vec![cx.s(format!("name {} of {all}", at + 1), Role::Dim)]);
    }
    fit(cx, groups, cells)
}

fn facts(
    cx: &DrawCtx<'_>,
    model: &Model,
    now: &ShownPicture<'_>,
    choice: &Images,
    cells: usize,
) -> Vec<Span<'static>> {
    let picture = now.picture;
    let newest = if choice.number.is_none() { ", the newest" } else { "" };
    let mut groups = vec![
        vec![cx.s("step ", Role::Dim), cx.s(text::si(picture.place.step), Role::Strong)],
        vec![cx.s(format!("{} of {}{newest}", now.place.0 + 1, now.place.1), Role::Text)],
        vec![cx.s(format!("{} x {}", picture.head.width, picture.head.height), Role::Text)],
        vec![cx.s(bytes(media_bytes(picture)), Role::Dim)],
    ];
    if picture.head.format == ImageFormat::Gif {
        groups.push(vec![cx.s("GIF, first frame", Role::Dim)]);
    }
    if model.drops.withheld > 0 {
        let skipped = text::count_in(model.drops.withheld, 7);
        groups.push(vec![cx.s(format!("{skipped} dropped"), Role::Dim)]);
    }
    fit(cx, groups, cells)
}

/// Size of an image file in bytes.
fn media_bytes(picture: &StoredImage) -> u64 {
    let padding = picture.data.bytes().rev().take_while(|byte| *byte == b'=').count();
    (picture.data.len() / 4 * 3).saturating_sub(padding) as u64
}

/// One line per name, as plain text.
pub fn plain(model: &Model) -> Vec<String> {
    let lines = model.gallery.names().filter_map(|(name, all)| {
        let newest = all.back()?;
        let (width, height) = (newest.head.width, newest.head.height);
        let step = text::si(newest.place.step);
        let of = bytes(media_bytes(newest));
        let more = if all.len() > 1 { format!(", {} kept", all.len()) } else { String::new() };
        Some(format!("{}: {width} x {height} pixels at step {step}, {of}{more}", clean(name)))
    });
    lines.collect()
}

/// A decoded image, or why it cannot be decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedPicture {
    /// Number of the image.
    pub number: u64,
    pub sides: (u32, u32),
    /// Red, green and blue, row by row.
    pub pixels: Result<Arc<Vec<[u8; 3]>>, String>,
}

/// Decodes an image file. A large one takes longer than a frame: do not call it on an event loop.
pub fn decode(picture: &StoredImage) -> DecodedPicture {
    let read = media::decoded(&picture.data).and_then(|(head, file)| match head.format {
        ImageFormat::Png => png(&file),
        ImageFormat::Gif => gif(&file).ok_or_else(|| "cannot read its first frame".into()),
    });
    let (sides, pixels) = match read {
        Ok((sides, pixels)) => (sides, Ok(Arc::new(pixels))),
        Err(why) => ((picture.head.width, picture.head.height), Err(why)),
    };
    DecodedPicture { number: picture.number, sides, pixels }
}

type Pixels = ((u32, u32), Vec<[u8; 3]>);

/// Decodes a PNG on a white background.
fn png(file: &[u8]) -> Result<Pixels, String> {
    let picture = tiny_skia::Pixmap::decode_png(file).map_err(|error| error.to_string())?;
    let on_white = |pixel: &tiny_skia::PremultipliedColorU8| {
        let rest = 255 - pixel.alpha();
        [pixel.red(), pixel.green(), pixel.blue()].map(|part| part.saturating_add(rest))
    };
    Ok(((picture.width(), picture.height()), picture.pixels().iter().map(on_white).collect()))
}

/// Decodes the first frame of a GIF on its background.
fn gif(file: &[u8]) -> Option<Pixels> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    options.set_memory_limit(gif::MemoryLimit::Bytes(NonZeroU64::new(4 * PICTURE_PIXELS)?));
    let mut decoder = options.read_info(file).ok()?;
    let (wide, high) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let background = decoder.bg_color().zip(decoder.global_palette());
    let background = background.and_then(|(index, colors)| colors.as_chunks::<3>().0.get(index).copied());
    let frame = decoder.next_frame_info().ok()??;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    if (width * height).max(wide * high) as u64 > PICTURE_PIXELS {
        return None;
    }
    let mut rgba = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut rgba).ok()?;
    let mut pixels = vec![background.unwrap_or([255; 3]); wide * high];
    for (at, [red, green, blue, alpha]) in rgba.as_chunks::<4>().0.iter().copied().enumerate() {
        let (x, y) = (left + at % width, top + at / width);
        if alpha > 0 && x < wide && y < high {
            pixels[y * wide + x] = [red, green, blue];
        }
    }
    Some(((wide as u32, high as u32), pixels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::{ImageHeader, encoded};

    fn picture(file: &[u8]) -> StoredImage {
        let head = ImageHeader::of(file).unwrap();
        StoredImage { number: 1, place: Place::default(), head, data: encoded(file) }
    }

    /// 10 x 10 pixels of three colors: the sample of "What's In A GIF" (M. Flickinger).
    const SAMPLE: &[u8] = &[
        0x47, 0x49, 0x46, 0x38, 0x39, 0x61, 0x0a, 0x00, 0x0a, 0x00, 0x91, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff,
        0x00, 0x00, 0x00, 0x00, 0xff, 0x00, 0x00, 0x00, 0x21, 0xf9, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x2c,
        0x00, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x0a, 0x00, 0x00, 0x02, 0x16, 0x8c, 0x2d, 0x99, 0x87, 0x2a, 0x1c,
        0xdc, 0x33, 0xa0, 0x02, 0x75, 0xec, 0x95, 0xfa, 0xa8, 0xde, 0x60, 0x8c, 0x04, 0x91, 0x4c, 0x01, 0x00,
        0x3b,
    ];

    #[test]
    fn gif_first_frame_is_decoded() {
        let read = decode(&picture(SAMPLE));
        let pixels = read.pixels.unwrap();
        let (red, blue, white) = ([255, 0, 0], [0, 0, 255], [255; 3]);
        let row = |y: usize| pixels[y * 10..(y + 1) * 10].to_vec();
        assert_eq!(row(0), [vec![red; 5], vec![blue; 5]].concat());
        assert_eq!(row(3), [vec![red; 3], vec![white; 4], vec![blue; 3]].concat());
        assert_eq!(row(9), [vec![blue; 5], vec![red; 5]].concat());
    }

    #[test]
    fn transparent_png_pixels_are_white() {
        let mut map = tiny_skia::Pixmap::new(2, 1).unwrap();
        map.pixels_mut()[0] = tiny_skia::ColorU8::from_rgba(10, 20, 30, 255).premultiply();
        let read = decode(&picture(&map.encode_png().unwrap()));
        assert_eq!((read.sides, &**read.pixels.as_ref().unwrap()), ((2, 1), &vec![[10, 20, 30], [255; 3]]));
    }

    #[test]
    fn broken_image_files_are_errors() {
        let mut map = tiny_skia::Pixmap::new(9, 9).unwrap();
        map.fill(tiny_skia::Color::WHITE);
        let png = map.encode_png().unwrap();
        for file in [SAMPLE, &png] {
            for cut in 24..file.len() {
                for value in [0, 0x7f, 0xff] {
                    let mut bytes = file[..cut].to_vec();
                    let last = bytes.len() - 1;
                    bytes[last] = value;
                    let _ = ImageHeader::of(&bytes).map(|_| decode(&picture(&bytes)));
                }
            }
        }
        assert!(decode(&picture(&png[..40])).pixels.is_err());
        assert!(decode(&picture(&SAMPLE[..30])).pixels.is_err());
    }
}
