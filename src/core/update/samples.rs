//! Gauges: the latest values of a host and its ranks, their rates and short histories.

use crate::model::Tone;
use crate::session::Ctx;
use rankdeck_proto::message::HostSample;
use rankdeck_types::ids::NodeRank;
use std::collections::VecDeque;

/// Values per sparkline.
const HISTORY: usize = 240;
/// The same of a GPU, and GPUs of a host that have one.
const GPU_HISTORY: usize = 60;
const GPUS: usize = 64;

/// Takes a host's gauges.
pub(super) fn apply(ctx: &mut Ctx<'_>, node: NodeRank, mut sample: HostSample) {
    if !ctx.host(node).is_live() {
        return;
    }
    ctx.session.clock.sampled = true;
    let (machine, drops) = (&mut ctx.model.hosts[node.index()].machine, &mut ctx.model.drops);
    // Drops are counted per connection, malformed lines per life of the agent; both begin at 0.
    let since = |before: u64, now: u64| if now >= before { now - before } else { now };
    drops.by_agents = drops.by_agents.saturating_add(since(machine.dropped, sample.dropped));
    machine.dropped = sample.dropped;
    let malformed = since(machine.malformed, sample.malformed);
    drops.malformed = drops.malformed.saturating_add(malformed);
    machine.malformed = sample.malformed;
    drops.withheld = drops.withheld.saturating_add(since(machine.withheld, sample.withheld));
    machine.withheld = sample.withheld;
    if ctx.session.run.is_current(sample.generation) {
        ctx.session.watch.observe(ctx.model, node, &sample);
        // Each rank keeps its own.
        for gauge in std::mem::take(&mut sample.ranks) {
            let Some(model) = ctx.model.ranks.get_mut(gauge.rank.index()).filter(|m| m.node == node) else {
                ctx.model.drops.misplaced += 1;
                continue;
            };
            if !gauge.is_gone() {
                push(&mut model.cpu_history, gauge.cpu_percent);
            }
            // The host knows better than the plan: a scheduler may have given the rank another one.
            model.gpu = gauge.gpu.or(model.gpu);
            let gpu = sample.gpus.iter().find(|gpu| Some(gpu.index) == model.gpu);
            if let Some(percent) = gauge.gpu_share.or(gpu.and_then(|gpu| gpu.utilization)) {
                push(&mut model.gpu_history, percent as f32);
            }
            if let Some(page) = &gauge.page {
                model.steps_per_s = model.rate.update(sample.mono_ms as f64 / 1000.0, page.env_step);
            }
            model.sample = Some(gauge);
            model.sampled = Some(ctx.now);
        }
    }
    sample.ranks.clear();
    let histories = &mut ctx.host(node).gpu_history;
    histories.retain(|index, _| sample.gpus.iter().any(|gpu| gpu.index == *index));
    for gpu in sample.gpus.iter().take(GPUS) {
        let history = histories.entry(gpu.index).or_default();
        push(history, gpu.utilization.map_or(f32::NAN, |percent| percent as f32));
        if history.len() > GPU_HISTORY {
            history.pop_front();
        }
    }
    ctx.host(node).sample = Some(sample);
    if malformed > 0 && ctx.model.drops.malformed == malformed {
        let name = ctx.host_name(node);
        ctx.note(Tone::Warn, format!("{name}: a rank sent lines that are not events (counted)"));
    }
}

fn push(history: &mut VecDeque<f32>, value: f32) {
    history.push_back(if value.is_finite() { value } else { 0.0 });
    if history.len() > HISTORY {
        history.pop_front();
    }
}
