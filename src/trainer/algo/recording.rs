//! An update, or a look at the networks, that puts the same work on the GPU each time: done step by step at
//! first, then captured as CUDA graphs and replayed.
//!
//! Owner: the learner. Collectives are not part of a graph: each is numbered, shown, bounded and blamed by
//! itself ([`crate::distributed`]), which NCCL inside a graph could not be. An update of several ranks is
//! therefore cut into graphs at its collectives; that of one rank is one graph.
//!
//! Invariants:
//! - RECORDING-1: call by call and captured, the work is the same code on the same memory. What the host
//!   counts is counted outside of it.
//! - RECORDING-2: a capture does no work. When it fails, the reason is said, and everything is done call by
//!   call from there on; nothing was done twice.

use super::ledger::{Entry, Ledger};
use crate::distributed::cuda_graph::{Capture, CudaGraph};
use crate::distributed::{Ddp, Part, ProcessGroup};
use crate::error::TrainerError;
use crate::events::say;
use crate::policy::seam::Seam;
use tch::Device;

/// Times that work is done before it is captured: libraries choose their algorithms and take their memory at
/// first.
const WARM: u32 = 3;

/// Work that may be captured.
pub trait GraphWork {
    /// Puts everything on the device, and hands each collective to `cut`.
    fn work(&mut self, cut: &mut WorkCut<'_>) -> Result<(), TrainerError>;
    /// The collectives that were handed over with this number, of this part of the gradients.
    fn reduce(&mut self, which: usize, part: Part, group: &ProcessGroup) -> Result<(), TrainerError>;
    /// Where the work leaves its numbers.
    fn ledger(&mut self) -> &mut Ledger;
}

/// Where work is cut.
pub struct WorkCut<'a> {
    group: &'a ProcessGroup,
    capturing: Option<Pieces>,
}

/// A graph, and the collectives after it.
struct Piece {
    graph: CudaGraph,
    then: Vec<(usize, Part)>,
}

/// What was captured so far.
struct Pieces {
    device: Device,
    done: Vec<Piece>,
    open: Option<Capture>,
    then: Vec<(usize, Part)>,
}

impl Pieces {
    fn begin(device: Device) -> Result<Pieces, TrainerError> {
        let open = Some(Capture::begin(device)?);
        Ok(Pieces { device, done: Vec::new(), open, then: Vec::new() })
    }

    fn end(&mut self) -> Result<(), TrainerError> {
        if let Some(open) = self.open.take() {
            self.done.push(Piece { graph: open.end()?, then: std::mem::take(&mut self.then) });
        }
        Ok(())
    }
}

impl WorkCut<'_> {
    /// Averages the gradients of `ddp` over the ranks; `which` is its number for [`GraphWork::reduce`].
    #[track_caller]
    pub fn reduce(&mut self, which: usize, ddp: &mut Ddp) -> Result<(), TrainerError> {
        self.reduce_part(which, Part::Whole, ddp)
    }

    /// The same in two parts, with the rest of backward between them where there is a `seam`.
    #[track_caller]
    pub fn reduce_by(&mut self, which: usize, seam: Option<Seam>, ddp: &mut Ddp) -> Result<(), TrainerError> {
        let Some(seam) = seam else { return self.reduce(which, ddp) };
        self.reduce_part(which, Part::Late, ddp)?;
        seam.backward()?;
        self.reduce_part(which, Part::Early, ddp)
    }

    #[track_caller]
    fn reduce_part(&mut self, which: usize, part: Part, ddp: &mut Ddp) -> Result<(), TrainerError> {
        let Some(pieces) = &mut self.capturing else { return Ok(ddp.reduce_part(part, self.group)?) };
        pieces.then.push((which, part));
        // One rank exchanges nothing: the collective is only counted.
        if self.group.world_size() > 1 {
            pieces.end()?;
            pieces.open = Some(Capture::begin(pieces.device)?);
        }
        Ok(())
    }
}

enum State {
    /// Done step by step; so many times before it is captured.
    Stepwise(Option<u32>),
    Captured {
        pieces: Vec<Piece>,
        entries: Vec<Entry>,
        /// The memory that it was captured with.
        key: u64,
    },
}

/// Work, as it was captured.
pub struct Recording {
    device: Device,
    what: &'static str,
    state: State,
}

impl Recording {
    /// Of `what`, in words; captured on a GPU when it is `wanted`.
    pub fn new(what: &'static str, device: Device, wanted: bool) -> Recording {
        let wanted = wanted && matches!(device, Device::Cuda(_));
        Recording { device, what, state: State::Stepwise(wanted.then_some(WARM)) }
    }

    /// The work is captured, or will be.
    pub fn is_wanted(&self) -> bool {
        !matches!(self.state, State::Stepwise(None))
    }

    /// Does the work once. `key` names the memory that it uses: when it has changed, the work is captured
    /// again.
    pub fn run(
        &mut self,
        work: &mut dyn GraphWork,
        key: u64,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        if matches!(&self.state, State::Captured { key: known, .. } if *known != key) {
            self.state = State::Stepwise(Some(WARM));
        }
        if let State::Stepwise(Some(0)) = self.state {
            self.state = match capture(work, self.device, group) {
                Ok((pieces, entries)) => State::Captured { pieces, entries, key },
                Err(error) => {
                    say(&format!("without CUDA graphs: {} cannot be captured: {error}", self.what));
                    State::Stepwise(None)
                }
            };
        }
        match &mut self.state {
            State::Stepwise(left) => {
                if let Some(left) = left {
                    *left -= 1;
                }
                work.ledger().begin();
                work.work(&mut WorkCut { group, capturing: None })?;
                work.ledger().end();
            }
            State::Captured { pieces, entries, .. } => {
                for Piece { graph, then } in pieces {
                    graph.replay()?;
                    for (which, part) in then {
                        work.reduce(*which, *part, group)?;
                    }
                }
                work.ledger().again(entries);
            }
        }
        Ok(())
    }
}

/// Captures the work, and does none of it.
fn capture(
    work: &mut dyn GraphWork,
    device: Device,
    group: &ProcessGroup,
) -> Result<(Vec<Piece>, Vec<Entry>), TrainerError> {
    work.ledger().begin();
    let mut cut = WorkCut { group, capturing: Some(Pieces::begin(device)?) };
    let worked = work.work(&mut cut);
    let entries = work.ledger().forget();
    let mut pieces = match cut.capturing {
        Some(pieces) => pieces,
        None => return Err(TrainerError::failure("the capture is gone", "")),
    };
    // A capture that goes on must end, whatever came of it.
    let ended = pieces.end();
    worked.and(ended)?;
    Ok((pieces.done, entries))
}
