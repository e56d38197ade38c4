//! Where tensors must lie for a transport: Gloo and lanes work on the CPU, NCCL on its GPU; what lies elsewhere goes through a copy.
//!
//! Owner: the process group.

use super::error::{DistErrorKind, Failure};
use super::rendezvous::Transport;
use tch::{Device, Tensor, no_grad};

/// Every rank's tensor into `outputs`, in rank order.
pub(super) fn gather(
    transport: &Transport,
    outputs: &mut [Tensor],
    input: &mut Tensor,
    limit: i64,
) -> Result<(), Failure> {
    match transport {
        Transport::Alone => {
            for output in outputs {
                copy(output, input)?;
            }
            Ok(())
        }
        Transport::Gloo(gloo) if input.device() == Device::Cpu => {
            gloo.handle.all_gather(outputs, input, limit)
        }
        Transport::Gloo(gloo) => {
            let mut host = input.to_device(Device::Cpu);
            let mut hosts: Vec<Tensor> = outputs.iter().map(|_| host.empty_like()).collect();
            gloo.handle.all_gather(&mut hosts, &mut host, limit)?;
            outputs.iter_mut().zip(&hosts).try_for_each(|(output, host)| copy(output, host))
        }
        Transport::Nccl(nccl) => nccl.all_gather(outputs, input),
    }
}

fn copy(to: &mut Tensor, from: &Tensor) -> Result<(), Failure> {
    no_grad(|| to.f_copy_(from)).map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))
}

/// Runs on the tensor where the transport wants it: Gloo on the CPU, NCCL on its GPU; elsewhere through a copy.
pub(super) fn on_device(
    transport: &Transport,
    tensor: &mut Tensor,
    body: impl FnOnce(&Transport, &mut Tensor) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let wanted = match transport {
        Transport::Alone => return Ok(()),
        Transport::Gloo(_) => Device::Cpu,
        Transport::Nccl(nccl) => nccl.device(),
    };
    if tensor.device() == wanted {
        return body(transport, tensor);
    }
    let mut staged = no_grad(|| tensor.detach().f_to_device(wanted))
        .map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))?;
    body(transport, &mut staged)?;
    copy(tensor, &staged)
}
