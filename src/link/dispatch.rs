//! Link lifecycle for every transport: connect, exchange frames, reconnect with backoff.

use super::frame_pump::{self, AgentTransport, PumpExit};
use super::link_io::{Inbox, LinkIo, OneShotIo};
use super::local::{self, LocalTransport};

use super::remote::{self, SshTransport};
use super::slurm::{self, SlurmTransport};
use super::{AgentCommand, AgentReply, LinkCommand, LinkEvent, LinkRequest, Links, Prompter, WaitReason};
use crate::ssh::{SessionOwner, SshError, SshErrorKind};
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

/// Retries before the first success: sshd drops bursts of logins at random.
const RETRIES: u32 = 3;
/// Time after which no retry starts before the first success: a host that does not respond is not retried
/// four times.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);

/// Starts the thread of a link.
pub fn start(
    links: Links,
    request: LinkRequest,
    orders: mpsc::Receiver<LinkCommand>,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
) {
    let (node, name) = (request.node, request.host.name.clone());
    let failed = events.clone();
    let started = Inbox::new(orders).and_then(|inbox| {
        let live = move || {
            let mut link_io = LinkIo::new(request.node, request.interactive, inbox, events);
            let life = catch_unwind(AssertUnwindSafe(|| match request.host.transport {
                Transport::Ssh | Transport::Openssh => {
                    live(&mut SshTransport::new(links, &request), &mut link_io)
                }
                Transport::Local => live(&mut LocalTransport::new(&request), &mut link_io),
                Transport::Slurm => live(&mut SlurmTransport::new(&request), &mut link_io),
            }));
            // ssh2 panics on some malformed replies; that must not end the console.
            let state = life.unwrap_or_else(|_| {
                LinkState::Failed(HintedError {
                    error: format!(
                        "{}: the SSH library failed on a malformed reply of the server",
                        request.host.name
                    ),
                    hint: "please report this bug with the server's version (`ssh -v`)".into(),
                })
            });
            link_io.send_last_state(state);
        };
        thread::Builder::new().name(format!("link-{node}")).spawn(live).map(drop)
    });
    if let Err(error) = started {
        let state = LinkState::Failed(HintedError {
            error: format!("{name}: cannot start a link: {error}"),
            hint: "raise the limits of processes and open files with `ulimit -u` and `ulimit -n`".into(),
        });
        let _ = failed.try_send((node, LinkEvent::State(state)));
    }
}

/// Connects and exchanges frames until the end; returns the last state.
fn live(transport: &mut dyn AgentTransport, link_io: &mut LinkIo) -> LinkState {
    let mut attempt = 0;
    let mut failures = 0;
    let mut ever_ready = false;
    let opened = Instant::now();
    loop {
        attempt += 1;
        link_io.inbox.clear();
        link_io.start_attempt(attempt);
        let reason = match transport.reach_agent(link_io, ever_ready) {
            Ok((probe, mut pipe)) => {
                ever_ready = true;
                link_io.inbox.clear();
                link_io.send_state(LinkState::Ready { probe });
                let since = Instant::now();
                match frame_pump::pump(pipe.as_mut(), link_io) {
                    PumpExit::Closed => return LinkState::Closed,
                    PumpExit::Lost(reason) => {
                        if since.elapsed() >= STEADY {
                            failures = 0;
                        }
                        reason
                    }
                }
            }
            Err(error) if error.kind == SshErrorKind::Closed => return LinkState::Closed,
            Err(error)
                if matches!(error.kind, SshErrorKind::Permanent | SshErrorKind::StartFiles)
                    || (!ever_ready && error.kind == SshErrorKind::UnknownName)
                    || (!ever_ready
                        && (failures >= RETRIES || (failures > 0 && opened.elapsed() >= GIVE_UP_AFTER))) =>
            {
                return LinkState::Failed(error.cause);
            }
            Err(error) => error.cause.error,
        };
        failures += 1;
        let wait = delay(failures, crate::random_fraction());
        link_io.send_state(LinkState::Lost { reason, retry_ms: wait.as_millis() as u64 });
        if !link_io.sleep_until_woken(wait) {
            return LinkState::Closed;
        }
    }
}

