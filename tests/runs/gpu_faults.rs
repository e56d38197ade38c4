//! GPU faults in runs on fake GPUs: each is named with its rank, and no process is left.

use crate::gpus::{Machine, machine};
use crate::support::Console;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Whether a JSON line contains a text, in any field.
fn mentions(line: &Value, text: &str) -> bool {
    line.to_string().contains(text)
}

#[test]
fn gpu_out_of_memory_at_start_names_the_rank() {
    // A context takes 512 MiB, and libtorch takes at least two at once.
    let Some(machine) = machine(&[("gpus", "2"), ("memory_mib.1", "513")], "gpus = 'all'") else { return };
    let mut console = Console::spawn(machine.command(&["run", "--headless", "--json"], &[]));
    let verdict = console.wait_for("rank 1 runs out of memory", 120, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "out_of_memory"
    });
    assert!(mentions(&verdict, "CUDA out of memory. Tried to allocate"), "{verdict}");
    let status = console.finish(120);
    assert_eq!(status.code(), Some(1));
    assert!(console.seen.iter().any(|line| mentions(line, "env.num_envs")), "what to do is named");
    let finished = console.seen.last().unwrap();
    assert_eq!(finished["first_failure"]["rank"], 1, "{finished}");
}

#[test]
fn missing_gpu_utilization_is_null() {
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
fn killed_gpu_rank_is_the_first_failure() {
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
    assert!(mentions(&verdict, "SIGKILL"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1));
}

/// A run that trains and has saved a checkpoint.
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
fn lost_gpu_names_its_rank_and_keeps_the_checkpoint() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("lost", "1");
    let verdict = console.wait_for("a verdict on the GPU of rank 1", 60, |line| {
        line["kind"] == "verdict"
            && line["rank"] == 1
            && (line["reason_code"] == "gpu_failed" || line["reason_code"] == "gpu_lost")
    });
    assert!(mentions(&verdict, "nvidia-smi"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.transcript());
    let end = console.seen.last().unwrap();
    assert_eq!(end["first_failure"]["rank"], 1, "{end}");
    assert!(has_checkpoint(&machine));
}

#[test]
fn gpu_oom_mid_training_keeps_checkpoints_and_hints() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("cuda_error.1", "2");
    let verdict = console.wait_for("rank 1 has no room", 60, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && line["reason_code"] == "out_of_memory"
    });
    assert!(mentions(&verdict, "env.num_envs"), "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.transcript());
    assert!(has_checkpoint(&machine));
}

#[test]
fn xid_of_a_hanging_rank_names_rank_and_line() {
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
    assert!(mentions(&verdict, "Xid 94"), "{verdict}");
    assert!(mentions(&verdict, "src/trainer/") && mentions(&verdict, ".rs:"), "{verdict}");
    console.signal(libc::SIGINT);
    console.signal(libc::SIGINT);
    console.finish(120);
    assert!(has_checkpoint(&machine));
}

/// Its peer waits in NCCL, whose kernels an inspection cannot see: the verdict comes from the pages of both.
#[test]
fn stopped_rank_is_named_while_its_peer_waits_in_nccl() {
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
    assert!(!console.seen.iter().any(peer), "no verdict on another rank");
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    console.signal(libc::SIGINT);
    console.finish(120);
    assert!(has_checkpoint(&machine));
}

/// FLIGHT-3, through the console.
#[test]
fn ranks_held_by_their_gpus_end_with_a_verdict() {
    let Some(machine) = machine(&[("gpus", "2"), ("hang_at", "700"), ("hang_holds", "1")], "gpus = 'all'")
    else {
        return;
    };
    let mut console = trained(&machine, "[distributed]\ntimeout_s = 10.0\n");
    console.finish(120);
    let failed = |line: &Value| line["verdict"] == "dead" && mentions(line, "NCCL or the driver");
    assert!(console.all("verdict").iter().any(failed), "{:#?}", console.all("verdict"));
    assert!(has_checkpoint(&machine));
}

/// Both ranks compute, but their network does not respond: NCCL reports that for every communicator.
#[test]
fn dying_network_card_is_connection_lost() {
    let Some(mut machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
    let mut console = trained(&machine, "");
    machine.fake.set("network_dies", "0");
    let verdict = console.wait_for("NCCL's error", 60, |line| {
        // The other rank reports "a network error" or the end of its peer.
        line["kind"] == "verdict" && mentions(line, "got completion from peer with status=12")
    });
    assert_eq!(verdict["reason_code"], "connection_lost", "{verdict}");
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.transcript());
    assert!(has_checkpoint(&machine));
}

