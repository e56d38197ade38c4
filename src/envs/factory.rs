//! The environment of an experiment: its shapes first, and vectors of it when they are known to fit.

use super::{EnvError, EnvPurpose, Spec, Streams, VectorEnv, classic, in_rust, make_vector, python};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Env;
use std::cell::RefCell;

/// Makes environments of one kind, whose shapes are known.
///
/// An environment of Python's is imported and made to learn its shapes, which takes seconds to minutes where
/// it is a large simulator. The first vector takes that worker over, with the environment that is in it.
pub struct EnvFactory {
    env: Env,
    spec: Spec,
    worker: RefCell<Option<python::Worker>>,
}

impl EnvFactory {
    /// Learns the shapes of `env` from one. Call it on a thread that lives as long as the environments: a
    /// Python worker dies with the thread that started it.
    pub fn open(env: &Env) -> Result<EnvFactory, EnvError> {
        let (worker, spec) = match in_rust(env)? {
            true => (None, classic::spec_of(&env.id).ok_or_else(|| EnvError::unknown(&env.id))?),
            false => {
                let (worker, spec) = python::open(env)?;
                (Some(worker), spec)
            }
        };
        Ok(EnvFactory { env: env.clone(), spec, worker: RefCell::new(worker) })
    }

    /// Shapes of each environment.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// As [`make_vector`].
    pub fn make(
        &self,
        envs: usize,
        first_env: u32,
        seeds: &Seeds,
        start_iteration: u64,
        purpose: EnvPurpose,
    ) -> Result<Box<dyn VectorEnv>, EnvError> {
        // What was made to tell its shapes does not draw itself.
        let worker = (purpose != EnvPurpose::Show).then(|| self.worker.take()).flatten();
        let Some(worker) = worker else {
            return make_vector(&self.env, envs, first_env, seeds, start_iteration, purpose);
        };
        let streams = Streams { seeds: *seeds, first_env, start_iteration, purpose };
        Ok(Box::new(python::PythonVector::new(&self.env, envs, streams, Some(worker))?))
    }
}
