//! A live view of the policy in rank 0's evaluation.

use crate::play::{self, Play};
use crate::run::command::ScreenCommand;
use crate::run::keys::names;
use crate::run::overlays::on_card_key;
use crate::run::staleness::{self, coarse};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::model::Model;
use rankdeck_kit::{ColorDepth, Component, Role, put, text};
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::{clean, count};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// The policy in rank 0's evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivePolicy;

impl Component<RunScreen> for LivePolicy {
    fn on_key(&mut self, _: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        on_card_key(key, &mut 0, None, cx)
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let shown = view.shown(model);
        let screen = cx.screen;
        let size = (screen.width.saturating_sub(6), screen.height.saturating_sub(4));
        let inner = cx.popup(buf, size, Role::Accent, "the policy in rank 0's evaluation", "");
        if inner.is_empty() {
            return;
        }
        let (text, role) = freshness(shown, cx.now);
        let frame = shown.policy.frame.as_deref();
        let mut first = vec![cx.s(if role == Role::Good { cx.glyphs().pick("● ", "* ") } else { "" }, role)];
        first.push(cx.s(text, role));
        if let Some(LiveFrame { policy, .. }) = frame {
            let about = format!(
                "{} on {}, iteration {}",
                clean(&policy.algorithm),
                clean(&policy.env_id),
                count(policy.train_iter)
            );
            first.extend([cx.dot(), cx.s(about, Role::Dim)]);
        }
        put(buf, inner, 0, Line::from(first));
        let Some(frame) = frame else { return };
        put(buf, inner, 1, Line::from(place(cx, shown, frame)));
        let below =
            Rect { y: inner.y + inner.height.min(3), height: inner.height.saturating_sub(3), ..inner };
        let colours = if cx.theme.name == "mono" { ColorDepth::None } else { view.style.colours };
        play::moment(&Play::still(frame.policy.clone(), frame.step.clone(), colours), cx.theme, buf, below);
    }

    fn hint(&self, _: &Model, view: &ViewState, cx: &DrawCtx<'_>) -> String {
        let keys = names(&view.steering.keymap, cx.glyphs());
        format!("{} copy   {} or esc closes", keys.of(ScreenCommand::Copy), keys.of(ScreenCommand::Policy))
    }

    fn copy(&self, model: &Model, view: &ViewState, _: Timestamp) -> Option<String> {
        Some(plain(view.shown(model)))
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// A frame up to this age is live, ms: frames come four times per second, through an agent that reads twice
/// per second.
const FRESH_MS: u64 = 1_500;

/// The rank that evaluates is in an evaluation, by its latest sample.
fn evaluates(model: &Model) -> bool {
    let rank = model.ranks.get(model.membership.reporter().index());
    let page = rank.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
    page.is_some_and(|page| page.phase == Phase::Eval)
}

/// How old the frame is.
fn freshness(model: &Model, now: Timestamp) -> (String, Role) {
    let age = now.since(model.policy.at);
    match (&model.policy.frame, evaluates(model)) {
        (None, _) if staleness::is_over(model) => ("the run has ended".into(), Role::Dim),
        (Some(_), _) if staleness::is_over(model) => {
            let before = model.run.ended.unwrap_or(now).since(model.policy.at);
            (format!("last frame, {} before the end", coarse(before)), Role::Dim)
        }
        (None, true) => ("rank 0 is evaluating; waiting for its first step".into(), Role::Dim),
        (None, false) => (absent(model), Role::Dim),
        (Some(_), _) if age < FRESH_MS => ("live".into(), Role::Good),
        (Some(_), true) => (format!("{} ago; the evaluation is still running", coarse(age)), Role::Warn),
        (Some(_), false) => {
            (format!("latest frame, {} ago; waiting for the next evaluation", coarse(age)), Role::Dim)
        }
    }
}

/// Why there is nothing to show.
fn absent(model: &Model) -> String {
    match model.plan.as_ref().and_then(|plan| plan.experiment.launch.command.first()) {
        Some(_) => "send `frame` events to show your program's policy: docs/reporting.md".into(),
        None => "waiting for rank 0's next evaluation".into(),
    }
}

/// Position in the evaluation.
fn place(cx: &DrawCtx<'_>, shown: &Model, frame: &LiveFrame) -> Vec<Span<'static>> {
    let (policy, step) = (&frame.policy, &frame.step);
    let mut spans = vec![
        cx.s(format!("episode {} of {}", u64::from(step.episode) + 1, policy.episodes), Role::Strong),
        cx.s(format!(", {} finished", frame.ended), Role::Dim),
        cx.dot(),
        cx.s(format!("step {}", count(step.step + 1)), Role::Text),
        cx.dot(),
        cx.s("return ", Role::Dim),
        cx.s(text::value(step.episode_return), Role::Strong),
        cx.dot(),
        cx.s(format!("reward {}", text::value(step.reward)), Role::Dim),
    ];
    let skipped = frame.skipped.saturating_add(shown.policy.missed);
    if skipped > 0 {
        spans.extend([cx.dot(), cx.s(format!("{} skipped", count(skipped)), Role::Dim)]);
    }
    spans
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
