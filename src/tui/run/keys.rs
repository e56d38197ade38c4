//! The keys of the run screen: those that apply everywhere, and those of each page.
//!
//! Invariants:
//! - UI-4: every command has at least one key, and a reason when it is disabled.
//! - UI-10: no key has two meanings in the same pane.

use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::geometry::{Pane, Tab};
use crate::run::pages::{charts, events, hosts, logs, outcome, ranks};
use crate::run::reasons::*;
use crate::run::time::{MINUTE_MS, STEP_MS, TimeMove};
use crate::run::{RunScreen, ViewState};
use crossterm::event::KeyCode;
use rankdeck_core::model::{Model, RunState};
use rankdeck_kit::keys::{Binding, KeyTable, WrongLine, c, ctrl, ctrl_k, k};
use rankdeck_kit::{Glyphs, bindings};
use rankdeck_proto::message::StopMode;

pub use rankdeck_kit::keys::Keymap;

const EVERYWHERE: &[Pane] = &[];

/// The keys that apply on every page.
#[rustfmt::skip]
static GLOBAL: &[Binding<RunScreen>] = bindings![
    EVERYWHERE, ScreenCommand::Quit, [c('q')], 1, "quit", "Quit (asks whether to detach or stop)", always;
    EVERYWHERE, ScreenCommand::Stop, [c('x')], 2, "stop", "Stop the run cleanly (can save a checkpoint) and verify", no_stop;
    EVERYWHERE, ScreenCommand::Kill, [c('X')], 0, "kill", "Kill the run (SIGKILL on all hosts)", no_kill;
    EVERYWHERE, ScreenCommand::Detach, [c('D')], 7, "detach", "Detach; the run keeps running", no_detach;
    EVERYWHERE, ScreenCommand::Restart, [c('r')], 6, "restart", "Restart from a checkpoint or from scratch", no_restart;
    EVERYWHERE, ScreenCommand::RestartWith, [c('R')], 0, "restart with", "Restart from any checkpoint, with changed config keys", no_restart;
    EVERYWHERE, ScreenCommand::PickHosts, [c('H')], 0, "change hosts", "Exclude or add hosts and restart", no_host_change;
    EVERYWHERE, ScreenCommand::Explain, [c('d')], 3, "why", "Show the evidence for the verdict", no_verdict;
    EVERYWHERE, ScreenCommand::Policy, [c('v')], 0, "policy", "Watch the policy in rank 0's evaluation live", no_live_policy;
    EVERYWHERE, ScreenCommand::Pictures, [c('i')], 0, "images", "Show logged images", no_picture;
    EVERYWHERE, ScreenCommand::Help, [c('?')], 0, "help", "Show key bindings", always;
    EVERYWHERE, ScreenCommand::Palette, [c(':')], 0, "command", "Open the command palette", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Overview), [c('1')], 0, "overview", "Go to Overview: totals, ranks, charts, log", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Charts), [c('2')], 0, "charts", "Go to Charts: every series", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Evals), [c('3')], 0, "evals", "Go to Evaluations", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Logs), [c('4')], 0, "logs", "Go to Logs: of all ranks, or of one", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Hosts), [c('5')], 0, "hosts", "Go to Hosts: links, agents, CPU, memory, GPUs", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Events), [c('6')], 0, "events", "Go to Events: what happened, in order", always;
    EVERYWHERE, ScreenCommand::Go(Tab::Outcome), [c('7')], 0, "outcome", "Go to Outcome: cause of the end, last minute, what was lost", always;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Step(-STEP_MS)), [c(',')], 0, "rewind", "Rewind 1 s (the run is not affected)", no_record;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Step(STEP_MS)), [c('.')], 0, "forward", "Forward 1 s", already_live;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Step(-MINUTE_MS)), [c('(')], 0, "rewind minute", "Rewind 1 min", no_record;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Step(MINUTE_MS)), [c(')')], 0, "forward minute", "Forward 1 min", already_live;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Event(-1)), [c('<')], 12, "prev event", "Go to the previous event", no_record;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Event(1)), [c('>')], 0, "next event", "Go to the next event", already_live;
    EVERYWHERE, ScreenCommand::TypeTime, [c('T')], 0, "time", "Go to a time (03:12, -5m)", no_record;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Play), [c('P')], 0, "play", "Play or pause", already_live;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Speed(1)), [c('}')], 0, "faster", "Double the playback speed", already_live;
    EVERYWHERE, ScreenCommand::Time(TimeMove::Speed(-1)), [c('{')], 0, "slower", "Halve the playback speed", already_live;
    EVERYWHERE, ScreenCommand::NextPane, [k(KeyCode::Tab)], 9, "pane", "Focus the next pane", one_pane;
    EVERYWHERE, ScreenCommand::PreviousPane, [k(KeyCode::BackTab)], 0, "prev pane", "Focus the previous pane", one_pane;
    EVERYWHERE, ScreenCommand::Zoom, [c('z')], 10, "zoom", "Zoom the focused pane", no_zoom;
    EVERYWHERE, ScreenCommand::Taller(1), [ctrl_k(KeyCode::Down)], 0, "taller", "Make the pane taller (or drag its border)", one_pane;
    EVERYWHERE, ScreenCommand::Taller(-1), [ctrl_k(KeyCode::Up)], 0, "shorter", "Make the pane shorter", one_pane;
    EVERYWHERE, ScreenCommand::Wider(1), [ctrl_k(KeyCode::Right)], 0, "widen", "Make the pane wider", one_pane;
    EVERYWHERE, ScreenCommand::Wider(-1), [ctrl_k(KeyCode::Left)], 0, "narrow", "Make the pane narrower", one_pane;
    EVERYWHERE, ScreenCommand::UsualSizes, [c('Z')], 0, "reset sizes", "Reset pane sizes", no_sizes;
    EVERYWHERE, ScreenCommand::Freeze, [c('f')], 11, "freeze", "Freeze the view (new verdicts still appear)", in_playback;
    EVERYWHERE, ScreenCommand::Back, [k(KeyCode::Esc)], 0, "back", "Go back one level (never quits)", always;
    EVERYWHERE, ScreenCommand::Copy, [c('y')], 0, "copy", "Copy the selection", always;
    EVERYWHERE, ScreenCommand::SaveScreen, [ctrl('s')], 0, "save screen", "Save the screen as text", always;
    EVERYWHERE, ScreenCommand::Redraw, [ctrl('l')], 0, "redraw", "Redraw the screen", always;
    EVERYWHERE, ScreenCommand::Mouse, [c('M')], 0, "mouse", "Toggle mouse capture (off: the terminal selects text)", always;
    EVERYWHERE, ScreenCommand::Suspend, [ctrl('z')], 0, "suspend", "Suspend rankdeck (`fg` returns)", always;
    EVERYWHERE, ScreenCommand::Move(1), [c('j'), k(KeyCode::Down)], 0, "down", "Move down", always;
    EVERYWHERE, ScreenCommand::Move(-1), [c('k'), k(KeyCode::Up)], 0, "up", "Move up", always;
    EVERYWHERE, ScreenCommand::Page(1), [ctrl('d'), k(KeyCode::PageDown)], 0, "page down", "Move half a page down", always;
    EVERYWHERE, ScreenCommand::Page(-1), [ctrl('u'), k(KeyCode::PageUp)], 0, "page up", "Move half a page up", always;
    EVERYWHERE, ScreenCommand::First, [c('g'), k(KeyCode::Home)], 0, "first", "Go to the first row", always;
    EVERYWHERE, ScreenCommand::Last, [c('G'), k(KeyCode::End)], 0, "last", "Go to the last row and follow", always;
];

