//! Queries to agents: searches in the logs that hosts keep, a process's environment, signals to it and what the
//! detector makes of them, live frames, inspections.

use crate::event::Event;
use crate::model::{SearchResults, SearchState};
use crate::reason::Reason;
use crate::report::ReportBody;
use crate::testkit::*;
use rankdeck_proto::inspection::{Frame, Inspection, StackMethod, ThreadStack};
use rankdeck_proto::message::*;
use rankdeck_proto::process::*;
use rankdeck_proto::search::*;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};

const TERM: i32 = 15;
const OF_RANK_2: ProcessName = ProcessName { rank: Some(Rank(2)), pid: 1002, start: 0 };

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(10_000);
    c
}

fn search(c: &mut Cluster, pattern: &str, part: HitSelection) {
    let query = LogSearch { pattern: pattern.into(), part, limit: 100, ..LogSearch::default() };
    c.event(Event::Searched { search: Some(Box::new(query)) });
}

/// The searches that a host was sent: number and query.
fn searches(c: &Cluster, node: usize) -> Vec<(u64, Option<LogSearch>)> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Search { request, search } => Some((*request, search.as_deref().cloned())),
            _ => None,
        })
        .collect()
}

fn latest_search(c: &Cluster) -> u64 {
    searches(c, 0).last().map_or(0, |(request, _)| *request)
}

fn hit(rank: u32, at_ms: u64, line: u64) -> LogHit {
    let time = Some(at_ms as f64 / 1000.0);
    LogHit { rank: Rank(rank), line, at_ms, time, text: format!("{rank} {line}"), ..LogHit::default() }
}

fn find(c: &mut Cluster, node: usize, hits: Vec<LogHit>, more: u64, newer: u64) {
    let request = latest_search(c);
    let findings =
        Box::new(LogFindings { hits, more, newer, lines: 50, over: true, ..LogFindings::default() });
    c.receive(node, AgentMessage::Found { request, findings });
}

fn hits(c: &Cluster) -> &SearchResults {
    c.model().log_search.hits.as_ref().unwrap()
}

fn texts(search: &SearchResults) -> Vec<String> {
    let line = |place: (usize, &LinePlace)| {
        let lines = &search.logs[&place.1.rank].lines;
        lines.iter().find(|line| line.order == place.0 as u64).unwrap().text.clone()
    };
    search.places.iter().enumerate().map(line).collect()
}

#[test]
fn search_merges_hosts_on_one_clock() {
    let mut c = running();
    // The console's clock, which the agents' are compared with, is that of the first host.
    c.event(Event::WallClock { time: 1_000.0 + c.now.0 as f64 / 1000.0 });
    c.agents[1].wall_skew_s = 100.0;
    c.lose(1);
    c.ready(1);
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![hit(0, 10_000, 4), hit(1, 30_000, 5)], 0, 0);
    assert!(hits(&c).places.is_empty() && !hits(&c).is_over(), "the other host may have earlier ones");
    find(&mut c, 1, vec![hit(2, 120_000, 8), hit(3, 140_000, 9)], 0, 0);
    assert_eq!(texts(hits(&c)), ["0 4", "2 8", "1 5", "3 9"]);
    let search = hits(&c);
    assert_eq!((search.matches(), search.lines(), search.holes().count()), (4, 100, 0));
    let line = &search.logs[&Rank(2)].lines[0];
    assert_eq!(line.time_ms, 120_000, "by the clock of its host");
    assert!(line.merge_ms.abs_diff(20_000) < 500, "{}", line.merge_ms);
}

