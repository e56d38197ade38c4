//! What goes wrong between ranks ends in an error that names it, in time, and never ends the process (DIST-2,
//! DIST-3).

use super::harness::{End, Me, World, error_value, page_of, until};
use rankdeck_proto::message::Phase;
use rankdeck_proto::status_page::{StatusPageReader, tag_text};
use rankdeck_trainer::distributed::{ProcessGroup, ReduceOp};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Joins, and returns the result.
pub fn join(me: &Me) -> Value {
    let started = Instant::now();
    let mut settings = me.settings();
    if let Ok(name) = std::env::var("DIST_INTERFACE") {
        settings.interface = Some(name);
    }
    match ProcessGroup::connect(&settings, me.page()) {
        Ok(group) => match group.destroy(Duration::from_secs(30)) {
            Ok(()) => json!({ "joined": true }),
            Err(error) => error_value(&error),
        },
        Err(error) => {
            let mut value = error_value(&error);
            value["after"] = json!(seconds(started));
            value
        }
    }
}

/// The last rank never enters the third collective.
pub fn absent(me: &Me) -> Value {
    let group = me.connect();
    for _ in 0..2 {
        group.barrier("warm").unwrap();
    }
    if me.rank == me.world_size - 1 {
        loop {
            std::thread::park();
        }
    }
    let started = Instant::now();
    let error = group.all_reduce_i64(&mut [1], ReduceOp::Sum, "collect_stats").unwrap_err();
    let mut value = error_value(&error);
    value["after"] = json!(seconds(started));
    value["again"] = error_value(&group.barrier("after").unwrap_err());
    let started = Instant::now();
    drop(group);
    value["dropped_after"] = json!(seconds(started));
    value
}

