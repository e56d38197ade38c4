//! What a policy sees and does at one step, as people are shown it.
//!
//! Owner: nobody; functions of an observation and an action. Nothing here asks an environment for anything,
//! so that looking changes no result and costs a copy.

use super::env::{ActionSpace, ObservationType, Observations, Spec};
use super::rollout::ActionBuffer;
use rankdeck_proto::show::{MOST_PIXELS, MOST_SEEN, Picture, ShownStep, Thought};

/// What is known of environment `env` before it is stepped; the caller adds what came of it. Pictures take at
/// most `pixels` bytes.
pub fn look(
    seen: Observations<'_>,
    spec: &Spec,
    env: usize,
    thought: Option<Thought>,
    actions: &ActionBuffer,
    pixels: usize,
) -> ShownStep {
    ShownStep {
        seen: numbers(seen, spec, env),
        picture: picture(seen, spec, env, pixels),
        thought: thought.map(finite),
        action: action(actions, env),
        ..ShownStep::default()
    }
}

/// Smallest and largest values of continuous actions, as JSON can tell them: it has no infinity.
pub fn bounds(actions: &ActionSpace) -> Vec<[f32; 2]> {
    let bound = |value: f32| value.clamp(f32::MIN, f32::MAX);
    match actions {
        ActionSpace::Continuous { low, high } => {
            low.iter().zip(high).map(|(low, high)| [bound(*low), bound(*high)]).collect()
        }
        ActionSpace::Discrete { .. } => Vec::new(),
    }
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

fn action(actions: &ActionBuffer, env: usize) -> Vec<f32> {
    match actions {
        ActionBuffer::Discrete(actions) => {
            actions.get(env).map(|action| *action as f32).into_iter().collect()
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
pub fn numbers(seen: Observations<'_>, spec: &Spec, env: usize) -> Vec<f32> {
    match seen.f32().and_then(|values| row(values, spec.observation_len(), env)) {
        Some(values) if values.len() <= MOST_SEEN && values.iter().all(|value| value.is_finite()) => {
            values.to_vec()
        }
        _ => Vec::new(),
    }
}

/// An observation that is a picture: of several frames the last one. Rows and columns are left out evenly
/// until it takes at most `most` bytes.
pub fn picture(seen: Observations<'_>, spec: &Spec, env: usize, most: usize) -> Option<Picture> {
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
    let colours = if channels == 3 { 0..3 } else { channels.checked_sub(1)?..channels };
    let bytes = |every: usize| colours.len() * height.div_ceil(every) * width.div_ceil(every);
    let every = (1..=MOST_PIXELS as usize).find(|every| bytes(*every) <= most)?;
    let mut kept = Vec::with_capacity(bytes(every));
    for y in (0..height).step_by(every) {
        for x in (0..width).step_by(every) {
            kept.extend(colours.clone().filter_map(|channel| pixels.get(channel * plane + y * width + x)));
        }
    }
    Some(Picture::of(width.div_ceil(every) as u32, height.div_ceil(every) as u32, &kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(shape: &[usize]) -> Spec {
        Spec {
            observation_shape: shape.to_vec(),
            observation_type: ObservationType::U8,
            actions: ActionSpace::Discrete { n: 2 },
        }
    }

    #[test]
    fn of_stacked_frames_the_last_is_shown_and_colours_stay() {
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
    fn a_large_picture_loses_rows_and_columns_evenly() {
        let pixels: Vec<u8> = (0..5 * 6).collect();
        let small = picture(Observations::U8(&pixels), &images(&[1, 5, 6]), 0, 9).unwrap();
        assert_eq!((small.width, small.height), (3, 3));
        let grey: Vec<u8> = small.rgb().unwrap().iter().map(|rgb| rgb[0]).collect();
        assert_eq!(grey, [0, 2, 4, 12, 14, 16, 24, 26, 28]);
        assert!(picture(Observations::U8(&pixels), &images(&[1, 5, 6]), 0, 0).is_none());
    }

    #[test]
    fn each_environment_has_its_own_numbers_and_action() {
        let seen = [1.0, 2.0, 3.0, f32::NAN];
        let spec = Spec::discrete(2, 2);
        assert_eq!(numbers(Observations::F32(&seen), &spec, 0), [1.0, 2.0]);
        assert!(numbers(Observations::F32(&seen), &spec, 1).is_empty(), "JSON has no NaN");
        assert!(numbers(Observations::F32(&seen), &spec, 2).is_empty());
        assert_eq!(action(&ActionBuffer::Discrete(vec![4, 7]), 1), [7.0]);
        let parts = ActionBuffer::Continuous { width: 2, values: vec![1.0, 2.0, 3.0, 4.0] };
        assert_eq!(action(&parts, 1), [3.0, 4.0]);
    }
}
