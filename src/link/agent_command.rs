//! Commands of the agent binary for all transports: arguments, output lines, replies.

use super::{LinkRequest, NoAgentPolicy};
use crate::ssh::SshError;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use serde::Deserialize;
use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file for the cache of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file on this machine.
    pub path: PathBuf,
    /// Directory on the host, relative to the cache.
    pub folder: String,
    /// Name on the host. It identifies the content, so that a file of the right size is not uploaded again.
    pub name: String,
}

/// A command for the agent binary, with the files that it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentCommand {
    /// Arguments after `rankdeck agent`.
    pub args: Vec<String>,
    /// Its standard input; short.
    pub input: Vec<u8>,
    /// `rankdeck-trainer` to deploy next to the agent.
    pub trainer: Option<PathBuf>,
    /// Files to upload first.
    pub uploads: Vec<Upload>,
    /// Receives the lines before its reply.
    pub lines: LineSink,
    /// Timeout; `None`: that of a short command.
    pub within: Option<Duration>,
}

/// The result of an [`AgentCommand`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentReply {
    /// JSON text after the marker.
    pub text: String,
    /// Local time at which the command was sent, seconds since the epoch.
    pub sent: f64,
    /// Local time of the reply.
    pub received: f64,
    /// Seconds until the command started: the start files of the login shell; 0 without a login.
    pub shell: f64,
    /// Uploaded bytes.
    pub uploaded: u64,
    /// Absolute cache directory on the host.
    pub cache: String,
}

type LineCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives each line of a command's output. It must not block: the reading thread calls it.
#[derive(Clone, Default)]
pub struct LineSink(Option<LineCallback>);

impl LineSink {
    /// Passes lines to `callback`.
    pub fn new(callback: impl Fn(&str) + Send + Sync + 'static) -> LineSink {
        LineSink(Some(Arc::new(callback)))
    }

    /// Returns a cursor for one command's output.
    pub(crate) fn cursor(&self) -> LineCursor<'_> {
        LineCursor { sink: self, passed: Cell::new(0) }
    }
}

impl fmt::Debug for LineSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "LineSink" } else { "no LineSink" })
    }
}

impl PartialEq for LineSink {
    fn eq(&self, other: &LineSink) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for LineSink {}

/// Position in an output up to which lines were passed on.
pub(crate) struct LineCursor<'a> {
    sink: &'a LineSink,
    passed: Cell<usize>,
}

impl LineCursor<'_> {
    /// Passes on new complete lines of `all`, which only grows.
    pub fn read(&self, all: &[u8]) {
        let Some(callback) = &self.sink.0 else { return };
        let fresh = all.get(self.passed.get()..).unwrap_or_default();
        for line in fresh.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            callback(String::from_utf8_lossy(line).trim_end());
            self.passed.set(self.passed.get() + line.len());
        }
    }
}

/// Timeout of a one-shot command.
pub(crate) const ONE_SHOT: Duration = Duration::from_secs(60);

/// Reply of `rankdeck agent start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct StartReply {
    /// The agent's socket.
    #[serde(default)]
    pub socket: String,
    /// The agent's process.
    #[serde(default)]
    pub pid: u32,
    /// The agent's build.
    #[serde(default)]
    pub build: String,
    /// The failure, if any.
    #[serde(flatten)]
    pub failure: Option<HintedError>,
}

/// Returns the arguments of `rankdeck` that start or find the agent of a request; `resume`: the run is to be
/// stopped.
pub(crate) fn start_arguments(request: &LinkRequest, workdir: &str, resume: bool) -> Vec<String> {
    let node = request.node.to_string();
    let named = [
        ("--run", request.run.0.as_str()),
        ("--host", &request.host.name),
        ("--node-rank", &node),
        ("--workdir", workdir),
    ];
    let mut arguments = vec!["agent".to_string(), "start".to_string()];
    arguments.extend(named.into_iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]));
    match request.no_agent {
        NoAgentPolicy::Launch => arguments.extend(["--launcher".into(), launcher()]),
        NoAgentPolicy::Join => {}
        NoAgentPolicy::Attach | NoAgentPolicy::Stop => arguments.push("--existing".into()),
    }
    if resume || request.no_agent == NoAgentPolicy::Stop {
        arguments.push("--resume".into());
    }
    arguments
}

/// Returns the id of this console: agents store which console launched their run.
fn launcher() -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let fresh = || {
        format!(
            "{}-{:016x}{:016x}",
            std::process::id(),
            crate::random_fraction().to_bits(),
            crate::random_fraction().to_bits()
        )
    };
    OWN.get_or_init(fresh).clone()
}

