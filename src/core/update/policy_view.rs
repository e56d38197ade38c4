//! The policy at play, as rank 0's evaluations show it while somebody looks.

use crate::model::PolicyView;
use crate::session::Ctx;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};

/// Somebody looks, or no longer: agents send frames to consoles that want them only.
pub(super) fn watched(ctx: &mut Ctx<'_>, on: bool) -> bool {
    if std::mem::replace(&mut ctx.model.policy.watched, on) == on {
        return false;
    }
    // What was counted was of the time before.
    ctx.model.policy.missed = 0;
    for node in ctx.nodes() {
        tell(ctx, node);
    }
    true
}

/// Tells the agent of a host whether frames are wanted. Any host may have rank 0 one day; those that do not
/// have it send none.
pub(super) fn tell(ctx: &mut Ctx<'_>, node: NodeRank) {
    if ctx.host(node).machine.is_live() {
        let on = ctx.model.policy.watched;
        ctx.send(node, ConsoleMessage::Watch { on });
    }
}

/// A frame came. Returns whether a screen could show it.
pub(super) fn frame(
    ctx: &mut Ctx<'_>,
    node: NodeRank,
    generation: Generation,
    age_ms: u64,
    missed: u64,
    frame: Box<LiveFrame>,
) -> bool {
    let here = ctx.model.ranks.get(Rank(0).index()).is_some_and(|rank| rank.node == node);
    if !here || generation != ctx.model.run.generation {
        ctx.model.drops.misplaced += u64::from(!here);
        return false;
    }
    let watched = ctx.model.policy.watched;
    let at = Timestamp(ctx.now.0.saturating_sub(age_ms));
    ctx.model.policy = PolicyView { watched, at, missed, frame: Some(frame) };
    watched
}
