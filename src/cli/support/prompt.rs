//! Prompts on the terminal: confirmations, lists from which the user selects one entry, the login prompts of
//! one-shot connections, and the progress of their uploads.

use crate::app::{stderr, terminal_input, tty_prompt};
use crate::cli::args::HostKeyArgs;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal;
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_link::{Prompter, WaitReason};
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words::clean;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Prompts on the terminal, one at a time; refuses without a terminal.
#[derive(Debug)]
pub(crate) struct TerminalPrompter {
    accept_new_host_keys: bool,
    can_ask: bool,
    turn: Mutex<()>,
}

/// Whether a user can be prompted to log in.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Whether this process offers neither lists nor confirmations.
static HEADLESS: AtomicBool = AtomicBool::new(false);

/// From now on, no lists and confirmations are offered (`--headless`).
pub(crate) fn set_headless() {
    HEADLESS.store(true, Ordering::Relaxed);
}

/// Whether a user can confirm.
pub(crate) fn can_confirm() -> bool {
    can_ask() && !HEADLESS.load(Ordering::Relaxed)
}

/// Asks for confirmation on the terminal; anything but yes counts as no. Cancel-safe: nothing is read before an
/// answer.
pub(crate) async fn yes(question: &str) -> bool {
    stderr::status(&format!("{question} [y/N] "));
    // SAFETY: standard input stays open for as long as the process runs.
    let terminal = unsafe { AsyncFd::register_with_interest(io::stdin(), Interest::READABLE) };
    // Not every file type can be awaited; the others are read at once.
    if let Ok(terminal) = terminal {
        let _ = terminal.readable().await;
    }
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

impl TerminalPrompter {
    /// A prompter for these arguments.
    pub(crate) fn new(host_keys: &HostKeyArgs) -> Arc<TerminalPrompter> {
        Arc::new(TerminalPrompter {
            accept_new_host_keys: host_keys.accept_new_host_keys,
            can_ask: can_ask(),
            turn: Mutex::new(()),
        })
    }
}

impl Prompter for TerminalPrompter {
    fn ask(&self, host: &str, prompt: &Prompt) -> Option<String> {
        if self.accept_new_host_keys && matches!(prompt, Prompt::UnknownHostKey { .. }) {
            return Some("yes".to_owned());
        }
        if !self.can_ask {
            return None;
        }
        // A poisoned lock only means that another prompt panicked.
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tty_prompt::on_terminal(host, prompt)
    }
}

/// Refuses every prompt and shows no progress.
#[derive(Debug)]
pub(crate) struct NoPrompts;

impl Prompter for NoPrompts {
    fn ask(&self, _: &str, _: &Prompt) -> Option<String> {
        None
    }
}

/// Shorter waits are not shown.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval between lines if lines cannot be overwritten.
const SELDOM: Duration = Duration::from_secs(15);

/// Prompts like [`TerminalPrompter`] and shows the progress of uploads and long waits: one line that is
/// overwritten on a terminal, a line every 15 seconds elsewhere.
#[derive(Debug)]
pub(crate) struct ProgressPrompter {
    terminal: Arc<TerminalPrompter>,
    shown: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// Bytes sent and total, by host and file.
    files: BTreeMap<(String, String), (u64, u64)>,
    /// What each host is waited for, and since when.
    waits: BTreeMap<String, (WaitReason, Instant)>,
    /// When the first upload started.
    started: Option<Instant>,
    /// Whether a line was printed about uploads that are not finished.
    lines: bool,
    at: Option<Instant>,
    /// Whether an unfinished line is on the terminal.
    open: bool,
}

/// Shows waits until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitNotice(tokio::task::JoinHandle<()>);

impl Drop for WaitNotice {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ProgressPrompter {
    /// For these arguments.
    pub(crate) fn new(host_keys: &HostKeyArgs) -> Arc<ProgressPrompter> {
        Arc::new(ProgressPrompter { terminal: TerminalPrompter::new(host_keys), shown: Mutex::default() })
    }

    /// Starts to show long waits.
    pub(crate) fn show_waits(self: &Arc<Self>) -> WaitNotice {
        let progress = Arc::downgrade(self);
        WaitNotice(tokio::spawn(async move {
            let mut clock = tokio::time::interval(Duration::from_millis(500));
            loop {
                clock.tick().await;
                let Some(progress) = progress.upgrade() else { return };
                progress.shown().show_waits(Instant::now());
            }
        }))
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, ProgressState> {
        // A poisoned lock only means that another report panicked.
        self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ProgressState {
    /// Shows `text`, overwriting the current line.
    fn show(&mut self, text: &str) {
        let fancy = stderr::is_terminal();
        if fancy {
            stderr::status(text)
        } else {
            stderr::line(text)
        }
        self.at = Some(Instant::now());
        self.open = fancy;
    }

    /// Keeps the line of an upload and removes that of a wait.
    fn end(&mut self) {
        if self.files.is_empty() {
            self.clear();
        } else if std::mem::take(&mut self.open) {
            stderr::end_status();
        }
    }

    /// Removes the current line.
    fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            stderr::clear_status();
        }
    }

    fn due(&self, often: Duration) -> bool {
        let pause = if stderr::is_terminal() { often } else { SELDOM };
        self.at.is_none_or(|at| at.elapsed() >= pause)
    }

    fn show_waits(&mut self, now: Instant) {
        match waits(&self.waits, now) {
            Some(text) if self.due(Duration::from_millis(400)) => self.show(&text),
            _ => {}
        }
    }
}

/// Describes the hosts that are waited for, the longest wait first; `None` without a long wait.
fn waits(waits: &BTreeMap<String, (WaitReason, Instant)>, now: Instant) -> Option<String> {
    let mut long: Vec<_> = waits
        .iter()
        .map(|(host, (why, since))| (now.saturating_duration_since(*since), host, *why))
        .filter(|(waited, ..)| *waited >= PATIENCE)
        .collect();
    long.sort_by(|a, b| b.cmp(a));
    let (waited, host, why) = *long.first()?;
    let why = match why {
        WaitReason::Login => "to log in",
        WaitReason::Shell => "to run a command (login shell startup)",
        WaitReason::Answer => "to answer",
    };
    let others = match long.len() - 1 {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    Some(format!("waiting {} s for {}{others} {why}", waited.as_secs(), host))
}

impl Prompter for ProgressPrompter {
    fn ask(&self, host: &str, prompt: &Prompt) -> Option<String> {
        {
            let mut shown = self.shown();
            shown.clear();
            // From here on, the user is waited for.
            shown.waits.remove(host);
        }
        self.terminal.ask(host, prompt)
    }

    fn waiting(&self, host: &str, why: Option<WaitReason>) {
        let mut shown = self.shown();
        match why {
            Some(why) => drop(shown.waits.insert(host.to_owned(), (why, Instant::now()))),
            None => drop(shown.waits.remove(host)),
        }
    }

    fn finished(&self) {
        self.shown().end();
    }

    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let mut shown = self.shown();
        // Uploads are shown by their bytes.
        shown.waits.remove(host);
        shown.files.insert((host.to_owned(), what.to_owned()), (done, total));
        let (sent, total) =
            shown.files.values().fold((0, 0), |(sent, sum), (done, size)| (sent + done, sum + size));
        let fancy = stderr::is_terminal();
        // Lines are for long uploads only.
        let started = *shown.started.get_or_insert_with(Instant::now);
        let last = sent >= total && (fancy || shown.lines);
        if last || (shown.due(Duration::from_millis(100)) && (fancy || started.elapsed() >= SELDOM)) {
            shown.lines = sent < total;
            let hosts: std::collections::BTreeSet<&String> =
                shown.files.keys().map(|(host, _)| host).collect();
            let text = format!(
                "{} of {} to {}",
                rankdeck_types::words::bytes(sent),
                rankdeck_types::words::bytes(total),
                rankdeck_types::words::plural(hosts.len(), "host")
            );
            shown.show(&text);
        }
    }
}

impl Drop for ProgressPrompter {
    fn drop(&mut self) {
        self.shown().end();
    }
}

/// Rows of the list that are visible.
const LIST_ROWS: usize = 12;

/// The effect of a key on a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PickerAction {
    /// Moves to another entry.
    To(usize),
    /// Selects the current entry.
    Take,
    /// Cancels.
    Leave,
}

fn picker_action(key: KeyEvent, at: usize, count: usize) -> PickerAction {
    let last = count.saturating_sub(1);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => PickerAction::Leave,
        KeyCode::Esc | KeyCode::Char('q') => PickerAction::Leave,
        KeyCode::Enter => PickerAction::Take,
        KeyCode::Up | KeyCode::Char('k') => PickerAction::To(at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => PickerAction::To((at + 1).min(last)),
        KeyCode::PageUp => PickerAction::To(at.saturating_sub(LIST_ROWS)),
        KeyCode::PageDown => PickerAction::To((at + LIST_ROWS).min(last)),
        KeyCode::Home | KeyCode::Char('g') => PickerAction::To(0),
        KeyCode::End | KeyCode::Char('G') => PickerAction::To(last),
        _ => PickerAction::To(at),
    }
}

/// Returns the visible range, so that it includes the current entry.
fn visible_range(at: usize, count: usize) -> std::ops::Range<usize> {
    let top = at.saturating_sub(LIST_ROWS - 1).min(count.saturating_sub(LIST_ROWS));
    top..count.min(top + LIST_ROWS)
}

fn list_rows(title: &str, items: &[String], at: usize, cells: usize) -> Vec<String> {
    let shown = visible_range(at, items.len());
    let more = items.len() - shown.len();
    let more = if more > 0 { format!("  ({} of {})", at + 1, items.len()) } else { String::new() };
    let cut = |text: String| text.chars().take(cells.max(1)).collect::<String>();
    let mut rows = vec![cut(format!("{title}: up/down move, enter selects, esc cancels{more}"))];
    rows.extend(shown.map(|index| {
        let mark = if index == at { ">" } else { " " };
        cut(format!("{mark} {}", clean(items.get(index).map_or("", String::as_str))))
    }));
    rows
}

/// Whether a user can select on this terminal.
pub(crate) fn can_select() -> bool {
    let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    can_confirm() && stderr::is_terminal() && !dumb
}

/// Raw mode of the terminal, restored on drop.
struct RawMode;

impl RawMode {
    fn enter() -> io::Result<RawMode> {
        terminal::enable_raw_mode().map(|()| RawMode)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = terminal::disable_raw_mode();
    }
}

/// Shows the entries and returns the selected one; `None` if cancelled. The list is cleared afterwards.
pub(crate) fn select(title: &str, items: &[String]) -> io::Result<Option<usize>> {
    let _raw = RawMode::enter()?;
    let (mut at, mut decoder) = (0, InputDecoder::default());
    let picked = loop {
        let cells = terminal::size().map_or(80, |(columns, _)| usize::from(columns).saturating_sub(1));
        let rows = list_rows(title, items, at, cells);
        stderr::list(&rows);
        match terminal_input::wait(&mut decoder)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match picker_action(key, at, items.len())
            {
                PickerAction::To(index) => at = index,
                PickerAction::Take => break Some(at),
                PickerAction::Leave => break None,
            },
            _ => {}
        }
    };
    stderr::clear_list();
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_wait_is_shown_with_its_reason() {
        let began = Instant::now();
        let mut all = BTreeMap::new();
        all.insert("a".to_owned(), (WaitReason::Answer, began + Duration::from_secs(1)));
        all.insert("b".to_owned(), (WaitReason::Shell, began));
        all.insert("c".to_owned(), (WaitReason::Login, began + Duration::from_secs(9)));
        assert_eq!(waits(&all, began + Duration::from_secs(2)), None);
        let text = waits(&all, began + Duration::from_secs(5)).unwrap();
        assert_eq!(text, "waiting 5 s for b (and 1 more) to run a command (login shell startup)");
    }

    #[test]
    fn picker_keys_stay_in_range_and_selection_is_visible() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(picker_action(key(KeyCode::Up), 0, 5), PickerAction::To(0));
        assert_eq!(picker_action(key(KeyCode::Char('j')), 4, 5), PickerAction::To(4));
        assert_eq!(picker_action(key(KeyCode::End), 0, 5), PickerAction::To(4));
        assert_eq!(picker_action(key(KeyCode::Enter), 3, 5), PickerAction::Take);
        assert_eq!(
            picker_action(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 3, 5),
            PickerAction::Leave
        );
        for (at, count) in [(0, 1), (11, 12), (12, 40), (39, 40), (3, 40)] {
            let shown = visible_range(at, count);
            assert!(shown.contains(&at) && shown.len() == count.min(LIST_ROWS), "{at} of {count}: {shown:?}");
        }
    }

    #[test]
    fn list_entries_are_cut_and_cleaned() {
        let items = vec!["a\u{1b}[2Jb".to_owned(), "x".repeat(500)];
        let rows = list_rows("the name is ambiguous", &items, 1, 40);
        assert!(rows.iter().all(|row| row.chars().count() <= 40 && !row.contains('\u{1b}')), "{rows:?}");
        assert!(rows[2].starts_with("> xxx"));
    }
}
