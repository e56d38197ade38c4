//! Networks of actors and critics: where their parameters are, how libtorch sees them, how they act without it, and distributions over actions.

pub mod acting;
pub mod actor_critic;
pub mod distribution;
pub mod layout;
pub mod parameters;

pub use acting::Acting;
pub use actor_critic::ActorCritic;
