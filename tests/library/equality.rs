//! W ranks on split data are one rank on the whole, for every algorithm.
//!
//! The ranks are threads of this process, each with its own group, environments and networks; what they run
//! is what the trainer runs ([`algo::make`] and [`Algorithm::iterate`]). To add an algorithm, add a line to
//! [`EXACT`] and one to [`LONG`].
//!
//! Equal results need that the parts make up the whole: minibatches drawn by each rank from its own share are
//! not those that one rank would draw, so the exact cases learn from whole rollouts, and advantages are
//! normalized over the world or not at all. With moments per rank and several minibatches, as CleanRL has
//! them, ranks still stay equal to each other, which the long cases check.

use crate::harness::DEADLINE;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_trainer::algo;
use rankdeck_trainer::algo::stop_points::StopPoints;
use rankdeck_trainer::algo::{BuildContext, StepContext};
use rankdeck_trainer::distributed::{BackendKind, GroupSettings, ProcessGroup};
use rankdeck_trainer::env::EnvFactory;
use rankdeck_trainer::startup::setup::Sizes;
use rankdeck_trainer::support::page::StatusPage;
use rankdeck_trainer::support::state::AlgorithmState;
use rankdeck_types::experiment::Experiment;
use tch::Device;

/// Name, `[env]` to `[learn]`, and iterations that make at least 10 updates.
const EXACT: &[(&str, &str, u64)] = &[
    (
        "ppo, discrete",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 64\n\
         [learn]\nalgorithm = 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5\nnorm_adv_over = 'world'",
        2,
    ),
    (
        "ppo, discrete, huber loss, plain advantages, target_kl",
        "[env]\nid = 'CartPole-v0'\nnum_envs = 4\n[policy]\nhidden = [16]\nactivation = 'relu'\n[collect]\nnum_steps = 64\nreward_scale = 0.01\n\
         [learn]\nalgorithm = 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5\nnorm_adv = false\nvalue_loss = 'huber'\nclip_vloss = false\ntarget_kl = 0.5\nbootstrap_truncated = true",
        2,
    ),
    (
        "ppo, continuous, with normalisers",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 64\nnormalise_observations = true\nnormalise_rewards = true\n\
         [learn]\nalgorithm = 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5\nnorm_adv_over = 'world'\nent_coef = 0.001",
        2,
    ),
    (
        "a2c, discrete",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 16\n[learn]\nalgorithm = 'a2c'\nent_coef = 0.01",
        10,
    ),
    (
        "a2c, continuous",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 16\nnormalise_observations = true\n\
         [learn]\nalgorithm = 'a2c'\nnorm_adv = true\nnorm_adv_over = 'world'",
        10,
    ),
    (
        "ppo, lstm",
        "[env]\nid = 'rankdeck/CartPoleNoVelocity-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\nmemory = 'lstm'\nmemory_size = 8\n[collect]\nnum_steps = 64\n\
         [learn]\nalgorithm = 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5\nnorm_adv_over = 'world'",
        2,
    ),
    (
        "a2c, mingru, cut episodes",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\nmax_episode_steps = 37\n[policy]\nhidden = [16]\nmemory = 'mingru'\nmemory_size = 8\n[collect]\nnum_steps = 16\nnormalise_observations = true\n\
         [learn]\nalgorithm = 'a2c'\nbootstrap_truncated = true\nnorm_adv = true\nnorm_adv_over = 'world'",
        10,
    ),
    (
        "ppg, discrete, shared layers",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\nshared = true\n[collect]\nnum_steps = 32\n\
         [learn]\nalgorithm = 'ppg'\nadam_eps = 1e-5\npolicy_iterations = 2\nnum_minibatches = 1\nupdate_epochs = 2\nnorm_adv_over = 'world'\naux_epochs = 3\naux_num_minibatches = 1",
        4,
    ),
    (
        "ppg, continuous, separate networks",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 32\n\
         [learn]\nalgorithm = 'ppg'\nadam_eps = 1e-5\npolicy_iterations = 2\nnum_minibatches = 1\nupdate_epochs = 2\nnorm_adv = false\naux_epochs = 3\naux_num_minibatches = 1\nbeta_clone = 0.5",
        4,
    ),
    (
        "pqn, with normalisers",
        "[env]\nid = 'CartPole-v0'\nnum_envs = 4\n[policy]\nhidden = [16]\nactivation = 'relu'\n\
         [collect]\nnum_steps = 64\nnormalise_observations = true\nnormalise_rewards = true\n\
         [learn]\nalgorithm = 'pqn'\nnum_minibatches = 1\nupdate_epochs = 5\nepsilon_steps = 400\nbootstrap_truncated = true",
        2,
    ),
];

