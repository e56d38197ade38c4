//! Exported policies: the loader of docs/trainer.md plays what the trainer evaluated.

use crate::harness::{Run, python};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::{Evaluation, RankEvent};
use rankdeck_testkit::repository;
use std::ffi::{OsStr, OsString};

/// Plays the evaluation's episodes with the loader, and prints mean and deviation of their returns.
const PLAY: &str = "
import gymnasium
path, seeds = sys.argv[1], [int(seed) for seed in sys.argv[2:]]
meta, _ = load(path)
greedy = policy(path)
returns = []
for seed in seeds:
    env = gymnasium.make(meta['env_id'])
    seen, info = env.reset(seed=seed)
    greedy.reset()
    total, over = 0.0, False
    while not over:
        seen, reward, terminated, truncated, info = env.step(greedy(seen, info.get('action_mask')))
        total, over = total + float(reward), terminated or truncated
    returns.append(total)
print(np.mean(returns), np.std(returns))
for name in ('format', 'algorithm', 'versions', 'experiment'):
    assert meta[name], name
assert json.loads(meta['experiment'])['env']['id'] == meta['env_id']
";

/// Plays them with what `rankdeck export` makes of each policy, and prints a line for each. The arguments are
/// a folder, the exporter's folder, that of environments, then each policy and its seeds, comma-separated.
const EXPORTED: &str = "
import json, sys
import gymnasium, numpy as np, onnxruntime, torch
folder, exporter, programs = sys.argv[1:4]
sys.path[:0] = [exporter, programs]
sys.dont_write_bytecode = True
import export_policy
def torchscript(target):
    files = {'metadata.json': ''}
    model = torch.jit.load(target, _extra_files=files)
    def act(**inputs):
        found = model(*map(torch.from_numpy, inputs.values()))
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]
    return json.loads(files['metadata.json']), act
def onnx(target):
    session = onnxruntime.InferenceSession(target)
    meta = session.get_modelmeta().custom_metadata_map
    return meta, lambda **inputs: session.run(None, inputs)
def play(meta, act, seed):
    env = gymnasium.make(meta['env_id'])
    seen, info = env.reset(seed=seed)
    total, over = 0.0, False
    policy = json.loads(meta['experiment'])['policy']
    size = policy.get('memory_size', 0) * (2 if policy.get('memory') == 'lstm' else 1)
    states = np.zeros([3, size], np.float32)
    while not over:
        if isinstance(env.observation_space, gymnasium.spaces.Dict):
            seen = gymnasium.spaces.flatten(env.observation_space, seen).astype(np.float32)
        # As a batch of another size than the one that it was made with.
        inputs = {'observations': np.stack([seen] * 3)}
        if 'action_mask' in info:
            inputs['masks'] = np.stack([np.uint8(info['action_mask'])] * 3)
        if size:
            inputs['states'] = states
        actions, *states = act(**inputs)
        action, states = actions[1], states[0] if states else None
        seen, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total
for path, seeds in zip(sys.argv[4::2], sys.argv[5::2]):
    for load in (torchscript, onnx):
        target = folder + '/policy.' + load.__name__
        export_policy.main(path, target, load.__name__)
        meta, act = load(target)
        returns = [play(meta, act, eval(seed)) for seed in seeds.split(',')]
        print(np.mean(returns), np.std(returns))
";

/// The loader, as the document has it.
fn loader() -> String {
    let text = std::fs::read_to_string(repository("docs/trainer.md")).unwrap();
    let (_, code) = text.split_once("```python\n").unwrap();
    code.split_once("```").unwrap().0.to_owned()
}

/// A finished run, its last evaluation, and the seeds of its episodes as Python computes them.
fn evaluated(experiment: &str) -> (Run, Evaluation, Vec<String>) {
    let programs = repository("tests/programs");
    let mut run = Run::start_with(experiment, &[], &[("PYTHONPATH", programs.to_str().unwrap())]);
    run.end_with(0);
    let mut evaluations = run.events().into_iter().filter_map(|(_, event)| match event {
        RankEvent::Eval(evaluation) => Some(evaluation),
        _ => None,
    });
    let evaluation = evaluations.next_back().unwrap();
    let seed = |episode: u32| {
        let words = Seeds::new(3).words(Purpose::Eval, episode, 0);
        // 192 bits, which no integer here holds: Python computes the sum.
        words
            .iter()
            .enumerate()
            .map(|(i, word)| format!("({word} << {})", 32 * i))
            .collect::<Vec<_>>()
            .join("+")
    };
    let seeds: Vec<String> = (0..evaluation.episodes).map(seed).collect();
    (run, evaluation, seeds)
}

