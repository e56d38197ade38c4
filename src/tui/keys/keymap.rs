//! The user's own keys: `[keys]` of `ui.toml` over the table.

use super::{BINDINGS, Binding, Command, Scope, name, plain};
use crate::pane::Pane;
use crate::theme::Glyphs;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Keys that stand for others than the table's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keymap {
    /// By the place in the table.
    own: Vec<(usize, Vec<KeyEvent>)>,
}

/// A line that cannot be followed: which, what is wrong, what helps.
pub type WrongLine = (usize, String, String);

impl Keymap {
    /// The keys of a binding; the first is the one that the footer shows.
    pub fn of(&self, binding: &'static Binding) -> &[KeyEvent] {
        if self.own.is_empty() {
            return binding.keys;
        }
        let at = BINDINGS.iter().position(|other| std::ptr::eq(other, binding));
        let own = self.own.iter().find(|(place, _)| Some(*place) == at);
        own.map_or(binding.keys, |(_, keys)| keys)
    }

    /// The first key of a command, as people write it.
    pub fn shown(&self, command: Command, glyphs: Glyphs) -> String {
        self.shown_where(|binding| binding.command == command, glyphs)
    }

    /// The first key of a command in a pane.
    pub fn shown_in(&self, pane: Pane, command: Command, glyphs: Glyphs) -> String {
        self.shown_where(
            |binding| binding.command == command && matches!(binding.scope, Scope::In(at) if at == pane),
            glyphs,
        )
    }

    fn shown_where(&self, wanted: impl Fn(&Binding) -> bool, glyphs: Glyphs) -> String {
        let binding = BINDINGS.iter().find(|binding| wanted(binding));
        binding.and_then(|binding| self.of(binding).first()).map_or(String::new(), |key| name(*key, glyphs))
    }

    /// Reads lines of a name and keys with blanks between; all mistakes are found.
    pub fn read(lines: &[(String, String)]) -> (Keymap, Vec<WrongLine>) {
        let (mut map, mut wrong, mut read) = (Keymap::default(), Vec::new(), Vec::new());
        for (i, (command, keys)) in lines.iter().enumerate() {
            let meant = plain_name(command);
            let found: Vec<usize> = (0..BINDINGS.len()).filter(|at| named(&BINDINGS[*at]) == meant).collect();
            if found.is_empty() {
                wrong.push((i, format!("no key does `{command}`"), nearest(&meant)));
                continue;
            }
            if found.iter().any(|at| map.own.iter().any(|(known, _)| known == at)) {
                let hint = "put all of its keys into one line, with blanks between";
                wrong.push((i, format!("`{command}` is there twice"), hint.into()));
                continue;
            }
            let pressed: Result<Vec<KeyEvent>, &str> =
                keys.split_whitespace().map(|word| parse(word).ok_or(word)).collect();
            match pressed {
                Ok(pressed) if pressed.is_empty() => {
                    wrong.push((i, format!("`{command}` has no key"), "give one, such as \"x\"".into()));
                }
                Ok(pressed) => {
                    map.own.extend(found.iter().map(|at| (*at, pressed.clone())));
                    read.push((i, found));
                }
                Err(word) => {
                    let hint =
                        "write x, X, ctrl-x, space, enter, tab, up, pgdn, home or f5, with blanks between";
                    wrong.push((i, format!("`{word}` is no key that can be bound"), hint.into()));
                }
            }
        }
        for (i, found) in read {
            if let Some((key, other)) = found.iter().find_map(|at| map.clash(*at)) {
                let key = name(key, Glyphs::Ascii);
                let what = format!("`{key}` already means `{}` in {}", named(other), other.scope.name());
                wrong.push((i, what, format!("give `{}` another key, too", named(other))));
            }
        }
        wrong.sort();
        (map, wrong)
    }

    /// Another command of a key in the same place. What ends a run or the console is not hidden anywhere.
    fn clash(&self, at: usize) -> Option<(KeyEvent, &'static Binding)> {
        let grave =
            |binding: &Binding| matches!(binding.command, Command::Quit | Command::Stop | Command::Back);
        let binding = &BINDINGS[at];
        let mut others = BINDINGS.iter().enumerate().filter(|(place, other)| {
            *place != at
                && named(other) != named(binding)
                && (other.scope == binding.scope
                    || (grave(other) || grave(binding))
                        && (other.scope == Scope::Everywhere || binding.scope == Scope::Everywhere))
        });
        others.find_map(|(_, other)| {
            let key = self.of(other).iter().find(|key| self.of(binding).contains(key))?;
            Some((*key, other))
        })
    }
}

