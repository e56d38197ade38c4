//! `--check-env`, `--setup-env` and `--check-gpu`: what a host offers, before a run meets it.

use super::algo;
use super::distributed::{cuda, torch_version};
use super::env::Spec;
use super::error::TrainerError;
use super::events::say;
use super::identity::Flags;
use super::setup::{Sizes, parts};
use rankdeck_launcher::environments;
use rankdeck_types::experiment::Experiment;
use tch::{Device, Kind, Tensor};

/// Loads what a rank on a GPU loads, and has each GPU compute.
fn check_gpu() -> Result<(), TrainerError> {
    if !cuda::load_cuda()? {
        return Err(TrainerError::usage(
            if cuda::has_driver() { "this process sees no GPU" } else { "no NVIDIA driver on this host" },
            "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        ));
    }
    let count = tch::Cuda::device_count().max(0) as usize;
    if count == 0 {
        return Err(TrainerError::usage(
            "the driver shows GPUs, and CUDA finds none that it can use",
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
    say(&format!("{count} GPUs work with libtorch {} and NCCL {nccl}", torch_version()));
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

/// Does what the flags ask for.
pub fn run(flags: &Flags) -> Result<(), TrainerError> {
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
    say(&format!(
        "  network       {} of {} takes them as {:?} {:?}",
        serde_json::to_string(&network).unwrap_or_default().trim_matches('"'),
        learn.name(),
        spec.observation_type,
        spec.observation_shape
    ));
    Ok(())
}
