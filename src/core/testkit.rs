//! A tiny cluster for tests: fake agents that answer like real ones, without clock or network.

use crate::event::{Effect, Event};
use crate::model::Model;
use crate::report::{ReportBody, Severity, VerdictKind, VerdictReport};
use crate::{Core, Goal};
use rankdeck_proto::inspection::{InnerTarget, Inspection};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Experiment, LaunchConfig, Run};
use rankdeck_types::host::Probe;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, PlannedHost, PlannedRank, StopGoal};
use std::collections::{BTreeMap, VecDeque};

pub(crate) const RUN: &str = "demo-20260101-000000";
pub(crate) const NAMES: [&str; 5] = ["ant", "bee", "cow", "doe", "elk"];

pub(crate) fn experiment() -> Experiment {
    Experiment {
        run: Run { name: "demo".into(), seed: 1, total_steps: 0, note: None },
        launch: LaunchConfig { command: vec!["true".into()], ..LaunchConfig::default() },
        args: Default::default(),
        distributed: Default::default(),
        env: None,
        policy: Default::default(),
        collect: Default::default(),
        learn: None,
        eval: Default::default(),
        checkpoint: Default::default(),
        watch: Default::default(),
        restart: Default::default(),
        metrics: Default::default(),
    }
}

/// `hosts` hosts with two ranks each.
pub(crate) fn draft(hosts: usize, transport: Transport) -> PlanDraft {
    let host = |name: &&str| Host {
        name: (*name).into(),
        address: format!("{name}.lan"),
        nproc: Some(2),
        workdir: "w".into(),
        transport,
        ..Host::default()
    };
    PlanDraft {
        run: RunId(RUN.into()),
        experiment: experiment(),
        program: None,
        asked: Default::default(),
        hosts: NAMES[..hosts].iter().map(host).collect(),
        excluded: Default::default(),
        resume: None,
        drill: false,
    }
}

pub(crate) fn resolve(draft: &PlanDraft, probes: &[Probe]) -> Result<Plan, PlanError> {
    let hosts: Vec<PlannedHost> = draft
        .hosts
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let probe = probes.get(node).cloned().unwrap_or_default();
            let planned = PlannedHost::new(NodeRank(node as u32), host.clone());
            PlannedHost { found_libtorch: probe.libtorch, trainer: probe.trainer, ..planned }
        })
        .collect();
    let included = draft.hosts.iter().enumerate().filter(|(_, host)| !draft.excluded.contains(&host.name));
    let places: Vec<(u32, u32)> =
        included.flat_map(|(node, _)| [(node as u32, 0), (node as u32, 1)]).collect();
    // Whatever cannot be planned: one host of several, and a number that no other test uses.
    if (places.len() == 2 && draft.hosts.len() > 2) || draft.experiment.run.total_steps == 7 {
        return no_plan(draft, &[]);
    }
    let ranks = places
        .iter()
        .enumerate()
        .map(|(rank, (node, local))| PlannedRank {
            rank: Rank(rank as u32),
            local_rank: LocalRank(*local),
            node_rank: NodeRank(*node),
            gpu: None,
        })
        .collect();
    let (run, experiment) = (draft.run.clone(), draft.experiment.clone());
    let program = draft.program.clone();
    Ok(Plan { run, experiment, hosts, ranks, sizes: Vec::new(), program, drill: draft.drill })
}

pub(crate) fn no_plan(_: &PlanDraft, _: &[Probe]) -> Result<Plan, PlanError> {
    Err(PlanError::new("env.num_envs", "num_envs 7 is not divisible by 4 ranks", "change env.num_envs"))
}

/// A rank that trains, with a page.
pub(crate) fn rank_sample(rank: u32) -> RankSample {
    RankSample {
        rank: Rank(rank),
        pid: 1000 + rank,
        state: 'S',
        cpu_percent: 50.0,
        rss: 1 << 20,
        children: 0,
        wchan: "futex_wait".into(),
        gpu: None,
        gpu_memory: None,
        gpu_share: None,
        page: Some(PageSample {
            phase: Phase::Rollout,
            phase_age_ms: 10,
            phase_progress: 0,
            heartbeat_age_ms: 10,
            train_iter: 5,
            env_step: 100,
            samples: 100,
            episodes: 2,
            updates: 20,
            collective: CollectiveSample {
                entered: 40,
                left: 40,
                age_ms: 10,
                call: CollectiveCall {
                    op: "all_reduce".into(),
                    tag: "grad".into(),
                    bytes: 64,
                    dtype: "f32".into(),
                    ..CollectiveCall::default()
                },
                ..CollectiveSample::default()
            },
            ..PageSample::default()
        }),
        signals: Default::default(),
        live: String::new(),
    }
}

