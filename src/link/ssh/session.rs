//! A session with a host on which commands run, whatever carries it: libssh2, or the system's `ssh`.

use super::output::Output;
use super::user_config::SshTarget;
use super::wait::{Interest, Stall};
use super::{Operator, SshError};
use std::io;
use std::time::Instant;

/// A session with one host, for commands that run one after another.
pub trait SshSession: Send {
    /// Where it leads.
    fn target(&self) -> &SshTarget;

    /// Starts a command.
    fn start(
        &self,
        operator: &mut dyn Operator,
        command: &str,
        deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError>;

    /// A stream to the socket `path` there; `None` where that takes a command.
    fn socket(
        &self,
        operator: &mut dyn Operator,
        path: &str,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError>;

    /// Why no command has begun, when what one said tells that.
    fn refusal(&self, output: &Output) -> Option<SshError>;

    /// Nobody needs it now: it may serve the next one who wants to go there.
    fn keep(self: Box<Self>);

    /// The command that goes the same way, for hints.
    fn by_hand(&self) -> String {
        self.target().command()
    }

    /// Name for messages.
    fn label(&self) -> &str {
        &self.target().label
    }
}

/// Which of a command's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// A channel of a session: a command that runs there, or a stream to a socket. Nothing of it blocks.
pub trait SshChannel {
    /// Reads what is there; 0 at the end or when nothing more is known, `WouldBlock` when nothing is.
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes to its standard input; `WouldBlock` when nothing fits.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// A part of what the last write was given is on its way: nothing else is sent before that very write has
    /// been repeated until it is through. libssh2 answers any other call with EAGAIN meanwhile, also when the
    /// socket takes bytes again (`send_existing` in its transport.c).
    fn is_half_sent(&self) -> bool {
        false
    }

    /// Ends its standard input.
    fn end_input(&mut self, operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall>;

    /// All that it says has been read.
    fn ended(&self) -> bool;

    /// Standard output has ended, whatever standard error does.
    fn over(&self) -> bool {
        self.ended()
    }

    /// What to wait for; `pending`: bytes wait to be written.
    fn interest(&self, pending: bool) -> Interest;

    /// Waits until something moves, within the deadline.
    fn pause(&self, operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall>;

    /// Ends it in due form: its exit code, `None` when a signal ended it.
    fn close(&mut self, operator: &mut dyn Operator, deadline: Instant) -> Result<Option<i32>, Stall>;

    /// Lets go of it without waiting.
    fn abandon(&mut self);
}
