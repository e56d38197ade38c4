//! Small dense and recurrent networks in plain Rust: forward, backward, losses and the optimizer step.
//!
//! At the sizes of classic control, libtorch spends nearly all its time on dispatching to its kernels. This
//! crate is used instead where the device is the CPU and the network an MLP. Autograd stays the reference
//! (tests compare every gradient with it), and runs other networks and GPUs.
//!
//! An update: [`mlp::Mlp::load`] packs the flat parameters, [`mlp::Mlp::forward`] runs a minibatch,
//! [`distribution`] and [`loss`] give the gradient of the outputs, [`mlp::Mlp::backward`] adds to
//! the flat gradients, the ranks average those, [`optimizer`] steps.
//!
//! Invariants, besides those of the parts:
//! - The same bits on every processor (see [`isa`]), so that a run may resume on another host.

pub mod distribution;
pub(crate) mod gemm;
pub mod isa;
pub mod loss;
pub mod math;
pub mod mlp;
pub mod numpy_random;
pub mod optimizer;
pub mod recurrent;
pub mod seeds;
pub mod squashed;
pub mod trace;

pub use gemm::Matrix;
pub use isa::Isa;
pub use mlp::{LayerActivation, Mlp};
