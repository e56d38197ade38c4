//! How a run takes over the checkpoint that it is resumed from.

use super::saving;
use crate::algo::{Algorithm, BuildContext};
use crate::checkpoint::Checkpoint;
use crate::distributed::{ProcessGroup, ReduceOp};
use crate::error::TrainerError;
use crate::events::warn;
use crate::identity::RankIdentity;
use crate::state::RestoredState;
use crate::{resume, setup};
use rankdeck_types::experiment::Learn;
use std::path::{Path, PathBuf};
use tch::Device;

/// The checkpoint to resume from, on all ranks; `None` in a new run, and in a restart before the first
/// checkpoint.
pub(super) fn find_checkpoint(
    identity: &RankIdentity,
    run_dir: &Path,
    group: &ProcessGroup,
    device: Device,
) -> Result<Option<(PathBuf, Checkpoint)>, TrainerError> {
    let Some(from) = &identity.resume else { return Ok(None) };
    let or_afresh = from == resume::LATEST && identity.generation > 0;
    resume::share(group, (from, run_dir), or_afresh, device)
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
        let mark = saving::mark(experiment, group, train_iter);
        let loaded = algorithm.load_own(path.parent().unwrap_or(path), &mark);
        if let Err(why) = &loaded {
            let what = if matches!(learn, Learn::Ppg(_)) { "rollouts begin" } else { "replay begins" };
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
