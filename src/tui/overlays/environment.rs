//! The environment of a process, without its secrets. Shown and nothing else (REACH-2).

use crate::overlays;
use crate::text;
use crate::theme::Role;
use crate::widgets::Ctx;
use rankdeck_core::model::Model;
use rankdeck_proto::process::{Environment, ProcessName};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// Most cells of the card.
pub const CELLS: usize = 124;
/// What stands instead of the value of a secret.
pub const HIDDEN: &str = "(hidden)";

/// Lines with the length of the name that they begin with, and how they are shown.
pub fn lines(
    model: &Model,
    node: NodeRank,
    process: ProcessName,
    cells: usize,
) -> Vec<(String, usize, Role)> {
    match model.reaches.environment(node, process) {
        None => vec![("its agent is asked ...".into(), 0, Role::Dim)],
        Some(Err(error)) => {
            let all = text::wrap(&words::clean(&error.with_hint()), cells);
            all.into_iter().map(|line| (line, 0, Role::Bad)).collect()
        }
        Some(Ok(found)) => told(found, cells),
    }
}

fn told(found: &Environment, cells: usize) -> Vec<(String, usize, Role)> {
    let mut lines = Vec::new();
    for variable in &found.variables {
        let name = words::clean(&variable.name);
        let (value, role) = match &variable.value {
            Some(value) => (words::clean(value), Role::Text),
            None => (HIDDEN.to_owned(), Role::Dim),
        };
        let first = format!("{name}={value}");
        for (i, part) in text::wrap(&first, cells.saturating_sub(2)).into_iter().enumerate() {
            let named = if i == 0 { name.len().min(part.len()) } else { 0 };
            let named = if part.is_char_boundary(named) { named } else { 0 };
            lines.push((if i == 0 { part } else { format!("  {part}") }, named, role));
        }
    }
    if found.left_out > 0 {
        let more = words::plural(found.left_out as usize, "more variable");
        lines.push((format!("{more} found no room"), 0, Role::Warn));
    }
    if lines.is_empty() {
        lines.push(("it was started with no variables".into(), 0, Role::Dim));
    }
    lines
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, node: NodeRank, process: ProcessName, top: usize) {
    let cells = overlays::card_cells(ctx.geo.area, CELLS);
    let host = ctx.live.hosts.get(node.index()).map_or("", |host| host.name.as_str());
    let lines = lines(ctx.live, node, process, cells).into_iter().map(|(line, named, role)| {
        let (name, rest) = line.split_at(named);
        Line::from(vec![ctx.s(name.to_owned(), Role::Accent), ctx.s(rest.to_owned(), role)])
    });
    let title = format!("environment of {process} on {host}, as it was started");
    overlays::card(ctx, buf, Role::Text, &title, lines.collect(), top, cells);
}
