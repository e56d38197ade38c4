//! PURE-1, PURE-2 and CORE-3 over arbitrary events and orders.
//!
//! CORE-2 in bytes: whatever an agent sends, and however often, the console keeps a bounded amount of it.

use super::attach::essence;
use crate::event::{Effect, Event, StopSource};
use crate::model::SlowLink;
use crate::testkit::*;
use crate::trace::{ConsoleSnapshot, SegmentHeader, SegmentReader, SegmentWriter};
use crate::{Core, Goal, PaceHistory};
use proptest::prelude::*;
use rankdeck_proto::inspection::*;
use rankdeck_proto::message::*;
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_proto::search::{LogFindings, LogHit};
use rankdeck_proto::show::LiveFrame;
use rankdeck_testkit::fuzz::{Counting, live};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Probe, Transport};
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::StopGoal;
use serde_json::Value;

/// A run with two generations, evaluations and a natural end, as the agents have spooled it.
fn finished() -> Cluster {
    let mut c = Cluster::launch(3);
    c.all_ready();
    for iter in 1..=4 {
        c.iteration(iter, iter * 10);
        c.pass(500);
    }
    c.event(Event::restart(None));
    for node in 0..3 {
        c.host_ends(node, true);
    }
    for iter in 5..=9 {
        c.iteration(iter, iter * 10);
        c.rank_event(
            0,
            RankEvent::Eval(Evaluation { train_iter: iter, env_step: iter * 60, ..Evaluation::default() }),
        );
        c.pass(500);
    }
    for rank in 0..6 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
    }
    for node in 0..3 {
        c.host_ends(node, false);
    }
    assert_eq!(c.exit, Some(0));
    c
}

/// `PROPTEST_CASES` cases, or few enough for every run of the tests.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Hosts deliver in any interleaving, repeat themselves and lose messages: the model is the same.
    #[test]
    fn core_3_model_is_same_for_any_delivery(
        moves in prop::collection::vec((0usize..3, 0usize..8), 50..400)
    ) {
        let c = finished();
        let mut other = c.attach();
        let spools: Vec<Vec<Record>> = c.agents.iter().map(|agent| agent.records.clone()).collect();
        for agent in &mut other.agents {
            agent.records.clear();
        }
        // Live delivery: the spool grows while this console watches, with all its accidents.
        let mut next = [0; 3];
        for (node, spool) in spools.iter().enumerate() {
            other.agents[node].spec = Some(first_spec(spool));
            other.ready(node);
        }
        let rest = (0..3).cycle().take(2000).map(|node| (node, 0));
        for (node, accident) in moves.into_iter().chain(rest) {
            let Some(record) = spools[node].get(next[node]).cloned() else { continue };
            next[node] += 1;
            other.agents[node].records.push(record.clone());
            match accident {
                1 => { other.receive(node, AgentMessage::Record(record.clone())); other.receive(node, AgentMessage::Record(record)); }
                2 => {}
                3 => { other.lose(node); other.ready(node); }
                4 => { let old = spools[node][next[node] / 2].clone(); other.receive(node, AgentMessage::Record(old)); }
                _ => other.receive(node, AgentMessage::Record(record)),
            }
        }
        for node in 0..3 {
            other.lose(node);
            other.ready(node);
        }
        prop_assert_eq!(essence(&other), essence(&c));
        prop_assert_eq!(other.exit, Some(0));
    }

    /// Any events in any order: no panic, at most one exit, one `run_finished` before it, silence after it.
    #[test]
    fn pure_2_nothing_panics(
        launch in any::<bool>(),
        linger in any::<bool>(),
        events in prop::collection::vec((0u64..3000, event()), 0..150)
    ) {
        let goal = match launch {
            true => Goal::Launch(Box::new(draft(2, Transport::Ssh))),
            false => Goal::Attach { run: rankdeck_types::ids::RunId(RUN.into()), hosts: vec!["ant".into(), "bee".into()] },
        };
        let core = Core::with_resolver(goal, vec![StopGoal::Iters(50), StopGoal::Seconds(90)], Timestamp(5), resolve);
        let mut core = if linger { core.lingering() } else { core };
        let (mut now, mut exits) = (0, 0);
        for (pause, event) in events {
            now += pause;
            let effects = core.handle(Timestamp(now), event);
            prop_assert!(exits == 0 || effects.is_empty(), "{effects:?} after exit");
            exits += effects.iter().filter(|effect| matches!(effect, Effect::Exit { .. })).count();
            let m = core.model();
            prop_assert!(m.history.len() <= 1000);
        }
        prop_assert!(exits <= 1);
        let size = format!("{:?}", core.model()).len();
        prop_assert!(size < 10_000_000, "{} bytes", size);
    }
}

