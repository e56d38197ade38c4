//! `--spawn N`: starts N ranks on this host, without another launcher.
//!
//! The parent only starts ranks, forwards signals, waits and reaps. Ranks are forks of it: libtorch, which
//! takes a quarter of a second to load, is loaded once for all of them, and unmodified pages are in
//! memory once.
//!
//! Invariants:
//! - SPAWN-1: no rank outlives the parent (parent-death signal) and none is left when the parent returns.
//! - SPAWN-2: the parent has one thread and touches no GPU, so that its forks may do whatever it may.
//! - Rank 0's store is bound before there are ranks: no other process can take its port.
//! - Each signal reaches each rank once: ranks are in a process group of their own, so that a
//!   terminal's Ctrl-C goes to the parent only, which passes it on.
//! - When a rank fails, the others get a moment to notice it themselves, then SIGTERM, then SIGKILL;
//!   the exit code is the worst.
//! - Where ranks continue without a lost one (`distributed.on_rank_loss = "shrink"`), they are left alone, and the exit
//!   code is 0 if one of them finishes.

use super::identity;
use crate::error::TrainerError;
use crate::support::events::warn;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::exit::CANNOT_SHRINK;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::IntoRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// After the first failure: until SIGTERM, and until SIGKILL.
const NOTICE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(10);

/// Signals that end the group, and SIGCHLD.
const STOPS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Who returns from [`run`].
#[derive(Debug)]
pub(crate) enum SpawnRole {
    /// The parent, when every rank has ended: the exit code to end with.
    Parent(u8),
    /// One of the ranks; its environment holds its number.
    Rank,
}

/// Starts `world_size` ranks and waits for them. Returns in each of them, too. `shrinks`: they continue without one that
/// is lost.
pub(crate) fn run(world_size: u32, shrinks: bool) -> Result<SpawnRole, TrainerError> {
    let unblocked = block_signals();
    let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (store, port) =
        store.and_then(|store| store.local_addr().map(|at| (store, at.port()))).map_err(|error| {
            TrainerError::failure(format!("cannot find a free port on this host: {error}"), "")
        })?;
    let secret = secret()?;
    let parent = std::process::id();
    let mut ranks = Ranks { pids: Vec::new() };
    for rank in 0..world_size {
        // SAFETY: this process has one thread (SPAWN-2), so that the child may do whatever the parent may.
        match unsafe { libc::fork() } {
            0 => {
                // Its siblings are the parent's.
                std::mem::forget(ranks);
                leave_parent(parent, &unblocked);
                environment(rank, world_size, port, parent);
                // SAFETY: as above.
                unsafe { std::env::set_var(GroupSecret::VARIABLE, secret.to_hex()) };
                if rank == 0 {
                    // SAFETY: as above.
                    unsafe { std::env::set_var("RANKDECK_STORE_FD", store.into_raw_fd().to_string()) };
                }
                return Ok(SpawnRole::Rank);
            }
            pid if pid > 0 => {
                // By both, so that neither has to wait for the other.
                // SAFETY: setpgid of a child of this process, which has not been reaped.
                unsafe { libc::setpgid(pid, pid) };
                ranks.pids.push(Some(pid));
            }
            _ => {
                let error = std::io::Error::last_os_error();
                return Err(TrainerError::failure(format!("cannot start rank {rank}: {error}"), ""));
            }
        }
    }
    // Rank 0's alone: when it ends, so does the store.
    drop(store);
    Ok(SpawnRole::Parent(wait(&mut ranks, &unblocked, shrinks)))
}

/// In a rank, first of all: it dies with its parent, and gets its own signals.
fn leave_parent(parent: u32, unblocked: &libc::sigset_t) {
    // SAFETY: calls of this process about itself; the set is initialized.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent may have died before the line above.
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, unblocked, std::ptr::null_mut());
    }
}

/// The children; dropping kills and reaps what is left.
struct Ranks {
    /// By rank; none once it has been reaped.
    pids: Vec<Option<libc::pid_t>>,
}

impl Ranks {
    fn signal(&self, signal: libc::c_int) {
        for pid in self.pids.iter().flatten() {
            // SAFETY: the child is not reaped yet, so its pid is still its own.
            unsafe { libc::kill(*pid, signal) };
        }
    }

