//! Networks of actors and critics: where their parameters are, how libtorch sees them, how they act without
//! it, and distributions over actions.

pub(crate) mod acting;
pub mod actor_critic;
pub(crate) mod captured;
pub(crate) mod dense_actor_critic;
pub mod distribution;
pub(crate) mod layout;
pub(crate) mod parameters;
pub(crate) mod q_fast;
pub mod q_layout;
pub(crate) mod q_network;
pub mod sac_networks;
pub(crate) mod seam;
pub(crate) mod trunk;

pub use acting::ActingPolicy;
pub use actor_critic::ActorCritic;
