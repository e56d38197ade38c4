//! The screen says what is known, how old it is, and what is not known; and keys act on what it shows.

use crate::scenes::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::card::Advice;
use rankdeck_core::model::*;
use rankdeck_core::report::{Severity, VerdictKind};
use rankdeck_proto::message::{Counters, Phase, RankSample};
use rankdeck_tui::state::{LogScope, Overlay, Tab};
use rankdeck_tui::{Action, Theme, ViewState};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::layout::Rect;

const SIZES: [(u16, u16); 5] = [(60, 16), (80, 24), (100, 30), (120, 40), (200, 60)];

fn draw_at(model: &Model, view: &mut ViewState, size: (u16, u16), now: Timestamp) -> String {
    view.expire(now);
    rows(&cells(model, view, &Theme::dark(), size, now))
}

fn draw(model: &Model, size: (u16, u16)) -> String {
    draw_at(model, &mut ViewState::new(), size, NOW)
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<Action> {
    press_at(model, view, keys, (80, 24))
}

fn ago(ms: u64) -> Timestamp {
    Timestamp(NOW.0 - ms)
}

fn two() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

fn pages(model: &mut Model, change: impl Fn(&mut RankSample)) {
    model.ranks.iter_mut().filter_map(|rank| rank.sample.as_mut()).for_each(change);
}

/// No rank has shown a sign of life for so long, and no totals have come.
fn stalled(ms: u64, gap_ms: u64) -> Model {
    let mut model = two();
    let counters = Counters { env_step: 1_228_800, train_iter: 600, ..Counters::default() };
    model.latest = Some(LatestTotals { counters, steps_per_s: 1632.0, at: ago(ms), age_ms: 0, gap_ms });
    model.progress.as_mut().unwrap().at = ago(ms);
    pages(&mut model, |sample| sample.page.as_mut().unwrap().heartbeat_age_ms = ms);
    model
}

#[test]
fn figures_of_a_stall_fall_to_0_and_carry_their_age() {
    for size in SIZES {
        let drawn = draw(&stalled(14_000, 900), size);
        for word in ["0 steps/s", "stalled 14s"] {
            assert!(drawn.contains(word), "{size:?} {word}\n{drawn}");
        }
        assert!(drawn.lines().next().unwrap().contains("stalled 14s"), "the title says it\n{drawn}");
        assert!(!drawn.contains("ETA 7m") && !drawn.contains("no trouble"), "{drawn}");
        let fresh = draw(&stalled(400, 900), size);
        assert!(fresh.contains("1.63k steps/s") && !fresh.contains("stalled"), "{fresh}");
    }
    let seldom = draw(&stalled(14_000, 10_000), (80, 24));
    assert!(!seldom.contains("stalled"), "reports that come seldom are not late yet\n{seldom}");
    let mut evaluates = stalled(14_000, 900);
    evaluates.ranks[0].sample.as_mut().unwrap().page.as_mut().unwrap().heartbeat_age_ms = 20;
    let drawn = draw(&evaluates, (100, 30));
    assert!(!drawn.contains("stalled") && drawn.contains("1.63k steps/s 14s ago"), "{drawn}");
}

/// Rank 0's totals go on where those of a host that is cut off no longer come: both are shown, with ages.
#[test]
fn totals_that_lag_behind_carry_their_age_beside_newer_figures() {
    let mut model = two();
    let counters = Counters { env_step: 1_400_000, train_iter: 700, ..Counters::default() };
    model.latest = Some(LatestTotals { counters, steps_per_s: 1632.0, at: ago(300), age_ms: 0, gap_ms: 900 });
    model.progress.as_mut().unwrap().at = ago(22_000);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = draw(&model, size);
        let header = drawn.lines().find(|line| line.contains("steps/s ")).unwrap_or_default();
        assert!(drawn.contains("1.40M of 2.00M"), "{size:?} {header}\n{drawn}");
        let labels = drawn.lines().find(|line| line.contains("env_step") && line.contains("samples"));
        assert!(labels.is_some_and(|line| line.contains("22s ago")), "{size:?}\n{drawn}");
    }
    model.progress.as_mut().unwrap().at = ago(300);
    assert!(!draw(&model, (120, 40)).contains("22s ago"));
}

