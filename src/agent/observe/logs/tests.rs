//! Lines come whole and once, whatever the file does; what is skipped is counted.

use super::*;
use std::io::Write;

fn split(parts: &[&[u8]]) -> Vec<String> {
    let mut splitter = Splitter::default();
    let mut lines = Vec::new();
    for part in parts {
        splitter.push(part, |line| lines.push(line));
    }
    lines.extend(splitter.finish());
    lines
}

fn tail_of(path: &std::path::Path) -> Tail {
    Tail::new(Rank(0), Generation(0), path.to_owned(), Arc::default())
}

/// LOG-1, LOG-3: as fast as this machine writes.
#[test]
fn log_3_a_flood_stays_within_the_bound_and_every_line_is_delivered_or_counted() {
    const LINES: u64 = 1_500_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut tail = tail_of(&path);
    tail.limit = 16 << 20;
    let cuts = {
        let probe = folder.path().join("probe");
        std::fs::write(&probe, vec![0; 1 << 20]).unwrap();
        cut_front(&OpenOptions::new().write(true).open(&probe).unwrap(), 1 << 19).is_some()
    };
    let writer = std::thread::spawn(move || {
        let mut block = String::new();
        for number in 0..LINES {
            block += &format!("line {number:08} {}\n", "x".repeat(85));
            if block.len() > 60_000 || number + 1 == LINES {
                file.write_all(block.as_bytes()).unwrap();
                block.clear();
            }
        }
    });
    let (mut delivered, mut largest, mut grown) = (0, 0, 1);
    let mut deliver = |batch: Batch| {
        delivered += batch.lines.len() as u64;
        // A line that is there is whole, and is what its number says.
        for (number, line) in (batch.first..).zip(&batch.lines) {
            assert!(
                line.len() == 99 && (!cuts || line.starts_with(&format!("line {number:08} "))),
                "{number}: {line}"
            );
        }
    };
    while grown > 0 || !writer.is_finished() {
        grown = tail.round(&mut deliver);
        largest = largest.max(std::fs::metadata(&path).unwrap().len());
    }
    writer.join().unwrap();
    tail.finish(&mut deliver);
    let lost = tail.lost.load(Ordering::Relaxed);
    let all = std::fs::metadata(&path).unwrap().len()
        + std::fs::metadata(folder.path().join("rank0.log.1")).unwrap().len();
    assert!(all <= 2 * tail.limit + ROUND_BYTES, "{all} bytes are left of 150 MB");
    assert_eq!(delivered + lost, tail.next);
    assert!(!cuts || tail.next == LINES, "{} lines of {LINES}, {lost} of them lost", tail.next);
    println!("largest {largest}, delivered {delivered}, lost {lost}");
}

#[test]
fn log_3_a_copy_that_cannot_be_made_does_not_keep_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    std::fs::create_dir(folder.path().join("rank0.log.1")).unwrap();
    std::fs::write(&path, "line\n".repeat(1000)).unwrap();
    let mut tail = tail_of(&path);
    tail.limit = 1000;
    let mut count = 0;
    tail.round(&mut |batch| count += batch.lines.len());
    assert_eq!(count, 1000);
    assert!(std::fs::metadata(&path).unwrap().len() < 1000);
    let [told] = &tail.news[..] else { panic!("LOG-4: {:?}", tail.news) };
    assert!(told.contains("older lines of ") && told.contains("rank0.log cannot be kept"), "{told}");
}

#[test]
fn log_4_what_cannot_be_read_is_told_once_and_told_when_it_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    let mut tail = tail_of(&path);
    let mut lines = Vec::new();
    let mut round = |tail: &mut Tail| {
        tail.round(&mut |batch| lines.extend(batch.lines));
        std::mem::take(&mut tail.news)
    };
    assert_eq!(round(&mut tail), [""; 0], "the rank has not begun");
    std::fs::create_dir(&path).unwrap();
    let told = round(&mut tail);
    assert!(told.len() == 1 && told[0].contains("cannot be read: "), "{told:?}");
    assert_eq!(round(&mut tail), [""; 0], "once");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "line\n").unwrap();
    let told = round(&mut tail);
    assert!(told.len() == 1 && told[0].contains("works again"), "{told:?}");
    // Beside it, times cannot be written.
    std::fs::remove_file(folder.path().join("rank0.log.times")).unwrap();
    std::fs::create_dir(folder.path().join("rank0.log.times")).unwrap();
    tail.times.begins_at(0, 0);
    let told = round(&mut tail);
    assert!(told.len() == 1 && told[0].contains("times of lines of "), "{told:?}");
    assert_eq!(lines, ["line"]);
}

