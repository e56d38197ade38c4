//! Whether the storage that a thread waits for gets on: how much its device or server has moved so far.
//!
//! A thread in fsync(2) on a slow file server and one on a dead one look alike, for minutes. Their servers do
//! not. Owner: nobody keeps state. Only `/proc` and `/sys` are read, which wait for no file system.

use super::descriptors;
use super::syscall::{self, Call, Kind};
use crate::proc;

/// Bytes of a sector in the kernel's counters, whatever the device's own are.
const SECTOR: u64 = 512;

/// Bytes that the storage behind the descriptor of a call has read and written so far; `None` where the call
/// has none, or nobody counts.
pub(super) fn moved(pid: u32, call: &Call) -> Option<u64> {
    let (_, kind) = syscall::name(call.number?);
    let fd = matches!(kind, Kind::Storage | Kind::Read | Kind::Write).then_some(call.args[0] as i32)?;
    let path = descriptors::path(pid, fd)?;
    let mount = mount(&proc::text(format!("/proc/{pid}/mountinfo"))?, &path)?;
    if mount.kind.starts_with("nfs") {
        return of_server(&proc::text(format!("/proc/{pid}/mountstats"))?, &mount.at);
    }
    of_device(&proc::text(format!("/sys/dev/block/{}/stat", mount.device))?)
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    at: String,
    kind: String,
}

/// The mount that holds a path.
fn mount(mountinfo: &str, path: &str) -> Option<Mount> {
    let holds = |at: &str| {
        at == "/" || path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let parsed = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (device, at) = (left.next()?.to_owned(), left.nth(1)?.replace("\\040", " "));
        Some(Mount { device, at, kind: right.split(' ').next()?.to_owned() })
    });
    // Of two at one place, the later one hides the other.
    parsed.filter(|mount| holds(&mount.at)).max_by_key(|mount| mount.at.len())
}

/// `/sys/dev/block/MAJOR:MINOR/stat` (Documentation/block/stat.rst): sectors read and written.
fn of_device(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(2)?.saturating_add(*fields.get(6)?).saturating_mul(SECTOR))
}

/// `/proc/PID/mountstats`: bytes that the NFS client has read from the server of a mount and written to it.
fn of_server(mountstats: &str, at: &str) -> Option<u64> {
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
    fn the_mount_of_a_path_is_the_innermost_and_latest_one() {
        let mountinfo = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:52 / /data rw,relatime shared:3 - nfs4 server:/data rw
41 22 7:3 / /data/new\\040one rw - ext4 /dev/loop3 rw
";
        let of = |path: &str| mount(mountinfo, path).map(|mount| (mount.device, mount.kind));
        assert_eq!(of("/data/run/latest.pt"), Some(("0:52".into(), "nfs4".into())));
        assert_eq!(of("/data/new one/x"), Some(("7:3".into(), "ext4".into())));
        assert_eq!(of("/database/x"), Some(("254:0".into(), "ext4".into())));
    }

    #[test]
    fn what_a_server_and_a_device_have_moved_is_read() {
        let stats = "\
device /dev/vda mounted on / with fstype ext4
device server:/home mounted on /home with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 50 60 7 8
device server:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t10 20 30 40 5000 6000 7 8
";
        assert_eq!(of_server(stats, "/data"), Some(11_000));
        assert_eq!((of_server(stats, "/home"), of_server(stats, "/")), (Some(110), None));
        assert_eq!(of_device("  10 0 100 5  20 0 300 9 0 4 4 0 0 0 0 1 1\n"), Some(400 * 512));
    }

    #[test]
    fn a_thread_that_waits_for_no_file_has_no_storage() {
        let call = |number: i64| Call { number: Some(number), args: [u64::MAX, 0, 0, 0], sp: 0, pc: 0 };
        for number in [libc::SYS_futex, libc::SYS_fsync, libc::SYS_read] {
            assert_eq!(moved(std::process::id(), &call(number)), None);
        }
    }
}
