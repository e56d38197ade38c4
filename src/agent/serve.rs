//! The agent's loop: what happens on the host goes into the machine, what the machine wants done is done here.
//!
//! Owner: the main thread of the agent, a single-threaded runtime. It never waits for a disk, a driver, a console or a rank: those have threads or
//! tasks of their own and report back through one bounded queue (AGENT-2).

use super::console::{self, Attached, Hub, Identity, LineStore, Order};
use super::daemon::{Ready, Started};
use super::events::{self, Audience, Said};
use super::guard::{self, Guard, Watch};
use super::logs::{Batch, Logs};
use super::manifest::{self, Manifest, ManifestRank};
use super::paths::RunPaths;
use super::site;
use super::spawn::{Spawner, Started as Spawned};
use super::supervise::{self, Action, Machine};
use super::sweep::{self, Ident, Mark, Scope};
use super::{Failure, Timing, gpu, groups, proc, sample, spool, wall_time};
use crate::config::experiment::OnDisconnect;
use crate::core::ids::{Rank, RunId};
use crate::proto::message::{AgentMessage, ConsoleMessage, LaunchSpec, RecordEvent, StopMode, Survivor};
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

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks whether somebody removed the sockets.
const SOCKET_CHECK: Duration = Duration::from_secs(10);
/// How long leftovers are hunted before the survivors are told.
const PURGE: Duration = Duration::from_secs(10);
/// What a rank that returned 0 left behind may take to end by itself.
const POLITE: Duration = Duration::from_secs(2);
/// A rank's last words may take this long to arrive, and no less than that.
const LAST_WORDS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long the driver may take to give GPUs back.
const GPU_PATIENCE: Duration = Duration::from_secs(5);
/// Children that ended before it was known which rank they are.
const EARLY: usize = 1024;

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
    fn socket(&self, ending: &str) -> PathBuf {
        self.sockets.join(format!("{}.{ending}", self.paths.socket_stem()))
    }
}

/// What happened elsewhere.
enum News {
    Order(Order),
    Said(Said),
    Prepared(Box<LaunchSpec>, Result<site::Launch, String>),
    Spawned(Rank, Spawned),
    Autopsied(Rank, Vec<String>),
    LeftNothing(Rank),
    Proved(Vec<Survivor>, Vec<u32>),
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
            Err(Failure::new(format!("no runtime: {error}"), "check the limits on processes and files"))
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

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "agent: {text}");
}

struct Agent {
    settings: Settings,
    timing: Timing,
    ident: Ident,
    build: String,
    started: f64,
    machine: Rc<RefCell<Machine>>,
    spool: spool::Spool,
    spawner: Spawner,
    logs: Logs,
    lines: Rc<RefCell<LineStore>>,
    subjects: sample::Subjects,
    audience: Audience,
    gpus: gpu::Gpus,
    attached: Rc<RefCell<BTreeMap<u64, Attached>>>,
    guard: Option<Guard>,
    guard_retry: Instant,
    news: mpsc::Sender<News>,
    early: BTreeMap<u32, i32>,
    spawning: usize,
    emptied: BTreeSet<Rank>,
    oom_kills: Option<u64>,
    clock: Instant,
    heard: Instant,
    busy: Instant,
    closed: bool,
    detached: bool,
    quitting: bool,
    spool_failed: bool,
}

