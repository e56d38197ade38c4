//! Steps of a policy at play as people see them: described, printed by `--evaluate FILE --show`, and sent
//! to the console during rank 0's evaluations.
//!
//! Invariants:
//! - LIVE-1: showing steps changes nothing: results with and without it are equal to the bit.
//! - LIVE-2: at most one frame per [`FRAME_EVERY`](crate::support::events::FRAME_EVERY), of at most
//!   [`FRAME_BYTES`](crate::support::events::FRAME_BYTES); one waits to be sent, and a newer one replaces it.
//! - LIVE-3: a step that is not shown costs one read of a flag, which the thread that sends frames sets:
//!   no clock, no lock, no memory.

use super::evaluate::EvalActions;
use crate::algo::Greedy;
use crate::collect::rollout::ActionBuffer;
use crate::env::{ActionSpace, ObservationType, Observations, Spec, StepOutcome, VectorEnv};
use crate::error::TrainerError;
use crate::support::events::EventSender;
use crate::support::signals;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::media::Histogram;
use rankdeck_proto::message::{LoggedHistogram, RankEvent};
use rankdeck_proto::show::{
    EndKind, EnvImage, LIVE_SCORES, LiveFrame, MOST_PIXELS, MOST_SEEN, PolicyEstimate, ShowLine, ShownEnd,
    ShownPolicy, ShownStep,
};
use rankdeck_types::experiment::Eval;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of environment `env` before it is stepped; the caller adds what came of it. Pictures take at
/// most `pixels` bytes.
///
/// It asks the environment for nothing, so showing a step changes no result and costs a copy.
pub(crate) fn describe_step(
    seen: Observations<'_>,
    spec: &Spec,
    env: usize,
    estimate: Option<PolicyEstimate>,
    actions: &ActionBuffer,
    pixels: usize,
) -> ShownStep {
    ShownStep {
        seen: numbers(seen, spec, env),
        picture: picture(seen, spec, env, pixels),
        thought: estimate.map(finite),
        action: action(actions, env),
        ..ShownStep::default()
    }
}

/// Smallest and largest values of continuous actions, clamped because JSON has no infinity.
pub(crate) fn bounds(actions: &ActionSpace) -> Vec<[f32; 2]> {
    let bound = |value: f32| value.clamp(f32::MIN, f32::MAX);
    match actions {
        ActionSpace::Continuous { low, high } => {
            low.iter().zip(high).map(|(low, high)| [bound(*low), bound(*high)]).collect()
        }
        ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => Vec::new(),
    }
}

/// JSON has neither NaN nor infinity.
fn finite(estimate: PolicyEstimate) -> PolicyEstimate {
    let all = estimate.scores.iter().all(|score| score.is_finite());
    PolicyEstimate {
        scores: if all { estimate.scores } else { Vec::new() },
        parts: if all { estimate.parts } else { Vec::new() },
        value: estimate.value.filter(|value| value.is_finite()),
        ..estimate
    }
}

fn action(actions: &ActionBuffer, env: usize) -> Vec<f32> {
    match actions {
        ActionBuffer::Discrete(actions) => {
            actions.get(env).map(|action| *action as f32).into_iter().collect()
        }
        ActionBuffer::MultiDiscrete { width, values } => {
            let parts = row(values, *width, env).unwrap_or_default();
            parts.iter().map(|part| *part as f32).collect()
        }
        ActionBuffer::Continuous { width, values } => row(values, *width, env).unwrap_or_default().to_vec(),
    }
}

/// Of one environment, among those of all.
fn row<T>(all: &[T], width: usize, env: usize) -> Option<&[T]> {
    let begin = env.checked_mul(width)?;
    all.get(begin..begin.checked_add(width)?)
}

/// An observation that is a few numbers.
fn numbers(seen: Observations<'_>, spec: &Spec, env: usize) -> Vec<f32> {
    match seen.f32().and_then(|values| row(values, spec.observation_len(), env)) {
        Some(values) if values.len() <= MOST_SEEN && values.iter().all(|value| value.is_finite()) => {
            values.to_vec()
        }
        _ => Vec::new(),
    }
}

