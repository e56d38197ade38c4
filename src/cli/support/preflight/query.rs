//! The queries of a preflight, and which host connects to which.

use super::{HostAnswer, PreflightInput, host_checks};
use crate::app::secrets;
use crate::cli::args::HostKeyArgs;
use crate::cli::support::run_index::{self, own_binary};
use crate::cli::support::{Failure, prompt};
use rankdeck_link::{self, AgentCommand, AgentReply, Links, Prompter};
use rankdeck_proto::examination::{EnvQuestion, HostFindings, HostQuestion, Peer};
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{GpuSelection, Host, Transport};
use rankdeck_types::ids::{LocalRank, Rank};
use rankdeck_types::template::RankValues;
use rankdeck_types::variables;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// How long hosts wait for each other, ms, and how much longer per host: behind one server, logins are
/// serialized.
const PATIENCE_MS: u64 = 3000;
const PATIENCE_PER_HOST_MS: u64 = 150;
/// Up to this many hosts connect in all pairs.
const ALL_PAIRS: usize = 16;
/// More than any host has.
const MOST_GPUS: u32 = 1024;
/// Ports that a host may use for the connection test.
const PORTS: u64 = 3;
/// Most further addresses of a host, and how much longer hosts wait for each other if they try them, ms.
const OTHERS: usize = 4;
const OTHERS_MS: u64 = 2000;

/// Queries every host. If hosts did not reach each other although all answered, they are queried again, and try
/// each other's interfaces: a name may mean nothing on another host, and at the first contact a host may still
/// have been receiving the agent.
pub(crate) async fn query_hosts(
    subject: &PreflightInput<'_>,
    host_keys: &HostKeyArgs,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let answers = round(subject, &[], host_keys, 0).await?;
    match late(&answers).or(has_uncalled(&subject.draft.hosts, &answers).then_some(0)) {
        Some(late) => round(subject, &held(&answers), host_keys, late + OTHERS_MS).await,
        None => Ok(answers),
    }
}

/// Returns whether an ssh alias stands for a loopback address, such as that of a tunnel, so that no host could
/// be asked to call it.
fn has_uncalled(hosts: &[Host], answers: &[Result<HostAnswer, HintedError>]) -> bool {
    let has_tunnel = |host: &Host| is_loopback(host.peer_address()) && !is_loopback(&host.address);
    hosts.len() > 1 && hosts.iter().any(has_tunnel) && answers.iter().all(Result::is_ok)
}

/// Returns addresses of each host's interfaces that other hosts may reach.
fn held(answers: &[Result<HostAnswer, HintedError>]) -> Vec<Vec<IpAddr>> {
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let of = |answer: &Result<HostAnswer, HintedError>| {
        let interfaces = answer.as_ref().map(|host| host.findings.interfaces.as_slice()).unwrap_or_default();
        let real = interfaces.iter().filter(|interface| !host_checks::is_virtual(&interface.name));
        real.flat_map(|interface| interface.addresses.iter().copied()).filter(usable).take(OTHERS).collect()
    };
    answers.iter().map(of).collect()
}

/// Returns whether a second query is worthwhile: the spread of shell startup times in ms. A host that could
/// not listen explains by itself why it was not reached.
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
    subject: &PreflightInput<'_>,
    held: &[Vec<IpAddr>],
    host_keys: &HostKeyArgs,
    late_ms: u64,
) -> Result<Vec<Result<HostAnswer, HintedError>>, Failure> {
    let binary = own_binary()?;
    let progress = prompt::ProgressPrompter::new(host_keys);
    let mut questions =
        questions(subject, held, &mut || (rankdeck_link::random_fraction() * (1u64 << 53) as f64) as u64);
    questions.iter_mut().for_each(|question| question.patience_ms += late_ms);
    let _notice = progress.show_waits();
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
        let findings = run_index::decode::<HostFindings>(host, &reply.text)?;
        Ok(HostAnswer { findings, asked: reply.sent, answered: reply.received, shell: reply.shell })
    };
    Ok(replies.into_iter().zip(hosts).map(examined).collect())
}

fn is_loopback(address: &str) -> bool {
    address == "localhost" || address == "::1" || address.starts_with("127.")
}

/// Returns the hosts that `node` connects to: all others in a small run; in a large one rank 0's host and
/// those at distances 1, 2, 4, ..., the neighbors in rings and trees.
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

