//! What an agent finds that takes over from a former one: the state in its records, and the records that it
//! could not write any more.

use super::rank_life::planned_ranks;
use super::{Lifecycle, Stage};
use crate::proc::Ident;
use rankdeck_proto::message::{Exit, Record, RecordEvent, Survivor};

impl Lifecycle {
    /// The state that the records of an earlier agent end in. Ranks that were never seen to end died with it.
    pub fn replay(&mut self, record: &Record) {
        match &record.event {
            RecordEvent::Launched { spec } => {
                self.ranks = planned_ranks(spec);
                self.spec = Some(spec.clone());
                self.stage = Stage::Running;
            }
            RecordEvent::RankSpawned { rank, pid, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.ident = Some(Ident { pid: *pid, start: 0 });
                }
            }
            RecordEvent::RankExited { rank, exit, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.exit = Some(exit.clone());
                    life.recorded = true;
                }
            }
            RecordEvent::Stopped { .. } if self.stage == Stage::Running => self.stage = Stage::Over,
            _ => {}
        }
    }

    /// After the replay: the records that the former agent could not write any more. What it had started was
    /// ended before this one began to serve, all but the `survivors`.
    pub fn close_former(&mut self, survivors: Vec<Survivor>) -> Vec<RecordEvent> {
        if self.stage != Stage::Running && survivors.is_empty() {
            return Vec::new();
        }
        let mut events = vec![RecordEvent::Notice {
            text: "the former agent of this host died; what it had started was killed".into(),
        }];
        for life in self.ranks.iter_mut().filter(|life| life.exit.is_none()) {
            let exit = Exit::Signal { signal: libc::SIGKILL, out_of_memory: false };
            life.exit = Some(exit.clone());
            life.recorded = true;
            events.push(RecordEvent::RankExited {
                rank: life.rank,
                pid: life.ident.map_or(0, |ident| ident.pid),
                exit,
                last_lines: Vec::new(),
                stopping: false,
                ago_ms: 0,
                with_agent: true,
            });
        }
        self.stage = Stage::Over;
        if !survivors.is_empty() {
            self.survive(0, 0);
        }
        events.push(RecordEvent::Stopped { survivors, gpus_free: Vec::new(), took_ms: 0 });
        events
    }
}
