//! CLASSIC-1 and CLASSIC-2: classic control against Gymnasium, recorded and live.

use crate::harness::python;
use rankdeck_envs::{ActionSpace, Actions, EnvPurpose, StepOutcome, make_vector};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_testkit::repository;
use rankdeck_types::experiment::Env;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;

/// What `gymnasium_classic.py` prints.
#[derive(Debug, Deserialize)]
struct RecordedTask {
    id: String,
    base: u64,
    envs: usize,
    by: String,
    episodes: Vec<String>,
}

/// The rule of `gymnasium_classic.py`.
fn rule(id: &str, seen: &[f32], swing: f64) -> f64 {
    let x: Vec<f64> = seen.iter().map(|value| f64::from(*value)).collect();
    let swung = |velocity: f64, up: f64, down: f64| if velocity >= 0.0 { up } else { down };
    match id {
        "CartPole-v0" | "CartPole-v1" => f64::from(x[2] + 0.5 * x[3] + 0.02 * x[0] + 0.1 * x[1] > 0.0),
        "Pendulum-v1" => swung(x[2], 2.5, -2.5),
        "Acrobot-v1" => swung(x[4], 2.0, 0.0),
        "MountainCar-v0" => swung(x[1], 2.0, 0.0),
        _ => swung(x[1], 1.0, -1.0) * (0.25 + swing),
    }
}

/// One environment's running episode.
struct Playing {
    random: Generator,
    digest: Sha256,
    episodes: Vec<String>,
}

/// The same episodes in Rust, all environments in one vector, in the script's form.
fn play(id: &str, base: u64, envs: usize, episodes: usize) -> Vec<String> {
    let mut vector = make_vector(&Env::new(id, 1), envs, 0, &Seeds::new(base), 0, EnvPurpose::Train).unwrap();
    let spec = vector.spec().clone();
    let width = spec.observation_len();
    let mut outcome = StepOutcome::new(&spec, envs);
    let numbers = match id {
        "Pendulum-v1" | "MountainCar-v0" | "MountainCarContinuous-v0" => 2,
        _ => 4,
    };
    let bytes = |seen: &[f32]| -> Vec<u8> { seen.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let states = |words: Vec<u64>, each: usize| -> Vec<Vec<u8>> {
        let state =
            |words: &[u64]| words[6..6 + numbers].iter().flat_map(|word| word.to_le_bytes()).collect();
        words.chunks(each).map(state).collect()
    };
    let each = vector.words_per_env().unwrap();
    let begin = |seen: &[f32], state: &[u8]| Sha256::new().chain_update(bytes(seen)).chain_update(state);
    let state = states(vector.save().unwrap().unwrap(), each);
    let mut playing: Vec<Playing> = (0..envs)
        .map(|i| Playing {
            random: Generator::from_words(&[base as u32, i as u32]),
            digest: begin(&vector.observations().f32().unwrap()[i * width..(i + 1) * width], &state[i]),
            episodes: Vec::new(),
        })
        .collect();
    while playing.iter().any(|env| env.episodes.len() < episodes) {
        let seen = vector.observations().f32().unwrap();
        let chosen: Vec<f64> = playing
            .iter_mut()
            .zip(seen.chunks(width))
            .map(|(env, seen)| {
                let number = env.random.next_f64();
                match &spec.actions {
                    _ if env.episodes.len() % 2 == 0 => rule(id, seen, number),
                    ActionSpace::Discrete { n } => (number * *n as f64).floor(),
                    ActionSpace::MultiDiscrete { sizes } => panic!("{sizes:?}"),
                    ActionSpace::Continuous { high, .. } => f64::from(high[0]) * (2.5 * number - 1.25),
                }
            })
            .collect();
        match &spec.actions {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => {
                let actions: Vec<i64> = chosen.iter().map(|action| *action as i64).collect();
                vector.step(Actions::Discrete(&actions), &mut outcome).unwrap();
            }
            ActionSpace::Continuous { .. } => {
                let actions: Vec<f32> = chosen.iter().map(|action| *action as f32).collect();
                vector.step(Actions::Continuous(&actions), &mut outcome).unwrap();
            }
        }
        let state = states(vector.save().unwrap().unwrap(), each);
        let seen = vector.observations().f32().unwrap();
        let last = outcome.final_observations.view().f32().unwrap();
        for (i, env) in playing.iter_mut().enumerate() {
            let row = i * width..(i + 1) * width;
            let after = if outcome.done(i) { &last[row.clone()] } else { &seen[row.clone()] };
            env.digest.update(bytes(after));
            env.digest.update(outcome.rewards[i].to_le_bytes());
            if !outcome.done(i) {
                env.digest.update(&state[i]);
                continue;
            }
            let mut ended = String::new();
            ended.push_str(if outcome.terminated[i] { "T" } else { "" });
            ended.push_str(if outcome.truncated[i] { "L" } else { "" });
            let episode = outcome.episodes.iter().find(|episode| episode.env == i).unwrap();
            let started = begin(&seen[row], &state[i]);
            let digest = std::mem::replace(&mut env.digest, started).finalize();
            let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            let bits = episode.episode_return.to_bits();
            env.episodes.push(format!("{} {ended} {bits:016x} {digest}", episode.length));
        }
    }
    playing.into_iter().flat_map(|env| env.episodes.into_iter().take(episodes)).collect()
}

fn compare(recorded: &RecordedTask) {
    let episodes = recorded.episodes.len() / recorded.envs;
    let here = play(&recorded.id, recorded.base, recorded.envs, episodes);
    assert_eq!(here.len(), recorded.episodes.len());
    for (index, (here, there)) in here.iter().zip(&recorded.episodes).enumerate() {
        let (env, episode) = (index / episodes, index % episodes);
        assert_eq!(here, there, "{} env {env} episode {episode} (right: {})", recorded.id, recorded.by);
    }
}

#[test]
fn classic_1_and_2_recorded_gymnasium_episodes() {
    let text = std::fs::read_to_string(repository("tests/data/classic.json")).unwrap();
    let recorded: Vec<RecordedTask> = serde_json::from_str(&text).unwrap();
    let ids: Vec<&str> = recorded.iter().map(|recorded| recorded.id.as_str()).collect();
    assert_eq!(ids, rankdeck_envs::classic::ids());
    recorded.iter().for_each(compare);
    // Both kinds of ends were met wherever there are both.
    for recorded in &recorded {
        let met = |end: &str| recorded.episodes.iter().any(|e| e.split(' ').nth(1) == Some(end));
        assert!(met("L"), "{}", recorded.id);
        assert!(met("T") || recorded.id == "Pendulum-v1", "{}", recorded.id);
    }
}

#[test]
fn classic_1_states_equal_installed_gymnasium() {
    let program = repository("tests/trainer/gymnasium_classic.py");
    for id in rankdeck_envs::classic::ids() {
        let args = [program.as_os_str(), OsStr::new(id), "77".as_ref(), "6".as_ref(), "2".as_ref()];
        let Some(output) = python("gymnasium", &args) else { return };
        compare(&serde_json::from_str(&output).unwrap());
    }
}
