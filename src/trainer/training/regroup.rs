//! Continues in another group when a rank is lost or joins (`distributed.on_rank_loss = "shrink"`).
//!
//! Every rank keeps what it needs to go back to the latest iterations after which all ranks had the same weights
//! ([`Snapshots`]). When the members of the group change ([`crate::distributed::membership`]), they go back to one that
//! all of them hold, and share what they know of it ([`gather`]): weights, optimizers, normalizers and the loop's own
//! state come from one rank, environments and counters from the rank that had them. The new group splits the
//! environments as a checkpoint is split that is resumed at another world size.
//!
//! Invariants:
//! - REGROUP-1: the members continue from equal weights. An iteration after which fingerprints differ is not kept, and
//!   all members take the state of one.
//! - REGROUP-2: totals are those of that iteration: what a lost rank had done until then counts, what came later does
//!   not.
//! - REGROUP-3: an environment that a member had continues in the same step. Those of a lost rank begin new episodes.
//! - REGROUP-4: two snapshots are enough: no rank ends an iteration before all ranks have ended the one before.

use super::Launch;
use crate::algo::{Algorithm, BuildContext};
use crate::checkpoint::{Checkpoint, CheckpointMetadata};
use crate::distributed::group::Reformation;
use crate::distributed::membership::{AgreementTerms, GroupView, Members, changes};
use crate::distributed::{GroupSettings, ProcessGroup};
use crate::error::TrainerError;
use crate::startup::setup::Sizes;
use crate::support::events::print_line;
use crate::support::state::{AlgorithmState, RankCounters, RestoredState};
use rankdeck_proto::message::Membership;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Experiment, LostHost};
use rankdeck_types::ids::Rank;
use rankdeck_types::plan::size_problem;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// Between two snapshots, at least.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(50);
/// They take at most one part in so many of the time.
const SNAPSHOT_SHARE: u32 = 20;
/// Limit of forming a group again.
const FORMING: Duration = Duration::from_secs(3);
/// Groups in a row that may fail before an iteration ends, besides two for each rank.
const FAILURES: u32 = 4;

/// What a rank goes back to.
pub(super) struct Snapshot {
    /// As a checkpoint of this iteration has it, without what the ranks own.
    pub header: CheckpointMetadata,
    pub state: AlgorithmState,
    /// This rank's own.
    pub counters: RankCounters,
    /// Over all ranks.
    pub totals: RankCounters,
    /// Global index of this rank's first environment.
    pub first_env: u32,
    /// Iterations in all, with the environments of this group.
    pub num_iterations: Option<u64>,
    /// The checkpoint of this iteration is still to be written.
    pub checkpoint_due: bool,
    /// The iteration of the latest checkpoint.
    pub saved: Option<u64>,
}

/// The latest snapshots of this rank, oldest first.
#[derive(Default)]
pub(super) struct Snapshots {
    kept: VecDeque<Snapshot>,
    /// When the latest one was taken, and how long that took.
    latest: Option<(Instant, Duration)>,
}

impl Snapshots {
    /// REGROUP-4.
    const MOST: usize = 2;

    /// Adds one, which replaces that of the same iteration; `took`: how long it took to make.
    pub(super) fn push(&mut self, snapshot: Snapshot, took: Duration) {
        self.kept.retain(|kept| kept.header.train_iter < snapshot.header.train_iter);
        self.kept.push_back(snapshot);
        while self.kept.len() > Snapshots::MOST {
            self.kept.pop_front();
        }
        self.latest = Some((Instant::now(), took));
    }

    /// Another one is due, by this rank's clock.
    pub(super) fn is_due(&self) -> bool {
        self.latest.is_none_or(|(at, took)| at.elapsed() >= SNAPSHOT_EVERY.max(SNAPSHOT_SHARE * took))
    }

    /// Changes what the latest one says about evaluations and checkpoints.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut Snapshot)) {
        if let Some(latest) = self.kept.back_mut() {
            change(latest);
        }
    }

    fn iterations(&self) -> Vec<u64> {
        self.kept.iter().map(|snapshot| snapshot.header.train_iter).collect()
    }

    fn of(&self, iteration: u64) -> Option<&Snapshot> {
        self.kept.iter().find(|snapshot| snapshot.header.train_iter == iteration)
    }
}

