//! Home as text, at the sizes that are supported.

use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_core::series::{Place, Series};
use rankdeck_proto::message::{GpuSample, HostSample, RunOutcome};
use rankdeck_proto::process::GpuUser;
use rankdeck_proto::run_entry::{GivenGpu, HostSnapshot};
use rankdeck_tui::home::{
    ExperimentFile, Home, HomeEvent, HomePage, HomeView, LaunchPreview, RunPhase, RunRow, layout, on_key,
    view,
};
use rankdeck_tui::{Glyphs, Theme};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

const NOW: Timestamp = Timestamp(754_000);
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn gpu(index: u32, busy: bool) -> GpuSample {
    GpuSample {
        index,
        name: "NVIDIA H100 80GB HBM3".into(),
        utilization: Some(if busy { 97 } else { 0 }),
        memory_used: if busy { 61 << 30 } else { 600 << 20 },
        memory_total: 80 << 30,
        power_w: Some(if busy { 579.0 } else { 71.0 }),
        temperature_c: Some(if busy { 64 } else { 31 }),
        sm_clock_mhz: Some(1980),
        memory_clock_mhz: Some(2619),
        processes: if busy { vec![(4100 + index, 60 << 30)] } else { Vec::new() },
        throttle: if index == 1 { vec!["power cap".into()] } else { Vec::new() },
        ..GpuSample::default()
    }
}

fn snapshot(home: &mut Home, host: usize, gpus: &[GpuSample], cpu: f32, at: Timestamp) {
    let sample = HostSample {
        cpu_percent: cpu,
        cpu_count: 64,
        load1: 12.3,
        memory_used: 40 << 30,
        memory_total: 503 << 30,
        gpus: gpus.to_vec(),
        ..HostSample::default()
    };
    let user = |pid| GpuUser {
        pid,
        start: 9,
        own: true,
        user: "alice".into(),
        command: "python train.py --lr 3e-4".into(),
        run: (pid == 4100).then(|| "breakout_ppo-20261123-031200".into()),
    };
    let users = gpus.iter().flat_map(|gpu| gpu.processes.iter().map(|(pid, _)| user(*pid))).collect();
    let given = |gpu: &GpuSample| GivenGpu {
        memory_used: gpu.memory_used,
        memory_total: gpu.memory_total,
        processes: gpu.processes.len() as u32,
        lost: gpu.lost,
    };
    let given = gpus.iter().map(given).collect();
    let runs = Some(Default::default());
    let snapshot = HostSnapshot { sample, given, users, runs, cost_ms: 3, next_ms: 2000 };
    home.update(HomeEvent::Snapshot { host, snapshot: Box::new(snapshot) }, at);
}

fn row(run: &str, phase: RunPhase, outcome: Option<RunOutcome>) -> RunRow {
    let failed = outcome == Some(RunOutcome::Failed);
    let reason = if failed { "rank 13 on gpu-b was killed by SIGKILL: out of memory" } else { "" };
    let summary = RunSummary {
        outcome,
        exit_code: outcome.map(|_| u8::from(failed)),
        reason: reason.into(),
        env_step: Some(41_200_000),
        total_steps: Some(50_000_000),
        last_return: Some(211.375),
        train_iter: Some(402),
        episodes: Some(12_345),
        duration_s: 24_072.0,
        world_size: 16,
        gpus: 16,
        hosts: vec!["gpu-a".into(), "gpu-b".into()],
        program: "rankdeck-trainer, ppo on BreakoutNoFrameskip-v4".into(),
        note: "lr 3e-4, big batch".into(),
        ..RunSummary::default()
    };
    let alive = if phase == RunPhase::Running { 16 } else { 0 };
    RunRow { run: run.into(), phase, summary, alive, age_s: Some(31_000.0), recorded: true }
}

fn compared(run: &str, seed: &str, lr: &str, slope: f64) -> ComparedRun {
    let curve = |slope: f64| {
        let mut series = Series::default();
        (0..200).for_each(|i| {
            let (step, time) = (f64::from(i) * 50_000.0, f64::from(i) * 3.0);
            series.push(Place { step, time, ..Place::default() }, slope * f64::from(i).sqrt());
        });
        series
    };
    let settings = [("run.name", "pong_dqn"), ("run.seed", seed), ("learn.learning_rate", lr)];
    ComparedRun {
        run: run.into(),
        outcome: Some(RunOutcome::Succeeded),
        env_step: Some(10_000_000),
        duration_s: 597.0,
        steps_per_s: Some(16_750.0),
        last_return: Some(slope * 14.1),
        best_return: Some(slope * 14.1),
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        series: [("charts/episodic_return", curve(slope)), ("charts/SPS", curve(7.0))]
            .map(|(name, series)| (name.to_owned(), series))
            .into(),
        ..ComparedRun::default()
    }
}

