//! Why the watch says what it says: one card per verdict.

use crate::core::model::Model;
use crate::core::report::{Confidence, Severity, VerdictReport};
use crate::ui::overlays::{self, EVIDENCE_CELLS, Fact};
use crate::ui::ranks;
use crate::ui::state::{Overlay, VerdictId, ViewState};
use crate::ui::text;
use crate::ui::theme::{Glyphs, Role};
use crate::ui::widgets::Ctx;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// The verdict of that identity, `None` when it is gone.
pub fn find<'a>(model: &'a Model, about: &VerdictId) -> Option<&'a VerdictReport> {
    model.verdicts.iter().find(|verdict| ranks::verdict_id(verdict) == *about)
}

/// Opens the card of the selected rank's verdict when it is a red one, else of the worst, which the status line shows.
pub fn open(model: &Model, view: &mut ViewState) {
    let own = view
        .rank
        .and_then(|rank| ranks::verdict_of(model, rank))
        .filter(|verdict| verdict.severity == Severity::Red);
    if let Some(verdict) = own.or_else(|| model.verdicts.first()) {
        view.open(Overlay::Evidence { about: ranks::verdict_id(verdict), top: 0 });
    }
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

/// Label, text and gravity, in reading order; the reason comes first and has no label.
fn facts(verdict: &VerdictReport, glyphs: Glyphs) -> Vec<Fact> {
    let (severity, confidence) = words(verdict);
    let mut list: Vec<Fact> = vec![
        ("severity", severity.into(), ranks::severity_role(verdict.severity)),
        ("confidence", confidence.into(), Role::Text),
        ("said after", format!("{} of trouble", text::seconds(verdict.latency_s)), Role::Text),
    ];
    let sign = glyphs.pick("•", "-");
    for (i, evidence) in verdict.evidence.iter().enumerate() {
        let label = if i == 0 { "evidence" } else { "" };
        list.push((label, format!("{sign} {}", text::clean(evidence)), Role::Text));
    }
    if !verdict.hint.is_empty() {
        list.push(("hint", text::clean(&verdict.hint), Role::Accent));
    }
    list
}

/// Rows of the card at this width.
pub fn rows(model: &Model, about: &VerdictId, cells: usize) -> usize {
    find(model, about).map_or(0, |verdict| {
        text::wrap(&text::clean(&verdict.reason), cells).len()
            + 1
            + overlays::fact_rows(&facts(verdict, Glyphs::Ascii), cells)
    })
}

/// Draws it.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, about: &VerdictId, top: usize) {
    let Some(verdict) = find(ctx.live, about) else { return };
    let cells = overlays::card_cells(ctx.geo.area, EVIDENCE_CELLS);
    let role = ranks::severity_role(verdict.severity);
    let mut lines: Vec<Line<'static>> = text::wrap(&text::clean(&verdict.reason), cells)
        .into_iter()
        .map(|line| Line::from(ctx.s(line, Role::Strong)))
        .collect();
    lines.push(Line::default());
    lines.extend(overlays::fact_lines(ctx, &facts(verdict, ctx.glyphs()), cells));
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
        format!("severity {severity}; confidence {confidence}; after {}", text::seconds(verdict.latency_s)),
    ];
    lines.extend(verdict.evidence.iter().map(|evidence| format!("- {evidence}")));
    if !verdict.hint.is_empty() {
        lines.push(format!("hint: {}", verdict.hint));
    }
    lines.join("\n")
}
