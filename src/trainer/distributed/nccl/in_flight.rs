//! Tracks NCCL collectives that are launched but not complete.
//!
//! The rank's thread adds operations and continues; a follower thread polls their events. Both may find
//! that one is done, has failed or is out of time. What cannot wait for the rank's thread is done by the
//! follower: that thread may itself be blocked inside NCCL or the driver.
//!
//! Invariants:
//! - FLIGHT-1: an operation that is the first one for longer than the limit ends the communicator.
//! - FLIGHT-2: the status page shows the first operation that is not done, and no later one. Otherwise ranks
//!   would be compared by what they have queued instead of what they are in.
//! - FLIGHT-3: a rank ends at most [`END`] after that limit, whatever NCCL and the driver do. What sees to it
//!   calls neither, and takes no lock that is held while they are called.

use crate::distributed::bounded::within;
use crate::distributed::cuda::driver_failure;
use crate::distributed::cuda::nccl_api::{Api, IN_PROGRESS, SUCCESS};
use crate::distributed::error::{BackendError, DistError, DistErrorKind, DistPhase, NOT_FINISHED};
use crate::distributed::transport::CollectiveNote;
use crate::support::page::StatusPage;
use cudarc::driver::{result, sys};
use cudarc::nccl::sys::ncclComm_t;
use rankdeck_proto::status_page::{self, CollectiveStart, GroupId};
use rankdeck_types::words;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long to wait for an abort; after that its thread is abandoned.
const ABORT: Duration = Duration::from_secs(5);
/// What a rank has for its end once the limit is over: the abort, leaving, the last events. Then it is ended.
const END: Duration = Duration::from_secs(20);
/// Interval of the checks that end it.
const DEADLINE_POLL: Duration = Duration::from_millis(500);
/// The follower's polls: the first ones of an operation. While nothing changes, each pause is twice the one
/// before, up to [`POLL_LAST`].
const POLL_FIRST: Duration = Duration::from_millis(2);
/// Polls of the rank's thread: without a pause, then with a short one, then with a long one. Most operations
/// are done within the first; a rank that waits for long leaves its core to others.
const SPIN: Duration = Duration::from_millis(2);
const POLL_LAST: Duration = Duration::from_millis(100);
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(5);

/// Exits this process with an error; unset in a process that is not a rank.
static EXIT_HANDLER: OnceLock<fn(DistError)> = OnceLock::new();

/// From here on a rank that is held is ended by this.
pub(crate) fn set_exit_handler(end: fn(DistError)) {
    let _ = EXIT_HANDLER.set(end);
}

const STUCK: &str = "the GPU does not release it";

/// The pause after `waited`.
pub(crate) fn pause(waited: Duration) {
    match waited {
        _ if waited < SPIN => std::hint::spin_loop(),
        _ if waited < POLL_LAST => std::thread::sleep(SHORT),
        _ => std::thread::sleep(LONG),
    }
}

/// A communicator's handle, which any thread may use once the context is current there.
#[derive(Clone, Copy)]
pub(crate) struct NcclComm(pub ncclComm_t);

// SAFETY: NCCL may be called from any thread.
unsafe impl Send for NcclComm {}

/// The context of the device.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub sys::CUcontext);

// SAFETY: a primary context is valid in the whole process until its end.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn enter(self) -> Result<(), BackendError> {
        // SAFETY: the context was retained and is never released.
        unsafe { result::ctx::set_current(self.0) }.map_err(|error| driver_failure("context", error))
    }
}

