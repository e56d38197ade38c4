//! Parses fault names, and injects the faults.

use super::{CollectiveFate, Collectives, Hook, SavePoint};
use crate::support::events::warn;
use crate::support::page::StatusPage;
use rankdeck_proto::status_page::CollectiveOp;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tch::{Device, Kind as Dtype, Tensor};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum InjectedKind {
    /// `exit`: ends with code 1, silently (before an optimizer step).
    Exit,
    /// `leave`: ends with code 0 before the others (H8).
    Leave,
    /// `raise`: an error message, code 1 (H10).
    Raise,
    /// `segv`: SIGSEGV (H11).
    Segv,
    /// `abort`: SIGABRT (H11).
    Abort,
    /// `kill`: SIGKILL (H11).
    Kill,
    /// `stop`: SIGSTOP (H15).
    Stop,
    /// `spin`: a loop without end (H27).
    Spin,
    /// `sleep-env`: an environment that never answers (H5).
    SleepEnv,
    /// `lock`: the same lock taken twice inside a gather of rows, outside of DDP (H4), before an optimizer
    /// step.
    Lock,
    /// `lock-aux`: the same in the gather of PPG's auxiliary phase, where ALF had it.
    LockAux,
    /// `oom=MIB`: allocates that much memory and keeps it; for a smaller memory cgroup (H12).
    Memory(u64),
    /// `mismatch-op`: a broadcast in the place of a gradient all-reduce (H1).
    MismatchOp,
    /// `mismatch-count`: one element more in it (H2).
    MismatchCount,
    /// `mismatch-dtype`: doubles in it (H2).
    MismatchDtype,
    /// `mismatch-root`: the next broadcast comes from another rank (H2).
    MismatchRoot,
    /// `skip`: skips one gradient all-reduce (H3b).
    Skip,
    /// `extra-barrier`: a barrier that the others do not call (H9b).
    ExtraBarrier,
    /// `no-sync`: skips every gradient all-reduce from then on; for all ranks (H26).
    NoSync,
    /// `slow=PERCENT`: learning takes that much longer from then on (H18).
    Slow(u64),
    /// `teardown`: does not leave the group (H24).
    Teardown,
    /// `disk-full`: the next checkpoint fails because the disk is full (H13).
    DiskFull,
    /// `kill-POINT=FILE` and `full-POINT=FILE`: SIGKILL, or a full disk, while file number FILE since STEP is
    /// written; [`SavePoint::of`] has the names of the points.
    Saving {
        /// It is killed; otherwise the disk is full.
        killed: bool,
        /// Where in the writing of a file.
        point: SavePoint,
        /// Files that reach the point before, and this one.
        file: u64,
    },
    /// `long-eval=SECONDS`: every episode of evaluations takes this long, with progress between them (N1).
    LongEval(u64),
    /// `slow-start=SECONDS`: the first optimizer step takes this long (N3).
    SlowStart(u64),
    /// `slow-checkpoint=SECONDS`: each checkpoint takes that much longer than the one before (N4).
    SlowCheckpoint(u64),
    /// `lognormal-env=MILLISECONDS`: steps of environments take log-normal times of that median, 99.9th
    /// percentile 100 times it (N5).
    LognormalEnv(u64),
    /// `pause=SECONDS`: one pause in an optimizer step (N6).
    Pause(u64),
    /// `pace=MILLISECONDS`: not a fault. Every step of the environments takes that much longer, so that
    /// several runs fit on one machine.
    Pace(u64),
}

impl InjectedKind {
    /// It happens again and again.
    fn is_repeated(self) -> bool {
        matches!(
            self,
            InjectedKind::NoSync
                | InjectedKind::Slow(_)
                | InjectedKind::LongEval(_)
                | InjectedKind::SlowCheckpoint(_)
                | InjectedKind::LognormalEnv(_)
                | InjectedKind::Pace(_)
        )
    }
}

