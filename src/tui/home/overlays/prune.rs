//! Asks how old runs must be to be removed.

use crate::home::model::Home;
use crate::home::{Cx, DrawCtx, Handled, HomeAction, HomeRequest, HomeUi, HomeView};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::input::TextInput;
use rankdeck_kit::{Component, Role, put};
use ratatui::buffer::Buffer;
use ratatui::text::Line;

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
