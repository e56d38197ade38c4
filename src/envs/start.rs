//! Starting environments takes up to minutes where Python and its packages come from a slow disk or the cores
//! are busy. A stop need not wait for it: the start is broken off, and what stands in for the environments
//! has their shapes and cannot be stepped.
//!
//! Owner: the process, which says once what a stop is.

use super::{Actions, EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv};
use std::sync::OnceLock;

static ABANDONED: OnceLock<fn() -> bool> = OnceLock::new();

/// From now on `asked` is called a few times per second while a Python worker starts; `true` breaks the start
/// off with [`EnvError::Abandoned`]. Only the first call counts.
pub fn abandon_when(asked: fn() -> bool) {
    ABANDONED.get_or_init(|| asked);
}

/// The start of a worker is not wanted any more.
pub(super) fn is_abandoned() -> bool {
    ABANDONED.get().is_some_and(|asked| asked())
}

/// In place of environments whose start was broken off.
pub fn unstarted(spec: Spec, envs: usize) -> Box<dyn VectorEnv> {
    Box::new(UnstartedEnv { seen: ObservationBuffer::new(&spec, envs), spec, envs })
}

struct UnstartedEnv {
    spec: Spec,
    envs: usize,
    seen: ObservationBuffer,
}

impl VectorEnv for UnstartedEnv {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn len(&self) -> usize {
        self.envs
    }

    fn observations(&self) -> Observations<'_> {
        self.seen.view()
    }

    fn step(&mut self, _actions: Actions<'_>, _outcome: &mut StepOutcome) -> Result<(), EnvError> {
        Err(EnvError::Abandoned)
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        Ok(())
    }

    fn words_per_env(&self) -> Option<usize> {
        None
    }

    fn save(&self) -> Option<Vec<u64>> {
        None
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        Err(EnvError::State { expected: 0, found: words.len() })
    }
}
