//! Figures are whole, called what they are, and none that is collected is kept from the user.

use crate::scenes::*;
use rankdeck_core::model::*;
use rankdeck_proto::message::Counters;
use rankdeck_tui::{Theme, ViewState};
use rankdeck_types::words;

const SIZES: [(u16, u16); 5] = [(60, 16), (80, 24), (100, 30), (120, 40), (200, 60)];

fn page(model: &Model, keys: &str, size: (u16, u16)) -> String {
    let mut view = ViewState::new();
    press_at(model, &mut view, keys, size);
    rows(&cells(model, &mut view, &Theme::dark(), size, NOW))
}

fn gpus() -> Model {
    running(&[gpu("node-a", 2), gpu("node-b", 2)])
}

fn first_gpu(model: &mut Model) -> &mut rankdeck_proto::message::GpuSample {
    &mut model.hosts[0].sample.as_mut().unwrap().gpus[0]
}

/// `9.5G/8` for 9.5 of 80.0: a number fits, or it goes.
#[test]
fn no_number_and_no_word_is_cut_on_the_hosts_page_at_any_size() {
    let model = gpus();
    let memory = words::bytes(model.hosts[0].sample.as_ref().unwrap().memory_total);
    let whole = ["140G", memory.as_str(), "700W", "3201MHz"];
    for size in SIZES {
        let drawn = page(&model, "5", size);
        let of = drawn.split_whitespace().filter_map(|word| word.split_once('/'));
        let of = of.filter(|(part, _)| part.starts_with(|c: char| c.is_ascii_digit()));
        let cut: Vec<_> = of.filter(|(_, all)| !whole.contains(all)).collect();
        assert!(cut.is_empty(), "{size:?}: {cut:?} in\n{drawn}");
        let names =
            ["overview", "charts", "evals", "logs", "hosts", "events", "end", "nccl", "tcp", "gloo", "ranks"];
        let tabs = drawn.lines().nth(1).unwrap().split_whitespace();
        let cut: Vec<&str> = tabs.filter(|word| word.len() > 2 && !names.contains(word)).collect();
        assert!(cut.is_empty(), "{size:?}: {cut:?} in\n{drawn}");
    }
}

#[test]
fn the_headline_of_training_is_the_mean_of_the_last_100_episodes_under_that_name() {
    let mut model = gpus();
    for size in [(80, 24), (120, 40), (200, 60)] {
        assert!(!page(&model, "1", size).contains("of 100"), "{size:?}: it is not known yet");
    }
    let counters = Counters { return_last_100: Some(476.3), ..Counters::default() };
    model.latest = Some(LatestTotals { counters, steps_per_s: 1632.0, at: NOW, age_ms: 0, gap_ms: 900 });
    for size in [(80, 24), (100, 30), (120, 40), (200, 60)] {
        let drawn = page(&model, "1", size);
        assert!(drawn.contains("100 476.3"), "{size:?}\n{drawn}");
    }
}

#[test]
fn a_page_without_values_says_where_they_would_come_from() {
    let mut model = running(&[cpu("node-a", 2)]);
    model.scalars.clear();
    model.spreads.clear();
    model.evals.clear();
    let mut plan = model.plan.clone().unwrap();
    plan.experiment.launch.command = vec!["python".into(), "train.py".into()];
    (plan.experiment.learn, plan.experiment.metrics) = (None, Default::default());
    model.plan = Some(plan);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = page(&model, "1", size);
        assert!(drawn.contains("[metrics] names where to find them"), "{size:?}\n{drawn}");
    }
}

