//! NCCL between ranks: sums, queues, deaths, hangs, aborts, GPUs that ranks share.

use super::harness::{Me, World, error_value, page_of, until};
use rankdeck_proto::status_page::Reader;
use rankdeck_testkit::fake_cuda::FakeCuda;
use rankdeck_trainer::distributed::ReduceOp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tch::Tensor;

/// All-reduces that [`queued`] begins before it waits.
const QUEUED: u64 = 10;

/// Ranks on a fake GPU each.
fn world(fake: &FakeCuda, role: &'static str, ranks: u32) -> World {
    let mut world = World::new(role, ranks).env("DIST_BACKEND", "nccl");
    for (name, value) in fake.env() {
        world = world.env(&name, value);
    }
    (0..ranks).fold(world, |world, rank| world.env_of(rank, "CUDA_VISIBLE_DEVICES", rank))
}

/// Begins all-reduces of one tensor on the GPU, one after the other, and waits once.
pub fn queued(me: &Me) -> Value {
    let group = me.connect();
    let started = Instant::now();
    let mut tensor = Tensor::from_slice(&[f64::from(me.rank), 1.0]).to_device(me.device());
    let begun = (0..QUEUED).try_for_each(|_| group.all_reduce_queued(&mut tensor, ReduceOp::Sum, "grad"));
    match begun.and_then(|()| group.settle()) {
        Ok(()) => {
            let sums = Vec::<f64>::try_from(tensor.to_device(tch::Device::Cpu)).unwrap();
            group.destroy(Duration::from_secs(30)).unwrap();
            json!({ "sums": sums })
        }
        Err(error) => {
            let mut value = error_value(&error);
            value["after"] = json!(started.elapsed().as_secs_f64());
            value["again"] = json!(group.barrier("after").unwrap_err().to_string());
            value
        }
    }
}

#[test]
fn nccl_collectives_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "3")]) else { return };
    for result in world(&fake, "nccl_collectives", 3).start().results() {
        assert!(result["backend"].as_str().unwrap().starts_with("nccl 2.28"), "{result}");
    }
}

#[test]
fn queued_collectives_end_in_order_and_nothing_waits_for_each() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    for result in world(&fake, "nccl_queued", 2).start().results() {
        // 0 + 1 and 1 + 1, doubled nine times.
        assert_eq!(result["sums"], json!([512.0, 1024.0]), "{result}");
    }
    for rank in ["0", "1"] {
        let counts = fake.counts(rank);
        assert_eq!((counts["collectives"], counts["collective_threads"]), (QUEUED, 0), "{counts:?}");
        let waits = counts["stream_waits"] + counts["event_waits"] + counts["device_waits"];
        // The copy to the GPU, and the one back.
        assert_eq!(waits, 2, "{counts:?}");
    }
}

/// FLIGHT-1, FLIGHT-2.
#[test]
fn a_queued_collective_that_never_ends_is_the_one_shown_and_the_one_that_fails() {
    for more in [&[][..], &[("abort_hangs", "1")]] {
        let folder = tempfile::tempdir().unwrap();
        let knobs = [&[("gpus", "2"), ("hang_at.1", "3")], more].concat();
        let Some(fake) = FakeCuda::new(folder.path(), &knobs) else { return };
        let mut world = world(&fake, "nccl_queued", 2);
        world.timeout = Duration::from_secs(4);
        world.pages = Some(folder.path().to_path_buf());
        let ranks = world.start();
        let shown = |rank| {
            let reader = Reader::open(&page_of(folder.path(), rank)).ok()?;
            reader.view().ok().map(|view| (view.body.entered, view.body.left))
        };
        for rank in [0, 1] {
            until("the fourth collective is shown", || shown(rank) == Some((4, 3)));
        }
        for error in ranks.results() {
            let message = error["message"].as_str().unwrap();
            assert_eq!(error["kind"], "Timeout", "{error}");
            assert!(message.contains("collective 4, all_reduce \"grad\""), "{message}");
            assert!(error["again"].as_str().unwrap().contains("failed earlier"), "{error}");
        }
        assert!(fake.counts("0")["aborts"] > 0);
    }
}

#[test]
fn ranks_that_do_not_connect_are_told_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2"), ("init_hangs", "1")]) else { return };
    let mut world = world(&fake, "nccl_join", 2);
    world.timeout = Duration::from_secs(2);
    for error in world.start().results() {
        assert_eq!(error["kind"], "Timeout", "{error}");
        assert!(error["message"].as_str().unwrap().contains("did not all connect"), "{error}");
    }
}

#[test]
fn a_rank_that_dies_inside_a_collective_is_an_error_of_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2")]) else { return };
    let mut ranks = world(&fake, "nccl_killed", 2).start();
    let end = ranks.wait(&[0]).remove(0);
    assert!(end.status.success(), "{:?}\n{}", end.status, end.output);
    let error = end.result.unwrap();
    assert_eq!(error["kind"], "Connection", "{error}");
    ranks.wait(&[1]);
}

#[test]
fn ranks_on_one_gpu_are_hosts_of_their_own_to_nccl_however_they_are_started() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[]) else { return };
    let world = world(&fake, "nccl_join", 2).env_of(1, "CUDA_VISIBLE_DEVICES", 0);
    for result in world.start().results() {
        assert_eq!(result["joined"], true, "{result}");
    }
}
