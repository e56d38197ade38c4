//! One host's findings against what the run wants of it. Pure.

mod gpus;
mod network;
mod program;

use super::{CHECKS, Cell, HostAnswer, Subject};
use gpus::gpus;
pub(super) use gpus::wanted;
use network::{interface, names, port};
use program::{environment, program, versions};
use rankdeck_proto::examination::{Disk, Findings};
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::bytes;

/// Less free space than this cannot hold a run's records.
const LEAST_DISK: u64 = 8 << 20;
/// Less than this will not hold many checkpoints.
const SMALL_DISK: u64 = 1 << 30;
/// Seconds of start files that are worth a word: three commands of a launch wait for them, and so does every
/// mended link.
const SLOW_SHELL: f64 = 2.0;

/// All checks of one host, in the order of [`CHECKS`].
pub fn column(subject: &Subject<'_>, node: usize, answer: &Result<HostAnswer, HintedError>) -> Vec<Cell> {
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
        program(subject, host, found, &key),
        environment(subject, found).unwrap_or_else(|| versions(subject, found, &key)),
        limits(host, found, &key),
        disk(&found.disk, &key),
        session(found),
        code(subject, found),
        clock(examined),
    ]
}

fn reach(examined: &HostAnswer) -> Cell {
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

fn ranks(host: &Host, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let gpus = wanted(host, found).len() as u32;
    let ranks = host.nproc.unwrap_or(match &host.gpus {
        Some(asked) if gpus > 0 || !asked.is_auto() => gpus,
        _ => 1,
    });
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
fn clock(examined: &HostAnswer) -> Cell {
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
pub(super) mod tests;
