//! A playing policy: what `rankdeck play` shows. [`Play`] is data, [`view`] draws it, and a key changes it or
//! becomes a [`PlayAction`].
//!
//! ```text
//! scene     classic control environments as lines, as pixels or characters
//! draw      the screen
//! ```

mod draw;
pub mod scene;

pub use draw::{image_area, moment, view};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_kit::keys::{Binding, KeyTable, Keymap, c, ctrl, k, name};
use rankdeck_kit::overlay::{self, Component, Cx, Handled, Screen, Stack};
use rankdeck_kit::{ColorDepth, Role, bindings, put};
use rankdeck_proto::show::{ShowLine, ShownEnd, ShownPolicy, ShownStep};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::text::Line;
use ratatui::widgets::{Clear, Widget};
use std::collections::VecDeque;

/// Speeds, in steps per second.
const SPEEDS: [u32; 10] = [1, 2, 4, 8, 15, 30, 60, 120, 240, 480];
/// Index of the initial speed.
const INITIAL_SPEED: usize = 5;
/// Maximum frames per second; faster play skips steps.
const FRAME_RATE: u32 = 30;
/// Duration of the frame at the end of an episode.
const END_MS: u64 = 900;
/// Number of frames that are read ahead.
const AHEAD: usize = 256;
/// Memory for shown frames, in bytes.
const MEMORY: usize = 48 << 20;

/// A frame.
#[derive(Debug, Clone, PartialEq)]
pub enum PlayFrame {
    Step(ShownStep),
    /// The end of an episode.
    End(ShownEnd),
}

impl PlayFrame {
    /// Returns its episode, from 0.
    pub fn episode(&self) -> u32 {
        match self {
            PlayFrame::Step(step) => step.episode,
            PlayFrame::End(end) => end.episode,
        }
    }

    fn size(&self) -> usize {
        let numbers = |step: &ShownStep| {
            let scores = step.thought.as_ref().map_or(0, |thought| thought.scores.len());
            4 * (step.seen.len() + step.action.len() + scores)
        };
        size_of::<PlayFrame>()
            + match self {
                PlayFrame::Step(step) => {
                    numbers(step) + step.picture.as_ref().map_or(0, |picture| picture.pixels.len())
                }
                PlayFrame::End(end) => 4 * end.seen.len(),
            }
    }
}

/// A playing policy.
#[derive(Debug, Default)]
pub struct Play {
    /// The checkpoint.
    pub name: String,
    /// The policy, once it is known.
    pub policy: Option<ShownPolicy>,
    /// Number of episodes; `None`: until the user quits.
    pub episodes: Option<u32>,
    /// Returns and steps of the episodes that have ended before the shown frame.
    pub returns: Vec<(f64, u64)>,
    /// How the player ended; the error is what it printed.
    pub end: Option<Result<(), String>>,
    pub paused: bool,
    pub overlays: Stack<PlayOverlay>,
    /// Colors for images.
    pub colors: ColorDepth,
    /// The terminal draws images itself, into [`image_area`].
    pub has_graphics: bool,
    speed: usize,
    frames: VecDeque<PlayFrame>,
    at: usize,
    bytes: usize,
    /// Steps are skipped until this episode starts.
    seek: Option<u32>,
    /// When the shown frame appeared.
    since_ms: u64,
}

impl Play {
    /// Starts without frames.
    pub fn new(name: &str, episodes: Option<u32>) -> Play {
        Play { name: name.to_owned(), episodes, speed: INITIAL_SPEED, ..Play::default() }
    }

    /// Shows a single step.
    pub fn still(policy: ShownPolicy, step: ShownStep, colors: ColorDepth) -> Play {
        let mut play = Play { colors, ..Play::new("", None) };
        play.push(ShowLine::Policy(policy));
        play.push(ShowLine::Step(step));
        play
    }

    /// Returns the shown frame.
    pub fn frame(&self) -> Option<&PlayFrame> {
        self.frames.get(self.at)
    }

    /// Returns the shown step, or the last one before the shown end.
    pub fn step(&self) -> Option<&ShownStep> {
        self.frames.range(..=self.at.min(self.frames.len().checked_sub(1)?)).rev().find_map(|frame| {
            match frame {
                PlayFrame::Step(step) => Some(step),
                PlayFrame::End(_) => None,
            }
        })
    }

