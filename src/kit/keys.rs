//! Keys as data: dispatch, footer, help and the user's own keys are made from one table per screen.
//!
//! Invariants:
//! - UI-4: every command has at least one key, and a reason when it is disabled.
//! - UI-10: no key has two meanings in the same pane.

use crate::overlay::Screen;
use crate::text;
use crate::theme::Glyphs;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

pub use crate::input::with_ctrl;

/// A key without modifiers.
pub const fn k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// A character key.
pub const fn c(key: char) -> KeyEvent {
    k(KeyCode::Char(key))
}

/// A character key with control.
pub const fn ctrl(key: char) -> KeyEvent {
    ctrl_k(KeyCode::Char(key))
}

/// A key with control.
pub const fn ctrl_k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::CONTROL)
}

/// Normalizes a key as tables have it: press or repeat, and shift only where the terminal reports it by
/// nothing else.
pub fn plain(key: KeyEvent) -> KeyEvent {
    let code = match key.code {
        KeyCode::Tab if key.modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
        code => code,
    };
    KeyEvent::new(code, key.modifiers & KeyModifiers::CONTROL)
}

/// A key as people write it: `ctrl-x`, `space`, `↑`.
pub fn name(key: KeyEvent, glyphs: Glyphs) -> String {
    let name = match key.code {
        KeyCode::Char(' ') => "space".into(),
        KeyCode::Char(c) => c.to_string(),
        KeyCode::Enter => "enter".into(),
        KeyCode::Esc => "esc".into(),
        KeyCode::Tab => "tab".into(),
        KeyCode::BackTab => "shift-tab".into(),
        KeyCode::Up => glyphs.pick("↑", "up").into(),
        KeyCode::Down => glyphs.pick("↓", "down").into(),
        KeyCode::Left => glyphs.pick("←", "left").into(),
        KeyCode::Right => glyphs.pick("→", "right").into(),
        KeyCode::Home => "home".into(),
        KeyCode::End => "end".into(),
        KeyCode::PageUp => "pgup".into(),
        KeyCode::PageDown => "pgdn".into(),
        KeyCode::F(number) => format!("f{number}"),
        other => format!("{other:?}").to_lowercase(),
    };
    if with_ctrl(key) { format!("ctrl-{name}") } else { name }
}

/// Parses a key as people write it; `None` for one that cannot be bound, such as ctrl-c.
pub fn parse(word: &str) -> Option<KeyEvent> {
    let (control, bare) = match word.strip_prefix("ctrl-") {
        Some(bare) if !bare.is_empty() => (KeyModifiers::CONTROL, bare),
        _ => (KeyModifiers::NONE, word),
    };
    let code = match bare {
        "space" => KeyCode::Char(' '),
        "enter" => KeyCode::Enter,
        "esc" => KeyCode::Esc,
        "tab" => KeyCode::Tab,
        "shift-tab" => KeyCode::BackTab,
        "up" => KeyCode::Up,
        "down" => KeyCode::Down,
        "left" => KeyCode::Left,
        "right" => KeyCode::Right,
        "home" => KeyCode::Home,
        "end" => KeyCode::End,
        "pgup" => KeyCode::PageUp,
        "pgdn" => KeyCode::PageDown,
        "backspace" => KeyCode::Backspace,
        "delete" => KeyCode::Delete,
        "insert" => KeyCode::Insert,
        _ => match (bare.chars().count(), bare.strip_prefix('f').and_then(|n| n.parse().ok())) {
            (1, _) => KeyCode::Char(bare.chars().next()?),
            (_, Some(n @ 1..=12)) => KeyCode::F(n),
            _ => return None,
        },
    };
    let key = plain(KeyEvent::new(code, control));
    // Terminals report some of them as other keys.
    (!control.contains(KeyModifiers::CONTROL) || !matches!(key.code, KeyCode::Char('c' | 'i' | 'm' | '[')))
        .then_some(key)
}

