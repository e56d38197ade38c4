//! The Charts page: values at any zoom, keys, and what stays where it is.

use crate::scenes::*;
use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use rankdeck_charts::axis::Axis;
use rankdeck_charts::view::ComparedCurves;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::model::*;
use rankdeck_core::report::{Severity, VerdictKind};
use rankdeck_core::series::{Place, Series};
use rankdeck_tui::{Glyphs, ScreenAction, Theme, ViewState};
use rankdeck_types::ids::Generation;
use ratatui::style::Style;

const SIZE: (u16, u16) = (120, 40);

fn draw_as(model: &Model, view: &mut ViewState, theme: &Theme) -> String {
    rows(&cells(model, view, theme, SIZE, NOW))
}

fn draw(model: &Model, view: &mut ViewState) -> String {
    draw_as(model, view, &Theme::dark())
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    let actions = press_at(model, view, keys, SIZE);
    view.toasts.clear();
    actions
}

fn two() -> Model {
    running(&[cpu("node-a", 1), cpu("node-b", 1)])
}

/// A run whose one series is 1 everywhere but at one of many values.
fn spiked(values: usize, spike: f64) -> Model {
    let mut model = two();
    model.scalars.clear();
    let mut series = Series::default();
    for i in 0..values {
        series.push(place(i as f64 * 100.0), if i == values / 2 { spike } else { 1.0 });
    }
    model.scalars.insert("losses/approx_kl".into(), series);
    model
}

#[test]
fn extremes_are_true_at_any_zoom() {
    for values in [900, 9_000, 90_000] {
        let model = spiked(values, 777.0);
        for keys in ["2", "2+", "2+++"] {
            let mut view = ViewState::new();
            press(&model, &mut view, keys);
            let middle = values as f64 * 50.0;
            let span = values as f64 * 100.0 / 8.0;
            view.charts.view.window.held = Some((middle - span, middle + span));
            let drawn = draw(&model, &mut view);
            assert!(drawn.contains("min 1.000  max 777"), "{values} {keys}\n{drawn}");
            assert!(drawn.contains("777 ┤"), "the axis reaches it\n{drawn}");
        }
    }
}

#[test]
fn smoothing_leaves_the_extremes_visible() {
    let model = spiked(4_000, 50.0);
    let mut view = ViewState::new();
    press(&model, &mut view, "2sss");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains(" 0.8") && drawn.contains("max 50") && drawn.contains("50 ┤"), "{drawn}");
    assert_eq!(view.charts.view.weight(), 0.8);
    press(&model, &mut view, "SSSSSSSS");
    assert_eq!(view.charts.view.weight(), 0.0);
}

#[test]
fn log_axis_shows_positive_values_only() {
    let mut model = spiked(500, 1e6);
    let mut view = ViewState::new();
    press(&model, &mut view, "2L");
    let drawn = draw(&model, &mut view);
    assert!(view.charts.view.log && drawn.contains("1,000 ┤") | drawn.contains("1.00k ┤"), "{drawn}");
    let series = model.scalars.get_mut("losses/approx_kl").unwrap();
    *series = Series::default();
    series.push(place(1.0), -1.0);
    let mut shown = Transcript::default();
    shown.add("no positive value", &draw(&model, &mut view));
    insta::assert_snapshot!(shown.0);
}

#[test]
fn x_axis_is_steps_time_or_wall_clock() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    assert!(draw(&model, &mut view).contains("1.23M"));
    press(&model, &mut view, "a");
    let drawn = draw(&model, &mut view);
    assert!(view.charts.view.axis == Axis::Time && drawn.contains("12m 30s"), "{drawn}");
    press(&model, &mut view, "a");
    let drawn = draw(&model, &mut view);
    assert!(view.charts.view.axis == Axis::Wall && drawn.contains("12:12:32"), "{drawn}");
}

