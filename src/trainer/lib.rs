//! The built-in trainer: process group, DDP, environments, algorithms.
//!
//! An iteration ([`training`]): an algorithm of [`algo`] steps its environments and learns, with gradients
//! averaged by [`distributed`]. [`training::exchange`] computes totals and decisions that all ranks share.
//! Rank 0 [evaluates](play::evaluate) and writes a [`checkpoint`] of the algorithm's
//! [`state`](support::state). The [`training::reporter`] sends [`support::events`] to the agent and writes
//! TensorBoard files.
//!
//! Modules depend on each other in one direction: `support`, `inject`, `distributed`, `startup`, `policy`,
//! `replay`, `collect`, `algo`, `checkpoint`, `play`, `training`.
//!
//! Invariants:
//! - Every branch that changes the number of collectives depends on reduced or broadcast values,
//!   or on counters that are equal on all ranks.
//! - All ranks leave at the same place: after an iteration, or within a long one, which is undone then
//!   ([`algo::stop_points`]).
//! - Rank 0 alone writes into the run directory; other ranks add their replay, when that is asked
//!   for.

pub mod algo;
pub mod checkpoint;
pub mod collect;
pub mod distributed;
pub mod error;
pub(crate) mod host_check;
pub(crate) mod inject;
pub mod play;
pub mod policy;
pub mod replay;
pub mod startup;
pub mod support;
pub(crate) mod training;

#[cfg(test)]
rankdeck_testkit::end_without_destructors!();

pub use rankdeck_envs as env;

use error::TrainerError;
use rankdeck_proto::message::{FinishReason, RankEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::OnRankLoss;
use rankdeck_types::ids::{Generation, Rank};
use startup::identity::{self, Flags, RankIdentity};
use startup::{last_resort, spawn};
use std::time::Duration;
use support::events::{EventSender, print_line, warn};
use support::signals;

/// How long a rank waits at its end for the agent to take its last events.
const FINISH: Duration = Duration::from_secs(5);

/// Files that a rank may need to have open, and for each rank of the group.
const FILES: u64 = 128;
const FILES_EACH: u64 = 6;

/// The whole program; returns its exit code: 0 finished or stopped, 1 failure, 2 usage.
pub fn main(flags: &Flags) -> u8 {
    let env = |key: &str| std::env::var(key).ok();
    allow_all_open_files();
    keep_ended_children();
    if flags.check_env.is_some() || flags.setup_env.is_some() || flags.check_gpu {
        return host_check::run(flags).map(|()| 0).unwrap_or_else(|error| {
            complain("rankdeck-trainer", &error);
            error.exit_code()
        });
    }
    if let Some(checkpoint) = &flags.evaluate {
        return play::command::run(checkpoint, flags).map(|()| 0).unwrap_or_else(|error| {
            complain("rankdeck-trainer", &error);
            error.exit_code()
        });
    }
    if let Some(world_size) = flags.spawn {
        let shrinks = flags.all_reduce.is_none()
            && rankdeck_launcher::load_experiment(&flags.config).is_ok_and(|experiment| {
                // Who cannot read the file says so in each rank.
                experiment.distributed.on_rank_loss == OnRankLoss::Shrink
            });
        match identity::check_spawn(&env).and_then(|()| spawn::run(world_size, shrinks)) {
            Ok(spawn::SpawnRole::Rank) => {}
            Ok(spawn::SpawnRole::Parent(code)) => return code,
            Err(error) => {
                complain("rankdeck-trainer", &error);
                return error.exit_code();
            }
        }
    }
    #[cfg(feature = "inject")]
    match flags.inject.iter().map(|text| text.parse()).collect() {
        Ok(faults) => inject::order(faults),
        Err(error) => {
            complain(
                "rankdeck-trainer",
                &TrainerError::usage(error, "run `rankdeck-trainer --help` for the format"),
            );
            return 2;
        }
    }
    match RankIdentity::resolve(flags, &env) {
        Ok(identity) => match flags.all_reduce {
            None => rank(&identity),
            Some(largest) => {
                host_check::time_all_reduces(&identity, largest).map(|()| 0).unwrap_or_else(|error| {
                    complain(&format!("rank {}", identity.rank), &error);
                    error.exit_code()
                })
            }
        },
        Err(error) => {
            complain("rankdeck-trainer", &error);
            let rank = env("RANKDECK_RANK").or_else(|| env("RANK"));
            let events = env("RANKDECK_EVENTS").zip(rank.and_then(|rank| rank.parse().ok()));
            if let Some((path, rank)) = events {
                let generation = env("RANKDECK_GENERATION").and_then(|text| text.parse().ok()).unwrap_or(0);
                let events = EventSender::to(path.as_ref(), Rank(rank), Generation(generation));
                events.send(&event(&error));
                events.finish(FINISH);
            }
            error.exit_code()
        }
    }
}

/// Raises the soft limit of open files to the hard one: connections of a large group need more than the usual
/// soft limit. Where that is refused, the old limit stays.
fn allow_all_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one valid rlimit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Some launchers ignore SIGCHLD, which a program inherits: the kernel then reaps its children before it
/// learns how they ended.
fn keep_ended_children() {
    // SAFETY: the default action of a signal; no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// How many files this process may have open at once.
pub(crate) fn open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the one valid rlimit.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Warns if the open file limit may be too low for the connections of all ranks and a checkpoint.
fn warn_of_few_files(identity: &RankIdentity) {
    let (files, least) = (open_files(), FILES + FILES_EACH * u64::from(identity.world_size));
    if files < least {
        warn(&format!(
            "rank {}: the open file limit is {files}, but {} ranks may need {least}; raise `nofile` in /etc/security/limits.conf, or run `ulimit -n` in `prelude`",
            identity.rank, identity.world_size
        ));
    }
}

fn rank(identity: &RankIdentity) -> u8 {
    warn_of_few_files(identity);
    let events = match &identity.events {
        Some(path) => EventSender::to(path, Rank(identity.rank), Generation(identity.generation)),
        None => EventSender::silent(),
    };
    last_resort::arm(identity.rank, &events);
    distributed::set_exit_handler(|error| last_resort::end(&error.into()));
    let code = match training::run(identity, &events, signals::install) {
        Ok(reason) => {
            events.send(&RankEvent::Finished { reason });
            print_line(&format!("rank {} finished: {}", identity.rank, describe(reason)));
            0
        }
        Err(error) => {
            last_resort::report(&error);
            error.exit_code()
        }
    };
    if !events.finish(FINISH) {
        warn(&format!(
            "rank {}: the last events were not delivered to the agent within {FINISH:?}",
            identity.rank
        ));
    }
    if events.lost() > 0 {
        warn(&format!(
            "rank {}: {} events were dropped while the agent was not reading",
            identity.rank,
            events.lost()
        ));
    }
    code
}

fn describe(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::StopValue => "stop value reached",
        FinishReason::Budget => "all steps are done",
        FinishReason::Stopped => "stopped on request",
    }
}

fn event(error: &TrainerError) -> RankEvent {
    let HintedError { error: message, hint } = error.hinted.clone();
    RankEvent::Error { message, hint, usage: error.usage, failure: Some(error.kind) }
}

fn complain(who: &str, error: &TrainerError) {
    warn(&format!("{who}: error: {error}"));
    if !error.hint().is_empty() {
        warn(&format!("{who}: hint: {}", error.hint()));
    }
}
