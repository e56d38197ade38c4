//! A file that somebody cuts while a page of it is mapped: a store behind its end would end the rank
//! (SIGBUS). Memory of the rank's own takes the place of the page; nobody reads it, and the rank goes on.
//!
//! Owner: the handler of SIGBUS of a process that writes a page, installed with its first one. Faults
//! elsewhere go the way that they would have gone without it.

use super::PAGE_BYTES;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages of one process that are looked after; a rank has one.
const PAGES: usize = 64;

/// Where they are; 0 for none.
static MAPPED: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];

/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A page that is looked after until this is dropped, which must be before it is unmapped.
pub(super) struct Guarded(Option<&'static AtomicUsize>);

impl Guarded {
    /// Looks after the page that begins at `address`.
    pub(super) fn new(address: usize) -> Guarded {
        BEFORE.get_or_init(install);
        let take = |slot: &&AtomicUsize| {
            slot.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        Guarded(MAPPED.iter().find(take))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::Release);
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

/// A store met what the file does not have any more.
extern "C" fn missing(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid siginfo_t, whose si_addr it has set for this code of SIGBUS; only
    // a mapping that is a page of this process is replaced, by one of the same size; the calls are safe in a
    // handler, and errno is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let at = (*info).si_addr() as usize;
        let holds = |from: &usize| *from != 0 && (*from..*from + PAGE_BYTES).contains(&at);
        let page = MAPPED.iter().map(|slot| slot.load(Ordering::Acquire)).find(holds);
        if let Some(page) = page.filter(|_| (*info).si_code == libc::BUS_ADRERR) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let put = libc::mmap(page as *mut libc::c_void, PAGE_BYTES, protection, flags, -1, 0);
            if put != libc::MAP_FAILED {
                *libc::__errno_location() = errno;
                return;
            }
        }
        // The instruction is tried again, and meets what would have met it. A signal from somewhere else does
        // not come again by itself.
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
