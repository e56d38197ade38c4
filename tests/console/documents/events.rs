//! docs/EVENTS.md: its example is a program that works, and its list of kinds is complete.

use super::{read, repository};
use crate::support::{Bench, Console};
use serde_json::{Value, json};
use std::collections::BTreeSet;

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

/// Names of variables in a text.
fn variables(text: &str) -> std::collections::BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let ours = |word: &&str| word.starts_with("RANKDECK_") && !word.ends_with('_');
    words.filter(ours).map(str::to_owned).collect()
}

#[test]
fn the_variables_of_a_rank_are_those_of_the_document() {
    let code = ["src/agent/supervise/launch_prep.rs", "src/types/plan/environment.rs"].map(read);
    let mut set: std::collections::BTreeSet<String> =
        code.iter().flat_map(|code| variables(code.split("#[cfg(test)]").next().unwrap())).collect();
    set.insert(rankdeck_proto::secret::GroupSecret::VARIABLE.to_owned());
    set.insert(rankdeck_proto::process::HIDDEN.to_owned());
    let text = read("docs/EVENTS.md");
    let table = text.split("## Environment of a rank").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: String = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split('`').next().unwrap().to_owned() + " ")
        .collect();
    assert_eq!(set, variables(&rows));
}

/// Variables that only our own processes and tests hand to each other.
const INTERNAL: [&str; 5] = [
    "RANKDECK_AGENT_TIMING",
    "RANKDECK_FIRST_PYTHON",
    "RANKDECK_HOOK_PID",
    "RANKDECK_STORE_FD",
    "RANKDECK_TEST_PANIC",
];

/// HELP-1
#[test]
fn every_variable_that_is_read_is_documented() {
    let manual = crate::support::rankdeck().args(["man"]).output().unwrap();
    let documents = read("docs/EVENTS.md") + &String::from_utf8_lossy(&manual.stdout).replace("\\fB", "");
    let known = variables(&documents);
    let mut folders = vec![repository().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.contains("test") || path.extension().is_none_or(|end| end != "rs" && end != "py") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for variable in variables(text.split("#[cfg(test)]").next().unwrap()) {
                let is_known = known.contains(&variable) || INTERNAL.contains(&variable.as_str());
                // Set by the build script for the compiler.
                let is_built = variable == "RANKDECK_VERSION" || variable == "RANKDECK_COMMIT";
                assert!(is_known || is_built, "{variable} of {} is documented nowhere", path.display());
            }
        }
    }
}

#[test]
fn the_functions_of_the_client_are_those_of_the_document() {
    let client = rankdeck_agent::client::SOURCE;
    let text = read("docs/EVENTS.md");
    for function in ["report", "eval", "checkpoint", "histogram", "image", "should_stop", "lost"] {
        assert!(client.contains(&format!("\ndef {function}(")), "{function}");
        assert!(text.contains(&format!("| `{function}(")), "docs/EVENTS.md lacks {function}");
    }
    let output = crate::support::rankdeck().arg("client").output().unwrap();
    assert!(output.status.success() && output.stdout == client.as_bytes());
}

/// Two ranks at paces of their own that import the client as rankdeck gives it.
const SCRIPT: &str = "import os, sys, time, rankdeck
steps = 0
for i in range(40):
    time.sleep(0.01 * (1 + int(os.environ['RANK'])))
    steps += 8
    rankdeck.report(steps, returns=float(i), loss=1 / (i + 1))
rankdeck.eval([1.0, 3.0])
rankdeck.checkpoint('last.pt')
";

#[test]
fn a_script_with_the_client_shows_totals_evaluations_and_checkpoints() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let program = bench.write("train.py", SCRIPT);
    let text = format!("[run]\nname = \"client\"\n[launch]\ncommand = [\"python3\", {program:?}]\n");
    let experiment = bench.write("experiment.toml", &text);
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.told());
    let progress = console.all("progress");
    let last = progress.last().unwrap();
    assert_eq!((&last["env_step"], &last["episodes"]), (&json!(640), &json!(80)), "{last}");
    assert_eq!((&last["consistent"], &last["reduced"]), (&json!(true), &json!(false)));
    assert_eq!(console.all("eval")[0]["return_mean"], 2.0);
    assert_eq!(console.all("checkpoint").len(), 1);
}

