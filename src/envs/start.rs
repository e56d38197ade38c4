//! Aborts the start of environments when the rank is stopped.
//!
//! Starting can take minutes where Python and its packages come from a slow disk or the cores are busy. The
//! start is aborted, and a stand-in with the same shapes, which cannot be stepped, takes the place of the
//! environments.

use super::{Actions, EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv};
use std::sync::OnceLock;

static ABANDONED: OnceLock<fn() -> bool> = OnceLock::new();

/// From now on `asked` is called a few times per second while a Python worker starts; `true` breaks the start
/// off with [`EnvError::Abandoned`]. Only the first call counts.
pub fn abandon_when(asked: fn() -> bool) {
    ABANDONED.get_or_init(|| asked);
}

/// Whether the start of a worker is aborted.
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

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        Ok(None)
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        Err(EnvError::State { expected: 0, found: words.len() })
    }
}
