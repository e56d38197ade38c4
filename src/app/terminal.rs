//! The terminal: taken over and restored in every case.
//!
//! Owner: one [`Tty`] at a time. All output goes through one thread ([`writer`]), in order. While it is up,
//! stderr goes to the console's log, so that nothing else writes on the screen. The panic hook of
//! [`install_panic_hook`] restores the terminal before the message is printed. Mouse motion is not enabled:
//! over SSH it would flood.

mod writer;

use super::stderr;
use crossterm::{Command, cursor, event, queue, terminal};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use std::{fmt, io};
use tokio::sync::Notify;
use writer::TerminalWriter;

pub(crate) use writer::MakeBytes;

/// How long a terminal may take to read the remaining output when it is restored, and then once more without
/// it.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// What a screen needs of a terminal; tests replace it. Only [`Surface::leave`] waits for the terminal, for a
/// limited time.
pub(crate) trait Surface: Send {
    /// Draws one frame.
    fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()>;
    /// Columns and rows.
    fn size(&self) -> io::Result<Size>;
    /// Restores the terminal.
    fn leave(&mut self) -> io::Result<()>;
    /// Takes it (again); the next frame is drawn in full.
    fn enter(&mut self) -> io::Result<()>;
    /// Forgets what is on the screen; the next frame is drawn in full.
    fn clear(&mut self) -> io::Result<()>;
    /// Sends bytes outside of a frame: a bell, a title, an image.
    fn send(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Sends bytes that take long to make, such as those of an image.
    fn send_made(&mut self, make: MakeBytes) -> io::Result<()> {
        self.send(&make())
    }
    /// Whether the terminal has not accepted the last frame yet; the next one waits for it.
    fn is_writing(&self) -> bool {
        false
    }
    /// Notified when everything was written.
    fn wake(&self) -> Arc<Notify> {
        Arc::default()
    }
}

/// The real terminal on stdout.
pub(crate) struct Tty {
    /// Frames are painted here; the thread has the terminal.
    painter: Terminal<TestBackend>,
    writer: TerminalWriter,
    log: Option<File>,
}

static UP: AtomicBool = AtomicBool::new(false);
/// Whether the mouse is enabled when the terminal is taken.
static MOUSE: AtomicBool = AtomicBool::new(true);
/// Copy of stderr while it is redirected, -1 otherwise.
static STDERR: AtomicI32 = AtomicI32::new(-1);
/// The thread that writes the screen: a panic restores the terminal through it.
static WRITER: Mutex<Option<TerminalWriter>> = Mutex::new(None);

impl Tty {
    /// Takes the terminal; stderr goes to `log` while it is held.
    pub(crate) fn new(log: Option<File>) -> io::Result<Tty> {
        // The theme handles NO_COLOR; crossterm itself would drop bold and reverse along with colors.
        crossterm::style::force_color_output(true);
        // Not the standard library's handle: other writers would wait for its lock.
        let writer = TerminalWriter::new(File::from(io::stdout().as_fd().try_clone_to_owned()?))?;
        *current() = Some(writer.clone());
        let mut tty = Tty { painter: painter(Rect::default()), writer, log };
        tty.enter()?;
        Ok(tty)
    }
}

/// What frames of this size are painted on; nothing is shown on its backend, which has no cells.
fn painter(area: Rect) -> Terminal<TestBackend> {
    let options = TerminalOptions { viewport: Viewport::Fixed(area) };
    let Ok(painter) = Terminal::with_options(TestBackend::new(0, 0), options);
    painter
}

fn current() -> MutexGuard<'static, Option<TerminalWriter>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Surface for Tty {
    fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
        let size = self.size()?;
        let area = Rect::new(0, 0, size.width, size.height);
        if *self.painter.current_buffer_mut().area() != area {
            self.painter = painter(area);
        }
        paint(&mut self.painter.get_frame());
        self.writer.frame(std::mem::replace(self.painter.current_buffer_mut(), Buffer::empty(area)))
    }

    fn size(&self) -> io::Result<Size> {
        terminal::size().map(|(width, height)| Size::new(width, height))
    }

    fn leave(&mut self) -> io::Result<()> {
        restore()
    }

    fn enter(&mut self) -> io::Result<()> {
        terminal::enable_raw_mode()?;
        UP.store(true, Ordering::SeqCst);
        if let Some(log) = &self.log {
            redirect_stderr(log);
        }
        let mut bytes = Vec::new();
        queue!(
            bytes,
            terminal::EnterAlternateScreen,
            MouseButtons(MOUSE.load(Ordering::SeqCst)),
            event::EnableBracketedPaste,
            cursor::Hide,
        )?;
        self.writer.bytes(&bytes)?;
        self.clear()
    }

    fn clear(&mut self) -> io::Result<()> {
        self.writer.forget();
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.bytes(bytes)
    }

    fn send_made(&mut self, make: MakeBytes) -> io::Result<()> {
        self.writer.made(make)
    }

    fn is_writing(&self) -> bool {
        self.writer.is_writing()
    }

    fn wake(&self) -> Arc<Notify> {
        self.writer.wake()
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ = restore();
        *current() = None;
        self.writer.end();
    }
}

/// Buttons and wheel (1000), drags (1002), coordinates beyond column 223 (1006).
struct MouseButtons(bool);

impl Command for MouseButtons {
    fn write_ansi(&self, f: &mut impl fmt::Write) -> fmt::Result {
        f.write_str(if self.0 {
            "\x1b[?1000h\x1b[?1002h\x1b[?1006h"
        } else {
            "\x1b[?1006l\x1b[?1002l\x1b[?1000l"
        })
    }
}

