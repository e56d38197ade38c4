//! The worst verdict in the lines that the status has: what it is about, its point first, and what helps, by
//! its key where there is one.

use crate::keys::{Command, Keymap};
use crate::ranks;
use crate::state::Tab;
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::{Ctx, put, put_right, width};
use rankdeck_core::card::Advice;
use rankdeck_core::model::Model;
use rankdeck_core::report::{Confidence, Severity, VerdictReport};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// From this width on an alarm fits in one line.
const WIDE: u16 = 140;
/// Cells before the second line.
const INDENT: usize = 3;
/// Fewest cells for the begin of a reason beside its label.
const BESIDE: usize = 16;

/// Cells between a reason and the hint behind it.
const GAP: usize = 3;

/// How a command asks for collectives to be checked.
const CHECKED: &str = "--check-collectives";

/// What an alarm says.
#[derive(Debug, Clone, PartialEq, Default)]
struct AlarmText {
    label: String,
    /// Per line: a part of the reason, and the hint in the line where it stands.
    rows: Vec<(String, String)>,
}

/// Lines for the worst verdict on a screen of this size; `None` when none stands.
pub fn height(model: &Model, keymap: &Keymap, area: Rect) -> Option<u16> {
    let worst = ranks::live_verdicts(model).next()?;
    // The lines of a red one do not come and go with the figures in it.
    Some(match (worst.severity == Severity::Red, area.width >= WIDE) {
        (true, false) => 2,
        (_, true) => 1,
        (false, false) => {
            let told = told(model, keymap, worst, usize::from(area.width), 2, Glyphs::Ascii);
            1 + u16::from(told.rows.get(1).is_some_and(|row| !row.0.is_empty()))
        }
    })
}

/// What a verdict is about.
fn who(verdict: &VerdictReport) -> String {
    match (verdict.rank, &verdict.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the run".into(),
    }
}

/// The reason without what the label has said.
fn point<'a>(reason: &'a str, verdict: &VerdictReport, who: &str) -> &'a str {
    let rank = verdict.rank.map(|rank| format!("rank {rank}"));
    let said = [Some(who.to_string()), rank, verdict.host.clone()];
    let cut =
        said.into_iter().flatten().find_map(|said| reason.strip_prefix(&said)?.strip_prefix([' ', ':', ',']));
    let Some(cut) = cut.map(str::trim_start) else { return reason };
    cut.strip_prefix("is ").unwrap_or(cut)
}

/// The keys at the right end of the first line.
fn keys(model: &Model, keymap: &Keymap, glyphs: Glyphs) -> (String, String, &'static str) {
    let more = ranks::live_verdicts(model).count().saturating_sub(1);
    let more = if more > 0 { format!("+{more} more  ") } else { String::new() };
    (more, keymap.shown(Command::Explain, glyphs), " why ")
}

fn told(
    model: &Model,
    keymap: &Keymap,
    verdict: &VerdictReport,
    cells: usize,
    lines: usize,
    glyphs: Glyphs,
) -> AlarmText {
    let who = who(verdict);
    let sign = glyphs.tone(ranks::severity_role(verdict.severity));
    let label = format!(" {sign} {who}: {} ", verdict.verdict.name());
    let sure = match verdict.confidence {
        Confidence::Possible => " (possible)",
        Confidence::Likely => " (likely)",
        Confidence::Certain => "",
    };
    let reason = words::clean(&format!("{}{sure}", point(&verdict.reason, verdict, &who)));
    let (more, key, why) = keys(model, keymap, glyphs);
    let taken = text::width(&label) + text::width(&more) + text::width(&key) + why.len() + 2;
    let beside = cells.saturating_sub(taken);
    let below = cells.saturating_sub(INDENT + 1);
    let hint = match verdict.severity {
        Severity::Red => hint(&verdict.card.actions, keymap, below),
        _ => String::new(),
    };
    if lines < 2 {
        let fits = text::width(&reason) + text::width(&hint) + GAP <= beside;
        let hint = if fits { hint } else { String::new() };
        return AlarmText { label, rows: vec![(text::cut(&reason, beside, glyphs), hint)] };
    }
    let mut parts = pieces(&reason, beside, below);
    let beside_hint = below.saturating_sub(text::width(&hint) + GAP);
    if parts.len() > lines || parts.len() == lines && text::width(&parts[lines - 1]) > beside_hint {
        // The last line holds the end of the reason, cut, and the hint, unless that leaves nothing of the
        // reason.
        let room = if hint.is_empty() || beside_hint < below / 3 { below } else { beside_hint };
        let rest = parts.split_off(lines - 1).join(" ");
        parts.push(text::cut(&rest, room, glyphs));
    }
    let last = parts.len() - 1;
    let at = if last > 0 && text::width(&parts[last]) <= beside_hint { last } else { last + 1 };
    let mut rows: Vec<(String, String)> = parts.into_iter().map(|part| (part, String::new())).collect();
    rows.resize_with(lines, Default::default);
    if let Some(row) = rows.get_mut(at) {
        row.1 = hint;
    }
    AlarmText { label, rows }
}

