//! The console's event loop and its inputs and outputs; the only place that awaits.
//!
//! Owner: the console process. [`driver`] is the loop: links, keys, signals and one timer become
//! [`Event`](rankdeck_core::event::Event)s, the core answers with effects, and the loop executes them. The
//! other modules are parts of it:
//!
//! - [`clock`] the monotonic clock; [`signals`] signals; [`exit_condition`] when a command has done its work;
//! - [`output`] where the run is shown: [`screen`] (on a `terminal_surface` over [`terminal`], with the keys of
//!   [`terminal_input`]), [`headless`] (with [`line_writer`]), or [`output`] for typed commands;
//! - [`replace_file`] atomic replacement of files; `side_jobs` slow work on threads, also other runs in the charts;
//! - [`record`] the recording and the console's log; [`playback`] of recordings, of a live run by the thread of
//!   `live_playback`;
//! - [`home_screen`] the home screen; [`play`] a policy playing; [`graphics`] images drawn by the terminal;
//! - [`metrics`] Prometheus; `notify` notifications: terminal, command, webhook;
//! - [`external_shell`] a shell on a host;
//! - [`tty_prompt`] prompts of links without a screen; [`summary`] the lines at the end.
//!
//! Invariants:
//! - APP-1: nothing is drawn unless the model or the view changed since the last frame, and never faster
//!   than its `FrameScheduler` allows.
//! - However the console ends (exit, signal, panic), the terminal is restored.
//! - A slow reader of stdout or stderr, a slow disk or a slow terminal never delays a command to a host.

pub(crate) mod clock;
pub(crate) mod demo;
pub(crate) mod driver;
pub(crate) mod exit_condition;
pub(crate) mod external_shell;
pub(crate) mod graphics;
pub(crate) mod headless;
pub(crate) mod home_screen;
pub(crate) mod line_writer;
mod live_playback;
pub mod metrics;
mod notify;
pub(crate) mod output;
pub mod overrides;
pub(crate) mod play;
pub(crate) mod playback;
pub(crate) mod record;
pub(crate) mod replace_file;
pub(crate) mod screen;
pub(crate) mod secrets;
mod side_jobs;
pub(crate) mod signals;
pub(crate) mod stderr;
pub mod summary;
pub(crate) mod terminal;
pub(crate) mod terminal_input;
mod terminal_surface;
pub(crate) mod tty_prompt;