fn plain_name(text: &str) -> String {
    text.trim().to_lowercase().replace([' ', '/', '_'], "-")
}

/// What a binding is called in the file: its short name.
fn named(binding: &Binding) -> String {
    plain_name(binding.short)
}

/// Names that the typed one may be.
fn nearest(meant: &str) -> String {
    let mut names: Vec<String> = BINDINGS.iter().map(named).collect();
    names.sort();
    names.dedup();
    let head = meant.get(..2).unwrap_or(meant);
    let of = |is_near: &dyn Fn(&str) -> bool| -> Vec<&str> {
        names.iter().map(String::as_str).filter(|name| is_near(name)).collect()
    };
    let mut near = of(&|name| name.contains(meant) || meant.contains(name));
    if near.is_empty() {
        near = of(&|name| name.starts_with(head));
    }
    match near.is_empty() {
        true => format!("there are {}", names.join(", ")),
        false => format!("did you mean {}?", near.join(" or ")),
    }
}

/// A key as people write it. Ctrl-c stays what it is.
fn parse(word: &str) -> Option<KeyEvent> {
    let (control, rest) = match word.strip_prefix("ctrl-") {
        Some(rest) if !rest.is_empty() => (KeyModifiers::CONTROL, rest),
        _ => (KeyModifiers::NONE, word),
    };
    let code = match rest {
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
        _ => match (rest.chars().count(), rest.strip_prefix('f').and_then(|n| n.parse().ok())) {
            (1, _) => KeyCode::Char(rest.chars().next()?),
            (_, Some(n @ 1..=12)) => KeyCode::F(n),
            _ => return None,
        },
    };
    let key = plain(KeyEvent::new(code, control));
    // Terminals tell some of them as other keys.
    (!control.contains(KeyModifiers::CONTROL) || !matches!(key.code, KeyCode::Char('c' | 'i' | 'm' | '[')))
        .then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> (Keymap, Vec<WrongLine>) {
        let own = |text: &&str| (*text).to_owned();
        let lines: Vec<_> = lines.iter().map(|(name, keys)| (own(name), own(keys))).collect();
        Keymap::read(&lines)
    }

    fn binding(command: Command) -> &'static Binding {
        BINDINGS.iter().find(|binding| binding.command == command).unwrap()
    }

    #[test]
    fn a_users_key_stands_instead_of_the_tables() {
        let (map, wrong) = read(&[("stop", "ctrl-x f9"), ("Other_Hosts", "h")]);
        assert!(wrong.is_empty(), "{wrong:?}");
        let names: Vec<String> =
            map.of(binding(Command::Stop)).iter().map(|key| name(*key, Glyphs::Ascii)).collect();
        assert_eq!(names, ["ctrl-x", "f9"]);
        assert_eq!(map.of(binding(Command::Kill)), binding(Command::Kill).keys);
        assert_eq!(read(&[("quit", "x"), ("stop", "q")]).1, [], "keys may change places");
    }

    #[test]
    fn unknown_names_unknown_keys_and_conflicts_are_said_with_what_helps() {
        for (lines, what, hint) in [
            (&[("stopp", "x")][..], "no key does `stopp`", "did you mean stop"),
            (&[("zzzz", "x")], "no key does `zzzz`", "there are"),
            (&[("stop", "hyper-x")], "`hyper-x` is no key", "ctrl-x"),
            (&[("stop", "ctrl-c")], "`ctrl-c` is no key", ""),
            (&[("stop", "ctrl-m")], "`ctrl-m` is no key", ""),
            (&[("stop", " ")], "has no key", ""),
            (&[("restart", "q")], "`q` already means `quit` in everywhere", "give `quit` another key"),
            (&[("quit", "x")], "`x` already means `stop`", "stop"),
            (&[("stop", "o")], "`o` already means `sort` in ranks", "sort"),
            (&[("wrap", "m")], "`m` already means `merge` in logs", "merge"),
        ] {
            let (_, wrong) = read(lines);
            let [(0, said, helps)] = wrong.as_slice() else { panic!("{lines:?}: {wrong:?}") };
            assert!(said.contains(what) && helps.contains(hint), "{said}; {helps}");
        }
        let (_, wrong) = read(&[("stop", "ctrl-x"), ("Stop", "f9")]);
        let [(1, said, _)] = wrong.as_slice() else { panic!("{wrong:?}") };
        assert!(said.contains("`Stop` is there twice"), "{said}");
    }
}
