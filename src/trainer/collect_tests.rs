use super::*;
use crate::env;
use crate::env::make_vector;
use crate::policy::ActorCritic;
use crate::policy::actor_critic::Layout;
use rankdeck_types::experiment::{Env, Policy};
use tch::Device;

fn reward_config(num_steps: u32) -> RewardConfig {
    RewardConfig {
        collect: Collect { num_steps, ..Collect::default() },
        gamma: 0.99,
        bootstrap_truncated: false,
    }
}

/// Environments that notice when they are asked for anything inside a step, or for the end of none.
struct Strict {
    inner: Box<dyn VectorEnv>,
    begun: bool,
}

impl VectorEnv for Strict {
    fn spec(&self) -> &Spec {
        self.inner.spec()
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn observations(&self) -> Observations<'_> {
        assert!(!self.begun, "observations inside a step");
        self.inner.observations()
    }
    fn step(&mut self, actions: env::Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.begin(actions, outcome)?;
        self.finish(outcome)
    }
    fn begin(&mut self, actions: env::Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        assert!(!std::mem::replace(&mut self.begun, true), "a step inside a step");
        self.inner.begin(actions, outcome)
    }
    fn finish(&mut self, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        assert!(std::mem::replace(&mut self.begun, false), "the end of no step");
        self.inner.finish(outcome)
    }
    fn reset(&mut self) -> Result<(), EnvError> {
        assert!(!self.begun, "a reset inside a step");
        self.inner.reset()
    }
    fn words_per_env(&self) -> Option<usize> {
        self.inner.words_per_env()
    }
    fn save(&self) -> Option<Vec<u64>> {
        self.inner.save()
    }
    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        self.inner.restore(words)
    }
}

fn with(id: &str, envs: usize, first: u32, reward_config: RewardConfig) -> (Collector, Actor) {
    grouped(id, &[envs], first, reward_config)
}

/// With as many groups as there are counts.
fn grouped(id: &str, counts: &[usize], first: u32, reward_config: RewardConfig) -> (Collector, Actor) {
    let seeds = Seeds::new(5);
    let mut from = first;
    let vector = |count: &usize| {
        let env = make_vector(&Env::new(id, 1), *count, from, &seeds, 0, env::EnvPurpose::Train).unwrap();
        from += *count as u32;
        Box::new(Strict { inner: env, begun: false }) as Box<dyn VectorEnv>
    };
    let vectors: Vec<_> = counts.iter().map(vector).collect();
    let spec = vectors[0].spec().clone();
    let layout = Layout::new(&spec, &Policy { hidden: vec![16], ..Policy::default() }, false).unwrap();
    let policy = ActorCritic::new(layout, &seeds, Device::Cpu).unwrap();
    let mut acting = ActingPolicy::new(&policy, &spec.observation_shape, false, &Policy::default());
    acting.load(&policy).unwrap();
    let log_std = match &spec.actions {
        ActionSpace::Discrete { .. } => Vec::new(),
        ActionSpace::Continuous { low, .. } => vec![0.0; low.len()],
    };
    let collector = Collector::new(vectors, &spec, reward_config, seeds, first);
    (collector, Actor { acting, log_std, space: spec.actions })
}

fn collector(envs: usize, first: u32, steps: u32) -> (Collector, Actor) {
    with("CartPole-v1", envs, first, reward_config(steps))
}

/// Goes on.
fn counted(calls: &mut u32) -> Result<bool, TrainerError> {
    *calls += 1;
    Ok(true)
}

fn observations(rollout: &Rollout) -> &[f32] {
    rollout.observations.view().f32().unwrap()
}

#[test]
fn collect_1_counters_are_exact() {
    let (mut collector, mut actor) = collector(3, 0, 200);
    let mut calls = 0;
    collector.collect(&mut actor, 0, |_| counted(&mut calls)).unwrap();
    collector.collect(&mut actor, 1, |_| counted(&mut calls)).unwrap();
    let counters = collector.counters();
    assert_eq!((counters.env_step, counters.samples, calls), (1200, 1200, 400));
    let interval = collector.take_interval();
    assert_eq!(interval.returns.count, counters.episodes);
    assert!(counters.episodes > 10 && counters.duration_ns > 0);
    assert_eq!(interval.returns.sum, interval.length as f64);
    assert!(interval.returns.min >= 8.0 && interval.returns.max > interval.returns.min);
    assert_eq!(collector.take_interval(), Interval::default());
}

#[test]
fn dones_mark_first_observations() {
    let (mut collector, mut actor) = collector(2, 0, 300);
    collector.collect(&mut actor, 0, |_| Ok(true)).unwrap();
    let rollout = collector.rollout();
    let begins = rollout.dones.iter().chain(&rollout.next_dones).filter(|done| **done == 1.0).count();
    assert_eq!(begins as u64, collector.counters().episodes);
    for (done, first) in rollout.dones.iter().zip(observations(rollout).chunks(4)) {
        if *done == 1.0 {
            assert!(first.iter().all(|x| x.abs() <= 0.05), "a reset state: {first:?}");
        }
    }
}

#[test]
fn collect_2_two_ranks_collect_what_one_would() {
    let (mut whole, mut actor) = collector(4, 0, 50);
    let (mut second, mut their_actor) = collector(2, 2, 50);
    whole.collect(&mut actor, 3, |_| Ok(true)).unwrap();
    second.collect(&mut their_actor, 3, |_| Ok(true)).unwrap();
    let (ActionBuffer::Discrete(all), ActionBuffer::Discrete(half)) =
        (&whole.rollout().actions, &second.rollout().actions)
    else {
        panic!("discrete actions")
    };
    let columns: Vec<i64> = all.chunks(4).flat_map(|row| &row[2..]).copied().collect();
    assert_eq!(*half, columns);
}

