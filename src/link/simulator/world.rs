//! What simulated hosts share.

use super::scene::Scene;
use super::simulated_training::Life;
use rankdeck_types::ids::RunId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A scene and how far its training has come.
#[derive(Debug)]
pub struct World {
    pub(super) scene: Scene,
    pub(super) run: RunId,
    life: Mutex<Life>,
}

impl World {
    /// A world in which nothing was launched yet.
    pub fn new(scene: &Scene, run: &RunId) -> World {
        World { scene: scene.clone(), run: run.clone(), life: Mutex::default() }
    }

    /// The present life of the simulated group.
    pub fn life(&self) -> MutexGuard<'_, Life> {
        // A poisoned lock means that another simulated host failed; the data is plain values and stays usable.
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
