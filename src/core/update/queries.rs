//! Queries to agents, and their replies: searches in the logs that hosts keep, a process's environment variables or
//! a signal to it, and live frames of rank 0's evaluations while a screen shows them.

use crate::model::{
    EventSubject, EventTone, Model, PolicyView, ProcessQuery, SearchResults, SearchState, SearchedHost,
    SentSignal, theirs,
};
use crate::report::ReportBody;
use crate::session::{EventCtx, RecordContext};
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_proto::process::{ProcessAction, ProcessName, ReachOutcome};
use rankdeck_proto::search::{HitSelection, LogFindings, LogSearch};
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};
use rankdeck_types::words::signal_name;

/// Milliseconds within which an agent answers a query.
const ANSWER_MS: u64 = 5_000;
/// Milliseconds within which a search reports progress.
const PROGRESS_MS: u64 = 15_000;
/// Most lines of all hosts, and fewest of one.
const LINES: u32 = 4_000;
const LEAST_LINES: u32 = 40;

/// The link to a host is lost: its open queries fail.
pub(super) fn on_link_lost(ctx: &mut EventCtx<'_>, node: NodeRank) {
    fail_searches(ctx, |host| (host.node == node).then(|| "disconnected during the search".into()));
    ctx.model.process_queries.settle(|query| {
        let error = format!("{} disconnected before it responded", query.host);
        let lost = HintedError::new(error, "try again when it is connected");
        (query.node == node).then_some(ReachOutcome::Refused(lost))
    });
}

/// Time passes: queries that an agent does not respond fail. It may be older and not support them.
pub(super) fn on_tick(ctx: &mut EventCtx<'_>) -> bool {
    let awake = ctx.session.clock.awake_ms;
    let searches = fail_searches(ctx, |host| {
        let silent = awake.saturating_sub(host.answered_at);
        match host.state {
            SearchState::Sent if silent > ANSWER_MS => {
                Some("no response (its agent may be older); use `rankdeck logs --grep`".into())
            }
            SearchState::Running if silent > PROGRESS_MS => Some("stopped responding".into()),
            SearchState::Sent | SearchState::Running | SearchState::Over | SearchState::Failed(_) => None,
        }
    });
    let processes = ctx.model.process_queries.settle(|query| {
        let error = format!("{} is not responding", query.host);
        let hint = "its agent may be older, or the host is overloaded";
        let late = awake.saturating_sub(query.since) > ANSWER_MS;
        late.then(|| ReachOutcome::Refused(HintedError::new(error, hint)))
    });
    searches || processes
}

/// Hosts have open queries that a screen waits for.
pub(crate) fn is_waiting(model: &Model) -> bool {
    let finder = &model.log_search;
    finder.hits.iter().chain(&finder.around).any(|search| !search.is_over())
        || model.process_queries.is_waiting()
}

/// The user starts a search, or ends it.
pub(super) fn request_search(ctx: &mut EventCtx<'_>, query: Option<LogSearch>) -> bool {
    let under_way = find(ctx, |search| !search.is_over()).is_some();
    ctx.model.log_search.requests += 1;
    let request = ctx.model.log_search.requests;
    let Some(query) = query else {
        if under_way {
            for node in ctx.nodes() {
                if ctx.host(node).machine.is_live() {
                    ctx.send(node, ConsoleMessage::Search { request, search: None });
                }
            }
        }
        (ctx.model.log_search.hits, ctx.model.log_search.around) = (None, None);
        return true;
    };
    let mut search = SearchResults { request, query, ..SearchResults::default() };
    // Places of a continued search are on one clock.
    let known: Vec<(NodeRank, i64)> = match &ctx.model.log_search.hits {
        Some(before) => before.hosts.iter().map(|host| (host.node, host.ahead_ms)).collect(),
        None => Vec::new(),
    };
    let live = ctx.model.hosts.iter().filter(|host| host.is_live()).count() as u32;
    let limit = (LINES / live.max(1)).max(LEAST_LINES).min(search.query.limit.max(1));
    for node in ctx.nodes() {
        let answered_at = ctx.session.clock.awake_ms;
        let host = ctx.host(node);
        let took_part = host.excluded.is_none() || host.machine.took_part;
        let known = known.iter().find(|(other, _)| *other == node).map(|(_, ahead_ms)| *ahead_ms);
        let ahead_ms = known.unwrap_or((host.clock_offset_s * 1000.0) as i64);
        let name = host.name.clone();
        let mut searched = SearchedHost { node, name, ahead_ms, answered_at, ..SearchedHost::default() };
        if host.machine.is_live() {
            let part = of_host(search.query.part, ahead_ms);
            let theirs = |time: f64| time + ahead_ms as f64 / 1000.0;
            let (since, until) = (search.query.since.map(theirs), search.query.until.map(theirs));
            let query = LogSearch { part, limit, since, until, ..search.query.clone() };
            let query = Some(Box::new(query));
            ctx.send(node, ConsoleMessage::Search { request, search: query });
        } else if took_part {
            searched.state = SearchState::Failed("not connected".into());
        } else {
            continue;
        }
        search.hosts.push(searched);
    }
    let is_over = search.is_over();
    let finder = &mut ctx.model.log_search;
    match search.query.part {
        HitSelection::Around(_) => finder.around = Some(search),
        HitSelection::Newest | HitSelection::Before(_) | HitSelection::After(_) => {
            (finder.hits, finder.around) = (Some(search), None);
        }
    }
    if is_over {
        settle(ctx, request);
    }
    true
}

