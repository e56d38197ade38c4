//! What is found, of files of every kind.

use super::*;
use crate::observe::logs::LINE_BYTES;
use rankdeck_proto::frame::{MAX_FRAME, encode};
use rankdeck_proto::search::LinePlace;
use rankdeck_types::ids::NodeRank;

fn node(logs: &[(&str, &str)]) -> (tempfile::TempDir, RunPaths) {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths { run_dir: folder.path().to_owned(), node: NodeRank(0) };
    for (name, text) in logs {
        let file = paths.node_dir().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    (folder, paths)
}

fn find(paths: &RunPaths, wanted: &LogSearch) -> LogFindings {
    let found = look(std::slice::from_ref(paths), wanted, FRAME_ROOM, &mut |_| true).unwrap();
    assert!(found.over);
    found
}

fn wanted(pattern: &str) -> LogSearch {
    LogSearch { pattern: pattern.into(), limit: 10, ..LogSearch::default() }
}

fn texts(found: &LogFindings) -> Vec<&str> {
    found.hits.iter().map(|hit| hit.text.as_str()).collect()
}

#[test]
fn hits_come_with_their_context_over_files_and_generations() {
    let (_folder, paths) = node(&[
        ("gen0/rank0.log.1", "a\nb\nERROR 1\n"),
        ("gen0/rank0.log", "c\nd\r50%\re\nERROR 2"),
        ("gen0/rank1.log", "fine\n"),
        ("gen1/rank0.log", "error again\n"),
        ("gen1/rank0.page", "error\n"),
    ]);
    let wanted = LogSearch { context: 1, ..wanted("error") };
    let found = find(&paths, &wanted);
    let hits: Vec<(u32, u64, &str)> =
        found.hits.iter().map(|hit| (hit.generation.0, hit.line, hit.text.as_str())).collect();
    assert_eq!(hits, [(0, 3, "ERROR 1"), (0, 6, "ERROR 2"), (1, 1, "error again")]);
    assert_eq!(
        (found.hits[0].before.as_slice(), found.hits[0].after.as_slice()),
        (&["b".to_owned()][..], &["c".to_owned()][..])
    );
    assert_eq!(found.hits[1].before, ["e"], "as a terminal would show it");
    assert_eq!((found.lines, found.more), (8, 0));
    let exact = find(&paths, &LogSearch { pattern: "ERROR".into(), ..wanted.clone() });
    assert_eq!(exact.hits.len(), 2, "capitals are meant as such");
    let others = find(&paths, &LogSearch { invert: true, ranks: vec![Rank(1)], ..wanted.clone() });
    assert_eq!(texts(&others), ["fine"]);
    let few = find(&paths, &LogSearch { limit: 1, ..wanted });
    assert_eq!((few.hits.len(), few.hits[0].text.as_str(), few.more), (1, "error again", 2));
}

#[test]
fn the_newest_are_those_of_all_ranks_by_time() {
    let logs = [
        ("gen0/rank0.log", "x 0\nx 1\n"),
        ("gen0/rank0.log.times", "read 4 10000\nread 8 90000\n"),
        ("gen0/rank1.log", "x 2\nx 3\n"),
        ("gen0/rank1.log.times", "read 4 20000\nread 8 30000\n"),
    ];
    let (_folder, paths) = node(&logs);
    let found = find(&paths, &LogSearch { limit: 2, ..wanted("x") });
    assert_eq!((texts(&found), found.more), (vec!["x 3", "x 1"], 2));
    let at = found.hits[0].place();
    let earlier = find(&paths, &LogSearch { part: Part::Before(at), ..wanted("x") });
    assert_eq!((texts(&earlier), earlier.more, earlier.newer), (vec!["x 0", "x 2"], 0, 2));
    let later = find(&paths, &LogSearch { part: Part::After(at), ..wanted("x") });
    assert_eq!((texts(&later), later.more, later.newer), (vec!["x 1"], 3, 0));
}

#[test]
fn lines_are_found_by_the_time_at_which_they_were_read() {
    let (_folder, paths) = node(&[
        ("gen0/rank0.log.1", "a\nbb\n"),
        ("gen0/rank0.log", "ccc\nd\n"),
        ("gen0/rank0.log.times", "read 2 10000\nread 5 20000\nnewer 5\nread 9 30000\nread 11 40000\n"),
        ("gen1/rank0.log", "no times\n"),
    ]);
    let all = wanted("");
    let found = |wanted: &LogSearch| -> Vec<String> {
        find(&paths, wanted).hits.into_iter().map(|hit| hit.text).collect()
    };
    assert_eq!(found(&all), ["a", "bb", "ccc", "d", "no times"]);
    assert_eq!(found(&LogSearch { since: Some(20.0), until: Some(30.0), ..all.clone() }), ["bb", "ccc"]);
    let late = find(&paths, &LogSearch { since: Some(40.0), ..all });
    assert_eq!((late.hits[0].time, late.hits.len(), late.untimed), (Some(40.0), 1, 1));
}

#[test]
fn lines_without_end_and_bytes_that_are_no_text_are_bounded() {
    let long = "x".repeat(3 << 20);
    let (_folder, paths) = node(&[("gen0/rank0.log", &format!("{long}\nxend\u{fffd}\n"))]);
    std::fs::write(paths.generation_dir(Generation(0)).join("rank1.log"), b"\xffx\nx\xfe\xfd nan\n").unwrap();
    let found = find(&paths, &wanted("^x"));
    assert_eq!(found.hits.len(), 3);
    assert!(found.hits[0].text.len() <= LINE_BYTES);
    assert_eq!(texts(&find(&paths, &wanted("^x.*nan$"))), ["x\u{fffd}\u{fffd} nan"]);
}

#[test]
fn a_line_that_was_written_before_the_log_was_moved_away_counts_once() {
    let (_folder, paths) = node(&[
        ("gen0/rank0.log.1", "one\nnan 2\nnan 3\nnan"),
        ("gen0/rank0.log", "nan 3\nnan 4\n"),
        ("gen0/rank0.log.times", "older 100\nnewer 110 9\nread 200 5000\n"),
    ]);
    let found = find(&paths, &wanted("nan"));
    let hits: Vec<(u64, &str)> = found.hits.iter().map(|hit| (hit.line, hit.text.as_str())).collect();
    assert_eq!(hits, [(9, "nan 2"), (10, "nan 3"), (11, "nan 4")]);
    assert_eq!((found.lines, found.gone_bytes, found.bytes, found.of_bytes), (4, 100, 22, 22));
}

#[test]
fn a_wrong_pattern_is_named_and_a_search_that_is_called_off_ends_at_once() {
    let (_folder, paths) = node(&[("gen0/rank0.log", &"loss nan\n".repeat(1_000_000))]);
    let nodes = [paths];
    assert_eq!(look(&nodes, &wanted("(nan"), FRAME_ROOM, &mut |_| true).unwrap_err(), "unclosed group");
    let mut told = Vec::new();
    let found = look(&nodes, &wanted("nan"), FRAME_ROOM, &mut |so_far| {
        told.push((so_far.bytes, so_far.of_bytes));
        told.len() < 3
    });
    let found = found.unwrap();
    assert!(!found.over && found.lines < 500_000, "{}", found.lines);
    assert!(told.len() == 3 && told.is_sorted() && told[2].0 < told[2].1, "{told:?}");
    let all = look(&nodes, &wanted("nan"), FRAME_ROOM, &mut |_| true).unwrap();
    assert_eq!((all.lines, all.hits.len(), all.more), (1_000_000, 10, 999_990));
    assert_eq!(all.hits[9].line, 1_000_000);
}

#[test]
fn search_2_what_is_found_fits_a_frame_whatever_the_lines_are() {
    let line = format!("{}\n", "\u{1b}".repeat(LINE_BYTES));
    let (_folder, paths) = node(&[("gen0/rank0.log", &line.repeat(200))]);
    let all = LogSearch { limit: 10_000, ..wanted("") };
    let around = Part::Around(LinePlace { line: 100, ..LinePlace::default() });
    for wanted in [all.clone(), LogSearch { part: around, ..all }] {
        let found = find(&paths, &wanted);
        assert!(!found.hits.is_empty() && encode(&found).unwrap().len() < MAX_FRAME);
    }
}

/// Two ranks that write a line each second, and one that writes a hundred.
fn three_ranks() -> (tempfile::TempDir, RunPaths) {
    let (folder, paths) = node(&[]);
    std::fs::create_dir_all(paths.generation_dir(Generation(0))).unwrap();
    for (rank, per_second) in [(0, 1), (1, 1), (2, 100)] {
        let (mut text, mut times) = (String::new(), String::new());
        for second in 1..=60 {
            for n in 0..per_second {
                text += &format!("rank {rank} second {second} line {n}\n");
            }
            times += &format!("read {} {}\n", text.len(), second * 1000);
        }
        let log = paths.rank_log(Generation(0), Rank(rank));
        std::fs::write(format!("{}.times", log.display()), times).unwrap();
        std::fs::write(log, text).unwrap();
    }
    (folder, paths)
}

#[test]
fn lines_around_a_moment_are_those_of_all_ranks_as_far_as_they_are_complete() {
    let (_folder, paths) = three_ranks();
    let hit = find(&paths, &wanted("rank 1 second 30 "));
    let at = hit.hits[0].place();
    let found = find(&paths, &LogSearch { part: Part::Around(at), limit: 600, ..LogSearch::default() });
    assert!(found.hits.is_sorted_by_key(LogHit::place));
    let of = |rank| found.hits.iter().filter(|hit| hit.rank == Rank(rank)).count();
    // A hundred lines of the one on each side are a second before and one after.
    assert!(of(0) >= 2 && of(1) >= 2 && (150..=201).contains(&of(2)), "{} {} {}", of(0), of(1), of(2));
    assert!(found.hits.iter().any(|hit| hit.place() == at) && found.more > 0 && found.newer > 0);
    let seconds: Vec<f64> = found.hits.iter().filter_map(|hit| hit.time).collect();
    assert!(seconds.iter().all(|second| (28.0..=32.0).contains(second)), "{seconds:?}");
    let first = LinePlace { line: 1, time_ms: 10, rank: Rank(0), ..LinePlace::default() };
    let found = find(&paths, &LogSearch { part: Part::Around(first), limit: 60, ..LogSearch::default() });
    assert_eq!((texts(&found)[0].split(" line").next(), found.more), (Some("rank 2 second 1"), 0));
}
