use super::super::{EnvPurpose, make_vector};
use super::*;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::{Env, EnvWorker};

fn vector(id: &str, envs: usize, first: u32, seed: u64) -> Box<dyn VectorEnv> {
    make_vector(&Env::new(id, 1), envs, first, &Seeds::new(seed), 0, EnvPurpose::Train).unwrap()
}

/// Some actions that depend on the step and the environment.
fn act(env: &mut dyn VectorEnv, step: usize, outcome: &mut StepOutcome) {
    let number = |i: usize| (step * 7 + i * 3) / 5;
    match env.spec().actions.clone() {
        ActionSpace::Discrete { n } => {
            let actions: Vec<i64> = (0..env.len()).map(|i| (number(i) % n) as i64).collect();
            env.step(Actions::Discrete(&actions), outcome).unwrap();
        }
        ActionSpace::Continuous { low, high } => {
            let at = |i: usize| low[0] + (high[0] - low[0]) * (number(i) % 11) as f32 / 10.0;
            let actions: Vec<f32> = (0..env.len()).map(at).collect();
            env.step(Actions::Continuous(&actions), outcome).unwrap();
        }
    }
}

fn bits(observations: Observations<'_>) -> Vec<u32> {
    observations.f32().unwrap().iter().map(|x| x.to_bits()).collect()
}

fn play(env: &mut dyn VectorEnv, steps: usize) -> (Vec<u32>, Vec<Episode>, u64) {
    let mut outcome = StepOutcome::new(env.spec(), env.len());
    let (mut seen, mut episodes, mut done) = (Vec::new(), Vec::new(), 0);
    for step in 0..steps {
        act(env, step, &mut outcome);
        done += (0..env.len()).filter(|i| outcome.done(*i)).count() as u64;
        assert!(outcome.valid.iter().all(|valid| *valid));
        episodes.extend(outcome.episodes.iter().copied());
        seen.extend(bits(env.observations()));
    }
    (seen, episodes, done)
}

#[test]
fn vector_1_every_step_counts_and_no_reset_does() {
    let mut env = vector("CartPole-v1", 3, 0, 1);
    let (_, episodes, done) = play(env.as_mut(), 400);
    assert_eq!(episodes.len() as u64, done);
    assert!(done > 10);
    let running: u64 = env.save().unwrap().chunks(env.words_per_env().unwrap()).map(|words| words[1]).sum();
    assert_eq!(episodes.iter().map(|e| e.length).sum::<u64>() + running, 3 * 400);
    assert!(episodes.iter().all(|e| e.episode_return == e.length as f64));
}

#[test]
fn vector_2_the_last_observation_is_handed_over_and_the_next_is_a_first_one() {
    let mut env = vector("CartPole-v1", 2, 0, 3);
    let mut outcome = StepOutcome::new(env.spec(), 2);
    let mut ends = 0;
    for step in 0..300 {
        act(env.as_mut(), step, &mut outcome);
        for i in (0..2).filter(|i| outcome.done(*i)) {
            let row = |observations: Observations<'_>| observations.f32().unwrap()[i * 4..i * 4 + 4].to_vec();
            let (last, first) = (row(outcome.final_observations.view()), row(env.observations()));
            assert!(last[2].abs() > 0.2 || last[0].abs() > 2.4, "a fallen pole: {last:?}");
            assert!(first.iter().all(|x| x.abs() <= 0.05), "a reset state: {first:?}");
            ends += 1;
        }
    }
    assert!(ends > 5);
}

#[test]
fn vector_3_a_restored_state_goes_on_alike() {
    for id in KNOWN {
        let mut env = vector(id, 2, 0, 4);
        play(env.as_mut(), 57);
        let mut copy = vector(id, 2, 9, 4);
        copy.restore(&env.save().unwrap()).unwrap();
        assert_eq!(bits(copy.observations()), bits(env.observations()), "{id}");
        assert_eq!(play(copy.as_mut(), 300), play(env.as_mut(), 300), "{id}");
        assert!(copy.restore(&[1, 2, 3]).is_err());
    }
}

#[test]
fn vector_4_an_environment_depends_on_its_global_index_only() {
    for id in KNOWN {
        let (mut all, mut half) = (vector(id, 4, 0, 2), vector(id, 2, 2, 2));
        let width = all.spec().observation_len();
        assert_eq!(bits(all.observations())[2 * width..], bits(half.observations()));
        let begun = bits(all.observations());
        play(all.as_mut(), 20);
        all.reset().unwrap();
        half.reset().unwrap();
        assert_eq!(bits(all.observations()), begun, "{id}");
    }
}

#[test]
fn actions_and_buffers_that_do_not_fit_are_refused() {
    let mut env = vector("CartPole-v1", 2, 0, 2);
    let mut outcome = StepOutcome::new(env.spec(), 2);
    for actions in [
        Actions::Discrete(&[0]),
        Actions::Discrete(&[0, 2]),
        Actions::Discrete(&[-1, 0]),
        Actions::Continuous(&[0.0, 0.0]),
    ] {
        assert!(matches!(env.step(actions, &mut outcome), Err(EnvError::Actions { .. })), "{actions:?}");
    }
    let mut small = StepOutcome::new(env.spec(), 1);
    assert!(env.step(Actions::Discrete(&[0, 0]), &mut small).is_err());
    env.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
}

#[test]
fn an_unknown_id_names_the_known_ones() {
    let env = Env { worker: EnvWorker::Rust, ..Env::new("CartPole-v7", 1) };
    let error = super::super::EnvFactory::open(&env).err().unwrap();
    assert!(
        error.to_string().contains("CartPole-v7") && error.to_string().contains("CartPole-v1"),
        "{error}"
    );
}

#[test]
fn the_constant_environment_is_only_ever_truncated() {
    let env = Env { max_episode_steps: Some(4), ..Env::new(constant::ID, 1) };
    let mut env = make_vector(&env, 2, 0, &Seeds::new(0), 0, EnvPurpose::Train).unwrap();
    let mut outcome = StepOutcome::new(env.spec(), 2);
    for step in 1..=12 {
        env.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
        assert_eq!((outcome.rewards[0], outcome.terminated[0]), (1.0, false));
        assert_eq!(outcome.truncated, [step % 4 == 0; 2]);
        assert_eq!(outcome.episodes.len(), if step % 4 == 0 { 2 } else { 0 });
    }
}
