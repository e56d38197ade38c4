//! Moves checkpoints of earlier generations out of the way before a generation writes its own.
//!
//! The folder of checkpoints holds the present line of training. What a generation does not continue moves to
//! `genM/` within it, M being the generation that wrote it. What it continues and will replace (`latest`,
//! `best`) gets a second name there: a replacement comes by rename, so the earlier file stays.
//!
//! Rank 0 moves checkpoints, each rank its own replay. Invariants:
//! - ASIDE-1: no generation overwrites or removes the `latest`, `best` or `iter-N` of an earlier one. Where
//!   they cannot be set aside, the generation does not start.
//! - ASIDE-2: who is interrupted leaves whole files, and the next start completes the work under the same
//!   number: the note of whose the files are changes last.

use super::iteration;
use super::resume::LATEST;
use crate::replay::shard_of;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Holds the number of the generation that owns the files of the folder itself.
const OWNER: &str = ".generation";
/// A checkpoint and its policy file, in the order in which they move: the first one names the iteration.
const ENDINGS: [&str; 2] = ["safetensors", "ckpt"];
/// What every generation replaces.
const REPLACED: [&str; 2] = [LATEST, "best"];

/// Where the files of a generation are once they are set aside.
pub(crate) fn folder_of(folder: &Path, generation: u32) -> PathBuf {
    folder.join(format!("gen{generation}"))
}

/// Sets checkpoints aside for `generation`, which continues the files of the folder up to iteration `from`;
/// `None`: it continues none of them. Returns whose they are, and how many names were moved or added; `None`
/// where that was done before.
pub(crate) fn checkpoints(
    folder: &Path,
    generation: u32,
    from: Option<u64>,
) -> io::Result<Option<(u32, usize)>> {
    std::fs::create_dir_all(folder)?;
    let owner = owner(folder)?;
    if owner >= generation {
        return Ok(None);
    }
    let aside = folder_of(folder, owner);
    let mut count = 0;
    for stem in stems(folder)? {
        let iteration = iteration(&folder.join(format!("{stem}.ckpt")));
        let abandoned = from.is_none_or(|from| iteration.is_some_and(|iteration| iteration > from));
        if !abandoned && !REPLACED.contains(&stem.as_str()) {
            continue;
        }
        std::fs::create_dir_all(&aside)?;
        for ending in ENDINGS {
            let name = format!("{stem}.{ending}");
            let (here, there) = (folder.join(&name), aside.join(&name));
            count += usize::from(match (here.try_exists()?, abandoned) {
                (false, _) => false,
                (true, true) => move_to(&here, &there)?,
                (true, false) => link_to(&here, &there)?,
            });
        }
    }
    if count > 0 {
        File::open(&aside)?.sync_all()?;
    }
    note_owner(folder, generation)?;
    Ok(Some((owner, count)))
}

/// Sets aside this rank's replay of iterations after `from`, of generation `owner`; rank 0 also that of ranks
/// that this generation does not have. Replay that is continued ages as within a generation: copies of it would fill disks.
pub(crate) fn replay(
    folder: &Path,
    owner: u32,
    (rank, ranks): (u32, u32),
    from: Option<u64>,
) -> io::Result<()> {
    for name in names(folder)? {
        let Some((of, iteration)) = shard_of(&name) else { continue };
        let own = of == rank || rank == 0 && of >= ranks;
        if own && from.is_none_or(|from| iteration > from) {
            let aside = folder_of(folder, owner);
            std::fs::create_dir_all(&aside)?;
            move_to(&folder.join(&name), &aside.join(&name))?;
        }
    }
    Ok(())
}

/// Names of regular files without a leading dot.
fn names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'));
        if let Some(name) = name.filter(|_| entry.metadata().is_ok_and(|data| data.is_file())) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Names of checkpoints without their endings.
fn stems(folder: &Path) -> io::Result<BTreeSet<String>> {
    let stem = |name: &String| {
        let (stem, ending) = name.rsplit_once('.')?;
        ENDINGS.contains(&ending).then(|| stem.to_owned())
    };
    Ok(names(folder)?.iter().filter_map(stem).collect())
}

/// Whose the files of the folder are: of the first generation unless a later one has begun.
fn owner(folder: &Path) -> io::Result<u32> {
    match std::fs::read_to_string(folder.join(OWNER)) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let path = folder.join(OWNER);
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} does not contain a number", path.display()),
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn note_owner(folder: &Path, generation: u32) -> io::Result<()> {
    let temporary = folder.join(format!("{OWNER}.tmp"));
    let mut file = File::create(&temporary)?;
    writeln!(file, "{generation}")?;
    file.sync_all()?;
    std::fs::rename(&temporary, folder.join(OWNER))?;
    File::open(folder)?.sync_all()
}

