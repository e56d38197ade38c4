//! What was in the directory of a run's code when it was launched or restarted: a restart names the files that have
//! changed since, and uploads them on request (ORIGIN-4).
//!
//! Stored with the recording of the console that launched the run.
//!
//! - CODE-1: a record is bounded. It has the latest few packs; of a directory that ranks run in, it has only files
//!   that look like code.

use crate::app::record;
use crate::app::replace_file::replace_file;
use crate::cli::support::contract::FOLLOWED;
use crate::cli::support::provision::{CodeSelection, PackedCode, bring_pack};
use crate::cli::support::run_name::own_folder;
use crate::cli::support::{Failure, work_place};
use rankdeck_core::origin::{ChangedFiles, CodeStanding, PlannedCode};
use rankdeck_link::Prompter;
use rankdeck_proto::pack::{self, FileHash};
use rankdeck_proto::trust;
use rankdeck_types::code::Code;
use rankdeck_types::experiment::LaunchConfig;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{Generation, RunId};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// File name, next to `origin.json`.
const FILE: &str = "code.json";
/// Most bytes of such a file: about 150 for each of the files of all packs.
const MOST_BYTES: u64 = 256 << 20;
/// Most packs of a record.
const PACKS: usize = 8;
/// Most files of a directory that is not uploaded, most bytes of each, and most names that are examined.
const FILES: usize = 2000;
const BYTES: u64 = 4 << 20;
const EXAMINED: usize = 50_000;
/// Digits of a hash for people.
const DIGITS: usize = 12;

/// The directory of a run's code, and what was in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CodeRecord {
    /// The directory on this machine.
    folder: PathBuf,
    /// The script of the command.
    script: Option<String>,
    /// As `launch.exclude`.
    exclude: Vec<String>,
    /// As `launch.include`.
    include: Vec<String>,
    /// The contents, the latest last.
    listings: Vec<CodeListing>,
}

/// The files of a directory at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct CodeListing {
    /// Hash of their pack; `None`: ranks run in the directory itself.
    hash: Option<String>,
    files: Vec<FileHash>,
}

/// A record that is made during the rest of a launch.
pub(crate) enum PendingCodeRecord {
    Made(Option<CodeRecord>),
    Reading(JoinHandle<CodeRecord>),
}

impl PendingCodeRecord {
    /// Starts a record for the code of a launch, without waiting for it.
    pub(crate) fn start(
        launch: &LaunchConfig,
        hosts: &[Host],
        packed: Option<&PackedCode>,
    ) -> PendingCodeRecord {
        let script = rankdeck_agent::examine::script_of(&launch.command).map(str::to_owned);
        let local = hosts.iter().find(|host| matches!(host.transport, Transport::Local));
        let own = launch.code.as_ref().and_then(Code::path);
        let here = match (packed, local) {
            (Some(packed), _) => packed.folder.clone(),
            // In place: in the code's own directory, or in that of the host.
            (None, Some(host)) if !launch.command.is_empty() => {
                own.map_or_else(|| work_place::workdir(host), PathBuf::from)
            }
            (None, _) => return PendingCodeRecord::Made(None),
        };
        let here = if here.as_os_str().is_empty() { Path::new(".") } else { &here };
        let Ok(folder) = std::path::absolute(here) else {
            return PendingCodeRecord::Made(None);
        };
        let (exclude, include) = (launch.exclude.clone(), launch.include.clone());
        let mut made = CodeRecord { folder, script, exclude, include, listings: Vec::new() };
        if let Some(packed) = packed {
            made.add(packed.pack.hash.clone(), packed.pack.contents.clone());
            return PendingCodeRecord::Made(Some(made));
        }
        let reading = std::thread::Builder::new().name("code".into()).spawn(move || {
            made.listings.push(CodeListing { hash: None, files: made.files_in_place() });
            made
        });
        reading.map_or(PendingCodeRecord::Made(None), PendingCodeRecord::Reading)
    }

    /// Waits for it.
    pub(crate) fn finish(self) -> Option<CodeRecord> {
        match self {
            PendingCodeRecord::Made(made) => made,
            PendingCodeRecord::Reading(reading) => reading.join().ok(),
        }
    }
}