/// One fake agent: what it would do with the orders it got.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeAgent {
    pub records: Vec<Record>,
    pub spec: Option<LaunchSpec>,
    pub orders: Vec<ConsoleMessage>,
    pub connected: bool,
    pub closed: bool,
    pub samples: BTreeMap<u32, RankSample>,
    /// What an inspection of a rank would show; it begins when it is requested, unless it has a time.
    pub inspections: BTreeMap<u32, Inspection>,
    /// Ranks that its ranks have started themselves, and what an inspection of their processes would show.
    pub inner: Vec<InnerRankSample>,
    pub inner_inspections: BTreeMap<u32, Inspection>,
    /// Added to the host's monotonic and wall clocks.
    pub skew_ms: u64,
    pub wall_skew_s: f64,
    /// Signals of the host.
    pub signals: HostSignals,
    pub load1: f32,
    pub gpus: Vec<GpuSample>,
    /// When a stop that is under way kills, milliseconds from now.
    pub kills_in_ms: Option<u64>,
    /// Checkpoint files by their paths; `None`: it has whatever is asked for, on a disk that all hosts share.
    pub disk: Option<BTreeMap<String, String>>,
    /// A console has ended the run in its latest generation.
    pub ended: bool,
    /// The generations that wrote them, as the agent knows.
    pub written_in: BTreeMap<String, Generation>,
}

/// Files of a checkpoint in one reply.
const PAGE: usize = 2;

/// The path of a file of a checkpoint.
fn part(path: String, file: &str) -> String {
    if file.is_empty() { path } else { format!("{path}/{file}") }
}

impl FakeAgent {
    fn checkpoint(&mut self, order: CheckpointOrder) -> CheckpointReply {
        match order {
            CheckpointOrder::Describe { path, hash, after, .. } => {
                let shared = BTreeMap::from([(path.clone(), "shared".to_owned())]);
                let disk = self.disk.as_ref().unwrap_or(&shared);
                let named = disk.iter().filter_map(|(at, content)| {
                    let below = at.strip_prefix(path.as_str())?;
                    let name = if below.is_empty() { below } else { below.strip_prefix('/')? };
                    Some((name, at, content))
                });
                let mut files: Vec<PartFile> = named
                    .filter(|(name, ..)| after.as_ref().is_none_or(|after| *name > after.as_str()))
                    .map(|(name, at, content)| PartFile {
                        name: name.to_owned(),
                        bytes: content.len() as u64,
                        identity: content.clone(),
                        sha256: hash.then(|| content.clone()),
                        generation: self.written_in.get(at).copied(),
                        ..PartFile::default()
                    })
                    .collect();
                let more = files.len() > PAGE;
                files.truncate(PAGE);
                let free = 1 << 40;
                CheckpointReply::Described(CheckpointContent { path, files, more, free, relative: None })
            }
            CheckpointOrder::Read { path, file, offset } => {
                let path = part(path, &file);
                let whole = self.disk.as_ref().and_then(|disk| disk.get(&path)).cloned().unwrap_or_default();
                let data: String = whole.chars().skip(offset as usize).take(PIECE as usize).collect();
                CheckpointReply::Piece { bytes: data.len() as u64, data }
            }
            CheckpointOrder::Write { path, file, offset, data, .. } => {
                let file = self.disk.get_or_insert_default().entry(part(path, &file)).or_default();
                file.truncate(offset as usize);
                file.push_str(&data);
                CheckpointReply::Written
            }
            CheckpointOrder::SetAside { path, generation } => {
                let (folder, name) = path.rsplit_once('/').unwrap_or_default();
                let disk = self.disk.get_or_insert_default();
                if let Some(content) = disk.remove(&path) {
                    disk.insert(format!("{folder}/gen{generation}/{name}"), content);
                }
                CheckpointReply::Written
            }
            CheckpointOrder::Unknown => CheckpointReply::Unknown,
        }
    }
}

