//! The Logs page: search, levels, folds, times, generations, and the ways to it.

use crate::scenes::*;
use rankdeck_core::model::*;
use rankdeck_tui::state::Tab;
use rankdeck_tui::{Theme, ViewState};
use rankdeck_types::ids::Generation;

const SIZE: (u16, u16) = (100, 20);
/// 2026-11-23 07:00:00 UTC.
const SEVEN: u64 = 1_795_417_200_000;

fn press(model: &Model, view: &mut ViewState, keys: &str) -> String {
    press_at(model, view, keys, SIZE);
    crate::scenes::rows(&cells(model, view, &Theme::dark(), SIZE, NOW))
}

/// The title of the pane: which lines are shown, where they are.
fn title(screen: &str) -> &str {
    screen.lines().find(|row| row.contains("log ")).unwrap_or_else(|| panic!("{screen}"))
}

/// Two ranks whose lines are `(rank, seconds after seven, text)`; they arrive rank by rank, as after
/// attaching.
fn lines(given: &[(usize, u64, &str)]) -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let mut order = 0;
    for rank in 0..2 {
        model.ranks[rank].log = LogRing::default();
        for (_, second, text) in given.iter().filter(|(whose, ..)| *whose == rank) {
            order += 1;
            let time_ms = SEVEN + second * 1000;
            let line = HeldLine { time_ms, merge_ms: time_ms, ..HeldLine::new(order, *text) };
            model.ranks[rank].log.lines.push_back(line);
        }
        model.ranks[rank].log.next = model.ranks[rank].log.lines.len() as u64;
    }
    model
}

/// Where texts stand, from the top; each must be there.
fn rows(screen: &str, texts: &[&str]) -> Vec<usize> {
    let row = |text: &&str| screen.lines().position(|line| line.contains(*text));
    texts.iter().map(|text| row(text).unwrap_or_else(|| panic!("no {text} in\n{screen}"))).collect()
}

#[test]
fn ranks_are_merged_by_the_time_of_their_lines() {
    let model = lines(&[(0, 1, "first"), (0, 9, "fourth"), (1, 2, "second"), (1, 5, "third")]);
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4");
    assert!(rows(&screen, &["first", "second", "third", "fourth"]).is_sorted(), "{screen}");
    assert!(screen.contains("07:00:02 1 │ second"), "{screen}");
    let screen = press(&model, &mut view, "t");
    assert!(!screen.contains("07:00:02") && screen.contains("1 │ second"), "{screen}");
}

#[test]
fn unfinished_line_is_shown_below_the_newest() {
    let mut model = lines(&[(0, 1, "first"), (1, 2, "second")]);
    let bar = |model: &mut Model, text: &str| {
        model.ranks[1].sample.as_mut().unwrap().live = format!("{text}\x1b[31m\r{text}");
    };
    bar(&mut model, "45% 45/100");
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4");
    assert!(rows(&screen, &["first", "second", "45% 45/100"]).is_sorted(), "{screen}");
    assert!(screen.contains("live     1 │ 45% 45/100"), "{screen}");
    bar(&mut model, "46% 46/100");
    let screen = press(&model, &mut view, "");
    assert!(screen.contains("46% 46/100") && !screen.contains("45%"), "replaced in place: {screen}");
    let screen = press(&model, &mut view, "m");
    assert!(!screen.contains("46%"), "rank 0 has none: {screen}");
    let many: Vec<(usize, u64, String)> = (0..60).map(|n| (1, n, format!("line {n}"))).collect();
    let many: Vec<(usize, u64, &str)> =
        many.iter().map(|(rank, at, text)| (*rank, *at, text.as_str())).collect();
    let mut model = lines(&many);
    bar(&mut model, "47% 47/100");
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4");
    rows(&screen, &["line 59", "47% 47/100"]);
    let screen = press(&model, &mut view, "kkk");
    assert!(!screen.contains("47%"), "older lines are shown: {screen}");
}

