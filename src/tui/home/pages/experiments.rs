//! The Experiments page: the files, and the launch plan of the selected one.

use super::{Binding, PageState, draw_item, no_experiment, no_launch};
use crate::home::model::{ExperimentFile, Home};
use crate::home::overlays::launch::{LaunchForm, draw_plan};
use crate::home::{DrawCtx, HomeAction, HomeCommand, HomePage, HomeRequest, HomeView, READ_ONLY};
use crossterm::event::KeyCode;
use rankdeck_kit::keys::{c, k};
use rankdeck_kit::list::ListPosition;
use rankdeck_kit::{Role, bindings, put, text, width};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// State of the page of experiments.
#[derive(Debug, Clone, Default)]
pub struct ExperimentsPage {
    pub list: ListPosition,
}

/// What a key of this page can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentCommand {
    Check,
    Edit,
}

const HERE: &[HomePage] = &[HomePage::Experiments];

#[rustfmt::skip]
pub(in crate::home) const KEYS: &[Binding] = bindings![
    HERE, HomeCommand::Launch, [k(KeyCode::Enter), c('n')], 1, "launch", "Launch with changes: edit config keys and see the plan", no_launch;
    HERE, HomeCommand::Experiments(ExperimentCommand::Check), [c('c')], 1, "check", "Check hosts and configuration without launching your program", no_experiment;
    HERE, HomeCommand::Experiments(ExperimentCommand::Edit), [c('e')], 1, "edit", "Edit the file ($VISUAL, $EDITOR)", no_edit;
];

fn no_edit(home: &Home, view: &HomeView) -> Option<&'static str> {
    if view.read_only { Some(READ_ONLY) } else { no_experiment(home, view) }
}

impl ExperimentsPage {
    /// Runs a command of this page.
    pub(in crate::home) fn perform(&self, command: ExperimentCommand) -> Vec<HomeRequest> {
        let Some(path) = self.list.selected.clone() else { return Vec::new() };
        vec![HomeRequest::Do(match command {
            ExperimentCommand::Check => HomeAction::in_background(format!("check {path}"), &["check", &path]),
            ExperimentCommand::Edit => HomeAction::Edit(path),
        })]
    }

    /// Opens the launch form of the selected experiment, or of the first one.
    pub(in crate::home) fn launch(&self, home: &Home) -> Vec<HomeRequest> {
        let first = home.experiments.first().map(|one| one.path.clone());
        let Some(path) = self.list.selected.clone().or(first) else { return Vec::new() };
        let form = LaunchForm::new(path.clone(), String::new());
        vec![
            HomeRequest::Open(form.into()),
            HomeRequest::Do(HomeAction::Preview { path, typed: String::new() }),
        ]
    }

    /// Requests the plan of the selected experiment, unless it is known.
    pub(in crate::home) fn preview(&self, home: &Home) -> Option<HomeAction> {
        let path = self.list.selected.clone()?;
        let is_cached =
            home.preview.as_ref().is_some_and(|preview| preview.path == path && preview.typed.is_empty());
        (!is_cached).then(|| HomeAction::Preview { path, typed: String::new() })
    }
}

impl PageState for ExperimentsPage {
    fn position(&self) -> &ListPosition {
        &self.list
    }

    fn position_mut(&mut self) -> &mut ListPosition {
        &mut self.list
    }

    fn names(&self, home: &Home) -> Vec<String> {
        home.experiments.iter().map(|one| one.path.clone()).collect()
    }

    /// The upper half, above the plan.
    fn list_area(&self, _: &Home, page: Rect) -> Rect {
        Rect { y: page.y + 1, height: (page.height / 2).saturating_sub(1), ..page }
    }

    fn open_command(&self) -> Option<HomeCommand> {
        Some(HomeCommand::Launch)
    }

    fn draw(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect) {
        let list = self.list_area(home, page);
        if home.experiments.is_empty() {
            let area = Rect { x: page.x + 2, width: page.width.saturating_sub(4), ..page };
            let lines = [
                ("no experiment in configs/ or in this directory".to_owned(), Role::Strong),
                ("`rankdeck init SCRIPT` writes one".to_owned(), Role::Dim),
            ];
            cx.paragraphs(buf, area, &lines);
            return;
        }
        let widest = |of: fn(&ExperimentFile) -> &str, max: usize| {
            home.experiments.iter().map(|one| text::width(of(one))).max().unwrap_or(0).clamp(8, max)
        };
        let (file, name) = (widest(|one| &one.path, 40), widest(|one| &one.name, 24));
        let head =
            format!("  {} {} {} WHAT", cx.left("FILE", file), cx.left("NAME", name), cx.right("STEPS", 12));
        put(buf, page, 0, Line::from(cx.s(head, Role::Dim)));
        for (row, one) in home.experiments.iter().skip(self.list.top).take(list.height.into()).enumerate() {
            let selected = self.list.is_selected(&one.path);
            let target = if one.total_steps > 0 { words::count(one.total_steps) } else { text::NONE.into() };
            let mut spans = vec![
                cx.cursor(selected, false),
                cx.s(cx.left(&one.path, file), if selected { Role::Accent } else { Role::Text }),
                Span::raw(" "),
                cx.s(cx.left(&one.name, name), Role::Text),
                cx.s(format!(" {} ", cx.right(&target, 12)), Role::Text),
            ];
            let room = usize::from(list.width).saturating_sub(width(&spans));
            spans.push(match &one.error {
                Some(error) => cx.s(cx.cut(error, room), Role::Bad),
                None => cx.s(cx.cut(&one.what, room), Role::Dim),
            });
            draw_item(cx, buf, list, row, Line::from(spans), &one.path, selected);
        }
        let below = Rect { y: list.bottom(), height: page.bottom().saturating_sub(list.bottom()), ..page };
        draw_plan(cx, buf, below, home, self.list.selected.as_deref().unwrap_or_default());
    }
}
