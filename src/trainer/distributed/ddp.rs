//! Data-parallel training: equal weights at the start, equal gradients at each update, and a check of both.
//!
//! The gradients of all parameters live in one flat buffer per dtype and device, and each parameter's `.grad`
//! is a view of it; autograd accumulates in place. What is exchanged is that buffer, so the layout never
//! depends on which parameters a loss used (PyTorch's DDP calls the difference `find_unused_parameters`;
//! CleanRL's flat reduce skips them and can then disagree between ranks).
//!
//! Invariants:
//! - After `new`, parameters and buffers are bit-equal on all ranks.
//! - `reduce` exchanges the same sizes in the same order on all ranks, whatever the data.
//! - DDP-3: gradients are averaged ([`Averaging`]), and clipped after that.
//! - DDP-5: gradients that are averaged in two parts, one of them during backward, are exchanged in
//!   the same buckets and come to the same numbers as those that are averaged at once.
//! - DDP-4: an optimizer that replaced a `.grad` (`zero_grad` setting it to none) loses nothing: the next
//!   `reduce` copies the new one.
//!
//! To accumulate over several backward passes without exchanging (PyTorch's `no_sync`), call `reduce` after
//! the last one only. Only gradients behind a [cut](Ddp::split_at) are exchanged during backward.
//!
//! Data parallelism inside one process (PyTorch's `DataParallel`): splits a batch over several devices and
//! gathers gradients on the first.
//!
//! Each call copies the parameters to every device, runs the forward pass there on that device's rows, and
//! concatenates the outputs on the first device, where the loss is computed. Both copies are differentiable,
//! so one backward pass leaves the sum of all devices' gradients in the first device's parameters. What
//! follows (DDP over ranks, clipping, optimizer) sees a model on one device.
//!
//! Invariants:
//! - DP-1: outputs and gradients equal those of one device up to the order of sums.
//! - DP-2: rows keep their order; the first devices get one row more where the batch does not divide; a batch
//!   smaller than the number of devices uses the first devices only.
//!
//! Work on different GPUs overlaps, because launches do not wait. On CPU "devices" the replicas run one after
//! the other: for tests, not for speed.

use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::fingerprint::{self, Digest, Hash};
use super::group::{ProcessGroup, ReduceOp};
use super::{ffi, memory};
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// PyTorch's clip_grad_norm_ adds this to the norm.
const CLIP_EPSILON: f64 = 1e-6;

/// What the sum of a parameter's gradients over the ranks is divided by. The two rules differ only where some
/// rank's loss did not use the parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Averaging {
    /// By the world size, as PyTorch's DDP and CleanRL do: a rank that did not use a parameter counts as one
    /// with a gradient of zero.
    #[default]
    World,
    /// By the number of ranks that used the parameter, as DI-engine does. A flag per parameter, 1 or 0,
    /// follows the gradients in the last bucket, so the number of collectives stays the same. A parameter
    /// that no rank used keeps a gradient of zero.
    Contributors,
}

/// Which gradients are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientPart {
    /// All, after backward.
    Whole,
    /// Those behind the split, which backward has computed: started, to overlap with the rest of backward.
    Late,
    /// Those in front of it, after backward; all are averaged then.
    Early,
}

/// A model's parameters and buffers, kept equal over all ranks.
pub struct Ddp {
    flats: Vec<FlatGradients>,
    /// Everything the fingerprint covers, in the order given.
    state: Vec<Tensor>,
    /// The same on a GPU, in as few pieces as there are; `None` on the CPU.
    digests: Option<Vec<Digest>>,
    layout: u64,
    replaced: u64,
    averaging: Averaging,
    bucket_bytes: usize,
    identity: (u32, u32),
}

impl Ddp {
    /// Checks that all ranks have the same layout, copies rank 0's parameters and buffers to all (tag
    /// `weights`), and makes every `.grad` a view of the flat buffer. Tensors keep their storage: optimizers
    /// made before or after see the same ones. A bucket holds whole parameters up to `bucket_bytes`, at least
    /// one. Do not pass replay buffers.
    #[track_caller]
    pub fn new(
        parameters: Vec<(String, Tensor)>,
        buffers: Vec<(String, Tensor)>,
        group: &ProcessGroup,
        bucket_bytes: usize,
    ) -> Result<Ddp, DistError> {
        Ddp::averaging(Averaging::World, parameters, buffers, group, bucket_bytes)
    }