/// Builds one query per host. `held`: further addresses of each host to try, if known.
fn questions(
    subject: &PreflightInput<'_>,
    held: &[Vec<IpAddr>],
    dice: &mut dyn FnMut() -> u64,
) -> Vec<HostQuestion> {
    let draft = subject.draft;
    let launch = &draft.experiment.launch;
    let several = draft.hosts.len() > 1;
    let master = several
        .then(|| launch.master_addr.clone().or_else(|| Some(draft.hosts.first()?.peer_address().to_owned())))
        .flatten();
    let secret = dice();
    let tokens: Vec<String> =
        (0..draft.hosts.len()).map(|node| format!("rankdeck-{secret:016x}-{node:06}\n")).collect();
    // Below the range of ephemeral ports.
    let mut any_ports = || (0..PORTS).map(|_| 20_000 + (dice() % 12_000) as u16).collect::<Vec<u16>>();
    let ports: Vec<Vec<u16>> = (0..draft.hosts.len())
        .map(|node| match (node, launch.master_port) {
            (0, port) if port != 0 => vec![port],
            _ => any_ports(),
        })
        .collect();
    // Gloo and NCCL use other ports than the fixed one, and a firewall may let only that through.
    let also = if launch.master_port == 0 { Vec::new() } else { any_ports() };
    // A loopback address leads nowhere else; if all hosts have one, they are one machine.
    let one_machine = draft.hosts.iter().all(|host| is_loopback(&host.address));
    let others = |peer: usize| held.get(peer).cloned().unwrap_or_default();
    let callable = |peer: usize| {
        one_machine
            || !is_loopback(draft.hosts[peer].peer_address())
            || !others(peer).is_empty()
            || (peer == 0 && launch.master_addr.is_some())
    };
    let calls: Vec<Vec<usize>> = (0..draft.hosts.len())
        .map(|node| peers(node, draft.hosts.len()).into_iter().filter(|peer| callable(*peer)).collect())
        .collect();
    draft
        .hosts
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let filled = draft.experiment.filled_launch();
            let workdir = workdir(host);
            let run_dir = Path::new(&workdir).join("runs").join(&draft.run.0);
            // Any rank of the host stands for all.
            let rank = RankValues {
                run: &draft.run,
                rank: Rank(0),
                local_rank: LocalRank(0),
                world_size: draft.world_size().unwrap_or(1),
                run_dir: &run_dir,
                resume: draft.resume.as_deref(),
            };
            let mut env = filled.env;
            env.extend(host.env.clone());
            let plain = |value: String| variables::plain(&value).map(|value| rank.filled(&value));
            let env = env.into_iter().filter_map(|(name, value)| Some((name, plain(value)?)));
            let expect = calls.iter().filter(|called| called.contains(&node)).count() as u32;
            let fixed = node == 0 && launch.master_port != 0;
            let peer = |&peer: &usize| Peer {
                node: peer as u32,
                address: match (peer, &master) {
                    (0, Some(master)) => master.clone(),
                    _ => draft.hosts[peer].peer_address().to_owned(),
                },
                ports: ports[peer].clone(),
                token: tokens[peer].clone(),
                others: others(peer),
            };
            let second = calls[node].iter().filter(|peer| **peer == 0 && !also.is_empty());
            let second = second.map(|at| Peer { ports: also.clone(), ..peer(at) });
            HostQuestion {
                workdir: workdir.clone(),
                run: draft.run.0.clone(),
                command: filled.command.iter().map(|word| rank.filled(word)).collect(),
                setup: host.setup.clone(),
                env: env.collect(),
                variables: secrets::values(&draft.experiment, host).0,
                libtorch: host.libtorch.clone(),
                imports: subject.code.map(|code| code.imports.clone()).unwrap_or_default(),
                environment: environment(&draft.experiment, subject.code.is_some()),
                code: subject.code.map(|code| code.hash.clone()),
                folder: launch.code.as_ref().filter(|_| subject.code.is_none()).and_then(own_code),
                gpus: uses_gpus(host),
                planned_gpus: planned(host),
                master: master.clone(),
                listen: if expect > 0 || fixed { ports[node].clone() } else { Vec::new() },
                also_listen: if node == 0 && expect > 0 { also.clone() } else { Vec::new() },
                expect,
                peers: calls[node].iter().map(peer).chain(second).collect(),
                token: tokens[node].clone(),
                patience_ms: PATIENCE_MS + PATIENCE_PER_HOST_MS * draft.hosts.len() as u64,
            }
        })
        .collect()
}

/// The user's own code on this machine, in which ranks work.
fn own_code(code: &Code) -> Option<String> {
    code.path().filter(|path| Path::new(path).is_absolute()).map(str::to_owned)
}

