//! Collectives over NCCL: CUDA tensors, on a stream of their own, with a communicator that never blocks.
//!
//! Owner: the process group. Every call returns at once (`blocking = 0`). The host then polls the
//! communicator's asynchronous error and an event on the stream until the operation is done, has failed or is
//! out of time. After a failure NCCL's operation normally never ends, so the communicator is aborted.
//! Invariants:
//! - Nothing waits inside NCCL or CUDA; the only waits are polls with a deadline.
//! - An operation starts after everything that libtorch put on its stream before, and the call
//!   returns after it is done, so that libtorch needs no event of ours.

use super::bounded::within;
use super::collective::CollectiveNote;
use super::cuda::{driver_failure, require_devices};
use super::error::{BackendError, DistErrorKind};
use super::ffi::RawReduce;
use super::nccl_api::{Api, IN_PROGRESS, NcclStatus, SUCCESS};
use super::settings::GroupSettings;
use super::store::Store;
use super::transport::CollectiveTransport;
use cudarc::driver::{result, sys};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor, no_grad};

/// nccl.h: NCCL_API_MAGIC, and NCCL_VERSION(2, 28, 0) for the layout of `ncclConfig_t` that cudarc's feature
/// `nccl-02028` gives.
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
const CONFIG_VERSION: c_uint = 22_800;
const UNDEFINED: c_int = c_int::MIN;
const ID_BYTES: usize = 128;
/// How long to wait for an abort; after that its thread is abandoned.
const ABORT: Duration = Duration::from_secs(5);
/// Polls without a pause, then with: most operations are done within the first.
const SPIN: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(50);

/// A communicator over all ranks.
pub(super) struct Nccl {
    api: &'static Api,
    comm: Cell<ncclComm_t>,
    stream: sys::CUstream,
    ready: sys::CUevent,
    done: sys::CUevent,
    context: sys::CUcontext,
    device: Device,
    timeout: Duration,
    token: RefCell<Option<Tensor>>,
}

// SAFETY: NCCL and the driver API may be called from any thread once the context is current there (`enter`
// does that); the value moves to a helper thread only for closing.
unsafe impl Send for Nccl {}

/// A communicator that a helper thread aborts.
struct AbortedCommunicator(ncclComm_t, sys::CUcontext);

// SAFETY: as for `Nccl`.
unsafe impl Send for AbortedCommunicator {}

fn cuda(what: &'static str) -> impl Fn(result::DriverError) -> BackendError {
    move |error| driver_failure(what, error)
}

fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
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
fn reduction(op: RawReduce) -> c_int {
    match op {
        RawReduce::Sum => 0,
        RawReduce::Max => 2,
        RawReduce::Min => 3,
    }
}

/// Whether NCCL can work on this host at all. Checked before the rendezvous, so that every rank gets the
/// error.
pub(super) fn available() -> Result<(), BackendError> {
    require_devices()?;
    Api::get().map(|_| ())
}

impl Nccl {
    /// Exchanges the id over the store and connects all ranks.
    pub(super) fn open(store: &Store, settings: &GroupSettings) -> Result<Nccl, BackendError> {
        let devices = require_devices()?;
        let api = Api::get()?;
        let index = match settings.device {
            Device::Cuda(index) => index as u32,
            _ => settings.local_rank,
        };
        if index >= devices {
            return Err(BackendError::new(
                DistErrorKind::Usage,
                format!("no device {index}: this process sees {devices}"),
            ));
        }
        let deadline = Instant::now() + settings.timeout;
        let nccl = Nccl::on_device(api, index, settings.timeout)?;
        let id = exchange(api, store, settings.rank, deadline)?;
        let mut comm = std::ptr::null_mut();
        let mut config = config();
        // SAFETY: all pointers are valid for the call; the context is current; NCCL copies the configuration.
        let status = unsafe {
            (api.comm_init_rank_config)(
                &mut comm,
                settings.world_size as c_int,
                id,
                settings.rank as c_int,
                &mut config,
            )
        };
        nccl.comm.set(comm);
        nccl.settle("cannot connect", status, deadline)?;
        Ok(nccl)
    }

    fn on_device(api: &'static Api, index: u32, timeout: Duration) -> Result<Nccl, BackendError> {
        let device = result::device::get(index as c_int).map_err(cuda("no such device"))?;
        // SAFETY: the device exists. The primary context is the one that libtorch uses; it is kept until the
        // process ends.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(cuda("no context"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(cuda("context"))?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(cuda("stream"))?;
        let event =
            || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(cuda("event"));
        Ok(Nccl {
            api,
            comm: Cell::new(std::ptr::null_mut()),
            stream,
            ready: event()?,
            done: event()?,
            context,
            device: Device::Cuda(index as usize),
            timeout,
            token: RefCell::new(None),
        })
    }

    fn reduce(&self, tensor: &mut Tensor, op: RawReduce) -> Result<(), BackendError> {
        let (data, count, kind) = (tensor.data_ptr(), tensor.numel(), data_type(tensor.kind())?);
        self.run(|comm, stream| {
            // SAFETY: `data` holds `count` elements on this device and lives until `run` is done or the
            // communicator is aborted.
            unsafe { (self.api.all_reduce)(data, data, count, kind, reduction(op), comm, stream) }
        })
    }

