//! Collectives of CUDA tensors over NCCL, on a stream of their own.
//!
//! The communicator is one that blocks: otherwise NCCL makes a thread for every collective. Calls return when
//! the work is on the stream; [`InFlightOps`] follows it from there, and ends the communicator when the
//! work, or a call, does not come to an end. Invariants:
//! - Every wait is bounded: connecting happens on a thread of its own, and everything later is in the flight.
//! - An operation starts after everything that libtorch put on its stream before, and what libtorch puts
//!   there after a join starts after the operation: streams wait for streams.
//!
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

use super::GroupSettings;
use super::bounded::within;
use super::cuda::loading::{Api, NcclStatus, SUCCESS};
use super::cuda::{driver_failure, require_devices};
use super::error::{BackendError, DistErrorKind};
use super::ffi::ReduceKernel;
use super::membership::Interrupt;
use super::store::Store;
use super::transport::{CollectiveNote, CollectiveTransport};
use crate::distributed::cuda::loading::IN_PROGRESS;
use crate::distributed::error::{DistError, DistPhase, NOT_FINISHED};
use crate::support::page::StatusPage;
use cudarc::driver::{result, sys};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use rankdeck_proto::status_page::{self, CollectiveStart, GroupId};
use rankdeck_types::words;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor, no_grad};

/// nccl.h: NCCL_API_MAGIC, and NCCL_VERSION(2, 28, 0) for the layout of `ncclConfig_t` that cudarc's feature
/// `nccl-02028` gives.
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
const CONFIG_VERSION: c_uint = 22_800;
const UNDEFINED: c_int = c_int::MIN;
const ID_BYTES: usize = 128;

/// A communicator over all ranks.
pub(crate) struct Nccl {
    api: &'static Api,
    flight: Arc<InFlightOps>,
    stream: sys::CUstream,
    context: Context,
    device: Device,
    timeout: Duration,
    token: RefCell<Option<Tensor>>,
    /// The end of the operation put on the stream last.
    last: Cell<Option<sys::CUevent>>,
}

// SAFETY: NCCL and the driver API may be called from any thread once the context is current there (`enter`
// does that); the value moves to a helper thread only for closing.
unsafe impl Send for Nccl {}

fn cuda(what: &'static str) -> impl Fn(result::DriverError) -> BackendError {
    move |error| driver_failure(what, error)
}

fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 1,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

/// `ncclDataType_t`.
fn data_type(kind: Kind) -> Result<c_int, BackendError> {
    match kind {
        Kind::Int8 => Ok(0),
        Kind::Uint8 | Kind::Bool => Ok(1),
        Kind::Int64 => Ok(4),
        Kind::Float => Ok(7),
        Kind::Double => Ok(8),
        _ => Err(BackendError::new(
            DistErrorKind::Usage,
            format!("tensors of kind {kind:?} are not supported"),
        )),
    }
}

/// `ncclRedOp_t`.
fn reduction(op: ReduceKernel) -> c_int {
    match op {
        ReduceKernel::Sum => 0,
        ReduceKernel::Max => 2,
        ReduceKernel::Min => 3,
    }
}

/// Whether NCCL can work on this host at all. Checked before the rendezvous, so that every rank gets the
/// error.
pub(crate) fn available() -> Result<(), BackendError> {
    require_devices()?;
    Api::get().map(|_| ())
}

