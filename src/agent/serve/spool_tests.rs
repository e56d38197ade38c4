//! The spool on real files.

use super::*;
use rankdeck_types::ids::NodeRank;
use std::io::Write;

fn place() -> (tempfile::TempDir, RunPaths) {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(0) };
    std::fs::create_dir(paths.node_dir()).unwrap();
    (folder, paths)
}

fn notice(text: &str) -> RecordEvent {
    RecordEvent::Notice { text: text.into() }
}

fn numbers(lines: &[Line]) -> Vec<u64> {
    lines.iter().map(|line| line.seq).collect()
}

fn wait_until_visible(spool: &Spool, seq: u64) {
    let begun = std::time::Instant::now();
    while *spool.watch().borrow() < seq {
        assert!(begun.elapsed() < Duration::from_secs(20), "record {seq} never became visible");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn spool_1_numbers_go_on_after_a_restart_and_a_torn_line() {
    let (_folder, paths) = place();
    let spool = Spool::open(&paths, |_| panic!("nothing there yet")).unwrap();
    assert_eq!((spool.append(Generation(0), notice("a")), spool.append(Generation(0), notice("b"))), (1, 2));
    assert!(spool.flush(Duration::from_secs(20)));
    drop(spool);
    let mut file = OpenOptions::new().append(true).open(paths.spool()).unwrap();
    file.write_all(br#"{"seq":3,"time":0,"gener"#).unwrap();
    let mut seen = Vec::new();
    let spool = Spool::open(&paths, |record| seen.push(record.seq)).unwrap();
    assert_eq!(seen, [1, 2]);
    assert_eq!(spool.append(Generation(1), notice("c")), 3);
    assert!(spool.flush(Duration::from_secs(20)));
    let all = records(&paths.spool()).unwrap();
    assert_eq!(all.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(all[2].event, notice("c"));
}

#[test]
fn readers_start_anywhere_whether_from_memory_or_from_the_file() {
    let (_folder, paths) = place();
    let spool = Spool::open(&paths, |_| {}).unwrap();
    let long = "x".repeat(40_000);
    for _ in 0..300 {
        spool.append(Generation(0), notice(&long));
    }
    assert!(spool.flush(Duration::from_secs(60)));
    assert!(!spool.is_recent(0), "twelve megabytes do not stay in memory");
    let mut after = 0;
    let mut seen = Vec::new();
    loop {
        let lines = spool.read(after, 100_000);
        let Some(last) = lines.last() else { break };
        after = last.seq;
        seen.extend(numbers(&lines));
    }
    assert_eq!(seen, (1..=300).collect::<Vec<_>>());
    assert_eq!(numbers(&spool.read(154, 1)), [155]);
    assert_eq!(numbers(&spool.read(299, 1 << 20)), [300]);
    assert_eq!(spool.read(300, 1 << 20), []);
    drop(spool);
    let again = Spool::open(&paths, |_| {}).unwrap();
    assert_eq!(numbers(&again.read(298, 1 << 20)), [299, 300]);
}

#[test]
fn spool_3_a_full_disk_costs_nothing_but_durability() {
    let (_folder, paths) = place();
    std::os::unix::fs::symlink("/dev/full", paths.spool()).unwrap();
    let spool = Spool::open(&paths, |_| {}).unwrap();
    for i in 1..=20 {
        assert_eq!(spool.append(Generation(0), notice("n")), i);
    }
    wait_until_visible(&spool, 20);
    assert!(spool.is_failing() && spool.lost() == 0);
    assert_eq!(numbers(&spool.read(0, 1 << 20)), (1..=20).collect::<Vec<_>>());
    assert_eq!(numbers(&spool.read(15, 1 << 20)), [16, 17, 18, 19, 20]);
    assert!(!spool.flush(Duration::from_millis(10)));
}

#[test]
fn spool_4_memory_stays_bounded_and_losses_are_counted() {
    let mut index = Index { stride: 1, entries: Vec::new() };
    for seq in 1..=100_000 {
        index.note(seq, seq * 10);
    }
    assert!(index.entries.len() <= INDEX_ENTRIES);
    for seq in [1, 2, 4_999, 100_000] {
        let offset = index.before(seq);
        assert!(offset <= seq * 10 && offset + index.stride * 10 > seq * 10, "record {seq} at {offset}");
    }
    let (_folder, paths) = place();
    std::os::unix::fs::symlink("/dev/full", paths.spool()).unwrap();
    let spool = Spool::open(&paths, |_| {}).unwrap();
    let long = "x".repeat(1_000_000);
    for _ in 0..40 {
        spool.append(Generation(0), notice(&long));
    }
    assert!(spool.lost() >= 5, "lost {}", spool.lost());
    let kept = spool.shared.lock().recent_bytes;
    assert!(kept <= WAITING_BYTES, "kept {kept}");
}

#[test]
fn a_record_too_long_for_a_frame_becomes_a_notice() {
    let (_folder, paths) = place();
    let spool = Spool::open(&paths, |_| {}).unwrap();
    spool.append(Generation(0), notice(&"x".repeat(MAX_FRAME)));
    assert!(spool.flush(Duration::from_secs(20)));
    assert!(spool.read(0, 1)[0].json.len() < 300);
}

/// SPOOL-6: a disk that does not come back from a flush, as a busy one for seconds and a broken one for ever.
#[test]
fn spool_6_records_and_the_manifest_are_seen_while_the_disk_flushes() {
    let (_folder, paths) = place();
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let spool = Spool::flushed_by(
        &paths,
        |_| {},
        move |_| {
            let _ = hold.recv();
            Ok(())
        },
    )
    .unwrap();
    for world_size in 1..=20 {
        let manifest = manifest::Manifest { world_size, ..manifest::Manifest::default() };
        spool.save_manifest(manifest.bytes());
        let seq = spool.append(Generation(0), notice("a"));
        assert!(spool.flush(Duration::from_secs(20)));
        assert_eq!(manifest::Manifest::load(&paths.manifest()), Some(manifest));
        wait_until_visible(&spool, seq);
    }
    drop(held);
}

/// SPOOL-6: what a console has seen happen, another console finds in the manifest.
#[test]
fn spool_6_a_manifest_is_in_place_before_the_records_that_follow_it() {
    let (_folder, paths) = place();
    let spool = Spool::open(&paths, |_| {}).unwrap();
    for world_size in 1..=200 {
        let manifest = manifest::Manifest { world_size, ..manifest::Manifest::default() };
        spool.save_manifest(manifest.bytes());
        wait_until_visible(&spool, spool.append(Generation(0), notice("a")));
        assert_eq!(manifest::Manifest::load(&paths.manifest()), Some(manifest));
    }
}
