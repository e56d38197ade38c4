//! The only place that awaits: driver, terminal, headless, signals.
//!
//! Owner: the console process. [`driver`] is the one loop: links, keys, signals and one timer become
//! [`Event`](rankdeck_core::event::Event)s, the core answers with effects, and those are carried out here.
//! Everything else in this folder is a part of that loop:
//!
//! - [`clock`] the console's monotonic clock; [`signals`] what the system says; [`objective`] what the
//!   command came for, as a pure machine;
//! - [`output`] how it is shown: [`screen`] (on a `canvas`, with [`terminal`] and [`frames`]) or
//!   [`headless`] (with [`line_writer`]), or both for who types words ([`linear`]);
//! - [`record`] what is kept in the console's run directory; [`player`], [`cursor`] and [`replay`] the way
//!   back; [`compared_curves`] other runs over the charts;
//! - [`home_screen`] the screen without a run, for home; [`play`] a policy at play; `pictures` those that the
//!   program logs, where the terminal draws them;
//! - [`metrics`] the run for Prometheus; [`notify`] calls its user: terminal, command, webhook;
//! - [`guest`] a shell on a host, which has the terminal meanwhile;
//! - [`ask`] questions of links in headless mode; [`summary`] the last words; [`log`] the console's own log.
//!
//! Invariants:
//! - SHELL-1: nothing is drawn unless the model or the view changed since the last frame, and never faster
//!   than [`frames`] allows.
//! - However the console ends (exit, signal, panic), the terminal is as it was found.
//! - A slow reader of stdout, a slow disk or a slow terminal never delays an order to a host by more
//!   than one write.

pub mod ask;
mod canvas;
pub mod changer;
pub mod clock;
pub mod compared_curves;
pub mod cursor;
pub mod demo;
pub mod driver;
pub mod frames;
pub mod guest;
pub mod headless;
pub mod home_screen;
pub mod line_writer;
pub mod linear;
pub mod log;
mod look;
pub mod metrics;
pub mod notify;
pub mod objective;
pub mod output;
mod pictures;
pub mod play;
pub mod player;
pub mod record;
pub mod replay;
pub mod screen;
pub mod secrets;
pub mod signals;
pub mod stderr;
pub mod summary;
pub mod terminal;
