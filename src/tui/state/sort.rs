//! How the table of ranks is sorted.

/// Column that the rank table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    Rank,
    /// Host, then rank.
    Host,
    /// GPU or CPU use.
    Use,
    Memory,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Number of the latest collective.
    Collective,
    /// Worst first.
    State,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Sort; 8] = [
        Sort::Rank,
        Sort::Host,
        Sort::State,
        Sort::Use,
        Sort::Memory,
        Sort::EnvStep,
        Sort::Speed,
        Sort::Collective,
    ];

    /// The next column, in the order in which `o` goes through them.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rank => Sort::State,
            Sort::State => Sort::Speed,
            Sort::Speed => Sort::EnvStep,
            Sort::EnvStep => Sort::Use,
            Sort::Use => Sort::Memory,
            Sort::Memory => Sort::Collective,
            Sort::Collective => Sort::Host,
            Sort::Host => Sort::Rank,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Host => "host",
            Sort::Use => "use",
            Sort::Memory => "memory",
            Sort::EnvStep => "env_step",
            Sort::Speed => "steps/s",
            Sort::Collective => "collective",
            Sort::State => "state",
        }
    }
}
