//! The options of Atari games in `[env]`, with their defaults: the wrappers of CleanRL's `ppo_atari.py` and
//! `dqn_atari.py` and of DI-engine's `wrap_deepmind`, which follow OpenAI's Baselines and Mnih et al. 2015.

use crate::experiment::Env;
use serde::Serialize;

/// Frames of a game after which it is cut off: half an hour, as ale-py registers its games.
const MAX_FRAMES: u64 = 108_000;

/// How a game is played and seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Atari {
    /// Frames per step; the observation is the maximum of the last two.
    pub frame_skip: u32,
    /// Probability that a frame repeats the previous action (Machado et al. 2018, sticky actions).
    pub repeat_action_probability: f64,
    /// A game begins with 1 to this many idle frames.
    pub noop_max: u32,
    /// In training a lost life ends the episode, without a reset. Never in an evaluation.
    pub episodic_life: bool,
    /// In training rewards are their signs. Never in an evaluation.
    pub clip_rewards: bool,
    /// Frames in an observation.
    pub frame_stack: u32,
    /// Height and width of a frame in pixels, gray.
    pub image_size: u32,
    /// Frames after which a game is cut off (truncated).
    pub max_frames: u64,
}

impl Env {
    /// The options of Atari games that the file sets.
    pub fn atari_keys(&self) -> Vec<&'static str> {
        [
            ("frame_skip", self.frame_skip.is_some()),
            ("repeat_action_probability", self.repeat_action_probability.is_some()),
            ("noop_max", self.noop_max.is_some()),
            ("episodic_life", self.episodic_life.is_some()),
            ("clip_rewards", self.clip_rewards.is_some()),
            ("frame_stack", self.frame_stack.is_some()),
            ("image_size", self.image_size.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, set)| set.then_some(key))
        .collect()
    }

    /// The id has the form of an Atari game's.
    pub fn looks_atari(&self) -> bool {
        self.id.starts_with("ALE/") || self.id.contains("NoFrameskip-")
    }

    /// Every option, with defaults where the file says nothing.
    pub fn atari(&self) -> Atari {
        // As ale-py registers these ids.
        let sticky = if self.id.starts_with("ALE/") || self.id.ends_with("-v0") { 0.25 } else { 0.0 };
        let frame_skip = self.frame_skip.unwrap_or(4);
        Atari {
            frame_skip,
            repeat_action_probability: self.repeat_action_probability.unwrap_or(sticky),
            noop_max: self.noop_max.unwrap_or(30),
            episodic_life: self.episodic_life.unwrap_or(true),
            clip_rewards: self.clip_rewards.unwrap_or(true),
            frame_stack: self.frame_stack.unwrap_or(4),
            image_size: self.image_size.unwrap_or(84),
            max_frames: self
                .max_episode_steps
                .map_or(MAX_FRAMES, |steps| u64::from(steps) * u64::from(frame_skip))
                .min(i32::MAX as u64),
        }
    }
}
