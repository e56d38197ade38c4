//! NCCL: refused in one sentence where it cannot work; equal to the ranks' own connections where it can.
//!
//! On a machine with a GPU: `make gpu-test`, which runs the ignored tests whose names begin with `gpu`.

use super::ddp;
use super::harness::{Me, World};
use rankdeck_testkit::skip;
use rankdeck_trainer::distributed::cuda::load_cuda;
use serde_json::Value;
use std::path::Path;

/// Trains on the first GPU.
pub fn rank(me: &Me) -> Value {
    with_cuda(me, ddp::rank)
}

/// A role of the tests on CPUs, with CUDA loaded.
pub fn with_cuda(me: &Me, role: fn(&Me) -> Value) -> Value {
    assert!(load_cuda().unwrap(), "a GPU is expected here");
    assert!(tch::Cuda::is_available());
    role(me)
}

fn has_driver() -> bool {
    Path::new("/dev/nvidiactl").exists()
}

#[test]
fn nccl_without_a_driver_is_refused_on_every_rank() {
    if has_driver() {
        skip!("GPU: this host has an NVIDIA driver");
    }
    for error in World::new("join", 2).env("DIST_BACKEND", "nccl").start().results() {
        assert_eq!(error["kind"], "Unsupported", "{error}");
        assert_eq!(error["phase"], "Rendezvous", "{error}");
        assert!(error["hint"].as_str().unwrap().contains("backend = \"tcp\""), "{error}");
    }
}

#[test]
fn ranks_of_different_backends_are_refused() {
    if has_driver() {
        skip!("GPU: this host has an NVIDIA driver");
    }
    let world = World::new("join", 2).env_of(0, "DIST_BACKEND", "tcp").env_of(1, "DIST_BACKEND", "nccl");
    for error in world.start().results() {
        assert_eq!(error["kind"], "Unsupported", "{error}");
        assert!(error["message"].as_str().unwrap().contains("rank 1"), "{error}");
    }
}

/// Two ranks share the GPU: each pretends to be a host of its own.
fn on_one_gpu(role: &'static str) -> World {
    World::new(role, 2)
        .env("DIST_BACKEND", "nccl")
        .env("NCCL_SOCKET_IFNAME", "lo")
        .env("CUDA_VISIBLE_DEVICES", 0)
        .env_of(0, "NCCL_HOSTID", "rankdeck-a")
        .env_of(1, "NCCL_HOSTID", "rankdeck-b")
}

#[test]
#[ignore = "GPU: needs one"]
fn gpu_nccl_and_cpus_train_the_same_parameters() {
    let cpus = World::new("ddp", 2).env("DIST_UPDATES", 100).start().results();
    let nccl = on_one_gpu("nccl").env("DIST_UPDATES", 100).start().results();
    for (a, b) in cpus.iter().zip(&nccl) {
        let distance = ddp::distance(a, b);
        assert!(distance < 1e-5, "{distance}");
        assert!(ddp::equal_prints(b));
    }
}

#[test]
#[ignore = "GPU: needs one"]
fn gpu_nccl_collectives_are_right() {
    for result in on_one_gpu("nccl_collectives").start().results() {
        assert!(result["backend"].as_str().unwrap().starts_with("nccl 2."), "{result}");
    }
}

#[test]
#[ignore = "GPU: needs one"]
fn gpu_rank_killed_in_nccl_all_reduce_fails_the_other() {
    let mut world = on_one_gpu("nccl_killed");
    world.timeout = std::time::Duration::from_secs(20);
    let mut ranks = world.start();
    let end = ranks.wait(&[0]).remove(0);
    assert!(end.status.success(), "{:?}\n{}", end.status, end.output);
    let error = end.result.unwrap();
    assert_eq!(error["collective"]["tag"], "grad", "{error}");
    ranks.wait(&[1]);
}
