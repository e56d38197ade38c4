//! The Runs page: a table, newest first, and details of the selected run.

use super::{Binding, PageState, draw_item, enabled, no_launch};
use crate::home::model::{Home, RunPhase, RunRow};
use crate::home::overlays::confirm::{Confirmation, PruneForm};
use crate::home::{DrawCtx, HomeAction, HomeCommand, HomePage, HomeRequest, HomeView, READ_ONLY};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::frame::titled_rule;
use rankdeck_kit::keys::{c, k};
use rankdeck_kit::list::{ListPosition, Move};
use rankdeck_kit::text::NONE;
use rankdeck_kit::{Role, bindings, input, put, text};
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_types::words::{self, plural};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use std::collections::BTreeSet;

/// State of the page of runs.
#[derive(Debug, Clone, Default)]
pub struct RunsPage {
    pub list: ListPosition,
    /// Text that listed runs contain; `!` in front excludes them.
    pub filter: String,
    /// The filter is being typed.
    pub is_filtering: bool,
    /// Marked runs.
    pub marks: BTreeSet<String>,
}

/// What a key of this page can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunCommand {
    /// Attach to the run, or replay its recording.
    Open,
    Stop,
    Restart,
    Mark,
    Compare,
    Report,
    Replay,
    Remove,
    /// Remove old runs.
    Prune,
    /// Type a filter.
    Filter,
}

const HERE: &[HomePage] = &[HomePage::Runs];

const fn run(command: RunCommand) -> HomeCommand {
    HomeCommand::Runs(command)
}

#[rustfmt::skip]
pub(in crate::home) const KEYS: &[Binding] = bindings![
    HERE, run(RunCommand::Open), [k(KeyCode::Enter), c('a')], 1, "attach", "Open the run, or replay its recording (q returns here)", no_run;
    HERE, run(RunCommand::Stop), [c('x')], 1, "stop", "Stop the run and verify that no process is left (asks)", no_stop;
    HERE, run(RunCommand::Restart), [c('r')], 1, "restart", "Restart from a checkpoint or from scratch (asks)", no_restart;
    HERE, run(RunCommand::Mark), [c(' ')], 1, "mark", "Mark the run (compare, remove)", no_run;
    HERE, run(RunCommand::Compare), [c('c')], 1, "compare", "Compare marked runs, or show the selected one", no_compare;
    HERE, HomeCommand::Launch, [c('n')], 1, "launch", "Launch an experiment (Fleet: on chosen hosts)", no_launch;
    HERE, run(RunCommand::Report), [c('v')], 1, "report", "Write an HTML report of a recorded run", no_recording;
    HERE, run(RunCommand::Replay), [c('p')], 1, "replay", "Replay the recording of the run", no_recording;
    HERE, run(RunCommand::Remove), [c('d')], 1, "remove", "Remove the run, or the marked ones (asks)", no_remove;
    HERE, run(RunCommand::Prune), [c('P')], 0, "", "Remove runs older than an age, such as 30d (lists, asks)", read_only;
    HERE, run(RunCommand::Filter), [c('/')], 1, "filter", "Filter runs by name, note, host, state, program (!text excludes)", enabled;
];

const NO_RUN: &str = "no run selected";

fn no_run(home: &Home, view: &HomeView) -> Option<&'static str> {
    view.runs.selected(home).is_none().then_some(NO_RUN)
}

fn read_only(_: &Home, view: &HomeView) -> Option<&'static str> {
    view.read_only.then_some(READ_ONLY)
}

fn no_stop(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.runs.selected(home).map(|row| row.phase) {
        _ if view.read_only => Some(READ_ONLY),
        Some(RunPhase::Running | RunPhase::Orphaned) => None,
        Some(RunPhase::Ended | RunPhase::Recorded) => Some("the run has ended"),
        None => Some(NO_RUN),
    }
}

fn no_restart(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.runs.selected(home).map(|row| row.phase) {
        _ if view.read_only => Some(READ_ONLY),
        Some(RunPhase::Recorded) => Some("no host has this run; only its recording exists"),
        Some(_) => None,
        None => Some(NO_RUN),
    }
}

fn no_recording(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.runs.selected(home).map(|row| row.recorded) {
        Some(true) => None,
        Some(false) => Some("no recording on this machine; attach to the run once"),
        None => Some(NO_RUN),
    }
}

