//! The hosts of the next generation: who takes part, who will, and what that makes of the sizes, before
//! anything is stopped.

use crate::state::{Action, ViewState};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_types::host::Host;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, replan};
use rankdeck_types::probe::Probe;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;
use std::collections::BTreeSet;

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

fn split(model: &Model, view: &ViewState, changed: &BTreeSet<String>) -> (Vec<String>, Vec<Host>) {
    let rows = rows(model, view);
    let picked = |row: &&Row| changed.contains(&row.name);
    let exclude =
        rows.iter().filter(picked).filter(|row| row.takes_part).map(|row| row.name.clone()).collect();
    let add = rows.iter().filter(picked).filter(|row| !row.takes_part);
    (exclude, add.filter_map(|row| typed(model, view, &row.name)).collect())
}

/// What Enter orders, or why nothing.
pub fn order(model: &Model, view: &ViewState, changed: &BTreeSet<String>) -> Result<Action, String> {
    let (exclude, add) = split(model, view, changed);
    if exclude.is_empty() && add.is_empty() {
        return Err("other hosts: space changes a host's part first".into());
    }
    if let Some(Err(error)) = preview(model, view, changed) {
        return Err(error.cause.with_hint());
    }
    let from = (!model.checkpoints.is_empty()).then(|| "latest".to_string());
    // The overlay shows what the next generation runs.
    let shown = model.run.launch.clone();
    Ok(Action::Tell(Event::RestartRequested { from, exclude, add, experiment: None, shown }))
}

/// The plan that the changes make, `None` as long as only a new host itself can tell.
fn preview(model: &Model, view: &ViewState, changed: &BTreeSet<String>) -> Option<Result<Plan, PlanError>> {
    let (exclude, add) = split(model, view, changed);
    let unknown =
        |host: &Host| host.gpus.is_some() && !model.hosts.iter().any(|known| known.name == host.name);
    if add.iter().any(unknown) {
        return None;
    }
    let probe = |host: &rankdeck_core::model::HostModel| host.probe.clone().unwrap_or_default();
    let mut probes: Vec<Probe> = model.hosts.iter().map(probe).collect();
    probes.resize(model.hosts.len() + add.len(), Probe::default());
    for probe in &mut probes {
        // Whether there is a trainer shows when the host is connected.
        probe.trainer.get_or_insert_default();
    }
    let exclude = exclude.into_iter().collect();
    model.plan.as_ref().map(|plan| replan(plan, &exclude, &add, &probes, PlanDraft::resolve))
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, changed: &BTreeSet<String>, selected: usize) {
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(76);
    let rows = rows(ctx.live, ctx.view);
    let glyphs = ctx.glyphs();
    let mut lines: Vec<Line<'static>> = Vec::new();
    let (outcome, role) = match preview(ctx.live, ctx.view, changed) {
        None => ("the new host is asked for its GPUs first".to_string(), Role::Dim),
        Some(Ok(plan)) => {
            let sizes: Vec<String> = plan
                .sizes
                .iter()
                .map(|size| format!("{} {} of {}", size.name, size.local, size.global))
                .collect();
            let now = ctx.live.ranks.len();
            let ranks = words::plural(plan.ranks.len(), "rank");
            let sizes =
                if sizes.is_empty() { String::new() } else { format!("; per rank: {}", sizes.join(", ")) };
            (format!("{ranks} (now {now}){sizes}"), Role::Good)
        }
        Some(Err(error)) => {
            (format!("{} (key {}): {}", error.cause.error, error.key, error.cause.hint), Role::Bad)
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
        true => "space changes, enter restarts afresh, esc goes back",
        false => "space changes, enter restarts from the latest checkpoint, esc back",
    };
    let inner = frame::popup(ctx, buf, size, Role::Warn, "hosts of the next generation", keys);
    for (row, line) in lines.into_iter().enumerate() {
        put(buf, inner, row, line);
    }
}
