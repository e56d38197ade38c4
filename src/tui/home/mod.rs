//! The home screen: what bare `rankdeck` shows before and without a run.
//!
//! [`Home`] is data, [`view`] draws it, and input becomes [`HomeAction`]s for the owner of the screen. Only
//! this module knows all pages and overlays; what they need of home, they return as [`HomeRequest`]s.
//!
//! ```text
//! model     hosts, runs, experiments, output of commands
//! pages     runs, experiments, fleet, compare: each with its state, keys, commands and drawing
//! overlays  help, confirmation, launch form, processes, output
//! ```

mod model;
mod overlays;
mod pages;

pub use model::{
    ExperimentFile, FleetHost, FreeSince, GpuTrack, Home, HomeEvent, JobOutput, LaunchPreview, RunComparison,
    RunPhase, RunRow, is_free,
};
pub use overlays::HomeOverlay;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use overlays::help::HomeHelp;
use overlays::launch::LaunchForm;
use overlays::output::OutputView;
use pages::compare::{self, CompareCommand, ComparePage};
use pages::experiments::{self, ExperimentCommand, ExperimentsPage};
use pages::fleet::{self, FleetCommand, FleetPage};
use pages::runs::{self, RunCommand, RunsPage};
use pages::{Binding, PageState, enabled};
use rankdeck_kit::draw::hinted;
use rankdeck_kit::keys::{KeyTable, Keymap, c, ctrl, k, plain, with_ctrl};
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::{self, Screen, Stack, WHEEL};
use rankdeck_kit::toast::Toasts;
use rankdeck_kit::{Component, Role, Target, Theme, bindings, put, text};
use rankdeck_proto::process::{ProcessAction, ProcessName};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::{clean, plural};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

/// Smallest screen.
const SMALLEST: (u16, u16) = (40, 8);
/// Why a key is disabled in a read-only console.
const READ_ONLY: &str = "read-only console";

/// The home screen, for keys and overlays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HomeUi;

impl Screen for HomeUi {
    type Model = Home;
    type State = HomeView;
    type Action = HomeRequest;
    type Command = HomeCommand;
    type Pane = HomePage;
    type Target = HomeTarget;
    type Overlay = HomeOverlay;

    fn pane_name(page: HomePage) -> &'static str {
        page.name()
    }

    fn overlays(view: &mut HomeView) -> &mut Stack<HomeOverlay> {
        &mut view.overlays
    }
}

/// The drawing context of home.
type DrawCtx<'a> = rankdeck_kit::DrawCtx<'a, HomeTarget>;
/// What overlays handle inputs with.
type Cx<'a> = rankdeck_kit::Cx<'a, HomeUi>;
/// What became of an input.
type Handled = rankdeck_kit::Handled<HomeRequest>;

/// A page of home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HomePage {
    /// Runs of all hosts.
    #[default]
    Runs,
    /// Experiments to launch.
    Experiments,
    /// Hosts and their GPUs.
    Fleet,
    /// Comparison of runs.
    Compare,
}

impl HomePage {
    /// In the order of their numbers.
    pub const ALL: [HomePage; 4] =
        [HomePage::Runs, HomePage::Experiments, HomePage::Fleet, HomePage::Compare];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            HomePage::Runs => "runs",
            HomePage::Experiments => "experiments",
            HomePage::Fleet => "fleet",
            HomePage::Compare => "compare",
        }
    }

    /// The page `by` positions further on; the first follows the last.
    fn offset(self, by: isize) -> HomePage {
        let len = HomePage::ALL.len() as isize;
        HomePage::ALL[(self as isize + by).rem_euclid(len) as usize]
    }
}

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HomeCommand {
    Help,
    Quit,
    Go(HomePage),
    NextPage,
    PreviousPage,
    /// Move by rows; down is positive.
    Move(i8),
    /// Move by half pages; down is positive.
    HalfPage(i8),
    First,
    Last,
    /// Choose an experiment to launch.
    Launch,
    /// Poll all hosts now.
    Refresh,
    /// Answer login prompts of hosts.
    Answer,
    /// Show the output of the latest command.
    Output,
    /// Go one level back.
    Back,
    Suspend,
    Redraw,
    Runs(RunCommand),
    Experiments(ExperimentCommand),
    Fleet(FleetCommand),
    Compare(CompareCommand),
}

