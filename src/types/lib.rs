//! Plain types that all crates of rankdeck share. No I/O, no clock.
//!
//! What the user wrote ([`host`], [`experiment`]), what becomes of it ([`plan`]), and the names of things
//! ([`ids`]).

pub mod atari;
pub mod error;
pub mod exit;
pub mod experiment;
pub mod host;
pub mod ids;
pub mod learn;
pub mod link_state;
pub mod metrics;
pub mod plan;
pub mod probe;
pub mod quote;
pub mod schema;
pub mod setup;
pub mod ui;
pub mod variables;
pub mod webhook;
pub mod weights;
pub mod words;
