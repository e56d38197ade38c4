//! The agent's loop: what happens on the host goes into the machine, what the machine wants done is done here.
//!
//! Owner: the main thread of the agent, a single-threaded runtime. It never waits for a disk, a driver, a console or a rank: those have threads or
//! tasks of their own and report back through one bounded queue (AGENT-2).

mod aftermath;
mod console;
pub mod daemon;
mod duty;
mod events;
mod port;
pub(crate) mod relay;
mod spool;
mod wire;

use crate::clock::wall_time;
use crate::manifest::{self, Manifest};
use crate::observe::{
    gpu,
    logs::{Batch, Logs},
    sample,
};
use crate::paths::RunPaths;
use crate::proc::{self, Ident};
use crate::supervise::{
    cgroup::Cgroup,
    groups, guard,
    lifecycle::Machine,
    oom::OomWatch,
    spawn::Spawner,
    sweep::{self, Scope},
};
use crate::timing::Timing;
use aftermath::{PURGE, mark};
use console::{Hub, Identity};
use daemon::{Ready, Started};
use duty::{Agent, News};
use events::Audience;
use rankdeck_proto::message::Survivor;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;

/// Between two looks at the clock while something ends.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// The same at the latest while ranks run and nothing waits for the clock: rounds of samples bring a look along, since every wake takes a moment from
/// the ranks' cores; this is for a sampling thread that hangs.
const CALM_TICK: Duration = Duration::from_secs(1);
/// How long a slow disk may hold up the end of an agent.
pub(super) const LAST_RECORDS: Duration = Duration::from_secs(5);
/// Between two looks whether somebody removed the sockets.
const SOCKET_CHECK: Duration = Duration::from_secs(10);
/// What a new agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The run.
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Files of this node.
    pub paths: RunPaths,
    /// Working folder of the ranks.
    pub workdir: PathBuf,
    /// Folder of the sockets.
    pub sockets: PathBuf,
    /// File mode mask that ranks get.
    pub umask: u32,
}

impl Settings {
    /// Path of one of the sockets.
    pub(super) fn socket(&self, ending: &str) -> PathBuf {
        self.sockets.join(format!("{}.{ending}", self.paths.socket_stem()))
    }
}

/// Serves until the run is over and nobody looks on. Standard output is the pipe to the starter.
pub fn main(settings: Settings) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = tokio::task::LocalSet::new().block_on(&runtime, live(settings));
            // A thread that hangs on a disk or a driver must not keep the agent.
            runtime.shutdown_background();
            result
        }
        Err(error) => {
            Err(HintedError::new(format!("no runtime: {error}"), "check the limits on processes and files"))
        }
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            tell_starter(&Ready::Failed(failure.clone()));
            say(&format!("{} ({})", failure.error, failure.hint));
            ExitCode::FAILURE
        }
    }
}

fn tell_starter(ready: &Ready) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{}", serde_json::to_string(ready).unwrap_or_default());
    let _ = output.flush();
    // From here on the starter is gone; nothing may write to its pipe.
    // SAFETY: dup2 takes two open descriptors.
    unsafe { libc::dup2(2, 1) };
}

/// A line in `agent.log`.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "agent: {text}");
}

