//! The process group: collectives over all ranks, each numbered, tagged, on the status page and bounded in
//! time.
//!
//! Owner: the trainer's one thread (the group is neither `Send` nor `Sync`). All ranks must call the same
//! collectives in the same order; with `RANKDECK_CHECK_COLLECTIVES=1` they compare notes before each one and
//! name the first difference instead of failing inside a library.

use super::alone::LoneTransport;
use super::check::compare;
use super::collective::CollectiveNote;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase, NOT_FINISHED};
use super::ffi::RawReduce;
use super::fingerprint::{Hash, call_site};
use super::rendezvous;
use super::settings::GroupSettings;
use super::staging::on_device;
use super::store::Store;
use super::transport::CollectiveTransport;
use crate::inject;
use crate::page::Page;
use rankdeck_proto::message::Phase;
use rankdeck_proto::status_page;
use rankdeck_proto::status_page::{Dtype, GroupId, Op, WORLD};
use std::cell::{Cell, RefCell};
use std::panic::Location;
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
    pub(super) settings: GroupSettings,
    /// Rank and world size of the run, as errors name them.
    pub(super) identity: (u32, u32),
    /// 0 for the group of all ranks; others are numbered in the order in which they are made.
    communicator: u32,
    /// Its counters on the status page.
    shown: GroupId,
    groups: Cell<u32>,
    pub(super) transport: Option<Box<dyn CollectiveTransport>>,
    pub(super) store: Option<Store>,
    pub(super) page: Page,
    last_seq: Cell<u64>,
    chain: Cell<u64>,
    pub(super) broken: RefCell<Option<String>>,
    check: bool,
}

