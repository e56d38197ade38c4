//! Looking at real processes: blocked, stopped, spinning, gone.

use super::victim::Victim;
use super::*;
use std::process::{Command, Stdio};

fn subject(ident: Ident) -> Subject {
    Subject { rank: Rank(3), ident: Some(ident), page: "/nonexistent".into(), ..Subject::default() }
}

/// Looks until what is looked for has come about.
fn until(ident: Ident, what: &str, mut fits: impl FnMut(&Inspection) -> bool) -> Inspection {
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
fn a_pipe_is_traced_to_the_process_at_its_other_end() {
    // The shell's child sleeps and holds the writing end; `cat` waits for it.
    let victim = Victim::start("bash", &["-c", "exec 3< <(exec -a worker sleep 1000); exec cat <&3"]);
    // The parts of one look are of one moment after another: while the shell still becomes `cat`, they need
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
fn a_sleep_says_so() {
    let victim = Victim::start("sleep", &["1000"]);
    until(victim.ident(), "it sleeps", |found| found.blocked_on.as_deref() == Some("time to pass (sleep)"));
}

#[test]
fn a_thread_that_is_ready_to_run_is_awake_and_one_that_waits_is_not() {
    let spins = Victim::start("bash", &["-c", "while :; do :; done"]);
    until(spins.ident(), "it spins", |found| found.os.is_awake() && found.os.words == "runs");
    let sleeps = Victim::start("sleep", &["1000"]);
    until(sleeps.ident(), "it sleeps", |found| found.os.syscall.is_some() && !found.os.is_awake());
}

#[test]
fn a_stopped_process_shows_its_stack_and_stays_stopped() {
    let victim = Victim::start("sleep", &["1000"]);
    until(victim.ident(), "it sleeps", |found| found.os.syscall.is_some());
    victim.signal(libc::SIGSTOP);
    let found = until(victim.ident(), "it is stopped", |found| found.os.state == 'T');
    assert_eq!(found.os.words, "stopped by a signal");
    if cfg!(target_arch = "x86_64") {
        let native = found.threads.iter().find(|stack| stack.how == rankdeck_proto::inspection::How::Native);
        assert!(native.is_some_and(|stack| stack.frames.len() >= 3), "{found:#?}");
    }
    assert_eq!(crate::proc::stat(victim.0.id()).unwrap().state, 'T', "looking does not wake it");
}

#[test]
fn a_process_that_spins_is_read_and_goes_on() {
    let victim = Victim::start("bash", &["-c", "while :; do :; done"]);
    let found = until(victim.ident(), "it runs and was read", |found| {
        found.os.cpu_ms_moved > 0
            && (cfg!(not(target_arch = "x86_64")) || found.threads.iter().any(|stack| stack.frames.len() > 2))
    });
    assert_eq!(found.os.tracer, 0);
    until(victim.ident(), "it still runs", |found| found.os.cpu_ms_moved > 0 && found.os.tracer == 0);
}

#[test]
fn a_process_that_is_gone_says_so_at_once() {
    let mut victim = Victim::start("true", &[]);
    let ident = victim.ident();
    victim.0.wait().unwrap();
    let found = inspect(vec![subject(ident), Subject::default()]);
    assert_eq!((found[0].os.state, found[0].pid), ('X', None));
    assert_eq!(found[1].os.state, 'X');
    assert_eq!(found[0].rank, Rank(3));
}

#[test]
fn inspect_1_a_helper_that_is_stuck_is_not_waited_for() {
    let shared = SharedHelper::default();
    shared.found(|found| found.os.state = 'D');
    shared.stage("its memory map");
    let begun = Instant::now();
    let found = shared.take(begun + Duration::from_millis(50));
    assert_eq!(found.os.state, 'D', "what was found before is there");
    assert!(found.notes[0].starts_with("its memory map: no answer in time"), "{:?}", found.notes);
}

#[test]
fn inspect_2_a_process_with_a_stuck_helper_gets_no_second_one() {
    let victim = Victim::start("sleep", &["1000"]);
    let ident = victim.ident();
    let venture = MemoryWait::begin(ident).unwrap();
    let found = inspect(vec![subject(ident)]).remove(0);
    assert!(found.threads.is_empty());
    assert!(found.notes.iter().any(|note| note.contains("an earlier look still waits")), "{:?}", found.notes);
    drop(venture);
    until(ident, "it is read again", |found| !found.threads.is_empty() || cfg!(not(target_arch = "x86_64")));
}

#[test]
fn python_is_read_in_its_own_words_also_while_it_is_stopped() {
    let script =
        "import time\ndef innermost():\n    time.sleep(1000)\ndef outer():\n    innermost()\nouter()\n";
    let victim = Victim::start("python3", &["-c", script]);
    // A launcher script may stand before the interpreter (pyenv): wait for the interpreter itself.
    let python = |found: &Inspection| {
        found.threads.iter().any(|stack| {
            stack.how == rankdeck_proto::inspection::How::Python
                && stack.frames.iter().any(|frame| frame.function == "innermost" && frame.line == Some(3))
        })
    };
    until(victim.ident(), "a Python stack", python);
    victim.signal(libc::SIGSTOP);
    until(victim.ident(), "a Python stack of a stopped process", |found| {
        found.os.state == 'T' && python(found)
    });
}

/// It comes to its second wait while it is looked at, often after its call was read and before its stack.
#[test]
fn a_stack_and_a_call_belong_to_the_same_wait() {
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
        let found = victim.looked_at();
        let stands_in = |name: &str| {
            let mut frames = found.threads.iter().flat_map(|stack| &stack.frames);
            frames.any(|frame| frame.function == name)
        };
        let waits_for = |kind: &str| found.blocked_on.as_deref().is_some_and(|words| words.ends_with(kind));
        assert!(!(stands_in("second") && waits_for("(poll)")), "{delay_ms}: {found:#?}");
        assert!(!(stands_in("first") && waits_for("(futex)")), "{delay_ms}: {found:#?}");
    }
}

#[test]
fn a_process_in_uninterruptible_sleep_is_read_within_the_patience() {
    // A parent waits uninterruptibly until its vfork child calls exec or ends, and this one does neither.
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("d.c"), folder.path().join("d"));
    let code = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }\n";
    std::fs::write(&source, code).unwrap();
    let built = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        rankdeck_testkit::skip!("no C compiler; install gcc");
    }
    let victim = Victim::start(program.to_str().unwrap(), &[]);
    let found =
        until(victim.ident(), "it is in D", |found| found.os.state == 'D' && found.children.len() == 1);
    assert!(found.os.words.contains("cannot be interrupted"), "{}", found.os.words);
    assert!(found.took_ms < 20_000, "{}", found.took_ms);
    for child in crate::proc::descendants(victim.0.id()) {
        let start = crate::proc::stat(child).map_or(0, |stat| stat.start);
        crate::supervise::groups::signal(child, start, libc::SIGKILL);
    }
}

#[test]
fn only_a_thread_that_sleeps_with_the_interpreter_lock_that_the_rank_wants_holds_it_up() {
    // PyDLL keeps the lock during the call.
    let sleeps = "import ctypes, threading\nkeeps = lambda: ctypes.PyDLL(None).sleep(1000)\n";
    let in_main = Victim::start("python3", &["-c", &format!("{sleeps}keeps()")]);
    until(in_main.ident(), "its main thread keeps the lock", |found| found.sleeps_in_c);
    let beside =
        format!("{sleeps}import time\nthreading.Thread(target=keeps).start()\nwhile True: time.sleep(0)");
    let beside = Victim::start("python3", &["-c", &beside]);
    until(beside.ident(), "its main thread wants the lock", |found| found.sleeps_in_c);

    // The main thread sleeps, and does not want the lock that a writer beside it has.
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
