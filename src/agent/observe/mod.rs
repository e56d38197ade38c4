//! Samples the host and its ranks continuously.
//!
//! ```text
//! sample         gauges of the host, its ranks and their status pages, in rounds
//! pages          the ranks' status pages, held open
//! inner_ranks    ranks that a script's rank has started itself
//! process_tree   the processes of one rank between two samples
//! cgroup_stat    whether a cgroup is frozen, throttled or out of memory
//! host_signals   pressure, network interface, suspension
//! gpu            current and lost GPUs, their users, and the GPUs that programs of this user see
//! nvml           GPU samples from the driver: memory, shares per process, traffic
//! logs           tails the ranks' log files
//! line_splitter  cuts their bytes into lines
//! live_lines     lines that are not finished, such as progress bars
//! secrets        redacts secret values in those logs
//! line_times     when the bytes of a log file were read
//! media_limiter  limits the histograms and images that are forwarded
//! checkpoint_files  files of ranks that look like checkpoints
//! open_watch     whether ranks open the checkpoint that they resume from
//! metrics        values of programs without the client module, between two records
//! metric_files   metrics from the files of rank 0's program
//! open_logs      finds those files by open descriptors
//! closed_logs    finds those that are opened for each row only
//! row_files      reads CSV and JSON Lines as they grow
//! logged_media   histograms and images from event files that wait to be sent
//! printed_returns  returns that the ranks of a script print, each for itself
//! extractor      metrics and progress from the output of rank 0
//! arbiter        decides from which source a series comes
//! ```

pub(crate) mod arbiter;
pub(crate) mod cgroup_stat;
pub(crate) mod checkpoint_files;
pub(crate) mod closed_logs;
pub(crate) mod extractor;
pub(crate) mod gpu;
pub(crate) mod host_signals;
pub(crate) mod inner_ranks;
pub(crate) mod line_splitter;
pub(crate) mod line_times;
pub(crate) mod live_lines;
pub(crate) mod logged_media;
pub(crate) mod logs;
pub(crate) mod media_limiter;
pub(crate) mod metric_files;
pub(crate) mod metrics;
pub(crate) mod nvml;
pub(crate) mod open_logs;
pub(crate) mod open_watch;
pub(crate) mod pages;
pub(crate) mod printed_returns;
pub(crate) mod process_tree;
pub(crate) mod row_files;
pub(crate) mod sample;
pub(crate) mod secrets;
