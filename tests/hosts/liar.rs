//! A lying host over real SSH: its messages start nothing elsewhere, and its texts are cleaned before they
//! reach a terminal.
//!
//! The host runs commands correctly, but reports another socket as its agent's. A proxy on that socket
//! changes the messages of the agent.

use crate::support::hosts::Loopback;
use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Console, stripped_console, wait_until};
use rankdeck_proto::frame;
use rankdeck_proto::message::{AgentMessage, RankEvent, Record, RecordEvent, Survivor};
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_types::ids::{Generation, Rank};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The shell of the lying host.
const SHELL: &str = r#"
import json, os, subprocess, sys
place = os.path.dirname(os.path.abspath(__file__))
command = os.environ["SSH_ORIGINAL_COMMAND"]
if os.environ["SSH_CONNECTION"].split()[3] != open(place + "/port").read():
    os.execv("/bin/sh", ["sh", "-c", command])
child = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE)
for line in child.stdout:
    word, _, rest = line.partition(b" ")
    if word == b"RANKDECK-AGENT":
        reply = json.loads(rest)
        if reply.get("socket"):
            with open(place + "/new", "w") as file:
                file.write(reply["socket"])
            os.replace(place + "/new", place + "/socket")
            reply["socket"] = place + "/liar"
        line = b"RANKDECK-AGENT " + json.dumps(reply).encode() + b"\n"
    elif word in (b"RANKDECK-LIST", b"RANKDECK-PROBE") and os.path.exists(place + "/words"):
        words = open(place + "/words").read()

        def lie(value, key=""):
            if isinstance(value, dict):
                return {name: lie(inner, name) for name, inner in value.items()}
            if isinstance(value, list):
                return [lie(inner, key) for inner in value]
            spared = ("run", "state", "host", "hosts", "kind", "outcome", "reason_code", "socket", "name_of", "home", "workdir", "cache")
            return words if isinstance(value, str) and key not in spared else value

        line = word + b" " + json.dumps(lie(json.loads(rest))).encode() + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(child.wait())
"#;

/// Escape sequences, and lines that imitate rankdeck's.
const WORDS: &str = "x\u{1b}]0;title\u{7}\u{1b}[2J\nstop verified: by the host\rrun finished: completed\n\u{9b}31m\u{202e}cleaned";
/// What is left of the last line of [`WORDS`].
const LEFT: &str = "cleaned";

/// Replaces a message with frames.
type Lie = Box<dyn FnMut(Value) -> Vec<Vec<u8>> + Send>;

struct Liar {
    hosts: Loopback,
    place: tempfile::TempDir,
    lie: Arc<Mutex<Lie>>,
    /// What consoles sent to the agent.
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Liar {
    /// Starts two hosts, of which `node` lies; `None` if the test is skipped.
    fn start(node: usize) -> Option<Liar> {
        let place = tempfile::Builder::new().prefix("rdliar").tempdir().unwrap();
        let shell = place.path().join("shell.py");
        std::fs::write(&shell, SHELL).unwrap();
        let hosts =
            Loopback::start_with(2, 1, &format!("ForceCommand python3 {}", shell.display()))?.with_agent();
        std::fs::write(place.path().join("port"), hosts.servers[node].port.to_string()).unwrap();
        let lie: Arc<Mutex<Lie>> = Arc::new(Mutex::new(Box::new(|message| vec![framed(&message)])));
        let listener = UnixListener::bind(place.path().join("liar")).unwrap();
        let (real, rules) = (place.path().join("socket"), Arc::clone(&lie));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&sent);
        std::thread::spawn(move || {
            for console in listener.incoming() {
                let agent = UnixStream::connect(std::fs::read_to_string(&real).unwrap());
                // The agent has ended; the console notices.
                let (Ok(console), Ok(agent)) = (console, agent) else { continue };
                let orders = (console.try_clone().unwrap(), agent.try_clone().unwrap());
                let log = Arc::clone(&log);
                std::thread::spawn(move || pass(orders.0, orders.1, &log));
                let rules = Arc::clone(&rules);
                std::thread::spawn(move || deceive(agent, console, &rules));
            }
        });
        Some(Liar { hosts, place, lie, sent })
    }

