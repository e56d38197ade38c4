//! One host's findings against what the run wants of it. Pure.

use super::{CHECKS, Cell, Examined, Subject};
use crate::agent::entries::RunState;
use crate::agent::examine::{Disk, Findings, GpuFinding};
use crate::config::hosts::{Gpus, Host};
use crate::link::LinkError;
use crate::ui::text::bytes;

/// Less free space than this cannot hold a run's records.
const LEAST_DISK: u64 = 8 << 20;
/// Less than this will not hold many checkpoints.
const SMALL_DISK: u64 = 1 << 30;
/// Seconds of start files that are worth a word: three commands of a launch wait for them, and so does every mended link.
const SLOW_SHELL: f64 = 2.0;
/// Interfaces that lead to containers and virtual machines of the same host.
const VIRTUAL: [&str; 6] = ["docker", "br-", "virbr", "veth", "cni", "flannel"];
/// Release of libtorch that the trainer is built for.
const LIBTORCH: &str = "2.11.";

/// All checks of one host, in the order of [`CHECKS`].
pub fn column(subject: &Subject<'_>, node: usize, answer: &Result<Examined, LinkError>) -> Vec<Cell> {
    let examined = match answer {
        Ok(examined) => examined,
        Err(error) => {
            let failed =
                Cell::failed(error.error.clone(), error.hint.clone(), format!("host.{node}.address"));
            return std::iter::once(failed)
                .chain(std::iter::repeat_n(Cell::skipped(), CHECKS.len() - 1))
                .collect();
        }
    };
    let found = &examined.findings;
    let Some(host) = subject.draft.hosts.get(node) else { return vec![Cell::skipped(); CHECKS.len()] };
    let key = |name: &str| format!("host.{node}.{name}");
    vec![
        reach(examined),
        ranks(host, found, &key),
        gpus(host, found, &key),
        leftovers(found),
        interface(subject, node, host, found, &key),
        port(subject, node, found, &key),
        names(subject, node, host, found),
        program(subject, found),
        versions(subject, found, &key),
        limits(host, found, &key),
        disk(&found.disk, &key),
        session(found),
        code(subject, found),
        clock(examined),
    ]
}

fn reach(examined: &Examined) -> Cell {
    let found = &examined.findings;
    if examined.shell >= SLOW_SHELL {
        return Cell::warning(
            format!(
                "every command begins {:.1} s late: the login shell's start files take so long",
                examined.shell
            ),
            "let ~/.bashrc (or its like) return at once where the shell is not interactive: `case $- in *i*) ;; *) return ;; esac`",
            "",
        );
    }
    Cell::passed(format!("{}@{}", found.user, found.probe.hostname))
}

fn wanted(host: &Host, found: &Findings) -> Vec<u32> {
    match &host.gpus {
        None => Vec::new(),
        Some(Gpus::Word(_)) => (0..found.probe.gpu_count).collect(),
        Some(Gpus::Count(count)) => (0..*count).collect(),
        Some(Gpus::List(list)) => list.clone(),
    }
}

fn ranks(host: &Host, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let gpus = wanted(host, found).len() as u32;
    let ranks = host.nproc.unwrap_or(if host.gpus.is_some() { gpus } else { 1 });
    let cores = found.probe.cpu_count;
    if found.run_exists {
        return Cell::failed(
            "a run of this name is there already",
            "try again: names hold the second of the launch; or give it another `--name`",
            "run.name",
        );
    }
    if ranks > cores {
        return Cell::warning(
            format!("{ranks} ranks on {cores} cores"),
            "they will take turns: lower `nproc`",
            key("nproc"),
        );
    }
    Cell::passed(format!("{ranks} on {cores} cores"))
}