    /// One operation, from libtorch's stream to done.
    fn run(&self, start: impl FnOnce(ncclComm_t, cudaStream_t) -> NcclStatus) -> Result<(), BackendError> {
        let deadline = Instant::now() + self.timeout;
        let comm = self.comm.get();
        if comm.is_null() {
            return Err(BackendError::new(DistErrorKind::Failed, "the communicator was aborted"));
        }
        self.enter()?;
        // SAFETY: stream and events are ours and alive; the null stream is libtorch's current one, which tch
        // never changes.
        unsafe {
            result::event::record(self.ready, result::stream::null()).map_err(cuda("event"))?;
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(self.stream, self.ready, flags).map_err(cuda("event"))?;
        }
        let status = start(comm, self.stream.cast());
        self.settle("cannot start", status, deadline)?;
        // SAFETY: as above.
        unsafe { result::event::record(self.done, self.stream) }.map_err(cuda("event"))?;
        self.poll("failed", deadline, || {
            // SAFETY: the event was recorded and is alive.
            match unsafe { result::event::query(self.done) } {
                Ok(()) => Ok(true),
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                Err(error) => Err(driver_failure("device", error)),
            }
        })
    }

    fn enter(&self) -> Result<(), BackendError> {
        // SAFETY: the context was retained in `on_device`.
        unsafe { result::ctx::set_current(self.context) }.map_err(cuda("context"))
    }

    /// Waits until a call that may have returned early has done its work on the host.
    fn settle(&self, what: &str, status: NcclStatus, deadline: Instant) -> Result<(), BackendError> {
        match status {
            SUCCESS => Ok(()),
            IN_PROGRESS => self.poll(what, deadline, || Ok(self.state(what)? == SUCCESS)),
            status => {
                let failure = self.api.explain(what, status, self.comm.get());
                self.abort();
                Err(failure)
            }
        }
    }

    /// The communicator's asynchronous state: success or in progress.
    fn state(&self, what: &str) -> Result<NcclStatus, BackendError> {
        let (comm, mut state) = (self.comm.get(), SUCCESS);
        // SAFETY: the communicator is alive (aborts set it to null and end the group), `state` is writable.
        let status = unsafe { (self.api.comm_get_async_error)(comm, &mut state) };
        match (status, state) {
            (SUCCESS, SUCCESS | IN_PROGRESS) => Ok(state),
            (SUCCESS, bad) | (bad, _) => Err(self.api.explain(what, bad, comm)),
        }
    }

    /// Polls until done; aborts on errors and at the deadline.
    fn poll(
        &self,
        what: &str,
        deadline: Instant,
        mut done: impl FnMut() -> Result<bool, BackendError>,
    ) -> Result<(), BackendError> {
        let started = Instant::now();
        loop {
            let step = done().and_then(|done| if done { Ok(true) } else { self.state(what).map(|_| false) });
            let failure = match step {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() < deadline => None,
                Ok(false) => Some(BackendError::new(DistErrorKind::Timeout, "nccl: not all ranks took part")),
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.abort();
                return Err(failure);
            }
            if started.elapsed() > SPIN { std::thread::sleep(PAUSE) } else { std::hint::spin_loop() }
        }
    }

    /// Ends the communicator without waiting for the others.
    fn abort(&self) {
        let comm = self.comm.replace(std::ptr::null_mut());
        if comm.is_null() {
            return;
        }
        let (api, doomed) = (self.api, AbortedCommunicator(comm, self.context));
        let _ = within(
            ABORT,
            move |_| {
                let AbortedCommunicator(comm, context) = { doomed };
                // SAFETY: the communicator was taken out of its cell: nobody else uses it. The context is
                // retained.
                unsafe {
                    let _ = result::ctx::set_current(context);
                    (api.comm_abort)(comm);
                }
            },
            || {},
        );
    }
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
        _note: &CollectiveNote,
        tensor: &mut Tensor,
        op: RawReduce,
        _limit_ms: i64,
    ) -> Result<(), BackendError> {
        self.reduce(tensor, op)
    }

    fn broadcast(&self, tensor: &mut Tensor, root: u32, _limit_ms: i64) -> Result<(), BackendError> {
        let (data, count, kind) = (tensor.data_ptr(), tensor.numel(), data_type(tensor.kind())?);
        self.run(|comm, stream| {
            // SAFETY: as in `reduce`.
            unsafe { (self.api.broadcast)(data, data, count, kind, root as c_int, comm, stream) }
        })
    }

    /// Copies through the device, wherever the tensors are.
    fn all_gather(
        &self,
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
            self.run(|comm, stream| {
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

    fn barrier(&self, _limit_ms: i64) -> Result<(), BackendError> {
        let mut token = match self.token.borrow_mut().take() {
            Some(token) => token,
            None => Tensor::f_zeros([1], (Kind::Int64, self.device))
                .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?,
        };
        let result = self.reduce(&mut token, RawReduce::Sum);
        *self.token.borrow_mut() = Some(token);
        result
    }

    /// Called on a helper thread with a limit of its own.
    fn close(self: Box<Self>, healthy: bool) {
        if !healthy || self.enter().is_err() {
            self.abort();
            return;
        }
        let (comm, deadline) = (self.comm.get(), Instant::now() + self.timeout);
        if comm.is_null() {
            return;
        }
        // SAFETY: the communicator is alive and all its operations are done.
        let status = unsafe { (self.api.comm_finalize)(comm) };
        if self.settle("cannot finalize", status, deadline).is_ok() {
            self.comm.set(std::ptr::null_mut());
            // SAFETY: finalized, and out of its cell.
            unsafe { (self.api.comm_destroy)(comm) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.abort();
        // SAFETY: ours, and unused from here on; errors at this point change nothing.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::event::destroy(self.ready);
            let _ = result::event::destroy(self.done);
            let _ = result::stream::destroy(self.stream);
        }
    }
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
