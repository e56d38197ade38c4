//! The line that is always there: what is wrong, worst first, or that nothing is; and the banner when the run
//! is over.
//!
//! It reads the present even while the view is frozen: alarms break through.

use crate::keys::Keymap;
use crate::panes::{alarm, calm, header};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, put, put_right, width};
use rankdeck_core::model::{Model, RunState};
use rankdeck_core::report::Outcome;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Most survivors listed in the banner; the others are counted.
const LISTED: usize = 4;

fn survivors(model: &Model) -> Vec<(String, &rankdeck_proto::message::Survivor)> {
    model
        .hosts
        .iter()
        .flat_map(|host| host.stopped.iter().flatten().map(|survivor| (host.name.clone(), survivor)))
        .collect()
}

/// Lines that the status needs on a screen of this size.
pub fn height(model: &Model, keymap: &Keymap, area: Rect) -> u16 {
    if model.run.state != RunState::Over {
        return alarm::height(model, keymap, area).unwrap_or(1);
    }
    let left = survivors(model).len();
    let listed = left.min(if area.height >= 24 { LISTED } else { 2 });
    let reason = text::wrap(&model.run.reason, reason_width(area)).len().min(2);
    (2 + reason + listed + usize::from(left > listed)) as u16
}

fn reason_width(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(6))
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.status;
    if area.is_empty() {
        return;
    }
    if ctx.live.run.state == RunState::Over {
        banner(ctx, buf, area);
    } else if !alarm::draw(ctx, buf, area) {
        put(buf, area, 0, Line::from(calm::line(ctx)));
    }
}

fn banner(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) {
    let model = ctx.live;
    let run = &model.run;
    let (word, role) = header::state(ctx, run);
    let mut right = Vec::new();
    if let Some(code) = run.exit_code {
        let role = if code == 0 { Role::Good } else { Role::Bad };
        right.push(ctx.s("exit code ", Role::Dim));
        right.push(ctx.s(format!("{code} "), role));
    }
    let left = survivors(model);
    let style = ctx.theme.style(role).add_modifier(Modifier::REVERSED | Modifier::BOLD);
    let took = ctx
        .live
        .run
        .elapsed_ms(ctx.live_now)
        .map_or(String::new(), |ms| format!(" after {}", words::duration_ms(ms)));
    let head = vec![
        Span::styled(format!(" {word} "), style),
        ctx.s(format!(" the run is over{took}"), Role::Strong),
    ];
    let taken = width(&head);
    put(buf, area, 0, Line::from(head));
    put_right(buf, area, 0, taken, right);
    let mut row = 1;
    for line in text::wrap(&run.reason, reason_width(area)).into_iter().take(2) {
        let role = if matches!(run.outcome, Some(Outcome::Failed | Outcome::Stuck)) {
            Role::Bad
        } else {
            Role::Text
        };
        put(buf, area, row, Line::from(ctx.s(format!("   {line}"), role)));
        row += 1;
    }
    put(buf, area, row, Line::from(verification(ctx, left.len())));
    row += 1;
    let listed = usize::from(area.height).saturating_sub(row);
    let listed = if left.len() > listed { listed.saturating_sub(1) } else { left.len() };
    for (host, survivor) in left.iter().take(listed) {
        let rank = survivor.rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
        let text = format!(
            "   {} {host}: pid {}{rank}, state {}: {}",
            ctx.glyphs().pick("›", ">"),
            survivor.pid,
            survivor.state,
            words::clean(&survivor.command)
        );
        put(buf, area, row, Line::from(ctx.s(ctx.cut(&text, usize::from(area.width)), Role::Bad)));
        row += 1;
    }
    if left.len() > listed {
        let more = left.len() - listed;
        put(buf, area, row, Line::from(ctx.s(format!("   and {more} more; see hosts (5)"), Role::Bad)));
    }
}

/// Whether the stop is verified, and what is free again.
fn verification(ctx: &Ctx<'_>, left: usize) -> Vec<Span<'static>> {
    let model = ctx.live;
    let silent: Vec<&str> =
        model.hosts.iter().filter(|host| host.stopped.is_none()).map(|host| host.name.as_str()).collect();
    if left > 0 {
        let what = if left == 1 { "1 process is".to_string() } else { format!("{left} processes are") };
        let text = format!("   stop NOT VERIFIED: {what} still running");
        return vec![ctx.s(text, Role::Bad)];
    }
    if !silent.is_empty() {
        let names = silent.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = if silent.len() > 3 { ", ..." } else { "" };
        return vec![
            ctx.s(format!("   could not verify that all processes exited on {names}{more}"), Role::Warn),
        ];
    }
    let mut spans = vec![
        ctx.s("   stop verified", Role::Good),
        ctx.s(format!(" on {}: no process is left", words::plural(model.hosts.len(), "host")), Role::Dim),
    ];
    let free: Vec<String> = model
        .hosts
        .iter()
        .filter(|host| !host.gpus_free.is_empty())
        .map(|host| format!("{}:{}", host.name, words::ranges(&host.gpus_free)))
        .collect();
    let count: usize = model.hosts.iter().map(|host| host.gpus_free.len()).sum();
    if count > 0 {
        let names = format!("; free again: {}", free.join(" "));
        let fits = width(&spans) + names.len() < usize::from(ctx.geo.area.width);
        let short = format!("; {} free again", words::plural(count, "GPU"));
        spans.push(ctx.s(if fits { names } else { short }, Role::Dim));
    }
    spans
}
