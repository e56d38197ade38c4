//! The terminal: taken over and restored in every case.
//!
//! Owner: one [`Tty`] at a time. All output goes through one thread ([`TerminalWriter`]), in order. While it is up,
//! stderr goes to the console's log, so that nothing else writes on the screen. The panic hook of
//! [`install_panic_hook`] restores the terminal before the message is printed. Mouse motion is not enabled:
//! over SSH it would flood.
//!
//! Writes frames to the terminal on its own thread: a stuck terminal delays no policy, detector or link.
//!
//! Owner: the thread owns the terminal's output and its cells; the loop owns [`TerminalWriter`]. Invariants:
//! - FRAMES-1: only [`TerminalWriter::finish`] waits for the terminal, for a limited time.
//! - FRAMES-2: the loop paints only when everything before is written ([`TerminalWriter::is_writing`]), so
//!   that the next frame shows the latest state, and each frame is compared with the written cells.
//! - FRAMES-3: at most [`WAITING_BYTES`] wait; more are refused.

use super::stderr;
use crossterm::{Command, cursor, event, queue, terminal};
use ratatui::backend::{Backend, CrosstermBackend, TestBackend};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use unicode_width::UnicodeWidthStr;

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

/// Most bytes besides frames that wait for the terminal.
const WAITING_BYTES: usize = 16 << 20;

/// One item to write, in order.
enum TerminalItem {
    /// All cells of the screen; those that differ are written.
    Frame(Buffer),
    Bytes(Vec<u8>),
    /// Bytes that the thread makes, too.
    Made(MakeBytes),
    /// The cells on the terminal are unknown: the next frame clears it and is written completely.
    Forget,
}

/// Makes bytes for the terminal.
pub(crate) type MakeBytes = Box<dyn FnOnce() -> Vec<u8> + Send>;

/// The sending end.
#[derive(Clone)]
struct TerminalWriter {
    shared: Arc<TerminalQueue>,
}

#[derive(Default)]
struct TerminalQueue {
    state: Mutex<FrameQueue>,
    /// There is something to write, or the end.
    more: Condvar,
    written: Condvar,
    /// The same as `written`, for the loop.
    wake: Arc<Notify>,
}

#[derive(Default)]
struct FrameQueue {
    parts: VecDeque<TerminalItem>,
    bytes: usize,
    writing: bool,
    over: bool,
    /// Why nothing more is written.
    failure: Option<(io::ErrorKind, String)>,
}

impl FrameQueue {
    fn is_idle(&self) -> bool {
        self.parts.is_empty() && !self.writing
    }
}

impl TerminalQueue {
    fn state(&self) -> MutexGuard<'_, FrameQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TerminalWriter {
    /// Starts the thread.
    pub(crate) fn new(out: impl Write + Send + 'static) -> io::Result<TerminalWriter> {
        let shared = Arc::<TerminalQueue>::default();
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
            let end = ThreadEnd(own);
            write_all(out, &end.0);
        })?;
        Ok(TerminalWriter { shared })
    }

    /// Whether the terminal has not accepted everything yet.
    pub(crate) fn is_writing(&self) -> bool {
        !self.shared.state().is_idle()
    }

    /// Notified when everything is written.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.wake)
    }

    /// Queues a frame; a queued one is replaced.
    pub(crate) fn frame(&self, frame: Buffer) -> io::Result<()> {
        let mut state = self.healthy()?;
        state.parts.retain(|part| !matches!(part, TerminalItem::Frame(_)));
        self.push(&mut state, TerminalItem::Frame(frame));
        Ok(())
    }

    /// Queues bytes that are not part of a frame.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.healthy()?;
        if state.bytes + bytes.len() > WAITING_BYTES {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "the terminal is not reading"));
        }
        state.bytes += bytes.len();
        self.push(&mut state, TerminalItem::Bytes(bytes.to_vec()));
        Ok(())
    }

    /// Queues bytes that are made when it is their turn: the loop does not wait for an image to be encoded.
    pub(crate) fn made(&self, make: MakeBytes) -> io::Result<()> {
        let mut state = self.healthy()?;
        self.push(&mut state, TerminalItem::Made(make));
        Ok(())
    }

    /// The next frame clears the terminal and is written completely.
    pub(crate) fn forget(&self) {
        self.push(&mut self.shared.state(), TerminalItem::Forget);
    }

    /// Waits until everything is written, at most `within`; returns whether it is.
    pub(crate) fn finish(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut state = self.shared.state();
        while !state.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.written.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends the thread once everything is written.
    pub(crate) fn end(&self) {
        self.shared.state().over = true;
        self.shared.more.notify_all();
    }

    fn healthy(&self) -> io::Result<MutexGuard<'_, FrameQueue>> {
        let state = self.shared.state();
        match &state.failure {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(state),
        }
    }

    fn push(&self, state: &mut FrameQueue, part: TerminalItem) {
        if state.failure.is_none() {
            state.parts.push_back(part);
            self.shared.more.notify_all();
        }
    }
}