    fn lies(&self, lie: impl FnMut(Value) -> Vec<Vec<u8>> + Send + 'static) {
        *self.lie.lock().unwrap() = Box::new(lie);
    }

    /// A file that the liar's command would create.
    fn pwned(&self) -> PathBuf {
        self.place.path().join("pwned")
    }

    fn experiment(&self, arguments: &[&str], more: &str) -> String {
        let program = rankdeck_testkit::repository("tests/programs/rank.py");
        let mut command = vec!["python3", "-u", program.to_str().unwrap()];
        command.extend(arguments);
        let text = format!(
            "[run]\nname = \"trusting\"\n[launch]\ncommand = {command:?}\nstop_grace_s = 3.0\n{more}"
        );
        self.hosts.bench.write("experiment.toml", &text).display().to_string()
    }

    /// Starts a run on both hosts.
    fn run(&self, arguments: &[&str], more: &str) -> (Console, String) {
        let file = self.experiment(arguments, more);
        let mut console = self.hosts.console(&["run", &file]);
        console.wait_kind("progress", 120);
        let run = console.seen[0]["run"].as_str().unwrap().to_owned();
        (console, run)
    }

    fn ranks(&self) -> usize {
        self.hosts.bench.rank_processes().iter().filter(|(_, command)| command.contains("rank.py")).count()
    }
}

fn framed(message: &Value) -> Vec<u8> {
    frame::encode(message).unwrap_or_default()
}