/// A run by this build's console with a trainer that injects a fault into itself; `None` if the test is
/// skipped.
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

/// If ranks compare their calls, NCCL never gets differing ones. It is unknown which of two differing ranks is
/// wrong: both calls are named.
#[test]
fn differing_nccl_calls_end_the_run_with_both_named() {
    for (fault, theirs) in [("mismatch-op@1:3", "broadcast \\\"grad\\\""), ("mismatch-count@1:3", "9156 f32")]
    {
        let Some(machine) = machine(&[("gpus", "2")], "gpus = 'all'") else { return };
        let text = std::fs::read_to_string(&machine.experiment).unwrap();
        std::fs::write(&machine.experiment, format!("{text}[watch]\ncheck_collectives = true\n")).unwrap();
        let Some(mut console) = faulty(&machine, fault) else { return };
        let verdict = console.wait_for("the calls are compared", 120, |line| {
            line["kind"] == "verdict" && line["reason_code"] == "mismatch_abort"
        });
        // Either of them may end first; each reports its own call and the other's.
        assert!(mentions(&verdict, "9155 f32"), "{verdict}");
        assert!(mentions(&verdict, theirs), "{verdict}");
        assert_eq!(console.finish(120).code(), Some(1), "{}", console.transcript());
    }
}

/// The second rank comes to no collective any more.
const LEFT: &str = "pause=600@1:20";

/// A run of two ranks with a fault of the second, with NCCL's RAS as `ras` has it. Returns the verdict on that
/// rank once its evidence contains NCCL's and `has`.
fn verdict_with_ras(
    ras: &str,
    nccl: &str,
    fault: &str,
    expected: &str,
    has: fn(&Value) -> bool,
) -> Option<Value> {
    let machine = machine(&[("gpus", "2"), ("ras", ras), ("nccl", nccl)], "gpus = 'all'")?;
    let mut console = faulty(&machine, fault)?;
    let verdict = console.wait_for(&format!("{expected}, on the card of rank 1"), 120, |line| {
        line["kind"] == "verdict" && line["rank"] == 1 && mentions(&line["evidence"], expected) && has(line)
    });
    let other = console.all("verdict").into_iter().find(|line| line["rank"] == 0);
    assert!(other.is_none(), "{other:#?}");
    console.signal(libc::SIGINT);
    console.signal(libc::SIGINT);
    console.finish(120);
    Some(verdict)
}

/// The second rank comes to no collective any more, and its NCCL has launched one less: both witnesses name
/// it.
#[test]
fn ras_report_of_a_missing_rank_is_evidence() {
    let expected = "NCCL RAS: communicator 0x";
    let Some(verdict) = verdict_with_ras("1", "22809", LEFT, expected, |_| true) else { return };
    let evidence = verdict["evidence"].to_string();
    assert!(evidence.contains("rank 1 "), "{verdict:#}");
}

/// As before 2.28.7.
#[test]
fn text_of_old_ras_is_evidence() {
    let Some(verdict) = verdict_with_ras("1", "22605", LEFT, "NCCL RAS: NCCL version 2.26.5", |_| true)
    else {
        return;
    };
    assert!(mentions(&verdict["evidence"], "NCCL RAS:   Rank 1 (pid "), "{verdict:#}");
}

/// A stopped rank does not respond, nor does its RAS: that of another rank waits for it and reports it.
#[test]
fn ras_of_another_rank_reports_a_stopped_one() {
    let expected = " is unresponsive";
    let Some(verdict) = verdict_with_ras("1", "22809", "stop@1:60", expected, |_| true) else { return };
    assert!(
        mentions(&verdict["evidence"], "NCCL RAS: communicator 0x")
            && mentions(&verdict["evidence"], "rank 1 (pid ")
    );
    assert_eq!(verdict["verdict"], "frozen", "{verdict:#}");
}

/// Whether it has the stack of its rank, which an inspection reads besides its query to RAS.
fn has_stack(verdict: &Value) -> bool {
    mentions(&verdict["card"]["guilty"]["stack"], "rankdeck")
}

/// A version before 2.24 has no RAS: it is not mentioned.
#[test]
fn rank_is_named_without_ras() {
    let Some(verdict) = verdict_with_ras("0", "22304", LEFT, "rank 1", has_stack) else { return };
    assert!(!mentions(&verdict, "NCCL RAS"), "{verdict:#}");
}

/// A RAS that never replies delays nothing; the inspection of the rank is whole without it.
#[test]
fn rank_is_named_without_a_ras_reply() {
    verdict_with_ras("2", "22809", LEFT, "NCCL RAS at localhost:", has_stack);
}
