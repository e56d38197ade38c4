//! A question of a link: an unknown host key, a passphrase, a password. The input is never shown.

use crate::run::action::{Request, ScreenAction};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_kit::keys::with_ctrl;
use rankdeck_kit::{Component, Keep, Role, input, put_lines, text};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use std::fmt;

/// Answers about a host key.
const NO: &str = "no, reject";
const YES: &str = "yes, trust it";

/// A question of a link that is being answered.
#[derive(Clone, PartialEq)]
pub struct LinkPrompt {
    /// Which host.
    pub node: NodeRank,
    /// Its question.
    pub prompt: Prompt,
    /// What was typed; shown masked.
    pub input: String,
    /// For host keys: `yes` is selected. The default is "no".
    pub yes: bool,
}

impl fmt::Debug for LinkPrompt {
    // By hand: the input may be a passphrase.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkPrompt({}, {:?})", self.node, self.prompt)
    }
}

/// The open question of a host.
fn open_prompt(model: &Model, node: NodeRank) -> Option<&Prompt> {
    model.hosts.get(node.index()).and_then(|host| host.prompt.as_ref())
}

impl LinkPrompt {
    /// The answer is yes or no.
    fn is_choice(&self) -> bool {
        matches!(self.prompt, Prompt::UnknownHostKey { .. } | Prompt::CopyCheckpoint { .. })
    }

    /// What no and yes do.
    fn labels(&self) -> (&'static str, &'static str) {
        match self.prompt {
            Prompt::CopyCheckpoint { .. } => ("no, do not start", "yes, copy it"),
            _ => (NO, YES),
        }
    }

    /// The next open question that the user has not answered yet; forgets those that were withdrawn.
    pub fn next(model: &Model, answered: &mut Vec<(NodeRank, Prompt)>) -> Option<LinkPrompt> {
        answered.retain(|(node, prompt)| open_prompt(model, *node) == Some(prompt));
        model.hosts.iter().find_map(|host| {
            let (node, prompt) = (host.node_rank, host.prompt.clone()?);
            let is_answered = answered.iter().any(|(of, old)| *of == node && *old == prompt);
            (!is_answered).then(|| LinkPrompt { node, prompt, input: String::new(), yes: false })
        })
    }
}

impl Component<RunScreen> for LinkPrompt {
    fn on_key(&mut self, _: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        let answer = match (self.is_choice(), key.code) {
            (_, KeyCode::Esc) => None,
            (true, KeyCode::Char('y' | 'Y')) if !with_ctrl(key) => Some("yes".to_string()),
            (true, KeyCode::Char('n' | 'N')) if !with_ctrl(key) => None,
            (true, KeyCode::Enter) => self.yes.then(|| "yes".to_string()),
            (false, KeyCode::Enter) => Some(std::mem::take(&mut self.input)),
            (false, _) => {
                input::edit(&mut self.input, key);
                return Handled::Done;
            }
            (
                true,
                KeyCode::Left
                | KeyCode::Right
                | KeyCode::Up
                | KeyCode::Down
                | KeyCode::Tab
                | KeyCode::BackTab,
            ) => {
                self.yes = !self.yes;
                return Handled::Done;
            }
            (true, _) => return Handled::Done,
        };
        if answer.is_none() && !matches!(self.prompt, Prompt::CopyCheckpoint { .. }) {
            cx.state.toast("host key rejected; host not used", Role::Warn, cx.now);
        }
        let node = self.node;
        cx.state.answered.retain(|(other, _)| *other != node);
        cx.state.answered.push((node, self.prompt.clone()));
        let event = Event::PromptAnswered { node, answer };
        Handled::CloseWith(vec![Request::Do(ScreenAction::Send(event))])
    }

    fn input(&mut self) -> Option<&mut String> {
        if self.is_choice() { None } else { Some(&mut self.input) }
    }

    fn settle(&mut self, model: &Model, _: &ViewState, _: Rect) -> Keep {
        (open_prompt(model, self.node) == Some(&self.prompt)).into()
    }

