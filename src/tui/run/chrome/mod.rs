//! The frame of every page: header, totals, status line, timeline, footer.

pub mod footer;
pub mod header;
pub mod status;
pub mod timeline;
pub mod too_small;
pub mod totals;

use crate::run::command::KeyNames;
use crate::run::geometry::Geometry;
use crate::run::{DrawCtx, ViewState, keys};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use std::ops::Deref;

/// What the screen is drawn with.
pub struct Ctx<'a> {
    /// The live run, for alerts and prompts.
    pub live: &'a Model,
    /// What the pages show: the live run, or a frozen one.
    pub model: &'a Model,
    /// The screen's own state.
    pub view: &'a ViewState,
    /// The live time; that of `model` is `draw.now`.
    pub live_now: Timestamp,
    /// Where everything is.
    pub geo: Geometry,
    /// Styles, the time that `model` belongs to, click targets.
    pub draw: DrawCtx<'a>,
}

impl<'a> Deref for Ctx<'a> {
    type Target = DrawCtx<'a>;

    fn deref(&self) -> &DrawCtx<'a> {
        &self.draw
    }
}

impl Ctx<'_> {
    /// The names of keys, as the user has bound them.
    fn keys(&self) -> KeyNames<'_> {
        keys::names(&self.view.steering.keymap, self.glyphs())
    }
}

/// Draws what is above a page.
pub fn draw_above(ctx: &Ctx<'_>, buf: &mut Buffer) {
    header::draw(ctx, buf);
    totals::draw(ctx, buf);
    status::draw(ctx, buf);
}

/// Draws what is below a page.
pub fn draw_below(ctx: &Ctx<'_>, buf: &mut Buffer) {
    timeline::draw(ctx, buf);
    footer::draw(ctx, buf);
}
