//! Copies a run's files from its hosts to this machine.
//!
//! Files arrive in pieces over the usual connections, so an interrupted copy continues where it stopped. File
//! names and sizes that a host sends are not trusted.
//!
//! Invariants:
//! - FETCH-1: nothing is written outside the target directory, or through a link, whatever a host calls its
//!   files.
//! - FETCH-2: a file under its own name is complete: pieces are collected in a sibling file whose name
//!   identifies the version of the original.
//! - FETCH-3: a file or a host that fails is reported, and the others are copied.
//! - FETCH-4: without a pattern, checkpoints are copied before metrics, and these before others, up to the size
//!   limit. What is left out is named.

use crate::app::stderr;
use crate::cli::args::{FetchArgs, HostKeyArgs};
use crate::cli::support::locate::{RunLocator, hint_for_missing};
use crate::cli::support::run_index::{FoundRun, RunIndex, decode, exec_on_all};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::run_name::own_folder;
use crate::cli::support::{Failure, code};
use base64::Engine;
use rankdeck_config::HostsSource;
use rankdeck_proto::files::{
    FETCHED, FileEntry, FilePiece, OTHER_FILES, RunFiles, WORK_FILES, WorkDirectory, has_metrics,
};
use rankdeck_proto::pack;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::words::{bytes, clean, plural};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of a piece; an agent sends no more.
const PIECE: u64 = 2 << 20;
/// Longest path that is accepted from a host.
const PATH_BYTES: usize = 1024;
/// Most omitted files that are named.
const MOST_REASONS: usize = 64;
/// Most files beyond the size limit that are named.
const NAMED: usize = 8;
/// Of a run's own directory: copies of code by earlier versions, sockets and locks, notes of the agent.
const NOT_RESULTS: [&str; 7] =
    ["code-*", "run", "work-before.json", "writers.json", "elsewhere.json", "disk-mark", "node*/resume"];
/// The hook for Python ranks.
const HOOK: &str = "node*/gen*/python";

/// What [`copy`] did.
pub(crate) struct FetchedRun {
    /// Full name of the run.
    pub(crate) run: String,
    pub(crate) into: PathBuf,
    pub(crate) total: Total,
}

