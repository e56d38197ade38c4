//! The parts of the screen and where they are, as rectangles. [`crate::run::layout`] computes them.

use ratatui::layout::Rect;

/// Smallest screen that shows pages.
pub const MIN_WIDTH: u16 = 60;
/// Smallest screen that shows pages.
pub const MIN_HEIGHT: u16 = 16;

/// A page of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tab {
    /// Totals, ranks, charts, log.
    #[default]
    Overview,
    /// Charts, one or many.
    Charts,
    /// Rank 0's evaluations.
    Evals,
    /// Logs, merged or of one rank.
    Logs,
    /// Links, agents, GPUs.
    Hosts,
    /// What happened.
    Events,
    /// How the run ended.
    Outcome,
}

impl Tab {
    /// All, in the order of their keys.
    pub const ALL: [Tab; 7] =
        [Tab::Overview, Tab::Charts, Tab::Evals, Tab::Logs, Tab::Hosts, Tab::Events, Tab::Outcome];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Tab::Overview => "overview",
            Tab::Charts => "charts",
            Tab::Evals => "evals",
            Tab::Logs => "logs",
            Tab::Hosts => "hosts",
            Tab::Events => "events",
            Tab::Outcome => "outcome",
        }
    }
}

/// A part of a page that can have the focus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pane {
    /// The rank table.
    #[default]
    Ranks,
    /// Charts.
    Charts,
    /// Evaluations.
    Evals,
    /// Log lines.
    Log,
    /// Hosts.
    Hosts,
    /// Events.
    Events,
    /// How the run ended.
    Outcome,
}

impl Pane {
    /// In reading order.
    pub const ALL: [Pane; 7] =
        [Pane::Ranks, Pane::Charts, Pane::Evals, Pane::Log, Pane::Hosts, Pane::Events, Pane::Outcome];

    /// Its heading on the help page.
    pub fn name(self) -> &'static str {
        match self {
            Pane::Ranks => "ranks",
            Pane::Charts => "charts",
            Pane::Evals => "evals",
            Pane::Log => "logs",
            Pane::Hosts => "hosts",
            Pane::Events => "events",
            Pane::Outcome => "outcome",
        }
    }
}

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
    /// All-reduced totals next to the sum of the ranks' counters.
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

/// Splits a rectangle into columns by weights; the last takes what is left.
pub fn columns(area: Rect, weights: &[u16]) -> Vec<Rect> {
    let sum = weights.iter().map(|w| u32::from(*w)).sum::<u32>().max(1);
    let mut x = area.x;
    let mut parts = Vec::with_capacity(weights.len());
    for (i, weight) in weights.iter().enumerate() {
        let width = if i + 1 == weights.len() {
            area.right().saturating_sub(x)
        } else {
            (u32::from(area.width) * u32::from(*weight) / sum) as u16
        };
        parts.push(Rect { x, width, ..area });
        x += width;
    }
    parts
}
