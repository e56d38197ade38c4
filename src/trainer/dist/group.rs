//! The process group: collectives over all ranks, each numbered, tagged, on the status page and bounded in time.
//!
//! Owner: the trainer's one thread (the group is neither `Send` nor `Sync`). All ranks must call the same collectives in the same order;
//! with `RANKDECK_CHECK_COLLECTIVES=1` they compare notes before each one and name the first difference instead of failing inside a library.

use super::bounded::within;
use super::error::{DistError, DistErrorKind, DistPhase, Failure};
use super::ffi::{self, RawReduce};
use super::fingerprint::call_site;
use super::memory;
use super::rendezvous::{self, Transport};
use super::store::{Store, list};
use crate::proto::message::Phase;
use crate::proto::status_page::{self, Dtype, Op, WORLD};
use crate::trainer::inject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor, no_grad};

/// The rank's status page, shared with the loop that writes its phases.
pub type Page = Rc<RefCell<status_page::Writer>>;

/// Bytes of an object that travel in one collective; longer ones need two.
const FRAME: usize = 4096;
const FRAME_HEAD: usize = 8;
/// Largest object.
const OBJECT_MAX: usize = 64 << 20;
/// Sizes of small reductions that keep their tensors.
const SCRATCH_MAX: usize = 32;
/// Words that describe a collective in check mode.
const CHECK_WORDS: usize = 6;

/// How values of all ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum over the world size; floating point only.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// Which library carries the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// CPU tensors over TCP.
    Gloo,
    /// CUDA tensors.
    Nccl,
}

impl BackendKind {
    /// Its name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Gloo => "gloo",
            BackendKind::Nccl => "nccl",
        }
    }
}

/// What a rank needs to know to join.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// This rank.
    pub rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// Its number on this host; the default CUDA device.
    pub local_rank: u32,
    /// Host of rank 0.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Library.
    pub backend: BackendKind,
    /// Limit of the rendezvous and of each collective.
    pub timeout: Duration,
    /// Network interface for Gloo; else `GLOO_SOCKET_IFNAME`, else the one that leads to rank 0.
    pub interface: Option<String>,
    /// Restarts so far; ranks of different generations never meet.
    pub generation: u32,
    /// Where this rank's tensors live.
    pub device: Device,
}

/// All ranks of a run. Dropping it without [`ProcessGroup::destroy`] leaves within two seconds.
pub struct ProcessGroup {
    rank: u32,
    world_size: u32,
    timeout: Duration,
    transport: Option<Transport>,
    store: Option<Store>,
    page: Page,
    last_seq: Cell<u64>,
    broken: RefCell<Option<String>>,
    scratch: RefCell<HashMap<(Kind, usize), Tensor>>,
    check: bool,
}

/// A collective about to begin.
struct Call<'a> {
    op: Op,
    tag: &'a str,
    count: usize,
    kind: Kind,
    /// Source of a broadcast.
    root: Option<u32>,
    site: &'static Location<'static>,
}

fn dtype(kind: Kind) -> Option<Dtype> {
    match kind {
        Kind::Uint8 | Kind::Int8 | Kind::Bool => Some(Dtype::U8),
        Kind::Int64 => Some(Dtype::I64),
        Kind::Float => Some(Dtype::F32),
        Kind::Double => Some(Dtype::F64),
        _ => None,
    }
}

