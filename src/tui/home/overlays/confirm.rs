//! Asks before an action that cannot be undone: for confirmation, or for the age of runs to remove.

use crate::home::model::Home;
use crate::home::{Cx, DrawCtx, Handled, HomeAction, HomeRequest, HomeUi, HomeView};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::confirm::{Choice, Confirm};
use rankdeck_kit::input::TextInput;
use rankdeck_kit::{Component, Role, put};
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// A question with the choices cancel and one action.
#[derive(Debug, Clone, PartialEq)]
pub struct Confirmation(Confirm<(), HomeAction>);

impl Confirmation {
    /// Asks with these paragraphs; `y` runs the action, whose label is `yes`.
    pub fn new(title: &str, text: Vec<String>, yes: &str, action: HomeAction) -> Confirmation {
        let choice = |key, label: &str, action| Choice { key, label: label.to_owned(), action };
        let choices = vec![choice('n', "cancel", None), choice('y', yes, Some(action))];
        let text = text.iter().map(|paragraph| clean(paragraph)).collect();
        Confirmation(Confirm { kind: (), title: title.to_owned(), text, choices, selected: 0 })
    }

    /// Its paragraphs.
    #[cfg(test)]
    pub fn text(&self) -> &[String] {
        &self.0.text
    }
}

impl Component<HomeUi> for Confirmation {
    fn on_key(&mut self, _: &Home, key: KeyEvent, _: &mut Cx<'_>) -> Handled {
        if key.code == KeyCode::Char('q') {
            return Handled::Close;
        }
        match self.0.on_key(key).map(|choice| self.0.action(choice)) {
            Some(Some(action)) => Handled::CloseWith(vec![HomeRequest::Do(action)]),
            Some(None) => Handled::Close,
            None => Handled::Done,
        }
    }

    fn draw(&self, _: &Home, _: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        self.0.draw(cx, buf, Role::Warn);
    }

    fn hint(&self, _: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        let yes = self.0.choices.last().map_or("", |choice| choice.label.as_str());
        format!("y {yes}   n or esc cancels")
    }
}

/// The minimum age of runs to remove.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PruneForm {
    age: TextInput,
}

impl Component<HomeUi> for PruneForm {
    fn on_key(&mut self, _: &Home, key: KeyEvent, _: &mut Cx<'_>) -> Handled {
        if key.code != KeyCode::Enter {
            self.age.on_key(key);
            return Handled::Done;
        }
        let typed: Vec<&str> = self.age.line.split_whitespace().collect();
        match typed.is_empty() {
            true => Handled::Close,
            false => {
                let args: Vec<&str> = ["prune", "--older-than"].into_iter().chain(typed).collect();
                Handled::CloseWith(vec![HomeRequest::Do(HomeAction::on_terminal(&args, true))])
            }
        }
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.age.line)
    }

    fn draw(&self, _: &Home, _: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let inner = cx.popup(buf, (70, 3), Role::Accent, "remove finished runs older than", "");
        put(buf, inner, 0, Line::from(self.age.spans(cx, "> ", usize::from(inner.width))));
        let hint = "such as 30d or 12h; lists the runs and asks before it removes them";
        put(buf, inner, 2, Line::from(cx.s(hint, Role::Dim)));
    }

    fn hint(&self, _: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        "enter continues   esc cancels".into()
    }
}
