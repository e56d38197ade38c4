//! What carries collectives between the ranks of a group.
//!
//! Owner: the process group, which numbers, checks and bounds every call. An implementation moves data and
//! nothing else.

use super::collective::CollectiveNote;
use super::error::{BackendError, DistErrorKind};
use super::ffi::RawReduce;
use rankdeck_proto::status_page::{Entry, GroupId};
use tch::{Device, Tensor};

/// The connections of one rank. Tensors are contiguous, and on [`CollectiveTransport::device`] except in
/// [`CollectiveTransport::all_gather`]; limits are milliseconds.
pub(super) trait CollectiveTransport: Send {
    /// Library and version, such as `tcp (encrypted)`.
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
    fn broadcast(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        root: u32,
        limit_ms: i64,
    ) -> Result<(), BackendError>;

    /// Every rank's tensor into `outputs`, in rank order; tensors may be on any device.
    fn all_gather(
        &self,
        note: &CollectiveNote,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError>;

    /// Waits for all ranks.
    fn barrier(&self, note: &CollectiveNote, limit_ms: i64) -> Result<(), BackendError>;

    /// Collectives may be [begun](CollectiveTransport::begin_all_reduce) and end by themselves.
    fn queues(&self) -> bool {
        false
    }

    /// Begins an all-reduce and shows it on the status page while it lasts; what is put on the device later
    /// goes on beside it until [`CollectiveTransport::join`]. Only where it
    /// [queues](CollectiveTransport::queues).
    fn begin_all_reduce(
        &self,
        _note: &CollectiveNote,
        _shown: (GroupId, Entry),
        _tensor: &mut Tensor,
        _op: RawReduce,
    ) -> Result<(), BackendError> {
        Err(BackendError::new(DistErrorKind::Usage, "collectives of this backend cannot be queued"))
    }

    /// What is put on the device from here on waits there for all that was begun.
    fn join(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for the end of all that was begun.
    fn settle(&self) -> Result<(), (CollectiveNote, BackendError)> {
        Ok(())
    }

    /// What was begun and has failed.
    fn failure(&self) -> Option<(CollectiveNote, BackendError)> {
        None
    }

    /// Closes the connections. `healthy`: all ranks do so now.
    fn close(self: Box<Self>, healthy: bool);
}
