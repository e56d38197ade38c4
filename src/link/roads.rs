//! The life of a link, the same for every road: attempt, carry, mend.
//!
//! Owner: each link's thread. Invariants LINK-1, LINK-2 of the parent module.

use super::backoff;
use super::carry::{self, End, Pipe};
use super::desk::{Clerk, Desk};
use super::inbox::Inbox;
use super::local::Local;
use super::remote::Remote;
use super::slurm::Slurm;
use super::{
    Answer, Call, LinkCommand, LinkError, LinkEvent, LinkRequest, Opening, Prompter, Settings, Wait,
};
use crate::ssh::{FaultKind, Operator, SshError};
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::probe::Probe;
use serde::Deserialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Further attempts before the first success: sshd drops bursts of logins at random.
const RETRIES: u32 = 3;
/// No further attempt before the first success after this time: a host that answers nothing is not waited for four times.
const HOPE: Duration = Duration::from_secs(15);
/// Bound of a one-shot command on a host.
pub const ONE_SHOT: Duration = Duration::from_secs(60);

/// A way to an agent.
pub trait Road {
    /// Gets there: connects, deploys, finds or starts the agent. `mending`: it has worked before, so that the agent's refusals count as
    /// passing.
    fn travel(&mut self, desk: &mut Desk, mending: bool) -> Result<(Probe, Box<dyn Pipe>), SshError>;
}

/// What `rankdeck agent start` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Started {
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
    #[serde(default)]
    pub error: String,
    /// What helps.
    #[serde(default)]
    pub hint: String,
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

/// What tells this console from all others: agents remember who launched their run.
fn launcher() -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let fresh = || {
        format!("{}-{:016x}{:016x}", std::process::id(), backoff::dice().to_bits(), backoff::dice().to_bits())
    };
    OWN.get_or_init(fresh).clone()
}

/// Reads the answer to [`start_arguments`]; `said` describes the output when there is none.
pub fn read_started(
    label: &str,
    answer: Option<&str>,
    said: &str,
    mending: bool,
) -> Result<Started, SshError> {
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
    match serde_json::from_str::<Started>(answer) {
        Ok(started) if !started.error.is_empty() => {
            Err(fault(format!("{label}: {}", started.error), started.hint))
        }
        Ok(started) if !started.socket.is_empty() => Ok(started),
        _ => Err(fault(
            format!(
                "{label}: the agent's answer makes no sense: {}",
                answer.chars().take(200).collect::<String>()
            ),
            "is another rankdeck in its place?".into(),
        )),
    }
}

/// Starts the thread of a link.
pub fn start(
    settings: Settings,
    request: LinkRequest,
    orders: mpsc::Receiver<LinkCommand>,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
) {
    let (node, name) = (request.node, request.host.name.clone());
    let failed = events.clone();
    let begun = Inbox::new(orders).and_then(|inbox| {
        let live = move || {
            let mut desk = Desk::new(request.node, request.interactive, inbox, events);
            let life = catch_unwind(AssertUnwindSafe(|| match request.host.transport {
                Transport::Ssh => live(&mut Remote::new(settings, &request), &mut desk),
                Transport::Local => live(&mut Local::new(&request), &mut desk),
                Transport::Slurm => live(&mut Slurm::new(&request), &mut desk),
            }));
            // ssh2 panics on some malformed answers of a server; one link's end must not be the console's.
            let state = life.unwrap_or_else(|_| LinkState::Failed {
                error: format!("{}: the link broke down on an answer that makes no sense", request.host.name),
                hint: "this is a defect: please report it with the server's version (`ssh -v`)".into(),
            });
            desk.last(state);
        };
        thread::Builder::new().name(format!("link-{node}")).spawn(live).map(drop)
    });
    if let Err(error) = begun {
        let state = LinkState::Failed {
            error: format!("{name}: cannot begin a link: {error}"),
            hint: "raise the limits of processes and open files (`ulimit -u`, `ulimit -n`)".into(),
        };
        let _ = failed.try_send((node, LinkEvent::State(state)));
    }
}

