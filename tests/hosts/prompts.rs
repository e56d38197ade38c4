//! SSH prompts in a terminal and in the TUI: passwords and keyboard-interactive, prompted for once, never
//! shown or written.
//!
//! They need root: the user on the test bed has a password and PAM.

use crate::support::hosts::TestBed;
use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{rank_program, wait_until};
use std::path::{Path, PathBuf};

fn experiment(bed: &TestBed, iters: &str) -> PathBuf {
    let command = rank_program(&["--iters", iters]);
    let path = bed.folder.path().join("experiment.toml");
    std::fs::write(&path, format!("[run]\nname = \"asked\"\n[launch]\ncommand = [{command}]\n")).unwrap();
    path
}

/// Checks that the password is in no command line, environment, or file of the console or the host.
fn assert_not_written(bed: &TestBed, nodes: usize) {
    let secret = bed.password.as_str();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
            let found = text.windows(secret.len()).any(|window| window == secret.as_bytes());
            // The script of the bed has the password in its environment.
            let of_bed =
                String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).unwrap_or_default())
                    .contains("testbed");
            assert!(!found || of_bed, "{} of {}", file, entry.path().display());
        }
    }
    let search = |folder: &Path| {
        let output = std::process::Command::new("grep").args(["-rlaF", secret]).arg(folder).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(search(&bed.folder.path().join("runs")), "");
    for node in 0..nodes {
        let line = format!("grep -rlaF {secret} ~tb /tmp /run 2>/dev/null || true");
        assert_eq!(bed.on(node, &line), "", "on node{node}");
    }
}

fn asked(terminal: &Terminal) -> usize {
    terminal.written().to_lowercase().matches("password:").count()
}

/// Answers wrong and then right, and waits for the end of the run.
fn answer_in_terminal(extra: Option<&str>) {
    let Some(bed) = TestBed::start_as_root(1) else { return };
    bed.fault(0, &["keys", "none"]);
    if let Some(line) = extra {
        bed.fault(0, &["sshd-opt", "k", line]);
    }
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "40");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    terminal.until("the prompt", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send("wrong\n");
    terminal.until("the second prompt", |t| asked(t) == 2);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send(&format!("{}\n", bed.password));
    terminal.until("the ranks", |t| t.written().contains(texts::RUNNING) || t.written().contains("env_step"));
    assert_not_written(&bed, 1);
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    // Preflight, upload and link share one login.
    assert_eq!(asked(&terminal), 2, "{}", terminal.written());
    assert!(!terminal.written().contains(&bed.password) && !terminal.written().contains("wrong\r"), "echoed");
    assert!(terminal.modes().1, "echo is still off");
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
    assert_not_written(&bed, 1);
}

#[test]
fn keyboard_interactive_prompt_appears_on_terminal() {
    answer_in_terminal(None);
}

#[test]
fn password_prompt_appears_on_terminal() {
    answer_in_terminal(Some("KbdInteractiveAuthentication no"));
}

/// AUTH-3: a key and a password.
#[test]
fn two_factors_are_prompted_for_in_turn() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    bed.fault(0, &["sshd-opt", "k", "AuthenticationMethods publickey,keyboard-interactive"]);
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "10");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    terminal.until("the prompt", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send(&format!("{}\n", bed.password));
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
}

#[test]
fn password_without_terminal_fails_with_hint() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    bed.fault(0, &["keys", "none"]);
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "10");
    let mut command = bed.rankdeck(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    // A new session has no terminal.
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            libc::setsid();
            Ok(())
        });
    }
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("ssh-copy-id"), "{stderr}");
}

