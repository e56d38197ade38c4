//! Faults on purpose: each strikes its rank, and an inspection from outside names the function and the line.

use crate::harness::*;
use rankdeck_agent::inspect::{InspectTarget, inspect};
use rankdeck_agent::proc;
use rankdeck_agent::proc::ProcessKey;
use rankdeck_proto::inspection::{Inspection, StackMethod};
use rankdeck_types::ids::Rank;
use std::time::Instant;

const SMALL: &str = "[eval]\nevery = 0\n[checkpoint]\nevery = 0\n";

fn trainer(fault: &str, env: &[(&str, &str)]) -> Run {
    let text = experiment(1_000_000, "", SMALL);
    Run::start_with(&text, &["--spawn", "2", "--inject", fault], env)
}

/// Inspects a rank until it is in the expected state.
fn inspect_until(run: &Run, rank: u32, what: &str, fits: impl Fn(&Inspection) -> bool) -> Inspection {
    run.wait_for("both ranks in the group", |events| {
        events
            .iter()
            .filter(|(_, event)| matches!(event, rankdeck_proto::message::RankEvent::Joined { .. }))
            .count()
            == 2
    });
    let pid = run.rank_pid(rank);
    let ident = ProcessKey { pid, start: proc::stat(pid).unwrap().start };
    let started = Instant::now();
    loop {
        let found =
            inspect(vec![InspectTarget { rank: Rank(rank), ident: Some(ident), ..InspectTarget::default() }])
                .remove(0);
        if fits(&found) {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "{what}: {found:#?}\n{}", run.logs());
    }
}

/// `file:line` of a function in the native stack of the main thread.
fn place(found: &Inspection, function: &str) -> Option<(String, u32)> {
    let stack = found
        .threads
        .iter()
        .find(|stack| stack.how == StackMethod::Native && Some(stack.tid) == found.pid)?;
    // Functions of the standard library have the names of closures among their parameters.
    let is_meant = |name: &str| name.split('<').next().is_some_and(|name| name.contains(function));
    let frame = stack.frames.iter().find(|frame| is_meant(&frame.function))?;
    Some((frame.file.clone()?, frame.line?))
}

#[test]
fn deadlock_is_located_by_file_and_line() {
    let run = trainer("lock@1:1", &[]);
    let found = inspect_until(&run, 1, "rank 1 waits for its own lock", |found| {
        place(found, "gather_rows").is_some() && found.blocked_on.is_some()
    });
    let (file, line) = place(&found, "gather_rows").unwrap();
    assert!(file.ends_with("src/trainer/inject/injection.rs") && line > 0, "{file}:{line}");
    assert_eq!(found.blocked_on.as_deref(), Some("a lock or a condition (futex)"));
    eprintln!("an inspection of a trainer took {} ms: gather_rows at {file}:{line}", found.took_ms);
    let waits =
        inspect_until(&run, 0, "rank 0 waits in a collective", |found| place(found, "all_reduce").is_some());
    assert!(
        place(&waits, "iterate").is_some(),
        "the loop is in the stack, through the library: {:#?}",
        waits.threads
    );
}

#[test]
fn spinning_rank_is_located_by_file_and_line() {
    let run = trainer("spin@1:1", &[]);
    let found = inspect_until(&run, 1, "rank 1 spins", |found| place(found, "loop_without_end").is_some());
    assert!(place(&found, "loop_without_end").unwrap().0.ends_with("injection.rs"));
    assert_eq!(proc::stat(run.rank_pid(1)).unwrap().state, 'R');
}

#[test]
fn stopped_rank_has_state_t() {
    let run = trainer("stop@1:1", &[]);
    let found = inspect_until(&run, 1, "rank 1 is stopped", |found| found.os.state == 'T');
    assert_eq!(found.os.words, "suspended by a signal");
    kill(run.rank_pid(1), libc::SIGCONT);
}

#[test]
fn injected_exits_have_their_own_status() {
    for (fault, text) in [
        ("raise@1:1", "injected failure"),
        ("exit@1:1", "rank 1"),
        ("segv@1:1", "signal: 11"),
        ("abort@1:1", "signal: 6"),
        ("kill@1:1", "signal: 9"),
    ] {
        let mut run = trainer(fault, &[]);
        let status = run.wait();
        assert_ne!(status.code(), Some(0), "{fault}");
        assert!(run.logs().contains(text), "{fault}: no {text:?} in\n{}", run.logs());
        run.nothing_left();
    }
}

#[test]
fn check_mode_detects_injected_mismatches() {
    for fault in
        ["mismatch-op@1:1", "mismatch-count@1:1", "mismatch-dtype@1:1", "skip@1:1", "extra-barrier@1:1"]
    {
        let mut run = trainer(fault, &[("RANKDECK_CHECK_COLLECTIVES", "1")]);
        let status = run.wait();
        assert_eq!(status.code(), Some(1), "{fault}\n{}", run.logs());
        assert!(run.logs().contains("rank 1"), "{fault}\n{}", run.logs());
        run.nothing_left();
    }
}

#[test]
fn full_disk_is_reported() {
    let text = experiment(1_000_000, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n");
    let mut run = Run::start_with(&text, &["--spawn", "2", "--inject", "disk-full@0:1"], &[]);
    run.end_with(1);
    assert!(run.logs().contains("No space left on device"), "{}", run.logs());
}

#[test]
fn unknown_fault_exits_2() {
    let mut run = trainer("nonsense@1:1", &[]);
    run.end_with(2);
}

/// Rank 0 waits in a collective for rank 1, which is stopped, and is stopped itself until a slice of its wait
/// is over: what rank 1 sends meanwhile arrives at the moment at which rank 0 sees that the slice has ended.
/// That is an end, no failure.
#[test]
fn ranks_stopped_inside_a_collective_continue() {
    let run = Run::start(&experiment(1_000_000_000, "", SMALL), &["--spawn", "2"]);
    let done = |events: &[(u32, rankdeck_proto::message::RankEvent)]| {
        counters(events, 0).last().map_or(0, |counters| counters.train_iter)
    };
    run.wait_for("a first report", |events| done(events) > 0);
    let (first, other) = (run.rank_pid(0), run.rank_pid(1));
    let pause = |ms| std::thread::sleep(std::time::Duration::from_millis(ms));
    for round in 0..8 {
        let before = done(&run.events());
        kill(other, libc::SIGSTOP);
        pause(400);
        kill(first, libc::SIGSTOP);
        pause(900);
        kill(other, libc::SIGCONT);
        pause(300);
        kill(first, libc::SIGCONT);
        run.wait_for(&format!("progress after stop {round}"), |events| done(events) > before);
    }
}
