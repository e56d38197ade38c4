//! The questions of a preflight, and who connects to whom.

use super::super::args::HostKeyArgs;
use super::super::roster::{self, own_binary};
use super::super::{Failure, prompt};
use super::{HostAnswer, Subject};
use crate::shell::secrets;
use rankdeck_link::{AgentCommand, AgentReply, Links, Prompter, random};
use rankdeck_proto::examination::{EnvQuestion, Findings, Peer, Question};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{BUILTIN_ENVS, EnvWorker, Experiment};
use rankdeck_types::host::{Gpus, Host, Transport};
use rankdeck_types::variables;
use std::sync::Arc;

/// How long hosts wait for each other, ms, and how much longer per host: behind one server, logins come one
/// after another.
const PATIENCE_MS: u64 = 3000;
const PATIENCE_PER_HOST_MS: u64 = 150;
/// Up to so many hosts connect to each other in all pairs; more would spend the time on connecting.
const ALL_PAIRS: usize = 16;
/// More than any host has: a number beyond is refused by the host's count.
const MOST_GPUS: u32 = 1024;
/// Ports that a host may take for the test.
const PORTS: u64 = 3;

/// Asks every host. Hosts that could not reach each other although all are there are asked again: at the
/// first contact a host may still have been receiving the agent when the others looked for it.
pub async fn ask(
    subject: &Subject<'_>,
    host_keys: &HostKeyArgs,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let answers = round(subject, host_keys, 0).await?;
    match late(&answers) {
        Some(late) => round(subject, host_keys, late).await,
        None => Ok(answers),
    }
}

/// Is it worth asking again? Milliseconds by which the hosts' shells differ: some began to look when others
/// had given up. A host that could not listen explains by itself why it was not reached.
fn late(answers: &[Result<HostAnswer, HintedError>]) -> Option<u64> {
    let all: Vec<&HostAnswer> = answers.iter().map(|answer| answer.as_ref().ok()).collect::<Option<_>>()?;
    let listened = |node: u32| {
        let listened = all.get(node as usize).and_then(|host| host.findings.listened.as_ref());
        listened.is_some_and(|listened| listened.error.is_none())
    };
    let apart =
        |host: &&HostAnswer| host.findings.reached.iter().any(|to| to.error.is_some() && listened(to.node));
    all.iter().any(apart).then(|| {
        let shells = || all.iter().map(|host| host.shell);
        let spread = shells().fold(0.0, f64::max) - shells().fold(f64::INFINITY, f64::min);
        (spread.clamp(0.0, 45.0) * 1000.0) as u64
    })
}

async fn round(
    subject: &Subject<'_>,
    host_keys: &HostKeyArgs,
    late_ms: u64,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let binary = own_binary()?;
    let progress = prompt::Progress::new(host_keys);
    let mut questions = questions(subject, &mut || (random::fraction() * (1u64 << 53) as f64) as u64);
    questions.iter_mut().for_each(|question| question.patience_ms += late_ms);
    let _teller = progress.tell_waits();
    let prompter: Arc<dyn Prompter> = progress.clone();
    let hosts = &subject.draft.hosts;
    let command = |node: usize, _: &Host| AgentCommand {
        args: vec!["examine".into()],
        input: serde_json::to_vec(&questions[node]).unwrap_or_default(),
        ..AgentCommand::default()
    };
    let replies = Links::from_environment().call_all(hosts, &binary, &prompter, command).await;
    let examined = |(reply, host): (Result<AgentReply, HintedError>, &Host)| {
        let reply = reply?;
        let findings = roster::decode::<Findings>(host, &reply.text)?;
        Ok(HostAnswer { findings, asked: reply.sent, answered: reply.received, shell: reply.shell })
    };
    Ok(replies.into_iter().zip(hosts).map(examined).collect())
}

fn is_loopback(host: &Host) -> bool {
    host.address == "localhost" || host.address == "::1" || host.address.starts_with("127.")
}

/// The hosts that `node` connects to: all others of a small run; of a large one rank 0's, and those at
/// distances 1, 2, 4, ..., which are the neighbours of rings and trees.
fn peers(node: usize, count: usize) -> Vec<usize> {
    if count <= ALL_PAIRS {
        return (0..count).filter(|peer| *peer != node).collect();
    }
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < count);
    let mut peers: Vec<usize> = std::iter::once(0)
        .chain(distances.map(|distance| (node + distance) % count))
        .filter(|peer| *peer != node)
        .collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// One question per host.
