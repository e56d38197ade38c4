//! The status page of a rank as its agent tells it: phase, counters, collectives.

use super::collective::is_zero;
use super::{CollectiveSample, RecentCollective};
use crate::status_page::LANES;
use serde::{Deserialize, Serialize};

/// The status page of one rank; ages are computed by the agent on the rank's own clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PageSample {
    /// What the rank is doing.
    pub phase: Phase,
    /// Milliseconds since the phase began.
    pub phase_age_ms: u64,
    /// Moves while something happens inside the phase.
    pub phase_progress: u64,
    /// Milliseconds since anything on the page changed.
    pub heartbeat_age_ms: u64,
    pub train_iter: u64,
    /// This rank's own environment steps.
    pub env_step: u64,
    /// This rank's own samples.
    pub samples: u64,
    /// This rank's own finished episodes.
    pub episodes: u64,
    /// Optimiser updates.
    pub updates: u64,
    /// The collective that was entered last.
    pub collective: CollectiveSample,
    /// The hook in a Python rank writes the page: it knows collectives and steps of optimisers, but no
    /// phases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hook: bool,
    /// What it does inside the phase.
    #[serde(default, skip_serializing_if = "Activity::is_none")]
    pub activity: Activity,
    /// Milliseconds since the activity began, 0 when there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub activity_age_ms: u64,
    /// How much of a phase of known length is done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub done: u64,
    /// How much there is to do, 0 when unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total: u64,
    /// Groups (communicators), the group of all ranks first; empty on old pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSample>,
    /// Beginnings of some of the latest iterations, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iterations: Vec<IterationSample>,
    /// Fingerprints of the weights after some of the latest steps of each optimiser, by optimiser and step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fingerprints: Vec<FingerprintSample>,
    /// Milliseconds in each phase so far (indices of [`Phase::ALL`]), time inside collectives excluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_ms: Vec<u64>,
    /// The latest collectives, oldest first; only while the page is silent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentCollective>,
}

impl PageSample {
    /// Training iterations done; `None` for a script whose optimisers, if it has any, have made no step: the
    /// hook counts those.
    pub fn iteration(&self) -> Option<u64> {
        (!self.by_hook || self.train_iter > 0).then_some(self.train_iter)
    }
}

/// Counters of one group of ranks (communicator).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupSample {
    /// Its name, equal on all members.
    pub name: String,
    /// Members, 0 when unknown.
    pub size: u32,
    /// Number of the collective entered last in it.
    pub entered: u64,
    /// Number of the collective left last in it.
    pub left: u64,
    /// Hash over what its members must agree on, of all collectives entered in it.
    pub chain: u64,
}

/// The beginning of an iteration in counters of the group of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IterationSample {
    /// Number of the training iteration.
    pub train_iter: u64,
    /// Collectives entered before it.
    pub seq: u64,
    /// Chain hash at that moment.
    pub chain: u64,
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// Microseconds spent inside collectives before it.
    pub wait_us: u64,
}

/// What the weights of an optimiser were between one of its steps and the next, by a few elements of each
/// parameter.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct FingerprintSample {
    /// Its number, in the order in which optimisers made their first step.
    pub optimizer: u32,
    /// Steps that it had made; 0 before the first.
    pub step: u64,
    /// Hash of the shapes and element types of its parameters.
    pub shapes: u32,
    /// Hashes of the elements by part; 0 for a part without elements.
    pub lanes: [u32; LANES],
    /// Sum of the elements.
    pub sum: f64,
    /// Sum of their magnitudes.
    pub scale: f64,
    /// All of them are finite; the sums are 0 where they are not.
    pub finite: bool,
    /// A collective was made since the step before; ranks that average weights now and then are equal there
    /// only.
    #[serde(default)]
    pub synced: bool,
}

/// What a rank does inside a phase; numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Activity {
    /// The phase says everything.
    #[default]
    None = 0,
    /// An environment is being reset.
    EnvReset = 1,
    /// Environments are being stepped.
    EnvStep = 2,
    /// Actions are being computed.
    Act = 3,
    /// A batch is being drawn from memory.
    Sample = 4,
    /// Forward pass of a loss.
    Forward = 5,
    /// Backward pass.
    Backward = 6,
    /// The optimiser steps.
    Optimize = 7,
    /// A file is being written.
    Save = 8,
    /// A file is being read.
    Load = 9,
    /// Code is being compiled.
    Compile = 10,
}

impl Activity {
    /// All activities, in the order of their numbers.
    pub const ALL: [Activity; 11] = [
        Activity::None,
        Activity::EnvReset,
        Activity::EnvStep,
        Activity::Act,
        Activity::Sample,
        Activity::Forward,
        Activity::Backward,
        Activity::Optimize,
        Activity::Save,
        Activity::Load,
        Activity::Compile,
    ];

    fn is_none(&self) -> bool {
        *self == Activity::None
    }

    /// The name shown to people, empty for none.
    pub fn name(self) -> &'static str {
        match self {
            Activity::None => "",
            Activity::EnvReset => "env reset",
            Activity::EnvStep => "env step",
            Activity::Act => "act",
            Activity::Sample => "sample",
            Activity::Forward => "forward",
            Activity::Backward => "backward",
            Activity::Optimize => "optimise",
            Activity::Save => "save",
            Activity::Load => "load",
            Activity::Compile => "compile",
        }
    }
}

/// What a rank is doing; numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Phase {
    /// Starting up.
    #[default]
    Init = 0,
    /// Waiting for the other ranks to form the group.
    Rendezvous = 1,
    /// Collecting experience.
    Rollout = 2,
    /// Computing losses, gradients, updates.
    Learn = 3,
    /// Exchanging statistics between iterations.
    Sync = 4,
    /// Evaluating (rank 0).
    Eval = 5,
    /// Writing a checkpoint.
    Checkpoint = 6,
    /// Leaving.
    Teardown = 7,
    /// The loop has ended.
    Done = 8,
}

impl Phase {
    /// All phases, in the order of their numbers.
    pub const ALL: [Phase; 9] = [
        Phase::Init,
        Phase::Rendezvous,
        Phase::Rollout,
        Phase::Learn,
        Phase::Sync,
        Phase::Eval,
        Phase::Checkpoint,
        Phase::Teardown,
        Phase::Done,
    ];

    /// The name shown to people; also the JSON form.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Rendezvous => "rendezvous",
            Phase::Rollout => "rollout",
            Phase::Learn => "learn",
            Phase::Sync => "sync",
            Phase::Eval => "eval",
            Phase::Checkpoint => "checkpoint",
            Phase::Teardown => "teardown",
            Phase::Done => "done",
        }
    }
}
