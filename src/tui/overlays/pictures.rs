//! Pictures that the program has logged: one at a time, by name and step, at the moment that is shown.

use crate::picture_file::{DecodedPicture, decode};
use crate::play::{Colours, picture};
use crate::state::{Action, Overlay, PictureChoice, SavedFile, ViewState};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, fit, frame, put};
use rankdeck_core::model::{Model, Picture};
use rankdeck_proto::media::{self, PictureFormat};
use rankdeck_types::words::{bytes, clean};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Rows above the picture.
const ABOVE: u16 = 3;

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct ShownPicture<'a> {
    pub name: &'a str,
    pub picture: &'a Picture,
    /// Its place among those of its name, from 0, and how many these are.
    pub place: (usize, usize),
    /// The same of its name.
    pub named: (usize, usize),
}

/// The picture that a choice means; where it is not there any more, or not yet, the nearest before it.
pub fn shown<'a>(model: &'a Model, choice: &PictureChoice) -> Option<ShownPicture<'a>> {
    let names: Vec<&String> = model.gallery.names().map(|(name, _)| name).collect();
    let at = names.iter().position(|name| Some(*name) == choice.name.as_ref()).unwrap_or(0);
    let name = *names.get(at)?;
    let all = model.gallery.of(name)?;
    let nth =
        choice.number.map_or(all.len(), |number| all.partition_point(|one| one.number <= number).max(1));
    let nth = nth.checked_sub(1)?;
    Some(ShownPicture { name, picture: all.get(nth)?, place: (nth, all.len()), named: (at, names.len()) })
}

/// The choice so many pictures of this name further on; the newest is followed.
pub fn step(model: &Model, choice: &PictureChoice, by: i64) -> PictureChoice {
    let Some(now) = shown(model, choice) else { return choice.clone() };
    let to = (now.place.0 as i64).saturating_add(by).clamp(0, now.place.1 as i64 - 1) as usize;
    let number = model.gallery.of(now.name).and_then(|all| all.get(to)).map(|one| one.number);
    let number = if to + 1 == now.place.1 { None } else { number };
    PictureChoice { name: Some(now.name.to_owned()), number }
}

/// The choice so many names further on: its newest picture.
pub fn other(model: &Model, choice: &PictureChoice, by: i64) -> PictureChoice {
    let Some(now) = shown(model, choice) else { return choice.clone() };
    let to = (now.named.0 as i64 + by).rem_euclid(now.named.1 as i64) as usize;
    let name = model.gallery.names().nth(to).map(|(name, _)| name.clone());
    PictureChoice { name, number: None }
}

/// The picture as a file.
pub fn export(model: &Model, choice: &PictureChoice) -> Option<Action> {
    let now = shown(model, choice)?;
    let (_, file) = media::decoded(&now.picture.data).ok()?;
    let ending = now.picture.head.format.ending();
    Some(Action::SaveFiles(vec![SavedFile { stem: "picture", ending, bytes: file }]))
}

/// Reads the file of the picture that is shown, once.
pub fn prepare(model: &Model, view: &mut ViewState) {
    let wanted = match view.overlay() {
        Some(Overlay::Pictures(choice)) => shown(view.shown(model), choice).map(|now| now.picture),
        _ => None,
    };
    match wanted {
        Some(picture) if view.decoded.as_ref().is_some_and(|known| known.number == picture.number) => {}
        Some(picture) => view.decoded = Some(decode(picture)),
        None => view.decoded = None,
    }
}

fn size(screen: Rect) -> (u16, u16) {
    (screen.width.saturating_sub(6), screen.height.saturating_sub(4))
}

/// Where the picture goes within a box.
fn room(inner: Rect) -> Rect {
    let height = inner.height.saturating_sub(ABOVE);
    Rect { y: inner.y + ABOVE.min(inner.height), height, ..inner }
}