/// A rank's means to continue without others.
pub(super) struct Survival {
    pub members: Members,
    pub snapshots: RefCell<Snapshots>,
    /// What only this rank has, on its way to the next group.
    pub own: RefCell<Option<Box<dyn Any>>>,
    /// Members of the latest group that has trained, or was about to.
    ranks: RefCell<Vec<u32>>,
    /// Whether so many ranks can share the experiment.
    can_split: Vec<bool>,
    /// Groups that were formed since the latest iteration ended.
    failures: Cell<u32>,
}

impl Survival {
    /// Of a run that was launched with so many ranks.
    pub(super) fn new(members: Members, experiment: &Experiment, world_size: u32) -> Survival {
        let can_split = |ranks| ranks > 0 && shared_experiment(experiment, ranks).is_ok();
        let ranks = RefCell::new((0..world_size).collect());
        Survival {
            members,
            snapshots: RefCell::default(),
            own: RefCell::default(),
            ranks,
            can_split: (0..=world_size).map(can_split).collect(),
            failures: Cell::new(0),
        }
    }

    /// A rank waits that can join a group of so many ranks.
    pub(super) fn joins(&self, ranks: u32) -> bool {
        let (ranks, waiting) = (ranks as usize, self.members.waiting());
        (ranks + 1..=ranks + waiting).any(|ranks| self.can_split.get(ranks).is_some_and(|can| *can))
    }

    /// An iteration has ended in this group.
    pub(super) fn settle(&self) {
        self.failures.set(0);
    }
}

/// What the members of a new group have shared.
pub(super) struct Regrouped {
    /// State and header, as one rank has them; its ranks' words are the totals.
    pub checkpoint: Checkpoint,
    /// Environments that members have, by their global indices.
    environments: BTreeMap<u32, Vec<u64>>,
    /// This rank's own, from here on.
    counters: RankCounters,
    pub checkpoint_due: bool,
    pub saved: Option<u64>,
    /// The report of the change; its duration is up to the moment of [`Regrouped::shared_at`].
    membership: Membership,
    shared_at: Instant,
}

impl Regrouped {
    /// Restores the algorithm of this rank in the new group; whether some of its environments begin new episodes.
    pub(super) fn take_over(
        &self,
        algorithm: &mut dyn Algorithm,
        build: &BuildContext<'_>,
    ) -> Result<bool, TrainerError> {
        let fresh = algorithm.state()?;
        self.checkpoint.fits(Path::new("of the other ranks"), &fresh)?;
        let mut lost = build.sizes.local_envs;
        let mut envs = None;
        if fresh.words_per_env > 0 && fresh.unsaved.is_none() {
            let mut words = fresh.envs;
            for (own, index) in words.chunks_mut(fresh.words_per_env).zip(build.sizes.first_env..) {
                if let Some(known) = self.environments.get(&index).filter(|known| known.len() == own.len()) {
                    own.copy_from_slice(known);
                    lost -= 1;
                }
            }
            envs = Some(words);
        }
        algorithm.restore(&RestoredState {
            arrays: self.checkpoint.arrays.clone(),
            words: self.checkpoint.words.clone(),
            counters: self.counters,
            envs,
        })?;
        Ok(lost > 0)
    }

    /// The report of the change, now that the group is about to train.
    pub(super) fn membership(&self) -> Membership {
        let seconds = self.membership.seconds + self.shared_at.elapsed().as_secs_f64();
        Membership { seconds, ..self.membership.clone() }
    }
}

/// One line about a change.
pub(super) fn describe(change: &Membership) -> String {
    let list = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    for (ranks, what) in [(&change.lost, "lost"), (&change.joined, "joined")] {
        if !ranks.is_empty() {
            parts.push(format!("{what}: rank {}", list(ranks)));
        }
    }
    if parts.is_empty() {
        parts.push("same members".to_owned());
    }
    format!(
        "group {}: {}; ranks {} continue after iteration {} ({:.2} s, {} steps discarded)",
        change.epoch,
        parts.join("; "),
        list(&change.ranks),
        change.iteration,
        change.seconds,
        change.steps_lost
    )
}

