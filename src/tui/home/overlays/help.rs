//! The help overlay: key bindings of the current page; typing filters, Enter runs.

use crate::home::model::Home;
use crate::home::pages::Binding;
use crate::home::{Cx, DrawCtx, Handled, HomeRequest, HomeTarget, HomeUi, HomeView, KEYS};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::help::{self, HelpEntry, HelpPage};
use rankdeck_kit::input::TextInput;
use rankdeck_kit::keys::{Keymap, name};
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Glyphs, Role, Target};
use ratatui::buffer::Buffer;

/// The help page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HomeHelp {
    filter: TextInput,
    /// Index of the selected binding among those that match.
    selected: usize,
}

impl HomeHelp {
    /// Returns the bindings of the page that match the filter.
    fn bindings(&self, view: &HomeView, glyphs: Glyphs) -> Vec<&'static Binding> {
        let mut all = KEYS.help(&self.filter.line, view.page, &Keymap::default(), glyphs);
        all.retain(|binding| binding.applies_in(view.page));
        all
    }

    fn run(&self, home: &Home, cx: &mut Cx<'_>) -> Handled {
        let bindings = self.bindings(cx.state, Glyphs::Ascii);
        let Some(binding) = bindings.get(self.selected) else { return Handled::Done };
        match (binding.disabled)(home, cx.state) {
            Some(reason) => {
                cx.state.toast(reason, Role::Warn, cx.now);
                Handled::Close
            }
            None => Handled::CloseWith(vec![HomeRequest::Command(binding.command)]),
        }
    }
}

impl Component<HomeUi> for HomeHelp {
    fn on_key(&mut self, home: &Home, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        if key.code == KeyCode::Enter {
            return self.run(home, cx);
        }
        let len = self.bindings(cx.state, Glyphs::Ascii).len();
        match Move::of_key(key, false) {
            Some(by) => self.selected = by.apply(self.selected, len),
            None if self.filter.on_key(key) => self.selected = 0,
            None => {}
        }
        Handled::Done
    }

    fn on_click(&mut self, home: &Home, target: &Target<HomeTarget>, cx: &mut Cx<'_>) -> Handled {
        match target {
            Target::Row(row) if *row == self.selected => self.run(home, cx),
            Target::Row(row) => {
                self.selected = *row;
                Handled::Done
            }
            _ => Handled::Ignored,
        }
    }

    fn on_wheel(&mut self, home: &Home, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, home, rows, cx)
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.filter.line)
    }

    fn draw(&self, home: &Home, view: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let entry = |binding: &'static Binding| {
            let keys: Vec<String> = binding.keys.iter().map(|key| name(*key, cx.glyphs())).collect();
            HelpEntry {
                scope: binding.scope.first().map_or("everywhere", |_| view.page.name()),
                keys: keys.join(" "),
                long: binding.long,
                disabled: (binding.disabled)(home, view),
            }
        };
        let entries: Vec<HelpEntry> = self.bindings(view, cx.glyphs()).into_iter().map(entry).collect();
        let page = HelpPage {
            filter: &self.filter.line,
            selected: self.selected,
            entries: &entries,
            terms: &[],
            legend: &|_| Vec::new(),
        };
        help::draw(cx, buf, &page);
    }

    fn hint(&self, _: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        "type to filter   enter runs   esc closes".into()
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}
