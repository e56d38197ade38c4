//! Collectives that were begun and are not done: what the rank's thread need not wait for.
//!
//! Owner: `nccl`. The rank's thread puts operations in and goes on; a follower thread looks at their events.
//! Both may find that one is done, has failed or is out of time. What cannot wait for the rank's thread is
//! done by the follower: that thread may itself be blocked inside NCCL or the driver.
//!
//! Invariants:
//! - FLIGHT-1: an operation that is the first one for longer than the limit ends the communicator.
//! - FLIGHT-2: the status page shows the first operation that is not done, and no later one. Otherwise ranks
//!   would be compared by what they have asked for instead of what they are in.

use super::bounded::within;
use super::collective::CollectiveNote;
use super::cuda::driver_failure;
use super::error::{BackendError, DistErrorKind};
use super::nccl_api::{Api, IN_PROGRESS, SUCCESS};
use crate::page::Page;
use cudarc::driver::{result, sys};
use cudarc::nccl::sys::ncclComm_t;
use rankdeck_proto::status_page::{Entry, GroupId};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long to wait for an abort; after that its thread is abandoned.
const ABORT: Duration = Duration::from_secs(5);
/// The follower's looks.
const LOOK: Duration = Duration::from_millis(2);
/// Polls of the rank's thread: without a pause, then with a short one, then with a long one. Most operations
/// are done within the first; a rank that waits for long leaves its core to others.
const SPIN: Duration = Duration::from_millis(2);
const EARLY: Duration = Duration::from_millis(100);
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(5);

/// The pause after `waited`.
pub(super) fn pause(waited: Duration) {
    match waited {
        _ if waited < SPIN => std::hint::spin_loop(),
        _ if waited < EARLY => std::thread::sleep(SHORT),
        _ => std::thread::sleep(LONG),
    }
}

/// A communicator's handle, which any thread may use once the context is current there.
#[derive(Clone, Copy)]
pub(super) struct Communicator(pub ncclComm_t);

// SAFETY: NCCL may be called from any thread.
unsafe impl Send for Communicator {}

/// The context of the device.
#[derive(Clone, Copy)]
pub(super) struct Context(pub sys::CUcontext);

// SAFETY: a primary context is valid in the whole process until its end.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn enter(self) -> Result<(), BackendError> {
        // SAFETY: the context was retained and is never released.
        unsafe { result::ctx::set_current(self.0) }.map_err(|error| driver_failure("context", error))
    }
}

/// Events before and after an operation.
#[derive(Clone, Copy)]
pub(super) struct Events {
    pub ready: sys::CUevent,
    pub done: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Events {}

struct Operation {
    note: CollectiveNote,
    /// As the status page shows it; `None` where the group does that.
    shown: Option<(GroupId, Entry)>,
    events: Events,
    /// The event after it is on the stream.
    launched: bool,
}

struct State {
    /// Null once it was aborted.
    comm: Communicator,
    operations: VecDeque<Operation>,
    /// Since when the first of them is the first.
    since: Instant,
    spare: Vec<Events>,
    failure: Option<(CollectiveNote, BackendError)>,
}

/// The operations of a communicator.
pub(super) struct Flight {
    api: &'static Api,
    context: Context,
    page: Page,
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

impl Flight {
    /// Starts the follower, which ends when the flight is dropped.
    pub(super) fn new(
        api: &'static Api,
        context: Context,
        comm: Communicator,
        page: &Page,
        limit: Duration,
    ) -> Result<Arc<Flight>, BackendError> {
        let flight = Arc::new(Flight {
            api,
            context,
            page: page.clone(),
            limit,
            state: Mutex::new(State {
                comm,
                operations: VecDeque::new(),
                since: Instant::now(),
                spare: Vec::new(),
                failure: None,
            }),
            changed: Condvar::new(),
        });
        let follower = Arc::downgrade(&flight);
        std::thread::Builder::new().name("nccl".into()).spawn(move || follow(&follower, context)).map_err(
            |error| BackendError::new(DistErrorKind::Failed, format!("no thread for NCCL: {error}")),
        )?;
        Ok(flight)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an operation in before it is started; gives the communicator and the events to record.
    pub(super) fn begin(
        &self,
        note: &CollectiveNote,
        shown: Option<(GroupId, Entry)>,
    ) -> Result<(ncclComm_t, Events), BackendError> {
        let mut state = self.lock();
        if let Some((_, failure)) = &state.failure {
            return Err(failure.clone());
        }
        if state.comm.0.is_null() {
            return Err(BackendError::new(DistErrorKind::Failed, "the communicator was aborted"));
        }
        let events = match state.spare.pop() {
            Some(events) => events,
            None => Events { ready: event()?, done: event()? },
        };
        if state.operations.is_empty() {
            state.since = Instant::now();
            self.show(shown);
        }
        state.operations.push_back(Operation { note: *note, shown, events, launched: false });
        self.changed.notify_one();
        Ok((state.comm.0, events))
    }

    /// The operation put in last is on its stream.
    pub(super) fn launched(&self) {
        if let Some(last) = self.lock().operations.back_mut() {
            last.launched = true;
        }
    }

    /// The operation put in last could not be started; the communicator ends.
    pub(super) fn refused(&self, failure: BackendError) -> BackendError {
        let mut state = self.lock();
        // The follower may have ended the communicator under the call.
        if let Some((_, earlier)) = &state.failure {
            return earlier.clone();
        }
        let note = state.operations.back().map(|last| last.note);
        if let Some(note) = note {
            state.failure = Some((note, failure.clone()));
        }
        self.abort(state);
        failure
    }

    /// What has failed.
    pub(super) fn failure(&self) -> Option<(CollectiveNote, BackendError)> {
        self.lock().failure.clone()
    }

    /// Waits until everything is done.
    pub(super) fn settle(&self) -> Result<(), (CollectiveNote, BackendError)> {
        let begun = Instant::now();
        loop {
            match self.advance() {
                Some(failure) => return Err(failure),
                None if self.lock().operations.is_empty() => return Ok(()),
                None => pause(begun.elapsed()),
            }
        }
    }

    /// Takes out what is done, and judges what is not.
    fn advance(&self) -> Option<(CollectiveNote, BackendError)> {
        let mut state = self.lock();
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
                }
                Some(Err(error)) if error.0 != sys::CUresult::CUDA_ERROR_NOT_READY => {
                    break (note, driver_failure("device", error));
                }
                _ => match self.trouble(&state) {
                    Some(failure) => break (note, failure),
                    None => return None,
                },
            }
        };
        state.failure = Some(failure.clone());
        self.abort(state);
        Some(failure)
    }

