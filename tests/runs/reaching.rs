//! What a key does to one rank or its host: its stack, SIGCONT, a shell there; and calls while nobody looks.

use crate::support::terminal::Terminal;
use crate::support::{Bench, kill, rankdeck, wait_until};
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
fn a_stack_is_shown_a_stopped_rank_is_continued_and_a_shell_is_opened_by_keys() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000"]);
    let words = ["--hosts", hosts.to_str().unwrap(), "run", experiment.to_str().unwrap()];
    let mut terminal =
        Terminal::start_in(bench.path(), RANKDECK, &words, &[("SHELL", "/bin/sh"), ("TMUX", "")]);
    terminal.resize(120, 40);
    terminal.until("both ranks run, behind their imports", |t| {
        t.text().matches("running").count() >= 2 && t.text().contains("│ iteration ")
    });
    terminal.send("t");
    terminal.until("the stack of a healthy rank", |t| {
        let text = t.text();
        text.contains("seen ") && text.contains("rank.py:")
    });
    terminal.send("\x1b");
    let pids = ranks(&bench);
    kill(pids[0], libc::SIGSTOP);
    terminal.until_shows("c: continue it");
    terminal.send("d");
    terminal.until_shows("do first");
    terminal.send("c");
    wait_until("the rank goes on", 20, || state(pids[0]) != 'T');
    terminal.send("6");
    terminal.until_shows("gets SIGCONT");
    terminal.send("1s");
    terminal.until("a shell instead of the screen", |t| !t.alternate());
    terminal.send("echo in $(basename \"$PWD\") > where; exit\n");
    terminal.until("the screen again", |t| t.alternate() && t.text().contains("ranks"));
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten().next().unwrap().path();
    let told = std::fs::read_to_string(run.join("where")).unwrap();
    assert_eq!(told, format!("in {}\n", run.file_name().unwrap().to_str().unwrap()));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

/// Launches an experiment, leaves it alone, and returns what its agent has called the user with.
fn called(bench: &Bench, script: &str, notify: &str) -> String {
    let hosts = bench.local_hosts(1, 2);
    let told = bench.path().join("told");
    std::fs::create_dir_all(bench.path().join("config/rankdeck")).unwrap();
    let command =
        format!("cat >> {0}.part; echo >> {0}.part; cp {0}.part {0}.new; mv {0}.new {0}", told.display());
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
    wait_until("a call", 60, || told.exists());
    std::fs::read_to_string(told).unwrap()
}

#[test]
fn a_rank_that_fails_while_nobody_looks_is_told_by_the_host_of_rank_0() {
    let bench = Bench::new();
    let go = bench.path().join("go").display().to_string();
    let script = format!(
        "while [ ! -e {go} ]; do sleep 0.1; done; [ $RANK = 1 ] && echo out of luck && exit 7; sleep 60"
    );
    let told = called(&bench, &script, "");
    assert!(told.contains("\"occasion\":\"end\"") && told.contains("out of luck"), "{told}");
    assert!(told.contains("rank 1 on local0") && told.contains("\"run\":\"away-"), "{told}");
    // Nothing that stays on the host names the program that was to be called.
    for run in std::fs::read_dir(bench.path().join("runs")).unwrap().flatten() {
        let node = run.path().join("node0");
        for file in ["records.jsonl", "manifest.json", "agent.log"] {
            let text = std::fs::read_to_string(node.join(file)).unwrap_or_default();
            assert!(!text.contains("told.part"), "{file}: {text}");
        }
    }
}

#[test]
fn a_run_that_ends_well_while_nobody_looks_is_told() {
    let bench = Bench::new();
    let go = bench.path().join("go").display().to_string();
    let told = called(&bench, &format!("while [ ! -e {go} ]; do sleep 0.1; done"), "");
    assert!(told.contains("\"text\":\"finished, as far as local0 knows\""), "{told}");
}

fn scrape(port: u16) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn figures_are_exported_by_a_process_whose_end_is_not_the_runs() {
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
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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
    assert_eq!(ranks(&bench).len(), 2, "the run goes on");
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
fn reach_2_an_environment_is_shown_and_kept_nowhere_and_a_rank_that_the_user_ends_says_so() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000"]);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, text + "pass_env = [\"REACH_GIVEN\"]\n").unwrap();
    let words = ["--hosts", hosts.to_str().unwrap(), "run", experiment.to_str().unwrap()];
    let seen = format!("shown-{}-only", std::process::id());
    let envs =
        [("REACH_SEEN", seen.as_str()), ("REACH_GIVEN", "given-secret"), ("REACH_API_KEY", "looks-secret")];
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &words, &envs);
    terminal.resize(120, 40);
    terminal
        .until("both ranks run", |t| t.text().matches("running").count() >= 2 && ranks(&bench).len() == 2);
    terminal.send("e");
    terminal.until_shows("environment of rank 0");
    terminal.send("G");
    terminal.until_shows("REACH_SEEN=");
    let shown = terminal.text();
    for line in [format!("REACH_SEEN={seen}"), "REACH_GIVEN=(hidden)".into(), "REACH_API_KEY=(hidden)".into()]
    {
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
    terminal.send("\x1b");
    terminal.until("the page again", |t| !t.text().contains("environment of"));
    terminal.send(":signal 1 KILL\r");
    terminal.until_shows("send SIGKILL?");
    terminal.send("y");
    terminal.until("the end, with its cause", |t| {
        t.text().contains("rank 1 on local0 was killed by SIGKILL, which a console sent")
    });
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
    assert!(!terminal.written().contains("given-secret") && !terminal.written().contains("looks-secret"));
    for text in [seen.as_str(), "given-secret", "looks-secret"] {
        assert_eq!(holding(bench.path(), text), Vec::<String>::new(), "{text}");
    }
}
