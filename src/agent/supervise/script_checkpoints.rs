//! Sets a script's known checkpoints aside before its next generation starts: those that ranks reported, and
//! those that were found.
//!
//! A script writes its checkpoints to any place, and often overwrites the previous ones. A checkpoint that a generation
//! does not continue moves to `genM/` next to it, M being the generation that wrote it last. One that it continues
//! stays; one that it would overwrite gets a copy in `genM/`: a name without a number, or one that was
//! written before. Copies that rankdeck made for an earlier generation are removed if they are not continued.
//!
//! Other runs may work in the same directory. What one of them wrote last stays where it is.
//!
//! Owner: the thread that prepares a launch, which has taken the ranks' directory before. The built-in trainer sets its
//! own checkpoints aside. Invariants:
//! - KEPT-1: no generation writes over a known checkpoint of an earlier one. Where one cannot be kept, the
//!   generation does not start.
//! - KEPT-2: nothing is removed or replaced, and an interrupted copy leaves whole files only.
//! - KEPT-3: a file that another run wrote after this one is not moved (OTHERS-1).

use crate::digest;
use crate::known_checkpoints::{LineCheckpoint, TrainingLine};
use crate::other_runs::{OtherRuns, OwnKnowledge};
use crate::paths::RunPaths;
use crate::placement;
use rankdeck_proto::message::LaunchSpec;
use rankdeck_types::ids::Generation;
use rankdeck_types::words::{clean, plural};
use std::collections::BTreeMap;
use std::fs::{File, FileTimes, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Most names in a notice.
const NAMED: usize = 3;
/// Most names that are tried for one file.
const NAMES: u32 = 1000;
/// Deepest directory below a checkpoint.
const DEPTH: u32 = 64;

/// Whether the next generation may write over the checkpoint that it continues. What was only found may be any
/// large file: it is copied if it has been written twice, or if the generation resumes from it.
fn is_replaced(known: &LineCheckpoint, from: Option<&str>) -> bool {
    let name = Path::new(&known.path).file_name().unwrap_or_default().to_string_lossy();
    let is_origin = from.is_some_and(|from| Path::new(from).starts_with(&known.path));
    let has_number = name.chars().any(|letter| letter.is_ascii_digit());
    known.repeated || !has_number && (known.reported || is_origin)
}

/// Sets aside what the script of `spec` may write over; returns notices. A script in a container shares only
/// `workdir` and the run's directory with this host.
///
/// # Errors
/// A checkpoint cannot be kept.
pub(crate) fn set_aside(
    paths: &RunPaths,
    spec: &LaunchSpec,
    workdir: &Path,
    container: Option<&str>,
) -> Result<Vec<String>, String> {
    if spec.generation == Generation(0) || spec.plan.is_builtin() {
        return Ok(Vec::new());
    }
    let (mut line, mut ended) = (TrainingLine::default(), 0.0);
    digest::each_record(&paths.spool(), |record| {
        if record.generation < spec.generation {
            ended = record.time.max(ended);
            line.read(record);
        }
    });
    let (from, hosts) = (spec.resume_path(), spec.plan.members().count());
    let kept = line.continued(from, hosts);
    let (continued, abandoned): (Vec<_>, Vec<_>) = line.0.iter().zip(kept).partition(|(_, kept)| *kept);
    let continued: Vec<&LineCheckpoint> = continued.into_iter().map(|(known, _)| known).collect();
    let shared = [workdir, paths.run_dir.as_path()];
    let is_shared = |path: &Path| container.is_none() || shared.iter().any(|folder| path.starts_with(folder));
    // A directory with what stays is not moved.
    let stays = |path: &Path| {
        let inside = continued.iter().map(|known| Path::new(&known.path));
        inside.chain(shared).chain(from.map(Path::new)).any(|inner| inner.starts_with(path))
    };
    let replaced =
        continued.iter().copied().filter(|known| is_replaced(known, from)).map(|known| (known, true));
    let abandoned = abandoned.into_iter().map(|(known, _)| known);
    let mut moved: Vec<&LineCheckpoint> = abandoned.filter(|known| !stays(Path::new(&known.path))).collect();
    moved.sort_by_key(|reported| Path::new(&reported.path).is_symlink());
    let mut kept: BTreeMap<PathBuf, usize> = BTreeMap::new();
    placement::forget_copies(paths, workdir, from);
    let earliest = line.0.iter().map(LineCheckpoint::written).fold(ended, f64::min);
    let (others, mut left) =
        (OtherRuns::since(&paths.run_dir, earliest), BTreeMap::<&str, Vec<String>>::new());
    let place = format!("node{}", paths.node);
    for (reported, is_continued) in replaced.chain(moved.into_iter().map(|reported| (reported, false))) {
        let path = Path::new(&reported.path);
        if !path.is_absolute() || !is_shared(path) || shared.iter().any(|folder| folder.starts_with(path)) {
            continue;
        }
        // KEPT-3. A copy of what this generation continues takes nothing from anyone.
        let is_origin = is_continued && from.is_some_and(|from| Path::new(from).starts_with(path));
        let own = OwnKnowledge { written: reported.written(), found: reported.found(), ended };
        if let Some(owner) = others.owner(path, own) {
            left.entry(owner).or_default().push(clean(&reported.path));
            if !is_origin {
                continue;
            }
        }
        let folder = keep(path, reported.generation, is_continued, &place).map_err(|error| {
            format!(
                "cannot keep checkpoint {} of generation {}: {error} (move it away, then restart)",
                clean(&reported.path),
                reported.generation
            )
        })?;
        if let Some(folder) = folder {
            *kept.entry(folder).or_default() += 1;
        }
    }
    let notice = |(folder, count): (PathBuf, usize)| {
        format!("{} of an earlier generation kept in {}", plural(count, "checkpoint"), folder.display())
    };
    let stays = |(owner, paths): (&str, Vec<String>)| {
        let named = paths.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = match paths.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let stay = if paths.len() == 1 { "stays" } else { "stay" };
        let run = clean(owner);
        format!("{named}{more} {stay} in place: run {run} wrote last, and this run may write over it")
    };
    Ok(left.into_iter().map(stays).chain(kept.into_iter().map(notice)).collect())
}

/// The run that wrote what is under a path after this one (KEPT-3).
pub(crate) fn later_owner(paths: &RunPaths, path: &Path) -> Option<String> {
    let (mut line, mut ended) = (TrainingLine::default(), 0.0);
    digest::each_record(&paths.spool(), |record| {
        ended = record.time.max(ended);
        line.read(record);
    });
    let known = line.0.iter().rev().find(|known| Path::new(&known.path) == path);
    let (written, found) = known.map_or((0.0, None), |known| (known.written(), known.found()));
    let own = OwnKnowledge { written, found, ended };
    OtherRuns::since(&paths.run_dir, written).owner(path, own).map(str::to_owned)
}

/// Moves what is under a path, of this generation, to `genN/` next to it.
pub(crate) fn keep_aside(path: &Path, generation: Generation) -> io::Result<()> {
    keep(path, generation, false, "").map(drop)
}

/// Moves or copies a checkpoint; `place` names the copy of this host while it is made. Returns the directory where it
/// is now. `None`: nothing was there, or a copy is there already.
fn keep(path: &Path, generation: Generation, is_continued: bool, place: &str) -> io::Result<Option<PathBuf>> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        found => found?,
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    // A link holds no data: what it leads to has a name of its own, and may have moved.
    if found.is_symlink() && (is_continued || path.try_exists().unwrap_or(false)) {
        return Ok(None);
    }
    let folder = parent.join(format!("gen{generation}"));
    std::fs::create_dir_all(&folder)?;
    for number in 0..NAMES {
        let mut there = folder.join(name);
        if number > 0 {
            there.as_mut_os_string().push(format!(".{number}"));
        }
        match std::fs::symlink_metadata(&there) {
            Ok(_) if is_continued && is_same(path, &there, DEPTH)? => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let kept = match is_continued {
                    true => copy_whole(path, &there, place),
                    false => std::fs::rename(path, &there),
                };
                match kept {
                    // Another host of the same disk was faster.
                    Err(_) if std::fs::symlink_metadata(path).is_err_and(is_gone) => return Ok(None),
                    kept => kept?,
                }
                File::open(&folder)?.sync_all()?;
                return Ok(Some(folder));
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{} has {NAMES} of that name", folder.display())))
}

fn is_gone(error: io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Copies a file or directory; `to` appears when it is complete.
fn copy_whole(from: &Path, to: &Path, place: &str) -> io::Result<()> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    // Hosts that share a disk copy at the same time.
    let temporary = to.with_file_name(format!(".{name}.{place}.tmp"));
    // Of a copy that was interrupted.
    remove(&temporary)?;
    let copied = copy(from, &temporary, DEPTH).and_then(|()| std::fs::rename(&temporary, to));
    if copied.is_err() {
        let _ = remove(&temporary);
    }
    copied
}

/// Removes an incomplete copy.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies with times, by which the copy is known again.
fn copy(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(from)?;
    if found.is_symlink() {
        return std::os::unix::fs::symlink(std::fs::read_link(from)?, to);
    }
    if found.is_file() {
        std::fs::copy(from, to)?;
        let file = File::open(to)?;
        file.set_times(FileTimes::new().set_modified(found.modified()?))?;
        return file.sync_all();
    }
    if !found.is_dir() {
        // Sockets and pipes hold nothing.
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| io::Error::other("too many directories"))?;
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()), depth)?;
    }
    File::open(to)?.sync_all()
}

