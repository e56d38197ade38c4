//! A simulated host: link and agent in one task.

use super::training::{self, Hang, SimGeneration, TrainingPoint, chance, mix};
use super::{CHECKPOINT_EVERY, EVAL_EVERY, FaultKind, SimulatedCluster, SimulatedWorld, host_name};
use crate::{LinkCommand, LinkEvent};
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::{
    AgentMessage, CheckpointContent, CheckpointOrder, CheckpointReply, ChildSample, ConsoleMessage, Exit,
    FailureKind, FinishReason, GpuSample, HostSample, HostSignals, LaunchSpec, LinesRead, PROTOCOL,
    PageSample, PartFile, Phase, RankEvent, RankSample, RankSignals, RankSnapshot, Record, RecordEvent,
    StopMode, Survivor, calm_round,
};
use rankdeck_proto::process::ReachOutcome;
use rankdeck_proto::search::LogFindings;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, WallTime};
use rankdeck_types::link_state::LinkState;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const TICK: Duration = Duration::from_millis(50);
/// Retained records while no console is attached, and while one is.
const SPOOL: usize = 4_096;
const RECENT: usize = 64;

/// Serves until the link is closed or its events are no longer received.
pub async fn serve(
    world: Arc<SimulatedWorld>,
    node: NodeRank,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
    mut orders: mpsc::Receiver<LinkCommand>,
) {
    let mut host = SimHost::new(world, node);
    let pause = |n| Duration::from_millis(20 + mix(host.world.cluster.seed, u64::from(node.0) * 4 + n) % 120);
    let steps = [
        (LinkState::Connecting { attempt: 1 }, pause(0)),
        (LinkState::Starting, pause(1)),
        (LinkState::Ready { probe: host.probe() }, Duration::ZERO),
    ];
    for (state, then) in steps {
        if events.send((node, LinkEvent::State(state))).await.is_err() {
            return;
        }
        sleep(then).await;
    }
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut out = Vec::new();
        tokio::select! {
            order = orders.recv() => match order {
                None | Some(LinkCommand::Close) => break,
                Some(LinkCommand::Answer(_) | LinkCommand::Resume) => {}
                Some(LinkCommand::Send(message)) if host.up => host.obey(message, &mut out),
                Some(LinkCommand::Send(_)) => {}
            },
            _ = ticks.tick() => host.advance(&mut out),
        }
        for event in out {
            if events.send((node, event)).await.is_err() {
                return;
            }
        }
    }
    let _ = events.send((node, LinkEvent::State(LinkState::Closed))).await;
}

#[derive(Debug, Clone, PartialEq)]
enum Process {
    Running,
    Finished(Instant),
    Exited(Exit),
}

struct SimHost {
    world: Arc<SimulatedWorld>,
    node: NodeRank,
    began: Instant,
    wall: WallTime,
    up: bool,
    attached: bool,
    spool: VecDeque<Record>,
    seq: u64,
    spec: Option<Box<LaunchSpec>>,
    processes: Vec<Process>,
    joined: bool,
    reported: u64,
    stop: Option<(StopMode, Instant, Duration)>,
    stopped: bool,
    logged: Vec<u64>,
    sampled: Option<Instant>,
}

impl SimHost {
    fn new(world: Arc<SimulatedWorld>, node: NodeRank) -> SimHost {
        let wall = rankdeck_proto::clock::wall_time();
        SimHost {
            world,
            node,
            began: Instant::now(),
            wall,
            up: true,
            attached: false,
            spool: VecDeque::new(),
            seq: 0,
            spec: None,
            processes: Vec::new(),
            joined: false,
            reported: 0,
            stop: None,
            stopped: false,
            logged: Vec::new(),
            sampled: None,
        }
    }

    fn cluster(&self) -> &SimulatedCluster {
        &self.world.cluster
    }

    fn time(&self) -> WallTime {
        self.wall + self.began.elapsed().as_secs_f64()
    }

    fn rank(&self, local: usize) -> Rank {
        Rank(self.node.0 * self.cluster().ranks_per_host + local as u32)
    }

    fn pid(&self, local: usize) -> u32 {
        let generation = self.spec.as_ref().map_or(0, |spec| spec.generation.0);
        10_000 + generation * 1000 + local as u32
    }

