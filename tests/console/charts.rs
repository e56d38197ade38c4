//! The charts: what is true at any zoom, what keys change, what stays where it is.

use crate::scenes::*;
use rankdeck_core::model::*;
use rankdeck_core::report::{Severity, VerdictKind};
use rankdeck_core::series::Series;
use rankdeck_tui::{Action, Glyphs, Theme, ViewState};
use rankdeck_types::ids::Generation;
use ratatui::style::Style;

const SIZE: (u16, u16) = (120, 40);

fn draw_as(model: &Model, view: &mut ViewState, theme: &Theme) -> String {
    rows(&cells(model, view, theme, SIZE, NOW))
}

fn draw(model: &Model, view: &mut ViewState) -> String {
    draw_as(model, view, &Theme::dark())
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<Action> {
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
            view.chart.window.held = Some((middle - span, middle + span));
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
    assert!(drawn.contains("smooth 0.8") && drawn.contains("max 50") && drawn.contains("50 ┤"), "{drawn}");
    press(&model, &mut view, "SSSSSSSS");
    assert!(draw(&model, &mut view).contains("smooth off"));
}

#[test]
fn a_logarithmic_axis_shows_what_is_above_0() {
    let mut model = spiked(500, 1e6);
    let mut view = ViewState::new();
    press(&model, &mut view, "2L");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("y log") && drawn.contains("1,000 ┤") | drawn.contains("1.00k ┤"), "{drawn}");
    let series = model.scalars.get_mut("losses/approx_kl").unwrap();
    *series = Series::default();
    series.push(place(1.0), -1.0);
    assert!(draw(&model, &mut view).contains("no values above 0"));
}

#[test]
fn the_x_axis_is_steps_time_or_the_wall_clock() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    assert!(draw(&model, &mut view).contains("1.23M"));
    press(&model, &mut view, "a");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("x time") && drawn.contains("12m 30s"), "{drawn}");
    press(&model, &mut view, "a");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("x wall clock") && drawn.contains("12:12:32"), "{drawn}");
}

#[test]
fn the_cursor_tells_values_and_their_differences() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2{{{");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("cursor 983.0k") && drawn.contains("at 983.0k"), "{drawn}");
    press(&model, &mut view, "m{{");
    let drawn = draw(&model, &mut view);
    assert!(drawn.contains("Δ -") && drawn.contains("from 983.0k"), "{drawn}");
    press(&model, &mut view, "\x1b");
    let drawn = draw(&model, &mut view);
    assert!(!drawn.contains("cursor 983") && drawn.contains("min "), "{drawn}");
}

#[test]
fn shown_series_fit_in_one_chart_with_a_legend() {
    let model = two();
    let mut view = ViewState::new();
    press(&model, &mut view, "2o");
    let drawn = draw(&model, &mut view);
    for word in ["● episodic_return", "● return", "● value_loss", "● steps/s", "one chart on"] {
        assert!(drawn.contains(word) || word == "● episodic_return", "{word}\n{drawn}");
    }
}

#[test]
fn restarts_verdicts_and_checkpoints_are_marked() {
    let mut model = two();
    let mark = |step, kind| Mark { place: place(step), kind };
    model.marks.extend([
        mark(200_000.0, MarkKind::Checkpoint),
        mark(600_000.0, MarkKind::Generation(Generation(1))),
        mark(900_000.0, MarkKind::Verdict(VerdictKind::Behind, Severity::Red)),
    ]);
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    let drawn = draw(&model, &mut view);
    for word in ["▴", "gen 1", "✗behind"] {
        assert!(drawn.contains(word), "{word}\n{drawn}");
    }
    assert!(!draw(&model, &mut ViewState::new()).contains("gen 1"), "not at a glance");
}

#[test]
fn evaluations_do_not_hide_the_return() {
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
fn what_ranks_do_is_a_band() {
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
fn a_constant_series_is_neither_high_nor_low() {
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
fn export_writes_csv_svg_and_png_of_what_is_shown() {
    let model = two();
    let mut view = ViewState::new();
    let actions = press(&model, &mut view, "2e");
    let [Action::SaveFiles(files)] = actions.as_slice() else { panic!("{actions:?}") };
    let [csv, svg, png] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((csv.ending, svg.ending, png.ending), ("csv", "svg", "png"));
    let [csv, svg] = [csv, svg].map(|file| std::str::from_utf8(&file.bytes).unwrap());
    for name in ["charts/episodic_return,", "losses/value_loss,", "charts/SPS,"] {
        assert!(csv.contains(name), "{name}");
    }
    assert!(!csv.contains("losses/entropy,"));
    assert_eq!(svg.matches("<polyline").count(), 3);
    // A PNG of three charts of 960 x 320 below each other, at twice that size.
    assert!(png.bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
    let side = |at: usize| u32::from_be_bytes(png.bytes[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (1920, 1920));
}