#[test]
fn what_the_driver_complains_of_and_who_else_uses_a_gpu_is_on_the_hosts_page() {
    let mut model = gpus();
    model.ranks[0].pid = Some(4711);
    let gpu = first_gpu(&mut model);
    gpu.processes = vec![(4711, 60 << 30), (8812, 40 << 30)];
    (gpu.xids, gpu.lost, gpu.memory_clock_mhz) = (vec![31, 79], true, Some(2619));
    for size in SIZES {
        let drawn = page(&model, "5", size);
        for wanted in ["lost by the driver", "Xid 79 and 1 before"] {
            assert!(drawn.contains(wanted), "{size:?}: {wanted}\n{drawn}");
        }
        assert!(!drawn.contains("4711"), "a rank is no stranger\n{drawn}");
        assert_eq!(drawn.contains("pid 8812, no rank: 40.0G"), size.0 >= 100, "{size:?}\n{drawn}");
    }
    assert!(page(&model, "5", (200, 60)).contains("1980/2619MHz"));
    let gpu = first_gpu(&mut model);
    (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.nvlink_errors) = (Some(7), Some(2), Some(3));
    (gpu.pcie_rx, gpu.pcie_tx) = (Some(3 << 30), Some(1 << 30));
    (gpu.nvlink_rx, gpu.nvlink_tx) = (Some(40 << 30), Some(20 << 30));
    let drawn = page(&model, "5", (200, 60));
    for wanted in [
        "2 memory errors not corrected",
        "7 memory errors corrected",
        "3 NVLink errors",
        "pcie ↓3.0G/s ↑1.0G/s",
    ] {
        assert!(drawn.contains(wanted), "{wanted}\n{drawn}");
    }
    assert!(page(&model, "5", (260, 60)).contains("nvlink ↓40.0G/s ↑20.0G/s"));
    let gpu = first_gpu(&mut model);
    gpu.processes = (0..6).map(|pid| (9000 + pid, 1 << 30)).collect();
    (gpu.xids, gpu.lost) = (Vec::new(), false);
    (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.nvlink_errors) = (None, None, None);
    let drawn = page(&model, "5", (120, 40));
    assert!(drawn.contains("pid 9002, no rank") && drawn.contains("3 processes more"), "{drawn}");
    // The page still has every host, and the selection moves over the whole of it.
    assert!(page(&model, "5G", (80, 24)).contains("node-b"));
}

/// Not `0B/0B`.
#[test]
fn memory_that_a_driver_does_not_tell_is_no_figure() {
    let mut model = gpus();
    let gpu = first_gpu(&mut model);
    (gpu.memory_used, gpu.memory_total) = (0, 0);
    for size in SIZES {
        let drawn = page(&model, "5", size);
        assert!(!drawn.contains("0B"), "{size:?}\n{drawn}");
    }
}

#[test]
fn what_no_longer_runs_has_no_speed_and_its_last_figures_are_of_the_past() {
    let card = page(&dead(), "j\n", (100, 40));
    for wanted in ["was R (running)", "last 300ms ago", "speed       -", "at last"] {
        assert!(card.contains(wanted), "{wanted}\n{card}");
    }
    let mut unheard = unreachable();
    unheard.ranks[1].sampled = Some(ago(598_000));
    let card = page(&unheard, "j\n", (100, 40));
    assert!(card.contains("last 9m 58s ago") && card.contains("speed       -"), "{card}");
    let mut over = over();
    let gauge = over.scalars["charts/SPS"].clone();
    over.scalars.insert("ranks/cpu_percent".into(), gauge);
    for size in SIZES {
        let card = page(&over, "\n", size);
        assert!(size.1 < 30 || card.contains("was R (running)"), "{size:?}\n{card}");
        for keys in ["1", "2", "2o"] {
            let drawn = page(&over, keys, size);
            assert!(!drawn.contains("steps/s 1"), "{size:?} {keys}\n{drawn}");
        }
    }
    let charts = page(&over, "2", (120, 40));
    for gone in ["steps/s", "rank cpu %"] {
        let row = charts.lines().find(|line| line.contains(gone)).unwrap();
        let value = row.split(gone).nth(1).unwrap().split_whitespace().next();
        assert_eq!(value, Some("-"), "{gone}\n{charts}");
    }
}

#[test]
fn ranks_that_were_ended_by_the_stop_are_not_among_those_that_failed() {
    let mut model = over_with_survivors();
    assert!(!page(&model, "7", (100, 40)).contains("did not end well"), "rank 3 got our SIGTERM");
    model.ranks[2].life = RankLife::Exited(rankdeck_proto::message::Exit::Code { code: 3 });
    let drawn = page(&model, "7", (100, 40));
    assert!(drawn.contains("ranks that did not end well: 1-2"), "{drawn}");
}