/// The experiment as `world` ranks can share it: with all environments, or with the most that can be split evenly.
///
/// Errors: no number of environments can be split.
pub(super) fn shared_experiment(experiment: &Experiment, world: u32) -> Result<Experiment, HintedError> {
    let world = world.max(1);
    let all = experiment.env.as_ref().map_or(0, |env| env.num_envs);
    let mut problem = None;
    let counts = std::iter::once(all).chain((1..=all / world).rev().map(|local| local * world));
    for num_envs in counts {
        let mut shared = experiment.clone();
        if let Some(env) = &mut shared.env {
            env.num_envs = num_envs;
        }
        match size_problem(&shared, world.into()) {
            None => return Ok(shared),
            Some(found) => problem.get_or_insert(found.cause),
        };
    }
    Err(problem
        .unwrap_or_else(|| HintedError::new("the experiment has no environments", "set `env.num_envs`")))
}

/// Iterations in all after a regroup: as before with the same environments, else those that the remaining steps allow.
fn iterations_in_all(
    experiment: &Experiment,
    sizes: &Sizes,
    before: (u32, Option<u64>),
    header: &CheckpointMetadata,
) -> Option<u64> {
    let num_envs = experiment.env.as_ref().map_or(0, |env| env.num_envs);
    match (before, experiment.run.total_steps) {
        ((same, all), _) if same == num_envs => all,
        (_, 0) => None,
        (_, total) => Some(header.train_iter + total.saturating_sub(header.env_step) / sizes.batch.max(1)),
    }
}

/// What one rank tells all others.
#[derive(Default, Serialize, Deserialize)]
struct SharedState {
    bytes: usize,
    num_envs: u32,
    num_iterations: Option<u64>,
    checkpoint_due: bool,
    saved: Option<u64>,
    /// Ranks that are no longer in the group, and those that are new.
    lost: Vec<u32>,
    joined: Vec<u32>,
    /// Since the change was noticed.
    seconds: f64,
}

/// Words of each rank in the first exchange: whether it has a state, its environments, their words, its counters, and
/// the steps that it discards.
const HEAD: usize = 5 + RankCounters::WORDS;

/// Shares the state of the iteration that `snapshot` is of; `None`: this rank has none, since it joins. Collectives
/// with the tag `regroup`, the same on all ranks.
fn gather(
    group: &ProcessGroup,
    snapshot: Option<&Snapshot>,
    (view, before, since): (&GroupView, &[u32], Instant),
    (discarded, device): (u64, Device),
) -> Result<(Regrouped, (u32, Option<u64>)), TrainerError> {
    let root = view.index_of(view.leader).unwrap_or(0);
    let mut head = vec![0; HEAD];
    let mut envs: &[u64] = &[];
    if let Some(Snapshot { state, counters, first_env, .. }) = snapshot {
        if state.unsaved.is_none() && state.words_per_env > 0 {
            envs = &state.envs;
        }
        head[..5].copy_from_slice(&[
            1,
            u64::from(*first_env),
            envs.len() as u64,
            state.words_per_env as u64,
            discarded,
        ]);
        head[5..].copy_from_slice(&counters.to_words());
    }
    let heads = group.all_gather_words(&head, "regroup")?;
    let width = heads.iter().map(|head| head[2]).max().unwrap_or(0) as usize;
    let mut environments = BTreeMap::new();
    if width > 0 {
        let mut own = envs.to_vec();
        own.resize(width, 0);
        for (head, words) in heads.iter().zip(group.all_gather_words(&own, "regroup")?) {
            let (first, count, each) = (head[1] as u32, head[2] as usize, head[3] as usize);
            let chunks = words.get(..count).unwrap_or_default().chunks_exact(each.max(1));
            environments.extend((first..).zip(chunks.map(<[u64]>::to_vec)));
        }
    }
    let (mut shared, mut bytes) = (SharedState::default(), Vec::new());
    if let Some(snapshot) = snapshot.filter(|_| group.rank() == root) {
        let header = CheckpointMetadata {
            world_size: 1,
            words_per_rank: RankCounters::WORDS,
            words_per_env: 0,
            ..snapshot.header.clone()
        };
        let checkpoint = Checkpoint {
            header,
            arrays: snapshot.state.arrays.clone(),
            words: snapshot.state.words.clone(),
            ranks: snapshot.totals.to_words().to_vec(),
        };
        bytes = checkpoint.encode()?;
        let (lost, joined) = changes(before, view);
        shared = SharedState {
            bytes: bytes.len(),
            num_envs: snapshot.header.num_envs,
            num_iterations: snapshot.num_iterations,
            checkpoint_due: snapshot.checkpoint_due,
            saved: snapshot.saved,
            lost,
            joined,
            seconds: since.elapsed().as_secs_f64(),
        };
    }
    group.broadcast_object(&mut shared, root, "regroup")?;
    bytes.resize(shared.bytes, 0);
    let mut tensor = Tensor::f_from_slice(&bytes)?.f_to_device(device)?;
    group.broadcast(&mut tensor, root, "regroup")?;
    tensor.f_to_device(Device::Cpu)?.f_copy_data(&mut bytes, shared.bytes)?;
    let checkpoint = Checkpoint::decode(&bytes).map_err(|what| {
        TrainerError::failure(format!("the state of rank {} {what}", view.leader), "restart the run")
    })?;
    let totals = RankCounters::from_words(&checkpoint.ranks);
    // REGROUP-2: what lost ranks had done stays in the totals, with the rank that shares its state.
    let own = |head: &[u64]| RankCounters::from_words(head.get(5..).unwrap_or_default());
    let mut counters = own(&head);
    if group.rank() == root {
        let members = heads.iter().map(|head| own(head)).fold(RankCounters::default(), RankCounters::plus);
        counters = counters.plus(totals.minus(members));
    }
    let named = |ranks: Vec<u32>| ranks.into_iter().map(Rank).collect::<Vec<_>>();
    let membership = Membership {
        epoch: view.epoch,
        ranks: named(view.ranks()),
        lost: named(shared.lost),
        joined: named(shared.joined),
        iteration: checkpoint.header.train_iter,
        steps: totals.env_step,
        steps_lost: heads.iter().map(|head| head[4]).sum(),
        seconds: shared.seconds,
        store: view.entrance().map(|address| address.to_string()),
    };
    let before = (shared.num_envs, shared.num_iterations);
    let regrouped = Regrouped {
        checkpoint,
        environments,
        counters,
        checkpoint_due: shared.checkpoint_due,
        saved: shared.saved,
        membership,
        shared_at: Instant::now(),
    };
    Ok((regrouped, before))
}

