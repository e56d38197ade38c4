//! A group of one rank: there is nothing to exchange.

use super::collective::CollectiveNote;
use super::error::BackendError;
use super::ffi::RawReduce;
use super::staging::copy;
use super::transport::CollectiveTransport;
use tch::{Device, Tensor};

pub(super) struct LoneTransport;

impl CollectiveTransport for LoneTransport {
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
        _op: RawReduce,
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