fn questions(subject: &Subject<'_>, dice: &mut dyn FnMut() -> u64) -> Vec<Question> {
    let draft = subject.draft;
    let launch = &draft.experiment.launch;
    let several = draft.hosts.len() > 1;
    let master = several
        .then(|| launch.master_addr.clone().or_else(|| Some(draft.hosts.first()?.address.clone())))
        .flatten();
    let secret = dice();
    let tokens: Vec<String> =
        (0..draft.hosts.len()).map(|node| format!("rankdeck-{secret:016x}-{node:06}\n")).collect();
    // Below the range that the kernel takes outgoing ports from.
    let ports: Vec<Vec<u16>> = (0..draft.hosts.len())
        .map(|node| match (node, launch.master_port) {
            (0, port) if port != 0 => vec![port],
            _ => (0..PORTS).map(|_| 20_000 + (dice() % 12_000) as u16).collect(),
        })
        .collect();
    // An address that means the reader's own machine leads nowhere else; where all have such, they are one
    // machine.
    let one_machine = draft.hosts.iter().all(is_loopback);
    let callable = |peer: usize| {
        one_machine || !is_loopback(&draft.hosts[peer]) || (peer == 0 && launch.master_addr.is_some())
    };
    let calls: Vec<Vec<usize>> = (0..draft.hosts.len())
        .map(|node| peers(node, draft.hosts.len()).into_iter().filter(|peer| callable(*peer)).collect())
        .collect();
    draft
        .hosts
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let mut env = launch.env.clone();
            env.extend(host.env.clone());
            let env = env.into_iter().filter_map(|(name, value)| Some((name, variables::plain(&value)?)));
            let expect = calls.iter().filter(|called| called.contains(&node)).count() as u32;
            let fixed = node == 0 && launch.master_port != 0;
            Question {
                workdir: workdir(host),
                run: draft.run.0.clone(),
                command: launch.command.clone(),
                setup: host.setup.clone(),
                env: env.collect(),
                variables: secrets::values(launch, host).0,
                libtorch: host.libtorch.clone(),
                imports: subject.code.map(|code| code.imports.clone()).unwrap_or_default(),
                environment: environment(&draft.experiment, subject.code.is_some()),
                code: subject.code.map(|code| code.hash.clone()),
                gpus: uses_gpus(host),
                planned_gpus: planned(host),
                master: master.clone(),
                listen: if expect > 0 || fixed { ports[node].clone() } else { Vec::new() },
                expect,
                peers: calls[node]
                    .iter()
                    .map(|&peer| Peer {
                        node: peer as u32,
                        address: match (peer, &master) {
                            (0, Some(master)) => master.clone(),
                            _ => draft.hosts[peer].address.clone(),
                        },
                        ports: ports[peer].clone(),
                        token: tokens[peer].clone(),
                    })
                    .collect(),
                token: tokens[node].clone(),
                patience_ms: PATIENCE_MS + PATIENCE_PER_HOST_MS * draft.hosts.len() as u64,
            }
        })
        .collect()
}

/// What a Python worker of the built-in trainer will make. One whose module comes with the code is not there
/// yet.
fn environment(experiment: &Experiment, has_code: bool) -> Option<EnvQuestion> {
    let env = experiment.env.as_ref().filter(|_| experiment.launch.command.is_empty())?;
    let in_rust = env.worker == EnvWorker::Rust
        || (env.worker == EnvWorker::Auto && BUILTIN_ENVS.contains(&env.id.as_str()));
    let comes = has_code && env.id.contains(':');
    (!in_rust && !comes).then(|| EnvQuestion {
        python: env.python.clone(),
        id: env.id.clone(),
        atari: env.looks_atari(),
    })
}

/// False where `gpus = []` says that CPUs are meant.
fn uses_gpus(host: &Host) -> bool {
    !matches!(&host.gpus, None | Some(Gpus::Count(0))) && host.gpus != Some(Gpus::List(Vec::new()))
}

/// The GPUs that the plan has by their number; empty where only the host knows how many there are.
fn planned(host: &Host) -> Vec<u32> {
    let most = host.nproc.unwrap_or(MOST_GPUS).min(MOST_GPUS) as usize;
    match &host.gpus {
        Some(Gpus::Count(count)) => (0..*count).take(most).collect(),
        Some(Gpus::List(list)) => list.iter().copied().take(most).collect(),
        // The first ranks take the first ones. What is not there is not seen.
        Some(Gpus::Word(_)) => (0..host.nproc.unwrap_or(0).min(MOST_GPUS)).collect(),
        None => Vec::new(),
    }
}

/// The folder as `agent start` gets it.
fn workdir(host: &Host) -> String {
    match (host.workdir.as_str(), host.transport) {
        ("", Transport::Local) => ".".to_owned(),
        ("", Transport::Ssh | Transport::Openssh) => "rankdeck".to_owned(),
        (folder, _) => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::tests::{draft, subject};
    use super::*;

    #[test]
    fn small_runs_try_all_pairs_and_large_ones_what_rings_and_trees_use() {
        assert_eq!(peers(1, 4), [0, 2, 3]);
        assert_eq!(peers(0, 1), [0usize; 0]);
        let some = peers(5, 64);
        assert_eq!(some, [0, 6, 7, 9, 13, 21, 37]);
        assert!((0..64).all(|node| !peers(node, 64).contains(&node)));
    }

    #[test]
    fn every_host_waits_for_exactly_those_that_call_it() {
        let mut draft = draft(3);
        draft.hosts.iter_mut().enumerate().for_each(|(node, host)| host.address = format!("10.0.0.{node}"));
        draft.experiment.launch.master_port = 4711;
        let mut n = 0;
        let questions = questions(&subject(&draft), &mut || {
            n += 1;
            n
        });
        assert!(questions.iter().all(|question| question.expect == 2 && question.peers.len() == 2));
        assert_eq!(questions[0].listen, [4711]);
        for (node, question) in questions.iter().enumerate() {
            for peer in &question.peers {
                let other = &questions[peer.node as usize];
                assert_eq!((&peer.ports, &peer.token), (&other.listen, &other.token), "{node}");
            }
        }
        draft.hosts.truncate(1);
        let alone = super::questions(&subject(&draft), &mut || 7);
        assert_eq!((alone[0].listen.as_slice(), alone[0].expect, &alone[0].master), (&[4711][..], 0, &None));
    }

    #[test]
    fn a_loopback_address_is_no_goal_for_other_machines() {
        let mut draft = draft(2);
        draft.hosts[0].address = "10.0.0.1".into();
        draft.hosts[1].address = "127.0.0.1".into();
        let questions = questions(&subject(&draft), &mut || 7);
        assert!(questions[0].peers.is_empty() && questions[1].peers.len() == 1);
        assert_eq!((questions[0].expect, questions[1].expect), (1, 0));
    }
}
