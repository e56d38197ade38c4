//! `rankdeck diff` on executions of the trainer: where they part, and exit codes.

use crate::support::{Bench, libtorch, rankdeck, trainer};
use rankdeck_proto::execution::{CheckpointContents, FINGERPRINTS};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

const EXPERIMENT: &str = "[run]\nname = 'test'\nseed = 3\ntotal_steps = 3072\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
    [policy]\nhidden = [16]\n[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'ppo'\nanneal_lr = false\n\
    [eval]\nevery = 0\n[checkpoint]\nevery = 3\n";

/// Trains in `folder/NAME`, as one rank or more, from a checkpoint or from scratch.
fn train(bench: &Bench, name: &str, experiment: &str, world: u32, from: Option<&Path>) -> PathBuf {
    let config = bench.write(&format!("{name}.toml"), experiment);
    let folder = bench.path().join(name);
    let mut command = Command::new(trainer().unwrap());
    command.arg("--config").arg(config).arg("--run-dir").arg(&folder).args(["--spawn", &world.to_string()]);
    command.args(from.iter().flat_map(|from| ["--resume".as_ref(), from.as_os_str()]));
    let output = command
        .env("LD_LIBRARY_PATH", libtorch().join("lib"))
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Exit code and JSON of `diff`.
fn diff(args: &[&Path], more: &[&str]) -> (i32, Value) {
    let output = rankdeck()
        .arg("diff")
        .args(args)
        .args(more)
        .arg("--json")
        .env("LD_LIBRARY_PATH", libtorch().join("lib"))
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().unwrap_or_else(|| panic!("{output:?}"));
    (output.status.code().unwrap(), serde_json::from_str(line).unwrap())
}

#[test]
fn diff_2_equal_runs_exit_without_error() {
    if trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let (a, b) = (train(&bench, "a", EXPERIMENT, 2, None), train(&bench, "b", EXPERIMENT, 2, None));
    let (code, line) = diff(&[&a, &b], &[]);
    assert_eq!((code, &line["equal"], &line["compared_iterations"]), (0, &true.into(), &12.into()), "{line}");
    let (code, line) = diff(&[&a], &["--ranks", "0,1"]);
    assert_eq!((code, &line["equal"]), (0, &true.into()), "{line}");
}

#[test]
fn changed_learning_rate_is_found_in_the_step() {
    if trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let a = train(&bench, "a", EXPERIMENT, 1, None);
    let other = EXPERIMENT.replace("anneal_lr = false", "anneal_lr = false\nlearning_rate = 0.0003");
    let b = train(&bench, "b", &other, 1, Some(&a.join("checkpoints/iter-6.ckpt")));
    let (code, line) = diff(&[&a, &b], &[]);
    assert_eq!((code, &line["first_different"]), (1, &7.into()), "{line}");
    assert_eq!(line["tensors"]["train_iter"], 9, "{line}");
    assert_eq!(line["settings"][0]["key"], "learn.learning_rate", "{line}");
    let operation = &line["operation"];
    assert_eq!((&operation["train_iter"], &operation["update"]), (&7.into(), &0.into()), "{line}");
    assert_eq!((&operation["stage"], &operation["unit"]), (&"step".into(), &"all ranks".into()), "{line}");
    let (code, line) = diff(&[&a, &b], &["--no-replay"]);
    assert_eq!((code, &line["operation"]), (1, &Value::Null), "{line}");
}

#[test]
fn changed_seed_is_found_before_the_first_iteration() {
    if trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let a = train(&bench, "a", EXPERIMENT, 1, None);
    let b = train(&bench, "b", &EXPERIMENT.replace("seed = 3", "seed = 4"), 1, None);
    let (code, line) = diff(&[&a, &b], &[]);
    assert_eq!((code, &line["first_different"], &line["last_equal"]), (1, &1.into(), &Value::Null), "{line}");
    assert_eq!((&line["operation"]["stage"], &line["operation"]["train_iter"]), (&"start".into(), &1.into()));
    assert_eq!(line["settings"][0]["key"], "run.seed", "{line}");
}

/// Flips a bit of a weight of a checkpoint: one in the middle, as the next step's rounding may remove the lowest.
fn plant(path: &Path, tensor: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    let contents = CheckpointContents::read(&bytes).unwrap();
    let header = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let before = contents.arrays.iter().take_while(|array| array.name != tensor);
    let at = 16 + header + before.map(|array| 4 * array.values.len()).sum::<usize>();
    bytes[at + 1] ^= 0x40;
    let end = bytes.len() - 32;
    let hash = Sha256::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&hash);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn changed_weight_is_found_in_its_tensor() {
    if trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let a = train(&bench, "a", EXPERIMENT, 1, None);
    // The same run, whose weights are changed while it is stopped.
    let b = bench.path().join("b");
    std::fs::create_dir_all(b.join("checkpoints")).unwrap();
    for file in [FINGERPRINTS, "checkpoints/iter-3.ckpt", "checkpoints/iter-6.ckpt"] {
        std::fs::copy(a.join(file), b.join(file)).unwrap();
    }
    plant(&b.join("checkpoints/iter-6.ckpt"), "model.actor.2.weight");
    train(&bench, "b", EXPERIMENT, 1, Some(&b.join("checkpoints/iter-6.ckpt")));
    let (code, line) = diff(&[&a, &b], &[]);
    assert_eq!((code, &line["last_equal"], &line["first_different"]), (1, &6.into(), &7.into()), "{line}");
    let tensors = &line["tensors"];
    assert_eq!(
        (&tensors["train_iter"], tensors["tensors"].as_array().unwrap().len()),
        (&6.into(), 1),
        "{line}"
    );
    let tensor = &tensors["tensors"][0];
    assert_eq!(
        (&tensor["name"], &tensor["differing"]),
        (&"model.actor.2.weight".into(), &1.into()),
        "{line}"
    );
    assert_eq!(tensor["index"], serde_json::json!([0, 0]), "{line}");
    assert_eq!(line["operation"], Value::Null, "no operation of the trainer did it");
}

#[test]
fn invariant_runs_of_other_sizes_are_equal() {
    if trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let text = EXPERIMENT.replace("anneal_lr", "norm_adv_over = 'world'\nanneal_lr")
        + "[distributed]\ninvariant = true\ninvariant_blocks = 4\n";
    let one = train(&bench, "one", &text, 1, None);
    let four = train(&bench, "four", &text, 4, None);
    let (code, line) = diff(&[&one, &four], &[]);
    assert_eq!((code, &line["compared_iterations"]), (0, &12.into()), "{line}");
    // Block by block, although one execution has one rank and the other has four.
    let other = train(&bench, "other", &text.replace("[policy]", "[policy]\nactivation = 'relu'"), 4, None);
    let (code, line) = diff(&[&one, &other], &[]);
    assert_eq!((code, &line["first_different"]), (1, &1.into()), "{line}");
    assert_eq!(
        (&line["operation"]["stage"], &line["operation"]["unit"]),
        (&"rollout".into(), &"block 0".into())
    );
}

#[test]
fn diff_2_runs_without_files_exit_with_another_code() {
    let bench = Bench::new();
    let (a, b) = (bench.path().join("a"), bench.path().join("b"));
    for folder in [&a, &b] {
        std::fs::create_dir_all(folder.join("checkpoints")).unwrap();
    }
    let output = rankdeck().arg("diff").args([&a, &b]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"), "{output:?}");
}