#[test]
fn search_moves_between_matches_and_back_to_the_newest() {
    let text = |i: u64| format!("step {i} loss {}", if i % 50 == 20 { "nan" } else { "0.5" });
    let texts: Vec<String> = (0..200).map(text).collect();
    let given: Vec<(usize, u64, &str)> = (0..).zip(&texts).map(|(at, text)| (0, at, text.as_str())).collect();
    let model = lines(&given);
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    let screen = press(&model, &mut view, "4/nan|inf\n");
    assert!(screen.contains("4 of 200") && !screen.contains("loss 0.5"), "{screen}");
    let screen = press(&model, &mut view, "N");
    assert!(screen.contains("4 of 4") && screen.contains("200"), "{screen}");
    shown.add("N", title(&screen));
    rows(&screen, &["step 169 ", "step 170 loss nan", "step 171 "]);
    let screen = press(&model, &mut view, "NN");
    assert!(screen.contains(" 2 of 4"), "{screen}");
    rows(&screen, &["step 69 ", "step 70 loss nan", "step 71 "]);
    assert!(press(&model, &mut view, "n").contains(" 3 of 4"));
    press(&model, &mut view, "nn");
    shown.add("n at the last match", &toasts(&view));
    let screen = press(&model, &mut view, "G");
    assert!(view.log.at.is_none() && screen.contains("step 199 "), "{screen}");
    shown.add("G", title(&screen));
    let screen = press(&model, &mut view, "\x1b");
    assert!(screen.contains("200 lines") && view.log.filter.is_empty(), "{screen}");
    shown.add("esc", title(&screen));
    view.toasts.clear();
    press(&model, &mut view, "n");
    shown.add("n without a filter", &toasts(&view));
    insta::assert_snapshot!(shown.0);
}

#[test]
fn invalid_regular_expression_is_searched_as_text() {
    let model = lines(&[(0, 1, "loss (nan"), (0, 2, "fine")]);
    let screen = press(&model, &mut ViewState::new(), "4/(nan\n");
    assert!(screen.contains("1 of 2") && screen.contains("loss (nan"), "{screen}");
    insta::assert_snapshot!(title(&screen));
}

#[test]
fn equal_lines_and_tracebacks_are_folded() {
    let mut given = vec![(0, 1, "begin")];
    for i in 0..5 {
        given.extend([(0, 2 + i, "waiting for data"), (1, 2 + i, "waiting for data")]);
    }
    given.extend([
        (0, 20, "Traceback (most recent call last):"),
        (0, 20, "  File \"train.py\", line 3, in <module>"),
        (0, 20, "    main()"),
        (0, 20, "ValueError: bad"),
    ]);
    let model = lines(&given);
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4");
    assert!(screen.contains("waiting for data  ×10 ranks 0-1"), "{screen}");
    assert!(screen.contains("Traceback (most recent call last):  … 2 "), "{screen}");
    assert!(screen.contains("ValueError: bad") && !screen.contains("main()"), "{screen}");
    let screen = press(&model, &mut view, "c");
    assert!(screen.contains("main()") && !screen.contains('×'), "{screen}");
    assert!(press(&model, &mut view, "c/main\n").contains("main()"), "matches are not folded");
}

#[test]
fn level_filter_leaves_warnings_or_errors() {
    let model =
        lines(&[(0, 1, "iter 1"), (0, 2, "WARNING slow"), (1, 3, "ERROR: no"), (1, 4, "eval_error 0.5")]);
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    let screen = press(&model, &mut view, "4e");
    shown.add("e", title(&screen));
    assert!(screen.contains("2 of 4") && screen.contains("slow") && !screen.contains("iter 1"), "{screen}");
    let screen = press(&model, &mut view, "e");
    shown.add("ee", title(&screen));
    assert!(
        screen.contains("1 of 4") && screen.contains("ERROR: no") && !screen.contains("slow"),
        "{screen}"
    );
    assert!(press(&model, &mut view, "e").contains("eval_error"));
    let screen = press(&model, &mut view, ":level errors\n");
    assert!(screen.contains("ERROR: no") && !screen.contains("eval_error"));
    assert!(press(&model, &mut view, "\x1b").contains("eval_error"), "esc shows all again");
    insta::assert_snapshot!(shown.0);
}

#[test]
fn lines_of_generations_are_separated() {
    let mut model = lines(&[(0, 1, "old"), (0, 2, "new")]);
    model.run.generation = Generation(1);
    model.ranks[0].log.lines[1].generation = Generation(1);
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4");
    assert!(rows(&screen, &["│ old", "── generation 1 ", "│ new"]).is_sorted(), "{screen}");
    let screen = press(&model, &mut view, "p");
    assert!(!screen.contains("│ old") && !screen.contains("── generation") && screen.contains("│ new"));
}

#[test]
fn event_leads_to_the_log_line_of_its_time() {
    let texts: Vec<String> = (0..200).map(|i| format!("step {i} x")).collect();
    let given: Vec<(usize, u64, &str)> = (0..).zip(&texts).map(|(at, text)| (0, at, text.as_str())).collect();
    let mut model = lines(&given);
    model.history.clear();
    let mut event = HistoryLine::new(1, NOW, EventTone::Bad, "rank 0 was inspected");
    event.time = (SEVEN / 1000) as f64 + 70.4;
    model.history.push_back(event);
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    let screen = press(&model, &mut view, "6L");
    assert_eq!(view.tab, Tab::Logs);
    rows(&screen, &["step 69 x", "step 70 x", "step 71 x"]);
    assert!(view.log.at.is_some(), "{screen}");
    shown.add("L", title(&screen));
    let screen = press(&model, &mut view, "G");
    assert!(view.log.at.is_none(), "{screen}");
    shown.add("G", title(&screen));
    for line in &mut model.ranks[0].log.lines {
        (line.time_ms, line.merge_ms) = (0, 0);
    }
    press(&model, &mut view, "6L");
    shown.add("L without times of lines", &toasts(&view));
    insta::assert_snapshot!(shown.0);
}

