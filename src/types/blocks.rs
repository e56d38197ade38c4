//! Sums over blocks of environments in one fixed order, whoever holds the blocks (`distributed.invariant`).
//!
//! The blocks are the leaves of a binary tree. A node of level `l` with index `i` covers the blocks from `i * 2^l` on,
//! at most `2^l` of them, and is the sum of its left and its right child; a child without a sibling stands for its
//! parent. The order of additions therefore depends on the number of blocks alone. A rank with consecutive blocks adds
//! up the largest nodes that it holds whole ([`nodes`]), and every rank adds up all ranks' nodes. (Demmel and Nguyen,
//! "Parallel Reproducible Summation", 2015, section 1: a fixed reduction tree is reproducible.)
//!
//! Invariants:
//! - BLOCKS-1: the sum of all blocks has the same bits however consecutive blocks are spread over ranks.

/// The blocks of all ranks, and which of them a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShare {
    /// Blocks over all ranks.
    pub all: u32,
    /// The first one of this rank.
    pub first: u32,
    /// Blocks of each rank.
    pub count: u32,
    /// Environments of each block.
    pub envs: u32,
}

impl BlockShare {
    /// Returns the share of `rank` among `world` ranks, which divide `all` blocks that divide `envs` environments.
    pub fn new(all: u32, envs: u32, rank: u32, world: u32) -> BlockShare {
        let count = all / world.max(1);
        BlockShare { all, first: rank * count, count, envs: envs / all.max(1) }
    }

    /// Returns the largest nodes that `rank` holds whole, in order.
    pub fn nodes_of(&self, rank: u32) -> Vec<Node> {
        nodes(self.all, rank * self.count, self.count)
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.all / self.count.max(1)
    }

    /// Returns the nodes that each rank sends: those of the rank with the most.
    pub fn nodes_per_rank(&self) -> usize {
        (0..self.world()).map(|rank| self.nodes_of(rank).len()).max().unwrap_or(1)
    }
}

/// A node of the tree: sums of the same node have the same bits everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    level: u32,
    index: u32,
}

impl Node {
    /// Returns the leaf of a block.
    pub fn leaf(block: u32) -> Node {
        Node { level: 0, index: block }
    }

    fn parent(self) -> Node {
        Node { level: self.level + 1, index: self.index / 2 }
    }

    /// Returns whether this is a left child without a right one, among `blocks` leaves.
    fn has_no_sibling(self, blocks: u32) -> bool {
        let next = (u64::from(self.index) + 1) << self.level;
        self.index.is_multiple_of(2) && self.index > 0 && next >= u64::from(blocks)
    }
}

/// Nodes in order of their blocks, added up as far as they are siblings.
#[derive(Debug)]
pub struct TreeSum<T> {
    blocks: u32,
    parts: Vec<(Node, T)>,
}

impl<T> TreeSum<T> {
    /// Nothing yet, of `blocks` blocks.
    pub fn new(blocks: u32) -> TreeSum<T> {
        TreeSum { blocks, parts: Vec::new() }
    }

    /// Adds the node that follows those that were added. `add` adds its second argument to its first one, and may keep
    /// the second one's memory.
    pub fn push(&mut self, node: Node, value: T, mut add: impl FnMut(&mut T, T)) {
        let (mut node, mut value) = (node, value);
        loop {
            let is_left = |(left, _): &mut (Node, T)| {
                left.level == node.level && left.index.is_multiple_of(2) && left.index + 1 == node.index
            };
            if let Some((_, mut sum)) = self.parts.pop_if(is_left) {
                add(&mut sum, value);
                (node, value) = (node.parent(), sum);
            } else if node.has_no_sibling(self.blocks) {
                node = node.parent();
            } else {
                break;
            }
        }
        self.parts.push((node, value));
    }

    /// Takes what was added up, in order: one value once all blocks were added.
    pub fn take(&mut self) -> impl Iterator<Item = T> + '_ {
        self.parts.drain(..).map(|(_, value)| value)
    }
}

/// Returns the largest nodes within `count` blocks from `first` on, in order.
pub fn nodes(blocks: u32, first: u32, count: u32) -> Vec<Node> {
    let mut sum = TreeSum::new(blocks);
    (first..first + count).for_each(|block| sum.push(Node::leaf(block), (), |_, ()| {}));
    sum.parts.into_iter().map(|(node, ())| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of additions as a text.
    fn order(blocks: u32, world: u32) -> String {
        let add = |a: &mut String, b: String| *a = format!("({a}+{b})");
        let mut all = TreeSum::new(blocks);
        for rank in 0..world {
            let share = BlockShare::new(blocks, blocks, rank, world);
            let mut own = TreeSum::new(blocks);
            let held = share.first..share.first + share.count;
            held.for_each(|block| own.push(Node::leaf(block), block.to_string(), add));
            let nodes = share.nodes_of(rank);
            let values: Vec<String> = own.take().collect();
            assert_eq!(nodes.len(), values.len());
            nodes.into_iter().zip(values).for_each(|(node, value)| all.push(node, value, add));
        }
        let whole: Vec<String> = all.take().collect();
        assert_eq!(whole.len(), 1, "{blocks} blocks on {world} ranks: {whole:?}");
        whole.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn blocks_1_order_of_additions_is_that_of_one_rank() {
        for blocks in 1..=48 {
            let alone = order(blocks, 1);
            for world in (2..=blocks).filter(|world| blocks % world == 0) {
                assert_eq!(order(blocks, world), alone, "{blocks} blocks on {world} ranks");
            }
        }
        assert_eq!(order(6, 3), "(((0+1)+(2+3))+(4+5))");
        assert_eq!(order(5, 5), "(((0+1)+(2+3))+4)");
    }

    #[test]
    fn aligned_ranks_send_one_node() {
        let sent = |blocks, world| BlockShare::new(blocks, blocks, 0, world).nodes_per_rank();
        assert_eq!([1, 2, 3, 4, 6, 12].map(|world| sent(12, world)), [1, 2, 1, 2, 1, 1]);
        assert_eq!([1, 2, 4, 8].map(|world| sent(8, world)), [1; 4]);
    }
}
