//! PPO learns, reports its progress, and its TensorBoard files are TensorBoard's.

use crate::harness::{Run, counters, experiment, python, totals};
use rankdeck_proto::message::{Counters, FinishReason, Phase, RankEvent, Returns};
use rankdeck_proto::status_page::StatusPageReader;
use rankdeck_testkit::repository;
use std::ffi::OsStr;

/// Best greedy evaluation within 60 000 steps.
fn best_return(seed: u64) -> f64 {
    let eval = "[eval]\nevery = 10\nepisodes = 20\nstop_value = 400.0";
    let mut run = Run::start(&experiment(60_000, &format!("seed = {seed}"), eval), &[]);
    run.end_with(0);
    let evals = run.events().into_iter().filter_map(|(_, event)| match event {
        RankEvent::Eval(evaluation) if evaluation.train_iter > 0 => Some(evaluation.return_mean),
        _ => None,
    });
    evals.fold(0.0, f64::max)
}

#[test]
fn ppo_learns_cartpole_with_any_seed() {
    // CartPole-v0 counts as solved at 195.
    for seed in [11, 12, 13] {
        let best = best_return(seed);
        assert!(best >= 195.0, "seed {seed}: {best}");
    }
}

/// ALF's bar for its CartPole-v0 settings: evaluations above 195 within 51,200 steps.
#[test]
fn shipped_alf_settings_solve_cartpole_v0() {
    for name in ["cartpole_ppo_alf", "cartpole_ppg"] {
        let file = std::fs::read_to_string(repository(&format!("configs/{name}.toml"))).unwrap();
        // Its last section is `[eval]`.
        let mut run = Run::start(&format!("{file}stop_value = 195.5\n"), &["--spawn", "2"]);
        run.end_with(0);
        let events = run.events();
        let reached = events.iter().any(|(_, event)| matches!(event, RankEvent::Eval(eval) if eval.stop));
        assert!(reached, "{name}: {}", run.logs());
        assert!(totals(&events).last().unwrap().env_step <= 51_200);
    }
}

/// The last evaluation of a run of `experiment` on two ranks, with tests/programs in PYTHONPATH.
fn last_evaluation(experiment: &str) -> Option<f64> {
    let interpreter = rankdeck_testkit::python("gymnasium")?;
    let text = experiment.replacen("workers = 1", &format!("workers = 1\npython = '{interpreter}'"), 1);
    let programs = repository("tests/programs");
    let mut run = Run::start_with(&text, &["--spawn", "2"], &[("PYTHONPATH", programs.to_str().unwrap())]);
    run.end_with(0);
    run.events().into_iter().rev().find_map(|(_, event)| match event {
        RankEvent::Eval(evaluation) => Some(evaluation.return_mean),
        _ => None,
    })
}

/// Only the mask shows which action is best.
#[test]
fn ppo_learns_to_choose_among_allowed_actions() {
    let file = std::fs::read_to_string(repository("tests/programs/masked_ppo.toml")).unwrap();
    let Some(best) = last_evaluation(&file) else { return };
    assert!(best >= 14.0, "{best} of 16");
}

/// The same of the other algorithms with masks: what an action is worth follows from how often it is the best.
#[test]
fn other_algorithms_learn_to_choose_among_allowed_actions() {
    let file = std::fs::read_to_string(repository("tests/programs/masked_ppo.toml")).unwrap();
    let (head, rest) = file.split_once("algorithm = \"ppo\"").unwrap();
    let (_, eval) = rest.split_once("[eval]").unwrap();
    for learn in [
        "'ppg'\nlearning_rate = 1e-2\nadam_eps = 1e-5\ngamma = 0.0\nent_coef = 0.0\npolicy_iterations = 4\nupdate_epochs = 4\n\
         num_minibatches = 4\naux_num_minibatches = 4",
        "'dqn'\nlearning_rate = 1e-2\ngamma = 0.0\nlearning_starts = 512\nepsilon_steps = 4000\nupdates_per_iteration = 16",
        "'pqn'\nlearning_rate = 1e-2\ngamma = 0.0\nepsilon_steps = 4000",
    ] {
        let experiment = format!("{head}algorithm = {learn}\n[eval]{eval}");
        let Some(best) = last_evaluation(&experiment) else { return };
        assert!(best >= 14.0, "{learn}: {best} of 16");
    }
}

