//! What the ranks of a simulated host say about their training.

use super::SimHost;
use crate::LinkEvent;
use crate::simulator::chance::mix;
use crate::simulator::fault::FaultKind;
use crate::simulator::scene::{CHECKPOINT_EVERY, EVAL_EVERY};
use crate::simulator::simulated_training::{self as training, Life, Moment};
use rankdeck_proto::message::{AgentMessage, LinesRead, RankEvent};
use rankdeck_types::ids::{NodeRank, Rank};
use std::time::Duration;
use tokio::time::Instant;

/// Iterations are reported at most this often.
const REPORT: Duration = Duration::from_millis(250);

impl SimHost {
    pub(super) fn train(
        &mut self,
        life: &Life,
        moment: Option<Moment>,
        now: Instant,
        out: &mut Vec<LinkEvent>,
    ) {
        let Some(moment) = moment else { return };
        if !self.joined {
            self.joined = true;
            for local in 0..self.processes.len() {
                let device = if self.scene().gpus { format!("cuda:{local}") } else { "cpu".to_owned() };
                let backend = if self.scene().gpus { "nccl (simulated)" } else { "tcp (simulated)" };
                let world_size = self.scene().world_size();
                let joined = RankEvent::Joined { world_size, backend: backend.to_owned(), device };
                self.said(self.rank(local), joined, out);
            }
        }
        let every = (REPORT.as_millis() / self.scene().iteration.as_millis().max(1)).max(1) as u64;
        let due: Vec<u64> = (self.reported + 1..=moment.done).collect();
        self.reported = self.reported.max(moment.done);
        for iter in due {
            if iter % every == 0 || life.end.is_some_and(|(end, _)| end == iter) {
                self.report(iter, out);
            }
            if self.node == NodeRank(0) {
                self.report_rank_0(life, iter, now, out);
            }
        }
    }

    /// What every rank says about an iteration.
    fn report(&mut self, iter: u64, out: &mut Vec<LinkEvent>) {
        for local in 0..self.processes.len() {
            let rank = self.rank(local);
            let counters = training::counters(self.scene(), rank, iter);
            self.said(rank, RankEvent::Counters(counters), out);
            let line = format!(
                "iter {iter} env_step {} episodes {} return {:.1}",
                counters.env_step,
                counters.episodes,
                counters.returns.sum / counters.returns.count.max(1) as f64
            );
            let first = self.logged[local];
            self.logged[local] += 1;
            let times = vec![LinesRead { lines: 1, time_ms: (self.time() * 1000.0) as u64 }];
            self.say(AgentMessage::Log { rank, first, lines: vec![line], times }, out);
        }
        if self.node == NodeRank(0) {
            let totals = training::totals(self.scene(), iter);
            let values =
                training::scalars(self.scene(), iter).map(|(name, value)| (name.to_owned(), value)).into();
            let env_step = totals.env_step;
            self.said(Rank(0), RankEvent::Totals(totals), out);
            self.said(
                Rank(0),
                RankEvent::Scalars { train_iter: iter, env_step, values, not_finite: Default::default() },
                out,
            );
        }
    }

    fn report_rank_0(&mut self, life: &Life, iter: u64, now: Instant, out: &mut Vec<LinkEvent>) {
        let env_step = training::totals(self.scene(), iter).env_step;
        let world = self.scene().world_size();
        let weights = mix(self.scene().seed, iter);
        let drifted =
            (0..world).find(|rank| training::in_force(life, FaultKind::Drift, *rank, now).is_some());
        if iter.is_multiple_of(EVAL_EVERY) || drifted.is_some() {
            let values = (0..world)
                .map(|rank| format!("{:016x}", weights ^ u64::from(Some(rank) == drifted)))
                .collect();
            let update = iter * training::GRADS;
            let equal = drifted.is_none();
            self.said(Rank(0), RankEvent::Fingerprint { train_iter: iter, update, values, equal }, out);
        }
        if iter.is_multiple_of(EVAL_EVERY) {
            let evaluation = training::evaluation(self.scene(), iter);
            self.said(Rank(0), RankEvent::Eval(evaluation), out);
        }
        let last = life.end.is_some_and(|(end, _)| end == iter);
        if iter.is_multiple_of(CHECKPOINT_EVERY) || last {
            self.world.life().checkpoint = iter;
            let reason = if last { "stop" } else { "latest" };
            let path = format!("/scratch/rankdeck/runs/{}/checkpoints/{reason}.ot", self.world.run);
            let checkpoint =
                RankEvent::Checkpoint { path, env_step, train_iter: iter, reason: reason.to_owned() };
            self.said(Rank(0), checkpoint, out);
        }
    }
}
