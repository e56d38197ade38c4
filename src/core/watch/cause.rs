//! Why a rank is late: the first rule that matches gives the reason. Pure.
//!
//! A wait is explained by what the late rank does, so its phase and its silence decide how long is too long,
//! not the wait of the others.

use super::draft::Judgement;
use super::movement::IDLE;
use super::obstacle;
use super::pace::SUSPECT_MS;
use super::program::{self, children_work, stopped_child, storage_bytes};
use super::rank_view::{EarlierStorage, RankView};
use super::shortage::{self, cores_are_short, lacks_cores, starved, stretch};
use crate::limits::Limits;
use crate::reason::{Reason, Severity};
use crate::report::Confidence;
use rankdeck_proto::inspection::{Frame, How, Inspection};
use rankdeck_proto::message::{Activity, Phase};
use rankdeck_types::words;

/// Wait after which an explained wait is shown.
pub(super) const AMBER_MS: u64 = 30_000;
/// How many times the longest pause of this wait so far a silence must be.
const LONGER: u64 = 2;
/// Pressure of memory (full) and major faults per second from which a host thrashes.
const MEMORY_FULL: f32 = 20.0;
const FAULTS: f64 = 1_000.0;
/// Share of the time in which its whole group waits for memory, and hits of the group's limit and major
/// faults per second, from which the group thrashes.
const STALLED: f64 = 0.2;
const LIMIT_HITS: f64 = 50.0;
const LIMIT_FAULTS: f64 = 50.0;
/// Milliseconds in state D after which it is not an accident.
const BLOCKED_MS: u64 = 1_000;
/// Milliseconds that a close look may take before a verdict does without it.
pub(super) const LOOK_MS: u64 = 2_000;
/// Wait after which a rank that has not come to the rendezvous and does nothing is named.
pub(super) const RENDEZVOUS_MS: u64 = 10_000;

fn red(confidence: Confidence, reason: Reason) -> Option<Judgement> {
    Some(Judgement { severity: Severity::Red, confidence, reason })
}

fn amber(reason: Reason) -> Option<Judgement> {
    Some(Judgement { severity: Severity::Amber, confidence: Confidence::Possible, reason })
}

/// What a late rank waits in, by the kernel's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Pipe,
    /// On several descriptors at once.
    Poll,
    Lock,
    Sleep,
    Net,
    Child,
    Other,
}

fn wait(view: &RankView<'_>) -> Wait {
    if view.sample.state == 'R' {
        return Wait::Other;
    }
    // The sample is the newer one.
    let looked = view.evidence().and_then(|look| look.os.wchan.as_deref());
    let seen = Some(view.sample.wchan.as_str()).filter(|wchan| !wchan.is_empty());
    let wchan = seen.or(looked).unwrap_or_default();
    let has = |names: &[&str]| names.iter().any(|name| wchan.contains(name));
    let blocked = view.evidence().and_then(|look| look.blocked_on.as_deref()).unwrap_or_default();
    if has(&["pipe_read", "unix_stream_read", "pipe_wait"]) || blocked.contains("pipe from pid") {
        Wait::Pipe
    } else if has(&["futex"]) {
        Wait::Lock
    } else if has(&["nanosleep"]) {
        Wait::Sleep
    } else if has(&["wait_woken", "sk_wait_data", "inet_csk", "tcp_"]) {
        Wait::Net
    } else if has(&["poll", "do_select"]) {
        Wait::Poll
    } else if wchan == "do_wait" || has(&["kernel_wait4"]) {
        Wait::Child
    } else {
        Wait::Other
    }
}

/// A child has ended since the rank went on last, and nobody waited for it. Others may lie about for as long
/// as the program likes.
pub(super) fn dead_child(view: &RankView<'_>) -> Option<u32> {
    let ended = |pid: u32, state: char| matches!(state, 'Z' | 'X') && !view.ended_before.contains(&pid);
    let seen = view.sample.signals.children.iter().find(|child| ended(child.pid, child.state));
    let looked = || view.evidence()?.children.iter().find(|child| ended(child.pid, child.state));
    seen.map(|child| child.pid).or_else(|| looked().map(|child| child.pid))
}

