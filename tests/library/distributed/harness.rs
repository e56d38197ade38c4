//! Starting, hearing and ending rank processes.

use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::status_page::Writer;
use rankdeck_trainer::distributed::{BackendKind, DistError, GroupSettings, ProcessGroup};
use rankdeck_trainer::page::Page;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
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
            interface: None,
            generation: 0,
            secret: std::env::var(GroupSecret::VARIABLE).ok().and_then(|text| GroupSecret::from_hex(&text)),
            device: self.device(),
        }
    }

    /// Where this rank's tensors live; all NCCL ranks share the first GPU.
    pub fn device(&self) -> Device {
        match self.backend {
            BackendKind::Tcp => Device::Cpu,
            BackendKind::Nccl => Device::Cuda(0),
        }
    }

    pub fn page(&self) -> Page {
        let writer = match &self.page {
            Some(path) => Writer::create(path, self.rank, 0),
            None => Writer::anonymous(self.rank, 0),
        };
        Page::new(writer.unwrap())
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
        let fd = listener.as_raw_fd();
        let children = self
            .ranks
            .iter()
            .map(|rank| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command
                    .args([
                        "--exact",
                        "distributed::rank_process",
                        "--ignored",
                        "--nocapture",
                        "--test-threads=1",
                    ])
                    .env("DIST_ROLE", self.role)
                    .env("RANK", rank.to_string())
                    .env("WORLD_SIZE", self.world_size.to_string())
                    .env("MASTER_PORT", port.to_string())
                    .env("DIST_TIMEOUT_MS", self.timeout.as_millis().to_string())
                    .env("OMP_NUM_THREADS", "1")
                    .env("RUST_BACKTRACE", "0")
                    .env(GroupSecret::VARIABLE, "5e".repeat(32))
                    // On a machine that has GPUs, those of the test that asks for some.
                    .env("CUDA_VISIBLE_DEVICES", "")
                    .env_remove("GLOO_SOCKET_IFNAME")
                    .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                    .env_remove("RANKDECK_STORE_FD")
                    .envs(&self.env)
                    .envs(self.env_of.get(rank).into_iter().flatten())
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                if let Some(folder) = &self.pages {
                    command.env("DIST_PAGE", page_of(folder, *rank));
                }
                if *rank == 0 && self.port.is_none() {
                    command.env("RANKDECK_STORE_FD", fd.to_string());
                    // SAFETY: fcntl is async-signal-safe; the descriptor stays open until `start` returns.
                    unsafe {
                        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                            0 => Ok(()),
                            _ => Err(std::io::Error::last_os_error()),
                        });
                    }
                }
                // SAFETY: prctl is async-signal-safe. Ranks must not outlive a test that is killed.
                unsafe {
                    command.pre_exec(|| {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        Ok(())
                    });
                }
                (*rank, Rank::new(command.spawn().unwrap()))
            })
            .collect();
        Ranks { children }
    }
}

pub fn page_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank{rank}.page"))
}

struct Rank {
    child: Child,
    readers: Option<[std::thread::JoinHandle<String>; 2]>,
}

/// How a rank ended.
#[derive(Debug)]
pub struct End {
    pub status: ExitStatus,
    pub output: String,
    pub result: Option<Value>,
}

fn drain(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Rank {
    fn new(mut child: Child) -> Rank {
        let out = drain(child.stdout.take().unwrap());
        let err = drain(child.stderr.take().unwrap());
        Rank { child, readers: Some([out, err]) }
    }
}

/// Started rank processes; those that still live are killed when this goes.
pub struct Ranks {
    children: Vec<(u32, Rank)>,
}

impl Ranks {
    pub fn pid(&self, rank: u32) -> i32 {
        self.children.iter().find(|(r, _)| *r == rank).unwrap().1.child.id() as i32
    }

    /// Waits for these ranks.
    pub fn wait(&mut self, ranks: &[u32]) -> Vec<End> {
        let started = Instant::now();
        ranks
            .iter()
            .map(|wanted| {
                let (_, rank) = self.children.iter_mut().find(|(r, _)| r == wanted).unwrap();
                let status = loop {
                    if let Some(status) = rank.child.try_wait().unwrap() {
                        break status;
                    }
                    if started.elapsed() > DEADLINE {
                        let _ = rank.child.kill();
                        break rank.child.wait().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(5));
                };
                let [out, err] = rank.readers.take().unwrap().map(|reader| reader.join().unwrap());
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

impl Drop for Ranks {
    fn drop(&mut self) {
        for (_, rank) in &mut self.children {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
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
