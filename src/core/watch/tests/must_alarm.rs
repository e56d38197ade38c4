//! What must alarm: the cases of the fault matrix that can be decided on paper. Each asserts the guilty rank,
//! the reason and the latency.

mod calls;
mod ends;
mod hosts;
mod obstacles;
mod standstill;
mod stragglers;
mod weights;

use super::lab::Pace;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

fn exits(c: &mut Cluster, rank: u32, exit: Exit, line: &str) {
    c.agents[rank as usize / 2].samples.remove(&rank);
    let event = RecordEvent::RankExited {
        rank: Rank(rank),
        pid: 1000 + rank,
        exit,
        last_lines: vec![line.into()],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    };
    c.record(rank as usize / 2, event);
}

fn signal(signal: i32, out_of_memory: bool) -> Exit {
    Exit::Signal { signal, out_of_memory }
}

const FAST: Pace = Pace { period_ms: 100, collectives: 6 };