/// What a click can mean, besides keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeTarget {
    /// The tab of a page.
    Tab(HomePage),
    /// The item of this name in the page's list.
    Item(String),
}

/// What the owner of the screen is to do. Commands are what follows `rankdeck` on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeAction {
    Quit,
    /// Restore the terminal until the shell continues the process.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// Poll all hosts now.
    Refresh,
    /// Plan the launch of an experiment file with overrides (`KEY=VALUE ...`).
    Preview {
        path: String,
        typed: String,
    },
    /// Run a command on the terminal; with `pause`, wait for Enter before home returns.
    OnTerminal {
        args: Vec<String>,
        pause: bool,
    },
    /// Edit this file in the user's editor.
    Edit(String),
    /// Read the recordings of these runs.
    Compare(Vec<String>),
    /// Query or signal a process of a host.
    Process {
        host: String,
        process: ProcessName,
        action: ProcessAction,
    },
    /// Run a command in the background and show its output.
    InBackground {
        title: String,
        args: Vec<String>,
    },
    /// Run a command in the background that writes new files `STEM.ENDING`, each named by an option.
    WriteFiles {
        args: Vec<String>,
        stem: String,
        /// Option and ending of each file.
        files: Vec<(&'static str, &'static str)>,
    },
}

impl HomeAction {
    /// Runs a command on the terminal.
    fn on_terminal(args: &[&str], pause: bool) -> HomeAction {
        HomeAction::OnTerminal { args: args.iter().map(|arg| (*arg).to_owned()).collect(), pause }
    }

    /// Runs a command in the background.
    fn in_background(title: impl Into<String>, args: &[&str]) -> HomeAction {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        HomeAction::InBackground { title: title.into(), args }
    }
}

/// What a page or an overlay asks of home.
#[derive(Debug, Clone, PartialEq)]
pub enum HomeRequest {
    /// An action for the owner of the screen.
    Do(HomeAction),
    /// What the key of this command does.
    Command(HomeCommand),
    /// Open an overlay.
    Open(HomeOverlay),
    /// Go to a page.
    Go(HomePage),
    /// List only runs that contain this text.
    FilterRuns(String),
}

/// State of the home screen.
#[derive(Debug, Clone, Default)]
pub struct HomeView {
    pub page: HomePage,
    pub runs: RunsPage,
    pub experiments: ExperimentsPage,
    pub fleet: FleetPage,
    pub compare: ComparePage,
    pub overlays: Stack<HomeOverlay>,
    pub toasts: Toasts,
    /// The whole screen at the last layout.
    pub area: Rect,
    /// Keys that stop, remove or launch are disabled.
    pub read_only: bool,
}

impl HomeView {
    /// Shows a short message.
    pub fn toast(&mut self, text: impl Into<String>, role: Role, now: Timestamp) {
        self.toasts.push(text, role, Some(now));
    }

    /// Opens the launch form of an experiment.
    pub fn open_launch(&mut self, path: String, typed: String) {
        self.page = HomePage::Experiments;
        self.overlays.open(LaunchForm::new(path, typed));
    }

    /// Shows the output of the latest command, unless another overlay is open.
    pub fn open_output(&mut self) {
        if self.overlays.is_empty() {
            self.overlays.open(OutputView::default());
        }
    }

    /// Returns the hosts that a launch excludes, because others are chosen.
    fn excluded<'a>(&'a self, home: &'a Home) -> impl Iterator<Item = &'a str> {
        self.fleet.excluded(home)
    }

    fn state_of(&self, page: HomePage) -> &dyn PageState {
        match page {
            HomePage::Runs => &self.runs,
            HomePage::Experiments => &self.experiments,
            HomePage::Fleet => &self.fleet,
            HomePage::Compare => &self.compare,
        }
    }

    fn state_mut(&mut self, page: HomePage) -> &mut dyn PageState {
        match page {
            HomePage::Runs => &mut self.runs,
            HomePage::Experiments => &mut self.experiments,
            HomePage::Fleet => &mut self.fleet,
            HomePage::Compare => &mut self.compare,
        }
    }

    /// The page that is shown.
    fn shown(&self) -> &dyn PageState {
        self.state_of(self.page)
    }

    /// The page that is shown.
    fn shown_mut(&mut self) -> &mut dyn PageState {
        self.state_mut(self.page)
    }

