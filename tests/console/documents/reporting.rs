//! docs/reporting.md: its example is a program that works, and its tables are those of the code.

use super::{check_parts, read, repository, table};
use crate::support::{Bench, Console};
use rankdeck_proto::message::{
    Counters, DeadChild, Evaluation, Exception, Exit, FailureKind, FinishReason, InnerRank, LoggedHistogram,
    LoggedImage, Membership, RankEvent,
};
use rankdeck_types::ids::{Generation, Rank};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn report_events_example_shows_counters_and_evaluations() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let program = repository().join("examples/report_events.py");
    let command = ["python3", program.to_str().unwrap()];
    let experiment = bench
        .write("experiment.toml", &format!("[run]\nname = \"events\"\n[launch]\ncommand = {command:?}\n"));
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    let status = console.finish(120);
    assert_eq!(status.code(), Some(0), "{}", console.transcript());
    let progress = console.all("progress");
    let last = progress.last().unwrap();
    assert_eq!((&last["env_step"], &last["episodes"]), (&json!(320), &json!(40)), "{last}");
    assert!(progress.iter().all(|line| line["consistent"] == true), "{progress:?}");
    let means: Vec<Value> = console.all("eval").iter().map(|line| line["return_mean"].clone()).collect();
    assert_eq!(means, [json!(10.0), json!(20.0)]);
}

/// Names of variables in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let ours = |word: &&str| word.starts_with("RANKDECK_") && !word.ends_with('_');
    words.filter(ours).map(str::to_owned).collect()
}

/// Variables of a rank besides those of torchrun.
const VARIABLES: &[(&str, &str)] = &[
    ("RANKDECK_RUN", "name of the run"),
    ("RANKDECK_GENERATION", "generation, from 0; each restart adds one"),
    ("RANKDECK_NODE", "index of the host in `hosts.toml`"),
    ("RANKDECK_RANK", "index of the rank; same as `RANK`"),
    ("RANKDECK_SEED", "`run.seed`, the same on all ranks"),
    ("RANKDECK_RANK_SEED", "a seed of this rank alone, from 0 to 2147483647; follows from `run.seed`"),
    ("RANKDECK_RUN_DIR", "run directory on this host"),
    ("RANKDECK_EVENTS", "path of the event socket"),
    ("RANKDECK_STATUS_PAGE", "path of this rank's status page"),
    (
        "RANKDECK_DEVICE",
        "`cpu`, or `cuda:INDEX` among the visible GPUs. A rank on a MIG instance sees only that instance: `cuda:0`, with `LOCAL_RANK` 0",
    ),
    (
        "RANKDECK_CPUS",
        "CPUs that the rank is bound to, such as `0-3,8`; set only with `launch.bind = \"auto\"`",
    ),
    ("RANKDECK_RESUME", "checkpoint to resume from; set only if the generation resumes"),
    (
        "RANKDECK_JOIN",
        "set only for a rank that joins a running group: the latest known change of its members",
    ),
    ("RANKDECK_STORE", "`ADDRESS:PORT` at which that rank joins"),
    ("RANKDECK_CHECK_COLLECTIVES", "`1` if every collective is compared across ranks before it starts"),
    ("RANKDECK_FINGERPRINTS", "`0` if `[watch] fingerprint_weights` is off"),
    ("RANKDECK_DRILL", "`1` in a run of [`rankdeck drill`](runs.md#drill)"),
    ("RANKDECK_SECRET", "shared secret of the ranks, only for programs that use it; do not disclose it"),
    (
        "RANKDECK_HIDDEN",
        "names of variables whose values came from the console (`pass_env`); no screen shows them",
    ),
    ("RANKDECK_AGENT", "the agent that started the rank"),
];

#[test]
fn rank_variables_are_the_documented_ones() {
    let code = ["src/agent/supervise/launch_prep.rs", "src/types/plan/environment.rs"].map(read);
    let mut set: BTreeSet<String> =
        code.iter().flat_map(|code| variables(code.split("#[cfg(test)]").next().unwrap())).collect();
    set.insert(rankdeck_proto::secret::GroupSecret::VARIABLE.to_owned());
    set.insert(rankdeck_proto::process::HIDDEN.to_owned());
    set.insert(rankdeck_types::template::SEED_VARIABLE.to_owned());
    set.insert(rankdeck_types::template::RANK_SEED_VARIABLE.to_owned());
    assert_eq!(set, VARIABLES.iter().map(|(name, _)| (*name).to_owned()).collect());
}