fn check(experiment: &str) {
    let (run, evaluation, seeds) = evaluated(experiment);
    let program = format!(
        "import sys\n{}\nsys.argv[2:] = [str(eval(each)) for each in sys.argv[2:]]\n{PLAY}",
        loader()
    );
    let path = run.file("checkpoints/latest.safetensors");
    let mut args = vec![OsStr::new("-c"), OsStr::new(&program), path.as_os_str()];
    args.extend(seeds.iter().map(OsStr::new));
    let Some(output) = python("gymnasium", &args) else { return };
    equals(&output, &evaluation, experiment);
}

/// The mean and the deviation that a program has printed are those of the evaluation.
fn equals(output: &str, evaluation: &Evaluation, experiment: &str) {
    let theirs: Vec<f64> = output.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(theirs.len(), 2, "{output}");
    for (theirs, ours) in theirs.iter().zip([evaluation.return_mean, evaluation.return_std]) {
        assert!((theirs - ours).abs() <= 1e-5 * ours.abs().max(1.0), "{experiment}: {theirs} {ours}");
    }
}

/// `--evaluate` needs the checkpoint alone, and prints what the run's own evaluation printed.
#[test]
fn checkpoint_is_evaluated_without_experiment_file() {
    let off = "batch_size = 32\nlearning_starts = 100\nbuffer_size = 1000\n";
    for (env, rest) in [
        ("Pendulum-v1", "normalise_observations = true\n[learn]\nalgorithm = 'ppo'\n".to_owned()),
        ("CartPole-v1", format!("[learn]\nalgorithm = 'dqn'\n{off}")),
        ("Pendulum-v1", format!("[learn]\nalgorithm = 'sac'\n{off}")),
        ("CartPole-v1", "[learn]\nalgorithm = 'ppg'\npolicy_iterations = 4\n".to_owned()),
        ("CartPole-v1", "normalise_observations = true\n[learn]\nalgorithm = 'pqn'\n".to_owned()),
        ("Pendulum-v1", format!("normalise_observations = true\n[learn]\nalgorithm = 'td3'\n{off}")),
        (
            "rankdeck/CartPoleNoVelocity-v1",
            "[policy]\nmemory = 'lstm'\nmemory_size = 8\n[learn]\nalgorithm = 'ppo'\n".to_owned(),
        ),
    ] {
        let mut run = Run::start(&experiment(env, 4, &format!("[collect]\nnum_steps = 64\n{rest}")), &[]);
        run.end_with(0);
        let mut evaluations = run.events().into_iter().filter_map(|(_, event)| match event {
            RankEvent::Eval(evaluation) => Some(evaluation),
            _ => None,
        });
        let own = evaluations.next_back().unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"))
            .arg("--evaluate")
            .arg(run.file("checkpoints/latest.ckpt"))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = format!("return {:.3} +- {:.3} over 5 episodes", own.return_mean, own.return_std);
        assert!(
            output.status.success() && printed.contains(&expected),
            "{expected}: {printed}\n{:?}",
            output.stderr
        );
        assert!(printed.contains("95%"), "{printed}");
    }
}

/// `eval.greedy`, and the flags that override it.
#[test]
fn sampled_evaluation_is_marked_in_events_and_json() {
    let off = "batch_size = 32\nlearning_starts = 100\nbuffer_size = 1000\n";
    for (env, rest) in [
        ("CartPole-v1", "[learn]\nalgorithm = 'ppo'\n".to_owned()),
        ("Pendulum-v1", format!("[learn]\nalgorithm = 'sac'\n{off}")),
        ("CartPole-v1", format!("[learn]\nalgorithm = 'dqn'\nepsilon_end = 0.5\n{off}")),
        ("CartPole-v1", "[learn]\nalgorithm = 'pqn'\nepsilon_end = 0.5\n".to_owned()),
    ] {
        let text = experiment(env, 4, &format!("[collect]\nnum_steps = 64\n{rest}"))
            .replace("episodes = 5", "episodes = 5\ngreedy = false");
        let mut run = Run::start(&text, &[]);
        run.end_with(0);
        let own = run.events().into_iter().rev().find_map(|(_, event)| match event {
            RankEvent::Eval(evaluation) => Some(evaluation),
            _ => None,
        });
        let own = own.unwrap();
        assert!(own.sampled);
        let evaluated = |flags: &[&str]| -> (bool, f64) {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"))
                .arg("--evaluate")
                .arg(run.file("checkpoints/latest.ckpt"))
                .arg("--json")
                .args(flags)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            (printed["greedy"].as_bool().unwrap(), printed["return_mean"].as_f64().unwrap())
        };
        let (greedy, again) = evaluated(&[]);
        assert!(!greedy && (again - own.return_mean).abs() < 1e-9 * again.abs(), "{rest}: {again}, {own:?}");
        assert_eq!(evaluated(&["--sample"]), evaluated(&[]));
        let (greedy, mean) = evaluated(&["--greedy"]);
        assert!(greedy && (mean - again).abs() > 1e-3, "{rest}: {mean}");
    }
}

