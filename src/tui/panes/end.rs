//! The end of a run as a page: the cause, the last minute, what was lost, and what to do now.

use crate::keys::Command;
use crate::state::Pane;
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put, width};
use rankdeck_core::model::{HistoryLine, Model, RankLife, Remains, RunState, Tone};
use rankdeck_core::report::{Outcome, VerdictKind};
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// The time before the end that is told, milliseconds.
const LAST_MS: u64 = 60_000;
/// How far back `s` goes, milliseconds.
pub const BEFORE_MS: u64 = 300_000;
/// What ends with a run is told within this time after it, seconds.
const AFTER_S: f64 = 2.0;
/// Most events of the last minute.
const EVENTS: usize = 12;

/// Rows from which on parts have a gap between them.
const ROOMY: usize = 20;
/// Cells of a key before what it does.
const KEY: usize = 5;
/// Rows that what is told has at least, whatever can be done.
const LEAST: usize = 4;

/// When the run ended; when it began to, if something failed.
pub fn when(model: &Model) -> Option<Timestamp> {
    let bad = model.history.iter().rev().find(|line| line.tone == Tone::Bad).map(|line| line.at);
    let ended = model.run.ended.or(model.history.back().map(|line| line.at));
    match failed(model) {
        true => bad.or(ended),
        false => ended,
    }
}

fn failed(model: &Model) -> bool {
    matches!(model.run.outcome, Some(Outcome::Failed | Outcome::Stuck))
}

/// The rank that the end is blamed on.
pub fn guilty(model: &Model) -> Option<Rank> {
    let first = model.run.first_failure.as_ref().map(|first| first.rank);
    first.or_else(|| model.verdicts.first().and_then(|verdict| verdict.rank))
}

/// How it ended, in one sentence.
pub fn headline(model: &Model) -> String {
    let word = match (model.run.state, model.run.outcome) {
        (RunState::Over, Some(outcome)) => format!("{outcome:?}").to_lowercase(),
        (RunState::Over, None) => "over".into(),
        _ => "the run is not over".into(),
    };
    match model.run.reason.as_str() {
        "" => word,
        reason => format!("{word}: {}", words::clean(reason)),
    }
}

fn is_dead(model: &Model, rank: Rank) -> bool {
    model.verdicts.iter().any(|found| found.verdict == VerdictKind::Dead && found.rank == Some(rank))
}

/// What the run came to, and what of it is lost.
pub fn totals(model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    let latest = model.latest.as_ref().map(|latest| &latest.counters);
    let latest = latest.or(model.progress.as_ref().map(|progress| &progress.totals));
    let reached = latest.map(|totals| totals.env_step);
    let over = model.run.state == RunState::Over;
    if let Some(t) = latest {
        lines.push(format!(
            "totals: {} steps, {} episodes, {} updates, iteration {}",
            words::count(t.env_step),
            words::count(t.episodes),
            words::count(t.updates),
            words::count(t.train_iter)
        ));
    }
    // Of equal ones the first, as on the page of evaluations: its checkpoint is the best one.
    let best = model.evals.iter().rev().filter(|eval| eval.return_mean.is_finite());
    if let Some(best) = best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)) {
        lines.push(format!(
            "best evaluation: {} at {} steps",
            text::value(best.return_mean),
            words::count(best.env_step)
        ));
    }
    match model.checkpoints.back() {
        Some(checkpoint) => {
            let lost = reached.map_or(0, |reached| reached.saturating_sub(checkpoint.env_step));
            let lost = match lost {
                0 => "nothing is lost".to_owned(),
                lost if over => format!("{} steps after it are lost", words::count(lost)),
                since => format!("{} steps since", words::count(since)),
            };
            lines.push(format!("last checkpoint: {} steps, {lost}", words::count(checkpoint.env_step)));
            lines.push(format!("  {}", words::clean(&checkpoint.path)));
        }
        None if over && reached.is_some_and(|reached| reached > 0) => {
            lines.push("no checkpoint was written: all steps are lost".into());
        }
        None => {}
    }
    for (remains, what) in [
        (Remains::LeftOver, "ranks of which processes are left"),
        (Remains::Unproved, "ranks that may still run, for their host has not proved the stop"),
    ] {
        let those = model.ranks.iter().filter(|rank| model.remains(rank) == Some(remains));
        let those: Vec<u32> = those.map(|rank| rank.rank.0).collect();
        lines.extend((!those.is_empty()).then(|| format!("{what}: {}", words::ranges(&those))));
    }
    // SIGTERM and SIGKILL are how a run is ended: only who began it did not end well by them.
    let blamed = |rank: Rank| Some(rank) == guilty(model) || is_dead(model, rank);
    let dead = model.ranks.iter().filter(|rank| {
        matches!(&rank.life, RankLife::Exited(exit)
            if !exit.is_success() && (!exit.is_stop_signal() || blamed(rank.rank)))
    });
    let dead: Vec<u32> = dead.map(|rank| rank.rank.0).collect();
    if failed(model) && dead.len() > 1 {
        lines.push(format!("ranks that did not end well: {}", words::ranges(&dead)));
    }
    lines
}

