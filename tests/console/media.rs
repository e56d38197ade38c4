//! Histograms and pictures that a program logs, on the screen and as lines.

use crate::scenes::*;
use rankdeck_charts::axis::Axis;
use rankdeck_core::model::Model;
use rankdeck_kit::ColorDepth;
use rankdeck_proto::media::{Histogram, ImageHeader, encoded};
use rankdeck_tui::linear::Linear;
use rankdeck_tui::state::{Images, Overlay};
use rankdeck_tui::{Glyphs, ScreenAction, Theme, ViewState};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use std::collections::BTreeSet;

const SIZE: (u16, u16) = (100, 30);

/// A bell that moves up and becomes narrower.
fn bell(step: u32) -> Histogram {
    let (middle, wide) = (f64::from(step) / 40.0, 2.0 - f64::from(step) / 40.0);
    let edges: Vec<f64> = (0..=32).map(|i| -4.0 + 0.25 * f64::from(i)).collect();
    let share = |low: f64| (-((low + 0.125 - middle) / wide).powi(2)).exp();
    let counts = edges[..32].iter().map(|low| (1000.0 * share(*low)).round()).collect();
    Histogram { edges, counts }
}

/// A PNG of two halves, the left one brighter with each step.
fn png(wide: u32, high: u32, light: u8) -> Vec<u8> {
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let named = [name.as_slice(), data].concat();
        let sum = !named.iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
        });
        [&(data.len() as u32).to_be_bytes(), &named[..], &sum.to_be_bytes()].concat()
    };
    let row = |_| std::iter::once(0).chain((0..wide).map(move |x| if x < wide / 2 { light } else { 255 }));
    let rows: Vec<u8> = (0..high).flat_map(row).collect();
    let (low, sum) = rows.iter().fold((1u32, 0u32), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    let length = rows.len() as u16;
    let stored = [&[1][..], &length.to_le_bytes(), &(!length).to_le_bytes()].concat();
    let body = [&[0x78, 1][..], &stored, &rows, &(sum << 16 | low).to_be_bytes()].concat();
    let head = [&wide.to_be_bytes()[..], &high.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let parts = [chunk(b"IHDR", &head), chunk(b"IDAT", &body), chunk(b"IEND", &[])].concat();
    [b"\x89PNG\r\n\x1a\n", &parts[..]].concat()
}

fn log_picture(model: &mut Model, name: &str, step: f64, file: &[u8]) {
    let head = ImageHeader::of(file).unwrap();
    assert!(model.gallery.push(name.into(), place(step), head, encoded(file)));
}

fn logged() -> Model {
    let mut model = running(&[cpu("node-a", 1), cpu("node-b", 1)]);
    let series = model.histograms.entry("hist/action".into()).or_default();
    (0..60).for_each(|step| series.push(place(f64::from(step) * 20_000.0), bell(step)));
    for step in 0..5 {
        log_picture(&mut model, "eval/frame", f64::from(step) * 100_000.0, &png(32, 32, 40 * step as u8));
    }
    log_picture(&mut model, "plots/value map", 400_000.0, &png(64, 16, 0));
    model
}

fn draw(model: &Model, view: &mut ViewState, theme: &Theme) -> Buffer {
    decode(model, view);
    cells(model, view, theme, SIZE, NOW)
}

/// As the app's thread does.
fn decode(model: &Model, view: &mut ViewState) {
    let decoded = rankdeck_tui::undecoded_picture(model, view).map(rankdeck_tui::decode_picture);
    decoded.into_iter().for_each(|decoded| rankdeck_tui::set_picture(view, decoded));
}

fn text(buffer: &Buffer) -> String {
    rows(buffer).lines().map(|row| format!("{}\n", row.trim_end())).collect()
}

/// The series selected on the page of charts, which is all that is shown.
fn selected(model: &Model, name: &str, keys: &str) -> ViewState {
    let mut view = ViewState::new();
    view.charts.series.selected = Some(name.into());
    view.charts.series.shown = Some(BTreeSet::new());
    press_at(model, &mut view, &format!("2{keys}"), SIZE);
    view
}

#[test]
fn histograms_are_heat_maps_in_every_theme() {
    let model = logged();
    let mut view = selected(&model, "hist/action", "");
    insta::assert_snapshot!("heat_map_mono", text(&draw(&model, &mut view, &Theme::mono())));
    let ascii = Theme::dark().with_glyphs(Glyphs::Ascii);
    insta::assert_snapshot!("heat_map_ascii", text(&draw(&model, &mut view, &ascii)));
    // In colours: a letter for each, the darkest first.
    let buffer = draw(&model, &mut view, &Theme::dark());
    let ramp = [53, 54, 60, 24, 30, 36, 71, 113, 148, 220].map(Color::Indexed);
    let letter =
        |colour: Color| ramp.iter().position(|one| *one == colour).map(|at| (b'a' + at as u8) as char);
    let map: String = (0..SIZE.1)
        .map(|y| {
            let cell = |x| &buffer[(x, y)];
            let row: String = (0..SIZE.0)
                .map(|x| match cell(x).symbol() {
                    "▀" | "▄" => letter(cell(x).fg).unwrap_or('?'),
                    _ => ' ',
                })
                .collect();
            format!("{}\n", row.trim_end())
        })
        .collect();
    assert!(map.contains('j') && map.contains('a'), "{map}");
    insta::assert_snapshot!("heat_map_colours", map);
    view.style.colours = ColorDepth::True;
    let buffer = draw(&model, &mut view, &Theme::light());
    let bright = buffer.content().iter().filter(|cell| cell.fg == Color::Rgb(0x44, 0x01, 0x54)).count();
    assert!(bright > 0, "on a light background much is dark");
}

#[test]
fn cursor_shows_bin_and_count() {
    let model = logged();
    let mut view = selected(&model, "hist/action", "[");
    let drawn = text(&draw(&model, &mut view, &Theme::dark()));
    assert!(drawn.contains("1.250 to 1.500 964 of ") && drawn.contains('│'), "{drawn}");
    press_at(&model, &mut view, "KK", SIZE);
    let low = text(&draw(&model, &mut view, &Theme::dark()));
    assert!(low.contains("-3.750 to -3.500 ") && low.contains('┼'), "{low}");
    press_at(&model, &mut view, "m{{{", SIZE);
    let apart = text(&draw(&model, &mut view, &Theme::dark()));
    assert!(apart.contains("Δ -"), "{apart}");
    press_at(&model, &mut view, "\x1b", SIZE);
    assert_eq!((view.charts.view.cursor, view.charts.view.height), (None, None));
    press_at(&model, &mut view, "K", SIZE);
    insta::assert_snapshot!(toasts(&view));
}

#[test]
fn histogram_is_a_series_among_others() {
    let model = logged();
    let mut view = ViewState::new();
    let run = |view: &mut ViewState, line: &str| rankdeck_tui::run_line(&model, view, line, NOW);
    run(&mut view, "chart hist/action");
    let drawn = text(&draw(&model, &mut view, &Theme::dark()));
    assert!(drawn.contains("● action") && drawn.contains("min ") && drawn.contains('▀'), "{drawn}");
    let mut zoomed = selected(&model, "hist/action", "+++");
    let closer = text(&draw(&model, &mut zoomed, &Theme::dark()));
    assert!(zoomed.charts.view.window.zoom == 3 && closer.contains('▀'), "{closer}");
    let mut on_time = selected(&model, "hist/action", "a");
    let time = text(&draw(&model, &mut on_time, &Theme::dark()));
    assert!(on_time.charts.view.axis == Axis::Time && time.contains('▀'), "{time}");
    let files = run(&mut view, "export");
    let [ScreenAction::SaveFiles(files)] = &files[..] else { panic!("{files:?}") };
    let names: Vec<(&str, &str)> = files.iter().map(|file| (file.stem, file.ending)).collect();
    assert_eq!(names, [("charts", "csv"), ("charts", "svg"), ("charts", "png"), ("histograms", "csv")]);
    let svg = String::from_utf8_lossy(&files[1].bytes()).into_owned();
    assert!(svg.matches("<rect ").count() > 1000, "{} bytes", svg.len());
    assert!(
        String::from_utf8_lossy(&files[3].bytes())
            .starts_with("series,env_step,time,low,high,count,histograms,generation\n")
    );
    assert!(files[2].bytes().starts_with(b"\x89PNG"));
}

#[test]
fn run_with_only_histograms_shows_one() {
    let mut model = logged();
    model.scalars.clear();
    let drawn = text(&draw(&model, &mut ViewState::new(), &Theme::dark()));
    assert!(drawn.contains("action") && drawn.contains('▀'), "{drawn}");
}

#[test]
fn images_are_browsed_by_name_and_step() {
    let model = logged();
    let mut view = ViewState::new();
    press_at(&model, &mut view, "i", SIZE);
    let dark = draw(&model, &mut view, &Theme::dark());
    assert!(text(&dark).contains('▀'), "{}", text(&dark));
    insta::assert_snapshot!("pictures_mono", text(&draw(&model, &mut view, &Theme::mono())));
    let shown = |view: &mut ViewState| text(&draw(&model, view, &Theme::mono()));
    assert!(shown(&mut view).contains("5 of 5"));
    press_at(&model, &mut view, "hh", SIZE);
    let third = shown(&mut view);
    assert!(third.contains("200.0k") && third.contains("3 of 5"), "{third}");
    press_at(&model, &mut view, "g", SIZE);
    assert!(shown(&mut view).contains("1 of 5"));
    press_at(&model, &mut view, "j", SIZE);
    let other = shown(&mut view);
    assert!(other.contains("plots/value map") && other.contains("64 x 16"), "{other}");
    press_at(&model, &mut view, "jGh", SIZE);
    assert_eq!(view.overlays[..], [Overlay::Images(Images::new(Some("eval/frame".into()), Some(4)))]);
    let saved = press_at(&model, &mut view, "e", SIZE);
    let [ScreenAction::SaveFiles(files)] = &saved[..] else { panic!("{saved:?}") };
    assert_eq!((files[0].ending, files[0].bytes()), ("png", png(32, 32, 120).into()));
    let copied = press_at(&model, &mut view, "y", SIZE);
    assert!(matches!(&copied[..], [ScreenAction::Copy(text)] if text.contains("plots/value map: 64 x 16 ")));
    press_at(&model, &mut view, "i", SIZE);
    assert!(view.overlays.is_empty(), "the same key closes it");
}

#[test]
fn image_is_drawn_once_the_app_has_decoded_it() {
    let model = logged();
    let mut view = ViewState::new();
    assert!(rankdeck_tui::undecoded_picture(&model, &view).is_none(), "none is shown");
    press_at(&model, &mut view, "i", SIZE);
    let shown = |view: &mut ViewState| text(&cells(&model, view, &Theme::dark(), SIZE, NOW)).contains('▀');
    assert!(!shown(&mut view));
    let newest = rankdeck_tui::decode_picture(rankdeck_tui::undecoded_picture(&model, &view).unwrap());
    press_at(&model, &mut view, "h", SIZE);
    rankdeck_tui::set_picture(&mut view, newest.clone());
    assert!(!shown(&mut view), "that of another step");
    let number = rankdeck_tui::undecoded_picture(&model, &view).unwrap().number;
    assert_eq!(number + 1, newest.number);
    press_at(&model, &mut view, "l", SIZE);
    rankdeck_tui::set_picture(&mut view, newest);
    assert!(shown(&mut view));
    assert!(rankdeck_tui::undecoded_picture(&model, &view).is_none());
}

#[test]
fn palette_opens_images_by_name() {
    let (model, mut view) = (logged(), ViewState::new());
    let run = |view: &mut ViewState, line: &str| rankdeck_tui::run_line(&model, view, line, NOW);
    run(&mut view, "media value");
    let choice = Images::new(Some("plots/value map".into()), None);
    assert_eq!(view.overlays[..], [Overlay::Images(choice)]);
    view.overlays.clear();
    run(&mut view, "media nothing");
    assert!(view.overlays.is_empty());
    rankdeck_tui::run_line(&running(&[cpu("a", 1)]), &mut view, "media", NOW);
    assert!(view.overlays.is_empty());
    insta::assert_snapshot!(toasts(&view));
}

#[test]
fn missing_image_falls_back_to_the_one_before() {
    let model = logged();
    let mut earlier = logged();
    earlier.gallery = Default::default();
    log_picture(&mut earlier, "eval/frame", 0.0, &png(32, 32, 0));
    log_picture(&mut earlier, "eval/frame", 100_000.0, &png(32, 32, 40));
    let mut view = ViewState::new();
    press_at(&model, &mut view, "ih", SIZE);
    let past = text(&draw(&earlier, &mut view, &Theme::mono()));
    assert!(past.contains("100.0k") && past.contains("2 of 2"), "{past}");
    let before = text(&draw(&running(&[cpu("a", 1)]), &mut view, &Theme::mono()));
    insta::assert_snapshot!(before);
    let after = text(&draw(&model, &mut view, &Theme::mono()));
    assert!(after.contains("4 of 5"), "the choice stays: {after}");
}

#[test]
fn broken_image_is_reported_and_others_are_drawn() {
    let mut model = logged();
    let whole = png(8, 8, 9);
    log_picture(&mut model, "a", 1.0, &whole[..50]);
    let mut view = ViewState::new();
    press_at(&model, &mut view, "i", SIZE);
    let drawn = text(&draw(&model, &mut view, &Theme::dark()));
    assert!(!drawn.contains('▀'), "{drawn}");
    insta::assert_snapshot!(drawn);
    let area = Rect::new(0, 0, SIZE.0, SIZE.1);
    assert!(rankdeck_tui::picture_apart(&view, area).is_none());
    press_at(&model, &mut view, "j", SIZE);
    view.style.drawn_apart = true;
    let drawn = text(&draw(&model, &mut view, &Theme::dark()));
    let (decoded, place) = rankdeck_tui::picture_apart(&view, area).unwrap();
    assert_eq!(decoded.sides, (32, 32));
    assert!(!drawn.contains('▀') && place.width > 20 && place.height > 10, "{place:?}\n{drawn}");
    press_at(&model, &mut view, "?", SIZE);
    assert!(rankdeck_tui::picture_apart(&view, area).is_none(), "nothing is drawn over help");
}

#[test]
fn words_print_histograms_and_images() {
    let model = logged();
    let printed = |typed: &str| Linear::default().handle_line(&model, typed, NOW).lines;
    let bins = printed("bins action");
    assert!(bins[0].starts_with("hist/action ") && bins[0].contains(" 1.18M"), "{bins:?}");
    assert!(bins.len() == 17 && bins.iter().any(|line| line.ends_with(&"#".repeat(30))), "{bins:?}");
    assert!(printed("bins nothing")[0].contains("hist/action"));
    let pictures = printed("pictures");
    assert_eq!(pictures.len(), 2);
    let image = &pictures[0];
    assert!(image.starts_with("eval/frame: 32 x 32 ") && image.contains(" 400.0k, 1K, 5 "), "{image}");
    let mut shown = Transcript::default();
    for typed in ["bins action", "bins nothing", "pictures"] {
        shown.add(typed, &printed(typed).join("\n"));
    }
    let empty = running(&[cpu("a", 1)]);
    for typed in ["bins x", "pictures"] {
        let lines = Linear::default().handle_line(&empty, typed, NOW).lines;
        shown.add(&format!("{typed}, without any"), &lines.join("\n"));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn media_of_any_size_are_drawn_without_panic() {
    let model = logged();
    for width in [20, 40, 60, 80, 200] {
        for height in [5, 8, 12, 24, 60] {
            for keys in ["2", "i", "2o", "2L"] {
                let mut view = ViewState::new();
                view.charts.series.selected = Some("hist/action".into());
                press_at(&model, &mut view, keys, (width, height));
                for theme in [Theme::dark(), Theme::mono()] {
                    cells(&model, &mut view, &theme, (width, height), NOW);
                    decode(&model, &mut view);
                    cells(&model, &mut view, &theme, (width, height), NOW);
                }
            }
        }
    }
}