    /// [`Ddp::new`] with another rule for averages; all ranks give the same.
    #[track_caller]
    pub fn averaging(
        averaging: Averaging,
        parameters: Vec<(String, Tensor)>,
        buffers: Vec<(String, Tensor)>,
        group: &ProcessGroup,
        bucket_bytes: usize,
    ) -> Result<Ddp, DistError> {
        let identity = (group.rank(), group.world_size());
        let layout = layout(parameters.iter().chain(&buffers));
        same_layout(layout, group)?;
        let (trained, fixed): (Vec<_>, Vec<_>) =
            parameters.into_iter().map(|(_, tensor)| tensor).partition(Tensor::requires_grad);
        let state: Vec<Tensor> = trained
            .iter()
            .map(Tensor::shallow_clone)
            .chain(fixed)
            .chain(buffers.into_iter().map(|(_, tensor)| tensor))
            .collect();
        broadcast_state(&state, group)?;
        let flats = flatten(trained, averaging, bucket_bytes).map_err(|failure| failed(identity, failure))?;
        let digest = |pieces: Vec<Tensor>| pieces.iter().map(Digest::new).collect();
        let digests = pieces(&state).map(digest).transpose();
        let digests = digests
            .map_err(|error| failed(identity, BackendError::new(DistErrorKind::Failed, error.to_string())))?;
        Ok(Ddp { flats, state, digests, layout, replaced: 0, averaging, bucket_bytes, identity })
    }

    /// Zeroes all gradients in place. Use this instead of the optimizer's.
    pub fn zero_grad(&mut self) {
        for flat in &mut self.flats {
            let _ = flat.gradients.zero_();
            for slot in &mut flat.slots {
                // `reduce` reports a failure here as an error.
                if self.averaging == Averaging::Contributors {
                    // The parameter was used if backward makes a gradient appear.
                    let _ = ffi::clear_grad(&mut slot.parameter);
                } else if !attached(slot) {
                    let _ = ffi::set_grad(&mut slot.parameter, &mut slot.gradient);
                }
            }
        }
    }

    /// The gradients of a loss instead of those that were there. On a GPU one pass puts them there; autograd
    /// takes one for each parameter, which it adds to zeros. In front of a cut, backward is still to come.
    pub(crate) fn differentiate(&mut self, loss: &Tensor) -> Result<(), tch::TchError> {
        match self.flats.as_mut_slice() {
            [flat] if flat.padded.is_some() && flat.early == 0 => flat.take(loss),
            _ => {
                self.zero_grad();
                loss.f_backward()
            }
        }
    }

    /// The flat gradients of all parameters in their order, for hand-written backward passes, which add to
    /// them; `None` unless all are f32 on the CPU. The caller zeroes them.
    ///
    /// # Safety
    /// The parameters' `.grad` are views of this memory: until the slice is dropped, no tensor operation may
    /// touch them.
    pub(crate) unsafe fn flat_gradients(&mut self) -> Option<&mut [f32]> {
        match self.flats.as_mut_slice() {
            // SAFETY: the flat buffer is reached through `self` and the views only; the caller leaves those
            // alone.
            [flat] => unsafe { memory::floats_mut(&mut flat.gradients) },
            _ => None,
        }
    }

    /// Averages the gradients over all ranks; one collective per bucket, tag `grad`.
    #[track_caller]
    pub fn reduce(&mut self, group: &ProcessGroup) -> Result<(), DistError> {
        self.gather_replaced()?;
        let op = match self.averaging {
            Averaging::World => ReduceOp::Avg,
            Averaging::Contributors => ReduceOp::Sum,
        };
        for flat in &mut self.flats {
            for bucket in &mut flat.buckets {
                group.all_reduce_queued(bucket, op, "grad")?;
            }
            if let Some(flags) = &flat.flags {
                group.settle()?;
                divide(&flat.slots, flags).map_err(|error| {
                    failed(self.identity, BackendError::new(DistErrorKind::Failed, error.to_string()))
                })?;
            }
        }
        Ok(())
    }

    /// Cuts the gradients in front of the parameter of this number, where there are more of them than a
    /// bucket holds: whether [`GradientPart::Late`] and [`GradientPart::Early`] have something each. All
    /// ranks give the same.
    pub fn split_at(&mut self, parameter: usize) -> bool {
        let (Averaging::World, [flat]) = (self.averaging, self.flats.as_mut_slice()) else { return false };
        let is_inside = (1..flat.slots.len()).contains(&parameter);
        let bytes = flat.gradients.numel() * flat.gradients.kind().elt_size_in_bytes();
        if !is_inside || bytes <= self.bucket_bytes {
            return false;
        }
        flat.split_at(parameter, self.bucket_bytes);
        true
    }

    /// [`Ddp::reduce`], or a part of it where the gradients are [cut](Ddp::split_at):
    /// [`GradientPart::Late`], then [`GradientPart::Early`].
    #[track_caller]
    pub fn reduce_part(&mut self, part: GradientPart, group: &ProcessGroup) -> Result<(), DistError> {
        if part == GradientPart::Whole {
            return self.reduce(group);
        }
        self.gather_replaced()?;
        for flat in &mut self.flats {
            let (early, late) = flat.buckets.split_at_mut(flat.early);
            for bucket in if part == GradientPart::Late { late } else { early } {
                group.start_all_reduce(bucket, "grad")?;
            }
            if part == GradientPart::Early {
                group.join("grad")?;
                let ranks = f64::from(group.world_size());
                no_grad(|| flat.gradients.f_div_scalar_(ranks).map(drop)).map_err(|error| {
                    failed(self.identity, BackendError::new(DistErrorKind::Failed, error.to_string()))
                })?;
            }
        }
        Ok(())
    }