/// Events before and after an operation.
#[derive(Clone, Copy)]
pub(crate) struct CudaEvents {
    pub ready: sys::CUevent,
    pub done: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for CudaEvents {}

struct Operation {
    note: CollectiveNote,
    /// As the status page shows it; `None` where the group does that.
    shown: Option<(GroupId, CollectiveStart)>,
    events: CudaEvents,
    /// The event after it is on the stream.
    launched: bool,
}

struct InFlightState {
    /// Null once it was aborted.
    comm: NcclComm,
    operations: VecDeque<Operation>,
    /// Since when the first of them is the first.
    since: Instant,
    spare: Vec<CudaEvents>,
    failure: Option<(CollectiveNote, BackendError)>,
    /// The communicator is being ended.
    aborting: bool,
    /// The follower takes a long pause: what comes now ends it.
    is_paused: bool,
}

/// The operations of a communicator.
pub(crate) struct InFlightOps {
    api: &'static Api,
    context: Context,
    page: StatusPage,
    /// Rank and ranks.
    identity: (u32, u32),
    limit: Duration,
    state: Mutex<InFlightState>,
    changed: Condvar,
    /// The first operation, and since when it is the first. NCCL and the driver are never called while it
    /// is locked.
    first: Mutex<Option<(CollectiveNote, Instant)>>,
}

impl InFlightOps {
    /// Starts the follower, and what ends a rank that is held; both end when the flight is dropped.
    pub(crate) fn new(
        api: &'static Api,
        context: Context,
        comm: NcclComm,
        page: &StatusPage,
        (identity, limit): ((u32, u32), Duration),
    ) -> Result<Arc<InFlightOps>, BackendError> {
        let flight = Arc::new(InFlightOps {
            api,
            context,
            page: page.clone(),
            identity,
            limit,
            state: Mutex::new(InFlightState {
                comm,
                operations: VecDeque::new(),
                since: Instant::now(),
                spare: Vec::new(),
                failure: None,
                aborting: false,
                is_paused: false,
            }),
            changed: Condvar::new(),
            first: Mutex::new(None),
        });
        let (follower, watcher) = (Arc::downgrade(&flight), Arc::downgrade(&flight));
        spawn("nccl", move || follow(&follower, context))?;
        spawn("nccl-end", move || exit_when_stuck(&watcher))?;
        Ok(flight)
    }

    /// The first operation is another one now.
    fn mark_first(&self, state: &InFlightState) {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) =
            state.operations.front().map(|first| (first.note, state.since));
    }

