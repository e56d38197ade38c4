//! Environments in several parts that are stepped at the same time, as one vector.
//!
//! Every part begins its step, or its reset, before the first is waited for, and all end at the same time. Rows
//! stand in the order of the parts, so that results do not depend on how many there are.

use super::{Actions, EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv, Watcher};
use rankdeck_proto::message::Activity;
use rankdeck_proto::show::EnvImage;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// A part and its rows in the whole.
struct VectorPart {
    vector: Box<dyn VectorEnv>,
    rows: Range<usize>,
    outcome: StepOutcome,
}

/// All parts.
pub(super) struct PartedVector {
    spec: Spec,
    parts: Vec<VectorPart>,
    envs: usize,
    observations: ObservationBuffer,
    /// Of all parts, if they have any.
    masks: Option<Vec<u8>>,
}

impl PartedVector {
    /// Of at least one part; all have the same shapes.
    pub(super) fn new(vectors: Vec<Box<dyn VectorEnv>>) -> PartedVector {
        let spec = vectors.first().map_or_else(|| Spec::discrete(1, 1), |first| first.spec().clone());
        let mut envs = 0;
        let parts = vectors
            .into_iter()
            .map(|vector| {
                let rows = envs..envs + vector.len();
                envs = rows.end;
                VectorPart { outcome: StepOutcome::new(&spec, rows.len()), vector, rows }
            })
            .collect();
        let observations = ObservationBuffer::new(&spec, envs);
        let mut parted = PartedVector { spec, parts, envs, observations, masks: None };
        parted.gather();
        parted
    }

    /// Copies what the parts show.
    fn gather(&mut self) {
        let width = self.spec.observation_len();
        for VectorPart { vector, rows, .. } in &self.parts {
            copy_rows(&mut self.observations, vector.observations(), rows, width);
        }
        let all: Option<Vec<&[u8]>> = self.parts.iter().map(|part| part.vector.masks()).collect();
        self.masks = all.map(|all| all.concat());
    }
}

fn copy_rows(to: &mut ObservationBuffer, from: Observations<'_>, rows: &Range<usize>, width: usize) {
    let range = rows.start * width..rows.end * width;
    match (to, from) {
        (ObservationBuffer::F32(to), Observations::F32(from)) => to[range].copy_from_slice(from),
        (ObservationBuffer::U8(to), Observations::U8(from)) => to[range].copy_from_slice(from),
        _ => {}
    }
}

impl Drop for PartedVector {
    fn drop(&mut self) {
        // All together, before the first is waited for.
        self.close();
    }
}

impl VectorEnv for PartedVector {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn len(&self) -> usize {
        self.envs
    }

