//! The process group: collectives over all ranks, each numbered, tagged, shown on the status page and bounded
//! in time.
//!
//! The group belongs to one thread: it is neither `Send` nor `Sync`. All ranks must call the same collectives
//! in the same order; with `RANKDECK_CHECK_COLLECTIVES=1` they compare notes before each one and name the
//! first difference instead of failing inside a library.

use super::bounded::within;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase, NOT_FINISHED};
use super::ffi::ReduceKernel;
use super::fingerprint::{Hash, call_site};
use super::membership::Interrupt;
use super::store::{Store, list};
use super::transport::{
    CollectiveNote, CollectiveTransport, SingleRankTransport, WORDS, describe, on_device,
};
use super::{BackendKind, GroupSettings, rendezvous};
use crate::inject::{self, Collectives};
use crate::support::page::StatusPage;
use rankdeck_proto::message::Phase;
use rankdeck_proto::status_page::{self, CollectiveOp, Dtype, GroupId, WORLD, tag};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::panic::Location;
use std::time::{Duration, Instant};
use tch::kind::Element;
use tch::{Kind, Tensor, no_grad};

/// How the values of all ranks are combined.
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

/// All ranks of a run, or some of them ([`ProcessGroup::new_group`]). Dropping it without
/// [`ProcessGroup::destroy`] leaves within two seconds.
pub struct ProcessGroup {
    /// Of this group: `rank` and `world_size` are this group's own.
    settings: GroupSettings,
    /// Rank and world size of the run, as errors name them.
    identity: (u32, u32),
    /// 0 for the group of all ranks; others are numbered in the order in which they are made.
    communicator: u32,
    /// Its counters on the status page.
    shown: GroupId,
    groups: Cell<u32>,
    transport: Option<Box<dyn CollectiveTransport>>,
    store: Option<Store>,
    page: StatusPage,
    last_seq: Cell<u64>,
    chain: Cell<u64>,
    broken: RefCell<Option<String>>,
    check: bool,
}

/// Where and as what a group forms again, with other members.
pub(crate) struct Reformation {
    /// Rank and world size of the run, as errors name them.
    pub identity: (u32, u32),
    /// Changes of the members since the launch.
    pub epoch: u32,
    /// Tells this group from every other one of the epoch.
    pub nonce: u64,
    /// Where the store is; `None` in a group of one.
    pub place: Option<SocketAddr>,
    /// The store's socket, on the rank that serves it.
    pub listener: Option<TcpListener>,
}