/// A fault with its rank and its time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InjectedFault {
    kind: InjectedKind,
    /// On which rank; `None` for every rank.
    rank: Option<u32>,
    /// Completed iterations.
    step: u64,
    /// The text of the flag, for messages.
    text: String,
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<InjectedFault, String> {
        let bad = |what: &str| format!("invalid fault `{text}`: {what}; expected FAULT[=VALUE]@RANK:STEP");
        let (fault, target) = text.split_once('@').ok_or_else(|| bad("`@` is missing"))?;
        let (rank, step) = target.split_once(':').ok_or_else(|| bad("`:` is missing"))?;
        let rank = match rank {
            "all" => None,
            rank => Some(rank.parse().map_err(|_| bad("the rank is not a number"))?),
        };
        let step = step.parse().map_err(|_| bad("the step is not a number"))?;
        let (name, value) = match fault.split_once('=') {
            Some((name, value)) => (name, Some(value.parse().map_err(|_| bad("the value is not a number"))?)),
            None => (fault, None),
        };
        let saving = |name: &str| {
            let (killed, rest) = match name.strip_prefix("kill-") {
                Some(rest) => (true, rest),
                None => (false, name.strip_prefix("full-")?),
            };
            Some((killed, SavePoint::of(rest)?))
        };
        if let Some((killed, point)) = saving(name) {
            let kind = InjectedKind::Saving { killed, point, file: value.unwrap_or(1) };
            return Ok(InjectedFault { kind, rank, step, text: text.to_owned() });
        }
        let valued = |make: fn(u64) -> InjectedKind| value.map(make).ok_or_else(|| bad("value missing"));
        let kind = match name {
            "oom" => valued(InjectedKind::Memory)?,
            "slow" => valued(InjectedKind::Slow)?,
            "long-eval" => valued(InjectedKind::LongEval)?,
            "slow-start" => valued(InjectedKind::SlowStart)?,
            "slow-checkpoint" => valued(InjectedKind::SlowCheckpoint)?,
            "lognormal-env" => valued(InjectedKind::LognormalEnv)?,
            "pause" => valued(InjectedKind::Pause)?,
            "pace" => valued(InjectedKind::Pace)?,
            _ if value.is_some() => return Err(bad("unknown fault, or one without a value")),
            "exit" => InjectedKind::Exit,
            "leave" => InjectedKind::Leave,
            "raise" => InjectedKind::Raise,
            "segv" => InjectedKind::Segv,
            "abort" => InjectedKind::Abort,
            "kill" => InjectedKind::Kill,
            "stop" => InjectedKind::Stop,
            "spin" => InjectedKind::Spin,
            "sleep-env" => InjectedKind::SleepEnv,
            "lock" => InjectedKind::Lock,
            "lock-aux" => InjectedKind::LockAux,
            "mismatch-op" => InjectedKind::MismatchOp,
            "mismatch-count" => InjectedKind::MismatchCount,
            "mismatch-dtype" => InjectedKind::MismatchDtype,
            "mismatch-root" => InjectedKind::MismatchRoot,
            "skip" => InjectedKind::Skip,
            "extra-barrier" => InjectedKind::ExtraBarrier,
            "no-sync" => InjectedKind::NoSync,
            "teardown" => InjectedKind::Teardown,
            "disk-full" => InjectedKind::DiskFull,
            _ => return Err(bad("unknown fault")),
        };
        Ok(InjectedFault { kind, rank, step, text: text.to_owned() })
    }
}

/// Ratio of the 99.9th percentile to the median in log-normal times: exp(3.09 sigma) = 100.
const LOGNORMAL_SIGMA: f64 = 1.49;
/// The gradient's tag.
const GRAD: &str = "grad";

static ORDERED: OnceLock<Vec<InjectedFault>> = OnceLock::new();

thread_local! {
    static ARMED: RefCell<Option<ArmedFaults>> = const { RefCell::new(None) };
}

struct ArmedFaults {
    page: StatusPage,
    faults: Vec<InjectedFault>,
    /// When the last optimizer step was over.
    learned: Option<Instant>,
    checkpoints: u64,
    random: u64,
    /// Faults that were announced.
    announced: BTreeSet<String>,
}

/// Takes the faults of the command line; call before [`arm`].
pub(crate) fn order(faults: Vec<InjectedFault>) {
    let _ = ORDERED.set(faults);
}

