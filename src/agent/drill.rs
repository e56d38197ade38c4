//! `agent drill`: injects a fault into one rank of a run, or into its agent, so that `rankdeck drill` can measure detection
//! and recovery.
//!
//! Owner: a one-shot command on the host of the rank.
//!
//! - DRILL-1: only a run that `rankdeck drill` has launched is broken. Its agent's manifest and the environment of the
//!   rank's own process both state that. No file and no variable of the user sets them.
//! - DRILL-2: a rank that is frozen or slowed down is running again when the order ends, however it ends: in time, by a
//!   signal, or because the console has gone.

use crate::entries;
use crate::manifest::{Manifest, ManifestRank};
use crate::paths::RunPaths;
use crate::proc::{self, ProcessKey};
use crate::process_query;
use crate::program::{self, Roles};
use crate::supervise::groups;
use rankdeck_proto::drill::{DrillFault, DrillOrder, DrillReply, RAISE, STRUCK};
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::DRILL_VARIABLE;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a slow rank is suspended for as long as it runs.
const SLOWDOWN: u32 = 4;
/// Longest time that a slow rank runs in one go, ms.
const LONGEST_SLICE_MS: u64 = 100;
/// Between two looks whether the console is still there.
const LOOK: Duration = Duration::from_millis(400);
/// Between two looks for the answer of a rank.
const POLL: Duration = Duration::from_millis(50);

/// Carries out an order; prints [`STRUCK`] at the moment of the fault.
pub(crate) fn strike(workdir: &Path, order: &DrillOrder) -> Result<DrillReply, HintedError> {
    strike_and(workdir, order, &mut || {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{STRUCK}").and_then(|()| output.flush()).is_ok()
    })
}

/// `struck`: the fault has begun, or lasts; `false` once the console has gone.
fn strike_and(
    workdir: &Path,
    order: &DrillOrder,
    struck: &mut dyn FnMut() -> bool,
) -> Result<DrillReply, HintedError> {
    let (paths, manifest, rank) = target(workdir, order)?;
    let root = ProcessKey { pid: rank.pid, start: rank.start };
    process_query::check(root)?;
    if let Some(refusal) = refusal(&manifest, &proc::environ(root.pid).unwrap_or_default(), order) {
        return Err(refusal);
    }
    let within = Duration::from_secs(order.seconds);
    let struck_processes = match order.fault {
        DrillFault::Agent => {
            let agent = manifest.agent().map(|stat| ProcessKey { pid: stat.pid, start: stat.start });
            vec![agent.ok_or_else(|| HintedError::new("the agent has ended", ""))?]
        }
        DrillFault::Exception => vec![root],
        DrillFault::Freeze | DrillFault::Kill | DrillFault::Slow => mains(root)?,
    };
    let send = |signal: i32| {
        let sent =
            struck_processes.iter().filter(|process| groups::signal(process.pid, process.start, signal));
        match sent.count() {
            0 => Err(HintedError::new(format!("rank {} has ended", order.rank), "")),
            _ => Ok(()),
        }
    };
    match order.fault {
        DrillFault::Freeze => {
            let ends = BlockedSignals::block();
            let _continued = Continued(&struck_processes);
            send(libc::SIGSTOP)?;
            hold(&struck_processes, within, &ends, struck);
        }
        DrillFault::Kill | DrillFault::Agent => send(libc::SIGKILL)?,
        DrillFault::Slow => {
            let slice = Duration::from_millis(order.slice_ms.clamp(1, LONGEST_SLICE_MS));
            slow_down(&struck_processes, (slice, within), struck);
        }
        DrillFault::Exception => raise(&paths, &manifest, order, within, struck)?,
    }
    struck();
    Ok(DrillReply { pids: struck_processes.iter().map(|process| process.pid).collect() })
}

/// Finds the rank among the nodes of this machine.
fn target(workdir: &Path, order: &DrillOrder) -> Result<(RunPaths, Manifest, ManifestRank), HintedError> {
    let has_rank = |(paths, manifest): (RunPaths, Manifest)| {
        let rank = manifest.ranks.iter().find(|rank| rank.rank == order.rank.0 && !rank.ended)?.clone();
        Some((paths, manifest, rank))
    };
    let (nodes, _) = entries::nodes(workdir, Some(&order.run));
    nodes.into_iter().find_map(has_rank).ok_or_else(|| {
        HintedError::new(
            format!("rank {} of run {} has no process on this host", order.rank, order.run),
            "list the runs with `rankdeck ps`",
        )
    })
}

/// DRILL-1. Why this run is not broken.
fn refusal(manifest: &Manifest, environ: &[u8], order: &DrillOrder) -> Option<HintedError> {
    let has = |name: &str, value: &str| proc::variable(environ, name) == Some(value.as_bytes());
    let is_drill = manifest.drill && has(DRILL_VARIABLE, "1") && has("RANKDECK_RUN", &order.run.0);
    (!is_drill).then(|| {
        HintedError::new(
            format!("run {} was not launched by `rankdeck drill`", order.run),
            "`rankdeck drill` injects faults only into the runs that it launches",
        )
    })
}