fn home() -> Home {
    let hosts = ["gpu-a", "gpu-b", "gpu-c"].map(|name| (name.to_owned(), name.to_owned()));
    let mut home = Home::new(hosts);
    for second in 0..40u64 {
        let busy = second % 7 != 0;
        snapshot(&mut home, 0, &[gpu(0, true), gpu(1, busy)], 20.0 + second as f32, Timestamp(second * 2000));
    }
    snapshot(&mut home, 0, &[gpu(0, true), gpu(1, true)], 61.0, Timestamp(753_000));
    snapshot(&mut home, 1, &[gpu(0, false), gpu(1, false)], 2.0, Timestamp(33_000));
    snapshot(&mut home, 1, &[gpu(0, false), gpu(1, false)], 2.0, Timestamp(752_500));
    let error = "gpu-c: cannot connect to gpu-c:22: no route to host";
    home.update(
        HomeEvent::HostFailed {
            host: 2,
            error: HintedError::new(error, "check that the host is up: `ping gpu-c`"),
        },
        NOW,
    );
    let rows = vec![
        row("breakout_ppo-20261123-031200", RunPhase::Running, None),
        row("breakout_ppo-20261122-184415", RunPhase::Ended, Some(RunOutcome::Failed)),
        row("pong_dqn-20261121-101112", RunPhase::Ended, Some(RunOutcome::Succeeded)),
        row("pong_dqn-20261120-091500", RunPhase::Orphaned, None),
        RunRow { summary: RunSummary::default(), ..row("laptop-20261101-080000", RunPhase::Recorded, None) },
    ];
    home.update(HomeEvent::Runs(rows), NOW);
    let runs = vec![
        compared("pong_dqn-20261121-101112", "1", "0.0001", 1.0),
        compared("pong_dqn-20261121-111112", "2", "0.0001", 1.2),
        compared("pong_dqn-20261121-121112", "1", "0.0003", 1.5),
    ];
    home.update(HomeEvent::Compared(runs, vec!["laptop-1: no record".into()]), NOW);
    let experiment = |path: &str, error: Option<&str>| ExperimentFile {
        path: path.into(),
        name: "breakout_ppo".into(),
        what: "BreakoutNoFrameskip-v4 by ppo".into(),
        total_steps: 50_000_000,
        error: error.map(str::to_owned),
    };
    let error = "error: unknown key `lerning_rate`";
    let all =
        vec![experiment("configs/breakout_ppo.toml", None), experiment("configs/pong_dqn.toml", Some(error))];
    home.update(HomeEvent::Experiments(all), NOW);
    let lines = ["plan: world_size 4, 2 hosts, nccl", "  node_rank 0  gpu-a  ranks 0=gpu0 1=gpu1"];
    let lines = lines.map(str::to_owned).to_vec();
    let path = "configs/breakout_ppo.toml".to_owned();
    home.update(HomeEvent::Planned(LaunchPreview { path, typed: String::new(), lines, fits: true }), NOW);
    home
}

fn shown(home: &Home, keys: &str, theme: &Theme, size: (u16, u16)) -> String {
    let mut state = HomeView::default();
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let area = ratatui::layout::Rect::new(0, 0, size.0, size.1);
    layout(home, &mut state, area);
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            c => KeyCode::Char(c),
        };
        on_key(home, &mut state, KeyEvent::from(code), NOW);
        layout(home, &mut state, area);
    }
    state.toasts.clear();
    terminal.draw(|frame| view(home, &state, theme, NOW, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(size.0));
    rows.map(|row| format!("{}\n", row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end()))
        .collect()
}

fn shots(name: &str, keys: &str) {
    for size in SIZES {
        let text = shown(&home(), keys, &Theme::dark(), size);
        insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), text);
    }
}

#[test]
fn runs_page() {
    shots("home_runs", "j ");
}

