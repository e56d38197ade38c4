//! Checks one host's findings against the requirements of the run. Pure.

use super::{CHECKS, CheckResult, HostAnswer, PreflightInput, PushedCode};
use rankdeck_config::check::in_a_shell;
use rankdeck_proto::examination::{Disk, GpuFinding, GpuHealth, GpuProcess, HostFindings};
use rankdeck_proto::libtorch::FITTING;
use rankdeck_proto::run_entry::HostRunState;
use rankdeck_types::command::{CommandParts, LAUNCHER_MODULES, LAUNCHERS, file_name, is_python};
use rankdeck_types::error::{HintedError, write_hint};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{GpuSelection, Host, Transport};
use rankdeck_types::learn::ActionKind;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::promise::Promise;
use rankdeck_types::schema::variable_in;
use rankdeck_types::template;
use rankdeck_types::words::{bytes, plural};
use rankdeck_types::{hidden, quote};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

/// Less free space cannot hold the records of a run.
const LEAST_DISK: u64 = 8 << 20;
/// Less free space will not hold many checkpoints.
const SMALL_DISK: u64 = 1 << 30;
/// Seconds of shell startup worth a warning: three commands of a launch wait for it, and so does every
/// reconnect.
const SLOW_SHELL: f64 = 2.0;
/// Interfaces of containers and virtual machines on the same host.
const VIRTUAL: [&str; 6] = ["docker", "br-", "virbr", "veth", "cni", "flannel"];

/// Returns all checks of one host, in the order of [`CHECKS`].
pub(crate) fn column(
    subject: &PreflightInput<'_>,
    node: usize,
    answer: &Result<HostAnswer, HintedError>,
) -> Vec<CheckResult> {
    let examined = match answer {
        Ok(examined) => examined,
        Err(error) => {
            // The host is printed once for all hosts with the same error.
            let name = subject.draft.hosts.get(node).map_or("", |host| host.name.as_str());
            let text = error.error.strip_prefix(name).and_then(|text| text.strip_prefix(": "));
            let text = text.unwrap_or(&error.error);
            let failed = CheckResult::failed(text, error.hint.clone(), format!("host.{node}.address"));
            return std::iter::once(failed)
                .chain(std::iter::repeat_n(CheckResult::skipped(), CHECKS.len() - 1))
                .collect();
        }
    };
    let found = &examined.findings;
    let Some(host) = subject.draft.hosts.get(node) else { return vec![CheckResult::skipped(); CHECKS.len()] };
    let key = |name: &str| format!("host.{node}.{name}");
    vec![
        reach(examined),
        ranks(host, found, &key),
        gpus(host, found, &key),
        leftovers(found),
        interface(subject, node, host, found, &key),
        port(subject, node, found, &key),
        names(subject, node, host, found),
        program(subject, host, found, &key),
        environment(subject, found).unwrap_or_else(|| versions(subject, found, &key)),
        limits(host, found, &key),
        disk(&found.disk, &key),
        session(found),
        code(subject, found),
        clock(examined),
    ]
}

fn reach(examined: &HostAnswer) -> CheckResult {
    let found = &examined.findings;
    if examined.shell >= SLOW_SHELL {
        return CheckResult::warning(
            format!("login shell startup takes {:.1} s per command", examined.shell),
            "return early from ~/.bashrc in non-interactive shells: `case $- in *i*) ;; *) return ;; esac`",
            "",
        );
    }
    CheckResult::passed(format!("{}@{}", found.user, found.probe.hostname))
}

fn ranks(host: &Host, found: &HostFindings, key: &dyn Fn(&str) -> String) -> CheckResult {
    let gpus = requested_gpus(host, found).len() as u32;
    let ranks = host.nproc.unwrap_or(match &host.gpus {
        Some(asked) if gpus > 0 || !asked.is_auto() => gpus,
        _ => 1,
    });
    let cores = found.probe.cpu_count;
    if found.run_exists {
        return CheckResult::failed(
            "a run with this name already exists",
            "try again, or choose another `--name`",
            "run.name",
        );
    }
    if ranks > cores {
        // A job's tasks and GPUs take precedence over the hosts file.
        let hint = match host.transport {
            Transport::Slurm => {
                "ranks compete for cores: request fewer with the job's `--gpus-per-node` or `--ntasks-per-node`, \
                 or lower `nproc` in [defaults]"
            }
            _ => "ranks compete for cores: lower `nproc`",
        };
        return CheckResult::warning(format!("{ranks} ranks on {cores} cores"), hint, key("nproc"));
    }
    CheckResult::passed(format!("{ranks} on {cores} cores"))
}

