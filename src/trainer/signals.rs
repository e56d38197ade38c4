//! Stop on request: the first SIGTERM or SIGINT sets a flag, the second ends the process at once.
//!
//! Owner: the process. Installed once the process group is up: before that there is nothing to save and the others cannot be
//! told, so the system's default (the signal ends the process) is right.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn first(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: `signal` is async-signal-safe; restoring the default disposition needs nothing else.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// From now on the first SIGTERM or SIGINT only sets the flag.
pub fn install() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the struct is zeroed, which is valid for sigaction, and then filled in; the handler stores to an atomic and calls
        // `signal`, both async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = first as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// A stop was asked for.
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
