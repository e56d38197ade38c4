//! What a console and an agent say to each other, and what a rank says to its agent.
//!
//! ```text
//! console       ConsoleMessage: console to agent, a handful of orders
//! agent         AgentMessage: agent to console
//! record        Record: durable events, written to the agent's spool before they are sent, numbered without
//!               gaps, delivered at least once
//! rank_event    RankEvent: JSON Lines on the agent's event socket, from the rank itself; any program may
//!               send them
//! sample        HostSample: gauges; they may be coalesced or dropped, and every drop is counted in `dropped`
//! page_sample   PageSample: a rank's status page within a sample
//! collective    CollectiveCall: what a rank passed to a collective, alone and within other messages
//! ```
//!
//! Compatibility: fields are only ever added, with `#[serde(default)]`; kinds that a reader does not know
//! decode to `Unknown`.

mod agent;
mod collective;
mod console;
mod ending;
mod page_sample;
mod rank_event;
mod record;
mod sample;

pub use agent::{AgentMessage, LinesRead, RankSnapshot};
pub use collective::{CollectiveCall, CollectiveSample, RecentCollective};
pub use console::{AwayNotices, ConsoleMessage, LaunchHash, LaunchSpec, Private, StopMode};
pub use ending::{Ending, Outcome};
pub use page_sample::{Activity, FingerprintSample, GroupSample, IterationSample, PageSample, Phase};
pub use rank_event::{
    Counters, Evaluation, Exception, FailureKind, FinishReason, LoggedHistogram, LoggedImage, RankEvent,
    Returns,
};
pub use rankdeck_types::exit::Exit;
pub use record::{Record, RecordEvent, Survivor};
pub use sample::{
    CgroupSample, ChildSample, GpuInstance, GpuSample, HostSample, HostSignals, LinkSample, MainThread,
    RankSample, RankSignals, calm_round,
};

/// Version of this vocabulary; `attach` and `hello` carry it, and a mismatch ends the connection with a clear
/// error.
pub const PROTOCOL: u32 = 1;
