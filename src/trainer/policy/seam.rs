//! A network that is cut between two layers, so that backward comes in two parts: what lies behind the cut is
//! done, and its gradients may travel, before backward goes on in front of it.
//!
//! Owner: the update. SEAM-1: both parts together give the gradients of one backward pass.

use super::trunk::Trunk;
use crate::distributed::{Ddp, ProcessGroup, backward};
use tch::{Device, TchError, Tensor};

/// Whether the gradients of dense layers travel while backward is in the convolutions in front of them:
/// between GPUs, where there are more gradients than a bucket holds. Equal on all ranks.
pub fn parted(ddp: &mut Ddp, trunk: Option<&Trunk>, device: Device, group: &ProcessGroup) -> bool {
    let between_gpus = matches!(device, Device::Cuda(_)) && group.world_size() > 1;
    between_gpus && trunk.is_some_and(|trunk| ddp.cut_at(trunk.parameters()))
}

/// The place of the cut.
pub struct Seam {
    before: Tensor,
    after: Tensor,
}

impl Seam {
    /// Cuts behind this value; what follows is computed from the one that is returned.
    pub fn cut(before: Tensor) -> Result<(Tensor, Seam), TchError> {
        let after = before.f_detach()?.f_set_requires_grad(true)?;
        Ok((after.shallow_clone(), Seam { before, after }))
    }

    /// Goes on with backward, which has come from the loss to the cut.
    pub fn backward(mut self) -> Result<(), TchError> {
        backward(&mut self.before, &mut self.after.grad())
    }
}
