//! The memory of CPU tensors as slices, without copies: for fingerprints, direct reductions and hand-written
//! passes.
//!
//! Owner: the process group. Invariant: only contiguous CPU tensors; for any other there is no slice, or an
//! empty one.
//!
//! A tensor's storage may have several owners: clones and views share it, and `.grad` of a parameter is a
//! view of the flat gradients. The borrow of one tensor does not cover the others, so the caller must exclude
//! them.

use tch::{Device, Kind, Tensor};

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
