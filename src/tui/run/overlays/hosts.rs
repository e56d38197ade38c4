//! The hosts of the next generation: which take part, and the resulting sizes, before anything is stopped.

use crate::run::overlays::{RestartForm, confirm, restart, target_rows};
use crate::run::restart_draft::{NOT_ASKED, OtherHosts, RestartDraft};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Role, put_lines, text};
use rankdeck_types::host::Host;
use rankdeck_types::plan::{Plan, PlanError, PlannedSize};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;
use std::collections::BTreeSet;

/// Picks the hosts of the next generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPicker {
    /// Names of hosts that are to be added or excluded.
    pub changed: BTreeSet<String>,
    /// Selected row.
    pub selected: usize,
}

impl HostPicker {
    /// The hosts to add and to exclude.
    fn hosts(&self, model: &Model, view: &ViewState) -> OtherHosts {
        let rows = rows(model, view);
        let picked = |row: &&HostChoice| self.changed.contains(&row.name);
        let exclude =
            rows.iter().filter(picked).filter(|row| row.takes_part).map(|row| row.name.clone()).collect();
        let add = rows.iter().filter(picked).filter(|row| !row.takes_part);
        OtherHosts { exclude, add: add.filter_map(|row| typed(model, view, &row.name)).collect() }
    }

    /// The restart that Enter asks about, or why there is none.
    fn draft(&self, model: &Model, view: &ViewState) -> Result<RestartDraft, String> {
        let hosts = self.hosts(model, view);
        if hosts == OtherHosts::default() {
            return Err("change hosts: press space to add or exclude a host".into());
        }
        if let Some(Err(error)) = preview(model, &hosts) {
            return Err(format!("{}; {CHANGES}", error.cause.with_hint()));
        }
        Ok(RestartDraft::on_hosts(model, hosts, view.steering.changer))
    }

    fn toggle(&mut self, model: &Model, view: &ViewState) {
        if let Some(row) = rows(model, view).get(self.selected)
            && !self.changed.remove(&row.name)
        {
            self.changed.insert(row.name.clone());
        }
    }
}

impl Component<RunScreen> for HostPicker {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        if let Some(to) = Move::of_key(key, true) {
            self.selected = to.apply(self.selected, rows(model, cx.state).len());
            return Handled::Done;
        }
        match key.code {
            KeyCode::Esc | KeyCode::Char('q' | 'H') => return Handled::Close,
            // What opens here leaves the picker below, for the way back.
            KeyCode::Enter => {
                let draft = self.draft(model, cx.state);
                match draft.and_then(|draft| restart::order(model, &draft)) {
                    Ok((text, event)) => cx.state.open(confirm::changed(model, text, event)),
                    Err(why) => cx.state.toast(why, Role::Warn, cx.now),
                }
            }
            KeyCode::Char('R') => {
                let hosts = self.hosts(model, cx.state);
                let draft = RestartDraft::on_hosts(model, hosts, cx.state.steering.changer);
                cx.state.open(RestartForm(Box::new(draft)));
            }
            KeyCode::Char(' ' | 'x') => self.toggle(model, cx.state),
            _ => {}
        }
        Handled::Done
    }

    fn on_click(&mut self, model: &Model, target: &Target, cx: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        self.selected = *row;
        self.toggle(model, cx.state);
        Handled::Done
    }

    fn on_wheel(&mut self, model: &Model, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, model, rows, cx)
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let cells = usize::from(cx.screen.width.saturating_sub(8)).min(76);
        let rows = rows(model, view);
        let glyphs = cx.glyphs();
        let mut lines: Vec<Line<'static>> = Vec::new();
        let (outcome, role) = match preview(model, &self.hosts(model, view)) {
            None => (NOT_ASKED.to_string(), Role::Dim),
            Some(Ok(plan)) => {
                let sizes: Vec<String> = plan.sizes.iter().map(PlannedSize::text).collect();
                let now = model.ranks.len();
                let ranks = words::plural(plan.ranks.len(), "rank");
                let sizes = if sizes.is_empty() {
                    String::new()
                } else {
                    format!("; per rank: {}", sizes.join(", "))
                };
                (format!("{ranks} (now {now}){sizes}"), Role::Good)
            }
            Some(Err(error)) => {
                let hint = &error.cause.hint;
                (format!("{} (config key {}): {hint}; {CHANGES}", error.cause.error, error.key), Role::Bad)
            }
        };
        let outcome = text::wrap(&outcome, cells);
        let height = usize::from(cx.screen.height).saturating_sub(7 + outcome.len()).max(1);
        let first = self.selected.saturating_sub(height - 1);
        for (i, row) in rows.iter().enumerate().skip(first).take(height) {
            let will = row.takes_part != self.changed.contains(&row.name);
            let mark = if i == self.selected { glyphs.pick("▸", ">") } else { " " };
            let sign = if will { "[x]" } else { "[ ]" };
            let role = if self.changed.contains(&row.name) { Role::Accent } else { Role::Text };
            let text = format!("{mark} {sign} {}  {}", row.name, row.text);
            lines.push(Line::from(cx.s(cx.cut(&text, cells), role)));
        }
        lines.push(Line::default());
        lines.extend(outcome.into_iter().map(|line| Line::from(cx.s(line, role))));
        let size = (cells as u16, lines.len() as u16);
        let keys = "space toggles, enter confirms, R edits config, esc cancels";
        let inner = cx.popup(buf, size, Role::Warn, "hosts of the next generation", keys);
        let shown = rows.len().saturating_sub(first).min(height);
        target_rows(cx, inner, first, shown);
        put_lines(buf, inner, lines);
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "j/k move   space toggles   enter confirms   R edits config keys   esc closes".into()
    }
}

/// Appended where a change needs other config keys.
const CHANGES: &str = "R edits config keys for these hosts";

/// One host that can be picked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostChoice {
    name: String,
    /// It is part of the current generation.
    takes_part: bool,
    /// Why it is excluded, or its number of ranks.
    text: String,
}

/// All hosts of the run in node_rank order, then those that could join.
fn rows(model: &Model, view: &ViewState) -> Vec<HostChoice> {
    let ranks = |node: usize| model.ranks.iter().filter(|rank| rank.node.index() == node).count();
    let own = model.hosts.iter().enumerate().map(|(node, host)| HostChoice {
        name: host.name.clone(),
        takes_part: host.excluded.is_none(),
        text: host.excluded.clone().unwrap_or_else(|| words::plural(ranks(node), "rank")),
    });
    let spare = |host: &&Host| !model.hosts.iter().any(|known| known.name == host.name);
    let spares = view.steering.spares.iter().filter(spare).map(|host| HostChoice {
        name: host.name.clone(),
        takes_part: false,
        text: "in hosts.toml, not in this run".into(),
    });
    own.chain(spares).collect()
}

/// The host's configuration, for one that is added.
fn typed(model: &Model, view: &ViewState, name: &str) -> Option<Host> {
    let planned = model.plan.iter().flat_map(|plan| &plan.hosts);
    let known = planned.map(|planned| &planned.host).find(|host| host.name == name);
    view.steering.spares.iter().find(|host| host.name == name).or(known).cloned()
}

/// The resulting plan; `None` while the GPUs of a new host are unknown.
fn preview(model: &Model, hosts: &OtherHosts) -> Option<Result<Plan, PlanError>> {
    let plan = model.plan.as_ref().filter(|_| !hosts.is_open(model))?;
    Some(hosts.plan(model, plan))
}
