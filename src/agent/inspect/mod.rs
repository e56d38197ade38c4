//! Inspects ranks on request: kernel state, sockets, stacks and libraries of one process.
//!
//! Owner: one helper thread per rank and request, which fills an [`Inspection`] part by part, the parts that
//! cannot block first. Code map:
//!
//! ```text
//! steps         the parts in their order, and the wait of the main thread
//! syscall       the system call that a thread waits in, and bytes that the storage under it has moved
//! obstacle      the named thing that a thread is blocked on
//! awaited       the processes at the other end, whether they sleep or lack a core, and own threads that are waited for
//! descriptors   the process at the other end of a descriptor, and its mount
//! locks         the holders of file locks
//! sockets       TCP_INFO and unix peers by netlink, listening sockets
//! memory        maps and memory of another process
//! variables     paths and addresses that a sleeping Python loop refers to
//! stacks        all stacks of a process, Python stacks from outside
//! native        native stacks from outside
//! elf           object files of the process, read by sections
//! symbols       unwinding through them, names
//! recorder      PyTorch's Flight Recorder
//! ras           NCCL's RAS subsystem
//! ```
//!
//! Invariants:
//! - INSPECT-1: an answer is given within [`PATIENCE`] ([`BUSY_PATIENCE`] on a busy host), whatever state a
//!   rank is in: what a helper has found by then is sent, and what it was still waiting for is named.
//! - INSPECT-2: a helper that is stuck is left alone and counted; a rank with a stuck helper gets no second
//!   one that reads its memory.
//! - An inspection changes nothing about the rank: no signal, no interrupted system call, nothing
//!   started in it.

mod awaited;
pub(crate) mod descriptors;
#[cfg(target_arch = "x86_64")]
mod elf;
mod locks;
pub(crate) mod memory;
#[cfg(target_arch = "x86_64")]
pub(crate) mod native;
pub(crate) mod obstacle;
pub(crate) mod ras;
pub(crate) mod recorder;
pub(crate) mod sockets;
mod stacks;
mod steps;
#[cfg(target_arch = "x86_64")]
pub(crate) mod symbols;
pub(crate) mod syscall;
mod variables;

#[cfg(test)]
pub(crate) use steps::gpu_words;

use crate::proc::ProcessKey;
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::Rank;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer takes no longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1600);
/// The same on a host whose cores have more to do than they can: symbols of a stack take CPU time.
pub(crate) const BUSY_PATIENCE: Duration = Duration::from_secs(8);
/// Pressure from which a host counts as that busy: percent of the last 10 s in which some task waited for a
/// core.
const BUSY: f32 = 60.0;
/// Most ranks of one request.
const RANKS: usize = 64;

/// One rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InspectTarget {
    pub rank: Rank,
    /// Its process, `None` before its start and after its end.
    pub ident: Option<ProcessKey>,
    /// Its status page.
    pub page: PathBuf,
    /// Its program is not a child of that process: a container's monitor starts it.
    pub elsewhere: bool,
    /// The last line of its log.
    pub last_line: Option<String>,
    /// Its GPU, as NVML saw it last.
    pub gpu: Option<GpuSample>,
    /// Where NCCL's RAS subsystem answers in the ranks of this host: the others first, since this one may be
    /// frozen.
    pub ras: Vec<String>,
}

/// What a helper has found so far.
#[derive(Debug, Default)]
struct InspectionProgress {
    found: Inspection,
    stage: &'static str,
    done: bool,
}

/// One rank's helper and those who wait for it.
#[derive(Debug, Clone, Default)]
struct SharedHelper {
    progress: Arc<(Mutex<InspectionProgress>, Condvar)>,
}

impl SharedHelper {
    fn stage(&self, stage: &'static str) {
        self.change(|progress| progress.stage = stage);
    }

    fn found<T>(&self, change: impl FnOnce(&mut Inspection) -> T) -> T {
        self.change(|progress| change(&mut progress.found))
    }