/// A stall has no steps; on the axes of time it is as wide as it is long, while it lasts.
#[test]
fn stall_widens_the_time_axes_by_its_duration() {
    let mut model = two();
    let counters = rankdeck_proto::message::Counters { env_step: 1_228_800, ..Default::default() };
    let ends = |model: &Model, keys: &str| {
        let mut view = ViewState::new();
        press(model, &mut view, keys);
        draw(model, &mut view);
        view.charts.view.window(model).1
    };
    for (keys, wide) in [("2", 0.0), ("2a", 34.0), ("2aa", 34.0)] {
        let totals = |ago: u64| LatestTotals {
            counters,
            steps_per_s: Some(1632.0),
            at: rankdeck_types::ids::Timestamp(NOW.0 - ago),
            gap_ms: 900,
            ..LatestTotals::default()
        };
        model.latest = Some(totals(400));
        let fresh = ends(&model, keys);
        model.latest = Some(totals(34_000));
        assert_eq!(ends(&model, keys) - fresh, wide, "{keys}");
        model.run.state = RunState::Over;
        assert_eq!(ends(&model, keys), fresh, "{keys}: a run that is over does not age");
        model.run.state = RunState::Running;
    }
    // Values of a program of its own, too.
    model.latest = None;
    model.progress = None;
    let fresh = ends(&model, "2a");
    let at = rankdeck_types::ids::Timestamp(NOW.0 - 50_000);
    model.own = Some(OwnMetrics {
        rank: rankdeck_types::ids::Rank(0),
        source: "stdout".into(),
        generation: Default::default(),
        env_step: None,
        steps_per_s: None,
        return_mean: None,
        records: 1,
        x: 1.0,
        progress: None,
        at,
        age_ms: 0,
    });
    assert_eq!(ends(&model, "2a") - fresh, 50.0);
}

#[test]
fn series_names_are_whole_at_80_columns() {
    let mut model = two();
    let series = model.scalars["losses/approx_kl"].clone();
    for name in ["losses/old_approx_kl", "charts/episodic_length", "losses/explained_variance"] {
        model.scalars.insert(name.into(), series.clone());
    }
    let mut view = ViewState::new();
    press_at(&model, &mut view, "2", (80, 24));
    let drawn = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    for name in ["old_approx_kl", "episodic_length", "explained_variance", "policy_loss"] {
        assert!(drawn.contains(name), "{name}\n{drawn}");
    }
}

#[test]
fn axis_labels_differ_at_any_zoom() {
    let model = spiked(9_000, 5.0);
    let mut view = ViewState::new();
    press(&model, &mut view, "2++++++++++");
    let drawn = draw(&model, &mut view);
    let axis =
        drawn.lines().rfind(|line| line.matches("899").count() >= 2).unwrap_or_else(|| panic!("{drawn}"));
    let mut labels: Vec<&str> = axis.split_whitespace().filter(|word| word.starts_with("899")).collect();
    let all = labels.len();
    labels.dedup();
    assert!(all >= 2 && labels.len() == all, "{labels:?}");
}

#[test]
fn cursor_shows_values_and_differences() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2{{{");
    let drawn = draw(&model, &mut view);
    assert!(drawn.matches("983.0k").count() >= 2, "in the settings and the chart\n{drawn}");
    press(&model, &mut view, "m{{");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("Δ -") && drawn.contains("983.0k"), "{drawn}");
    press(&model, &mut view, "\x1b");
    let drawn = draw(&model, &mut view);
    assert!(!drawn.contains("983.0k") && drawn.contains("min "), "{drawn}");
}

#[test]
fn shown_series_fit_in_one_chart_with_a_legend() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2o");
    let drawn = draw(&model, &mut view);
    for name in ["● episode return", "● value_loss", "● steps/s"] {
        assert!(drawn.contains(name), "{name}\n{drawn}");
    }
    assert!(view.charts.view.together);
}

#[test]
fn restarts_verdicts_and_checkpoints_are_marked() {
    let mut model = two();
    let mark = |step, kind| ChartMark { place: place(step), kind };
    model.marks.extend([
        mark(200_000.0, ChartMarkKind::Checkpoint),
        mark(600_000.0, ChartMarkKind::Generation(Generation(1))),
        mark(900_000.0, ChartMarkKind::Verdict(VerdictKind::Behind, Severity::Red)),
    ]);
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    let drawn = draw(&model, &mut view);
    for word in ["▴", "gen 1", "✗behind"] {
        assert!(drawn.contains(word), "{word}\n{drawn}");
    }
    assert!(!draw(&model, &mut ViewState::new()).contains("gen 1"), "not at a glance");
}