    /// Waits while the communicator is being ended, which is bounded: what has failed is whole after that.
    fn concluded<'a>(&self, mut state: MutexGuard<'a, InFlightState>) -> MutexGuard<'a, InFlightState> {
        while state.aborting {
            state = self.changed.wait_timeout(state, POLL_LAST).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an operation in before it is started; gives the communicator and the events to record.
    pub(crate) fn add(
        &self,
        note: &CollectiveNote,
        shown: Option<(GroupId, CollectiveStart)>,
    ) -> Result<(ncclComm_t, CudaEvents), BackendError> {
        let mut state = self.concluded(self.lock());
        if let Some((_, failure)) = &state.failure {
            return Err(failure.clone());
        }
        if state.comm.0.is_null() {
            return Err(BackendError::new(DistErrorKind::Failed, "the communicator was aborted"));
        }
        let events = match state.spare.pop() {
            Some(events) => events,
            None => CudaEvents { ready: event()?, done: event()? },
        };
        let first = state.operations.is_empty();
        state.operations.push_back(Operation { note: *note, shown, events, launched: false });
        if first {
            state.since = Instant::now();
            self.show(shown);
            self.mark_first(&state);
        }
        // In the midst of short pauses, waking it would cost more than it saves.
        if first || state.is_paused {
            self.changed.notify_one();
        }
        Ok((state.comm.0, events))
    }

    /// The operation put in last is on its stream.
    pub(crate) fn launched(&self) {
        if let Some(last) = self.lock().operations.back_mut() {
            last.launched = true;
        }
    }

    /// The operation put in last could not be started; the communicator ends.
    pub(crate) fn refused(&self, failure: BackendError) -> BackendError {
        let mut state = self.concluded(self.lock());
        // The follower may have ended the communicator under the call.
        if let Some((_, earlier)) = &state.failure {
            return earlier.clone();
        }
        let note = state.operations.back().map(|last| last.note);
        if let Some(note) = note {
            state.failure = Some((note, failure.clone()));
        }
        self.abort(state);
        self.lock().failure.clone().map_or(failure, |(_, failure)| failure)
    }

    /// What has failed.
    pub(crate) fn failure(&self) -> Option<(CollectiveNote, BackendError)> {
        self.concluded(self.lock()).failure.clone()
    }

    /// Waits until everything is done.
    pub(crate) fn settle(&self) -> Result<(), (CollectiveNote, BackendError)> {
        let started = Instant::now();
        loop {
            match self.advance() {
                Some(failure) => return Err(failure),
                None if self.lock().operations.is_empty() => return Ok(()),
                None => pause(started.elapsed()),
            }
        }
    }

    /// Takes out what is done, and judges what is not.
    fn advance(&self) -> Option<(CollectiveNote, BackendError)> {
        let mut state = self.concluded(self.lock());
        if state.failure.is_some() {
            return state.failure.clone();
        }
        let failure = loop {
            let Operation { note, shown, events, launched } = state.operations.front()?;
            let (note, shown, events) = (*note, *shown, *events);
            // SAFETY: the event was recorded and is alive.
            match launched.then(|| unsafe { result::event::query(events.done) }) {
                Some(Ok(())) => {
                    if shown.is_some() {
                        self.page.lock().leave_after(duration(events));
                    }
                    state.operations.pop_front();
                    state.spare.push(events);
                    state.since = Instant::now();
                    self.show(state.operations.front().and_then(|next| next.shown));
                    self.mark_first(&state);
                }
                Some(Err(error)) if error.0 != sys::CUresult::CUDA_ERROR_NOT_READY => {
                    break (note, driver_failure("device", error));
                }
                _ => match self.poll_failure(&state) {
                    Some(failure) => break (note, failure),
                    None => return None,
                },
            }
        };
        state.failure = Some(failure);
        self.abort(state);
        self.lock().failure.clone()
    }

    /// A failure that NCCL reports for the communicator, or a timeout.
    fn poll_failure(&self, state: &InFlightState) -> Option<BackendError> {
        let mut async_status = SUCCESS;
        // SAFETY: the communicator is alive: aborts take it out of the state. `async_status` is writable.
        let status = unsafe { (self.api.comm_get_async_error)(state.comm.0, &mut async_status) };
        match (status, async_status) {
            (SUCCESS, SUCCESS | IN_PROGRESS) => {}
            (SUCCESS, bad) | (bad, _) => return Some(self.api.explain("failed", bad, state.comm.0)),
        }
        let late = state.since.elapsed() > self.limit;
        late.then(|| BackendError::new(DistErrorKind::Timeout, "nccl: not all ranks participated"))
    }

    fn show(&self, shown: Option<(GroupId, CollectiveStart)>) {
        if let Some((group, entry)) = shown {
            self.page.lock().enter_in(group, entry);
        }
    }

    /// Takes the communicator out, to close it.
    pub(crate) fn take(&self) -> ncclComm_t {
        std::mem::replace(&mut self.lock().comm.0, std::ptr::null_mut())
    }

    /// Ends the communicator without waiting for the others.
    pub(crate) fn end(&self) {
        self.abort(self.lock());
    }

    fn abort(&self, mut state: MutexGuard<'_, InFlightState>) {
        let comm = NcclComm(std::mem::replace(&mut state.comm.0, std::ptr::null_mut()));
        if comm.0.is_null() {
            return;
        }
        state.aborting = true;
        drop(state);
        let (api, context) = (self.api, self.context);
        let ended = within(
            ABORT,
            move |_| {
                let comm = { comm };
                let _ = context.enter();
                // SAFETY: the communicator was taken out of the state: no other thread ends it. NCCL lets a
                // thread abort while another is inside a call, which then returns.
                unsafe { (api.comm_abort)(comm.0) };
            },
            || {},
        );
        let mut state = self.lock();
        state.aborting = false;
        if let (None, Some((_, failure))) = (ended, &mut state.failure) {
            let text = format!("; {STUCK}: ncclCommAbort has not returned within {} s", ABORT.as_secs());
            failure.text.push_str(&text);
            failure.hint = Some(words::GPU_HINT.to_owned());
        }
        self.changed.notify_all();
    }
}

