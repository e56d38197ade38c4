//! The console's own log: a file in its run directory (or `RANKDECK_LOG`), never the screen.

use super::record;
use std::fs::File;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// Sends tracing to `FOLDER/console.log`; level from `RANKDECK_LOG_LEVEL`, default `info`. Does nothing the second time. Returns another handle to
/// the file, for stderr while the screen is up.
pub fn open(folder: &Path) -> std::io::Result<File> {
    let file = record::create(&folder.join("console.log"))?;
    let copy = file.try_clone()?;
    let filter = EnvFilter::try_from_env("RANKDECK_LOG_LEVEL").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(file).finish();
    // A second console in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(copy)
}