#[test]
fn search_through_many_ranks_is_bounded() {
    let mut model = lines(&[]);
    for rank in &mut model.ranks {
        for i in 0..LOG_LINES as u64 {
            rank.log.lines.push_back(HeldLine::new(i, "x"));
        }
    }
    let first = model.ranks[0].clone();
    model.ranks =
        (0..128).map(|i| RankModel { rank: rankdeck_types::ids::Rank(i), ..first.clone() }).collect();
    let mut view = ViewState::new();
    let screen = press(&model, &mut view, "4/nothing\n");
    insta::assert_snapshot!(title(&screen));
}

#[test]
fn first_and_newest_line_are_a_key_away() {
    const RANKS: u32 = 128;
    let mut model = lines(&[]);
    let first = model.ranks[0].clone();
    let log = |rank: u32| {
        let orders = (0..LOG_LINES as u64).map(|i| 1 + i * u64::from(RANKS) + u64::from(rank));
        let mut log = LogRing::default();
        log.lines = orders.map(|order| HeldLine::new(order, format!("line {order}."))).collect();
        log
    };
    let rank = |rank| RankModel { rank: rankdeck_types::ids::Rank(rank), log: log(rank), ..first.clone() };
    model.ranks = (0..RANKS).map(rank).collect();
    let newest = format!("line {}.", LOG_LINES as u64 * u64::from(RANKS));
    let mut view = ViewState::new();
    assert!(press(&model, &mut view, "4").contains(&newest));
    let top = press(&model, &mut view, "g");
    assert!(rows(&top, &["line 1.", "line 2.", "line 3."]).is_sorted(), "{top}");
    assert_eq!(press(&model, &mut view, "gk"), top, "nothing is above it");
    let lower = press(&model, &mut view, "j");
    assert!(!lower.contains("line 1.") && lower.contains("line 2."), "{lower}");
    assert_eq!(press(&model, &mut view, "k"), top);
    assert!(press(&model, &mut view, "G").contains(&newest));
    assert_eq!(view.log.at, None, "it follows again");
}

#[test]
fn long_lines_scroll_sideways_to_their_end() {
    let long = format!("begin {} the very end", "x".repeat(150));
    let model = lines(&[(0, 1, "short"), (0, 2, &long)]);
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    let screen = press(&model, &mut view, "4");
    assert!(screen.contains("begin") && !screen.contains("the very end"), "{screen}");
    let screen = press(&model, &mut view, "llllll");
    assert!(screen.contains("the very end") && screen.contains("121"), "{screen}");
    shown.add("llllll", title(&screen));
    assert!(press(&model, &mut view, "hhhhhh").contains("short"));
    press(&model, &mut view, "h");
    shown.add("h", &toasts(&view));
    view.toasts.clear();
    press(&model, &mut view, "wl");
    shown.add("l with wrapped lines", &toasts(&view));
    insta::assert_snapshot!(shown.0);
}

/// While the log is scrolled back, newer lines push older ones out of the ring.
#[test]
fn lines_stay_in_place_while_older_ones_are_dropped() {
    let texts: Vec<String> = (0..300).map(|i| format!("step {i} x")).collect();
    let given: Vec<(usize, u64, &str)> = (0..).zip(&texts).map(|(at, text)| (0, at, text.as_str())).collect();
    let mut model = lines(&given);
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    let row = |screen: &str, text: &str| rows(screen, &[text])[0];
    press(&model, &mut view, "4");
    let screen = press(&model, &mut view, &"k".repeat(100));
    let before = row(&screen, "step 199 x");
    let lost = |model: &mut Model, to: u64| {
        let log = &mut model.ranks[0].log;
        while log.lines.front().is_some_and(|line| line.order <= to) {
            log.lines.pop_front();
            log.dropped += 1;
        }
    };
    lost(&mut model, 195);
    let screen = press(&model, &mut view, "");
    assert_eq!(row(&screen, "step 199 x"), before, "{screen}");
    assert!(!screen.contains("step 190 x"), "{screen}");
    shown.add("lines above are dropped", &screen);
    lost(&mut model, 250);
    let screen = press(&model, &mut view, "");
    shown.add("shown lines are dropped", &screen);
    assert!(press(&model, &mut view, "G").contains("step 299 x"));
    insta::assert_snapshot!(shown.0);
}