#[test]
fn a_wrong_event_is_shown_with_its_rank_and_the_reason() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let program = bench.write(
        "train.py",
        "import os, socket\n\
         agent = socket.socket(socket.AF_UNIX)\nagent.connect(os.environ['RANKDECK_EVENTS'])\n\
         agent.sendall(b'{\"kind\":\"hello\",\"rank\":0,\"generation\":0}\\n{\"kind\":\"eval\"}\\n')\n\
         print('answer', agent.recv(9999).decode(), flush=True)\n",
    );
    let text = format!("[run]\nname = \"wrong\"\n[launch]\ncommand = [\"python3\", {program:?}]\n");
    let experiment = bench.write("experiment.toml", &text);
    let output = crate::support::rankdeck()
        .args(["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()])
        .args(["--headless", "--logs"])
        .current_dir(bench.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("notice of local0: rank 0: event refused: `eval`: missing field"), "{shown}");
    assert!(shown.contains("answer {\"kind\":\"refused\",\"line\":2,"), "{shown}");
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
    use rankdeck_proto::message::{
        Counters, Evaluation, Exception, FailureKind, FinishReason, LoggedHistogram, LoggedImage, RankEvent,
    };
    use rankdeck_types::ids::{Generation, Rank};
    let text = read("docs/EVENTS.md");
    let events = [
        RankEvent::Hello { rank: Rank(0), generation: Generation(0) },
        RankEvent::Joined { world_size: 1, backend: String::new(), device: String::new() },
        RankEvent::Counters(Counters { sum: true, ..Counters::default() }),
        RankEvent::Totals(Counters { sum: true, ..Counters::default() }),
        RankEvent::Scalars {
            train_iter: 0,
            env_step: 0,
            values: Default::default(),
            not_finite: [("loss".into(), 1)].into(),
        },
        RankEvent::Histogram(LoggedHistogram { skipped: 1, ..LoggedHistogram::default() }),
        RankEvent::Image(LoggedImage { skipped: 1, ..LoggedImage::default() }),
        RankEvent::Eval(Evaluation::default()),
        RankEvent::Checkpoint { path: String::new(), env_step: 0, train_iter: 0, reason: String::new() },
        RankEvent::Fingerprint { train_iter: 0, update: 0, values: Vec::new(), equal: true },
        RankEvent::Frame(Box::default()),
        RankEvent::Error {
            message: String::new(),
            hint: String::new(),
            usage: false,
            failure: Some(FailureKind::Other),
        },
        RankEvent::Exception(Exception { failure: Some(FailureKind::Other), ..Exception::default() }),
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
            | RankEvent::Histogram(_)
            | RankEvent::Image(_)
            | RankEvent::Eval(_)
            | RankEvent::Checkpoint { .. }
            | RankEvent::Fingerprint { .. }
            | RankEvent::Frame(_)
            | RankEvent::Error { .. }
            | RankEvent::Exception(_)
            | RankEvent::Finished { .. }
            | RankEvent::Unknown => {}
        }
        let event = serde_json::to_value(event).unwrap();
        let kind = event["kind"].as_str().unwrap().to_string();
        let mut fields: BTreeSet<String> =
            event.as_object().unwrap().keys().filter(|name| *name != "kind").cloned().collect();
        let begin = format!("| `{kind}` | ");
        let row = text.lines().find_map(|line| line.strip_prefix(&begin));
        let row = row.unwrap_or_else(|| panic!("docs/EVENTS.md lacks the kind {kind}"));
        let told = match row.split(" | ").next().unwrap() {
            counters if counters.contains("the counters below") => {
                let table =
                    text.split("\nCounters are cumulative").nth(1).unwrap().split("\n\n").nth(1).unwrap();
                table
                    .lines()
                    .filter_map(|row| Some(row.strip_prefix("| `")?.split('`').next()?.to_owned()))
                    .collect()
            }
            evaluation if evaluation.contains("an evaluation below") => {
                quoted(text.split("\nAn evaluation has ").nth(1).unwrap().split("`. ").next().unwrap())
            }
            cell => quoted(cell),
        };
        if let RankEvent::Finished { .. } = serde_json::from_value(event.clone()).unwrap() {
            fields.extend(["stop_value", "budget", "stopped"].map(str::to_owned));
        }
        assert_eq!(told, fields, "docs/EVENTS.md, {kind}: left is what it says");
    }
}

