//! The end of a generation: a stop gets harder as time passes, and what is left is searched for until it is
//! gone.

use super::{Action, Lifecycle, Stage};
use crate::proc::Ident;
use rankdeck_proto::message::{LaunchSpec, RecordEvent, StopMode, Survivor};
use rankdeck_types::ids::Rank;

/// How long ranks may take to vanish after SIGKILL before the survivors are reported.
pub(super) const KILL_PATIENCE_MS: u64 = 10_000;
/// Between two rounds of SIGKILL.
const KILL_AGAIN_MS: u64 = 500;
/// Between two looks at survivors.
pub(super) const LOOK_AGAIN_MS: u64 = 1_000;
/// Graces of a clean stop on a host that has no core for its ranks.
const STARVED: u64 = 4;
/// Longest grace that an order may ask for: an hour.
const MOST_GRACE_MS: u64 = 3_600_000;

/// A stop that was ordered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stop {
    pub(super) mode: StopMode,
    pub(super) ordered_at: u64,
    grace: u64,
    kill_at: u64,
    next_kill: u64,
    /// Survivors were recorded.
    pub(super) told: bool,
}

impl Lifecycle {
    /// Survivors have been told once, and are looked at again until they are gone.
    pub(super) fn survive(&mut self, begun: u64, now: u64) {
        let known = Stop {
            mode: StopMode::Kill,
            ordered_at: begun,
            grace: 0,
            kill_at: now,
            next_kill: now,
            told: false,
        };
        self.stop.get_or_insert(known).told = true;
        self.stage = Stage::Survivors { look_at: now + LOOK_AGAIN_MS };
    }

    /// Orders a stop.
    pub fn stop(&mut self, mode: StopMode, grace_ms: u64, by: &str, now: u64) -> Vec<Action> {
        let order = RecordEvent::StopOrdered { mode, by: by.to_owned() };
        let grace = if mode == StopMode::Kill { 0 } else { grace_ms.min(MOST_GRACE_MS) };
        let learnt = self.learnt_grace(mode, grace);
        let grace = learnt.unwrap_or(grace);
        let kill_at = now.saturating_add(grace);
        match self.stage {
            Stage::Over => Vec::new(),
            Stage::Idle => {
                self.stop =
                    Some(Stop { mode, ordered_at: now, grace, kill_at, next_kill: kill_at, told: false });
                self.stage = Stage::Verifying;
                vec![Action::Record(order), Action::VerifyStop]
            }
            Stage::Verifying => Vec::new(),
            Stage::Survivors { .. } => {
                self.stage = Stage::Verifying;
                if let Some(stop) = &mut self.stop {
                    stop.told = false;
                }
                vec![Action::Record(order), Action::VerifyStop]
            }
            Stage::Running => {
                let known = self.stop.as_ref();
                if known
                    .is_some_and(|stop| stop.mode > mode || (stop.mode == mode && stop.kill_at <= kill_at))
                {
                    return Vec::new();
                }
                let ordered_at = known.map_or(now, |stop| stop.ordered_at);
                self.failed = None;
                self.stop = Some(Stop { mode, ordered_at, grace, kill_at, next_kill: kill_at, told: false });
                let mut actions = vec![Action::Record(order)];
                actions.extend(learnt.map(|grace| self.tell_learnt(grace)));
                match mode {
                    StopMode::Clean => actions.push(Action::SignalRanks(self.live(), libc::SIGTERM)),
                    StopMode::Terminate => actions.push(Action::SignalAll(libc::SIGTERM)),
                    StopMode::Kill => {}
                }
                actions.extend(self.tick(now, false, 0));
                actions
            }
        }
    }

    /// Continues ranks that a signal has stopped; a record says who asked for it.
    pub fn resume(&self, ranks: &[Rank]) -> Vec<Action> {
        let wanted = self.ranks.iter().filter(|life| life.lives() && ranks.contains(&life.rank));
        let (names, idents): (Vec<String>, Vec<Ident>) =
            wanted.filter_map(|life| Some((life.rank.to_string(), life.ident?))).unzip();
        if idents.is_empty() {
            return Vec::new();
        }
        let text = format!("rank {} gets SIGCONT: a console asks for it", names.join(", "));
        vec![Action::Record(RecordEvent::Notice { text }), Action::SignalRanks(idents, libc::SIGCONT)]
    }

    /// What an iteration under way needs, where that is more than `grace` (LIFE-6).
    fn learnt_grace(&self, mode: StopMode, grace: u64) -> Option<u64> {
        let longest = self.rhythm.longest().filter(|_| mode == StopMode::Clean && grace > 0)?;
        let limit = self.spec.as_ref().map_or(0, |spec| limit_ms(spec)).min(MOST_GRACE_MS);
        Some(longest.saturating_add(longest / 2).min(limit)).filter(|learnt| *learnt > grace)
    }