/// `▲✗frozeng`: a verdict of learning, and one of a frozen rank soon after it.
#[test]
fn mark_labels_are_whole_or_omitted() {
    let mut model = two();
    for (step, kind) in [(600_000.0, VerdictKind::Learning), (640_000.0, VerdictKind::Frozen)] {
        model
            .marks
            .push_back(ChartMark { place: place(step), kind: ChartMarkKind::Verdict(kind, Severity::Red) });
    }
    let mut view = ViewState::new();
    for keys in ["2", "+", "+", "a", "0"] {
        press(&model, &mut view, keys);
        let drawn = draw(&model, &mut view);
        for row in drawn.lines().filter(|row| row.contains("frozen")) {
            assert!(!row.contains("frozeng") && !row.contains("frozenn"), "{drawn}");
        }
        for row in drawn.lines().filter(|row| row.contains('✗')) {
            for word in row.split('✗').skip(1).filter(|rest| rest.starts_with(char::is_alphabetic)) {
                assert!(word.starts_with("frozen") || word.starts_with("learning"), "{word}\n{drawn}");
            }
        }
    }
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    view.charts.view.window.held = Some((590_000.0, 650_000.0));
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("✗learning") && drawn.contains("✗frozen"), "{drawn}");
}

#[test]
fn evaluations_do_not_cover_the_return() {
    let mut model = two();
    let mut many = Series::default();
    (0..240).for_each(|i| many.push(place(f64::from(i) * 5120.0), 120.0 + f64::from(i % 9)));
    model.scalars.insert("charts/eval_return".into(), many);
    let theme = Theme::dark();
    let mut view = ViewState::new();
    let shown = cells(&model, &mut view, &theme, SIZE, NOW);
    let drawn = |style: Style| {
        shown
            .content()
            .iter()
            .filter(|cell| ('\u{2801}'..'\u{2900}').contains(&cell.symbol().chars().next().unwrap_or(' ')))
            .filter(|cell| Some(cell.fg) == style.fg)
            .count()
    };
    assert!(drawn(theme.series[0]) >= 15, "the line of the return is there");
    assert!(drawn(theme.series[1]) >= 5, "and so are the evaluations");
}

#[test]
fn rank_metrics_are_drawn_as_a_band() {
    let mut model = two();
    let mut band = Series::default();
    (0..100).for_each(|i| band.push_spread(place(f64::from(i) * 5000.0), 0.2, 0.1, 0.9));
    model.spreads.insert("ranks/wait_share".into(), band);
    let mut view = ViewState::new();
    press(&model, &mut view, "2G");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("ranks/wait_share 0.2000") && drawn.contains("min 0.1000  max 0.9000"), "{drawn}");
}

#[test]
fn constant_series_is_drawn_in_the_middle() {
    let mut model = two();
    let mut flat = Series::default();
    (0..100).for_each(|i| flat.push(place(f64::from(i) * 5000.0), 500.0));
    model.scalars.clear();
    model.scalars.insert("flat".into(), flat);
    for glyphs in [Glyphs::Braille, Glyphs::Block, Glyphs::Ascii] {
        let mut view = ViewState::new();
        press(&model, &mut view, "2");
        let drawn = draw_as(&model, &mut view, &Theme::dark().with_glyphs(glyphs));
        let rows: Vec<&str> = drawn.lines().collect();
        let of = |label: &str| {
            rows.iter().position(|row| row.contains(label)).unwrap_or_else(|| panic!("{label}\n{drawn}"))
        };
        let (top, middle, bottom) = (of("550"), of("500"), of("450"));
        let middle =
            rows[top..=bottom].iter().rposition(|row| row.contains("500")).map_or(middle, |at| top + at);
        let marks = |row: &str| row.chars().filter(|c| !" │|┤+-╮╯─░.:0123456789".contains(*c)).count();
        assert!(marks(rows[middle]).max(marks(rows[middle + 1])) > 40, "{glyphs:?}\n{drawn}");
        assert!(marks(rows[top + 1]) < 5, "{glyphs:?}\n{drawn}");
    }
}

