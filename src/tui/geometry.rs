//! Where every part of the screen is, as rectangles. [`crate::layout`] computes it.

use crate::pane::Pane;
use ratatui::layout::Rect;

/// Smallest screen that shows pages.
pub const MIN_WIDTH: u16 = 60;
/// Smallest screen that shows pages.
pub const MIN_HEIGHT: u16 = 16;

/// Where everything is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Geometry {
    /// The whole screen.
    pub area: Rect,
    /// Below [`MIN_WIDTH`] x [`MIN_HEIGHT`].
    pub too_small: bool,
    /// Panes have boxes around them rather than a rule above.
    pub boxed: bool,
    /// Name, run, state, time.
    pub title: Rect,
    /// Pages.
    pub tabs: Rect,
    /// Progress to the goal.
    pub progress: Rect,
    /// All-reduced totals beside the sum of the ranks' counters.
    pub totals: Rect,
    /// What is wrong, or how the run ended.
    pub status: Rect,
    /// The page.
    pub body: Rect,
    /// The bar of the time cursor.
    pub time: Rect,
    /// Keys.
    pub footer: Rect,
    /// The panes, their frames included, in the order of [`Pane::ALL`].
    pub(crate) areas: [Rect; Pane::ALL.len()],
    /// Rows of ranks that fit.
    pub rank_rows: usize,
    /// Lines of the log that fit.
    pub log_rows: usize,
    /// Lines that the strip takes; 0: not shown.
    pub strip: u16,
    /// The connections to the hosts are shown instead of the overview.
    pub connecting: bool,
}

impl Geometry {
    /// The part inside the frame of a pane.
    pub fn inside(&self, pane: Rect) -> Rect {
        if self.boxed {
            Rect {
                x: pane.x.saturating_add(2),
                y: pane.y.saturating_add(1),
                width: pane.width.saturating_sub(4),
                height: pane.height.saturating_sub(2),
            }
        } else {
            let x = pane.x.saturating_add(1);
            Rect {
                x,
                y: pane.y.saturating_add(1),
                width: pane.width.saturating_sub(2),
                height: pane.height.saturating_sub(1),
            }
        }
        .intersection(pane)
    }

    /// Rows that a pane's frame takes.
    pub(crate) fn chrome(&self) -> u16 {
        if self.boxed { 2 } else { 1 }
    }

    /// Where a pane is, its frame included; empty where it is not shown.
    pub fn pane(&self, pane: Pane) -> Rect {
        self.areas[pane as usize]
    }

    /// Puts a pane somewhere.
    pub(crate) fn place(&mut self, pane: Pane, area: Rect) {
        self.areas[pane as usize] = area;
    }

    /// The panes of the page that can have the focus, in reading order.
    pub fn panes(&self) -> Vec<Pane> {
        Pane::ALL.into_iter().filter(|pane| !self.pane(*pane).is_empty()).collect()
    }
}