#[test]
fn the_smallest_face_tells_the_end_without_a_speed_and_offers_what_can_be_done() {
    for (width, height) in [(50, 12), (30, 8)] {
        let drawn = page(&over_with_survivors(), "", (width, height));
        for wanted in ["failed", "rank 1", "q quit", "r restart"] {
            assert!(drawn.contains(wanted), "{wanted}\n{drawn}");
        }
        assert!(!drawn.contains("/s") && !drawn.contains("x stop"), "{drawn}");
    }
}

#[test]
fn an_end_that_was_read_is_told_at_the_time_of_the_agents() {
    let mut model = over();
    model.history.clear();
    let line =
        |number, time, text: &str| HistoryLine { time, ..HistoryLine::new(number, NOW, Tone::Info, text) };
    model.history.extend([
        line(1, 1_000.0, "long before"),
        line(2, 9_970.0, "shortly before"),
        line(3, 10_000.0, "the run is over: all is well"),
    ]);
    (model.run.adopted, model.run.ended, model.run.ended_time) = (true, Some(NOW), Some(10_000.0));
    model.run.launched = Some(940.0);
    let drawn = page(&model, "7", (100, 30));
    assert!(drawn.contains("shortly before") && !drawn.contains("long before"), "{drawn}");
    let drawn = page(&model, "6", (100, 30));
    let at = |text: &str| drawn.lines().find(|line| line.contains(text)).unwrap().to_owned();
    assert!(at("long before").contains("1:00") && at("all is well").contains("2:31:00"), "{drawn}");
    // Hosts are read one after the other, and this console itself has something to say.
    model.history.extend([line(4, 9_998.0, "rank 1 on node1 was killed"), line(5, 11_300.0, "node0: ready")]);
    let drawn = page(&model, "7", (100, 30));
    let place = |text: &str| drawn.find(text).unwrap_or_else(|| panic!("{text}\n{drawn}"));
    assert!(
        place("shortly before") < place("was killed")
            && place("was killed") < place("· the run is over: all is well"),
        "{drawn}"
    );
    assert!(!drawn.contains("node0: ready"), "{drawn}");
    // From the launch to the end, whenever somebody looks.
    assert!(drawn.contains("the run is over after 2h 31m"), "{drawn}");
    // A console that has seen it all goes by its own clock.
    model.run.adopted = false;
    assert!(page(&model, "7", (100, 30)).contains("long before"));
}

/// A pane of a tiling window manager, a status line: what matters is there, and the way out where it fits.
#[test]
fn a_place_too_small_for_pages_still_shows_the_run() {
    let model = gpus();
    for size in [(30, 3), (30, 4), (50, 12)] {
        let drawn = page(&model, "", size);
        for wanted in ["running", "1.23M", "/s", "RRRR"] {
            assert!(drawn.contains(wanted), "{size:?}: {wanted}\n{drawn}");
        }
        assert_eq!(drawn.contains("q quit"), size.1 > 3, "{drawn}");
    }
    let drawn = page(&behind(), "", (30, 3));
    assert!(drawn.contains("behind") && drawn.contains("/s"), "{drawn}");
    for (width, height) in [(1, 1), (5, 2), (12, 3)] {
        page(&model, "", (width, height));
    }
}

#[test]
fn the_end_names_the_first_of_the_best_evaluations_and_a_long_path_below_its_line() {
    let mut model = over();
    let first = model.evals.front().unwrap().env_step;
    model.evals.iter_mut().for_each(|eval| eval.return_mean = 500.0);
    let path = format!("/{}/checkpoints/latest.ckpt", "long".repeat(15));
    model.checkpoints.back_mut().unwrap().path = path.clone();
    let drawn = page(&model, "7", (80, 24));
    assert!(drawn.contains(&format!("500.0 at {} steps", words::count(first))), "{drawn}");
    let lines: Vec<&str> = drawn.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with("last checkpoint")).unwrap();
    assert!(lines[at + 1].starts_with("/longlong"), "{drawn}");
    assert!(lines.iter().any(|line| line.ends_with("q leave")), "{drawn}");
}