/// One line of a table.
pub struct Binding<S: Screen> {
    /// What it does.
    pub command: S::Command,
    /// Keys; the first is the one that the footer shows.
    pub keys: &'static [KeyEvent],
    /// The panes where it applies; empty: everywhere.
    pub scope: &'static [S::Pane],
    /// Its label in the footer; empty: it has none.
    pub short: &'static str,
    /// Its line on the help page.
    pub long: &'static str,
    /// Rank in the footer, 1 first; 0: not in the footer.
    pub footer: u8,
    /// Returns why it is disabled, or `None` if it is enabled.
    pub disabled: fn(&S::Model, &S::State) -> Option<&'static str>,
}

impl<S: Screen> Binding<S> {
    /// It applies in this pane.
    pub fn applies_in(&self, pane: S::Pane) -> bool {
        self.scope.is_empty() || self.scope.contains(&pane)
    }

    /// Heading of its scope on the help page.
    pub fn scope_name(&self) -> &'static str {
        self.scope.first().map_or("everywhere", |pane| S::pane_name(*pane))
    }

    fn overlaps(&self, other: &Binding<S>) -> bool {
        match (self.scope.is_empty(), other.scope.is_empty()) {
            (true, true) => true,
            (false, false) => self.scope.iter().any(|pane| other.scope.contains(pane)),
            _ => false,
        }
    }
}

/// Makes a table: `scope, command, [keys], footer rank, short, long, disabled;` per line.
#[macro_export]
macro_rules! bindings {
    ($($scope:expr, $command:expr, [$($key:expr),+ $(,)?], $footer:expr, $short:expr, $long:expr, $disabled:expr;)*) => {
        &[$($crate::keys::Binding {
            command: $command, keys: &[$($key),+], scope: $scope, short: $short, long: $long,
            footer: $footer, disabled: $disabled,
        }),*]
    };
}

/// The keys of a screen: the parts are those of its pages.
pub struct KeyTable<S: Screen> {
    /// Each page's bindings.
    pub parts: &'static [&'static [Binding<S>]],
    /// Names in the user's configuration that have changed: old, new.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Commands that no pane may hide, such as quit and stop.
    pub reserved: fn(&S::Command) -> bool,
}

/// A configuration line that cannot be applied: its index, what is wrong, a hint.
pub type WrongLine = (usize, String, String);

impl<S: Screen> KeyTable<S> {
    /// All bindings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'static Binding<S>> + use<S> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// The keys of a binding, the user's own if there are any; the first is the one that the footer shows.
    pub fn keys<'a>(&self, binding: &'static Binding<S>, keymap: &'a Keymap) -> &'a [KeyEvent] {
        if keymap.own.is_empty() {
            return binding.keys;
        }
        let at = self.iter().position(|other| std::ptr::eq(other, binding));
        let own = keymap.own.iter().find(|(index, _)| Some(*index) == at);
        own.map_or(binding.keys, |(_, keys)| keys)
    }

