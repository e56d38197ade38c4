//! Where a run comes from: command line, commit and changes of its code, versions. Kept beside the console's
//! record of the run, for whoever wants to do it again.

use super::again::Again;
use super::git::{self, Checkout, CodeState};
use super::preflight::Report;
use super::run_id::RUNS;
use crate::shell::record;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Its file, beside `experiment.toml`.
pub const FILE: &str = "origin.json";
/// Changes that no commit has.
const CHANGES: &str = "changes.diff";

/// Where a run comes from.
#[derive(Debug, Serialize)]
pub struct Origin {
    /// As typed.
    command_line: Vec<String>,
    /// The working folder of the console.
    folder: PathBuf,
    /// Version of rankdeck.
    rankdeck: &'static str,
    /// What to launch for a run like this one; `None` without an experiment file.
    launch: Option<Again>,
    /// The checkout of the code, or of the working folder.
    git: Option<Checkout>,
    /// The pack that the ranks run in.
    code: Option<String>,
    /// Versions on each host.
    hosts: BTreeMap<String, Versions>,
    #[serde(skip)]
    changes: String,
}

/// Versions on one host.
#[derive(Debug, Default, Serialize)]
struct Versions {
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    libtorch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    kernel: String,
}

/// What a run was launched from that was launched from this folder earlier.
pub fn again(run: &RunId) -> Option<Again> {
    #[derive(Deserialize)]
    struct Kept {
        launch: Option<Again>,
    }
    let consoles = std::fs::read_dir(Path::new(RUNS).join(&run.0)).ok()?;
    let mut folders: Vec<PathBuf> = consoles.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let kept = |folder: &PathBuf| {
        let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
        serde_json::from_str::<Kept>(&text).ok()?.launch
    };
    folders.iter().rev().find_map(kept).filter(|again| again.experiment.is_file())
}

impl Origin {
    /// Of a run with this code.
    pub fn new(draft: &PlanDraft, report: &Report, code: CodeState, launch: Option<Again>) -> Origin {
        let versions = |(host, answer): (&String, &Result<super::preflight::Examined, _>)| {
            let found = &answer.as_ref().ok()?.findings;
            let python = found.program.as_ref().and_then(|program| program.python.clone());
            let versions = Versions {
                python: python.as_ref().map(|python| python.version.clone()),
                prefix: python.as_ref().map(|python| python.prefix.clone()),
                torch: python.and_then(|python| python.torch),
                libtorch: found.libtorch_version.clone(),
                driver: found.driver.clone(),
                kernel: found.kernel.clone(),
            };
            Some((host.clone(), versions))
        };
        Origin {
            command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            launch,
            rankdeck: env!("CARGO_PKG_VERSION"),
            code: draft.experiment.launch.code.clone(),
            hosts: report.hosts.iter().zip(&report.answers).filter_map(versions).collect(),
            changes: code.changes,
            git: code.checkout,
        }
    }

    /// Writes it into the folder of a console's record.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        serde_json::to_writer_pretty(record::create(&folder.join(FILE))?, self)?;
        if !self.changes.is_empty() {
            let mut file = record::create(&folder.join(CHANGES))?;
            file.write_all(self.changes.as_bytes())?;
            if self.changes.len() as u64 >= git::DIFF {
                writeln!(file, "\n... cut after {} bytes", git::DIFF)?;
            }
        }
        Ok(())
    }
}
