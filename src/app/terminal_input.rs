//! Reads the terminal: the one source of keys for all screens.
//!
//! Cancel-safe: a reader that is dropped takes nothing away from the program that reads next.

use super::terminal::Surface;
use super::terminal_surface::Input;
use crossterm::event::Event as TermEvent;
use crossterm::terminal;
use futures_util::stream;
use rankdeck_kit::decoder::InputDecoder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Most bytes of one read.
const READ_BYTES: usize = 4096;
/// Longest time for a terminal to report its colors.
const REPLY_WITHIN: Duration = Duration::from_millis(250);

/// Reads events from the terminal; `decoder` has what was read before.
///
/// # Errors
/// Stdin is not a terminal.
pub(crate) fn read(decoder: InputDecoder) -> io::Result<Input> {
    let reader = TerminalReader { stdin: stdin()?, decoder, resized: signal(SignalKind::window_change())? };
    let events = stream::unfold(reader, |mut reader| async move { Some((reader.next().await, reader)) });
    Ok(Box::pin(events))
}

/// Opens stdin for [`next_bytes`].
///
/// # Errors
/// It is a file, or closed.
pub(crate) fn stdin() -> io::Result<AsyncFd<OwnedFd>> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    // SAFETY: the registration owns the descriptor, so it stays open until deregistration.
    let input = unsafe { AsyncFd::register_with_interest(input, Interest::READABLE) };
    input.map_err(|error| error.into_parts().1)
}

struct TerminalReader {
    stdin: AsyncFd<OwnedFd>,
    decoder: InputDecoder,
    resized: Signal,
}

impl TerminalReader {
    async fn next(&mut self) -> io::Result<TermEvent> {
        loop {
            if let Some(event) = self.decoder.next_event() {
                return Ok(event);
            }
            let patience = self.decoder.patience();
            tokio::select! {
                Some(()) = self.resized.recv() => {
                    let (columns, rows) = terminal::size()?;
                    return Ok(TermEvent::Resize(columns, rows));
                }
                bytes = next_bytes(&self.stdin) => self.decoder.push(&bytes?),
                () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => {
                    self.decoder.settle();
                }
            }
        }
    }
}

/// Waits for bytes and reads them. Cancel-safe.
///
/// # Errors
/// The end of the input, or a system error.
pub(crate) async fn next_bytes(stdin: &AsyncFd<OwnedFd>) -> io::Result<Vec<u8>> {
    loop {
        let mut guard = stdin.readable().await?;
        // The terminal is shared with other programs, and so stays blocking.
        if !is_readable(stdin.get_ref(), Some(Duration::ZERO)) {
            guard.clear_ready();
            continue;
        }
        return read_bytes(stdin.get_ref());
    }
}

/// Reads what is there.
fn read_bytes(fd: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES];
    // SAFETY: the buffer has room for this many bytes, and the descriptor is open.
    let read = unsafe { libc::read(fd.as_fd().as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    match usize::try_from(read) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            bytes.truncate(read);
            Ok(bytes)
        }
        Err(_) => match io::Error::last_os_error() {
            error if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(Vec::new())
            }
            error => Err(error),
        },
    }
}

/// Whether there is something to read, or the end; `None` waits for it.
fn is_readable(fd: &impl AsFd, within: Option<Duration>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let within = within.map_or(-1, |within| within.as_millis() as libc::c_int);
    // SAFETY: one valid pollfd; the descriptor is open.
    unsafe { libc::poll(&mut poll, 1, within) > 0 }
}

/// Waits for the next event of stdin, for commands without an event loop.
///
/// # Errors
/// The terminal is gone.
pub(crate) fn wait(decoder: &mut InputDecoder) -> io::Result<TermEvent> {
    let stdin = io::stdin();
    loop {
        if let Some(event) = decoder.next_event() {
            return Ok(event);
        }
        let patience = decoder.patience();
        match is_readable(&stdin, patience) {
            true => decoder.push(&read_bytes(&stdin)?),
            false if patience.is_some() => decoder.settle(),
            // A signal.
            false => {}
        }
    }
}

/// Queries the background (OSC 11), and then the terminal type, to which all terminals reply: no other
/// reply follows. Returns the reply about the background; keys, and what arrives later, are left to
/// `decoder`. The terminal must be in raw mode without another reader.
pub(crate) fn query_background(terminal: &mut dyn Surface, decoder: &mut InputDecoder) -> Option<Vec<u8>> {
    terminal.send(b"\x1b]11;?\x1b\\\x1b[c").ok()?;
    let (stdin, deadline) = (io::stdin(), Instant::now() + REPLY_WITHIN);
    let mut background = None;
    loop {
        while let Some(reply) = decoder.next_reply() {
            match reply.as_slice() {
                [0x1b, b']', b'1', b'1', b';', ..] => background = Some(reply),
                [0x1b, b'[', b'?', .., b'c'] => return background,
                _ => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_readable(&stdin, Some(left)) {
            return background;
        }
        decoder.push(&read_bytes(&stdin).ok()?);
    }
}