#[test]
fn export_writes_shown_series_as_csv_svg_and_png() {
    let model = two();
    let mut view = ViewState::new();
    let actions = press(&model, &mut view, "2e");
    let [ScreenAction::SaveFiles(files)] = actions.as_slice() else { panic!("{actions:?}") };
    let [csv, svg, png] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((csv.ending, svg.ending, png.ending), ("csv", "svg", "png"));
    let [csv, svg, png] = [csv, svg, png].map(|file| file.bytes().into_owned());
    let [csv, svg] = [csv, svg].map(|file| String::from_utf8(file).unwrap());
    for name in ["charts/episodic_return,", "losses/value_loss,", "charts/SPS,"] {
        assert!(csv.contains(name), "{name}");
    }
    assert!(!csv.contains("losses/entropy,"));
    assert_eq!(svg.matches("<polyline").count(), 3);
    // A PNG of three charts of 960 x 320 below each other, at twice that size.
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (1920, 1920));
}

/// A mouse event on the page of the charts.
fn mouse(model: &Model, view: &mut ViewState, kind: MouseEventKind, at: (u16, u16)) {
    let event = MouseEvent { kind, column: at.0, row: at.1, modifiers: KeyModifiers::NONE };
    rankdeck_tui::layout(model, view, ratatui::layout::Rect::new(0, 0, SIZE.0, SIZE.1));
    assert!(rankdeck_tui::on_mouse(model, view, event, NOW).is_empty());
}

#[test]
fn wheel_zooms_and_click_sets_the_cursor() {
    let (model, mut view) = (spiked(1000, 5.0), ViewState::new());
    press(&model, &mut view, "2");
    let whole = view.charts.view.window(&model);
    mouse(&model, &mut view, MouseEventKind::ScrollUp, (100, 12));
    let closer = view.charts.view.window(&model);
    assert!((closer.1 - closer.0) * 2.0 - (whole.1 - whole.0) < 1.0, "{closer:?} of {whole:?}");
    assert!(closer.0 > whole.0, "the mouse is at the right: {closer:?}");
    mouse(&model, &mut view, MouseEventKind::Down(MouseButton::Left), (100, 12));
    let there = view.charts.view.cursor.unwrap();
    assert!((closer.0..=closer.1).contains(&there), "{there} {closer:?}");
    mouse(&model, &mut view, MouseEventKind::Drag(MouseButton::Left), (60, 12));
    assert!(view.charts.view.cursor.unwrap() < there);
    mouse(&model, &mut view, MouseEventKind::Down(MouseButton::Right), (80, 12));
    assert_eq!(view.charts.view.pin, view.charts.view.cursor);
    for _ in 0..3 {
        mouse(&model, &mut view, MouseEventKind::ScrollDown, (60, 12));
    }
    assert_eq!(view.charts.view.window(&model), whole, "the whole run again");
    let before = view.charts.view.cursor;
    mouse(&model, &mut view, MouseEventKind::Down(MouseButton::Left), (5, 12));
    assert_eq!(view.charts.view.cursor, before, "the list is not a chart");
}

#[test]
fn compared_runs_have_letters_without_colors() {
    let (model, other) = (spiked(500, 5.0), spiked(900, 2.0));
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    let alone = view.charts.view.window(&model);
    let run = ComparedRun::from_model("ppo-1121", &other, NOW);
    view.charts.view.compared = vec![ComparedCurves::new(run)];
    assert!(view.charts.view.window(&model).1 > alone.1, "the longer run is shown whole");
    let drawn = draw_as(&model, &mut view, &Theme::mono());
    assert!(drawn.contains(" b ppo-1121"), "{drawn}");
    let chart: String = drawn.lines().skip(4).map(|line| line.chars().skip(32).collect::<String>()).collect();
    assert!(chart.contains('a') && chart.contains('b'), "both lines have their letter\n{drawn}");
    press(&model, &mut view, "[");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("  b 1.000"), "its value at the cursor\n{drawn}");
}

#[test]
fn series_filter_limits_the_selection() {
    let (model, mut view) = (two(), ViewState::new());
    press(&model, &mut view, "2/loss");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("/loss"), "{drawn}");
    press(&model, &mut view, "\n");
    let selected = view.charts.series.selected.clone().unwrap();
    assert!(selected.contains("loss"), "{selected}");
    press(&model, &mut view, "GGG");
    assert!(view.charts.series.selected.clone().unwrap().contains("loss"));
    press(&model, &mut view, "g/\u{8}\u{8}\u{8}\u{8}!loss\n");
    assert!(!view.charts.series.selected.clone().unwrap().contains("loss"), "{:?}", view.charts.series);
    press(&model, &mut view, "\x1b");
    assert!(view.charts.series.filter.is_empty());
}

