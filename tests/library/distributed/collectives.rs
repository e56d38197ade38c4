//! Every collective gives what it should, for every world size.

use super::harness::{Me, World, error_value, page_of};
use rankdeck_proto::status_page::{CollectiveOp, StatusPageReader, tag_text};
use rankdeck_trainer::distributed::{DistErrorKind, ReduceOp};
use serde_json::{Value, json};
use std::time::Duration;
use tch::{Kind, Tensor};

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn list(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap()
}

pub fn rank(me: &Me) -> Value {
    let (rank, world) = (me.rank as f64, me.world_size as f64);
    let group = me.connect();
    assert_eq!((group.rank(), group.world_size()), (me.rank, me.world_size));
    let sum_of_ranks = world * (world - 1.0) / 2.0;

    let mut tensor = floats(&[rank as f32, 1.0]);
    group.all_reduce(&mut tensor, ReduceOp::Sum, "sum").unwrap();
    assert_eq!(list(&tensor), [sum_of_ranks, world]);

    let mut tensor = floats(&[rank as f32, 3.0]);
    group.all_reduce(&mut tensor, ReduceOp::Avg, "avg").unwrap();
    assert_eq!(list(&tensor), [sum_of_ranks / world, 3.0]);

    let mut tensor = floats(&[rank as f32, -rank as f32]);
    group.all_reduce(&mut tensor, ReduceOp::Min, "min").unwrap();
    assert_eq!(list(&tensor), [0.0, 1.0 - world]);

    let mut tensor = floats(&[rank as f32, -rank as f32]);
    group.all_reduce(&mut tensor, ReduceOp::Max, "max").unwrap();
    assert_eq!(list(&tensor), [world - 1.0, 0.0]);

    for root in 0..me.world_size {
        let mut tensor = floats(&[rank as f32 + 0.5; 3]);
        group.broadcast(&mut tensor, root, "copy").unwrap();
        assert_eq!(list(&tensor), [f64::from(root) + 0.5; 3]);
    }

    let gathered = group.all_gather(&floats(&[rank as f32, 7.0]), "gather").unwrap();
    assert_eq!(gathered.len(), me.world_size as usize);
    for (from, tensor) in gathered.iter().enumerate() {
        assert_eq!(list(tensor), [from as f64, 7.0]);
    }

    // Past 2^53 and past what f32 can hold: totals must be exact.
    let large = 9_007_199_254_740_993_i64;
    for round in 0..3 {
        let mut values = [large, i64::from(me.rank), round];
        group.all_reduce_i64(&mut values, ReduceOp::Sum, "collect_stats").unwrap();
        assert_eq!(values, [large * i64::from(me.world_size), sum_of_ranks as i64, round * world as i64]);
    }
    let mut flag = [i64::from(me.rank == me.world_size - 1)];
    group.all_reduce_i64(&mut flag, ReduceOp::Max, "stop").unwrap();
    assert_eq!(flag, [1]);

    let mut values = [0.1 * rank, 1e-9];
    group.all_reduce_f64(&mut values, ReduceOp::Avg, "time").unwrap();
    assert!((values[0] - 0.1 * sum_of_ranks / world).abs() < 1e-12);
    group.barrier("all").unwrap();

    // Mistakes are refused before anything is sent, and the group keeps working.
    let refused = group.all_reduce_i64(&mut [1], ReduceOp::Avg, "oops").unwrap_err();
    assert_eq!(refused.kind, DistErrorKind::Usage);
    let turned = floats(&[1.0, 2.0, 3.0, 4.0]).view([2, 2]).transpose(0, 1);
    assert!(group.all_reduce(&mut turned.shallow_clone(), ReduceOp::Sum, "oops").is_err());
    assert!(group.broadcast(&mut floats(&[1.0]), me.world_size, "oops").is_err());
    group.barrier("still").unwrap();

    let name = group.backend_name();
    group.destroy(Duration::from_secs(30)).unwrap();
    json!({ "backend": name })
}

pub fn objects(me: &Me) -> Value {
    let group = me.connect();
    let mut seen = Vec::new();
    for length in [0usize, 1, 4070, 4086, 4087, 100_000] {
        let mine = if me.rank == 0 { "x".repeat(length) } else { format!("of rank {}", me.rank) };
        let mut value = (mine, 0.1 + 0.2, Some(vec![me.rank]));
        group.broadcast_object(&mut value, 0, "eval").unwrap();
        assert_eq!(value, ("x".repeat(length), 0.1 + 0.2, Some(vec![0])));
        seen.push(value.0.len());
    }
    let mut last = me.rank;
    group.broadcast_object(&mut last, me.world_size - 1, "eval").unwrap();
    assert_eq!(last, me.world_size - 1);
    group.destroy(Duration::from_secs(30)).unwrap();
    json!(seen)
}