/// Whether an iteration that `took` this long counts as long; before the first one nothing is known.
/// `TRAINER_LONG_S` overrides `shipped`, and makes an unknown one short, so that a test that
/// counts work is not at the mercy of a busy machine.
pub(crate) fn is_long(took: Option<Duration>, shipped: Duration) -> bool {
    let seconds = std::env::var("TRAINER_LONG_S").ok().and_then(|text| text.parse().ok());
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(long) => took.is_some_and(|took| took >= long),
        None => took.is_none_or(|took| took >= shipped),
    }
}

/// Arms this rank.
pub(crate) fn arm(rank: u32, page: &StatusPage) {
    let mut faults = ORDERED.get().cloned().unwrap_or_default();
    let listed = std::env::var("TRAINER_INJECT").unwrap_or_default();
    for text in listed.split(',').filter(|text| !text.is_empty()) {
        match text.parse() {
            Ok(fault) => faults.push(fault),
            Err(error) => warn(&format!("TRAINER_INJECT: {error}")),
        }
    }
    faults.retain(|fault: &InjectedFault| fault.rank.is_none_or(|victim| victim == rank));
    if !faults.is_empty() {
        let armed = ArmedFaults {
            page: page.clone(),
            faults,
            learned: None,
            checkpoints: 0,
            random: u64::from(rank) + 1,
            announced: BTreeSet::new(),
        };
        ARMED.with_borrow_mut(|slot| *slot = Some(armed));
    }
}

/// The first fault that `fits` and is due; removed unless it repeats.
fn due(fits: impl Fn(InjectedKind) -> bool) -> Option<InjectedKind> {
    ARMED.with_borrow_mut(|slot| {
        let armed = slot.as_mut()?;
        let now = armed.page.lock().body().train_iter;
        let at = armed.faults.iter().position(|fault| fault.step <= now && fits(fault.kind))?;
        let InjectedFault { kind, text, .. } = armed.faults.get(at)?.clone();
        if !kind.is_repeated() {
            armed.faults.remove(at);
        }
        // The laboratory measures from here.
        if !matches!(kind, InjectedKind::Pace(_)) && armed.announced.insert(text.clone()) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            warn(&format!(
                "inject: {text} strikes in iteration {} at {:.3}",
                armed.page.lock().body().train_iter,
                now.as_secs_f64()
            ));
        }
        Some(kind)
    })
}

/// The trainer has reached a hook.
pub(crate) fn here(hook: Hook) {
    match hook {
        Hook::EnvStep => {
            if let Some(InjectedKind::Pace(milliseconds)) = due(|kind| matches!(kind, InjectedKind::Pace(_)))
            {
                std::thread::sleep(Duration::from_millis(milliseconds));
            }
            match due(|kind| matches!(kind, InjectedKind::SleepEnv | InjectedKind::LognormalEnv(_))) {
                Some(InjectedKind::SleepEnv) => environment_that_never_answers(),
                Some(InjectedKind::LognormalEnv(median)) => std::thread::sleep(lognormal(median)),
                _ => {}
            }
        }
        Hook::Learn => learn(),
        Hook::Gather => {
            if due(|kind| kind == InjectedKind::LockAux).is_some() {
                gather_rows(&[0, 1]);
            }
        }
        Hook::Episode => {
            if let Some(InjectedKind::LongEval(seconds)) =
                due(|kind| matches!(kind, InjectedKind::LongEval(_)))
            {
                std::thread::sleep(Duration::from_secs(seconds));
            }
        }
        Hook::Teardown => {
            if due(|kind| kind == InjectedKind::Teardown).is_some() {
                teardown_that_never_ends();
            }
        }
    }
}