    /// Scales the (averaged) gradients so that their joint norm is at most `max_norm`. Returns the norm
    /// before scaling, a scalar on the device; the host does not wait for it.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Tensor {
        if let [FlatGradients { gradients, padded: Some(padded), .. }] = self.flats.as_mut_slice() {
            return no_grad(|| {
                let rows = padded.norm_scalaropt_dim(2.0, 1, false);
                let norm = rows.norm();
                let scale = ((&norm + CLIP_EPSILON).reciprocal() * max_norm).clamp_max(1.0);
                let _ = gradients.g_mul_(&scale);
                norm
            });
        }
        no_grad(|| {
            let device = self.flats.first().map_or(Device::Cpu, |flat| flat.gradients.device());
            let zero = Tensor::zeros([], (Kind::Double, device));
            let squares = self.flats.iter().fold(zero, |sum, flat| {
                sum + flat.gradients.norm().to_kind(Kind::Double).to_device(device).square()
            });
            let norm = squares.sqrt();
            // As in PyTorch: a NaN norm makes all gradients NaN, which the losses then show.
            let scale = ((&norm + CLIP_EPSILON).reciprocal() * max_norm).clamp_max(1.0);
            for flat in &mut self.flats {
                let scale = scale.to_device(flat.gradients.device()).to_kind(flat.gradients.kind());
                let _ = flat.gradients.g_mul_(&scale);
            }
            norm
        })
    }

    /// A hash of the bits of all parameters and buffers and of their names and shapes.
    pub fn fingerprint(&self) -> u64 {
        self.state.iter().fold(Hash::new().word(self.layout), fingerprint::tensor).value()
    }

    /// What a fingerprint is made of, still on the device: 64-bit scalars. `None` on the CPU, where
    /// [`Ddp::fingerprint`] reads the weights where they are.
    pub(crate) fn digest(&self) -> Result<Option<Vec<Tensor>>, tch::TchError> {
        let sums = |digests: &Vec<Digest>| digests.iter().map(Digest::sum).collect();
        no_grad(|| self.digests.as_ref().map(sums).transpose())
    }

    /// The fingerprint by what [`Ddp::digest`] gave.
    pub(crate) fn digested(&self, words: impl Iterator<Item = u64>) -> u64 {
        words.fold(Hash::new().word(self.layout), Hash::word).value()
    }

    /// Every rank's fingerprint, in rank order (tag `fingerprint`). The same message compares which
    /// collectives the ranks have entered: a library that matches calls by order alone may mix up two
    /// different ones without an error.
    #[track_caller]
    pub fn compare(&self, group: &ProcessGroup) -> Result<Vec<u64>, DistError> {
        let words = gather_words([self.fingerprint(), group.chain_hash()], group, "fingerprint")?;
        let differing = differing(words.iter().map(|[_, chain]| *chain));
        if differing.is_empty() {
            return Ok(words.into_iter().map(|[print, _]| print).collect());
        }
        let text = format!(
            "collectives of rank {} differ from those of rank 0 (operation, tag, count or dtype)",
            super::store::list(&differing)
        );
        Err(failed(self.identity, BackendError::new(DistErrorKind::Mismatch, text)))
    }

    /// Collectives of one `reduce`.
    pub fn bucket_count(&self) -> usize {
        self.flats.iter().map(|flat| flat.buckets.len()).sum()
    }

    /// How many gradients were found outside the flat buffer and copied into it. It grows when another
    /// `zero_grad` is used.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Copies replaced gradients into the flat buffer and sets the flags of used parameters.
    fn gather_replaced(&mut self) -> Result<(), DistError> {
        let by_contributors = self.averaging == Averaging::Contributors;
        for flat in &mut self.flats {
            let mut used = vec![1.0_f32; flat.slots.len()];
            for (slot, used) in flat.slots.iter_mut().zip(&mut used) {
                if attached(slot) {
                    continue;
                }
                let gradient = slot.parameter.grad();
                if by_contributors {
                    *used = if gradient.defined() { 1.0 } else { 0.0 };
                } else {
                    self.replaced += 1;
                }
                no_grad(|| {
                    if gradient.defined() {
                        slot.gradient.f_copy_(&gradient)
                    } else {
                        slot.gradient.f_zero_().map(|_| ())
                    }
                })
                .map_err(|error| BackendError::new(DistErrorKind::Failed, error.to_string()))
                .and_then(|()| ffi::set_grad(&mut slot.parameter, &mut slot.gradient))
                .map_err(|failure| failed(self.identity, failure))?;
            }
            if let Some(flags) = &mut flat.flags {
                no_grad(|| flags.f_copy_(&Tensor::f_from_slice(&used)?)).map_err(|error| {
                    failed(self.identity, BackendError::new(DistErrorKind::Failed, error.to_string()))
                })?;
            }
        }
        Ok(())
    }
}

