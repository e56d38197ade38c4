//! The stream has each line once, with its number and its place, whatever the files are.

use super::*;
use crate::observe::logs::Splitter;
use std::io::Write;

/// All lines of a log: number, end, text.
fn lines(log: &Log) -> Vec<(u64, u64, String)> {
    let mut all = Vec::new();
    let kept = log.open();
    let read = kept.read(&mut |piece| {
        if let Some(end) = piece.long_end {
            all.push((piece.first, end, String::from_utf8_lossy(piece.bytes).into_owned()));
            return true;
        }
        let mut end = piece.begin;
        for (number, raw) in (piece.first..).zip(piece.bytes.split_inclusive(|byte| *byte == b'\n')) {
            end += raw.len() as u64;
            let text = raw.strip_suffix(b"\n").unwrap_or(raw);
            all.push((number, end, shown(text).into_owned()));
        }
        true
    });
    assert!(read.unwrap());
    all
}

fn log(folder: &Path, parts: &[(&str, &[u8])]) -> Log {
    for (ending, bytes) in parts {
        std::fs::write(folder.join(format!("rank0.log{ending}")), bytes).unwrap();
    }
    Log { generation: Generation(0), rank: Rank(0), path: folder.join("rank0.log") }
}

#[test]
fn bytes_that_are_in_both_files_are_one_and_a_line_that_was_cut_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    // All that was written: "0\n1\n22\n3 goes on\n4\n5"; the first 2 bytes are gone, 4 are in both.
    let log = log(
        folder.path(),
        &[("", b"\n3 goes on\n4\n5"), (".1", b"1\n22\n3 go"), (".times", b"older 2\nnewer 6 2\n")],
    );
    let texts = |log: &Log| -> Vec<(u64, u64, String)> { lines(log) };
    let wanted = [(2, 4, "1"), (3, 7, "22"), (4, 17, "3 goes on"), (5, 19, "4"), (6, 20, "5")];
    assert_eq!(texts(&log), wanted.map(|(number, end, text)| (number, end, text.to_owned())));
    let kept = log.open();
    assert_eq!((kept.bytes(), kept.gone()), (18, 2));
}

#[test]
fn of_files_that_do_not_touch_each_begins_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &[("", b"c\nd\n"), (".1", b"a\nb"), (".times", b"older 0\nnewer 9\n")]);
    let texts: Vec<String> = lines(&log).into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(texts, ["a", "b", "c", "d"]);
}

#[test]
fn of_an_older_agent_numbers_count_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &[("", b"c\n"), (".1", b"a\nb\n")]);
    assert_eq!(lines(&log), [(1, 2, "a".into()), (2, 4, "b".into()), (3, 6, "c".into())]);
}

#[test]
fn a_line_that_is_longer_than_a_piece_is_cut_and_those_around_it_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = b"first\n".to_vec();
    bytes.extend(vec![b'x'; 3 * PIECE]);
    bytes.extend(b"\rshown at the end\nlast\n");
    bytes.extend(vec![b'y'; PIECE + 7]);
    let log = log(folder.path(), &[("", &bytes)]);
    let found = lines(&log);
    let ends: Vec<(u64, u64)> = found.iter().map(|(number, end, _)| (*number, *end)).collect();
    let long = 6 + 3 * PIECE as u64 + 18;
    assert_eq!(ends, [(1, 6), (2, long), (3, long + 5), (4, bytes.len() as u64)]);
    assert_eq!(
        (found[0].2.as_str(), found[1].2.as_str(), found[2].2.as_str()),
        ("first", "shown at the end", "last")
    );
    assert_eq!(found[3].2, "y".repeat(LINE_BYTES));
}

#[test]
fn a_line_is_shown_as_the_lines_that_consoles_get() {
    let long = [b"x\r".as_slice(), &[b'y'; 9000]].concat();
    let samples: [&[u8]; 8] = [b"", b"a", b"10%\r20%", b"done\r", b"a\r\rb\r\r", b"\r", b"\xff\xfe a", &long];
    for raw in samples {
        let mut splitter = Splitter::default();
        let mut line = None;
        splitter.push(&[raw, b"\n"].concat(), |text| line = Some(text));
        assert_eq!(Some(shown(raw).into_owned()), line, "{raw:?}");
    }
}

/// LOG-1: what the console is told as a line's number is its number here, too, whatever was moved away.
#[test]
fn log_1_numbers_are_those_of_the_lines_that_were_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &[("", b"")]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&log.path).unwrap();
    let mut tail = crate::observe::logs::tail_for_test(&log.path, 100_000);
    let mut delivered = Vec::new();
    for i in 0..30_000 {
        writeln!(file, "line {i}").unwrap();
        if i % 100 == 0 {
            tail(&mut |batch| delivered.extend((batch.first + 1..).zip(batch.lines)));
        }
    }
    tail(&mut |batch| delivered.extend((batch.first + 1..).zip(batch.lines)));
    let found: Vec<(u64, String)> = lines(&log).into_iter().map(|(number, _, text)| (number, text)).collect();
    assert!(found.len() > 5_000 && found.len() < 25_000, "{}", found.len());
    let kept = &delivered[delivered.len() - found.len()..];
    // The first may be cut.
    assert_eq!(found[1..], kept[1..]);
    assert_eq!(found[0].0, kept[0].0);
}
