//! The policy at play in rank 0's evaluation, while it goes on.

use crate::fresh::{self, coarse};
use crate::play::{self, Colours, Play};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::Model;
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words::{clean, count};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// A frame of this age is of the present, ms: they come four times a second, through an agent that reads
/// twice a second.
const FRESH_MS: u64 = 1_500;

/// Rank 0 plays at this moment, as far as it is known.
fn evaluates(model: &Model) -> bool {
    let rank = model.ranks.get(Rank(0).index());
    let page = rank.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
    page.is_some_and(|page| page.phase == Phase::Eval)
}

/// How fresh the frame is, in words.
fn freshness(model: &Model, now: Timestamp) -> (String, Role) {
    let age = now.since(model.policy.at);
    match (&model.policy.frame, evaluates(model)) {
        (None, _) if fresh::is_over(model) => ("the run is over; nothing plays any more".into(), Role::Dim),
        (Some(_), _) if fresh::is_over(model) => {
            let before = model.run.ended.unwrap_or(now).since(model.policy.at);
            (format!("the last one, {} before the end", coarse(before)), Role::Dim)
        }
        (None, true) => ("rank 0 evaluates; its first step is on its way".into(), Role::Dim),
        (None, false) => (absent(model), Role::Dim),
        (Some(_), _) if age < FRESH_MS => ("live".into(), Role::Good),
        (Some(_), true) => (format!("{} ago; the evaluation goes on", coarse(age)), Role::Warn),
        (Some(_), false) => {
            (format!("the latest, {} ago; the next evaluation shows itself", coarse(age)), Role::Dim)
        }
    }
}

/// Why there is nothing to see.
fn absent(model: &Model) -> String {
    match model.plan.as_ref().and_then(|plan| plan.experiment.launch.command.first()) {
        Some(_) => "a program of your own shows its policy by `frame` events: docs/EVENTS.md".into(),
        None => "rank 0 plays when it evaluates; the next evaluation shows itself".into(),
    }
}

/// Where in the evaluation it is.
fn place(ctx: &Ctx<'_>, frame: &LiveFrame) -> Vec<Span<'static>> {
    let (policy, step) = (&frame.policy, &frame.step);
    let mut spans = vec![
        ctx.s(format!("episode {} of {}", u64::from(step.episode) + 1, policy.episodes), Role::Strong),
        ctx.s(format!(", {} over", frame.ended), Role::Dim),
        ctx.dot(),
        ctx.s(format!("step {}", count(step.step + 1)), Role::Text),
        ctx.dot(),
        ctx.s("return ", Role::Dim),
        ctx.s(text::value(step.episode_return), Role::Strong),
        ctx.dot(),
        ctx.s(format!("reward {}", text::value(step.reward)), Role::Dim),
    ];
    let skipped = frame.skipped.saturating_add(ctx.model.policy.missed);
    if skipped > 0 {
        spans.extend([ctx.dot(), ctx.s(format!("{} skipped", count(skipped)), Role::Dim)]);
    }
    spans
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let screen = ctx.geo.area;
    let size = (screen.width.saturating_sub(6), screen.height.saturating_sub(4));
    let inner = frame::popup(ctx, buf, size, Role::Accent, "the policy in rank 0's evaluation", "");
    if inner.is_empty() {
        return;
    }
    let (said, role) = freshness(ctx.model, ctx.now);
    let frame = ctx.model.policy.frame.as_deref();
    let mut first = vec![ctx.s(if role == Role::Good { ctx.glyphs().pick("● ", "* ") } else { "" }, role)];
    first.push(ctx.s(said, role));
    if let Some(LiveFrame { policy, .. }) = frame {
        let about = format!(
            "{} on {}, iteration {}",
            clean(&policy.algorithm),
            clean(&policy.env_id),
            count(policy.train_iter)
        );
        first.extend([ctx.dot(), ctx.s(about, Role::Dim)]);
    }
    put(buf, inner, 0, Line::from(first));
    let Some(frame) = frame else { return };
    put(buf, inner, 1, Line::from(place(ctx, frame)));
    let below = Rect { y: inner.y + inner.height.min(3), height: inner.height.saturating_sub(3), ..inner };
    let colours = if ctx.theme.name == "mono" { Colours::None } else { ctx.view.style.colours };
    play::moment(&Play::still(frame.policy.clone(), frame.step.clone(), colours), ctx.theme, buf, below);
}

/// As plain text, for the clipboard.
pub fn plain(model: &Model) -> String {
    let Some(frame) = model.policy.frame.as_deref() else { return absent(model) };
    let (policy, step) = (&frame.policy, &frame.step);
    format!(
        "{} on {}, iteration {}: episode {} of {}, step {}, return {}\nsees {:?}\naction {:?}\n",
        clean(&policy.algorithm),
        clean(&policy.env_id),
        policy.train_iter,
        u64::from(step.episode) + 1,
        policy.episodes,
        step.step + 1,
        step.episode_return,
        step.seen,
        step.action
    )
}