/// As pam_slurm_adopt and /etc/nologin do: PAM refuses the account after its key was accepted.
#[test]
fn account_that_pam_refuses_has_its_words() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    for words in ["no active job on this node", ""] {
        let echo = format!("account optional pam_echo.so {words}");
        bed.on(
            0,
            &format!(
                "printf '%s\\n' 'auth required pam_permit.so' '{}' 'account required pam_deny.so' \
                 'session required pam_permit.so' >/etc/pam.d/sshd",
                if words.is_empty() { "" } else { &echo }
            ),
        );
        for transport in ["ssh", "openssh"] {
            let hosts = bed.hosts(1, 1, &format!("transport = \"{transport}\"\n"));
            let output = bed.rankdeck(&hosts, &["ps"]).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{transport}: {stderr}");
            assert!(stderr.contains(words), "{transport}: {stderr}");
            assert!(!stderr.contains("MaxAuthTries"), "{transport}: {stderr}");
            assert!(transport != "ssh" || !words.is_empty() || stderr.contains("/etc/nologin"), "{stderr}");
        }
    }
}

/// A host that is added later prompts in the TUI.
#[test]
fn password_prompt_appears_in_tui() {
    let Some(bed) = TestBed::start_as_root(2).map(TestBed::with_agent) else { return };
    bed.fault(1, &["keys", "none"]);
    let hosts = bed.hosts(2, 1, "");
    let file = experiment(&bed, "1000000");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--exclude", "node1"]);
    terminal.until("the run", |t| t.alternate() && t.text().contains(texts::RUNNING));
    assert_eq!(asked(&terminal), 0);
    terminal.send("H");
    terminal.until("both hosts", |t| t.text().contains("[x] node0") && t.text().contains("[ ] node1"));
    terminal.send("j ");
    terminal.until_shows("[x] node1");
    terminal.send("\r");
    terminal.until("a confirmation", |t| t.text().contains(texts::RESTART_QUESTION));
    terminal.send("y");
    terminal.until("the prompt", |t| t.text().to_lowercase().contains("password"));
    terminal.send(&bed.password);
    terminal.until("no echo", |t| !t.text().contains(&bed.password));
    terminal.send("\r");
    terminal.until("two ranks of the next generation", |t| {
        let text = t.text();
        text.contains("gen 1") && text.contains(texts::RUNNING) && text.contains("node1")
    });
    assert_not_written(&bed, 2);
    terminal.signal_all(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130, "{}", terminal.text());
    terminal.assert_restored();
    assert!(!terminal.written().contains(&bed.password));
    assert_not_written(&bed, 2);
}

/// The codes of the server are valid once: a launch prompts once per host.
#[test]
fn one_time_code_is_prompted_for_once_per_launch() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    bed.fault(0, &["keys", "none"]);
    bed.on(
        0,
        "printf '%s\\n' 111111 222222 333333 >/var/log/codes; \
         printf '%s\\n' '#!/bin/sh' 'code=$(tr -d \"\\000\")' 'grep -qx \"$code\" /var/log/codes || exit 1' \
         'sed -i \"/^$code\\$/d\" /var/log/codes' >/var/log/check; chmod 755 /var/log/check; \
         printf '%s\\n' 'auth required pam_exec.so quiet expose_authtok type=auth /var/log/check' \
         'auth required pam_permit.so' \
         'account required pam_permit.so' 'session required pam_permit.so' >/etc/pam.d/sshd",
    );
    let hosts = bed.hosts(1, 1, "");
    std::fs::create_dir(bed.folder.path().join("code")).unwrap();
    std::fs::write(bed.folder.path().join("code/file"), "x").unwrap();
    let command = rank_program(&["--iters", "10"]);
    let file = bed.folder.path().join("experiment.toml");
    let text = format!("[run]\nname = \"once\"\n[launch]\ncode = \"code\"\ncommand = [{command}]\n");
    std::fs::write(&file, text).unwrap();
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    terminal.until("the prompt", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send("222222\n");
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    assert_eq!(asked(&terminal), 1, "{}", terminal.written());
    assert_eq!(bed.on(0, "cat /var/log/codes"), "111111\n333333\n");
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
}
