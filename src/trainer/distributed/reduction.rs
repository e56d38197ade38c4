//! Combining numbers of two ranks.
//!
//! Owner: direct collectives.

use super::ffi::RawReduce;
use tch::Kind;

/// The type of the elements, and how they are combined.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub op: RawReduce,
    pub kind: Kind,
}

impl Reduction {
    /// Whether this file implements it.
    pub(super) fn is_known(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Double | Kind::Int64 | Kind::Uint8 | Kind::Int8)
    }

    /// Combines `other` into `own`; `lower`: `own` is the lower rank's value.
    pub(super) fn combine(self, own: &mut [u8], other: &[u8], lower: bool) {
        match (self.kind, self.op) {
            (Kind::Float, RawReduce::Sum) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Float, RawReduce::Min) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Float, RawReduce::Max) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, RawReduce::Sum) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Double, RawReduce::Min) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, RawReduce::Max) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Uint8, RawReduce::Sum) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, u8::wrapping_add)
            }
            (Kind::Uint8, RawReduce::Min) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, Ord::min)
            }
            (Kind::Uint8, RawReduce::Max) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, Ord::max)
            }
            (Kind::Int8, RawReduce::Sum) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, i8::wrapping_add)
            }
            (Kind::Int8, RawReduce::Min) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, Ord::min)
            }
            (Kind::Int8, RawReduce::Max) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, Ord::max)
            }
            (_, RawReduce::Sum) => {
                each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, i64::wrapping_add)
            }
            (_, RawReduce::Min) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::min),
            (_, RawReduce::Max) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::max),
        }
    }
}

fn each<T: Copy, const N: usize>(
    own: &mut [u8],
    other: &[u8],
    lower: bool,
    from: impl Fn([u8; N]) -> T,
    to: impl Fn(T) -> [u8; N],
    combine: impl Fn(T, T) -> T,
) {
    let pairs = own.as_chunks_mut::<N>().0.iter_mut().zip(other.as_chunks::<N>().0);
    if lower {
        pairs.for_each(|(own, other)| *own = to(combine(from(*own), from(*other))));
    } else {
        pairs.for_each(|(own, other)| *own = to(combine(from(*other), from(*own))));
    }
}
