//! Stop signals: the first SIGTERM or SIGINT sets a flag, a later one ends the process at once.
//!
//! Installed once the process group is up: before that there is nothing to save, and the other ranks cannot
//! be notified, so the system's default (the signal ends the process) is right.
//!
//! - SIGNAL-2: signals that come at once are one request. `timeout` signals its child and then its whole
//!   group, and launchers pass on what the terminal has sent to everybody.

use crate::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What comes within this time after the first signal belongs to it.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// When the first signal came, ms of the monotonic clock; 0: none has.
static FIRST: AtomicU64 = AtomicU64::new(0);

fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which is async-signal-safe.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

extern "C" fn on_signal(signal: libc::c_int) {
    let now = now_ms();
    let first = match FIRST.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => return,
        Err(first) => first,
    };
    if now.saturating_sub(first) < ONE_REQUEST.as_millis() as u64 {
        return;
    }
    // SAFETY: `signal` and `raise` are async-signal-safe. The raised signal is blocked until this handler
    // returns, and ends the process then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// From now on the first request by SIGTERM or SIGINT only sets the flag, and environments need not start any
/// more.
pub(crate) fn install() {
    env::abandon_when(stop_requested);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the struct is zeroed, which is valid for sigaction, and then filled in; the handler makes
        // async-signal-safe calls only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// A signal asked this rank to stop.
pub(crate) fn stop_requested() -> bool {
    FIRST.load(Ordering::Relaxed) > 0
}
