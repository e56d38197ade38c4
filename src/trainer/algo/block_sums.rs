//! Sums over the blocks of `distributed.invariant`: each rank adds up what it holds of the fixed tree
//! ([`rankdeck_types::blocks`]), one all-gather brings the rest, and every rank finishes the tree.
//!
//! Invariants:
//! - BLOCKS-2: a sum has the same bits on all ranks, and for any number of ranks; the number of collectives does not
//!   depend on the data.

use crate::distributed::memory::floats;
use crate::distributed::{DistError, ProcessGroup};
use crate::error::TrainerError;
use rankdeck_types::blocks::{BlockShare, Node, TreeSum};
use tch::{Device, Tensor};

/// Adds up `f32` vectors, such as gradients. After the first sum, the only memory that is allocated is the
/// collective's.
pub(crate) struct BlockGradients {
    share: BlockShare,
    own: TreeSum<Vec<f32>>,
    all: TreeSum<Vec<f32>>,
    /// Memory for the next vectors.
    spare: Vec<Vec<f32>>,
    sent: Vec<f32>,
}

fn add(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

impl BlockGradients {
    /// For the blocks of a rank.
    pub(crate) fn new(share: BlockShare) -> BlockGradients {
        BlockGradients {
            share,
            own: TreeSum::new(share.all),
            all: TreeSum::new(share.all),
            spare: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// A vector of zeros, for the next block of this rank.
    pub(crate) fn zeros(&mut self, len: usize) -> Vec<f32> {
        let mut zeros = self.spare.pop().unwrap_or_default();
        zeros.clear();
        zeros.resize(len, 0.0);
        zeros
    }

    /// Adds block `index` of this rank, after those before it.
    pub(crate) fn push(&mut self, index: u32, gradient: Vec<f32>) {
        let spare = &mut self.spare;
        self.own.push(Node::leaf(self.share.first + index), gradient, |sum, more| {
            add(sum, &more);
            spare.push(more);
        });
    }

    /// Writes the sum over the blocks of all ranks (one collective, tag `grad`).
    pub(crate) fn finish(&mut self, group: &ProcessGroup, to: &mut [f32]) -> Result<(), TrainerError> {
        let BlockGradients { share, own, all, spare, sent } = self;
        let len = to.len();
        sent.clear();
        for part in own.take() {
            sent.extend_from_slice(&part);
            spare.push(part);
        }
        sent.resize(share.nodes_per_rank() * len, 0.0);
        let gathered = group.all_gather(&Tensor::f_from_slice(sent.as_slice())?, "grad")?;
        for (rank, tensor) in (0_u32..).zip(&gathered) {
            // SAFETY: the tensor is this function's own, and nothing writes to it.
            let parts = unsafe { floats(tensor) }.unwrap_or_default();
            for (node, part) in share.nodes_of(rank).into_iter().zip(parts.chunks_exact(len.max(1))) {
                let mut own = spare.pop().unwrap_or_default();
                own.clear();
                own.extend_from_slice(part);
                all.push(node, own, |sum, more| {
                    add(sum, &more);
                    spare.push(more);
                });
            }
        }
        for sum in all.take() {
            to.iter_mut().zip(&sum).for_each(|(to, from)| *to = *from);
            spare.push(sum);
        }
        Ok(())
    }
}

/// The sums of `own`, a row of numbers per block of this rank, over the blocks of all ranks (one collective).
pub(crate) fn sum_rows(
    share: BlockShare,
    own: &[Vec<f64>],
    group: &ProcessGroup,
    tag: &str,
) -> Result<Vec<f64>, DistError> {
    let width = own.first().map_or(0, Vec::len);
    let add = |sum: &mut Vec<f64>, more: Vec<f64>| {
        sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
    };
    let mut tree = TreeSum::new(share.all);
    for (block, row) in (share.first..).zip(own) {
        tree.push(Node::leaf(block), row.clone(), add);
    }
    let mut words: Vec<u64> = tree.take().flatten().map(f64::to_bits).collect();
    words.resize(share.nodes_per_rank() * width, 0);
    let mut all = TreeSum::new(share.all);
    for (rank, words) in (0_u32..).zip(group.all_gather_words(&words, tag)?) {
        for (node, row) in share.nodes_of(rank).into_iter().zip(words.chunks_exact(width.max(1))) {
            all.push(node, row.iter().map(|bits| f64::from_bits(*bits)).collect(), add);
        }
    }
    Ok(all.take().next().unwrap_or_default())
}

/// Refuses a device that adds in an order of its own.
pub(crate) fn check_device(share: Option<BlockShare>, device: Device) -> Result<(), TrainerError> {
    match share {
        Some(_) if device != Device::Cpu => Err(TrainerError::usage(
            "`distributed.invariant` cannot be kept: this rank has a GPU, which adds in an order of its own",
            "set distributed.backend = \"tcp\"",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_is_refused_by_its_key() {
        let share = Some(BlockShare::new(12, 12, 0, 1));
        let error = check_device(share, Device::Cuda(0)).unwrap_err();
        assert!(error.usage && error.hint().contains("distributed.backend"), "{error:?}");
        assert!(check_device(share, Device::Cpu).is_ok() && check_device(None, Device::Cuda(0)).is_ok());
    }
}
