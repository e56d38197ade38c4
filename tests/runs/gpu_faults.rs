//! What goes wrong with GPUs in a run, on fake ones: each fault named, with its rank, and nothing left.

use crate::gpus::{Machine, machine};
use crate::support::Console;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

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

/// A rank trains, and has saved what it learnt.
fn trained(machine: &Machine, knobs_end: &str) -> Console {
    let text = std::fs::read_to_string(&machine.experiment).unwrap();
    std::fs::write(&machine.experiment, format!("{text}[checkpoint]\nevery = 5\n{knobs_end}")).unwrap();
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    console.wait_for("a checkpoint", 120, |line| {
        line["kind"] == "progress" && line["train_iter"].as_u64().is_some_and(|iterations| iterations > 10)
    });
    console
}

/// The checkpoint of the only run is whole.
fn has_checkpoint(machine: &Machine) -> bool {
    let runs = std::fs::read_dir(machine.folder().join("runs")).unwrap().flatten();
    let latest = |run: std::fs::DirEntry| run.path().join("checkpoints/latest.ckpt");
    runs.map(latest).any(|path| path.metadata().is_ok_and(|file| file.len() > 1000))
}

#[test]
fn a_gpu_that_falls_off_the_bus_is_named_with_its_rank_and_the_checkpoint_stays() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("lost", "1");
    let verdict = console.wait_for("the GPU of rank 1 is blamed", 60, |line| {
        line["kind"] == "verdict"
            && line["rank"] == 1
            && (line["reason_code"] == "gpu_failed" || line["reason_code"] == "gpu_lost")
    });
    assert!(says(&verdict, "nvidia-smi"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.told());
    let end = console.seen.last().unwrap();
    assert_eq!(end["first_failure"]["rank"], 1, "{end}");
    assert!(has_checkpoint(&machine));
}

#[test]
fn memory_that_ends_in_the_middle_of_training_costs_no_checkpoint_and_what_helps_is_said() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("cuda_error.1", "2");
    let verdict = console.wait_for("rank 1 has no room", 60, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "out_of_memory"
    });
    assert!(says(&verdict, "lower env.num_envs") && says(&verdict, "no room left"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.told());
    assert!(has_checkpoint(&machine));
}

#[test]
fn an_xid_of_a_rank_that_hangs_names_rank_reason_and_line() {
    let Some(mut machine) = machine(&[("gpus", "2"), ("hang_at", "700")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    // Both are in the collective that hangs.
    crate::support::wait_until("the hang", 120, || {
        ["0", "1"].iter().all(|rank| machine.fake.counts(rank).get("collectives").is_some_and(|n| *n > 700))
    });
    machine.fake.set("xid", "1 94");
    let verdict = console.wait_for("rank 1 is named", 60, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "gpu_fault"
    });
    assert!(says(&verdict, "Xid 94 (memory error, contained)"), "{verdict}");
    assert!(says(&verdict, "src/trainer/") && says(&verdict, ".rs:"), "{verdict}");
    console.signal(libc::SIGINT);
    console.signal(libc::SIGINT);
    console.finish(120);
    assert!(has_checkpoint(&machine));
}

/// Its peer waits in NCCL, whose kernels no look can see into: what is said comes from the pages of both.
#[test]
fn a_rank_that_is_stopped_is_named_while_its_peer_waits_in_nccl() {
    let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    let rank = console.wait_for("the process of rank 1", 10, |line| {
        line["kind"] == "rank" && line["rank"] == 1 && line["pid"].as_u64().is_some()
    });
    let pid = rank["pid"].as_u64().unwrap() as i32;
    // SAFETY: signals to a process of this test.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let verdict = console.wait_for("rank 1 is stopped", 60, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "stopped"
    });
    assert_eq!(verdict["verdict"], "frozen", "{verdict}");
    let peer = |line: &Value| line["kind"] == "verdict" && line["rank"] == 0;
    assert!(!console.seen.iter().any(peer), "nobody else is blamed");
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    console.signal(libc::SIGINT);
    console.finish(120);
    assert!(has_checkpoint(&machine));
}

/// FLIGHT-3, through the console.
#[test]
fn ranks_that_their_gpus_hold_end_by_themselves_and_say_so() {
    let Some(machine) = machine(&[("gpus", "2"), ("hang_at", "700"), ("hang_holds", "1")], "gpus = 'all'")
    else {
        return;
    };
    let mut console = trained(&machine, "[distributed]\ntimeout_s = 10.0\n");
    console.finish(120);
    let verdict = console.all("verdict").into_iter().find(|line| says(line, "does not let go of it"));
    assert!(verdict.is_some(), "{:#?}", console.all("verdict"));
    assert!(has_checkpoint(&machine));
}

/// Both ranks compute; what connects them does not answer any more, which NCCL says of every communicator.
#[test]
fn a_network_card_that_dies_under_nccl_is_told_as_that() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("network_dies", "0");
    let verdict = console.wait_for("a rank says what NCCL says", 60, |line| {
        // The other one says that there was "a network error" or that its peer has ended.
        line["kind"] == "verdict" && says(line, "got completion from peer with status=12")
    });
    assert_eq!(verdict["reason_code"], "connection_lost", "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.told());
    assert!(has_checkpoint(&machine));
}