/// A console with its agents.
pub(crate) struct Cluster {
    pub core: Core,
    pub agents: Vec<FakeAgent>,
    pub now: Timestamp,
    pub reports: Vec<(u32, f64, ReportBody)>,
    pub exit: Option<u8>,
    pub events: Vec<(Timestamp, Event)>,
    pub refuse_launch: Option<usize>,
    /// Questions to the user.
    pub asked: Vec<Prompt>,
    /// Replies about checkpoints that are on their way, in order, and the most of them at once.
    replies: VecDeque<(usize, AgentMessage)>,
    pub most_replies: usize,
    delivers: bool,
}

impl Cluster {
    pub fn launch(hosts: usize) -> Cluster {
        Cluster::with(Goal::Launch(Box::new(draft(hosts, Transport::Local))), hosts, vec![])
    }

    /// The same console and hosts from here on, without what was reported.
    pub fn copy(&self) -> Cluster {
        Cluster {
            core: self.core.clone(),
            agents: self.agents.clone(),
            now: self.now,
            reports: Vec::new(),
            exit: None,
            events: Vec::new(),
            refuse_launch: None,
            asked: Vec::new(),
            replies: self.replies.clone(),
            most_replies: self.most_replies,
            delivers: self.delivers,
        }
    }

    pub fn with(goal: Goal, hosts: usize, until: Vec<StopGoal>) -> Cluster {
        let core = Core::with_resolver(goal, until, Timestamp(0), resolve);
        Cluster {
            core,
            agents: vec![FakeAgent::default(); hosts],
            now: Timestamp(0),
            reports: Vec::new(),
            exit: None,
            events: Vec::new(),
            refuse_launch: None,
            asked: Vec::new(),
            replies: VecDeque::new(),
            most_replies: 0,
            delivers: false,
        }
    }

    /// A second console that attaches to the same agents.
    pub fn attach(&self) -> Cluster {
        let hosts = NAMES[..self.agents.len()].iter().map(|name| name.to_string()).collect();
        let mut other =
            Cluster::with(Goal::Attach { run: RunId(RUN.into()), hosts }, self.agents.len(), vec![]);
        other.agents = self.agents.clone();
        for agent in &mut other.agents {
            agent.connected = false;
            agent.orders.clear();
        }
        other
    }

    pub fn model(&self) -> &Model {
        self.core.model()
    }

    pub fn event(&mut self, event: Event) {
        self.events.push((self.now, event.clone()));
        for effect in self.core.handle(self.now, event) {
            match effect {
                Effect::Link { node, command: LinkCommand::Send(message) } => {
                    self.order(node.index(), message)
                }
                Effect::Report(report) => self.reports.push((report.generation.0, report.time, report.body)),
                Effect::Exit { code } => {
                    assert_eq!(self.exit, None, "exit comes once");
                    self.exit = Some(code);
                }
                Effect::Ask { prompt, .. } => self.asked.push(prompt),
                Effect::Link { node, command: LinkCommand::Close } => self.agents[node.index()].closed = true,
                Effect::Link { command: LinkCommand::Answer(_) | LinkCommand::Resume, .. }
                | Effect::Connect { .. }
                | Effect::Find { .. } => {}
            }
        }
        while !self.delivers
            && let Some((node, reply)) = self.replies.pop_front()
        {
            self.delivers = true;
            self.receive(node, reply);
            self.delivers = false;
        }
    }

    pub fn receive(&mut self, node: usize, message: AgentMessage) {
        self.event(Event::AgentMessage { node: NodeRank(node as u32), message: Box::new(message) });
    }

    pub fn link(&mut self, node: usize, state: LinkState) {
        self.agents[node].connected = matches!(state, LinkState::Ready { .. });
        self.event(Event::LinkChanged { node: NodeRank(node as u32), state });
    }

    pub fn ready(&mut self, node: usize) {
        self.link(node, LinkState::Ready { probe: Probe { cpu_count: 2, ..Probe::default() } });
    }

    pub fn all_ready(&mut self) {
        for node in 0..self.agents.len() {
            self.ready(node);
        }
    }

    pub fn lose(&mut self, node: usize) {
        self.link(node, LinkState::Lost { reason: "broken pipe".into(), retry_ms: 500 });
    }