/// Rank 1 dies inside a large all-reduce.
pub fn killed(me: &Me) -> Value {
    let group = me.connect();
    let rounds = Arc::new(AtomicU64::new(0));
    if me.rank == 1 {
        let rounds = rounds.clone();
        std::thread::spawn(move || {
            while rounds.load(Ordering::Relaxed) < 3 {
                std::hint::spin_loop();
            }
            // SAFETY: ends this process, which is the point.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    let mut tensor = Tensor::ones([4 << 20], (Kind::Float, me.device()));
    loop {
        if let Err(error) = group.all_reduce(&mut tensor, ReduceOp::Avg, "grad") {
            return error_value(&error);
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Rank 1 stops itself; the test reads rank 0's page meanwhile.
pub fn frozen(me: &Me) -> Value {
    let group = me.connect();
    group.barrier("warm").unwrap();
    if me.rank == 1 {
        // SAFETY: stops this process, which is the point.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    let mut tensor = Tensor::ones([1000], (Kind::Float, Device::Cpu));
    match group.all_reduce(&mut tensor, ReduceOp::Sum, "grad") {
        Ok(()) => json!({ "sum": tensor.double_value(&[0]) }),
        Err(error) => error_value(&error),
    }
}

/// Rank 1 is one collective ahead.
pub fn mismatch(me: &Me) -> Value {
    let group = me.connect();
    group.barrier("warm").unwrap();
    let result = if me.rank == 0 {
        group.all_reduce_i64(&mut [1, 2], ReduceOp::Sum, "collect_stats")
    } else {
        group.broadcast(&mut Tensor::ones([5], (Kind::Float, Device::Cpu)), 0, "weights")
    };
    error_value(&result.unwrap_err())
}

/// The ranks reduce tensors of different lengths.
pub fn sizes(me: &Me) -> Value {
    let group = me.connect();
    let length: i64 = std::env::var("DIST_LENGTH").unwrap().parse().unwrap();
    let mut tensor = Tensor::ones([length], (Kind::Float, Device::Cpu));
    error_value(&group.all_reduce(&mut tensor, ReduceOp::Sum, "grad").unwrap_err())
}

/// Rank 0 leaves while the others have ended without a word.
pub fn leave(me: &Me) -> Value {
    let group = me.connect();
    group.barrier("warm").unwrap();
    if me.rank != 0 {
        std::process::exit(0);
    }
    let started = Instant::now();
    let error = group.destroy(Duration::from_secs(1)).unwrap_err();
    let mut value = error_value(&error);
    value["after"] = json!(seconds(started));
    value
}

fn result(end: &End) -> &Value {
    assert!(end.status.success(), "{:?}\n{}", end.status, end.output);
    end.result.as_ref().unwrap_or_else(|| panic!("no result\n{}", end.output))
}

fn message(value: &Value) -> &str {
    value["message"].as_str().unwrap_or_else(|| panic!("no error: {value}"))
}

#[test]
fn rendezvous_timeout_names_the_missing_rank() {
    let mut world = World::new("join", 4);
    world.ranks = vec![0, 2];
    world.timeout = Duration::from_secs(2);
    for error in world.start().results() {
        assert_eq!((&error["kind"], &error["phase"]), (&json!("Timeout"), &json!("Rendezvous")), "{error}");
        // The rank that gives up first may take the store along; the other then reports what it knows.
        let text = message(&error);
        assert!(text.ends_with(": 1, 3"), "the missing ranks: {text}");
        assert!(error["after"].as_f64().unwrap() < 20.0);
    }
}

#[test]
fn rendezvous_timeout_names_a_missing_rank_zero() {
    let port = rankdeck_testkit::free_port();
    let mut world = World::new("join", 2);
    (world.ranks, world.port, world.timeout) = (vec![1], Some(port), Duration::from_secs(2));
    let error = world.start().results().remove(0);
    assert_eq!((&error["kind"], &error["phase"]), (&json!("Timeout"), &json!("Rendezvous")), "{error}");
    assert!(message(&error).contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(error["after"].as_f64().unwrap() < 30.0);
}

#[test]
fn port_in_use_is_reported() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut world = World::new("join", 2);
    (world.ranks, world.port, world.timeout) = (vec![0], Some(port), Duration::from_secs(10));
    let error = world.start().results().remove(0);
    assert_eq!(error["kind"], "AddressInUse", "{error}");
    assert!(message(&error).contains(&port.to_string()), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("MASTER_PORT"));
}

/// STORE-2.
#[test]
fn store_2_duplicate_rank_is_refused() {
    let mut world = World::new("join", 3).env_of(2, "RANK", 1);
    world.timeout = Duration::from_secs(4);
    let results = world.start().results();
    let refused: Vec<_> = results.iter().filter(|error| error["kind"] == "Usage").collect();
    assert_eq!(refused.len(), 1, "{results:?}");
    assert_eq!(refused[0]["rank"], 1, "{results:?}");
    assert!(results.iter().any(|error| error["kind"] == "Timeout"), "{results:?}");
}

#[test]
fn contradictory_world_sizes_are_refused_on_both_sides() {
    let world = World::new("join", 2).env_of(1, "WORLD_SIZE", 3);
    for error in world.start().results() {
        assert_eq!(error["kind"], "Usage", "{error}");
        let text = message(&error);
        assert!(text.contains("world_size 3") && text.contains("world_size 2"), "{text}");
    }
}

#[test]
fn interface_is_used_and_unknown_one_is_rejected() {
    for result in World::new("join", 2).env("DIST_INTERFACE", "lo").start().results() {
        assert_eq!(result, json!({ "joined": true }));
    }
    for (setting, value) in [("DIST_INTERFACE", "nosuch0"), ("GLOO_SOCKET_IFNAME", "nosuch0")] {
        for error in World::new("join", 2).env(setting, value).start().results() {
            assert_eq!(error["kind"], "Usage", "{error}");
            assert!(message(&error).contains("nosuch0"), "{error}");
        }
    }
}

#[test]
fn absent_rank_times_out_with_collective_name() {
    let mut world = World::new("absent", 3);
    world.timeout = Duration::from_secs(2);
    let mut ranks = world.start();
    for (rank, end) in ranks.wait(&[0, 1]).iter().enumerate() {
        let error = result(end);
        let text = message(error);
        assert_eq!(error["collective"], json!({ "seq": 3, "op": "all_reduce", "tag": "collect_stats" }));
        assert_eq!(error["rank"], rank, "{error}");
        assert!(["Timeout", "Connection"].contains(&error["kind"].as_str().unwrap()), "{text}");
        assert!(error["after"].as_f64().unwrap() < 20.0);
        assert_eq!(error["again"]["kind"], "Failed", "{error}");
        assert!(error["dropped_after"].as_f64().unwrap() < 20.0);
    }
    // No rank was there to hang up on the one that waited longest.
    assert!(ranks.pid(2) > 0);
}

#[test]
fn rank_killed_in_all_reduce_fails_the_others() {
    for world_size in [2, 3] {
        let mut world = World::new("killed", world_size);
        world.timeout = Duration::from_secs(20);
        let mut ranks = world.start();
        let others: Vec<u32> = (0..world_size).filter(|rank| *rank != 1).collect();
        for end in ranks.wait(&others) {
            let error = result(&end);
            let text = message(error);
            assert_eq!(error["collective"]["tag"], "grad", "{text}");
            assert!(["Connection", "Timeout"].contains(&error["kind"].as_str().unwrap()), "{text}");
        }
        assert!(!ranks.wait(&[1])[0].status.success());
    }
}

/// DIST-1: what the agent sees of a rank that waits.
#[test]
fn status_page_shows_the_pending_collective() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new("frozen", 2);
    world.pages = Some(folder.path().into());
    let mut ranks = world.start();
    let view = |rank| {
        StatusPageReader::open(&page_of(folder.path(), rank)).ok().and_then(|reader| reader.view().ok())
    };
    until("rank 0 waits in its second collective", || {
        view(0).is_some_and(|view| (view.body.entered, view.body.left) == (2, 1))
    });
    until("rank 1 has left its first and entered no other", || {
        view(1).is_some_and(|view| (view.body.entered, view.body.left) == (1, 1))
    });
    let waiting = view(0).unwrap();
    let inside = waiting.ring.last().unwrap();
    assert_eq!(
        (tag_text(&inside.tag).as_str(), inside.count, inside.bytes, inside.left_ns),
        ("grad", 1000, 4000, 0)
    );
    assert_eq!(waiting.body.phase, Phase::Rendezvous as u64, "the loop sets the phases after this");
    let pid = ranks.pid(1);
    until("rank 1 is stopped", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });
    // SAFETY: the process is a child of this one and was not waited for yet.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    for end in ranks.wait(&[0, 1]) {
        assert_eq!(result(&end)["sum"], 2.0);
    }
}

#[test]
fn check_mode_names_the_first_difference() {
    let world = World::new("mismatch", 2).env("RANKDECK_CHECK_COLLECTIVES", 1);
    let results = world.start().results();
    for error in &results {
        assert_eq!(error["kind"], "Mismatch", "{error}");
        let text = message(error);
        assert!(text.contains("all_reduce \"collect_stats\" of 2 i64"), "{text}");
        assert!(text.contains("broadcast \"weights\" of 5 f32"), "{text}");
    }
}

fn with_lengths(lengths: &[i64]) -> Vec<Value> {
    let world =
        (0..).zip(lengths).fold(World::new("sizes", lengths.len() as u32), |world, (rank, length)| {
            world.env_of(rank, "DIST_LENGTH", length)
        });
    World { timeout: Duration::from_secs(30), ..world }.start().results()
}

/// DIST-3: over the ring.
#[test]
fn differing_lengths_are_an_error_without_exit() {
    for lengths in [[70_000, 70_000, 140_000], [140_000, 70_000, 70_000]] {
        let results = with_lengths(&lengths);
        let named: Vec<_> = results.iter().filter(|error| error["kind"] == "Mismatch").collect();
        assert!(!named.is_empty(), "{results:?}");
        let text = message(named[0]);
        assert_eq!(named[0]["collective"]["tag"], "grad", "{text}");
        assert!(text.contains("of 140000 f32 (sum)") && text.contains("of 70000 f32 (sum)"), "{text}");
    }
}

#[test]
fn different_lengths_between_two_ranks_name_both_calls() {
    for lengths in [[1, 17_500], [17_500, 1]] {
        for error in with_lengths(&lengths) {
            let text = message(&error);
            assert_eq!(error["kind"], "Mismatch", "{text}");
            assert!(text.contains("of 1 f32 (sum)") && text.contains("of 17500 f32 (sum)"), "{text}");
        }
    }
}

#[test]
fn check_mode_catches_lengths_before_sending() {
    let world = World::new("sizes", 2).env("RANKDECK_CHECK_COLLECTIVES", 1);
    let world = world.env_of(0, "DIST_LENGTH", 3).env_of(1, "DIST_LENGTH", 70_000);
    for error in world.start().results() {
        assert_eq!(error["kind"], "Mismatch", "{error}");
        let text = message(&error);
        assert!(text.contains("of 3 f32") && text.contains("of 70000 f32"), "{text}");
    }
}

/// DIST-2: neither the store's server nor its clients can be trusted to answer.
#[test]
fn frozen_rank_0_fails_the_rendezvous_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new("join", 3);
    (world.ranks, world.timeout, world.pages) =
        (vec![0, 1], Duration::from_secs(15), Some(folder.path().into()));
    let mut ranks = world.start();
    until("both have reached the store", || {
        [0, 1].iter().all(|rank| {
            StatusPageReader::open(&page_of(folder.path(), *rank))
                .and_then(|reader| reader.view())
                .is_ok_and(|view| view.body.phase_progress >= 2)
        })
    });
    let pid = ranks.pid(0);
    // SAFETY: the process is a child of this one and was not waited for yet.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let end = ranks.wait(&[1]).remove(0);
    let error = result(&end);
    assert_eq!(error["phase"], "Rendezvous", "{error}");
    assert_eq!(error["kind"], "Timeout", "{error}");
    assert!(error["after"].as_f64().unwrap() < 60.0, "{error}");
}

#[test]
fn leaving_alone_is_bounded() {
    let mut ranks = World::new("leave", 2).start();
    let ends = ranks.wait(&[0]);
    let error = result(&ends[0]);
    assert_eq!(error["phase"], "Teardown");
    assert_eq!(error["kind"], "Timeout", "{error}");
    assert!(error["after"].as_f64().unwrap() < 20.0);
}
