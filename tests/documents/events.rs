//! docs/EVENTS.md: its example is a program that works, and its list of kinds is complete.

use crate::support::{Bench, Console};
use crate::{read, repository};
use serde_json::{Value, json};

#[test]
fn the_example_reports_counters_and_evaluations() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let program = repository().join("examples/report_events.py");
    let command = ["python3", program.to_str().unwrap()];
    let experiment = bench
        .write("experiment.toml", &format!("[run]\nname = \"events\"\n[launch]\ncommand = {command:?}\n"));
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    let status = console.finish(120);
    assert_eq!(status.code(), Some(0), "{}", console.told());
    let progress = console.all("progress");
    let last = progress.last().unwrap();
    assert_eq!((&last["env_step"], &last["episodes"]), (&json!(320), &json!(40)), "{last}");
    assert!(progress.iter().all(|line| line["consistent"] == true), "{progress:?}");
    let means: Vec<Value> = console.all("eval").iter().map(|line| line["return_mean"].clone()).collect();
    assert_eq!(means, [json!(10.0), json!(20.0)]);
}

#[test]
fn the_document_shows_the_example_as_it_is() {
    assert!(
        read("docs/EVENTS.md").contains(&read("examples/report_events.py")),
        "copy it into docs/EVENTS.md"
    );
}

#[test]
fn every_kind_of_event_and_its_fields_are_listed() {
    use rankdeck_proto::message::{Counters, Evaluation, FinishReason, RankEvent};
    use rankdeck_types::ids::{Generation, Rank};
    let text = read("docs/EVENTS.md");
    let events = [
        RankEvent::Hello { rank: Rank(0), generation: Generation(0) },
        RankEvent::Joined { world_size: 1, backend: String::new(), device: String::new() },
        RankEvent::Counters(Counters::default()),
        RankEvent::Totals(Counters::default()),
        RankEvent::Scalars { train_iter: 0, env_step: 0, values: Default::default() },
        RankEvent::Eval(Evaluation::default()),
        RankEvent::Checkpoint { path: String::new(), env_step: 0, train_iter: 0, reason: String::new() },
        RankEvent::Fingerprint { train_iter: 0, update: 0, values: Vec::new(), equal: true },
        RankEvent::Error { message: String::new(), hint: String::new(), usage: false },
        RankEvent::Finished { reason: FinishReason::Budget },
    ];
    for event in &events {
        // A new kind does not compile until it stands above.
        match event {
            RankEvent::Hello { .. }
            | RankEvent::Joined { .. }
            | RankEvent::Counters(_)
            | RankEvent::Totals(_)
            | RankEvent::Scalars { .. }
            | RankEvent::Eval(_)
            | RankEvent::Checkpoint { .. }
            | RankEvent::Fingerprint { .. }
            | RankEvent::Error { .. }
            | RankEvent::Finished { .. }
            | RankEvent::Unknown => {}
        }
        let event = serde_json::to_value(event).unwrap();
        let kind = event["kind"].as_str().unwrap().to_string();
        assert!(text.contains(&format!("| `{kind}` |")), "docs/EVENTS.md lacks the kind {kind}");
        for field in event.as_object().unwrap().keys() {
            assert!(text.contains(&format!("`{field}`")), "docs/EVENTS.md lacks the field {field} of {kind}");
        }
    }
}