fn first_spec(records: &[Record]) -> LaunchSpec {
    let launched = records.iter().find_map(|record| match &record.event {
        RecordEvent::Launched { spec } => Some((**spec).clone()),
        _ => None,
    });
    launched.expect("a launch")
}

fn spec() -> LaunchSpec {
    let plan = resolve(&draft(2, Transport::Ssh), &[]).expect("a plan");
    LaunchSpec {
        generation: Generation(0),
        node_rank: NodeRank(0),
        master_addr: "ant".into(),
        master_port: 1,
        resume: None,
        resume_at: None,
        plan,
    }
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0u32..3;
    prop_oneof![
        3 => Just(Event::Ticked),
        3 => (node.clone(), link()).prop_map(|(node, state)| Event::LinkChanged { node: NodeRank(node), state }),
        12 => (node.clone(), message()).prop_map(|(node, message)| {
            let message = match message {
                AgentMessage::Hello { .. } if node < 2 => hello(node as usize, 1_000.0),
                other => other,
            };
            Event::AgentMessage { node: NodeRank(node), message: Box::new(message) }
        }),
        1 => mode().prop_map(|mode| Event::StopRequested { mode, by: StopSource::Key }),
        1 => prop::option::of(Just("latest".to_string())).prop_map(Event::restart),
        1 => node.prop_map(|node| Event::PromptAnswered { node: NodeRank(node), answer: None }),
        1 => any::<f64>().prop_map(|time| Event::WallClock { time }),
        1 => any::<u32>().prop_map(|bps| Event::Measured {
            slow_links: vec![SlowLink { bps: bps.into(), ..SlowLink::default() }; 100],
        }),
        1 => prop::collection::vec(prop::collection::vec(any::<(u8, u32)>(), 0..4), 0..30)
            .prop_map(|places| Event::Recalled { pace: PaceHistory { places, lines: std::collections::BTreeMap::new() } }),
    ]
}

fn mode() -> impl Strategy<Value = StopMode> {
    prop_oneof![Just(StopMode::Clean), Just(StopMode::Terminate), Just(StopMode::Kill)]
}

fn link() -> impl Strategy<Value = LinkState> {
    prop_oneof![
        5 => Just(LinkState::Ready { probe: Probe::default() }),
        1 => Just(LinkState::Lost { reason: "x".into(), retry_ms: 1 }),
        1 => Just(LinkState::Connecting { attempt: 2 }),
        1 => Just(LinkState::Asking { prompt: Prompt::Passphrase { key: "k".into() } }),
        1 => Just(LinkState::Failed(HintedError { error: "e".into(), hint: "h".into() })),
        1 => Just(LinkState::Closed),
    ]
}

