//! Frames on the wire between a console and an agent: a big-endian `u32` length, then that many bytes of
//! JSON.
//!
//! Invariants:
//! - WIRE-1: a frame is at most [`MAX_FRAME`] bytes; a longer length ends the connection before anything is
//!   allocated.
//! - Unknown fields are ignored, unknown kinds decode to `Unknown` and are counted.
//!
//! Bytes as lines of base64, for transports that carry only lines of limited length (slurmstepd).

use super::message::HostSample;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io;

/// Most bytes of JSON in one frame (1 MiB).
pub const MAX_FRAME: usize = 1 << 20;

/// Reason why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced or produced length is over [`MAX_FRAME`].
    #[error("frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// The bytes are not JSON of the expected type.
    #[error("frame is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Returns the bytes of one frame, with its length.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, message)?;
    Ok(bytes)
}

/// Appends a frame; after an error, the bytes are unchanged.
pub fn encode_into<T: Serialize>(bytes: &mut Vec<u8>, message: &T) -> Result<(), FrameError> {
    frame_into(bytes, |bytes| serde_json::to_writer(bytes, message))
}

/// Appends the frame of an [`AgentMessage::Sample`](super::message::AgentMessage::Sample) with this
/// `dropped` and `kills_in_ms`. All connections share the sample, which has neither.
pub fn encode_sample_into(
    bytes: &mut Vec<u8>,
    sample: &HostSample,
    dropped: u64,
    kills_in_ms: Option<u64>,
) -> Result<(), FrameError> {
    frame_into(bytes, |bytes| {
        bytes.extend(format!("{{\"kind\":\"sample\",\"dropped\":{dropped}").into_bytes());
        if let Some(kills_in_ms) = kills_in_ms {
            bytes.extend(format!(",\"kills_in_ms\":{kills_in_ms}").into_bytes());
        }
        let rest = bytes.len();
        serde_json::to_writer(&mut *bytes, sample)?;
        bytes[rest] = b',';
        Ok(())
    })
}

fn frame_into(
    bytes: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
) -> Result<(), FrameError> {
    let begin = bytes.len();
    bytes.extend([0; 4]);
    let written = write(bytes).map_err(FrameError::from).and_then(|()| {
        let length = bytes.len() - begin - 4;
        if length > MAX_FRAME { Err(FrameError::TooLong(length)) } else { Ok(length) }
    });
    match written {
        Ok(length) => bytes[begin..begin + 4].copy_from_slice(&(length as u32).to_be_bytes()),
        Err(_) => bytes.truncate(begin),
    }
    written.map(drop)
}

/// Splits a byte stream into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.pending.drain(..self.start);
            self.start = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the JSON bytes of the next complete frame, `None` if more bytes are needed.
    pub fn next_bytes(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.pending[self.start..];
        let Some(head) = rest.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        if rest.len() < 4 + length {
            return Ok(None);
        }
        let from = self.start + 4;
        self.start = from + length;
        Ok(Some(&self.pending[from..from + length]))
    }

    /// Decodes the next complete frame.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        match self.next_bytes()? {
            Some(bytes) => Ok(Some(serde_json::from_slice(bytes)?)),
            None => Ok(None),
        }
    }
}

/// Most bytes of one [`encode_line`] before encoding: slurmstepd forwards at most 1024 at once.
pub const LINE_BYTES: usize = 360;
/// Longest line that is read.
const LONGEST: usize = 1024;

/// Encodes a piece of a stream as one line of text.
pub fn encode_line(piece: &[u8]) -> Vec<u8> {
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
    /// A line that [`encode_line`] did not encode.
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
    use crate::message::AgentMessage;

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let mut stream = Vec::new();
        for text in ["", "a", "longer text"] {
            stream.extend(encode(&text).unwrap());
        }
        for step in 1..stream.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in stream.chunks(step) {
                decoder.push(part);
                while let Some(text) = decoder.next_frame::<String>().unwrap() {
                    seen.push(text);
                }
            }
            assert_eq!(seen, ["", "a", "longer text"], "cut every {step} bytes");
        }
    }

    #[test]
    fn shared_sample_is_framed_with_own_drop_count() {
        let sample = HostSample { mono_ms: 7, load1: 0.5, malformed: 3, ..HostSample::default() };
        for (dropped, kills_in_ms) in [(0, None), (5, Some(900))] {
            let mut bytes = encode(&"before").unwrap();
            encode_sample_into(&mut bytes, &sample, dropped, kills_in_ms).unwrap();
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert_eq!(decoder.next_frame::<String>().unwrap().as_deref(), Some("before"));
            let own = HostSample { dropped, kills_in_ms, ..sample.clone() };
            let expected = AgentMessage::Sample(Box::new(own));
            assert_eq!(decoder.next_frame::<AgentMessage>().unwrap(), Some(expected));
            assert_eq!(decoder.next_bytes().unwrap(), None);
        }
    }

    #[test]
    fn wire_1_frame_over_the_limit_is_not_encoded() {
        let mut bytes = encode(&"a").unwrap();
        let before = bytes.clone();
        assert!(matches!(encode_into(&mut bytes, &"x".repeat(MAX_FRAME)), Err(FrameError::TooLong(_))));
        assert_eq!(bytes, before);
    }

    #[test]
    fn wire_1_announced_length_over_the_limit_is_rejected() {
        let mut decoder = Decoder::default();
        decoder.push(&(MAX_FRAME as u32 + 1).to_be_bytes());
        assert!(matches!(decoder.next_bytes(), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn bytes_survive_any_cut_of_the_lines() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 % 256) as u8).collect();
        let text: Vec<u8> = bytes.chunks(LINE_BYTES).flat_map(encode_line).collect();
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