#[test]
fn cursor_and_pin_values_are_shown_at_80_columns() {
    let model = two();
    for size in [(80, 24), (120, 40)] {
        let mut view = ViewState::new();
        press_at(&model, &mut view, "2{{m{", size);
        view.toasts.clear();
        let apart = rows(&cells(&model, &mut view, &Theme::dark(), size, NOW));
        assert!(apart.contains('Δ'), "{size:?}\n{apart}");
        press_at(&model, &mut view, "o", size);
        view.toasts.clear();
        let together = rows(&cells(&model, &mut view, &Theme::dark(), size, NOW));
        assert!(together.matches('Δ').count() >= 3, "{size:?}\n{together}");
        let cursor = view.charts.view.scale(&model).label(view.charts.view.cursor.unwrap());
        assert!(together.matches(&cursor).count() >= 2, "in the settings and the chart\n{together}");
    }
}

#[test]
fn longer_compared_run_leaves_the_overview_unchanged() {
    let model = two();
    let series = model.scalars.iter().map(|(name, series)| {
        let mut long = series.clone();
        long.push(place(40_000_000.0), 1.0);
        (name.clone(), long)
    });
    let name = "ppo-cartpole-20260101-130000".to_owned();
    let run = ComparedRun { run: name, series: series.collect(), ..ComparedRun::default() };
    let mut view = ViewState::new();
    let alone = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    view.charts.view.compared = vec![ComparedCurves::new(run)];
    let beside = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    assert_eq!(alone, beside, "it is drawn on the Charts page only");
    press_at(&model, &mut view, "2[", (80, 24));
    let page = rows(&cells(&model, &mut view, &Theme::dark(), (80, 24), NOW));
    assert!(page.contains(" b ppo") && page.contains("0000"), "{page}");
}

/// A run that began again from scratch: where it is now, and what it was before.
#[test]
fn abandoned_generation_is_dim_behind_the_present() {
    let mut model = two();
    model.scalars.clear();
    model.spreads.clear();
    model.histograms.clear();
    let mut series = Series::default();
    (0..100).for_each(|i| series.push(place(f64::from(i) * 5000.0), 500.0));
    let restarted = |step: f64| Place { generation: Generation(1), ..place(step) };
    (0..60).for_each(|i| series.push(restarted(f64::from(i) * 5000.0), f64::from(i)));
    model.scalars.insert("charts/episodic_return".into(), series);
    let theme = Theme::dark();
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    let shown = cells(&model, &mut view, &theme, SIZE, NOW);
    let drawn = |style: Style| {
        let is_line = |symbol: &str| symbol.chars().all(|sign| ('\u{2801}'..'\u{2900}').contains(&sign));
        let lines = shown.content().iter().filter(|cell| is_line(cell.symbol()));
        lines.filter(|cell| Some(cell.fg) == style.fg).count()
    };
    assert!(drawn(theme.series[0]) >= 15 && drawn(theme.dim) >= 15, "{}", rows(&shown));
    // The abandoned curve continues to the right of the present one, and all values are of the present one.
    assert_eq!(view.charts.view.window(&model), (0.0, 495_000.0));
    let mut transcript = Transcript::default();
    transcript.add("from scratch", &rows(&shown));
    press(&model, &mut view, "p");
    transcript.add("without earlier generations", &draw(&model, &mut view));
    assert_eq!(view.charts.view.window(&model).1, 295_000.0);
    let csv_and_svg = press(&model, &mut view, "e");
    let [ScreenAction::SaveFiles(files)] = &csv_and_svg[..] else { panic!("no files") };
    let svg = files.iter().find(|file| file.ending == "svg").unwrap();
    assert!(!String::from_utf8_lossy(&svg.bytes()).contains("(generation 0)"));
    press(&model, &mut view, "p");
    assert_eq!(view.charts.view.window(&model).1, 495_000.0);
    insta::assert_snapshot!(transcript.0);
}