/// Name, `[env]` to `[learn]`, and iterations that make at least 1000 updates.
const LONG: &[(&str, &str, u64)] = &[
    (
        "ppo",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\n[collect]\nnum_steps = 16\n[learn]\nalgorithm = 'ppo'\ntarget_kl = 0.2",
        200,
    ),
    (
        "ppo, continuous, with normalisers",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\n[collect]\nnum_steps = 16\nnormalise_observations = true\nnormalise_rewards = true\n[learn]\nalgorithm = 'ppo'",
        63,
    ),
    (
        "a2c",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\n[collect]\nnum_steps = 4\n[learn]\nalgorithm = 'a2c'",
        1000,
    ),
    (
        "ppo, lstm",
        "[env]\nid = 'rankdeck/CartPoleNoVelocity-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\nmemory = 'lstm'\nmemory_size = 4\n[collect]\nnum_steps = 16\n\
         [learn]\nalgorithm = 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5",
        200,
    ),
    (
        "ppg",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\nshared = true\n[collect]\nnum_steps = 16\n\
         [learn]\nalgorithm = 'ppg'\npolicy_iterations = 4\nnum_minibatches = 4\nupdate_epochs = 2\naux_num_minibatches = 2\naux_epochs = 4",
        100,
    ),
    (
        "pqn",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [8]\n[collect]\nnum_steps = 16\nnormalise_observations = true\n\
         [learn]\nalgorithm = 'pqn'\nepsilon_steps = 2000",
        63,
    ),
];

/// What a rank ends with.
pub struct EpisodeEnd {
    pub state: AlgorithmState,
    pub chains: Vec<u64>,
    pub updates: u64,
}

/// A rank to be.
#[derive(Clone, Copy)]
struct Rank {
    rank: u32,
    world_size: u32,
    port: u16,
    /// Takes part in the group; else it is alone with its share of the data.
    synchronised: bool,
}

impl Rank {
    fn group(self) -> ProcessGroup {
        let (rank, world_size) = if self.synchronised { (self.rank, self.world_size) } else { (0, 1) };
        let settings = GroupSettings {
            rank,
            world_size,
            local_rank: rank,
            master_addr: "127.0.0.1".into(),
            master_port: self.port,
            backend: BackendKind::Tcp,
            timeout: DEADLINE,
            shared_memory: true,
            interface: None,
            generation: 0,
            secret: None,
            device: Device::Cpu,
            interrupt: None,
        };
        let page = StatusPage::new(StatusPageWriter::anonymous(rank, 0).unwrap());
        ProcessGroup::connect(&settings, page).unwrap_or_else(|error| panic!("{error}"))
    }

    fn train(self, text: &str, iterations: u64) -> EpisodeEnd {
        let experiment: Experiment = toml::from_str(text).unwrap();
        let sizes = Sizes::resolve(&experiment, self.rank, self.world_size).unwrap();
        let envs = EnvFactory::open(experiment.env.as_ref().unwrap()).unwrap();
        let spec = envs.spec().clone();
        algo::check(&experiment, &spec, &sizes).unwrap_or_else(|error| panic!("{error}"));
        let group = self.group();
        let page = StatusPage::new(StatusPageWriter::anonymous(self.rank, 0).unwrap());
        let build = BuildContext {
            experiment: &experiment,
            sizes,
            envs: &envs,
            spec,
            seeds: Seeds::new(experiment.run.seed),
            device: Device::Cpu,
            group: &group,
            start_iteration: 0,
        };
        let mut algorithm = algo::make(&build).unwrap_or_else(|error| panic!("{error}"));
        let (mut chains, mut updates) = (Vec::new(), 0);
        for iteration in 0..iterations {
            let env_step = iteration * sizes.batch;
            let num_iterations = Some(iterations);
            let stop = &StopPoints::default();
            let ctx = StepContext {
                group: &group,
                page: &page,
                iteration,
                num_iterations,
                updates,
                env_step,
                stop,
            };
            let stats = algorithm.iterate(&ctx).unwrap_or_else(|error| panic!("{error}"));
            updates += stats.updates;
            chains.push(stats.chain);
        }
        EpisodeEnd { state: algorithm.state().unwrap(), chains, updates }
    }
}

