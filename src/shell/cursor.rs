//! The time cursor over a record: in a live run, after its end, and in a replay.

use super::player::Player;
use super::record::reader::{Record, RecordError};
use rankdeck_core::model::{HistoryLine, Model, RunState, Subject, Tone};
use rankdeck_core::report::{Outcome, Severity};
use rankdeck_tui::ranks;
use rankdeck_tui::time::{Mark, PresentNews, TimeCursor, TimeMove, neighbour};
use rankdeck_types::ids::Timestamp;
use std::path::Path;

/// Speeds of a cursor that moves by itself.
pub const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0];
/// As fast as the run did.
const USUAL: usize = 2;
/// How often a moving cursor is looked at.
const STEP_MS: u64 = 50;

/// A moment that is shown instead of the present.
pub struct Cursor {
    player: Player,
    live: bool,
    speed: usize,
    /// Clock and moment when it began to move by itself.
    moving: Option<(Timestamp, Timestamp)>,
    marks: Vec<Mark>,
}

/// What happened, as far as a run remembers it: of routine, evaluations and checkpoints, not the comings and
/// goings of ranks.
fn marks(model: &Model) -> Vec<Mark> {
    let of_rank = |line: &HistoryLine| matches!(line.subject, Some(Subject::Rank(_)));
    let lines = model.history.iter().filter(|line| !line.routine || !of_rank(line));
    let mark = |line: &HistoryLine| Mark {
        at: line.at,
        tone: line.tone,
        text: line.text.clone(),
        routine: line.routine,
    };
    let mut marks: Vec<Mark> = lines.map(mark).collect();
    marks.sort_by_key(|mark| mark.at);
    marks
}

/// The latest moment with something to show: the end of a run that is over, or what was heard after it; else
/// `now`.
fn latest(model: &Model, now: Timestamp) -> Timestamp {
    match model.run.ended.filter(|_| model.run.state == RunState::Over) {
        Some(ended) => model.history.iter().map(|line| line.at).fold(ended, Timestamp::max).min(now),
        None => now,
    }
}

/// What a present has to say to who looks at its past: the worst verdict, else an end that was not wanted.
fn behind(model: &Model) -> Option<PresentNews> {
    let mut verdicts = ranks::live_verdicts(model);
    if let Some(worst) = verdicts.next() {
        let tone = if worst.severity == Severity::Red { Tone::Bad } else { Tone::Warn };
        let who = match (worst.rank, &worst.host) {
            (Some(rank), _) => format!("rank {rank} "),
            (None, Some(host)) => format!("{host} "),
            (None, None) => String::new(),
        };
        let label = format!("{who}{}", worst.verdict.name());
        return Some(PresentNews { tone, label, more: verdicts.count() });
    }
    let (tone, label) = match model.run.outcome.filter(|_| model.run.state == RunState::Over)? {
        Outcome::Succeeded => (Tone::Good, "succeeded"),
        Outcome::Stopped => (Tone::Warn, "stopped"),
        Outcome::Failed => (Tone::Bad, "failed"),
        Outcome::Stuck => (Tone::Bad, "stuck"),
    };
    Some(PresentNews { tone, label: label.into(), more: 0 })
}

impl Cursor {
    /// At the beginning of a record that has ended.
    ///
    /// # Errors
    /// No segment of it can be read.
    pub fn replay(record: Record) -> Result<Cursor, RecordError> {
        let (last, end) = record.last()?;
        let player = Player::new(record, end)?;
        Ok(Cursor { player, live: false, speed: USUAL, moving: None, marks: marks(&last) })
    }

    /// At the present `now` of a record in `folder` that is being written; all of it is on disk. `model` is
    /// the run now.
    ///
    /// # Errors
    /// No segment of it can be read.
    pub fn live(folder: &Path, now: Timestamp, model: &Model) -> Result<Cursor, RecordError> {
        let mut player = Player::new(Record::open(folder)?, latest(model, now))?;
        player.seek(now);
        Ok(Cursor { player, live: true, speed: USUAL, moving: None, marks: marks(model) })
    }

    /// The record goes on until `now`, and all of it is on disk.
    ///
    /// # Errors
    /// No segment of it can be read.
    pub fn extend(&mut self, now: Timestamp, model: &Model) -> Result<(), RecordError> {
        self.marks = marks(model);
        self.player.extend(latest(model, now))
    }

    /// The run as it was.
    pub fn model(&self) -> &Model {
        self.player.model()
    }

    /// The moment shown.
    pub fn at(&self) -> Timestamp {
        self.player.at()
    }

    /// The record behind it, for who wants every event.
    pub fn player(&mut self) -> &mut Player {
        &mut self.player
    }