fn leftovers(found: &HostFindings) -> CheckResult {
    let orphan = found.runs.iter().find(|run| run.state == HostRunState::Orphaned);
    if let Some(run) = orphan {
        let text = format!("leftover processes of run {}: {:?}", run.run, run.pids);
        return CheckResult::warning(text, format!("kill them with `rankdeck stop {}`", run.run), "");
    }
    match found.runs.iter().find(|run| run.ranks_alive > 0) {
        Some(run) => CheckResult::warning(
            format!("run {} has {} ranks on this host", run.run, run.ranks_alive),
            format!("the runs slow each other down; stop it with `rankdeck stop {}`", run.run),
            "",
        ),
        None => CheckResult::passed("none"),
    }
}

fn limits(host: &Host, found: &HostFindings, key: &dyn Fn(&str) -> String) -> CheckResult {
    let limits = &found.limits;
    let low = |limit: Option<u64>, least: u64| limit.filter(|limit| *limit < least);
    if let Some(files) = low(limits.open_files, 1024) {
        return CheckResult::warning(
            format!("{files} open files per process"),
            "raise `nofile` in /etc/security/limits.conf, or `ulimit -n` in `prelude`",
            key("prelude"),
        );
    }
    if let Some(processes) = low(limits.processes, 512) {
        return CheckResult::warning(
            format!("{processes} processes"),
            "raise `nproc` in /etc/security/limits.conf",
            "",
        );
    }
    if host.gpus.is_some() {
        if limits.infiniband
            && let Some(locked) = low(limits.locked, 1 << 30)
        {
            return CheckResult::warning(
                format!("locked memory is limited to {}; NCCL needs more for InfiniBand", bytes(locked)),
                "set `memlock unlimited` in /etc/security/limits.conf",
                "",
            );
        }
        if found.shm.free < 64 << 20 {
            let text =
                format!("only {} free in /dev/shm, which NCCL and data loaders use", bytes(found.shm.free));
            return CheckResult::warning(text, "free space or enlarge it (`--shm-size` in a container)", "");
        }
    }
    CheckResult::passed("enough")
}

fn disk(disk: &Disk, key: &dyn Fn(&str) -> String) -> CheckResult {
    if let Some(why) = &disk.distrust {
        return CheckResult::failed(why.error.as_str(), why.hint.as_str(), key("workdir"));
    }
    if let Some(error) = &disk.error {
        return CheckResult::failed(
            format!("cannot write to {}: {error}", disk.path),
            format!("{}, or change `workdir`", write_hint(error)),
            key("workdir"),
        );
    }
    if disk.free < LEAST_DISK || disk.free_files < 100 {
        let text = format!("{} and {} inodes free at {}", bytes(disk.free), disk.free_files, disk.path);
        return CheckResult::failed(
            text,
            "free space (`rankdeck prune` removes old runs), or change `workdir`",
            key("workdir"),
        );
    }
    if disk.free < SMALL_DISK {
        let text = format!("{} free at {}", bytes(disk.free), disk.path);
        return CheckResult::warning(
            text,
            "checkpoints and logs may fill the disk: free space, or change `workdir`",
            key("workdir"),
        );
    }
    CheckResult::passed(format!("{} free", bytes(disk.free)))
}

fn session(found: &HostFindings) -> CheckResult {
    if let Some(error) = &found.session.error {
        return CheckResult::failed(
            format!("cannot supervise ranks: {error}"),
            "rankdeck requires Linux 5.3 or newer with /proc mounted",
            "",
        );
    }
    if found.session.killed_at_logout {
        return CheckResult::warning(
            "processes are killed at logout (KillUserProcesses)",
            format!("run `loginctl enable-linger {}` on that host", found.user),
            "",
        );
    }
    CheckResult::passed("survives")
}

fn code(subject: &PreflightInput<'_>, found: &HostFindings) -> CheckResult {
    let short = |hash: &str| hash.chars().take(16).collect::<String>();
    match (subject.code, &found.code.script) {
        (Some(PushedCode { left_out: Some(left), .. }), _) => {
            CheckResult::warning(left.error.as_str(), left.hint.as_str(), "launch.code")
        }
        (Some(code), _) if found.code.pushed => CheckResult::passed(short(&code.hash)),
        (Some(code), _) => CheckResult::passed(format!("{} (will be uploaded)", short(&code.hash))),
        (None, Some(script)) => CheckResult::passed(script.clone()),
        (None, None) => CheckResult::passed("none"),
    }
}

/// The other clock is ahead by at least the time between our receipt and its answer, and behind by at least
/// the time between our query and its receipt; the network delay only widens the range.
fn clock(examined: &HostAnswer) -> CheckResult {
    let ahead = examined.findings.answered - examined.answered;
    let behind = examined.asked - examined.findings.arrived;
    if examined.asked == 0.0 || examined.answered == 0.0 {
        return CheckResult::skipped();
    }
    let off = ahead.max(behind);
    if off > 1.0 {
        let word = if ahead > behind { "ahead of" } else { "behind" };
        return CheckResult::warning(
            format!("{off:.1} s {word} this machine"),
            "synchronize the clocks (chrony, systemd-timesyncd); otherwise event times of different hosts cannot be compared",
            "",
        );
    }
    CheckResult::passed("within 1 s")
}

