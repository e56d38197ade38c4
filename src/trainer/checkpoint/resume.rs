//! Resumes a run: gathers each rank's own state into a checkpoint and distributes it again.
//!
//! Invariants:
//! - RESUME-1: with the same world size, resuming is bit-exact.
//! - RESUME-2: with another world size and the same number of environments, weights, moments, schedules,
//!   environments and totals continue. Counters of ranks that no longer exist are added to those that do, so
//!   that totals stay exact.
//! - RESUME-3: with another number of environments, or environments that cannot be saved, new ones begin, on
//!   streams that no earlier generation has used.
//! - RESUME-4: a restart (generation above 0) from `latest` starts from the beginning when its run has not
//!   written a checkpoint yet.
//! - RESUME-5: a checkpoint that is named and cannot be used ends every rank with the same error (exit code
//!   2).
//! - RESUME-6: `latest` is the newest whole checkpoint of the run directory. One that is cut or changed is
//!   refused by name, and the newest one before it is used.

use super::{Checkpoint, refuse};
use crate::collect::RankCounters;
use crate::distributed::ProcessGroup;
use crate::error::TrainerError;
use crate::support::events::warn;
use rankdeck_types::error::HintedError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tch::{Device, Tensor};

/// Name of the checkpoint to resume from by default, without its extension.
pub(crate) const LATEST: &str = "latest";

/// Where a run's checkpoints are.
pub fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("checkpoints")
}

/// The file that `resume` names: a path, or `latest` in the run directory.
pub fn find(resume: &str, run_dir: &Path) -> PathBuf {
    if resume == LATEST { folder(run_dir).join(format!("{LATEST}.ckpt")) } else { PathBuf::from(resume) }
}

/// This rank's words for the gather of a checkpoint: whether its environments are there, its counters and its
/// environments. `None`: they could not be saved; as many words as they are `missing` stand in for them, since all
/// ranks gather as many.
pub(crate) fn own_words(counters: RankCounters, envs: Option<&[u64]>, missing: usize) -> Vec<u64> {
    let zeros = vec![0; if envs.is_none() { missing } else { 0 }];
    let flag = u64::from(envs.is_some());
    let envs = envs.unwrap_or(&zeros).iter().copied();
    std::iter::once(flag).chain(counters.to_words()).chain(envs).collect()
}

/// What all ranks own, as a checkpoint has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RanksWords {
    /// Counters and environments of each rank.
    pub words_per_rank: usize,
    /// 0: the checkpoint has no environments, since not every rank could save its own.
    pub words_per_env: usize,
    pub ranks: Vec<u64>,
}

/// Puts the ranks' [`own_words`] together.
pub(crate) fn ranks_words(gathered: &[Vec<u64>], words_per_env: usize) -> RanksWords {
    let is_whole = gathered.iter().all(|words| words.first() == Some(&1));
    let len = gathered.first().map_or(0, |words| words.len().saturating_sub(1));
    let words_per_rank = if is_whole { len } else { RankCounters::WORDS };
    let ranks = gathered.iter().flat_map(|words| words.iter().skip(1).take(words_per_rank)).copied();
    let words_per_env = if is_whole { words_per_env } else { 0 };
    RanksWords { words_per_rank, words_per_env, ranks: ranks.collect() }
}

#[derive(Default, Serialize, Deserialize)]
struct ResumeAnswer {
    error: Option<HintedError>,
    absent: bool,
    bytes: usize,
    /// Its name in the folder of checkpoints, which has another path on each host.
    name: String,
}

