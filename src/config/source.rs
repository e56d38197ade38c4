//! Where the hosts of a run come from.

use super::diagnostic::Diagnostics;
use super::document::{self, Node};
use super::{hosts, slurm};
use rankdeck_types::host::Host;
use std::path::{Path, PathBuf};

/// Where the hosts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostsSource {
    /// The `[[host]]` tables of this file.
    File(PathBuf),
    /// The Slurm allocation that this process runs in.
    Slurm {
        /// The hosts file whose `[defaults]` hold, if there is such a file.
        defaults: PathBuf,
    },
}

impl HostsSource {
    /// The hosts in node_rank order, with the document for errors that are found later.
    pub(super) fn read(&self) -> Result<(Vec<Host>, Node), Diagnostics> {
        match self {
            HostsSource::File(path) => hosts::read(path),
            HostsSource::Slurm { defaults } => slurm::read(defaults, &|name| std::env::var(name).ok()),
        }
    }

    /// The file that holds the keys of the hosts.
    fn path(&self) -> &Path {
        match self {
            HostsSource::File(path) | HostsSource::Slurm { defaults: path } => path,
        }
    }

    /// What the user calls the source.
    pub(super) fn name(&self) -> String {
        match self {
            HostsSource::Slurm { defaults } if !defaults.exists() => slurm::OPTION.to_owned(),
            _ => self.path().display().to_string(),
        }
    }

    /// The document alone, when it can be read.
    pub(super) fn document(&self) -> Option<Node> {
        let source = document::read(self.path(), "file", "").ok()?;
        document::parse(&source).ok()
    }
}

/// The hosts of `source`, in node_rank order. Looks at the identity files and the environment, and at nothing else
/// outside the hosts file.
///
/// Errors: every mistake, with its line.
pub fn load_hosts(source: &HostsSource) -> Result<Vec<Host>, Diagnostics> {
    source.read().map(|(hosts, _)| hosts)
}
