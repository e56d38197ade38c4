//! Saves checkpoints within a run, and resumes the training loop from one.

use super::Trainer;
use crate::algo::{Algorithm, BuildContext};
use crate::checkpoint::resume::RanksWords;
use crate::checkpoint::{Checkpoint, CheckpointMetadata, is_unfinished, resume, set_aside};
use crate::distributed::{ProcessGroup, ReduceOp};
use crate::error::TrainerError;
use crate::replay::{ReplayMark, unfinished_of};
use crate::startup::identity::RankIdentity;
use crate::startup::setup;
use crate::support::events::{print_line, warn};
use crate::support::state::RankCounters;
use crate::support::state::RestoredState;
use rankdeck_proto::message::{Activity, Phase};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Experiment, Learn};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use tch::Device;

/// What the checkpoints of single iterations are called, before their number.
const SINGLE: &str = "iter-";

/// Names the checkpoint of this iteration, for replay.
fn mark(experiment: &Experiment, group: &ProcessGroup, train_iter: u64) -> ReplayMark {
    ReplayMark {
        env_id: experiment.env.as_ref().map(|env| env.id.clone()).unwrap_or_default(),
        seed: experiment.run.seed,
        rank: group.rank(),
        world_size: group.world_size(),
        train_iter,
    }
}

/// Removes what an earlier generation was killed over (CHECKPOINT-1): each rank its own, rank 0 everything.
/// It comes before the first collective, so that no rank saves yet.
pub(super) fn remove_unfinished(folder: &Path, rank: u32) {
    // Without a folder nothing was saved.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = match unfinished_of(&name) {
            Some(owner) => rank == 0 || owner == rank,
            None => rank == 0 && is_unfinished(&name),
        };
        match ours.then(|| std::fs::remove_file(entry.path())) {
            Some(Ok(())) => removed.push(name),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                warn(&format!("cannot remove {}: {error}", entry.path().display()));
            }
            _ => {}
        }
    }
    if !removed.is_empty() {
        let removed = removed.join(", ");
        print_line(&format!("rank {rank}: removed unfinished files of an earlier generation: {removed}"));
    }
}

