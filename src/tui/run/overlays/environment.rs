//! The environment variables of a process, without secrets. They are only displayed (REACH-2).

use crate::run::action::{Request, ScreenAction};
use crate::run::card;
use crate::run::overlays::on_card_key;
use crate::run::processes::HostProcess;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_kit::{Component, Keep, Role, text};
use rankdeck_proto::process::{Environment, ProcessAction, ProcessName};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// The environment of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentCard {
    /// Its host.
    pub node: NodeRank,
    /// The process.
    pub process: ProcessName,
    /// First line shown.
    pub top: usize,
}

impl EnvironmentCard {
    /// Opens the card of a process, and requests its environment.
    ///
    /// # Errors
    /// The process belongs to another user.
    pub fn open(view: &mut ViewState, process: &HostProcess) -> Result<Vec<Request>, String> {
        process.check_own()?;
        let HostProcess { node, name: process, .. } = *process;
        view.open(EnvironmentCard { node, process, top: 0 });
        let action = ProcessAction::Environment;
        let event = Event::ProcessActionRequested { node, process, action };
        Ok(vec![Request::Do(ScreenAction::Send(event))])
    }
}

impl Component<RunScreen> for EnvironmentCard {
    fn on_key(&mut self, _: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        on_card_key(key, &mut self.top, None, cx)
    }

    fn on_wheel(&mut self, _: &Model, rows: isize, _: &mut Cx<'_>) -> Handled {
        card::scroll(&mut self.top, rows as i64);
        Handled::Done
    }

    fn settle(&mut self, model: &Model, _: &ViewState, screen: Rect) -> Keep {
        // Keys that come before the reply count for it.
        if model.process_queries.environment(self.node, self.process).is_some() {
            let rows = lines(model, self.node, self.process, card::cells(screen, CELLS)).len();
            card::clamp(&mut self.top, rows, screen);
        }
        Keep::Yes
    }

    fn draw(&self, model: &Model, _: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let cells = card::cells(cx.screen, CELLS);
        let host = model.hosts.get(self.node.index()).map_or("", |host| host.name.as_str());
        let lines = lines(model, self.node, self.process, cells).into_iter().map(|(line, named, role)| {
            let (name, value) = line.split_at(named);
            Line::from(vec![cx.s(name.to_owned(), Role::Accent), cx.s(value.to_owned(), role)])
        });
        let title = format!("environment variables of {} on {host} at its start", self.process);
        card::draw(cx, buf, Role::Text, &title, lines.collect(), (self.top, cells));
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "j/k scroll   esc closes".into()
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// Most cells of the card.
const CELLS: usize = 124;
/// Shown instead of the value of a secret.
const HIDDEN: &str = "(hidden)";

/// Lines, each with the length of the name at its start and a role.
fn lines(model: &Model, node: NodeRank, process: ProcessName, cells: usize) -> Vec<(String, usize, Role)> {
    match model.process_queries.environment(node, process) {
        None => vec![("waiting for the agent ...".into(), 0, Role::Dim)],
        Some(Err(error)) => {
            let all = text::wrap(&words::clean(&error.with_hint()), cells);
            all.into_iter().map(|line| (line, 0, Role::Bad)).collect()
        }
        Some(Ok(found)) => found_lines(found, cells),
    }
}

fn found_lines(found: &Environment, cells: usize) -> Vec<(String, usize, Role)> {
    let mut lines = Vec::new();
    for variable in &found.variables {
        let name = words::clean(&variable.name);
        let (value, role) = match &variable.value {
            Some(value) => (words::clean(value), Role::Text),
            None => (HIDDEN.to_owned(), Role::Dim),
        };
        let first = format!("{name}={value}");
        for (i, part) in text::wrap(&first, cells.saturating_sub(2)).into_iter().enumerate() {
            let named = if i == 0 { name.len().min(part.len()) } else { 0 };
            let named = if part.is_char_boundary(named) { named } else { 0 };
            lines.push((if i == 0 { part } else { format!("  {part}") }, named, role));
        }
    }
    if found.left_out > 0 {
        let more = words::plural(found.left_out as usize, "more variable");
        lines.push((format!("{more} not shown"), 0, Role::Warn));
    }
    if lines.is_empty() {
        lines.push(("no environment variables".into(), 0, Role::Dim));
    }
    lines
}
