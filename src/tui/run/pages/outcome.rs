//! The Outcome page: how the run ended, its last minute, what was lost, and what to do now.

use crate::report;
use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Pane, Tab};
use crate::run::history;
use crate::run::outcome::{culprit, headline, last_minute, totals, when};
use crate::run::pages::{Page, PageCx, PageDrawCtx, step};
use crate::run::ranks;
use crate::run::reasons::*;
use crate::run::restart_draft::{LATEST_AND_BEST, best, is_best_latest};
use crate::run::shared::ConsoleCapabilities;
use crate::run::time::{TimeMove, time_of_day};
use crate::run::{RunScreen, RunTarget, Target};
use rankdeck_core::model::{CheckpointModel, Model, RunState};
use rankdeck_core::origin::LATEST;
use rankdeck_core::report::RunOutcome;
use rankdeck_kit::keys::{Binding, c};
use rankdeck_kit::{Role, bindings, put, put_lines, text, width};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// How far `s` goes back from the end, milliseconds.
const BEFORE_MS: u64 = 300_000;
/// From this height on, there are gaps between the parts.
const ROOMY: usize = 20;
/// Cells of a key in front of its action.
const KEY: usize = 5;
/// Fewest rows for the outcome above the suggested actions.
const LEAST: usize = 4;

const OUTCOME: &[Pane] = &[Pane::Outcome];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    OUTCOME, ScreenCommand::GoThere, [c('s')], 3, "before", "Go to 5 minutes before the end", |model, view| still_running(model).or(no_record(model, view));
    OUTCOME, ScreenCommand::RankLog, [c('l')], 4, "log", "Show the culprit's log", |model, _| no_culprit(model);
    OUTCOME, ScreenCommand::Again, [c('n')], 4, "new run", "Launch again with changes", |model, view| no_relaunch(model, &view.steering);
];

fn no_relaunch(model: &Model, steering: &ConsoleCapabilities) -> Option<&'static str> {
    match model.run.state {
        _ if steering.replay => Some(RECORDED),
        _ if steering.read_only => Some(SHOWN_ONLY),
        RunState::Over if !steering.again => Some("experiment file not found"),
        RunState::Over => None,
        _ => still_running(model),
    }
}

fn no_culprit(model: &Model) -> Option<&'static str> {
    culprit(model).is_none().then_some("no culprit")
}

fn still_running(model: &Model) -> Option<&'static str> {
    (model.run.state != RunState::Over).then_some("the run is still running")
}

/// The Outcome page.
#[derive(Debug, Clone, Default)]
pub struct OutcomePage {
    /// Scroll position; `None`: the newest events, or the cause if there is no room for both.
    pub top: Option<usize>,
}