/// CartPole-v0 counts as solved at 195. Settings are quicker than the shipped ones.
#[test]
fn pqn_learns_cartpole() {
    let text = "[run]\nname = 'pqn'\nseed = 5\ntotal_steps = 100000\n[env]\nid = 'CartPole-v1'\nnum_envs = 8\n\
         [policy]\nhidden = [64, 64]\nactivation = 'relu'\n[collect]\nnum_steps = 64\n\
         [learn]\nalgorithm = 'pqn'\nlearning_rate = 1e-3\nepsilon_steps = 20000\n\
         [eval]\nevery = 5\nepisodes = 10\nstop_value = 195.0\n";
    let mut run = Run::start(text, &["--spawn", "2"]);
    run.end_with(0);
    let reached = run.events().iter().any(|(_, event)| matches!(event, RankEvent::Eval(eval) if eval.stop));
    assert!(reached, "{}", run.logs());
}

#[test]
fn ppo_learns_several_actions_at_once() {
    let file = std::fs::read_to_string(repository("tests/programs/masked_ppo.toml")).unwrap();
    let binary = file.replace("Masked-info", "Several-binary").replace("action_masks = true", "");
    let Some(best) = last_evaluation(&binary) else { return };
    assert!(best >= 15.0, "{best} of 16");
}

/// Without memory, the best policy gets 4.5 on average.
#[test]
fn ppo_with_memory_learns_what_only_the_first_step_shows() {
    let file = std::fs::read_to_string(repository("tests/programs/masked_ppo.toml")).unwrap();
    for memory in ["lstm", "mingru"] {
        let policy = format!("hidden = [16]\nmemory = '{memory}'\nmemory_size = 16");
        let text = file.replace("Masked-info", "Recall").replace("action_masks = true", "");
        let Some(best) = last_evaluation(&text.replace("hidden = [16]", &policy)) else { return };
        assert!(best >= 7.5, "{memory}: {best} of 8");
    }
}

/// The best action follows from an image and from a number beside it.
#[test]
fn ppo_learns_from_images_beside_other_values() {
    let file = std::fs::read_to_string(repository("tests/programs/masked_ppo.toml")).unwrap();
    let policy = "network = 'impala'\nchannels = [4]\nhidden = [16]\nvector_hidden = [8]";
    let text = file.replace("Masked-info", "Mixed").replace("action_masks = true", "");
    let text = text.replace("hidden = [16]", policy).replace("1e-2", "3e-3");
    let Some(best) = last_evaluation(&text) else { return };
    assert!(best >= 14.0, "{best} of 16");
}