/// Rank 0 reads the file, all ranks get it; tag `resume`. On failure all get the same error. `None`: there is
/// no such file, and that is allowed by `or_scratch`. `device` is where the group's tensors live.
pub fn share(
    group: &ProcessGroup,
    (resume, run_dir): (&str, &Path),
    or_scratch: bool,
    device: Device,
) -> Result<Option<(PathBuf, Checkpoint)>, TrainerError> {
    let (mut answer, mut bytes) = (ResumeAnswer::default(), Vec::new());
    let named = find(resume, run_dir);
    if group.rank() == 0 {
        let found = if resume == LATEST {
            newest_whole(&folder(run_dir))
        } else {
            read(&named).map(|bytes| Some((named.clone(), bytes)))
        };
        match found {
            Ok(Some((path, read))) => {
                answer.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                (answer.bytes, bytes) = (read.len(), read);
            }
            Ok(None) if or_scratch => answer.absent = true,
            Ok(None) => answer.error = read(&named).err().map(|error| error.hinted),
            Err(error) => answer.error = Some(error.hinted),
        }
    }
    group.broadcast_object(&mut answer, 0, "resume")?;
    if answer.absent {
        return Ok(None);
    }
    if let Some(hinted) = answer.error {
        return Err(TrainerError::usage_of(hinted));
    }
    let path = if resume == LATEST { folder(run_dir).join(&answer.name) } else { named };
    bytes.resize(answer.bytes, 0);
    let mut tensor = Tensor::f_from_slice(&bytes)?.f_to_device(device)?;
    group.broadcast(&mut tensor, 0, "resume")?;
    tensor.f_to_device(Device::Cpu)?.f_copy_data(&mut bytes, answer.bytes)?;
    match Checkpoint::decode(&bytes) {
        Ok(checkpoint) => Ok(Some((path, checkpoint))),
        Err(what) => Err(refuse(&path, what, DAMAGED)),
    }
}

const DAMAGED: &str = "resume from another checkpoint of the run, or start from scratch";

/// A file that is a checkpoint.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TrainerError> {
    Ok(load(path)?.0)
}

/// Such a file, and after which iteration it was written.
fn load(path: &Path) -> Result<(Vec<u8>, u64), TrainerError> {
    let bytes = std::fs::read(path).map_err(|error| {
        refuse(
            path,
            format!("cannot be read: {error}"),
            "pass a file from checkpoints/ of the run directory, or `latest`",
        )
    })?;
    match Checkpoint::decode(&bytes) {
        Ok(checkpoint) => Ok((bytes, checkpoint.header.train_iter)),
        Err(what) => Err(refuse(path, what, DAMAGED)),
    }
}

/// RESUME-6. `None`: no checkpoint was found. A process that was killed while it saved has left
/// `latest` older than the checkpoint of that iteration; one that is not newer on disk is of a future that
/// was left when the run went back.
fn newest_whole(folder: &Path) -> Result<Option<(PathBuf, Vec<u8>)>, TrainerError> {
    let latest = folder.join(format!("{LATEST}.ckpt"));
    let mut others: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "ckpt") && *path != latest)
        .filter_map(|path| Some((written(&path)?, path)))
        .collect();
    others.sort_by(|a, b| b.cmp(a));
    let (mut refused, mut best) = (Vec::new(), None);
    if latest.exists() {
        match load(&latest) {
            Ok((bytes, train_iter)) => {
                let since = written(&latest);
                others.retain(|(at, _)| since.is_none_or(|since| *at >= since));
                best = Some((train_iter, latest, bytes));
            }
            Err(error) => refused.push(error),
        }
    }
    let whole = best.is_some();
    for (_, path) in others {
        match load(&path) {
            Ok((bytes, train_iter)) if best.as_ref().is_none_or(|(than, ..)| train_iter > *than) => {
                best = Some((train_iter, path, bytes));
            }
            Ok(_) => {}
            Err(error) => refused.push(error),
        }
        if best.is_some() && !whole {
            break;
        }
    }
    match best {
        Some((_, path, bytes)) => {
            refused.iter().for_each(|error| warn(&format!("{error}; skipped")));
            Ok(Some((path, bytes)))
        }
        None if refused.is_empty() => Ok(None),
        None => Err(refused.swap_remove(0)),
    }
}

fn written(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// What a rank takes over from all ranks' words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResumeShare {
    pub counters: RankCounters,
    /// Its environments, when they can be taken over.
    pub envs: Option<Vec<u64>>,
}

