//! Plays recordings: a position and the run's state there, the timeline cursor (in a live run, after its end
//! and in a replay), and the screen of `rankdeck replay`, fed from a recording instead of hosts.
//!
//! Seeking costs one segment: its state is read, and its events are applied up to the position. Effects are
//! ignored: playback contacts no host.

use super::clock::{Clock, earlier};
use super::record::reader::{RecordError, Recording, SegmentEvents, TRIES};
use super::screen::{InputOutcome, TerminalScreen};
use super::side_jobs;
use super::side_jobs::CurveReader;
use super::signals::{ConsoleSignal, ConsoleSignals};
use super::terminal_surface::FrameReason;
use rankdeck_core::Core;
use rankdeck_core::event::{Effect, Event};
use rankdeck_core::model::{EventSubject, EventTone, HistoryLine, Model, RunState};
use rankdeck_core::report::{Report, RunOutcome, Severity};
use rankdeck_tui::time::{PresentNews, TimeCursor, TimeMove, TimelineMark, neighbour};
use rankdeck_tui::{Role, ScreenAction, ranks};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::io;
use std::path::Path;

/// A position in a recording.
pub(crate) struct RecordingPlayer {
    record: Recording,
    /// The segment that is being read.
    index: usize,
    core: Core,
    events: SegmentEvents,
    next: Option<(Timestamp, Event)>,
    at: Timestamp,
    end: Timestamp,
    /// The open segment is known up to here.
    read_to: Timestamp,
}

impl RecordingPlayer {
    /// Starts at the beginning. `end` is the last position.
    ///
    /// # Errors
    /// No segment can be read.
    fn new(record: Recording, end: Timestamp) -> Result<RecordingPlayer, RecordError> {
        let mut wrong = None;
        for index in 0..record.count().min(TRIES) {
            match record.segment(index) {
                Ok((core, mut events)) => {
                    let (at, next) = (record.header(index).map_or(end, |head| head.start), events.event());
                    let end = end.max(at);
                    return Ok(RecordingPlayer { record, index, core, events, next, at, end, read_to: end });
                }
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        Err(wrong.unwrap_or_else(|| RecordError::Empty(std::path::PathBuf::new())))
    }

    /// The state at this position.
    pub(crate) fn model(&self) -> &Model {
        self.core.model()
    }

    /// The position.
    fn at(&self) -> Timestamp {
        self.at
    }

    /// The first position.
    fn start(&self) -> Timestamp {
        self.record.start()
    }

    /// The last position.
    fn end(&self) -> Timestamp {
        self.end
    }

    /// Extends the recording; segments may have been added and removed.
    ///
    /// # Errors
    /// As [`Recording::refresh`].
    fn extend(&mut self, end: Timestamp) -> Result<(), RecordError> {
        let number = self.record.number(self.index);
        self.record.refresh()?;
        self.end = self.end.max(end);
        // The open segment stays open even if its file is gone.
        self.index = number.map_or(0, |number| self.record.index_of(number));
        Ok(())
    }

    /// Wall time at this position.
    fn wall_time(&self) -> WallTime {
        self.record.wall_time(self.at)
    }

    /// Applies the next event; returns its time and the reports that it caused; `None` at the end.
    pub(crate) fn step(&mut self) -> Option<(Timestamp, Vec<Report>)> {
        while self.next.is_none() {
            self.open(self.index + 1).ok()?;
        }
        let (at, event) = self.next.take()?;
        self.at = at;
        let effects = self.core.handle(at, event);
        self.next = self.events.event();
        let time = self.record.wall_time(at);
        let reports = effects.into_iter().filter_map(|effect| match effect {
            Effect::Report(report) => Some(Report { time, ..*report }),
            _ => None,
        });
        Some((at, reports.collect()))
    }

    /// Moves to a position.
    fn seek(&mut self, to: Timestamp) {
        let to = to.clamp(self.start(), self.end);
        let index = self.record.find(to);
        if to < self.at || index != self.index || to > self.read_to {
            // An unreadable segment is skipped: playback continues from the one before it.
            let found = (0..=index).rev().any(|index| self.open(index).is_ok());
            if !found && to < self.at {
                return;
            }
        }
        while let Some((at, event)) = self.next.take_if(|(at, _)| *at <= to) {
            self.core.handle(at, event);
            self.next = self.events.event();
        }
        self.at = to;
    }

    fn open(&mut self, index: usize) -> Result<(), RecordError> {
        let (core, mut events) = self.record.segment(index)?;
        (self.index, self.core, self.read_to) = (index, core, self.end);
        self.next = events.event();
        self.events = events;
        Ok(())
    }
}

/// Playback speeds.
const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0];
/// Index of normal speed.
const USUAL: usize = 2;
/// Update interval during playback.
const STEP_MS: u64 = 50;

/// A position in the recording that is shown instead of the live state.
pub(crate) struct PlaybackCursor {
    player: RecordingPlayer,
    live: bool,
    speed: usize,
    /// Clock and position when playback started.
    moving: Option<(Timestamp, Timestamp)>,
    marks: Vec<TimelineMark>,
}

/// Returns the events of a run for the timeline: of routine events only evaluations and checkpoints, not
/// starts and exits of ranks.
pub(crate) fn marks(model: &Model) -> Vec<TimelineMark> {
    let of_rank = |line: &HistoryLine| matches!(line.subject, Some(EventSubject::Rank(_)));
    let lines = model.history.iter().filter(|line| !line.routine || !of_rank(line));
    let mark = |line: &HistoryLine| TimelineMark {
        at: line.at,
        tone: line.tone,
        text: line.text.clone(),
        routine: line.routine,
    };
    let mut marks: Vec<TimelineMark> = lines.map(mark).collect();
    marks.sort_by_key(|mark| mark.at);
    marks
}

/// Returns the latest position worth showing: the end of a finished run, or the last message after it; else
/// `now`.
pub(crate) fn latest(model: &Model, now: Timestamp) -> Timestamp {
    match model.run.ended.filter(|_| model.run.state == RunState::Over) {
        Some(ended) => model.history.iter().map(|line| line.at).fold(ended, Timestamp::max).min(now),
        None => now,
    }
}

/// Summarizes the live state for a user in playback: the worst verdict, else the outcome.
pub(crate) fn behind(model: &Model) -> Option<PresentNews> {
    let mut verdicts = ranks::live_verdicts(model);
    if let Some(worst) = verdicts.next() {
        let tone = if worst.severity == Severity::Red { EventTone::Bad } else { EventTone::Warn };
        let who = match (worst.rank, &worst.host) {
            (Some(rank), _) => format!("rank {rank} "),
            (None, Some(host)) => format!("{host} "),
            (None, None) => String::new(),
        };
        let label = format!("{who}{}", worst.verdict.name());
        return Some(PresentNews { tone, label, more: verdicts.count() });
    }
    let (tone, label) = match model.run.outcome.filter(|_| model.run.state == RunState::Over)? {
        RunOutcome::Succeeded => (EventTone::Good, "succeeded"),
        RunOutcome::Stopped => (EventTone::Warn, "stopped"),
        RunOutcome::Failed => (EventTone::Bad, "failed"),
        RunOutcome::Stuck => (EventTone::Bad, "stuck"),
    };
    Some(PresentNews { tone, label: label.into(), more: 0 })
}

impl PlaybackCursor {
    /// Starts at the beginning of a finished recording.
    ///
    /// # Errors
    /// No segment can be read.
    pub(crate) fn replay(record: Recording) -> Result<PlaybackCursor, RecordError> {
        let (last, end) = record.last()?;
        let player = RecordingPlayer::new(record, end)?;
        Ok(PlaybackCursor { player, live: false, speed: USUAL, moving: None, marks: marks(&last) })
    }

