//! Columns of the rank table: which there are, and what they are called.

/// A column of the rank table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Global index.
    Rank,
    /// Name of its host.
    Host,
    /// `cuda:0`.
    Device,
    /// GPU or CPU use.
    Use,
    /// CPU use beside that of the GPU.
    Cpu,
    /// Memory of its GPU, or of the process.
    Memory,
    /// Power of its GPU.
    Power,
    /// What it does.
    Phase,
    /// Training iteration.
    Iteration,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Latest collective.
    Collective,
    /// How it is.
    State,
    /// Use over time.
    History,
    Pid,
}

impl Column {
    /// All, in reading order.
    pub const ALL: [Column; 15] = [
        Column::Rank,
        Column::Host,
        Column::Device,
        Column::State,
        Column::Use,
        Column::History,
        Column::Cpu,
        Column::Memory,
        Column::Power,
        Column::Phase,
        Column::Iteration,
        Column::EnvStep,
        Column::Speed,
        Column::Collective,
        Column::Pid,
    ];

    /// Its name in `ui.toml` and in the palette.
    pub fn name(self) -> &'static str {
        match self {
            Column::Rank => "rank",
            Column::Host => "host",
            Column::Device => "device",
            Column::Use => "use",
            Column::Cpu => "cpu",
            Column::Memory => "memory",
            Column::Power => "power",
            Column::Phase => "phase",
            Column::Iteration => "iter",
            Column::EnvStep => "env_step",
            Column::Speed => "speed",
            Column::Collective => "collective",
            Column::State => "state",
            Column::History => "history",
            Column::Pid => "pid",
        }
    }
}
