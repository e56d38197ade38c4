//! The Hosts page: links, agents, CPU, memory, GPUs. Before ranks exist, the overview shows the connections.

mod connecting;
mod draw;

use crate::run::RunScreen;
use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Geometry, Pane};
use crate::run::pages::{Page, PageCx, PageDrawCtx, step};
use crate::run::reasons::*;
use crossterm::event::KeyCode;
use rankdeck_core::model::Model;
use rankdeck_kit::bindings;
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_types::ids::NodeRank;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;

pub use draw::{instances, word};

const HOSTS: &[Pane] = &[Pane::Hosts];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    HOSTS, ScreenCommand::Inspect, [k(KeyCode::Enter)], 4, "ranks", "Show this host's ranks", |model, view| no_ranks_yet(model, &view.geometry);
    HOSTS, ScreenCommand::Processes, [c('p')], 6, "processes", "List processes on this host and its GPUs", |model, view| no_query(view).or(no_host(model));
    HOSTS, ScreenCommand::Shell, [c('s')], 5, "shell", "Open a shell in the run directory on this host", no_shell;
];

fn no_ranks_yet(model: &Model, geo: &Geometry) -> Option<&'static str> {
    no_host(model).or(geo.connecting.then_some("no ranks started yet"))
}

/// The hosts page.
#[derive(Debug, Clone, Default)]
pub struct HostsPage {
    /// The host that is selected.
    pub selected: Option<NodeRank>,
    /// The first row shown.
    top: usize,
}

impl Page for HostsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        match ctx.place.geo.connecting && !ctx.place.own_page {
            true => connecting::draw(ctx, buf),
            false => draw::draw(self, ctx, buf),
        }
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let hosts = &cx.model.hosts;
        if self.selected.is_none_or(|node| node.index() >= hosts.len()) {
            self.selected = hosts.first().map(|host| host.node_rank);
        }
        let rows = cx.place.rows();
        if rows > 0 {
            let (first, last, all) = draw::rows_of(cx.model, self.selected);
            // Both ends of the block, the top one last so that it wins when the block is higher than the page.
            let top = scrolled_to(self.top, last, rows, all);
            self.top = scrolled_to(top, first, rows, all);
        }
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let hosts = &cx.model.hosts;
        let at = self.selected.map_or(0, |node| node.index());
        self.selected = hosts.get(step(at, rows, hosts.len())).map(|host| host.node_rank);
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let host = self.selected.and_then(|node| cx.model.hosts.get(node.index()));
        host.map_or(String::new(), |host| format!("{} (node_rank {})\n", host.name, host.node_rank))
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        let request = match command {
            ScreenCommand::Inspect if cx.place.focused => {
                let host = self.selected.and_then(|node| cx.live.hosts.get(node.index()));
                host.map(|host| Request::ShowRanksOf(host.name.clone()))
            }
            ScreenCommand::Processes => self.selected.map(Request::ListProcesses),
            ScreenCommand::Shell if cx.place.focused => {
                Some(Request::Do(ScreenAction::Shell(self.selected?)))
            }
            _ => return None,
        };
        Some(request.into_iter().collect())
    }

    fn click(&mut self, at: Position, cx: &mut PageCx<'_>) -> Vec<Request> {
        let inner = cx.place.inner();
        let row = inner.contains(at).then(|| self.top + usize::from(at.y - inner.y));
        let Some(host) = row.and_then(|row| draw::host_of_row(cx.model, row)) else { return Vec::new() };
        if self.selected == Some(host) && cx.place.own_page {
            return vec![Request::Command(ScreenCommand::Inspect)];
        }
        self.selected = Some(host);
        Vec::new()
    }
}
