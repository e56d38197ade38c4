//! STUB of the screen, so that the shell compiles on its own; the `ui` part replaces this whole file.
#![allow(missing_docs)]

use crate::core::ids::{NodeRank, Timestamp};
use crate::core::model::Model;
use crate::proto::message::StopMode;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Stop(StopMode),
    Restart { from: Option<String> },
    Detach,
    Quit,
    Answer { node: NodeRank, answer: Option<String> },
    Suspend,
    Redraw,
    Copy(String),
    SaveScreen,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Good,
    Warn,
}

#[derive(Debug, Clone, Default)]
pub struct ViewState {
    help: bool,
}

impl ViewState {
    pub fn new() -> ViewState {
        ViewState::default()
    }
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
    pub fn expire(&mut self, _now: Timestamp) -> bool {
        false
    }
    pub fn toast(&mut self, _text: impl Into<String>, _role: Role, _now: Timestamp) {}
}

#[derive(Debug, Clone, Default)]
pub struct Theme;

impl Theme {
    pub fn detect(_no_color: bool, _utf8: bool, _truecolor: bool) -> Theme {
        Theme
    }
}

pub fn layout(_model: &Model, _view: &mut ViewState, _area: Rect) {}

pub fn view(model: &Model, view: &ViewState, _theme: &Theme, _now: Timestamp, frame: &mut Frame) {
    let area = frame.area();
    let text = format!(
        "rankdeck {} {:?} {}x{} step {}",
        model.run.id.as_ref().map_or("", |id| &id.0),
        model.run.state,
        area.width,
        area.height,
        model.progress.as_ref().map_or(0, |p| p.totals.env_step)
    );
    frame.render_widget(Line::raw(text), area);
    if view.help {
        frame.render_widget(Line::raw("help"), Rect { y: area.height / 2, height: 1, ..area });
    }
}

pub fn on_key(_model: &Model, view: &mut ViewState, key: KeyEvent, _now: Timestamp) -> Vec<Action> {
    match key.code {
        KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => vec![Action::Suspend],
        KeyCode::Char('q') => vec![Action::Quit],
        KeyCode::Char('?') => {
            view.help = !view.help;
            Vec::new()
        }
        _ => Vec::new(),
    }
}

pub fn on_paste(_model: &Model, _view: &mut ViewState, _text: &str, _now: Timestamp) -> Vec<Action> {
    Vec::new()
}

pub fn on_mouse(_model: &Model, _view: &mut ViewState, _mouse: MouseEvent, _now: Timestamp) -> Vec<Action> {
    Vec::new()
}
