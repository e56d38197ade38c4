//! A collective as it is told: what a rank passed to it, and what each message adds.

use serde::{Deserialize, Serialize};

/// What a rank passed to a collective. It is part of all shapes in which collectives are told, and its fields
/// stand beside theirs in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectiveCall {
    /// `all_reduce`, `broadcast`, ...
    pub op: String,
    /// Purpose: `grad`, `collect_stats`, `eval`, `fingerprint`, ...
    pub tag: String,
    /// Name of its group, empty when unknown.
    pub group: String,
    /// Elements per rank.
    pub count: u64,
    /// Element type, as PyTorch calls it.
    pub dtype: String,
    /// Bytes per rank, 0 when unknown.
    pub bytes: u64,
    /// Rank that a broadcast comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// `FILE:LINE` of the call, empty when unknown.
    #[serde(alias = "call_site")]
    pub site: String,
}

impl CollectiveCall {
    /// ` at FILE:LINE`, empty when unknown.
    pub fn at_site(&self) -> String {
        if self.site.is_empty() { String::new() } else { format!(" at {}", self.site) }
    }

    /// `9155 f32 (36620 bytes)`, empty when nothing is known.
    pub fn size(&self) -> String {
        let root = self.root.map(|root| format!(", from rank {root}")).unwrap_or_default();
        match (self.count, self.bytes) {
            (0, 0) => root.trim_start_matches(", ").to_string(),
            (0, bytes) => format!("{bytes} bytes of {}{root}", self.dtype),
            (count, 0) => format!("{count} {}{root}", self.dtype),
            (count, bytes) => format!("{count} {} ({bytes} bytes){root}", self.dtype),
        }
    }
}

/// The latest collective of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CollectiveSample {
    /// Number of the collective entered last, from 1; 0 before the first.
    pub entered: u64,
    /// Number of the collective left last.
    pub left: u64,
    /// What the rank passed to it.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Milliseconds since it was entered (while inside), else since it was left.
    pub age_ms: u64,
    /// Its number within its group, 0 when unknown.
    #[serde(default)]
    pub group_seq: u64,
}

/// One collective out of a page's ring, or several in a row that differ in nothing but their number.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecentCollective {
    /// Number within its group; the first one's.
    pub seq: u64,
    /// How many more like it follow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// What the rank passed to it.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Chain hash of the group with this collective; the last one's.
    pub chain: u64,
    /// Training iteration it was entered in.
    pub train_iter: u64,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
