//! Transports: carry the collectives of a group between its ranks.
//!
//! An implementation moves data and nothing else.

use super::error::{BackendError, DistErrorKind};
use super::ffi::ReduceKernel;
use rankdeck_proto::status_page::{self, CollectiveOp, CollectiveStart, Dtype, GroupId};
use tch::{Device, Tensor, no_grad};

/// Words that describe a collective.
pub(crate) const WORDS: usize = 6;

/// A collective that a rank is about to enter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CollectiveNote {
    pub seq: u64,
    pub op: CollectiveOp,
    pub tag: [u8; 16],
    pub count: usize,
    pub dtype: Dtype,
}

impl CollectiveNote {
    /// Sequence number, operation, tag, count, type.
    pub(crate) fn words(&self) -> [i64; WORDS] {
        let half = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.tag[from..from + 8]);
            i64::from_le_bytes(word)
        };
        [self.seq as i64, self.op as i64, half(0), half(8), self.count as i64, self.dtype as i64]
    }
}

/// [`CollectiveNote::words`] as text, with the reduction or the root if another word has it.
pub(crate) fn describe(words: &[i64]) -> String {
    let Some((&[seq, op_word, low, high, count, dtype_word], how)) = words.split_first_chunk::<WORDS>()
    else {
        return "an unknown collective".into();
    };
    let op = [
        CollectiveOp::None,
        CollectiveOp::AllReduce,
        CollectiveOp::Broadcast,
        CollectiveOp::AllGather,
        CollectiveOp::Barrier,
    ]
    .into_iter()
    .find(|op| *op as i64 == op_word)
    .unwrap_or_default();
    let dtype = [Dtype::U8, Dtype::I64, Dtype::F32, Dtype::F64]
        .into_iter()
        .find(|dtype| *dtype as i64 == dtype_word)
        .unwrap_or_default();
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&low.to_le_bytes());
    tag[8..].copy_from_slice(&high.to_le_bytes());
    let how = match (op, how) {
        (CollectiveOp::AllReduce, [0]) => " (sum)".into(),
        (CollectiveOp::AllReduce, [1]) => " (min)".into(),
        (CollectiveOp::AllReduce, [_]) => " (max)".into(),
        (CollectiveOp::Broadcast, [root]) => format!(" from rank {root}"),
        _ => String::new(),
    };
    format!(
        "collective {}, {} \"{}\" of {} {}{how}",
        seq,
        op.name(),
        status_page::tag_text(&tag),
        count,
        dtype.name()
    )
}

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
        op: ReduceKernel,
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

    /// Collectives may be [started](CollectiveTransport::start_all_reduce) and end by themselves.
    fn queues(&self) -> bool {
        false
    }

    /// Starts an all-reduce and shows it on the status page while it lasts; what is put on the device later
    /// overlaps with it until [`CollectiveTransport::join`]. Only where it
    /// [queues](CollectiveTransport::queues).
    fn start_all_reduce(
        &self,
        _note: &CollectiveNote,
        _shown: (GroupId, CollectiveStart),
        _tensor: &mut Tensor,
        _op: ReduceKernel,
    ) -> Result<(), BackendError> {
        Err(BackendError::new(DistErrorKind::Usage, "this backend does not support queued collectives"))
    }

    /// What is put on the device from here on waits there for all that was started.
    fn join(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for the end of all that was started.
    fn settle(&self) -> Result<(), (CollectiveNote, BackendError)> {
        Ok(())
    }

    /// A collective that was started and has failed.
    fn failure(&self) -> Option<(CollectiveNote, BackendError)> {
        None
    }

    /// Closes the connections. `healthy`: all ranks do so now.
    fn close(self: Box<Self>, healthy: bool);
}

pub(super) struct SingleRankTransport;

impl CollectiveTransport for SingleRankTransport {
    fn name(&self) -> String {
        "none (one rank)".into()
    }

    fn device(&self) -> Option<Device> {
        None
    }

    fn all_reduce(
        &self,
        _note: &CollectiveNote,
        _tensor: &mut Tensor,
        _op: ReduceKernel,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn broadcast(
        &self,
        _note: &CollectiveNote,
        _tensor: &mut Tensor,
        _root: u32,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn all_gather(
        &self,
        _note: &CollectiveNote,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        outputs.iter_mut().try_for_each(|output| copy(output, input))
    }

    fn barrier(&self, _note: &CollectiveNote, _limit_ms: i64) -> Result<(), BackendError> {
        Ok(())
    }

    fn close(self: Box<Self>, _healthy: bool) {}
}

/// Copies the values of a tensor of the same shape.
pub(super) fn copy(to: &mut Tensor, from: &Tensor) -> Result<(), BackendError> {
    no_grad(|| to.f_copy_(from)).map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))
}

/// Runs a collective on the tensor itself where it is on the transport's device, else on a copy there.
pub(super) fn on_device(
    transport: &dyn CollectiveTransport,
    tensor: &mut Tensor,
    collective: impl FnOnce(&mut Tensor) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let Some(device) = transport.device() else { return Ok(()) };
    if tensor.device() == device {
        return collective(tensor);
    }
    let mut staged = no_grad(|| tensor.detach().f_to_device(device))
        .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?;
    collective(&mut staged)?;
    copy(tensor, &staged)
}
