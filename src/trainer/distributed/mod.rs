//! Process group and data-parallel training.
//!
//! One [`ProcessGroup`] over our own TCP connections (CPU), NCCL (GPU) or nothing (one rank); [`Ddp`] on top
//! of it.
//!
//! Invariants, cited by tests/library/distributed/mod.rs:
//! - DIST-1: every collective is numbered, tagged and on the status page before it can block, and left only
//!   when it succeeded.
//! - DIST-2: nothing here waits without a limit; when time is up, the error names the collective.
//! - DIST-3: no failure of another rank ends this process: each becomes a [`DistError`].
//! - A group that failed once refuses every later call, since its ranks no longer agree on the next
//!   one.
//! - A group that is given up from outside ([`Interrupt`]) fails its collectives at once.
//! - DIST-5: what is exchanged depends on shapes, never on data: unused parameters contribute zeros.

mod auth_listener;
mod bounded;
mod channel;
pub mod cuda;
pub(crate) mod ddp;
pub(crate) mod error;
mod ffi;
mod fingerprint;
pub(crate) mod group;
pub(crate) mod membership;
pub(crate) mod memory;
mod nccl;
mod rendezvous;
mod store;
mod tcp;
mod transport;

pub use ddp::DataParallel;
pub use ddp::{Averaging, Ddp, GradientPart};
pub use error::{CollectiveName, DistError, DistErrorKind, DistPhase};
pub(crate) use ffi::{AdamPart, AdamRate, backward, cudnn, fused_adam, torch_version};
pub use group::{ProcessGroup, ReduceOp};
pub use membership::Interrupt;
pub(crate) use nccl::set_exit_handler;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::BackendChoice;
use std::time::Duration;
use tch::Device;

/// Which library carries the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// CPU tensors, over our own TCP connections and shared memory.
    Tcp,
    /// CUDA tensors.
    Nccl,
}

impl BackendKind {
    /// The backend that a flag or a configuration sets; `None` where it leaves the choice to the rank.
    pub fn named(backend: BackendChoice) -> Option<BackendKind> {
        match backend {
            BackendChoice::Auto => None,
            BackendChoice::Tcp => Some(BackendKind::Tcp),
            BackendChoice::Nccl => Some(BackendKind::Nccl),
        }
    }

    /// Its name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Tcp => "tcp",
            BackendKind::Nccl => "nccl",
        }
    }
}

/// What a rank needs to know to join.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    pub rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// Its number on this host; the default CUDA device.
    pub local_rank: u32,
    /// Host of rank 0.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Library.
    pub backend: BackendKind,
    /// Limit of the rendezvous and of each collective.
    pub timeout: Duration,
    /// Ranks of one host exchange CPU tensors through shared memory; equal on all ranks.
    pub shared_memory: bool,
    /// Network interface for CPU tensors; else `GLOO_SOCKET_IFNAME`, else the one that leads to rank 0.
    pub interface: Option<String>,
    /// Restarts so far; ranks of different generations never meet.
    pub generation: u32,
    /// What the ranks know each other by. Without one, connections between ranks are not authenticated.
    pub secret: Option<GroupSecret>,
    /// Where this rank's tensors live.
    pub device: Device,
    /// Ends the group's collectives from outside; `None`: nothing does.
    pub interrupt: Option<Interrupt>,
}

#[cfg(test)]
mod fuzz_tests;