/// A collective about to begin.
struct PlannedCollective<'a> {
    pub op: CollectiveOp,
    pub tag: &'a str,
    pub count: usize,
    pub kind: Kind,
    /// Source of a broadcast.
    pub root: Option<u32>,
    pub site: &'static Location<'static>,
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
    /// Finds the other ranks and connects to them, within `settings.timeout` for each of the two steps. A
    /// world of one needs no network.
    pub fn connect(settings: &GroupSettings, page: StatusPage) -> Result<ProcessGroup, DistError> {
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
                "rank {} is out of range for world size {}",
                settings.rank, settings.world_size
            )));
        }
        if settings.timeout.is_zero() {
            return Err(usage("the timeout is 0".into()));
        }
        page.lock().group("world", settings.world_size);
        page.lock().update(|body| (body.membership_epoch, body.member_count) = (0, settings.world_size));
        page.lock().phase(Phase::Rendezvous);
        inject::arm(settings.rank, &page);
        let (store, transport) = if settings.world_size == 1 {
            (None, Box::new(SingleRankTransport) as Box<dyn CollectiveTransport>)
        } else {
            let store = rendezvous::join(settings, || page.lock().progress())?;
            let transport = rendezvous::connect(settings, &store, &page)?;
            (Some(store), transport)
        };
        let last_seq = page.lock().body().entered;
        Ok(ProcessGroup {
            identity: (settings.rank, settings.world_size),
            settings: settings.clone(),
            communicator: 0,
            shown: WORLD,
            groups: Cell::new(0),
            transport: Some(transport),
            store,
            page,
            last_seq: Cell::new(last_seq),
            chain: Cell::new(0),
            broken: RefCell::new(None),
            check: std::env::var("RANKDECK_CHECK_COLLECTIVES").is_ok_and(|value| value == "1"),
        })
    }

    /// Forms a group again after its members have changed. `settings` have this rank's new number and the new world
    /// size, and `limit` bounds the forming alone.
    pub(crate) fn reform(
        settings: &GroupSettings,
        reformation: Reformation,
        page: StatusPage,
        limit: Duration,
    ) -> Result<ProcessGroup, DistError> {
        let Reformation { identity, epoch, nonce, place, listener } = reformation;
        page.lock().regroup(epoch, settings.world_size);
        page.lock().phase(Phase::Rendezvous);
        let mut settings = settings.clone();
        if let Some(place) = place {
            // Rank 0's host may be gone.
            (settings.master_addr, settings.master_port) = (place.ip().to_string(), place.port());
        }
        let soon = GroupSettings { timeout: limit.min(settings.timeout), ..settings.clone() };
        let named = |error: DistError| error.with_identity(identity);
        let (store, transport) = match place.filter(|_| settings.world_size > 1) {
            None => (None, Box::new(SingleRankTransport) as Box<dyn CollectiveTransport>),
            Some(place) => {
                let scope = format!("/{epoch}.{nonce:016x}");
                let store = rendezvous::join_again(place, listener, &scope, &soon).map_err(named)?;
                // The limit of NCCL's collectives is its communicator's own.
                let settings = if settings.backend == BackendKind::Nccl { &settings } else { &soon };
                let transport = rendezvous::connect(settings, &store, &page).map_err(named)?;
                (Some(store), transport)
            }
        };
        Ok(ProcessGroup {
            identity,
            settings,
            communicator: 0,
            shown: WORLD,
            groups: Cell::new(0),
            transport: Some(transport),
            store,
            page,
            last_seq: Cell::new(0),
            chain: Cell::new(0),
            broken: RefCell::new(None),
            check: std::env::var("RANKDECK_CHECK_COLLECTIVES").is_ok_and(|value| value == "1"),
        })
    }

    /// Gives the group up: dropping it closes its connections at once.
    pub(crate) fn abandon(self) {
        self.broken.borrow_mut().get_or_insert_with(|| "it was given up".into());
    }

    /// Whether the group is whole, for long work between two collectives.
    ///
    /// Errors: another rank is gone, or the members change.
    pub(crate) fn check_members(&self) -> Result<(), DistError> {
        match self.settings.interrupt.as_ref().is_some_and(Interrupt::is_set) {
            false => Ok(()),
            true => {
                let text = "lost another rank: the members of the group change";
                let error =
                    DistError::new(DistErrorKind::Connection, DistPhase::Collective, self.identity, text);
                self.broken.borrow_mut().get_or_insert_with(|| error.to_string());
                Err(error)
            }
        }
    }

    /// A group of some ranks, `ranks` in the order of their new numbers, with connections, sequence numbers
    /// and a failure of its own. All ranks of this group call it with the same list, in the same order as
    /// every other collective (one `all_reduce`, tag `new_group`, compares the lists); those that are not in
    /// it get `None`. Leave it before the group that it was made from.
    ///
    /// On the status page it has counters of its own, so that the numbers by which the console compares the
    /// members stay comparable.
    #[track_caller]
    pub fn new_group(&self, ranks: &[u32]) -> Result<Option<ProcessGroup>, DistError> {
        let site = Location::caller();
        let call = PlannedCollective {
            op: CollectiveOp::AllReduce,
            tag: "new_group",
            count: ranks.len(),
            kind: Kind::Int64,
            root: None,
            site,
        };
        self.agree_on_members(&call, ranks)?;
        let number = self.groups.get() + 1;
        self.groups.set(number);
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else { return Ok(None) };
        let settings =
            GroupSettings { rank: rank as u32, world_size: ranks.len() as u32, ..self.settings.clone() };
        let store = self
            .store
            .as_ref()
            .filter(|_| ranks.len() > 1)
            .map(|store| store.within(&format!("group{number}")));
        let transport = match &store {
            None => Box::new(SingleRankTransport),
            Some(store) => rendezvous::connect(&settings, store, &self.page)
                .map_err(|error| error.with_identity(self.identity))?,
        };
        // Unique per run, also for groups made from groups.
        let communicator = self.communicator * 1000 + number;
        let shown = self.page.lock().group(&format!("group{communicator}"), settings.world_size);
        Ok(Some(ProcessGroup {
            settings,
            identity: self.identity,
            communicator,
            shown,
            groups: Cell::new(0),
            transport: Some(transport),
            store,
            page: self.page.clone(),
            last_seq: Cell::new(0),
            chain: Cell::new(0),
            broken: RefCell::new(None),
            check: self.check,
        }))
    }

    /// Refuses a list of ranks that is wrong, or that differs between the ranks.
    #[track_caller]
    fn agree_on_members(&self, call: &PlannedCollective<'_>, ranks: &[u32]) -> Result<(), DistError> {
        let world_size = self.world_size();
        let mut named = vec![false; world_size as usize];
        for rank in ranks {
            match named.get_mut(*rank as usize) {
                Some(named) if !*named => *named = true,
                _ => {
                    let text = format!("ranks {ranks:?} are not distinct ranks below {world_size}");
                    return Err(self.refuse(call, &text));
                }
            }
        }
        let list =
            ranks.iter().fold(Hash::new(), |hash, rank| hash.word(u64::from(*rank))).value() as i64 >> 1;
        let mut extremes = [list, -list];
        self.all_reduce_i64(&mut extremes, ReduceOp::Max, "new_group")?;
        if extremes[0] != -extremes[1] {
            let text = format!("the ranks disagree on the members of a new group; this rank has {ranks:?}");
            return Err(self.broke(call, BackendError::new(DistErrorKind::Mismatch, text)));
        }
        Ok(())
    }

    /// This rank's number in this group.
    pub fn rank(&self) -> u32 {
        self.settings.rank
    }

    /// This rank's number in the run, whatever group this is.
    pub(crate) fn run_rank(&self) -> u32 {
        self.identity.0
    }

    /// Ranks in the group.
    pub fn world_size(&self) -> u32 {
        self.settings.world_size
    }

    /// Number of the collective entered last, counted within this group.
    pub fn entered(&self) -> u64 {
        self.last_seq.get()
    }

    /// 0 for the group of all ranks of the run.
    pub fn communicator(&self) -> u32 {
        self.communicator
    }

    /// Library and version, such as `tcp (encrypted)` or `nccl 2.28.9`.
    pub fn backend_name(&self) -> String {
        self.transport.as_ref().map_or_else(|| SingleRankTransport.name(), |transport| transport.name())
    }

    /// Reduces a contiguous tensor in place, on all ranks.
    #[track_caller]
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let call = self.call(CollectiveOp::AllReduce, tag, tensor)?;
        if op == ReduceOp::Avg && !matches!(tensor.kind(), Kind::Float | Kind::Double) {
            return Err(self.refuse(&call, "averages of integers are not supported: use a sum"));
        }
        let raw = match op {
            ReduceOp::Sum | ReduceOp::Avg => ReduceKernel::Sum,
            ReduceOp::Min => ReduceKernel::Min,
            ReduceOp::Max => ReduceKernel::Max,
        };
        self.run(&call, |transport, note, limit| {
            on_device(transport, tensor, |tensor| transport.all_reduce(note, tensor, raw, limit))
        })?;
        if op == ReduceOp::Avg && self.world_size() > 1 {
            no_grad(|| tensor.f_div_scalar_(f64::from(self.world_size())).map(|_| ())).map_err(|error| {
                self.broke(&call, BackendError::new(DistErrorKind::Failed, error.to_string()))
            })?;
        }
        Ok(())
    }

    /// Copies a contiguous tensor of `root` over those of all ranks.
    #[track_caller]
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32, tag: &str) -> Result<(), DistError> {
        let call = PlannedCollective { root: Some(root), ..self.call(CollectiveOp::Broadcast, tag, tensor)? };
        self.broadcast_in(&call, tensor, root)
    }

    fn broadcast_in(
        &self,
        call: &PlannedCollective<'_>,
        tensor: &mut Tensor,
        root: u32,
    ) -> Result<(), DistError> {
        if root >= self.world_size() {
            return Err(self.refuse(call, &format!("root rank {root} is out of range")));
        }
        self.run(call, |transport, note, limit| {
            on_device(transport, tensor, |tensor| transport.broadcast(note, tensor, root, limit))
        })
    }

    /// Every rank's tensor, in rank order; all must have the same shape and dtype.
    #[track_caller]
    pub fn all_gather(&self, input: &Tensor, tag: &str) -> Result<Vec<Tensor>, DistError> {
        let mut input = no_grad(|| input.detach().contiguous());
        let call = self.call(CollectiveOp::AllGather, tag, &input)?;
        let mut outputs: Vec<Tensor> = (0..self.world_size()).map(|_| input.empty_like()).collect();
        self.run(&call, |transport, note, limit| {
            transport.all_gather(note, &mut outputs, &mut input, limit)
        })?;
        Ok(outputs)
    }

    /// The status page that calls are written on.
    pub fn page(&self) -> &StatusPage {
        &self.page
    }

    /// Waits for all ranks.
    #[track_caller]
    pub fn barrier(&self, tag: &str) -> Result<(), DistError> {
        let call = PlannedCollective {
            op: CollectiveOp::Barrier,
            tag,
            count: 0,
            kind: Kind::Uint8,
            root: None,
            site: Location::caller(),
        };
        self.run(&call, |transport, note, limit| transport.barrier(note, limit))
    }

    /// Hash over all collectives that this rank has entered: equal on all ranks that agree.
    pub(crate) fn chain_hash(&self) -> u64 {
        match self.communicator {
            0 => self.page.lock().body().chain_hash,
            _ => self.chain.get(),
        }
    }

    #[track_caller]
    fn call<'a>(
        &self,
        op: CollectiveOp,
        tag: &'a str,
        tensor: &Tensor,
    ) -> Result<PlannedCollective<'a>, DistError> {
        let call = PlannedCollective {
            op,
            tag,
            count: tensor.numel(),
            kind: tensor.kind(),
            root: None,
            site: Location::caller(),
        };
        if !tensor.is_contiguous() {
            return Err(self.refuse(&call, "the tensor is not contiguous"));
        }
        if dtype(call.kind).is_none() {
            return Err(self.refuse(&call, &format!("tensors of kind {:?} are not supported", call.kind)));
        }
        Ok(call)
    }

    /// A mistake seen before anything was sent: the group stays usable.
    fn refuse(&self, call: &PlannedCollective<'_>, text: &str) -> DistError {
        DistError::new(DistErrorKind::Usage, DistPhase::Collective, self.identity, text)
            .in_collective(0, call.op, call.tag)
    }

    /// A failure inside a collective: the group is unusable from here on.
    fn broke(&self, call: &PlannedCollective<'_>, failure: BackendError) -> DistError {
        self.broke_in(self.last_seq.get(), call.op, call.tag, failure)
    }

    /// The same of a collective that was begun earlier.
    fn broke_at(&self, note: &CollectiveNote, failure: BackendError) -> DistError {
        self.broke_in(note.seq, note.op, &status_page::tag_text(&note.tag), failure)
    }

    fn broke_in(&self, seq: u64, op: CollectiveOp, tag: &str, failure: BackendError) -> DistError {
        let text = match failure.kind {
            DistErrorKind::Timeout => {
                let bound = self.settings.timeout.as_secs_f64();
                format!("{NOT_FINISHED} {bound:.1} s: {}", failure.text)
            }
            DistErrorKind::Connection => format!("lost another rank: {}", failure.text),
            _ => failure.text,
        };
        let mut error = DistError::new(failure.kind, DistPhase::Collective, self.identity, text)
            .in_collective(seq, op, tag);
        if let Some(hint) = failure.hint {
            error = error.with_hint(hint);
        }
        self.broken.borrow_mut().get_or_insert_with(|| error.to_string());
        error
    }

    /// An all-reduce that the group's device does by itself: libtorch's next operation there waits for it,
    /// and the host does not. Elsewhere this is [`ProcessGroup::all_reduce`]. [`ProcessGroup::settle`], and
    /// every other collective, waits for the end and returns failures.
    #[track_caller]
    pub fn all_reduce_queued(&self, tensor: &mut Tensor, op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let (Some(_), ReduceOp::Sum | ReduceOp::Avg) = (self.queue(tensor), op) else {
            return self.all_reduce(tensor, op, tag);
        };
        self.start_all_reduce(tensor, tag)?;
        self.join(tag)?;
        if op == ReduceOp::Avg {
            let scaled = no_grad(|| tensor.f_div_scalar_(f64::from(self.world_size())).map(drop));
            scaled.map_err(|error| {
                let call = self.call(CollectiveOp::AllReduce, tag, tensor);
                let failure = BackendError::new(DistErrorKind::Failed, error.to_string());
                call.map_or_else(|refused| refused, |call| self.broke(&call, failure))
            })?;
        }
        Ok(())
    }

    /// Starts a sum over all ranks. Until [`ProcessGroup::join`], libtorch's operations overlap with it: none
    /// may touch the tensor. Where the device does not do it by itself, it is done at once.
    #[track_caller]
    pub(crate) fn start_all_reduce(&self, tensor: &mut Tensor, tag: &str) -> Result<(), DistError> {
        let Some(transport) = self.queue(tensor) else { return self.all_reduce(tensor, ReduceOp::Sum, tag) };
        let call = self.call(CollectiveOp::AllReduce, tag, tensor)?;
        self.refuse_broken(&call)?;
        if inject::collective(self, call.op, call.tag, call.count)? == inject::CollectiveFate::Replaced {
            return Ok(());
        }
        if let Some((note, failure)) = transport.failure() {
            return Err(self.broke_at(&note, failure));
        }
        let entry = self.entry(&call);
        let note = self.note(&call, self.last_seq.get() + 1);
        let started = transport.start_all_reduce(&note, (self.shown, entry), tensor, ReduceKernel::Sum);
        started.map_err(|failure| self.broke(&call, failure))
    }

    /// The transport, where it does by itself what is done with this tensor.
    fn queue(&self, tensor: &Tensor) -> Option<&dyn CollectiveTransport> {
        self.transport.as_deref().filter(|transport| {
            transport.queues() && transport.device() == Some(tensor.device()) && !self.check
        })
    }

    /// libtorch's operations from here on come after everything that was begun.
    pub fn join(&self, tag: &str) -> Result<(), DistError> {
        let joined = self.transport.as_deref().map_or(Ok(()), |transport| transport.join());
        joined.map_err(|failure| self.broke_in(self.last_seq.get(), CollectiveOp::AllReduce, tag, failure))
    }

    /// Waits until every collective that was begun is done, or has failed.
    pub fn settle(&self) -> Result<(), DistError> {
        match self.transport.as_deref() {
            Some(transport) => transport.settle().map_err(|(note, failure)| self.broke_at(&note, failure)),
            None => Ok(()),
        }
    }

    fn refuse_broken(&self, call: &PlannedCollective<'_>) -> Result<(), DistError> {
        self.check_members().map_err(|error| error.in_collective(0, call.op, call.tag))?;
        match self.broken.borrow().as_deref() {
            None => Ok(()),
            Some(earlier) => {
                let text = format!("the group failed earlier ({earlier})");
                let error = DistError::new(DistErrorKind::Failed, DistPhase::Collective, self.identity, text);
                Err(error.in_collective(0, call.op, call.tag))
            }
        }
    }

    /// Runs one collective: refuses it when the group is broken, numbers it, shows it, checks it, leaves it.
    fn run(
        &self,
        call: &PlannedCollective<'_>,
        body: impl FnOnce(&dyn CollectiveTransport, &CollectiveNote, i64) -> Result<(), BackendError>,
    ) -> Result<(), DistError> {
        self.refuse_broken(call)?;
        let Some(transport) = self.transport.as_deref() else {
            return Err(self.refuse(call, "the process group is already closed"));
        };
        if inject::collective(self, call.op, call.tag, call.count)? == inject::CollectiveFate::Replaced {
            return Ok(());
        }
        self.settle()?;
        let entry = self.entry(call);
        let seq = self.page.lock().enter_in(self.shown, entry);
        let note = self.note(call, seq);
        let limit = i64::try_from(self.settings.timeout.as_millis()).unwrap_or(i64::MAX).max(1);
        if self.check && self.world_size() > 1 {
            compare(&note, transport, self.world_size(), limit)
                .map_err(|failure| self.broke(call, failure))?;
        }
        body(transport, &note, limit).map_err(|failure| self.broke(call, failure))?;
        self.page.lock().leave();
        Ok(())
    }

    /// A collective as the status page shows it.
    fn entry(&self, call: &PlannedCollective<'_>) -> status_page::CollectiveStart {
        let number = call_site(call.site);
        self.page.lock().site(number, || format!("{}:{}", call.site.file(), call.site.line()));
        status_page::CollectiveStart {
            op: call.op,
            tag: status_page::tag(call.tag),
            count: call.count as u64,
            bytes: (call.count * call.kind.elt_size_in_bytes()) as u64,
            dtype: dtype(call.kind).unwrap_or_default(),
            root: call.root,
            call_site: number,
        }
    }

    /// Counts collective number `seq`.
    fn note(&self, call: &PlannedCollective<'_>, seq: u64) -> CollectiveNote {
        self.last_seq.set(seq);
        let (tag, dtype) = (status_page::tag(call.tag), dtype(call.kind).unwrap_or_default());
        let note = CollectiveNote { seq, op: call.op, tag, count: call.count, dtype };
        self.chain.set(note.words().iter().fold(self.chain.get(), |chain, word| {
            (chain ^ word.cast_unsigned()).wrapping_mul(0x0000_0100_0000_01b3)
        }));
        note
    }
}