fn gpus(host: &Host, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let there = found.probe.gpu_count;
    let Some(asked) = &host.gpus else { return Cell::passed(format!("none wanted, {there} there")) };
    let why = || match &found.driver {
        Some(version) => format!("driver {version}"),
        None => "there is no NVIDIA driver".to_owned(),
    };
    let wanted = wanted(host, found);
    let repair = "run `nvidia-smi` there; or change `gpus`";
    if there == 0 && matches!(asked, Gpus::Word(_)) {
        let text = format!("gpus = \"all\", and there are none: {}", why());
        return Cell::failed(
            text,
            "run `nvidia-smi` there; or leave `gpus` out and set `nproc`",
            key("gpus"),
        );
    }
    if let Some(missing) = wanted.iter().find(|index| **index >= there) {
        return Cell::failed(
            format!("GPU {missing} is wanted, and {there} are there: {}", why()),
            repair,
            key("gpus"),
        );
    }
    let used = |gpu: &&GpuFinding| wanted.contains(&gpu.index);
    for gpu in found.gpus.iter().filter(used) {
        let free = gpu.memory_total.saturating_sub(gpu.memory_used);
        let full = gpu.memory_total > 0 && free < gpu.memory_total / 10;
        let Some(first) = gpu.processes.first() else {
            if full {
                let text = format!(
                    "GPU {}: {} of {} in use, by processes that cannot be seen",
                    gpu.index,
                    bytes(gpu.memory_used),
                    bytes(gpu.memory_total)
                );
                return Cell::failed(
                    text,
                    "another container or user holds it; choose other `gpus`",
                    key("gpus"),
                );
            }
            continue;
        };
        let who = match &first.run {
            Some(run) => format!("process {} of run {run}", first.pid),
            None if first.command.is_empty() => format!("process {}", first.pid),
            None => format!("process {} ({})", first.pid, first.command),
        };
        let text = format!("GPU {} is in use: {who} holds {}", gpu.index, bytes(first.bytes));
        let hint = match &first.run {
            Some(run) => format!("`rankdeck stop {run}` ends it; or choose other `gpus`"),
            None => "end it, or choose other `gpus`".to_owned(),
        };
        return if full {
            Cell::failed(text, hint, key("gpus"))
        } else {
            Cell::warning(text, hint, key("gpus"))
        };
    }
    Cell::passed(format!("{there} there"))
}

fn leftovers(found: &Findings) -> Cell {
    let orphan = found.runs.iter().find(|run| run.state == RunState::Orphaned);
    if let Some(run) = orphan {
        let text = format!("leftovers of run {}: pids {:?}", run.run, run.pids);
        return Cell::warning(text, format!("`rankdeck stop {}` removes them", run.run), "");
    }
    match found.runs.iter().find(|run| run.ranks_alive > 0) {
        Some(run) => Cell::warning(
            format!("run {} has {} ranks there", run.run, run.ranks_alive),
            format!("they will slow each other down; `rankdeck stop {}` ends it", run.run),
            "",
        ),
        None => Cell::passed("none"),
    }
}

fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|start| name.starts_with(start))
}

fn interface(
    subject: &Subject<'_>,
    node: usize,
    host: &Host,
    found: &Findings,
    key: &dyn Fn(&str) -> String,
) -> Cell {
    let listed = || {
        let names: Vec<&str> = found.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        format!("it has {}", names.join(", "))
    };
    let several = subject.draft.hosts.len() > 1;
    let route = found.route.as_ref().and_then(|route| route.interface.as_deref());
    match (&host.interface, route) {
        (Some(name), _) if !found.interfaces.iter().any(|interface| interface.name == *name) => Cell::failed(
            format!("no interface `{name}` is up there; {}", listed()),
            "change `interface`",
            key("interface"),
        ),
        (Some(name), Some(route)) if name == "lo" && route != "lo" && several => Cell::failed(
            "`lo` does not lead to the other hosts",
            format!("write `interface = \"{route}\"`, or leave it out"),
            key("interface"),
        ),
        (Some(name), Some(route)) if name != route && several => {
            let text = format!("`{name}`, but `{route}` leads to rank 0's host");
            Cell::warning(text, format!("is that meant? else `interface = \"{route}\"`"), key("interface"))
        }
        (Some(name), _) => Cell::passed(name.clone()),
        (None, Some(name)) if is_virtual(name) => Cell::warning(
            format!("`{name}` leads to rank 0's host, and looks like a bridge of containers"),
            "set `interface` to the one that the other hosts are reached by",
            key("interface"),
        ),
        (None, Some(name)) => Cell::passed(format!("{name} (route)")),
        // What is wrong with the way is said under `names`.
        (None, None) if several => Cell { hint: format!("host {node}"), ..Cell::skipped() },
        (None, None) => Cell::passed("not needed"),
    }
}