    /// Returns the speed in steps per second.
    pub fn speed(&self) -> u32 {
        SPEEDS[self.speed]
    }

    /// Tests whether more lines can be read.
    pub fn can_read(&self) -> bool {
        self.end.is_none() && self.frames.len() <= self.at + AHEAD
    }

    /// Tests whether all frames have been shown.
    pub fn is_done(&self) -> bool {
        self.end.is_some() && self.at + 1 >= self.frames.len()
    }

    /// Adds a line of the player.
    pub fn push(&mut self, line: ShowLine) {
        let frame = match line {
            ShowLine::Policy(policy) => {
                self.policy = Some(policy);
                return;
            }
            ShowLine::Step(step) => PlayFrame::Step(step),
            ShowLine::End(end) => PlayFrame::End(end),
            ShowLine::Unknown => return,
        };
        self.bytes += frame.size();
        self.frames.push_back(frame);
        while self.bytes > MEMORY && self.at > 0 {
            if let Some(dropped) = self.frames.pop_front() {
                self.bytes -= dropped.size();
                self.at -= 1;
            }
        }
        self.continue_seek();
    }

    /// Returns when the next frame is due, `None` while paused or at the end.
    pub fn due_ms(&self) -> Option<u64> {
        if self.paused || self.at + 1 >= self.frames.len() {
            return None;
        }
        let duration = match self.frame() {
            Some(PlayFrame::End(_)) => END_MS.min(END_MS * 60 / u64::from(self.speed())),
            _ => 1000 / u64::from(self.speed().min(FRAME_RATE)),
        };
        Some(self.since_ms + duration)
    }

    /// Advances to the frame that is due; true if it changed.
    pub fn tick(&mut self, now_ms: u64) -> bool {
        if self.due_ms().is_none_or(|due| due > now_ms) {
            return false;
        }
        for _ in 0..(self.speed() / FRAME_RATE).max(1) {
            self.advance(1);
            // The end of an episode is shown at any speed.
            if matches!(self.frame(), Some(PlayFrame::End(_))) {
                break;
            }
        }
        self.since_ms = now_ms;
        true
    }

    /// Moves by frames and updates the returns.
    fn advance(&mut self, by: isize) {
        let last = self.frames.len().saturating_sub(1);
        let to = self.at.saturating_add_signed(by).min(last);
        while self.at < to {
            self.at += 1;
            if let Some(PlayFrame::End(end)) = self.frames.get(self.at) {
                self.returns.push((end.episode_return, end.steps));
            }
        }
        while self.at > to {
            if matches!(self.frame(), Some(PlayFrame::End(_))) {
                self.returns.pop();
            }
            self.at -= 1;
        }
    }

    /// Goes to the first frame of an episode as soon as it is read.
    fn seek(&mut self, episode: u32) {
        self.seek = Some(episode);
        self.continue_seek();
    }

    fn continue_seek(&mut self) {
        let Some(episode) = self.seek else { return };
        let found = self.frames.iter().position(|frame| frame.episode() == episode);
        let to = found.unwrap_or_else(|| self.frames.len().saturating_sub(1));
        self.advance(to as isize - self.at as isize);
        if found.is_some() {
            self.seek = None;
        }
    }
}

/// What the owner of the screen is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlayAction {
    Quit,
    /// Draw everything again.
    Redraw,
    /// Restore the terminal until the shell continues the process.
    Suspend,
}

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlayCommand {
    Pause,
    Step(isize),
    Speed(isize),
    Episode(i64),
    Help,
    Back,
    Do(PlayAction),
}

/// The screen of a playing policy, for keys and overlays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlayUi;

impl Screen for PlayUi {
    type Model = ();
    type State = Play;
    type Action = PlayAction;
    type Command = PlayCommand;
    type Pane = ();
    type Target = ();
    type Overlay = PlayOverlay;

    fn pane_name((): ()) -> &'static str {
        "play"
    }

    fn overlays(play: &mut Play) -> &mut Stack<PlayOverlay> {
        &mut play.overlays
    }
}

rankdeck_kit::overlays! { PlayUi;
    /// What lies over the policy.
    pub enum PlayOverlay {
        Help(PlayHelp),
    }
}