impl Nccl {
    /// Exchanges the id over the store and connects all ranks.
    pub(crate) fn open(
        store: &Store,
        settings: &GroupSettings,
        page: &StatusPage,
    ) -> Result<Nccl, BackendError> {
        let devices = require_devices()?;
        let api = Api::get()?;
        let index = match settings.device {
            Device::Cuda(index) => index as u32,
            _ => settings.local_rank,
        };
        if index >= devices {
            return Err(BackendError::new(
                DistErrorKind::Usage,
                format!("no device {index}: {devices} visible to this process"),
            ));
        }
        let (context, stream) = on_device(index)?;
        let deadline = Instant::now() + settings.timeout;
        let id = exchange(api, store, settings.rank, deadline)?;
        part_from_neighbours(store, settings, index, deadline)?;
        let (rank, world_size) = (settings.rank as c_int, settings.world_size as c_int);
        let connected = within(
            settings.timeout,
            move |_| {
                context.enter()?;
                let mut comm = std::ptr::null_mut();
                let mut config = config();
                // SAFETY: all pointers are valid for the call; the context is current; NCCL copies the
                // configuration.
                let status =
                    unsafe { (api.comm_init_rank_config)(&mut comm, world_size, id, rank, &mut config) };
                match status {
                    SUCCESS => Ok(NcclComm(comm)),
                    status => Err(api.explain("cannot connect", status, comm)),
                }
            },
            || {},
        );
        let comm = connected.unwrap_or_else(|| {
            Err(BackendError::new(DistErrorKind::Timeout, "nccl: not all ranks connected in time"))
        })?;
        let identity = (settings.rank, settings.world_size);
        let interrupt = settings.interrupt.clone();
        let flight = InFlightOps::new(api, context, comm, page, (identity, settings.timeout, interrupt))?;
        Ok(Nccl {
            api,
            flight,
            stream,
            context,
            device: Device::Cuda(index as usize),
            timeout: settings.timeout,
            token: RefCell::new(None),
            last: Cell::new(None),
        })
    }

    /// Puts one operation on the stream, after what libtorch did before.
    fn start(
        &self,
        note: &CollectiveNote,
        shown: Option<(GroupId, CollectiveStart)>,
        start: impl FnOnce(ncclComm_t, cudaStream_t) -> NcclStatus,
    ) -> Result<(), BackendError> {
        self.context.enter()?;
        let (comm, events) = self.flight.add(note, shown)?;
        self.launch(comm, events, start).map_err(|failure| self.flight.refused(failure))?;
        self.flight.launched();
        Ok(())
    }

    fn launch(
        &self,
        comm: ncclComm_t,
        events: CudaEvents,
        start: impl FnOnce(ncclComm_t, cudaStream_t) -> NcclStatus,
    ) -> Result<(), BackendError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let event = cuda("event");
        // SAFETY: stream and events are ours and alive; the null stream is libtorch's current one, which tch
        // never changes.
        unsafe {
            result::event::record(events.ready, result::stream::null()).map_err(&event)?;
            result::stream::wait_event(self.stream, events.ready, flags).map_err(&event)?;
        }
        let status = start(comm, self.stream.cast());
        if status != SUCCESS {
            return Err(self.api.explain("cannot start", status, comm));
        }
        // SAFETY: as above.
        unsafe { result::event::record(events.done, self.stream).map_err(&event)? };
        self.last.set(Some(events.done));
        Ok(())
    }

    /// One operation, from libtorch's stream to done.
    fn run(
        &self,
        note: &CollectiveNote,
        start: impl FnOnce(ncclComm_t, cudaStream_t) -> NcclStatus,
    ) -> Result<(), BackendError> {
        self.start(note, None, start)?;
        self.done()
    }

    /// Waits for what was begun, on the device and here.
    fn done(&self) -> Result<(), BackendError> {
        self.join()?;
        self.flight.settle().map_err(|(_, failure)| failure)
    }

    fn reduce(
        &self,
        note: &CollectiveNote,
        shown: Option<(GroupId, CollectiveStart)>,
        tensor: &mut Tensor,
        op: ReduceKernel,
    ) -> Result<(), BackendError> {
        let (data, count, kind) = (tensor.data_ptr(), tensor.numel(), data_type(tensor.kind())?);
        self.start(note, shown, |comm, stream| {
            // SAFETY: `data` holds `count` elements on this device. libtorch does not reuse its memory
            // before its stream, which waits for the operation, has come to that.
            unsafe { (self.api.all_reduce)(data, data, count, kind, reduction(op), comm, stream) }
        })
    }
}