    /// Clamps the selections of all pages.
    fn settle(&mut self, home: &Home) {
        HomePage::ALL.into_iter().for_each(|page| self.state_mut(page).settle(home));
    }

    /// Goes to a page.
    fn go(&mut self, home: &Home, page: HomePage) -> Vec<HomeAction> {
        self.page = page;
        self.settle(home);
        self.preview(home)
    }

    /// Requests the plan of the selected experiment, unless it is known.
    fn preview(&self, home: &Home) -> Vec<HomeAction> {
        let is_shown = self.page == HomePage::Experiments;
        is_shown.then(|| self.experiments.preview(home)).flatten().into_iter().collect()
    }
}

/// All keys of home.
static KEYS: KeyTable<HomeUi> = KeyTable {
    parts: &[runs::KEYS, experiments::KEYS, fleet::KEYS, compare::KEYS, SHARED_KEYS],
    renamed: &[],
    reserved: |command| *command == HomeCommand::Quit,
};

/// Rank in the footer of keys that apply on every page.
const SHARED: u8 = 2;

const NOT_FLEET: &[HomePage] = &[HomePage::Runs, HomePage::Experiments, HomePage::Compare];
const FLEET: &[HomePage] = &[HomePage::Fleet];

#[rustfmt::skip]
const SHARED_KEYS: &[Binding] = bindings![
    &[], HomeCommand::Go(HomePage::Runs), [c('1')], 0, "", "Go to Runs", enabled;
    &[], HomeCommand::Go(HomePage::Experiments), [c('2')], 0, "", "Go to Experiments", enabled;
    NOT_FLEET, HomeCommand::Go(HomePage::Fleet), [c('3'), c('f')], SHARED, "fleet", "Go to Fleet: hosts and their GPUs", enabled;
    FLEET, HomeCommand::Go(HomePage::Fleet), [c('3'), c('f')], 0, "", "Go to Fleet: hosts and their GPUs", enabled;
    &[], HomeCommand::Go(HomePage::Compare), [c('4')], 0, "", "Go to Compare", enabled;
    &[], HomeCommand::Answer, [c('A')], 0, "", "Answer login prompts", no_prompt;
    &[], HomeCommand::Output, [c('o')], 0, "", "Show the last command's output", no_output;
    &[], HomeCommand::Refresh, [ctrl('r')], 0, "", "Refresh all hosts", enabled;
    &[], HomeCommand::Quit, [c('q'), ctrl('c')], SHARED, "quit", "Quit; runs keep running", enabled;
    &[], HomeCommand::NextPage, [k(KeyCode::Tab)], 0, "", "Go to the next page", enabled;
    &[], HomeCommand::PreviousPage, [k(KeyCode::BackTab)], 0, "", "Go to the previous page", enabled;
    &[], HomeCommand::Move(1), [c('j'), k(KeyCode::Down)], 0, "", "Move down", enabled;
    &[], HomeCommand::Move(-1), [c('k'), k(KeyCode::Up)], 0, "", "Move up", enabled;
    &[], HomeCommand::HalfPage(1), [k(KeyCode::PageDown), ctrl('d')], 0, "", "Move half a page down", enabled;
    &[], HomeCommand::HalfPage(-1), [k(KeyCode::PageUp), ctrl('u')], 0, "", "Move half a page up", enabled;
    &[], HomeCommand::First, [c('g'), k(KeyCode::Home)], 0, "", "Go to the first row", enabled;
    &[], HomeCommand::Last, [c('G'), k(KeyCode::End)], 0, "", "Go to the last row", enabled;
    &[], HomeCommand::Back, [k(KeyCode::Esc)], 0, "", "Go back one level: close, clear the filter, then the marks", enabled;
    &[], HomeCommand::Redraw, [ctrl('l')], 0, "", "Redraw the screen", enabled;
    &[], HomeCommand::Suspend, [ctrl('z')], 0, "", "Suspend rankdeck (`fg` returns)", enabled;
    &[], HomeCommand::Help, [c('?')], 0, "", "Show key bindings", enabled;
];

fn no_prompt(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.unreachable().next().is_none().then_some("no login prompts")
}

fn no_output(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.last_output.is_none().then_some("no command output yet")
}

/// Where the parts of the screen are.
struct HomeAreas {
    header: Rect,
    tabs: Rect,
    page: Rect,
    footer: Rect,
    /// Overlays leave the footer visible.
    overlays: Rect,
}