async fn live(settings: Settings) -> Result<ExitCode, Failure> {
    let failed = |what: &str, error: io::Error| Failure::new(format!("{what}: {error}"), "look at agent.log");
    groups::set_umask(0o077);
    groups::become_subreaper().map_err(|error| failed("cannot become subreaper", error))?;
    let own = proc::stat(std::process::id())
        .ok_or_else(|| Failure::new("cannot read /proc", "the agent needs a mounted /proc"))?;
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
    let spawner = Spawner::start(move |rank, result| {
        let _ = spawned.blocking_send(News::Spawned(rank, result));
    })
    .map_err(|error| failed("cannot start a thread", error))?;
    let gpus = gpu::Gpus::start();
    let audience = Audience::default();
    let subjects = sample::Subjects::default();
    let samples = sample::start(subjects.clone(), gpus.clone(), audience.malformed.clone())
        .map_err(|error| failed("cannot start a thread", error))?;
    let machine = Rc::new(RefCell::new(machine));
    let now = Instant::now();
    let mut agent = Agent {
        timing: Timing::from_environment(),
        ident,
        build: super::build(),
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
        oom_kills: proc::oom_kills(),
        clock: now,
        heard: now,
        busy: now,
        closed: false,
        detached: false,
        quitting: false,
        spool_failed: false,
        settings,
    };
    agent.keep_guard();
    agent.remember_logs();
    let (bye, bye_seen) = watch::channel(None);
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
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = children.recv() => agent.reap(),
            () = orders_to_end.end() => agent.quit(),
            Some(news) = inbox.recv() => agent.hear(news),
            Some(order) = orders_in.recv() => agent.hear(News::Order(order)),
            Some(said) = said_in.recv() => agent.hear(News::Said(said)),
            Some(batch) = lines_out.recv() => agent.lines.borrow_mut().push(&batch),
            _ = ticks.tick() => {
                agent.lines.borrow_mut().dropped = lost_lines.load(std::sync::atomic::Ordering::Relaxed);
                agent.reap();
                if let Some(reason) = agent.tick() {
                    let _ = bye.send(Some(reason));
                    return Ok(agent.end(&socket, &event_socket).await);
                }
            }
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

fn mark(settings: &Settings, rank: Option<Rank>) -> Mark {
    Mark {
        run: settings.run.clone(),
        run_dir: settings.paths.run_dir.clone(),
        node: settings.paths.node,
        agent: None,
        rank,
    }
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

impl Agent {
    fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }

    fn record(&self, event: RecordEvent) {
        let generation = self.machine.borrow().generation();
        self.spool.append(generation, event);
    }

    fn notice(&self, text: String) {
        say(&text);
        self.record(RecordEvent::Notice { text });
    }

    fn hear(&mut self, news: News) {
        let now = self.now();
        let actions = match news {
            News::Order(order) => self.obey(order),
            News::Said(Said { rank, generation, event }) => {
                self.spool.append(generation, RecordEvent::Rank { rank, said: event });
                Vec::new()
            }
            News::Prepared(spec, launch) => self.spawn(&spec, launch),
            News::Spawned(rank, result) => {
                self.spawning = self.spawning.saturating_sub(1);
                let pid = result.as_ref().ok().map(|ident| ident.pid);
                let mut actions = self.machine.borrow_mut().spawned(rank, result, now);
                if let Some((pid, status)) = pid.and_then(|pid| self.early.remove_entry(&pid)) {
                    actions.extend(self.ended(pid, status));
                }
                if self.spawning == 0 {
                    self.early.clear();
                }
                actions
            }
            News::Autopsied(rank, lines) => self.machine.borrow_mut().autopsied(rank, lines),
            News::LeftNothing(rank) => {
                self.emptied.insert(rank);
                Vec::new()
            }
            News::Proved(survivors, gpus_free) => self.machine.borrow_mut().proved(survivors, gpus_free, now),
        };
        self.perform(actions);
    }

    fn obey(&mut self, order: Order) -> Vec<Action> {
        let now = self.now();
        let refuse = |failure: Failure| {
            // A console that does not even take its answers will learn from the snapshot.
            let Failure { error, hint } = failure;
            let _ = order.answers.try_send(AgentMessage::Refused { error, hint });
            Vec::new()
        };
        match order.message {
            ConsoleMessage::Launch { spec } => {
                if spec.plan.run != self.settings.run || spec.node_rank != self.settings.paths.node {
                    return refuse(Failure::new(
                        format!(
                            "this agent serves node {} of run {}, and the launch is for node {} of run {}",
                            self.settings.paths.node, self.settings.run, spec.node_rank, spec.plan.run
                        ),
                        "attach to the right agent",
                    ));
                }
                if self.quitting {
                    return refuse(Failure::new("this agent is ending", "attach again in a moment"));
                }
                let launched = self.machine.borrow_mut().launch(spec.clone());
                match launched {
                    Ok(actions) => {
                        if !actions.is_empty() {
                            self.prepare(spec);
                        }
                        actions
                    }
                    Err(failure) => refuse(failure),
                }
            }
            ConsoleMessage::Stop { mode, grace_ms } => {
                self.machine.borrow_mut().stop(mode, grace_ms, "console", now)
            }
            ConsoleMessage::Detach => {
                self.detached = true;
                Vec::new()
            }
            ConsoleMessage::Close => {
                self.closed = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A launch was accepted: folders, experiment, libtorch; elsewhere, since disks and interpreters may be slow.
    fn prepare(&mut self, spec: Box<LaunchSpec>) {
        self.closed = false;
        self.detached = false;
        self.heard = Instant::now();
        self.emptied.clear();
        self.lines.borrow_mut().clear();
        self.oom_kills = proc::oom_kills();
        let ranks: Vec<Rank> = self.machine.borrow().ranks().iter().map(|life| life.rank).collect();
        for rank in &ranks {
            self.logs.follow(*rank, spec.generation, self.settings.paths.rank_log(spec.generation, *rank));
        }
        self.spawning = ranks.len();
        *self.audience.expected.borrow_mut() = (spec.generation, ranks);
        let site = site::Base {
            paths: self.settings.paths.clone(),
            workdir: self.settings.workdir.clone(),
            events: self.settings.socket("ev"),
            agent: guard::agent_name(self.ident),
            umask: self.settings.umask,
        };
        let news = self.news.clone();
        tokio::task::spawn_blocking(move || {
            let launch = site::prepare(site, &spec);
            let _ = news.blocking_send(News::Prepared(spec, launch));
        });
    }

    fn spawn(&mut self, spec: &LaunchSpec, launch: Result<site::Launch, String>) -> Vec<Action> {
        let now = self.now();
        let stopped = self
            .machine
            .borrow()
            .is_stopping()
            .then(|| "a stop was ordered before it was started".to_owned());
        let mut actions = Vec::new();
        for planned in spec.plan.ranks_of(spec.node_rank) {
            let order = match (&stopped, &launch) {
                (Some(stopped), _) => Err(stopped.clone()),
                (None, Err(error)) => Err(error.clone()),
                (None, Ok(launch)) => launch.order(spec, planned),
            };
            match order {
                Ok(order) => self.spawner.spawn(planned.rank, order),
                Err(error) => {
                    self.spawning = self.spawning.saturating_sub(1);
                    actions.extend(self.machine.borrow_mut().spawned(planned.rank, Err(error), now));
                }
            }
        }
        actions
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let changed = !actions.is_empty();
        for action in actions {
            match action {
                Action::Record(event) => self.record(event),
                Action::Save => self.spool.save_manifest(self.manifest(true).bytes()),
                Action::SignalRanks(ranks, signal) => {
                    for ident in ranks {
                        sweep::deliver(ident, signal);
                    }
                }
                Action::SignalAll(signal) => {
                    let scope = self.scope();
                    tokio::task::spawn_blocking(move || sweep::signal_all(&scope, signal));
                }
                Action::Autopsy { rank } => self.autopsy(rank),
                Action::Leftovers { rank, ident, polite } => self.clear_leftovers(rank, ident, polite),
                Action::Prove => self.prove(),
            }
        }
        if changed {
            self.look_at_ranks();
        }
    }

    /// Waits for the rank's last words on the event socket and for its last log lines.
    fn autopsy(&self, rank: Rank) {
        let (audience, logs, news) = (self.audience.clone(), self.logs.clone(), self.news.clone());
        spawn_local(async move {
            let begun = Instant::now();
            // Its connection may not even be accepted yet, hence the least time.
            while begun.elapsed() < LAST_WORDS.0
                || (audience.open_of(rank) > 0 && begun.elapsed() < LAST_WORDS.1)
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let (answer, lines) = tokio::sync::oneshot::channel();
            logs.finish(rank, move |lines| drop(answer.send(lines)));
            let lines = tokio::time::timeout(Duration::from_secs(2), lines).await;
            let lines = lines.ok().and_then(Result::ok).unwrap_or_default();
            let _ = news.send(News::Autopsied(rank, lines)).await;
        });
    }

    fn clear_leftovers(&self, rank: Rank, ident: Ident, polite: bool) {
        let scope = Scope {
            sessions: BTreeMap::from([(ident, Some(rank))]),
            spared: self.spared(),
            ..Scope::marked(mark(&self.settings, Some(rank)))
        };
        let news = self.news.clone();
        tokio::task::spawn_blocking(move || {
            let polite = if polite { POLITE } else { Duration::ZERO };
            if sweep::purge(&scope, polite, PURGE).is_empty() {
                let _ = news.blocking_send(News::LeftNothing(rank));
            }
        });
    }

    fn spared(&self) -> BTreeSet<u32> {
        self.guard.iter().map(|guard| guard.pid).chain([self.ident.pid]).collect()
    }

    /// Everything of the run on this host, by all nets.
    fn scope(&self) -> Scope {
        let machine = self.machine.borrow();
        let sessions = machine
            .ranks()
            .iter()
            .filter(|life| !self.emptied.contains(&life.rank))
            .filter_map(|life| Some((life.ident.filter(|ident| ident.start > 0)?, Some(life.rank))))
            .collect();
        Scope {
            sessions,
            below: Some(self.ident.pid),
            spared: self.spared(),
            ..Scope::marked(mark(&self.settings, None))
        }
    }

    fn prove(&self) {
        let (scope, news, gpus) = (self.scope(), self.news.clone(), self.gpus.clone());
        let (used, mut pids): (Vec<Option<u32>>, BTreeSet<u32>) = {
            let machine = self.machine.borrow();
            let pid = |life: &supervise::RankLife| life.ident.map(|ident| ident.pid);
            (
                machine.ranks().iter().map(|life| life.gpu).collect(),
                machine.ranks().iter().filter_map(pid).collect(),
            )
        };
        let used: BTreeSet<u32> = used.into_iter().flatten().collect();
        tokio::task::spawn_blocking(move || {
            pids.extend(sweep::find(&scope).iter().map(|found| found.ident.pid));
            let survivors = sweep::purge(&scope, Duration::ZERO, PURGE);
            let free = gpus_free(&gpus, &used, &pids);
            let _ = news.blocking_send(News::Proved(survivors, free));
        });
    }

    fn look_at_ranks(&self) {
        let machine = self.machine.borrow();
        let generation = machine.generation();
        let subject = |life: &supervise::RankLife| {
            Some(sample::Subject {
                rank: life.rank,
                ident: life.ident.filter(|ident| ident.start > 0)?,
                gpu: life.gpu,
                page: self.settings.paths.page(generation, life.rank),
            })
        };
        self.subjects.set(generation, machine.ranks().iter().filter_map(subject).collect());
    }

    fn reap(&mut self) {
        if let Some(guard) = self.guard.as_ref().map(|guard| guard.pid)
            && groups::reap(guard).is_some()
        {
            self.guard = None;
            self.notice("the guard process ended; starting another".into());
        }
        let live: Vec<u32> = {
            let machine = self.machine.borrow();
            machine
                .ranks()
                .iter()
                .filter(|life| life.lives())
                .filter_map(|life| Some(life.ident?.pid))
                .collect()
        };
        for pid in live {
            if let Some(status) = groups::reap(pid) {
                let actions = self.ended(pid, status);
                self.perform(actions);
            }
        }
        // The rest: what ranks left to the agent, helpers, and ranks that ended before the loop was told their pids.
        while let Some((pid, status)) = groups::reap_any() {
            if self.spawning > 0 && self.early.len() < EARLY {
                self.early.insert(pid, status);
            }
        }
    }

    fn ended(&mut self, pid: u32, status: i32) -> Vec<Action> {
        let kills = proc::oom_kills();
        let out_of_memory = matches!((self.oom_kills, kills), (Some(before), Some(after)) if after > before);
        if libc::WIFSIGNALED(status) {
            self.oom_kills = kills;
        }
        let now = self.now();
        self.machine.borrow_mut().reaped(pid, supervise::decode(status, out_of_memory), now)
    }

    fn quit(&mut self) {
        self.quitting = true;
        let now = self.now();
        let actions = {
            let mut machine = self.machine.borrow_mut();
            let grace = machine.spec().map_or(0, supervise::grace_ms);
            if machine.is_quiet() {
                Vec::new()
            } else {
                machine.stop(StopMode::Terminate, grace, "signal", now)
            }
        };
        self.perform(actions);
    }

    fn keep_guard(&mut self) {
        if self.guard.is_some() || Instant::now() < self.guard_retry {
            return;
        }
        self.guard_retry = Instant::now() + Duration::from_secs(5);
        let watch =
            Watch { run: self.settings.run.clone(), paths: self.settings.paths.clone(), agent: self.ident };
        match Guard::start(&watch).and_then(|guard| guard.beat().map(|()| guard)) {
            Ok(guard) => self.guard = Some(guard),
            Err(error) => self.notice(format!("no guard process: {error}; trying again")),
        }
    }

    /// What time brings; `Some(reason)` when the agent is to end.
    fn tick(&mut self) -> Option<String> {
        self.keep_guard();
        let failing = self.spool.is_failing();
        if failing != self.spool_failed {
            self.spool_failed = failing;
            let text = if failing {
                format!(
                    "{} cannot be written; records are kept in memory",
                    self.settings.paths.spool().display()
                )
            } else {
                format!("records are written to disk again; {} were lost", self.spool.lost())
            };
            self.notice(text);
        }
        let consoles: Vec<Attached> = self.attached.borrow().values().copied().collect();
        let attended = consoles.iter().any(|c| !c.pings || c.heard.elapsed() < self.timing.silent);
        if attended {
            self.heard = Instant::now();
        }
        let now = self.now();
        let mut actions =
            self.machine.borrow_mut().tick(now, attended, self.timing.unattended.as_millis() as u64);
        if let Some(grace) = self.lease_is_over() {
            actions.extend(self.machine.borrow_mut().stop(StopMode::Clean, grace, "lease", now));
        }
        self.perform(actions);
        let machine = self.machine.borrow();
        if !machine.is_quiet() || !consoles.is_empty() {
            self.busy = Instant::now();
        }
        if self.quitting && (machine.is_quiet() || machine.has_survivors()) {
            return Some("the agent was told to end".into());
        }
        if machine.is_quiet() && consoles.is_empty() {
            if self.closed {
                return Some("the run is over".into());
            }
            if self.busy.elapsed() >= self.timing.linger {
                return Some("nobody is attached".into());
            }
        }
        None
    }

    /// The grace of the stop that a lost console's lease demands.
    fn lease_is_over(&self) -> Option<u64> {
        let machine = self.machine.borrow();
        let launch = &machine.spec()?.plan.experiment.launch;
        let lease = Duration::try_from_secs_f64(launch.lease_s).unwrap_or(Duration::MAX);
        let over = machine.is_running()
            && !machine.is_stopping()
            && launch.on_disconnect == OnDisconnect::Stop
            && !self.detached
            && self.heard.elapsed() >= lease;
        over.then(|| machine.spec().map_or(0, supervise::grace_ms))
    }

    fn manifest(&self, serving: bool) -> Manifest {
        let machine = self.machine.borrow();
        let plan = machine.spec().map(|spec| &spec.plan);
        Manifest {
            run: self.settings.run.0.clone(),
            host: self.settings.host.clone(),
            node_rank: self.settings.paths.node.0,
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: if serving { self.ident.pid } else { 0 },
            agent_start: self.ident.start,
            build: self.build.clone(),
            socket: self.settings.socket("sock").display().to_string(),
            started: self.started,
            running: !machine.is_quiet(),
            generation: machine.generation().0,
            name: plan.map_or_else(String::new, |plan| plan.experiment.run.name.clone()),
            world_size: plan.map_or(0, |plan| plan.world_size()),
            hosts: plan
                .map_or_else(Vec::new, |plan| plan.hosts.iter().map(|host| host.name.clone()).collect()),
            ranks: machine
                .ranks()
                .iter()
                .filter_map(|life| {
                    let ident = life.ident?;
                    let (pid, start, ended) = (ident.pid, ident.start, life.exit.is_some());
                    Some(ManifestRank { rank: life.rank.0, pid, start, ended })
                })
                .collect(),
        }
    }

    /// An agent of a run that is over shows the last lines of its logs, too.
    fn remember_logs(&self) {
        let machine = self.machine.borrow();
        for life in machine.ranks() {
            let path = self.settings.paths.rank_log(machine.generation(), life.rank);
            if let Ok((first, lines)) = super::logs::tail(&path, 1000) {
                let batch = Batch { rank: life.rank, generation: machine.generation(), first, lines };
                self.lines.borrow_mut().push(&batch);
            }
        }
    }

    async fn end(mut self, socket: &Path, event_socket: &Path) -> ExitCode {
        let begun = Instant::now();
        while !self.attached.borrow().is_empty() && begun.elapsed() < Duration::from_secs(3) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let proved = self.machine.borrow().is_quiet();
        let unused = self.machine.borrow().spec().is_none();
        self.spool.save_manifest(self.manifest(false).bytes());
        if !self.spool.flush(Duration::from_secs(5)) {
            say("not everything could be written to disk");
        }
        let _ = std::fs::remove_file(socket);
        let _ = std::fs::remove_file(event_socket);
        if unused {
            forget(&self.settings.paths);
        }
        say("ended");
        match self.guard.take() {
            Some(guard) if proved => guard.dismiss(),
            _ => {}
        }
        if proved { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Removes the traces of a run that never began: a folder with records of it stays.
fn forget(paths: &RunPaths) {
    if std::fs::metadata(paths.spool()).is_ok_and(|data| data.len() > 0) {
        return;
    }
    for file in [paths.manifest(), paths.spool(), paths.agent_log()] {
        let _ = std::fs::remove_file(file);
    }
    // Both only succeed when nothing else is inside.
    let _ = std::fs::remove_dir(paths.node_dir());
    let _ = std::fs::remove_dir(&paths.run_dir);
}

/// The GPUs among `used` that hold none of `pids` any more; none when the driver does not tell.
fn gpus_free(gpus: &gpu::Gpus, used: &BTreeSet<u32>, pids: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    if used.is_empty() || gpus.latest().is_empty() {
        return Vec::new();
    }
    loop {
        let seen = gpus.since(begun).unwrap_or_default();
        let free: Vec<u32> = seen
            .iter()
            .filter(|gpu| {
                used.contains(&gpu.index) && !gpu.processes.iter().any(|(pid, _)| pids.contains(pid))
            })
            .map(|gpu| gpu.index)
            .collect();
        if free.len() == used.len() || begun.elapsed() >= GPU_PATIENCE {
            return free;
        }
        std::thread::sleep(TICK);
    }
}
