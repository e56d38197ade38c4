//! Executes the actions of the [`Lifecycle`]: starts, signals and reaps ranks, scans for what they leave
//! behind, and detects kills by the out-of-memory killer.
//!
//! Owner: the agent's loop. Whatever reads all of `/proc`, waits for processes or touches disks runs on a
//! thread of its own and reports back as an [`TaskResult`].

use crate::known_checkpoints;
use crate::manifest::Manifest;
use crate::observe::checkpoint_files::CheckpointFiles;
use crate::observe::gpu::GpuWatch;
use crate::observe::open_watch::OpenWatch;
use crate::open_files;
use crate::paths::RunPaths;
use crate::proc::{self, ProcessKey};
use crate::program::{self, AskStage};
use crate::results;
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::groups::Helpers;
use crate::supervise::guard::{self, Guard, GuardConfig};
use crate::supervise::launch_prep::{self, HostFacts, JoinPoint, PreparedHost};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::lifecycle::{self, HostRank, Lifecycle, LifecycleAction, ScanOutcome};
use crate::supervise::process_scan::{self, RunTag, ScanCount, ScanScope, SharedProcessScan};
use crate::supervise::spawn::{SpawnResult, Spawner};
use crate::supervise::terminate::{AskedRank, TerminateRequests};
use crate::supervise::work_folder::WorkFolder;
use crate::supervise::{groups, libtorch};
use rankdeck_proto::message::{LaunchSecrets, LaunchSpec, Survivor};
use rankdeck_types::experiment::StopSignal;
use rankdeck_types::ids::{Generation, Rank, RunId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// How long a container's tool may take to forget what was killed.
const REMOVAL: Duration = Duration::from_secs(5);
/// How long a scan keeps killing before it reports survivors.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long processes that a rank left behind may take to end by themselves after the rank returned 0.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// Between two attempts to start a guard.
const GUARD_RETRY: Duration = Duration::from_secs(5);
/// Most exit statuses kept for children that ended before it was known which rank they are.
const EARLY_EXITS: usize = 1024;

/// What a thread of the supervisor has done.
pub(crate) enum TaskResult {
    /// The host is ready for a launch, or why it is not.
    Prepared(Box<LaunchSpec>, Result<Box<PreparedHost>, String>),
    /// The same for a rank that starts again.
    PreparedAgain(Box<LaunchSpec>, Rank, Result<Box<PreparedHost>, String>),
    /// A rank has a process, or why it has none.
    Spawned(Rank, SpawnResult),
    /// The exit of a rank can be recorded with these last lines.
    ExitInfo(Rank, Vec<String>),
    /// Nothing that the rank started is left.
    OrphansGone(Rank),
    /// Why the Slurm job of this agent ends.
    JobEnd(String),
    /// Programs of ranks were asked to end; whether one of them handles another signal, too.
    Asked(bool),
    /// A scan for processes of the run has ended.
    Scanned(ScanOutcome),
}

/// Context of a supervisor.
pub(crate) struct NodeContext {
    pub run: RunId,
    /// Facts about this host.
    pub facts: HostFacts,
    /// The agent's own process.
    pub agent: ProcessKey,
    /// Where its guard notes what it sees.
    pub note: PathBuf,
    /// What former agents of this node have left and could not be ended.
    pub left: Leftovers,
}

/// What follows from a child's end or a thread's outcome.
#[derive(Default)]
pub(crate) struct FollowUps {
    /// What is to be done.
    pub actions: Vec<LifecycleAction>,
    /// Notices for consoles.
    pub notices: Vec<String>,
}

impl From<Vec<LifecycleAction>> for FollowUps {
    fn from(actions: Vec<LifecycleAction>) -> FollowUps {
        FollowUps { actions, notices: Vec::new() }
    }
}

/// Executes the actions of the lifecycle.
pub(crate) struct Supervisor {
    context: NodeContext,
    lifecycle: Rc<RefCell<Lifecycle>>,
    outcomes: mpsc::Sender<TaskResult>,
    spawner: Spawner,
    cgroup: Option<Cgroup>,
    gpus: GpuWatch,
    /// What runs for the user.
    helpers: Helpers,
    oom: OomWatch,
    guard: Option<Guard>,
    guard_retry: Instant,
    clock: Instant,
    /// Ranks that the spawner has not answered for yet.
    spawning: usize,
    /// Statuses of children that ended while ranks were being spawned.
    early_exits: BTreeMap<u32, i32>,
    /// Ranks that have left nothing behind.
    emptied: BTreeSet<Rank>,
    /// Threads that kill what they find.
    running_scans: ScanCount,
    /// Scans that they share.
    scans: SharedProcessScan,
    /// Programs of ranks that were asked to end.
    asking: TerminateRequests,
    /// What ranks save.
    checkpoints: CheckpointFiles,
    /// The checkpoint that ranks have not opened yet.
    unopened: Option<Arc<OpenWatch>>,
    /// Where ranks with uploaded code work: no other run does so while this is there.
    work: Option<WorkFolder>,
    /// What the latest launch had besides its spec, for ranks that start again. In memory only.
    private: Option<(Generation, LaunchSecrets)>,
}

impl Supervisor {
    /// A supervisor with its spawner thread, and the channel on which its threads report.
    ///
    /// Errors: the thread cannot be started.
    pub fn new(
        context: NodeContext,
        lifecycle: Rc<RefCell<Lifecycle>>,
        gpus: GpuWatch,
        helpers: Helpers,
        checkpoints: CheckpointFiles,
    ) -> io::Result<(Supervisor, mpsc::Receiver<TaskResult>)> {
        let (outcomes, receiver) = mpsc::channel(1024);
        let cgroup = Cgroup::make(&context.facts.paths, &guard::agent_name(context.agent));
        let spawned = outcomes.clone();
        let spawner = Spawner::start(cgroup.clone(), move |rank, result| {
            let _ = spawned.blocking_send(TaskResult::Spawned(rank, result));
        })?;
        let now = Instant::now();
        let supervisor = Supervisor {
            context,
            lifecycle,
            outcomes,
            spawner,
            cgroup,
            gpus,
            helpers,
            oom: OomWatch::start(),
            guard: None,
            guard_retry: now,
            clock: now,
            spawning: 0,
            early_exits: BTreeMap::new(),
            emptied: BTreeSet::new(),
            running_scans: ScanCount::default(),
            scans: SharedProcessScan::default(),
            asking: TerminateRequests::default(),
            checkpoints,
            unopened: None,
            work: None,
            private: None,
        };
        Ok((supervisor, receiver))
    }

    /// When the lifecycle's clock began.
    pub fn clock(&self) -> Instant {
        self.clock
    }

    /// Milliseconds on the lifecycle's clock.
    pub fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }

    /// Whether new ranks get this event socket.
    pub fn events_are_at(&self, path: &Path) -> bool {
        self.context.facts.events == path
    }

    /// Moves the sockets to another directory, for new ranks and the next guard.
    pub fn move_sockets(&mut self, events: PathBuf, note: PathBuf) {
        self.context.facts.events = events;
        self.context.note = note;
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }

    /// Where threads that work for the supervisor report.
    pub fn outcomes(&self) -> mpsc::Sender<TaskResult> {
        self.outcomes.clone()
    }

    /// A launch was accepted: prepares the host on a thread, since disks and interpreters may be slow.
    pub fn prepare(&mut self, spec: Box<LaunchSpec>, private: LaunchSecrets) {
        self.emptied.clear();
        self.asking.end();
        self.oom = OomWatch::start();
        self.spawning = self.lifecycle.borrow().ranks().len();
        self.private = Some((spec.generation, private.clone()));
        let (facts, outcomes) = (self.context.facts.clone(), self.outcomes.clone());
        spawn_blocking(move || {
            let prepared = launch_prep::prepare(facts, &spec, private).map(Box::new);
            let _ = outcomes.blocking_send(TaskResult::Prepared(spec, prepared));
        });
    }

    /// What this agent has besides the spec of a launch of this generation.
    pub fn private(&self, generation: Generation) -> Option<LaunchSecrets> {
        let (_, private) = self.private.as_ref().filter(|(known, _)| *known == generation)?;
        Some(private.clone())
    }

    /// A rank starts again, and joins at `join`: prepares the host for it on a thread, once everything that ends its
    /// former processes is over. They carry the same marks.
    pub fn prepare_again(
        &mut self,
        spec: Box<LaunchSpec>,
        private: LaunchSecrets,
        rank: Rank,
        join: JoinPoint,
    ) {
        self.emptied.remove(&rank);
        self.spawning += 1;
        self.private = Some((spec.generation, private.clone()));
        let (facts, outcomes) = (self.context.facts.clone(), self.outcomes.clone());
        let running_scans = self.running_scans.clone();
        spawn_blocking(move || {
            running_scans.wait();
            let prepared =
                launch_prep::prepare(facts, &spec, private).map(|host| Box::new(host.joining(join)));
            let _ = outcomes.blocking_send(TaskResult::PreparedAgain(spec, rank, prepared));
        });
    }

    /// What follows from the outcome of a thread.
    pub fn on_outcome(&mut self, outcome: TaskResult) -> FollowUps {
        let now = self.now();
        match outcome {
            TaskResult::Prepared(spec, prepared) => {
                let ranks = spec.plan.ranks_of(spec.node_rank).map(|planned| planned.rank).collect();
                self.spawn_ranks(&spec, prepared, ranks)
            }
            TaskResult::PreparedAgain(spec, rank, prepared) => {
                self.spawn_ranks(&spec, prepared, BTreeSet::from([rank]))
            }
            TaskResult::Spawned(rank, result) => self.on_spawned(rank, result).into(),
            TaskResult::ExitInfo(rank, lines) => {
                self.lifecycle.borrow_mut().exit_info(rank, lines, now).into()
            }
            TaskResult::OrphansGone(rank) => {
                self.emptied.insert(rank);
                FollowUps::default()
            }
            TaskResult::JobEnd(text) => FollowUps { actions: Vec::new(), notices: vec![text] },
            TaskResult::Asked(more) => {
                self.lifecycle.borrow_mut().asked(more);
                FollowUps::default()
            }
            TaskResult::Scanned(outcome) => self.lifecycle.borrow_mut().scanned(outcome, now).into(),
        }
    }

    fn spawn_ranks(
        &mut self,
        spec: &LaunchSpec,
        prepared: Result<Box<PreparedHost>, String>,
        ranks: BTreeSet<Rank>,
    ) -> FollowUps {
        let stopping = self.lifecycle.borrow().is_stopping();
        let prepared = match prepared {
            _ if stopping => Err("stopped before it was started".to_owned()),
            prepared => prepared,
        };
        let notices = prepared.as_ref().map_or_else(|_| Vec::new(), |host| host.notices.clone());
        self.unopened = prepared.as_ref().ok().and_then(|host| host.resumed.clone());
        if let Ok(host) = &prepared {
            self.work = host.work.clone();
        }
        let mut actions = Vec::new();
        for planned in spec.plan.ranks_of(spec.node_rank).filter(|planned| ranks.contains(&planned.rank)) {
            let command = match &prepared {
                Ok(host) => host.command(spec, planned, std::env::vars_os()),
                Err(error) => Err(error.clone()),
            };
            match command {
                Ok(command) => self.spawner.spawn(planned.rank, command),
                Err(error) => actions.extend(self.on_spawned(planned.rank, Err(error))),
            }
        }
        FollowUps { actions, notices }
    }

    /// Ranks have made some steps: returns the checkpoint that they resume from if they have not opened it, once.
    pub fn unopened(&mut self) -> Option<PathBuf> {
        let watch = self.unopened.take()?;
        (!watch.was_opened()).then(|| watch.path.clone())
    }

    fn on_spawned(&mut self, rank: Rank, result: SpawnResult) -> Vec<LifecycleAction> {
        self.spawning = self.spawning.saturating_sub(1);
        let pid = result.as_ref().ok().map(|ident| ident.pid);
        let mut actions = self.lifecycle.borrow_mut().spawned(rank, result, self.now());
        if let Some((pid, status)) = pid.and_then(|pid| self.early_exits.remove_entry(&pid)) {
            actions.extend(self.on_rank_exit(pid, status));
        }
        if self.spawning == 0 {
            self.early_exits.clear();
        }
        actions
    }

    /// The run is over: another one may work where it did.
    pub fn release_work_folder(&mut self) {
        self.work = None;
    }

    /// Asks the programs of ranks to end, below shells that wait for them.
    pub fn ask_ranks(&self, ranks: Vec<AskedRank>, stage: AskStage) {
        open_files::release();
        let (asking, preferred, outcomes) = (self.asking.clone(), self.stop_signal(), self.outcomes.clone());
        let idents: Vec<ProcessKey> = ranks.iter().map(|rank| rank.ident).collect();
        let (call, elsewhere) = (asking.call(&idents), self.lifecycle.borrow().starts_elsewhere());
        spawn_blocking(move || {
            let asked = asking.ask(call, &ranks, (stage, preferred), elsewhere);
            let _ = outcomes.blocking_send(TaskResult::Asked(asked.handles_more));
            asking.follow(asked.followed);
        });
    }

    /// `launch.stop_signal`.
    fn stop_signal(&self) -> Option<i32> {
        let lifecycle = self.lifecycle.borrow();
        lifecycle.spec()?.plan.experiment.launch.stop_signal.map(StopSignal::number)
    }

    /// Sends a signal to some ranks.
    pub fn signal_ranks(&self, ranks: &[ProcessKey], signal: i32) {
        open_files::release();
        for ident in ranks.iter().filter(|ident| signal != libc::SIGCONT || !program::is_held(**ident)) {
            process_scan::deliver(*ident, signal);
        }
    }

    /// Sends a signal to every process of the run on this host. With SIGTERM, what ranks' programs need while
    /// they end is left alone, as are their workers.
    pub fn signal_all(&self, signal: i32) {
        open_files::release();
        let ranks: Vec<ProcessKey> = match signal {
            libc::SIGTERM => self.lifecycle.borrow().ranks().iter().filter_map(living).collect(),
            _ => {
                self.asking.end();
                Vec::new()
            }
        };
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| signal == libc::SIGKILL) {
            cgroup.kill();
        }
        let (scope, scans, running) = (self.scope(), self.scans.clone(), self.running_scans.start());
        let (asking, call) = (self.asking.clone(), self.asking.call(&ranks));
        let elsewhere = self.lifecycle.borrow().starts_elsewhere();
        spawn_blocking(move || {
            let ranks: Vec<AskedRank> =
                ranks.into_iter().map(|ident| AskedRank { ident, blocked: false }).collect();
            let asked = asking.ask(call, &ranks, (AskStage::Terminate, None), elsewhere);
            for found in scans.find(&scope).iter().filter(|found| !asked.spared.contains(&found.ident)) {
                process_scan::deliver(found.ident, signal);
            }
            drop(running);
            asking.follow(asked.followed);
        });
    }

    /// Ends what a rank left behind; `polite` gives it time to end by itself.
    pub fn end_orphans(&self, rank: Rank, ident: ProcessKey, polite: bool) {
        let scope = ScanScope {
            sessions: BTreeMap::from([(ident, Some(rank))]),
            spared: self.spared(),
            ..ScanScope::marked(mark(&self.context.run, &self.context.facts.paths, Some(rank)))
        };
        let (outcomes, scans, running) =
            (self.outcomes.clone(), self.scans.clone(), self.running_scans.start());
        let (asking, readers) = (self.asking.clone(), self.asking.readers(Some(ident)));
        spawn_blocking(move || {
            if !readers.is_empty() {
                // They end once no writer is left.
                let mut others = scope.clone();
                others.spared.extend(readers.iter().map(|reader| reader.pid));
                process_scan::kill_all(&others, |scope| scans.find(scope), Duration::ZERO, KILL_PATIENCE);
                asking.let_readers_end(Some(ident));
            }
            let grace = if polite { ORPHAN_GRACE } else { Duration::ZERO };
            if process_scan::kill_all(&scope, |scope| scans.find(scope), grace, KILL_PATIENCE).is_empty() {
                let _ = outcomes.blocking_send(TaskResult::OrphansGone(rank));
            }
            drop(running);
        });
    }

    /// Kills and scans until nothing of the run is left on this host, or reports the survivors.
    pub fn verify_stop(&self) {
        open_files::release();
        let (scope, outcomes, gpus) = (self.scope(), self.outcomes.clone(), self.gpus.clone());
        let (running_scans, scans) = (self.running_scans.clone(), self.scans.clone());
        let lifecycle = self.lifecycle.borrow();
        let used: BTreeSet<u32> = lifecycle.ranks().iter().filter_map(|life| life.gpu).collect();
        let mut pids: BTreeSet<u32> =
            lifecycle.ranks().iter().filter_map(|life| Some(life.ident?.pid)).collect();
        let has_run = !pids.is_empty();
        let (removal, helpers) = (lifecycle.containers_removal(), self.helpers());
        let (asking, checkpoints) = (self.asking.clone(), self.checkpoints.clone());
        let paths = self.context.facts.paths.clone();
        spawn_blocking(move || {
            asking.let_readers_end(None);
            pids.extend(scans.find(&scope).iter().map(|found| found.ident.pid));
            let survivors =
                process_scan::kill_all(&scope, |scope| scans.find(scope), Duration::ZERO, KILL_PATIENCE);
            // The next generation's ranks carry the same marks.
            running_scans.wait();
            if let Some(removal) = removal {
                // The proof is about processes; a stale list does no harm.
                let _ = libtorch::run_helper(&removal, REMOVAL, &helpers);
            }
            let gpus_free = wait_for_free_gpus(&gpus, &used, &pids);
            // Remaining processes may still write.
            let settle = if has_run { results::settle } else { results::settle_late };
            let results = survivors.is_empty().then(|| settle(&paths)).flatten();
            let lost = || known_checkpoints::cut_off(&paths).filter(|_| !has_run);
            let checkpoints = checkpoints.find().or_else(lost);
            let outcome = ScanOutcome { survivors, gpus_free, checkpoints, results };
            let _ = outcomes.blocking_send(TaskResult::Scanned(outcome));
        });
    }

    /// What is run for the user here.
    pub fn helpers(&self) -> Helpers {
        self.helpers.clone()
    }

    /// Processes that serve the run here but are not part of it.
    pub fn spared(&self) -> BTreeSet<u32> {
        let mut spared = self.helpers.pids();
        spared.extend(self.guard.iter().map(|guard| guard.pid).chain([self.context.agent.pid]));
        spared
    }

    /// Everything of the run on this host: by session, by descent from the agent, by the mark in the
    /// environment, by control group, and what former agents have left.
    fn scope(&self) -> ScanScope {
        let lifecycle = self.lifecycle.borrow();
        let sessions = lifecycle
            .ranks()
            .iter()
            .filter(|life| !self.emptied.contains(&life.rank))
            .filter_map(|life| Some((life.ident.filter(|ident| ident.start > 0)?, Some(life.rank))))
            .collect();
        self.context.left.add_to(ScanScope {
            sessions,
            below: Some(self.context.agent.pid),
            groups: self.cgroup.iter().cloned().collect(),
            spared: self.spared(),
            ..ScanScope::marked(mark(&self.context.run, &self.context.facts.paths, None))
        })
    }

    /// Reaps every child that has ended. Children whose pid is known are reaped even while another child is
    /// being made.
    pub fn reap(&mut self) -> FollowUps {
        let mut found = FollowUps::default();
        if !groups::has_dead() {
            return found;
        }
        let guard = self.guard.as_ref().map(|guard| guard.pid);
        let live: Vec<u32> = {
            let lifecycle = self.lifecycle.borrow();
            let ranks = lifecycle.ranks().iter().filter(|life| life.lives());
            ranks.filter_map(|life| Some(life.ident?.pid)).chain(guard).collect()
        };
        for pid in live {
            if let Some(status) = groups::reap(pid) {
                self.on_child_exit(pid, status, &mut found);
            }
        }
        while let Some((pid, status)) = groups::reap_any() {
            self.on_child_exit(pid, status, &mut found);
        }
        found
    }

    /// A child was reaped: a rank, the guard, a helper, or an orphan of a rank.
    fn on_child_exit(&mut self, pid: u32, status: i32, found: &mut FollowUps) {
        let is_it = |life: &HostRank| life.lives() && life.ident.is_some_and(|ident| ident.pid == pid);
        let is_rank = self.lifecycle.borrow().ranks().iter().any(is_it);
        if is_rank {
            found.actions.extend(self.on_rank_exit(pid, status));
        } else if self.guard.as_ref().is_some_and(|guard| guard.pid == pid) {
            self.guard = None;
            found.notices.push("guard process ended; starting a new one".into());
        } else if self.spawning > 0 && self.early_exits.len() < EARLY_EXITS {
            // This may be a rank that ended before the loop knew its pid.
            self.early_exits.insert(pid, status);
        }
    }

    /// The kernel's out-of-memory killer ended a process a moment ago. A kill counts for one process only.
    pub fn is_out_of_memory_kill(&mut self) -> bool {
        self.oom.was_it()
    }

    fn on_rank_exit(&mut self, pid: u32, status: i32) -> Vec<LifecycleAction> {
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        let out_of_memory = killed && self.oom.was_it();
        self.lifecycle.borrow_mut().reaped(pid, lifecycle::decode(status, out_of_memory), self.now())
    }

    /// Handles passed time: starts a guard if there is none, and moves the window in which kills by the kernel are
    /// counted. Returns why there is no guard.
    pub fn tick(&mut self) -> Option<String> {
        self.oom.turn();
        if self.lifecycle.borrow().is_calm() || self.lifecycle.borrow().is_quiet() {
            open_files::keep_back();
        }
        if self.guard.is_some() || Instant::now() < self.guard_retry {
            return None;
        }
        self.guard_retry = Instant::now() + GUARD_RETRY;
        open_files::release();
        let watch = GuardConfig {
            run: self.context.run.clone(),
            paths: self.context.facts.paths.clone(),
            agent: self.context.agent,
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
            note: self.context.note.clone(),
        };
        let started = Guard::start(&watch).and_then(|guard| guard.beat().map(|()| guard));
        open_files::keep_back();
        match started {
            Ok(guard) => self.guard = Some(guard),
            Err(error) => return Some(format!("cannot start a guard process: {error}; retrying")),
        }
        None
    }

    /// The agent ends: removes the ranks' group, and dismisses the guard when nothing is left to guard.
    pub fn end(mut self, nothing_left: bool) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        if let Some(guard) = self.guard.take().filter(|_| nothing_left) {
            guard.dismiss();
            crate::paths::remove_note(&self.context.note);
        }
    }
}

