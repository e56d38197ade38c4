//! Models for screen tests: built from given values only, so that a scene looks the same everywhere and always.

use rankdeck_core::card::{Advice, Call, Card, Others, Side};
use rankdeck_core::model::*;
use rankdeck_core::reason::Reason;
use rankdeck_core::report::*;
use rankdeck_core::series::Series;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::{Collect, Distributed, Env, Eval, Experiment, Launch, Policy, Run, Watch};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, PlannedHost, PlannedRank, PlannedSize};
use rankdeck_types::probe::Probe;

/// When every scene is looked at.
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
        run: Run { name: "ppo-cartpole".into(), seed: 1, total_steps: 2_000_000 },
        launch: Launch::default(),
        distributed: Distributed::default(),
        env: Some(Env::new("CartPole-v1", 4 * world as u32)),
        policy: Policy::default(),
        collect: Collect::default(),
        learn: None,
        eval: Eval { every: 10, episodes: 20, stop_value: Some(490.0) },
        checkpoint: Default::default(),
        watch: Watch::default(),
        restart: Default::default(),
        metrics: Default::default(),
    };
    Plan {
        run: RunId("ppo-cartpole-20260101-120000".into()),
        experiment,
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
        backend: if machines.iter().all(|machine| machine.gpus) { "nccl" } else { "gloo" }.into(),
        sizes: vec![
            PlannedSize { name: "num_envs".into(), local: 4, global: 4 * world },
            PlannedSize { name: "batch".into(), local: 512, global: 512 * world },
            PlannedSize { name: "minibatch".into(), local: 128, global: 128 * world },
        ],
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

fn ago(ms: u64) -> Timestamp {
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
        host.heard = Some(ago(300));
        host.last_seq = 40;
        host.sample = Some(sample(&plan, NodeRank(i as u32), own, iteration));
    }
    model.ranks =
        plan.ranks.iter().map(|rank| rank_model(&plan, rank, &model.hosts, own, iteration)).collect();
    series(&mut model);
    let (totals, mut sum) = (counters(iteration, own * world), counters(iteration, own * world));
    sum.updates *= world;
    model.progress = Some(Progress {
        totals,
        sum,
        consistent: true,
        steps_per_s: 1632.0,
        return_mean: Some(212.4),
        eta_s: Some(472.0),
        at: ago(250),
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
        (0, Tone::Info, "run launched: generation 0".to_string()),
        (1_900, Tone::Good, format!("all {world} ranks joined, backend {}", plan.backend)),
        (121_000, Tone::Info, "evaluation at env_step 204,800: 98.4 ± 31.0".to_string()),
        (372_500, Tone::Good, "checkpoint best at env_step 614,400".to_string()),
        (690_000, Tone::Warn, "rank 1 was slow for 4 s, and caught up".to_string()),
    ] {
        model.history.push_back(HistoryLine { at: STARTED.plus(at), time: 0.0, tone, text });
    }
    model.revision = 900;
    model
}

fn checkpoint(env_step: u64, train_iter: u64, reason: &str, path: &str) -> CheckpointModel {
    CheckpointModel { path: path.into(), env_step, train_iter, reason: reason.into() }
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
            series.push((i + 1) as f64 * 5120.0, y);
        }
        model.scalars.insert((*name).into(), series);
    }
    let mut evals = Series::default();
    for i in 1..=12u64 {
        let t = i as f64 / 12.0;
        let mean = 22.0 + 260.0 * t.powf(1.3) + 12.0 * wobble(i);
        evals.push(i as f64 * 102_400.0, mean);
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
            stop: false,
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
                    op: "all_reduce".into(),
                    tag: "grad".into(),
                    bytes: 36_620,
                    dtype: "f32".into(),
                    age_ms: 3,
                    ..CollectiveSample::default()
                },
                ..PageSample::default()
            }),
            signals: Default::default(),
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
        log.lines.push_back((i * world + u64::from(rank.rank.0), text));
    }
    log.next = 40;
    let history = |base: f64| (0..60).map(move |i| (base + 3.0 * wobble(i)) as f32).collect();
    RankModel {
        life: RankLife::Joined,
        device: rank.gpu.map_or("cpu".into(), |_| format!("cuda:{}", rank.local_rank)),
        pid: Some(4300 + rank.rank.0),
        sample,
        sampled: Some(ago(300)),
        steps_per_s: 1632.0 / world as f64 + wobble(u64::from(rank.rank.0)),
        counters: [counters(iteration, own)].into(),
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
        reason_code: Default::default(),
        card: Box::default(),
        reason: reason.into(),
        latency_s: 5.2,
        first_s: 5.2,
    }
}

fn note(text: &str) -> Advice {
    Advice { text: text.into(), command: String::new() }
}