    fn probe(&self) -> Probe {
        Probe {
            hostname: host_name(self.node.0),
            cpu_count: 64,
            gpu_count: if self.cluster().gpus { self.cluster().ranks_per_host } else { 0 },
            home: "/home/sim".to_owned(),
            trainer: Some("/opt/rankdeck/rankdeck-trainer".to_owned()),
            libtorch: Some("/opt/libtorch".to_owned()),
        }
    }

    fn send(&mut self, message: AgentMessage, out: &mut Vec<LinkEvent>) {
        if self.attached {
            out.push(LinkEvent::Message(Box::new(message)));
        }
    }

    fn record(&mut self, event: RecordEvent, out: &mut Vec<LinkEvent>) {
        self.seq += 1;
        let generation = self.spec.as_ref().map_or(Generation(0), |spec| spec.generation);
        let record = Record { seq: self.seq, time: self.time(), generation, event };
        let most = if self.attached { RECENT } else { SPOOL };
        while self.spool.len() >= most {
            self.spool.pop_front();
        }
        self.spool.push_back(record.clone());
        self.send(AgentMessage::Record(record), out);
    }

    fn record_rank_event(&mut self, rank: Rank, event: RankEvent, out: &mut Vec<LinkEvent>) {
        self.record(RecordEvent::Rank { rank, event }, out);
    }

    fn obey(&mut self, message: ConsoleMessage, out: &mut Vec<LinkEvent>) {
        match message {
            ConsoleMessage::Attach { after_seq, .. } => self.attach(after_seq, out),
            ConsoleMessage::ReservePort { request } => {
                self.send(AgentMessage::PortReserved { request, port: 29_500 }, out);
            }
            ConsoleMessage::Launch { spec, .. } => self.launch(spec, out),
            ConsoleMessage::Stop { mode, grace_ms, ends } => {
                let order = RecordEvent::StopOrdered { mode, by: "console".to_owned(), ends };
                self.order_stop(mode, grace_ms, order, out);
            }
            ConsoleMessage::Inspect { request, ranks, .. } => {
                let inspections = self.inspect(&ranks);
                self.send(AgentMessage::Inspected { request, inspections }, out);
            }
            ConsoleMessage::Ping { sent_ms } => {
                self.send(AgentMessage::Pong { sent_ms, wall_time: None }, out)
            }
            ConsoleMessage::Search { request, search: Some(_) } => {
                let cut = "simulated hosts have no log files".into();
                let findings = Box::new(LogFindings { cut, over: true, ..LogFindings::default() });
                self.send(AgentMessage::Found { request, findings }, out);
            }
            ConsoleMessage::Reach { request, .. } => {
                let why = HintedError::new("simulated hosts have no processes", "");
                self.send(
                    AgentMessage::Reached { request, outcome: Box::new(ReachOutcome::Refused(why)) },
                    out,
                );
            }
            ConsoleMessage::Checkpoint { request, order } => {
                let reply = Box::new(self.checkpoint(*order));
                self.send(AgentMessage::Checkpoint { request, reply }, out);
            }
            ConsoleMessage::Rejoin { rank, .. } => {
                let why = HintedError::new(format!("rank {rank} is simulated and cannot start again"), "");
                self.send(AgentMessage::Refused(why), out);
            }
            ConsoleMessage::Ended { ending, .. } => self.record(RecordEvent::Ended { ending }, out),
            ConsoleMessage::Watch { .. }
            | ConsoleMessage::Continue { .. }
            | ConsoleMessage::Search { search: None, .. }
            | ConsoleMessage::Detach
            | ConsoleMessage::Close
            | ConsoleMessage::Unknown => {}
        }
    }

    /// Replies as a host with the disk of all others.
    fn checkpoint(&self, order: CheckpointOrder) -> CheckpointReply {
        let CheckpointOrder::Describe { path, .. } = order else {
            return CheckpointReply::Failed(HintedError::new("simulated hosts have no files", ""));
        };
        let files = vec![PartFile { bytes: 1, identity: path.clone(), ..PartFile::default() }];
        CheckpointReply::Described(CheckpointContent { path, files, ..CheckpointContent::default() })
    }

    /// Returns inspections without facts: simulated ranks have only a process id.
    fn inspect(&self, ranks: &[Rank]) -> Vec<Inspection> {
        (0..self.processes.len())
            .filter(|local| ranks.is_empty() || ranks.contains(&self.rank(*local)))
            .map(|local| Inspection {
                rank: self.rank(local),
                pid: Some(self.pid(local)),
                notes: vec!["simulated hosts have no processes".into()],
                ..Inspection::default()
            })
            .collect()
    }

