//! What the loop does when the system tells it to stop, to give way or to go on.

use super::{Driver, Why};
use crate::shell::headless::{Form, Printer};
use crate::shell::objective::Objective;
use crate::shell::output::Output;
use crate::shell::signals::{ConsoleSignal, Signals};
use crate::shell::stderr;
use rankdeck_core::event::{Event, StopSource};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::StopMode;
use rankdeck_tui::Action;
use std::io;

impl Driver {
    pub(super) async fn on_signal(&mut self, signal: ConsoleSignal, signals: &mut Signals) -> io::Result<()> {
        match signal {
            // The keys that make it are meant for the shell that has the terminal.
            ConsoleSignal::Stop | ConsoleSignal::Suspend if self.guest.is_here() => {}
            ConsoleSignal::Stop => self.on_stop_signal(),
            ConsoleSignal::HangUp => self.tell(Event::DetachRequested),
            ConsoleSignal::Suspend => self.act(Action::Suspend, signals).await?,
            ConsoleSignal::Continue => {
                self.tell(Event::WallClock { time: wall_time() });
                if let Output::Screen(screen) = &mut self.output {
                    screen.redraw();
                }
            }
        }
        Ok(())
    }

    /// Whatever is pressed here changes nothing of the run.
    fn is_read_only(&self) -> bool {
        match &self.output {
            Output::Screen(screen) => screen.view.steering.read_only,
            Output::Linear(linear) => linear.words.view.steering.read_only,
            Output::Lines(_) | Output::Quiet => self.objective == Objective::Observe,
        }
    }

    /// First: clean stop; second: kill; third: leave at once. A screen gives way to lines, so that what
    /// follows can be read.
    pub(super) fn on_stop_signal(&mut self) {
        if self.is_read_only() {
            return self.tell(Event::DetachRequested);
        }
        if let Output::Screen(screen) = &mut self.output {
            screen.close();
            self.output = match Printer::new(Form::Plain { logs: false }) {
                Ok(printer) => Output::Lines(Box::new(printer)),
                Err(_) => Output::Quiet,
            };
        }
        self.leaving.stop_signals += 1;
        let mode = match self.leaving.stop_signals {
            _ if self.leaving.finished.is_some() => {
                self.leaving.leave = Some(Why::Done);
                return;
            }
            1 => StopMode::Clean,
            2 => StopMode::Kill,
            _ => {
                self.leaving.leave = Some(Why::Cut);
                return;
            }
        };
        stderr::line(match mode {
            StopMode::Kill => "killing the run; a third signal leaves it behind",
            StopMode::Clean | StopMode::Terminate => "stopping the run cleanly; a second signal kills it",
        });
        self.tell(Event::StopRequested { mode, by: StopSource::Signal });
    }
}
