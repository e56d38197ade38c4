//! The columns of the rank table: their names, their cells, and which of them fit.
//!
//! Invariants:
//! - UI-14: columns and their widths depend on the run and on the size of the screen, never on what the cells
//!   hold now.

use crate::run::pages::PageDrawCtx;
use crate::run::pages::ranks::RanksPage;
use crate::run::pages::ranks::Sort;
use crate::run::ranks::{self, RankState};
use crate::run::staleness;
use rankdeck_core::model::{Model, RankLife, RankModel};
use rankdeck_kit::{Role, plot, text};
use rankdeck_proto::message::PageSample;
use rankdeck_types::words;

/// A column of the rank table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankColumn {
    /// Global index.
    Rank,
    /// Name of its host.
    Host,
    /// `cuda:0`.
    Device,
    /// GPU or CPU use.
    Use,
    /// CPU use, next to that of the GPU.
    Cpu,
    /// Memory of its GPU, or of the process.
    Memory,
    /// Power of its GPU.
    Power,
    /// What it does.
    Phase,
    /// Training iteration.
    Iteration,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Latest collective.
    Collective,
    /// How it is.
    State,
    /// Use over time.
    History,
    Pid,
}

use RankColumn as Column;

/// Cells of the sparkline column.
const HISTORY: usize = 16;
/// Fewest cells of the collective column: its number and `in`.
const COLLECTIVE_LEAST: usize = 10;
/// Cells of the collective column that hold most operations.
const COLLECTIVE_USUAL: usize = 28;
/// Most cells of the collective column.
const COLLECTIVE_MOST: usize = 36;

impl RankColumn {
    /// All, in reading order.
    pub const ALL: [RankColumn; 15] = [
        Column::Rank,
        Column::Host,
        Column::Device,
        Column::State,
        Column::Use,
        Column::History,
        Column::Cpu,
        Column::Memory,
        Column::Power,
        Column::Phase,
        Column::Iteration,
        Column::EnvStep,
        Column::Speed,
        Column::Collective,
        Column::Pid,
    ];