#[test]
fn search_pages_have_no_gaps() {
    let mut c = running();
    search(&mut c, "nan", HitSelection::Newest);
    // The first host has older ones than it reported: before its oldest nothing is whole.
    find(&mut c, 0, vec![hit(0, 30_000, 4), hit(0, 40_000, 5)], 7, 0);
    find(&mut c, 1, vec![hit(2, 10_000, 1), hit(2, 35_000, 2)], 0, 0);
    assert_eq!(texts(hits(&c)), ["0 4", "2 2", "0 5"]);
    assert_eq!((hits(&c).older, hits(&c).matches()), (8, 11));
    let at = hits(&c).places[0];
    search(&mut c, "nan", HitSelection::Before(at));
    find(&mut c, 0, vec![hit(0, 20_000, 3)], 6, 2);
    find(&mut c, 1, vec![hit(2, 10_000, 1)], 0, 1);
    assert_eq!(texts(hits(&c)), ["0 3"]);
    assert_eq!((hits(&c).older, hits(&c).newer, hits(&c).matches()), (7, 3, 11));
    search(&mut c, "nan", HitSelection::After(at));
    find(&mut c, 0, vec![hit(0, 40_000, 5)], 8, 0);
    find(&mut c, 1, vec![hit(2, 35_000, 2), hit(2, 36_000, 3)], 1, 4);
    assert_eq!(texts(hits(&c)), ["2 2", "2 3"], "after the last of the second host nothing is whole");
    assert_eq!((hits(&c).older, hits(&c).newer), (9, 5));
}

#[test]
fn search_names_unreachable_hosts_and_uses_the_others() {
    let mut c = running();
    c.lose(1);
    search(&mut c, "nan", HitSelection::Newest);
    assert!(searches(&c, 1).is_empty());
    find(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    assert!(hits(&c).is_over());
    assert_eq!(texts(hits(&c)), ["0 4"]);
    let mut holes = Vec::new();
    let mut note_hole = |c: &Cluster| {
        let (host, why) = hits(c).holes().next().unwrap();
        assert_eq!(host, "bee");
        holes.push(why.to_owned());
    };
    note_hole(&c);
    // An older agent ignores unknown messages.
    c.ready(1);
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    c.pass(4_000);
    assert!(!hits(&c).is_over());
    c.pass(3_000);
    assert!(hits(&c).is_over() && texts(hits(&c)) == ["0 4"]);
    note_hole(&c);
    // A host that searches is waited for; one that is lost meanwhile is not.
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![], 0, 0);
    let request = latest_search(&c);
    for _ in 0..4 {
        c.receive(1, AgentMessage::Found { request, findings: Box::default() });
        c.pass(4_000);
    }
    assert_eq!(hits(&c).hosts[1].state, SearchState::Running);
    c.lose(1);
    note_hole(&c);
    insta::assert_snapshot!("hosts_without_search", holes.join("\n"));
}

#[test]
fn newer_search_replaces_earlier_and_none_cancels() {
    let mut c = running();
    search(&mut c, "nan", HitSelection::Newest);
    let old = latest_search(&c);
    search(&mut c, "inf", HitSelection::Newest);
    let findings = Box::new(LogFindings { hits: vec![hit(0, 1, 1)], over: true, ..LogFindings::default() });
    c.receive(0, AgentMessage::Found { request: old, findings });
    assert_eq!(hits(&c).hosts[0].state, SearchState::Sent, "an answer to the search before");
    c.event(Event::Searched { search: None });
    assert_eq!(searches(&c, 0).last().unwrap().1, None, "its agent stops searching");
    assert_eq!(c.model().log_search.hits, None);
    let before = searches(&c, 0).len();
    c.event(Event::Searched { search: None });
    assert_eq!(searches(&c, 0).len(), before, "nothing was under way");
}

#[test]
fn context_search_keeps_matches() {
    let mut c = running();
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    find(&mut c, 1, vec![], 0, 0);
    let at = hits(&c).places[0];
    search(&mut c, "", HitSelection::Around(at));
    assert_eq!(hits(&c).places, [at]);
    find(&mut c, 0, vec![hit(0, 9_000, 3), hit(0, 10_000, 4), hit(0, 11_000, 5)], 2, 3);
    find(&mut c, 1, vec![hit(2, 5_000, 1), hit(2, 10_500, 2), hit(2, 20_000, 3)], 0, 0);
    let around = c.model().log_search.around.as_ref().unwrap();
    assert_eq!(texts(around), ["0 3", "0 4", "2 2", "0 5"], "only where the lines of all are known");
}

#[test]
fn search_hits_for_foreign_ranks_are_dropped_unrecorded() {
    let mut c = running();
    c.events.clear();
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![hit(0, 1_000, 4), hit(2, 2_000, 5), hit(77, 3_000, 6)], 0, 0);
    find(&mut c, 1, vec![], 0, 0);
    assert_eq!((texts(hits(&c)), c.model().drops.misplaced), (vec!["0 4".to_owned()], 2));
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    let kept = serde_json::to_string(c.model()).unwrap();
    let read: crate::model::Model = serde_json::from_str(&kept).unwrap();
    assert_eq!(read.log_search, Default::default());
    assert_eq!(c.model().run.generation, Generation(0));
}

