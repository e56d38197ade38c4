//! Looks at observations on a GPU: the networks' forward pass without gradients, captured as a CUDA graph
//! after the first few looks at as many rows.
//!
//! Owner: whoever acts. Parameters are read where they are, so a captured pass sees what was learnt since.
//! Other numbers of rows, as evaluations have them, are looked at step by step.

use crate::distributed::cuda_graph::{Capture, CudaGraph};
use crate::events::say;
use tch::{Device, TchError, Tensor};

/// Looks before the capture: libraries choose their algorithms and take their memory at first.
const WARM: u32 = 3;

/// A forward pass.
pub struct CapturedPass {
    device: Device,
    /// Looks until the capture; `None` where there is none to be.
    left: Option<u32>,
    input: Option<Tensor>,
    graph: Option<(CudaGraph, Tensor)>,
}

impl CapturedPass {
    /// On this device; captured when it is a GPU and that is `wanted`.
    pub fn new(device: Device, wanted: bool) -> CapturedPass {
        let wanted = wanted && matches!(device, Device::Cuda(_));
        CapturedPass { device, left: wanted.then_some(WARM), input: None, graph: None }
    }

    /// What `forward` makes of an input. It must do the same each time, and keep nothing.
    pub fn run(
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
                    say(&format!("without CUDA graphs: the forward pass cannot be captured: {error}"));
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

/// Captures, and does nothing.
fn capture(
    device: Device,
    forward: impl FnOnce() -> Result<Tensor, TchError>,
) -> Result<(CudaGraph, Tensor), TchError> {
    let capture = Capture::begin(device)?;
    let output = forward();
    // A capture that goes on must end, whatever came of it.
    let graph = capture.end();
    Ok((graph?, output?))
}