/// Bytes of an object that travel in one collective; longer ones need two.
const FRAME: usize = 4096;
const FRAME_HEAD: usize = 8;
/// Largest object.
const OBJECT_MAX: usize = 64 << 20;

impl ProcessGroup {
    /// Reduces integers in place, exactly; averages are not supported.
    #[track_caller]
    pub fn all_reduce_i64(&self, values: &mut [i64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        self.all_reduce_values(values, op, tag)
    }

    /// Reduces 64-bit floats in place.
    #[track_caller]
    pub fn all_reduce_f64(&self, values: &mut [f64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        self.all_reduce_values(values, op, tag)
    }

    #[track_caller]
    fn all_reduce_values<T: Element>(
        &self,
        values: &mut [T],
        op: ReduceOp,
        tag: &str,
    ) -> Result<(), DistError> {
        let mut tensor = Tensor::from_slice(values);
        self.all_reduce(&mut tensor, op, tag)?;
        let length = values.len();
        tensor.copy_data(values, length);
        Ok(())
    }

    /// Every rank's words, in rank order; all ranks must give the same number. Floats travel as their bits.
    #[track_caller]
    pub(crate) fn all_gather_words(&self, own: &[u64], tag: &str) -> Result<Vec<Vec<u64>>, DistError> {
        let words: Vec<i64> = own.iter().map(|word| word.cast_signed()).collect();
        let read = |tensor: &Tensor| {
            let mut words = vec![0_i64; own.len()];
            tensor.copy_data(&mut words, own.len());
            words.into_iter().map(i64::cast_unsigned).collect()
        };
        Ok(self.all_gather(&Tensor::from_slice(&words), tag)?.iter().map(read).collect())
    }

    /// Copies a value of `root` to all ranks, as JSON. The root too gets the decoded value, so that all ranks
    /// are equal to the bit. One collective up to 4 KiB, else two.
    #[track_caller]
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        value: &mut T,
        root: u32,
        tag: &str,
    ) -> Result<(), DistError> {
        let site = Location::caller();
        let call = |count| PlannedCollective {
            op: CollectiveOp::Broadcast,
            tag,
            count,
            kind: Kind::Uint8,
            root: Some(root),
            site,
        };
        let json = if self.rank() == root {
            serde_json::to_vec(value)
                .map_err(|error| self.refuse(&call(0), &format!("cannot serialize the value: {error}")))?
        } else {
            Vec::new()
        };
        if json.len() > OBJECT_MAX {
            return Err(self.refuse(&call(json.len()), "the value is too long"));
        }
        let mut frame = [0; FRAME];
        let head = (json.len() as u64).to_le_bytes();
        frame.iter_mut().zip(head.iter().chain(&json)).for_each(|(to, from)| *to = *from);
        self.broadcast_bytes(&call(FRAME), &mut frame, root)?;
        let length = frame.first_chunk().map_or(0, |head| u64::from_le_bytes(*head)) as usize;
        let decode = |bytes: &[u8]| {
            serde_json::from_slice(bytes).map_err(|error| {
                self.broke(
                    &call(length),
                    BackendError::new(DistErrorKind::Mismatch, format!("cannot parse the value: {error}")),
                )
            })
        };
        *value = if length <= FRAME - FRAME_HEAD {
            decode(&frame[FRAME_HEAD..FRAME_HEAD + length])?
        } else if length <= OBJECT_MAX {
            let mut whole = json;
            whole.resize(length, 0);
            self.broadcast_bytes(&call(length), &mut whole, root)?;
            decode(&whole)?
        } else {
            let text = format!("rank {root} announced an object of {length} bytes");
            return Err(self.broke(&call(length), BackendError::new(DistErrorKind::Mismatch, text)));
        };
        Ok(())
    }

    fn broadcast_bytes(
        &self,
        call: &PlannedCollective<'_>,
        bytes: &mut [u8],
        root: u32,
    ) -> Result<(), DistError> {
        let mut tensor = Tensor::from_slice(bytes);
        self.broadcast_in(call, &mut tensor, root)?;
        let length = bytes.len();
        tensor.copy_data(bytes, length);
        Ok(())
    }
}

impl ProcessGroup {
    /// Leaves the group. Ranks wait for each other's last use of the connections, but never longer than
    /// `within`; a group that failed before is abandoned at once.
    pub fn destroy(mut self, within: Duration) -> Result<(), DistError> {
        inject::here(inject::Hook::Teardown);
        self.leave(within)
    }

