//! Numbers are whole and labeled, and everything that is collected is shown.

use crate::scenes::*;
use rankdeck_core::model::*;
use rankdeck_proto::message::Counters;
use rankdeck_tui::state::Tab;
use rankdeck_tui::{Theme, ViewState};
use rankdeck_types::words;

const SIZES: [(u16, u16); 5] = [(60, 16), (80, 24), (100, 30), (120, 40), (200, 60)];

fn page(model: &Model, keys: &str, size: (u16, u16)) -> String {
    let mut view = ViewState::new();
    press_at(model, &mut view, keys, size);
    rows(&cells(model, &mut view, &Theme::dark(), size, NOW))
}

/// The open overlay or page below the title, without the page's other parts.
fn body(model: &Model, keys: &str, size: (u16, u16)) -> String {
    let mut view = ViewState::new();
    press_at(model, &mut view, keys, size);
    let buffer = cells(model, &mut view, &Theme::dark(), size, NOW);
    rows_in(&buffer, view.geometry.body)
}

fn gpus() -> Model {
    running(&[gpu("node-a", 2), gpu("node-b", 2)])
}

fn first_gpu(model: &mut Model) -> &mut rankdeck_proto::message::GpuSample {
    &mut model.hosts[0].sample.as_mut().unwrap().gpus[0]
}

/// `9.5G/8` for 9.5 of 80.0: a number fits, or it goes.
#[test]
fn hosts_page_cuts_no_number_at_any_size() {
    let model = gpus();
    let memory = words::bytes(model.hosts[0].sample.as_ref().unwrap().memory_total);
    let whole = ["140G", memory.as_str(), "700W", "3201MHz"];
    for size in SIZES {
        let drawn = page(&model, "5", size);
        let of = drawn.split_whitespace().filter_map(|word| word.split_once('/'));
        let of = of.filter(|(part, _)| part.starts_with(|c: char| c.is_ascii_digit()));
        let cut: Vec<_> = of.filter(|(_, all)| !whole.contains(all)).collect();
        assert!(cut.is_empty(), "{size:?}: {cut:?} in\n{drawn}");
        let names: Vec<&str> =
            Tab::ALL.iter().map(|tab| tab.name()).chain(["nccl", "tcp", "gloo", "ranks"]).collect();
        let tabs = drawn.lines().nth(1).unwrap().split_whitespace();
        // Where tabs are close, a name follows its key.
        let tabs = tabs.map(|word| word.trim_start_matches(|c: char| c.is_ascii_digit()));
        let cut: Vec<&str> = tabs.filter(|word| word.len() > 2 && !names.contains(word)).collect();
        assert!(cut.is_empty(), "{size:?}: {cut:?} in\n{drawn}");
    }
}

