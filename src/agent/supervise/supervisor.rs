//! Carries out what the [`Lifecycle`] asks for: starts ranks, signals them, reaps them, and searches for what
//! they leave.
//!
//! Owner: the agent's loop. Whatever reads all of `/proc`, waits for processes or touches disks runs on a
//! thread of its own and reports back as an [`Outcome`].

use crate::manifest::Manifest;
use crate::observe::gpu::Gpus;
use crate::paths::RunPaths;
use crate::proc::Ident;
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::guard::{self, Guard, Watch};
use crate::supervise::helpers::Helpers;
use crate::supervise::launch_prep::{self, HostFacts, PreparedHost};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::lifecycle::{self, Action, Lifecycle, RankLife};
use crate::supervise::looks::SharedLooks;
use crate::supervise::oom::OomWatch;
use crate::supervise::searches::Searches;
use crate::supervise::spawn::{SpawnResult, Spawner};
use crate::supervise::sweep::{self, Mark, Scope};
use crate::supervise::{gpu_release, groups, libtorch};
use rankdeck_proto::message::{LaunchSpec, Private, Survivor};
use rankdeck_types::ids::{Rank, RunId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// How long a container's tool may take to forget what was killed.
const REMOVAL: Duration = Duration::from_secs(5);
/// How long a search keeps killing before it reports survivors.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long processes that a rank left behind may take to end by themselves after the rank returned 0.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// Between two attempts to start a guard.
const GUARD_RETRY: Duration = Duration::from_secs(5);
/// Most exit statuses kept for children that ended before it was known which rank they are.
const EARLY_EXITS: usize = 1024;

/// What a thread of the supervisor has done.
pub(crate) enum Outcome {
    /// The host is ready for a launch, or why it is not.
    Prepared(Box<LaunchSpec>, Result<Box<PreparedHost>, String>),
    /// A rank has a process, or why it has none.
    Spawned(Rank, SpawnResult),
    /// The exit of a rank can be recorded with these last lines.
    ExitInfo(Rank, Vec<String>),
    /// Nothing that the rank started is left.
    OrphansGone(Rank),
    /// Why the Slurm job of this agent ends.
    JobEnd(String),
    /// A search for processes of the run has ended: the survivors, and the GPUs that are free.
    Searched(Vec<Survivor>, Vec<u32>),
}

/// What a supervisor is told once.
pub(crate) struct NodeContext {
    pub run: RunId,
    /// What the agent knows about this host.
    pub facts: HostFacts,
    /// The agent's own process.
    pub agent: Ident,
    /// Where its guard notes what it sees.
    pub note: PathBuf,
    /// What former agents of this node have left and could not be ended.
    pub left: Leftovers,
}

/// What follows from a child's end or a thread's outcome.
#[derive(Default)]
pub(crate) struct Consequences {
    /// What is to be done.
    pub actions: Vec<Action>,
    /// What consoles are to be told.
    pub notices: Vec<String>,
}

impl From<Vec<Action>> for Consequences {
    fn from(actions: Vec<Action>) -> Consequences {
        Consequences { actions, notices: Vec::new() }
    }
}

/// See the module.
pub(crate) struct Supervisor {
    context: NodeContext,
    lifecycle: Rc<RefCell<Lifecycle>>,
    outcomes: mpsc::Sender<Outcome>,
    spawner: Spawner,
    cgroup: Option<Cgroup>,
    gpus: Gpus,
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
    searches: Searches,
    /// What they find it in.
    looks: SharedLooks,
}

impl Supervisor {
    /// A supervisor with its spawner thread, and the channel on which its threads report.
    ///
    /// Errors: the thread cannot be started.
    pub fn new(
        context: NodeContext,
        lifecycle: Rc<RefCell<Lifecycle>>,
        gpus: Gpus,
        helpers: Helpers,
    ) -> io::Result<(Supervisor, mpsc::Receiver<Outcome>)> {
        let (outcomes, receiver) = mpsc::channel(1024);
        let cgroup = Cgroup::make(&context.facts.paths, &guard::agent_name(context.agent));
        let spawned = outcomes.clone();
        let spawner = Spawner::start(cgroup.clone(), move |rank, result| {
            let _ = spawned.blocking_send(Outcome::Spawned(rank, result));
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
            searches: Searches::default(),
            looks: SharedLooks::default(),
        };
        Ok((supervisor, receiver))
    }

    /// Milliseconds on the clock that the lifecycle is told.
    pub fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }

    /// The ranks to come are told this event socket.
    pub fn events_are_at(&self, path: &Path) -> bool {
        self.context.facts.events == path
    }

    /// The folder of the sockets is another one: the ranks to come are told, and the next guard.
    pub fn move_sockets(&mut self, events: PathBuf, note: PathBuf) {
        self.context.facts.events = events;
        self.context.note = note;
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }

    /// Where threads that work for the supervisor report.
    pub fn outcomes(&self) -> mpsc::Sender<Outcome> {
        self.outcomes.clone()
    }

    /// A launch was accepted: prepares the host on a thread, since disks and interpreters may be slow.
    pub fn prepare(&mut self, spec: Box<LaunchSpec>, private: Private) {
        self.emptied.clear();
        self.oom = OomWatch::start();
        self.spawning = self.lifecycle.borrow().ranks().len();
        let (facts, outcomes) = (self.context.facts.clone(), self.outcomes.clone());
        spawn_blocking(move || {
            let prepared = launch_prep::prepare(facts, &spec, private).map(Box::new);
            let _ = outcomes.blocking_send(Outcome::Prepared(spec, prepared));
        });
    }

    /// What follows from the outcome of a thread.
    pub fn on_outcome(&mut self, outcome: Outcome) -> Consequences {
        let now = self.now();
        match outcome {
            Outcome::Prepared(spec, prepared) => self.spawn_ranks(&spec, prepared),
            Outcome::Spawned(rank, result) => self.on_spawned(rank, result).into(),
            Outcome::ExitInfo(rank, lines) => self.lifecycle.borrow_mut().exit_info(rank, lines, now).into(),
            Outcome::OrphansGone(rank) => {
                self.emptied.insert(rank);
                Consequences::default()
            }
            Outcome::JobEnd(text) => Consequences { actions: Vec::new(), notices: vec![text] },
            Outcome::Searched(survivors, gpus_free) => {
                self.lifecycle.borrow_mut().searched(survivors, gpus_free, now).into()
            }
        }
    }

    fn spawn_ranks(
        &mut self,
        spec: &LaunchSpec,
        prepared: Result<Box<PreparedHost>, String>,
    ) -> Consequences {
        let stopping = self.lifecycle.borrow().is_stopping();
        let prepared = match prepared {
            _ if stopping => Err("a stop was ordered before it was started".to_owned()),
            prepared => prepared,
        };
        let notices = prepared.as_ref().map_or_else(|_| Vec::new(), |host| host.notices.clone());
        let mut actions = Vec::new();
        for planned in spec.plan.ranks_of(spec.node_rank) {
            let command = match &prepared {
                Ok(host) => host.command(spec, planned, std::env::vars_os()),
                Err(error) => Err(error.clone()),
            };
            match command {
                Ok(command) => self.spawner.spawn(planned.rank, command),
                Err(error) => actions.extend(self.on_spawned(planned.rank, Err(error))),
            }
        }
        Consequences { actions, notices }
    }

    fn on_spawned(&mut self, rank: Rank, result: SpawnResult) -> Vec<Action> {
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

    /// Sends a signal to some ranks.
    pub fn signal_ranks(&self, ranks: &[Ident], signal: i32) {
        for ident in ranks {
            sweep::deliver(*ident, signal);
        }
    }

    /// Sends a signal to every process of the run on this host.
    pub fn signal_all(&self, signal: i32) {
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| signal == libc::SIGKILL) {
            cgroup.kill();
        }
        let (scope, looks, search) = (self.scope(), self.looks.clone(), self.searches.begin());
        spawn_blocking(move || {
            for found in looks.find(&scope) {
                sweep::deliver(found.ident, signal);
            }
            drop(search);
        });
    }

    /// Ends what a rank left behind; `polite` gives it time to end by itself.
    pub fn end_orphans(&self, rank: Rank, ident: Ident, polite: bool) {
        let scope = Scope {
            sessions: BTreeMap::from([(ident, Some(rank))]),
            spared: self.spared(),
            ..Scope::marked(mark(&self.context.run, &self.context.facts.paths, Some(rank)))
        };
        let (outcomes, looks, search) = (self.outcomes.clone(), self.looks.clone(), self.searches.begin());
        spawn_blocking(move || {
            let grace = if polite { ORPHAN_GRACE } else { Duration::ZERO };
            if sweep::kill_all(&scope, |scope| looks.find(scope), grace, KILL_PATIENCE).is_empty() {
                let _ = outcomes.blocking_send(Outcome::OrphansGone(rank));
            }
            drop(search);
        });
    }

    /// Kills and searches until nothing of the run is left on this host, or reports the survivors.
    pub fn verify_stop(&self) {
        let (scope, outcomes, gpus) = (self.scope(), self.outcomes.clone(), self.gpus.clone());
        let (searches, looks) = (self.searches.clone(), self.looks.clone());
        let lifecycle = self.lifecycle.borrow();
        let used: BTreeSet<u32> = lifecycle.ranks().iter().filter_map(|life| life.gpu).collect();
        let mut pids: BTreeSet<u32> =
            lifecycle.ranks().iter().filter_map(|life| Some(life.ident?.pid)).collect();
        let (removal, helpers) = (lifecycle.containers_removal(), self.helpers());
        spawn_blocking(move || {
            pids.extend(looks.find(&scope).iter().map(|found| found.ident.pid));
            let survivors = sweep::kill_all(&scope, |scope| looks.find(scope), Duration::ZERO, KILL_PATIENCE);
            // The next generation's ranks carry the same marks.
            searches.wait();
            if let Some(removal) = removal {
                // The proof is about processes; of a list that stays as it is nobody is the worse.
                let _ = libtorch::ask(&removal, REMOVAL, &helpers);
            }
            let free = gpu_release::wait(&gpus, &used, &pids);
            let _ = outcomes.blocking_send(Outcome::Searched(survivors, free));
        });
    }

    /// What is run for the user here.
    pub fn helpers(&self) -> Helpers {
        self.helpers.clone()
    }

    /// What serves the run here, and is none of it.
    pub fn spared(&self) -> BTreeSet<u32> {
        let mut spared = self.helpers.pids();
        spared.extend(self.guard.iter().map(|guard| guard.pid).chain([self.context.agent.pid]));
        spared
    }

    /// Everything of the run on this host: by session, by descent from the agent, by the mark in the
    /// environment, by control group, and what former agents have left.
    fn scope(&self) -> Scope {
        let lifecycle = self.lifecycle.borrow();
        let sessions = lifecycle
            .ranks()
            .iter()
            .filter(|life| !self.emptied.contains(&life.rank))
            .filter_map(|life| Some((life.ident.filter(|ident| ident.start > 0)?, Some(life.rank))))
            .collect();
        self.context.left.add_to(Scope {
            sessions,
            below: Some(self.context.agent.pid),
            groups: self.cgroup.iter().cloned().collect(),
            spared: self.spared(),
            ..Scope::marked(mark(&self.context.run, &self.context.facts.paths, None))
        })
    }

    /// Reaps every child that has ended. Children whose pid is known are reaped even while another child is
    /// being made.
    pub fn reap(&mut self) -> Consequences {
        let mut found = Consequences::default();
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
    fn on_child_exit(&mut self, pid: u32, status: i32, found: &mut Consequences) {
        let is_it = |life: &RankLife| life.lives() && life.ident.is_some_and(|ident| ident.pid == pid);
        let is_rank = self.lifecycle.borrow().ranks().iter().any(is_it);
        if is_rank {
            found.actions.extend(self.on_rank_exit(pid, status));
        } else if self.guard.as_ref().is_some_and(|guard| guard.pid == pid) {
            self.guard = None;
            found.notices.push("the guard process ended; starting another".into());
        } else if self.spawning > 0 && self.early_exits.len() < EARLY_EXITS {
            // This may be a rank that ended before the loop was told its pid.
            self.early_exits.insert(pid, status);
        }
    }

    fn on_rank_exit(&mut self, pid: u32, status: i32) -> Vec<Action> {
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        let out_of_memory = killed && self.oom.was_it();
        self.lifecycle.borrow_mut().reaped(pid, lifecycle::decode(status, out_of_memory), self.now())
    }

    /// Time passed: starts a guard where there is none, and moves the window in which kills by the kernel are
    /// counted. A returned text says why there is no guard.
    pub fn tick(&mut self) -> Option<String> {
        self.oom.turn();
        if self.guard.is_some() || Instant::now() < self.guard_retry {
            return None;
        }
        self.guard_retry = Instant::now() + GUARD_RETRY;
        let watch = Watch {
            run: self.context.run.clone(),
            paths: self.context.facts.paths.clone(),
            agent: self.context.agent,
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
            note: self.context.note.clone(),
        };
        match Guard::start(&watch).and_then(|guard| guard.beat().map(|()| guard)) {
            Ok(guard) => self.guard = Some(guard),
            Err(error) => return Some(format!("cannot start a guard process: {error}; trying again")),
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
            let _ = std::fs::remove_file(&self.context.note);
        }
    }
}

/// Ends what an agent of this node that died has left, before another one begins to serve; what could not be
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

/// What the environments of the processes of this node say, or those of one of its ranks.
fn mark(run: &RunId, paths: &RunPaths, rank: Option<Rank>) -> Mark {
    Mark { run: run.clone(), run_dir: paths.run_dir.clone(), node: paths.node, agent: None, rank }
}
