//! `--check-env`, `--setup-env`, `--check-gpu` and `--all-reduce`: checks a host before a run uses it.

use crate::algo;
use crate::distributed::{DistError, ProcessGroup, ReduceOp, cuda, torch_version};
use crate::env::Spec;
use crate::error::TrainerError;
use crate::startup::identity::{Flags, RankIdentity};
use crate::startup::setup::{self, Sizes, parts};
use crate::support::events::print_line;
use rankdeck_launcher::environments;
use rankdeck_types::experiment::Experiment;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor, no_grad};

/// Loads what a rank on a GPU loads, and has each GPU compute.
fn check_gpu() -> Result<(), TrainerError> {
    if !cuda::load_cuda()? {
        return Err(TrainerError::usage(
            if cuda::has_driver() {
                "no GPU visible to this process"
            } else {
                "no NVIDIA driver on this host"
            },
            "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        ));
    }
    let count = tch::Cuda::device_count().max(0) as usize;
    if count == 0 {
        return Err(TrainerError::usage(
            "the driver lists GPUs, but CUDA cannot use any of them",
            "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the host's libtorch",
        ));
    }
    for index in 0..count {
        compute(index).map_err(|mut error| {
            if count > 1 {
                error.hinted.error = format!("GPU {}: {}", named(index), error.hinted.error);
            }
            error
        })?;
    }
    let nccl = cuda::nccl_version()?;
    print_line(&format!("{count} GPUs work with libtorch {} and NCCL {nccl}", torch_version()));
    Ok(())
}

/// What a user calls the GPU that is `index` here.
fn named(index: usize) -> String {
    let list = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let entry = list.split(',').nth(index).map(str::trim).filter(|entry| !entry.is_empty());
    entry.map_or_else(|| index.to_string(), str::to_owned)
}

fn compute(index: usize) -> Result<(), TrainerError> {
    let there = Tensor::f_ones([4, 4], (Kind::Float, Device::Cuda(index)))?;
    there.f_mm(&there)?.f_sum(None::<Kind>)?.f_double_value(&[])?;
    Ok(())
}

/// Runs the check that the flags select.
pub(crate) fn run(flags: &Flags) -> Result<(), TrainerError> {
    if flags.check_gpu {
        return check_gpu();
    }
    if let Some(folder) = &flags.setup_env {
        return Ok(environments::set_up(folder, flags)?);
    }
    let checked = environments::check(flags)?;
    match checked.experiment.filter(|experiment| experiment.learn.is_some()) {
        Some(experiment) => check_network(&experiment, checked.spec),
        None => Ok(()),
    }
}

/// Refuses what a rank alone would refuse: spaces that algorithm and network do not take.
fn check_network(experiment: &Experiment, spec: Spec) -> Result<(), TrainerError> {
    let sizes = Sizes::resolve(experiment, 0, 1)?;
    let network = experiment.policy.network;
    let spec = spec.fitted(network);
    algo::check(experiment, &spec, &sizes)?;
    let (_, learn) = parts(experiment)?;
    print_line(&format!(
        "  network       {} of {} takes them as {:?} {:?}",
        serde_json::to_string(&network).unwrap_or_default().trim_matches('"'),
        learn.name(),
        spec.observation_type,
        spec.observation_shape
    ));
    Ok(())
}

/// Bytes: a number, gradients of small networks, those of `nature` on Pong (6,746,772), and more.
const SIZES: [usize; 8] = [4, 1 << 10, 36_620, 256 << 10, 1 << 20, 6_746_772, 16 << 20, 32 << 20];
/// Before the measurement, one at a time, batches that are queued, and all-reduces in each; of large ones, as
/// many as have [`BYTES`] together.
const WARM: usize = 5;
const ROUNDS: usize = 50;
const BATCHES: usize = 5;
const QUEUED: usize = 20;
const BYTES: usize = 128 << 20;
const LEAST: usize = 3;

const TIMEOUT: Duration = Duration::from_secs(120);
const LEAVE: Duration = Duration::from_secs(10);

/// Times all-reduces over the connections that training uses, as one rank: joins, measures, leaves.
///
/// Each size is timed in two ways: one at a time, each waited for, and queued, as the gradients of training
/// are, and as NCCL's own tests do it.
pub(crate) fn time_all_reduces(identity: &RankIdentity, largest: usize) -> Result<(), TrainerError> {
    let experiment = Experiment::default();
    let (backend, device) = setup::device(identity, &experiment)?;
    let page = setup::open_page(identity)?;
    let settings = setup::group(identity, (backend, device), TIMEOUT);
    let group = ProcessGroup::connect(&settings, page)?;
    for bytes in SIZES.into_iter().filter(|bytes| *bytes <= largest) {
        let [alone, queued] = measure(&group, bytes, device)?;
        if identity.rank == 0 {
            let line = json!({
                "bytes": bytes,
                "ranks": identity.world_size,
                "backend": group.backend_name(),
                "us": alone,
                "queued_us": queued,
            });
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
    group.destroy(LEAVE)?;
    Ok(())
}

/// Medians in microseconds: of one that is waited for, and of one in a queue.
fn measure(group: &ProcessGroup, bytes: usize, device: Device) -> Result<[f64; 2], DistError> {
    let mut values = no_grad(|| Tensor::zeros([(bytes / 4) as i64], (Kind::Float, device)));
    let mut batch = |count: usize| -> Result<f64, DistError> {
        let started = Instant::now();
        for _ in 0..count {
            group.all_reduce_queued(&mut values, ReduceOp::Sum, "measure")?;
        }
        group.settle()?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    let at_most = |count: usize| count.min((BYTES / bytes.max(1)).max(LEAST));
    batch(at_most(WARM))?;
    let alone = (0..at_most(ROUNDS)).map(|_| batch(1)).collect::<Result<Vec<_>, _>>()?;
    let queued = (0..BATCHES).map(|_| batch(at_most(QUEUED))).collect::<Result<Vec<_>, _>>()?;
    Ok([alone, queued].map(median))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.get(times.len() / 2).copied().unwrap_or(0.0);
    (middle * 100.0).round() / 100.0
}
