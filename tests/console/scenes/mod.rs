//! Models for screen tests: built from given values only, so that a scene is the same everywhere and always.

mod incidents;
mod terminal;

pub use incidents::*;
pub use terminal::*;

use rankdeck_core::card::{Advice, Card, CollectiveRef, RankEvidence, RankGroup};
use rankdeck_core::model::*;
use rankdeck_core::reason::Reason;
use rankdeck_core::report::*;
use rankdeck_core::series::{Place, Series};
use rankdeck_proto::message::*;
use rankdeck_proto::show::{LiveFrame, PolicyEstimate, ShownPolicy, ShownStep};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{
    Collect, Distributed, Env, Eval, Experiment, LaunchConfig, Policy, Run, WatchConfig,
};
use rankdeck_types::host::Host;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, PlannedHost, PlannedRank, PlannedSize};

/// The time at which every scene is drawn.
pub const NOW: Timestamp = Timestamp(1_754_000);
/// When its run was launched.
pub const STARTED: Timestamp = Timestamp(1_000_000);

/// One host of a scene.
pub struct Machine {
    pub name: &'static str,
    pub ranks: u32,
    pub gpus: bool,
}

pub fn cpu(name: &'static str, ranks: u32) -> Machine {
    Machine { name, ranks, gpus: false }
}

pub fn gpu(name: &'static str, ranks: u32) -> Machine {
    Machine { name, ranks, gpus: true }
}

fn plan(machines: &[Machine]) -> Plan {
    let mut ranks = Vec::new();
    for (node, machine) in machines.iter().enumerate() {
        for local in 0..machine.ranks {
            ranks.push(PlannedRank {
                rank: Rank(ranks.len() as u32),
                local_rank: LocalRank(local),
                node_rank: NodeRank(node as u32),
                gpu: machine.gpus.then_some(local),
            });
        }
    }
    let world = ranks.len() as u64;
    let experiment = Experiment {
        run: Run { name: "ppo-cartpole".into(), seed: 1, total_steps: 2_000_000, note: None },
        launch: LaunchConfig::default(),
        args: Default::default(),
        distributed: Distributed::default(),
        env: Some(Env::new("CartPole-v1", 4 * world as u32)),
        policy: Policy::default(),
        collect: Collect::default(),
        learn: None,
        eval: Eval { every: 10, episodes: 20, stop_value: Some(490.0), ..Eval::default() },
        checkpoint: Default::default(),
        watch: WatchConfig::default(),
        restart: Default::default(),
        metrics: Default::default(),
    };
    Plan {
        run: RunId("ppo-cartpole-20260101-120000".into()),
        experiment,
        program: None,
        hosts: machines
            .iter()
            .enumerate()
            .map(|(i, machine)| {
                let host = Host {
                    name: machine.name.into(),
                    address: format!("10.0.0.{}", i + 1),
                    workdir: "rankdeck".into(),
                    ..Host::default()
                };
                PlannedHost::new(NodeRank(i as u32), host)
            })
            .collect(),
        ranks,
        sizes: vec![
            PlannedSize { name: "num_envs".into(), local: 4, global: 4 * world },
            PlannedSize { name: "batch".into(), local: 512, global: 512 * world },
            PlannedSize { name: "minibatch".into(), local: 128, global: 128 * world },
        ],
        drill: false,
    }
}

/// Hosts known, nothing connected.
pub fn connecting(machines: &[Machine]) -> Model {
    let plan = plan(machines);
    let hosts = plan
        .hosts
        .iter()
        .map(|planned| HostModel {
            link: LinkState::Connecting { attempt: 1 },
            link_since: ago(1_200),
            ..HostModel::new(planned.node_rank, planned.host.name.clone())
        })
        .collect();
    let run = RunModel { id: Some(plan.run.clone()), total_steps: Some(2_000_000), ..RunModel::default() };
    Model { plan: Some(plan), run, hosts, ..Model::default() }
}

pub fn ago(ms: u64) -> Timestamp {
    Timestamp(NOW.0 - ms)
}

/// A small deterministic wobble in -1..=1.
fn wobble(seed: u64) -> f64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d;
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    (x % 2001) as f64 / 1000.0 - 1.0
}

pub fn probe(gpus: u32) -> Probe {
    Probe {
        hostname: "h".into(),
        cpu_count: 16,
        gpu_count: gpus,
        home: "/data/rl".into(),
        trainer: Some("/data/rl/rankdeck/rankdeck-trainer".into()),
        libtorch: None,
    }
}

fn counters(iteration: u64, env_step: u64) -> Counters {
    Counters {
        train_iter: iteration,
        env_step,
        samples: env_step,
        episodes: env_step / 144,
        duration_s: 375.2,
        updates: iteration * 16,
        returns: Returns::default(),
        return_last_100: None,
        sum: false,
    }
}

