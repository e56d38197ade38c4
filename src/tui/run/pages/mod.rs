//! The pages of the run screen, one module each.
//!
//! A page owns its state, keys, drawing, copying and mouse. It reads the model and [`Shared`]; what concerns other
//! pages or overlays it requests.

pub mod charts;
pub mod evals;
pub mod events;
pub mod hosts;
pub mod logs;
pub mod outcome;
pub mod ranks;

use crate::run::action::Request;
use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::geometry::{Geometry, Pane};
use crate::run::shared::Shared;
use crate::run::words::Verb;
use crate::run::{DrawCtx, RunScreen, RunTarget};
use rankdeck_core::model::Model;
use rankdeck_kit::keys::KeyTable;
use rankdeck_kit::{Glyphs, Role, Theme, frame};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::Span;
use std::ops::Deref;

/// The result of a typed command: requests, or an error for the user.
pub type WordResult = Result<Vec<Request>, String>;

/// What the screen asks of a page.
pub trait Page {
    /// Draws the pane.
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer);

    /// Clamps selection and scroll position before drawing.
    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let _ = cx;
    }

    /// Moves the selection, or scrolls; down is positive.
    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>);

    /// Returns plain text of what is selected, for the clipboard.
    fn copy(&self, cx: &PageCx<'_>) -> String;

    /// Executes a command; `None`: it is not one of this page.
    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        let _ = (command, cx);
        None
    }

    /// Runs a typed command; `None`: it is not one of this page.
    fn run_word(&mut self, verb: Verb, arguments: &[&str], cx: &mut PageCx<'_>) -> Option<WordResult> {
        let _ = (verb, arguments, cx);
        None
    }

    /// Completes the arguments of a typed command; `None`: it is not one of this page.
    fn completions(&self, verb: Verb, model: &Model) -> Option<Vec<String>> {
        let _ = (verb, model);
        None
    }

    /// Handles a click that did not hit a target of its drawing.
    fn click(&mut self, at: Position, cx: &mut PageCx<'_>) -> Vec<Request> {
        let _ = (at, cx);
        Vec::new()
    }

    /// Handles the mouse on a target of its drawing; `None`: it has no use for it.
    fn on_target(
        &mut self,
        target: &RunTarget,
        mouse: TargetMouse,
        cx: &mut PageCx<'_>,
    ) -> Option<Vec<Request>> {
        let _ = (target, mouse, cx);
        None
    }

    /// The filter that is typed with `/`.
    fn filter(&mut self) -> Option<&mut String> {
        None
    }

    /// Follows a change of the filter.
    fn on_filter(&mut self, change: FilterChange) {
        let _ = change;
    }

    /// Clears the filter; true if there was one.
    fn clear_filter(&mut self) -> bool {
        let had_filter = self.filter().is_some_and(|filter| !std::mem::take(filter).is_empty());
        if had_filter {
            self.on_filter(FilterChange::Cleared);
        }
        had_filter
    }

    /// Leaves one transient state, the innermost first; true if there was one.
    fn back(&mut self) -> bool {
        self.clear_filter()
    }
}

/// What the mouse does with a target; positions are shares of the target's width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TargetMouse {
    /// A click of the left button; `focused`: the pane had the focus before.
    Click { at: f64, focused: bool },
    /// The left button is held.
    Drag { at: f64 },
    /// A click of the right button.
    Pin { at: f64 },
    /// Turns of the wheel; down is positive.
    Wheel { at: f64, turns: i64 },
}

/// What has become of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterChange {
    /// It is about to be typed.
    Opened,
    /// A key has edited it.
    Typed,
    /// It was cleared.
    Cleared,
}

/// Where a page is, and what of the screen's state concerns it.
#[derive(Clone, Copy)]
pub struct PagePlacement<'a> {
    /// Its pane.
    pub pane: Pane,
    /// Where everything is.
    pub geo: &'a Geometry,
    /// It is the whole page, not a pane of the overview.
    pub own_page: bool,
    /// The pane is zoomed.
    pub zoomed: bool,
    /// Keys go to it.
    pub focused: bool,
    /// Its filter is being typed.
    pub typing: bool,
    /// An overlay is open.
    pub covered: bool,
    /// The keys of the screen, for hints.
    pub keys: &'static KeyTable<RunScreen>,
}