    /// Starts at the live position `now` of the recording in `folder`, which is completely on disk up to
    /// `end`.
    ///
    /// # Errors
    /// No segment can be read.
    pub(crate) fn live(
        folder: &Path,
        now: Timestamp,
        end: Timestamp,
        marks: Vec<TimelineMark>,
    ) -> Result<PlaybackCursor, RecordError> {
        let mut player = RecordingPlayer::new(Recording::open(folder)?, end)?;
        player.seek(now);
        Ok(PlaybackCursor { player, live: true, speed: USUAL, moving: None, marks })
    }

    /// Extends the recording to `end`; all of it is on disk.
    ///
    /// # Errors
    /// No segment can be read.
    pub(crate) fn extend(&mut self, end: Timestamp, marks: Vec<TimelineMark>) -> Result<(), RecordError> {
        self.marks = marks;
        self.player.extend(end)
    }

    /// The state at this position.
    pub(crate) fn model(&self) -> &Model {
        self.player.model()
    }

    /// The position.
    pub(crate) fn at(&self) -> Timestamp {
        self.player.at()
    }

    /// The player, for every event.
    pub(crate) fn player(&mut self) -> &mut RecordingPlayer {
        &mut self.player
    }

    /// Starts playback.
    pub(crate) fn play(&mut self, now: Timestamp) {
        self.moving = Some((now, self.player.at()));
    }

    /// Moves the cursor; `now` is the clock.
    pub(crate) fn seek(&mut self, to: TimeMove, now: Timestamp) {
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

    /// Advances during playback; stops at the end.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        let Some((since, from)) = self.moving else { return };
        let moved = now.since(since) as f64 * SPEEDS.get(self.speed).copied().unwrap_or(1.0);
        self.player.seek(from.plus(moved as u64));
        if self.player.at() >= self.player.end() {
            self.moving = None;
        }
    }