/// A run by this build's console beside a trainer that orders a fault of itself; `None` has been noted as a
/// skip.
fn faulty(machine: &Machine, fault: &str) -> Option<Console> {
    let trainer = crate::support::trainer()?;
    let help = Command::new(&trainer).arg("--help").output().unwrap();
    if !String::from_utf8_lossy(&help.stdout).contains("--inject") {
        rankdeck_testkit::skipped("the trainer is built without its feature `inject`");
        return None;
    }
    let folder = machine.bench.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_rankdeck"), folder.join("rankdeck")).unwrap();
    let script = format!("#!/bin/sh\nexec '{}' --inject {fault} \"$@\"\n", trainer.display());
    let wrapper = machine.bench.write("bin/rankdeck-trainer", &script);
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).unwrap();
    let ours = machine.command(&["run", "--headless", "--json"], &[]);
    let mut command = Command::new(folder.join("rankdeck"));
    command.args(ours.get_args()).current_dir(machine.folder());
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Some(Console::spawn(command))
}

/// Where ranks compare their calls, NCCL never sees those that differ. Of two ranks that differ, nobody can
/// say which is wrong: both calls are told.
#[test]
fn calls_over_nccl_that_differ_end_a_run_with_both_named() {
    for (fault, theirs) in [("mismatch-op@1:3", "broadcast \\\"grad\\\""), ("mismatch-count@1:3", "9156 f32")]
    {
        let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
        let text = std::fs::read_to_string(&machine.experiment).unwrap();
        std::fs::write(&machine.experiment, format!("{text}[watch]\ncheck_collectives = true\n")).unwrap();
        let Some(mut console) = faulty(&machine, fault) else { return };
        let verdict = console.wait_for("the calls are compared", 120, |line| {
            line["kind"] == "verdict" && line["reason_code"] == "mismatch_abort"
        });
        // Either of them may be the first to end; each tells its own call and the other's.
        assert!(says(&verdict, "this rank is in collective") && says(&verdict, "of 9155 f32"), "{verdict}");
        assert!(says(&verdict, theirs), "{verdict}");
        assert_eq!(console.finish(120).code(), Some(1), "{}", console.told());
    }
}

/// The second rank comes to no collective any more.
const LEFT: &str = "pause=600@1:20";

/// A run of two ranks under a fault of the second, with NCCL's RAS as `ras` has it. What the console says of
/// that rank once NCCL is on its card.
fn asked_of_ras(ras: &str, nccl: &str, fault: &str, told: &str) -> Option<Value> {
    let machine = machine(&[("gpus", "2"), ("ras", ras), ("nccl", nccl)], "gpus = 'all'")?;
    let mut console = faulty(&machine, fault)?;
    let verdict = console.wait_for(&format!("{told}, on the card of rank 1"), 120, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && says(&line["evidence"], told)
    });
    let blamed = console.all("verdict").into_iter().find(|line| line["rank"] == 0);
    assert!(blamed.is_none(), "{blamed:#?}");
    console.signal(libc::SIGINT);
    console.signal(libc::SIGINT);
    console.finish(120);
    Some(verdict)
}

/// The second rank comes to no collective any more, and its NCCL has launched one less: both witnesses name
/// it.
#[test]
fn what_nccls_ras_says_of_a_rank_that_comes_to_no_collective_is_on_its_card() {
    let told = "NCCL RAS: communicator 0x";
    let Some(verdict) = asked_of_ras("1", "22809", LEFT, told) else { return };
    let evidence = verdict["evidence"].to_string();
    assert!(evidence.contains("launched, but rank 1 has launched"), "{verdict:#}");
}

/// As before 2.28.7.
#[test]
fn what_nccls_ras_says_in_text_is_on_the_card_too() {
    let Some(verdict) = asked_of_ras("1", "22605", LEFT, "NCCL RAS: NCCL version 2.26.5") else { return };
    assert!(says(&verdict["evidence"], "NCCL RAS:   Rank 1 (pid "), "{verdict:#}");
}

/// A rank that is stopped does not answer, nor does its RAS: another rank's waits for it, and says so.
#[test]
fn nccls_ras_of_another_rank_says_that_a_stopped_one_does_not_answer() {
    let told = " is unresponsive";
    let Some(verdict) = asked_of_ras("1", "22809", "stop@1:60", told) else { return };
    assert!(
        says(&verdict["evidence"], "NCCL RAS: communicator 0x") && says(&verdict["evidence"], "rank 1 (pid ")
    );
    assert_eq!(verdict["verdict"], "frozen", "{verdict:#}");
}

/// Its stack, which the look read beside the question to RAS.
fn has_stack(verdict: &Value) -> bool {
    says(&verdict["card"]["guilty"]["stack"], "rankdeck")
}

/// Which a version before 2.24 has not: nothing is said of it.
#[test]
fn without_nccls_ras_the_rank_is_named_all_the_same() {
    let Some(verdict) = asked_of_ras("0", "22304", LEFT, "rank 1") else { return };
    assert!(!says(&verdict, "NCCL RAS"), "{verdict:#}");
    assert!(has_stack(&verdict), "{verdict:#}");
}

/// Nobody waits for a RAS that never answers; the look at the rank is whole without it.
#[test]
fn without_an_answer_of_nccls_ras_the_rank_is_named_all_the_same() {
    let Some(verdict) = asked_of_ras("2", "22809", LEFT, "no answer in time") else { return };
    assert!(says(&verdict["evidence"], "NCCL RAS at localhost:"), "{verdict:#}");
    assert!(has_stack(&verdict), "{verdict:#}");
}
