//! What a drill has proved about a program, kept in this user's state directory under the hash of its code:
//! `drills/HASH/drill.json`. Nothing reads it yet; it is the third basis of what a run promises, after what is declared
//! and what is seen.

use super::judge::CaseRecord;
use crate::app::replace_file::replace_file;
use crate::cli::support::Failure;
use rankdeck_proto::{clock, folders, trust};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::hidden;
use rankdeck_types::ids::WallTime;
use rankdeck_types::words::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProvedFacts {
    /// Version of this format.
    schema: u32,
    time: WallTime,
    /// Build of the console.
    version: String,
    /// Name of the experiment.
    name: String,
    /// Hash of the code, or of the experiment for the built-in trainer.
    pack: String,
    /// The command of the ranks, without secrets.
    command: Vec<String>,
    /// Names of the hosts.
    hosts: Vec<String>,
    cases: Vec<CaseRecord>,
}

impl ProvedFacts {
    /// Facts about an experiment; `pack`: the hash of its code.
    pub(crate) fn new(
        experiment: &Experiment,
        pack: Option<&str>,
        hosts: Vec<String>,
        cases: &[CaseRecord],
    ) -> ProvedFacts {
        let of_trainer = || {
            let text = toml::to_string(experiment).unwrap_or_default();
            hex(&Sha256::digest(text.as_bytes()))
        };
        ProvedFacts {
            schema: 1,
            time: clock::wall_time(),
            version: env!("RANKDECK_VERSION").to_owned(),
            name: experiment.run.name.clone(),
            pack: pack.map_or_else(of_trainer, str::to_owned),
            command: hidden::command(experiment),
            hosts,
            cases: cases.to_vec(),
        }
    }

    /// Writes the file; returns its path. Cases of an earlier drill of the same code that this one left out stay.
    pub(crate) fn keep(mut self, state: &Path) -> Result<PathBuf, Failure> {
        let folder = state.join("drills").join(&self.pack);
        let path = folder.join("drill.json");
        trust::check_place(&folder).map_err(|why| Failure::failed(why.error).hint(why.hint))?;
        folders::create_private(&folder)
            .map_err(|why| Failure::failed(why.error).hint("set XDG_STATE_HOME to a directory of yours"))?;
        let earlier = trust::read(&path, MOST_BYTES).ok();
        let earlier: Option<ProvedFacts> = earlier.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        for case in earlier.map(|facts| facts.cases).unwrap_or_default() {
            if self.cases.iter().all(|own| own.case != case.case) {
                self.cases.push(case);
            }
        }
        self.cases.sort_by_key(|case| case.case);
        let written = serde_json::to_vec_pretty(&self)
            .map_err(std::io::Error::other)
            .and_then(|bytes| replace_file(&path, &bytes, 0o600));
        written.map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
                .hint("the disk may be full: check with `df -h`")
        })?;
        Ok(path)
    }
}

/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

/// The directory of what outlives caches: `$XDG_STATE_HOME/rankdeck`, else `~/.local/state/rankdeck`.
pub(crate) fn state_folder() -> PathBuf {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| folders::home().join(".local/state")).join("rankdeck")
}

#[cfg(test)]
mod tests {
    use super::super::judge::{CaseOutcome, CheckpointFate};
    use super::*;
    use crate::cli::args::DrillCase;

    fn record(case: DrillCase, outcome: CaseOutcome) -> CaseRecord {
        CaseRecord {
            case,
            run: Some("drill-t-kill-1".into()),
            outcome,
            named: None,
            seconds: Some(1.5),
            checkpoint: CheckpointFate::Kept,
            checkpoint_step: None,
            resumed_step: None,
            processes_left: Vec::new(),
            gpu_memory_left: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn facts_are_kept_by_code_and_hide_secrets() {
        let state = tempfile::tempdir().unwrap();
        let text = "[run]\nname = \"t\"\n[launch]\ncommand = [\"t\", \"--api-key=hunter2\"]";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let keep = |pack: Option<&str>, cases: &[CaseRecord]| {
            let facts = ProvedFacts::new(&experiment, pack, vec!["a".into()], cases);
            facts.keep(&state.path().join("rankdeck")).unwrap()
        };
        let path = keep(
            Some("ab12"),
            &[record(DrillCase::Kill, CaseOutcome::Failed), record(DrillCase::Freeze, CaseOutcome::Passed)],
        );
        assert_eq!(keep(Some("ab12"), &[record(DrillCase::Kill, CaseOutcome::Passed)]), path);
        assert!(path.ends_with("drills/ab12/drill.json"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        let facts: ProvedFacts = serde_json::from_str(&text).unwrap();
        let cases: Vec<_> = facts.cases.iter().map(|case| (case.case, case.outcome)).collect();
        assert_eq!(cases, [(DrillCase::Freeze, CaseOutcome::Passed), (DrillCase::Kill, CaseOutcome::Passed)]);
        assert_ne!(keep(None, &[]), path, "the built-in trainer has no code");
    }
}
