//! What the updates of an iteration leave on a GPU: losses, norms and fingerprints, read once at its end.
//!
//! Owner: the learner. On the CPU everything is looked at when it is there.
//!
//! Invariants:
//! - LEDGER-1: the host does not wait for a GPU inside an update.
//! - LEDGER-2: of a loss that is not a finite number the rank whose own share it was names itself. On a GPU
//!   the others have taken its gradient by then; they say so, and do not blame themselves.

use super::own_loss;
use crate::distributed::{Ddp, ProcessGroup};
use crate::error::TrainerError;
use tch::{Device, Kind, TchError, Tensor};

/// A loss of an update.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    name: &'static str,
    /// The norm of the gradient averaged over all ranks comes after it.
    norm: bool,
}

/// Where the numbers of an iteration lie on the device, one after the other.
struct Numbers {
    values: Tensor,
    /// The place of the next one.
    at: Tensor,
    /// 0, 1, ...
    places: Tensor,
}

/// The updates of an iteration.
#[derive(Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Those of them that belong to updates that are done.
    done: usize,
    /// Of the update that is under way.
    taken: Vec<Tensor>,
    numbers: Option<Numbers>,
}

impl Ledger {
    /// For at most `most` losses and as many norms in an iteration.
    pub fn new(most: usize, device: Device) -> Result<Ledger, TchError> {
        let most = 2 * most as i64;
        let numbers = Numbers {
            values: Tensor::f_zeros([most], (Kind::Float, device))?,
            at: Tensor::f_zeros([1], (Kind::Int64, device))?,
            places: Tensor::f_arange(most, (Kind::Int64, device))?,
        };
        Ok(Ledger { numbers: (device != Device::Cpu).then_some(numbers), ..Ledger::default() })
    }

    /// Begins an update, or begins it again.
    pub fn begin(&mut self) {
        self.entries.truncate(self.done);
        self.taken.clear();
    }

    /// Puts the numbers of the update to those before them. Work of the device that is the same each time.
    pub fn put(&mut self) -> Result<(), TchError> {
        let taken = std::mem::take(&mut self.taken);
        let Some(numbers) = self.numbers.as_mut().filter(|_| !taken.is_empty()) else { return Ok(()) };
        let flat: Vec<Tensor> = taken
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
    pub fn end(&mut self) {
        self.done = self.entries.len();
    }

    /// What the update under way has entered, which is forgotten: it was not done.
    pub fn forget(&mut self) -> Vec<Entry> {
        let entries = self.entries.split_off(self.done.min(self.entries.len()));
        self.taken.clear();
        entries
    }

    /// An update that enters the same as an earlier one was done by the device alone.
    pub fn again(&mut self, entries: &[Entry]) {
        self.entries.extend_from_slice(entries);
        self.end();
    }

    /// Takes the loss of this rank's share of an update, before it is averaged. `seen` describes the data.
    pub fn loss(
        &mut self,
        name: &'static str,
        loss: &Tensor,
        seen: impl FnOnce() -> String,
    ) -> Result<(), TrainerError> {
        if loss.device() == Device::Cpu {
            return own_loss(name, loss.f_double_value(&[])?, seen);
        }
        self.entries.push(Entry { name, norm: false });
        self.taken.push(loss.f_detach()?);
        Ok(())
    }

    /// Takes the norm of the averaged gradient of the update whose loss came last.
    pub fn norm(&mut self, norm: Tensor) {
        if let Some(entry) = self.entries.last_mut() {
            entry.norm = true;
            self.taken.push(norm);
        }
    }

    /// Ends the iteration: judges its losses, and gives the fingerprints of `covered`.
    pub fn close(
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
        judge(&entries, &numbers, seen)?;
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
pub fn numbers(tensors: &[Tensor]) -> Result<Vec<f64>, TchError> {
    match tensors.first().map(Tensor::device) {
        // One by one: what a test or a report compares with earlier versions keeps its bits.
        None | Some(Device::Cpu) => tensors.iter().map(|tensor| tensor.f_double_value(&[])).collect(),
        _ => Ok(read(tensors, &[])?.0),
    }
}

fn judge(entries: &[Entry], numbers: &[f64], seen: impl Fn() -> String) -> Result<(), TrainerError> {
    let mut numbers = numbers.iter().copied();
    for (number, Entry { name, norm }) in (1_u64..).zip(entries) {
        own_loss(name, numbers.next().unwrap_or(0.0), || {
            format!(" in update {number} of {} of the iteration{}", entries.len(), seen())
        })?;
        if *norm && !numbers.next().unwrap_or(0.0).is_finite() {
            return Err(TrainerError::diverged(
                format!(
                    "the gradient averaged over all ranks is not finite in update {number} of {} of the \
                     iteration, and this rank's own loss is",
                    entries.len()
                ),
                "look at the rank that names its own loss; if there is none, lower the learning rate",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(norm: bool) -> Entry {
        Entry { name: "the loss", norm }
    }

    /// The numbers of updates lie one after the other, also when the device put them there alone, and an
    /// update that was given up leaves nothing.
    #[test]
    fn numbers_of_updates_are_read_in_their_order() {
        let mut ledger = Ledger::new(4, Device::Cpu).unwrap();
        ledger.numbers = Some(Numbers {
            values: Tensor::zeros([8], (Kind::Float, Device::Cpu)),
            at: Tensor::zeros([1], (Kind::Int64, Device::Cpu)),
            places: Tensor::arange(8, (Kind::Int64, Device::Cpu)),
        });
        for round in 0..2 {
            let enter = |ledger: &mut Ledger, loss: f32| {
                ledger.entries.push(entry(true));
                ledger.taken.extend([Tensor::from(loss), Tensor::from(loss + 0.5)]);
            };
            enter(&mut ledger, 1.0);
            ledger.put().unwrap();
            ledger.end();
            enter(&mut ledger, 9.0);
            let entries = ledger.forget();
            // The device does it again by itself.
            ledger.taken.extend([Tensor::from(2.0_f32), Tensor::from(2.5_f32)]);
            ledger.put().unwrap();
            ledger.again(&entries);
            assert_eq!(ledger.entries.len(), 2, "round {round}");
            let numbers = ledger.numbers.as_ref().unwrap();
            assert_eq!(Vec::<f32>::try_from(numbers.values.narrow(0, 0, 4)).unwrap(), [1.0, 1.5, 2.0, 2.5]);
            let _ = numbers.at.shallow_clone().zero_();
            (ledger.entries, ledger.done) = (Vec::new(), 0);
        }
    }

    /// LEDGER-2.
    #[test]
    fn a_rank_names_itself_and_its_victims_do_not() {
        let entries = [entry(true), entry(true)];
        let of = |numbers: [f64; 4]| judge(&entries, &numbers, || "; rewards up to 9".into());
        assert!(of([1.0, 2.0, 3.0, 4.0]).is_ok());
        let own = of([1.0, 2.0, f64::NAN, f64::NAN]).unwrap_err().to_string();
        assert!(own.contains("the loss of this rank's own share is NaN in update 2 of 2"), "{own}");
        assert!(own.ends_with("rewards up to 9"), "{own}");
        let other = of([1.0, f64::INFINITY, f64::NAN, f64::NAN]).unwrap_err().to_string();
        assert!(other.contains("averaged over all ranks") && other.contains("update 1 of 2"), "{other}");
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