fn learn() {
    let local = |kind| {
        matches!(
            kind,
            InjectedKind::Exit
                | InjectedKind::Leave
                | InjectedKind::Raise
                | InjectedKind::Segv
                | InjectedKind::Abort
                | InjectedKind::Kill
                | InjectedKind::Stop
                | InjectedKind::Spin
                | InjectedKind::Lock
                | InjectedKind::Memory(_)
                | InjectedKind::SlowStart(_)
                | InjectedKind::Pause(_)
        )
    };
    match due(local) {
        Some(InjectedKind::Exit) => end(1),
        Some(InjectedKind::Leave) => end(0),
        Some(InjectedKind::Raise) => {
            warn("error: injected failure in the loss of a minibatch");
            end(1)
        }
        Some(InjectedKind::Segv) => signal(libc::SIGSEGV),
        Some(InjectedKind::Abort) => std::process::abort(),
        Some(InjectedKind::Kill) => signal(libc::SIGKILL),
        Some(InjectedKind::Stop) => signal(libc::SIGSTOP),
        Some(InjectedKind::Spin) => loop_without_end(),
        Some(InjectedKind::Lock) => gather_rows(&[0, 1]),
        Some(InjectedKind::Memory(mebibytes)) => take_memory(mebibytes),
        Some(InjectedKind::SlowStart(seconds) | InjectedKind::Pause(seconds)) => {
            std::thread::sleep(Duration::from_secs(seconds));
        }
        _ => {}
    }
    slow();
}

/// Computes for a share of the time since the last optimizer step.
fn slow() {
    let share = due(|kind| matches!(kind, InjectedKind::Slow(_)));
    let last = ARMED.with_borrow_mut(|slot| slot.as_mut().and_then(|armed| armed.learned.take()));
    if let (Some(InjectedKind::Slow(percent)), Some(last)) = (share, last) {
        let extra = last.elapsed().mul_f64(percent as f64 / 100.0);
        let started = Instant::now();
        while started.elapsed() < extra {
            std::hint::spin_loop();
        }
    }
    ARMED.with_borrow_mut(|slot| {
        if let Some(armed) = slot.as_mut() {
            armed.learned = Some(Instant::now());
        }
    });
}

/// A collective is about to begin; a fault may replace it.
pub(crate) fn collective<G: Collectives>(
    group: &G,
    op: CollectiveOp,
    tag: &str,
    count: usize,
) -> Result<CollectiveFate, G::Error> {
    let gradient = op == CollectiveOp::AllReduce && tag == GRAD;
    let fault = due(|kind| match kind {
        InjectedKind::MismatchOp
        | InjectedKind::MismatchCount
        | InjectedKind::MismatchDtype
        | InjectedKind::Skip
        | InjectedKind::NoSync => gradient,
        InjectedKind::ExtraBarrier => gradient,
        InjectedKind::MismatchRoot => op == CollectiveOp::Broadcast,
        _ => false,
    });
    let floats = |count: usize, dtype| Tensor::zeros([count as i64], (dtype, Device::Cpu));
    match fault {
        Some(InjectedKind::Skip | InjectedKind::NoSync) => Ok(CollectiveFate::Replaced),
        Some(InjectedKind::MismatchOp) => {
            group.broadcast(&mut floats(count, Dtype::Float), 0, tag).map(|()| CollectiveFate::Replaced)
        }
        Some(InjectedKind::MismatchCount) => {
            group.sum(&mut floats(count + 1, Dtype::Float), tag).map(|()| CollectiveFate::Replaced)
        }
        Some(InjectedKind::MismatchDtype) => {
            group.sum(&mut floats(count, Dtype::Double), tag).map(|()| CollectiveFate::Replaced)
        }
        Some(InjectedKind::MismatchRoot) => {
            let mut bytes = Tensor::zeros([count as i64], (Dtype::Uint8, Device::Cpu));
            group
                .broadcast(&mut bytes, group.world_size().saturating_sub(1), tag)
                .map(|()| CollectiveFate::Replaced)
        }
        Some(InjectedKind::ExtraBarrier) => group.barrier("injected").map(|()| CollectiveFate::Proceed),
        _ => Ok(CollectiveFate::Proceed),
    }
}

