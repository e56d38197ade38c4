//! Native stacks from outside: registers, a copy of the stack, unwinding by the call-frame information of the
//! mapped files.
//!
//! Owner: a helper thread of one inspection. A thread that waits in the kernel (also one that is stopped,
//! frozen or in uninterruptible sleep) is not disturbed: `/proc/PID/task/TID/syscall` has its stack pointer
//! and program counter. Only a thread that runs in user space is stopped, by ptrace, for the time that
//! copying its stack takes and by a thread that lives no longer; a system call is never interrupted, since
//! some would return EINTR to the program. Method: DWARF call-frame information (`.eh_frame`), unwound by
//! framehop.

use super::memory;
use super::symbols::Modules;
use super::syscall;
use rankdeck_proto::inspection::{Frame, StackMethod, ThreadStack};
use std::time::Instant;

/// Most bytes of one stack.
const STACK_BYTES: usize = 512 << 10;
/// Most frame records tried, and how far up the stack.
const RECORDS: usize = 48;
const RECORD_BYTES: usize = 16 << 10;
/// Most frames of one thread.
const FRAMES: usize = 96;

/// Registers of a thread and a copy of its stack.
pub(crate) struct StackSnapshot {
    ip: u64,
    sp: u64,
    bp: u64,
    stack: Vec<u8>,
}

/// Copies the stack of one thread.
pub(crate) fn copy(pid: u32, tid: u32) -> Result<StackSnapshot, String> {
    let call = syscall::call(pid, tid).ok_or("the kernel hides its registers from this user")?;
    if call.sp != 0 {
        let stack = memory::read(pid, call.sp, STACK_BYTES).map_err(|error| format!("its stack: {error}"))?;
        // The thread may have continued in between: then the copy matches no stack pointer.
        if syscall::call(pid, tid) == Some(call) {
            return Ok(StackSnapshot { ip: call.pc, sp: call.sp, bp: 0, stack });
        }
    }
    seize::copy(pid, tid)
}

impl StackSnapshot {
    /// Addresses of its frames, innermost first; each but the first lies inside the call instruction.
    ///
    /// The frame pointer of a thread that waits is not known: the kernel shows two registers only. It is
    /// needed where a function close to the system call keeps one, so every place on the stack that may be a
    /// frame record (anything, since the caller may use that register for whatever it likes, then an address
    /// that a call returns to) is tried from the innermost on. Records of calls that are over lie there, too,
    /// and lead to the bottom of the stack as the right one does, but their calls went to other functions.
    /// Taken is what leads to the bottom with the fewest of those, else what leads farthest.
    pub fn unwind(&self, modules: &mut Modules) -> Vec<u64> {
        let known = self.unwind_with(modules, self.bp);
        if self.bp != 0 || known.1 {
            return known.0;
        }
        let (mut best, mut tried) = ((known.0, usize::MAX), 0);
        for at in (0..self.stack.len().min(RECORD_BYTES)).step_by(8) {
            let record = self.sp + at as u64;
            let Some(back) = self.word(record + 8) else { break };
            if !modules.is_return(back) {
                continue;
            }
            let (frames, whole) = self.unwind_with(modules, record);
            let strays = if whole { modules.strays(&frames) } else { usize::MAX };
            if strays < best.1 || strays == usize::MAX && best.1 == strays && frames.len() > best.0.len() {
                best = (frames, strays);
            }
            tried += 1;
            if best.1 == 0 || tried >= RECORDS {
                break;
            }
        }
        best.0
    }