fn no_compare(home: &Home, view: &HomeView) -> Option<&'static str> {
    let marks = &view.runs.marks;
    match marks.iter().any(|name| home.run(name).is_some_and(|row| row.recorded)) {
        true => None,
        false if marks.is_empty() => no_recording(home, view),
        false => Some("no recording of a marked run; attach to it once"),
    }
}

fn no_remove(home: &Home, view: &HomeView) -> Option<&'static str> {
    let has_ended = |row: &RunRow| row.phase == RunPhase::Ended;
    let marks = &view.runs.marks;
    match view.runs.selected(home) {
        _ if view.read_only => Some(READ_ONLY),
        _ if !marks.is_empty() => {
            let all = marks.iter().all(|name| home.run(name).is_some_and(has_ended));
            if all { None } else { Some("a marked run has not ended on its hosts") }
        }
        Some(row) if has_ended(row) => None,
        Some(_) => Some("the run has not ended on its hosts"),
        None => Some(NO_RUN),
    }
}

impl RunsPage {
    /// Returns the selected run, if the filter lists it.
    pub fn selected<'a>(&self, home: &'a Home) -> Option<&'a RunRow> {
        let name = self.list.selected.as_deref()?;
        self.listed(home).into_iter().find(|row| row.run == name)
    }

    /// Returns the runs that the filter lists.
    fn listed<'a>(&self, home: &'a Home) -> Vec<&'a RunRow> {
        let (excludes, text) = match self.filter.strip_prefix('!') {
            Some(text) => (true, text.to_lowercase()),
            None => (false, self.filter.to_lowercase()),
        };
        let is_listed = |row: &&RunRow| text.is_empty() || filter_text(row).contains(&text) != excludes;
        home.runs.iter().filter(is_listed).collect()
    }

    /// Handles a key while the filter is typed.
    pub(in crate::home) fn on_filter_key(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => (self.is_filtering, self.filter) = (false, String::new()),
            _ => {
                input::edit(&mut self.filter, key);
            }
        }
    }

    /// Runs a command of this page.
    pub(in crate::home) fn perform(&mut self, home: &Home, command: RunCommand) -> Vec<HomeRequest> {
        let selected = self.selected(home).cloned().unwrap_or_default();
        let run = selected.run.as_str();
        let request = match command {
            RunCommand::Open if selected.phase == RunPhase::Recorded => on_terminal(&["replay", run], false),
            RunCommand::Open => on_terminal(&["attach", run], false),
            RunCommand::Stop => HomeRequest::Open(stop_question(&selected).into()),
            RunCommand::Restart => on_terminal(&["restart", run], true),
            RunCommand::Mark => {
                if !self.marks.remove(run) {
                    self.marks.insert(run.to_owned());
                }
                self.step(home, Move::By(1));
                return Vec::new();
            }
            RunCommand::Compare => {
                let compare = HomeRequest::Do(HomeAction::Compare(self.compared(home, run)));
                return vec![HomeRequest::Go(HomePage::Compare), compare];
            }
            RunCommand::Report => {
                let (args, stem) = (vec!["report".to_owned(), run.to_owned()], run.to_owned());
                HomeRequest::Do(HomeAction::WriteFiles { args, stem, files: vec![("--output", "html")] })
            }
            RunCommand::Replay => on_terminal(&["replay", run], false),
            RunCommand::Remove => HomeRequest::Open(self.removal_question(run).into()),
            RunCommand::Prune => HomeRequest::Open(PruneForm::default().into()),
            RunCommand::Filter => {
                self.is_filtering = true;
                return Vec::new();
            }
        };
        vec![request]
    }

    /// Asks about the marked runs, or about the selected one.
    fn removal_question(&self, run: &str) -> Confirmation {
        let runs: Vec<&str> = match self.marks.is_empty() {
            true => vec![run],
            false => self.marks.iter().map(String::as_str).collect(),
        };
        let args: Vec<&str> = ["rm"].into_iter().chain(runs.iter().copied()).chain(["--yes"]).collect();
        let mut text: Vec<String> = runs.iter().take(8).map(|run| (*run).to_owned()).collect();
        if runs.len() > 8 {
            text.push(format!("and {} more", runs.len() - 8));
        }
        text.push("Deletes logs, checkpoints and recordings from all hosts and from this machine.".into());
        let title = format!("remove {}", plural(runs.len(), "run"));
        let action = HomeAction::in_background(title.clone(), &args);
        Confirmation::new(&format!("{title}?"), text, "remove", action)
    }

    /// Returns the marked runs in the order of the list, or the selected one.
    fn compared(&self, home: &Home, run: &str) -> Vec<String> {
        if self.marks.is_empty() {
            return vec![run.to_owned()];
        }
        let marked = home.runs.iter().filter(|row| self.marks.contains(&row.run));
        marked.map(|row| row.run.clone()).collect()
    }
}