impl Page for OutcomePage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        let area = ctx.place.area();
        let page = PageLines::of(ctx, ctx.place.inner());
        let (above, most) = (page.top(self.top), page.most());
        let more = most - above;
        let mut info = Vec::new();
        if above + more > 0 {
            let (up, down) = (ctx.glyphs().pick("↑", "^"), ctx.glyphs().pick("↓", "v"));
            let part = |count: usize, command: ScreenCommand, sign: &str| {
                let key = ctx.keys().of(command);
                if count == 0 { String::new() } else { format!("{key} {count} more {sign}") }
            };
            let text = [part(above, ScreenCommand::Move(-1), up), part(more, ScreenCommand::Move(1), down)];
            let text: Vec<String> = text.into_iter().filter(|text| !text.is_empty()).collect();
            info.push(ctx.s(text.join("  "), Role::Warn));
        }
        let inner = ctx.pane(buf, area, ctx.title("outcome", ""), info);
        let PageLines { lines, below, rows, pinned } = page;
        let shown = lines.into_iter().enumerate().filter(|(at, _)| *at < pinned || *at >= pinned + above);
        put_lines(buf, inner, shown.take(rows).map(|(_, line)| line));
        for (row, OfferLine { spans, places }) in below.into_iter().enumerate() {
            let y = inner.y.saturating_add((rows + row) as u16);
            for (x, width, command) in places {
                let place = Rect { x: inner.x.saturating_add(x), y, width, height: 1 };
                ctx.target(place.intersection(inner), Target::Own(RunTarget::Command(command)));
            }
            put(buf, inner, rows + row, Line::from(spans));
        }
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let (top, most) = cx.plain(|ctx| {
            let page = PageLines::of(ctx, ctx.place.inner());
            (page.top(self.top), page.most())
        });
        self.top = Some(step(top, rows, most + 1));
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let utc_offset_s = cx.shared.style.utc_offset_s;
        report::markdown(cx.model, &report::Sources { utc_offset_s, ..report::Sources::default() })
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        match command {
            ScreenCommand::GoThere if cx.place.focused => {
                let Some(end) = when(cx.live) else { return Some(Vec::new()) };
                let before = TimeMove::To(Timestamp(end.0.saturating_sub(BEFORE_MS)));
                // This page has nothing to show about the time before the end.
                let overview = Request::ShowPage(Tab::Overview);
                Some(vec![overview, Request::Live(ScreenAction::Time(before))])
            }
            ScreenCommand::RankLog if cx.place.focused => Some(vec![Request::ShowRankLog(culprit(cx.live))]),
            ScreenCommand::Again => Some(vec![Request::Do(ScreenAction::Again)]),
            _ => None,
        }
    }
}

/// A suggested action.
struct SuggestedAction {
    command: ScreenCommand,
    key: String,
    /// In a few words.
    short: String,
    /// In a line.
    long: String,
}

fn offers(ctx: &PageDrawCtx<'_>, cells: usize) -> Vec<SuggestedAction> {
    let model = ctx.model;
    let steering = &ctx.shared.steering;
    let mut all = Vec::new();
    let mut offer = |command, here: bool, short: &str, long: String| {
        let key = if here { ctx.keys().in_pane(command, Pane::Outcome) } else { ctx.keys().of(command) };
        let long = if long.is_empty() { short.to_owned() } else { long };
        all.push(SuggestedAction { command, key, short: short.to_owned(), long });
    };
    offer(ScreenCommand::GoThere, true, "5 minutes before", "go to 5 minutes before the end".into());
    if let Some(rank) = culprit(model) {
        offer(ScreenCommand::RankLog, true, &format!("log of rank {rank}"), String::new());
    }
    if !model.verdicts.is_empty() || ranks::latest_verdict(model).is_some() {
        offer(ScreenCommand::Explain, false, "evidence", String::new());
    }
    if !steering.replay && !steering.read_only {
        offer(ScreenCommand::Restart, false, "restart", restart_text(model, cells));
        let long = "restart from any checkpoint, with changed config keys";
        offer(ScreenCommand::RestartWith, false, "restart with changes", long.into());
    }
    if steering.again && !steering.read_only {
        let long = "launch again with changes";
        offer(ScreenCommand::Again, true, "new run", long.into());
    }
    // A command works as it stands here, or it is left out.
    let copy = "copy a report (Markdown)";
    let report = steering.report.as_ref().map(|command| format!("{copy}; `{command}` has charts"));
    let report = report.filter(|text| text::width(text) + KEY <= cells);
    offer(ScreenCommand::Copy, false, "copy a report", report.unwrap_or_else(|| copy.to_owned()));
    offer(ScreenCommand::Quit, false, "quit", String::new());
    all
}

