//! CUDA graphs: work that libtorch puts on a GPU in the same way each time, captured once and started with
//! one call.
//!
//! Owner: the learner. tch has no graphs, so the shim calls libtorch's own, by name, where its CUDA half was
//! opened.
//!
//! Invariants:
//! - What is captured reads and writes the same memory each time: tensors that outlive the graph, and those
//!   that were made inside it.
//! - Nothing inside waits for the GPU, copies from or to the host, or draws random numbers.

use super::ffi;
use tch::{Device, TchError};

fn torch(failure: super::error::BackendError) -> TchError {
    TchError::Torch(failure.text)
}

/// A capture that goes on: until it ends, libtorch's work on this thread is noted and not done.
pub struct Capture(ffi::Graph);

/// Captured work.
pub struct CudaGraph(ffi::Graph);

impl Capture {
    /// Begins on a GPU.
    pub fn begin(device: Device) -> Result<Capture, TchError> {
        match device {
            Device::Cuda(index) => ffi::Graph::begin(index as i32).map(Capture).map_err(torch),
            other => Err(TchError::Torch(format!("no CUDA graphs on {other:?}"))),
        }
    }

    /// Ends it.
    pub fn end(mut self) -> Result<CudaGraph, TchError> {
        self.0.end().map_err(torch)?;
        Ok(CudaGraph(self.0))
    }
}

impl CudaGraph {
    /// Starts the work, as if it were put on libtorch's stream again.
    pub fn replay(&mut self) -> Result<(), TchError> {
        self.0.replay().map_err(torch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_nothing_is_captured() {
        let error = Capture::begin(Device::Cpu).err().unwrap();
        assert!(error.to_string().contains("no CUDA graphs on Cpu"), "{error}");
    }
}