/// A healthy run, 12 minutes 34 seconds old.
pub fn running(machines: &[Machine]) -> Model {
    let mut model = connecting(machines);
    let plan = model.plan.clone().unwrap();
    let world = plan.world_size() as u64;
    let (iteration, own) = (600, 1_228_800 / world);
    model.run.state = RunState::Running;
    model.run.started = Some(STARTED);
    model.run.master = "10.0.0.1:29500".into();
    for (i, host) in model.hosts.iter_mut().enumerate() {
        let machine = &machines[i];
        host.link = LinkState::Ready { probe: probe(if machine.gpus { machine.ranks } else { 0 }) };
        host.probe = Some(probe(0));
        host.agent = Some((4200 + i as u32, "0.1.0+3f9a1c2e".into()));
        host.clock_offset_s = 0.002 * (i as f64 + 1.0);
        host.last_message_at = Some(ago(300));
        host.last_seq = 40;
        host.sample = Some(sample(&plan, NodeRank(i as u32), own, iteration));
    }
    model.ranks =
        plan.ranks.iter().map(|rank| rank_model(&plan, rank, &model.hosts, own, iteration)).collect();
    series(&mut model);
    let (totals, mut sum) = (counters(iteration, own * world), counters(iteration, own * world));
    sum.updates *= world;
    model.progress = Some(TrainingProgress {
        totals,
        sum,
        consistent: true,
        reduced: true,
        generation: Default::default(),
        steps_per_s: Some(1632.0),
        return_mean: Some(212.4),
        eta_s: Some(472.0),
        at: ago(250),
        age_ms: 0,
        per_rank: Vec::new(),
    });
    model.fingerprint =
        Some(FingerprintModel { train_iter: iteration, update: 9600, equal: true, compared: 614 });
    model.checkpoints = [
        checkpoint(614_400, 300, "best", "checkpoints/best-300.ckpt"),
        checkpoint(1_126_400, 550, "latest", "checkpoints/latest-550.ckpt"),
    ]
    .into();
    for (at, tone, text) in [
        (0, EventTone::Info, "run launched: generation 0".to_string()),
        (1_900, EventTone::Good, format!("all {world} ranks joined, backend {}", plan.backend())),
        (121_000, EventTone::Info, "evaluation at env_step 204,800: 98.4 ± 31.0".to_string()),
        (372_500, EventTone::Good, "checkpoint best at env_step 614,400".to_string()),
        (690_000, EventTone::Warn, "rank 1 was slow for 4 s, and caught up".to_string()),
    ] {
        let number = model.history.len() as u64 + 1;
        model.history.push_back(HistoryLine::new(number, STARTED.plus(at), tone, text));
    }
    model.revision = 900;
    model
}

fn checkpoint(env_step: u64, train_iter: u64, reason: &str, path: &str) -> CheckpointModel {
    CheckpointModel {
        path: path.into(),
        env_step,
        train_iter,
        reason: reason.into(),
        ..CheckpointModel::default()
    }
}

/// Where a value at this step stands; 1,632 steps were made in a second.
pub fn place(step: f64) -> Place {
    Place { step, time: 1_767_268_800.0 + step / 1632.0, ..Place::default() }
}

fn series(model: &mut Model) {
    let names = [
        "charts/SPS",
        "charts/episodic_return",
        "losses/approx_kl",
        "losses/entropy",
        "losses/policy_loss",
        "losses/value_loss",
    ];
    for (n, name) in names.iter().enumerate() {
        let mut series = Series::default();
        for i in 0..240u64 {
            let t = i as f64 / 240.0;
            let noise = wobble(i * 7 + n as u64);
            let y = match n {
                0 => 1600.0 + 60.0 * noise + 30.0 * (t * 9.0).sin(),
                1 => 20.0 + 200.0 * t.powf(1.4) + 18.0 * noise * (0.3 + t),
                2 => 0.012 + 0.004 * noise,
                3 => 0.69 - 0.3 * t + 0.01 * noise,
                4 => -0.004 + 0.003 * noise,
                _ => 40.0 * (-3.0 * t).exp() + 2.0 + noise,
            };
            series.push(place((i + 1) as f64 * 5120.0), y);
        }
        model.scalars.insert((*name).into(), series);
    }
    let mut evals = Series::default();
    for i in 1..=12u64 {
        let t = i as f64 / 12.0;
        let mean = 22.0 + 260.0 * t.powf(1.3) + 12.0 * wobble(i);
        evals.push(place(i as f64 * 102_400.0), mean);
        model.evals.push_back(Evaluation {
            env_step: i * 102_400,
            train_iter: i * 50,
            episodes: 20,
            return_mean: mean,
            return_std: 30.0 + 8.0 * wobble(i + 50),
            return_min: mean - 61.0,
            return_max: mean + 74.0,
            length_mean: mean,
            duration_s: 1.4,
            ..Evaluation::default()
        });
    }
    model.scalars.insert("charts/eval_return".into(), evals);
}