/// Context and stream of a device.
fn on_device(index: u32) -> Result<(Context, sys::CUstream), BackendError> {
    let device = result::device::get(index as c_int).map_err(cuda("no such device"))?;
    // SAFETY: the device exists. The primary context is the one that libtorch uses; it is kept until the
    // process ends.
    let context = Context(unsafe { result::primary_ctx::retain(device) }.map_err(cuda("no context"))?);
    context.enter()?;
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(cuda("stream"))?;
    Ok((context, stream))
}

/// Limits are the communicator's own, set when it was made.
impl CollectiveTransport for Nccl {
    fn name(&self) -> String {
        format!("nccl {}", self.api.version())
    }

    fn device(&self) -> Option<Device> {
        Some(self.device)
    }

    fn all_reduce(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        op: ReduceKernel,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        self.reduce(note, None, tensor, op)?;
        self.done()
    }

    fn queues(&self) -> bool {
        true
    }

    fn start_all_reduce(
        &self,
        note: &CollectiveNote,
        shown: (GroupId, CollectiveStart),
        tensor: &mut Tensor,
        op: ReduceKernel,
    ) -> Result<(), BackendError> {
        self.reduce(note, Some(shown), tensor, op)
    }

    /// Operations are done in order, so the last one stands for all. Its event is not used again before the
    /// next one is begun.
    fn join(&self) -> Result<(), BackendError> {
        let Some(done) = self.last.take() else { return Ok(()) };
        self.context.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as in `launch`.
        unsafe { result::stream::wait_event(result::stream::null(), done, flags) }.map_err(cuda("event"))
    }

    fn settle(&self) -> Result<(), (CollectiveNote, BackendError)> {
        self.flight.settle()
    }

    fn failure(&self) -> Option<(CollectiveNote, BackendError)> {
        self.flight.failure()
    }

    fn broadcast(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        root: u32,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        let (data, count, kind) = (tensor.data_ptr(), tensor.numel(), data_type(tensor.kind())?);
        self.run(note, |comm, stream| {
            // SAFETY: as in `reduce`.
            unsafe { (self.api.broadcast)(data, data, count, kind, root as c_int, comm, stream) }
        })
    }

    /// Copies through the device, wherever the tensors are.
    fn all_gather(
        &self,
        note: &CollectiveNote,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        let torch = |error: tch::TchError| BackendError::new(DistErrorKind::Failed, error.to_string());
        no_grad(|| {
            let mine = input.f_to_device(self.device).and_then(|t| t.f_contiguous()).map_err(torch)?;
            let (count, kind) = (mine.numel(), data_type(mine.kind())?);
            let all = Tensor::f_zeros([outputs.len() as i64, count as i64], (mine.kind(), self.device))
                .map_err(torch)?;
            let (from, to): (*const c_void, _) = (mine.data_ptr(), all.data_ptr());
            self.run(note, |comm, stream| {
                // SAFETY: `to` holds `count` elements for each rank, `from` as many once; both live as in
                // `reduce`.
                unsafe { (self.api.all_gather)(from, to, count, kind, comm, stream) }
            })?;
            for (index, output) in outputs.iter_mut().enumerate() {
                let row = all.f_get(index as i64).and_then(|row| row.f_view_as(output)).map_err(torch)?;
                output.f_copy_(&row).map_err(torch)?;
            }
            Ok(())
        })
    }

    fn barrier(&self, note: &CollectiveNote, _limit_ms: i64) -> Result<(), BackendError> {
        let mut token = match self.token.borrow_mut().take() {
            Some(token) => token,
            None => Tensor::f_zeros([1], (Kind::Int64, self.device))
                .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?,
        };
        let result = self.all_reduce(note, &mut token, ReduceKernel::Sum, 0);
        *self.token.borrow_mut() = Some(token);
        result
    }