/// The text that filters match.
fn filter_text(row: &RunRow) -> String {
    let summary = &row.summary;
    let state = summary.outcome_text().unwrap_or_default();
    let parts = [&row.run, &summary.note, &summary.program, &state, &format!("{:?}", row.phase)];
    let hosts = summary.hosts.iter();
    parts.into_iter().chain(hosts).map(|part| part.to_lowercase()).collect::<Vec<_>>().join(" ")
}

fn on_terminal(args: &[&str], pause: bool) -> HomeRequest {
    HomeRequest::Do(HomeAction::on_terminal(args, pause))
}

fn stop_question(row: &RunRow) -> Confirmation {
    let run = row.run.as_str();
    let ranks = plural(row.alive as usize, "rank");
    let effect = match row.phase {
        RunPhase::Orphaned => format!(
            "{ranks} alive without an agent. Their processes are killed. Every host verifies that none is left."
        ),
        _ => format!(
            "{ranks} alive. They get a signal and can save a checkpoint. Every host verifies that no process is left."
        ),
    };
    let text = vec![format!("{run} on {}", row.summary.hosts.join(", ")), effect];
    Confirmation::new(
        "stop the run?",
        text,
        "stop",
        HomeAction::in_background(format!("stop {run}"), &["stop", run]),
    )
}

/// Rows of the details below the list.
const DETAILS: u16 = 8;
/// Minimum height of the page with details.
const ROOMY: u16 = 18;
/// Maximum width of a name.
const NAME: usize = 44;

/// A column of the table. Numbers are aligned to the right.
struct RunColumn {
    heading: &'static str,
    cells: usize,
    number: bool,
    text: fn(&RunRow) -> String,
}

const fn text_column(heading: &'static str, cells: usize, text: fn(&RunRow) -> String) -> RunColumn {
    RunColumn { heading, cells, number: false, text }
}
const fn number(heading: &'static str, cells: usize, text: fn(&RunRow) -> String) -> RunColumn {
    RunColumn { heading, cells, number: true, text }
}

/// Columns behind name and state, most important first.
const COLUMNS: [RunColumn; 10] = [
    number("STEPS", 8, |row| short_count(row.summary.env_step.or(shown(row).map(|shown| shown.done)))),
    number("DONE", 5, percent_done),
    number("RETURN", 8, |row| value(row.summary.last_return)),
    number("BEST EVAL", 9, |row| value(row.summary.best.as_ref().map(|best| best.return_mean))),
    number("TIME", 8, |row| seconds(Some(row.summary.duration_s).filter(|s| *s > 0.0))),
    number("AGE", 7, |row| age(row.age_s)),
    number("GPUS", 4, |row| if row.summary.gpus > 0 { row.summary.gpus.to_string() } else { NONE.into() }),
    number("RANKS", 7, ranks),
    text_column("HOSTS", 10, |row| row.summary.hosts.join(" ")),
    text_column("NOTE", 12, |row| row.summary.note.clone()),
];

fn short_count(n: Option<u64>) -> String {
    n.map_or(NONE.into(), |n| text::count_in(n, 7))
}

fn percent_done(row: &RunRow) -> String {
    match (row.summary.env_step, row.summary.total_steps) {
        (Some(step), Some(target)) if target > 0 => format!("{:.0}%", step as f64 * 100.0 / target as f64),
        _ => shown(row)
            .and_then(ShownProgress::share)
            .map_or(NONE.into(), |share| format!("{:.0}%", share * 100.0)),
    }
}

/// What the program's progress bar shows.
fn shown(row: &RunRow) -> Option<&ShownProgress> {
    row.summary.progress.as_ref()
}