    /// Its name in `ui.toml` and in the palette.
    pub fn name(self) -> &'static str {
        match self {
            Column::Rank => "rank",
            Column::Host => "host",
            Column::Device => "device",
            Column::Use => "use",
            Column::Cpu => "cpu",
            Column::Memory => "memory",
            Column::Power => "power",
            Column::Phase => "phase",
            Column::Iteration => "iter",
            Column::EnvStep => "env_step",
            Column::Speed => "speed",
            Column::Collective => "collective",
            Column::State => "state",
            Column::History => "history",
            Column::Pid => "pid",
        }
    }

    /// The order in which columns are given up when the screen is narrow; the smallest stays longest.
    fn worth(self) -> u8 {
        match self {
            Column::Rank => 0,
            Column::State => 1,
            Column::Phase => 2,
            Column::Use => 3,
            Column::Speed => 4,
            Column::Host => 5,
            Column::EnvStep => 6,
            Column::Collective => 7,
            Column::Memory => 8,
            Column::Power => 9,
            Column::Device => 10,
            Column::Iteration => 11,
            Column::Cpu => 12,
            Column::History => 13,
            Column::Pid => 14,
        }
    }

    /// Its heading.
    pub(super) fn heading(self, model: &Model) -> &'static str {
        match self {
            Column::Rank => "RANK",
            Column::Host => "HOST",
            Column::Device => "DEVICE",
            Column::Use if has_gpus(model) => "GPU%",
            Column::Use | Column::Cpu => "CPU%",
            Column::Memory => "MEM",
            Column::Power => "POWER",
            Column::Phase => "PHASE",
            Column::Iteration => "ITER",
            Column::EnvStep => "ENV_STEP",
            Column::Speed => "STEPS/S",
            Column::Collective => "COLLECTIVE",
            Column::State => "STATE",
            Column::History => "USE OVER TIME",
            Column::Pid => "PID",
        }
    }

    /// What a click on its heading sorts by.
    pub(super) fn sort(self) -> Option<Sort> {
        match self {
            Column::Rank => Some(Sort::Rank),
            Column::Host => Some(Sort::Host),
            Column::Use => Some(Sort::Use),
            Column::Memory => Some(Sort::Memory),
            Column::EnvStep => Some(Sort::EnvStep),
            Column::Speed => Some(Sort::Speed),
            Column::Collective => Some(Sort::Collective),
            Column::State => Some(Sort::State),
            Column::Device | Column::Cpu | Column::Power | Column::Phase => None,
            Column::Iteration | Column::History | Column::Pid => None,
        }
    }

    /// Numbers stand at the right of their column.
    pub(super) fn is_number(self) -> bool {
        !matches!(
            self,
            Column::Host
                | Column::Device
                | Column::Phase
                | Column::Collective
                | Column::State
                | Column::History
        )
    }

    /// Its cells: for the widest that it may have to show in this run.
    fn cells(self, model: &Model, screen_width: u16) -> usize {
        match self {
            Column::Rank => model.ranks.len().saturating_sub(1).to_string().len().max(4),
            Column::Host => {
                let names = model.ranks.iter().map(|rank| text::width(&rank.host));
                names.max().unwrap_or(0).clamp(4, 16)
            }
            Column::Device => {
                model.ranks.iter().map(|rank| text::width(&device(rank))).max().unwrap_or(0).max(7)
            }
            Column::State if screen_width < 100 => 13,
            Column::State => 16,
            Column::Use | Column::Cpu => 4,
            Column::History => HISTORY,
            Column::Memory | Column::Power => 5,
            Column::Phase => 10,
            Column::Iteration => 7,
            Column::EnvStep => {
                let goal = model.run.total_steps.map_or(11, |goal| text::count_in(goal, 11).len());
                goal.clamp(9, 11)
            }
            Column::Speed => 7,
            Column::Collective => COLLECTIVE_LEAST,
            Column::Pid => 7,
        }
    }

    /// Its value of a rank, in `cells` cells.
    pub(super) fn cell(
        self,
        ctx: &PageDrawCtx<'_>,
        rank: &RankModel,
        state: &RankState,
        cells: usize,
    ) -> (String, Role) {
        let value = |text: Option<String>| match text {
            Some(text) => (text, Role::Text),
            None => (text::NONE.into(), Role::Dim),
        };
        let page = ranks::page(rank);
        // Gauges of a process that is gone are history; what it did last is evidence and stays.
        let gone = matches!(rank.life, RankLife::Exited(_)) || staleness::is_over(ctx.model);
        match self {
            Column::Use | Column::Cpu | Column::Memory | Column::Power if gone => value(None),
            Column::Rank => (rank.rank.to_string(), Role::Strong),
            Column::Host => (rank.host.clone(), Role::Text),
            Column::Device => (device(rank), Role::Text),
            Column::Use => value(ranks::usage(ctx.model, rank).map(|percent| format!("{percent:.0}"))),
            Column::Cpu => value(rank.sample.as_ref().map(|sample| format!("{:.0}", sample.cpu_percent))),
            Column::Memory => value(ranks::memory(ctx.model, rank).map(words::bytes)),
            Column::Power => {
                let watts = ranks::gpu(ctx.model, rank).and_then(|gpu| gpu.power_w);
                value(watts.map(|watts| format!("{watts:.0}W")))
            }
            Column::Phase => (ranks::phase(rank).into(), if page.is_some() { Role::Text } else { Role::Dim }),
            Column::Iteration => {
                value(page.and_then(PageSample::iteration).map(|iteration| text::count_in(iteration, 9)))
            }
            Column::EnvStep => value(ranks::env_step(rank).map(|steps| text::count_in(steps, 11))),
            Column::Speed => value(staleness::speed(ctx.model, rank, ctx.now).map(text::si)),
            Column::Collective => match page.filter(|page| page.collective.entered > 0) {
                Some(page) => {
                    let role = if ranks::inside(&page.collective) { Role::Text } else { Role::Dim };
                    (collective(page, cells), role)
                }
                None => value(None),
            },
            Column::State => {
                let full = format!("{} {} {}", state.letter, state.glyph, state.word);
                // The age is dropped first where it does not fit, then the glyph.
                let short = full.split_inclusive("silent").next().unwrap_or_default();
                let text = match text::width(&full) > cells {
                    true if text::width(short) > cells => format!("{} {}", state.letter, state.word),
                    true => short.into(),
                    false => full,
                };
                (text, state.role)
            }
            Column::History => {
                let history = if rank.gpu.is_some() { &rank.gpu_history } else { &rank.cpu_history };
                let values = history.iter().map(|value| f64::from(*value));
                (plot::spark(values, HISTORY, 0.0, 100.0, ctx.glyphs()), Role::Accent)
            }
            Column::Pid => value(rank.pid.map(|pid| pid.to_string())),
        }
    }
}

