//! What an agent sees of its host and ranks all the time.
//!
//! ```text
//! sample         gauges of the host, its ranks and their status pages, in rounds
//! pages          the ranks' status pages, held open
//! starvation     whether ranks want a core and get none
//! process_tree   the processes of one rank between two looks
//! cgroup_stat    whether a cgroup is frozen, throttled or out of memory
//! host_signals   pressure, network interface, suspension
//! gpu            GPUs as they are now, and those that were lost
//! nvml           what the driver tells of each
//! shares         what each process uses of a GPU
//! traffic        what goes over a GPU's connections
//! visible        the GPUs that programs of this user see
//! gpu_users      who uses the GPUs
//! logs           tails the ranks' log files
//! secrets        values that only the console knows, kept out of those logs
//! line_times     when the bytes of a log file were read
//! gate           how many histograms and pictures are passed on
//! metrics        values from the output and event files of programs that know nothing of rankdeck
//! ```

pub(crate) mod cgroup_stat;
pub(crate) mod gate;
pub(crate) mod gpu;
pub(crate) mod gpu_users;
pub(crate) mod host_signals;
pub(crate) mod line_times;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod nvml;
pub(crate) mod pages;
pub(crate) mod process_tree;
pub(crate) mod sample;
pub(crate) mod secrets;
pub(crate) mod shares;
pub(crate) mod starvation;
mod traffic;
pub(crate) mod visible;
