//! What a process holds: GPUs by the driver and by its open devices, files in `/dev/shm`.

use crate::examine;
use crate::observe::nvml::{self, Shares};
use crate::proc;
use rankdeck_proto::holders::GpuShare;
use rankdeck_proto::message::GpuSample;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the driver may take.
const DRIVER: Duration = Duration::from_secs(10);
/// Most descriptors of a process that are read.
const DESCRIPTORS: usize = 65_536;
/// The driver's own device, which is there wherever its GPUs are.
const CONTROL: &str = "/dev/nvidiactl";
const SHM: &str = "/dev/shm/";

/// What each process uses of which GPU, by the driver; empty without one, or where it does not respond.
pub(super) fn gpu_shares() -> BTreeMap<u32, Vec<GpuShare>> {
    let sampled = examine::bounded(DRIVER, || {
        nvml::load().map(|nvml| nvml::sample(&nvml, &mut Shares::default())).unwrap_or_default()
    });
    by_process(&sampled.wait().unwrap_or_default())
}

fn by_process(gpus: &[GpuSample]) -> BTreeMap<u32, Vec<GpuShare>> {
    let mut found: BTreeMap<u32, Vec<GpuShare>> = BTreeMap::new();
    for gpu in gpus {
        for (pid, memory) in &gpu.processes {
            let percent = gpu.shares.iter().find(|(of, _)| of == pid).map(|(_, percent)| *percent);
            let shares = found.entry(*pid).or_default();
            // Compute and graphics, or two instances of one GPU.
            match shares.iter_mut().find(|share| share.index == gpu.index) {
                Some(share) => share.memory = share.memory.max(*memory),
                None => shares.push(GpuShare { index: gpu.index, memory: *memory, percent }),
            }
        }
    }
    found
}

/// What a process of this user has open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// GPUs by their devices.
    pub gpus: BTreeSet<u32>,
    /// It has a device of the driver open; `None` if that cannot be read.
    pub driver: Option<bool>,
    pub shm_bytes: u64,
    pub shm_files: u32,
}

/// Reads descriptors and mappings of a process.
pub(super) fn open_files(pid: u32) -> OpenFiles {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return OpenFiles::default() };
    let links: Vec<(PathBuf, PathBuf)> = folder
        .flatten()
        .take(DESCRIPTORS)
        .filter_map(|entry| Some((std::fs::read_link(entry.path()).ok()?, entry.path())))
        .collect();
    let mut found = OpenFiles::default();
    let devices = || links.iter().filter_map(|(target, _)| target.to_str()?.strip_prefix("/dev/nvidia"));
    found.driver = Some(devices().next().is_some());
    found.gpus = devices().filter_map(|number| number.parse().ok()).collect();
    // A file that is mapped twice or has several descriptors takes its memory once.
    let mut files: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (_, descriptor) in links.iter().filter(|(target, _)| target.starts_with(SHM)) {
        if let Ok(facts) = std::fs::metadata(descriptor) {
            files.insert((facts.dev(), facts.ino()), facts.blocks() * 512);
        }
    }
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    for (range, device, inode, bytes) in maps.lines().filter_map(shared_mapping) {
        // The file may have been removed since: then only the mapping leads to it.
        let size = std::fs::metadata(format!("/proc/{pid}/map_files/{range}"))
            .map_or(bytes, |facts| facts.blocks() * 512);
        let known = files.entry((device, inode)).or_default();
        *known = (*known).max(size);
    }
    found.shm_files = files.len() as u32;
    found.shm_bytes = files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
    found
}

/// Range, device, inode and bytes of a line of `maps` about a file in `/dev/shm`.
fn shared_mapping(line: &str) -> Option<(&str, u64, u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let range = fields.next()?;
    let (device, inode) = (fields.nth(2)?, fields.next()?.parse().ok()?);
    fields.next()?.starts_with(SHM).then_some(())?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, to) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
    Some((range, device, inode, hex(to)?.saturating_sub(hex(from)?)))
}

/// What a process of this user uses, by the driver and by its open files. In a container the driver's pids are
/// those of the host: what has none of its devices open is not the process that it means.
pub(super) fn combine(by_driver: Vec<GpuShare>, files: &OpenFiles) -> Vec<GpuShare> {
    let is_other = files.driver == Some(false) && Path::new(CONTROL).exists();
    let mut shares = if is_other { Vec::new() } else { by_driver };
    if shares.is_empty() {
        shares.extend(files.gpus.iter().map(|index| GpuShare { index: *index, ..GpuShare::default() }));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_process_are_added_up_by_gpu() {
        let gpu = |index, processes: &[(u32, u64)]| GpuSample {
            index,
            processes: processes.to_vec(),
            shares: vec![(7, 40)],
            ..GpuSample::default()
        };
        let found = by_process(&[gpu(0, &[(7, 10), (7, 30), (8, 1)]), gpu(1, &[(7, 5)])]);
        assert_eq!(
            found[&7].iter().map(|share| (share.index, share.memory)).collect::<Vec<_>>(),
            [(0, 30), (1, 5)]
        );
        assert_eq!((found[&7][0].percent, found[&8][0].percent), (Some(40), None));
    }

    #[test]
    fn shared_memory_of_a_process_is_seen_once() {
        let name = format!("/dev/shm/rankdeck-test-{}", std::process::id());
        let Ok(()) = std::fs::write(&name, vec![1; 1 << 20]) else {
            return rankdeck_testkit::skipped("no /dev/shm that this user can write");
        };
        let file = std::fs::File::open(&name).unwrap();
        let second = std::fs::File::open(&name).unwrap();
        let before = open_files(std::process::id());
        std::fs::remove_file(&name).unwrap();
        let removed = open_files(std::process::id());
        drop((file, second));
        assert!(before.shm_files >= 1 && before.shm_bytes >= 1 << 20, "{before:?}");
        assert_eq!((removed.shm_files, removed.shm_bytes), (before.shm_files, before.shm_bytes));
        assert!(open_files(std::process::id()).shm_files < before.shm_files);
    }

    #[test]
    fn mappings_of_shared_memory_are_parsed() {
        let line = "7f0000000000-7f0000100000 rw-s 00000000 00:1a 77    /dev/shm/torch_1_2 (deleted)";
        assert_eq!(
            shared_mapping(line),
            Some(("7f0000000000-7f0000100000", rustix::fs::makedev(0, 0x1a), 77, 1 << 20))
        );
        assert_eq!(shared_mapping("7f00-7f10 r-xp 00000000 00:1a 77 /usr/lib/x.so"), None);
        assert_eq!(shared_mapping("7f00-7f10 rw-p 00000000 00:00 0"), None);
    }
}
