//! The Slurm step that an agent lives in, and its end.
//!
//! Owner: the agent's loop. An agent has a session and parents of its own, so a Slurm that finds the
//! processes of a step by their parents (`proctrack/linuxproc`) neither signals nor kills it when the job
//! ends: the node goes to the next job with the old ranks on it. What the agent has instead is its *holder*,
//! `agent hold`, the one process of the step. Slurm signals the holder before the end, and kills it at the
//! end. That is cheaper and more reliable than polling the controller: it works when the controller,
//! the network or slurmd is gone, and costs nothing while the job runs. The controller is queried for the
//! cause only then.
//!
//! - SLURM-1: when the step gets a signal, the run is stopped cleanly; when the step is over after that, the
//!   run is killed. A step that ends without a signal (the job's `srun` may kill it before slurmd's signal
//!   has arrived) leaves the ranks a moment for a clean stop. Each is recorded with the job and Slurm's
//!   cause.

use crate::proc::{self, ProcessKey};
use crate::supervise::groups::{self, Helpers};
use crate::supervise::libtorch;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Time limit for the cause from the controller.
pub(crate) const CAUSE: Duration = Duration::from_secs(5);

/// How long the controller may report only that the job ends, and the polling interval.
const SETTLED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));

/// Milliseconds for a clean stop once the step is over.
pub(crate) const MOMENT_MS: u64 = 5_000;

/// The Slurm step that contains the agent.
#[derive(Debug)]
pub(crate) struct SlurmStep {
    job: Option<String>,
    holder: AsyncFd<OwnedFd>,
}

impl SlurmStep {
    /// The step of a holder; `None` when the agent has none. A holder that is gone already is noticed at
    /// once.
    pub fn from_holder(holder: Option<ProcessKey>) -> std::io::Result<Option<SlurmStep>> {
        let Some(holder) = holder else { return Ok(None) };
        let pidfd = groups::pidfd(holder.pid)?;
        if proc::stat(holder.pid).is_none_or(|stat| stat.start != holder.start) {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: the descriptor stays open for as long as the `OwnedFd` lives, and `AsyncFd` does not give it
        // away here.
        let holder = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Some(SlurmStep { job: std::env::var("SLURM_JOB_ID").ok(), holder }))
    }

    /// Returns when the step is over.
    pub async fn over(&self) {
        if self.holder.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The job, for people.
    pub fn job(&self) -> String {
        self.job.as_ref().map_or_else(|| "its Slurm step".to_owned(), |job| format!("Slurm job {job}"))
    }

    /// Returns a closure for a thread: queries the controller for the cause of the job's end.
    pub fn cause(&self, helpers: Helpers) -> impl FnOnce() -> String + Send + 'static {
        let (job, shown, nodes) = (self.job.clone(), self.job(), std::env::var("SLURM_JOB_NODELIST").ok());
        move || {
            let ask = |job: String| {
                let words = ["scontrol", "show", "job", "--oneliner", &job].map(Into::into);
                libtorch::run_helper(&words, CAUSE, &helpers).ok()
            };
            let asked = Instant::now();
            let (state, down) = loop {
                let state = job.clone().and_then(ask).as_deref().and_then(state);
                let down = nodes.clone().and_then(|nodes| nodes_down(nodes, &helpers));
                if down.is_some() || is_cause(state.as_deref()) || asked.elapsed() > SETTLED.0 {
                    break (state, down.map_or(String::new(), |down| format!("; {down}")));
                }
                std::thread::sleep(SETTLED.1);
            };
            match state {
                Some(state) => format!("{shown} is ending: {state}{down}"),
                None => format!("{shown} is ending; cause unknown{down}"),
            }
        }
    }
}

/// Returns those of `nodes` that have failed: a requeued job does not show this.
fn nodes_down(nodes: String, helpers: &Helpers) -> Option<String> {
    let words =
        ["sinfo", "--noheader", "--Node", "--states=down,fail", "--format=%N %T (%E)", "--nodes", &nodes];
    let output = libtorch::run_helper(&words.map(Into::into), CAUSE, helpers).ok()?;
    let mut down: Vec<String> = output.lines().map(|line| line.trim().replacen(' ', " is ", 1)).collect();
    // Once for each partition.
    down.dedup();
    (!down.is_empty()).then(|| down.join(", "))
}

/// Whether a state is the cause of the job's end: while its processes end, it is COMPLETING whatever the cause.
fn is_cause(state: Option<&str>) -> bool {
    state.is_some_and(|state| !["COMPLETING", "RUNNING"].contains(&state))
}

/// State and reason in the answer of `scontrol show job`.
fn state(output: &str) -> Option<String> {
    let value = |name: &str| output.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    let state = value("JobState=")?;
    let reason = value("Reason=").filter(|reason| *reason != "None");
    Some(reason.map_or_else(|| state.to_owned(), |reason| format!("{state} ({reason})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_answer_names_the_cause() {
        let output = "JobId=7 JobName=wrap UserId=a(1) JobState=TIMEOUT Reason=TimeLimit Dependency=(null)";
        assert_eq!(state(output).as_deref(), Some("TIMEOUT (TimeLimit)"));
        assert_eq!(state("JobState=CANCELLED Reason=None").as_deref(), Some("CANCELLED"));
        assert_eq!(state(""), None);
        assert!(is_cause(Some("TIMEOUT (TimeLimit)")) && is_cause(Some("COMPLETING (NodeFail)")));
        assert!(!is_cause(Some("COMPLETING")) && !is_cause(None));
    }
}
