//! The status page: one memory-mapped file per rank, written by the rank, read by its agent.
//!
//! The rank maps it and writes it from one thread; the agent opens the file, removes its name and reads it.
//! It stays readable while the rank is stopped or spins inside NCCL and after it dies, and writing it costs
//! no system call, so that stuck ranks are detected with certainty. The page of a script has the collectives
//! and optimizer steps of its training loop, without those of other threads (HOOK-6).
//!
//! Layout, version 6: 64-bit little-endian words in a file of [`PAGE_BYTES`].
//! ```text
//! word    0  magic "rankdeck"      1  version        2  rank       3  generation     4  pid
//! word    5  writer: 1 the hook in a Python rank
//! word    6  dumps that the agent requested      7  dumps that the hook wrote
//! word    8  seqlock: odd while the writer is inside
//! words   9  body, in the order of `Body::words`; from word 35 on, a script's waits for input: nanoseconds, call
//!            site, kind; word 38: changes of the members of the group of all ranks | members << 32
//! word   49  arguments of a script's `init_process_group`: calls | variables << 32, rank << 32 | size,
//!            port | backend << 16, call site, address
//! word   64  ring of the latest RING collectives of all groups, slot = seq % RING
//! word 1024  table of GROUPS groups (communicators); the first is the group of all ranks
//! word 1152  ring of the starts of the latest ITERATIONS training iterations, slot = train_iter % ITERATIONS
//! word 1792  table of SITES names of call sites
//! word 2048  ring of the latest FINGERPRINTS fingerprints of weights and normalizers, slot = count % FINGERPRINTS
//! ```
//! Invariants:
//! - PAGE-1: a reader returns a body only if the seqlock was even and unchanged around it; it gives up after
//!   a bounded number of tries (a writer that is killed inside leaves the lock odd; the body is then returned
//!   and marked as torn).
//! - PAGE-2: a full disk or a truncated file kills neither reader nor creator: blocks are reserved before the
//!   file is mapped, and readers copy it with `pread`. Truncating the file while it is mapped kills no rank
//!   of the built-in trainer ([`mapping`](crate::mapping)). It would kill a script (SIGBUS), so the file has
//!   a name only until its agent has opened it, and before that only processes of the same user can reach it.
//! - Every word is an atomic; no interleaving of reader and writer is undefined behavior.
//! - Times are CLOCK_MONOTONIC nanoseconds of the host; only ages leave it.

mod layout;
mod reader;
mod writer;

pub use layout::{
    Body, Collective, CollectiveOp, Dtype, FINGERPRINTS, Fingerprint, GROUPS, GroupCounters, ITERATIONS,
    IterationStart, LANES, PAGE_BYTES, PHASES, RING, SITE_TEXT, SITES, VERSION, tag, tag_text,
};
pub use reader::{StatusPageReader, View};
pub use writer::{CollectiveStart, StatusPageWriter};

/// The group of all ranks, always the first of the table.
pub const WORLD: GroupId = GroupId(0);

const MAGIC: u64 = u64::from_le_bytes(*b"rankdeck");
const SEQLOCK: usize = 8;

