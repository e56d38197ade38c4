//! Sessions, signals and the bonds between an agent and what it starts: ranks, and helpers for its user.
//!
//! Owner: the agent. Invariants:
//! - A signal goes to the process that was meant: it is sent through a pidfd after the start time
//!   was compared.
//! - A rank is the leader of its own session, and the kernel kills it when the thread that spawned
//!   it ends; that thread lives as long as the agent.
//! - No descriptor of the agent but standard input, output and error reaches a child.
//! - In an agent every child is made by [`spawn`], so that spawning and reaping do not meet.

use crate::{open_files, proc};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, pidfd_send_signal,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Returns a descriptor of a process; readable once it has ended.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = numbered(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn numbered(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Waits until the process of a [`pidfd`] has ended; `false` when it still runs after `within`.
pub(crate) fn has_ended(fd: &OwnedFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).ok();
    rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], within.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Ignores a signal from now on. Children inherit that.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition for every signal that may be ignored.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Set by a signal to end.
static END_SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end(_: libc::c_int) {
    END_SIGNALLED.store(true, Ordering::Relaxed);
}

/// From now on SIGTERM and SIGINT only set a flag for [`has_end_signal`]. A wait that they interrupt
/// returns. Programs that this process runs get the default again.
pub(crate) fn note_end_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: all zero bytes are a valid `sigaction`; the handler stores to an atomic and does nothing
        // else.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_end as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// A signal to end has come since the last call.
pub(crate) fn has_end_signal() -> bool {
    END_SIGNALLED.swap(false, Ordering::Relaxed)
}

/// The parent of this process.
pub(crate) fn parent() -> u32 {
    Pid::as_raw(rustix::process::getppid()) as u32
}

/// Sends a signal to exactly the process `pid` that started at `start`; `false` when it is gone or
/// not ours.
pub(crate) fn signal(pid: u32, start: u64, signal: i32) -> bool {
    let Ok(fd) = pidfd(pid) else { return false };
    if proc::stat(pid).is_none_or(|stat| stat.start != start) {
        return false;
    }
    Signal::from_named_raw(signal).is_some_and(|signal| pidfd_send_signal(&fd, signal).is_ok())
}

/// There is a process of that number, ended or not.
pub(crate) fn exists(pid: u32) -> bool {
    numbered(pid).is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Makes this process the new parent of its orphaned descendants.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Sets the mask for new files and returns the former one.
pub(crate) fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(Mode::from_raw_mode(mask)).as_raw_mode()
}

/// Prepares the command of a rank or a helper: own session, killed with the calling thread, no stray
/// descriptors, a file mode mask, default signals. `door`: the file by which it enters a control group; when
/// that fails it runs outside, and the other layers hold it.
pub(crate) fn bind_to_this_thread(command: &mut Command, umask: u32, door: Option<std::fs::File>) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above: then the signal never comes.
            if self::parent() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(door) = &door {
                let _ = libc::write(door.as_raw_fd(), b"0".as_ptr().cast(), 1);
            }
            own_session()?;
            // A rank does not inherit what the console was started with, such as `nohup` or `&` of a script.
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            set_umask(umask);
            Ok(())
        });
    }
}

/// Prepares the command of a process that must outlive this one without a parent: own session, forked
/// twice, no stray descriptors.
pub(crate) fn detach(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls; the first
    // child leaves with _exit.
    unsafe {
        command.pre_exec(|| {
            own_session()?;
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        });
    }
}

/// Prepares the command of a child that outlives this process in its own session, without stray descriptors.
pub(crate) fn set_apart(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
    unsafe {
        command.pre_exec(own_session);
    }
}

fn own_session() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: close_range takes integers; sigprocmask gets a set on the stack.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // Closed on exec rather than at once: the standard library reports a failed exec through one of them.
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
            for fd in 3..4096 {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
    Ok(())
}

/// Held while a child is being made: the standard library waits for a child whose `exec` failed, and panics
/// when another thread has reaped it.
static SPAWNING: Mutex<()> = Mutex::new(());

/// Starts a command in a process that reaps its children with [`reap`], under the limit of open files that
/// this process was started with.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    open_files::give_back(command);
    let _held = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Some child has ended and was not reaped yet.
pub(crate) fn has_dead() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::All, options).is_ok_and(|found| found.is_some())
}

/// The raw status of the child `pid`, when it has ended.
pub(crate) fn reap(pid: u32) -> Option<i32> {
    wait(Some(numbered(pid)?)).map(|(_, status)| status)
}

/// Any child that has ended and its raw status; `None` also while a child is being made.
pub(crate) fn reap_any() -> Option<(u32, i32)> {
    let _held = match SPAWNING.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(held)) => held.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    wait(None)
}

fn wait(pid: Option<Pid>) -> Option<(u32, i32)> {
    let found = match pid {
        Some(pid) => rustix::process::waitpid(Some(pid), WaitOptions::NOHANG),
        // `waitpid` without a pid waits only for children of the same process group.
        None => rustix::process::wait(WaitOptions::NOHANG),
    };
    let (pid, status) = found.ok()??;
    // A rank that an inspection holds for a moment reports that, too: it has not ended.
    (!status.stopped()).then(|| (Pid::as_raw(Some(pid)) as u32, status.as_raw()))
}

/// Processes that the agent runs for its user, such as notification commands: children of the agent, and none of the
/// run's. A scan for processes of the run leaves them alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Helpers(Arc<Mutex<BTreeSet<u32>>>);

/// A helper that is left alone for as long as this lives.
#[derive(Debug)]
pub(crate) struct SparedHelper<'a> {
    helpers: &'a Helpers,
    pid: u32,
}

impl Drop for SparedHelper<'_> {
    fn drop(&mut self) {
        self.helpers.lock().remove(&self.pid);
    }
}

impl Helpers {
    /// Starts one. The thread that reaps this process's children reaps it.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, SparedHelper<'_>)> {
        // A scan must not find it before it is registered.
        let mut known = self.lock();
        let child = spawn(command)?;
        let pid = child.id();
        known.insert(pid);
        Ok((child, SparedHelper { helpers: self, pid }))
    }

    /// Their process ids, to change.
    pub fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their process ids.
    pub fn pids(&self) -> BTreeSet<u32> {
        self.lock().clone()
    }
}
