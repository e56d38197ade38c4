//! Moments of the policy at play: the newest, to consoles that watch, and into no record.

use super::bed::*;
use rankdeck_proto::message::*;
use rankdeck_proto::show::LiveFrame;
use std::io::Write;
use std::time::Duration;

/// Not a test: ranks that show one moment after the other. Runs only inside an agent.
#[test]
#[ignore = "not a test: a rank of other tests"]
fn rank_program() {
    let Ok(socket) = std::env::var("RANKDECK_EVENTS") else { return };
    let rank: u32 = std::env::var("RANKDECK_RANK").unwrap().parse().unwrap();
    let mut socket = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let mut say = |text: &str| writeln!(socket, "{text}").unwrap();
    say(&format!(r#"{{"kind":"hello","rank":{rank},"generation":0}}"#));
    let mut step = 0;
    while !std::path::Path::new("go").exists() {
        step += 1;
        let policy = format!(r#"{{"env_id":"of rank {rank}"}}"#);
        say(&format!(r#"{{"kind":"frame","policy":{policy},"step":{{"step":{step}}}}}"#));
        std::thread::sleep(Duration::from_millis(10));
    }
    say(r#"{"kind":"finished","reason":"budget"}"#);
}

/// What a console was shown: its count of missed ones, and the frame.
fn shown(console: &Console) -> Vec<(u64, LiveFrame)> {
    let frames = console.others.iter().filter_map(|message| match message {
        AgentMessage::Frame { generation, age_ms, missed, frame } => {
            assert!(generation.0 == 0 && *age_ms < 60_000, "{message:?}");
            Some((*missed, LiveFrame::clone(frame)))
        }
        _ => None,
    });
    frames.collect()
}

#[test]
fn frames_go_to_consoles_that_watch_the_newest_only_and_into_no_record() {
    let bed = Bed::new("frames");
    let agent = bed.start();
    let mut idle = Console::attach(&agent, 0);
    let own = std::env::current_exe().unwrap().display().to_string();
    let program = [&own, "--exact", "agent::frames::rank_program", "--ignored", "--nocapture"];
    idle.launch(bed.spec(0, 2, &program));
    let mut watching = Console::attach(&agent, 0);
    watching.send(&ConsoleMessage::Watch { on: true });
    // The first lines of a connection are read as they come, later ones a few times a second: a hundred a
    // second are more than a console is sent then.
    watching.wait("frames that were missed", |console| shown(console).last().is_some_and(|last| last.0 > 9));
    let seen = shown(&watching);
    assert!(seen.iter().all(|(_, frame)| frame.policy.env_id == "of rank 0"), "{seen:?}");
    assert_eq!(seen[0].0, 0, "what came before it watched was not missed");
    for pair in seen.windows(2) {
        let left_out = pair[1].1.step.step - pair[0].1.step.step - 1;
        assert_eq!(pair[1].0 - pair[0].0, left_out, "{pair:?}");
    }
    watching.send(&ConsoleMessage::Watch { on: false });
    watching.send(&ConsoleMessage::Ping { sent_ms: 5 });
    watching.wait("the answer", |console| {
        console.others.iter().any(|said| matches!(said, AgentMessage::Pong { sent_ms: 5, .. }))
    });
    // One that was being written may still come.
    let (frames, samples) = (shown(&watching).len(), watching.samples.len());
    watching.wait("samples", |console| console.samples.len() >= samples + 3);
    assert!(shown(&watching).len() <= frames + 1);
    std::fs::write(bed.workdir().join("go"), "").unwrap();
    assert_eq!(idle.stopped(), []);
    assert_eq!(shown(&idle), [], "who does not watch is sent none");
    let kept = idle.records.iter().filter(|record| {
        matches!(&record.event, RecordEvent::Rank { said, .. } if !matches!(said, RankEvent::Finished { .. }))
    });
    assert_eq!(kept.count(), 0);
    assert_eq!(idle.samples.last().unwrap().malformed, 0);
}
