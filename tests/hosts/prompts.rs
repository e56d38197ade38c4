//! Questions of SSH on a terminal and on the screen: passwords and keyboard-interactive, asked once, shown
//! nowhere, written nowhere.
//!
//! On a test bed of root, whose login user has a password and a PAM.

use crate::support::hosts::TestBed;
use crate::support::terminal::Terminal;
use crate::support::{rank_program, wait_until};
use std::path::{Path, PathBuf};

fn experiment(bed: &TestBed, iters: &str) -> PathBuf {
    let command = rank_program(&["--iters", iters]);
    let path = bed.folder.path().join("experiment.toml");
    std::fs::write(&path, format!("[run]\nname = \"asked\"\n[launch]\ncommand = [{command}]\n")).unwrap();
    path
}

/// On no command line, in no environment, in no file of the console or of the host.
fn written_nowhere(bed: &TestBed, nodes: usize) {
    let secret = bed.password.as_str();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
            let found = text.windows(secret.len()).any(|window| window == secret.as_bytes());
            // The bed's own script has the password among its variables.
            let bed_s =
                String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).unwrap_or_default())
                    .contains("testbed");
            assert!(!found || bed_s, "{} of {}", file, entry.path().display());
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

/// Waits for the question, answers wrong and right, and sees the run through.
fn asked_on_a_terminal(extra: Option<&str>) {
    let Some(bed) = TestBed::start_as_root(1) else { return };
    bed.fault(0, &["keys", "none"]);
    if let Some(line) = extra {
        bed.fault(0, &["sshd-opt", "k", line]);
    }
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "40");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    terminal.until("the question", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send("wrong\n");
    terminal.until("the question again", |t| asked(t) == 2);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send(&format!("{}\n", bed.password));
    terminal.until("the ranks", |t| t.written().contains("running") || t.written().contains("env_step"));
    written_nowhere(&bed, 1);
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    // Preflight, upload and link asked the user once.
    assert_eq!(asked(&terminal), 2, "{}", terminal.written());
    assert!(
        !terminal.written().contains(&bed.password) && !terminal.written().contains("wrong\r"),
        "no echo"
    );
    assert!(terminal.modes().1, "the echo is back");
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
    written_nowhere(&bed, 1);
}

#[test]
fn keyboard_interactive_is_asked_on_a_terminal() {
    asked_on_a_terminal(None);
}

#[test]
fn a_password_is_asked_on_a_terminal() {
    asked_on_a_terminal(Some("KbdInteractiveAuthentication no"));
}

/// AUTH-3: a key and a password.
#[test]
fn two_factors_are_asked_for_one_after_the_other() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    bed.fault(0, &["sshd-opt", "k", "AuthenticationMethods publickey,keyboard-interactive"]);
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "10");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    terminal.until("the question", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send(&format!("{}\n", bed.password));
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
}

#[test]
fn without_a_terminal_a_password_is_a_refusal_with_the_command_that_helps() {
    let Some(bed) = TestBed::start_as_root(1).map(TestBed::with_agent) else { return };
    bed.fault(0, &["keys", "none"]);
    let hosts = bed.hosts(1, 1, "");
    let file = experiment(&bed, "10");
    let mut command = bed.rankdeck(&hosts, &["run", file.to_str().unwrap(), "--headless"]);
    // A session of its own has no terminal.
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
    assert!(stderr.contains("refused the login") && stderr.contains("ssh-copy-id"), "{stderr}");
}

/// A host that joins from the picker asks on the screen: it was not asked before.
#[test]
fn a_password_is_asked_on_the_screen() {
    let Some(bed) = TestBed::start_as_root(2).map(TestBed::with_agent) else { return };
    bed.fault(1, &["keys", "none"]);
    let hosts = bed.hosts(2, 1, "");
    let file = experiment(&bed, "1000000");
    let mut terminal = bed.terminal(&hosts, &["run", file.to_str().unwrap(), "--exclude", "node1"]);
    terminal.until("the run", |t| t.alternate() && t.text().contains("running"));
    assert_eq!(asked(&terminal), 0, "a host that is left out is not asked");
    terminal.send("H");
    terminal.until_shows("hosts of the next generation");
    terminal.until("both hosts", |t| t.text().contains("[x] node0") && t.text().contains("[ ] node1"));
    terminal.send("j ");
    terminal.until_shows("[x] node1");
    terminal.send("\r");
    terminal.until("the question", |t| t.text().to_lowercase().contains("password"));
    terminal.send(&bed.password);
    terminal.until("something typed, not what", |t| !t.text().contains(&bed.password));
    terminal.send("\r");
    terminal.until("two ranks of the next generation", |t| {
        let text = t.text();
        text.contains("gen 1") && text.contains("running") && text.contains("node1")
    });
    written_nowhere(&bed, 2);
    terminal.signal_all(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130, "{}", terminal.text());
    terminal.assert_restored();
    assert!(!terminal.written().contains(&bed.password));
    terminal.until_shows("stopped: verified, no process is left on 2 hosts");
    written_nowhere(&bed, 2);
}

/// A server whose codes are valid once each: one launch asks each host once, whatever it does there.
#[test]
fn a_code_that_is_valid_once_is_asked_for_once_per_launch() {
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
    terminal.until("the question", |t| asked(t) == 1);
    terminal.until("no echo", |t| !t.modes().1);
    terminal.send("222222\n");
    assert_eq!(terminal.wait(), 0, "{}", terminal.written());
    assert_eq!(asked(&terminal), 1, "{}", terminal.written());
    assert_eq!(bed.on(0, "cat /var/log/codes"), "111111\n333333\n", "one code was used");
    wait_until("the host is free", 40, || !bed.processes(0).contains("rankdeck"));
}