/// Removes all but the `keep` newest checkpoints of single iterations.
fn keep_newest(folder: &Path, keep: usize) -> io::Result<()> {
    let number =
        |path: &Path| -> Option<u64> { path.file_stem()?.to_str()?.strip_prefix(SINGLE)?.parse().ok() };
    let mut numbers: Vec<u64> =
        std::fs::read_dir(folder)?.filter_map(|entry| number(&entry.ok()?.path())).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for old in numbers.iter().rev().skip(keep) {
        for extension in ["safetensors", "ckpt"] {
            match std::fs::remove_file(folder.join(format!("{SINGLE}{old}.{extension}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

impl Trainer<'_> {
    /// The checkpoint of this iteration, without its extension.
    pub(super) fn single(&self) -> String {
        format!("{SINGLE}{}", self.train_iter)
    }

    fn forget_old(&self) {
        let (keep, folder) = (self.experiment.checkpoint.keep as usize, resume::folder(&self.run_dir));
        if keep > 0
            && let Err(error) = keep_newest(&folder, keep)
        {
            warn(&format!("cannot remove old checkpoints in {}: {error}", folder.display()));
        }
    }

    /// The header of a checkpoint of this iteration, without sizes of what the ranks own.
    pub(super) fn metadata(&self) -> Result<CheckpointMetadata, TrainerError> {
        let (env, learn) = setup::parts(self.experiment)?;
        Ok(CheckpointMetadata {
            algorithm: learn.name().into(),
            env_id: env.id.clone(),
            seed: self.experiment.run.seed,
            world_size: self.group.world_size(),
            num_envs: env.num_envs,
            train_iter: self.train_iter,
            updates: self.updates,
            best: self.best,
            evaluation_due: self.evaluation_due,
            latest_returns: self.latest.iter().copied().collect(),
            env_step: self.env_step,
            about: self.about.clone(),
            ..CheckpointMetadata::default()
        })
    }

    /// Gathers what the ranks own; rank 0 writes it once per (name, reason).
    pub(super) fn checkpoint(&mut self, files: &[(&str, &str)]) -> Result<(), TrainerError> {
        self.page.lock().phase(Phase::Checkpoint);
        if self.experiment.checkpoint.replay {
            let (mark, page) = (mark(self.experiment, self.group, self.train_iter), self.page);
            let mut moved = |written, of| page.lock().amount(written, of);
            self.algorithm.save_own(&resume::folder(&self.run_dir), &mark, self.saved, &mut moved)?;
        }
        let state = self.algorithm.state()?;
        if let Some(error) = &state.unsaved {
            warn(&format!(
                "rank {}: the checkpoint of iteration {} has no environments: {error}; environments start new episodes after a restart",
                self.group.run_rank(),
                self.train_iter
            ));
        }
        let (env, _) = setup::parts(self.experiment)?;
        let envs = state.unsaved.is_none().then_some(&state.envs[..]);
        let missing = (env.num_envs / self.group.world_size().max(1)) as usize * state.words_per_env;
        let own = resume::own_words(self.algorithm.counters(), envs, missing);
        let gathered = self.group.all_gather_words(&own, "checkpoint")?;
        if self.is_first() {
            let words = resume::ranks_words(&gathered, state.words_per_env);
            let RanksWords { words_per_rank, words_per_env, ranks } = words;
            let env_step: u64 = ranks
                .chunks(words_per_rank.max(1))
                .map(|words| RankCounters::from_words(words).env_step)
                .sum();
            let header = CheckpointMetadata { words_per_rank, words_per_env, env_step, ..self.metadata()? };
            let checkpoint = Checkpoint { header, arrays: state.arrays, words: state.words, ranks };
            self.page.lock().activity(Activity::Save);
            for (name, reason) in files {
                let path = checkpoint.write(&resume::folder(&self.run_dir), name, |written, of| {
                    self.page.lock().amount(written, of);
                })?;
                self.reporter.checkpoint(&path, env_step, self.train_iter, reason);
            }
            self.forget_old();
        }
        self.saved = Some(self.train_iter);
        self.page.lock().phase(Phase::Sync);
        Ok(())
    }
}

/// The checkpoint to resume from, on all ranks; `None` in a new run, and in a restart before the first
/// checkpoint.
pub(super) fn find_checkpoint(
    identity: &RankIdentity,
    run_dir: &Path,
    group: &ProcessGroup,
    device: Device,
) -> Result<Option<(PathBuf, Checkpoint)>, TrainerError> {
    let Some(from) = &identity.resume else { return Ok(None) };
    let or_scratch = from == resume::LATEST && identity.generation > 0;
    resume::share(group, (from, run_dir), or_scratch, device)
}

/// What rank 0 has set aside.
#[derive(Default, Serialize, Deserialize)]
struct AsideAnswer {
    error: Option<HintedError>,
    /// The generation whose files they were.
    owner: Option<u32>,
    /// The iteration up to which they are continued.
    from: Option<u64>,
}

/// Sets aside what earlier generations have saved and this one would overwrite (ASIDE-1), on all ranks,
/// before any of them writes. `from`: the checkpoint that this one begins from, and its iteration.
pub(super) fn keep_earlier(
    generation: u32,
    folder: &Path,
    group: &ProcessGroup,
    from: Option<(&Path, u64)>,
) -> Result<(), TrainerError> {
    if generation == 0 {
        return Ok(());
    }
    let failed = |error: &io::Error| {
        TrainerError::failure(
            format!("cannot move checkpoints of earlier generations aside in {}: {error}", folder.display()),
            "free disk space there or move them yourself; nothing was overwritten",
        )
        .with_io_kind(error)
    };
    let mut answer = AsideAnswer::default();
    let mut own = None;
    if group.rank() == 0 {
        let real = |path: &Path| path.canonicalize().ok();
        let inside = |path: &Path| path.parent().and_then(real).is_some_and(|at| real(folder) == Some(at));
        answer.from = from.filter(|(path, _)| inside(path)).map(|(_, iteration)| iteration);
        match set_aside::checkpoints(folder, generation, answer.from) {
            Ok(done) => {
                answer.owner = done.map(|(owner, _)| owner);
                if let Some((owner, 1..)) = done {
                    let there = set_aside::folder_of(folder, owner);
                    print_line(&format!("earlier checkpoints moved to {}", there.display()));
                }
            }
            Err(error) => own = Some(failed(&error)),
        }
        answer.error = own.as_ref().map(|error| error.hinted.clone());
    }
    group.broadcast_object(&mut answer, 0, "resume")?;
    match (own, answer.error) {
        (Some(error), _) => return Err(error),
        (None, Some(HintedError { error, hint })) => return Err(TrainerError::failure(error, hint)),
        (None, None) => {}
    }
    let Some(owner) = answer.owner.filter(|_| folder.is_dir()) else { return Ok(()) };
    set_aside::replay(folder, owner, (group.rank(), group.world_size()), answer.from)
        .map_err(|error| failed(&error))
}

/// Restores the algorithm; `true` when its environments cannot be taken over.
pub(super) fn take_over(
    algorithm: &mut dyn Algorithm,
    path: &Path,
    checkpoint: Checkpoint,
    build: &BuildContext<'_>,
) -> Result<bool, TrainerError> {
    let BuildContext { experiment, group, .. } = build;
    let (env, learn) = setup::parts(experiment)?;
    let state = algorithm.state()?;
    checkpoint.fits(path, &state)?;
    let (rank, world_size) = (group.rank(), group.world_size());
    let share = resume::share_of(&checkpoint, rank, world_size, env.num_envs, state.words_per_env);
    let lost = share.envs.is_none();
    let train_iter = checkpoint.header.train_iter;
    algorithm.restore(&RestoredState {
        arrays: checkpoint.arrays,
        words: checkpoint.words,
        counters: share.counters,
        envs: share.envs,
    })?;
    if experiment.checkpoint.replay {
        let mark = mark(experiment, group, train_iter);
        let loaded = algorithm.load_own(path.parent().unwrap_or(path), &mark);
        if let Err(why) = &loaded {
            let what = if matches!(learn, Learn::Ppg(_)) { "rollouts start" } else { "replay starts" };
            warn(&format!("rank {rank}: {what} empty: {why}"));
        }
        // All ranks continue with their replay, or none: they begin to learn in the same iteration.
        let mut missing = [i64::from(loaded.is_err())];
        group.all_reduce_i64(&mut missing, ReduceOp::Sum, "resume")?;
        if missing[0] > 0 {
            algorithm.drop_own();
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_keeps_newest_and_ignores_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        for number in [5, 10, 100, 20] {
            write(&format!("iter-{number}.ckpt"));
            write(&format!("iter-{number}.safetensors"));
        }
        ["latest.ckpt", "best.ckpt", "iter-x.ckpt", "other-7.ckpt"].into_iter().for_each(write);
        keep_newest(folder.path(), 2).unwrap();
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "best.ckpt",
                "iter-100.ckpt",
                "iter-100.safetensors",
                "iter-20.ckpt",
                "iter-20.safetensors",
                "iter-x.ckpt",
                "latest.ckpt",
                "other-7.ckpt"
            ]
        );
    }
}
