//! A shell of the user's on a host of the run: in a window of tmux where there is one, else on the terminal
//! that the screen leaves to it meanwhile. The console goes on behind it.

use rankdeck_types::host::{Host, Transport};
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// What has the terminal instead of the screen; it is killed when the console ends.
#[derive(Debug, Default)]
pub struct Guest {
    child: Option<Child>,
}

impl Guest {
    /// It has the terminal.
    pub fn is_here(&self) -> bool {
        self.child.is_some()
    }

    /// Gives it the terminal.
    ///
    /// # Errors
    /// The program is not there.
    pub fn begin(&mut self, words: &[String]) -> Result<(), String> {
        let (program, arguments) = words.split_first().ok_or("nothing to run")?;
        let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
        self.child = Some(child.map_err(|error| format!("{program}: {error}"))?);
        Ok(())
    }

    /// It has left. Cancel-safe; never ends while nobody is there.
    pub async fn left(&mut self) -> Option<ExitStatus> {
        let Some(child) = &mut self.child else { return std::future::pending().await };
        let status = child.wait().await;
        self.child = None;
        status.ok()
    }
}

/// Opens a window of the tmux that the console is in.
pub async fn in_tmux(name: &str, words: &[String]) -> bool {
    let mut tmux = Command::new("tmux");
    tmux.args(["new-window", "-n", name, "--"]).args(words);
    tmux.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    tmux.status().await.is_ok_and(|status| status.success())
}

/// The words of a shell on a host, in a folder there.
///
/// # Errors
/// The host has no way for a shell; what to type instead.
pub fn words(host: &Host, folder: &str) -> Result<Vec<String>, String> {
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
            Err(format!("`srun --overlap --pty -w {} bash` opens one on a Slurm node", host.name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_goes_where_the_hosts_file_says_and_into_the_folder_of_the_run() {
        let host =
            Host { address: "gpu-b".into(), port: Some(2222), user: Some("me".into()), ..Host::default() };
        let ssh = words(&host, "/home/me/it's").unwrap();
        assert_eq!(ssh[..8], ["ssh", "-t", "-p", "2222", "-l", "me", "--", "gpu-b"]);
        assert!(ssh[8].starts_with("cd '/home/me/it'\\''s' 2>/dev/null; exec"), "{}", ssh[8]);
        let local = words(&Host { transport: Transport::Local, ..Host::default() }, "/tmp").unwrap();
        assert_eq!(local[0], "sh");
        let slurm = words(&Host { transport: Transport::Slurm, ..Host::default() }, "");
        assert!(slurm.unwrap_err().contains("srun"));
    }

    #[tokio::test]
    async fn a_guest_leaves_and_one_that_is_not_installed_is_said() {
        let mut guest = Guest::default();
        assert!(guest.begin(&["/nowhere/at/all".into()]).unwrap_err().contains("/nowhere"));
        assert!(!guest.is_here());
        guest.begin(&["sh".into(), "-c".into(), "exit 3".into()]).unwrap();
        assert!(guest.is_here());
        assert_eq!(guest.left().await.and_then(|status| status.code()), Some(3));
        assert!(!guest.is_here());
    }
}