/// All keys.
pub static TABLE: KeyTable<RunScreen> = KeyTable {
    parts: &[GLOBAL, ranks::KEYS, charts::KEYS, logs::KEYS, events::KEYS, outcome::KEYS, hosts::KEYS],
    // Names of the first releases, as users have them in ui.toml.
    renamed: &[
        ("other-hosts", "change-hosts"),
        ("pictures", "images"),
        ("type", "command"),
        ("end", "outcome"),
        ("second-back", "rewind"),
        ("second-on", "forward"),
        ("minute-back", "rewind-minute"),
        ("minute-on", "forward-minute"),
        ("earlier-event", "prev-event"),
        ("later-event", "next-event"),
        ("pane-back", "prev-pane"),
        ("lower", "shorter"),
        ("broader", "widen"),
        ("narrower", "narrow"),
        ("usual-sizes", "reset-sizes"),
        ("next-trouble", "next-problem"),
        ("log-there", "log-at-verdict"),
        ("log-there", "log-at-event"),
        ("closer", "zoom-in"),
        ("wider", "zoom-out"),
        ("earlier", "pan-left"),
        ("later", "pan-right"),
        ("cursor-on", "cursor-right"),
        ("cursor-far", "cursor-far-left"),
        ("cursor-far-on", "cursor-far-right"),
        ("row-above", "bin-up"),
        ("row-below", "bin-down"),
        ("all", "reset"),
        ("next-hit", "next-match"),
        ("hit-before", "prev-match"),
        ("around", "context"),
        ("previous-rank", "prev-rank"),
        ("further-right", "scroll-right"),
        ("further-left", "scroll-left"),
        ("go-there", "go-to-time"),
    ],
    reserved: |command| matches!(command, ScreenCommand::Quit | ScreenCommand::Stop | ScreenCommand::Back),
};

/// Reads the user's own keys: lines of a name and keys with blanks between.
pub fn read_keymap(lines: &[(String, String)]) -> (Keymap, Vec<WrongLine>) {
    TABLE.read_keymap(lines)
}

/// The first binding of a command.
pub fn binding(command: ScreenCommand) -> Option<&'static Binding<RunScreen>> {
    TABLE.iter().find(|binding| binding.command == command)
}

/// Why a command is disabled.
pub fn disabled(model: &Model, view: &ViewState, command: ScreenCommand) -> Option<&'static str> {
    binding(command).and_then(|binding| (binding.disabled)(model, view))
}