impl CodeRecord {
    /// Writes the record of a launch into its console's directory.
    ///
    /// # Errors
    /// It exists, or cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        Ok(serde_json::to_writer(record::create(&folder.join(FILE))?, self)?)
    }

    /// Adds a pack as the latest one.
    fn add(&mut self, hash: String, files: Vec<FileHash>) {
        let hash = Some(hash);
        self.listings.retain(|listing| listing.hash != hash);
        self.listings.push(CodeListing { hash, files });
        let over = self.listings.len().saturating_sub(PACKS);
        self.listings.drain(..over);
    }

    fn listing(&self, code: &PlannedCode) -> Option<&CodeListing> {
        let hash = code.clone().into_hash();
        self.listings.iter().rev().find(|listing| listing.hash == hash)
    }

    fn selection(&self) -> CodeSelection {
        CodeSelection::new(&self.folder, &self.exclude, &self.include)
    }

    /// Hashes the code of a directory that ranks run in. They write there, too: other files are left out.
    fn files_in_place(&self) -> Vec<FileHash> {
        let never = pack::EXCLUDED.map(str::to_owned);
        let examined = Cell::new(0);
        let keep = |path: &str| {
            examined.set(examined.get() + 1);
            if examined.get() > EXAMINED || path.starts_with('.') || pack::matches(path, &never) {
                return false;
            }
            let is_code = || {
                FOLLOWED.iter().any(|ending| path.ends_with(ending)) || self.script.as_deref() == Some(path)
            };
            std::fs::symlink_metadata(self.folder.join(path))
                .is_ok_and(|found| found.is_dir() || found.len() <= BYTES && is_code())
        };
        let alone = || {
            let script = self.script.clone()?;
            pack::hash_of(&self.folder, script).ok()
        };
        pack::list(&self.folder, &keep, FILES).unwrap_or_else(|_| alone().into_iter().collect())
    }

    /// How the directory differs from this code; `None`: it is gone, or unknown.
    fn changed(&self, code: &PlannedCode) -> Option<ChangedFiles> {
        let listing = self.listing(code)?;
        if !self.folder.is_dir() {
            return None;
        }
        let now = match listing.hash {
            Some(_) => {
                let selection = self.selection();
                pack::list(&self.folder, &|path| selection.keeps(path), pack::MAX_FILES).ok()?
            }
            None => {
                let paths = listing.files.iter().map(|file| file.path.clone());
                paths.filter_map(|path| pack::hash_of(&self.folder, path).ok()).collect()
            }
        };
        Some(self.difference(&listing.files, &now))
    }

    /// Files that differ, added and removed ones among them; the script first.
    fn difference(&self, was: &[FileHash], is: &[FileHash]) -> ChangedFiles {
        let by_path = |files: &[FileHash]| -> BTreeMap<String, String> {
            files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect()
        };
        let (was, is) = (by_path(was), by_path(is));
        let changed = is.iter().filter(|(path, hash)| was.get(*path) != Some(*hash)).map(|(path, _)| path);
        let gone = was.keys().filter(|path| !is.contains_key(*path));
        let mut paths: Vec<String> = changed.chain(gone).cloned().collect();
        paths.sort_by_key(|path| (self.script.as_ref() != Some(path), path.clone()));
        ChangedFiles::new(paths)
    }

    /// What changed in this pack against the one before it.
    fn change_before(&self, hash: &str) -> Option<ChangedFiles> {
        let at = self.listings.iter().position(|listing| listing.hash.as_deref() == Some(hash))?;
        let before = self.listings.get(at.checked_sub(1)?)?;
        Some(self.difference(&before.files, &self.listings[at].files))
    }
}

/// Finds the latest record below a run's directory, and its file.
fn find_in(run: &Path) -> Option<(PathBuf, CodeRecord)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(run).ok()?.flatten().map(|entry| entry.path().join(FILE)).collect();
    files.sort();
    files.into_iter().rev().find_map(|file| {
        let found = serde_json::from_slice(&trust::read(&file, MOST_BYTES).ok()?).ok()?;
        Some((file, found))
    })
}

/// The code of a run that is to restart, against its directory on this machine. Reads files.
pub(crate) fn standing(run: Option<&RunId>, present: &PlannedCode) -> CodeStanding {
    let folder = run.and_then(|run| own_folder(&run.0).ok());
    let found = folder.and_then(|folder| find_in(&folder));
    CodeStanding {
        in_place: *present == PlannedCode::InPlace,
        changed: found.and_then(|(_, record)| record.changed(present)),
    }
}

/// The error for new code without a directory.
pub(crate) fn missing(run: &RunId) -> Failure {
    Failure::usage(format!("the directory with the code of run {run} is not on this machine"))
        .hint("restart with the same code, or on the machine and in the directory of the launch")
}

/// Packs what the directory contains now, uploads it to these hosts and records it. Returns its hash.
///
/// # Errors
/// The directory is not on this machine, or a host cannot be reached.
pub(crate) async fn upload(
    run: &RunId,
    hosts: &[Host],
    prompter: Arc<dyn Prompter>,
) -> Result<String, Failure> {
    let folder = own_folder(&run.0).map_err(Failure::place)?;
    let found = find_in(&folder).filter(|(_, record)| record.folder.is_dir());
    let (file, mut record) = found.ok_or_else(|| missing(run))?;
    let selection = record.selection();
    let made = pack::make(&record.folder, &|path| selection.keeps(path));
    let made = made.map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    bring_pack(hosts, &made, prompter).await?;
    record.add(made.hash.clone(), made.contents);
    let written = serde_json::to_vec(&record).map_err(io::Error::from);
    let written = written.and_then(|bytes| replace_file(&file, &bytes, 0o600));
    written.map_err(|error| {
        Failure::failed(format!("cannot write {}: {error}", file.display()))
            .hint("free disk space, then restart again")
    })?;
    Ok(made.hash)
}