#[test]
fn finished_run_is_searchable_and_silent_host_times_out() {
    let mut c = running();
    c.core = c.core.clone().lingering();
    c.host_ends(0, false);
    c.host_ends(1, false);
    assert_eq!(c.model().run.state, crate::model::RunState::Over);
    assert_eq!(c.core.poll_timeout(), None);
    search(&mut c, "nan", HitSelection::Newest);
    find(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    let due = c.core.poll_timeout().expect("it waits for the other host");
    assert!(due.0 > c.now.0);
    c.pass(6_000);
    assert!(hits(&c).is_over() && hits(&c).places.len() == 1);
    assert_eq!(c.core.poll_timeout(), None);
}

fn requests(c: &Cluster, node: usize) -> Vec<(u64, ProcessName, ProcessAction)> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Reach { request, process, action } => Some((*request, *process, *action)),
            _ => None,
        })
        .collect()
}

fn request(c: &mut Cluster, action: ProcessAction) {
    c.event(Event::ProcessActionRequested { node: NodeRank(1), process: OF_RANK_2, action });
}

fn reply(c: &mut Cluster, node: usize, request: u64, outcome: ReachOutcome) {
    c.receive(node, AgentMessage::Reached { request, outcome: Box::new(outcome) });
}

fn environment(value: &str) -> ReachOutcome {
    let variable = Variable { name: "PATH".into(), value: Some(value.into()) };
    ReachOutcome::Environment(Environment { variables: vec![variable], left_out: 0 })
}

#[test]
fn reach_2_environment_is_queried_and_never_recorded() {
    let mut c = running();
    c.events.clear();
    request(&mut c, ProcessAction::Environment);
    assert_eq!(
        (requests(&c, 0).len(), requests(&c, 1)),
        (0, vec![(1, OF_RANK_2, ProcessAction::Environment)])
    );
    assert!(c.model().process_queries.environment(NodeRank(1), OF_RANK_2).is_none(), "not answered yet");
    reply(&mut c, 0, 1, environment("of another host"));
    assert!(
        c.model().process_queries.environment(NodeRank(1), OF_RANK_2).is_none(),
        "that host was not asked"
    );
    let before = c.model().revision;
    reply(&mut c, 1, 1, environment("/very/visible"));
    assert!(c.model().revision > before, "the screen shows it");
    let reported = c.model().process_queries.environment(NodeRank(1), OF_RANK_2).unwrap().unwrap();
    assert_eq!(reported.variables[0].value.as_deref(), Some("/very/visible"));
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    let kept = serde_json::to_string(c.model()).unwrap();
    assert!(!kept.contains("/very/visible") && !format!("{:?}", c.events).contains("/very/visible"));
    assert!(!c.model().history.iter().any(|line| line.text.contains("/very/visible")));
}

#[test]
fn failed_process_query_has_reason() {
    let why = |c: &Cluster| {
        let found = c.model().process_queries.environment(NodeRank(1), OF_RANK_2);
        found.and_then(Result::err).map(|error| error.error).unwrap_or_default()
    };
    let mut c = running();
    request(&mut c, ProcessAction::Environment);
    c.pass(4_000);
    assert_eq!(why(&c), "");
    c.pass(3_000);
    let mut reasons = vec![why(&c)];
    request(&mut c, ProcessAction::Environment);
    reply(&mut c, 1, 2, ReachOutcome::Refused(HintedError::new("pid 1002 has ended", "")));
    assert_eq!(why(&c), "pid 1002 has ended");
    request(&mut c, ProcessAction::Environment);
    c.lose(1);
    reasons.push(why(&c));
    request(&mut c, ProcessAction::Environment);
    reasons.push(why(&c));
    insta::assert_snapshot!("failed_process_queries", reasons.join("\n"));
    assert_eq!(c.model().process_queries.answered(0).count(), 4);
    assert_eq!(c.model().process_queries.answered(3).count(), 1, "each is reported once");
    for _ in 0..100 {
        request(&mut c, ProcessAction::Environment);
    }
    assert!(c.model().process_queries.answered(0).count() <= 16, "questions are bounded");
}