#[test]
fn ranks_of_an_unheard_host_look_unheard_after_two_samples() {
    let mut model = two();
    for (ms, looks) in [(1_900, false), (2_100, true), (22_000, true), (900_000, true)] {
        model.hosts[1].heard = Some(ago(ms));
        for size in SIZES {
            let drawn = draw(&model, size);
            let rows = drawn.matches("L ? unheard").count();
            // Of the lowest screen only some rows are ranks'.
            assert!(if looks { rows >= 1 } else { rows == 0 }, "{ms} {size:?}\n{drawn}");
            assert_eq!(drawn.contains("nothing heard of node-b"), looks, "{drawn}");
            assert_eq!(drawn.contains("no trouble"), !looks, "{drawn}");
        }
    }
    model.hosts[1].heard = Some(ago(22_000));
    assert!(draw(&model, (120, 40)).contains("unheard 22s"));
    let mut strip = running(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| gpu(name, 8)));
    strip.hosts[2].heard = Some(ago(5_000));
    assert!(draw(&strip, (120, 40)).contains("RRRRRRRR LLLLLLLL RRRRRRRR"));
    let mut view = ViewState::new();
    press(&strip, &mut view, "/unheard\n");
    let drawn = draw_at(&strip, &mut view, (120, 40), NOW);
    assert!(drawn.contains("ranks 8 of 64"), "the filter sees it too\n{drawn}");
}

#[test]
fn no_trouble_is_said_only_of_ranks_that_are_seen_to_move() {
    type Change = fn(&mut Model);
    let cases: [(&str, Change); 6] = [
        ("progress unknown", |model| pages(model, |sample| sample.page = None)),
        ("rendezvous: 0 of 4 ranks", |model| {
            pages(model, |sample| {
                let page = sample.page.as_mut().unwrap();
                (page.phase, page.env_step, page.train_iter) = (Phase::Rendezvous, 0, 0);
                page.collective = Default::default();
            });
            model.ranks.iter_mut().for_each(|rank| rank.life = RankLife::Spawned);
        }),
        ("starting: 0 of 4 ranks", |model| model.ranks.iter_mut().for_each(|rank| rank.sample = None)),
        ("no rank has moved for 12s", |model| {
            pages(model, |sample| sample.page.as_mut().unwrap().heartbeat_age_ms = 12_000);
        }),
        ("starting: 3 of 4 ranks", |model| model.ranks[2].life = RankLife::Pending),
        ("nothing heard of node-a", |model| model.hosts[0].heard = Some(ago(9_000))),
    ];
    for (said, change) in cases {
        let mut model = two();
        assert!(draw(&model, (80, 24)).contains("no trouble: all ranks move"));
        change(&mut model);
        for size in SIZES {
            let drawn = draw(&model, size);
            assert!(drawn.contains(said) && !drawn.contains("no trouble"), "{said} {size:?}\n{drawn}");
        }
    }
}