/// Copies the requested files; prints only warnings.
pub(crate) async fn copy(hosts_from: &HostsSource, args: &FetchArgs) -> Result<FetchedRun, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let located = locator.find(Some(&args.run), RunAction::Read).await?;
    let (run_index, found) = (&located.run_index, located.found()?);
    let into = match &args.into {
        Some(into) => into.clone(),
        None => own_folder(found.run).map_err(Failure::place)?.join(FETCHED),
    };
    let pattern = args.pattern.as_deref();
    let mut total = Total::default();
    let hosts = hosts_of(run_index, &found, &mut total);
    let (mut chosen, mut marks): (Vec<ChosenFile>, BTreeSet<(String, String)>) = Default::default();
    for (at, host) in hosts.iter().enumerate() {
        let list = match listed(host, found.run, &args.host_keys).await {
            Ok(list) => list,
            Err(failure) => {
                total.lose(failure);
                continue;
            }
        };
        report_left_out(host, found.run, &list, pattern.is_none(), &mut total);
        // What is on this machine need not be copied, unless it is asked for.
        let is_here = pattern.is_none() && args.into.is_none() && host.transport == Transport::Local;
        let work = list.work.unwrap_or_default();
        let in_place = is_here && work.in_place;
        for file in list.files.into_iter().filter(|file| is_selected(&file.path, pattern)) {
            if is_here && is_below(&file.path, OTHER_FILES) || in_place && is_below(&file.path, WORK_FILES) {
                let path = file.path.strip_prefix(OTHER_FILES).filter(|path| path.starts_with('/'));
                total.present_here.insert(path.map_or_else(|| work.folder.clone(), str::to_owned));
            } else if is_new(&mut marks, &work, &file) {
                chosen.push(ChosenFile { host: at, file });
            }
        }
    }
    let limit = u64::from(args.max_size_gb) << 30;
    if pattern.is_some() {
        let size = chosen.iter().map(|chosen| chosen.file.bytes).fold(0, u64::saturating_add);
        if size > limit {
            return Err(Failure::usage(format!(
                "{} of files of run {} match; the limit is {} GB",
                bytes(size),
                found.run,
                args.max_size_gb
            ))
            .hint("select fewer files, or raise --max-size-gb"));
        }
    } else {
        let is_present = |chosen: &ChosenFile| {
            is_same(&into.join(&hosts[chosen.host].name).join(&chosen.file.path), &chosen.file)
        };
        total.beyond = beyond(&mut chosen, limit, &is_present);
        report_beyond(&hosts, &total.beyond, args.max_size_gb);
    }
    let mut lost = BTreeSet::new();
    for ChosenFile { host: at, file } in &chosen {
        if lost.contains(at) {
            continue;
        }
        let host = &hosts[*at];
        let copy = Copy { host, run: found.run, into: into.join(&host.name), host_keys: &args.host_keys };
        match copy.file(file, &mut total).await {
            Ok(()) => {}
            Err(failure) if failure.code == code::HOST => {
                total.lose(failure);
                lost.insert(*at);
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(FetchedRun { run: found.run.to_owned(), into, total })
}

/// A file that is to be copied.
#[derive(Debug, Clone, PartialEq)]
struct ChosenFile {
    /// Index of its host.
    host: usize,
    file: FileEntry,
}

/// Whether no host before has listed this file of a shared directory.
fn is_new(marks: &mut BTreeSet<(String, String)>, work: &WorkDirectory, file: &FileEntry) -> bool {
    work.mark.is_empty()
        || !is_below(&file.path, WORK_FILES)
        || marks.insert((work.mark.clone(), file.path.clone()))
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Sorts files by what they are worth, and takes those out that do not fit; files that are here already take no
/// space (FETCH-4).
fn beyond(
    chosen: &mut Vec<ChosenFile>,
    limit: u64,
    is_present: &dyn Fn(&ChosenFile) -> bool,
) -> Vec<ChosenFile> {
    let worth = |file: &FileEntry| if file.checkpoint { 0 } else { 2 - u8::from(has_metrics(&file.path)) };
    chosen.sort_by_key(|chosen| worth(&chosen.file));
    let mut left = limit;
    let fits = |chosen: &ChosenFile| {
        let size = if is_present(chosen) { 0 } else { chosen.file.bytes };
        let rest = left.checked_sub(size);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let (inside, beyond) = std::mem::take(chosen).into_iter().partition(fits);
    *chosen = inside;
    beyond
}

/// Names the files beyond the limit.
fn report_beyond(hosts: &[Host], beyond: &[ChosenFile], limit_gb: u32) {
    if beyond.is_empty() {
        return;
    }
    let size = beyond.iter().map(|chosen| chosen.file.bytes).fold(0, u64::saturating_add);
    let what = format!("{} ({})", plural(beyond.len(), "file"), bytes(size));
    stderr::line(&format!("warning: not copied because of the limit of {limit_gb} GB: {what}"));
    for ChosenFile { host, file } in beyond.iter().take(NAMED) {
        let line = format!("  {}: {} ({})", hosts[*host].name, file.path, bytes(file.bytes));
        stderr::line(&clean(&line));
    }
    if beyond.len() > NAMED {
        stderr::line(&format!("  and {} more", beyond.len() - NAMED));
    }
    stderr::line("hint: raise --max-size-gb, or name the files");
}

/// Whether a file of a run was fetched from one of its hosts and is still the same.
pub(crate) fn is_fetched(run: &str, file: &FileEntry) -> bool {
    let Ok(folder) = own_folder(run) else { return false };
    let mut hosts = std::fs::read_dir(folder.join(FETCHED)).into_iter().flatten().flatten();
    hosts.any(|host| is_same(&host.path().join(&file.path), file))
}

/// Returns the hosts with files of a run that answered; the others count as lost.
fn hosts_of(run_index: &RunIndex, found: &FoundRun, total: &mut Total) -> Vec<Host> {
    let silent =
        |host: &Host| run_index.silent.iter().find(|(index, _)| run_index.hosts[*index].name == host.name);
    let mut hosts = Vec::new();
    // A part that another host has, as on a shared file system, is copied from there.
    let has_part = |name: &String| found.parts.iter().any(|(_, part)| part.host == *name);
    for host in run_index.holders(found) {
        match silent(&host) {
            Some(_) if has_part(&host.name) => {}
            Some((_, error)) => total.lose(error.clone().into()),
            None => hosts.push(host),
        }
    }
    let missing: Vec<String> =
        run_index.missing_hosts(found).into_iter().filter(|name| !has_part(name)).collect();
    if !missing.is_empty() {
        let why = format!("{}: not in the hosts file", missing.join(", "));
        total.lose(Failure::host(why).hint(hint_for_missing(found.run, &missing, "fetch")));
    }
    hosts
}

/// Prints what a host's list omits; `counts`: it was requested.
fn report_left_out(host: &Host, run: &str, list: &RunFiles, counts: bool, total: &mut Total) {
    if list.more {
        let text = format!("warning: {} has too many files of run {run}; the list is incomplete", host.name);
        stderr::line(&clean(&text));
    }
    for reason in list.left_out.iter().take(MOST_REASONS) {
        stderr::line(&clean(&format!("warning: {}: not copied: {reason}", host.name)));
    }
    for note in list.notes.iter().take(MOST_REASONS) {
        stderr::line(&clean(&format!("note: {}: not copied: {note}", host.name)));
    }
    if counts {
        total.refused += list.left_out.len();
    }
}

fn is_selected(path: &str, pattern: Option<&str>) -> bool {
    let is_outside = is_below(path, WORK_FILES) || is_below(path, OTHER_FILES);
    if !is_outside && pack::matches(path, &[HOOK.to_owned()]) {
        return false;
    }
    match pattern {
        Some(pattern) => pack::matches(path, &[pattern.to_owned()]),
        None => is_outside || !pack::matches(path, &NOT_RESULTS.map(str::to_owned)),
    }
}

async fn listed(host: &Host, run: &str, host_keys: &HostKeyArgs) -> Result<RunFiles, Failure> {
    let args = ["files", "--run", run, "--workdir", &host.workdir];
    Ok(ask(host, &args, host_keys).await??)
}

/// Asks a host; the inner error is its refusal.
///
/// Errors: the host does not respond.
async fn ask<T: serde::de::DeserializeOwned>(
    host: &Host,
    args: &[&str],
    host_keys: &HostKeyArgs,
) -> Result<Result<T, HintedError>, Failure> {
    let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
    let mut answers = exec_on_all(std::slice::from_ref(host), host_keys, |_| args.clone()).await?;
    let answer = answers.pop().unwrap_or_else(|| Err(HintedError::new("no answer", "")));
    Ok(decode(host, &answer?))
}

/// Whether no other file can be written either.
fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// What was copied.
#[derive(Debug, Default)]
pub(crate) struct Total {
    files: usize,
    bytes: u64,
    present: usize,
    pub(crate) refused: usize,
    /// Files beyond the size limit.
    beyond: Vec<ChosenFile>,
    /// Where results are on this machine that were not copied.
    present_here: BTreeSet<String>,
    /// The first host that failed.
    pub(crate) lost: Option<Failure>,
}

impl Total {
    /// Whether no file matched.
    pub(crate) fn is_nothing(&self) -> bool {
        self.files + self.present + self.refused == 0 && self.lost.is_none()
    }

    /// Whether everything that was requested is on this machine now.
    pub(crate) fn is_complete(&self) -> bool {
        self.refused == 0 && self.beyond.is_empty()
    }

    /// Where results are on this machine that were not copied.
    pub(crate) fn places(&self) -> Option<String> {
        let places: Vec<&str> = self.present_here.iter().take(NAMED).map(String::as_str).collect();
        let more = if self.present_here.len() > NAMED { ", ..." } else { "" };
        (!places.is_empty()).then(|| format!("results are on this machine: {}{more}", places.join(", ")))
    }

    /// Reports a host that failed.
    fn lose(&mut self, failure: Failure) {
        stderr::line(&clean(&format!("warning: {}; its other files are not copied", failure.cause.error)));
        self.lost.get_or_insert(failure);
    }

    /// One line about the copy.
    pub(crate) fn text(&self, into: &Path) -> String {
        let more = match self.present {
            0 => String::new(),
            present => format!("; {} up to date", plural(present, "file")),
        };
        format!(
            "fetched {} ({}) into {}{more}",
            plural(self.files, "file"),
            bytes(self.bytes),
            into.display()
        )
    }

    /// The same as a JSON line.
    pub(crate) fn as_json(&self, run: &str, into: &Path) -> Value {
        json!({
            "kind": "fetched",
            "run": run,
            "into": into.to_string_lossy(),
            "files": self.files,
            "bytes": self.bytes,
            "present": self.present,
            "refused": self.refused,
            "beyond_limit": self.beyond.len(),
            "in_place": self.present_here,
        })
    }

    fn refuse(&mut self, host: &Host, path: &str, why: &str) {
        self.refused += 1;
        stderr::line(&clean(&format!("warning: {}: {path:?} not copied: {why}", host.name)));
    }
}

/// Copies the files of one host.
struct Copy<'a> {
    host: &'a Host,
    run: &'a str,
    pub(crate) into: PathBuf,
    host_keys: &'a HostKeyArgs,
}

impl Copy<'_> {
    async fn file(&self, file: &FileEntry, total: &mut Total) -> Result<(), Failure> {
        let target = match target(&self.into, &file.path) {
            Ok(target) => target,
            Err(why) => {
                total.refuse(self.host, &file.path, &why);
                return Ok(());
            }
        };
        if is_same(&target, file) {
            total.present += 1;
            return Ok(());
        }
        match self.pieces(file, &target, total).await? {
            Ok(()) => total.files += 1,
            Err(FileFailure::Remote(why)) => total.refuse(self.host, &file.path, &why),
            Err(FileFailure::Local(error)) if is_lasting(&error) => {
                return Err(Failure::failed(format!("failed to write {}: {error}", target.display()))
                    .hint("free disk space and run the command again; it continues where it stopped"));
            }
            Err(FileFailure::Local(error)) => total.refuse(self.host, &file.path, &error.to_string()),
        }
        Ok(())
    }

    /// Collects the pieces of a file.
    ///
    /// Errors: the host does not respond.
    async fn pieces(
        &self,
        file: &FileEntry,
        target: &Path,
        total: &mut Total,
    ) -> Result<Result<(), FileFailure>, Failure> {
        let part = part(target, file);
        let (mut copy, mut at) = match open_part(&part, file) {
            Ok(open) => open,
            Err(error) => return Ok(Err(FileFailure::Local(error))),
        };
        while at < file.bytes {
            let piece = match self.piece(file, at).await? {
                Ok(piece) if piece.is_empty() => {
                    return Ok(Err(FileFailure::Remote("the file was truncated during the copy".into())));
                }
                Ok(piece) => piece,
                Err(refused) => return Ok(Err(FileFailure::Remote(refused.error))),
            };
            if let Err(error) = copy.write_all(&piece) {
                return Ok(Err(FileFailure::Local(error)));
            }
            at += piece.len() as u64;
            total.bytes += piece.len() as u64;
        }
        Ok(finish(&copy, &part, target, file).map_err(FileFailure::Local))
    }

    async fn piece(&self, file: &FileEntry, at: u64) -> Result<Result<Vec<u8>, HintedError>, Failure> {
        let most = (file.bytes - at).min(PIECE);
        let (offset, length) = (at.to_string(), most.to_string());
        let args = [
            "read",
            "--run",
            self.run,
            "--workdir",
            &self.host.workdir,
            "--path",
            &file.path,
            "--offset",
            &offset,
            "--bytes",
            &length,
        ];
        let piece: FilePiece = match ask(self.host, &args, self.host_keys).await? {
            Ok(piece) => piece,
            Err(refused) => return Ok(Err(refused)),
        };
        let data = base64::engine::general_purpose::STANDARD.decode(piece.data).unwrap_or_default();
        if data.len() as u64 > most {
            return Err(Failure::host(format!(
                "host {} sent more of {:?} than requested",
                self.host.name, file.path
            ))
            .hint("the agent may be from another build"));
        }
        Ok(Ok(data))
    }
}

/// Why one file is not copied.
enum FileFailure {
    /// Its host cannot read it.
    Remote(String),
    /// It cannot be written here.
    Local(io::Error),
}

/// Opens the file of pieces; returns how many bytes are there already.
fn open_part(part: &Path, file: &FileEntry) -> io::Result<(File, u64)> {
    let copy =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(part)?;
    match copy.metadata()?.len() {
        at if at > file.bytes => copy.set_len(0).map(|()| (copy, 0)),
        at => Ok((copy, at)),
    }
}

/// Returns the target path of a file and creates its directory (FETCH-1).
fn target(into: &Path, path: &str) -> Result<PathBuf, String> {
    let parts: Vec<Component<'_>> = Path::new(path).components().collect();
    let plain = parts.iter().all(|part| matches!(part, Component::Normal(_)));
    if !plain
        || parts.is_empty()
        || path.len() > PATH_BYTES
        || path.chars().any(rankdeck_types::words::controls_terminal)
    {
        return Err("invalid file name".to_owned());
    }
    std::fs::create_dir_all(into).map_err(|error| error.to_string())?;
    let mut folder = into.to_owned();
    for part in &parts[..parts.len() - 1] {
        folder.push(part);
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.to_string()),
            _ => {}
        }
        if !std::fs::symlink_metadata(&folder).is_ok_and(|data| data.is_dir()) {
            return Err(format!("{} exists and is not a directory", folder.display()));
        }
    }
    let target = folder.join(parts[parts.len() - 1]);
    match std::fs::symlink_metadata(&target) {
        Ok(data) if !data.is_file() => Err(format!("{} exists and is not a file", target.display())),
        _ => Ok(target),
    }
}

