//! The launch form: config overrides, the plan, and the result of preflight checks.

use super::output;
use crate::home::model::Home;
use crate::home::{Cx, DrawCtx, Handled, HomeAction, HomeRequest, HomeUi, HomeView, READ_ONLY};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::frame::titled_rule;
use rankdeck_kit::input::TextInput;
use rankdeck_kit::{Component, Role, put};
use rankdeck_types::hidden;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// The launch form of an experiment file.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchForm {
    path: String,
    /// Overrides: `learn.gamma=0.98 run.total_steps=1e6`.
    input: TextInput,
}

impl LaunchForm {
    /// Opens with these overrides.
    pub fn new(path: String, typed: String) -> LaunchForm {
        LaunchForm { path, input: TextInput::new(typed) }
    }

    fn overrides(&self) -> impl Iterator<Item = String> + '_ {
        self.input.line.split_whitespace().flat_map(|set| ["--set".to_owned(), set.to_owned()])
    }

    fn command(&self, verb: &str) -> Vec<String> {
        [verb.to_owned(), self.path.clone()].into_iter().chain(self.overrides()).collect()
    }

    fn check_title(&self) -> String {
        format!("check {}", self.path)
    }
}

impl Component<HomeUi> for LaunchForm {
    fn on_key(&mut self, home: &Home, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        match key.code {
            KeyCode::Enter if cx.state.read_only => {
                cx.state.toast(READ_ONLY, Role::Warn, cx.now);
                Handled::Close
            }
            KeyCode::Enter => {
                let excluded = cx.state.excluded(home);
                let excluded = excluded.flat_map(|name| ["--exclude".to_owned(), name.to_owned()]);
                let args = self.command("run").into_iter().chain(excluded).collect();
                Handled::CloseWith(vec![HomeRequest::Do(HomeAction::OnTerminal { args, pause: false })])
            }
            KeyCode::Tab => {
                let (title, args) = (self.check_title(), self.command("check"));
                Handled::Actions(vec![HomeRequest::Do(HomeAction::InBackground { title, args })])
            }
            _ => {
                self.input.on_key(key);
                let (path, typed) = (self.path.clone(), self.input.line.clone());
                Handled::Actions(vec![HomeRequest::Do(HomeAction::Preview { path, typed })])
            }
        }
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.input.line)
    }

    fn draw(&self, home: &Home, view: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let size = (cx.screen.width.saturating_sub(8), cx.screen.height.saturating_sub(4));
        let inner = cx.popup(buf, size, Role::Accent, &format!("launch {}", self.path), "");
        let example = "such as learn.gamma=0.98 run.total_steps=200000 run.note=...";
        put(buf, inner, 0, Line::from(cx.s(example, Role::Dim)));
        // A relaunch restores the secrets of its overrides.
        let shown = TextInput::new(hidden::typed(&self.input.line));
        put(buf, inner, 1, Line::from(shown.spans(cx, "> ", usize::from(inner.width))));
        let excluded: Vec<&str> = view.excluded(home).collect();
        let mut from = 2;
        if !excluded.is_empty() {
            let text = format!("on the chosen hosts; excluded: {}", excluded.join(", "));
            put(buf, inner, 2, Line::from(cx.s(cx.cut(&text, inner.width.into()), Role::Warn)));
            from = 3;
        }
        let below = Rect { y: inner.y + from, height: inner.height.saturating_sub(from), ..inner };
        let title = self.check_title();
        let checked = home.last_output.as_ref().filter(|output| output.title == title);
        let is_checking = home.jobs.iter().any(|(_, job)| *job == title);
        let upper = if checked.is_some() || is_checking { below.height / 2 } else { below.height };
        draw_plan(cx, buf, Rect { height: upper, ..below }, home, &self.path);
        if upper < below.height {
            let lower = Rect { y: below.y + upper, height: below.height - upper, ..below };
            let title = if is_checking { "check: connecting to hosts ..." } else { "check" };
            titled_rule(cx.theme, buf, lower, title);
            if let Some(check) = checked.filter(|_| !is_checking) {
                let inside = Rect { y: lower.y + 1, height: lower.height.saturating_sub(1), ..lower };
                output::draw_lines(cx, buf, inside, &check.lines);
            }
        }
    }

    fn hint(&self, _: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        "KEY=VALUE ...   enter launches   tab checks hosts   esc cancels".into()
    }
}

/// Draws the launch plan of a file below a rule.
pub(in crate::home) fn draw_plan(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, home: &Home, path: &str) {
    if area.height < 2 {
        return;
    }
    titled_rule(cx.theme, buf, area, "plan");
    let inside =
        Rect { x: area.x + 2, y: area.y + 1, width: area.width.saturating_sub(3), height: area.height - 1 };
    let lines: Vec<(String, Role)> = match home.preview.as_ref().filter(|preview| preview.path == path) {
        Some(preview) => {
            let first = if preview.fits { Role::Text } else { Role::Bad };
            let role = |at: usize| if at == 0 { first } else { Role::Text };
            preview.lines.iter().enumerate().map(|(at, line)| (line.clone(), role(at))).collect()
        }
        None => vec![("...".into(), Role::Dim)],
    };
    cx.paragraphs(buf, inside, &lines);
}
