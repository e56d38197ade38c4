//! Adapts observations to the input that a network takes.
//!
//! A fully connected network takes vectors of f32: boxes of any rank are flattened, bytes are divided by 255.
//! Networks for images take `[channels, height, width]`: images without colors get one channel. `Dict` observations
//! with images stay flat, and the networks take their parts. What fits already is passed on as it is.

use super::{
    Actions, EnvError, ObservationBuffer, ObservationType, Observations, Spec, StepOutcome, VectorEnv,
    Watcher,
};
use rankdeck_proto::show::EnvImage;
use rankdeck_types::experiment::NetworkKind;

/// What a byte is divided by for a fully connected network.
pub const BYTE_SCALE: f32 = 255.0;

impl Spec {
    /// The shapes after [`fit`].
    #[must_use]
    pub fn fitted(self, network: NetworkKind) -> Spec {
        match (network, self.observation_shape.as_slice()) {
            (NetworkKind::Mlp, _) => Spec {
                observation_shape: vec![self.observation_len()],
                observation_type: ObservationType::F32,
                branches: Vec::new(),
                ..self
            },
            (NetworkKind::Nature | NetworkKind::Impala, [height, width]) => {
                Spec { observation_shape: vec![1, *height, *width], ..self }
            }
            (NetworkKind::Nature | NetworkKind::Impala, _) => self,
        }
    }
}

/// The same environments with observations for `network`.
pub fn fit(inner: Box<dyn VectorEnv>, network: NetworkKind) -> Box<dyn VectorEnv> {
    let own = inner.spec().clone();
    let spec = own.clone().fitted(network);
    if spec == own {
        return inner;
    }
    let numbers = (spec.observation_type != own.observation_type).then(|| Numbers {
        now: vec![0.0; inner.len() * own.observation_len()],
        outcome: StepOutcome::new(&own, inner.len()),
    });
    let mut fitted = FittedEnv { inner, spec, numbers };
    fitted.convert();
    Box::new(fitted)
}

struct FittedEnv {
    inner: Box<dyn VectorEnv>,
    spec: Spec,
    /// Where bytes become numbers.
    numbers: Option<Numbers>,
}

struct Numbers {
    now: Vec<f32>,
    /// With bytes as observations.
    outcome: StepOutcome,
}

fn scale(from: Observations<'_>, to: &mut [f32]) {
    if let Observations::U8(bytes) = from {
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = f32::from(*byte) / BYTE_SCALE);
    }
}

impl FittedEnv {
    fn convert(&mut self) {
        if let Some(numbers) = &mut self.numbers {
            scale(self.inner.observations(), &mut numbers.now);
        }
    }
}

