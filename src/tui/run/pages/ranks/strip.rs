//! The strip of one letter per rank above the table. With more ranks than cells, a letter stands for several
//! ranks of a host, and is that of the worst of them.

use crate::run::pages::PageDrawCtx;
use crate::run::pages::ranks::RanksPage;
use crate::run::ranks::{self, RankState};
use rankdeck_core::model::Model;
use rankdeck_kit::{Glyphs, Role, put_lines};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use std::ops::Range;

/// One cell: which of the ranks shown it stands for, empty between hosts.
type StripCell = Range<usize>;

/// The cells of a strip, line by line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Strip {
    /// Indices of the ranks shown, in the order of the ranks.
    shown: Vec<usize>,
    /// Lines of at most the requested cells.
    lines: Vec<Vec<StripCell>>,
    /// Most ranks per cell.
    pub fold: usize,
}

impl Strip {
    /// The strip of the ranks that the filter shows, folded as little as needed for `height` lines of
    /// `cells`.
    pub fn new(page: &RanksPage, model: &Model, now: Timestamp, cells: u16, height: usize) -> Strip {
        let cells = usize::from(cells).max(8);
        let mut shown: Vec<usize> = if page.filter.is_empty() {
            (0..model.ranks.len()).collect()
        } else {
            page.rows(model, now, false)
        };
        shown.sort_unstable();
        let hosts: Vec<usize> =
            shown.chunk_by(|a, b| model.ranks[*a].node == model.ranks[*b].node).map(<[usize]>::len).collect();
        for fold in 1..=hosts.iter().copied().max().unwrap_or(0) {
            let lines = by_host(&hosts, fold, cells);
            if lines.len() <= height.max(1) {
                return Strip { shown, lines, fold };
            }
        }
        // More hosts than cells: neighbours share one.
        let fold = shown.len().div_ceil(cells * height.max(1)).max(1);
        let all: Vec<StripCell> = chunks(0..shown.len(), fold).collect();
        Strip { shown, lines: all.chunks(cells).map(<[StripCell]>::to_vec).collect(), fold }
    }

    fn ranks(&self, cell: &StripCell) -> &[usize] {
        self.shown.get(cell.clone()).unwrap_or_default()
    }

    /// The worst rank of a cell.
    pub fn rank_at(&self, model: &Model, now: Timestamp, row: usize, column: usize) -> Option<Rank> {
        let (index, _) = worst(model, now, self.ranks(self.lines.get(row)?.get(column)?))?;
        model.ranks.get(index).map(|rank| rank.rank)
    }
}

/// Hosts side by side with a gap between; a host stays on one line if it can.
fn by_host(hosts: &[usize], fold: usize, cells: usize) -> Vec<Vec<StripCell>> {
    let mut lines: Vec<Vec<StripCell>> = vec![Vec::new()];
    let mut begin = 0;
    for ranks in hosts {
        let wide = ranks.div_ceil(fold);
        let mut line = lines.pop().unwrap_or_default();
        if !line.is_empty() {
            if line.len() + 1 + wide.min(cells) > cells {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push(begin..begin);
            }
        }
        for cell in chunks(begin..begin + ranks, fold) {
            if line.len() == cells {
                lines.push(std::mem::take(&mut line));
            }
            line.push(cell);
        }
        lines.push(line);
        begin += ranks;
    }
    lines
}

/// A range in parts of equal length; the last may be shorter.
fn chunks(of: Range<usize>, fold: usize) -> impl Iterator<Item = StripCell> {
    let end = of.end;
    of.step_by(fold).map(move |begin| begin..(begin + fold).min(end))
}

/// Lines that an unfolded strip takes.
pub fn height(model: &Model, cells: u16) -> usize {
    Strip::new(&RanksPage::default(), model, Timestamp::default(), cells, usize::MAX).lines.len()
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

/// Draws the strip: letters, or how long ranks wait.
pub fn draw(page: &RanksPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer, area: Rect, strip: &Strip) {
    let awaited = if page.waits { Some(AwaitedRank::of(ctx.model)) } else { None };
    let lines = strip.lines.iter().map(|line| {
        let cells = line.iter().map(|cell| strip.ranks(cell));
        let spans = cells.map(|cell| match &awaited {
            Some(awaited) => wait(ctx, cell, awaited.as_ref()),
            None => letter(ctx, cell),
        });
        Line::from_iter(spans)
    });
    put_lines(buf, area, lines);
}

/// Share of the ranks' time from which waiting for one of them matters.
const LOST: f64 = 0.1;

/// The straggler: in a worker group, the rank that waits least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AwaitedRank {
    pub rank: Rank,
    /// Share of its own time that it waits.
    pub own: f64,
    /// Mean share of the other ranks' time.
    pub others: f64,
}

impl AwaitedRank {
    /// By the latest iterations; `None` if fewer than two ranks report.
    pub fn of(model: &Model) -> Option<AwaitedRank> {
        let shares =
            model.ranks.iter().filter_map(|rank| Some((rank.rank, rank.watch_history.iteration()?.1)));
        let shares: Vec<(Rank, f64)> = shares.collect();
        let (rank, own) = *shares.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let others = shares.len().checked_sub(1).filter(|others| *others > 0)?;
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        Some(AwaitedRank { rank, own, others: (sum - own) / others as f64 })
    }

    /// It matters.
    pub fn is_slow(&self) -> bool {
        self.others - self.own >= LOST
    }

    /// In a few words.
    pub fn words(&self) -> String {
        let (rank, own, others) = (self.rank, self.own * 100.0, self.others * 100.0);
        match self.is_slow() {
            true => format!("straggler: rank {rank} waits {own:.0}%, the others {others:.0}%"),
            false => format!("no straggler: ranks wait {others:.0}% of the time"),
        }
    }
}

/// The shortest wait of a cell's ranks, as the height of a block.
fn wait(ctx: &PageDrawCtx<'_>, cell: &[usize], awaited: Option<&AwaitedRank>) -> Span<'static> {
    if cell.is_empty() {
        return Span::raw(" ");
    }
    let ranks = || cell.iter().filter_map(|i| ctx.model.ranks.get(*i));
    let shares = ranks().filter_map(|rank| Some((rank.rank, rank.watch_history.iteration()?.1)));
    let least = shares.min_by(|a, b| a.1.total_cmp(&b.1));
    let (sign, role) = match least {
        Some((rank, share)) => {
            let slow = awaited.is_some_and(|awaited| awaited.rank == rank && awaited.is_slow());
            let ramp = ctx.glyphs().ramp();
            let height = ((share.clamp(0.0, 1.0) * ramp.len() as f64) as usize).min(ramp.len() - 1);
            (ramp[height], if slow { Role::Warn } else { Role::Accent })
        }
        None => (ctx.glyphs().pick("·", "."), Role::Dim),
    };
    let mut style = ctx.theme.style(role);
    if ranks().any(|rank| Some(rank.rank) == ctx.rank) {
        style = style.add_modifier(Modifier::REVERSED);
    }
    Span::styled(sign, style)
}

fn letter(ctx: &PageDrawCtx<'_>, cell: &[usize]) -> Span<'static> {
    let Some((_, state)) = worst(ctx.model, ctx.now, cell) else { return Span::raw(" ") };
    let mut style = ctx.theme.style(state.role);
    if cell.iter().any(|i| ctx.model.ranks.get(*i).map(|rank| rank.rank) == ctx.rank) {
        style = style.add_modifier(Modifier::REVERSED);
    }
    Span::styled(state.letter.to_string(), style)
}