/// Runs an agent command on a host, on a separate thread, because it may prompt for a passphrase.
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
            SshError::permanent(
                format!("{}: the SSH library failed on a malformed reply of the server", host.name),
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
        .map_err(|error| lost(format!("cannot start a thread: {error}")))?;
    answer.await.unwrap_or_else(|_| Err(lost("the command was canceled".into())))
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
        one_shot_io.prompter.waiting(&host.name, Some(WaitReason::Login));
        match remote::call(links, host, agent, call, one_shot_io) {
            Err(error) if error.kind == SshErrorKind::Transient && !one_shot_io.closing() => {
                // Keep retrying while uploads make progress.
                if one_shot_io.reported > furthest {
                    (failures, furthest) = (0, one_shot_io.reported);
                }
                failures += 1;
                // Without progress, retry once and not after a long wait.
                let give_up = failures > 1 || began.elapsed() >= GIVE_UP_AFTER;
                if give_up && (furthest == 0 || failures > RETRIES) {
                    return Err(error);
                }
                thread::sleep(delay(failures, crate::random_fraction()));
            }
            other => return other,
        }
    }
}

/// First delay.
const FIRST: Duration = Duration::from_millis(500);
/// Longest delay.
const LONGEST: Duration = Duration::from_secs(5);
/// Lifetime of a connection that resets the backoff.
const STEADY: Duration = Duration::from_secs(10);

/// Returns the delay after `failures` failures in a row (from 1): half a second, doubling to five, less up to
/// a fifth by `random` (0.0..1.0), so that links that broke together do not reconnect together.
fn delay(failures: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(8));
    doubled.min(LONGEST).mul_f64(1.0 - 0.2 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_pump::Pipe;
    use rankdeck_types::host::Probe;
    use std::os::unix::net::UnixStream;

    /// A transport whose attempts end as listed; the last one repeats.
    struct Script(Vec<Result<(), SshErrorKind>>);

    impl AgentTransport for Script {
        fn reach_agent(
            &mut self,
            _link_io: &mut LinkIo,
            _reconnecting: bool,
        ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
            let step = if self.0.len() > 1 { self.0.remove(0) } else { self.0[0] };
            match step {
                // Its other end is closed: the connection is lost at once.
                Ok(()) => Ok((Probe::default(), Box::new(UnixStream::pair().unwrap().0))),
                Err(kind) => Err(SshError::new(kind, "x", "")),
            }
        }
    }

    /// Returns the states of a link until it fails or is closed after its `most`th attempt.
    fn states(steps: Vec<Result<(), SshErrorKind>>, most: u32) -> Vec<LinkState> {
        let (orders, inbox) = mpsc::channel(8);
        let (sender, mut events) = mpsc::channel(256);
        let mut link_io = LinkIo::new(NodeRank(0), false, Inbox::new(inbox).unwrap(), sender);
        let living = thread::spawn(move || live(&mut Script(steps), &mut link_io));
        let mut seen = Vec::new();
        while let Some((_, event)) = events.blocking_recv() {
            let LinkEvent::State(state) = event else { continue };
            if matches!(&state, LinkState::Connecting { attempt } if *attempt >= most) {
                let _ = orders.blocking_send(LinkCommand::Close);
            }
            seen.push(state);
        }
        seen.push(living.join().unwrap());
        seen
    }

    #[test]
    fn unknown_name_ends_a_new_link_and_no_old_one() {
        let fresh = states(vec![Err(SshErrorKind::UnknownName)], 2);
        assert!(matches!(fresh.last(), Some(LinkState::Failed(_))), "{fresh:?}");
        assert!(!fresh.iter().any(|state| matches!(state, LinkState::Lost { .. })), "{fresh:?}");
        let old = states(vec![Ok(()), Err(SshErrorKind::UnknownName)], 3);
        assert_eq!(old.last(), Some(&LinkState::Closed), "{old:?}");
    }

    #[test]
    fn delay_doubles_up_to_a_limit_with_jitter() {
        let plain: Vec<u128> = (1..=6).map(|failures| delay(failures, 0.0).as_millis()).collect();
        assert_eq!(plain, [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(delay(1, 1.0).as_millis(), 400);
        assert_eq!(delay(u32::MAX, 0.0), LONGEST);
    }
}
