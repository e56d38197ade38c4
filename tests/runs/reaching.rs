//! Keys that reach one rank or its host: stack, SIGCONT, shell; and notifications while no console is attached.

use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Bench, kill, rankdeck, wait_until};
use serde_json::Value;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

/// State letter of a process.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('X')
}

fn ranks(bench: &Bench) -> Vec<u32> {
    let all = bench.rank_processes();
    all.into_iter().filter(|(_, command)| command.contains("rank.py")).map(|(pid, _)| pid).collect()
}

#[test]
fn keys_show_a_stack_continue_a_rank_and_open_a_shell() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000"]);
    let words = ["--hosts", hosts.to_str().unwrap(), "run", experiment.to_str().unwrap()];
    let mut terminal =
        Terminal::start_in(bench.path(), RANKDECK, &words, &[("SHELL", "/bin/sh"), ("TMUX", "")]);
    terminal.resize(120, 40);
    terminal.until("both ranks run, behind their imports", |t| {
        t.text().matches(texts::RUNNING).count() >= 2 && t.text().contains("iteration")
    });
    terminal.send("t");
    terminal.until_shows("rank.py:");
    terminal.send("\x1b");
    let pids = ranks(&bench);
    kill(pids[0], libc::SIGSTOP);
    terminal.until_shows("state T");
    terminal.send("d");
    terminal.until_shows(&format!("pid {}", pids[0]));
    terminal.send("c");
    wait_until("the rank continues", 20, || state(pids[0]) != 'T');
    terminal.send("6");
    terminal.until_shows("SIGCONT");
    terminal.send("1s");
    terminal.until("a shell instead of the screen", |t| !t.alternate());
    terminal.send("echo in $(basename \"$PWD\") > where; exit\n");
    terminal.until("the screen again", |t| t.alternate() && !t.text().trim().is_empty());
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten().next().unwrap().path();
    let sent = std::fs::read_to_string(run.join("where")).unwrap();
    assert_eq!(sent, format!("in {}\n", run.file_name().unwrap().to_str().unwrap()));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

