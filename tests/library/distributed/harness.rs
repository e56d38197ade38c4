//! A world of ranks: what each is to do, and what they answer.

use super::process::{RankProcess, Variables};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_trainer::distributed::{BackendKind, DistError, GroupSettings, ProcessGroup};
use rankdeck_trainer::support::page::StatusPage;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use tch::Device;

/// Longer than any scenario needs on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A rank process, from inside.
pub struct Me {
    pub role: String,
    pub rank: u32,
    pub world_size: u32,
    pub port: u16,
    pub timeout: Duration,
    pub page: Option<PathBuf>,
    pub backend: BackendKind,
}

impl Me {
    pub fn from_environment() -> Option<Me> {
        let get = |name: &str| std::env::var(name).ok();
        let number = |name: &str| get(name).and_then(|text| text.parse::<u32>().ok());
        tch::set_num_threads(1);
        Some(Me {
            role: get("DIST_ROLE")?,
            rank: number("RANK")?,
            world_size: number("WORLD_SIZE")?,
            port: number("MASTER_PORT")? as u16,
            timeout: Duration::from_millis(u64::from(number("DIST_TIMEOUT_MS")?)),
            page: get("DIST_PAGE").map(PathBuf::from),
            backend: match get("DIST_BACKEND").as_deref() {
                Some("nccl") => BackendKind::Nccl,
                _ => BackendKind::Tcp,
            },
        })
    }

    pub fn settings(&self) -> GroupSettings {
        GroupSettings {
            rank: self.rank,
            world_size: self.world_size,
            local_rank: 0,
            master_addr: "127.0.0.1".into(),
            master_port: self.port,
            backend: self.backend,
            timeout: self.timeout,
            shared_memory: std::env::var("DIST_TCP_ONLY").is_err(),
            interface: None,
            generation: 0,
            secret: std::env::var(GroupSecret::VARIABLE).ok().and_then(|text| GroupSecret::from_hex(&text)),
            device: self.device(),
            interrupt: None,
        }
    }

    /// Where this rank's tensors live; all NCCL ranks share the first GPU.
    pub fn device(&self) -> Device {
        match self.backend {
            BackendKind::Tcp => Device::Cpu,
            BackendKind::Nccl => Device::Cuda(0),
        }
    }

    pub fn page(&self) -> StatusPage {
        let writer = match &self.page {
            Some(path) => StatusPageWriter::create(path, self.rank, 0),
            None => StatusPageWriter::anonymous(self.rank, 0),
        };
        StatusPage::new(writer.unwrap())
    }