/// An observation that is a picture: of several frames the last one. Rows and columns are left out evenly
/// until it takes at most `most` bytes.
fn picture(seen: Observations<'_>, spec: &Spec, env: usize, most: usize) -> Option<EnvImage> {
    let (pixels, [channels, height, width]) = (seen.u8()?, spec.observation_shape.as_slice()) else {
        return None;
    };
    let (channels, height, width) = (*channels, *height, *width);
    let pixels = row(pixels, spec.observation_len(), env)?;
    let is_side = |pixels: usize| (1..=MOST_PIXELS as usize).contains(&pixels);
    if spec.observation_type != ObservationType::U8 || !is_side(height) || !is_side(width) {
        return None;
    }
    let plane = height * width;
    let colors = if channels == 3 { 0..3 } else { channels.checked_sub(1)?..channels };
    let bytes = |every: usize| colors.len() * height.div_ceil(every) * width.div_ceil(every);
    let every = (1..=MOST_PIXELS as usize).find(|every| bytes(*every) <= most)?;
    let mut kept = Vec::with_capacity(bytes(every));
    for y in (0..height).step_by(every) {
        for x in (0..width).step_by(every) {
            kept.extend(colors.clone().filter_map(|channel| pixels.get(channel * plane + y * width + x)));
        }
    }
    Some(EnvImage::of(width.div_ceil(every) as u32, height.div_ceil(every) as u32, &kept))
}

/// Plays `eval.episodes` episodes of the only environment, and prints every observation, policy output and
/// action.
///
/// Who reads slowly is waited for: the pipe is the only clock. The first episode is the first one of the
/// run's evaluations; the others follow in its stream.
pub(crate) fn show(
    env: &mut dyn VectorEnv,
    eval: (&Eval, &Seeds),
    greedy: &mut dyn Greedy,
    policy: ShownPolicy,
) -> Result<(), TrainerError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match play(env, eval, greedy, &mut |line| print(&mut out, line), policy)? {
        ShowReader::Connected => Ok(()),
        ShowReader::Gone(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ShowReader::Gone(error) => Err(TrainerError::failure(format!("cannot print a step: {error}"), "")),
    }
}

/// Whether the reader of the lines is still connected.
enum ShowReader {
    Connected,
    Gone(io::Error),
}

fn print(out: &mut impl Write, line: &ShowLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn play(
    env: &mut dyn VectorEnv,
    (eval, seeds): (&Eval, &Seeds),
    greedy: &mut dyn Greedy,
    print: &mut dyn FnMut(&ShowLine) -> io::Result<()>,
    policy: ShownPolicy,
) -> Result<ShowReader, TrainerError> {
    if let Err(error) = print(&ShowLine::Policy(policy)) {
        return Ok(ShowReader::Gone(error));
    }
    env.reset()?;
    greedy.start_episodes();
    let spec = env.spec().clone();
    let mut outcome = StepOutcome::new(&spec, env.len());
    let mut actions = ActionBuffer::new(&spec.actions, env.len());
    let mut chosen = EvalActions::new(eval, seeds, env.len());
    let (mut episode, mut step, mut episode_return) = (0, 0, 0.0);
    while episode < eval.episodes && !signals::stop_requested() {
        chosen.choose(env, greedy, &mut actions)?;
        let mut shown = ShownStep {
            episode,
            step,
            ..describe_step(env.observations(), &spec, 0, greedy.estimate(0), &actions, usize::MAX)
        };
        if let Some(drawn) = env.picture(0)? {
            shown.picture = Some(drawn);
        }
        env.step(actions.view(), &mut outcome)?;
        greedy.end_episodes(&outcome);
        shown.reward = f64::from(outcome.rewards[0]);
        episode_return += shown.reward;
        step += 1;
        shown.episode_return = episode_return;
        let kind = match () {
            () if outcome.terminated[0] => Some(EndKind::Terminated),
            () if outcome.truncated[0] => Some(EndKind::Truncated),
            () if step >= u64::from(eval.max_steps) => Some(EndKind::Cut),
            () => None,
        };
        let end = kind.map(|end| {
            let last = match end {
                EndKind::Cut => env.observations(),
                EndKind::Terminated | EndKind::Truncated => outcome.final_observations.view(),
            };
            ShowLine::End(ShownEnd {
                episode,
                steps: step,
                episode_return,
                end,
                seen: numbers(last, &spec, 0),
            })
        });
        for line in [Some(ShowLine::Step(shown)), end].into_iter().flatten() {
            if let Err(error) = print(&line) {
                return Ok(ShowReader::Gone(error));
            }
        }
        if let Some(end) = kind {
            (episode, step, episode_return) = (episode + 1, 0, 0.0);
            // The environment would continue in the middle of an episode.
            if end == EndKind::Cut {
                break;
            }
        }
    }
    Ok(ShowReader::Connected)
}

/// What the returns of an evaluation's episodes are called.
const RETURNS: &str = "eval/returns";

/// Shows steps of one evaluation.
pub struct LiveEval<'a> {
    events: &'a EventSender,
    requested: &'a AtomicBool,
    policy: ShownPolicy,
}

