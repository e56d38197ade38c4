//! The log's page where held lines end: matches in the hosts' files, the lines of all ranks around one, and
//! what could not be looked at.

use crate::scenes::*;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_proto::message::LinesRead;
use rankdeck_proto::search::{LinePlace, LogFindings, LogSearch, Part};
use rankdeck_tui::time::TimeCursor;
use rankdeck_tui::{Action, Theme, ViewState};
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::link_state::LinkState;
use std::time::Instant;

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];
/// 2026-11-23 07:00:00 UTC.
const SEVEN: u64 = 1_795_417_200_000;

/// Two ranks that hold their last lines only.
fn model() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let mut order = 0;
    for rank in &mut model.ranks {
        rank.log = LogRing::default();
        let lines =
            (900..1000).map(|i| format!("step {i} loss {}", if i == 950 { "nan" } else { "0.5" })).collect();
        let at = |i: u64| SEVEN + (3600 + i - 950) * 1000;
        let times = (900..1000).map(|i| LinesRead { lines: 1, time_ms: at(i) }).collect();
        let arrival = Arrival { first: 900, lines, times, ..Arrival::default() };
        rank.log.extend(arrival, Room::among(1), &mut order);
    }
    for host in &mut model.hosts {
        host.link = LinkState::Ready { probe: Default::default() };
    }
    model
}

/// What the screen asks the hosts for.
fn asked(actions: &[Action]) -> Option<LogSearch> {
    actions.iter().find_map(|action| match action {
        Action::Tell(Event::Searched { wanted: Some(wanted) }) => Some((**wanted).clone()),
        _ => None,
    })
}

/// A line that was found: rank, seconds after seven, number, text.
type FoundLine<'a> = (u32, u64, u64, &'a str);