/// The process of a rank that has not ended.
fn living(life: &HostRank) -> Option<ProcessKey> {
    life.ident.filter(|_| life.lives())
}

/// Ends leftovers of a dead agent of this node, before another one starts to serve; returns what could not be
/// ended, and what leads to it.
pub(crate) async fn end_former(run: &RunId, paths: &RunPaths) -> (Vec<Survivor>, Leftovers) {
    let (run, paths) = (run.clone(), paths.clone());
    let end = move || {
        let left = Leftovers::find(&paths, Manifest::load(&paths.manifest()).as_ref(), &cgroup::all());
        let survivors = left.end(&run, &paths, KILL_PATIENCE);
        let left = if survivors.is_empty() { Leftovers::default() } else { left };
        (survivors, left)
    };
    spawn_blocking(end).await.unwrap_or_default()
}

/// Tag of the processes of this node, or of one of its ranks.
fn mark(run: &RunId, paths: &RunPaths, rank: Option<Rank>) -> RunTag {
    RunTag { run: run.clone(), run_dir: paths.run_dir.clone(), node: paths.node, agent: None, rank }
}

/// How long the driver may take.
const DRIVER_PATIENCE: Duration = Duration::from_secs(5);
/// Polling interval.
const DRIVER_POLL: Duration = Duration::from_millis(100);

