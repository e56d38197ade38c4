//! The console's own log: a file in its run directory, never the screen.

use super::record;
use std::fs::File;
use std::path::Path;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

/// Sends tracing to `FOLDER/console.log`. Does nothing the second time. Returns another handle to the file,
/// for stderr while the screen is up.
///
/// `RANKDECK_LOG_LEVEL` has the level, default `info`, or levels of modules: `info,rankdeck_link=debug`.
pub fn open(folder: &Path) -> std::io::Result<File> {
    let file = record::create(&folder.join("console.log"))?;
    let copy = file.try_clone()?;
    let levels = std::env::var("RANKDECK_LOG_LEVEL").ok().and_then(|text| text.parse().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file).with_filter(levels);
    // A second console in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
    Ok(copy)
}