/// Gives a file another name, under which it may be already. Returns whether the name is new.
fn move_to(here: &Path, there: &Path) -> io::Result<bool> {
    if !is_there(here, there)? {
        return std::fs::rename(here, there).map(|()| true);
    }
    // Two names of one file would both stay after a rename.
    std::fs::remove_file(here).map(|()| false)
}

/// Gives a file a second name; where the disk has no such names, a copy.
fn link_to(here: &Path, there: &Path) -> io::Result<bool> {
    if is_there(here, there)? {
        return Ok(false);
    }
    if std::fs::hard_link(here, there).is_ok() {
        return Ok(true);
    }
    let name = there.file_name().unwrap_or_default().to_string_lossy();
    let temporary = there.with_file_name(format!(".{name}.tmp"));
    let copied = std::fs::copy(here, &temporary)
        .and_then(|_| File::open(&temporary)?.sync_all())
        .and_then(|()| std::fs::rename(&temporary, there));
    if copied.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    copied.map(|()| true)
}

/// Whether the same file is there already, by an earlier start that was interrupted. Another file there is an
/// error: nothing is overwritten.
fn is_there(here: &Path, there: &Path) -> io::Result<bool> {
    let data = match std::fs::symlink_metadata(there) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let own = std::fs::metadata(here)?;
    let linked = (own.dev(), own.ino()) == (data.dev(), data.ino());
    if linked || data.is_file() && own.len() == data.len() && equal(here, there)? {
        return Ok(true);
    }
    let text = format!("{} exists with different content", there.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

/// Whether two files of equal length have the same content.
fn equal(a: &Path, b: &Path) -> io::Result<bool> {
    use std::io::{BufRead, BufReader};
    let open = |path: &Path| Ok::<_, io::Error>(BufReader::with_capacity(1 << 20, File::open(path)?));
    let (mut a, mut b) = (open(a)?, open(b)?);
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let size = left.len().min(right.len());
        if size == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left[..size] != right[..size] {
            return Ok(false);
        }
        a.consume(size);
        b.consume(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::collect::RankCounters;

    /// Writes a checkpoint of this iteration and its policy, as `writer` made it.
    fn save(folder: &Path, stem: &str, train_iter: u64, writer: &str) {
        let mut checkpoint = Checkpoint { ranks: vec![0; RankCounters::WORDS], ..Checkpoint::default() };
        (checkpoint.header.train_iter, checkpoint.header.world_size) = (train_iter, 1);
        checkpoint.header.words_per_rank = RankCounters::WORDS;
        checkpoint.header.env_id = writer.to_owned();
        let put = |name: String, bytes: &[u8]| {
            let temporary = folder.join(format!(".{name}.tmp"));
            std::fs::write(&temporary, bytes).unwrap();
            std::fs::rename(temporary, folder.join(name)).unwrap();
        };
        put(format!("{stem}.safetensors"), format!("{writer} {train_iter}").as_bytes());
        put(format!("{stem}.ckpt"), &checkpoint.encode().unwrap());
    }

    /// Who wrote a checkpoint, and after which iteration; both files agree.
    fn read(path: &Path) -> (String, u64) {
        let header = Checkpoint::decode(&std::fs::read(path).unwrap()).unwrap().header;
        let policy = std::fs::read_to_string(path.with_extension("safetensors")).unwrap();
        assert_eq!(policy, format!("{} {}", header.env_id, header.train_iter));
        (header.env_id, header.train_iter)
    }

    fn listed(folder: &Path) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            match entry.path().is_dir() {
                true => all.extend(listed(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}"))),
                false => all.push(name),
            }
        }
        all.retain(|name| name.ends_with(".ckpt") || name.ends_with(".shard"));
        all.sort();
        all
    }

    /// Generation 0 saved after iterations 5, 10 and 15; its best is of iteration 10.
    fn first() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (stem, train_iter) in
            [("iter-5", 5), ("iter-10", 10), ("iter-15", 15), ("best", 10), ("latest", 15)]
        {
            save(folder.path(), stem, train_iter, "gen0");
        }
        folder
    }

    const ALL: [&str; 5] = ["best.ckpt", "iter-10.ckpt", "iter-15.ckpt", "iter-5.ckpt", "latest.ckpt"];

    #[test]
    fn aside_1_scratch_generation_keeps_old_files_complete() {
        let folder = first();
        let folder = folder.path();
        assert_eq!(checkpoints(folder, 1, None).unwrap(), Some((0, 10)));
        assert_eq!(listed(folder), ALL.map(|name| format!("gen0/{name}")));
        save(folder, "best", 1, "gen1");
        save(folder, "latest", 1, "gen1");
        assert_eq!(read(&folder.join("gen0/best.ckpt")), ("gen0".into(), 10));
        assert_eq!(read(&folder.join("gen0/latest.ckpt")), ("gen0".into(), 15));
        // The next one, too, and each is known by its number.
        assert_eq!(checkpoints(folder, 3, None).unwrap(), Some((1, 4)));
        assert_eq!(read(&folder.join("gen1/best.ckpt")), ("gen1".into(), 1));
        assert_eq!(read(&folder.join("gen0/best.ckpt")), ("gen0".into(), 10));
    }

    #[test]
    fn aside_1_continuing_generation_keeps_its_source() {
        let folder = first();
        let folder = folder.path();
        assert_eq!(checkpoints(folder, 1, Some(15)).unwrap(), Some((0, 4)));
        let kept = ["gen0/best.ckpt", "gen0/latest.ckpt"].map(str::to_owned);
        let present = ALL.map(str::to_owned);
        let mut all = [&kept[..], &present[..]].concat();
        all.sort();
        assert_eq!(listed(folder), all);
        let inode = |name: &str| std::fs::metadata(folder.join(name)).unwrap().ino();
        assert_eq!(inode("latest.ckpt"), inode("gen0/latest.ckpt"), "no second copy");
        save(folder, "latest", 20, "gen1");
        save(folder, "best", 20, "gen1");
        assert_eq!(read(&folder.join("gen0/latest.ckpt")), ("gen0".into(), 15));
        assert_eq!(read(&folder.join("gen0/best.ckpt")), ("gen0".into(), 10));
        assert_eq!(read(&folder.join("best.ckpt")), ("gen1".into(), 20));
    }

    #[test]
    fn aside_1_later_checkpoints_are_moved_aside() {
        let folder = first();
        let folder = folder.path();
        checkpoints(folder, 1, Some(5)).unwrap();
        let there =
            ["gen0/best.ckpt", "gen0/iter-10.ckpt", "gen0/iter-15.ckpt", "gen0/latest.ckpt", "iter-5.ckpt"];
        assert_eq!(listed(folder), there);
    }

    #[test]
    fn aside_2_second_start_completes_an_interrupted_one() {
        let folder = first();
        let folder = folder.path();
        // Links were made, then the process ended: the note still has generation 0.
        checkpoints(folder, 1, Some(15)).unwrap();
        std::fs::remove_file(folder.join(OWNER)).unwrap();
        // One of a pair was moved, and a disk without links had got a copy.
        std::fs::rename(folder.join("iter-5.safetensors"), folder.join("gen0/iter-5.safetensors")).unwrap();
        std::fs::remove_file(folder.join("gen0/best.ckpt")).unwrap();
        std::fs::copy(folder.join("best.ckpt"), folder.join("gen0/best.ckpt")).unwrap();
        assert_eq!(checkpoints(folder, 2, None).unwrap().map(|done| done.0), Some(0));
        assert_eq!(listed(folder), ALL.map(|name| format!("gen0/{name}")));
        for name in ALL {
            assert_eq!(read(&folder.join("gen0").join(name)).0, "gen0", "{name}");
        }
        // The same generation again keeps what it has written itself.
        save(folder, "latest", 1, "gen2");
        assert_eq!(checkpoints(folder, 2, None).unwrap(), None);
        assert_eq!(read(&folder.join("latest.ckpt")), ("gen2".into(), 1));
    }

    #[test]
    fn aside_1_nothing_changes_if_moving_fails() {
        let folder = first();
        let folder = folder.path();
        std::fs::write(folder.join("gen0"), "in the way").unwrap();
        checkpoints(folder, 1, None).unwrap_err();
        assert_eq!(listed(folder), ALL);
        std::fs::remove_file(folder.join("gen0")).unwrap();
        std::fs::create_dir(folder.join("gen0")).unwrap();
        save(&folder.join("gen0"), "best", 7, "someone");
        let error = checkpoints(folder, 1, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(read(&folder.join("best.ckpt")), ("gen0".into(), 10));
        assert_eq!(read(&folder.join("gen0/best.ckpt")), ("someone".into(), 7));
    }

    #[test]
    fn each_rank_moves_its_own_discontinued_replay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let all = ["replay-0.5.shard", "replay-0.9.shard", "replay-1.9.shard", "replay-4.9.shard"];
        all.iter().for_each(|name| std::fs::write(folder.join(name), name).unwrap());
        replay(folder, 0, (1, 2), Some(9)).unwrap();
        assert_eq!(listed(folder), all);
        replay(folder, 0, (0, 2), Some(5)).unwrap();
        assert_eq!(
            listed(folder),
            ["gen0/replay-0.9.shard", "gen0/replay-4.9.shard", "replay-0.5.shard", "replay-1.9.shard"]
        );
    }
}
