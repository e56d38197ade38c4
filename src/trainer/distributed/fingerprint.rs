//! Hashes that all ranks compare: of weights, of layouts, of source locations.
//!
//! Owner: the process group. Invariant: the same bytes give the same value in every process and build (no
//! random state).

use super::memory::bytes;
use std::panic::Location;
use tch::{Device, Tensor};

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIERS: [u64; 4] =
    [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53, 0x8765_4321_9abc_def1, 0xd6e8_feb8_6659_fd93];

/// A running 64-bit hash, fast over long byte strings: four independent multiply-rotate sums, as in
/// xxHash64 (with other values).
#[derive(Debug, Clone, Copy)]
pub(super) struct Hash(u64);

fn finish(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(MULTIPLIERS[0]);
    value = (value ^ (value >> 29)).wrapping_mul(MULTIPLIERS[1]);
    value ^ (value >> 32)
}

impl Hash {
    pub(super) fn new() -> Hash {
        Hash(SEED)
    }

    pub(super) fn word(self, word: u64) -> Hash {
        Hash(finish(self.0.rotate_left(23) ^ word.wrapping_mul(MULTIPLIERS[2])))
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Hash {
        let mut direct = MULTIPLIERS.map(|sum| sum ^ self.0);
        let mut blocks = bytes.chunks_exact(32);
        for block in &mut blocks {
            for (sum, part) in direct.iter_mut().zip(block.chunks_exact(8)) {
                let mut word = [0; 8];
                word.copy_from_slice(part);
                *sum = (*sum ^ u64::from_le_bytes(word)).wrapping_mul(MULTIPLIERS[0]).rotate_left(31);
            }
        }
        let mut hash = self.word(bytes.len() as u64);
        for sum in direct {
            hash = hash.word(sum);
        }
        for part in blocks.remainder().chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            hash = hash.word(u64::from_le_bytes(word));
        }
        hash
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

/// Adds the raw bytes of a tensor; bit-exact, so `0.0` and `-0.0` differ.
pub(super) fn tensor(hash: Hash, tensor: &Tensor) -> Hash {
    // SAFETY: hashing runs no tensor operation, and tensors belong to this thread (`Ddp` is not `Send`).
    match unsafe { bytes(tensor) } {
        // On another device, not contiguous, or empty.
        [] => {
            let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
            // SAFETY: as above.
            hash.bytes(unsafe { bytes(&tensor) })
        }
        bytes => hash.bytes(bytes),
    }
}

/// A number for the place in the source that called, equal on all ranks of one build.
pub(super) fn call_site(location: &Location<'_>) -> u64 {
    Hash::new()
        .bytes(location.file().as_bytes())
        .word(u64::from(location.line()))
        .word(u64::from(location.column()))
        .value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bit_changes_the_hash() {
        let bytes: Vec<u8> = (0..200u8).collect();
        let whole = Hash::new().bytes(&bytes).value();
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[index] ^= 1 << bit;
                assert_ne!(Hash::new().bytes(&other).value(), whole, "byte {index} bit {bit}");
            }
        }
        assert_ne!(Hash::new().bytes(&bytes[..199]).value(), whole);
    }

    #[test]
    fn order_and_length_count() {
        let of = |bytes: &[u8]| Hash::new().bytes(bytes).value();
        assert_ne!(of(&[0; 8]), of(&[0; 9]));
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        let (a, b) = ([1u8; 32], [2u8; 32]);
        assert_ne!(of(&[a, b].concat()), of(&[b, a].concat()));
    }

    #[test]
    fn tensors_hash_by_their_bits() {
        let of = |values: &[f32]| tensor(Hash::new(), &Tensor::from_slice(values)).value();
        assert_eq!(of(&[1.0, 2.0]), of(&[1.0, 2.0]));
        assert_ne!(of(&[0.0]), of(&[-0.0]));
        let turned = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]).view([2, 2]).transpose(0, 1);
        assert_eq!(tensor(Hash::new(), &turned).value(), of(&[1.0, 3.0, 2.0, 4.0]));
    }
}