/// The next group, ready to train.
pub(super) struct NextGroup {
    pub group: ProcessGroup,
    pub experiment: Experiment,
    pub sizes: Sizes,
    pub regrouped: Regrouped,
}

impl Launch<'_> {
    /// Agrees on the next group with the ranks that are left, or joins one, and forms it. `cause`: what ended the
    /// group before; `None`: a rank joins.
    ///
    /// Errors: a kind that [`Launch::survives`] when yet another rank is lost meanwhile; else this rank cannot
    /// continue.
    pub(super) fn regroup(
        &self,
        survival: &Survival,
        cause: Option<&TrainerError>,
    ) -> Result<NextGroup, TrainerError> {
        let since = Instant::now();
        let settings = &self.settings;
        let (rank, world_size) = (self.identity.rank, self.identity.world_size);
        let failures = survival.failures.get();
        survival.failures.set(failures + 1);
        let cannot = |refusal: HintedError| {
            let why = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
            TrainerError::cannot_shrink(HintedError::new(
                format!("rank {rank} cannot continue without the lost rank: {refusal}{why}"),
                refusal.hint.clone(),
            ))
        };
        if failures > FAILURES + 2 * world_size {
            return Err(cannot(HintedError::new(
                format!("{failures} groups in a row have failed"),
                "restart the run, and check the logs of all ranks for the first error",
            )));
        }
        if let Some(cause) = cause {
            print_line(&format!("rank {rank}: {cause}: agreeing on the ranks that are left"));
        }
        let done = self.page.lock().body().env_step;
        let snapshots = survival.snapshots.borrow();
        let mut agreement = match (&self.identity.join, snapshots.iterations().as_slice()) {
            (Some(target), []) if survival.members.view().members.is_empty() => {
                let joined = survival.members.join(target.entrance, settings.timeout);
                joined.map_err(|error| TrainerError::failure(error.error, error.hint))?
            }
            (_, held) => {
                let terms = AgreementTerms {
                    limit: settings.timeout,
                    is_planned: cause.is_none(),
                    excludes_hosts: self.experiment.restart.lost_host == LostHost::Exclude,
                    can_split: &survival.can_split,
                };
                survival.members.agree(held, &terms).map_err(cannot)?
            }
        };
        let view = agreement.view;
        let (index, members) = (view.index_of(rank).unwrap_or(0), view.members.len() as u32);
        let experiment = shared_experiment(self.experiment, members).map_err(cannot)?;
        let mut sizes = Sizes::resolve(&experiment, index, members).map_err(|error| cannot(error.hinted))?;
        let reformation = Reformation {
            identity: (rank, world_size),
            epoch: view.epoch,
            nonce: view.nonce,
            place: view.store,
            listener: agreement.listener.take(),
        };
        let settings = GroupSettings { rank: index, world_size: members, ..settings.clone() };
        let group = ProcessGroup::reform(&settings, reformation, self.page.clone(), FORMING)?;
        survival.members.watch();
        let snapshot = snapshots.of(view.iteration);
        let discarded = snapshot.map_or(0, |snapshot| done.saturating_sub(snapshot.counters.env_step));
        let before = survival.ranks.borrow().clone();
        let change = (&view, before.as_slice(), since);
        match gather(&group, snapshot, change, (discarded, settings.device)) {
            Ok((regrouped, before)) => {
                sizes.num_iterations =
                    iterations_in_all(&experiment, &sizes, before, &regrouped.checkpoint.header);
                *survival.ranks.borrow_mut() = view.ranks();
                Ok(NextGroup { group, experiment, sizes, regrouped })
            }
            Err(error) => {
                group.abandon();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(num_envs: u32, rest: &str) -> Experiment {
        toml::from_str(&format!(
            "[run]\nname = 'x'\ntotal_steps = 100000\n[env]\nid = 'CartPole-v1'\nnum_envs = {num_envs}\n\
             [learn]\nalgorithm = 'ppo'\n{rest}\n"
        ))
        .unwrap()
    }

    fn envs(shared: &Experiment) -> u32 {
        shared.env.as_ref().unwrap().num_envs
    }

    #[test]
    fn environments_are_kept_if_they_can_be_split() {
        for (all, world, expected) in [(8, 2, 8), (8, 1, 8), (6, 3, 6), (8, 3, 6), (9, 2, 8), (4, 3, 3)] {
            let shared = shared_experiment(&experiment(all, ""), world).unwrap();
            assert_eq!(envs(&shared), expected, "{all} environments, {world} ranks");
        }
        let doubled = shared_experiment(&experiment(8, "[collect]\ndouble_buffer = true"), 3).unwrap();
        assert_eq!(envs(&doubled), 6, "two in each rank, in two halves");
        assert!(shared_experiment(&experiment(2, ""), 3).is_err());
    }

    #[test]
    fn remaining_steps_decide_iterations_of_fewer_environments() {
        let header =
            CheckpointMetadata { train_iter: 10, env_step: 10 * 8 * 128, ..CheckpointMetadata::default() };
        let six = experiment(6, "");
        let sizes = Sizes::resolve(&six, 0, 3).unwrap();
        let all = iterations_in_all(&six, &sizes, (8, Some(97)), &header).unwrap();
        assert_eq!(all, 10 + (100_000 - 10 * 8 * 128) / (6 * 128));
        let eight = experiment(8, "");
        let sizes = Sizes::resolve(&eight, 0, 2).unwrap();
        assert_eq!(iterations_in_all(&eight, &sizes, (8, Some(97)), &header), Some(97));
    }

    fn snapshot(train_iter: u64) -> Snapshot {
        Snapshot {
            header: CheckpointMetadata { train_iter, ..CheckpointMetadata::default() },
            state: AlgorithmState::default(),
            counters: RankCounters::default(),
            totals: RankCounters::default(),
            first_env: 0,
            num_iterations: None,
            checkpoint_due: true,
            saved: None,
        }
    }

    #[test]
    fn regroup_4_two_latest_snapshots_are_kept() {
        let mut snapshots = Snapshots::default();
        assert!(snapshots.is_due());
        for train_iter in [0, 3, 7, 7] {
            snapshots.push(snapshot(train_iter), Duration::ZERO);
        }
        assert_eq!(snapshots.iterations(), [3, 7]);
        snapshots.update(|latest| latest.checkpoint_due = false);
        assert!(snapshots.of(3).unwrap().checkpoint_due && !snapshots.of(7).unwrap().checkpoint_due);
        // A group that went back takes them again.
        snapshots.push(snapshot(3), Duration::from_secs(60));
        assert_eq!(snapshots.iterations(), [3]);
        assert!(!snapshots.is_due(), "the next one may take a minute, too");
        assert!(snapshots.of(7).is_none());
    }

    /// REGROUP-2, REGROUP-3: rank 1 of three is lost, and rank 3 joins at the same time.
    #[test]
    fn regroup_2_totals_are_exact_and_environments_kept() {
        use crate::distributed::membership::Member;
        use crate::distributed::{BackendKind, GroupSettings};
        use crate::support::page::StatusPage;
        use rankdeck_proto::status_page::StatusPageWriter;
        const EACH: usize = 3;
        let counters = |rank: u64| RankCounters::from_words(&[100 * rank + 100, 90 * rank, rank, 7]);
        let totals = (0..3).map(counters).fold(RankCounters::default(), RankCounters::plus);
        let words = |env: u32| -> Vec<u64> { (0..EACH as u64).map(|i| u64::from(env) * 10 + i).collect() };
        let members = [0, 2, 3].map(|rank| Member { rank, address: ([127, 0, 0, 1], 9).into() });
        let view = GroupView {
            epoch: 4,
            nonce: 1,
            parent: 0,
            members: members.to_vec(),
            iteration: 5,
            leader: 2,
            store: None,
        };
        let port = rankdeck_testkit::free_port();
        let shared = |index: u32| {
            let rank = view.members[index as usize].rank;
            let settings = GroupSettings {
                rank: index,
                world_size: 3,
                local_rank: index,
                master_addr: "127.0.0.1".into(),
                master_port: port,
                backend: BackendKind::Tcp,
                timeout: Duration::from_secs(60),
                shared_memory: true,
                interface: None,
                generation: 0,
                secret: None,
                device: Device::Cpu,
                interrupt: None,
            };
            let page = StatusPage::new(StatusPageWriter::anonymous(rank, 0).unwrap());
            let group = ProcessGroup::connect(&settings, page).unwrap();
            let own = (rank < 3).then(|| Snapshot {
                header: CheckpointMetadata {
                    train_iter: 5,
                    env_step: totals.env_step,
                    num_envs: 6,
                    ..CheckpointMetadata::default()
                },
                state: AlgorithmState {
                    envs: (2 * rank..2 * rank + 2).flat_map(words).collect(),
                    words_per_env: EACH,
                    ..AlgorithmState::default()
                },
                counters: counters(rank.into()),
                totals,
                first_env: 2 * rank,
                num_iterations: Some(50),
                checkpoint_due: false,
                saved: Some(4),
            });
            let change = (&view, &[0, 1, 2][..], Instant::now());
            let (regrouped, before) =
                gather(&group, own.as_ref(), change, (u64::from(rank), Device::Cpu)).unwrap();
            group.destroy(Duration::from_secs(30)).unwrap();
            (regrouped, before)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let shared = &shared;
            let threads: Vec<_> = (0..3).map(|index| scope.spawn(move || shared(index))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sum = all.iter().map(|(own, _)| own.counters).fold(RankCounters::default(), RankCounters::plus);
        assert_eq!(sum, totals);
        assert_eq!(all[0].0.counters, counters(0), "its own alone");
        assert_eq!(all[1].0.counters, counters(2).plus(counters(1)), "the leader has the lost rank's, too");
        assert_eq!(all[2].0.counters, RankCounters::default());
        let kept: BTreeMap<u32, Vec<u64>> = [0, 1, 4, 5].map(|env| (env, words(env))).into();
        for (regrouped, before) in &all {
            assert_eq!((&regrouped.environments, *before), (&kept, (6, Some(50))));
            assert_eq!((regrouped.saved, regrouped.checkpoint.header.train_iter), (Some(4), 5));
            let change = regrouped.membership();
            let ranks = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
            assert_eq!((ranks(&change.ranks), ranks(&change.lost)), (vec![0, 2, 3], vec![1]));
            assert_eq!((ranks(&change.joined), change.epoch, change.iteration), (vec![3], 4, 5));
            assert_eq!(
                (change.steps, change.steps_lost),
                (totals.env_step, 2),
                "a rank that joins has lost none"
            );
        }
    }

    #[test]
    fn change_is_one_line() {
        let change = Membership {
            epoch: 2,
            ranks: vec![Rank(0), Rank(2)],
            lost: vec![Rank(1)],
            iteration: 40,
            steps_lost: 512,
            seconds: 0.081,
            ..Membership::default()
        };
        assert_eq!(
            describe(&change),
            "group 2: lost: rank 1; ranks 0, 2 continue after iteration 40 (0.08 s, 512 steps discarded)"
        );
    }
}