/// Rank 3 of 4 does not enter a collective that the others wait in.
pub fn behind() -> Model {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let mut said = verdict(
        3,
        "node-b",
        VerdictKind::Behind,
        "3 ranks wait 6.2 s in #12,042 all_reduce grad, which rank 3 has not entered",
    );
    said.card.facts = vec![
        "ranks 0, 1, 2 are inside #12,042 all_reduce grad (36,620 bytes f32)".into(),
        "rank 3 left #12,041 6.4 s ago and is in phase learn since 6.4 s without progress".into(),
        "process 4303 is in state R at 100% of one core".into(),
    ];
    said.card.actions = vec![note("look at its log (l)"), note("restart from the latest checkpoint (r)")];
    model.verdicts.push(said);
    let mut slow =
        verdict(1, "node-a", VerdictKind::Straggler, "rank 1 needs 1.6 times the median of a rollout");
    slow.severity = Severity::Amber;
    slow.confidence = Confidence::Possible;
    model.verdicts.push(slow);
    for rank in &mut model.ranks {
        if let Some(page) = rank.sample.as_mut().and_then(|sample| sample.page.as_mut()) {
            page.phase = Phase::Learn;
            if rank.rank.0 == 3 {
                page.phase_age_ms = 6400;
                (page.collective.entered, page.collective.left, page.collective.age_ms) =
                    (12_041, 12_041, 6400);
            } else {
                (page.collective.entered, page.collective.left, page.collective.age_ms) =
                    (12_042, 12_041, 6200);
            }
        }
        rank.steps_per_s = 0.0;
    }
    model
}

/// Rank 1 was killed by the out-of-memory killer; the others are on their way out.
pub fn dead() -> Model {
    let mut model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    model.run.state = RunState::Draining;
    model.ranks[1].life = RankLife::Exited(Exit::Signal { signal: 9, out_of_memory: true });
    model.ranks[1].error =
        Some(("cuda: out of memory while allocating 2.0 GiB".into(), "lower env.num_envs".into()));
    model.ranks[3].life = RankLife::Exited(Exit::Signal { signal: 15, out_of_memory: false });
    let mut said = verdict(1, "node-a", VerdictKind::Dead, "rank 1 was killed: the kernel ran out of memory");
    said.card.facts = vec!["memory.events: oom_kill moved from 0 to 1".into()];
    said.card.actions = vec![note("lower env.num_envs, then press r")];
    model.verdicts.push(said);
    model.hosts[1].stopped = Some(Vec::new());
    model
}

/// The stop value was reached, the stop is proved.
pub fn over() -> Model {
    let mut model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    model.run.state = RunState::Over;
    model.run.ended = Some(STARTED.plus(760_000));
    model.run.outcome = Some(Outcome::Succeeded);
    model.run.exit_code = Some(0);
    model.run.reason = "evaluation 492.3 reached the stop value 490 at env_step 1,228,800".into();
    model.evals.back_mut().unwrap().stop = true;
    for rank in &mut model.ranks {
        rank.life = RankLife::Exited(Exit::Code { code: 0 });
    }
    for host in &mut model.hosts {
        host.stopped = Some(Vec::new());
        host.gpus_free = vec![0, 1];
    }
    model
}

