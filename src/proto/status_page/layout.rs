//! The words of a status page: where each part is, and how its values are written as words.

use crate::message::{FingerprintPosition, GroupArguments, InputKind, InputSample};

/// Size of the file.
pub const PAGE_BYTES: usize = 24576;
/// Version of the layout, which changes with every word of it; pages of other versions are rejected.
pub const VERSION: u64 = 6;
/// The oldest version that is read.
pub(super) const OLDEST_VERSION: u64 = 3;
/// The first version with these arguments of `init_process_group` and waits for input; older ones are left out.
pub(super) const ARGUMENTS_VERSION: u64 = 4;
/// The first version whose fingerprints have a position.
pub(super) const POSITIONS_VERSION: u64 = 5;
/// The first version with the members of the group of all ranks; older ones are left out.
pub(super) const MEMBERSHIP_VERSION: u64 = 6;
/// Size of the file, and words of a fingerprint, before the version with positions.
pub(super) const OLDER_PAGE_BYTES: usize = 20480;
pub(super) const OLDER_FINGERPRINT_WORDS: usize = 8;

/// First word of the body.
pub(super) const BODY: usize = 9;
pub(super) const BODY_WORDS: usize = 40;
/// Words of the body about waits for input: nanoseconds so far, call site, kind. Only the hook writes them.
pub(super) const INPUT_START: usize = BODY + 26;
/// Word within the body of the membership: epoch, and members << 32. Only the built-in trainer writes it.
const MEMBERSHIP: usize = 29;
/// First word of the arguments of `init_process_group`.
pub(super) const ARGUMENTS_START: usize = BODY + BODY_WORDS;
/// Words of them: calls so far and contradicting variables, rank and size, port and backend, call site, then the
/// address.
pub(super) const ARGUMENTS_WORDS: usize = 15;
/// Variables of launchers that number a rank or count ranks, in the order of their bits.
const VARIABLES: [&str; 11] = [
    "RANK",
    "SLURM_PROCID",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "WORLD_SIZE",
    "SLURM_NTASKS",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
];
/// First word of the ring of collectives.
pub(super) const RING_START: usize = 64;
/// Words of a ring entry.
pub(super) const RING_WORDS: usize = 15;
/// First word of the table of groups.
pub(super) const GROUPS_START: usize = 1024;
pub(super) const GROUP_WORDS: usize = 8;
/// First word of the ring of iterations.
pub(super) const ITERATIONS_START: usize = 1152;
pub(super) const ITERATION_WORDS: usize = 5;
/// First word of the table of call sites.
pub(super) const SITES_START: usize = 1792;
/// Words of a call site: its number, then [`SITE_TEXT`] bytes of text.
pub(super) const SITE_WORDS: usize = 8;
/// First word of the ring of fingerprints.
pub(super) const FINGERPRINTS_START: usize = 2048;
pub(super) const FINGERPRINT_WORDS: usize = 10;

/// Collectives in the ring.
pub const RING: usize = 64;
/// Most groups (communicators) of a page; collectives of others are only in the ring.
pub const GROUPS: usize = 16;
/// Iterations in the ring.
pub const ITERATIONS: usize = 128;
/// Fingerprints of weights in the ring.
pub const FINGERPRINTS: usize = 64;
/// Parts of the weights in a fingerprint.
pub const LANES: usize = 8;
/// Most call sites with a name.
pub const SITES: usize = 32;
/// Bytes of a call site's name; longer paths lose their start.
pub const SITE_TEXT: usize = 56;
/// Phases with a counter of their time.
pub const PHASES: usize = 9;

/// Start of a training iteration, in counters of the group of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationStart {
    /// Number of the training iteration.
    pub train_iter: u64,
    /// Collectives of that group entered before it.
    pub seq: u64,
    /// Chain hash of that group at the start.
    pub chain: u64,
    /// Start time, ns on the page's clock.
    pub at_ns: u64,
    /// Time spent inside collectives before it, ns.
    pub wait_ns: u64,
}

