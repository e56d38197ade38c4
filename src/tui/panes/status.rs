//! The line that is always there: what is wrong, worst first, or that nothing is; and the banner when the run
//! is over.
//!
//! It reads the present even while the view is frozen: alarms break through.

use crate::panes::header;
use crate::ranks;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, put, put_right, width};
use rankdeck_core::model::{Model, RunState};
use rankdeck_core::report::{Confidence, Outcome, Severity};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// From this width on an alarm fits in one line.
const WIDE: u16 = 140;
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
pub fn height(model: &Model, area: Rect) -> u16 {
    if model.run.state != RunState::Over {
        // A red verdict gets a line for its reason where one line cannot hold both.
        let red = ranks::live_verdicts(model).next().filter(|worst| worst.severity == Severity::Red);
        return if red.is_some() && area.width < WIDE { 2 } else { 1 };
    }
    let left = survivors(model).len();
    let listed = left.min(if area.height >= 24 { LISTED } else { 2 });
    let reason = text::wrap(&model.run.reason, reason_width(area)).len().min(2);
    (2 + reason + listed + usize::from(left > listed)) as u16
}

fn reason_width(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(6))
}

/// Draws it.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.status;
    if area.is_empty() {
        return;
    }
    if ctx.live.run.state == RunState::Over {
        banner(ctx, buf, area);
    } else {
        alert(ctx, buf, area);
    }
}

fn alert(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) {
    let mut standing = ranks::live_verdicts(ctx.live);
    let Some(worst) = standing.next() else {
        put(buf, area, 0, Line::from(calm(ctx)));
        return;
    };
    let more = standing.count();
    let role = ranks::severity_role(worst.severity);
    let mut right = Vec::new();
    if more > 0 {
        right.push(ctx.s(format!("+{more} more  "), role));
    }
    right.push(ctx.s("d", Role::Accent));
    right.push(ctx.s(" why ", Role::Dim));
    let who = match (worst.rank, &worst.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the run".into(),
    };
    let label = format!(" {} {who}: {} ", ctx.glyphs().tone(role), worst.verdict.name());
    let label = if worst.severity == Severity::Red {
        Span::styled(label, ctx.theme.bad.add_modifier(Modifier::REVERSED))
    } else {
        ctx.s(label, role)
    };
    let sure = match worst.confidence {
        Confidence::Possible => " (possible)",
        Confidence::Likely => " (likely)",
        Confidence::Certain => "",
    };
    let room = usize::from(area.width).saturating_sub(label.width() + width(&right) + 2);
    let reason = words::clean(&format!("{}{sure}", worst.reason));
    let beside = if area.height > 1 {
        let hint = worst.card.hint();
        let hint = if hint.is_empty() { String::new() } else { format!("hint: {}", words::clean(&hint)) };
        put(
            buf,
            area,
            1,
            Line::from(ctx.s(ctx.cut(&format!("   {reason}"), usize::from(area.width)), Role::Strong)),
        );
        ctx.s(ctx.cut(&hint, room), Role::Dim)
    } else {
        ctx.s(ctx.cut(&reason, room), Role::Text)
    };
    let left = vec![label, Span::raw(" "), beside];
    let taken = width(&left);
    put(buf, area, 0, Line::from(left));
    put_right(buf, area, 0, taken, right);
}

fn calm(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    let model = ctx.live;
    let tick = ctx.s(format!(" {} ", ctx.glyphs().tone(Role::Good)), Role::Good);
    let waiting = ctx.s(format!(" {} ", ctx.glyphs().pick("◌", "o")), Role::Warn);
    let dim = |text: String| ctx.s(text, Role::Dim);
    match model.run.state {
        RunState::Connecting => vec![waiting, dim("opening links; nothing runs yet".into())],
        RunState::Launching => vec![waiting, dim("launching ranks".into())],
        RunState::Restarting => vec![waiting, dim("stopping this generation; a new one follows".into())],
        _ if model.run.stopping.is_some() || model.run.state == RunState::Draining => {
            let verified = model.hosts.iter().filter(|host| host.stopped.is_some()).count();
            let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
            vec![
                waiting,
                dim(format!(
                    "ranks are leaving: {alive} still running; stop verified on {verified} of {}",
                    words::plural(model.hosts.len(), "host")
                )),
            ]
        }
        _ => {
            let weights = match &model.fingerprint {
                Some(fingerprint) if fingerprint.equal => {
                    format!(", weights equal at update {}", words::count(fingerprint.update))
                }
                _ => String::new(),
            };
            let what = if model.ranks.len() == 1 { "the rank moves" } else { "all ranks move" };
            vec![tick, dim(format!("no trouble: {what}{weights}"))]
        }
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
    let took = header::elapsed(ctx).map_or(String::new(), |ms| format!(" after {}", words::duration_ms(ms)));
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
        .map(|host| format!("{}:{}", host.name, ranges(&host.gpus_free)))
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

/// `0-3,6`.
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for n in sorted {
        match parts.last_mut() {
            Some((_, end)) if n <= end.saturating_add(1) => *end = n,
            _ => parts.push((n, n)),
        }
    }
    let texts: Vec<String> =
        parts.into_iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn indices_are_told_as_ranges() {
        assert_eq!(super::ranges(&[3, 0, 1, 2, 6]), "0-3,6");
        assert_eq!(super::ranges(&[]), "");
    }
}
