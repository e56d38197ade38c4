//! One rank of a generation: its process, and how that ended.

use crate::proc::Ident;
use rankdeck_proto::message::{Exit, LaunchSpec};
use rankdeck_types::ids::{LocalRank, Rank};

/// One rank of this host.
#[derive(Debug, Clone, PartialEq)]
pub struct RankLife {
    pub rank: Rank,
    /// Its index on this host.
    pub local_rank: LocalRank,
    pub gpu: Option<u32>,
    /// Its process, once it exists.
    pub ident: Option<Ident>,
    /// How it ended.
    pub exit: Option<Exit>,
    pub(super) ended_at: u64,
    pub(super) recorded: bool,
}

impl RankLife {
    /// It has a process that has not ended.
    pub fn lives(&self) -> bool {
        self.ident.is_some() && self.exit.is_none()
    }
}

/// The ranks of a launch that are planned for its host.
pub(super) fn planned_ranks(spec: &LaunchSpec) -> Vec<RankLife> {
    spec.plan
        .ranks_of(spec.node_rank)
        .map(|planned| RankLife {
            rank: planned.rank,
            local_rank: planned.local_rank,
            gpu: planned.gpu,
            ident: None,
            exit: None,
            ended_at: 0,
            recorded: false,
        })
        .collect()
}

/// How a process ended, from the status that `waitpid` gave.
pub fn decode(status: i32, out_of_memory: bool) -> Exit {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        Exit::Signal { signal, out_of_memory: out_of_memory && signal == libc::SIGKILL }
    } else {
        Exit::Code { code: libc::WEXITSTATUS(status) }
    }
}