impl ProcessGroup {
    /// Finds the other ranks and connects to them, within `settings.timeout` for each of the two steps. A world of one needs no network.
    pub fn connect(settings: &GroupSettings, page: Page) -> Result<ProcessGroup, DistError> {
        let usage = |text: String| {
            DistError::new(
                DistErrorKind::Usage,
                DistPhase::Rendezvous,
                (settings.rank, settings.world_size),
                text,
            )
        };
        if settings.world_size == 0 || settings.rank >= settings.world_size {
            return Err(usage(format!(
                "rank {} does not fit a world size of {}",
                settings.rank, settings.world_size
            )));
        }
        if settings.timeout.is_zero() {
            return Err(usage("the timeout is 0".into()));
        }
        if let Ok(mut page) = page.try_borrow_mut() {
            page.group("world", settings.world_size);
            page.phase(Phase::Rendezvous);
        }
        inject::arm(settings.rank, &page);
        let (store, transport) = if settings.world_size == 1 {
            (None, Transport::Alone)
        } else {
            let store = rendezvous::join(settings, || {
                if let Ok(mut page) = page.try_borrow_mut() {
                    page.progress();
                }
            })?;
            let transport = rendezvous::connect(settings, &store)?;
            (Some(store), transport)
        };
        let last_seq = page.try_borrow().map_or(0, |page| page.body().entered);
        Ok(ProcessGroup {
            rank: settings.rank,
            world_size: settings.world_size,
            timeout: settings.timeout,
            transport: Some(transport),
            store,
            page,
            last_seq: Cell::new(last_seq),
            broken: RefCell::new(None),
            scratch: RefCell::new(HashMap::new()),
            check: std::env::var("RANKDECK_CHECK_COLLECTIVES").is_ok_and(|value| value == "1"),
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks in the group.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Library and version, such as `gloo (libtorch 2.11.0)`.
    pub fn backend_name(&self) -> String {
        match &self.transport {
            Some(Transport::Gloo(_)) => format!("gloo (libtorch {})", ffi::torch_version()),
            Some(Transport::Nccl(nccl)) => format!("nccl {}", nccl.version()),
            Some(Transport::Alone) | None => "none (one rank)".into(),
        }
    }

    /// Reduces a contiguous tensor in place, on all ranks.
    #[track_caller]
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let call = self.call(Op::AllReduce, tag, tensor)?;
        if op == ReduceOp::Avg && !matches!(tensor.kind(), Kind::Float | Kind::Double) {
            return Err(self.refuse(&call, "the average of integers is not defined here: use a sum"));
        }
        let raw = match op {
            ReduceOp::Sum | ReduceOp::Avg => RawReduce::Sum,
            ReduceOp::Min => RawReduce::Min,
            ReduceOp::Max => RawReduce::Max,
        };
        self.run(&call, |transport, limit| {
            on_device(transport, tensor, |transport, tensor| match transport {
                Transport::Alone => Ok(()),
                Transport::Gloo(gloo) => gloo.all_reduce(tensor, raw, limit),
                Transport::Nccl(nccl) => nccl.all_reduce(tensor, raw),
            })
        })?;
        if op == ReduceOp::Avg && self.world_size > 1 {
            no_grad(|| tensor.f_div_scalar_(f64::from(self.world_size)).map(|_| ()))
                .map_err(|error| self.broke(&call, Failure::new(DistErrorKind::Failed, error.to_string())))?;
        }
        Ok(())
    }

    /// Copies a contiguous tensor of `root` over those of all ranks.
    #[track_caller]
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32, tag: &str) -> Result<(), DistError> {
        let call = Call { root: Some(root), ..self.call(Op::Broadcast, tag, tensor)? };
        self.broadcast_in(&call, tensor, root)
    }

    fn broadcast_in(&self, call: &Call<'_>, tensor: &mut Tensor, root: u32) -> Result<(), DistError> {
        if root >= self.world_size {
            return Err(self.refuse(call, &format!("root {root} is no rank")));
        }
        self.run(call, |transport, limit| {
            on_device(transport, tensor, |transport, tensor| match transport {
                Transport::Alone => Ok(()),
                Transport::Gloo(gloo) => gloo.broadcast(tensor, root, limit),
                Transport::Nccl(nccl) => nccl.broadcast(tensor, root),
            })
        })
    }

    /// Every rank's tensor, in rank order; all must have the same shape and dtype.
    #[track_caller]
    pub fn all_gather(&self, input: &Tensor, tag: &str) -> Result<Vec<Tensor>, DistError> {
        let mut input = no_grad(|| input.detach().contiguous());
        let call = self.call(Op::AllGather, tag, &input)?;
        let mut outputs: Vec<Tensor> = (0..self.world_size).map(|_| input.empty_like()).collect();
        self.run(&call, |transport, limit| gather(transport, &mut outputs, &mut input, limit))?;
        Ok(outputs)
    }

    /// Waits for all ranks.
    #[track_caller]
    pub fn barrier(&self, tag: &str) -> Result<(), DistError> {
        let (count, kind, site) = (0, Kind::Uint8, Location::caller());
        let call = Call { op: Op::Barrier, tag, count, kind, root: None, site };
        self.run(&call, |transport, limit| match transport {
            Transport::Alone => Ok(()),
            Transport::Gloo(gloo) => gloo.barrier(limit),
            Transport::Nccl(nccl) => nccl.barrier(),
        })
    }

    /// Copies a value of `root` to all ranks, as JSON. The root too ends up with what the JSON says, so that all are equal to the bit.
    /// One collective up to 4 KiB, else two.
    #[track_caller]
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        value: &mut T,
        root: u32,
        tag: &str,
    ) -> Result<(), DistError> {
        let site = Location::caller();
        let call = |count| Call { op: Op::Broadcast, tag, count, kind: Kind::Uint8, root: Some(root), site };
        let json = if self.rank == root {
            serde_json::to_vec(value)
                .map_err(|error| self.refuse(&call(0), &format!("value cannot be sent: {error}")))?
        } else {
            Vec::new()
        };
        if json.len() > OBJECT_MAX {
            return Err(self.refuse(&call(json.len()), "value is too long to be sent"));
        }
        let mut frame = self.scratch(Kind::Uint8, FRAME);
        let head = (json.len() as u64).to_le_bytes();
        for (to, from) in memory::bytes_mut(&mut frame).iter_mut().zip(head.iter().chain(&json)) {
            *to = *from;
        }
        self.broadcast_in(&call(FRAME), &mut frame, root)?;
        let bytes = memory::bytes(&frame);
        let mut head = [0; FRAME_HEAD];
        head.copy_from_slice(&bytes[..FRAME_HEAD]);
        let length = u64::from_le_bytes(head) as usize;
        let decode = |bytes: &[u8]| {
            serde_json::from_slice(bytes).map_err(|error| {
                self.broke(
                    &call(length),
                    Failure::new(DistErrorKind::Mismatch, format!("value cannot be read: {error}")),
                )
            })
        };
        *value = if length <= FRAME - FRAME_HEAD {
            decode(&bytes[FRAME_HEAD..FRAME_HEAD + length])?
        } else if length <= OBJECT_MAX {
            let mut whole = Tensor::zeros([length as i64], (Kind::Uint8, Device::Cpu));
            if self.rank == root {
                memory::bytes_mut(&mut whole).copy_from_slice(&json);
            }
            self.broadcast_in(&call(length), &mut whole, root)?;
            decode(memory::bytes(&whole))?
        } else {
            let text = format!("rank {root} announced an object of {length} bytes");
            return Err(self.broke(&call(length), Failure::new(DistErrorKind::Mismatch, text)));
        };
        Ok(())
    }

