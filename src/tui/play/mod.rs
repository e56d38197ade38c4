//! A policy at play: what `rankdeck play` shows. [`Play`] is data, [`view`] draws it and nothing else, and a
//! key changes it or becomes a [`PlayAction`].
//!
//! ```text
//! raster    lines and areas as pixels, and pixels as characters
//! scene     classic control as lines
//! picture   pictures as characters
//! keys      the table of keys: dispatch, footer and help
//! draw      the page
//! ```

mod draw;
mod keys;
pub mod picture;
pub mod raster;
pub mod scene;

pub use draw::{moment, picture_area, view};
pub use keys::{PlayAction, on_key};

use rankdeck_proto::show::{ShowLine, ShownEnd, ShownPolicy, ShownStep};
use std::collections::VecDeque;

/// Steps per second that can be chosen.
const SPEEDS: [u32; 10] = [1, 2, 4, 8, 15, 30, 60, 120, 240, 480];
/// The one that it begins with.
const USUAL: usize = 5;
/// Most frames per second; faster play leaves steps out.
const FRAMES: u32 = 30;
/// How long the end of an episode stays.
const END_MS: u64 = 900;
/// Moments that are read ahead.
const AHEAD: usize = 256;
/// Memory for what has been shown.
const MEMORY: usize = 48 << 20;

/// What one frame shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    Step(ShownStep),
    /// The end of an episode.
    End(ShownEnd),
}

impl Moment {
    /// Its episode, from 0.
    pub fn episode(&self) -> u32 {
        match self {
            Moment::Step(step) => step.episode,
            Moment::End(end) => end.episode,
        }
    }

    fn size(&self) -> usize {
        let numbers = |step: &ShownStep| {
            let scores = step.thought.as_ref().map_or(0, |thought| thought.scores.len());
            4 * (step.seen.len() + step.action.len() + scores)
        };
        size_of::<Moment>()
            + match self {
                Moment::Step(step) => {
                    numbers(step) + step.picture.as_ref().map_or(0, |picture| picture.pixels.len())
                }
                Moment::End(end) => 4 * end.seen.len(),
            }
    }
}

/// Colours that the terminal has, for pictures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Colours {
    /// Red, green and blue.
    True,
    /// A palette of 256.
    #[default]
    Palette,
    /// None: pictures are shades of characters.
    None,
}

/// A policy at play.
#[derive(Debug, Default)]
pub struct Play {
    /// Which checkpoint.
    pub name: String,
    /// Who plays, once that is known.
    pub policy: Option<ShownPolicy>,
    /// The episodes that were asked for; `None`: until the user leaves.
    pub episodes: Option<u32>,
    /// Returns and steps of the episodes that are over, at the moment that is shown.
    pub returns: Vec<(f64, u64)>,
    /// No more lines come; the text says why, where that is a failure.
    pub over: Option<Result<(), String>>,
    /// Nothing moves by itself.
    pub paused: bool,
    /// The keys are shown.
    pub help: bool,
    /// Colours for pictures.
    pub colours: Colours,
    /// Pictures are drawn by somebody else, into [`picture_area`].
    pub drawn_apart: bool,
    speed: usize,
    moments: VecDeque<Moment>,
    at: usize,
    bytes: usize,
    /// Steps are passed over until this episode begins.
    seek: Option<u32>,
    /// When the moment that is shown was first shown.
    since_ms: u64,
}

impl Play {
    /// Before the first line.
    pub fn new(name: &str, episodes: Option<u32>) -> Play {
        Play { name: name.to_owned(), episodes, speed: USUAL, ..Play::default() }
    }

    /// One step of a policy, by itself.
    pub fn still(policy: ShownPolicy, step: ShownStep, colours: Colours) -> Play {
        let mut play = Play { colours, ..Play::new("", None) };
        play.push(ShowLine::Policy(policy));
        play.push(ShowLine::Step(step));
        play
    }

    /// What is shown.
    pub fn moment(&self) -> Option<&Moment> {
        self.moments.get(self.at)
    }

    /// The step that is shown, or the one before the end that is.
    pub fn step(&self) -> Option<&ShownStep> {
        self.moments.range(..=self.at.min(self.moments.len().checked_sub(1)?)).rev().find_map(|moment| {
            match moment {
                Moment::Step(step) => Some(step),
                Moment::End(_) => None,
            }
        })
    }

    /// Steps per second.
    pub fn speed(&self) -> u32 {
        SPEEDS[self.speed]
    }

    /// More lines may be read.
    pub fn wants_more(&self) -> bool {
        self.over.is_none() && self.moments.len() <= self.at + AHEAD
    }

    /// Everything has been shown, and nothing follows.
    pub fn is_done(&self) -> bool {
        self.over.is_some() && self.at + 1 >= self.moments.len()
    }

    /// Takes in a line.
    pub fn push(&mut self, line: ShowLine) {
        let moment = match line {
            ShowLine::Policy(policy) => {
                self.policy = Some(policy);
                return;
            }
            ShowLine::Step(step) => Moment::Step(step),
            ShowLine::End(end) => Moment::End(end),
            ShowLine::Unknown => return,
        };
        self.bytes += moment.size();
        self.moments.push_back(moment);
        while self.bytes > MEMORY && self.at > 0 {
            if let Some(gone) = self.moments.pop_front() {
                self.bytes -= gone.size();
                self.at -= 1;
            }
        }
        self.go_on_seeking();
    }

    /// When the next frame is due by itself, `None` while nothing moves.
    pub fn due_ms(&self) -> Option<u64> {
        if self.paused || self.at + 1 >= self.moments.len() {
            return None;
        }
        let stays = match self.moment() {
            Some(Moment::End(_)) => END_MS.min(END_MS * 60 / u64::from(self.speed())),
            _ => 1000 / u64::from(self.speed().min(FRAMES)),
        };
        Some(self.since_ms + stays)
    }

    /// Time has passed; true when another moment is shown.
    pub fn tick(&mut self, now_ms: u64) -> bool {
        if self.due_ms().is_none_or(|due| due > now_ms) {
            return false;
        }
        for _ in 0..(self.speed() / FRAMES).max(1) {
            self.advance(1);
            // The end of an episode is seen at any speed.
            if matches!(self.moment(), Some(Moment::End(_))) {
                break;
            }
        }
        self.since_ms = now_ms;
        true
    }

    /// Goes on, or back; returns of episodes follow.
    fn advance(&mut self, by: isize) {
        let last = self.moments.len().saturating_sub(1);
        let to = self.at.saturating_add_signed(by).min(last);
        while self.at < to {
            self.at += 1;
            if let Some(Moment::End(end)) = self.moments.get(self.at) {
                self.returns.push((end.episode_return, end.steps));
            }
        }
        while self.at > to {
            if matches!(self.moment(), Some(Moment::End(_))) {
                self.returns.pop();
            }
            self.at -= 1;
        }
    }

    /// To the first moment of an episode, as soon as it is there.
    fn seek(&mut self, episode: u32) {
        self.seek = Some(episode);
        self.go_on_seeking();
    }

    fn go_on_seeking(&mut self) {
        let Some(episode) = self.seek else { return };
        let found = self.moments.iter().position(|moment| moment.episode() == episode);
        let to = found.unwrap_or_else(|| self.moments.len().saturating_sub(1));
        self.advance(to as isize - self.at as isize);
        if found.is_some() {
            self.seek = None;
        }
    }
}

#[cfg(test)]
mod tests;
