//! Data-parallel training: equal weights at the start, equal gradients at each update, and a check of both.
//!
//! Owner: the learner. The gradients of all parameters live in one flat buffer per dtype and device, and each
//! parameter's `.grad` is a view of it; autograd accumulates in place. What is exchanged is that buffer, so
//! the layout never depends on which parameters a loss used (PyTorch's DDP calls the difference
//! `find_unused_parameters`; CleanRL's flat reduce skips them and can then disagree between ranks).
//!
//! Invariants:
//! - After `new`, parameters and buffers are bit-equal on all ranks.
//! - `reduce` exchanges the same sizes in the same order on all ranks, whatever the data.
//! - DDP-3: gradients are averaged ([`Averaging`] says over what), and clipped after that.
//! - DDP-5: gradients that are averaged in two parts, one of them while backward goes on, are exchanged in
//!   the same buckets and come to the same numbers as those that are averaged at once.
//! - DDP-4: an optimiser that replaced a `.grad` (`zero_grad` setting it to none) loses nothing: the next
//!   `reduce` copies the new one.
//!
//! To accumulate over several backward passes without exchanging (PyTorch's `no_sync`), call `reduce` after
//! the last one only. Only gradients behind a [cut](Ddp::cut_at) are exchanged while backward goes on.

mod flat;

use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::ffi;
use super::fingerprint::{self, Digest, Hash};
use super::group::{ProcessGroup, ReduceOp};
use super::memory;
use flat::{Flat, attached, divide, flatten};
use tch::{Device, Kind, Tensor, no_grad};

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
pub enum Part {
    /// All, after backward.
    Whole,
    /// Those behind the cut, which backward has done: begun, to go on beside the rest of it.
    Late,
    /// Those in front of it, after backward; all are averaged then.
    Early,
}

/// A model's parameters and buffers, kept equal over all ranks.
pub struct Ddp {
    flats: Vec<Flat>,
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
    /// `weights`), and makes every `.grad` a view of the flat buffer. Tensors keep their storage: optimisers
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

    /// Zeroes all gradients in place. Use this instead of the optimiser's.
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
    pub fn differentiate(&mut self, loss: &Tensor) -> Result<(), tch::TchError> {
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
    /// bucket holds: whether [`Part::Late`] and [`Part::Early`] have something each. All ranks give the same.
    pub fn cut_at(&mut self, parameter: usize) -> bool {
        let (Averaging::World, [flat]) = (self.averaging, self.flats.as_mut_slice()) else { return false };
        let is_inside = (1..flat.slots.len()).contains(&parameter);
        let bytes = flat.gradients.numel() * flat.gradients.kind().elt_size_in_bytes();
        if !is_inside || bytes <= self.bucket_bytes {
            return false;
        }
        flat.cut_at(parameter, self.bucket_bytes);
        true
    }

    /// [`Ddp::reduce`], or a part of it where the gradients are [cut](Ddp::cut_at): [`Part::Late`], then
    /// [`Part::Early`].
    #[track_caller]
    pub fn reduce_part(&mut self, part: Part, group: &ProcessGroup) -> Result<(), DistError> {
        if part == Part::Whole {
            return self.reduce(group);
        }
        self.gather_replaced()?;
        for flat in &mut self.flats {
            let (early, late) = flat.buckets.split_at_mut(flat.early);
            for bucket in if part == Part::Late { late } else { early } {
                group.all_reduce_begun(bucket, "grad")?;
            }
            if part == Part::Early {
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
        if let [Flat { gradients, padded: Some(padded), .. }] = self.flats.as_mut_slice() {
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
            "rank {} has been through other collectives than rank 0 (by operation, tag, count or dtype)",
            super::store::list(&differing)
        );
        Err(failed(self.identity, BackendError::new(DistErrorKind::Mismatch, text)))
    }

    /// Elements of all gradients.
    pub fn gradient_count(&self) -> usize {
        self.flats.iter().map(|flat| flat.gradients.numel()).sum()
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

    /// Makes the flat buffer hold all gradients, and the flags say where there was one.
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

/// The memory of tensors on a GPU, with neighbours as one piece. `None` where they are elsewhere or have
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
            // Two memories may be neighbours by chance; then this is refused.
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
        "the networks differ: rank {} has other names, shapes or dtypes of parameters than rank 0",
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

#[cfg(test)]
mod tests;
