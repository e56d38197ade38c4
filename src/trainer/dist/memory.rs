//! The bytes of CPU tensors, for small reductions and fingerprints without copies.
//!
//! Owner: the process group. Invariant: only contiguous CPU tensors; for any other the slice is empty.

use tch::{Device, Tensor};

fn length(tensor: &Tensor) -> usize {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return 0;
    }
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// The bytes of a contiguous CPU tensor.
pub(super) fn bytes(tensor: &Tensor) -> &[u8] {
    match length(tensor) {
        0 => &[],
        // SAFETY: a contiguous CPU tensor holds exactly `length` bytes from `data_ptr` on, and the borrow keeps it alive.
        length => unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) },
    }
}

/// The bytes of a contiguous CPU tensor, to write. The tensor must not share its memory with one that is read meanwhile.
pub(super) fn bytes_mut(tensor: &mut Tensor) -> &mut [u8] {
    match length(tensor) {
        0 => &mut [],
        // SAFETY: as in `bytes`; the callers own the tensor's storage alone (scratch and frames that they made themselves).
        length => unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) },
    }
}
