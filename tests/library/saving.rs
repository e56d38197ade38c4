//! CHECKPOINT-1 and RESUME-6: ranks that are killed, or whose disk is full, while they save. Whatever is
//! left, the next generation resumes from the last whole checkpoint, reports which one, and clears up.

use crate::harness::{Run, errors, experiment, totals};
use rankdeck_proto::message::FailureKind;
use rankdeck_trainer::checkpoint::Checkpoint;
use std::path::{Path, PathBuf};

/// Of one checkpoint, in the order in which they are written.
const FILES: [&str; 4] = ["iter-3.safetensors", "iter-3.ckpt", "latest.safetensors", "latest.ckpt"];
const POINTS: [&str; 4] = ["between-files", "first-bytes", "before-sync", "before-rename"];

fn names(run: &Run) -> Vec<String> {
    let entries = std::fs::read_dir(run.file("checkpoints"));
    let entries = entries.unwrap_or_else(|error| panic!("{error}: no checkpoint was begun: {}", run.logs()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn unfinished(run: &Run) -> Vec<String> {
    names(run).into_iter().filter(|name| name.ends_with(".tmp") || name.ends_with(".partial")).collect()
}

fn iteration(path: &Path) -> u64 {
    Checkpoint::decode(&std::fs::read(path).unwrap()).unwrap().header.train_iter
}

/// Every file under a final name is whole; the newest checkpoint's iteration.
fn newest(run: &Run) -> u64 {
    let checkpoints = names(run).into_iter().filter(|name| name.ends_with(".ckpt") && !name.starts_with('.'));
    let newest = checkpoints.map(|name| iteration(&run.file(&format!("checkpoints/{name}")))).max().unwrap();
    for name in names(run).iter().filter(|name| name.ends_with(".safetensors") && !name.starts_with('.')) {
        let bytes = std::fs::read(run.file(&format!("checkpoints/{name}"))).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let ends = tensors.as_object().unwrap().values();
        let end = ends.filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap();
        assert_eq!(8 + header + end as usize, bytes.len(), "{name}");
    }
    newest
}

/// The run's next generation.
fn restarted(run: &Run, experiment: &str, ranks: &str) -> Run {
    let folder = run.run_dir();
    let args = ["--spawn", ranks, "--resume", "latest", "--run-dir", folder.to_str().unwrap()];
    let mut next = Run::start_with(experiment, &args, &[("RANKDECK_GENERATION", "1")]);
    next.end_with(0);
    next
}

/// The run continued after iteration `whole`, logged from which file, and left nothing half written.
fn assert_resumed(run: &Run, next: &Run, whole: u64, from: &str, what: &str) {
    let from: PathBuf = run.file(&format!("checkpoints/{from}"));
    let line = format!("resumed after iteration {whole}, update {}, from {}", 16 * whole, from.display());
    assert!(next.logs().contains(&line), "{what}: {line}: {}", next.logs());
    let events = next.events();
    let first = totals(&events).first().map(|totals| totals.train_iter);
    assert_eq!(first, Some(whole + 1), "{what}");
    assert_eq!(unfinished(run), [""; 0], "{what}");
    assert_eq!((newest(run), iteration(&run.file("checkpoints/latest.ckpt"))), (5, 5), "{what}");
}

/// The files of the iteration's own checkpoint.
#[test]
fn checkpoint_1_kill_while_saving_loses_only_that_checkpoint() {
    killed_in(0..2);
}

/// `latest` behind it, of the same iteration.
#[test]
fn checkpoint_1_kill_while_saving_latest_loses_nothing() {
    killed_in(2..4);
}

fn killed_in(files: std::ops::Range<usize>) {
    let text = experiment(5 * 512, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n");
    for point in POINTS {
        for index in files.clone() {
            let file = FILES[index];
            // The policy next to a checkpoint is written in the same way.
            if index % 2 == 0 && point.starts_with("before") {
                continue;
            }
            let what = format!("{point} of {file}");
            // The fourth checkpoint's hooks are those after three whole iterations.
            let fault = format!("kill-{point}={}@0:3", index + 1);
            let mut run = Run::start(&text, &["--spawn", "2", "--inject", &fault]);
            assert_ne!(run.wait().code(), Some(0), "{what}: {}", run.logs());
            run.nothing_left();
            assert!(run.logs().contains("signal: 9"), "{what}: {}", run.logs());
            let left = match point {
                "between-files" => vec![],
                _ => vec![format!(".{file}.tmp")],
            };
            assert_eq!(unfinished(&run), left, "{what}");
            let whole = if index < 2 { 2 } else { 3 };
            assert_eq!(newest(&run), whole, "{what}");
            let from = if index < 2 { "latest.ckpt" } else { "iter-3.ckpt" };
            let next = restarted(&run, &text, "2");
            assert_resumed(&run, &next, whole, from, &what);
            let removed = next.logs().contains(&format!(".{file}.tmp"));
            assert_eq!(removed, !left.is_empty(), "{what}: {}", next.logs());
        }
    }
}

#[test]
fn checkpoint_1_full_disk_is_reported_and_leaves_no_part() {
    let text = experiment(5 * 512, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n");
    for (index, file) in FILES.iter().enumerate() {
        let point = POINTS[index];
        let what = format!("{point} of {file}");
        let fault = format!("full-{point}={}@0:3", index + 1);
        let mut run = Run::start(&text, &["--spawn", "2", "--inject", &fault]);
        run.end_with(1);
        let path = run.file(&format!("checkpoints/{file}"));
        let name = path.display().to_string();
        let reported = errors(&run.events()).iter().any(|error| {
            error.rank == 0 && error.kind == FailureKind::DiskFull && error.message.contains(&name)
        });
        assert!(reported, "{what}: {}", run.logs());
        assert_eq!(unfinished(&run), [""; 0], "{what}");
        let (whole, from) = if index < 2 { (2, "latest.ckpt") } else { (3, "iter-3.ckpt") };
        assert_eq!(newest(&run), whole, "{what}");
        assert_resumed(&run, &restarted(&run, &text, "2"), whole, from, &what);
    }
}

/// SHARD-1: what rank 1 was killed over is removed, and the checkpoint before has its shards.
#[test]
fn shard_1_kill_while_saving_loses_only_that_checkpoint() {
    let text = |steps: u64| {
        format!(
            "[run]\nname = 'test'\nseed = 3\ntotal_steps = {steps}\n[env]\nid = 'CartPole-v1'\nnum_envs = 2\n\
             [policy]\nhidden = [16]\n[collect]\nnum_steps = 5\n[learn]\nalgorithm = 'dqn'\nbuffer_size = 300\n\
             learning_starts = 20\nbatch_size = 16\n[eval]\nevery = 0\n[checkpoint]\nevery = 1\nreplay = true\n"
        )
    };
    for point in POINTS {
        let mut run = Run::start(&text(100), &["--spawn", "2", "--inject", &format!("kill-{point}@1:6")]);
        assert_ne!(run.wait().code(), Some(0), "{point}: {}", run.logs());
        run.nothing_left();
        let left = if point == "between-files" { vec![] } else { vec!["replay-1.6.partial".to_owned()] };
        assert_eq!((unfinished(&run), newest(&run)), (left, 5), "{point}");
        let next = restarted(&run, &text(100), "2");
        assert!(next.logs().contains("resumed after iteration 5,"), "{point}: {}", next.logs());
        assert!(!next.logs().contains("empty"), "{point}: {}", next.logs());
        let kept: Vec<String> = names(&run).into_iter().filter(|name| name.starts_with("replay-")).collect();
        assert_eq!(kept, ["replay-0.10.shard", "replay-1.10.shard"], "{point}");
    }
    // A rank that takes no part any more clears up nothing; rank 0 does it.
    let mut run = Run::start(&text(100), &["--spawn", "2", "--inject", "kill-before-rename@1:6"]);
    run.wait();
    run.nothing_left();
    restarted(&run, &text(100), "1");
    assert_eq!(unfinished(&run), [""; 0]);
}

#[test]
fn resume_6_corrupt_checkpoint_falls_back_to_previous() {
    let text = experiment(3 * 512, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n");
    let longer = experiment(5 * 512, "", "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n");
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, &[&str], Damage); 3] = [
        ("cut", &["latest"], |bytes| bytes.truncate(bytes.len() / 2)),
        ("empty", &["latest", "iter-3"], |bytes| bytes.clear()),
        ("changed", &["latest", "iter-3"], |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
    ];
    for (what, damaged, damage) in damages {
        let mut run = Run::start(&text, &["--spawn", "2"]);
        run.end_with(0);
        for name in damaged {
            let path = run.file(&format!("checkpoints/{name}.ckpt"));
            let mut bytes = std::fs::read(&path).unwrap();
            damage(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
        }
        let next = restarted(&run, &longer, "2");
        for name in damaged {
            let refused = format!("checkpoint {}", run.file(&format!("checkpoints/{name}.ckpt")).display());
            let reported = next.logs().lines().any(|line| line.contains(&refused));
            assert!(reported, "{what}: {refused}: {}", next.logs());
        }
        let whole = 4 - damaged.len() as u64;
        assert_resumed(&run, &next, whole, &format!("iter-{whole}.ckpt"), what);
    }
    // Without any whole one, the run ends with the name of the newest.
    let mut run = Run::start(&text, &[]);
    run.end_with(0);
    for name in names(&run).iter().filter(|name| name.ends_with(".ckpt")) {
        std::fs::write(run.file(&format!("checkpoints/{name}")), "RANKDECK").unwrap();
    }
    let folder = run.run_dir();
    let args = ["--resume", "latest", "--run-dir", folder.to_str().unwrap()];
    let mut next = Run::start_with(&longer, &args, &[("RANKDECK_GENERATION", "1")]);
    next.end_with(2);
    let errors = errors(&next.events());
    let named = errors.iter().any(|error| error.usage && error.message.contains("latest.ckpt"));
    assert!(named, "{errors:?}");
}

/// A run that returns to an earlier checkpoint continues from there, whatever files the later iterations left.
#[test]
fn resume_6_abandoned_later_checkpoints_are_ignored() {
    let rest = "[eval]\nevery = 0\n[checkpoint]\nevery = 1\n";
    let mut run = Run::start(&experiment(5 * 512, "", rest), &[]);
    run.end_with(0);
    let (folder, from) = (run.run_dir(), run.file("checkpoints/iter-2.ckpt"));
    let args = ["--resume", from.to_str().unwrap(), "--run-dir", folder.to_str().unwrap()];
    let mut back = Run::start(&experiment(3 * 512, "", rest), &args);
    back.end_with(0);
    assert!(run.file("checkpoints/iter-5.ckpt").exists());
    let next = restarted(&run, &experiment(5 * 512, "", rest), "1");
    assert_resumed(&run, &next, 3, "latest.ckpt", "taken back");
}