fn gpus(host: &Host, found: &HostFindings, key: &dyn Fn(&str) -> String) -> CheckResult {
    let there = found.probe.gpu_count;
    let Some(asked) = &host.gpus else {
        return match there {
            0 => CheckResult::passed("none requested, none found"),
            _ => CheckResult::warning(
                format!("{there} found, none requested"),
                "set `gpus = \"all\"` for this host, or `gpus = []` with `nproc` to use CPUs",
                key("gpus"),
            ),
        };
    };
    if let Some(HintedError { error, hint }) = found.gpus_unknown.as_ref().filter(|_| there == 0) {
        let cell: fn(String, String, String) -> CheckResult =
            if asked.is_auto() { CheckResult::warning } else { CheckResult::failed };
        return cell(error.clone(), hint.clone(), key("gpus"));
    }
    if there == 0 && asked.is_auto() {
        return CheckResult::passed("none found");
    }
    let why = || match (&found.visible_gpus, &found.driver) {
        (Some(list), _) => format!("CUDA_VISIBLE_DEVICES is `{list}`"),
        (None, Some(version)) => format!("driver {version}"),
        (None, None) => "no NVIDIA driver".to_owned(),
    };
    let requested = requested_gpus(host, found);
    let listed = "CUDA_VISIBLE_DEVICES comes from the login environment or from Slurm: fix it, or change `gpus`, which counts the visible GPUs";
    let lost = "a GPU may have fallen off the bus: look for `Xid 79` in `dmesg` on that host and reboot, or change `gpus`";
    let no_driver = "install the NVIDIA driver on that host, or remove `gpus` and set `nproc` to use CPUs";
    let none_works = "check `nvidia-smi` on that host, or remove `gpus` and set `nproc` to use CPUs";
    let repair = match (&found.visible_gpus, &found.driver) {
        (Some(_), _) => listed,
        (None, None) => no_driver,
        (None, Some(_)) if there == 0 => none_works,
        (None, Some(_)) => lost,
    };
    if there == 0 && matches!(asked, GpuSelection::Word(_)) {
        return CheckResult::failed(
            format!("`gpus = \"all\"`, but no GPU found: {}", why()),
            repair,
            key("gpus"),
        );
    }
    if let Some(missing) = requested.iter().find(|index| **index >= there) {
        return CheckResult::failed(
            format!("GPU {missing} requested, {there} found: {}", why()),
            repair,
            key("gpus"),
        );
    }
    let used = |gpu: &&GpuFinding| requested.contains(&gpu.index);
    if let Some(twice) = named_twice(found, &requested) {
        return CheckResult::failed(
            format!("CUDA_VISIBLE_DEVICES names {} ({}) twice", twice.name, twice.uuid),
            "list each GPU once; to share GPUs, set `nproc`",
            key("gpus"),
        );
    }
    if let Some(cell) = lost_gpus(found, &requested, key) {
        return cell;
    }
    let check = match &found.gpu_check {
        Some(Err(HintedError { error, hint })) => Some(CheckResult::failed(
            format!("the trainer cannot use the GPUs: {error}"),
            hint.clone(),
            key("libtorch"),
        )),
        _ => None,
    };
    // One problem often causes another, so all of them are listed.
    let selected = || found.gpus.iter().filter(used);
    let ill = selected().find_map(|gpu| ill(gpu, key));
    let taken = selected().find_map(|gpu| taken(gpu, key));
    if let Some(cell) = check.into_iter().chain(ill).chain(taken).reduce(both) {
        return cell;
    }
    if let Some(ranks) = host.nproc.filter(|ranks| !requested.is_empty() && *ranks as usize > requested.len())
    {
        return CheckResult::warning(
            format!("{ranks} ranks share {}", plural(requested.len(), "GPU")),
            "ranks sharing a GPU slow each other down: omit `nproc` for one rank per GPU",
            key("nproc"),
        );
    }
    CheckResult::passed(format!("{there} found"))
}

/// Reports requested GPUs that have fallen off the bus. Any other problem on the host follows from that.
fn lost_gpus(found: &HostFindings, requested: &[u32], key: &dyn Fn(&str) -> String) -> Option<CheckResult> {
    let lost = found.gpus.iter().filter(|gpu| gpu.lost && requested.contains(&gpu.index));
    let lost: Vec<String> = lost.map(|gpu| gpu.index.to_string()).collect();
    let text = match lost.as_slice() {
        [] => return None,
        [one] => format!("GPU {one} has fallen off the bus"),
        many => {
            let many = many.join(", ");
            format!("GPUs {many} have fallen off the bus")
        }
    };
    let hint = "reboot the host, reset the GPU with `nvidia-smi --gpu-reset`, or list the other GPUs in `CUDA_VISIBLE_DEVICES`";
    Some(CheckResult::failed(text, hint, key("gpus")))
}