/// The first key of a command, as people write it.
pub fn key_name(command: ScreenCommand, keymap: &Keymap, glyphs: Glyphs) -> String {
    names(keymap, glyphs).of(command)
}

/// The names of keys, as the user has bound them.
pub fn names(keymap: &Keymap, glyphs: Glyphs) -> KeyNames<'_> {
    KeyNames { table: &TABLE, keymap, glyphs }
}

fn no_detach(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match runs(model) {
        true => view.steering.passing.then_some("simulation ends with the console; q quits"),
        false => Some("nothing is running; q quits"),
    }
}

fn no_kill(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        RunState::Over if !model.run.unverified.is_empty() => None,
        RunState::Over => Some("the run has ended"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("already being killed"),
        _ => None,
    }
}

fn no_picture(model: &Model, view: &ViewState) -> Option<&'static str> {
    view.shown(model).gallery.is_empty().then_some("no images logged yet")
}

fn no_host_change(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_order(view).or_else(|| model.restart_obstacle(true))
}

fn no_restart(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_order(view).or_else(|| model.restart_obstacle(false))
}

fn no_live_policy(model: &Model, view: &ViewState) -> Option<&'static str> {
    match view.moment.cursor {
        _ if view.steering.replay => Some("not recorded; use `rankdeck play`"),
        Some(_) => Some(PAST),
        // The last frame stays visible.
        None if model.run.state == RunState::Over && model.policy.frame.is_none() => {
            Some("the run has ended; use `rankdeck play`")
        }
        None => None,
    }
}

fn no_sizes(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.sizes == Default::default()).then_some("pane sizes are unchanged")
}

fn no_stop(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        // A host that proved nothing may be back.
        RunState::Over if !model.run.unverified.is_empty() => None,
        RunState::Over => Some("the run has ended"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("already being killed"),
        _ if model.run.stopping.is_some() => Some("already stopping; X kills"),
        _ => None,
    }
}

fn no_verdict(model: &Model, _: &ViewState) -> Option<&'static str> {
    let any = !model.verdicts.is_empty() || crate::run::ranks::latest_verdict(model).is_some();
    (!any).then_some("no verdict")
}

fn no_zoom(model: &Model, view: &ViewState) -> Option<&'static str> {
    if view.tab != Tab::Overview {
        return Some("this page has a single pane");
    }
    model.ranks.is_empty().then_some("no ranks yet")
}

fn one_pane(_: &Model, view: &ViewState) -> Option<&'static str> {
    let several = view.tab == Tab::Overview && view.geometry.panes().len() > 1;
    (!several).then_some("this page has a single pane")
}

fn in_playback(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.moment.cursor.is_some().then_some("playback is paused; P plays")
}

fn already_live(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.moment.cursor.is_none().then_some("already live; , or < rewinds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ui_4_ui_10_table_has_no_flaws() {
        assert_eq!(TABLE.flaws(), Vec::<String>::new());
        assert!(TABLE.iter().all(|binding| !binding.short.is_empty()));
    }

    #[test]
    fn footer_is_never_empty() {
        let view = ViewState::new();
        assert!(!TABLE.footer(&Model::default(), &view, view.pane()).is_empty());
    }

    fn read(lines: &[(&str, &str)]) -> (Keymap, Vec<WrongLine>) {
        let own = |text: &&str| (*text).to_owned();
        let lines: Vec<_> = lines.iter().map(|(name, keys)| (own(name), own(keys))).collect();
        TABLE.read_keymap(&lines)
    }

    #[test]
    fn keymap_replaces_keys_of_the_table() {
        let (map, wrong) = read(&[("stop", "ctrl-x f9"), ("Other_Hosts", "h")]);
        assert!(wrong.is_empty(), "{wrong:?}");
        let of = |command| binding(command).unwrap();
        let names: Vec<String> = TABLE
            .keys(of(ScreenCommand::Stop), &map)
            .iter()
            .map(|key| rankdeck_kit::keys::name(*key, Glyphs::Ascii))
            .collect();
        assert_eq!(names, ["ctrl-x", "f9"]);
        assert_eq!(TABLE.keys(of(ScreenCommand::Kill), &map), of(ScreenCommand::Kill).keys);
        assert_eq!(read(&[("quit", "x"), ("stop", "q")]).1, [], "keys may be swapped");
    }

    #[test]
    fn keymap_reports_unknown_names_keys_and_conflicts() {
        for lines in [
            &[("stopp", "x")][..],
            &[("zzzz", "x")],
            &[("stop", "hyper-x")],
            &[("stop", "ctrl-c")],
            &[("stop", "ctrl-m")],
            &[("stop", " ")],
            &[("restart", "q")],
            &[("quit", "x")],
            &[("stop", "o")],
            &[("wrap", "m")],
        ] {
            let (_, wrong) = read(lines);
            assert!(matches!(wrong.as_slice(), [(0, _, _)]), "{lines:?}: {wrong:?}");
        }
        let (_, wrong) = read(&[("stop", "ctrl-x"), ("Stop", "f9")]);
        assert!(matches!(wrong.as_slice(), [(1, _, _)]), "{wrong:?}");
    }
}