    fn observations(&self) -> Observations<'_> {
        self.observations.view()
    }

    fn masks(&self) -> Option<&[u8]> {
        self.masks.as_deref()
    }

    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.start_step(actions, outcome)?;
        self.finish(outcome)
    }

    fn start_step(&mut self, actions: Actions<'_>, _outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let width = self.spec.actions.action_len();
        for VectorPart { vector, rows, outcome } in &mut self.parts {
            let range = rows.start * width..rows.end * width;
            // A wrong number of actions is the part's to refuse.
            let own = match actions {
                Actions::Discrete(all) => Actions::Discrete(all.get(range).unwrap_or_default()),
                Actions::Continuous(all) => Actions::Continuous(all.get(range).unwrap_or_default()),
            };
            vector.start_step(own, outcome)?;
        }
        Ok(())
    }

    fn finish(&mut self, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let width = self.spec.observation_len();
        outcome.episodes.clear();
        outcome.final_masks.clear();
        for VectorPart { vector, rows, outcome: own } in &mut self.parts {
            vector.finish(own)?;
            outcome.rewards[rows.clone()].copy_from_slice(&own.rewards);
            outcome.terminated[rows.clone()].copy_from_slice(&own.terminated);
            outcome.truncated[rows.clone()].copy_from_slice(&own.truncated);
            outcome.valid[rows.clone()].copy_from_slice(&own.valid);
            copy_rows(&mut outcome.final_observations, own.final_observations.view(), rows, width);
            outcome.final_masks.extend_from_slice(&own.final_masks);
            for mut episode in own.episodes.drain(..) {
                episode.env += rows.start;
                outcome.episodes.push(episode);
            }
        }
        self.gather();
        Ok(())
    }

    fn retire(&mut self, index: usize) {
        for VectorPart { vector, rows, .. } in &mut self.parts {
            if rows.contains(&index) {
                vector.retire(index - rows.start);
            }
        }
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        self.start_reset()?;
        self.finish_reset()
    }

    fn start_reset(&mut self) -> Result<(), EnvError> {
        self.parts.iter_mut().try_for_each(|part| part.vector.start_reset())
    }

    fn finish_reset(&mut self) -> Result<(), EnvError> {
        self.parts.iter_mut().try_for_each(|part| part.vector.finish_reset())?;
        self.gather();
        Ok(())
    }

    fn close(&mut self) {
        self.parts.iter_mut().for_each(|part| part.vector.close());
    }

    fn watch(&mut self, watcher: Watcher) {
        let shared = Rc::new(RefCell::new(watcher));
        for part in &mut self.parts {
            let watcher = Rc::clone(&shared);
            part.vector.watch(Box::new(move |activity: Activity| (watcher.borrow_mut())(activity)));
        }
    }

    fn words_per_env(&self) -> Option<usize> {
        self.parts.first().and_then(|part| part.vector.words_per_env())
    }

    fn picture(&mut self, index: usize) -> Result<Option<EnvImage>, EnvError> {
        match self.parts.iter_mut().find(|part| part.rows.contains(&index)) {
            Some(VectorPart { vector, rows, .. }) => vector.picture(index - rows.start),
            None => Ok(None),
        }
    }

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        let mut words = Vec::new();
        for part in &self.parts {
            let Some(own) = part.vector.save()? else { return Ok(None) };
            words.extend(own);
        }
        Ok(Some(words))
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = self.words_per_env().unwrap_or(0);
        for VectorPart { vector, rows, .. } in &mut self.parts {
            vector.restore(words.get(rows.start * each..rows.end * each).unwrap_or_default())?;
        }
        self.gather();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvPurpose, make_vector};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::Env;

    fn vector(first: u32, envs: usize) -> Box<dyn VectorEnv> {
        make_vector(&Env::new("CartPole-v1", 1), envs, first, &Seeds::new(5), 0, EnvPurpose::Train).unwrap()
    }

    #[test]
    fn parts_step_as_the_whole_does() {
        let mut whole = vector(3, 5);
        let mut parted = PartedVector::new(vec![vector(3, 2), vector(5, 3)]);
        let mut outcomes = [0, 1].map(|_| StepOutcome::new(whole.spec(), 5));
        for step in 0..200_i64 {
            let actions: Vec<i64> = (0..5).map(|env| (step * 7 + env) % 3 % 2).collect();
            whole.step(Actions::Discrete(&actions), &mut outcomes[0]).unwrap();
            parted.step(Actions::Discrete(&actions), &mut outcomes[1]).unwrap();
            assert_eq!(whole.observations(), parted.observations(), "step {step}");
            let [one, other] = &outcomes;
            assert_eq!((&one.rewards, &one.terminated), (&other.rewards, &other.terminated));
            assert_eq!((&one.truncated, &one.episodes), (&other.truncated, &other.episodes));
        }
        assert_eq!(whole.save(), parted.save());
        let state = whole.save().unwrap().unwrap();
        let mut again = PartedVector::new(vec![vector(0, 4), vector(4, 1)]);
        again.restore(&state).unwrap();
        assert_eq!(again.observations(), whole.observations());
        assert!(parted.step(Actions::Discrete(&[0]), &mut outcomes[1]).is_err(), "too few actions");
    }

    /// Logs what is asked of it.
    struct LoggedVector {
        inner: Box<dyn VectorEnv>,
        name: char,
        log: Rc<RefCell<String>>,
    }

    impl LoggedVector {
        fn note(&self, what: &str) {
            self.log.borrow_mut().push_str(&format!("{what} {}, ", self.name));
        }
    }

    impl Drop for LoggedVector {
        fn drop(&mut self) {
            self.note("drop");
        }
    }

    impl VectorEnv for LoggedVector {
        fn spec(&self) -> &Spec {
            self.inner.spec()
        }
        fn len(&self) -> usize {
            self.inner.len()
        }
        fn observations(&self) -> Observations<'_> {
            self.inner.observations()
        }
        fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
            self.inner.step(actions, outcome)
        }
        fn reset(&mut self) -> Result<(), EnvError> {
            self.note("reset");
            self.inner.reset()
        }
        fn start_reset(&mut self) -> Result<(), EnvError> {
            self.note("start");
            self.inner.start_reset()
        }
        fn finish_reset(&mut self) -> Result<(), EnvError> {
            self.note("finish");
            self.inner.finish_reset()
        }
        fn close(&mut self) {
            self.note("close");
        }
        fn words_per_env(&self) -> Option<usize> {
            self.inner.words_per_env()
        }
        fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
            self.inner.save()
        }
        fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
            self.inner.restore(words)
        }
    }

    #[test]
    fn parts_reset_and_end_at_the_same_time() {
        let log = Rc::new(RefCell::new(String::new()));
        let part = |name, first| -> Box<dyn VectorEnv> {
            Box::new(LoggedVector { inner: vector(first, 2), name, log: Rc::clone(&log) })
        };
        let mut parted = PartedVector::new(vec![part('a', 0), part('b', 2)]);
        let start = parted.observations().f32().unwrap().to_vec();
        let mut outcome = StepOutcome::new(parted.spec(), 4);
        parted.step(Actions::Discrete(&[0; 4]), &mut outcome).unwrap();
        parted.reset().unwrap();
        assert_eq!(parted.observations(), Observations::F32(&start));
        drop(parted);
        let log = log.borrow();
        assert_eq!(*log, "start a, start b, finish a, finish b, close a, close b, drop a, drop b, ");
    }
}