fn port(subject: &Subject<'_>, node: usize, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let launch = &subject.draft.experiment.launch;
    if let Some(error) = found.listened.as_ref().and_then(|listened| listened.error.as_ref()) {
        let fixed = node == 0 && launch.master_port != 0;
        return match fixed {
            true => Cell::failed(
                format!("port {} of rank 0's store cannot be had: {error}", launch.master_port),
                format!(
                    "end what holds it (`ss -ltnp 'sport = :{}'` there), or write `master_port = 0`",
                    launch.master_port
                ),
                "launch.master_port",
            ),
            false => Cell::warning(
                format!("no port could be had for the test: {error}"),
                "nothing to do, unless it comes back: whether others reach this host is not known",
                "",
            ),
        };
    }
    let name = |peer: u32| subject.draft.hosts.get(peer as usize).map_or("?", |host| host.name.as_str());
    let firewall = "let the hosts reach each other on all ports: Gloo and NCCL choose them freely; `interface` and `address` choose another network";
    let mut lost: Vec<_> = found.reached.iter().filter(|to| to.error.is_some()).collect();
    lost.sort_by_key(|to| to.node);
    match lost.first() {
        None if found.reached.is_empty() && found.listened.is_none() => Cell::passed("not needed"),
        None => {
            let port = found.listened.as_ref().map_or(0, |listened| listened.port);
            match launch.master_port {
                0 => Cell::passed(format!("{} hosts reached", found.reached.len())),
                _ if node == 0 => Cell::passed(format!("{port} is free")),
                _ => Cell::passed(format!("{} hosts reached", found.reached.len())),
            }
        }
        Some(to) => {
            let why = to.error.clone().unwrap_or_default();
            let others =
                if lost.len() > 1 { format!(", nor {} others", lost.len() - 1) } else { String::new() };
            let text = format!("cannot reach {} at {}: {why}{others}", name(to.node), to.address);
            match to.node {
                0 => Cell::failed(
                    text,
                    format!("rank 0's store must be reachable from every host: {firewall}"),
                    "launch.master_addr",
                ),
                // A program of the user may do without.
                peer if subject.draft.experiment.launch.command.is_empty() => {
                    Cell::failed(text, firewall, format!("host.{peer}.address"))
                }
                peer => Cell::warning(
                    text,
                    firewall,
                    if peer == node as u32 { key("address") } else { format!("host.{peer}.address") },
                ),
            }
        }
    }
}

fn names(subject: &Subject<'_>, node: usize, host: &Host, found: &Findings) -> Cell {
    let Some(route) = &found.route else { return Cell::passed("not needed") };
    let launch = &subject.draft.experiment.launch;
    let (key, name) = match (&launch.master_addr, subject.draft.hosts.first()) {
        (Some(name), _) => ("launch.master_addr", name.clone()),
        (None, Some(first)) => ("host.0.address", first.address.clone()),
        (None, None) => return Cell::skipped(),
    };
    if let Some(error) = &route.error {
        return Cell::failed(
            format!("`{name}`, the address of rank 0's store: {error}"),
            "set `launch.master_addr` to an address that every host can reach",
            key,
        );
    }
    let loopback = !route.addresses.is_empty() && route.addresses.iter().all(|ip| ip.is_loopback());
    // On another machine that would be the machine itself; on one machine it is right.
    let elsewhere = node != 0 && found.reached.iter().any(|to| to.node == 0 && to.error.is_some());
    if loopback && elsewhere {
        return Cell::failed(
            format!("`{name}` means this host itself there"),
            "remove it from /etc/hosts there, or set `launch.master_addr` to rank 0's address",
            key,
        );
    }
    let own = &found.names.own;
    if host.interface.is_none() && route.interface.is_none() && own.iter().all(|ip| ip.is_loopback()) {
        return Cell::warning(
            "the host's own name leads to a loopback address, which Gloo would listen on",
            "set `interface`",
            format!("host.{node}.interface"),
        );
    }
    let shown: Vec<String> = route.addresses.iter().take(2).map(ToString::to_string).collect();
    Cell::passed(format!("rank 0 at {}", shown.join(" ")))
}