/// The rank waits for a worker that has ended: nobody who lives is at the other end. Of a script only a look
/// tells what it waits for.
fn waits_for_the_dead(view: &RankView<'_>) -> bool {
    let lives = |pid: &u32| {
        let known = view.sample.signals.children.iter().find(|child| child.pid == *pid);
        known.is_none_or(|child| !matches!(child.state, 'Z' | 'X'))
    };
    let told = view.phase().is_some() || view.evidence().is_some();
    told && dead_child(view).is_some() && !view.evidence().is_some_and(|look| look.awaits.iter().any(lives))
}

/// Its program works in a phase of known length.
fn progresses(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    view.silence_ms() < SUSPECT_MS
        || moved.io_bytes > 0
        || children_work(view) == Some(true)
        || view.never_sleeps()
}

/// Two looks one after the other saw it in the same function of its own code.
fn same_function(view: &RankView<'_>) -> bool {
    view.function_before.is_some() && view.look.and_then(user_function).as_deref() == view.function_before
}

/// A new look would tell more: the rank has done something since the latest one, or a sleep that it showed is
/// over.
pub(super) fn wants_look(view: &RankView<'_>, limits: &Limits) -> bool {
    let over = || {
        let look = view.evidence()?;
        Some(view.look_age_ms > look.os.sleep_left_ms.or(look.awaited_sleep_ms)?)
    };
    view.quiet_ms() >= limits.behind / 2 && (view.look_is_old() || over() == Some(true))
}

/// Its memory is paged in and out: its host's, or that of its own group at a limit.
fn thrashes(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let at_limit = moved.memory_stalled > STALLED
        || (moved.limit_hits_per_s > LIMIT_HITS && moved.faults_per_s > LIMIT_FAULTS);
    let host = view.host.pressure.is_some_and(|(_, memory)| memory > MEMORY_FULL);
    host || moved.faults_per_s > FAULTS || at_limit
}

/// How bad the lateness of one rank is; `None` while nothing should be said.
pub(super) fn judge(view: &RankView<'_>, waited_ms: u64, limits: &Limits) -> Option<Judgement> {
    if view.left {
        return red(Confidence::Certain, Reason::LeftEarly);
    }
    if view.halted_ms.is_some() {
        // That has a verdict of its own.
        return None;
    }
    let late = Lateness::new(view, waited_ms, limits);
    let judged = late
        .by_its_host()
        .or_else(|| late.by_its_workers())
        .or_else(|| late.by_its_progress())
        .unwrap_or_else(|| late.by_its_wait())?;
    // A worker that is stopped would not go on with a core, either.
    let workers = matches!(judged.reason, Reason::EnvWorkerDeadlocked | Reason::DataLoader);
    let stopped = late.stopped || (workers && stopped_child(view).is_some());
    let rests_on_silence = judged.severity == Severity::Red && judged.confidence < Confidence::Certain;
    if rests_on_silence && !stopped && late.is_doubtful() {
        return amber(shortage::reason(view).unwrap_or(Reason::ExpectedWait));
    }
    // The kernel says that the only one who could end this wait is stopped.
    let proved = late.stopped && late.waits_in != Wait::Poll && judged.severity == Severity::Red;
    Some(Judgement { confidence: if proved { Confidence::Certain } else { judged.confidence }, ..judged })
}

/// What a rule says of a late rank. Outer `None`: the rule does not apply. Inner `None`: nothing should be
/// said.
type Decision = Option<Option<Judgement>>;

/// A rank that is late, against its budgets.
struct Lateness<'a> {
    view: &'a RankView<'a>,
    limits: &'a Limits,
    waited_ms: u64,
    /// Milliseconds without a sign.
    silence: u64,
    /// The budget for what the main thread of a script does is used up.
    spent: bool,
    suspicious: bool,
    overdue: bool,
    /// Its program has given no sign for too long, whatever its main thread does.
    signless: bool,
    /// It waits for a process that a signal has stopped: how long it usually waits there says nothing.
    stopped: bool,
    /// Others have waited so long that an explained wait is shown.
    shown: bool,
    phase: Option<Phase>,
    waits_in: Wait,
}

