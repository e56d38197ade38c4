//! The status page: one memory-mapped file per rank, written by the rank, read by its agent.
//!
//! Owner: the rank (writer, one thread), which maps it; the agent opens the file, takes its name away and
//! reads it. It stays readable when the rank is stopped, spins inside NCCL or is dead, and writing it costs
//! no system call: this is what makes stuck-rank detection certain.
//!
//! Layout, version 3: 64-bit little-endian words in a file of [`PAGE_BYTES`].
//! ```text
//! word    0  magic "rankdeck"      1  version        2  rank       3  generation     4  pid
//! word    5  writer: 1 the hook in a Python rank   6  dumps the agent asked for   7  dumps the hook wrote
//! word    8  seqlock: odd while the writer is inside
//! words   9  body, in the order of `Body::words`
//! word   64  ring of the latest RING collectives of all groups, slot = seq % RING
//! word 1024  table of GROUPS groups (communicators); the first is the group of all ranks
//! word 1152  ring of where the latest ITERATIONS training iterations began, slot = train_iter % ITERATIONS
//! word 1792  table of SITES names of call sites
//! word 2048  ring of the latest FINGERPRINTS fingerprints of weights, slot = count % FINGERPRINTS
//! ```
//! Invariants:
//! - PAGE-1: a reader returns a body only if the seqlock was even and unchanged around it; it gives up after
//!   a bounded number of tries (a writer that is killed inside leaves the lock odd; the body is then returned
//!   and marked as torn).
//! - PAGE-2: a full disk or a file that somebody cuts never kills who reads it, nor who creates it: blocks
//!   are reserved before the file is mapped, and readers copy it with `pread`. A store into a file that is
//!   cut while its rank has it mapped ends no rank of the built-in trainer ([`cut`]). It would end a script
//!   (SIGBUS): the file has a name only until its agent has it open, and before that only processes of the
//!   same user reach it.
//! - Every word is an atomic; there is no undefined behaviour however reader and writer interleave.
//! - Times are CLOCK_MONOTONIC nanoseconds of the host; only ages leave it.

mod collective;
mod layout;
mod reader;
mod sample;
#[cfg(test)]
mod tests;
mod writer;

pub use collective::{Collective, Dtype, Group, Op, tag, tag_text};
pub use layout::{
    Body, FINGERPRINTS, Fingerprint, GROUPS, ITERATIONS, Iteration, LANES, PAGE_BYTES, PHASES, RING,
    SITE_TEXT, SITES, VERSION,
};
pub use reader::{Reader, View};
pub use writer::{Entry, Writer};

/// The group of all ranks: always the first in the table.
pub const WORLD: GroupId = GroupId(0);

const MAGIC: u64 = u64::from_le_bytes(*b"rankdeck");
const SEQLOCK: usize = 8;

/// Nanoseconds on this host's CLOCK_MONOTONIC; no system call (vDSO).
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A group (communicator) of this rank, from [`Writer::group`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(usize);
