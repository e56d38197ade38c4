//! What each list of the screen has selected, filtered and scrolled. A selection is an id, never a row
//! (UI-2).

use super::Sort;
use crate::column::Column;
use rankdeck_types::ids::{NodeRank, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// The rank table.
#[derive(Debug, Clone, Default)]
pub struct RankTable {
    /// The rank that is selected, on other pages too.
    pub selected: Option<Rank>,
    /// Ranks marked with the space bar.
    pub marked: BTreeSet<Rank>,
    /// The first row shown.
    pub top: usize,
    /// How it is sorted.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// The text that rows must have.
    pub filter: String,
    /// The strip shows how long ranks wait for each other, instead of letters.
    pub waits: bool,
    /// Columns to show before others (true) or never (false).
    pub columns: BTreeMap<Column, bool>,
}

/// The list of hosts.
#[derive(Debug, Clone, Default)]
pub struct HostList {
    /// The host that is selected.
    pub selected: Option<NodeRank>,
    /// The first row shown.
    pub top: usize,
}

/// The list of events.
#[derive(Debug, Clone, Default)]
pub struct EventList {
    /// Number of the selected event; `None` follows the newest.
    pub selected: Option<u64>,
    /// Events between the newest and the lowest one shown.
    pub up: usize,
    /// The text that events must have.
    pub filter: String,
}

/// The list of series beside the charts.
#[derive(Debug, Clone, Default)]
pub struct SeriesList {
    /// The series that is selected.
    pub selected: Option<String>,
    /// The text that names in the list must have.
    pub filter: String,
    /// Series shown besides the selected one; `None`: the usual ones.
    pub shown: Option<BTreeSet<String>>,
    /// The first row shown.
    pub top: usize,
}
