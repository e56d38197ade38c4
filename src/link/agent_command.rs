//! The agent's command line and what it answers; the same for all transports.

use super::random;
use super::{LinkRequest, Opening};
use crate::ssh::SshError;
use rankdeck_types::error::HintedError;
use rankdeck_types::probe::Probe;
use serde::Deserialize;
use std::sync::OnceLock;
use std::time::Duration;

/// Bound of a one-shot command on a host.
pub const ONE_SHOT: Duration = Duration::from_secs(60);

/// The answer of `rankdeck agent start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct StartReply {
    /// The agent's socket.
    #[serde(default)]
    pub socket: String,
    /// The agent's process.
    #[serde(default)]
    pub pid: u32,
    /// The agent's build.
    #[serde(default)]
    pub build: String,
    /// Why there is none.
    #[serde(flatten)]
    pub failure: Option<HintedError>,
}

/// The arguments of `rankdeck` that start or find the agent of a request.
pub fn start_arguments(request: &LinkRequest, workdir: &str) -> Vec<String> {
    let node = request.node.to_string();
    let named = [
        ("--run", request.run.0.as_str()),
        ("--host", &request.host.name),
        ("--node-rank", &node),
        ("--workdir", workdir),
    ];
    let mut arguments = vec!["agent".to_string(), "start".to_string()];
    arguments.extend(named.into_iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]));
    match request.opening {
        Opening::Launch => arguments.extend(["--launcher".into(), launcher()]),
        Opening::Join => {}
        Opening::Attach => arguments.push("--existing".into()),
    }
    arguments
}

/// An id of this console: agents remember which one launched their run.
fn launcher() -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let fresh = || {
        format!(
            "{}-{:016x}{:016x}",
            std::process::id(),
            random::fraction().to_bits(),
            random::fraction().to_bits()
        )
    };
    OWN.get_or_init(fresh).clone()
}

/// Reads the answer to [`start_arguments`]; `said` describes the output when there is none.
pub fn read_started(
    label: &str,
    answer: Option<&str>,
    said: &str,
    mending: bool,
) -> Result<StartReply, SshError> {
    let fault = |error: String, hint: String| match mending {
        true => SshError::passing(error, hint),
        false => SshError::lasting(error, hint),
    };
    let Some(answer) = answer else {
        return Err(fault(
            format!("{label}: the agent did not start: {said}"),
            "can the host run programs from this folder (noexec, missing libraries)?".into(),
        ));
    };
    match serde_json::from_str::<StartReply>(answer) {
        Ok(StartReply { failure: Some(HintedError { error, hint }), .. }) => {
            Err(fault(format!("{label}: {error}"), hint))
        }
        Ok(started) if !started.socket.is_empty() => Ok(started),
        _ => Err(fault(
            format!(
                "{label}: the agent's answer cannot be read: {}",
                answer.chars().take(200).collect::<String>()
            ),
            "another build may be in its place: remove it there, so that ours is uploaded".into(),
        )),
    }
}

/// The JSON text after the `RANKDECK-...` word of an agent's answer in `bytes`, once its line is complete;
/// our own markers carry none.
pub fn answer(bytes: &[u8]) -> Option<String> {
    let complete = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    complete.filter(|line| line.starts_with(b"RANKDECK-")).find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let (_, text) = line.split_once(' ')?;
        let text = text.trim();
        text.starts_with(['{', '[']).then(|| text.to_string())
    })
}

/// Seconds since the epoch, 0 when unknown.
pub fn seconds(time: Option<std::time::SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0.0, |time| time.as_secs_f64())
}

/// The probe of an agent that has this machine's files: its trainer is ours.
pub fn read_probe_here(request: &LinkRequest, line: Option<String>) -> Probe {
    let mut probe = read_probe(line);
    if let Some(trainer) = &request.trainer_binary {
        probe.trainer = Some(trainer.display().to_string());
    }
    probe
}

/// The probe in an agent's output; what cannot be read counts as not learnt.
pub fn read_probe(line: Option<String>) -> Probe {
    line.and_then(|line| serde_json::from_str(&line).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::SshErrorKind;

    #[test]
    fn answers_of_agents_are_told_apart() {
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
        assert_eq!(refused.kind, SshErrorKind::Lasting);
        assert_eq!(
            read_started("n", Some(r#"{"error":"x"}"#), "", true).unwrap_err().kind,
            SshErrorKind::Passing
        );
        assert!(read_started("n", None, "not found", false).unwrap_err().cause.error.ends_with("not found"));
        assert!(read_started("n", Some("{}"), "", false).is_err());
        assert!(read_started("n", Some("["), "", false).is_err());
    }

    #[test]
    fn one_shot_answers_are_the_text_behind_the_marker() {
        assert_eq!(answer(b"Welcome\nRANKDECK-LIST [1]\n").as_deref(), Some("[1]"));
        assert_eq!(
            answer(b"RANKDECK-HOST\nLinux\nRANKDECK-PRESENT\nRANKDECK-SWEEP {}\n").as_deref(),
            Some("{}")
        );
        assert_eq!(answer(b"RANKDECK-LIST [1]"), None);
    }
}