fn ranks(row: &RunRow) -> String {
    match row.summary.world_size {
        0 => NONE.into(),
        all => format!("{}/{all}", row.alive),
    }
}

fn value(value: Option<f64>) -> String {
    value.map_or(NONE.into(), text::value)
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or(NONE.into(), words::duration)
}

/// An age in one unit.
fn age(seconds: Option<f64>) -> String {
    match seconds {
        None => NONE.into(),
        Some(s) if s < 60.0 => format!("{:.0}s", s.max(0.0)),
        Some(s) if s < 3600.0 => format!("{:.0}m", (s / 60.0).floor()),
        Some(s) if s < 2.0 * 86_400.0 => format!("{:.0}h", (s / 3600.0).floor()),
        Some(s) => format!("{:.0}d", (s / 86_400.0).floor()),
    }
}

impl PageState for RunsPage {
    fn position(&self) -> &ListPosition {
        &self.list
    }

    fn position_mut(&mut self) -> &mut ListPosition {
        &mut self.list
    }

    fn names(&self, home: &Home) -> Vec<String> {
        self.listed(home).iter().map(|row| row.run.clone()).collect()
    }

    fn count(&self, home: &Home) -> usize {
        home.runs.len()
    }

    fn list_area(&self, _: &Home, page: Rect) -> Rect {
        let below = if page.height >= ROOMY { DETAILS } else { 0 };
        Rect { y: page.y + 1, height: page.height.saturating_sub(1 + below), ..page }
    }

    fn settle(&mut self, home: &Home) {
        let names = self.names(home);
        self.list.settle(names);
        self.marks.retain(|name| home.run(name).is_some());
    }

    fn open_command(&self) -> Option<HomeCommand> {
        Some(HomeCommand::Runs(RunCommand::Open))
    }

    fn draw(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect) {
        let list = self.list_area(home, page);
        let rows = self.listed(home);
        if rows.is_empty() {
            self.draw_empty(home, cx, buf, list);
        } else {
            self.draw_table(&rows, cx, buf, page, list);
        }
        if page.height >= ROOMY {
            let area = Rect { y: list.bottom(), height: DETAILS, ..page };
            self.draw_details(home, cx, buf, area);
        }
    }
}

impl RunsPage {
    fn draw_table(&self, rows: &[&RunRow], cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect, list: Rect) {
        let longest = rows.iter().map(|row| text::width(&row.run)).max().unwrap_or(0).clamp(12, NAME);
        let mut room = usize::from(page.width).saturating_sub(2 + 14 + 1);
        let name = longest.min(room.saturating_sub(20).max(12));
        room = room.saturating_sub(name + 1);
        let mut columns: Vec<(&RunColumn, usize)> = Vec::new();
        for column in &COLUMNS {
            if column.cells < room {
                room -= column.cells + 1;
                columns.push((column, column.cells));
            }
        }
        // Columns of text get the remaining width.
        for (column, cells) in columns.iter_mut().filter(|(column, _)| !column.number) {
            let longest = rows.iter().map(|row| text::width(&(column.text)(row))).max().unwrap_or(0);
            let more = longest.saturating_sub(*cells).min(room);
            (*cells, room) = (*cells + more, room - more);
        }
        let cell = |(column, cells): &(&RunColumn, usize), text: &str| match column.number {
            true => format!(" {}", cx.right(text, *cells)),
            false => format!(" {}", cx.left(text, *cells)),
        };
        let mut head = format!("  {} {}", cx.left("RUN", name), cx.left("STATE", 14));
        columns.iter().for_each(|column| head.push_str(&cell(column, column.0.heading)));
        put(buf, Rect { height: 1, ..page }, 0, Line::from(cx.s(head, Role::Dim)));
        for (at, row) in rows.iter().skip(self.list.top).take(list.height.into()).enumerate() {
            let selected = self.list.is_selected(&row.run);
            let (sign, word, role) = row.state(cx.glyphs());
            let mut spans = vec![
                cx.cursor(selected, self.marks.contains(&row.run)),
                cx.s(cx.left(&row.run, name), if selected { Role::Accent } else { Role::Text }),
                Span::raw(" "),
                cx.s(cx.left(&format!("{sign} {word}"), 14), role),
            ];
            spans.extend(columns.iter().map(|column| cx.s(cell(column, &(column.0.text)(row)), Role::Text)));
            draw_item(cx, buf, list, at, Line::from(spans), &row.run, selected);
        }
    }

