//! Shows what operations give to an observer of this thread, for `rankdeck diff`: two executions are compared operation
//! by operation. Without an observer, an operation costs one comparison more.
//!
//! An operation belongs to a *place*: a stage of an iteration, and the rank or the block of environments that it works
//! on. Only operations between [`enter`] and [`leave`] are shown.

use std::cell::{Cell, RefCell};

/// Stage of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    /// Weights and moments before the iteration.
    #[default]
    Start,
    /// Observations, actions and rewards.
    Rollout,
    /// Advantages and returns.
    Advantages,
    /// Forward and backward pass of an update.
    Pass,
    /// Sum of the gradients and step of the optimizer.
    Step,
}

/// Where an operation belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Updates of the iteration before this operation.
    pub update: u64,
    pub stage: Stage,
    /// Rank or block; 0 in [`Stage::Start`] and [`Stage::Step`], which all ranks make alike.
    pub unit: u32,
}

/// What an operation gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operation<'a> {
    pub place: Place,
    /// Operations of this place before it.
    pub step: u32,
    pub name: &'a str,
    /// Numbers that it gave.
    pub len: usize,
    /// Hash of their bits.
    pub hash: u64,
    /// Root of the sum of their squares.
    pub norm: f64,
}

/// Receives operations.
pub type Observer = Box<dyn FnMut(&Operation<'_>)>;

struct Observed {
    observer: Observer,
    place: Place,
    step: u32,
    part: &'static str,
}

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static OBSERVED: RefCell<Option<Observed>> = const { RefCell::new(None) };
}

/// Shows the operations of iteration `iteration` on this thread to `observer`.
pub fn start(iteration: u64, observer: Observer) {
    let place = Place { iteration, ..Place::default() };
    OBSERVED.set(Some(Observed { observer, place, step: 0, part: "" }));
}

/// Ends it.
pub fn finish() {
    ACTIVE.set(false);
    OBSERVED.set(None);
}

fn observed(change: impl FnOnce(&mut Observed)) {
    OBSERVED.with_borrow_mut(|observed| {
        if let Some(observed) = observed {
            change(observed);
        }
    });
}

/// Operations from here on belong to this stage and unit.
pub fn enter(stage: Stage, unit: u32) {
    observed(|observed| {
        let place = Place { stage, unit, ..observed.place };
        (observed.place, observed.step, observed.part) = (place, 0, "");
        ACTIVE.set(true);
    });
}

/// Operations from here on are not shown.
pub fn leave() {
    ACTIVE.set(false);
}

/// An update has ended.
pub fn finish_update() {
    ACTIVE.set(false);
    observed(|observed| observed.place.update += 1);
}

/// Whether operations are shown.
pub fn is_active() -> bool {
    ACTIVE.get()
}

/// Names the network that the following operations belong to.
pub fn part(name: &'static str) {
    if ACTIVE.get() {
        observed(|observed| observed.part = name);
    }
}

/// Shows what an operation gave.
#[inline]
pub fn record(name: impl FnOnce() -> String, values: &[f32]) {
    if ACTIVE.get() {
        show(name(), values);
    }
}

#[cold]
fn show(name: String, values: &[f32]) {
    observed(|observed| {
        let name = if observed.part.is_empty() { name } else { format!("{} {name}", observed.part) };
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let operation = Operation {
            place: observed.place,
            step: observed.step,
            name: &name,
            len: values.len(),
            hash: hash(values),
            norm,
        };
        observed.step += 1;
        (observed.observer)(&operation);
    });
}

/// Hash of the bits, the same on every processor. Each word passes the finalizer of SplitMix64 (Steele, Lea and Flood
/// 2014), so that any changed bit changes it.
pub fn hash(values: &[f32]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mut mixed = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    values.iter().fold(values.len() as u64, |hash, value| mix(hash, u64::from(value.to_bits())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn operations_carry_place_step_and_part() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let to = seen.clone();
        record(|| unreachable!("no observer"), &[1.0]);
        start(
            7,
            Box::new(move |operation| {
                let Operation { place, step, name, len, .. } = *operation;
                to.borrow_mut().push((place, step, name.to_owned(), len));
            }),
        );
        record(|| unreachable!("outside of a place"), &[1.0]);
        enter(Stage::Pass, 3);
        part("actor");
        record(|| "product".into(), &[1.0, 2.0]);
        record(|| "activation".into(), &[1.0]);
        leave();
        record(|| unreachable!("after the place"), &[1.0]);
        finish_update();
        enter(Stage::Step, 0);
        record(|| "weights".into(), &[1.0]);
        finish();
        record(|| unreachable!("after the end"), &[1.0]);
        let pass = Place { iteration: 7, update: 0, stage: Stage::Pass, unit: 3 };
        let step = Place { iteration: 7, update: 1, stage: Stage::Step, unit: 0 };
        let expected = [
            (pass, 0, "actor product".to_owned(), 2),
            (pass, 1, "actor activation".to_owned(), 1),
            (step, 0, "weights".to_owned(), 1),
        ];
        assert_eq!(*seen.borrow(), expected);
    }

    #[test]
    fn any_bit_and_the_order_change_the_hash() {
        let values = [1.0_f32, -0.0, 3.5, 1e-40];
        for i in 0..values.len() {
            for bit in 0..32 {
                let mut other = values;
                other[i] = f32::from_bits(other[i].to_bits() ^ (1 << bit));
                assert_ne!(hash(&other), hash(&values), "number {i} bit {bit}");
            }
        }
        assert_ne!(hash(&[1.0, 2.0]), hash(&[2.0, 1.0]));
        assert_ne!(hash(&[0.0]), hash(&[0.0, 0.0]));
    }
}
