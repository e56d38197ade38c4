//! Ranks that are killed while others train (`distributed.on_rank_loss = "shrink"`): the others continue, a rank joins
//! again, and what cannot continue says why. Every rank is a process of its own, as agents start them.

use crate::harness::{Run, counters, errors, kill, totals};
use rankdeck_proto::message::{FinishReason, Membership, RankEvent};
use std::path::Path;

/// Divisible by 1, 2, 3 and 4.
const ENVS: u64 = 12;
const BATCH: u64 = ENVS * 128;
const LONG: u64 = 1_000_000_000;

fn text(total_steps: u64, rest: &str) -> String {
    format!(
        "[run]\nname = 'test'\ntotal_steps = {total_steps}\n[env]\nid = 'CartPole-v1'\nnum_envs = {ENVS}\n\
         [distributed]\non_rank_loss = 'shrink'\ntimeout_s = 60\n{rest}\n"
    )
}

fn ppo(rest: &str) -> String {
    text(LONG, &format!("[learn]\nalgorithm = 'ppo'\n{rest}"))
}

/// The ranks of a run, in one run directory.
struct World {
    ranks: Vec<Run>,
    text: String,
    folder: tempfile::TempDir,
    port: u16,
}

impl World {
    fn start(text: String, world_size: u32) -> World {
        let (folder, port) = (tempfile::tempdir().unwrap(), rankdeck_testkit::free_port());
        let mut world = World { ranks: Vec::new(), text, folder, port };
        for rank in 0..world_size {
            let run = world.rank(rank, world_size, &[]);
            world.ranks.push(run);
        }
        world
    }

    fn rank(&self, rank: u32, world_size: u32, env: &[(&str, &str)]) -> Run {
        let (rank, world_size, port) = (rank.to_string(), world_size.to_string(), self.port.to_string());
        let args = [
            "--rank",
            &rank,
            "--world-size",
            &world_size,
            "--local-rank",
            &rank,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            &port,
            "--run-dir",
            self.folder.path().to_str().unwrap(),
        ];
        let secret = [("RANKDECK_SECRET", "5e".repeat(32))];
        let mut all: Vec<(&str, &str)> = secret.iter().map(|(name, value)| (*name, value.as_str())).collect();
        all.extend(env);
        Run::start_with(&self.text, &args, &all)
    }

    /// Waits until the rank that reports for all has reported this iteration.
    fn trained(&self, reporter: usize, iteration: u64) {
        self.ranks[reporter].wait_for("progress", |events| {
            totals(events).last().is_some_and(|totals| totals.train_iter >= iteration)
        });
    }

    /// Kills a rank, which nothing notices beforehand.
    fn kill(&mut self, rank: usize) {
        kill(self.ranks[rank].pid(), libc::SIGKILL);
        assert_eq!(self.ranks[rank].wait().code(), None);
    }

    /// The change number `epoch`, as this rank has reported it.
    fn change(&self, reporter: usize, epoch: u32) -> Membership {
        let of_epoch =
            |events: &[(u32, RankEvent)]| changes(events).into_iter().find(|one| one.epoch == epoch);
        self.ranks[reporter].wait_for("change of the members", |events| of_epoch(events).is_some());
        of_epoch(&self.ranks[reporter].events()).unwrap()
    }

    /// Stops these ranks through one of them.
    fn stop(&mut self, ranks: &[usize]) {
        self.ranks[ranks[0]].signal(libc::SIGTERM);
        for rank in ranks {
            self.ranks[*rank].end_with(0);
            let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
            assert!(self.ranks[*rank].events().iter().any(|(_, event)| *event == stopped));
        }
    }
}

