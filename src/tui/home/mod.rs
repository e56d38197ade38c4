//! Home: what bare `rankdeck` shows. Runs of all hosts, experiments to launch, and the hosts themselves,
//! before and without any run. The same way as the run's screen: [`Home`] is data, [`view`] draws it and
//! nothing else, and a key becomes [`HomeAction`]s, which somebody else carries out.
//!
//! ```text
//! model     what is known
//! state     what the user has selected, typed and opened
//! keys      the table of keys: dispatch, footer and help
//! input     keys and the mouse
//! processes who is on a host's GPUs
//! pen       what pages are drawn with
//! draw      the pages; runs, experiments, fleet and compare in files of their own
//! ```

mod compare;
mod draw;
mod experiments;
mod fleet;
mod input;
mod keys;
mod model;
mod overlays;
mod pen;
mod processes;
mod runs;
mod state;

pub use draw::{layout, view};
pub use input::{on_key, on_mouse, on_paste};
pub use model::{
    CommandEnd, Draft, Experiment, FleetHost, FreeSince, GpuTrack, Home, HomeEvent, Life, RunComparison,
    RunRow, is_free,
};
pub use state::{HomeAction, HomeView, Launch, Overlay, Page};