/// The answer of both hosts, as the core merges it.
fn answer(wanted: LogSearch, found: &[FoundLine<'_>], older: u64, newer: u64) -> Search {
    let mut search = Search::default();
    (search.wanted, search.older, search.newer) = (wanted, older, newer);
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
        asked(&press_at(&self.model, &mut self.view, keys, self.size))
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

    fn says(&self, text: &str) -> bool {
        self.view.toasts.iter().any(|toast| toast.text.contains(text))
    }

    /// Goes to the oldest match that is held, and past it.
    fn ask(&mut self) -> LogSearch {
        assert_eq!(self.press("4/nan\nN"), None, "this one is held");
        assert_eq!(self.press("N"), None, "the other rank's, too");
        self.press("N").expect("the hosts are asked")
    }
}

#[test]
fn where_held_lines_end_the_hosts_are_asked_for_what_is_before_them() {
    for size in SIZES {
        let mut page = Page::new(size);
        let wanted = page.ask();
        assert_eq!((wanted.pattern.as_str(), wanted.generation, wanted.ranks.len()), ("nan", None, 0));
        let Part::Before(at) = wanted.part else { panic!("{wanted:?}") };
        assert_eq!((at.rank, at.line), (Rank(0), 951), "the match that was looked at");
        let mut search = answer(wanted.clone(), &[], 0, 0);
        (search.hosts[0].state, search.hosts[1].state) = (SearchState::Looking, SearchState::Asked);
        (search.hosts[0].findings.bytes, search.hosts[0].findings.of_bytes) = (120 << 20, 1 << 30);
        page.model.finder.hits = Some(search);
        page.shows(&[
            "looking in the hosts' files",
            "2 hosts look through their files: 120M of 1.0G; esc calls it off",
        ]);
        assert_eq!(page.press("N"), None);
        assert!(page.says("the hosts still look"));
        page.model.finder.hits = Some(answer(wanted, &MATCHES, 0, 0));
        page.shows(&[
            "match 3 of 5 in 2.90M lines on the hosts",
            "07:00:30 0 │ step 30 loss nan",
            "07:00:20 1 │ step 20",
        ]);
        page.view.toasts.clear();
        insta::assert_snapshot!(format!("log_search_matches_{}x{}", size.0, size.1), trimmed(&page.screen()));
        page.press("N");
        page.shows(&["match 2 of 5"]);
        page.press("k");
        page.shows(&["match 1 of 5"]);
        assert_eq!(page.press("N"), None);
        assert!(page.says("nothing earlier matches in the hosts' files"));
        page.press("nnnn");
        page.shows(&["match 5 of 5"]);
        page.press("\x1b");
        page.shows(&["match 1 of 2 in 200 lines"]);
    }
}

fn trimmed(screen: &str) -> String {
    screen.lines().map(|row| format!("{}\n", row.trim_end())).collect()
}

#[test]
fn enter_shows_the_lines_of_all_ranks_around_a_match_and_escape_comes_back() {
    for size in SIZES {
        let mut page = Page::new(size);
        let wanted = page.ask();
        page.model.finder.hits = Some(answer(wanted, &MATCHES, 0, 0));
        let around = page.press("\n").expect("hosts are asked for the lines around it");
        let Part::Around(at) = around.part else { panic!("{around:?}") };
        assert_eq!((at.rank, at.line, around.pattern.as_str()), (Rank(0), 31, ""));
        let texts: Vec<String> = (0..60).map(|i| format!("rank {} line {i}", i % 2)).collect();
        let mut lines: Vec<FoundLine<'_>> =
            (0..60).map(|i| (i as u32 % 2, i, i + 1, texts[i as usize].as_str())).collect();
        lines[30] = (0, 30, 31, "step 30 loss nan");
        page.model.finder.around = Some(answer(around, &lines, 1, 1));
        page.shows(&["log all ranks", "lines around 07:00:30  esc back"]);
        page.shows(&["0 │ step 30 loss nan", "1 │ rank 1 line 29", "1 │ rank 1 line 31"]);
        page.view.toasts.clear();
        insta::assert_snapshot!(format!("log_search_around_{}x{}", size.0, size.1), trimmed(&page.screen()));
        page.press("kkkkkkkkkkkkkkkkkkkkkk");
        page.shows(&["rank 0 line 10"]);
        assert_eq!(page.press("\n"), None);
        assert!(page.says("esc goes back"));
        let next = page.press("N").expect("the lines around the match before");
        assert!(matches!(next.part, Part::Around(at) if at.line == 21), "{next:?}");
        page.press("\x1b");
        page.shows(&["match 2 of 5"]);
    }
}

#[test]
fn pages_go_on_and_after_the_newest_come_lines_that_have_arrived_since() {
    let mut page = Page::new(SIZES[0]);
    let wanted = page.ask();
    page.model.finder.hits = Some(answer(wanted.clone(), &MATCHES[1..3], 7, 2));
    page.shows(&["match 9 of 11"]);
    page.press("N");
    let earlier = page.press("N").expect("there are older ones");
    assert!(matches!(earlier.part, Part::Before(at) if at.line == 21), "{earlier:?}");
    page.model.finder.hits = Some(answer(earlier, &MATCHES[..1], 6, 4));
    page.shows(&["match 7 of 11"]);
    let later = page.press("n").expect("there are newer ones");
    assert!(matches!(later.part, Part::After(at) if at.line == 11), "{later:?}");
    page.model.finder.hits = Some(answer(later, &MATCHES[1..], 7, 0));
    page.shows(&["match 8 of 11"]);
    // Another one arrives.
    let times = vec![LinesRead { lines: 1, time_ms: SEVEN + 3_601_000 }];
    let arrival =
        Arrival { first: 1000, lines: vec!["step 1000 loss nan".into()], times, ..Arrival::default() };
    page.model.ranks[1].log.extend(arrival, Room::among(1), &mut 500);
    page.press("nnn");
    page.shows(&["match 11 of 11"]);
    assert_eq!(page.press("n"), None);
    page.shows(&["match 3 of 3 in 201 lines", "step 1000 loss nan"]);
    assert_eq!(page.press("n"), None);
    assert!(page.says("nothing later matches"));
}

#[test]
fn what_could_not_be_looked_at_and_what_is_no_longer_kept_is_said() {
    let mut page = Page::new(SIZES[1]);
    let wanted = page.ask();
    let mut search = answer(wanted, &MATCHES[..3], 0, 0);
    search.hosts[1].state = SearchState::Failed("is not connected".into());
    search.hosts[0].findings.gone_bytes = 3 << 30;
    page.model.finder.hits = Some(search);
    page.shows(&[
        "node-b is not connected",
        "3.0G that ranks had written and hosts no longer keep",
        "match 3 of 3",
    ]);
    let wanted = page.model.finder.hits.as_ref().unwrap().wanted.clone();
    page.model.finder.hits = Some(answer(wanted, &[], 0, 2));
    page.shows(&["nothing earlier matches in the hosts' files; n or esc goes back"]);
    page.press("\x1b");
    page.shows(&["in 200 lines"]);
}

#[test]
fn a_replay_and_the_past_search_what_the_record_holds_and_say_so() {
    let mut page = Page::new(SIZES[1]);
    page.view.steering.replay = true;
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    assert!(page.says("nothing earlier matches here: only what the record holds; `rankdeck logs --grep`"));
    page.press("\n");
    page.shows(&["step 949 loss", "step 951 loss"]);
    let mut page = Page::new(SIZES[1]);
    page.view.moment.cursor = Some(TimeCursor { live: true, ..TimeCursor::default() });
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    assert!(page.says("esc goes to the present"));
    let mut page = Page::new(SIZES[1]);
    page.model.hosts.iter_mut().for_each(|host| host.link = LinkState::Closed);
    page.press("4/nan\nNN");
    assert_eq!(page.press("N"), None);
    assert!(page.says("no host is connected"));
}

#[test]
fn the_search_is_for_what_the_page_shows_and_a_wrong_pattern_is_text() {
    let mut page = Page::new(SIZES[1]);
    page.view.steering.read_only = true;
    let wanted = page.press("4mp/(nan\nN").expect("nothing of that is held");
    assert_eq!((wanted.pattern.as_str(), wanted.ranks, wanted.part), ("\\(nan", vec![Rank(0)], Part::Newest));
    assert_eq!(wanted.generation, Some(Generation(0)), "p left the former ones out");
    page.shows(&["as text"]);
    let wanted = page.press("\x1b\x1b/!step\nN").unwrap();
    assert_eq!((wanted.pattern.as_str(), wanted.invert), ("step", true));
    // Where every line is held, there is nothing to ask for.
    page.model.ranks.iter_mut().for_each(|rank| rank.log.dropped = 0);
    assert_eq!(page.press("\x1b\x1b/nothing\nN"), None);
    assert!(page.says("every line of the run is held here"));
}

#[test]
fn ten_thousand_matches_are_drawn_at_once() {
    let mut page = Page::new(SIZES[1]);
    let wanted = page.ask();
    let many: Vec<FoundLine<'_>> = (0..10_000).map(|i| (i as u32 % 2, i / 10, i + 1, "loss nan")).collect();
    page.model.finder.hits = Some(answer(wanted, &many, 0, 0));
    let began = Instant::now();
    page.shows(&["of 10,000 in"]);
    assert!(began.elapsed().as_millis() < 1000, "{:?}", began.elapsed());
}

#[test]
fn search_and_a_rank_with_a_time_are_typed_and_go_on_in_the_hosts_files() {
    let (model, mut view) = (model(), ViewState::new());
    view.chart.utc_offset_s = 0;
    let press = |view: &mut ViewState, keys: &str| press_at(&model, view, keys, (80, 24));
    // Held here: nobody is asked.
    assert!(press(&mut view, ":search nan\n").is_empty());
    assert!(view.log.hit.is_some() && view.log.filter == "nan", "{:?}", view.log);
    // Held nowhere here: the hosts look for the newest that matches.
    let wanted = asked(&press(&mut view, ":search gone for long\n")).unwrap();
    assert_eq!((wanted.pattern.as_str(), wanted.part), ("gone for long", Part::Newest));
    press(&mut view, "\x1b\x1b");
    // Lines of a moment that is held; then those of a moment that is not, of one rank, whatever is in them.
    assert!(press(&mut view, ":log 1 08:00\n").is_empty());
    let wanted = asked(&press(&mut view, ":log 1 07:00\n")).unwrap();
    assert_eq!((wanted.pattern.as_str(), wanted.ranks, wanted.part), ("", vec![Rank(1)], Part::Newest));
    assert_eq!((wanted.until, wanted.generation), (Some(SEVEN as f64 / 1000.0), None));
    assert!(view.log.filter.is_empty() && view.log.files.is_some());
    // In a replay nobody can be asked, and it is said so.
    view.steering.replay = true;
    assert!(press(&mut view, ":log 1 07:00\n").is_empty());
    assert!(view.toasts.last().unwrap().text.contains("only what the record holds"), "{:?}", view.toasts);
}

#[test]
fn lines_up_to_a_moment_are_shown_from_the_hosts_files_with_that_moment() {
    let (mut model, mut view) = (model(), ViewState::new());
    view.chart.utc_offset_s = 0;
    let wanted = asked(&press_at(&model, &mut view, ":log 0 07:00:05\n", (80, 24))).unwrap();
    model.finder.hits =
        Some(answer(wanted, &[(0, 3, 3, "step 3 loss 0.4"), (0, 5, 5, "step 5 loss 0.3")], 40, 0));
    let shown = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    for text in ["up to 07:00:05: line 42 of 42", "07:00:05", "step 5 loss 0.3"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
}
