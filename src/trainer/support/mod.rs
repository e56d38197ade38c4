//! Parts that every layer of the trainer uses: events, status page, stop signals, counters and named state.

pub mod events;
pub mod page;
pub(crate) mod signals;
pub mod state;
pub(crate) mod trace;
