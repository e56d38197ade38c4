//! CUDA graphs: GPU work that is the same each time, captured once and launched with one call.
//!
//! tch has no graphs, so the shim calls libtorch's own, by name, where its CUDA half was opened.
//!
//! Invariants:
//! - What is captured reads and writes the same memory each time: tensors that outlive the graph, and those
//!   that were made inside it.
//! - Nothing inside waits for the GPU, copies from or to the host, or draws random numbers.

use crate::distributed::ffi;
use crate::support::events::print_line;
use tch::{Device, TchError, Tensor};

fn torch(failure: crate::distributed::error::BackendError) -> TchError {
    TchError::Torch(failure.text)
}

/// An open capture: until it ends, libtorch's work on this thread is recorded and not executed.
pub(crate) struct Capture(ffi::Graph);

/// Captured work.
pub(crate) struct CudaGraph(ffi::Graph);

impl Capture {
    /// Begins on a GPU.
    pub(crate) fn start(device: Device) -> Result<Capture, TchError> {
        match device {
            Device::Cuda(index) => ffi::Graph::start(index as i32).map(Capture).map_err(torch),
            other => Err(TchError::Torch(format!("CUDA graphs are not supported on {other:?}"))),
        }
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<CudaGraph, TchError> {
        self.0.end().map_err(torch)?;
        Ok(CudaGraph(self.0))
    }
}

impl CudaGraph {
    /// Starts the work, as if it were put on libtorch's stream again.
    pub(crate) fn replay(&mut self) -> Result<(), TchError> {
        self.0.replay().map_err(torch)
    }
}

/// Passes before the capture: libraries choose algorithms and allocate memory in the first ones.
const WARM: u32 = 3;

/// A forward pass without gradients, captured on a GPU after the first few with as many rows.
///
/// Parameters are read where they are, so a captured pass uses what was learned since. Other numbers of
/// rows, as evaluations have them, run step by step.
pub(crate) struct CapturedPass {
    device: Device,
    /// Passes until the capture; `None` without one.
    left: Option<u32>,
    input: Option<Tensor>,
    graph: Option<(CudaGraph, Tensor)>,
}

impl CapturedPass {
    /// On this device; captured when it is a GPU and that is `enabled`.
    pub(crate) fn new(device: Device, enabled: bool) -> CapturedPass {
        let enabled = enabled && matches!(device, Device::Cuda(_));
        CapturedPass { device, left: enabled.then_some(WARM), input: None, graph: None }
    }

    /// What `forward` makes of an input. It must do the same each time, and keep nothing.
    pub(crate) fn run(
        &mut self,
        input: &Tensor,
        forward: impl Fn(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let Some(left) = self.left else { return forward(input) };
        let kept = self.input.get_or_insert_with(|| input.empty_like());
        if kept.size() != input.size() {
            return forward(input);
        }
        kept.f_copy_(input)?;
        if left > 0 {
            self.left = Some(left - 1);
            return forward(kept);
        }
        if self.graph.is_none() {
            match capture(self.device, || forward(kept)) {
                Ok(made) => self.graph = Some(made),
                Err(error) => {
                    print_line(&format!("not using CUDA graphs: cannot capture the forward pass: {error}"));
                    self.left = None;
                }
            }
        }
        match &mut self.graph {
            Some((graph, output)) => {
                graph.replay()?;
                Ok(output.shallow_clone())
            }
            None => forward(kept),
        }
    }
}

/// Captures the pass without running it.
fn capture(
    device: Device,
    forward: impl FnOnce() -> Result<Tensor, TchError>,
) -> Result<(CudaGraph, Tensor), TchError> {
    let capture = Capture::start(device)?;
    let output = forward();
    // An open capture must end, whatever the result.
    let graph = capture.end();
    Ok((graph?, output?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_without_a_gpu_is_an_error() {
        let error = Capture::start(Device::Cpu).err().unwrap();
        assert!(error.to_string().contains("Cpu"), "{error}");
    }
}
