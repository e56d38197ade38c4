//! `--evaluate FILE --show`: a policy plays one environment, and everything that it sees, thinks and does is
//! printed.
//!
//! Owner: `rankdeck play`, which reads the lines and draws them. Who reads slowly is waited for: the pipe is
//! the only clock. The first episode is the first one of the run's evaluations; the others follow in its
//! stream.

use super::env::{ObservationType, Observations, Spec, StepOutcome, VectorEnv};
use super::error::TrainerError;
use super::evaluate::Greedy;
use super::rollout::ActionBuffer;
use super::signals;
use rankdeck_proto::show::{
    EndKind, MOST_PIXELS, MOST_SEEN, Picture, ShowLine, ShownEnd, ShownPolicy, ShownStep, Thought,
};
use rankdeck_types::experiment::Eval;
use std::io::{self, Write};

/// Plays `eval.episodes` episodes of the only environment, and prints them.
pub fn show(
    env: &mut dyn VectorEnv,
    eval: &Eval,
    greedy: &mut dyn Greedy,
    policy: ShownPolicy,
) -> Result<(), TrainerError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match play(env, eval, greedy, &mut |line| print(&mut out, line), policy)? {
        Heard::Yes => Ok(()),
        Heard::No(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Heard::No(error) => Err(TrainerError::failure(format!("cannot print a step: {error}"), "")),
    }
}

/// Somebody reads the lines.
enum Heard {
    Yes,
    No(io::Error),
}

fn print(out: &mut impl Write, line: &ShowLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn play(
    env: &mut dyn VectorEnv,
    eval: &Eval,
    greedy: &mut dyn Greedy,
    print: &mut dyn FnMut(&ShowLine) -> io::Result<()>,
    policy: ShownPolicy,
) -> Result<Heard, TrainerError> {
    if let Err(error) = print(&ShowLine::Policy(policy)) {
        return Ok(Heard::No(error));
    }
    env.reset()?;
    let spec = env.spec().clone();
    let mut outcome = StepOutcome::new(&spec, env.len());
    let mut actions = ActionBuffer::new(&spec.actions, env.len());
    let (mut episode, mut step, mut episode_return) = (0, 0, 0.0);
    while episode < eval.episodes && !signals::stop_requested() {
        greedy.act(env.observations(), &mut actions)?;
        let picture = match env.picture(0)? {
            Some(picture) => Some(picture),
            None => seen_picture(env.observations(), &spec),
        };
        let mut shown = ShownStep {
            episode,
            step,
            seen: seen_numbers(env.observations(), &spec),
            picture,
            thought: greedy.thought().map(finite),
            action: first_action(&actions),
            ..ShownStep::default()
        };
        env.step(actions.view(), &mut outcome)?;
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
                seen: seen_numbers(last, &spec),
            })
        });
        for line in [Some(ShowLine::Step(shown)), end].into_iter().flatten() {
            if let Err(error) = print(&line) {
                return Ok(Heard::No(error));
            }
        }
        if let Some(end) = kind {
            (episode, step, episode_return) = (episode + 1, 0, 0.0);
            // What the environment would go on with is not a whole episode.
            if end == EndKind::Cut {
                break;
            }
        }
    }
    Ok(Heard::Yes)
}

/// JSON has neither NaN nor infinity.
fn finite(thought: Thought) -> Thought {
    let all = thought.scores.iter().all(|score| score.is_finite());
    Thought {
        scores: if all { thought.scores } else { Vec::new() },
        value: thought.value.filter(|value| value.is_finite()),
        ..thought
    }
}

fn first_action(actions: &ActionBuffer) -> Vec<f32> {
    match actions {
        ActionBuffer::Discrete(actions) => actions.first().map(|action| *action as f32).into_iter().collect(),
        ActionBuffer::Continuous { width, values } => values.get(..*width).unwrap_or_default().to_vec(),
    }
}

/// An observation that is a few numbers.
fn seen_numbers(seen: Observations<'_>, spec: &Spec) -> Vec<f32> {
    match seen.f32().and_then(|values| values.get(..spec.observation_len())) {
        Some(values) if values.len() <= MOST_SEEN && values.iter().all(|value| value.is_finite()) => {
            values.to_vec()
        }
        _ => Vec::new(),
    }
}

