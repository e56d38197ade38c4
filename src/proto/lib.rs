//! What crosses a wire, a file or a mapping between the console, the agents and the ranks.
//!
//! ```text
//! frame         frames between a console and an agent: a length, then JSON
//! message       what is in them: orders, answers, records, samples; and the lines of the event socket
//! inspection    a close look at one rank
//! examination   what a preflight asks a host, and what it found
//! run_entry     runs that a host knows
//! files         files of runs on a host
//! fleet         what a host tells of itself while somebody looks at all hosts
//! search        a search in the logs that a host keeps
//! process       what is asked of one process of a host: its environment, a signal
//! show          a policy that plays, step by step
//! status_page   the mapped file in which a rank shows its state
//! mapping       mapped files that somebody may cut short
//! secret        what the ranks of one generation know each other by
//! media         histograms and pictures that programs log
//! lines         bytes as lines of text, for transports that carry nothing else
//! pack          a folder as one file, named by its content
//! folders       folders that the console and the agent find alike
//! libtorch      where libtorch may be, and which one fits
//! tfrecord      TensorBoard's event files
//! ```

pub mod clock;
pub mod examination;
pub mod files;
pub mod fleet;
pub mod folders;
pub mod frame;
pub mod inspection;
pub mod libtorch;
pub mod lines;
pub mod link;
pub mod mapping;
pub mod media;
pub mod message;
pub mod pack;
pub mod process;
pub mod run_entry;
pub mod search;
pub mod secret;
pub mod show;
pub mod status_page;
pub mod tfrecord;
