//! Commands of this program that run beside the screen: children whose words are kept, and which are waited
//! for.

use crate::cli::print;
use crate::cli::roster::own_binary;
use crate::shell::stderr;
use rankdeck_tui::home::CommandEnd;
use rankdeck_types::words::clean;
use std::io;
use std::process::Stdio;
use tokio::process::Command;
use tokio::task::JoinSet;

/// Most bytes kept of one stream.
const MOST: usize = 1 << 20;

/// Commands that go on.
#[derive(Default)]
pub(super) struct Jobs {
    running: JoinSet<(u64, CommandEnd)>,
    titles: Vec<(u64, String)>,
    next: u64,
}

impl Jobs {
    /// Starts one; returns its number. It has no terminal, so it asks nothing.
    pub fn start(&mut self, title: &str, args: &[String]) -> io::Result<u64> {
        let binary = own_binary().map_err(|failure| io::Error::other(failure.to_string()))?;
        let child = Command::new(binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        self.next += 1;
        let (job, title) = (self.next, title.to_owned());
        self.titles.push((job, title.clone()));
        self.running.spawn(async move {
            let said = match child.wait_with_output().await {
                Ok(output) => {
                    let lines = lines(&output.stdout).chain(lines(&output.stderr));
                    CommandEnd { title, well: output.status.success(), lines: lines.collect() }
                }
                Err(error) => CommandEnd { title, well: false, lines: vec![format!("error: {error}")] },
            };
            (job, said)
        });
        Ok(job)
    }

    /// The next that ends. Cancel-safe.
    pub async fn next(&mut self) -> (u64, CommandEnd) {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => {
                    self.titles.retain(|(job, _)| *job != ended.0);
                    return ended;
                }
                Some(Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Waits for all that go on, and says how they ended.
    pub async fn finish(&mut self) {
        for (_, title) in &self.titles {
            stderr::line(&format!("note: {title} is still going on; it is waited for"));
        }
        while let Some(ended) = self.running.join_next().await {
            if let Ok((_, said)) = ended {
                said.lines.iter().for_each(|line| {
                    print::stdout(line);
                });
            }
        }
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    let kept = &bytes[..bytes.len().min(MOST)];
    let lines: Vec<String> = String::from_utf8_lossy(kept).lines().map(clean).collect();
    lines.into_iter().filter(|line| !line.trim().is_empty())
}