    /// Lets it run.
    pub fn play(&mut self, now: Timestamp) {
        self.moving = Some((now, self.player.at()));
    }

    /// Moves; `now` is the clock.
    pub fn go(&mut self, to: TimeMove, now: Timestamp) {
        let at = self.player.at();
        match to {
            TimeMove::Step(ms) => self.player.seek(Timestamp(at.0.saturating_add_signed(ms))),
            TimeMove::To(to) => self.player.seek(to),
            TimeMove::Event(step) => {
                let to = neighbour(&self.marks, at, step).map(|mark| mark.at);
                let edge = if step < 0 { self.player.start() } else { self.player.end() };
                self.player.seek(to.unwrap_or(edge));
            }
            TimeMove::Play => {
                self.moving = match self.moving {
                    Some(_) => None,
                    None => Some((now, at)),
                };
                return;
            }
            TimeMove::Speed(step) => {
                self.speed = self.speed.saturating_add_signed(isize::from(step)).min(SPEEDS.len() - 1);
            }
            TimeMove::Present => {}
        }
        self.moving = self.moving.map(|_| (now, self.player.at()));
    }

    /// Moves by itself, when it does; at the end it stands.
    pub fn advance(&mut self, now: Timestamp) {
        let Some((since, from)) = self.moving else { return };
        let moved = now.since(since) as f64 * SPEEDS.get(self.speed).copied().unwrap_or(1.0);
        self.player.seek(from.plus(moved as u64));
        if self.player.at() >= self.player.end() {
            self.moving = None;
        }
    }

    /// When to look again.
    pub fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        self.moving.map(|_| now.plus(STEP_MS))
    }

    /// As the screen shows it; `present` is the run now, and the clock.
    pub fn shown(&self, present: Option<(&Model, Timestamp)>) -> TimeCursor {
        let at = self.player.at();
        // In whole seconds: nobody reads more, and nothing is drawn for less.
        let end = present.map(|(model, now)| Timestamp(latest(model, now).0 / 1000 * 1000));
        TimeCursor {
            at,
            start: self.player.start(),
            end: end.unwrap_or(self.player.end()).max(at),
            zero: self.player.wall_time() - at.0 as f64 / 1000.0,
            speed: self.moving.and_then(|_| SPEEDS.get(self.speed).copied()),
            live: self.live,
            over: present.is_some_and(|(model, _)| model.run.state == RunState::Over),
            behind: present.and_then(|(model, _)| behind(model)),
            marks: self.marks.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::report::{VerdictKind, VerdictReport};

    #[test]
    fn checkpoints_and_evaluations_are_gone_to_and_the_goings_of_ranks_are_not() {
        let mut model = Model::default();
        let line = |number: u64, subject| HistoryLine {
            routine: number > 1,
            subject,
            ..HistoryLine::new(number, Timestamp(number), Tone::Good, number.to_string())
        };
        let saved = Subject::Checkpoint("a.ckpt".into());
        let left = Subject::Rank(rankdeck_types::ids::Rank(0));
        model.history = [line(1, None), line(2, None), line(3, Some(saved)), line(4, Some(left))].into();
        let found: Vec<(u64, bool)> = marks(&model).iter().map(|mark| (mark.at.0, mark.routine)).collect();
        assert_eq!(found, [(1, false), (2, true), (3, true)]);
    }

    #[test]
    fn the_present_behind_the_past_says_its_worst_and_ends_with_its_run() {
        let mut model = Model::default();
        assert_eq!((behind(&model), latest(&model, Timestamp(90))), (None, Timestamp(90)));
        model.run.state = RunState::Over;
        model.run.outcome = Some(Outcome::Failed);
        model.run.ended = Some(Timestamp(50));
        model.history.push_back(HistoryLine::new(1, Timestamp(60), Tone::Info, "a late word"));
        assert_eq!(latest(&model, Timestamp(90_000)), Timestamp(60), "a run that is over grows no more");
        assert_eq!(behind(&model).map(|behind| behind.label).as_deref(), Some("failed"));
        model.run.state = RunState::Running;
        for (severity, rank) in [(Severity::Red, 3), (Severity::Amber, 1), (Severity::Cleared, 2)] {
            model.verdicts.push(VerdictReport {
                rank: Some(rankdeck_types::ids::Rank(rank)),
                host: None,
                verdict: VerdictKind::Dead,
                severity,
                confidence: rankdeck_core::report::Confidence::Certain,
                reason_code: Default::default(),
                card: Box::default(),
                reason: String::new(),
                latency_s: 0.0,
                first_s: 0.0,
            });
        }
        let wanted = PresentNews { tone: Tone::Bad, label: "rank 3 dead".into(), more: 1 };
        assert_eq!(behind(&model), Some(wanted));
    }
}
