//! Gauges: the latest values of a host and its ranks, their rates and short histories.

use crate::model::Tone;
use crate::session::Ctx;
use rankdeck_proto::message::HostSample;
use std::collections::VecDeque;

/// Values per sparkline.
const HISTORY: usize = 240;

/// Takes a host's gauges.
pub(super) fn apply(ctx: &mut Ctx<'_>, node: usize, sample: HostSample) {
    let (Some(host), Some(machine)) = (ctx.model.hosts.get_mut(node), ctx.session.hosts.get_mut(node)) else {
        return;
    };
    if !machine.is_live() {
        return;
    }
    ctx.session.clock.sampled = true;
    let drops = &mut ctx.model.drops;
    // A new connection counts its drops from 0 again; the agent itself counts malformed lines, from 0 after its own restart.
    let since = |before: u64, now: u64| if now >= before { now - before } else { now };
    drops.by_agents = drops.by_agents.saturating_add(since(machine.dropped, sample.dropped));
    machine.dropped = sample.dropped;
    let malformed = since(machine.malformed, sample.malformed);
    drops.malformed = drops.malformed.saturating_add(malformed);
    machine.malformed = sample.malformed;
    let name = host.name.clone();
    if ctx.session.run.is_current(sample.generation) {
        let ranks = &ctx.model.ranks;
        let here = |rank: rankdeck_types::ids::Rank| {
            ranks.get(rank.index()).is_some_and(|model| model.node.index() == node)
        };
        ctx.session.watch.observe(rankdeck_types::ids::NodeRank(node as u32), &sample, here);
        for gauge in &sample.ranks {
            let Some(model) = ctx.model.ranks.get_mut(gauge.rank.index()).filter(|m| m.node.index() == node)
            else {
                ctx.model.drops.misplaced += 1;
                continue;
            };
            push(&mut model.cpu_history, gauge.cpu_percent);
            let gpu = sample.gpus.iter().find(|gpu| Some(gpu.index) == model.gpu.or(gauge.gpu));
            if let Some(percent) = gpu.and_then(|gpu| gpu.utilization) {
                push(&mut model.gpu_history, percent as f32);
            }
            if let (Some(page), Some(rate)) =
                (&gauge.page, ctx.session.rates.ranks.get_mut(gauge.rank.index()))
            {
                model.steps_per_s = rate.update(sample.mono_ms as f64 / 1000.0, page.env_step);
            }
            model.sample = Some(gauge.clone());
            model.sampled = Some(ctx.now);
        }
    }
    host.sample = Some(sample);
    if malformed > 0 && ctx.model.drops.malformed == malformed {
        ctx.note(Tone::Warn, format!("{name}: a rank sent lines that are no events (counted)"));
    }
}

fn push(history: &mut VecDeque<f32>, value: f32) {
    history.push_back(if value.is_finite() { value } else { 0.0 });
    if history.len() > HISTORY {
        history.pop_front();
    }
}