impl<'a> LiveEval<'a> {
    /// Of an evaluation that begins.
    pub fn new(events: &'a EventSender, mut policy: ShownPolicy) -> LiveEval<'a> {
        policy.bounds.truncate(LIVE_SCORES);
        LiveEval { events, requested: events.frame_requested(), policy }
    }

    /// The next step is to be shown.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Shows a step; `ended` episodes were over before it.
    pub fn show(&self, mut step: ShownStep, ended: usize) {
        if let Some(estimate) = &mut step.thought
            && estimate.scores.len() > LIVE_SCORES
        {
            (estimate.scores, estimate.parts) = (Vec::new(), Vec::new());
        }
        step.action.truncate(LIVE_SCORES);
        self.events.frame(LiveFrame { policy: self.policy.clone(), step, ended: ended as u32, skipped: 0 });
    }

    /// Sends the distribution of its episodes' returns, if there are several.
    pub fn returns(&self, returns: &[f64]) {
        let Some(Histogram { edges, counts }) = Histogram::of(returns).filter(|_| returns.len() > 1) else {
            return;
        };
        let ShownPolicy { train_iter, env_step, .. } = self.policy;
        let name = RETURNS.to_owned();
        self.events.send(&RankEvent::Histogram(LoggedHistogram {
            name,
            train_iter,
            env_step,
            edges,
            counts,
            skipped: 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvPurpose, Observations, make_vector};
    use crate::support::events::{FRAME_BYTES, FRAME_EVERY};
    use rankdeck_proto::show::{EnvImage, LIVE_PIXELS, MOST_PIXELS, MOST_SEEN, PolicyEstimate};
    use rankdeck_types::experiment::Env;
    use rankdeck_types::ids::{Generation, Rank};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    fn images(shape: &[usize]) -> Spec {
        Spec {
            observation_shape: shape.to_vec(),
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 2 },
        }
    }

    #[test]
    fn last_of_stacked_frames_is_shown_in_color() {
        let pixels: Vec<u8> = (0..24).collect();
        let of = |len: usize, shape: &[usize], env| {
            picture(Observations::U8(&pixels[..len]), &images(shape), env, usize::MAX)
        };
        assert_eq!(of(8, &[4, 1, 2], 0).unwrap().rgb().unwrap(), [[6; 3], [7; 3]]);
        assert_eq!(of(16, &[4, 1, 2], 1).unwrap().rgb().unwrap(), [[14; 3], [15; 3]]);
        assert_eq!(of(6, &[3, 1, 2], 0).unwrap().rgb().unwrap(), [[0, 2, 4], [1, 3, 5]]);
        assert!(of(4, &[4, 1, 2], 0).is_none() && of(8, &[4, 1, 2], 1).is_none());
        assert!(picture(Observations::F32(&[1.0]), &Spec::discrete(1, 2), 0, usize::MAX).is_none());
    }

    #[test]
    fn large_picture_is_subsampled_evenly() {
        let pixels: Vec<u8> = (0..5 * 6).collect();
        let small = picture(Observations::U8(&pixels), &images(&[1, 5, 6]), 0, 9).unwrap();
        assert_eq!((small.width, small.height), (3, 3));
        let gray: Vec<u8> = small.rgb().unwrap().iter().map(|rgb| rgb[0]).collect();
        assert_eq!(gray, [0, 2, 4, 12, 14, 16, 24, 26, 28]);
        assert!(picture(Observations::U8(&pixels), &images(&[1, 5, 6]), 0, 0).is_none());
    }

    #[test]
    fn step_view_shows_its_environment() {
        let seen = [1.0, 2.0, 3.0, f32::NAN];
        let spec = Spec::discrete(2, 2);
        assert_eq!(numbers(Observations::F32(&seen), &spec, 0), [1.0, 2.0]);
        assert!(numbers(Observations::F32(&seen), &spec, 1).is_empty(), "JSON has no NaN");
        assert!(numbers(Observations::F32(&seen), &spec, 2).is_empty());
        assert_eq!(action(&ActionBuffer::Discrete(vec![4, 7]), 1), [7.0]);
        let parts = ActionBuffer::Continuous { width: 2, values: vec![1.0, 2.0, 3.0, 4.0] };
        assert_eq!(action(&parts, 1), [3.0, 4.0]);
    }

    /// Pushes to the left, with an estimate that is NaN now and then.
    struct LeftPusher(u32);

    impl Greedy for LeftPusher {
        fn act(
            &mut self,
            _: Observations<'_>,
            _: Option<&[u8]>,
            _: &mut ActionBuffer,
        ) -> Result<(), TrainerError> {
            self.0 += 1;
            Ok(())
        }
        fn estimate(&self, _: usize) -> Option<PolicyEstimate> {
            let first = if self.0 == 2 { f32::NAN } else { 0.75 };
            Some(PolicyEstimate {
                scores: vec![first, 0.25],
                value: Some(f32::INFINITY),
                ..PolicyEstimate::default()
            })
        }
    }

    fn lines(eval: &Eval) -> Vec<ShowLine> {
        let env = Env::new("CartPole-v1", 1);
        let mut env = make_vector(&env, 1, 0, &Seeds::new(1), 0, EnvPurpose::Show).unwrap();
        let mut lines = Vec::new();
        let mut keep = |line: &ShowLine| {
            // As they are read.
            lines.push(serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap());
            Ok(())
        };
        let eval = (eval, &Seeds::new(1));
        play(&mut *env, eval, &mut LeftPusher(0), &mut keep, ShownPolicy::default()).unwrap();
        lines
    }

    #[test]
    fn show_prints_a_line_per_step_and_end() {
        let lines = lines(&Eval { episodes: 2, ..Eval::default() });
        assert!(matches!(&lines[0], ShowLine::Policy(_)));
        let steps: Vec<&ShownStep> = lines
            .iter()
            .filter_map(|line| match line {
                ShowLine::Step(step) => Some(step),
                _ => None,
            })
            .collect();
        let ends: Vec<&ShownEnd> = lines
            .iter()
            .filter_map(|line| match line {
                ShowLine::End(end) => Some(end),
                _ => None,
            })
            .collect();
        assert_eq!(ends.len(), 2);
        assert_eq!(steps.len() as u64, ends[0].steps + ends[1].steps);
        let first = &steps[..ends[0].steps as usize];
        assert!(first.iter().enumerate().all(|(i, step)| step.step == i as u64 && step.seen.len() == 4));
        assert_eq!(first.last().unwrap().episode_return, ends[0].episode_return);
        assert_eq!((ends[0].end, ends[0].episode_return), (EndKind::Terminated, ends[0].steps as f64));
        // The pole has fallen in the last observation, and not in those before.
        let fallen = |seen: &[f32]| seen[2].abs() > 0.2095;
        assert!(fallen(&ends[0].seen) && first.iter().all(|step| !fallen(&step.seen)));
        let estimates: Vec<_> = steps.iter().map(|step| step.thought.clone().unwrap()).collect();
        assert_eq!((estimates[0].scores.len(), estimates[1].scores.len()), (2, 0));
        assert!(estimates.iter().all(|estimate| estimate.value.is_none()));
    }

    #[test]
    fn endless_episode_is_cut_and_closed_pipe_ends_show() {
        let cut = lines(&Eval { episodes: 9, max_steps: 3, ..Eval::default() });
        assert_eq!(cut.len(), 1 + 3 + 1);
        assert!(matches!(cut.last(), Some(ShowLine::End(ShownEnd { end: EndKind::Cut, .. }))));
        let env = Env::new("CartPole-v1", 1);
        let mut env = make_vector(&env, 1, 0, &Seeds::new(1), 0, EnvPurpose::Show).unwrap();
        let mut gone = |_: &ShowLine| Err(io::ErrorKind::BrokenPipe.into());
        let eval = (&Eval::default(), &Seeds::new(1));
        let ended = play(&mut *env, eval, &mut LeftPusher(0), &mut gone, ShownPolicy::default());
        assert!(matches!(ended.unwrap(), ShowReader::Gone(_)));
    }

    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn live_2_frame_requests_are_rate_limited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let events = EventSender::to(&path, Rank(0), Generation(0));
        let first = LiveEval::new(&events, ShownPolicy::default());
        wait_until("a short evaluation is seen, too", || first.is_requested());
        let shown = Instant::now();
        first.show(ShownStep::default(), 0);
        let second = LiveEval::new(&events, ShownPolicy::default());
        assert!(!first.is_requested() && !second.is_requested(), "not at once");
        wait_until("another is requested later", || second.is_requested());
        assert!(shown.elapsed() >= FRAME_EVERY);
        assert!(first.is_requested(), "the flag is that of the rank");
        drop(listener);
    }

    #[test]
    fn live_3_silent_events_request_no_frames() {
        let silent = EventSender::silent();
        let live = LiveEval::new(&silent, ShownPolicy::default());
        assert!(!live.is_requested());
        live.show(ShownStep::default(), 0);
        assert!(!live.is_requested());
    }

    #[test]
    fn live_2_largest_frame_fits_the_event_socket() {
        let bounds = vec![[f32::MIN, f32::MAX]; LIVE_SCORES];
        let estimate = PolicyEstimate {
            scores: vec![-1.234_567_9e-38; LIVE_SCORES],
            parts: vec![1; LIVE_SCORES],
            ..PolicyEstimate::default()
        };
        let side = (LIVE_PIXELS as f64).sqrt() as u32;
        assert!(side <= MOST_PIXELS);
        let step = ShownStep {
            seen: vec![-1.234_567_9e-38; MOST_SEEN],
            picture: Some(EnvImage::of(side, side, &vec![0; (side * side) as usize])),
            thought: Some(estimate),
            action: vec![-1.234_567_9e-38; LIVE_SCORES],
            ..ShownStep::default()
        };
        let policy = ShownPolicy { env_id: "x".repeat(200), bounds, ..ShownPolicy::default() };
        let frame = LiveFrame { policy, step, ended: u32::MAX, skipped: u64::MAX };
        let line = serde_json::to_string(&RankEvent::Frame(Box::new(frame))).unwrap();
        assert!(line.len() < FRAME_BYTES, "{}", line.len());
    }
}
