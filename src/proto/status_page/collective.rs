//! Collectives and their groups on a status page: what is said of each, and how it is written as words.

use super::layout::{GROUP_WORDS, RING_WORDS};

/// One collective, as the ring keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collective {
    /// Number, from 1, over all groups of the rank.
    pub seq: u64,
    /// The collective's operation.
    pub op: Op,
    /// Why: up to 16 bytes of ASCII.
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// When it was entered, ns.
    pub entered_ns: u64,
    /// When it was left, ns; 0 while inside.
    pub left_ns: u64,
    /// Hash of the source location that called it, 0 when unknown.
    pub call_site: u64,
    /// Index of its group in the table of groups, [`super::GROUPS`] when the table was full.
    pub group: u64,
    /// Number, from 1, within its group.
    pub group_seq: u64,
    /// Chain hash of its group, this collective included.
    pub chain: u64,
    /// Training iteration it was entered in.
    pub train_iter: u64,
    /// Rank that a broadcast comes from, plus 1; 0 for others.
    pub root: u64,
}

impl Collective {
    pub(super) fn words(&self) -> [u64; RING_WORDS] {
        let [low, high] = tag_words(&self.tag);
        [
            self.seq,
            self.op as u64,
            low,
            high,
            self.count,
            self.bytes,
            self.dtype as u64,
            self.entered_ns,
            self.left_ns,
            self.call_site,
            self.group,
            self.group_seq,
            self.chain,
            self.train_iter,
            self.root,
        ]
    }

    pub(super) fn from_words(words: &[u64; RING_WORDS]) -> Collective {
        Collective {
            seq: words[0],
            op: Op::from_word(words[1]),
            tag: tag_of(words[2], words[3]),
            count: words[4],
            bytes: words[5],
            dtype: Dtype::from_word(words[6]),
            entered_ns: words[7],
            left_ns: words[8],
            call_site: words[9],
            group: words[10],
            group_seq: words[11],
            chain: words[12],
            train_iter: words[13],
            root: words[14],
        }
    }

    /// What all members of a group must agree on for the same number, mixed into a chain hash (FNV-1a over
    /// words).
    pub(super) fn mixed_into(&self, chain: u64) -> u64 {
        let [low, high] = tag_words(&self.tag);
        [self.op as u64, low, high, self.count, self.bytes, self.dtype as u64, self.root]
            .iter()
            .fold(chain, |chain, word| (chain ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

/// A group of ranks (communicator) as one member counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Group {
    /// Name, equal on all members: up to 16 bytes of ASCII.
    pub name: [u8; 16],
    /// Members, 0 when unknown.
    pub size: u64,
    /// Number of the collective entered last in it.
    pub entered: u64,
    /// Number of the collective left last in it.
    pub left: u64,
    /// Chain hash over the fingerprints (op, tag, count, bytes, dtype, root) of all collectives entered in
    /// it.
    pub chain: u64,
    /// Number over all groups of the rank (see [`Collective::seq`]) of the latest one entered in it.
    pub last: u64,
}

impl Group {
    pub(super) fn words(&self) -> [u64; GROUP_WORDS] {
        let [low, high] = tag_words(&self.name);
        [low, high, self.size, self.entered, self.left, self.chain, self.last, 0]
    }

    pub(super) fn from_words(words: &[u64; GROUP_WORDS]) -> Group {
        Group {
            name: tag_of(words[0], words[1]),
            size: words[2],
            entered: words[3],
            left: words[4],
            chain: words[5],
            last: words[6],
        }
    }
}

/// Kinds of collectives; the numbers are part of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Op {
    /// No collective has begun.
    #[default]
    None = 0,
    AllReduce = 1,
    /// Copy from one to all.
    Broadcast = 2,
    AllGather = 3,
    /// Wait for all.
    Barrier = 4,
    /// Reduce, each member keeps its part.
    ReduceScatter = 5,
    /// Every member sends a part to every other.
    AllToAll = 6,
    Reduce = 7,
    Gather = 8,
    /// Parts of one to all.
    Scatter = 9,
    /// From one to one; its group is the pair, and both of them count it.
    SendReceive = 10,
}

impl Op {
    /// Its name on screens and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::None => "none",
            Op::AllReduce => "all_reduce",
            Op::Broadcast => "broadcast",
            Op::AllGather => "all_gather",
            Op::Barrier => "barrier",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllToAll => "all_to_all",
            Op::Reduce => "reduce",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::SendReceive => "send/recv",
        }
    }

    fn from_word(word: u64) -> Op {
        match word {
            1 => Op::AllReduce,
            2 => Op::Broadcast,
            3 => Op::AllGather,
            4 => Op::Barrier,
            5 => Op::ReduceScatter,
            6 => Op::AllToAll,
            7 => Op::Reduce,
            8 => Op::Gather,
            9 => Op::Scatter,
            10 => Op::SendReceive,
            _ => Op::None,
        }
    }
}

/// Element types; the numbers are part of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Dtype {
    /// Bytes.
    #[default]
    U8 = 0,
    /// 64-bit integers.
    I64 = 1,
    /// 32-bit floats.
    F32 = 2,
    /// 64-bit floats.
    F64 = 3,
    /// 16-bit floats.
    F16 = 4,
    /// Brain floats.
    Bf16 = 5,
    /// 32-bit integers.
    I32 = 6,
    Bool = 7,
    /// Something else.
    Other = 8,
}

impl Dtype {
    /// Its name on screens and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "u8",
            Dtype::I64 => "i64",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::I32 => "i32",
            Dtype::Bool => "bool",
            Dtype::Other => "other",
        }
    }

    fn from_word(word: u64) -> Dtype {
        match word {
            1 => Dtype::I64,
            2 => Dtype::F32,
            3 => Dtype::F64,
            4 => Dtype::F16,
            5 => Dtype::Bf16,
            6 => Dtype::I32,
            7 => Dtype::Bool,
            8 => Dtype::Other,
            _ => Dtype::U8,
        }
    }
}

/// `text` cut to the 16 bytes of a tag.
pub fn tag(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// The text of a tag.
pub fn tag_text(tag: &[u8; 16]) -> String {
    let end = tag.iter().position(|b| *b == 0).unwrap_or(tag.len());
    String::from_utf8_lossy(&tag[..end]).into_owned()
}

fn tag_words(tag: &[u8; 16]) -> [u64; 2] {
    let (low, high) = tag.split_at(8);
    let word = |half: &[u8]| half.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    [word(low), word(high)]
}

fn tag_of(low: u64, high: u64) -> [u8; 16] {
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&low.to_le_bytes());
    tag[8..].copy_from_slice(&high.to_le_bytes());
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_fingerprint_changes_the_chain() {
        let base =
            Collective { op: Op::AllReduce, tag: tag("grad"), count: 4, bytes: 16, ..Default::default() };
        let other = |change: fn(&mut Collective)| {
            let mut other = base;
            change(&mut other);
            other.mixed_into(1)
        };
        let plain = base.mixed_into(1);
        assert_ne!(other(|c| c.op = Op::Broadcast), plain);
        assert_ne!(other(|c| c.tag = tag("stats")), plain);
        assert_ne!(other(|c| c.count = 5), plain);
        assert_ne!(other(|c| c.dtype = Dtype::F64), plain);
        assert_ne!(other(|c| c.root = 2), plain);
        assert_eq!(other(|c| c.entered_ns = 9), plain, "times differ between ranks");
        assert_eq!(other(|c| c.call_site = 9), plain, "a branch on the rank may call from two places");
    }
}
