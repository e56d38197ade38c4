//! Durable, numbered events of an agent.

use super::sample::is_zero;
use super::{LaunchSpec, RankEvent, StopMode};
use crate::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{Generation, LocalRank, Rank, WallTime};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A durable, numbered event of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number from 1, without gaps, over all of the run on this host, across restarts of the agent.
    pub seq: u64,
    /// Time at which the agent wrote it, by its wall clock.
    pub time: WallTime,
    /// Its generation.
    pub generation: Generation,
    /// The recorded event.
    pub event: RecordEvent,
}

/// The event of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecordEvent {
    /// A generation was accepted and its ranks are being spawned.
    Launched {
        /// The launch, so that the spool is self-contained.
        spec: Box<LaunchSpec>,
    },
    /// A rank's process exists.
    RankSpawned {
        /// The rank that was spawned.
        rank: Rank,
        /// Its index on this host.
        local_rank: LocalRank,
        /// Its process id on this host.
        pid: u32,
    },
    /// A rank's process ended and was reaped.
    RankExited {
        /// The rank that ended.
        rank: Rank,
        /// Its process id.
        pid: u32,
        /// Its exit.
        exit: Exit,
        /// The last lines of its log, oldest first, at most 20.
        last_lines: Vec<String>,
        /// A stop was ordered before.
        stopping: bool,
        /// Milliseconds from its exit to this record: the agent waits for its last output.
        #[serde(default)]
        ago_ms: u64,
        /// Its exit was not observed: its agent had died, and the guard or the next agent killed its
        /// processes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_agent: bool,
    },
    /// A signal was sent to a process, on order of a console.
    Signalled {
        /// The process's rank, if any.
        rank: Option<Rank>,
        /// Its process id.
        pid: u32,
        signal: i32,
    },
    /// A stop was ordered.
    StopOrdered {
        /// Mode of the stop.
        mode: StopMode,
        /// Source of the order: `console`, `lease`, `signal`, `rank 3 failed`.
        by: String,
        /// The order ends the run, for every console.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ends: bool,
    },
    /// The stop is complete: no process of this generation is left on this host, or only these.
    Stopped {
        /// Leftover processes; empty if the stop is verified.
        survivors: Vec<Survivor>,
        /// Indices of this run's GPUs without a process of the run.
        gpus_free: Vec<u32>,
        /// Milliseconds from the order (or the last exit) to the end of the process scan.
        took_ms: u64,
    },
    /// Files of the ranks that look like checkpoints: completed ones while ranks run, and all that are found
    /// once no rank of this host is left.
    CheckpointFiles {
        /// The newest ones, oldest first, written since the launch.
        files: Vec<CheckpointFile>,
        /// All directories that are known were searched: what is not here does not exist there. Never while
        /// ranks run.
        complete: bool,
    },
    /// Ranks of this host have made some steps, and none has opened the checkpoint that they resume from.
    CheckpointUnread {
        /// Path on this host.
        path: String,
    },
    /// What ranks have written where they work, found once no rank of this host was left.
    Results {
        /// The files of all generations so far.
        results: Box<RunResults>,
    },
    /// The run has ended, as assessed by its console.
    Ended {
        /// How it ended.
        ending: Box<RunEnd>,
    },
    /// A rank's event from the event socket.
    Rank {
        /// The rank that reports it.
        rank: Rank,
        /// The event as the rank sent it.
        #[serde(rename = "said")]
        event: RankEvent,
    },
    /// Metrics of a user's program that does not use rankdeck's event socket: values of one rank, not reduced
    /// over the ranks.
    Metrics {
        /// The rank.
        rank: Rank,
        /// `stdout` or `tensorboard`.
        source: String,
        /// Its environment steps, if reported.
        env_step: Option<u64>,
        /// Name to value.
        values: BTreeMap<String, f64>,
        /// Values since the previous record that were dropped because newer ones of the same name followed at
        /// once.
        skipped: u64,
        /// Name to the number of values since the previous record that were not finite: JSON has no number
        /// for them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        not_finite: BTreeMap<String, u64>,
        /// Name to the minimum and maximum of several values since the previous record, with the recorded
        /// one.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        spread: BTreeMap<String, (f64, f64)>,
        /// Place of the values where they have no environment steps: epochs, iterations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counter: Option<ShownCounter>,
        /// How far the program is, by its progress bar or a counter with an end, if that has changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        progress: Option<ShownProgress>,
    },
    /// A notice of the agent: a spool failure, a rejected client, a fallback in use.
    Notice {
        /// One sentence.
        text: String,
    },
    /// The records from `first` to this one's number were omitted, so that a long run's file stays small, or
    /// were lost while the disk was full.
    Omitted {
        /// Number of the first omitted record.
        first: u64,
    },
    /// A kind unknown to this build.
    #[serde(other)]
    Unknown,
}