    fn tell_learnt(&self, grace: u64) -> Action {
        let seconds = |ms: u64| ms.div_ceil(1000);
        let text = format!(
            "the stop waits up to {} s for the iteration under way: iterations have taken up to {} s here",
            seconds(grace),
            seconds(self.rhythm.longest().unwrap_or(0))
        );
        Action::Record(RecordEvent::Notice { text })
    }

    /// Every living rank has just made progress on its way to a clean stop, or waits for others that do
    /// (LIFE-5).
    pub fn progressed(&mut self, now: u64) {
        let limit = self.spec.as_ref().map_or(0, |spec| limit_ms(spec));
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.mode == StopMode::Clean) else { return };
        // Once SIGKILL is sent, nothing softens it (LIFE-3).
        if self.stage == Stage::Running && now < stop.kill_at {
            let latest = stop.ordered_at.saturating_add(limit.max(stop.grace));
            stop.kill_at = now.saturating_add(stop.grace).min(latest).max(stop.kill_at);
            stop.next_kill = stop.kill_at;
        }
    }

    /// A rank that is to leave wants a core and gets none: it has four times the grace (LIFE-7).
    pub fn starved(&mut self, now: u64) {
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.mode == StopMode::Clean) else { return };
        if self.stage == Stage::Running && now < stop.kill_at {
            let latest = stop.ordered_at.saturating_add(stop.grace.saturating_mul(STARVED));
            stop.kill_at = now.saturating_add(stop.grace).min(latest).max(stop.kill_at);
            stop.next_kill = stop.kill_at;
        }
    }

    fn live(&self) -> Vec<Ident> {
        self.ranks.iter().filter(|life| life.lives()).filter_map(|life| life.ident).collect()
    }

    /// Time passed. `attended`: a console looks on. `unattended_ms`: how long neighbours of a failed rank may
    /// wait for orders.
    pub fn tick(&mut self, now: u64, attended: bool, unattended_ms: u64) -> Vec<Action> {
        match (self.stage, &mut self.stop) {
            (Stage::Survivors { look_at }, _) if now >= look_at => {
                self.stage = Stage::Verifying;
                vec![Action::VerifyStop]
            }
            (Stage::Running, Some(stop)) if now >= stop.kill_at.saturating_add(KILL_PATIENCE_MS) => {
                self.stage = Stage::Verifying;
                vec![Action::VerifyStop]
            }
            (Stage::Running, Some(stop)) if now >= stop.next_kill => {
                stop.next_kill = now + KILL_AGAIN_MS;
                vec![Action::SignalAll(libc::SIGKILL)]
            }
            (Stage::Running, None) => match &mut self.failed {
                Some((_, since)) if attended => {
                    *since = now;
                    Vec::new()
                }
                Some((rank, since)) if now.saturating_sub(*since) >= unattended_ms => {
                    let by = format!("rank {rank} failed");
                    let grace = self.spec.as_ref().map_or(0, |spec| grace_ms(spec));
                    self.stop(StopMode::Terminate, grace, &by, now)
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// A search for processes of the run has ended.
    pub fn searched(&mut self, survivors: Vec<Survivor>, gpus_free: Vec<u32>, now: u64) -> Vec<Action> {
        if self.stage != Stage::Verifying {
            return Vec::new();
        }
        let begun = self.stop.as_ref().map_or(self.last_exit, |stop| stop.ordered_at);
        if !survivors.is_empty() {
            let told = self.stop.as_ref().is_some_and(|stop| stop.told);
            self.survive(begun, now);
            if told {
                return Vec::new();
            }
        } else if self.ranks.iter().any(|life| !life.recorded) {
            // Gone from /proc, but not yet reaped, spawned or recorded: their ends come first (LIFE-1).
            self.stage = Stage::Survivors { look_at: now + KILL_AGAIN_MS };
            return Vec::new();
        } else {
            self.stage = if self.spec.is_some() { Stage::Over } else { Stage::Idle };
            self.stop = None;
            self.failed = None;
        }
        let took_ms = now.saturating_sub(begun);
        vec![Action::Save, Action::Record(RecordEvent::Stopped { survivors, gpus_free, took_ms })]
    }
}

/// Milliseconds between the polite and the hard signal, as the experiment says.
pub fn grace_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_grace_s)
}

/// Milliseconds that progress may extend them to.
fn limit_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_limit_s)
}

fn milliseconds(seconds: f64) -> u64 {
    if seconds.is_finite() { (seconds.max(0.0) * 1000.0) as u64 } else { 0 }
}
