//! A real OpenSSH server on 127.0.0.1, for the current user, in a temporary folder, ended on drop.

pub use rankdeck_testkit::program;
use rankdeck_testkit::{free_port, skipped};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of steps that should be immediate; machines that run tests are busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `holds`.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Creates a key pair `path` and `path.pub`.
pub fn keygen(path: &Path, kind: &str, passphrase: &str) {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-a", "1", "-N", passphrase, "-C", "test", "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// A running server.
pub struct Sshd {
    /// Port.
    pub port: u16,
    /// Folder with keys, log and remote caches.
    pub folder: PathBuf,
    extra: String,
    child: Option<Child>,
    _keep: tempfile::TempDir,
}

impl Sshd {
    /// Starts a server with `extra` lines of configuration, which come first because the first line of a kind
    /// applies; `None` if the test is skipped.
    pub fn start(extra: &str) -> Option<Sshd> {
        for name in ["sshd", "ssh-keygen", "ssh", "python3"] {
            if program(name).is_none() {
                skipped(&format!("no {name}; install openssh-server and python3"));
                return None;
            }
        }
        let keep = tempfile::Builder::new().prefix("rdssh").tempdir().unwrap();
        let folder = keep.path().to_path_buf();
        keygen(&folder.join("host_ed25519"), "ed25519", "");
        fs::write(folder.join("authorized_keys"), "").unwrap();
        let mut server = Sshd { port: 0, folder, extra: extra.into(), child: None, _keep: keep };
        server.up();
        Some(server)
    }

    /// Restarts with other lines of configuration.
    pub fn configure(&mut self, extra: &str) {
        self.down();
        self.extra = extra.into();
        self.up();
    }

    /// Starts the server, on its former port if it had one.
    pub fn up(&mut self) {
        // A privileged server needs its separation folder, which boot scripts create.
        let _ = fs::create_dir_all("/run/sshd");
        let binary = program("sshd").unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let port = match self.port {
                0 => free_port(),
                port => port,
            };
            let config = self.folder.join("sshd_config");
            fs::write(&config, self.config(port)).unwrap();
            let mut child = Command::new(&binary)
                .args(["-D", "-f"])
                .arg(&config)
                .arg("-E")
                .arg(self.folder.join("log"))
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            // If the port was taken meanwhile, the server ends and another port is tried.
            while child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "sshd does not listen: {}", self.log());
                if self.log().contains(&format!("Server listening on 127.0.0.1 port {port}."))
                    && TcpStream::connect(("127.0.0.1", port)).is_ok()
                {
                    self.port = port;
                    self.child = Some(child);
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(Instant::now() < deadline, "sshd does not start: {}", self.log());
        }
    }

    fn config(&self, port: u16) -> String {
        let folder = self.folder.display();
        // With SHLVL, bash skips the start files of the current user. Real GPUs are hidden.
        format!(
            "{}\nListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_ed25519\nPidFile none\nAuthorizedKeysFile {folder}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             LogLevel VERBOSE\nPrintMotd no\nPrintLastLog no\nMaxStartups 100\nSetEnv RANKDECK_CACHE={folder}/cache SHLVL=2 CUDA_VISIBLE_DEVICES=\n",
            self.extra
        )
    }

    /// Accepts the key `key.pub`.
    pub fn authorize(&self, key: &Path) {
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let file = self.folder.join("authorized_keys");
        fs::write(&file, fs::read_to_string(&file).unwrap() + &public).unwrap();
    }

    /// Returns `type base64` of the host key file `name`.
    pub fn host_key(&self, name: &str) -> String {
        let public = fs::read_to_string(self.folder.join(name).with_extension("pub")).unwrap();
        public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Returns the number of accepted logins.
    pub fn logins(&self) -> usize {
        self.log().matches("Accepted publickey ").count()
    }

    /// Suspends or resumes the server and its sessions, which a client sees as a dead network.
    pub fn stall(&self, stalled: bool) {
        let signal = if stalled { libc::SIGSTOP } else { libc::SIGCONT };
        let Some(process) = &self.child else { return };
        for pid in descendants(process.id()).into_iter().filter(|&pid| command(pid).starts_with("sshd")) {
            kill(pid, signal);
        }
        kill(process.id(), signal);
    }

    /// Kills every session, as a crash of its sshd process would; the listener stays. Returns whether there
    /// was one.
    pub fn kill_sessions(&self) -> bool {
        let Some(child) = &self.child else { return false };
        let below = descendants(child.id());
        let sessions: Vec<u32> = below.into_iter().filter(|&pid| command(pid).starts_with("sshd")).collect();
        for &pid in &sessions {
            kill(pid, libc::SIGKILL);
        }
        !sessions.is_empty()
    }

    /// Returns whether there is a session or login.
    pub fn has_sessions(&self) -> bool {
        let Some(child) = &self.child else { return false };
        descendants(child.id()).into_iter().any(|pid| command(pid).starts_with("sshd"))
    }

    /// Ends the server and its sessions.
    pub fn down(&mut self) {
        self.kill_sessions();
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of sshd:\n{}", self.log());
        }
        self.down();
    }
}

/// Sends a signal.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: a plain system call; the pid was read from /proc or a pid file of this test a moment ago.
    unsafe { libc::kill(pid as i32, signal) };
}

fn command(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// Returns all descendants of `pid`.
fn descendants(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.iter().flat_map(|&child| std::iter::once(child).chain(descendants(child))).collect()
}