/// The memory of tensors on a GPU, with neighbors as one piece. `None` where they are elsewhere or have
/// gaps.
fn pieces(state: &[Tensor]) -> Option<Vec<Tensor>> {
    let mut pieces: Vec<Tensor> = Vec::new();
    for tensor in state {
        if !matches!(tensor.device(), Device::Cuda(_)) || !tensor.is_contiguous() {
            return None;
        }
        let own = tensor.detach().view([-1]);
        let end = |piece: &Tensor| piece.data_ptr().addr() + piece.numel() * piece.kind().elt_size_in_bytes();
        if let Some(before) = pieces.last_mut()
            && before.kind() == own.kind()
            && end(before) == own.data_ptr().addr()
            // Two memories may be neighbors by chance; then this is refused.
            && let Ok(joined) = before.f_as_strided([(before.numel() + own.numel()) as i64], [1], None)
        {
            *before = joined;
            continue;
        }
        pieces.push(own);
    }
    Some(pieces)
}

fn failed(identity: (u32, u32), failure: BackendError) -> DistError {
    DistError::new(failure.kind, DistPhase::Collective, identity, failure.text)
}

fn layout<'a>(tensors: impl Iterator<Item = &'a (String, Tensor)>) -> u64 {
    tensors
        .fold(Hash::new(), |hash, (name, tensor)| {
            let hash = hash.bytes(name.as_bytes()).word(tensor.kind() as u64);
            let hash = hash.word(u64::from(tensor.requires_grad())).word(tensor.dim() as u64);
            tensor.size().iter().fold(hash, |hash, size| hash.word(*size as u64))
        })
        .value()
}

#[track_caller]
fn gather_words<const N: usize>(
    words: [u64; N],
    group: &ProcessGroup,
    tag: &str,
) -> Result<Vec<[u64; N]>, DistError> {
    let gathered = group.all_gather(&Tensor::from_slice(&words.map(|word| word as i64)), tag)?;
    let read = |tensor: &Tensor| std::array::from_fn(|index| tensor.int64_value(&[index as i64]) as u64);
    Ok(gathered.iter().map(read).collect())
}

/// The ranks whose value is not rank 0's.
fn differing(values: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut values = (0..).zip(values).peekable();
    let first = values.peek().map(|(_, value)| *value);
    values.filter(|(_, value)| Some(*value) != first).map(|(rank, _)| rank).collect()
}

#[track_caller]
fn same_layout(layout: u64, group: &ProcessGroup) -> Result<(), DistError> {
    let layouts = gather_words([layout], group, "weights")?;
    let differing = differing(layouts.iter().map(|[layout]| *layout));
    if differing.is_empty() {
        return Ok(());
    }
    let text = format!(
        "networks differ: parameter names, shapes or dtypes of rank {} do not match rank 0",
        super::store::list(&differing)
    );
    Err(failed((group.rank(), group.world_size()), BackendError::new(DistErrorKind::Mismatch, text)))
}

/// Copies rank 0's state to all, as bytes, in one collective whatever the dtypes.
#[track_caller]
fn broadcast_state(state: &[Tensor], group: &ProcessGroup) -> Result<(), DistError> {
    let identity = (group.rank(), group.world_size());
    let broke =
        |error: tch::TchError| failed(identity, BackendError::new(DistErrorKind::Failed, error.to_string()));
    let Some(device) = state.first().map(Tensor::device) else { return Ok(()) };
    no_grad(|| {
        let parts: Vec<Tensor> = state
            .iter()
            .map(|tensor| {
                let flat = tensor.detach().contiguous().f_view([-1])?;
                flat.f_view_dtype(Kind::Uint8)?.f_to_device(device)
            })
            .collect::<Result<_, _>>()
            .map_err(broke)?;
        let mut whole = Tensor::f_cat(&parts, 0).map_err(broke)?;
        group.broadcast(&mut whole, 0, "weights")?;
        let mut start = 0;
        for (tensor, part) in state.iter().zip(&parts) {
            let length = part.size1().map_err(broke)?;
            let bytes = whole.f_narrow(0, start, length).map_err(broke)?;
            // A copy, because a part may start where its dtype may not.
            let bytes = bytes.copy();
            let value =
                bytes.f_view_dtype(tensor.kind()).and_then(|flat| flat.f_view(tensor.size().as_slice()));
            tensor.detach().f_copy_(&value.map_err(broke)?).map_err(broke)?;
            start += length;
        }
        Ok(())
    })
}

