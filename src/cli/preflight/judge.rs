//! One host's findings against what the run wants of it. Pure.

use super::{CHECKS, Cell, Examined, Subject};
use rankdeck_proto::examination::{Disk, Findings, GpuFinding};
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Gpus, Host};
use rankdeck_types::words::bytes;

/// Less free space than this cannot hold a run's records.
const LEAST_DISK: u64 = 8 << 20;
/// Less than this will not hold many checkpoints.
const SMALL_DISK: u64 = 1 << 30;
/// Seconds of start files that are worth a word: three commands of a launch wait for them, and so does every
/// mended link.
const SLOW_SHELL: f64 = 2.0;
/// Interfaces that lead to containers and virtual machines of the same host.
const VIRTUAL: [&str; 6] = ["docker", "br-", "virbr", "veth", "cni", "flannel"];
/// Release of libtorch that the trainer is built for.
const LIBTORCH: &str = "2.11.";

/// All checks of one host, in the order of [`CHECKS`].
pub fn column(subject: &Subject<'_>, node: usize, answer: &Result<Examined, HintedError>) -> Vec<Cell> {
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
                "build it with `cargo build --release --workspace`, or set `launch.command`",
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

/// The other clock is ahead by at least what lies between our receipt and its answer, and behind by at least
/// what lies between our question and its receipt; the way there and back only widens what is possible.
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
#[path = "judge_tests.rs"]
pub(super) mod tests;
