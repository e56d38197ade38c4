//! What a rank is about to do, in a form that ranks can compare.
//!
//! Owner: the process group.

use rankdeck_proto::status_page;
use rankdeck_proto::status_page::{Dtype, Op};

/// Words that describe a collective.
pub(super) const WORDS: usize = 6;

/// A collective that a rank is about to enter.
#[derive(Debug, Clone, Copy)]
pub(super) struct CollectiveNote {
    pub seq: u64,
    pub op: Op,
    pub tag: [u8; 16],
    pub count: usize,
    pub dtype: Dtype,
}

impl CollectiveNote {
    /// Sequence number, operation, tag, count, type.
    pub(super) fn words(&self) -> [i64; WORDS] {
        let half = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.tag[from..from + 8]);
            i64::from_le_bytes(word)
        };
        [self.seq as i64, self.op as i64, half(0), half(8), self.count as i64, self.dtype as i64]
    }
}

/// [`CollectiveNote::words`] as text, with how values are combined or the root where another word tells it.
pub(super) fn describe(words: &[i64]) -> String {
    let Some((&[seq, op_word, low, high, count, dtype_word], how)) = words.split_first_chunk::<WORDS>()
    else {
        return "something unknown".into();
    };
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
    let how = match (op, how) {
        (Op::AllReduce, [0]) => " (sum)".into(),
        (Op::AllReduce, [1]) => " (min)".into(),
        (Op::AllReduce, [_]) => " (max)".into(),
        (Op::Broadcast, [root]) => format!(" from rank {root}"),
        _ => String::new(),
    };
    format!(
        "collective {}, {} \"{}\" of {} {}{how}",
        seq,
        op.name(),
        status_page::tag_text(&tag),
        count,
        dtype.name()
    )
}
