//! The processes on the GPUs of one host: what each has in its environment, and signals to those of one's
//! own.

use super::model::{FleetHost, Home};
use super::pen::{Pen, popup};
use super::state::{HomeAction, HomeView, Overlay};
use crate::text;
use crate::theme::Role;
use crate::widgets::put;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_proto::process::{GpuUser, ProcessAction, ProcessName};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// What the footer says meanwhile: of what is not there, nothing is offered.
pub(super) fn keys(home: &Home, host: &str) -> &'static str {
    match users(home, host) {
        [] => " esc closes",
        _ => " e environment   T SIGTERM   I SIGINT   U SIGUSR1   K SIGKILL   esc closes",
    }
}

/// Keys that send a signal.
const SIGNALS: [(char, &str); 4] = [('T', "TERM"), ('I', "INT"), ('U', "USR1"), ('K', "KILL")];

fn users<'a>(home: &'a Home, host: &str) -> &'a [GpuUser] {
    let found = home.hosts.iter().find(|found| found.name == host);
    found.and_then(|found| found.look.as_ref()).map_or(&[], |look| &look.users)
}

fn row_of(all: &[GpuUser], selected: Option<ProcessName>) -> usize {
    all.iter().position(|user| Some(ProcessName::of(user)) == selected).unwrap_or(0)
}

/// A key while they are shown.
pub(super) fn on_key(
    home: &Home,
    view: &mut HomeView,
    (host, selected): (String, Option<ProcessName>),
    key: KeyEvent,
    now: Timestamp,
) -> Vec<HomeAction> {
    let all = users(home, &host);
    let at = row_of(all, selected);
    let to = match key.code {
        KeyCode::Char('q' | 'p') => return Vec::new(),
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => at,
    };
    let user = all.get(to.min(all.len().saturating_sub(1)));
    view.overlay = Some(Overlay::Processes { host: host.clone(), selected: user.map(ProcessName::of) });
    let Some(user) = user else { return Vec::new() };
    let action = match key.code {
        KeyCode::Enter | KeyCode::Char('e') => ProcessAction::Environment,
        KeyCode::Char(typed) => {
            let signal = SIGNALS.iter().find(|(key, _)| *key == typed);
            match signal.and_then(|(_, name)| words::signal_named(name)) {
                Some(signal) => ProcessAction::Signal { signal },
                None => return Vec::new(),
            }
        }
        _ => return Vec::new(),
    };
    let process = ProcessName::of(user);
    if !user.own {
        view.say(format!("{process} belongs to {}: only one's own are reached", user.user), Role::Warn, now);
        view.overlay = None;
        return Vec::new();
    }
    let then = HomeAction::Reach { host: host.clone(), process, action };
    match action {
        ProcessAction::Signal { .. } if view.read_only => {
            view.say("read-only: this console only shows", Role::Warn, now);
            view.overlay = None;
        }
        ProcessAction::Signal { signal } => {
            let name = words::signal_name(signal);
            let what = format!("{process} on {host}: {}", words::clean(&user.command));
            let effect = match name.as_str() {
                "SIGKILL" => "The kernel ends it at once; it writes nothing more.".to_owned(),
                _ => format!("{name} ends a program that has no handler for it."),
            };
            view.overlay =
                Some(Overlay::Confirm { lines: vec![what, effect], yes: format!("send {name}"), then });
        }
        ProcessAction::Environment | ProcessAction::Unknown => {
            view.say(format!("{host} is asked for {action} ..."), Role::Dim, now);
            view.overlay = None;
            return vec![then];
        }
    }
    Vec::new()
}

/// GPUs of a process, and its memory there.
fn on_gpus(host: Option<&FleetHost>, pid: u32) -> (String, u64) {
    let gpus = host.and_then(|host| host.look.as_ref()).map_or(&[][..], |look| &look.sample.gpus);
    let has =
        |gpu: &&rankdeck_proto::message::GpuSample| gpu.processes.iter().any(|(other, _)| *other == pid);
    let indices: Vec<String> = gpus.iter().filter(has).map(|gpu| gpu.index.to_string()).collect();
    let bytes = gpus.iter().flat_map(|gpu| &gpu.processes).filter(|(other, _)| *other == pid);
    (indices.join(","), bytes.map(|(_, bytes)| bytes).sum())
}

pub(super) fn draw(
    pen: &Pen<'_>,
    buf: &mut Buffer,
    screen: Rect,
    home: &Home,
    (host, selected): (&str, Option<ProcessName>),
) {
    let all = users(home, host);
    let at = row_of(all, selected);
    let cells = screen.width.saturating_sub(8).min(110);
    let height = screen.height.saturating_sub(6).max(1);
    let rows = (all.len() as u16).clamp(1, height);
    let inner =
        popup(pen, screen, buf, (cells, rows + 1), Role::Accent, &format!("processes on GPUs of {host}"));
    let whose = all.iter().map(|user| text::width(&user.user)).max().unwrap_or(0).clamp(4, 12);
    let head = format!("  {:>8} {} {:>6} {:>6}  WHAT", "PID", pen.left("USER", whose), "GPU", "MEMORY");
    put(buf, inner, 0, Line::from(pen.s(pen.cut(&head, cells.into()), Role::Dim)));
    if all.is_empty() {
        put(buf, inner, 1, Line::from(pen.s("no process is on a GPU here", Role::Dim)));
    }
    let first = (at + 1).saturating_sub(usize::from(rows));
    let found = home.hosts.iter().find(|found| found.name == host);
    for (i, user) in all.iter().enumerate().skip(first).take(usize::from(inner.height.saturating_sub(1))) {
        let (gpus, memory) = on_gpus(found, user.pid);
        let mark = if i == at { pen.theme.glyphs.pick("▸", ">") } else { " " };
        let run = user.run.as_ref().map_or(String::new(), |run| format!("{run}: "));
        let (name, what) = (pen.left(&user.user, whose), words::clean(&(run + &user.command)));
        let line = format!("{mark} {:>8} {name} {gpus:>6} {:>6}  {what}", user.pid, words::bytes(memory));
        let role = match user.own {
            _ if i == at => Role::Accent,
            true => Role::Text,
            false => Role::Dim,
        };
        put(buf, inner, 1 + i - first, Line::from(pen.s(pen.cut(&line, cells.into()), role)));
    }
}
