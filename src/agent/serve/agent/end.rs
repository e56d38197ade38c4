//! How an agent ends: by a signal, with its Slurm step, or when nobody needs it any more.

use super::Agent;
use crate::paths::RunPaths;
use crate::serve::log::say;
use crate::serve::slurm_step;
use crate::supervise::lifecycle;
use crate::supervise::supervisor::Outcome;
use rankdeck_proto::message::StopMode;
use std::io;
use std::process::ExitCode;
use std::time::Instant;
use tokio::signal::unix::{Signal, SignalKind, signal};

impl Agent {
    /// A signal says that the agent is to end. From Slurm it comes some seconds before the job's end.
    pub(super) fn quit(&mut self) {
        let grace = self.lifecycle.borrow().spec().map_or(0, lifecycle::grace_ms);
        match self.step.as_ref().map(|step| step.job()) {
            Some(job) => self.end_run(StopMode::Clean, grace, &job),
            None => self.end_run(StopMode::Terminate, grace, "signal"),
        }
    }

    /// SLURM-1. The step is over: these cores are somebody else's now. Where nobody said so before, ranks get
    /// a moment for a checkpoint.
    pub(super) fn leave_step(&mut self) {
        let job = self.step.as_ref().map(|step| step.job()).unwrap_or_default();
        if self.quitting {
            self.end_run(StopMode::Kill, 0, &job);
        } else {
            let grace = self.lifecycle.borrow().spec().map_or(0, lifecycle::grace_ms);
            // No progress makes it longer.
            self.end_run(StopMode::Terminate, grace.min(slurm_step::MOMENT_MS), &job);
        }
    }

    fn end_run(&mut self, mode: StopMode, grace: u64, by: &str) {
        self.quitting = true;
        if self.lifecycle.borrow().is_quiet() {
            return;
        }
        let now = self.supervisor.now();
        let actions = self.lifecycle.borrow_mut().stop(mode, grace, by, now);
        self.perform(actions);
        self.ask_cause();
    }

    /// Has the cause of the step's end recorded, once. Not for a run that is over: a job of a thousand nodes
    /// would ask its controller a thousand times.
    fn ask_cause(&mut self) {
        let Some(step) = self.step.as_ref().filter(|_| !self.asked_cause) else { return };
        self.asked_cause = true;
        self.cause_by = Some(Instant::now() + slurm_step::CAUSE);
        let (cause, outcomes) = (step.cause(self.supervisor.helpers()), self.supervisor.outcomes());
        tokio::task::spawn_blocking(move || outcomes.blocking_send(Outcome::JobEnd(cause())));
    }

    pub(super) async fn end(self, reason: String) -> ExitCode {
        self.consoles.end(reason).await;
        let verified = self.lifecycle.borrow().is_quiet();
        let unused = self.lifecycle.borrow().spec().is_none();
        self.journal.save_manifest(self.manifest(false).bytes());
        if !self.journal.flush() {
            say("not everything could be written to disk");
        }
        // A console that comes now waits for the end of this process.
        let _ = std::fs::remove_file(self.settings.console_socket());
        crate::sockets::remove(&self.settings.event_socket());
        if unused {
            forget(&self.settings.paths);
        }
        say("ended");
        self.supervisor.end(verified);
        if verified { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Removes the traces of a run that never began: a folder with records of it stays.
fn forget(paths: &RunPaths) {
    if std::fs::metadata(paths.spool()).is_ok_and(|data| data.len() > 0) {
        return;
    }
    for file in [paths.manifest(), paths.spool(), paths.agent_log(), paths.launcher()] {
        let _ = std::fs::remove_file(file);
    }
    // Both only succeed when nothing else is inside.
    let _ = std::fs::remove_dir(paths.node_dir());
    let _ = std::fs::remove_dir(&paths.run_dir);
}

/// The signals that tell an agent to end. SIGHUP is handled rather than ignored, because ranks would inherit
/// that.
pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    _hangup: Signal,
}

impl EndSignals {
    pub(super) fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
