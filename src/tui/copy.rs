//! What `y` puts on the clipboard: plain text of what is selected.

use crate::chart_file;
use crate::log_walk;
use crate::logs;
use crate::overlays;
use crate::ranks;
use crate::report;
use crate::state::{Overlay, Pane, ViewState};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use std::fmt::Write as _;

/// Most bytes on the clipboard; terminals cut OSC 52 at about this size.
pub const LIMIT: usize = 64 * 1024;

/// Plain text of what is selected.
pub fn text(model: &Model, view: &ViewState, now: Timestamp) -> String {
    let mut out = match view.overlay() {
        Some(Overlay::Inspect { rank, .. }) => overlays::inspect::plain(model, *rank, now),
        Some(Overlay::Evidence { about, .. }) => overlays::evidence::plain(model, about),
        Some(Overlay::Event { number, .. }) => {
            overlays::event::plain(model, *number, view.chart.utc_offset_s)
        }
        Some(Overlay::Policy) => overlays::policy::plain(model),
        Some(Overlay::Pictures(_)) => overlays::pictures::plain(model).join("\n"),
        _ => pane(model, view, now),
    };
    let mut end = out.len().min(LIMIT);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out
}

fn pane(model: &Model, view: &ViewState, now: Timestamp) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    match view.pane() {
        Pane::Ranks if view.ranks.marked.is_empty() => {
            if let Some(rank) = ranks::selected(model, view) {
                out = overlays::inspect::plain(model, rank.rank, now);
            }
        }
        Pane::Ranks => {
            for rank in &view.ranks.marked {
                out += &overlays::inspect::plain(model, *rank, now);
                out.push('\n');
            }
        }
        Pane::Log => {
            let rows = view.geometry.log_rows.max(1);
            let lowest = log_walk::position(model, view).at;
            for line in logs::Query::new(model, view).before(lowest, rows).iter().rev() {
                let many = if line.count > 1 { format!("  x{}", line.count) } else { String::new() };
                let whose = match line.others.is_empty() {
                    true => format!("rank {}", line.rank),
                    false => format!("ranks {}", line.ranks()),
                };
                let _ = writeln!(out, "[{whose}] {}{many}", words::clean_output(line.text));
            }
        }
        Pane::Evals => {
            out += "env_step\ttrain_iter\tepisodes\treturn_mean\treturn_std\treturn_min\treturn_max\tstop\n";
            for eval in &model.evals {
                let _ = writeln!(
                    out,
                    "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                    eval.env_step,
                    eval.train_iter,
                    eval.episodes,
                    eval.return_mean,
                    eval.return_std,
                    eval.return_min,
                    eval.return_max,
                    eval.stop,
                );
            }
        }
        Pane::Charts => {
            if let Some((name, series)) =
                view.series.selected.as_ref().and_then(|name| Some((name, model.chart(name)?)))
            {
                out = chart_file::csv(&[(name, series)]).replace(',', "\t");
            }
        }
        Pane::Hosts => {
            if let Some(host) = view.hosts.selected.and_then(|node| model.hosts.get(node.index())) {
                let _ = writeln!(out, "{} (node_rank {})", host.name, host.node_rank);
            }
        }
        Pane::End => {
            let sources =
                report::Sources { utc_offset_s: view.chart.utc_offset_s, ..report::Sources::default() };
            out = report::markdown(model, &sources);
        }
        Pane::Events => {
            for line in model.history.iter().rev().take(200).rev() {
                let _ = writeln!(out, "{}", line.text);
            }
        }
    }
    out
}
