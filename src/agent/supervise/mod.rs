//! Starting ranks, watching them end, stopping them, and verifying that nothing of them is left.
//!
//! ```text
//! supervisor    carries out what the lifecycle asks for
//! lifecycle     pure: the life of a generation, the stages of a stop, the verified end
//! launch_prep   folders, experiment, code and libtorch of a launch
//! libtorch      where libtorch and the built-in trainer are on this host
//! setup         modules, environments, prelude and container of a rank as one shell script
//! spawn         starts ranks from one thread that lives as long as the agent
//! groups        sessions, signals, reaping, parent-death signals
//! helpers       what the agent runs for its user, and is none of the run's
//! sweep         finds and ends every process of a run
//! looks         looks at the processes that several searches share
//! searches      counts searches that may still kill
//! guard         kills the run when its agent dies or is stopped
//! leftovers     what leads to processes of agents that died together with their guards
//! cgroup        a control group of the ranks' own, where one can be made
//! gpu_release   waits until the driver has given GPUs back
//! oom           tells kills by the kernel's out-of-memory killer from others
//! ```

pub(crate) mod cgroup;
pub(crate) mod gpu_release;
pub(crate) mod groups;
pub(crate) mod guard;
pub(crate) mod helpers;
pub(crate) mod launch_prep;
pub(crate) mod leftovers;
pub(crate) mod libtorch;
pub(crate) mod lifecycle;
pub(crate) mod looks;
pub(crate) mod oom;
pub(crate) mod searches;
pub(crate) mod setup;
pub(crate) mod spawn;
pub(crate) mod supervisor;
pub(crate) mod sweep;
