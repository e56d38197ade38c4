//! The words of a status page: where each part is, and how the body, iterations, fingerprints and names of
//! call sites are written as words.
//!
//! Owner: [`super`].

/// Size of the file.
pub const PAGE_BYTES: usize = 20480;
/// Version of the layout; pages of another version are refused.
pub const VERSION: u64 = 3;

/// First word of the body.
pub(super) const BODY: usize = 9;
pub(super) const BODY_WORDS: usize = 40;
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
pub(super) const FINGERPRINT_WORDS: usize = 8;

/// Collectives kept in the ring.
pub const RING: usize = 64;
/// Groups (communicators) that a page can tell apart; further ones go into the ring only.
pub const GROUPS: usize = 16;
/// How many of the latest iterations a page keeps.
pub const ITERATIONS: usize = 128;
/// Fingerprints of weights kept.
pub const FINGERPRINTS: usize = 64;
/// Parts of the weights that a fingerprint tells apart.
pub const LANES: usize = 8;
/// Call sites whose names are kept.
pub const SITES: usize = 32;
/// Bytes of a call site's name; longer paths lose their beginning.
pub const SITE_TEXT: usize = 56;
/// Phases whose own time is counted.
pub const PHASES: usize = 9;

/// The beginning of a training iteration, in counters of the first group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Iteration {
    /// Number of the training iteration.
    pub train_iter: u64,
    /// Collectives of the first group entered before it.
    pub seq: u64,
    /// Chain hash of the first group at that moment.
    pub chain: u64,
    /// When it ended, ns on the page's clock.
    pub at_ns: u64,
    /// Time spent inside collectives before it, ns.
    pub wait_ns: u64,
}

impl Iteration {
    pub(super) fn words(&self) -> [u64; ITERATION_WORDS] {
        [self.train_iter, self.seq, self.chain, self.at_ns, self.wait_ns]
    }

    pub(super) fn from_words(words: &[u64; ITERATION_WORDS]) -> Iteration {
        let [train_iter, seq, chain, at_ns, wait_ns] = *words;
        Iteration { train_iter, seq, chain, at_ns, wait_ns }
    }
}

/// What the weights of an optimiser were between one of its steps and the next. Only the hook writes these.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fingerprint {
    /// Steps that this optimiser had made; 0 before the first.
    pub step: u64,
    /// Its number, in the order in which optimisers made their first step.
    pub optimizer: u32,
    /// Hash of the shapes and element types of its parameters.
    pub shapes: u32,
    /// Hashes of the elements looked at, by part; 0 for a part without elements.
    pub lanes: [u32; LANES],
    /// Sum of these elements, and of their magnitudes.
    pub sum: f64,
    /// See [`Fingerprint::sum`].
    pub scale: f64,
    /// All of them are finite; the sums are 0 where they are not.
    pub finite: bool,
    /// A collective was made since the step before.
    pub synced: bool,
}

impl Fingerprint {
    /// `None` for an empty slot.
    pub(super) fn from_words(words: &[u64; FINGERPRINT_WORDS]) -> Option<Fingerprint> {
        let [step, head, lanes @ .., sum, scale] = *words;
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
        })
    }
}

/// The words of a call site's name: its end, when it is too long.
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

/// The name in a call site's words.
pub(super) fn site_text(words: &[u64; SITE_WORDS]) -> String {
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Everything on the page except the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Body {
    /// Number of [`crate::message::Phase`].
    pub phase: u64,
    /// When the phase began, ns.
    pub phase_entered_ns: u64,
    /// Moves while something happens inside the phase.
    pub phase_progress: u64,
    /// When anything here was last written, ns; set by the writer itself.
    pub heartbeat_ns: u64,
    pub train_iter: u64,
    /// This rank's own environment steps.
    pub env_step: u64,
    /// This rank's own samples.
    pub samples: u64,
    /// This rank's own finished episodes.
    pub episodes: u64,
    /// Optimiser updates.
    pub updates: u64,
    /// Number of the collective entered last, over all groups.
    pub entered: u64,
    /// Number of the collective left last, over all groups.
    pub left: u64,
    /// Chain hash of the first group (see [`Group::chain`]).
    pub chain_hash: u64,
    /// Number of [`crate::message::Activity`]: what the rank does inside the phase.
    pub activity: u64,
    /// When the activity began, ns.
    pub activity_entered_ns: u64,
    /// How much of a phase of known length is done: episodes of an evaluation, bytes of a checkpoint.
    pub done: u64,
    /// How much there is to do; 0 when unknown.
    pub total: u64,
    /// Time inside collectives, ns.
    pub wait_ns: u64,
    /// Time in each phase, collectives excluded, ns; the present phase is counted when it ends.
    pub own_ns: [u64; PHASES],
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_do_not_overlap_and_fit() {
        let end = |start: usize, count: usize, words: usize| start + count * words;
        const { assert!(BODY + BODY_WORDS <= RING_START) };
        assert!(end(RING_START, RING, RING_WORDS) <= GROUPS_START);
        assert!(end(GROUPS_START, GROUPS, GROUP_WORDS) <= ITERATIONS_START);
        assert!(end(ITERATIONS_START, ITERATIONS, ITERATION_WORDS) <= SITES_START);
        assert!(end(SITES_START, SITES, SITE_WORDS) <= FINGERPRINTS_START);
        assert!(end(FINGERPRINTS_START, FINGERPRINTS, FINGERPRINT_WORDS) * 8 <= PAGE_BYTES);
    }

    #[test]
    fn long_names_of_call_sites_keep_their_end() {
        let long = format!("{}/src/trainer/algo/ppo.rs:123", "ä".repeat(60));
        let text = site_text(&site_words(7, &long));
        assert!(text.ends_with("/src/trainer/algo/ppo.rs:123") && text.len() <= SITE_TEXT, "{text}");
        assert_eq!(site_text(&site_words(7, "a.rs:1")), "a.rs:1");
    }
}
