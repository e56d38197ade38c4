//! Shared by several commands. Imports run one way: commands use support, support uses arguments.

pub(crate) mod child;
pub(crate) mod code_record;
pub(crate) mod console;
pub(crate) mod contract;
pub(crate) mod copy;
pub(crate) mod drill;
pub(crate) mod failure;
pub(crate) mod git;
pub(crate) mod interrupt;
pub(crate) mod launch;
pub(crate) mod locate;
pub(crate) mod measure;
pub(crate) mod output_file;
pub(crate) mod output_mode;
pub(crate) mod policy;
pub(crate) mod preflight;
pub(crate) mod print;
pub(crate) mod prompt;
pub(crate) mod provenance;
pub(crate) mod provision;
pub(crate) mod relaunch;
pub(crate) mod resume_from;
pub(crate) mod run_index;
pub(crate) mod run_name;
pub(crate) mod sources;
pub(crate) mod sweep;
pub(crate) mod work_place;

pub(crate) use failure::{Failure, code};
