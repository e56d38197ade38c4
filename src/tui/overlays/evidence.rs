//! Why the watch says what it says: one card per verdict.

use crate::keys::Keymap;
use crate::overlays;
use crate::overlays::{EVIDENCE_CELLS, LABEL};
use crate::panes::alarm;
use crate::ranks;
use crate::state::{Overlay, VerdictId, ViewState};
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::Ctx;
use rankdeck_core::card::{Advice, Card};
use rankdeck_core::model::{HistoryLine, Model, Subject};
use rankdeck_core::report::{Confidence, Severity, VerdictReport};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// The verdict of that identity, `None` when it is gone.
pub fn find<'a>(model: &'a Model, about: &VerdictId) -> Option<&'a VerdictReport> {
    model.verdicts.iter().find(|verdict| ranks::verdict_id(verdict) == *about)
}

/// Opens the card of the selected rank's verdict when it is a red one, else of the worst, which the status
/// line shows.
pub fn open(model: &Model, view: &mut ViewState) {
    let own = view
        .ranks
        .selected
        .and_then(|rank| ranks::verdict_of(model, rank))
        .filter(|verdict| verdict.severity == Severity::Red);
    if let Some(verdict) = own.or_else(|| model.verdicts.first()) {
        view.open(Overlay::Evidence { about: ranks::verdict_id(verdict), top: 0 });
    } else if let Some(line) = latest_verdict(model) {
        // It is over; its card is kept.
        view.open(Overlay::Event { number: line.number, top: 0 });
    }
}

/// The newest line about a verdict that is kept with its card.
pub fn latest_verdict(model: &Model) -> Option<&HistoryLine> {
    model.history.iter().rev().find(|line| matches!(line.subject, Some(Subject::Verdict(_))))
}

/// Everything about a verdict that stood once, its reason included.
pub fn lines_of(verdict: &VerdictReport, keymap: &Keymap, glyphs: Glyphs, cells: usize) -> Vec<Plain> {
    let reason = text::wrap(&words::clean(&verdict.reason), cells);
    let mut lines: Vec<Plain> = reason.into_iter().map(|line| vec![(line, Role::Strong)]).collect();
    lines.extend(body(verdict, keymap, glyphs, cells));
    lines
}

/// The next verdict's card.
pub fn next(model: &Model, view: &mut ViewState) {
    if let Some(Overlay::Evidence { about, top }) = view.overlays.last_mut()
        && !model.verdicts.is_empty()
    {
        let at = model.verdicts.iter().position(|verdict| ranks::verdict_id(verdict) == *about);
        let next = at.map_or(0, |at| (at + 1) % model.verdicts.len());
        (*about, *top) = (ranks::verdict_id(&model.verdicts[next]), 0);
    }
}

fn words(verdict: &VerdictReport) -> (&'static str, &'static str) {
    let severity = match verdict.severity {
        Severity::Cleared => "cleared",
        Severity::Amber => "amber: worth knowing",
        Severity::Red => "red: act",
    };
    let confidence = match verdict.confidence {
        Confidence::Possible => "possible: an outlier only",
        Confidence::Likely => "likely: a stale marker and matching evidence",
        Confidence::Certain => "certain: a hard fact",
    };
    (severity, confidence)
}

/// Whom it is about.
fn who(verdict: &VerdictReport) -> String {
    match (verdict.rank, &verdict.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the whole run".into(),
    }
}

/// One line saying how bad, how sure, why and how fast.
fn summary(verdict: &VerdictReport) -> Plain {
    let severity = match verdict.severity {
        Severity::Cleared => "cleared",
        Severity::Amber => "AMBER",
        Severity::Red => "RED",
    };
    let (_, confidence) = words(verdict);
    let reason = verdict.reason_code.name().replace('_', " ");
    let after = said_after(verdict);
    vec![
        (severity.into(), ranks::severity_role(verdict.severity)),
        (format!("  {reason}; {confidence}; {after}"), Role::Dim),
    ]
}

/// How long the trouble lasted until the watch spoke, and by now, which grows while the card is open.
fn said_after(verdict: &VerdictReport) -> String {
    let first = words::duration(verdict.first_s);
    match verdict.latency_s > verdict.first_s {
        true => format!("said after {first}, seen for {}", words::duration(verdict.latency_s)),
        false => format!("said after {first}"),
    }
}

/// A line as parts with their gravity, before it has a style.
pub type Plain = Vec<(String, Role)>;

/// The two sides beside each other, or one of them over the whole width.
fn sides(card: &Card, cells: usize, lines: &mut Vec<Plain>) {
    let room = cells.saturating_sub(LABEL);
    let blamed = card.guilty.is_some();
    let both = blamed && card.waiter.is_some();
    let column = if both { room.saturating_sub(2) / 2 } else { room };
    for row in card.rows() {
        let head = row.label.is_empty();
        let (left, right) = match head {
            false => (row.guilty, row.waiter),
            true => (mark("blamed: ", row.guilty), mark("waits: ", row.waiter)),
        };
        let (left, right) = if blamed { (left, right) } else { (right, String::new()) };
        let left = text::wrap(&words::clean(&left), column);
        let right = text::wrap(&words::clean(&right), column);
        for at in 0..left.len().max(right.len()) {
            let part = |side: &[String]| side.get(at).cloned().unwrap_or_default();
            let label = if at == 0 { row.label } else { "" };
            let pad = column.saturating_sub(text::width(&part(&left)));
            let (mine, theirs) = match (head, blamed) {
                (true, true) => (Role::Bad, Role::Strong),
                (true, false) => (Role::Strong, Role::Strong),
                (false, _) => (Role::Text, Role::Dim),
            };
            lines.push(vec![
                (format!("{label:<LABEL$}"), Role::Dim),
                (part(&left), mine),
                (format!("{:pad$}  ", ""), Role::Text),
                (part(&right), theirs),
            ]);
        }
    }
}

