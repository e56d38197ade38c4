//! Opens an interactive shell on a host, in a tmux window or by giving it the terminal. The console keeps
//! running.

use rankdeck_types::host::{Host, Transport};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Longest time for tmux to open a window.
const WINDOW_WITHIN: Duration = Duration::from_secs(5);

/// A program that has the terminal instead of the screen; killed when the console ends.
#[derive(Debug, Default)]
pub(crate) struct ExternalShell {
    child: Option<Child>,
    /// A tmux window that is being opened, and its command.
    window: Option<(JoinHandle<bool>, Vec<String>)>,
}

/// An event of a shell.
#[derive(Debug)]
pub(crate) enum ShellEvent {
    /// tmux opened no window: the command is still to be run.
    NoWindow(Vec<String>),
    /// The shell that had the terminal has exited.
    Exited(Option<ExitStatus>),
}

impl ExternalShell {
    /// Whether it has the terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        self.child.is_some()
    }

    /// Runs a command with the terminal.
    ///
    /// # Errors
    /// The program was not found.
    pub(crate) fn start(&mut self, words: &[String]) -> Result<(), String> {
        let (program, arguments) = words.split_first().ok_or("nothing to run")?;
        let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
        self.child = Some(child.map_err(|error| format!("{program}: {error}"))?);
        Ok(())
    }

    /// Opens a window in the console's tmux.
    pub(crate) fn open_window(&mut self, name: &str, words: Vec<String>) {
        let mut tmux = Command::new("tmux");
        tmux.args(["new-window", "-n", name, "--"]).args(&words).kill_on_drop(true);
        tmux.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let opened = tokio::spawn(async move {
            let status = tokio::time::timeout(WINDOW_WITHIN, tmux.status()).await;
            status.is_ok_and(|status| status.is_ok_and(|status| status.success()))
        });
        self.window = Some((opened, words));
    }

    /// Waits for the next event. Cancel-safe; pends without a shell.
    pub(crate) async fn next(&mut self) -> ShellEvent {
        if let Some((opened, words)) = &mut self.window {
            let opened = opened.await.unwrap_or(false);
            let words = std::mem::take(words);
            self.window = None;
            if !opened && self.child.is_none() {
                return ShellEvent::NoWindow(words);
            }
        }
        let Some(child) = &mut self.child else { return std::future::pending().await };
        let status = child.wait().await;
        self.child = None;
        ShellEvent::Exited(status.ok())
    }
}

/// Returns the command of a shell on a host, in a directory there.
///
/// # Errors
/// The transport has no shell; the error is the command to use instead.
pub(crate) fn command(host: &Host, folder: &str) -> Result<Vec<String>, String> {
    let quoted = format!("'{}'", folder.replace('\'', "'\\''"));
    let there = format!("cd {quoted} 2>/dev/null; exec \"${{SHELL:-/bin/sh}}\" -l");
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match host.transport {
        Transport::Local => Ok(vec!["sh".into(), "-c".into(), there]),
        Transport::Ssh | Transport::Openssh => {
            let mut words = owned(&["ssh", "-t"]);
            let port = host.port.map(|port| port.to_string());
            let options = [
                ("-p", port),
                ("-l", host.user.clone()),
                ("-i", host.identity_file.clone()),
                ("-J", host.proxy_jump.clone()),
            ];
            for (option, value) in options {
                words.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
            }
            words.extend(["--".into(), host.address.clone(), there]);
            Ok(words)
        }
        Transport::Slurm => {
            let job = host.slurm_job.as_ref().map_or_else(String::new, |job| format!("--jobid={job} "));
            Err(format!("on a Slurm node, use `srun {job}--overlap --pty -w {} bash`", host.name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_command_uses_hosts_file_and_run_directory() {
        let host =
            Host { address: "gpu-b".into(), port: Some(2222), user: Some("me".into()), ..Host::default() };
        let ssh = command(&host, "/home/me/it's").unwrap();
        assert_eq!(ssh[..8], ["ssh", "-t", "-p", "2222", "-l", "me", "--", "gpu-b"]);
        assert!(ssh[8].starts_with("cd '/home/me/it'\\''s' 2>/dev/null; exec"), "{}", ssh[8]);
        let local = command(&Host { transport: Transport::Local, ..Host::default() }, "/tmp").unwrap();
        assert_eq!(local[0], "sh");
        let slurm = command(&Host { transport: Transport::Slurm, ..Host::default() }, "");
        assert!(slurm.unwrap_err().contains("srun"));
    }

    #[tokio::test]
    async fn external_shell_exit_and_missing_program_are_reported() {
        let mut shell = ExternalShell::default();
        assert!(shell.start(&["/nowhere/at/all".into()]).unwrap_err().contains("/nowhere"));
        assert!(!shell.has_terminal());
        shell.start(&["sh".into(), "-c".into(), "exit 3".into()]).unwrap();
        assert!(shell.has_terminal());
        let ShellEvent::Exited(status) = shell.next().await else { panic!("it has exited") };
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert!(!shell.has_terminal());
    }
}