fn experiment(env: &str, iterations: u64, rest: &str) -> String {
    format!(
        "[run]\nname = 'x'\nseed = 3\ntotal_steps = {}\n[env]\nid = '{env}'\nnum_envs = 4\n[eval]\nevery = 1000\nepisodes = 5\n{rest}",
        iterations * 4 * 64
    )
}

#[test]
fn documented_loader_plays_normalized_ppo_like_the_trainer() {
    for (env, normalize) in [("CartPole-v1", false), ("Pendulum-v1", true), ("CartPole-v1", true)] {
        check(&experiment(
            env,
            8,
            &format!(
                "[collect]\nnum_steps = 64\nnormalise_observations = {normalize}\n[learn]\nalgorithm = 'ppo'\n"
            ),
        ));
    }
}

#[test]
fn documented_loader_plays_shared_and_off_policy() {
    let off = "batch_size = 32\nlearning_starts = 100\nbuffer_size = 1000\nupdates_per_iteration = 20\n";
    for (env, rest) in [
        (
            "CartPole-v1",
            "[policy]\nshared = true\n[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'a2c'\n".into(),
        ),
        ("CartPole-v1", format!("[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'dqn'\n{off}")),
        (
            "CartPole-v1",
            format!("[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'dqn'\ndueling = true\n{off}"),
        ),
        ("Pendulum-v1", format!("[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'sac'\n{off}")),
        (
            "CartPole-v1",
            format!(
                "[collect]\nnum_steps = 64\nnormalise_observations = true\n[learn]\nalgorithm = 'dqn'\n{off}"
            ),
        ),
        (
            "CartPole-v1",
            "[policy]\nhidden = [32, 16]\n[collect]\nnum_steps = 64\n[learn]\nalgorithm = 'pqn'\n".into(),
        ),
    ] {
        check(&experiment(env, 4, &rest));
    }
}

#[test]
fn documented_loader_plays_with_memory() {
    for (env, memory) in [("CartPole-v1", "lstm"), ("Pendulum-v1", "lstm"), ("Pendulum-v1", "mingru")] {
        check(&experiment(
            env,
            4,
            &format!(
                "[policy]\nmemory = '{memory}'\nmemory_size = 8\n[collect]\nnum_steps = 64\nnormalise_observations = true\n\
                 [learn]\nalgorithm = 'ppo'\n"
            ),
        ));
    }
}

