//! What an update needs from the host, in one piece: one copy to the GPU, and the same place there each time.
//!
//! Owner: the learner. On the CPU nothing is copied together.

use crate::distributed::upload::upload;
use tch::{Device, Kind, TchError, Tensor};

/// Every part begins at a multiple of it: the size of the largest number.
const ALIGNMENT: usize = 8;

/// Numbers of one kind.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
}

impl Values<'_> {
    fn kind(self) -> Kind {
        match self {
            Values::F32(_) => Kind::Float,
            Values::I64(_) => Kind::Int64,
            Values::U8(_) => Kind::Uint8,
        }
    }

    fn tensor(self) -> Result<Tensor, TchError> {
        match self {
            Values::F32(values) => Tensor::f_from_slice(values),
            Values::I64(values) => Tensor::f_from_slice(values),
            Values::U8(values) => Tensor::f_from_slice(values),
        }
    }

    fn append(self, bytes: &mut Vec<u8>) {
        match self {
            Values::F32(values) => bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes())),
            Values::I64(values) => bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes())),
            Values::U8(values) => bytes.extend_from_slice(values),
        }
    }
}

/// Parts that are sent together.
pub struct PackedParts {
    device: Device,
    /// What is to be sent, on its way to a GPU.
    bytes: Vec<u8>,
    /// Where it lies there.
    there: Option<Tensor>,
}

impl PackedParts {
    /// For this device.
    pub fn new(device: Device) -> PackedParts {
        PackedParts { device, bytes: Vec::new(), there: None }
    }

    /// Sends parts with their shapes; what comes back lies where it lay the last time, if they are as large.
    pub fn send(&mut self, parts: &[(Values<'_>, Vec<i64>)]) -> Result<Vec<Tensor>, TchError> {
        if self.device == Device::Cpu {
            return parts.iter().map(|(values, shape)| values.tensor()?.f_view(shape.as_slice())).collect();
        }
        self.bytes.clear();
        let mut ranges = Vec::new();
        for (values, _) in parts {
            self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
            let start = self.bytes.len();
            values.append(&mut self.bytes);
            ranges.push((start as i64, (self.bytes.len() - start) as i64));
        }
        let new = upload(Tensor::f_from_slice(&self.bytes)?, self.device)?;
        let there = match &mut self.there {
            Some(there) if there.numel() == new.numel() => {
                there.f_copy_(&new)?;
                there
            }
            there => there.insert(new),
        };
        let view = |((values, shape), (start, len)): (&(Values<'_>, Vec<i64>), (i64, i64))| {
            there.f_narrow(0, start, len)?.f_view_dtype(values.kind())?.f_view(shape.as_slice())
        };
        parts.iter().zip(ranges).map(view).collect()
    }

    /// Changes when the parts lie elsewhere than before.
    pub fn place(&self) -> u64 {
        self.there.as_ref().map_or(0, |there| there.data_ptr().addr() as u64)
    }
}
