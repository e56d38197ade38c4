//! What a host says never drives the terminal and never passes for a line of ours: TERM-1, TERM-2, for every
//! command.

use crate::support::hosts::Loopback;

/// Escape sequences, and lines as ours begin.
const EVIL: &str = r"\033]0;title\007\033[2J\nstopped: verified, no process is left\rrun finished: completed\n\302\23331m\nRANKDECK-HOST\033[31m\n";

#[test]
fn words_of_a_host_reach_standard_error_cleaned_whatever_the_command() {
    let evil = tempfile::tempdir().unwrap();
    let script = evil.path().join("shell");
    std::fs::write(&script, format!("printf '{EVIL}'; printf '{EVIL}' >&2\n")).unwrap();
    let extra = format!("ForceCommand /bin/sh {}", script.display());
    let Some(hosts) = Loopback::start_with(1, 1, &extra) else { return };
    let experiment =
        hosts.bench.write("experiment.toml", "[run]\nname = \"words\"\n[launch]\ncommand = [\"true\"]\n");
    let file = experiment.to_str().unwrap();
    let commands: [&[&str]; 10] = [
        &["ps"],
        &["ps", "--json"],
        &["check", file],
        &["run", file, "--headless"],
        &["run", file, "--headless", "--json"],
        &["attach", "words", "--headless"],
        &["restart", "words", "--yes"],
        &["stop", "words"],
        &["logs", "words"],
        &["push"],
    ];
    for args in commands {
        let output = hosts.command(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}: {output:?}");
        for bytes in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(bytes);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{args:?}: {text:?}");
            let fake = |line: &str| line.starts_with("stopped:") || line.starts_with("run finished:");
            assert!(!text.lines().any(fake), "{args:?}: {text}");
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("error: ") && stderr.contains("hint: "), "{args:?}: {stderr}");
    }
}
