//! Formats of wires, files and mapped pages that the console, the agents and the ranks share.
//!
//! ```text
//! frame         frames between a console and an agent: a length, then JSON; and bytes as lines of text
//! message       their content: orders, replies, records, samples; and the lines of the event socket
//! link          events of a link, and orders to it
//! inspection    the inspection of one rank
//! drill         how `rankdeck drill` breaks a run
//! examination   a preflight's questions to a host, what hosts measure between each other, and the findings
//! execution     what runs leave behind for `rankdeck diff`: fingerprints, operations, arrays
//! run_entry     runs on a host, and snapshots of a host for the fleet page
//! files         files of runs on a host
//! search        searches in the logs of a host
//! holders       processes that hold GPUs of a host, and whether they may be ended
//! process       queries about one process of a host: its environment, a signal
//! lineage       which values of earlier generations count after restarts
//! rate          how fast a counter grows
//! show          a policy that plays, step by step
//! status_page   the mapped file in which a rank shows its state
//! mapping       mapped files that may be truncated
//! secret        the shared secret of the ranks of one generation
//! media         histograms and images that programs log
//! printed       values in the output of programs
//! progress_bar  progress bars in the output of programs
//! pack          a directory as one file, named by its content
//! folders       directories that the console and the agent locate in the same way
//! trust         whether directories, files and sockets belong to this user alone
//! libtorch      where libtorch may be, and which version fits
//! tfrecord      TensorBoard's event files
//! wandb         Weights & Biases' run files
//! clock         the wall clock
//! ```

pub mod drill;
pub mod examination;
pub mod execution;
pub mod files;
pub mod folders;
pub mod frame;
pub mod holders;
pub mod inspection;
pub mod libtorch;
pub mod lineage;
pub mod link;
pub mod mapping;
pub mod media;
pub mod message;
pub mod pack;
pub mod printed;
pub mod process;
pub mod progress_bar;
pub mod rate;
pub mod regular;
pub mod run_entry;
pub mod search;
pub mod secret;
pub mod show;
pub mod status_page;
pub mod tfrecord;
pub mod trust;
pub mod wandb;

/// The wall clock.
pub mod clock {
    use rankdeck_types::ids::WallTime;
    use std::time::{SystemTime, UNIX_EPOCH};

    /// Returns the seconds since the Unix epoch; 0 if the clock is set before it.
    pub fn wall_time() -> WallTime {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }
}
