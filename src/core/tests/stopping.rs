//! RUN-2 over arbitrary histories: a stop ends within a bound, and is verified only if nothing is left.
//! Histories are made by acting on a [`World`], so that every state is one that can occur: hosts with agents
//! that behave like real ones, links with a lag that break and come back, agents and consoles that die
//! half-way, and hosts that lose the folder of the run.

use crate::event::{Effect, Event, StopSource};
use crate::report::ReportBody;
use crate::testkit::*;
use crate::{Core, Goal};
use proptest::prelude::*;
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{LostHost, Restart};
use rankdeck_types::host::Probe;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, PlannedHost, PlannedRank};
use std::collections::{BTreeSet, VecDeque};

/// Something that happens to the run.
#[derive(Debug, Clone)]
enum Op {
    Pass(u64),
    Lose(usize),
    Mend(usize),
    Fail(usize),
    Restart,
    Exclude(usize),
    Add(usize),
    Stop,
    Console,
    /// The agent dies; with or without its guard, and with or without the folder of the run.
    Kill(usize, bool, bool),
}

fn shape() -> impl Strategy<Value = Shape> {
    let manners = || {
        prop_oneof![
            8 => (0u64..3_000).prop_map(Manners::Polite),
            1 => Just(Manners::Deaf),
            1 => Just(Manners::Immortal),
        ]
    };
    let lag = || prop::sample::select(vec![0u64, 0, 50, 150, 700]);
    let hosts = prop::collection::vec((manners(), lag()), 2..=HOSTS);
    let left_out = prop_oneof![3 => Just(None), 1 => (0..HOSTS).prop_map(Some)];
    (hosts, any::<bool>(), left_out, any::<bool>()).prop_map(|(hosts, lost_exclude, left_out, thorough)| {
        let left_out = left_out.map(|node| node % hosts.len()).into_iter().collect();
        let (manners, lag_ms) = hosts.into_iter().unzip();
        Shape { manners, lag_ms, thorough, lost_exclude, left_out }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..HOSTS;
    prop_oneof![
        6 => prop::sample::select(vec![50u64, 200, 1_000, 4_000, 30_000]).prop_map(Op::Pass),
        4 => node().prop_map(Op::Lose),
        4 => node().prop_map(Op::Mend),
        2 => node().prop_map(Op::Fail),
        1 => Just(Op::Restart),
        2 => node().prop_map(Op::Exclude),
        1 => node().prop_map(Op::Add),
        1 => Just(Op::Stop),
        2 => Just(Op::Console),
        2 => (node(), any::<bool>(), any::<bool>())
            .prop_map(|(node, guarded, forgets)| Op::Kill(node, guarded, forgets)),
    ]
}

fn act(world: &mut World, op: &Op) {
    let (shown, hosts) = (world.core.model().run.launch.clone(), world.hosts());
    let change = |exclude: Vec<String>, add| Event::RestartRequested {
        from: None,
        exclude,
        add,
        experiment: None,
        shown: shown.clone(),
    };
    match op {
        Op::Pass(ms) => world.pass(*ms),
        Op::Lose(node) => world.lose(node % hosts),
        Op::Mend(node) => world.mend(node % hosts),
        Op::Fail(node) => world.fail(node % hosts),
        Op::Restart => world.event(Event::restart(None).having_shown(shown)),
        Op::Exclude(node) => world.event(change(vec![NAMES[node % hosts].into()], vec![])),
        Op::Add(node) => {
            world.event(change(vec![], vec![draft(hosts, Transport::Ssh).hosts.remove(node % hosts)]));
        }
        Op::Stop => world.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command }),
        Op::Console => world.another_console(),
        Op::Kill(node, guarded, forgets) => world.kill_agent(node % hosts, *guarded, *forgets),
    }
}

/// What must hold of a stop that was just requested.
fn check(world: &mut World, what: &str) -> Result<(), TestCaseError> {
    let took = world.stop_and_wait();
    prop_assert!(took.is_some(), "{}: endless, alive {:?}", what, world.alive());
    let alive = world.alive();
    prop_assert!(
        !world.is_verified() || alive.is_empty(),
        "{}: called verified, but hosts {:?} still run",
        what,
        alive
    );
    Ok(())
}