/// Returns the nanoseconds of this host's CLOCK_MONOTONIC, without a system call (vDSO).
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A group (communicator) of this rank, from [`StatusPageWriter::group`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Phase;
    use std::fs::File;

    #[test]
    fn reader_returns_the_written_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.page");
        let mut writer = StatusPageWriter::create(&path, 3, 2).unwrap();
        let reader = StatusPageReader::open(&path).unwrap();
        writer.phase(Phase::Learn);
        writer.update(|body| body.env_step = 512);
        let seq = writer.enter(CollectiveOp::AllReduce, tag("grad"), 9155, 36620, Dtype::F32, 7);
        let view = reader.view().unwrap();
        assert_eq!((view.rank, view.generation, view.torn), (3, 2, false));
        let sample = view.sample(monotonic_ns());
        assert_eq!((sample.phase, sample.env_step), (Phase::Learn, 512));
        assert_eq!((sample.collective.entered, sample.collective.left), (seq, seq - 1));
        assert_eq!(
            (sample.collective.call.op.as_str(), sample.collective.call.tag.as_str()),
            ("all_reduce", "grad")
        );
        writer.leave();
        assert_eq!(reader.view().unwrap().body.left, seq);
    }

    #[test]
    fn ring_keeps_the_latest_collectives_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        for _ in 0..RING + 5 {
            writer.enter(CollectiveOp::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
            writer.leave();
        }
        let ring = StatusPageReader::open(&path).unwrap().view().unwrap().ring;
        assert_eq!(ring.len(), RING);
        assert!(ring.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
    }

    #[test]
    fn page_1_body_is_consistent_while_the_writer_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        let reader = StatusPageReader::open(&path).unwrap();
        let thread = std::thread::spawn(move || {
            for i in 1..=200_000 {
                writer.update(|body| {
                    body.env_step = i;
                    body.samples = i;
                    body.episodes = i;
                });
            }
        });
        while !thread.is_finished() {
            let view = reader.view().unwrap();
            if !view.torn {
                assert_eq!(view.body.env_step, view.body.samples);
                assert_eq!(view.body.env_step, view.body.episodes);
            }
        }
        thread.join().unwrap();
    }

    #[test]
    fn second_writer_resets_the_page_for_existing_readers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut first = StatusPageWriter::create(&path, 0, 0).unwrap();
        first.enter(CollectiveOp::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
        let reader = StatusPageReader::open(&path).unwrap();
        let _second = StatusPageWriter::create(&path, 1, 5).unwrap();
        let view = reader.view().unwrap();
        assert_eq!((view.rank, view.generation, view.body.entered, view.ring.len()), (1, 5, 0, 0));
    }

    #[test]
    fn groups_are_counted_separately() {
        let mut writer = StatusPageWriter::anonymous(0, 0).unwrap();
        let pair = writer.group("pair", 2);
        assert_eq!(writer.group("pair", 2), pair, "known by its name");
        let entry = |tag_: &str| CollectiveStart {
            op: CollectiveOp::AllReduce,
            tag: tag(tag_),
            ..CollectiveStart::default()
        };
        assert_eq!(writer.enter_in(WORLD, entry("grad")), 1);
        writer.leave();
        let alone = writer.body().chain_hash;
        assert_eq!(writer.enter_in(pair, entry("inner")), 1);
        writer.leave();
        assert_eq!(writer.body().chain_hash, alone, "other groups do not touch the chain of all ranks");
        assert_eq!(writer.enter_in(pair, entry("inner")), 2);
        assert_eq!((writer.body().entered, writer.body().left), (3, 2));
        assert_eq!((writer.groups[1].entered, writer.groups[1].left), (2, 1));
        for index in 0..GROUPS * 2 {
            writer.group(&format!("g{index}"), 2);
        }
        let over = writer.group("one too many", 2);
        writer.enter_in(over, entry("x"));
        assert_eq!(writer.body().entered, 4, "a group beyond the table is still in the ring");
    }

    #[test]
    fn iterations_and_call_sites_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        for iteration in 1..=ITERATIONS as u64 + 3 {
            writer.site(9, || "src/train.rs:7".into());
            writer.enter(CollectiveOp::AllReduce, tag("grad"), 1, 4, Dtype::F32, 9);
            writer.leave();
            writer.update(|body| body.train_iter = iteration);
        }
        let view = StatusPageReader::open(&path).unwrap().view().unwrap();
        assert_eq!(view.iterations.len(), ITERATIONS);
        let last = view.iterations.last().unwrap();
        assert_eq!((last.train_iter, last.seq), (ITERATIONS as u64 + 3, ITERATIONS as u64 + 3));
        assert_eq!(view.ring.last().unwrap().train_iter, last.train_iter - 1);
        assert_eq!(view.sites, [(9, "src/train.rs:7".into())]);
    }

    #[test]
    fn regrouped_page_counts_its_collectives_from_0() {
        use crate::message::GroupMembership;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 3, 0).unwrap();
        let read = || StatusPageReader::open(&path).unwrap().view().unwrap();
        assert_eq!(read().membership, None);
        writer.regroup(0, 4);
        assert_eq!(read().membership, Some(GroupMembership { epoch: 0, members: 4 }));
        for iteration in 1..4 {
            writer.enter(CollectiveOp::AllReduce, tag("grad"), 1, 4, Dtype::F32, 0);
            writer.leave();
            writer.update(|body| body.train_iter = iteration);
        }
        writer.enter(CollectiveOp::AllReduce, tag("grad"), 1, 4, Dtype::F32, 0);
        writer.regroup(1, 3);
        let view = read();
        assert_eq!(view.membership, Some(GroupMembership { epoch: 1, members: 3 }));
        let world = view.groups[0];
        assert_eq!((world.size, world.entered, world.left, world.chain), (3, 0, 0, 0));
        assert_eq!((view.body.entered, view.body.left, view.iterations.len()), (4, 4, 0));
        assert_eq!(writer.enter(CollectiveOp::Barrier, tag("new"), 0, 0, Dtype::U8, 0), 1);
        // A page of an older build has another meaning there, or none.
        writer.words.store(1, &[5]);
        assert_eq!(read().membership, None);
    }

    #[test]
    fn page_of_another_version_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        for version in [layout::OLDEST_VERSION - 1, VERSION + 1] {
            writer.words.store(1, &[version]);
            assert!(StatusPageReader::open(&path).is_err());
        }
        writer.words.store(1, &[VERSION]);
        assert!(StatusPageReader::open(&path).is_ok());
    }

    #[test]
    fn arguments_of_an_older_page_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = StatusPageWriter::create(&path, 3, 0).unwrap();
        // In version 3, the address follows the port.
        writer
            .words
            .store(layout::ARGUMENTS_START, &[1, 3 << 32 | 4, 29_500, u64::from_le_bytes(*b"10.0.0.1")]);
        let arguments = || StatusPageReader::open(&path).unwrap().view().unwrap().group_arguments;
        assert!(arguments().is_some());
        writer.words.store(1, &[3]);
        let view = StatusPageReader::open(&path).unwrap().view().unwrap();
        assert_eq!((view.rank, view.group_arguments), (3, None));
    }

    /// The hook of an older build may still write for a rank that this agent watches.
    #[test]
    fn fingerprints_of_an_older_page_have_no_position() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = StatusPageWriter::create(&path, 3, 0).unwrap();
        let taken =
            |step: u64| [step + 1, 7 << 32 | 0x3_0000, 1, 2, 3, 4, 1.5f64.to_bits(), 2.5f64.to_bits()];
        let start = layout::FINGERPRINTS_START;
        writer.words.store(start, &[taken(5).as_slice(), &[12, 2], &taken(6), &[14, 0]].concat());
        let read = || StatusPageReader::open(&path).unwrap().view().unwrap();
        let positions = |view: View| -> Vec<_> {
            let each = view.fingerprints.iter().map(|taken| (taken.step, taken.position, taken.sum));
            each.collect()
        };
        let at = |seq, steps| Some(crate::message::FingerprintPosition { seq, steps });
        assert_eq!(positions(read()), [(5, at(12, 2), 1.5), (6, at(14, 0), 1.5)]);
        // Version 4 has eight words for each, in a shorter file.
        writer.words.store(1, &[4]);
        writer.words.store(start, &[taken(5), taken(6)].concat());
        writer.words.store(start + 16, &[0; 4]);
        drop(writer);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(layout::OLDER_PAGE_BYTES as u64).unwrap();
        assert_eq!(positions(read()), [(5, None, 1.5), (6, None, 1.5)]);
        assert_eq!(read().sample(monotonic_ns()).fingerprints[1].place().steps, 6, "its step instead");
        file.set_len(layout::OLDER_PAGE_BYTES as u64 - 1).unwrap();
        assert!(StatusPageReader::open(&path).is_err());
    }

    #[test]
    fn page_2_truncated_page_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = StatusPageWriter::create(&path, 4, 0).unwrap();
        let reader = StatusPageReader::open(&path).unwrap();
        drop(writer);
        for length in [0, 1, 8, 80, 4096, PAGE_BYTES as u64 - 1] {
            File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            assert!(reader.view().is_err(), "{length}");
            assert!(StatusPageReader::open(&path).is_err(), "{length}");
        }
        std::fs::write(&path, vec![0xff; PAGE_BYTES]).unwrap();
        assert!(reader.view().is_err());
        let _writer = StatusPageWriter::create(&path, 5, 0).unwrap();
        assert_eq!(reader.view().unwrap().rank, 5);
    }

    #[test]
    fn page_2_truncated_page_does_not_kill_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        for length in [0, 80, 4096] {
            let mut writer = StatusPageWriter::create(&path, 4, 0).unwrap();
            let mut other = StatusPageWriter::create(&folder.path().join("other"), 5, 0).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            for _ in 0..2 * RING {
                writer.site(7, || "src/train.rs:7".into());
                writer.enter(CollectiveOp::Barrier, tag("x"), 0, 0, Dtype::U8, 7);
                writer.leave();
            }
            assert_eq!(writer.body().left, 2 * RING as u64);
            assert!(StatusPageReader::open(&path).is_err(), "truncated to {length}");
            other.update(|body| body.env_step = 3);
            assert_eq!(
                StatusPageReader::open(&folder.path().join("other")).unwrap().view().unwrap().body.env_step,
                3
            );
        }
    }

    /// In a separate process, because it ends.
    #[test]
    fn page_2_other_faults_still_kill_the_process() {
        use std::os::unix::process::ExitStatusExt;
        const OWN: &str = "RANKDECK_TEST_PAGE_FAULT";
        if std::env::var_os(OWN).is_some() {
            let folder = tempfile::tempdir().unwrap();
            let _writer = StatusPageWriter::create(&folder.path().join("page"), 4, 0).unwrap();
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(folder.path().join("x"))
                .unwrap();
            file.set_len(4096).unwrap();
            // SAFETY: the test truncates the file on purpose.
            let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            file.set_len(0).unwrap();
            std::process::exit(i32::from(std::hint::black_box(map[0])));
        }
        let name = "status_page::tests::page_2_other_faults_still_kill_the_process";
        let mut own = std::process::Command::new("/proc/self/exe");
        let ended = own.args(["--exact", name]).env(OWN, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }

    #[test]
    fn page_2_all_blocks_of_a_page_are_reserved() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        // An earlier writer may have left a file of the right size without blocks.
        File::create(&path).unwrap().set_len(PAGE_BYTES as u64).unwrap();
        let _writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= PAGE_BYTES as u64);
    }

    #[test]
    fn pipe_or_directory_is_rejected_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(StatusPageReader::open(&path).is_err());
        assert!(StatusPageReader::open(folder.path()).is_err());
    }

    #[test]
    fn other_file_is_not_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        std::fs::write(&path, vec![0; PAGE_BYTES]).unwrap();
        assert!(StatusPageReader::open(&path).is_err());
        std::fs::write(&path, b"short").unwrap();
        assert!(StatusPageReader::open(&path).is_err());
    }
}