/// Returns the GPUs among `used` that none of `pids` uses any more; empty where the driver does not report. Blocks.
fn wait_for_free_gpus(gpus: &GpuWatch, used: &BTreeSet<u32>, pids: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    if used.is_empty() || gpus.latest().is_empty() {
        return Vec::new();
    }
    loop {
        let seen = gpus.since(begun).unwrap_or_default();
        let free: Vec<u32> = seen
            .iter()
            .filter(|gpu| {
                used.contains(&gpu.index)
                    && !gpu.lost
                    && !gpu.processes.iter().any(|(pid, _)| pids.contains(pid))
            })
            .map(|gpu| gpu.index)
            .collect();
        if free.len() == used.len() || begun.elapsed() >= DRIVER_PATIENCE {
            return free;
        }
        std::thread::sleep(DRIVER_POLL);
    }
}

/// The machine's count is compared with one that is between one and two of these old: a process with much
/// memory takes a while to end.
const OOM_WINDOW: Duration = Duration::from_secs(5);

/// Whether the kernel's out-of-memory killer ended a process. The kernel names the killed process only in its log,
/// which needs root; it only counts. The count of the agent's own control group is about its ranks only. Ranks may live
/// in other groups, as a container's or a batch system's, so the machine's count is used too, but only over the last
/// seconds: an old rise has nothing to do with this end.
#[derive(Debug)]
struct OomWatch {
    own: Option<u64>,
    older: Option<u64>,
    newer: Option<u64>,
    turned: Instant,
}

