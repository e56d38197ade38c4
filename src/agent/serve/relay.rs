//! `agent relay`: carries bytes between its standard streams and an agent's socket, for hosts whose SSH
//! server forwards no sockets.
//!
//! Owner: the console's link. It understands nothing of what it carries, and ends when either side does.

use rankdeck_proto::frame::{LINE_BYTES, LineDecoder, encode_line};
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use std::io::{self, Read, Write};
use std::path::Path;

/// The line before the bytes.
pub(crate) const MARKER: &str = "RANKDECK-RELAY";

/// Runs until either side ends; with `lines`, both directions of the standard streams are lines of [`line`].
pub(crate) fn run(socket: &Path, lines: bool) -> Result<(), HintedError> {
    let stream = trust::connect(socket).map_err(|error| {
        HintedError::new(
            format!("cannot reach the agent at {}: {error}", socket.display()),
            "the agent may have ended: attach again",
        )
    })?;
    let failed = |error: io::Error| HintedError::new(format!("relay: {error}"), "attach again");
    let mut output = io::stdout().lock();
    if !lines {
        writeln!(output, "{MARKER}").and_then(|()| output.flush()).map_err(failed)?;
    }
    let mut up = stream.try_clone().map_err(failed)?;
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let _ = if lines { unfold(&mut input, &mut up) } else { copy(&mut input, &mut up) };
        // The console is gone: the other direction has no reader either.
        let _ = up.shutdown(std::net::Shutdown::Both);
    });
    let _ = if lines { fold(&mut &stream, &mut output) } else { copy(&mut &stream, &mut output) };
    Ok(())
}

/// From bytes to lines.
fn fold(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = [0; LINE_BYTES];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&encode_line(&chunk[..read]))?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// From lines to bytes.
fn unfold(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let (mut reader, mut chunk, mut bytes) = (LineDecoder::default(), vec![0; 16 << 10], vec![0; 16 << 10]);
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
