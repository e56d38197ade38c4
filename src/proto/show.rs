//! What `rankdeck-trainer --evaluate FILE --show` prints while a policy plays: a line of JSON each. The
//! console draws it (`rankdeck play`), and [`LiveFrame`]s of the evaluations within a run.

use serde::{Deserialize, Serialize};

/// Most numbers of an observation that are shown.
pub const MOST_SEEN: usize = 64;
/// Most pixels of a picture's side.
pub const MOST_PIXELS: u32 = 640;
/// Most bytes of the picture in a [`LiveFrame`], before base64: the frame is a line of the event socket.
pub const LIVE_PIXELS: usize = 36 << 10;
/// Most numbers per action, and of an action, in a [`LiveFrame`].
pub const LIVE_SCORES: usize = 128;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShowLine {
    /// Who plays; the first line.
    Policy(ShownPolicy),
    /// A step: what the policy sees, and what it does.
    Step(ShownStep),
    /// An episode is over.
    End(ShownEnd),
    /// Of another version; ignored.
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
    /// Episodes that will be played.
    pub episodes: u32,
    /// Smallest and largest values of continuous actions; empty: actions are discrete.
    pub bounds: Vec<[f32; 2]>,
}

/// What a number per action says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// How probable it is, 0 to 1.
    #[default]
    Probability,
    /// The return that is expected after it.
    Q,
    /// The mean that actions are drawn around.
    Mean,
}

/// What a policy thinks of what it sees.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thought {
    /// What `scores` are.
    pub kind: ScoreKind,
    /// A number per action, or per part of a continuous one; empty where one is not finite.
    pub scores: Vec<f32>,
    /// The return that it expects.
    pub value: Option<f32>,
}

/// A picture of an environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Picture {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Row by row, in base64: a byte of grey each, or three of red, green and blue.
    pub pixels: String,
}

impl Picture {
    /// A picture of these bytes, which are one or three per pixel.
    pub fn of(width: u32, height: u32, bytes: &[u8]) -> Picture {
        use base64::Engine;
        Picture { width, height, pixels: base64::engine::general_purpose::STANDARD.encode(bytes) }
    }

    /// Red, green and blue of each pixel; `None` when it is no picture.
    pub fn rgb(&self) -> Option<Vec<[u8; 3]>> {
        use base64::Engine;
        if self.width == 0 || self.height == 0 || self.width.max(self.height) > MOST_PIXELS {
            return None;
        }
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.pixels).ok()?;
        let pixels = self.width as usize * self.height as usize;
        match bytes.len() {
            grey if grey == pixels => Some(bytes.into_iter().map(|grey| [grey; 3]).collect()),
            colour if colour == 3 * pixels => {
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
    /// Of which episode, from 0.
    pub episode: u32,
    /// Which step of it, from 0.
    pub step: u64,
    /// What the policy sees, before it is normalised; empty where that is a picture or much.
    pub seen: Vec<f32>,
    /// The environment as people see it.
    pub picture: Option<Picture>,
    /// What it thinks of it.
    pub thought: Option<Thought>,
    /// What it does: the number of a discrete action, or all parts of a continuous one.
    pub action: Vec<f32>,
    /// What that gave.
    pub reward: f64,
    /// Rewards of the episode, this one included.
    pub episode_return: f64,
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// The task is over.
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
    /// Of which episode, from 0.
    pub episode: u32,
    pub steps: u64,
    pub episode_return: f64,
    /// How it ended.
    pub end: EndKind,
    /// The last observation; empty as in [`ShownStep::seen`].
    pub seen: Vec<f32>,
}

/// A moment of an evaluation within a run, while it goes on: one of many steps, a few per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveFrame {
    /// Who plays, and at which iteration.
    pub policy: ShownPolicy,
    /// What it sees and does.
    pub step: ShownStep,
    /// Episodes of this evaluation that are over.
    pub ended: u32,
    /// Frames of this rank that newer ones replaced before they were sent.
    pub skipped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_those_of_another_version_are_passed_over() {
        let step = ShowLine::Step(ShownStep {
            seen: vec![0.5, -1.0],
            thought: Some(Thought { scores: vec![0.25, 0.75], ..Thought::default() }),
            picture: Some(Picture::of(1, 2, &[7, 9])),
            ..ShownStep::default()
        });
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<ShowLine>(&text).unwrap(), step, "{text}");
        let newer: ShowLine = serde_json::from_str(r#"{"kind":"applause","loud":1}"#).unwrap();
        assert_eq!(newer, ShowLine::Unknown);
    }

    #[test]
    fn a_live_frame_comes_back_and_lacks_nothing_that_it_needs() {
        let step =
            ShownStep { episode: 3, picture: Some(Picture::of(1, 2, &[7, 9])), ..ShownStep::default() };
        let frame = LiveFrame { step, ended: 2, skipped: 1, ..LiveFrame::default() };
        let text = serde_json::to_string(&frame).unwrap();
        assert_eq!(serde_json::from_str::<LiveFrame>(&text).unwrap(), frame, "{text}");
        let bare: LiveFrame = serde_json::from_str(r#"{"step":{"step":4},"more":1}"#).unwrap();
        assert_eq!((bare.step.step, bare.ended), (4, 0), "a program may tell less");
    }

    #[test]
    fn a_picture_that_is_none_is_refused() {
        assert_eq!(Picture::of(2, 1, &[1, 2]).rgb(), Some(vec![[1; 3], [2; 3]]));
        assert_eq!(Picture::of(1, 1, &[1, 2, 3]).rgb(), Some(vec![[1, 2, 3]]));
        for wrong in [
            Picture::of(2, 2, &[1]),
            Picture::of(0, 9, &[]),
            Picture::of(u32::MAX, u32::MAX, &[1]),
            Picture { pixels: "no base64!".into(), ..Picture::of(1, 1, &[1]) },
        ] {
            assert_eq!(wrong.rgb(), None, "{wrong:?}");
        }
    }
}
