//! NCCL between ranks: sums, queues, deaths, hangs, aborts, GPUs that ranks share.

use super::harness::{Me, World, error_value, page_of, until};
use rankdeck_proto::status_page::StatusPageReader;
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
    let start_time =
        (0..QUEUED).try_for_each(|_| group.all_reduce_queued(&mut tensor, ReduceOp::Sum, "grad"));
    match start_time.and_then(|()| group.settle()) {
        Ok(()) => {
            let sums = Vec::<f64>::try_from(tensor.to_device(tch::Device::Cpu)).unwrap();
            group.destroy(Duration::from_secs(30)).unwrap();
            json!({ "sums": sums })
        }
        Err(error) => {
            let mut value = error_value(&error);
            value["after"] = json!(started.elapsed().as_secs_f64());
            value["again"] = error_value(&group.barrier("after").unwrap_err());
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
fn queued_collectives_end_in_order_without_waits() {
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
fn stuck_queued_collective_is_shown_and_fails() {
    for more in [&[][..], &[("abort_hangs", "1")]] {
        let folder = tempfile::tempdir().unwrap();
        let knobs = [&[("gpus", "2"), ("hang_at.1", "3")], more].concat();
        let Some(fake) = FakeCuda::new(folder.path(), &knobs) else { return };
        let mut world = world(&fake, "nccl_queued", 2);
        world.timeout = Duration::from_secs(4);
        world.pages = Some(folder.path().to_path_buf());
        let ranks = world.start();
        let shown = |rank| {
            let reader = StatusPageReader::open(&page_of(folder.path(), rank)).ok()?;
            reader.view().ok().map(|view| (view.body.entered, view.body.left))
        };
        for rank in [0, 1] {
            until("the fourth collective is shown", || shown(rank) == Some((4, 3)));
        }
        let errors = ranks.results();
        for error in &errors {
            // The deadlines differ by milliseconds: the first rank at its own aborts, which the other may see first.
            assert!(error["kind"] == "Timeout" || error["kind"] == "Connection", "{error}");
            assert_eq!(
                error["collective"],
                json!({ "seq": 4, "op": "all_reduce", "tag": "grad" }),
                "{error}"
            );
            assert_eq!(error["again"]["kind"], "Failed", "{error}");
        }
        assert!(errors.iter().any(|error| error["kind"] == "Timeout"), "{errors:?}");
        assert!(fake.counts("0")["aborts"] > 0);
    }
}

#[test]
fn unconnected_nccl_ranks_fail_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[("gpus", "2"), ("init_hangs", "1")]) else { return };
    let mut world = world(&fake, "nccl_join", 2);
    world.timeout = Duration::from_secs(2);
    for error in world.start().results() {
        assert_eq!(error["kind"], "Timeout", "{error}");
        assert_eq!(error["phase"], "Rendezvous", "{error}");
    }
}

#[test]
fn rank_dying_in_nccl_collective_fails_the_other() {
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
fn ranks_sharing_a_gpu_are_separate_nccl_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = FakeCuda::new(folder.path(), &[]) else { return };
    let world = world(&fake, "nccl_join", 2).env_of(1, "CUDA_VISIBLE_DEVICES", 0);
    for result in world.start().results() {
        assert_eq!(result["joined"], true, "{result}");
    }
}