fn signalled(c: &mut Cluster, rank: u32, signal: i32) {
    let node = rank as usize / 2;
    c.record(node, RecordEvent::Signalled { rank: Some(Rank(rank)), pid: 1000 + rank, signal });
}

fn dead(c: &Cluster) -> (Reason, String) {
    let verdict = c.model().verdicts.first().unwrap_or_else(|| panic!("no verdict"));
    (verdict.reason_code, verdict.reason.clone())
}

#[test]
fn death_by_console_signal_names_sender() {
    let exits = [
        Exit::Signal { signal: TERM, out_of_memory: false },
        Exit::Code { code: 143 },
        Exit::Code { code: 1 },
    ];
    let mut sentences = Vec::new();
    for exit in exits {
        let mut c = running();
        signalled(&mut c, 2, TERM);
        let notice = c.reports.iter().find_map(|(_, _, body)| match body {
            ReportBody::Notice { text, .. } => Some(text.clone()),
            _ => None,
        });
        assert_eq!(notice.as_ref(), c.model().history.back().map(|line| &line.text));
        c.pass(500);
        c.exit_of(2, exit, false);
        let (reason, sentence) = dead(&c);
        assert_eq!(reason, Reason::Killed, "{sentence}");
        sentences.extend(notice.into_iter().chain([sentence]));
    }
    insta::assert_snapshot!(
        "deaths_by_console_signal",
        sentences.join(
            "
"
        )
    );
}

#[test]
fn unrelated_console_signal_explains_no_death() {
    let other = |signal: i32, exit: Exit, pass: u64| {
        let mut c = running();
        signalled(&mut c, 2, signal);
        c.pass(pass);
        c.exit_of(2, exit, false);
        let (reason, sentence) = dead(&c);
        assert_ne!(reason, Reason::Killed, "{sentence}");
    };
    let code = Exit::Code { code: 1 };
    // SIGWINCH and SIGCONT end nothing; SIGTERM a minute ago was survived; SIGSEGV is its own.
    other(28, code.clone(), 500);
    other(18, code.clone(), 500);
    other(TERM, code.clone(), 60_000);
    other(TERM, Exit::Signal { signal: 11, out_of_memory: false }, 500);
    // Another rank got it.
    let mut c = running();
    signalled(&mut c, 1, TERM);
    c.exit_of(2, code, false);
    assert_ne!(dead(&c).0, Reason::Killed);
}

#[test]
fn exit_after_signal_from_console_names_sender() {
    let mut c = running();
    signalled(&mut c, 2, TERM);
    for rank in 0..4 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Stopped });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    for node in 0..2 {
        c.record(node, RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 1 });
    }
    insta::assert_snapshot!("exit_after_console_signal", c.model().run.reason);
}

#[test]
fn rank_stopped_from_console_names_sender_and_resumes() {
    let mut c = running();
    signalled(&mut c, 1, 19);
    c.hang(1, |sample| sample.state = 'T');
    c.pass(5_000);
    let verdict = c.model().verdicts.first().cloned().unwrap_or_else(|| panic!("no verdict"));
    assert_eq!((verdict.reason_code, verdict.rank), (Reason::Stopped, Some(Rank(1))));
    insta::assert_snapshot!("stop_by_console_signal", verdict_text(&verdict));
    signalled(&mut c, 1, 18);
    assert!(c.model().ranks[1].signalled.is_some_and(|sent| sent.signal == 18));
}

fn watches(c: &Cluster, node: usize) -> Vec<bool> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Watch { on } => Some(*on),
            _ => None,
        })
        .collect()
}

fn frame(c: &mut Cluster, node: usize, generation: u32, ended: u32) {
    let frame = Box::new(LiveFrame { ended, ..LiveFrame::default() });
    c.receive(
        node,
        AgentMessage::Frame { generation: Generation(generation), age_ms: 300, missed: 2, frame },
    );
}

fn ended(c: &Cluster) -> Option<u32> {
    c.model().policy.frame.as_ref().map(|frame| frame.ended)
}