/// Variables that only our own processes and tests use.
const INTERNAL: [&str; 5] = [
    "RANKDECK_AGENT_TIMING",
    "RANKDECK_FIRST_PYTHON",
    "RANKDECK_HOOK_PID",
    "RANKDECK_STORE_FD",
    "RANKDECK_TEST_PANIC",
];

#[test]
fn help_1_every_variable_that_is_read_is_documented() {
    let manual = crate::support::rankdeck().args(["man"]).output().unwrap();
    let documents = read("docs/reporting.md") + &String::from_utf8_lossy(&manual.stdout).replace("\\fB", "");
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
                assert!(is_known || is_built, "{variable} of {} is not documented", path.display());
            }
        }
    }
}

#[test]
fn client_functions_are_documented_and_printed() {
    let client = rankdeck_agent::client::SOURCE;
    let text = read("docs/reporting.md");
    for rest in client.split("\ndef ").skip(1).filter(|rest| !rest.starts_with('_')) {
        let (name, _) = rest.split_once('(').unwrap();
        assert!(text.contains(&format!("| `{name}(")), "docs/reporting.md lacks {name}");
    }
    let output = crate::support::rankdeck().arg("client").output().unwrap();
    assert!(output.status.success() && output.stdout == client.as_bytes());
}

/// Two ranks of different speeds that import the client from `PYTHONPATH`.
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
fn client_reports_totals_evaluations_and_checkpoints() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let program = bench.write("train.py", SCRIPT);
    let text = format!("[run]\nname = \"client\"\n[launch]\ncommand = [\"python3\", {program:?}]\n");
    let experiment = bench.write("experiment.toml", &text);
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let progress = console.all("progress");
    let last = progress.last().unwrap();
    assert_eq!((&last["env_step"], &last["episodes"]), (&json!(640), &json!(80)), "{last}");
    assert_eq!((&last["consistent"], &last["reduced"]), (&json!(true), &json!(false)));
    assert_eq!(console.all("eval")[0]["return_mean"], 2.0);
    assert_eq!(console.all("checkpoint").len(), 1);
}

#[test]
fn invalid_event_is_refused_and_reported() {
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
    let is_notice = |line: &&str| line.contains("local0") && line.contains("`eval`");
    assert!(shown.lines().any(|line| is_notice(&line)), "{shown}");
    assert!(shown.contains("answer {\"kind\":\"refused\",\"line\":2,"), "{shown}");
}

/// One event of each kind, with every field.
fn events() -> Vec<RankEvent> {
    vec![
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
        RankEvent::Eval(Evaluation { sampled: true, ..Evaluation::default() }),
        RankEvent::Checkpoint { path: String::new(), env_step: 0, train_iter: 0, reason: String::new() },
        RankEvent::Fingerprint { train_iter: 0, update: 0, values: Vec::new(), equal: true },
        RankEvent::Frame(Box::default()),
        RankEvent::Error {
            message: String::new(),
            hint: String::new(),
            usage: false,
            failure: Some(FailureKind::Other),
        },
        RankEvent::Exception(Exception {
            failure: Some(FailureKind::Other),
            survivable: true,
            cause: "KeyError: 'x'".into(),
            child: Some(DeadChild { pid: 1, name: String::new(), exit: Exit::Code { code: 1 } }),
            ..Exception::default()
        }),
        RankEvent::InnerRank(InnerRank::default()),
        RankEvent::Membership(Membership { store: Some(String::new()), ..Membership::default() }),
        RankEvent::Survived,
        RankEvent::Returned,
        RankEvent::Finished { reason: FinishReason::Budget },
    ]
}

