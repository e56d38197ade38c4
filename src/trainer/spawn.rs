//! `--spawn N`: N ranks on this host, without any other launcher.
//!
//! Owner: the parent, which only starts, forwards signals, waits and reaps.
//!
//! Invariants:
//! - SPAWN-1: no rank outlives the parent (parent-death signal) and none is left when the parent returns.
//! - Each signal reaches each rank once: ranks are in a process group of their own, so that a
//!   terminal's Ctrl-C goes to the parent only, which passes it on.
//! - When a rank fails, the others get a moment to notice it themselves, then SIGTERM, then SIGKILL;
//!   the exit code is the worst.

use super::distributed::BackendKind;
use super::error::TrainerError;
use super::events::warn;
use super::identity::{self, Flags};
use rankdeck_proto::secret::GroupSecret;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// After the first failure: until SIGTERM, and until SIGKILL.
const NOTICE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(10);

/// Signals that end the group, and the one that says a child ended.
const STOPS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Starts `world_size` ranks of this program and waits for them; the exit code to end with.
pub fn run(flags: &Flags, world_size: u32) -> Result<u8, TrainerError> {
    let blocked = block_signals();
    let port = free_port()?;
    let secret = secret()?;
    let program = std::env::current_exe().map_err(|error| {
        TrainerError::failure(format!("cannot find this program's own file: {error}"), "")
    })?;
    let mut ranks = Ranks { children: Vec::new() };
    for rank in 0..world_size {
        let mut command = Command::new(&program);
        arguments(&mut command, flags);
        environment(&mut command, rank, world_size, port);
        command.env(GroupSecret::VARIABLE, secret.to_hex());
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid,
        // pthread_sigmask, _exit.
        unsafe {
            command.process_group(0).pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have died before the line above.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &blocked, std::ptr::null_mut());
                Ok(())
            });
        }
        match command.spawn() {
            Ok(child) => ranks.children.push(Some(child)),
            Err(error) => {
                return Err(TrainerError::failure(
                    format!("cannot start rank {rank} ({}): {error}", program.display()),
                    "",
                ));
            }
        }
    }
    Ok(wait(&mut ranks, &blocked))
}

/// The children; dropping kills and reaps what is left.
struct Ranks {
    children: Vec<Option<Child>>,
}

impl Ranks {
    fn signal(&self, signal: libc::c_int) {
        for child in self.children.iter().flatten() {
            // SAFETY: the child is not reaped yet, so its pid is still its own.
            unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        }
    }

    /// Exits since the last call.
    fn reap(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        for (rank, slot) in self.children.iter_mut().enumerate() {
            if let Some(child) = slot
                && let Ok(Some(status)) = child.try_wait()
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
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait(ranks: &mut Ranks, signals: &libc::sigset_t) -> u8 {
    let mut worst = 0;
    let mut failed_at: Option<Instant> = None;
    let mut report = false;
    loop {
        for (rank, status) in ranks.reap() {
            let code = exit_code(status);
            if code != 0 {
                warn(&format!("rank {rank} failed: {status}"));
                failed_at = failed_at.or(Some(Instant::now()));
            }
            worst = worst.max(code);
        }
        if ranks.children.iter().all(Option::is_none) {
            return worst;
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

/// 0 to 2 as they are, anything else is a failure.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(0), _) => 0,
        (Some(2), _) => 2,
        _ => 1,
    }
}

fn arguments(command: &mut Command, flags: &Flags) {
    if let Some(largest) = flags.all_reduce {
        command.arg("--all-reduce").arg(largest.to_string());
    } else {
        command.arg("--config").arg(&flags.config);
    }
    #[cfg(feature = "inject")]
    for fault in &flags.inject {
        command.arg("--inject").arg(fault);
    }
    if let Some(run_dir) = &flags.run_dir {
        command.arg("--run-dir").arg(run_dir);
    }
    if let Some(resume) = &flags.resume {
        command.arg("--resume").arg(resume);
    }
    if let Some(backend) = flags.backend.and_then(BackendKind::named) {
        command.arg("--backend").arg(backend.name());
    }
}

fn environment(command: &mut Command, rank: u32, world_size: u32, port: u16) {
    for key in ["RANK", "LOCAL_RANK"] {
        command.env(key, rank.to_string());
    }
    for key in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(key, world_size.to_string());
    }
    for key in ["NODE_RANK", "GROUP_RANK"] {
        command.env(key, "0");
    }
    command.env("GROUP_WORLD_SIZE", "1").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    // This process launches the ranks, even inside another launcher, and rank 0 serves the store.
    command.env("TORCHELASTIC_RUN_ID", format!("spawn-{}", std::process::id()));
    command.env("TORCHELASTIC_USE_AGENT_STORE", "False");
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", "1");
    }
    // One page belongs to one rank.
    if world_size > 1 {
        command.env_remove("RANKDECK_STATUS_PAGE");
    }
}

/// One for this group, or the user's own.
fn secret() -> Result<GroupSecret, TrainerError> {
    match identity::secret(&|key| std::env::var(key).ok())? {
        Some(given) => Ok(given),
        None => GroupSecret::draw().map_err(|error| {
            TrainerError::failure(format!("cannot read the kernel's random numbers: {error}"), "")
        }),
    }
}

fn free_port() -> Result<u16, TrainerError> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| TrainerError::failure(format!("cannot find a free port on this host: {error}"), ""))
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before it is used; changing this thread's mask has no
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
    // SAFETY: both pointers are valid for the call; no information about the signal is asked for.
    let signal = unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &time) };
    (signal > 0).then_some(signal)
}
