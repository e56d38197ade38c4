//! The evidence for a verdict.

use crate::run::advice;
use crate::run::card::{self, LABEL};
use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::keys::names;
use crate::run::overlays::{card_command, card_hint, on_card_key};
use crate::run::ranks;
use crate::run::shared::VerdictId;
use crate::run::time::time_of_day;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::card::{Card, RankEvidence};
use rankdeck_core::model::{EventSubject, HistoryLine, Model};
use rankdeck_core::report::{Confidence, Proof, Severity, VerdictReport};
use rankdeck_kit::{Component, Glyphs, Keep, Role, text};
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Most cells of the card.
pub const CELLS: usize = 124;

/// The card of a verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceCard {
    /// Which verdict.
    pub about: VerdictId,
    /// First line shown.
    pub top: usize,
    /// The verdict as it was last seen: the card stays when it is cleared.
    kept: Box<VerdictReport>,
}

impl EvidenceCard {
    /// The card of a verdict, from its first line.
    pub fn new(verdict: &VerdictReport) -> EvidenceCard {
        EvidenceCard { about: ranks::verdict_id(verdict), top: 0, kept: Box::new(verdict.clone()) }
    }

    /// Goes to the next verdict.
    fn next(&mut self, model: &Model) {
        if !model.verdicts.is_empty() {
            let at = model.verdicts.iter().position(|verdict| ranks::verdict_id(verdict) == self.about);
            let next = at.map_or(0, |at| (at + 1) % model.verdicts.len());
            *self = EvidenceCard::new(&model.verdicts[next]);
        }
    }

    /// The verdict, or its last state.
    pub fn verdict<'a>(&'a self, model: &'a Model) -> &'a VerdictReport {
        ranks::find_verdict(model, &self.about).unwrap_or(&self.kept)
    }

    /// `over since 06:02:03, 4 s ago`, once it is cleared.
    fn over(&self, model: &Model, view: &ViewState) -> Option<String> {
        if ranks::find_verdict(model, &self.about).is_some() {
            return None;
        }
        let cleared = self.event(model).filter(|line| match &line.subject {
            Some(EventSubject::Verdict(verdict)) => verdict.severity == Severity::Cleared,
            _ => false,
        });
        Some(cleared.map_or_else(
            || "over".to_owned(),
            |line| {
                let since = time_of_day(line.time, view.style.utc_offset_s);
                let age = words::duration_ms(view.moment.now.since(line.at));
                format!("over since {since}, {age} ago")
            },
        ))
    }

    /// The newest event about the verdict.
    pub fn event<'a>(&self, shown: &'a Model) -> Option<&'a HistoryLine> {
        let (_, rank, host) = &self.about;
        shown.history.iter().rev().find(|line| match &line.subject {
            Some(EventSubject::Verdict(verdict)) => (&verdict.rank, &verdict.host) == (rank, host),
            _ => false,
        })
    }

    /// The rank that it is about; of a host, the first one.
    fn rank(&self, model: &Model) -> Option<Rank> {
        match &self.about {
            (_, None, Some(host)) => model.ranks.iter().find(|rank| rank.host == *host).map(|rank| rank.rank),
            (_, rank, _) => *rank,
        }
    }

    fn lines(&self, model: &Model, keys: KeyNames<'_>, cells: usize) -> Vec<Plain> {
        lines_of(self.verdict(model), keys, cells)
    }
}