fn message() -> impl Strategy<Value = AgentMessage> {
    prop_oneof![
        4 => Just(hello(0, 1_000.0)),
        4 => (any::<bool>(), 0u32..2, 0u64..6).prop_map(|(some, generation, last_seq)| AgentMessage::Snapshot {
            spec: some.then(|| Box::new(LaunchSpec { generation: Generation(generation), ..spec() })),
            ranks: vec![RankSnapshot { rank: Rank(generation * 7), pid: Some(1), exit: None }],
            last_seq,
            holds: vec![],
        }),
        16 => (0u64..12, 0u32..2, record()).prop_map(|(seq, generation, event)| {
            AgentMessage::Record(Record { seq, time: seq as f64, generation: Generation(generation), event })
        }),
        4 => (any::<u64>(), 0u32..2, prop::collection::vec(sample(), 0..5)).prop_map(|(mono_ms, generation, ranks)| {
            let generation = Generation(generation);
            AgentMessage::Sample(Box::new(HostSample { mono_ms, generation, ranks, dropped: mono_ms, ..HostSample::default() }))
        }),
        1 => (0u32..9, any::<u64>()).prop_map(|(rank, first)| {
            AgentMessage::Log { rank: Rank(rank), first, overwritten: 0, lines: vec!["a".into(), "b".into()], times: Vec::new() }
        }),
        2 => (0u64..4).prop_map(|request| AgentMessage::PortReserved { request, port: 5 }),
        1 => any::<u64>().prop_map(|sent_ms| AgentMessage::Pong { sent_ms, wall_time: Some(5.0) }),
        1 => Just(AgentMessage::Refused(HintedError { error: "no".into(), hint: String::new() })),
        1 => Just(AgentMessage::Unknown),
    ]
}

fn sample() -> impl Strategy<Value = RankSample> {
    (
        0u32..9,
        prop::sample::select(vec!['S', 'T', 't', 'Z', 'X', 'R']),
        any::<[u64; 8]>(),
        0usize..9,
        any::<bool>(),
    )
        .prop_map(|(rank, state, n, phase, page)| {
            let mut sample = RankSample { state, ..rank_sample(rank) };
            sample.page = sample.page.filter(|_| page).map(|page| PageSample {
                phase: Phase::ALL[phase],
                phase_age_ms: n[0],
                heartbeat_age_ms: n[1],
                train_iter: n[2],
                env_step: n[3],
                updates: n[4],
                collective: CollectiveSample {
                    entered: n[5],
                    left: n[6],
                    age_ms: n[7],
                    ..page.collective.clone()
                },
                ..page
            });
            sample
        })
}

fn record() -> impl Strategy<Value = RecordEvent> {
    let rank = || (0u32..6).prop_map(Rank);
    let exit = prop_oneof![
        3 => Just(Exit::Code { code: 0 }),
        1 => any::<i32>().prop_map(|code| Exit::Code { code }),
        1 => any::<i32>().prop_map(|signal| Exit::Signal { signal, out_of_memory: signal % 2 == 0 }),
        1 => Just(Exit::NotStarted { error: "e".into() }),
    ];
    prop_oneof![
        2 => (0u32..3).prop_map(|generation| {
            RecordEvent::Launched { spec: Box::new(LaunchSpec { generation: Generation(generation), ..spec() }) }
        }),
        3 => rank().prop_map(|rank| RecordEvent::RankSpawned { rank, local_rank: Default::default(), pid: 1 }),
        2 => (rank(), exit, any::<bool>()).prop_map(|(rank, exit, stopping)| {
            RecordEvent::RankExited { rank, pid: 1, exit, last_lines: vec!["x".into()], stopping, ago_ms: 3, with_agent: false }
        }),
        1 => (mode(), any::<bool>()).prop_map(|(mode, ends)| {
            RecordEvent::StopOrdered { mode, by: "console".into(), ends }
        }),
        2 => any::<bool>().prop_map(|left| RecordEvent::Stopped {
            survivors: left.then(|| Survivor { pid: 1, rank: None, state: 'D', command: "c".into() }).into_iter().collect(),
            gpus_free: vec![],
            took_ms: u64::MAX,
        }),
        1 => any::<f64>().prop_map(|modified| RecordEvent::CheckpointFiles {
            files: vec![CheckpointFile { path: "/c/a.pt".into(), modified, ..CheckpointFile::default() }],
            complete: modified > 0.0,
        }),
        1 => Just(RecordEvent::Notice { text: "n".into() }),
        1 => Just(RecordEvent::Unknown),
        8 => (rank(), rank_events()).prop_map(|(rank, event)| RecordEvent::Rank { rank, event }),
    ]
}

