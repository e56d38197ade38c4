//! Collectives of CPU tensors: the bytes of tensors over [direct](super::direct) connections.
//!
//! Owner: the process group.

use super::collective::CollectiveNote;
use super::direct::DirectLinks;
use super::error::{BackendError, DistErrorKind};
use super::exchange::Exchanges;
use super::ffi::RawReduce;
use super::reduction::Reduction;
use super::staging::copy;
use super::store::Store;
use super::transport::CollectiveTransport;
use super::{memory, mesh};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// How long ranks that differ stay in their calls. The watch compares them with the other ranks to find the
/// wrong one, and the others would not arrive if these ranks ended at once.
const LINGER: Duration = Duration::from_secs(2);

/// The connections of one rank.
pub(super) struct CpuTransport {
    direct: DirectLinks,
    rank: u32,
    sealed: bool,
}

impl CpuTransport {
    /// Connects this rank, which listens at `address`, with the others; all ranks must call it.
    pub(super) fn open(
        store: &Store,
        rank: u32,
        world_size: u32,
        address: IpAddr,
        deadline: Instant,
    ) -> Result<CpuTransport, BackendError> {
        let channels = mesh::open(store, rank, world_size, address, deadline)?;
        let direct = DirectLinks::new(rank, world_size, Exchanges::new(rank, channels));
        Ok(CpuTransport { direct, rank, sealed: store.has_secret() })
    }
}

fn lingering(result: Result<(), BackendError>) -> Result<(), BackendError> {
    if result.as_ref().is_err_and(|failure| failure.kind == DistErrorKind::Mismatch) {
        std::thread::sleep(LINGER);
    }
    result
}

impl CollectiveTransport for CpuTransport {
    fn name(&self) -> String {
        format!("tcp ({})", if self.sealed { "encrypted" } else { "not encrypted" })
    }

    fn device(&self) -> Option<Device> {
        Some(Device::Cpu)
    }

    fn all_reduce(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        op: RawReduce,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let reduction = Reduction { op, kind: tensor.kind() };
        if !reduction.is_known() {
            let text = format!("tensors of kind {:?} cannot be reduced", tensor.kind());
            return Err(BackendError::new(DistErrorKind::Usage, text));
        }
        // SAFETY: a collective runs on the thread that owns the tensors, and until it returns this thread
        // does nothing but send, receive and combine these bytes.
        let bytes = unsafe { memory::bytes_mut(tensor) };
        lingering(self.direct.all_reduce(note, bytes, reduction, limit_ms))
    }

    fn broadcast(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        root: u32,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        // SAFETY: as in `all_reduce`.
        let bytes = unsafe { memory::bytes_mut(tensor) };
        lingering(self.direct.broadcast(note, bytes, root, limit_ms))
    }

    fn all_gather(
        &self,
        note: &CollectiveNote,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let host =
            if input.device() == Device::Cpu { input.shallow_clone() } else { input.to_device(Device::Cpu) };
        // SAFETY: this thread owns the tensor and writes to nothing before the bytes are copied.
        let own = unsafe { memory::bytes(&host) };
        let block = own.len();
        let mut all = vec![0; block * outputs.len()];
        all[self.rank as usize * block..][..block].copy_from_slice(own);
        lingering(self.direct.all_gather(note, &mut all, limit_ms))?;
        for (output, bytes) in outputs.iter_mut().zip(all.chunks_exact(block.max(1))) {
            let mut staged =
                if output.device() == Device::Cpu { output.shallow_clone() } else { host.empty_like() };
            // SAFETY: as in `all_reduce`; `staged` is the output itself, or nobody else's.
            unsafe { memory::bytes_mut(&mut staged) }.copy_from_slice(bytes);
            if output.device() != Device::Cpu {
                copy(output, &staged)?;
            }
        }
        Ok(())
    }

    fn barrier(&self, note: &CollectiveNote, limit_ms: i64) -> Result<(), BackendError> {
        lingering(self.direct.barrier(note, limit_ms))
    }

    /// Connections close when they are dropped.
    fn close(self: Box<Self>, _healthy: bool) {}
}