fn sample(plan: &Plan, node: NodeRank, own: u64, iteration: u64) -> HostSample {
    let mut host = HostSample {
        mono_ms: 754_000,
        cpu_percent: 46.0,
        cpu_count: 16,
        memory_used: 13 << 30,
        memory_total: 64 << 30,
        load1: 7.2,
        ..HostSample::default()
    };
    for rank in plan.ranks_of(node) {
        let noise = wobble(u64::from(rank.rank.0) + 3);
        host.ranks.push(RankSample {
            rank: rank.rank,
            pid: 4300 + rank.rank.0,
            state: 'R',
            cpu_percent: 96.0 + 3.0 * noise as f32,
            rss: (312 << 20) + (u64::from(rank.rank.0 % 7) << 20),
            children: 0,
            wchan: String::new(),
            gpu: rank.gpu,
            gpu_memory: rank.gpu.map(|_| 71 << 30),
            gpu_share: None,
            page: Some(PageSample {
                phase: if rank.rank.0 % 3 == 2 { Phase::Rollout } else { Phase::Learn },
                phase_age_ms: 140,
                phase_progress: 17,
                heartbeat_age_ms: 12,
                train_iter: iteration,
                env_step: own,
                samples: own,
                episodes: own / 144,
                updates: iteration * 16,
                collective: CollectiveSample {
                    entered: 12_041,
                    left: if rank.rank.0 % 3 == 2 { 12_041 } else { 12_040 },
                    age_ms: 3,
                    call: CollectiveCall {
                        op: "all_reduce".into(),
                        tag: "grad".into(),
                        bytes: 36_620,
                        dtype: "f32".into(),
                        ..CollectiveCall::default()
                    },
                    ..CollectiveSample::default()
                },
                ..PageSample::default()
            }),
            signals: Default::default(),
            live: String::new(),
        });
        if let Some(index) = rank.gpu {
            host.gpus.push(GpuSample {
                index,
                name: "NVIDIA H200".into(),
                utilization: Some((84.0 + 9.0 * noise) as u32),
                memory_used: 72 << 30,
                memory_total: 140 << 30,
                power_w: Some(512.0 + 40.0 * noise as f32),
                power_limit_w: Some(700.0),
                temperature_c: Some(61),
                sm_clock_mhz: Some(1980),
                memory_clock_mhz: Some(3201),
                throttle: Vec::new(),
                processes: Vec::new(),
                ..GpuSample::default()
            });
        }
    }
    host
}

fn rank_model(plan: &Plan, rank: &PlannedRank, hosts: &[HostModel], own: u64, iteration: u64) -> RankModel {
    let host = &hosts[rank.node_rank.index()];
    let sample = host.sample.as_ref().unwrap().ranks.iter().find(|sample| sample.rank == rank.rank).cloned();
    let world = plan.ranks.len() as u64;
    let mut log = LogRing::default();
    for i in 0..40u64 {
        let step = 512 * (iteration - 40 + i) * world;
        let text = if i == 33 && rank.rank.0 == 1 {
            "warning: environment 3 was reset twice".to_string()
        } else {
            format!("iter {} env_step {step} loss {:.4}", iteration - 40 + i, 2.0 + wobble(i))
        };
        log.lines.push_back(HeldLine::new(i * world + u64::from(rank.rank.0), text));
    }
    log.next = 40;
    let history = |base: f64| (0..60).map(move |i| (base + 3.0 * wobble(i)) as f32).collect();
    RankModel {
        life: RankLife::Joined,
        device: rank.gpu.map_or("cpu".into(), |_| format!("cuda:{}", rank.local_rank)),
        pid: Some(4300 + rank.rank.0),
        sample,
        sampled: Some(ago(300)),
        steps_per_s: Some(1632.0 / world as f64 + wobble(u64::from(rank.rank.0))),
        own: Some(counters(iteration, own)),
        log,
        cpu_history: history(95.0),
        gpu_history: if rank.gpu.is_some() { history(84.0) } else { Default::default() },
        ..RankModel::pending(rank, &host.name)
    }
}

pub fn verdict(rank: u32, host: &str, kind: VerdictKind, reason: &str) -> VerdictReport {
    VerdictReport {
        rank: Some(Rank(rank)),
        host: Some(host.into()),
        verdict: kind,
        severity: Severity::Red,
        confidence: Confidence::Certain,
        proof: None,
        reason_code: Default::default(),
        card: Box::default(),
        reason: reason.into(),
        latency_s: 5.2,
        first_s: 5.2,
    }
}

/// Rank 0 evaluates, and the policy view is open.
pub fn at_play() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let policy = ShownPolicy {
        algorithm: "ppo".into(),
        env_id: "CartPole-v1".into(),
        train_iter: 120,
        env_step: 491_520,
        episodes: 20,
        bounds: Vec::new(),
    };
    let step = ShownStep {
        episode: 3,
        step: 51,
        seen: vec![0.4, -0.2, 0.07, 0.3],
        thought: Some(PolicyEstimate {
            scores: vec![0.18, 0.82],
            value: Some(61.5),
            ..PolicyEstimate::default()
        }),
        action: vec![1.0],
        reward: 1.0,
        episode_return: 52.0,
        ..ShownStep::default()
    };
    let frame = Some(Box::new(LiveFrame { policy, step, ended: 2, skipped: 1 }));
    model.policy = PolicyView { watched: true, at: ago(200), missed: 3, frame };
    model
}
