//! One simulated host: a link and an agent in one task.

mod gauges;
mod reports;

use super::chance::mix;
use super::fault::FaultKind;
use super::scene::{Scene, host_name};
use super::simulated_training::{self as training, Hang, Life, Moment};
use super::world::World;
use crate::{LinkCommand, LinkEvent};
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::{
    AgentMessage, ConsoleMessage, Exit, FailureKind, FinishReason, LaunchSpec, PROTOCOL, RankEvent,
    RankSnapshot, Record, RecordEvent, StopMode, Survivor, calm_round,
};
use rankdeck_proto::process::ReachOutcome;
use rankdeck_proto::search::LogFindings;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, WallTime};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::probe::Probe;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const TICK: Duration = Duration::from_millis(50);
/// Records kept for a console that comes back, and while it is there: it gets each of them at once.
const SPOOL: usize = 4_096;
const RECENT: usize = 64;

/// Serves until the link is closed or nobody listens.
pub async fn serve(
    world: Arc<World>,
    node: NodeRank,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
    mut orders: mpsc::Receiver<LinkCommand>,
) {
    let mut host = SimHost::new(world, node);
    let pause = |n| Duration::from_millis(20 + mix(host.world.scene.seed, u64::from(node.0) * 4 + n) % 120);
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
                Some(LinkCommand::Answer(_)) => {}
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
    world: Arc<World>,
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
    fn new(world: Arc<World>, node: NodeRank) -> SimHost {
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

    fn scene(&self) -> &Scene {
        &self.world.scene
    }

    fn time(&self) -> WallTime {
        self.wall + self.began.elapsed().as_secs_f64()
    }

    fn rank(&self, local: usize) -> Rank {
        Rank(self.node.0 * self.scene().ranks_per_host + local as u32)
    }

    fn pid(&self, local: usize) -> u32 {
        let generation = self.spec.as_ref().map_or(0, |spec| spec.generation.0);
        10_000 + generation * 1000 + local as u32
    }

    fn probe(&self) -> Probe {
        Probe {
            hostname: host_name(self.node.0),
            cpu_count: 64,
            gpu_count: if self.scene().gpus { self.scene().ranks_per_host } else { 0 },
            home: "/home/sim".to_owned(),
            trainer: Some("/opt/rankdeck/rankdeck-trainer".to_owned()),
            libtorch: Some("/opt/libtorch".to_owned()),
        }
    }

    fn say(&mut self, message: AgentMessage, out: &mut Vec<LinkEvent>) {
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
        self.say(AgentMessage::Record(record), out);
    }

    fn said(&mut self, rank: Rank, said: RankEvent, out: &mut Vec<LinkEvent>) {
        self.record(RecordEvent::Rank { rank, said }, out);
    }

    fn obey(&mut self, message: ConsoleMessage, out: &mut Vec<LinkEvent>) {
        match message {
            ConsoleMessage::Attach { after_seq, .. } => self.attach(after_seq, out),
            ConsoleMessage::ReservePort { request } => {
                self.say(AgentMessage::PortReserved { request, port: 29_500 }, out);
            }
            ConsoleMessage::Launch { spec, .. } => self.launch(spec, out),
            ConsoleMessage::Stop { mode, grace_ms } => self.order_stop(mode, grace_ms, out),
            ConsoleMessage::Inspect { request, ranks } => {
                let inspections = self.inspect(&ranks);
                self.say(AgentMessage::Inspected { request, inspections }, out);
            }
            ConsoleMessage::Ping { sent_ms } => {
                self.say(AgentMessage::Pong { sent_ms, wall_time: None }, out)
            }
            ConsoleMessage::Search { request, wanted: Some(_) } => {
                let cut = "this host is simulated: it keeps no files".into();
                let findings = Box::new(LogFindings { cut, over: true, ..LogFindings::default() });
                self.say(AgentMessage::Found { request, findings }, out);
            }
            ConsoleMessage::Reach { request, .. } => {
                let why = HintedError::new("this host is simulated: there is no process to reach", "");
                self.say(
                    AgentMessage::Reached { request, outcome: Box::new(ReachOutcome::Refused(why)) },
                    out,
                );
            }
            ConsoleMessage::Ended { ending, .. } => self.record(RecordEvent::Ended { ending }, out),
            ConsoleMessage::Watch { .. }
            | ConsoleMessage::Continue { .. }
            | ConsoleMessage::Search { wanted: None, .. }
            | ConsoleMessage::Detach
            | ConsoleMessage::Close
            | ConsoleMessage::Unknown => {}
        }
    }

    /// Simulated ranks have a process id and nothing to look into.
    fn inspect(&self, ranks: &[Rank]) -> Vec<Inspection> {
        (0..self.processes.len())
            .filter(|local| ranks.is_empty() || ranks.contains(&self.rank(*local)))
            .map(|local| Inspection {
                rank: self.rank(local),
                pid: Some(self.pid(local)),
                notes: vec!["this host is simulated: there is no process to look into".into()],
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
        self.processes = vec![Process::Running; self.scene().ranks_per_host as usize];
        self.logged = vec![0; self.processes.len()];
        (self.joined, self.stopped, self.stop) = (false, false, None);
        self.reported = {
            let mut life = self.world.life();
            life.launch(&self.world.scene, self.node, generation, resume, Instant::now());
            life.first_iter
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

    fn order_stop(&mut self, mode: StopMode, grace_ms: u64, out: &mut Vec<LinkEvent>) {
        if self.spec.is_none() {
            // It looks, and finds nothing.
            self.record(RecordEvent::StopOrdered { mode, by: "console".to_owned() }, out);
            let found = RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 0 };
            return self.record(found, out);
        }
        if self.stopped || self.stop.is_some_and(|(old, ..)| old >= mode) {
            return;
        }
        let now = Instant::now();
        self.stop = Some((mode, now, Duration::from_millis(grace_ms)));
        if mode == StopMode::Clean {
            self.world.life().stop_cleanly(&self.world.scene, now);
        }
        self.record(RecordEvent::StopOrdered { mode, by: "console".to_owned() }, out);
    }

    fn advance(&mut self, out: &mut Vec<LinkEvent>) {
        let now = Instant::now();
        let life = self.world.life().clone();
        self.link_faults(&life, now, out);
        if self.spec.is_some() && !self.stopped {
            let moment = life.moment(self.scene(), now);
            self.train(&life, moment, now, out);
            self.end_ranks(&life, moment, now, out);
        }
        if self.sampled.is_none_or(|at| now - at >= calm_round(self.scene().world_size() as usize)) {
            self.sampled = Some(now);
            let sample = self.sample(&life, now);
            self.say(AgentMessage::Sample(Box::new(sample)), out);
        }
    }

    fn link_faults(&mut self, life: &Life, now: Instant, out: &mut Vec<LinkEvent>) {
        let lost = training::in_force(life, FaultKind::Lose, self.node.0, now).is_some();
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

    fn end_ranks(&mut self, life: &Life, moment: Option<Moment>, now: Instant, out: &mut Vec<LinkEvent>) {
        let finished =
            moment.zip(life.end).filter(|(moment, (end, _))| moment.done >= *end).map(|(_, end)| end.1);
        for local in 0..self.processes.len() {
            let rank = self.rank(local);
            let hang = moment.and_then(|moment| moment.hang).filter(|hang| hang.rank == rank);
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
            let survives =
                life.faults.iter().any(|f| f.kind == FaultKind::Survive && f.target == self.node.0);
            let survivor =
                Survivor { pid: 31_337, rank: None, state: 'D', command: "python env_worker.py".to_owned() };
            let gpus = if self.scene().gpus { self.scene().ranks_per_host } else { 0 };
            let event = RecordEvent::Stopped {
                survivors: survives.then_some(survivor).into_iter().collect(),
                gpus_free: (0..gpus).collect(),
                took_ms: self.stop.map_or(0, |(_, at, _)| (now - at).as_millis() as u64),
            };
            self.record(event, out);
        }
    }

    /// How a rank ends now, if it does.
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
                let hint = "see the rank's log".to_owned();
                let failure = Some(FailureKind::Environment);
                let said = RankEvent::Error { message, hint, usage: false, failure };
                self.said(self.rank(local), said, out);
                return Some(Exit::Code { code: 1 });
            }
            _ => {}
        }
        if let (Some(reason), Process::Running) = (finished, &self.processes[local]) {
            self.processes[local] = Process::Finished(now);
            self.said(self.rank(local), RankEvent::Finished { reason }, out);
            return None;
        }
        match self.stop? {
            (StopMode::Kill, ..) => killed,
            // A frozen process takes no polite signal.
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
