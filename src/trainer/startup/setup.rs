//! Resolves experiment, sizes, device and directories before the first iteration.

use super::identity::RankIdentity;
use crate::distributed::{BackendKind, GroupSettings, cuda};
use crate::error::TrainerError;
use crate::support::events::warn;
use crate::support::page::StatusPage;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_types::blocks::BlockShare;
use rankdeck_types::experiment::{Env, Experiment, Learn};
use rankdeck_types::plan::{block_share, limits, size_problem};
use std::path::PathBuf;
use std::time::Duration;
use tch::Device;

/// The parts of an experiment that the built-in trainer cannot do without.
pub fn parts(experiment: &Experiment) -> Result<(&Env, &Learn), TrainerError> {
    let missing = |section: &str| {
        TrainerError::usage(
            format!("the built-in trainer needs a [{section}] section"),
            format!("add a [{section}] section"),
        )
    };
    let env = experiment.env.as_ref().ok_or_else(|| missing("env"))?;
    let learn = experiment.learn.as_ref().ok_or_else(|| missing("learn"))?;
    Ok((env, learn))
}

/// Share of `distributed.timeout_s` that an environment may take for a step; its first reset may take twice
/// as long.
const WORKER_SHARE: f64 = 0.4;

/// Bounds environment steps so that a hanging environment is reported before the other ranks time out.
pub(crate) fn bound_workers(experiment: &mut Experiment) {
    let most = WORKER_SHARE * experiment.distributed.timeout_s;
    if let Some(env) = experiment.env.as_mut() {
        env.worker_timeout_s = env.worker_timeout_s.min(most);
    }
}

/// The environment as each of its vectors is made. With `collect.double_buffer` there are two of them, which share
/// the workers of this rank.
pub(crate) fn shared_workers(experiment: &Experiment, env: &Env) -> Env {
    let mut shared = env.clone();
    if experiment.collect.double_buffer {
        shared.workers = Some(match env.workers {
            Some(workers) => workers.div_ceil(2),
            None => (crate::env::default_workers(env) as u32 / 2).max(1),
        });
    }
    shared
}

/// Transitions of a rollout over all ranks; a larger number is more likely a typing mistake.
const MAX_BATCH: u64 = 1 << 28;

/// Sizes of one rank and of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Environments of this rank.
    pub(crate) local_envs: u32,
    /// Global index of this rank's first environment.
    pub(crate) first_env: u32,
    /// Steps of each environment per rollout.
    pub num_steps: u32,
    /// Transitions of this rank per rollout.
    pub(crate) local_batch: usize,
    /// Transitions of all ranks per rollout.
    pub batch: u64,
    /// Whole rollouts in `run.total_steps` (the rest is not done, as in CleanRL); `None` without a limit.
    pub num_iterations: Option<u64>,
    /// Blocks of environments with `distributed.invariant`.
    pub(crate) blocks: Option<BlockShare>,
}

impl Sizes {
    /// Splits an experiment over `world_size` ranks.
    pub fn resolve(experiment: &Experiment, rank: u32, world_size: u32) -> Result<Sizes, TrainerError> {
        let (env, learn) = parts(experiment)?;
        let num_steps = experiment.collect.num_steps;
        if num_steps == 0 {
            return Err(TrainerError::usage("collect.num_steps is 0", "set collect.num_steps to 1 or more"));
        }
        let local_envs = env.num_envs / world_size.max(1);
        let batch = u64::from(env.num_envs) * u64::from(num_steps);
        let widths = &experiment.policy.hidden;
        if widths.len() > 64 || widths.iter().any(|width| !(1..=65_536).contains(width)) {
            return Err(TrainerError::usage(
                format!("invalid policy.hidden = {widths:?}: expected at most 64 widths from 1 to 65536"),
                "set policy.hidden, such as [64, 64]",
            ));
        }
        let own = limits::problems(experiment).into_iter().next();
        if let Some(problem) = own.or_else(|| size_problem(experiment, world_size.into())) {
            return Err(TrainerError::usage_of(problem.cause));
        }
        if batch > MAX_BATCH {
            return Err(TrainerError::usage(
                format!("a rollout of {batch} transitions over all ranks exceeds {MAX_BATCH}"),
                "lower env.num_envs or collect.num_steps",
            ));
        }
        let num_iterations = match experiment.run.total_steps {
            0 if learn.anneals() => {
                return Err(TrainerError::usage(
                    "cannot anneal the learning rate of an unlimited run",
                    "set run.total_steps, or learn.anneal_lr = false",
                ));
            }
            0 => None,
            total => Some(total / batch),
        };
        Ok(Sizes {
            local_envs,
            first_env: rank * local_envs,
            num_steps,
            local_batch: local_envs as usize * num_steps as usize,
            batch,
            num_iterations,
            blocks: block_share(experiment, rank, world_size),
        })
    }
}