    /// When to advance next.
    pub(crate) fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        self.moving.map(|_| now.plus(STEP_MS))
    }

    /// The cursor for the view.
    pub(crate) fn shown(&self) -> TimeCursor {
        let at = self.player.at();
        TimeCursor {
            at,
            start: self.player.start(),
            end: self.player.end().max(at),
            zero: self.player.wall_time() - at.0 as f64 / 1000.0,
            speed: self.moving.and_then(|_| SPEEDS.get(self.speed).copied()),
            live: self.live,
            over: false,
            behind: None,
            marks: self.marks.clone(),
        }
    }
}

/// Plays a recording on a screen until the user quits; other runs are found in `runs`. `what` names the
/// recording on a command line.
///
/// # Errors
/// The terminal fails.
pub(crate) async fn show_replay(
    mut cursor: PlaybackCursor,
    mut screen: TerminalScreen,
    runs: &Path,
    what: &str,
) -> io::Result<()> {
    screen.view.steering.replay = true;
    screen.view.steering.report = Some(format!("rankdeck report {what}"));
    screen.view.steering.recorded = side_jobs::names(runs, "");
    let mut curves = CurveReader::default();
    let mut signals = ConsoleSignals::new(true)?;
    let clock = Clock::new();
    cursor.play(clock.now());
    loop {
        let now = clock.now();
        cursor.advance(now);
        let shown = cursor.shown();
        if screen.view.moment.cursor.as_ref() != Some(&shown) {
            screen.view.moment.cursor = Some(shown);
            screen.request_frame(FrameReason::Data);
        }
        screen.draw(now, cursor.at(), cursor.model(), &|_| {})?;
        let (due, wake) = (earlier(cursor.poll_timeout(now), screen.poll_timeout()), screen.wake());
        let input = tokio::select! {
            signal = signals.next() => {
                match signal {
                    ConsoleSignal::Stop | ConsoleSignal::HangUp => break,
                    ConsoleSignal::Suspend => screen.suspend(&mut signals).await?,
                    ConsoleSignal::Continue => screen.redraw(),
                }
                continue;
            }
            loaded = curves.next() => {
                match loaded {
                    Ok(runs) => screen.view.charts.view.compared = runs,
                    Err(why) => screen.view.toast(format!("compare: {why}"), Role::Warn, cursor.at()),
                }
                screen.request_frame(FrameReason::Input);
                continue;
            }
            input = screen.next_input() => input,
            () = wake.notified() => continue,
            () = clock.sleep_until(due) => continue,
        };
        let InputOutcome::Actions(actions) = screen.handle_input(input, cursor.model(), cursor.at()) else {
            break;
        };
        for action in actions {
            match action {
                ScreenAction::Send(Event::DetachRequested) => {
                    screen.close();
                    side_jobs::finish();
                    return Ok(());
                }
                ScreenAction::Time(to) => cursor.seek(to, clock.now()),
                ScreenAction::Suspend => screen.suspend(&mut signals).await?,
                ScreenAction::Redraw => screen.redraw(),
                ScreenAction::Compare(names) if names.is_empty() => screen.view.charts.view.compared.clear(),
                ScreenAction::Compare(names) => curves.read(runs.to_owned(), names),
                ScreenAction::Mouse(on) => screen.mouse(on),
                ScreenAction::Copy(text) => screen.copy(&text, cursor.at()),
                ScreenAction::SaveFiles(files) => screen.save_files(Path::new("."), files),
                ScreenAction::SaveScreen => screen.save(Path::new("."), cursor.model(), cursor.at()),
                // Playback cannot stop, restart, relaunch or answer.
                ScreenAction::Send(_) | ScreenAction::Again | ScreenAction::Shell(_) => {}
            }
        }
        screen.request_frame(FrameReason::Input);
    }
    screen.close();
    side_jobs::finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::record::segments::{RecordingLimits, SegmentRing};
    use rankdeck_core::Goal;
    use rankdeck_core::report::{VerdictKind, VerdictReport};
    use rankdeck_types::ids::RunId;

    /// Records a notice each second, in many segments.
    fn recorded(folder: &Path, seconds: u64) {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let limits = RecordingLimits { segments: 1 << 20, logs: 1 << 20, events: 500, states: 0, lines: 500 };
        let mut core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut ring = SegmentRing::new(None, folder.into(), limits, Timestamp(0), 100.0).unwrap();
        for n in 0..seconds {
            let event = Event::Noticed { text: format!("{n} {}", "x".repeat(40)) };
            ring.event(Timestamp(n * 1000), &event, &core);
            core.handle(Timestamp(n * 1000), event);
        }
        ring.finish();
    }

    fn newest(player: &RecordingPlayer) -> usize {
        player.model().history.len()
    }

    #[test]
    fn seeking_goes_both_ways_and_stops_at_the_ends() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 300);
        let record = Recording::open(folder.path()).unwrap();
        assert!(record.count() > 3, "{} segments", record.count());
        let (_, end) = record.last().unwrap();
        let mut player = RecordingPlayer::new(record, end).unwrap();
        for to in [250_500, 10_000, 0, 99_999, 100_000, 299_000, 5_500] {
            player.seek(Timestamp(to));
            assert_eq!((player.at(), newest(&player)), (Timestamp(to), to as usize / 1000 + 1));
        }
        player.seek(Timestamp(1 << 40));
        assert_eq!((player.at(), newest(&player)), (Timestamp(299_000), 300));
        player.seek(Timestamp(0));
        assert_eq!(player.wall_time(), 100.0);
    }

    #[test]
    fn stepping_goes_through_all_segments() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 100);
        let record = Recording::open(folder.path()).unwrap();
        let mut player = RecordingPlayer::new(record, Timestamp(0)).unwrap();
        let steps = std::iter::from_fn(|| player.step()).map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!((steps.len(), steps.is_sorted()), (100, true));
        assert_eq!(newest(&player), 100);
    }

    /// One event is later than those after it, as after a clock was set back.
    #[test]
    fn event_later_than_the_last_one_is_played() {
        let folder = tempfile::tempdir().unwrap();
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let limits = RecordingLimits { segments: 1 << 20, logs: 1 << 20, events: 500, states: 0, lines: 500 };
        let core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut ring = SegmentRing::new(None, folder.path().into(), limits, Timestamp(0), 100.0).unwrap();
        for (text, at) in [("a", 0), ("b", 9_000), ("c", 5_000), ("d", 5_000)] {
            ring.event(Timestamp(at), &Event::Noticed { text: text.into() }, &core);
        }
        ring.finish();
        let mut cursor = PlaybackCursor::replay(Recording::open(folder.path()).unwrap()).unwrap();
        cursor.play(Timestamp(0));
        let mut polls = 0;
        while let Some(now) = cursor.poll_timeout(Timestamp(50 * polls)) {
            cursor.advance(now);
            polls += 1;
            assert!(polls < 1000, "at {:?} forever", cursor.at());
        }
        assert_eq!((cursor.at(), cursor.model().history.len()), (Timestamp(9_000), 4));
        cursor.player().seek(Timestamp(0));
        let steps = std::iter::from_fn(|| cursor.player().step()).take(1000).count();
        assert_eq!(steps, 3, "what follows the first, once each");
    }

    #[test]
    fn damaged_segment_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 300);
        let record = Recording::open(folder.path()).unwrap();
        let middle = record.header(2).unwrap().start;
        let next = record.header(3).unwrap().start;
        let path = crate::app::record::segments::path(folder.path(), 3, false);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 8]).unwrap();
        let mut player = RecordingPlayer::new(record, Timestamp(299_000)).unwrap();
        player.seek(Timestamp(middle.0 + 1000));
        assert_eq!(newest(&player) as u64, middle.0 / 1000, "as it was before the damage");
        player.seek(next);
        assert_eq!(newest(&player) as u64, next.0 / 1000 + 1);
    }

    #[test]
    fn timeline_marks_checkpoints_but_not_rank_exits() {
        let mut model = Model::default();
        let line = |number: u64, subject| HistoryLine {
            routine: number > 1,
            subject,
            ..HistoryLine::new(number, Timestamp(number), EventTone::Good, number.to_string())
        };
        let saved = EventSubject::Checkpoint("a.ckpt".into());
        let left = EventSubject::Rank(rankdeck_types::ids::Rank(0));
        model.history = [line(1, None), line(2, None), line(3, Some(saved)), line(4, Some(left))].into();
        let found: Vec<(u64, bool)> = marks(&model).iter().map(|mark| (mark.at.0, mark.routine)).collect();
        assert_eq!(found, [(1, false), (2, true), (3, true)]);
    }

    #[test]
    fn live_state_in_playback_shows_worst_verdict_or_outcome() {
        let mut model = Model::default();
        assert_eq!((behind(&model), latest(&model, Timestamp(90))), (None, Timestamp(90)));
        model.run.state = RunState::Over;
        model.run.outcome = Some(RunOutcome::Failed);
        model.run.ended = Some(Timestamp(50));
        model.history.push_back(HistoryLine::new(1, Timestamp(60), EventTone::Info, "a late message"));
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
                proof: None,
                reason_code: Default::default(),
                card: Box::default(),
                reason: String::new(),
                latency_s: 0.0,
                first_s: 0.0,
            });
        }
        let expected = PresentNews { tone: EventTone::Bad, label: "rank 3 dead".into(), more: 1 };
        assert_eq!(behind(&model), Some(expected));
    }
}