/// Returns the path in which pieces of this version of the file are collected (FETCH-2). A name of any length
/// has one.
fn part(target: &Path, file: &FileEntry) -> PathBuf {
    let version = format!("{} {:.0} {}", file.bytes, file.modified * 1000.0, file.path);
    let digest = Sha256::digest(version.as_bytes());
    let short: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    target.with_file_name(format!(".{short}.part"))
}

fn modified(file: &FileEntry) -> SystemTime {
    let seconds = if file.modified.is_finite() { file.modified.clamp(0.0, 1e11) } else { 0.0 };
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds)
}

fn is_same(target: &Path, file: &FileEntry) -> bool {
    std::fs::symlink_metadata(target).is_ok_and(|data| {
        let apart =
            |a: SystemTime, b: SystemTime| a.duration_since(b).unwrap_or_else(|error| error.duration());
        data.is_file()
            && data.len() == file.bytes
            && data.modified().is_ok_and(|time| apart(time, modified(file)) < Duration::from_millis(10))
    })
}

fn finish(copy: &File, part: &Path, target: &Path, file: &FileEntry) -> io::Result<()> {
    copy.set_modified(modified(file))?;
    std::fs::rename(part, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetch_1_hostile_name_stays_inside_target() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("into");
        std::fs::create_dir(&into).unwrap();
        std::os::unix::fs::symlink(folder.path(), into.join("out")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", into.join("passwd")).unwrap();
        std::fs::write(into.join("file"), "").unwrap();
        let long = "x/".repeat(1000);
        for name in
            ["", "..", "../x", "a/../../x", "/etc/x", "./x\n", "out/x", "passwd", "file/x", long.as_str()]
        {
            assert!(target(&into, name).is_err(), "{name:?}");
        }
        assert_eq!(target(&into, "a/b/c"), Ok(into.join("a/b/c")));
        assert_eq!(target(&into, "file"), Ok(into.join("file")));
        let mut outside: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        outside.sort();
        assert_eq!(outside, ["into"]);
    }

    #[test]
    fn fetch_2_pieces_of_another_version_are_separate() {
        let file = |bytes, modified| FileEntry { path: "a/b".into(), bytes, modified, checkpoint: false };
        let target = Path::new("x/b");
        let first = part(target, &file(5, 1.5));
        assert!(first.parent() == Some(Path::new("x")) && first == part(target, &file(5, 1.5)));
        assert_ne!(first, part(target, &file(5, 1.6)));
        assert_ne!(first, part(target, &file(6, 1.5)));
        assert_ne!(first, part(target, &FileEntry { path: "a/c".into(), ..file(5, 1.5) }));
        let long = FileEntry { path: "x".repeat(255), ..file(5, 1.5) };
        assert!(part(Path::new(&long.path), &long).file_name().unwrap().len() < 64);
        let folder = tempfile::tempdir().unwrap();
        let (here, kept) = (folder.path().join("b"), folder.path().join(".part"));
        std::fs::write(&kept, "12345").unwrap();
        let copy = File::options().write(true).open(&kept).unwrap();
        finish(&copy, &kept, &here, &file(5, 1_767_268_800.25)).unwrap();
        assert!(is_same(&here, &file(5, 1_767_268_800.25)));
        assert!(!is_same(&here, &file(5, 1_767_268_801.25)) && !is_same(&here, &file(6, 1_767_268_800.25)));
        assert!(!is_same(&here, &file(5, f64::NAN)));
    }

    #[test]
    fn fetch_4_checkpoints_come_first_and_the_rest_is_left_out() {
        let file = |path: &str, bytes, checkpoint| ChosenFile {
            host: 0,
            file: FileEntry { path: path.into(), bytes, checkpoint, ..FileEntry::default() },
        };
        let all = vec![
            file("node0/gen0/rank0.log", 10, false),
            file("work/huge.pt", 100, true),
            file("work/log.csv", 10, false),
            file("work/best.pt", 50, true),
        ];
        let fetched = |limit, present: &str| {
            let mut chosen = all.clone();
            let beyond = beyond(&mut chosen, limit, &|chosen| chosen.file.path == present);
            let names = |files: Vec<ChosenFile>| {
                files.into_iter().map(|chosen| chosen.file.path).collect::<Vec<_>>().join(" ")
            };
            (names(chosen), names(beyond))
        };
        let (copied, left) = fetched(1000, "");
        assert_eq!(copied, "work/huge.pt work/best.pt work/log.csv node0/gen0/rank0.log");
        assert_eq!(left, "");
        let (copied, left) = fetched(60, "");
        assert_eq!(
            (copied.as_str(), left.as_str()),
            ("work/best.pt work/log.csv", "work/huge.pt node0/gen0/rank0.log")
        );
        // A second fetch copies the rest.
        assert_eq!(fetched(70, "work/huge.pt").1, "");
    }

    #[test]
    fn files_of_a_shared_directory_are_fetched_once() {
        let mut marks = BTreeSet::new();
        let mut is_new = |mark: &str, path: &str| {
            let work = WorkDirectory { mark: mark.into(), ..WorkDirectory::default() };
            super::is_new(&mut marks, &work, &FileEntry { path: path.into(), ..FileEntry::default() })
        };
        assert!(is_new("a", "work/x") && !is_new("a", "work/x") && is_new("b", "work/x"));
        assert!(is_new("a", "node0/x") && is_new("a", "node0/x"), "of the run itself");
        assert!(is_new("", "work/x") && is_new("", "work/x"), "nothing is known");
    }

    #[test]
    fn code_copies_are_fetched_only_by_name() {
        for path in ["checkpoints/best.ckpt", "node0/gen0/rank0.log", "tensorboard/events.out.tfevents.1"] {
            assert!(is_selected(path, None), "{path}");
        }
        for path in ["work/code-a/run/best.pt", "files/scratch/run/a.pt"] {
            assert!(is_selected(path, None), "{path}");
        }
        let hook = "node0/gen0/python/sitecustomize.py";
        assert!(!is_selected(hook, None) && !is_selected(hook, Some("*.py")));
        assert!(!is_selected("node0/code-12ab/train.py", None));
        assert!(is_selected("node0/code-12ab/train.py", Some("*.py")) && !is_selected("x.log", Some("*.py")));
    }
}