    /// What a real agent does with an order; nothing for stops of what runs, which tests answer themselves.
    fn order(&mut self, node: usize, message: ConsoleMessage) {
        if !self.agents[node].connected {
            return;
        }
        self.agents[node].orders.push(message.clone());
        match message {
            ConsoleMessage::Attach { after_seq, .. } => {
                self.receive(node, hello(node, self.wall_time(node)));
                let agent = self.agents[node].clone();
                let (spec, last_seq) = (agent.spec.map(Box::new), agent.records.len() as u64);
                let (ranks, holds) = (vec![], vec![]);
                self.receive(node, AgentMessage::Snapshot { spec, ranks, last_seq, holds });
                for record in agent.records.into_iter().filter(|record| record.seq > after_seq) {
                    self.receive(node, AgentMessage::Record(record));
                }
            }
            ConsoleMessage::ReservePort { request } => {
                self.receive(node, AgentMessage::PortReserved { request, port: 40_000 + request as u16 });
            }
            ConsoleMessage::Launch { .. } if self.refuse_launch == Some(node) => {
                let (error, hint) = ("no such program: trainer".into(), "check launch.command".into());
                self.receive(node, AgentMessage::Refused(HintedError { error, hint }));
            }
            ConsoleMessage::Launch { after_end: false, .. } if self.agents[node].ended => {
                self.receive(node, AgentMessage::Refused(end_refusal(&RunId(RUN.into()))));
            }
            ConsoleMessage::Launch { spec, .. } => {
                self.agents[node].ended = false;
                self.agents[node].spec = Some((*spec).clone());
                self.record(node, RecordEvent::Launched { spec: spec.clone() });
                for rank in spec.plan.ranks.iter().filter(|rank| rank.node_rank.index() == node) {
                    let (rank, local_rank) = (rank.rank, rank.local_rank);
                    self.agents[node].samples.insert(rank.0, rank_sample(rank.0));
                    self.record(node, RecordEvent::RankSpawned { rank, local_rank, pid: 1000 + rank.0 });
                }
            }
            ConsoleMessage::Rejoin { rank, .. } => {
                self.agents[node].samples.insert(rank.0, rank_sample(rank.0));
                let local_rank = LocalRank(rank.0 % 2);
                self.record(node, RecordEvent::RankSpawned { rank, local_rank, pid: 2000 + rank.0 });
            }
            ConsoleMessage::Stop { mode, ends, .. } => {
                self.record(node, RecordEvent::StopOrdered { mode, by: "console".into(), ends });
                if self.agents[node].spec.is_none() {
                    self.proof(node);
                }
            }
            ConsoleMessage::Inspect { request, ranks, inner } => {
                let began_ms = self.mono_ms(node);
                let known = &self.agents[node].inspections;
                let now = |inspection: &Inspection| match inspection.began_ms {
                    0 => Inspection { began_ms, ..inspection.clone() },
                    _ => inspection.clone(),
                };
                let of_inner = |target: &InnerTarget| {
                    let known = self.agents[node].inner_inspections.get(&target.pid).map(now)?;
                    Some(Inspection { rank: target.outer, inner_pid: Some(target.pid), ..known })
                };
                let of_ranks = ranks.iter().filter_map(|rank| known.get(&rank.0).map(now));
                let inspections = of_ranks.chain(inner.iter().filter_map(of_inner)).collect();
                self.receive(node, AgentMessage::Inspected { request, inspections });
            }
            ConsoleMessage::Checkpoint { request, order } => {
                let reply = Box::new(self.agents[node].checkpoint(*order));
                self.replies.push_back((node, AgentMessage::Checkpoint { request, reply }));
                self.most_replies = self.most_replies.max(self.replies.len());
            }
            ConsoleMessage::Ping { .. }
            | ConsoleMessage::Continue { .. }
            | ConsoleMessage::Reach { .. }
            | ConsoleMessage::Watch { .. }
            | ConsoleMessage::Search { .. }
            | ConsoleMessage::Ended { .. }
            | ConsoleMessage::Detach
            | ConsoleMessage::Close
            | ConsoleMessage::Unknown => {}
        }
    }

    /// Spools a record, and sends it when the link stands.
    pub fn record(&mut self, node: usize, event: RecordEvent) {
        let agent = &mut self.agents[node];
        let seq = agent.records.len() as u64 + 1;
        let generation = agent.spec.as_ref().map_or(Generation(0), |spec| spec.generation);
        agent.ended |= agent.spec.is_some() && matches!(event, RecordEvent::StopOrdered { ends: true, .. });
        let record = Record { seq, time: 1000.0 + self.now.0 as f64 / 1000.0, generation, event };
        agent.records.push(record.clone());
        if agent.connected {
            self.receive(node, AgentMessage::Record(record));
        }
    }