    /// The binding of a key in a pane; the pane's own come before those that apply everywhere.
    pub fn find(&self, key: KeyEvent, pane: S::Pane, keymap: &Keymap) -> Option<&'static Binding<S>> {
        let key = plain(key);
        let matching = |binding: &&'static Binding<S>| {
            binding.applies_in(pane) && self.keys(binding, keymap).contains(&key)
        };
        let own = self.iter().filter(matching).find(|binding| !binding.scope.is_empty());
        own.or_else(|| self.iter().find(matching))
    }

    /// The binding of a command in a pane.
    pub fn of_command(&self, command: S::Command, pane: S::Pane) -> Option<&'static Binding<S>> {
        self.iter().find(|binding| binding.applies_in(pane) && binding.command == command)
    }

    /// The enabled bindings with a footer rank, in footer order.
    pub fn footer(&self, model: &S::Model, state: &S::State, pane: S::Pane) -> Vec<&'static Binding<S>> {
        let mut list: Vec<_> = self
            .iter()
            .filter(|binding| binding.footer > 0 && binding.applies_in(pane))
            .filter(|binding| (binding.disabled)(model, state).is_none())
            .collect();
        list.sort_by_key(|binding| binding.footer);
        list
    }

    /// The bindings that fit into a footer of `cells` cells: first cell, key, binding.
    pub fn footer_items(
        &self,
        model: &S::Model,
        state: &S::State,
        (pane, keymap): (S::Pane, &Keymap),
        cells: usize,
        glyphs: Glyphs,
    ) -> Vec<(u16, String, &'static Binding<S>)> {
        let mut x = 1;
        let mut list = Vec::new();
        for binding in self.footer(model, state, pane) {
            let Some(key) = self.keys(binding, keymap).first() else { continue };
            let key = name(*key, glyphs);
            let wide = text::width(&key) + 1 + text::width(binding.short);
            if x + wide > cells {
                continue;
            }
            list.push((x as u16, key, binding));
            x += wide + 2;
        }
        list
    }

    /// The bindings that match what was typed on the help page: those of the pane first.
    pub fn help(
        &self,
        filter: &str,
        pane: S::Pane,
        keymap: &Keymap,
        glyphs: Glyphs,
    ) -> Vec<&'static Binding<S>> {
        let needle = filter.to_lowercase();
        let matching = |binding: &&'static Binding<S>| {
            binding.short.contains(&needle)
                || binding.long.to_lowercase().contains(&needle)
                || binding.scope_name().contains(&needle)
                || self.keys(binding, keymap).iter().any(|key| name(*key, glyphs).to_lowercase() == needle)
        };
        let place = |binding: &Binding<S>| match binding.scope.is_empty() {
            false if binding.applies_in(pane) => 0,
            true => 1,
            false => 2,
        };
        let mut list: Vec<_> = self.iter().filter(matching).collect();
        // Bindings that the typed word names come before those that only mention it.
        let unnamed = |binding: &Binding<S>| !needle.is_empty() && !binding.short.starts_with(&needle);
        list.sort_by_key(|binding| (unnamed(binding), place(binding)));
        list
    }

    /// The first key of a command, as people write it; with `pane`, of its binding in that pane.
    pub fn key_name(
        &self,
        command: S::Command,
        pane: Option<S::Pane>,
        keymap: &Keymap,
        glyphs: Glyphs,
    ) -> String {
        let found = self.iter().find(|binding| {
            binding.command == command && pane.is_none_or(|pane| binding.scope.contains(&pane))
        });
        let key = found.and_then(|binding| self.keys(binding, keymap).first());
        key.map_or(String::new(), |key| name(*key, glyphs))
    }

    /// Keys with two meanings in one pane (UI-10), and bindings without a key or text (UI-4). A pane may
    /// hide a key that applies everywhere.
    pub fn flaws(&self) -> Vec<String> {
        let all: Vec<_> = self.iter().collect();
        let mut flaws = Vec::new();
        for (i, a) in all.iter().enumerate() {
            if a.keys.is_empty() || a.long.is_empty() {
                flaws.push(format!("no key or text: {:?} {}", a.keys, a.short));
            }
            for b in all[i + 1..].iter().filter(|b| a.overlaps(b)) {
                for key in a.keys.iter().filter(|key| b.keys.contains(key)) {
                    flaws.push(format!("{} twice in {}", name(*key, Glyphs::Ascii), a.scope_name()));
                }
            }
        }
        flaws
    }

    /// Reads the user's own keys: lines of a name and keys with blanks between. Reports all mistakes.
    pub fn read_keymap(&self, lines: &[(String, String)]) -> (Keymap, Vec<WrongLine>) {
        let all: Vec<&'static Binding<S>> = self.iter().collect();
        let (mut map, mut wrong, mut read) = (Keymap::default(), Vec::new(), Vec::new());
        for (i, (command, keys)) in lines.iter().enumerate() {
            let typed = config_name(command);
            let renamed: Vec<&str> =
                self.renamed.iter().filter(|(old, _)| *old == typed).map(|(_, new)| *new).collect();
            let is_meant = |name: String| name == typed || renamed.contains(&name.as_str());
            let found: Vec<usize> =
                (0..all.len()).filter(|at| is_meant(config_name(all[*at].short))).collect();
            if found.is_empty() || typed.is_empty() {
                wrong.push((i, format!("unknown command `{command}`"), self.nearest(&typed)));
                continue;
            }
            if found.iter().any(|at| map.own.iter().any(|(other, _)| other == at)) {
                let hint = "put all of its keys on one line, with blanks between";
                wrong.push((i, format!("duplicate line for `{command}`"), hint.into()));
                continue;
            }
            let pressed: Result<Vec<KeyEvent>, &str> =
                keys.split_whitespace().map(|word| parse(word).ok_or(word)).collect();
            match pressed {
                Ok(pressed) if pressed.is_empty() => {
                    wrong.push((i, format!("`{command}` has no key"), "add one, such as \"x\"".into()));
                }
                Ok(pressed) => {
                    map.own.extend(found.iter().map(|at| (*at, pressed.clone())));
                    read.push((i, found));
                }
                Err(word) => {
                    let hint =
                        "write x, X, ctrl-x, space, enter, tab, up, pgdn, home or f5, with blanks between";
                    wrong.push((i, format!("`{word}` cannot be bound"), hint.into()));
                }
            }
        }
        for (i, found) in read {
            if let Some((key, other)) = found.iter().find_map(|at| self.clash(&map, *at)) {
                let (key, name) = (name(key, Glyphs::Ascii), config_name(other.short));
                let what = format!("`{key}` is already bound to `{name}` in {}", other.scope_name());
                wrong.push((i, what, format!("bind `{name}` to another key")));
            }
        }
        wrong.sort();
        (map, wrong)
    }

    /// Another command with the same key in the same pane. Reserved commands are not hidden anywhere.
    fn clash(&self, map: &Keymap, at: usize) -> Option<(KeyEvent, &'static Binding<S>)> {
        let all: Vec<&'static Binding<S>> = self.iter().collect();
        let binding = all[at];
        let reserved = |binding: &Binding<S>| (self.reserved)(&binding.command);
        let others = all.iter().enumerate().filter(|(other_at, other)| {
            *other_at != at
                && config_name(other.short) != config_name(binding.short)
                && (other.overlaps(binding)
                    || (reserved(other) || reserved(binding))
                        && (other.scope.is_empty() || binding.scope.is_empty()))
        });
        others.into_iter().find_map(|(_, other)| {
            let keys = self.keys(binding, map);
            let key = self.keys(other, map).iter().find(|key| keys.contains(key))?;
            Some((*key, *other))
        })
    }

    /// Names that the typed one may stand for.
    fn nearest(&self, typed: &str) -> String {
        let mut names: Vec<String> =
            self.iter().map(|binding| config_name(binding.short)).filter(|name| !name.is_empty()).collect();
        names.sort();
        names.dedup();
        let head = typed.get(..2).unwrap_or(typed);
        let matching = |is_near: &dyn Fn(&str) -> bool| -> Vec<&str> {
            names.iter().map(String::as_str).filter(|name| is_near(name)).collect()
        };
        let mut near = matching(&|name| name.contains(typed) || typed.contains(name));
        if near.is_empty() {
            near = matching(&|name| name.starts_with(head));
        }
        match near.is_empty() {
            true => format!("available: {}", names.join(", ")),
            false => format!("similar: {}", near.join(", ")),
        }
    }
}

/// The user's own keys, `[keys]` of `ui.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keymap {
    /// By index into the table.
    own: Vec<(usize, Vec<KeyEvent>)>,
}

/// The name of a command in the configuration: its short text in lower case, with hyphens.
fn config_name(text: &str) -> String {
    text.trim().to_lowercase().replace([' ', '/', '_'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_parse_back() {
        for word in ["x", "X", "ctrl-x", "space", "enter", "shift-tab", "up", "pgdn", "f5"] {
            assert_eq!(name(parse(word).unwrap(), Glyphs::Ascii), word);
        }
        for word in ["ctrl-c", "ctrl-m", "hyper-x", "f13", ""] {
            assert_eq!(parse(word), None, "{word}");
        }
    }
}