/// A collective about to begin.
pub(super) struct CollectiveCall<'a> {
    pub op: Op,
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
        page.lock().group("world", settings.world_size);
        page.lock().phase(Phase::Rendezvous);
        inject::arm(settings.rank, &page);
        let (store, transport) = if settings.world_size == 1 {
            (None, Box::new(LoneTransport) as Box<dyn CollectiveTransport>)
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
        let call = CollectiveCall {
            op: Op::AllReduce,
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
            None => Box::new(LoneTransport),
            Some(store) => rendezvous::connect(&settings, store, &self.page)
                .map_err(|error| error.seen_by(self.identity))?,
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
    fn agree_on_members(&self, call: &CollectiveCall<'_>, ranks: &[u32]) -> Result<(), DistError> {
        let world_size = self.world_size();
        let mut named = vec![false; world_size as usize];
        for rank in ranks {
            match named.get_mut(*rank as usize) {
                Some(named) if !*named => *named = true,
                _ => {
                    let text = format!("ranks {ranks:?} are not different ranks below {world_size}");
                    return Err(self.refuse(call, &text));
                }
            }
        }
        let list =
            ranks.iter().fold(Hash::new(), |hash, rank| hash.word(u64::from(*rank))).value() as i64 >> 1;
        let mut extremes = [list, -list];
        self.all_reduce_i64(&mut extremes, ReduceOp::Max, "new_group")?;
        if extremes[0] != -extremes[1] {
            let text = format!("the ranks name different members of a new group; this rank names {ranks:?}");
            return Err(self.broke(call, BackendError::new(DistErrorKind::Mismatch, text)));
        }
        Ok(())
    }

    /// This rank's number in this group.
    pub fn rank(&self) -> u32 {
        self.settings.rank
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
        self.transport.as_ref().map_or_else(|| LoneTransport.name(), |transport| transport.name())
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
        let call = CollectiveCall { root: Some(root), ..self.call(Op::Broadcast, tag, tensor)? };
        self.broadcast_in(&call, tensor, root)
    }

    pub(super) fn broadcast_in(
        &self,
        call: &CollectiveCall<'_>,
        tensor: &mut Tensor,
        root: u32,
    ) -> Result<(), DistError> {
        if root >= self.world_size() {
            return Err(self.refuse(call, &format!("the group has no rank {root}, the root")));
        }
        self.run(call, |transport, note, limit| {
            on_device(transport, tensor, |tensor| transport.broadcast(note, tensor, root, limit))
        })
    }

    /// Every rank's tensor, in rank order; all must have the same shape and dtype.
    #[track_caller]
    pub fn all_gather(&self, input: &Tensor, tag: &str) -> Result<Vec<Tensor>, DistError> {
        let mut input = no_grad(|| input.detach().contiguous());
        let call = self.call(Op::AllGather, tag, &input)?;
        let mut outputs: Vec<Tensor> = (0..self.world_size()).map(|_| input.empty_like()).collect();
        self.run(&call, |transport, note, limit| {
            transport.all_gather(note, &mut outputs, &mut input, limit)
        })?;
        Ok(outputs)
    }

    /// The status page that calls are written on.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Waits for all ranks.
    #[track_caller]
    pub fn barrier(&self, tag: &str) -> Result<(), DistError> {
        let call = CollectiveCall {
            op: Op::Barrier,
            tag,
            count: 0,
            kind: Kind::Uint8,
            root: None,
            site: Location::caller(),
        };
        self.run(&call, |transport, note, limit| transport.barrier(note, limit))
    }

    /// Hash over all collectives that this rank has entered: equal on all ranks that agree.
    pub(super) fn chain_hash(&self) -> u64 {
        match self.communicator {
            0 => self.page.lock().body().chain_hash,
            _ => self.chain.get(),
        }
    }

    #[track_caller]
    fn call<'a>(&self, op: Op, tag: &'a str, tensor: &Tensor) -> Result<CollectiveCall<'a>, DistError> {
        let call = CollectiveCall {
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
    pub(super) fn refuse(&self, call: &CollectiveCall<'_>, text: &str) -> DistError {
        DistError::new(DistErrorKind::Usage, DistPhase::Collective, self.identity, text)
            .of(0, call.op, call.tag)
    }

    /// A failure inside a collective: the group is unusable from here on.
    pub(super) fn broke(&self, call: &CollectiveCall<'_>, failure: BackendError) -> DistError {
        self.broke_in(self.last_seq.get(), call.op, call.tag, failure)
    }

    /// The same of a collective that was begun earlier.
    fn broke_at(&self, note: &CollectiveNote, failure: BackendError) -> DistError {
        self.broke_in(note.seq, note.op, &status_page::tag_text(&note.tag), failure)
    }

    fn broke_in(&self, seq: u64, op: Op, tag: &str, failure: BackendError) -> DistError {
        let text = match failure.kind {
            DistErrorKind::Timeout => {
                let bound = self.settings.timeout.as_secs_f64();
                format!("{NOT_FINISHED} {bound:.1} s: {}", failure.text)
            }
            DistErrorKind::Connection => format!("lost another rank: {}", failure.text),
            _ => failure.text,
        };
        let mut error =
            DistError::new(failure.kind, DistPhase::Collective, self.identity, text).of(seq, op, tag);
        if let Some(hint) = failure.hint {
            error = error.with_hint(hint);
        }
        self.broken.borrow_mut().get_or_insert_with(|| error.to_string());
        error
    }

    /// An all-reduce that the group's device does by itself: libtorch's next operation there waits for it,
    /// and the host does not. Elsewhere this is [`ProcessGroup::all_reduce`]. [`ProcessGroup::settle`], and
    /// every other collective, waits for the end and tells of failures.
    #[track_caller]
    pub fn all_reduce_queued(&self, tensor: &mut Tensor, op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let (Some(_), ReduceOp::Sum | ReduceOp::Avg) = (self.queue(tensor), op) else {
            return self.all_reduce(tensor, op, tag);
        };
        self.all_reduce_begun(tensor, tag)?;
        self.join(tag)?;
        if op == ReduceOp::Avg {
            let scaled = no_grad(|| tensor.f_div_scalar_(f64::from(self.world_size())).map(drop));
            scaled.map_err(|error| {
                let call = self.call(Op::AllReduce, tag, tensor);
                let failure = BackendError::new(DistErrorKind::Failed, error.to_string());
                call.map_or_else(|refused| refused, |call| self.broke(&call, failure))
            })?;
        }
        Ok(())
    }

    /// Begins a sum over all ranks. Until [`ProcessGroup::join`], libtorch's operations go on beside it: none
    /// may touch the tensor. Where the device does not do it by itself, it is done at once.
    #[track_caller]
    pub fn all_reduce_begun(&self, tensor: &mut Tensor, tag: &str) -> Result<(), DistError> {
        let Some(transport) = self.queue(tensor) else { return self.all_reduce(tensor, ReduceOp::Sum, tag) };
        let call = self.call(Op::AllReduce, tag, tensor)?;
        self.refuse_broken(&call)?;
        if inject::collective(self, call.op, call.tag, call.count)? == inject::CollectiveFate::Replaced {
            return Ok(());
        }
        if let Some((note, failure)) = transport.failure() {
            return Err(self.broke_at(&note, failure));
        }
        let entry = self.entry(&call);
        let note = self.note(&call, self.last_seq.get() + 1);
        let begun = transport.begin_all_reduce(&note, (self.shown, entry), tensor, RawReduce::Sum);
        begun.map_err(|failure| self.broke(&call, failure))
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
        joined.map_err(|failure| self.broke_in(self.last_seq.get(), Op::AllReduce, tag, failure))
    }

    /// Waits until every collective that was begun is done, or has failed.
    pub fn settle(&self) -> Result<(), DistError> {
        match self.transport.as_deref() {
            Some(transport) => transport.settle().map_err(|(note, failure)| self.broke_at(&note, failure)),
            None => Ok(()),
        }
    }

    fn refuse_broken(&self, call: &CollectiveCall<'_>) -> Result<(), DistError> {
        match self.broken.borrow().as_deref() {
            None => Ok(()),
            Some(earlier) => {
                let text = format!("the group failed earlier ({earlier})");
                let error = DistError::new(DistErrorKind::Failed, DistPhase::Collective, self.identity, text);
                Err(error.of(0, call.op, call.tag))
            }
        }
    }

    /// Runs one collective: refuses it when the group is broken, numbers it, shows it, checks it, leaves it.
    fn run(
        &self,
        call: &CollectiveCall<'_>,
        body: impl FnOnce(&dyn CollectiveTransport, &CollectiveNote, i64) -> Result<(), BackendError>,
    ) -> Result<(), DistError> {
        self.refuse_broken(call)?;
        let Some(transport) = self.transport.as_deref() else {
            return Err(self.refuse(call, "the group was left already"));
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
    fn entry(&self, call: &CollectiveCall<'_>) -> status_page::Entry {
        let number = call_site(call.site);
        self.page.lock().site(number, || format!("{}:{}", call.site.file(), call.site.line()));
        status_page::Entry {
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
    fn note(&self, call: &CollectiveCall<'_>, seq: u64) -> CollectiveNote {
        self.last_seq.set(seq);
        let (tag, dtype) = (status_page::tag(call.tag), dtype(call.kind).unwrap_or_default());
        let note = CollectiveNote { seq, op: call.op, tag, count: call.count, dtype };
        self.chain.set(note.words().iter().fold(self.chain.get(), |chain, word| {
            (chain ^ word.cast_unsigned()).wrapping_mul(0x0000_0100_0000_01b3)
        }));
        note
    }
}