    fn unwind_with(&self, modules: &mut Modules, bp: u64) -> (Vec<u64>, bool) {
        modules.unwind(self.ip, self.sp, bp, FRAMES, |address| self.word(address))
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        Some(u64::from_le_bytes(self.stack.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }
}

/// Stacks of at most `most` threads, main thread first; threads that wait in the same frames as an earlier
/// one are left out. Files and lines are resolved only with `lines`.
pub(crate) fn stacks(
    pid: u32,
    tids: &[u32],
    modules: &mut Modules,
    most: usize,
    lines: bool,
    deadline: Instant,
    mut note: impl FnMut(String),
) -> Vec<ThreadStack> {
    let mut found: Vec<(u32, Vec<u64>)> = Vec::new();
    for tid in tids {
        if found.len() >= most || Instant::now() >= deadline {
            break;
        }
        match copy(pid, *tid) {
            Ok(copy) => {
                let addresses = copy.unwind(modules);
                if !found.iter().any(|(_, known)| *known == addresses) {
                    found.push((*tid, addresses));
                }
            }
            Err(why) if *tid == pid => note(format!("no native stack of the main thread: {why}")),
            Err(_) => {}
        }
    }
    let all: Vec<u64> = found.iter().flat_map(|(_, addresses)| addresses.iter().copied()).collect();
    let named = modules.names(&all, lines);
    found
        .into_iter()
        .map(|(tid, addresses)| ThreadStack {
            tid,
            name: super::thread_name(pid, tid),
            how: StackMethod::Native,
            frames: addresses
                .iter()
                .flat_map(|address| {
                    named.get(address).cloned().unwrap_or_else(|| {
                        vec![Frame { function: format!("{address:#x}"), file: None, line: None }]
                    })
                })
                .take(FRAMES)
                .collect(),
        })
        .collect()
}

#[cfg(target_arch = "x86_64")]
mod seize {
    //! Registers of a running thread.

    use super::{STACK_BYTES, StackSnapshot, memory};
    use std::time::{Duration, Instant};

    /// How long a running thread may take to stop: it has to be scheduled once.
    const PATIENCE: Duration = Duration::from_millis(200);

    /// Stops the thread for as long as copying takes.
    ///
    /// By a thread that ends with that: only a stopped thread can be detached from, and one that starves may
    /// stop long after the patience is over. The end of its tracer lets it go wherever it is, and takes the
    /// order to stop back.
    pub fn copy(pid: u32, tid: u32) -> Result<StackSnapshot, String> {
        copy_within(pid, tid, PATIENCE)
    }

    pub(super) fn copy_within(pid: u32, tid: u32, patience: Duration) -> Result<StackSnapshot, String> {
        let tracer = std::thread::Builder::new().name("inspect".into());
        let tracer = tracer
            .spawn(move || hold(pid, tid, patience))
            .map_err(|error| format!("cannot start inspection thread: {error}"))?;
        tracer.join().unwrap_or_else(|_| Err("the tracer failed".into()))
    }

    /// Must not wait on the thread: the agent's loop reaps by process id and may see the stop first, so the
    /// state letter is polled instead.
    fn hold(pid: u32, tid: u32, patience: Duration) -> Result<StackSnapshot, String> {
        let state = || {
            let text = crate::proc::text(format!("/proc/{pid}/task/{tid}/stat"))?;
            crate::proc::parse_stat(&text).map(|stat| stat.state)
        };
        if state() != Some('R') {
            return Err("the thread ran during sampling".into());
        }
        ptrace(libc::PTRACE_SEIZE, tid, 0)?;
        let result = ptrace(libc::PTRACE_INTERRUPT, tid, 0).and_then(|()| {
            let begun = Instant::now();
            while state() != Some('t') {
                if begun.elapsed() >= patience {
                    return Err("the thread did not stop for sampling".to_owned());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            // SAFETY: all-zero is a valid user_regs_struct.
            let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            ptrace(libc::PTRACE_GETREGS, tid, &raw mut registers as usize)?;
            let stack = memory::read(pid, registers.rsp, STACK_BYTES)
                .map_err(|error| format!("its stack: {error}"))?;
            Ok(StackSnapshot { ip: registers.rip, sp: registers.rsp, bp: registers.rbp, stack })
        });
        let _ = ptrace(libc::PTRACE_DETACH, tid, 0);
        result
    }

    fn ptrace(request: libc::c_uint, tid: u32, data: usize) -> Result<(), String> {
        // SAFETY: every request used here takes integers, or in `data` a pointer to a structure that outlives
        // the call.
        let done = unsafe { libc::ptrace(request, tid as libc::pid_t, 0usize, data) };
        if done == -1 { Err(format!("ptrace: {}", std::io::Error::last_os_error())) } else { Ok(()) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod seize {
    //! Running threads are read on x86-64 only.

    /// Returns an error on other processors.
    pub fn copy(_: u32, _: u32) -> Result<super::StackSnapshot, String> {
        Err("stacks of running threads are read on x86-64 only".into())
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// A process that ends with the test, also where that fails.
    struct Spinner(std::process::Child);

    impl Drop for Spinner {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn thread_that_stops_too_late_is_not_stopped() {
        let spins = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let spinner = Spinner(spins);
        let pid = spinner.0.id();
        let begun = Instant::now();
        for attempt in 0.. {
            assert!(begun.elapsed() < Duration::from_secs(30), "it stops at once every time");
            match seize::copy_within(pid, pid, Duration::ZERO) {
                Err(why) if why.contains("did not stop") => break,
                // Later ones may find the tracer before them not quite gone.
                Err(why) if attempt == 0 && why.contains("ptrace") => {
                    rankdeck_testkit::skipped(&why);
                    break;
                }
                Ok(_) | Err(_) => {}
            }
        }
        // The kernel lets go when the tracer is gone for good, which may be a moment after it was waited for.
        while crate::proc::tracer(pid) != 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "still held");
            std::thread::sleep(Duration::from_millis(1));
        }
        let used = || crate::proc::stat(pid).unwrap().cpu_ticks;
        let before = used();
        while used() < before + 5 {
            assert!(begun.elapsed() < Duration::from_secs(90), "it does not run on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    static LOCK: Mutex<()> = Mutex::new(());
    static TID: AtomicU32 = AtomicU32::new(0);

    /// The slow way of taking the lock keeps a frame pointer.
    extern "C" fn takes_the_lock() {
        drop(LOCK.lock());
    }

    /// Uses the register of the frame pointer for something else, as optimized code does.
    #[inline(never)]
    fn calls_with_another_value_in_rbp() {
        // SAFETY: the register is put back; the called function is an ordinary one and the stack is aligned
        // here, since others are called too.
        unsafe {
            std::arch::asm!(
                // Unwinding finds the caller's value where it was put.
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rbp, 0",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "mov rbp, 0x7fffffff",
                "call {called}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop rbp",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_restore rbp",
                called = sym takes_the_lock,
                clobber_abi("C"),
            );
        }
        std::hint::black_box(());
    }

    #[test]
    fn stack_with_reused_frame_pointer_has_no_gap() {
        let held = LOCK.lock().unwrap();
        let thread = std::thread::spawn(|| {
            // SAFETY: no arguments, cannot fail.
            TID.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
            calls_with_another_value_in_rbp();
        });
        let pid = std::process::id();
        let deadline = Instant::now() + Duration::from_secs(30);
        let functions = loop {
            let tid = TID.load(Ordering::SeqCst);
            let mut modules = Modules::new(pid, &memory::code(pid).unwrap());
            let found = stacks(pid, &[tid], &mut modules, 1, true, deadline, |_| {});
            let frames = found.into_iter().flat_map(|stack| stack.frames).map(|frame| frame.function);
            let functions: Vec<String> = frames.collect();
            if functions.iter().any(|name| name.contains("takes_the_lock")) || Instant::now() > deadline {
                break functions;
            }
        };
        drop(held);
        thread.join().unwrap();
        let at = |name: &str| functions.iter().position(|function| function.contains(name));
        let (inner, outer) = (at("takes_the_lock"), at("calls_with_another_value_in_rbp"));
        assert!(inner.is_some() && inner < outer, "{functions:#?}");
    }
}