fn rank_events() -> impl Strategy<Value = RankEvent> {
    let counters =
        (0u64..4, any::<u64>(), any::<f64>()).prop_map(|(train_iter, env_step, duration_s)| Counters {
            train_iter,
            env_step,
            samples: env_step,
            episodes: 1,
            duration_s,
            updates: env_step,
            returns: Returns { sum: duration_s, count: env_step, min: 0.0, max: 1.0 },
            return_last_100: Some(duration_s),
            sum: train_iter == 3,
        });
    prop_oneof![
        3 => counters.clone().prop_map(RankEvent::Counters),
        3 => counters.prop_map(RankEvent::Totals),
        1 => any::<f64>().prop_map(|value| RankEvent::Scalars {
            not_finite: [("losses/value".to_string(), 1)].into(),
            train_iter: 1,
            env_step: 1,
            values: [("charts/SPS".to_string(), value), ("losses/value".to_string(), value)].into(),
        }),
        1 => any::<f64>().prop_map(|return_mean| RankEvent::Eval(Evaluation { return_mean, ..Evaluation::default() })),
        1 => any::<bool>().prop_map(|equal| RankEvent::Fingerprint { train_iter: 1, update: 1, values: vec!["a".into(); 9], equal }),
        1 => any::<bool>().prop_map(|usage| RankEvent::Error { message: "m".into(), hint: String::new(), usage, failure: None }),
        1 => Just(RankEvent::Finished { reason: FinishReason::StopValue }),
        1 => Just(RankEvent::Joined { world_size: 4, backend: "tcp".into(), device: "cpu".into() }),
        1 => Just(RankEvent::Returned),
        1 => Just(RankEvent::Unknown),
    ]
}

/// Everything that a snapshot keeps of a console.
fn state(core: &Core) -> Vec<u8> {
    let mut bytes = Vec::new();
    ConsoleSnapshot::of(core).unwrap().write_to(&mut bytes).unwrap();
    bytes
}

/// A console read back from a snapshot of `core`, which must be the same.
fn restored(core: &Core) -> Core {
    let bytes = state(core);
    let header = SegmentHeader::new(Timestamp(0), 0.0);
    let (mut copy, _) = SegmentReader::open(&header, &bytes[..], None).expect("a whole state");
    copy.session.resolve = core.session.resolve;
    assert_eq!(state(&copy), bytes);
    copy
}

/// Events of a run with a restart, evaluations, logs, a lost host and an end, and a console for them.
fn story() -> (Core, Vec<(Timestamp, Event)>) {
    let mut c = Cluster::launch(3);
    c.event(Event::WallClock { time: 1_000.5 });
    c.all_ready();
    for iter in 1..=30 {
        c.iteration(iter, iter * 10);
        let first = (iter - 1) * 100;
        let lines = (first..first + 100).map(|line| format!("line {line}")).collect();
        c.receive(0, AgentMessage::Log { rank: Rank(0), first, overwritten: 0, lines, times: Vec::new() });
        c.pass(500);
        if iter == 20 {
            c.lose(1);
            c.pass(9_000);
            c.ready(1);
        }
    }
    c.event(Event::restart(None));
    for node in 0..3 {
        c.host_ends(node, true);
    }
    c.pass(1_000);
    for rank in 0..6 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
    }
    for node in 0..3 {
        c.host_ends(node, false);
    }
    (Cluster::launch(3).core, c.events)
}

