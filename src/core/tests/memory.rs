//! CORE-2 in bytes: whatever an agent sends, and however often, the console keeps a bounded amount of it.

use crate::testkit::*;
use crate::{Core, event::Event};
use rankdeck_proto::inspection::*;
use rankdeck_proto::message::*;
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_proto::search::{LogFindings, LogHit};
use rankdeck_proto::show::LiveFrame;
use rankdeck_testkit::fuzz::{Counting, live};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use serde_json::Value;

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

fn sample() -> HostSample {
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
        ..Inspection::default()
    }
}

fn rank_events() -> Vec<RankEvent> {
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
    all.extend(rank_events().into_iter().map(|event| RecordEvent::Rank { rank: Rank(0), event }));
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
        AgentMessage::Sample(Box::new(sample())),
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
