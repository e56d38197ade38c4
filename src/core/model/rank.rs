//! What is known about one rank.

use super::log_ring::LogRing;
use super::reach::SentSignal;
use crate::card::Side;
use crate::join::Rate;
use crate::watch::track::Track;
use rankdeck_proto::message::{Counters, Exception, Exit, FailureKind, RankSample};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::plan::PlannedRank;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What is known about one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankModel {
    /// Index in [`Model::ranks`].
    pub rank: Rank,
    /// Index of its host.
    pub node: NodeRank,
    /// Index on its host.
    pub local_rank: u32,
    /// Name of its host.
    pub host: String,
    /// Its planned GPU on that host.
    pub gpu: Option<u32>,
    /// How far its life has come.
    pub life: RankLife,
    /// `cpu`, `cuda:0`, as it said when it joined.
    pub device: String,
    /// Process id on its host.
    pub pid: Option<u32>,
    /// Its latest gauges.
    pub sample: Option<RankSample>,
    /// When those arrived.
    pub sampled: Option<Timestamp>,
    /// Own environment steps per second, smoothed.
    pub steps_per_s: f64,
    /// Its own counters of the latest iteration that it has reported.
    #[serde(default)]
    pub own: Option<Counters>,
    /// Last error it reported before it ended.
    pub error: Option<(String, String)>,
    /// What kind of failure that was, as it said.
    #[serde(default)]
    pub failure: Option<FailureKind>,
    /// The exception that it reported as its end.
    pub exception: Option<Exception>,
    /// The latest signal that a console had sent to it in this generation.
    #[serde(default)]
    pub signalled: Option<SentSignal>,
    /// What its agent saw when it last looked closely at it.
    #[serde(default)]
    pub look: Option<Box<Look>>,
    /// The end of its log.
    pub log: LogRing,
    /// CPU use over time, percent, for the sparkline.
    #[serde(with = "crate::compact::floats")]
    pub cpu_history: VecDeque<f32>,
    /// GPU use over time, percent, for the sparkline.
    #[serde(with = "crate::compact::floats")]
    pub gpu_history: VecDeque<f32>,
    /// What the watch remembers of this generation's samples.
    pub track: Track,
    /// Smooths [`RankModel::steps_per_s`]; its times are those of the agent's monotonic clock.
    pub rate: Rate,
}

impl RankModel {
    /// A planned rank of which nothing is known yet.
    pub fn pending(planned: &PlannedRank, host: &str) -> RankModel {
        RankModel {
            rank: planned.rank,
            node: planned.node_rank,
            local_rank: planned.local_rank.0,
            host: host.into(),
            gpu: planned.gpu,
            life: RankLife::Pending,
            device: String::new(),
            pid: None,
            sample: None,
            sampled: None,
            steps_per_s: 0.0,
            own: None,
            error: None,
            failure: None,
            exception: None,
            signalled: None,
            look: None,
            log: LogRing::default(),
            cpu_history: VecDeque::new(),
            gpu_history: VecDeque::new(),
            track: Track::default(),
            rate: Rate::default(),
        }
    }
}

/// A close look at a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Look {
    /// When the answer came.
    pub at: Timestamp,
    /// What it shows, as on a card.
    pub side: Side,
    /// What NCCL says about the run, then what could not be read, and why; bounded.
    pub notes: Vec<String>,
}

/// The life of a rank in one generation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub enum RankLife {
    /// Not spawned in this generation.
    #[default]
    Pending,
    /// Its process exists.
    Spawned,
    /// It is in the process group.
    Joined,
    /// Its loop has ended; the process is about to leave.
    Finished,
    /// It is gone.
    Exited(Exit),
}