    pub fn rank_event(&mut self, rank: u32, event: RankEvent) {
        self.record(rank as usize / 2, RecordEvent::Rank { rank: Rank(rank), event });
    }

    pub fn exit_of(&mut self, rank: u32, exit: Exit, stopping: bool) {
        self.agents[rank as usize / 2].samples.remove(&rank);
        let (pid, last_lines) = (1000 + rank, vec!["Traceback".into(), "ValueError: boom".into()]);
        let event = RecordEvent::RankExited {
            rank: Rank(rank),
            pid,
            exit,
            last_lines,
            stopping,
            ago_ms: 0,
            with_agent: false,
        };
        self.record(rank as usize / 2, event);
    }

    /// Both ranks of a host end well and the agent proves it.
    pub fn host_ends(&mut self, node: usize, stopping: bool) {
        for rank in [2 * node as u32, 2 * node as u32 + 1] {
            if self.agents[node].samples.contains_key(&rank) {
                self.exit_of(rank, Exit::Code { code: 0 }, stopping);
            }
        }
        self.proof(node);
    }

    pub fn proof(&mut self, node: usize) {
        self.record(node, RecordEvent::Stopped { survivors: vec![], gpus_free: vec![0], took_ms: 12 });
    }

    /// One reporting iteration of every rank.
    pub fn iteration(&mut self, train_iter: u64, own_steps: u64) {
        let ranks = self.agents.len() as u32 * 2;
        let own = Counters {
            train_iter,
            env_step: own_steps,
            samples: own_steps,
            episodes: train_iter,
            duration_s: 0.25,
            updates: train_iter * 4,
            ..Counters::default()
        };
        for rank in 0..ranks {
            self.rank_event(rank, RankEvent::Counters(own));
        }
        let n = u64::from(ranks);
        let totals = Counters {
            env_step: own.env_step * n,
            samples: own.samples * n,
            episodes: own.episodes * n,
            duration_s: own.duration_s * n as f64,
            returns: Returns { sum: 30.0, count: 3, min: 5.0, max: 15.0 },
            ..own
        };
        self.rank_event(0, RankEvent::Totals(totals));
    }