/// COLLECT-2: with everything that is carried from step to step.
#[test]
fn collect_2_two_groups_collect_what_one_does() {
    for id in ["CartPole-v0", "Pendulum-v1"] {
        let mut settings = RewardConfig { bootstrap_truncated: true, ..reward_config(450) };
        settings.collect.normalise_observations = true;
        settings.collect.normalise_rewards = true;
        let (mut whole, mut actor) = with(id, 6, 0, settings.clone());
        let (mut halves, mut their_actor) = grouped(id, &[3, 3], 0, settings);
        for iteration in 0..3 {
            let mut seen = [Vec::new(), Vec::new()];
            for ((collector, actor), seen) in
                [(&mut whole, &mut actor), (&mut halves, &mut their_actor)].into_iter().zip(&mut seen)
            {
                let counters = |counters: &RankCounters| {
                    seen.push((counters.env_step, counters.episodes));
                    Ok(true)
                };
                assert!(collector.collect(actor, iteration, counters).unwrap());
            }
            assert_eq!(seen[0], seen[1]);
            assert_eq!(whole.rollout(), halves.rollout());
            assert_eq!(whole.discounted, halves.discounted);
            assert_eq!(whole.moment_words(), halves.moment_words());
            assert_eq!(whole.save_envs(), halves.save_envs());
            assert_eq!(whole.take_interval(), halves.take_interval());
        }
    }
}

/// A rollout that is left in the middle leaves no step of a group begun, and another one can follow.
#[test]
fn two_groups_can_be_left_after_any_step() {
    for left_after in [1, 7, 20] {
        let (mut halves, mut actor) = grouped("CartPole-v1", &[2, 2], 0, reward_config(20));
        let mut steps = 0;
        let whole = halves.collect(&mut actor, 0, |_| {
            steps += 1;
            Ok(steps < left_after)
        });
        assert!(!whole.unwrap());
        assert!(halves.collect(&mut actor, 1, |_| Ok(true)).unwrap());
    }
}

#[test]
fn a_restored_collector_goes_on_alike() {
    let mut settings = reward_config(77);
    settings.collect.normalise_observations = true;
    settings.collect.normalise_rewards = true;
    let (mut original, mut actor) = with("CartPole-v1", 2, 0, settings.clone());
    original.collect(&mut actor, 0, |_| Ok(true)).unwrap();
    let (mut copy, _) = with("CartPole-v1", 2, 0, settings);
    copy.restore_envs(&original.save_envs()).unwrap();
    let words = original.moment_words();
    copy.restore_moments([&words[0], &words[1]]);
    original.collect(&mut actor, 1, |_| Ok(true)).unwrap();
    copy.collect(&mut actor, 1, |_| Ok(true)).unwrap();
    assert_eq!(copy.rollout(), original.rollout());
    assert_eq!(copy.discounted, original.discounted);
    assert!(copy.restore_envs(&[0; 3]).is_err());
}

/// CartPole-v0 cuts episodes after 200 steps: a policy that balances is cut, one that falls is not.
#[test]
fn only_cut_episodes_have_a_final_value_and_only_when_asked_for() {
    for bootstrap_truncated in [true, false] {
        let (mut collector, mut actor) =
            with("CartPole-v0", 2, 0, RewardConfig { bootstrap_truncated, ..reward_config(900) });
        // Linear control that balances: push to where the pole falls, almost surely.
        let policy = Policy { hidden: vec![], ..Policy::default() };
        let layout = Layout::new(collector.groups[0].env.spec(), &policy, false).unwrap();
        let mut net = ActorCritic::new(layout.clone(), &Seeds::new(1), Device::Cpu).unwrap();
        let mut weights = vec![0.0; layout.len];
        let right = layout.actor[0].weight + 4;
        weights[right..right + 4].copy_from_slice(&[2.0, 10.0, 100.0, 50.0]);
        weights[layout.critic[0].bias] = 7.0;
        net.copy_from(&weights).unwrap();
        actor.acting = ActingPolicy::new(&net, &[4], false, &Policy::default());
        actor.acting.load(&net).unwrap();
        collector.collect(&mut actor, 0, |_| Ok(true)).unwrap();
        let rollout = collector.rollout();
        let cut = rollout.final_values.iter().filter(|value| **value == 7.0).count();
        let other = rollout.final_values.iter().filter(|value| **value != 0.0).count();
        let episodes = collector.counters().episodes as usize;
        assert!(episodes >= 6, "{episodes}");
        assert_eq!((cut, other), if bootstrap_truncated { (episodes, episodes) } else { (0, 0) });
    }
}

#[test]
fn rewards_are_scaled_and_observations_normalised_with_the_moments_before() {
    let mut settings = reward_config(20);
    settings.collect.reward_scale = 0.01;
    settings.collect.normalise_observations = true;
    let (mut normalising, mut actor) = with("CartPole-v1", 2, 0, settings);
    normalising.collect(&mut actor, 0, |_| Ok(true)).unwrap();
    let rollout = normalising.rollout();
    assert!(rollout.rewards.iter().all(|reward| *reward == 0.01));
    let (mut plain, _) = collector(2, 0, 1);
    plain.observe(0, 0..2).unwrap();
    for (seen, raw) in observations(rollout)[..8].iter().zip(observations(plain.rollout())) {
        assert!((seen - raw).abs() < 1e-6, "the first moments change nothing");
    }
    assert_eq!(normalising.moments().len(), 1);
}