/// A leftover process of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Process id on the host.
    pub pid: u32,
    /// The rank whose process tree it belonged to, if known.
    pub rank: Option<Rank>,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Start of its command line.
    pub command: String,
}

/// A file, or a directory of files, that looks like a checkpoint by its name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointFile {
    /// Path on its host.
    pub path: String,
    /// Size, of all files in it.
    pub bytes: u64,
    /// Latest change, seconds since the epoch on its host's clock.
    pub modified: WallTime,
    /// A rank was seen to write it.
    pub observed: bool,
    /// Steps in it; `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_step: Option<u64>,
    /// Source of the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_from: Option<StepSource>,
    /// Its end is missing, once no rank of its host is left: nothing can resume from it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_off: bool,
}

/// Source of the steps of a checkpoint that a rank has not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepSource {
    /// A number in its name.
    Name,
    /// The steps of the ranks when it was complete.
    Rank,
    /// A source unknown to this build.
    #[serde(other)]
    Unknown,
}

/// How a checkpoint is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointOrigin {
    /// A rank has reported it.
    #[default]
    Reported,
    /// Its file was found.
    #[serde(other)]
    Found,
}

impl CheckpointOrigin {
    /// Returns whether a rank has reported the checkpoint.
    pub fn is_reported(&self) -> bool {
        *self == CheckpointOrigin::Reported
    }
}

/// Files that ranks of one host have written or changed in the directory that they work in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResults {
    /// The directory on the host.
    pub folder: String,
    /// It is the user's own directory, not a copy.
    pub in_place: bool,
    /// Equal on hosts that share the directory.
    pub mark: String,
    /// Number of files.
    pub files: u64,
    /// Their total size.
    pub bytes: u64,
    /// Names of the first ones below `folder`: checkpoints, then metrics, then others.
    pub names: Vec<String>,
    /// Number of further files that this run or another one has written: both worked there.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared: u64,
    /// Names of such runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<String>,
    /// The whole directory was searched.
    pub complete: bool,
}

/// What a stop left of the work since the latest checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Work {
    /// A checkpoint was completed after the stop was ordered, or holds the last iteration.
    Saved {
        /// Path on its host.
        path: String,
        /// Size; `None`: unknown.
        bytes: Option<u64>,
        /// Global environment steps in it; `None`: unknown.
        env_step: Option<u64>,
        /// Seconds from the order to its completion, 0 if it is older; `None`: unknown.
        after_s: Option<f64>,
    },
    /// What came after this checkpoint is lost.
    Lost {
        /// Path on its host.
        path: String,
        /// Size; `None`: unknown.
        bytes: Option<u64>,
        /// Global environment steps in it; `None`: unknown.
        env_step: Option<u64>,
        /// Global environment steps that came after it; `None`: unknown.
        steps: Option<u64>,
        /// Seconds of training after it; `None`: unknown.
        seconds: Option<f64>,
    },
    /// No generation of the run has saved a checkpoint that could be seen.
    NeverSaved,
    /// Not known: a host did not report its files, or ranks write where they cannot be seen.
    #[serde(other)]
    Unknown,
}

