//! The consoles of a sweep's runs: processes of their own, whose JSON lines are read.

use super::Sweep;
use super::cell::CellState;
use crate::cli::run_id::RUNS;
use rankdeck_types::quote;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

/// Something that a cell's console did.
pub(super) enum CellEvent {
    Line(usize, Value),
    End(usize, i32),
}

impl Sweep {
    /// Starts the console of a cell: a new run, or one that an earlier process of this sweep has begun.
    pub(super) fn begin(
        &mut self,
        index: usize,
        slot: usize,
        binary: &Path,
        events: &mpsc::Sender<CellEvent>,
    ) -> std::io::Result<u32> {
        let own = self.slots[slot].clone();
        let others = self.hosts.iter().filter(|name| !own.hosts.contains(name));
        let gpus: Vec<String> = own.gpus.iter().map(u32::to_string).collect();
        let cell = &mut self.cells[index];
        let at = self.arguments.iter().position(|word| word == "--hosts");
        let hosts = at.and_then(|at| self.arguments.get(at..at + 2)).unwrap_or_default();
        let binary = binary.display().to_string();
        let looks =
            |run: &str| [&[binary.as_str(), "attach", run, "--json"].map(str::to_owned), hosts].concat();
        let mut command = Command::new("/bin/sh");
        match (&cell.run, cell.state) {
            (Some(run), CellState::Running) => {
                command.arg("-c").arg(format!("exec {}", shell(&looks(run))));
            }
            // It was stopped with the sweep: it goes on from its latest checkpoint, if it has one.
            (Some(run), CellState::Stopped) => {
                let again = [&[binary.as_str(), "restart", run, "--yes"].map(str::to_owned), hosts].concat();
                command.arg("-c").arg(format!("{} >&2 && exec {}", shell(&again), shell(&looks(run))));
            }
            _ => {
                let mut words = vec![binary, "run".to_owned(), self.experiment.display().to_string()];
                words.push("--json".to_owned());
                words.extend(self.arguments.iter().cloned());
                // Two that begin in the same second would get one name.
                words.extend(["--name".to_owned(), format!("{}-{}", self.title, index + 1)]);
                words.extend(cell.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
                if !gpus.is_empty() {
                    words.extend(["--gpus".to_owned(), gpus.join(",")]);
                }
                words.extend(others.flat_map(|host| ["--exclude".to_owned(), host.clone()]));
                command.arg("-c").arg(format!("exec {}", shell(&words)));
            }
        }
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(Path::new(RUNS).join(&self.name).join(format!("cell{}.log", index + 1)))?;
        // A group of its own: a signal of the terminal reaches this process alone, which passes it on.
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0).spawn()?;
        let pid = child.id().unwrap_or_default();
        cell.state = CellState::Running;
        cell.slot = Some(slot);
        let lines = child.stdout.take();
        let events = events.clone();
        tokio::spawn(async move {
            if let Some(lines) = lines {
                let mut lines = BufReader::new(lines).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
                    let kind = value["kind"].as_str();
                    if matches!(kind, Some("run_started" | "progress" | "metrics" | "eval" | "run_finished"))
                    {
                        let _ = events.send(CellEvent::Line(index, value)).await;
                    }
                }
            }
            let exit_code = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(-1);
            let _ = events.send(CellEvent::End(index, exit_code)).await;
        });
        Ok(pid)
    }
}

/// Words for the shell.
fn shell(words: &[String]) -> String {
    quote::words(words.iter().map(String::as_str))
}
