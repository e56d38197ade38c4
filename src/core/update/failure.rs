//! Which rank failed first, over all hosts and by one clock.
//!
//! Each failure is timed by its own agent. The offset of an agent's clock comes from round trips: the agent
//! read its clock somewhere between the question and the answer, so the middle is right within half the round
//! trip (Cristian 1989; the same bound as in NTP, RFC 5905 section 8).

use crate::report::FirstFailure;
use crate::run::Weight;
use crate::session::Ctx;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;

/// How far two clocks may drift apart per second, so that old measurements count for less: 100 parts in a
/// million, more than quartz does.
const DRIFT: f64 = 1e-4;
/// Most log lines of the first failure that are reported.
const LINES: usize = 20;

/// An agent's clock showed `theirs` somewhere in the last `rtt_ms` milliseconds. The tightest measurement
/// counts.
pub(super) fn measure_clock(ctx: &mut Ctx<'_>, node: NodeRank, theirs: f64, rtt_ms: u64) {
    if ctx.session.clock.wall.is_none() || !theirs.is_finite() {
        return;
    }
    // Times are whole milliseconds on both sides.
    let bound_s = rtt_ms as f64 / 2000.0 + 0.001;
    let ours = ctx.session.clock.wall_time(ctx.now) - rtt_ms as f64 / 2000.0;
    let now = ctx.now;
    let host = ctx.host(node);
    let known_s = host.clock_bound_s + now.since(host.clock_at) as f64 / 1000.0 * DRIFT;
    if host.clock_bound_s == 0.0
        || bound_s <= known_s
        || (theirs - ours - host.clock_offset_s).abs() > known_s + bound_s
    {
        (host.clock_offset_s, host.clock_bound_s, host.clock_at) = (theirs - ours, bound_s, now);
    }
}

/// A time of the agent of `node` on the console's clock, and the bound of its error, seconds.
pub(super) fn on_our_clock(ctx: &Ctx<'_>, node: NodeRank, time: f64) -> (f64, f64) {
    let host = &ctx.model.hosts[node.index()];
    let age_s = ctx.now.since(host.clock_at) as f64 / 1000.0;
    (
        time - host.clock_offset_s,
        host.clock_bound_s + if host.clock_bound_s > 0.0 { age_s * DRIFT } else { 0.0 },
    )
}

/// The report about the present generation's failures, if there are any.
pub(super) fn report(ctx: &Ctx<'_>) -> Option<FirstFailure> {
    let facts = &ctx.session.run.facts;
    let first = facts.culprit()?;
    let mut others: Vec<_> = facts.failures.iter().filter(|other| other.rank != first.rank).collect();
    others.sort_by(|a, b| a.time.total_cmp(&b.time));
    let close = |other: &&&crate::run::Failure| {
        other.weight == first.weight
            && other.weight != Weight::Victim
            && other.time - first.time <= other.bound_s + first.bound_s
    };
    let together: Vec<Rank> = others.iter().filter(close).map(|other| other.rank).collect();
    let followed: Vec<Rank> =
        others.iter().map(|other| other.rank).filter(|rank| !together.contains(rank)).collect();
    let from = first.last_lines.len().saturating_sub(LINES);
    let list = |ranks: &[Rank]| {
        let shown: Vec<String> = ranks.iter().take(16).map(Rank::to_string).collect();
        let more = ranks.len().saturating_sub(shown.len());
        let dots = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{dots}", shown.join(", "))
    };
    let plural = |ranks: &[Rank]| if ranks.len() == 1 { "rank" } else { "ranks" };
    let mut line = format!("first failure: {}", first.text);
    if !together.is_empty() {
        line.push_str(&format!(
            "; {} {} failed at the same time as far as the clocks can tell (±{:.0} ms)",
            plural(&together),
            list(&together),
            (first.bound_s * 1000.0).max(1.0)
        ));
    }
    if !followed.is_empty() {
        line.push_str(&format!("; {} {} followed", plural(&followed), list(&followed)));
    }
    Some(FirstFailure {
        rank: first.rank,
        host: first.host.clone(),
        error: first.text.clone(),
        time: first.time,
        bound_s: first.bound_s,
        certain: together.is_empty(),
        last_lines: first.last_lines[from..].iter().map(|line| words::clip(line, 400)).collect(),
        followed,
        together,
        line: words::clip(&line, 1000),
    })
}
