//! Losses, norms and fingerprints of an iteration's updates, kept on the GPU and read once at its end.
//!
//! On the CPU every value is checked at once.
//!
//! Invariants:
//! - LEDGER-1: the host does not wait for a GPU inside an update.
//! - LEDGER-2: the rank whose own loss is not finite reports itself. On a GPU
//!   the others have applied its gradient by then; they report that, and not a loss of their own.

use super::own_loss;
use crate::distributed::{Ddp, ProcessGroup};
use crate::error::TrainerError;
use tch::{Device, Kind, TchError, Tensor};

/// A loss of an update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossRecord {
    name: &'static str,
    /// The norm of the gradient averaged over all ranks comes after it.
    norm: bool,
}

/// Where the numbers of an iteration lie on the device, one after the other.
struct DeviceNumbers {
    values: Tensor,
    /// The place of the next one.
    at: Tensor,
    /// 0, 1, ...
    places: Tensor,
}

/// The updates of an iteration.
#[derive(Default)]
pub(crate) struct DeviceMetrics {
    entries: Vec<LossRecord>,
    /// Those of them that belong to updates that are done.
    done: usize,
    /// Of the update that is under way.
    pending: Vec<Tensor>,
    numbers: Option<DeviceNumbers>,
}

impl DeviceMetrics {
    /// For at most `most` losses and as many norms in an iteration.
    pub(crate) fn new(most: usize, device: Device) -> Result<DeviceMetrics, TchError> {
        let most = 2 * most as i64;
        let numbers = DeviceNumbers {
            values: Tensor::f_zeros([most], (Kind::Float, device))?,
            at: Tensor::f_zeros([1], (Kind::Int64, device))?,
            places: Tensor::f_arange(most, (Kind::Int64, device))?,
        };
        Ok(DeviceMetrics { numbers: (device != Device::Cpu).then_some(numbers), ..DeviceMetrics::default() })
    }

    /// Begins an update, or begins it again.
    pub(crate) fn start_update(&mut self) {
        self.entries.truncate(self.done);
        self.pending.clear();
    }

    /// Puts the numbers of the update to those before them. Work of the device that is the same each time.
    pub(crate) fn store(&mut self) -> Result<(), TchError> {
        let pending = std::mem::take(&mut self.pending);
        let Some(numbers) = self.numbers.as_mut().filter(|_| !pending.is_empty()) else { return Ok(()) };
        let flat: Vec<Tensor> = pending
            .iter()
            .map(|number| number.f_to_kind(Kind::Float)?.f_view([1]))
            .collect::<Result<_, _>>()?;
        let count = flat.len() as i64;
        let places = numbers.places.f_narrow(0, 0, count)?.f_add(&numbers.at)?;
        let _ = numbers.values.f_index_copy_(0, &places, &Tensor::f_cat(&flat, 0)?)?;
        let _ = numbers.at.f_add_scalar_(count)?;
        Ok(())
    }

    /// The update is done.
    pub(crate) fn finish_update(&mut self) {
        self.done = self.entries.len();
    }

    /// What the update under way has entered, which is forgotten: it was not done.
    pub(crate) fn discard_update(&mut self) -> Vec<LossRecord> {
        let entries = self.entries.split_off(self.done.min(self.entries.len()));
        self.pending.clear();
        entries
    }

    /// An update that enters the same as an earlier one was done by the device alone.
    pub(crate) fn repeat_update(&mut self, entries: &[LossRecord]) {
        self.entries.extend_from_slice(entries);
        self.finish_update();
    }

    /// Takes the loss of this rank's share of an update, before it is averaged. `seen` describes the data.
    pub(crate) fn loss(
        &mut self,
        name: &'static str,
        loss: &Tensor,
        seen: impl FnOnce() -> String,
    ) -> Result<(), TrainerError> {
        if loss.device() == Device::Cpu {
            return own_loss(name, loss.f_double_value(&[])?, seen);
        }
        self.entries.push(LossRecord { name, norm: false });
        self.pending.push(loss.f_detach()?);
        Ok(())
    }

    /// Takes the norm of the averaged gradient of the update whose loss came last.
    pub(crate) fn norm(&mut self, norm: Tensor) {
        if let Some(entry) = self.entries.last_mut() {
            entry.norm = true;
            self.pending.push(norm);
        }
    }

    /// Ends the iteration: judges its losses, and gives the fingerprints of `covered`.
    pub(crate) fn finish_iteration(
        &mut self,
        covered: &[&Ddp],
        group: &ProcessGroup,
        seen: impl Fn() -> String,
    ) -> Result<Vec<u64>, TrainerError> {
        group.settle()?;
        let entries = std::mem::take(&mut self.entries);
        self.done = 0;
        let count: i64 = entries.iter().map(|entry| 1 + i64::from(entry.norm)).sum();
        let on_device: Vec<Tensor> = match &mut self.numbers {
            Some(numbers) if count > 0 => {
                let _ = numbers.at.f_zero_()?;
                vec![numbers.values.f_narrow(0, 0, count)?]
            }
            _ => Vec::new(),
        };
        let digests: Vec<_> = covered.iter().map(|ddp| ddp.digest()).collect::<Result<_, _>>()?;
        let words: Vec<Tensor> = digests.iter().flatten().flatten().map(Tensor::shallow_clone).collect();
        let (numbers, words) = read(&on_device, &words)?;
        check_losses(&entries, &numbers, seen)?;
        let mut words = words.into_iter();
        let print = |(ddp, digest): (&&Ddp, &Option<Vec<Tensor>>)| match digest {
            Some(parts) => ddp.digested(words.by_ref().take(parts.len())),
            None => ddp.fingerprint(),
        };
        Ok(covered.iter().zip(&digests).map(print).collect())
    }
}