    fn draw_empty(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, list: Rect) {
        let all_listed = home.hosts.iter().all(|host| host.runs_at.is_some() || host.error.is_some());
        let mut lines = Vec::new();
        if let Some(error) = &home.error {
            lines.push((error.error.clone(), Role::Bad));
            lines.push((error.hint.clone(), Role::Dim));
        } else if !self.filter.is_empty() {
            lines.push((format!("no run matches `{}`; esc clears the filter", self.filter), Role::Dim));
        } else if all_listed {
            lines.push(("no runs yet".into(), Role::Strong));
            let hint = match home.experiments.is_empty() {
                true => "`rankdeck init` writes an experiment; `rankdeck demo` simulates a cluster",
                false => "press n to launch; `rankdeck demo` simulates a cluster",
            };
            lines.push((hint.into(), Role::Dim));
        } else {
            lines.push(("connecting to hosts ...".into(), Role::Dim));
        }
        let area = Rect { x: list.x + 2, width: list.width.saturating_sub(4), ..list };
        cx.paragraphs(buf, area, &lines);
    }

    fn draw_details(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect) {
        let Some(row) = self.selected(home) else {
            titled_rule(cx.theme, buf, area, "");
            return;
        };
        titled_rule(cx.theme, buf, area, &cx.cut(&row.run, usize::from(area.width).saturating_sub(4)));
        let summary = &row.summary;
        let mut lines: Vec<(String, Role)> = Vec::new();
        let (_, word, role) = row.state(cx.glyphs());
        let reason = if summary.reason.is_empty() { word } else { format!("{word}: {}", summary.reason) };
        lines.push((reason, role));
        let unreachable: Vec<&str> = home.unreachable().map(|host| host.name.as_str()).collect();
        let missing: Vec<&str> =
            summary.hosts.iter().map(String::as_str).filter(|name| unreachable.contains(name)).collect();
        if !missing.is_empty() {
            let text = format!(
                "{} of {} unreachable: {}",
                missing.len(),
                plural(summary.hosts.len(), "host"),
                missing.join(", ")
            );
            lines.push((text, Role::Warn));
        }
        if row.phase == RunPhase::Recorded {
            lines.push(("no host has this run; enter replays its recording".into(), Role::Dim));
        }
        let mut facts = vec![format!("generation {}", summary.generation)];
        if let Some(iterations) = summary.train_iter {
            facts.push(format!("iteration {}", words::count(iterations)));
        }
        if let Some(episodes) = summary.episodes {
            facts.push(format!("{} episodes", words::count(episodes)));
        }
        if let Some(target) = summary.total_steps {
            facts.push(format!("target {} steps", words::count(target)));
        }
        if let Some(best) = &summary.best {
            facts.push(format!(
                "best evaluation {} at {} steps",
                text::value(best.return_mean),
                words::count(best.env_step)
            ));
        }
        let dot = cx.glyphs().pick(" · ", " - ");
        if let Some(progress) = &summary.progress {
            let eta = progress.eta_s.map_or(String::new(), |eta| format!(", ETA {}", words::duration(eta)));
            facts.push(format!("progress {}{eta}", progress.amount()));
        }
        if row.phase != RunPhase::Recorded || summary.env_step.is_some() {
            lines.push((facts.join(dot), Role::Text));
        }
        let labelled = [
            ("hosts", summary.hosts.join(", ")),
            ("program", summary.program.clone()),
            ("note", summary.note.clone()),
            (
                "checkpoint",
                summary
                    .checkpoint
                    .as_ref()
                    .map(|saved| saved.path.clone() + &saved.remark())
                    .unwrap_or_default(),
            ),
        ];
        for (label, text) in labelled.into_iter().filter(|(_, text)| !text.is_empty()) {
            let cells = usize::from(area.width).saturating_sub(3);
            lines.push((cx.cut(&format!("{label:<11}{text}"), cells), Role::Dim));
        }
        let inside = Rect {
            x: area.x + 2,
            y: area.y + 1,
            width: area.width.saturating_sub(3),
            height: area.height - 1,
        };
        cx.paragraphs(buf, inside, &lines);
    }
}