impl VectorEnv for FittedEnv {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn observations(&self) -> Observations<'_> {
        match &self.numbers {
            Some(numbers) => Observations::F32(&numbers.now),
            None => self.inner.observations(),
        }
    }

    fn masks(&self) -> Option<&[u8]> {
        self.inner.masks()
    }

    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.start_step(actions, outcome)?;
        self.finish(outcome)
    }

    fn start_step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let inner = self.numbers.as_mut().map_or(outcome, |numbers| &mut numbers.outcome);
        self.inner.start_step(actions, inner)
    }

    fn finish(&mut self, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let Some(numbers) = &mut self.numbers else { return self.inner.finish(outcome) };
        self.inner.finish(&mut numbers.outcome)?;
        let StepOutcome { rewards, terminated, truncated, valid, final_observations, final_masks, episodes } =
            &numbers.outcome;
        outcome.rewards.clone_from(rewards);
        outcome.terminated.clone_from(terminated);
        outcome.truncated.clone_from(truncated);
        outcome.valid.clone_from(valid);
        outcome.episodes.clone_from(episodes);
        outcome.final_masks.clone_from(final_masks);
        if let ObservationBuffer::F32(to) = &mut outcome.final_observations
            && (0..rewards.len()).any(|i| numbers.outcome.done(i))
        {
            scale(final_observations.view(), to);
        }
        self.convert();
        Ok(())
    }

    fn retire(&mut self, index: usize) {
        self.inner.retire(index);
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        self.inner.reset()?;
        self.convert();
        Ok(())
    }

    fn start_reset(&mut self) -> Result<(), EnvError> {
        self.inner.start_reset()
    }

    fn finish_reset(&mut self) -> Result<(), EnvError> {
        self.inner.finish_reset()?;
        self.convert();
        Ok(())
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn watch(&mut self, watcher: Watcher) {
        self.inner.watch(watcher);
    }

    fn picture(&mut self, index: usize) -> Result<Option<EnvImage>, EnvError> {
        self.inner.picture(index)
    }

    fn words_per_env(&self) -> Option<usize> {
        self.inner.words_per_env()
    }

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        self.inner.save()
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        self.inner.restore(words)?;
        self.convert();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActionSpace, Episode};

    /// Two environments that show their count of steps in every byte, and end each episode after two.
    struct CountingEnv {
        spec: Spec,
        seen: Vec<u8>,
        steps: u8,
    }

    impl VectorEnv for CountingEnv {
        fn spec(&self) -> &Spec {
            &self.spec
        }
        fn len(&self) -> usize {
            2
        }
        fn observations(&self) -> Observations<'_> {
            Observations::U8(&self.seen)
        }
        fn step(&mut self, _: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
            self.steps += 1;
            let ended = self.steps.is_multiple_of(2);
            outcome.terminated.fill(ended);
            outcome.episodes.clear();
            if let (ObservationBuffer::U8(to), true) = (&mut outcome.final_observations, ended) {
                to.fill(self.steps);
                outcome.episodes.push(Episode { env: 0, episode_return: 2.0, length: 2 });
            }
            self.seen.fill(if ended { 0 } else { self.steps });
            Ok(())
        }
        fn reset(&mut self) -> Result<(), EnvError> {
            (self.steps, self.seen) = (0, vec![0; self.seen.len()]);
            Ok(())
        }
        fn words_per_env(&self) -> Option<usize> {
            None
        }
        fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
            Ok(None)
        }
        fn restore(&mut self, _: &[u64]) -> Result<(), EnvError> {
            Ok(())
        }
    }

    fn counting(shape: &[usize]) -> Box<dyn VectorEnv> {
        let spec = Spec {
            observation_shape: shape.to_vec(),
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 2 },
        };
        let seen = vec![0; 2 * spec.observation_len()];
        Box::new(CountingEnv { spec, seen, steps: 0 })
    }

    #[test]
    fn bytes_are_scaled_for_fully_connected_networks() {
        for shape in [&[6][..], &[2, 3], &[1, 2, 3]] {
            let mut env = fit(counting(shape), NetworkKind::Mlp);
            assert_eq!(env.spec(), &Spec::discrete(6, 2));
            let mut outcome = StepOutcome::new(env.spec(), 2);
            env.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
            assert_eq!(env.observations(), Observations::F32(&[1.0 / 255.0; 12]));
            env.step(Actions::Discrete(&[0, 0]), &mut outcome).unwrap();
            assert_eq!(outcome.final_observations.view(), Observations::F32(&[2.0 / 255.0; 12]));
            assert_eq!((outcome.episodes.len(), env.observations()), (1, Observations::F32(&[0.0; 12])));
        }
    }

    #[test]
    fn grayscale_image_has_one_channel_of_bytes() {
        let env = fit(counting(&[40, 50]), NetworkKind::Nature);
        assert_eq!(env.spec().observation_shape, [1, 40, 50]);
        assert_eq!(env.spec().observation_type, ObservationType::U8);
        assert_eq!(fit(counting(&[3, 40, 50]), NetworkKind::Impala).spec().observation_shape, [3, 40, 50]);
    }
}
