//! What a thread waits for, from `/proc/PID/task/TID/syscall`: the call by name, and its descriptor resolved
//! to the process at the other end.
//!
//! Nothing here reads the memory of the process, so nothing here can wait for its
//! memory lock; and only `/proc` and `/sys` are read, which wait for no file system.

use super::descriptors::{self, FdTarget};
use crate::proc;

/// One thread's system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyscallWait {
    /// Number; `None` while it runs in user space.
    pub number: Option<i64>,
    /// First four arguments.
    pub args: [u64; 4],
    /// Stack pointer, 0 while running.
    pub sp: u64,
    /// Program counter, 0 while running.
    pub pc: u64,
}

impl SyscallWait {
    /// It runs, or is ready to: it waits for nothing but a core.
    pub fn is_awake(&self) -> bool {
        self.number.is_none() && self.pc == 0
    }
}

/// The state of a thread, `None` when unreadable (gone, or another user's).
pub(crate) fn call(pid: u32, tid: u32) -> Option<SyscallWait> {
    parse(&proc::text(format!("/proc/{pid}/task/{tid}/syscall"))?)
}

fn parse(text: &str) -> Option<SyscallWait> {
    let text = text.trim();
    if text == "running" {
        return Some(SyscallWait { number: None, args: [0; 4], sp: 0, pc: 0 });
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
    Some(SyscallWait { number: (number >= 0).then_some(number), args, sp, pc })
}

/// Whether a call waits for a lock in memory that processes share: glibc marks the others as private (futex(2)).
pub(crate) fn is_shared_lock(call: &SyscallWait) -> bool {
    let operation = call.args[1] as i32;
    let waits = matches!(operation & libc::FUTEX_CMD_MASK, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
    call.number == Some(libc::SYS_futex) && waits && operation & libc::FUTEX_PRIVATE_FLAG == 0
}

/// What kind of waiting a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
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
    /// For an incoming connection.
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
pub(crate) fn name(number: i64) -> (&'static str, WaitKind) {
    const TABLE: &[(i64, &str, WaitKind)] = &[
        (libc::SYS_read, "read", WaitKind::Read),
        (libc::SYS_pread64, "pread64", WaitKind::Read),
        (libc::SYS_readv, "readv", WaitKind::Read),
        (libc::SYS_recvfrom, "recvfrom", WaitKind::Read),
        (libc::SYS_recvmsg, "recvmsg", WaitKind::Read),
        (libc::SYS_write, "write", WaitKind::Write),
        (libc::SYS_pwrite64, "pwrite64", WaitKind::Write),
        (libc::SYS_writev, "writev", WaitKind::Write),
        (libc::SYS_sendto, "sendto", WaitKind::Write),
        (libc::SYS_sendmsg, "sendmsg", WaitKind::Write),
        (libc::SYS_fsync, "fsync", WaitKind::Storage),
        (libc::SYS_fdatasync, "fdatasync", WaitKind::Storage),
        (libc::SYS_ftruncate, "ftruncate", WaitKind::Storage),
        (libc::SYS_fallocate, "fallocate", WaitKind::Storage),
        (libc::SYS_getdents64, "getdents64", WaitKind::Storage),
        (libc::SYS_futex, "futex", WaitKind::Lock),
        (libc::SYS_flock, "flock", WaitKind::Other),
        (libc::SYS_fcntl, "fcntl", WaitKind::Other),
        (libc::SYS_ppoll, "ppoll", WaitKind::Poll),
        (libc::SYS_pselect6, "pselect6", WaitKind::Poll),
        (libc::SYS_epoll_pwait, "epoll_pwait", WaitKind::Poll),
        (libc::SYS_nanosleep, "nanosleep", WaitKind::Sleep),
        (libc::SYS_clock_nanosleep, "clock_nanosleep", WaitKind::Sleep),
        (libc::SYS_wait4, "wait4", WaitKind::Child),
        (libc::SYS_waitid, "waitid", WaitKind::Child),
        (libc::SYS_connect, "connect", WaitKind::Connect),
        (libc::SYS_accept, "accept", WaitKind::Accept),
        (libc::SYS_accept4, "accept4", WaitKind::Accept),
        (libc::SYS_ioctl, "ioctl", WaitKind::Device),
        (libc::SYS_openat, "openat", WaitKind::Other),
        (libc::SYS_renameat2, "renameat2", WaitKind::Other),
        (libc::SYS_unlinkat, "unlinkat", WaitKind::Other),
        (libc::SYS_mmap, "mmap", WaitKind::Other),
        (libc::SYS_munmap, "munmap", WaitKind::Other),
        (libc::SYS_exit_group, "exit_group", WaitKind::Other),
        (libc::SYS_sched_yield, "sched_yield", WaitKind::Other),
        (libc::SYS_rt_sigsuspend, "rt_sigsuspend", WaitKind::Signal),
        (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait", WaitKind::Signal),
        (libc::SYS_msgrcv, "msgrcv", WaitKind::Queue),
        (libc::SYS_msgsnd, "msgsnd", WaitKind::Queue),
        (libc::SYS_mq_timedreceive, "mq_timedreceive", WaitKind::Queue),
        (libc::SYS_mq_timedsend, "mq_timedsend", WaitKind::Queue),
        (libc::SYS_semop, "semop", WaitKind::Semaphore),
        (libc::SYS_semtimedop, "semtimedop", WaitKind::Semaphore),
        (libc::SYS_restart_syscall, "restart_syscall", WaitKind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll", WaitKind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_select, "select", WaitKind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait", WaitKind::Poll),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, "open", WaitKind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_stat, "stat", WaitKind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, "rename", WaitKind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mkdir, "mkdir", WaitKind::Other),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_pause, "pause", WaitKind::Signal),
    ];
    TABLE
        .iter()
        .find(|(known, ..)| *known == number)
        .map_or(("", WaitKind::Other), |(_, name, kind)| (name, *kind))
}

/// Returns the call's name: `futex`, `read(5)`; its number if it has none.
pub(crate) fn in_short(call: &SyscallWait) -> Option<String> {
    let number = call.number?;
    Some(match name(number) {
        ("", _) => format!("system call {number}"),
        (
            name,
            WaitKind::Read
            | WaitKind::Write
            | WaitKind::Storage
            | WaitKind::Connect
            | WaitKind::Accept
            | WaitKind::Device,
        ) => {
            format!("{name}({})", call.args[0])
        }
        (name, _) => name.to_owned(),
    })
}

/// Returns the descriptors that the call waits for, by its registers.
pub(crate) fn descriptor(call: &SyscallWait) -> Option<i32> {
    let (_, kind) = name(call.number?);
    matches!(kind, WaitKind::Read | WaitKind::Write).then_some(call.args[0] as i32)
}

/// The child whose end the call waits for.
pub(crate) fn child(call: &SyscallWait) -> Option<u32> {
    let (name, kind) = name(call.number?);
    // The first argument of waitid is the type of the second one: 1 for a process, 3 for a descriptor of one.
    let pid = match (kind, name) {
        (WaitKind::Child, "waitid") if call.args[0] == u64::from(libc::P_PID) => call.args[1],
        (WaitKind::Child, "wait4") => call.args[0],
        _ => return None,
    };
    u32::try_from(pid as i32).ok().filter(|pid| *pid > 0)
}

/// What the call waits for, in words; `None` while the thread runs.
pub(crate) fn in_words(pid: u32, call: &SyscallWait, tcp: &[super::sockets::Tcp]) -> Option<String> {
    let number = call.number?;
    let (name, kind) = name(number);
    let fd = call.args[0] as i32;
    let target = || descriptors::target(pid, fd);
    let at = |target: &FdTarget| target.describe(tcp);
    Some(match kind {
        WaitKind::Read | WaitKind::Write => match target() {
            Some(target) => format!("{name} on {}", at(&target)),
            None => format!("{name} on descriptor {fd}"),
        },
        WaitKind::Storage => {
            format!("{name} of {}", target().map_or_else(|| format!("descriptor {fd}"), |t| at(&t)))
        }
        WaitKind::Device => {
            format!("{name} of {}", target().map_or_else(|| format!("descriptor {fd}"), |t| at(&t)))
        }
        WaitKind::Connect => match target() {
            Some(target) => format!("a connection to be established: {}", at(&target)),
            None => "a connection to be established".to_owned(),
        },
        WaitKind::Accept => match descriptors::place(pid, fd) {
            Some(place) => format!("an incoming connection on {place}"),
            None => "an incoming connection".to_owned(),
        },
        WaitKind::Lock => "a lock or a condition (futex)".to_owned(),
        WaitKind::Poll => "several descriptors (poll)".to_owned(),
        WaitKind::Sleep => "a timer (sleep)".to_owned(),
        WaitKind::Child => match fd {
            child if child > 0 => {
                let child_text = proc::stat(child as u32).map_or_else(
                    || "gone".to_owned(),
                    |stat| format!("{}, {}", stat.comm, super::state_words(stat.state)),
                );
                format!("child {child} to exit ({child_text})")
            }
            _ => "a child to exit".to_owned(),
        },
        WaitKind::Signal => format!("a signal ({name})"),
        WaitKind::Queue => format!("a message queue ({name})"),
        WaitKind::Semaphore => format!("a semaphore ({name})"),
        WaitKind::Other if name.is_empty() => format!("system call {number}"),
        WaitKind::Other => name.to_owned(),
    })
}

/// Bytes of a sector in the kernel's counters, whatever the device's own are.
const SECTOR: u64 = 512;

/// Bytes that the storage behind the descriptor of a call has read and written so far; `None` where the call
/// has none, or the kernel does not count. A thread in fsync(2) on a slow file server and one on a dead server are alike
/// for minutes. The servers are not.
pub(super) fn storage_bytes(pid: u32, call: &SyscallWait) -> Option<u64> {
    let (_, kind) = name(call.number?);
    let fd = matches!(kind, WaitKind::Storage | WaitKind::Read | WaitKind::Write)
        .then_some(call.args[0] as i32)?;
    let path = descriptors::path(pid, fd)?;
    let mount = descriptors::mount(&proc::text(format!("/proc/{pid}/mountinfo"))?, &path)?;
    if mount.kind.starts_with("nfs") {
        return server_bytes(&proc::text(format!("/proc/{pid}/mountstats"))?, &mount.at);
    }
    device_bytes(&proc::text(format!("/sys/dev/block/{}/stat", mount.device))?)
}

/// `/sys/dev/block/MAJOR:MINOR/stat` (Documentation/block/stat.rst): sectors read and written.
fn device_bytes(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(2)?.saturating_add(*fields.get(6)?).saturating_mul(SECTOR))
}

