//! Sealing of what ranks send each other: encrypted, and whole, unchanged and in order, or refused.
//!
//! Owner: one direction of one connection. AES-128-GCM (NIST SP 800-38D), with a key of its own for each
//! direction of each connection and the record's number as nonce. With AES instructions it costs less than
//! any code that only authenticates (docs/design/collectives.md).
//!
//! Invariant SEAL-1: a record that was changed, cut, repeated, left out, moved, sent back, or made for
//! another connection does not open.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes that sealing adds to a record.
pub(super) const TAG: usize = 16;

const KEY: usize = 16;

/// The key of one direction, and the number of its next record.
pub(super) struct Seal {
    key: LessSafeKey,
    next: u64,
}

impl Seal {
    /// With the first bytes of `key`; `None` if they are too few.
    pub(super) fn new(key: &[u8]) -> Option<Seal> {
        let key = UnboundKey::new(&AES_128_GCM, key.get(..KEY)?).ok()?;
        Some(Seal { key: LessSafeKey::new(key), next: 0 })
    }

    /// `None` when the numbers are used up, which takes longer than any run.
    fn nonce(&mut self) -> Option<Nonce> {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.next.to_be_bytes());
        self.next = self.next.checked_add(1)?;
        Some(Nonce::assume_unique_for_key(bytes))
    }

    /// Encrypts `body` in place; the tag also covers `head`.
    pub(super) fn seal(&mut self, head: &[u8], body: &mut [u8]) -> Option<[u8; TAG]> {
        let nonce = self.nonce()?;
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), body).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts `body` in place, which ends in its tag. `false`: it is not the record that was sent next, and
    /// nothing of it may be used.
    #[must_use]
    pub(super) fn open(&mut self, head: &[u8], body: &mut [u8]) -> bool {
        let Some(nonce) = self.nonce() else { return false };
        self.key.open_in_place(nonce, Aad::from(head), body).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seal: &mut Seal, body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        let tag = seal.seal(b"head", &mut bytes).unwrap();
        [&bytes[..], &tag].concat()
    }

    fn pair() -> (Seal, Seal) {
        (Seal::new(&[7; KEY]).unwrap(), Seal::new(&[7; KEY]).unwrap())
    }

    #[test]
    fn seal_1_any_change_of_a_record_keeps_it_shut() {
        let whole = sealed(&mut pair().0, b"some numbers");
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!pair().1.open(b"head", &mut changed), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(!pair().1.open(b"head", &mut whole[..length].to_vec()), "{length} bytes");
        }
        assert!(!pair().1.open(b"heed", &mut whole.clone()));
        assert!(!Seal::new(&[8; KEY]).unwrap().open(b"head", &mut whole.clone()));
        let mut good = whole.clone();
        assert!(pair().1.open(b"head", &mut good));
        assert_eq!(good[..12], *b"some numbers");
    }

    #[test]
    fn seal_1_records_open_once_and_in_order() {
        let (mut seal, mut open) = pair();
        let records: Vec<Vec<u8>> = (0..3u8).map(|i| sealed(&mut seal, &[i; 9])).collect();
        assert!(open.open(b"head", &mut records[0].clone()));
        for wrong in [0, 2] {
            let (_, mut other) = pair();
            assert!(other.open(b"head", &mut records[0].clone()));
            assert!(!other.open(b"head", &mut records[wrong].clone()), "repeated or early: {wrong}");
        }
        assert!(open.open(b"head", &mut records[1].clone()));
    }
}
