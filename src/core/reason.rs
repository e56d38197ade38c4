//! Why: the closed list of reasons that a verdict may give. The names are part of the JSON schema (`reason_code`) and never change.

use crate::report::VerdictKind;
use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $kind:ident;)*) => {
        /// Why.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $($(#[$doc])* $name,)*
            /// Nothing that was looked at explains it; also what a newer console may have said.
            #[default]
            #[serde(other)]
            Unknown,
        }

        impl Reason {
            /// All reasons, for documents and tests.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)* Reason::Unknown];

            /// The word in JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                    Reason::Unknown => "unknown",
                }
            }

            /// The kind of verdict that this reason belongs to.
            pub fn kind(self) -> VerdictKind {
                match self {
                    $(Reason::$name => VerdictKind::$kind,)*
                    Reason::Unknown => VerdictKind::Behind,
                }
            }
        }
    };
}

reasons! {
    /// A signal ended the process from outside.
    Killed = "killed", Dead;
    /// The kernel's out-of-memory killer ended it.
    OutOfMemory = "out_of_memory", Dead;
    /// It crashed (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL).
    Crashed = "crashed", Dead;
    /// It ended with an error.
    Failed = "failed", Dead;
    /// It could not be started.
    NotStarted = "not_started", Dead;
    /// No space was left where it wrote.
    DiskFull = "disk_full", Dead;
    /// The rendezvous port belonged to another process.
    PortTaken = "port_taken", Dead;
    /// A connection to another rank broke: a victim.
    ConnectionLost = "connection_lost", Dead;
    /// It was ended by a message of the wrong size from another rank: a victim.
    MismatchAbort = "mismatch_abort", Dead;
    /// The host says nothing, and the others wait for its ranks.
    HostSilent = "host_silent", Lost;
    /// The link stands but the agent says nothing.
    AgentSilent = "agent_silent", Lost;
    /// Only this console has lost the host: the other ranks go on with its ranks.
    LinkLost = "link_lost", Lost;
    /// Stopped by a signal.
    Stopped = "stopped", Frozen;
    /// Held by a debugger or tracer.
    Debugger = "debugger", Frozen;
    /// Its cgroup or container is frozen.
    CgroupFrozen = "cgroup_frozen", Frozen;
    /// It ended with exit code 0 while the others go on.
    LeftEarly = "left_early", Behind;
    /// Its host has more to run than cores.
    HostOverloaded = "host_overloaded", Behind;
    /// Blocked in the kernel, as on storage that does not answer.
    Storage = "storage", Behind;
    /// Its memory is being paged in and out.
    Thrashing = "thrashing", Behind;
    /// A worker process of its environment has ended.
    EnvWorkerDied = "env_worker_died", EnvStuck;
    /// It waits for workers of its environment, none of which does anything.
    EnvWorkerDeadlocked = "env_worker_deadlocked", EnvStuck;
    /// Its environment works, but takes long.
    SlowEnv = "slow_env", Behind;
    /// A thread holds the Python interpreter lock.
    GilHeld = "gil_held", Behind;
    /// Evaluation, checkpoint or start-up that makes progress.
    ExpectedWait = "expected_wait", Behind;
    /// It burns CPU without progress.
    Spinning = "spinning", Behind;
    /// It waits for a lock in local code.
    Lock = "lock", Behind;
    /// It sleeps in local code.
    Sleeping = "sleeping", Behind;
    /// It waits for something from the network outside a collective.
    WaitsForPeer = "waits_for_peer", Behind;
    /// It does not get through the end of the run.
    TeardownStall = "teardown_stall", Behind;
    /// It has not come to the rendezvous.
    RendezvousIncomplete = "rendezvous_incomplete", Behind;
    /// All have come, and the group does not form.
    RendezvousBlocked = "rendezvous_blocked", Behind;
    /// It is still inside an earlier collective that the others have left.
    InsideEarlier = "inside_earlier", Behind;
    /// Everybody is inside the same collective and nothing tells who holds it up.
    InsideCollective = "inside_collective", Behind;
    /// Another operation than the others' under the same number.
    OpMismatch = "op_mismatch", Desync;
    /// The same operation with another count, element type or root.
    SizeMismatch = "size_mismatch", Desync;
    /// It left out a collective that the others made.
    SkippedCall = "skipped_call", Desync;
    /// It made a collective that the others did not make.
    ExtraCall = "extra_call", Desync;
    /// Its collectives belong to other training steps than the others', without any error.
    SilentShift = "silent_shift", Desync;
    /// Ranks wait for each other in different groups, in a ring.
    OrderDeadlock = "order_deadlock", Desync;
    /// It updates its weights without any collective.
    NoCollectives = "no_collectives", Desync;
    /// A network interface of the group is down.
    LinkDown = "link_down", Network;
    /// Messages between hosts are not acknowledged.
    NetworkLoss = "network_loss", Network;
    /// Messages are lost in one direction only.
    OneWayLoss = "one_way_loss", Network;
    /// The driver reported an error of its GPU.
    GpuFault = "gpu_fault", Gpu;
    /// The driver has lost its GPU.
    GpuLost = "gpu_lost", Gpu;
    /// Its CPU quota is used up.
    Throttled = "throttled", Straggler;
    /// Its host is short of memory.
    MemoryPressure = "memory_pressure", Straggler;
    /// Its host has more to run than cores.
    CpuPressure = "cpu_pressure", Straggler;
    /// Its GPU runs at a reduced clock.
    GpuThrottled = "gpu_throttled", Straggler;
    /// It computes longer than the others.
    SlowCompute = "slow_compute", Straggler;
    /// Its environments take longer than the others'.
    SlowEnvironment = "slow_environment", Straggler;
    /// It comes last, and nothing tells why.
    Late = "late", Straggler;
    /// Replicas have different weights.
    WeightsDiffer = "weights_differ", Drift;
    /// Totals are not the sum of the ranks' own counters.
    TotalsDiffer = "totals_differ", TotalsDiffer;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_json_says_and_unknown_ones_are_read() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_string(reason).unwrap(), format!("\"{}\"", reason.name()));
        }
        assert_eq!(serde_json::from_str::<Reason>("\"to_be_invented\"").unwrap(), Reason::Unknown);
    }
}