/// `PROPTEST_CASES` cases, or few enough for every run of the tests.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever has happened, a stop ends in proof or without it, and proof is true. A second stop, when
    /// every host can be reached, ends everything that can be ended.
    #[test]
    fn run_2_any_stop_ends_and_verifies_truthfully(
        shape in shape(),
        ops in prop::collection::vec(op(), 0..25),
        attached in any::<bool>(),
    ) {
        let mut world = World::launch(&shape);
        world.pass(3_000);
        for op in &ops {
            act(&mut world, op);
        }
        if attached || world.exit.is_some() {
            world.another_console();
        }
        check(&mut world, "first stop")?;
        for node in 0..world.hosts() {
            world.mend(node);
        }
        world.another_console();
        world.pass(1_000);
        if world.exit.is_none() {
            check(&mut world, "second stop")?;
        }
        let mortal = shape.manners.iter().all(|manners| *manners != Manners::Immortal);
        let alive = world.alive();
        prop_assert!(!mortal || alive.is_empty(), "hosts {:?} still run after the second stop", alive);
        prop_assert!(!mortal || world.is_verified(), "nothing is left, and it is not verified: {:?}", world.finished);
    }
}

#[test]
fn run_2_stop_between_generations_ends_without_host() {
    let shape = |manners: Vec<Manners>| Shape {
        lag_ms: vec![0; manners.len()],
        manners,
        thorough: true,
        lost_exclude: true,
        left_out: BTreeSet::new(),
    };
    let polite = Manners::Polite(0);
    let histories = [
        (
            vec![polite; 3],
            vec![
                Op::Fail(0),
                Op::Pass(50),
                Op::Lose(1),
                Op::Lose(0),
                Op::Pass(30_000),
                Op::Mend(1),
                Op::Pass(200),
            ],
        ),
        (
            vec![polite, Manners::Immortal, polite],
            vec![Op::Exclude(1), Op::Pass(50), Op::Lose(0), Op::Pass(30_000)],
        ),
    ];
    for (manners, ops) in histories {
        let mut world = World::launch(&shape(manners));
        world.pass(3_000);
        for op in &ops {
            act(&mut world, op);
        }
        let before = format!("{:?}", world.core.session.run.stage);
        let took = world.stop_and_wait();
        assert!(
            took.is_some(),
            "before {before}, then {:?}, {:?}",
            world.core.session.run.stage,
            world.core.session.run.facts
        );
    }
}

/// Most hosts of a world.
const HOSTS: usize = NAMES.len();
/// A stop is to end within this, milliseconds: reaching the hosts, the drain, and the kill.
const BOUND_MS: u64 = 120_000;
/// Milliseconds between two steps of the world.
const STEP_MS: u64 = 50;

/// What the world is like before anything happens.
#[derive(Debug, Clone)]
struct Shape {
    /// Of each host.
    manners: Vec<Manners>,
    lag_ms: Vec<u64>,
    /// An agent that takes over ends what the former one has left before it serves; else only when it is
    /// reported to stop.
    thorough: bool,
    lost_exclude: bool,
    left_out: BTreeSet<usize>,
}

/// How a host's ranks take a stop.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manners {
    /// They end this many milliseconds after any order.
    Polite(u64),
    /// They end only when they are killed.
    Deaf,
    /// Nothing ends them.
    Immortal,
}

/// One host with its agent and its link to the console of the moment.
#[derive(Debug, Clone)]
struct Machine {
    manners: Manners,
    lag_ms: u64,
    /// The network between console and host.
    up: bool,
    /// The console's link stands.
    linked: bool,
    attached: bool,
    /// Its agent runs; the next connection starts another one.
    agent: bool,
    spec: Option<LaunchSpec>,
    alive: bool,
    /// What is alive belongs to the agent that runs now.
    own: bool,
    /// When the ranks end, and whether a stop is the reason.
    ends_at: Option<Timestamp>,
    /// When survivors are reported.
    gives_up_at: Option<Timestamp>,
    records: Vec<Record>,
    to_agent: VecDeque<(Timestamp, ConsoleMessage)>,
    to_console: VecDeque<(Timestamp, Event)>,
}

struct World {
    core: Core,
    machines: Vec<Machine>,
    thorough: bool,
    now: Timestamp,
    exit: Option<u8>,
    finished: Vec<ReportBody>,
}

/// One rank per host that is not excluded, any number of hosts.
fn plan(draft: &PlanDraft, _: &[Probe]) -> Result<Plan, PlanError> {
    let hosts: Vec<PlannedHost> = draft
        .hosts
        .iter()
        .enumerate()
        .map(|(node, host)| PlannedHost::new(NodeRank(node as u32), host.clone()))
        .collect();
    let members: Vec<u32> = (0..hosts.len() as u32)
        .filter(|node| !draft.excluded.contains(&hosts[*node as usize].host.name))
        .collect();
    if members.is_empty() {
        return no_plan(draft, &[]);
    }
    let ranks = members
        .iter()
        .enumerate()
        .map(|(rank, node)| PlannedRank {
            rank: Rank(rank as u32),
            local_rank: LocalRank(0),
            node_rank: NodeRank(*node),
            gpu: None,
        })
        .collect();
    let (run, experiment) = (draft.run.clone(), draft.experiment.clone());
    let program = draft.program.clone();
    Ok(Plan { run, experiment, hosts, ranks, sizes: Vec::new(), program, drill: false })
}

