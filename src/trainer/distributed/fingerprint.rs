//! Hashes of weights, layouts and source locations, compared over all ranks.
//!
//! Invariants:
//! - The same bytes give the same value in every process and build (no random state).
//! - FINGERPRINT-1: weights on a GPU are hashed there; a few words come back. Any change of one number
//!   changes the sum, since every number counts times an odd one.

use super::memory::bytes;
use std::panic::Location;
use tch::{Device, Kind, TchError, Tensor};

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

/// Numbers per row of a [`Digest`].
const ROW: i64 = 1024;

/// Factors by which the words of a flat tensor count in its digest: those of a row, and those of rows.
pub(super) struct Digest {
    words: Tensor,
    columns: Tensor,
    rows: Tensor,
}

/// Odd factors that are not alike.
fn factors(count: i64, salt: u64, device: Device) -> Result<Tensor, TchError> {
    let factors: Vec<i64> =
        (0..count.cast_unsigned()).map(|index| (finish(index ^ salt) | 1).cast_signed()).collect();
    Tensor::f_from_slice(&factors)?.f_to_device(device)
}

impl Digest {
    /// For a contiguous tensor, whose memory it reads again each time.
    pub(super) fn new(tensor: &Tensor) -> Result<Digest, TchError> {
        let kind = match tensor.kind().elt_size_in_bytes() {
            1 => Kind::Uint8,
            4 => Kind::Int,
            8 => Kind::Int64,
            _ => return Err(TchError::Torch(format!("cannot compute a fingerprint of {:?}", tensor.kind()))),
        };
        let words = tensor.f_detach()?.f_view([-1])?.f_view_dtype(kind)?;
        let (count, device) = (words.size1()?, words.device());
        Ok(Digest {
            columns: factors(ROW.min(count), SEED, device)?,
            rows: factors(count / ROW + 1, !SEED, device)?,
            words,
        })
    }

    /// The sum of all words times their factors, modulo 2^64: a few launches, and a scalar on the device.
    pub(super) fn sum(&self) -> Result<Tensor, TchError> {
        let count = self.words.size1()?;
        let (whole, rest) = (count / ROW, count % ROW);
        let weigh =
            |words: Tensor, columns: &Tensor| words.f_mul(columns)?.f_sum_dim_intlist(-1, false, None);
        let mut sums = Vec::new();
        if whole > 0 {
            let rows = self.words.f_narrow(0, 0, whole * ROW)?.f_view([whole, ROW])?;
            sums.push(weigh(rows, &self.columns)?);
        }
        if rest > 0 {
            let row = self.words.f_narrow(0, whole * ROW, rest)?;
            sums.push(weigh(row, &self.columns.f_narrow(0, 0, rest)?)?.f_view([1])?);
        }
        let sums = Tensor::f_cat(&sums, 0)?;
        let rows = self.rows.f_narrow(0, 0, sums.size1()?)?;
        sums.f_mul(&rows)?.f_sum(None::<Kind>)
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

    /// FINGERPRINT-1. The sum of a tensor on a GPU is the same, since it is made of integers.
    #[test]
    fn digest_changes_with_every_bit() {
        let values: Vec<f32> = (0..2500).map(|i| (i as f32 * 0.37).sin()).collect();
        let of = |values: &[f32]| {
            Digest::new(&Tensor::from_slice(values)).unwrap().sum().unwrap().int64_value(&[])
        };
        let whole = of(&values);
        let by_hand = values.iter().enumerate().fold(0_i64, |sum, (i, value)| {
            let (row, column) = (i as u64 / 1024, i as u64 % 1024);
            let factor = |index, salt| (finish(index ^ salt) | 1).cast_signed();
            let word = i64::from(value.to_bits().cast_signed());
            sum.wrapping_add(word.wrapping_mul(factor(column, SEED)).wrapping_mul(factor(row, !SEED)))
        });
        assert_eq!(whole, by_hand);
        for index in [0, 1023, 1024, 2047, 2048, 2499] {
            for bit in 0..32 {
                let mut other = values.clone();
                other[index] = f32::from_bits(other[index].to_bits() ^ (1 << bit));
                assert_ne!(of(&other), whole, "number {index} bit {bit}");
            }
        }
        let mut swapped = values.clone();
        swapped.swap(3, 1027);
        assert_ne!(of(&swapped), whole);
        assert_eq!(of(&values[..0].iter().copied().chain([1.5]).collect::<Vec<_>>()), of(&[1.5]));
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
