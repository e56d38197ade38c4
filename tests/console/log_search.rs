//! The Logs page beyond the received lines: matches in the hosts' files, lines of all ranks around one, and
//! what could not be searched.

use crate::scenes::*;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_proto::message::LinesRead;
use rankdeck_proto::search::{HitSelection, LinePlace, LogFindings, LogSearch};
use rankdeck_tui::state::Pane;
use rankdeck_tui::time::TimeCursor;
use rankdeck_tui::{ScreenAction, Theme, ViewState};
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::link_state::LinkState;
use std::time::Instant;

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];
/// 2026-11-23 07:00:00 UTC.
const SEVEN: u64 = 1_795_417_200_000;

/// Two ranks of which only the last lines have been received.
fn model() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let mut order = 0;
    for rank in &mut model.ranks {
        rank.log = LogRing::default();
        let lines =
            (900..1000).map(|i| format!("step {i} loss {}", if i == 950 { "nan" } else { "0.5" })).collect();
        let at = |i: u64| SEVEN + (3600 + i - 950) * 1000;
        let times = (900..1000).map(|i| LinesRead { lines: 1, time_ms: at(i) }).collect();
        let arrival = ReceivedLines { first: 900, lines, times, ..ReceivedLines::default() };
        rank.log.extend(arrival, RingLimits::among(1), &mut order);
    }
    for host in &mut model.hosts {
        host.link = LinkState::Ready { probe: Default::default() };
    }
    model
}

/// The search that the screen requests of the hosts.
fn requested(actions: &[ScreenAction]) -> Option<LogSearch> {
    actions.iter().find_map(|action| match action {
        ScreenAction::Send(Event::Searched { search: Some(query) }) => Some((**query).clone()),
        _ => None,
    })
}

/// A line that matches: rank, seconds after seven, number, text.
type FoundLine<'a> = (u32, u64, u64, &'a str);