#[test]
fn a_value_that_is_not_a_number_is_shown_and_counted() {
    for (bad, word) in [(f64::NAN, "nan"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let mut model = two();
        let series = model.scalars.get_mut("losses/value_loss").unwrap();
        let x = series.points().last().unwrap().place.step;
        (0..3).for_each(|i| series.push(place(x + f64::from(i)), bad));
        for size in &SIZES[1..] {
            let drawn = draw(&model, *size);
            assert!(drawn.contains(&format!("value_loss {word}")), "{size:?}\n{drawn}");
            assert!(drawn.contains("not a number since step 1.23M (3 values)"), "{size:?}\n{drawn}");
            assert!(!drawn.contains("no trouble"), "{drawn}");
        }
        let mut view = ViewState::new();
        press(&model, &mut view, "2");
        let drawn = draw_at(&model, &mut view, (120, 40), NOW);
        assert!(drawn.contains("3 not numbers"), "{drawn}");
    }
}

#[test]
fn ui_13_keys_act_on_the_rank_that_is_shown() {
    let model = two();
    for (key, check) in [
        (
            "\n",
            (|view| matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(2), .. })))
                as fn(&ViewState) -> bool,
        ),
        (" ", |view| view.ranks.marked.contains(&Rank(2)) && view.ranks.marked.len() == 1),
        ("l", |view| {
            view.tab == Tab::Logs
                && view.log.scope == LogScope::Selected
                && view.ranks.selected == Some(Rank(2))
        }),
    ] {
        for filter in ["/host:node-b\n", "/!node-a\n", "/rank:2\n"] {
            let mut view = ViewState::new();
            press(&model, &mut view, filter);
            let row = draw_at(&model, &mut view, (80, 24), NOW);
            assert!(row.lines().any(|line| line.contains("▸    2 node-b")), "the row is marked\n{row}");
            press(&model, &mut view, key);
            assert!(check(&view), "{filter:?} {key:?}");
        }
        // Nothing is shown: nothing is done, and the screen says why.
        let mut view = ViewState::new();
        press(&model, &mut view, &format!("/nobody\n{key}"));
        assert!(view.overlays.is_empty() && view.ranks.marked.is_empty() && view.tab == Tab::Overview);
        assert!(draw_at(&model, &mut view, (80, 24), NOW).contains("the filter shows no rank"));
    }
    let mut view = ViewState::new();
    press(&model, &mut view, "5j\n\n");
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(2), .. })), "a host's own ranks");
}

fn headings(model: &Model, size: (u16, u16)) -> String {
    let drawn = draw(model, size);
    drawn.lines().find(|line| line.contains("RANK") && line.contains("STATE")).unwrap_or_default().to_string()
}

#[test]
fn ui_14_columns_stay_where_they_are_whatever_the_cells_say() {
    for machines in [[cpu("node-a", 4), cpu("node-b", 4)], [gpu("node-a", 4), gpu("node-b", 4)]] {
        let calm = running(&machines);
        let mut busy = calm.clone();
        for (i, rank) in busy.ranks.iter_mut().enumerate() {
            rank.steps_per_s = 123_456.7 * i as f64;
            rank.pid = Some(4_194_303);
            let Some(sample) = rank.sample.as_mut() else { continue };
            (sample.cpu_percent, sample.rss) = (1600.0, 99 << 30);
            let page = sample.page.as_mut().unwrap();
            (page.phase, page.train_iter, page.env_step) = (Phase::Checkpoint, 1_234_567, 1_999_999);
            page.collective.entered = 123_456_789;
            page.collective.call.op = "reduce_scatter_tensor".into();
            page.collective.age_ms = 3_599_000;
        }
        let mut idle = calm.clone();
        pages(&mut idle, |sample| sample.page.as_mut().unwrap().collective = Default::default());
        let mut silent = calm.clone();
        silent.hosts[1].heard = Some(ago(60_000));
        for size in SIZES {
            let expected = headings(&calm, size);
            assert!(!expected.is_empty());
            for other in [&busy, &idle, &silent] {
                assert_eq!(headings(other, size), expected, "{size:?}");
            }
        }
    }
}

#[test]
fn red_drops_are_what_nobody_has_any_more() {
    let mut model = two();
    model.drops = Drops { log_lines: 3406, gaps: 2, joins: 1, history: 900, ..Drops::default() };
    assert!(!draw(&model, (80, 24)).contains("drops"), "all of it is on the hosts, or was asked for again");
    model.drops.malformed = 3;
    assert!(draw(&model, (80, 24)).contains("drops 3 "));
}

