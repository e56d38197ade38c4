//! Finds the rank that failed first, over all hosts and by one clock.
//!
//! Each failure is timed by its own agent. The offset of an agent's clock comes from round trips: the agent
//! read its clock somewhere between the question and the answer, so the middle is right within half the round
//! trip (Cristian 1989; the same bound as in NTP, RFC 5905 section 8).

use crate::model::HostModel;
use crate::report::FirstFailure;
use crate::run::BlamePriority;
use crate::session::{EventCtx, RecordContext};
use rankdeck_proto::message::RunEnd;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;

/// How far two clocks may drift apart per second, so that old measurements count for less: 100 parts in a
/// million, more than quartz does.
const DRIFT: f64 = 1e-4;
/// Furthest clock of a host that is believed, seconds: a century.
const FURTHEST_S: f64 = 3.2e9;
/// Most log lines of the first failure that are reported.
const LINES: usize = 20;

/// An agent's clock showed `theirs` somewhere in the last `rtt_ms` milliseconds. The tightest measurement
/// counts.
pub(super) fn measure_clock(ctx: &mut EventCtx<'_>, node: NodeRank, theirs: f64, rtt_ms: u64) {
    if ctx.session.clock.wall.is_none() || !theirs.is_finite() {
        return;
    }
    // Times are whole milliseconds on both sides.
    let bound_s = rtt_ms as f64 / 2000.0 + 0.001;
    let ours = ctx.session.clock.wall_time(ctx.now) - rtt_ms as f64 / 2000.0;
    if !is_believed(theirs - ours) {
        return;
    }
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

fn is_believed(offset_s: f64) -> bool {
    offset_s.abs() <= FURTHEST_S
}

/// Forgets measurements that no clock can have made.
pub(super) fn check_clock(host: &mut HostModel) {
    if !is_believed(host.clock_offset_s) || !(0.0..=FURTHEST_S).contains(&host.clock_bound_s) {
        (host.clock_offset_s, host.clock_bound_s) = (0.0, 0.0);
    }
}

/// A time of the agent of `node` on the console's clock, and the bound of its error, seconds.
pub(super) fn on_our_clock(ctx: &EventCtx<'_>, node: NodeRank, time: f64) -> (f64, f64) {
    let host = &ctx.model.hosts[node.index()];
    let age_s = ctx.now.since(host.clock_at) as f64 / 1000.0;
    (
        time - host.clock_offset_s,
        host.clock_bound_s + if host.clock_bound_s > 0.0 { age_s * DRIFT } else { 0.0 },
    )
}

/// Milliseconds since a record of the past was written; 0 of one that has just been.
pub(super) fn age_ms(ctx: &EventCtx<'_>, at: RecordContext) -> u64 {
    if !at.past || ctx.session.clock.wall.is_none() {
        return 0;
    }
    let (written, _) = on_our_clock(ctx, at.node, at.time);
    ((ctx.session.clock.wall_time(ctx.now) - written) * 1000.0).max(0.0) as u64
}

/// All ranks failed by themselves with the same error: one sentence, with the message of one of them.
fn all_alike(ctx: &EventCtx<'_>) -> Option<String> {
    let (facts, ranks) = (&ctx.session.run.facts, ctx.model.ranks.len());
    let first = facts.culprit().filter(|_| ranks > 1 && facts.alike().len() + 1 == ranks)?;
    Some(format!("all {ranks} ranks failed with the same error: {}", first.text))
}

/// The ending of the run. If all ranks failed with the same error, none is singled out.
pub(super) fn ending(ctx: &EventCtx<'_>) -> RunEnd {
    let ending = ctx.session.run.facts.ending();
    let first = ctx.session.run.facts.culprit().filter(|first| first.text == ending.reason);
    let reason = first.and_then(|_| all_alike(ctx));
    RunEnd { reason: reason.unwrap_or_else(|| ending.reason.clone()), ..ending }
}

/// The report about the present generation's failures, if there are any.
pub(super) fn report(ctx: &EventCtx<'_>) -> Option<FirstFailure> {
    let facts = &ctx.session.run.facts;
    let first = facts.culprit()?;
    let mut others: Vec<_> = facts.failures.iter().filter(|other| other.rank != first.rank).collect();
    others.sort_by(|a, b| a.time.total_cmp(&b.time));
    let close = |other: &&&crate::run::FailedRank| {
        other.weight == first.weight
            && other.weight != BlamePriority::Victim
            && other.time - first.time <= other.bound_s + first.bound_s
    };
    let together: Vec<Rank> = others.iter().filter(close).map(|other| other.rank).collect();
    let alike = facts.alike();
    let followed = others.iter().map(|other| other.rank);
    let followed: Vec<Rank> =
        followed.filter(|rank| !together.contains(rank) && !alike.contains(rank)).collect();
    let from = first.last_lines.len().saturating_sub(LINES);
    let list = |ranks: &[Rank]| {
        let shown: Vec<String> = ranks.iter().take(16).map(Rank::to_string).collect();
        let more = ranks.len().saturating_sub(shown.len());
        let dots = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{dots}", shown.join(", "))
    };
    let plural = |ranks: &[Rank]| if ranks.len() == 1 { "rank" } else { "ranks" };
    let unlike: Vec<Rank> = together.iter().copied().filter(|rank| !alike.contains(rank)).collect();
    let mut line = match all_alike(ctx) {
        Some(text) => text,
        None => format!("first failure: {}", first.text),
    };
    if !alike.is_empty() && all_alike(ctx).is_none() {
        line.push_str(&format!("; {} {} failed with the same error", plural(&alike), list(&alike)));
    }
    if !unlike.is_empty() {
        line.push_str(&format!(
            "; {} {} failed at the same time (clocks ±{:.0} ms)",
            plural(&unlike),
            list(&unlike),
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
        alike,
        followed,
        together,
        line: words::clip(&line, 1000),
    })
}