/// `/proc/PID/mountstats`: bytes that the NFS client has read from the server of a mount and written to it.
fn server_bytes(mountstats: &str, at: &str) -> Option<u64> {
    let mounted = format!(" mounted on {at} with fstype nfs");
    let mut lines = mountstats.lines().skip_while(|line| !line.contains(&mounted)).skip(1);
    let own = lines.by_ref().take_while(|line| !line.starts_with("device "));
    let bytes = own.into_iter().find_map(|line| line.trim().strip_prefix("bytes:"))?;
    let fields: Vec<u64> = bytes.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(4)?.saturating_add(*fields.get(5)?))
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
        assert_eq!(name(libc::SYS_futex), ("futex", WaitKind::Lock));
        assert_eq!(name(9999).0, "");
        let call = SyscallWait { number: Some(libc::SYS_read), args: [5, 0, 0, 0], sp: 0, pc: 0 };
        assert_eq!(in_short(&call).as_deref(), Some("read(5)"));
        let unknown = SyscallWait { number: Some(9999), ..call };
        assert_eq!(in_short(&unknown).as_deref(), Some("system call 9999"));
    }

    #[test]
    fn bytes_of_servers_and_devices_are_read() {
        let stats = "\
device /dev/vda mounted on / with fstype ext4
device server:/home mounted on /home with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 50 60 7 8
device server:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t10 20 30 40 5000 6000 7 8
";
        assert_eq!(server_bytes(stats, "/data"), Some(11_000));
        assert_eq!((server_bytes(stats, "/home"), server_bytes(stats, "/")), (Some(110), None));
        assert_eq!(device_bytes("  10 0 100 5  20 0 300 9 0 4 4 0 0 0 0 1 1\n"), Some(400 * 512));
    }

    #[test]
    fn thread_that_waits_for_no_file_has_no_storage() {
        let call =
            |number: i64| SyscallWait { number: Some(number), args: [u64::MAX, 0, 0, 0], sp: 0, pc: 0 };
        for number in [libc::SYS_futex, libc::SYS_fsync, libc::SYS_read] {
            assert_eq!(storage_bytes(std::process::id(), &call(number)), None);
        }
    }
}
