//! The shared secret of one generation's ranks.
//!
//! The console's driver generates it for each launch, and agents pass it to their ranks. Invariants:
//! - SECRET-1: a secret is only in launch orders and in the environment of ranks: in no record, snapshot,
//!   trace, file or argument, and formatting hides it.
//! - SECRET-2: every generation has a different secret.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io;

const BYTES: usize = 32;

/// 32 random bytes. Not `Copy`, and overwritten when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSecret([u8; BYTES]);

impl GroupSecret {
    /// Variable in a rank's environment that contains it as 64 hexadecimal digits.
    pub const VARIABLE: &'static str = "RANKDECK_SECRET";

    /// Generates a secret from the kernel's random numbers.
    ///
    /// # Errors
    /// The kernel returns no random numbers.
    pub fn draw() -> io::Result<GroupSecret> {
        let mut bytes = [0; BYTES];
        // The system call needs no /dev, which a container or a jail may lack. It never returns a part of so
        // few bytes.
        // SAFETY: the kernel writes at most BYTES bytes, the length of the array.
        let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
        match usize::try_from(drawn) {
            Ok(BYTES) => Ok(GroupSecret(bytes)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Parses the text of [`GroupSecret::to_hex`]; `None` for any other text.
    pub fn from_hex(text: &str) -> Option<GroupSecret> {
        if text.len() != 2 * BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(GroupSecret(bytes))
    }

    /// Returns the text for [`GroupSecret::VARIABLE`].
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the bytes, to derive keys.
    pub fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl Drop for GroupSecret {
    fn drop(&mut self) {
        for byte in &mut self.0 {
            // SAFETY: `byte` is a valid, exclusive reference; volatile, so that the write is not optimized
            // away.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
    }
}

impl fmt::Debug for GroupSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for GroupSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for GroupSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GroupSecret, D::Error> {
        let text = String::deserialize(deserializer)?;
        GroupSecret::from_hex(&text).ok_or_else(|| D::Error::custom("a secret has 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_2_draws_differ_and_survive_their_text() {
        let (one, other) = (GroupSecret::draw().unwrap(), GroupSecret::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(GroupSecret::from_hex(&one.to_hex()), Some(one.clone()));
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<GroupSecret>(&json).unwrap(), one);
    }

    #[test]
    fn secret_1_formatting_hides_the_secret() {
        assert_eq!(format!("{:?}", GroupSecret::draw().unwrap()), "(secret)");
    }

    #[test]
    fn malformed_secret_is_rejected() {
        let good = GroupSecret::draw().unwrap().to_hex();
        for text in ["", "ab", &good[1..], &format!("{good}0"), &format!("+{}", &good[1..]), &"é".repeat(32)]
        {
            assert_eq!(GroupSecret::from_hex(text), None, "{text}");
        }
    }
}