/// The picture that somebody else may draw, and where.
pub fn apart(view: &ViewState, screen: Rect) -> Option<(&DecodedPicture, Rect)> {
    let Some(Overlay::Pictures(_)) = view.overlay() else { return None };
    let decoded = view.decoded.as_ref().filter(|decoded| decoded.pixels.is_ok())?;
    let area = room(frame::popup_inside(screen, size(screen)));
    let area = picture::area_for(decoded.sides.0, decoded.sides.1, area);
    (area.width > 0 && area.height > 0 && !view.geometry.too_small).then_some((decoded, area))
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, choice: &PictureChoice) {
    let inner = frame::popup(ctx, buf, size(ctx.geo.area), Role::Accent, "pictures of the program", "");
    if inner.is_empty() {
        return;
    }
    let Some(now) = shown(ctx.model, choice) else {
        put(buf, inner, 0, Line::from(ctx.s(absent(ctx.model), Role::Dim)));
        return;
    };
    put(buf, inner, 0, Line::from(head(ctx, &now, usize::from(inner.width))));
    put(buf, inner, 1, Line::from(facts(ctx, &now, choice, usize::from(inner.width))));
    let fresh;
    let decoded = match ctx.view.decoded.as_ref().filter(|known| known.number == now.picture.number) {
        Some(known) => known,
        None => {
            fresh = decode(now.picture);
            &fresh
        }
    };
    let area = room(inner);
    match &decoded.pixels {
        Err(why) => {
            put(buf, area, 0, Line::from(ctx.s(format!("cannot be drawn: {}", clean(why)), Role::Warn)))
        }
        Ok(_) if ctx.view.style.drawn_apart => {}
        Ok(pixels) => {
            let colours = if ctx.theme.name == "mono" { Colours::None } else { ctx.view.style.colours };
            let area = picture::area_for(decoded.sides.0, decoded.sides.1, area);
            let sides = (decoded.sides.0 as usize, decoded.sides.1 as usize);
            picture::draw(ctx.theme, colours, buf, area, pixels, sides);
        }
    }
}

/// Why there is nothing to see.
fn absent(model: &Model) -> &'static str {
    match model.plan.as_ref().is_some_and(|plan| plan.is_builtin()) {
        true => "the built-in trainer logs no pictures; `v` shows its policy",
        false => {
            "no pictures; `rankdeck.image` logs them, and `[metrics] tensorboard` finds those of a SummaryWriter"
        }
    }
}

fn head(ctx: &Ctx<'_>, now: &ShownPicture<'_>, cells: usize) -> Vec<Span<'static>> {
    let (at, all) = now.named;
    let mut groups = vec![vec![ctx.s(ctx.cut(&clean(now.name), cells), Role::Strong)]];
    if all > 1 {
        groups.push(vec![ctx.s(format!("name {} of {all}", at + 1), Role::Dim)]);
    }
    fit(ctx, groups, cells)
}

fn facts(ctx: &Ctx<'_>, now: &ShownPicture<'_>, choice: &PictureChoice, cells: usize) -> Vec<Span<'static>> {
    let picture = now.picture;
    let newest = if choice.number.is_none() { ", the newest" } else { "" };
    let mut groups = vec![
        vec![ctx.s("step ", Role::Dim), ctx.s(text::si(picture.place.step), Role::Strong)],
        vec![ctx.s(format!("{} of {}{newest}", now.place.0 + 1, now.place.1), Role::Text)],
        vec![ctx.s(format!("{} x {}", picture.head.width, picture.head.height), Role::Text)],
        vec![ctx.s(bytes(media_bytes(picture)), Role::Dim)],
    ];
    if picture.head.format == PictureFormat::Gif {
        groups.push(vec![ctx.s("GIF, its first frame", Role::Dim)]);
    }
    if ctx.model.drops.withheld > 0 {
        let skipped = text::count_in(ctx.model.drops.withheld, 7);
        groups.push(vec![ctx.s(format!("{skipped} not passed on"), Role::Dim)]);
    }
    fit(ctx, groups, cells)
}

/// Bytes of a picture's file.
fn media_bytes(picture: &Picture) -> u64 {
    let padding = picture.data.bytes().rev().take_while(|byte| *byte == b'=').count();
    (picture.data.len() / 4 * 3).saturating_sub(padding) as u64
}

/// Every name in a line, as plain text.
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
