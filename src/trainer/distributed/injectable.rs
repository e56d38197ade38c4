//! The collectives that injected faults call.

use super::error::DistError;
use super::group::{ProcessGroup, ReduceOp};
use crate::inject::Collectives;
use tch::Tensor;

impl Collectives for ProcessGroup {
    type Error = DistError;

    fn world_size(&self) -> u32 {
        ProcessGroup::world_size(self)
    }

    fn sum(&self, tensor: &mut Tensor, tag: &str) -> Result<(), DistError> {
        self.all_reduce(tensor, ReduceOp::Sum, tag)
    }

    fn broadcast(&self, tensor: &mut Tensor, root: u32, tag: &str) -> Result<(), DistError> {
        ProcessGroup::broadcast(self, tensor, root, tag)
    }

    fn barrier(&self, tag: &str) -> Result<(), DistError> {
        ProcessGroup::barrier(self, tag)
    }
}
