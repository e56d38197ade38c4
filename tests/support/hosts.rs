//! Hosts for tests that need more than one: OpenSSH servers on loopback, and the test bed's namespaces.

use super::sshd::{Sshd, keygen};
use super::terminal::Terminal;
use super::{Bench, Console, libtorch, stripped_console};
use rankdeck_testkit::{program, repository, skipped};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Hosts on loopback, each with its own server, host key, port and working folder.
pub struct Loopback {
    pub bench: Bench,
    pub servers: Vec<Sshd>,
    pub hosts: PathBuf,
}

impl Loopback {
    /// Starts hosts; `None` if the test is skipped.
    pub fn start(nodes: usize, nproc: usize) -> Option<Loopback> {
        Loopback::start_with(nodes, nproc, "")
    }

    /// Like [`Loopback::start`], with more lines for the servers' configuration.
    pub fn start_with(nodes: usize, nproc: usize, extra: &str) -> Option<Loopback> {
        let bench = Bench::new();
        let key = bench.path().join("id");
        keygen(&key, "ed25519", "");
        let mut text = format!("[defaults]\nidentity_file = {key:?}\nnproc = {nproc}\n");
        let (mut known, mut servers) = (String::new(), Vec::new());
        for node in 0..nodes {
            let server = Sshd::start(extra)?;
            server.authorize(&key);
            known += &format!("[127.0.0.1]:{} {}\n", server.port, server.host_key("host_ed25519"));
            let workdir = bench.path().join(format!("host{node}"));
            std::fs::create_dir(&workdir).unwrap();
            text += &format!(
                "[[host]]\nname = \"h{node}\"\naddress = \"127.0.0.1\"\nport = {}\nworkdir = {workdir:?}\n",
                server.port
            );
            servers.push(server);
        }
        bench.write("known_hosts", &known);
        let config = format!(
            "Host *\nUserKnownHostsFile {}\nGlobalKnownHostsFile none\nIdentityAgent none\nIdentitiesOnly yes\n",
            bench.path().join("known_hosts").display()
        );
        bench.write("ssh_config", &config);
        let hosts = bench.write("hosts.toml", &text);
        Some(Loopback { bench, servers, hosts })
    }

    /// Installs this build's agent, as a first run does.
    pub fn with_agent(self) -> Loopback {
        self.servers.iter().for_each(|server| install_agent(&server.folder.join("cache")));
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(stripped_console());
        command.args(args).args(["--hosts", self.hosts.to_str().unwrap()]);
        command.env("RANKDECK_SSH_CONFIG", self.bench.path().join("ssh_config"));
        command.current_dir(self.bench.path());
        command
    }

    pub fn console(&self, args: &[&str]) -> Console {
        let mut command = self.command(args);
        command.args(["--headless", "--json"]);
        Console::spawn(command)
    }
}

/// Copies this build's agent into a host's cache, as a first run does: folders are named by content.
fn install_agent(cache: &Path) {
    let console = stripped_console();
    let hash = std::fs::read_to_string(console.with_extension("sha256")).unwrap();
    let folder = cache.join(&hash[..16]);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(console, folder.join("rankdeck")).unwrap();
}

/// Hosts in namespaces (tests/testbed), removed on drop.
pub struct TestBed {
    pub script: PathBuf,
    pub folder: tempfile::TempDir,
    /// Password of the hosts' user, unique to this bed.
    pub password: String,
}

/// Network of the hosts.
const NET: &str = "10.77.0";

impl TestBed {
    /// Starts hosts, rootless if not run as root; `None` if the test is skipped.
    pub fn start(nodes: usize) -> Option<TestBed> {
        for name in ["sshd", "ssh-keygen", "ip", "nft", "unshare", "nsenter", "openssl", "ps", "perl"] {
            if program(name).is_none() {
                skipped(&format!("no {name} for a test bed; tests/setup/packages.sh test"));
                return None;
            }
        }
        let folder = tempfile::Builder::new().prefix("rdbed").tempdir().unwrap();
        let password = format!("pw-{:016x}", RandomState::new().build_hasher().finish());
        let bed = TestBed { script: repository("tests/testbed/testbed"), folder, password };
        let owner = std::process::id().to_string();
        let mut up = bed.call(&["up", &nodes.to_string()]);
        // Longer than a pipe, as the environment is on some machines; the bed searches for itself in it.
        up.env("TESTBED_OWNER", owner).env("TESTBED_BALLAST", "x".repeat(100_000));
        up.env("TESTBED_PASSWORD", &bed.password);
        let up = up.output().unwrap();
        let stderr = String::from_utf8_lossy(&up.stderr).into_owned();
        if stderr.contains("namespaces here") {
            skipped(&format!("no test bed: {}", stderr.trim()));
            return None;
        }
        assert!(up.status.success(), "the test bed does not start: {stderr}");
        Some(bed)
    }

