//! The processes of a host: its ranks with their descendants, and other processes on its GPUs.

use crate::process_list::{self, ProcessRow};
use crate::run::action::{Request, ScreenAction};
use crate::run::overlays::{EnvironmentCard, Palette, confirm};
use crate::run::processes::{self, HostProcess};
use crate::run::rank_details;
use crate::run::reasons::no_order;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Glyphs, Role, text};
use rankdeck_proto::process::{ProcessAction, ProcessName};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The processes of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessList {
    /// The host.
    pub node: NodeRank,
    /// The selected process; `None`: the first.
    pub selected: Option<ProcessName>,
}

impl Component<RunScreen> for ProcessList {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        if matches!(key.code, KeyCode::Esc | KeyCode::Char('q' | 'p')) {
            return Handled::Close;
        }
        let all = processes::of_host(model, self.node);
        let at = row_of(&all, self.selected);
        let to = Move::of_key(key, true).map_or(at, |by| by.apply(at, all.len()));
        let process = all.get(to.min(all.len().saturating_sub(1)));
        self.selected = process.map(|process| process.name);
        let Some(process) = process else { return Handled::Done };
        let done = match key.code {
            KeyCode::Enter | KeyCode::Char('e') => EnvironmentCard::open(cx.state, process),
            KeyCode::Char('T') => signal(model, cx.state, process, SIGTERM),
            KeyCode::Char('K') => signal(model, cx.state, process, SIGKILL),
            KeyCode::Char('s') => {
                cx.state.open(Palette::new(format!("signal {} ", processes::typed_as(process))));
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        };
        match done {
            Ok(requests) => Handled::Actions(requests),
            Err(why) => {
                cx.state.toast(why, Role::Warn, cx.now);
                Handled::Done
            }
        }
    }

    fn on_click(&mut self, model: &Model, target: &Target, _: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        self.selected = processes::of_host(model, self.node).get(*row).map(|process| process.name);
        Handled::Done
    }

    fn on_wheel(&mut self, model: &Model, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, model, rows, cx)
    }

    fn draw(&self, model: &Model, _: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let all = processes::of_host(model, self.node);
        let host = model.hosts.get(self.node.index()).map_or("", |host| host.name.as_str());
        let title = format!("processes of {host}");
        let rows = rows(&all, cx.glyphs());
        let selected = row_of(&all, self.selected);
        process_list::draw(cx, buf, (&title, "no processes"), &rows, selected);
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "e env vars   T SIGTERM   K SIGKILL   s other signals   esc closes".into()
    }
}

/// Sends a signal; asks first if it may terminate or stop the process.
///
/// # Errors
/// The run cannot be changed now, or the process belongs to another user.
pub fn signal(
    model: &Model,
    view: &mut ViewState,
    process: &HostProcess,
    signal: i32,
) -> Result<Vec<Request>, String> {
    if let Some(why) = no_order(view) {
        return Err(format!("signal: {why}"));
    }
    process.check_own()?;
    let HostProcess { node, name, .. } = *process;
    let action = ProcessAction::Signal { signal };
    let send = ScreenAction::Send(Event::ProcessActionRequested { node, process: name, action });
    if words::signal_is_harmless(signal) {
        return Ok(vec![Request::Do(send)]);
    }
    let whom = processes::description(model, process);
    view.open(confirm::signal(&whom, name.rank.is_some(), signal, send));
    Ok(Vec::new())
}

/// Returns the index of the selected process.
fn row_of(all: &[HostProcess], selected: Option<ProcessName>) -> usize {
    all.iter().position(|process| Some(process.name) == selected).unwrap_or(0)
}

/// Returns a row per process, followed by its descendants.
fn rows(all: &[HostProcess], glyphs: Glyphs) -> Vec<ProcessRow> {
    let mut rows = Vec::new();
    for (at, process) in all.iter().enumerate() {
        let (gpus, memory) = on_gpus(&process.gpus, process.memory);
        rows.push(ProcessRow {
            process: at,
            is_descendant: false,
            pid: process.name.pid,
            user: process.user.clone(),
            gpus,
            memory,
            what: process.command.clone(),
            role: if process.own { Role::Text } else { Role::Dim },
        });
        rows.extend(process.below.iter().map(|child| {
            let (gpus, memory) = on_gpus(&child.gpus, child.memory);
            let state = rank_details::state_word(child.state);
            let cpu = words::duration_ms(child.cpu_ms);
            ProcessRow {
                process: at,
                is_descendant: true,
                pid: child.pid,
                user: String::new(),
                gpus,
                memory,
                what: format!("{}{}, {state}, {cpu} CPU time", branches(&child.last, glyphs), child.name),
                role: if child.state == 'Z' { Role::Warn } else { Role::Dim },
            }
        }));
    }
    rows
}

/// Returns the branches of the tree in front of a name.
fn branches(last: &[bool], glyphs: Glyphs) -> String {
    let Some((own, above)) = last.split_last() else { return String::new() };
    let mut text: String =
        above.iter().map(|last| if *last { "   " } else { glyphs.pick("│  ", "|  ") }).collect();
    text.push_str(if *own { glyphs.pick("└─ ", "`- ") } else { glyphs.pick("├─ ", "|- ") });
    text
}

fn on_gpus(gpus: &[u32], memory: u64) -> (String, String) {
    if gpus.is_empty() {
        return (text::NONE.to_owned(), text::NONE.to_owned());
    }
    (gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","), words::bytes(memory))
}