/// What stands between backticks, but not in brackets.
fn quoted(text: &str) -> BTreeSet<String> {
    let mut depth = 0;
    let bare: String = text
        .chars()
        .filter(|c| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            depth == 0
        })
        .collect();
    bare.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_kind_of_failure_is_listed() {
    use rankdeck_proto::message::FailureKind;
    let text = read("docs/EVENTS.md");
    let table = text.split("| `failure` |").nth(1).unwrap().split("\n\n").next().unwrap();
    let told = table.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let told: Vec<FailureKind> = told.map(|word| serde_json::from_value(json!(word)).unwrap()).collect();
    // Words that no build knows are read as `other`, too, so the last one stands for itself.
    let (last, rest) = told.split_last().unwrap();
    assert!(*last == FailureKind::Other && !rest.contains(last), "{told:?}");
    for kind in &told {
        // A new kind does not compile until it stands here.
        match kind {
            FailureKind::Connection
            | FailureKind::Mismatch
            | FailureKind::Rendezvous
            | FailureKind::PortTaken
            | FailureKind::DiskFull
            | FailureKind::OutOfMemory
            | FailureKind::GpuFailed
            | FailureKind::Environment
            | FailureKind::Configuration
            | FailureKind::Diverged
            | FailureKind::Other => {}
        }
    }
    assert_eq!(told.len(), 11);
}

#[test]
fn the_status_page_is_laid_out_as_the_document_says() {
    use rankdeck_proto::message::Phase;
    use rankdeck_proto::status_page::{Dtype, Op, PAGE_BYTES, VERSION, Writer, tag};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut page = Writer::create(&path, 3, 7).unwrap();
    page.phase(Phase::Learn);
    page.update(|body| {
        (body.train_iter, body.env_step, body.samples, body.episodes) = (11, 12, 13, 14);
        (body.updates, body.done, body.total) = (15, 16, 17);
    });
    page.site(99, || "train.py:20".into());
    page.enter(Op::Broadcast, tag("grad"), 18, 19, Dtype::F64, 99);
    page.leave();
    page.enter(Op::AllReduce, tag("grad"), 21, 22, Dtype::F32, 99);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), PAGE_BYTES);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let text = read("docs/EVENTS.md");
    let row = |word: &str, meaning: &str| {
        let row = format!("| {word} | {meaning}");
        assert!(text.contains(&row), "docs/EVENTS.md does not have the row {row}");
    };
    row("0", "the eight bytes `rankdeck`");
    assert_eq!(&bytes[..8], b"rankdeck");
    row("1", &format!("version of the layout: {VERSION}"));
    row("2, 3, 4", "rank, generation, pid");
    assert_eq!(words[1..5], [VERSION, 3, 7, u64::from(std::process::id())]);
    row("8", "sequence lock");
    assert!(words[8] > 0 && words[8].is_multiple_of(2));
    row("9", "phase: 0 init, 1 rendezvous, 2 rollout, 3 learn");
    assert_eq!(words[9], 3);
    row("13", "training iteration");
    row("14, 15, 16", "this rank's environment steps, samples, episodes");
    row("17", "optimiser updates");
    row("18, 19", "number of the collective entered last, and left last");
    assert_eq!(words[13..20], [11, 12, 13, 14, 15, 2, 1]);
    row("20", "chain hash of the first group");
    let grad = u64::from_le_bytes(*b"grad\0\0\0\0");
    let chain = |chain: u64, call: [u64; 7]| {
        call.iter().fold(chain, |chain, word| (chain ^ word).wrapping_mul(0x0100_0000_01b3))
    };
    let first = chain(0, [2, grad, 0, 18, 19, 3, 0]);
    let second = chain(first, [1, grad, 0, 21, 22, 2, 0]);
    assert_eq!(words[20], second);
    row("23, 24", "how much of the phase is done, and how much there is to do");
    assert_eq!(words[23..25], [16, 17]);
    row("64", "ring of the latest 64 collectives, 15 words each");
    let call = &words[64 + 2 * 15..64 + 3 * 15];
    assert_eq!(
        (&call[..7], &call[8..]),
        (&[2, 1, grad, 0, 21, 22, 2][..], &[0, 99, 0, 2, second, 11, 0][..])
    );
    row("1024", "table of 16 groups, 8 words each");
    let world = u64::from_le_bytes(*b"world\0\0\0");
    assert_eq!(words[1024..1032], [world, 0, 0, 2, 1, second, 2, 0]);
    row("1152", "ring of the latest 128 iterations, 5 words each");
    assert_eq!(words[1152 + 11 * 5..1152 + 11 * 5 + 3], [11, 0, 0]);
    row("1792", "table of 32 call sites, 8 words each");
    assert_eq!((words[1792], &bytes[1793 * 8..1793 * 8 + 11]), (99, &b"train.py:20"[..]));
}