impl IterationStart {
    pub(super) fn words(&self) -> [u64; ITERATION_WORDS] {
        [self.train_iter, self.seq, self.chain, self.at_ns, self.wait_ns]
    }

    pub(super) fn from_words(words: &[u64; ITERATION_WORDS]) -> IterationStart {
        let [train_iter, seq, chain, at_ns, wait_ns] = *words;
        IterationStart { train_iter, seq, chain, at_ns, wait_ns }
    }
}

/// Fingerprint of the weights of an optimizer between two of its steps. Only the hook writes these.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fingerprint {
    /// Completed steps of this optimizer; 0 before the first.
    pub step: u64,
    /// Number of the optimizer, in the order of first steps.
    pub optimizer: u32,
    /// Hash of the shapes and element types of its parameters.
    pub shapes: u32,
    /// Hashes of the sampled elements, by part; 0 for a part without elements.
    pub lanes: [u32; LANES],
    /// Sum of these elements.
    pub sum: f64,
    /// Sum of their magnitudes.
    pub scale: f64,
    /// Whether all elements are finite; else the sums are 0.
    pub finite: bool,
    /// A collective was called since the previous step.
    pub synced: bool,
    /// One of the first steps was made without such a collective before it.
    pub local: bool,
    /// Where it was taken; `None` on pages before version 5.
    pub position: Option<FingerprintPosition>,
}

impl Fingerprint {
    /// Decodes a slot; `None` for an empty one.
    pub(super) fn from_words(words: &[u64; FINGERPRINT_WORDS]) -> Option<Fingerprint> {
        let [step, head, lanes @ .., sum, scale, seq, steps] = *words;
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let float = |bits| Some(f64::from_bits(bits)).filter(|value| value.is_finite()).unwrap_or_default();
        Some(Fingerprint {
            step: step.checked_sub(1)?,
            optimizer: low(head) & 0xffff,
            shapes: high(head),
            lanes: std::array::from_fn(
                |at| if at % 2 == 0 { low(lanes[at / 2]) } else { high(lanes[at / 2]) },
            ),
            sum: float(sum),
            scale: float(scale),
            finite: head & 0x1_0000 != 0,
            synced: head & 0x2_0000 != 0,
            local: head & 0x4_0000 != 0,
            position: Some(FingerprintPosition { seq, steps }),
        })
    }
}

/// Decodes the waits for input; `None` without one.
pub(super) fn input(words: &[u64; 3], sites: &[(u64, String)]) -> Option<InputSample> {
    let [waited_ns, site, kind] = *words;
    let kind = match kind {
        1 => InputKind::DataLoader,
        2 => InputKind::Environments,
        _ => return None,
    };
    let site = sites.iter().find(|(number, _)| *number == site);
    let site = site.map(|(_, name)| name.clone()).unwrap_or_default();
    Some(InputSample { kind, waited_ms: waited_ns / 1_000_000, site })
}

/// Decodes the arguments of `init_process_group`; `None` without a call. Only the hook writes them.
pub(super) fn group_arguments(
    words: &[u64; ARGUMENTS_WORDS],
    sites: &[(u64, String)],
) -> Option<GroupArguments> {
    let [calls, identity, port, site, address @ ..] = words;
    let known = |number: u64| Some(number as u32).filter(|number| *number != u32::MAX);
    let address: Vec<u8> = address.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let named = |(bit, name): (usize, &&str)| ((calls >> (32 + bit)) & 1 == 1).then(|| (*name).to_owned());
    (*calls as u32 > 0).then(|| GroupArguments {
        calls: *calls as u32,
        rank: known(identity >> 32),
        world_size: known(*identity),
        address: text(&address),
        port: Some(*port as u16).filter(|port| *port > 0),
        backend: text(&port.to_le_bytes()[2..]),
        site: sites
            .iter()
            .find(|(number, _)| number == site)
            .map(|(_, name)| name.clone())
            .unwrap_or_default(),
        contradicting: VARIABLES.iter().enumerate().filter_map(named).collect(),
    })
}