/// The drawing context of a playing policy.
type DrawCtx<'a> = rankdeck_kit::DrawCtx<'a, ()>;

#[rustfmt::skip]
const BINDINGS: &[Binding<PlayUi>] = bindings![
    &[], PlayCommand::Do(PlayAction::Quit), [c('q'), ctrl('c')], 1, "quit", "Quit", enabled;
    &[], PlayCommand::Pause, [c(' '), c('P')], 1, "pause", "Play or pause", enabled;
    &[], PlayCommand::Step(-1), [c(','), k(KeyCode::Left)], 1, "step back", "Pause and go one step back", enabled;
    &[], PlayCommand::Step(1), [c('.'), k(KeyCode::Right)], 1, "step", "Pause and go one step forward", enabled;
    &[], PlayCommand::Speed(1), [c('+'), c('='), c('}')], 1, "faster", "Double the speed", enabled;
    &[], PlayCommand::Speed(-1), [c('-'), c('{')], 1, "slower", "Halve the speed", enabled;
    &[], PlayCommand::Episode(1), [c('n'), c('>')], 1, "next", "Go to the next episode", enabled;
    &[], PlayCommand::Episode(-1), [c('N'), c('<')], 0, "", "Go to the start of this episode, or to the previous one", enabled;
    &[], PlayCommand::Help, [c('?')], 1, "help", "Show key bindings", enabled;
    &[], PlayCommand::Back, [k(KeyCode::Esc)], 0, "", "Close the key bindings", enabled;
    &[], PlayCommand::Do(PlayAction::Redraw), [ctrl('l')], 0, "", "Redraw the screen", enabled;
    &[], PlayCommand::Do(PlayAction::Suspend), [ctrl('z')], 0, "", "Suspend rankdeck (`fg` returns)", enabled;
];

/// All keys of a playing policy.
static KEYS: KeyTable<PlayUi> = KeyTable { parts: &[BINDINGS], renamed: &[], reserved: is_reserved };

fn enabled((): &(), _: &Play) -> Option<&'static str> {
    None
}

fn is_reserved(command: &PlayCommand) -> bool {
    *command == PlayCommand::Do(PlayAction::Quit)
}

fn command(key: KeyEvent) -> Option<PlayCommand> {
    KEYS.find(key, (), &Keymap::default()).map(|binding| binding.command)
}

/// The key bindings. Any key closes them, but for those that the screen's owner handles.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PlayHelp;

impl Component<PlayUi> for PlayHelp {
    fn on_key(&mut self, (): &(), key: KeyEvent, _: &mut Cx<'_, PlayUi>) -> Handled<PlayAction> {
        match command(key) {
            Some(PlayCommand::Do(action)) => Handled::Actions(vec![action]),
            Some(_) => Handled::Close,
            None => Handled::Ignored,
        }
    }

    fn draw(&self, (): &(), _: &Play, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        Clear.render(cx.screen, buf);
        for (row, binding) in KEYS.iter().enumerate() {
            let keys: Vec<String> = binding.keys.iter().map(|key| name(*key, cx.glyphs())).collect();
            let line = vec![
                cx.s(format!(" {}", cx.left(&keys.join(" "), 14)), Role::Accent),
                cx.s(binding.long, Role::Text),
            ];
            put(buf, cx.screen, row, Line::from(line));
        }
    }
}