fn changes(events: &[(u32, RankEvent)]) -> Vec<Membership> {
    let pick = |(_, event): &(u32, RankEvent)| match event {
        RankEvent::Membership(change) => Some(change.clone()),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

fn numbers(ranks: &[rankdeck_types::ids::Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

/// What a group's reports must hold after a change: exact totals, and equal weights on as many ranks as are left
/// (REGROUP-1).
fn check_reports(run: &Run, change: &Membership) {
    let events = run.events();
    let at = events.iter().position(|(_, event)| *event == RankEvent::Membership(change.clone())).unwrap();
    let later = &events[at..];
    assert_eq!(change.steps, change.iteration * BATCH, "{change:?}");
    let totals = totals(later);
    assert!(!totals.is_empty());
    for total in &totals {
        assert_eq!(total.env_step, total.train_iter * BATCH, "{total:?}");
        assert!(total.train_iter > change.iteration);
    }
    let mut prints = 0;
    for (_, event) in later {
        let RankEvent::Fingerprint { values, equal, .. } = event else { continue };
        assert!(*equal && values.len() == change.ranks.len(), "{values:?}");
        prints += 1;
    }
    assert!(prints > 0);
}

fn saved_steps(folder: &Path) -> (u64, u64) {
    let bytes = std::fs::read(folder.join("checkpoints/latest.ckpt")).unwrap();
    let end = 16 + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[16..end]).unwrap();
    (header["train_iter"].as_u64().unwrap(), header["env_step"].as_u64().unwrap())
}

/// Each rank of two and of three, rank 0 among them; evaluations and checkpoints continue on another rank.
#[test]
fn survivors_continue_when_any_rank_is_killed() {
    for (world_size, victim) in [(2, 1), (2, 0), (3, 0), (3, 1), (3, 2)] {
        let rest = "[eval]\nevery = 40\nepisodes = 2\n[checkpoint]\nevery = 25";
        let mut world = World::start(ppo(rest), world_size);
        world.trained(0, 5);
        world.kill(victim);
        let left: Vec<usize> = (0..world_size as usize).filter(|rank| *rank != victim).collect();
        let change = world.change(left[0], 1);
        assert_eq!(numbers(&change.ranks), left.iter().map(|rank| *rank as u32).collect::<Vec<_>>());
        assert_eq!((numbers(&change.lost), numbers(&change.joined)), (vec![victim as u32], vec![]));
        assert!(change.seconds > 0.0 && change.store.is_some(), "{change:?}");
        let saves = |events: &[(u32, RankEvent)]| {
            let is_later = |event: &RankEvent| match event {
                RankEvent::Checkpoint { train_iter, .. } => *train_iter > change.iteration,
                _ => false,
            };
            events.iter().any(|(_, event)| is_later(event))
                && events.iter().any(
                    |(_, event)| matches!(event, RankEvent::Eval(eval) if eval.train_iter > change.iteration),
                )
        };
        world.ranks[left[0]].wait_for("a checkpoint and an evaluation", saves);
        world.stop(&left);
        check_reports(&world.ranks[left[0]], &change);
        // Counters of the lost rank are in those of the others.
        let last = totals(&world.ranks[left[0]].events()).last().copied().unwrap();
        let own = |rank: &usize| {
            let own = counters(&world.ranks[*rank].events(), *rank as u32);
            own.into_iter().rev().find(|own| own.train_iter == last.train_iter).unwrap()
        };
        assert_eq!(left.iter().map(|rank| own(rank).env_step).sum::<u64>(), last.env_step);
        assert_eq!(left.iter().map(|rank| own(rank).episodes).sum::<u64>(), last.episodes);
    }
}

/// Two of three at once; the checkpoint that the last one writes is continued by two ranks.
#[test]
fn last_rank_continues_and_its_checkpoint_resumes() {
    let mut world = World::start(ppo("[eval]\nevery = 0"), 3);
    world.trained(0, 5);
    for rank in [0, 2] {
        kill(world.ranks[rank].pid(), libc::SIGKILL);
    }
    let alone = |events: &[(u32, RankEvent)]| {
        changes(events).into_iter().find(|change| numbers(&change.ranks) == [1])
    };
    world.ranks[1].wait_for("the last rank alone", |events| alone(events).is_some());
    let change = alone(&world.ranks[1].events()).unwrap();
    world.trained(1, change.iteration + 3);
    world.stop(&[1]);
    check_reports(&world.ranks[1], &change);
    let (iteration, steps) = saved_steps(world.folder.path());
    assert_eq!(steps, iteration * BATCH);
    let resumed = text(steps + 2 * BATCH, "[learn]\nalgorithm = 'ppo'\n[eval]\nevery = 0");
    let latest = world.folder.path().join("checkpoints/latest.ckpt");
    let mut run = Run::start(&resumed, &["--spawn", "2", "--resume", latest.to_str().unwrap()]);
    run.end_with(0);
    assert_eq!(totals(&run.events()).last().unwrap().env_step, steps + 2 * BATCH, "{}", run.logs());
}

/// Rank 0 is killed, started again, and reports for all as before; then another one is killed.
#[test]
fn killed_rank_joins_again() {
    let mut world = World::start(ppo("[eval]\nevery = 0"), 3);
    world.trained(0, 5);
    world.kill(0);
    let change = world.change(1, 1);
    let (epoch, store) = (change.epoch.to_string(), change.store.clone().unwrap());
    let env = [("RANKDECK_JOIN", epoch.as_str()), ("RANKDECK_STORE", store.as_str())];
    world.ranks[0] = world.rank(0, 3, &env);
    let joined = world.change(0, 2);
    assert_eq!((numbers(&joined.ranks), numbers(&joined.joined)), (vec![0, 1, 2], vec![0]));
    assert_eq!((numbers(&joined.lost), joined.steps_lost), (vec![], 0));
    assert!(joined.iteration > change.iteration);
    world.trained(0, joined.iteration + 3);
    check_reports(&world.ranks[0], &joined);
    world.kill(1);
    let again = world.change(0, 3);
    assert_eq!((numbers(&again.ranks), numbers(&again.lost)), (vec![0, 2], vec![1]));
    world.trained(0, again.iteration + 3);
    world.stop(&[0, 2]);
    check_reports(&world.ranks[0], &again);
}

/// 27 transitions cannot be split over two ranks: both say so, and end with the code for it.
#[test]
fn run_that_cannot_shrink_says_why() {
    let learn = "[learn]\nalgorithm = 'dqn'\nbatch_size = 27\nbuffer_size = 3000\nlearning_starts = 100\n\
                 [eval]\nevery = 0";
    let mut world = World::start(text(LONG, learn), 3);
    world.trained(0, 5);
    world.kill(1);
    for rank in [0, 2] {
        world.ranks[rank].end_with(rankdeck_types::exit::CANNOT_SHRINK);
        let errors = errors(&world.ranks[rank].events());
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        assert!(error.message.contains("cannot continue") && !error.hint.is_empty(), "{error:?}");
    }
}

/// The rank that is left keeps its replay, and learns again.
#[test]
fn off_policy_ranks_continue_with_their_replay() {
    let learn = "[learn]\nalgorithm = 'dqn'\nbatch_size = 24\nbuffer_size = 3000\nlearning_starts = 200\n\
                 [eval]\nevery = 0";
    let mut world = World::start(text(LONG, learn), 2);
    world.trained(0, 20);
    world.kill(0);
    let change = world.change(1, 1);
    let updates = |events: &[(u32, RankEvent)]| totals(events).last().map_or(0, |totals| totals.updates);
    world.trained(1, change.iteration + 1);
    let before = updates(&world.ranks[1].events());
    world.ranks[1].wait_for("updates", |events| updates(events) > before);
    world.stop(&[1]);
    assert!(world.ranks[1].logs().contains("replay continues with "), "{}", world.ranks[1].logs());
}

/// `--spawn` leaves the ranks alone that continue.
#[test]
fn spawned_ranks_continue_without_a_killed_one() {
    let mut run = Run::start(&ppo("[eval]\nevery = 0"), &["--spawn", "3"]);
    run.wait_for("progress", |events| totals(events).last().is_some_and(|totals| totals.train_iter >= 5));
    kill(run.rank_pid(1), libc::SIGKILL);
    run.wait_for("the change", |events| {
        changes(events).iter().any(|change| numbers(&change.ranks) == [0, 2])
    });
    run.signal(libc::SIGTERM);
    run.end_with(0);
}
