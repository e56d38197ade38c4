//! The flat buffers of gradients: one per dtype and device, cut into buckets between parameters.

use super::Averaging;
use crate::distributed::error::BackendError;
use crate::distributed::ffi;
use tch::{Device, Kind, Tensor, no_grad};

/// Gradients per row of [`Flat::padded`].
const NORM_ROW: usize = 1024;

/// All parameters of one dtype on one device.
pub(super) struct Flat {
    pub(super) gradients: Tensor,
    /// The same memory in rows, with zeros behind the last gradient: only on a GPU. The norm of a row is
    /// computed in an order that does not depend on the model of the GPU; that of everything at once is not.
    pub(super) padded: Option<Tensor>,
    /// One per slot, behind the gradients in the same memory: 1 where this rank used the parameter. Only for
    /// [`Averaging::Contributors`].
    pub(super) flags: Option<Tensor>,
    pub(super) slots: Vec<GradientSlot>,
    /// Views of the flat buffer, cut between parameters; the last has the flags.
    pub(super) buckets: Vec<Tensor>,
    /// Buckets in front of the [cut](super::Ddp::cut_at).
    pub(super) early: usize,
}

impl Flat {
    /// Puts the gradients of a loss in the place of those that were there, in one pass. A parameter that the
    /// loss does not use gets zeros.
    pub(super) fn take(&mut self, loss: &Tensor) -> Result<(), tch::TchError> {
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

    /// Cuts the buckets anew, with a cut in front of the slot of this number.
    pub(super) fn cut_at(&mut self, slot: usize, bucket_bytes: usize) {
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
pub(super) struct GradientSlot {
    pub(super) parameter: Tensor,
    /// A view of the flat buffer in the parameter's shape.
    pub(super) gradient: Tensor,
}

pub(super) fn flatten(
    trained: Vec<Tensor>,
    averaging: Averaging,
    bucket_bytes: usize,
) -> Result<Vec<Flat>, BackendError> {
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
) -> Result<Flat, BackendError> {
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
    Ok(Flat { gradients, padded, flags, slots, buckets, early: 0 })
}

pub(super) fn attached(slot: &GradientSlot) -> bool {
    let gradient = slot.parameter.grad();
    gradient.defined() && gradient.data_ptr() == slot.gradient.data_ptr()
}

/// Divides each gradient by its count of contributors; a sum of nothing stays zero.
pub(super) fn divide(slots: &[GradientSlot], flags: &Tensor) -> Result<(), tch::TchError> {
    let mut counts = vec![0.0_f64; slots.len()];
    flags.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?.f_copy_data(&mut counts, slots.len())?;
    no_grad(|| {
        for (slot, count) in slots.iter().zip(counts) {
            let _ = slot.gradient.shallow_clone().f_div_scalar_(count.max(1.0))?;
        }
        Ok(())
    })
}