/// Marks the end of the thread, so that no caller waits for it.
struct ThreadEnd(Arc<TerminalQueue>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        fail(&self.0, &io::Error::other("the thread that writes the screen has ended"));
    }
}

fn fail(shared: &TerminalQueue, error: &io::Error) {
    let mut state = shared.state();
    state.failure.get_or_insert_with(|| (error.kind(), error.to_string()));
    (state.parts, state.bytes, state.writing) = (VecDeque::new(), 0, false);
    shared.written.notify_all();
    shared.wake.notify_one();
}

fn write_all(mut out: impl Write, shared: &TerminalQueue) {
    let mut shown = None;
    loop {
        let part = {
            let mut state = shared.state();
            while state.parts.is_empty() && !state.over {
                state = shared.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(part) = state.parts.pop_front() else { return };
            if let TerminalItem::Bytes(bytes) = &part {
                state.bytes -= bytes.len();
            }
            state.writing = true;
            part
        };
        let encoded = match part {
            TerminalItem::Forget => {
                shown = None;
                Ok(Vec::new())
            }
            TerminalItem::Bytes(bytes) => Ok(bytes),
            TerminalItem::Made(make) => Ok(make()),
            TerminalItem::Frame(frame) => encode(&mut shown, frame),
        };
        if let Err(error) = encoded.and_then(|bytes| out.write_all(&bytes).and_then(|()| out.flush())) {
            return fail(shared, &error);
        }
        let mut state = shared.state();
        state.writing = false;
        if state.is_idle() {
            shared.written.notify_all();
            shared.wake.notify_one();
        }
    }
}

/// The cells on the terminal.
struct ShownFrame {
    cells: Buffer,
    /// Rows with a cell whose width terminals disagree about.
    doubtful: Vec<bool>,
}

impl ShownFrame {
    /// A cleared terminal.
    fn empty(area: Rect) -> ShownFrame {
        ShownFrame { cells: Buffer::empty(area), doubtful: vec![false; usize::from(area.height)] }
    }
}

/// Returns the bytes that turn the cells on the terminal into those of a frame.
fn encode(shown: &mut Option<ShownFrame>, frame: Buffer) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1 << 14);
    queue!(bytes, terminal::BeginSynchronizedUpdate)?;
    let mut before = match shown.take() {
        Some(before) if before.cells.area == frame.area => before,
        _ => {
            queue!(bytes, terminal::Clear(terminal::ClearType::All))?;
            ShownFrame::empty(frame.area)
        }
    };
    draw_cells(&mut bytes, &mut before, &frame)?;
    queue!(bytes, cursor::Hide, terminal::EndSynchronizedUpdate)?;
    *shown = Some(ShownFrame { cells: frame, ..before });
    Ok(bytes)
}

/// Writes the cells that differ. A row that changes and has or had a cell whose width terminals disagree about
/// is rewritten, each cell behind such a one at its own position: whatever the terminal made of it shifts
/// nothing.
fn draw_cells(bytes: &mut Vec<u8>, before: &mut ShownFrame, frame: &Buffer) -> io::Result<()> {
    let updates = before.cells.diff(frame);
    let (mut certain, mut doubtful) = (Vec::with_capacity(updates.len()), Vec::new());
    for row in updates.chunk_by(|(_, y, _), (_, next, _)| y == next) {
        let y = row[0].1;
        let Some(was) = before.doubtful.get_mut(usize::from(y - frame.area.y)) else { continue };
        // In a row that was certain, only what changes can be doubtful.
        let is = match *was {
            true => cells(frame, y).any(|(_, _, cell)| !has_certain_width(cell)),
            false => row.iter().any(|(_, _, cell)| !has_certain_width(cell)),
        };
        match std::mem::replace(was, is) || is {
            true => doubtful.push(y),
            false => certain.extend_from_slice(row),
        }
    }
    CrosstermBackend::new(&mut *bytes).draw(certain.into_iter())?;
    for y in doubtful {
        // Without wrapping, nothing gets into the next row.
        queue!(
            bytes,
            terminal::DisableLineWrap,
            cursor::MoveTo(0, y),
            terminal::Clear(terminal::ClearType::CurrentLine)
        )?;
        let row: Vec<_> = cells(frame, y).collect();
        for run in row.chunk_by(|(_, _, cell), _| has_certain_width(cell)) {
            // It moves the cursor to its first cell.
            CrosstermBackend::new(&mut *bytes).draw(run.iter().copied())?;
        }
        queue!(bytes, terminal::EnableLineWrap)?;
    }
    Ok(())
}

