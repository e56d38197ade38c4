//! What simulated hosts share.

use super::fault::{Fault, FaultKind};
use super::scene::Scene;
use super::simulated_training::Life;
use rankdeck_types::ids::RunId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

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
        let life = Life { faults: scene.faults.clone(), ..Life::default() };
        World { scene: scene.clone(), run: run.clone(), life: Mutex::new(life) }
    }

    /// The present life of the simulated group.
    pub fn life(&self) -> MutexGuard<'_, Life> {
        // A poisoned lock means that another simulated host failed; the data is plain values and stays
        // usable.
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets things go wrong in a world that runs.
#[derive(Debug, Clone)]
pub struct Trouble(pub(super) Arc<World>);

impl Trouble {
    /// Begins a fault now, of a rank in the middle or of the last host. Returns whether it did: before all
    /// ranks have joined, nothing can go wrong.
    pub fn begin(&self, kind: FaultKind, lasts: Option<Duration>) -> bool {
        let scene = &self.0.scene;
        let target = match kind {
            FaultKind::Lose | FaultKind::Survive => scene.nnodes.saturating_sub(1),
            _ => scene.world_size() / 2,
        };
        let mut life = self.0.life();
        let Some(at) = life.joined.and_then(|joined| Instant::now().checked_duration_since(joined)) else {
            return false;
        };
        let generation = life.generation;
        life.faults.push(Fault { kind, target, at, lasts, generation });
        true
    }
}
