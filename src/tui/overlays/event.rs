//! One line of the events, whole, with what lies behind it: the card of a verdict, a checkpoint.

use crate::keys::Keymap;
use crate::overlays;
use crate::overlays::{EVIDENCE_CELLS, Fact, evidence};
use crate::panes::events;
use crate::theme::{Glyphs, Role};
use crate::time::time_of_day;
use crate::widgets::Ctx;
use rankdeck_core::model::{HistoryLine, Model, Subject};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// The line of that number.
pub fn find(model: &Model, number: u64) -> Option<&HistoryLine> {
    model.history.iter().find(|line| line.number == number)
}

/// The rank that a line is about.
pub fn rank_of(line: &HistoryLine) -> Option<Rank> {
    match &line.subject {
        Some(Subject::Verdict(verdict)) => verdict.rank,
        Some(Subject::Rank(rank)) => Some(*rank),
        Some(Subject::Checkpoint(_)) | None => None,
    }
}

fn facts(model: &Model, line: &HistoryLine, offset_s: i64) -> Vec<Fact> {
    let clock = time_of_day(line.time, offset_s);
    let mut facts = vec![
        ("what", words::clean(&line.text), events::role(line.tone)),
        (
            "when",
            format!("{clock}, {} since the launch", events::since_launch(model, line).trim()),
            Role::Text,
        ),
    ];
    match &line.subject {
        Some(Subject::Checkpoint(path)) => {
            facts.push(("file", words::clean(path), Role::Text));
            facts.push(("do", "r: restart from this checkpoint".into(), Role::Accent));
        }
        Some(Subject::Rank(rank)) => facts.push(("do", format!("l: the log of rank {rank}"), Role::Accent)),
        Some(Subject::Verdict(_)) | None => {}
    }
    facts
}

/// Rows of the card at this width.
pub fn rows(model: &Model, keymap: &Keymap, number: u64, cells: usize) -> usize {
    let Some(line) = find(model, number) else { return 0 };
    let behind = match &line.subject {
        Some(Subject::Verdict(verdict)) => {
            1 + evidence::lines_of(verdict, keymap, Glyphs::Ascii, cells).len()
        }
        _ => 0,
    };
    overlays::fact_rows(&facts(model, line, 0), cells) + behind
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, number: u64, top: usize) {
    let Some(line) = find(ctx.model, number) else { return };
    let cells = overlays::card_cells(ctx.geo.area, EVIDENCE_CELLS);
    let mut lines = overlays::fact_lines(ctx, &facts(ctx.model, line, ctx.view.chart.utc_offset_s), cells);
    if let Some(Subject::Verdict(verdict)) = &line.subject {
        lines.push(Line::default());
        lines.extend(
            evidence::lines_of(verdict, &ctx.view.steering.keymap, ctx.glyphs(), cells).into_iter().map(
                |parts| {
                    Line::from(parts.into_iter().map(|(part, role)| ctx.s(part, role)).collect::<Vec<_>>())
                },
            ),
        );
    }
    overlays::card(ctx, buf, events::role(line.tone), "event", lines, top, cells);
}

/// As plain text, for the clipboard.
pub fn plain(model: &Model, number: u64, offset_s: i64) -> String {
    let Some(line) = find(model, number) else { return String::new() };
    let mut text = format!("{}  {}", time_of_day(line.time, offset_s), line.text);
    if let Some(Subject::Verdict(verdict)) = &line.subject {
        for more in verdict.card.text() {
            text.push('\n');
            text.push_str(&more);
        }
    }
    text
}