/// Gradients per row of [`FlatGradients::padded`].
const NORM_ROW: usize = 1024;

/// All parameters of one dtype on one device.
struct FlatGradients {
    gradients: Tensor,
    /// The same memory in rows, with zeros behind the last gradient: only on a GPU. The norm of a row is
    /// computed in an order that does not depend on the model of the GPU; that of everything at once is not.
    padded: Option<Tensor>,
    /// One per slot, behind the gradients in the same memory: 1 where this rank used the parameter. Only for
    /// [`Averaging::Contributors`].
    flags: Option<Tensor>,
    slots: Vec<GradientSlot>,
    /// Views of the flat buffer, cut between parameters; the last has the flags.
    buckets: Vec<Tensor>,
    /// Buckets in front of the [cut](Ddp::split_at).
    early: usize,
}

impl FlatGradients {
    /// Puts the gradients of a loss in the place of those that were there, in one pass. A parameter that the
    /// loss does not use gets zeros.
    fn take(&mut self, loss: &Tensor) -> Result<(), tch::TchError> {
        let parameters: Vec<&Tensor> = self.slots.iter().map(|slot| &slot.parameter).collect();
        let gradients = Tensor::f_run_backward(&[loss], &parameters, false, false)?;
        let flat = |(gradient, slot): (&Tensor, &GradientSlot)| match gradient.defined() {
            true => gradient.f_reshape([-1]),
            false => slot.gradient.f_zeros_like()?.f_reshape([-1]),
        };
        let parts: Vec<Tensor> = gradients.iter().zip(&self.slots).map(flat).collect::<Result<_, _>>()?;
        let _ = no_grad(|| Tensor::f_cat_out(&self.gradients, &parts, 0))?;
        self.slots.iter_mut().filter(|slot| !attached(slot)).for_each(|slot| {
            // `reduce` reports a failure here as an error.
            let _ = ffi::set_grad(&mut slot.parameter, &mut slot.gradient);
        });
        Ok(())
    }

    /// Rebuilds the buckets with a split in front of the slot of this number.
    fn split_at(&mut self, slot: usize, bucket_bytes: usize) {
        let length = |slots: &[GradientSlot]| slots.iter().map(|slot| slot.gradient.numel()).sum::<usize>();
        let (front, behind) = self.slots.split_at(slot.min(self.slots.len()));
        let per_bucket = (bucket_bytes / self.gradients.kind().elt_size_in_bytes()).max(1);
        let buckets = |slots: &[GradientSlot], mut start: usize| {
            let (mut buckets, first) = (Vec::new(), start);
            let mut bucket_start = first;
            let part = |from: usize, to: usize| self.gradients.narrow(0, from as i64, (to - from) as i64);
            for slot in slots {
                let length = slot.gradient.numel();
                if start > bucket_start && start + length - bucket_start > per_bucket {
                    buckets.push(part(bucket_start, start));
                    bucket_start = start;
                }
                start += length;
            }
            if start > bucket_start {
                buckets.push(part(bucket_start, start));
            }
            buckets
        };
        let (mut early, late) = (buckets(front, 0), buckets(behind, length(front)));
        self.early = early.len();
        early.extend(late);
        self.buckets = early;
    }
}

/// A parameter and its part of the flat buffer.
struct GradientSlot {
    parameter: Tensor,
    /// A view of the flat buffer in the parameter's shape.
    gradient: Tensor,
}

fn flatten(
    trained: Vec<Tensor>,
    averaging: Averaging,
    bucket_bytes: usize,
) -> Result<Vec<FlatGradients>, BackendError> {
    let mut groups: Vec<((Kind, Device), Vec<Tensor>)> = Vec::new();
    for parameter in trained {
        let key = (parameter.kind(), parameter.device());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(parameter),
            None => groups.push((key, vec![parameter])),
        }
    }
    groups.into_iter().map(|(key, members)| flat(key, members, averaging, bucket_bytes)).collect()
}