/// Joins two results, the worse one first.
fn both(first: CheckResult, second: CheckResult) -> CheckResult {
    let (first, second) = if second.status > first.status { (second, first) } else { (first, second) };
    let text = format!("{}; {}", first.text, second.text);
    let hint = format!("{}; {}", first.hint, second.hint);
    CheckResult { text, hint, ..first }
}

/// Reports a GPU with memory errors.
fn ill(gpu: &GpuFinding, key: &dyn Fn(&str) -> String) -> Option<CheckResult> {
    let GpuHealth { uncorrected, reset_pending, remap_failed } = gpu.health;
    let reset = "run `nvidia-smi --gpu-reset` or reboot to remap the memory, or choose other `gpus`";
    if remap_failed {
        let text = format!("GPU {}: bad memory, no spare rows left", gpu.index);
        return Some(CheckResult::failed(text, "replace the GPU, or choose other `gpus`", key("gpus")));
    }
    let pending = reset_pending.then(|| "bad memory, remapped at the next reset".to_owned());
    let errors = || format!("{} uncorrected", plural(uncorrected as usize, "memory error"));
    let findings: Vec<String> = pending.into_iter().chain((uncorrected > 0).then(errors)).collect();
    let text = format!("GPU {}: {}", gpu.index, findings.join(", "));
    (!findings.is_empty()).then(|| CheckResult::warning(text, reset, key("gpus")))
}

/// Reports a GPU that is in use or has hardly any free memory.
fn taken(gpu: &GpuFinding, key: &dyn Fn(&str) -> String) -> Option<CheckResult> {
    let free = gpu.memory_total.saturating_sub(gpu.memory_used);
    let full = gpu.memory_total > 0 && free < gpu.memory_total / 10;
    let Some(first) = gpu.processes.first() else {
        let text = format!(
            "GPU {}: {} of {} in use by hidden processes",
            gpu.index,
            bytes(gpu.memory_used),
            bytes(gpu.memory_total)
        );
        let hint = "another container or user uses it: choose other `gpus`";
        return full.then(|| CheckResult::failed(text, hint, key("gpus")));
    };
    let text = format!("GPU {} is in use: {} uses {}", gpu.index, who(first), bytes(first.bytes));
    let hint = match &first.run {
        Some(run) => format!("stop it with `rankdeck stop {run}`, or choose other `gpus`"),
        None => "kill it, or choose other `gpus`".to_owned(),
    };
    Some(match full {
        true => CheckResult::failed(text, hint, key("gpus")),
        false => CheckResult::warning(text, hint, key("gpus")),
    })
}

/// Describes a process on a GPU.
fn who(process: &GpuProcess) -> String {
    match &process.run {
        Some(run) => format!("process {} of run {run}", process.pid),
        None if process.command.is_empty() => format!("process {}", process.pid),
        None => format!("process {} ({})", process.pid, process.command),
    }
}

/// Returns a requested GPU that is listed twice.
fn named_twice<'a>(found: &'a HostFindings, requested: &[u32]) -> Option<&'a GpuFinding> {
    let named = || found.gpus.iter().filter(|gpu| requested.contains(&gpu.index) && !gpu.uuid.is_empty());
    named().find(|gpu| named().any(|other| other.index < gpu.index && other.uuid == gpu.uuid))
}

/// Returns the GPUs that the plan would use: with fewer ranks than GPUs, the last ones are unused.
pub(crate) fn requested_gpus(host: &Host, found: &HostFindings) -> Vec<u32> {
    let mut requested = match &host.gpus {
        None => Vec::new(),
        Some(GpuSelection::Word(_)) => (0..found.probe.gpu_count).collect(),
        Some(GpuSelection::Count(count)) => (0..*count).collect(),
        Some(GpuSelection::List(list)) => list.clone(),
    };
    requested.truncate(host.nproc.map_or(usize::MAX, |ranks| ranks as usize));
    requested
}