/// Attempts and carries until the end; gives back the last state.
fn live(road: &mut dyn Road, desk: &mut Desk) -> LinkState {
    let mut attempt = 0;
    let mut failures = 0;
    let mut ever_ready = false;
    let opened = Instant::now();
    loop {
        attempt += 1;
        desk.inbox.clear();
        desk.begin(attempt);
        let reason = match road.travel(desk, ever_ready) {
            Ok((probe, mut pipe)) => {
                ever_ready = true;
                desk.inbox.clear();
                desk.state(LinkState::Ready { probe });
                let since = Instant::now();
                match carry::carry(pipe.as_mut(), desk) {
                    End::Closed => return LinkState::Closed,
                    End::Lost(reason) => {
                        if since.elapsed() >= backoff::STEADY {
                            failures = 0;
                        }
                        reason
                    }
                }
            }
            Err(error) if error.kind == FaultKind::Closed => return LinkState::Closed,
            Err(error)
                if error.kind == FaultKind::Lasting
                    || (!ever_ready
                        && (failures >= RETRIES || (failures > 0 && opened.elapsed() >= HOPE))) =>
            {
                return LinkState::Failed { error: error.error, hint: error.hint };
            }
            Err(error) => error.error,
        };
        failures += 1;
        let wait = backoff::delay(failures, backoff::dice());
        desk.state(LinkState::Lost { reason, retry_ms: wait.as_millis() as u64 });
        if !desk.rest(wait) {
            return LinkState::Closed;
        }
    }
}

/// Runs one agent command on a host; on a thread of its own, because passphrases may be asked for.
pub async fn call(
    settings: Settings,
    host: Host,
    agent_binary: PathBuf,
    call: Call,
    prompter: Arc<dyn Prompter>,
) -> Result<Answer, LinkError> {
    let (result, answer) = oneshot::channel();
    let name = host.name.clone();
    let mut clerk = Clerk { host: host.name.clone(), prompter, result, reported: 0 };
    let work = move || {
        let outcome =
            catch_unwind(AssertUnwindSafe(|| one_shot(&settings, &host, &agent_binary, &call, &mut clerk)));
        let broken = || {
            SshError::lasting(
                format!("{}: the link broke down on an answer that makes no sense", host.name),
                "",
            )
        };
        let outcome = outcome.unwrap_or_else(|_| Err(broken()));
        clerk.prompter.waiting(&host.name, None);
        let _ =
            clerk.result.send(outcome.map_err(|error| LinkError { error: error.error, hint: error.hint }));
    };
    let lost = |why: String| LinkError { error: format!("{name}: {why}"), hint: String::new() };
    thread::Builder::new()
        .name("link-exec".into())
        .spawn(work)
        .map_err(|error| lost(format!("cannot begin: {error}")))?;
    answer.await.unwrap_or_else(|_| Err(lost("the command was given up".into())))
}

fn one_shot(
    settings: &Settings,
    host: &Host,
    agent: &std::path::Path,
    call: &Call,
    clerk: &mut Clerk,
) -> Result<Answer, SshError> {
    match host.transport {
        Transport::Local => return super::local::call(host, agent, call, clerk),
        Transport::Slurm => return super::slurm::call(host, agent, call, clerk),
        Transport::Ssh => {}
    }
    let (mut failures, mut furthest) = (0, 0);
    let began = Instant::now();
    loop {
        clerk.reported = 0;
        clerk.prompter.waiting(&host.name, Some(Wait::Login));
        match super::remote::call(settings, host, agent, call, clerk) {
            Err(error) if error.kind == FaultKind::Passing && !clerk.closing() => {
                // A link that breaks is worth coming back for as long as files get further.
                if clerk.reported > furthest {
                    (failures, furthest) = (0, clerk.reported);
                }
                failures += 1;
                // One more try; a host that is down or takes half a minute for nothing is not worth more of the user's time.
                let hopeless = failures > 1 || began.elapsed() >= HOPE;
                if hopeless && (furthest == 0 || failures > RETRIES) {
                    return Err(error);
                }
                thread::sleep(backoff::delay(failures, backoff::dice()));
            }
            other => return other,
        }
    }
}

/// The JSON text after the `RANKDECK-...` word of an agent's answer in `bytes`, once its line is complete; our own markers carry none.
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

/// The probe in an agent's output; what cannot be read counts as not learnt.
pub fn read_probe(line: Option<String>) -> Probe {
    line.and_then(|line| serde_json::from_str(&line).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_agents_are_told_apart() {
        let started =
            read_started("node1", Some(r#"{"socket":"/s","pid":7,"build":"b","run_dir":"/r"}"#), "", false)
                .unwrap();
        assert_eq!((started.socket.as_str(), started.pid), ("/s", 7));
        let refused =
            read_started("node1", Some(r#"{"error":"disk is full","hint":"free some"}"#), "", false)
                .unwrap_err();
        assert_eq!((refused.error.as_str(), refused.hint.as_str()), ("node1: disk is full", "free some"));
        assert_eq!(refused.kind, FaultKind::Lasting);
        assert_eq!(
            read_started("n", Some(r#"{"error":"x"}"#), "", true).unwrap_err().kind,
            FaultKind::Passing
        );
        assert!(read_started("n", None, "not found", false).unwrap_err().error.ends_with("not found"));
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