    fn attach(&mut self, after_seq: u64, out: &mut Vec<LinkEvent>) {
        self.attached = true;
        let hello = AgentMessage::Hello {
            protocol: PROTOCOL,
            build: format!("{} (simulated)", env!("CARGO_PKG_VERSION")),
            host: host_name(self.node.0),
            node_rank: self.node,
            run: self.world.run.clone(),
            pid: 4242 + self.node.0,
            wall_time: self.time(),
            run_dir: format!("/scratch/rankdeck/runs/{}", self.world.run),
        };
        let ranks = self
            .processes
            .iter()
            .enumerate()
            .map(|(local, process)| RankSnapshot {
                rank: self.rank(local),
                pid: Some(self.pid(local)),
                exit: match process {
                    Process::Exited(exit) => Some(exit.clone()),
                    _ => None,
                },
            })
            .collect();
        let snapshot =
            AgentMessage::Snapshot { spec: self.spec.clone(), ranks, last_seq: self.seq, holds: Vec::new() };
        let missed =
            self.spool.iter().filter(|record| record.seq > after_seq).cloned().map(AgentMessage::Record);
        let messages: Vec<AgentMessage> = [hello, snapshot].into_iter().chain(missed).collect();
        out.extend(messages.into_iter().map(|message| LinkEvent::Message(Box::new(message))));
    }

    fn launch(&mut self, spec: Box<LaunchSpec>, out: &mut Vec<LinkEvent>) {
        if self.spec.as_ref().is_some_and(|old| old.generation >= spec.generation) {
            return;
        }
        let (generation, resume) = (spec.generation, spec.resume.is_some());
        self.spec = Some(spec.clone());
        self.processes = vec![Process::Running; self.cluster().ranks_per_host as usize];
        self.logged = vec![0; self.processes.len()];
        (self.joined, self.stopped, self.stop) = (false, false, None);
        self.reported = {
            let mut sim = self.world.sim();
            sim.launch(&self.world.cluster, self.node, generation, resume, Instant::now());
            sim.first_iter
        };
        self.record(RecordEvent::Launched { spec }, out);
        for local in 0..self.processes.len() {
            let event = RecordEvent::RankSpawned {
                rank: self.rank(local),
                local_rank: LocalRank(local as u32),
                pid: self.pid(local),
            };
            self.record(event, out);
        }
    }

