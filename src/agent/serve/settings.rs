//! What a new agent is told.

use crate::paths::RunPaths;
use crate::proc::Ident;
use crate::sockets;
use rankdeck_types::ids::RunId;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

/// What a new agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Files of this node.
    pub paths: RunPaths,
    /// Working folder of the ranks.
    pub workdir: PathBuf,
    /// Folder of the sockets; another one once somebody has taken this one away.
    pub sockets: Rc<RefCell<PathBuf>>,
    /// File mode mask that ranks get.
    pub umask: u32,
    /// The process of a Slurm step whose end is the agent's, too.
    pub holder: Option<Ident>,
}

impl Settings {
    pub fn console_socket(&self) -> PathBuf {
        self.socket(sockets::CONSOLES)
    }

    /// Socket on which ranks report events.
    pub fn event_socket(&self) -> PathBuf {
        self.socket(sockets::EVENTS)
    }

    /// Where the guard notes what it sees below the agent.
    pub fn note(&self) -> PathBuf {
        self.socket(sockets::NOTE)
    }

    fn socket(&self, ending: &str) -> PathBuf {
        self.sockets.borrow().join(format!("{}.{ending}", self.paths.socket_stem()))
    }
}
