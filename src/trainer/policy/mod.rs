//! Networks: parameter layouts, their form in libtorch and in plain Rust, and action distributions.

pub(crate) mod acting;
pub mod actor_critic;
pub(crate) mod branches;
pub(crate) mod continuous;
pub mod distribution;
pub(crate) mod memory;
pub(crate) mod normalized_q;
pub(crate) mod parameters;
pub mod q_network;
pub(crate) mod trunk;

pub(crate) use acting::ActingPolicy;
pub use actor_critic::ActorCritic;
