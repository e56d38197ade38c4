//! Networks of actors and critics: where their parameters are, how libtorch sees them, how they act without
//! it, and distributions over actions.

pub mod acting;
pub mod actor_critic;
pub mod dense_actor_critic;
pub mod distribution;
pub mod layout;
pub mod parameters;
pub mod q_fast;
pub mod q_layout;
pub mod q_network;
pub mod sac_networks;
pub mod trunk;

pub use acting::Acting;
pub use actor_critic::ActorCritic;
