//! The console in a real terminal: what it draws, that it restores the terminal however it ends, `attach`
//! without a run, and home.

use crate::support::Bench;
use crate::support::terminal::Terminal;
use crate::support::texts;
use std::process::{Command, Output};

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");
const ENDLESS: [&str; 7] = ["simulate", "--nnodes", "2", "--ranks", "2", "--iteration-ms", "100"];

pub fn simulate(extra: &[&str], envs: &[(&str, &str)]) -> Terminal {
    let args: Vec<&str> = ENDLESS.iter().chain(extra).copied().collect();
    Terminal::start(RANKDECK, &args, envs)
}

#[test]
fn screen_draws_resizes_and_shows_help() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows("simulated-");
    assert!(terminal.alternate());
    assert_eq!(terminal.modes(), (false, false, false), "raw");
    terminal.until("ranks of both hosts", |t| t.text().contains("sim-00") && t.text().contains("sim-01"));
    terminal.resize(60, 16);
    terminal.until("the keys in the last row", |t| {
        let text = t.text();
        let rows: Vec<&str> = text.lines().collect();
        rows.len() == 16 && rows[0].contains("simulated") && rows[15].contains("quit")
    });
    terminal.resize(100, 30);
    terminal.until("the keys in the last row again", |t| {
        t.text().lines().nth(29).is_some_and(|row| row.contains(texts::HELP_KEY))
    });
    let before = terminal.text();
    terminal.send("?");
    terminal.until("help", |t| t.text() != before && t.text().to_lowercase().contains("help"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

/// A named theme has its colors whatever the environment is; without one there are none.
#[test]
fn no_color_does_not_override_a_named_theme() {
    let drawn = |theme: &[&str]| {
        let mut terminal = simulate(theme, &[("NO_COLOR", "1")]);
        terminal.until("the ranks", |t| t.text().contains("sim-01") && t.text().contains(texts::HELP_KEY));
        terminal.signal(libc::SIGTERM);
        terminal.wait();
        terminal.written()
    };
    let colour = |text: &str| text.contains("\x1b[38;5;") || text.contains("\x1b[38;2;");
    assert!(colour(&drawn(&["--theme", "dark"])));
    assert!(!colour(&drawn(&[])));
}

#[test]
fn sigterm_restores_the_terminal_and_stops_cleanly() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows(texts::RUNNING);
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
    terminal.until_shows(texts::NO_PROCESS_LEFT);
}

#[test]
fn ended_run_leaves_its_summary_on_the_normal_screen() {
    let mut terminal = simulate(&["--steps", "81920", "--exit"], &[]);
    terminal.until("the screen", Terminal::alternate);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
    terminal.until_shows(texts::NO_PROCESS_LEFT);
    terminal.until_shows(texts::SUCCEEDED);
}

#[test]
fn failed_run_leaves_its_failure_on_the_normal_screen() {
    let mut terminal = simulate(&["--fault", "fail:1@0.5"], &[]);
    terminal.until_shows(texts::ENDED);
    terminal.send("6");
    terminal.until_shows("events");
    assert!(terminal.alternate(), "the last screen stays, with its pages");
    terminal.send("q");
    assert_eq!(terminal.wait(), 1);
    terminal.assert_restored();
    terminal.until_shows("environment raised an exception");
}

#[test]
fn succeeded_run_stays_until_a_key() {
    for leave in ["q", "\x03"] {
        let mut terminal = simulate(&["--steps", "40960"], &[]);
        terminal.until_shows(texts::ENDED);
        terminal.send(leave);
        assert_eq!(terminal.wait(), 0);
        terminal.assert_restored();
        terminal.until_shows(texts::NO_PROCESS_LEFT);
    }
    let mut signalled = simulate(&["--steps", "40960"], &[]);
    signalled.until_shows(texts::ENDED);
    signalled.signal(libc::SIGTERM);
    assert_eq!(signalled.wait(), 0);
    signalled.assert_restored();
}

/// A tmux server of the test's own, ended with it.
struct Tmux(tempfile::TempDir);

impl Tmux {
    fn call(&self, arguments: &[&str]) -> String {
        let output = std::process::Command::new("tmux")
            .args(["-S", self.0.path().join("socket").to_str().unwrap(), "-f", "/dev/null"])
            .args(arguments)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn until(&self, arguments: &[&str], text: &str) {
        let deadline = std::time::Instant::now() + crate::support::terminal::DEADLINE;
        loop {
            let shown = self.call(arguments);
            if shown.contains(text) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "waited in vain for {text}:\n{shown}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

#[test]
fn copy_in_default_tmux_fills_its_buffer() {
    if rankdeck_testkit::program("tmux").is_none() {
        rankdeck_testkit::skip!("no tmux; install tmux");
    }
    let tmux = Tmux(tempfile::tempdir().unwrap());
    let command = format!("{RANKDECK} {}", ENDLESS.join(" "));
    tmux.call(&["new-session", "-d", "-x", "100", "-y", "30", &command]);
    tmux.until(&["capture-pane", "-p"], "R ● running");
    tmux.call(&["send-keys", "y"]);
    tmux.until(&["capture-pane", "-p"], texts::COPIED);
    tmux.until(&["show-buffer"], "rank 0 on sim-00");
}

#[test]
fn theme_and_glyphs_follow_environment_and_terminal() {
    let dark = simulate(&[], &[]);
    dark.until_shows("R ● running");
    let light = simulate(&[], &[("COLORFGBG", "0;15")]);
    light.until_shows("R ● running");
    // The light theme's green.
    let good = "38;5;28";
    light.until("the light green", |t| t.written().contains(good));
    assert!(!dark.written().contains(good));
    let named = simulate(&[], &[("RANKDECK_THEME", "light"), ("RANKDECK_GLYPHS", "ascii")]);
    named.until_shows("R * running");
    named.until("the light green", |t| t.written().contains(good));
    let console = simulate(&[], &[("TERM", "linux")]);
    console.until_shows("R * running");
    for mut terminal in [dark, light, named, console] {
        assert!(terminal.text().contains("simulated"));
        terminal.signal(libc::SIGTERM);
        terminal.wait();
    }
}

#[test]
fn live_run_plays_back_and_disables_orders() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["simulate", "--nnodes", "1", "--ranks", "2", "--iteration-ms", "100", "--record"];
    let mut terminal = Terminal::start_in(folder.path(), RANKDECK, &args, &[]);
    terminal.until_shows(texts::RUNNING);
    terminal.send(",");
    terminal.until_shows(texts::AHEAD);
    terminal.send("2");
    terminal.until_shows(texts::ESC_LIVE);
    terminal.send("x");
    terminal.until_shows(texts::NOT_IN_PLAYBACK);
    terminal.send("T-99h\r");
    terminal.until_shows(texts::RECORDING_STARTS);
    terminal.send("\x1b");
    terminal.until("no dialog", |t| !t.text().contains("-99h"));
    terminal.send("1<<<<<<<<<<<<<<<");
    terminal.until("the beginning", |t| t.text().contains("connecting") && t.text().contains(texts::AHEAD));
    terminal.send("\x1b");
    terminal
        .until("the present", |t| !t.text().contains(texts::ESC_LIVE) && t.text().contains(texts::RUNNING));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}

/// The record of a simulated run of this many steps, and the folder that it is in.
fn recorded(steps: u32) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let recorded = std::process::Command::new(RANKDECK)
        .args([
            "simulate",
            "--nnodes",
            "1",
            "--ranks",
            "2",
            "--iteration-ms",
            "100",
            "--record",
            "--headless",
        ])
        .args(["--steps", &steps.to_string()])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(recorded.status.success());
    let run = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    (folder, run)
}

#[test]
fn replay_filter_takes_spaces_and_orders_are_disabled() {
    let (_folder, run) = recorded(20_480);
    let mut terminal = Terminal::start(RANKDECK, &["replay", run.to_str().unwrap()], &[]);
    terminal.until_shows(texts::BEFORE_END);
    terminal.send("Tend\r");
    terminal.until_shows(texts::END_OF_RECORDING);
    terminal.send("/rank: 1");
    terminal.until_shows("/rank: 1");
    terminal.send("\rX");
    terminal.until_shows(texts::RECORDED);
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn copy_outside_tmux_goes_to_the_terminal() {
    let mut terminal = simulate(&[], &[("TMUX", "")]);
    terminal.until_shows(texts::RUNNING);
    terminal.send("y");
    terminal.until_shows(texts::SENT_TO_TERMINAL);
    assert!(terminal.written().contains("\x1b]52;c;"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
}

#[test]
fn ages_grow_without_messages() {
    // One host, without messages after two seconds.
    let args = ["simulate", "--nnodes", "1", "--ranks", "2", "--fault", "lose:0@1"];
    let terminal = Terminal::start(RANKDECK, &args, &[]);
    terminal.until_shows("silent 3s");
    terminal.until_shows("silent 5s");
    terminal.signal(libc::SIGKILL);
}

#[test]
fn ctrl_z_suspends_and_fg_repaints() {
    let mut shell =
        Terminal::start("bash", &["--norc", "--noprofile", "-i"], &[("PS1", "shell> "), ("HISTFILE", "")]);
    shell.until_shows("shell>");
    shell.send(&format!("{RANKDECK} {}\n", ENDLESS.join(" ")));
    shell.until_shows("sim-00");
    for _ in 0..2 {
        assert!(shell.alternate());
        shell.send("\x1a");
        shell.until("the shell", |t| !t.alternate() && t.text().contains("Stopped"));
        shell.send("stty -a | grep -o ' echo '; clear; echo back-in-$((40+2))\n");
        shell.until_shows("back-in-42");
        shell.send("fg\n");
        shell.until("the screen again", |t| t.alternate() && t.text().contains("sim-00"));
    }
    shell.send("\x1a");
    // The screen is given back before the console stops: until the shell reports it, the console may still read
    // what is typed.
    shell.until("the shell", |t| !t.alternate() && t.text().contains("Stopped"));
    // Not the shell's own `kill`: that continues the job in the background, where taking the terminal stops
    // it again, perhaps after `fg` has found it running.
    shell.send("clear; env kill -TERM $(jobs -p); fg; echo code=$?\n");
    shell.until_shows("code=130");
    assert!(!shell.alternate());
}

#[cfg(debug_assertions)]
#[test]
fn panic_restores_the_terminal_before_its_message() {
    let mut terminal = simulate(&[], &[("RANKDECK_TEST_PANIC", "1")]);
    assert_eq!(terminal.wait(), 101);
    terminal.assert_restored();
    terminal.until_shows("RANKDECK_TEST_PANIC");
    terminal.until_shows("rankdeck attach");
}

#[test]
fn lost_terminal_ends_the_console() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows(texts::RUNNING);
    // The reading thread holds the terminal open: hang up as the kernel would.
    terminal.signal(libc::SIGHUP);
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn dumb_terminal_is_refused() {
    let mut terminal = simulate(&[], &[("TERM", "dumb")]);
    assert_eq!(terminal.wait(), 2);
    terminal.until_shows("--headless");
    assert!(!terminal.raw.lock().unwrap().contains(&b'\x1b'), "no escape sequence");
}

#[test]
fn sigcont_repaints_the_screen() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows("sim-00");
    terminal.signal(libc::SIGSTOP);
    // Another program writes to the terminal meanwhile.
    terminal.screen.lock().unwrap().process(b"\x1b[2J\x1b[Hgarbage");
    terminal.signal(libc::SIGCONT);
    terminal.until("a full frame", |t| t.text().contains("sim-00") && !t.text().contains("garbage"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}

#[test]
fn replay_pauses_and_jumps() {
    let (_folder, run) = recorded(40_960);
    let mut terminal = Terminal::start(RANKDECK, &["replay", run.to_str().unwrap()], &[]);
    terminal.until_shows(" 1x ");
    terminal.send("P");
    terminal.until("a pause", |t| !t.text().contains(" 1x "));
    terminal.send("Tend\r");
    terminal.until_shows(texts::END_OF_RECORDING);
    terminal.until_shows("40,960");
    terminal.send("Tstart\r");
    terminal.until_shows(texts::BEFORE_END);
    terminal.until("the beginning", |t| !t.text().contains("40,960"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn demo_key_after_the_end_names_the_key_that_helps() {
    let mut terminal = Terminal::start(RANKDECK, &["demo", "--nnodes", "1", "--ranks", "2"], &[]);
    terminal.until("training", |t| t.text().contains(texts::WEIGHTS_EQUAL));
    terminal.send("x");
    terminal.until("the question", |t| t.text().contains(texts::STOP_QUESTION));
    terminal.send("y");
    terminal.until("the end", |t| t.text().contains(texts::ENDED));
    terminal.send("\x1bOQ");
    terminal.until("the key that helps", |t| t.text().contains(texts::FREEZE_ENDED));
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn demo_keys_freeze_and_kill_ranks() {
    let mut terminal = Terminal::start(RANKDECK, &["demo", "--nnodes", "2", "--ranks", "2"], &[]);
    terminal.until_shows("F2 ");
    terminal.until("training", |t| t.text().contains(texts::WEIGHTS_EQUAL));
    terminal.send("\x1bOQ");
    terminal.until("the frozen rank", |t| t.text().contains("rank 2 on sim-01: "));
    terminal.until("the rank runs again", |t| t.text().contains(texts::OK));
    terminal.send("\x1bOS");
    terminal.until("a new generation after the kill", |t| t.text().contains("gen 1"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
    terminal.until("its summary", |t| t.text().contains(texts::NO_PROCESS_LEFT));
    assert!(!terminal.text().contains("rankdeck replay"), "there is no recording of it");
}

/// A folder with one local host with one rank.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    bench
}

fn call(bench: &Bench, args: &[&str]) -> Output {
    Command::new(RANKDECK).args(args).current_dir(bench.path()).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Launches an endless run and detaches; returns its whole name.
fn launched(bench: &Bench, name: &str) -> String {
    let endless = ["--", "sh", "-c", "echo hello; while :; do sleep 1; done"];
    let output = call(bench, &[&["run", "--detach", "--name", name][..], &endless].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let runs = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten();
    let names = runs.filter_map(|entry| entry.file_name().into_string().ok());
    names.into_iter().find(|run| run.starts_with(name)).unwrap()
}

#[test]
fn ended_run_screen_stays_until_a_key() {
    for (command, code, word) in
        [("echo hello", 0, texts::SUCCEEDED), ("echo hello; exit 3", 1, texts::FAILED)]
    {
        let bench = bench();
        let mut terminal =
            Terminal::start_in(bench.path(), RANKDECK, &["run", "--", "sh", "-c", command], &[]);
        terminal.until_shows(texts::ENDED);
        assert!(terminal.alternate() && terminal.text().contains(word), "{}", terminal.text());
        terminal.send("4");
        terminal.until_shows("hello");
        terminal.send("q");
        assert_eq!(terminal.wait(), code);
        terminal.assert_restored();
        terminal.until_shows("`rankdeck replay ");
    }
}

/// NAME-1: commands that read take the newest run, commands that end a run offer a list.
#[test]
fn name_1_attach_takes_the_newest_and_stop_asks() {
    let bench = bench();
    let [first, second] = ["walker", "hopper"].map(|name| launched(&bench, name));
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    terminal.until("its screen", |t| t.alternate() && t.text().contains(texts::ADOPTED));
    assert!(terminal.text().contains(&second), "{}", terminal.text());
    terminal.send("D");
    assert_eq!(terminal.wait(), 0);
    let output = call(&bench, &["stop"]);
    let stderr = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in [first.as_str(), second.as_str(), "hint: "] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["stop"], &[]);
    terminal.until("both runs", |t| {
        let text = t.text();
        text.contains(texts::SELECT_RUN) && text.contains(&first) && text.contains(&second)
    });
    terminal.send("\x1b");
    assert_eq!(terminal.wait(), 2, "none of them");
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["stop", "--headless"], &[]);
    assert_eq!(terminal.wait(), 2, "no list");
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["stop"], &[]);
    terminal.until_shows(&first);
    // The newest comes first.
    terminal.send("j\r");
    assert_eq!(terminal.wait(), 0);
    terminal.until_shows(&first);
    // The only running run is asked about, unless that was said before.
    for answer in ["\r", "n\r"] {
        let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["stop"], &[]);
        terminal.until("a question", |t| t.text().contains(&second) && t.text().contains(texts::CONFIRM));
        terminal.send(answer);
        assert_eq!(terminal.wait(), 2, "not confirmed");
    }
    let output = call(&bench, &["stop", "@last", "--json"]);
    let stopped: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((stopped["run"].as_str(), &stopped["verified"]), (Some(second.as_str()), &true.into()));
    // Without a running run, the newest ended one.
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    terminal.until_shows(texts::ENDED);
    assert!(terminal.text().contains(&second), "{}", terminal.text());
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
    for (args, answer) in [(&["stop"][..], "y\r"), (&["stop", "--yes"], ""), (&["stop", "--headless"], "")] {
        launched(&bench, "ant");
        let mut terminal = Terminal::start_in(bench.path(), RANKDECK, args, &[]);
        if !answer.is_empty() {
            terminal.until_shows(texts::CONFIRM);
            terminal.send(answer);
        }
        assert_eq!(terminal.wait(), 0, "{args:?}: {}", terminal.text());
    }
}

#[test]
fn attach_without_runs_fails_with_a_hint() {
    let bench = bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    assert_eq!(terminal.wait(), 2);
    terminal.until_shows("error: ");
    terminal.until_shows("hint: ");
}

/// One local host with two ranks, and an experiment that runs until it is stopped.
fn endless_bench() -> Bench {
    let bench = Bench::new();
    bench.local_hosts(1, 2);
    std::fs::create_dir(bench.path().join("configs")).unwrap();
    let text = "[run]\nname = \"endless\"\nnote = \"from home\"\n[launch]\n\
                command = [\"sh\", \"-c\", \"echo hello; while :; do sleep 1; done\"]\n";
    bench.write("configs/endless.toml", text);
    bench
}

#[test]
fn home_launches_reopens_and_stops_a_run() {
    let bench = endless_bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows(texts::NO_RUNS);
    terminal.send("2");
    terminal.until_shows("configs/endless.toml");
    terminal.until_shows("world_size 2");
    terminal.send("\r");
    terminal.until_shows("launch configs/endless.toml");
    terminal.send("run.note=changed");
    terminal.until_shows("run.note=changed");
    terminal.send("\r");
    terminal.until("the run's screen", |t| t.text().contains("hello") && t.text().contains("ranks 2"));
    terminal.send("q");
    terminal.until_shows("1 running");
    terminal.send("1");
    terminal.until("the run, with its note", |t| {
        let text = t.text();
        text.contains("● running") && text.contains("changed")
    });
    terminal.send("\r");
    // Home shows the command, `hello` in it, too.
    terminal.until_shows(texts::ADOPTED);
    terminal.send("q");
    terminal.until_shows("1 runs 1");
    terminal.send("x");
    terminal.until_shows(texts::STOP_QUESTION);
    terminal.send("y");
    terminal.until("the end", |t| t.text().contains("stopped") && t.text().contains("0 running"));
    terminal.send("o");
    terminal.until_shows(texts::NO_PROCESS_LEFT);
    // Any key closes the output; the next one quits.
    terminal.send("q");
    terminal.until("the page below the output", |t| !t.text().contains(texts::NO_PROCESS_LEFT));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

/// A reply that arrives after all queries, as over a slow link.
#[test]
fn late_terminal_reply_is_no_key_at_home() {
    let bench = endless_bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows(texts::NO_RUNS);
    for part in ["\x1b", "]11;rgb:1a1a/1b1b", "/2626\x1b", "\\\x1b[?62;4c", "\x1bP>|x r(1)\x1b\\"] {
        terminal.send(part);
    }
    terminal.send("2");
    terminal.until_shows("configs/endless.toml");
    assert!(!terminal.text().contains("1b1b"), "{}", terminal.text());
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn escape_and_a_key_in_one_read_are_two_keys() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows(texts::RUNNING);
    terminal.send("?");
    terminal.until_shows(texts::ESC_CLOSES);
    terminal.send("\x1b6");
    terminal.until("the events", |t| !t.text().contains(texts::ESC_CLOSES) && t.text().contains("events"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}

/// These files were not named by the user: a pipe without a writer, and one without an end.
#[test]
fn home_opens_beside_a_pipe_and_an_endless_file() {
    let bench = endless_bench();
    std::os::unix::fs::symlink("/dev/zero", bench.path().join("zero.toml")).unwrap();
    for name in ["pipe.toml", "runs/x-1/node0/manifest.json", "runs/x-1/console/record/000001.seg"] {
        let path = bench.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    }
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.send("2");
    terminal.until_shows("configs/endless.toml");
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn sigterm_restores_the_terminal() {
    let bench = endless_bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows(texts::NO_RUNS);
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn home_without_terminal_exits_2() {
    let output = Command::new(RANKDECK).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: rankdeck"));
    let output = Command::new(RANKDECK).arg("home").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("rankdeck ps"));
}