/// The reply of both hosts, as the core merges it.
fn reply(query: LogSearch, found: &[FoundLine<'_>], older: u64, newer: u64) -> SearchResults {
    let mut search = SearchResults::default();
    (search.query, search.older, search.newer) = (query, older, newer);
    for (order, (rank, second, line, text)) in (0..).zip(found) {
        let (rank, time_ms) = (Rank(*rank), SEVEN + second * 1000);
        search.places.push(LinePlace { generation: Generation(0), time_ms, rank, line: *line });
        let held = HeldLine { time_ms, merge_ms: time_ms, ..HeldLine::new(order, *text) };
        search.logs.entry(rank).or_default().lines.push_back(held);
    }
    for (node, name) in [(0, "node-a"), (1, "node-b")] {
        let mut host = SearchedHost::default();
        (host.node, host.name, host.state) = (NodeRank(node), name.into(), SearchState::Over);
        host.findings = LogFindings { lines: 1_450_000, over: true, ..LogFindings::default() };
        search.hosts.push(host);
    }
    search
}

const MATCHES: [FoundLine<'_>; 5] = [
    (0, 10, 11, "step 10 loss nan"),
    (1, 20, 21, "step 20 loss nan"),
    (0, 30, 31, "step 30 loss nan"),
    (0, 3600, 951, "step 950 loss nan"),
    (1, 3600, 951, "step 950 loss nan"),
];

struct Page {
    model: Model,
    view: ViewState,
    size: (u16, u16),
}

impl Page {
    fn new(size: (u16, u16)) -> Page {
        Page { model: model(), view: ViewState::new(), size }
    }

    fn press(&mut self, keys: &str) -> Option<LogSearch> {
        requested(&press_at(&self.model, &mut self.view, keys, self.size))
    }

    fn screen(&mut self) -> String {
        rows(&cells(&self.model, &mut self.view, &Theme::dark(), self.size, NOW))
    }

    fn shows(&mut self, texts: &[&str]) {
        let screen = self.screen();
        for text in texts {
            assert!(screen.contains(text), "no {text} in\n{screen}");
        }
    }

    /// The pane of the log, or all that lies over it.
    fn pane(&mut self) -> String {
        let buffer = cells(&self.model, &mut self.view, &Theme::dark(), self.size, NOW);
        rows_in(&buffer, self.view.geometry.pane(Pane::Log))
    }

    /// The new toasts.
    fn toasts(&mut self) -> String {
        let text = toasts(&self.view);
        self.view.toasts.clear();
        text
    }

    /// Goes to the oldest received match, and past it.
    fn search_hosts(&mut self) -> LogSearch {
        assert_eq!(self.press("4/nan\nN"), None, "this one is received");
        assert_eq!(self.press("N"), None, "the other rank's, too");
        self.press("N").expect("a search of the hosts")
    }
}

#[test]
fn search_before_received_lines_asks_the_hosts() {
    for size in SIZES {
        let (mut page, mut shown) = (Page::new(size), Transcript::default());
        let query = page.search_hosts();
        assert_eq!((query.pattern.as_str(), query.generation, query.ranks.len()), ("nan", None, 0));
        let HitSelection::Before(at) = query.part else { panic!("{query:?}") };
        assert_eq!((at.rank, at.line), (Rank(0), 951), "the selected match");
        let mut search = reply(query.clone(), &[], 0, 0);
        (search.hosts[0].state, search.hosts[1].state) = (SearchState::Running, SearchState::Sent);
        (search.hosts[0].findings.bytes, search.hosts[0].findings.of_bytes) = (120 << 20, 1 << 30);
        page.model.log_search.hits = Some(search);
        page.shows(&["120M of 1.0G"]);
        shown.add("search", &page.pane());
        page.toasts();
        assert_eq!(page.press("N"), None);
        shown.add("N during the search", &page.toasts());
        page.model.log_search.hits = Some(reply(query, &MATCHES, 0, 0));
        page.shows(&[" 3 of 5 in 2.90M ", "07:00:30 0 │ step 30 loss nan", "07:00:20 1 │ step 20"]);
        page.view.toasts.clear();
        insta::assert_snapshot!(format!("log_search_matches_{}x{}", size.0, size.1), trimmed(&page.screen()));
        page.press("N");
        page.shows(&[" 2 of 5"]);
        page.press("k");
        page.shows(&[" 1 of 5"]);
        assert_eq!(page.press("N"), None);
        shown.add("N at the first match", &page.toasts());
        page.press("nnnn");
        page.shows(&[" 5 of 5"]);
        page.press("\x1b");
        page.shows(&[" 1 of 2 in 200 "]);
        insta::assert_snapshot!(format!("log_search_steps_{}x{}", size.0, size.1), shown.0);
    }
}

fn trimmed(screen: &str) -> String {
    screen.lines().map(|row| format!("{}\n", row.trim_end())).collect()
}

#[test]
fn enter_shows_context_of_all_ranks_around_a_match() {
    for size in SIZES {
        let mut page = Page::new(size);
        let query = page.search_hosts();
        page.model.log_search.hits = Some(reply(query, &MATCHES, 0, 0));
        let around = page.press("\n").expect("a search for the lines around it");
        let HitSelection::Around(at) = around.part else { panic!("{around:?}") };
        assert_eq!((at.rank, at.line, around.pattern.as_str()), (Rank(0), 31, ""));
        let texts: Vec<String> = (0..60).map(|i| format!("rank {} line {i}", i % 2)).collect();
        let mut lines: Vec<FoundLine<'_>> =
            (0..60).map(|i| (i as u32 % 2, i, i + 1, texts[i as usize].as_str())).collect();
        lines[30] = (0, 30, 31, "step 30 loss nan");
        page.model.log_search.around = Some(reply(around, &lines, 1, 1));
        page.shows(&["07:00:30"]);
        page.shows(&["0 │ step 30 loss nan", "1 │ rank 1 line 29", "1 │ rank 1 line 31"]);
        page.view.toasts.clear();
        insta::assert_snapshot!(format!("log_search_around_{}x{}", size.0, size.1), trimmed(&page.screen()));
        page.press("kkkkkkkkkkkkkkkkkkkkkk");
        page.shows(&["rank 0 line 10"]);
        assert_eq!(page.press("\n"), None);
        assert!(!page.toasts().is_empty(), "how to leave the context");
        let next = page.press("N").expect("the lines around the match before");
        assert!(matches!(next.part, HitSelection::Around(at) if at.line == 21), "{next:?}");
        page.press("\x1b");
        page.shows(&[" 2 of 5"]);
    }
}

#[test]
fn newer_matches_continue_in_received_lines() {
    let mut page = Page::new(SIZES[0]);
    let query = page.search_hosts();
    page.model.log_search.hits = Some(reply(query.clone(), &MATCHES[1..3], 7, 2));
    page.shows(&[" 9 of 11"]);
    page.press("N");
    let earlier = page.press("N").expect("older matches");
    assert!(matches!(earlier.part, HitSelection::Before(at) if at.line == 21), "{earlier:?}");
    page.model.log_search.hits = Some(reply(earlier, &MATCHES[..1], 6, 4));
    page.shows(&[" 7 of 11"]);
    let later = page.press("n").expect("newer matches");
    assert!(matches!(later.part, HitSelection::After(at) if at.line == 11), "{later:?}");
    page.model.log_search.hits = Some(reply(later, &MATCHES[1..], 7, 0));
    page.shows(&[" 8 of 11"]);
    // Another one arrives.
    let times = vec![LinesRead { lines: 1, time_ms: SEVEN + 3_601_000 }];
    let arrival = ReceivedLines {
        first: 1000,
        lines: vec!["step 1000 loss nan".into()],
        times,
        ..ReceivedLines::default()
    };
    page.model.ranks[1].log.extend(arrival, RingLimits::among(1), &mut 500);
    page.press("nnn");
    page.shows(&[" 11 of 11"]);
    assert_eq!(page.press("n"), None);
    page.shows(&[" 3 of 3 in 201 ", "step 1000 loss nan"]);
    assert_eq!(page.press("n"), None);
    insta::assert_snapshot!(page.toasts());
}

#[test]
fn unsearched_hosts_and_deleted_output_are_shown() {
    let mut page = Page::new(SIZES[1]);
    let query = page.search_hosts();
    let mut search = reply(query, &MATCHES[..3], 0, 0);
    search.hosts[1].state = SearchState::Failed("is not connected".into());
    search.hosts[0].findings.gone_bytes = 3 << 30;
    page.model.log_search.hits = Some(search);
    page.shows(&["node-b is not connected", "3.0G", " 3 of 3"]);
    let mut shown = Transcript::default();
    shown.add("some matches", &page.pane());
    let query = page.model.log_search.hits.as_ref().unwrap().query.clone();
    page.model.log_search.hits = Some(reply(query, &[], 0, 2));
    shown.add("no match", &page.pane());
    page.press("\x1b");
    page.shows(&["in 200 "]);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn replay_searches_only_the_recording() {
    let (mut page, mut shown) = (Page::new(SIZES[1]), Transcript::default());
    page.view.steering.replay = true;
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    shown.add("replay", &page.toasts());
    page.press("\n");
    page.shows(&["step 949 loss", "step 951 loss"]);
    let mut page = Page::new(SIZES[1]);
    page.view.moment.cursor = Some(TimeCursor { live: true, ..TimeCursor::default() });
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    shown.add("playback", &page.toasts());
    let mut page = Page::new(SIZES[1]);
    page.model.hosts.iter_mut().for_each(|host| host.link = LinkState::Closed);
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    shown.add("no host is connected", &page.toasts());
    insta::assert_snapshot!(shown.0);
}

#[test]
fn search_follows_the_page_and_takes_a_bad_pattern_as_text() {
    let mut page = Page::new(SIZES[1]);
    page.view.steering.read_only = true;
    let query = page.press("4mp/(nan\nN").expect("no such line was received");
    assert_eq!(
        (query.pattern.as_str(), query.ranks, query.part),
        ("\\(nan", vec![Rank(0)], HitSelection::Newest)
    );
    assert_eq!(query.generation, Some(Generation(0)), "p excludes earlier generations");
    let mut shown = Transcript::default();
    shown.add("a bad pattern", &page.pane());
    let query = page.press("\x1b\x1b/!step\nN").unwrap();
    assert_eq!((query.pattern.as_str(), query.invert), ("step", true));
    // If every line was received, there is nothing to request.
    page.model.ranks.iter_mut().for_each(|rank| rank.log.dropped = 0);
    assert_eq!(page.press("\x1b\x1b/nothing\nN"), None);
    page.toasts();
    assert_eq!(page.press("N"), None);
    shown.add("the whole log was received", &page.toasts());
    insta::assert_snapshot!(shown.0);
}

#[test]
fn ten_thousand_matches_are_drawn_quickly() {
    let mut page = Page::new(SIZES[1]);
    let query = page.search_hosts();
    let many: Vec<FoundLine<'_>> = (0..10_000).map(|i| (i as u32 % 2, i / 10, i + 1, "loss nan")).collect();
    page.model.log_search.hits = Some(reply(query, &many, 0, 0));
    let began = Instant::now();
    page.shows(&["of 10,000 "]);
    assert!(began.elapsed().as_millis() < 1000, "{:?}", began.elapsed());
}

#[test]
fn typed_search_and_time_continue_in_the_hosts_files() {
    let (model, mut view) = (model(), ViewState::new());
    view.style.utc_offset_s = 0;
    let press = |view: &mut ViewState, keys: &str| press_at(&model, view, keys, (80, 24));
    // Received: no search of the hosts.
    assert!(press(&mut view, ":search nan\n").is_empty());
    assert!(view.log.hit.is_some() && view.log.filter == "nan", "{:?}", view.log);
    // Not received: a search of the hosts for the newest match.
    let query = requested(&press(&mut view, ":search gone for long\n")).unwrap();
    assert_eq!((query.pattern.as_str(), query.part), ("gone for long", HitSelection::Newest));
    press(&mut view, "\x1b\x1b");
    // Lines up to a received time; then up to an earlier one, of one rank and with any text.
    assert!(press(&mut view, ":log 1 08:00\n").is_empty());
    let query = requested(&press(&mut view, ":log 1 07:00\n")).unwrap();
    assert_eq!((query.pattern.as_str(), query.ranks, query.part), ("", vec![Rank(1)], HitSelection::Newest));
    assert_eq!((query.until, query.generation), (Some(SEVEN as f64 / 1000.0), None));
    assert!(view.log.filter.is_empty() && view.log.files.is_some());
    // A replay has no hosts, and a toast reports it.
    view.steering.replay = true;
    assert!(press(&mut view, ":log 1 07:00\n").is_empty());
    insta::assert_snapshot!(view.toasts.last().unwrap().text);
}

#[test]
fn log_up_to_a_time_comes_from_the_hosts_files() {
    let (mut model, mut view) = (model(), ViewState::new());
    view.style.utc_offset_s = 0;
    let query = requested(&press_at(&model, &mut view, ":log 0 07:00:05\n", (80, 24))).unwrap();
    model.log_search.hits =
        Some(reply(query, &[(0, 3, 3, "step 3 loss 0.4"), (0, 5, 5, "step 5 loss 0.3")], 40, 0));
    let shown = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    for text in ["42 of 42", "07:00:05", "step 5 loss 0.3"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
}