/// Every algorithm and every network, as `rankdeck export` makes them: the actions are the trainer's.
#[test]
fn exported_torchscript_and_onnx_act_as_the_trainer() {
    let packages = "gymnasium, torch, onnx, onnxruntime";
    let Some(interpreter) = rankdeck_testkit::python(packages) else { return };
    let off = "batch_size = 32\nlearning_starts = 100\nbuffer_size = 1000\nupdates_per_iteration = 20\n";
    let images = "network = 'nature'\nhidden = [16]\nchannels = [4, 4, 4]\n";
    let impala = images.replace("nature", "impala");
    let steps = "[collect]\nnum_steps = 64\n";
    let runs = [
        ("Pendulum-v1", format!("{steps}normalise_observations = true\n[learn]\nalgorithm = 'ppo'\n")),
        ("CartPole-v1", format!("[policy]\nshared = true\n{steps}[learn]\nalgorithm = 'a2c'\n")),
        ("CartPole-v1", format!("{steps}[learn]\nalgorithm = 'dqn'\ndueling = true\n{off}")),
        ("Pendulum-v1", format!("{steps}[learn]\nalgorithm = 'sac'\n{off}")),
        (
            "faulty_env:Spaces-gray-v0",
            format!("[policy]\n{images}{steps}[learn]\nalgorithm = 'dqn'\ndueling = true\n{off}"),
        ),
        (
            "faulty_env:Spaces-gray-v0",
            format!(
                "[policy]\n{impala}{steps}[learn]\nalgorithm = 'ppg'\npolicy_iterations = 2\naux_num_minibatches = 8\n"
            ),
        ),
        ("faulty_env:Spaces-bytes-v0", format!("{steps}[learn]\nalgorithm = 'ppo'\n")),
        ("masked_env:Several-discrete-v0", format!("{steps}[learn]\nalgorithm = 'ppo'\n")),
        ("masked_env:Masked-info-v0", format!("{steps}[learn]\nalgorithm = 'ppo'\n")),
        ("masked_env:Masked-info-v0", format!("{steps}[learn]\nalgorithm = 'dqn'\n{off}")),
        (
            "CartPole-v1",
            format!("[policy]\nactivation = 'relu'\n{steps}normalise_observations = true\n[learn]\nalgorithm = 'pqn'\n"),
        ),
        ("faulty_env:Spaces-gray-v0", format!("[policy]\n{images}{steps}[learn]\nalgorithm = 'pqn'\n")),
        (
            "masked_env:Masked-info-v0",
            format!("[policy]\nmemory = 'lstm'\nmemory_size = 6\n{steps}[learn]\nalgorithm = 'ppo'\n"),
        ),
        (
            "masked_env:Mixed-v0",
            format!("[policy]\n{impala}vector_hidden = [5]\n{steps}[learn]\nalgorithm = 'ppo'\n"),
        ),
        (
            "Pendulum-v1",
            format!(
                "[policy]\nmemory = 'mingru'\nmemory_size = 6\n{steps}normalise_observations = true\n[learn]\nalgorithm = 'a2c'\n"
            ),
        ),
        (
            "faulty_env:Spaces-gray-v0",
            format!("[policy]\n{images}memory = 'lstm'\nmemory_size = 6\n{steps}[learn]\nalgorithm = 'ppo'\n"),
        ),
    ]
    .map(|(env, rest)| {
        let masks = if env.contains("Masked") { "action_masks = true\n" } else { "" };
        let python = format!("num_envs = 4\n{masks}python = '{interpreter}'");
        let experiment = experiment(env, 2, &rest).replacen("num_envs = 4", &python, 1);
        (evaluated(&experiment), experiment)
    });
    let folder = tempfile::tempdir().unwrap();
    let (exporter, programs) = (repository("src/cli"), repository("tests/programs"));
    let mut args: Vec<OsString> = vec!["-c".into(), EXPORTED.into(), folder.path().into()];
    args.extend([exporter.into(), programs.into()]);
    for ((run, _, seeds), _) in &runs {
        args.extend([run.file("checkpoints/latest.safetensors").into(), seeds.join(",").into()]);
    }
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    let Some(output) = python(packages, &args) else { return };
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2 * runs.len(), "{output}");
    for (((_, evaluation, _), experiment), played) in runs.iter().zip(lines.chunks(2)) {
        for line in played {
            equals(line, evaluation, experiment);
        }
    }
}

/// ROWS-1, METRICS-1: a line per iteration in metrics.csv, and a point in TensorBoard.
#[test]
fn every_iteration_is_in_metrics_csv_and_tensorboard() {
    let text = experiment("CartPole-v1", 12, "[learn]\nalgorithm = 'ppo'\n[collect]\nnum_steps = 64\n")
        .replace("every = 1000", "every = 6");
    let mut run = Run::start(&text, &["--spawn", "2"]);
    run.end_with(0);
    let metrics = std::fs::read_to_string(run.file("metrics.csv")).unwrap();
    let mut lines = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let of = |name: &str| header.iter().position(|one| *one == name).unwrap();
    let lines: Vec<Vec<&str>> = lines.collect();
    let column = |name: &str| lines.iter().map(|line| line[of(name)]).collect::<Vec<_>>();
    let numbers = |last: u32, each: u32| (0..=last).map(|i| (i * each).to_string()).collect::<Vec<_>>();
    assert_eq!(column("train_iter"), numbers(12, 1), "{metrics}");
    assert_eq!(column("env_step"), numbers(12, 256), "{metrics}");
    assert!(column("losses/value_loss")[1..].iter().all(|loss| loss.parse::<f64>().is_ok()), "{metrics}");
    let evaluated = column("eval/return_mean");
    assert!((0..=12).all(|i| (i % 6 == 0) != evaluated[i].is_empty()), "{metrics}");
    const READ: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], {'scalars': 0})
events.Reload()
print(*[event.step for event in events.Scalars('losses/value_loss')])
";
    let folder = run.file("tensorboard");
    let Some(output) = python("tensorboard", &["-c".as_ref(), READ.as_ref(), folder.as_os_str()]) else {
        return;
    };
    assert_eq!(output.split_whitespace().collect::<Vec<_>>(), column("env_step")[1..], "{output}");
}