/// A checkpoint is about to be written.
pub(crate) fn writing() -> io::Result<()> {
    match due(|kind| matches!(kind, InjectedKind::DiskFull | InjectedKind::SlowCheckpoint(_))) {
        Some(InjectedKind::DiskFull) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        Some(InjectedKind::SlowCheckpoint(seconds)) => {
            let written = ARMED.with_borrow_mut(|slot| {
                let armed = slot.as_mut()?;
                armed.checkpoints += 1;
                Some(armed.checkpoints)
            });
            std::thread::sleep(Duration::from_secs(seconds.saturating_mul(written.unwrap_or(1))));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A file of a checkpoint has come to `here`.
pub(crate) fn saving(here: SavePoint) -> io::Result<()> {
    let counted = |kind: &mut InjectedKind| match kind {
        InjectedKind::Saving { point, file, .. } if *point == here => {
            *file = file.saturating_sub(1);
            *file == 0
        }
        _ => false,
    };
    let due_now = ARMED.with_borrow_mut(|slot| {
        let Some(armed) = slot.as_mut() else { return false };
        let now = armed.page.lock().body().train_iter;
        armed.faults.iter_mut().any(|fault| fault.step <= now && counted(&mut fault.kind))
    });
    if !due_now {
        return Ok(());
    }
    match due(|kind| matches!(kind, InjectedKind::Saving { point, file: 0, .. } if point == here)) {
        Some(InjectedKind::Saving { killed: true, .. }) => {
            signal(libc::SIGKILL);
            Ok(())
        }
        Some(_) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        None => Ok(()),
    }
}

fn end(code: i32) {
    // SAFETY: _exit takes an integer; nothing is to be cleaned up, as in a process that just vanishes.
    unsafe { libc::_exit(code) }
}

fn signal(signal: i32) {
    // SAFETY: both take integers. The default action comes first: Rust's own handler of SIGSEGV would check
    // for a stack overflow.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[inline(never)]
fn environment_that_never_answers() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[inline(never)]
fn teardown_that_never_ends() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[inline(never)]
fn loop_without_end() {
    let mut turns = 0_u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

static ROWS: Mutex<Vec<f32>> = Mutex::new(Vec::new());

/// Rows picked from a buffer under its lock, by a helper that takes the lock again.
#[inline(never)]
fn gather_rows(indices: &[usize]) {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let picked: Vec<f32> = indices.iter().map(|index| row(*index)).collect();
    std::hint::black_box((rows.len(), picked));
}

#[inline(never)]
fn row(index: usize) -> f32 {
    ROWS.lock().unwrap_or_else(PoisonError::into_inner).get(index).copied().unwrap_or(0.0)
}

#[inline(never)]
fn take_memory(mebibytes: u64) {
    let mut kept = Vec::new();
    for turn in 0..mebibytes {
        kept.push(vec![turn as u8 | 1; 1 << 20]);
        std::hint::black_box(&kept);
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        std::hint::black_box(&kept);
    }
}

/// A log-normal time: Box-Muller over a SplitMix64 stream of this rank.
fn lognormal(median_ms: u64) -> Duration {
    let uniform = || {
        ARMED.with_borrow_mut(|slot| {
            let Some(armed) = slot.as_mut() else { return 0.5 };
            armed.random = armed.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = armed.random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        })
    };
    let (a, b) = (uniform().max(1e-12), uniform());
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    let seconds = median_ms as f64 / 1000.0 * (LOGNORMAL_SIGMA * normal).exp();
    Duration::from_secs_f64(seconds.clamp(0.0, 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let read = |text: &str| {
            text.parse::<InjectedFault>().map(|fault| (fault.kind, fault.rank, fault.step)).unwrap()
        };
        assert_eq!(read("spin@1:60"), (InjectedKind::Spin, Some(1), 60));
        assert_eq!(read("slow=30@all:2"), (InjectedKind::Slow(30), None, 2));
        let saving = |killed, point, file| InjectedKind::Saving { killed, point, file };
        assert_eq!(read("kill-before-rename=3@0:2").0, saving(true, SavePoint::BeforeRename, 3));
        assert_eq!(read("full-first-bytes@0:2").0, saving(false, SavePoint::FirstBytes, 1));
        for bad in [
            "",
            "spin",
            "spin@1",
            "spin@x:1",
            "spin@1:x",
            "what@1:1",
            "slow@1:1",
            "slow=x@1:1",
            "spin=3@1:1",
            "kill-what@1:1",
        ] {
            let error = bad.parse::<InjectedFault>().unwrap_err();
            assert!(error.contains("FAULT[=VALUE]@RANK:STEP"), "{bad}: {error}");
        }
    }
}
