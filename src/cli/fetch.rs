//! `rankdeck fetch` and `rankdeck tensorboard`: files of a run on its hosts, copied here.
//!
//! They come in pieces over the connections that everything else uses, so an interrupted copy goes on where
//! it ended. What a host says about its files is not trusted.
//!
//! Invariants:
//! - FETCH-1: nothing is written outside the target folder, and through no link, whatever a host calls its
//!   files.
//! - FETCH-2: a file under its own name is whole: pieces are gathered beside it, in a file whose name says
//!   which state of the original they are of.

use super::args::{FetchArgs, HostKeyArgs, TensorboardArgs};
use super::roster::{FoundRun, Roster, decode, exec_on_all, roster};
use super::run_id::RUNS;
use super::{Failure, code, print};
use crate::shell::stderr;
use base64::Engine;
use rankdeck_config::HostsSource;
use rankdeck_proto::files::{FileEntry, FilePiece, RunFiles};
use rankdeck_proto::pack;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::{bytes, clean, plural};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of a piece; an agent gives no more.
const PIECE: u64 = 2 << 20;
/// Longest path that is taken from a host.
const PATH_BYTES: usize = 1024;
/// Copies of the user's code, sockets and locks: what a run has besides its results.
const NOT_RESULTS: [&str; 2] = ["code-*", "run"];

/// Runs `rankdeck fetch`.
pub async fn fetch(hosts_from: &HostsSource, args: FetchArgs) -> Result<u8, Failure> {
    let FetchedRun { run, into, total } = copy(hosts_from, &args).await?;
    if let Some(pattern) = args.pattern.as_deref().filter(|_| total.is_nothing()) {
        return Err(Failure::usage(format!("no file of run {run} is called `{pattern}`")).hint(format!(
            "`rankdeck fetch {run}` copies all; a pattern is a name such as '*.safetensors', or a path below the run's folder"
        )));
    }
    total.print(&into);
    Ok(if total.refused > 0 { code::FAILED } else { code::SUCCESS })
}

/// What [`copy`] did.
pub struct FetchedRun {
    /// The run's whole name.
    pub run: String,
    into: PathBuf,
    total: Total,
}

/// Copies what is asked for, and prints nothing but warnings.
pub async fn copy(hosts_from: &HostsSource, args: &FetchArgs) -> Result<FetchedRun, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(Some(&args.run))?;
    let into = args.into.clone().unwrap_or_else(|| Path::new(RUNS).join(found.run).join("hosts"));
    let wanted = args.pattern.as_deref();
    let mut total = Total::default();
    for host in hosts_of(&roster, &found)? {
        let files = listed(&host, found.run, &args.host_keys).await?;
        let chosen: Vec<&FileEntry> = files.iter().filter(|file| is_wanted(&file.path, wanted)).collect();
        let size: u64 = chosen.iter().map(|file| file.bytes).fold(total.bytes, u64::saturating_add);
        let limit = u64::from(args.max_size_gb) << 30;
        if size > limit {
            return Err(Failure::usage(format!(
                "{} of run {} match, more than {} GB",
                bytes(size),
                found.run,
                args.max_size_gb
            ))
            .hint(
                "name what you need, such as `rankdeck fetch RUN '*.safetensors'`, or raise --max-size-gb",
            ));
        }
        let copy =
            Copy { host: &host, run: found.run, into: into.join(&host.name), host_keys: &args.host_keys };
        for file in chosen {
            copy.file(file, &mut total).await?;
        }
    }
    Ok(FetchedRun { run: found.run.to_owned(), into, total })
}

