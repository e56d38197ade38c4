//! Hosts for tests that need more than one: OpenSSH servers on loopback, and the test bed's namespaces. The test binary brings `mod sshd`.
#![allow(dead_code, reason = "each test binary uses a part")]

use crate::sshd::{Sshd, keygen};
use crate::support::{Bench, Console, rankdeck};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Hosts on loopback: each a server of its own with a host key, a port and a working folder.
pub struct Loopback {
    pub bench: Bench,
    pub servers: Vec<Sshd>,
    pub hosts: PathBuf,
}

impl Loopback {
    /// `None`, with a printed reason, where there is no sshd.
    pub fn start(nodes: usize, nproc: usize) -> Option<Loopback> {
        let bench = Bench::new();
        let key = bench.path().join("id");
        keygen(&key, "ed25519", "");
        let mut text = format!("[defaults]\nidentity_file = {key:?}\nnproc = {nproc}\n");
        let (mut known, mut servers) = (String::new(), Vec::new());
        for node in 0..nodes {
            let server = Sshd::start("")?;
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

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = rankdeck();
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

/// Hosts made of namespaces; gone when dropped.
pub struct TestBed {
    pub script: PathBuf,
    pub folder: tempfile::TempDir,
}

impl TestBed {
    pub fn start(nodes: usize) -> Option<TestBed> {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/testbed/testbed");
        let script = std::env::var_os("RANKDECK_TESTBED").map_or(beside, PathBuf::from);
        if !script.is_file() {
            eprintln!("skipped: no test bed (set RANKDECK_TESTBED to its script)");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("rdbed").tempdir().unwrap();
        let bed = TestBed { script, folder };
        // A busy machine may not start all hosts within the bed's own bounds.
        for attempt in 1.. {
            let up = bed
                .call(&["up", &nodes.to_string()])
                .env("TESTBED_OWNER", std::process::id().to_string())
                .output()
                .unwrap();
            if up.status.success() && String::from_utf8_lossy(&up.stdout).contains("(root)") {
                break;
            }
            let said = String::from_utf8_lossy(&up.stderr).into_owned();
            let _ = bed.call(&["down"]).output();
            let busy = said.contains("not all hosts started");
            assert!(!busy || attempt < 5, "the test bed does not start: {said}");
            if !busy {
                eprintln!("skipped: the test bed has no namespaces here: {said}");
                return None;
            }
        }
        Some(bed)
    }

    pub fn call(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(args).env("TESTBED_DIR", self.folder.path().join("bed")).env("TESTBED_MODE", "root");
        command
    }

    /// Writes hosts.toml; every host's disk is its own.
    pub fn hosts(&self, nodes: usize, nproc: usize, more: &str) -> PathBuf {
        let mut text = format!("[defaults]\nworkdir = \"work\"\nnproc = {nproc}\n{more}");
        for node in 0..nodes {
            text += &format!("[[host]]\nname = \"node{node}\"\naddress = \"10.77.0.{}\"\n", 10 + node);
        }
        let path = self.folder.path().join("hosts.toml");
        std::fs::write(&path, text).unwrap();
        // The bed's own configuration knows its hosts by name; the rendezvous wants addresses. With BatchMode, Debian's ssh makes ServerAliveInterval 300.
        let config = std::fs::read_to_string(self.folder.path().join("bed/client/config")).unwrap();
        std::fs::write(
            self.folder.path().join("config"),
            config.replace("Host node*", "Host node* 10.77.0.*").replace("BatchMode yes", "BatchMode no"),
        )
        .unwrap();
        path
    }

    pub fn console(&self, hosts: &Path, args: &[&str]) -> Console {
        let mut command = self.call(&["exec", "console", env!("CARGO_BIN_EXE_rankdeck")]);
        command.args(args).args(["--hosts", hosts.to_str().unwrap(), "--headless", "--json"]);
        command.env("RANKDECK_SSH_CONFIG", self.folder.path().join("config")).current_dir(self.folder.path());
        Console::spawn(command)
    }

    /// A command of this build in the console's place of the bed.
    pub fn rankdeck(&self, hosts: &Path, args: &[&str]) -> Command {
        let mut command = self.call(&["exec", "console", env!("CARGO_BIN_EXE_rankdeck")]);
        command.args(args).args(["--hosts", hosts.to_str().unwrap()]);
        command.env("RANKDECK_SSH_CONFIG", self.folder.path().join("config")).current_dir(self.folder.path());
        command
    }

    /// Breaks something.
    pub fn fault(&self, node: usize, args: &[&str]) {
        let node = format!("node{node}");
        let output = self.call(&[&["fault", &node], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }

    /// Runs a shell line on a host, as its root.
    pub fn on(&self, node: usize, line: &str) -> String {
        let output = self.call(&["exec", &format!("node{node}"), "sh", "-c", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What runs on a host besides its own servers.
    pub fn processes(&self, node: usize) -> String {
        let output = self.call(&["ps", &format!("node{node}")]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let _ = self.call(&["down"]).output();
    }
}
