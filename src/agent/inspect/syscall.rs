//! What a thread waits for, from `/proc/PID/task/TID/syscall`: the call by name, and its descriptor resolved
//! to the process at the other end.
//!
//! Owner: nobody keeps state. Nothing here reads the memory of the process, so nothing here can wait for its
//! memory lock.

use super::descriptors::{self, Target};
use crate::proc;

/// One thread's system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Number; `None` while it runs in user space.
    pub number: Option<i64>,
    /// First four arguments.
    pub args: [u64; 4],
    /// Stack pointer, 0 while running.
    pub sp: u64,
    /// Program counter, 0 while running.
    pub pc: u64,
}

impl Call {
    /// It runs, or is ready to: it waits for nothing but a core.
    pub fn is_awake(&self) -> bool {
        self.number.is_none() && self.pc == 0
    }
}

/// The state of a thread, `None` when the kernel does not tell (gone, or another user's).
pub fn call(pid: u32, tid: u32) -> Option<Call> {
    parse(&proc::text(format!("/proc/{pid}/task/{tid}/syscall"))?)
}

fn parse(text: &str) -> Option<Call> {
    let text = text.trim();
    if text == "running" {
        return Some(Call { number: None, args: [0; 4], sp: 0, pc: 0 });
    }
    let words: Vec<&str> = text.split(' ').collect();
    let number: i64 = words.first()?.parse().ok()?;
    let hex = |word: &&str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let [.., sp, pc] = words.as_slice() else { return None };
    let (sp, pc) = (hex(sp)?, hex(pc)?);
    let mut args = [0; 4];
    if words.len() >= 7 {
        for (arg, word) in args.iter_mut().zip(&words[1..]) {
            *arg = hex(word)?;
        }
    }
    Some(Call { number: (number >= 0).then_some(number), args, sp, pc })
}

/// What kind of waiting a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On the descriptor that is its first argument; it would take something in.
    Read,
    /// On the descriptor that is its first argument; it would give something out.
    Write,
    /// On the descriptor that is its first argument; storage.
    Storage,
    /// For a lock or a condition.
    Lock,
    /// For several descriptors.
    Poll,
    /// For time to pass.
    Sleep,
    /// For a child; its pid is the first argument, if positive.
    Child,
    /// For a connection to come up.
    Connect,
    /// For somebody to connect.
    Accept,
    /// For a driver.
    Device,
    /// For a signal, as long as it takes or up to a time.
    Signal,
    /// For room in a message queue, or for a message.
    Queue,
    /// For a semaphore of System V; those of POSIX are locks.
    Semaphore,
    /// Something else.
    Other,
}