    /// What NCCL says of the communicator, or that time is over.
    fn trouble(&self, state: &State) -> Option<BackendError> {
        let mut said = SUCCESS;
        // SAFETY: the communicator is alive: aborts take it out of the state. `said` is writable.
        let status = unsafe { (self.api.comm_get_async_error)(state.comm.0, &mut said) };
        match (status, said) {
            (SUCCESS, SUCCESS | IN_PROGRESS) => {}
            (SUCCESS, bad) | (bad, _) => return Some(self.api.explain("failed", bad, state.comm.0)),
        }
        let late = state.since.elapsed() > self.limit;
        late.then(|| BackendError::new(DistErrorKind::Timeout, "nccl: not all ranks took part"))
    }

    fn show(&self, shown: Option<(GroupId, Entry)>) {
        if let Some((group, entry)) = shown {
            self.page.lock().enter_in(group, entry);
        }
    }

    /// Takes the communicator out, to close it.
    pub(super) fn take(&self) -> ncclComm_t {
        std::mem::replace(&mut self.lock().comm.0, std::ptr::null_mut())
    }

    /// Ends the communicator without waiting for the others.
    pub(super) fn end(&self) {
        self.abort(self.lock());
    }

    fn abort(&self, mut state: MutexGuard<'_, State>) {
        let comm = Communicator(std::mem::replace(&mut state.comm.0, std::ptr::null_mut()));
        drop(state);
        if comm.0.is_null() {
            return;
        }
        let (api, context) = (self.api, self.context);
        let _ = within(
            ABORT,
            move |_| {
                let comm = { comm };
                let _ = context.enter();
                // SAFETY: the communicator was taken out of the state: nobody else ends it. NCCL lets a
                // thread abort while another is inside a call, which then returns.
                unsafe { (api.comm_abort)(comm.0) };
            },
            || {},
        );
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end();
        self.changed.notify_all();
    }
}

/// Nanoseconds from the moment when an operation could begin to its end.
fn duration(events: Events) -> u64 {
    // SAFETY: both events were recorded, and are done.
    let milliseconds = unsafe { result::event::elapsed(events.ready, events.done) };
    (f64::from(milliseconds.unwrap_or(0.0)) * 1e6) as u64
}

fn event() -> Result<sys::CUevent, BackendError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
        .map_err(|error| driver_failure("event", error))
}

/// Looks after the operations until the flight is gone.
fn follow(flight: &Weak<Flight>, context: Context) {
    if context.enter().is_err() {
        return;
    }
    while let Some(flight) = flight.upgrade() {
        let state = flight.lock();
        let idle = state.operations.is_empty() || state.failure.is_some();
        if idle {
            // A bounded wait: while it lasts, the flight cannot be dropped.
            let waited = flight.changed.wait_timeout(state, EARLY);
            drop(waited);
            continue;
        }
        drop(state);
        let _ = flight.advance();
        drop(flight);
        std::thread::sleep(LOOK);
    }
}