fn places(area: Rect) -> HomeAreas {
    let line = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1, ..area };
    let page = Rect { y: area.y + 2, height: area.height.saturating_sub(3), ..area };
    let overlays = Rect { height: area.height.saturating_sub(1), ..area };
    HomeAreas { header: line(0), tabs: line(1), page, footer: line(area.height.saturating_sub(1)), overlays }
}

/// Prepares a frame: selects, scrolls to the selection, closes overlays whose subject is gone.
pub fn layout(home: &Home, view: &mut HomeView, area: Rect) {
    view.settle(home);
    let places = places(area);
    let page = view.shown_mut();
    let (rows, len) = page.selected_rows(home);
    let list = page.list_area(home, places.page);
    page.position_mut().scroll_to(rows, len, list);
    view.area = area;
    // Nothing here closes under its reader.
    let _ = overlay::settle::<HomeUi>(home, view, places.overlays);
}

/// Handles a key.
pub fn on_key(home: &Home, view: &mut HomeView, key: KeyEvent, now: Timestamp) -> Vec<HomeAction> {
    if key.modifiers.contains(KeyModifiers::ALT) {
        return Vec::new();
    }
    if !view.overlays.is_empty() {
        if key.code == KeyCode::Esc || (with_ctrl(key) && key.code == KeyCode::Char('c')) {
            view.overlays.pop();
            return Vec::new();
        }
        let requests = overlay::on_key::<HomeUi>(home, view, plain(key), now);
        return execute(home, view, requests.unwrap_or_default(), now);
    }
    if view.runs.is_filtering {
        view.runs.on_filter_key(key);
        view.settle(home);
        return Vec::new();
    }
    let Some(binding) = KEYS.find(key, view.page, &Keymap::default()) else {
        let text = format!("unknown key; ? shows the keys of {}", view.page.name());
        view.toast(text, Role::Dim, now);
        return Vec::new();
    };
    if let Some(reason) = (binding.disabled)(home, view) {
        view.toast(reason, Role::Warn, now);
        return Vec::new();
    }
    perform(home, view, binding.command, now)
}

/// Handles pasted text: it goes where text is typed.
pub fn on_paste(view: &mut HomeView, text: &str) {
    if !overlay::on_paste::<HomeUi>(view, text) && view.runs.is_filtering {
        rankdeck_kit::input::paste(&mut view.runs.filter, text);
    }
}

/// Handles the mouse: a click selects a row, a second one opens it; keys of the footer can be clicked.
pub fn on_mouse(home: &Home, view: &mut HomeView, mouse: MouseEvent, now: Timestamp) -> Vec<HomeAction> {
    let rows = match mouse.kind {
        MouseEventKind::ScrollDown => WHEEL,
        MouseEventKind::ScrollUp => -WHEEL,
        MouseEventKind::Down(MouseButton::Left) => {
            return on_click(home, view, Position { x: mouse.column, y: mouse.row }, now);
        }
        _ => return Vec::new(),
    };
    match overlay::on_wheel::<HomeUi>(home, view, rows, now) {
        Some(requests) => execute(home, view, requests, now),
        None => {
            view.shown_mut().step(home, Move::By(rows));
            view.preview(home)
        }
    }
}

fn on_click(home: &Home, view: &mut HomeView, at: Position, now: Timestamp) -> Vec<HomeAction> {
    let target = target_at(home, view, at);
    if let Some(Target::Key(key)) = target {
        return on_key(home, view, key, now);
    }
    if let Some(requests) = overlay::on_click::<HomeUi>(home, view, target.clone(), now) {
        return execute(home, view, requests, now);
    }
    match target {
        Some(Target::Own(HomeTarget::Tab(page))) => view.page = page,
        Some(Target::Own(HomeTarget::Item(name))) => {
            if let Some(command) = view.shown_mut().on_click(name) {
                return perform(home, view, command, now);
            }
        }
        _ => {}
    }
    view.preview(home)
}

/// Executes what pages and overlays ask for.
fn execute(home: &Home, view: &mut HomeView, requests: Vec<HomeRequest>, now: Timestamp) -> Vec<HomeAction> {
    let mut actions = Vec::new();
    for request in requests {
        match request {
            HomeRequest::Do(action) => actions.push(action),
            HomeRequest::Command(command) => actions.extend(perform(home, view, command, now)),
            HomeRequest::Open(overlay) => view.overlays.open(overlay),
            HomeRequest::Go(page) => actions.extend(view.go(home, page)),
            HomeRequest::FilterRuns(text) => view.runs.filter = text,
        }
    }
    actions
}

