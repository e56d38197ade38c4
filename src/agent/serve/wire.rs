//! The socket of one console as the agent holds it: what comes wakes the loop, and room for more bytes does
//! only where there was none.
//!
//! Owner: the two tasks of a connection. A socket that the runtime watches in both directions wakes the loop
//! each time the other end has read something, and every wake takes a moment from the ranks' cores.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// See the module.
#[derive(Debug)]
pub struct Wire {
    socket: AsyncFd<UnixStream>,
}

impl Wire {
    /// Takes a socket over.
    pub fn new(stream: tokio::net::UnixStream) -> io::Result<Wire> {
        Ok(Wire { socket: watched(stream.into_std()?, Interest::READABLE)? })
    }

    /// Waits for bytes; 0 when the other end has closed.
    pub async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().read(into)) {
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Writes all of it. Not cancel-safe: a part may have been written.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.get_ref().write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.room().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the other end has read something, on a descriptor of its own.
    async fn room(&self) -> io::Result<()> {
        let socket = watched(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        socket.writable().await.map(drop)
    }
}

fn watched(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: a socket keeps its one descriptor open for as long as it lives, and `AsyncFd` gives it away to
    // nobody here.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn more_than_the_socket_holds_gets_through_to_a_slow_reader_while_it_speaks() {
        let (mut console, agent) = tokio::net::UnixStream::pair().unwrap();
        let wire = Wire::new(agent).unwrap();
        let sent: Vec<u8> = (0..4_000_000u32).map(|at| at as u8).collect();
        let console_side = async {
            console.write_all(b"hello").await.unwrap();
            let mut got = Vec::new();
            let mut chunk = vec![0; 100_000];
            while got.len() < sent.len() {
                let read = console.read(&mut chunk).await.unwrap();
                assert!(read > 0);
                got.extend_from_slice(&chunk[..read]);
                tokio::task::yield_now().await;
            }
            drop(console);
            got
        };
        let agent_side = async {
            let mut said = [0; 16];
            let read = wire.read(&mut said).await.unwrap();
            assert_eq!(&said[..read], b"hello");
            wire.write_all(&sent).await.unwrap();
            assert_eq!(wire.read(&mut said).await.unwrap(), 0, "it has closed");
            assert!(wire.write_all(b"x").await.is_err());
        };
        let both = async { tokio::join!(console_side, agent_side) };
        let (got, ()) = tokio::time::timeout(PATIENCE, both).await.expect("all of it");
        assert!(got == sent);
    }
}