    pub fn connect(&self) -> ProcessGroup {
        ProcessGroup::connect(&self.settings(), self.page()).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Prints what the tests judge.
pub fn answer(value: &Value) {
    let mut out = std::io::stdout().lock();
    // On a line of its own: libtest has printed the start of one.
    writeln!(out, "\nRESULT {value}").unwrap();
    out.flush().unwrap();
}

pub fn error_value(error: &DistError) -> Value {
    json!({
        "kind": format!("{:?}", error.kind),
        "phase": format!("{:?}", error.phase),
        "collective": error.collective.as_ref().map(|name| json!({
            "seq": name.seq,
            "op": name.op.name(),
            "tag": name.tag,
        })),
        "rank": error.rank,
        "message": error.to_string(),
        "hint": error.hint(),
    })
}

/// A world of rank processes to be; `one` may differ from the rest.
pub struct World {
    pub role: &'static str,
    pub world_size: u32,
    /// Ranks to start; the others stay missing.
    pub ranks: Vec<u32>,
    pub timeout: Duration,
    pub env: HashMap<String, String>,
    pub env_of: HashMap<u32, HashMap<String, String>>,
    pub pages: Option<PathBuf>,
    pub port: Option<u16>,
}

impl World {
    pub fn new(role: &'static str, world_size: u32) -> World {
        World {
            role,
            world_size,
            ranks: (0..world_size).collect(),
            timeout: Duration::from_secs(60),
            env: HashMap::new(),
            env_of: HashMap::new(),
            pages: None,
            port: None,
        }
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> World {
        self.env.insert(name.into(), value.to_string());
        self
    }

    pub fn env_of(mut self, rank: u32, name: &str, value: impl ToString) -> World {
        self.env_of.entry(rank).or_default().insert(name.into(), value.to_string());
        self
    }

    pub fn start(self) -> Ranks {
        // Rank 0 takes over a socket that is bound already: no other process can take the port in between.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = self.port.unwrap_or_else(|| listener.local_addr().unwrap().port());
        let children = self.ranks.iter().map(|rank| {
            let store = (*rank == 0 && self.port.is_none()).then_some(listener.as_fd());
            (*rank, RankProcess::start(&self.variables(*rank, port, store), store))
        });
        let mut children: Vec<(u32, RankProcess)> = children.collect();
        children.iter_mut().for_each(|(_, rank)| rank.read_output());
        Ranks { children }
    }

    /// A variable of a rank's environment, if it is set.
    fn variables(&self, rank: u32, port: u16, store: Option<BorrowedFd>) -> Variables {
        let mut all = Variables::new();
        let mut set = |name: &str, value: String| all.insert(name.into(), Some(value));
        set("DIST_ROLE", self.role.into());
        set("RANK", rank.to_string());
        set("WORLD_SIZE", self.world_size.to_string());
        set("MASTER_PORT", port.to_string());
        set("DIST_TIMEOUT_MS", self.timeout.as_millis().to_string());
        set("OMP_NUM_THREADS", "1".into());
        set("RUST_BACKTRACE", "0".into());
        set(GroupSecret::VARIABLE, "5e".repeat(32));
        // On a machine that has GPUs, those that the test requests.
        set("CUDA_VISIBLE_DEVICES", String::new());
        if let Some(folder) = &self.pages {
            set("DIST_PAGE", page_of(folder, rank).to_str().unwrap().into());
        }
        let store = store.map(|store| store.as_raw_fd().to_string());
        all.extend([
            ("GLOO_SOCKET_IFNAME".into(), None),
            ("TORCHELASTIC_USE_AGENT_STORE".into(), None),
            ("RANKDECK_STORE_FD".into(), store),
        ]);
        let more = self.env.iter().chain(self.env_of.get(&rank).into_iter().flatten());
        all.extend(more.map(|(name, value)| (name.clone(), Some(value.clone()))));
        all
    }
}

pub fn page_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank{rank}.page"))
}

/// How a rank ended.
#[derive(Debug)]
pub struct End {
    pub status: ExitStatus,
    pub output: String,
    pub result: Option<Value>,
}

/// Started rank processes; those that still live are killed when this goes.
pub struct Ranks {
    children: Vec<(u32, RankProcess)>,
}

impl Ranks {
    pub fn pid(&self, rank: u32) -> i32 {
        self.children.iter().find(|(r, _)| *r == rank).unwrap().1.pid()
    }

    /// Waits for these ranks.
    pub fn wait(&mut self, ranks: &[u32]) -> Vec<End> {
        let started = Instant::now();
        ranks
            .iter()
            .map(|expected| {
                let (_, rank) = self.children.iter_mut().find(|(r, _)| r == expected).unwrap();
                let (status, [out, err]) = rank.end(started + DEADLINE);
                let result = out
                    .lines()
                    .filter_map(|line| line.strip_prefix("RESULT "))
                    .find_map(|json| serde_json::from_str(json).ok());
                End { status, output: format!("{out}\n--- stderr\n{err}"), result }
            })
            .collect()
    }

    /// Waits for all of them and expects each to succeed with a result.
    pub fn results(mut self) -> Vec<Value> {
        let ranks: Vec<u32> = self.children.iter().map(|(rank, _)| *rank).collect();
        self.wait(&ranks)
            .into_iter()
            .zip(ranks)
            .map(|(end, rank)| {
                assert!(end.status.success(), "rank {rank}: {:?}\n{}", end.status, end.output);
                end.result.unwrap_or_else(|| panic!("rank {rank} gave no result\n{}", end.output))
            })
            .collect()
    }
}

/// Polls until it holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
