//! The console in a real terminal: what it draws, and that it gives the terminal back however it ends.

use crate::support::terminal::Terminal;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");
const ENDLESS: [&str; 7] = ["simulate", "--nnodes", "2", "--ranks", "2", "--iteration-ms", "100"];

pub fn simulate(extra: &[&str], envs: &[(&str, &str)]) -> Terminal {
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

/// Who names a theme wants its colours, whatever the environment says; who does not gets none.
#[test]
fn no_color_takes_nothing_from_a_theme_that_is_named() {
    let drawn = |theme: &[&str]| {
        let mut terminal = simulate(theme, &[("NO_COLOR", "1")]);
        terminal.until("the ranks", |t| t.text().contains("sim-01") && t.text().contains("? help"));
        terminal.signal(libc::SIGTERM);
        terminal.wait();
        terminal.written()
    };
    let colour = |text: &str| text.contains("\x1b[38;5;") || text.contains("\x1b[38;2;");
    assert!(colour(&drawn(&["--theme", "dark"])));
    assert!(!colour(&drawn(&[])));
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
    let mut terminal = simulate(&["--steps", "81920", "--exit"], &[]);
    terminal.until("the screen", Terminal::alternate);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
    terminal.until_shows("stopped: verified, no process is left on 2 hosts");
    terminal.until_shows("succeeded");
}

#[test]
fn a_failed_run_leaves_its_failure_on_the_normal_screen() {
    let mut terminal = simulate(&["--fault", "fail:1@0.5"], &[]);
    terminal.until_shows("the run is over");
    terminal.send("6");
    terminal.until_shows("events");
    assert!(terminal.alternate(), "the last screen stays, and its pages can be looked at");
    terminal.send("q");
    assert_eq!(terminal.wait(), 1);
    terminal.assert_restored();
    terminal.until_shows("environment raised an exception");
}

#[test]
fn a_run_that_ends_well_stays_until_a_key() {
    for leave in ["q", "\x03"] {
        let mut terminal = simulate(&["--steps", "40960"], &[]);
        terminal.until_shows("the run is over");
        terminal.send(leave);
        assert_eq!(terminal.wait(), 0);
        terminal.assert_restored();
        terminal.until_shows("stopped: verified, no process is left on 2 hosts");
    }
    let mut signalled = simulate(&["--steps", "40960"], &[]);
    signalled.until_shows("the run is over");
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
fn copying_works_in_a_default_tmux_and_says_so() {
    if rankdeck_testkit::program("tmux").is_none() {
        rankdeck_testkit::skip!("no tmux; install tmux");
    }
    let tmux = Tmux(tempfile::tempdir().unwrap());
    let command = format!("{RANKDECK} {}", ENDLESS.join(" "));
    tmux.call(&["new-session", "-d", "-x", "100", "-y", "30", &command]);
    tmux.until(&["capture-pane", "-p"], "R ● running");
    tmux.call(&["send-keys", "y"]);
    tmux.until(&["capture-pane", "-p"], "copied");
    tmux.until(&["show-buffer"], "rank 0 on sim-00");
}

#[test]
fn the_user_picks_colours_and_glyphs() {
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
fn a_live_run_is_shown_as_it_was_while_it_goes_on_and_orders_wait_for_the_present() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["simulate", "--nnodes", "1", "--ranks", "2", "--iteration-ms", "100", "--record"];
    let mut terminal = Terminal::start_in(folder.path(), RANKDECK, &args, &[]);
    terminal.until_shows("running");
    terminal.send(",");
    terminal.until_shows("ahead");
    terminal.send("2");
    terminal.until_shows("esc live");
    terminal.send("x");
    terminal.until_shows("only in the present");
    terminal.send("T-99h\r");
    terminal.until_shows("the record begins");
    terminal.send("\x1b");
    terminal.until("no dialog", |t| !t.text().contains("go to a time"));
    terminal.send("1<<<<<<<<<<<<<<<");
    terminal.until("the beginning", |t| t.text().contains("connecting") && t.text().contains("ahead"));
    terminal.send("\x1b");
    terminal.until("the present", |t| !t.text().contains("esc live") && t.text().contains("running"));
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
fn a_filter_of_a_replay_takes_spaces_and_nothing_can_be_ordered() {
    let (_folder, run) = recorded(20_480);
    let mut terminal = Terminal::start(RANKDECK, &["replay", run.to_str().unwrap()], &[]);
    terminal.until_shows("before the end");
    terminal.send("Tend\r");
    terminal.until_shows("the end of the record");
    terminal.send("/rank: 1");
    terminal.until_shows("/rank: 1");
    terminal.send("\rX");
    terminal.until_shows("this is a recorded run");
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn copying_elsewhere_is_handed_to_the_terminal_and_says_so() {
    let mut terminal = simulate(&[], &[("TMUX", "")]);
    terminal.until_shows("running");
    terminal.send("y");
    terminal.until_shows("handed to the terminal");
    assert!(terminal.written().contains("\x1b]52;c;"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
}

#[test]
fn ages_grow_on_the_screen_although_nothing_arrives() {
    // One host, of which nothing is heard after two seconds.
    let args = ["simulate", "--nnodes", "1", "--ranks", "2", "--fault", "lose:0@1"];
    let terminal = Terminal::start(RANKDECK, &args, &[]);
    terminal.until_shows("unheard 3s");
    terminal.until_shows("unheard 5s");
    terminal.signal(libc::SIGKILL);
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
    // The screen is given back before the console stops: until the shell says so, the console may still read
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
    let (_folder, run) = recorded(40_960);
    let mut terminal = Terminal::start(RANKDECK, &["replay", run.to_str().unwrap()], &[]);
    terminal.until_shows(" 1x ");
    terminal.send("P");
    terminal.until("a pause", |t| !t.text().contains(" 1x "));
    terminal.send("Tend\r");
    terminal.until_shows("the end of the record");
    terminal.until_shows("40,960");
    terminal.send("Tstart\r");
    terminal.until_shows("before the end");
    terminal.until("the beginning", |t| !t.text().contains("40,960"));
    terminal.signal(libc::SIGTERM);
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn a_key_of_a_demonstration_says_what_helps_when_its_run_is_over() {
    let mut terminal = Terminal::start(RANKDECK, &["demo", "--nnodes", "1", "--ranks", "2"], &[]);
    terminal.until("training", |t| t.text().contains("weights equal"));
    terminal.send("x");
    terminal.until("the question", |t| t.text().contains("stop the run?"));
    terminal.send("y");
    terminal.until("the end", |t| t.text().contains("the run is over after"));
    terminal.send("\x1bOQ");
    terminal
        .until("why nothing freezes", |t| t.text().contains("freeze: the run is over; r begins it again"));
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn a_demonstration_says_its_keys_and_breaks_what_they_name() {
    let mut terminal = Terminal::start(RANKDECK, &["demo", "--nnodes", "2", "--ranks", "2"], &[]);
    terminal.until_shows("F2 freeze");
    terminal.until("training", |t| t.text().contains("weights equal"));
    terminal.send("\x1bOQ");
    terminal.until("the frozen rank", |t| t.text().contains("rank 2 on sim-01: frozen"));
    terminal.until("it goes on by itself", |t| t.text().contains("no trouble"));
    terminal.send("\x1bOS");
    terminal.until("a new generation after the kill", |t| t.text().contains("gen 1"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
    terminal.until("its summary", |t| t.text().contains("stopped: verified"));
    assert!(!terminal.text().contains("rankdeck replay"), "no record of it stays");
}
