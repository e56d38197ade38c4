//! A program in a real terminal: its screen, input and exit.

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Timeout of each step, for a machine that is also compiling.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A terminal with a program, killed on drop.
pub struct Terminal {
    pub screen: Arc<Mutex<vt100::Parser>>,
    pub raw: Arc<Mutex<Vec<u8>>>,
    /// Whether output of the program is read.
    reads: Arc<(Mutex<bool>, Condvar)>,
    writer: Box<dyn Write + Send>,
    master: Box<dyn MasterPty + Send>,
    pub child: Box<dyn Child + Send + Sync>,
}

impl Terminal {
    /// Starts a program in a terminal of 30 rows and 100 columns.
    pub fn start(program: &str, args: &[&str], envs: &[(&str, &str)]) -> Terminal {
        Terminal::start_in(&std::env::temp_dir(), program, args, envs)
    }

    /// Starts a program in a folder.
    pub fn start_in(
        folder: &std::path::Path,
        program: &str,
        args: &[&str],
        envs: &[(&str, &str)],
    ) -> Terminal {
        let size = PtySize { rows: 30, cols: 100, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(folder);
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
        let reads = Arc::new((Mutex::new(true), Condvar::new()));
        let may_read = Arc::clone(&reads);
        std::thread::spawn(move || {
            let mut bytes = [0; 8192];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                let gate = may_read.0.lock().unwrap();
                drop(may_read.1.wait_while(gate, |reads| !*reads).unwrap());
                to_screen.lock().unwrap().process(&bytes[..n]);
                to_raw.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        let writer = pair.master.take_writer().unwrap();
        Terminal { screen, raw, reads, writer, master: pair.master, child }
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub fn alternate(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    pub fn send(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).unwrap();
        self.writer.flush().unwrap();
    }

    /// Sets whether output is read; if not, the terminal behaves like one behind a dead connection.
    pub fn read(&self, reads: bool) {
        *self.reads.0.lock().unwrap() = reads;
        self.reads.1.notify_all();
    }

    /// Returns whether a thread of the program is blocked writing.
    pub fn is_stuck(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.child.process_id().unwrap());
        let writes = format!("{} ", libc::SYS_write);
        std::fs::read_dir(tasks).unwrap().flatten().any(|task| {
            std::fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| call.starts_with(&writes))
        })
    }

    /// Stops reading, and requests redraws until the buffer is full.
    pub fn fill(&mut self) {
        self.read(false);
        let deadline = Instant::now() + DEADLINE;
        while !self.is_stuck() {
            assert!(Instant::now() < deadline, "the terminal does not become full");
            self.send("\x0c");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the raw output so far.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.raw.lock().unwrap()).into_owned()
    }

    pub fn resize(&self, cols: u16, rows: u16) {
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        self.screen.lock().unwrap().screen_mut().set_size(rows, cols);
        self.master.resize(size).unwrap();
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is not reaped yet, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.process_id().unwrap() as i32, signal) }, 0);
    }

    /// Signals the program and its children, for scripts that do not forward signals.
    pub fn signal_all(&self, signal: i32) {
        let pid = self.child.process_id().unwrap();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
            // SAFETY: a plain system call; the pid was read a moment ago.
            unsafe { libc::kill(pid, signal) };
        }
    }

    pub fn until(&self, what: &str, condition: impl Fn(&Terminal) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "timed out: {what}; the screen shows:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn until_shows(&self, text: &str) {
        self.until(text, |terminal| terminal.text().contains(text));
    }

    pub fn wait(&mut self) -> u32 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.exit_code();
            }
            assert!(Instant::now() < deadline, "the program did not end; the screen shows:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the modes of the terminal: canonical, echo, signals.
    pub fn modes(&self) -> (bool, bool, bool) {
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

    /// Checks that the terminal is restored: modes, screen, cursor, mouse, paste.
    pub fn assert_restored(&self) {
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