/// Library and device of this rank.
pub(crate) fn device(
    identity: &RankIdentity,
    experiment: &Experiment,
) -> Result<(BackendKind, Device), TrainerError> {
    let requested = identity.backend.or_else(|| BackendKind::named(experiment.distributed.backend));
    if requested == Some(BackendKind::Tcp) {
        return Ok((BackendKind::Tcp, Device::Cpu));
    }
    let devices = match cuda::load_cuda() {
        Ok(true) => tch::Cuda::device_count().max(0) as u32,
        Ok(false) => 0,
        // No GPU was requested.
        Err(error) if requested.is_none() => {
            warn(&format!("training on the CPU: the GPU is unusable: {error}"));
            warn(&format!("hint: {}", error.hint()));
            return Ok((BackendKind::Tcp, Device::Cpu));
        }
        Err(error) => return Err(error.into()),
    };
    // Where a console launched this rank, the plan gives the device: ranks may share GPUs.
    let assigned = std::env::var("RANKDECK_DEVICE").ok();
    let index = assigned.and_then(|device| device.strip_prefix("cuda:")?.parse::<u32>().ok());
    match (requested, devices) {
        (None, 0) => Ok((BackendKind::Tcp, Device::Cpu)),
        (Some(_), 0) if !cuda::has_driver() => Err(TrainerError::usage(
            "backend nccl needs an NVIDIA driver, and none is installed on this host",
            "set distributed.backend = \"tcp\", or \"auto\" to choose by the hosts' GPUs",
        )),
        (Some(_), 0) => Err(TrainerError::usage(
            "backend nccl needs a GPU, and none is visible to this process",
            "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the host's libtorch, or set distributed.backend = \"tcp\"",
        )),
        (_, count) => match device_index(count, index, identity.local_rank) {
            Some(index) => Ok((BackendKind::Nccl, Device::Cuda(index as usize))),
            None => Err(TrainerError::usage(
                format!("no GPU for local rank {}: {count} visible to this process", identity.local_rank),
                "start at most one rank per GPU, or set distributed.backend = \"tcp\"",
            )),
        },
    }
}

/// What this rank needs to know to join its group.
pub(crate) fn group(
    identity: &RankIdentity,
    (backend, device): (BackendKind, Device),
    timeout: Duration,
) -> GroupSettings {
    GroupSettings {
        rank: identity.rank,
        world_size: identity.world_size,
        local_rank: identity.local_rank,
        master_addr: identity.master_addr.clone(),
        master_port: identity.master_port,
        backend,
        timeout,
        shared_memory: true,
        interface: identity.interface.clone(),
        generation: identity.generation,
        secret: identity.secret.clone(),
        device,
        interrupt: None,
    }
}

/// Which of the `count` devices that this process sees is its own: the one that was `assigned`, the only one
/// (Slurm's `--gpus-per-task=1` restricts it, and its number is 0 whatever the local rank), or that of the
/// local rank.
fn device_index(count: u32, assigned: Option<u32>, local_rank: u32) -> Option<u32> {
    match (assigned, count) {
        (Some(index), count) if index < count => Some(index),
        (_, 1) => Some(0),
        (_, count) => Some(local_rank).filter(|rank| *rank < count),
    }
}