fn mark(word: &str, text: String) -> String {
    if text.is_empty() { text } else { format!("{word}{text}") }
}

/// Labelled items, each wrapped beside its label.
fn items(label: &str, items: &[(String, Role)], cells: usize, lines: &mut Vec<Plain>) {
    if items.is_empty() {
        return;
    }
    lines.push(Vec::new());
    for (i, (item, role)) in items.iter().enumerate() {
        let parts = text::wrap_point(&words::clean(item), cells.saturating_sub(LABEL));
        for (j, part) in parts.into_iter().enumerate() {
            let label = if i == 0 && j == 0 { label } else { "" };
            lines.push(vec![(format!("{label:<LABEL$}"), Role::Dim), (part, *role)]);
        }
    }
}

/// Something to do: by its key where this screen has one.
pub fn advised(advice: &Advice, keymap: &Keymap) -> String {
    match alarm::key_of(advice, keymap) {
        // The card is open: the key that opens it is left out.
        Some(keys) => {
            format!("{}: {}", keys.rsplit(' ').next().unwrap_or(&keys), alarm::by_key(advice))
        }
        None => advice.line(),
    }
}

/// Everything below the reason.
fn body(verdict: &VerdictReport, keymap: &Keymap, glyphs: Glyphs, cells: usize) -> Vec<Plain> {
    let card = &verdict.card;
    let mut lines = Vec::new();
    // A few words more than fit are cut by the box; they are wrapped instead.
    let mut first = summary(verdict).into_iter();
    if let (Some(severity), Some((rest, role))) = (first.next(), first.next()) {
        let room = cells.saturating_sub(text::width(&severity.0));
        for (i, part) in text::wrap(&rest, room).into_iter().enumerate() {
            lines.push(match i {
                0 => vec![severity.clone(), (part, role)],
                _ => vec![(part, role)],
            });
        }
    }
    if let Some(first) = card.actions.first() {
        let label = format!("{:<LABEL$}", "do first");
        let first = words::clean(&advised(first, keymap));
        for (i, part) in text::wrap(&first, cells.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if i == 0 { label.clone() } else { format!("{:<LABEL$}", "") };
            lines.push(vec![(label, Role::Dim), (part, Role::Accent)]);
        }
    }
    let sign = glyphs.pick("•", "-");
    let plain = |list: &[String], role| -> Vec<(String, Role)> {
        list.iter().map(|item| (format!("{sign} {item}"), role)).collect()
    };
    if !card.rows().is_empty() {
        lines.push(Vec::new());
        sides(card, cells, &mut lines);
    }
    items("evidence", &plain(&card.facts, Role::Text), cells, &mut lines);
    let stack = card.guilty.as_ref().map(|side| side.stack.as_slice()).unwrap_or_default();
    let stack: Vec<(String, Role)> = stack.iter().map(|frame| (frame.clone(), Role::Text)).collect();
    items("stack", &stack, cells, &mut lines);
    let others: Vec<(String, Role)> = card.others.iter().map(|other| (other.line(), Role::Text)).collect();
    items("others", &others, cells, &mut lines);
    items("ruled out", &plain(&card.ruled_out, Role::Dim), cells, &mut lines);
    // The first one stands at the top.
    let actions: Vec<(String, Role)> = card
        .actions
        .iter()
        .skip(1)
        .map(|advice| (format!("{sign} {}", advised(advice, keymap)), Role::Accent))
        .collect();
    items("or", &actions, cells, &mut lines);
    lines
}

/// Rows of the card at this width.
pub fn rows(model: &Model, keymap: &Keymap, about: &VerdictId, cells: usize) -> usize {
    let Some(verdict) = find(model, about) else { return 0 };
    let reason = text::wrap(&words::clean(&verdict.reason), cells).len();
    reason + body(verdict, keymap, Glyphs::Ascii, cells).len()
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, about: &VerdictId, top: usize) {
    let Some(verdict) = find(ctx.live, about) else { return };
    let cells = overlays::card_cells(ctx.geo.area, EVIDENCE_CELLS);
    let role = ranks::severity_role(verdict.severity);
    let mut lines: Vec<Line<'static>> = text::wrap(&words::clean(&verdict.reason), cells)
        .into_iter()
        .map(|line| Line::from(ctx.s(line, Role::Strong)))
        .collect();
    lines.extend(body(verdict, &ctx.view.steering.keymap, ctx.glyphs(), cells).into_iter().map(|parts| {
        Line::from(parts.into_iter().map(|(part, role)| ctx.s(part, role)).collect::<Vec<_>>())
    }));
    let place = ctx.live.verdicts.iter().position(|other| ranks::verdict_id(other) == *about).unwrap_or(0);
    let title = format!("{} {}: {}", ctx.glyphs().tone(role), who(verdict), verdict.verdict.name());
    let title = match ctx.live.verdicts.len() {
        0 | 1 => title,
        all => format!("{title}  ({} of {all})", place + 1),
    };
    overlays::card(ctx, buf, role, &title, lines, top, cells);
}

/// As plain text, for the clipboard.
pub fn plain(model: &Model, about: &VerdictId) -> String {
    let Some(verdict) = find(model, about) else { return String::new() };
    let (severity, confidence) = words(verdict);
    let mut lines = vec![
        format!("{}: {}", who(verdict), verdict.verdict.name()),
        verdict.reason.clone(),
        format!("severity {severity}; confidence {confidence}; {}", said_after(verdict)),
    ];
    lines.extend(verdict.card.text());
    lines.join("\n")
}