/// The programs of a rank that do the work, in a container or below shells.
fn mains(root: ProcessKey) -> Result<Vec<ProcessKey>, HintedError> {
    let top = program::in_container(root).unwrap_or(root);
    let mains: Vec<ProcessKey> = Roles::read(top).mains.iter().map(|main| main.ident).collect();
    mains.iter().try_for_each(|main| process_query::check(*main))?;
    Ok(mains)
}

/// Continues processes when it is dropped.
struct Continued<'a>(&'a [ProcessKey]);

impl Drop for Continued<'_> {
    fn drop(&mut self) {
        for process in self.0 {
            groups::signal(process.pid, process.start, libc::SIGCONT);
        }
    }
}

/// DRILL-2. Until `within` is over, the processes have ended, or the console has gone.
fn slow_down(
    processes: &[ProcessKey],
    (slice, within): (Duration, Duration),
    struck: &mut dyn FnMut() -> bool,
) {
    let (begun, mut looked) = (Instant::now(), None::<Instant>);
    let signal = |signal: i32| {
        processes.iter().filter(|process| groups::signal(process.pid, process.start, signal)).count() > 0
    };
    let ends = BlockedSignals::block();
    let _continued = Continued(processes);
    while begun.elapsed() < within && signal(libc::SIGSTOP) {
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            if !struck() {
                return;
            }
        }
        let is_asked = ends.wait(slice * SLOWDOWN);
        signal(libc::SIGCONT);
        if is_asked || ends.wait(slice) {
            return;
        }
    }
}

/// DRILL-2. Waits as [`slow_down`] does; whoever resumes a process meanwhile, as a stop of the run does, is not
/// countered.
fn hold(processes: &[ProcessKey], within: Duration, ends: &BlockedSignals, struck: &mut dyn FnMut() -> bool) {
    let begun = Instant::now();
    let lives = |process: &ProcessKey| {
        proc::stat(process.pid).is_some_and(|stat| stat.start == process.start && !stat.is_gone())
    };
    while begun.elapsed() < within && processes.iter().any(lives) && struck() && !ends.wait(LOOK) {}
}

/// Signals that ask this process to end; they wait while this lives, so that what is to be undone is undone.
struct BlockedSignals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn block() -> BlockedSignals {
        // SAFETY: a signal set is plain numbers; the calls write the sets, which are live, and change the mask of this
        // thread, the only one of a one-shot command.
        unsafe {
            let (mut set, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            BlockedSignals { set, before }
        }
    }

    /// Waits for so long; `true` as soon as one of them has come, which ends this process once the order has ended.
    fn wait(&self, time: Duration) -> bool {
        let within =
            libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // SAFETY: both arguments are live for the length of the call.
        unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const within) > 0 }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Requests an exception of the hook in the rank, which removes the request when it raises.
