//! What the page of the log says about lines of the hosts' files.

use crate::log_view::Files;
use crate::state::Pane;
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::Ctx;
use rankdeck_core::model::{Search, SearchState};
use rankdeck_types::words;
use ratatui::text::{Line, Span};

/// Most hosts of which it is said what is missing.
const MOST_HOLES: usize = 3;
/// Cells from which on a long pattern has room.
const ROOMY: u16 = 100;

/// Whose lines the page shows.
pub fn whose(ctx: &Ctx<'_>, usual: String) -> String {
    match &ctx.view.log.back {
        Some(_) => "all ranks".into(),
        None => usual,
    }
}

/// What stands in the frame: the pattern, which match of how many, where.
pub fn info(ctx: &Ctx<'_>, files: Files, search: &Search) -> Vec<Span<'static>> {
    let number = |n: u64| words::count(n);
    let mut info = Vec::new();
    if !ctx.view.log.filter.is_empty() {
        let cells = if ctx.geo.pane(Pane::Log).width < ROOMY { 12 } else { 24 };
        info.push(ctx.s(format!("/{}", ctx.cut(&ctx.view.log.filter, cells)), Role::Accent));
    }
    if files.around {
        let clock = files
            .at
            .filter(|at| at.time_ms > 0)
            .map(|at| format!(" {}", time_of_day(at.time_ms as f64 / 1000.0, ctx.view.chart.utc_offset_s)));
        let text = format!("  lines around{}", clock.unwrap_or_default());
        info.push(ctx.s(text, Role::Text));
        info.push(ctx.s("  esc back", Role::Warn));
        return info;
    }
    if !search.is_over() {
        info.push(ctx.s("  looking in the hosts' files", Role::Text));
        return info;
    }
    let which = match files.current(search) {
        Some(index) => format!("{} of ", number(search.older + index as u64 + 1)),
        None => String::new(),
    };
    let what = match until(ctx, search) {
        Some(clock) => format!("  up to {clock}: line"),
        None => "  match".into(),
    };
    info.push(ctx.s(format!("{what} {which}{}", number(search.matches())), Role::Text));
    if ctx.geo.pane(Pane::Log).width >= ROOMY || search.wanted.until.is_none() {
        let lines = text::count_in(search.lines(), 7);
        info.push(ctx.s(format!(" in {lines} lines on the hosts"), Role::Dim));
    }
    info
}

/// The time of day up to which all lines were asked for.
fn until(ctx: &Ctx<'_>, search: &Search) -> Option<String> {
    Some(time_of_day(search.wanted.until?, ctx.view.chart.utc_offset_s))
}

/// What is to be said above the lines: how far the hosts are, what is missing.
pub fn notes(ctx: &Ctx<'_>, files: Files, search: &Search) -> Vec<Line<'static>> {
    let mut notes = Vec::new();
    let mut note = |text: String, role: Role| notes.push(Line::from(ctx.s(text, role)));
    if !search.is_over() {
        let (done, all) = search.bytes();
        let far = match all {
            0 => String::new(),
            _ => format!(": {} of {}", words::bytes(done), words::bytes(all)),
        };
        let waits = |state: &SearchState| matches!(state, SearchState::Asked | SearchState::Looking);
        let left: Vec<&str> =
            search.hosts.iter().filter(|host| waits(&host.state)).map(|host| host.name.as_str()).collect();
        let whom = match left[..] {
            [one] => one.to_owned(),
            _ => words::plural(left.len(), "host"),
        };
        note(
            format!("{whom} looks through its files{far}; esc calls it off")
                .replace("hosts looks through its", "hosts look through their"),
            Role::Dim,
        );
    } else if search.places.is_empty() {
        let what = match files.step {
            _ if files.around => "no lines of that moment are kept on the hosts; esc goes back",
            _ if search.wanted.until.is_some() => {
                "no lines of that time are kept on the hosts; esc goes back"
            }
            0 => "nothing matches in the hosts' files; esc goes back",
            ..0 => "nothing earlier matches in the hosts' files; n or esc goes back",
            _ => "nothing later matches in the hosts' files; esc goes back",
        };
        note(what.into(), Role::Dim);
    }
    for (host, why) in search.holes().take(MOST_HOLES) {
        note(format!("{host} {why}"), Role::Warn);
    }
    let more = search.holes().count().saturating_sub(MOST_HOLES);
    if more > 0 {
        note(format!("{} more were not looked at", words::plural(more, "host")), Role::Warn);
    }
    let gone = search.gone_bytes();
    if gone > 0 && search.is_over() {
        note(
            format!("before these: {} that ranks had written and hosts no longer keep", words::bytes(gone)),
            Role::Dim,
        );
    }
    notes
}