    fn order_stop(&mut self, mode: StopMode, grace_ms: u64, order: RecordEvent, out: &mut Vec<LinkEvent>) {
        if self.spec.is_none() {
            // The scan finds no process.
            self.record(order, out);
            let found = RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 0 };
            return self.record(found, out);
        }
        if self.stopped || self.stop.is_some_and(|(old, ..)| old >= mode) {
            return;
        }
        let now = Instant::now();
        self.stop = Some((mode, now, Duration::from_millis(grace_ms)));
        if mode == StopMode::Clean {
            self.world.sim().stop_cleanly(&self.world.cluster, now);
        }
        self.record(order, out);
    }

    fn advance(&mut self, out: &mut Vec<LinkEvent>) {
        let now = Instant::now();
        let sim = self.world.sim().clone();
        self.link_faults(&sim, now, out);
        if self.spec.is_some() && !self.stopped {
            let point = sim.point(self.cluster(), now);
            self.train(&sim, point, now, out);
            self.end_ranks(&sim, point, now, out);
        }
        if self.sampled.is_none_or(|at| now - at >= calm_round(self.cluster().world_size() as usize)) {
            self.sampled = Some(now);
            let sample = self.sample(&sim, now);
            self.send(AgentMessage::Sample(Box::new(sample)), out);
        }
    }

    fn link_faults(&mut self, sim: &SimGeneration, now: Instant, out: &mut Vec<LinkEvent>) {
        let lost = training::in_force(sim, FaultKind::Lose, self.node.0, now).is_some();
        match (self.up, lost) {
            (true, true) => {
                (self.up, self.attached) = (false, false);
                let reason = "connection reset by peer (simulated)".to_owned();
                out.push(LinkEvent::State(LinkState::Lost { reason, retry_ms: 1000 }));
            }
            (false, false) => {
                self.up = true;
                out.push(LinkEvent::State(LinkState::Connecting { attempt: 2 }));
                out.push(LinkEvent::State(LinkState::Ready { probe: self.probe() }));
            }
            _ => {}
        }
    }

    fn end_ranks(
        &mut self,
        sim: &SimGeneration,
        point: Option<TrainingPoint>,
        now: Instant,
        out: &mut Vec<LinkEvent>,
    ) {
        let finished =
            point.zip(sim.end).filter(|(point, (end, _))| point.done >= *end).map(|(_, end)| end.1);
        for local in 0..self.processes.len() {
            let rank = self.rank(local);
            let hang = point.and_then(|point| point.hang).filter(|hang| hang.rank == rank);
            if let Some(exit) = self.exit_of(local, finished, hang, now, out) {
                self.processes[local] = Process::Exited(exit.clone());
                let event = RecordEvent::RankExited {
                    rank,
                    pid: self.pid(local),
                    exit,
                    last_lines: vec![format!("rank {rank} was simulated")],
                    stopping: self.stop.is_some(),
                    ago_ms: 0,
                    with_agent: false,
                };
                self.record(event, out);
            }
        }
        if self.processes.iter().all(|process| matches!(process, Process::Exited(_))) {
            self.stopped = true;
            let survives = sim.faults.iter().any(|f| f.kind == FaultKind::Survive && f.target == self.node.0);
            let survivor =
                Survivor { pid: 31_337, rank: None, state: 'D', command: "python env_worker.py".to_owned() };
            let gpus = if self.cluster().gpus { self.cluster().ranks_per_host } else { 0 };
            let event = RecordEvent::Stopped {
                survivors: survives.then_some(survivor).into_iter().collect(),
                gpus_free: (0..gpus).collect(),
                took_ms: self.stop.map_or(0, |(_, at, _)| (now - at).as_millis() as u64),
            };
            self.record(event, out);
        }
    }

    /// Returns the exit of a rank that ends now.
    fn exit_of(
        &mut self,
        local: usize,
        finished: Option<FinishReason>,
        hang: Option<Hang>,
        now: Instant,
        out: &mut Vec<LinkEvent>,
    ) -> Option<Exit> {
        let killed = Some(Exit::Signal { signal: libc::SIGKILL, out_of_memory: false });
        match &self.processes[local] {
            Process::Exited(_) => return None,
            Process::Finished(since) if now - *since >= TICK => return Some(Exit::Code { code: 0 }),
            Process::Finished(_) | Process::Running => {}
        }
        match hang.map(|hang| hang.kind) {
            Some(FaultKind::Kill) => return killed,
            Some(FaultKind::Fail) => {
                let message = "environment raised an exception (simulated)".to_owned();
                let hint = "check the rank's log".to_owned();
                let failure = Some(FailureKind::Environment);
                let event = RankEvent::Error { message, hint, usage: false, failure };
                self.record_rank_event(self.rank(local), event, out);
                return Some(Exit::Code { code: 1 });
            }
            _ => {}
        }
        if let (Some(reason), Process::Running) = (finished, &self.processes[local]) {
            self.processes[local] = Process::Finished(now);
            self.record_rank_event(self.rank(local), RankEvent::Finished { reason }, out);
            return None;
        }
        match self.stop? {
            (StopMode::Kill, ..) => killed,
            // A frozen process does not handle SIGTERM.
            (StopMode::Terminate, at, grace) => match hang.map(|hang| hang.kind) {
                Some(FaultKind::Freeze) if now - at < grace => None,
                Some(FaultKind::Freeze) => killed,
                _ => Some(Exit::Signal { signal: libc::SIGTERM, out_of_memory: false }),
            },
            (StopMode::Clean, at, grace) if now - at >= grace => killed,
            (StopMode::Clean, ..) => None,
        }
    }
}

/// Shortest interval of reports.
const REPORT: Duration = Duration::from_millis(250);