/// The cells of a row, without those that a wide one covers.
fn cells(buffer: &Buffer, y: u16) -> impl Iterator<Item = (u16, u16, &Cell)> {
    let mut free = buffer.area.left();
    buffer.area.columns().filter_map(move |column| {
        let cell = buffer.cell((column.x, y)).filter(|_| column.x >= free)?;
        free = column.x.saturating_add(UnicodeWidthStr::width(cell.symbol()).max(1) as u16);
        Some((column.x, y, cell))
    })
}

/// Whether all terminals take as many cells for a cell as this program does: one character of a script that
/// is written in single cells, or of Chinese, Japanese or Korean.
fn has_certain_width(cell: &Cell) -> bool {
    let mut chars = cell.symbol().chars();
    let Some(c) = chars.next() else { return true };
    let is_certain = matches!(c,
        ' '..='~' | '\u{a1}'..='\u{2ff}' | '\u{370}'..='\u{52f}' | '\u{2010}'..='\u{2027}'
        | '\u{2030}'..='\u{205e}' | '\u{2070}'..='\u{20cf}' | '\u{2100}'..='\u{2319}' | '\u{231c}'..='\u{23e8}'
        | '\u{2460}'..='\u{25fc}' | '\u{27c0}'..='\u{2b0f}' | '\u{3001}'..='\u{3029}' | '\u{3041}'..='\u{3096}'
        | '\u{30a0}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' | '\u{ff01}'..='\u{ff60}');
    is_certain && chars.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::Style;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Accepts bytes only when the gate is open.
    struct GatedTerminal {
        gate: Receiver<()>,
        started: Sender<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for GatedTerminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.started.send(());
            let _ = self.gate.recv();
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frame(text: &str, width: u16) -> Buffer {
        let mut frame = Buffer::empty(Rect::new(0, 0, width, 3));
        frame.set_string(0, 1, text, Style::default());
        frame
    }

    fn rows(bytes: &[u8], width: u16) -> String {
        let mut parser = vt100::Parser::new(3, width, 0);
        parser.process(bytes);
        parser.screen().contents()
    }

    #[test]
    fn frames_1_stuck_terminal_blocks_no_frame() {
        let ((open, gate), (started, begins), taken) =
            (channel(), channel(), Arc::<Mutex<Vec<u8>>>::default());
        let writer = TerminalWriter::new(GatedTerminal { gate, started, taken: Arc::clone(&taken) }).unwrap();
        writer.frame(frame("first and longer", 20)).unwrap();
        begins.recv_timeout(Duration::from_secs(60)).expect("the thread writes");
        for number in 0..1000 {
            writer.frame(frame(&format!("frame {number}"), 20)).unwrap();
        }
        writer.bytes(b"\x07").unwrap();
        assert!(writer.is_writing() && !writer.finish(Duration::ZERO));
        assert!(taken.lock().unwrap().is_empty());
        drop(open);
        assert!(writer.finish(Duration::from_secs(60)));
        let taken = taken.lock().unwrap();
        assert_eq!(rows(&taken, 20).trim(), "frame 999");
        assert!(!String::from_utf8_lossy(&taken).contains("frame 998"), "only the latest frame is written");
        assert!(taken.ends_with(b"\x07"));
    }

    #[test]
    fn frames_1_slow_encoder_blocks_no_frame() {
        let ((open, gate), (encode, encoder), (started, _begins), taken) =
            (channel(), channel::<()>(), channel(), Arc::<Mutex<Vec<u8>>>::default());
        drop(open);
        let writer = TerminalWriter::new(GatedTerminal { gate, started, taken: Arc::clone(&taken) }).unwrap();
        writer.frame(frame("below", 20)).unwrap();
        let make = move || {
            let _ = encoder.recv();
            b"image".to_vec()
        };
        writer.made(Box::new(make)).unwrap();
        assert!(writer.is_writing() && !writer.finish(Duration::ZERO));
        drop(encode);
        assert!(writer.finish(Duration::from_secs(60)));
        let taken = taken.lock().unwrap();
        assert!(taken.ends_with(b"image") && rows(&taken, 20).contains("below"), "in order");
    }

    #[test]
    fn frames_2_frame_is_diffed_against_written_cells() {
        let ((open, gate), (started, _begins), taken) =
            (channel(), channel(), Arc::<Mutex<Vec<u8>>>::default());
        drop(open);
        let writer = TerminalWriter::new(GatedTerminal { gate, started, taken: Arc::clone(&taken) }).unwrap();
        let written = |text, width| {
            writer.frame(frame(text, width)).unwrap();
            assert!(writer.finish(Duration::from_secs(60)));
            taken.lock().unwrap().clone()
        };
        let first = written("same words", 20).len();
        let second = written("same worlds", 20);
        assert!(!second[first..].windows(4).any(|four| four == b"same"), "only what differs is written");
        assert_eq!(rows(&second, 20).trim(), "same worlds");
        // Another size, or unknown cells: all of it.
        let third = written("same worlds", 24);
        assert!(third[second.len()..].windows(4).any(|four| four == b"same"));
        writer.forget();
        let fourth = written("same worlds", 24);
        assert!(fourth[third.len()..].windows(4).any(|four| four == b"\x1b[2J"));
    }

    /// A terminal with a table of widths of its own, by the number of its cells for all characters beyond
    /// ASCII.
    fn shown_with(bytes: &[u8], columns: usize, cells: usize) -> String {
        let (mut row, mut at) = (vec![' '; columns], (0, 0));
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            if let Some(escape) = rankdeck_types::escape::leading(rest.as_bytes()) {
                let sequence = &rest[..escape.len];
                if let Some((y, x)) =
                    sequence.strip_prefix("\x1b[").and_then(|s| s.strip_suffix('H')?.split_once(';'))
                {
                    at = (y.parse::<usize>().unwrap() - 1, x.parse::<usize>().unwrap() - 1);
                } else if sequence == "\x1b[2J" || sequence == "\x1b[2K" && at.0 == 1 {
                    row.fill(' ');
                }
                rest = &rest[escape.len..];
                continue;
            }
            let c = rest.chars().next().unwrap();
            rest = &rest[c.len_utf8()..];
            let taken = if c.is_ascii() { 1 } else { cells };
            for n in 0..taken {
                if at.0 == 1 && at.1 + n < columns {
                    row[at.1 + n] = if c.is_ascii() { c } else { '?' };
                }
            }
            at.1 += taken;
        }
        row.into_iter().collect()
    }

    #[test]
    fn cells_of_doubtful_width_shift_nothing() {
        for cells in 0..=2 {
            let (mut shown, mut bytes) = (None, Vec::new());
            for text in [
                "line 77 ab tail",
                "line 78 \u{915}\u{94d}\u{937}\u{93f} tail",
                "line 79 \u{26a0}x tail!",
                "line 80 ab tail",
            ] {
                bytes.extend(encode(&mut shown, frame(text, 20)).unwrap());
                let row = shown_with(&bytes, 20, cells);
                let (head, tail) = (&text[..8], text.rsplit_once(' ').unwrap().1);
                assert!(row.starts_with(head), "{row:?} of {text:?}, {cells} cells");
                assert!(row.trim_end().ends_with(&format!(" {tail}")), "{row:?} of {text:?}, {cells} cells");
            }
            assert_eq!(shown_with(&bytes, 20, cells).trim_end(), "line 80 ab tail");
        }
        let rewrites = |bytes: &[u8]| bytes.windows(4).any(|four| four == b"\x1b[2K");
        let mut shown = None;
        for (text, is_rewritten) in [
            ("╭─ é ⣿▁█ ● 漢字", false),
            ("line \u{26a0} tail", true),
            ("line \u{26a0} tails", true),
            ("line ab tails", true),
            ("line cd tails", false),
        ] {
            let bytes = encode(&mut shown, frame(text, 20)).unwrap();
            assert_eq!(rewrites(&bytes), is_rewritten, "only doubtful rows are rewritten: {text}");
        }
    }

    #[test]
    fn frames_3_bytes_are_bounded_and_failure_is_reported() {
        let ((open, gate), (started, _begins), taken) =
            (channel(), channel(), Arc::<Mutex<Vec<u8>>>::default());
        let writer = TerminalWriter::new(GatedTerminal { gate, started, taken }).unwrap();
        let mebibyte = vec![0; 1 << 20];
        let refused = (0..2 * (WAITING_BYTES >> 20)).find_map(|_| writer.bytes(&mebibyte).err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        drop(open);

        struct GoneTerminal;
        impl Write for GoneTerminal {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writer = TerminalWriter::new(GoneTerminal).unwrap();
        writer.bytes(b"x").unwrap();
        assert!(writer.finish(Duration::from_secs(60)), "finish does not wait for a lost terminal");
        assert!(writer.frame(frame("x", 20)).is_err());
    }
}
