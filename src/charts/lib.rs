//! Selects, scales, compares and exports the series of runs. Shared by the run screen, home and reports.
//!
//! ```text
//! selection  which series are shown, their labels, and which of them lose their meaning when a run ends
//! axis       x axes: steps, elapsed time, wall clock
//! view       zoom, smoothing, cursor, overlaid runs
//! heat       histograms as heat maps
//! compare    several runs in one chart
//! export     CSV, SVG and PNG files
//! ```
//!
//! Everything here is pure: it reads models and returns data, or draws into a buffer.

pub mod axis;
pub mod compare;
pub mod export;
pub mod heat;
pub mod selection;
pub mod view;
