//! The pages of the screen.

/// A page of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tab {
    /// Totals, ranks, charts, log.
    #[default]
    Overview,
    /// Charts, one or many.
    Charts,
    Evals,
    /// Logs, merged or of one rank.
    Logs,
    /// Links, agents, GPUs.
    Hosts,
    /// What happened.
    Events,
    /// How the run ended.
    End,
}

impl Tab {
    /// All, in the order of their keys.
    pub const ALL: [Tab; 7] =
        [Tab::Overview, Tab::Charts, Tab::Evals, Tab::Logs, Tab::Hosts, Tab::Events, Tab::End];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Tab::Overview => "overview",
            Tab::Charts => "charts",
            Tab::Evals => "evals",
            Tab::Logs => "logs",
            Tab::Hosts => "hosts",
            Tab::Events => "events",
            Tab::End => "end",
        }
    }
}