fn program(subject: &Subject<'_>, found: &Findings) -> Cell {
    let Some(program) = &found.program else {
        return match (&found.probe.trainer, subject.can_upload) {
            (_, true) => Cell::passed("trainer (uploaded)"),
            (Some(_), false) => Cell::passed("trainer"),
            (None, false) => Cell::failed(
                "no rankdeck-trainer there, and none beside rankdeck to upload",
                "build it with `cargo build --release --features trainer`, or set `launch.command`",
                "launch.command",
            ),
        };
    };
    if let Some(error) = &program.error {
        return Cell::failed(
            error.clone(),
            "write its full path, or set up `prelude` so that a shell without login finds it",
            "launch.command",
        );
    }
    match (&program.script, subject.code) {
        (Some(_), Some(code)) if !code.has_script => Cell::failed(
            "the script is not in the code that was pushed",
            "`launch.command` names it relative to `launch.code`",
            "launch.code",
        ),
        (Some(script), None) if !program.script_exists => Cell::failed(
            format!("there is no {script}"),
            "copy it there, change `workdir`, or let rankdeck bring it: `launch.code = \"DIR\"`",
            "launch.command",
        ),
        _ => Cell::passed(match &program.python {
            Some(python) => format!("python {}", python.version),
            None => program.path.clone().unwrap_or_default(),
        }),
    }
}

fn versions(subject: &Subject<'_>, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    match (&found.libtorch, &found.program) {
        (Some(Err(failure)), _) => Cell::failed(failure.error.clone(), failure.hint.clone(), key("libtorch")),
        (Some(Ok(_)), _) => match &found.libtorch_version {
            Some(version) if !version.starts_with(LIBTORCH) => Cell::failed(
                format!("libtorch {version}, and the trainer is built for {LIBTORCH}x"),
                format!("point `libtorch` at {LIBTORCH}x, or bring it with `rankdeck push --libtorch DIR`"),
                key("libtorch"),
            ),
            Some(version) => Cell::passed(format!("libtorch {version}")),
            None => Cell::passed("libtorch"),
        },
        (None, Some(program)) => match program.python.as_ref().and_then(|python| python.torch.as_ref()) {
            Some(torch) => Cell::passed(format!("torch {torch}")),
            None => Cell::passed("no torch"),
        },
        (None, None) => {
            let _ = subject;
            Cell::passed("not needed")
        }
    }
}

fn limits(host: &Host, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let limits = &found.limits;
    let low = |limit: Option<u64>, least: u64| limit.filter(|limit| *limit < least);
    if let Some(files) = low(limits.open_files, 1024) {
        return Cell::warning(
            format!("{files} open files per process"),
            "raise `nofile` in /etc/security/limits.conf, or `ulimit -n` in `prelude`",
            key("prelude"),
        );
    }
    if let Some(processes) = low(limits.processes, 512) {
        return Cell::warning(
            format!("{processes} processes"),
            "raise `nproc` in /etc/security/limits.conf",
            "",
        );
    }
    if host.gpus.is_some() {
        if limits.infiniband
            && let Some(locked) = low(limits.locked, 1 << 30)
        {
            return Cell::warning(
                format!("{} of locked memory, and NCCL needs more for InfiniBand", bytes(locked)),
                "set `memlock unlimited` in /etc/security/limits.conf",
                "",
            );
        }
        if found.shm.free < 64 << 20 {
            let text = format!("{} free in /dev/shm, which NCCL and data loaders use", bytes(found.shm.free));
            return Cell::warning(text, "free or enlarge it; in a container `--shm-size`", "");
        }
    }
    Cell::passed("enough")
}

fn disk(disk: &Disk, key: &dyn Fn(&str) -> String) -> Cell {
    if let Some(error) = &disk.error {
        return Cell::failed(
            format!("cannot write to {}: {error}", disk.path),
            "free space, change its rights, or change `workdir`",
            key("workdir"),
        );
    }
    if disk.free < LEAST_DISK || disk.free_files < 100 {
        let text = format!("{} and {} files free at {}", bytes(disk.free), disk.free_files, disk.path);
        return Cell::failed(
            text,
            "free space (`rankdeck ps --all` lists old runs), or change `workdir`",
            key("workdir"),
        );
    }
    if disk.free < SMALL_DISK {
        let text = format!("{} free at {}", bytes(disk.free), disk.path);
        return Cell::warning(
            text,
            "checkpoints and logs may fill it: free space, or change `workdir`",
            key("workdir"),
        );
    }
    Cell::passed(format!("{} free", bytes(disk.free)))
}