impl Drop for InFlightOps {
    fn drop(&mut self) {
        self.end();
        self.changed.notify_all();
    }
}

/// Nanoseconds from the moment when an operation could begin to its end.
fn duration(events: CudaEvents) -> u64 {
    // SAFETY: both events were recorded, and are done.
    let milliseconds = unsafe { result::event::elapsed(events.ready, events.done) };
    (f64::from(milliseconds.unwrap_or(0.0)) * 1e6) as u64
}

fn event() -> Result<sys::CUevent, BackendError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
        .map_err(|error| driver_failure("event", error))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), BackendError> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map(drop).map_err(|error| {
        BackendError::new(DistErrorKind::Failed, format!("cannot start the NCCL thread: {error}"))
    })
}

/// Ends the rank whose first operation is long over its limit: the thread that should have left is held.
fn exit_when_stuck(flight: &Weak<InFlightOps>) {
    while let Some(flight) = flight.upgrade() {
        let first = *flight.first.lock().unwrap_or_else(PoisonError::into_inner);
        let (identity, limit) = (flight.identity, flight.limit);
        drop(flight);
        if let Some((note, since)) = first
            && since.elapsed() > limit + END
        {
            let text = format!(
                "{NOT_FINISHED} {:.1} s; {STUCK}: no call into NCCL or the driver has returned within {} s after that",
                limit.as_secs_f64(),
                END.as_secs()
            );
            let error = DistError::new(DistErrorKind::Timeout, DistPhase::Collective, identity, text)
                .in_collective(note.seq, note.op, &status_page::tag_text(&note.tag))
                .with_hint(words::GPU_HINT);
            if let Some(end) = EXIT_HANDLER.get() {
                end(error);
            }
            return;
        }
        std::thread::sleep(DEADLINE_POLL);
    }
}

/// The follower's pause before its next poll, given the one before.
fn next_pause(before: Duration, moved: bool) -> Duration {
    if moved { POLL_FIRST } else { (before * 2).min(POLL_LAST) }
}

/// Follows the operations until [`InFlightOps`] is dropped.
fn follow(flight: &Weak<InFlightOps>, context: Context) {
    if context.enter().is_err() {
        return;
    }
    let (mut pause, mut seen) = (POLL_FIRST, None);
    while let Some(flight) = flight.upgrade() {
        let state = flight.lock();
        if state.operations.is_empty() || state.failure.is_some() {
            // A bounded wait: while it lasts, the flight cannot be dropped.
            let waited = flight.changed.wait_timeout(state, POLL_LAST);
            drop(waited);
            (pause, seen) = (POLL_FIRST, None);
            continue;
        }
        drop(state);
        let _ = flight.advance();
        let mut state = flight.lock();
        let now = (state.since, state.operations.len());
        pause = next_pause(pause, seen.replace(now) != Some(now));
        state.is_paused = pause > POLL_FIRST;
        if state.is_paused {
            let waited = flight.changed.wait_timeout(state, pause);
            waited.unwrap_or_else(PoisonError::into_inner).0.is_paused = false;
        } else {
            drop(state);
            drop(flight);
            std::thread::sleep(POLL_FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follower_polls_less_often_while_idle() {
        let mut pauses = vec![next_pause(POLL_LAST, true)];
        for _ in 0..7 {
            pauses.push(next_pause(*pauses.last().unwrap(), false));
        }
        let all: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(all, [2, 4, 8, 16, 32, 64, 100, 100]);
    }
}
