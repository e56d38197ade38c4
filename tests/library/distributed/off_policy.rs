//! DQN and SAC over several ranks equal one rank on the whole batch, and stay equal.

use super::harness::{Me, World};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_trainer::algo::captured_update::GraphCapture;
use rankdeck_trainer::algo::dqn::{ComputePath, QLearner};
use rankdeck_trainer::algo::off_policy::may_learn;
use rankdeck_trainer::algo::sac::{self, Sac, SacLearner};
use rankdeck_trainer::algo::td3::{self, Td3, Td3Learner};
use rankdeck_trainer::algo::twin_critics::Noise;
use rankdeck_trainer::distributed::{DataParallel, ProcessGroup};
use rankdeck_trainer::env::{ActionSpace, Spec};
use rankdeck_trainer::policy::q_network::QLayout;
use rankdeck_trainer::replay::ReplayBatch;
use rankdeck_types::experiment::{Activation, Kernel, Policy};
use rankdeck_types::learn::{DqnConfig, SacConfig, Td3Config};
use serde_json::{Value, json};
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const ROWS: usize = 64;

fn updates() -> u64 {
    std::env::var("DIST_UPDATES").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// The group that gradients go through: with `DIST_UNSYNCHRONISED` each rank's own.
fn learning_group<'a>(world: &'a ProcessGroup, alone: &'a mut Option<ProcessGroup>) -> &'a ProcessGroup {
    if std::env::var("DIST_UNSYNCHRONISED").is_err() {
        return world;
    }
    // Every rank takes part in the making of every group.
    let groups: Vec<_> = (0..world.world_size()).map(|rank| world.new_group(&[rank]).unwrap()).collect();
    *alone = groups.into_iter().flatten().next();
    alone.as_ref().unwrap()
}

/// This rank's rows of update `update`'s batch of `ROWS`, the same whatever the world size.
fn batch(update: u64, me: &Me, actions: Option<usize>) -> ReplayBatch {
    let mut random = Seeds::new(5).generator(Purpose::Replay, 0, update);
    let share = ROWS / me.world_size as usize;
    let mine = share * me.rank as usize..share * (me.rank as usize + 1);
    let mut numbers = |each: usize| -> Vec<f32> {
        let whole: Vec<f32> = (0..ROWS * each).map(|_| random.normal() as f32).collect();
        whole[mine.start * each..mine.end * each].to_vec()
    };
    let mut batch = ReplayBatch { rows: share, rewards: numbers(1), ..ReplayBatch::default() };
    (batch.numbers.now, batch.numbers.next) = (numbers(4), numbers(4));
    match actions {
        None => {
            batch.choices = numbers(1).iter().map(|x| i64::from(*x > 0.0)).collect();
            // Every other update has masks, which allow one action or both.
            let masks = numbers(2);
            if update % 2 == 1 {
                let allowed = |row: &[f32]| [row[0] > 0.0, row[0] <= 0.0 || row[1] > 0.0].map(u8::from);
                batch.next_masks = masks.chunks(2).flat_map(allowed).collect();
            }
        }
        Some(width) => batch.actions = numbers(width),
    }
    // Some rows ended.
    batch.discounts = numbers(1).iter().map(|x| if *x > 1.0 { 0.0 } else { 0.97 }).collect();
    batch
}

/// Every rank's part of one stream of numbers.
struct Split {
    random: Generator,
    rank: usize,
    world_size: usize,
}

impl Noise for Split {
    fn normals(&mut self, count: usize) -> Vec<f32> {
        let whole: Vec<f32> = (0..count * self.world_size).map(|_| self.random.normal() as f32).collect();
        whole[self.rank * count..(self.rank + 1) * count].to_vec()
    }
}

fn policy() -> Policy {
    Policy { hidden: vec![24, 16], activation: Activation::Relu, ..Policy::default() }
}

fn numbers(tensors: &[&Tensor]) -> Vec<f64> {
    tensors
        .iter()
        .flat_map(|t| Vec::<f64>::try_from(t.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap())
        .collect()
}

/// `DIST_WAY`: `torch`, `dp` (two devices of the process), else plain Rust.
pub fn dqn(me: &Me) -> Value {
    let (world, mut alone) = (me.connect(), None);
    let spec = Spec::discrete(4, 2);
    let way = match std::env::var("DIST_WAY").as_deref() {
        Ok("torch") => ComputePath::Torch,
        Ok("dp") => ComputePath::DataParallel(DataParallel::new(vec![Device::Cpu; 2]).unwrap()),
        _ => ComputePath::Best,
    };
    let settings = DqnConfig {
        learning_rate: 1e-3,
        batch_size: ROWS as u32,
        double: true,
        dueling: true,
        target_every: 4,
        tau: 0.5,
        max_grad_norm: 1.0,
        ..DqnConfig::default()
    };
    let layout = QLayout::new(&spec, &policy(), true).unwrap();
    // Only rank 0 begins with the weights that all must have.
    let seeds = Seeds::new(3 + u64::from(me.rank));
    let mut learner = QLearner::new(
        settings,
        (&spec, layout),
        way,
        &seeds,
        Device::Cpu,
        &world,
        (1 << 20, GraphCapture(true)),
    )
    .unwrap();
    let start = numbers(&[learner.network.online.flat()]);
    let group = learning_group(&world, &mut alone);
    for update in 0..updates() {
        learner.update(&batch(update, me, None), group).unwrap();
    }
    let parameters = numbers(&[learner.network.online.flat(), learner.network.target.flat()]);
    let result = json!({
        "start": start,
        "parameters": parameters,
        "fingerprints": learner.ddp.compare(&world).unwrap(),
    });
    drop(alone);
    world.destroy(Duration::from_secs(30)).unwrap();
    result
}

/// What computes the updates of SAC and TD3: by `DIST_WAY`, libtorch or plain Rust.
fn kernel() -> Kernel {
    match std::env::var("DIST_WAY").as_deref() {
        Ok("torch") => Kernel::Libtorch,
        _ => Kernel::Native,
    }
}

pub fn sac(me: &Me) -> Value {
    let (world, mut alone) = (me.connect(), None);
    let actions = ActionSpace::Continuous { low: vec![-2.0, -1.0], high: vec![2.0, 3.0] };
    let spec = Spec { actions, ..Spec::discrete(4, 1) };
    let settings = SacConfig { batch_size: ROWS as u32, ..SacConfig::default() };
    let layout = sac::layout(&spec, &policy()).unwrap();
    let seeds = Seeds::new(3 + u64::from(me.rank));
    let rule = Sac::new(settings, layout, &seeds, Device::Cpu).unwrap();
    let mut learner =
        SacLearner::new(rule, Device::Cpu, &world, (1 << 20, GraphCapture(true)), kernel()).unwrap();
    let networks = |learner: &SacLearner| {
        numbers(&[
            learner.rule.networks.actor.flat(),
            learner.rule.networks.critics.flat(),
            learner.rule.networks.targets.flat(),
            &learner.rule.log_alpha,
        ])
    };
    let start = networks(&learner);
    let group = learning_group(&world, &mut alone);
    for update in 0..updates() {
        let random = Seeds::new(8).generator(Purpose::Replay, 0, update);
        let mut noise = Split { random, rank: me.rank as usize, world_size: me.world_size as usize };
        learner.learn(&batch(update, me, Some(2)), &mut noise, group).unwrap();
    }
    let compared = learner.optimizers().iter().map(|part| part.ddp.compare(&world).unwrap());
    let equal =
        compared.collect::<Vec<_>>().iter().all(|prints| prints.iter().all(|print| *print == prints[0]));
    let result = json!({ "start": start, "parameters": networks(&learner), "fingerprints": [equal, true] });
    drop(alone);
    world.destroy(Duration::from_secs(30)).unwrap();
    result
}

pub fn td3(me: &Me) -> Value {
    let (world, mut alone) = (me.connect(), None);
    let actions = ActionSpace::Continuous { low: vec![-2.0, -1.0], high: vec![2.0, 3.0] };
    let spec = Spec { actions, ..Spec::discrete(4, 1) };
    let settings = Td3Config { batch_size: ROWS as u32, ..Td3Config::default() };
    let layout = td3::layout(&spec, &policy()).unwrap();
    let seeds = Seeds::new(3 + u64::from(me.rank));
    let rule = Td3::new(settings, layout, &seeds, Device::Cpu).unwrap();
    let mut learner =
        Td3Learner::new(rule, Device::Cpu, &world, (1 << 20, GraphCapture(true)), kernel()).unwrap();
    let networks = |learner: &Td3Learner| {
        numbers(&[
            learner.rule.networks.actor.flat(),
            learner.rule.networks.critics.flat(),
            learner.rule.networks.target_actor.flat(),
            learner.rule.networks.targets.flat(),
        ])
    };
    let start = networks(&learner);
    let group = learning_group(&world, &mut alone);
    for update in 0..updates() {
        let random = Seeds::new(8).generator(Purpose::Replay, 0, update);
        let mut noise = Split { random, rank: me.rank as usize, world_size: me.world_size as usize };
        learner.learn(&batch(update, me, Some(2)), &mut noise, group).unwrap();
    }
    let compared = learner.optimizers().iter().map(|part| part.ddp.compare(&world).unwrap());
    let equal =
        compared.collect::<Vec<_>>().iter().all(|prints| prints.iter().all(|print| *print == prints[0]));
    let result = json!({ "start": start, "parameters": networks(&learner), "fingerprints": [equal, true] });
    drop(alone);
    world.destroy(Duration::from_secs(30)).unwrap();
    result
}

/// Rank 1's replay stays empty for four rounds after the others'.
pub fn warm_up(me: &Me) -> Value {
    let group = me.connect();
    let began = (0..20).find(|round| {
        let enough = *round >= if me.rank == 1 { 7 } else { 3 };
        may_learn(&group, 10 * round, enough, 100).unwrap()
    });
    group.destroy(Duration::from_secs(30)).unwrap();
    json!(began)
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn distance(a: &Value, b: &Value) -> f64 {
    let (a, b) = (floats(a), floats(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn equal(result: &Value) -> bool {
    let prints = result["fingerprints"].as_array().unwrap();
    prints.iter().all(|print| *print == prints[0])
}

fn split_equals_whole(role: &'static str, ways: &[&str]) {
    let alone = World::new(role, 1).env("DIST_WAY", ways[0]).start().results().remove(0);
    let moved = distance(
        &alone["parameters"],
        &alone["start"].as_array().map_or(Value::Null, |start| {
            let mut whole = start.clone();
            let len = alone["parameters"].as_array().unwrap().len();
            // The target begins as the online network.
            while whole.len() < len {
                whole.push(start[whole.len() % start.len()].clone());
            }
            Value::Array(whole)
        }),
    );
    assert!(moved > 1e-3, "{role}: the weights must move: {moved}");
    for way in ways {
        for world_size in [1, 2, 4] {
            for result in World::new(role, world_size).env("DIST_WAY", way).start().results() {
                let far = distance(&alone["parameters"], &result["parameters"]);
                assert!(far < 1e-6, "{role}, {way}, world of {world_size}: {far}");
                assert!(equal(&result));
                assert_eq!(result["start"], alone["start"], "rank 0's weights are everybody's");
            }
        }
    }
}

fn stays_equal(role: &'static str) {
    for result in World::new(role, 2).env("DIST_UPDATES", 1000).start().results() {
        assert!(equal(&result));
    }
}

fn drifts_unsynchronised(role: &'static str) {
    let alone = World::new(role, 1).start().results().remove(0);
    for result in World::new(role, 2).env("DIST_UNSYNCHRONISED", 1).start().results() {
        assert!(distance(&alone["parameters"], &result["parameters"]) > 1e-5);
        assert!(!equal(&result), "drift must show in the fingerprints");
    }
}

/// QLEARN-1, QLEARN-2, DP-1.
#[test]
fn dqn_on_split_batches_equals_dqn_on_the_whole_in_every_way() {
    split_equals_whole("dqn", &["fast", "torch", "dp"]);
}

/// QLEARN-3.
#[test]
fn dqns_online_and_target_networks_stay_equal() {
    stays_equal("dqn");
}

#[test]
fn unsynchronized_dqn_fails_the_same_comparison() {
    drifts_unsynchronised("dqn");
}

/// SAC-1, TWIN-1.
#[test]
fn sac_on_split_batches_equals_sac_on_the_whole() {
    split_equals_whole("sac", &["native", "torch"]);
}

/// SAC-2.
#[test]
fn sacs_networks_and_entropy_weight_stay_equal() {
    stays_equal("sac");
}

#[test]
fn unsynchronized_sac_fails_the_same_comparison() {
    drifts_unsynchronised("sac");
}

/// TD3-1.
#[test]
fn td3_on_split_batches_equals_td3_on_the_whole() {
    split_equals_whole("td3", &["native", "torch"]);
}

/// TD3-2.
#[test]
fn td3s_networks_and_targets_stay_equal() {
    stays_equal("td3");
}

#[test]
fn unsynchronized_td3_fails_the_same_comparison() {
    drifts_unsynchronised("td3");
}

/// OFFPOLICY-1, DQN-1: no rank begins alone, whichever is last.
#[test]
fn learning_starts_on_all_ranks_in_the_same_round() {
    // 3 ranks take 30 steps per round together: 100 are there in round 4; rank 1's replay in round 7.
    for began in World::new("warm_up", 3).start().results() {
        assert_eq!(began, 7);
    }
}
