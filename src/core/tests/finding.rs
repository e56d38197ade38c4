//! A search in the logs that hosts keep.

use crate::event::Event;
use crate::model::{Search, SearchState};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_proto::search::*;
use rankdeck_types::ids::{Generation, Rank};

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(10_000);
    c
}

fn ask(c: &mut Cluster, pattern: &str, part: Part) {
    let wanted = LogSearch { pattern: pattern.into(), part, limit: 100, ..LogSearch::default() };
    c.event(Event::Searched { wanted: Some(Box::new(wanted)) });
}

/// What a host was asked: number, and what for.
fn asked(c: &Cluster, node: usize) -> Vec<(u64, Option<LogSearch>)> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Search { request, wanted } => Some((*request, wanted.as_deref().cloned())),
            _ => None,
        })
        .collect()
}

fn latest(c: &Cluster) -> u64 {
    asked(c, 0).last().map_or(0, |(request, _)| *request)
}

fn hit(rank: u32, at_ms: u64, line: u64) -> LogHit {
    let time = Some(at_ms as f64 / 1000.0);
    LogHit { rank: Rank(rank), line, at_ms, time, text: format!("{rank} {line}"), ..LogHit::default() }
}

fn answer(c: &mut Cluster, node: usize, hits: Vec<LogHit>, more: u64, newer: u64) {
    let request = latest(c);
    let findings =
        Box::new(LogFindings { hits, more, newer, lines: 50, over: true, ..LogFindings::default() });
    c.said(node, AgentMessage::Found { request, findings });
}

fn hits(c: &Cluster) -> &Search {
    c.model().finder.hits.as_ref().unwrap()
}

fn texts(search: &Search) -> Vec<String> {
    let line = |place: (usize, &LinePlace)| {
        let lines = &search.logs[&place.1.rank].lines;
        lines.iter().find(|line| line.order == place.0 as u64).unwrap().text.clone()
    };
    search.places.iter().enumerate().map(line).collect()
}

#[test]
fn lines_of_all_hosts_are_merged_by_their_times_on_one_clock() {
    let mut c = running();
    // The console's clock, which the agents' are compared with, is that of the first host.
    c.event(Event::WallClock { time: 1_000.0 + c.now.0 as f64 / 1000.0 });
    c.agents[1].wall_skew_s = 100.0;
    c.lose(1);
    c.ready(1);
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![hit(0, 10_000, 4), hit(1, 30_000, 5)], 0, 0);
    assert!(hits(&c).places.is_empty() && !hits(&c).is_over(), "the other host may have earlier ones");
    answer(&mut c, 1, vec![hit(2, 120_000, 8), hit(3, 140_000, 9)], 0, 0);
    assert_eq!(texts(hits(&c)), ["0 4", "2 8", "1 5", "3 9"]);
    let search = hits(&c);
    assert_eq!((search.matches(), search.lines(), search.holes().count()), (4, 100, 0));
    let line = &search.logs[&Rank(2)].lines[0];
    assert_eq!(line.time_ms, 120_000, "as its host tells it");
    assert!(line.merge_ms.abs_diff(20_000) < 500, "{}", line.merge_ms);
}

#[test]
fn a_page_has_no_holes_and_the_next_one_goes_on_where_it_ends() {
    let mut c = running();
    ask(&mut c, "nan", Part::Newest);
    // The first host has older ones than it told: before its oldest nothing is whole.
    answer(&mut c, 0, vec![hit(0, 30_000, 4), hit(0, 40_000, 5)], 7, 0);
    answer(&mut c, 1, vec![hit(2, 10_000, 1), hit(2, 35_000, 2)], 0, 0);
    assert_eq!(texts(hits(&c)), ["0 4", "2 2", "0 5"]);
    assert_eq!((hits(&c).older, hits(&c).matches()), (8, 11));
    let at = hits(&c).places[0];
    ask(&mut c, "nan", Part::Before(at));
    answer(&mut c, 0, vec![hit(0, 20_000, 3)], 6, 2);
    answer(&mut c, 1, vec![hit(2, 10_000, 1)], 0, 1);
    assert_eq!(texts(hits(&c)), ["0 3"]);
    assert_eq!((hits(&c).older, hits(&c).newer, hits(&c).matches()), (7, 3, 11));
    ask(&mut c, "nan", Part::After(at));
    answer(&mut c, 0, vec![hit(0, 40_000, 5)], 8, 0);
    answer(&mut c, 1, vec![hit(2, 35_000, 2), hit(2, 36_000, 3)], 1, 4);
    assert_eq!(texts(hits(&c)), ["2 2", "2 3"], "after the last of the second host nothing is whole");
    assert_eq!((hits(&c).older, hits(&c).newer), (9, 5));
}

