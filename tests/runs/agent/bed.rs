//! A host to test on: one working folder, agents of the real binary in it, consoles with the real protocol.
//!
//! Everything that a test starts carries the run's tag; dropping the bed ends all of it and verifies that.

use rankdeck_agent::proc;
use rankdeck_agent::serve::daemon::ServingAgent;
use rankdeck_proto::frame::{Decoder, encode};
use rankdeck_proto::message::*;
use rankdeck_proto::run_entry::{RunEntry, RunList};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId};
use rankdeck_types::plan::{Plan, PlannedHost, PlannedRank};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A generous bound for anything that is expected to happen: two cores, shared with others.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `done` gives a value.
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub struct Bed {
    folder: tempfile::TempDir,
    pub run: String,
    pub timing: String,
    /// Soft and hard limit of open files that agents are started with.
    pub files: Option<(u64, u64)>,
}

impl Bed {
    pub fn new(name: &str) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let run = format!("{name}-{}", std::process::id());
        Bed { folder, run, timing: String::new(), files: None }
    }

    pub fn workdir(&self) -> &Path {
        self.folder.path()
    }

    pub fn node_dir(&self, node: u32) -> PathBuf {
        self.workdir().canonicalize().unwrap().join("runs").join(&self.run).join(format!("node{node}"))
    }

    pub fn script(&self, name: &str, text: &str) -> String {
        let path = self.workdir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub fn agent(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck"));
        command
            .arg("agent")
            .args(args)
            .env("RANKDECK_AGENT_TIMING", &self.timing)
            .env("XDG_RUNTIME_DIR", self.sockets())
            .stdin(Stdio::null());
        if let Some((soft, hard)) = self.files {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
            unsafe {
                command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
        }
        command.output().unwrap()
    }

    fn sockets(&self) -> PathBuf {
        use std::os::unix::fs::DirBuilderExt;
        let folder = self.workdir().join("x");
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        folder
    }

    pub fn start_args<'a>(&'a self, node: &'a str) -> Vec<&'a str> {
        let workdir = self.workdir().to_str().unwrap();
        vec!["start", "--run", &self.run, "--host", "a", "--node-rank", node, "--workdir", workdir]
    }

    pub fn start(&self) -> ServingAgent {
        self.start_node(0)
    }

    pub fn start_node(&self, node: u32) -> ServingAgent {
        answer(&self.agent(&self.start_args(&node.to_string())), "RANKDECK-AGENT")
    }

    pub fn list(&self) -> Vec<RunEntry> {
        let output = self.agent(&["list", "--workdir", self.workdir().to_str().unwrap()]);
        answer::<RunList>(&output, "RANKDECK-LIST").runs
    }

    /// Live processes that carry this run's mark.
    pub fn marked(&self) -> Vec<proc::ProcStat> {
        let folder = self.workdir().canonicalize().unwrap().join("runs").join(&self.run);
        let folder = folder.to_str().unwrap().as_bytes().to_vec();
        proc::all()
            .into_iter()
            .filter(|stat| !stat.is_gone())
            .filter(|stat| {
                proc::environ(stat.pid)
                    .is_some_and(|environ| proc::variable(&environ, "RANKDECK_RUN_DIR") == Some(&folder))
            })
            .collect()
    }

    /// Agents and guards of this run.
    pub fn watchers(&self) -> Vec<proc::ProcStat> {
        proc::all()
            .into_iter()
            .filter(|stat| !stat.is_gone())
            .filter(|stat| {
                let line = std::fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
                let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
                words.get(1) == Some(&&b"agent"[..])
                    && matches!(words.get(2), Some(&b"serve") | Some(&b"guard"))
                    && words.contains(&self.run.as_bytes())
            })
            .collect()
    }

    /// A plan with `ranks` ranks on node 0 that run `command`.
    pub fn spec(&self, generation: u32, ranks: u32, command: &[&str]) -> LaunchSpec {
        let mut experiment: rankdeck_types::experiment::Experiment =
            toml::from_str("[run]\nname = \"test\"\n[launch]\nstop_grace_s = 1.0").unwrap();
        experiment.launch.command = command.iter().map(|word| word.to_string()).collect();
        LaunchSpec {
            generation: Generation(generation),
            node_rank: NodeRank(0),
            master_addr: "127.0.0.1".into(),
            master_port: 29500,
            resume: None,
            resume_at: None,
            plan: Plan {
                run: RunId(self.run.clone()),
                experiment,
                program: None,
                hosts: vec![PlannedHost::new(
                    NodeRank(0),
                    Host {
                        name: "a".into(),
                        address: "127.0.0.1".into(),
                        workdir: self.workdir().display().to_string(),
                        ..Host::default()
                    },
                )],
                ranks: (0..ranks)
                    .map(|i| PlannedRank {
                        rank: Rank(i),
                        local_rank: LocalRank(i),
                        node_rank: NodeRank(0),
                        gpu: None,
                    })
                    .collect(),
                sizes: vec![],
                drill: false,
            },
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The guards first would be wrong: each agent's death makes its guard clean up and end.
        for stat in self.watchers() {
            kill(stat.pid, libc::SIGCONT);
        }
        let agents: Vec<u32> = self.watchers().iter().map(|stat| stat.pid).collect();
        for pid in &agents {
            kill(*pid, libc::SIGKILL);
        }
        let begun = Instant::now();
        loop {
            let left: Vec<u32> = self.marked().iter().chain(&self.watchers()).map(|stat| stat.pid).collect();
            if left.is_empty() || begun.elapsed() > Duration::from_secs(20) {
                break;
            }
            for pid in left {
                kill(pid, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // An agent and its guard that were killed together have removed nothing.
        self.agent(&["sweep", "--run", &self.run, "--workdir", self.workdir().to_str().unwrap()]);
    }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill takes two integers; the pids are those of processes that this test started.
    unsafe { libc::kill(pid as i32, signal) };
}

/// The JSON after a marker.
pub fn answer<T: serde::de::DeserializeOwned>(output: &Output, marker: &str) -> T {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(marker));
    let line = line
        .unwrap_or_else(|| panic!("no {marker} in {text:?} {:?}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// A console on an agent's socket.
pub struct Console {
    stream: UnixStream,
    decoder: Decoder,
    /// Everything but samples and logs, in order of arrival.
    pub records: Vec<Record>,
    pub samples: Vec<HostSample>,
    pub lines: Vec<(Rank, u64, String)>,
    pub others: Vec<AgentMessage>,
    pub snapshot: Option<AgentMessage>,
}

impl Console {
    pub fn attach(started: &ServingAgent, after_seq: u64) -> Console {
        let stream = UnixStream::connect(&started.socket).unwrap();
        let mut console = Console::over(stream);
        console.send(&ConsoleMessage::Attach {
            protocol: PROTOCOL,
            build: "test".into(),
            after_seq,
            log_tail: 100,
        });
        console.wait("snapshot", |console| console.snapshot.is_some());
        console
    }

    pub fn over(stream: UnixStream) -> Console {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Console {
            stream,
            decoder: Decoder::default(),
            records: vec![],
            samples: vec![],
            lines: vec![],
            others: vec![],
            snapshot: None,
        }
    }

    pub fn send(&mut self, message: &ConsoleMessage) {
        self.stream.write_all(&encode(message).unwrap()).unwrap();
    }

    pub fn launch(&mut self, spec: LaunchSpec) {
        self.send(&ConsoleMessage::Launch {
            spec: Box::new(spec),
            private: Default::default(),
            after_end: false,
        });
    }

    pub fn stop(&mut self, mode: StopMode, grace_ms: u64) {
        self.send(&ConsoleMessage::Stop { mode, grace_ms, ends: false });
    }

    /// Takes in what has arrived; `false` when the agent has closed.
    pub fn pump(&mut self) -> bool {
        let mut chunk = vec![0; 1 << 16];
        match self.stream.read(&mut chunk) {
            Ok(0) => return false,
            Ok(read) => self.decoder.push(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        while let Some(message) = self.decoder.next_frame::<AgentMessage>().unwrap() {
            match message {
                AgentMessage::Record(record) => self.records.push(record),
                AgentMessage::Sample(sample) => {
                    self.samples.push(*sample);
                    if self.samples.len() > 100 {
                        self.samples.remove(0);
                    }
                }
                AgentMessage::Log { rank, first, lines, .. } => {
                    self.lines.extend((first..).zip(lines).map(|(number, line)| (rank, number, line)));
                }
                snapshot @ AgentMessage::Snapshot { .. } => self.snapshot = Some(snapshot),
                other => self.others.push(other),
            }
        }
        true
    }

    pub fn wait(&mut self, what: &str, mut done: impl FnMut(&Console) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(
                begun.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}; records: {:#?}; others: {:?}",
                self.records.iter().map(|record| &record.event).collect::<Vec<_>>(),
                self.others
            );
            if !self.pump() {
                assert!(done(self), "the agent closed before: {what}; {:?}", self.others);
                return;
            }
        }
    }

    pub fn find<T>(&self, pick: impl FnMut(&RecordEvent) -> Option<T>) -> Option<T> {
        self.records.iter().map(|record| &record.event).find_map(pick)
    }

    /// The process of a rank, once it is spawned.
    pub fn pid(&mut self, rank: u32) -> u32 {
        let spawned = |event: &RecordEvent| match event {
            RecordEvent::RankSpawned { rank: Rank(r), pid, .. } if *r == rank => Some(*pid),
            _ => None,
        };
        self.wait("rank spawned", |console| console.find(spawned).is_some());
        self.find(spawned).unwrap()
    }

    /// How a rank ended, once it has.
    pub fn exit(&mut self, rank: u32) -> (Exit, Vec<String>, bool) {
        let exited = |event: &RecordEvent| match event {
            RecordEvent::RankExited { rank: Rank(r), exit, last_lines, stopping, .. } if *r == rank => {
                Some((exit.clone(), last_lines.clone(), *stopping))
            }
            _ => None,
        };
        self.wait("rank exited", |console| console.find(exited).is_some());
        self.find(exited).unwrap()
    }

    /// The proof of the stop, once there is one.
    pub fn stopped(&mut self) -> Vec<Survivor> {
        let stopped = |event: &RecordEvent| match event {
            RecordEvent::Stopped { survivors, .. } => Some(survivors.clone()),
            _ => None,
        };
        self.wait("stopped", |console| console.find(stopped).is_some());
        self.find(stopped).unwrap()
    }

    pub fn wait_line(&mut self, rank: u32, text: &str) {
        self.wait(&format!("line {text:?} of rank {rank}"), |console| {
            console.lines.iter().any(|(r, _, line)| r.0 == rank && line == text)
        });
    }

    pub fn seqs(&self) -> Vec<u64> {
        self.records.iter().map(|record| record.seq).collect()
    }
}