#[test]
fn experiments_page_with_plan() {
    shots("home_experiments", "2");
}

#[test]
fn fleet_page_with_gpus() {
    shots("home_fleet", "3j ");
}

/// Not `0B of 0B`.
#[test]
fn unknown_gpu_memory_is_not_shown_as_zero() {
    let mut home = home();
    let unknown = GpuSample { memory_used: 0, memory_total: 0, ..gpu(0, false) };
    snapshot(&mut home, 0, &[unknown], 1.0, NOW);
    let drawn = shown(&home, "3", &Theme::dark(), (200, 60));
    assert!(drawn.contains("H100") && !drawn.contains("0B"), "{drawn}");
}

/// The recording of a console that detached lacks the end; the hosts have it.
#[test]
fn comparison_takes_a_missing_outcome_from_the_hosts() {
    let mut home = home();
    let failed = "breakout_ppo-20261122-184415";
    home.compared.runs = vec![
        ComparedRun { outcome: None, ..compared(failed, "1", "0.1", 1.0) },
        ComparedRun { outcome: None, ..compared("elsewhere", "1", "0.1", 1.0) },
    ];
    let drawn = shown(&home, "4", &Theme::dark(), (120, 40));
    let of = |run: &str| drawn.lines().find(|line| line.contains(run)).unwrap().to_owned();
    insta::assert_snapshot!(format!("{}\n{}", of(failed).trim(), of("elsewhere").trim()));
}

#[test]
fn comparison_with_more_runs_than_rows_shows_the_count() {
    let mut home = home();
    home.compared.runs = (0..10).map(|at| compared(&format!("run-{at}"), "1", "0.1", 1.0)).collect();
    for size in [(80, 24), (120, 40)] {
        let drawn = shown(&home, "4", &Theme::dark(), size);
        assert!(drawn.contains(" 2 more ") && drawn.contains("`rankdeck compare`"), "{drawn}");
    }
    home.compared.runs.truncate(8);
    assert!(!shown(&home, "4", &Theme::dark(), (120, 40)).contains(" more "));
}

#[test]
fn compare_page() {
    shots("home_compare", "4");
}

#[test]
fn launch_form_shows_plan_and_excluded_hosts() {
    insta::assert_snapshot!(
        "home_launch",
        shown(&home(), "3j n\nlearn.gamma=0.98", &Theme::dark(), (80, 24))
    );
}

#[test]
fn stop_question() {
    insta::assert_snapshot!("home_stop", shown(&home(), "x", &Theme::dark(), (80, 24)));
}

#[test]
fn ascii_draws_nothing_else() {
    for keys in ["", "2", "3", "4", "?", "x", "2\n", "/x"] {
        let text = shown(&home(), keys, &Theme::mono().with_glyphs(Glyphs::Ascii), (100, 30));
        let odd: Vec<char> = text.chars().filter(|c| !c.is_ascii()).collect();
        assert!(odd.is_empty(), "{keys}: {odd:?}\n{text}");
    }
}

#[test]
fn recorded_run_shows_outcome_and_steps() {
    let mut home = Home::new([("gpu-a".to_owned(), "a".to_owned())]);
    let kept = row("laptop-20261101-080000", RunPhase::Recorded, Some(RunOutcome::Failed));
    home.update(HomeEvent::Runs(vec![kept]), NOW);
    let mut shown = HomeView::default();
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    terminal
        .draw(|frame| {
            layout(&home, &mut shown, frame.area());
            view(&home, &shown, &Theme::dark(), NOW, frame);
        })
        .unwrap();
    let cells: String = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
    for expected in ["failed (1)", "41.2M", "82%", "iteration 402"] {
        assert!(cells.contains(expected), "{expected}\n{cells}");
    }
}

#[test]
fn any_size_is_drawn_without_panic() {
    for page in HomePage::ALL {
        for size in [(1, 1), (5, 3), (39, 7), (40, 8), (41, 9), (60, 12), (300, 9), (45, 90)] {
            let number = HomePage::ALL.iter().position(|one| *one == page).unwrap() + 1;
            for keys in ["", "?", "x", "n", "P"] {
                shown(&home(), &format!("{number}{keys}"), &Theme::dark(), size);
                shown(&Home::default(), &format!("{number}{keys}"), &Theme::dark(), size);
            }
        }
    }
}
