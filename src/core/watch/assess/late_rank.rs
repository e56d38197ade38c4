//! Rules: why a rank is late. They are tried in order; the first match wins.
//!
//! The state of the late rank explains a wait: its phase and its silence decide how long is too long, not the
//! wait of the others.
//!
//! Some reasons come from the obstacle that an inspection found: the lock, socket, pipe or child that the rank
//! waits for.
//!
//! The allowed length of a wait depends on what ends it. A wait that nothing can end is critical at once. A peer at
//! the other end of a connection, or a condition that the program polls for, may take longer than ever before at
//! that line of the program ([`Patience`](crate::watch::history::patience)), or than a usual bound where no wait
//! at that line has ended yet.

use crate::limits::TimeLimits;
use crate::reason::{Certainty, Proof, Reason, Severity};
use crate::watch::assess::finding::Assessment;
use crate::watch::history::inspections::{EarlierStorage, INSPECTION_MS, main_functions, main_stack};
use crate::watch::history::movement::IDLE;
use crate::watch::history::program::{
    self, KernelWait, Loss, children_work, cores_are_short, kernel_wait, lacks_cores, starved, stopped_child,
    storage_bytes, stretch, waits_for_the_dead,
};
use crate::watch::history::run_view::RankView;
use crate::watch::history::silence::SUSPECT_MS;
use rankdeck_proto::inspection::{BlockingProcess, Inspection, Obstacle, ThreadStack};
use rankdeck_proto::message::{Activity, Phase};

/// Wait after which an explained wait becomes a warning.
pub(crate) const AMBER_MS: u64 = 30_000;
/// A silence must be this many times the longest pause of this wait so far.
const LONGER: u64 = 2;
/// Pressure of memory (full) and major faults per second from which a host thrashes.
const MEMORY_FULL: f32 = 20.0;
const FAULTS: f64 = 1_000.0;
/// Share of the time in which its whole cgroup waits for memory, and hits of the cgroup's limit and major
/// faults per second, from which the cgroup thrashes.
const STALLED: f64 = 0.2;
const LIMIT_HITS: f64 = 50.0;
const LIMIT_FAULTS: f64 = 50.0;
/// Milliseconds in state D from which on it is not a coincidence.
const BLOCKED_MS: u64 = 1_000;
/// Wait after which an idle rank that has not joined the rendezvous is named.
pub(crate) const RENDEZVOUS_MS: u64 = 10_000;
/// The shortest time that the other end of a connection is given.
const REMOTE_MS: u64 = 60_000;
/// How long a polling loop may last, at the least, once others at its line have ended.
const POLLING_MS: u64 = 60_000;
/// Inspections in a row that must have seen a thread asleep at the same line, with other sleeps between them.
const POLLS: u32 = 3;
/// A lock is certain after this time, and this multiple of the longest wait at its line.
const OUTLASTED_MS: u64 = 3_600_000;
const OUTLASTED: u64 = 10;

/// Libraries whose worker processes compute environments.
const ENVIRONMENTS: [&str; 6] =
    ["gymnasium/vector", "gym/vector", "common/vec_env", "tianshou/env", "pufferlib/vector", "torchrl/envs"];

/// Python's pool of processes, which replaces workers that have died, and its queues, whose locks a worker takes with
/// it when it dies.
const QUEUES: [&str; 3] =
    ["/multiprocessing/pool.py", "/multiprocessing/queues.py", "/multiprocessing/synchronize.py"];
/// Where a thread waits for another one of its process, which may pass on what a worker sends.
const THREADS: [&str; 3] = ["/queue.py", "/threading.py", "/concurrent/futures/"];
/// Python's pipe to another process, and its event loop, which has pipes of its own.
const CONNECTION: &str = "/multiprocessing/connection.py";
const EVENT_LOOP: &str = "/asyncio/";

fn red(certainty: Certainty, reason: Reason) -> Option<Assessment> {
    Some(Assessment { severity: Severity::Red, certainty, reason })
}

fn likely(reason: Reason) -> Option<Assessment> {
    red(Certainty::Likely, reason)
}

fn amber(reason: Reason) -> Option<Assessment> {
    Some(Assessment { severity: Severity::Amber, certainty: Certainty::Possible, reason })
}

