//! Stop on request: the first SIGTERM or SIGINT sets a flag, the second ends the process at once.
//!
//! Owner: the process. Installed once the process group is up: before that there is nothing to save, and
//! the other ranks cannot be told, so the system's default (the signal ends the process) is right.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    // Two signals may be delivered together, before any handler has run: the disposition alone would not tell
    // the second one.
    let second = STOP.swap(true, Ordering::Relaxed);
    // SAFETY: `signal` and `raise` are async-signal-safe. The raised signal is blocked until this handler
    // returns, and ends the process then.
    unsafe {
        for each in [libc::SIGTERM, libc::SIGINT] {
            libc::signal(each, libc::SIG_DFL);
        }
        if second {
            libc::raise(signal);
        }
    }
}

/// From now on the first SIGTERM or SIGINT only sets the flag.
pub fn install() {
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
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
