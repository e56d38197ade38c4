//! The parts of each page.

pub mod alarm;
pub mod calm;
pub mod charts;
pub mod connecting;
pub mod end;
pub mod evals;
pub mod events;
pub mod footer;
mod found;
pub mod header;
pub mod hosts;
pub mod logs;
pub mod ranks;
pub mod status;
pub mod strip;
pub mod time;
pub mod totals;