/// The page that the agent reads. Without an agent, or where the file cannot be made (a full disk), one that
/// is only written: a rank trains without its monitor.
pub(crate) fn open_page(identity: &RankIdentity) -> Result<StatusPage, TrainerError> {
    let (rank, generation) = (identity.rank, identity.generation);
    let shown = identity.status_page.as_ref().and_then(|path| {
        let unseen = |error: &std::io::Error| {
            warn(&format!(
                "cannot create status page {}: {error}; the detector has less data about this rank",
                path.display()
            ));
        };
        StatusPageWriter::create(path, rank, generation).inspect_err(unseen).ok()
    });
    let writer = match shown {
        Some(writer) => writer,
        None => StatusPageWriter::anonymous(rank, generation).map_err(|error| {
            TrainerError::failure(format!("cannot map a status page: {error}"), "").with_io_kind(&error)
        })?,
    };
    Ok(StatusPage::new(writer))
}

/// Threads for libtorch: `OMP_NUM_THREADS` wins, as everywhere.
pub(crate) fn set_threads(experiment: &Experiment) {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        tch::set_num_threads(experiment.launch.threads.unwrap_or(1).clamp(1, 1024) as i32);
    }
}

/// Where rank 0 writes: as given, or a new folder below `runs`.
pub(crate) fn run_dir(identity: &RankIdentity, name: &str) -> PathBuf {
    match &identity.run_dir {
        Some(folder) => folder.clone(),
        None => {
            let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
            PathBuf::from("runs").join(format!("{name}-{}", now.strftime("%Y%m%d-%H%M%S")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(num_envs: u32, total: u64, anneal: bool) -> Experiment {
        toml::from_str(&format!(
            "[run]\nname = 'x'\ntotal_steps = {total}\n[env]\nid = 'CartPole-v1'\nnum_envs = {num_envs}\n\
             [learn]\nalgorithm = 'ppo'\nanneal_lr = {anneal}\n"
        ))
        .unwrap()
    }

    #[test]
    fn single_visible_device_is_used_by_any_local_rank() {
        assert_eq!(device_index(1, None, 3), Some(0), "one GPU per task");
        assert_eq!(device_index(4, None, 3), Some(3), "all GPUs of the node");
        assert_eq!(device_index(4, Some(1), 3), Some(1), "as planned");
        assert_eq!(device_index(1, Some(2), 0), Some(0), "a device of the plan that cannot be seen");
        assert_eq!(device_index(2, None, 2), None);
    }

    #[test]
    fn cleanrls_sizes() {
        let one = Sizes::resolve(&experiment(4, 500_000, true), 0, 1).unwrap();
        assert_eq!((one.local_batch, one.batch, one.num_iterations), (512, 512, Some(976)));
        let second = Sizes::resolve(&experiment(4, 500_000, true), 1, 2).unwrap();
        assert_eq!((second.local_envs, second.first_env, second.local_batch), (2, 2, 256));
        assert_eq!((second.batch, second.num_iterations), (512, Some(976)));
        assert_eq!(Sizes::resolve(&experiment(4, 0, false), 0, 1).unwrap().num_iterations, None);
    }

    #[test]
    fn unsupported_settings_name_their_key() {
        for (experiment, world_size, key) in [
            (experiment(3, 5000, true), 2, "env.num_envs"),
            (experiment(0, 5000, true), 1, "env.num_envs"),
            (experiment(4, 0, true), 1, "run.total_steps"),
            (experiment(4, 511, true), 1, "run.total_steps"),
        ] {
            let error = Sizes::resolve(&experiment, 0, world_size).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
        type Change = fn(&mut Experiment);
        let changes: [(&str, Change); 3] = [
            ("policy.hidden", |e: &mut Experiment| e.policy.hidden = vec![64, 0]),
            ("collect.num_steps", |e: &mut Experiment| e.collect.num_steps = 0),
            ("collect.num_steps", |e: &mut Experiment| e.collect.num_steps = u32::MAX),
        ];
        for (key, change) in changes {
            let mut wrong = experiment(4, u64::from(u32::MAX) * 4, true);
            change(&mut wrong);
            let error = Sizes::resolve(&wrong, 0, 1).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
