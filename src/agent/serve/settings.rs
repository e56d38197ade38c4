//! What a new agent is told.

use crate::paths::RunPaths;
use rankdeck_types::ids::RunId;
use std::path::PathBuf;

/// What a new agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The run.
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Files of this node.
    pub paths: RunPaths,
    /// Working folder of the ranks.
    pub workdir: PathBuf,
    /// Folder of the sockets.
    pub sockets: PathBuf,
    /// File mode mask that ranks get.
    pub umask: u32,
}

impl Settings {
    /// Socket for consoles.
    pub fn console_socket(&self) -> PathBuf {
        self.socket("sock")
    }

    /// Socket on which ranks report events.
    pub fn event_socket(&self) -> PathBuf {
        self.socket("ev")
    }

    fn socket(&self, ending: &str) -> PathBuf {
        self.sockets.join(format!("{}.{ending}", self.paths.socket_stem()))
    }
}
