//! `agent relay`: carries bytes between its standard streams and an agent's socket, for hosts whose SSH server forwards no sockets.
//!
//! Owner: the console's link. It understands nothing of what it carries, and ends when either side does.

use super::Failure;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The line that tells the reader that bytes follow.
pub const MARKER: &str = "RANKDECK-RELAY";

/// Runs until either side ends.
pub fn run(socket: &Path) -> Result<(), Failure> {
    let stream = UnixStream::connect(socket).map_err(|error| {
        Failure::new(
            format!("cannot reach the agent at {}: {error}", socket.display()),
            "the agent may have ended; attach again",
        )
    })?;
    let failed = |error: io::Error| Failure::new(format!("relay: {error}"), "attach again");
    let mut output = io::stdout().lock();
    writeln!(output, "{MARKER}").and_then(|()| output.flush()).map_err(failed)?;
    let mut up = stream.try_clone().map_err(failed)?;
    std::thread::spawn(move || {
        let _ = copy(&mut io::stdin().lock(), &mut up);
        // The console is gone: the other direction has nobody to write to either.
        let _ = up.shutdown(std::net::Shutdown::Both);
    });
    let _ = copy(&mut &stream, &mut output);
    Ok(())
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