/// Who sends an event. A new kind does not compile until it is listed here.
fn sender(event: &RankEvent) -> &'static str {
    match event {
        RankEvent::Hello { .. } => "every rank, first",
        RankEvent::Joined { .. } => "every rank, once its process group is up",
        RankEvent::Counters(_) => "every rank, for the same iterations; its own counters",
        RankEvent::Totals(_) => "rank 0, for the same iterations; sums over all ranks",
        RankEvent::Scalars { .. }
        | RankEvent::Histogram(_)
        | RankEvent::Image(_)
        | RankEvent::Eval(_)
        | RankEvent::Fingerprint { .. } => "rank 0",
        RankEvent::Checkpoint { .. } => "rank 0, once the file is complete",
        RankEvent::Frame(_) => "rank 0, during an evaluation",
        RankEvent::Error { .. } => "a rank that is about to fail",
        RankEvent::Exception(_) => {
            "a rank that ends with an uncaught exception; in Python, the hook sends it"
        }
        RankEvent::InnerRank(_) => {
            "a process below the rank that calls `init_process_group` for a group of its own; in Python, the hook sends it"
        }
        RankEvent::Membership(_) => {
            "the lowest rank of the built-in trainer, when ranks were lost (`on_rank_loss = \"shrink\"`) or have joined"
        }
        RankEvent::Survived => {
            "a rank that continues after its `exception` (a shell started another program); in Python, the hook sends it"
        }
        RankEvent::Returned => {
            "a rank whose main program has returned; in Python, the hook sends it before exit handlers run"
        }
        RankEvent::Finished { .. } => "every rank, before it exits with code 0",
        RankEvent::Unknown => "",
    }
}

/// Notes on fields, by kind.
const NOTES: &[(&str, &str, &str)] = &[
    ("scalars", "values", "name to number"),
    ("scalars", "not_finite", "optional: name to number of values that were not finite"),
    ("histogram", "edges", "bin borders, ascending"),
    ("histogram", "counts", "values per bin"),
    ("histogram", "skipped", "optional: histograms and images that were not sent"),
    ("image", "data", "PNG or GIF in base64"),
    ("image", "skipped", "optional"),
    ("eval", "sampled", "optional: `true` if actions were taken as in training"),
    ("checkpoint", "reason", "`latest`, `best`, `stop`, ..."),
    ("fingerprint", "values", "one hexadecimal string per rank"),
    ("frame", "ended", "finished episodes of this evaluation"),
    ("frame", "skipped", "frames that were not sent"),
    ("error", "usage", "`true` for a configuration error"),
    ("error", "failure", "optional, see below"),
    ("exception", "bases", "names of its base classes"),
    ("exception", "errno", "number or null"),
    ("exception", "at", "`FILE:LINE`"),
    ("exception", "thread", "empty for the main thread"),
    (
        "exception",
        "survivable",
        "optional: `true` if the exit code decides, because the exception was caught and shown, or ended a child program",
    ),
    ("exception", "cause", "optional: class and message of the first exception of its chain"),
    ("exception", "child", "optional: `pid`, `name` and `exit` of the child whose death it reports"),
    ("inner_rank", "rank", "number or null"),
    ("inner_rank", "world_size", "number or null"),
    ("inner_rank", "at", "`FILE:LINE`"),
    ("membership", "ranks", "the members from now on"),
    ("membership", "steps_lost", "global steps that the totals do not contain any more"),
    ("membership", "store", "optional: `ADDRESS:PORT` at which a rank may join from now on"),
    ("finished", "reason", "`stop_value`, `budget` or `stopped`"),
];

/// Meanings of the counters. The order is that of the table.
const COUNTERS: [(&str, &str); 9] = [
    ("train_iter", "training iteration at which the counters were taken"),
    ("env_step", "environment steps, after frame skip"),
    ("samples", "transitions available for training"),
    ("episodes", "finished training episodes"),
    ("duration_s", "seconds spent collecting"),
    ("updates", "optional: optimizer updates"),
    ("returns", "optional: `sum`, `count`, `min`, `max` of returns since the last report"),
    ("return_last_100", "optional, totals only: mean return of the last 100 episodes"),
    ("sum", "optional: `true` if no rank sends totals; the console then sums the ranks' latest counters"),
];

