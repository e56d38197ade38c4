use super::*;
use crate::model::Model;
use crate::reason::{Reason, Severity};
use crate::watch::{Death, dead};
use rankdeck_types::ids::Rank;

const CODE: Exit = Exit::Code { code: 1 };

fn signal(signal: i32) -> Exit {
    Exit::Signal { signal, out_of_memory: false }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// What a verdict says about an end whose log this is.
fn reason(exit: &Exit, log: &str, exception: Option<&Exception>, hooked: bool) -> (Reason, Severity) {
    let lines = lines(log);
    let said = LastWords::of(&EndOfProcess { exit, exception, error: None, lines: &lines, hooked });
    let victim = said.kind() == FailureKind::Connection;
    let death = Death { exit, said: &said, last_lines: &lines, victim, victim_of: None, sent: None };
    let verdict = dead(&Model::default(), Rank(1), &death);
    (verdict.reason_code, verdict.severity)
}

/// A log that ends with an exception raised in `train.py`.
fn raised(before: &str, exception: &str) -> String {
    format!(
        "{before}\nTraceback (most recent call last):\n  File \"/w/train.py\", line 40, in <module>\n    main()\n  \
         File \"/w/train.py\", line 31, in main\n    step()\n    ^^^^^^\n{exception}"
    )
}

/// Warnings that have nothing to do with the end.
const NOISE: [&str; 7] = [
    "WARNING: cannot write the cache: [Errno 28] No space left on device (ENOSPC), going on without it",
    "bind: Address already in use (EADDRINUSE), trying the next port",
    "tracker: socket timed out, will try again",
    "simulator: Connection reset by peer, reconnecting",
    "wandb: Broken pipe, offline from now on",
    "torch.OutOfMemoryError: CUDA out of memory. caught, batch halved",
    "peer 3: connection closed; connection refused; lost another rank",
];

/// What a verdict says about an end that the rank has called so.
fn reported(kind: FailureKind, text: &str) -> Reason {
    let said = LastWords::of(&EndOfProcess {
        exit: &CODE,
        exception: None,
        error: Some((text, Some(kind))),
        lines: &lines(text),
        hooked: false,
    });
    let victim = said.kind() == FailureKind::Connection;
    let death = Death { exit: &CODE, said: &said, last_lines: &[], victim, victim_of: None, sent: None };
    dead(&Model::default(), Rank(1), &death).reason_code
}

#[test]
fn the_kind_that_a_program_gives_decides_whatever_its_text_says() {
    use FailureKind::*;
    let misleading = NOISE.into_iter().chain([
        "environment Pong: socket closed: no space left on device",
        "rank 1 of 2: all_reduce \"grad\": CUDA out of memory",
        "the GPU failed: data size doesn't match",
        "",
    ]);
    for text in misleading {
        for (kind, wanted) in [
            (Connection, Reason::ConnectionLost),
            (Mismatch, Reason::MismatchAbort),
            (Rendezvous, Reason::Failed),
            (PortTaken, Reason::PortTaken),
            (DiskFull, Reason::DiskFull),
            (OutOfMemory, Reason::OutOfMemory),
            (GpuFailed, Reason::GpuFailed),
            (Environment, Reason::Failed),
            (Configuration, Reason::Failed),
            (Diverged, Reason::Failed),
            (Other, Reason::Failed),
        ] {
            assert_eq!(reported(kind, text), wanted, "{kind:?} {text}");
            let exception = Exception {
                class: "RuntimeError".into(),
                message: text.into(),
                errno: Some(ENOSPC),
                failure: Some(kind),
                ..Exception::default()
            };
            let said = LastWords::exception(&exception);
            assert_eq!(said.kind(), kind, "{text}");
        }
    }
    let newer: FailureKind = serde_json::from_str("\"melted\"").unwrap();
    assert_eq!(newer, Other, "a kind of a newer build is the rank's own");
}

#[test]
fn words_before_the_end_decide_nothing() {
    let key = Exception { class: "KeyError".into(), message: "'obs'".into(), ..Exception::default() };
    for noise in NOISE {
        for (exit, log, exception, hooked, wanted) in [
            (CODE, raised(noise, "KeyError: 'obs'"), None, false, Reason::Failed),
            (CODE, raised(noise, "KeyError: 'obs'"), Some(&key), true, Reason::Failed),
            (CODE, format!("KeyError: 'obs'\n{noise}"), Some(&key), true, Reason::Failed),
            (CODE, format!("{noise}\nleaving with code 1"), None, false, Reason::Failed),
            (CODE, noise.to_owned(), None, true, Reason::Failed),
            (signal(11), noise.to_owned(), None, false, Reason::Crashed),
            (signal(9), noise.to_owned(), None, true, Reason::Killed),
            (Exit::Code { code: 139 }, format!("{noise}\nleaving"), None, false, Reason::Crashed),
            (signal(6), format!("{noise}\nFatal Python error: Aborted"), None, false, Reason::Crashed),
        ] {
            let found = reason(&exit, &log, exception, hooked);
            assert_eq!(found, (wanted, Severity::Red), "{exit:?} {log}");
        }
    }
}

#[test]
fn the_exception_that_ended_it_decides() {
    use Reason::{ConnectionLost, DiskFull, Failed, MismatchAbort, OutOfMemory, PortTaken};
    let table = [
        ("OSError: [Errno 28] No space left on device: '/ckpt/latest.pt'", DiskFull),
        ("OSError: [Errno 122] Disk quota exceeded: '/data/latest.pt'", DiskFull),
        ("RuntimeError: unable to write to file </torch_1_2_0>: No space left on device (28)", DiskFull),
        ("OSError: [Errno 98] Address already in use", PortTaken),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network \
          address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            PortTaken,
        ),
        (
            "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            PortTaken,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", OutOfMemory),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", OutOfMemory),
        ("MemoryError", OutOfMemory),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried \
          to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
            OutOfMemory,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", OutOfMemory),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1",
            ConnectionLost,
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [10.0.0.1]:4: Connection reset by peer",
            ConnectionLost,
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for \
          recv operation to complete",
            ConnectionLost,
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there \
          was a network error",
            ConnectionLost,
        ),
        (
            "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed.",
            ConnectionLost,
        ),
        ("torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients", Failed),
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 26668 vs 13336",
            MismatchAbort,
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective",
            MismatchAbort,
        ),
        // The program's own connections, words and values.
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Failed),
        ("BrokenPipeError: [Errno 32] Broken pipe", Failed),
        ("ConnectionRefusedError: [Errno 111] Connection refused", Failed),
        ("TimeoutError: timed out", Failed),
        ("socket.timeout: timed out", Failed),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", Failed),
        ("EOFError", Failed),
        ("RuntimeError: time-out of 2000ms while waiting for the simulator, make sure it is ready", Failed),
        ("RuntimeError: simulator: connection reset by peer", Failed),
        ("mysim.client.SimulatorError: socket closed, peer gone, timed out waiting", Failed),
        ("KeyError: 'No space left on device'", Failed),
        ("ValueError: Address already in use", Failed),
        ("AssertionError: op.preamble.length <= op.nbytes", Failed),
        ("NotImplementedError: CUDA out of memory", Failed),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'no space left on device'", Failed),
        ("PermissionError: [Errno 13] Permission denied: '/ckpt'", Failed),
        ("AttributeError: 'Peer' object has no attribute 'socket'", Failed),
    ];
    for (exception, wanted) in table {
        for log in [
            raised("step 7", exception),
            raised("step 7", exception).lines().map(|line| format!("[rank1]: {line}\n")).collect(),
            raised(
                "step 7",
                &format!(
                    "{exception}\n[rank1]:[W1123 00:49:23.1 ProcessGroup.cpp:9] destroy_process_group() was not called"
                ),
            ),
            // The head of the traceback is further up than the last lines reach.
            raised("", exception).lines().skip(3).map(|line| format!("{line}\n")).collect(),
        ] {
            assert_eq!(reason(&CODE, &log, None, false).0, wanted, "{log}");
        }
    }
}