/// Encodes a call site's name; keeps the end of a long one.
pub(super) fn site_words(number: u64, name: &str) -> [u64; SITE_WORDS] {
    let from = (name.len().saturating_sub(SITE_TEXT)..=name.len()).find(|at| name.is_char_boundary(*at));
    let mut bytes = [0; SITE_TEXT];
    for (to, byte) in bytes.iter_mut().zip(name.bytes().skip(from.unwrap_or(0))) {
        *to = byte;
    }
    let mut words = [number; SITE_WORDS];
    for (word, chunk) in words[1..].iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    }
    words
}

/// Decodes a call site's name.
pub(super) fn site_text(words: &[u64; SITE_WORDS]) -> String {
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// All values of the page except the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Body {
    /// Number of [`crate::message::Phase`].
    pub phase: u64,
    /// Start of the phase, ns.
    pub phase_entered_ns: u64,
    /// Increases while the phase makes progress.
    pub phase_progress: u64,
    /// Time of the last write, ns; set by the writer.
    pub heartbeat_ns: u64,
    pub train_iter: u64,
    /// Environment steps of this rank.
    pub env_step: u64,
    /// Samples of this rank.
    pub samples: u64,
    /// Finished episodes of this rank.
    pub episodes: u64,
    /// Optimizer updates.
    pub updates: u64,
    /// Number of the latest collective that was entered, over all groups.
    pub entered: u64,
    /// Number of the latest collective that was left, over all groups.
    pub left: u64,
    /// Chain hash of the first group (see [`Group::chain`]).
    pub chain_hash: u64,
    /// Number of [`crate::message::Activity`] within the phase.
    pub activity: u64,
    /// Start of the activity, ns.
    pub activity_entered_ns: u64,
    /// Completed amount of a phase of known length: episodes of an evaluation, bytes of a checkpoint.
    pub done: u64,
    /// Total amount of the phase; 0 if unknown.
    pub total: u64,
    /// Time inside collectives, ns.
    pub wait_ns: u64,
    /// Time in each phase without collectives, ns; the current phase is counted when it ends.
    pub own_ns: [u64; PHASES],
    /// Changes of the members of the group of all ranks since the launch.
    pub membership_epoch: u32,
    /// Its members; 0 if unknown.
    pub member_count: u32,
}

impl Body {
    pub(super) fn words(&self) -> [u64; BODY_WORDS] {
        let mut words = [0; BODY_WORDS];
        words[..17].copy_from_slice(&[
            self.phase,
            self.phase_entered_ns,
            self.phase_progress,
            self.heartbeat_ns,
            self.train_iter,
            self.env_step,
            self.samples,
            self.episodes,
            self.updates,
            self.entered,
            self.left,
            self.chain_hash,
            self.activity,
            self.activity_entered_ns,
            self.done,
            self.total,
            self.wait_ns,
        ]);
        words[17..17 + PHASES].copy_from_slice(&self.own_ns);
        words[MEMBERSHIP] = u64::from(self.membership_epoch) | u64::from(self.member_count) << 32;
        words
    }

    pub(super) fn from_words(words: &[u64; BODY_WORDS]) -> Body {
        let mut own_ns = [0; PHASES];
        own_ns.copy_from_slice(&words[17..17 + PHASES]);
        Body {
            phase: words[0],
            phase_entered_ns: words[1],
            phase_progress: words[2],
            heartbeat_ns: words[3],
            train_iter: words[4],
            env_step: words[5],
            samples: words[6],
            episodes: words[7],
            updates: words[8],
            entered: words[9],
            left: words[10],
            chain_hash: words[11],
            activity: words[12],
            activity_entered_ns: words[13],
            done: words[14],
            total: words[15],
            wait_ns: words[16],
            own_ns,
            membership_epoch: words[MEMBERSHIP] as u32,
            member_count: (words[MEMBERSHIP] >> 32) as u32,
        }
    }
}