/// What the page offers works as it stands there: a run without a record has no report.
#[test]
fn the_end_names_a_report_only_where_its_record_is_found_by_that_command() {
    let model = over();
    let offered = |command: Option<&str>, size: (u16, u16)| {
        let mut view = ViewState::new();
        view.steering.report = command.map(str::to_owned);
        press_at(&model, &mut view, "7", size);
        view.expire(NOW);
        rows(&cells(&model, &mut view, &Theme::dark(), size, NOW))
    };
    assert!(!offered(None, (120, 40)).contains("rankdeck report"));
    let elsewhere = format!("rankdeck report /data/{}/runs/cart-1", "long".repeat(7));
    assert!(offered(Some(&elsewhere), (120, 40)).contains(&format!("`{elsewhere}` has charts")));
    let narrow = offered(Some(&elsewhere), (90, 40));
    assert!(!narrow.contains("rankdeck report") && narrow.contains("copy a report (Markdown)"), "{narrow}");
}

/// `collecting 6m 15s` beside an elapsed 12m 34s.
#[test]
fn the_help_page_says_what_the_words_of_the_screen_mean() {
    let model = gpus();
    for (typed, meaning) in [
        ("collecting", "summed over ranks; not the time since the launch"),
        ("of 100", "the last 100 training episodes"),
        ("drops", "what nobody has any more"),
        ("wait share", "waiting for others in collectives"),
    ] {
        let drawn = page(&model, &format!("?{typed}"), (100, 30));
        let plain = drawn.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain.contains(meaning), "{typed}\n{drawn}");
    }
    // All of them can be scrolled to, and none does anything.
    let mut view = ViewState::new();
    press_at(&model, &mut view, "?", (80, 24));
    for _ in 0..200 {
        press_at(&model, &mut view, "↓", (80, 24));
    }
    let drawn = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    assert!(drawn.contains("▸ amber, red"), "{drawn}");
    assert_eq!(press_at(&model, &mut view, "\n", (80, 24)), []);
    assert_eq!(view.overlays.len(), 1);
    // Every label of the totals has its line.
    let drawn = page(&model, "1", (120, 40));
    for label in ["env_step", "samples", "collecting", "all-reduced", "sum of ranks"] {
        assert!(drawn.contains(label), "{label} is not on the screen any more");
        assert!(page(&model, &format!("?{label}"), (100, 30)).contains("words"), "{label}");
    }
}

/// A program of the user's own does what it does at SIGTERM.
#[test]
fn the_question_before_a_stop_says_what_ranks_get() {
    let mut model = gpus();
    assert!(page(&model, "x", (120, 40)).contains("rank 0 writes a checkpoint"));
    let launch = &mut model.plan.as_mut().unwrap().experiment.launch;
    (launch.command, launch.stop_grace_s) = (vec!["train.py".into()], 7.0);
    let drawn = page(&model, "x", (120, 40));
    assert!(drawn.contains("Every rank gets SIGTERM, and SIGKILL 7.0s after its last sign"), "{drawn}");
    assert!(!drawn.contains("checkpoint"), "{drawn}");
}

#[test]
fn a_rank_whose_end_is_not_proved_looks_so_wherever_the_screen_speaks_of_it() {
    let mut model = over_with_survivors();
    model.run.unverified = vec!["node-a".into(), "node-b".into()];
    model.ranks[2].life = RankLife::Joined;
    model.ranks[3].life = RankLife::Finished;
    let ranks = |drawn: &str, word: &str| {
        let rows = drawn.lines().filter(|line| line.contains(" node-"));
        rows.filter(|row| row.contains(word)).count()
    };
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = page(&model, "1z", size);
        assert_eq!(ranks(&drawn, "U ? unproved"), 3, "{size:?}\n{drawn}");
        assert!(drawn.contains("X ✗ no memory"), "{drawn}");
        for wrong in ["R ● running", "F ✓ finished"] {
            assert!(!drawn.contains(wrong), "{size:?} {wrong}\n{drawn}");
        }
    }
    let end = page(&model, "7", (120, 40));
    assert!(end.contains("proved the stop: 0,2-3") && end.contains("processes are left: 1"), "{end}");
    // What a host has found to be gone is no longer running, whatever was heard of it last.
    model.run.unverified = vec!["node-a".into()];
    model.hosts[1].stopped = Some(vec![]);
    let drawn = page(&model, "1z", (120, 40));
    assert_eq!((ranks(&drawn, "E · gone"), ranks(&drawn, "U ? unproved")), (2, 1), "{drawn}");
}