/// Handles a key.
pub fn on_key(play: &mut Play, key: KeyEvent, now_ms: u64) -> Option<PlayAction> {
    if key.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    if let Some(actions) = overlay::on_key::<PlayUi>(&(), play, key, Timestamp(now_ms)) {
        return actions.first().copied();
    }
    match command(key)? {
        PlayCommand::Do(action) => return Some(action),
        PlayCommand::Help => play.overlays.open(PlayHelp),
        PlayCommand::Back => {}
        PlayCommand::Pause => {
            play.paused = !play.paused;
            play.since_ms = now_ms;
        }
        PlayCommand::Step(by) => {
            play.paused = true;
            play.advance(by);
        }
        PlayCommand::Speed(by) => {
            play.speed = play.speed.saturating_add_signed(by).min(SPEEDS.len() - 1);
        }
        PlayCommand::Episode(by) => {
            let current = play.frame()?.episode();
            let is_first = |frame: &PlayFrame| frame.episode() != current;
            let at_start = play.at == 0 || play.frames.get(play.at - 1).is_some_and(is_first);
            let to = match by {
                1 => current.saturating_add(1),
                _ if at_start => current.saturating_sub(1),
                _ => current,
            };
            let first = play.frames.front().map_or(0, PlayFrame::episode);
            let last = play.episodes.map_or(u32::MAX, |episodes| episodes.saturating_sub(1));
            play.seek(to.clamp(first, last.max(first)));
            play.since_ms = now_ms;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kit::theme::indexed;
    use rankdeck_kit::{Glyphs, Theme};
    use rankdeck_proto::show::{EndKind, EnvImage, PolicyEstimate, ScoreKind};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn keys_have_one_meaning_and_a_text() {
        assert!(KEYS.flaws().is_empty(), "{:?}", KEYS.flaws());
    }

    fn policy(env_id: &str) -> ShowLine {
        ShowLine::Policy(ShownPolicy {
            algorithm: "ppo".into(),
            env_id: env_id.into(),
            train_iter: 120,
            ..ShownPolicy::default()
        })
    }

    fn step(episode: u32, step: u64, seen: &[f32]) -> ShowLine {
        ShowLine::Step(ShownStep {
            episode,
            step,
            seen: seen.to_vec(),
            action: vec![1.0],
            thought: Some(PolicyEstimate {
                scores: vec![0.125, 0.875],
                value: Some(42.5),
                kind: ScoreKind::Probability,
                parts: Vec::new(),
            }),
            reward: 1.0,
            episode_return: step as f64 + 1.0,
            ..ShownStep::default()
        })
    }

    fn end(episode: u32, steps: u64) -> ShowLine {
        ShowLine::End(ShownEnd {
            episode,
            steps,
            episode_return: steps as f64,
            end: EndKind::Terminated,
            seen: vec![2.5, 0.0, 0.3, 0.0],
        })
    }

    /// Three episodes of CartPole, of five steps each.
    fn cart_pole() -> Play {
        let mut play = Play::new("cartpole:best", Some(3));
        play.push(policy("CartPole-v1"));
        for episode in 0..3 {
            (0..5).for_each(|i| play.push(step(episode, i, &[0.1, 0.0, 0.02, 0.0])));
            play.push(end(episode, 5));
        }
        play.end = Some(Ok(()));
        play
    }

    fn drawn(play: &Play, theme: &Theme, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view(play, theme, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width.max(1)));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn press(play: &mut Play, key: char) -> Option<PlayAction> {
        on_key(play, KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE), 0)
    }

    #[test]
    fn frames_advance_with_time_and_an_end_stays() {
        let mut play = cart_pole();
        let mut now = 0;
        let mut frames = 0;
        while let Some(due) = play.due_ms() {
            assert!(!play.tick(due - 1));
            assert!(play.tick(due));
            frames += 1;
            if matches!(play.frames.get(play.at - 1), Some(PlayFrame::End(_))) {
                assert!(due - now >= 900, "an end stays");
            }
            now = due;
        }
        assert_eq!((frames, play.returns.len()), (17, 3));
        assert!(play.is_done());
    }

    #[test]
    fn stepping_back_removes_returns_and_seeks_episodes() {
        let mut play = cart_pole();
        press(&mut play, 'n');
        press(&mut play, 'n');
        assert_eq!((play.frame().unwrap().episode(), play.returns.len()), (2, 2));
        press(&mut play, ',');
        assert!(play.paused && matches!(play.frame(), Some(PlayFrame::End(_))));
        press(&mut play, ',');
        assert_eq!(play.returns.len(), 1);
        press(&mut play, '<');
        assert_eq!(play.frame().unwrap().episode(), 1);
        press(&mut play, '<');
        press(&mut play, '<');
        press(&mut play, '<');
        assert_eq!((play.at, play.returns.len()), (0, 0));
        assert_eq!(press(&mut play, 'q'), Some(PlayAction::Quit));
    }

    #[test]
    fn seek_waits_for_an_episode_that_is_not_read_yet() {
        let mut play = Play::new("x", None);
        play.push(policy("CartPole-v1"));
        play.push(step(0, 0, &[0.0; 4]));
        press(&mut play, 'n');
        (1..4).for_each(|i| play.push(step(0, i, &[0.0; 4])));
        assert!(play.can_read());
        play.push(end(0, 4));
        play.push(step(1, 0, &[0.0; 4]));
        assert_eq!(play.frame().unwrap().episode(), 1);
        assert_eq!(play.returns, [(4.0, 4)]);
    }

    #[test]
    fn memory_is_bounded_and_what_is_shown_stays() {
        let mut play = Play::new("x", None);
        let picture = EnvImage::of(400, 400, &vec![0; 480_000]);
        for i in 0..300 {
            play.push(ShowLine::Step(ShownStep {
                step: i,
                picture: Some(picture.clone()),
                ..ShownStep::default()
            }));
            play.advance(1);
            assert!(matches!(play.frame(), Some(PlayFrame::Step(step)) if step.step == i));
        }
        assert!(play.bytes <= MEMORY && play.frames.len() < 100, "{} {}", play.bytes, play.frames.len());
    }

    #[test]
    fn every_environment_is_drawn_at_every_size_with_all_glyphs() {
        for (env, seen) in [
            ("CartPole-v1", vec![0.1, 0.0, 0.05, 0.0]),
            ("Pendulum-v1", vec![0.5, 0.8, 0.1]),
            ("Acrobot-v1", vec![0.5, 0.8, 0.5, 0.8, 0.0, 0.0]),
            ("MountainCar-v0", vec![-0.5, 0.0]),
            ("Unknown-v0", vec![1.0; 60]),
            ("CartPole-v1", vec![]),
            ("CartPole-v1", vec![1e30, 0.0, f32::MAX, 0.0]),
        ] {
            let mut play = Play::new("x", None);
            play.push(policy(env));
            play.push(step(0, 0, &seen));
            for glyphs in [Glyphs::Braille, Glyphs::Block, Glyphs::Ascii] {
                let theme = Theme::mono().with_glyphs(glyphs);
                for (width, height) in [(0, 0), (1, 1), (30, 8), (80, 24), (200, 60)] {
                    let text = drawn(&play, &theme, width, height);
                    assert!(width < 80 || text.contains("87.5%") && text.contains("42.5"), "{env} {text}");
                    assert!(glyphs != Glyphs::Ascii || text.is_ascii(), "{text}");
                }
            }
        }
    }

    #[test]
    fn pole_is_drawn_above_the_cart() {
        let mut play = cart_pole();
        play.advance(2);
        let text = drawn(&play, &Theme::mono().with_glyphs(Glyphs::Ascii), 80, 24);
        assert!(text.contains("episode 1 of 3 - step 3 - return 3"), "{text}");
        let inked = |line: &str| line.get(..44).unwrap_or_default().matches('#').count();
        let rows: Vec<usize> = text.lines().map(inked).collect();
        let cart = rows.iter().position(|count| *count >= 3).unwrap();
        assert!(rows[..cart].iter().filter(|count| (1..=2).contains(*count)).count() >= 3, "{text}");
        play.advance(100);
        assert!(drawn(&play, &Theme::mono(), 80, 24).contains("3 episodes played"));
    }

    #[test]
    fn images_are_half_blocks_or_shades() {
        let mut play = Play::new("x", None);
        play.push(policy("ALE/Pong-v5"));
        let bytes: Vec<u8> = (0..84 * 84).map(|i| if (i % 84) < 42 { 0 } else { 255 }).collect();
        play.push(ShowLine::Step(ShownStep {
            picture: Some(EnvImage::of(84, 84, &bytes)),
            ..ShownStep::default()
        }));
        assert!(drawn(&play, &Theme::dark(), 80, 24).contains('▀'));
        play.colors = ColorDepth::None;
        let text = drawn(&play, &Theme::mono(), 80, 24);
        assert!(text.contains("   @@@") && !text.contains('▀'), "{text}");
        let area = image_area(&play, ratatui::layout::Rect::new(0, 0, 80, 24)).unwrap();
        assert_eq!((area.width, area.height), (36, 18));
        assert_eq!([indexed([0; 3]), indexed([255; 3]), indexed([255, 0, 0])], [16, 231, 196]);
    }
}