#[test]
fn headline_is_mean_of_last_100_episodes() {
    let mut model = gpus();
    let mut shown = Transcript::default();
    let head = |model: &Model, size| head(model, &mut ViewState::new(), size, NOW);
    shown.add("unknown", &head(&model, (80, 24)));
    let counters = Counters { return_last_100: Some(476.3), ..Counters::default() };
    model.latest = Some(LatestTotals {
        counters,
        steps_per_s: Some(1632.0),
        at: NOW,
        gap_ms: 900,
        ..LatestTotals::default()
    });
    shown.add("known", &head(&model, (80, 24)));
    for size in [(80, 24), (100, 30), (120, 40), (200, 60)] {
        let drawn = head(&model, size);
        assert!(drawn.contains("return 476.3"), "{size:?}\n{drawn}");
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn page_without_values_names_metrics_table() {
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
        assert!(drawn.contains("[metrics]"), "{size:?}\n{drawn}");
    }
}

#[test]
fn hosts_page_shows_gpu_errors_and_foreign_processes() {
    let mut model = gpus();
    model.ranks[0].pid = Some(4711);
    let gpu = first_gpu(&mut model);
    gpu.processes = vec![(4711, 60 << 30), (8812, 40 << 30)];
    (gpu.xids, gpu.lost, gpu.memory_clock_mhz) = (vec![31, 79], true, Some(2619));
    for size in SIZES {
        let drawn = page(&model, "5", size);
        assert!(drawn.contains("Xid 79"), "{size:?}\n{drawn}");
        assert!(!drawn.contains("4711"), "the process of a rank is not foreign\n{drawn}");
        assert_eq!(drawn.contains("8812: 40.0G"), size.0 >= 80, "{size:?}\n{drawn}");
    }
    let mut shown = Transcript::default();
    shown.add("lost, with Xids", &body(&model, "5", (80, 24)));
    assert!(page(&model, "5", (200, 60)).contains("1980/2619MHz"));
    let gpu = first_gpu(&mut model);
    (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.nvlink_errors) = (Some(7), Some(2), Some(3));
    (gpu.pcie_rx, gpu.pcie_tx) = (Some(3 << 30), Some(1 << 30));
    (gpu.nvlink_rx, gpu.nvlink_tx) = (Some(40 << 30), Some(20 << 30));
    let drawn = body(&model, "5", (200, 60));
    assert!(drawn.contains("pcie ↓3.0G/s ↑1.0G/s"), "{drawn}");
    shown.add("memory and link errors", &drawn);
    assert!(page(&model, "5", (260, 60)).contains("nvlink ↓40.0G/s ↑20.0G/s"));
    let gpu = first_gpu(&mut model);
    gpu.processes = (0..6).map(|pid| (9000 + pid, 1 << 30)).collect();
    (gpu.xids, gpu.lost) = (Vec::new(), false);
    (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.nvlink_errors) = (None, None, None);
    let drawn = page(&model, "5", (120, 40));
    assert!(drawn.contains(" 9002") && drawn.contains(" 3 ") && !drawn.contains(" 9003"), "{drawn}");
    // The page still has every host, and the selection moves over the whole of it.
    assert!(page(&model, "5G", (80, 24)).contains("node-b"));
    insta::assert_snapshot!(shown.0);
}

/// Not `0B/0B`.
#[test]
fn unknown_gpu_memory_is_not_shown_as_zero() {
    let mut model = gpus();
    let gpu = first_gpu(&mut model);
    (gpu.memory_used, gpu.memory_total) = (0, 0);
    for size in SIZES {
        let drawn = page(&model, "5", size);
        assert!(!drawn.contains("0B"), "{size:?}\n{drawn}");
    }
}

#[test]
fn ended_run_has_no_speed_and_past_values() {
    let mut shown = Transcript::default();
    shown.add("a dead rank", &body(&dead(), "j\n", (100, 40)));
    let mut model = unreachable();
    model.ranks[1].sampled = Some(ago(598_000));
    let card = body(&model, "j\n", (100, 40));
    assert!(card.contains("9m 58s"), "{card}");
    shown.add("a rank without messages", &card);
    let mut over = over();
    let gauge = over.scalars["charts/SPS"].clone();
    over.scalars.insert("ranks/cpu_percent".into(), gauge);
    shown.add("a rank of an ended run", &body(&over, "\n", (100, 40)));
    for size in SIZES {
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
    insta::assert_snapshot!(shown.0);
}

#[test]
fn stopped_ranks_are_not_listed_as_failed() {
    let mut model = over_with_survivors();
    let mut shown = Transcript::default();
    shown.add("rank 3 got the console's SIGTERM", &body(&model, "7", (100, 40)));
    model.ranks[2].life = RankLife::Exited(rankdeck_proto::message::Exit::Code { code: 3 });
    let drawn = body(&model, "7", (100, 40));
    assert!(drawn.contains(": 1-2"), "{drawn}");
    shown.add("rank 2 exited with code 3", &drawn);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn smallest_layout_shows_end_and_keys() {
    let mut shown = Transcript::default();
    for size in [(50, 12), (30, 8)] {
        let drawn = page(&over_with_survivors(), "", size);
        assert!(!drawn.contains("/s"), "{drawn}");
        shown.add(&format!("{size:?}"), &drawn);
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn adopted_end_uses_agent_times() {
    let mut model = over();
    model.history.clear();
    let line = |number, time, text: &str| HistoryLine {
        time,
        ..HistoryLine::new(number, NOW, EventTone::Info, text)
    };
    model.history.extend([
        line(1, 1_000.0, "long before"),
        line(2, 9_970.0, "shortly before"),
        line(3, 10_000.0, "the run has ended: all is well"),
    ]);
    (model.run.adopted, model.run.ended, model.run.ended_time) = (true, Some(NOW), Some(10_000.0));
    model.run.launched = Some(940.0);
    let drawn = page(&model, "7", (100, 30));
    assert!(drawn.contains("shortly before") && !drawn.contains("long before"), "{drawn}");
    let drawn = page(&model, "6", (100, 30));
    let at = |text: &str| drawn.lines().find(|line| line.contains(text)).unwrap().to_owned();
    assert!(at("long before").contains("1:00") && at("all is well").contains("2:31:00"), "{drawn}");
    // Hosts are read one after the other, and this console reports events of its own.
    model.history.extend([line(4, 9_998.0, "rank 1 on node1 was killed"), line(5, 11_300.0, "node0: ready")]);
    let drawn = page(&model, "7", (100, 30));
    let place = |text: &str| drawn.find(text).unwrap_or_else(|| panic!("{text}\n{drawn}"));
    assert!(
        place("shortly before") < place("was killed")
            && place("was killed") < place("· the run has ended: all is well"),
        "{drawn}"
    );
    assert!(!drawn.contains("node0: ready"), "{drawn}");
    // From the launch to the end, whenever a console attaches.
    assert!(drawn.contains("2h 31m"), "{drawn}");
    // A console that was attached all the time uses its own clock.
    model.run.adopted = false;
    assert!(page(&model, "7", (100, 30)).contains("long before"));
}

/// A pane of a tiling window manager, a status line: the state is there, and the way out where it fits.
#[test]
fn tiny_terminal_shows_the_run() {
    let model = gpus();
    let mut shown = Transcript::default();
    for size in [(30, 3), (30, 4), (50, 12)] {
        let drawn = page(&model, "", size);
        for expected in ["1.23M", "/s", "RRRR"] {
            assert!(drawn.contains(expected), "{size:?}: {expected}\n{drawn}");
        }
        shown.add(&format!("{size:?}"), &drawn);
    }
    shown.add("a stuck rank", &page(&behind(), "", (30, 3)));
    for (width, height) in [(1, 1), (5, 2), (12, 3)] {
        page(&model, "", (width, height));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn end_page_shows_first_best_eval_and_long_path() {
    let mut model = over();
    let first = model.evals.front().unwrap().env_step;
    model.evals.iter_mut().for_each(|eval| eval.return_mean = 500.0);
    let path = format!("/{}/checkpoints/latest.ckpt", "long".repeat(15));
    model.checkpoints.back_mut().unwrap().path = path.clone();
    let drawn = page(&model, "7", (80, 24));
    assert!(drawn.contains(&format!("500.0 at {} ", words::count(first))), "{drawn}");
    let lines: Vec<&str> = drawn.lines().map(str::trim).collect();
    assert!(lines.iter().any(|line| line.starts_with("/longlong")), "a row of its own\n{drawn}");
    insta::assert_snapshot!(drawn.lines().map(|row| format!("{}\n", row.trim_end())).collect::<String>());
}

/// A run without a recording has no report; a command that does not fit is not offered.
#[test]
fn end_page_offers_report_only_with_a_recording() {
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
    assert!(offered(Some(&elsewhere), (120, 40)).contains(&format!("`{elsewhere}`")));
    let narrow = offered(Some(&elsewhere), (90, 40));
    assert!(!narrow.contains("rankdeck report"), "{narrow}");
    let offer = narrow.lines().find(|row| row.contains("Markdown")).unwrap_or_else(|| panic!("{narrow}"));
    insta::assert_snapshot!(offer.trim());
}

/// Labels that need an explanation: `collecting 6m 15s` next to an elapsed 12m 34s.
#[test]
fn help_page_explains_labels() {
    let model = gpus();
    let mut shown = Transcript::default();
    for typed in ["collecting", "last 100", "drops", "wait share"] {
        shown.add(typed, &body(&model, &format!("?{typed}"), (100, 30)));
    }
    // All of them can be scrolled to, and none runs a command.
    let mut view = ViewState::new();
    press_at(&model, &mut view, "?", (80, 24));
    for _ in 0..200 {
        press_at(&model, &mut view, "↓", (80, 24));
    }
    let buffer = cells(&model, &mut view, &Theme::dark(), (80, 24), NOW);
    shown.add("the last term", &rows_in(&buffer, view.geometry.body));
    assert_eq!(press_at(&model, &mut view, "\n", (80, 24)), []);
    assert_eq!(view.overlays.len(), 1);
    // Every label of the totals has its line.
    let drawn = page(&model, "1", (120, 40));
    for label in ["env_step", "samples", "collecting", "all-reduced", "sum of ranks"] {
        assert!(drawn.contains(label), "{label} is not on the screen any more");
        assert!(page(&model, &format!("?{label}"), (100, 30)).contains("terms"), "{label}");
    }
    insta::assert_snapshot!(shown.0);
}

/// A program of the user's own handles SIGTERM in its own way.
#[test]
fn stop_question_describes_signals() {
    let mut model = gpus();
    let asked = |model: &Model| {
        let mut view = ViewState::new();
        press_at(model, &mut view, "x", (120, 40));
        question(&view)
    };
    let mut shown = Transcript::default();
    shown.add("the built-in trainer", &asked(&model));
    let launch = &mut model.plan.as_mut().unwrap().experiment.launch;
    (launch.command, launch.stop_grace_s) = (vec!["train.py".into()], 7.0);
    let own = asked(&model);
    for fact in ["SIGTERM", "SIGKILL", "7.0s"] {
        assert!(own.contains(fact), "{fact}: {own}");
    }
    shown.add("a program of the user's own", &own);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn unverified_rank_is_marked_on_all_pages() {
    let mut model = over_with_survivors();
    model.run.unverified = vec!["node-a".into(), "node-b".into()];
    model.ranks[2].life = RankLife::Joined;
    model.ranks[3].life = RankLife::Finished;
    // Their letters in the column of states.
    let states = |drawn: &str| -> String {
        let rows = drawn.lines().filter(|line| line.contains(" node-"));
        rows.filter_map(|row| row.split(" node-").nth(1)?.split_whitespace().nth(1)).collect()
    };
    let mut shown = Transcript::default();
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = body(&model, "1z", size);
        assert!(!states(&drawn).contains(['R', 'F']), "{size:?}\n{drawn}");
        shown.add(&format!("{size:?}"), &drawn);
    }
    let end = body(&model, "7", (120, 40));
    assert!(end.contains(": 0,2-3") && end.contains(": 1"), "{end}");
    shown.add("end", &end);
    // A process that a host did not find is no longer running, whatever its last message was.
    model.run.unverified = vec!["node-a".into()];
    model.hosts[1].stopped = Some(vec![]);
    let drawn = body(&model, "1z", (120, 40));
    assert_eq!(states(&drawn).matches('E').count(), 2, "{drawn}");
    shown.add("node-b has verified its stop", &drawn);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn chart_title_age_is_never_cut() {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let at = rankdeck_types::ids::Timestamp(NOW.0 - 14_000);
    model.latest =
        Some(LatestTotals { steps_per_s: Some(1632.0), at, gap_ms: 100, ..LatestTotals::default() });
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
fn run_without_target_has_no_eta() {
    let mut model = running(&[cpu("node-a", 2)]);
    let at = rankdeck_types::ids::Timestamp(NOW.0 - 14_000);
    model.latest =
        Some(LatestTotals { steps_per_s: Some(1632.0), at, gap_ms: 100, ..LatestTotals::default() });
    for rank in &mut model.ranks {
        rank.sample.as_mut().unwrap().page.as_mut().unwrap().heartbeat_age_ms = 14_000;
    }
    assert!(page(&model, "", (120, 40)).contains("ETA"), "with a target");
    model.run.total_steps = None;
    assert!(!page(&model, "", (120, 40)).contains("ETA"), "{}", page(&model, "", (120, 40)));
}

/// The value of a chart is whole, whatever its series is called.
#[test]
fn long_chart_name_is_cut_before_its_value() {
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

/// A large screen has no empty half.
#[test]
fn zoomed_ranks_show_card_below_if_it_fits() {
    let model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let drawn = page(&model, "jz", size);
        assert!(drawn.contains(" rank 1 on node-a ") && drawn.contains("local_rank"), "{size:?}\n{drawn}");
        assert!(
            page(&model, "jzj", size).contains(" rank 2 on node-b "),
            "{size:?}: it follows the selection"
        );
        assert!(!page(&model, "j", size).contains(" rank 1 on node-a "), "{size:?}: others have the room");
    }
    let full = page(&running(&[cpu("node-a", 8), cpu("node-b", 8)]), "jz", (80, 24));
    assert!(!full.contains("local_rank"), "there is no room:\n{full}");
}

#[test]
fn eval_bars_name_their_measure() {
    let drawn = page(&gpus(), "3", (125, 40));
    let heads = drawn.lines().find(|line| line.contains("ENV_STEP")).unwrap();
    insta::assert_snapshot!(heads.trim());
}