    /// Reduces integers in place; exact, so that totals are. No average.
    #[track_caller]
    pub fn all_reduce_i64(&self, values: &mut [i64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let mut tensor = self.scratch(Kind::Int64, values.len());
        for (to, from) in memory::bytes_mut(&mut tensor).chunks_exact_mut(8).zip(values.iter()) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        self.all_reduce(&mut tensor, op, tag)?;
        for (to, from) in values.iter_mut().zip(memory::bytes(&tensor).chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(from);
            *to = i64::from_ne_bytes(word);
        }
        Ok(())
    }

    /// Reduces 64-bit floats in place.
    #[track_caller]
    pub fn all_reduce_f64(&self, values: &mut [f64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let mut tensor = self.scratch(Kind::Double, values.len());
        for (to, from) in memory::bytes_mut(&mut tensor).chunks_exact_mut(8).zip(values.iter()) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        self.all_reduce(&mut tensor, op, tag)?;
        for (to, from) in values.iter_mut().zip(memory::bytes(&tensor).chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(from);
            *to = f64::from_ne_bytes(word);
        }
        Ok(())
    }

    /// Leaves the group. Ranks wait for each other's last use of the connections, but never longer than `within`;
    /// a group that failed before is abandoned at once.
    pub fn destroy(mut self, within: Duration) -> Result<(), DistError> {
        inject::here(inject::Place::Teardown);
        self.leave(within)
    }

    fn leave(&mut self, limit: Duration) -> Result<(), DistError> {
        let (Some(transport), store) = (self.transport.take(), self.store.take()) else { return Ok(()) };
        let Some(store) = store else { return Ok(()) };
        let (rank, world_size) = (self.rank, self.world_size);
        let healthy = self.broken.borrow().is_none();
        // What is left of the limit is for closing the connections.
        let deadline = Instant::now() + limit.mul_f64(0.75);
        let result = within(
            limit,
            move |_| -> Result<i64, Failure> {
                let mut left = i64::from(world_size);
                if healthy {
                    // Closing a connection while a peer still reads from it may throw away what it has not read.
                    store.add("leaving", 1)?;
                    left = store.wait_count("leaving", i64::from(world_size), deadline, || {})?;
                }
                transport.close(healthy);
                if healthy && left == i64::from(world_size) {
                    // The store goes with rank 0, so rank 0 goes last.
                    if rank == 0 {
                        store.wait_count("left", i64::from(world_size) - 1, deadline, || {})?;
                    } else {
                        // Rank 0 may stop waiting at its own deadline, and its store with it.
                        let _ = store.add("left", 1);
                    }
                }
                Ok(left)
            },
            || {},
        );
        let error =
            |kind, text: String| Err(DistError::new(kind, DistPhase::Teardown, (rank, world_size), text));
        match result {
            Some(Ok(left)) if left == i64::from(world_size) => Ok(()),
            Some(Ok(left)) => error(
                DistErrorKind::Timeout,
                format!(
                    "only {left} of {world_size} ranks came to leave within {:.1} s",
                    limit.as_secs_f64()
                ),
            ),
            Some(Err(failure)) => error(failure.kind, failure.text),
            None => error(
                DistErrorKind::Timeout,
                format!("connections not closed within {:.1} s", limit.as_secs_f64()),
            ),
        }
    }

    /// Hash over all collectives that this rank has entered: equal on all ranks that agree.
    pub(super) fn chain_hash(&self) -> u64 {
        self.page.try_borrow().map_or(0, |page| page.body().chain_hash)
    }

    #[track_caller]
    fn call<'a>(&self, op: Op, tag: &'a str, tensor: &Tensor) -> Result<Call<'a>, DistError> {
        let (count, kind, site) = (tensor.numel(), tensor.kind(), Location::caller());
        let call = Call { op, tag, count, kind, root: None, site };
        if !tensor.is_contiguous() {
            return Err(self.refuse(&call, "the tensor is not contiguous"));
        }
        if dtype(call.kind).is_none() {
            return Err(self.refuse(&call, &format!("tensors of kind {:?} are not supported", call.kind)));
        }
        Ok(call)
    }

