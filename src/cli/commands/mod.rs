//! Commands: a file for each, or for a few that belong together.

pub(crate) mod add;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod consoles;
pub(crate) mod diff;
pub(crate) mod drill;
pub(crate) mod explain;
pub(crate) mod fetch;
pub(crate) mod gpus;
pub(crate) mod help;
pub(crate) mod init;
pub(crate) mod logs;
pub(crate) mod metrics_tools;
pub(crate) mod play;
pub(crate) mod ps;
pub(crate) mod push;
pub(crate) mod remove;
pub(crate) mod report;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod sbatch;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod stop;