#[test]
fn a_report_of_the_hook_needs_no_log() {
    let exception = |class: &str, bases: &[&str], message: &str, errno| Exception {
        class: class.into(),
        bases: bases.iter().map(|base| (*base).into()).collect(),
        message: message.into(),
        errno,
        at: "/w/train.py:31".into(),
        ..Exception::default()
    };
    let os: &[&str] = &["ConnectionError", "OSError", "Exception"];
    let runtime: &[&str] = &["RuntimeError", "Exception"];
    for (exception, wanted) in [
        (exception("sim.Reset", os, "[Errno 104] Connection reset by peer", Some(104)), Reason::Failed),
        (exception("sim.Full", os, "full", Some(28)), Reason::DiskFull),
        (
            exception("RuntimeError", &["Exception"], "[enforce fail at inline_container.cc:672]", Some(28)),
            Reason::DiskFull,
        ),
        (exception("torch.OutOfMemoryError", runtime, "CUDA out of memory.", None), Reason::OutOfMemory),
        (
            exception(
                "numpy._core._exceptions._ArrayMemoryError",
                &["MemoryError", "Exception"],
                "Unable",
                None,
            ),
            Reason::OutOfMemory,
        ),
        (
            exception("mine.BadBatch", &["ValueError", "Exception"], "no space left on device", None),
            Reason::Failed,
        ),
        (
            exception(
                "torch.distributed.DistBackendError",
                runtime,
                "NCCL error: remote process exited",
                None,
            ),
            Reason::ConnectionLost,
        ),
    ] {
        assert_eq!(reason(&CODE, "", Some(&exception), true).0, wanted, "{exception:?}");
        let said = LastWords::exception(&exception);
        assert!(said.shown().ends_with(" at /w/train.py:31"), "{}", said.shown());
    }
    // A thread that ended is not the program; what ended the program counts.
    let thread = Exception { thread: "loader".into(), ..exception("OSError", &[], "full", Some(28)) };
    assert_eq!(reason(&CODE, "", Some(&thread), true).0, Reason::DiskFull, "unless nothing else is known");
}

