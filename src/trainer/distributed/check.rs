//! Check mode: before each collective, all ranks say what they are about to do, in a message whose size never
//! differs.
//!
//! Owner: the process group; on with `RANKDECK_CHECK_COLLECTIVES=1`. Libraries match collectives by order
//! alone: two different ones mix up, or hang. Comparing notes first names the first difference instead.

use super::collective::{CollectiveNote, WORDS, describe};
use super::error::{BackendError, DistErrorKind};
use super::store::list;
use super::transport::CollectiveTransport;
use rankdeck_proto::status_page::{Dtype, Op, tag};
use tch::Tensor;

/// The comparison itself, which is the same call for all ranks, whatever they are about to do.
fn comparison() -> CollectiveNote {
    CollectiveNote { seq: 0, op: Op::AllGather, tag: tag("check"), count: WORDS, dtype: Dtype::I64 }
}

/// Compares the notes of all ranks; an error names the ranks that differ from this one.
pub(super) fn compare(
    note: &CollectiveNote,
    transport: &dyn CollectiveTransport,
    world_size: u32,
    limit_ms: i64,
) -> Result<(), BackendError> {
    let own = note.words();
    let mut input = Tensor::from_slice(&own);
    let mut outputs: Vec<Tensor> = (0..world_size).map(|_| input.zeros_like()).collect();
    transport.all_gather(&comparison(), &mut outputs, &mut input, limit_ms)?;
    let mut differing = Vec::new();
    let mut first = None;
    for (rank, output) in (0..world_size).zip(&outputs) {
        let mut theirs = [0; WORDS];
        output
            .f_copy_data(&mut theirs, WORDS)
            .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?;
        if theirs != own {
            differing.push(rank);
            first.get_or_insert(theirs);
        }
    }
    let Some(theirs) = first else { return Ok(()) };
    let text =
        format!("this rank is in {}, but rank {} in {}", describe(&own), list(&differing), describe(&theirs));
    Err(BackendError::new(DistErrorKind::Mismatch, text))
}