/// Numbers, in tensors of any size, and 64-bit words of any device, in one copy.
fn read(numbers: &[Tensor], words: &[Tensor]) -> Result<(Vec<f64>, Vec<u64>), TchError> {
    if numbers.is_empty() && words.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut parts = Vec::new();
    let count: usize = numbers.iter().map(Tensor::numel).sum();
    if !numbers.is_empty() {
        let numbers: Vec<Tensor> = numbers
            .iter()
            .map(|number| number.f_to_kind(Kind::Float)?.f_view([-1]))
            .collect::<Result<_, _>>()?;
        parts.push(Tensor::f_cat(&numbers, 0)?.f_to_kind(Kind::Double)?.f_view_dtype(Kind::Int64)?);
    }
    for word in words {
        parts.push(word.f_view([1])?);
    }
    let mut all = vec![0_i64; count + words.len()];
    let len = all.len();
    Tensor::f_cat(&parts, 0)?.f_to_device(Device::Cpu)?.f_copy_data(&mut all, len)?;
    let words = all.split_off(count);
    let numbers = all.into_iter().map(|bits| f64::from_bits(bits.cast_unsigned())).collect();
    Ok((numbers, words.into_iter().map(i64::cast_unsigned).collect()))
}

/// Numbers on any device, in one copy.
pub(crate) fn numbers(tensors: &[Tensor]) -> Result<Vec<f64>, TchError> {
    match tensors.first().map(Tensor::device) {
        // One by one: what a test or a report compares with earlier versions keeps its bits.
        None | Some(Device::Cpu) => tensors.iter().map(|tensor| tensor.f_double_value(&[])).collect(),
        _ => Ok(read(tensors, &[])?.0),
    }
}

fn check_losses(
    entries: &[LossRecord],
    numbers: &[f64],
    seen: impl Fn() -> String,
) -> Result<(), TrainerError> {
    let mut numbers = numbers.iter().copied();
    for (number, LossRecord { name, norm }) in (1_u64..).zip(entries) {
        own_loss(name, numbers.next().unwrap_or(0.0), || {
            format!(" in update {number} of {} of the iteration{}", entries.len(), seen())
        })?;
        if *norm && !numbers.next().unwrap_or(0.0).is_finite() {
            return Err(TrainerError::diverged(
                format!(
                    "the averaged gradient is not finite in update {number} of {} of the iteration, but this rank's own loss is",
                    entries.len()
                ),
                "check the rank that reports its own loss; if none does, lower the learning rate",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(norm: bool) -> LossRecord {
        LossRecord { name: "the loss", norm }
    }

    /// The numbers of updates lie one after the other, also when the device put them there alone, and an
    /// update that was given up leaves nothing.
    #[test]
    fn numbers_of_updates_are_read_in_their_order() {
        let mut metrics = DeviceMetrics::new(4, Device::Cpu).unwrap();
        metrics.numbers = Some(DeviceNumbers {
            values: Tensor::zeros([8], (Kind::Float, Device::Cpu)),
            at: Tensor::zeros([1], (Kind::Int64, Device::Cpu)),
            places: Tensor::arange(8, (Kind::Int64, Device::Cpu)),
        });
        for round in 0..2 {
            let enter = |metrics: &mut DeviceMetrics, loss: f32| {
                metrics.entries.push(entry(true));
                metrics.pending.extend([Tensor::from(loss), Tensor::from(loss + 0.5)]);
            };
            enter(&mut metrics, 1.0);
            metrics.store().unwrap();
            metrics.finish_update();
            enter(&mut metrics, 9.0);
            let entries = metrics.discard_update();
            // The device does it again by itself.
            metrics.pending.extend([Tensor::from(2.0_f32), Tensor::from(2.5_f32)]);
            metrics.store().unwrap();
            metrics.repeat_update(&entries);
            assert_eq!(metrics.entries.len(), 2, "round {round}");
            let numbers = metrics.numbers.as_ref().unwrap();
            assert_eq!(Vec::<f32>::try_from(numbers.values.narrow(0, 0, 4)).unwrap(), [1.0, 1.5, 2.0, 2.5]);
            let _ = numbers.at.shallow_clone().zero_();
            (metrics.entries, metrics.done) = (Vec::new(), 0);
        }
    }

    /// LEDGER-2.
    #[test]
    fn only_the_rank_with_the_bad_loss_reports_it() {
        let entries = [entry(true), entry(true)];
        let of = |numbers: [f64; 4]| check_losses(&entries, &numbers, || "; rewards up to 9".into());
        assert!(of([1.0, 2.0, 3.0, 4.0]).is_ok());
        let own = of([1.0, 2.0, f64::NAN, f64::NAN]).unwrap_err().to_string();
        assert!(own.contains("NaN in update 2 of 2") && own.ends_with("rewards up to 9"), "{own}");
        let other = of([1.0, f64::INFINITY, f64::NAN, f64::NAN]).unwrap_err().to_string();
        assert!(!other.contains("NaN") && other.contains("update 1 of 2"), "{other}");
    }

    #[test]
    fn one_copy_brings_numbers_and_words() {
        let numbers = [Tensor::from(0.5_f32), Tensor::from_slice(&[-3.0_f64])];
        let words = [Tensor::from(i64::MIN + 7)];
        let (a, b) = read(&numbers, &words).unwrap();
        assert_eq!((a, b), (vec![0.5, -3.0], vec![(i64::MIN + 7).cast_unsigned()]));
        assert_eq!(super::numbers(&numbers).unwrap(), [0.5, -3.0]);
    }
}