    fn draw(&self, model: &Model, _: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let host = model.hosts.get(self.node.index()).map_or("?", |host| host.name.as_str());
        let cells = usize::from(cx.screen.width.saturating_sub(8)).min(70);
        let fact = |label: &str, value: &str| {
            Line::from(vec![
                cx.s(format!("{label:<12}"), Role::Dim),
                cx.s(cx.cut(&words::clean(value), cells.saturating_sub(12)), Role::Strong),
            ])
        };
        let wrapped = |text: &str| -> Vec<Line<'static>> {
            let lines = text::wrap(&words::clean(text), cells).into_iter();
            lines.map(|line| Line::from(cx.s(line, Role::Text))).collect()
        };
        let (title, mut lines) = match &self.prompt {
            Prompt::UnknownHostKey { host: address, key_type, fingerprint } => {
                let mut lines =
                    wrapped("Unknown host key. Verify the fingerprint with the host's administrator.");
                lines.push(Line::default());
                lines.push(fact("host", address));
                lines.push(fact("key type", key_type));
                lines.push(fact("fingerprint", fingerprint));
                lines.push(Line::default());
                (format!("{host}: trust this host key?"), lines)
            }
            Prompt::CopyCheckpoint { path, bytes, to } => {
                let mut lines = wrapped("The next generation resumes from files that these hosts lack.");
                lines.push(Line::default());
                lines.push(fact("checkpoint", path));
                lines.push(fact("to copy", &words::bytes(*bytes)));
                lines.push(fact("to", &to.join(", ")));
                lines.push(Line::default());
                ("copy checkpoint?".to_owned(), lines)
            }
            Prompt::Passphrase { key } => {
                let mut lines = wrapped("This private key is encrypted.");
                lines.push(fact("key", key));
                lines.push(Line::default());
                (format!("{host}: passphrase"), lines)
            }
            Prompt::Password { account, text, .. } => {
                let mut lines = vec![fact("account", account)];
                lines.extend(wrapped(text));
                lines.push(Line::default());
                (format!("{}: password", words::clean(&self.prompt.asker(host))), lines)
            }
        };
        lines.push(if self.is_choice() {
            answers(cx, self.labels(), self.yes)
        } else {
            masked(cx, &self.input, cells)
        });
        let keys = if self.is_choice() { "" } else { "enter submits, esc cancels" };
        let size = (cells as u16, lines.len() as u16);
        let inner = cx.popup(buf, size, Role::Warn, &title, keys);
        // The answer stays visible on a screen that is too low for the whole question.
        let skip = lines.len().saturating_sub(usize::from(inner.height));
        let y = inner.y + (lines.len() - skip).saturating_sub(1) as u16;
        if self.is_choice() {
            let mut x = inner.right();
            let (no, yes) = self.labels();
            for (key, label) in [('y', yes), ('n', no)] {
                let wide = label.len() as u16 + 4;
                x = x.saturating_sub(wide);
                let place = Rect { x, y, width: wide, height: 1 }.intersection(inner);
                cx.target(place, Target::Key(KeyEvent::from(KeyCode::Char(key))));
                x = x.saturating_sub(2);
            }
        }
        put_lines(buf, inner, lines.into_iter().skip(skip));
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "enter submits   esc cancels   ctrl-c quits".into()
    }
}

fn answers(cx: &DrawCtx<'_>, (no, yes): (&'static str, &'static str), is_yes: bool) -> Line<'static> {
    let option = |key: &str, label: &str, selected: bool| {
        if selected {
            Span::styled(format!("[{key} {label}]"), cx.theme.chosen)
        } else {
            cx.s(format!(" {key} {label} "), Role::Text)
        }
    };
    Line::from(vec![option("n", no, !is_yes), Span::raw("  "), option("y", yes, is_yes)]).right_aligned()
}

/// A dot per character, as many as fit.
fn masked(cx: &DrawCtx<'_>, input: &str, cells: usize) -> Line<'static> {
    let typed = input.chars().count().min(cells.saturating_sub(4));
    let dots = cx.glyphs().pick("•", "*").repeat(typed);
    Line::from(vec![cx.s("> ", Role::Accent), cx.s(dots, Role::Strong), cx.caret()])
}