/// Returns the reason why it gets no core; `None` if cores are not short.
fn short_of_cores(view: &RankView<'_>) -> Option<Reason> {
    let throttled = view.moved().throttled.is_some_and(|share| share >= program::DELAYED);
    match (throttled, view.host.is_busy()) {
        // On a busy host, too, the kernel's own count is certain.
        (true, _) => Some(Reason::Throttled),
        (false, true) => Some(Reason::HostOverloaded),
        (false, false) => None,
    }
}

/// Whether its program works in a phase of known length.
fn progresses(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    view.silence_ms() < SUSPECT_MS
        || moved.io_bytes > 0
        || children_work(view) == Some(true)
        || view.never_sleeps()
}

/// Whether two inspections in a row saw its main thread in the same functions, libraries included: most programs
/// leave their loop to one.
pub(crate) fn same_functions(view: &RankView<'_>) -> bool {
    view.functions_before().is_some() && view.inspection().and_then(main_functions) == view.functions_before()
}

/// Whether a new inspection would show more: the rank has done something since the latest one, or the sleep
/// that it showed has ended.
pub(crate) fn needs_inspection(view: &RankView<'_>, limits: &TimeLimits) -> bool {
    let over = || {
        let inspection = view.current_inspection()?;
        Some(view.inspection_age_ms() > inspection.os.sleep_left_ms.or(inspection.awaited_sleep_ms)?)
    };
    view.quiet_ms() >= limits.behind / 2 && (view.inspection_is_stale() || over() == Some(true))
}

/// Whether its memory is paged in and out: its host's, or that of its own cgroup at a limit.
fn thrashes(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let at_limit = moved.memory_stalled > STALLED
        || (moved.limit_hits_per_s > LIMIT_HITS && moved.faults_per_s > LIMIT_FAULTS);
    let host = view.host.pressure.is_some_and(|(_, memory)| memory > MEMORY_FULL);
    host || moved.faults_per_s > FAULTS || at_limit
}

/// Assesses a late rank; `None` while there is nothing to report.
pub(crate) fn assess(view: &RankView<'_>, waited_ms: u64, limits: &TimeLimits) -> Option<Assessment> {
    if view.left {
        return red(Certainty::Proved(Proof::Gone), Reason::LeftEarly);
    }
    if view.halted_ms().is_some() {
        // It has a verdict of its own.
        return None;
    }
    let late = LateRankCheck::new(view, waited_ms, limits);
    let assessed = late
        .by_its_host()
        .or_else(|| late.by_somebody_remote())
        .or_else(|| late.by_its_workers())
        .or_else(|| late.by_its_polling())
        .or_else(|| late.by_its_progress())
        .unwrap_or_else(|| late.by_its_wait())?;
    // A stopped worker would not continue with a core, either.
    let workers = matches!(assessed.reason, Reason::EnvWorkerDeadlocked | Reason::DataLoader);
    let stopped = late.stopped || (workers && stopped_child(view).is_some());
    let rests_on_silence = assessed.severity == Severity::Red && assessed.certainty.proof().is_none();
    if rests_on_silence && !stopped && late.is_doubtful() {
        return amber(short_of_cores(view).unwrap_or(Reason::ExpectedWait));
    }
    // The kernel reports that the only process that could end this wait is stopped.
    let halted = late.stopped && late.waits_in != KernelWait::Poll && assessed.severity == Severity::Red;
    let certainty = if halted { Certainty::Proved(Proof::Halted) } else { assessed.certainty };
    Some(Assessment { certainty, ..assessed })
}

/// The result of a rule. Outer `None`: the rule does not apply. Inner `None`: nothing to report.
type Decision = Option<Option<Assessment>>;

/// A late rank, measured against its budgets.
struct LateRankCheck<'a> {
    view: &'a RankView<'a>,
    limits: &'a TimeLimits,
    waited_ms: u64,
    /// Milliseconds without a sign of activity.
    silence: u64,
    /// The budget for what the main thread of a script does is used up.
    spent: bool,
    suspicious: bool,
    overdue: bool,
    /// Its program has reported no progress for too long, whatever its main thread does.
    signless: bool,
    /// It waits for a process that a signal has stopped: its usual wait there means nothing.
    stopped: bool,
    /// Others have waited long enough that an explained wait becomes a warning.
    shown: bool,
    phase: Option<Phase>,
    waits_in: KernelWait,
}

