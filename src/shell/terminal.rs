//! The terminal: taken over, given back, come what may.
//!
//! Owner: one [`Tty`] at a time. While it is up, stderr goes to the console's log, so that nothing else
//! writes on the screen. The panic hook of [`install_panic_hook`] gives the terminal back before the message
//! is printed. Mouse motion is not asked for: over SSH it would flood.

use super::stderr;
use crossterm::{Command, cursor, event, execute, queue, terminal};
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Rect, Size};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How long tmux may take for a text.
const TMUX_WITHIN: Duration = Duration::from_millis(500);
/// Most bytes that are handed to the terminal's clipboard; larger texts are refused by many terminals.
const COPY_BYTES: usize = 65_536;

/// What a screen needs of a terminal; a test stands in for it.
pub trait Surface: Send {
    /// Draws one frame.
    fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()>;
    /// Columns and rows.
    fn size(&self) -> io::Result<Size>;
    /// Gives the terminal back.
    fn leave(&mut self) -> io::Result<()>;
    /// Takes it (again); the next frame is drawn in full.
    fn enter(&mut self) -> io::Result<()>;
    /// Forgets what is on the screen; the next frame is drawn in full.
    fn clear(&mut self) -> io::Result<()>;
    /// Puts text on the clipboard of the user's own machine.
    fn copy(&mut self, text: &str) -> io::Result<CopyTarget>;
    /// Sends what is no part of a frame and moves nothing: a bell, a title.
    fn send(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Where a copied text went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTarget {
    /// To tmux, which took it.
    Tmux,
    /// To the terminal (OSC 52), which does not say whether it took it.
    Terminal,
}

/// The real terminal on stdout.
pub struct Tty {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    log: Option<File>,
}

static UP: AtomicBool = AtomicBool::new(false);
/// The mouse is asked for when the terminal is taken.
static MOUSE: AtomicBool = AtomicBool::new(true);
/// Copy of stderr while it is redirected, -1 otherwise.
static STDERR: AtomicI32 = AtomicI32::new(-1);

impl Tty {
    /// Takes the terminal; stderr goes to `log` while it is held.
    pub fn new(log: Option<File>) -> io::Result<Tty> {
        // The theme knows NO_COLOR; left to itself, crossterm drops bold and reverse along with colours.
        crossterm::style::force_color_output(true);
        let writer = BufWriter::with_capacity(1 << 16, io::stdout());
        let mut tty = Tty { terminal: Terminal::new(CrosstermBackend::new(writer))?, log };
        tty.enter()?;
        Ok(tty)
    }
}

impl Surface for Tty {
    fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
        queue!(self.terminal.backend_mut(), terminal::BeginSynchronizedUpdate)?;
        self.terminal.draw(|frame| paint(frame))?;
        execute!(self.terminal.backend_mut(), terminal::EndSynchronizedUpdate)
    }

    fn size(&self) -> io::Result<Size> {
        self.terminal.size()
    }

    fn leave(&mut self) -> io::Result<()> {
        give_back()
    }

    fn enter(&mut self) -> io::Result<()> {
        terminal::enable_raw_mode()?;
        UP.store(true, Ordering::SeqCst);
        if let Some(log) = &self.log {
            redirect_stderr(log);
        }
        execute!(
            self.terminal.backend_mut(),
            terminal::EnterAlternateScreen,
            MouseButtons(MOUSE.load(Ordering::SeqCst)),
            event::EnableBracketedPaste,
            cursor::Hide,
        )?;
        self.clear()
    }

    fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` asks the terminal where its cursor is and fails where nobody answers; a resize to
        // the same size clears without.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    fn copy(&mut self, text: &str) -> io::Result<CopyTarget> {
        use base64::Engine;
        let end = (0..=COPY_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let text = &text[..end];
        // By default tmux refuses OSC 52 of programs; of its own commands it takes the text.
        let inside = std::env::var_os("TMUX").is_some_and(|socket| !socket.is_empty());
        if inside && (to_tmux(&["load-buffer", "-w", "-"], text) || to_tmux(&["load-buffer", "-"], text)) {
            return Ok(CopyTarget::Tmux);
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        let out = self.terminal.backend_mut();
        write!(out, "\x1b]52;c;{encoded}\x07")?;
        Write::flush(out)?;
        Ok(CopyTarget::Terminal)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let out = self.terminal.backend_mut();
        out.write_all(bytes)?;
        Write::flush(out)
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ = give_back();
    }
}

/// Runs tmux with a text on its input, which a pipe holds whole; true when it took it. It is gone at the end.
fn to_tmux(arguments: &[&str], text: &str) -> bool {
    let started = std::process::Command::new("tmux")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut tmux) = started else { return false };
    let written = tmux.stdin.take().is_some_and(|mut pipe| pipe.write_all(text.as_bytes()).is_ok());
    let deadline = Instant::now() + TMUX_WITHIN;
    loop {
        match tmux.try_wait() {
            Ok(Some(status)) => return written && status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _ = tmux.kill();
                let _ = tmux.wait();
                return false;
            }
        }
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

/// From the next [`Surface::enter`] on, the mouse is asked for or not.
pub fn want_mouse(wanted: bool) {
    MOUSE.store(wanted, Ordering::SeqCst);
}

/// Takes the mouse, or leaves it to the terminal: what is to be sent.
pub fn mouse(wanted: bool) -> String {
    want_mouse(wanted);
    let mut sequence = String::new();
    // A write into text does not fail.
    let _ = MouseButtons(wanted).write_ansi(&mut sequence);
    sequence
}

/// Gives the terminal back if it is held; harmless otherwise and when called twice.
pub fn give_back() -> io::Result<()> {
    if !UP.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let written = execute!(
        io::stdout(),
        // A panic may come between the two marks of a frame.
        terminal::EndSynchronizedUpdate,
        event::DisableBracketedPaste,
        MouseButtons(false),
        terminal::LeaveAlternateScreen,
        cursor::Show,
    );
    let cooked = terminal::disable_raw_mode();
    restore_stderr();
    written.and(cooked)
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
        // SAFETY: `saved` was just made by us and is owned by nobody else.
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

/// A panic of the main thread gives the terminal back before its message is printed; one of another thread
/// goes to the log, and the screen stays.
pub fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(set_panic_hook);
}

fn set_panic_hook() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let was_up = UP.load(Ordering::SeqCst);
        if was_up && std::thread::current().name() != Some("main") {
            tracing::error!("a thread of the console failed: {info}");
            return;
        }
        let _ = give_back();
        print(info);
        stderr::line(
            "hint: this is a bug of the console; the run goes on: `rankdeck attach` takes it up again",
        );
    }));
}

/// Stops the console's process group as ctrl-z would have done, and returns when it is continued. The kernel
/// ignores the stop when there is no shell that could continue us.
pub fn stop_process_group() {
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