/// Runs a command.
fn perform(home: &Home, view: &mut HomeView, command: HomeCommand, now: Timestamp) -> Vec<HomeAction> {
    let requests = match command {
        HomeCommand::Runs(command) => view.runs.perform(home, command),
        HomeCommand::Experiments(command) => view.experiments.perform(command),
        HomeCommand::Fleet(command) => view.fleet.perform(home, command),
        HomeCommand::Compare(command) => view.compare.perform(home, command),
        HomeCommand::Launch if view.page == HomePage::Experiments => view.experiments.launch(home),
        command => return perform_shared(home, view, command, now),
    };
    execute(home, view, requests, now)
}

/// Runs a command that applies on every page.
fn perform_shared(home: &Home, view: &mut HomeView, command: HomeCommand, now: Timestamp) -> Vec<HomeAction> {
    match command {
        HomeCommand::Help => view.overlays.open(HomeHelp::default()),
        HomeCommand::Quit => return vec![HomeAction::Quit],
        HomeCommand::Suspend => return vec![HomeAction::Suspend],
        HomeCommand::Redraw => return vec![HomeAction::Redraw],
        HomeCommand::Refresh => {
            view.toast("refreshing all hosts", Role::Dim, now);
            return vec![HomeAction::Refresh];
        }
        HomeCommand::Answer => return vec![HomeAction::on_terminal(&["ps"], true)],
        HomeCommand::Launch => return view.go(home, HomePage::Experiments),
        HomeCommand::Go(page) => return view.go(home, page),
        HomeCommand::NextPage => return view.go(home, view.page.offset(1)),
        HomeCommand::PreviousPage => return view.go(home, view.page.offset(-1)),
        HomeCommand::Move(by) => view.shown_mut().step(home, Move::By(by.into())),
        HomeCommand::HalfPage(by) => {
            let page = view.shown_mut();
            let half = isize::from((page.position().area.height / 2).max(1) as i16);
            page.step(home, Move::By(isize::from(by) * half));
        }
        HomeCommand::First => view.shown_mut().step(home, Move::First),
        HomeCommand::Last => view.shown_mut().step(home, Move::Last),
        HomeCommand::Output => view.open_output(),
        HomeCommand::Back => {
            if view.runs.filter.is_empty() {
                view.runs.marks.clear();
                view.fleet.chosen.clear();
            } else {
                view.runs.filter.clear();
            }
            view.settle(home);
        }
        // `perform` passes these to their pages.
        HomeCommand::Runs(_)
        | HomeCommand::Experiments(_)
        | HomeCommand::Fleet(_)
        | HomeCommand::Compare(_) => {}
    }
    view.preview(home)
}

/// Draws home. Pure.
pub fn view(home: &Home, view: &HomeView, theme: &Theme, now: Timestamp, frame: &mut Frame<'_>) {
    let area = frame.area();
    let cx = DrawCtx::new(theme, now, places(area).overlays);
    draw(home, view, cx, area, frame.buffer_mut());
}

/// Returns what is on top at a position.
fn target_at(home: &Home, view: &HomeView, at: Position) -> Option<Target<HomeTarget>> {
    let theme = Theme::mono();
    let cx = DrawCtx::new(&theme, Timestamp(0), places(view.area).overlays);
    let cx = draw(home, view, cx, view.area, &mut Buffer::empty(view.area));
    cx.targets.at(at).map(|(_, target)| target)
}

fn draw<'a>(home: &Home, view: &HomeView, mut cx: DrawCtx<'a>, area: Rect, buf: &mut Buffer) -> DrawCtx<'a> {
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = cx.cut("rankdeck: screen too small; q quits", area.width.into());
        put(buf, area, 0, Line::from(cx.s(text, Role::Warn)));
        return cx;
    }
    let places = places(area);
    header(&cx, buf, places.header, home);
    tabs(&cx, buf, places.tabs, home, view);
    view.shown().draw(home, &cx, buf, places.page);
    footer(&cx, buf, places.footer, home, view);
    overlay::draw::<HomeUi>(&view.overlays, home, view, &cx, buf);
    cx.screen = area;
    view.toasts.draw(&cx, buf);
    cx
}

