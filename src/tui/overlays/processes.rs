//! The processes of a host: its ranks with all that they have started, and what else is on its GPUs.

use crate::overlays::inspect;
use crate::reach::{self, Descendant, Process};
use crate::target::Target;
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::{Ctx, frame, put};
use rankdeck_proto::process::ProcessName;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// The marked process.
pub fn row_of(all: &[Process], selected: Option<ProcessName>) -> usize {
    all.iter().position(|process| Some(process.name) == selected).unwrap_or(0)
}

/// A row: a process of the list, or what one of them has started.
#[derive(Clone, Copy)]
enum Row<'a> {
    Process(&'a Process),
    Below(&'a Descendant),
}

/// Rows with the place in the list of the process that they belong to.
fn rows(all: &[Process]) -> Vec<(usize, Row<'_>)> {
    let each = all.iter().enumerate().flat_map(|(at, process)| {
        let below = process.below.iter().map(Row::Below);
        std::iter::once(Row::Process(process)).chain(below).map(move |row| (at, row))
    });
    each.collect()
}

/// Branches of the tree before a name.
fn branches(last: &[bool], glyphs: Glyphs) -> String {
    let Some((own, above)) = last.split_last() else { return String::new() };
    let mut text: String =
        above.iter().map(|last| if *last { "   " } else { glyphs.pick("│  ", "|  ") }).collect();
    text.push_str(if *own { glyphs.pick("└─ ", "`- ") } else { glyphs.pick("├─ ", "|- ") });
    text
}

fn on_gpus(gpus: &[u32], memory: u64) -> (String, String) {
    if gpus.is_empty() {
        return (text::NONE.to_owned(), text::NONE.to_owned());
    }
    (gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","), words::bytes(memory))
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, node: NodeRank, selected: Option<ProcessName>) {
    let all = reach::of_host(ctx.live, node);
    let rows = rows(&all);
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(110);
    let height = usize::from(ctx.geo.area.height.saturating_sub(6)).max(1);
    let host = ctx.live.hosts.get(node.index()).map_or("", |host| host.name.as_str());
    let at = row_of(&all, selected);
    // The marked one with what it has started, as far as there is room; itself in any case.
    let marked = |row: &(usize, Row<'_>)| row.0 == at;
    let top = rows.iter().position(marked).unwrap_or(0);
    let end = rows.iter().rposition(marked).map_or(0, |last| last + 1);
    let first = end.saturating_sub(height).min(top);
    let size = (cells as u16, rows.len().clamp(1, height) as u16 + 1);
    let inner = frame::popup(ctx, buf, size, Role::Accent, &format!("processes of {host}"), "");
    let whose = all.iter().map(|process| text::width(&process.user)).max().unwrap_or(0).clamp(4, 12);
    let columns = |pid: &str, user: &str, gpus: &str, memory: &str, what: &str| {
        let user = text::left(user, whose, ctx.glyphs());
        ctx.cut(&format!("{pid:>8} {user} {gpus:>6} {memory:>6}  {what}"), cells.saturating_sub(2))
    };
    let head = columns("PID", "USER", "GPU", "MEMORY", "WHAT");
    put(buf, inner, 0, Line::from(ctx.s(format!("  {head}"), Role::Dim)));
    if all.is_empty() {
        put(buf, inner, 1, Line::from(ctx.s("no process is known here", Role::Dim)));
    }
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    for (i, (of, row)) in rows.iter().skip(first).take(usize::from(list.height)).enumerate() {
        let place = Rect { y: list.y + i as u16, height: 1, ..list };
        ctx.target(place, Target::Row(*of));
        let (mark, text, role) = match row {
            Row::Process(process) => {
                let (gpus, memory) = on_gpus(&process.gpus, process.memory);
                let pid = process.name.pid.to_string();
                let role = match process.own {
                    _ if *of == at => Role::Accent,
                    true => Role::Text,
                    false => Role::Dim,
                };
                let mark = if *of == at { ctx.glyphs().pick("▸", ">") } else { " " };
                (mark, columns(&pid, &process.user, &gpus, &memory, &process.command), role)
            }
            Row::Below(child) => {
                let (gpus, memory) = on_gpus(&child.gpus, child.memory);
                let state = inspect::state_word(child.state);
                let cpu = words::duration_ms(child.cpu_ms);
                let branches = branches(&child.last, ctx.glyphs());
                let what = format!("{branches}{}, {state}, {cpu} of CPU time", child.name);
                let role = if child.state == 'Z' { Role::Warn } else { Role::Dim };
                (" ", columns(&child.pid.to_string(), "", &gpus, &memory, &what), role)
            }
        };
        put(buf, list, i, Line::from(ctx.s(format!("{mark} {text}"), role)));
    }
}
