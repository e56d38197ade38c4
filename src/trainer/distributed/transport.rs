//! What carries collectives between the ranks of a group.
//!
//! Owner: the process group, which numbers, checks and bounds every call. An implementation moves data and
//! nothing else.

use super::collective::CollectiveNote;
use super::error::BackendError;
use super::ffi::RawReduce;
use tch::{Device, Tensor};

/// The connections of one rank. Tensors are contiguous, and on [`CollectiveTransport::device`] except in
/// [`CollectiveTransport::all_gather`]; limits are milliseconds.
pub(super) trait CollectiveTransport: Send {
    /// Library and version, such as `gloo (libtorch 2.11.0)`.
    fn name(&self) -> String;

    /// Where tensors must be; `None` where nothing is exchanged.
    fn device(&self) -> Option<Device>;

    /// Reduces `tensor` in place.
    fn all_reduce(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        op: RawReduce,
        limit_ms: i64,
    ) -> Result<(), BackendError>;

    /// Copies the tensor of `root` over those of all ranks.
    fn broadcast(&self, tensor: &mut Tensor, root: u32, limit_ms: i64) -> Result<(), BackendError>;

    /// Every rank's tensor into `outputs`, in rank order; tensors may be on any device.
    fn all_gather(
        &self,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError>;

    /// Waits for all ranks.
    fn barrier(&self, limit_ms: i64) -> Result<(), BackendError>;

    /// Closes the connections. `healthy`: all ranks do so now.
    fn close(self: Box<Self>, healthy: bool);
}
