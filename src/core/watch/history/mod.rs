//! Stage 1: the history of each rank and host between samples, and the current state of each rank.
//!
//! [`rank_history`], [`movement`], [`silence`], [`patience`], [`inspections`] and [`hosts`] take samples and replies;
//! [`run_view`] joins them with the latest sample. [`program`] has the lookups of facts about one rank: whether
//! its program makes progress, what it waits in, whether it gets a core.

pub(crate) mod hosts;
pub(crate) mod inspections;
pub(crate) mod movement;
pub(crate) mod patience;
pub(crate) mod program;
pub(crate) mod rank_history;
pub(crate) mod run_view;
pub(crate) mod silence;
