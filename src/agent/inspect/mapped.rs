//! Libraries that map files of others and read them there: a page of such a file that is cut off meanwhile is
//! zeros, where the kernel would end the process (SIGBUS).
//!
//! Owner: the one handler of SIGBUS. Only faults of threads inside [`reading`] are mended; all others go the
//! way that they would have gone without it. Own code reads files and maps none ([`super::elf`]).

use std::cell::Cell;
use std::sync::OnceLock;

thread_local! {
    /// This thread reads what somebody else may cut short.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Runs a reader of mapped files.
pub(super) fn reading<T>(read: impl FnOnce() -> T) -> T {
    /// Also where the reader panics.
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            READS.set(false);
        }
    }
    BEFORE.get_or_init(install);
    READS.set(true);
    let _until = Until;
    read()
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

/// A page behind the end of its file was touched. The mapping is this thread's own and only read, so that a
/// page of zeros in its place harms nobody; it goes with the mapping.
extern "C" fn missing(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid siginfo_t, whose si_addr it has set for this code of SIGBUS; the
    // calls are safe in a handler, and errno is put back.
    unsafe {
        let errno = *libc::__errno_location();
        if READS.get() && (*info).si_code == libc::BUS_ADRERR {
            let bytes = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let page = (*info).si_addr() as usize & !(bytes - 1);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let put = libc::mmap(page as *mut libc::c_void, bytes, libc::PROT_READ, flags, -1, 0);
            if put != libc::MAP_FAILED {
                *libc::__errno_location() = errno;
                return;
            }
        }
        // The instruction is tried again, and meets what would have met it. A signal from somewhere else does
        // not come again by itself.
        let before = BEFORE.get().map_or(std::ptr::null(), std::ptr::from_ref);
        let default: libc::sigaction = std::mem::zeroed();
        let before = if before.is_null() { &raw const default } else { before };
        libc::sigaction(signal, before, std::ptr::null_mut());
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
        // SAFETY: what happens to the file is the point of the test.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        (file, map)
    }

    #[test]
    fn what_is_cut_off_a_mapped_file_is_zeros() {
        let (file, map) = mapped(64 << 10);
        file.as_file().set_len(4096).unwrap();
        let sum = |page: &[u8]| page.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let sums = reading(|| map.chunks(4096).map(sum).collect::<Vec<_>>());
        let mut wanted = vec![0_u64; 16];
        wanted[0] = 7 * 4096;
        assert_eq!(sums, wanted);
    }

    /// In a process of its own, since that is to end.
    #[test]
    fn other_faults_end_the_process_as_ever() {
        const OWN: &str = "RANKDECK_TEST_MAPPED";
        if std::env::var_os(OWN).is_some() {
            reading(|| {});
            let (file, map) = mapped(4096);
            file.as_file().set_len(0).unwrap();
            std::process::exit(i32::from(std::hint::black_box(map[0])));
        }
        let name = "inspect::mapped::tests::other_faults_end_the_process_as_ever";
        let mut own = std::process::Command::new("/proc/self/exe");
        let ended = own.args(["--exact", name]).env(OWN, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