impl<'a> Lateness<'a> {
    fn new(view: &'a RankView<'a>, waited_ms: u64, limits: &'a Limits) -> Lateness<'a> {
        // What the main thread of a script does breaks its silence, until the budget for that is used up.
        let spent = view.silence_ms() >= limits.rank0;
        let silence = if spent { view.silence_ms() } else { view.quiet_ms() };
        let threshold = view.threshold;
        // It has paused in this wait before, and has gone on by itself.
        let pause = view.longest_pause_ms.saturating_mul(LONGER).min(limits.rank0);
        let stuck = threshold.stuck.max(pause);
        let waits_in = wait(view);
        let stopped = matches!(waits_in, Wait::Pipe | Wait::Poll | Wait::Child)
            && program::waits_for_the_stopped(view)
            && silence.min(waited_ms) >= limits.behind;
        Lateness {
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

    /// It uses no CPU although its time is over.
    fn idles(&self) -> bool {
        self.overdue && self.view.cpu_share() <= IDLE
    }

    /// It is a script that computes, or would if it had a core, in the same function at each look. Nothing
    /// tells an evaluation from an endless loop, but that is worth a word.
    fn spins(&self) -> bool {
        let view = self.view;
        let within = self.phase.is_none() && !self.spent;
        within && self.signless && view.never_sleeps() && same_function(view)
    }

    /// Milliseconds for which it may be silent where cores are short.
    fn patience(&self) -> u64 {
        self.view.threshold.stuck.saturating_mul(stretch(self.view)).min(self.limits.rank0)
    }

    /// That it stands still need not be its fault: cores are short, and something of it wants one, or nobody
    /// has seen yet what it does now.
    fn is_doubtful(&self) -> bool {
        let unseen = self.view.evidence().is_none() && self.phase.is_none();
        let short = cores_are_short(self.view) && (lacks_cores(self.view) || unseen);
        short && self.silence < self.patience()
    }

    /// A long call, and what its host or its storage does to it.
    fn by_its_host(&self) -> Decision {
        let (view, overdue) = (self.view, self.overdue);
        if self.signless && view.look.is_some_and(|look| look.computes_in_c) {
            // Nothing tells a long call from an endless one.
            return Some(if self.silence >= self.limits.rank0 {
                red(Confidence::Likely, Reason::GilHeld)
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
            let reason = shortage::reason(view).unwrap_or(Reason::HostOverloaded);
            return Some(if overdue { amber(reason) } else { None });
        }
        let blocked = view.blocked_ms.is_some_and(|ms| ms >= BLOCKED_MS);
        if blocked && self.suspicious && storage_bytes(view) == 0 {
            return Some(self.by_its_storage());
        }
        let reason = obstacle::for_others(view).filter(|_| self.idles())?;
        Some(red(Confidence::Likely, reason))
    }

    /// It is blocked in the kernel. Storage that is slow answers now and then; only a look tells.
    fn by_its_storage(&self) -> Option<Judgement> {
        let view = self.view;
        let budget = self.silence < self.limits.rank0;
        if budget && view.storage_answers() {
            return if self.shown { amber(Reason::ExpectedWait) } else { None };
        }
        // Where somebody counts what it moves, two looks tell.
        let seen = |look: &Inspection| {
            look.storage_bytes.is_none() || view.storage_before != EarlierStorage::Unknown
        };
        let enough = view.threshold.suspect.max(self.limits.behind).saturating_add(LOOK_MS);
        let unseen = !view.evidence().is_some_and(seen) && self.silence < enough;
        if unseen { None } else { red(Confidence::Likely, Reason::Storage) }
    }

    /// What the processes that compute its environments do.
    fn by_its_workers(&self) -> Decision {
        let (view, waits_in) = (self.view, self.waits_in);
        let env = matches!(self.phase, None | Some(Phase::Rollout | Phase::Eval))
            || matches!(view.page().map(|page| page.activity), Some(Activity::EnvReset | Activity::EnvStep));
        // A program that reports no phase may poll for anything: one of its workers must be known to be
        // stopped.
        let workers = obstacle::workers(view).filter(|_| env)?;
        let polls = waits_in == Wait::Poll
            && (self.phase.is_some() || stopped_child(view).is_some() || workers == Reason::DataLoader);
        if !polls && !matches!(waits_in, Wait::Pipe | Wait::Child) {
            return None;
        }
        if workers == Reason::EnvWorkerDeadlocked
            && waits_for_the_dead(view)
            && self.silence >= SUSPECT_MS
            && self.waited_ms >= SUSPECT_MS
        {
            return Some(red(Confidence::Certain, Reason::EnvWorkerDied));
        }
        if program::awaits_a_sleeper(view, self.limits.rank0) {
            return None;
        }
        match children_work(view) {
            // The look may be older than the computation.
            Some(false) if self.idles() => Some(red(Confidence::Likely, workers)),
            Some(true) if workers == Reason::EnvWorkerDeadlocked => {
                Some(if self.overdue || self.shown { amber(Reason::SlowEnv) } else { None })
            }
            Some(_) | None => None,
        }
    }

    /// Whether it gets on, in a phase that may take long or without any phase.
    fn by_its_progress(&self) -> Decision {
        let (view, phase) = (self.view, self.phase);
        let held = view.evidence().is_some_and(|look| look.sleeps_in_c);
        if held && self.idles() && !program::wakes_by_itself(view, self.limits.rank0) {
            return Some(red(Confidence::Likely, Reason::GilHeld));
        }
        let why = if obstacle::tries_a_lock(view) { Reason::FileLock } else { Reason::ExpectedWait };
        let expected = if self.shown { amber(why) } else { None };
        let long = matches!(phase, Some(Phase::Eval | Phase::Checkpoint | Phase::Init | Phase::Rendezvous));
        let compiling = view.page().is_some_and(|page| page.activity == Activity::Compile);
        // Progress of the program always renews the budget, a busy CPU alone three times.
        let stuck = view.threshold.stuck;
        let silent_budget = stuck.saturating_mul(if view.never_sleeps() { 4 } else { 1 });
        if (long || compiling) && progresses(view) && self.silence < silent_budget {
            return Some(expected);
        }
        // A program without phases may work for as long as it likes. The kernel counts a wait for a core only
        // when it is over, so a rank that gets no core at all is merely seen ready to run.
        if phase.is_none() && !self.spent && program::moves(view, self.limits.rank0) {
            return Some(expected);
        }
        // When a sleep ends, only a look tells; and what a look has shown before it did something is over.
        let unseen =
            phase.is_none() && (view.look_is_old() || (self.waits_in == Wait::Sleep && view.look.is_none()));
        let early =
            !self.overdue || (unseen && !self.stopped && self.silence < stuck.saturating_add(LOOK_MS));
        early.then_some(expected)
    }

    /// It is stuck: what its main thread waits in.
    fn by_its_wait(&self) -> Option<Judgement> {
        let view = self.view;
        let idle = view.cpu_share() <= IDLE;
        let reason = match (view.sample.state, self.waits_in) {
            _ if view.waiting().is_some() => Reason::InsideEarlier,
            ('R', _) if view.never_sleeps() => Reason::Spinning,
            (_, Wait::Lock) if idle => Reason::Lock,
            (_, Wait::Sleep) if obstacle::for_own(view) != Some(Reason::FileLock) => Reason::Sleeping,
            // An event loop with nothing but timers.
            (_, Wait::Poll) if view.evidence().is_some_and(|look| look.os.sleep_left_ms.is_some()) => {
                Reason::Sleeping
            }
            _ if idle && obstacle::for_own(view).is_some() => obstacle::for_own(view).unwrap_or_default(),
            (_, Wait::Net) => Reason::WaitsForPeer,
            _ => Reason::Unknown,
        };
        red(Confidence::Likely, reason)
    }
}

/// A rank that has not come to the rendezvous while others wait there.
pub(super) fn judge_start(view: &RankView<'_>, waited_ms: u64, limits: &Limits) -> Option<Judgement> {
    if view.left {
        return red(Confidence::Certain, Reason::LeftEarly);
    }
    if view.halted_ms.is_some() {
        return None;
    }
    let blocked = view.blocked_ms.is_some_and(|ms| ms >= BLOCKED_MS);
    let idle = view.moved().over_ms >= 1_000 && view.cpu_share() <= IDLE;
    let slowly = shortage::gets_little(view);
    let still = view.idle_ms.is_none_or(|ms| ms >= RENDEZVOUS_MS);
    let nothing = idle && still && !slowly && storage_bytes(view) == 0 && children_work(view) != Some(true);
    let nothing = nothing && !program::wakes_by_itself(view, limits.rank0);
    let budget = limits.init.saturating_mul(if slowly { stretch(view) } else { 1 });
    if blocked && waited_ms >= limits.behind {
        return red(Confidence::Likely, Reason::Storage);
    }
    if waited_ms >= budget || (nothing && waited_ms >= RENDEZVOUS_MS) {
        return red(Confidence::Likely, Reason::RendezvousIncomplete);
    }
    if waited_ms >= AMBER_MS { amber(Reason::RendezvousIncomplete) } else { None }
}

/// The frame belongs to the program, not to a library below it.
pub(super) fn is_own(frame: &Frame) -> bool {
    const FOREIGN: [&str; 17] = [
        "/rustc/",
        ".cargo/registry",
        "/usr/lib",
        "/lib/",
        "site-packages",
        "dist-packages",
        "/lib/python",
        "<frozen",
        "threading.py",
        "multiprocessing/",
        "libtorch",
        "libc.so",
        "libpthread",
        "ld-linux",
        "/library/std",
        "/library/core",
        "torch/distributed",
    ];
    frame.file.as_deref().is_some_and(|file| {
        let source =
            [".py", ".rs", ".cc", ".cpp", ".c", ".cu", ".h", ".pyx"].iter().any(|end| file.ends_with(end));
        source && !FOREIGN.iter().any(|part| file.contains(part))
    })
}

/// The innermost frame of the program's own code: its file, and its function with a word before it.
fn own_frame(look: &Inspection) -> Option<(&Frame, &str, String)> {
    let stacks = || look.threads.iter().filter(|thread| thread.how != How::Kernel);
    // A Python program's own lines are in its interpreter frames; native frames below them are the library's.
    let python = stacks().filter(|thread| thread.how == How::Python);
    // Other threads wait for work most of the time; where they do says nothing about the rank.
    let main = look.pid.or_else(|| look.threads.first().map(|thread| thread.tid));
    let native = stacks().filter(|thread| thread.how == How::Native && Some(thread.tid) == main);
    python.chain(native).find_map(|thread| {
        let frame = thread.frames.iter().find(|frame| is_own(frame))?;
        // Parameters of types make names of hundreds of characters.
        let bare = frame.function.find('<').filter(|at| *at > 0);
        let name = bare.and_then(|at| frame.function.get(..at)).unwrap_or(&frame.function);
        let name = words::clip(name, 80);
        let function = if name.is_empty() { String::new() } else { format!(" in {name}") };
        Some((frame, frame.file.as_deref()?, function))
    })
}

/// `FILE:LINE` and function of the innermost frame of the program's own code, from an inspection.
pub(super) fn user_frame(look: &Inspection) -> Option<String> {
    let (frame, file, function) = own_frame(look)?;
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    Some(format!("{file}{line}{function}"))
}

/// The same without the line.
pub(super) fn user_function(look: &Inspection) -> Option<String> {
    own_frame(look).map(|(_, file, function)| format!("{file}{function}"))
}
