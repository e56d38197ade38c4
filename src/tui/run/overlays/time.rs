//! A time that is typed: all pages then show the run at that time.

use crate::run::action::{Request, ScreenAction};
use crate::run::time::{TimeMove, parse, time_of_day};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_kit::{Component, Role, input, put};
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// What is typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeInput {
    /// So far.
    pub line: String,
}

impl Component<RunScreen> for TimeInput {
    fn on_key(&mut self, _: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        match key.code {
            KeyCode::Esc => return Handled::Close,
            KeyCode::Enter => {
                let Some(cursor) = &cx.state.moment.cursor else { return Handled::Close };
                match parse(&self.line, cursor, cx.state.style.utc_offset_s) {
                    Ok(to) => {
                        let to = ScreenAction::Time(TimeMove::To(to));
                        return Handled::CloseWith(vec![Request::Do(to)]);
                    }
                    Err(why) => cx.state.toast(why, Role::Warn, cx.now),
                }
            }
            _ => {
                input::edit(&mut self.line, key);
            }
        }
        Handled::Done
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.line)
    }

    fn draw(&self, _: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let inner = cx.popup(buf, (58, 3), Role::Accent, "go to a time", "enter goes, esc closes");
        let typed = vec![cx.s("> ", Role::Accent), cx.s(self.line.clone(), Role::Strong), cx.caret()];
        put(buf, inner, 0, Line::from(typed));
        let examples = "03:12   03:12:44   -5m   +30s   -1h30m   start   end";
        put(buf, inner, 1, Line::from(cx.s(examples, Role::Dim)));
        if let Some(cursor) = &view.moment.cursor {
            let clock = |at| time_of_day(cursor.wall_time(at), view.style.utc_offset_s);
            let range = format!("recording: {} to {}", clock(cursor.start), clock(cursor.end));
            put(buf, inner, 2, Line::from(cx.s(range, Role::Dim)));
        }
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "type a time   enter goes there   esc closes".into()
    }
}