fn has_gpus(model: &Model) -> bool {
    model.ranks.iter().any(|rank| rank.gpu.is_some())
}

fn device(rank: &RankModel) -> String {
    match rank.gpu {
        _ if !rank.device.is_empty() => rank.device.clone(),
        Some(gpu) => format!("gpu {gpu}"),
        None => "cpu".into(),
    }
}

/// The longest form that fits: number, operation, purpose, time inside.
fn collective(page: &PageSample, cells: usize) -> String {
    let collective = &page.collective;
    let number = format!("#{}", words::count(collective.entered));
    if !ranks::inside(collective) {
        return number;
    }
    let age = words::duration_ms(collective.age_ms);
    let forms = [
        format!("{number} {} {} {age}", collective.call.op, collective.call.tag),
        format!("{number} {} {age}", collective.call.op),
        format!("{number} {}", collective.call.op),
        format!("{number} {age}"),
        format!("{number} in"),
    ];
    forms.into_iter().find(|form| text::width(form) <= cells).unwrap_or(number)
}

/// Cells between two columns.
pub(super) fn gap(screen_width: u16) -> usize {
    if screen_width < 120 { 1 } else { 2 }
}

impl RanksPage {
    /// Columns that fit into a table of this width, with their cells: taken in the order of their worth, drawn
    /// in reading order. No width depends on what the cells hold now (UI-14): columns stay where they are while
    /// one reads.
    pub(super) fn fitting(
        &self,
        model: &Model,
        screen_width: u16,
        table_width: u16,
    ) -> Vec<(RankColumn, usize)> {
        let (gpus, gap) = (has_gpus(model), gap(screen_width));
        let mut candidates: Vec<(Column, u8, usize)> = Column::ALL
            .into_iter()
            .filter(|column| gpus || !matches!(column, Column::Cpu | Column::Power))
            .filter(|column| self.columns.get(column) != Some(&false))
            .map(|column| {
                // What the user asks for comes right after what a row is known by.
                let is_requested = self.columns.contains_key(&column);
                let worth = if is_requested { column.worth().min(1) } else { column.worth() };
                (column, worth, column.cells(model, screen_width))
            })
            .collect();
        candidates.sort_by_key(|(_, worth, _)| *worth);
        // Two cells of marks in front, and no gap behind the last column.
        let mut spare = usize::from(table_width).saturating_sub(2) + gap;
        let mut chosen: Vec<(Column, usize)> = Vec::new();
        for (column, _, cells) in candidates {
            if let Some(rest) = spare.checked_sub(cells + gap) {
                spare = rest;
                chosen.push((column, cells));
            }
            // Once the gauges have their place, before identity and history get theirs: the operation next to
            // its number.
            let gauged = column == Column::Power || !gpus && column == Column::Memory;
            let is_wide = |(column, _): &&mut (Column, usize)| gauged && *column == Column::Collective;
            if let Some((_, cells)) = chosen.iter_mut().find(is_wide) {
                let more = COLLECTIVE_USUAL.saturating_sub(*cells).min(spare);
                *cells += more;
                spare -= more;
            }
        }
        if let Some((_, cells)) = chosen.iter_mut().find(|(column, _)| *column == Column::Collective) {
            *cells += spare.min(COLLECTIVE_MOST.saturating_sub(*cells));
        }
        let cells_of = |column: Column| chosen.iter().find(|(other, _)| *other == column).copied();
        Column::ALL.into_iter().filter_map(cells_of).collect()
    }

    /// Shows columns before others (`+pid`, `pid`), or never (`-power`).
    ///
    /// # Errors
    /// A column is unknown, or cannot be hidden.
    pub fn set_columns<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
        for name in names {
            let bare = name.trim_start_matches(['+', '-']);
            let column = Column::ALL.iter().find(|column| column.name() == bare).copied();
            let all = Column::ALL.map(Column::name).join(", ");
            let column = column.ok_or_else(|| format!("unknown column `{bare}`; available: {all}"))?;
            if column == Column::Rank && name.starts_with('-') {
                return Err("column `rank` cannot be hidden".into());
            }
            self.columns.insert(column, !name.starts_with('-'));
        }
        Ok(())
    }
}