    /// Starts hosts with passwords and control groups, which need root.
    pub fn start_as_root(nodes: usize) -> Option<TestBed> {
        // SAFETY: geteuid takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            skipped("only root can create hosts with passwords");
            return None;
        }
        TestBed::start(nodes)
    }

    /// Installs this build's agent, as a first run does.
    pub fn with_agent(self) -> TestBed {
        for home in (0..).map(|node| self.folder.path().join(format!("node{node}/home/tb"))) {
            let Ok(facts) = std::fs::metadata(&home) else { break };
            install_agent(&home.join(".cache/rankdeck"));
            let owner = format!("{}:{}", facts.uid(), facts.gid());
            let done = Command::new("chown").args(["-R", &owner]).arg(home.join(".cache")).status();
            assert!(done.unwrap().success());
        }
        self
    }

    pub fn call(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(args).env("TESTBED_DIR", self.folder.path());
        // Hosts have their own /tmp and /home, which may hide libtorch and the libraries next to it.
        if let Ok(libtorch) = libtorch().canonicalize() {
            command.env("TESTBED_BIND", libtorch.parent().unwrap());
        }
        command
    }

    /// Writes hosts.toml.
    pub fn hosts(&self, nodes: usize, nproc: usize, more: &str) -> PathBuf {
        let mut text = format!("[defaults]\nworkdir = \"work\"\nnproc = {nproc}\n{more}");
        for node in 0..nodes {
            text += &format!("[[host]]\nname = \"node{node}\"\naddress = \"{NET}.{}\"\n", 10 + node);
        }
        let path = self.folder.path().join("hosts.toml");
        std::fs::write(&path, text).unwrap();
        // The configuration of the bed has host names, but the rendezvous needs addresses. With BatchMode,
        // Debian's ssh sets ServerAliveInterval to 300.
        let config = std::fs::read_to_string(self.folder.path().join("client/config")).unwrap();
        std::fs::write(
            self.folder.path().join("config"),
            config
                .replace("Host node*", &format!("Host node* {NET}.*"))
                .replace("BatchMode yes", "BatchMode no"),
        )
        .unwrap();
        path
    }

    pub fn console(&self, hosts: &Path, args: &[&str]) -> Console {
        let mut command = self.inside(&stripped_console());
        command.args(args).args(["--hosts", hosts.to_str().unwrap(), "--headless", "--json"]);
        command.env("RANKDECK_SSH_CONFIG", self.folder.path().join("config")).current_dir(self.folder.path());
        Console::spawn(command)
    }

    /// Returns a program on the console's host of the bed.
    fn inside(&self, program: &Path) -> Command {
        self.call(&["exec", "console", program.to_str().unwrap()])
    }

    /// Returns a command of this build on the console's host.
    pub fn rankdeck(&self, hosts: &Path, args: &[&str]) -> Command {
        let mut command = self.inside(&stripped_console());
        command.args(args).args(["--hosts", hosts.to_str().unwrap()]);
        command.env("RANKDECK_SSH_CONFIG", self.folder.path().join("config")).current_dir(self.folder.path());
        command
    }

    /// Starts a command of this build in a terminal on the console's host.
    pub fn terminal(&self, hosts: &Path, args: &[&str]) -> Terminal {
        let folder = self.folder.path().display().to_string();
        let config = self.folder.path().join("config").display().to_string();
        let console = stripped_console();
        let mut words = vec!["exec", "console", console.to_str().unwrap()];
        words.extend(args);
        words.extend(["--hosts", hosts.to_str().unwrap()]);
        let envs = [("TESTBED_DIR", folder.as_str()), ("RANKDECK_SSH_CONFIG", config.as_str())];
        Terminal::start_in(self.folder.path(), self.script.to_str().unwrap(), &words, &envs)
    }

    /// Returns a line of hosts.toml with this machine's libtorch as the hosts see it.
    pub fn libtorch(&self) -> String {
        let folder = libtorch().canonicalize().unwrap();
        format!("libtorch = {:?}\n", Path::new("/mnt/bound").join(folder.file_name().unwrap()))
    }

    /// Injects a fault.
    pub fn fault(&self, node: usize, args: &[&str]) {
        let node = format!("node{node}");
        let output = self.call(&[&["fault", &node], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }

    /// Runs a shell line on a host as root.
    pub fn on(&self, node: usize, line: &str) -> String {
        let output = self.call(&["exec", &format!("node{node}"), "sh", "-c", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Lists the processes of a host, except its servers.
    pub fn processes(&self, node: usize) -> String {
        let output = self.call(&["ps", &format!("node{node}")]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let down = self.call(&["down"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&down.stderr);
        assert!(down.status.success() || std::thread::panicking(), "the test bed does not end: {stderr}");
    }
}