/// Whether a copy is of the present content, by sizes and times.
fn is_same(here: &Path, there: &Path, depth: u32) -> io::Result<bool> {
    let (own, other) = (std::fs::symlink_metadata(here)?, std::fs::symlink_metadata(there)?);
    let is_equal = |own: &Metadata, other: &Metadata| {
        Ok::<_, io::Error>(own.len() == other.len() && own.modified()? == other.modified()?)
    };
    if own.is_dir() && other.is_dir() && depth > 0 {
        for entry in std::fs::read_dir(here)? {
            let entry = entry?;
            let copied = there.join(entry.file_name());
            let is_data = entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir());
            if is_data && !(copied.try_exists()? && is_same(&entry.path(), &copied, depth - 1)?) {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    Ok(own.is_file() && other.is_file() && is_equal(&own, &other)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::other_runs;
    use rankdeck_proto::message::{CheckpointFile, RankEvent, Record, RecordEvent};
    use rankdeck_types::ids::{NodeRank, Rank, RunId};
    use rankdeck_types::plan::Plan;
    use std::fs::{create_dir_all, read_to_string, write};

    fn spec(generation: u32, from: Option<&Path>) -> LaunchSpec {
        let experiment = "[run]\nname = \"t\"\n[launch]\ncommand = [\"true\"]";
        LaunchSpec {
            generation: Generation(generation),
            node_rank: NodeRank(0),
            master_addr: "127.0.0.1".into(),
            master_port: 1,
            resume: from.map(|from| from.display().to_string()),
            resume_at: None,
            plan: Plan {
                run: RunId("t".into()),
                experiment: toml::from_str(experiment).unwrap(),
                program: None,
                hosts: vec![],
                ranks: vec![],
                sizes: vec![],
                drill: false,
            },
        }
    }

    /// A run with a directory for its script, and its records so far.
    struct TestRun {
        folder: tempfile::TempDir,
        paths: RunPaths,
        records: Vec<Record>,
    }

    impl TestRun {
        fn new() -> TestRun {
            let folder = tempfile::tempdir().unwrap();
            let paths = RunPaths { run_dir: folder.path().join("runs/run"), node: NodeRank(0) };
            create_dir_all(paths.node_dir()).unwrap();
            create_dir_all(folder.path().join("out")).unwrap();
            TestRun { folder, paths, records: Vec::new() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join("out").join(name)
        }

        fn record(&mut self, generation: u32, event: RecordEvent) {
            let (seq, generation) = (self.records.len() as u64 + 1, Generation(generation));
            self.records.push(Record { seq, time: 1.0, generation, event });
        }

        /// The script writes a checkpoint and reports it.
        fn saves(&mut self, generation: u32, name: &str, content: &str) {
            let path = self.path(name);
            write(&path, content).unwrap();
            self.reports(generation, &path);
        }

        fn reports(&mut self, generation: u32, path: &Path) {
            let path = path.display().to_string();
            let event = RankEvent::Checkpoint { path, env_step: 1, train_iter: 1, reason: "latest".into() };
            self.record(generation, RecordEvent::Rank { rank: Rank(0), event });
        }

        /// Starts a generation; returns what its preparation reports.
        fn restarts(&mut self, generation: u32, from: Option<&str>) -> Result<Vec<String>, String> {
            let spec = spec(generation, from.map(|name| self.path(name)).as_deref());
            let lines: Vec<String> =
                self.records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
            write(self.paths.spool(), lines.concat()).unwrap();
            let kept = set_aside(&self.paths, &spec, &self.folder.path().join("work"), None);
            self.record(generation, RecordEvent::Launched { spec: Box::new(spec) });
            kept
        }

        /// All files with their content.
        fn files(&self) -> Vec<String> {
            let mut found = Vec::new();
            let mut open = vec![self.path("")];
            while let Some(folder) = open.pop() {
                for entry in std::fs::read_dir(folder).unwrap().flatten() {
                    let path = entry.path();
                    match path.is_dir() {
                        true => open.push(path),
                        false => found.push(format!(
                            "{}={}",
                            path.strip_prefix(self.path("")).unwrap().display(),
                            read_to_string(&path).unwrap()
                        )),
                    }
                }
            }
            found.sort();
            found
        }
    }

    #[test]
    fn kept_1_start_from_scratch_moves_all_checkpoints() {
        let mut run = TestRun::new();
        run.saves(0, "ck.pt", "a");
        run.saves(0, "step-2.pt", "b");
        std::os::unix::fs::symlink("step-2.pt", run.path("newest")).unwrap();
        run.reports(0, &run.path("newest"));
        write(run.path("own.txt"), "c").unwrap();
        assert_eq!(run.restarts(1, None).unwrap().len(), 1);
        assert_eq!(run.files(), ["gen0/ck.pt=a", "gen0/newest=b", "gen0/step-2.pt=b", "own.txt=c"]);
        run.saves(1, "ck.pt", "d");
        run.restarts(2, None).unwrap();
        assert_eq!(
            run.files(),
            ["gen0/ck.pt=a", "gen0/newest=b", "gen0/step-2.pt=b", "gen1/ck.pt=d", "own.txt=c"]
        );
        assert_eq!(run.restarts(3, None), Ok(vec![]), "nothing new");
    }

    #[test]
    fn kept_1_found_checkpoints_are_set_aside_like_reported_ones() {
        let mut run = TestRun::new();
        run.saves(0, "a.pt", "a");
        // What is found soon after the origin may belong to it.
        for (name, modified) in [("b.pt", 1.0), ("optimizer-1.pt", 2.0), ("c-2.pt", 60.0)] {
            write(run.path(name), name).unwrap();
            let path = run.path(name).display().to_string();
            let file = CheckpointFile { path, modified, ..CheckpointFile::default() };
            run.record(0, RecordEvent::CheckpointFiles { files: vec![file], complete: false });
        }
        run.restarts(1, Some("b.pt")).unwrap();
        let beside = ["a.pt=a", "b.pt=b.pt"];
        let aside = ["gen0/a.pt=a", "gen0/b.pt=b.pt", "gen0/c-2.pt=c-2.pt"];
        assert_eq!(run.files()[..2], beside);
        assert_eq!(run.files()[2..5], aside);
        assert_eq!(run.files()[5..], ["optimizer-1.pt=optimizer-1.pt"]);
        run.restarts(2, None).unwrap();
        assert!(run.files().iter().all(|file| file.starts_with("gen0/")), "{:?}", run.files());
        assert_eq!(run.files().len(), 6);
    }

    #[test]
    fn kept_1_continued_checkpoints_stay_and_replaced_ones_are_copied() {
        let mut run = TestRun::new();
        run.saves(0, "best.pt", "a");
        run.saves(0, "step-1.pt", "b");
        run.saves(0, "ring-0.pt", "c");
        run.saves(0, "ring-0.pt", "d");
        run.restarts(1, Some("ring-0.pt")).unwrap();
        let first = ["best.pt=a", "gen0/best.pt=a", "gen0/ring-0.pt=d", "ring-0.pt=d", "step-1.pt=b"];
        assert_eq!(run.files(), first);
        // A generation that saves nothing adds nothing.
        assert_eq!(run.restarts(2, Some("ring-0.pt")), Ok(vec![]));
        assert_eq!(run.files(), first);
        run.saves(2, "best.pt", "longer");
        run.restarts(3, Some("step-1.pt")).unwrap();
        let last = ["gen0/best.pt=a", "gen0/ring-0.pt.1=d", "gen0/ring-0.pt=d", "gen2/best.pt=longer"];
        assert_eq!(run.files()[..4], last);
        assert_eq!(run.files()[4..], ["step-1.pt=b"]);
    }

    #[test]
    fn kept_1_directories_are_kept_whole_and_never_the_run_itself() {
        let mut run = TestRun::new();
        for name in ["last/shards", "epoch-1"] {
            create_dir_all(run.path(name)).unwrap();
        }
        write(run.path("last/shards/0"), "a").unwrap();
        write(run.path("epoch-1/model"), "b").unwrap();
        std::os::unix::fs::symlink("epoch-1", run.path("newest")).unwrap();
        for name in ["last", "epoch-1", "newest"] {
            run.reports(0, &run.path(name));
        }
        run.reports(0, &run.path(""));
        run.reports(0, &run.paths.run_dir.clone());
        run.reports(0, Path::new("/"));
        run.restarts(1, Some("epoch-1/model")).unwrap();
        let all = ["epoch-1/model=b", "gen0/last/shards/0=a", "last/shards/0=a"];
        let files = run.files();
        assert!(all.iter().all(|file| files.contains(&(*file).to_owned())), "{files:?}");
        assert!(run.paths.run_dir.is_dir(), "{files:?}");
    }

    #[test]
    fn kept_1_checkpoint_that_cannot_be_kept_prevents_the_start() {
        let mut run = TestRun::new();
        run.saves(0, "ck.pt", "a");
        write(run.path("gen0"), "in the way").unwrap();
        let refused = run.restarts(1, None).unwrap_err();
        assert!(refused.contains("ck.pt"), "{refused}");
        assert_eq!(run.files(), ["ck.pt=a", "gen0=in the way"]);
    }

    /// The script of a later run has written over one file of the first, and next to it.
    #[test]
    fn kept_3_file_of_a_later_run_stays_in_place() {
        let mut run = TestRun::new();
        for name in ["best.pt", "step-1.pt"] {
            run.saves(0, name, "own");
        }
        let since = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        File::options().write(true).open(run.path("step-1.pt")).unwrap().set_modified(since).unwrap();
        write(run.path("best.pt"), "of the later run").unwrap();
        let now = other_runs::latest_change(&run.path("best.pt")).unwrap();
        other_runs::tests::add_run(
            &run.paths.run_dir,
            "later",
            &run.path(""),
            now - 9.0,
            (&run.path("best.pt"), now),
        );
        let notices = run.restarts(1, None).unwrap();
        assert_eq!(run.files(), ["best.pt=of the later run", "gen0/step-1.pt=own"]);
        let names = |word: &str| notices.iter().any(|text| text.contains(word));
        assert!(names("run later") && names("best.pt"), "{notices:?}");
        // It is resumed from: a copy takes nothing from the other run.
        run.reports(1, &run.path("best.pt"));
        let owner = later_owner(&run.paths, &run.path("best.pt"));
        assert_eq!(owner.as_deref(), Some("later"));
        assert_eq!(run.restarts(2, Some("best.pt")).unwrap().len(), 2);
        assert!(run.files().contains(&"gen1/best.pt=of the later run".to_owned()), "{:?}", run.files());
        assert!(run.path("best.pt").exists());
    }

    #[test]
    fn kept_2_nothing_is_replaced_and_an_interrupted_copy_is_repeated() {
        let mut run = TestRun::new();
        run.saves(0, "best.pt", "a");
        create_dir_all(run.path("gen0")).unwrap();
        write(run.path("gen0/best.pt"), "of the user").unwrap();
        write(run.path("gen0/.best.pt.1.node0.tmp"), "half").unwrap();
        run.restarts(1, Some("best.pt")).unwrap();
        assert_eq!(run.files(), ["best.pt=a", "gen0/best.pt.1=a", "gen0/best.pt=of the user"]);
    }
}