    fn change<T>(&self, change: impl FnOnce(&mut InspectionProgress) -> T) -> T {
        let changed = change(&mut self.progress.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.progress.1.notify_all();
        changed
    }

    /// What there is at the deadline, or as soon as everything is there.
    fn take(&self, deadline: Instant) -> Inspection {
        let mut progress = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !progress.done {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.progress.1.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut found = progress.found.clone();
        if !progress.done {
            found
                .notes
                .push(format!("{}: timed out; the process may be stuck in the kernel", progress.stage));
        }
        found
    }
}

/// Processes whose memory some helper is still waiting for.
static STUCK: Mutex<BTreeSet<ProcessKey>> = Mutex::new(BTreeSet::new());

/// A helper's word that it is about to wait for a process's memory, taken back when it is through.
struct MemoryWait(ProcessKey);

impl MemoryWait {
    fn start(ident: ProcessKey) -> Option<MemoryWait> {
        let first = STUCK.lock().unwrap_or_else(PoisonError::into_inner).insert(ident);
        // Made only when it is held: dropping one gives the word back.
        first.then(|| MemoryWait(ident))
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        STUCK.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Inspects ranks, all at once, and answers in time (INSPECT-1). Blocks for that long: not for the agent's
/// loop.
pub fn inspect(subjects: Vec<InspectTarget>) -> Vec<Inspection> {
    let begun = Instant::now();
    let busy = crate::observe::host_signals::pressure().is_some_and(|pressure| pressure.cpu >= BUSY);
    let deadline = begun + if busy { BUSY_PATIENCE } else { PATIENCE };
    let helpers: Vec<(Rank, SharedHelper)> = subjects
        .into_iter()
        .take(RANKS)
        .map(|subject| {
            let (rank, shared) = (subject.rank, SharedHelper::default());
            let mine = shared.clone();
            shared.found(|found| found.rank = rank);
            let work = move || {
                steps::run(&subject, &mine, deadline);
                mine.change(|progress| progress.done = true);
            };
            if let Err(error) = std::thread::Builder::new().name("inspect".into()).spawn(work) {
                shared.found(|found| found.notes.push(format!("cannot start inspection thread: {error}")));
                shared.change(|progress| progress.done = true);
            }
            (rank, shared)
        })
        .collect();
    helpers
        .into_iter()
        .map(|(_, shared)| {
            let mut found = shared.take(deadline);
            if found.took_ms == 0 {
                found.took_ms = begun.elapsed().as_millis() as u64;
            }
            found
        })
        .collect()
}

/// A state letter in words.
pub(crate) fn state_words(state: char) -> &'static str {
    match state {
        'R' => "runs",
        'S' | 'I' => "waits",
        'D' => "uninterruptible wait in the kernel (storage or a driver)",
        'T' => "suspended by a signal",
        't' => "held by a debugger",
        'Z' => "ended, not reaped",
        _ => "gone",
    }
}

fn thread_name(pid: u32, tid: u32) -> String {
    crate::proc::text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use std::process::{Child, Command, Stdio};

    fn subject(ident: ProcessKey) -> InspectTarget {
        InspectTarget {
            rank: Rank(3),
            ident: Some(ident),
            page: "/nonexistent".into(),
            ..InspectTarget::default()
        }
    }

    /// Inspects until the condition holds.
    fn until(ident: ProcessKey, what: &str, mut fits: impl FnMut(&Inspection) -> bool) -> Inspection {
        let begun = Instant::now();
        loop {
            let found = inspect(vec![subject(ident)]).remove(0);
            if fits(&found) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s: {what}: {found:#?}");
        }
    }

    #[test]
    fn pipe_is_traced_to_the_process_at_its_other_end() {
        // The shell's child sleeps and holds the writing end; `cat` waits for it.
        let victim = Victim::start("bash", &["-c", "exec 3< <(exec -a worker sleep 1000); exec cat <&3"]);
        // The steps of one inspection happen one after another: while the shell still becomes `cat`, they need
        // not fit together.
        let found = until(victim.ident(), "cat reads and its child sleeps", |found| {
            found.blocked_on.as_deref().is_some_and(|words| words.contains("(sleep)"))
                && (found.os.state, found.os.words.as_str()) == ('S', "waits")
                && found.children.iter().any(|child| child.name == "sleep" && child.cpu_ms_moved == 0)
        });
        let words = found.blocked_on.unwrap();
        assert!(words.starts_with("read on a pipe from pid "), "{words}");
        crate::supervise::groups::signal(
            found.children[0].pid,
            crate::proc::stat(found.children[0].pid).unwrap().start,
            libc::SIGKILL,
        );
    }

    #[test]
    fn sleep_is_reported_as_a_timer() {
        let victim = Victim::start("sleep", &["1000"]);
        until(victim.ident(), "it sleeps", |found| found.blocked_on.as_deref() == Some("a timer (sleep)"));
    }

    #[test]
    fn ready_thread_is_awake_and_waiting_one_is_not() {
        let spins = Victim::start("bash", &["-c", "while :; do :; done"]);
        until(spins.ident(), "it spins", |found| found.os.is_awake() && found.os.words == "runs");
        let sleeps = Victim::start("sleep", &["1000"]);
        until(sleeps.ident(), "it sleeps", |found| found.os.syscall.is_some() && !found.os.is_awake());
    }

    #[test]
    fn stopped_process_shows_its_stack_and_stays_stopped() {
        let victim = Victim::start("sleep", &["1000"]);
        until(victim.ident(), "it sleeps", |found| found.os.syscall.is_some());
        victim.signal(libc::SIGSTOP);
        let found = until(victim.ident(), "it is stopped", |found| found.os.state == 'T');
        assert_eq!(found.os.words, "suspended by a signal");
        if cfg!(target_arch = "x86_64") {
            let native = found
                .threads
                .iter()
                .find(|stack| stack.how == rankdeck_proto::inspection::StackMethod::Native);
            assert!(native.is_some_and(|stack| stack.frames.len() >= 3), "{found:#?}");
        }
        assert_eq!(crate::proc::stat(victim.0.id()).unwrap().state, 'T', "an inspection does not wake it");
    }

    #[test]
    fn process_that_spins_is_read_and_goes_on() {
        let victim = Victim::start("bash", &["-c", "while :; do :; done"]);
        let found = until(victim.ident(), "it runs and was read", |found| {
            found.os.cpu_ms_moved > 0
                && (cfg!(not(target_arch = "x86_64"))
                    || found.threads.iter().any(|stack| stack.frames.len() > 2))
        });
        assert_eq!(found.os.tracer, 0);
        until(victim.ident(), "it still runs", |found| found.os.cpu_ms_moved > 0 && found.os.tracer == 0);
    }

    #[test]
    fn gone_process_is_reported_at_once() {
        let mut victim = Victim::start("true", &[]);
        let ident = victim.ident();
        victim.0.wait().unwrap();
        let found = inspect(vec![subject(ident), InspectTarget::default()]);
        assert_eq!((found[0].os.state, found[0].pid), ('X', None));
        assert_eq!(found[1].os.state, 'X');
        assert_eq!(found[0].rank, Rank(3));
    }

    #[test]
    fn inspect_1_helper_that_is_stuck_is_not_waited_for() {
        let shared = SharedHelper::default();
        shared.found(|found| found.os.state = 'D');
        shared.stage("memory map");
        let begun = Instant::now();
        let found = shared.take(begun + Duration::from_millis(50));
        assert_eq!(found.os.state, 'D', "what was found before is there");
        assert!(found.notes[0].starts_with("memory map: "), "{:?}", found.notes);
    }

    #[test]
    fn inspect_2_process_with_a_stuck_helper_gets_no_second_one() {
        let victim = Victim::start("sleep", &["1000"]);
        let ident = victim.ident();
        let venture = MemoryWait::start(ident).unwrap();
        let found = inspect(vec![subject(ident)]).remove(0);
        assert!(found.threads.is_empty());
        assert!(found.notes.iter().any(|note| note == steps::MEMORY_IS_AWAITED), "{:?}", found.notes);
        drop(venture);
        until(ident, "it is read again", |found| {
            !found.threads.is_empty() || cfg!(not(target_arch = "x86_64"))
        });
    }

    #[test]
    fn python_is_read_in_its_own_words_also_while_it_is_stopped() {
        let script =
            "import time\ndef innermost():\n    time.sleep(1000)\ndef outer():\n    innermost()\nouter()\n";
        let victim = Victim::start("python3", &["-c", script]);
        // A launcher script may stand before the interpreter (pyenv): wait for the interpreter itself.
        let python = |found: &Inspection| {
            found.threads.iter().any(|stack| {
                stack.how == rankdeck_proto::inspection::StackMethod::Python
                    && stack.frames.iter().any(|frame| frame.function == "innermost" && frame.line == Some(3))
            })
        };
        until(victim.ident(), "a Python stack", python);
        victim.signal(libc::SIGSTOP);
        until(victim.ident(), "a Python stack of a stopped process", |found| {
            found.os.state == 'T' && python(found)
        });
    }

    /// It comes to its second wait during the inspection, often after its call was read and before its stack.
    #[test]
    fn stack_and_a_call_belong_to_the_same_wait() {
        let code = "import select, sys, threading\n\
        def first():\n\
        \x20   sys.stdin.read()\n\
        \x20   select.poll().poll(float(sys.argv[1]))\n\
        def second():\n\
        \x20   lock = threading.Lock()\n\
        \x20   lock.acquire(), lock.acquire()\n\
        first()\nsecond()";
        for delay_ms in (1..120).step_by(5) {
            let mut command = Command::new("python3");
            command.args(["-c", code, &delay_ms.to_string()]).stdin(Stdio::piped());
            let mut victim = Victim(command.spawn().unwrap());
            victim.until("it waits for its input", || {
                let call = syscall::call(victim.pid(), victim.pid());
                call.is_some_and(|call| (call.number, call.args[0]) == (Some(libc::SYS_read), 0))
            });
            drop(victim.0.stdin.take());
            let found = victim.inspection();
            let stands_in = |name: &str| {
                let mut frames = found.threads.iter().flat_map(|stack| &stack.frames);
                frames.any(|frame| frame.function == name)
            };
            let waits_for =
                |kind: &str| found.blocked_on.as_deref().is_some_and(|words| words.ends_with(kind));
            assert!(!(stands_in("second") && waits_for("(poll)")), "{delay_ms}: {found:#?}");
            assert!(!(stands_in("first") && waits_for("(futex)")), "{delay_ms}: {found:#?}");
        }
    }

    #[test]
    fn uninterruptible_process_is_inspected_in_time() {
        // A parent waits uninterruptibly until its vfork child calls exec or ends, and this one does neither.
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("d.c"), folder.path().join("d"));
        let code =
            "#include <unistd.h>\nint main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }\n";
        std::fs::write(&source, code).unwrap();
        let built = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&source).status();
        if !built.is_ok_and(|status| status.success()) {
            rankdeck_testkit::skip!("no C compiler; install gcc");
        }
        let victim = Victim::start(program.to_str().unwrap(), &[]);
        let found =
            until(victim.ident(), "it is in D", |found| found.os.state == 'D' && found.children.len() == 1);
        assert_eq!(found.os.state, 'D', "{}", found.os.words);
        assert!(found.took_ms < 20_000, "{}", found.took_ms);
        for child in crate::proc::descendants(victim.0.id()) {
            let start = crate::proc::stat(child).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(child, start, libc::SIGKILL);
        }
    }

    #[test]
    fn sleeping_gil_holder_blocks_only_waiting_ranks() {
        // PyDLL keeps the lock during the call.
        let sleeps = "import ctypes, threading\nkeeps = lambda: ctypes.PyDLL(None).sleep(1000)\n";
        let in_main = Victim::start("python3", &["-c", &format!("{sleeps}keeps()")]);
        until(in_main.ident(), "its main thread keeps the lock", |found| found.sleeps_in_c);
        let in_thread =
            format!("{sleeps}import time\nthreading.Thread(target=keeps).start()\nwhile True: time.sleep(0)");
        let in_thread = Victim::start("python3", &["-c", &in_thread]);
        until(in_thread.ident(), "its main thread waits for the lock", |found| found.sleeps_in_c);

        // The main thread sleeps, and does not wait for the lock of a writer in another thread.
        let code = "import threading, time\ndef write():\n    while True: pass\n\
        threading.Thread(target=write, daemon=True).start()\ntime.sleep(1000)";
        let writer = Victim::start("python3", &["-c", code]);
        let held = |found: &Inspection| {
            let sleeps = found.os.sleep_left_ms.is_some_and(|left| left > 900_000);
            sleeps && found.notes.iter().any(|note| note.ends_with(rankdeck_proto::inspection::HOLDS_GIL))
        };
        let found = until(writer.ident(), "it sleeps while the writer has the lock", held);
        assert!(!found.sleeps_in_c, "{found:#?}");
    }

    /// A process that tests inspect, killed with its children.
    pub(super) struct Victim(pub Child);

    impl Victim {
        pub fn start(program: &str, args: &[&str]) -> Victim {
            let mut command = Command::new(program);
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Victim(command.spawn().unwrap())
        }

        pub fn pid(&self) -> u32 {
            self.0.id()
        }

        pub fn ident(&self) -> ProcessKey {
            let stat = proc::stat(self.pid()).unwrap();
            ProcessKey { pid: stat.pid, start: stat.start }
        }

        pub fn signal(&self, signal: i32) {
            // SAFETY: kill takes integers; the child is ours and not reaped.
            unsafe { libc::kill(self.pid() as i32, signal) };
        }

        /// Inspects it once.
        pub fn inspection(&self) -> Inspection {
            let ident = Some(self.ident());
            inspect(vec![InspectTarget { ident, ..Default::default() }]).remove(0)
        }

        pub fn until(&self, what: &str, mut fits: impl FnMut() -> bool) {
            let begun = Instant::now();
            while !fits() {
                assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    impl Drop for Victim {
        fn drop(&mut self) {
            for child in proc::descendants(self.pid()) {
                let start = proc::stat(child).map_or(0, |stat| stat.start);
                crate::supervise::groups::signal(child, start, libc::SIGKILL);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
