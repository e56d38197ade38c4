//! `--all-reduce`: how long all-reduces between the ranks take, over the connections that training uses.
//!
//! Owner: the process, which does nothing else. Each size is timed in two ways: one at a time, each waited
//! for, and queued, as the gradients of training are, and as NCCL's own tests do it.

use super::distributed::{DistError, ProcessGroup, ReduceOp};
use super::error::TrainerError;
use super::identity::RankIdentity;
use super::setup;
use rankdeck_types::experiment::Experiment;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor, no_grad};

/// Bytes: a number, gradients of small networks, those of `nature` on Pong (6,746,772), and more.
const SIZES: [usize; 8] = [4, 1 << 10, 36_620, 256 << 10, 1 << 20, 6_746_772, 16 << 20, 32 << 20];
/// Before the measurement, one at a time, batches that are queued, and all-reduces in each; of large ones, as
/// many as have [`BYTES`] together.
const WARM: usize = 5;
const ROUNDS: usize = 50;
const BATCHES: usize = 5;
const QUEUED: usize = 20;
const BYTES: usize = 128 << 20;
const LEAST: usize = 3;

const TIMEOUT: Duration = Duration::from_secs(120);
const LEAVE: Duration = Duration::from_secs(10);

/// As one rank: joins, measures, leaves.
pub fn run(identity: &RankIdentity, largest: usize) -> Result<(), TrainerError> {
    let experiment = Experiment::default();
    let (backend, device) = setup::device(identity, &experiment)?;
    let page = setup::open_page(identity)?;
    let settings = setup::group(identity, (backend, device), TIMEOUT);
    let group = ProcessGroup::connect(&settings, page)?;
    for bytes in SIZES.into_iter().filter(|bytes| *bytes <= largest) {
        let [alone, queued] = measure(&group, bytes, device)?;
        if identity.rank == 0 {
            let line = json!({
                "bytes": bytes,
                "ranks": identity.world_size,
                "backend": group.backend_name(),
                "us": alone,
                "queued_us": queued,
            });
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
    group.destroy(LEAVE)?;
    Ok(())
}

/// Medians in microseconds: of one that is waited for, and of one in a queue.
fn measure(group: &ProcessGroup, bytes: usize, device: Device) -> Result<[f64; 2], DistError> {
    let mut values = no_grad(|| Tensor::zeros([(bytes / 4) as i64], (Kind::Float, device)));
    let mut batch = |count: usize| -> Result<f64, DistError> {
        let begun = Instant::now();
        for _ in 0..count {
            group.all_reduce_queued(&mut values, ReduceOp::Sum, "measure")?;
        }
        group.settle()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    let at_most = |count: usize| count.min((BYTES / bytes.max(1)).max(LEAST));
    batch(at_most(WARM))?;
    let alone = (0..at_most(ROUNDS)).map(|_| batch(1)).collect::<Result<Vec<_>, _>>()?;
    let queued = (0..BATCHES).map(|_| batch(at_most(QUEUED))).collect::<Result<Vec<_>, _>>()?;
    Ok([alone, queued].map(median))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.get(times.len() / 2).copied().unwrap_or(0.0);
    (middle * 100.0).round() / 100.0
}
