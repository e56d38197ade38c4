//! Output of `rankdeck-trainer --evaluate FILE --show` while a policy plays: lines of JSON, which `rankdeck
//! play` draws; and [`LiveFrame`]s of the evaluations of a run.

use serde::{Deserialize, Serialize};

/// Most numbers of an observation.
pub const MOST_SEEN: usize = 64;
/// Most pixels per side of an image.
pub const MOST_PIXELS: u32 = 640;
/// Most bytes of the image in a [`LiveFrame`], before base64: the frame is a line of the event socket.
pub const LIVE_PIXELS: usize = 36 << 10;
/// Most numbers per action, and of an action, in a [`LiveFrame`].
pub const LIVE_SCORES: usize = 128;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShowLine {
    /// The policy; the first line.
    Policy(ShownPolicy),
    /// A step: observation and action.
    Step(ShownStep),
    /// The end of an episode.
    End(ShownEnd),
    /// A line of another version; ignored.
    #[serde(other)]
    Unknown,
}

/// A policy that plays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownPolicy {
    /// Name of the algorithm.
    pub algorithm: String,
    /// The environment.
    pub env_id: String,
    /// Iteration of the checkpoint.
    pub train_iter: u64,
    /// Environment steps of the checkpoint.
    pub env_step: u64,
    /// Episodes to play.
    pub episodes: u32,
    /// Smallest and largest values of continuous actions; empty: actions are discrete.
    pub bounds: Vec<[f32; 2]>,
}

/// Meaning of [`PolicyEstimate::scores`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// Probability of the action, 0 to 1.
    #[default]
    Probability,
    /// Expected return after the action.
    Q,
    /// Mean of the distribution of actions.
    Mean,
}

/// A policy's estimates for an observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyEstimate {
    /// Meaning of `scores`.
    pub kind: ScoreKind,
    /// A number per action, or per dimension of a continuous one; empty if one is not finite.
    pub scores: Vec<f32>,
    /// Of an action of several discrete parts, how many of the scores each part has; else empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u32>,
    /// Expected return.
    pub value: Option<f32>,
}

/// An image of an environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvImage {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Pixels row by row, in base64: one byte of gray each, or three of red, green and blue.
    pub pixels: String,
}

impl EnvImage {
    /// Creates an image from one or three bytes per pixel.
    pub fn of(width: u32, height: u32, bytes: &[u8]) -> EnvImage {
        use base64::Engine;
        EnvImage { width, height, pixels: base64::engine::general_purpose::STANDARD.encode(bytes) }
    }

    /// Returns red, green and blue of each pixel; `None` for a malformed image.
    pub fn rgb(&self) -> Option<Vec<[u8; 3]>> {
        use base64::Engine;
        if self.width == 0 || self.height == 0 || self.width.max(self.height) > MOST_PIXELS {
            return None;
        }
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.pixels).ok()?;
        let pixels = self.width as usize * self.height as usize;
        match bytes.len() {
            gray if gray == pixels => Some(bytes.into_iter().map(|gray| [gray; 3]).collect()),
            color if color == 3 * pixels => {
                Some(bytes.chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]).collect())
            }
            _ => None,
        }
    }
}

/// A step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownStep {
    /// Index of the episode, from 0.
    pub episode: u32,
    /// Index of the step in the episode, from 0.
    pub step: u64,
    /// Observation before normalization; empty for an image or a large one.
    pub seen: Vec<f32>,
    /// Rendered image of the environment.
    pub picture: Option<EnvImage>,
    /// The policy's estimates.
    pub thought: Option<PolicyEstimate>,
    /// Action: the index of a discrete one, or all dimensions of a continuous one.
    pub action: Vec<f32>,
    /// Reward of the action.
    pub reward: f64,
    /// Sum of the episode's rewards, with this one.
    pub episode_return: f64,
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// Terminated by the environment.
    #[default]
    Terminated,
    /// The environment's limit of steps was reached.
    Truncated,
    /// `eval.max_steps` was reached.
    Cut,
}

/// The end of an episode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownEnd {
    /// Index of the episode, from 0.
    pub episode: u32,
    pub steps: u64,
    pub episode_return: f64,
    /// How it ended.
    pub end: EndKind,
    /// The last observation; empty as in [`ShownStep::seen`].
    pub seen: Vec<f32>,
}

/// A frame of a running evaluation: one of many steps, a few per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveFrame {
    /// The policy and its iteration.
    pub policy: ShownPolicy,
    /// Observation and action.
    pub step: ShownStep,
    /// Completed episodes of this evaluation.
    pub ended: u32,
    /// Frames of this rank that newer ones replaced before they were sent.
    pub skipped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_round_trips_and_unknown_kind_is_ignored() {
        let step = ShowLine::Step(ShownStep {
            seen: vec![0.5, -1.0],
            thought: Some(PolicyEstimate { scores: vec![0.25, 0.75], ..PolicyEstimate::default() }),
            picture: Some(EnvImage::of(1, 2, &[7, 9])),
            ..ShownStep::default()
        });
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<ShowLine>(&text).unwrap(), step, "{text}");
        let newer: ShowLine = serde_json::from_str(r#"{"kind":"applause","loud":1}"#).unwrap();
        assert_eq!(newer, ShowLine::Unknown);
    }

    #[test]
    fn live_frame_round_trips_and_accepts_missing_fields() {
        let step =
            ShownStep { episode: 3, picture: Some(EnvImage::of(1, 2, &[7, 9])), ..ShownStep::default() };
        let frame = LiveFrame { step, ended: 2, skipped: 1, ..LiveFrame::default() };
        let text = serde_json::to_string(&frame).unwrap();
        assert_eq!(serde_json::from_str::<LiveFrame>(&text).unwrap(), frame, "{text}");
        let bare: LiveFrame = serde_json::from_str(r#"{"step":{"step":4},"more":1}"#).unwrap();
        assert_eq!((bare.step.step, bare.ended), (4, 0), "a program may send fewer fields");
    }

    #[test]
    fn malformed_image_is_rejected() {
        assert_eq!(EnvImage::of(2, 1, &[1, 2]).rgb(), Some(vec![[1; 3], [2; 3]]));
        assert_eq!(EnvImage::of(1, 1, &[1, 2, 3]).rgb(), Some(vec![[1, 2, 3]]));
        for wrong in [
            EnvImage::of(2, 2, &[1]),
            EnvImage::of(0, 9, &[]),
            EnvImage::of(u32::MAX, u32::MAX, &[1]),
            EnvImage { pixels: "no base64!".into(), ..EnvImage::of(1, 1, &[1]) },
        ] {
            assert_eq!(wrong.rgb(), None, "{wrong:?}");
        }
    }
}
