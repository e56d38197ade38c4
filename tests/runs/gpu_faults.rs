//! What goes wrong with GPUs in a run, on fake ones: each fault named, with its rank, and nothing left.

use crate::gpus::machine;
use crate::support::Console;
use serde_json::Value;

/// A rank's words in a line of the console, whatever its kind.
fn says(line: &Value, words: &str) -> bool {
    line.to_string().contains(words)
}

#[test]
fn a_rank_without_room_on_its_gpu_is_named_with_what_to_do() {
    // A context takes 512 MiB, and libtorch takes at least two at once.
    let Some(machine) = machine(&[("gpus", "2"), ("memory_mib.1", "513")], "gpus = 'all'") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let verdict = console.wait_for("rank 1 runs out of memory", 120, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "out_of_memory"
    });
    assert!(says(&verdict, "CUDA out of memory. Tried to allocate"), "{verdict}");
    let status = console.finish(120);
    assert_eq!(status.code(), Some(1));
    assert!(console.seen.iter().any(|line| says(line, "lower env.num_envs")), "what to do is said");
    assert!(
        !console.seen.iter().any(|line| says(line, "first failure: rank 0")),
        "{:?}",
        console.seen.last()
    );
}

#[test]
fn utilisation_that_a_gpu_does_not_tell_is_no_figure() {
    let knobs =
        [("gpus", "1"), ("utilization", "unsupported"), ("process_utilization", "unsupported"), ("mig", "1")];
    let Some(machine) = machine(&knobs, "gpus = 'all'") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let progress = console.wait_for("memory of the rank", 120, |line| {
        line["kind"] == "progress"
            && line["per_rank"][0]["gpu_memory"].as_u64().is_some_and(|bytes| bytes > 0)
    });
    assert!(progress["per_rank"][0]["gpu_percent"].is_null(), "{progress}");
    console.signal(libc::SIGINT);
    console.finish(120);
}

#[test]
fn a_rank_that_is_killed_is_the_first_failure_and_its_peer_is_not() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    console.wait_for("training", 120, |line| {
        line["kind"] == "progress" && line["train_iter"].as_u64().is_some_and(|iterations| iterations > 2)
    });
    let rank = console.wait_for("the process of rank 1", 10, |line| {
        line["kind"] == "rank" && line["rank"] == 1 && line["pid"].as_u64().is_some()
    });
    // SAFETY: kill of a process of this test.
    unsafe { libc::kill(rank["pid"].as_u64().unwrap() as i32, libc::SIGKILL) };
    let verdict =
        console.wait_for("rank 1 is dead", 120, |line| line["kind"] == "verdict" && line["rank"] == 1);
    assert!(says(&verdict, "SIGKILL"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1));
}