/// Launches an experiment, detaches, and returns its agent's first notification.
fn notified(bench: &Bench, script: &str, notify: &str) -> Value {
    let hosts = bench.local_hosts(1, 2);
    let sent = bench.path().join("sent");
    std::fs::create_dir_all(bench.path().join("config/rankdeck")).unwrap();
    let command =
        format!("cat >> {0}.part; echo >> {0}.part; cp {0}.part {0}.new; mv {0}.new {0}", sent.display());
    bench.write(
        "config/rankdeck/ui.toml",
        &format!("[notify]\n{notify}away_command = [\"sh\", \"-c\", {command:?}]\n"),
    );
    let text = format!("[run]\nname = \"away\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n");
    let experiment = bench.write("away.toml", &text);
    let done = rankdeck()
        .args([
            "run",
            experiment.to_str().unwrap(),
            "--hosts",
            hosts.to_str().unwrap(),
            "--detach",
            "--headless",
        ])
        .current_dir(bench.path())
        .env("XDG_CONFIG_HOME", bench.path().join("config"))
        .env("RANKDECK_AGENT_TIMING", "unattended=1,silent=1")
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    std::fs::write(bench.path().join("go"), "").unwrap();
    wait_until("a notification", 60, || sent.exists());
    let text = std::fs::read_to_string(sent).unwrap();
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

#[test]
fn failure_while_detached_is_notified_by_rank_0s_host() {
    let bench = Bench::new();
    let go = bench.path().join("go").display().to_string();
    let script = format!(
        "while [ ! -e {go} ]; do sleep 0.1; done; [ $RANK = 1 ] && echo out of luck && exit 7; sleep 60"
    );
    let sent = notified(&bench, &script, "");
    assert_eq!((&sent["occasion"], &sent["from"]), (&"end".into(), &"local0".into()), "{sent}");
    let text = sent["text"].as_str().unwrap();
    assert!(["rank 1", "local0", "out of luck"].iter().all(|part| text.contains(part)), "{sent}");
    assert!(sent["run"].as_str().unwrap().starts_with("away-"), "{sent}");
    // Nothing that stays on the host names the program that was to be called.
    for run in std::fs::read_dir(bench.path().join("runs")).unwrap().flatten() {
        let node = run.path().join("node0");
        for file in ["records.jsonl", "manifest.json", "agent.log"] {
            let text = std::fs::read_to_string(node.join(file)).unwrap_or_default();
            assert!(!text.contains("sent.part"), "{file}: {text}");
        }
    }
}

#[test]
fn success_while_detached_is_notified() {
    let bench = Bench::new();
    let go = bench.path().join("go").display().to_string();
    let sent = notified(&bench, &format!("while [ ! -e {go} ]; do sleep 0.1; done"), "");
    assert_eq!(sent["occasion"], "end", "{sent}");
    assert!(sent["text"].as_str().unwrap().starts_with("finished"), "{sent}");
}

fn scrape(port: u16) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn export_metrics_does_not_affect_the_run() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000"]);
    let at = |words: &[&str]| {
        let mut command = rankdeck();
        command.args(["--hosts", hosts.to_str().unwrap()]).args(words).current_dir(bench.path());
        command
    };
    let run = at(&["run", experiment.to_str().unwrap(), "--detach", "--headless"]).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let port = rankdeck_testkit::free_port();
    let file = bench.path().join("run.prom");
    let file_is = |what: &str| std::fs::read_to_string(Path::new(&file)).unwrap_or_default().contains(what);
    let (listen, textfile) = (port.to_string(), file.display().to_string());
    let words = ["export-metrics", "--listen", &listen, "--textfile", &textfile, "--every", "0.2"];
    let mut exporter = at(&words).stderr(Stdio::null()).spawn().unwrap();
    wait_until("figures of the run", 30, || {
        scrape(port).is_some_and(|text| text.contains("rankdeck_rank_up{") && text.contains("# EOF"))
    });
    wait_until("the same in the file", 30, || file_is("rankdeck_env_steps_total{"));
    kill(exporter.id(), libc::SIGINT);
    assert_eq!(exporter.wait().unwrap().code(), Some(0));
    assert_eq!(ranks(&bench).len(), 2, "the run keeps running");
    let mut exporter = at(&["export-metrics", "--textfile", &textfile, "--every", "60"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the file again", 30, || file_is("rankdeck_run_state{"));
    let stopped = at(&["stop"]).output().unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
    assert_eq!(exporter.wait().unwrap().code(), Some(0));
    assert!(file_is("outcome=\"stopped\"} 1\n"), "the end stays in the file");
}

#[test]
fn textfile_of_an_unknown_run_is_not_touched() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let file = bench.write("run.prom", "x 1\n");
    let text = bench.write("run.txt", "valuable");
    for (run, file) in [("nope", &file), ("nope", &text)] {
        let words = ["export-metrics", run, "--textfile", file.to_str().unwrap()];
        let mut command = rankdeck();
        command.args(["--hosts", hosts.to_str().unwrap()]).args(words).current_dir(bench.path());
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    let read = |file: &Path| std::fs::read_to_string(file).unwrap();
    assert_eq!((read(&file), read(&text)), ("x 1\n".into(), "valuable".into()));
}

/// Files below a folder that hold a text.
fn holding(folder: &Path, text: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let bytes = std::fs::read(&path).unwrap_or_default();
                if bytes.windows(text.len()).any(|part| part == text.as_bytes()) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}

#[test]
fn reach_2_environment_is_not_persisted() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000"]);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, text + "pass_env = [\"REACH_GIVEN\"]\n").unwrap();
    let words = ["--hosts", hosts.to_str().unwrap(), "run", experiment.to_str().unwrap()];
    let seen = format!("shown-{}-only", std::process::id());
    let envs =
        [("REACH_SEEN", seen.as_str()), ("REACH_GIVEN", "given-secret"), ("REACH_API_KEY", "api-secret")];
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &words, &envs);
    terminal.resize(120, 40);
    terminal.until("both ranks run", |t| {
        t.text().matches(texts::RUNNING).count() >= 2 && ranks(&bench).len() == 2
    });
    terminal.send("e");
    terminal.until("an environment", |t| t.text().matches('=').count() > 10);
    terminal.send("G");
    terminal.until_shows("REACH_SEEN=");
    let shown = terminal.text();
    for line in [format!("REACH_SEEN={seen}"), "REACH_GIVEN=(hidden)".into(), "REACH_API_KEY=(hidden)".into()]
    {
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
    terminal.send("\x1b");
    terminal.until("the page again", |t| !t.text().contains("REACH_SEEN="));
    terminal.send(":signal 1 KILL\r");
    terminal.until_shows("SIGKILL");
    terminal.send("y");
    terminal.until("the end, with its cause", |t| {
        let text = t.text();
        [texts::FAILED, "rank 1", "SIGKILL", "console"].iter().all(|part| text.contains(part))
    });
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
    assert!(!terminal.written().contains("given-secret") && !terminal.written().contains("api-secret"));
    for text in [seen.as_str(), "given-secret", "api-secret"] {
        assert_eq!(holding(bench.path(), text), Vec::<String>::new(), "{text}");
    }
}