/// All ranks of a world, in order.
pub fn train(case: &str, world_size: u32, iterations: u64, synchronised: bool) -> Vec<EpisodeEnd> {
    tch::set_num_threads(1);
    let text = format!("[run]\nname = 'equality'\nseed = 7\ntotal_steps = 1000000\n{case}\n");
    let port = rankdeck_testkit::free_port();
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            let (text, rank) = (text.clone(), Rank { rank, world_size, port, synchronised });
            std::thread::spawn(move || rank.train(&text, iterations))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// The largest difference of any weight, and where it is.
pub fn apart(a: &AlgorithmState, b: &AlgorithmState) -> (f32, String) {
    assert_eq!(a.arrays.len(), b.arrays.len());
    let mut worst = (0.0_f32, String::new());
    for (a, b) in a.arrays.iter().zip(&b.arrays).filter(|(a, _)| a.name.starts_with("model.")) {
        assert_eq!((&a.name, a.values.len()), (&b.name, b.values.len()));
        for (x, y) in a.values.iter().zip(&b.values) {
            let distance = if x == y { 0.0 } else { (x - y).abs() };
            // NaN is infinitely apart.
            let distance = if distance.is_nan() { f32::INFINITY } else { distance };
            if distance > worst.0 {
                worst = (distance, a.name.clone());
            }
        }
    }
    worst
}

#[test]
fn w_ranks_on_split_data_equal_one_rank_on_the_whole() {
    for (name, case, iterations) in EXACT {
        let whole = train(case, 1, *iterations, true).remove(0);
        assert!(whole.updates >= 10, "{name}: {}", whole.updates);
        let start = train(case, 1, 0, true).remove(0);
        let moved = apart(&start.state, &whole.state).0;
        assert!(moved > 1e-4, "{name}: nothing was learned: {moved}");
        for world_size in [2, 4] {
            let ranks = train(case, world_size, *iterations, true);
            for (rank, ended) in ranks.iter().enumerate() {
                let (distance, place) = apart(&whole.state, &ended.state);
                assert!(distance <= 1e-6, "{name}: rank {rank} of {world_size}: {place} is {distance} apart");
                assert_eq!(ended.updates, whole.updates, "{name}");
                assert_eq!(ended.chains, ranks[0].chains, "{name}");
            }
        }
        // The same ranks without a group between them must not pass.
        let unsynchronised = train(case, 2, *iterations, false);
        assert!(
            unsynchronised.iter().all(|ended| apart(&whole.state, &ended.state).0 > 1e-6),
            "{name}: the check does not see that gradients were not averaged"
        );
        assert_ne!(unsynchronised[0].chains, unsynchronised[1].chains, "{name}");
    }
}

/// A case with an environment of tests/programs/masked_env.py; `None` has been noted as a skip.
fn in_python(id: &str, rest: &str) -> Option<(tempfile::TempDir, String)> {
    use std::os::unix::fs::PermissionsExt;
    let python = rankdeck_testkit::python("gymnasium")?;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("python");
    let programs = rankdeck_testkit::repository("tests/programs");
    let text = format!("#!/bin/sh\nPYTHONPATH={} exec {python} \"$@\"\n", programs.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let case = format!(
        "[env]\nid = 'masked_env:{id}'\nnum_envs = 4\nworkers = 1\npython = '{}'\n{rest}",
        script.display()
    );
    Some((folder, case))
}

fn two_ranks_equal_one(name: &str, case: &str, iterations: u64) {
    let whole = train(case, 1, iterations, true).remove(0);
    assert!(whole.updates >= 4, "{name}: {}", whole.updates);
    let ranks = train(case, 2, iterations, true);
    for ended in &ranks {
        let (distance, place) = apart(&whole.state, &ended.state);
        assert!(distance <= 1e-6, "{name}: {place} is {distance} apart");
        assert_eq!(ended.chains, ranks[0].chains, "{name}");
    }
}

const WHOLE: &str = "[policy]\nhidden = [16]\n[collect]\nnum_steps = 32\n[learn]\nalgorithm =";

/// PQN-1, PQN-2, PQN-3, besides the other algorithms' rules.
#[test]
fn ranks_with_action_masks_equal_one_rank() {
    let rest = format!(
        "action_masks = true\n{WHOLE} 'ppo'\nnum_minibatches = 1\nupdate_epochs = 5\nnorm_adv_over = 'world'"
    );
    let Some((_folder, case)) = in_python("Several-masked-v0", &rest) else { return };
    two_ranks_equal_one("ppo with masks", &case, 2);
    for learn in [
        "'pqn'\nnum_minibatches = 1\nupdate_epochs = 5\nepsilon_steps = 200",
        "'ppg'\nadam_eps = 1e-5\npolicy_iterations = 2\nnum_minibatches = 1\nupdate_epochs = 2\nnorm_adv = false\n\
         aux_epochs = 3\naux_num_minibatches = 1",
    ] {
        let rest = format!("action_masks = true\n{WHOLE} {learn}");
        let Some((_folder, case)) = in_python("Masked-info-v0", &rest) else { return };
        two_ranks_equal_one(learn, &case, 4);
    }
}

/// OFFPOLICY-3, NORM-1. Until learning starts, ranks make the same steps as one rank.
#[test]
fn moments_beside_replay_are_equal_on_all_ranks() {
    let sac = "[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\n\
               [collect]\nnum_steps = 10\nnormalise_observations = true\n\
               [learn]\nalgorithm = 'sac'\nbuffer_size = 1000\nbatch_size = 32\nupdates_per_iteration = 3\n";
    let (td3, dqn) =
        (sac.replace("'sac'", "'td3'"), sac.replace("'sac'", "'dqn'").replace("Pendulum", "CartPole"));
    for case in [sac, &td3, &dqn] {
        let moments = |state: &AlgorithmState| -> Vec<u64> {
            state.words.iter().find(|words| words.name == "moments.observations").unwrap().values.clone()
        };
        let numbers = |state| -> Vec<f64> { moments(state).into_iter().map(f64::from_bits).collect() };
        let waits = format!("{case}learning_starts = 400");
        let whole = train(&waits, 1, 6, true).remove(0);
        let ranks = train(&waits, 2, 6, true);
        assert!((numbers(&whole.state)[0] - 240.0).abs() < 1e-3, "each observation counts once");
        for (a, b) in numbers(&ranks[0].state).iter().zip(numbers(&whole.state)) {
            assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{case}: {a} {b}");
        }
        let learned = train(&format!("{case}learning_starts = 40"), 2, 6, true);
        let bits = |state: &AlgorithmState| -> Vec<Vec<u32>> {
            state.arrays.iter().map(|a| a.values.iter().map(|v| v.to_bits()).collect()).collect()
        };
        assert!(learned[0].updates > 10, "{case}");
        assert_eq!(moments(&learned[0].state), moments(&learned[1].state), "{case}");
        assert_eq!(bits(&learned[0].state), bits(&learned[1].state), "{case}");
    }
}

#[test]
fn ranks_with_several_actions_equal_one_rank() {
    for learn in [
        "'a2c'\nent_coef = 0.01",
        "'ppg'\nadam_eps = 1e-5\npolicy_iterations = 2\nnum_minibatches = 1\nupdate_epochs = 2\nnorm_adv = false\n\
         aux_epochs = 3\naux_num_minibatches = 1",
    ] {
        let Some((_folder, case)) = in_python("Several-discrete-v0", &format!("{WHOLE} {learn}")) else {
            return;
        };
        two_ranks_equal_one(learn, &case, 4);
    }
}

#[test]
fn fingerprints_stay_equal_over_a_thousand_updates() {
    // Two ranks are in the exact cases.
    let world_size = 4;
    for (name, case, iterations) in LONG {
        let ranks = train(case, world_size, *iterations, true);
        for ended in &ranks {
            assert!(ended.updates >= 1000, "{name}: {}", ended.updates);
            assert!(ended.chains.iter().all(|chain| *chain != 0), "{name}");
            assert_eq!(ended.chains, ranks[0].chains, "{name}, {world_size} ranks");
            // Everything but the environments, bit by bit.
            let bits = |state: &AlgorithmState| -> Vec<Vec<u32>> {
                state.arrays.iter().map(|a| a.values.iter().map(|v| v.to_bits()).collect()).collect()
            };
            assert_eq!(bits(&ended.state), bits(&ranks[0].state), "{name}");
            assert_eq!(ended.state.words, ranks[0].state.words, "{name}");
        }
    }
}
