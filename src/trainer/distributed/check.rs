//! Check mode: all ranks say what they are about to do, in a message whose size never differs.
//!
//! Owner: the process group; on with `RANKDECK_CHECK_COLLECTIVES=1`. Libraries match collectives by order alone: two different ones mix up, or hang.
//! Comparing notes first names the first difference instead.

use super::error::{DistErrorKind, Failure};
use super::placing::gather;
use super::rendezvous::Transport;
use super::store::list;
use rankdeck_proto::status_page;
use rankdeck_proto::status_page::{Dtype, Op};
use tch::Tensor;

/// Words that describe a collective.
pub(super) const WORDS: usize = 6;

/// What a rank is about to do.
pub(super) struct Note {
    pub seq: u64,
    pub op: Op,
    pub tag: [u8; 16],
    pub count: usize,
    pub dtype: Dtype,
}

impl Note {
    /// Sequence number, operation, tag, count, type.
    pub(super) fn words(&self) -> [i64; WORDS] {
        let half = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.tag[from..from + 8]);
            i64::from_le_bytes(word)
        };
        [self.seq as i64, self.op as i64, half(0), half(8), self.count as i64, self.dtype as i64]
    }

    /// Compares with all ranks; an error names those that differ from this one.
    pub(super) fn compare(&self, transport: &Transport, world_size: u32, limit: i64) -> Result<(), Failure> {
        let mine = self.words();
        let mut input = Tensor::from_slice(&mine);
        let mut outputs: Vec<Tensor> = (0..world_size).map(|_| input.zeros_like()).collect();
        gather(transport, &mut outputs, &mut input, limit)?;
        let mut differing = Vec::new();
        let mut first = None;
        for (rank, output) in (0..world_size).zip(&outputs) {
            let mut theirs = [0; WORDS];
            output
                .f_copy_data(&mut theirs, WORDS)
                .map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))?;
            if theirs != mine {
                differing.push(rank);
                first.get_or_insert(theirs);
            }
        }
        match first {
            None => Ok(()),
            Some(theirs) => Err(Failure::new(
                DistErrorKind::Mismatch,
                format!(
                    "this rank is in {}, but rank {} in {}",
                    describe(&mine),
                    list(&differing),
                    describe(&theirs)
                ),
            )),
        }
    }
}

/// [`Note::words`] in words.
pub(super) fn describe(words: &[i64]) -> String {
    let &[seq, op_word, low, high, count, dtype_word] = words else { return "something unknown".into() };
    let op = [Op::None, Op::AllReduce, Op::Broadcast, Op::AllGather, Op::Barrier]
        .into_iter()
        .find(|op| *op as i64 == op_word)
        .unwrap_or_default();
    let dtype = [Dtype::U8, Dtype::I64, Dtype::F32, Dtype::F64]
        .into_iter()
        .find(|dtype| *dtype as i64 == dtype_word)
        .unwrap_or_default();
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&low.to_le_bytes());
    tag[8..].copy_from_slice(&high.to_le_bytes());
    format!(
        "collective {}, {} \"{}\" of {} {}",
        seq,
        op.name(),
        status_page::tag_text(&tag),
        count,
        dtype.name()
    )
}