/// The same as [`behind`], looked at closely: with a card.
pub fn behind_closely() -> Model {
    let mut model = behind();
    let said = model.verdicts.first_mut().unwrap();
    let call = Call {
        inside: true,
        op: "all_reduce".into(),
        tag: "grad".into(),
        seq: 12_042,
        count: 9_155,
        dtype: "f32".into(),
        bytes: 36_620,
        site: "src/trainer/dist/ddp.rs:212".into(),
        age_ms: 6_200,
        ..Call::default()
    };
    let side = |rank: u32, host: &str| Side {
        rank: Rank(rank),
        host: host.into(),
        pid: Some(4300 + rank),
        train_iter: Some(752),
        env_step: Some(96_256),
        phase: "learn".into(),
        phase_age_ms: Some(6_400),
        silent_ms: Some(6_200),
        os: "sleeping (S), cpu 0 %, in futex: futex_do_wait".into(),
        last_line: "iteration 751, env_step 384,512, 63,102 steps/s".into(),
        ..Side::default()
    };
    said.reason_code = Reason::Lock;
    said.confidence = Confidence::Likely;
    said.reason = "rank 3 on node-b waits for a lock in its phase learn (sample) at \
                   src/trainer/replay/gather.rs:88 in replay::gather; 3 ranks wait in all_reduce grad #12042"
        .into();
    *said.card = Card {
        guilty: Some(Side {
            activity: "sample".into(),
            silent_ms: Some(6_400),
            call: Some(Call { inside: false, seq: 12_041, age_ms: 6_400, ..call.clone() }),
            blocked_on: "futex, held by thread 4303 itself".into(),
            at: "src/trainer/replay/gather.rs:88 in replay::gather".into(),
            stack: vec![
                "__futex_abstimed_wait_common  /lib/x86_64-linux-gnu/libc.so.6".into(),
                "std::sync::mutex::Mutex::lock".into(),
                "replay::gather  src/trainer/replay/gather.rs:88".into(),
                "ppg::auxiliary  src/trainer/algo/ppg.rs:231".into(),
            ],
            ..side(3, "node-b")
        }),
        waiter: Some(Side { call: Some(call), ..side(0, "node-a") }),
        facts: vec![],
        observations: vec![],
        others: vec![Others {
            ranks: vec![Rank(1), Rank(2)],
            text: "waits in all_reduce grad #12042 since 6.1 s".into(),
        }],
        ruled_out: vec![
            "all ranks made the same collectives up to #12041".into(),
            "its process is there and not stopped nor frozen by its cgroup".into(),
            "nothing is retransmitted on its 3 TCP connections".into(),
            "silent for 6.4 s; up to 5.0 s is taken as usual there".into(),
        ],
        actions: vec![
            Advice {
                text: "look at its log".into(),
                command: "rankdeck logs cartpole_ppo-20260101-120000 --rank 3".into(),
            },
            Advice {
                text: "restart from the latest checkpoint".into(),
                command: "rankdeck restart cartpole_ppo-20260101-120000 --from latest".into(),
            },
        ],
    };
    model
}

/// A rank failed, and one host still has processes.
pub fn over_with_survivors() -> Model {
    let mut model = dead();
    model.run.state = RunState::Over;
    model.run.ended = Some(STARTED.plus(760_000));
    model.run.outcome = Some(Outcome::Failed);
    model.run.exit_code = Some(1);
    model.run.reason = "rank 1 on node-a was killed by the out-of-memory killer".into();
    model.hosts[0].stopped = Some(vec![
        Survivor {
            pid: 4711,
            rank: Some(Rank(1)),
            state: 'D',
            command: "rankdeck-trainer --config runs/ppo/experiment.toml".into(),
        },
        Survivor { pid: 4712, rank: None, state: 'Z', command: "python env_worker.py".into() },
    ]);
    model
}

/// An unknown host key.
pub fn host_key() -> Model {
    let mut model = connecting(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let prompt = Prompt::UnknownHostKey {
        host: "[node-b.lab.example]:2222".into(),
        key_type: "ssh-ed25519".into(),
        fingerprint: "SHA256:b7Yk2tQxq0nO3m1v8JwP5uZr4cE6fG9hI0jK1lM2nN4".into(),
    };
    model.hosts[0].link = LinkState::Ready { probe: probe(0) };
    model.hosts[1].link = LinkState::Asking { prompt: prompt.clone() };
    model.hosts[1].prompt = Some(prompt);
    model
}

/// Hosts at every stage of the road.
pub fn on_the_road() -> Model {
    let mut model = connecting(&[
        gpu("node-a", 8),
        gpu("node-b", 8),
        gpu("node-c", 8),
        gpu("node-d", 8),
        gpu("node-e", 8),
    ]);
    model.hosts[0].link = LinkState::Ready { probe: probe(8) };
    model.hosts[1].link = LinkState::Uploading {
        what: "/tmp/build/rankdeck-trainer".into(),
        done: 4_700_000,
        total: 7_700_000,
    };
    model.hosts[2].link = LinkState::Connecting { attempt: 3 };
    model.hosts[3].link = LinkState::Failed {
        error: "node-d: connection refused by 10.0.0.4:22".into(),
        hint: "check that sshd runs there: ssh 10.0.0.4".into(),
    };
    model.hosts[4].link = LinkState::Lost { reason: "node-e: no route to host".into(), retry_ms: 4_000 };
    model.run.generation = Generation(0);
    model
}

/// Two hosts as in the hosts file, of which any may be excluded from the next generation.
pub fn pickable() -> Model {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    for planned in &mut model.plan.as_mut().unwrap().hosts {
        planned.host = spare(&planned.host.name);
    }
    model
}

/// A host of the hosts file.
pub fn spare(name: &str) -> Host {
    Host { name: name.into(), address: name.into(), nproc: Some(2), ..Host::default() }
}

/// One host has not been heard of for ten minutes; the link tries on.
pub fn unreachable() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let host = &mut model.hosts[1];
    host.link = LinkState::Lost {
        reason: "node-b: cannot connect to 10.0.0.2:22: no answer within 10 s".into(),
        retry_ms: 4_300,
    };
    host.link_since = ago(800);
    host.heard = Some(ago(598_000));
    model
}