/// What happened in the minute before the end, routine left out, oldest first.
pub fn last_minute(model: &Model) -> Vec<&HistoryLine> {
    let Some(end) = when(model) else { return Vec::new() };
    let routine = |line: &&HistoryLine| !line.routine;
    let newest = model.history.iter().rev().filter(routine);
    let mut lines: Vec<&HistoryLine> = match model.run.ended_time.filter(|_| model.run.adopted) {
        // A console that came later has read all of it at once, host by host: the agents say when it was.
        Some(ended) => {
            let near = |line: &&HistoryLine| {
                (ended - LAST_MS as f64 / 1000.0..=ended + AFTER_S).contains(&line.time)
            };
            let mut all: Vec<&HistoryLine> = newest.filter(near).collect();
            all.sort_by(|a, b| b.time.total_cmp(&a.time));
            all
        }
        None => newest.filter(|line| line.at.plus(LAST_MS) >= end).collect(),
    };
    lines.truncate(EVENTS);
    lines.reverse();
    lines
}

/// What can be done now.
struct Offer {
    command: Command,
    key: String,
    /// In a few words.
    short: String,
    /// In a line.
    long: String,
}

fn offers(ctx: &Ctx<'_>, cells: usize) -> Vec<Offer> {
    let model = ctx.model;
    let (keymap, glyphs) = (&ctx.view.steering.keymap, ctx.glyphs());
    let mut all = Vec::new();
    let mut offer = |command, here: bool, short: &str, long: String| {
        let key =
            if here { keymap.shown_in(Pane::End, command, glyphs) } else { keymap.shown(command, glyphs) };
        let long = if long.is_empty() { short.to_owned() } else { long };
        all.push(Offer { command, key, short: short.to_owned(), long });
    };
    offer(Command::GoThere, true, "five minutes before", "see the five minutes before".into());
    if let Some(rank) = guilty(model) {
        offer(Command::RankLog, true, &format!("log of rank {rank}"), String::new());
    }
    if !model.verdicts.is_empty() || crate::overlays::evidence::latest_verdict(model).is_some() {
        offer(Command::Explain, false, "evidence", "the evidence".into());
    }
    if !ctx.view.steering.replay && !ctx.view.steering.read_only {
        let long = "restart from the latest checkpoint, the best one, or afresh";
        offer(Command::Restart, false, "restart", long.into());
        let long = "restart from any checkpoint, with changed keys and the plan that they make";
        offer(Command::RestartWith, false, "restart with changes", long.into());
    }
    if ctx.view.steering.again && !ctx.view.steering.read_only {
        let long = "a new run like this one, with other keys if you like";
        offer(Command::Again, true, "new run like this", long.into());
    }
    // A command works as it stands here, or it is left out.
    let copy = "copy a report (Markdown)";
    let report = ctx.view.steering.report.as_ref().map(|command| format!("{copy}; `{command}` has charts"));
    let report = report.filter(|text| text::width(text) + KEY <= cells);
    offer(Command::Copy, false, "copy a report", report.unwrap_or_else(|| copy.to_owned()));
    offer(Command::Quit, false, "leave", String::new());
    all
}

