//! Process group and data-parallel training: how the ranks of one run act as one.
//!
//! Owner: the trainer. One [`ProcessGroup`] over our own TCP connections (CPU), NCCL (GPU) or nothing (one
//! rank); [`Ddp`] on top of it.
//!
//! Invariants, cited by tests/library/distributed/mod.rs:
//! - DIST-1: every collective is numbered, tagged and on the status page before it can block, and left only
//!   when it succeeded.
//! - DIST-2: nothing here waits without a limit; when time is up, the error names the collective.
//! - DIST-3: no failure of another rank ends this process: each becomes a [`DistError`].
//! - A group that failed once refuses every later call, since its ranks no longer agree on the next
//!   one.
//! - DIST-5: what is exchanged depends on shapes, never on data: unused parameters contribute zeros.

mod alone;
mod bounded;
mod channel;
mod check;
mod collective;
mod cpu;
pub mod cuda;
pub(crate) mod cuda_graph;
pub(crate) mod ddp;
mod direct;
pub(crate) mod dp;
pub(crate) mod error;
mod exchange;
mod ffi;
mod fingerprint;
mod flight;
#[cfg(test)]
mod fuzz_tests;
mod greeting;
pub(crate) mod group;
mod injectable;
mod interface;
mod leaving;
mod library;
mod loading;
pub(crate) mod memory;
mod mesh;
mod nccl;
mod nccl_api;
mod reception;
mod reduction;
mod rendezvous;
mod seal;
pub(crate) mod settings;
mod staging;
mod store;
mod store_server;
mod store_wire;
mod transport;
pub(crate) mod upload;
mod values;

pub use ddp::{Averaging, Ddp, Part};
pub use dp::DataParallel;
pub use error::{CollectiveName, DistError, DistErrorKind, DistPhase};
pub(crate) use ffi::{AdamPart, Rate, backward, cudnn, fused_adam, torch_version};
pub(crate) use flight::ends_by;
pub use group::{ProcessGroup, ReduceOp};
pub use settings::{BackendKind, GroupSettings};
