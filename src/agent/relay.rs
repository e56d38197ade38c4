//! `agent relay`: carries bytes between its standard streams and an agent's socket, for hosts whose SSH server forwards no sockets.
//!
//! Owner: the console's link. It understands nothing of what it carries, and ends when either side does.

use super::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The line that tells the reader that bytes follow.
pub const MARKER: &str = "RANKDECK-RELAY";

/// Most bytes of one line of [`line`] before encoding: slurmstepd passes on at most 1024 at once.
pub const PIECE: usize = 360;
/// Longest line that is read.
const LONGEST: usize = 1024;

/// A piece of a stream as one line of text, for roads that carry only lines.
pub fn line(piece: &[u8]) -> Vec<u8> {
    let mut text = BASE64.encode(piece).into_bytes();
    text.push(b'\n');
    text
}

/// Lines back to bytes.
#[derive(Debug, Default)]
pub struct LineReader {
    line: Vec<u8>,
    bytes: VecDeque<u8>,
}

impl LineReader {
    /// Takes in what was read, in whatever pieces it came.
    ///
    /// Errors: something that is no line of ours.
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

    /// Gives out bytes; 0 when there are none yet.
    pub fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.bytes.len());
        for (slot, byte) in buffer.iter_mut().zip(self.bytes.drain(..count)) {
            *slot = byte;
        }
        count
    }
}

/// Runs until either side ends; with `lines`, both directions of the standard streams are lines of [`line`].
pub fn run(socket: &Path, lines: bool) -> Result<(), Failure> {
    let stream = UnixStream::connect(socket).map_err(|error| {
        Failure::new(
            format!("cannot reach the agent at {}: {error}", socket.display()),
            "the agent may have ended; attach again",
        )
    })?;
    let failed = |error: io::Error| Failure::new(format!("relay: {error}"), "attach again");
    let mut output = io::stdout().lock();
    if !lines {
        writeln!(output, "{MARKER}").and_then(|()| output.flush()).map_err(failed)?;
    }
    let mut up = stream.try_clone().map_err(failed)?;
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let _ = if lines { unfold(&mut input, &mut up) } else { copy(&mut input, &mut up) };
        // The console is gone: the other direction has nobody to write to either.
        let _ = up.shutdown(std::net::Shutdown::Both);
    });
    let _ = if lines { fold(&mut &stream, &mut output) } else { copy(&mut &stream, &mut output) };
    Ok(())
}

/// From bytes to lines.
fn fold(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = [0; PIECE];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&line(&chunk[..read]))?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// From lines to bytes.
fn unfold(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let (mut reader, mut chunk, mut bytes) = (LineReader::default(), vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => reader.push(&chunk[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        loop {
            match reader.take(&mut bytes) {
                0 => break,
                count => to.write_all(&bytes[..count])?,
            }
        }
        to.flush()?;
    }
}

/// As `io::copy`, but every piece is passed on at once.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&chunk[..read])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_lines_whatever_the_cut() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 % 256) as u8).collect();
        let text: Vec<u8> = bytes.chunks(PIECE).flat_map(line).collect();
        assert!(text.split(|byte| *byte == b'\n').all(|line| line.len() < 512));
        for step in [1, 13, text.len()] {
            let (mut reader, mut back) = (LineReader::default(), Vec::new());
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
        assert!(LineReader::default().push(b"srun: error: no\n").is_err());
        assert!(LineReader::default().push(&[b'A'; 2000]).is_err());
    }
}