/// The requested part by the clock of a host.
fn of_host(part: HitSelection, ahead_ms: i64) -> HitSelection {
    match part {
        HitSelection::Newest => HitSelection::Newest,
        HitSelection::Before(place) => HitSelection::Before(theirs(place, ahead_ms)),
        HitSelection::After(place) => HitSelection::After(theirs(place, ahead_ms)),
        HitSelection::Around(place) => HitSelection::Around(theirs(place, ahead_ms)),
    }
}

fn find<'a>(
    ctx: &'a mut EventCtx<'_>,
    which: impl Fn(&SearchResults) -> bool,
) -> Option<&'a mut SearchResults> {
    let finder = &mut ctx.model.log_search;
    finder.hits.iter_mut().chain(&mut finder.around).find(|search| which(search))
}

/// A host has found something. Returns whether a screen could show it.
pub(super) fn on_findings(
    ctx: &mut EventCtx<'_>,
    node: NodeRank,
    request: u64,
    mut findings: LogFindings,
) -> bool {
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
    host.answered_at = awake;
    host.state = if findings.over { SearchState::Over } else { SearchState::Running };
    host.findings = findings;
    if search.is_over() {
        settle(ctx, request);
    }
    true
}

/// Ends the search of hosts for which `why` has a reason. Returns whether there is one.
fn fail_searches(ctx: &mut EventCtx<'_>, why: impl Fn(&SearchedHost) -> Option<String>) -> bool {
    let mut over = Vec::new();
    let mut changed = false;
    let finder = &mut ctx.model.log_search;
    for search in finder.hits.iter_mut().chain(&mut finder.around).filter(|search| !search.is_over()) {
        for host in &mut search.hosts {
            if !matches!(host.state, SearchState::Sent | SearchState::Running) {
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

fn settle(ctx: &mut EventCtx<'_>, request: u64) {
    if let Some(search) = find(ctx, |search| search.request == request) {
        search.settle();
    }
}

/// The user requests something of a process.
pub(super) fn request_process_action(
    ctx: &mut EventCtx<'_>,
    node: NodeRank,
    process: ProcessName,
    action: ProcessAction,
) -> bool {
    if node.index() >= ctx.model.hosts.len() {
        return false;
    }
    let (since, host) = (ctx.session.clock.awake_ms, ctx.host_name(node));
    let live = ctx.host(node).is_live();
    let outcome = (!live).then(|| {
        ReachOutcome::Refused(HintedError::new(
            format!("{host} is not connected"),
            "try again when it is connected",
        ))
    });
    let query = ProcessQuery { outcome, since, ..ProcessQuery::new(node, host, process, action) };
    let request = ctx.model.process_queries.add(query);
    if live {
        ctx.send(node, ConsoleMessage::Reach { request, process, action });
    }
    true
}

/// An agent answers a process query.
pub(super) fn on_outcome(
    ctx: &mut EventCtx<'_>,
    node: NodeRank,
    request: u64,
    outcome: ReachOutcome,
) -> bool {
    let mut outcome = Some(outcome);
    ctx.model
        .process_queries
        .settle(|query| (query.request == request && query.node == node).then(|| outcome.take()).flatten())
}

/// A console, this one or another, had a signal sent to a process.
pub(super) fn on_signal(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    rank: Option<Rank>,
    pid: u32,
    signal: i32,
) {
    let host = ctx.host_name(at.node);
    let who = rank.map_or_else(|| format!("pid {pid}"), |rank| format!("rank {rank} (pid {pid})"));
    let text = format!("{who} on {host}: {} sent from a console", signal_name(signal));
    ctx.note_about(at.time, EventTone::Warn, text.clone(), rank.map(EventSubject::Rank));
    ctx.report_at(at.generation, at.time, ReportBody::Notice { node_rank: at.node, host, text });
    let current = ctx.session.run.is_current(at.generation);
    let model = rank.filter(|_| current).and_then(|rank| ctx.model.ranks.get_mut(rank.index()));
    if let Some(model) = model.filter(|model| model.node == at.node) {
        model.signalled = Some(SentSignal { signal, time: at.time });
        ctx.session.run.facts.signalled = rank.map(|rank| (rank, signal));
    }
}

/// A screen shows live frames, or no longer: agents send frames only to consoles that requested them.
pub(super) fn request_frames(ctx: &mut EventCtx<'_>, on: bool) -> bool {
    if std::mem::replace(&mut ctx.model.policy.watched, on) == on {
        return false;
    }
    // What was counted was of the time before.
    ctx.model.policy.missed = 0;
    for node in ctx.nodes() {
        send_frame_request(ctx, node);
    }
    true
}

/// Sends the agent of a host whether frames are requested. Any host may have rank 0 later; those without it
/// send none.
pub(super) fn send_frame_request(ctx: &mut EventCtx<'_>, node: NodeRank) {
    if ctx.host(node).machine.is_live() {
        let on = ctx.model.policy.watched;
        ctx.send(node, ConsoleMessage::Watch { on });
    }
}

/// A live frame arrived. Returns whether a screen could show it.
pub(super) fn on_frame(
    ctx: &mut EventCtx<'_>,
    node: NodeRank,
    generation: Generation,
    age_ms: u64,
    missed: u64,
    frame: Box<LiveFrame>,
) -> bool {
    let reporter = ctx.model.membership.reporter();
    let here = ctx.model.ranks.get(reporter.index()).is_some_and(|rank| rank.node == node);
    if !here || generation != ctx.model.run.generation {
        ctx.model.drops.misplaced += u64::from(!here);
        return false;
    }
    let watched = ctx.model.policy.watched;
    let at = Timestamp(ctx.now.0.saturating_sub(age_ms));
    ctx.model.policy = PolicyView { watched, at, missed, frame: Some(frame) };
    watched
}