/// Returns what a Python worker of the built-in trainer will create. A module that comes with the code is not
/// there yet.
fn environment(experiment: &Experiment, has_code: bool) -> Option<EnvQuestion> {
    let env = experiment.env.as_ref().filter(|_| experiment.launch.command.is_empty())?;
    // Modules of its own come with the code, and only the worker calls a factory.
    let comes = has_code && !env.modules().is_empty() || env.vector.is_some();
    (!env.is_builtin() && !comes).then(|| EnvQuestion {
        python: env.python.clone(),
        id: env.id.clone(),
        atari: env.is_atari(),
    })
}

/// False if `gpus = []` selects CPUs.
fn uses_gpus(host: &Host) -> bool {
    !matches!(&host.gpus, None | Some(GpuSelection::Count(0)))
        && host.gpus != Some(GpuSelection::List(Vec::new()))
}

/// Returns the GPUs that the plan selects by index; empty if only the host knows how many there are.
fn planned(host: &Host) -> Vec<u32> {
    let most = host.nproc.unwrap_or(MOST_GPUS).min(MOST_GPUS) as usize;
    match &host.gpus {
        Some(GpuSelection::Count(count)) => (0..*count).take(most).collect(),
        Some(GpuSelection::List(list)) => list.iter().copied().take(most).collect(),
        // The first ranks take the first GPUs. Missing ones are not visible.
        Some(GpuSelection::Word(_)) => (0..host.nproc.unwrap_or(0).min(MOST_GPUS)).collect(),
        None => Vec::new(),
    }
}

/// The directory as passed to `agent start`.
pub(crate) fn workdir(host: &Host) -> String {
    match (host.workdir.as_str(), host.transport) {
        ("", Transport::Local) => ".".to_owned(),
        ("", Transport::Ssh | Transport::Openssh) => "rankdeck".to_owned(),
        (folder, _) => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::preflight::host_checks::tests::{draft, subject};

    #[test]
    fn large_runs_test_ring_and_tree_neighbors() {
        assert_eq!(peers(1, 4), [0, 2, 3]);
        assert_eq!(peers(0, 1), [0usize; 0]);
        let some = peers(5, 64);
        assert_eq!(some, [0, 6, 7, 9, 13, 21, 37]);
        assert!((0..64).all(|node| !peers(node, 64).contains(&node)));
    }

    #[test]
    fn each_host_waits_for_its_callers() {
        let mut draft = draft(3);
        draft.hosts.iter_mut().enumerate().for_each(|(node, host)| host.address = format!("10.0.0.{node}"));
        draft.experiment.launch.master_port = 4711;
        let mut n = 0;
        let questions = questions(&subject(&draft), &[], &mut || {
            n += 1;
            n
        });
        assert!(questions.iter().all(|question| question.expect == 2));
        assert_eq!(questions[0].listen, [4711]);
        assert!(!questions[0].also_listen.is_empty() && questions[1].also_listen.is_empty());
        for (node, question) in questions.iter().enumerate() {
            for peer in &question.peers {
                let other = &questions[peer.node as usize];
                let listens = [&other.listen, &other.also_listen].contains(&&peer.ports);
                assert!(listens && peer.token == other.token, "{node}: {peer:?}");
            }
            // Rank 0's host is called at its fixed port and at another one.
            let of_first = question.peers.iter().filter(|peer| peer.node == 0).count();
            assert_eq!((of_first, question.peers.len()), if node == 0 { (0, 2) } else { (2, 3) });
        }
        draft.hosts.truncate(1);
        let alone = super::questions(&subject(&draft), &[], &mut || 7);
        assert_eq!((alone[0].listen.as_slice(), alone[0].expect, &alone[0].master), (&[4711][..], 0, &None));
    }

    #[test]
    fn loopback_address_is_not_used_by_other_machines() {
        let mut draft = draft(2);
        draft.hosts[0].address = "10.0.0.1".into();
        draft.hosts[1].address = "127.0.0.1".into();
        let questions = questions(&subject(&draft), &[], &mut || 7);
        assert!(questions[0].peers.is_empty() && questions[1].peers.len() == 1);
        assert_eq!((questions[0].expect, questions[1].expect), (1, 0));
    }

    #[test]
    fn alias_is_asked_about_as_its_host_name() {
        let mut draft = draft(2);
        draft.hosts[0].peer_address = Some("10.77.0.10".into());
        draft.hosts[1].peer_address = Some("10.77.0.11".into());
        let held = [vec!["10.1.0.10".parse().unwrap()], Vec::new()];
        let questions = questions(&subject(&draft), &held, &mut || 7);
        assert_eq!(questions[1].master.as_deref(), Some("10.77.0.10"));
        assert_eq!(questions[1].peers[0].address, "10.77.0.10");
        assert_eq!(questions[1].peers[0].others.len(), 1);
        assert_eq!(questions[0].peers[0].address, "10.77.0.11");
    }
}
