//! The memory of CPU tensors: bytes for small reductions and fingerprints without copies, numbers for hand-written passes.
//!
//! Owner: the process group. Invariant: only contiguous CPU tensors; for any other there is no slice, or an empty one.

use tch::{Device, Kind, Tensor};

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
        // SAFETY: as in `bytes`; the callers own the tensor's storage alone (scratch and frames that they made themselves), or lend it to a collective, in which
        // nothing else of this thread runs and no other thread knows it (gradients, totals).
        length => unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) },
    }
}

/// The numbers of a contiguous f32 CPU tensor.
pub(crate) fn floats(tensor: &Tensor) -> Option<&[f32]> {
    let fits = tensor.kind() == Kind::Float && tensor.device() == Device::Cpu && tensor.is_contiguous();
    // SAFETY: such a tensor holds `numel` aligned f32 from `data_ptr` on (null only without elements), and the borrow keeps it alive.
    (fits && tensor.numel() > 0)
        .then(|| unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}

/// The numbers of a contiguous f32 CPU tensor, to write. Views of the same storage must not be read or written meanwhile: owners of flat buffers
/// lend them for a single pass, in which nothing else runs.
pub(crate) fn floats_mut(tensor: &mut Tensor) -> Option<&mut [f32]> {
    let fits = tensor.kind() == Kind::Float && tensor.device() == Device::Cpu && tensor.is_contiguous();
    // SAFETY: as in `floats`; the caller gives up the tensor for as long, and sees to its views.
    (fits && tensor.numel() > 0)
        .then(|| unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) })
}