    /// A mistake seen before anything was sent: the group stays usable.
    fn refuse(&self, call: &Call<'_>, text: &str) -> DistError {
        DistError::new(DistErrorKind::Usage, DistPhase::Collective, (self.rank, self.world_size), text)
            .of(0, call.op, call.tag)
    }

    /// A failure inside a collective: the group is unusable from here on (DIST-4).
    fn broke(&self, call: &Call<'_>, failure: Failure) -> DistError {
        let text = match failure.kind {
            DistErrorKind::Timeout => {
                format!("not finished within {:.1} s: {}", self.timeout.as_secs_f64(), failure.text)
            }
            DistErrorKind::Connection => format!("lost another rank: {}", failure.text),
            _ => failure.text,
        };
        let error = DistError::new(failure.kind, DistPhase::Collective, (self.rank, self.world_size), text)
            .of(self.last_seq.get(), call.op, call.tag);
        self.broken.borrow_mut().get_or_insert_with(|| error.to_string());
        error
    }

    /// One collective: refused when the group is broken, numbered, shown, checked, done, left.
    fn run(
        &self,
        call: &Call<'_>,
        body: impl FnOnce(&Transport, i64) -> Result<(), Failure>,
    ) -> Result<(), DistError> {
        if let Some(earlier) = self.broken.borrow().as_deref() {
            let text = format!("the group failed earlier ({earlier})");
            return Err(DistError::new(
                DistErrorKind::Failed,
                DistPhase::Collective,
                (self.rank, self.world_size),
                text,
            )
            .of(0, call.op, call.tag));
        }
        let Some(transport) = &self.transport else {
            return Err(self.refuse(call, "the group was left already"));
        };
        if inject::collective(self, call.op, call.tag, call.count)? == inject::Flow::Done {
            return Ok(());
        }
        let bytes = call.count * call.kind.elt_size_in_bytes();
        let seq = match self.page.try_borrow_mut() {
            Ok(mut page) => {
                let number = call_site(call.site);
                page.site(number, || format!("{}:{}", call.site.file(), call.site.line()));
                let entry = status_page::Entry {
                    op: call.op,
                    tag: status_page::tag(call.tag),
                    count: call.count as u64,
                    bytes: bytes as u64,
                    dtype: dtype(call.kind).unwrap_or_default(),
                    root: call.root,
                    call_site: number,
                };
                page.enter_in(WORLD, entry)
            }
            Err(_) => return Err(self.refuse(call, "the status page is borrowed while a collective begins")),
        };
        self.last_seq.set(seq);
        // Gloo counts its timeout per message: an operation of several messages may take a multiple of it, hence a limit of its own.
        let limit = i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX).max(1);
        if self.check && self.world_size > 1 {
            self.compare(call, seq, transport, limit).map_err(|failure| self.broke(call, failure))?;
        }
        body(transport, limit).map_err(|failure| self.broke(call, failure))?;
        if let Ok(mut page) = self.page.try_borrow_mut() {
            page.leave();
        }
        Ok(())
    }

    /// Check mode: all ranks say what they are about to do, in a message whose size never differs.
    fn compare(&self, call: &Call<'_>, seq: u64, transport: &Transport, limit: i64) -> Result<(), Failure> {
        let tag = status_page::tag(call.tag);
        let half = |range: std::ops::Range<usize>| {
            let mut word = [0; 8];
            word.copy_from_slice(&tag[range]);
            i64::from_le_bytes(word)
        };
        let mine: [i64; CHECK_WORDS] = [
            seq as i64,
            call.op as i64,
            half(0..8),
            half(8..16),
            call.count as i64,
            dtype(call.kind).unwrap_or_default() as i64,
        ];
        let mut input = Tensor::from_slice(&mine);
        let mut outputs: Vec<Tensor> = (0..self.world_size).map(|_| input.zeros_like()).collect();
        gather(transport, &mut outputs, &mut input, limit)?;
        let mut differing = Vec::new();
        let mut first = None;
        for (rank, output) in (0..self.world_size).zip(&outputs) {
            let mut theirs = [0; CHECK_WORDS];
            output
                .f_copy_data(&mut theirs, CHECK_WORDS)
                .map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))?;
            if theirs != mine {
                differing.push(rank);
                first.get_or_insert(theirs);
            }
        }
        match first {
            None => Ok(()),
            Some(theirs) => Err(Failure::new(
                DistErrorKind::Mismatch,
                format!(
                    "this rank is in {}, but rank {} in {}",
                    describe(&mine),
                    list(&differing),
                    describe(&theirs)
                ),
            )),
        }
    }

    /// A CPU tensor of this size, kept between calls.
    fn scratch(&self, kind: Kind, length: usize) -> Tensor {
        let mut kept = self.scratch.borrow_mut();
        if kept.len() >= SCRATCH_MAX && !kept.contains_key(&(kind, length)) {
            kept.clear();
        }
        kept.entry((kind, length))
            .or_insert_with(|| Tensor::zeros([length as i64], (kind, Device::Cpu)))
            .shallow_clone()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Whoever drops without `destroy` is failing already and has no use for a second error.
        let _ = self.leave(Duration::from_secs(2));
    }
}

