//! Makes the injected faults happen.

use super::fault::{InjectedFault, InjectedKind};
use super::{CollectiveFate, Collectives, Hook, SavePoint};
use crate::events::warn;
use crate::page::Page;
use rankdeck_proto::status_page::Op;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tch::{Device, Kind as Dtype, Tensor};

/// Ratio of the 99.9th percentile to the median in log-normal times: exp(3.09 sigma) = 100.
const LOGNORMAL_SIGMA: f64 = 1.49;
/// The gradient's tag.
const GRAD: &str = "grad";

static ORDERED: OnceLock<Vec<InjectedFault>> = OnceLock::new();

thread_local! {
    static ARMED: RefCell<Option<ArmedFaults>> = const { RefCell::new(None) };
}

struct ArmedFaults {
    page: Page,
    faults: Vec<InjectedFault>,
    /// When the last optimiser step was over.
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

/// Whether an iteration that `took` so long is long; before the first one nothing is known.
/// `TRAINER_LONG_S` says other seconds than `shipped`, and that an unknown one is short, so that a test that
/// counts work is not at the mercy of a busy machine.
pub(crate) fn is_long(took: Option<Duration>, shipped: Duration) -> bool {
    let seconds = std::env::var("TRAINER_LONG_S").ok().and_then(|text| text.parse().ok());
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(long) => took.is_some_and(|took| took >= long),
        None => took.is_none_or(|took| took >= shipped),
    }
}

/// Arms this rank.
pub(crate) fn arm(rank: u32, page: &Page) {
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

/// The first fault that `fits` and is due; removed unless it goes on.
fn due(fits: impl Fn(InjectedKind) -> bool) -> Option<InjectedKind> {
    ARMED.with_borrow_mut(|slot| {
        let armed = slot.as_mut()?;
        let now = armed.page.lock().body().train_iter;
        let at = armed.faults.iter().position(|fault| fault.step <= now && fits(fault.kind))?;
        let InjectedFault { kind, text, .. } = armed.faults.get(at)?.clone();
        if !kind.goes_on() {
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

/// Computes for a share of the time since the last optimiser step.
fn slow() {
    let share = due(|kind| matches!(kind, InjectedKind::Slow(_)));
    let last = ARMED.with_borrow_mut(|slot| slot.as_mut().and_then(|armed| armed.learned.take()));
    if let (Some(InjectedKind::Slow(percent)), Some(last)) = (share, last) {
        let extra = last.elapsed().mul_f64(percent as f64 / 100.0);
        let begun = Instant::now();
        while begun.elapsed() < extra {
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
    op: Op,
    tag: &str,
    count: usize,
) -> Result<CollectiveFate, G::Error> {
    let gradient = op == Op::AllReduce && tag == GRAD;
    let fault = due(|kind| match kind {
        InjectedKind::MismatchOp
        | InjectedKind::MismatchCount
        | InjectedKind::MismatchDtype
        | InjectedKind::Skip
        | InjectedKind::NoSync => gradient,
        InjectedKind::ExtraBarrier => gradient,
        InjectedKind::MismatchRoot => op == Op::Broadcast,
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
    // SAFETY: both take integers. The default action comes first: Rust's own handler of SIGSEGV would look
    // for an overflown stack.
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
