//! Texts of the console that tests wait for, in one place: a change of words changes them here only.

/// The run has ended, on its screen.
pub const ENDED: &str = "the run has ended";
/// Its stop is verified, in the summary.
pub const VERIFIED: &str = "stop verified";
pub const NO_PROCESS_LEFT: &str = "no process left on";
/// Outcomes.
pub const SUCCEEDED: &str = "succeeded";
pub const FAILED: &str = "failed";
/// All ranks make progress, in the status.
pub const OK: &str = "ok: ";
/// Why a key of the demo is disabled after the end.
pub const FREEZE_ENDED: &str = "freeze: the run has ended";
/// The ranks are running, in the title and in their state.
pub const RUNNING: &str = "running";
/// The weights of all ranks have been compared.
pub const WEIGHTS_EQUAL: &str = "weights equal";
/// The question of `x`.
pub const STOP_QUESTION: &str = "stop the run?";
/// The key for help, in the footer.
pub const HELP_KEY: &str = "? help";
/// Below each overlay that this key closes.
pub const ESC_CLOSES: &str = "esc closes";
/// Another console has launched the run.
pub const ADOPTED: &str = "gen 0, adopted";
/// The timeline: how far the cursor is behind the present, the key back to it.
pub const AHEAD: &str = "ahead";
pub const ESC_LIVE: &str = "esc live";
/// The timeline of a replay.
pub const BEFORE_END: &str = "before the end";
pub const END_OF_RECORDING: &str = "end of the recording";
/// Why an order is disabled.
pub const NOT_IN_PLAYBACK: &str = "not available in playback";
pub const RECORDED: &str = "this is a recorded run";
/// Why a time is rejected.
pub const RECORDING_STARTS: &str = "the recording starts";
/// Where the copied text went.
pub const COPIED: &str = "copied";
pub const SENT_TO_TERMINAL: &str = "sent to the terminal";
/// The question of line mode.
pub const CHOICES: &str = "type one of:";
/// The last lines of line mode: the outcome, and what `outcome` prints.
pub const FINISHED: &str = "run finished:";
pub const STOPPED: &str = "run finished: stopped";
pub const TOTALS: &str = "totals:";
/// An offer of the Outcome page.
pub const RELAUNCH: &str = "launch again with changes";
/// The question of `r`.
pub const RESTART_QUESTION: &str = "restart the run";
/// A host without a connection.
pub const UNREACHABLE: &str = "unreachable";
/// The home screen without runs.
pub const NO_RUNS: &str = "no runs yet";
/// The list of `attach` without a run.
pub const SELECT_RUN: &str = "Select a run";
/// The end of a question on the command line.
pub const CONFIRM: &str = "[y/N]";
/// The curves of `compare` on the home screen.
pub const GROUPED: &str = "mean and band over seeds";

/// The first line of totals, in the summary.
pub const TOTALS_LINE: &str = "totals ";
/// After the first signal.
pub const SECOND_SIGNAL: &str = "a second signal";