#[test]
fn lines_look_as_on_a_terminal() {
    assert_eq!(split(&[b"a\nb", b"c\n\nd"]), ["a", "bc", "", "d"]);
    assert_eq!(split(&[b"10%\r20%\r", b"30%\ndone\r\n"]), ["30%", "done"]);
    assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
    let long = vec![b'x'; LINE_BYTES * 3];
    assert_eq!(split(&[&long, b"\ny\n"]), [&"x".repeat(LINE_BYTES), "y"]);
}

#[test]
fn log_1_every_line_has_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut tail = tail_of(&path);
    let mut batches = Vec::new();
    for i in 0..1000 {
        writeln!(file, "line {i}").unwrap();
    }
    tail.round(&mut |batch| batches.push(batch));
    write!(file, "unfinished").unwrap();
    let last = tail.finish(&mut |batch| batches.push(batch));
    assert_eq!((last.len(), last[18].as_str(), last[19].as_str()), (LAST_LINES, "line 999", "unfinished"));
    let mut next = 0;
    for batch in &batches {
        assert_eq!(batch.first, next);
        next += batch.lines.len() as u64;
    }
    assert_eq!(next, 1001);
    let (first, lines, times) = super::tail(&path, 2).unwrap();
    assert_eq!((first, lines), (999, vec!["line 999".into(), "unfinished".into()]));
    let (read, all) = (batches.last().unwrap(), times.iter().map(|some| some.lines).sum::<u32>());
    assert_eq!((all, times.last().unwrap().time_ms / 10_000), (2, read.times[0].time_ms / 10_000));
}

#[test]
fn log_3_a_file_over_the_bound_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut tail = tail_of(&path);
    tail.limit = 1000;
    let mut lines = Vec::new();
    for i in 0..500 {
        writeln!(file, "line {i}").unwrap();
        tail.round(&mut |batch| lines.extend(batch.lines));
    }
    assert_eq!(lines, (0..500).map(|i| format!("line {i}")).collect::<Vec<_>>());
    assert!(std::fs::metadata(&path).unwrap().len() <= 1010);
    assert!(folder.path().join("rank0.log.1").exists());
}

/// SECRET-2: in one write or in several, in what is passed on and in the file.
#[test]
fn secret_2_a_secret_leaves_the_file_and_is_in_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.log");
    let secrets = Arc::new(Secrets::new(["s3cret-value".to_owned()].into_iter()));
    let mut tail = Tail { secrets, ..tail_of(&path) };
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut lines = Vec::new();
    for part in ["key=s3cret-value\nhalf s3cr", "et-value end\n", "s3cret-", "other\nlast s3cret-val"] {
        file.write_all(part.as_bytes()).unwrap();
        tail.round(&mut |batch: Batch| lines.extend(batch.lines));
    }
    // More than one round takes in is counted only, and hidden all the same.
    let flood = "x s3cret-value\n".repeat(600_000);
    file.write_all(b"\n").unwrap();
    file.write_all(flood.as_bytes()).unwrap();
    tail.round(&mut |batch: Batch| lines.extend(batch.lines));
    tail.finish(&mut |batch: Batch| lines.extend(batch.lines));
    assert_eq!(lines[..3], ["key=************", "half ************ end", "s3cret-other"]);
    assert!(lines.iter().all(|line| !line.contains("s3cret-value")));
    let left = std::fs::read_to_string(&path).unwrap();
    assert_eq!((left.matches("s3cret-value").count(), left.len()), (0, 68 + flood.len()), "{}", &left[..80]);
}