/// A line of offers.
#[derive(Default)]
struct OfferLine {
    spans: Vec<Span<'static>>,
    /// Where each offer begins, how wide it is, and what it does.
    places: Vec<(u16, u16, Command)>,
}

/// A line for each offer, or as many in a line as fit.
fn offered(ctx: &Ctx<'_>, cells: usize, roomy: bool) -> Vec<OfferLine> {
    let mut lines: Vec<OfferLine> = Vec::new();
    for offer in offers(ctx, cells) {
        if roomy {
            let spans = vec![
                ctx.s(format!("  {:<3}", offer.key), Role::Accent),
                ctx.s(ctx.cut(&offer.long, cells.saturating_sub(KEY)), Role::Text),
            ];
            lines.push(OfferLine { spans, places: vec![(0, cells as u16, offer.command)] });
            continue;
        }
        let spans = [
            ctx.s(format!("  {} ", offer.key), Role::Accent),
            ctx.s(format!("{} ", offer.short), Role::Text),
        ];
        let wide = width(&spans);
        if lines.last().is_none_or(|line| width(&line.spans) + wide > cells) {
            lines.push(OfferLine::default());
        }
        if let Some(line) = lines.last_mut() {
            line.places.push((width(&line.spans) as u16, wide as u16, offer.command));
            line.spans.extend(spans);
        }
    }
    lines
}

/// What the page tells: the cause and the totals, then the last minute with how many lines were before it.
fn told(ctx: &Ctx<'_>, cells: usize, roomy: bool) -> (Vec<Line<'static>>, usize) {
    let model = ctx.model;
    let over = model.run.state == RunState::Over;
    let mut lines: Vec<Line<'static>> = Vec::new();
    let role = match model.run.outcome {
        _ if !over => Role::Dim,
        Some(Outcome::Failed | Outcome::Stuck) => Role::Bad,
        Some(Outcome::Succeeded) => Role::Good,
        Some(Outcome::Stopped) | None => Role::Warn,
    };
    for (i, part) in text::wrap(&headline(model), cells.saturating_sub(2)).into_iter().enumerate() {
        let sign = if i == 0 { ctx.glyphs().tone(role) } else { " " };
        lines.push(Line::from(vec![ctx.s(format!("{sign} "), role), ctx.s(part, role)]));
    }
    if !over {
        let what = "This page tells the cause, the last minute and what was lost.";
        for part in text::wrap(what, cells.saturating_sub(2)) {
            lines.push(Line::from(ctx.s(format!("  {part}"), Role::Dim)));
        }
    }
    for total in totals(model) {
        let inward = total.len() - total.trim_start().len();
        for part in text::wrap(total.trim_start(), cells.saturating_sub(2 + inward)) {
            lines.push(Line::from(vec![Span::raw(" ".repeat(2 + inward)), ctx.s(part, Role::Text)]));
        }
    }
    let minute = if over { last_minute(model) } else { Vec::new() };
    if minute.is_empty() {
        let head = lines.len();
        return (lines, head);
    }
    lines.extend(roomy.then(Line::default));
    lines.push(Line::from(ctx.s("the last minute", Role::Accent)));
    let head = lines.len();
    for line in minute {
        let role = super::events::role(line.tone);
        let words_role = if line.tone == Tone::Info { Role::Text } else { role };
        let clock = time_of_day(line.time, ctx.view.chart.utc_offset_s);
        let room = cells.saturating_sub(text::width(&clock) + 6);
        lines.push(Line::from(vec![
            ctx.s(format!("  {clock}  "), Role::Dim),
            ctx.s(format!("{} ", ctx.glyphs().tone(role)), role),
            ctx.s(ctx.cut(&words::clean(&line.text), room), words_role),
        ]));
    }
    (lines, head)
}

