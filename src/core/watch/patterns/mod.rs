//! Stage 2: patterns over several ranks, from their histories: who waits for whom, whose calls, weights,
//! counters or arguments differ, who is slow, where packets are lost, whether the run stalls or does not learn.
//!
//! A pattern carries measurements and no opinion on how bad it is; `assess` decides that.

pub(crate) mod group_arguments;
pub(crate) mod input;
pub(crate) mod learning;
pub(crate) mod mismatch;
pub(crate) mod network;
pub(crate) mod normalizers;
pub(crate) mod replicas;
pub(crate) mod speed;
pub(crate) mod stall;
pub(crate) mod stragglers;
pub(crate) mod waits;
