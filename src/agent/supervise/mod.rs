//! Starting ranks, watching them end, stopping them, and verifying that no process is left.
//!
//! ```text
//! supervisor    executes the lifecycle's actions
//! lifecycle     pure: the states of a generation, the stages of a stop, the verified end
//! launch_prep   prepares a launch: variables, directories, experiment, code and libtorch
//! work_folder   the directory in which ranks with uploaded code work
//! script_checkpoints  sets a script's checkpoints aside before its next generation
//! libtorch      finds libtorch and the built-in trainer on this host
//! setup         modules, environments, prelude and container of a rank as one shell script
//! spawn         starts ranks from one thread that lives as long as the agent
//! groups        sessions, signals, reaping, parent-death signals, and processes that the agent starts for its user
//! terminate     asks the programs of ranks to end, below shells that wait for them
//! process_scan  finds and ends every process of a run
//! guard         kills the run when its agent dies or is stopped
//! leftovers     finds processes of agents that died together with their guards
//! cgroup        a control group for the ranks, where one can be made
//! ```

pub(crate) mod cgroup;
pub(crate) mod groups;
pub(crate) mod guard;
pub(crate) mod launch_prep;
pub(crate) mod leftovers;
pub(crate) mod libtorch;
pub(crate) mod lifecycle;
pub(crate) mod process_scan;
pub(crate) mod script_checkpoints;
pub(crate) mod setup;
pub(crate) mod spawn;
pub(crate) mod supervisor;
pub(crate) mod terminate;
pub(crate) mod work_folder;