impl OomWatch {
    /// Starts to count now.
    fn start() -> OomWatch {
        OomWatch {
            own: group_oom_kills(),
            older: machine_oom_kills(),
            newer: machine_oom_kills(),
            turned: Instant::now(),
        }
    }

    /// Moves the window; to be called at least as often as it is long.
    fn turn(&mut self) {
        if self.turned.elapsed() >= OOM_WINDOW {
            self.turned = Instant::now();
            self.older = self.newer;
            self.newer = machine_oom_kills();
        }
    }

    /// Returns whether the out-of-memory killer caused a SIGKILL. A kill counts for one process
    /// only.
    fn was_it(&mut self) -> bool {
        self.decide(group_oom_kills(), machine_oom_kills())
    }

    fn decide(&mut self, own: Option<u64>, machine: Option<u64>) -> bool {
        let rose =
            |before: Option<u64>, now: Option<u64>| now.zip(before).is_some_and(|(now, before)| now > before);
        let killed = rose(self.own, own) || rose(self.older, machine);
        self.own = own;
        (self.older, self.newer) = (machine, machine);
        killed
    }
}

fn oom_kills(path: &Path) -> Option<u64> {
    let text = proc::text(path)?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Kills in this process's own group and below, where there is such a group.
fn group_oom_kills() -> Option<u64> {
    let cgroups = proc::text("/proc/self/cgroup").unwrap_or_default();
    cgroups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            oom_kills(&Path::new("/sys/fs/cgroup").join(path).join("memory.events"))
        } else if controllers.split(',').any(|name| name == "memory") {
            oom_kills(&Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"))
        } else {
            None
        }
    })
}

/// Kills on the whole machine, those of limited groups included.
fn machine_oom_kills() -> Option<u64> {
    oom_kills(Path::new("/proc/vmstat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_count_rise_is_one_kill_and_an_old_rise_is_none() {
        let now = Instant::now();
        let mut watch = OomWatch { own: Some(2), older: Some(7), newer: Some(8), turned: now };
        assert!(watch.decide(Some(2), Some(8)), "within the window");
        assert!(!watch.decide(Some(2), Some(8)), "one kill is one process");
        assert!(watch.decide(Some(3), Some(8)));
        assert!(!watch.decide(None, None));
        assert!(!watch.decide(Some(9), Some(9)), "nothing was known before");
        let mut old = OomWatch { own: Some(0), older: Some(7), newer: Some(9), turned: now - 2 * OOM_WINDOW };
        old.turn();
        assert!(!old.decide(Some(0), Some(9)));
    }

    #[test]
    fn machine_oom_kills_are_counted() {
        // Kernels since 4.13 have it; otherwise only the own group is used.
        if let Some(kills) = machine_oom_kills() {
            assert!(machine_oom_kills().unwrap() >= kills);
        }
    }
}