fn interface(
    subject: &PreflightInput<'_>,
    node: usize,
    host: &Host,
    found: &HostFindings,
    key: &dyn Fn(&str) -> String,
) -> CheckResult {
    let listed = || {
        let names: Vec<&str> = found.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        format!("available: {}", names.join(", "))
    };
    let several = subject.draft.hosts.len() > 1;
    let route = found.route.as_ref().and_then(|route| route.interface.as_deref());
    match (&host.interface, route) {
        (Some(name), _) if !found.interfaces.iter().any(|interface| interface.name == *name) => {
            CheckResult::failed(
                format!("interface `{name}` not found or down; {}", listed()),
                "change `interface`",
                key("interface"),
            )
        }
        (Some(name), Some(route)) if name == "lo" && route != "lo" && several => CheckResult::failed(
            "`lo` does not reach the other hosts",
            format!("set `interface = \"{route}\"`, or remove it"),
            key("interface"),
        ),
        (Some(name), Some(route)) if name != route && several => {
            let text = format!("`{name}` is set, but `{route}` is the route to rank 0's host");
            CheckResult::warning(
                text,
                format!("if not intended, set `interface = \"{route}\"`"),
                key("interface"),
            )
        }
        (Some(name), _) => CheckResult::passed(name.clone()),
        (None, Some(name)) if is_virtual(name) => CheckResult::warning(
            format!("`{name}`, the route to rank 0's host, looks like a container bridge"),
            "set `interface` to the interface that reaches the other hosts",
            key("interface"),
        ),
        (None, Some(name)) => CheckResult::passed(format!("{name} (route)")),
        // A broken route is reported under `names`.
        (None, None) if several => CheckResult { hint: format!("host {node}"), ..CheckResult::skipped() },
        (None, None) => CheckResult::passed("not needed"),
    }
}

pub(crate) fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|start| name.starts_with(start))
}

fn port(
    subject: &PreflightInput<'_>,
    node: usize,
    found: &HostFindings,
    key: &dyn Fn(&str) -> String,
) -> CheckResult {
    let launch = &subject.draft.experiment.launch;
    if let Some(error) = found.listened.as_ref().and_then(|listened| listened.error.as_ref()) {
        let fixed = node == 0 && launch.master_port != 0;
        return match fixed {
            true => CheckResult::failed(
                format!("port {} for rank 0's store is unavailable: {error}", launch.master_port),
                format!(
                    "find the process with `ss -ltnp 'sport = :{}'`, or set `master_port = 0`",
                    launch.master_port
                ),
                "launch.master_port",
            ),
            false => CheckResult::warning(
                format!("no port available for the connection test: {error}"),
                "no action needed unless it repeats; connections to this host were not tested",
                "",
            ),
        };
    }
    let name = |peer: u32| subject.draft.hosts.get(peer as usize).map_or("?", |host| host.name.as_str());
    let mut lost: Vec<_> = found.reached.iter().filter(|to| to.error.is_some()).collect();
    lost.sort_by_key(|to| to.node);
    match lost.first() {
        None if found.reached.is_empty() && found.listened.is_none() => CheckResult::passed("not needed"),
        None => {
            let port = found.listened.as_ref().map_or(0, |listened| listened.port);
            let reached: BTreeSet<u32> = found.reached.iter().map(|to| to.node).collect();
            match launch.master_port {
                0 => CheckResult::passed(plural(reached.len(), "host") + " reached"),
                _ if node == 0 => CheckResult::passed(format!("{port} is free")),
                _ => CheckResult::passed(plural(reached.len(), "host") + " reached"),
            }
        }
        Some(to) => {
            let why = to.error.clone().unwrap_or_default();
            let others = match lost.iter().filter(|other| other.node != to.node).count() {
                0 => String::new(),
                count => format!(", and {} more", plural(count, "host")),
            };
            // With a fixed port, rank 0's host is called at another one, too.
            let is_store = launch.master_port == 0
                || to.address.parse::<SocketAddr>().map_or(true, |at| at.port() == launch.master_port);
            let text = format!("cannot connect to {} at {}: {why}{others}", name(to.node), to.address);
            let repair = connect_hint(&why, name(to.node));
            match to.node {
                0 if is_store => CheckResult::failed(
                    text,
                    format!("rank 0's store must be reachable from every host: {repair}"),
                    "launch.master_addr",
                ),
                // A program of the user may not need this connection.
                peer if subject.draft.experiment.launch.command.is_empty() => {
                    CheckResult::failed(text, repair, format!("host.{peer}.address"))
                }
                peer => CheckResult::warning(
                    text,
                    repair,
                    if peer == node as u32 { key("address") } else { format!("host.{peer}.address") },
                ),
            }
        }
    }
}

/// Returns what helps when a host cannot be connected to, by the words of its caller. One cause, one hint.
fn connect_hint(why: &str, peer: &str) -> String {
    let network = "or choose another network with `interface` and `address`";
    let is = |words: &str| why.contains(words);
    if is("cannot resolve") {
        format!("set `address` of {peer} to an address that every host can resolve")
    } else if is("another program") {
        format!("set `address` of {peer} to its own address: another machine or container answers there")
    } else if is("refused") {
        format!("open all ports between the hosts in the firewall that rejects this one, {network}")
    } else if is("No route to host") || is("unreachable") {
        format!(
            "check the route with `ip route get` and the firewall, which may be the one that reports this error, {network}"
        )
    } else {
        format!("open all ports between the hosts (Gloo and NCCL use arbitrary ports), {network}")
    }
}