#[test]
fn what_an_abort_says_is_in_its_what() {
    let thrown = |what: &str| {
        format!(
            "step 7\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  {what}\n\
             Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n  File \"/w/t.py\", line 3 in f"
        )
    };
    for (what, wanted) in [
        (
            "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 26668 vs 13336",
            Reason::MismatchAbort,
        ),
        ("std::bad_alloc", Reason::OutOfMemory),
        ("vector::_M_range_check", Reason::Crashed),
        ("No space left on device", Reason::Crashed),
    ] {
        assert_eq!(reason(&signal(6), &thrown(what), None, true).0, wanted, "{what}");
    }
    let peer = thrown("[PG ID 0 Rank 1] ProcessGroupNCCL's watchdog: collective operation timeout");
    let lines = lines(&peer);
    let end = EndOfProcess { exit: &signal(6), exception: None, error: None, lines: &lines, hooked: true };
    assert_eq!(LastWords::of(&end).kind(), FailureKind::Connection);
}

#[test]
fn programs_without_exceptions_speak_by_their_last_line() {
    for (line, wanted) in [
        ("cp: error writing 'x': No space left on device", Reason::DiskFull),
        ("error: lost another rank: Connection closed by peer", Reason::ConnectionLost),
        ("warning: No space left on device", Reason::Failed),
        ("done", Reason::Failed),
    ] {
        assert_eq!(reason(&CODE, &format!("step 1\n{line}\n\n"), None, false).0, wanted, "{line}");
    }
}