fn flat(
    (kind, device): (Kind, Device),
    parameters: Vec<Tensor>,
    averaging: Averaging,
    bucket_bytes: usize,
) -> Result<FlatGradients, BackendError> {
    let total: usize = parameters.iter().map(Tensor::numel).sum();
    let flag_count = if averaging == Averaging::Contributors { parameters.len() } else { 0 };
    let in_rows = device != Device::Cpu && kind == Kind::Float && flag_count == 0;
    let filled = if in_rows { total.next_multiple_of(NORM_ROW) } else { total + flag_count };
    let whole = Tensor::zeros([filled as i64], (kind, device));
    let padded = in_rows.then(|| whole.view([-1, NORM_ROW as i64]));
    let gradients = whole.narrow(0, 0, total as i64);
    let flags = (flag_count > 0).then(|| whole.narrow(0, total as i64, flag_count as i64));
    let per_bucket = (bucket_bytes / kind.elt_size_in_bytes()).max(1);
    let (mut slots, mut buckets) = (Vec::new(), Vec::new());
    let (mut start, mut bucket_start) = (0, 0);
    let part = |from: usize, to: usize| whole.narrow(0, from as i64, (to - from) as i64);
    for mut parameter in parameters {
        let length = parameter.numel();
        if start > bucket_start && start + length - bucket_start > per_bucket {
            buckets.push(part(bucket_start, start));
            bucket_start = start;
        }
        let mut gradient = part(start, start + length).view(parameter.size().as_slice());
        let earlier = parameter.grad();
        if earlier.defined() {
            no_grad(|| gradient.copy_(&earlier));
        }
        ffi::set_grad(&mut parameter, &mut gradient)?;
        slots.push(GradientSlot { parameter, gradient });
        start += length;
    }
    if start > bucket_start {
        buckets.push(part(bucket_start, start + flag_count));
    }
    Ok(FlatGradients { gradients, padded, flags, slots, buckets, early: 0 })
}

fn attached(slot: &GradientSlot) -> bool {
    let gradient = slot.parameter.grad();
    gradient.defined() && gradient.data_ptr() == slot.gradient.data_ptr()
}

/// Divides each gradient by its count of contributors; a sum of nothing stays zero.
fn divide(slots: &[GradientSlot], flags: &Tensor) -> Result<(), tch::TchError> {
    let mut counts = vec![0.0_f64; slots.len()];
    flags.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?.f_copy_data(&mut counts, slots.len())?;
    no_grad(|| {
        for (slot, count) in slots.iter().zip(counts) {
            let _ = slot.gradient.shallow_clone().f_div_scalar_(count.max(1.0))?;
        }
        Ok(())
    })
}

/// The devices of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataParallel {
    devices: Vec<Device>,
}

impl DataParallel {
    /// Splits over these devices; the first holds the parameters. `None` for fewer than two devices.
    pub fn new(devices: Vec<Device>) -> Option<DataParallel> {
        (devices.len() > 1).then_some(DataParallel { devices })
    }