fn names(subject: &PreflightInput<'_>, node: usize, host: &Host, found: &HostFindings) -> CheckResult {
    let Some(route) = &found.route else { return CheckResult::passed("not needed") };
    let launch = &subject.draft.experiment.launch;
    let (key, name) = match (&launch.master_addr, subject.draft.hosts.first()) {
        (Some(name), _) => ("launch.master_addr", name.clone()),
        (None, Some(first)) => ("host.0.address", first.peer_address().to_owned()),
        (None, None) => return CheckResult::skipped(),
    };
    if let Some(error) = route.error.as_ref().filter(|_| !route.addresses.is_empty()) {
        return CheckResult::failed(
            format!("cannot reach `{name}`, the address of rank 0's store: {error}"),
            "connect the hosts to one network, or set `launch.master_addr` to an address in a network of this host",
            key,
        );
    }
    if let Some(error) = &route.error {
        return CheckResult::failed(
            format!("cannot resolve `{name}`, the address of rank 0's store: {error}"),
            "set `launch.master_addr` to an address that every host can reach",
            key,
        );
    }
    let loopback = !route.addresses.is_empty() && route.addresses.iter().all(|ip| ip.is_loopback());
    // On another machine, loopback would be that machine; on one machine it is right.
    let elsewhere = node != 0 && found.reached.iter().any(|to| to.node == 0 && to.error.is_some());
    if loopback && elsewhere {
        return CheckResult::failed(
            format!("`{name}` resolves to loopback on this host"),
            "remove it from /etc/hosts on that host, or set `launch.master_addr` to rank 0's address",
            key,
        );
    }
    let own = &found.names.own;
    if host.interface.is_none() && route.interface.is_none() && own.iter().all(|ip| ip.is_loopback()) {
        return CheckResult::warning(
            "the host name resolves to a loopback address, which Gloo would listen on",
            "set `interface`",
            format!("host.{node}.interface"),
        );
    }
    let shown: Vec<String> = route.addresses.iter().take(2).map(ToString::to_string).collect();
    CheckResult::passed(format!("rank 0 at {}", shown.join(" ")))
}

fn program(
    subject: &PreflightInput<'_>,
    host: &Host,
    found: &HostFindings,
    key: &dyn Fn(&str) -> String,
) -> CheckResult {
    if let Some(error) = &found.setup {
        let which = host.setup.deciding_key();
        return CheckResult::failed(format!("setup failed: {error}"), setup_hint(which, error), key(which));
    }
    let Some(program) = &found.program else {
        return match (&found.probe.trainer, subject.can_upload) {
            (_, true) => CheckResult::passed("trainer (uploaded)"),
            (Some(_), false) => CheckResult::passed("trainer"),
            (None, false) => CheckResult::failed(
                "rankdeck-trainer not found on the host, and not next to rankdeck for upload",
                "build it with `cargo build --release --workspace`, or set `launch.command`",
                "launch.command",
            ),
        };
    };
    if let Some(error) = &program.error {
        return CheckResult::failed(error.error.clone(), error.hint.clone(), "launch.command");
    }
    match (&program.script, subject.code) {
        (_, Some(code)) if !code.has_script => CheckResult::failed(
            "the script is not in the uploaded code",
            "the path in `launch.command` is relative to `launch.code`",
            "launch.code",
        ),
        (Some(script), None) if !program.script_exists => {
            let folder = Path::new(script).parent().unwrap_or(Path::new(".")).display().to_string();
            let hint = match host.transport {
                Transport::Local => format!("check the path with `ls {}`", quote::word(&folder)),
                _ => "copy it to the host, change `workdir`, or upload it with `launch.code = \"DIR\"`"
                    .to_owned(),
            };
            CheckResult::failed(format!("script not found: {script}"), hint, "launch.command")
        }
        _ if launcher(&subject.draft.experiment.launch.command).is_some()
            && !(subject.draft.experiment.launch.keep_launcher && subject.draft.world_size() == Some(1)) =>
        {
            let name = launcher(&subject.draft.experiment.launch.command).unwrap_or_default();
            CheckResult::warning(
                format!("`{name}` is a launcher: every rank would start its own process group"),
                "name the program itself, as in `python train.py`, and the ranks per host with `--nproc` or `nproc`",
                "launch.command",
            )
        }
        _ if unexpanded(&subject.draft.experiment.launch.command).is_some() => {
            let command = &subject.draft.experiment.launch.command;
            let word = unexpanded(command).unwrap_or_default();
            let command = hidden::words(command.iter().map(String::as_str));
            let line: Vec<&str> = ["exec"].into_iter().chain(command.iter().map(String::as_str)).collect();
            CheckResult::warning(
                format!("`{word}` is passed literally (no shell expansion)"),
                format!("write the value, or run the command in a shell: `{}`", in_a_shell(&line)),
                "launch.command",
            )
        }
        _ if !unused(&subject.draft.experiment).is_empty() => {
            let tables = unused(&subject.draft.experiment);
            CheckResult::warning(
                format!("your program does not use {}", tables.join(", ")),
                "remove these tables, or remove `launch.command` to use the built-in trainer",
                tables.first().map_or("", |name| name.trim_matches(['[', ']'])),
            )
        }
        _ if lost_seed(subject.draft).is_some() => CheckResult::warning(
            format!("the program does not use `run.seed = {}`", subject.draft.experiment.run.seed),
            lost_seed(subject.draft).unwrap_or_default(),
            "run.seed",
        ),
        _ if is_target_lost(&subject.draft.experiment) => CheckResult::warning(
            "`run.total_steps` does not reach your program: the run does not end there",
            "write `{run.total_steps}` in `launch.command`, or stop the run with `--until steps=N`",
            "run.total_steps",
        ),
        _ => CheckResult::passed(match &program.python {
            Some(python) => format!("{} {}", python.version, python.prefix),
            None if program.later.is_some() => program.later.clone().unwrap_or_default(),
            None => program.path.clone().unwrap_or_default(),
        }),
    }
}