fn session(found: &Findings) -> Cell {
    if let Some(error) = &found.session.error {
        return Cell::failed(
            format!("ranks cannot be supervised there: {error}"),
            "rankdeck needs Linux 5.3 or newer with /proc mounted",
            "",
        );
    }
    if found.session.killed_at_logout {
        return Cell::warning(
            "processes are killed when their user logs out (KillUserProcesses)",
            format!("run `loginctl enable-linger {}` there", found.user),
            "",
        );
    }
    Cell::passed("survives")
}

fn code(subject: &Subject<'_>, found: &Findings) -> Cell {
    let short = |hash: &str| hash.chars().take(16).collect::<String>();
    match (subject.code, &found.code.script) {
        (Some(code), _) if found.code.pushed => Cell::passed(short(&code.hash)),
        (Some(code), _) => Cell::passed(format!("{} (will be pushed)", short(&code.hash))),
        (None, Some(script)) => Cell::passed(script.clone()),
        (None, None) => Cell::passed("none"),
    }
}

/// The other clock is ahead by at least what lies between our receipt and its answer, and behind by at least what lies between our question and
/// its receipt; the way there and back only widens what is possible.
fn clock(examined: &Examined) -> Cell {
    let ahead = examined.findings.answered - examined.answered;
    let behind = examined.asked - examined.findings.heard;
    if examined.asked == 0.0 || examined.answered == 0.0 {
        return Cell::skipped();
    }
    let off = ahead.max(behind);
    if off > 1.0 {
        let word = if ahead > behind { "ahead of" } else { "behind" };
        return Cell::warning(
            format!("{off:.1} s {word} this machine"),
            "synchronise clocks (chrony, systemd-timesyncd): times of events of several hosts cannot be compared otherwise",
            "",
        );
    }
    Cell::passed("within 1 s")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::agent::examine::{GpuProcess, Interface, Limits, Listened, Program, Reached, Route};
    use crate::cli::preflight::{Grade, PushedCode};
    use crate::config::hosts::Transport;
    use crate::core::event::Probe;
    use crate::core::ids::RunId;
    use crate::core::plan::PlanDraft;

    pub fn draft(hosts: usize) -> PlanDraft {
        let experiment =
            toml::from_str("[run]\nname = \"t\"\n[launch]\ncommand = [\"python3\", \"train.py\"]").unwrap();
        let host = |node: usize| Host {
            name: format!("h{node}"),
            address: format!("h{node}"),
            port: None,
            user: None,
            identity_file: None,
            proxy_jump: None,
            gpus: None,
            nproc: None,
            workdir: "w".into(),
            env: Default::default(),
            prelude: None,
            libtorch: None,
            transport: Transport::Ssh,
            interface: None,
        };
        PlanDraft {
            run: RunId("t-1".into()),
            experiment,
            hosts: (0..hosts).map(host).collect(),
            excluded: Default::default(),
        }
    }

    pub fn subject(draft: &PlanDraft) -> Subject<'_> {
        Subject { draft, code: None, can_upload: false }
    }

    /// A host on which everything is as it should be.
    pub fn good() -> Examined {
        let findings = Findings {
            heard: 100.1,
            answered: 100.2,
            probe: Probe { hostname: "h".into(), cpu_count: 4, ..Probe::default() },
            user: "u".into(),
            disk: Disk { path: "/w".into(), free: 1 << 40, total: 1 << 41, free_files: 1 << 20, error: None },
            shm: Disk { free: 1 << 30, ..Disk::default() },
            limits: Limits::default(),
            interfaces: ["lo", "eth0"]
                .map(|name| Interface { name: name.into(), addresses: vec![] })
                .to_vec(),
            route: Some(Route {
                addresses: vec!["10.0.0.1".parse().unwrap()],
                interface: Some("eth0".into()),
                error: None,
            }),
            program: Some(Program {
                path: Some("/usr/bin/python3".into()),
                script_exists: true,
                script: Some("/w/train.py".into()),
                ..Program::default()
            }),
            ..Findings::default()
        };
        Examined { findings, asked: 100.0, answered: 100.3, shell: 0.1 }
    }

    fn judge_with(
        draft: &PlanDraft,
        node: usize,
        change: impl Fn(&mut Examined),
    ) -> Vec<(&'static str, Cell)> {
        let mut examined = good();
        change(&mut examined);
        CHECKS.into_iter().zip(column(&subject(draft), node, &Ok(examined))).collect()
    }

    /// The one check that is not passed.
    fn only(
        draft: &PlanDraft,
        node: usize,
        change: impl Fn(&mut Examined),
    ) -> (&'static str, Grade, String, String) {
        let bad: Vec<_> = judge_with(draft, node, change)
            .into_iter()
            .filter(|(_, cell)| cell.grade > Grade::Passed)
            .collect();
        let [(name, cell)] = bad.as_slice() else { panic!("{bad:?}") };
        assert!(cell.grade == Grade::Passed || !cell.hint.is_empty(), "CHECK-2: {cell:?}");
        (name, cell.grade, cell.text.clone(), cell.key.clone())
    }

    #[test]
    fn a_good_host_passes_every_check() {
        let cells = judge_with(&draft(2), 1, |_| {});
        assert!(cells.iter().all(|(_, cell)| cell.grade == Grade::Passed), "{cells:?}");
        assert_eq!(cells.len(), CHECKS.len());
    }

    #[test]
    fn every_check_sees_its_fault_and_names_the_key() {
        let two = draft(2);
        let mut gpus = draft(2);
        gpus.hosts[1].gpus = Some(Gpus::Count(1));
        let with_gpu = |examined: &mut Examined, used: u64, processes: Vec<GpuProcess>| {
            examined.findings.probe.gpu_count = 1;
            examined.findings.gpus = vec![GpuFinding {
                index: 0,
                name: "g".into(),
                memory_used: used,
                memory_total: 100,
                processes,
            }];
        };
        let process = GpuProcess { pid: 7, bytes: 1, command: "python".into(), run: None };
        let case =
            |name: &str, grade, word: &str, key: &str, draft: &PlanDraft, change: &dyn Fn(&mut Examined)| {
                let found = only(draft, 1, change);
                assert_eq!((found.0, found.1, found.3.as_str()), (name, grade, key), "{found:?}");
                assert!(found.2.contains(word), "{found:?}");
            };
        use Grade::{Failed, Warning};
        case("reach", Warning, "begins 2.5 s late", "", &two, &|e| e.shell = 2.5);
        case("ranks", Warning, "1 ranks on 0 cores", "host.1.nproc", &two, &|e| {
            e.findings.probe.cpu_count = 0
        });
        case("ranks", Failed, "already", "run.name", &two, &|e| e.findings.run_exists = true);
        case("gpus", Failed, "GPU 0 is wanted", "host.1.gpus", &gpus, &|_| {});
        case("gpus", Warning, "process 7 (python)", "host.1.gpus", &gpus, &|e| {
            with_gpu(e, 50, vec![process.clone()])
        });
        case("gpus", Failed, "cannot be seen", "host.1.gpus", &gpus, &|e| with_gpu(e, 95, vec![]));
        case("leftovers", Warning, "pids [5]", "", &two, &|e| {
            let entry = crate::cli::roster::sample_entry();
            e.findings.runs =
                vec![crate::agent::RunEntry { state: RunState::Orphaned, pids: vec![5], ..entry }];
        });
        case("interface", Warning, "docker0", "host.1.interface", &two, &|e| {
            e.findings.route.as_mut().unwrap().interface = Some("docker0".into());
        });
        case("port", Failed, "cannot reach h0", "launch.master_addr", &two, &|e| {
            e.findings.reached =
                vec![Reached { node: 0, address: "10.0.0.1:1".into(), error: Some("refused".into()) }];
        });
        case("names", Failed, "no such name", "host.0.address", &two, &|e| {
            e.findings.route.as_mut().unwrap().error = Some("no such name".into());
        });
        case("program", Failed, "not found", "launch.command", &two, &|e| {
            e.findings.program.as_mut().unwrap().error = Some("`python3` is not found".into());
        });
        case("program", Failed, "/w/train.py", "launch.command", &two, &|e| {
            e.findings.program.as_mut().unwrap().script_exists = false;
        });
        case("limits", Warning, "64 open files", "host.1.prelude", &two, &|e| {
            e.findings.limits.open_files = Some(64)
        });
        case("disk", Failed, "read-only", "host.1.workdir", &two, &|e| {
            e.findings.disk.error = Some("read-only".into())
        });
        case("disk", Failed, "files free", "host.1.workdir", &two, &|e| e.findings.disk.free = 1);
        case("disk", Warning, "free at /w", "host.1.workdir", &two, &|e| {
            e.findings.disk.free = SMALL_DISK - 1
        });
        case("session", Warning, "log", "", &two, &|e| e.findings.session.killed_at_logout = true);
        case("session", Failed, "pidfd", "", &two, &|e| {
            e.findings.session.error = Some("pidfd_open: no".into())
        });
        case("clock", Warning, "59.9 s ahead", "", &two, &|e| {
            e.findings.heard += 60.0;
            e.findings.answered += 60.0;
        });
        case("clock", Warning, "59.9 s behind", "", &two, &|e| {
            e.findings.heard -= 60.0;
            e.findings.answered -= 60.0;
        });
    }

    #[test]
    fn a_slow_way_is_no_skew() {
        let cells = judge_with(&draft(2), 1, |e| {
            (e.asked, e.answered) = (95.0, 107.0);
        });
        assert!(cells.iter().all(|(_, cell)| cell.grade == Grade::Passed), "{cells:?}");
    }

    #[test]
    fn the_store_s_port_must_be_free_on_the_first_host() {
        let mut draft = draft(2);
        draft.experiment.launch.master_port = 4711;
        let taken = |e: &mut Examined| {
            e.findings.listened = Some(Listened { port: 0, error: Some("in use".into()), heard: 0 });
        };
        assert_eq!(only(&draft, 0, taken).3, "launch.master_port");
        assert_eq!(only(&draft, 1, taken).1, Grade::Warning, "elsewhere it was only for the test");
    }

    #[test]
    fn the_configured_interface_must_be_there_and_lead_somewhere() {
        let mut draft = draft(2);
        for (name, grade) in [("eth7", Grade::Failed), ("lo", Grade::Failed), ("eth1", Grade::Warning)] {
            draft.hosts[1].interface = Some(name.into());
            let found = only(&draft, 1, |e| {
                e.findings.interfaces.push(Interface { name: "eth1".into(), addresses: vec![] });
            });
            assert_eq!(
                (found.0, found.1, found.3.as_str()),
                ("interface", grade, "host.1.interface"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn the_trainer_needs_its_libtorch_and_must_be_there() {
        let mut draft = draft(1);
        draft.experiment.launch.command.clear();
        let builtin = |e: &mut Examined, libtorch: Result<String, crate::agent::Failure>, version: &str| {
            e.findings.program = None;
            e.findings.probe.trainer = Some("/t".into());
            e.findings.libtorch = Some(libtorch);
            e.findings.libtorch_version = Some(version.into());
        };
        let none = crate::agent::Failure::new("no libtorch found", "push");
        assert_eq!(only(&draft, 0, |e| builtin(e, Err(none.clone()), "")).0, "versions");
        assert!(only(&draft, 0, |e| builtin(e, Ok("/l".into()), "2.9.1")).2.contains("2.9.1"));
        let missing = only(&draft, 0, |e| {
            builtin(e, Ok("/l".into()), "2.11.0+cpu");
            e.findings.probe.trainer = None;
        });
        assert_eq!(missing.0, "program");
        let examined = {
            let mut e = good();
            builtin(&mut e, Ok("/l".into()), "2.11.0");
            e.findings.probe.trainer = None;
            e
        };
        let uploaded = column(&Subject { can_upload: true, ..subject(&draft) }, 0, &Ok(examined));
        assert!(uploaded.iter().all(|cell| cell.grade == Grade::Passed));
    }

    #[test]
    fn pushed_code_must_hold_the_script() {
        let draft = draft(1);
        let judge = |has_script| {
            let code = PushedCode { hash: "ab".repeat(32), has_script };
            let mut examined = good();
            examined.findings.program.as_mut().unwrap().script_exists = false;
            let cells = column(&Subject { code: Some(&code), ..subject(&draft) }, 0, &Ok(examined));
            cells.iter().map(|cell| cell.grade).max().unwrap()
        };
        assert_eq!((judge(true), judge(false)), (Grade::Passed, Grade::Failed));
    }
}
