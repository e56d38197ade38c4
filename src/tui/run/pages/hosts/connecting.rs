//! Before ranks exist: each host's connection to its agent, with progress, errors and what helps.

use crate::run::pages::PageDrawCtx;
use crate::run::pages::hosts::draw::{link, trouble};
use rankdeck_core::model::HostModel;
use rankdeck_kit::{Role, meter, put_lines, text};
use rankdeck_types::hidden;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

/// A host that has not started its agent by then gets a hint, in milliseconds.
const SLOW_MS: u64 = 3000;

/// Draws the page.
pub fn draw(ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let all = &ctx.model.hosts;
    let ready = all.iter().filter(|host| matches!(host.link, LinkState::Ready { .. })).count();
    let failed = all.iter().filter(|host| matches!(host.link, LinkState::Failed(_))).count();
    let mut info = vec![ctx.s(format!("{ready} of {} ready", all.len()), Role::Good)];
    if failed > 0 {
        info.push(ctx.s(format!("  {failed} failed"), Role::Bad));
    }
    let title = ctx.title("connecting", words::plural(all.len(), "host"));
    let inner = ctx.pane(buf, ctx.place.area(), title, info);
    let cells = usize::from(inner.width);
    let name = all.iter().map(|host| text::width(&host.name)).max().unwrap_or(4).clamp(4, 20);
    let head = format!("NODE  {}  {:<18}  AFTER", text::left("HOST", name, ctx.glyphs()), "LINK");
    let mut lines = vec![Line::from(ctx.s(head, Role::Dim))];
    // Hosts with problems first if not all fit: a page of healthy links does not help.
    let mut order: Vec<&HostModel> = all.iter().collect();
    if all.len() + 1 > usize::from(inner.height) {
        order.sort_by_key(|host| match host.link {
            LinkState::Failed(_) | LinkState::Asking { .. } => 0,
            LinkState::Lost { .. } => 1,
            LinkState::Ready { .. } => 3,
            _ => 2,
        });
    }
    for host in order {
        lines.push(Line::from(line(ctx, host, name, cells)));
        for (text, role) in trouble(ctx, host) {
            let parts = text::wrap(&text, cells.saturating_sub(name + 8)).into_iter().take(2);
            lines
                .extend(parts.map(|part| Line::from(ctx.s(format!("{}{part}", " ".repeat(name + 8)), role))));
        }
    }
    lines.extend(plan(ctx));
    put_lines(buf, inner, lines);
}

fn line(ctx: &PageDrawCtx<'_>, host: &HostModel, name: usize, cells: usize) -> Vec<Span<'static>> {
    let (word, role) = link(ctx, host);
    let age = words::duration_ms(ctx.now.since(host.link_since));
    let mut spans = vec![
        ctx.s(format!("{:>4}  ", host.node_rank), Role::Dim),
        ctx.s(text::left(&host.name, name, ctx.glyphs()), Role::Strong),
        Span::raw("  "),
        ctx.s(text::left(&word, 18, ctx.glyphs()), role),
        ctx.s(format!("  {}", text::left(&age, 7, ctx.glyphs())), Role::Dim),
    ];
    let taken = rankdeck_kit::width(&spans);
    match &host.link {
        LinkState::Uploading { what, done, total } => {
            let share = if *total == 0 { 0.0 } else { *done as f64 / *total as f64 };
            let bar = cells.saturating_sub(taken + 20).clamp(8, 24);
            spans.extend(meter::bar(ctx.theme, share, bar, ctx.theme.fill));
            spans.push(ctx.s(format!(" {:>3.0}%", (share * 100.0).floor().min(100.0)), Role::Strong));
            let file = what.rsplit('/').next().unwrap_or(what);
            let room = cells.saturating_sub(taken + bar + 5);
            let sizes = format!("  {}/{}", words::bytes(*done), words::bytes(*total));
            let named = format!("{sizes}  {file}");
            spans.push(
                ctx.s(if text::width(&named) <= room { named } else { ctx.cut(&sizes, room) }, Role::Dim),
            );
        }
        LinkState::Ready { probe } => {
            let gpus = if probe.gpu_count > 0 {
                format!(", {}", words::plural(probe.gpu_count as usize, "GPU"))
            } else {
                String::new()
            };
            let text = format!("{}{gpus}", words::plural(probe.cpu_count as usize, "core"));
            spans.push(ctx.s(ctx.cut(&text, cells.saturating_sub(taken)), Role::Text));
        }
        LinkState::Starting if ctx.now.since(host.link_since) >= SLOW_MS => {
            let text = "slow: check the login shell's startup files";
            spans.push(ctx.s(ctx.cut(text, cells.saturating_sub(taken)), Role::Warn));
        }
        _ => {}
    }
    spans
}

/// What will be launched, when that is known already.
fn plan(ctx: &PageDrawCtx<'_>) -> Vec<Line<'static>> {
    let Some(plan) = &ctx.model.plan else { return Vec::new() };
    let what = if plan.is_builtin() {
        "built-in trainer".to_string()
    } else {
        words::clean(&hidden::words(plan.experiment.launch.command.iter().map(String::as_str)).join(" "))
    };
    let hosts = words::plural(plan.hosts.len(), "host");
    let head = Line::from(vec![
        ctx.s("plan  ", Role::Dim),
        ctx.s(words::plural(plan.ranks.len(), "rank"), Role::Strong),
        ctx.s(format!(" on {hosts}, {}, {what}", plan.backend()), Role::Text),
    ]);
    let sizes = plan.sizes.iter().map(|size| {
        let (local, global) = (words::count(size.local), words::count(size.global));
        let text = format!("      {:<12} {local:>12} per rank {global:>14} in all", size.name);
        Line::from(ctx.s(text, Role::Dim))
    });
    [Line::default(), head].into_iter().chain(sizes).collect()
}