#[test]
fn tensorboard_shows_the_settings_as_hyper_parameters() {
    let mut run = Run::start(
        &experiment("CartPole-v1", 1, "[learn]\nalgorithm = 'ppo'\n[collect]\nnum_steps = 64\n"),
        &[],
    );
    run.end_with(0);
    const READ: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
events = EventAccumulator(sys.argv[1])
events.Reload()
content = events.SummaryMetadata('_hparams_/session_start_info').plugin_data.content
hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
print(hparams['learn.gamma'].number_value, hparams['env.id'].string_value, hparams['learn.anneal_lr'].bool_value)
text = events.Tensors('settings/text_summary')[0].tensor_proto.string_val[0].decode()
print('| learn.gamma | 0.99 |' in text and '| version.rankdeck |' in text)
";
    let folder = run.file("tensorboard");
    let Some(output) = python("tensorboard", &["-c".as_ref(), READ.as_ref(), folder.as_os_str()]) else {
        return;
    };
    assert_eq!(output.split_whitespace().collect::<Vec<_>>(), ["0.99", "CartPole-v1", "True", "True"]);
}

/// Makes its environment a CartPole, and leaves a file next to itself whenever it is imported.
const EVIL: &str = "\
import os
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ran'), 'w').close()
import gymnasium
gymnasium.register('X-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)
";

/// IMPORT-1: what a checkpoint names is not run: no interpreter, and no module that the user has not named.
#[test]
fn import_1_evaluation_runs_nothing_named_by_its_checkpoint() {
    use std::os::unix::fs::PermissionsExt;
    let Some(interpreter) = rankdeck_testkit::python("gymnasium") else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
    let cwd = folder.path().to_str().unwrap();
    let (ran, own) = (at("ran"), at("own-python"));
    write("own-python", &format!("#!/bin/sh\nexec '{interpreter}' \"$@\"\n"));
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    write("evil.py", EVIL);
    let trained = |id: &str| {
        let env = format!("num_envs = 4\nworker = 'python'\npython = '{}'", own.display());
        let text = experiment(id, 1, "[learn]\nalgorithm = 'ppo'\n[collect]\nnum_steps = 64\n");
        let mut run = Run::start_with(&text.replacen("num_envs = 4", &env, 1), &[], &[("PYTHONPATH", cwd)]);
        run.end_with(0);
        run
    };
    let (plain, named) = (trained("CartPole-v1"), trained("evil:X-v0"));
    assert!(ran.exists(), "training imports it");
    // From here on the checkpoint's interpreter and every module of this directory belong to another user.
    write("own-python", &format!("#!/bin/sh\ntouch '{}'\nexec '{interpreter}' \"$@\"\n", ran.display()));
    for module in ["linecache", "numpy", "json", "sitecustomize"] {
        write(&format!("{module}.py"), EVIL);
    }
    let evaluate = |run: &Run, args: &[&str], path: Option<&str>| {
        let _ = std::fs::remove_file(&ran);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"));
        command.arg("--evaluate").arg(run.file("checkpoints/latest.ckpt")).args(args);
        command.env_remove("PYTHONPATH").current_dir(folder.path());
        path.map(|path| command.env("PYTHONPATH", path));
        let output = command.output().unwrap();
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), ran.exists(), lines)
    };
    let ours = ["--python", &interpreter];
    let (code, touched, lines) = evaluate(&plain, &[], None);
    assert!(!touched, "the checkpoint's interpreter ran ({code:?}): {lines}");
    for path in [None, Some(":"), Some("")] {
        let (code, touched, lines) = evaluate(&plain, &ours, path);
        assert_eq!((code, touched), (Some(0), false), "{path:?}: {lines}");
    }
    let (code, touched, lines) = evaluate(&named, &ours, Some(cwd));
    assert_eq!((code, touched), (Some(2), false), "{lines}");
    assert!(lines.contains("--env-module evil"), "{lines}");
    let (code, touched, lines) = evaluate(&named, &[&ours[..], &["--show"]].concat(), Some(cwd));
    assert_eq!((code, touched), (Some(2), false), "play: {lines}");
    // Other modules are refused, and the directory is not in the module path.
    for (module, code) in [("evi", 2), ("evil.x", 2), ("evil", 2)] {
        let (found, touched, lines) =
            evaluate(&named, &[&ours[..], &["--env-module", module]].concat(), None);
        assert_eq!((found, touched), (Some(code), false), "{module}: {lines}");
    }
    for module in ["linecache", "numpy", "json", "sitecustomize"] {
        std::fs::remove_file(at(&format!("{module}.py"))).unwrap();
    }
    let (code, touched, lines) =
        evaluate(&named, &[&ours[..], &["--env-module", "evil"]].concat(), Some(cwd));
    assert_eq!((code, touched), (Some(0), true), "{lines}");
}