/// Name and kind of a system call of this machine.
pub fn name(number: i64) -> (&'static str, Kind) {
    const TABLE: &[(i64, &str, Kind)] = &[
        (libc::SYS_read, "read", Kind::Read),
        (libc::SYS_pread64, "pread64", Kind::Read),
        (libc::SYS_readv, "readv", Kind::Read),
        (libc::SYS_recvfrom, "recvfrom", Kind::Read),
        (libc::SYS_recvmsg, "recvmsg", Kind::Read),
        (libc::SYS_write, "write", Kind::Write),
        (libc::SYS_pwrite64, "pwrite64", Kind::Write),
        (libc::SYS_writev, "writev", Kind::Write),
        (libc::SYS_sendto, "sendto", Kind::Write),
        (libc::SYS_sendmsg, "sendmsg", Kind::Write),
        (libc::SYS_fsync, "fsync", Kind::Storage),
        (libc::SYS_fdatasync, "fdatasync", Kind::Storage),
        (libc::SYS_ftruncate, "ftruncate", Kind::Storage),
        (libc::SYS_fallocate, "fallocate", Kind::Storage),
        (libc::SYS_getdents64, "getdents64", Kind::Storage),
        (libc::SYS_futex, "futex", Kind::Lock),
        (libc::SYS_flock, "flock", Kind::Other),
        (libc::SYS_fcntl, "fcntl", Kind::Other),
        (libc::SYS_ppoll, "ppoll", Kind::Poll),
        (libc::SYS_pselect6, "pselect6", Kind::Poll),
        (libc::SYS_epoll_pwait, "epoll_pwait", Kind::Poll),
        (libc::SYS_nanosleep, "nanosleep", Kind::Sleep),
        (libc::SYS_clock_nanosleep, "clock_nanosleep", Kind::Sleep),
        (libc::SYS_wait4, "wait4", Kind::Child),
        (libc::SYS_waitid, "waitid", Kind::Child),
        (libc::SYS_connect, "connect", Kind::Connect),
        (libc::SYS_accept, "accept", Kind::Accept),
        (libc::SYS_accept4, "accept4", Kind::Accept),
        (libc::SYS_ioctl, "ioctl", Kind::Device),
        (libc::SYS_openat, "openat", Kind::Other),
        (libc::SYS_renameat2, "renameat2", Kind::Other),
        (libc::SYS_unlinkat, "unlinkat", Kind::Other),
        (libc::SYS_mmap, "mmap", Kind::Other),
        (libc::SYS_munmap, "munmap", Kind::Other),
        (libc::SYS_exit_group, "exit_group", Kind::Other),
        (libc::SYS_sched_yield, "sched_yield", Kind::Other),
        (libc::SYS_rt_sigsuspend, "rt_sigsuspend", Kind::Signal),
        (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait", Kind::Signal),
        (libc::SYS_msgrcv, "msgrcv", Kind::Queue),
        (libc::SYS_msgsnd, "msgsnd", Kind::Queue),
        (libc::SYS_mq_timedreceive, "mq_timedreceive", Kind::Queue),
        (libc::SYS_mq_timedsend, "mq_timedsend", Kind::Queue),
        (libc::SYS_semop, "semop", Kind::Semaphore),
        (libc::SYS_semtimedop, "semtimedop", Kind::Semaphore),
        (libc::SYS_restart_syscall, "restart_syscall", Kind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll", Kind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_select, "select", Kind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait", Kind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, "open", Kind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_stat, "stat", Kind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, "rename", Kind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mkdir, "mkdir", Kind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_pause, "pause", Kind::Signal),
    ];
    TABLE
        .iter()
        .find(|(known, ..)| *known == number)
        .map_or(("", Kind::Other), |(_, name, kind)| (name, *kind))
}

/// The call in a word: `futex`, `read(5)`; the number where there is no name.
pub fn in_short(call: &Call) -> Option<String> {
    let number = call.number?;
    Some(match name(number) {
        ("", _) => format!("system call {number}"),
        (name, Kind::Read | Kind::Write | Kind::Storage | Kind::Connect | Kind::Accept | Kind::Device) => {
            format!("{name}({})", call.args[0])
        }
        (name, _) => name.to_owned(),
    })
}

/// The descriptors that the call waits for, as far as its registers tell.
pub fn descriptor(call: &Call) -> Option<i32> {
    let (_, kind) = name(call.number?);
    matches!(kind, Kind::Read | Kind::Write).then_some(call.args[0] as i32)
}

/// The child whose end the call waits for.
pub fn child(call: &Call) -> Option<u32> {
    let (name, kind) = name(call.number?);
    // The first argument of waitid says what the second one is: 1 for a process, 3 for a descriptor of one.
    let pid = match (kind, name) {
        (Kind::Child, "waitid") if call.args[0] == u64::from(libc::P_PID) => call.args[1],
        (Kind::Child, "wait4") => call.args[0],
        _ => return None,
    };
    u32::try_from(pid as i32).ok().filter(|pid| *pid > 0)
}

/// What the call waits for, in words; `None` while the thread runs.
pub fn in_words(pid: u32, call: &Call, tcp: &[super::sockets::Tcp]) -> Option<String> {
    let number = call.number?;
    let (name, kind) = name(number);
    let fd = call.args[0] as i32;
    let target = || descriptors::target(pid, fd);
    let at = |target: &Target| target.words(tcp);
    Some(match kind {
        Kind::Read | Kind::Write => match target() {
            Some(target) => format!("{name} on {}", at(&target)),
            None => format!("{name} on descriptor {fd}"),
        },
        Kind::Storage => {
            format!("{name} of {}", target().map_or_else(|| format!("descriptor {fd}"), |t| at(&t)))
        }
        Kind::Device => {
            format!("{name} of {}", target().map_or_else(|| format!("descriptor {fd}"), |t| at(&t)))
        }
        Kind::Connect => match target() {
            Some(target) => format!("a connection to come up: {}", at(&target)),
            None => "a connection to come up".to_owned(),
        },
        Kind::Accept => match descriptors::place(pid, fd) {
            Some(place) => format!("somebody to connect to {place}"),
            None => "somebody to connect".to_owned(),
        },
        Kind::Lock => "a lock or a condition (futex)".to_owned(),
        Kind::Poll => "several descriptors at once (poll)".to_owned(),
        Kind::Sleep => "time to pass (sleep)".to_owned(),
        Kind::Child => match fd {
            child if child > 0 => {
                let told = proc::stat(child as u32).map_or_else(
                    || "gone".to_owned(),
                    |stat| format!("{}, {}", stat.comm, super::state_words(stat.state)),
                );
                format!("the end of child {child} ({told})")
            }
            _ => "the end of a child".to_owned(),
        },
        Kind::Signal => format!("a signal ({name})"),
        Kind::Queue => format!("a message queue ({name})"),
        Kind::Semaphore => format!("a semaphore ({name})"),
        Kind::Other if name.is_empty() => format!("system call {number}"),
        Kind::Other => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_three_kinds_are_read() {
        let blocked = parse("202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd10 0x7f0a\n").unwrap();
        assert_eq!((blocked.number, blocked.args), (Some(202), [0x7f01, 0x189, 0, 0]));
        assert_eq!((blocked.sp, blocked.pc), (0x7ffd10, 0x7f0a));
        let running = parse("running\n").unwrap();
        assert_eq!(running.number, None);
        // Stopped in user space: no call, but registers.
        let stopped = parse("-1 0x7ffe98 0x401136").unwrap();
        assert_eq!((stopped.number, stopped.sp, stopped.pc), (None, 0x7ffe98, 0x401136));
        assert!(running.is_awake() && !stopped.is_awake() && !blocked.is_awake());
        for bad in ["", "x", "1", "0 0xzz 1 2 3 4 5 6 7"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn calls_have_their_names() {
        assert_eq!(name(libc::SYS_futex), ("futex", Kind::Lock));
        assert_eq!(name(9999).0, "");
        let call = Call { number: Some(libc::SYS_read), args: [5, 0, 0, 0], sp: 0, pc: 0 };
        assert_eq!(in_short(&call).as_deref(), Some("read(5)"));
        let unknown = Call { number: Some(9999), ..call };
        assert_eq!(in_short(&unknown).as_deref(), Some("system call 9999"));
    }
}