    /// Time passes in quarter seconds: ages grow, samples come twice a second, ticks four times.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 250 {
            self.now = self.now.plus(250);
            for node in 0..self.agents.len() {
                for sample in self.agents[node].samples.values_mut() {
                    if let Some(page) = &mut sample.page {
                        let inside = page.collective.left < page.collective.entered;
                        let alive = !inside && sample.state != 'T' && page.phase_progress != u64::MAX;
                        if alive {
                            page.collective.entered += 1;
                            page.collective.left += 1;
                        } else {
                            page.heartbeat_age_ms += 250;
                            page.phase_age_ms += 250;
                            page.collective.age_ms += 250;
                        }
                    }
                }
                if self.agents[node].connected && self.now.0.is_multiple_of(500) {
                    self.sample(node);
                }
            }
            self.event(Event::Ticked);
        }
    }

    pub fn sample(&mut self, node: usize) {
        let agent = &self.agents[node];
        let sample = HostSample {
            mono_ms: self.mono_ms(node),
            wall_time: self.wall_time(node),
            generation: agent.spec.as_ref().map_or(Generation(0), |spec| spec.generation),
            cpu_percent: 10.0,
            cpu_count: 2,
            load1: agent.load1,
            signals: agent.signals.clone(),
            gpus: agent.gpus.clone(),
            kills_in_ms: agent.kills_in_ms,
            ranks: agent.samples.values().cloned().collect(),
            inner: agent.inner.clone(),
            ..HostSample::default()
        };
        self.receive(node, AgentMessage::Sample(Box::new(sample)));
    }

    /// Rank `late` does not enter the next collective, all others do and wait.
    pub fn hang(&mut self, late: u32, change: impl Fn(&mut RankSample)) {
        let frontier = 1 + self.pages().map(|page| page.collective.entered).max().unwrap_or(0);
        for agent in &mut self.agents {
            for (rank, sample) in &mut agent.samples {
                let Some(page) = &mut sample.page else { continue };
                page.collective.age_ms = 0;
                page.collective.left = frontier - 1;
                page.collective.entered = if *rank == late { frontier - 1 } else { frontier };
                if *rank == late {
                    page.phase_progress = u64::MAX;
                }
            }
            if let Some(sample) = agent.samples.get_mut(&late) {
                change(sample);
            }
        }
    }

    /// Rank `rank` has GPU 0 of its host.
    pub fn with_gpu(&mut self, rank: usize) {
        self.core.model_mut().ranks[rank].gpu = Some(0);
    }

    /// All ranks go on.
    pub fn release(&mut self) {
        for agent in &mut self.agents {
            for (rank, sample) in &mut agent.samples {
                let entered = sample.page.as_ref().map_or(0, |page| page.collective.entered);
                *sample = rank_sample(*rank);
                if let Some(page) = &mut sample.page {
                    (page.collective.entered, page.collective.left) = (entered + 1, entered + 1);
                }
            }
        }
    }

    fn pages(&self) -> impl Iterator<Item = &PageSample> {
        self.agents.iter().flat_map(|agent| agent.samples.values()).filter_map(|sample| sample.page.as_ref())
    }

    pub fn stops(&self, node: usize) -> Vec<StopMode> {
        let stop = |order: &ConsoleMessage| match order {
            ConsoleMessage::Stop { mode, .. } => Some(*mode),
            _ => None,
        };
        self.agents[node].orders.iter().filter_map(stop).collect()
    }

    /// Whether any stop that was ordered ends the run.
    pub fn orders_end(&self, node: usize) -> bool {
        let mut orders = self.agents[node].orders.iter();
        orders.any(|order| matches!(order, ConsoleMessage::Stop { ends: true, .. }))
    }

    pub fn launches(&self, node: usize) -> Vec<LaunchSpec> {
        let launch = |order: &ConsoleMessage| match order {
            ConsoleMessage::Launch { spec, .. } => Some((**spec).clone()),
            _ => None,
        };
        self.agents[node].orders.iter().filter_map(launch).collect()
    }

    /// `(kind, rank, severity)` of every verdict reported.
    pub fn verdicts(&self) -> Vec<(VerdictKind, Option<u32>, Severity)> {
        let verdict = |body: &ReportBody| match body {
            ReportBody::Verdict(verdict) => {
                Some((verdict.verdict, verdict.rank.map(|rank| rank.0), verdict.severity))
            }
            _ => None,
        };
        self.reports.iter().filter_map(|(_, _, body)| verdict(body)).collect()
    }

    pub fn finished(&self) -> Vec<ReportBody> {
        let bodies = self.reports.iter().map(|(_, _, body)| body.clone());
        bodies.filter(|body| matches!(body, ReportBody::RunFinished { .. })).collect()
    }
}

/// The greeting of an agent whose clock shows this.
pub(crate) fn hello(node: usize, wall_time: f64) -> AgentMessage {
    AgentMessage::Hello {
        protocol: PROTOCOL,
        build: "test".into(),
        host: NAMES[node].into(),
        node_rank: NodeRank(node as u32),
        run: RunId(RUN.into()),
        pid: 77,
        wall_time,
        run_dir: format!("/w/runs/{RUN}"),
    }
}

/// A verdict in words, for snapshots: its sentence, then its evidence and advice.
pub(crate) fn verdict_text(verdict: &VerdictReport) -> String {
    let evidence = verdict.card.evidence().into_iter().map(|line| format!("evidence: {line}"));
    std::iter::once(verdict.reason.clone())
        .chain(verdict.card.text())
        .chain(evidence)
        .collect::<Vec<_>>()
        .join("\n")
}

pub(crate) fn killed() -> Exit {
    Exit::Signal { signal: 9, out_of_memory: false }
}

impl Cluster {
    /// What an agent's clock shows now, seconds since the epoch.
    pub fn wall_time(&self, node: usize) -> f64 {
        1_000.0 + self.now.0 as f64 / 1000.0 + self.agents[node].wall_skew_s
    }

    /// What an agent's monotonic clock shows now.
    pub fn mono_ms(&self, node: usize) -> u64 {
        5_000_000 * (node as u64 + 1) + self.now.0 + self.agents[node].skew_ms
    }
}