fn pass(mut from: UnixStream, mut to: UnixStream, log: &Mutex<Vec<u8>>) {
    let mut chunk = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        log.lock().unwrap().extend(&chunk[..count]);
        if to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn deceive(mut agent: UnixStream, mut console: UnixStream, lie: &Mutex<Lie>) {
    let mut decoder = frame::Decoder::default();
    let mut chunk = vec![0; 1 << 16];
    while let Ok(count @ 1..) = agent.read(&mut chunk) {
        decoder.push(&chunk[..count]);
        while let Some(message) = decoder.next_frame::<Value>().unwrap() {
            for bytes in (lie.lock().unwrap())(message) {
                if console.write_all(&bytes).is_err() {
                    return;
                }
            }
        }
    }
    let _ = console.shutdown(std::net::Shutdown::Both);
}

/// The launch in a message that has one.
fn spec_of(message: &mut Value) -> Option<&mut Value> {
    match message["kind"].as_str()? {
        "snapshot" => Some(&mut message["spec"]).filter(|spec| !spec.is_null()),
        "record" if message["event"]["event"] == "launched" => Some(&mut message["event"]["spec"]),
        _ => None,
    }
}

fn touch(file: &std::path::Path) -> Value {
    json!(["/bin/sh", "-c", format!("touch {}; sleep 1000", file.display())])
}

/// OWN-2: a command from one host is not started on another.
#[test]
fn own_2_command_of_lying_agent_is_not_started() {
    let Some(liar) = Liar::start(1) else { return };
    let (mut console, run) = liar.run(&["--iters", "1000000"], "");
    let pwned = liar.pwned();
    let command = touch(&pwned);
    liar.lies(move |mut message| {
        if let Some(spec) = spec_of(&mut message) {
            spec["plan"]["experiment"]["launch"]["command"] = command.clone();
        }
        vec![framed(&message)]
    });
    let before = liar.ranks();
    let output = liar.hosts.command(&["restart", &run, "--yes"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{output:?}");
    assert!(text.contains("hint: "), "{text}");
    assert_eq!((liar.ranks(), before), (2, 2));
    assert!(!pwned.exists());
    console.signal(libc::SIGINT);
    console.finish(120);
    assert!(!pwned.exists());
    wait_until("ranks end", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// SECRET-3: variables that only the agent's plan requests are not sent, although the whole run is on its host.
#[test]
fn secret_3_plan_of_lying_agent_gets_no_variable() {
    const VALUE: &str = "hush-5f3a90c1";
    let Some(mut liar) = Liar::start(0) else { return };
    let text = std::fs::read_to_string(&liar.hosts.hosts).unwrap();
    let first = &text[..text.rfind("[[host]]").unwrap()];
    liar.hosts.hosts = liar.hosts.bench.write("one.toml", first);
    let (mut console, run) = liar.run(&["--iters", "1000000"], "");
    console.signal(libc::SIGKILL);
    console.finish(120);
    let lies = Arc::new(Mutex::new(0));
    let count = Arc::clone(&lies);
    liar.lies(move |mut message| {
        if let Some(spec) = spec_of(&mut message) {
            let launch = &mut spec["plan"]["experiment"]["launch"];
            launch["pass_env"] = json!(["NEVER_NAMED"]);
            launch["env"]["OTHER"] = json!("x${ALSO_NEVER}y");
            // The console must be able to read the launch, else this test checks nothing.
            assert!(
                serde_json::from_value::<AgentMessage>(message.clone())
                    .is_ok_and(|message| message != AgentMessage::Unknown)
            );
            *count.lock().unwrap() += 1;
        }
        vec![framed(&message)]
    });
    let mut command = liar.hosts.command(&["restart", &run, "--yes"]);
    let output = command.env("NEVER_NAMED", VALUE).env("ALSO_NEVER", VALUE).output().unwrap();
    assert!(*lies.lock().unwrap() > 0, "the plan was not sent: {output:?}");
    let sent = String::from_utf8_lossy(&liar.sent.lock().unwrap()).into_owned();
    assert!(sent.contains("attach") && !sent.contains(VALUE), "{sent}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("NEVER_NAMED"), "{output:?}");
    for (pid, _) in liar.hosts.bench.rank_processes() {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environ).contains(VALUE));
    }
    liar.lies(|message| vec![framed(&message)]);
    let output = liar.hosts.command(&["stop", &run]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_until("ranks end", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// OWN-1: hosts from an agent get no link, folder or agent, and a stop is not verified.
#[test]
fn own_1_hosts_of_lying_agent_are_not_contacted() {
    let Some(liar) = Liar::start(1) else { return };
    let (mut console, run) = liar.run(&["--iters", "1000000"], "");
    console.signal(libc::SIGKILL);
    console.finish(120);
    let chosen = liar.place.path().join("chosen");
    let third = json!({"node_rank": 2, "host": {"name": "laptop", "address": "127.0.0.1", "transport": "local", "workdir": chosen, "nproc": 1}});
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    liar.lies(move |mut message| {
        if let Some(spec) = spec_of(&mut message) {
            let hosts = spec["plan"]["hosts"].as_array_mut().unwrap();
            let mut host = hosts[0].clone();
            for (key, value) in third["host"].as_object().unwrap() {
                host["host"][key] = value.clone();
            }
            host["node_rank"] = third["node_rank"].clone();
            hosts.push(host);
            let ranks = spec["plan"]["ranks"].as_array_mut().unwrap();
            ranks.push(json!({"rank": 2, "local_rank": 0, "node_rank": 2, "gpu": null}));
            spec["generation"] = json!(5);
            // The console must be able to read the launch, else this test checks nothing.
            assert!(
                serde_json::from_value::<AgentMessage>(message.clone())
                    .is_ok_and(|message| message != AgentMessage::Unknown)
            );
            *count.lock().unwrap() += 1;
        }
        vec![framed(&message)]
    });
    let output = liar.hosts.command(&["stop", &run]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(*seen.lock().unwrap() > 0, "the plan was not sent: {text}");
    assert!(!output.status.success() && text.contains("laptop"), "{text}");
    assert!(!chosen.exists());
    wait_until("both hosts stop", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// OWN-1: the console keeps its own launch when a host reports one of another console.
#[test]
fn own_1_launch_of_another_console_is_not_followed() {
    let Some(liar) = Liar::start(1) else { return };
    let (pwned, mut added) = (liar.pwned(), 0);
    let command = touch(&pwned);
    let mut launched = Value::Null;
    liar.lies(move |mut message| {
        if message["kind"] != "record" {
            return vec![framed(&message)];
        }
        message["seq"] = json!(message["seq"].as_u64().unwrap() + added);
        if message["event"]["event"] == "launched" {
            launched = message.clone();
        }
        let joined = message["event"]["said"]["kind"] == "joined" && added == 0;
        let mut frames = vec![framed(&message)];
        if joined {
            added = 1;
            let mut rival = launched.clone();
            rival["seq"] = json!(message["seq"].as_u64().unwrap() + 1);
            (rival["generation"], rival["event"]["spec"]["generation"]) = (json!(9), json!(9));
            rival["event"]["spec"]["plan"]["experiment"]["launch"]["command"] = command.clone();
            frames.push(framed(&rival));
        }
        frames
    });
    let file = liar.experiment(&["--iters", "1000000"], "[restart]\nmax_restarts = 1\nbackoff_s = 0.1\n");
    let mut console = liar.hosts.console(&["run", &file]);
    console.wait_for("a notice", 120, |line| {
        line["kind"] == "notice" && line.to_string().contains("generation 9")
    });
    let run = console.seen[0]["run"].as_str().unwrap().to_owned();
    let rank = console
        .wait_for("rank 0", 120, |line| line["kind"] == "rank" && line["rank"] == 0 && line["pid"] != 0);
    crate::support::kill(rank["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    // It neither launches over another console's generation nor reports its own as stopped there.
    let status = console.finish(120);
    let finished = console.seen.last().unwrap();
    assert_eq!((status.code(), &finished["proved"]), (Some(1), &json!(false)), "{finished}");
    assert_eq!(finished["unverified"], json!(["h1"]), "{finished}");
    assert!(
        console.all("run_started").iter().all(|line| line["generation"] == 0 && line["adopted"] == false)
    );
    assert!(!pwned.exists());
    liar.lies(|message| vec![framed(&message)]);
    let output = liar.hosts.command(&["stop", &run]).output().unwrap();
    assert!(output.status.success() && !pwned.exists(), "{output:?}");
    wait_until("ranks end", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// WIRE-1: an oversized frame ends its connection, and the stop is not reported as verified.
#[test]
fn wire_1_oversized_frame_ends_only_its_connection() {
    let Some(liar) = Liar::start(1) else { return };
    let (mut console, run) = liar.run(&["--iters", "1000000"], "[watch]\nlost_after_s = 3.0\n");
    liar.lies(|_| vec![u32::MAX.to_be_bytes().to_vec(), vec![b'x'; 1 << 20]]);
    console.wait_for("h1 is lost", 120, |line| {
        line["kind"] == "host" && line["node_rank"] == 1 && line["state"] != "ready"
    });
    console.wait_for_new("output of the other host", 120, |line| {
        line["kind"] == "progress" || line["kind"] == "log"
    });
    console.signal(libc::SIGKILL);
    console.finish(120);
    let output = liar.hosts.command(&["stop", &run]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && text.contains("h1"), "{text}");
    assert_eq!(liar.ranks(), 1, "{text}");
    liar.lies(|message| vec![framed(&message)]);
    let output = liar.hosts.command(&["stop", &run]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_until("ranks end", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// Replaces every text of a message with [`WORDS`] if the message is still valid, and names of values.
fn worded(message: &Value) -> Value {
    let mut worded = message.clone();
    let mut paths = Vec::new();
    texts(message, String::new(), &mut paths);
    for path in paths {
        // Other tests check identities.
        if path.ends_with("/kind") || path.ends_with("/event") || path.ends_with("/run") {
            continue;
        }
        let mut tried = worded.clone();
        *tried.pointer_mut(&path).unwrap() = json!(WORDS);
        let read = serde_json::from_value::<AgentMessage>(tried.clone());
        if read.is_ok_and(|message| readable(&message)) {
            worded = tried;
        }
    }
    worded
}

fn readable(message: &AgentMessage) -> bool {
    match message {
        AgentMessage::Unknown => false,
        AgentMessage::Snapshot { spec: Some(spec), .. } => spec.plan.flaw().is_none(),
        AgentMessage::Record(Record { event: RecordEvent::Launched { spec }, .. }) => {
            spec.plan.flaw().is_none()
        }
        AgentMessage::Record(record) => record.event != RecordEvent::Unknown,
        _ => true,
    }
}

fn texts(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(path),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| texts(value, format!("{path}/{at}"), found))
        }
        Value::Object(values) => values.iter().for_each(|(key, value)| {
            texts(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Records with further texts.
fn more_records() -> Vec<RecordEvent> {
    let rank_event = |event: Value| RecordEvent::Rank {
        rank: Rank(0),
        event: serde_json::from_value::<RankEvent>(event).unwrap(),
    };
    vec![
        RecordEvent::Notice { text: "x".into() },
        rank_event(
            json!({"kind": "checkpoint", "path": "x", "env_step": 1, "train_iter": 1, "reason": "best"}),
        ),
        rank_event(
            json!({"kind": "scalars", "train_iter": 1, "env_step": 1, "values": {WORDS: 1.0}, "not_finite": {WORDS: 1}}),
        ),
        rank_event(
            json!({"kind": "fingerprint", "train_iter": 1, "update": 1, "values": ["x", "y"], "equal": false}),
        ),
        rank_event(
            json!({"kind": "exception", "class": "x", "bases": ["x"], "message": "x", "at": "x", "thread": "x"}),
        ),
        rank_event(json!({"kind": "error", "message": "x", "hint": "x"})),
        RecordEvent::Metrics {
            rank: Rank(0),
            source: "x".into(),
            env_step: Some(1),
            values: [(WORDS.to_string(), 1.0)].into(),
            skipped: 0,
            not_finite: [(WORDS.to_string(), 1)].into(),
            spread: [(WORDS.to_string(), (0.0, 1.0))].into(),
            counter: Some(ShownCounter { unit: WORDS.into(), at: 1.0 }),
            progress: Some(ShownProgress {
                label: WORDS.into(),
                unit: WORDS.into(),
                ..ShownProgress::default()
            }),
        },
        RecordEvent::Stopped {
            survivors: vec![Survivor { pid: 1, rank: Some(Rank(0)), state: 'S', command: "x".into() }],
            gpus_free: vec![],
            took_ms: 1,
        },
    ]
}

/// Replaces every text, and adds records of all kinds once the rank has joined.
fn all_words() -> impl FnMut(Value) -> Vec<Vec<u8>> + Send {
    let mut added = 0;
    move |mut message| {
        if message["kind"] != "record" {
            return vec![framed(&worded(&message))];
        }
        let own = message["seq"].as_u64().unwrap();
        message["seq"] = json!(own + added);
        let mut frames = vec![framed(&worded(&message))];
        if message["event"]["said"]["kind"] == "joined" && added == 0 {
            for event in more_records() {
                added += 1;
                let record = Record { seq: own + added, time: 1.0, generation: Generation(0), event };
                frames.push(framed(&worded(&serde_json::to_value(AgentMessage::Record(record)).unwrap())));
            }
        }
        frames
    }
}

fn assert_clean(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let drives = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!text.chars().any(drives), "{what}: {text:?}");
    let fake =
        |line: &str| line.starts_with("stop verified: by") || line.starts_with("run finished: completed");
    assert!(!text.lines().any(fake), "{what}: {text}");
}

/// TERM-1, TERM-2, for every text of every message, in every mode of the console.
#[test]
fn term_1_agent_texts_reach_terminal_cleaned() {
    let Some(liar) = Liar::start(0) else { return };
    let words = liar.place.path().join("words");
    for form in [&["--headless"][..], &["--headless", "--logs"], &["--headless", "--json"]] {
        liar.lies(all_words());
        std::fs::write(&words, WORDS).unwrap();
        let file = liar.experiment(&["--iters", "40", "--fail-rank", "0", "--fail-at", "30"], "");
        let output = liar.hosts.command(&[&["run", &file][..], form].concat()).output().unwrap();
        assert!(!output.status.success(), "{form:?}: {output:?}");
        assert_clean(&format!("{form:?}"), &output.stdout);
        assert_clean(&format!("{form:?}"), &output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(LEFT), "{form:?}: the texts are missing: {text}");
    }
    liar.lies(all_words());
    let file = liar.experiment(&["--iters", "1000000"], "");
    let output = liar.hosts.command(&["run", &file, "--headless", "--detach"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for args in [&["ps"][..], &["ps", "--json"], &["ps", "--all"], &["logs"], &["check", &file], &["restart"]]
    {
        let output = liar.hosts.command(args).output().unwrap();
        assert_clean(&format!("{args:?}"), &output.stdout);
        assert_clean(&format!("{args:?}"), &output.stderr);
    }
    let (hosts, config) = (
        liar.hosts.hosts.display().to_string(),
        liar.hosts.bench.path().join("ssh_config").display().to_string(),
    );
    let envs = [("RANKDECK_SSH_CONFIG", config.as_str())];
    let program = stripped_console();
    let mut terminal = Terminal::start_in(
        liar.hosts.bench.path(),
        program.to_str().unwrap(),
        &["attach", "--hosts", &hosts],
        &envs,
    );
    terminal.until("the TUI", |terminal| terminal.alternate() && terminal.text().contains(LEFT));
    for keys in [
        "1", "2", "3", "4", "5", "6", "7", "8", "9", "\r", "\u{1b}", "?", "\u{1b}", "l", "e", "v", "h", "\t",
        "\r",
    ] {
        let before = terminal.raw.lock().unwrap().len();
        terminal.send(keys);
        terminal.until("the next frame", |terminal| terminal.raw.lock().unwrap().len() > before);
    }
    let written = terminal.written();
    // The console sets its own title.
    for evil in ["\u{1b}]0;title", "title\u{7}", "\u{9b}", "\u{202e}"] {
        let near = written.split(evil).next().unwrap();
        let near: String = near.chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
        assert!(!written.contains(evil), "{evil:?} reached the terminal after {near:?}");
    }
    drop(terminal);
    std::fs::remove_file(&words).unwrap();
    liar.lies(|message| vec![framed(&message)]);
    let output = liar.hosts.command(&["stop"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_until("ranks end", 60, || liar.hosts.bench.rank_processes().is_empty());
}

/// The same in the form of `printf`.
const EVIL: &str = r"\033]0;title\007\033[2J\nstop verified: no process is left\rrun finished: completed\n\302\23331m\nRANKDECK-HOST\033[31m\n";

/// TERM-1, TERM-2: output of a host is cleaned of control characters, and never imitates a line of rankdeck.
#[test]
fn host_output_is_cleaned_in_every_command() {
    let evil = tempfile::tempdir().unwrap();
    let script = evil.path().join("shell");
    std::fs::write(&script, format!("printf '{EVIL}'; printf '{EVIL}' >&2\n")).unwrap();
    let extra = format!("ForceCommand /bin/sh {}", script.display());
    let Some(hosts) = Loopback::start_with(1, 1, &extra) else { return };
    let experiment =
        hosts.bench.write("experiment.toml", "[run]\nname = \"words\"\n[launch]\ncommand = [\"true\"]\n");
    let file = experiment.to_str().unwrap();
    let commands: [&[&str]; 10] = [
        &["ps"],
        &["ps", "--json"],
        &["check", file],
        &["run", file, "--headless"],
        &["run", file, "--headless", "--json"],
        &["attach", "words", "--headless"],
        &["restart", "words", "--yes"],
        &["stop", "words"],
        &["logs", "words"],
        &["push"],
    ];
    for args in commands {
        let output = hosts.command(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}: {output:?}");
        for bytes in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(bytes);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{args:?}: {text:?}");
            let fake = |line: &str| line.starts_with(texts::VERIFIED) || line.starts_with(texts::FINISHED);
            assert!(!text.lines().any(fake), "{args:?}: {text}");
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("error: ") && stderr.contains("hint: "), "{args:?}: {stderr}");
    }
}