/// Sets whether the next [`Surface::enter`] enables the mouse.
pub(crate) fn set_mouse(on: bool) {
    MOUSE.store(on, Ordering::SeqCst);
}

/// Whether the console runs in tmux, which rejects OSC 52 of programs by default but accepts a text through a
/// command.
pub(crate) fn is_in_tmux() -> bool {
    std::env::var_os("TMUX").is_some_and(|socket| !socket.is_empty())
}

/// Returns the bytes that enable or disable the mouse.
pub(crate) fn mouse(on: bool) -> String {
    set_mouse(on);
    let mut sequence = String::new();
    // Writing to a string does not fail.
    let _ = MouseButtons(on).write_ansi(&mut sequence);
    sequence
}

/// Restores the terminal if it is held; harmless otherwise and when called twice. A terminal that does not
/// read is given up after a while.
fn restore() -> io::Result<()> {
    if !UP.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let mut bytes = Vec::new();
    let made = queue!(
        bytes,
        // A panic may come between the two marks of a frame.
        terminal::EndSynchronizedUpdate,
        event::DisableBracketedPaste,
        MouseButtons(false),
        terminal::LeaveAlternateScreen,
        cursor::Show,
    );
    let writer = current().clone();
    let written = made.and_then(|()| writer.map_or(Ok(()), |writer| flush_last(&writer, &bytes)));
    let cooked = terminal::disable_raw_mode();
    restore_stderr();
    written.and(cooked)
}

/// Sends the last bytes. Unread output is discarded, so that the terminal gets these.
fn flush_last(writer: &TerminalWriter, bytes: &[u8]) -> io::Result<()> {
    writer.bytes(bytes)?;
    if !writer.finish(LEAVE_WITHIN) {
        // The kernel wakes a writer after a flush only when output is stopped and started.
        // SAFETY: these calls take two numbers each.
        unsafe {
            libc::tcflush(libc::STDOUT_FILENO, libc::TCOFLUSH);
            libc::tcflow(libc::STDOUT_FILENO, libc::TCOOFF);
            libc::tcflow(libc::STDOUT_FILENO, libc::TCOON);
        }
        writer.finish(LEAVE_WITHIN);
    }
    Ok(())
}

fn redirect_stderr(log: &File) {
    if STDERR.load(Ordering::SeqCst) >= 0 {
        return;
    }
    // SAFETY: dup of a descriptor number; F_DUPFD_CLOEXEC keeps the copy out of children.
    let saved = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
    if saved < 0 {
        return;
    }
    // SAFETY: both descriptors are open; dup2 replaces stderr atomically.
    if unsafe { libc::dup2(log.as_raw_fd(), libc::STDERR_FILENO) } >= 0 {
        STDERR.store(saved, Ordering::SeqCst);
    } else {
        // SAFETY: `saved` was just created and has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(saved) });
    }
}

fn restore_stderr() {
    let saved = STDERR.swap(-1, Ordering::SeqCst);
    if saved >= 0 {
        // SAFETY: `saved` is our own copy of stderr; the swap above made us its only user.
        let saved = unsafe { OwnedFd::from_raw_fd(saved) };
        // SAFETY: both descriptors are open.
        unsafe { libc::dup2(saved.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// A panic of the main thread restores the terminal before its message is printed; one of another thread goes
/// to the log, and the screen stays.
pub(crate) fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(set_panic_hook);
}

fn set_panic_hook() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let was_up = UP.load(Ordering::SeqCst);
        if was_up && std::thread::current().name() != Some("main") {
            tracing::error!("a console thread panicked: {info}");
            return;
        }
        let _ = restore();
        print(info);
        stderr::line("hint: this is a bug in rankdeck; the run keeps running: `rankdeck attach`");
    }));
}

/// Stops the console's process group as ctrl-z would, and returns when it is continued. The kernel ignores
/// the stop if no shell could continue it.
pub(crate) fn stop_process_group() {
    // SAFETY: all-zero is a valid sigaction: default disposition, empty mask, no flags.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
    default.sa_sigaction = libc::SIG_DFL;
    // SAFETY: the structures are valid for the calls. The default action must be in force when the signal
    // arrives, since the event loop has put its own handler there; it is put back afterwards.
    unsafe {
        libc::sigaction(libc::SIGTSTP, &default, &mut old);
        libc::kill(0, libc::SIGTSTP);
        libc::sigaction(libc::SIGTSTP, &old, std::ptr::null_mut());
    }
}

/// The terminal of tests.
#[cfg(test)]
pub(crate) mod testkit {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// A terminal that counts its frames.
    pub(crate) struct CountingTerminal(Terminal<TestBackend>, Arc<AtomicU64>);

    impl CountingTerminal {
        /// One of 80x24, and its counter.
        pub(crate) fn new() -> (CountingTerminal, Arc<AtomicU64>) {
            let frames = Arc::new(AtomicU64::new(0));
            let Ok(terminal) = Terminal::new(TestBackend::new(80, 24));
            (CountingTerminal(terminal, Arc::clone(&frames)), frames)
        }
    }

    impl Surface for CountingTerminal {
        fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.draw(|frame| paint(frame)).map(|_| ()).map_err(|error| io::Error::other(error.to_string()))
        }
        fn size(&self) -> io::Result<Size> {
            Ok(Size::new(80, 24))
        }
        fn leave(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn enter(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn clear(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