/// One collective of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collective {
    /// Number, from 1, over all groups of the rank.
    pub seq: u64,
    /// Operation.
    pub op: CollectiveOp,
    /// Purpose: up to 16 bytes of ASCII.
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Time at which it was entered, ns.
    pub entered_ns: u64,
    /// Time at which it was left, ns; 0 while inside.
    pub left_ns: u64,
    /// Hash of the source location of the call; 0 if unknown.
    pub call_site: u64,
    /// Index of its group in the table of groups; [`GROUPS`] if the table was full.
    pub group: u64,
    /// Number, from 1, within its group.
    pub group_seq: u64,
    /// Chain hash of its group, this collective included.
    pub chain: u64,
    /// Training iteration in which it was entered.
    pub train_iter: u64,
    /// Source rank of a broadcast plus 1; 0 for others.
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
            op: CollectiveOp::from_word(words[1]),
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

    /// Mixes the values that all members of a group must agree on into a chain hash (FNV-1a over words).
    pub(super) fn mixed_into(&self, chain: u64) -> u64 {
        let [low, high] = tag_words(&self.tag);
        [self.op as u64, low, high, self.count, self.bytes, self.dtype as u64, self.root]
            .iter()
            .fold(chain, |chain, word| (chain ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

/// Counters of a group of ranks (communicator) on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupCounters {
    /// Name, equal on all members: up to 16 bytes of ASCII.
    pub name: [u8; 16],
    /// Members; 0 if unknown.
    pub size: u64,
    /// Number of its latest collective that was entered.
    pub entered: u64,
    /// Number of its latest collective that was left.
    pub left: u64,
    /// Chain hash over op, tag, count, bytes, dtype and root of all its collectives.
    pub chain: u64,
    /// [`Collective::seq`] of its latest collective.
    pub last: u64,
}

impl GroupCounters {
    pub(super) fn words(&self) -> [u64; GROUP_WORDS] {
        let [low, high] = tag_words(&self.name);
        [low, high, self.size, self.entered, self.left, self.chain, self.last, 0]
    }

    pub(super) fn from_words(words: &[u64; GROUP_WORDS]) -> GroupCounters {
        GroupCounters {
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
pub enum CollectiveOp {
    /// No collective has started.
    #[default]
    None = 0,
    AllReduce = 1,
    /// Copy from one member to all.
    Broadcast = 2,
    AllGather = 3,
    /// Wait for all members.
    Barrier = 4,
    /// Reduce; each member keeps its part.
    ReduceScatter = 5,
    /// Every member sends a part to every other member.
    AllToAll = 6,
    Reduce = 7,
    Gather = 8,
    /// Distribute parts of one member to all.
    Scatter = 9,
    /// From one member to another; its group is the pair, and both count it.
    SendReceive = 10,
}

impl CollectiveOp {
    /// Returns the name on screens and in messages.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveOp::None => "none",
            CollectiveOp::AllReduce => "all_reduce",
            CollectiveOp::Broadcast => "broadcast",
            CollectiveOp::AllGather => "all_gather",
            CollectiveOp::Barrier => "barrier",
            CollectiveOp::ReduceScatter => "reduce_scatter",
            CollectiveOp::AllToAll => "all_to_all",
            CollectiveOp::Reduce => "reduce",
            CollectiveOp::Gather => "gather",
            CollectiveOp::Scatter => "scatter",
            CollectiveOp::SendReceive => "send/recv",
        }
    }

    fn from_word(word: u64) -> CollectiveOp {
        match word {
            1 => CollectiveOp::AllReduce,
            2 => CollectiveOp::Broadcast,
            3 => CollectiveOp::AllGather,
            4 => CollectiveOp::Barrier,
            5 => CollectiveOp::ReduceScatter,
            6 => CollectiveOp::AllToAll,
            7 => CollectiveOp::Reduce,
            8 => CollectiveOp::Gather,
            9 => CollectiveOp::Scatter,
            10 => CollectiveOp::SendReceive,
            _ => CollectiveOp::None,
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
    /// Another type.
    Other = 8,
}

impl Dtype {
    /// Returns the name on screens and in messages.
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

/// Truncates `text` to the 16 bytes of a tag.
pub fn tag(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// Returns the text of a tag.
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
    fn tables_fit_and_do_not_overlap() {
        let end = |start: usize, count: usize, words: usize| start + count * words;
        const { assert!(ARGUMENTS_START + ARGUMENTS_WORDS <= RING_START) };
        const { assert!(INPUT_START + 3 <= BODY + MEMBERSHIP && MEMBERSHIP < BODY_WORDS) };
        assert!(end(RING_START, RING, RING_WORDS) <= GROUPS_START);
        assert!(end(GROUPS_START, GROUPS, GROUP_WORDS) <= ITERATIONS_START);
        assert!(end(ITERATIONS_START, ITERATIONS, ITERATION_WORDS) <= SITES_START);
        assert!(end(SITES_START, SITES, SITE_WORDS) <= FINGERPRINTS_START);
        assert!(end(FINGERPRINTS_START, FINGERPRINTS, FINGERPRINT_WORDS) * 8 <= PAGE_BYTES);
    }

    /// Pages live as long as their ranks, and agents may be newer: whoever moves a word changes the version, too.
    #[test]
    fn layout_of_a_version_never_changes() {
        let starts = [
            BODY,
            ARGUMENTS_START,
            RING_START,
            GROUPS_START,
            ITERATIONS_START,
            SITES_START,
            FINGERPRINTS_START,
        ];
        let words = [
            BODY_WORDS,
            ARGUMENTS_WORDS,
            RING_WORDS,
            GROUP_WORDS,
            ITERATION_WORDS,
            SITE_WORDS,
            FINGERPRINT_WORDS,
        ];
        let counts = [RING, GROUPS, ITERATIONS, SITES, FINGERPRINTS, LANES, PHASES, SITE_TEXT, PAGE_BYTES];
        let version_6 = (
            [9, 49, 64, 1024, 1152, 1792, 2048],
            [40, 15, 15, 8, 5, 8, 10],
            [64, 16, 128, 32, 64, 8, 9, 56, 24576],
        );
        assert_eq!((VERSION, (starts, words, counts)), (6, version_6));
        let mut words = [0; ARGUMENTS_WORDS];
        words[..5].copy_from_slice(&[
            1 << 33 | 2,
            3 << 32 | 4,
            29_500 | 0x6f6f_6c67 << 16,
            7,
            u64::from_le_bytes(*b"10.0.0.1"),
        ]);
        let read = group_arguments(&words, &[(7, "a.py:3".into())]);
        let expected = GroupArguments {
            calls: 2,
            rank: Some(3),
            world_size: Some(4),
            address: "10.0.0.1".into(),
            port: Some(29_500),
            backend: "gloo".into(),
            site: "a.py:3".into(),
            contradicting: vec!["SLURM_PROCID".into()],
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn long_call_site_name_keeps_its_end() {
        let long = format!("{}/src/trainer/algo/ppo.rs:123", "ä".repeat(60));
        let text = site_text(&site_words(7, &long));
        assert!(text.ends_with("/src/trainer/algo/ppo.rs:123") && text.len() <= SITE_TEXT, "{text}");
        assert_eq!(site_text(&site_words(7, "a.rs:1")), "a.rs:1");
    }

    #[test]
    fn every_argument_changes_the_chain_hash() {
        let base = Collective {
            op: CollectiveOp::AllReduce,
            tag: tag("grad"),
            count: 4,
            bytes: 16,
            ..Default::default()
        };
        let other = |change: fn(&mut Collective)| {
            let mut other = base;
            change(&mut other);
            other.mixed_into(1)
        };
        let plain = base.mixed_into(1);
        assert_ne!(other(|c| c.op = CollectiveOp::Broadcast), plain);
        assert_ne!(other(|c| c.tag = tag("stats")), plain);
        assert_ne!(other(|c| c.count = 5), plain);
        assert_ne!(other(|c| c.dtype = Dtype::F64), plain);
        assert_ne!(other(|c| c.root = 2), plain);
        assert_eq!(other(|c| c.entered_ns = 9), plain, "times differ between ranks");
        assert_eq!(other(|c| c.call_site = 9), plain, "a branch on the rank may call from two places");
    }
}