/// Returns the line to write if the program does not use the seed of its file.
fn lost_seed(draft: &PlanDraft) -> Option<String> {
    draft.program.as_ref().filter(|_| draft.experiment.run.seed != 0)?;
    draft.contract().demand(&[Promise::Seed]).err().map(|lost| lost.hint)
}

/// Whether the program does not get the target steps of its file. The built-in trainer ends there.
fn is_target_lost(experiment: &Experiment) -> bool {
    let in_args = experiment.args.values().flat_map(|value| template::names_in(value));
    let mut names = template::names(&experiment.launch).chain(in_args);
    let is_own = !experiment.launch.command.is_empty();
    is_own && experiment.run.total_steps > 0 && !names.any(|name| name == "run.total_steps")
}

/// Returns the hint for a failed setup, by the key that decides it and the words of its shell.
fn setup_hint(key: &str, error: &str) -> &'static str {
    match key {
        _ if error.starts_with("no response") => {
            "shorten the setup, and make sure that it reads no input: checks and launches wait for it"
        }
        "container" if error.starts_with("cannot run") => {
            "install the container tool on that host, or set `container` to one that is installed"
        }
        "prelude" => {
            "every command of `prelude` must succeed (append `|| true` to ignore a failure); `venv`, `conda` and `modules` need no prelude"
        }
        "venv" => {
            "create it with `python3 -m venv DIR` on that host, or fix `venv`; relative paths start at `workdir`"
        }
        "conda" => "list the environments with `conda env list` on that host, or use `venv` or `prelude`",
        "uv" => {
            "install uv on that host (`pip install uv`), or set `venv` to an existing virtual environment"
        }
        "modules" => {
            "list the modules with `module avail` in a login shell; define the command in `prelude` if it is missing"
        }
        "container" => "run the same command in a shell on that host: the tool and the image must exist",
        _ => "try the same in a shell on that host",
    }
}

/// Returns the launcher that a command starts.
fn launcher(command: &[String]) -> Option<&str> {
    let at = CommandParts::of(command)?.program;
    let first = command.get(at)?;
    if LAUNCHERS.contains(&file_name(first)) {
        return Some(first);
    }
    let module =
        command.iter().skip(at).position(|word| word == "-m").and_then(|flag| command.get(at + flag + 1));
    let module = module.filter(|module| is_python(first) && LAUNCHER_MODULES.contains(&module.as_str()))?;
    Some(module)
}

/// Returns an argument that a shell would expand, such as `~/data` or `$HOME/data`.
fn unexpanded(command: &[String]) -> Option<&str> {
    let is_text = |at: usize| ["-c", "-e", "-lc", "-ic", "-ec"].contains(&command[at - 1].as_str());
    let is_own = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let found = (1..command.len()).find(|at| {
        let word = command[*at].as_str();
        let home = word == "~" || word.starts_with("~/") || word.contains("=~/");
        !is_text(*at) && (home || variable_in(word).is_some_and(is_own))
    })?;
    // After `sh -c TEXT` come the parameters of that text.
    let is_shell = command.first().is_some_and(|first| first.ends_with("sh"));
    (!(is_shell && command.iter().any(|word| word.ends_with('c') && word.starts_with('-'))))
        .then_some(command[found].as_str())
}

/// Returns the tables that a program of the user does not read.
fn unused(experiment: &Experiment) -> Vec<&'static str> {
    let Experiment { env, policy, collect, learn, eval, checkpoint, .. } = experiment;
    let rows = [
        ("[env]", env.is_some()),
        ("[learn]", learn.is_some()),
        ("[policy]", *policy != Default::default()),
        ("[collect]", *collect != Default::default()),
        ("[eval]", *eval != Default::default()),
        ("[checkpoint]", *checkpoint != Default::default()),
    ];
    rows.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}

