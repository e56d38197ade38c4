//! Checkpoints within a run.

use super::Trainer;
use crate::checkpoint::{Checkpoint, Header, is_unfinished};
use crate::counters::RankCounters;
use crate::distributed::ProcessGroup;
use crate::error::TrainerError;
use crate::events::{say, warn};
use crate::replay::{ReplayMark, unfinished_of};
use crate::resume;
use crate::setup;
use rankdeck_proto::message::{Activity, Phase};
use rankdeck_types::experiment::Experiment;
use std::io;
use std::path::Path;

/// What the checkpoints of single iterations are called, before their number.
const SINGLE: &str = "iter-";

/// Names the checkpoint of this iteration, for replay.
pub(super) fn mark(experiment: &Experiment, group: &ProcessGroup, train_iter: u64) -> ReplayMark {
    ReplayMark {
        env_id: experiment.env.as_ref().map(|env| env.id.clone()).unwrap_or_default(),
        seed: experiment.run.seed,
        rank: group.rank(),
        world_size: group.world_size(),
        train_iter,
    }
}

/// Removes what an earlier generation was killed over (CHECKPOINT-1): each rank its own, rank 0 everything.
/// It comes before anything that the ranks do together, so that nobody saves yet.
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
                warn(&format!("{} cannot be removed: {error}", entry.path().display()));
            }
            _ => {}
        }
    }
    if !removed.is_empty() {
        let removed = removed.join(", ");
        say(&format!("rank {rank}: an earlier generation ended while it saved: removed {removed}"));
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
            warn(&format!("old checkpoints in {} cannot be removed: {error}", folder.display()));
        }
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
        let own = resume::own_words(self.algorithm.counters(), &state.envs);
        let ranks = self.group.all_gather_words(&own, "checkpoint")?.concat();
        if self.is_first() {
            let (env, learn) = setup::parts(self.experiment)?;
            let env_step: u64 =
                ranks.chunks(own.len().max(1)).map(|words| RankCounters::from_words(words).env_step).sum();
            let header = Header {
                algorithm: learn.name().into(),
                env_id: env.id.clone(),
                seed: self.experiment.run.seed,
                world_size: self.group.world_size(),
                num_envs: env.num_envs,
                words_per_rank: own.len(),
                words_per_env: state.words_per_env,
                train_iter: self.train_iter,
                updates: self.updates,
                best: self.best,
                evaluation_due: self.evaluation_due,
                latest_returns: self.latest.iter().copied().collect(),
                env_step,
                about: self.about.clone(),
                ..Header::default()
            };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_checkpoints_of_single_iterations_are_kept_and_no_other_file_is_touched() {
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