    /// Called on a helper thread with a limit of its own.
    fn close(self: Box<Self>, healthy: bool) {
        if !healthy || self.context.enter().is_err() || self.flight.settle().is_err() {
            self.flight.end();
            return;
        }
        let comm = NcclComm(self.flight.take());
        if comm.0.is_null() {
            return;
        }
        let (api, context) = (self.api, self.context);
        let _ = within(
            self.timeout,
            move |_| {
                let comm = { comm };
                // SAFETY: the communicator is alive, out of the flight, and all its operations are done.
                unsafe {
                    let _ = context.enter();
                    (api.comm_finalize)(comm.0);
                    (api.comm_destroy)(comm.0);
                }
            },
            || {},
        );
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.flight.end();
        // SAFETY: ours, and unused from here on; errors at this point change nothing.
        unsafe {
            let _ = self.context.enter();
            let _ = result::stream::destroy(self.stream);
        }
    }
}

/// Has NCCL take this rank for a host of its own where another rank has the same GPU: it refuses two ranks on
/// one GPU of one host. A launch by the console does so beforehand, `--spawn`, torchrun and Slurm do not.
fn part_from_neighbours(
    store: &Store,
    settings: &GroupSettings,
    index: u32,
    deadline: Instant,
) -> Result<(), BackendError> {
    const HOST: &str = "NCCL_HOSTID";
    let device = result::device::get(index as c_int).map_err(cuda("no such device"))?;
    let uuid = result::device::get_uuid(device).map_err(cuda("no UUID of the device"))?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    let own = format!("{}/{hex}", boot.trim());
    let key = |rank: u32| format!("gpu/{rank}");
    store.set(&key(settings.rank), own.as_bytes())?;
    let mut shared = false;
    for rank in (0..settings.world_size).filter(|rank| *rank != settings.rank) {
        shared |= store.get(&key(rank), deadline)? == own.as_bytes();
    }
    if shared && std::env::var_os(HOST).is_none() {
        // SAFETY: NCCL reads it when it connects, which comes next on this thread's order. The threads that
        // are there by now, libtorch's and those of store and events, do not read the environment.
        unsafe { std::env::set_var(HOST, format!("{}-{}", boot.trim(), settings.rank)) };
    }
    Ok(())
}

fn exchange(api: &Api, store: &Store, rank: u32, deadline: Instant) -> Result<ncclUniqueId, BackendError> {
    let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
    if rank == 0 {
        // SAFETY: writes one id.
        let status = unsafe { (api.get_unique_id)(&mut id) };
        if status != SUCCESS {
            return Err(api.explain("no id", status, std::ptr::null_mut()));
        }
        store.set("nccl_id", &id.internal.map(|byte| byte as u8))?;
        return Ok(id);
    }
    let bytes = store.get("nccl_id", deadline)?;
    if bytes.len() != ID_BYTES {
        return Err(BackendError::new(DistErrorKind::Mismatch, format!("an id of {} bytes", bytes.len())));
    }
    for (to, from) in id.internal.iter_mut().zip(bytes) {
        *to = from as _;
    }
    Ok(id)
}

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
fn pause(waited: Duration) {
    match waited {
        _ if waited < SPIN => std::hint::spin_loop(),
        _ if waited < POLL_LAST => std::thread::sleep(SHORT),
        _ => std::thread::sleep(LONG),
    }
}

/// A communicator's handle, which any thread may use once the context is current there.
#[derive(Clone, Copy)]
struct NcclComm(pub ncclComm_t);

// SAFETY: NCCL may be called from any thread.
unsafe impl Send for NcclComm {}

/// The context of the device.
#[derive(Clone, Copy)]
struct Context(pub sys::CUcontext);

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
struct CudaEvents {
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
struct InFlightOps {
    api: &'static Api,
    context: Context,
    page: StatusPage,
    /// Rank and ranks.
    identity: (u32, u32),
    limit: Duration,
    interrupt: Option<Interrupt>,
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
        (identity, limit, interrupt): ((u32, u32), Duration, Option<Interrupt>),
    ) -> Result<Arc<InFlightOps>, BackendError> {
        let flight = Arc::new(InFlightOps {
            api,
            context,
            page: page.clone(),
            identity,
            limit,
            interrupt,
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
        if self.interrupt.as_ref().is_some_and(Interrupt::is_set) {
            return Some(BackendError::new(DistErrorKind::Connection, "nccl: aborted, since a rank is gone"));
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
