//! Arguments of the commands that need no host: `demo`, `simulate`.

use super::OutputArgs;
use super::values::parse_until;
use clap::Args;
use rankdeck_types::plan::Until;

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Hosts.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub nnodes: u32,
    /// Ranks per host, each with a GPU.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Same seed, same run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Hosts.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub nnodes: u32,
    /// Ranks per host.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Give every rank a GPU.
    #[arg(long)]
    pub gpus: bool,
    /// Same seed, same run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Global environment steps after which it ends; 0: never.
    #[arg(long, default_value_t = 0)]
    pub steps: u64,
    /// Milliseconds per training iteration.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub iteration_ms: u64,
    /// `freeze|behind|env|slow|kill|fail|drift:RANK@SECONDS[+DURATION]`, `lose:NODE@SECONDS[+DURATION]` or
    /// `survive:NODE@0`; may be repeated.
    #[arg(long, value_name = "FAULT", value_parser = rankdeck_link::simulator::parse_fault)]
    pub fault: Vec<rankdeck_link::simulator::Fault>,
    /// What to do about a stuck rank: `report`, `stop` or `restart`.
    #[arg(long, default_value = "report")]
    pub on_stuck: String,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`.
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub until: Vec<Until>,
    /// Leave once it runs.
    #[arg(long)]
    pub detach: bool,
    /// Record into `runs/` as a real run does.
    #[arg(long)]
    pub record: bool,
}
