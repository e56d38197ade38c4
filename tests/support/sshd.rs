//! A real OpenSSH server on 127.0.0.1, for the current user, in a temporary folder; gone when dropped.

pub use rankdeck_testkit::program;
use rankdeck_testkit::{free_port, skipped};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Generous bound of everything that should happen at once; machines that run tests are busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `holds`.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes a key pair `path` and `path.pub`.
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
    /// Its port.
    pub port: u16,
    /// Folder of its keys, log and remote caches.
    pub folder: PathBuf,
    extra: String,
    child: Option<Child>,
    _keep: tempfile::TempDir,
}

impl Sshd {
    /// Starts one with `extra` lines of configuration (the first line of a kind wins, so they come first);
    /// `None` has been noted as a skip.
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

    /// Starts it again with other lines of configuration.
    pub fn configure(&mut self, extra: &str) {
        self.down();
        self.extra = extra.into();
        self.up();
    }

    /// Starts it (again), on its old port if it had one.
    pub fn up(&mut self) {
        // A privileged server wants its separation folder, which only boot scripts make.
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
            // Somebody else may have taken the port meanwhile; then the server ends and another port is
            // tried.
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
        // SHLVL keeps bash from reading the start files of whoever runs the tests. Real GPUs stay hidden.
        format!(
            "{}\nListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_ed25519\nPidFile none\nAuthorizedKeysFile {folder}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             LogLevel VERBOSE\nPrintMotd no\nPrintLastLog no\nMaxStartups 100\nSetEnv RANKDECK_CACHE={folder}/cache SHLVL=2 CUDA_VISIBLE_DEVICES=\n",
            self.extra
        )
    }

    /// Lets the owner of `key.pub` in.
    pub fn authorize(&self, key: &Path) {
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let file = self.folder.join("authorized_keys");
        fs::write(&file, fs::read_to_string(&file).unwrap() + &public).unwrap();
    }

    /// `type base64` of its host key file `name`.
    pub fn host_key(&self, name: &str) -> String {
        let public = fs::read_to_string(self.folder.join(name).with_extension("pub")).unwrap();
        public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// How many logins it has accepted.
    pub fn logins(&self) -> usize {
        self.log().matches("Accepted publickey ").count()
    }

    /// Stops the server and every session, or lets them go on: to a client this looks like a network that
    /// carries nothing.
    pub fn stall(&self, stalled: bool) {
        let signal = if stalled { libc::SIGSTOP } else { libc::SIGCONT };
        let Some(process) = &self.child else { return };
        for pid in descendants(process.id()).into_iter().filter(|&pid| command(pid).starts_with("sshd")) {
            kill(pid, signal);
        }
        kill(process.id(), signal);
    }

    /// Ends every session, as a crash of its sshd process would; the listener stays. `true` when there was
    /// one.
    pub fn kill_sessions(&self) -> bool {
        let Some(child) = &self.child else { return false };
        let below = descendants(child.id());
        let sessions: Vec<u32> = below.into_iter().filter(|&pid| command(pid).starts_with("sshd")).collect();
        for &pid in &sessions {
            kill(pid, libc::SIGKILL);
        }
        !sessions.is_empty()
    }

    /// Is anybody logged in, or about to be?
    pub fn has_sessions(&self) -> bool {
        let Some(child) = &self.child else { return false };
        descendants(child.id()).into_iter().any(|pid| command(pid).starts_with("sshd"))
    }

    /// Ends it and its sessions.
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
            eprintln!("--- sshd said:\n{}", self.log());
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

/// All processes below `pid`.
fn descendants(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.iter().flat_map(|&child| std::iter::once(child).chain(descendants(child))).collect()
}