impl PagePlacement<'_> {
    /// The pane, its frame included.
    pub fn area(&self) -> Rect {
        self.geo.pane(self.pane)
    }

    /// The part inside the frame.
    pub fn inner(&self) -> Rect {
        self.geo.inside(self.area())
    }

    /// Rows inside the frame.
    pub fn rows(&self) -> usize {
        usize::from(self.inner().height)
    }
}

/// What a page handles inputs with.
pub struct PageCx<'a> {
    /// What the pages show: the live run, or a frozen one.
    pub model: &'a Model,
    /// The live run.
    pub live: &'a Model,
    /// What it shares with others.
    pub shared: &'a mut Shared,
    /// The rank that keys act on (UI-13).
    pub rank: Option<Rank>,
    /// Where the page is.
    pub place: PagePlacement<'a>,
    /// When the input arrived.
    pub now: Timestamp,
}

impl PageCx<'_> {
    /// Draws without colors, to find out what lies where.
    pub fn plain<T>(&self, draw: impl FnOnce(&PageDrawCtx<'_>) -> T) -> T {
        let theme = Theme::mono().with_glyphs(self.shared.style.glyphs.unwrap_or(Glyphs::Braille));
        let cx = DrawCtx::new(&theme, self.shared.moment.now, self.place.geo.area);
        let PageCx { model, rank, place, .. } = *self;
        draw(&PageDrawCtx { model, shared: &*self.shared, rank, place, draw: &cx })
    }
}

/// What a page is drawn with.
pub struct PageDrawCtx<'a> {
    /// What the pages show: the live run, or a frozen one.
    pub model: &'a Model,
    /// What it shares with others.
    pub shared: &'a Shared,
    /// The rank that keys act on (UI-13).
    pub rank: Option<Rank>,
    /// Where the page is.
    pub place: PagePlacement<'a>,
    /// Styles, the time that `model` belongs to, click targets.
    pub draw: &'a DrawCtx<'a>,
}

impl<'a> Deref for PageDrawCtx<'a> {
    type Target = DrawCtx<'a>;

    fn deref(&self) -> &DrawCtx<'a> {
        self.draw
    }
}

impl PageDrawCtx<'_> {
    /// Draws the frame of a pane with its title and, where it fits, more on the right. Returns the area inside.
    pub fn pane(
        &self,
        buf: &mut Buffer,
        area: Rect,
        title: Vec<Span<'static>>,
        info: Vec<Span<'static>>,
    ) -> Rect {
        if area.is_empty() {
            return Rect::default();
        }
        let PagePlacement { geo, own_page, zoomed, focused, covered, .. } = self.place;
        let several = !own_page && !zoomed && !geo.connecting;
        let line = if focused && !covered && several { self.theme.focus } else { self.theme.border };
        frame::pane(self.theme, buf, area, (geo.boxed, line), title, info);
        geo.inside(area)
    }

    /// A title: a word, and a number or more after it.
    pub fn title(&self, word: &str, more: impl Into<String>) -> Vec<Span<'static>> {
        let more = more.into();
        let mut spans = vec![self.s(word, if self.place.focused { Role::Accent } else { Role::Strong })];
        if !more.is_empty() {
            spans.push(self.s(format!(" {more}"), Role::Dim));
        }
        spans
    }

    /// The filter, as it stands in the frame: what was typed, and the caret while it is being typed.
    pub fn typed_filter(&self, filter: &str, cells: usize) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        if !filter.is_empty() || self.place.typing {
            spans.push(self.s(format!("/{}", self.cut(filter, cells)), Role::Accent));
        }
        if self.place.typing {
            spans.push(self.caret());
        }
        spans
    }

    /// The names of keys, as the user has bound them.
    pub fn keys(&self) -> KeyNames<'_> {
        KeyNames { table: self.place.keys, keymap: &self.shared.steering.keymap, glyphs: self.glyphs() }
    }
}

/// The row a number of rows below another in a list.
fn step(at: usize, rows: i64, len: usize) -> usize {
    (at as i64).saturating_add(rows).clamp(0, len.saturating_sub(1) as i64) as usize
}
