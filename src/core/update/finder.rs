//! A search in the logs that the hosts keep.

use crate::model::{Search, SearchState, SearchedHost, theirs};
use crate::session::Ctx;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_proto::search::{LogFindings, LogSearch, Part};
use rankdeck_types::ids::NodeRank;

/// Milliseconds within which an agent answers that it looks.
const ANSWER_MS: u64 = 5_000;
/// Milliseconds within which it says how far it is.
const WORD_MS: u64 = 15_000;
/// Most lines of all hosts, and fewest of one.
const LINES: u32 = 4_000;
const LEAST_LINES: u32 = 40;

/// The user looks for something, or no longer.
pub(super) fn searched(ctx: &mut Ctx<'_>, wanted: Option<LogSearch>) -> bool {
    let under_way = find(ctx, |search| !search.is_over()).is_some();
    ctx.model.finder.requests += 1;
    let request = ctx.model.finder.requests;
    let Some(wanted) = wanted else {
        if under_way {
            for node in ctx.nodes() {
                if ctx.host(node).machine.is_live() {
                    ctx.send(node, ConsoleMessage::Search { request, wanted: None });
                }
            }
        }
        (ctx.model.finder.hits, ctx.model.finder.around) = (None, None);
        return true;
    };
    let mut search = Search { request, wanted, ..Search::default() };
    // Places of a search that goes on are on one clock.
    let known: Vec<(NodeRank, i64)> = match &ctx.model.finder.hits {
        Some(before) => before.hosts.iter().map(|host| (host.node, host.ahead_ms)).collect(),
        None => Vec::new(),
    };
    let live = ctx.model.hosts.iter().filter(|host| host.is_live()).count() as u32;
    let limit = (LINES / live.max(1)).max(LEAST_LINES).min(search.wanted.limit.max(1));
    for node in ctx.nodes() {
        let heard = ctx.session.clock.awake_ms;
        let host = ctx.host(node);
        let took_part = host.excluded.is_none() || host.machine.took_part;
        let known = known.iter().find(|(other, _)| *other == node).map(|(_, ahead_ms)| *ahead_ms);
        let ahead_ms = known.unwrap_or((host.clock_offset_s * 1000.0) as i64);
        let name = host.name.clone();
        let mut searched = SearchedHost { node, name, ahead_ms, heard, ..SearchedHost::default() };
        if host.machine.is_live() {
            let part = of_host(search.wanted.part, ahead_ms);
            let theirs = |time: f64| time + ahead_ms as f64 / 1000.0;
            let (since, until) = (search.wanted.since.map(theirs), search.wanted.until.map(theirs));
            let wanted = LogSearch { part, limit, since, until, ..search.wanted.clone() };
            let wanted = Some(Box::new(wanted));
            ctx.send(node, ConsoleMessage::Search { request, wanted });
        } else if took_part {
            searched.state = SearchState::Failed("is not connected".into());
        } else {
            continue;
        }
        search.hosts.push(searched);
    }
    let is_over = search.is_over();
    let finder = &mut ctx.model.finder;
    match search.wanted.part {
        Part::Around(_) => finder.around = Some(search),
        Part::Newest | Part::Before(_) | Part::After(_) => {
            (finder.hits, finder.around) = (Some(search), None);
        }
    }
    if is_over {
        settle(ctx, request);
    }
    true
}

/// The wanted part by the clock of a host.
fn of_host(part: Part, ahead_ms: i64) -> Part {
    match part {
        Part::Newest => Part::Newest,
        Part::Before(place) => Part::Before(theirs(place, ahead_ms)),
        Part::After(place) => Part::After(theirs(place, ahead_ms)),
        Part::Around(place) => Part::Around(theirs(place, ahead_ms)),
    }
}

fn find<'a>(ctx: &'a mut Ctx<'_>, which: impl Fn(&Search) -> bool) -> Option<&'a mut Search> {
    let finder = &mut ctx.model.finder;
    finder.hits.iter_mut().chain(&mut finder.around).find(|search| which(search))
}

/// A host has found something. Returns whether a screen could show it.
pub(super) fn found(ctx: &mut Ctx<'_>, node: NodeRank, request: u64, mut findings: LogFindings) -> bool {
    let awake = ctx.session.clock.awake_ms;
    let (ranks, generation) = (&ctx.model.ranks, ctx.model.run.generation);
    let all = findings.hits.len();
    // Ranks of former generations may have been elsewhere.
    findings.hits.retain(|hit| match ranks.get(hit.rank.index()) {
        Some(rank) => rank.node == node || hit.generation < generation,
        None => false,
    });
    findings.hits.truncate(LINES as usize);
    ctx.model.drops.misplaced += (all - findings.hits.len()) as u64;
    let Some(search) = find(ctx, |search| search.request == request) else { return false };
    let Some(host) = search.hosts.iter_mut().find(|host| host.node == node) else { return false };
    if matches!(host.state, SearchState::Over) {
        return false;
    }
    host.heard = awake;
    host.state = if findings.over { SearchState::Over } else { SearchState::Looking };
    host.findings = findings;
    if search.is_over() {
        settle(ctx, request);
    }
    true
}

/// The link to a host is lost: it says nothing more.
pub(super) fn lost(ctx: &mut Ctx<'_>, node: NodeRank) {
    give_up(ctx, |host| (host.node == node).then(|| "was lost while it looked".into()));
}

/// Time passes: agents that do not answer know no searches.
pub(super) fn ticked(ctx: &mut Ctx<'_>) -> bool {
    let awake = ctx.session.clock.awake_ms;
    give_up(ctx, |host| {
        let silent = awake.saturating_sub(host.heard);
        match host.state {
            SearchState::Asked if silent > ANSWER_MS => Some(
                "does not answer: its agent may be of an older rankdeck, see `rankdeck logs --grep`".into(),
            ),
            SearchState::Looking if silent > WORD_MS => Some("has stopped answering".into()),
            SearchState::Asked | SearchState::Looking | SearchState::Over | SearchState::Failed(_) => None,
        }
    })
}

/// A search waits for hosts.
pub(super) fn is_waiting(model: &crate::model::Model) -> bool {
    let finder = &model.finder;
    finder.hits.iter().chain(&finder.around).any(|search| !search.is_over())
}

fn give_up(ctx: &mut Ctx<'_>, why: impl Fn(&SearchedHost) -> Option<String>) -> bool {
    let mut over = Vec::new();
    let mut changed = false;
    let finder = &mut ctx.model.finder;
    for search in finder.hits.iter_mut().chain(&mut finder.around).filter(|search| !search.is_over()) {
        for host in &mut search.hosts {
            if !matches!(host.state, SearchState::Asked | SearchState::Looking) {
                continue;
            }
            if let Some(why) = why(host) {
                (host.state, changed) = (SearchState::Failed(why), true);
            }
        }
        if search.is_over() {
            over.push(search.request);
        }
    }
    over.into_iter().for_each(|request| settle(ctx, request));
    changed
}

fn settle(ctx: &mut Ctx<'_>, request: u64) {
    if let Some(search) = find(ctx, |search| search.request == request) {
        search.settle();
    }
}