/// Two halves of a world of four at the same time, one of them in another order, and a group of one; then all
/// again.
pub fn groups(me: &Me) -> Value {
    let world = me.connect();
    let halves = [world.new_group(&[0, 1]).unwrap(), world.new_group(&[3, 2]).unwrap()];
    let alone = world.new_group(&[2]).unwrap();
    assert_eq!(alone.is_some(), me.rank == 2);
    let before = world.entered();
    let half = halves.iter().flatten().next().unwrap();
    let [place, partner] = [[0, 1], [1, 0], [1, 3], [0, 2]][me.rank as usize];
    assert_eq!((half.rank(), half.world_size(), half.communicator()), (place, 2, 1 + me.rank / 2));
    // Different numbers of calls in the two halves: the groups have sequence numbers of their own.
    for _ in 0..=half.communicator() {
        let mut sum = [i64::from(me.rank), 1];
        half.all_reduce_i64(&mut sum, ReduceOp::Sum, "half").unwrap();
        assert_eq!(sum, [i64::from(me.rank + partner), 2]);
    }
    let mut value = me.rank;
    half.broadcast_object(&mut value, 1, "half").unwrap();
    assert_eq!(value, [1, 1, 2, 2][me.rank as usize]);
    if let Some(alone) = &alone {
        let mut sum = [5];
        alone.all_reduce_i64(&mut sum, ReduceOp::Sum, "alone").unwrap();
        assert_eq!((sum, alone.entered()), ([5], 1));
    }
    assert_eq!((half.entered(), world.entered()), (u64::from(half.communicator()) + 2, before));
    // One half's failure is its own.
    assert!(world.new_group(&[0, 9]).is_err_and(|error| error.kind == DistErrorKind::Usage));
    assert!(world.new_group(&[1, 1]).is_err_and(|error| error.kind == DistErrorKind::Usage));
    let mut sum = [1];
    world.all_reduce_i64(&mut sum, ReduceOp::Sum, "all").unwrap();
    assert_eq!(sum, [4]);
    for group in halves.into_iter().flatten().chain(alone) {
        group.destroy(Duration::from_secs(30)).unwrap();
    }
    let last = world.entered();
    world.destroy(Duration::from_secs(30)).unwrap();
    json!(last)
}

/// Rank 1 names another list.
pub fn groups_differ(me: &Me) -> Value {
    let world = me.connect();
    let list: &[u32] = if me.rank == 1 { &[1, 0] } else { &[0, 1] };
    let error = world.new_group(list).err().unwrap();
    assert_eq!(error.kind, DistErrorKind::Mismatch);
    error_value(&error)
}

#[test]
fn subgroups_work_concurrently() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new("groups", 4);
    world.pages = Some(folder.path().into());
    let last = world.start().results();
    assert!(last.iter().all(|seq| *seq == last[0]), "{last:?}");
    let views: Vec<_> = (0..4)
        .map(|rank| StatusPageReader::open(&page_of(folder.path(), rank)).unwrap().view().unwrap())
        .collect();
    for (rank, view) in views.iter().enumerate() {
        let group = |name: &str| *view.groups.iter().find(|group| tag_text(&group.name) == name).unwrap();
        let (world, theirs) = (group("world"), views[0].groups[0]);
        assert_eq!((world.entered, world.left), (last[0].as_u64().unwrap(), last[0].as_u64().unwrap()));
        assert_eq!(world.chain, theirs.chain, "groups leave the hash that all ranks compare alone");
        let (communicator, entered) = [(1, 3), (1, 3), (3, 1), (2, 4)][rank];
        let latest = group(&format!("group{communicator}"));
        assert_eq!((latest.entered, latest.left), (entered, entered));
    }
    World::new("groups", 4).env("RANKDECK_CHECK_COLLECTIVES", 1).start().results();
}

#[test]
fn differing_group_members_fail_on_all_ranks() {
    for error in World::new("groups_differ", 3).start().results() {
        assert_eq!(
            (&error["kind"], &error["collective"]["tag"]),
            (&json!("Mismatch"), &json!("new_group")),
            "{error}"
        );
    }
}

#[test]
fn every_collective_is_right_on_one_two_and_four_ranks() {
    for world_size in [1, 2, 4] {
        for result in World::new("collectives", world_size).start().results() {
            let name = result["backend"].as_str().unwrap().to_owned();
            assert!(if world_size == 1 { name.starts_with("none") } else { name == "shared memory" });
        }
    }
    for result in World::new("collectives", 3).env("DIST_TCP_ONLY", 1).start().results() {
        assert_eq!(result["backend"], "tcp (encrypted)");
    }
}

#[test]
fn collectives_pass_in_check_mode_too() {
    World::new("collectives", 2).env("RANKDECK_CHECK_COLLECTIVES", 1).start().results();
}

#[test]
fn objects_of_all_sizes_reach_all_ranks() {
    for world_size in [1, 3] {
        World::new("objects", world_size).start().results();
    }
}

/// DIST-1.
#[test]
fn status_page_numbers_all_collectives_alike() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new("collectives", 2);
    world.pages = Some(folder.path().into());
    world.start().results();
    let [first, second] =
        [0, 1].map(|rank| StatusPageReader::open(&page_of(folder.path(), rank)).unwrap().view().unwrap());
    assert_eq!(first.body.entered, first.body.left);
    assert!(first.body.entered >= 13, "{}", first.body.entered);
    assert_eq!(first.body.entered, second.body.entered);
    assert_eq!(first.body.chain_hash, second.body.chain_hash);
    let sites: Vec<u64> = first.ring.iter().map(|collective| collective.call_site).collect();
    assert_eq!(sites, second.ring.iter().map(|collective| collective.call_site).collect::<Vec<_>>());
    let stats: Vec<_> = first.ring.iter().filter(|c| tag_text(&c.tag) == "collect_stats").collect();
    assert_eq!(stats.len(), 3);
    assert!(
        stats
            .iter()
            .all(|c| c.op == CollectiveOp::AllReduce && c.count == 3 && c.bytes == 24 && c.left_ns > 0)
    );
    assert!(stats.iter().all(|c| c.call_site == stats[0].call_site && c.call_site != 0));
    assert_ne!(sites[0], sites[1], "two places in the source are two call sites");
}