/// A pack for people: its hash, and what changed at the restart that brought it. `run`: the run's directory.
pub(crate) fn described(run: &Path, hash: &str) -> String {
    let changed = find_in(run).and_then(|(_, record)| record.change_before(hash));
    let changed = changed.filter(|changed| changed.count > 0).map(|changed| changed.text());
    let short: String = hash.chars().take(DIGITS).collect();
    match changed {
        Some(changed) => format!("sha256:{short} ({changed} changed)"),
        None => format!("sha256:{short}"),
    }
}

/// The packs of a run's generations as rows of a report, if there are several.
pub(crate) fn rows(run: &Path, codes: &[(Generation, String)]) -> Vec<(String, String)> {
    let later = codes.iter().filter(|_| codes.len() > 1);
    later.map(|(first, hash)| (format!("code of generation {first}"), described(run, hash))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn recorded(folder: &Path, launch: &str, packed: bool) -> CodeRecord {
        let launch: LaunchConfig = toml::from_str(launch).unwrap();
        let host =
            Host { transport: Transport::Local, workdir: folder.display().to_string(), ..Host::default() };
        let made = PendingCodeRecord::start(&launch, &[host], None).finish();
        let mut made = made.unwrap();
        if packed {
            let selection = made.selection();
            let files = pack::list(folder, &|path| selection.keeps(path), 100).unwrap();
            made.listings.clear();
            made.add("ab".into(), files);
        }
        made
    }

    const LAUNCH: &str = "command = [\"python3\", \"train.py\"]\nexclude = [\"*.pt\"]\n";

    #[test]
    fn changed_files_of_a_pack_are_named_script_first() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["train.py", "a.py", "b.py", "gone.py", "data.csv"] {
            fs::write(at(name), "1").unwrap();
        }
        let record = recorded(folder.path(), LAUNCH, true);
        let pack = PlannedCode::Pack("ab".into());
        assert_eq!(record.changed(&pack).map(|changed| changed.count), Some(0));
        fs::write(at("last.pt"), "excluded").unwrap();
        assert_eq!(record.changed(&pack).map(|changed| changed.count), Some(0));
        for name in ["train.py", "b.py", "new.py"] {
            fs::write(at(name), "2").unwrap();
        }
        fs::remove_file(at("gone.py")).unwrap();
        let changed = record.changed(&pack).unwrap();
        assert_eq!(
            (changed.named, changed.count),
            (["train.py", "b.py", "gone.py"].map(str::to_owned).to_vec(), 4)
        );
        assert_eq!(record.changed(&PlannedCode::Pack("other".into())), None, "of another console");
        drop(folder);
        assert_eq!(record.changed(&pack), None, "the directory is gone");
    }

    /// CODE-1
    #[test]
    fn code_1_directory_itself_is_compared_by_its_code() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("runs")).unwrap();
        for name in ["train.py", "conf.yaml", "model.pt", "runs/x.py"] {
            fs::write(at(name), "1").unwrap();
        }
        let record = recorded(folder.path(), LAUNCH, false);
        let paths: Vec<&str> = record.listings[0].files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["conf.yaml", "train.py"]);
        for name in ["model.pt", "written.json", "train.py"] {
            fs::write(at(name), "2").unwrap();
        }
        let changed = record.changed(&PlannedCode::InPlace).unwrap();
        assert_eq!((changed.named, changed.count), (vec!["train.py".to_owned()], 1));
    }

    #[test]
    fn record_of_a_run_in_place_has_the_code_s_own_directory() {
        let (host, code) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(host.path().join("train.py"), "1").unwrap();
        fs::write(code.path().join("train.py"), "2").unwrap();
        let launch = format!("code = {:?}\n{LAUNCH}", code.path());
        let record = recorded(host.path(), &launch, false);
        assert_eq!(record.folder, code.path());
        fs::write(host.path().join("train.py"), "3").unwrap();
        assert_eq!(record.changed(&PlannedCode::InPlace).map(|changed| changed.count), Some(0));
        fs::write(code.path().join("train.py"), "4").unwrap();
        assert_eq!(record.changed(&PlannedCode::InPlace).map(|changed| changed.count), Some(1));
    }

    #[test]
    fn code_1_record_keeps_the_latest_packs() {
        let mut record = CodeRecord::default();
        let file = |text: &str| vec![FileHash { path: "a.py".into(), sha256: text.to_owned() }];
        for number in 0..PACKS + 3 {
            record.add(number.to_string(), file(&number.to_string()));
        }
        record.add("5".into(), file("5"));
        let hashes: Vec<&str> = record.listings.iter().filter_map(|one| one.hash.as_deref()).collect();
        assert_eq!((hashes.len(), hashes.last()), (PACKS, Some(&"5")));
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("console")).unwrap();
        record.write(&folder.path().join("console")).unwrap();
        let codes = [(Generation(0), "10".to_owned()), (Generation(2), "5".to_owned())];
        assert_eq!(rows(folder.path(), &codes[..1]), []);
        let rows = rows(folder.path(), &codes);
        assert!(rows.len() == 2 && rows[1].1.contains("a.py"), "{rows:?}");
    }
}
