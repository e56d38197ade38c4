//! What a console has learnt about the pace of a run, for the next console that looks at it.

use serde::{Deserialize, Serialize};

/// Histograms of silences, one for each kind of silence in the watch's order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceHistory {
    /// `(bucket, count)` of each kind, without empty buckets.
    pub places: Vec<Vec<(u8, u32)>>,
}
