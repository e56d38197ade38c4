//! Four runs of a million points each, overlaid: what the points take, and how long the page that shows them
//! takes to draw, the first time and then.
//!
//! `cargo bench -p rankdeck-tui --bench overlay`

#![allow(clippy::unwrap_used, clippy::disallowed_macros, reason = "a benchmark prints")]

use rankdeck_core::compare::ComparedRun;
use rankdeck_core::series::{Place, Series};
use rankdeck_tui::Theme;
use rankdeck_tui::home::{Home, HomeEvent, HomePage, HomeView, layout, view};
use rankdeck_types::ids::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Instant;

const RUNS: usize = 4;
const POINTS: u32 = 1_000_000;
const FRAMES: usize = 400;

fn run(at: usize) -> ComparedRun {
    let mut series = Series::default();
    for n in 0..POINTS {
        let step = f64::from(n) * 512.0;
        let noise = f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        series.push(
            Place { step, time: f64::from(n), ..Place::default() },
            (step / 1e7).sqrt() + noise + at as f64,
        );
    }
    ComparedRun {
        run: format!("run-{at}"),
        settings: [("learn.learning_rate".into(), format!("{at}e-4"))].into(),
        series: [("charts/episodic_return".into(), series)].into(),
        ..ComparedRun::default()
    }
}

fn main() {
    let begun = Instant::now();
    let runs: Vec<ComparedRun> = (0..RUNS).map(run).collect();
    let taken = begun.elapsed();
    let kept: usize =
        runs.iter().flat_map(|run| run.series.values()).map(|series| series.points().len()).sum();
    println!(
        "{RUNS} runs of {POINTS} points: {:.0} ms to take in, {kept} points kept",
        taken.as_secs_f64() * 1e3
    );
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    let (theme, now) = (Theme::dark(), Timestamp(1_000));
    let mut home_view = HomeView { page: HomePage::Compare, ..HomeView::default() };
    let mut home = Home::default();
    let mut times: Vec<f64> = Vec::with_capacity(FRAMES);
    let begun = Instant::now();
    home.update(HomeEvent::Compared(runs, Vec::new()), now);
    let mut draw = |since: Instant, home_view: &mut HomeView| {
        terminal
            .draw(|frame| {
                layout(&home, home_view, frame.area());
                view(&home, home_view, &theme, now, frame);
            })
            .unwrap();
        since.elapsed().as_secs_f64() * 1e3
    };
    println!("first frame, figures over the runs included: {:.1} ms", draw(begun, &mut home_view));
    times.extend((0..FRAMES).map(|_| draw(Instant::now(), &mut home_view)));
    times.sort_by(f64::total_cmp);
    println!("then p50 {:.2} ms, p99 {:.2} ms", times[FRAMES / 2], times[FRAMES * 99 / 100]);
    let shown = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect::<String>();
    assert!(shown.contains("charts/episodic_return") && shown.contains("run-3"), "nothing was drawn");
}
