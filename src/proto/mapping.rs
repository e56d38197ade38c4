//! Mapped files that may be truncated: an access behind the end of such a file would kill the process
//! (SIGBUS). The process's own memory replaces the missing pages.
//!
//! The first guarded mapping installs the process's SIGBUS handler. A thread inside [`reading`] reads zeros;
//! writes to the mapping of a [`MappingGuard`] go to memory that is never read. Other faults keep their usual
//! effect.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most guarded mappings of one process; a rank has one, its status page.
const WRITTEN: usize = 64;

thread_local! {
    /// Whether this thread reads a file that may be truncated.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// Start of each written mapping, 0 for none, and its bytes.
static BEGIN: [AtomicUsize; WRITTEN] = [const { AtomicUsize::new(0) }; WRITTEN];
static BYTES: [AtomicUsize; WRITTEN] = [const { AtomicUsize::new(0) }; WRITTEN];

/// Previous action on SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Runs a reader of mapped files, such as a library that reads other processes' programs. Our own code maps
/// no files to read.
pub fn reading<T>(read: impl FnOnce() -> T) -> T {
    /// Also if the reader panics.
    struct ClearReadsOnDrop;
    impl Drop for ClearReadsOnDrop {
        fn drop(&mut self) {
            READS.set(false);
        }
    }
    BEFORE.get_or_init(install);
    READS.set(true);
    let _clear = ClearReadsOnDrop;
    read()
}

/// Guards a written mapping. It must be dropped before the mapping is unmapped.
pub(crate) struct MappingGuard(Option<usize>);

impl MappingGuard {
    /// Guards `bytes` from `address`, the start of a page.
    pub(crate) fn new(address: usize, bytes: usize) -> MappingGuard {
        BEFORE.get_or_init(install);
        let take = |slot: &usize| {
            BEGIN[*slot].compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let slot = (0..WRITTEN).find(take);
        if let Some(slot) = slot {
            BYTES[slot].store(bytes, Ordering::Release);
        }
        MappingGuard(slot)
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            BYTES[slot].store(0, Ordering::Release);
            BEGIN[slot].store(0, Ordering::Release);
        }
    }
}

fn install() -> libc::sigaction {
    // SAFETY: all-zero is a valid sigaction; both outlive the call, and the handler has the signature that
    // SA_SIGINFO asks for.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = missing as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &new, &mut old);
        old
    }
}

/// Returns the range to replace for an address that its file no longer has: its start, its bytes, and whether
/// it is written to.
fn missing_part(at: usize) -> Option<(usize, usize, bool)> {
    let written = (0..WRITTEN).find_map(|slot| {
        let (from, bytes) = (BEGIN[slot].load(Ordering::Acquire), BYTES[slot].load(Ordering::Acquire));
        (from..from.saturating_add(bytes)).contains(&at).then_some((from, bytes, true))
    });
    written.or_else(|| {
        // SAFETY: sysconf takes a number and has no memory effects.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // The mapping belongs to this thread and is only read: zeros are harmless, and end with the mapping.
        READS.get().then_some((at & !(bytes - 1), bytes, false))
    })
}

extern "C" fn missing(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, whose si_addr it has set for this code of SIGBUS; only
    // parts of guarded mappings are replaced, each by one of its size; the calls are safe in a
    // handler, and errno is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let is_cut = (*info).si_code == libc::BUS_ADRERR;
        if let Some((from, bytes, is_written)) = missing_part((*info).si_addr() as usize).filter(|_| is_cut) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let protection = if is_written { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
            let put = libc::mmap(from as *mut libc::c_void, bytes, protection, flags, -1, 0);
            if put != libc::MAP_FAILED {
                *libc::__errno_location() = errno;
                return;
            }
        }
        // The instruction is repeated and takes its usual effect. A signal from another process does not
        // repeat by itself.
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(
            signal,
            BEFORE.get().map_or(&raw const default, std::ptr::from_ref),
            std::ptr::null_mut(),
        );
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn mapped(bytes: usize) -> (tempfile::NamedTempFile, memmap2::Mmap) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; bytes]).unwrap();
        // SAFETY: the test truncates the file on purpose.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        (file, map)
    }

    #[test]
    fn truncated_part_of_a_mapped_file_reads_as_zeros() {
        let (file, map) = mapped(64 << 10);
        file.as_file().set_len(4096).unwrap();
        let sum = |page: &[u8]| page.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let sums = reading(|| map.chunks(4096).map(sum).collect::<Vec<_>>());
        let mut expected = vec![0_u64; 16];
        expected[0] = 7 * 4096;
        assert_eq!(sums, expected);
    }

    /// In a separate process, because it ends.
    #[test]
    fn other_faults_still_kill_the_process() {
        const OWN: &str = "RANKDECK_TEST_MAPPED";
        if std::env::var_os(OWN).is_some() {
            reading(|| {});
            let (file, map) = mapped(4096);
            file.as_file().set_len(0).unwrap();
            std::process::exit(i32::from(std::hint::black_box(map[0])));
        }
        let name = "mapping::tests::other_faults_still_kill_the_process";
        let mut own = std::process::Command::new("/proc/self/exe");
        let ended = own.args(["--exact", name]).env(OWN, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
