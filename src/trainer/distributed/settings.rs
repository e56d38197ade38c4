//! What a rank needs to know to join its group.

use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::Backend;
use std::time::Duration;
use tch::Device;

/// Which library carries the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// CPU tensors, over our own TCP connections.
    Tcp,
    /// CUDA tensors.
    Nccl,
}

impl BackendKind {
    /// What a flag or a configuration asks for; `None` where it leaves the choice to the rank.
    pub fn named(backend: Backend) -> Option<BackendKind> {
        match backend {
            Backend::Auto => None,
            Backend::Tcp => Some(BackendKind::Tcp),
            Backend::Nccl => Some(BackendKind::Nccl),
        }
    }

    /// Its name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Tcp => "tcp",
            BackendKind::Nccl => "nccl",
        }
    }
}

/// What a rank needs to know to join.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    pub rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// Its number on this host; the default CUDA device.
    pub local_rank: u32,
    /// Host of rank 0.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Library.
    pub backend: BackendKind,
    /// Limit of the rendezvous and of each collective.
    pub timeout: Duration,
    /// Network interface for CPU tensors; else `GLOO_SOCKET_IFNAME`, else the one that leads to rank 0.
    pub interface: Option<String>,
    /// Restarts so far; ranks of different generations never meet.
    pub generation: u32,
    /// What the ranks know each other by. Without one, connections between ranks are not authenticated.
    pub secret: Option<GroupSecret>,
    /// Where this rank's tensors live.
    pub device: Device,
}
