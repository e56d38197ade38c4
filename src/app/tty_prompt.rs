//! Prompts of links on the controlling terminal while no screen is up.
//!
//! Owner: one thread, so that the prompts of several hosts come one after the other. It may stay blocked on
//! the terminal when the console ends; [`restore`] then restores the terminal's echo. A server's text is
//! cleaned before it is shown (TERM-1 and TERM-2 of [`super::stderr`]).

use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words::{bytes, clean};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::sync::OnceLock;
use tokio::sync::mpsc;

/// An answer of the user; `None` refuses.
pub(crate) type PromptAnswer = (NodeRank, Option<String>);

/// The thread that prompts.
#[derive(Debug)]
pub(crate) struct PromptThread {
    questions: std::sync::mpsc::SyncSender<(NodeRank, String, Prompt)>,
}

impl PromptThread {
    /// Starts the thread; answers go to `answers`.
    pub(crate) fn new(answers: mpsc::Sender<PromptAnswer>) -> io::Result<PromptThread> {
        let (questions, queue) = std::sync::mpsc::sync_channel::<(NodeRank, String, Prompt)>(1024);
        std::thread::Builder::new().name("ask".to_owned()).spawn(move || {
            while let Ok((node, host, prompt)) = queue.recv() {
                if answers.blocking_send((node, on_terminal(&host, &prompt))).is_err() {
                    break;
                }
            }
        })?;
        Ok(PromptThread { questions })
    }

    /// Prompts; `false` if too many prompts are queued.
    pub(crate) fn ask(&self, node: NodeRank, host: &str, prompt: &Prompt) -> bool {
        self.questions.try_send((node, host.to_owned(), prompt.clone())).is_ok()
    }
}

/// Prompts on `/dev/tty` and waits for the answer; `None` without a terminal or at its end.
pub(crate) fn on_terminal(host: &str, prompt: &Prompt) -> Option<String> {
    remember_modes();
    let text = question(host, prompt);
    match prompt {
        Prompt::UnknownHostKey { .. } | Prompt::CopyCheckpoint { .. } => {
            line(&text).ok().filter(|answer| answer.eq_ignore_ascii_case("yes")).map(|_| "yes".to_owned())
        }
        Prompt::Passphrase { .. } | Prompt::Password { .. } => secret(&text),
    }
}

/// The text of a prompt.
fn question(host: &str, prompt: &Prompt) -> String {
    let host = clean(host);
    match prompt {
        Prompt::UnknownHostKey { host: asked, key_type, fingerprint } => format!(
            "host {host}: unknown host key of {}\n  {} {}\naccept and save it? (yes/no) ",
            clean(asked),
            clean(key_type),
            clean(fingerprint)
        ),
        Prompt::CopyCheckpoint { path, bytes: size, to } => format!(
            "copy {} of checkpoint {} to {}? (yes/no) ",
            bytes(*size),
            clean(path),
            clean(&to.join(", "))
        ),
        Prompt::Passphrase { key } => format!("host {host}: passphrase of {}: ", clean(key)),
        Prompt::Password { account, text, jump } => {
            let kind = if jump.is_none() { "host " } else { "" };
            let asker = clean(&prompt.asker(&host));
            format!("{kind}{asker}: {}: {} ", clean(account), clean(text))
        }
    }
}

fn line(text: &str) -> io::Result<String> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    terminal.write_all(text.as_bytes())?;
    let mut answer = String::new();
    if BufReader::new(terminal).read_line(&mut answer)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer.trim().to_owned())
}

fn secret(text: &str) -> Option<String> {
    rpassword::prompt_password(text).ok()
}

static MODES: OnceLock<libc::termios> = OnceLock::new();

fn remember_modes() {
    // SAFETY: all-zero is a valid termios, which tcgetattr fills in.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `modes` is valid for the call; descriptor 0 need not be a terminal, then the call fails.
    if unsafe { libc::tcgetattr(0, &mut modes) } == 0 {
        let _ = MODES.set(modes);
    }
}

/// Restores the terminal modes from before the first prompt, in case one is still open.
pub(crate) fn restore() {
    if let Some(modes) = MODES.get() {
        // SAFETY: `modes` is a valid termios for the call.
        unsafe { libc::tcsetattr(0, libc::TCSANOW, modes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_prompt_names_the_jump_host_that_asks() {
        let asked = |jump: Option<&str>| {
            let jump = jump.map(str::to_owned);
            question("node2", &Prompt::Password { account: "me@gw:22".into(), text: "PIN:".into(), jump })
        };
        assert!(asked(None).starts_with("host node2: "));
        assert!(asked(Some("gw")).starts_with("jump host gw for node2: "));
    }

    /// TERM-1, TERM-2.
    #[test]
    fn server_prompt_is_one_clean_line() {
        let evil = "\x1b]0;title\x07\x1b[2JPIN:\nstop verified\r\u{9b}31m";
        let prompts = [
            (Prompt::Password { account: evil.into(), text: evil.into(), jump: Some(evil.into()) }, 1),
            (Prompt::Passphrase { key: evil.into() }, 1),
            (Prompt::CopyCheckpoint { path: evil.into(), bytes: 1, to: vec![evil.into()] }, 1),
            (
                Prompt::UnknownHostKey { host: evil.into(), key_type: evil.into(), fingerprint: evil.into() },
                3,
            ),
        ];
        for (prompt, lines) in prompts {
            let text = question(evil, &prompt);
            assert_eq!(text.lines().count(), lines, "{text:?}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }
}
