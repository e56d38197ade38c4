//! Copies of tensors for a transport that needs them on another device.
//!
//! Owner: the process group.

use super::error::{BackendError, DistErrorKind};
use super::transport::CollectiveTransport;
use tch::{Tensor, no_grad};

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
    let Some(wanted) = transport.device() else { return Ok(()) };
    if tensor.device() == wanted {
        return collective(tensor);
    }
    let mut staged = no_grad(|| tensor.detach().f_to_device(wanted))
        .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?;
    collective(&mut staged)?;
    copy(tensor, &staged)
}