#[test]
fn an_alarm_has_its_point_first_and_names_the_key() {
    let advice = |text: &str, command: &str| Advice { text: text.into(), command: command.into() };
    let cases = [
        (
            VerdictKind::Frozen,
            "rank 3 on node-b is stopped by SIGSTOP",
            "stopped by SIGSTOP",
            advice("continue it, on node-b", "kill -CONT 1602345"),
            "d c: continue it, on node-b",
        ),
        (
            VerdictKind::Behind,
            "rank 3 on node-b burns CPU in its phase learn and has not entered all_reduce grad #12042, in which 3 ranks wait since 6.2 s",
            "burns CPU in its phase learn",
            advice("look at its log", "rankdeck logs simulated-20261122-184415 --rank 3"),
            "d l: look at its log",
        ),
        (
            VerdictKind::Dead,
            "rank 3 was killed by SIGKILL (signal 9)",
            "was killed by SIGKILL (signal 9)",
            advice("restart from the latest checkpoint", "rankdeck restart x --from latest"),
            "r: restart from the latest",
        ),
        (
            VerdictKind::Straggler,
            "rank 3 on node-b slows everybody down by 1.6 times",
            "slows everybody down by 1.6 times",
            advice("x", ""),
            "",
        ),
    ];
    for (kind, reason, point, action, key) in cases {
        let mut model = two();
        let mut said = verdict(3, "node-b", kind, reason);
        if key.is_empty() {
            said.severity = Severity::Amber;
        }
        said.card.actions = vec![action];
        model.verdicts.push(said);
        for size in SIZES {
            let drawn = draw(&model, size);
            let rows: Vec<&str> = drawn.lines().collect();
            let at = rows.iter().position(|row| row.contains("rank 3 on node-b: ")).unwrap();
            let alarm = rows[at..at + 3].iter().map(|row| row.trim()).collect::<Vec<_>>().join(" ");
            let alarm = alarm.replace("d why", "").split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(alarm.contains(point), "{size:?}\n{drawn}");
            assert!(alarm.contains(key), "{size:?} {key}\n{drawn}");
            assert_eq!(alarm.matches("rank 3 on node-b").count(), 1, "said once\n{drawn}");
        }
    }
}

#[test]
fn a_card_offers_the_keys_that_its_advice_names_and_no_others() {
    let mut model = two();
    let mut frozen = verdict(3, "node-b", VerdictKind::Frozen, "rank 3 is stopped");
    let (text, command) = ("continue it".into(), "kill -CONT 1602345".into());
    frozen.card.actions = vec![Advice { text, command }];
    model.verdicts.push(frozen);
    let footer = |model: &Model| {
        let mut view = ViewState::new();
        press(model, &mut view, "d");
        let drawn = draw_at(model, &mut view, (100, 30), NOW);
        drawn.lines().rev().find(|line| line.contains("esc closes")).unwrap().to_owned()
    };
    let alone = footer(&model);
    assert!(alone.contains("c continue it") && alone.contains("t stack"), "{alone}");
    assert!(!alone.contains("next verdict") && !alone.contains("shell"), "{alone}");
    model.verdicts.push(verdict(1, "node-a", VerdictKind::Straggler, "rank 1 is slow"));
    assert!(footer(&model).contains("d next verdict"));
}

#[test]
fn one_rank_in_trouble_is_seen_among_many() {
    let names: Vec<&'static str> = (0..512).map(|i| &*format!("h{i:03}").leak()).collect();
    for (hosts, each) in [(128, 8), (16, 64), (512, 8), (1, 1024)] {
        let machines: Vec<Machine> = names[..hosts].iter().map(|name| gpu(name, each)).collect();
        let mut model = running(&machines);
        let rank = hosts as u32 * each - each / 2 - 1;
        let host = names[hosts - 1];
        for size in SIZES {
            model.verdicts.clear();
            assert!(!draw(&model, size).contains('Z'));
            model.verdicts.push(verdict(rank, host, VerdictKind::Frozen, "is stopped"));
            let drawn = draw(&model, size);
            let strip = |row: &&str| {
                row.trim_matches(['│', ' ']).chars().all(|c| "RZ ".contains(c)) && row.contains('Z')
            };
            assert!(
                drawn.split_whitespace().collect::<Vec<_>>().join(" ").contains(&format!("{rank} {host} ")),
                "the row comes first\n{drawn}"
            );
            if drawn.contains("RRRR") {
                assert!(drawn.lines().any(|row| strip(&row)), "{size:?} the strip shows it\n{drawn}");
            }
        }
    }
}

