//! What a writer writes, a reader sees: whole, in order, or refused.

use super::*;
use crate::message::Phase;
use std::fs::File;

#[test]
fn a_reader_sees_what_the_writer_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.page");
    let mut writer = Writer::create(&path, 3, 2).unwrap();
    let reader = Reader::open(&path).unwrap();
    writer.phase(Phase::Learn);
    writer.update(|body| body.env_step = 512);
    let seq = writer.enter(Op::AllReduce, tag("grad"), 9155, 36620, Dtype::F32, 7);
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
fn the_ring_keeps_the_latest_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut writer = Writer::create(&path, 0, 0).unwrap();
    for _ in 0..RING + 5 {
        writer.enter(Op::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
        writer.leave();
    }
    let ring = Reader::open(&path).unwrap().view().unwrap().ring;
    assert_eq!(ring.len(), RING);
    assert!(ring.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
}

#[test]
fn page_1_bodies_are_never_torn_while_the_writer_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut writer = Writer::create(&path, 0, 0).unwrap();
    let reader = Reader::open(&path).unwrap();
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
fn a_writer_that_takes_over_begins_anew_and_harms_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut first = Writer::create(&path, 0, 0).unwrap();
    first.enter(Op::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
    let reader = Reader::open(&path).unwrap();
    let _second = Writer::create(&path, 1, 5).unwrap();
    let view = reader.view().unwrap();
    assert_eq!((view.rank, view.generation, view.body.entered, view.ring.len()), (1, 5, 0, 0));
}

#[test]
fn each_group_is_counted_for_itself() {
    let mut writer = Writer::anonymous(0, 0).unwrap();
    let pair = writer.group("pair", 2);
    assert_eq!(writer.group("pair", 2), pair, "known by its name");
    let entry = |tag_: &str| Entry { op: Op::AllReduce, tag: tag(tag_), ..Entry::default() };
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
fn iterations_and_call_sites_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut writer = Writer::create(&path, 0, 0).unwrap();
    for iteration in 1..=ITERATIONS as u64 + 3 {
        writer.site(9, || "src/train.rs:7".into());
        writer.enter(Op::AllReduce, tag("grad"), 1, 4, Dtype::F32, 9);
        writer.leave();
        writer.update(|body| body.train_iter = iteration);
    }
    let view = Reader::open(&path).unwrap().view().unwrap();
    assert_eq!(view.iterations.len(), ITERATIONS);
    let last = view.iterations.last().unwrap();
    assert_eq!((last.train_iter, last.seq), (ITERATIONS as u64 + 3, ITERATIONS as u64 + 3));
    assert_eq!(view.ring.last().unwrap().train_iter, last.train_iter - 1);
    assert_eq!(view.sites, [(9, "src/train.rs:7".into())]);
}

#[test]
fn a_page_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let writer = Writer::create(&path, 0, 0).unwrap();
    for version in [VERSION - 1, VERSION + 1] {
        writer.words.store(1, &[version]);
        assert!(Reader::open(&path).is_err());
    }
    writer.words.store(1, &[VERSION]);
    assert!(Reader::open(&path).is_ok());
}

#[test]
fn page_2_a_page_that_is_cut_is_an_error_until_it_is_whole_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let writer = Writer::create(&path, 4, 0).unwrap();
    let reader = Reader::open(&path).unwrap();
    drop(writer);
    for length in [0, 1, 8, 80, 4096, PAGE_BYTES as u64 - 1] {
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        assert!(reader.view().is_err(), "{length}");
        assert!(Reader::open(&path).is_err(), "{length}");
    }
    std::fs::write(&path, vec![0xff; PAGE_BYTES]).unwrap();
    assert!(reader.view().is_err());
    let _writer = Writer::create(&path, 5, 0).unwrap();
    assert_eq!(reader.view().unwrap().rank, 5);
}

#[test]
fn page_2_a_page_that_is_cut_under_its_writer_ends_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    for length in [0, 80, 4096] {
        let mut writer = Writer::create(&path, 4, 0).unwrap();
        let mut other = Writer::create(&folder.path().join("other"), 5, 0).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        for _ in 0..2 * RING {
            writer.site(7, || "src/train.rs:7".into());
            writer.enter(Op::Barrier, tag("x"), 0, 0, Dtype::U8, 7);
            writer.leave();
        }
        assert_eq!(writer.body().left, 2 * RING as u64);
        assert!(Reader::open(&path).is_err(), "what was cut to {length} is told as such");
        other.update(|body| body.env_step = 3);
        assert_eq!(Reader::open(&folder.path().join("other")).unwrap().view().unwrap().body.env_step, 3);
    }
}

/// In a process of its own, since that is to end.
#[test]
fn page_2_a_fault_elsewhere_ends_the_process_as_ever() {
    use std::os::unix::process::ExitStatusExt;
    const OWN: &str = "RANKDECK_TEST_PAGE_FAULT";
    if std::env::var_os(OWN).is_some() {
        let folder = tempfile::tempdir().unwrap();
        let _writer = Writer::create(&folder.path().join("page"), 4, 0).unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(folder.path().join("x")).unwrap();
        file.set_len(4096).unwrap();
        // SAFETY: what happens to the file is the point of the test.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        file.set_len(0).unwrap();
        std::process::exit(i32::from(std::hint::black_box(map[0])));
    }
    let name = "status_page::tests::page_2_a_fault_elsewhere_ends_the_process_as_ever";
    let mut own = std::process::Command::new("/proc/self/exe");
    let ended = own.args(["--exact", name]).env(OWN, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
}

#[test]
fn page_2_no_block_of_a_page_is_a_hole() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    // What an earlier writer may have left: a file of the right size without any block.
    File::create(&path).unwrap().set_len(PAGE_BYTES as u64).unwrap();
    let _writer = Writer::create(&path, 0, 0).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= PAGE_BYTES as u64);
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(Reader::open(&path).is_err());
    assert!(Reader::open(folder.path()).is_err());
}

#[test]
fn a_file_that_is_no_page_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    std::fs::write(&path, vec![0; PAGE_BYTES]).unwrap();
    assert!(Reader::open(&path).is_err());
    std::fs::write(&path, b"short").unwrap();
    assert!(Reader::open(&path).is_err());
}
