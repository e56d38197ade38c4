//! A clean stop: how long it may take while ranks make progress, and what is lost when it is none.

use crate::limits::Limits;
use crate::model::{HostModel, Model, RankLife};
use crate::report::Outcome;
use crate::run::Stop;
use crate::session::Ctx;
use rankdeck_proto::message::{Ending, StopMode};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;

/// A page that was written within so many milliseconds shows progress.
const RECENT_MS: u64 = 2_000;
/// Iterations shorter than this are not worth a word.
const TOLD_MS: u64 = 2_000;

/// Since when the stop makes no progress. Ranks that move on their way to a clean stop are waited for, up to
/// the limit; ranks that only wait for others do not count.
pub(super) fn no_progress_since(ctx: &mut Ctx<'_>, stop: Stop, limits: &Limits) -> Timestamp {
    let now = ctx.now;
    let moves = ctx.model.ranks.iter().any(|rank| {
        let live = ctx.model.hosts.get(rank.node.index()).is_some_and(HostModel::is_live);
        let fresh = live && rank.sampled.is_some_and(|at| now.since(at) < RECENT_MS);
        let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
        !matches!(rank.life, RankLife::Exited(_))
            && fresh
            && page.is_some_and(|page| page.heartbeat_age_ms < RECENT_MS)
    });
    let facts = &mut ctx.session.run.facts;
    if stop.mode == StopMode::Clean && moves && now.since(stop.at) < limits.stop {
        facts.moved = Some(now);
    }
    facts.moved.filter(|_| stop.mode == StopMode::Clean).map_or(stop.at, |moved| moved.max(stop.at))
}

/// The end of a stop by which ranks were killed is no success, and says what they had not saved. A program of
/// the user may not know SIGTERM: then a stop on request is as clean as it can be, and a goal is not reached
/// cleanly.
pub(super) fn told_apart(ctx: &Ctx<'_>, ending: Ending) -> Ending {
    let builtin = ctx.model.plan.as_ref().is_some_and(|plan| plan.is_builtin());
    let told = ctx.session.run.facts.told.is_some();
    let good = ending.outcome == Outcome::Succeeded;
    let meant = good || ending.exit_code == 130;
    if told || !meant || ctx.session.run.facts.killed == 0 {
        return ending;
    }
    let exit_code = if builtin || good { Ending::KILLED } else { ending.exit_code };
    let reason = match lost_work(ctx.model) {
        Some(lost) if builtin => format!("{}, not clean: {lost}", ending.reason),
        _ => format!("{}, not clean: ranks were killed", ending.reason),
    };
    Ending { outcome: Outcome::Stopped, exit_code, reason, ..ending }
}

/// What a stop waits for, where that takes long enough to be noticed.
pub(super) fn awaited(model: &Model) -> Option<String> {
    let latest = model.latest.as_ref().filter(|latest| latest.gap_ms >= TOLD_MS)?;
    let (next, gap) = (latest.counters.train_iter + 1, words::duration_ms(latest.gap_ms));
    Some(format!("the stop waits for iteration {next} to end; one takes about {gap}"))
}

/// The iterations between the latest checkpoint and the end; `None` when nothing is known of any.
fn lost_work(model: &Model) -> Option<String> {
    let reached =
        model.ranks.iter().filter_map(|rank| rank.sample.as_ref()?.page.as_ref()).map(|p| p.train_iter);
    let totals = model.progress.as_ref().map(|progress| progress.totals.train_iter);
    let reached = reached.chain(totals).max().unwrap_or(0);
    let saved = model.checkpoints.iter().map(|checkpoint| checkpoint.train_iter).max();
    let text = match saved.unwrap_or(0) {
        saved if saved >= reached => "ranks were killed, and no complete iteration is lost".into(),
        saved if saved + 1 == reached => format!("iteration {reached} is lost"),
        saved => format!("iterations {} to {reached} are lost", saved + 1),
    };
    let kept = match saved {
        Some(saved) => format!("; the last checkpoint is of iteration {saved}"),
        None => "; there is no checkpoint".to_owned(),
    };
    (reached > 0 || saved.is_some()).then(|| text + &kept)
}