/// The share of `rank` among `world_size`, with `words_per_env` words in each of `num_envs` environments in
/// all.
pub(crate) fn share_of(
    checkpoint: &Checkpoint,
    rank: u32,
    world_size: u32,
    num_envs: u32,
    words_per_env: usize,
) -> ResumeShare {
    let header = &checkpoint.header;
    let earlier: Vec<&[u64]> = checkpoint.ranks.chunks(header.words_per_rank.max(1)).collect();
    let counters = earlier
        .iter()
        .skip(rank as usize)
        .step_by(world_size.max(1) as usize)
        .map(|words| RankCounters::from_words(words))
        .fold(RankCounters::default(), RankCounters::plus);
    let envs: Vec<u64> =
        earlier.iter().filter_map(|words| words.get(RankCounters::WORDS..)).flatten().copied().collect();
    let fits = header.num_envs == num_envs
        && words_per_env > 0
        && header.words_per_env == words_per_env
        && envs.len() == num_envs as usize * words_per_env;
    let local = (num_envs / world_size.max(1)) as usize * words_per_env;
    let start = rank as usize * local;
    ResumeShare { counters, envs: envs.get(start..start + local).filter(|_| fits).map(<[u64]>::to_vec) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointMetadata;

    /// Two ranks with two environments of one word each.
    fn checkpoint() -> Checkpoint {
        let header = CheckpointMetadata {
            world_size: 2,
            num_envs: 4,
            words_per_rank: RankCounters::WORDS + 2,
            words_per_env: 1,
            ..CheckpointMetadata::default()
        };
        Checkpoint {
            header,
            ranks: vec![10, 11, 12, 13, 100, 101, 20, 21, 22, 23, 102, 103],
            ..Checkpoint::default()
        }
    }

    #[test]
    fn resume_1_as_many_ranks_take_their_own() {
        let share = share_of(&checkpoint(), 1, 2, 4, 1);
        assert_eq!(share.counters.to_words(), [20, 21, 22, 23]);
        assert_eq!(share.envs, Some(vec![102, 103]));
    }

    #[test]
    fn resume_2_other_numbers_of_ranks_keep_totals_and_environments() {
        let alone = share_of(&checkpoint(), 0, 1, 4, 1);
        assert_eq!(alone.counters.to_words(), [30, 32, 34, 36]);
        assert_eq!(alone.envs, Some(vec![100, 101, 102, 103]));
        let shares: Vec<ResumeShare> = (0..4).map(|rank| share_of(&checkpoint(), rank, 4, 4, 1)).collect();
        let total = shares.iter().fold(RankCounters::default(), |sum, share| sum.plus(share.counters));
        assert_eq!(total.to_words(), [30, 32, 34, 36]);
        let envs: Vec<u64> = shares.into_iter().filter_map(|share| share.envs).flatten().collect();
        assert_eq!(envs, [100, 101, 102, 103]);
    }

    /// Rank 1's environments could not be saved.
    #[test]
    fn checkpoint_claims_no_environments_if_a_save_failed() {
        let counters = |first| RankCounters::from_words(&[first, 1, 2, 3]);
        let words = |second: Option<&[u64]>| {
            let ranks = [own_words(counters(10), Some(&[7, 8]), 2), own_words(counters(20), second, 2)];
            assert_eq!(ranks[0].len(), ranks[1].len(), "a gather needs equal lengths");
            ranks_words(&ranks, 1)
        };
        let whole = words(Some(&[9, 10]));
        let parts = (whole.words_per_rank, whole.words_per_env, whole.ranks);
        assert_eq!(parts, (6, 1, vec![10, 1, 2, 3, 7, 8, 20, 1, 2, 3, 9, 10]));
        let without = words(None);
        let parts = (without.words_per_rank, without.words_per_env, without.ranks);
        assert_eq!(parts, (RankCounters::WORDS, 0, vec![10, 1, 2, 3, 20, 1, 2, 3]));
    }

    #[test]
    fn resume_3_other_environments_start_new_episodes() {
        assert_eq!(share_of(&checkpoint(), 0, 1, 8, 1).envs, None);
        assert_eq!(share_of(&checkpoint(), 0, 1, 4, 3).envs, None);
    }

    #[test]
    fn latest_is_in_the_run_directory() {
        assert_eq!(find("latest", Path::new("runs/a")), Path::new("runs/a/checkpoints/latest.ckpt"));
        assert_eq!(find("x/b.ckpt", Path::new("runs/a")), Path::new("x/b.ckpt"));
    }
}
