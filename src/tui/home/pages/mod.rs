//! The pages of the home screen. A page uses the data, its own state and the kit, but no other page.

pub(super) mod compare;
pub(super) mod experiments;
pub(super) mod fleet;
pub(super) mod runs;

use super::model::Home;
use super::{DrawCtx, HomeCommand, HomeTarget, HomeUi, HomeView, READ_ONLY};
use rankdeck_kit::Target;
use rankdeck_kit::list::{ListPosition, Move};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use std::ops::Range;

/// What home asks of a page.
pub(super) trait PageState {
    /// The selection and scroll position of its list.
    fn position(&self) -> &ListPosition;

    /// The selection and scroll position of its list.
    fn position_mut(&mut self) -> &mut ListPosition;

    /// Returns the names in its list.
    fn names(&self, home: &Home) -> Vec<String>;

    /// Returns the number on its tab.
    fn count(&self, home: &Home) -> usize {
        self.names(home).len()
    }

    /// Returns the area of its list.
    fn list_area(&self, home: &Home, page: Rect) -> Rect;

    /// Returns the rows of the selected item, and the number of all rows.
    fn selected_rows(&self, home: &Home) -> (Range<usize>, usize) {
        let names = self.names(home);
        let at = self.position().index(&names).unwrap_or(0);
        (at..at + 1, names.len())
    }

    /// Selects the first item if none is selected, and forgets what is gone.
    fn settle(&mut self, home: &Home) {
        let names = self.names(home);
        self.position_mut().settle(names);
    }

    /// Moves the selection.
    fn step(&mut self, home: &Home, by: Move) {
        let names = self.names(home);
        self.position_mut().step(&names, by);
    }

    /// The command of a click on the selected item.
    fn open_command(&self) -> Option<HomeCommand> {
        None
    }

    /// Handles a click on an item: the first one selects it, a second one opens it.
    fn on_click(&mut self, name: String) -> Option<HomeCommand> {
        let list = self.position_mut();
        let was_selected = list.is_selected(&name);
        list.selected = Some(name);
        self.open_command().filter(|_| was_selected)
    }

    /// Draws the page. Pure.
    fn draw(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect);
}

/// A key binding of home.
pub(super) type Binding = rankdeck_kit::keys::Binding<HomeUi>;

/// Enabled always.
pub(super) fn enabled(_: &Home, _: &HomeView) -> Option<&'static str> {
    None
}

/// Why nothing can be launched.
fn no_launch(home: &Home, view: &HomeView) -> Option<&'static str> {
    if view.read_only { Some(READ_ONLY) } else { no_experiment(home, view) }
}

fn no_experiment(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.experiments.is_empty().then_some("no experiment file; `rankdeck init` writes one")
}

/// Draws the row of an item in a list; a click on it selects the item.
fn draw_item(
    cx: &DrawCtx<'_>,
    buf: &mut Buffer,
    list: Rect,
    row: usize,
    line: Line<'static>,
    name: &str,
    selected: bool,
) {
    let place = Rect { y: list.y + row as u16, height: 1, ..list };
    cx.target(place, Target::Own(HomeTarget::Item(name.to_owned())));
    cx.row(buf, list, row, line, selected);
}