/// What is on the page, and which of it.
struct Page {
    lines: Vec<Line<'static>>,
    below: Vec<OfferLine>,
    /// Rows that the lines have.
    rows: usize,
    /// Lines that stay above those that are scrolled.
    pinned: usize,
}

impl Page {
    fn of(ctx: &Ctx<'_>, inner: Rect) -> Page {
        let (cells, height) = (usize::from(inner.width), usize::from(inner.height));
        let over = ctx.model.run.state == RunState::Over;
        let fits = |roomy: bool| {
            let below = if over { offered(ctx, cells, roomy) } else { Vec::new() };
            let (lines, head) = told(ctx, cells, roomy);
            (lines, head, below)
        };
        // Where it is tight, nothing is left empty, and what can be done takes few lines.
        let mut parts = fits(height >= ROOMY);
        if parts.0.len() + parts.2.len() >= height {
            parts = fits(false);
        } else if !parts.2.is_empty() && height >= ROOMY {
            parts.0.push(Line::default());
        }
        let (lines, head, below) = parts;
        let rows = height.saturating_sub(below.len()).max(LEAST.min(height)).min(lines.len());
        Page { pinned: if head < rows { head } else { 0 }, lines, below, rows }
    }

    /// How far it can be scrolled.
    fn most(&self) -> usize {
        self.lines.len() - self.rows
    }

    /// How far it is: at first the newest of the last minute shows, or the cause where not both have room.
    fn top(&self, wanted: Option<usize>) -> usize {
        wanted.unwrap_or(if self.pinned > 0 { usize::MAX } else { 0 }).min(self.most())
    }
}

/// How far the page is scrolled, and how far it can be.
pub fn scrolled(ctx: &Ctx<'_>) -> (usize, usize) {
    let page = Page::of(ctx, ctx.geo.inside(ctx.geo.pane(Pane::End)));
    (page.top(ctx.view.end_top), page.most())
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::End);
    if area.is_empty() {
        return;
    }
    let page = Page::of(ctx, ctx.geo.inside(area));
    let (above, most) = (page.top(ctx.view.end_top), page.most());
    let more = most - above;
    let mut info = Vec::new();
    if above + more > 0 {
        let (up, down) = (ctx.glyphs().pick("↑", "^"), ctx.glyphs().pick("↓", "v"));
        let keymap = &ctx.view.steering.keymap;
        let part = |count: usize, command: Command, sign: &str| {
            let key = keymap.shown(command, ctx.glyphs());
            if count == 0 { String::new() } else { format!("{key} {count} more {sign}") }
        };
        let text = [part(above, Command::Move(-1), up), part(more, Command::Move(1), down)];
        let text: Vec<String> = text.into_iter().filter(|text| !text.is_empty()).collect();
        info.push(ctx.s(text.join("  "), Role::Warn));
    }
    let inner = frame::pane(ctx, buf, area, Pane::End, frame::title(ctx, Pane::End, "end", ""), info);
    let Page { lines, below, rows, pinned } = page;
    let shown = lines.into_iter().enumerate().filter(|(at, _)| *at < pinned || *at >= pinned + above);
    for (row, (_, line)) in shown.take(rows).enumerate() {
        put(buf, inner, row, line);
    }
    for (row, OfferLine { spans, places }) in below.into_iter().enumerate() {
        let y = inner.y.saturating_add((rows + row) as u16);
        for (x, width, command) in places {
            let place = Rect { x: inner.x.saturating_add(x), y, width, height: 1 };
            ctx.target(place.intersection(inner), Target::Command(command));
        }
        put(buf, inner, rows + row, Line::from(spans));
    }
}
