//! Runs an update step by step at first, then captures it as CUDA graphs and replays them.
//!
//! Collectives are not part of a graph: each is numbered, shown, bounded and named in errors by itself
//! ([`crate::distributed`]), which NCCL inside a graph could not be. An update of several ranks is therefore
//! cut into graphs at its collectives; that of one rank is one graph.
//!
//! Invariants:
//! - RECORDING-1: call by call and captured, the work is the same code on the same memory. What the host
//!   counts is counted outside of it.
//! - RECORDING-2: a capture does no work. When it fails, the reason is logged, and everything is done call by
//!   call from there on; nothing was done twice.

use super::device_metrics::{DeviceMetrics, LossRecord};
use crate::distributed::cuda::{Capture, CudaGraph};
use crate::distributed::{Ddp, GradientPart, ProcessGroup};
use crate::error::TrainerError;
use crate::policy::trunk::BackwardSplit;
use crate::support::events::print_line;
use tch::Device;

/// Times that work is done before it is captured: libraries choose their algorithms and take their memory at
/// first.
const WARM: u32 = 3;

/// Whether updates are captured as CUDA graphs where they can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphCapture(pub bool);

/// Work that may be captured.
pub(crate) trait CapturableUpdate {
    /// Puts everything on the device, and hands each collective to `cut`.
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError>;
    /// The gradients that `work` passes to [`GraphSplitter::reduce`] with this index.
    fn gradients(&mut self, index: usize) -> &mut Ddp;
    /// Where the work leaves its numbers.
    fn metrics(&mut self) -> &mut DeviceMetrics;
}

/// Where work is cut.
pub(crate) struct GraphSplitter<'a> {
    group: &'a ProcessGroup,
    capturing: Option<SegmentCapture>,
}

/// A graph, and the collectives after it.
struct GraphSegment {
    graph: CudaGraph,
    collectives: Vec<(usize, GradientPart)>,
}

/// What was captured so far.
struct SegmentCapture {
    device: Device,
    done: Vec<GraphSegment>,
    open: Option<Capture>,
    collectives: Vec<(usize, GradientPart)>,
}

impl SegmentCapture {
    fn start(device: Device) -> Result<SegmentCapture, TrainerError> {
        let open = Some(Capture::start(device)?);
        Ok(SegmentCapture { device, done: Vec::new(), open, collectives: Vec::new() })
    }

    fn end(&mut self) -> Result<(), TrainerError> {
        if let Some(open) = self.open.take() {
            self.done.push(GraphSegment {
                graph: open.end()?,
                collectives: std::mem::take(&mut self.collectives),
            });
        }
        Ok(())
    }
}

impl GraphSplitter<'_> {
    /// Averages the gradients of `ddp` over the ranks; `index` is its index in
    /// [`CapturableUpdate::gradients`].
    #[track_caller]
    pub(crate) fn reduce(&mut self, index: usize, ddp: &mut Ddp) -> Result<(), TrainerError> {
        self.reduce_part(index, GradientPart::Whole, ddp)
    }

    /// The same in two parts, with the rest of backward between them where there is a `split`.
    #[track_caller]
    pub(crate) fn reduce_split(
        &mut self,
        index: usize,
        split: Option<BackwardSplit>,
        ddp: &mut Ddp,
    ) -> Result<(), TrainerError> {
        let Some(split) = split else { return self.reduce(index, ddp) };
        self.reduce_part(index, GradientPart::Late, ddp)?;
        split.backward()?;
        self.reduce_part(index, GradientPart::Early, ddp)
    }

    #[track_caller]
    fn reduce_part(&mut self, index: usize, part: GradientPart, ddp: &mut Ddp) -> Result<(), TrainerError> {
        let Some(segments) = &mut self.capturing else { return Ok(ddp.reduce_part(part, self.group)?) };
        segments.collectives.push((index, part));
        // One rank exchanges nothing: the collective is only counted.
        if self.group.world_size() > 1 {
            segments.end()?;
            segments.open = Some(Capture::start(segments.device)?);
        }
        Ok(())
    }
}

enum CaptureState {
    /// Done step by step, this many times before it is captured.
    Stepwise(Option<u32>),
    Captured {
        segments: Vec<GraphSegment>,
        entries: Vec<LossRecord>,
        /// The memory that it was captured with.
        key: u64,
    },
}

/// Work, as it was captured.
pub(crate) struct CapturedUpdate {
    device: Device,
    what: &'static str,
    state: CaptureState,
}

impl CapturedUpdate {
    /// Of `what`, in words; captured on a GPU when it is `enabled`.
    pub(crate) fn new(what: &'static str, device: Device, enabled: bool) -> CapturedUpdate {
        let enabled = enabled && matches!(device, Device::Cuda(_));
        CapturedUpdate { device, what, state: CaptureState::Stepwise(enabled.then_some(WARM)) }
    }

    /// The work is captured, or will be.
    pub(crate) fn is_enabled(&self) -> bool {
        !matches!(self.state, CaptureState::Stepwise(None))
    }

    /// Does the work once. `key` names the memory that it uses: when it has changed, the work is captured
    /// again.
    pub(crate) fn run(
        &mut self,
        work: &mut dyn CapturableUpdate,
        key: u64,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        if matches!(&self.state, CaptureState::Captured { key: known, .. } if *known != key) {
            self.state = CaptureState::Stepwise(Some(WARM));
        }
        if let CaptureState::Stepwise(Some(0)) = self.state {
            self.state = match capture(work, self.device, group) {
                Ok((segments, entries)) => CaptureState::Captured { segments, entries, key },
                Err(error) => {
                    print_line(&format!("not using CUDA graphs: cannot capture {}: {error}", self.what));
                    CaptureState::Stepwise(None)
                }
            };
        }
        match &mut self.state {
            CaptureState::Stepwise(left) => {
                if let Some(left) = left {
                    *left -= 1;
                }
                work.metrics().start_update();
                work.work(&mut GraphSplitter { group, capturing: None })?;
                work.metrics().finish_update();
            }
            CaptureState::Captured { segments, entries, .. } => {
                for GraphSegment { graph, collectives } in segments {
                    graph.replay()?;
                    for (index, part) in collectives {
                        work.gradients(*index).reduce_part(*part, group)?;
                    }
                }
                work.metrics().repeat_update(entries);
            }
        }
        Ok(())
    }
}

/// Captures the work, and does none of it.
fn capture(
    work: &mut dyn CapturableUpdate,
    device: Device,
    group: &ProcessGroup,
) -> Result<(Vec<GraphSegment>, Vec<LossRecord>), TrainerError> {
    work.metrics().start_update();
    let mut cut = GraphSplitter { group, capturing: Some(SegmentCapture::start(device)?) };
    let worked = work.work(&mut cut);
    let entries = work.metrics().discard_update();
    let mut segments = match cut.capturing {
        Some(segments) => segments,
        None => return Err(TrainerError::failure("the capture is missing", "")),
    };
    // An open capture must end, whatever the result.
    let ended = segments.end();
    worked.and(ended)?;
    Ok((segments.done, entries))
}
