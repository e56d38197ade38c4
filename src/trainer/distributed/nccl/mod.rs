//! Collectives of CUDA tensors over NCCL, on a stream of their own.
//!
//! The communicator is one that blocks: otherwise NCCL makes a thread for every collective. Calls return when
//! the work is on the stream; [`InFlightOps`] follows it from there, and ends the communicator when the
//! work, or a call, does not come to an end. Invariants:
//! - Every wait is bounded: connecting happens on a thread of its own, and everything later is in the flight.
//! - An operation starts after everything that libtorch put on its stream before, and what libtorch puts
//!   there after a join starts after the operation: streams wait for streams.

pub(super) mod in_flight;

use super::GroupSettings;
use super::bounded::within;
use super::cuda::nccl_api::{Api, NcclStatus, SUCCESS};
use super::cuda::{driver_failure, require_devices};
use super::error::{BackendError, DistErrorKind};
use super::ffi::ReduceKernel;
use super::store::Store;
use super::transport::{CollectiveNote, CollectiveTransport};
use crate::support::page::StatusPage;
use cudarc::driver::{result, sys};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use in_flight::{Context, CudaEvents, InFlightOps, NcclComm};
use rankdeck_proto::status_page::{CollectiveStart, GroupId};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
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
        let flight = InFlightOps::new(api, context, comm, page, (identity, settings.timeout))?;
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
