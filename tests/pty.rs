//! The console in a real terminal: what it draws, and that it gives the terminal back however it ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
const DEADLINE: Duration = Duration::from_secs(60);
const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");
const ENDLESS: [&str; 7] = ["simulate", "--nnodes", "2", "--ranks", "2", "--iteration-ms", "100"];

/// A terminal with a program in it, killed and reaped at the end.
struct Terminal {
    screen: Arc<Mutex<vt100::Parser>>,
    raw: Arc<Mutex<Vec<u8>>>,
    writer: Box<dyn Write + Send>,
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
}

impl Terminal {
    fn start(program: &str, args: &[&str], envs: &[(&str, &str)]) -> Terminal {
        let size = PtySize { rows: 30, cols: 100, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(std::env::temp_dir());
        command.env("TERM", "xterm-256color");
        command.env("LC_ALL", "C.UTF-8");
        command.env_remove("NO_COLOR");
        command.env_remove("RANKDECK_TEST_PANIC");
        command.env("RUST_BACKTRACE", "0");
        envs.iter().for_each(|(name, value)| command.env(name, value));
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(30, 100, 0)));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let mut reader = pair.master.try_clone_reader().unwrap();
        let (to_screen, to_raw) = (Arc::clone(&screen), Arc::clone(&raw));
        std::thread::spawn(move || {
            let mut bytes = [0; 8192];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                to_screen.lock().unwrap().process(&bytes[..n]);
                to_raw.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        let writer = pair.master.take_writer().unwrap();
        Terminal { screen, raw, writer, master: pair.master, child }
    }

    fn simulate(extra: &[&str], envs: &[(&str, &str)]) -> Terminal {
        let args: Vec<&str> = ENDLESS.iter().chain(extra).copied().collect();
        Terminal::start(RANKDECK, &args, envs)
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn alternate(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    fn send(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).unwrap();
        self.writer.flush().unwrap();
    }

    fn resize(&self, cols: u16, rows: u16) {
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        self.screen.lock().unwrap().screen_mut().set_size(rows, cols);
        self.master.resize(size).unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is not reaped yet, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.process_id().unwrap() as i32, signal) }, 0);
    }

    fn until(&self, what: &str, condition: impl Fn(&Terminal) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !condition(self) {
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}; the screen shows:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn until_shows(&self, text: &str) {
        self.until(text, |terminal| terminal.text().contains(text));
    }

    fn wait(&mut self) -> u32 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.exit_code();
            }
            assert!(Instant::now() < deadline, "the program did not end; the screen shows:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Modes of the terminal: (canonical, echo, signals).
    fn modes(&self) -> (bool, bool, bool) {
        let fd = self.master.as_raw_fd().unwrap();
        // SAFETY: all-zero is a valid termios, which tcgetattr fills in; the descriptor is open.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(fd, &mut modes), 0);
            modes
        };
        let has = |flag| modes.c_lflag & flag != 0;
        (has(libc::ICANON), has(libc::ECHO), has(libc::ISIG))
    }

    /// The terminal is as a shell wants it: modes, screen, cursor, mouse, paste.
    fn assert_restored(&self) {
        self.until("the normal screen", |terminal| !terminal.alternate());
        assert_eq!(self.modes(), (true, true, true));
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        assert!(!screen.hide_cursor(), "cursor");
        assert!(!screen.bracketed_paste(), "paste");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "mouse");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_draws_resizes_and_helps() {
    let mut terminal = Terminal::simulate(&[], &[]);
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
    let mut terminal = Terminal::simulate(&[], &[]);
    terminal.until_shows("running");
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
    terminal.until_shows("stopped: proved on 2 hosts, no process left");
}

#[test]
fn a_run_that_ends_leaves_its_summary_on_the_normal_screen() {
    let mut terminal = Terminal::simulate(&["--steps", "81920"], &[]);
    terminal.until("the screen", Terminal::alternate);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
    terminal.until_shows("stopped: proved on 2 hosts, no process left");
    terminal.until_shows("succeeded");
}

#[test]
fn a_failed_run_leaves_its_failure_on_the_normal_screen() {
    let mut terminal = Terminal::simulate(&["--fault", "fail:1@0.5"], &[]);
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
    shell.until("the shell", |t| !t.alternate());
    shell.send("clear; kill -TERM %1; fg; echo code=$?\n");
    shell.until_shows("code=130");
    assert!(!shell.alternate());
}

#[cfg(debug_assertions)]
#[test]
fn a_panic_gives_the_terminal_back_before_its_message() {
    let mut terminal = Terminal::simulate(&[], &[("RANKDECK_TEST_PANIC", "1")]);
    assert_eq!(terminal.wait(), 101);
    terminal.assert_restored();
    terminal.until_shows("asked for by RANKDECK_TEST_PANIC");
    terminal.until_shows("rankdeck attach");
}

#[test]
fn a_lost_terminal_ends_the_console() {
    let mut terminal = Terminal::simulate(&[], &[]);
    terminal.until_shows("running");
    // The reading thread holds the terminal open: hang up as the kernel would.
    terminal.signal(libc::SIGHUP);
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn a_terminal_that_cannot_show_a_screen_is_refused() {
    let mut terminal = Terminal::simulate(&[], &[("TERM", "dumb")]);
    assert_eq!(terminal.wait(), 2);
    terminal.until_shows("--headless");
    assert!(!terminal.raw.lock().unwrap().contains(&b'\x1b'), "no escape sequence");
}

#[test]
fn a_stop_and_go_from_outside_repaints() {
    let mut terminal = Terminal::simulate(&[], &[]);
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
