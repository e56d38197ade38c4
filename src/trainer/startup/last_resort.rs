//! The end of a rank that cannot leave through `main`: the wrapper of libtorch panics, a destructor of C++
//! throws, or a thread is held by a driver that lets go of nothing.
//!
//! Invariants:
//! - RESORT-1: whatever a GPU ends a rank by, its agent gets one error with what helps, and the process ends
//!   with its exit code.
//! - RESORT-2: one error is reported. A second one, caused by teardown, waits for the end.

use crate::error::{self, TrainerError};
use crate::support::events::{EventSender, warn};
use crate::{FINISH, complain, event};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

struct Rank {
    rank: u32,
    events: EventSender,
}

static RANK: OnceLock<Rank> = OnceLock::new();
/// The error is being reported.
static REPORTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn rankdeck_on_terminate(reported: extern "C" fn(*const c_char));
}

/// From here on this rank ends with a word, whatever ends it.
pub(crate) fn arm(rank: u32, events: &EventSender) {
    if RANK.set(Rank { rank, events: events.clone() }).is_err() {
        return;
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        // Before anything unwinds: destructors would use a GPU that has failed.
        if let Some(error) = unwrapped(text).as_deref().and_then(error::gpu_error) {
            end(&error);
        }
        usual(panic);
    }));
    // SAFETY: sets libstdc++'s handler, which may be done at any time.
    unsafe { rankdeck_on_terminate(terminated) };
}

/// Libtorch's text, of a panic of tch's: `... value: Torch("CUDA error: ...")`.
fn unwrapped(panic: &str) -> Option<String> {
    let text = panic.split_once("value: Torch(\"")?.1;
    Some(text.split("\\n").next().unwrap_or(text).trim_end_matches("\")").replace("\\\"", "\""))
}

/// Handles an uncaught C++ exception, which would abort the process without a report.
extern "C" fn terminated(what: *const c_char) {
    if what.is_null() {
        return;
    }
    // SAFETY: the shim gives the exception's own text, which ends in NUL and lives during the call.
    let text = unsafe { CStr::from_ptr(what) }.to_string_lossy().into_owned();
    if let Some(error) = error::gpu_error(&text) {
        end(&error);
    }
}

/// Reports the error that ends this rank. A second caller waits for the exit of the first.
pub(crate) fn report(error: &TrainerError) {
    let Some(Rank { rank, events }) = RANK.get() else { return };
    if REPORTED.swap(true, Ordering::SeqCst) {
        loop {
            std::thread::park();
        }
    }
    complain(&format!("rank {rank}"), error);
    events.send(&event(error));
}

/// What a rank with this device does with its error: on a GPU it ends at once. Destructors would use a GPU
/// that has failed, and might never return.
pub(crate) fn on(device: tch::Device) -> impl Fn(TrainerError) -> TrainerError {
    move |error| {
        if device.is_cuda() {
            end(&error);
        }
        error
    }
}

/// Reports the error and exits from any thread. In a process that is not a rank this does
/// nothing.
pub(crate) fn end(error: &TrainerError) {
    let Some(Rank { rank, events }) = RANK.get() else { return };
    report(error);
    if !events.finish(FINISH) {
        warn(&format!("rank {rank}: the last events were not delivered to the agent within {FINISH:?}"));
    }
    // SAFETY: takes an integer.
    unsafe { libc::_exit(i32::from(error.exit_code())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resort_1_libtorch_text_is_found_in_panic() {
        let panic = "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA error: unknown error\\nSearch for x\")";
        assert_eq!(unwrapped(panic).as_deref(), Some("CUDA error: unknown error"));
        let short = "called `Result::unwrap()` on an `Err` value: Torch(\"expected \\\"a\\\"\")";
        assert_eq!(unwrapped(short).as_deref(), Some("expected \"a\""));
        assert_eq!(unwrapped("index out of bounds: the len is 3"), None);
    }
}
