//! Sessions, signals and the bonds between an agent and what it starts.
//!
//! Owner: the agent. Invariants:
//! - A signal goes to the process that was meant: it is sent through a pidfd after the start time
//!   was compared.
//! - A rank is the leader of its own session, and the kernel kills it when the thread that spawned
//!   it ends; that thread lives as long as the agent.
//! - No descriptor of the agent but standard input, output and error reaches a child.
//! - In an agent every child is made by [`spawn`], so that spawning and reaping do not meet.

use crate::proc;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// A descriptor of a process; readable once it has ended.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor to us, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Waits until the process of a [`pidfd`] has ended; `false` when it still runs after `within`.
pub fn has_ended(fd: &OwnedFd, within: std::time::Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one valid entry for the duration of the call.
    unsafe { libc::poll(&mut poll, 1, within.as_millis() as i32) > 0 }
}

/// Ignores a signal from now on. Children inherit that.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition for every signal that may be ignored.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Set by a signal to end.
static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end(_: libc::c_int) {
    TOLD_TO_END.store(true, Ordering::Relaxed);
}

/// From now on SIGTERM and SIGINT end nothing; [`was_told_to_end`] tells of them. A wait that they interrupt
/// returns. Programs that this process runs get the default again.
pub fn note_end_signals() {
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
pub fn was_told_to_end() -> bool {
    TOLD_TO_END.swap(false, Ordering::Relaxed)
}

/// The parent of this process.
pub fn parent() -> u32 {
    // SAFETY: getppid takes nothing and cannot fail.
    unsafe { libc::getppid() as u32 }
}

/// Sends a signal to exactly the process `pid` that started at `start`; `false` when it is gone or
/// not ours.
pub fn signal(pid: u32, start: u64, signal: i32) -> bool {
    let Ok(fd) = pidfd(pid) else { return false };
    if proc::stat(pid).is_none_or(|stat| stat.start != start) {
        return false;
    }
    // SAFETY: a descriptor we own, an integer, a null siginfo and no flags.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    sent == 0
}

/// Makes this process the new parent of its orphaned descendants.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl with integers only.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the mask for new files and returns the former one.
pub fn set_umask(mask: u32) -> u32 {
    // SAFETY: umask takes an integer and cannot fail.
    unsafe { libc::umask(mask) }
}

/// Prepares the command of a rank or a helper: own session, killed with the calling thread, no stray
/// descriptors, a file mode mask, default signals. `door`: the file by which it enters a control group; when
/// that fails it runs outside, and the other layers hold it.
pub fn bind_to_this_thread(command: &mut Command, umask: u32, door: Option<std::fs::File>) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above: then no signal will ever come.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(door) = &door {
                let _ = libc::write(door.as_raw_fd(), b"0".as_ptr().cast(), 1);
            }
            own_session()?;
            libc::umask(umask);
            Ok(())
        });
    }
}

/// Prepares the command of a process that must outlive this one and be nobody's child: own session, forked
/// twice, no stray descriptors.
pub fn detach(command: &mut Command) {
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
pub fn set_apart(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
    unsafe {
        command.pre_exec(own_session);
    }
}

fn own_session() -> io::Result<()> {
    // SAFETY: setsid and close_range take integers; sigprocmask gets a set on the stack.
    unsafe {
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
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
/// when somebody else has reaped it.
static SPAWNING: Mutex<()> = Mutex::new(());

/// Starts a command in a process that reaps its children with [`reap`].
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let _held = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Some child has ended and was not reaped yet.
pub fn has_dead() -> bool {
    // SAFETY: all zero bytes are a valid `siginfo_t`, and it is ours for the duration of the call.
    unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut found, options) == 0 && found.si_pid() != 0
    }
}

/// The raw status of the child `pid`, when it has ended.
pub fn reap(pid: u32) -> Option<i32> {
    wait(pid as i32).map(|(_, status)| status)
}

/// Any child that has ended and its raw status; `None` also while a child is being made.
pub fn reap_any() -> Option<(u32, i32)> {
    let _held = match SPAWNING.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(held)) => held.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    wait(-1)
}

fn wait(pid: i32) -> Option<(u32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a valid int for the duration of the call.
    let pid = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
    // A rank that a close look holds for a moment reports that, too: it has not ended.
    (pid > 0 && !libc::WIFSTOPPED(status)).then_some((pid as u32, status))
}