#[test]
fn hosts_that_cannot_be_asked_or_do_not_answer_are_said_and_the_others_count() {
    let mut c = running();
    c.lose(1);
    ask(&mut c, "nan", Part::Newest);
    assert!(asked(&c, 1).is_empty());
    answer(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    assert!(hits(&c).is_over());
    assert_eq!(texts(hits(&c)), ["0 4"]);
    assert_eq!(hits(&c).holes().collect::<Vec<_>>(), [("bee", "is not connected")]);
    // An older agent ignores what it does not know.
    c.ready(1);
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    c.pass(4_000);
    assert!(!hits(&c).is_over());
    c.pass(3_000);
    assert!(hits(&c).is_over() && texts(hits(&c)) == ["0 4"]);
    let why = hits(&c).holes().next().unwrap().1.to_owned();
    assert!(why.starts_with("does not answer: its agent may be of an older rankdeck"), "{why}");
    // One that looks is waited for; one that is lost meanwhile is not.
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![], 0, 0);
    let request = latest(&c);
    for _ in 0..4 {
        c.said(1, AgentMessage::Found { request, findings: Box::default() });
        c.pass(4_000);
    }
    assert_eq!(hits(&c).hosts[1].state, SearchState::Looking);
    c.lose(1);
    assert_eq!(hits(&c).holes().next(), Some(("bee", "was lost while it looked")));
}

#[test]
fn a_newer_search_takes_the_place_of_the_one_before_and_none_calls_it_off() {
    let mut c = running();
    ask(&mut c, "nan", Part::Newest);
    let old = latest(&c);
    ask(&mut c, "inf", Part::Newest);
    let findings = Box::new(LogFindings { hits: vec![hit(0, 1, 1)], over: true, ..LogFindings::default() });
    c.said(0, AgentMessage::Found { request: old, findings });
    assert_eq!(hits(&c).hosts[0].state, SearchState::Asked, "an answer to the search before");
    c.event(Event::Searched { wanted: None });
    assert_eq!(asked(&c, 0).last().unwrap().1, None, "its agent no longer looks");
    assert_eq!(c.model().finder.hits, None);
    let before = asked(&c, 0).len();
    c.event(Event::Searched { wanted: None });
    assert_eq!(asked(&c, 0).len(), before, "nothing was under way");
}

#[test]
fn lines_around_a_match_leave_the_matches_as_they_are() {
    let mut c = running();
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    answer(&mut c, 1, vec![], 0, 0);
    let at = hits(&c).places[0];
    ask(&mut c, "", Part::Around(at));
    assert_eq!(hits(&c).places, [at]);
    answer(&mut c, 0, vec![hit(0, 9_000, 3), hit(0, 10_000, 4), hit(0, 11_000, 5)], 2, 3);
    answer(&mut c, 1, vec![hit(2, 5_000, 1), hit(2, 10_500, 2), hit(2, 20_000, 3)], 0, 0);
    let around = c.model().finder.around.as_ref().unwrap();
    assert_eq!(texts(around), ["0 3", "0 4", "2 2", "0 5"], "only where the lines of all are known");
}

#[test]
fn what_hosts_say_of_ranks_that_are_elsewhere_is_dropped_and_searches_are_in_no_record() {
    let mut c = running();
    c.events.clear();
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![hit(0, 1_000, 4), hit(2, 2_000, 5), hit(77, 3_000, 6)], 0, 0);
    answer(&mut c, 1, vec![], 0, 0);
    assert_eq!((texts(hits(&c)), c.model().drops.misplaced), (vec!["0 4".to_owned()], 2));
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    let kept = serde_json::to_string(c.model()).unwrap();
    let read: crate::model::Model = serde_json::from_str(&kept).unwrap();
    assert_eq!(read.finder, Default::default());
    assert_eq!(c.model().run.generation, Generation(0));
}

#[test]
fn a_run_that_is_over_can_be_searched_and_silence_ends_there_too() {
    let mut c = running();
    c.core = c.core.clone().lingering();
    c.host_ends(0, false);
    c.host_ends(1, false);
    assert_eq!(c.model().run.state, crate::model::RunState::Over);
    assert_eq!(c.core.poll_timeout(), None);
    ask(&mut c, "nan", Part::Newest);
    answer(&mut c, 0, vec![hit(0, 10_000, 4)], 0, 0);
    let due = c.core.poll_timeout().expect("it waits for the other host");
    assert!(due.0 > c.now.0);
    c.pass(6_000);
    assert!(hits(&c).is_over() && hits(&c).places.len() == 1);
    assert_eq!(c.core.poll_timeout(), None);
}
