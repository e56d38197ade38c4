//! Tensor memory: CPU tensors as slices without copies, and uploads to a GPU.
//!
//! Invariant: only contiguous CPU tensors; for any other there is no slice, or an empty one.
//!
//! A tensor's storage may have several owners: clones and views share it, and `.grad` of a parameter is a
//! view of the flat gradients. The borrow of one tensor does not cover the others, so the caller must exclude
//! them.

use super::ffi;
use tch::{Device, Kind, TchError, Tensor};

fn length(tensor: &Tensor) -> usize {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return 0;
    }
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

fn is_f32(tensor: &Tensor) -> bool {
    tensor.kind() == Kind::Float && length(tensor) > 0
}

/// The bytes of a contiguous CPU tensor.
///
/// # Safety
/// Until the slice is dropped, nothing writes to the tensor's storage: neither through this tensor nor
/// through one that shares the storage, on any thread.
pub(super) unsafe fn bytes(tensor: &Tensor) -> &[u8] {
    match length(tensor) {
        0 => &[],
        // SAFETY: a contiguous CPU tensor holds exactly `length` bytes from `data_ptr` on, and the borrow
        // keeps it alive. The caller excludes writers.
        length => unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) },
    }
}

/// The bytes of a contiguous CPU tensor, to write.
///
/// # Safety
/// Until the slice is dropped, nothing else reads or writes the tensor's storage: neither through this tensor
/// nor through one that shares the storage, on any thread.
pub(super) unsafe fn bytes_mut(tensor: &mut Tensor) -> &mut [u8] {
    match length(tensor) {
        0 => &mut [],
        // SAFETY: as in `bytes`. The caller excludes readers and writers.
        length => unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) },
    }
}

/// The numbers of a contiguous f32 CPU tensor; `None` for any other, and for an empty one.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn floats(tensor: &Tensor) -> Option<&[f32]> {
    // SAFETY: such a tensor holds `numel` aligned f32 from `data_ptr` on, and the borrow keeps it alive. The
    // caller excludes writers.
    is_f32(tensor)
        .then(|| unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}

/// The numbers of a contiguous f32 CPU tensor, to write; `None` for any other, and for an empty one.
///
/// # Safety
/// As for [`bytes_mut`].
pub(crate) unsafe fn floats_mut(tensor: &mut Tensor) -> Option<&mut [f32]> {
    // SAFETY: as in `floats`. The caller excludes readers and writers.
    is_f32(tensor)
        .then(|| unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}

/// A copy of a CPU tensor on `device`; the same tensor where that is the CPU.
pub(crate) fn upload(mut host: Tensor, device: Device) -> Result<Tensor, TchError> {
    match device {
        Device::Cuda(index) => ffi::upload(&mut host, index as i32)
            .map_err(|failure| TchError::Torch(format!("cannot copy to GPU {index}: {}", failure.text))),
        Device::Cpu => Ok(host),
        other => host.f_to_device(other),
    }
}

/// [`upload`] of numbers.
pub(crate) fn upload_slice<T: tch::kind::Element>(values: &[T], device: Device) -> Result<Tensor, TchError> {
    upload(Tensor::f_from_slice(values)?, device)
}

/// Every part begins at a multiple of it: the size of the largest number.
const ALIGNMENT: usize = 8;

/// Numbers of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostValues<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
}

impl HostValues<'_> {
    fn kind(self) -> Kind {
        match self {
            HostValues::F32(_) => Kind::Float,
            HostValues::I64(_) => Kind::Int64,
            HostValues::U8(_) => Kind::Uint8,
        }
    }

    fn tensor(self) -> Result<Tensor, TchError> {
        match self {
            HostValues::F32(values) => Tensor::f_from_slice(values),
            HostValues::I64(values) => Tensor::f_from_slice(values),
            HostValues::U8(values) => Tensor::f_from_slice(values),
        }
    }

    fn append(self, bytes: &mut Vec<u8>) {
        match self {
            HostValues::F32(values) => bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes())),
            HostValues::I64(values) => bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes())),
            HostValues::U8(values) => bytes.extend_from_slice(values),
        }
    }
}

/// Uploads the inputs of an update to the GPU in one copy, to the same place each time. On the CPU nothing
/// is copied together.
pub(crate) struct PackedUpload {
    device: Device,
    /// What is to be sent, on its way to a GPU.
    bytes: Vec<u8>,
    /// Where it lies there.
    there: Option<Tensor>,
}

impl PackedUpload {
    /// For this device.
    pub(crate) fn new(device: Device) -> PackedUpload {
        PackedUpload { device, bytes: Vec::new(), there: None }
    }

    /// Sends parts with their shapes; what comes back lies where it lay the last time, if they are as large.
    pub(crate) fn send(&mut self, parts: &[(HostValues<'_>, Vec<i64>)]) -> Result<Vec<Tensor>, TchError> {
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
        let view = |((values, shape), (start, len)): (&(HostValues<'_>, Vec<i64>), (i64, i64))| {
            there.f_narrow(0, start, len)?.f_view_dtype(values.kind())?.f_view(shape.as_slice())
        };
        parts.iter().zip(ranges).map(view).collect()
    }

    /// Changes when the parts lie elsewhere than before.
    pub(crate) fn place(&self) -> u64 {
        self.there.as_ref().map_or(0, |there| there.data_ptr().addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_upload_copies_nothing() {
        let host = Tensor::from_slice(&[1.0_f32, 2.0]);
        let at = host.data_ptr();
        assert_eq!(upload(host, Device::Cpu).unwrap().data_ptr(), at);
    }

    #[test]
    fn gpu_upload_without_a_gpu_names_the_device() {
        if tch::Cuda::is_available() {
            rankdeck_testkit::skip!("GPU: this host has one");
        }
        let error = upload_slice(&[1_i64], Device::Cuda(3)).unwrap_err();
        assert!(error.to_string().contains("GPU 3"), "{error}");
    }

    /// Many copies in flight while the GPU computes with earlier ones: each arrives whole, and what is
    /// computed uses it and no other.
    #[test]
    #[ignore = "GPU: needs one"]
    fn gpu_uploads_arrive_whole_and_in_time() {
        assert!(crate::distributed::cuda::load_cuda().unwrap(), "no GPU here");
        let device = Device::Cuda(0);
        let sums: Vec<Tensor> = (0..64_i64)
            .map(|i| {
                let there = upload_slice(&vec![i as f32; 1 << 20], device).unwrap();
                (&there * 2.0).sum(tch::Kind::Double)
            })
            .collect();
        for (i, sum) in sums.iter().enumerate() {
            assert_eq!(sum.double_value(&[]), 2.0 * i as f64 * f64::from(1 << 20));
        }
    }
}