    /// How many rows each device gets of a batch.
    fn shares(&self, rows: i64) -> impl Iterator<Item = (Device, i64, i64)> + '_ {
        let count = (self.devices.len() as i64).min(rows).max(1);
        self.devices.iter().take(count as usize).zip(0..).map(move |(device, i)| {
            let start = i * (rows / count) + i.min(rows % count);
            (*device, start, rows / count + i64::from(i < rows % count))
        })
    }

    /// `forward(parameters, rows)` on every device; its outputs together on the first, in the order of the
    /// rows of `inputs` (dimension 0 of each).
    pub fn forward<const N: usize>(
        &self,
        parameters: &[Tensor],
        inputs: [&Tensor; N],
        forward: impl Fn(&[Tensor], [Tensor; N]) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let rows = inputs.iter().find_map(|input| input.size().first().copied()).unwrap_or(0);
        let Some(first) = self.devices.first().copied() else {
            return forward(parameters, inputs.map(Tensor::shallow_clone));
        };
        let outputs = self
            .shares(rows)
            .enumerate()
            .map(|(i, (device, start, length))| {
                let mut parts = Vec::with_capacity(N);
                for input in inputs {
                    parts.push(input.f_narrow(0, start, length)?.f_to_device(device)?);
                }
                let mut parts = parts.into_iter();
                let parts = std::array::from_fn(|_| parts.next().unwrap_or_else(Tensor::new));
                if i == 0 {
                    return forward(parameters, parts);
                }
                let replica = parameters
                    .iter()
                    .map(|parameter| copy(parameter, device))
                    .collect::<Result<Vec<_>, _>>()?;
                forward(&replica, parts)?.f_to_device(first)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Tensor::f_cat(&outputs, 0)
    }
}

/// A differentiable copy, even on the same device.
fn copy(parameter: &Tensor, device: Device) -> Result<Tensor, TchError> {
    if parameter.device() == device { parameter.f_mul_scalar(1.0) } else { parameter.f_to_device(device) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::{BackendKind, GroupSettings};
    use crate::support::page::StatusPage;
    use rankdeck_proto::status_page::StatusPageWriter;
    use std::time::Duration;
    use tch::Kind;

    fn alone() -> ProcessGroup {
        let settings = GroupSettings {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            master_addr: String::new(),
            master_port: 0,
            backend: BackendKind::Tcp,
            timeout: Duration::from_secs(1),
            shared_memory: true,
            interface: None,
            generation: 0,
            secret: None,
            device: Device::Cpu,
            interrupt: None,
        };
        ProcessGroup::connect(&settings, StatusPage::new(StatusPageWriter::anonymous(0, 0).unwrap())).unwrap()
    }

    fn parameter(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    fn named(tensors: &[&Tensor]) -> Vec<(String, Tensor)> {
        tensors.iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor.shallow_clone())).collect()
    }

    fn gradient_count(ddp: &Ddp) -> usize {
        ddp.flats.iter().map(|flat| flat.gradients.numel()).sum()
    }

    fn gradient(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.grad()).unwrap()
    }

    /// As on a GPU: gradients that are put in place in one pass are those that autograd adds to zeros.
    #[test]
    fn gradients_in_one_pass_are_bit_equal() {
        let seen = Tensor::from_slice(&[0.3f32, -1.7, 2.5, 0.1]).view([2, 2]);
        let make = || [parameter(&[0.5, -0.25, 1.5, 2.0]), parameter(&[0.125, -3.0]), parameter(&[7.0])];
        let loss = |[weights, biases, _]: &[Tensor; 3]| {
            // A transposed weight has a gradient of another layout; the last parameter is not used.
            let out = seen.matmul(&weights.view([2, 2]).tr()) + biases;
            (out.sin() * &seen).sum(Kind::Float)
        };
        let group = alone();
        let (ours, theirs) = (make(), make());
        let mut one = Ddp::new(named(&ours.each_ref()), Vec::new(), &group, 1024).unwrap();
        let mut other = Ddp::new(named(&theirs.each_ref()), Vec::new(), &group, 1024).unwrap();
        for _ in 0..2 {
            // The second time, there is something to replace, and the gradient was detached.
            one.flats[0].take(&loss(&ours)).unwrap();
            other.differentiate(&loss(&theirs)).unwrap();
            let bits =
                |all: &[Tensor; 3]| -> Vec<u32> { all.iter().flat_map(gradient).map(f32::to_bits).collect() };
            assert_eq!(bits(&ours), bits(&theirs));
            assert!(bits(&ours).iter().any(|bits| *bits != 0));
            ffi::clear_grad(&mut one.flats[0].slots[0].parameter).unwrap();
        }
        one.flats[0].take(&loss(&ours)).unwrap();
        one.reduce(&group).unwrap();
        assert_eq!((one.replaced(), gradient(&ours[0])), (0, gradient(&theirs[0])), "they are views again");
    }

    /// DDP-4.
    #[test]
    fn replaced_gradient_is_copied_into_the_flat_buffer() {
        let (group, mut a) = (alone(), parameter(&[1.0, 2.0]));
        let mut ddp = Ddp::new(named(&[&a]), Vec::new(), &group, 1024).unwrap();
        ffi::set_grad(&mut a, &mut Tensor::from_slice(&[8.0f32, 9.0])).unwrap();
        ddp.reduce(&group).unwrap();
        assert_eq!((ddp.replaced(), gradient(&a)), (1, vec![8.0, 9.0]));
        assert!((ddp.clip_grad_norm(1e9).double_value(&[]) - (64.0f64 + 81.0).sqrt()).abs() < 1e-6);
        ddp.zero_grad();
        assert_eq!(gradient(&a), [0.0, 0.0]);
        (&a * 3.0).sum(Kind::Float).backward();
        ddp.reduce(&group).unwrap();
        assert_eq!((ddp.replaced(), gradient(&a)), (1, vec![3.0, 3.0]));
    }

    #[test]
    fn clipping_follows_pytorch() {
        let (group, a, b) = (alone(), parameter(&[0.0]), parameter(&[0.0]));
        let mut ddp = Ddp::new(named(&[&a, &b]), Vec::new(), &group, 4).unwrap();
        (&a * 3.0 + &b * 4.0).sum(Kind::Float).backward();
        assert_eq!(ddp.clip_grad_norm(10.0).double_value(&[]), 5.0);
        assert_eq!((gradient(&a), gradient(&b)), (vec![3.0], vec![4.0]));
        assert_eq!(ddp.clip_grad_norm(0.5).double_value(&[]), 5.0);
        let scale = 0.5 / (5.0 + CLIP_EPSILON);
        assert!((f64::from(gradient(&b)[0]) - 4.0 * scale).abs() < 1e-7);
        assert!(ddp.clip_grad_norm(1.0).double_value(&[]) <= 0.5);
    }

    #[test]
    fn buckets_hold_whole_parameters_in_order() {
        let (group, a, b, c) = (alone(), parameter(&[0.0; 3]), parameter(&[0.0; 3]), parameter(&[0.0; 9]));
        let lengths = |bytes| {
            let ddp = Ddp::new(named(&[&a, &b, &c]), Vec::new(), &group, bytes).unwrap();
            assert_eq!(gradient_count(&ddp), 15);
            ddp.flats[0].buckets.iter().map(Tensor::numel).collect::<Vec<_>>()
        };
        assert_eq!(lengths(1 << 20), [15]);
        assert_eq!(lengths(24), [6, 9]);
        assert_eq!(lengths(0), [3, 3, 9]);
    }

    #[test]
    fn flat_gradients_alias_parameter_gradients() {
        let (group, a, b) = (alone(), parameter(&[1.0, 2.0]), parameter(&[3.0]));
        let mut ddp = Ddp::new(named(&[&a, &b]), Vec::new(), &group, 4).unwrap();
        (&a * 5.0).sum(Kind::Float).backward();
        // SAFETY: no tensor operation runs before the last use of `flat`.
        let flat = unsafe { ddp.flat_gradients() }.unwrap();
        assert_eq!(flat, [5.0, 5.0, 0.0]);
        flat[2] = 7.0;
        ddp.reduce(&group).unwrap();
        assert_eq!((gradient(&b), ddp.replaced()), (vec![7.0], 0));
        let double = Tensor::from_slice(&[2.0f64]).set_requires_grad(true);
        let mut mixed = Ddp::new(named(&[&a, &double]), Vec::new(), &group, 4).unwrap();
        // SAFETY: there is no slice.
        assert!(unsafe { mixed.flat_gradients() }.is_none());
    }

    #[test]
    fn several_dtypes_and_frozen_parameters_live_together() {
        let group = alone();
        let (a, frozen) = (parameter(&[1.0]), Tensor::from_slice(&[5.0f32]));
        let b = Tensor::from_slice(&[2.0f64]).set_requires_grad(true);
        let flags = Tensor::from_slice(&[true, false, true]);
        let mut ddp =
            Ddp::new(named(&[&a, &b, &frozen]), vec![("flags".into(), flags)], &group, 1024).unwrap();
        assert_eq!(
            (ddp.flats.iter().map(|flat| flat.buckets.len()).sum::<usize>(), gradient_count(&ddp)),
            (2, 2)
        );
        (a.square().to_kind(Kind::Double) + b.square()).sum(Kind::Double).backward();
        ddp.reduce(&group).unwrap();
        assert_eq!(ddp.clip_grad_norm(1e9).double_value(&[]), (4.0f64 + 16.0).sqrt());
        let print = ddp.fingerprint();
        assert_eq!(ddp.compare(&group).unwrap(), [print]);
        let _ = no_grad(|| frozen.shallow_clone().fill_(6.0));
        assert_ne!(ddp.fingerprint(), print, "frozen parameters count too");
    }

    /// In double precision: another order of sums changes nothing that these tests could see.
    const KIND: (Kind, Device) = (Kind::Double, Device::Cpu);

    fn parameters() -> Vec<Tensor> {
        tch::manual_seed(3);
        [vec![16, 5], vec![16], vec![3, 16], vec![3]]
            .iter()
            .map(|shape| Tensor::randn(shape, KIND).set_requires_grad(true))
            .collect()
    }

    fn forward(parameters: &[Tensor], input: &Tensor) -> Result<Tensor, TchError> {
        let hidden = input.f_linear(&parameters[0], Some(&parameters[1]))?.f_tanh()?;
        hidden.f_linear(&parameters[2], Some(&parameters[3]))
    }

    fn gradients(parameters: &[Tensor], output: &Tensor) -> Vec<f64> {
        output.square().mean(Kind::Double).backward();
        parameters.iter().flat_map(|p| Vec::<f64>::try_from(p.grad().flatten(0, -1)).unwrap()).collect()
    }

    /// DP-1, DP-2; also where the batch does not divide and where there are more devices than rows.
    #[test]
    fn several_devices_equal_one() {
        for (rows, devices) in [(64, 2), (64, 4), (10, 3), (2, 4), (1, 2)] {
            let input = Tensor::randn([rows, 5], KIND);
            let one = parameters();
            let expected = forward(&one, &input).unwrap();
            let several = parameters();
            let dp = DataParallel::new(vec![Device::Cpu; devices]).unwrap();
            let got =
                dp.forward(&several, [&input], |parameters, [rows]| forward(parameters, &rows)).unwrap();
            assert_eq!(got.size(), [rows, 3]);
            assert!((&got - &expected).abs().max().double_value(&[]) < 1e-12);
            let (expected, got) = (gradients(&one, &expected), gradients(&several, &got));
            let far = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                far < 1e-12 && expected.iter().any(|g| g.abs() > 1e-2),
                "{rows} rows on {devices}: {far}"
            );
        }
        assert!(DataParallel::new(vec![Device::Cpu]).is_none());
    }

    /// Every device gets its share.
    #[test]
    fn rows_are_shared_out_evenly() {
        let dp = DataParallel::new(vec![Device::Cpu; 3]).unwrap();
        let calls = std::cell::RefCell::new(Vec::new());
        let input = Tensor::arange(8, (Kind::Float, Device::Cpu)).view([8, 1]);
        let output = dp
            .forward(&[], [&input], |_, [rows]| {
                calls.borrow_mut().push(rows.size()[0]);
                Ok(rows)
            })
            .unwrap();
        assert_eq!((calls.into_inner(), output), (vec![3, 3, 2], input));
    }
}
