//! Simulated hosts: links that end in no machine. For demonstrations, scale tests and tests of the screen.
//!
//! They speak exactly what agents speak, so that everything above a link cannot tell the difference. A world
//! is what its hosts share: how far training has come, which is a pure function of time
//! (`simulated_training`); each host is one task
//! (`host`) that turns it into records, samples and log lines. Time is tokio's: pausing it pauses the world,
//! and the same
//! seed gives the same run.
//!
//! Owner of each task: its link; it ends on `Close`, or when nobody listens. No lock is held over an await.

mod chance;
mod fault;
mod host;
mod scene;
mod simulated_training;
mod world;

pub use fault::{Fault, FaultKind, parse_fault};
pub use scene::{STEPS_PER_ITERATION, Scene};
pub use world::Trouble;

use super::{LinkEvent, LinkHandle};
use rankdeck_types::ids::{NodeRank, RunId};
use std::sync::Arc;
use tokio::sync::mpsc;
use world::World;

/// Opens one link per simulated host.
pub fn open(scene: &Scene, run: &RunId, events: &mpsc::Sender<(NodeRank, LinkEvent)>) -> Vec<LinkHandle> {
    open_for_trouble(scene, run, events).0
}

/// The same, with a hand on what goes wrong.
pub fn open_for_trouble(
    scene: &Scene,
    run: &RunId,
    events: &mpsc::Sender<(NodeRank, LinkEvent)>,
) -> (Vec<LinkHandle>, Trouble) {
    let world = Arc::new(World::new(scene, run));
    let links = (0..scene.nnodes)
        .map(|node| {
            let (commands, orders) = mpsc::channel(64);
            tokio::spawn(host::serve(Arc::clone(&world), NodeRank(node), events.clone(), orders));
            LinkHandle { node: NodeRank(node), commands }
        })
        .collect();
    (links, Trouble(world))
}
