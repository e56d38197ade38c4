//! Networks: actor and critic as libtorch sees them, and a fast forward pass on the CPU for rollouts.

pub mod actor_critic;
pub mod mlp_fast;

pub use actor_critic::ActorCritic;
pub use mlp_fast::MlpFast;
