//! Samples the host and its ranks continuously.
//!
//! ```text
//! sample         gauges of the host, its ranks and their status pages, in rounds
//! pages          the ranks' status pages, held open
//! process_tree   the processes of one rank between two samples
//! cgroup_stat    whether a cgroup is frozen, throttled or out of memory
//! host_signals   pressure, network interface, suspension
//! gpu            current and lost GPUs, their users, and the GPUs that programs of this user see
//! nvml           GPU samples from the driver: memory, shares per process, traffic
//! logs           tails the ranks' log files
//! secrets        redacts secret values in those logs
//! line_times     when the bytes of a log file were read
//! media_limiter  limits the histograms and images that are forwarded
//! checkpoint_files  files of ranks that look like checkpoints
//! metrics        metrics from the output and event files of programs without the client module
//! ```

pub(crate) mod cgroup_stat;
pub(crate) mod checkpoint_files;
pub(crate) mod gpu;
pub(crate) mod host_signals;
pub(crate) mod line_times;
pub(crate) mod logs;
pub(crate) mod media_limiter;
pub(crate) mod metrics;
pub(crate) mod nvml;
pub(crate) mod pages;
pub(crate) mod process_tree;
pub(crate) mod sample;
pub(crate) mod secrets;