impl Work {
    /// Returns whether work is known to be lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Work::Lost { .. })
    }

    /// Describes it in one clause: `saved logs/a.zip (141K, 3.0s after the stop)`.
    pub fn describe(&self) -> String {
        let listed = |parts: Vec<Option<String>>| {
            let known: Vec<String> = parts.into_iter().flatten().collect();
            if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) }
        };
        let step = |env_step: &Option<u64>| env_step.map(|step| format!("step {}", words::count(step)));
        let size = |bytes: &Option<u64>| bytes.map(words::bytes);
        match self {
            Work::Saved { path, bytes, env_step, after_s } => {
                let after = after_s.filter(|after_s| *after_s > 0.0);
                let after = after.map(|after_s| format!("{} after the stop", words::duration(after_s)));
                format!("saved {}{}", ending_of(path), listed(vec![size(bytes), step(env_step), after]))
            }
            Work::Lost { path, env_step, steps, seconds, .. } => {
                let steps = steps.map(|steps| format!("{} steps", words::count(steps)));
                let lost = match (steps, seconds.map(words::duration)) {
                    (Some(steps), Some(seconds)) => format!("{steps} ({seconds})"),
                    (Some(steps), None) => steps,
                    (None, Some(seconds)) => format!("{seconds} of work"),
                    (None, None) => "the work".to_owned(),
                };
                format!("lost {lost} since {}{}", ending_of(path), listed(vec![step(env_step)]))
            }
            Work::NeverSaved => "no checkpoint was seen".to_owned(),
            Work::Unknown => "checkpoints unknown".to_owned(),
        }
    }
}

/// The last two parts of a path: what people know it by.
fn ending_of(path: &str) -> String {
    let mut parts = path.rsplit('/').take(2).collect::<Vec<_>>();
    parts.reverse();
    words::clean(&parts.join("/"))
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Finished, or reached its stop value.
    Succeeded,
    /// A rank or a host failed.
    Failed,
    /// Stopped on request.
    Stopped,
    /// Stuck, and stopped by policy.
    Stuck,
}

impl RunOutcome {
    /// Returns the outcome's name.
    pub fn name(self) -> &'static str {
        match self {
            RunOutcome::Succeeded => "succeeded",
            RunOutcome::Failed => "failed",
            RunOutcome::Stopped => "stopped",
            RunOutcome::Stuck => "stuck",
        }
    }
}

/// The end of a run, as assessed by the console that launched its last generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// How the run ended.
    pub outcome: RunOutcome,
    /// The console's exit code.
    pub exit_code: u8,
    /// Reason, in one sentence.
    pub reason: String,
    /// Every rank exited by itself; none was killed.
    #[serde(default)]
    pub clean: bool,
    /// The first failure, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
    /// What a stop left of the work; `None` if the run ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

impl RunEnd {
    /// Exit code of a run whose ranks were killed: 128 plus the number of SIGKILL.
    pub const KILLED: u8 = 137;

    /// Creates an end that is not clean.
    pub fn new(outcome: RunOutcome, exit_code: u8, reason: impl Into<String>) -> RunEnd {
        RunEnd { outcome, exit_code, reason: reason.into(), clean: false, first_failure: None, work: None }
    }

    /// Creates an end without killed ranks.
    pub fn clean(outcome: RunOutcome, exit_code: u8, reason: impl Into<String>) -> RunEnd {
        RunEnd { clean: true, ..RunEnd::new(outcome, exit_code, reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ConsoleMessage;

    #[test]
    fn stop_of_other_builds_does_not_end_the_run() {
        let old = r#"{"event":"stop_ordered","mode":"clean","by":"console"}"#;
        let event: RecordEvent = serde_json::from_str(old).unwrap();
        assert!(matches!(event, RecordEvent::StopOrdered { ends: false, .. }));
        assert_eq!(serde_json::to_string(&event).unwrap(), old, "what is absent is not written");
        let order: ConsoleMessage =
            serde_json::from_str(r#"{"kind":"stop","mode":"clean","grace_ms":1000}"#).unwrap();
        assert_eq!(order, ConsoleMessage::Stop { mode: StopMode::Clean, grace_ms: 1000, ends: false });
        let ends = ConsoleMessage::Stop { mode: StopMode::Clean, grace_ms: 1000, ends: true };
        let json = serde_json::to_string(&ends).unwrap();
        assert_eq!(serde_json::from_str::<ConsoleMessage>(&json).unwrap(), ends);
    }

    #[test]
    fn metrics_of_other_builds_are_read() {
        let old = r#"{"event":"metrics","rank":0,"source":"stdout","env_step":5,"values":{"loss":0.5},"skipped":0}"#;
        let event: RecordEvent = serde_json::from_str(old).unwrap();
        assert!(matches!(event, RecordEvent::Metrics { counter: None, progress: None, .. }));
        assert_eq!(serde_json::to_string(&event).unwrap(), old, "what is absent is not written");
        let newer = old.replace("\"skipped\"", "\"later\":{\"x\":1},\"skipped\"");
        assert_eq!(serde_json::from_str::<RecordEvent>(&newer).unwrap(), event);
    }
}
