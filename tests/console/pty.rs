//! The console in a real terminal: what it draws, and that it gives the terminal back however it ends.

use crate::support::terminal::Terminal;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");
const ENDLESS: [&str; 7] = ["simulate", "--nnodes", "2", "--ranks", "2", "--iteration-ms", "100"];

fn simulate(extra: &[&str], envs: &[(&str, &str)]) -> Terminal {
    let args: Vec<&str> = ENDLESS.iter().chain(extra).copied().collect();
    Terminal::start(RANKDECK, &args, envs)
}

#[test]
fn it_draws_resizes_and_helps() {
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
        t.text().lines().nth(29).is_some_and(|row| row.contains("? help"))
    });
    let before = terminal.text();
    terminal.send("?");
    terminal.until("help", |t| t.text() != before && t.text().to_lowercase().contains("help"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn sigterm_gives_the_terminal_back_and_stops_cleanly() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows("running");
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
    terminal.until_shows("stopped: verified, no process is left on 2 hosts");
}

#[test]
fn a_run_that_ends_leaves_its_summary_on_the_normal_screen() {
    let mut terminal = simulate(&["--steps", "81920"], &[]);
    terminal.until("the screen", Terminal::alternate);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
    terminal.until_shows("stopped: verified, no process is left on 2 hosts");
    terminal.until_shows("succeeded");
}

#[test]
fn a_failed_run_leaves_its_failure_on_the_normal_screen() {
    let mut terminal = simulate(&["--fault", "fail:1@0.5"], &[]);
    assert_eq!(terminal.wait(), 1);
    terminal.assert_restored();
    terminal.until_shows("environment raised an exception");
}

#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again() {
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
    // The screen is given back before the console stops: until the shell says so, the console may still read what is typed.
    shell.until("the shell", |t| !t.alternate() && t.text().contains("Stopped"));
    shell.send("clear; kill -TERM %1; fg; echo code=$?\n");
    shell.until_shows("code=130");
    assert!(!shell.alternate());
}

#[cfg(debug_assertions)]
#[test]
fn a_panic_gives_the_terminal_back_before_its_message() {
    let mut terminal = simulate(&[], &[("RANKDECK_TEST_PANIC", "1")]);
    assert_eq!(terminal.wait(), 101);
    terminal.assert_restored();
    terminal.until_shows("asked for by RANKDECK_TEST_PANIC");
    terminal.until_shows("rankdeck attach");
}

#[test]
fn a_lost_terminal_ends_the_console() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows("running");
    // The reading thread holds the terminal open: hang up as the kernel would.
    terminal.signal(libc::SIGHUP);
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn a_terminal_that_cannot_show_a_screen_is_refused() {
    let mut terminal = simulate(&[], &[("TERM", "dumb")]);
    assert_eq!(terminal.wait(), 2);
    terminal.until_shows("--headless");
    assert!(!terminal.raw.lock().unwrap().contains(&b'\x1b'), "no escape sequence");
}

#[test]
fn a_stop_and_go_from_outside_repaints() {
    let mut terminal = simulate(&[], &[]);
    terminal.until_shows("sim-00");
    terminal.signal(libc::SIGSTOP);
    // Somebody else writes on the terminal meanwhile.
    terminal.screen.lock().unwrap().process(b"\x1b[2J\x1b[Hgarbage");
    terminal.signal(libc::SIGCONT);
    terminal.until("a full frame", |t| t.text().contains("sim-00") && !t.text().contains("garbage"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}

#[test]
fn a_recorded_run_is_shown_again_with_pause_and_jumps() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["simulate", "--nnodes", "1", "--ranks", "2", "--iteration-ms", "100", "--steps", "40960"];
    let recorded = std::process::Command::new(RANKDECK)
        .args(args)
        .args(["--record", "--headless"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(recorded.status.success());
    let runs = std::fs::read_dir(folder.path().join("runs")).unwrap();
    let run = runs.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut terminal = Terminal::start(RANKDECK, &["replay", run.to_str().unwrap()], &[]);
    terminal.until_shows("REPLAY playing");
    terminal.send(" ");
    terminal.until_shows("REPLAY paused");
    terminal.send("\x1b[F");
    terminal.until_shows("REPLAY end");
    terminal.until_shows("40,960");
    terminal.send("\x1b[H");
    terminal.until_shows("REPLAY paused");
    terminal.until("the beginning", |t| !t.text().contains("40,960"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}