/// An observation that is a picture: of several frames the last one.
fn seen_picture(seen: Observations<'_>, spec: &Spec) -> Option<Picture> {
    let (pixels, [channels, height, width]) = (seen.u8()?, spec.observation_shape.as_slice()) else {
        return None;
    };
    let side = |pixels: usize| u32::try_from(pixels).ok().filter(|side| (1..=MOST_PIXELS).contains(side));
    let plane = height.checked_mul(*width)?;
    let (wide, high) = (side(*width)?, side(*height)?);
    if spec.observation_type != ObservationType::U8 {
        return None;
    }
    if *channels == 3 {
        let planes = [0, 1, 2].map(|channel| pixels.get(channel * plane..(channel + 1) * plane));
        let [Some(red), Some(green), Some(blue)] = planes else { return None };
        let rgb = red.iter().zip(green).zip(blue).flat_map(|((red, green), blue)| [*red, *green, *blue]);
        return Some(Picture::of(wide, high, &rgb.collect::<Vec<u8>>()));
    }
    let last = pixels.get(channels.checked_sub(1)? * plane..channels * plane)?;
    Some(Picture::of(wide, high, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ActionSpace, EnvPurpose, make_vector};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::Env;

    /// Pushes to the left, with a thought that is not a number now and then.
    struct Left(u32);

    impl Greedy for Left {
        fn act(&mut self, _: Observations<'_>, _: &mut ActionBuffer) -> Result<(), TrainerError> {
            self.0 += 1;
            Ok(())
        }
        fn thought(&self) -> Option<Thought> {
            let first = if self.0 == 2 { f32::NAN } else { 0.75 };
            Some(Thought { scores: vec![first, 0.25], value: Some(f32::INFINITY), ..Thought::default() })
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
        play(&mut *env, eval, &mut Left(0), &mut keep, ShownPolicy::default()).unwrap();
        lines
    }

    #[test]
    fn every_step_and_every_end_is_a_line_that_can_be_read() {
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
        let thoughts: Vec<_> = steps.iter().map(|step| step.thought.clone().unwrap()).collect();
        assert_eq!((thoughts[0].scores.len(), thoughts[1].scores.len()), (2, 0));
        assert!(thoughts.iter().all(|thought| thought.value.is_none()));
    }

    #[test]
    fn an_episode_without_an_end_is_cut_and_a_reader_that_is_gone_ends_it() {
        let cut = lines(&Eval { episodes: 9, max_steps: 3, ..Eval::default() });
        assert_eq!(cut.len(), 1 + 3 + 1);
        assert!(matches!(cut.last(), Some(ShowLine::End(ShownEnd { end: EndKind::Cut, .. }))));
        let env = Env::new("CartPole-v1", 1);
        let mut env = make_vector(&env, 1, 0, &Seeds::new(1), 0, EnvPurpose::Show).unwrap();
        let mut gone = |_: &ShowLine| Err(io::ErrorKind::BrokenPipe.into());
        let heard = play(&mut *env, &Eval::default(), &mut Left(0), &mut gone, ShownPolicy::default());
        assert!(matches!(heard.unwrap(), Heard::No(_)));
    }

    #[test]
    fn of_stacked_frames_the_last_is_shown_and_colours_stay() {
        let spec = |shape: &[usize]| Spec {
            observation_shape: shape.to_vec(),
            observation_type: ObservationType::U8,
            actions: ActionSpace::Discrete { n: 2 },
        };
        let pixels: Vec<u8> = (0..24).collect();
        let grey = seen_picture(Observations::U8(&pixels[..8]), &spec(&[4, 1, 2])).unwrap();
        assert_eq!(grey.rgb().unwrap(), [[6; 3], [7; 3]]);
        let colour = seen_picture(Observations::U8(&pixels[..6]), &spec(&[3, 1, 2])).unwrap();
        assert_eq!(colour.rgb().unwrap(), [[0, 2, 4], [1, 3, 5]]);
        assert!(seen_picture(Observations::U8(&pixels[..4]), &spec(&[4, 1, 2])).is_none());
        assert!(seen_picture(Observations::F32(&[1.0]), &Spec::discrete(1, 2)).is_none());
    }
}
