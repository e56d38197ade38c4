//! Bytes as lines of base64, for transports that carry only lines of limited length (slurmstepd).

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::VecDeque;
use std::io;

/// Most bytes of one [`line`] before encoding: slurmstepd forwards at most 1024 at once.
pub const PIECE: usize = 360;
/// Longest line that is read.
const LONGEST: usize = 1024;

/// Encodes a piece of a stream as one line of text.
pub fn line(piece: &[u8]) -> Vec<u8> {
    let mut text = BASE64.encode(piece).into_bytes();
    text.push(b'\n');
    text
}

/// Decodes lines to bytes.
#[derive(Debug, Default)]
pub struct LineDecoder {
    line: Vec<u8>,
    bytes: VecDeque<u8>,
}

impl LineDecoder {
    /// Adds received text, cut anywhere.
    ///
    /// # Errors
    /// A line that [`line`] did not encode.
    pub fn push(&mut self, text: &[u8]) -> io::Result<()> {
        for byte in text {
            match byte {
                b'\n' => {
                    let decoded = BASE64.decode(&self.line);
                    self.bytes.extend(decoded.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?);
                    self.line.clear();
                }
                _ if self.line.len() >= LONGEST => return Err(io::ErrorKind::InvalidData.into()),
                byte => self.line.push(*byte),
            }
        }
        Ok(())
    }

    /// Takes decoded bytes; returns 0 if there are none.
    pub fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.bytes.len());
        for (slot, byte) in buffer.iter_mut().zip(self.bytes.drain(..count)) {
            *slot = byte;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_any_cut_of_the_lines() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 % 256) as u8).collect();
        let text: Vec<u8> = bytes.chunks(PIECE).flat_map(line).collect();
        assert!(text.split(|byte| *byte == b'\n').all(|line| line.len() < 512));
        for step in [1, 13, text.len()] {
            let (mut reader, mut back) = (LineDecoder::default(), Vec::new());
            let mut buffer = [0; 100];
            for part in text.chunks(step) {
                reader.push(part).unwrap();
                loop {
                    match reader.take(&mut buffer) {
                        0 => break,
                        count => back.extend_from_slice(&buffer[..count]),
                    }
                }
            }
            assert_eq!(back, bytes, "cut every {step} bytes");
        }
        assert!(LineDecoder::default().push(b"srun: error: no\n").is_err());
        assert!(LineDecoder::default().push(&[b'A'; 2000]).is_err());
    }
}