/// What a failure is. A new kind does not compile until it is listed here.
fn meaning(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Connection => {
            "another rank is gone or did not join a collective in time; that rank is the culprit"
        }
        FailureKind::Mismatch => "ranks issued different collectives",
        FailureKind::Rendezvous => "the process group did not form",
        FailureKind::PortTaken => "the port is in use by another process",
        FailureKind::DiskFull => "no space left on the disk",
        FailureKind::OutOfMemory => "out of memory, on the host or the GPU",
        FailureKind::GpuFailed => "the GPU or its driver failed",
        FailureKind::Environment => "an environment of this rank failed",
        FailureKind::Configuration => "a user error, as with `usage`",
        FailureKind::Diverged => "training diverged (NaN or Inf)",
        FailureKind::Other => "any other failure of this rank",
    }
}

const FAILURES: [FailureKind; 11] = [
    FailureKind::Connection,
    FailureKind::Mismatch,
    FailureKind::Rendezvous,
    FailureKind::PortTaken,
    FailureKind::DiskFull,
    FailureKind::OutOfMemory,
    FailureKind::GpuFailed,
    FailureKind::Environment,
    FailureKind::Configuration,
    FailureKind::Diverged,
    FailureKind::Other,
];

/// Field names of an event in the order in which it is written.
fn fields(event: &Value, text: &str) -> Vec<String> {
    let mut names: Vec<String> = event.as_object().unwrap().keys().cloned().collect();
    names.retain(|name| name != "kind");
    names.sort_by_key(|name| text.find(&format!("\"{name}\":")));
    names
}

/// A row of the table of kinds.
fn kind_row(event: &RankEvent) -> [String; 3] {
    let text = serde_json::to_string(event).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let kind = value["kind"].as_str().unwrap();
    let note = |name: &str| NOTES.iter().find(|(of, field, _)| (*of, *field) == (kind, name));
    let cells = fields(&value, &text).into_iter().map(|name| match note(&name) {
        Some((_, _, note)) => format!("`{name}` ({note})"),
        None => format!("`{name}`"),
    });
    let cells = match event {
        RankEvent::Counters(_) | RankEvent::Totals(_) => "the counters below".to_owned(),
        RankEvent::Survived | RankEvent::Returned => "none".to_owned(),
        _ => cells.collect::<Vec<_>>().join(", "),
    };
    [format!("`{kind}`"), cells, sender(event).to_owned()]
}

#[test]
fn reporting_tables_are_current() {
    let code = |name: &str| format!("`{name}`");
    let counters = serde_json::to_value(Counters { sum: true, ..Counters::default() }).unwrap();
    let documented: BTreeSet<&str> = COUNTERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(counters.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(), documented);
    let failures = FAILURES
        .map(|kind| [code(serde_json::to_value(kind).unwrap().as_str().unwrap()), meaning(kind).to_owned()]);
    let version = format!("layout version: {}", rankdeck_proto::status_page::VERSION);
    let words = PAGE.map(|(word, meaning)| [word.to_owned(), meaning.replace("VERSION", &version)]);
    let meanings = |rows: &[(&str, &str)]| -> Vec<[String; 2]> {
        rows.iter().map(|(name, meaning)| [code(name), (*meaning).to_owned()]).collect()
    };
    let example = format!("```python\n{}```\n", read("examples/report_events.py"));
    let parts = [
        ("variables", table(["variable", "meaning"], meanings(VARIABLES))),
        ("example", example),
        ("kinds", table(["kind", "fields", "sent by"], events().iter().map(kind_row))),
        ("failures", table(["`failure`", "meaning"], failures)),
        ("counters", table(["field", "meaning"], meanings(&COUNTERS))),
        ("page", table(["word", "content"], words)),
    ];
    check_parts("docs/reporting.md", &parts);
}