fn describe(words: &[i64; CHECK_WORDS]) -> String {
    let op = [Op::None, Op::AllReduce, Op::Broadcast, Op::AllGather, Op::Barrier]
        .into_iter()
        .find(|op| *op as i64 == words[1])
        .unwrap_or_default();
    let dtype = [Dtype::U8, Dtype::I64, Dtype::F32, Dtype::F64]
        .into_iter()
        .find(|dtype| *dtype as i64 == words[5])
        .unwrap_or_default();
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&words[2].to_le_bytes());
    tag[8..].copy_from_slice(&words[3].to_le_bytes());
    format!(
        "collective {}, {} \"{}\" of {} {}",
        words[0],
        op.name(),
        status_page::tag_text(&tag),
        words[4],
        dtype.name()
    )
}

fn gather(
    transport: &Transport,
    outputs: &mut [Tensor],
    input: &mut Tensor,
    limit: i64,
) -> Result<(), Failure> {
    match transport {
        Transport::Alone => {
            for output in outputs {
                copy(output, input)?;
            }
            Ok(())
        }
        Transport::Gloo(gloo) if input.device() == Device::Cpu => gloo.all_gather(outputs, input, limit),
        Transport::Gloo(gloo) => {
            let mut host = input.to_device(Device::Cpu);
            let mut hosts: Vec<Tensor> = outputs.iter().map(|_| host.empty_like()).collect();
            gloo.all_gather(&mut hosts, &mut host, limit)?;
            outputs.iter_mut().zip(&hosts).try_for_each(|(output, host)| copy(output, host))
        }
        Transport::Nccl(nccl) => nccl.all_gather(outputs, input),
    }
}

fn copy(to: &mut Tensor, from: &Tensor) -> Result<(), Failure> {
    no_grad(|| to.f_copy_(from)).map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))
}

/// Runs on the tensor where the transport wants it: Gloo on the CPU, NCCL on its GPU; elsewhere through a copy.
fn on_device(
    transport: &Transport,
    tensor: &mut Tensor,
    body: impl FnOnce(&Transport, &mut Tensor) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let wanted = match transport {
        Transport::Alone => return Ok(()),
        Transport::Gloo(_) => Device::Cpu,
        Transport::Nccl(nccl) => nccl.device(),
    };
    if tensor.device() == wanted {
        return body(transport, tensor);
    }
    let mut staged = no_grad(|| tensor.detach().f_to_device(wanted))
        .map_err(|error| Failure::new(DistErrorKind::Failed, error.to_string()))?;
    body(transport, &mut staged)?;
    copy(tensor, &staged)
}

impl Transport {
    /// Closes the connections; `healthy` is whether all ranks are here to do the same.
    fn close(self, healthy: bool) {
        if let Transport::Nccl(nccl) = self {
            nccl.close(healthy);
        }
    }
}
