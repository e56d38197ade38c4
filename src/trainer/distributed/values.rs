//! Small values over the process group: integers and 64-bit floats reduced exactly as they are, objects as
//! JSON.
//!
//! Owner: the process group. Invariants:
//! - Values are reduced in their own type: nothing is converted on the way.
//! - An object takes one collective up to 4 KiB, else two. All ranks decide by the length that the
//!   first one has.

use super::error::{BackendError, DistError, DistErrorKind};
use super::group::{CollectiveCall, ProcessGroup, ReduceOp};
use rankdeck_proto::status_page::Op;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::Location;
use tch::kind::Element;
use tch::{Kind, Tensor};

/// Bytes of an object that travel in one collective; longer ones need two.
const FRAME: usize = 4096;
const FRAME_HEAD: usize = 8;
/// Largest object.
const OBJECT_MAX: usize = 64 << 20;

impl ProcessGroup {
    /// Reduces integers in place, exactly. There is no average.
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
    pub fn all_gather_words(&self, own: &[u64], tag: &str) -> Result<Vec<Vec<u64>>, DistError> {
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
        let call = |count| CollectiveCall {
            op: Op::Broadcast,
            tag,
            count,
            kind: Kind::Uint8,
            root: Some(root),
            site,
        };
        let json = if self.rank() == root {
            serde_json::to_vec(value)
                .map_err(|error| self.refuse(&call(0), &format!("value cannot be sent: {error}")))?
        } else {
            Vec::new()
        };
        if json.len() > OBJECT_MAX {
            return Err(self.refuse(&call(json.len()), "value is too long to be sent"));
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
                    BackendError::new(DistErrorKind::Mismatch, format!("value cannot be read: {error}")),
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
        call: &CollectiveCall<'_>,
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