/// The status page, in words of 64 bits.
const PAGE: [(&str, &str); 26] = [
    ("0", "the eight bytes `rankdeck`; written last"),
    ("1", "VERSION"),
    ("2, 3, 4", "rank, generation, pid"),
    ("5", "writer: 1 for the Python hook, otherwise 0"),
    ("6, 7", "stack dumps requested by the agent, dumps written"),
    ("8", "sequence lock: odd while the writer changes the page"),
    (
        "9",
        "phase: 0 init, 1 rendezvous, 2 rollout, 3 learn, 4 sync, 5 eval, 6 checkpoint, 7 teardown, 8 done",
    ),
    ("10", "start of the phase"),
    ("11", "progress within the phase: a number that changes"),
    ("12", "heartbeat: last write to the page"),
    ("13", "training iteration"),
    ("14, 15, 16", "this rank's environment steps, samples, episodes"),
    ("17", "optimizer updates"),
    ("18, 19", "number of the last collective entered, and of the last one left, over all groups"),
    ("20", "chain hash of the first group"),
    (
        "21, 22",
        "activity and its start: 0 none, 1 env reset, 2 env step, 3 act, 4 sample, 5 forward, 6 backward, 7 optimize, 8 save, 9 load, 10 compile",
    ),
    ("23, 24", "amount of the phase that is done, and its total; 0 if unknown"),
    ("25", "time spent in collectives"),
    ("26 to 34", "time spent in each phase, without collectives"),
    (
        "35, 36, 37",
        "time that a script has waited for its input, call site of the latest wait, and its kind: 1 data loader, 2 environments",
    ),
    (
        "38",
        "changes of the members of the first group since the launch, plus 2^32 times its members; 0 if unknown",
    ),
    ("64", "ring of the last 64 collectives, 15 words each; slot = number modulo 64"),
    ("1024", "table of 16 groups, 8 words each; the first is the group of all ranks, `world`"),
    ("1152", "ring of the last 128 iterations, 5 words each; slot = iteration modulo 128"),
    ("1792", "table of 32 call sites, 8 words each"),
    ("2048", "ring of the last 64 weight fingerprints, 10 words each; slot = count modulo 64"),
];

#[test]
fn status_page_layout_matches_the_table() {
    use rankdeck_proto::message::Phase;
    use rankdeck_proto::status_page::{CollectiveOp, Dtype, PAGE_BYTES, StatusPageWriter, VERSION, tag};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let mut page = StatusPageWriter::create(&path, 3, 7).unwrap();
    page.phase(Phase::Learn);
    page.update(|body| {
        (body.train_iter, body.env_step, body.samples, body.episodes) = (11, 12, 13, 14);
        (body.updates, body.done, body.total) = (15, 16, 17);
    });
    page.site(99, || "train.py:20".into());
    page.enter(CollectiveOp::Broadcast, tag("grad"), 18, 19, Dtype::F64, 99);
    page.leave();
    page.enter(CollectiveOp::AllReduce, tag("grad"), 21, 22, Dtype::F32, 99);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), PAGE_BYTES);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(&bytes[..8], b"rankdeck");
    assert_eq!(words[1..5], [VERSION, 3, 7, u64::from(std::process::id())]);
    assert!(words[8] > 0 && words[8].is_multiple_of(2));
    assert_eq!(words[9], 3);
    assert_eq!(words[13..20], [11, 12, 13, 14, 15, 2, 1]);
    let grad = u64::from_le_bytes(*b"grad\0\0\0\0");
    let chain = |chain: u64, call: [u64; 7]| {
        call.iter().fold(chain, |chain, word| (chain ^ word).wrapping_mul(0x0100_0000_01b3))
    };
    let first = chain(0, [2, grad, 0, 18, 19, 3, 0]);
    let second = chain(first, [1, grad, 0, 21, 22, 2, 0]);
    assert_eq!(words[20], second);
    assert_eq!(words[23..25], [16, 17]);
    let call = &words[64 + 2 * 15..64 + 3 * 15];
    assert_eq!(
        (&call[..7], &call[8..]),
        (&[2, 1, grad, 0, 21, 22, 2][..], &[0, 99, 0, 2, second, 11, 0][..])
    );
    let world = u64::from_le_bytes(*b"world\0\0\0");
    assert_eq!(words[1024..1032], [world, 0, 0, 2, 1, second, 2, 0]);
    assert_eq!(words[1152 + 11 * 5..1152 + 11 * 5 + 3], [11, 0, 0]);
    assert_eq!((words[1792], &bytes[1793 * 8..1793 * 8 + 11]), (99, &b"train.py:20"[..]));
}
