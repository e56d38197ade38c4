//! The hosts of the next generation: who takes part, who will, and what that makes of the sizes, before
//! anything is stopped.

use crate::restart_draft::{NOT_ASKED, OtherHosts};
use crate::state::{Action, ViewState};
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_types::host::Host;
use rankdeck_types::plan::{Plan, PlanError, PlannedSize};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use std::collections::BTreeSet;

/// Where keys of the experiment change.
const CHANGES: &str = "R changes keys for these hosts";

/// One host that can be picked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    /// It takes part in the present generation.
    pub takes_part: bool,
    /// Why not, or how many ranks it has.
    pub text: String,
}

/// All hosts of the run in node_rank order, then those that could join.
pub fn rows(model: &Model, view: &ViewState) -> Vec<Row> {
    let ranks = |node: usize| model.ranks.iter().filter(|rank| rank.node.index() == node).count();
    let own = model.hosts.iter().enumerate().map(|(node, host)| Row {
        name: host.name.clone(),
        takes_part: host.excluded.is_none(),
        text: host.excluded.clone().unwrap_or_else(|| words::plural(ranks(node), "rank")),
    });
    let spare = |host: &&Host| !model.hosts.iter().any(|known| known.name == host.name);
    let spares = view.steering.spares.iter().filter(spare).map(|host| Row {
        name: host.name.clone(),
        takes_part: false,
        text: "in the hosts file, not in this run".into(),
    });
    own.chain(spares).collect()
}

/// The host as typed, for one that shall take part (again).
fn typed(model: &Model, view: &ViewState, name: &str) -> Option<Host> {
    let planned = model.plan.iter().flat_map(|plan| &plan.hosts);
    let known = planned.map(|planned| &planned.host).find(|host| host.name == name);
    view.steering.spares.iter().find(|host| host.name == name).or(known).cloned()
}

/// Whose part changes.
pub fn others(model: &Model, view: &ViewState, changed: &BTreeSet<String>) -> OtherHosts {
    let rows = rows(model, view);
    let picked = |row: &&Row| changed.contains(&row.name);
    let exclude =
        rows.iter().filter(picked).filter(|row| row.takes_part).map(|row| row.name.clone()).collect();
    let add = rows.iter().filter(picked).filter(|row| !row.takes_part);
    OtherHosts { exclude, add: add.filter_map(|row| typed(model, view, &row.name)).collect() }
}

/// What Enter orders, or why nothing.
pub fn order(model: &Model, view: &ViewState, changed: &BTreeSet<String>) -> Result<Action, String> {
    let hosts = others(model, view, changed);
    if hosts == OtherHosts::default() {
        return Err("other hosts: space changes a host's part first".into());
    }
    if let Some(Err(error)) = preview(model, &hosts) {
        return Err(format!("{}; {CHANGES}", error.cause.with_hint()));
    }
    let from = (!model.checkpoints.is_empty()).then(|| "latest".to_string());
    // The overlay shows what the next generation runs.
    let shown = model.run.launch.clone();
    let OtherHosts { exclude, add } = hosts;
    Ok(Action::Tell(Event::RestartRequested { from, exclude, add, experiment: None, shown }))
}

/// The plan that the changes make, `None` as long as only a new host itself can tell.
fn preview(model: &Model, hosts: &OtherHosts) -> Option<Result<Plan, PlanError>> {
    let plan = model.plan.as_ref().filter(|_| !hosts.is_open(model))?;
    Some(hosts.plan(model, plan))
}

/// The rows of a list from `first` on can be clicked.
pub fn target_rows(ctx: &Ctx<'_>, inner: Rect, first: usize, shown: usize) {
    for row in 0..shown {
        let place = Rect { y: inner.y + row as u16, height: 1, ..inner }.intersection(inner);
        ctx.target(place, Target::Row(first + row));
    }
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, changed: &BTreeSet<String>, selected: usize) {
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(76);
    let rows = rows(ctx.live, ctx.view);
    let glyphs = ctx.glyphs();
    let mut lines: Vec<Line<'static>> = Vec::new();
    let (outcome, role) = match preview(ctx.live, &others(ctx.live, ctx.view, changed)) {
        None => (NOT_ASKED.to_string(), Role::Dim),
        Some(Ok(plan)) => {
            let sizes: Vec<String> = plan.sizes.iter().map(PlannedSize::text).collect();
            let now = ctx.live.ranks.len();
            let ranks = words::plural(plan.ranks.len(), "rank");
            let sizes =
                if sizes.is_empty() { String::new() } else { format!("; per rank: {}", sizes.join(", ")) };
            (format!("{ranks} (now {now}){sizes}"), Role::Good)
        }
        Some(Err(error)) => {
            let hint = &error.cause.hint;
            (format!("{} (key {}): {hint}; {CHANGES}", error.cause.error, error.key), Role::Bad)
        }
    };
    let outcome = text::wrap(&outcome, cells);
    let height = usize::from(ctx.geo.area.height).saturating_sub(7 + outcome.len()).max(1);
    let first = selected.saturating_sub(height - 1);
    for (i, row) in rows.iter().enumerate().skip(first).take(height) {
        let will = row.takes_part != changed.contains(&row.name);
        let mark = if i == selected { glyphs.pick("▸", ">") } else { " " };
        let sign = if will { "[x]" } else { "[ ]" };
        let role = if changed.contains(&row.name) { Role::Accent } else { Role::Text };
        let text = format!("{mark} {sign} {}  {}", row.name, row.text);
        lines.push(Line::from(ctx.s(ctx.cut(&text, cells), role)));
    }
    lines.push(Line::default());
    lines.extend(outcome.into_iter().map(|line| Line::from(ctx.s(line, role))));
    let size = (cells as u16, lines.len() as u16);
    let keys = match ctx.live.checkpoints.is_empty() {
        true => "space changes, enter restarts afresh, R with keys, esc back",
        false => "space changes, enter restarts from the latest, R with keys, esc back",
    };
    let inner = frame::popup(ctx, buf, size, Role::Warn, "hosts of the next generation", keys);
    let shown = rows.len().saturating_sub(first).min(height);
    target_rows(ctx, inner, first, shown);
    for (row, line) in lines.into_iter().enumerate() {
        put(buf, inner, row, line);
    }
}