async fn live(settings: Settings) -> Result<ExitCode, HintedError> {
    let failed =
        |what: &str, error: io::Error| HintedError::new(format!("{what}: {error}"), "look at agent.log");
    groups::set_umask(0o077);
    groups::become_subreaper().map_err(|error| failed("cannot become subreaper", error))?;
    let own = proc::stat(std::process::id())
        .ok_or_else(|| HintedError::new("cannot read /proc", "the agent needs a mounted /proc"))?;
    let ident = Ident { pid: own.pid, start: own.start };
    let mut children = signal(SignalKind::child()).map_err(|error| failed("cannot handle signals", error))?;
    let mut orders_to_end = Signals::new().map_err(|error| failed("cannot handle signals", error))?;
    let former = Manifest::load(&settings.paths.manifest());
    let leftovers = bury_leftovers(&settings).await;
    let mut machine = Machine::default();
    let spool = spool::Spool::open(&settings.paths, |record| machine.replay(record))
        .map_err(|error| failed(&format!("cannot open {}", settings.paths.spool().display()), error))?;
    for event in machine.bury(leftovers) {
        spool.append(machine.generation(), event);
    }
    let (news, mut inbox) = mpsc::channel(1024);
    let (lines_in, mut lines_out) = mpsc::channel::<Batch>(256);
    let lost_lines = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = lost_lines.clone();
    let logs = Logs::start(move |batch| {
        if let Err(mpsc::error::TrySendError::Full(batch)) = lines_in.try_send(batch) {
            counted.fetch_add(batch.lines.len() as u64, std::sync::atomic::Ordering::Relaxed);
        }
    })
    .map_err(|error| failed("cannot start a thread", error))?;
    let spawned = news.clone();
    let cgroup = Cgroup::make(&settings.paths, &guard::agent_name(ident));
    let spawner = Spawner::start(cgroup.clone(), move |rank, result| {
        let _ = spawned.blocking_send(News::Spawned(rank, result));
    })
    .map_err(|error| failed("cannot start a thread", error))?;
    let gpus = gpu::Gpus::start();
    let timing = Timing::from_environment();
    let audience = Audience::default();
    let subjects = sample::Subjects::default();
    let samples = sample::start(subjects.clone(), gpus.clone(), audience.malformed.clone(), timing)
        .map_err(|error| failed("cannot start a thread", error))?;
    let machine = Rc::new(RefCell::new(machine));
    let now = Instant::now();
    let mut agent = Agent {
        timing,
        ident,
        build: crate::identity::build(),
        started: former.map_or_else(wall_time, |manifest| manifest.started),
        machine: machine.clone(),
        spool: spool.clone(),
        spawner,
        logs,
        lines: Rc::default(),
        subjects,
        audience: audience.clone(),
        gpus,
        attached: Rc::default(),
        guard: None,
        guard_retry: now,
        news: news.clone(),
        early: BTreeMap::new(),
        spawning: 0,
        emptied: BTreeSet::new(),
        oom: OomWatch::start(),
        clock: now,
        heard: now,
        busy: now,
        closed: false,
        detached: false,
        quitting: false,
        spool_failed: false,
        looks: std::sync::Arc::default(),
        cgroup,
        picker: None,
        follower: None,
        settings,
    };
    agent.keep_guard();
    agent.remember_logs();
    let (bye, bye_seen) = watch::channel(None);
    let mut rounds = samples.clone();
    let (orders, mut orders_in) = mpsc::channel(64);
    let (said, mut said_in) = mpsc::channel(1024);
    let hub = Hub {
        identity: Rc::new(Identity {
            run: agent.settings.run.clone(),
            host: agent.settings.host.clone(),
            node: agent.settings.paths.node,
            build: agent.build.clone(),
            run_dir: agent.settings.paths.run_dir.display().to_string(),
        }),
        spool,
        samples,
        machine,
        lines: agent.lines.clone(),
        attached: agent.attached.clone(),
        orders,
        reserved: Rc::default(),
        bye: bye_seen,
    };
    let (socket, event_socket) = (agent.settings.socket("sock"), agent.settings.socket("ev"));
    let bound = |path: &Path| {
        bind(path).map_err(|error| failed(&format!("cannot listen on {}", path.display()), error))
    };
    let mut next_id = 0;
    spawn_local(keep_listening(event_socket.clone(), bound(&event_socket)?, move |stream| {
        events::admit(stream, &audience, &said);
    }));
    spawn_local(keep_listening(socket.clone(), bound(&socket)?, move |stream| {
        next_id += 1;
        spawn_local(console::serve(stream, next_id, hub.clone()));
    }));
    manifest::write(&agent.settings.paths, &agent.manifest(true).bytes()).map_err(|error| {
        failed(&format!("cannot write {}", agent.settings.paths.manifest().display()), error)
    })?;
    tell_starter(&Ready::Serves(Started {
        socket: socket.display().to_string(),
        pid: ident.pid,
        build: agent.build.clone(),
        run_dir: agent.settings.paths.run_dir.display().to_string(),
    }));
    say(&format!(
        "serving {} as node {} on {}",
        agent.settings.run,
        agent.settings.paths.node,
        socket.display()
    ));
    let mut ticked = tokio::time::Instant::now();
    loop {
        let calm = agent.machine.borrow().is_calm();
        let pause = if calm { CALM_TICK } else { TICK };
        let due = tokio::select! {
            _ = children.recv() => { agent.reap(); false }
            () = orders_to_end.end() => { agent.quit(); false }
            Some(news) = inbox.recv() => {
                // A rank's last lines come before its end.
                while let Ok(batch) = lines_out.try_recv() {
                    agent.read(&batch);
                }
                agent.hear(news);
                false
            }
            Some(order) = orders_in.recv() => { agent.hear(News::Order(order)); false }
            Some(said) = said_in.recv() => { agent.hear(News::Said(said)); false }
            Some(batch) = lines_out.recv() => { agent.read(&batch); false }
            Ok(()) = rounds.changed() => { agent.audience.turn(); calm }
            () = tokio::time::sleep_until(ticked + pause) => { agent.audience.turn(); true }
        };
        if !due {
            continue;
        }
        ticked = tokio::time::Instant::now();
        // What a console said before it left counts before its absence does.
        while let Ok(order) = orders_in.try_recv() {
            agent.hear(News::Order(order));
        }
        agent.lines.borrow_mut().dropped = lost_lines.load(std::sync::atomic::Ordering::Relaxed);
        agent.reap();
        if let Some(reason) = agent.tick() {
            // Consoles hear what is on disk: the last records must be there before the goodbye.
            agent.spool.flush(LAST_RECORDS);
            let _ = bye.send(Some(reason));
            return Ok(agent.end(&socket, &event_socket).await);
        }
    }
}

/// The signals that tell an agent to end. A handler for SIGHUP, rather than ignoring it, because ranks would inherit that.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    _hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Ends what an agent that died has left, before anything new begins.
async fn bury_leftovers(settings: &Settings) -> Vec<Survivor> {
    let scope = Scope::marked(mark(settings, None));
    tokio::task::spawn_blocking(move || sweep::purge(&scope, Duration::ZERO, PURGE)).await.unwrap_or_default()
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().mode(0o700).create(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts for ever, and comes back when a cleaner of temporary files has removed the socket.
async fn keep_listening(path: PathBuf, mut listener: UnixListener, mut each: impl FnMut(UnixStream)) {
    loop {
        match tokio::time::timeout(SOCKET_CHECK, listener.accept()).await {
            Ok(Ok((stream, _))) => each(stream),
            // Out of descriptors, most likely: wait for some to come back.
            Ok(Err(_)) => tokio::time::sleep(TICK).await,
            Err(_) if path.exists() => {}
            Err(_) => match bind(&path) {
                Ok(again) => listener = again,
                Err(error) => say(&format!("cannot listen on {} again: {error}", path.display())),
            },
        }
    }
}
