//! An agent looks in its files for consoles that ask.

use super::bed::*;
use crate::support::wait_until;
use rankdeck_proto::message::*;
use rankdeck_proto::search::*;

fn search(console: &mut Console, request: u64, pattern: &str) {
    let wanted = LogSearch { pattern: pattern.into(), limit: 10, ..LogSearch::default() };
    console.send(&ConsoleMessage::Search { request, wanted: Some(Box::new(wanted)) });
}

fn answers(console: &Console, of: u64) -> Vec<LogFindings> {
    let all = console.others.iter().filter_map(|message| match message {
        AgentMessage::Found { request, findings } if *request == of => Some(LogFindings::clone(findings)),
        _ => None,
    });
    all.collect()
}

/// Waits until all that a rank says is in its log.
fn logged(bed: &Bed, generation: u32, rank: u32) {
    let log = bed.node_dir(0).join(format!("gen{generation}/rank{rank}.log"));
    wait_until("the whole log", 60, || std::fs::read(&log).is_ok_and(|text| text.ends_with(b"\nend\n")));
}

/// What was found when it was over.
fn found(console: &mut Console, request: u64) -> LogFindings {
    console.wait("the end of the search", |console| answers(console, request).iter().any(|told| told.over));
    answers(console, request).into_iter().find(|told| told.over).unwrap()
}

#[test]
fn an_agent_finds_lines_of_all_generations_and_a_newer_search_calls_off_the_one_before() {
    let bed = Bed::new("searching");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let program = ["/bin/sh", "-c", "echo needle $RANK; seq 1 5000; echo end; sleep 1000"];
    console.launch(bed.spec(0, 2, &program));
    logged(&bed, 0, 0);
    logged(&bed, 0, 1);
    console.stop(StopMode::Kill, 0);
    console.stopped();
    console.records.clear();
    console.launch(bed.spec(1, 1, &program));
    logged(&bed, 1, 0);
    search(&mut console, 7, "NEEDLE");
    let none = found(&mut console, 7);
    assert_eq!((none.hits.len(), none.lines, none.cut.as_str()), (0, 15_006, ""));
    // Times of lines are written from time to time.
    let mut request = 100;
    let mut hits = Vec::new();
    wait_until("the times of all lines", 60, || {
        request += 1;
        search(&mut console, request, "needle");
        hits = found(&mut console, request).hits;
        hits.iter().all(|hit| hit.time.is_some())
    });
    let told: Vec<(u32, u32, u64)> =
        hits.iter().map(|hit| (hit.generation.0, hit.rank.0, hit.line)).collect();
    let mut sorted = told.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [(0, 0, 1), (0, 1, 1), (1, 0, 1)]);
    assert!(hits.is_sorted_by_key(LogHit::place), "{hits:?}");
    search(&mut console, 1009, "(");
    assert_eq!(found(&mut console, 1009).cut, "`(`: unclosed group");
    // Enough to look through for longer than an order takes.
    let log = bed.node_dir(0).join("gen1/rank0.log");
    std::fs::write(log.with_file_name("rank5.log"), "loss nan\n".repeat(100_000)).unwrap();
    search(&mut console, 1010, "n.n");
    search(&mut console, 1011, "needle");
    assert_eq!(found(&mut console, 1011).hits.len(), 3);
    assert_eq!(answers(&console, 1010).iter().filter(|told| told.over).count(), 0);
    console.stop(StopMode::Kill, 0);
    console.stopped();
}