/// Runs `rankdeck tensorboard`: fetches event files, and starts TensorBoard on them.
pub async fn tensorboard(hosts_from: &HostsSource, args: TensorboardArgs) -> Result<u8, Failure> {
    let mut places = Vec::new();
    for run in &args.runs {
        let roster = roster(hosts_from, &args.host_keys).await?;
        let name = roster.pick(Some(run))?.run.to_owned();
        let into = Path::new(RUNS).join(&name).join("hosts");
        let fetched = FetchArgs {
            run: name.clone(),
            pattern: Some("*tfevents*".to_owned()),
            into: Some(into.clone()),
            max_size_gb: 4,
            host_keys: args.host_keys.clone(),
        };
        fetch(hosts_from, fetched).await?;
        places.push(format!("{name}:{}", into.display()));
    }
    let mut command = std::process::Command::new("tensorboard");
    match args.runs.as_slice() {
        // TensorBoard's own recommendation where one folder will do.
        [_] => command.arg("--logdir").arg(places[0].split_once(':').map_or("", |(_, path)| path)),
        _ => command.arg("--logdir_spec").arg(places.join(",")),
    };
    let status = command.args(&args.more).status().map_err(|error| {
        Failure::failed(format!("failed to start tensorboard: {error}"))
            .hint(format!("`pip install tensorboard`; the files are in {RUNS}/RUN/hosts"))
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(code::FAILED))
}

/// The hosts of a run that the hosts file lists and that answered.
fn hosts_of(roster: &Roster, found: &FoundRun) -> Result<Vec<Host>, Failure> {
    let names = found.hosts();
    let hosts: Vec<Host> = roster.hosts.iter().filter(|host| names.contains(&host.name)).cloned().collect();
    match roster.silent.iter().find(|(index, _)| names.contains(&roster.hosts[*index].name)) {
        Some((_, error)) => Err(error.clone().into()),
        None => Ok(hosts),
    }
}

fn is_wanted(path: &str, pattern: Option<&str>) -> bool {
    match pattern {
        Some(pattern) => pack::matches(path, &[pattern.to_owned()]),
        None => !pack::matches(path, &NOT_RESULTS.map(str::to_owned)),
    }
}

async fn listed(host: &Host, run: &str, host_keys: &HostKeyArgs) -> Result<Vec<FileEntry>, Failure> {
    let args = ["files", "--run", run, "--workdir", &host.workdir];
    let found: RunFiles = ask(host, &args, host_keys).await?;
    if found.more {
        stderr::line(&format!("warning: {} has more files of run {run} than one answer holds", host.name));
    }
    Ok(found.files)
}

async fn ask<T: serde::de::DeserializeOwned>(
    host: &Host,
    args: &[&str],
    host_keys: &HostKeyArgs,
) -> Result<T, Failure> {
    let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
    let mut answers = exec_on_all(std::slice::from_ref(host), host_keys, |_| args.clone()).await?;
    let answer = answers.pop().unwrap_or_else(|| Err(HintedError::new("no answer", "")));
    Ok(decode(host, &answer?)?)
}

/// What has been done.
#[derive(Debug, Default)]
struct Total {
    files: usize,
    bytes: u64,
    present: usize,
    refused: usize,
}

impl Total {
    /// Nothing was asked for that is there.
    fn is_nothing(&self) -> bool {
        self.files + self.present + self.refused == 0
    }

    fn print(&self, into: &Path) {
        let more = match self.present {
            0 => String::new(),
            present => format!("; {} there already", plural(present, "file")),
        };
        print::stdout(&format!(
            "fetched {} ({}) into {}{more}",
            plural(self.files, "file"),
            bytes(self.bytes),
            into.display()
        ));
    }

    fn refuse(&mut self, host: &Host, path: &str, why: &str) {
        self.refused += 1;
        stderr::line(&clean(&format!("warning: {}: {path:?} is not copied: {why}", host.name)));
    }
}

/// Copies of one host's files.
struct Copy<'a> {
    host: &'a Host,
    run: &'a str,
    into: PathBuf,
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
        let failed = |error: io::Error| {
            Failure::failed(format!("failed to write {}: {error}", target.display()))
                .hint("free space, and give the command again: it goes on where it ended")
        };
        let part = part(&target, file);
        let mut copy = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&part)
            .map_err(failed)?;
        let mut at = copy.metadata().map_err(failed)?.len();
        if at > file.bytes {
            copy.set_len(0).map_err(failed)?;
            at = 0;
        }
        while at < file.bytes {
            let piece = self.piece(file, at).await?;
            if piece.is_empty() {
                total.refuse(self.host, &file.path, "it has become shorter meanwhile");
                return Ok(());
            }
            copy.write_all(&piece).map_err(failed)?;
            at += piece.len() as u64;
            total.bytes += piece.len() as u64;
        }
        finish(&copy, &part, &target, file).map_err(failed)?;
        total.files += 1;
        Ok(())
    }

    async fn piece(&self, file: &FileEntry, at: u64) -> Result<Vec<u8>, Failure> {
        let wanted = (file.bytes - at).min(PIECE);
        let (offset, length) = (at.to_string(), wanted.to_string());
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
        let piece: FilePiece = ask(self.host, &args, self.host_keys).await?;
        let data = base64::engine::general_purpose::STANDARD.decode(piece.data).unwrap_or_default();
        if data.len() as u64 > wanted {
            return Err(Failure::host(format!(
                "host {}: sent more of {:?} than was asked for",
                self.host.name, file.path
            ))
            .hint("is that agent rankdeck's own?"));
        }
        Ok(data)
    }
}

/// Where a file goes; its folder is there afterwards (FETCH-1).
fn target(into: &Path, path: &str) -> Result<PathBuf, String> {
    let parts: Vec<Component<'_>> = Path::new(path).components().collect();
    let plain = parts.iter().all(|part| matches!(part, Component::Normal(_)));
    if !plain || parts.is_empty() || path.len() > PATH_BYTES || path.chars().any(char::is_control) {
        return Err("that is no name for a file below this folder".to_owned());
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
            return Err(format!("{} is there, and is no folder", folder.display()));
        }
    }
    let target = folder.join(parts[parts.len() - 1]);
    match std::fs::symlink_metadata(&target) {
        Ok(data) if !data.is_file() => Err(format!("{} is there, and is no file", target.display())),
        _ => Ok(target),
    }
}

/// Where pieces of this state of the file are gathered (FETCH-2).
fn part(target: &Path, file: &FileEntry) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{}-{:.0}.part", file.bytes, file.modified * 1000.0))
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
    fn fetch_1_a_hostile_name_leads_nowhere_else() {
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
    fn fetch_2_pieces_of_another_state_are_not_taken_for_this_one() {
        let file = |bytes, modified| FileEntry { path: "a/b".into(), bytes, modified };
        let target = Path::new("x/b");
        assert_eq!(part(target, &file(5, 1.5)), Path::new("x/.b.5-1500.part"));
        assert_ne!(part(target, &file(5, 1.5)), part(target, &file(5, 1.6)));
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
    fn results_are_fetched_and_copies_of_the_code_only_by_name() {
        for path in ["checkpoints/best.ckpt", "node0/gen0/rank0.log", "tensorboard/events.out.tfevents.1"] {
            assert!(is_wanted(path, None), "{path}");
        }
        assert!(!is_wanted("node0/code-12ab/train.py", None));
        assert!(is_wanted("node0/code-12ab/train.py", Some("*.py")) && !is_wanted("x.log", Some("*.py")));
    }
}