impl Component<RunScreen> for EvidenceCard {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        match card_command(key, cx.state) {
            Some(ScreenCommand::Explain | ScreenCommand::NextTrouble | ScreenCommand::NextPane) => {
                self.next(model);
                Handled::Done
            }
            _ => {
                let rank = self.rank(model);
                on_card_key(key, &mut self.top, rank, cx)
            }
        }
    }

    fn on_wheel(&mut self, _: &Model, rows: isize, _: &mut Cx<'_>) -> Handled {
        card::scroll(&mut self.top, rows as i64);
        Handled::Done
    }

    fn settle(&mut self, model: &Model, view: &ViewState, screen: Rect) -> Keep {
        let keys = names(&view.steering.keymap, Glyphs::Ascii);
        let lines = self.lines(model, keys, card::cells(screen, CELLS));
        card::clamp(&mut self.top, lines.len(), screen);
        if let Some(verdict) = ranks::find_verdict(model, &self.about).filter(|now| **now != *self.kept) {
            (*self.kept).clone_from(verdict);
        }
        // Played back, the moment that is shown may come before it.
        (view.moment.cursor.is_none() || ranks::find_verdict(model, &self.about).is_some()).into()
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let verdict = self.verdict(model);
        let over = self.over(model, view);
        let cells = card::cells(cx.screen, CELLS);
        let role = if over.is_some() { Role::Dim } else { ranks::severity_role(verdict.severity) };
        let lines = self.lines(model, names(&view.steering.keymap, cx.glyphs()), cells);
        let lines = lines.into_iter().map(|line| styled(cx, line)).collect();
        let at = model.verdicts.iter().position(|other| ranks::verdict_id(other) == self.about);
        let subject = match (verdict.rank, &verdict.host) {
            (None, None) => "the run".into(),
            _ => ranks::subject(verdict),
        };
        let title = format!("{} {subject}: {}", cx.glyphs().tone(role), verdict.verdict.name());
        let title = match (over, at, model.verdicts.len()) {
            (Some(over), ..) => format!("{title}  ({over})"),
            (None, Some(at), all @ 2..) => format!("{title}  ({} of {all})", at + 1),
            (None, ..) => title,
        };
        card::draw(cx, buf, role, &title, lines, (self.top, cells));
    }

    fn hint(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>) -> String {
        let verdict = self.verdict(model);
        let advised =
            |begin: &str| verdict.card.actions.iter().any(|advice| advice.command.starts_with(begin));
        let own = [
            (ScreenCommand::Continue, "continue it", advised("kill -CONT")),
            (ScreenCommand::Rejoin, "add it", advised("rankdeck add")),
            (ScreenCommand::Shell, "shell", advised("ssh")),
            (ScreenCommand::Explain, "next verdict", model.verdicts.iter().any(|other| other != verdict)),
            (ScreenCommand::Restart, "restart", true),
            (ScreenCommand::Stack, "stack", verdict.rank.is_some()),
        ];
        let useful = own.into_iter().filter(|(_, _, is_useful)| *is_useful);
        let own: Vec<_> = useful.map(|(command, what, _)| (command, what)).collect();
        card_hint(cx, view, &own)
    }

    fn copy(&self, model: &Model, _: &ViewState, _: Timestamp) -> Option<String> {
        Some(plain(self.verdict(model)))
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// A line as parts with their severity, before it has a style.
pub type Plain = Vec<(String, Role)>;

/// A line with its styles.
pub fn styled(cx: &DrawCtx<'_>, line: Plain) -> Line<'static> {
    Line::from(line.into_iter().map(|(part, role)| cx.s(part, role)).collect::<Vec<_>>())
}

/// As plain text, for the clipboard.
pub fn plain(verdict: &VerdictReport) -> String {
    let (severity, confidence) = words(verdict);
    let subject = match (verdict.rank, &verdict.host) {
        (None, None) => "the run".into(),
        _ => ranks::subject(verdict),
    };
    let mut lines = vec![
        format!("{subject}: {}", verdict.verdict.name()),
        verdict.reason.clone(),
        format!("severity {severity}; confidence {confidence}; {}", detected_after(verdict)),
    ];
    lines.extend(verdict.card.text());
    lines.join("\n")
}

/// All lines of a verdict's evidence, its reason included.
pub fn lines_of(verdict: &VerdictReport, keys: KeyNames<'_>, cells: usize) -> Vec<Plain> {
    let reason = text::wrap(&words::clean(&verdict.reason), cells);
    let mut lines: Vec<Plain> = reason.into_iter().map(|line| vec![(line, Role::Strong)]).collect();
    lines.extend(body(verdict, keys, cells));
    lines
}

fn words(verdict: &VerdictReport) -> (&'static str, String) {
    let severity = match verdict.severity {
        Severity::Cleared => "cleared",
        Severity::Amber => "warning",
        Severity::Red => "critical",
    };
    let confidence = match verdict.confidence {
        Confidence::Possible => "possible (outlier)".to_owned(),
        Confidence::Likely => "likely (no progress, consistent evidence)".to_owned(),
        Confidence::Certain => format!("certain ({})", verdict.proof.map_or("confirmed", Proof::describe)),
    };
    (severity, confidence)
}

/// One line: severity, reason code, confidence, latency.
fn summary(verdict: &VerdictReport) -> Plain {
    let severity = match verdict.severity {
        Severity::Cleared => "cleared",
        Severity::Amber => "AMBER",
        Severity::Red => "RED",
    };
    let (_, confidence) = words(verdict);
    let reason = verdict.reason_code.name().replace('_', " ");
    let after = detected_after(verdict);
    vec![
        (severity.into(), ranks::severity_role(verdict.severity)),
        (format!("  {reason}; {confidence}; {after}"), Role::Dim),
    ]
}

/// How long the problem existed until it was detected, and how long it has lasted.
fn detected_after(verdict: &VerdictReport) -> String {
    let first = words::duration(verdict.first_s);
    match verdict.latency_s > verdict.first_s {
        true => format!("detected after {first}, ongoing for {}", words::duration(verdict.latency_s)),
        false => format!("detected after {first}"),
    }
}

/// Culprit and waiting rank side by side, or one of them over the whole width.
fn sides(card: &Card, cells: usize, lines: &mut Vec<Plain>) {
    let room = cells.saturating_sub(LABEL);
    let has_culprit = card.culprit.is_some();
    let both = has_culprit && card.waiter.is_some();
    let column = if both { room.saturating_sub(2) / 2 } else { room };
    for row in card.rows() {
        let head = row.label.is_empty();
        let (left, right) = match head {
            false => (row.culprit, row.waiter),
            true => (mark("culprit: ", row.culprit), mark("waiting: ", row.waiter)),
        };
        let (left, right) = if has_culprit { (left, right) } else { (right, String::new()) };
        let left = text::wrap(&words::clean(&left), column);
        let right = text::wrap(&words::clean(&right), column);
        for at in 0..left.len().max(right.len()) {
            let part = |side: &[String]| side.get(at).cloned().unwrap_or_default();
            let label = if at == 0 { row.label } else { "" };
            let pad = column.saturating_sub(text::width(&part(&left)));
            let (mine, theirs) = match (head, has_culprit) {
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

/// Labeled items, each wrapped next to its label.
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

/// Cells from which two stacks fit side by side.
const TWO_STACKS: usize = 100;

/// The stack of the culprit; of ranks in different collectives both, side by side or below one another.
fn stacks(card: &Card, cells: usize, lines: &mut Vec<Plain>) {
    let head = |side: &RankEvidence| (format!("rank {} on {}", side.rank, side.host), Role::Strong);
    let frames = |side: &RankEvidence, indent: &str| -> Vec<(String, Role)> {
        side.stack.iter().map(|frame| (format!("{indent}{}", words::clean(frame)), Role::Text)).collect()
    };
    match card.stacks().as_slice() {
        [one] => items("stack", &frames(one, ""), cells, lines),
        [left, right] if cells >= TWO_STACKS => {
            let column = cells.saturating_sub(LABEL + 2) / 2;
            let wrapped = |side: &RankEvidence| -> Vec<(String, Role)> {
                let all = std::iter::once(head(side)).chain(frames(side, ""));
                let parts = |(text, role): (String, Role)| {
                    text::wrap_point(&text, column).into_iter().map(move |part| (part, role))
                };
                all.flat_map(parts).collect()
            };
            let (left, right) = (wrapped(left), wrapped(right));
            lines.push(Vec::new());
            for at in 0..left.len().max(right.len()) {
                let part =
                    |side: &[(String, Role)]| side.get(at).cloned().unwrap_or((String::new(), Role::Text));
                let (mine, theirs) = (part(&left), part(&right));
                let label = if at == 0 { "stack" } else { "" };
                let pad = column.saturating_sub(text::width(&mine.0));
                lines.push(vec![
                    (format!("{label:<LABEL$}"), Role::Dim),
                    mine,
                    (format!("{:pad$}  ", ""), Role::Text),
                    theirs,
                ]);
            }
        }
        many => {
            let all = many.iter().flat_map(|side| std::iter::once(head(side)).chain(frames(side, "  ")));
            items("stack", &all.collect::<Vec<_>>(), cells, lines);
        }
    }
}

/// Everything below the reason.
fn body(verdict: &VerdictReport, keys: KeyNames<'_>, cells: usize) -> Vec<Plain> {
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
        let first = words::clean(&advice::line(first, keys));
        for (i, part) in text::wrap(&first, cells.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if i == 0 { label.clone() } else { format!("{:<LABEL$}", "") };
            lines.push(vec![(label, Role::Dim), (part, Role::Accent)]);
        }
    }
    let sign = keys.glyphs.pick("•", "-");
    let plain = |list: &[String], role| -> Vec<(String, Role)> {
        list.iter().map(|item| (format!("{sign} {item}"), role)).collect()
    };
    if !card.rows().is_empty() {
        lines.push(Vec::new());
        sides(card, cells, &mut lines);
    }
    items("evidence", &plain(&card.facts, Role::Text), cells, &mut lines);
    stacks(card, cells, &mut lines);
    let others: Vec<(String, Role)> = card.others.iter().map(|other| (other.line(), Role::Text)).collect();
    items("others", &others, cells, &mut lines);
    items("ruled out", &plain(&card.ruled_out, Role::Dim), cells, &mut lines);
    // The first one stands at the top.
    let actions: Vec<(String, Role)> = card
        .actions
        .iter()
        .skip(1)
        .map(|advice| (format!("{sign} {}", advice::line(advice, keys)), Role::Accent))
        .collect();
    items("or", &actions, cells, &mut lines);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::card::CollectiveRef;

    /// The lines of two stacks in different collectives.
    fn two_stacks(cells: usize) -> Vec<String> {
        let side = |rank: u32| {
            let call = CollectiveRef { inside: true, seq: u64::from(rank), ..CollectiveRef::default() };
            let stack = vec![format!("train.py:{rank} in step"), format!("main.py:{rank} in main")];
            Some(RankEvidence {
                rank: Rank(rank),
                host: "ant".into(),
                call: Some(call),
                stack,
                ..RankEvidence::default()
            })
        };
        let mut lines = Vec::new();
        stacks(&Card { culprit: side(1), waiter: side(2), ..Card::default() }, cells, &mut lines);
        lines.into_iter().map(|line| line.into_iter().map(|(part, _)| part).collect()).collect()
    }

    #[test]
    fn two_stacks_are_side_by_side_where_they_fit() {
        let wide = two_stacks(CELLS);
        assert!(
            wide.iter().any(|line| line.contains("train.py:1") && line.contains("train.py:2")),
            "{wide:?}"
        );
        let narrow = two_stacks(80);
        let at = |place: &str| narrow.iter().position(|line| line.contains(place));
        assert!(at("main.py:1").is_some() && at("main.py:1") < at("train.py:2"), "{narrow:?}");
        for (lines, cells) in [(wide, CELLS), (narrow, 80)] {
            assert!(lines.iter().all(|line| text::width(line) <= cells), "{lines:?}");
        }
    }
}