impl SimHost {
    fn train(
        &mut self,
        sim: &SimGeneration,
        point: Option<TrainingPoint>,
        now: Instant,
        out: &mut Vec<LinkEvent>,
    ) {
        let Some(point) = point else { return };
        if !self.joined {
            self.joined = true;
            for local in 0..self.processes.len() {
                let device = if self.cluster().gpus { format!("cuda:{local}") } else { "cpu".to_owned() };
                let backend = if self.cluster().gpus { "nccl (simulated)" } else { "tcp (simulated)" };
                let world_size = self.cluster().world_size();
                let joined = RankEvent::Joined { world_size, backend: backend.to_owned(), device };
                self.record_rank_event(self.rank(local), joined, out);
            }
        }
        let every = (REPORT.as_millis() / self.cluster().iteration.as_millis().max(1)).max(1) as u64;
        let due: Vec<u64> = (self.reported + 1..=point.done).collect();
        self.reported = self.reported.max(point.done);
        for iter in due {
            if iter % every == 0 || sim.end.is_some_and(|(end, _)| end == iter) {
                self.report(iter, out);
            }
            if self.node == NodeRank(0) {
                self.report_rank_0(sim, iter, now, out);
            }
        }
    }

    /// Reports an iteration of every rank.
    fn report(&mut self, iter: u64, out: &mut Vec<LinkEvent>) {
        for local in 0..self.processes.len() {
            let rank = self.rank(local);
            let counters = training::counters(self.cluster(), rank, iter);
            self.record_rank_event(rank, RankEvent::Counters(counters), out);
            let line = format!(
                "iter {iter} env_step {} episodes {} return {:.1}",
                counters.env_step,
                counters.episodes,
                counters.returns.sum / counters.returns.count.max(1) as f64
            );
            let first = self.logged[local];
            self.logged[local] += 1;
            let times = vec![LinesRead { lines: 1, time_ms: (self.time() * 1000.0) as u64 }];
            self.send(AgentMessage::Log { rank, first, overwritten: 0, lines: vec![line], times }, out);
        }
        if self.node == NodeRank(0) {
            let totals = training::totals(self.cluster(), iter);
            let values =
                training::scalars(self.cluster(), iter).map(|(name, value)| (name.to_owned(), value)).into();
            let env_step = totals.env_step;
            self.record_rank_event(Rank(0), RankEvent::Totals(totals), out);
            self.record_rank_event(
                Rank(0),
                RankEvent::Scalars { train_iter: iter, env_step, values, not_finite: Default::default() },
                out,
            );
        }
    }

    fn report_rank_0(&mut self, sim: &SimGeneration, iter: u64, now: Instant, out: &mut Vec<LinkEvent>) {
        let env_step = training::totals(self.cluster(), iter).env_step;
        let world = self.cluster().world_size();
        let weights = mix(self.cluster().seed, iter);
        let drifted = (0..world).find(|rank| training::in_force(sim, FaultKind::Drift, *rank, now).is_some());
        if iter.is_multiple_of(EVAL_EVERY) || drifted.is_some() {
            let values = (0..world)
                .map(|rank| format!("{:016x}", weights ^ u64::from(Some(rank) == drifted)))
                .collect();
            let update = iter * training::GRADS;
            let equal = drifted.is_none();
            self.record_rank_event(
                Rank(0),
                RankEvent::Fingerprint { train_iter: iter, update, values, equal },
                out,
            );
        }
        if iter.is_multiple_of(EVAL_EVERY) {
            let evaluation = training::evaluation(self.cluster(), iter);
            self.record_rank_event(Rank(0), RankEvent::Eval(evaluation), out);
        }
        let last = sim.end.is_some_and(|(end, _)| end == iter);
        if iter.is_multiple_of(CHECKPOINT_EVERY) || last {
            self.world.sim().checkpoint = iter;
            let reason = if last { "stop" } else { "latest" };
            let path = format!("/scratch/rankdeck/runs/{}/checkpoints/{reason}.ot", self.world.run);
            let checkpoint =
                RankEvent::Checkpoint { path, env_step, train_iter: iter, reason: reason.to_owned() };
            self.record_rank_event(Rank(0), checkpoint, out);
        }
    }
}

const GIB: u64 = 1 << 30;
/// Environment workers per rank.
const WORKERS: u32 = 2;

