//! The life of a link, the same for every transport: attempt, carry, mend.
//!
//! Owner: each link's thread. Invariants: those of the parent module.

use super::carry::{self, End};
use super::inbox::Inbox;
use super::link_io::{LinkIo, OneShotIo};
use super::local::{self, LocalTransport};
use super::remote::{self, SshTransport};
use super::slurm::{self, SlurmTransport};
use super::transport::AgentTransport;
use super::{AgentCommand, AgentReply, LinkCommand, LinkEvent, LinkRequest, Links, Prompter, Wait};
use super::{backoff, random};
use crate::ssh::{Operator, SshError, SshErrorKind};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::LinkState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Further attempts before the first success: sshd drops bursts of logins at random.
const RETRIES: u32 = 3;
/// No further attempt before the first success after this time: a host that answers nothing is not waited for
/// four times.
const HOPE: Duration = Duration::from_secs(15);
/// Starts the thread of a link.
pub fn start(
    links: Links,
    request: LinkRequest,
    orders: mpsc::Receiver<LinkCommand>,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
) {
    let (node, name) = (request.node, request.host.name.clone());
    let failed = events.clone();
    let begun = Inbox::new(orders).and_then(|inbox| {
        let live = move || {
            let mut link_io = LinkIo::new(request.node, request.interactive, inbox, events);
            let life = catch_unwind(AssertUnwindSafe(|| match request.host.transport {
                Transport::Ssh | Transport::Openssh => {
                    live(&mut SshTransport::new(links, &request), &mut link_io)
                }
                Transport::Local => live(&mut LocalTransport::new(&request), &mut link_io),
                Transport::Slurm => live(&mut SlurmTransport::new(&request), &mut link_io),
            }));
            // ssh2 panics on some malformed answers of a server; one link's end must not be the console's.
            let state = life.unwrap_or_else(|_| {
                LinkState::Failed(HintedError {
                    error: format!(
                        "{}: the SSH library failed on a malformed answer of the server",
                        request.host.name
                    ),
                    hint: "this is a defect: please report it with the server's version (`ssh -v`)".into(),
                })
            });
            link_io.last(state);
        };
        thread::Builder::new().name(format!("link-{node}")).spawn(live).map(drop)
    });
    if let Err(error) = begun {
        let state = LinkState::Failed(HintedError {
            error: format!("{name}: cannot begin a link: {error}"),
            hint: "raise the limits of processes and open files (`ulimit -u`, `ulimit -n`)".into(),
        });
        let _ = failed.try_send((node, LinkEvent::State(state)));
    }
}

/// Attempts and carries until the end; gives back the last state.
fn live(transport: &mut dyn AgentTransport, link_io: &mut LinkIo) -> LinkState {
    let mut attempt = 0;
    let mut failures = 0;
    let mut ever_ready = false;
    let opened = Instant::now();
    loop {
        attempt += 1;
        link_io.inbox.clear();
        link_io.begin(attempt);
        let reason = match transport.reach_agent(link_io, ever_ready) {
            Ok((probe, mut pipe)) => {
                ever_ready = true;
                link_io.inbox.clear();
                link_io.state(LinkState::Ready { probe });
                let since = Instant::now();
                match carry::carry(pipe.as_mut(), link_io) {
                    End::Closed => return LinkState::Closed,
                    End::Lost(reason) => {
                        if since.elapsed() >= backoff::STEADY {
                            failures = 0;
                        }
                        reason
                    }
                }
            }
            Err(error) if error.kind == SshErrorKind::Closed => return LinkState::Closed,
            Err(error)
                if error.kind == SshErrorKind::Lasting
                    || (!ever_ready
                        && (failures >= RETRIES || (failures > 0 && opened.elapsed() >= HOPE))) =>
            {
                return LinkState::Failed(error.cause);
            }
            Err(error) => error.cause.error,
        };
        failures += 1;
        let wait = backoff::delay(failures, random::fraction());
        link_io.state(LinkState::Lost { reason, retry_ms: wait.as_millis() as u64 });
        if !link_io.rest(wait) {
            return LinkState::Closed;
        }
    }
}

/// Runs one agent command on a host; on a thread of its own, because passphrases may be asked for.
pub async fn call(
    links: Links,
    host: Host,
    agent_binary: PathBuf,
    call: AgentCommand,
    prompter: Arc<dyn Prompter>,
) -> Result<AgentReply, HintedError> {
    let (result, answer) = oneshot::channel();
    let name = host.name.clone();
    let mut one_shot_io = OneShotIo { host: host.name.clone(), prompter, result, reported: 0 };
    let work = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            one_shot(&links, &host, &agent_binary, &call, &mut one_shot_io)
        }));
        let broken = || {
            SshError::lasting(
                format!("{}: the SSH library failed on a malformed answer of the server", host.name),
                "",
            )
        };
        let outcome = outcome.unwrap_or_else(|_| Err(broken()));
        one_shot_io.prompter.waiting(&host.name, None);
        let _ = one_shot_io.result.send(outcome.map_err(|error| error.cause));
    };
    let lost = |why: String| HintedError::new(format!("{name}: {why}"), "");
    thread::Builder::new()
        .name("link-exec".into())
        .spawn(work)
        .map_err(|error| lost(format!("cannot begin: {error}")))?;
    answer.await.unwrap_or_else(|_| Err(lost("the command was abandoned".into())))
}

fn one_shot(
    links: &Links,
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    one_shot_io: &mut OneShotIo,
) -> Result<AgentReply, SshError> {
    match host.transport {
        Transport::Local => return local::call(host, agent, call, one_shot_io),
        Transport::Slurm => return slurm::call(host, agent, call, one_shot_io),
        Transport::Ssh | Transport::Openssh => {}
    }
    let (mut failures, mut furthest) = (0, 0);
    let began = Instant::now();
    loop {
        one_shot_io.reported = 0;
        one_shot_io.prompter.waiting(&host.name, Some(Wait::Login));
        match remote::call(links, host, agent, call, one_shot_io) {
            Err(error) if error.kind == SshErrorKind::Passing && !one_shot_io.closing() => {
                // A link that breaks is worth coming back for as long as files get further.
                if one_shot_io.reported > furthest {
                    (failures, furthest) = (0, one_shot_io.reported);
                }
                failures += 1;
                // One more try; a host that is down or takes half a minute for nothing is not worth more of
                // the user's time.
                let hopeless = failures > 1 || began.elapsed() >= HOPE;
                if hopeless && (furthest == 0 || failures > RETRIES) {
                    return Err(error);
                }
                thread::sleep(backoff::delay(failures, random::fraction()));
            }
            other => return other,
        }
    }
}
