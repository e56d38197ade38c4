//! Locks on files: who holds those that a process waits for, or tries again and again to take.
//!
//! Sources: `/proc/locks`, which names the holder where a lock belongs to a
//! process, and `fdinfo`, which names the file of a descriptor and the locks that were taken through it. No
//! file system is asked.

use super::descriptors;
use crate::proc;
use std::collections::BTreeMap;

/// Most processes and descriptors of each that are searched for a lock that belongs to a descriptor.
const SEARCHED: usize = 1024;
const DESCRIPTORS: usize = 1024;

/// What a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// flock(2).
    Whole,
    /// fcntl(2), of a process or of a descriptor (`F_OFD_SETLK`).
    Ranges,
}

/// A line of the kernel's list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KernelLock<'a> {
    number: &'a str,
    /// It waits for the one above it.
    waits: bool,
    family: Family,
    writes: bool,
    /// `None`: it belongs to a descriptor, or to a process that is not seen from here.
    pid: Option<u32>,
    /// Device and inode, as `fe:00:131`.
    file: &'a str,
}

fn parse(line: &str) -> Option<KernelLock<'_>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let waits = fields.get(1) == Some(&"->");
    let field = |at: usize| fields.get(at + usize::from(waits)).copied();
    let family = match field(1)? {
        "FLOCK" => Family::Whole,
        "POSIX" | "OFDLCK" => Family::Ranges,
        _ => return None,
    };
    let pid = field(4)?.parse::<i64>().ok()?;
    Some(KernelLock {
        number: fields.first()?,
        waits,
        family,
        writes: field(3)? == "WRITE",
        pid: u32::try_from(pid).ok().filter(|pid| *pid > 0),
        file: field(5)?,
    })
}

/// Who holds the lock that a process waits for in a call about descriptor `fd`.
pub(super) fn awaited(pid: u32, fd: i32, family: Family) -> Vec<u32> {
    let text = proc::text("/proc/locks").unwrap_or_default();
    let file = file(pid, &devices(pid), fd);
    let found = of_waiter(&text, pid);
    let of_file =
        || held(&text, pid).filter(|lock| lock.family == family && Some(lock.file) == file.as_deref());
    let locks = if found.is_empty() { of_file().collect() } else { found };
    holders(pid, &locks)
}

/// Returns the file that a process has open and others have locked against it, and the holders. For a process
/// that polls the lock, which no list of the kernel shows.
pub(super) fn contended(pid: u32) -> Option<(String, Vec<u32>)> {
    let text = proc::text("/proc/locks")?;
    let own = |lock: &KernelLock<'_>| !lock.waits && lock.pid == Some(pid) && lock.writes;
    let exclusive: Vec<&str> = text.lines().filter_map(parse).filter(own).map(|lock| lock.file).collect();
    // One that reads keeps out only one that writes.
    let mut others: Vec<KernelLock<'_>> =
        held(&text, pid).filter(|lock| lock.writes || exclusive.contains(&lock.file)).collect();
    if others.is_empty() {
        return None;
    }
    let numbers: Vec<i32> = descriptors::numbers(pid).into_iter().take(DESCRIPTORS).collect();
    // What it has inherited with its descriptor, as from `flock FILE PROGRAM`, keeps others out.
    let taken: Vec<String> = numbers.iter().flat_map(|fd| taken(pid, *fd)).collect();
    let inherited: Vec<KernelLock<'_>> = taken.iter().filter_map(|line| parse(line)).collect();
    others.retain(|lock| !inherited.iter().any(|own| is_same(own, lock)));
    let devices = devices(pid);
    numbers.into_iter().find_map(|fd| {
        let file = file(pid, &devices, fd)?;
        let locks: Vec<KernelLock<'_>> = others.iter().filter(|lock| lock.file == file).cloned().collect();
        let path = descriptors::path(pid, fd).filter(|_| !locks.is_empty())?;
        Some((path, holders(pid, &locks))).filter(|(_, holders)| !holders.is_empty())
    })
}

/// Locks that others hold.
fn held(text: &str, pid: u32) -> impl Iterator<Item = KernelLock<'_>> {
    text.lines().filter_map(parse).filter(move |lock| !lock.waits && lock.pid != Some(pid))
}