#[test]
fn the_strip_shows_the_ranks_of_the_filter_and_says_when_a_letter_stands_for_several() {
    let names: Vec<&'static str> = (0..128).map(|i| &*format!("h{i:03}").leak()).collect();
    let machines: Vec<Machine> = names.iter().map(|name| gpu(name, 8)).collect();
    let model = running(&machines);
    let letters = |drawn: &str| -> usize {
        let strip = |row: &&str| row.contains("RR") && row.chars().all(|c| "R │".contains(c));
        drawn.lines().filter(strip).map(|row| row.matches('R').count()).sum()
    };
    let mut view = ViewState::new();
    let all = draw_at(&model, &mut view, (120, 40), NOW);
    assert!(letters(&all) >= 200 && all.contains("ranks per letter, the worst shows"), "{all}");
    press(&model, &mut view, "/host:h056\n");
    let some = draw_at(&model, &mut view, (120, 40), NOW);
    assert!(letters(&some) == 8 && !some.contains("per letter"), "{some}");
}

#[test]
fn keys_with_alt_do_nothing_and_keys_without_meaning_say_so() {
    let model = two();
    for key in ['D', 'x', 'X', 'q', 'r', 'H'] {
        let mut view = ViewState::new();
        rankdeck_tui::layout(&model, &mut view, Rect::new(0, 0, 80, 24));
        let with = KeyEvent::new(KeyCode::Char(key), KeyModifiers::ALT);
        assert_eq!(rankdeck_tui::on_key(&model, &mut view, with, NOW), []);
        assert!(view.overlays.is_empty() && !view.toasts.is_empty(), "{key}");
    }
    for (page, key) in [("2", "Q"), ("3", "/"), ("5", "/"), ("7", "/"), ("4", "Q"), ("1", "Q")] {
        let mut view = ViewState::new();
        press(&model, &mut view, page);
        press(&model, &mut view, key);
        assert!(
            draw_at(&model, &mut view, (80, 24), NOW).contains(&format!("{key} is not a key in")),
            "{page}"
        );
    }
}

#[test]
fn a_rank_that_stands_still_makes_no_steps() {
    let mut model = stalled(14_000, 900);
    model.ranks.iter_mut().for_each(|rank| rank.steps_per_s = 108.9);
    let drawn = draw(&model, (80, 24));
    assert!(!drawn.contains("108.9"), "{drawn}");
    model = two();
    model.ranks.iter_mut().for_each(|rank| rank.steps_per_s = 108.9);
    assert!(draw(&model, (80, 24)).contains("108.9"));
}

#[test]
fn events_are_whole_on_their_page_and_those_that_fell_out_are_counted() {
    let mut model = two();
    let text = format!("behind: rank 6 {} all_reduce END", "burns CPU in its phase learn ".repeat(8));
    model.history.push_back(HistoryLine::new(1, ago(100), Tone::Bad, text));
    model.drops.history = 812;
    let mut view = ViewState::new();
    press(&model, &mut view, "6");
    for size in SIZES {
        let drawn = draw_at(&model, &mut view, size, NOW);
        assert!(drawn.contains("all_reduce END") && drawn.contains("812 older not held"), "{drawn}");
    }
}

#[test]
fn the_log_key_of_a_card_opens_the_log_of_its_rank() {
    let model = behind();
    for page in ["1", "2", "3", "4", "5", "6"] {
        let mut view = ViewState::new();
        press(&model, &mut view, page);
        press(&model, &mut view, "dl");
        assert_eq!(
            (view.tab, view.ranks.selected, view.overlays.len()),
            (Tab::Logs, Some(Rank(3)), 0),
            "{page}"
        );
        assert_eq!(view.log.scope, LogScope::Selected);
    }
}
