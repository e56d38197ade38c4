//! Plain types that all crates of rankdeck share. No I/O, no clock.
//!
//! Configuration ([`host`], [`experiment`]), its resolved form ([`plan`]), and identifiers ([`ids`]).

pub mod arguments;
pub mod blocks;
pub mod code;
pub mod command;
pub mod cores;
pub mod error;
pub mod escape;
pub mod exit;
pub mod experiment;
pub mod hidden;
pub mod host;
pub mod ids;
pub mod learn;
pub mod link_state;
pub mod meaning;
pub mod override_key;
pub mod path_pattern;
pub mod plan;
pub mod promise;
pub mod quote;
pub mod schema;
pub mod setup;
pub mod template;
pub mod ui;
pub mod variables;
pub mod weights;
pub mod words;