#[test]
fn single_rank_run_completes() {
    let rest = "[eval]\nevery = 10\nepisodes = 3\n[checkpoint]\nevery = 8";
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("rank0.page");
    let page_env = [("RANKDECK_STATUS_PAGE", page.to_str().unwrap())];
    let mut run = Run::start_with(&experiment(20 * 512 + 100, "seed = 4", rest), &[], &page_env);
    run.end_with(0);
    let events = run.events();
    assert!(matches!(&events[0].1, RankEvent::Joined { world_size: 1, device, .. } if device == "cpu"));
    assert_eq!(events.last().unwrap().1, RankEvent::Finished { reason: FinishReason::Budget });
    let last = *totals(&events).last().unwrap();
    assert_eq!((last.train_iter, last.env_step, last.samples), (20, 20 * 512, 20 * 512));
    assert_eq!(last.updates, 20 * 16);
    let own = counters(&events, 0);
    let alike: Vec<Counters> =
        totals(&events).iter().map(|all| Counters { return_last_100: None, ..*all }).collect();
    assert_eq!(own, alike);
    assert_eq!(own.iter().map(|c| c.returns.count).sum::<u64>(), last.episodes);
    the_last_hundred(&totals(&events));
    let evals: Vec<u64> = events
        .iter()
        .filter_map(|(_, event)| match event {
            RankEvent::Eval(evaluation) => Some(evaluation.train_iter),
            _ => None,
        })
        .collect();
    assert_eq!(evals, [0, 10, 20]);
    let checkpoints: Vec<(u64, String)> = events
        .iter()
        .filter_map(|(_, event)| match event {
            RankEvent::Checkpoint { path, train_iter, reason, .. } => {
                assert!(std::path::Path::new(path).is_file());
                (!["best", "latest"].contains(&reason.as_str())).then(|| (*train_iter, reason.clone()))
            }
            _ => None,
        })
        .collect();
    let expected = [(8, "every"), (16, "every"), (20, "final")];
    assert_eq!(checkpoints, expected.map(|(iteration, reason)| (iteration, reason.to_string())));
    let equal =
        events.iter().filter(|(_, e)| matches!(e, RankEvent::Fingerprint { equal: true, .. })).count();
    assert!(equal > 0);
    let names = events.iter().find_map(|(_, event)| match event {
        RankEvent::Scalars { values, .. } => Some(values.keys().cloned().collect::<Vec<_>>()),
        _ => None,
    });
    assert!(names.unwrap().contains(&"losses/value_loss".to_string()));
    let body = StatusPageReader::open(&page).unwrap().view().unwrap().body;
    assert_eq!((body.phase, body.train_iter, body.env_step), (Phase::Done as u64, 20, 20 * 512));
    assert_eq!((body.samples, body.episodes, body.updates), (last.samples, last.episodes, last.updates));
    assert!(body.entered > 0 && body.entered == body.left);
    tensorboard_reads(&run);
}

/// Up to the hundredth episode the mean is that of all, and later it is that of the last ones: it differs.
fn the_last_hundred(totals: &[Counters]) {
    let mut all = Returns::default();
    let (mut equal, mut different) = (0, 0);
    for one in totals {
        all = all.plus(one.returns);
        let mean = one.return_last_100.unwrap();
        let of_all = all.sum / all.count as f64;
        if all.count <= 100 {
            assert!((mean - of_all).abs() < 1e-9, "{mean} {of_all}");
            equal += 1;
        } else {
            different += usize::from((mean - of_all).abs() > 1e-9);
        }
    }
    assert!(equal > 0 && different > 0, "{equal} {different}");
}

fn tensorboard_reads(run: &Run) {
    let program = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
board = EventAccumulator(sys.argv[1]).Reload()
for tag in board.Tags()['scalars']:
    for point in board.Scalars(tag):
        print(tag, point.step, point.value)
";
    let folder = run.file("tensorboard");
    let args = [OsStr::new("-c"), OsStr::new(program), folder.as_os_str()];
    let Some(output) = python("tensorboard", &args) else { return };
    let points: Vec<(&str, u64, f64)> = output
        .lines()
        .map(|line| {
            let parts: Vec<&str> = line.split(' ').collect();
            (parts[0], parts[1].parse().unwrap(), parts[2].parse().unwrap())
        })
        .collect();
    for (_, event) in run.events() {
        if let RankEvent::Scalars { env_step, values, .. } = event {
            // Of the others, a report has means over its iterations.
            let same = ["charts/return_last_100", "charts/SPS", "charts/learning_rate"];
            for (name, value) in values.iter().filter(|(name, _)| same.contains(&name.as_str())) {
                let found = points.iter().any(|(tag, step, read)| {
                    tag == name && *step == env_step && (*read - value).abs() <= 1e-6 * value.abs().max(1e-3)
                });
                assert!(found, "{name} = {value} at step {env_step}");
            }
        }
    }
    let every: Vec<u64> = (1..=20).map(|iteration| iteration * 512).collect();
    for name in ["charts/learning_rate", "losses/approx_kl"] {
        let steps = points.iter().filter(|(tag, ..)| *tag == name).map(|(_, step, _)| *step);
        assert_eq!(steps.collect::<Vec<_>>(), every, "{name}: a point per iteration");
    }
    for name in [
        "charts/episodic_return",
        "charts/return_last_100",
        "charts/SPS",
        "charts/learning_rate",
        "losses/approx_kl",
        "eval/return_mean",
    ] {
        assert!(points.iter().any(|(tag, _, _)| *tag == name), "{name}");
    }
}