fn attach_goal(hosts: usize) -> Goal {
    let hosts = NAMES[..hosts].iter().map(|name| name.to_string()).collect();
    Goal::Attach { run: RunId(RUN.into()), hosts }
}

impl World {
    /// A console launches; the links come up by and by.
    fn launch(shape: &Shape) -> World {
        let hosts = shape.manners.len();
        let mut draft = draft(hosts, Transport::Ssh);
        let lost_host = if shape.lost_exclude { LostHost::Exclude } else { LostHost::Stop };
        draft.experiment.restart =
            Restart { max_restarts: Some(5), backoff_s: 0.5, lost_host, ..Restart::default() };
        draft.excluded = shape.left_out.iter().map(|node| NAMES[*node].to_string()).collect();
        let machine = |node: usize| Machine {
            manners: shape.manners[node],
            lag_ms: shape.lag_ms[node],
            up: true,
            linked: false,
            attached: false,
            agent: true,
            spec: None,
            alive: false,
            own: true,
            ends_at: None,
            gives_up_at: None,
            records: Vec::new(),
            to_agent: VecDeque::new(),
            to_console: VecDeque::new(),
        };
        let goal = Goal::Launch(Box::new(draft));
        let mut world = World {
            core: Core::with_resolver(goal, vec![], Timestamp(0), plan),
            machines: (0..hosts).map(machine).collect(),
            thorough: shape.thorough,
            now: Timestamp(0),
            exit: None,
            finished: Vec::new(),
        };
        for node in (0..hosts).filter(|node| !shape.left_out.contains(node)) {
            world.connect(node);
        }
        world
    }

    fn hosts(&self) -> usize {
        self.machines.len()
    }

    /// The console dies, and with it whatever was under way; another one attaches.
    fn another_console(&mut self) {
        self.core = Core::with_resolver(attach_goal(self.hosts()), vec![], self.now, plan);
        (self.exit, self.finished) = (None, Vec::new());
        for node in 0..self.hosts() {
            self.cut(node);
            self.connect(node);
        }
    }

    fn cut(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        (machine.linked, machine.attached) = (false, false);
        machine.to_agent.clear();
        machine.to_console.clear();
    }

    fn connect(&mut self, node: usize) {
        let at = self.now.plus(self.machines[node].lag_ms);
        let node_rank = NodeRank(node as u32);
        let state = match self.machines[node].up {
            true => LinkState::Ready { probe: Probe::default() },
            false => LinkState::Lost { reason: "no route".into(), retry_ms: 500 },
        };
        self.machines[node].linked = self.machines[node].up;
        if self.machines[node].up && !self.machines[node].agent {
            self.take_over(node);
        }
        self.machines[node].to_console.push_back((at, Event::LinkChanged { node: node_rank, state }));
    }

    /// The network to a host breaks.
    fn lose(&mut self, node: usize) {
        self.cut(node);
        self.machines[node].up = false;
        let state = LinkState::Lost { reason: "broken pipe".into(), retry_ms: 500 };
        self.event(Event::LinkChanged { node: NodeRank(node as u32), state });
    }

    /// The agent dies, and what it has started with it, unless its guard is dead, too. The link comes back by
    /// itself, with another agent. `forgets`: the folder of the run is gone as well.
    fn kill_agent(&mut self, node: usize, guarded: bool, forgets: bool) {
        let machine = &mut self.machines[node];
        let was_up = machine.up;
        (machine.agent, machine.own) = (false, false);
        (machine.ends_at, machine.gives_up_at) = (None, None);
        machine.alive &= !guarded || machine.manners == Manners::Immortal;
        if forgets {
            machine.spec = None;
            machine.records.clear();
        }
        self.cut(node);
        if was_up && self.exit.is_none() {
            self.lose(node);
            self.mend(node);
        }
    }