impl<'a> LateRankCheck<'a> {
    fn new(view: &'a RankView<'a>, waited_ms: u64, limits: &'a TimeLimits) -> LateRankCheck<'a> {
        // What the main thread of a script does breaks its silence, until the budget for that is used up.
        let spent = view.silence_ms() >= limits.rank0;
        let silence = if spent { view.silence_ms() } else { view.quiet_ms() };
        let threshold = view.threshold;
        // It has paused in this wait before, and continued by itself.
        let pause = view.history.longest_pause_ms().saturating_mul(LONGER).min(limits.rank0);
        let at_line = view.line_waits.longest_ms.saturating_mul(LONGER).min(limits.rank0);
        let stuck = threshold.stuck.max(pause).max(at_line);
        let waits_in = kernel_wait(view);
        let stopped = matches!(waits_in, KernelWait::Pipe | KernelWait::Poll | KernelWait::Child)
            && program::waits_for_the_stopped(view)
            && silence.min(waited_ms) >= limits.behind;
        LateRankCheck {
            view,
            limits,
            waited_ms,
            silence,
            spent,
            suspicious: silence >= threshold.suspect && waited_ms >= SUSPECT_MS,
            overdue: stopped || (silence >= stuck && waited_ms >= limits.behind.min(stuck)),
            signless: view.silence_ms() >= threshold.stuck && waited_ms >= limits.behind.min(threshold.stuck),
            stopped,
            shown: waited_ms >= AMBER_MS,
            phase: view.phase(),
            waits_in,
        }
    }

    /// The allowed length of a wait that a peer or a condition ends: `least_ms`, and longer than any earlier wait at
    /// that line, of which the longest lasted `longest_ms`.
    fn patience_at_line(&self, longest_ms: u64, least_ms: u64) -> u64 {
        longest_ms.saturating_mul(LONGER).max(least_ms).min(self.limits.rank0)
    }

    /// It uses no CPU although its budget is used up.
    fn idles(&self) -> bool {
        self.overdue && self.view.cpu_share() <= IDLE
    }

    /// It is a script that computes, or would if it had a core, in the same functions at each inspection. An
    /// evaluation looks like an endless loop, which is worth a warning.
    fn spins(&self) -> bool {
        let view = self.view;
        let within = self.phase.is_none() && !self.spent;
        within && self.signless && view.never_sleeps() && same_functions(view)
    }

    /// Milliseconds for which it may be silent if cores are short.
    fn patience(&self) -> u64 {
        self.view.threshold.stuck.saturating_mul(stretch(self.view)).min(self.limits.rank0)
    }

    /// Its stall need not be its fault: cores are short, and it needs one, or no inspection shows yet what it
    /// does.
    fn is_doubtful(&self) -> bool {
        let unseen = self.view.current_inspection().is_none() && self.phase.is_none();
        let short = cores_are_short(self.view) && (lacks_cores(self.view) || unseen);
        short && self.silence < self.patience()
    }

    /// A long call, an oversubscribed host, or slow storage.
    fn by_its_host(&self) -> Decision {
        let (view, overdue) = (self.view, self.overdue);
        if self.signless && view.inspection().is_some_and(|inspection| inspection.computes_in_c) {
            // A long call looks like an endless one.
            return Some(if self.silence >= self.limits.rank0 {
                likely(Reason::GilHeld)
            } else {
                amber(Reason::GilHeld)
            });
        }
        if thrashes(view) {
            return Some(if overdue { amber(Reason::Thrashing) } else { None });
        }
        if self.spins() {
            return Some(amber(Reason::Spinning));
        }
        if starved(view) && self.silence < self.patience() && !self.stopped {
            let reason = short_of_cores(view).unwrap_or(Reason::HostOverloaded);
            return Some(if overdue { amber(reason) } else { None });
        }
        let blocked = view.history.blocked_ms().is_some_and(|ms| ms >= BLOCKED_MS);
        if blocked && self.suspicious && storage_bytes(view) == 0 {
            return Some(self.by_its_storage());
        }
        let reason = outside_obstacle(view).filter(|_| self.idles())?;
        Some(likely(reason))
    }

    /// It is blocked in the kernel. Slow storage responds now and then; only an inspection shows it.
    fn by_its_storage(&self) -> Option<Assessment> {
        let view = self.view;
        let budget = self.silence < self.limits.rank0;
        if budget && view.storage_answers() {
            return if self.shown { amber(Reason::ExpectedWait) } else { None };
        }
        // If the agent counts the bytes, two inspections show it.
        let seen = |inspection: &Inspection| {
            inspection.storage_bytes.is_none() || view.storage_before() != EarlierStorage::Unknown
        };
        let enough = view.threshold.suspect.max(self.limits.behind).saturating_add(INSPECTION_MS);
        let unseen = !view.current_inspection().is_some_and(seen) && self.silence < enough;
        if unseen { None } else { likely(Reason::Storage) }
    }

    /// The rank, or the process it waits for, waits for a peer at the other end of a connection, which may take long.
    fn by_somebody_remote(&self) -> Decision {
        let view = self.view;
        // Of a socket that no inspection names, no more is known.
        let is_remote = remote(view) || (self.waits_in == KernelWait::Net && own_obstacle(view).is_none());
        // Inside a collective, its peers are at the other end.
        let waits = is_remote && view.waiting().is_none() && !self.stopped && view.cpu_share() <= IDLE;
        if !waits || self.silence < view.threshold.stuck || self.waited_ms < self.limits.behind {
            return None;
        }
        if children_work(view) == Some(true) || program::awaits_a_sleeper(view, self.limits.rank0) {
            return None;
        }
        let longest_ms = view.line_waits.longest_ms;
        Some(if self.silence >= self.patience_at_line(longest_ms, REMOTE_MS) {
            likely(Reason::WaitsForPeer)
        } else if self.silence <= longest_ms && !self.shown {
            None
        } else {
            amber(Reason::WaitsForPeer)
        })
    }

    /// It does nothing but sleep, time and again, at one line: it polls for a condition.
    fn by_its_polling(&self) -> Decision {
        let view = self.view;
        let (polled_ms, naps) = view.stay();
        if self.phase.is_some() || naps < POLLS || program::works(view) {
            return None;
        }
        let reason = if retries_a_lock(view) { Reason::FileLock } else { Reason::Polling };
        let bound_ms = match view.line_waits.polled_ms {
            0 => self.limits.rank0,
            longest_ms => self.patience_at_line(longest_ms, POLLING_MS),
        };
        Some(match (self.shown, polled_ms.max(self.silence) >= bound_ms) {
            (false, _) => None,
            (true, false) => amber(reason),
            (true, true) => likely(reason),
        })
    }

    /// It waits for a lock, and gives up after a while, as a loop over a queue does.
    fn polls_a_lock(&self) -> bool {
        let is_timed = |inspection: &Inspection| inspection.os.sleep_left_ms.is_some();
        self.waits_in == KernelWait::Lock && self.view.inspection().is_some_and(is_timed)
    }

    /// How sure it is that the worker which it waits for has exited: the built-in trainer starts no other
    /// processes. A dead child of a script may be of no interest, unless no living one is at the other end.
    fn death(&self) -> Certainty {
        let is_known = self.phase.is_some() || self.view.current_inspection().is_some_and(awaits_nobody);
        if is_known { Certainty::Proved(Proof::Gone) } else { Certainty::Likely }
    }

    /// A lock that has stood for many times longer than any wait at its line, and for an hour, while nothing else
    /// of the rank ran or waited for anybody.
    fn outlasted(&self) -> bool {
        let view = self.view;
        let is_seen = |inspection: &Inspection| {
            inspection.obstacle.is_none()
                && inspection.awaits.is_empty()
                && inspection.awaited_sleep_ms.is_none()
                && inspection.os.sleep_left_ms.is_none()
                && main_stack(inspection).is_some()
        };
        let bound_ms = OUTLASTED_MS.max(view.line_waits.longest_ms.saturating_mul(OUTLASTED));
        self.silence.min(self.waited_ms) >= bound_ms
            && view.current_inspection().is_some_and(is_seen)
            && !program::works(view)
    }

    /// Its environment or data loader workers.
    fn by_its_workers(&self) -> Decision {
        let (view, waits_in) = (self.view, self.waits_in);
        let env = matches!(self.phase, None | Some(Phase::Rollout | Phase::Eval))
            || matches!(view.page().map(|page| page.activity), Some(Activity::EnvReset | Activity::EnvStep));
        // A program that reports no phase may poll for anything: one of its workers must be stopped.
        let workers = idle_workers(view).filter(|_| env)?;
        let polls = waits_in == KernelWait::Poll
            && (self.phase.is_some() || stopped_child(view).is_some() || workers == Reason::DataLoader);
        if !polls && !matches!(waits_in, KernelWait::Pipe | KernelWait::Child) {
            return None;
        }
        if workers == Reason::EnvWorkerDeadlocked
            && waits_for_the_dead(view)
            && self.silence >= SUSPECT_MS
            && self.waited_ms >= SUSPECT_MS
        {
            return Some(red(self.death(), Reason::EnvWorkerDied));
        }
        if program::awaits_a_sleeper(view, self.limits.rank0) {
            return None;
        }
        match children_work(view) {
            // The inspection may be older than the computation.
            Some(false) if self.idles() => Some(likely(workers)),
            Some(true) if workers == Reason::EnvWorkerDeadlocked => {
                Some(if self.overdue || self.shown { amber(Reason::SlowEnv) } else { None })
            }
            Some(_) | None => None,
        }
    }

    /// Progress in a phase that may take long, or without a phase.
    fn by_its_progress(&self) -> Decision {
        let (view, phase) = (self.view, self.phase);
        let held = view.current_inspection().is_some_and(|inspection| inspection.sleeps_in_c);
        if held && self.idles() && !program::wakes_by_itself(view, self.limits.rank0) {
            return Some(likely(Reason::GilHeld));
        }
        // What somebody else holds is no progress, however long the phase may take.
        let held = outside_obstacle(view).filter(|_| view.cpu_share() <= IDLE);
        let retried = || retries_a_lock(view).then_some(Reason::FileLock);
        let why = held.or_else(retried).unwrap_or(Reason::ExpectedWait);
        let expected = if self.shown { amber(why) } else { None };
        let long = matches!(phase, Some(Phase::Eval | Phase::Checkpoint | Phase::Init | Phase::Rendezvous));
        let compiling = view.page().is_some_and(|page| page.activity == Activity::Compile);
        // Progress of the program always renews the budget, a busy CPU alone three times.
        let stuck = view.threshold.stuck;
        let silent_budget = stuck.saturating_mul(if view.never_sleeps() { 4 } else { 1 });
        if (long || compiling) && progresses(view) && self.silence < silent_budget {
            return Some(expected);
        }
        // A program without phases may work for any time. The kernel counts a wait for a core only when it
        // ends, so a rank that gets no core at all is only seen ready to run.
        if phase.is_none() && !self.spent && (self.polls_a_lock() || program::moves(view, self.limits.rank0))
        {
            return Some(expected);
        }
        // Only an inspection shows when a sleep ends, and one from before the rank did something is stale.
        let unseen = phase.is_none()
            && (view.inspection_is_stale()
                || (self.waits_in == KernelWait::Sleep && view.inspection().is_none()));
        let early =
            !self.overdue || (unseen && !self.stopped && self.silence < stuck.saturating_add(INSPECTION_MS));
        early.then_some(expected)
    }

    /// It waits for a process below it that has exited: for data or room in a pipe, for another child, for a lock
    /// that processes share, or for a thread that passes on what a worker sends.
    ///
    /// A child that was there when it last made progress and that nobody has waited for explains any of these. One
    /// that came later, or that the program has waited for, explains only what nobody else can end: a pipe without a
    /// live process at its other end, a lock of Python's pools and queues, or a pipe whose other end only its
    /// siblings hold, which inherit it.
    fn lost_its_worker(&self) -> bool {
        let view = self.view;
        let Some(lost) = program::lost_worker(view) else { return false };
        let inspection = view.current_inspection();
        let has_timer = view.inspection().is_some_and(|inspection| inspection.os.sleep_left_ms.is_some());
        let stack = view.inspection().and_then(main_stack);
        let inside = |parts: &[&str]| stack.is_some_and(|stack| calls(stack, parts));
        let is_shared = || inspection.is_some_and(|inspection| inspection.os.shared_lock);
        let is_cut_off = || inspection.is_some_and(has_dead_end) && !inside(&[EVENT_LOOP]);
        match (self.waits_in, lost.loss) {
            (KernelWait::Lock, Loss::Unreaped) => inside(&QUEUES) || inside(&THREADS) || is_shared(),
            (KernelWait::Lock, Loss::Reaped) => inside(&QUEUES) || is_shared(),
            (KernelWait::Lock, Loss::Young) => is_shared(),
            (KernelWait::Poll, _) if has_timer => false,
            (KernelWait::Poll | KernelWait::Pipe | KernelWait::Child, Loss::Unreaped) => true,
            (KernelWait::Poll | KernelWait::Pipe, Loss::Young) => is_cut_off(),
            (KernelWait::Poll | KernelWait::Pipe, Loss::Reaped) => {
                is_cut_off() || (inside(&[CONNECTION]) && awaits_veterans(view))
            }
            (KernelWait::Child, Loss::Young | Loss::Reaped)
            | (KernelWait::Sleep | KernelWait::Net | KernelWait::Other, _) => false,
        }
    }

    /// It is stuck: the wait of its main thread gives the reason.
    fn by_its_wait(&self) -> Option<Assessment> {
        let view = self.view;
        let idle = view.cpu_share() <= IDLE;
        let reason = match (view.sample.state, self.waits_in) {
            _ if view.waiting().is_some() => Reason::InsideEarlier,
            ('R', _) if view.never_sleeps() => Reason::Spinning,
            _ if idle && self.lost_its_worker() => Reason::WorkerDied,
            (_, KernelWait::Lock) if idle => Reason::Lock,
            (_, KernelWait::Sleep) if own_obstacle(view) != Some(Reason::FileLock) => Reason::Sleeping,
            // An event loop with timers only.
            (_, KernelWait::Poll)
                if view
                    .current_inspection()
                    .is_some_and(|inspection| inspection.os.sleep_left_ms.is_some()) =>
            {
                Reason::Sleeping
            }
            _ if idle && own_obstacle(view).is_some() => own_obstacle(view).unwrap_or_default(),
            (_, KernelWait::Net) => Reason::WaitsForPeer,
            _ => Reason::Unknown,
        };
        let is_dead = || waits_for_the_dead(view) && view.current_inspection().is_some_and(awaits_nobody);
        let proof = if reason == Reason::Lock && self.outlasted() {
            Some(Proof::Outlasted)
        } else if matches!(reason, Reason::WorkerDied | Reason::Pipe | Reason::ChildProcess) && is_dead() {
            Some(Proof::Gone)
        } else {
            None
        };
        red(proof.map_or(Certainty::Likely, Certainty::Proved), reason)
    }
}

/// Whether an inspection shows that no live process is at the other end of the wait.
fn awaits_nobody(inspection: &Inspection) -> bool {
    let named = |pid: &u32| inspection.children.iter().find(|child| child.pid == *pid);
    let is_dead = |pid: &u32| named(pid).is_some_and(|child| matches!(child.state, 'Z' | 'X'));
    match &inspection.obstacle {
        Some(Obstacle::Pipe { ends, .. }) => ends.iter().all(|end| matches!(end.state, 'Z' | 'X')),
        _ => !inspection.awaits.is_empty() && inspection.awaits.iter().all(is_dead),
    }
}

/// It waits for a pipe or a pair of sockets, at whose other end no live process is.
fn has_dead_end(inspection: &Inspection) -> bool {
    matches!(inspection.obstacle, Some(Obstacle::Pipe { .. })) && awaits_nobody(inspection)
}

/// All processes at the other end were there when the rank last made progress.
fn awaits_veterans(view: &RankView<'_>) -> bool {
    let obstacle = view.current_inspection().and_then(|inspection| inspection.obstacle.as_ref());
    let Some(Obstacle::Pipe { ends, .. }) = obstacle else { return false };
    !ends.is_empty() && ends.iter().all(|end| view.history.veterans().contains(&end.pid))
}

/// The wait ends at the other end of a connection.
fn remote(view: &RankView<'_>) -> bool {
    let obstacle = view.current_inspection().and_then(|inspection| inspection.obstacle.as_ref());
    matches!(obstacle, Some(Obstacle::Connection { .. } | Obstacle::Listener { .. }))
}

/// Assesses a rank that has not joined the rendezvous while others wait there.
pub(crate) fn assess_start(view: &RankView<'_>, waited_ms: u64, limits: &TimeLimits) -> Option<Assessment> {
    if view.left {
        return red(Certainty::Proved(Proof::Gone), Reason::LeftEarly);
    }
    if view.halted_ms().is_some() {
        return None;
    }
    let blocked = view.history.blocked_ms().is_some_and(|ms| ms >= BLOCKED_MS);
    let idle = view.moved().over_ms >= 1_000 && view.cpu_share() <= IDLE;
    let slowly = program::gets_little(view);
    let still = view.idle_ms().is_none_or(|ms| ms >= RENDEZVOUS_MS);
    let nothing = idle && still && !slowly && storage_bytes(view) == 0 && children_work(view) != Some(true);
    let nothing = nothing && !program::wakes_by_itself(view, limits.rank0);
    let budget = limits.init.saturating_mul(if slowly { stretch(view) } else { 1 });
    if blocked && waited_ms >= limits.behind {
        return likely(Reason::Storage);
    }
    if waited_ms >= budget || (nothing && waited_ms >= RENDEZVOUS_MS) {
        return likely(Reason::RendezvousIncomplete);
    }
    if waited_ms >= AMBER_MS { amber(Reason::RendezvousIncomplete) } else { None }
}

/// The rank waits for something outside the run.
fn outside_obstacle(view: &RankView<'_>) -> Option<Reason> {
    match view.current_inspection()?.obstacle.as_ref()? {
        // If a rank of the run holds it, such as one that loads data for all, that rank has the verdict.
        Obstacle::FileLock { holders, .. } if holders.iter().any(|holder| holder.ours) => None,
        Obstacle::FileLock { .. } => Some(Reason::FileLock),
        Obstacle::Fifo { .. } => Some(Reason::Fifo),
        Obstacle::NameServer { .. } => Some(Reason::NameLookup),
        Obstacle::Connection { .. }
        | Obstacle::Listener { .. }
        | Obstacle::Pipe { .. }
        | Obstacle::Child { .. } => None,
    }
}

/// The rank waits for something that may still happen, and makes no progress.
fn own_obstacle(view: &RankView<'_>) -> Option<Reason> {
    match view.current_inspection()?.obstacle.as_ref()? {
        Obstacle::FileLock { .. } => Some(Reason::FileLock),
        Obstacle::Fifo { .. } => Some(Reason::Fifo),
        Obstacle::NameServer { .. } => Some(Reason::NameLookup),
        Obstacle::Connection { .. } | Obstacle::Listener { .. } => Some(Reason::WaitsForPeer),
        Obstacle::Pipe { .. } => Some(Reason::Pipe),
        Obstacle::Child { .. } => Some(Reason::ChildProcess),
    }
}

/// Whether it retries to lock a file and sleeps in between. Each try may read the file, so that the rank is
/// never idle for long.
fn retries_a_lock(view: &RankView<'_>) -> bool {
    let lock = view
        .inspection()
        .is_some_and(|inspection| matches!(inspection.obstacle, Some(Obstacle::FileLock { .. })));
    lock && view.sample.wchan.contains("nanosleep")
}

/// Returns the reason if the processes that a rank waits for are idle: they are workers of its environment or
/// of a data loader. `None` for any other program that it has started.
fn idle_workers(view: &RankView<'_>) -> Option<Reason> {
    if view.phase().is_some() {
        // The built-in trainer starts no other processes.
        return Some(Reason::EnvWorkerDeadlocked);
    }
    if view.inspection_is_stale() {
        return None;
    }
    let Some(stack) = view.inspection().and_then(main_stack) else {
        // Without a stack, Python processes that it waits for count as workers.
        let waited_for: &[BlockingProcess] =
            match view.inspection().and_then(|inspection| inspection.obstacle.as_ref()) {
                Some(Obstacle::Pipe { ends, .. }) => ends,
                Some(Obstacle::Child { process }) => std::slice::from_ref(process),
                Some(Obstacle::Connection { .. } | Obstacle::Listener { .. }) => return None,
                _ => &[],
            };
        let copies = waited_for.iter().all(|process| process.name.contains("python"));
        return copies.then_some(Reason::EnvWorkerDeadlocked);
    };
    if calls(stack, &["torch/utils/data"]) {
        Some(Reason::DataLoader)
    } else if calls(stack, &ENVIRONMENTS) {
        Some(Reason::EnvWorkerDeadlocked)
    } else {
        None
    }
}

/// One of these is part of the path of a frame.
fn calls(stack: &ThreadStack, parts: &[&str]) -> bool {
    let files = || stack.frames.iter().filter_map(|frame| frame.file.as_deref());
    parts.iter().any(|part| files().any(|file| file.contains(part)))
}
