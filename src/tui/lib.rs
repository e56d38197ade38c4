//! What is shown: `view(&Model, &ViewState, &Theme)` and keys as data.
//!
//! Owner: the shell calls [`layout`], then [`view`], for each frame, and [`on_key`], [`on_mouse`],
//! [`on_paste`] for each input; it carries out the [`Action`]s. Nothing here knows a clock, a terminal or a
//! host. Invariants:
//! - [`view`] is a pure function of its arguments.
//! - UI-2: a selection is an id, never a row ([`state`]).
//! - UI-3: failed and stuck ranks ignore filters ([`ranks`]).
//! - UI-4: every command has a key, and says why when it cannot be used ([`keys`]).
//! - Nothing here animates: without an event, a toast's end or a tick there is nothing to draw.
//! - UI-6: stop and quit work on the "too small" screen and while the view is frozen.
//! - UI-11: neither [`layout`] nor [`view`] panics, whatever the size of the screen and whatever the model
//!   holds.

mod borders;
pub mod chart_file;
mod chart_png;
mod chart_shape;
pub mod chart_view;
mod column;
mod commands;
pub mod compare;
mod confirm;
mod copy;
mod fresh;
pub mod geometry;
mod glossary;
mod heat;
mod heat_file;
pub mod home;
mod input;
pub mod keys;
pub mod layout;
pub mod linear;
mod log_filter;
mod log_view;
mod log_walk;
mod logs;
mod overlays;
pub mod palette;
pub mod pane;
pub mod pane_sizes;
mod panes;
mod picture_file;
pub mod play;
pub mod ranks;
mod reach;
pub mod report;
pub mod restart_draft;
mod speeds;
pub mod state;
mod target;
pub mod text;
pub mod theme;
pub mod time;
mod widgets;

pub use fresh::next_change;
pub use input::{on_key, on_mouse, on_paste};
pub use layout::layout;
pub use overlays::pictures::apart as picture_apart;
pub use picture_file::DecodedPicture;
pub use state::{Action, ViewState};
pub use theme::{Glyphs, Role, Theme};

use crate::widgets::Ctx;
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;
use ratatui::Frame;

/// Draws one frame: the run as `model` knows it, at `now` on the console's monotonic clock. Pure.
pub fn view(model: &Model, view: &ViewState, theme: &Theme, now: Timestamp, frame: &mut Frame<'_>) {
    let area = frame.area();
    let ctx = Ctx {
        live: model,
        model: view.shown(model),
        view,
        theme,
        now: view.moment.frozen.as_ref().map_or(now, |frozen| frozen.at),
        live_now: now,
        // Computed again rather than taken from the last layout: the model may have changed since.
        geo: layout::geometry(model, view, area),
        targets: Default::default(),
    };
    let buf = frame.buffer_mut();
    if ctx.geo.too_small {
        overlays::too_small::draw(&ctx, buf);
        return;
    }
    panes::header::draw(&ctx, buf);
    panes::totals::draw(&ctx, buf);
    panes::status::draw(&ctx, buf);
    if ctx.geo.connecting && view.tab == state::Tab::Overview {
        panes::connecting::draw(&ctx, buf);
    } else {
        panes::ranks::draw(&ctx, buf);
        panes::charts::draw(&ctx, buf);
        panes::evals::draw(&ctx, buf);
        panes::logs::draw(&ctx, buf);
        panes::hosts::draw(&ctx, buf);
        panes::events::draw(&ctx, buf);
        panes::end::draw(&ctx, buf);
    }
    panes::time::draw(&ctx, buf);
    panes::footer::draw(&ctx, buf);
    overlays::draw(&ctx, buf);
}