    /// Another agent begins where one has died: with the records of that one, if they are there.
    fn take_over(&mut self, node: usize) {
        let (thorough, machine) = (self.thorough, &mut self.machines[node]);
        machine.agent = true;
        let known = machine.spec.is_some();
        if !thorough && !known {
            return;
        }
        machine.alive &= machine.manners == Manners::Immortal;
        let survives = machine.alive;
        let ended = matches!(machine.records.last(), Some(Record { event: RecordEvent::Stopped { .. }, .. }));
        if survives {
            let left = Survivor { pid: 7, rank: None, state: 'D', command: "dd".into() };
            self.record(node, RecordEvent::Stopped { survivors: vec![left], gpus_free: vec![], took_ms: 0 });
        } else if known && !ended {
            self.die(node, false, Exit::Signal { signal: 9, out_of_memory: false });
        }
    }

    /// It comes back.
    fn mend(&mut self, node: usize) {
        if !self.machines[node].up {
            self.machines[node].up = true;
            self.connect(node);
        }
    }

    fn event(&mut self, event: Event) {
        for effect in self.core.handle(self.now, event) {
            match effect {
                Effect::Link { node, command: LinkCommand::Send(message) } => {
                    let (at, machine) = (self.now, &mut self.machines[node.index()]);
                    if machine.linked {
                        machine.to_agent.push_back((at.plus(machine.lag_ms), message));
                    }
                }
                Effect::Report(report) => {
                    if matches!(report.body, ReportBody::RunFinished { .. }) {
                        self.finished.push(report.body);
                    }
                }
                Effect::Exit { code } => self.exit = Some(code),
                Effect::Connect { node, .. } | Effect::Find { node, .. } => self.connect(node.index()),
                _ => {}
            }
        }
    }