/// Reports a broken environment of a Python worker.
fn environment(subject: &PreflightInput<'_>, found: &HostFindings) -> Option<CheckResult> {
    let (env, learn) = (subject.draft.experiment.env.as_ref()?, subject.draft.experiment.learn.as_ref()?);
    let seen = found.environment.as_ref()?;
    if let Some(error) = &seen.no_python {
        return Some(CheckResult::failed(
            format!("`env.python`: {error}"),
            "create an interpreter for RL environments with `rankdeck-trainer --setup-env DIR` on that host",
            "env.python",
        ));
    }
    if !seen.missing.is_empty() {
        let pip: Vec<String> = seen.missing.iter().map(|name| name.replace('_', "-")).collect();
        return Some(CheckResult::failed(
            format!(
                "{} cannot import {}, which `{}` needs",
                seen.executable,
                seen.missing.join(", "),
                env.id
            ),
            format!(
                "run `{} -m pip install {}` on that host, or `rankdeck-trainer --setup-env DIR` and set `env.python`",
                seen.executable,
                pip.join(" ")
            ),
            "env.python",
        ));
    }
    if let Some(error) = &seen.error {
        return Some(CheckResult::failed(
            format!("cannot create RL environment `{}`: {error}", env.id),
            "check the id with `python -c \"import gymnasium; gymnasium.pprint_registry()\"`, and install its package",
            "env.id",
        ));
    }
    match (learn.actions(), seen.discrete?) {
        (ActionKind::Continuous, true) => Some(CheckResult::failed(
            format!("`{}` needs continuous actions; `{}` has discrete actions", learn.name(), env.id),
            "set `learn.algorithm = \"dqn\"`, or another `env.id`",
            "learn.algorithm",
        )),
        (ActionKind::Discrete, false) => Some(CheckResult::failed(
            format!("`{}` needs discrete actions; `{}` has continuous actions", learn.name(), env.id),
            "set `learn.algorithm = \"sac\"`, or choose another `env.id`",
            "learn.algorithm",
        )),
        _ => None,
    }
}

fn versions(subject: &PreflightInput<'_>, found: &HostFindings, key: &dyn Fn(&str) -> String) -> CheckResult {
    // The hook provides rankdeck.py for every rank.
    let is_brought = |name: &str| name == "rankdeck" && subject.draft.experiment.watch.python_hook;
    let python = found.program.as_ref().and_then(|program| program.python.as_ref());
    let missing: Vec<&str> = python
        .map(|python| python.missing.iter().map(String::as_str).filter(|name| !is_brought(name)).collect())
        .unwrap_or_default();
    let beside = python.into_iter().flat_map(|python| &python.beside);
    let beside: Vec<&String> = beside.chain(subject.code.iter().flat_map(|code| &code.beside)).collect();
    let is_beside = |names: &[&str]| names.iter().all(|name| beside.iter().any(|known| known == name));
    match (&found.libtorch, &found.program) {
        (Some(Err(failure)), _) => {
            CheckResult::failed(failure.error.clone(), failure.hint.clone(), key("libtorch"))
        }
        (Some(Ok(_)), _) => match &found.libtorch_version {
            Some(version) if !version.starts_with(FITTING) => CheckResult::failed(
                format!("libtorch {version} found; the trainer needs {FITTING}x"),
                format!("set `libtorch` to {FITTING}x, or install it with `rankdeck push --libtorch DIR`"),
                key("libtorch"),
            ),
            Some(version) => CheckResult::passed(format!("libtorch {version}")),
            None => CheckResult::passed("libtorch"),
        },
        (None, Some(_)) if !missing.is_empty() => CheckResult::warning(
            format!(
                "{} cannot import {}, which the script uses",
                python.map_or("python", |python| python.executable.as_str()),
                missing.join(", ")
            ),
            match (missing.as_slice(), python.and_then(|python| python.venv.as_ref())) {
                (names, _) if is_beside(names) => {
                    "Python searches the script's own folder, not the working directory: set `env = { PYTHONPATH = \".\" }` in `[launch]`, or pass `--env PYTHONPATH=.`".to_owned()
                }
                (["rankdeck"], _) => "write it next to the script: `rankdeck client > rankdeck.py`".to_owned(),
                (_, Some(venv)) => {
                    let folder = quote::word(venv);
                    format!("pass `--venv {folder}`, which has it, or set `venv` in the hosts file")
                }
                _ => "install it on that host, or select a Python environment with `venv`, `conda` or `uv`".to_owned(),
            },
            key("venv"),
        ),
        (None, Some(program)) => match program.python.as_ref().and_then(|python| python.torch.as_ref()) {
            Some(torch) => CheckResult::passed(format!("torch {torch}")),
            None => CheckResult::passed("no torch"),
        },
        (None, None) => CheckResult::passed("not needed"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
