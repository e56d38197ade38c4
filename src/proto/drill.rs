//! The order of `rankdeck drill` to the host of a rank: how to break a run that was launched for it.

use rankdeck_types::ids::{Rank, RunId};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The line that an agent prints when it has struck; its reply may come later.
pub const STRUCK: &str = "struck";

/// Appended to the name of a rank's status page: the file that requests an exception.
pub const RAISE: &str = ".raise";

/// What an agent does to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrillFault {
    /// SIGSTOP to the main program of a rank.
    Freeze,
    /// SIGKILL to it.
    Kill,
    /// SIGSTOP and SIGCONT in turn.
    Slow,
    /// An exception in its main thread.
    Exception,
    /// SIGKILL to the agent itself.
    Agent,
}

impl DrillFault {
    const ALL: [DrillFault; 5] =
        [DrillFault::Freeze, DrillFault::Kill, DrillFault::Slow, DrillFault::Exception, DrillFault::Agent];

    /// The word in an order.
    pub fn name(self) -> &'static str {
        match self {
            DrillFault::Freeze => "freeze",
            DrillFault::Kill => "kill",
            DrillFault::Slow => "slow",
            DrillFault::Exception => "exception",
            DrillFault::Agent => "agent",
        }
    }
}

impl FromStr for DrillFault {
    type Err = ();

    fn from_str(text: &str) -> Result<DrillFault, ()> {
        DrillFault::ALL.into_iter().find(|fault| fault.name() == text).ok_or(())
    }
}

/// An order to the host of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrillOrder {
    pub run: RunId,
    pub rank: Rank,
    pub fault: DrillFault,
    /// Longest time that it takes.
    pub seconds: u64,
    /// How long a slow rank runs in one go, ms; it is suspended four times as long. Less than a training step, so that
    /// every step is slow.
    pub slice_ms: u64,
}

/// [`DrillOrder::slice_ms`] of a program whose steps are unknown.
pub const SLICE_MS: u64 = 25;

impl DrillOrder {
    /// The options of `agent drill` besides `--workdir`.
    pub fn words(&self) -> Vec<String> {
        let (rank, seconds, slice) =
            (self.rank.to_string(), self.seconds.to_string(), self.slice_ms.to_string());
        let options = [
            ("--run", self.run.0.as_str()),
            ("--rank", rank.as_str()),
            ("--fault", self.fault.name()),
            ("--seconds", seconds.as_str()),
            ("--slice-ms", slice.as_str()),
        ];
        options.iter().flat_map(|(name, value)| [*name, *value]).map(str::to_owned).collect()
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrillReply {
    /// The processes that were struck.
    pub pids: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_read_by_its_name() {
        for fault in DrillFault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert_eq!("fly".parse::<DrillFault>(), Err(()));
    }
}
