//! Calls to the user, as the loop makes them: only of a run that this console has seen alive.

use crate::shell::notify::{Notifier, Progress, TITLE_BACK, TITLE_KEPT, TerminalFacts, WITHIN, state};
use crate::shell::output::Output;
use crate::shell::screen::Screen;
use rankdeck_core::model::{Model, RunState};
use rankdeck_core::report::Report;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::Notify;
use std::time::Duration;

/// A run that was up for this long is one that this console has seen, not one whose records it reads.
const ALIVE_MS: u64 = 1000;
/// How long the end of a screen waits for a command.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Calls {
    notifier: Notifier,
    known: TerminalFacts,
    up_since: Option<Timestamp>,
    alive: bool,
    /// Title and progress that the terminal shows.
    shown: Option<(String, Progress)>,
}

/// The next failure of a call. Cancel-safe.
pub(super) async fn failed(calls: &mut Option<Calls>) -> String {
    match calls {
        Some(calls) => calls.notifier.failed().await,
        None => std::future::pending().await,
    }
}

impl Calls {
    pub(super) fn new(settings: Notify) -> Calls {
        Calls {
            notifier: Notifier::new(settings),
            known: TerminalFacts::here(),
            up_since: None,
            alive: false,
            shown: None,
        }
    }

    /// Sees whether the run is up.
    pub(super) fn look(&mut self, now: Timestamp, model: &Model) {
        if matches!(model.run.state, RunState::Launching | RunState::Running) {
            let since = *self.up_since.get_or_insert(now);
            self.alive |= now.since(since) >= ALIVE_MS;
        }
    }

    /// Calls, where a report is worth it.
    pub(super) fn report(&mut self, report: &Report, output: &mut Output) {
        let Some(call) = self.notifier.weigh(report).filter(|_| self.alive) else { return };
        self.notifier.start(&call);
        if let Output::Screen(screen) = output {
            screen.send(&self.notifier.bytes(&call, &self.known));
        }
    }

    /// Title and progress of the terminal, when they change.
    pub(super) fn show(&mut self, model: &Model, screen: &mut Screen) {
        if !self.notifier.shows_title() {
            return;
        }
        let now = state(model);
        if self.shown.as_ref() == Some(&now) {
            return;
        }
        if self.shown.is_none() && self.known.keeps_title() {
            screen.send(TITLE_KEPT.as_bytes());
        }
        screen.send(&self.known.title(&now.0));
        screen.send(&self.known.progress(now.1));
        self.shown = Some(now);
    }

    /// Gives the terminal its title back.
    pub(super) fn leave(&self, screen: &mut Screen) {
        if self.shown.is_some() {
            screen.send(&self.known.progress(Progress::Off));
            if self.known.keeps_title() {
                screen.send(TITLE_BACK.as_bytes());
            }
        }
    }

    /// Waits for commands; not for long where somebody waits, too.
    pub(super) async fn end(self, somebody_waits: bool) -> Vec<String> {
        self.notifier.end(if somebody_waits { PATIENCE } else { WITHIN + Duration::from_secs(1) }).await
    }
}