#[test]
fn an_age_that_does_not_fit_a_chart_s_title_is_not_cut() {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let at = rankdeck_types::ids::Timestamp(NOW.0 - 14_000);
    model.latest = Some(LatestTotals { steps_per_s: 1632.0, at, gap_ms: 100, ..LatestTotals::default() });
    for width in 60..130 {
        for line in page(&model, "", (width, 24)).lines() {
            let cut = ["14s a ", "14s ag", "14s ─", "14s-"]
                .iter()
                .any(|cut| line.contains(cut) && !line.contains("14s ago") && line.contains("loss"));
            assert!(!cut, "{width}\n{line}");
        }
    }
}

#[test]
fn a_run_without_a_goal_has_no_time_to_it_that_stalls() {
    let mut model = running(&[cpu("node-a", 2)]);
    let at = rankdeck_types::ids::Timestamp(NOW.0 - 14_000);
    model.latest = Some(LatestTotals { steps_per_s: 1632.0, at, gap_ms: 100, ..LatestTotals::default() });
    for rank in &mut model.ranks {
        rank.sample.as_mut().unwrap().page.as_mut().unwrap().heartbeat_age_ms = 14_000;
    }
    assert!(page(&model, "", (120, 40)).contains("ETA stalled"), "with a goal it is told");
    model.run.total_steps = None;
    assert!(!page(&model, "", (120, 40)).contains("ETA"), "{}", page(&model, "", (120, 40)));
}

/// The value of a chart is whole, whatever its series is called.
#[test]
fn a_long_name_of_a_chart_gives_way_to_its_value() {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let title = |drawn: &str, name: &str| drawn.lines().find(|line| line.contains(name)).unwrap().to_owned();
    let whole = title(&page(&model, "", (160, 50)), " value_loss ");
    let value = whole.split(" value_loss ").nth(1).unwrap().split_whitespace().next().unwrap();
    let loss = model.scalars.remove("losses/value_loss").unwrap();
    model.scalars.retain(|name, _| !name.contains("loss"));
    model.scalars.insert("losses/loss_of_the_value_function_of_the_critic".into(), loss);
    for width in 80..130 {
        let title = title(&page(&model, "", (width, 30)), "loss_");
        assert!(title.contains(&format!("{value} ")), "{width}: {value}\n{title}");
    }
}

/// Nobody looks at an empty half of a large screen.
#[test]
fn below_ranks_alone_on_a_page_with_room_is_the_card_of_the_selected_one() {
    let model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = page(&model, "jz", size);
        assert!(drawn.contains(" rank 1 on node-a ") && drawn.contains("heartbeat"), "{size:?}\n{drawn}");
        assert!(
            page(&model, "jzj", size).contains(" rank 2 on node-b "),
            "{size:?}: it follows the selection"
        );
        assert!(!page(&model, "j", size).contains(" rank 1 on node-a "), "{size:?}: others have the room");
    }
    let full = page(&running(&[cpu("node-a", 8), cpu("node-b", 8)]), "jz", (80, 24));
    assert!(!full.contains("heartbeat"), "there is no room:\n{full}");
}

#[test]
fn bars_of_evaluations_say_what_they_are_measured_by() {
    let drawn = page(&gpus(), "3", (125, 40));
    let heads = drawn.lines().find(|line| line.contains("ENV_STEP")).unwrap();
    assert!(heads.contains("MEAN OF "), "{drawn}");
}
