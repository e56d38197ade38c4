//! The parts of a page.

/// A part of a page that can have the focus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pane {
    /// The rank table.
    #[default]
    Ranks,
    Charts,
    Evals,
    /// Log lines.
    Log,
    Hosts,
    Events,
    /// The end of the run.
    End,
}

impl Pane {
    /// In reading order.
    pub const ALL: [Pane; 7] =
        [Pane::Ranks, Pane::Charts, Pane::Evals, Pane::Log, Pane::Hosts, Pane::Events, Pane::End];
}
