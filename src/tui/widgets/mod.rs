//! Parts that panes share: frames, meters, sparklines, plots, heat maps.

pub mod frame;
pub mod heat;
pub mod meter;
pub mod plot;

use crate::geometry::Geometry;
use crate::state::ViewState;
use crate::target::{Target, Targets};
use crate::text;
use crate::theme::{Glyphs, Role, Theme};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

/// Everything that drawing reads.
pub struct Ctx<'a> {
    /// The present, for alarms and prompts.
    pub live: &'a Model,
    /// What the panes show: the present, or the frozen moment.
    pub model: &'a Model,
    /// The screen's own state.
    pub view: &'a ViewState,
    /// Looks.
    pub theme: &'a Theme,
    /// The moment that `model` belongs to.
    pub now: Timestamp,
    /// The present moment.
    pub live_now: Timestamp,
    /// Where everything is.
    pub geo: Geometry,
    /// What can be clicked, as far as it was drawn.
    pub targets: Targets<Target>,
}

impl Ctx<'_> {
    /// Text with a meaning.
    pub fn s(&self, text: impl Into<String>, role: Role) -> Span<'static> {
        Span::styled(text.into(), self.theme.style(role))
    }

    /// A click there means this.
    pub fn target(&self, place: Rect, target: Target) {
        self.targets.put(place, target);
    }

    /// Which characters may be used.
    pub fn glyphs(&self) -> Glyphs {
        self.theme.glyphs
    }

    /// A separator between facts of a line.
    pub fn dot(&self) -> Span<'static> {
        self.s(format!(" {} ", self.glyphs().pick("·", "-")), Role::Dim)
    }

    /// A label and its value.
    pub fn fact(&self, label: &str, value: impl Into<String>) -> [Span<'static>; 2] {
        [self.s(format!("{label} "), Role::Dim), self.s(value, Role::Text)]
    }

    /// `text` cut to `cells`.
    pub fn cut(&self, text: &str, cells: usize) -> String {
        text::cut(text, cells, self.glyphs())
    }
}

/// What is drawn at `now`, in no particular colours.
pub fn plain<T>(model: &Model, view: &ViewState, now: Timestamp, look: impl FnOnce(&Ctx<'_>) -> T) -> T {
    let theme = Theme::mono().with_glyphs(view.style.glyphs.unwrap_or(Glyphs::Braille));
    let shown = view.shown(model);
    let (geo, targets) = (view.geometry.clone(), Targets::default());
    look(&Ctx { live: model, model: shown, view, theme: &theme, now, live_now: now, geo, targets })
}

/// Draws a line in the row `row` of `area`; nothing outside of it.
pub fn put(buf: &mut Buffer, area: Rect, row: usize, line: impl Into<Line<'static>>) {
    let Ok(row) = u16::try_from(row) else { return };
    if row < area.height {
        let line: Line<'static> = line.into();
        line.render(Rect { y: area.y + row, height: 1, ..area }, buf);
    }
}

/// Draws a line at the right end of a row; not at all when it does not fit beside `taken` cells.
pub fn put_right(buf: &mut Buffer, area: Rect, row: usize, taken: usize, spans: Vec<Span<'static>>) {
    let wide = width(&spans);
    if wide > 0 && taken + wide < usize::from(area.width) {
        let shift = area.width - wide as u16;
        put(buf, Rect { x: area.x + shift, width: wide as u16, ..area }, row, Line::from(spans));
    }
}

/// Cells that spans take.
pub fn width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(Span::width).sum()
}

/// Joins groups of spans as long as they fit in `cells`; the first always stays.
pub fn fit(ctx: &Ctx<'_>, groups: Vec<Vec<Span<'static>>>, cells: usize) -> Vec<Span<'static>> {
    let mut out: Vec<Span<'static>> = Vec::new();
    for group in groups.into_iter().filter(|group| !group.is_empty()) {
        if out.is_empty() {
            out = group;
        } else if width(&out) + 3 + width(&group) <= cells {
            out.push(ctx.dot());
            out.extend(group);
        }
    }
    out
}