    /// Exits since the last call.
    fn reap(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        for (rank, slot) in self.pids.iter_mut().enumerate() {
            if let Some(pid) = *slot
                && let Some(status) = waited(pid, libc::WNOHANG)
            {
                *slot = None;
                ended.push((rank, status));
            }
        }
        ended
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for pid in self.pids.iter().flatten() {
            waited(*pid, 0);
        }
    }
}

/// The end of a child, which is reaped with this.
fn waited(pid: libc::pid_t, options: libc::c_int) -> Option<ExitStatus> {
    let mut status = 0;
    loop {
        // SAFETY: the status is valid for the call; the child has not been reaped.
        match unsafe { libc::waitpid(pid, &mut status, options) } {
            ended if ended == pid => return Some(ExitStatus::from_raw(status)),
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

fn wait(ranks: &mut Ranks, signals: &libc::sigset_t, shrinks: bool) -> u8 {
    let (mut worst, mut finished) = (0, false);
    let mut failed_at: Option<Instant> = None;
    let mut report = false;
    loop {
        for (rank, status) in ranks.reap() {
            let code = exit_code(status);
            if code != 0 {
                warn(&format!("rank {rank} failed: {status}"));
                let ends_all = !shrinks || code == CANNOT_SHRINK as u8;
                failed_at = failed_at.or(ends_all.then(Instant::now));
            }
            finished |= code == 0;
            worst = worst.max(code);
        }
        if ranks.pids.iter().all(Option::is_none) {
            return if shrinks && finished { 0 } else { worst };
        }
        if let Some(failed_at) = failed_at {
            let since = failed_at.elapsed();
            if since > GRACE {
                ranks.signal(libc::SIGKILL);
            } else if since > NOTICE && !report {
                report = true;
                ranks.signal(libc::SIGTERM);
            }
        }
        match next_signal(signals, Duration::from_millis(200)) {
            // A terminal that goes away is a reason to stop cleanly.
            Some(libc::SIGHUP) => ranks.signal(libc::SIGTERM),
            Some(signal) if STOPS.contains(&signal) => ranks.signal(signal),
            _ => {}
        }
    }
}

/// Those of a rank as they are, anything else is a failure.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(0), _) => 0,
        (Some(2), _) => 2,
        (Some(CANNOT_SHRINK), _) => CANNOT_SHRINK as u8,
        _ => 1,
    }
}

/// Sets torchrun's variables in the calling rank.
fn environment(rank: u32, world_size: u32, port: u16, parent: u32) {
    let place = [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("LOCAL_WORLD_SIZE", world_size.to_string()),
        ("NODE_RANK", "0".into()),
        ("GROUP_RANK", "0".into()),
        ("GROUP_WORLD_SIZE", "1".into()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
        // This process launches the ranks, even inside another launcher, and rank 0 serves the store.
        ("TORCHELASTIC_RUN_ID", format!("spawn-{parent}")),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
    ];
    let threads = std::env::var_os("OMP_NUM_THREADS").is_none();
    // SAFETY: this process has one thread (SPAWN-2), so the environment is not read meanwhile.
    unsafe {
        for (key, value) in place {
            std::env::set_var(key, value);
        }
        if threads {
            std::env::set_var("OMP_NUM_THREADS", "1");
        }
        // One page belongs to one rank.
        if world_size > 1 {
            std::env::remove_var("RANKDECK_STATUS_PAGE");
        }
    }
    // The library has read the variable already.
    if threads {
        tch::set_num_threads(1);
    }
}

/// One for this group, or the user's own.
fn secret() -> Result<GroupSecret, TrainerError> {
    match identity::secret(&|key| std::env::var(key).ok())? {
        Some(given) => Ok(given),
        None => GroupSecret::draw().map_err(|error| {
            TrainerError::failure(format!("cannot read random bytes from the kernel: {error}"), "")
        }),
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: the set is initialized by sigemptyset before it is used; changing this thread's mask has no
    // other preconditions.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in STOPS.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

fn next_signal(set: &libc::sigset_t, within: Duration) -> Option<libc::c_int> {
    let time = libc::timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos() as _ };
    // SAFETY: both pointers are valid for the call; the signal's details are not requested.
    let signal = unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &time) };
    (signal > 0).then_some(signal)
}