fn raise(
    paths: &RunPaths,
    manifest: &Manifest,
    order: &DrillOrder,
    within: Duration,
    struck: &mut dyn FnMut() -> bool,
) -> Result<(), HintedError> {
    let (_, _, generation) = manifest.identity();
    let mut request = paths.page(generation, order.rank).into_os_string();
    request.push(RAISE);
    let request = PathBuf::from(request);
    let failed = |error: std::io::Error| {
        HintedError::new(
            format!("cannot write {}: {error}", request.display()),
            "check the disk with `df -h`",
        )
    };
    trust::create(&request).map_err(failed)?;
    struck();
    let begun = Instant::now();
    while request.exists() {
        if begun.elapsed() >= within {
            let _ = std::fs::remove_file(&request);
            return Err(HintedError::new(
                format!("rank {} runs no Python with rankdeck's hook", order.rank),
                "`watch.python_hook` enables the hook; `python -I` and `python -S` disable it",
            ));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use rankdeck_proto::drill::SLICE_MS;
    use rankdeck_types::ids::{NodeRank, Rank, RunId};
    use std::process::{Child, Command, Stdio};

    const RUN: &str = "drill-t-20260101-120000";

    /// A rank of a run, with or without the mark of a drill in manifest and environment.
    struct Target {
        folder: tempfile::TempDir,
        child: Child,
    }

    impl Target {
        fn new(manifest_says: bool, process_says: bool) -> Target {
            let folder = tempfile::tempdir().unwrap();
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null()).env("RANKDECK_RUN", RUN).env_remove(DRILL_VARIABLE);
            if process_says {
                command.env(DRILL_VARIABLE, "1");
            }
            let child = command.spawn().unwrap();
            let begun = Instant::now();
            let has_begun = || {
                let environ = proc::environ(child.id()).unwrap_or_default();
                proc::arguments(child.id()).first().is_some_and(|word| word == "sleep")
                    && proc::variable(&environ, "RANKDECK_RUN").is_some()
            };
            while !has_begun() {
                assert!(begun.elapsed() < Duration::from_secs(30), "it does not start");
                std::thread::yield_now();
            }
            let own = proc::stat(std::process::id()).unwrap();
            let rank = ManifestRank {
                rank: 1,
                pid: child.id(),
                start: proc::stat(child.id()).unwrap().start,
                ended: false,
            };
            let manifest = Manifest {
                run: RUN.into(),
                hostname: proc::hostname(),
                boot_id: proc::boot_id(),
                agent_pid: own.pid,
                agent_start: own.start,
                ranks: vec![rank],
                drill: manifest_says,
                ..Manifest::default()
            };
            let paths = RunPaths { run_dir: folder.path().join("runs").join(RUN), node: NodeRank(0) };
            std::fs::create_dir_all(paths.node_dir().join("gen0")).unwrap();
            manifest::write(&paths, &manifest.bytes()).unwrap();
            Target { folder, child }
        }

        fn strike(&self, fault: DrillFault, rank: u32, reads: usize) -> Result<DrillReply, HintedError> {
            let order = DrillOrder {
                run: RunId(RUN.into()),
                rank: Rank(rank),
                fault,
                seconds: 0,
                slice_ms: SLICE_MS,
            };
            let lasts = matches!(fault, DrillFault::Slow | DrillFault::Freeze);
            let order = DrillOrder { seconds: if lasts { 30 } else { 0 }, ..order };
            let mut left = reads;
            strike_and(self.folder.path(), &order, &mut || {
                // The last call comes when the order has ended.
                if fault == DrillFault::Freeze && left > 0 {
                    self.wait_for("suspended", 'T');
                }
                left = left.saturating_sub(1);
                left > 0
            })
        }

        fn state(&self) -> Option<char> {
            proc::stat(self.child.id()).map(|stat| stat.state)
        }

        fn wait_for(&self, what: &str, state: char) {
            let begun = Instant::now();
            while self.state() != Some(state) {
                assert!(begun.elapsed() < Duration::from_secs(30), "it is not {what}");
                std::thread::yield_now();
            }
        }

        fn is_left_alone(&self) -> bool {
            matches!(self.state(), Some('R' | 'S'))
        }
    }

    impl Drop for Target {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn drill_1_ordinary_run_is_left_alone() {
        for (manifest_says, process_says) in [(false, false), (false, true), (true, false)] {
            let target = Target::new(manifest_says, process_says);
            for fault in [DrillFault::Freeze, DrillFault::Kill, DrillFault::Slow, DrillFault::Exception] {
                assert!(target.strike(fault, 1, 2).is_err(), "{manifest_says} {process_says} {fault:?}");
            }
            // The agent of this manifest is the test itself.
            assert!(target.strike(DrillFault::Agent, 1, 2).is_err());
            assert!(target.is_left_alone());
        }
        let target = Target::new(true, true);
        assert!(target.strike(DrillFault::Kill, 0, 2).is_err(), "no such rank");
        assert!(target.is_left_alone());
    }

    #[test]
    fn rank_of_a_drill_is_suspended_and_killed() {
        let target = Target::new(true, true);
        let pids = vec![target.child.id()];
        assert_eq!(target.strike(DrillFault::Freeze, 1, 2), Ok(DrillReply { pids: pids.clone() }));
        assert_eq!(target.strike(DrillFault::Kill, 1, 2), Ok(DrillReply { pids }));
        target.wait_for("killed", 'Z');
    }

    #[test]
    fn drill_2_rank_runs_again_when_nobody_reads() {
        for fault in [DrillFault::Slow, DrillFault::Freeze] {
            let target = Target::new(true, true);
            target.strike(fault, 1, 2).unwrap();
            target.wait_for("running again", 'S');
        }
    }

    #[test]
    fn drill_2_rank_runs_again_after_a_signal() {
        for fault in [DrillFault::Slow, DrillFault::Freeze] {
            let target = Target::new(true, true);
            let order =
                DrillOrder { run: RunId(RUN.into()), rank: Rank(1), fault, seconds: 30, slice_ms: SLICE_MS };
            let begun = Instant::now();
            let before = BlockedSignals::block();
            strike_and(target.folder.path(), &order, &mut || {
                // SAFETY: a signal to this thread, in which it is blocked.
                unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
                true
            })
            .unwrap();
            assert!(begun.elapsed() < Duration::from_secs(20), "{fault:?}");
            target.wait_for("running again", 'S');
            while before.wait(Duration::ZERO) {}
        }
    }

    #[test]
    fn request_without_a_hook_is_taken_back() {
        let target = Target::new(true, true);
        assert!(target.strike(DrillFault::Exception, 1, 2).is_err());
        let folder = target.folder.path().join("runs").join(RUN).join("node0/gen0");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }
}
