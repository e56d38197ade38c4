//! The strip of one letter per rank above the table. Where there are more ranks than cells, a letter stands
//! for several ranks of one host, and is that of the worst of them: no trouble is out of sight.

use crate::ranks;
use crate::ranks::RankState;
use crate::state::ViewState;
use crate::theme::{Glyphs, Role};
use crate::widgets::{Ctx, put};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Rank;
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// One cell: indices of the ranks that it stands for, empty between hosts.
pub type Cell = Vec<usize>;

/// The cells of a strip, line by line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Strip {
    /// Lines of at most the cells asked for.
    pub lines: Vec<Vec<Cell>>,
    /// Most ranks per cell.
    pub fold: usize,
}

impl Strip {
    /// The strip of the ranks that the filter shows, folded as little as needed for `height` lines of
    /// `cells`.
    pub fn new(model: &Model, view: &ViewState, cells: u16, height: usize) -> Strip {
        let cells = usize::from(cells).max(8);
        let mut shown: Vec<usize> = if view.ranks.filter.is_empty() {
            (0..model.ranks.len()).collect()
        } else {
            ranks::rows(model, view, false)
        };
        shown.sort_unstable();
        let hosts: Vec<&[usize]> =
            shown.chunk_by(|a, b| model.ranks[*a].node == model.ranks[*b].node).collect();
        let most = hosts.iter().map(|host| host.len()).max().unwrap_or(0);
        for fold in 1..=most {
            let lines = by_host(&hosts, fold, cells);
            if lines.len() <= height.max(1) {
                return Strip { lines, fold };
            }
        }
        // More hosts than cells: neighbours share one.
        let fold = shown.len().div_ceil(cells * height.max(1)).max(1);
        let all: Vec<Cell> = shown.chunks(fold).map(<[usize]>::to_vec).collect();
        Strip { lines: all.chunks(cells).map(<[Cell]>::to_vec).collect(), fold }
    }

    /// The worst rank of a cell.
    pub fn rank_at(&self, model: &Model, now: Timestamp, row: usize, column: usize) -> Option<Rank> {
        let (index, _) = worst(model, now, self.lines.get(row)?.get(column)?)?;
        model.ranks.get(index).map(|rank| rank.rank)
    }
}

/// Hosts beside each other with a gap between; a host stays on one line where it can.
fn by_host(hosts: &[&[usize]], fold: usize, cells: usize) -> Vec<Vec<Cell>> {
    let mut lines: Vec<Vec<Cell>> = vec![Vec::new()];
    for host in hosts {
        let wide = host.len().div_ceil(fold);
        let mut line = lines.pop().unwrap_or_default();
        if !line.is_empty() {
            if line.len() + 1 + wide.min(cells) > cells {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push(Cell::new());
            }
        }
        for cell in host.chunks(fold) {
            if line.len() == cells {
                lines.push(std::mem::take(&mut line));
            }
            line.push(cell.to_vec());
        }
        lines.push(line);
    }
    lines
}

/// Lines that an unfolded strip takes.
pub fn height(model: &Model, cells: u16) -> usize {
    Strip::new(model, &ViewState::new(), cells, usize::MAX).lines.len()
}

fn worst(model: &Model, now: Timestamp, cell: &[usize]) -> Option<(usize, RankState)> {
    let states = cell
        .iter()
        .filter_map(|i| Some((*i, ranks::state_at(model, model.ranks.get(*i)?, Glyphs::Ascii, now))));
    states.min_by_key(|(_, state)| grade(state))
}

fn grade(state: &RankState) -> u8 {
    match (state.trouble, state.role, state.letter) {
        (true, ..) => 0,
        (_, Role::Bad, _) => 1,
        (_, Role::Warn, _) => 2,
        (.., 'L') => 3,
        (_, Role::Text | Role::Strong | Role::Accent, _) => 4,
        (.., 'P') => 5,
        (_, Role::Good, _) => 6,
        (_, Role::Dim, _) => 7,
    }
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, strip: &Strip, chosen: Option<Rank>) {
    for (row, line) in strip.lines.iter().take(usize::from(area.height)).enumerate() {
        let spans: Vec<Span<'static>> = line.iter().map(|cell| letter(ctx, cell, chosen)).collect();
        put(buf, area, row, Line::from(spans));
    }
}

fn letter(ctx: &Ctx<'_>, cell: &[usize], chosen: Option<Rank>) -> Span<'static> {
    let Some((_, state)) = worst(ctx.model, ctx.now, cell) else { return Span::raw(" ") };
    let mut style = ctx.theme.style(state.role);
    if cell.iter().any(|i| ctx.model.ranks.get(*i).map(|rank| rank.rank) == chosen) {
        style = style.add_modifier(Modifier::REVERSED);
    }
    Span::styled(state.letter.to_string(), style)
}
