//! Sentences about processes, for verdicts, reports and history lines. Pure.

use rankdeck_proto::message::Exit;

/// Numbers of signals on Linux.
pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGABRT: i32 = 6;
pub(crate) const SIGBUS: i32 = 7;
pub(crate) const SIGFPE: i32 = 8;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const SIGTERM: i32 = 15;

/// The process did this to itself.
pub(crate) fn is_crash(signal: i32) -> bool {
    matches!(signal, SIGILL | SIGABRT | SIGBUS | SIGFPE | SIGSEGV)
}

/// The name of a Linux signal (x86-64 numbers), `signal 64` when it has none.
pub(crate) fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 32] = [
        "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU",
        "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(signal).ok().and_then(|index| NAMES.get(index)) {
        Some(name) if !name.is_empty() => format!("SIG{name}"),
        Some(_) | None => format!("signal {signal}"),
    }
}

/// How a process ended, as the end of a sentence that begins with its name.
pub(crate) fn exit_text(exit: &Exit) -> String {
    match exit {
        Exit::Code { code: 0 } => "ended with exit code 0".into(),
        Exit::Code { code } => format!("failed with exit code {code}"),
        Exit::Signal { out_of_memory: true, signal } => {
            format!("was killed by the kernel: out of memory ({})", signal_name(*signal))
        }
        Exit::Signal { signal, .. } if is_crash(*signal) => {
            format!("crashed with {} (signal {signal})", signal_name(*signal))
        }
        Exit::Signal { signal, .. } => {
            format!("was killed by {} (signal {signal})", signal_name(*signal))
        }
        Exit::NotStarted { error } => format!("could not be started: {error}"),
    }
}

/// The end was the process's own success.
pub(crate) fn is_success(exit: &Exit) -> bool {
    matches!(exit, Exit::Code { code: 0 })
}

/// The end looks like what a stop does to a program that does not handle SIGTERM.
pub(crate) fn is_stop_effect(exit: &Exit) -> bool {
    match exit {
        Exit::Code { code } => matches!(code, 0 | 137 | 143),
        Exit::Signal { signal, out_of_memory } => !out_of_memory && matches!(*signal, SIGKILL | SIGTERM),
        Exit::NotStarted { .. } => false,
    }
}

/// An error, and what to do about it.
pub(crate) fn with_hint(error: &str, hint: &str) -> String {
    if hint.is_empty() { error.into() } else { format!("{error}; {hint}") }
}

/// Seconds with one digit after the point.
pub(crate) fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1000.0)
}

/// What a process state letter of `/proc` means.
pub(crate) fn state_text(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in uninterruptible sleep (storage or kernel)",
        'T' => "stopped by a signal",
        't' => "held by a debugger",
        'Z' => "zombie",
        'X' => "gone",
        'I' => "idle",
        _ => "unknown",
    }
}

/// `text` without control characters, at most `limit` characters.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    let mut clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = clean.by_ref().take(limit).collect();
    if clean.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_told_in_words() {
        let killed = Exit::Signal { signal: 9, out_of_memory: false };
        assert_eq!(exit_text(&killed), "was killed by SIGKILL (signal 9)");
        let crashed = Exit::Signal { signal: 11, out_of_memory: false };
        assert_eq!(exit_text(&crashed), "crashed with SIGSEGV (signal 11)");
        let memory = Exit::Signal { signal: 9, out_of_memory: true };
        assert_eq!(exit_text(&memory), "was killed by the kernel: out of memory (SIGKILL)");
        assert_eq!(signal_name(64), "signal 64");
        assert_eq!(signal_name(-3), "signal -3");
        assert_eq!(signal_name(0), "signal 0");
    }

    #[test]
    fn what_a_stop_does_is_no_failure_but_out_of_memory_is() {
        assert!(is_stop_effect(&Exit::Signal { signal: 15, out_of_memory: false }));
        assert!(!is_stop_effect(&Exit::Signal { signal: 9, out_of_memory: true }));
        assert!(!is_stop_effect(&Exit::Code { code: 1 }));
    }

    #[test]
    fn clipping_keeps_whole_characters() {
        assert_eq!(clip("a\tbäc", 4), "a bä…");
        assert_eq!(clip("abc", 3), "abc");
    }
}
