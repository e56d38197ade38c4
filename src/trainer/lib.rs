//! The built-in trainer: process group, DDP, environments, algorithms.
//!
//! An iteration ([`train`]): an algorithm of [`algo`] steps its environments and learns, with gradients
//! averaged by [`distributed`]. [`exchange`] computes totals and decisions that all ranks share. Rank 0
//! [`evaluate`]s and writes a [`checkpoint`] of the algorithm's [`state`]. The [`reporter`] tells the agent
//! through [`events`], and writes TensorBoard files.
//!
//! Invariants:
//! - Every branch that changes the number of collectives depends on reduced or broadcast values,
//!   or on counters that are equal on all ranks.
//! - All ranks leave at the same place: after an iteration, or within a long one, which is undone then
//!   ([`stop_points`]).
//! - Rank 0 alone writes into the run directory; other ranks add their replay, when that is asked
//!   for.

pub mod algo;
pub mod checkpoint;
pub mod collect;
pub(crate) mod counters;
pub mod description;
pub mod distributed;
pub mod error;
pub mod evaluate;
pub mod events;
pub(crate) mod exchange;
pub mod identity;
pub(crate) mod inject;
pub(crate) mod last_resort;
pub mod live;
pub(crate) mod measure;
pub(crate) mod metrics_file;
pub(crate) mod normalise;
pub mod page;
pub(crate) mod play;
pub mod policy;
pub(crate) mod prepare;
pub mod replay;
pub(crate) mod reporter;
pub(crate) mod resume;
pub mod rollout;
pub mod safetensors;
pub mod setup;
pub(crate) mod show;
pub(crate) mod sight;
pub(crate) mod signals;
pub(crate) mod spawn;
pub mod state;
pub mod stop_points;
pub(crate) mod tensorboard;
pub(crate) mod train;

#[cfg(test)]
rankdeck_testkit::end_without_destructors!();
#[cfg(test)]
mod kernel_tests;

pub use rankdeck_envs as env;

use error::TrainerError;
use events::{Events, say, warn};
use identity::{Flags, RankIdentity};
use rankdeck_proto::message::{FinishReason, RankEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank};
use std::time::Duration;

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
        return prepare::run(flags).map(|()| 0).unwrap_or_else(|error| {
            complain("rankdeck-trainer", &error);
            error.exit_code()
        });
    }
    if let Some(checkpoint) = &flags.evaluate {
        return play::run(checkpoint, flags).map(|()| 0).unwrap_or_else(|error| {
            complain("rankdeck-trainer", &error);
            error.exit_code()
        });
    }
    if let Some(world_size) = flags.spawn {
        match identity::check_spawn(&env).and_then(|()| spawn::run(world_size)) {
            Ok(spawn::Side::Rank) => {}
            Ok(spawn::Side::Parent(code)) => return code,
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
            complain("rankdeck-trainer", &TrainerError::usage(error, "`--help` tells the form"));
            return 2;
        }
    }
    match RankIdentity::resolve(flags, &env) {
        Ok(identity) => match flags.all_reduce {
            None => rank(&identity),
            Some(largest) => measure::run(&identity, largest).map(|()| 0).unwrap_or_else(|error| {
                complain(&format!("rank {}", identity.rank), &error);
                error.exit_code()
            }),
        },
        Err(error) => {
            complain("rankdeck-trainer", &error);
            let events = env("RANKDECK_EVENTS").zip(env("RANK").and_then(|rank| rank.parse().ok()));
            if let Some((path, rank)) = events {
                let generation = env("RANKDECK_GENERATION").and_then(|text| text.parse().ok()).unwrap_or(0);
                let events = Events::to(path.as_ref(), Rank(rank), Generation(generation));
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

/// Says where so few files may be open that connections of all ranks, or a checkpoint, may find no room.
fn warn_of_few_files(identity: &RankIdentity) {
    let (files, least) = (open_files(), FILES + FILES_EACH * u64::from(identity.world_size));
    if files < least {
        warn(&format!(
            "rank {}: at most {files} files may be open here, and {} ranks may need {least}; raise `nofile` in \
             /etc/security/limits.conf, or `ulimit -n` in `prelude`",
            identity.rank, identity.world_size
        ));
    }
}

fn rank(identity: &RankIdentity) -> u8 {
    warn_of_few_files(identity);
    let events = match &identity.events {
        Some(path) => Events::to(path, Rank(identity.rank), Generation(identity.generation)),
        None => Events::silent(),
    };
    last_resort::arm(identity.rank, &events);
    distributed::ends_by(|error| last_resort::end(&error.into()));
    let code = match train::run(identity, &events, signals::install) {
        Ok(reason) => {
            events.send(&RankEvent::Finished { reason });
            say(&format!("rank {} finished: {}", identity.rank, describe(reason)));
            0
        }
        Err(error) => {
            last_resort::tell(&error);
            error.exit_code()
        }
    };
    if !events.finish(FINISH) {
        warn(&format!("rank {}: the agent did not take the last events within {FINISH:?}", identity.rank));
    }
    if events.lost() > 0 {
        warn(&format!(
            "rank {}: {} events were lost while the agent did not read",
            identity.rank,
            events.lost()
        ));
    }
    code
}

fn describe(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::StopValue => "the stop value is reached",
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