fn header(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, home: &Home) {
    let mut spans = vec![cx.s(" rankdeck", Role::Accent)];
    let count = |phase| home.runs.iter().filter(|row| row.phase == phase).count();
    let (running, orphaned) = (count(RunPhase::Running), count(RunPhase::Orphaned));
    let (free, all) = home.hosts.iter().map(FleetHost::free).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let mut facts = vec![(plural(home.hosts.len(), "host"), Role::Text)];
    let unreachable: Vec<&str> = home.unreachable().map(|host| host.name.as_str()).collect();
    match unreachable.as_slice() {
        [] => {}
        [one] => facts.push((format!("{one} unreachable"), Role::Warn)),
        [first, more @ ..] => {
            facts.push((format!("{first} and {} more unreachable", more.len()), Role::Warn));
        }
    }
    facts.push((format!("{running} running"), Role::Text));
    if orphaned > 0 {
        facts.push((format!("{orphaned} orphaned"), Role::Bad));
    }
    if let [(_, title), ..] = home.jobs.as_slice() {
        facts.push((format!("{} {title}", cx.glyphs().pick("⧗", "...")), Role::Accent));
    }
    if all > 0 {
        facts.push((format!("{free} of {} free", plural(all, "GPU")), Role::Text));
    }
    let mut used = text::width("rankdeck ");
    for (i, (fact, role)) in facts.into_iter().enumerate() {
        let dot = if i == 0 { "  " } else { cx.glyphs().pick(" · ", " - ") };
        used += text::width(dot) + text::width(&fact);
        if used > usize::from(area.width) {
            break;
        }
        spans.push(cx.s(dot, Role::Dim));
        spans.push(cx.s(fact, role));
    }
    put(buf, area, 0, Line::from(spans));
}

fn tabs(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    let mut spans = vec![Span::raw(" ")];
    let mut x = area.x + 1;
    for (i, page) in HomePage::ALL.into_iter().enumerate() {
        let tab = format!(" {} {} {} ", i + 1, page.name(), view.state_of(page).count(home));
        let width = text::width(&tab) as u16;
        cx.target(Rect { x, width, ..area }, Target::Own(HomeTarget::Tab(page)));
        x += width;
        spans.push(match page == view.page {
            true => Span::styled(tab, cx.theme.chosen),
            false => cx.s(tab, Role::Dim),
        });
    }
    put(buf, area, 0, Line::from(spans));
}

fn footer(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    if view.runs.is_filtering {
        let line = vec![
            cx.s(" / ", Role::Accent),
            cx.s(clean(&view.runs.filter), Role::Strong),
            cx.caret(),
            cx.s("   enter keeps   esc clears   !text excludes", Role::Dim),
        ];
        put(buf, area, 0, Line::from(line));
        return;
    }
    if let Some(top) = view.overlays.top() {
        let hint = format!(" {}", top.hint(home, view, cx));
        for (x, width, key) in hinted(&hint) {
            let place = Rect { x: area.x.saturating_add(x), width, ..area };
            cx.target(place.intersection(area), Target::Key(key));
        }
        put(buf, area, 0, Line::from(cx.s(hint, Role::Dim)));
        return;
    }
    const HELP: &str = "? help ";
    let cells = usize::from(area.width).saturating_sub(HELP.len() + 3);
    let mut spans = vec![Span::raw(" ")];
    for (x, key, binding) in
        KEYS.footer_items(home, view, (view.page, &Keymap::default()), cells, cx.glyphs())
    {
        let width = (text::width(&key) + 1 + text::width(binding.short)) as u16;
        cx.target(Rect { x: area.x + x, width, ..area }, Target::Key(binding.keys[0]));
        spans.push(cx.s(key, Role::Accent));
        spans.push(cx.s(format!(" {}  ", binding.short), Role::Dim));
    }
    put(buf, area, 0, Line::from(spans));
    let x = area.right().saturating_sub(HELP.len() as u16);
    let place = Rect { x, width: HELP.len() as u16, ..area };
    cx.target(place, Target::Key(KeyEvent::from(KeyCode::Char('?'))));
    put(buf, place, 0, Line::from(vec![cx.s("?", Role::Accent), cx.s(" help ", Role::Dim)]));
}

#[cfg(test)]
mod tests;