impl SimHost {
    fn sample(&self, sim: &SimGeneration, now: Instant) -> HostSample {
        let point = sim.point(self.cluster(), now);
        let beat = (now - self.began).as_millis() as u64;
        let noise = |key: u64| {
            chance(self.cluster().seed ^ (u64::from(self.node.0) << 40), beat / 500 * 64 + key) as f32
        };
        let ranks: Vec<RankSample> = self
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| !matches!(process, Process::Exited(_)))
            .map(|(local, _)| self.rank_sample(sim, local, point, now, noise(local as u64)))
            .collect();
        HostSample {
            mono_ms: 1_000_000 + beat,
            wall_time: self.time(),
            generation: sim.generation,
            cpu_percent: 4.0 + 90.0 * ranks.len() as f32 / 64.0 + noise(60),
            cpu_count: 64,
            memory_used: (24 + 3 * ranks.len() as u64) * GIB,
            memory_total: 256 * GIB,
            load1: ranks.len() as f32 + noise(61),
            gpus: if self.cluster().gpus { self.gpus(&ranks, noise(62)) } else { Vec::new() },
            ranks,
            inner: Vec::new(),
            users: Vec::new(),
            dropped: 0,
            kills_in_ms: None,
            malformed: 0,
            withheld: 0,
            signals: HostSignals::default(),
        }
    }

    fn rank_sample(
        &self,
        sim: &SimGeneration,
        local: usize,
        point: Option<TrainingPoint>,
        now: Instant,
        noise: f32,
    ) -> RankSample {
        let rank = self.rank(local);
        let slow = sim.slow_rank(self.cluster(), now);
        let began = point.map(|point| sim.iteration_sample(self.cluster(), rank, point, now));
        let own_ms = point.map(|point| training::own_ms(sim, self.cluster(), rank, point, now));
        let own_ms = own_ms.unwrap_or_default();
        // Workers compute only while their rank collects.
        let worker = |number: u32| ChildSample {
            pid: self.pid(local) * 10 + number,
            name: "python3".to_owned(),
            state: 'S',
            cpu_ms: own_ms.get(Phase::Rollout as usize).copied().unwrap_or(0),
            parent: self.pid(local),
            ..ChildSample::default()
        };
        let children = (0..WORKERS).map(worker).collect();
        let page = training::page(self.cluster(), rank, point, slow);
        let kind = point.and_then(|point| point.hang).filter(|hang| hang.rank == rank).map(|hang| hang.kind);
        let (state, cpu, wchan) = match kind {
            Some(FaultKind::Freeze) => ('T', 0.0, "do_signal_stop"),
            Some(FaultKind::EnvStuck) => ('S', 0.0, "pipe_read"),
            Some(_) => ('R', 100.0, ""),
            None => ('R', 92.0 + 8.0 * noise, ""),
        };
        RankSample {
            rank,
            pid: self.pid(local),
            state,
            cpu_percent: cpu,
            rss: 3 * GIB + (f64::from(noise) * 1e8) as u64,
            children: WORKERS,
            wchan: wchan.to_owned(),
            gpu: self.cluster().gpus.then_some(local as u32),
            gpu_memory: self.cluster().gpus.then_some(9 * GIB),
            gpu_share: None,
            page: Some(PageSample { iterations: began.into_iter().collect(), own_ms, ..page }),
            signals: RankSignals { children, ..RankSignals::default() },
            live: String::new(),
        }
    }

    fn gpus(&self, ranks: &[RankSample], noise: f32) -> Vec<GpuSample> {
        (0..self.cluster().ranks_per_host)
            .map(|index| {
                let rank = ranks.iter().find(|rank| rank.gpu == Some(index));
                let busy =
                    rank.map_or(0.0, |rank| if rank.cpu_percent > 50.0 { 70.0 + 28.0 * noise } else { 0.0 });
                GpuSample {
                    index,
                    name: "NVIDIA H100 80GB HBM3 (simulated)".to_owned(),
                    utilization: Some(busy as u32),
                    memory_used: rank.and_then(|rank| rank.gpu_memory).unwrap_or(0) + GIB / 2,
                    memory_total: 80 * GIB,
                    power_w: Some(90.0 + 5.5 * busy),
                    power_limit_w: Some(700.0),
                    temperature_c: Some(35 + (busy * 0.35) as u32),
                    sm_clock_mhz: Some(if busy > 1.0 { 1980 } else { 345 }),
                    memory_clock_mhz: Some(2619),
                    throttle: Vec::new(),
                    processes: rank.map(|rank| (rank.pid, 9 * GIB)).into_iter().collect(),
                    ..GpuSample::default()
                }
            })
            .collect()
    }
}