/// A text in pieces: the first beside something else, the others below it.
fn pieces(reason: &str, beside: usize, below: usize) -> Vec<String> {
    let first = match text::wrap(reason, beside).into_iter().next() {
        Some(first) if beside >= BESIDE => first,
        _ => String::new(),
    };
    let rest = reason.get(first.len()..).unwrap_or_default().trim_start();
    let mut parts = vec![first];
    if !rest.is_empty() {
        parts.extend(text::wrap(rest, below));
    }
    parts
}

/// The best thing to do, in the longest form that fits.
fn hint(actions: &[Advice], keymap: &Keymap, cells: usize) -> String {
    let Some(best) = actions.first() else { return String::new() };
    let forms = match key_of(best, keymap) {
        Some(key) => vec![format!("{key}: {}", by_key(best))],
        None if best.command.is_empty() => vec![format!("hint: {}", best.text), best.text.clone()],
        None => vec![
            format!("hint: {}: {}", best.text, best.command),
            format!("{}: {}", best.text, best.command),
            best.command.clone(),
        ],
    };
    let forms: Vec<String> = forms.iter().map(|form| words::clean(form)).collect();
    let fitting = forms.iter().find(|form| text::width(form) <= cells);
    fitting.or(forms.last()).cloned().unwrap_or_default()
}

/// What a key does for an advice; what has to be typed there with it.
pub fn by_key(advice: &Advice) -> String {
    match advice.command.contains(CHECKED) {
        true => format!("{} (type watch.check_collectives=true)", advice.text),
        false => advice.text.clone(),
    }
}

/// The keys of this screen that do what a command does.
pub fn key_of(advice: &Advice, keymap: &Keymap) -> Option<String> {
    let mut words = advice.command.split_whitespace();
    let key = |command| keymap.shown(command, Glyphs::Ascii);
    let on_card = |command| format!("{} {}", key(Command::Explain), key(command));
    match words.next()? {
        "rankdeck" => {}
        "kill" if words.next() == Some("-CONT") => return Some(on_card(Command::Continue)),
        "ssh" => return Some(on_card(Command::Shell)),
        _ => return None,
    }
    match words.next()? {
        "logs" if advice.command.contains("--rank") => Some(on_card(Command::RankLog)),
        "logs" => Some(key(Command::Go(Tab::Logs))),
        "restart" if advice.command.contains(CHECKED) => Some(key(Command::RestartWith)),
        "restart" => Some(key(Command::Restart)),
        "stop" => Some(key(Command::Stop)),
        _ => None,
    }
}

/// Draws the worst verdict; false when none stands.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) -> bool {
    let Some(worst) = ranks::live_verdicts(ctx.live).next() else { return false };
    let (lines, keymap) = (usize::from(area.height), &ctx.view.steering.keymap);
    let told = told(ctx.live, keymap, worst, usize::from(area.width), lines, ctx.glyphs());
    let red = worst.severity == Severity::Red;
    let role = ranks::severity_role(worst.severity);
    let label = match red {
        true => Span::styled(told.label, ctx.theme.bad.add_modifier(Modifier::REVERSED)),
        false => ctx.s(told.label, role),
    };
    let strong = if red { Role::Strong } else { Role::Text };
    for (row, (reason, hint)) in told.rows.into_iter().enumerate() {
        let mut spans = match row {
            0 => vec![label.clone(), Span::raw(" ")],
            _ => vec![Span::raw(" ".repeat(INDENT))],
        };
        let gap = if reason.is_empty() { 0 } else { GAP };
        spans.push(ctx.s(reason, strong));
        if !hint.is_empty() {
            spans.push(Span::raw(" ".repeat(gap)));
            spans.push(ctx.s(hint, Role::Accent));
        }
        let taken = width(&spans);
        put(buf, area, row, Line::from(spans));
        if row == 0 {
            let (more, key, why) = keys(ctx.live, keymap, ctx.glyphs());
            let right = vec![ctx.s(more, role), ctx.s(key, Role::Accent), ctx.s(why, Role::Dim)];
            put_right(buf, area, 0, taken, right);
        }
    }
    true
}