/// The restart in a line: with the latest and the best checkpoint, if they fit.
fn restart_text(model: &Model, cells: usize) -> String {
    let named = |name: &str, checkpoint: &CheckpointModel| match checkpoint.step() {
        Some(step) => format!("{name} (step {})", words::count(step)),
        None => name.to_owned(),
    };
    let is_both = is_best_latest(model);
    let latest = model.checkpoints.back();
    let latest = latest.map(|latest| named(if is_both { LATEST_AND_BEST } else { LATEST }, latest));
    let best = best(model).filter(|_| !is_both).map(|best| named("best", best));
    let all: Vec<String> = latest.into_iter().chain(best).collect();
    let text = format!("restart from {} or from scratch", all.join(", "));
    match all.is_empty() || text::width(&text) + KEY > cells {
        true => "restart from a checkpoint or from scratch".to_owned(),
        false => text,
    }
}

/// A line of offers.
#[derive(Default)]
struct OfferLine {
    spans: Vec<Span<'static>>,
    /// Where each offer begins, how wide it is, and what it does.
    places: Vec<(u16, u16, ScreenCommand)>,
}

/// A line for each offer, or as many in a line as fit.
fn offered(ctx: &PageDrawCtx<'_>, cells: usize, roomy: bool) -> Vec<OfferLine> {
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

/// Cause, totals and last minute, with the number of lines above the last minute.
fn outcome_lines(ctx: &PageDrawCtx<'_>, cells: usize, roomy: bool) -> (Vec<Line<'static>>, usize) {
    let model = ctx.model;
    let over = model.run.state == RunState::Over;
    let mut lines: Vec<Line<'static>> = Vec::new();
    let role = match model.run.outcome {
        _ if !over => Role::Dim,
        Some(RunOutcome::Failed | RunOutcome::Stuck) => Role::Bad,
        Some(RunOutcome::Succeeded) => Role::Good,
        Some(RunOutcome::Stopped) | None => Role::Warn,
    };
    for (i, part) in text::wrap(&headline(model), cells.saturating_sub(2)).into_iter().enumerate() {
        let sign = if i == 0 { ctx.glyphs().tone(role) } else { " " };
        lines.push(Line::from(vec![ctx.s(format!("{sign} "), role), ctx.s(part, role)]));
    }
    if !over {
        let what = "After the run, this page shows the cause, the last minute and what was lost.";
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
    lines.push(Line::from(ctx.s("last minute", Role::Accent)));
    let head = lines.len();
    for line in minute {
        let role = history::role(line.tone);
        let clock = time_of_day(line.time, ctx.shared.style.utc_offset_s);
        let room = cells.saturating_sub(text::width(&clock) + 6);
        lines.push(Line::from(vec![
            ctx.s(format!("  {clock}  "), Role::Dim),
            ctx.s(format!("{} ", ctx.glyphs().tone(role)), role),
            ctx.s(ctx.cut(&words::clean(&line.text), room), history::text_role(line.tone)),
        ]));
    }
    (lines, head)
}

/// The lines of the page, and which of them are visible.
struct PageLines {
    lines: Vec<Line<'static>>,
    below: Vec<OfferLine>,
    /// Rows that the lines have.
    rows: usize,
    /// Lines that stay above those that are scrolled.
    pinned: usize,
}

impl PageLines {
    fn of(ctx: &PageDrawCtx<'_>, inner: Rect) -> PageLines {
        let (cells, height) = (usize::from(inner.width), usize::from(inner.height));
        let over = ctx.model.run.state == RunState::Over;
        let fits = |roomy: bool| {
            let below = if over { offered(ctx, cells, roomy) } else { Vec::new() };
            let (lines, head) = outcome_lines(ctx, cells, roomy);
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
        PageLines { pinned: if head < rows { head } else { 0 }, lines, below, rows }
    }

    /// How far it can be scrolled.
    fn most(&self) -> usize {
        self.lines.len() - self.rows
    }

    /// The scroll position: by default the newest events show, or the cause if there is no room for both.
    fn top(&self, requested: Option<usize>) -> usize {
        requested.unwrap_or(if self.pinned > 0 { usize::MAX } else { 0 }).min(self.most())
    }
}