    fn leave(&mut self, limit: Duration) -> Result<(), DistError> {
        let (Some(transport), store) = (self.transport.take(), self.store.take()) else { return Ok(()) };
        let Some(store) = store else { return Ok(()) };
        let world_size = self.world_size();
        let serves = store.is_served_here();
        let identity = self.identity;
        let healthy = self.broken.borrow().is_none();
        if healthy {
            // The watch distinguishes ranks that wait here from ranks that have not arrived.
            self.page.lock().amount(1, 1);
        }
        // What is left of the limit is for closing the connections.
        let deadline = Instant::now() + limit.mul_f64(0.75);
        let result = within(
            limit,
            move |_| -> Result<i64, BackendError> {
                let mut left = i64::from(world_size);
                if healthy {
                    // Closing a connection may discard data that the peer has not read yet.
                    store.add("leaving", 1)?;
                    left = store.wait_count("leaving", i64::from(world_size), deadline, || {})?;
                }
                transport.close(healthy);
                if healthy && left == i64::from(world_size) {
                    // The store goes with the rank that serves it, which goes last.
                    if serves {
                        store.wait_count("left", i64::from(world_size) - 1, deadline, || {})?;
                    } else {
                        // That rank may stop waiting at its own deadline, and its store with it.
                        let _ = store.add("left", 1);
                    }
                }
                Ok(left)
            },
            || {},
        );
        let error = |kind, text: String| Err(DistError::new(kind, DistPhase::Teardown, identity, text));
        match result {
            Some(Ok(left)) if left == i64::from(world_size) => Ok(()),
            Some(Ok(left)) => error(
                DistErrorKind::Timeout,
                format!("only {left} of {world_size} ranks left within {:.1} s", limit.as_secs_f64()),
            ),
            Some(Err(failure)) => error(failure.kind, failure.text),
            None => error(
                DistErrorKind::Timeout,
                format!("connections not closed within {:.1} s", limit.as_secs_f64()),
            ),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A rank that drops its group without `destroy` is failing already; a second error would not help.
        let _ = self.leave(Duration::from_secs(2));
    }
}

/// The comparison itself, which is the same call for all ranks, whatever they are about to do.
fn comparison() -> CollectiveNote {
    CollectiveNote { seq: 0, op: CollectiveOp::AllGather, tag: tag("check"), count: WORDS, dtype: Dtype::I64 }
}

/// Compares the notes of all ranks; an error names the ranks that differ from this one.
fn compare(
    note: &CollectiveNote,
    transport: &dyn CollectiveTransport,
    world_size: u32,
    limit_ms: i64,
) -> Result<(), BackendError> {
    let own = note.words();
    let mut input = Tensor::from_slice(&own);
    let mut outputs: Vec<Tensor> = (0..world_size).map(|_| input.zeros_like()).collect();
    transport.all_gather(&comparison(), &mut outputs, &mut input, limit_ms)?;
    let mut differing = Vec::new();
    let mut first = None;
    for (rank, output) in (0..world_size).zip(&outputs) {
        let mut theirs = [0; WORDS];
        output
            .f_copy_data(&mut theirs, WORDS)
            .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))?;
        if theirs != own {
            differing.push(rank);
            first.get_or_insert(theirs);
        }
    }
    let Some(theirs) = first else { return Ok(()) };
    let text =
        format!("this rank is in {}, but rank {} in {}", describe(&own), list(&differing), describe(&theirs));
    Err(BackendError::new(DistErrorKind::Mismatch, text))
}

impl Collectives for ProcessGroup {
    type Error = DistError;

    fn world_size(&self) -> u32 {
        ProcessGroup::world_size(self)
    }

    fn sum(&self, tensor: &mut Tensor, tag: &str) -> Result<(), DistError> {
        self.all_reduce(tensor, ReduceOp::Sum, tag)
    }

    fn broadcast(&self, tensor: &mut Tensor, root: u32, tag: &str) -> Result<(), DistError> {
        ProcessGroup::broadcast(self, tensor, root, tag)
    }

    fn barrier(&self, tag: &str) -> Result<(), DistError> {
        ProcessGroup::barrier(self, tag)
    }
}