/// The locks that keep a process waiting: one that waits stands under the number of the one that is held.
fn of_waiter(text: &str, waiter: u32) -> Vec<KernelLock<'_>> {
    let mut holder: Option<KernelLock<'_>> = None;
    let mut found: Vec<KernelLock<'_>> = Vec::new();
    for lock in text.lines().filter_map(parse) {
        if !lock.waits {
            holder = Some(lock);
        } else if let Some(by) =
            holder.as_ref().filter(|by| by.number == lock.number && lock.pid == Some(waiter))
            && !found.contains(by)
        {
            found.push(by.clone());
        }
    }
    found
}

/// The processes that hold these locks, other than `pid`.
fn holders(pid: u32, locks: &[KernelLock<'_>]) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for lock in locks {
        // The process that took a lock may have left it to a child.
        let named = lock.pid.filter(|holder| proc::stat(*holder).is_some());
        found.extend(named.map_or_else(|| with_descriptor(lock), |holder| vec![holder]));
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|holder| *holder != pid && seen.insert(*holder));
    found
}

/// Processes with a descriptor through which this lock was taken.
fn with_descriptor(lock: &KernelLock<'_>) -> Vec<u32> {
    let has = |pid: u32| {
        let numbers = descriptors::numbers(pid).into_iter().take(DESCRIPTORS);
        let mut taken = numbers.flat_map(|fd| taken(pid, fd));
        taken.any(|line| parse(&line).is_some_and(|taken| is_same(&taken, lock)))
    };
    proc::all().into_iter().map(|stat| stat.pid).take(SEARCHED).filter(|pid| has(*pid)).collect()
}

/// Lines about the locks that were taken through a descriptor.
fn taken(pid: u32, fd: i32) -> Vec<String> {
    let text = proc::text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("lock:")).map(str::to_owned).collect()
}

/// Two lines are about one lock; each list numbers its own.
fn is_same(one: &KernelLock<'_>, other: &KernelLock<'_>) -> bool {
    (one.file, one.family, one.writes, one.pid) == (other.file, other.family, other.writes, other.pid)
}

/// Devices of the mounts that a process sees, as the list of locks writes them, by number.
fn devices(pid: u32) -> BTreeMap<u64, String> {
    let text = proc::text(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let device = |line: &str| {
        let mut fields = line.split(' ');
        let (mount, device) = (fields.next()?.parse().ok()?, fields.nth(1)?);
        let (major, minor) = device.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        Some((mount, format!("{major:02x}:{minor:02x}")))
    };
    text.lines().filter_map(device).collect()
}

/// The file of a descriptor, as the list of locks writes it; `None` before Linux 5.14.
fn file(pid: u32, devices: &BTreeMap<u64, String>, fd: i32) -> Option<String> {
    let text = proc::text(format!("/proc/{pid}/fdinfo/{fd}"))?;
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some(format!("{}:{}", devices.get(&value("mnt_id:")?)?, value("ino:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_from_the_kernels_list() {
        let text = "1: POSIX  ADVISORY  WRITE 10 fd:01:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 20 fd:01:7 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 30 fd:01:7 0 EOF\n2:  -> FLOCK  ADVISORY  WRITE 31 fd:01:7 0 EOF\n\
                    3: OFDLCK ADVISORY  WRITE -1 fd:01:9 0 EOF\n3: -> POSIX  ADVISORY  WRITE 32 fd:01:9 0 EOF\n\
                    4: LEASE  ACTIVE    READ 40 fd:01:9 0 EOF\n";
        let pids = |waiter| of_waiter(text, waiter).into_iter().map(|lock| lock.pid).collect::<Vec<_>>();
        assert_eq!(pids(30), [Some(20)]);
        assert_eq!(pids(31), [Some(20)]);
        assert_eq!((pids(32), pids(10)), (vec![None], vec![]));
        let others: Vec<&str> = held(text, 20).map(|lock| lock.file).collect();
        assert_eq!(others, ["fd:01:5", "fd:01:9"]);
        for cut in 0..text.len() {
            let _ = of_waiter(&text[..cut], 31);
        }
    }
}
