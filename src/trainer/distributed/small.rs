//! Small values over the process group: integers and 64-bit floats reduced exactly as they are, objects as JSON.
//!
//! Owner: the process group. Invariants:
//! - SMALL-1: one shape for all: the values are laid into a CPU tensor that is kept between calls, reduced, and read back; nothing is converted.
//! - SMALL-2: an object takes one collective up to 4 KiB, else two, as its length on the root says: all ranks see that length first.

use super::error::{DistError, DistErrorKind, Failure};
use super::group::{Call, ProcessGroup, ReduceOp};
use super::memory;
use rankdeck_proto::status_page::Op;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::panic::Location;
use tch::{Device, Kind, Tensor};

/// Bytes of an object that travel in one collective; longer ones need two.
const FRAME: usize = 4096;
const FRAME_HEAD: usize = 8;
/// Largest object.
const OBJECT_MAX: usize = 64 << 20;
/// Sizes of small reductions that keep their tensors.
const SCRATCH_MAX: usize = 32;

/// CPU tensors kept between calls, by type and length.
#[derive(Default)]
pub(super) struct Scratch(HashMap<(Kind, usize), Tensor>);

impl Scratch {
    fn get(&mut self, kind: Kind, length: usize) -> Tensor {
        if self.0.len() >= SCRATCH_MAX && !self.0.contains_key(&(kind, length)) {
            self.0.clear();
        }
        self.0
            .entry((kind, length))
            .or_insert_with(|| Tensor::zeros([length as i64], (kind, Device::Cpu)))
            .shallow_clone()
    }
}

/// A number of eight bytes that can be reduced.
trait Word: Copy {
    const KIND: Kind;
    fn to_bytes(self) -> [u8; 8];
    fn from_bytes(bytes: [u8; 8]) -> Self;
}

impl Word for i64 {
    const KIND: Kind = Kind::Int64;
    fn to_bytes(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
    fn from_bytes(bytes: [u8; 8]) -> i64 {
        i64::from_ne_bytes(bytes)
    }
}

impl Word for f64 {
    const KIND: Kind = Kind::Double;
    fn to_bytes(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
    fn from_bytes(bytes: [u8; 8]) -> f64 {
        f64::from_ne_bytes(bytes)
    }
}

impl ProcessGroup {
    /// Reduces integers in place; exact, so that totals are. No average.
    #[track_caller]
    pub fn all_reduce_i64(&self, values: &mut [i64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        self.all_reduce_words(values, op, tag)
    }

    /// Reduces 64-bit floats in place.
    #[track_caller]
    pub fn all_reduce_f64(&self, values: &mut [f64], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        self.all_reduce_words(values, op, tag)
    }

    #[track_caller]
    fn all_reduce_words<T: Word>(&self, values: &mut [T], op: ReduceOp, tag: &str) -> Result<(), DistError> {
        let mut tensor = self.scratch.borrow_mut().get(T::KIND, values.len());
        for (to, from) in memory::bytes_mut(&mut tensor).chunks_exact_mut(8).zip(values.iter()) {
            to.copy_from_slice(&from.to_bytes());
        }
        self.all_reduce(&mut tensor, op, tag)?;
        for (to, from) in values.iter_mut().zip(memory::bytes(&tensor).chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(from);
            *to = T::from_bytes(word);
        }
        Ok(())
    }

    /// Every rank's words, in rank order; all ranks must bring as many. Floats travel as their bits.
    #[track_caller]
    pub fn all_gather_words(&self, own: &[u64], tag: &str) -> Result<Vec<Vec<u64>>, DistError> {
        let words: Vec<i64> = own.iter().map(|word| word.cast_signed()).collect();
        let read = |tensor: &Tensor| {
            let words = memory::bytes(tensor).as_chunks::<8>().0;
            words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        Ok(self.all_gather(&Tensor::from_slice(&words), tag)?.iter().map(read).collect())
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
        let json = if self.rank() == root {
            serde_json::to_vec(value)
                .map_err(|error| self.refuse(&call(0), &format!("value cannot be sent: {error}")))?
        } else {
            Vec::new()
        };
        if json.len() > OBJECT_MAX {
            return Err(self.refuse(&call(json.len()), "value is too long to be sent"));
        }
        let mut frame = self.scratch.borrow_mut().get(Kind::Uint8, FRAME);
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
            if self.rank() == root {
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
}