#[test]
fn pure_1_replay_from_snapshot_equals_full_replay() {
    let (mut core, events) = story();
    let mut writer = SegmentWriter::default();
    let (mut entries, mut bursts) = (state(&core), Vec::new());
    for (at, event) in &events {
        writer.event(*at, event, &mut entries, &mut bursts);
    }
    let header = SegmentHeader::new(Timestamp(0), 0.0);
    let (mut replayed, mut reader) = SegmentReader::open(&header, &entries[..], Some(&bursts[..])).unwrap();
    replayed.session.resolve = core.session.resolve;
    let mut copies: Vec<Core> = Vec::new();
    for (index, (at, event)) in events.iter().enumerate() {
        let (read_at, read_event) = reader.event().expect("as many events");
        assert_eq!((&read_at, &read_event), (at, event));
        if index % 61 == 0 {
            copies.push(restored(&core));
        }
        core.handle(*at, event.clone());
        replayed.handle(read_at, read_event);
        copies.iter_mut().for_each(|copy| drop(copy.handle(*at, event.clone())));
    }
    assert!(copies.len() > 5 && core.model().drops.log_lines > 0);
    let expected = state(&core);
    assert_eq!(format!("{:#?}", replayed.model()), format!("{:#?}", core.model()));
    for copy in &copies {
        assert!(state(copy) == expected, "{:#?}\n{:#?}", copy.model().drops, core.model().drops);
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever happens: a snapshot between any two events gives the same console, and that continues
    /// equally.
    #[test]
    fn pure_1_snapshots_of_any_state_are_exact(
        launch in any::<bool>(),
        events in prop::collection::vec((0u64..3000, event()), 0..120),
        cut in 0usize..120,
    ) {
        let goal = match launch {
            true => Goal::Launch(Box::new(draft(2, Transport::Ssh))),
            false => Goal::Attach { run: rankdeck_types::ids::RunId(RUN.into()), hosts: vec!["ant".into(), "bee".into()] },
        };
        let mut core = Core::new(goal, vec![StopGoal::Iters(50), StopGoal::Seconds(90)], Timestamp(5));
        let (mut now, mut copy) = (0, None);
        for (index, (pause, event)) in events.into_iter().enumerate() {
            now += pause;
            if index == cut {
                copy = Some(restored(&core));
            }
            let effects = core.handle(Timestamp(now), event.clone());
            if let Some(copy) = &mut copy {
                let same = copy.handle(Timestamp(now), event);
                prop_assert_eq!(format!("{:?}", same), format!("{:?}", effects));
            }
        }
        if let Some(copy) = copy {
            prop_assert_eq!(state(&copy), state(&core));
            prop_assert_eq!(format!("{:?}", copy.model()), format!("{:?}", core.model()));
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of a message, and how often it is sent: without a bound on what is kept, they take 6 MiB.
const ROOM: usize = 128 << 10;
const TIMES: u64 = 48;
/// What one host of two ranks may take.
const MOST: isize = 4 << 20;

/// A text in a place that no list or map has, so that every list has an element to repeat.
fn some() -> String {
    "text".into()
}

fn call() -> CollectiveCall {
    CollectiveCall {
        op: some(),
        tag: some(),
        group: some(),
        dtype: some(),
        site: some(),
        ..Default::default()
    }
}

fn page() -> PageSample {
    PageSample {
        collective: CollectiveSample { call: call(), entered: 9, left: 8, ..Default::default() },
        groups: vec![GroupSample { name: some(), ..Default::default() }],
        iterations: vec![IterationSample::default()],
        fingerprints: vec![FingerprintSample::default()],
        own_ms: vec![1],
        recent: vec![RecentCollective { call: call(), ..Default::default() }],
        group_arguments: Some(GroupArguments {
            address: some(),
            backend: some(),
            site: some(),
            contradicting: vec![some()],
            ..Default::default()
        }),
        input: Some(InputSample { site: some(), ..Default::default() }),
        ..PageSample::default()
    }
}

fn host_sample() -> HostSample {
    let signals = RankSignals {
        children: vec![ChildSample { name: some(), ..Default::default() }],
        cgroup: Some(CgroupSample { path: some(), ..Default::default() }),
        ..RankSignals::default()
    };
    let gpu = GpuSample {
        name: some(),
        uuid: some(),
        throttle: vec![some()],
        processes: vec![(1, 1)],
        shares: vec![(1, 1)],
        xids: vec![1],
        instances: vec![GpuInstance {
            name: some(),
            uuid: some(),
            processes: vec![(1, 1)],
            ..Default::default()
        }],
        ..GpuSample::default()
    };
    let link = LinkSample { name: some(), ..Default::default() };
    HostSample {
        mono_ms: 777_777,
        ranks: vec![RankSample {
            wchan: some(),
            live: some(),
            page: Some(page()),
            signals,
            ..rank_sample(0)
        }],
        inner: vec![InnerRankSample {
            outer: Rank(0),
            sample: RankSample { wchan: some(), live: some(), page: Some(page()), ..rank_sample(0) },
        }],
        gpus: vec![gpu],
        signals: HostSignals { link: Some(link), ..Default::default() },
        ..HostSample::default()
    }
}

fn inspection() -> Inspection {
    let frame = Frame { function: some(), file: Some(some()), line: Some(1) };
    let holder = || BlockingProcess { name: some(), does: some(), state: 'S', ..Default::default() };
    let group = GroupView { name: some(), ranks: vec![1], call: call(), ..Default::default() };
    Inspection {
        os: OsState { words: some(), wchan: Some(some()), syscall: Some(some()), ..Default::default() },
        blocked_on: Some(some()),
        obstacle: Some(Obstacle::FileLock { path: some(), holders: vec![holder()] }),
        awaits: vec![1],
        threads: vec![ThreadStack { name: some(), frames: vec![frame], ..Default::default() }],
        children: vec![InspectedChild {
            name: some(),
            exit: Some(Exit::NotStarted { error: some() }),
            ..Default::default()
        }],
        sockets: vec![Socket { peer: some(), local: some(), state: some(), ..Default::default() }],
        last_line: Some(some()),
        gpu: Some(some()),
        python: Some(PythonView {
            source: some(),
            torch: some(),
            groups: vec![group],
            recent: vec![RecentCall { state: some(), call: call(), ..Default::default() }],
        }),
        ras: vec![some()],
        notes: vec![some()],
        variables: vec![some()],
        ..Inspection::default()
    }
}

fn all_rank_events() -> Vec<RankEvent> {
    let exception = Exception {
        class: some(),
        bases: vec![some()],
        message: some(),
        at: some(),
        thread: some(),
        cause: some(),
        child: Some(DeadChild { pid: 1, name: some(), exit: Exit::NotStarted { error: some() } }),
        ..Default::default()
    };
    vec![
        RankEvent::Joined { world_size: 4, backend: some(), device: some() },
        RankEvent::Counters(Counters::default()),
        RankEvent::Totals(Counters::default()),
        RankEvent::Scalars {
            train_iter: 1,
            env_step: 777_777,
            values: [(some(), 1.0)].into(),
            not_finite: [(some(), 1)].into(),
        },
        RankEvent::Histogram(LoggedHistogram {
            name: "@@w".into(),
            env_step: 777_777,
            edges: vec![0.0, 1.0],
            counts: vec![1.0],
            ..LoggedHistogram::default()
        }),
        RankEvent::Image(LoggedImage {
            name: "@@p".into(),
            env_step: 777_777,
            data: rankdeck_proto::media::encoded(b"GIF89a\x05\0\x04\0"),
            ..LoggedImage::default()
        }),
        RankEvent::Eval(Evaluation { series: some(), ..Evaluation::default() }),
        RankEvent::Checkpoint { path: some(), env_step: 777_777, train_iter: 1, reason: some() },
        RankEvent::Fingerprint { train_iter: 1, update: 1, values: vec![some()], equal: false },
        RankEvent::Error { message: some(), hint: some(), usage: true, failure: None },
        RankEvent::Exception(exception),
        RankEvent::InnerRank(InnerRank { backend: some(), at: some(), ..InnerRank::default() }),
        RankEvent::Membership(Membership {
            ranks: vec![Rank(0)],
            store: Some(some()),
            ..Membership::default()
        }),
        RankEvent::Survived,
        RankEvent::Returned,
        RankEvent::Finished { reason: FinishReason::Budget },
    ]
}

fn records() -> Vec<RecordEvent> {
    let exits = [Exit::NotStarted { error: some() }, Exit::Code { code: 1 }];
    let ended = |exit| RecordEvent::RankExited {
        rank: Rank(0),
        pid: 1,
        exit,
        last_lines: vec![some()],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    };
    let left = Survivor { pid: 1, rank: None, state: 'S', command: some() };
    let work = Work::Lost { path: some(), bytes: Some(1), env_step: None, steps: None, seconds: None };
    let ending = RunEnd {
        first_failure: Some(some()),
        work: Some(work),
        ..RunEnd::new(RunOutcome::Failed, 1, some())
    };
    let file = CheckpointFile { path: some(), bytes: 1, modified: 1.0, ..CheckpointFile::default() };
    let mut all = vec![
        RecordEvent::StopOrdered { mode: StopMode::Clean, by: some(), ends: true },
        RecordEvent::Stopped { survivors: vec![left], gpus_free: vec![1], took_ms: 1 },
        RecordEvent::CheckpointFiles { files: vec![file], complete: true },
        RecordEvent::Results {
            results: Box::new(RunResults {
                folder: some(),
                mark: some(),
                names: vec![some()],
                ..RunResults::default()
            }),
        },
        RecordEvent::Ended { ending: Box::new(ending) },
        RecordEvent::Metrics {
            rank: Rank(0),
            source: some(),
            env_step: Some(777_777),
            values: [(some(), 1.0)].into(),
            skipped: 0,
            not_finite: [(some(), 1)].into(),
            spread: [(some(), (0.0, 1.0))].into(),
            counter: Some(ShownCounter { unit: some(), at: 1.0 }),
            progress: Some(ShownProgress { unit: some(), label: some(), ..ShownProgress::default() }),
        },
        RecordEvent::Notice { text: some() },
    ];
    all.extend(exits.into_iter().map(ended));
    all.extend(all_rank_events().into_iter().map(|event| RecordEvent::Rank { rank: Rank(0), event }));
    all
}

fn found() -> LogFindings {
    let hit = LogHit { text: some(), before: vec![some()], after: vec![some()], ..LogHit::default() };
    LogFindings { hits: vec![hit], cut: some(), ..LogFindings::default() }
}

/// A message of every kind, with something in every list, map and text.
fn messages() -> Vec<AgentMessage> {
    let mut all = vec![
        hello(0, 1.0),
        AgentMessage::Sample(Box::new(host_sample())),
        AgentMessage::Log {
            rank: Rank(0),
            first: 777_777,
            overwritten: 777,
            lines: vec![some()],
            times: vec![LinesRead { lines: 1, time_ms: 1 }],
        },
        AgentMessage::Inspected { request: 1, inspections: vec![inspection()] },
        AgentMessage::Frame {
            generation: Generation(0),
            age_ms: 0,
            missed: 0,
            frame: Box::new(LiveFrame::default()),
        },
        AgentMessage::Found { request: 1, findings: Box::new(found()) },
        AgentMessage::Refused(HintedError::new(some(), some())),
        AgentMessage::Bye { reason: some() },
    ];
    let seq = 777_777;
    all.extend(
        records()
            .into_iter()
            .map(|event| AgentMessage::Record(Record { seq, time: 1.0, generation: Generation(0), event })),
    );
    all
}

/// Every text, list and map of a value, swollen in turn; `@@` becomes another number each time.
fn swollen(value: &Value, put: &dyn Fn(Value) -> Value, into: &mut Vec<String>) {
    let room = ROOM;
    let whole = |inner: Value| put(inner).to_string();
    match value {
        Value::String(_) => into.push(whole(format!("@@{}", "x".repeat(room)).into())),
        Value::Array(items) => {
            let one = items.first().cloned().unwrap_or_default();
            for one in [one, Value::Object(Default::default())] {
                let count = room / (one.to_string().len() + 1);
                into.push(whole(vec![one; count].into()));
            }
            for (index, item) in items.iter().enumerate() {
                let replaced = |inner: Value| {
                    let mut items = items.clone();
                    items[index] = inner;
                    put(items.into())
                };
                swollen(item, &replaced, into);
            }
        }
        Value::Object(fields) => {
            if fields.keys().eq(["text"]) {
                let many: serde_json::Map<String, Value> =
                    (0..room / 20).map(|n| (format!("@@{n}"), 1.into())).collect();
                let long: serde_json::Map<String, Value> =
                    [(format!("@@{}", "x".repeat(room)), 1.into())].into_iter().collect();
                into.extend([many, long].map(|map| whole(map.into())));
            }
            for (name, field) in fields {
                let replaced = |inner: Value| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), inner);
                    put(fields.into())
                };
                swollen(field, &replaced, into);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn reported(core: &mut Core, now: &mut rankdeck_types::ids::Timestamp, message: AgentMessage) {
    *now = now.plus(600);
    let message = Box::new(message);
    drop(core.handle(*now, Event::AgentMessage { node: NodeRank(0), message }));
    drop(core.handle(*now, Event::Ticked));
}

#[test]
fn core_2_agent_messages_take_bounded_memory() {
    let mut tried = 0;
    let mut c = Cluster::launch(2);
    c.all_ready();
    // Rank 0 stands still, so that inspections are requested.
    c.iteration(1, 10);
    c.hang(0, |_| {});
    c.pass(12_000);
    for message in messages() {
        let value = serde_json::to_value(&message).unwrap();
        let mut texts = Vec::new();
        swollen(&value, &|inner| inner, &mut texts);
        for text in texts {
            let parts: Vec<Vec<&str>> = text.split("@@").map(|part| part.split("777777").collect()).collect();
            let typed = |n: u64| {
                let of_this: Vec<String> =
                    parts.iter().map(|part| part.join(&(100 + n).to_string())).collect();
                serde_json::from_str::<AgentMessage>(&of_this.join(&format!("{n:06}")))
            };
            // If a field is of another type, this is not a message.
            let Ok(first) = typed(0) else { continue };
            // Reading takes longer than taking in; a record gets its number below.
            let differs = text.contains("@@") || matches!(first, AgentMessage::Log { .. });
            let (mut core, mut now) = (c.core.clone(), c.now);
            let last_seq = core.model().hosts[0].last_seq;
            let before = live();
            for n in 0..TIMES {
                let mut message = if differs { typed(n).unwrap() } else { first.clone() };
                if let AgentMessage::Record(record) = &mut message {
                    record.seq = last_seq + 1 + n;
                }
                reported(&mut core, &mut now, message);
            }
            let taken = live() - before;
            let start = &text[..text.len().min(300)];
            assert!(taken < MOST, "{TIMES} of these take {} MiB: {start}", taken >> 20);
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// Of launches that this console does not follow, too.
#[test]
fn core_2_launches_of_other_consoles_are_bounded() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    let spec = c.agents[0].spec.clone().unwrap();
    let (mut core, mut now) = (c.core.clone(), c.now);
    let last_seq = core.model().hosts[0].last_seq;
    let before = live();
    for n in 0..TIMES {
        let mut spec = LaunchSpec { generation: Generation(1 + n as u32), ..spec.clone() };
        spec.plan.experiment.launch.env.insert("X".into(), format!("{n}{}", "x".repeat(900 << 10)));
        let (seq, generation, event) =
            (last_seq + 1 + n, spec.generation, RecordEvent::Launched { spec: Box::new(spec) });
        reported(&mut core, &mut now, AgentMessage::Record(Record { seq, time: 1.0, generation, event }));
    }
    assert!(live() - before < 12 << 20, "{} MiB", (live() - before) >> 20);
    assert!(core.model().drops.gaps > 0, "what had no room is counted");
}
