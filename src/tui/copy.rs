//! What `y` puts on the clipboard: plain text of what is selected.

use crate::logs;
use crate::logs::LogFilter;
use crate::overlays;
use crate::ranks;
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
        Pane::Ranks if view.marked.is_empty() => {
            if let Some(rank) = ranks::selected(model, view) {
                out = overlays::inspect::plain(model, rank.rank, now);
            }
        }
        Pane::Ranks => {
            for rank in &view.marked {
                out += &overlays::inspect::plain(model, *rank, now);
                out.push('\n');
            }
        }
        Pane::Log => {
            let filter = LogFilter::new(&view.log_filter);
            let rows = view.geometry.log_rows.max(1);
            for line in logs::before(&logs::sources(model, view), &filter, view.log_at, rows).iter().rev() {
                let _ = writeln!(out, "[rank {}] {}", line.rank, words::clean(line.text));
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
                view.series.as_ref().and_then(|name| model.scalars.get_key_value(name))
            {
                let _ = writeln!(out, "env_step\t{name}");
                for (x, y) in series.points() {
                    let _ = writeln!(out, "{x}\t{y}");
                }
            }
        }
        Pane::Hosts => {
            if let Some(host) = view.host.and_then(|node| model.hosts.get(node.index())) {
                let _ = writeln!(out, "{} (node_rank {})", host.name, host.node_rank);
            }
        }
        Pane::Events => {
            for line in model.history.iter().rev().take(200).rev() {
                let _ = writeln!(out, "{}", line.text);
            }
        }
    }
    out
}