/// Parses the reply to [`start_arguments`]; `output_summary` describes the output without one.
pub(crate) fn read_started(
    label: &str,
    answer: Option<&str>,
    output_summary: &str,
    reconnecting: bool,
) -> Result<StartReply, SshError> {
    let fault = |error: String, hint: String| match reconnecting {
        true => SshError::transient(error, hint),
        false => SshError::permanent(error, hint),
    };
    let Some(answer) = answer else {
        return Err(fault(
            format!("{label}: the agent did not start: {output_summary}"),
            "check that the host can run programs from this directory (noexec, missing libraries)".into(),
        ));
    };
    match serde_json::from_str::<StartReply>(answer) {
        Ok(StartReply { failure: Some(HintedError { error, hint }), .. }) => {
            Err(fault(format!("{label}: {error}"), hint))
        }
        Ok(started) if !started.socket.is_empty() => Ok(started),
        _ => Err(fault(
            format!(
                "{label}: cannot parse the agent's reply: {}",
                answer.chars().take(200).collect::<String>()
            ),
            "the agent may be from another build: remove it on the host, so that it is uploaded again".into(),
        )),
    }
}

/// Returns the JSON text after the `RANKDECK-...` marker of an agent's reply, once its line is complete.
pub fn reply(bytes: &[u8]) -> Option<String> {
    let complete = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    complete.filter(|line| line.starts_with(b"RANKDECK-")).find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let (_, text) = line.split_once(' ')?;
        let text = text.trim();
        text.starts_with(['{', '[']).then(|| text.to_string())
    })
}

/// Returns seconds since the epoch, 0 if unknown.
pub fn seconds(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |time| time.as_secs_f64())
}

/// Returns the probe of an agent on this machine, with this console's trainer.
pub(crate) fn read_probe_here(request: &LinkRequest, line: Option<String>) -> Probe {
    let mut probe = read_probe(line);
    if let Some(trainer) = &request.trainer_binary {
        probe.trainer = Some(trainer.display().to_string());
    }
    probe
}

/// Parses the probe in an agent's output; empty if malformed.
pub(crate) fn read_probe(line: Option<String>) -> Probe {
    line.and_then(|line| serde_json::from_str(&line).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::SshErrorKind;
    use std::sync::Mutex;

    #[test]
    fn each_complete_line_is_passed_once() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = lines.clone();
        let sink = LineSink::new(move |line| to.lock().unwrap().push(line.to_owned()));
        let cursor = sink.cursor();
        for all in ["", "a", "a\nb", "a\nb", "a\nbc\nd", "a\nbc\nd\n"] {
            cursor.read(all.as_bytes());
        }
        assert_eq!(*lines.lock().unwrap(), ["a", "bc", "d"]);
    }

    #[test]
    fn start_reply_is_socket_or_failure() {
        let started =
            read_started("node1", Some(r#"{"socket":"/s","pid":7,"build":"b","run_dir":"/r"}"#), "", false)
                .unwrap();
        assert_eq!((started.socket.as_str(), started.pid), ("/s", 7));
        let refused =
            read_started("node1", Some(r#"{"error":"disk is full","hint":"free some"}"#), "", false)
                .unwrap_err();
        assert_eq!(
            (refused.cause.error.as_str(), refused.cause.hint.as_str()),
            ("node1: disk is full", "free some")
        );
        assert_eq!(refused.kind, SshErrorKind::Permanent);
        assert_eq!(
            read_started("n", Some(r#"{"error":"x"}"#), "", true).unwrap_err().kind,
            SshErrorKind::Transient
        );
        assert!(read_started("n", None, "not found", false).unwrap_err().cause.error.ends_with("not found"));
        assert!(read_started("n", Some("{}"), "", false).is_err());
        assert!(read_started("n", Some("["), "", false).is_err());
    }

    #[test]
    fn one_shot_reply_is_the_text_after_the_marker() {
        assert_eq!(reply(b"Welcome\nRANKDECK-LIST [1]\n").as_deref(), Some("[1]"));
        assert_eq!(
            reply(b"RANKDECK-HOST\nLinux\nRANKDECK-PRESENT\nRANKDECK-SWEEP {}\n").as_deref(),
            Some("{}")
        );
        assert_eq!(reply(b"RANKDECK-LIST [1]"), None);
    }
}