    /// Time passes.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(STEP_MS) {
            self.now = self.now.plus(STEP_MS);
            for node in 0..self.hosts() {
                self.step(node);
            }
            if self.now.0.is_multiple_of(250) && self.exit.is_none() {
                self.event(Event::Ticked);
            }
        }
    }

    fn step(&mut self, node: usize) {
        let now = self.now;
        while let Some((_, message)) = pop_due(&mut self.machines[node].to_agent, now) {
            self.obey(node, message);
        }
        let machine = &mut self.machines[node];
        if machine.alive && machine.ends_at.is_some_and(|at| at <= now) {
            (machine.alive, machine.ends_at, machine.gives_up_at) = (false, None, None);
            self.die(node, true, Exit::Code { code: 0 });
        } else if machine.alive && machine.gives_up_at.is_some_and(|at| at <= now) {
            machine.gives_up_at = None;
            let left = Survivor { pid: 7, rank: None, state: 'D', command: "dd".into() };
            self.record(node, RecordEvent::Stopped { survivors: vec![left], gpus_free: vec![], took_ms: 9 });
        }
        while let Some((_, event)) = pop_due(&mut self.machines[node].to_console, now) {
            if self.exit.is_none() {
                self.event(event);
            }
        }
    }

    fn send(&mut self, node: usize, message: AgentMessage) {
        let (now, machine) = (self.now, &mut self.machines[node]);
        if machine.attached {
            let event = Event::AgentMessage { node: NodeRank(node as u32), message: Box::new(message) };
            machine.to_console.push_back((now.plus(machine.lag_ms), event));
        }
    }

    fn record(&mut self, node: usize, event: RecordEvent) {
        let machine = &mut self.machines[node];
        let seq = machine.records.len() as u64 + 1;
        let generation = machine.spec.as_ref().map_or(Generation(0), |spec| spec.generation);
        let record = Record { seq, time: 1000.0 + self.now.0 as f64 / 1000.0, generation, event };
        machine.records.push(record.clone());
        self.send(node, AgentMessage::Record(record));
    }

    fn rank_of(&self, node: usize) -> Option<Rank> {
        let spec = self.machines[node].spec.as_ref()?;
        spec.plan.ranks_of(NodeRank(node as u32)).map(|planned| planned.rank).next()
    }

    fn die(&mut self, node: usize, stopping: bool, exit: Exit) {
        let Some(rank) = self.rank_of(node) else { return };
        let end = RecordEvent::RankExited {
            rank,
            pid: 1,
            exit,
            last_lines: vec![],
            stopping,
            ago_ms: 0,
            with_agent: false,
        };
        self.record(node, end);
        self.record(node, RecordEvent::Stopped { survivors: vec![], gpus_free: vec![], took_ms: 1 });
    }

    /// A rank fails by itself.
    fn fail(&mut self, node: usize) {
        if self.machines[node].alive && self.machines[node].manners != Manners::Immortal {
            self.machines[node].alive = false;
            if self.machines[node].own {
                self.die(node, false, Exit::Code { code: 1 });
            }
        }
    }

    fn obey(&mut self, node: usize, message: ConsoleMessage) {
        match message {
            ConsoleMessage::Attach { after_seq, .. } => self.greet(node, after_seq),
            ConsoleMessage::ReservePort { request } => {
                self.send(node, AgentMessage::PortReserved { request, port: 40_000 });
            }
            ConsoleMessage::Launch { spec, .. } => self.start(node, *spec),
            ConsoleMessage::Stop { mode, ends, .. } => self.stop(node, mode, ends),
            ConsoleMessage::Ping { sent_ms } => {
                self.send(node, AgentMessage::Pong { sent_ms, wall_time: None });
            }
            _ => {}
        }
    }

    fn greet(&mut self, node: usize, after_seq: u64) {
        self.machines[node].attached = true;
        self.send(node, hello(node, 1_000.0));
        let machine = self.machines[node].clone();
        let spec = machine.spec.map(Box::new);
        let ranks = self.rank_of(node).into_iter().map(|rank| RankSnapshot {
            rank,
            pid: Some(1),
            exit: (!machine.alive).then_some(Exit::Code { code: 0 }),
        });
        let ranks = ranks.collect();
        self.send(
            node,
            AgentMessage::Snapshot { spec, ranks, last_seq: machine.records.len() as u64, holds: vec![] },
        );
        for record in machine.records.into_iter().filter(|record| record.seq > after_seq) {
            self.send(node, AgentMessage::Record(record));
        }
    }

    fn start(&mut self, node: usize, spec: LaunchSpec) {
        let machine = &mut self.machines[node];
        let known = machine.spec.as_ref().map(|spec| spec.generation);
        if machine.alive || known.is_some_and(|known| known >= spec.generation) {
            if machine.spec.as_ref() != Some(&spec) {
                let (error, hint) = ("it is not over".into(), "stop it".into());
                self.send(node, AgentMessage::Refused(HintedError { error, hint }));
            }
            return;
        }
        (machine.spec, machine.alive) = (Some(spec.clone()), true);
        machine.own = true;
        (machine.ends_at, machine.gives_up_at) = (None, None);
        self.record(node, RecordEvent::Launched { spec: Box::new(spec) });
        if let Some(rank) = self.rank_of(node) {
            self.record(node, RecordEvent::RankSpawned { rank, local_rank: LocalRank(0), pid: 1 });
        }
    }

    fn stop(&mut self, node: usize, mode: StopMode, ends: bool) {
        let (now, machine) = (self.now, &self.machines[node]);
        let order = RecordEvent::StopOrdered { mode, by: "console".into(), ends };
        if machine.spec.is_none() || machine.alive && !machine.own {
            // It scans for leftovers of former agents, and ends what can be ended.
            let survives = machine.alive && machine.manners == Manners::Immortal;
            let left = Survivor { pid: 7, rank: None, state: 'D', command: "dd".into() };
            let survivors = if survives { vec![left] } else { vec![] };
            self.machines[node].alive = survives;
            self.record(node, order);
            self.record(node, RecordEvent::Stopped { survivors, gpus_free: vec![], took_ms: 1 });
            return;
        }
        if !machine.alive {
            if ends {
                self.record(node, order);
            }
            return;
        }
        let after = match (machine.manners, mode) {
            (Manners::Polite(ms), _) => Some(ms),
            (Manners::Deaf, StopMode::Kill) => Some(200),
            (Manners::Deaf, _) => None,
            (Manners::Immortal, _) => None,
        };
        self.record(node, order);
        let machine = &mut self.machines[node];
        machine.ends_at = machine.ends_at.or(after.map(|ms| now.plus(ms)));
        if machine.manners == Manners::Immortal {
            machine.gives_up_at = Some(now.plus(10_000));
        }
    }

    /// Asks for a stop until the console ends; returns the milliseconds that took.
    fn stop_and_wait(&mut self) -> Option<u64> {
        let began = self.now;
        self.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
        while self.exit.is_none() && self.now.since(began) < BOUND_MS {
            self.pass(1_000);
        }
        self.exit.map(|_| self.now.since(began))
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.hosts()).filter(|node| self.machines[*node].alive).collect()
    }

    fn is_verified(&self) -> bool {
        matches!(&self.finished[..], [ReportBody::RunFinished { proved: true, .. }])
    }
}

fn pop_due<T>(queue: &mut VecDeque<(Timestamp, T)>, now: Timestamp) -> Option<(Timestamp, T)> {
    if queue.front().is_some_and(|(at, _)| *at <= now) { queue.pop_front() } else { None }
}