#[test]
fn frames_are_requested_while_shown_and_after_reconnect() {
    let mut c = running();
    assert!(watches(&c, 0).is_empty(), "no screen shows them");
    c.event(Event::Watched { on: true });
    c.event(Event::Watched { on: true });
    assert_eq!((watches(&c, 0), watches(&c, 1)), (vec![true], vec![true]));
    c.lose(0);
    c.event(Event::Watched { on: false });
    c.event(Event::Watched { on: true });
    c.ready(0);
    assert_eq!(watches(&c, 0), [true, true], "a lost host is asked when it is back");
    assert_eq!(watches(&c, 1), [true, false, true]);
    c.event(Event::Watched { on: false });
    c.lose(1);
    c.ready(1);
    assert_eq!(watches(&c, 1).last(), Some(&false), "no screen shows them any more");
}

#[test]
fn newest_live_frame_is_kept_with_its_age() {
    let mut c = running();
    c.event(Event::Watched { on: true });
    let before = c.model().revision;
    frame(&mut c, 0, 0, 1);
    assert_eq!(ended(&c), Some(1));
    let policy = &c.model().policy;
    assert_eq!((policy.at, policy.missed), (Timestamp(c.now.0 - 300), 2));
    assert!(c.model().revision > before, "the screen shows it");
    frame(&mut c, 1, 0, 7);
    assert_eq!((ended(&c), c.model().drops.misplaced), (Some(1), 1), "rank 0 is elsewhere");
    frame(&mut c, 0, 9, 8);
    assert_eq!(ended(&c), Some(1), "of another generation");
    frame(&mut c, 0, 0, 2);
    assert_eq!(ended(&c), Some(2));
    c.event(Event::Watched { on: false });
    let before = c.model().revision;
    frame(&mut c, 0, 0, 3);
    assert_eq!(c.model().revision, before, "one that was on its way changes no screen");
}

#[test]
fn frames_and_their_requests_are_not_recorded() {
    let mut c = running();
    c.events.clear();
    c.event(Event::Watched { on: true });
    frame(&mut c, 0, 0, 1);
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    assert!(Event::Ticked.is_recorded());
    let kept = serde_json::to_string(c.model()).unwrap();
    let read: crate::model::Model = serde_json::from_str(&kept).unwrap();
    assert_eq!(read.policy, crate::model::PolicyView::default());
}

#[test]
fn inspection_of_healthy_rank_is_kept() {
    let mut c = running();
    c.event(Event::InspectRequested { rank: Rank(1) });
    c.event(Event::InspectRequested { rank: Rank(9) });
    let asked: Vec<_> = c.agents.iter().map(|agent| inspections(&agent.orders)).collect();
    assert_eq!(asked, [vec![vec![Rank(1)]], vec![]], "its own host, and no host for an unknown rank");
    let stack = ThreadStack {
        frames: vec![Frame { function: "collect".into(), file: Some("train.py".into()), line: Some(14) }],
        how: StackMethod::Python,
        ..ThreadStack::default()
    };
    let answer = |rank| Inspection { rank, threads: vec![stack.clone()], ..Inspection::default() };
    c.receive(0, AgentMessage::Inspected { request: 0, inspections: vec![answer(Rank(1)), answer(Rank(2))] });
    let inspection = c.model().ranks[1].inspection.as_ref().unwrap();
    assert_eq!(inspection.side.stack, ["collect  train.py:14"]);
    assert!(c.model().ranks[2].inspection.is_none() && c.model().drops.misplaced == 1);
    assert!(c.model().verdicts.is_empty(), "an inspection reports no verdict");
}

fn inspections(orders: &[ConsoleMessage]) -> Vec<Vec<Rank>> {
    let asked = orders.iter().filter_map(|order| match order {
        ConsoleMessage::Inspect { ranks, .. } => Some(ranks.clone()),
        _ => None,
    });
    asked.collect()
}

#[test]
fn rank_is_resumed_by_agent_of_its_host() {
    let mut c = running();
    c.event(Event::ContinueRequested { rank: Rank(2) });
    let asked = |node: usize| {
        c.agents[node]
            .orders
            .iter()
            .any(|order| matches!(order, ConsoleMessage::Continue { ranks } if ranks == &[Rank(2)]))
    };
    assert!(asked(1) && !asked(0));
    insta::assert_snapshot!("resumed_rank", c.model().history.back().unwrap().text);
}
